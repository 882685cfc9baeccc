//! `forebay bench run` and the patterns that are workloads, on a directory of a disk.

use crate::common::{program, text};
use forebay_workload::document::Fault;
use forebay_workload::language::Workload;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

fn disk() -> TempDir {
    tempfile::Builder::new().prefix("forebay-bench-test-").tempdir_in("/tmp").unwrap()
}

fn bench(dir: &Path, args: &str) -> Output {
    let mut command = Command::new(program());
    command.arg("bench").args(args.split_whitespace()).current_dir(dir);
    command.output().unwrap()
}

#[track_caller]
fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let value = serde_json::from_slice(&output.stdout).unwrap();
    described(&value);
    value
}

/// docs/BENCH.md describes each key of what was printed.
#[track_caller]
fn described(value: &Value) {
    let mut waiting = vec![value];
    while let Some(one) = waiting.pop() {
        match one {
            Value::Object(object) => {
                for (key, value) in object {
                    let named = [format!("`{key}`"), format!("`{key}[]`")];
                    assert!(named.iter().any(|name| DESCRIPTION.contains(name)), "{key}: {one}");
                    waiting.push(value);
                }
            }
            Value::Array(values) => waiting.extend(values),
            _ => {}
        }
    }
}

const DESCRIPTION: &str = include_str!("../../../../docs/BENCH.md");

/// All files below a directory, with their sizes, by path.
fn files(dir: &Path) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![dir.to_path_buf()];
    while let Some(one) = waiting.pop() {
        for entry in fs::read_dir(&one).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => waiting.push(entry.path()),
                false => {
                    found.insert(entry.path(), entry.metadata().unwrap().len());
                }
            }
        }
    }
    found
}

/// The directory that a run with --keep left.
fn kept(dir: &Path) -> PathBuf {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let is_ours = |path: &PathBuf| path.to_string_lossy().contains("forebay-bench.");
    names.into_iter().find(is_ours).expect("a kept directory")
}

const TWO_JOBS: &str = r#"
workload = 1
seed = 5
[[file]]
name = "shared"
path = "out/shared"
[[file]]
name = "each"
path = "each.{repeat}.{process}"
[[job]]
name = "write"
processes = 3
[[job.phase]]
name = "dump"
repeat = 2
steps = [
  { write = "each", block = 10000, transfer = 3000, sync = "end" },
  { open = "shared", mode = "write" },
  { write = "shared", block = 47008, transfer = 4096, segments = 2, order = "scattered", turns = 2 },
  { barrier = true, only = "0-2/2" },
  { close = "shared" },
]
[[job.phase]]
name = "check"
steps = [{ read = "shared", block = 94016, segments = 1, transfer = 47008, of = { shift = 1 }, verify = true }]
[[job]]
name = "read"
processes = 2
after = ["write"]
start = "20ms"
[[job.phase]]
name = "all"
steps = [{ read = "shared", block = 141024, transfer = 100000, order = "reverse", verify = true }]
"#;

#[test]
fn run_moves_what_the_workload_says_and_checks_it() {
    for how in ["", "--threads"] {
        let dir = disk();
        fs::write(dir.path().join("w.toml"), TWO_JOBS).unwrap();
        let value = json(&bench(dir.path(), &format!("run w.toml . --json --keep {how}")));
        let phases = value["phases"].as_array().unwrap();
        let row = |at: usize, key: &str| phases[at][key].clone();
        let names: Vec<_> = (0..4).map(|at| row(at, "phase")).collect();
        assert_eq!(names, ["dump", "dump", "check", "all"]);
        for at in [0, 1] {
            assert_eq!(row(at, "written_bytes"), 3 * (10_000 + 2 * 47_008));
            // 4 and 2 * 12 transfers; an fsync; 2 opens and closes.
            let calls = |class: &str| phases[at]["operations"][class]["calls"].clone();
            let all = ["write", "sync", "open", "close"].map(calls);
            assert_eq!(Value::from(all.to_vec()), serde_json::json!([84, 3, 6, 6]), "{how}");
        }
        assert_eq!(
            (row(2, "read_bytes"), row(3, "read_bytes")),
            ((3 * 94_016).into(), 282_048.into())
        );
        assert_eq!(value["differences"], 0);
        let ends = |at: usize, key: &str| -> Vec<u64> {
            let ranks = phases[at]["ranks"].as_array().unwrap();
            ranks.iter().map(|rank| rank[key].as_u64().unwrap()).collect()
        };
        let (written, begun) = (ends(2, "end_ns"), ends(3, "begin_ns"));
        let waited = begun.iter().min().unwrap() - written.iter().max().unwrap();
        assert!(waited >= 20_000_000, "the second job began {waited} ns after the first one's end");
        let found = files(&kept(dir.path()));
        let sizes: Vec<u64> = found.values().copied().collect();
        assert_eq!(sizes, [10_000, 10_000, 10_000, 10_000, 10_000, 10_000, 282_048]);
    }
}

