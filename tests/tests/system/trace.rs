//! `forebay trace`: what it records of programs that make known calls, and that it changes nothing that
//! they do. The C program is `tests/programs/traced.c`.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::binary;
use forebay_tests::procs;
use forebay_trace_format::{Event, Header, Item, Op, Process};
use std::collections::HashMap;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// A directory for one test: `work` for what is written, `trace` for the trace.
struct Rig {
    base: tempfile::TempDir,
}

impl Rig {
    fn new() -> Rig {
        let base = tempfile::Builder::new().prefix("forebay-trace-").tempdir_in("/tmp").unwrap();
        std::fs::create_dir(base.path().join("work")).unwrap();
        Rig { base }
    }

    fn work(&self) -> PathBuf {
        self.base.path().join("work")
    }

    fn trace(&self) -> PathBuf {
        self.base.path().join("trace")
    }

    /// `forebay trace -o TRACE -- COMMAND...`
    fn command(&self, command: &[&str]) -> Command {
        let library = binary().with_file_name("libforebay_trace.so");
        assert!(library.exists(), "{library:?}: cargo build -p forebay-preload-trace first");
        let mut trace = Command::new(binary());
        // What buffers of other tests do meanwhile is not to be in it.
        trace.args(["trace", "--no-buffers", "-o"]).arg(self.trace()).arg("--").args(command);
        trace.stdin(Stdio::null());
        trace
    }

    /// The same of the C program; its exit status and what it and the tracer said.
    fn traced(&self, what: &str, number: u64) -> (ExitStatus, String) {
        let work = self.work();
        let program = program().to_str().unwrap();
        let number = number.to_string();
        let mut command = self.command(&[program, what, work.to_str().unwrap(), &number]);
        let output = command.output().unwrap();
        (output.status, String::from_utf8(output.stderr).unwrap())
    }

    /// The same, which must end well.
    fn run(&self, what: &str) -> Vec<Recorded> {
        let (status, said) = self.traced(what, 0);
        assert!(status.success(), "{what}: {status}: {said}");
        assert!(said.contains("show it: forebay report"), "{said}");
        self.read()
    }

    /// Every process's records, in the order of their begins.
    fn read(&self) -> Vec<Recorded> {
        let mut processes: Vec<Recorded> = std::fs::read_dir(self.trace())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|end| end == "fbt"))
            .map(|path| Recorded::read(&path))
            .collect();
        processes.sort_by_key(|process| process.header.first.boottime_ns);
        processes
    }
}

/// The C program, compiled once.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/traced.c");
        // Kept for as long as the tests run; many processes may make it at once.
        let dir = tempfile::tempdir().unwrap();
        let made = dir.path().join("traced");
        procs::run(
            Command::new("cc")
                .args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
                .arg(&made)
                .arg(source)
                .args(["-lpthread", "-lrt"]),
        );
        let kept = std::env::temp_dir().join(format!("forebay-traced-{}", std::process::id()));
        std::fs::rename(&made, &kept).or_else(|_| std::fs::copy(&made, &kept).map(drop)).unwrap();
        kept
    })
}

/// The records of one process.
struct Recorded {
    header: Header,
    events: Vec<(Event, String)>,
}

impl Recorded {
    fn read(path: &Path) -> Recorded {
        let process = Process::open(path).unwrap();
        let mut names: HashMap<u32, (u32, Vec<u8>)> = HashMap::new();
        let mut events = Vec::new();
        let summary = process
            .each(|item| match item {
                Item::Name { id, parent, name } => {
                    assert!(names.insert(id, (parent, name.to_vec())).is_none());
                }
                Item::Event(event) => events.push(event),
                Item::Info { .. } => {}
            })
            .unwrap();
        assert_eq!(summary.damage, Vec::<String>::new());
        fn whole(names: &HashMap<u32, (u32, Vec<u8>)>, id: u32) -> String {
            let Some((parent, name)) = names.get(&id) else { return String::new() };
            let name = String::from_utf8_lossy(name).into_owned();
            if *parent == 0 { name } else { format!("{}/{name}", whole(names, *parent)) }
        }
        let events = events.into_iter().map(|event| (event, whole(&names, event.file))).collect();
        Recorded { header: process.header, events }
    }

    /// Result and offset of each call of a kind on a file.
    fn calls(&self, op: Op, file: &Path) -> Vec<(i64, Option<u64>)> {
        let of = |(event, name): &&(Event, String)| event.op == op && Path::new(name) == file;
        self.events.iter().filter(of).map(|(event, _)| (event.result, event.offset)).collect()
    }

    fn count(&self, op: Op, file: &Path) -> usize {
        self.calls(op, file).len()
    }
}

