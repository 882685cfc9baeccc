//! Power cuts: a random program on a mount whose disk is recorded, and every state that a cut
//! could have left, recovered and judged.
//!
//! XFS on the same rig is the yardstick: it must pass, and it must fail when fsyncs are left
//! out or when the device forgets the order that flushes promise; so the judge can be trusted
//! when it finds nothing wrong with Forebay.
//!
//! Environment, beside that of the crate (`FOREBAY_LONG`, `FOREBAY_SEED`):
//! * `FOREBAY_POWERCUT_STATES`: number of cuts of each test.
//! * `FOREBAY_POWERCUT_ACTIONS`: length of the program.
//! * `FOREBAY_POWERCUT_CUTS`: instead of a choice `all`, every prefix, or `promises`, each
//!   position where something durable was acknowledged.
//! * `FOREBAY_POWERCUT_KEEP`: a directory that gets the image of the last state that failed.

use anyhow::{Context, Result, ensure};
use forebay_tests::env_u64;
use forebay_tests::recorder::disk::Record;
use forebay_tests::recorder::rig::{Rig, Surroundings};
use forebay_tests::recorder::state::{Builder, Cut, choose};
use forebay_tests::recorder::target::{Forebay, LoopXfs, Lower, Target};
use forebay_tests::recorder::verify::{Judge, used_bytes};
use forebay_tests::recorder::workload::{Journal, Program, Runner};
use std::time::Instant;

/// Image of the yardstick in bytes; XFS wants 300 MB.
const XFS_IMAGE_BYTES: u64 = 400 << 20;

/// A store of Forebay is ready when this file got its last name.
const STORE_RECORD: &str = "store.json";

/// Number of states to try.
fn states(default: usize) -> usize {
    let default = match (forebay_tests::long(), forebay_tests::every_point()) {
        (true, _) => default * 20,
        (false, true) => default,
        (false, false) => default / 3,
    };
    env_u64("FOREBAY_POWERCUT_STATES", default as u64) as usize
}

/// The seed of a program: always the same, so that a run in CI says something about the change
/// and not about its luck; a new one in long runs.
fn seed(test: &str, usual: u64) -> u64 {
    match forebay_tests::long() {
        true => forebay_tests::seed(test),
        false => env_u64("FOREBAY_SEED", usual),
    }
}

/// A recorded run.
struct Run {
    rig: Rig,
    log: Vec<Record>,
    journal: Journal,
    surroundings: Surroundings,
    empty_bytes: u64,
    /// The store was ready.
    ready: u64,
    /// The program began.
    first: u64,
    last: u64,
}

impl Run {
    /// About `count` cuts while the program ran.
    fn choose(&self, count: usize, seed: u64) -> Vec<Cut> {
        choose(&self.log, &self.journal.promises(), self.first..self.last, count, seed)
    }
}

/// Records a program; `kills` times in it the server is killed and started again.
fn record(target: &mut dyn Target, name: &str, program: Program, kills: usize) -> Result<Run> {
    let rig = Rig::new(name)?;
    target.start(&rig).context("mount")?;
    rig.hold_disk()?;
    let covers_all = target.directory_sync_covers_all();
    // What made the store is on the medium before the program begins.
    std::fs::File::open(&rig.point)?.sync_all()?;
    let empty_bytes = used_bytes(&rig.point)?;
    let first = rig.disk.seq();
    let ready = rig.disk.last_rename(STORE_RECORD).unwrap_or(first);
    let mut runner = Runner::new(&rig.point, rig.disk.clone(), covers_all, program)?;
    let parts = kills + 1;
    for part in 0..parts {
        if part > 0 {
            target.kill(&rig).context("kill")?;
            runner.server_died();
            target.start(&rig).context("mount after the kill")?;
        }
        runner.run(program.actions / parts).with_context(|| format!("seed {}", program.seed))?;
    }
    let last = rig.disk.seq();
    let surroundings = rig.surroundings()?;
    let journal = runner.finish();
    target.stop(&rig).context("unmount")?;
    rig.must_be_released()?;
    let log = rig.disk.take_log();
    Ok(Run { rig, log, journal, surroundings, empty_bytes, ready, first, last })
}

