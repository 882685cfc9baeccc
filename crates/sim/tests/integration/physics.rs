//! What a user relies on of the model: back-pressure, the drain beside the foreground, conservation, and errors for what
//! cannot be.

use crate::common::program;
use forebay_sim::machine::Machine;
use forebay_sim::model::{self, Options, Outcome, SimError};
use forebay_sim::program::Program;
use forebay_sim::settings::{self, Setting};
use proptest::prelude::*;
use std::path::Path;

/// Two nodes; storage of 100 MB/s behind a buffer of 64 MiB and 1000 MB/s on each.
const SMALL: &str = r#"
version = 1
name = "small"
[compute]
nodes = 4
processes_per_node = 4
[network]
rate = "1000MB/s"
[storage]
servers = 1
stripe = "1MiB"
[storage.device]
rate = "100MB/s"
[buffer]
attach = "compute"
capacity = "64MiB"
[buffer.device]
rate = "1000MB/s"
"#;

fn machine(set: &[&str]) -> Machine {
    let set: Vec<Setting> = set.iter().map(|text| Setting::parse(text).unwrap()).collect();
    settings::machine(Path::new("small.toml"), SMALL, &set).unwrap()
}

fn run(machine: &Machine, program: &Program) -> Outcome {
    let outcome = model::run(machine, program, &Options::default()).unwrap();
    assert!(outcome.bytes.conserved(), "{:?}", outcome.bytes);
    outcome
}

/// One process writes so many MiB.
fn write_mib(mib: u64) -> Program {
    program(&format!(
        r#"workload = 1
        file = [{{ name = "f", path = "f.{{process}}" }}]
        [[job]]
        phase = [{{ name = "write", steps = [{{ write = "f", block = "{mib}MiB", transfer = "1MiB" }}] }}]"#
    ))
}

const MIB: f64 = 1_048_576.0;

#[test]
fn jobs_wait_for_nodes_of_their_own_unless_nodes_are_shared() {
    let two = |mib: u64| {
        program(&format!(
            r#"workload = 1
            file = [{{ name = "f", path = "f.{{process}}" }}, {{ name = "g", path = "g.{{process}}" }}]
            [[job]]
            name = "first"
            phase = [{{ name = "write", steps = [{{ write = "f", block = "{mib}MiB", transfer = "1MiB" }}] }}]
            [[job]]
            name = "second"
            phase = [{{ name = "write", steps = [{{ write = "g", block = "{mib}MiB", transfer = "1MiB" }}] }}]"#
        ))
    };
    let ends = |set: &[&str]| {
        let machine = machine(&[&["compute.nodes=1", "buffer=none"], set].concat());
        run(&machine, &two(100)).jobs.iter().map(|job| (job.start_s, job.end_s)).collect::<Vec<_>>()
    };
    // One request after the other, each over the network and then to the device. Two processes keep the device busy.
    let device = 100.0 * MIB / 100e6;
    let alone = device + 100.0 * MIB / 1000e6;
    let waiting = ends(&[]);
    assert!((waiting[0].1 - alone).abs() < 0.02 * alone, "{waiting:?}");
    assert!((waiting[1].0 - waiting[0].1).abs() < 0.01, "{waiting:?}");
    let shared = ends(&["compute.shared=true"]);
    for (start_s, end_s) in shared {
        assert!(
            start_s < 0.01 && (end_s - 2.0 * device).abs() < 0.04 * device,
            "{start_s} {end_s}"
        );
    }
}

#[test]
fn a_write_that_fits_runs_at_the_speed_of_flash_and_one_that_does_not_at_that_of_the_drain() {
    let fits = run(&machine(&["buffer.reads_delay_writes=false"]), &write_mib(60));
    let rate = fits.jobs[0].phases[0].bytes_per_s;
    assert!((rate / 1e9 - 1.0).abs() < 0.01, "{rate}");
    assert_eq!(fits.jobs[0].phases[0].stalled_share, 0.0);
    // 64 MiB at flash, the other 960 as they drain: D V / (V - C) in the long run.
    let full = run(&machine(&["buffer.reads_delay_writes=false"]), &write_mib(1024));
    let expected = 100e6 * 1024.0 / (1024.0 - 64.0);
    let rate = full.jobs[0].phases[0].bytes_per_s;
    assert!((rate / expected - 1.0).abs() < 0.05, "{rate} {expected}");
    assert!(full.jobs[0].phases[0].stalled_s > 1.0);
    assert!(full.buffer.as_ref().unwrap().peak_share > 0.99);
    // Storage has everything when all of it has gone through the disks.
    assert!((full.drained_s / (1024.0 * MIB / 100e6) - 1.0).abs() < 0.02, "{}", full.drained_s);
}

