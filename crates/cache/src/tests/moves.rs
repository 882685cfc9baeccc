//! Names that change while files drain, names of ours that must not stay, and kills in between.

use super::*;
use forebay_failpoint::kill::{HOOK, KILL_ONLY, at_each_point, run_killed};
use std::os::unix::fs::MetadataExt;

const CHILD_BASE: &str = "FOREBAY_TEST_CACHE_MOVES_BASE";
const CAPACITY: u64 = 64 * MIB;
/// Bytes of a file that one fetch brings: steps then come in one order, however threads run.
const SMALL: usize = 30_000;

fn options(base: &Path) -> CacheOptions {
    CacheOptions { pfs: base.join("pfs"), ..Rig::new(CAPACITY).options }
}

/// Runs a child that is killed at each of its steps, those `wanted` among them; `judge` is told what was left.
fn at_each_step(
    child: &str,
    wanted: &[&str],
    prepare: impl Fn(&Rig),
    judge: impl Fn(&Rig, &str),
) -> Vec<String> {
    at_each_point(wanted, |at, only| {
        let rig = Rig::new(CAPACITY);
        prepare(&rig);
        let base = rig.base.path().to_str().unwrap();
        let variables = [(CHILD_BASE, base), (KILL_ONLY, only.unwrap_or_default())];
        let killed = run_killed(&format!("tests::moves::{child}"), &variables, at);
        judge(&rig, &format!("killed after {killed:?} ({at})"));
        killed
    })
}

