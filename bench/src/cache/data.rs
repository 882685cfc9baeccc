//! Reads of whole clean files, writes of new files, and served writes, each against a plain directory
//! in the same store.
//!
//! Nothing drains while writes are measured (`--drain end`); before reads all of it has, so that what is
//! read is clean.

use super::{Mounted, Setting, figure};
use crate::data::{self, Case, Points};
use crate::report::{Row, Target};
use anyhow::Result;
use forebay_loadgen::held::{Op, Pattern, Workers};
use std::path::Path;

/// What the processors may spend in the daemon on hits.
const HIT_CPU_S_PER_GIB: f64 = 0.05;

const NOTE: &str = "cache, reads and writes: raw is a plain directory in the store; hits are of whole clean \
    files, after their drain; fresh writes are of new files with room to spare, and with served all \
    of them are requests. Flash on the disk: the store is an XFS on the disk, so that raw is a device, not \
    memory; each sample ends with an fsync.";

/// One process that goes through a file from its start.
pub fn case(op: Op, (block_bytes, sample_bytes): (u32, u64)) -> Case {
    Case {
        op,
        pattern: Pattern::Sequential,
        block_bytes,
        sample_bytes,
        processes: 1,
        shared: false,
        direct: false,
        synced: false,
    }
}

fn fast_target(block_bytes: u32) -> f64 {
    if block_bytes == 4096 { 0.78 } else { 0.85 }
}

fn served_target(block_bytes: u32) -> f64 {
    match block_bytes {
        4096 => 0.15,
        47_008 => 0.40,
        _ => 0.45,
    }
}

/// All rows.
pub fn measure(
    setting: &Setting<'_>,
    workers: &mut Workers,
    keep: &mut impl FnMut(Row),
) -> Result<()> {
    let pfs = setting.disk.dir("pfs.data")?;
    let mut hit_cpu = Vec::new();
    for (more, op, name, target) in [
        (&["--drain", "end"][..], Op::Read, "cache hit", fast_target as fn(u32) -> f64),
        (&["--drain", "end"][..], Op::Fresh, "cache", fast_target),
        (&["--drain", "end", "--writes", "served"][..], Op::Fresh, "cache, served", served_target),
    ] {
        let mounted = Mounted::new(setting, &pfs, more)?;
        for size in data::SIZES {
            let case = case(op, size);
            let ready = || if op == Op::Read { mounted.wait() } else { Ok(()) };
            let (pairs, points): (_, Points) =
                data::collect(&case, &mounted.sides, workers, setting.pairs, ready)?;
            if op == Op::Read {
                hit_cpu.extend(points[1].iter().map(|point| point.daemon_s_per_gib));
            }
            let name = format!("{name}: {}", case.name());
            let target = Some(Target::RatioAtLeast(target(case.block_bytes)));
            keep(data::bandwidth_row("cache", name, target, NOTE, &pairs, &points)?);
        }
        workers.forget()?;
        mounted.umount()?;
    }
    on_disk(setting, &pfs, workers, keep)?;
    let target = Target::SecondsPerGibAtMost(HIT_CPU_S_PER_GIB);
    keep(figure("cache hit: CPU of the daemon".into(), target, &hit_cpu, "")?);
    Ok(())
}

/// Served writes to flash that is a device: what a burst costs until it survives a power cut.
fn on_disk(
    setting: &Setting<'_>,
    pfs: &Path,
    workers: &mut Workers,
    keep: &mut impl FnMut(Row),
) -> Result<()> {
    let flash = setting.disk.dir("flash.data")?;
    let setting = Setting { flash: &flash, ..*setting };
    let mounted = Mounted::new(&setting, pfs, &["--drain", "end", "--writes", "served"])?;
    for size in data::SIZES {
        let case = Case { synced: true, ..case(Op::Fresh, size) };
        let (pairs, points) =
            data::collect(&case, &mounted.sides, workers, setting.pairs, || Ok(()))?;
        let name = format!("cache, served, flash on the disk: {}", case.name());
        let target = Some(Target::RatioAtLeast(served_target(case.block_bytes)));
        keep(data::bandwidth_row("cache", name, target, NOTE, &pairs, &points)?);
    }
    workers.forget()?;
    mounted.umount()
}