#[test]
fn calls_on_descriptors_are_recorded_with_what_they_did() {
    let rig = Rig::new();
    let processes = rig.run("calls");
    let [process] = &processes[..] else { panic!("{} processes", processes.len()) };
    assert_eq!((process.header.lost, process.header.rank), (0, None));
    assert!(process.header.ended_by_itself());
    assert_eq!(process.header.argv[1], "calls");
    let file = rig.work().join("a");
    let writes = process.calls(Op::Write, &file);
    let mut wanted: Vec<(i64, Option<u64>)> = (0..100).map(|at| (1000, Some(at * 1000))).collect();
    // After the reads from 500, over two copies of the descriptor.
    let after = 500 + 50 * 512 + 42;
    wanted.extend([(5, Some(after)), (6, Some(after + 5)), (7, Some(after + 11))]);
    assert_eq!(writes, wanted);
    assert_eq!(process.calls(Op::Writev, &file), [(42, Some(500 + 50 * 512))]);
    let mut reads: Vec<(i64, Option<u64>)> =
        (0..50).map(|at| (512, Some(500 + at * 512))).collect();
    reads.extend([(10, Some(299_990)), (0, Some(300_000))]);
    assert_eq!(process.calls(Op::Read, &file), reads);
    let at = |step: u64, begin: u64, bytes: i64| -> Vec<(i64, Option<u64>)> {
        (0..10).map(|number| (bytes, Some(begin + number * step))).collect()
    };
    assert_eq!(process.calls(Op::Pread, &file), at(7777, 0, 100));
    assert_eq!(process.calls(Op::Pwrite, &file), at(1001, 200_000, 47));
    assert_eq!(process.calls(Op::Lseek, &file), [(0, Some(500)), (0, Some(299_990))]);
    assert_eq!(process.calls(Op::Ftruncate, &file), [(0, Some(300_000))]);
    let once = [Op::Fsync, Op::Fdatasync, Op::Dup].map(|op| process.count(op, &file));
    assert_eq!(once, [1, 1, 1]);
    assert_eq!(process.count(Op::Close, &file), 3);
    // The kernel says where an append went.
    let append = rig.work().join("append");
    assert_eq!(process.calls(Op::Write, &append), [(10, Some(0)), (20, Some(10))]);
    assert_eq!(process.calls(Op::Open, &rig.work().join("missing")), [(-2, None)]);
    assert!(process.events.iter().any(|(event, _)| (event.op, event.result) == (Op::Close, -9)));
    let copy = rig.work().join("copy");
    assert_eq!(process.calls(Op::CopySource, &file), [(4096, Some(1000))]);
    assert_eq!(process.calls(Op::CopyFileRange, &copy), [(4096, Some(0))]);
    assert_eq!(process.calls(Op::SendSource, &file), [(3000, Some(2000))]);
    assert_eq!(process.calls(Op::Sendfile, &copy), [(3000, Some(4096))]);
    let mapping = [Op::Mmap, Op::Msync, Op::Munmap].map(|op| process.count(op, &copy));
    assert_eq!(mapping, [1, 1, 1]);
    // Begins rise, and nothing took longer than the program ran.
    let begins: Vec<u64> = process.events.iter().map(|(event, _)| event.start_ticks).collect();
    assert!(begins.windows(2).all(|pair| pair[0] <= pair[1]), "{begins:?}");
    assert!(process.events.iter().all(|(event, _)| event.duration_ticks < 60_000_000_000));
}

#[test]
fn names_streams_and_aio_are_recorded() {
    let rig = Rig::new();
    let processes = rig.run("names");
    let (dir, file) = (rig.work().join("d"), rig.work().join("d/relative"));
    let counts = [Op::Open, Op::Write, Op::Close, Op::Stat, Op::Rename, Op::Access]
        .map(|op| processes[0].count(op, &file));
    assert_eq!(counts, [1, 1, 1, 2, 1, 1]);
    assert_eq!(processes[0].calls(Op::Access, &file), [(-2, None)]);
    assert_eq!(processes[0].count(Op::Stat, &dir), 1);
    let here = dir.join(".");
    // `.`, `..`, the file, and the end.
    let listed = [Op::Opendir, Op::Readdir, Op::Closedir].map(|op| processes[0].count(op, &here));
    assert_eq!(listed, [1, 4, 1]);
    assert_eq!(processes[0].count(Op::Unlink, &dir.join("other")), 1);
    // The name that mkstemp found.
    let made = processes[0].events.iter().filter(|(_, path)| path.contains("/d/made."));
    let ops: Vec<Op> = made.map(|(event, _)| event.op).collect();
    assert_eq!(ops, [Op::Open, Op::Write, Op::Close, Op::Unlink]);

    let rig = Rig::new();
    let processes = rig.run("stdio");
    let stream = rig.work().join("stream");
    let mut wanted: Vec<(i64, Option<u64>)> = (0..30).map(|at| (800, Some(at * 800))).collect();
    wanted.push((5, Some(24_100)));
    assert_eq!(processes[0].calls(Op::Fwrite, &stream), wanted);
    // What fprintf wrote, found at the flush; and at the end, of a stream that was left open.
    assert_eq!(processes[0].calls(Op::StdioWrite, &stream), [(100, Some(24_000))]);
    assert_eq!(processes[0].calls(Op::StdioWrite, &rig.work().join("left")), [(9, Some(0))]);
    // And over a descriptor that was there before the stream.
    let adopted = rig.work().join("adopted");
    assert_eq!(processes[0].calls(Op::StdioWrite, &adopted), [(50, Some(4))]);
    assert_eq!(processes[0].count(Op::Fclose, &adopted), 1);
    assert_eq!(processes[0].calls(Op::Fread, &stream), [(60, Some(50)), (60, Some(110))]);
    let opened = [Op::Fopen, Op::Fclose, Op::Fflush, Op::Fseek];
    assert_eq!(opened.map(|op| processes[0].count(op, &stream)), [2, 2, 1, 1]);

    let rig = Rig::new();
    let processes = rig.run("aio");
    let file = rig.work().join("aio");
    assert_eq!(processes[0].calls(Op::AioWrite, &file), [(4000, Some(8000))]);
    assert_eq!(processes[0].calls(Op::AioRead, &file), [(100, Some(8000)), (100, Some(8100))]);
    assert_eq!(processes[0].count(Op::AioSubmit, &file), 3);
    assert_eq!(processes[0].calls(Op::AioFsync, &rig.work().join("aio-sync")), [(0, None)]);
}

