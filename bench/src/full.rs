//! What a buffer that is nearly full costs: small files made at 95 % of the capacity against the same at
//! 50 %, in the same buffer, in turn.

use crate::lifetime::Place;
use crate::machine;
use crate::report::{Row, Target};
use crate::sides::{self, Buffer, Scratch};
use crate::stats::Summary;
use anyhow::{Context, Result};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;

/// Files of a sample.
const FILES: usize = 500;
/// Bytes of each.
const FILE_BYTES: usize = 50;
/// Parts of the capacity that are full, in percent: what is compared, and with what.
const FULL_PERCENT: [u64; 2] = [50, 95];
/// Time at 95 % over time at 50 %, at most.
const TARGET: f64 = 1.5;
const NOTE: &str =
    "500 files of 50 bytes; raw: at 50 % of the capacity, buffer: at 95 %; the ratio is of times.";

/// What makes the files.
#[derive(Clone, Copy)]
enum Act {
    Create,
    Nameless,
    StageIn,
}

impl Act {
    fn case(self) -> &'static str {
        match self {
            Act::Create => "create and write small files, 95 % full against 50 %",
            Act::Nameless => "small files by O_TMPFILE, 95 % full against 50 %",
            Act::StageIn => "stage in small files, 95 % full against 50 %",
        }
    }
}

/// Measures all of it in a buffer of its own.
pub fn measure(place: &Place<'_>, disk: &Scratch, pairs: usize) -> Result<Vec<Row>> {
    let source = disk.dir("full.source")?;
    for index in 0..FILES {
        let path = source.join(format!("f{index:05}"));
        std::fs::write(&path, [b'x'; FILE_BYTES])
            .with_context(|| format!("write {}", path.display()))?;
    }
    let buffer =
        Buffer::mount_quietly(place.forebay, place.flash, place.mount_point, place.capacity_bytes)?;
    let acts = [Act::Create, Act::Nameless, Act::StageIn];
    let mut seconds: [[Vec<f64>; 2]; 3] = Default::default();
    for pair in 0..pairs {
        for turn in 0..2 {
            let level = (turn + pair) % 2;
            let filler = fill(place, FULL_PERCENT[level])?;
            for (act, seconds) in acts.iter().zip(&mut seconds) {
                seconds[level].push(sample(*act, place, &source)?);
            }
            drop(filler);
        }
    }
    buffer.umount(false)?;
    acts.iter().zip(&seconds).map(|(act, seconds)| row(*act, seconds)).collect()
}

/// Takes so much of the capacity.
fn fill(place: &Place<'_>, percent: u64) -> Result<File> {
    let path = place.mount_point.join("filler");
    let file = File::create(&path).with_context(|| format!("make {}", path.display()))?;
    let bytes = place.capacity_bytes / 100 * percent;
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)
        .with_context(|| format!("allocate {bytes} bytes for {}", path.display()))?;
    Ok(file)
}

/// Makes the files, and removes them when the time is taken.
fn sample(act: Act, place: &Place<'_>, source: &Path) -> Result<f64> {
    let dir = place.mount_point.join("files");
    if !matches!(act, Act::StageIn) {
        std::fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
    }
    let begin = machine::monotonic_ns();
    let kept = match act {
        Act::Create => create(&dir).map(|()| Vec::new())?,
        Act::Nameless => nameless(&dir)?,
        Act::StageIn => {
            let words = [OsStr::new("stage"), "in".as_ref(), source.as_ref(), dir.as_ref()];
            sides::run(place.forebay, &words)?;
            Vec::new()
        }
    };
    let seconds = (machine::monotonic_ns() - begin) as f64 / 1e9;
    drop(kept);
    std::fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
    Ok(seconds)
}

fn create(dir: &Path) -> Result<()> {
    for index in 0..FILES {
        let path = dir.join(format!("f{index:05}"));
        std::fs::write(&path, [b'x'; FILE_BYTES])
            .with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// All stay open until the sample ends.
fn nameless(dir: &Path) -> Result<Vec<rustix::fd::OwnedFd>> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    (0..FILES)
        .map(|_| {
            let file = rustix::fs::open(dir, flags, Mode::from(0o600))
                .with_context(|| format!("make a file in {}", dir.display()))?;
            rustix::io::write(&file, &[b'x'; FILE_BYTES])
                .with_context(|| format!("write to a file in {}", dir.display()))?;
            Ok(file)
        })
        .collect()
}

fn row(act: Act, [half, nearly]: &[Vec<f64>; 2]) -> Result<Row> {
    let ratios: Vec<f64> = half.iter().zip(nearly).map(|(half, nearly)| nearly / half).collect();
    let median = |values: &[f64]| Summary::of(values).map(|summary| summary.median);
    Ok(Row {
        part: "full",
        case: act.case().to_string(),
        target: Some(Target::RatioAtMost(TARGET)),
        value: Summary::of(&ratios).context("no pairs")?,
        pairs_run: ratios.len(),
        disturbed: false,
        raw: median(half),
        buffer: median(nearly),
        unit: "s",
        cpu: None,
        note: NOTE,
    })
}
