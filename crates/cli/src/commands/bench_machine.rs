//! `forebay bench machine DIR [--pfs DIR]`: what a simulator needs to know of this machine, measured, as a machine file.
//!
//! For each size of request one process writes and reads a file; the figure is the median of single requests (their mean where
//! that is much larger: the device has a budget). A request of L
//! bytes is then taken to last L/B + T: B from the two largest sizes, T from the smallest. Requests go past the page cache
//! (O_DIRECT) where the file system has that; else each write is followed by an fsync, and reads begin with an empty cache where that can be seen.
//!
//! Invariant: the file says how each figure came about, and which of its entries nobody has measured.

use super::bench_bar::bar;
use super::bench_common::{OwnDir, drawn_seed};
use crate::args_compare::MachineArgs;
use crate::failure::{EXIT_OK, Outcome, Usage, at, print_json, refused};
use forebay_loadgen::link::{self, Link};
use forebay_loadgen::replay::board::Class;
use forebay_loadgen::replay::{Options, ReplayError, Silent, play};
use forebay_loadgen::residency::Cache;
use forebay_proto::control::ControlError;
use forebay_workload::patterns::op_timing::{Locality, OpTiming};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Sizes of requests, in bytes.
const SIZES: [u64; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// Requests of each size, at least and at most.
const REQUESTS: (u64, u64) = (16, 2048);

/// Where the mean of requests is so many times their median, it is the figure.
const UNEVEN: f64 = 1.5;
/// Processes of a node that a simulation may have: more than it has processors wait for them where names cost something.
const PROCESSES: usize = 64;

/// How requests were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Direct,
    /// Writes with fsync each, reads from an empty cache.
    Cold,
    /// The same, but what reads find in caches elsewhere cannot be seen.
    Unseen,
    /// The file system lives in memory: there is nothing behind the page cache, whatever O_DIRECT says.
    Memory,
}

impl How {
    fn words(self) -> &'static str {
        match self {
            How::Direct => "past the page cache (O_DIRECT)",
            How::Cold => "writes with an fsync each, reads from an empty page cache",
            How::Unseen => "writes with an fsync each; what reads found in a cache cannot be seen",
            How::Memory => "a file system in memory: copies of pages, and no device",
        }
    }
}

/// One directory.
struct Measured {
    how: How,
    /// Median seconds of a write, and of a read, by size.
    write_s: Vec<f64>,
    read_s: Vec<f64>,
}

/// L/B + T.
struct Fit {
    bytes_per_s: f64,
    overhead_s: f64,
}

/// Runs it.
pub fn machine(args: &MachineArgs) -> Outcome {
    if let Some(address) = &args.link_serve {
        let told = |address| eprintln!("forebay bench: the other end of a link, at {address}");
        link::serve(address, told)
            .map_err(|error| ControlError::io(&format!("listen at {address}"), None, &error))?;
        return Ok(EXIT_OK);
    }
    let Some(flash) = &args.dir else { return Err(Usage("expected DIR".into()).into()) };
    if args.bytes < SIZES[SIZES.len() - 1] {
        let why = format!("--bytes: {} bytes are too few", args.bytes);
        return Err(refused(&why, "expected at least 4MiB, one of the largest requests").into());
    }
    let bar = bar(args.quiet || args.json);
    let dirs: Vec<&Path> =
        [Some(flash), args.pfs.as_ref()].into_iter().flatten().map(|p| p.as_path()).collect();
    bar.set_length((dirs.len() * SIZES.len() * 2) as u64);
    let mut measured = Vec::new();
    for dir in &dirs {
        bar.set_message(dir.display().to_string());
        measured.push(measure(dir, args.bytes, &mut || bar.inc(1))?);
    }
    bar.finish_and_clear();
    // Last: it starts a thread, and the others fork.
    let link = match &args.link {
        Some(address) => link::measure(address).map_err(|error| {
            let told = ControlError::io(&format!("measure the way to {address}"), None, &error);
            told.hint("start `forebay bench machine --link-serve` there")
        })?,
        None => link::measure_loopback()
            .map_err(|error| ControlError::io("measure the loopback", None, &error))?,
    };
    let text = match args.json && args.output.is_none() {
        true => None,
        false => Some(machine_file(args, flash, &measured, &link)?),
    };
    match (&text, &args.output) {
        (Some(text), Some(path)) => std::fs::write(path, text).map_err(at("write", path))?,
        (Some(text), None) => print!("{text}"),
        (None, _) => {}
    }
    if args.json {
        let all: Vec<Value> = dirs.iter().zip(&measured).map(|(dir, m)| m.json(dir)).collect();
        print_json(&json!({
            "directories": all,
            "link": {
                "to": args.link,
                "loopback": link.loopback,
                "round_trip_s": link.round_trip_s,
                "send_bytes_per_s": link.send_bytes_per_s,
                "fetch_bytes_per_s": link.fetch_bytes_per_s,
            },
        }))?;
    }
    Ok(EXIT_OK)
}

