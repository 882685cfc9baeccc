//! A server killed at each failpoint: no acknowledged byte is lost, what the PFS gets is what was
//! written, and nothing is left beside it.

use super::super::map::BLOCK_BYTES;
use super::*;
use forebay_failpoint::kill::{KILL_ONLY, at_each_point, points, run_killed};
use forebay_proto::attr::FileKind;
use std::io::Write;

const CHILD_BASE: &str = "FOREBAY_TEST_CACHE_BASE";
const CHILD: &str = "tests::kill::child_cache";
const CAPACITY: u64 = 12 * MIB;

pub(super) fn options(base: &Path) -> CacheOptions {
    CacheOptions {
        pfs: base.join("pfs"),
        ttl: Duration::ZERO,
        writes_by_kernel: true,
        policy: When::End.into(),
        verify: Verify::Cache,
        rate_bytes_per_s: 0,
        served: None,
    }
}

/// Contents of the file after each acknowledged step, by number; the same in child and parent.
fn states() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut now = pattern(1, 700_000);
    all.push(now.clone());
    // A served write into the middle of a block.
    now[300_000..300_100].copy_from_slice(&pattern(2, 100));
    all.push(now.clone());
    // Drained.
    all.push(now.clone());
    // A truncation, and a write behind it.
    now.truncate(150_000);
    all.push(now.clone());
    now.resize(500_000, 0);
    now.extend_from_slice(&pattern(3, 140_000));
    all.push(now.clone());
    // Drained.
    all.push(now.clone());
    // Written by a kernel.
    now[10..20].copy_from_slice(&pattern(4, 10));
    all.push(now.clone());
    // Drained.
    all.push(now.clone());
    // Written anew.
    now = pattern(5, 400_000);
    all.push(Vec::new());
    all.push(now.clone());
    // Drained.
    all.push(now);
    all
}

fn work(cache: &Running, mut acknowledge: impl FnMut()) {
    let states = states();
    let resize = |size| forebay_proto::SetAttr { size_bytes: Some(size), ..Default::default() };
    assert_eq!(cache.read("f").unwrap(), states[0]);
    acknowledge();
    cache.write("f", 300_000, &states[1][300_000..300_100]);
    acknowledge();
    assert!(cache.flush("/").is_durable());
    acknowledge();
    let ino = cache.lookup("f").unwrap();
    cache.fs.setattr(&Caller::root(), ino, &resize(150_000)).unwrap();
    acknowledge();
    cache.write("f", 500_000, &states[4][500_000..]);
    acknowledge();
    assert!(cache.flush("/").is_durable());
    acknowledge();
    let handle = cache.open("f", libc::O_RDWR, true).unwrap();
    handle.write(10, &states[6][10..20]).unwrap();
    acknowledge();
    drop(handle);
    assert!(cache.flush("/").is_durable());
    acknowledge();
    let handle = cache.open("f", libc::O_RDWR | libc::O_TRUNC, false).unwrap();
    acknowledge();
    handle.write(0, &states[9]).unwrap();
    drop(handle);
    acknowledge();
    assert!(cache.flush("/").is_durable());
    acknowledge();
}

/// Not a test by itself: the server that is killed.
#[test]
fn child_cache() {
    let Ok(base) = std::env::var(CHILD_BASE) else { return };
    let base = Path::new(&base);
    let cache = open_at(base, CAPACITY, options(base));
    let mut journal = std::fs::File::create(base.join("acknowledged")).unwrap();
    work(&cache, || journal.write_all(b".").unwrap());
    cache.crash();
}