#[test]
fn run_finds_bytes_that_are_not_those_that_were_written() {
    let dir = disk();
    let lost = r#"
workload = 1
[[file]]
name = "f"
path = "f"
[[job]]
[[job.phase]]
name = "lose"
steps = [
  { open = "f", mode = "write" },
  { write = "f", block = 20000, transfer = 5000 },
  { truncate = "f", size = 12000 },
  { truncate = "f", size = 20000 },
  { read = "f", block = 20000, transfer = 4000, verify = true },
]
"#;
    fs::write(dir.path().join("w.toml"), lost).unwrap();
    let output = bench(dir.path(), "run w.toml . --json");
    assert_eq!(output.status.code(), Some(1));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["differences"], 2);
    let told = text(&output.stderr);
    assert!(told.contains("/f: the byte at 12") && told.contains("2 transfers"), "{told}");
    assert_eq!(files(dir.path()).len(), 1, "the run removes its files");
}

/// What failed, on which path, why and what to do stand apart, also of what a process of the run failed at.
#[test]
fn failures_come_in_parts() {
    let dir = disk();
    let head = "workload = 1\n[[file]]\nname = \"f\"\npath = \"f\"\nsize = 4096\n";
    let with = |step: &str| format!("{head}[[job]]\n[[job.phase]]\nsteps = [{step}]\n");
    fs::write(dir.path().join("wrong.toml"), with("{ wrtie = \"f\" }")).unwrap();
    fs::write(dir.path().join("missing.toml"), with("{ read = \"f\" }")).unwrap();
    fs::write(dir.path().join("there"), b"x").unwrap();
    let failed = |args: &str| {
        let output = bench(dir.path(), &format!("{args} --json"));
        assert!(!output.status.success(), "{args}");
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        (told["error"].clone(), text(&output.stderr))
    };
    let (error, plain) = failed("run wrong.toml .");
    assert_eq!((&error["what"], &error["path"]), (&"read".into(), &"wrong.toml".into()));
    let why = error["why"].as_str().unwrap();
    assert!(why.starts_with("line 8: job[0].phase[0].steps[0].wrtie: "), "{error}");
    assert!(error["hint"].as_str().unwrap().starts_with("expected "), "{error}");
    assert!(plain.contains("read wrong.toml:8: job[0]"), "{plain}");
    let (error, plain) = failed("run missing.toml .");
    assert_eq!(error["what"], "rank 0: open", "{error}");
    assert!(error["path"].as_str().unwrap().ends_with("/f"), "{error}");
    assert_eq!((&error["why"], &error["errno"]), (&"No such file or directory".into(), &2.into()));
    assert!(plain.contains("rank 0: open ") && !plain.contains("os error"), "{plain}");
    let (error, plain) = failed("ior -w -o there");
    assert_eq!((&error["what"], &error["path"]), (&"write".into(), &"there".into()), "{error}");
    assert_eq!(error["why"], "it is there already");
    assert!(plain.contains("write there: it is there already (--overwrite replaces it"), "{plain}");
    let (error, _) = failed("ior -r -o none");
    assert_eq!((&error["what"], &error["path"]), (&"find".into(), &"none".into()), "{error}");
    let (error, _) = failed("mdtest -n 1 /no/such/place");
    assert_eq!((&error["what"], &error["path"]), (&"find".into(), &"/no/such/place".into()));
    let (error, _) = failed("ior -N 0 -o f");
    assert_eq!(error["what"], "use the command line");
    assert!(error["why"].as_str().unwrap().contains("number of processes"), "{error}");
}