/// A program that is built with _FORTIFY_SOURCE, as distributions build theirs, calls `__fgets_chk` where its source has fgets.
#[test]
fn calls_on_streams_are_recorded_by_the_names_that_compilers_make_of_them() {
    let rig = Rig::new();
    let processes = rig.run("streams");
    let lines = rig.work().join("lines");
    let twelve = |count: u64| -> Vec<(i64, Option<u64>)> {
        (0..count).map(|at| (12, Some(at * 12))).collect()
    };
    assert_eq!(processes[0].calls(Op::Fwrite, &lines), twelve(5));
    assert_eq!(processes[0].calls(Op::Fread, &lines), twelve(4));
    assert_eq!(processes[0].count(Op::Fflush, &lines), 1);
    // Nothing is left of which only the bytes are known.
    let unseen = [Op::StdioRead, Op::StdioWrite].map(|op| processes[0].count(op, &lines));
    assert_eq!(unseen, [0, 0]);
}

#[test]
fn threads_are_recorded_each_for_itself() {
    let rig = Rig::new();
    let processes = rig.run("threads");
    let mut by_thread: HashMap<u32, Vec<(i64, Option<u64>)>> = HashMap::new();
    for (event, name) in &processes[0].events {
        if event.op == Op::Pwrite {
            assert!(name.ends_with("/threads"));
            by_thread.entry(event.tid).or_default().push((event.result, event.offset));
        }
    }
    let (long, brief): (Vec<_>, Vec<_>) = by_thread.values().partition(|calls| calls.len() > 1);
    assert_eq!((long.len(), brief.len()), (8, 300));
    for calls in long {
        let bytes = calls[0].0;
        let wanted: Vec<_> = (0..3000).map(|at| (bytes, Some(at * 100))).collect();
        assert_eq!(calls, &wanted);
    }
    // The blocks of ended threads are used again: 300 brief threads need no 300 blocks.
    assert!(processes[0].header.blocks < 60, "{} blocks", processes[0].header.blocks);
    assert_eq!(processes[0].header.lost, 0);
}

#[test]
fn children_have_traces_of_their_own_and_a_shared_position_is_right() {
    let rig = Rig::new();
    let processes = rig.run("forks");
    // Parent, three children of fork, and the program that the last one became.
    assert_eq!(processes.len(), 5);
    let file = rig.work().join("forked");
    let parent = processes[0].calls(Op::Write, &file);
    assert_eq!(parent, [(10, Some(0)), (30, Some(30)), (30, Some(80)), (30, Some(130))]);
    for (child, offset) in processes[1..4].iter().zip([10, 60, 110]) {
        assert_eq!(child.calls(Op::Write, &file), [(20, Some(offset))]);
        assert!(child.header.forked && child.header.ppid == processes[0].header.pid);
    }
    assert_eq!(processes[0].events.iter().filter(|(event, _)| event.op == Op::Fork).count(), 3);
    assert_eq!(processes[4].calls(Op::Write, &rig.work().join("child")), [(40, Some(0))]);
    assert_eq!(processes[4].header.pid, processes[3].header.pid);
    assert!(!processes[4].header.forked);
}

/// Each byte of a name counts, whatever its length.
#[test]
fn names_that_differ_in_one_byte_are_told_apart() {
    let rig = Rig::new();
    let processes = rig.run("lengths");
    let stats = processes[0].events.iter().filter(|(event, _)| event.op == Op::Stat);
    let named: Vec<&str> = stats.filter_map(|(_, name)| name.rsplit('/').next()).collect();
    let names = (1..=40).flat_map(|length: usize| (0..length).map(move |at| (length, at)));
    let wanted: Vec<String> = names
        .map(|(length, at)| format!("{}b{}", "a".repeat(at), "a".repeat(length - at - 1)))
        .collect();
    assert_eq!(named, wanted);
}

/// A name is that of the directory where it is, whichever name the same buffer had before.
#[test]
fn names_from_one_buffer_are_told_apart_by_content_and_directory() {
    let rig = Rig::new();
    let processes = rig.run("turns");
    let (reads_one, reads_two, none): ([u64; 3], [u64; 3], [u64; 0]) = ([0, 2, 4], [1, 3, 5], []);
    for (name, first, reads) in [
        ("one/a", 1, &reads_one[..]),
        ("one/b", 2, &none[..]),
        ("two/a", 3, &reads_two[..]),
        ("two/b", 4, &none[..]),
    ] {
        let file = rig.work().join(name);
        let wanted: Vec<_> = (0..3).map(|at| (first + 4 * at, Some(0))).collect();
        assert_eq!(processes[0].calls(Op::Write, &file), wanted, "{name}");
        let wanted: Vec<_> = reads.iter().map(|at| (1, Some(*at))).collect();
        assert_eq!(processes[0].calls(Op::Pread, &file), wanted, "{name}");
        assert_eq!(processes[0].count(Op::Open, &file), 3 + reads.len(), "{name}");
        assert_eq!(processes[0].count(Op::Close, &file), 3 + reads.len(), "{name}");
    }
}

