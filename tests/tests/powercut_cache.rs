//! Power cuts of a cache: its flash and its PFS are two recorded disks with one clock; a random program
//! writes, fsyncs, drains, renames, removes, truncates and drops files; every state that a cut could have
//! left on both is recovered and judged.
//!
//! Two kinds. The PFS lives on (another machine; mounted `sync`, so that all it answered is on its disk): names
//! are as acknowledged, nothing is in conflict, nothing fsynced is lost. And both lose their power, each with
//! writes torn and reordered: then the PFS may have forgotten names, and such a file may be in conflict; its
//! content is on flash all the same. What was called clean is on the PFS's medium, before Forebay starts.
//!
//! Environment: `FOREBAY_SEED`, `FOREBAY_POWERCUT_STATES` (cuts of each test), `FOREBAY_LONG`.

use anyhow::{Context, Result, ensure};
use forebay_tests::buffer::binary;
use forebay_tests::recorder::cached::{Cached, Program};
use forebay_tests::recorder::disk::Record;
use forebay_tests::recorder::rig::{Rig, Surroundings, run_command};
use forebay_tests::recorder::state::{Builder, Cut, choose};
use forebay_tests::recorder::target::Lower;
use forebay_tests::{env_u64, long};
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Steps of a program.
const STEPS: u64 = 160;
/// How long names of drains may take to go.
const SETTLE: Duration = Duration::from_secs(10);

/// What is cut.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Power {
    /// That of the node: the PFS lives on.
    OfTheNode,
    /// That of both.
    OfBoth,
}

struct Site {
    flash: Rig,
    pfs: Rig,
    power: Power,
    writes: &'static str,
    boots: u64,
}

impl Site {
    fn new(name: &str, power: Power, writes: &'static str) -> Result<(Site, Arc<AtomicU64>)> {
        let clock: Arc<AtomicU64> = Arc::default();
        let flash = Rig::with_clock(&format!("{name}-flash"), clock.clone())?;
        let pfs = Rig::with_clock(&format!("{name}-pfs"), clock.clone())?;
        Ok((Site { flash, pfs, power, writes, boots: 0 }, clock))
    }

    fn pfs_dir(&self) -> PathBuf {
        self.pfs.lower.join("data")
    }

    fn mount_pfs(&self) -> Result<()> {
        let options = match self.power {
            Power::OfTheNode => "loop,sync",
            Power::OfBoth => "loop",
        };
        Lower::Ext4.mount_with(&self.pfs, options)
    }

    fn mount(&self) -> Result<()> {
        let mut command = Command::new(binary());
        command.args(["mount", "--cache"]).arg(self.pfs_dir()).args(["--capacity", "400MiB"]);
        command.args(["--store", "image", "--drain", "end", "--pfs-ttl", "0"]);
        command.args(["--writes", self.writes, "--flash"]).arg(&self.flash.flash);
        run_command(command.env_remove("FOREBAY_FLASH").arg(&self.flash.point)).map(drop)
    }

    fn forebay(&self, args: &[&str], path: &Path) -> Result<String> {
        run_command(Command::new(binary()).args(args).arg(path))
    }