#[test]
fn a_full_buffer_blocks_is_passed_by_or_fails_as_the_machine_says() {
    let bypass = run(&machine(&["buffer.when_full=bypass"]), &write_mib(256));
    assert!(bypass.bytes.past_buffer > 0 && bypass.bytes.drained > 0);
    assert_eq!(bypass.jobs[0].phases[0].stalled_s, 0.0);
    let fails =
        model::run(&machine(&["buffer.when_full=fail"]), &write_mib(256), &Options::default());
    assert!(matches!(fails, Err(SimError::NoRoom { .. })), "{fails:?}");
}

#[test]
fn the_drains_reads_take_the_flash_from_writes_unless_they_are_apart() {
    let slow = ["buffer.device.rate=150MB/s", "buffer.capacity=1GiB"];
    let apart =
        run(&machine(&[slow[0], slow[1], "buffer.reads_delay_writes=false"]), &write_mib(512));
    let shared = run(&machine(&slow), &write_mib(512));
    let (apart, shared) =
        (apart.jobs[0].phases[0].bytes_per_s, shared.jobs[0].phases[0].bytes_per_s);
    assert!((apart / 150e6 - 1.0).abs() < 0.02, "{apart}");
    assert!(shared < 0.7 * apart, "{shared} {apart}");
    // An idle drain does not come in the way.
    let idle = run(&machine(&[slow[0], slow[1], "buffer.drain.when=idle"]), &write_mib(512));
    assert!(idle.jobs[0].phases[0].bytes_per_s > 0.98 * apart);
    assert!((idle.bytes.drained as f64 - 512.0 * MIB).abs() < 1.0);
}

#[test]
fn small_requests_have_the_rate_of_their_size() {
    let sizes =
        "storage.device.by_size=[{to='64KiB', rate='10MB/s'}, {to='512KiB', write_rate='50MB/s'}]";
    let bare = machine(&["buffer=none", "network.rate=100GB/s", sizes]);
    let rate = |machine: &Machine, transfer: &str| {
        let text = format!(
            r#"workload = 1
            file = [{{ name = "f", path = "f.{{process}}" }}]
            [[job]]
            phase = [{{ name = "write", steps = [{{ write = "f", block = "8MiB", transfer = "{transfer}" }}] }}]"#
        );
        run(machine, &program(&text)).jobs[0].phases[0].bytes_per_s
    };
    for (transfer, expected) in
        [("64KiB", 10e6), ("128KiB", 50e6), ("512KiB", 50e6), ("1MiB", 100e6)]
    {
        let found = rate(&bare, transfer);
        assert!((found / expected - 1.0).abs() < 0.01, "{transfer}: {found}");
        // The closed form knows it too.
        let of = forebay_sim::closed::Burst {
            processes: 1,
            processes_per_node: 1,
            transfer_bytes: forebay_workload::units::parse_size(transfer).unwrap(),
            bytes_per_process: 8 << 20,
        };
        let closed = forebay_sim::closed::burst(&bare, of).bytes_per_s;
        assert!((found / closed - 1.0).abs() < 0.01, "{transfer}: {found} {closed}");
    }
    let device = &bare.storage.device;
    assert!((device.read_s(1 << 16) - 65_536.0 / 10e6).abs() < 1e-9, "{device:?}");
    assert!((device.read_s(1 << 17) - 131_072.0 / 100e6).abs() < 1e-9, "{device:?}");
    // Flash too, as many devices as there are; a log sees large requests alone.
    let flash = "buffer.device.by_size=[{to='1MiB', rate='100MB/s'}]";
    let two = ["buffer.devices=2", "buffer.reads_delay_writes=false"];
    let small = rate(&machine(&[flash, two[0], two[1]]), "1MiB");
    assert!((small / 200e6 - 1.0).abs() < 0.01, "{small}");
    let log = rate(&machine(&[flash, two[0], two[1], "buffer.mode=log"]), "1MiB");
    assert!((log / 2000e6 - 1.0).abs() < 0.01, "{log}");
    for (wrong, told) in [
        (
            "[{to='4KiB', rate='1MB/s'}, {to='4KiB', rate='2MB/s'}]",
            "by_size[1].to: it is 4096 bytes, and not above",
        ),
        ("[{to='4KiB'}]", "by_size[0].rate: it is missing; expected rate, write_rate or read_rate"),
        ("[{rate='1MB/s'}]", "by_size[0].to: it is missing"),
        (
            "[{to='4KiB', rate='0MB/s'}]",
            "by_size[0].rate: it is \"0MB/s\"; expected a rate above 0",
        ),
        ("[{to='4KiB', rates='1MB/s'}]", "by_size[0].rates: this key is not known here"),
    ] {
        let set = Setting::parse(&format!("storage.device.by_size={wrong}")).unwrap();
        let fault = settings::machine(Path::new("small.toml"), SMALL, &[set]).unwrap_err();
        assert!(fault.to_string().contains(told), "{fault}");
    }
}