/// The number of a descriptor is given again while copies of the earlier one are open: each keeps its file and its position.
#[test]
fn copies_keep_their_file_and_position_when_the_number_is_given_again() {
    let rig = Rig::new();
    let processes = rig.run("copies");
    for number in 0..20_i64 {
        let file = rig.work().join(format!("copy-{number}"));
        let bytes = number + 1;
        let mut wanted = vec![(bytes, Some(0))];
        if number > 0 {
            wanted.push((bytes, Some(bytes as u64)));
        }
        assert_eq!(processes[0].calls(Op::Write, &file), wanted, "{number}");
        assert_eq!(processes[0].count(Op::Close, &file), 2, "{number}");
    }
    let again = processes[0].calls(Op::Write, &rig.work().join("again"));
    assert_eq!(again, [(50, Some(0)), (50, Some(50))]);

    let rig = Rig::new();
    let processes = rig.run("copiers");
    let wanted: Vec<(i64, Option<u64>)> =
        (0..2000).flat_map(|_| [(10, Some(0)), (20, Some(10))]).collect();
    for number in 0..4 {
        let file = rig.work().join(format!("of-{number}"));
        let writes = processes[0].calls(Op::Write, &file);
        assert!(writes == wanted, "{number}: {} calls", writes.len());
        let counts = [Op::Open, Op::Dup, Op::Close].map(|op| processes[0].count(op, &file));
        assert_eq!(counts, [2000, 2000, 4000], "{number}");
    }
}

/// A library whose constructor looks at a file, and a program that uses it.
const EARLY: &str = r#"
#include <stdlib.h>
#include <sys/stat.h>

int early_found;

__attribute__((constructor)) static void early(void)
{
    struct stat found;
    early_found = stat(getenv("EARLY"), &found) == 0;
}
"#;
const USES_EARLY: &str = "extern int early_found; int main(void) { return !early_found; }";

/// Libraries begin before the one that records: their calls have the clock of all others, from before the first of them.
#[test]
fn a_call_of_another_library_s_constructor_has_the_clock_of_all_others() {
    let rig = Rig::new();
    let at = |name: &str| rig.base.path().join(name);
    std::fs::write(at("early.c"), EARLY).unwrap();
    std::fs::write(at("uses.c"), USES_EARLY).unwrap();
    let (library, program) = (at("libearly.so"), at("uses"));
    procs::run(
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(at("early.c")),
    );
    let mut uses = Command::new("cc");
    uses.arg("-o").arg(&program).arg(at("uses.c")).arg("-Wl,--no-as-needed").arg(&library);
    procs::run(&mut uses);
    let seen = rig.work();
    procs::run(rig.command(&[program.to_str().unwrap()]).env("EARLY", &seen));
    let processes = rig.read();
    let [process] = &processes[..] else { panic!("{} processes", processes.len()) };
    let (first, last) = (process.header.first.ticks, process.header.later.unwrap().ticks);
    let of = |(event, name): &&(Event, String)| event.op == Op::Stat && Path::new(name) == seen;
    let (call, _) = process.events.iter().find(of).unwrap();
    let end = call.start_ticks + call.duration_ticks;
    assert!(first <= call.start_ticks && end <= last, "{first} to {last}: {call:?}");
}

#[test]
fn a_killed_program_leaves_all_that_it_did() {
    let rig = Rig::new();
    let (status, said) = rig.traced("killed", 5_000);
    assert_eq!(status.signal(), Some(9), "{said}");
    let processes = rig.read();
    let file = rig.work().join("killed");
    let wanted: Vec<_> = (0..5_000).map(|at| (100, Some(at * 100))).collect();
    assert_eq!(processes[0].calls(Op::Write, &file), wanted);
    assert!(!processes[0].header.ended_by_itself());
}

#[test]
fn nothing_is_lost_of_many_calls_and_at_the_limit_the_number_is_said() {
    let rig = Rig::new();
    let (status, said) = rig.traced("many", 400_000);
    assert!(status.success(), "{said}");
    let processes = rig.read();
    assert_eq!(processes[0].count(Op::Pwrite, &rig.work().join("many")), 400_000);
    assert_eq!(processes[0].header.lost, 0);

    let rig = Rig::new();
    let work = rig.work();
    let program = program().to_str().unwrap();
    let mut command = rig.command(&[program, "many", work.to_str().unwrap(), "50000"]);
    // The options come before `--`.
    let mut limited = Command::new(command.get_program());
    limited.args(["trace", "--limit", "1MiB"]).args(command.get_args().skip(1));
    let output = limited.output().unwrap();
    command.stdin(Stdio::null());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let process = &rig.read()[0];
    let kept = process.events.len() as u64;
    // Open and all writes, kept or counted.
    let calls = process.events.iter().filter(|(event, _)| event.op == Op::Pwrite).count() as u64;
    assert!(kept < 50_000 && process.header.lost == 50_000 - calls, "{kept}");
    let wanted = format!("{} calls were not recorded: a process reached --limit", 50_000 - calls);
    assert!(said.contains(&wanted), "{said}");
}