fn measure(dir: &Path, bytes: u64, step: &mut dyn FnMut()) -> anyhow::Result<Measured> {
    let own = OwnDir::make(dir, false)?;
    let mut how = how_of(own.path())?;
    let (mut write_s, mut read_s) = (Vec::new(), Vec::new());
    for size in SIZES {
        for write in [true, false] {
            let seconds = match median_s(own.path(), size, bytes, write, how) {
                Err(error) if how == How::Cold && !write && is_cache(&error) => {
                    how = How::Unseen;
                    median_s(own.path(), size, bytes, write, how)?
                }
                other => other?,
            };
            if write {
                write_s.push(seconds)
            } else {
                read_s.push(seconds)
            }
            step();
        }
    }
    own.remove()?;
    Ok(Measured { how, write_s, read_s })
}

/// Whether a run failed because reads could not be made cold.
fn is_cache(error: &anyhow::Error) -> bool {
    error.downcast_ref::<ReplayError>().is_some_and(
        |error| matches!(error, ReplayError::Rank(told) if told.contains("is to be cold")),
    )
}

/// How requests are made in a directory.
fn how_of(dir: &Path) -> anyhow::Result<How> {
    let path = dir.join("probe");
    std::fs::write(&path, [0; 4096]).map_err(at("write", &path))?;
    let cache = Cache::of_all(std::iter::once(path.clone()));
    let _ = std::fs::remove_file(&path);
    let said =
        |(path, error): (PathBuf, std::io::Error)| at("look at the page cache of", &path)(error);
    let cache = cache.map_err(said)?;
    // tmpfs takes the flag, and copies pages all the same.
    Ok(match (cache, takes_direct(dir)) {
        (Cache::Memory, _) => How::Memory,
        (_, true) => How::Direct,
        (_, false) => How::Cold,
    })
}

fn takes_direct(dir: &Path) -> bool {
    let path = dir.join("direct");
    let opened = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(libc::O_DIRECT)
        .open(&path);
    // It goes with the directory if it cannot be removed now.
    let _ = std::fs::remove_file(&path);
    opened.is_ok()
}

fn median_s(dir: &Path, size: u64, bytes: u64, write: bool, how: How) -> anyhow::Result<f64> {
    let timing = OpTiming {
        processes: 1,
        access_bytes: size,
        operations: (bytes / size).clamp(REQUESTS.0, REQUESTS.1),
        locality: Locality::Seq,
        write,
        cold: how == How::Cold && !write,
        sync_each: !matches!(how, How::Direct | How::Memory) && write,
        direct: how == How::Direct,
        seed: drawn_seed(),
    };
    let workload = timing.workload().map_err(|refused| Usage(refused.to_string()))?;
    let below = dir.join(format!("{size}-{write}"));
    std::fs::create_dir_all(&below).map_err(at("make", &below))?;
    let played = play(&workload, &Options::of(&below), &mut Silent)?;
    std::fs::remove_dir_all(&below).map_err(at("remove", &below))?;
    let class = if write { Class::Write } else { Class::Read };
    let nothing = || ControlError::new("measure requests in", Some(dir), "none was measured");
    let phase = played.phases.first().ok_or_else(nothing)?;
    let median = phase.latency_s(class, 0.5).ok_or_else(nothing)?;
    let mean_s = phase.busy_s(class) / phase.calls(class).max(1) as f64;
    // A disk or link with a budget lets most requests pass at once and a few wait for long: its rate is in the mean alone.
    Ok(if mean_s > median * UNEVEN { mean_s } else { median })
}

/// B from the two largest sizes, T from the smallest.
fn fit(seconds: &[f64]) -> Fit {
    let last = SIZES.len() - 1;
    let (bytes, time) = ((SIZES[last] - SIZES[last - 1]) as f64, seconds[last] - seconds[last - 1]);
    let whole = SIZES[last] as f64 / seconds[last];
    // Where noise makes the larger one cheaper, its own rate is all that is known.
    let bytes_per_s = if time > 0.0 { (bytes / time).min(whole * 4.0) } else { whole };
    Fit { bytes_per_s, overhead_s: (seconds[0] - SIZES[0] as f64 / bytes_per_s).max(0.0) }
}

