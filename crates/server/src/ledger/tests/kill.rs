//! A server killed at each failpoint: what was begun is finished or undone by the next start,
//! capacity on record is what the stores on flash have, and nothing is left over.

use super::*;
use forebay_failpoint::kill::{KILL_ONLY, at_each_point, run_killed};
use forebay_proto::events::{EventKind, EventRecord, EventsQuery};
use std::collections::BTreeMap;

const CHILD_FLASH: &str = "FOREBAY_TEST_LEDGER_FLASH";
const CHILD_KIND: &str = "FOREBAY_TEST_LEDGER_KIND";
const CHILD_OPENS: &str = "FOREBAY_TEST_LEDGER_OPENS";
const CHILD: &str = "ledger::tests::kill::child_ledger";
const SIZE: u64 = 304 * MIB;

fn open_large(flash: &Path) -> Arc<Ledger> {
    Ledger::open(options(flash, 1 << 30)).unwrap()
}

/// Two buffers, one of them extended, the other destroyed. Can be done again after any kill.
fn work(ledger: &Ledger, kind: StoreKind) {
    create_as(ledger, &root(), "one", spec("one", SIZE, kind)).unwrap();
    let capacity_bytes = SIZE + GRANULARITY_BYTES;
    ask(ledger, &root(), LedgerRequest::Extend { name: name("one"), capacity_bytes }).unwrap();
    create_as(ledger, &root(), "two", spec("two", SIZE, kind)).unwrap();
    destroy(ledger, "two", false).unwrap();
}

/// Not a test by itself: the server that is killed.
#[test]
fn child_ledger() {
    let Ok(flash) = std::env::var(CHILD_FLASH) else { return };
    let kind = serde_json::from_str(&std::env::var(CHILD_KIND).unwrap()).unwrap();
    let ledger = open_large(Path::new(&flash));
    if std::env::var(CHILD_OPENS).is_err() {
        work(&ledger, kind);
    }
    ledger.close().unwrap();
}

/// What is mounted or attached below a directory.
fn held_by_kernel(flash: &Path) -> usize {
    let flash = flash.to_str().unwrap();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().filter(|line| line.contains(flash)).count()
}

/// The buffers that are there, with their capacity, by what the server's record tells of them. Each
/// change is told once.
#[track_caller]
fn told(ledger: &Ledger, when: &str) -> BTreeMap<String, u64> {
    let query = EventsQuery::default();
    let request = LedgerRequest::Events { name: None, record: EventRecord::Server, query };
    let LedgerReply::Events(page) = ask(ledger, &root(), request).unwrap() else {
        panic!("{when}")
    };
    let mut there = BTreeMap::new();
    for event in page.events {
        let (uuid, bytes) = (event.happened.uuid.unwrap(), event.happened.bytes.unwrap());
        let before = match event.happened.event {
            EventKind::Destroyed => there.remove(&uuid),
            _ => there.insert(uuid, bytes),
        };
        let is_first = event.happened.event == EventKind::Created;
        assert_eq!(before.is_none(), is_first, "{when}: {:?} told twice", event.happened.event);
    }
    there
}

/// The record, the stores on flash and the running servers say the same.
#[track_caller]
fn must_agree(ledger: &Ledger, flash: &Path, when: &str) {
    let file = LedgerFile::load(&flash.join(DIR_NAME)).unwrap();
    let on_record: BTreeMap<_, _> =
        file.parts.iter().map(|p| (p.spec.uuid.clone(), p.spec.capacity_bytes)).collect();
    let of_pool: BTreeMap<_, _> =
        file.buffers.iter().map(|b| (b.uuid.clone(), b.part_bytes)).collect();
    assert_eq!(on_record, of_pool, "{when}");
    assert_eq!(told(ledger, when), of_pool, "{when}: the events tell something else");
    let on_flash: BTreeMap<_, _> = flash::list(flash)
        .unwrap()
        .into_iter()
        .map(|store| store.record.unwrap())
        .map(|store| (store.uuid, store.capacity_bytes))
        .collect();
    assert_eq!(on_record, on_flash, "{when}");
    assert_eq!(reserved(ledger), on_flash.values().sum::<u64>(), "{when}");
    let entries = fs::read_dir(flash).unwrap().count();
    assert_eq!(entries, 1 + on_flash.len(), "{when}: something is left over");
    for buffer in &file.buffers {
        let shown = status(ledger, &root(), buffer.name().as_str()).unwrap();
        assert_eq!((shown.state, shown.why), (BufferState::Ready, None), "{when}");
        let served = ledger.buffer(buffer.name()).unwrap();
        assert_eq!(served.server.namespace().space().unwrap().1, buffer.part_bytes, "{when}");
    }
}