#[test]
fn a_cache_killed_anywhere_loses_nothing_acknowledged() {
    let states = states();
    let wanted = [
        "data of a fill is on flash",
        "blocks are open in the map",
        "dirty data is on flash",
        "a truncation is on record",
        "a drain in place is on record",
        "dirty data is on the PFS",
    ];
    at_each_point(&wanted, |at, only| {
        let rig = Rig::new(CAPACITY);
        let base = rig.base.path();
        rig.put("f", &states[0]);
        let variables =
            [(CHILD_BASE, base.to_str().unwrap()), (KILL_ONLY, only.unwrap_or_default())];
        let killed = run_killed(CHILD, &variables, at);
        let acknowledged =
            std::fs::metadata(base.join("acknowledged")).map_or(0, |m| m.len()) as usize;
        let when = format!("killed after {killed:?} ({at}), {acknowledged} acknowledged");
        let cache = rig.open();
        let now = cache.read("f").unwrap();
        // The last one that was acknowledged, or what was being done; a long write may be half
        // done.
        let last = &states[acknowledged.saturating_sub(1)];
        let next = &states[acknowledged.min(states.len() - 1)];
        let between = now.len() <= last.len().max(next.len())
            && now
                .iter()
                .enumerate()
                .all(|(i, b)| last.get(i).unwrap_or(&0) == b || next.get(i).unwrap_or(&0) == b);
        assert!(now == *last || now == *next || between, "{when}: lost or mixed up");
        let state = cache.flush("/");
        assert!(state.is_durable(), "{when}: {state:?}");
        assert!(rig.read_pfs("f") == now, "{when}: the PFS has something else");
        assert_eq!(cache.read("f").unwrap(), now, "{when}: the drain changed it");
        let there = std::fs::read_dir(base.join("pfs")).unwrap().count();
        assert_eq!(there, 1, "{when}: something is left on the PFS");
        cache.crash();
        killed
    });
}

/// What is on the PFS, and what is written into blocks of it that the cache does not have: one in the middle, and
/// the last one, beyond its end.
fn not_here() -> (Vec<u8>, [(u64, Vec<u8>); 2]) {
    let block = BLOCK_BYTES as usize;
    let middle = (BLOCK_BYTES, pattern(7, block));
    (pattern(6, 2 * block + 40_000), [middle, (2 * BLOCK_BYTES, pattern(8, block))])
}

/// The server that is killed while it writes blocks that it does not have.
#[test]
fn child_writing_what_is_not_here() {
    let Ok(base) = std::env::var(CHILD_BASE) else { return };
    let base = Path::new(&base);
    let cache = open_at(base, CAPACITY, options(base));
    for (offset, data) in &not_here().1 {
        cache.write("f", *offset, data);
    }
    cache.crash();
}

#[test]
fn a_kill_in_the_write_of_a_block_that_is_not_here_leaves_the_old_or_the_new_one() {
    let (old, writes) = not_here();
    let mut new = old.clone();
    new.resize(3 * BLOCK_BYTES as usize, 0);
    for (offset, data) in &writes {
        new[*offset as usize..][..data.len()].copy_from_slice(data);
    }
    let wanted = ["blocks are open in the map", "dirty data is on flash"];
    at_each_point(&wanted, |at, only| {
        let rig = Rig::new(CAPACITY);
        let base = rig.base.path();
        rig.put("f", &old);
        let variables =
            [(CHILD_BASE, base.to_str().unwrap()), (KILL_ONLY, only.unwrap_or_default())];
        let child = "tests::kill::child_writing_what_is_not_here";
        let killed = run_killed(child, &variables, at);
        let when = format!("killed after {killed:?} ({at})");
        let cache = rig.open();
        let now = cache.read("f").unwrap();
        assert!((old.len()..=new.len()).contains(&now.len()), "{when}: {} bytes", now.len());
        let is_one = |i: usize| old.get(i).unwrap_or(&0) == &now[i] || new[i] == now[i];
        let wrong = (0..now.len()).find(|i| !is_one(*i));
        assert_eq!(wrong, None, "{when}: neither the old byte nor the new one");
        let state = cache.flush("/");
        assert!(state.is_durable(), "{when}: {state:?}");
        assert!(rig.read_pfs("f") == now, "{when}: the PFS has something else");
        assert!(cache.read("f").unwrap() == now, "{when}: the drain changed it");
        cache.crash();
        killed
    });
}

