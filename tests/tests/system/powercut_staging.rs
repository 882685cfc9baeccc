//! Power cuts while a tree is staged in: what the command called done is there whole after any
//! later cut; before that, each file that has its name is whole, and the plan, which the next
//! mount takes up by itself, ends with the same tree.

use anyhow::{Context, Result, ensure};
use forebay_tests::recorder::rig::{Rig, Surroundings, run_command};
use forebay_tests::recorder::state::{Builder, Cut, choose};
use forebay_tests::recorder::target::{Forebay, Target};
use forebay_tests::{env_u64, every_point, long};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Files of the tree.
const FILES: usize = 60;
/// Longest that a resumed plan may take.
const PLAN_TIMEOUT: Duration = Duration::from_secs(60);

/// Something in a tree, as far as staging promises to keep it.
#[derive(PartialEq, Eq, Debug)]
enum Node {
    Dir { mode: u32 },
    File { mode: u32, mtime: (i64, i64), nlink: u64, bytes: Vec<u8> },
    Link(PathBuf),
}

fn make_source(top: &Path, seed: u64) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(seed);
    let dirs = ["", "a", "a/b", "c"].map(|name| top.join(name));
    dirs.iter().try_for_each(std::fs::create_dir_all)?;
    for index in 0..FILES {
        let path = dirs[index % dirs.len()].join(format!("f{index}"));
        let size = [0, 100, 47_008, 300_000, 3_000_000][rng.random_range(0..5)];
        let mut bytes = vec![0; rng.random_range(0..=size)];
        rng.fill_bytes(&mut bytes);
        std::fs::write(&path, bytes)?;
    }
    std::os::unix::fs::symlink("../f0", top.join("a/link"))?;
    std::fs::hard_link(top.join("f4"), top.join("c/second-name"))?;
    let sparse = std::fs::File::create(top.join("sparse"))?;
    sparse.write_all_at(b"end", 5_000_000)?;
    Ok(())
}

fn read_tree(top: &Path) -> Result<BTreeMap<PathBuf, Node>> {
    let mut tree = BTreeMap::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(dir) = pending.pop() {
        for found in std::fs::read_dir(top.join(&dir))? {
            let found = found?;
            let (path, meta) = (dir.join(found.file_name()), found.metadata()?);
            let mode = meta.mode() & 0o7777;
            let node = if meta.is_dir() {
                pending.push(path.clone());
                Node::Dir { mode }
            } else if meta.is_symlink() {
                Node::Link(std::fs::read_link(found.path())?)
            } else {
                let mtime = (meta.mtime(), meta.mtime_nsec());
                Node::File { mode, mtime, nlink: meta.nlink(), bytes: std::fs::read(found.path())? }
            };
            tree.insert(path, node);
        }
    }
    Ok(tree)
}

/// Each file that is there has all its bytes.
fn present_files_are_whole(
    source: &BTreeMap<PathBuf, Node>,
    seen: &BTreeMap<PathBuf, Node>,
) -> Result<()> {
    for (path, node) in seen {
        let wanted = source.get(path).with_context(|| format!("{path:?} has no source"))?;
        if let (Node::File { bytes, .. }, Node::File { bytes: wanted, .. }) = (node, wanted) {
            ensure!(bytes == wanted, "{path:?} has its name but not its bytes");
        }
    }
    Ok(())
}

fn trees_agree(source: &BTreeMap<PathBuf, Node>, seen: &BTreeMap<PathBuf, Node>) -> Result<()> {
    present_files_are_whole(source, seen)?;
    for (path, node) in source {
        let found = seen.get(path).with_context(|| format!("{path:?} is missing"))?;
        // Not the bytes into the message.
        ensure!(found == node, "{path:?} differs in mode, time or links");
    }
    Ok(())
}

struct Staged {
    rig: Rig,
    target: Forebay,
    pfs: tempfile::TempDir,
    source: BTreeMap<PathBuf, Node>,
    surroundings: Surroundings,
    done: u64,
    /// Cuts after which the plan had to be asked for again.
    staged_again: usize,
}

impl Staged {
    fn stage_in(&self) -> Result<String> {
        stage_in(&self.target, self.pfs.path(), &self.rig)
    }

