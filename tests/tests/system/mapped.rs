//! Load and store: mapped files in buffers over kills and power cuts, in caches, and from Python.
//!
//! The program that is killed is the one of `examples/kv-table`: it says of each key when it is safe.
#![allow(clippy::unwrap_used)]

use anyhow::{Context, Result, ensure};
use forebay_map::{Grade, Map, Options};
use forebay_tests::buffer::{Buffer, Kind};
use forebay_tests::programs;
use forebay_tests::recorder::rig::{Rig, run_command};
use forebay_tests::recorder::state::{Builder, Cut, choose};
use forebay_tests::recorder::target::{Forebay, Target};
use forebay_tests::site::{self, Site};
use forebay_tests::{env_u64, long, seed};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Keys of the program whose disk is recorded.
const KEYS: u64 = 150;

/// Compiles the example into a directory.
fn compile(into: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/kv-table/kv.c");
    programs::compile(&source, into, "forebay", &["-O1"])
}

/// What `fill` puts under a key.
fn value(key: u64) -> String {
    format!("value-of-{key}-{}", "0".repeat((key % 30) as usize + 1))
}

/// What a table has.
fn listed(program: &Path, table: &Path) -> Result<BTreeMap<u64, String>> {
    let said = run_command(Command::new(program).arg(table).arg("list"))?;
    let parse = |line: &str| -> Result<(u64, String)> {
        let (key, value) = line.split_once(' ').context("a line without a value")?;
        Ok((key.parse()?, value.to_string()))
    };
    said.lines().map(parse).collect()
}

/// The table has each key that was told to be safe, and nothing but what was put.
fn must_hold(program: &Path, table: &Path, safe: u64, begun: u64) -> Result<u64> {
    let found = listed(program, table)?;
    let count = found.len() as u64;
    ensure!((safe..=begun).contains(&count), "{count} keys: {safe} are safe, {begun} were begun");
    for (key, (found, text)) in (0..).zip(&found) {
        ensure!(*found == key && *text == value(key), "key {key} is {found}: {text}");
    }
    Ok(count)
}

fn fill(program: &Path, table: &Path, first: u64, count: u64) -> Child {
    let mut command = Command::new(program);
    command.arg(table).args(["fill", &first.to_string(), &count.to_string()]);
    command.stdout(Stdio::piped()).spawn().unwrap()
}

/// Kills the program, and at times the mount before it, again and again.
fn survives_kills(kind: Kind) {
    let mut rng = StdRng::seed_from_u64(seed("a_table_survives_kills"));
    let scratch = tempfile::tempdir().unwrap();
    let program = compile(scratch.path());
    let buffer = Buffer::mount(kind, 64 << 20);
    let table = buffer.root().join("table");
    let mut count = 0;
    for turn in 0..if long() { 200 } else { 16 } {
        let mut child = fill(&program, &table, count, 100_000);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut safe = count;
        let kill_after = count + rng.random_range(0..300);
        let kill_mount = turn % 4 == 3;
        while safe < kill_after {
            // A program that meets a dead mount ends by itself.
            let Some(Ok(line)) = lines.next() else { break };
            assert_eq!(line.split(' ').next(), Some(&*safe.to_string()), "{line}");
            safe += 1;
            if kill_mount && safe == count + (kill_after - count) / 2 {
                buffer.kill_and_restart();
            }
        }
        child.kill().unwrap();
        // What it told before it died is safe too.
        safe += lines.map_while(Result::ok).count() as u64;
        child.wait().unwrap();
        assert!(kill_mount || safe >= kill_after, "it ended by itself after {safe}");
        count = must_hold(&program, &table, safe, safe + 1).unwrap();
    }
    assert!(count > 300, "only {count} keys were put");
}

#[test]
fn a_table_in_mapped_memory_survives_kills_of_program_and_mount() {
    survives_kills(Kind::Tmpfs);
}

#[test]
fn a_table_in_mapped_memory_survives_kills_where_all_io_is_served() {
    survives_kills(Kind::Served);
}

