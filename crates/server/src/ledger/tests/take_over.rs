//! A leader that is gone for good: who may take its place, when not, what the pool is afterwards, and what
//! becomes of an old leader that comes back.

use super::pool::{Node, eventually, flash_of, parts_on, ping, servers, socket, wide};
use super::*;
use crate::net::listen;
use crate::places::KnownServer;
use forebay_net::ServerAddress;
use forebay_proto::Errno;
use forebay_proto::net::ledger::PartState;
use forebay_proto::net::pool::PoolQuestion;

pub(super) fn take_over(node: &Node, without: &[ServerId]) -> Result<(), ControlError> {
    let request = LedgerRequest::TakeOver { without: without.to_vec() };
    ask(&node.ledger, &root(), request).map(drop)
}

fn sorted(ledger: &Ledger, who: &Identity) -> Vec<String> {
    let mut all = list(ledger, who);
    all.sort();
    all
}

/// Three servers with a buffer of all, and one buffer on each alone, named by its server.
fn pool_of_three(dir: &Path) -> (Vec<Node>, Shown, String) {
    let nodes: Vec<Node> = (0..3).map(|n| Node::start(dir, n).unwrap()).collect();
    let (made, secret) =
        create_as(&nodes[0].ledger, &user(4001), "t", wide("w", 100 * MIB, 3)).unwrap();
    for number in 0..3 {
        let made = create_as(&nodes[0].ledger, &root(), &format!("t{number}"), wide("x", MIB, 1));
        let at =
            nodes.iter().position(|n| n.id().to_string() == made.as_ref().unwrap().0.servers[0]);
        destroy(&nodes[0].ledger, "x", false).unwrap();
        let named = format!("s{}", at.unwrap());
        create_as(&nodes[0].ledger, &root(), &format!("u{number}"), wide(&named, MIB, 1)).unwrap();
    }
    assert_eq!(sorted(&nodes[0].ledger, &root()), ["s0", "s1", "s2", "w"]);
    (nodes, made, secret)
}

/// The leader burns down.
fn burn(dir: &Path, nodes: &mut Vec<Node>) -> ServerId {
    let old = nodes.remove(0);
    let id = old.id();
    old.stop();
    fs::remove_dir_all(flash_of(dir, 0)).unwrap();
    id
}

#[test]
fn a_member_takes_over_from_a_leader_that_is_gone_for_good() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (mut nodes, made, secret) = pool_of_three(dir.path());
    fails(take_over(&nodes[1], &[]), libc::EBUSY, "answers");
    let old = burn(dir.path(), &mut nodes);
    let (new, other) = (&nodes[0], &nodes[1]);
    let asked = ask(&other.ledger, &root(), LedgerRequest::List);
    // As it stands it works: the server that was asked can take its place.
    let hint = format!("`forebay pool leader --take-over --server {}`", socket(dir.path(), 2));
    fails(asked, libc::EHOSTUNREACH, &hint);
    let request = LedgerRequest::TakeOver { without: Vec::new() };
    fails(ask(&new.ledger, &user(4001), request), libc::EPERM, "only who runs the servers");
    take_over(new, &[]).unwrap();
    take_over(new, &[]).unwrap();

    // All of the pool is known again, at any server, but for what was on the old leader alone.
    for node in &nodes {
        assert_eq!(sorted(&node.ledger, &root()), ["s1", "s2", "w"]);
        assert_eq!(sorted(&node.ledger, &user(4001)), ["w"]);
        assert!(servers(&node.ledger).contains(&(old.to_string(), false, true)));
        let shown = status(&node.ledger, &user(4001), "w").unwrap();
        assert_eq!((&shown.spec, &shown.uuid), (&made.spec, &made.uuid));
        assert_eq!((shown.created_s, shown.capacity_bytes), (made.created_s, made.capacity_bytes));
        assert_eq!((&shown.servers, shown.state), (&made.servers, BufferState::Degraded));
        let lost = shown.parts.iter().find(|part| part.state == PartState::Lost).unwrap();
        assert_eq!(lost.server, old);
        eventually("nobody waits for the old leader", || {
            ping(node, "w", lost.shard.0) == Err(Errno::EIO)
        });
    }
    let again = create_as(&other.ledger, &user(4001), "t", wide("w", 100 * MIB, 3)).unwrap();
    assert_eq!((again.0.uuid, again.1), (made.uuid, secret));

    // And can be changed.
    create_as(&other.ledger, &root(), "n", wide("n", 64 * MIB, 2)).unwrap();
    let extend = LedgerRequest::Extend { name: name("s2"), capacity_bytes: 32 * MIB };
    ask(&new.ledger, &root(), extend).unwrap();
    for text in ["w", "s1", "s2", "n"] {
        destroy(&other.ledger, text, false).unwrap();
    }
    for number in 1..3 {
        assert!(parts_on(&flash_of(dir.path(), number)).is_empty(), "server {number}");
    }
    assert!(nodes.iter().all(|node| node.ledger.parts.facts().reserved_bytes == 0));
    assert_eq!(servers(&new.ledger).len(), 2, "the old one is on record no more");

    // A new server joins by way of the other member; both find the leader when they start again.
    let flash = flash_of(dir.path(), 3);
    fs::create_dir_all(&flash).unwrap();
    let third = Ledger::open(options(&flash, 512 * MIB)).unwrap();
    third.join(&socket(dir.path(), 2)).unwrap();
    assert_eq!(third.record.leader(), new.id());
    third.close().unwrap();
    nodes.pop().unwrap().stop();
    let back = Node::start(dir.path(), 2).unwrap();
    eventually("the member finds the leader", || {
        ask(&back.ledger, &root(), LedgerRequest::List).is_ok()
    });
}

