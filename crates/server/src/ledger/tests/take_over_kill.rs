//! A take-over, with the new leader, another server, or the old leader that comes back killed at each failpoint;
//! and the old leader killed at each failpoint of its work: the pool is whole afterwards, nothing is left over.

use super::pool::{Node, eventually, flash_of, parts_on, wide};
use super::take_over::take_over;
use super::*;
use forebay_failpoint::kill::{KILL_ONLY, at_each_point, run_killed};

const CHILD_DIR: &str = "FOREBAY_TEST_TAKE_OVER_DIR";
const CHILD_NUMBER: &str = "FOREBAY_TEST_TAKE_OVER_NUMBER";
const CHILD_WORK: &str = "FOREBAY_TEST_TAKE_OVER_WORK";
const CHILD: &str = "ledger::tests::take_over_kill::child_server";
const SIZE: u64 = 48 * MIB;

/// Not a test by itself: the server that is killed. 0 is the old leader, 1 takes over.
#[test]
fn child_server() {
    let Ok(dir) = std::env::var(CHILD_DIR) else { return };
    let number: usize = std::env::var(CHILD_NUMBER).unwrap().parse().unwrap();
    let node = Node::start(Path::new(&dir), number).unwrap();
    if std::env::var(CHILD_WORK).is_ok() {
        work(&node.ledger).unwrap();
    } else {
        if number == 1 {
            eventually("it takes over", || take_over(&node, &[]).is_ok());
        }
        let old = node.ledger.record.lock().pool;
        eventually("there is a leader again", || {
            node.id() != old
                && node.ledger.record.term().epoch > 0
                && node.ledger.record.leader() != old
                && ask(&node.ledger, &root(), LedgerRequest::List).is_ok()
                && node.ledger.record.lock().untold.is_empty()
        });
    }
    node.stop();
}

fn work(ledger: &Ledger) -> Result<(), ControlError> {
    create_as(ledger, &root(), "one", wide("one", SIZE, 3))?;
    let capacity_bytes = SIZE + 3 * GRANULARITY_BYTES;
    ask(ledger, &root(), LedgerRequest::Extend { name: name("one"), capacity_bytes })?;
    create_as(ledger, &root(), "two", wide("two", SIZE, 3))?;
    destroy(ledger, "two", false)
}

/// Kills server `number` at a point, as `at_each_point` says.
fn run_child(
    dir: &Path,
    number: usize,
    (at, only): (u64, Option<&str>),
    works: bool,
) -> Option<String> {
    let number = number.to_string();
    let mut variables = vec![(CHILD_DIR, dir.to_str().unwrap()), (CHILD_NUMBER, number.as_str())];
    variables.extend(only.map(|only| (KILL_ONLY, only)));
    variables.extend(works.then_some((CHILD_WORK, "1")));
    run_killed(CHILD, &variables, at)
}

/// The parts that each of these servers has are those of the leader's buffers, and served.
fn is_whole(dir: &Path, nodes: &[(usize, &Node)]) -> bool {
    let leader = nodes.iter().find(|(_, node)| node.ledger.record.is_leader());
    let Some((_, leader)) = leader else { return false };
    let file = leader.ledger.record.lock().clone();
    let ready =
        |b: &record::BufferRecord| b.state == record::RecordState::Ready && b.told_by.is_none();
    file.untold.is_empty()
        && file.buffers.iter().all(ready)
        && nodes.iter().all(|(number, node)| {
            let mut expected: Vec<String> = file
                .buffers
                .iter()
                .filter(|b| b.servers.contains(&node.id()))
                .map(|b| b.uuid.clone())
                .collect();
            expected.sort();
            let own = node.ledger.record.lock().clone();
            own.term() == file.term()
                && parts_on(&flash_of(dir, *number)) == expected
                && own.parts.len() == expected.len()
                && node.ledger.parts.all().len() == expected.len()
        })
}

/// Buffers of which both have a part that is neither half made nor half gone.
fn whole_on_both(one: &Node, other: &Node) -> Vec<String> {
    let ready = |node: &Node| -> Vec<String> {
        let file = node.ledger.record.lock().clone();
        let ready = file.parts.iter().filter(|part| part.state == record::RecordState::Ready);
        ready.map(|part| part.name().to_string()).collect()
    };
    let others = ready(other);
    let mut both: Vec<String> = ready(one).into_iter().filter(|n| others.contains(n)).collect();
    both.sort();
    both
}

#[track_caller]
fn destroy_all(dir: &Path, nodes: &[(usize, &Node)], when: &str) {
    for text in list(&nodes[0].1.ledger, &root()) {
        destroy(&nodes[0].1.ledger, &text, true).unwrap_or_else(|e| panic!("{when}: {e}"));
    }
    for (number, node) in nodes {
        assert!(parts_on(&flash_of(dir, *number)).is_empty(), "{when}: server {number}");
        assert_eq!(node.ledger.parts.facts().reserved_bytes, 0, "{when}: server {number}");
    }
}

fn new_dir() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::Builder::new().prefix("forebay-test-").tempdir_in("/dev/shm").unwrap();
    let path = fs::canonicalize(dir.path()).unwrap();
    (dir, path)
}

