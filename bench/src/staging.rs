//! `forebay stage` against `cp -a` with fsync and `rsync -a --fsync`, to and from a disk.
//!
//! Staging out is measured from a store in memory to the disk, staging in from the disk to a
//! store on the disk (an XFS image) and, without a target, to one in memory.
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
pub const TREE_FILES: usize = 10_000;
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
    target: Option<f64>,
    note: &'static str,
}

const fn case(
    way: Way,
    tree: bool,
    name: &'static str,
    verify: &'static str,
    target: Option<f64>,
) -> Case {
    Case { name, way, tree, verify, target, note: if tree { TREE_NOTE } else { BIG_NOTE } }
}

/// To the disk, from a store wherever it is.
const OUT: [Case; 3] = [
    case(Way::Out, false, "stage out, big file, verified through the cache", "cache", Some(0.9)),
    case(Way::Out, false, "stage out, big file, read back from the medium", "medium", Some(0.45)),
    case(Way::Out, true, "stage out, 10,000 small files", "cache", Some(2.0)),
];
/// From the disk to a store on a disk.
const IN_DISK: [Case; 3] = [
    case(Way::In, false, "stage in, big file, verified through the cache", "cache", Some(0.9)),
    case(Way::In, false, "stage in, big file, read back from the medium", "medium", Some(0.45)),
    case(Way::In, true, "stage in, 10,000 small files", "cache", Some(2.0)),
];
/// From the disk to a store in memory, where the fsync of the other side costs nothing.
const IN_MEMORY: [Case; 2] = [
    case(Way::In, false, "stage in, big file, store in memory", "cache", None),
    case(Way::In, true, "stage in, 10,000 small files, store in memory", "cache", None),
];

/// What all rows of staging share.
pub struct Staging<'a> {
    /// The executable.
    pub forebay: &'a Path,
    /// A directory on a disk, the PFS of these rows.
    pub disk: &'a Path,
    /// Size of the big file.
    pub big_bytes: u64,
    /// Pairs per row.
    pub pairs: usize,
}

impl Staging<'_> {
    /// The same big file and tree on the disk, once.
    pub fn make_sources(&self) -> Result<()> {
        make_sources(self.disk, self.big_bytes)
    }

    /// Rows of a buffer whose store is in memory, or on a disk.
    pub fn measure(&self, sides: &Sides, in_memory: bool, mut done: impl FnMut(Row)) -> Result<()> {
        let (out, inward): (&[Case], &[Case]) =
            if in_memory { (&OUT, &IN_MEMORY) } else { (&[], &IN_DISK) };
        if !out.is_empty() {
            for target in [&sides.raw, &sides.buffer] {
                for name in ["big", "tree"] {
                    let source = self.disk.join(name);
                    let args = [OsStr::new("-a"), source.as_ref(), "-t".as_ref(), target.as_ref()];
                    sides::run(Path::new("cp"), &args)?;
                }
            }
        }
        for case in out.iter().chain(inward) {
            done(self.measure_case(case, sides)?);
        }
        Ok(())
    }
}

fn make_sources(disk: &Path, big_bytes: u64) -> Result<()> {
    make_big(&disk.join("big"), big_bytes)?;
    make_tree(&disk.join("tree"), TREE_FILES)
}

/// A file of random bytes.
pub fn make_big(big: &Path, big_bytes: u64) -> Result<()> {
    let mut random = rand::rngs::SmallRng::seed_from_u64(1);
    let mut block = vec![0_u8; 1 << 20];
    let mut file = File::create(big).with_context(|| format!("make {}", big.display()))?;
    for _ in 0..big_bytes >> 20 {
        random.fill_bytes(&mut block);
        file.write_all(&block).with_context(|| format!("write {}", big.display()))?;
    }
    Ok(())
}

/// A tree of small files.
pub fn make_tree(tree: &Path, files: usize) -> Result<()> {
    let mut random = rand::rngs::SmallRng::seed_from_u64(2);
    let mut block = vec![0_u8; TREE_FILE_BYTES.end as usize];
    random.fill_bytes(&mut block);
    for index in 0..files {
        let dir = tree.join(format!("d{:02}", index % TREE_DIRS));
        if index < TREE_DIRS {
            std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        }
        let span = TREE_FILE_BYTES.end - TREE_FILE_BYTES.start;
        let bytes = (TREE_FILE_BYTES.start + random.next_u32() % span) as usize;
        let path = dir.join(format!("f{index:05}"));
        std::fs::write(&path, &block[..bytes])
            .with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

impl Staging<'_> {
    fn measure_case(&self, case: &Case, sides: &Sides) -> Result<Row> {
        let Staging { forebay, disk, big_bytes, pairs } = *self;
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
                    copy_raw(case.tree, &source, &destination)?;
                } else {
                    stage(case, forebay, &source, &destination)?;
                }
                elapsed[side] = (machine::monotonic_ns() - begin) as f64 / 1e9;
                seconds[side].push(elapsed[side]);
                let daemon_ns =
                    sides.daemon.map_or(Ok(0), machine::process_cpu_ns)? - daemon_before;
                cpu.take(side, machine::children_cpu_ns() - children_before, daemon_ns);
                check_and_remove(case, &destination, big_bytes)?;
            }
            ratios.push(elapsed[0] / elapsed[1]);
        }
        let median = |values: &[f64]| Summary::of(values).map(|summary| summary.median);
        Ok(Row {
            part: "staging",
            case: case.name.to_string(),
            target: case.target.map(Target::RatioAtLeast),
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
pub fn settle(disk: &Path) -> Result<()> {
    let dir = File::open(disk).with_context(|| format!("open {}", disk.display()))?;
    rustix::fs::syncfs(&dir).with_context(|| format!("sync {}", disk.display()))
}

/// Drops the pages of a file, or of all files of a tree, from the page cache.
pub fn drop_pages(path: &Path) -> Result<()> {
    for file in files_below(path)? {
        let file = File::open(&file).with_context(|| format!("open {}", file.display()))?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
            .with_context(|| format!("drop the pages of {}", path.display()))?;
    }
    Ok(())
}

pub fn files_below(path: &Path) -> Result<Vec<PathBuf>> {
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

/// What a person would use instead: rsync for a tree, cp for a file, both with fsync.
pub fn copy_raw(tree: bool, source: &Path, destination: &Path) -> Result<()> {
    if tree {
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
