//! Programs that nobody here wrote are traced, their I/O is written down as a workload, and the workload is replayed: the
//! replay makes the same transfers, as many of each size, of as many bytes, and the reports of both count as many writes.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::binary;
use forebay_tests::procs::run;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How many transfers there are, by whether they write, and by their bytes.
type Transfers = BTreeMap<(bool, u64), u64>;

struct Rig {
    base: tempfile::TempDir,
}

impl Rig {
    fn new() -> Rig {
        let base =
            tempfile::Builder::new().prefix("forebay-replay-").tempdir_in("/dev/shm").unwrap();
        for name in ["work", "home", "again"] {
            std::fs::create_dir(base.path().join(name)).unwrap();
        }
        Rig { base }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }

    fn forebay(&self, args: &[&str], paths: &[&Path]) -> String {
        run(Command::new(binary()).args(args).args(paths))
    }

    /// Traces a command in `work`, replays it in `again`; the transfers of both must be the same. Gives them.
    fn replays(&self, command: &[&str]) -> Transfers {
        let (trace, log, load) = (self.path("trace"), self.path("log"), self.path("load"));
        let mut traced = Command::new(binary());
        traced.args(["trace", "-q", "-o"]).arg(&trace).arg("--").args(command);
        traced.current_dir(self.path("work")).env("HOME", self.path("home"));
        traced.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        run(traced.stdin(Stdio::null()));
        self.forebay(&["trace", "export", "--to", "workload", "-o"], &[&load, &trace]);
        let workload = load.join("workload.toml");
        let mut replay = Command::new(binary());
        replay.args(["bench", "run", "-q", "--json", "--no-cache-look", "--log"]).arg(&log);
        let told = run(replay.arg(&workload).arg(self.path("again")));
        let told: Value = serde_json::from_str(&told).unwrap();
        let (original, replayed) = (self.transfers(&trace), self.transfers(&log));
        assert_eq!(original, replayed);
        let sum = |write: bool| -> u64 {
            replayed
                .iter()
                .filter(|one| one.0.0 == write)
                .map(|((_, bytes), count)| bytes * count)
                .sum()
        };
        let phases = told["phases"].as_array().unwrap();
        let counted =
            |key: &str| phases.iter().map(|phase| phase[key].as_u64().unwrap()).sum::<u64>();
        assert_eq!((counted("read_bytes"), counted("written_bytes")), (sum(false), sum(true)));
        // Nothing of the program's own was touched, and nothing of the replay stays.
        assert_eq!(std::fs::read_dir(self.path("again")).unwrap().count(), 0);
        // The report names the program, and moves the same bytes.
        let (report, again) = (self.totals(&trace), self.totals(&log));
        assert!(report["written_bytes"].as_u64() >= Some(sum(true)), "{report}");
        // Bytes that printf and the like moved are no number of calls, in neither of them; what moved nothing is in no replay.
        assert_eq!(again["writes"].as_u64(), Some(self.writing_calls(&trace)), "{report} {again}");
        let calls =
            phases.iter().filter_map(|phase| phase["operations"]["write"]["calls"].as_u64());
        assert_eq!(again["writes"].as_u64(), Some(calls.sum()), "{told}");
        original
    }

    /// Calls of a trace that wrote bytes.
    fn writing_calls(&self, trace: &Path) -> u64 {
        let wrote = |event: &&Value| {
            let seen = !event["name"].as_str().unwrap().starts_with("stdio writes");
            seen && event["cat"] == "write" && event["args"]["result"].as_i64() > Some(0)
        };
        let events = self.events(trace);
        events["traceEvents"].as_array().unwrap().iter().filter(wrote).count() as u64
    }

    /// What the report of a trace has in all.
    fn totals(&self, trace: &Path) -> Value {
        let report = self.forebay(&["report", "--json"], &[trace]);
        serde_json::from_str::<Value>(&report).unwrap()["totals"].take()
    }

    fn events(&self, trace: &Path) -> Value {
        let out = self.path("events.json");
        let _ = std::fs::remove_file(&out);
        self.forebay(&["trace", "export", "--to", "chrome", "-o"], &[&out, trace]);
        serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap()
    }

