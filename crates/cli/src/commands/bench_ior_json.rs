//! The JSON of `forebay bench ior`: all keys that IOR prints at its default verbosity, with its types, and keys of ours beside them, so
//! that what reads IOR's reads ours.
//!
//! Invariants: a key of IOR's means here what it means there; numbers have full precision, where IOR has four decimals. What a run does not
//! have (a reference number, a dry run) has IOR's value for "not asked for".
//! Caller: `bench`.

use super::bench_compressed::compressed_share;
use crate::args_bench::{ContentArg, IorArgs};
use forebay_loadgen::ior::Ior;
use forebay_loadgen::mpi;
use forebay_loadgen::outcome::{Access, Phase, Run, Stonewall};
use forebay_workload::ior::Order;
use serde_json::{Map, Value, json};
use std::path::Path;

const MIB: f64 = (1 << 20) as f64;

/// A run, with the moments (seconds since 1970) between which it lay.
pub(super) struct Printed<'a> {
    pub args: &'a IorArgs,
    pub ior: &'a Ior,
    pub run: &'a Run,
    pub began_s: u64,
    pub finished_s: u64,
    pub notes: &'a [String],
}

impl Printed<'_> {
    /// The whole document.
    pub fn json(&self) -> Value {
        let command: Vec<String> =
            std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
        let machine = rustix::system::uname();
        let text = |word: &std::ffi::CStr| word.to_string_lossy().into_owned();
        json!({
            "Version": env!("CARGO_PKG_VERSION"),
            "Began": as_ctime(self.began_s),
            "Finished": as_ctime(self.finished_s),
            "Command line": command.join(" "),
            "Machine": format!("{} {} {}", text(machine.sysname()), text(machine.nodename()), text(machine.release())),
            "began_s": self.began_s,
            "finished_s": self.finished_s,
            "notes": self.notes,
            "tests": [self.test()],
            "summary": self.summary(),
        })
    }

    fn test(&self) -> Value {
        let mut test = Map::new();
        test.insert("TestID".into(), 0.into());
        test.insert("StartTime".into(), as_ctime(self.began_s).into());
        test.insert("Path".into(), json!(self.ior.path));
        test.extend(of_file_system(&self.ior.path));
        test.insert("Parameters".into(), self.parameters());
        test.insert("Options".into(), self.options());
        test.insert("Results".into(), self.run.phases.iter().map(Phase::json).collect());
        test.insert("max".into(), self.largest());
        Value::Object(test)
    }

    /// The largest bandwidth of each direction.
    fn largest(&self) -> Value {
        let mut largest = Map::new();
        for phase in &self.run.phases {
            let direction = if phase.access.is_write() { "write" } else { "read" };
            let per_s = phase.figures().bandwidth();
            for (unit, bytes) in [("MiB", MIB), ("MB", 1e6)] {
                let value = largest.entry(format!("{direction}{unit}")).or_insert(json!(0.0));
                *value = json!(value.as_f64().unwrap_or(0.0).max(per_s / bytes));
            }
        }
        Value::Object(largest)
    }

    /// What was asked for, by IOR's names.
    fn parameters(&self) -> Value {
        let (args, ior) = (self.args, self.ior);
        // IOR's kinds of content have numbers and letters; the default here is none of them.
        let (number, letter) = match args.content {
            ContentArg::Stamped => (Value::Null, "stamped"),
            ContentArg::Timestamp => (1.into(), "t"),
            ContentArg::Offset => (2.into(), "o"),
            ContentArg::Incompressible => (3.into(), "i"),
            ContentArg::Random => (4.into(), "r"),
        };
        let machine = rustix::system::uname();
        let mut all = json!({
            "testID": 0,
            "refnum": 0,
            "api": args.api,
            "platform": format!("{}(Linux)", machine.nodename().to_string_lossy()),
            "testFileName": ior.path,
            "deadlineForStonewall": args.deadline_s.unwrap_or(0.0),
            "stoneWallingWearOut": u8::from(ior.wear_out),
            "maxTimeDuration": args.max_minutes.unwrap_or(0.0),
            "outlierThreshold": 0,
            "options": args.options.join(","),
            "dryRun": 0,
            "nodes": nodes(),
            "memoryPerTask": if args.hog.is_some() { 0 } else { self.held_by_each() },
            "memoryPerNode": if args.hog.is_some() { ior.hog_bytes } else { 0 },
            "tasksPerNode": self.tasks_per_node(),
            "repetitions": ior.repetitions,
            "multiFile": u8::from(ior.multi_file),
            "interTestDelay": args.delay_s,
            "fsync": u8::from(ior.fsync),
            "fsyncperwrite": u8::from(ior.fsync_per_write),
            "useExistingTestFile": u8::from(ior.use_existing),
            "uniqueDir": u8::from(ior.unique_dir),
            "singleXferAttempt": 0,
            "readFile": u8::from(ior.read),
            "writeFile": u8::from(ior.write),
            "filePerProc": u8::from(ior.pattern.file_per_process),
            "reorderTasks": u8::from(args.reorder),
        });
        let rest = json!({
            "reorderTasksRandom": args.reorder_random,
            "reorderTasksRandomSeed": args.reorder_seed,
            "randomOffset": args.random_offset,
            "checkWrite": u8::from(ior.write_check),
            "checkRead": u8::from(ior.read_check),
            "dataPacketType": number,
            "keepFile": u8::from(ior.keep),
            "keepFileWithError": u8::from(ior.keep_after_errors),
            "warningAsErrors": 0,
            "verbose": 0,
            "data packet type": letter,
            "setTimeStampSignature/incompressibleSeed": ior.seed,
            "collective": u8::from(args.collective),
            "segmentCount": ior.pattern.segments,
            "transferSize": ior.pattern.transfer_bytes,
            "blockSize": ior.pattern.block_bytes,
            // Ours.
            "numTasks": ior.pattern.tasks,
            "taskPerNodeOffset": args.task_per_node_offset,
            "randomOffsetSeed": ior.pattern.order_seed,
            "useO_DIRECT": u8::from(ior.direct),
            "cold": ior.cold,
            "contentCompressedShare": compressed_share(ior),
        });
        merge(&mut all, rest);
        all
    }

    /// What IOR's text shows before the table.
    fn options(&self) -> Value {
        let (args, ior) = (self.args, self.ior);
        let pattern = &ior.pattern;
        let mut all = json!({
            "api": args.api,
            "apiVersion": "",
            "test filename": ior.path,
            "access": if pattern.file_per_process { "file-per-process" } else { "single-shared-file" },
            "type": if args.collective { "collective" } else { "independent" },
            "segments": pattern.segments,
            "ordering in a file": if pattern.order == Order::Sequential { "sequential" } else { "random" },
            "nodes": nodes(),
            "tasks": pattern.tasks,
            "clients per node": self.tasks_per_node(),
            "memoryBuffer": "CPU",
            "dataAccess": "CPU",
            "GPUDirect": "0",
            "repetitions": ior.repetitions,
            "xfersize": binary_size(pattern.transfer_bytes),
            "blocksize": binary_size(pattern.block_bytes),
            "aggregate filesize": binary_size(pattern.total_bytes().unwrap_or(u64::MAX)),
        });
        let between = match (args.reorder, args.reorder_random) {
            (true, _) => json!({
                "ordering inter file": "constant task offset",
                "task offset": args.task_per_node_offset,
            }),
            (false, 0) => json!({ "ordering inter file": "no tasks offsets" }),
            (false, _) => json!({
                "ordering inter file": "random task offset",
                "task offset": args.task_per_node_offset,
                "reorder random seed": args.reorder_seed,
            }),
        };
        merge(&mut all, between);
        if ior.hog_bytes > 0 {
            merge(&mut all, json!({ "memoryPerNode": binary_size(ior.hog_bytes) }));
        }
        if let Some(seconds) = args.deadline_s.filter(|seconds| *seconds > 0.0) {
            let limit = json!({
                "stonewallingTime": seconds,
                "stoneWallingWearOut": u8::from(ior.wear_out),
            });
            merge(&mut all, limit);
        }
        all
    }

    /// The lines of IOR's summary: of each kind of phase, over its repetitions.
    fn summary(&self) -> Value {
        let (args, pattern) = (self.args, &self.ior.pattern);
        let lines = self.run.by_access().into_iter().zip(self.run.summary_json());
        let of_line = |((access, phases), mut line): ((Access, Vec<&Phase>), Value)| {
            let shared = json!({
                "API": args.api,
                "TestID": 0,
                "ReferenceNumber": 0,
                "segmentCount": pattern.segments,
                "tasksPerNode": self.tasks_per_node(),
                "filePerProc": u8::from(pattern.file_per_process),
                "reorderTasks": u8::from(args.reorder),
                "taskPerNodeOffset": args.task_per_node_offset,
                "reorderTasksRandom": args.reorder_random,
                "reorderTasksRandomSeed": args.reorder_seed,
                "xsizeMiB": phases.first().map_or(0, |phase| phase.figures().bytes) as f64 / MIB,
            });
            merge(&mut line, shared);
            let walls: Vec<&Stonewall> =
                phases.iter().filter_map(|phase| phase.stonewall.as_ref()).collect();
            if self.ior.wear_out && access.is_write() && !walls.is_empty() {
                let time_s: f64 = walls.iter().map(|wall| wall.time_s).sum();
                let bytes: u64 = walls.iter().map(|wall| wall.total_bytes).sum();
                // Of one process, as IOR has it.
                let mean_bytes = bytes as f64 / f64::from(pattern.tasks);
                let wall = json!({
                    "StoneWallTime": time_s / walls.len() as f64,
                    "StoneWallbwMeanMIB": mean_bytes / time_s / MIB,
                });
                merge(&mut line, wall);
            }
            line
        };
        lines.map(of_line).collect()
    }

    fn held_by_each(&self) -> u64 {
        self.ior.hog_bytes / u64::from(self.ior.pattern.tasks)
    }

    fn tasks_per_node(&self) -> u32 {
        mpi::world().map_or(self.ior.pattern.tasks, mpi::World::tasks_on_node_0)
    }
}