/// The server that is killed while it evicts: a file is read that is larger than the cache, beside
/// one that is dirty.
#[test]
fn child_evicting() {
    let Ok(base) = std::env::var(CHILD_BASE) else { return };
    let base = Path::new(&base);
    let cache = open_at(base, CAPACITY, options(base));
    assert_eq!(cache.read("dirty").unwrap(), pattern(1, 900_000));
    let big = pattern(2, 2 * CAPACITY as usize);
    assert!(cache.read("big").unwrap() == big);
    cache.write("big", 5 * MIB, b"changed");
    cache.crash();
}

/// What a server leaves that is killed at that point of an eviction (of those of that name, if any). Where it was.
fn killed_while_evicting(at: u64, only: &str) -> Option<String> {
    let rig = Rig::new(CAPACITY);
    let base = rig.base.path();
    let mut big = pattern(2, 2 * CAPACITY as usize);
    rig.put("big", &big);
    let cache = rig.open();
    cache.write("dirty", 0, &pattern(1, 900_000));
    cache.crash();
    let variables = [(CHILD_BASE, base.to_str().unwrap()), (KILL_ONLY, only)];
    let killed = run_killed("tests::kill::child_evicting", &variables, at);
    let cache = rig.open();
    assert_eq!(cache.read("dirty").unwrap(), pattern(1, 900_000), "{killed:?} ({at})");
    let now = cache.read("big").unwrap();
    if now != big {
        big[5 << 20..(5 << 20) + 7].copy_from_slice(b"changed");
    }
    assert!(now == big, "{killed:?} ({at})");
    assert!(cache.flush("/").is_durable());
    assert_eq!(rig.read_pfs("dirty"), pattern(1, 900_000));
    assert!(rig.read_pfs("big") == big);
    cache.crash();
    killed
}

#[test]
fn a_cache_killed_while_it_evicts_keeps_what_is_dirty() {
    const EVICTED: &str = "a block is off the map";
    let mut places = std::collections::BTreeSet::new();
    // Points of the first blocks, and fewer of the rest: blocks that lie together go at one point.
    let points = points().take_while(|at| *at < 12).chain(points().skip(4).step_by(5));
    places.extend(points.map_while(|at| killed_while_evicting(at, "")));
    // Points of several threads come in another order each time, and what is looked for may lie between two.
    for at in 1..=3 {
        assert_eq!(killed_while_evicting(at, EVICTED).as_deref(), Some(EVICTED), "{places:?}");
    }
}

const CHILD_KEEP: &str = "FOREBAY_TEST_CACHE_KEEP";
const KEEPS: [(&str, forebay_proto::cache::Keep); 3] = [
    ("ours", forebay_proto::cache::Keep::Ours),
    ("theirs", forebay_proto::cache::Keep::Theirs),
    ("both", forebay_proto::cache::Keep::Both),
];

/// The server that is killed while it ends a conflict.
#[test]
fn child_resolving() {
    let Ok(base) = std::env::var(CHILD_BASE) else { return };
    let base = Path::new(&base);
    let keep = std::env::var(CHILD_KEEP).unwrap();
    let keep = KEEPS.iter().find(|(name, _)| *name == keep).unwrap().1;
    let cache = open_at(base, CAPACITY, options(base));
    cache.fs.resolve(&Caller::root(), b"/f", keep).unwrap();
    assert!(cache.flush("/").is_durable());
    cache.crash();
}