#[test]
fn run_tells_what_is_wrong_and_leaves_nothing_behind() {
    let dir = disk();
    let head = "workload = 1\n[[file]]\nname = \"f\"\npath = \"f\"\nsize = 4096\n";
    let with = |step: &str| format!("{head}[[job]]\n[[job.phase]]\nsteps = [{step}]\n");
    for (workload, code, expected) in [
        (
            with("{ only = \"first\" }"),
            2,
            "w.toml:8: job[0].phase[0].steps[0]: the step does nothing",
        ),
        (
            with("{ wrtie = \"f\" }"),
            2,
            "w.toml:8: job[0].phase[0].steps[0].wrtie: this key is not known here (did you mean write?)",
        ),
        (with("{ read = \"f\" }"), 1, "/f: No such file"),
        (with("{ write = \"f\", block = \"2GiB\", transfer = \"2GiB\" }"), 2, "at most 1073741824"),
        (with("{ unlink = \"f\" }"), 1, "rank 0: unlink"),
    ] {
        fs::write(dir.path().join("w.toml"), workload).unwrap();
        let output = bench(dir.path(), "run w.toml .");
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{told}");
        assert!(told.contains(expected), "{told}\nexpected {expected}");
    }
    // In memory no read is cold, and is not called so.
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let cold =
        with("{ write = \"f\" }") + "[[job.phase]]\ncold = true\nsteps = [{ read = \"f\" }]\n";
    fs::write(memory.path().join("w.toml"), cold).unwrap();
    let output = bench(memory.path(), "run w.toml .");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("in memory"), "{}", text(&output.stderr));
    for dir in [dir.path(), memory.path()] {
        assert_eq!(fs::read_dir(dir).unwrap().count(), 1, "only the workload file is left");
    }
}

#[test]
fn run_makes_reads_cold_and_says_what_was_cached() {
    let dir = disk();
    let workload = r#"
workload = 1
[[file]]
name = "in"
path = "in.{process}"
size = "1MiB"
prepared = true
[[job]]
processes = 2
[[job.phase]]
name = "cold"
cold = true
steps = [{ read = "in", transfer = "64KiB", verify = true }]
[[job.phase]]
name = "warm"
steps = [{ read = "in", transfer = 5000, verify = true }]
"#;
    fs::write(dir.path().join("w.toml"), workload).unwrap();
    let value = json(&bench(dir.path(), "run w.toml . --json"));
    let phases = &value["phases"];
    assert_eq!((&phases[0]["cache"], &phases[1]["cache"]), (&"cold".into(), &"100% cached".into()));
    assert_eq!(phases[0]["cache_before"]["pages"], 512);
    assert_eq!(value["differences"], 0);
}

#[test]
fn run_stops_at_limits_and_wears_out() {
    let dir = disk();
    let workload = r#"
workload = 1
[[file]]
name = "f"
path = "f.{process}"
[[file]]
name = "many"
path = "many.{process}/{item}"
items = 100000000
size = 10
[[job]]
processes = 3
[[job.phase]]
name = "transfers"
steps = [{ write = "f", block = 4096, segments = 100000000, sync = "each", stop_after = "200ms", wear_out = true }]
[[job.phase]]
name = "files"
steps = [{ store = "many", stop_after = "100ms", wear_out = true }]
"#;
    fs::write(dir.path().join("w.toml"), workload).unwrap();
    let value = json(&bench(dir.path(), "run w.toml . --json"));
    for (phase, class) in [(0, 1), (1, 3)] {
        let ranks = value["phases"][phase]["ranks"].as_array().unwrap();
        let calls: Vec<u64> =
            ranks.iter().map(|rank| rank["calls"][class].as_u64().unwrap()).collect();
        assert!(calls[0] > 0 && calls.iter().all(|count| *count == calls[0]), "{calls:?}");
        let at_limit = ranks.iter().map(|rank| rank["at_limit"].as_u64().unwrap()).max();
        assert_eq!(at_limit, Some(calls[0]), "each went on to the most of any");
    }
}