#[test]
fn pauses_between_repetitions_let_the_buffer_drain_and_are_no_part_of_the_phase() {
    let bursts = |pause: &str, last: &str| {
        let text = format!(
            r#"workload = 1
            file = [{{ name = "f", path = "{{repeat}}/f.{{process}}", size = "48MiB" }}]
            [[job]]
            processes = 4
            processes_per_node = 1
            [[job.phase]]
            name = "burst"
            repeat = 5
            {pause}
            steps = [{{ write = "f", transfer = "1MiB" }}{last}]"#
        );
        run(&machine(&["buffer.reads_delay_writes=false"]), &program(&text))
    };
    // 192 MiB go to 256 MiB of room, and drain in 2 s.
    let apart = bursts("pause = \"10s\"", "");
    let phase = &apart.jobs[0].phases[0];
    let alone = 48.0 * MIB / 1000e6;
    assert!((phase.time_s / (5.0 * alone) - 1.0).abs() < 0.01, "{phase:?}");
    assert!((apart.end_s - (40.0 + 5.0 * alone)).abs() < 0.01, "{phase:?}");
    assert_eq!(phase.stalled_s, 0.0);
    // Without them the second burst finds the first one, and each waits for the disks.
    let close = bursts("", "");
    assert!(close.jobs[0].phases[0].stalled_s > 1.0);
    // The same after a step that only computes, which is part of the phase.
    let computes = bursts("pause = \"10s\"", ", { think = \"1s\" }");
    let phase = &computes.jobs[0].phases[0];
    assert!((phase.time_s - 5.0 * (alone + 1.0)).abs() < 0.01, "{phase:?}");
    assert!((computes.end_s - (45.0 + 5.0 * alone)).abs() < 0.01, "{phase:?}");
}

#[test]
fn a_limited_drain_keeps_its_limit() {
    let limited = run(&machine(&["buffer.drain.limit=10MB/s"]), &write_mib(50));
    assert!((limited.drained_s / (50.0 * MIB / 10e6) - 1.0).abs() < 0.05, "{}", limited.drained_s);
}

#[test]
fn the_drain_of_one_job_slows_another() {
    let reader = r#"workload = 1
        file = [{ name = "w", path = "w.{process}" }, { name = "r", path = "r.{process}", size = "64MiB", prepared = true }]
        [[job]]
        name = "reader"
        phase = [{ name = "read", steps = [{ read = "r", transfer = "1MiB" }] }]
        "#;
    let writer = r#"
        [[job]]
        name = "writer"
        phase = [{ name = "write", steps = [{ write = "w", block = "256MiB", transfer = "1MiB" }] }]"#;
    let alone = run(&machine(&[]), &program(reader));
    let beside = run(&machine(&[]), &program(&format!("{reader}{writer}")));
    let rate = |outcome: &Outcome| outcome.jobs[0].phases[0].bytes_per_s;
    assert!(rate(&beside) < 0.6 * rate(&alone), "{} {}", rate(&beside), rate(&alone));
}

#[test]
fn disks_with_a_rate_for_each_direction_read_beside_writes() {
    let reader = r#"workload = 1
        file = [{ name = "w", path = "w.{process}" }, { name = "r", path = "r.{process}", size = "64MiB", prepared = true }]
        [[job]]
        name = "reader"
        phase = [{ name = "read", steps = [{ read = "r", transfer = "1MiB" }] }]
        "#;
    let writer = r#"
        [[job]]
        name = "writer"
        phase = [{ name = "write", steps = [{ write = "w", block = "256MiB", transfer = "1MiB" }] }]"#;
    let read_s = |set: &[&str], text: &str| {
        let set = [&["buffer=none"][..], set].concat();
        run(&machine(&set), &program(text)).jobs[0].phases[0].time_s
    };
    let both = format!("{reader}{writer}");
    let alone_s = read_s(&[], reader);
    // One line for both: a write comes before each read.
    let shared_s = read_s(&[], &both);
    assert!(shared_s > 1.7 * alone_s, "{shared_s} {alone_s}");
    let apart_s = read_s(&["storage.reads_delay_writes=false"], &both);
    assert!((apart_s / alone_s - 1.0).abs() < 0.01, "{apart_s} {alone_s}");
}