    /// Waits until no plan runs any more; true if one ended as done.
    fn wait_for_plans(&self) -> Result<bool> {
        let started = Instant::now();
        loop {
            let mut command = Command::new(&self.target.program);
            let command = command.args(["stage", "status", "--json"]).arg(&self.rig.point);
            let text = run_command(command)?;
            ensure!(!text.contains("\"failed\""), "a resumed plan failed: {text}");
            if !text.contains("\"running\"") && !text.contains("\"queued\"") {
                return Ok(text.contains("\"done\""));
            }
            ensure!(started.elapsed() < PLAN_TIMEOUT, "the resumed plan does not end: {text}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn try_cut(&mut self, builder: &mut Builder<'_>, cut: &Cut) -> Result<()> {
        builder.build(cut)?;
        self.rig.restore(&self.surroundings)?;
        let verdict = self.recover(cut);
        if verdict.is_err() && self.target.stop(&self.rig).is_err() {
            self.rig.clear();
        }
        self.rig.must_be_released()?;
        builder.undo()?;
        verdict
    }

    fn recover(&mut self, cut: &Cut) -> Result<()> {
        self.target.start(&self.rig).context("mount after the power cut")?;
        let top = self.rig.point.join("dst");
        if cut.at() >= self.done {
            trees_agree(&self.source, &read_tree(&top)?).context("it was called done")?;
        } else if top.exists() {
            present_files_are_whole(&self.source, &read_tree(&top)?)?;
        }
        let resumed = self.wait_for_plans()?;
        ensure!(resumed || cut.at() < self.done, "the plan that was called done is forgotten");
        if !resumed {
            // The cut came before the plan was journaled: nobody was told of it.
            self.stage_in().context("stage in again")?;
            self.staged_again += 1;
        }
        trees_agree(&self.source, &read_tree(&top)?).context("after the plan's end")?;
        self.target.stop(&self.rig).context("unmount after the power cut")?;
        self.rig.must_be_released()?;
        self.target.check(&self.rig).context("check after the power cut")
    }
}

fn stage_in(target: &Forebay, source: &Path, rig: &Rig) -> Result<String> {
    let mut command = Command::new(&target.program);
    run_command(command.args(["stage", "in"]).arg(source).arg(rig.point.join("dst")))
}

#[test]
fn staging_in_survives_power_cuts() -> Result<()> {
    let seed = env_u64("FOREBAY_SEED", 31);
    let mut target = Forebay::new("400MiB");
    let rig = Rig::new("powercut-stage")?;
    let pfs = tempfile::tempdir()?;
    make_source(pfs.path(), seed)?;
    target.start(&rig)?;
    rig.hold_disk()?;
    std::fs::File::open(&rig.point)?.sync_all()?;
    let first = rig.disk.seq();
    stage_in(&target, pfs.path(), &rig).context("stage in")?;
    let done = rig.disk.seq();
    // Something after the end, so that cuts fall there too.
    std::fs::write(rig.point.join("later"), [1; 100_000])?;
    std::fs::File::open(rig.point.join("later"))?.sync_all()?;
    let last = rig.disk.seq();
    let surroundings = rig.surroundings()?;
    target.stop(&rig)?;
    rig.must_be_released()?;
    let log = rig.disk.take_log();
    let disk = rig.disk.clone();
    let mut builder = Builder::new(&disk, &log)?;
    let source = read_tree(pfs.path())?;
    let mut staged = Staged { rig, target, pfs, source, surroundings, done, staged_again: 0 };
    let usual = if every_point() { 25 } else { 15 };
    let states = env_u64("FOREBAY_POWERCUT_STATES", if long() { 500 } else { usual }) as usize;
    let mut cuts = choose(&log, &[done], first..last, states, seed);
    cuts.push(Cut::Prefix { at: done });
    cuts.sort_by_key(Cut::at);
    for (index, cut) in cuts.iter().enumerate() {
        staged
            .try_cut(&mut builder, cut)
            .with_context(|| format!("seed {seed}, state {index}, {cut} (done at {done})"))?;
    }
    let again = staged.staged_again;
    eprintln!(
        "{} records, done at {}; {} states, {again} staged again",
        last - first,
        done - first,
        cuts.len()
    );
    ensure!(again < cuts.len() / 2, "hardly any cut fell into the plan: nothing was resumed");
    Ok(())
}
