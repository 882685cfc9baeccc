//! `forebay stage` against `cp -a` with fsync and `rsync -a --fsync`, to and from a disk.
//!
//! Both sides end with the data fsynced at the destination, and each sample is timed from the
//! start of the command to its end. Before a sample the disk's dirty data is written out, the
//! destination is new, and the pages of a source on the disk are dropped from the page cache on
//! either side, so that a stage in reads the disk and does not copy memory.

use crate::machine;
use crate::report::{Cpu, Row, Target};
use crate::sides::{self, Sides};
use crate::stats::Summary;
use anyhow::{Context, Result, bail};
use rand::{RngCore, SeedableRng};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Files of the tree, and directories that they are spread over.
const TREE_FILES: usize = 10_000;
const TREE_DIRS: usize = 100;
/// Sizes of the tree's files, in bytes: uniform between these.
const TREE_FILE_BYTES: std::ops::Range<u32> = 1..16_384;

const BIG_NOTE: &str = "big file: raw is cp -a, then fsync of the file and its directory; \
    forebay also verifies (cache: a checksum of the destination read through the page cache; \
    medium: read back past it).";
const TREE_NOTE: &str =
    "10,000 files of 1 to 16,384 bytes in 100 directories: raw is rsync -a --fsync.";

/// Most pairs for the tree: rsync takes half a minute for each on some disks.
const TREE_PAIRS_MAX: usize = 3;

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    In,
    Out,
}

/// What is copied and how.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    way: Way,
    tree: bool,
    verify: &'static str,
    target: f64,
    note: &'static str,
}

const CASES: [Case; 6] = [
    Case {
        name: "stage out, one big file, verified through the cache",
        way: Way::Out,
        tree: false,
        verify: "cache",
        target: 0.9,
        note: BIG_NOTE,
    },
    Case {
        name: "stage out, one big file, read back from the medium",
        way: Way::Out,
        tree: false,
        verify: "medium",
        target: 0.45,
        note: BIG_NOTE,
    },
    Case {
        name: "stage in, one big file, verified through the cache",
        way: Way::In,
        tree: false,
        verify: "cache",
        target: 0.9,
        note: BIG_NOTE,
    },
    Case {
        name: "stage in, one big file, read back from the medium",
        way: Way::In,
        tree: false,
        verify: "medium",
        target: 0.45,
        note: BIG_NOTE,
    },
    Case {
        name: "stage out, 10,000 small files",
        way: Way::Out,
        tree: true,
        verify: "cache",
        target: 2.0,
        note: TREE_NOTE,
    },
    Case {
        name: "stage in, 10,000 small files",
        way: Way::In,
        tree: true,
        verify: "cache",
        target: 2.0,
        note: TREE_NOTE,
    },
];

/// All rows for staging. `big_bytes` is the size of the big file.
pub fn measure(
    forebay: &Path,
    sides: &Sides,
    disk: &Path,
    big_bytes: u64,
    pairs: usize,
    mut done: impl FnMut(Row),
) -> Result<()> {
    make_sources(&sides.raw, &sides.buffer, disk, big_bytes)?;
    for case in &CASES {
        done(measure_case(case, forebay, sides, disk, big_bytes, pairs)?);
    }
    Ok(())
}

/// The same big file and tree on the disk, on the raw side and in the buffer.
fn make_sources(raw: &Path, buffer: &Path, disk: &Path, big_bytes: u64) -> Result<()> {
    let mut random = rand::rngs::SmallRng::seed_from_u64(1);
    let mut block = vec![0_u8; 1 << 20];
    let big = disk.join("big");
    let mut file = File::create(&big).with_context(|| format!("make {}", big.display()))?;
    for _ in 0..big_bytes >> 20 {
        random.fill_bytes(&mut block);
        file.write_all(&block).with_context(|| format!("write {}", big.display()))?;
    }
    for index in 0..TREE_FILES {
        let dir = disk.join("tree").join(format!("d{:02}", index % TREE_DIRS));
        if index < TREE_DIRS {
            std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        }
        let span = TREE_FILE_BYTES.end - TREE_FILE_BYTES.start;
        let bytes = (TREE_FILE_BYTES.start + random.next_u32() % span) as usize;
        let path = dir.join(format!("f{index:05}"));
        std::fs::write(&path, &block[..bytes])
            .with_context(|| format!("write {}", path.display()))?;
    }
    for target in [raw, buffer] {
        let args = [OsStr::new("-a"), big.as_ref(), OsStr::new("-t"), target.as_ref()];
        sides::run(Path::new("cp"), &args)?;
        let tree = disk.join("tree");
        let args = [OsStr::new("-a"), tree.as_ref(), OsStr::new("-t"), target.as_ref()];
        sides::run(Path::new("cp"), &args)?;
    }
    Ok(())
}

