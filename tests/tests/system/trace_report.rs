//! `forebay report`: a page of HTML, `--watch` while a run goes on, and traces that are large. What reports say is tested in
//! crates/trace-report, pages in a browser there too.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::binary;
use forebay_tests::procs;
use forebay_trace_format::{Op, Who, Writer};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes 100 records, waits until the file `go` is there, and writes 100 more.
const PROGRAM: &str = "
import os, sys, time
place = sys.argv[1]
out = os.open(place + '/out', os.O_RDWR | os.O_CREAT)
for at in range(100): os.pwrite(out, b'x' * 5000, at * 5000)
while not os.access(place + '/go', os.F_OK): time.sleep(0.05)
for at in range(100): os.pwrite(out, b'x' * 5000, at * 5000)
";

fn traced(place: &Path, trace: &Path) -> Command {
    let mut command = Command::new(binary());
    command.args(["trace", "-q", "--no-buffers", "-o"]).arg(trace).arg("--");
    command.args(["/usr/bin/python3", "-I", "-S", "-c", PROGRAM]).arg(place);
    command.stdin(Stdio::null());
    command
}

#[test]
fn watch_waits_for_a_run_shows_it_as_it_goes_on_and_ends_with_it() {
    let base = tempfile::Builder::new().prefix("forebay-report-").tempdir_in("/tmp").unwrap();
    let trace = base.path().join("t");
    // Begun before the trace is there.
    let mut watch = Command::new(binary());
    watch.args(["report", "--watch", "--interval", "0.1", "--json"]).arg(&trace);
    let mut watch = watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut errors = BufReader::new(watch.stderr.take().unwrap());
    errors.read_line(&mut said).unwrap();
    let wanted = format!("waiting for {}, which is not there yet", trace.display());
    assert!(said.contains(&wanted), "{said}");
    // An empty directory is how a run begins.
    std::fs::create_dir(&trace).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(watch.try_wait().unwrap().is_none(), "it ended before the run began");
    let mut run = traced(base.path(), &trace).spawn().unwrap();
    let lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut seen = Vec::new();
    for line in lines {
        let found: Value = serde_json::from_str(&line.unwrap()).unwrap();
        seen.push(found["totals"]["writes"].as_u64().unwrap());
        if seen.last() == Some(&100) && !base.path().join("go").exists() {
            std::fs::write(base.path().join("go"), "").unwrap();
        }
    }
    assert!(run.wait().unwrap().success() && watch.wait().unwrap().success());
    // It grows, has the first half before the second began, and at last has all.
    assert!(seen.windows(2).all(|pair| pair[0] <= pair[1]), "{seen:?}");
    assert!(seen.contains(&100) && seen.last() == Some(&200), "{seen:?}");
    let mut rest = String::new();
    errors.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "it is told once");
}

/// What is there and is no trace will not become one.
#[test]
fn watch_refuses_what_is_there_and_no_trace() {
    let base = tempfile::Builder::new().prefix("forebay-report-").tempdir_in("/tmp").unwrap();
    let (file, empty) = (base.path().join("notes.txt"), base.path().join("empty"));
    std::fs::write(&file, "no trace").unwrap();
    std::fs::create_dir(&empty).unwrap();
    for (place, wanted) in
        [(file.clone(), "no trace in"), (empty, "no trace in"), (file.join("below"), "cannot read")]
    {
        let mut command = Command::new(binary());
        command.args(["report", "--watch", "--interval", "0.1"]).arg(&place);
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(wanted) && !said.contains("waiting"), "{said}");
    }
}

