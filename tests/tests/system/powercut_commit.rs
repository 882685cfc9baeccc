//! Power cuts of `forebay commit`: flash and PFS are two recorded disks with one clock; a program writes trees,
//! commits each to the same place, gives some commits up, and asks what became of them; every state that a cut could
//! have left on both is recovered and judged.
//!
//! The place has the old tree or the new one, each whole, before Forebay starts and ever after; a commit of which the PFS
//! has anything is published in the end, fsynced or not, unless it was given up; what is told of every commit is what is so; nothing
//! but the place, and the trees that were to be kept, is there; and the next commit works. Two kinds of cut, see
//! `recorder::pair`.
//!
//! Environment: `FOREBAY_SEED`, `FOREBAY_POWERCUT_STATES` (cuts of each test), `FOREBAY_LONG`.

use anyhow::{Context, Result, bail, ensure};
use forebay_tests::buffer::binary;
use forebay_tests::recorder::pair::{Pair, PairCut, Power, Recording, try_all};
use forebay_tests::recorder::rig::run_command;
use forebay_tests::recorder::state::Builder;
use forebay_tests::recorder::target::Lower;
use forebay_tests::{env_u64, every_point, long};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Commits of a program.
const COMMITS: u32 = 9;
/// The one after each cut.
const RETRY: u32 = 1000;
/// Longest that what a cut left of a commit may take to end.
const SETTLE: Duration = Duration::from_secs(40);

/// What is in a tree: of each path its content, or where a symbolic link leads; `None`: a directory.
type Tree = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// The tree of a generation: files of several sizes, in several directories, and a link.
fn tree_of(generation: u32) -> Tree {
    let mut tree = Tree::new();
    let file = |rank: usize, bytes: usize| {
        let line = format!("generation {generation} rank {rank}\n");
        let mut content = line.repeat(bytes / line.len() + 1).into_bytes();
        content.truncate(bytes);
        Some(content)
    };
    tree.insert("d".into(), None);
    tree.insert("d/e".into(), None);
    // Sizes that differ from one to the next, so that parts of two are no tree.
    let more = generation as usize * 1_000;
    for (rank, name) in
        ["rank.0", "d/rank.1", "d/e/rank.2", "rank.3", "d/rank.4"].iter().enumerate()
    {
        tree.insert(name.into(), file(rank, [100, 47_008, 300_000, 0, 1_500_000][rank] + more));
    }
    tree.insert("latest".into(), Some(b"d/rank.1".to_vec()));
    tree
}

fn read_tree(top: &Path) -> Result<Tree> {
    let mut tree = Tree::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(dir) = pending.pop() {
        for found in std::fs::read_dir(top.join(&dir))? {
            let found = found?;
            let (path, kind) = (dir.join(found.file_name()), found.file_type()?);
            let content = if kind.is_dir() {
                pending.push(path.clone());
                None
            } else if kind.is_symlink() {
                let to = std::fs::read_link(found.path())?;
                Some(std::os::unix::ffi::OsStringExt::into_vec(to.into_os_string()))
            } else {
                Some(std::fs::read(found.path())?)
            };
            tree.insert(path, content);
        }
    }
    Ok(tree)
}

fn write_tree(top: &Path, tree: &Tree, fsync: bool) -> Result<()> {
    std::fs::create_dir_all(top)?;
    for (path, content) in tree {
        let at = top.join(path);
        match content {
            None => std::fs::create_dir(&at)?,
            Some(to) if path == Path::new("latest") => {
                std::os::unix::fs::symlink(std::str::from_utf8(to)?, &at)?;
            }
            Some(bytes) => {
                std::fs::write(&at, bytes)?;
                if fsync {
                    File::open(&at)?.sync_all()?;
                }
            }
        }
    }
    if fsync {
        File::open(top)?.sync_all()?;
    }
    Ok(())
}

