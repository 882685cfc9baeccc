//! The servers of a mounted buffer: which one has what.
//!
//! Shard i of the namespace is `peers[i]`, always. What an inode number says of its shard decides
//! who is asked. A server that is away fails only what needs it: its calls wait for it, for as long
//! as the mount is patient, and then fail; the others are not asked to wait. What the mount learns
//! of servers that moved, or that are gone for good, it learns from those that answer
//! ([`Servers::keep_places`]).

use super::held_locks::HeldLocks;
use super::peer::{Peer, Room, Target};
use super::place::Expected;
use forebay_net::{LinkError, ServerAddress, random};
use forebay_proto::net::servers::ShardPlace;
use forebay_proto::net::session::{Attached, ClientId};
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Caller, Errno, Ino, Result, ShardId};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// How often it is looked whether a server is away.
const PLACES_LOOK: Duration = Duration::from_secs(1);

/// Most servers that are greeted at once.
const GREETED_MOST: usize = 64;

/// A server, as far as it is seen without a question to it.
#[derive(Clone, Debug)]
pub struct ServerSeen {
    /// Where it is looked for first.
    pub address: ServerAddress,
    /// Programs wait for its answer.
    pub is_waited_for: bool,
    /// It did not answer when it was last asked, or is gone for good.
    pub is_away: bool,
    /// Its process, if that runs on this node and is stopped.
    pub stopped: Option<u32>,
}

/// All servers of a buffer, by shard; at least one.
pub(super) struct Servers {
    peers: Vec<Arc<Peer>>,
}

impl Servers {
    /// Begins a session at the server that the target names, and at the others that it knows of;
    /// those that do not answer now are tried again by the first call that needs them.
    pub(super) fn attach(target: &Target) -> std::result::Result<(Servers, Attached), LinkError> {
        let client = ClientId(random::nonzero_u64().map_err(LinkError::Io)?);
        let locks = Arc::new(HeldLocks::default());
        let first = Peer::new(target.clone(), client, Expected::default(), Arc::clone(&locks));
        let attached = first.attach()?;
        let mut peers = Vec::with_capacity(attached.shards.len());
        let mut first = Some(Arc::new(first));
        for (shard, place) in (0u16..).zip(&attached.shards) {
            let peer = match ShardId(shard) == attached.shard {
                true => first.take().ok_or(LinkError::Closed)?,
                false => Arc::new(other(target, client, &attached, place, &locks)),
            };
            peers.push(peer);
        }
        if let Some(first) = first {
            // It knows of nobody, itself included: a buffer on one server.
            if attached.shard != ShardId(0) || !peers.is_empty() {
                return Err(LinkError::Io(Errno::EPROTO.into()));
            }
            peers.push(first);
        }
        locks.set_keeper(&peers[0]);
        for peer in &peers {
            // Once for each.
            let _new = peer.me.set(Arc::downgrade(peer));
        }
        std::thread::scope(|scope| {
            for peer in peers.iter().filter(|peer| !peer.has_session()) {
                scope.spawn(|| {
                    if let Err(error) = peer.attach() {
                        tracing::warn!(server = %peer.address(), %error, "a server of the buffer does not answer");
                    }
                });
            }
        });
        Ok((Servers { peers }, attached))
    }

    /// All, by shard.
    pub(super) fn all(&self) -> &[Arc<Peer>] {
        &self.peers
    }

    /// True if there is only one.
    pub(super) fn is_one(&self) -> bool {
        self.peers.len() == 1
    }

    /// The server that has an inode. ESTALE for one that no shard can have.
    pub(super) fn of(&self, ino: Ino) -> Result<&Peer> {
        let peer = self.peers.get(usize::from(ino.shard().0));
        peer.map(|peer| &**peer).ok_or(Errno::ESTALE)
    }

    /// The server of shard 0, which keeps the locks.
    pub(super) fn of_locks(&self) -> &Arc<Peer> {
        &self.peers[0]
    }

    /// The shard on this node that something new in `dir` could go to: the directory's own if it is
    /// here, else another one.
    pub(super) fn near(&self, dir: Ino) -> Option<ShardId> {
        if self.is_one() {
            return None;
        }
        let near = |shard: u16| self.peers.get(usize::from(shard)).is_some_and(|p| p.is_near());
        let own = dir.shard().0;
        if near(own) {
            return Some(ShardId(own));
        }
        (0..self.peers.len() as u16).find(|shard| near(*shard)).map(ShardId)
    }

    /// The shard on this node, if there is exactly one.
    pub(super) fn only_near(&self) -> Option<ShardId> {
        let here = (0u16..).zip(&self.peers).filter(|(_, peer)| peer.is_near());
        let mut here = here.map(|(shard, _)| ShardId(shard));
        here.next().filter(|_| here.next().is_none() && !self.is_one())
    }

