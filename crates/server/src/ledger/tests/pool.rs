//! Several servers as one pool, in one process over real sockets: joining, buffers in shards, a
//! server that is away, one that is gone for good.

use super::*;
use crate::net::links::BufferPeers;
use crate::net::{Listening, listen};
use forebay_interfaces::peers::Peers;
use forebay_net::ServerAddress;
use forebay_proto::ShardId;
use forebay_proto::control::PathBytes;
use forebay_proto::events::{EventKind, EventRecord, EventsPage, EventsQuery, Happened};
use forebay_proto::net::ledger::PartState;
use forebay_proto::net::servers::{NamesQuestion, NamesReply, Question, Reply, ShardPlace};
use std::time::Instant;

/// Longest wait for what servers do by themselves.
const SETTLED: Duration = Duration::from_secs(20);

/// A running server of the pool.
pub(super) struct Node {
    pub(super) ledger: Arc<Ledger>,
    listening: Option<Listening>,
}

pub(super) fn socket(dir: &Path, number: usize) -> ServerAddress {
    ServerAddress::Unix(dir.join(format!("{number}.sock")))
}

pub(super) fn flash_of(dir: &Path, number: usize) -> PathBuf {
    dir.join(number.to_string())
}

impl Node {
    /// Server `number` of the pool in `dir`. 0 is the leader.
    pub(super) fn start(dir: &Path, number: usize) -> Result<Node, ControlError> {
        Node::start_with(dir, number, 512 * MIB)
    }

    pub(super) fn start_with(
        dir: &Path,
        number: usize,
        capacity_bytes: u64,
    ) -> Result<Node, ControlError> {
        let flash = flash_of(dir, number);
        fs::create_dir_all(&flash).unwrap();
        let ledger = Ledger::open(options(&flash, capacity_bytes)).unwrap();
        let door = Arc::new(Door::open(Arc::clone(&ledger), None).unwrap());
        let listening = listen(door, &[socket(dir, number)]).unwrap();
        let node = Node { ledger, listening: Some(listening) };
        node.ledger.set_addresses(vec![socket(dir, number)]);
        if number > 0 {
            node.ledger.join(&socket(dir, 0))?;
        }
        node.ledger.start_rounds()?;
        Ok(node)
    }

    pub(super) fn stop(mut self) {
        self.listening.take().unwrap().stop();
        self.ledger.close().unwrap();
    }

    pub(super) fn id(&self) -> ServerId {
        self.ledger.server_id()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(listening) = self.listening.take() {
            listening.stop();
            let _ = self.ledger.close();
        }
    }
}

pub(super) fn wide(text: &str, capacity_bytes: u64, servers: u16) -> BufferSpec {
    BufferSpec { servers, ..spec(text, capacity_bytes, StoreKind::Directory) }
}

pub(super) fn parts_on(flash: &Path) -> Vec<String> {
    let mut all: Vec<String> =
        flash::list(flash).unwrap().into_iter().map(|store| store.record.unwrap().uuid).collect();
    all.sort();
    all
}