/// Blocks are made present together, and taken out of memory together: some of them, however long the trace is.
#[test]
fn a_long_trace_keeps_little_of_itself_in_memory() {
    const CALLS: usize = 150_000;
    const MOST_KIB: u64 = 640;
    const PROGRAM: &str = "
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
for _ in range(int(sys.argv[2])): os.pwrite(fd, b'x', 0)
kib, of_trace = 0, False
for line in open('/proc/self/smaps'):
    if '-' in line.split(' ')[0]: of_trace = line.rstrip().endswith('.fbt')
    elif of_trace and line.startswith('Rss:'): kib += int(line.split()[1])
print(kib)
";
    let rig = Rig::new();
    let file = rig.work().join("long");
    let calls = CALLS.to_string();
    let python = ["/usr/bin/python3", "-I", "-S", "-c", PROGRAM];
    let words = [&python[..], &[file.to_str().unwrap(), calls.as_str()][..]].concat();
    let output = rig.command(&words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let kib: u64 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
    assert!(kib > 0 && kib <= MOST_KIB, "{kib} KiB");
    let processes = rig.read();
    assert_eq!(processes[0].count(Op::Pwrite, &file), CALLS);
    assert_eq!(processes[0].header.lost, 0);
}

/// Keeps the least processor time of each kind of call (ns) that a run of the C program tells.
fn keep_least(kept: &mut HashMap<String, f64>, command: &mut Command) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let words: Vec<&str> = said.split_whitespace().collect();
    assert_eq!(words.len(), 12, "{said}");
    for pair in words.chunks(2) {
        let ns: f64 = pair[1].parse().unwrap();
        let least = kept.entry(pair[0].to_string()).or_insert(ns);
        *least = least.min(ns);
    }
}

/// What docs/TRACING.md says of the cost, with room for a busy machine: alone and recorded in turn, the least of all rounds.
#[test]
fn a_recorded_call_costs_little_processor_time() {
    const MOST_NS: f64 = 120.0;
    const ROUNDS: u32 = 6;
    let (mut alone, mut recorded) = (HashMap::new(), HashMap::new());
    for round in 1..=ROUNDS {
        let rig = Rig::new();
        let work = rig.work();
        let (program, dir) = (program().to_str().unwrap(), work.to_str().unwrap());
        keep_least(&mut alone, Command::new(program).args(["cost", dir]));
        keep_least(&mut recorded, &mut rig.command(&[program, "cost", dir]));
        let cheap = |call: &&str| recorded[*call] - alone[*call] <= MOST_NS;
        if round > 1 && ["pwrite", "pread", "write", "fwrite"].iter().all(cheap) {
            return;
        }
    }
    panic!(
        "more than {MOST_NS} ns a call in {ROUNDS} rounds: alone {alone:?}, recorded {recorded:?}"
    );
}

/// What makes a call cheap: of a name and a descriptor that are known, the recorder asks the kernel nothing. strace(1) counts a program's calls of the
/// kernel alone and recorded.
#[test]
fn calls_with_known_names_and_descriptors_need_no_call_of_the_kernel_more() {
    const ROUNDS: usize = 2_000;
    /// For the recorder's begin, new names, and a block of the trace for each thousand calls.
    const MOST_MORE: usize = ROUNDS / 2;
    const PROGRAM: &str = "
import os, sys
for _ in range(int(sys.argv[2])):
    fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
    os.write(fd, b'x')
    os.pread(fd, 1, 0)
    os.fstat(fd)
    os.stat(sys.argv[1])
    os.close(fd)
";
    let rig = Rig::new();
    let (file, rounds) = (rig.work().join("known"), ROUNDS.to_string());
    let counted = |log: &Path, recorded: bool| -> usize {
        let strace = ["strace", "-qq", "-o", log.to_str().unwrap()];
        let python = ["/usr/bin/python3", "-I", "-S", "-c", PROGRAM];
        let arguments = [file.to_str().unwrap(), rounds.as_str()];
        let words = [&strace[..], &python[..], &arguments[..]].concat();
        let mut command = match recorded {
            true => rig.command(&words),
            false => Command::new(words[0]),
        };
        if !recorded {
            command.args(&words[1..]);
        }
        procs::run(&mut command);
        std::fs::read_to_string(log).unwrap().lines().count()
    };
    let base = rig.base.path();
    let alone = counted(&base.join("alone"), false);
    let recorded = counted(&base.join("recorded"), true);
    assert!(alone >= 6 * ROUNDS, "{alone} calls");
    assert!(recorded <= alone + MOST_MORE, "{recorded} calls, {alone} without the recorder");
    for op in [Op::Open, Op::Write, Op::Pread, Op::Fstat, Op::Stat, Op::Close] {
        let seen: usize = rig.read().iter().map(|process| process.count(op, &file)).sum();
        assert_eq!(seen, ROUNDS, "{op:?}");
    }
}

#[test]
fn a_program_that_closes_every_descriptor_is_recorded() {
    let rig = Rig::new();
    let (status, said) = rig.traced("closeall", 5_000);
    assert_eq!(status.code(), Some(7), "{said}");
    let processes = rig.read();
    let writes = processes[0].calls(Op::Write, &rig.work().join("closed"));
    let wanted: Vec<_> = (0..5_000).map(|at| (10, Some(at * 10))).collect();
    assert_eq!(writes, wanted);
}

