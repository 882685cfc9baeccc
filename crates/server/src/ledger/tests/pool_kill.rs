//! A pool of two servers, one of them killed at each failpoint, the leader or the member: what
//! was begun is finished or undone when it is back, and who asks again gets what was asked for.

use super::pool::{Node, eventually, flash_of, parts_on, wide};
use super::*;
use forebay_failpoint::kill::{KILL_ONLY, at_each_point, run_killed};

const CHILD_DIR: &str = "FOREBAY_TEST_POOL_DIR";
const CHILD_NUMBER: &str = "FOREBAY_TEST_POOL_NUMBER";
const CHILD: &str = "ledger::tests::pool_kill::child_server";
const SIZE: u64 = 64 * MIB;

/// Two buffers, one of them extended, the other destroyed. Can be done again after any kill.
fn work(ledger: &Ledger) -> Result<(), ControlError> {
    create_as(ledger, &root(), "one", wide("one", SIZE, 2))?;
    let capacity_bytes = SIZE + 2 * GRANULARITY_BYTES;
    ask(ledger, &root(), LedgerRequest::Extend { name: name("one"), capacity_bytes })?;
    create_as(ledger, &root(), "two", wide("two", SIZE, 2))?;
    destroy(ledger, "two", false)
}

/// Not a test by itself: the server that is killed. It does the work by whoever keeps the ledger.
#[test]
fn child_server() {
    let Ok(dir) = std::env::var(CHILD_DIR) else { return };
    let number = std::env::var(CHILD_NUMBER).unwrap().parse().unwrap();
    let node = Node::start(Path::new(&dir), number).unwrap();
    work(&node.ledger).unwrap();
    node.stop();
}

/// Every server has the parts that the leader has on record, as large as it says, and no other.
#[track_caller]
fn must_agree(dir: &Path, nodes: [&Node; 2], when: &str) {
    let leader = nodes[0].ledger.record.lock().clone();
    let mut uuids: Vec<String> = leader.buffers.iter().map(|b| b.uuid.clone()).collect();
    uuids.sort();
    for (number, node) in nodes.iter().enumerate() {
        assert_eq!(parts_on(&flash_of(dir, number)), uuids, "{when}: server {number}");
        let file = node.ledger.record.lock().clone();
        assert_eq!(file.parts.len(), uuids.len(), "{when}: server {number}");
        for part in &file.parts {
            let buffer = leader.buffers.iter().find(|b| b.uuid == part.spec.uuid).unwrap();
            assert_eq!(part.spec.capacity_bytes, buffer.part_bytes, "{when}: server {number}");
            let served = node.ledger.buffer(part.name()).unwrap();
            let capacity = served.server.namespace().space().unwrap().1;
            assert_eq!(capacity, buffer.part_bytes, "{when}: server {number}");
        }
        let on_disk = LedgerFile::load(&flash_of(dir, number).join(DIR_NAME)).unwrap();
        assert_eq!(on_disk, file, "{when}: server {number}");
    }
}

/// Nothing is half made, half gone or of two sizes any more.
fn is_settled(nodes: [&Node; 2]) -> bool {
    let leader = nodes[0].ledger.record.lock().clone();
    let whole = leader.buffers.iter().all(|b| b.state == record::RecordState::Ready);
    whole
        && nodes.iter().all(|node| {
            let file = node.ledger.record.lock().clone();
            file.parts.len() == leader.buffers.len()
                && file.parts.iter().all(|part| {
                    let of = |b: &&record::BufferRecord| b.uuid == part.spec.uuid;
                    leader.buffers.iter().find(of).is_some_and(|b| {
                        b.part_bytes == part.spec.capacity_bytes
                            && node.ledger.buffer(part.name()).is_some()
                    })
                })
        })
}

/// Each has found the other again.
fn all_answer(nodes: [&Node; 2]) -> bool {
    nodes.iter().all(|node| match node.ledger.answer(&root(), LedgerRequest::Pool) {
        LedgerReply::Pool(pool) => pool.servers.iter().all(|server| server.alive),
        _ => false,
    })
}

fn killed_at_each_step(killed: usize, expected: &[&str]) {
    let other = 1 - killed;
    let places = at_each_point(expected, |at, only| {
        let dir = tempfile::Builder::new().prefix("forebay-test-").tempdir_in("/dev/shm").unwrap();
        let path = fs::canonicalize(dir.path()).unwrap();
        let (first, second) = (Node::start(&path, 0).unwrap(), Node::start(&path, 1).unwrap());
        let (stopped, alive) = if killed == 0 { (first, second) } else { (second, first) };
        stopped.stop();
        let number = killed.to_string();
        let variables = [
            (CHILD_DIR, path.to_str().unwrap()),
            (CHILD_NUMBER, number.as_str()),
            (KILL_ONLY, only.unwrap_or_default()),
        ];
        let place = run_killed(CHILD, &variables, at);
        let when = format!("server {killed}, step {at}, {place:?}");
        // The one that stayed is asked while the other is away: no answer is kept waiting.
        let asked = alive.ledger.answer(&root(), LedgerRequest::List);
        if other == 0 {
            assert!(matches!(asked, LedgerReply::Buffers(_)), "{when}: {asked:?}");
        }
        let back = Node::start(&path, killed).unwrap();
        let nodes = if killed == 0 { [&back, &alive] } else { [&alive, &back] };
        eventually(&when, || is_settled(nodes) && all_answer(nodes));
        must_agree(&path, nodes, &when);
        work(&nodes[1].ledger).unwrap_or_else(|error| panic!("{when}: {error}"));
        eventually(&when, || is_settled(nodes));
        must_agree(&path, nodes, &when);
        assert_eq!(list(&nodes[0].ledger, &root()), ["one"], "{when}");
        destroy(&nodes[0].ledger, "one", false).unwrap();
        must_agree(&path, nodes, &when);
        alive.stop();
        back.stop();
        place
    });
    println!("server {killed}: killed {} times: {places:?}", places.len());
}

#[test]
fn a_pool_is_settled_after_its_leader_is_killed_at_any_step() {
    killed_at_each_step(
        0,
        &[
            "a buffer and its servers are on record",
            "a buffer's capacity is on record",
            "a buffer has its store",
            "a part is ready on record",
            "a buffer has a part",
            "a buffer is ready on record",
            "an extension is on the leader's record",
            "an extension is on record",
            "a buffer is to be destroyed on record",
            "a removed part has no store",
            "a part of a buffer is gone",
        ],
    );
}

#[test]
fn a_pool_is_settled_after_a_member_is_killed_at_any_step() {
    killed_at_each_step(
        1,
        &[
            "a buffer's capacity is on record",
            "a buffer has its store",
            "a part is ready on record",
            "an extension is on record",
            "a part is to be removed on record",
            "a removed part has no store",
        ],
    );
}