    /// The node boots: it has another boot id, and its loop devices may have other numbers.
    fn boot(&mut self) -> Result<()> {
        self.boots += 1;
        let store = std::fs::read_dir(&self.flash.flash)?
            .flatten()
            .find(|entry| entry.path().join("cache.json").exists())
            .context("no store in the flash")?
            .path();
        let config = store.join("cache.json");
        let mut told: serde_json::Value = serde_json::from_slice(&std::fs::read(&config)?)?;
        told["boot_id"] = format!("boot {}", self.boots).into();
        told["identity"]["source"] = source_of(&self.pfs.lower)?.into();
        std::fs::write(&config, serde_json::to_vec(&told)?)?;
        match std::fs::remove_file(store.join("cache.drained")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// What is mounted there.
fn source_of(point: &Path) -> Result<String> {
    let table = std::fs::read_to_string("/proc/self/mounts")?;
    let line = table.lines().rev().find(|line| line.split(' ').nth(1) == point.to_str());
    let source = line.and_then(|line| line.split(' ').next()).context("the PFS is not mounted")?;
    Ok(source.to_string())
}

/// All regular files below a directory, by their path there.
fn files_below(top: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(top.join(&dir))? {
            let entry = entry?;
            let path = dir.join(entry.file_name());
            match entry.file_type()?.is_dir() {
                true => pending.push(path),
                false => drop(found.insert(path)),
            }
        }
    }
    Ok(found)
}

fn is_ours(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(b".forebay-drain."))
}

/// A recorded run.
struct Run {
    site: Site,
    program: Program,
    logs: [Vec<Record>; 2],
    ticks: [Vec<u64>; 2],
    surroundings: [Surroundings; 2],
    /// Positions on both disks when the program began.
    first: [u64; 2],
}

fn record(name: &str, power: Power, writes: &'static str, seed: u64) -> Result<Run> {
    let (site, clock) = Site::new(name, power, writes)?;
    site.mount_pfs().context("mount the PFS")?;
    std::fs::create_dir_all(site.pfs_dir().join("d"))?;
    site.mount().context("mount the cache")?;
    [&site.flash, &site.pfs].into_iter().try_for_each(Rig::hold_disk)?;
    std::fs::File::open(&site.flash.point)?.sync_all()?;
    rustix::fs::syncfs(std::fs::File::open(&site.pfs.lower)?)?;
    let first = [site.flash.disk.seq(), site.pfs.disk.seq()];
    let mut program = Program::new(&site.flash.point, &binary(), clock.clone(), seed);
    program.run(STEPS as usize).with_context(|| format!("seed {seed}"))?;
    let end = clock.load(Ordering::SeqCst);
    let surroundings = [site.flash.surroundings()?, site.pfs.surroundings()?];
    site.forebay(&["umount", "--keep"], &site.flash.point)?;
    Lower::unmount(&site.pfs)?;
    let mut ticks = [&site.flash, &site.pfs].map(|rig| rig.disk.take_ticks());
    let mut logs = [&site.flash, &site.pfs].map(|rig| rig.disk.take_log());
    for rig in [&site.flash, &site.pfs] {
        ensure!(rig.wait_released()?, "a disk is still in use after the unmount");
    }
    for (ticks, log) in ticks.iter_mut().zip(&mut logs) {
        // What the unmount wrote is no part of it.
        let count = ticks.partition_point(|tick| *tick < end);
        ticks.truncate(count);
        log.truncate(count);
    }
    Ok(Run { site, program, logs, ticks, surroundings, first })
}

impl Run {
    /// Cuts of both disks, with the time of each, in order.
    fn choose(&self, count: usize, seed: u64) -> Vec<(u64, [Cut; 2])> {
        let mut all = Vec::new();
        for main in 0..2 {
            let ticks = &self.ticks[main];
            let promises: Vec<u64> =
                self.program.promises.iter().map(|told| position(ticks, *told)).collect();
            let range = self.first[main]..ticks.len() as u64;
            for cut in choose(&self.logs[main], &promises, range, count / 2, seed + main as u64) {
                let at = cut.at() as usize;
                let time = match at {
                    0 => 0,
                    at => ticks[at - 1] + 1,
                };
                let other = position(&self.ticks[1 - main], time).max(self.first[1 - main]);
                let mut cuts = [cut, same_kind(&cut, other)];
                if main == 1 {
                    cuts.swap(0, 1);
                }
                if self.site.power == Power::OfTheNode {
                    cuts[1] = Cut::Prefix { at: cuts[1].at() };
                }
                all.push((time, cuts));
            }
        }
        all.sort_by_key(|(time, _)| *time);
        all
    }
}

/// How many records were made before a time.
fn position(ticks: &[u64], time: u64) -> u64 {
    ticks.partition_point(|tick| *tick < time) as u64
}

fn same_kind(cut: &Cut, at: u64) -> Cut {
    match *cut {
        Cut::Prefix { .. } => Cut::Prefix { at },
        Cut::Reordered { seed, grain_bytes, .. } => {
            Cut::Reordered { at, seed: seed ^ 1, grain_bytes }
        }
    }
}

/// The judge of one state.
struct Judge<'a> {
    site: &'a mut Site,
    files: &'a [Cached],
    surroundings: &'a [Surroundings; 2],
    /// Files that were in conflict, in all states.
    conflicts: u64,
}