#[track_caller]
pub(super) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + SETTLED;
    while !done() {
        assert!(Instant::now() < until, "not within {SETTLED:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(super) fn servers(ledger: &Ledger) -> Vec<(String, bool, bool)> {
    let LedgerReply::Pool(pool) = ask(ledger, &root(), LedgerRequest::Pool).unwrap() else {
        panic!("no pool")
    };
    pool.servers.into_iter().map(|s| (s.id, s.alive, s.lost)).collect()
}

fn places(ledger: &Ledger, text: &str) -> Vec<ShardPlace> {
    match ask(ledger, &root(), LedgerRequest::Places { name: name(text) }).unwrap() {
        LedgerReply::Places(places) => places,
        other => panic!("{other:?}"),
    }
}

pub(super) fn ping(node: &Node, text: &str, to: u16) -> Result<Reply, forebay_proto::Errno> {
    let served = node.ledger.buffer(&name(text)).expect("no part here");
    let uuid = u128::from_str_radix(&served.uuid, 16).unwrap();
    let mine = served.server.namespace().shard();
    let (links, places) = (Arc::clone(node.ledger.servers.links()), Arc::clone(&served.places));
    let peers = BufferPeers::new(links, places, mine, uuid);
    let question = Question::Names { buffer: uuid, from: mine, question: NamesQuestion::Ping };
    peers.ask(ShardId(to), &question, &[], &mut Vec::new())
}

#[test]
fn a_buffer_of_several_servers_has_a_part_on_each() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let nodes: Vec<Node> = (0..3).map(|n| Node::start(dir.path(), n).unwrap()).collect();
    let leader = &nodes[0].ledger;
    assert_eq!(servers(leader).len(), 3);
    // Any server is asked about all of the pool.
    assert_eq!(servers(&nodes[2].ledger), servers(leader));
    let (made, secret) =
        create_as(&nodes[1].ledger, &root(), "t", wide("w", 100 * MIB, 3)).unwrap();
    // 100 MiB over three is 34, rounded up to 48.
    assert_eq!((made.parts.len(), made.capacity_bytes), (3, 144 * MIB));
    let again = create_as(leader, &root(), "t", wide("w", 100 * MIB, 3)).unwrap();
    assert_eq!((again.0.uuid, again.1), (made.uuid.clone(), secret.clone()));
    for (number, node) in nodes.iter().enumerate() {
        assert_eq!(parts_on(&flash_of(dir.path(), number)), std::slice::from_ref(&made.uuid));
        let served = node.ledger.buffer(&name("w")).unwrap();
        assert_eq!(served.secret.to_hex(), secret, "known at each server");
        assert_eq!(places(&node.ledger, "w"), places(leader, "w"));
        assert_eq!(status(&node.ledger, &root(), "w").unwrap().state, BufferState::Ready);
        for to in 0..3 {
            let answer = Ok(Reply::Names(NamesReply::Shard(ShardId(to))));
            assert_eq!(ping(node, "w", to), answer, "{number} asks {to}");
        }
    }
    let shards: Vec<u16> = (0..3u16)
        .map(|shard| {
            let place = &made.parts[usize::from(shard)];
            let node = nodes.iter().find(|node| node.id() == place.server).unwrap();
            node.ledger.buffer(&name("w")).unwrap().server.namespace().shard().0
        })
        .collect();
    assert_eq!(shards, [0, 1, 2]);

    let extend = LedgerRequest::Extend { name: name("w"), capacity_bytes: 150 * MIB };
    ask(&nodes[2].ledger, &root(), extend).unwrap();
    let grown = status(leader, &root(), "w").unwrap();
    assert_eq!((grown.capacity_bytes, grown.why), (192 * MIB, None));
    for node in &nodes {
        let served = node.ledger.buffer(&name("w")).unwrap();
        assert_eq!(served.server.namespace().space().unwrap().1, 64 * MIB);
    }
    destroy(&nodes[1].ledger, "w", false).unwrap();
    for (number, node) in nodes.iter().enumerate() {
        assert!(parts_on(&flash_of(dir.path(), number)).is_empty());
        assert_eq!(node.ledger.parts.facts().reserved_bytes, 0);
    }
}

#[test]
fn parts_go_where_the_most_room_is_and_rights_hold_everywhere() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let capacities = [64 * MIB, 256 * MIB, 128 * MIB];
    let nodes: Vec<Node> =
        (0..3).map(|n| Node::start_with(dir.path(), n, capacities[n]).unwrap()).collect();
    let member = &nodes[1].ledger;
    let ann = user(4001);
    let made = create_as(member, &ann, "t", wide("w", 64 * MIB, 2)).unwrap().0;
    assert_eq!(made.servers, [nodes[1].id().to_string(), nodes[2].id().to_string()]);
    // The leader has no part of it and answers for it all the same.
    let leader = &nodes[0].ledger;
    assert!(leader.buffer(&name("w")).is_none());
    assert_eq!(status(leader, &ann, "w").unwrap().owner_uid, 4001);
    let holder = Identity::Holder(name("w"));
    ask(leader, &holder, LedgerRequest::StageList { name: name("w") }).unwrap();
    let bob = user(4002);
    for node in &nodes {
        fails(status(&node.ledger, &bob, "w"), libc::EPERM, "another user");
        let list = LedgerRequest::StageList { name: name("w") };
        fails(ask(&node.ledger, &bob, list), libc::EPERM, "another user");
        let taken = create_as(&node.ledger, &bob, "b", wide("w", MIB, 1));
        fails(taken, libc::EEXIST, "of this name already");
    }
    let places = LedgerRequest::Places { name: name("w") };
    fails(ask(leader, &bob, places), libc::EPERM, "another user");
    fails(
        create_as(leader, &ann, "x", wide("x", MIB, 4)).map(drop),
        libc::EINVAL,
        "the pool has 3",
    );
    let large = create_as(leader, &ann, "x", wide("x", 300 * MIB, 0));
    fails(large, libc::ENOSPC, "each of 3 servers has a shard");
    assert_eq!(list(leader, &root()), ["w"], "what failed has left nothing");
}

