//! `forebay bench ior` as a user runs it: what it writes and reads, what it says of the page cache, whose
//! files it leaves alone, and how it ends when a process dies.
#![allow(clippy::unwrap_used)]

use super::bench_netcdf::moved;
use forebay_tests::buffer::{Buffer, Kind, Options, binary};
use forebay_trace_format::Class;
use serde_json::Value;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A directory on a disk's file system: below the build's.
fn disk() -> tempfile::TempDir {
    let beside = binary().parent().unwrap().to_path_buf();
    tempfile::Builder::new().prefix("bench-ior-").tempdir_in(beside).unwrap()
}

fn bench(dir: &Path, args: &str) -> Output {
    let mut command = Command::new(binary());
    command.args(["bench", "ior"]).args(args.split_whitespace()).current_dir(dir);
    command.output().unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        dir.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[test]
fn bench_moves_the_bytes_that_it_reports() {
    let dir = disk();
    let output =
        bench(dir.path(), "-N 3 -t 47008 -b 94016 -s 5 -w -W -r -R -e -k -l o -G 9 -o f --json");
    let value = json(&output);
    let results = value["tests"][0]["Results"].as_array().unwrap();
    let names: Vec<&str> =
        results.iter().map(|result| result["access"].as_str().unwrap()).collect();
    assert_eq!(names, ["write", "writecheck", "read", "readcheck"]);
    for result in results {
        assert_eq!((&result["bytes"], &result["transfers"]), (&(94_016 * 15).into(), &30.into()));
        assert_eq!(result["differences"], 0);
        let stamps: Vec<Vec<u64>> = result["ranks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|rank| serde_json::from_value(rank["stamps_ns"].clone()).unwrap())
            .collect();
        let (first, last) = (stamps.iter().map(|s| s[0]).min(), stamps.iter().map(|s| s[5]).max());
        let total_s = (last.unwrap() - first.unwrap()) as f64 / 1e9;
        assert!((result["totalTime"].as_f64().unwrap() - total_s).abs() < 1e-6);
        let bandwidth = result["bwMiB"].as_f64().unwrap() * 1_048_576.0;
        assert!((bandwidth * total_s / (94_016.0 * 15.0) - 1.0).abs() < 1e-6);
    }
    // The words of IOR's content `o`: each transfer begins with rank and offset.
    let file = std::fs::File::open(dir.path().join("f")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 94_016 * 15);
    for transfer in 0..30_u64 {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, transfer * 47_008).unwrap();
        let rank = transfer / 2 % 3;
        assert_eq!(
            u64::from_le_bytes(word),
            (rank << 32) | (transfer * 47_008),
            "transfer {transfer}"
        );
    }
}

/// What IOR 4.1 prints with `-O summaryFormat=JSON`: keys with texts, then keys with numbers.
const TOP: [&[&str]; 2] = [&["Version", "Began", "Command line", "Machine", "Finished"], &[]];
const TEST: [&[&str]; 2] =
    [&["StartTime", "Path", "Capacity", "Used Capacity", "Inodes", "Used Inodes"], &["TestID"]];
const PARAMETERS: [&[&str]; 2] = [
    &["api", "platform", "testFileName", "options", "data packet type"],
    &[
        "testID",
        "refnum",
        "deadlineForStonewall",
        "stoneWallingWearOut",
        "maxTimeDuration",
        "outlierThreshold",
        "dryRun",
        "nodes",
        "memoryPerTask",
        "memoryPerNode",
        "tasksPerNode",
        "repetitions",
        "multiFile",
        "interTestDelay",
        "fsync",
        "fsyncperwrite",
        "useExistingTestFile",
        "uniqueDir",
        "singleXferAttempt",
        "readFile",
        "writeFile",
        "filePerProc",
        "reorderTasks",
        "reorderTasksRandom",
        "reorderTasksRandomSeed",
        "randomOffset",
        "checkWrite",
        "checkRead",
        "dataPacketType",
        "keepFile",
        "keepFileWithError",
        "warningAsErrors",
        "verbose",
        "setTimeStampSignature/incompressibleSeed",
        "collective",
        "segmentCount",
        "transferSize",
        "blockSize",
    ],
];
const OPTIONS: [&[&str]; 2] = [
    &[
        "api",
        "apiVersion",
        "test filename",
        "access",
        "type",
        "ordering in a file",
        "ordering inter file",
        "memoryBuffer",
        "dataAccess",
        "GPUDirect",
        "xfersize",
        "blocksize",
        "aggregate filesize",
    ],
    &[
        "segments",
        "task offset",
        "nodes",
        "tasks",
        "clients per node",
        "repetitions",
        "stonewallingTime",
        "stoneWallingWearOut",
    ],
];
const RESULT: [&[&str]; 2] = [
    &["access"],
    &[
        "bwMiB",
        "blockKiB",
        "xferKiB",
        "iops",
        "latency",
        "openTime",
        "wrRdTime",
        "closeTime",
        "totalTime",
    ],
];
const SUMMARY: [&[&str]; 2] = [
    &["operation", "API"],
    &[
        "TestID",
        "ReferenceNumber",
        "segmentCount",
        "blockSize",
        "transferSize",
        "numTasks",
        "tasksPerNode",
        "repetitions",
        "filePerProc",
        "reorderTasks",
        "taskPerNodeOffset",
        "reorderTasksRandom",
        "reorderTasksRandomSeed",
        "bwMaxMIB",
        "bwMinMIB",
        "bwMeanMIB",
        "bwStdMIB",
        "OPsMax",
        "OPsMin",
        "OPsMean",
        "OPsSD",
        "MeanTime",
        "xsizeMiB",
    ],
];

/// Whose part a process compares after the write, by the options alone: offsets of ranks 0 to 2, as IOR's own.
#[test]
fn what_is_compared_after_a_write_is_whose_ior_compares() {
    let dir = disk();
    let small = "-N 3 -b 4096 -t 4096 -w -W -r -o f --show-offsets -O numTasksOnNode0=1";
    let of = |options: &str, access: &str| {
        let output = bench(dir.path(), &format!("{small} {options}"));
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().filter(|line| line.to_lowercase().starts_with(access));
        let offsets = lines.map(|line| line.split(',').nth(3).unwrap().parse::<u64>().unwrap());
        offsets.collect::<Vec<_>>()
    };
    let check = "writecheck,";
    assert_eq!(of("", check), [0, 4096, 8192]);
    assert_eq!(of("-C", "read,"), [4096, 8192, 0]);
    assert_eq!(of("-C", check), [8192, 0, 4096], "one node further on than reads");
    assert_eq!(of("-C -Q 2", check), [0, 4096, 8192]);
    assert_eq!(of("-Z -Z -X 7", check), [0, 4096, 8192], "only reads are drawn");
}

/// The log has each transfer of each process in its order, and `forebay report` counts them; a log that is there is not mixed with another.
#[test]
fn bench_logs_each_operation_of_each_process() {
    let dir = disk();
    let args = "-N 3 -t 47008 -b 94016 -s 2 -C -O numTasksOnNode0=1 -w -r -e -o f";
    let output = bench(dir.path(), &format!("{args} --log ops -q"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let planned = bench(dir.path(), &format!("{args} --show-offsets"));
    let planned = String::from_utf8(planned.stdout).unwrap();
    for (access, class) in [("write", Class::Write), ("read", Class::Read)] {
        let mut wanted = vec![Vec::new(); 3];
        for line in planned.lines().filter(|line| line.starts_with(&format!("{access},"))) {
            let part: Vec<&str> = line.split(',').collect();
            let rank: usize = part[1].parse().unwrap();
            wanted[rank].push((part[3].parse().unwrap(), part[4].parse().unwrap()));
        }
        assert_eq!(wanted.iter().map(Vec::len).sum::<usize>(), 12, "{planned}");
        assert_eq!(moved(&dir.path().join("ops"), "/f", class), wanted, "{access}");
    }
    let mut report = Command::new(binary());
    let report =
        json(&report.args(["report", "ops", "--json"]).current_dir(&dir).output().unwrap());
    // Of each process: open, 4 transfers, close, twice, and an fsync.
    assert_eq!(report["events"], 3 * 13, "{report}");
    assert_eq!(report["totals"]["written_bytes"], 3 * 4 * 47_008, "{report}");
    let again = bench(dir.path(), &format!("{args} --log ops"));
    assert!(!again.status.success());
    let told = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(told.contains("make the directory of the log ops: File exists"), "{told}");
}

/// A4: what reads IOR's JSON reads ours: each key of IOR is there, with its type, and means what it means there.
#[test]
fn bench_prints_the_json_of_ior() {
    let dir = disk();
    let args = "-N 3 -t 4k -b 16k -s 2 -i 2 -l o -G 9 -C -O numTasksOnNode0=1,stoneWallingWearOut=1 -D 60 -w -r -o f --json";
    let value = json(&bench(dir.path(), args));
    let has = |place: &Value, [texts, numbers]: [&[&str]; 2]| {
        for key in texts {
            assert!(place[key].is_string(), "{key}: {place}");
        }
        for key in numbers {
            assert!(place[key].is_number(), "{key}: {place}");
        }
    };
    let test = &value["tests"][0];
    has(&value, TOP);
    has(test, TEST);
    has(&test["Parameters"], PARAMETERS);
    has(&test["Options"], OPTIONS);
    let results = test["Results"].as_array().unwrap();
    results.iter().for_each(|result| has(result, RESULT));
    let summary = value["summary"].as_array().unwrap();
    summary.iter().for_each(|line| has(line, SUMMARY));
    assert!(
        summary[0]["StoneWallTime"].is_number() && summary[0]["StoneWallbwMeanMIB"].is_number()
    );
    // What they say is true.
    let parameters = &test["Parameters"];
    assert_eq!(
        (&parameters["dataPacketType"], &parameters["data packet type"]),
        (&2.into(), &"o".into())
    );
    assert_eq!(parameters["setTimeStampSignature/incompressibleSeed"], 9);
    let options = &test["Options"];
    assert_eq!(options["aggregate filesize"], "98304 bytes");
    assert_eq!(options["ordering inter file"], "constant task offset");
    let of = |operation: &str| -> (Vec<f64>, &Value) {
        let mine = results.iter().filter(|result| result["access"] == operation);
        let line = summary.iter().find(|line| line["operation"] == operation).unwrap();
        (mine.map(|result| result["bwMiB"].as_f64().unwrap()).collect(), line)
    };
    for operation in ["write", "read"] {
        let (rates, line) = of(operation);
        let [first, second] = rates[..] else { panic!("{rates:?}") };
        let near = |key: &str, wanted: f64| {
            let found = line[key].as_f64().unwrap();
            assert!(
                (found - wanted).abs() <= 1e-6 * wanted.max(1.0),
                "{key}: {found}, not {wanted}"
            );
        };
        near("bwMaxMIB", first.max(second));
        near("bwMinMIB", first.min(second));
        near("bwMeanMIB", f64::midpoint(first, second));
        near("bwStdMIB", (first - second).abs() / 2.0);
        near("xsizeMiB", 98_304.0 / 1_048_576.0);
        let largest = test["max"][format!("{operation}MiB")].as_f64().unwrap();
        assert!((largest - first.max(second)).abs() <= 1e-6 * largest);
    }
}

/// Keys that are IOR's, beside those of the lists above: what has parts, and what only some runs have.
const MORE_OF_IOR: [&str; 11] = [
    "tests",
    "Parameters",
    "Options",
    "Results",
    "summary",
    "max",
    "readMB",
    "readMiB",
    "writeMB",
    "writeMiB",
    "memoryPerNode",
];

/// docs/BENCH.md describes each key that is not IOR's.
#[test]
fn keys_beside_those_of_ior_are_described() {
    const DESCRIPTION: &str = include_str!("../../../docs/BENCH.md");
    let dir = disk();
    let value = json(&bench(dir.path(), "-N 2 -t 4k -b 16k -M 1m -D 60 -w -r -W -o f --json"));
    let lists = [TOP, TEST, PARAMETERS, OPTIONS, RESULT, SUMMARY];
    let mut of_ior: Vec<&str> = lists.into_iter().flatten().flatten().copied().collect();
    of_ior.extend(MORE_OF_IOR);
    let (mut waiting, mut others) = (vec![&value], 0);
    while let Some(one) = waiting.pop() {
        match one {
            Value::Object(object) => {
                for (key, value) in object {
                    waiting.push(value);
                    if !of_ior.contains(&key.as_str()) {
                        others += 1;
                        let named = [format!("`{key}`"), format!("`{key}[]`")];
                        assert!(named.iter().any(|name| DESCRIPTION.contains(name)), "{key}");
                    }
                }
            }
            Value::Array(values) => waiting.extend(values),
            _ => {}
        }
    }
    assert!(others > 20, "{value}");
}

#[test]
fn bench_finds_a_byte_that_changed() {
    let dir = disk();
    assert!(bench(dir.path(), "-N 2 -t 4k -b 64k -F -w -G 5 -k -o f --csv").status.success());
    let file = std::fs::OpenOptions::new().write(true).open(dir.path().join("f.00000001")).unwrap();
    file.write_all_at(b"?", 40_001).unwrap();
    let output = bench(dir.path(), "-N 2 -t 4k -b 64k -F -R -G 5 -k -o f");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("f.00000001") && told.contains("40001"), "{told}");
    // The bytes of another run are not taken for those of this one.
    let output = bench(dir.path(), "-N 2 -t 4k -b 64k -F -R -G 6 -k -o f");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn bench_leaves_files_of_others_alone_and_removes_its_own() {
    let dir = disk();
    let mine = dir.path().join("results");
    std::fs::write(&mine, "years of work").unwrap();
    let output = bench(dir.path(), "-t 4k -b 64k -o results");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("--overwrite") && told.contains("results"), "{told}");
    assert_eq!(std::fs::read_to_string(&mine).unwrap(), "years of work");
    assert!(
        bench(dir.path(), "-t 4k -b 64k -r -o results").status.code() != Some(0),
        "too short to read"
    );
    assert_eq!(std::fs::read_to_string(&mine).unwrap(), "years of work");
    assert!(bench(dir.path(), "-N 2 -t 4k -b 64k -F -u -m -i 2 -o mine").status.success());
    assert_eq!(files(dir.path()), [mine]);
}

#[test]
fn bench_calls_a_read_cold_only_if_it_is() {
    let dir = disk();
    let cache = |args: &str| {
        let value = json(&bench(dir.path(), args));
        value["tests"][0]["Results"][1].clone()
    };
    let cold = cache("-N 2 -t 64k -b 1m -e --cold -o f --json");
    assert_eq!(cold["cache"], "cold");
    assert_eq!(cold["cache_before"]["resident"], 0);
    assert_eq!(cold["cache_before"]["pages"], 512);
    let warm = cache("-N 2 -t 64k -b 1m -e -o f --json");
    assert_eq!(warm["cache"], "100% cached");
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let output = bench(memory.path(), "-t 64k -b 1m --cold -o f");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("in memory"));
    assert!(files(memory.path()).is_empty(), "a refused run removes what it wrote");
}

/// Behind a mount there may be a page cache that its own inodes do not show.
#[test]
fn bench_claims_nothing_of_the_cache_behind_a_mount() {
    let buffer =
        Buffer::mount_with(Options { kind: Kind::Tmpfs, capacity: 64 << 20, extra: Vec::new() });
    let value = json(&bench(&buffer.root(), "-N 2 -t 64k -b 1m -e -w -r -R -o f --json"));
    for result in value["tests"][0]["Results"].as_array().unwrap() {
        assert_eq!((&result["cache"], &result["differences"]), (&"unknown".into(), &0.into()));
    }
    let output = bench(&buffer.root(), "-t 64k -b 1m --cold -o f");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot be seen"));
}

#[test]
fn bench_warns_that_one_node_reads_its_own_data() {
    let dir = disk();
    let notes = |args: &str| json(&bench(dir.path(), args))["notes"].to_string();
    assert!(notes("-N 2 -t 4k -b 64k -C -o f --json").contains("wrote itself"));
    assert!(
        !notes("-N 2 -t 4k -b 64k -C -O numTasksOnNode0=1 -o f --json").contains("wrote itself")
    );
}

/// A22: what gzip makes of the file is what the tool says of its content, and says a warning of if it compresses.
#[test]
fn bench_says_how_far_its_content_compresses() {
    let dir = disk();
    for (kind, least, most) in
        [("s", 0.99, 1.01), ("r", 0.99, 1.01), ("t", 0.0, 0.5), ("o", 0.0, 0.5), ("i", 0.0, 0.01)]
    {
        let value =
            json(&bench(dir.path(), &format!("-b 1m -w -k --overwrite -l {kind} -o f --json")));
        let told = value["tests"][0]["Parameters"]["contentCompressedShare"].as_f64().unwrap();
        let gzip = Command::new("gzip").arg("-c").arg(dir.path().join("f")).output().unwrap();
        let found = gzip.stdout.len() as f64 / f64::from(1 << 20);
        assert!((told - found).abs() < 0.01, "{kind}: {told}, and gzip left {found}");
        assert!((least..=most).contains(&found), "{kind}: {found}");
        let warned = value["notes"].to_string().contains("the content compresses");
        assert_eq!(warned, most < 0.99, "{kind}: {}", value["notes"]);
    }
}

/// The moments of each process of a phase: open, transfers, close, each with its begin and its end.
fn stamps(result: &Value) -> Vec<Vec<u64>> {
    let ranks = result["ranks"].as_array().unwrap();
    ranks.iter().map(|rank| serde_json::from_value(rank["stamps_ns"].clone()).unwrap()).collect()
}

/// IOR's letters that say how often, when, and into which files.
#[test]
fn bench_repeats_pauses_and_names_files_as_asked() {
    let dir = disk();
    let results = |args: &str| -> Vec<Value> {
        let value = json(&bench(dir.path(), &format!("-t 4k -b 16k {args} --json")));
        value["tests"][0]["Results"].as_array().unwrap().clone()
    };
    assert_eq!(results("-w -i 3 -o f").len(), 3);
    // No repetition begins after the time of -T.
    assert_eq!(results("-w -r -i 3 -T 0 -o f").len(), 2);
    let begun = Instant::now();
    results("-w -r -d 0.2 -o f");
    assert!(begun.elapsed() >= Duration::from_millis(400), "{:?}", begun.elapsed());
    // With -g nothing is moved before all have opened, and nothing closed before all is moved.
    let together = stamps(&results("-N 3 -F -w -g -o f")[0]);
    let first = |at: usize| together.iter().map(|of_rank| of_rank[at]).min().unwrap();
    let last = |at: usize| together.iter().map(|of_rank| of_rank[at]).max().unwrap();
    assert!(last(1) <= first(2) && last(3) <= first(4), "{together:?}");
    // -m: a file for each repetition. -E writes into one that is there, and leaves it.
    results("-w -i 2 -m -k -o each");
    let names: Vec<PathBuf> = ["each.0", "each.1"].map(|name| dir.path().join(name)).into();
    assert_eq!(files(dir.path()), names);
    let number = std::fs::metadata(&names[0]).unwrap().ino();
    results("-w -E -o each.0");
    assert_eq!(std::fs::metadata(&names[0]).unwrap().ino(), number);
    results("-N 2 -F -u -w -k -o own");
    for name in ["0/own.00000000", "1/own.00000001"] {
        assert_eq!(std::fs::metadata(dir.path().join(name)).unwrap().len(), 16 << 10, "{name}");
    }
    // -Y: an fsync after each write.
    results("-w -Y -o f --log ops");
    let mut report = Command::new(binary());
    let report =
        json(&report.args(["report", "ops", "--json"]).current_dir(&dir).output().unwrap());
    assert_eq!((&report["totals"]["writes"], &report["totals"]["syncs"]), (&4.into(), &4.into()));
}

/// What reads IOR's CSV reads ours: its columns come first, and mean what they mean there.
#[test]
fn bench_prints_the_columns_of_ior() {
    let dir = disk();
    let output = bench(dir.path(), "-N 2 -t 4k -b 64k -s 2 -i 2 -w -r -o f --csv");
    let text = String::from_utf8(output.stdout).unwrap();
    let (head, rows) = text.split_once('\n').unwrap();
    let of_ior = "access,bw(MiB/s),IOPS,Latency,block(KiB),xfer(KiB),open(s),wr/rd(s),close(s),total(s),numTasks,iter";
    assert!(head.starts_with(of_ior), "{head}");
    let rows: Vec<Vec<&str>> = rows.lines().map(|row| row.split(',').collect()).collect();
    assert_eq!(rows.len(), 4, "{text}");
    let columns = head.split(',').count();
    for (row, access) in rows.iter().zip(["write", "read", "write", "read"]) {
        assert_eq!((row.len(), row[0]), (columns, access), "{text}");
        let number = |at: usize| row[at].parse::<f64>().unwrap();
        assert_eq!([number(4), number(5), number(10)], [64.0, 4.0, 2.0], "{text}");
        // 2 processes, 2 segments of 64 KiB: a quarter of a MiB, by the whole time.
        assert!((number(1) * number(9) / 0.25 - 1.0).abs() < 1e-3, "{text}");
        assert!((number(2) * number(7) / 64.0 - 1.0).abs() < 1e-3, "{text}");
    }
    assert_eq!([rows[1][11], rows[3][11]], ["0", "1"], "{text}");
}

/// With O_DIRECT nothing of the file comes into the page cache, and reads are cold without more ado.
#[test]
fn bench_goes_past_the_page_cache() {
    let dir = disk();
    for option in ["--odirect", "--posix.odirect", "-O useO_DIRECT=1"] {
        let value =
            json(&bench(dir.path(), &format!("-N 2 -t 64k -b 1m -w -r -R {option} -o f --json")));
        let test = &value["tests"][0];
        assert_eq!(test["Parameters"]["useO_DIRECT"], 1, "{option}");
        for result in test["Results"].as_array().unwrap() {
            assert_eq!(result["cache_after"]["resident"], 0, "{option}: {result}");
            assert_eq!(result["differences"], 0, "{option}: {result}");
        }
        assert_eq!(test["Results"][1]["cache"], "cold", "{option}");
    }
}

/// Times of transfers, in seconds, of a file as IOR's savePerOpDataCSV has them; only those that moved so many bytes.
fn durations(file: &Path, bytes: f64) -> Vec<f64> {
    let text = std::fs::read_to_string(file).unwrap();
    let (head, rows) = text.split_once('\n').unwrap();
    assert_eq!(head, "time,runtime,tp", "{}", file.display());
    let row = |line: &str| -> (f64, f64) {
        let part: Vec<f64> = line.split(',').map(|part| part.parse().unwrap()).collect();
        (part[1], part[1] * part[2])
    };
    let rows = rows.lines().map(row);
    rows.filter(|row| (row.1 / bytes - 1.0).abs() < 0.01).map(|row| row.0).collect()
}

/// A6: the recorder has each transfer that the benchmark has measured, in its order, and takes it for hardly shorter.
#[test]
fn the_recorder_times_transfers_as_the_benchmark_does() {
    let dir = disk();
    let mut traced = Command::new(binary());
    traced.args(["trace", "-q", "--no-buffers", "-o", "t", "--"]).arg(binary());
    let args = "bench ior -q -t 64k -b 8m -w -r -e -o f -O savePerOpDataCSV=own";
    let output = traced.args(args.split_whitespace()).current_dir(&dir).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut export = Command::new(binary());
    export.args(["trace", "export", "--to", "ior-csv", "-o", "seen", "t"]).current_dir(&dir);
    let output = export.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for access in ["write", "read"] {
        let own = durations(&dir.path().join(format!("own-{access}-0-00000.csv")), 65_536.0);
        let of_access = files(&dir.path().join("seen")).into_iter().filter(|path| {
            path.file_name().unwrap().to_string_lossy().starts_with(&format!("{access}-"))
        });
        let seen: Vec<f64> = of_access.flat_map(|path| durations(&path, 65_536.0)).collect();
        assert_eq!((own.len(), seen.len()), (128, 128), "{access}");
        // What the benchmark adds around a call is short; now and then it loses its processor there.
        let mut around: Vec<f64> = own.iter().zip(&seen).map(|(own, seen)| own - seen).collect();
        let mut whole = own.clone();
        around.sort_by(f64::total_cmp);
        whole.sort_by(f64::total_cmp);
        let (added_s, call_s) = (around[64], whole[64]);
        eprintln!("{access}: {call_s:.9} s a call, of which {added_s:.9} s around it");
        assert!(added_s > -0.05 * call_s, "{access}: {added_s} of {call_s}");
        assert!(added_s < 0.05 * call_s + 3e-6, "{access}: {added_s} of {call_s}");
    }
}

/// -M: the processes hold so much memory together; memoryPerTask: each holds so much.
#[test]
fn bench_holds_memory_as_asked() {
    for option in ["-M 64m", "-O memoryPerTask=32m"] {
        holds_32_mib_each(option);
    }
    let dir = disk();
    let value = json(&bench(dir.path(), "-N 2 -b 1m -w -O memoryPerTask=1m -o f --json"));
    let parameters = &value["tests"][0]["Parameters"];
    let held = ["memoryPerTask", "memoryPerNode"].map(|key| parameters[key].as_u64());
    assert_eq!(held, [Some(1 << 20), Some(0)]);
}

fn holds_32_mib_each(option: &str) {
    let dir = disk();
    let child = long_run(dir.path(), option);
    let held_kib: Vec<u64> = ranks_of(&child)
        .into_iter()
        .map(|rank| {
            let text = std::fs::read_to_string(format!("/proc/{rank}/status")).unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        })
        .collect();
    // SAFETY: the child runs.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    child.wait_with_output().unwrap();
    let all_hold = held_kib.iter().all(|kib| *kib >= 32 << 10);
    assert!(held_kib.len() == 2 && all_hold, "{option}: {held_kib:?}");
}

#[test]
fn bench_stops_at_the_deadline_and_wears_out() {
    let dir = disk();
    let args = "-N 2 -t 4k -b 4k -s 100000000 -F -D 0.3 -O stoneWallingWearOut=1,stoneWallingStatusFile=status -w -R -o f --json";
    let value = json(&bench(dir.path(), args));
    let results = value["tests"][0]["Results"].as_array().unwrap();
    let ranks = |result: &Value| -> Vec<u64> {
        let ranks = result["ranks"].as_array().unwrap();
        ranks.iter().map(|rank| rank["transfers"].as_u64().unwrap()).collect()
    };
    let written = ranks(&results[0]);
    assert_eq!(written[0], written[1], "each went on to the most of any");
    assert!(
        results[0]["stonewall"]["bytes"].as_u64().unwrap() <= results[0]["bytes"].as_u64().unwrap()
    );
    // The deadline is the reads' as well: on a busy machine it may end them before all is read.
    let read = ranks(&results[1]);
    assert_eq!(read[0], read[1], "each went on to the most of any");
    assert!((1..=written[0]).contains(&read[0]), "{read:?} of {written:?}");
    assert_eq!(results[1]["differences"], 0);
    let status = std::fs::read_to_string(dir.path().join("status")).unwrap();
    assert_eq!(status.trim(), written[0].to_string());
}

/// Starts a run that would take very long, with more options, and waits until its file grows.
fn long_run(dir: &Path, more: &str) -> std::process::Child {
    let mut command = Command::new(binary());
    command.args("bench ior -N 2 -t 4k -b 4k -s 100000000 -Y -w -o f".split_whitespace());
    command.args(more.split_whitespace());
    command.current_dir(dir).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !dir.join("f").metadata().is_ok_and(|meta| meta.len() > 100_000) {
        assert!(Instant::now() < deadline, "the run writes nothing");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

/// The processes of a run.
fn ranks_of(child: &std::process::Child) -> Vec<i32> {
    let path = format!("/proc/{0}/task/{0}/children", child.id());
    std::fs::read_to_string(path)
        .unwrap()
        .split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect()
}

#[test]
fn bench_ends_when_a_process_of_it_is_killed() {
    let dir = disk();
    let child = long_run(dir.path(), "");
    let ranks = ranks_of(&child);
    assert_eq!(ranks.len(), 2);
    // SAFETY: a process of the child's that runs.
    unsafe { libc::kill(ranks[1], libc::SIGKILL) };
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("rank 1 was killed by signal 9"), "{told}");
    assert!(files(dir.path()).is_empty());
}

#[test]
fn bench_removes_its_files_after_an_interrupt() {
    let dir = disk();
    let child = long_run(dir.path(), "");
    let ranks = ranks_of(&child);
    // SAFETY: the child runs.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("signal 2"));
    assert!(files(dir.path()).is_empty());
    for rank in ranks {
        assert!(!Path::new(&format!("/proc/{rank}")).exists(), "a process was left");
    }
}

#[test]
fn bench_tells_a_full_buffer_and_wrong_parameters() {
    let buffer =
        Buffer::mount_with(Options { kind: Kind::Tmpfs, capacity: 16 << 20, extra: Vec::new() });
    let output = bench(&buffer.root(), "-N 2 -t 1m -b 64m -w -o f");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("No space left") && told.contains("of f"), "{told}");
    assert!(files(&buffer.root()).is_empty());
    let dir = disk();
    for (args, expected) in [
        ("-t 3k -b 4k", "not a multiple"),
        ("-N 0", "number of processes"),
        ("-t 4k -b 4k -z", "nothing to reorder"),
        ("-t 4k -b 64k -z -C", "-F"),
        ("-R", "-G"),
        ("-O nonsense=1", "numTasksOnNode0"),
        ("-a MPIIO", "start it by mpirun or srun"),
        ("-t 100 -b 1000 --odirect", "512"),
        ("-D=-1", "-D"),
        ("-M 101%", "0% to 100%"),
        ("-M 1m -O memoryPerTask=1m", "without -O memoryPerTask"),
        ("-b 9000000000g -t 1g", "too large"),
    ] {
        let output = bench(dir.path(), &format!("{args} -o f"));
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args}: {told}");
        assert!(told.contains(expected), "{args}: {told}");
    }
    assert!(files(dir.path()).is_empty());
}