    /// The transfers of a trace that have a place in a file.
    fn transfers(&self, trace: &Path) -> Transfers {
        let events = self.events(trace);
        let mut transfers = Transfers::new();
        for event in events["traceEvents"].as_array().unwrap() {
            let (args, write) = (&event["args"], event["cat"] == "write");
            let bytes = args["result"].as_u64().unwrap_or(0);
            if bytes > 0 && args["offset"].is_u64() && (write || event["cat"] == "read") {
                *transfers.entry((write, bytes)).or_default() += 1;
            }
        }
        transfers
    }
}

#[test]
fn git_is_replayed_in_the_same_sizes() {
    let script = "set -e
        git init -q .; git config user.email a@b.c; git config user.name n; git config gc.auto 0
        for i in $(seq 1 40); do echo \"line $i of a file\" > file$i; done
        git add .; git commit -qm first; git mv file1 renamed; echo more >> file2; git commit -qam second
        git gc -q; git log -p > log; git fsck --strict";
    let rig = Rig::new();
    let transfers = rig.replays(&["/bin/sh", "-c", script]);
    assert!(transfers.len() > 20, "{transfers:?}");
}

/// Who makes a directory, who writes into it and who removes it are three processes, and a replay without pauses has them in any
/// order.
#[test]
fn directories_that_processes_share_are_made_and_removed_without_pauses() {
    let script = "
        (sleep 0.2; mkdir d d/e; sleep 0.5; rmdir d/e d) &
        (sleep 0.4; dd if=/dev/zero of=d/e/f bs=5000 count=1 status=none; cat d/e/f > /dev/null; rm d/e/f) &
        wait";
    let rig = Rig::new();
    let (trace, load) = (rig.path("trace"), rig.path("load"));
    let mut traced = Command::new(binary());
    traced.args(["trace", "-q", "-o"]).arg(&trace).args(["--", "/bin/sh", "-c", script]);
    run(traced.current_dir(rig.path("work")).stdin(Stdio::null()));
    rig.forebay(&["trace", "export", "--to", "workload", "-o"], &[&load, &trace]);
    for _ in 0..10 {
        let replay = ["bench", "run", "-q", "--json", "--no-cache-look", "--think-scale", "0"];
        let told = rig.forebay(&replay, &[&load.join("workload.toml"), &rig.path("again")]);
        let told: Value = serde_json::from_str(&told).unwrap();
        let phases = told["phases"].as_array().unwrap();
        let written: u64 = phases.iter().filter_map(|one| one["written_bytes"].as_u64()).sum();
        assert_eq!(written, 5000, "{told}");
        let left = std::fs::read_dir(rig.path("again")).unwrap();
        left.for_each(|entry| std::fs::remove_dir_all(entry.unwrap().path()).unwrap());
    }
}

/// A program's own directory becomes empty by a process that moves no bytes, whose removals are not in the workload.
#[test]
fn a_directory_that_another_process_emptied_keeps_no_replay_waiting() {
    let script = "
import os, time
os.mkdir('d'); os.mkdir('d/e')
open('d/e/f', 'wb').write(b'x' * 5000)
while os.path.exists('d/e'): time.sleep(0.01)
os.rmdir('d')
";
    let both = r#"/usr/bin/python3 -I -c "$0" & until [ -s d/e/f ]; do sleep 0.01; done; rm d/e/f; rmdir d/e; wait $!"#;
    let rig = Rig::new();
    let (trace, load) = (rig.path("trace"), rig.path("load"));
    let mut traced = Command::new(binary());
    traced.args(["trace", "-q", "-o"]).arg(&trace).args(["--", "/bin/sh", "-c", both, script]);
    run(traced.current_dir(rig.path("work")).stdin(Stdio::null()));
    rig.forebay(&["trace", "export", "--to", "workload", "-o"], &[&load, &trace]);
    for scale in ["0", "1"] {
        let replay = ["bench", "run", "-q", "--json", "--no-cache-look", "--think-scale", scale];
        let told = rig.forebay(&replay, &[&load.join("workload.toml"), &rig.path("again")]);
        let told: Value = serde_json::from_str(&told).unwrap();
        let phases = told["phases"].as_array().unwrap();
        let written: u64 = phases.iter().filter_map(|one| one["written_bytes"].as_u64()).sum();
        assert_eq!(written, 5000, "{told}");
        let left = std::fs::read_dir(rig.path("again")).unwrap();
        left.for_each(|entry| std::fs::remove_dir_all(entry.unwrap().path()).unwrap());
    }
}

