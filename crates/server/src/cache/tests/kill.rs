//! A server killed at each of its steps: no acknowledged byte is lost, what the PFS gets is what was
//! written, and nothing is left beside it.

use super::*;
use crate::step::kill::run_killed;
use std::io::Write;

const CHILD_BASE: &str = "FOREBAY_TEST_CACHE_BASE";
const CHILD: &str = "cache::tests::kill::child_cache";
const CAPACITY: u64 = 12 * MIB;

fn options(base: &Path) -> CacheOptions {
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
    let mut places = std::collections::BTreeSet::new();
    for at in 1.. {
        let rig = Rig::new(CAPACITY);
        let base = rig.base.path();
        rig.put("f", &states[0]);
        let killed = run_killed(CHILD, &[(CHILD_BASE, base.to_str().unwrap())], at);
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
        match killed {
            Some(place) => places.insert(place),
            None => break,
        };
    }
    for wanted in [
        "data of a fill is on flash",
        "blocks are open in the map",
        "dirty data is on flash",
        "a truncation is on record",
        "a drain in place is on record",
        "dirty data is on the PFS",
    ] {
        assert!(places.iter().any(|p| p == wanted), "no kill after {wanted:?}: {places:?}");
    }
}
