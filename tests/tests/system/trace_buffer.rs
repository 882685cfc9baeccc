//! What a buffer did, in the trace of the program that used it: hits, misses, fills, drains and waits, on the clock of the
//! program's calls; in the report, in exports and for Python.
//!
//! Buffers of the tests beside these are in the traces too: each test looks for its own.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::{self, Buffer, binary};
use forebay_tests::cached::pattern;
use forebay_tests::procs::{run, wait_until_stopped};
use forebay_tests::site::{Kind, Site};
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

forebay_tests::on_both_kinds!(a_trace_has_what_the_cache_did_on_the_clock_of_the_calls);

const MIB: u64 = 1 << 20;

/// Reads a file twice, and writes more than the buffer holds.
const PROGRAM: &str = "
import os, sys
place = sys.argv[1]
for _ in range(2):
    fd = os.open(place + '/in', os.O_RDONLY)
    at = 0
    while piece := os.pread(fd, 1 << 20, at): at += len(piece)
    os.close(fd)
out = os.open(place + '/out', os.O_WRONLY | os.O_CREAT)
for at in range(24): os.pwrite(out, os.urandom(4 << 20), at << 22)
os.close(out)
";

fn traced(trace: &Path, command: &[&str]) {
    let mut trace_it = Command::new(binary());
    trace_it.args(["trace", "-q", "-o"]).arg(trace).arg("--").args(command);
    run(trace_it.stdin(Stdio::null()));
}

fn json_of(args: &[&str], trace: &Path) -> Value {
    serde_json::from_str(&run(Command::new(binary()).args(args).arg(trace))).unwrap()
}