/// A file that is removed while it is open is still written, looked at and read, by its descriptor.
#[test]
fn a_file_without_a_name_is_replayed_by_its_descriptor() {
    let script = "
import os
fd = os.open('gone', os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
os.unlink('gone')
os.pwrite(fd, b'x' * 100, 0)
assert os.fstat(fd).st_size == 100
assert os.pread(fd, 70, 0) == b'x' * 70
";
    let transfers = Rig::new().replays(&["/usr/bin/python3", "-I", "-c", script]);
    assert_eq!((transfers[&(true, 100)], transfers[&(false, 70)]), (1, 1));
}

/// A replay has what is read of a file, and not as much room as the file is long.
#[test]
fn a_large_sparse_file_is_replayed_in_little_room() {
    let rig = Rig::new();
    let file = std::fs::File::create(rig.path("work").join("sparse")).unwrap();
    file.set_len(100 << 30).unwrap();
    let script = "
import os
fd = os.open('sparse', os.O_RDWR)
for at in (5 << 20, (40 << 30) + 7, (100 << 30) - 10): assert os.pread(fd, 10, at) == bytes(10)
os.pwrite(fd, b'x' * 3, 70 << 30)
";
    let transfers = rig.replays(&["/usr/bin/python3", "-I", "-c", script]);
    assert_eq!((transfers[&(false, 10)], transfers[&(true, 3)]), (3, 1));
}

/// A program that reads and writes by stdio, in all ways that make libc do another thing.
const STREAMS: &str = r#"
#include <stdio.h>
static char d[100000];
int main(void) {
  FILE *f = fopen("out", "w");
  for (int i = 0; i < 1000; i++) fwrite(d, 1, 100, f);
  fwrite(d, 1, 10000, f);
  fwrite(d, 1, 8192, f);
  fflush(f);
  for (int i = 0; i < 300; i++) fprintf(f, "%099d\n", i);
  fflush(f);
  fwrite(d, 1, 50, f);
  fseek(f, 5000, SEEK_SET);
  fwrite(d, 1, 20000, f);
  fclose(f);
  f = fopen("out", "r");
  for (int i = 0; i < 200; i++) fread(d, 1, 100, f);
  fread(d, 1, 30000, f);
  fseek(f, 70001, SEEK_SET);
  fread(d, 1, 9, f);
  fread(d, 1, 30000, f);
  fclose(f);
  f = fopen("out", "w");
  fprintf(f, "%0229d", 1);
  fwrite(d, 1, 54293, f);
  fflush(f);
  for (int i = 0; i < 20; i++) { fputs("line ", f); fprintf(f, "%01000d\n", i); }
  fclose(f);
  f = fopen("out", "a");
  setbuf(f, 0);
  for (int i = 0; i < 30; i++) fwrite(d, 1, 77, f);
  fclose(f);
  f = fopen("out", "a");
  fputs("end\n", f);
  return 0;
}
"#;

/// Prints so many lines, and closes or reopens standard output then if it is told to.
const PRINTS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **given) {
  for (int i = 0; i < atoi(given[1]); i++) {
    printf("line %d\n", i);
    if (i % 100 == 0) puts("hundred");
  }
  fputs("end\n", stdout);
  if (given[2] && *given[2] == 'c') {
    fflush(stdout);
    fprintf(stderr, "%d lines\n", 300);
    fputs("error\n", stderr);
    fclose(stderr);
    printf("after\n");
    fclose(stdout);
  }
  if (given[2] && *given[2] == 'r') freopen("/dev/null", "w", stdout), printf("nothing\n");
  return 0;
}
"#;