/// The generation that a committed tree is; an error if it is none, whole, with its manifest and versioned name.
fn generation_of(top: &Path) -> Result<(u32, String)> {
    let mut seen = read_tree(top)?;
    let manifest = seen.remove(Path::new(".forebay-manifest")).flatten();
    let manifest = String::from_utf8(manifest.context("it has no manifest")?)?;
    let head = manifest.lines().next().context("its manifest is empty")?;
    let head: serde_json::Value = serde_json::from_str(head)?;
    let version = head["version"].as_str().context("its manifest names no version")?.to_string();
    let link = seen.remove(Path::new(&format!(".forebay-{version}")));
    ensure!(link.flatten().as_deref() == Some(b"."), "it has no versioned name");
    let source = head["source"].as_str().unwrap_or_default();
    let generation = source.rsplit('.').next().unwrap_or_default();
    let generation = generation.parse().with_context(|| format!("it is of {source:?}"))?;
    let wanted = tree_of(generation);
    for (path, content) in &wanted {
        let found = seen.get(path).with_context(|| format!("{generation} has no {path:?}"))?;
        let bytes = |content: &Option<Vec<u8>>| content.as_ref().map(Vec::len);
        ensure!(
            found == content,
            "{path:?} of generation {generation} is another one: {:?} bytes, not {:?}",
            bytes(found),
            bytes(content)
        );
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        ensure!(manifest.contains(name), "{path:?} is not in the manifest of {generation}");
    }
    let strange: Vec<_> = seen.keys().filter(|path| !wanted.contains_key(*path)).collect();
    ensure!(strange.is_empty(), "in generation {generation} there is {strange:?} too");
    ensure!(manifest.trim_end().rsplit('\n').next().is_some_and(|l| l.contains("manifest_crc32c")));
    Ok((generation, version))
}

/// One commit of the program.
#[derive(Debug)]
struct Committed {
    generation: u32,
    /// Moments before it was asked for and after its end was told.
    begun: u64,
    done: u64,
    keep_old: bool,
    /// It was to be given up.
    cancelled: bool,
    published: bool,
}

/// What is told of a commit.
#[derive(Debug)]
struct Told {
    ended: bool,
    published: bool,
    /// State, phase, errors.
    words: String,
}

struct Site {
    pair: Pair,
}

impl Site {
    fn mount(&self) -> Result<()> {
        let mut command = Command::new(binary());
        command.args(["mount", "--scratch", "400MiB", "--store", "image", "--flash"]);
        command.arg(&self.pair.flash.flash).arg(&self.pair.flash.point);
        run_command(command.env_remove("FOREBAY_FLASH")).map(drop)
    }

    /// The node boots: plans on record are of another boot.
    fn boot(&self) -> Result<()> {
        let flash = &self.pair.flash;
        Lower::mount_image(flash)?;
        let mut plans = Vec::new();
        let mut pending = vec![flash.lower.clone()];
        while let Some(dir) = pending.pop() {
            for entry in std::fs::read_dir(&dir)? {
                let entry = entry?;
                match entry.file_type()?.is_dir() {
                    true => pending.push(entry.path()),
                    false if entry.file_name() == "plan.json" => plans.push(entry.path()),
                    false => {}
                }
            }
        }
        for path in plans {
            let mut plan: serde_json::Value = serde_json::from_slice(&std::fs::read(&path)?)?;
            ensure!(plan["boot_id"].is_string(), "the plan does not say of which boot it is");
            plan["boot_id"] = "another boot".into();
            std::fs::write(&path, serde_json::to_vec(&plan)?)?;
        }
        Lower::unmount(flash)?;
        self.pair.must_be_flash_released()
    }

    fn forebay(&self, args: &[&str], path: &Path) -> Result<String> {
        run_command(Command::new(binary()).args(args).arg(path))
    }

    fn source(&self, generation: u32) -> PathBuf {
        self.pair.flash.point.join(format!("ckpt.{generation}"))
    }