#[test]
fn run_is_removed_after_an_interrupt() {
    let dir = disk();
    let endless = "workload = 1\n[[file]]\nname = \"f\"\npath = \"f\"\n[[job]]\nprocesses = 2\n[[job.phase]]\nsteps = [{ write = \"f\", block = 4096, segments = 1000000000, sync = \"each\" }]\n";
    fs::write(dir.path().join("w.toml"), endless).unwrap();
    let mut command = Command::new(program());
    command.args(["bench", "run", "w.toml", "."]).current_dir(dir.path());
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !files(dir.path()).values().any(|len| *len > 100_000) {
        assert!(Instant::now() < deadline, "the run writes nothing");
        std::thread::sleep(Duration::from_millis(5));
    }
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("signal 2"), "{}", text(&output.stderr));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn mdtest_makes_the_names_and_counts_of_mdtest() {
    let dir = disk();
    let output =
        bench(dir.path(), "mdtest --tasks 2 -n 6 -z 1 -b 2 -u -L -F -w 10 -C --keep --json .");
    json(&output);
    let root = kept(dir.path());
    let names: Vec<String> = files(&root)
        .keys()
        .map(|path| path.strip_prefix(&root).unwrap().display().to_string())
        .collect();
    assert_eq!(names.len(), 12);
    assert_eq!(names[0], "test-dir.0-0/mdtest_tree.0.0/mdtest_tree.0.1/file.mdtest.0.3");
    assert_eq!(names[11], "test-dir.0-0/mdtest_tree.1.0/mdtest_tree.1.2/file.mdtest.1.8");
    let value = json(&bench(dir.path(), "mdtest --tasks 3 -n 20 -i 2 -N 1 --json ."));
    let summary = value["summary"].as_array().unwrap();
    let names: Vec<&str> = summary.iter().map(|row| row["operation"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "Tree creation",
            "Directory creation",
            "Directory stat",
            "Directory rename",
            "Directory removal",
            "File creation",
            "File stat",
            "File read",
            "File removal",
            "Tree removal"
        ]
    );
    for phase in value["phases"].as_array().unwrap() {
        let name = phase["phase"].as_str().unwrap();
        let class = if ["File creation", "File read"].contains(&name) { "open" } else { "names" };
        let expected = if name.starts_with("Tree") { 1 } else { 60 };
        assert_eq!(phase["operations"][class]["calls"], expected, "{name}");
    }
    let hard = json(&bench(dir.path(), "mdtest --tasks 2 -n 5 --preset hard --json ."));
    assert_eq!(hard["phases"][1]["written_bytes"], 2 * 5 * 3901);
    assert_eq!(hard["phases"][3]["read_bytes"], 2 * 5 * 3901);
}

/// A24: durations are those of the slowest rank, rates those of the slowest rank; each rank syncs.
#[test]
fn checkpoints_are_scored_by_their_slowest_rank() {
    let dir = disk();
    let args = "checkpoint --tasks 8 --size 1MiB -i 2 --interval 10ms --json .";
    for files in ["shared", "each", "tensors"] {
        let value = json(&bench(dir.path(), &format!("{args} --files {files}")));
        let phases = value["phases"].as_array().unwrap();
        assert_eq!(phases.len(), 4);
        let seconds = |rank: &Value| {
            (rank["end_ns"].as_u64().unwrap() - rank["begin_ns"].as_u64().unwrap()) as f64 / 1e9
        };
        let mut durations = Vec::new();
        let mut rates = Vec::new();
        for phase in &phases[..2] {
            let ranks = phase["ranks"].as_array().unwrap();
            let syncs: u64 = ranks.iter().map(|rank| rank["calls"][4].as_u64().unwrap()).sum();
            assert_eq!(syncs, if files == "tensors" { 8 * 90 } else { 8 });
            durations.push(ranks.iter().map(seconds).fold(0.0, f64::max));
            let rate = |rank: &Value| rank["written_bytes"].as_f64().unwrap() / seconds(rank);
            rates.push(ranks.iter().map(rate).fold(f64::MAX, f64::min) * 8.0);
        }
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let save = &value["summary"][0];
        let near = |found: &Value, expected: f64| {
            assert!((found.as_f64().unwrap() / expected - 1.0).abs() < 1e-6, "{found} {expected}");
        };
        near(&save["duration_s"]["mean"], mean(&durations));
        near(&save["bytes_per_s"]["mean"], mean(&rates));
        assert_eq!((&phases[2]["cache"], &phases[3]["cache"]), (&"cold".into(), &"cold".into()));
    }
}

