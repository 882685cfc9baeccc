//! The first read of a big file from a slow PFS, against reading the PFS itself.
//!
//! Both sides read files of their own, whose pages were dropped, in calls of 128 KiB as `cat` does.

use super::{Mounted, SLOW_BYTES_PER_S, Setting, Times, timed};
use crate::report::{Row, Target};
use crate::staging;
use anyhow::{Context, Result, bail};
use forebay_testkit::slow_disk::SlowDisk;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Bytes of one read.
const READ_BYTES: usize = 128 << 10;
/// The least share of the PFS's own speed.
const TARGET: f64 = 0.9;

const NOTE: &str = "cache, first read: raw reads the same bytes from the PFS itself; nothing of them is in \
    the page cache on either side.";

fn read_all(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let (mut buffer, mut got) = (vec![0; READ_BYTES], 0);
    loop {
        match file.read(&mut buffer).with_context(|| format!("read {}", path.display()))? {
            0 => break,
            n => got += n as u64,
        }
    }
    if got != bytes {
        bail!("{} has {got} bytes instead of {bytes}", path.display());
    }
    Ok(())
}

/// One row.
pub fn measure(setting: &Setting<'_>, slow: &SlowDisk, keep: &mut impl FnMut(Row)) -> Result<()> {
    let (bytes, pairs): (u64, usize) = if setting.quick { (128 << 20, 3) } else { (512 << 20, 5) };
    let name = |side: usize, pair: usize| format!("fill.{side}.{pair}");
    for pair in 0..pairs {
        for side in 0..2 {
            staging::make_big(&slow.path().join(name(side, pair)), bytes)?;
        }
    }
    staging::settle(slow.path())?;
    staging::drop_pages(slow.path())?;
    slow.limit(SLOW_BYTES_PER_S)?;
    let mounted = Mounted::new(setting, slow.path(), &[])?;
    let mut times = Times::default();
    for pair in 0..pairs {
        for turn in 0..2 {
            let side = (turn + pair) % 2;
            let dir = if side == 0 { slow.path() } else { &mounted.mount_point };
            let before = mounted.daemon_cpu_ns()?;
            times.take(side, timed(|| read_all(&dir.join(name(side, pair)), bytes))?);
            if side == 1 {
                times.daemon.push((mounted.daemon_cpu_ns()? - before) as f64 / 1e9);
            }
        }
    }
    mounted.umount()?;
    slow.limit(0)?;
    for pair in 0..pairs {
        for side in 0..2 {
            std::fs::remove_file(slow.path().join(name(side, pair)))?;
        }
    }
    let cpu = ("s/GiB", f64::from(1 << 30) / bytes as f64);
    let target = Some(Target::RatioAtLeast(TARGET));
    keep(times.row("cache miss: first read, PFS of 100 MB/s".into(), target, cpu, NOTE)?);
    Ok(())
}