fn a_trace_has_what_the_cache_did_on_the_clock_of_the_calls(kind: Kind) {
    let site = Site::mounted_as(kind, 48 * MIB, &["--writes", "served", "--drain-rate", "60MB"]);
    std::fs::write(site.pfs("in"), pattern(1, 16 << 20)).unwrap();
    let trace = site.base.join("trace");
    let mnt = site.base.join("mnt");
    traced(&trace, &["/usr/bin/python3", "-I", "-S", "-c", PROGRAM, mnt.to_str().unwrap()]);
    let report = json_of(&["report", "--json"], &trace);
    // The program is one process; the buffer is none.
    assert_eq!((&report["processes"], &report["problems"]), (&1.into(), &Value::Array(vec![])));
    let told = report["buffers"].as_array().unwrap();
    let mount = mnt.display().to_string();
    let mine = |told: &&Value| told["name"].as_str().unwrap().starts_with(&mount);
    let filled = |told: &&Value| told["fills"]["count"].as_u64() > Some(0);
    let cache = told.iter().filter(mine).find(filled).unwrap();
    let number = |kind: &str, what: &str| cache[kind][what].as_u64().unwrap();
    assert_eq!(number("fills", "bytes"), 16 * MIB, "{cache}");
    // What was fetched ahead is a hit of the first pass; all of the second is.
    let (hits, misses) = (number("hits", "count"), number("misses", "count"));
    assert!(misses >= 1 && hits >= 16 && hits + misses >= 32, "{hits} hits, {misses} misses");
    assert!(number("misses", "bytes") <= 16 * MIB && number("absorbed", "bytes") == 96 * MIB);
    // More was written than the buffer holds, so something drained, and the writer waited for that.
    assert!(number("drains", "bytes") > 0 && number("drains", "failed") == 0, "{cache}");
    let stalls = cache["stalls"].as_array().unwrap();
    let room = stalls.iter().find(|stall| stall["id"] == "room").expect("it waited for room");
    let (waited_s, writes_s) =
        (room["time_s"].as_f64().unwrap(), report["totals"]["write_s"].as_f64().unwrap());
    assert!(waited_s > 0.1 && waited_s <= writes_s, "{waited_s} of {writes_s}");
    let found = report["findings"].as_array().unwrap();
    assert!(found.iter().any(|found| found["id"] == "buffer-stall"), "{found:?}");
    let named =
        |file: &Value| file["path"] == format!("{mount}/out") && file["stalls"].as_u64() > Some(0);
    assert!(cache["files"].as_array().unwrap().iter().any(named), "{cache}");
    let said = run(Command::new(binary()).arg("report").arg(&trace));
    for part in ["BUFFER ", "miss", "drain", "waits for room: flash is full"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    each_wait_lies_within_a_write(&trace, &mount, &site.base.join("out.json"));
    python_reads_it(&trace, &mount);
    site.must_be_durable();
}

/// Perfetto shows both on one axis; there each wait for room must lie within a write of the program, as it made it.
fn each_wait_lies_within_a_write(trace: &Path, mount: &str, out: &Path) {
    let mut export = Command::new(binary());
    run(export.args(["trace", "export", "--to", "chrome", "-o"]).arg(out).arg(trace));
    let exported: Value = serde_json::from_slice(&std::fs::read(out).unwrap()).unwrap();
    let events = exported["traceEvents"].as_array().unwrap();
    let moment = |event: &Value, key: &str| event[key].as_f64().unwrap();
    let writes: Vec<(f64, f64)> = events
        .iter()
        .filter(|event| event["ph"] == "X" && event["cat"] == "write")
        .map(|event| (moment(event, "ts"), moment(event, "ts") + moment(event, "dur")))
        .collect();
    let prefix = format!("buffer {mount}");
    let is_this_buffer = |event: &&Value| {
        let name = event["args"]["name"].as_str();
        event["name"] == "process_name" && name.is_some_and(|name| name.starts_with(&prefix))
    };
    let buffers: Vec<&Value> = events.iter().filter(is_this_buffer).map(|e| &e["pid"]).collect();
    let mut begins = HashMap::new();
    let mut waits = 0;
    let stalls = events.iter().filter(|event| event["name"] == "buffer stall");
    for event in stalls.filter(|event| buffers.contains(&&event["pid"])) {
        let id = event["id"].as_str().unwrap();
        if event["ph"] == "b" {
            begins.insert(id, event);
            continue;
        }
        let begin = begins[id];
        if begin["args"]["result"] != 1 {
            continue;
        }
        // The rate of the processor's counter is known to some 10 us in a second.
        let (from, to) = (moment(begin, "ts") + 500.0, moment(event, "ts") - 500.0);
        let within = |write: &&(f64, f64)| write.0 <= from.max(to) && to <= write.1;
        assert!(writes.iter().any(|write| within(&write)), "{from} to {to}: {writes:?}");
        waits += 1;
    }
    assert!(waits > 0 && writes.len() == 24, "{waits} {}", writes.len());
}

fn python_reads_it(trace: &Path, mount: &str) {
    let script = "
import sys, forebay.trace
trace = forebay.trace.read(sys.argv[1])
assert len(trace.processes) == 1 and not trace.problems, trace.problems
assert not (set(trace.arrays['call'].tolist()) & set(range(120, 128)))
mine = [buffer for buffer in trace.buffers if buffer.name.startswith(sys.argv[2])]
told = [buffer for buffer in mine if (buffer.arrays['call'] == 122).any()]
assert len(told) == 1, trace.buffers
buffer = told[0]
fills = buffer.arrays['result'][buffer.arrays['call'] == 122].sum()
assert fills == 16 << 20, fills
assert sys.argv[2] + '/in' in buffer.files, buffer.files
";
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python");
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", script]).arg(trace).arg(mount).env("PYTHONPATH", package);
    run(&mut python);
}

/// Of a scratch buffer the kernel reads and writes files itself: that it does is told, and what is staged meanwhile.
#[test]
fn a_trace_has_what_a_scratch_buffer_did() {
    buffer::run(buffer::Kind::Tmpfs, |buffer: &Buffer| {
        let pfs = buffer.outside().join("pfs");
        std::fs::create_dir_all(&pfs).unwrap();
        std::fs::write(pfs.join("in"), pattern(1, 3 << 20)).unwrap();
        let trace = buffer.outside().join("trace");
        let script = format!(
            "set -e; {forebay} stage in {pfs}/in {root}/in; cat {root}/in > {root}/out; {forebay} stage out {root}/out {pfs}/out",
            forebay = binary().display(),
            pfs = pfs.display(),
            root = buffer.root().display()
        );
        traced(&trace, &["/bin/sh", "-c", &script]);
        let report = json_of(&["report", "--json"], &trace);
        // Buffers of tests beside this one may be there too.
        let mine = Value::from(buffer.root().display().to_string());
        let buffers = report["buffers"].as_array().unwrap();
        let told = buffers.iter().find(|told| told["name"] == mine).unwrap();
        let bytes = |kind: &str| told[kind]["bytes"].as_u64().unwrap();
        assert_eq!((bytes("fills"), bytes("drains")), (3 * MIB, 3 * MIB), "{told}");
        assert!(told["kernel_opens"].as_u64() >= Some(2), "{told}");
        // Who does not want it says so, and nothing of it is there.
        let other = buffer.outside().join("other");
        let mut quiet = Command::new(binary());
        quiet.args(["trace", "-q", "--no-buffers", "-o"]).arg(&other);
        run(quiet.args(["--", "/bin/cat"]).arg(buffer.root().join("out")).stdout(Stdio::null()));
        assert_eq!(json_of(&["report", "--json"], &other)["buffers"], Value::Array(vec![]));
    });
}

/// A buffer that cannot be asked is told of if the command used it; what happens to the others of a node is not.
#[test]
fn a_trace_tells_what_is_missing_of_the_buffers_that_its_command_used() {
    buffer::run(buffer::Kind::Tmpfs, |buffer: &Buffer| {
        buffer.kill();
        let told = |trace: &str, looked_at: &Path| {
            let mut trace_it = Command::new(binary());
            trace_it.args(["trace", "-q", "-o"]).arg(buffer.outside().join(trace));
            let output = trace_it.args(["--", "/bin/ls"]).arg(looked_at).output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            said.lines().filter(|line| line.starts_with("forebay trace: ")).count()
        };
        assert_eq!(told("one", &buffer.root().join("f")), 1);
        assert_eq!(told("other", &buffer.outside()), 0);
        buffer.start();
    });
}

/// Goes on with the processes that it stopped, however the test ends.
struct Stopped(Vec<i32>);

impl Stopped {
    fn stop(&mut self, pid: i32) {
        // SAFETY: plain numbers: our own daemon.
        unsafe { libc::kill(pid, libc::SIGSTOP) };
        self.0.push(pid);
        wait_until_stopped(pid);
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for pid in &self.0 {
            // SAFETY: as above.
            unsafe { libc::kill(*pid, libc::SIGCONT) };
        }
    }
}

/// However many there are: half a second at the begin, half a second at the end. One after the other, each would take 2 s.
#[test]
fn mounts_that_do_not_answer_delay_a_traced_command_by_a_second_together() {
    const LONGEST: Duration = Duration::from_millis(4_500);
    let buffers: Vec<Buffer> =
        (0..4).map(|_| Buffer::mount(buffer::Kind::Tmpfs, 64 << 20)).collect();
    let pids: Vec<i32> = buffers.iter().map(Buffer::pid).collect();
    let mut stopped = Stopped(Vec::new());
    pids[1..].iter().for_each(|pid| stopped.stop(*pid));
    // The command uses the one that answers, and stops it: what it told until then is there, and that more is missing is said.
    let used = buffers[0].root();
    std::fs::write(used.join("f"), b"there").unwrap();
    let trace = buffers[0].outside().join("trace");
    let script = format!("cat {}; kill -STOP {}; sleep 1", used.join("f").display(), pids[0]);
    stopped.0.push(pids[0]);
    let mut trace_it = Command::new(binary());
    trace_it.args(["trace", "-q", "-o"]).arg(&trace).args(["--", "/bin/sh", "-c", &script]);
    let begun = Instant::now();
    let output = trace_it.stdin(Stdio::null()).output().unwrap();
    let took = begun.elapsed();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && output.stdout == b"there", "{said}");
    assert!(took < LONGEST, "{took:?}: {said}");
    let told: Vec<&str> = said.lines().collect();
    assert_eq!(told.len(), 1, "{said}");
    assert!(told[0].contains(&used.display().to_string()), "{said}");
    assert!(told[0].contains("is recorded in part"), "{said}");
    assert!(told[0].contains(&format!("its process {} is stopped", pids[0])), "{said}");
}