#[test]
fn a_program_finds_its_descriptors_and_signals_as_without_the_tracer() {
    let rig = Rig::new();
    let (work, trace) = (rig.work(), rig.trace());
    let (program, tracer) = (program(), binary());
    let descriptors = work.join("descriptors");
    for redirected in ["", "<&-", "<&- >&-", "<&- >&- 2>&-", "2>&- 7</dev/null"] {
        for prefix in ["", "trap '' PIPE;"] {
            let found = ["", "traced"].map(|how| {
                let tracer = match how {
                    "" => String::new(),
                    _ => {
                        format!(
                            "{} trace --no-buffers --append -q -o {} --",
                            tracer.display(),
                            trace.display()
                        )
                    }
                };
                let (program, work) = (program.display(), work.display());
                let line =
                    format!("{prefix} exec {tracer} {program} descriptors {work} {redirected}");
                let mut shell = Command::new("bash");
                // std would give the shell a SIGPIPE of its own.
                procs::run(shell.arg("-c").arg(&line).stdin(Stdio::null()));
                std::fs::read_to_string(&descriptors).unwrap()
            });
            assert_eq!(found[0], found[1], "{prefix} {redirected}");
        }
    }
}

#[test]
fn exit_codes_signals_and_preloads_are_the_commands_own() {
    let rig = Rig::new();
    for (line, code, signal) in [("exit 7", Some(7), None), ("kill -TERM $$", None, Some(15))] {
        let _ = std::fs::remove_dir_all(rig.trace());
        let output = rig.command(&["sh", "-c", line]).output().unwrap();
        assert_eq!((output.status.code(), output.status.signal()), (code, signal));
    }
    let _ = std::fs::remove_dir_all(rig.trace());
    let output = rig.command(&["/no/such/program"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(!rig.trace().exists());
    // An option that is not there is no program; one of the program's is the program's.
    for command in ["trace", "exec"] {
        let mut wrong = Command::new(binary());
        let output = wrong.args([command, "--jsonn", "true"]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{command}: {said}");
        assert!(said.contains("--jsonn"), "{command}: {said}");
    }
    let mut right = Command::new(binary());
    let output = right
        .args(["trace", "-q", "--no-buffers", "-o"])
        .arg(rig.trace())
        .args(["sh", "-c", "exit 5"])
        .output();
    assert_eq!(output.unwrap().status.code(), Some(5), "without --");
    let _ = std::fs::remove_dir_all(rig.trace());
    // A signal for the tracer is one for the program; what was preloaded before stays behind it.
    let mut command = rig.command(&["sh", "-c", "echo $LD_PRELOAD; exec sleep 100"]);
    let other = "libm.so.6";
    let mut child = command.env("LD_PRELOAD", other).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut reader = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut reader, &mut line).unwrap();
    assert!(line.trim().ends_with(&format!("libforebay_trace.so:{other}")), "{line}");
    procs::run(Command::new("kill").args(["-TERM", &child.id().to_string()]));
    assert_eq!(child.wait().unwrap().signal(), Some(15));
    // A signal that has a meaning to the program alone, and one of the program's own choice.
    for (name, number) in [("ALRM", 14), ("RTMIN+3", libc::SIGRTMIN() + 3)] {
        let _ = std::fs::remove_dir_all(rig.trace());
        let line =
            format!("trap 'echo saving; exit 7' {name}; echo ready; while :; do sleep 0.05; done");
        let mut command = rig.command(&["bash", "-c", &line]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut reader = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        std::io::BufRead::read_line(&mut reader, &mut said).unwrap();
        procs::run(Command::new("kill").args([&format!("-{number}"), &child.id().to_string()]));
        std::io::Read::read_to_string(&mut reader, &mut said).unwrap();
        assert_eq!((child.wait().unwrap().code(), &*said), (Some(7), "ready\nsaving\n"), "{name}");
    }
    // Stopped and continued, both.
    let _ = std::fs::remove_dir_all(rig.trace());
    let mut command = rig.command(&["sh", "-c", "echo $$; while :; do sleep 0.05; done"]);
    let mut child = command.process_group(0).stdout(Stdio::piped()).spawn().unwrap();
    let mut shell = String::new();
    let mut reader = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut reader, &mut shell).unwrap();
    let pids = [child.id().to_string(), shell.trim().to_string()];
    for (signal, stopped) in [("-TSTP", true), ("-CONT", false), ("-TSTP", true), ("-CONT", false)]
    {
        procs::run(Command::new("kill").args([signal, &pids[0]]));
        let state = |pid: &String| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            status.contains("\nState:\tT")
        };
        let both = || pids.iter().all(|pid| state(pid) == stopped);
        forebay_tests::until(&format!("both after {signal}"), Duration::from_secs(60), both);
    }
    procs::run(Command::new("kill").args(["-TERM", &pids[0]]));
    assert_eq!(child.wait().unwrap().signal(), Some(15));
    // Who started it ignores the ends of children, and so does the program then.
    let _ = std::fs::remove_dir_all(rig.trace());
    let ignoring = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); \
                    os.execv(sys.argv[1], sys.argv[1:])";
    let mut python = Command::new("python3");
    python.args(["-c", ignoring]).arg(binary()).args(["trace", "-q", "--no-buffers", "-o"]);
    // Not by a shell, which has a use of its own for this signal.
    python.arg(rig.trace()).args(["grep", "SigIgn", "/proc/self/status", "/none"]);
    let output = python.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let ignored = String::from_utf8(output.stdout).unwrap();
    let bits = u64::from_str_radix(ignored.rsplit(':').next().unwrap().trim(), 16).unwrap();
    assert_ne!(bits & 1 << (libc::SIGCHLD - 1), 0, "{ignored}");
}

