//! How long it takes to get a buffer and to be rid of it.

use crate::machine;
use crate::report::{Row, Target};
use crate::sides::Buffer;
use crate::stats::Summary;
use anyhow::{Context, Result, bail};
use std::path::Path;

/// What a buffer is made from.
pub struct Place<'a> {
    /// The executable.
    pub forebay: &'a Path,
    /// Where the store goes.
    pub flash: &'a Path,
    /// Mount point.
    pub mount_point: &'a Path,
    /// Capacity.
    pub capacity_bytes: u64,
}

impl Place<'_> {
    /// Mounts without asking for the status, which is no part of the times.
    fn mount(&self) -> Result<Buffer> {
        Buffer::mount_quietly(self.forebay, self.flash, self.mount_point, self.capacity_bytes)
    }
}

/// A row of seconds.
pub fn row(case: &str, target_s: f64, seconds: &[f64], note: &'static str) -> Result<Row> {
    Ok(Row {
        part: "lifetime",
        case: case.to_string(),
        target: Some(Target::SecondsAtMost(target_s)),
        value: Summary::of(seconds).context("no samples")?,
        pairs_run: seconds.len(),
        disturbed: false,
        raw: None,
        buffer: None,
        unit: "s only",
        cpu: None,
        note,
    })
}

fn seconds_since(begin_ns: u64) -> f64 {
    (machine::monotonic_ns() - begin_ns) as f64 / 1e9
}

/// Makes buffers and mounts kept ones, `count` times.
pub fn measure(place: &Place<'_>, count: usize) -> Result<Vec<Row>> {
    let (mut create, mut first_new, mut first_kept, mut destroy) =
        <(Vec<_>, Vec<_>, Vec<_>, Vec<_>)>::default();
    let byte = place.mount_point.join("byte");
    for _ in 0..count {
        let begin = machine::monotonic_ns();
        let buffer = place.mount()?;
        create.push(seconds_since(begin));
        std::fs::write(&byte, b"x").with_context(|| format!("write {}", byte.display()))?;
        read_byte(&byte)?;
        first_new.push(seconds_since(begin));
        buffer.umount(true)?;

        let begin = machine::monotonic_ns();
        let buffer = place.mount()?;
        read_byte(&byte)?;
        first_kept.push(seconds_since(begin));
        std::fs::remove_file(&byte).with_context(|| format!("remove {}", byte.display()))?;

        let begin = machine::monotonic_ns();
        buffer.umount(false)?;
        destroy.push(seconds_since(begin));
    }
    const NOTE: &str = "times are from the start of the command to its end, or to the byte read.";
    Ok(vec![
        row("create an empty buffer (forebay mount)", 0.2, &create, NOTE)?,
        row("mount a new buffer to its first byte", 0.2, &first_new, NOTE)?,
        row("mount a kept buffer to its first byte", 0.2, &first_kept, NOTE)?,
        row("destroy an empty buffer (forebay umount)", 0.2, &destroy, NOTE)?,
    ])
}

fn read_byte(path: &Path) -> Result<()> {
    let bytes = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    if bytes != b"x" {
        bail!("{} holds {bytes:?}", path.display());
    }
    Ok(())
}

/// Fills buffers with `count` files in 100 directories and destroys them, `times` times.
pub fn measure_destroy(place: &Place<'_>, count: usize, times: usize) -> Result<Row> {
    let mut seconds = Vec::new();
    for _ in 0..times {
        let buffer = place.mount()?;
        for index in 0..count {
            let dir = place.mount_point.join(format!("d{:02}", index % 100));
            if index < 100 {
                std::fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
            }
            let path = dir.join(format!("f{index:06}"));
            std::fs::write(&path, b"content")
                .with_context(|| format!("make {}", path.display()))?;
        }
        let begin = machine::monotonic_ns();
        buffer.umount(false)?;
        seconds.push(seconds_since(begin));
    }
    const NOTE: &str = "the 100,000 files of the destroyed buffer have 7 bytes each.";
    row("destroy a buffer with 100,000 files (forebay umount)", 1.0, &seconds, NOTE)
}
