//! T1 to T12: devices, links, and the study's IOR figure.

use super::{Report, Target, Verdict};
use crate::device;
use crate::machine::Machine;
use crate::model::{self, Options, Outcome, SimError};
use crate::parallel::{self, Progress};
use crate::study::{self, GIB, MOST_PROCESSES, System, TRANSFER_BYTES, TRANSFERS};
use forebay_workload::ior::{Order, Pattern};

const STUDY: &str = "study, Table II";
const MEASURED: &str = "I/O forwarding measured on Intrepid";
const CITED: &str = "47 GB/s measured, cited by others";
const ARITHMETIC: &str = "arithmetic from those";
const CLAIM: &str = "study, its central claim";

/// What one simulation is asked.
#[derive(Clone)]
struct Question {
    name: Name,
    machine: Machine,
    processes: u32,
    transfer_bytes: u64,
    transfers: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Name {
    /// A point without a buffer: servers, processes.
    Bare(u32, u32),
    /// Buffers of 16 GiB.
    Ample(u32),
    /// Buffers of 4 GiB.
    Small(u32),
    RawTree,
    Intel,
    IntelReads,
    OneIon,
    ByteToIon,
    ByteToStorage,
}

struct Answers(Vec<(Name, Outcome)>);

impl Answers {
    fn of(&self, name: Name) -> Result<&Outcome, SimError> {
        let found = self.0.iter().find(|(asked, _)| *asked == name);
        found
            .map(|(_, outcome)| outcome)
            .ok_or_else(|| SimError::Broken(format!("{name:?} was not simulated")))
    }