#[test]
fn what_is_still_in_the_buffer_is_read_from_flash() {
    let text = |mib: u32| {
        format!(
            r#"workload = 1
        file = [{{ name = "f", path = "f.{{process}}", size = "{mib}MiB" }}]
        [[job]]
        phase = [
          {{ name = "write", steps = [{{ write = "f", transfer = "1MiB" }}] }},
          {{ name = "read", steps = [{{ read = "f", transfer = "1MiB" }}] }},
        ]"#
        )
    };
    let near = run(&machine(&[]), &program(&text(32)));
    assert_eq!(near.bytes.read_buffer, 32 << 20);
    // A file four times the buffer has at most a quarter left.
    let far = run(&machine(&[]), &program(&text(256)));
    assert!(
        far.bytes.read_buffer <= 64 << 20 && far.bytes.read_storage >= 192 << 20,
        "{:?}",
        far.bytes
    );
}

#[test]
fn watermarks_and_staging_keep_data_until_they_are_asked() {
    let marks = ["buffer.drain.when=watermarks", "buffer.drain.high=0.75", "buffer.drain.low=0.25"];
    let below = run(&machine(&marks), &write_mib(40));
    // It did not reach the mark; after the last job everything drains.
    let end = below.jobs[0].end_s;
    assert!(below.drained_s - end > 0.9 * 40.0 * MIB / 100e6, "{} {end}", below.drained_s);
    let staged = run(&machine(&["buffer.mode=stage"]), &write_mib(40));
    assert!(staged.drained_s - staged.jobs[0].end_s > 0.9 * 40.0 * MIB / 100e6);
    let through = run(&machine(&["buffer.mode=write-through"]), &write_mib(40));
    assert!((through.jobs[0].phases[0].bytes_per_s / 100e6 - 1.0).abs() < 0.2);
}

/// The forecast is told to people: it must not be far off, nor its least above what comes.
#[test]
fn events_are_known_before_a_run() {
    for (set, mib) in [(&[][..], 256), (&["buffer=none"][..], 64), (&["buffer.capacity=8GiB"], 64)]
    {
        let (machine, program) = (machine(set), write_mib(mib));
        for options in [Options::default(), Options::default().coarse()] {
            let told = model::forecast(&machine, &program, &options);
            let events = model::run(&machine, &program, &options).unwrap().events as f64;
            assert!(told.least <= events, "{set:?}: {told:?}, {events}");
            assert!((0.3..4.0).contains(&(told.events / events)), "{set:?}: {told:?}, {events}");
        }
    }
}

#[test]
fn what_cannot_end_says_what_waits_for_what() {
    let staged = model::run(&machine(&["buffer.mode=stage"]), &write_mib(100), &Options::default());
    let why = staged.unwrap_err().to_string();
    assert!(why.contains("1 writes wait for room") && why.contains("\"stage\""), "{why}");
    let awaits = program(
        r#"workload = 1
        [[job]]
        name = "a"
        phase = [{ name = "p", steps = [{ await = "done", count = 3 }] }]
        [[job]]
        name = "b"
        phase = [{ name = "p", steps = [{ signal = "done" }] }]"#,
    );
    let why = model::run(&machine(&[]), &awaits, &Options::default()).unwrap_err().to_string();
    assert!(why.contains("job a waits for event \"done\": it was signalled 1 times of 3"), "{why}");
    let long = Options { max_events: 1000, ..Options::default() };
    let why = model::run(&machine(&[]), &write_mib(400), &long).unwrap_err().to_string();
    assert!(why.contains("given up after 1000 events"), "{why}");
    // What is known before is told before.
    let many = model::run(&machine(&[]), &write_mib(501), &long).unwrap_err();
    assert_eq!(many.key(), Some(model::Key::Workload("transfer")));
    let why = many.to_string();
    assert!(why.contains("events to simulate in all") && why.contains("--max-events"), "{why}");
    assert!(model::run(&machine(&[]), &write_mib(501), &long.coarse()).is_ok());
    let ages = program(
        r#"workload = 1
        [[job]]
        name = "a"
        phase = [{ name = "p", repeat = 4000000000, steps = [{ think = "1h" }] }]"#,
    );
    let ages = model::run(&machine(&[]), &ages, &Options::default()).unwrap_err();
    assert_eq!(ages.key(), Some(model::Key::Workload("repeat")), "{ages}");
    assert!(ages.to_string().contains("more than 292 years"), "{ages}");
    for (set, key) in [
        ("network.rate=0.000001B/s", "network.rate"),
        ("storage.device.rate=0.000001B/s", "storage.device"),
        ("buffer.drain.limit=1B/s", "buffer.drain.limit"),
    ] {
        let slow = model::run(&machine(&[set]), &write_mib(9000), &Options::default());
        let Err(slow) = slow else { panic!("{set} ends") };
        assert_eq!(slow.key(), Some(model::Key::Machine(key)), "{slow}");
    }
    // What takes no time at all never comes to an event.
    let still = program(
        r#"workload = 1
        [[job]]
        name = "a"
        phase = [{ name = "p", repeat = 4000000000, meet = false, steps = [{ think = "0s" }] }]"#,
    );
    // Some phases show it beforehand, others while they are repeated: it is the same limit, in the same words.
    let signals = program(
        r#"workload = 1
        [[job]]
        name = "a"
        phase = [{ name = "p", repeat = 4000000000, meet = false, steps = [{ signal = "e" }, { await = "e" }] }]"#,
    );
    let told = |program: &Program, options: &Options| {
        model::run(&machine(&[]), program, options).unwrap_err()
    };
    for repeated in [&still, &signals] {
        let why = told(repeated, &long).to_string();
        let limit = "phase p of job a: more than 1000 repetitions of its processes together, and no time has passed; \
                     expected something in it that takes time, or at most 1000 repetitions";
        assert!(why.contains(limit), "{why}");
    }
    let why = told(&still, &Options::default()).to_string();
    assert!(why.contains("more than 268435456 repetitions of its"), "{why}");
    assert!(why.contains("or at most 268435456 repetitions"), "{why}");
}