#[test]
fn the_other_patterns_move_their_bytes() {
    let dir = disk();
    let bytes = |args: &str| -> Vec<(u64, u64)> {
        let value = json(&bench(dir.path(), &format!("{args} --json .")));
        assert_eq!(value["differences"], 0, "{args}");
        let phases = value["phases"].as_array().unwrap();
        let number = |phase: &Value, key: &str| phase[key].as_u64().unwrap();
        phases.iter().map(|p| (number(p, "read_bytes"), number(p, "written_bytes"))).collect()
    };
    let op = 100 * 100 * 8 / 4;
    for how in ["", "--iomode async", "--unique --bwexp 0.5", "--rmod 2 --wmod 4"] {
        let all = 4 * 8 * op;
        let args = format!("madbench --tasks 4 --npix 100 --nbin 8 --fblocksize 4k {how}");
        assert_eq!(bytes(&args), [(0, all), (all, all), (all, 0)], "{how}");
    }
    let variable = 10 * 16 * 8 * 4 * 4;
    for how in ["", "-c auto", "-F", "-t coll"] {
        let args = format!("netcdf -n 2 -p 2 -d 10:16:8:4 --verify --sync {how}");
        assert_eq!(bytes(&args), [(0, variable), (variable, 0)], "{how}");
    }
    // Without -d: 100 steps of 100 for each of 2 nodes, 100 for each of its processes, and 10, of 4 bytes.
    assert_eq!(bytes("netcdf -n 2 -w"), [(0, 100 * 200 * 100 * 10 * 4)]);
    for locality in ["off0", "seq", "rnd", "reverse", "stride10k"] {
        let args = format!("op-timing --tasks 2 -t 4k -n 50 --locality {locality}");
        assert_eq!(bytes(&args), [(2 * 50 * 4096, 0)], "{locality}");
    }
    assert_eq!(bytes("op-timing -w -t 1000 -n 20 --sync-each"), [(0, 20_000)]);
    let read = (2 * 300_000, 0);
    assert_eq!(bytes("reread --tasks 2 --size 300000 -t 64k --passes 3 --verify"), [read; 4]);
    assert!(files(dir.path()).is_empty());
}