fn nodes() -> u32 {
    mpi::world().map_or(1, mpi::World::nodes)
}

fn merge(into: &mut Value, more: Value) {
    if let (Value::Object(into), Value::Object(more)) = (into, more) {
        into.extend(more);
    }
}

/// How full the file system of a path is, in IOR's words; nothing where it cannot be asked.
fn of_file_system(path: &Path) -> Map<String, Value> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let Ok(told) = rustix::fs::statvfs(parent.unwrap_or(Path::new("."))) else {
        return Map::new();
    };
    let used = |free: u64, all: u64| match all {
        0 => "0.0%".to_string(),
        all => format!("{:.1}%", (1.0 - free as f64 / all as f64) * 100.0),
    };
    let bytes = told.f_blocks as f64 * told.f_frsize as f64;
    let gib = bytes / (1_u64 << 30) as f64;
    let capacity = match gib > 1024.0 {
        true => format!("{:.1} TiB", gib / 1024.0),
        false => format!("{gib:.1} GiB"),
    };
    let inodes = format!("{:.1} Mi", told.f_files as f64 / MIB);
    [
        ("Capacity", capacity),
        ("Used Capacity", used(told.f_bfree, told.f_blocks)),
        ("Inodes", inodes),
        ("Used Inodes", used(told.f_ffree, told.f_files)),
    ]
    .into_iter()
    .map(|(key, text)| (key.to_string(), Value::String(text)))
    .collect()
}