#[test]
fn what_does_not_fit_is_refused_with_its_numbers() {
    let many = program(
        r#"workload = 1
        [[job]]
        name = "wide"
        processes = 17
        processes_per_node = 4
        phase = [{ name = "p", steps = [{ think = "1s" }] }]"#,
    );
    let why = model::run(&machine(&[]), &many, &Options::default()).unwrap_err().to_string();
    assert_eq!(
        why,
        "wide: 17 processes on 5 nodes; expected at most 4 nodes (compute.nodes), 16 processes"
    );
    let why = model::run(&machine(&["buffer.capacity=64KiB"]), &write_mib(1), &Options::default());
    assert!(why.unwrap_err().to_string().contains("at most the room of one buffer"));
}

#[test]
fn jobs_wait_for_nodes_and_for_each_other() {
    let jobs = program(
        r#"workload = 1
        [[job]]
        name = "first"
        processes = 12
        processes_per_node = 4
        phase = [{ name = "p", steps = [{ think = "10s" }] }]
        [[job]]
        name = "waits for nodes"
        processes = 8
        processes_per_node = 4
        start = "1s"
        phase = [{ name = "p", steps = [{ think = "1s" }] }]
        [[job]]
        name = "after"
        after = ["waits for nodes"]
        start = "2s"
        phase = [{ name = "p", steps = [{ think = "1s" }] }]"#,
    );
    let outcome = run(&machine(&[]), &jobs);
    let times: Vec<_> = outcome.jobs.iter().map(|job| (job.start_s, job.end_s)).collect();
    assert_eq!(times, [(0.0, 10.0), (10.0, 11.0), (13.0, 14.0)]);
}

#[test]
fn copies_and_parity_take_room_and_flash() {
    let plain = run(&machine(&[]), &write_mib(8));
    let copies = run(&machine(&["buffer.redundancy.kind=copies"]), &write_mib(8));
    let parity = run(
        &machine(&["buffer.redundancy.kind=parity", "buffer.redundancy.strip=128KiB"]),
        &write_mib(8),
    );
    let flash = |outcome: &Outcome| outcome.buffer.as_ref().unwrap().flash_written_bytes;
    assert_eq!(flash(&plain), 8 << 20);
    assert_eq!(flash(&copies), 16 << 20);
    // 8 strips of 128 KiB are a transfer: whole groups, an eighth more.
    assert_eq!(flash(&parity), 9 << 20);
    // A group larger than a transfer: each is read, changed and written.
    let partial = run(&machine(&["buffer.redundancy.kind=parity"]), &write_mib(8));
    assert_eq!(flash(&partial), 16 << 20);
    assert!(partial.jobs[0].phases[0].bytes_per_s < 0.6 * parity.jobs[0].phases[0].bytes_per_s);
}

/// Twenty times 20 s of work and a checkpoint of 32 MiB by each of four nodes.
fn checkpointing() -> Program {
    program(
        r#"workload = 1
        file = [{ name = "f", path = "{repeat}/{process}" }]
        [[job]]
        processes = 4
        processes_per_node = 1
        [[job.phase]]
        name = "work"
        repeat = 20
        steps = [{ think = "20s" }, { write = "f", block = "32MiB", transfer = "1MiB" }]"#,
    )
}