/// What is done with each cut.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Once,
    /// Again, while the first is recovered from.
    Twice,
    /// On a device that ignores the order over flushes.
    Unordered,
}

/// Tries cuts; returns the failures in words. Stops at `enough`.
fn judge(
    target: &mut dyn Target,
    run: &Run,
    cuts: &[Cut],
    how: How,
    enough: usize,
) -> Result<Vec<String>> {
    let mut builder = Builder::new(&run.rig.disk, &run.log)?;
    if how == How::Unordered {
        builder.ignore_flushes();
    }
    let judge = Judge {
        rig: &run.rig,
        journal: &run.journal,
        surroundings: &run.surroundings,
        empty_bytes: run.empty_bytes,
    };
    let started = Instant::now();
    let mut failures = Vec::new();
    for (index, cut) in cuts.iter().enumerate() {
        let verdict = match how {
            How::Twice => judge.try_cut_twice(target, &mut builder, cut, index as u64),
            _ => judge.try_cut(target, &mut builder, cut),
        };
        if let Err(error) = verdict {
            failures.push(format!("state {index}, {cut}: {error:#}"));
            if failures.len() >= enough {
                break;
            }
        }
    }
    let each = started.elapsed() / cuts.len().max(1) as u32;
    eprintln!(
        "{} records, {} steps, {} operations on names; {} states, {each:?} each, {} failed",
        run.last - run.first,
        run.journal.steps.len(),
        run.journal.name_ops.len(),
        cuts.len(),
        failures.len()
    );
    Ok(failures)
}

fn program(seed: u64, actions: usize) -> Program {
    let actions = env_u64("FOREBAY_POWERCUT_ACTIONS", actions as u64) as usize;
    Program { seed, actions, burst_files: 0, drop_every: None }
}

#[test]
fn the_disk_sees_writes_before_the_flush_that_covers_them() -> Result<()> {
    let mut target = LoopXfs { image_bytes: XFS_IMAGE_BYTES };
    let rig = Rig::new("powercut-recorder")?;
    target.start(&rig)?;
    rig.hold_disk()?;
    let path = rig.point.join("file");
    let pattern: Vec<u8> = (0..300_000u32).map(|index| (index % 251) as u8).collect();
    let before = rig.disk.seq();
    std::fs::write(&path, &pattern)?;
    std::fs::File::open(&path)?.sync_all()?;
    let after = rig.disk.seq();
    target.stop(&rig)?;
    let log = rig.disk.take_log();
    let of_fsync = &log[before as usize..after as usize];
    let data: usize = of_fsync
        .iter()
        .filter_map(|record| match record {
            Record::Write { data, .. } => Some(data.len()),
            _ => None,
        })
        .sum();
    ensure!(data >= pattern.len(), "only {data} bytes reached the disk before fsync returned");
    let last_write = of_fsync.iter().rposition(|record| matches!(record, Record::Write { .. }));
    let last_flush = of_fsync.iter().rposition(|record| matches!(record, Record::Flush));
    ensure!(last_flush > last_write, "no flush after the last write of an fsync");
    Ok(())
}

#[test]
fn the_yardstick_passes() -> Result<()> {
    let seed = seed("yardstick", 11);
    let mut target = LoopXfs { image_bytes: XFS_IMAGE_BYTES };
    let run = record(&mut target, "powercut-xfs", program(seed, 800), 0)?;
    let states = states(40);
    let cuts = run.choose(states, seed);
    let failures = judge(&mut target, &run, &cuts, How::Once, 5)?;
    ensure!(failures.is_empty(), "seed {seed}:\n{}", failures.join("\n"));
    Ok(())
}