#[test]
fn a_pipe_in_the_directory_of_a_trace_is_waited_for_by_nobody() {
    let rig = Rig::new();
    std::fs::create_dir(rig.trace()).unwrap();
    procs::run(Command::new("mkfifo").arg(rig.trace().join("a.fbt")));
    let (program, trace) = (binary().display().to_string(), rig.trace().display().to_string());
    let line = format!(
        "timeout 60 {program} trace --append -o {trace} -- true; echo $?; timeout 60 {program} report {trace}"
    );
    let output = Command::new("sh").args(["-c", &line]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.starts_with("0\n"), "{output:?}");
    assert_ne!(output.status.code(), Some(124), "{output:?}");
}

#[test]
fn a_trace_that_cannot_be_written_stops_nothing_but_itself() {
    // A directory where nothing can be made.
    let rig = Rig::new();
    std::fs::write(rig.trace(), b"a file").unwrap();
    let output = rig.command(&["sh", "-c", "echo ran"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.stdout.is_empty() && output.status.code() == Some(1));
    assert!(said.contains("cannot write a trace to"), "{said}");
    // A disk that is full from the begin costs the trace, and not the program.
    let rig = Rig::new();
    std::fs::create_dir(rig.trace()).unwrap();
    procs::run(
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=4k", "none"]).arg(rig.trace()),
    );
    std::fs::write(rig.trace().join("full"), [1; 4096]).unwrap();
    let mut command = Command::new(binary());
    command.args(["trace", "--no-buffers", "-o"]).arg(rig.trace().join("t"));
    let output = command.args(["--", "sh", "-c", "echo ran; exit 3"]).output().unwrap();
    procs::run(Command::new("umount").arg(rig.trace()));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(3), &b"ran\n"[..]), "{said}");
    assert!(said.contains("nothing is recorded of sh") && said.contains("No space left"), "{said}");
    // A full disk: the program runs, and what is missing is said.
    let rig = Rig::new();
    std::fs::create_dir(rig.trace()).unwrap();
    procs::run(
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=512k", "none"]).arg(rig.trace()),
    );
    let (status, said) = rig.traced("many", 100_000);
    let processes = rig.read();
    let kept = processes[0].count(Op::Pwrite, &rig.work().join("many")) as u64;
    let lost = processes[0].header.lost;
    procs::run(Command::new("umount").arg(rig.trace()));
    assert!(status.success(), "{said}");
    assert!(kept > 1_000 && kept + lost == 100_000, "{kept} kept, {lost} lost");
    assert!(said.contains(&format!("{lost} calls were not recorded: there was no room")), "{said}");
    assert_eq!(std::fs::metadata(rig.work().join("many")).unwrap().len(), 800_000);
}

