//! Measurements, run by hand:
//! `FOREBAY_SPEED_DIR=/dev/shm cargo test --release --features failpoints -p forebay-store speed -- --ignored --nocapture`

use super::*;
use std::time::{Duration, Instant};

/// Processor time of the whole process.
fn cpu() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

fn timed(what: &str, n: u64, f: impl FnOnce()) {
    let (wall, before) = (Instant::now(), cpu());
    f();
    let (wall, used) = (wall.elapsed(), cpu() - before);
    let per = |d: Duration| d.as_secs_f64() * 1e9 / n as f64;
    println!(
        "{what:48} {:>10.0}/s {:>8.0} ns wall {:>8.0} ns cpu each",
        n as f64 / wall.as_secs_f64(),
        per(wall),
        per(used)
    );
}

fn measure(volatile: bool) {
    let n = 200_000;
    let base = std::env::var("FOREBAY_SPEED_DIR").unwrap_or_else(|_| "/tmp".into());
    let tmp = tempfile::tempdir_in(base).unwrap();
    let opts = StoreOptions {
        log_bytes: 32 << 20,
        map_bytes: 1 << 30,
        volatile,
        preallocate: !volatile,
        ..options(&tmp.path().join("meta"))
    };
    println!("volatile: {volatile}");
    let store = LmdbStore::open(opts.clone()).unwrap();
    timed("create (no checkpoint yet)", 30_000, || {
        for i in 0..30_000 {
            store.commit(batch(create(Ino(1), i))).unwrap();
        }
    });
    timed("lookup, in the overlay", 200_000, || {
        for i in 0..200_000_u64 {
            let name = format!("file.{:08}", i * 7919 % 30_000);
            assert!(store.entry(Ino(1), name.as_bytes()).unwrap().is_some());
        }
    });
    timed("inode, in the overlay", 200_000, || {
        for i in 0..200_000_u64 {
            assert!(store.inode(Ino(100 + i * 7919 % 30_000)).unwrap().is_some());
        }
    });
    timed("create (with checkpoints)", n - 30_000, || {
        for i in 30_000..n {
            store.commit(batch(create(Ino(1), i))).unwrap();
        }
    });
    store.checkpoint().unwrap();
    for i in n..n + 30_000 {
        store.commit(batch(create(Ino(1), i))).unwrap();
    }
    let before = std::fs::metadata(opts.dir.join("log.0")).unwrap().len();
    timed("checkpoint of 30,000 creates", 30_000, || store.checkpoint().unwrap());
    let _ = before;
    timed("lookup, in the database", 200_000, || {
        for i in 0..200_000_u64 {
            let name = format!("file.{:08}", i * 7919 % n);
            assert!(store.entry(Ino(1), name.as_bytes()).unwrap().is_some());
        }
    });
    timed("lookup of a missing name", 200_000, || {
        for i in 0..200_000_u64 {
            let name = format!("none.{:08}", i * 7919 % n);
            assert!(store.entry(Ino(1), name.as_bytes()).unwrap().is_none());
        }
    });
    timed("list, an entry", n, || {
        store.entries(Ino(1), Cookie(0), Cookie(u64::MAX), &mut |_, _| true).unwrap();
    });
    println!(
        "data pages {}, high page {}",
        store.inner.view.db.data_pages().unwrap(),
        store.inner.view.db.high_page()
    );
    timed("unlink", n, || {
        for i in 0..n {
            let mut parent = record(libc::S_IFDIR | 0o755, 2, i);
            parent.next_cookie = Cookie(n + 4);
            let name = format!("file.{i:08}").into_bytes();
            let changes = vec![
                Change::DelEntry { dir: Ino(1), name, cookie: Cookie(i + 3) },
                Change::DelInode(Ino(100 + i)),
                Change::PutInode(Ino(1), parent),
            ];
            store.commit(Batch { may_use_reserve: true, ..batch(changes) }).unwrap();
        }
    });
    timed("checkpoint after it", n, || store.checkpoint().unwrap());
    timed("sync after one commit", 200, || {
        for i in 0..200 {
            store.commit(batch(create(Ino(2), 1_000_000 + i))).unwrap();
            store.sync().unwrap();
        }
    });
    for i in 0..40_000 {
        store.commit(batch(create(Ino(3), 2_000_000 + i))).unwrap();
    }
    drop(store);
    let mut store = None;
    timed("open with 40,000 creates to replay", 1, || {
        store = Some(LmdbStore::open(opts.clone()).unwrap())
    });
    store.take().unwrap().close().unwrap();
    timed("open after a close", 1, || drop(LmdbStore::open(opts.clone()).unwrap()));
}

#[test]
#[ignore = "a measurement, run by hand"]
fn speed() {
    measure(true);
    measure(false);
}