#[test]
fn a_page_is_written_of_one_run_and_of_two() {
    let base = tempfile::Builder::new().prefix("forebay-report-").tempdir_in("/tmp").unwrap();
    std::fs::write(base.path().join("go"), "").unwrap();
    for name in ["before", "after"] {
        procs::run(&mut traced(base.path(), &base.path().join(name)));
    }
    let page = base.path().join("page.html");
    let mut command = Command::new(binary());
    command.args(["report", "--html"]).arg(&page).arg(base.path().join("before"));
    command.arg("--against").arg(base.path().join("after"));
    let said = procs::run(&mut command);
    assert!(said.contains("page.html: open it in a browser"), "{said}");
    let text = std::fs::read_to_string(&page).unwrap();
    for part in ["I/O of before and after", "What stands out: after", "id=\"data\"", "/out"] {
        assert!(text.contains(part), "{part}");
    }
    // Where it cannot be written is told.
    let mut command = Command::new(binary());
    command.args(["report", "--html", "/proc/no.html"]).arg(base.path().join("before"));
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("cannot write /proc/no.html"), "{said}");
}

/// What a report took.
struct Took {
    report: Value,
    /// Largest resident memory, in bytes.
    memory_bytes: u64,
    /// Processor time.
    cpu_s: f64,
}

/// `forebay report --json` of a trace, and what it took.
fn measured(trace: &Path, to: &Path) -> Took {
    let out = std::fs::File::create(to).unwrap();
    let mut command = Command::new(binary());
    command.args(["report", "--json"]).arg(trace).stdout(out);
    #[allow(clippy::zombie_processes, reason = "wait4 below waits for it")]
    let child = command.spawn().unwrap();
    let mut status = 0;
    // SAFETY: a child of this process, which nobody else waits for; zeros are a valid value to be filled.
    let used = unsafe {
        let mut used: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::wait4(child.id() as i32, &mut status, 0, &mut used), child.id() as i32);
        used
    };
    assert_eq!(status, 0);
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Took {
        report: serde_json::from_slice(&std::fs::read(to).unwrap()).unwrap(),
        memory_bytes: used.ru_maxrss as u64 * 1024,
        cpu_s: seconds(used.ru_utime) + seconds(used.ru_stime),
    }
}

/// A trace of four ranks with so many calls in all, written in pieces.
fn planted(trace: &Path, calls: u64) {
    std::fs::create_dir(trace).unwrap();
    for rank in 0..4 {
        let who = Who {
            host: "node1".into(),
            pid: 1_000 + rank,
            rank: rank as i32,
            ranks: 4,
            exe: "/home/me/app".into(),
        };
        let mut writer = Writer::new(&who, 1_700_000_000_000_000_000);
        writer.name(1, 0, format!("/pfs/out.{rank}").as_bytes());
        writer.regular(1, 8, 9 + u64::from(rank));
        let file = std::fs::File::create(trace.join(format!("n.{rank}.1.fbt"))).unwrap();
        let (mut now, mut random) = (1_000_000_000, u64::from(rank) + 1);
        for at in 0..calls / 4 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let took = 10_000 + (random >> 50);
            writer.call(Op::Pwrite, 1, at * 4096, 4096, 4096, now, took);
            now += took + 1_000;
            if at % 100_000 == 0 {
                writer.flush_to(&file).unwrap();
            }
        }
        writer.flush_to(&file).unwrap();
    }
}

/// Ten times as many calls take ten times the time and no more memory, so a hundred million take as much memory.
#[test]
fn ten_million_calls_are_reported_in_the_memory_of_a_million() {
    let base = tempfile::Builder::new().prefix("forebay-report-").tempdir_in("/tmp").unwrap();
    let of = |calls: u64| {
        let trace = base.path().join(format!("t{calls}"));
        planted(&trace, calls);
        let took = measured(&trace, &base.path().join("report.json"));
        std::fs::remove_dir_all(&trace).unwrap();
        assert_eq!(took.report["events"], calls);
        assert_eq!(took.report["totals"]["written_bytes"], calls * 4096);
        eprintln!("{calls} calls: {:.2} s, {} MiB", took.cpu_s, took.memory_bytes >> 20);
        took
    };
    let (small, large) = (of(1_000_000), of(10_000_000));
    assert!(
        large.memory_bytes < small.memory_bytes + (16 << 20),
        "{} and {} bytes",
        small.memory_bytes,
        large.memory_bytes
    );
    // Other work on the machine makes processor time longer, too.
    assert!(large.cpu_s < 40.0 * small.cpu_s.max(0.1), "{} and {} s", small.cpu_s, large.cpu_s);
}