/// Standard output that is a file, alone and of several programs at once that share it.
#[test]
fn what_is_printed_into_a_file_is_recorded() {
    let rig = Rig::new();
    let (source, program) = (rig.path("prints.c"), rig.path("prints"));
    std::fs::write(&source, PRINTS).unwrap();
    run(Command::new("cc").args(["-O1", "-w", "-o"]).args([&program, &source]));
    let program = program.to_str().unwrap();
    let alone = format!("{program} 3000 > out");
    let together = format!("for i in 1 2 3 4; do {program} 3000 & done > out; wait");
    let appended = format!("echo before > out; {program} 50 >> out; {program} 70 >> out 2>&1");
    // Programs that close or reopen a standard stream before their end.
    let awk =
        "seq 5000 > in; awk '{ printf \"%d %s\\n\", $1, \"of them\" }' in > out; rm in".to_string();
    let closed = format!("{program} 300 close > out 2>&1");
    let reopened = format!("{program} 300 reopen > out");
    let scripts = [alone, together, appended, awk, closed, reopened];
    for (number, script) in scripts.into_iter().enumerate() {
        let trace = rig.path(&format!("trace{number}"));
        let mut traced = Command::new(binary());
        traced.args(["trace", "-q", "-o"]).arg(&trace).args(["--", "/bin/sh", "-c", &script]);
        run(traced.current_dir(rig.path("work")).stdin(Stdio::null()));
        let mut bytes = std::fs::metadata(rig.path("work").join("out")).unwrap().len();
        if script.starts_with("seq") {
            bytes += (1..=5000).map(|number: u32| number.to_string().len() as u64 + 1).sum::<u64>();
        }
        let report = rig.forebay(&["report", "--json"], &[&trace]);
        let report: Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["totals"]["written_bytes"].as_u64(), Some(bytes), "{script}");
    }
}

/// What a program did to files of a name: how many reads and writes of each size, as the kernel saw them.
fn seen_by_the_kernel(command: &mut Command, name: &str, log: &Path) -> Transfers {
    let (program, arguments) = (command.get_program().to_owned(), command.get_args());
    let mut strace = Command::new("strace");
    // A file for each thread: in one, calls at once would stand in two pieces.
    std::fs::create_dir(log).unwrap();
    strace.args(["-ff", "-y", "-qq", "-e", "trace=read,write,pread64,pwrite64", "-o"]);
    strace.arg(log.join("thread"));
    strace.arg(program).args(arguments).stdin(Stdio::null());
    strace.current_dir(command.get_current_dir().unwrap_or(Path::new("/")));
    run(&mut strace);
    let mut transfers = Transfers::new();
    for thread in std::fs::read_dir(log).unwrap() {
        let lines = std::fs::read(thread.unwrap().path()).unwrap();
        let lines = String::from_utf8_lossy(&lines).into_owned();
        for line in lines.lines().filter(|line| line.contains(&format!("/{name}>,"))) {
            let bytes = line.rsplit("= ").next().and_then(|bytes| bytes.trim().parse().ok());
            if let Some(bytes @ 1..) = bytes {
                let writes = line.starts_with("write") || line.starts_with("pwrite");
                *transfers.entry((writes, bytes)).or_default() += 1;
            }
        }
    }
    transfers
}

/// Positions of streams that read and write: in the buffer and outside, at a block's begin, twice in a row, behind the end.
const POSITIONS: &str = r#"
#include <stdio.h>
#include <unistd.h>
static char d[100000];
int main(void) {
  FILE *f = fopen("out", "r+");
  fseek(f, 5000, SEEK_SET);
  fwrite(d, 1, 10, f);
  fseek(f, 20000, SEEK_SET);
  fwrite(d, 1, 3000, f);
  fwrite(d, 1, 3000, f);
  fseek(f, 30000, SEEK_SET);
  fread(d, 1, 10, f);
  fseek(f, 30010, SEEK_SET);
  fwrite(d, 1, 9000, f);
  fseek(f, 8192, SEEK_SET);
  fwrite(d, 1, 100, f);
  fseek(f, 0, SEEK_CUR);
  fwrite(d, 1, 100, f);
  fseek(f, -77, SEEK_END);
  fread(d, 1, 50, f);
  rewind(f);
  fprintf(f, "%05000d", 1);
  fclose(f);
  f = fopen("out", "r");
  fseek(f, 50001, SEEK_SET);
  fread(d, 1, 10, f);
  fseek(f, 60001, SEEK_SET);
  fseek(f, 70001, SEEK_SET);
  fread(d, 1, 10, f);
  fclose(f);
  unlink("out");
  f = fopen("out", "w+");
  fwrite(d, 1, 9999, f);
  fseek(f, 5001, SEEK_SET);
  fread(d, 1, 100, f);
  fseek(f, 9999, SEEK_SET);
  fwrite(d, 1, 20000, f);
  fclose(f);
  return 0;
}
"#;