fn measure_case(
    case: &Case,
    forebay: &Path,
    sides: &Sides,
    disk: &Path,
    big_bytes: u64,
    pairs: usize,
) -> Result<Row> {
    let source_name = if case.tree { "tree" } else { "big" };
    let mut ratios = Vec::new();
    let mut seconds: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
    let mut cpu = CpuSeries::default();
    let pairs = if case.tree { pairs.min(TREE_PAIRS_MAX) } else { pairs };
    for pair in 0..pairs {
        let mut elapsed = [0.0; 2];
        for turn in 0..2 {
            let side = (turn + pair) % 2;
            let local = if side == 0 { &sides.raw } else { &sides.buffer };
            let copy = format!("{source_name}.{}.{side}.{pair}", case.verify);
            let (source, destination) = match case.way {
                Way::Out => (local.join(source_name), disk.join(copy)),
                Way::In => (disk.join(source_name), local.join(copy)),
            };
            settle(disk)?;
            if case.way == Way::In {
                drop_pages(&source)?;
            }
            let daemon_before = sides.daemon.map_or(Ok(0), machine::process_cpu_ns)?;
            let children_before = machine::children_cpu_ns();
            let begin = machine::monotonic_ns();
            if side == 0 {
                copy_raw(case, &source, &destination)?;
            } else {
                stage(case, forebay, &source, &destination)?;
            }
            elapsed[side] = (machine::monotonic_ns() - begin) as f64 / 1e9;
            seconds[side].push(elapsed[side]);
            let daemon_ns = sides.daemon.map_or(Ok(0), machine::process_cpu_ns)? - daemon_before;
            cpu.take(side, machine::children_cpu_ns() - children_before, daemon_ns);
            check_and_remove(case, &destination, big_bytes)?;
        }
        ratios.push(elapsed[0] / elapsed[1]);
    }
    let median = |values: &[f64]| Summary::of(values).map(|summary| summary.median);
    Ok(Row {
        part: "staging",
        case: case.name.to_string(),
        target: Some(Target::RatioAtLeast(case.target)),
        value: Summary::of(&ratios).context("no pairs")?,
        pairs_run: pairs,
        disturbed: false,
        raw: median(&seconds[0]),
        buffer: median(&seconds[1]),
        unit: "s",
        cpu: Some(cpu.row(case.tree, big_bytes)),
        note: case.note,
    })
}

/// CPU time of the copies, in seconds.
#[derive(Default)]
struct CpuSeries {
    raw: Vec<f64>,
    client: Vec<f64>,
    daemon: Vec<f64>,
}

impl CpuSeries {
    fn take(&mut self, side: usize, children_ns: u64, daemon_ns: u64) {
        if side == 0 {
            self.raw.push(children_ns as f64 / 1e9);
        } else {
            self.client.push(children_ns as f64 / 1e9);
            self.daemon.push(daemon_ns as f64 / 1e9);
        }
    }

    /// Per GiB, or per file of the tree.
    fn row(&self, tree: bool, big_bytes: u64) -> Cpu {
        let (unit, factor) = if tree {
            ("us/op", 1e6 / TREE_FILES as f64)
        } else {
            ("s/GiB", f64::from(1 << 30) / big_bytes as f64)
        };
        let median = |values: &[f64]| {
            Summary::of(values).map_or(f64::NAN, |summary| summary.median * factor)
        };
        Cpu {
            unit,
            raw: median(&self.raw),
            client: median(&self.client),
            daemon: median(&self.daemon),
        }
    }
}

/// Writes out what is dirty on the disk, so that no sample pays for another.
fn settle(disk: &Path) -> Result<()> {
    let dir = File::open(disk).with_context(|| format!("open {}", disk.display()))?;
    rustix::fs::syncfs(&dir).with_context(|| format!("sync {}", disk.display()))
}

/// Drops the pages of a file, or of all files of a tree, from the page cache.
fn drop_pages(path: &Path) -> Result<()> {
    for file in files_below(path)? {
        let file = File::open(&file).with_context(|| format!("open {}", file.display()))?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
            .with_context(|| format!("drop the pages of {}", path.display()))?;
    }
    Ok(())
}

fn files_below(path: &Path) -> Result<Vec<PathBuf>> {
    let (mut files, mut pending) = (Vec::new(), vec![path.to_path_buf()]);
    while let Some(next) = pending.pop() {
        if next.is_dir() {
            let entries =
                std::fs::read_dir(&next).with_context(|| format!("list {}", next.display()))?;
            for entry in entries {
                pending.push(entry?.path());
            }
        } else {
            files.push(next);
        }
    }
    Ok(files)
}

fn copy_raw(case: &Case, source: &Path, destination: &Path) -> Result<()> {
    if case.tree {
        // The trailing slash: the content of the tree into the destination.
        let source = source.join("");
        let args = [OsStr::new("-a"), "--fsync".as_ref(), source.as_ref(), destination.as_ref()];
        sides::run(Path::new("rsync"), &args)?;
        return Ok(());
    }
    let args = [OsStr::new("-a"), source.as_ref(), destination.as_ref()];
    sides::run(Path::new("cp"), &args)?;
    for path in [destination, destination.parent().context("destination without a parent")?] {
        let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
        file.sync_all().with_context(|| format!("fsync {}", path.display()))?;
    }
    Ok(())
}

fn stage(case: &Case, forebay: &Path, source: &Path, destination: &Path) -> Result<()> {
    let way = if case.way == Way::In { "in" } else { "out" };
    let args = [
        OsStr::new("stage"),
        way.as_ref(),
        "--json".as_ref(),
        "--verify".as_ref(),
        case.verify.as_ref(),
        source.as_ref(),
        destination.as_ref(),
    ];
    sides::run(forebay, &args).map(|_| ())
}

/// The copy is complete (sizes); then it is removed. Small files on the disk stay until the end:
/// some file systems are slow to give out inodes again that were just freed.
fn check_and_remove(case: &Case, destination: &Path, big_bytes: u64) -> Result<()> {
    if !case.tree {
        let size = std::fs::metadata(destination)
            .with_context(|| format!("stat {}", destination.display()))?
            .len();
        if size != big_bytes >> 20 << 20 {
            bail!("{} has {size} bytes", destination.display());
        }
        return std::fs::remove_file(destination)
            .with_context(|| format!("remove {}", destination.display()));
    }
    let files = files_below(destination)?.len();
    if files != TREE_FILES {
        bail!("{} has {files} files", destination.display());
    }
    if case.way == Way::In {
        std::fs::remove_dir_all(destination)
            .with_context(|| format!("remove {}", destination.display()))?;
    }
    Ok(())
}