#[test]
fn who_joins_is_told_that_the_leader_is_gone_and_where_it_was() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (mut nodes, ..) = pool_of_three(dir.path());
    let old = burn(dir.path(), &mut nodes);
    let flash = flash_of(dir.path(), 3);
    fs::create_dir_all(&flash).unwrap();
    let third = Ledger::open(options(&flash, 512 * MIB)).unwrap();
    let error = third.join(&socket(dir.path(), 1)).unwrap_err();
    let host = forebay_net::node::host_name();
    let named = format!("its leader, server {host} ({}), cannot be reached", &old.to_string()[..8]);
    let text = error.to_string();
    assert!(text.contains(&named) && text.contains("0.sock"), "{text}");
    let hint = format!("`forebay pool leader --take-over --server {}`", socket(dir.path(), 1));
    fails::<()>(Err(error), libc::EHOSTUNREACH, &hint);
    third.close().unwrap();
}

/// A server that is there but takes no part: nobody is told of it, and it tells nobody.
fn quiet(dir: &Path, number: usize, listens: bool) -> (Arc<Ledger>, Option<crate::net::Listening>) {
    let ledger = Ledger::open(options(&flash_of(dir, number), 512 * MIB)).unwrap();
    let door = Arc::new(Door::open(Arc::clone(&ledger), None).unwrap());
    let listening = listens.then(|| listen(door, &[socket(dir, number)]).unwrap());
    ledger.set_addresses(vec![socket(dir, number)]);
    (ledger, listening)
}

#[test]
fn a_leader_that_any_server_hears_is_not_taken_over_from() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (mut nodes, ..) = pool_of_three(dir.path());
    let old = nodes[0].id();
    // A member that does not reach the leader, while the other one does.
    nodes.remove(1).stop();
    let (cut, listening) = quiet(dir.path(), 1, true);
    let nowhere = vec![ServerAddress::Unix(dir.path().join("nowhere.sock"))];
    let place = KnownServer { addresses: nowhere, ..KnownServer::default() };
    cut.servers.links().directory().set(old, place);
    let request = || LedgerRequest::TakeOver { without: Vec::new() };
    fails(ask(&cut, &root(), request()), libc::EBUSY, "hears the leader");
    assert!(!cut.record.is_leader());

    // All must answer, but those that are given up.
    let other = nodes[1].id();
    nodes.drain(..).for_each(Node::stop);
    fails(ask(&cut, &root(), request()), libc::EHOSTUNREACH, &format!("--without {other}"));
    let without = |id| LedgerRequest::TakeOver { without: vec![id] };
    fails(ask(&cut, &root(), without(cut.server_id())), libc::EHOSTUNREACH, "does not answer");
    ask(&cut, &root(), without(other)).unwrap();
    assert_eq!(sorted(&cut, &root()), ["s1", "w"]);
    listening.unwrap().stop();
    cut.close().unwrap();
    drop(cut);
    let new = Node::start(dir.path(), 1).unwrap();
    // Both were given up, and come back: as new servers.
    let back: Vec<Node> = [0, 2].map(|n| Node::start(dir.path(), n).unwrap()).into();
    eventually("both start over", || {
        back.iter().all(|node| {
            node.id() != old
                && node.id() != other
                && node.ledger.record.leader() == new.id()
                && servers(&new.ledger).contains(&(node.id().to_string(), true, false))
        })
    });
    destroy(&new.ledger, "w", false).unwrap();
    for number in [0, 2] {
        assert!(parts_on(&flash_of(dir.path(), number)).is_empty(), "server {number}");
    }
}