impl Judge<'_> {
    fn try_cut(
        &mut self,
        builders: &mut [Builder<'_>; 2],
        time: u64,
        cuts: &[Cut; 2],
    ) -> Result<()> {
        for (builder, cut) in builders.iter_mut().zip(cuts) {
            builder.build(cut)?;
        }
        self.site.flash.restore(&self.surroundings[0])?;
        self.site.pfs.restore(&self.surroundings[1])?;
        let verdict = self.recover(time);
        if verdict.is_err() {
            let point = self.site.flash.point.clone();
            // Whatever state it is in.
            let _ended = self.site.forebay(&["umount", "--force", "--keep", "--no-drain"], &point);
            self.site.flash.clear();
            self.site.pfs.clear();
        }
        for rig in [&self.site.flash, &self.site.pfs] {
            ensure!(rig.wait_released()?, "a disk is still in use after the unmount");
        }
        builders.iter().try_for_each(Builder::undo)?;
        verdict
    }

    fn recover(&mut self, time: u64) -> Result<()> {
        self.site.mount_pfs().context("mount the PFS after the cut")?;
        let dir = self.site.pfs_dir();
        for file in self.files.iter().filter(|file| file.was_clean(time)) {
            for name in file.names_at(time).into_iter().flatten() {
                if let Ok(seen) = std::fs::read(dir.join(name)) {
                    file.judge_pfs(time, &seen)
                        .with_context(|| format!("{name:?} on the PFS, which was called clean"))?;
                }
            }
        }
        self.site.boot()?;
        self.site.mount().context("mount the cache after the cut")?;
        let point = self.site.flash.point.clone();
        let there = files_below(&point)?;
        let in_conflict = self.look_at_files(&point, time, &there)?;
        self.drain(&point, in_conflict).context("drain after the cut")?;
        self.compare(&point, &dir)?;
        self.site.forebay(&["umount", "--keep"], &point).context("unmount after the cut")?;
        Lower::unmount(&self.site.pfs)?;
        let mut check = Command::new(binary());
        check.args(["check", "--flash"]).arg(&self.site.flash.flash).arg(&point);
        run_command(&mut check).map(drop).context("check after the cut")
    }

    /// Each file is where it may be, with what it may have. How many are not there though something of them
    /// was promised (the PFS has forgotten their names).
    fn look_at_files(&self, point: &Path, time: u64, there: &BTreeSet<PathBuf>) -> Result<u64> {
        let mut lost_names = 0;
        let mut known = BTreeSet::new();
        for file in self.files {
            let names = file.names_at(time);
            let found: Vec<&PathBuf> = match self.site.power {
                Power::OfTheNode => {
                    names.iter().flatten().copied().filter(|n| there.contains(*n)).collect()
                }
                Power::OfBoth => {
                    file.names_before(time).into_iter().filter(|n| there.contains(*n)).collect()
                }
            };
            known.extend(found.iter().map(|name| (*name).clone()));
            ensure!(found.len() <= 1, "one file has the names {found:?}");
            match found.first() {
                // A PFS that has forgotten its removal may have anything of it that it had before.
                Some(_) if file.was_removed(time) && self.site.power == Power::OfBoth => {}
                Some(name) => {
                    let seen = std::fs::read(point.join(name))
                        .with_context(|| format!("read {name:?}"))?;
                    // Where the PFS has forgotten the file, and made it anew, its content may be gone there.
                    file.judge(time, &seen)
                        .with_context(|| format!("{name:?} ({})", file.story(time)))?;
                }
                None if names.contains(&None) => {}
                None => {
                    ensure!(
                        self.site.power == Power::OfBoth,
                        "none of {names:?} is there: {there:?}"
                    );
                    lost_names += u64::from(file.has_floor(time));
                }
            }
        }
        let unknown: Vec<_> = there.difference(&known).collect();
        ensure!(unknown.is_empty(), "nobody made {unknown:?}");
        Ok(lost_names)
    }

    /// Everything drains; files in conflict only where the PFS has forgotten names.
    fn drain(&mut self, point: &Path, lost_names: u64) -> Result<()> {
        let waited = self.site.forebay(&["wait", "--timeout", "40", "--json"], point);
        let Err(error) = waited else { return Ok(()) };
        let status = self.site.forebay(&["status", "--json"], point)?;
        let status: serde_json::Value = serde_json::from_str(&status)?;
        let tree = &status["cache"]["tree"];
        let conflicts = tree["conflicts"].as_u64().unwrap_or(0);
        let only_conflicts = tree["files"].as_u64() == Some(conflicts);
        ensure!(
            self.site.power == Power::OfBoth && only_conflicts && conflicts > 0,
            "{error:#}; {lost_names} names are lost: {tree}"
        );
        self.conflicts += conflicts;
        for problem in tree["problems"].as_array().into_iter().flatten() {
            let path = problem["path"].as_str().unwrap_or_default().trim_start_matches('/');
            self.site
                .forebay(&["resolve", "--keep", "ours"], &point.join(path))
                .with_context(|| format!("resolve {path}"))?;
        }
        self.site.forebay(&["wait", "--timeout", "40"], point).map(drop)
    }

    /// The PFS has what the mount shows, and nothing of ours.
    fn compare(&self, point: &Path, dir: &Path) -> Result<()> {
        let until = Instant::now() + SETTLE;
        while files_below(dir)?.iter().any(|path| is_ours(path)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        let (shown, there) = (files_below(point)?, files_below(dir)?);
        ensure!(shown == there, "the mount shows {shown:?}, the PFS has {there:?}");
        for path in &shown {
            let same = std::fs::read(point.join(path))? == std::fs::read(dir.join(path))?;
            ensure!(same, "{path:?} is another one on the PFS");
        }
        Ok(())
    }
}

fn on_trial(name: &str, power: Power, writes: &'static str, usual: u64) -> Result<()> {
    let seed = env_u64("FOREBAY_SEED", usual);
    let states = env_u64("FOREBAY_POWERCUT_STATES", if long() { 600 } else { 24 }) as usize;
    let mut run = record(name, power, writes, seed)?;
    let cuts = run.choose(states, seed);
    let disks = [run.site.flash.disk.clone(), run.site.pfs.disk.clone()];
    let mut builders =
        [Builder::new(&disks[0], &run.logs[0])?, Builder::new(&disks[1], &run.logs[1])?];
    let mut failures = Vec::new();
    let mut judge = Judge {
        site: &mut run.site,
        files: &run.program.files,
        surroundings: &run.surroundings,
        conflicts: 0,
    };
    let started = Instant::now();
    for (index, (time, cuts)) in cuts.iter().enumerate() {
        if let Err(error) = judge.try_cut(&mut builders, *time, cuts) {
            let [flash, pfs] = cuts;
            failures
                .push(format!("state {index}, time {time}: flash {flash}, PFS {pfs}: {error:#}"));
            if failures.len() >= 5 {
                break;
            }
        }
    }
    eprintln!(
        "{} files, {} promises, {} and {} records; {} states in {:?}, {} conflicts, {} failed",
        run.program.files.len(),
        run.program.promises.len(),
        run.logs[0].len(),
        run.logs[1].len(),
        cuts.len(),
        started.elapsed(),
        judge.conflicts,
        failures.len()
    );
    ensure!(
        failures.is_empty(),
        "again with FOREBAY_SEED={seed} FOREBAY_POWERCUT_STATES={states}:\n{}",
        failures.join("\n")
    );
    Ok(())
}

#[test]
fn a_cache_survives_power_cuts_of_its_node() -> Result<()> {
    on_trial("cut-cache-node", Power::OfTheNode, "served", 41)
}

#[test]
fn a_cache_that_kernels_write_survives_power_cuts_of_its_node() -> Result<()> {
    on_trial("cut-cache-kernel", Power::OfTheNode, "auto", 42)
}

#[test]
fn a_cache_survives_power_cuts_that_its_pfs_has_too() -> Result<()> {
    on_trial("cut-cache-both", Power::OfBoth, "served", 43)
}

#[test]
fn a_cache_that_kernels_write_survives_power_cuts_that_its_pfs_has_too() -> Result<()> {
    on_trial("cut-cache-both-kernel", Power::OfBoth, "auto", 44)
}
