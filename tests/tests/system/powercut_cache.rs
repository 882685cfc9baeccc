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
use forebay_tests::cached::pattern;
use forebay_tests::recorder::cached::{Cached, Program};
use forebay_tests::recorder::pair::{Pair, PairCut, Power, Recording, try_all};
use forebay_tests::recorder::rig::run_command;
use forebay_tests::recorder::state::Builder;
use forebay_tests::recorder::target::Lower;
use forebay_tests::{env_u64, every_point, long};
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Steps of a program.
const STEPS: u64 = 160;
/// How long names of drains may take to go.
const SETTLE: Duration = Duration::from_secs(10);

/// What the flash is, and what drives the cache.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Store {
    /// An image with room for everything.
    Image,
    /// A directory on ext4, everything served, with less room than the files need: clean data has to go all the time.
    Small,
}

/// Room of the small one, and what is beside the program's files on the PFS.
const SMALL: &str = "24MiB";
const COLD_FILES: u8 = 3;
const COLD_BYTES: usize = 11 << 20;

struct Site {
    pair: Pair,
    store: Store,
    writes: &'static str,
    boots: u64,
}

impl Site {
    /// Where the stores are.
    fn flash(&self) -> &Path {
        match self.store {
            Store::Image => &self.pair.flash.flash,
            Store::Small => &self.pair.flash.lower,
        }
    }

    /// Files that are only read.
    fn cold(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let files = if self.store == Store::Small { COLD_FILES } else { 0 };
        (0..files).map(|i| (format!("cold{i}").into(), pattern(i + 1, COLD_BYTES))).collect()
    }

    /// What is below the store, if it is a file system of its own.
    fn mount_flash(&self) -> Result<()> {
        match self.store {
            Store::Image => Ok(()),
            Store::Small => Lower::Ext4.mount_with(&self.pair.flash, "loop"),
        }
    }

    fn unmount(&self, point: &Path) -> Result<()> {
        self.forebay(&["umount", "--keep"], point)?;
        match self.store {
            Store::Image => Ok(()),
            Store::Small => Lower::unmount(&self.pair.flash),
        }
    }

    fn mount(&self) -> Result<()> {
        let (kind, capacity) = match self.store {
            Store::Image => ("image", "400MiB"),
            Store::Small => ("directory", SMALL),
        };
        let mut command = Command::new(binary());
        command.args(["mount", "--cache"]).arg(self.pair.pfs_dir()).args(["--capacity", capacity]);
        command.args(["--store", kind, "--drain", "end", "--pfs-ttl", "0"]);
        command.args(["--writes", self.writes, "--flash"]).arg(self.flash());
        run_command(command.env_remove("FOREBAY_FLASH").arg(&self.pair.flash.point)).map(drop)
    }

    fn forebay(&self, args: &[&str], path: &Path) -> Result<String> {
        run_command(Command::new(binary()).args(args).arg(path))
    }

