//! Several processes and threads at once: what each did is there, shared things have one
//! outcome, and names stay a tree. On every kind of store.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::Buffer;
use forebay_tests::model::{self, Plan};
use forebay_tests::procs::{self, Child, Shared};
use forebay_tests::sys::{self, Errno};
use forebay_tests::{long, on_every_kind, seed};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;

on_every_kind!(
    own_trees_beside_shared_records,
    one_winner,
    replaced_names_never_vanish,
    directories_stay_a_tree,
    link_counts,
);

const PROCESSES: u64 = 4;

fn rounds(short: u64) -> u64 {
    if long() { 20 * short } else { short }
}

/// A record that tells its writer, number and length, and shows if it is torn.
fn record(writer: u64, number: u64) -> Vec<u8> {
    let length = 24 + (number * 7 + writer * 13) % 3000;
    let mut bytes = Vec::with_capacity(length as usize);
    for value in [writer, number, length] {
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    bytes.resize(length as usize, (writer * 50 + number % 50) as u8);
    bytes
}

fn append_records(buffer: &Buffer, writer: u64, count: u64) {
    let open = || {
        let flags = libc::O_APPEND | libc::O_CREAT | libc::O_WRONLY;
        sys::open(buffer.path("records"), flags, 0o644).unwrap()
    };
    let mut fd = open();
    for number in 0..count {
        let bytes = record(writer, number);
        assert_eq!(sys::write(&fd, &bytes), Ok(bytes.len()));
        if number % 100 == 99 {
            fd = open();
        }
    }
}

/// Every record once and whole; the records of one writer in order.
fn check_records(buffer: &Buffer, count: u64) {
    let bytes = std::fs::read(buffer.root().join("records")).unwrap();
    let mut next: BTreeMap<u64, u64> = BTreeMap::new();
    let mut at = 0;
    while at < bytes.len() {
        let field =
            |i: usize| u64::from_le_bytes(bytes[at + i * 8..at + i * 8 + 8].try_into().unwrap());
        let (writer, number) = (field(0), field(1));
        let wanted = record(writer, number);
        assert!(bytes[at..].starts_with(&wanted), "torn record {writer}.{number} at {at}");
        assert_eq!(number, *next.entry(writer).or_default(), "a record of {writer} is lost");
        next.insert(writer, number + 1);
        at += wanted.len();
    }
    assert!((0..PROCESSES).all(|writer| next.get(&writer) == Some(&count)), "{next:?}");
}

/// Threads with a model each in a directory of its own, beside processes that append to one file.
fn own_trees_beside_shared_records(buffer: &Buffer) {
    let seed = seed("own_trees_beside_shared_records");
    let count = rounds(2_000);
    let children: Vec<Child> = (0..PROCESSES)
        .map(|writer| Child::spawn("appender", move || append_records(buffer, writer, count)))
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            scope.spawn(move || {
                let dir = buffer.root().join(format!("tree{thread}"));
                std::fs::create_dir(&dir).unwrap();
                let plan = Plan {
                    seed: seed + thread,
                    steps: rounds(1_200),
                    whole_every: 400,
                    kill_every: 0,
                };
                model::run_in(&dir, plan);
            });
        }
    });
    procs::all(children);
    check_records(buffer, count);
}

/// Of several that make the same thing, one makes it and all others are told.
fn one_winner(buffer: &Buffer) {
    let count = rounds(300) as usize;
    let wins = Shared::new(5 * count);
    let p = |name: String| buffer.path(name);
    sys::mkdir(p("src".into()), 0o755).unwrap();
    let children: Vec<Child> = (0..PROCESSES)
        .map(|writer| {
            let wins = &wins;
            Child::spawn("maker", move || {
                let source = p(format!("src/{writer}"));
                for i in 0..count {
                    let make = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
                    let results = [
                        sys::open(p(format!("file{i}")), make, 0o600).map(drop),
                        sys::mkdir(p(format!("dir{i}")), 0o700),
                        sys::symlink("x", p(format!("link{i}"))),
                        sys::open(&source, libc::O_CREAT | libc::O_WRONLY, 0o600)
                            .and_then(|_| sys::link(&source, p(format!("hard{i}")))),
                        sys::rename2(&source, p(format!("moved{i}")), libc::RENAME_NOREPLACE),
                    ];
                    for (kind, result) in results.into_iter().enumerate() {
                        match result {
                            Ok(()) => drop(wins[kind * count + i].fetch_add(1, SeqCst)),
                            Err(Errno(libc::EEXIST)) => {}
                            Err(other) => panic!("{kind} {i}: {other:?}"),
                        }
                    }
                }
            })
        })
        .collect();
    procs::all(children);
    for (at, won) in wins.iter().enumerate() {
        assert_eq!(won.load(SeqCst), 1, "kind {} number {}", at / count, at % count);
    }
}