#[test]
fn members_come_back_by_themselves_and_serve_without_the_leader() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut nodes: Vec<Node> = (0..2).map(|n| Node::start(dir.path(), n).unwrap()).collect();
    let made = create_as(&nodes[0].ledger, &root(), "t", wide("w", 64 * MIB, 2)).unwrap().0;
    let member_id = nodes[1].id();
    let shard_of = |made: &Shown, id: ServerId| {
        made.parts.iter().find(|part| part.server == id).unwrap().shard.0
    };
    let to_member = shard_of(&made, member_id);

    nodes.pop().unwrap().stop();
    let away = status(&nodes[0].ledger, &root(), "w").unwrap();
    assert_eq!(away.state, BufferState::Degraded);
    assert_eq!(away.parts[usize::from(to_member)].state, PartState::Away);
    assert!(away.why.as_deref().unwrap().contains("does not answer"), "{away:?}");
    assert_eq!(ping(&nodes[0], "w", to_member), Err(forebay_proto::Errno::EHOSTUNREACH));
    fails(destroy(&nodes[0].ledger, "w", false), libc::EHOSTUNREACH, "does not answer");
    // Back, without being told to join: it has its leader on record.
    let ledger = Ledger::open(options(&flash_of(dir.path(), 1), 512 * MIB)).unwrap();
    let door = Arc::new(Door::open(Arc::clone(&ledger), None).unwrap());
    let moved = ServerAddress::Unix(dir.path().join("moved.sock"));
    let listening = Some(listen(door, std::slice::from_ref(&moved)).unwrap());
    ledger.set_addresses(vec![moved]);
    ledger.start_rounds().unwrap();
    let member = Node { ledger, listening };
    eventually("the leader finds the member at its new address", || {
        status(&nodes[0].ledger, &root(), "w").unwrap().state == BufferState::Ready
    });
    eventually("so do questions", || ping(&nodes[0], "w", to_member).is_ok());

    nodes.pop().unwrap().stop();
    let served = member.ledger.buffer(&name("w"));
    assert!(served.is_some(), "parts are served while the leader is away");
    let asked = ask(&member.ledger, &root(), LedgerRequest::List);
    fails(asked, libc::EHOSTUNREACH, "keeps the ledger of the pool");
    let leader = Node::start(dir.path(), 0).unwrap();
    eventually("the member reaches the leader again", || {
        ask(&member.ledger, &root(), LedgerRequest::List).is_ok()
    });
    destroy(&leader.ledger, "w", false).unwrap();
}

#[test]
fn a_server_away_while_its_part_is_destroyed_removes_it_when_it_is_back() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut nodes: Vec<Node> = (0..2).map(|n| Node::start(dir.path(), n).unwrap()).collect();
    create_as(&nodes[0].ledger, &root(), "t", wide("w", 64 * MIB, 2)).unwrap();
    nodes.pop().unwrap().stop();
    fails(destroy(&nodes[0].ledger, "w", true), libc::EHOSTUNREACH, "cannot be reached");
    let left = status(&nodes[0].ledger, &root(), "w").unwrap();
    assert_eq!(left.state, BufferState::Destroying);
    assert!(left.why.unwrap().contains("cannot be reached"));
    nodes.push(Node::start(dir.path(), 1).unwrap());
    eventually("it is gone from both", || {
        list(&nodes[0].ledger, &root()).is_empty()
            && parts_on(&flash_of(dir.path(), 1)).is_empty()
            && nodes[1].ledger.parts.facts().reserved_bytes == 0
    });
}