    /// The node boots: it has another boot id, and its loop devices may have other numbers.
    fn boot(&mut self) -> Result<()> {
        self.boots += 1;
        let store = std::fs::read_dir(self.flash())?
            .flatten()
            .find(|entry| entry.path().join("cache.json").exists())
            .context("no store in the flash")?
            .path();
        let config = store.join("cache.json");
        let mut told: serde_json::Value = serde_json::from_slice(&std::fs::read(&config)?)?;
        told["boot_id"] = format!("boot {}", self.boots).into();
        told["identity"]["source"] = self.pair.pfs_source()?.into();
        std::fs::write(&config, serde_json::to_vec(&told)?)?;
        match std::fs::remove_file(store.join("cache.drained")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
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
    recording: Recording,
}

fn record(site: Site, seed: u64) -> Result<Run> {
    let pair = &site.pair;
    pair.mount_pfs()?;
    std::fs::create_dir_all(pair.pfs_dir().join("d"))?;
    for (name, bytes) in site.cold() {
        std::fs::write(pair.pfs_dir().join(name), bytes)?;
    }
    site.mount_flash()?;
    site.mount().context("mount the cache")?;
    let first = pair.begin()?;
    let program = Program::new(&pair.flash.point, &binary(), pair.clock.clone(), seed);
    let mut program = program.reading(site.cold());
    program.run(STEPS as usize).with_context(|| format!("seed {seed}"))?;
    if site.store == Store::Small {
        let status = site.forebay(&["status", "--json"], &pair.flash.point)?;
        let status: serde_json::Value = serde_json::from_str(&status)?;
        let evicted = status["cache"]["evicted_bytes"].as_u64().unwrap_or(0);
        ensure!(evicted > 4 * COLD_BYTES as u64, "only {evicted} bytes were evicted");
    }
    let recording = pair.end(first, || site.unmount(&pair.flash.point))?;
    Ok(Run { site, program, recording })
}

/// The judge of one state.
struct Judge<'a> {
    site: &'a mut Site,
    files: &'a [Cached],
    recording: &'a Recording,
    /// Files that were in conflict, in all states.
    conflicts: u64,
}

impl Judge<'_> {
    fn try_cut(&mut self, builders: &mut [Builder<'_>; 2], cut: &PairCut) -> Result<()> {
        self.recording.build(&self.site.pair, builders, cut)?;
        let verdict = self.recover(cut.time);
        let pair = &self.site.pair;
        if verdict.is_err() {
            let point = pair.flash.point.clone();
            // Whatever state it is in.
            let _ended = self.site.forebay(&["umount", "--force", "--keep", "--no-drain"], &point);
            pair.clear();
        }
        pair.must_be_released()?;
        builders.iter().try_for_each(Builder::undo)?;
        verdict
    }

    fn recover(&mut self, time: u64) -> Result<()> {
        self.site.pair.mount_pfs().context("after the cut")?;
        let dir = self.site.pair.pfs_dir();
        for file in self.files.iter().filter(|file| file.was_clean(time)) {
            for name in file.names_at(time).into_iter().flatten() {
                if let Ok(seen) = std::fs::read(dir.join(name)) {
                    file.judge_pfs(time, &seen)
                        .with_context(|| format!("{name:?} on the PFS, which was called clean"))?;
                }
            }
        }
        self.site.mount_flash().context("mount the flash after the cut")?;
        self.site.boot()?;
        self.site.mount().context("mount the cache after the cut")?;
        let point = self.site.pair.flash.point.clone();
        let there = files_below(&point)?;
        let in_conflict = self.look_at_files(&point, time, &there)?;
        self.drain(&point, in_conflict).context("drain after the cut")?;
        self.compare(&point, &dir)?;
        self.site.unmount(&point).context("unmount after the cut")?;
        Lower::unmount(&self.site.pair.pfs)?;
        self.site.pair.must_be_released()?;
        self.site.mount_flash()?;
        let mut check = Command::new(binary());
        check.args(["check", "--flash"]).arg(self.site.flash()).arg(&point);
        let checked = run_command(&mut check).map(drop).context("check after the cut");
        if self.site.store == Store::Small {
            Lower::unmount(&self.site.pair.flash)?;
        }
        checked
    }

    /// Each file is where it may be, with what it may have. How many are not there though something of them
    /// was promised (the PFS has forgotten their names).
    fn look_at_files(&self, point: &Path, time: u64, there: &BTreeSet<PathBuf>) -> Result<u64> {
        let mut lost_names = 0;
        let mut known = BTreeSet::new();
        for (name, wanted) in self.site.cold() {
            let seen =
                std::fs::read(point.join(&name)).with_context(|| format!("read {name:?}"))?;
            ensure!(seen == wanted, "{name:?}, which nobody wrote, is another one");
            known.insert(name);
        }
        for file in self.files {
            let names = file.names_at(time);
            let found: Vec<&PathBuf> = match self.site.pair.power {
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
                Some(_) if file.was_removed(time) && self.site.pair.power == Power::OfBoth => {}
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
                        self.site.pair.power == Power::OfBoth,
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
            self.site.pair.power == Power::OfBoth && only_conflicts && conflicts > 0,
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
    let pair = Pair::new(name, power)?;
    judge_all(Site { pair, store: Store::Image, writes, boots: 0 }, usual)
}

fn judge_all(site: Site, usual_seed: u64) -> Result<()> {
    let seed = env_u64("FOREBAY_SEED", usual_seed);
    // Reading all of a tree through a small cache takes its time.
    let usual = match (site.store == Store::Small, every_point()) {
        (true, true) => 14,
        (true, false) => 10,
        (false, true) => 24,
        (false, false) => 16,
    };
    let states = env_u64("FOREBAY_POWERCUT_STATES", if long() { 600 } else { usual }) as usize;
    let power = site.pair.power;
    let mut run = record(site, seed)?;
    let cuts = run.recording.choose(power, &run.program.promises, states, seed);
    let disks = [run.site.pair.flash.disk.clone(), run.site.pair.pfs.disk.clone()];
    let mut builders = run.recording.builders(&disks)?;
    let mut judge = Judge {
        site: &mut run.site,
        files: &run.program.files,
        recording: &run.recording,
        conflicts: 0,
    };
    let started = Instant::now();
    let failures = try_all(&cuts, |cut| judge.try_cut(&mut builders, cut));
    eprintln!(
        "{} files, {} promises, {} and {} records; {} states in {:?}, {} conflicts, {} failed",
        run.program.files.len(),
        run.program.promises.len(),
        run.recording.records()[0],
        run.recording.records()[1],
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
fn a_cache_that_evicts_survives_power_cuts_of_its_node() -> Result<()> {
    let pair = Pair::new("cut-cache-small", Power::OfTheNode)?;
    judge_all(Site { pair, store: Store::Small, writes: "served", boots: 0 }, 45)
}

#[test]
fn a_cache_survives_power_cuts_that_its_pfs_has_too() -> Result<()> {
    on_trial("cut-cache-both", Power::OfBoth, "served", 43)
}

#[test]
fn a_cache_that_kernels_write_survives_power_cuts_that_its_pfs_has_too() -> Result<()> {
    on_trial("cut-cache-both-kernel", Power::OfBoth, "auto", 44)
}