    fn place(&self) -> PathBuf {
        self.pair.pfs_dir().join("ckpt")
    }

    fn commit(&self, generation: u32, args: &[&str]) -> Result<String> {
        let mut command = Command::new(binary());
        command.arg("commit").arg(self.source(generation)).arg("--to").arg(self.place());
        run_command(command.args(args))
    }

    /// What is told of the commit of each generation.
    fn told(&self) -> Result<BTreeMap<u32, Told>> {
        let mut command = Command::new(binary());
        command.args(["commit", "--status", "--json"]).arg(&self.pair.flash.point);
        let text = run_command(&mut command)?;
        let mut told = BTreeMap::new();
        for line in text.lines() {
            let value: serde_json::Value = serde_json::from_str(line)?;
            for plan in value.as_array().cloned().unwrap_or_else(|| vec![value]) {
                let source = plan["spec"]["buffer_path"].as_str().unwrap_or_default();
                let generation = source.rsplit('.').next().unwrap_or_default();
                let generation = generation.parse().with_context(|| format!("{plan}"))?;
                let (state, phase) = (&plan["state"], &plan["commit"]["phase"]);
                let (is_done, is_published) = (state == "done", phase == "published");
                let words = format!("{state}, {phase}, {}", plan["errors"]);
                ensure!(is_done == is_published || !is_done, "{generation} is {words}");
                let ended = ["done", "failed", "cancelled"].iter().any(|word| state == word);
                told.insert(generation, Told { ended, published: is_done, words });
            }
        }
        Ok(told)
    }

    /// The same when all have ended.
    fn settled(&self) -> Result<BTreeMap<u32, Told>> {
        let until = Instant::now() + SETTLE;
        loop {
            let told = self.told()?;
            if told.values().all(|told| told.ended) {
                return Ok(told);
            }
            ensure!(Instant::now() < until, "commits do not end: {told:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Makes a tree and commits it, or gives that up somewhere on the way.
    fn one(&self, generation: u32, rng: &mut StdRng) -> Result<Committed> {
        let (fsynced, keep_old) = (generation % 2 == 1, generation % 4 == 3);
        let cancelled = generation % 3 == 2;
        write_tree(&self.source(generation), &tree_of(generation), fsynced)?;
        let begun = self.pair.now();
        let keep: &[&str] = if keep_old { &["--keep-old"] } else { &[] };
        if cancelled {
            self.commit(generation, &[keep, &["--background", "--rate", "4MiB"]].concat())?;
            std::thread::sleep(Duration::from_millis(rng.random_range(0..300)));
            let mut cancel = Command::new(binary());
            let plan = self.told()?.len().to_string();
            cancel.args(["stage", "cancel", &plan]).arg(&self.pair.flash.point);
            // It may have ended.
            let _cancelled = run_command(&mut cancel);
        } else {
            self.commit(generation, keep)?;
        }
        let told = self.settled()?;
        let told = told.get(&generation).context("nothing is told of it")?;
        let published = told.published;
        ensure!(published || cancelled, "it is not published: {}", told.words);
        let done = self.pair.now();
        std::fs::remove_dir_all(self.source(generation))?;
        Ok(Committed { generation, begun, done, keep_old, cancelled, published })
    }
}

/// What may be at the place after a cut.
struct Due<'a> {
    /// Published, durably and told so.
    floor: u32,
    /// Under way.
    under_way: Option<&'a Committed>,
    all: &'a [Committed],
}

impl Due<'_> {
    fn at(all: &[Committed], time: u64) -> Due<'_> {
        let over = all.iter().filter(|commit| commit.done <= time && commit.published);
        let under_way = all.iter().find(|commit| commit.begun <= time && time < commit.done);
        Due { floor: over.map(|commit| commit.generation).max().unwrap_or(0), under_way, all }
    }