#[test]
fn a_cache_killed_while_a_conflict_is_ended_loses_no_version_that_is_kept() {
    let (old, theirs) = (pattern(1, 300_000), pattern(2, 200_000));
    let mut ours = old.clone();
    ours[100..110].copy_from_slice(&pattern(3, 10));
    for (name, keep) in KEEPS {
        for replaced in [false, true] {
            for at in 1.. {
                let rig = Rig::new(CAPACITY);
                rig.put("f", &old);
                let cache = rig.open();
                assert_eq!(cache.read("f").unwrap(), old);
                cache.write("f", 100, &ours[100..110]);
                if replaced {
                    std::fs::remove_file(rig.pfs("f")).unwrap();
                }
                std::fs::write(rig.pfs("f"), &theirs).unwrap();
                let state = cache.flush("/");
                assert_eq!(state.conflicts, 1, "{state:?}");
                cache.crash();
                let base = rig.base.path().to_str().unwrap();
                let variables = [(CHILD_BASE, base), (CHILD_KEEP, name)];
                let killed = run_killed("tests::kill::child_resolving", &variables, at);
                let when = format!("{keep:?}, replaced {replaced}, {killed:?} ({at})");
                let cache = rig.open();
                let state = cache.flush("/");
                if !state.is_durable() {
                    assert_eq!(state.conflicts, 1, "{when}: {state:?}");
                    cache.fs.resolve(&Caller::root(), b"/f", keep).unwrap();
                    assert!(cache.flush("/").is_durable(), "{when}");
                }
                let there: Vec<Vec<u8>> = std::fs::read_dir(rig.pfs(""))
                    .unwrap()
                    .map(|entry| std::fs::read(entry.unwrap().path()).unwrap())
                    .collect();
                let has = |version: &Vec<u8>| there.contains(version);
                assert!(there.iter().all(|v| *v == ours || *v == theirs), "{when}: a part of one");
                assert!(has(&ours) || name == "theirs", "{when}: ours is lost");
                assert!(has(&theirs) || name == "ours", "{when}: theirs is lost");
                let wanted = if name == "ours" { &ours } else { &theirs };
                assert!(
                    rig.read_pfs("f") == *wanted && cache.read("f").unwrap() == *wanted,
                    "{when}"
                );
                cache.crash();
                if killed.is_none() {
                    break;
                }
            }
        }
    }
}

/// The server that is killed while it changes names of dirty files.
#[test]
fn child_renaming() {
    let Ok(base) = std::env::var(CHILD_BASE) else { return };
    let base = Path::new(&base);
    let cache = open_at(base, CAPACITY, options(base));
    let root = Caller::root();
    let rename = |from: &[u8], to: &[u8], flags| {
        cache.fs.rename(&root, Ino::ROOT, from, Ino::ROOT, to, flags).unwrap();
    };
    rename(b"d", b"e", 0);
    rename(b"a", b"b", 0);
    rename(b"b", b"c", forebay_proto::api::rename_flags::EXCHANGE);
    cache.fs.unlink(&root, Ino::ROOT, b"c").unwrap();
    cache.crash();
}

#[test]
fn a_kill_between_names_and_records_makes_no_conflict() {
    let wanted = ["a dirty file has lost its name on the PFS", "a name is moved on the PFS"];
    at_each_point(&wanted, |at, only| {
        let rig = Rig::new(CAPACITY);
        std::fs::create_dir(rig.pfs("d")).unwrap();
        for name in ["a", "b", "c", "d/x"] {
            rig.put(name, b"old");
        }
        let cache = rig.open();
        for name in ["a", "b", "c", "d/x"] {
            cache.write(name, 0, format!("new content of {name}").as_bytes());
        }
        cache.crash();
        let base = rig.base.path().to_str().unwrap();
        let variables = [(CHILD_BASE, base), (KILL_ONLY, only.unwrap_or_default())];
        let killed = run_killed("tests::kill::child_renaming", &variables, at);
        let cache = rig.open();
        let state = cache.flush("/");
        assert!(state.is_durable(), "{killed:?} ({at}): {state:?}");
        // Whatever was done, each file that is there has what was written to it.
        for entry in std::fs::read_dir(rig.pfs("")).unwrap().map(|e| e.unwrap().path()) {
            let path = if entry.is_dir() { entry.join("x") } else { entry };
            let text = std::fs::read_to_string(path).unwrap();
            assert!(text.starts_with("new content of "), "{killed:?} ({at}): {text}");
        }
        cache.crash();
        killed
    });
}

/// Files that are moved, to names that are there or not.
const MOVED: [(&str, &str); 2] = [("a", "b"), ("c", "d")];

