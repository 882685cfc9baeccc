//! The simulator's buffers decide as Forebay's servers do, because they ask the same code: what that code decides for a table of
//! cases is what is seen here. `tests/tests/system/sim.rs` changes one and looks at a real server beside it.

use crate::common::program;
use forebay_sim::machine::Machine;
use forebay_sim::model::{self, Decided, Options, Outcome};
use std::fmt::Write as _;
use std::path::Path;

/// One node; a cache of 64 MiB by Forebay's rules before storage of 100 MB/s.
fn machine(policy: &str, more: &str) -> Machine {
    let text = format!(
        r#"
version = 1
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
rules = "forebay"
capacity = "64MiB"
{more}
[buffer.device]
rate = "1000MB/s"
[buffer.drain]
policy = "{policy}"
"#
    );
    Machine::parse(Path::new("m.toml"), &text).unwrap()
}

/// One process writes so many files of so many MiB, one after the other, and reads some back.
fn files(count: u32, mib: u32, think: &str) -> String {
    let mut text = String::from("workload = 1\n");
    for n in 0..count {
        let _ =
            write!(text, "[[file]]\nname = \"f{n:02}\"\npath = \"f{n:02}\"\nsize = \"{mib}MiB\"\n");
    }
    text.push_str("[[job]]\n[[job.phase]]\nname = \"write\"\nsteps = [\n");
    for n in 0..count {
        let _ = writeln!(text, "  {{ write = \"f{n:02}\", transfer = \"1MiB\" }},");
    }
    let _ =
        write!(text, "]\n[[job.phase]]\nname = \"think\"\nsteps = [{{ think = \"{think}\" }}]\n");
    text
}

fn run(machine: &Machine, text: &str) -> Outcome {
    let options = Options { decisions: true, ..Options::default() };
    let outcome = model::run(machine, &program(text), &options).unwrap();
    assert!(outcome.bytes.conserved());
    outcome
}

/// Files of a kind of decision, in order, until some time.
fn decided(outcome: &Outcome, what: Decided, until_s: f64) -> Vec<String> {
    let of_kind = outcome.decisions.iter().filter(|d| d.what == what && d.at_s <= until_s);
    of_kind.map(|decision| decision.file.clone()).collect()
}

fn names(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|n| format!("f{n:02}")).collect()
}

#[test]
fn files_drain_in_the_order_of_the_queue_when_their_policy_says_so() {
    let eight = files(8, 4, "10s");
    let at_close = run(&machine("close", ""), &eight);
    assert_eq!(decided(&at_close, Decided::Drain, 5.0), names(0..8));
    let at_end = run(&machine("end", ""), &eight);
    let end_s = at_end.end_s;
    assert_eq!(decided(&at_end, Decided::Drain, end_s - 0.001), names(0..0));
    assert_eq!(decided(&at_end, Decided::Drain, f64::MAX), names(0..8));
    let deadline = run(&machine("end,deadline=4s", ""), &eight);
    let first = deadline.decisions.iter().find(|d| d.what == Decided::Drain).unwrap();
    assert!((first.at_s - 4.0).abs() < 0.1, "{first:?}");
    let idle = run(&machine("idle:3", ""), &eight);
    let first = idle.decisions.iter().find(|d| d.what == Decided::Drain).unwrap();
    assert!((first.at_s - 3.0).abs() < 0.5, "{first:?}");
}

/// A server numbers files as they are made; where the workload file names them does not matter.
#[test]
fn of_files_that_are_due_at_once_the_one_that_was_made_first_is_first() {
    let text = files(8, 4, "10s");
    let (named, jobs) = text.split_once("[[job]]").unwrap();
    let mut named: Vec<&str> = named.split("[[file]]").collect();
    named[1..].reverse();
    let outcome = run(&machine("end", ""), &format!("{}[[job]]{jobs}", named.join("[[file]]")));
    assert_eq!(decided(&outcome, Decided::Drain, f64::MAX), names(0..8));
}

#[test]
fn a_watermark_drains_down_to_its_lower_mark() {
    // 40 of 64 MiB are over 50 %: down to 25 %, which is 16 MiB.
    let outcome = run(&machine("end,watermark=50:25", ""), &files(10, 4, "10s"));
    let drained = decided(&outcome, Decided::Drain, 9.0);
    assert_eq!(drained, names(0..6));
}

#[test]
fn clean_data_goes_when_room_is_needed_and_writes_wait_for_drains() {
    let outcome = run(&machine("close", ""), &files(16, 8, "3s"));
    let evicted = decided(&outcome, Decided::Evict, f64::MAX);
    // 128 MiB went through 63 MiB of room.
    assert!((8..=12).contains(&evicted.len()), "{evicted:?}");
    assert!(outcome.jobs[0].phases[0].stalled_s > 0.0);
    let buffer = outcome.buffer.unwrap();
    assert!(buffer.peak_share <= 63.0 / 64.0 + 1e-9, "a 64th is kept free: {}", buffer.peak_share);
}

#[test]
fn names_take_turns_over_the_servers_and_stripes_go_round_from_there() {
    use forebay_policy::placement::choose_shard;
    use forebay_proto::attr::FileKind;
    use forebay_proto::layout::{Layout, Placement};
    use forebay_proto::{Ino, ShardId};
    let parse = |more: &str| {
        let text = format!(
            "version = 1\n[compute]\nnodes = 4\nprocesses_per_node = 4\n[network]\nrate = \"1000MB/s\"\n[storage]\nservers = 1\nstripe = \"1MiB\"\n[storage.device]\nrate = \"100MB/s\"\n[buffer]\nattach = \"fabric\"\nrules = \"forebay\"\ncapacity = \"64MiB\"\n{more}\n[buffer.device]\nrate = \"1000MB/s\"\n"
        );
        Machine::parse(Path::new("m.toml"), &text).unwrap()
    };
    let workload = "workload = 1\nfile = [{ name = \"f\", path = \"f.{process}\", size = \"4MiB\" }]\n[[job]]\nprocesses = 8\nprocesses_per_node = 2\nphase = [{ name = \"write\", steps = [{ write = \"f\", transfer = \"1MiB\" }] }]\n";
    for (access, mode) in
        [("private", "write-back"), ("striped", "write-back"), ("private", "stage")]
    {
        let more = format!(
            "nodes = 4\naccess = \"{access}\"\nmode = \"{mode}\"\nport = {{ rate = \"1000MB/s\" }}"
        );
        let outcome = run(&parse(&more), workload);
        let layout = Layout { placement: Placement::Spread, ..Layout::WHOLE_LOCAL };
        let placed = outcome.decisions.iter().filter(|d| d.what == Decided::Place);
        let mut seen = 0;
        for decision in placed {
            let rank = decision.file.strip_prefix("f.").unwrap();
            let name = format!("rank.{rank}");
            let dir = Ino::new(ShardId(0), 2);
            let shard = choose_shard(&layout, (dir, name.as_bytes()), FileKind::File, None, 4);
            assert_eq!(decision.buffer, u32::from(shard.0), "{decision:?}");
            seen += 1;
        }
        assert_eq!(seen, 8, "{access} {mode}");
    }
    // A job's buffer has as many servers as were asked for.
    let outcome = run(&parse("nodes = 4\nservers = 2\nport = { rate = \"1000MB/s\" }"), workload);
    assert!(outcome.decisions.iter().filter(|d| d.what == Decided::Place).all(|d| d.buffer < 2));
}