impl Measured {
    fn json(&self, dir: &Path) -> Value {
        let side = |seconds: &[f64]| {
            let fit = fit(seconds);
            let rows: Vec<Value> = SIZES
                .iter()
                .zip(seconds)
                .map(|(size, seconds)| json!({ "bytes": size, "median_s": seconds }))
                .collect();
            json!({ "rate_bytes_per_s": fit.bytes_per_s, "overhead_s": fit.overhead_s, "requests": rows })
        };
        json!({
            "path": dir.display().to_string(),
            "how": self.how.words(),
            "write": side(&self.write_s),
            "read": side(&self.read_s),
        })
    }

    fn section(&self, name: &str, dir: &Path) -> String {
        let (write, read) = (fit(&self.write_s), fit(&self.read_s));
        let mut text = format!("[{name}]\n# {}, {}\n", dir.display(), self.how.words());
        for (at, size) in SIZES.iter().enumerate() {
            let _ = writeln!(
                text,
                "# {:>4} KiB: write {:.1} us, read {:.1} us",
                size >> 10,
                self.write_s[at] * 1e6,
                self.read_s[at] * 1e6
            );
        }
        let _ = writeln!(
            text,
            "write_rate = \"{:.3}MB/s\"\nread_rate = \"{:.3}MB/s\"\nwrite_overhead = \"{}ns\"\nread_overhead = \"{}ns\"",
            write.bytes_per_s / 1e6,
            read.bytes_per_s / 1e6,
            (write.overhead_s * 1e9) as u64,
            (read.overhead_s * 1e9) as u64
        );
        text
    }
}

fn machine_file(
    args: &MachineArgs,
    dir: &Path,
    measured: &[Measured],
    link: &Link,
) -> anyhow::Result<String> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let quoted = |text: &str| format!("{:?}", text);
    let mut text = format!(
        "# Measured by forebay bench machine.\nversion = 1\nname = {}\nabout = {}\nassumptions = [\n",
        quoted(&host),
        quoted("one node, measured by requests of one process, one after the other")
    );
    text.push_str(
        match link.loopback {
            true => "  \"The network is the loopback of this node: the way to storage is part of what was measured of storage.\",\n",
            false => "  \"The network was measured between two nodes, by one stream of TCP.\",\n",
        },
    );
    text.push_str(
        "  \"A device that is faster with several requests at once is faster than this.\",\n",
    );
    text.push_str(
        "  \"Reads and writes of a device wait for each other. Where each direction has a rate of its own, set reads_delay_writes = false.\",\n",
    );
    text.push_str("]\n");
    let _ = write!(
        text,
        "[compute]\nnodes = 1\nprocesses_per_node = {}\nprocessors = {processors}\n# Nobody schedules a replay.\nshared = true\n[network]\n# {}: {:.3} MB/s there, {:.3} MB/s back\nrate = \"{:.3}MB/s\"\nround_trip = \"{}ns\"\n[storage]\nservers = 1\nstripe = \"1MiB\"\n",
        processors.max(PROCESSES),
        args.link.as_deref().unwrap_or("the loopback of this node"),
        link.send_bytes_per_s / 1e6,
        link.fetch_bytes_per_s / 1e6,
        link.rate() / 1e6,
        (link.round_trip_s * 1e9) as u64
    );
    match (&args.pfs, measured) {
        (Some(pfs), [flash, storage]) => {
            text.push_str(&storage.section("storage.device", pfs));
            let free = rustix::fs::statvfs(dir)
                .map_err(|error| at("ask for the room in", dir)(error.into()))?;
            let capacity = free.f_bavail.saturating_mul(free.f_frsize);
            let _ = write!(
                text,
                "[buffer]\nattach = \"compute\"\n# what is free in {}\ncapacity = {capacity}\n",
                dir.display()
            );
            text.push_str(&flash.section("buffer.device", dir));
        }
        (_, [only, ..]) => text.push_str(&only.section("storage.device", dir)),
        _ => {}
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fit_finds_rate_and_overhead() {
        let seconds: Vec<f64> = SIZES.iter().map(|size| *size as f64 / 2e9 + 30e-6).collect();
        let fit = fit(&seconds);
        assert!(
            (fit.bytes_per_s / 2e9 - 1.0).abs() < 1e-9
                && (fit.overhead_s / 30e-6 - 1.0).abs() < 1e-9
        );
        let noisy = super::fit(&[1.0, 1.0, 1.0, 1.0, 1.0, 0.5]);
        assert_eq!(noisy.bytes_per_s, SIZES[5] as f64 / 0.5);
    }
}