#[test]
fn a_lost_node_takes_undrained_data_with_it_and_the_job_goes_back_to_what_is_whole() {
    let failing = [
        "compute.mtbf=600s",
        "compute.restart=5s",
        "buffer.capacity=1GiB",
        "buffer.drain.limit=1MB/s",
    ];
    let with = |more: &[&str]| run(&machine(&[&failing[..], more].concat()), &checkpointing());
    let calm = run(&machine(&failing[2..]), &checkpointing());
    assert_eq!((calm.jobs[0].restarts, calm.bytes.lost), (0, 0));
    let local = with(&[]);
    let job = &local.jobs[0];
    assert!(job.restarts > 0 && local.bytes.lost > 0, "{local:?}");
    let told = forebay_sim::report::text(&local);
    let wanted = format!("killed by failures and started again {} times", job.restarts);
    assert!(told.contains(&wanted), "{told}");
    assert!(job.redone_s > 0.0 && job.end_s > calm.jobs[0].end_s + 5.0 * f64::from(job.restarts));
    // A checkpoint takes 32 s to drain and 20 s to come: node-local flash often has the last ones only.
    let copied = with(&["buffer.redundancy.kind=copies"]);
    assert_eq!(copied.bytes.lost, 0);
    assert!(
        copied.jobs[0].restarts > 0
            && copied.jobs[0].redone_s / f64::from(copied.jobs[0].restarts) <= 21.0,
        "{copied:?}"
    );
    assert!(job.redone_s / f64::from(job.restarts) > 21.0, "{local:?}");
    // Each restart reads a checkpoint back, all processes at once, unless there is none yet.
    let read = copied.bytes.read_buffer + copied.bytes.read_storage;
    assert!(read > 0 && read <= u64::from(copied.jobs[0].restarts) * (128 << 20), "{copied:?}");
    let never = machine(&["compute.mtbf=1s", "compute.restart=1s"]);
    let why = model::run(&never, &checkpointing(), &Options::default()).unwrap_err().to_string();
    assert!(why.contains("its nodes fail more often than it writes one"), "{why}");
}

#[test]
fn what_a_lost_buffer_had_is_rebuilt_from_the_others_beside_all_else() {
    let failing = ["compute.mtbf=600s", "buffer.capacity=1GiB", "buffer.drain.limit=500KB/s"];
    let of = |more: &[&str], seed: u64| {
        let options = Options { seed, ..Options::default() };
        let machine = machine(&[&failing[..], more].concat());
        let outcome = model::run(&machine, &checkpointing(), &options).unwrap();
        assert!(outcome.bytes.conserved(), "{:?}", outcome.bytes);
        outcome
    };
    let rebuilt = |outcome: &Outcome| outcome.buffer.as_ref().unwrap().rebuilt_bytes;
    let flash = |outcome: &Outcome| outcome.buffer.as_ref().unwrap().flash_written_bytes;
    let copies = "buffer.redundancy.kind=copies";
    let parity = ["buffer.redundancy.kind=parity", "buffer.redundancy.data=3"];
    assert_eq!(rebuilt(&of(&[], 1)), 0);
    for redundancy in [&[copies][..], &parity[..]] {
        let outcome = of(redundancy, 1);
        assert!(outcome.jobs[0].restarts > 0 && outcome.bytes.lost == 0, "{outcome:?}");
        // All that a buffer has ever had is what its node wrote, a few checkpoints twice, with copy or parity.
        let each = rebuilt(&outcome) / u64::from(outcome.jobs[0].restarts);
        assert!((1 << 20..=2 << 30).contains(&each), "{outcome:?}");
        assert!(flash(&outcome) > rebuilt(&outcome) + outcome.bytes.written, "{outcome:?}");
    }
    // On slow flash a rebuild takes longer than the next failure: then even two copies lose data.
    let slow = [copies, "buffer.device.rate=4MB/s"];
    let lost: u64 = (1..=6).map(|seed| of(&slow, seed).bytes.lost).sum();
    assert!(lost > 0);
    // A buffer that has nothing is rebuilt from nothing, and one alone has nobody to be read from.
    let mut machine = machine(&[&failing[..], &[copies]].concat());
    machine.compute.nodes = 1;
    machine.buffer.as_mut().unwrap().count = 1;
    let one = program(
        r#"workload = 1
        file = [{ name = "f", path = "{repeat}/{process}" }]
        [[job]]
        [[job.phase]]
        name = "work"
        repeat = 400
        steps = [{ think = "20s" }, { write = "f", block = "32MiB", transfer = "1MiB" }]"#,
    );
    let outcome = run(&machine, &one);
    assert!(outcome.jobs[0].restarts > 0, "{outcome:?}");
    assert_eq!((outcome.bytes.lost, rebuilt(&outcome)), (0, 0));
}