/// Streams that write at each end of a line: by fputs and fwrite, of which the lines are known, whole and in parts.
const LINES: &str = r#"
#include <stdio.h>
int main(void) {
  FILE *f = fopen("out", "w");
  setvbuf(f, 0, _IOLBF, 0);
  for (int i = 0; i < 50; i++) {
    fputs("a line\n", f);
    fputs("no end, ", f);
    fputs("and now\n", f);
    fwrite("by fwrite\n", 1, 10, f);
  }
  fputs("the rest", f);
  fclose(f);
  return 0;
}
"#;

/// Runs a program in C on a file `out` of 100,000 bytes, and replays its trace: the kernel sees the same of both. Gives that, and the
/// calls.
fn seen_alike(source: &str) -> (Transfers, Transfers) {
    let rig = Rig::new();
    let (text, program) = (rig.path("streams.c"), rig.path("streams"));
    std::fs::write(&text, source).unwrap();
    run(Command::new("cc").args(["-O0", "-w", "-o"]).args([&program, &text]));
    let work = rig.path("work");
    std::fs::write(work.join("out"), vec![b'x'; 100_000]).unwrap();
    let original =
        seen_by_the_kernel(Command::new(&program).current_dir(&work), "out", &rig.path("strace1"));
    std::fs::write(work.join("out"), vec![b'x'; 100_000]).unwrap();
    let calls = rig.replays(&[program.to_str().unwrap()]);
    let mut replay = Command::new(binary());
    replay.args(["bench", "run", "-q", "--json", "--no-cache-look"]);
    replay.arg(rig.path("load").join("workload.toml")).arg(rig.path("again"));
    let replayed = seen_by_the_kernel(&mut replay, "out", &rig.path("strace2"));
    // Files that must be there before are written in one piece.
    let mut replayed = replayed;
    replayed.retain(|(write, bytes), _| !*write || *bytes < 60_000);
    assert_eq!(original, replayed);
    (original, calls)
}

/// What libc makes of calls on streams is what a replay does, while its log has the calls.
#[test]
fn streams_are_replayed_as_the_kernel_saw_them() {
    let (original, calls) = seen_alike(STREAMS);
    assert!(original[&(true, 4096)] > 20 && original[&(false, 4096)] > 4, "{original:?}");
    assert_eq!(calls[&(true, 100)], 1000, "the log has the calls");
}

#[test]
fn positions_of_streams_are_replayed_as_the_kernel_saw_them() {
    let (original, calls) = seen_alike(POSITIONS);
    // At the begin of a stream libc reads up to the place only.
    assert_eq!((original[&(false, 904)], original[&(false, 849)]), (1, 1), "{original:?}");
    assert_eq!(original[&(true, 480)], 1, "the rest of the block that was read");
    assert_eq!(calls[&(false, 10)], 3, "{calls:?}");
}

#[test]
fn streams_that_write_at_ends_of_lines_are_replayed_as_the_kernel_saw_them() {
    let (original, calls) = seen_alike(LINES);
    let expected: Transfers =
        [((true, 7), 50), ((true, 16), 50), ((true, 10), 50), ((true, 8), 1)].into();
    assert_eq!(original, expected);
    assert_eq!(calls[&(true, 8)], 101, "{calls:?}");
}