    fn may_be(&self, generation: u32) -> bool {
        generation == self.floor || self.under_way.is_some_and(|c| c.generation == generation)
    }

    /// The generation that is at the place, 0: none was ever published.
    fn must_be_at(&self, place: &Path) -> Result<u32> {
        if !place.exists() {
            ensure!(self.floor == 0, "{} was published, and nothing is there", self.floor);
            return Ok(0);
        }
        let (generation, _) = generation_of(place)?;
        let (floor, under_way) = (self.floor, self.under_way);
        ensure!(self.may_be(generation), "{generation}, not {floor} or {under_way:?}");
        Ok(generation)
    }

    /// What is told of each commit is what is so. `is_begun`: the PFS had something of the one under way.
    fn must_be_told(
        &self,
        told: &BTreeMap<u32, Told>,
        time: u64,
        now: u32,
        is_begun: bool,
    ) -> Result<()> {
        for commit in self.all.iter().filter(|commit| commit.done <= time) {
            let Committed { generation, published, .. } = commit;
            let told = told.get(generation);
            let told = told.with_context(|| format!("{generation} had ended and is forgotten"))?;
            let words = &told.words;
            ensure!(told.published == *published, "{generation}: {published} before, now {words}");
        }
        let Some(commit) = self.under_way else { return Ok(()) };
        let Some(Told { published, words, .. }) = told.get(&commit.generation) else {
            ensure!(now != commit.generation, "{now} is published, and nobody knows of it");
            return Ok(());
        };
        let is_there = now == commit.generation;
        ensure!(*published == is_there, "{now} is there, {}: {words}", commit.generation);
        let too_early = !is_begun && words.contains("before all of the tree was on its flash");
        let may_fail = commit.cancelled || too_early;
        ensure!(*published || may_fail, "{} is {words}", commit.generation);
        Ok(())
    }
}

/// Nothing but the place and what was to be kept.
fn nothing_is_left(dir: &Path, all: &[Committed]) -> Result<()> {
    for found in std::fs::read_dir(dir)? {
        let name = found?.file_name().to_string_lossy().into_owned();
        if name == "ckpt" {
            continue;
        }
        ensure!(name.starts_with("ckpt.before-"), "{name:?} is left");
        let (kept, _) = generation_of(&dir.join(&name)).with_context(|| name.clone())?;
        let next = all.iter().filter(|commit| commit.published || commit.cancelled);
        let mut next = next.filter(|commit| commit.generation > kept);
        ensure!(next.any(|commit| commit.keep_old), "{name:?} is {kept}, which nobody kept");
    }
    Ok(())
}

/// The judge of one state.
struct Judge<'a> {
    site: &'a Site,
    all: &'a [Committed],
    recording: &'a Recording,
    /// States in which a commit was under way, and in which that was published in the end.
    under_way: u32,
    went_on: u32,
}