/// Writers rename new versions onto one name; who opens it always finds a whole version.
fn replaced_names_never_vanish(buffer: &Buffer) {
    let target = buffer.path("target");
    let done = Shared::new(1);
    std::fs::write(buffer.root().join("target"), [0; 512]).unwrap();
    let count = rounds(1_500);
    let mut children: Vec<Child> = Vec::new();
    for writer in 0..2u64 {
        let (target, done) = (&target, &done);
        children.push(Child::spawn("replacer", move || {
            for number in 0..count {
                let own = buffer.path(format!("new{writer}"));
                let fd = sys::open(&own, libc::O_CREAT | libc::O_WRONLY, 0o644).unwrap();
                sys::write(&fd, &[(number % 251) as u8; 512]).unwrap();
                drop(fd);
                sys::rename(&own, target).unwrap();
            }
            done[0].fetch_add(1, SeqCst);
        }));
    }
    for _ in 0..2 {
        let (target, done) = (&target, &done);
        children.push(Child::spawn("opener", move || {
            while done[0].load(SeqCst) < 2 {
                let fd = sys::open(target, libc::O_RDONLY, 0).unwrap();
                let bytes = sys::pread(&fd, 0, 1024).unwrap();
                assert!(bytes.len() == 512 && bytes.iter().all(|&b| b == bytes[0]), "not whole");
                assert!(sys::fstat(&fd).unwrap().nlink <= 1);
                sys::stat(target).unwrap();
            }
        }));
    }
    procs::all(children);
}

/// Random renames of directories into each other: all stay reachable, none twice.
fn directories_stay_a_tree(buffer: &Buffer) {
    const DIRS: u64 = 24;
    let seed = seed("directories_stay_a_tree");
    for i in 0..DIRS {
        sys::mkdir(buffer.path(format!("d{i}")), 0o755).unwrap();
    }
    let children: Vec<Child> = (0..PROCESSES)
        .map(|writer| {
            let mut rng = StdRng::seed_from_u64(seed + writer);
            Child::spawn("mover", move || {
                let mut known: Vec<String> = (0..DIRS).map(|i| format!("d{i}")).collect();
                for _ in 0..rounds(1_500) {
                    let from = known[rng.random_range(0..known.len())].clone();
                    let into = known[rng.random_range(0..known.len())].clone();
                    let name = from.rsplit('/').next().unwrap();
                    let to =
                        if rng.random_bool(0.2) { name.into() } else { format!("{into}/{name}") };
                    let flags = if rng.random_bool(0.1) {
                        libc::RENAME_EXCHANGE
                    } else {
                        libc::RENAME_NOREPLACE
                    };
                    match sys::rename2(buffer.path(&from), buffer.path(&to), flags) {
                        Ok(()) => known.push(to),
                        Err(Errno(
                            libc::ENOENT | libc::EINVAL | libc::EEXIST | libc::ENOTEMPTY,
                        )) => {}
                        Err(Errno(libc::ENAMETOOLONG)) => known.truncate(DIRS as usize),
                        Err(other) => panic!("{from} to {to}: {other:?}"),
                    }
                    if known.len() > 200 {
                        known.drain(..100);
                    }
                }
            })
        })
        .collect();
    procs::all(children);
    let mut seen = Vec::new();
    walk(&buffer.root(), &mut seen);
    seen.sort();
    let mut wanted: Vec<String> = (0..DIRS).map(|i| format!("d{i}")).collect();
    wanted.sort();
    assert_eq!(seen, wanted, "each directory once, all reachable from the root");
}

/// Names of all directories below, with their link counts checked.
fn walk(dir: &Path, seen: &mut Vec<String>) {
    let entries: Vec<_> = std::fs::read_dir(dir).unwrap().map(Result::unwrap).collect();
    let link_count = sys::stat(sys::bytes(dir)).unwrap().nlink;
    assert_eq!(link_count, 2 + entries.len() as u64, "link count of {dir:?}");
    for entry in entries {
        seen.push(entry.file_name().into_string().unwrap());
        walk(&entry.path(), seen);
    }
}

/// Links to one file made and removed by all: the count is right, and the last one frees it.
fn link_counts(buffer: &Buffer) {
    std::fs::write(buffer.root().join("file"), vec![1; 1 << 20]).unwrap();
    let children: Vec<Child> = (0..PROCESSES)
        .map(|writer| {
            Child::spawn("linker", move || {
                for i in 0..rounds(1_000) {
                    let own = buffer.path(format!("l{writer}.{i}"));
                    sys::link(buffer.path("file"), &own).unwrap();
                    if i % 10 != 0 {
                        sys::unlink(&own).unwrap();
                    }
                }
            })
        })
        .collect();
    procs::all(children);
    let names = sys::list(buffer.path("")).unwrap().len() as u64 - 2;
    assert_eq!(sys::stat(buffer.path("file")).unwrap().nlink, names);
    let used = || {
        let now = sys::statfs(buffer.path("")).unwrap();
        now.total - now.free
    };
    let before = used();
    for entry in sys::list(buffer.path("")).unwrap().iter().filter(|e| e.name[0] != b'.') {
        sys::unlink(buffer.path(&entry.name)).unwrap();
    }
    // The kernel lets go of a removed inode by a message of its own, beside the next request.
    let start = std::time::Instant::now();
    while used() + (1 << 20) > before {
        assert!(start.elapsed().as_secs() < 10, "the last link frees the space");
    }
}