/// A size as IOR writes it: `1 MiB`, `1.50 GiB`, `47008 bytes`.
fn binary_size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB")];
    let Some((shift, unit)) = units.into_iter().find(|(shift, _)| bytes >> shift > 0) else {
        return format!("{bytes} bytes");
    };
    match bytes.trailing_zeros() >= shift {
        true => format!("{} {unit}", bytes >> shift),
        false => format!("{:.2} {unit}", bytes as f64 / (1_u64 << shift) as f64),
    }
}

/// A moment as ctime(3) writes it, which IOR uses: local time, `Thu Nov 26 08:03:01 2026`.
fn as_ctime(unix_s: u64) -> String {
    let mut text = [0 as libc::c_char; 32];
    let time = unix_s as libc::time_t;
    // SAFETY: ctime_r writes at most 26 bytes, with a NUL at their end, or gives NULL and the text stays empty.
    let text = unsafe {
        libc::ctime_r(&raw const time, text.as_mut_ptr());
        std::ffi::CStr::from_ptr(text.as_ptr())
    };
    text.to_string_lossy().trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_moments_are_written_as_ior_writes_them() {
        for (bytes, text) in [
            (47_008, "47008 bytes"),
            (256 << 10, "262144 bytes"),
            (1 << 20, "1 MiB"),
            (3 << 19, "1.50 MiB"),
            (1 << 30, "1 GiB"),
            (5 << 39, "2.50 TiB"),
        ] {
            assert_eq!(binary_size(bytes), text);
        }
        let moment = as_ctime(1_795_680_181);
        assert_eq!(moment.split_whitespace().count(), 5, "{moment}");
        assert!(moment.ends_with("2026") && moment.contains(" Nov "), "{moment}");
    }
}