/// After each of these somebody is killed.
const PLACES: &[&str] = &[
    "a buffer and its servers are on record",
    "a buffer's capacity is on record",
    "a store says that it is being made",
    "a buffer has its store",
    "a buffer is formatted",
    "a part is ready on record",
    "a buffer has a part",
    "a buffer is ready on record",
    "an extension is on the leader's record",
    "an extension is on record",
    "a store says that it grows",
    "a buffer is to be destroyed on record",
    "a buffer is not served any more",
    "a store is unmounted",
    "a store has lost its contents and its record",
    "a part is to be removed on record",
    "a removed part has no store",
    "a part of a buffer is gone",
    "a change of the ledger is to be told",
];

/// Kills a server at each step; `again`: also the next ones, at each step of their start.
fn killed_at_each_step(kind: StoreKind, flash_in: &str, again: bool) {
    let kind_text = serde_json::to_string(&kind).unwrap();
    let places = at_each_point(PLACES, |at, only| {
        let flash = tempfile::Builder::new().prefix("forebay-test-").tempdir_in(flash_in).unwrap();
        let flash = fs::canonicalize(flash.path()).map(|path| (path, flash)).unwrap();
        let (path, _keep) = (&flash.0, &flash.1);
        let text = path.to_str().unwrap();
        let only = (KILL_ONLY, only.unwrap_or_default());
        let worker = [(CHILD_FLASH, text), (CHILD_KIND, &kind_text), only];
        let killed = run_killed(CHILD, &worker, at);
        let opener = [(CHILD_FLASH, text), (CHILD_KIND, &kind_text), (CHILD_OPENS, "1")];
        for start_at in 1.. {
            if !again || run_killed(CHILD, &opener, start_at).is_none() {
                break;
            }
            assert!(start_at < 50, "{killed:?}: the start does not come to an end");
        }
        let when = format!("{kind:?}, step {at}, {killed:?}");
        let ledger = open_large(path);
        must_agree(&ledger, path, &when);
        // Whoever got no answer asks again.
        work(&ledger, kind);
        must_agree(&ledger, path, &when);
        assert_eq!(list(&ledger, &root()), ["one"], "{when}");
        destroy(&ledger, "one", false).unwrap();
        must_agree(&ledger, path, &when);
        assert_eq!(held_by_kernel(path), 0, "{when}");
        ledger.close().unwrap();
        killed
    });
    println!("{kind:?}: killed {} times: {places:?}", places.len());
}

#[test]
fn directories_are_settled_after_a_kill_at_any_step() {
    killed_at_each_step(StoreKind::Directory, "/dev/shm", true);
}

#[test]
fn memory_is_settled_after_a_kill_at_any_step() {
    assert!(rustix::process::geteuid().is_root(), "it mounts: run this test as root");
    killed_at_each_step(StoreKind::Tmpfs, "/dev/shm", false);
}

#[test]
fn images_are_settled_after_a_kill_at_any_step() {
    assert!(rustix::process::geteuid().is_root(), "it mounts: run this test as root");
    killed_at_each_step(StoreKind::LoopXfs, "/tmp", false);
}