#[test]
fn disks_seek_between_files_and_are_slower_when_they_are_full() {
    let end_s = |set: &[&str], processes: u32| {
        let set = [&["buffer=none", "network.rate=100GB/s"][..], set].concat();
        let text = format!(
            r#"workload = 1
            file = [{{ name = "f", path = "f.{{process}}" }}]
            [[job]]
            processes = {processes}
            processes_per_node = 1
            phase = [{{ name = "write", steps = [{{ write = "f", block = "64MiB", transfer = "1MiB" }}] }}]"#
        );
        run(&machine(&set), &program(&text)).end_s
    };
    let near = |found: f64, expected: f64| {
        assert!((found / expected - 1.0).abs() < 0.01, "{found} {expected}");
    };
    let request_s = MIB / 100e6;
    // One file: the head moves once. Two in turn: before each request.
    near(end_s(&["storage.device.seek=10ms"], 1), 64.0 * request_s + 0.01);
    near(end_s(&["storage.device.seek=10ms"], 2), 128.0 * (request_s + 0.01));
    // Half full, and 60 % of the rate when full: 80 %.
    near(end_s(&["storage.fill=0.5", "storage.rate_when_full=0.6"], 1), 64.0 * request_s / 0.8);
}

#[test]
fn a_lost_buffer_node_takes_undrained_data_with_it() {
    let fabric = |more: &str| {
        let text = SMALL.replace(
            "attach = \"compute\"",
            "attach = \"fabric\"\nnodes = 2\nport = { rate = \"1000MB/s\" }",
        );
        let text =
            text.replace("64MiB", "1GiB").replace("[buffer]\n", &format!("[buffer]\n{more}\n"));
        Machine::parse(Path::new("m.toml"), &format!("{text}[buffer.drain]\nlimit = \"1MB/s\"\n"))
            .unwrap()
    };
    let calm = run(&fabric(""), &checkpointing());
    assert_eq!((calm.jobs[0].restarts, calm.bytes.lost), (0, 0));
    let lossy = run(&fabric("mtbf = \"300s\""), &checkpointing());
    assert!(lossy.jobs[0].restarts > 0 && lossy.bytes.lost > 0, "{lossy:?}");
    // With two copies the job does not even notice.
    let copied =
        run(&fabric("mtbf = \"300s\"\nredundancy = { kind = \"copies\" }"), &checkpointing());
    assert_eq!((copied.jobs[0].restarts, copied.bytes.lost), (0, 0));
    assert!(copied.buffer.as_ref().unwrap().rebuilt_bytes > 0, "{copied:?}");
}

#[test]
fn io_nodes_fail_beside_buffer_nodes_that_do() {
    let both = |io: &str, buffer: &str| {
        let text = SMALL.replace(
            "attach = \"compute\"",
            &format!("attach = \"fabric\"\nnodes = 2\nmtbf = \"{buffer}\"\nport = {{ rate = \"1000MB/s\" }}"),
        );
        let io = format!("[io]\nnodes = 2\nmtbf = \"{io}\"\nlink = {{ rate = \"1000MB/s\" }}\n");
        let text = text.replace("64MiB", "1GiB") + "[buffer.drain]\nlimit = \"1MB/s\"\n" + &io;
        run(&Machine::parse(Path::new("m.toml"), &text).unwrap(), &checkpointing())
    };
    let never = "100000000s";
    let calm = both(never, never);
    assert_eq!((calm.jobs[0].restarts, calm.bytes.lost), (0, 0));
    // I/O nodes have no data.
    let of_io = both("300s", never);
    assert!(of_io.jobs[0].restarts > 0 && of_io.bytes.lost == 0, "{of_io:?}");
    let of_buffers = both(never, "300s");
    assert!(of_buffers.jobs[0].restarts > 0 && of_buffers.bytes.lost > 0, "{of_buffers:?}");
}