/// The server that is killed while it moves dirty files and leaves whiteouts.
#[test]
fn child_leaving_whiteouts() {
    let Ok(base) = std::env::var(CHILD_BASE) else { return };
    let base = Path::new(&base);
    let cache = open_at(base, CAPACITY, options(base));
    let whiteout = forebay_proto::api::rename_flags::WHITEOUT;
    for (from, to) in MOVED.map(|(from, to)| (from.as_bytes(), to.as_bytes())) {
        cache.fs.rename(&Caller::root(), Ino::ROOT, from, Ino::ROOT, to, whiteout).unwrap();
    }
    cache.crash();
}

#[test]
fn a_kill_in_a_rename_that_leaves_a_whiteout_leaves_the_file_or_both() {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let wanted = ["a dirty file has lost its name on the PFS", "a name is moved on the PFS"];
    at_each_point(&wanted, |at, only| {
        let rig = Rig::new(CAPACITY);
        let cache = rig.open();
        for name in ["a", "b", "c"] {
            rig.put(name, b"old");
            cache.write(name, 0, format!("new content of {name}").as_bytes());
        }
        cache.crash();
        let base = rig.base.path().to_str().unwrap();
        let variables = [(CHILD_BASE, base), (KILL_ONLY, only.unwrap_or_default())];
        let killed = run_killed("tests::kill::child_leaving_whiteouts", &variables, at);
        let when = format!("{killed:?} ({at})");
        let cache = rig.open();
        let state = cache.flush("/");
        assert!(state.is_durable(), "{when}: {state:?}");
        for (from, to) in MOVED {
            let wanted = format!("new content of {from}").into_bytes();
            let left = std::fs::symlink_metadata(rig.pfs(from)).unwrap();
            let kind = cache.fs.getattr(cache.lookup(from).unwrap()).unwrap().kind();
            let is_moved = left.file_type().is_char_device();
            let at_now = if is_moved { to } else { from };
            let expected = if is_moved { FileKind::CharDev } else { FileKind::File };
            assert_eq!((kind, left.rdev()), (expected, 0), "{when}: {from}");
            assert!(rig.read_pfs(at_now) == wanted, "{when}: {from} is not {at_now} on the PFS");
            assert_eq!(cache.read(at_now).unwrap(), wanted, "{when}: {from} is not {at_now}");
            match (to, is_moved) {
                ("b", false) => assert_eq!(cache.read("b").unwrap(), b"new content of b", "{when}"),
                (_, false) => assert_eq!(cache.lookup(to), Err(Errno::ENOENT), "{when}: {to}"),
                (_, true) => {}
            }
        }
        // A whiteout that was left is taken away as any name is.
        if cache.lookup("d").is_ok() {
            cache.fs.unlink(&Caller::root(), Ino::ROOT, b"c").unwrap();
            assert!(std::fs::symlink_metadata(rig.pfs("c")).is_err(), "{when}");
        }
        cache.crash();
        killed
    });
}

/// The server that is killed while it drains into a file of which the PFS has parts that it has not.
#[test]
fn child_draining_in_place() {
    let Ok(base) = std::env::var(CHILD_BASE) else { return };
    let base = Path::new(&base);
    let cache = open_at(base, CAPACITY, options(base));
    cache.write("f", 70_000, b"ours");
    cache.flush("/");
    cache.crash();
}

#[test]
fn what_somebody_writes_after_a_drain_that_was_cut_short_was_taken_up_is_a_conflict() {
    let wanted = ["a drain in place is on record", "dirty data is on the PFS"];
    at_each_point(&wanted, |at, only| {
        let rig = Rig::new(CAPACITY);
        let base = rig.base.path();
        rig.put("f", &pattern(1, 300_000));
        let variables =
            [(CHILD_BASE, base.to_str().unwrap()), (KILL_ONLY, only.unwrap_or_default())];
        let killed = run_killed("tests::kill::child_draining_in_place", &variables, at);
        if killed.as_deref().is_some_and(|place| wanted.contains(&place)) {
            let cache = rig.open();
            rig.put("f", &pattern(2, 200_000));
            let state = cache.flush("/");
            assert_eq!((state.files, state.conflicts), (1, 1), "{killed:?}: {state:?}");
            assert!(rig.read_pfs("f") == pattern(2, 200_000), "{killed:?}: theirs is changed");
            cache.crash();
        }
        killed
    });
}
