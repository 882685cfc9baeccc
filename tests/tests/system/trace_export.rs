//! `forebay trace export`: what it writes is opened by the programs that it is for: pandas, PyDarshan, Perfetto's trace
//! processor, FTIO, fio.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::binary;
use forebay_tests::procs;
use forebay_trace_format::{Op, Who, Writer};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Python with what opens exported traces.
fn python() -> PathBuf {
    let named = std::env::var_os("FOREBAY_TRACE_PYTHON").map(PathBuf::from);
    let python =
        named.unwrap_or_else(|| binary().parent().unwrap().join("../trace-venv/bin/python"));
    let hint = "scripts/trace-venv target/trace-venv makes it";
    assert!(python.exists(), "no {}: {hint}", python.display());
    python
}

struct Rig {
    base: tempfile::TempDir,
}

impl Rig {
    /// A directory with the trace `t` of two tasks: by position, by descriptor, streams and a shared file.
    fn traced() -> Rig {
        let base = tempfile::Builder::new().prefix("forebay-export-").tempdir_in("/tmp").unwrap();
        let rig = Rig { base };
        let program = rig.path("program.py");
        std::fs::write(&program, PROGRAM).unwrap();
        std::fs::create_dir(rig.path("work")).unwrap();
        for rank in ["0", "1"] {
            let mut command = Command::new(binary());
            // What buffers of other tests do meanwhile is not to be in it.
            command
                .args(["trace", "-q", "--no-buffers", "--append", "-o"])
                .arg(rig.path("t"))
                .arg("--");
            command.args(["/usr/bin/python3", "-I", "-S"]).arg(&program).arg(rig.path("work"));
            procs::run(command.env("PMIX_RANK", rank).env("PMIX_SIZE", "2"));
        }
        rig
    }

    fn path(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }

    fn export(&self, format: &str, to: &str) -> Value {
        let mut command = Command::new(binary());
        command.args(["trace", "export", "--json", "--to", format, "-o"]).arg(self.path(to));
        let output = command.arg(self.path("t")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

const PROGRAM: &str = "
import os, sys
place, rank = sys.argv[1], int(os.environ['PMIX_RANK'])
own = os.open(f'{place}/own.{rank}', os.O_RDWR | os.O_CREAT)
for at in range(40): os.pwrite(own, b'x' * 10000, at * 16384)
os.fsync(own)
for at in range(20): os.pread(own, 4096, at * 16384)
os.lseek(own, 0, os.SEEK_SET)
while os.read(own, 65536): pass
os.close(own)
shared = os.open(f'{place}/shared', os.O_RDWR | os.O_CREAT)
for at in range(30): os.pwrite(shared, b'y' * 47008, (at * 2 + rank) * 47008)
os.close(shared)
os.stat(f'{place}/shared')
";

#[test]
fn exports_are_opened_by_pandas_pydarshan_and_perfetto_and_agree() {
    let rig = Rig::traced();
    let table = rig.export("parquet", "t.parquet");
    let log = rig.export("darshan", "t.darshan");
    let events = rig.export("chrome", "t.json.gz");
    rig.export("ior-csv", "t.ior-csv");
    let mut all = Command::new(binary());
    all.args(["trace", "export", "--all-files", "--to", "parquet", "-o"]);
    procs::run(all.arg(rig.path("all.parquet")).arg(rig.path("t")));
    for written in [&table, &log, &events] {
        assert_eq!(written["exported_calls"], table["exported_calls"], "{written}");
        assert_eq!(written["problems"], Value::Array(Vec::new()));
    }
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/exports.py");
    let mut command = Command::new(python());
    // The package reads traces without its library.
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python");
    command
        .env("PYTHONPATH", package)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env_remove("FOREBAY_LIB");
    let said = procs::run(command.arg(program).arg(rig.base.path()));
    for part in
        ["python: ", "parquet: ", "darshan: 140 writes", "chrome: ", "perfetto: ", "ior-csv: "]
    {
        assert!(said.contains(part), "{said}");
    }
}

/// Two ranks that write for a second, every 12 s: FTIO finds the period, and so does our own report.
#[test]
fn ftio_finds_the_period_of_an_exported_trace() {
    const S: u64 = 1_000_000_000;
    const PERIOD_S: u64 = 12;
    let place = tempfile::Builder::new().prefix("forebay-ftio-").tempdir_in("/tmp").unwrap();
    let trace = place.path().join("t");
    std::fs::create_dir(&trace).unwrap();
    for rank in 0..2 {
        let who = Who {
            host: "node1".into(),
            pid: 1_000 + rank as u32,
            rank,
            ranks: 2,
            exe: "/home/me/app".into(),
        };
        let mut writer = Writer::new(&who, 1_700_000_000 * S);
        writer.name(1, 0, format!("/pfs/out.{rank}").as_bytes());
        writer.regular(1, 8, 9 + rank as u64);
        for burst in 0..40 {
            for at in 0..20 {
                let (start, took) = (S + burst * PERIOD_S * S + at * S / 20, S / 20);
                let (offset, bytes) = ((burst * 20 + at) << 20, 1 << 20);
                writer.call(Op::Pwrite, 1, offset, bytes, bytes as i64, start, took);
            }
        }
        std::fs::write(trace.join(format!("n.{rank}.1.fbt")), writer.finish()).unwrap();
    }
    let exported = place.path().join("t.ftio.json");
    let mut export = Command::new(binary());
    export.args(["trace", "export", "--to", "ftio", "-o"]).arg(&exported).arg(&trace);
    procs::run(&mut export);
    let ftio = python().with_file_name("ftio");
    let mut ftio = Command::new(ftio);
    // Its parser takes files only before options that have values.
    ftio.arg(&exported).args(["-m", "write_sync", "-e", "no"]).current_dir(place.path());
    // Its pictures are not asked for, and its libraries keep their caches here.
    ftio.env("HOME", place.path()).env("MPLBACKEND", "agg").env("NUMBA_CACHE_DIR", place.path());
    let said = procs::run(&mut ftio);
    // "Frequency: 8.333e-02 Hz-> 12.0000 s"
    let line = said.lines().find(|line| line.starts_with("Frequency: ")).expect(&said);
    let found: f64 = line.split("-> ").nth(1).unwrap().trim_end_matches(" s").parse().unwrap();
    assert!((found / PERIOD_S as f64 - 1.0).abs() < 0.03, "{said}");
    let mut report = Command::new(binary());
    let own: Value =
        serde_json::from_str(&procs::run(report.args(["report", "--json"]).arg(&trace))).unwrap();
    let own = own["period"]["period_s"].as_f64().expect("a period");
    assert!((own / found - 1.0).abs() < 0.03, "{own} s, FTIO: {found} s");
}

#[test]
fn fio_replays_an_export_and_leaves_files_of_the_same_sizes() {
    let rig = Rig::traced();
    rig.export("fio", "logs");
    let (replay, logs) = (rig.path("replay"), rig.path("logs"));
    std::fs::create_dir(&replay).unwrap();
    procs::run(Command::new("sh").arg(logs.join("prepare.sh")).current_dir(&replay));
    let mut fio = Command::new("fio");
    fio.arg("--output-format=json").arg(logs.join("replay.fio"));
    let said = procs::run(fio.env("LOGS", &logs).current_dir(&replay));
    let begin = said.find('{').unwrap();
    let found: Value = serde_json::from_str(&said[begin..]).unwrap();
    let sum = |key: &str| -> u64 {
        let jobs = found["jobs"].as_array().unwrap().iter();
        jobs.map(|job| job[key]["io_bytes"].as_u64().unwrap()).sum()
    };
    let errors = |job: &Value| job["error"].as_u64().unwrap();
    assert_eq!(found["jobs"].as_array().unwrap().iter().map(errors).sum::<u64>(), 0, "{said}");
    // Each rank: 40 times 10,000 and 30 times 47,008 bytes, as the program wrote them.
    assert_eq!(sum("write"), 2 * (40 * 10_000 + 30 * 47_008));
    // 20 times 4,096, then the whole file to the end of its last write; and the program's own text.
    let own = 39 * 16_384 + 10_000;
    assert!(sum("read") >= 2 * (20 * 4_096 + own), "{}", sum("read"));
    let names = std::fs::read_to_string(logs.join("files.csv")).unwrap();
    for (file, bytes) in [("own.0", own), ("own.1", own), ("shared", 60 * 47_008)] {
        let path = rig.path("work").join(file);
        let line = names.lines().find(|line| line.contains(&*path.to_string_lossy())).unwrap();
        let name = line.split(',').next().unwrap();
        assert_eq!(std::fs::metadata(replay.join(name)).unwrap().len(), bytes, "{line}");
    }
}

#[test]
fn a_workload_of_a_trace_moves_the_same_bytes() {
    let rig = Rig::traced();
    let written = rig.export("workload", "load");
    assert_eq!(written["files"], 2);
    assert!(written.to_string().contains("those that failed or moved no bytes, "), "{written}");
    // Written only if the reader of workloads took it.
    let text = std::fs::read_to_string(rig.path("load").join("workload.toml")).unwrap();
    assert!(text.contains("processes = 2\n") && text.contains("operations = \"operations.bin\""));
    // docs/WORKLOAD.md: magic, processes at 16, and at 48 records, bytes read and written.
    let bytes = std::fs::read(rig.path("load").join("operations.bin")).unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(&bytes[..8], b"FBWORK\r\n");
    assert_eq!(word(64), 2 * (40 * 10_000 + 30 * 47_008));
    let own = 39 * 16_384 + 10_000;
    assert!(word(56) >= 2 * (20 * 4_096 + own), "{}", word(56));
    // Names are relative to what the files have in common, and the program's text was there before.
    let names = String::from_utf8_lossy(&bytes).into_owned();
    assert!(names.contains("work/own.0") && names.contains("program.py"), "names are missing");
    assert!(!names.contains("tmp/forebay-export"), "a path is not relative");
}

#[test]
fn an_output_that_exists_is_not_replaced_and_a_trace_in_part_is_told() {
    let rig = Rig::traced();
    std::fs::write(rig.path("mine.json"), "mine").unwrap();
    let mut command = Command::new(binary());
    command.args(["trace", "export", "--to", "ftio", "-o"]).arg(rig.path("mine.json"));
    let output = command.arg(rig.path("t")).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("mine.json exists already"), "{said}");
    assert_eq!(std::fs::read_to_string(rig.path("mine.json")).unwrap(), "mine");
    // One of its files is cut in the middle of a block, one is not a trace.
    let traces = std::fs::read_dir(rig.path("t")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        traces.filter(|path| path.extension().is_some_and(|end| end == "fbt")).collect();
    files.sort();
    let cut = std::fs::OpenOptions::new().write(true).open(&files[0]).unwrap();
    cut.set_len((32 << 10) + 3_200).unwrap();
    std::fs::write(&files[1], "#!/bin/sh\n").unwrap();
    let written = rig.export("ftio", "t.ftio.json");
    let problems = written["problems"].to_string();
    assert!(problems.contains("is not a trace") && problems.contains("block 1"), "{problems}");
    let text = std::fs::read_to_string(rig.path("t.ftio.json")).unwrap();
    let found: Value = serde_json::from_str(&text).unwrap();
    for kind in ["read_sync", "write_sync"] {
        let band = &found[kind]["bandwidth"];
        let (rates, times) = (band["b_overlap_avr"].as_array(), band["t_overlap"].as_array());
        assert_eq!(rates.unwrap().len(), times.unwrap().len());
    }
}