#[test]
fn a_server_gone_for_good_is_lost_and_comes_back_empty() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut nodes: Vec<Node> = (0..3).map(|n| Node::start(dir.path(), n).unwrap()).collect();
    let made = create_as(&nodes[0].ledger, &root(), "t", wide("w", 64 * MIB, 3)).unwrap().0;
    let gone = nodes[2].id();
    let forget = |node: &Node, who: &Identity| {
        ask(&node.ledger, who, LedgerRequest::Forget { server: gone })
    };
    fails(forget(&nodes[1], &root()), libc::EBUSY, "it answers");
    nodes.pop().unwrap().stop();
    fails(forget(&nodes[1], &user(4001)), libc::EPERM, "only who runs the servers");
    forget(&nodes[1], &root()).unwrap();
    forget(&nodes[0], &root()).unwrap();
    let leader = LedgerRequest::Forget { server: nodes[0].id() };
    fails(ask(&nodes[1].ledger, &root(), leader), libc::EINVAL, "pool leader --take-over");
    let lost = made.parts.iter().find(|part| part.server == gone).unwrap().shard;
    let shown = status(&nodes[0].ledger, &root(), "w").unwrap();
    assert_eq!(shown.state, BufferState::Degraded);
    assert_eq!(shown.parts[usize::from(lost.0)].state, PartState::Lost);
    // All others learn it, and nobody waits for it any more.
    for node in &nodes {
        eventually("members are told", || {
            places(&node.ledger, "w")[usize::from(lost.0)].lost
                && ping(node, "w", lost.0) == Err(forebay_proto::Errno::EIO)
        });
    }
    // It comes back all the same: what it has counts as lost, and it is another server now.
    let back = Node::start(dir.path(), 2).unwrap();
    eventually("it removes its parts and joins anew", || {
        parts_on(&flash_of(dir.path(), 2)).is_empty()
            && back.id() != gone
            && servers(&nodes[0].ledger).contains(&(back.id().to_string(), true, false))
    });
    assert_eq!(status(&nodes[0].ledger, &root(), "w").unwrap().state, BufferState::Degraded);
    create_as(&nodes[0].ledger, &root(), "u", wide("u", 48 * MIB, 3)).unwrap();
    destroy(&nodes[1].ledger, "w", false).unwrap();
    eventually("the lost server is not on record any more", || {
        !servers(&nodes[0].ledger).iter().any(|(id, _, _)| *id == gone.to_string())
    });
    assert_eq!(list(&nodes[0].ledger, &root()), ["u"]);
}

#[test]
fn who_may_not_join_is_told_why() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let leader = Node::start(dir.path(), 0).unwrap();
    // A server with buffers of its own keeps them.
    let flash = flash_of(dir.path(), 1);
    fs::create_dir_all(&flash).unwrap();
    let own = Ledger::open(options(&flash, 512 * MIB)).unwrap();
    create(&own, "mine", MIB).unwrap();
    fails(own.join(&socket(dir.path(), 0)), libc::EBUSY, "a pool of its own");
    destroy(&own, "mine", false).unwrap();
    fails(leader.ledger.join(&socket(dir.path(), 0)), libc::EINVAL, "this server itself");
    fails(own.join(&socket(dir.path(), 9)), libc::EHOSTUNREACH, "is `forebay serve` running");
    own.join(&socket(dir.path(), 0)).unwrap();
    // By way of a member.
    own.close().unwrap();
    drop(own);
    let member = Node::start(dir.path(), 1).unwrap();
    let flash = flash_of(dir.path(), 2);
    fs::create_dir_all(&flash).unwrap();
    let third = Ledger::open(options(&flash, 512 * MIB)).unwrap();
    third.join(&socket(dir.path(), 1)).unwrap();
    assert_eq!((third.record.leader(), member.ledger.record.leader()), (leader.id(), leader.id()));
    third.close().unwrap();
}

fn events_at(
    ledger: &Ledger,
    who: &Identity,
    record: EventRecord,
) -> Result<EventsPage, ControlError> {
    let query = EventsQuery::default();
    match ask(ledger, who, LedgerRequest::Events { name: Some(name("w")), record, query })? {
        LedgerReply::Events(page) => Ok(page),
        other => panic!("{other:?}"),
    }
}

