//! The drain of one big file and of many small ones, against `cp -a` with fsync and
//! `rsync -a --fsync` of the same from the store to the PFS.
//!
//! The cache's files are written first, with nothing drained; then the time until the PFS has all
//! of it, fsynced and verified, is that of `forebay wait`.

use super::{Mounted, Setting, Times, figure, timed};
use crate::report::{Row, Target};
use crate::{machine, staging};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// The least speed, as a ratio to the tool.
const TARGET: f64 = 0.9;
/// The least share of a limited PFS's speed.
const OF_LIMIT: f64 = 0.95;
/// What the processors may spend in the daemon.
const CPU_S_PER_GIB: f64 = 0.6;
/// Files of the small case in a quick run.
const QUICK_FILES: usize = 2_000;

const BIG_NOTE: &str = "cache, drain of a big file: raw is cp -a from the store, then fsync of the file and its \
    directory; the cache's is from `forebay wait` to its end, verified through the PFS's cache.";
const TREE_NOTE: &str =
    "cache, drain of small files: as the small files of staging; raw is rsync -a --fsync.";

/// Rows for a PFS that is limited to so many bytes per second, or not.
pub fn measure(
    setting: &Setting<'_>,
    pfs: &Path,
    limit: Option<u64>,
    keep: &mut impl FnMut(Row),
) -> Result<()> {
    let mounted = Mounted::new(setting, pfs, &["--drain", "end"])?;
    let of = match limit {
        Some(bytes) => format!("PFS of {} MB/s", bytes / 1_000_000),
        None => "PFS on the disk".to_string(),
    };
    measure_big(setting, &mounted, pfs, limit, &of, keep)?;
    measure_small(setting, &mounted, pfs, &of, keep)?;
    mounted.umount()
}

fn measure_big(
    setting: &Setting<'_>,
    mounted: &Mounted,
    pfs: &Path,
    limit: Option<u64>,
    of: &str,
    keep: &mut impl FnMut(Row),
) -> Result<()> {
    let bytes: u64 = if setting.quick { 192 << 20 } else { 768 << 20 };
    let source = mounted.sides.raw.join("big");
    staging::make_big(&source, bytes)?;
    let mut times = Times::default();
    for pair in 0..if setting.quick { 3 } else { 5 } {
        for turn in 0..2 {
            let side = (turn + pair) % 2;
            drain_once(mounted, pfs, &source, false, side, &mut times)?;
        }
    }
    std::fs::remove_file(&source)?;
    let gib = bytes as f64 / f64::from(1 << 30);
    let target = Some(Target::RatioAtLeast(TARGET));
    let name = format!("cache drain: one big file, {of}");
    keep(times.row(name, target, ("s/GiB", 1.0 / gib), BIG_NOTE)?);
    let cpu: Vec<f64> = times.daemon.iter().map(|seconds| seconds / gib).collect();
    let target = Target::SecondsPerGibAtMost(CPU_S_PER_GIB);
    keep(figure(format!("cache drain: CPU of the daemon, {of}"), target, &cpu, "")?);
    if let Some(limit) = limit {
        let least = bytes as f64 / limit as f64;
        let shares: Vec<f64> = times.seconds[1].iter().map(|took| least / took).collect();
        let target = Target::RatioAtLeast(OF_LIMIT);
        keep(figure(format!("cache drain: one big file, share of {of}"), target, &shares, "")?);
    }
    Ok(())
}

fn measure_small(
    setting: &Setting<'_>,
    mounted: &Mounted,
    pfs: &Path,
    of: &str,
    keep: &mut impl FnMut(Row),
) -> Result<()> {
    let files = if setting.quick { QUICK_FILES } else { staging::TREE_FILES };
    let source = mounted.sides.raw.join("tree");
    staging::make_tree(&source, files)?;
    let mut times = Times::default();
    for pair in 0..if setting.quick { 1 } else { 3 } {
        for turn in 0..2 {
            let side = (turn + pair) % 2;
            drain_once(mounted, pfs, &source, true, side, &mut times)?;
        }
    }
    std::fs::remove_dir_all(&source)?;
    let target = Some(Target::RatioAtLeast(TARGET));
    let name = format!("cache drain: {files} small files, {of}");
    keep(times.row(name, target, ("us/op", 1e6 / files as f64), TREE_NOTE)?);
    Ok(())
}

/// One sample on one side. The result is removed afterwards.
fn drain_once(
    mounted: &Mounted,
    pfs: &Path,
    source: &Path,
    tree: bool,
    side: usize,
    times: &mut Times,
) -> Result<()> {
    let name = format!("{}.out", if tree { "tree" } else { "big" });
    let there = pfs.join(&name);
    if side == 0 {
        staging::settle(pfs)?;
        times.take(0, timed(|| staging::copy_raw(tree, source, &there))?);
        check(source, &there)?;
        return remove(&there);
    }
    let here = mounted.mount_point.join(&name);
    let args = ["-a".as_ref(), source.as_os_str(), here.as_os_str()];
    crate::sides::run(Path::new("cp"), &args)?;
    staging::settle(pfs)?;
    machine::wait_until_idle(mounted.sides.daemon.context("no daemon")?)?;
    let before = mounted.daemon_cpu_ns()?;
    times.take(1, timed(|| mounted.wait())?);
    times.daemon.push((mounted.daemon_cpu_ns()? - before) as f64 / 1e9);
    check(source, &there)?;
    remove(&here)
}

/// Sizes and bytes are the same on both sides.
fn check(source: &Path, there: &Path) -> Result<()> {
    for file in staging::files_below(source)? {
        let other: PathBuf = match file.strip_prefix(source)? {
            rest if rest.as_os_str().is_empty() => there.to_path_buf(),
            rest => there.join(rest),
        };
        let (ours, theirs) = (std::fs::read(&file)?, std::fs::read(&other)?);
        if ours != theirs {
            bail!("{} is not what was drained", other.display());
        }
    }
    Ok(())
}

fn remove(path: &Path) -> Result<()> {
    let removed =
        if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    removed.with_context(|| format!("remove {}", path.display()))
}