#[test]
fn a_dropped_fsync_is_noticed() -> Result<()> {
    let mut target = LoopXfs { image_bytes: XFS_IMAGE_BYTES };
    let program = Program { drop_every: Some(3), ..program(12, 300) };
    let run = record(&mut target, "powercut-drop", program, 0)?;
    let cuts = run.choose(60, 12);
    let failures = judge(&mut target, &run, &cuts, How::Once, 1)?;
    let lost = ["were durable", "it may hold", "must be"];
    ensure!(
        failures.iter().any(|failure| lost.iter().any(|words| failure.contains(words))),
        "every third fsync was left out, and no loss was noticed: {failures:?}"
    );
    Ok(())
}

#[test]
fn a_device_without_order_is_noticed() -> Result<()> {
    let mut target = LoopXfs { image_bytes: XFS_IMAGE_BYTES };
    let run = record(&mut target, "powercut-order", program(13, 300), 0)?;
    let mut cuts = run.choose(120, 13);
    cuts.retain(|cut| matches!(cut, Cut::Reordered { .. }));
    let failures = judge(&mut target, &run, &cuts, How::Unordered, 1)?;
    ensure!(!failures.is_empty(), "the order over flushes was ignored and nothing noticed");
    Ok(())
}

/// Power cuts under Forebay; see the module for the environment.
fn forebay(name: &str, program: Program, kills: usize, states: usize, how: How) -> Result<()> {
    on_trial(&mut Forebay::new("400MiB"), name, program, kills, states, how)
}

fn on_trial(
    target: &mut Forebay,
    name: &str,
    program: Program,
    kills: usize,
    states: usize,
    how: How,
) -> Result<()> {
    let run = record(target, name, program, kills)?;
    let states = self::states(states);
    let prefix = |at: u64| Cut::Prefix { at };
    let mut cuts: Vec<Cut> = match std::env::var("FOREBAY_POWERCUT_CUTS").as_deref() {
        Ok("all") => (run.first..=run.last).map(prefix).collect(),
        Ok("promises") => run.journal.promises().into_iter().map(prefix).collect(),
        _ => run.choose(states, program.seed),
    };
    // From the moment the store is said to be ready it is whole, and empty.
    cuts.extend(choose(&run.log, &[], run.ready..run.first, states / 10, program.seed));
    cuts.sort_by_key(Cut::at);
    let failures = judge(target, &run, &cuts, how, 5)?;
    ensure!(
        failures.is_empty(),
        "again with FOREBAY_SEED={} FOREBAY_POWERCUT_STATES={states} \
         cargo test -p forebay-tests --test powercut -- --nocapture\n{}",
        program.seed,
        failures.join("\n")
    );
    Ok(())
}

#[test]
fn forebay_survives_power_cuts() -> Result<()> {
    let seed = seed("powercut", 21);
    forebay("powercut", program(seed, 900), 0, 150, How::Once)
}

#[test]
fn forebay_survives_power_cuts_while_its_log_turns_over() -> Result<()> {
    let seed = seed("powercut", 22);
    let program = Program { burst_files: 1600, ..program(seed, 120) };
    forebay("powercut-burst", program, 0, 60, How::Once)
}

#[test]
fn forebay_survives_kills_and_then_a_power_cut() -> Result<()> {
    let seed = seed("powercut", 23);
    forebay("powercut-kill", program(seed, 600), 3, 80, How::Once)
}

#[test]
fn forebay_survives_a_power_cut_while_it_recovers_from_one() -> Result<()> {
    let seed = seed("powercut", 24);
    forebay("powercut-twice", program(seed, 500), 1, 40, How::Twice)
}

#[test]
fn a_directory_store_on_ext4_survives_power_cuts() -> Result<()> {
    let seed = seed("powercut", 25);
    let mut target = Forebay::on(Lower::Ext4, "400MiB");
    on_trial(&mut target, "powercut-ext4", program(seed, 500), 1, 50, How::Once)
}

#[test]
fn a_directory_store_on_xfs_survives_power_cuts() -> Result<()> {
    let seed = seed("powercut", 26);
    let mut target = Forebay::on(Lower::Xfs, "400MiB");
    on_trial(&mut target, "powercut-xfsdir", program(seed, 500), 1, 30, How::Once)
}