fn names_on_pfs(rig: &Rig) -> Vec<String> {
    let list = std::fs::read_dir(rig.pfs("")).unwrap();
    let mut names: Vec<String> =
        list.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The same when what a drain leaves for a moment is gone.
fn settled_names_on_pfs(rig: &Rig) -> Vec<String> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let names = names_on_pfs(rig);
        let ours =
            names.iter().any(|name| name.as_bytes().starts_with(super::super::names::DRAIN_PREFIX));
        if !ours || Instant::now() > until {
            return names;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_name_that_nobody_looked_up_yet_tells_of_its_file() {
    use forebay_proto::cache::Keep;
    for (keep, opened) in [
        (None, false),
        (Some(Keep::Ours), false),
        (Some(Keep::Ours), true),
        (Some(Keep::Theirs), false),
        (Some(Keep::Theirs), true),
    ] {
        let (rig, root) = (Rig::new(CAPACITY), Caller::root());
        rig.put("f", b"both have this");
        std::fs::hard_link(rig.pfs("f"), rig.pfs("e")).unwrap();
        let cache = rig.open();
        cache.write("f", 0, b"OURS");
        if opened {
            // Asked for its state a name is known: then the file needs none of ours.
            let told = cache.state("/e");
            assert_eq!((told.is_durable(), told.files), (false, 1), "{told:?}");
        }
        cache.fs.unlink(&root, Ino::ROOT, b"f").unwrap();
        let told = cache.state("/e");
        assert_eq!((told.is_durable(), told.files), (false, 1), "{told:?}");
        let Some(keep) = keep else {
            assert!(cache.flush("/e").is_durable());
            assert_eq!(rig.read_pfs("e"), b"OURS have this");
            assert_eq!(settled_names_on_pfs(&rig), ["e"]);
            cache.crash();
            continue;
        };
        // Known by now, and removed by somebody else with what the PFS does not have.
        match opened {
            true => assert_eq!(cache.read("e").unwrap(), b"OURS have this"),
            false => drop(cache.lookup("e").unwrap()),
        }
        std::fs::remove_file(rig.pfs("e")).unwrap();
        let told = cache.flush("/e");
        assert_eq!((told.files, told.conflicts), (1, 1), "{told:?}");
        assert_eq!(told.problems[0].path.to_string(), "/e");
        cache.fs.resolve(&root, b"/e", keep).unwrap();
        assert!(cache.flush("/").is_durable());
        match keep {
            Keep::Ours => assert_eq!(rig.read_pfs("e"), b"OURS have this"),
            _ => assert!(!rig.pfs("e").exists()),
        }
        let names: &[&str] = if keep == Keep::Ours { &["e"] } else { &[] };
        assert_eq!(settled_names_on_pfs(&rig), names);
        cache.crash();
    }
}

#[test]
fn a_conflict_of_a_file_without_a_known_name_is_that_of_the_name_that_was_asked_for() {
    use forebay_proto::cache::Keep;
    let (rig, root) = (Rig::new(CAPACITY), Caller::root());
    rig.put("f", b"both have this");
    std::fs::hard_link(rig.pfs("f"), rig.pfs("e")).unwrap();
    let cache = rig.open();
    cache.write("f", 0, b"OURS");
    cache.fs.unlink(&root, Ino::ROOT, b"f").unwrap();
    std::fs::write(rig.pfs("e"), b"THEIRS, which is longer").unwrap();
    let told = cache.flush("/e");
    assert_eq!((told.files, told.conflicts), (1, 1), "{told:?}");
    assert_eq!(told.problems[0].path.to_string(), "/e");
    cache.fs.resolve(&root, b"/e", Keep::Both).unwrap();
    assert!(cache.flush("/").is_durable());
    assert_eq!(rig.read_pfs("e"), b"THEIRS, which is longer");
    assert_eq!(rig.read_pfs("e.forebay-ours"), b"OURS have this");
    assert_eq!(settled_names_on_pfs(&rig), ["e", "e.forebay-ours"]);
    cache.crash();
}

/// Not a test by itself: the server that is killed while it takes a file up, and drops it.
#[test]
fn child_dropping() {
    let Ok(base) = std::env::var(CHILD_BASE) else { return };
    let base = Path::new(&base);
    let cache = open_at(base, CAPACITY, options(base));
    assert_eq!(cache.read("f").unwrap(), pattern(1, SMALL));
    cache.fs.invalidate(&Caller::root(), b"/f").unwrap();
    cache.crash();
}

#[test]
fn a_kill_while_a_clean_file_is_taken_up_or_dropped_leaves_it_whole() {
    let data = pattern(1, SMALL);
    at_each_step(
        "child_dropping",
        &["a clean file is on record", "nothing is here of a file any more"],
        |rig| rig.put("f", &data),
        |rig, when| {
            let cache = rig.open();
            assert_eq!(cache.size("f"), SMALL as u64, "{when}");
            assert!(cache.read("f").unwrap() == data, "{when}");
            cache.crash();
        },
    );
}

#[test]
fn a_drain_that_meets_our_own_change_of_a_name_makes_no_conflict() {
    type Change = fn(&Running);
    let root = Caller::root;
    let changes: [(&str, Change); 4] = [
        ("rename", |cache| {
            cache.fs.rename(&Caller::root(), Ino::ROOT, b"f", Ino::ROOT, b"g", 0).unwrap();
        }),
        ("exchange", |cache| {
            let exchange = forebay_proto::api::rename_flags::EXCHANGE;
            cache.fs.rename(&Caller::root(), Ino::ROOT, b"f", Ino::ROOT, b"x", exchange).unwrap();
        }),
        ("rename above", |cache| {
            cache.fs.rename(&Caller::root(), Ino::ROOT, b"d", Ino::ROOT, b"e", 0).unwrap();
        }),
        ("utimens", |cache| {
            let at = forebay_proto::Timestamp { sec: 1_000_000_000, nsec: 5 };
            let change = forebay_proto::SetAttr {
                mtime: Some(forebay_proto::attr::SetTime::At(at)),
                ..Default::default()
            };
            cache.fs.setattr(&Caller::root(), cache.lookup("f").unwrap(), &change).unwrap();
        }),
    ];
    for (what, change) in changes {
        let rig = Rig::new(CAPACITY);
        std::fs::create_dir(rig.pfs("d")).unwrap();
        for name in ["f", "x", "d/y"] {
            rig.put(name, &pattern(1, 200_000));
        }
        let cache = rig.open();
        for name in ["f", "x", "d/y"] {
            cache.read(name).unwrap();
            cache.write(name, 10, b"changed");
        }
        let fs = cache.fs.clone();
        let met = Arc::new(AtomicBool::new(false));
        let seen = met.clone();
        HOOK.set(Some(Box::new(move |step| {
            let changed = step == "a name is moved on the PFS"
                || step == "a file's name or attributes are changed on the PFS";
            if changed && !seen.swap(true, Ordering::Relaxed) {
                fs.flush(&root(), b"/").unwrap();
                std::thread::sleep(Duration::from_millis(300));
                let state = fs.tree_state(&root(), b"/").unwrap();
                assert_eq!(state.conflicts, 0, "{what}: {state:?}");
            }
        })));
        change(&cache);
        HOOK.set(None);
        assert!(met.load(Ordering::Relaxed), "{what}: no step was passed");
        let state = cache.flush("/");
        assert!(state.is_durable(), "{what}: {state:?}");
        cache.crash();
    }
}

/// The server that is killed while it removes the only name that it knows of a dirty file.
#[test]
fn child_unlinking() {
    let Ok(base) = std::env::var(CHILD_BASE) else { return };
    let base = Path::new(&base);
    let cache = open_at(base, CAPACITY, options(base));
    cache.write("f", 10, b"changed");
    std::fs::write(base.join("acknowledged"), "").unwrap();
    cache.fs.unlink(&Caller::root(), Ino::ROOT, b"f").unwrap();
    cache.crash();
}

#[test]
fn a_dirty_file_is_found_by_names_that_nobody_here_knows() {
    // One block, so that each run has the same steps.
    let mut wanted = pattern(1, 100_000);
    let old = wanted.clone();
    wanted[10..17].copy_from_slice(b"changed");
    at_each_step(
        "child_unlinking",
        &["a file has a name of ours"],
        |rig| {
            rig.put("f", &old);
            std::fs::hard_link(rig.pfs("f"), rig.pfs("other")).unwrap();
            // Else its base is young in some runs, which have other steps then.
            std::thread::sleep(Duration::from_millis(25));
        },
        |rig, when| {
            let acknowledged = rig.base.path().join("acknowledged").exists();
            let cache = rig.open();
            let state = cache.flush("/");
            assert!(state.is_durable(), "{when}: {state:?}");
            let now = rig.read_pfs("other");
            assert!(now == wanted || (!acknowledged && now == old), "{when}");
            let names = settled_names_on_pfs(rig);
            let attr = cache.fs.getattr(cache.lookup("other").unwrap()).unwrap();
            assert!(names == ["other"] || names == ["f", "other"], "{when}: {names:?}");
            let links = std::fs::metadata(rig.pfs("other")).unwrap().nlink();
            assert_eq!((links, u64::from(attr.nlink)), (names.len() as u64, links), "{when}");
            assert!(cache.read("other").unwrap() == now, "{when}");
            cache.crash();
        },
    );
}

/// The server that is killed while it removes both names of a dirty file, of which it learns one after the other.
#[test]
fn child_unlinking_both() {
    let Ok(base) = std::env::var(CHILD_BASE) else { return };
    let cache = open_at(Path::new(&base), CAPACITY, options(Path::new(&base)));
    cache.write("f", 10, b"changed");
    for name in ["f", "other"] {
        cache.lookup(name).unwrap();
        cache.fs.unlink(&Caller::root(), Ino::ROOT, name.as_bytes()).unwrap();
    }
    cache.crash();
}

#[test]
fn a_name_of_ours_goes_with_the_last_one_also_by_a_kill() {
    at_each_step(
        "child_unlinking_both",
        &["a file has a name of ours", "a dirty file has lost its name on the PFS"],
        |rig| {
            rig.put("f", &pattern(1, SMALL));
            std::fs::hard_link(rig.pfs("f"), rig.pfs("other")).unwrap();
            // Else its base is young in some runs, which have other steps then.
            std::thread::sleep(Duration::from_millis(25));
        },
        |rig, when| {
            let cache = rig.open();
            let state = cache.flush("/");
            assert!(state.is_durable(), "{when}: {state:?}");
            let names = settled_names_on_pfs(rig);
            let is_known = |names: &[String]| {
                names.is_empty() || names == ["other"] || names == ["f", "other"]
            };
            assert!(is_known(&names), "{when}: {names:?}");
            cache.crash();
        },
    );
}

/// The server that is killed while it removes a file which drains, and is written again, at the same time.
#[test]
fn child_unlinking_what_drains() {
    let Ok(base) = std::env::var(CHILD_BASE) else { return };
    let cache = open_at(Path::new(&base), CAPACITY, options(Path::new(&base)));
    let handle = cache.open("f", libc::O_RDWR | libc::O_CREAT, false).unwrap();
    handle.write(0, &pattern(1, SMALL)).unwrap();
    let (fs, ino) = (cache.fs.clone(), handle.ino);
    HOOK.set(Some(Box::new(move |step| {
        if step == "a name is about to be removed" {
            fs.flush(&Caller::root(), b"/").unwrap();
            let until = Instant::now() + Duration::from_secs(10);
            while !fs.tree_state(&Caller::root(), b"/").unwrap().is_durable() {
                assert!(Instant::now() < until, "it is not drained");
                std::thread::sleep(Duration::from_millis(5));
            }
            // By another thread: this one's hook is in use.
            let fs = fs.clone();
            let write = move || fs.write(ino, 0, b"again", WriteMode::default());
            std::thread::spawn(write).join().unwrap().unwrap();
        }
    })));
    cache.fs.unlink(&Caller::root(), Ino::ROOT, b"f").unwrap();
}

#[test]
fn a_file_that_was_removed_while_it_drained_is_no_conflict_after_a_kill() {
    let rig = Rig::new(CAPACITY);
    let lost = "a dirty file has lost its name on the PFS";
    let base = rig.base.path().to_str().unwrap();
    let variables = [(CHILD_BASE, base), (KILL_ONLY, lost)];
    let child = "tests::moves::child_unlinking_what_drains";
    assert_eq!(run_killed(child, &variables, 1).as_deref(), Some(lost));
    let cache = rig.open();
    let state = cache.state("/");
    assert!(state.is_durable() && state.conflicts == 0, "{state:?}");
    assert_eq!(settled_names_on_pfs(&rig), [""; 0]);
    cache.crash();
}

#[test]
fn a_name_of_ours_shows_nowhere_and_goes_with_the_last_one() {
    let rig = Rig::new(CAPACITY);
    let root = Caller::root();
    rig.put("f", &pattern(1, 200_000));
    std::fs::hard_link(rig.pfs("f"), rig.pfs("other")).unwrap();
    let cache = rig.open();
    cache.write("f", 10, b"changed");
    let ino = cache.lookup("f").unwrap();
    cache.fs.unlink(&root, Ino::ROOT, b"f").unwrap();
    assert_eq!(names_on_pfs(&rig).len(), 2, "one of them is ours");
    assert_eq!(cache.fs.list_of(&root, b"/", b"").unwrap().names.len(), 1);
    assert_eq!(cache.lookup("other").unwrap(), ino);
    assert_eq!(cache.fs.getattr(ino).unwrap().nlink, 1);
    cache.fs.unlink(&root, Ino::ROOT, b"other").unwrap();
    assert_eq!(names_on_pfs(&rig), [""; 0], "nothing is left");
    assert!(cache.state("/").is_durable());
    // A directory whose only content is ours goes as soon as it is drained.
    std::fs::create_dir(rig.pfs("d")).unwrap();
    rig.put("d/f", &pattern(1, 1_000));
    std::fs::hard_link(rig.pfs("d/f"), rig.pfs("kept")).unwrap();
    cache.write("d/f", 0, b"changed");
    let dir = cache.lookup("d").unwrap();
    cache.fs.unlink(&root, dir, b"f").unwrap();
    cache.fs.rmdir(&root, Ino::ROOT, b"d").unwrap();
    assert_eq!(settled_names_on_pfs(&rig), ["kept"]);
    assert_eq!(&rig.read_pfs("kept")[..7], b"changed");
    cache.crash();
}

#[test]
fn a_temporary_that_cannot_be_removed_is_removed_later() {
    for restart in [false, true] {
        let rig = Rig::new(CAPACITY);
        let cache = rig.open();
        cache.fs.parts.pfs.keeps_names.store(true, Ordering::Relaxed);
        cache.write("f", 0, &pattern(1, 100_000));
        assert!(cache.flush("/").is_durable());
        assert!(rig.read_pfs("f") == pattern(1, 100_000));
        assert_eq!(names_on_pfs(&rig).len(), 2, "what the drain displaced is left");
        let cache = match restart {
            true => {
                cache.crash();
                rig.open()
            }
            false => {
                cache.fs.parts.pfs.keeps_names.store(false, Ordering::Relaxed);
                cache
            }
        };
        let until = Instant::now() + Duration::from_secs(10);
        while names_on_pfs(&rig).len() > 1 {
            assert!(Instant::now() < until, "it stays, restart {restart}");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(rig.read_pfs("f") == pattern(1, 100_000));
        assert!(cache.fs.parts.flash.leftovers().unwrap().is_empty(), "it is off the record");
        cache.crash();
    }
}