/// Paths that any record of `w` has, as one server finds them.
fn evidence(ledger: &Ledger, who: &Identity) -> Vec<String> {
    let first = events_at(ledger, who, EventRecord::Buffer).unwrap();
    let parts = first.others.iter().map(|part| events_at(ledger, who, part.clone()).unwrap());
    let all = parts.flat_map(|page| page.events).chain(first.events.iter().cloned());
    let mut paths: Vec<String> =
        all.filter_map(|event| Some(event.happened.path?.to_string())).collect();
    paths.sort();
    paths
}

#[test]
fn what_happened_at_each_server_of_a_buffer_is_told_by_any_of_them_also_afterwards() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let capacities = [64 * MIB, 256 * MIB, 256 * MIB];
    let nodes: Vec<Node> =
        (0..3).map(|n| Node::start_with(dir.path(), n, capacities[n]).unwrap()).collect();
    let (ann, bob) = (user(4001), user(4002));
    create_as(&nodes[1].ledger, &ann, "t", wide("w", 64 * MIB, 2)).unwrap();
    for (n, node) in nodes.iter().enumerate().skip(1) {
        let served = node.ledger.buffer(&name("w")).expect("the leader has the least room");
        let path = Some(PathBytes::new(format!("w:/f{n}").as_bytes()));
        let drained = Happened { path, ..Happened::of(EventKind::Drained, 4001) };
        served.server.events().record(&[drained]);
    }
    let other = events_at(&nodes[0].ledger, &ann, EventRecord::Buffer).unwrap().others;
    let looks_at_both = |when: &str| {
        for node in &nodes {
            assert_eq!(evidence(&node.ledger, &ann), ["w:/f1", "w:/f2"], "{when}");
            assert_eq!(evidence(&node.ledger, &root()), ["w:/f1", "w:/f2"], "{when}");
            for record in [EventRecord::Buffer, other[0].clone()] {
                let seen = events_at(&node.ledger, &bob, record);
                assert!(seen.map_or(true, |page| page.events.is_empty()), "{when}");
            }
        }
    };
    assert_eq!(other.len(), 1, "one more than the first part's server");
    let uuid = status(&nodes[0].ledger, &ann, "w").unwrap().uuid;
    looks_at_both("served");
    destroy(&nodes[0].ledger, "w", false).unwrap();
    looks_at_both("destroyed");
    // Another buffer of this name, at one server: what its record leads to is about itself.
    create_as(&nodes[1].ledger, &ann, "u", wide("w", 64 * MIB, 1)).unwrap();
    let page = events_at(&nodes[0].ledger, &ann, EventRecord::Buffer).unwrap();
    assert!(page.events.is_empty() && page.others.is_empty(), "{page:?}");
    for node in &nodes[1..] {
        let of_old = EventRecord::Part { server: node.id(), uuid: uuid.clone() };
        let page = events_at(&nodes[0].ledger, &ann, of_old).unwrap();
        assert_eq!(page.events.len(), 1, "by its identity the old one's is there still");
    }
}

#[test]
fn a_copy_of_a_servers_flash_does_not_take_its_place_while_it_runs() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let leader = Node::start(dir.path(), 0).unwrap();
    let first = Node::start(dir.path(), 1).unwrap();
    let id = first.ledger.server_id();
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .args([flash_of(dir.path(), 1), flash_of(dir.path(), 2)])
        .status()
        .unwrap();
    assert!(copied.success());

    let refused = Node::start(dir.path(), 2).err().expect("two servers with one identity");
    assert_eq!(refused.errno, Some(libc::ENOTUNIQ), "{refused}");
    let said = refused.to_string();
    assert!(said.contains("1.sock") && said.contains("copy"), "{said}");
    let known = |addresses: &[String]| {
        let servers = leader.ledger.servers.all();
        servers.iter().any(|server| server.id == id && server.addresses == addresses)
    };
    assert!(known(&[socket(dir.path(), 1).to_string()]), "the first one stays");

    // A server that has moved with its flash is where it is now.
    first.stop();
    let moved = Node::start(dir.path(), 2).unwrap();
    assert_eq!(moved.ledger.server_id(), id);
    assert!(known(&[socket(dir.path(), 2).to_string()]));
    moved.stop();
    leader.stop();
}