/// A file with O_DIRECT leaves nothing in the page cache; what is no whole block is told before anything is moved.
#[test]
fn direct_files_go_past_the_page_cache() {
    let dir = disk();
    let workload = r#"
workload = 1
[[file]]
name = "f"
path = "f.{process}"
direct = true
[[job]]
processes = 2
[[job.phase]]
name = "write"
steps = [{ write = "f", block = "256KiB", transfer = "64KiB" }]
[[job.phase]]
name = "read"
steps = [{ read = "f", block = "256KiB", transfer = "4KiB", order = "shuffled", verify = true }]
"#;
    fs::write(dir.path().join("w.toml"), workload).unwrap();
    let value = json(&bench(dir.path(), "run w.toml . --json"));
    assert_eq!(value["differences"], 0);
    // It is looked at after what writes, and before what reads.
    assert_eq!(value["phases"][0]["cache_after"]["resident"], 0, "{value}");
    assert_eq!(value["phases"][1]["cache_before"]["resident"], 0, "{value}");
    let value = json(&bench(dir.path(), "op-timing -w -t 4k -n 32 --odirect --json ."));
    assert_eq!(value["phases"][0]["cache_after"]["resident"], 0, "{value}");
    let refused = bench(dir.path(), "op-timing -w -t 1000 -n 32 --odirect .");
    let told = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{told}");
    assert!(told.contains("1000 bytes") && told.contains("a multiple of 512"), "{told}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "only the workload file is left");
}

/// The first read of a file is from an empty cache, and each other one from a full one: both were seen.
#[test]
fn reread_tells_cached_reads_from_the_first_one() {
    let dir = disk();
    let value = json(&bench(dir.path(), "reread --size 4m --passes 2 --json ."));
    let phases = value["phases"].as_array().unwrap().iter();
    let told: Vec<_> = phases.map(|phase| (&phase["phase"], &phase["cache"])).collect();
    let [first, again @ ..] = &told[..] else { panic!("{value}") };
    assert!(first.0 == "first read" && first.1 == "cold", "{value}");
    assert!(again.len() == 2, "{value}");
    assert!(again.iter().all(|one| one.0 == "cached read" && one.1 == "100% cached"), "{value}");
}

#[test]
fn patterns_are_workload_files_and_logs_are_traces() {
    let dir = disk();
    let args = "madbench --tasks 4 --npix 64 --nbin 4 --fblocksize 4k --seed 3";
    let output = bench(dir.path(), &format!("{args} --workload-to m.toml"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let written = fs::read_to_string(dir.path().join("m.toml")).unwrap();
    assert!(written.starts_with("workload = 1\nname = \"madbench\"\nseed = 3\n"), "{written}");
    let own = json(&bench(dir.path(), &format!("{args} --json .")));
    let replayed = json(&bench(dir.path(), "run m.toml . --log log --json"));
    let moved = |value: &Value| -> Vec<(Value, Value, Value)> {
        let phases = value["phases"].as_array().unwrap().iter();
        phases
            .map(|p| (p["read_bytes"].clone(), p["written_bytes"].clone(), p["phase"].clone()))
            .collect()
    };
    assert_eq!(moved(&own), moved(&replayed));
    let mut report = Command::new(program());
    let output = report.args(["report", "--json", "log"]).current_dir(dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let told = text(&output.stdout);
    assert!(told.contains("pwrite") && told.contains("pread"), "{told}");
}

#[test]
fn compare_gives_ratios_of_pairs_with_intervals() {
    let dirs = [disk(), disk()];
    fs::write(dirs[0].path().join("w.toml"), TWO_JOBS).unwrap();
    let other = dirs[1].path().display().to_string();
    let args = format!("compare . {other} --workload w.toml --pairs 3 --json");
    let value = json(&bench(dirs[0].path(), &args));
    let rows = value["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4, "a row for each phase and repetition");
    for row in rows {
        let ratio = |key: &str| row["ratio"][key].as_f64().unwrap();
        assert!(ratio("low") <= ratio("median") && ratio("median") <= ratio("high"), "{row}");
        assert!(row["pairs"].as_u64().unwrap() >= 1 && row["pairs_run"].as_u64().unwrap() >= 3);
        assert_eq!(row["unit"], "bytes_per_s");
    }
    for dir in &dirs {
        assert!(fs::read_dir(dir.path()).unwrap().count() <= 1, "the runs remove their files");
    }
}

#[test]
fn the_suite_of_the_ime_has_a_row_for_each_pattern() {
    let dirs = [disk(), disk()];
    let other = dirs[1].path().display().to_string();
    let output = bench(
        dirs[0].path(),
        &format!("suite . --raw {other} --suite ime --tasks 2 --bytes 100k --pairs 1"),
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let told = text(&output.stdout);
    assert_eq!(told.lines().count(), 1 + 16 * 2, "{told}");
    assert!(told.contains("10MiB random shared x2"), "{told}");
}

#[test]
fn machine_measures_both_directories_and_writes_a_machine_file() {
    let dir = disk();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let pfs = memory.path().display().to_string();
    let output = bench(dir.path(), &format!("machine . --pfs {pfs} --bytes 4m -o m.toml"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let file = fs::read_to_string(dir.path().join("m.toml")).unwrap();
    for line in ["version = 1", "[storage.device]", "[buffer.device]", "attach = \"compute\""] {
        assert!(file.contains(line), "{line}: {file}");
    }
    let rates: Vec<f64> = file
        .lines()
        .filter_map(|line| line.strip_suffix("MB/s\"")?.split_once("e = \"")?.1.parse().ok())
        .collect();
    // Of the network, then of the PFS and of flash.
    assert!(rates.len() == 5 && rates.iter().all(|rate| *rate > 0.1), "{file}");
    assert!(file.contains("a file system in memory") && file.contains("the loopback"), "{file}");
    // By another end.
    let mut other = Command::new(program());
    other.args(["bench", "machine", "--link-serve", "127.0.0.1:0"]).stderr(Stdio::piped());
    let mut other = other.spawn().unwrap();
    let mut said = String::new();
    let mut lines = std::io::BufReader::new(other.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut lines, &mut said).unwrap();
    let address = said.trim().rsplit(' ').next().unwrap().to_string();
    let value = json(&bench(dir.path(), &format!("machine . --bytes 4m --json --link {address}")));
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(value["directories"][0]["read"]["requests"].as_array().unwrap().len(), 6);
    assert!(value["link"]["round_trip_s"].as_f64().unwrap() > 0.0, "{value}");
    assert!(value["link"]["send_bytes_per_s"].as_f64().unwrap() > 1e6, "{value}");
    let output = bench(dir.path(), "machine . --bytes 4m --link 127.0.0.1:1");
    assert!(text(&output.stderr).contains("--link-serve"), "{}", text(&output.stderr));
}

/// The creation ends at a time, all processes have as many, and the later phases use these.
#[test]
fn mdtest_ends_the_creation_at_a_time() {
    let dir = disk();
    let args = "mdtest --tasks 2 -n 100000 -F -u -L -W 150ms -x made -i 2 --json .";
    let value = json(&bench(dir.path(), args));
    let phases = value["phases"].as_array().unwrap();
    let made: u64 = fs::read_to_string(dir.path().join("made")).unwrap().trim().parse().unwrap();
    assert!((1..100_000).contains(&made), "{made}");
    let calls = |name: &str| -> Vec<u64> {
        let of = phases.iter().filter(|phase| phase["phase"] == name);
        let ranks = of.flat_map(|phase| phase["ranks"].as_array().unwrap());
        ranks
            .map(|rank| rank["calls"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum())
            .collect()
    };
    let (stats, removals) = (calls("File stat"), calls("File removal"));
    assert_eq!(stats.len(), 4, "two processes, two iterations: {value}");
    assert!(stats[2] == made && stats[3] == made && stats == removals, "{stats:?} {made}");
    let refused = bench(dir.path(), "mdtest -n 10 -W 1s .");
    assert!(text(&refused.stderr).contains("expected with -F"), "{}", text(&refused.stderr));
}

/// A23: the score is the one that IO500's formula makes of the phases that are printed.
#[test]
fn io500_runs_its_phases_and_scores_them() {
    let dir = disk();
    let args = "io500 --tasks 2 -D 0.1 -n 200 --easy-bytes 20m --hard-records 100 --json .";
    let value = json(&bench(dir.path(), args));
    let phases = value["phases"].as_array().unwrap();
    let of = |name: &str| phases.iter().find(|phase| phase["phase"] == name).expect(name);
    assert_eq!(phases.len(), 12);
    let rate = |name: &str| of(name)["rate_per_s"].as_f64().unwrap();
    let mean = |names: &[&str], unit: f64| {
        let logs: Vec<f64> = names.iter().map(|name| (rate(name) / unit).ln()).collect();
        (logs.iter().sum::<f64>() / logs.len() as f64).exp()
    };
    let (bw, md): (Vec<&str>, Vec<&str>) = phases
        .iter()
        .map(|phase| phase["phase"].as_str().unwrap())
        .partition(|name| name.starts_with("ior"));
    let (bandwidth, metadata) = (mean(&bw, (1_u64 << 30) as f64), mean(&md, 1000.0));
    let score = |key: &str| value["score"][key].as_f64().unwrap();
    assert!((score("bandwidth_gib_per_s") / bandwidth - 1.0).abs() < 1e-6);
    assert!((score("metadata_kiops") / metadata - 1.0).abs() < 1e-6);
    assert!((score("total") / (bandwidth * metadata).sqrt() - 1.0).abs() < 1e-6);
    assert_eq!((&value["valid"], &value["differences"]), (&false.into(), &0.into()));
    for (made, used) in [
        ("ior-easy-write", "ior-easy-read"),
        ("ior-hard-write", "ior-hard-read"),
        ("mdtest-easy-write", "mdtest-easy-delete"),
        ("mdtest-hard-write", "mdtest-hard-read"),
    ] {
        assert_eq!(of(made)["amount"], of(used)["amount"], "{used} uses what {made} made");
    }
    let amount = |name: &str| of(name)["amount"].as_u64().unwrap();
    let files = amount("mdtest-easy-write") + amount("mdtest-hard-write") + 2 + 1;
    assert_eq!(amount("find"), files);
    assert!(fs::read_dir(dir.path()).unwrap().next().is_none());
}

#[test]
fn a_measured_machine_is_written_to_its_file_beside_the_json() {
    let dir = disk();
    let measure = |args: &str| bench(dir.path(), &format!("machine --json -q {args} ."));
    let told = json(&measure("--bytes 4m -o machine.toml"));
    assert_eq!(told["directories"].as_array().unwrap().len(), 1, "{told}");
    let written = fs::read_to_string(dir.path().join("machine.toml")).unwrap();
    assert!(written.contains("[storage.device]"), "{written}");
    let refused = measure("--bytes 1m");
    assert_eq!(refused.status.code(), Some(2));
    let told: Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!(told["error"]["why"], "--bytes: 1048576 bytes are too few", "{told}");
    let hint = told["error"]["hint"].as_str().unwrap();
    assert!(hint.starts_with("expected at least 4MiB"), "{told}");
}

/// What is wrong with a workload.
fn fault(workload: &str) -> Fault {
    let none = |_: &Path| Err("no file".to_string());
    Workload::parse(Path::new("w"), workload, &none).unwrap_err()
}

/// The words that were expected, in order.
fn expected(workload: &str, what: &str) -> Vec<String> {
    let fault = fault(workload);
    assert!(fault.found.contains(what), "{fault}");
    let words = fault.expected.trim_start_matches("exactly ").trim_start_matches("one of ");
    let mut words: Vec<String> = words.split(", ").map(String::from).collect();
    words.sort();
    words
}

#[test]
fn the_schema_of_workload_files_has_each_key_and_word() {
    let printed = bench(Path::new("/"), "run --schema");
    assert!(printed.status.success(), "{}", text(&printed.stderr));
    let schema: Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert!(!bench(Path::new("/"), "run --schema w.toml").status.success());
    assert!(!bench(Path::new("/"), "run").status.success());
    let keys = |part: &Value| -> Vec<String> {
        assert_eq!(part["additionalProperties"], false, "{part}");
        let mut keys: Vec<String> =
            part["properties"].as_object().unwrap().keys().cloned().collect();
        keys.sort();
        keys
    };
    let unknown = |workload: &str| expected(workload, "not known");
    let file = "workload = 1\n[[file]]\nname = \"f\"\npath = \"f\"\n";
    let step = |step: &str| format!("{file}[[job]]\n[[job.phase]]\nsteps = [{{ {step} }}]\n");
    let parts = [
        ("", "workload = 1\nx = 1\n".to_string()),
        ("/definitions/file", format!("{file}x = 1\n")),
        ("/definitions/tree", format!("{file}tree = {{ x = 1 }}\n")),
        ("/definitions/job", "workload = 1\n[[job]]\nx = 1\n".to_string()),
        ("/definitions/phase", "workload = 1\n[[job]]\n[[job.phase]]\nx = 1\n".to_string()),
        ("/definitions/of", step("stat = \"f\", of = { x = 1 }")),
    ];
    for (pointer, sample) in parts {
        assert_eq!(keys(schema.pointer(pointer).unwrap()), unknown(&sample), "{pointer}");
    }
    let mut verbs = Vec::new();
    for one in schema["definitions"]["step"]["oneOf"].as_array().unwrap() {
        let verb = one["required"][0].as_str().unwrap().to_string();
        assert_eq!(keys(one), unknown(&step(&format!("{verb} = 1, x = 1"))), "{verb}");
        verbs.push(verb);
    }
    verbs.sort();
    assert_eq!(verbs, expected(&step(""), "does nothing"));
    let write = schema["definitions"]["step"]["oneOf"].as_array().unwrap();
    let of_step = |verb: &str, key: &str| {
        let found = write.iter().find(|one| one["required"][0] == verb).unwrap();
        found["properties"][key]["enum"].clone()
    };
    let words = [
        (schema["properties"]["content"]["enum"].clone(), "workload = 1\ncontent = \"?\"\n".into()),
        (
            schema["definitions"]["file"]["properties"]["interface"]["enum"].clone(),
            format!("{file}interface = \"?\"\n"),
        ),
        (of_step("write", "order"), step("write = \"f\", block = 1, order = \"?\"")),
        (of_step("write", "sync"), step("write = \"f\", block = 1, sync = \"?\"")),
        (of_step("open", "mode"), step("open = \"f\", mode = \"?\"")),
    ];
    for (listed, sample) in words {
        let mut listed: Vec<String> = serde_json::from_value(listed).unwrap();
        listed.sort();
        assert_eq!(listed, expected(&sample, "?"), "{sample}");
    }
}