impl Judge<'_> {
    fn try_cut(&mut self, builders: &mut [Builder<'_>; 2], cut: &PairCut) -> Result<()> {
        let pair = &self.site.pair;
        self.recording.build(pair, builders, cut)?;
        let verdict = self.recover(cut.time);
        if verdict.is_err() {
            // Whatever state it is in.
            let _ended = self.site.forebay(&["umount", "--force", "--keep"], &pair.flash.point);
            pair.clear();
        }
        pair.must_be_released()?;
        builders.iter().try_for_each(Builder::undo)?;
        verdict
    }

    fn recover(&mut self, time: u64) -> Result<()> {
        let (site, due) = (self.site, Due::at(self.all, time));
        let (point, place) = (&site.pair.flash.point, site.place());
        site.pair.mount_pfs()?;
        let before = due.must_be_at(&place).context("before the next start")?;
        let is_begun = std::fs::read_dir(site.pair.pfs_dir())?
            .any(|found| found.is_ok_and(|f| f.file_name().to_string_lossy().starts_with('.')));
        site.boot().context("boot")?;
        site.mount().context("mount after the cut")?;
        let told = site.settled()?;
        let now = due.must_be_at(&place).context("after the next start")?;
        ensure!(now >= before, "{before} was there, and then {now}");
        due.must_be_told(&told, time, now, is_begun)?;
        nothing_is_left(&site.pair.pfs_dir(), self.all)?;
        if let Some(commit) = due.under_way {
            self.under_way += 1;
            self.went_on += u32::from(now == commit.generation);
        }
        write_tree(&site.source(RETRY), &tree_of(RETRY), false).context("write once more")?;
        site.commit(RETRY, &[]).context("commit once more")?;
        ensure!(generation_of(&place)?.0 == RETRY, "the next commit is not there");
        nothing_is_left(&site.pair.pfs_dir(), self.all)?;
        site.forebay(&["umount", "--keep"], point).context("unmount after the cut")?;
        Lower::unmount(&site.pair.pfs)?;
        site.pair.must_be_released()?;
        let mut check = Command::new(binary());
        check.args(["check", "--flash"]).arg(&site.pair.flash.flash).arg(point);
        run_command(&mut check).map(drop).context("check after the cut")
    }
}

fn record(site: &Site, seed: u64) -> Result<(Vec<Committed>, Recording)> {
    let pair = &site.pair;
    pair.mount_pfs()?;
    std::fs::create_dir_all(pair.pfs_dir())?;
    site.mount()?;
    let first = pair.begin()?;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut all = Vec::new();
    for generation in 1..=COMMITS {
        let commit = site.one(generation, &mut rng);
        all.push(commit.with_context(|| format!("commit {generation}, seed {seed}"))?);
    }
    let unmount = || site.forebay(&["umount", "--keep"], &pair.flash.point).map(drop);
    let recording = pair.end(first, unmount)?;
    Ok((all, recording))
}

fn on_trial(name: &str, power: Power, usual: u64) -> Result<()> {
    let seed = env_u64("FOREBAY_SEED", usual);
    let usual_states = if every_point() { 24 } else { 16 };
    let states =
        env_u64("FOREBAY_POWERCUT_STATES", if long() { 600 } else { usual_states }) as usize;
    let site = Site { pair: Pair::new(name, power)? };
    let (all, recording) = record(&site, seed)?;
    let promises: Vec<u64> = all.iter().map(|commit| commit.done).collect();
    let cuts = recording.choose(power, &promises, states, seed);
    let disks = [site.pair.flash.disk.clone(), site.pair.pfs.disk.clone()];
    let mut builders = recording.builders(&disks)?;
    let mut judge =
        Judge { site: &site, all: &all, recording: &recording, under_way: 0, went_on: 0 };
    let started = Instant::now();
    let failures = try_all(&cuts, |cut| judge.try_cut(&mut builders, cut));
    let (under_way, went_on) = (judge.under_way, judge.went_on);
    eprintln!(
        "{} commits, {:?} records; {} states in {:?}: {under_way} with a commit under way, of which \
         {went_on} were published; {} failed",
        all.len(),
        recording.records(),
        cuts.len(),
        started.elapsed(),
        failures.len()
    );
    if !failures.is_empty() {
        let again = format!("again with FOREBAY_SEED={seed} FOREBAY_POWERCUT_STATES={states}");
        bail!("{again}:\n{}\n{all:#?}", failures.join("\n"));
    }
    ensure!(under_way as usize >= cuts.len() / 4 && went_on > 0, "hardly any cut was in a commit");
    Ok(())
}

#[test]
fn a_commit_survives_power_cuts_of_its_node() -> Result<()> {
    on_trial("cut-commit-node", Power::OfTheNode, 51)
}

#[test]
fn a_commit_survives_power_cuts_that_its_pfs_has_too() -> Result<()> {
    on_trial("cut-commit-both", Power::OfBoth, 52)
}