#[test]
fn a_lost_io_node_kills_the_jobs_behind_it() {
    let mut text = SMALL.replace("attach = \"compute\"", "attach = \"io\"");
    text.push_str("[buffer.drain]\nlimit = \"1MB/s\"\n[io]\nnodes = 2\nmtbf = \"300s\"\nlink = { rate = \"1000MB/s\" }\n");
    let machine = Machine::parse(Path::new("m.toml"), &text.replace("64MiB", "1GiB")).unwrap();
    let outcome = run(&machine, &checkpointing());
    assert!(outcome.jobs[0].restarts > 0 && outcome.bytes.lost > 0, "{outcome:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whatever the machine and the workload are: bytes are conserved, the same input gives the same bytes, and
    /// merging changes no byte of what is moved.
    #[test]
    fn bytes_are_conserved_and_runs_repeat(
        attach in 0_usize..4, mode in 0_usize..4, full in 0_usize..2, when in 0_usize..3, striped in any::<bool>(),
        random in any::<bool>(), servers in 1_u32..5, processes in 1_u32..13, mib in 1_u64..40, stripe in 0_u32..3, repeat in 1_u32..4,
        seed in any::<u64>(), capacity in 0_u32..3, forebay in any::<bool>(), policy in 0_usize..4,
    ) {
        let mut text = SMALL.replace("servers = 1", &format!("servers = {servers}"))
            .replace("stripe = \"1MiB\"", &format!("stripe = \"{}KiB\"\nplacement = \"{}\"", 256 << stripe, ["round-robin", "random"][usize::from(random)]))
            .replace("attach = \"compute\"", &format!("attach = \"{}\"", ["compute", "io", "fabric", "storage"][attach]))
            .replace("capacity = \"64MiB\"", &format!(
                "capacity = \"{}MiB\"\nmode = \"{}\"\nwhen_full = \"{}\"\naccess = \"{}\"\n{}",
                64 << (2 * capacity),
                // Staging may stand still: that is another test.
                ["write-back", "write-through", "log", "write-back"][mode],
                ["block", "bypass"][full],
                ["private", "striped"][usize::from(striped)],
                if attach == 2 { "nodes = 3\nport = { rate = \"500MB/s\" }" } else { "" },
            ));
        // Mode 0 and 3 are write-back: a cache of Forebay.
        let forebay = forebay && mode % 3 == 0 && attach < 3;
        text.push_str(&match forebay {
            true => format!("[buffer.drain]\npolicy = \"{}\"\n", ["close", "idle:1", "end", "end,watermark=60:30"][policy]),
            false => format!("[buffer.drain]\nwhen = \"{}\"\n", ["at-once", "watermarks", "idle"][when]),
        });
        if forebay {
            text = text.replace("[buffer]\n", "[buffer]\nrules = \"forebay\"\n");
        }
        if attach == 1 {
            text.push_str("[io]\nnodes = 2\nlink = { rate = \"700MB/s\", round_trip = \"50us\" }\n");
        }
        let machine = Machine::parse(Path::new("m.toml"), &text).map_err(|fault| TestCaseError::fail(fault.to_string()))?;
        let program = program(&format!(
            r#"workload = 1
            file = [{{ name = "f", path = "f.{{process}}", size = "{mib}MiB" }}]
            [[job]]
            processes = {processes}
            processes_per_node = {}
            [[job.phase]]
            name = "write"
            repeat = {repeat}
            steps = [{{ think = "100ms" }}, {{ write = "f", transfer = "512KiB" }}, {{ read = "f", transfer = "1MiB" }}]"#,
            processes.min(4)
        ));
        let options = Options { seed, ..Options::default() };
        let outcome = model::run(&machine, &program, &options).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let moved = (mib << 20) * u64::from(processes) * u64::from(repeat);
        prop_assert!(outcome.bytes.conserved());
        prop_assert_eq!(outcome.bytes.written, moved);
        prop_assert_eq!(outcome.bytes.read_buffer + outcome.bytes.read_storage, moved);
        prop_assert_eq!(outcome.bytes.resident, 0, "everything drains when no job is left");
        prop_assert_eq!(outcome.series.application_bytes.iter().sum::<u64>(), 2 * moved);
        let again = model::run(&machine, &program, &options).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(serde_json::to_string(&outcome).unwrap(), serde_json::to_string(&again).unwrap());
        let coarse = model::run(&machine, &program, &options.coarse()).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(coarse.bytes.written, moved);
        prop_assert!(coarse.events <= outcome.events);
        for of in [&outcome, &coarse] {
            let bounds = of.jobs.iter().flat_map(|job| &job.phases).filter_map(|phase| phase.bound_by.as_ref());
            let mut shares = bounds.map(|bound| bound.busy_share).chain(of.resources.iter().map(|of| of.busy_share));
            prop_assert!(shares.all(|share| (0.0..=1.0).contains(&share)), "{:?}", of.jobs);
        }
    }
}