    /// Ends all sessions. A server that has not heard of it within `limit` learns it by the end of the
    /// session's lease: somebody who waits for it meanwhile (a greeting, a new session) is not waited for.
    pub(super) fn close(&self, limit: Duration) {
        let until = Instant::now() + limit;
        let (all_told, told) = mpsc::channel::<()>();
        for peer in self.peers.iter().filter(|peer| !peer.is_closing()) {
            let (tells, told) = (Arc::clone(peer), all_told.clone());
            let tell = move || {
                tells.close();
                drop(told);
            };
            if std::thread::Builder::new().name("close".into()).spawn(tell).is_err() {
                peer.close();
            }
        }
        drop(all_told);
        // Nothing is sent: it ends when the last of them has, or with the limit.
        let _ended = told.recv_timeout(until.saturating_duration_since(Instant::now()));
    }

    /// The servers that are known to be away.
    pub(super) fn away(&self) -> Vec<ServerAddress> {
        self.peers.iter().filter(|peer| peer.is_away()).map(|peer| peer.address()).collect()
    }

    /// The servers on this node that are stopped, and their processes.
    pub(super) fn stopped(&self) -> Vec<(ServerAddress, u32)> {
        self.peers.iter().filter_map(|peer| peer.stopped()).collect()
    }

    /// Where the server that is reached at `address` is spoken with and its process, if that runs on this node and is stopped.
    pub(super) fn stopped_at(&self, address: &ServerAddress) -> Option<(ServerAddress, u32)> {
        self.peers.iter().find(|peer| peer.is_at(address))?.stopped()
    }

    /// Where the servers are that are neither stopped nor gone for good, those that are spoken with by TCP, too.
    pub(super) fn running(&self) -> Vec<ServerAddress> {
        let runs = |peer: &&Arc<Peer>| !peer.is_gone() && peer.seen_stopped().is_none();
        let running = self.peers.iter().filter(runs);
        running.map(|peer| peer.used_address()).collect()
    }

    /// Greets the servers at once: which answer within `limit`, and which do not. No more than [`GREETED_MOST`].
    pub(super) fn greeted(&self, limit: Duration) -> (Vec<ServerAddress>, Vec<ServerAddress>) {
        let looks: Vec<Option<bool>> = std::thread::scope(|scope| {
            let asked = self.peers.iter().take(GREETED_MOST);
            let asked: Vec<_> = asked.map(|peer| scope.spawn(move || peer.greets(limit))).collect();
            asked.into_iter().map(|look| look.join().unwrap_or_default()).collect()
        });
        let of = |wanted: Option<bool>| -> Vec<ServerAddress> {
            let looks = self.peers.iter().zip(&looks);
            let found = looks.filter(|(_, look)| **look == wanted);
            found.map(|(peer, _)| peer.used_address()).collect()
        };
        (of(Some(true)), of(Some(false)))
    }

    /// The servers on this node that are stopped, those that are spoken with by TCP, too.
    pub(super) fn seen_stopped(&self) -> Vec<(ServerAddress, u32)> {
        self.peers.iter().filter_map(|peer| peer.seen_stopped()).collect()
    }

    /// All servers, if programs wait for the answer of one of them; else none, and nothing is looked at.
    pub(super) fn while_waited_for(&self) -> Vec<ServerSeen> {
        if !self.peers.iter().any(|peer| peer.is_waited_for()) {
            return Vec::new();
        }
        let seen = |peer: &Arc<Peer>| ServerSeen {
            address: peer.address(),
            is_waited_for: peer.is_waited_for(),
            is_away: peer.is_away(),
            stopped: peer.seen_stopped().map(|(_, pid)| pid),
        };
        self.peers.iter().map(seen).collect()
    }

    /// Until the mount ends: asks, while a server is away, the others where it is now and whether it
    /// will come back.
    pub(super) fn keep_places(&self) {
        while !self.peers.iter().all(|peer| peer.is_closing()) {
            std::thread::sleep(PLACES_LOOK);
            if !self.peers.iter().any(|peer| peer.is_away()) {
                continue;
            }
            let Some(there) = self.peers.iter().find(|peer| !peer.is_away()) else { continue };
            match there.call(&Caller::root(), Call::Places, &[], Room::None) {
                Ok(done) => {
                    if let Answer::Places(places) = done.answer {
                        self.note_places(&places);
                    }
                }
                Err(error) => tracing::debug!(%error, "cannot ask where the servers are"),
            }
        }
    }

    fn note_places(&self, places: &[ShardPlace]) {
        for place in places {
            if let Some(peer) = self.peers.get(usize::from(place.shard.0))
                && peer.is_away()
            {
                peer.moved(place);
            }
        }
    }
}

/// The server of another part than the one that was asked first.
fn other(
    target: &Target,
    client: ClientId,
    attached: &Attached,
    place: &ShardPlace,
    locks: &Arc<HeldLocks>,
) -> Peer {
    let expected = Expected {
        server: Some(place.server),
        shard: Some(place.shard),
        uuid: Some(attached.uuid.clone()),
    };
    let peer = Peer::new(target.clone(), client, expected, Arc::clone(locks));
    peer.moved(place);
    peer
}