/// What is told of processes that have no file: how many calls, at least those to write, and why.
#[test]
fn processes_that_cannot_make_their_files_are_counted_with_their_calls() {
    // The last inode is the shell's; then a header that finds no room.
    for room in ["size=8m,nr_inodes=3", "size=8k"] {
        let rig = Rig::new();
        std::fs::create_dir(rig.trace()).unwrap();
        let mut mount = Command::new("mount");
        procs::run(mount.args(["-t", "tmpfs", "-o", room, "none"]).arg(rig.trace()));
        let line = format!("{} many {} 100000", program().display(), rig.work().display());
        let line = format!("{line}; exit $?");
        let mut command = Command::new(binary());
        command.args(["trace", "--no-buffers", "-o"]).arg(rig.trace());
        let output = command.args(["--", "sh", "-c", &line]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let names = std::fs::read_dir(rig.trace()).unwrap();
        let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        let report = Command::new(binary()).args(["report", "--json"]).arg(rig.trace()).output();
        procs::run(Command::new("umount").arg(rig.trace()));
        assert!(output.status.success(), "{said}");
        let traces = names.iter().filter(|name| name.to_string_lossy().ends_with(".fbt")).count();
        let told = said.lines().find(|line| line.contains("not recorded, with ")).unwrap_or(&said);
        let number = |after: &str| -> u64 {
            let digits = told.split(after).nth(1).unwrap_or_default();
            digits.split(' ').next().unwrap_or_default().parse().unwrap_or(0)
        };
        // Each has one name, however often it was tried. A shell's child may count as itself, and as what it becomes.
        let processes = number("forebay trace: ");
        match room.contains("inodes") {
            true => assert!(traces == 1 && (1..=2).contains(&processes), "{names:?}: {said}"),
            false => assert_eq!(traces as u64, processes, "{names:?}: {said}"),
        }
        let calls = number("with ");
        assert!((100_000..101_000).contains(&calls), "{room}: {said}");
        assert!(told.ends_with("there was no room for the trace"), "{room}: {said}");
        if traces == 1 {
            let report = String::from_utf8(report.unwrap().stdout).unwrap();
            let problem = format!(
                "processes that could not make a file in the trace: {processes}; calls that are known of them: {calls}"
            );
            assert!(report.contains(&problem), "{report}");
        }
    }
}

#[test]
fn another_runs_trace_is_not_mixed_with_this_one() {
    let rig = Rig::new();
    assert!(rig.command(&["true"]).output().unwrap().status.success());
    let output = rig.command(&["true"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("holds the trace of another run"), "{said}");
}

#[test]
fn a_static_program_runs_and_the_end_says_why_nothing_was_recorded() {
    let rig = Rig::new();
    let source = rig.work().join("s.c");
    std::fs::write(&source, "int main(void) { return 5; }\n").unwrap();
    let program = rig.work().join("s");
    procs::run(Command::new("cc").args(["-static", "-o"]).arg(&program).arg(&source));
    let output = rig.command(&[program.to_str().unwrap()]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(5));
    assert!(said.contains("nothing was recorded") && said.contains("statically linked"), "{said}");
}

#[test]
fn programs_that_nobody_here_wrote_are_recorded_and_work() {
    let rig = Rig::new();
    let (work, count) = (rig.work(), 37_u64);
    let file = work.join("dd");
    let output = format!("of={}", file.display());
    let dd = ["dd", "if=/dev/zero", &output, "bs=47008", "count=37", "conv=fsync"];
    assert!(rig.command(&dd).output().unwrap().status.success());
    let processes = rig.read();
    let wanted: Vec<_> = (0..count).map(|at| (47_008, Some(at * 47_008))).collect();
    assert_eq!(processes[0].calls(Op::Write, &file), wanted);
    assert_eq!(processes[0].count(Op::Fsync, &file), 1);

    // cat to a file that the shell opened: the descriptor came from elsewhere.
    let rig = Rig::new();
    let line = format!("cat {} > {}", file.display(), rig.work().join("copy").display());
    assert!(rig.command(&["sh", "-c", &line]).output().unwrap().status.success());
    let cat = rig.read().into_iter().find(|process| process.header.program() == "cat").unwrap();
    let sum = |op: &[Op], name: &Path| -> i64 {
        op.iter().flat_map(|op| cat.calls(*op, name)).map(|(bytes, _)| bytes.max(0)).sum()
    };
    let copy = rig.work().join("copy");
    let whole = (count * 47_008) as i64;
    assert_eq!(sum(&[Op::Read, Op::CopySource], &file), whole);
    assert_eq!(sum(&[Op::Write, Op::CopyFileRange], &copy), whole);

    let rig = Rig::new();
    let script = "import os,sys,subprocess\np=sys.argv[1]\nf=open(p,'wb',buffering=0)\n\
                  for i in range(200): f.write(b'x'*77)\nf.close()\nos.stat(p)\n\
                  subprocess.run(['sh','-c','exit 3'])\nos.unlink(p)\n";
    let path = rig.work().join("py");
    let output = rig.command(&["python3", "-c", script, path.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let processes = rig.read();
    let python = processes.iter().find(|process| process.count(Op::Write, &path) > 0).unwrap();
    let wanted: Vec<_> = (0..200).map(|at| (77, Some(at * 77))).collect();
    assert_eq!(python.calls(Op::Write, &path), wanted);
    assert_eq!(python.count(Op::Unlink, &path), 1);

    // What these write is what they write without the tracer: they check it themselves.
    let rig = Rig::new();
    let line = "cd $0 && git init -q r && cd r && seq 1 2000 > a && git add a && \
                git -c user.name=n -c user.email=e@x commit -qm m && git gc -q && git fsck --strict && \
                sqlite3 b 'create table t(x); insert into t select 1; pragma integrity_check;' && \
                tar cf ../t.tar . && tar tf ../t.tar > /dev/null && rm -rf b";
    let output =
        rig.command(&["bash", "-ec", line, rig.work().to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let processes = rig.read();
    let program = |name: &str| processes.iter().filter(|p| p.header.program() == name).count();
    assert!(program("git") >= 4 && program("sqlite3") == 1 && program("tar") == 2);
    assert!(processes.iter().all(|process| process.header.lost == 0));
}

#[test]
fn ranks_of_an_mpi_program_are_in_one_trace_either_way() {
    let run = |rig: &Rig, before: &[&str], after: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("mpi");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/mpi_files.c");
        procs::run(Command::new("mpicc.openmpi").args(["-O2", "-o"]).arg(&program).arg(source));
        let (first, rest) = before.split_first().unwrap();
        let mut command = Command::new(first);
        command.args(rest).args(after).arg(&program).args(["own", "8", "1"]).arg(rig.work());
        command
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .env("TMPDIR", dir.path());
        procs::run(&mut command)
    };
    let (tracer, mpirun) = (binary(), ["mpirun", "--oversubscribe", "-n", "4"]);
    let tracer = tracer.to_str().unwrap().to_string();
    for outside in [true, false] {
        let rig = Rig::new();
        let trace = rig.trace();
        let traced = [&tracer, "trace", "--no-buffers", "-o", trace.to_str().unwrap(), "--"];
        let (before, after): (&[&str], &[&str]) =
            if outside { (&traced, &mpirun) } else { (&mpirun, &traced) };
        let said = run(&rig, before, after);
        assert!(said.contains("checked"), "{said}");
        let processes = rig.read();
        let mut ranks: Vec<u32> = processes
            .iter()
            .filter(|process| process.header.program() == "mpi" && !process.header.forked)
            .filter_map(|process| process.header.rank)
            .collect();
        ranks.sort_unstable();
        assert_eq!(ranks, [0, 1, 2, 3]);
        assert!(processes.iter().all(|process| process.header.lost == 0));
        let written: u64 = processes
            .iter()
            .filter(|process| process.header.program() == "mpi")
            .flat_map(|process| &process.events)
            .filter(|(event, name)| {
                event.op.class() == forebay_trace_format::Class::Write
                    && Path::new(name).starts_with(rig.work())
            })
            .map(|(event, _)| event.bytes())
            .sum();
        // By MPI-IO and by read(2) it checks as much as it wrote: 4 ranks, 8 transfers of 47008 bytes.
        assert_eq!(written, 4 * 8 * 47_008, "{said}");
    }
}