/// A million files, each opened, written, closed: all are counted, the storm is named, and memory is that of the files' names.
#[test]
fn a_million_small_files_in_one_trace_are_reported() {
    const FILES: u32 = 1_000_000;
    let base = tempfile::Builder::new().prefix("forebay-report-").tempdir_in("/tmp").unwrap();
    let trace = base.path().join("t");
    std::fs::create_dir(&trace).unwrap();
    let who =
        Who { host: "node1".into(), pid: 1_000, rank: 0, ranks: 1, exe: "/home/me/app".into() };
    let mut writer = Writer::new(&who, 1_700_000_000_000_000_000);
    let file = std::fs::File::create(trace.join("n.0.1.fbt")).unwrap();
    let mut now = 1_000_000_000;
    for number in 1..=FILES {
        writer.name(
            number,
            0,
            format!("/pfs/run/dir{:03}/part.{number:07}", number % 997).as_bytes(),
        );
        writer.regular(number, 8, number.into());
        for (op, bytes, took) in
            [(Op::Open, 0, 30_000), (Op::Write, 700, 5_000), (Op::Close, 0, 10_000)]
        {
            let offset = if bytes > 0 { 0 } else { forebay_trace_format::layout::NO_OFFSET };
            writer.call(op, number, offset, bytes, bytes as i64, now, took);
            now += took + 100;
        }
        if number % 50_000 == 0 {
            writer.flush_to(&file).unwrap();
        }
    }
    writer.flush_to(&file).unwrap();
    let took = measured(&trace, &base.path().join("report.json"));
    eprintln!("{FILES} files: {:.2} s, {} MiB", took.cpu_s, took.memory_bytes >> 20);
    assert_eq!(took.report["file_count"], FILES);
    assert_eq!(took.report["events"], 3 * FILES);
    assert!(took.report["files"].as_array().unwrap().len() < 1_000, "a list of files has a bound");
    let findings = took.report["findings"].to_string();
    assert!(findings.contains("\"metadata-storm\""), "{findings}");
    // Some hundred bytes for each file.
    assert!(took.memory_bytes < u64::from(FILES) * 512 + (64 << 20), "{} bytes", took.memory_bytes);
}

/// A program that makes many small files, recorded: each call is there, and nothing is lost.
#[test]
fn many_small_files_are_recorded_and_reported() {
    const FILES: u64 = 50_000;
    const MAKES: &str = "
import os, sys
place = sys.argv[1]
for at in range(50): os.mkdir(f'{place}/{at}')
for at in range(50000):
    out = os.open(f'{place}/{at % 50}/part.{at}', os.O_WRONLY | os.O_CREAT)
    os.write(out, b'x' * 100)
    os.close(out)
";
    let base = tempfile::Builder::new().prefix("forebay-many-").tempdir_in("/dev/shm").unwrap();
    let (trace, work) = (base.path().join("t"), base.path().join("work"));
    std::fs::create_dir(&work).unwrap();
    let mut command = Command::new(binary());
    command.args(["trace", "-q", "--no-buffers", "-o"]).arg(&trace).arg("--");
    command.args(["/usr/bin/python3", "-I", "-S", "-c", MAKES]).arg(&work);
    procs::run(&mut command);
    let took = measured(&trace, &base.path().join("report.json"));
    assert_eq!(
        (&took.report["lost"], &took.report["problems"]),
        (&0.into(), &Value::Array(vec![]))
    );
    assert!(took.report["file_count"].as_u64().unwrap() >= FILES, "{}", took.report["file_count"]);
    assert!(
        took.report["totals"]["writes"].as_u64().unwrap() >= FILES,
        "{}",
        took.report["totals"]
    );
}