/// A pool of three with buffers; all are ended.
fn prepared(dir: &Path) {
    let nodes: Vec<Node> = (0..3).map(|n| Node::start(dir, n).unwrap()).collect();
    create_as(&nodes[0].ledger, &root(), "one", wide("one", SIZE, 3)).unwrap();
    for number in 0..3 {
        let text = format!("s{number}");
        create_as(&nodes[0].ledger, &root(), &text, wide(&text, MIB, 1)).unwrap();
    }
    nodes.into_iter().for_each(Node::stop);
}

#[test]
fn a_take_over_is_whole_after_a_kill_of_the_new_leader_at_any_step() {
    at_each_point(
        &["a server is the leader on record", "a new leader has a server's parts on record"],
        |at, only| {
            let (_keep, dir) = new_dir();
            prepared(&dir);
            fs::remove_dir_all(flash_of(&dir, 0)).unwrap();
            let other = Node::start(&dir, 2).unwrap();
            let place = run_child(&dir, 1, (at, only), false);
            let when = format!("step {at}, {place:?}");
            let new = Node::start(&dir, 1).unwrap();
            take_over(&new, &[]).unwrap_or_else(|error| panic!("{when}: {error}"));
            let nodes = [(1, &new), (2, &other)];
            eventually(&when, || is_whole(&dir, &nodes));
            assert_eq!(list(&other.ledger, &root()).len(), 3, "{when}");
            destroy_all(&dir, &nodes, &when);
            place
        },
    );
}

#[test]
fn a_take_over_is_whole_after_a_kill_of_another_server_at_any_step() {
    at_each_point(&["a server follows another leader on record"], |at, only| {
        let (_keep, dir) = new_dir();
        prepared(&dir);
        fs::remove_dir_all(flash_of(&dir, 0)).unwrap();
        let new = Node::start(&dir, 1).unwrap();
        let place = std::thread::scope(|scope| {
            let killed = scope.spawn(|| run_child(&dir, 2, (at, only), false));
            while !killed.is_finished() {
                let _ = take_over(&new, &[]);
                std::thread::sleep(Duration::from_millis(20));
            }
            killed.join().unwrap()
        });
        let when = format!("step {at}, {place:?}");
        let other = Node::start(&dir, 2).unwrap();
        let nodes = [(1, &new), (2, &other)];
        eventually(&when, || take_over(&new, &[]).is_ok() && is_whole(&dir, &nodes));
        assert_eq!(list(&other.ledger, &root()).len(), 3, "{when}");
        destroy_all(&dir, &nodes, &when);
        place
    });
}

#[test]
fn an_old_leader_starts_over_whole_after_a_kill_at_any_step() {
    at_each_point(
        &[
            "an old leader is a member on record",
            "a part is to be removed on record",
            "a server follows another leader on record",
        ],
        |at, only| {
            let (_keep, dir) = new_dir();
            prepared(&dir);
            let (new, other) = (Node::start(&dir, 1).unwrap(), Node::start(&dir, 2).unwrap());
            take_over(&new, &[]).unwrap();
            let place = run_child(&dir, 0, (at, only), false);
            let when = format!("step {at}, {place:?}");
            let old = Node::start(&dir, 0).unwrap();
            let nodes = [(1, &new), (2, &other), (0, &old)];
            eventually(&when, || is_whole(&dir, &nodes));
            assert!(parts_on(&flash_of(&dir, 0)).is_empty(), "{when}");
            destroy_all(&dir, &nodes, &when);
            place
        },
    );
}

#[test]
fn what_a_leader_left_that_was_killed_at_any_step_is_settled_by_the_one_that_takes_over() {
    at_each_point(
        &["a buffer has a part", "a buffer is ready on record", "a part of a buffer is gone"],
        |at, only| {
            let (_keep, dir) = new_dir();
            (0..3)
                .map(|n| Node::start(&dir, n).unwrap())
                .collect::<Vec<_>>()
                .into_iter()
                .for_each(Node::stop);
            let (new, other) = (Node::start(&dir, 1).unwrap(), Node::start(&dir, 2).unwrap());
            let place = run_child(&dir, 0, (at, only), true);
            let when = format!("step {at}, {place:?}");
            fs::remove_dir_all(flash_of(&dir, 0)).unwrap();
            // What it asked for just before is done first, so that it is known what there is.
            std::thread::sleep(Duration::from_millis(100));
            let is_idle = |node: &Node| node.ledger.turns.are_idle();
            eventually(&when, || is_idle(&new) && is_idle(&other));
            let whole = whole_on_both(&new, &other);
            take_over(&new, &[]).unwrap_or_else(|error| panic!("{when}: {error}"));
            let nodes = [(1, &new), (2, &other)];
            eventually(&when, || is_whole(&dir, &nodes));
            let mut kept = list(&new.ledger, &root());
            kept.sort();
            assert_eq!(kept, whole, "{when}: what was whole is there, what was not is cleared");
            destroy_all(&dir, &nodes, &when);
            place
        },
    );
}