    fn rate(&self, name: Name) -> Result<f64, SimError> {
        self.of(name).map(study::gib_per_s)
    }
}

fn with_buffer(servers: u32, capacity_bytes: u64) -> Machine {
    System { servers, capacity_bytes: Some(capacity_bytes) }.machine()
}

/// The full machine with other flash, and room for all.
fn with_device(name: &str, shared: bool) -> Machine {
    let mut machine = with_buffer(128, 16 << 30);
    if let (Some(buffer), Some(device)) = (&mut machine.buffer, device::known(name)) {
        buffer.device = device;
        buffer.shared_device = shared;
    }
    machine
}

fn questions() -> Vec<Question> {
    let ior = |name, machine, processes| Question {
        name,
        machine,
        processes,
        transfer_bytes: TRANSFER_BYTES,
        transfers: TRANSFERS,
    };
    let mut all = Vec::new();
    // The long ones first, so that threads end together.
    let (full, half) = (128, 64);
    for servers in [full, half] {
        all.push(ior(Name::Ample(servers), with_buffer(servers, 16 << 30), MOST_PROCESSES));
        all.push(ior(Name::Small(servers), with_buffer(servers, 4 << 30), MOST_PROCESSES));
    }
    let mut raw = with_buffer(full, 16 << 30);
    if let Some(io) = &mut raw.io {
        // 6.8 Gbit/s.
        io.link.write_bytes_per_s = 850e6;
    }
    all.push(ior(Name::RawTree, raw, MOST_PROCESSES));
    all.push(ior(Name::Intel, with_device("intel-0.25-mlc", false), MOST_PROCESSES));
    all.push(ior(Name::IntelReads, with_device("intel-0.25-mlc", true), MOST_PROCESSES));
    for (servers, steps) in
        [(full, &[MOST_PROCESSES, 16_384, 4_096, 1_024, 256][..]), (half, &[MOST_PROCESSES, 256])]
    {
        for &processes in steps {
            let machine = System { servers, capacity_bytes: None }.machine();
            all.push(ior(Name::Bare(servers, processes), machine, processes));
        }
    }
    let null = with_device("null", false);
    all.push(ior(Name::OneIon, null.clone(), 256));
    let byte =
        |name, machine| Question { name, machine, processes: 1, transfer_bytes: 1, transfers: 1 };
    all.push(byte(Name::ByteToIon, null));
    let bare = System { servers: full, capacity_bytes: None }.machine();
    all.push(byte(Name::ByteToStorage, bare));
    all
}

fn ask(question: &Question) -> Result<Outcome, SimError> {
    let pattern = Pattern {
        tasks: question.processes,
        block_bytes: question.transfer_bytes * question.transfers,
        transfer_bytes: question.transfer_bytes,
        segments: 1,
        file_per_process: true,
        order: Order::Sequential,
        order_seed: 0,
    };
    let program = crate::program::Program::ior(&pattern, 4);
    model::run(&question.machine, &program, &Options::default())
}

/// Adds the targets to the report.
pub(super) fn targets(
    report: &mut Report,
    threads: usize,
    progress: Progress,
) -> Result<(), SimError> {
    let questions = questions();
    let outcomes = parallel::map(&questions, threads, progress, ask);
    let mut answers = Answers(Vec::new());
    for (question, outcome) in questions.iter().zip(outcomes) {
        let outcome = outcome?;
        report.events += outcome.events;
        answers.0.push((question.name, outcome));
    }
    let targets = &mut report.targets;
    devices(targets);
    links(targets, &answers)?;
    without_buffer(targets, &answers)?;
    with_buffers(targets, &answers)
}

fn devices(targets: &mut Vec<Target>) {
    let table = [
        ("fusionio-0.40-slc", 3_019.8),
        ("fusionio-1.20-mlc", 3_270.2),
        ("intel-0.25-mlc", 12_287.0),
        ("virident-0.30-slc", 3_567.1),
        ("virident-1.40-mlc", 6_529.4),
    ];
    for (name, expected_us) in table {
        let us =
            device::known(name).map_or(f64::NAN, |device| device.write_s(TRANSFER_BYTES) * 1e6);
        let what = format!("{name}: a write of 4 MiB");
        targets.push(Target::within("T1", what, (expected_us, us), "us", 0.001, STUDY));
    }
}

fn links(targets: &mut Vec<Target>, answers: &Answers) -> Result<(), SimError> {
    let one = answers.rate(Name::OneIon)? * GIB / 1e6;
    let what = "one I/O node, 4 MiB writes to /dev/null";
    targets.push(Target::within("T2", what, (666.1, one), "MB/s", 0.02, MEASURED));
    for (name, what, expected_us) in [
        (Name::ByteToIon, "a byte to the I/O node and back", 65.9),
        (Name::ByteToStorage, "a byte to PVFS and back", 814.5),
    ] {
        let us = answers.of(name)?.end_s * 1e6;
        targets.push(Target::within("T3", what, (expected_us, us), "us", 0.05, MEASURED));
    }
    Ok(())
}

/// Bandwidth of one I/O node's link, in GiB/s.
const TREE: f64 = 666.1e6 / GIB;

fn without_buffer(targets: &mut Vec<Target>, answers: &Answers) -> Result<(), SimError> {
    for processes in [256, 1_024, 4_096, 16_384] {
        let expected = f64::from(processes / 256) * TREE;
        let rate = answers.rate(Name::Bare(128, processes))?;
        let what = format!("no buffer, {processes} processes: below the knee");
        targets.push(Target::within("T5", what, (expected, rate), "GiB/s", 0.03, ARITHMETIC));
    }
    let full = answers.rate(Name::Bare(128, MOST_PROCESSES))?;
    let half = answers.rate(Name::Bare(64, MOST_PROCESSES))?;
    let plateau = 47e9 / GIB;
    let what = "no buffer, 131,072 processes, full storage";
    targets.push(Target::within("T6", what, (plateau, full), "GiB/s", 0.03, CITED));
    let what = "no buffer, 131,072 processes, half of it";
    targets.push(Target::within("T7", what, (plateau / 2.0, half), "GiB/s", 0.03, ARITHMETIC));
    let mut ratio =
        Target::within("T7", "half over full", (0.5, half / full), "", 0.02, ARITHMETIC);
    ratio.tolerance = "0.01".into();
    targets.push(ratio);
    for (servers, expected) in [(128, 18_063.0), (64, 9_032.0)] {
        // Where the line of the first point meets the level of the last one.
        let first = answers.rate(Name::Bare(servers, 256))?;
        let knee = answers.rate(Name::Bare(servers, MOST_PROCESSES))? / first * 256.0;
        let steps = libm::fabs(libm::log2(knee / expected));
        let what = format!("the knee, {servers} servers");
        let mut target = Target::within("T8", what, (expected, knee), "processes", 1.0, ARITHMETIC);
        target.tolerance = "1 step (x2)".into();
        target.verdict = if steps <= 1.0 { Verdict::Met } else { Verdict::NotMet };
        targets.push(target);
    }
    Ok(())
}

fn with_buffers(targets: &mut Vec<Target>, answers: &Answers) -> Result<(), SimError> {
    let (full, half) = (Name::Ample(128), Name::Ample(64));
    for (name, what, expected) in [
        (full, "buffer of 16 GiB: bound by the tree", 317.6),
        (Name::RawTree, "the same, tree at its raw 6.8 Gbit/s", 405.3),
        (Name::Intel, "the same, Intel SSD: bound by flash", 162.8),
    ] {
        let rate = answers.rate(name)?;
        let mut target = Target::within("T9", what, (expected, rate), "GiB/s", 0.02, ARITHMETIC);
        if name == Name::Intel {
            let beside = answers.rate(Name::IntelReads)?;
            target = target.note(format!(
                "where the drain's reads delay writes, as they do on a real device, the Intel SSD gives {} GiB/s: the study's model has no such reads",
                crate::units::digits(beside)
            ));
        }
        targets.push(target);
    }
    let equal = (answers.rate(full)?, answers.rate(half)?);
    let what = "half with buffer, as full with buffer";
    targets.push(Target::within("T10", what, equal, "GiB/s", 0.01, CLAIM));
    for (servers, expected) in [(128, 58.4), (64, 29.2)] {
        let rate = answers.rate(Name::Small(servers))?;
        let what = format!("buffer of 4 GiB for 16 GiB, {servers} servers: D V / (V - C)");
        targets.push(Target::within("T11", what, (expected, rate), "GiB/s", 0.02, ARITHMETIC));
    }
    for (name, servers, expected_s) in [(full, 128, 188.0), (half, 64, 375.0)] {
        let drained_s = answers.of(name)?.drained_s;
        let what = format!("8 TiB until drained, {servers} servers");
        targets.push(Target::within("T12", what, (expected_s, drained_s), "s", 0.01, ARITHMETIC));
    }
    Ok(())
}