#[test]
fn sqlite_is_replayed_in_the_same_sizes() {
    let script = "
import sqlite3
for mode in ('delete', 'wal'):
    db = sqlite3.connect(mode + '.db')
    db.execute('pragma journal_mode=' + mode)
    db.execute('create table t (a integer primary key, b text)')
    for i in range(60):
        with db: db.execute('insert into t values (?, ?)', (i, 'x' * (i * 37 % 5000)))
    assert db.execute('select count(*) from t').fetchone() == (60,)
    db.close()
";
    let rig = Rig::new();
    let transfers = rig.replays(&["/usr/bin/python3", "-I", "-c", script]);
    // Pages of databases and journals.
    let pages = transfers.get(&(true, 4096)).copied().unwrap_or(0);
    assert!(pages > 100, "{transfers:?}");
}

#[test]
fn hdf5_is_replayed_in_the_same_sizes() {
    let script = "
import h5py, numpy
with h5py.File('data.h5', 'w') as file:
    file.create_dataset('chunked', data=numpy.arange(200000.0).reshape(200, 1000), chunks=(20, 100), compression='gzip')
    file.create_dataset('contiguous', data=numpy.ones((300, 300)))
    for at in range(30): file.create_group(f'group{at}').attrs['number'] = at
with h5py.File('data.h5', 'r+') as file:
    assert file['chunked'][199, 999] == 199999.0
    file['contiguous'][10:20] = 7
";
    let rig = Rig::new();
    let transfers = rig.replays(&["/usr/bin/python3", "-c", script]);
    assert!(transfers.contains_key(&(true, 720_000)), "{transfers:?}");
}

/// LAMMPS on four ranks of MPI writes restart files by the first rank, and dumps; reads one again.
/// A liquid of Lennard-Jones, with a dump and a restart.
const MELT: &str = "
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 8 0 8 0 8
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 1.44 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
fix 1 all nve
dump 1 all atom 10 dump.lammpstrj
run 20
write_restart state.restart
write_data state.data
";

#[test]
fn lammps_under_mpi_is_replayed_in_the_same_sizes() {
    let rig = Rig::new();
    let again = "
read_restart state.restart
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
fix 1 all nve
run 5
write_restart end.*.restart
";
    std::fs::write(rig.path("work").join("in.first"), MELT).unwrap();
    std::fs::write(rig.path("work").join("in.second"), again).unwrap();
    // What Open MPI keeps while it runs is none of the program's.
    let script = "set -e; export TMPDIR=/run; for part in first second; do
        mpirun --oversubscribe --mca mpi_yield_when_idle 1 -n 4 lmp -in in.$part -screen none -log none; done";
    let transfers = rig.replays(&["/bin/sh", "-c", script]);
    assert!(!transfers.is_empty());
    // All that it writes moves bytes, so the two reports agree as they are.
    let (trace, log) = (rig.totals(&rig.path("trace")), rig.totals(&rig.path("log")));
    assert_eq!(trace["writes"], log["writes"], "{trace} {log}");
}

/// Its Open MPI keeps files of its own, which several processes and threads make, use and remove, some of them without a byte.
#[test]
fn lammps_with_the_files_of_its_mpi_is_replayed_with_and_without_pauses() {
    let alone = "lmp -in in.melt -screen none -log none";
    let of_two = format!("mpirun --oversubscribe --mca mpi_yield_when_idle 1 -n 2 {alone}");
    for program in [alone, &of_two] {
        let rig = Rig::new();
        std::fs::write(rig.path("work").join("in.melt"), MELT).unwrap();
        let script = format!("set -e; mkdir tmp; export TMPDIR=$PWD/tmp; {program}");
        let transfers = rig.replays(&["/bin/sh", "-c", &script]);
        let written = transfers.iter().filter(|((write, _), _)| *write);
        let written: u64 = written.map(|((_, bytes), count)| bytes * count).sum();
        let replay = ["bench", "run", "-q", "--json", "--no-cache-look", "--think-scale", "0"];
        for _ in 0..3 {
            let workload = rig.path("load").join("workload.toml");
            let told = rig.forebay(&replay, &[&workload, &rig.path("again")]);
            let told: Value = serde_json::from_str(&told).unwrap();
            let phases = told["phases"].as_array().unwrap();
            let sum: u64 = phases.iter().filter_map(|one| one["written_bytes"].as_u64()).sum();
            assert_eq!(sum, written, "{program}");
        }
    }
}