/// One state after a power cut: the table has what was safe, and goes on.
fn judge(rig: &Rig, target: &mut Forebay, program: &Path, cut: &Cut, told: &[u64]) -> Result<()> {
    target.start(rig).context("mount after the power cut")?;
    let table = rig.point.join("table");
    let safe = told.iter().filter(|seq| **seq <= cut.at()).count() as u64;
    // Before the first key was safe there may be no table, or one that is half made.
    let count = match (safe, table.exists()) {
        (0, false) => 0,
        _ => must_hold(program, &table, safe, KEYS)?,
    };
    let next =
        Command::new(program).arg(&table).args(["fill", &count.to_string(), "1"]).output()?;
    ensure!(next.status.success(), "it does not go on: {next:?}");
    must_hold(program, &table, count + 1, count + 1).context("after one more")?;
    target.stop(rig).context("unmount after the power cut")
}

#[test]
fn a_table_in_mapped_memory_survives_power_cuts() -> Result<()> {
    let seed = if long() { seed("mapped") } else { env_u64("FOREBAY_SEED", 71) };
    let states = env_u64("FOREBAY_POWERCUT_STATES", if long() { 600 } else { 36 }) as usize;
    let scratch = tempfile::tempdir()?;
    let program = compile(scratch.path());
    let rig = Rig::new("powercut-mapped")?;
    let mut target = Forebay::new("400MiB");
    target.start(&rig)?;
    rig.hold_disk()?;
    std::fs::File::open(&rig.point)?.sync_all()?;
    let first = rig.disk.seq();
    let mut child = fill(&program, &rig.point.join("table"), 0, KEYS);
    let output = BufReader::new(child.stdout.take().unwrap()).lines();
    let lines: Vec<(String, u64)> =
        output.map_while(Result::ok).map(|line| (line, rig.disk.seq())).collect();
    let ended = child.wait()?;
    ensure!(ended.success() && lines.len() as u64 == KEYS, "{ended} after {} keys", lines.len());
    let wanted = |(key, line): (usize, &String)| *line == format!("{key} on flash");
    ensure!(lines.iter().map(|(line, _)| line).enumerate().all(wanted), "{lines:?}");
    let told: Vec<u64> = lines.into_iter().map(|(_, seq)| seq).collect();
    let last = rig.disk.seq();
    let surroundings = rig.surroundings()?;
    target.stop(&rig)?;
    rig.must_be_released()?;
    let log = rig.disk.take_log();
    let mut builder = Builder::new(&rig.disk, &log)?;
    let cuts = choose(&log, &told, first..last, states, seed);
    ensure!(cuts.iter().any(|cut| told.first().is_some_and(|seq| cut.at() > *seq)));
    for cut in &cuts {
        builder.build(cut)?;
        rig.restore(&surroundings)?;
        judge(&rig, &mut target, &program, cut, &told)
            .with_context(|| format!("seed {seed}, {cut}, {first} to {last}"))?;
        rig.must_be_released()?;
        builder.undo()?;
    }
    eprintln!("{} cuts", cuts.len());
    Ok(())
}

forebay_tests::on_both_kinds!(what_is_persisted_in_a_cache_is_drained_while_it_is_mapped);

fn what_is_persisted_in_a_cache_is_drained_while_it_is_mapped(kind: site::Kind) {
    const BYTES: usize = 300_000;
    let site = Site::mounted_as(kind, 64 << 20, &["--drain", "end"]);
    // A file that the PFS has and the buffer does not, and one that is made by the mapping.
    std::fs::write(site.pfs("there"), vec![b'a'; BYTES]).unwrap();
    for name in ["there", "new"] {
        let path = site.mnt(name);
        let map = Map::open(&path, BYTES as u64, Options::default()).unwrap();
        let mut wanted = vec![if name == "new" { 0 } else { b'a' }; BYTES];
        for (turn, at) in [(1u8, 5), (2, 200_000), (3, 0)] {
            let bytes = [turn; 5_000];
            wanted[at..at + bytes.len()].copy_from_slice(&bytes);
            map.store(at, &bytes).unwrap();
            assert_eq!(map.persist(at, bytes.len()).unwrap(), Grade::Written);
            let (ok, said) = site.wait(&path);
            assert!(ok, "{said}");
            let found = std::fs::read(site.pfs(name)).unwrap();
            assert!(found == wanted, "{name}, turn {turn}: the PFS has {} bytes", found.len());
        }
        map.store(9, b"at the end").unwrap();
        wanted[9..19].copy_from_slice(b"at the end");
        drop(map);
        site.must_be_durable();
        assert!(std::fs::read(site.pfs(name)).unwrap() == wanted, "{name} after the unmapping");
    }
    assert_eq!(site.umount(&[]), (true, String::new()));
}