#[test]
fn an_old_leader_that_comes_back_is_refused_by_name_and_starts_over() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (mut nodes, made, _) = pool_of_three(dir.path());
    let old = nodes[0].id();
    nodes.remove(0).stop();
    take_over(&nodes[0], &[]).unwrap();
    let new = nodes[0].id();

    // Nothing is done for it, whichever server it asks.
    let (ledger, _) = quiet(dir.path(), 0, false);
    assert!(ledger.record.is_leader());
    for node in &nodes {
        for question in [
            PoolQuestion::Facts,
            PoolQuestion::RemovePart { uuid: made.uuid.clone() },
            PoolQuestion::Servers { servers: ledger.servers.all(), tell: false },
        ] {
            fails(ledger.servers.ask(node.id(), &question), libc::ESTALE, &new.to_string());
        }
        assert!(node.ledger.buffer(&name("w")).is_some());
        assert_eq!(node.ledger.record.leader(), new);
    }
    ledger.close().unwrap();
    drop(ledger);

    let back = Node::start(dir.path(), 0).unwrap();
    eventually("it is another server now, without parts", || {
        back.id() != old
            && back.ledger.record.leader() == new
            && parts_on(&flash_of(dir.path(), 0)).is_empty()
            && servers(&nodes[0].ledger).contains(&(back.id().to_string(), true, false))
    });
    assert_eq!(sorted(&back.ledger, &root()), ["s1", "s2", "w"]);
    create_as(&back.ledger, &root(), "n", wide("n", 48 * MIB, 3)).unwrap();
    destroy(&back.ledger, "w", false).unwrap();
    // Given up once is given up: also when nothing on record names it any more.
    assert!(nodes[0].ledger.record.lock().given_up.contains(&old));
}

#[test]
fn a_member_that_only_the_old_leader_knew_is_found_again_with_its_buffers() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (mut nodes, ..) = pool_of_three(dir.path());
    let last = nodes[2].id();
    // As if the leader had died before it told of the last one.
    nodes.pop().unwrap().stop();
    {
        let record = &nodes[1].ledger.record;
        let mut kept = record.lock();
        record.commit(&mut kept, |file| file.servers.retain(|s| s.id != last)).unwrap();
    }
    burn(dir.path(), &mut nodes);
    take_over(&nodes[0], &[]).unwrap();
    // It has a part of a buffer that is known: until it tells, nothing is made.
    assert!(servers(&nodes[0].ledger).contains(&(last.to_string(), false, false)));
    let made = create_as(&nodes[0].ledger, &root(), "n", wide("s2", MIB, 1));
    fails(made, libc::EAGAIN, "has not told");
    let back = Node::start(dir.path(), 2).unwrap();
    eventually("it asks the others, and tells what it has", || {
        back.ledger.record.leader() == nodes[0].id()
            && sorted(&nodes[0].ledger, &root()) == ["s1", "s2", "w"]
    });
    create_as(&nodes[0].ledger, &root(), "n", wide("n", MIB, 1)).unwrap();
}

#[test]
fn of_two_that_take_over_at_once_one_stays() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (mut nodes, ..) = pool_of_three(dir.path());
    burn(dir.path(), &mut nodes);
    std::thread::scope(|scope| {
        for node in &nodes {
            scope.spawn(|| drop(take_over(node, &[])));
        }
    });
    eventually("both agree, and know all buffers", || {
        let leaders = nodes.iter().filter(|node| node.ledger.record.is_leader()).count();
        let list = |node: &Node| ask(&node.ledger, &root(), LedgerRequest::List).is_ok();
        leaders == 1
            && nodes[0].ledger.record.leader() == nodes[1].ledger.record.leader()
            && nodes.iter().all(|n| list(n) && sorted(&n.ledger, &root()) == ["s1", "s2", "w"])
    });
}
