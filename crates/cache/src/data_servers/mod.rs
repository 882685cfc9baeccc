//! A cache over several servers: names at one of them (shard 0), the metadata server, and each file's data at its data server.
//!
//! The metadata server makes all calls of names on the PFS and knows every file that a data server has
//! anything of which cannot be fetched again. A data server has the files whose numbers say so: their data, state, drains
//! and attributes, and asks the metadata server where a file is that is not where it was.
//!
//! Invariants
//! * No question is asked with a lock held that the answer may need: the metadata server answers data servers
//!   without asking anybody; a data server that is told something takes the file's `meta`, and who holds that asks
//!   only the metadata server.
//! * What a data server must hear (a file lost its last name) is on record at the metadata server until it
//!   has heard it. What it may hear (a name was moved) it finds out by asking.
//! * A server that is away delays no change of names; it hears of it when it is back, before it drains.
//!
//! `messages` is what they say to each other, `service` what needs the PFS for its answer, `at_metadata_server` and `at_data_server` the two sides, `links` what keeps links and
//! drains apart. Made by `stack`, asked by `session::cached::peers` for the other servers.

mod at_data_server;
mod at_metadata_server;
mod bell;
mod links;
mod lost;
mod messages;
mod service;
mod writing;

pub(crate) use at_data_server::NowAt;
pub(crate) use bell::Bell;
pub(crate) use messages::{LinkChange, Request, Response};
pub use service::PeerService;

use self::links::Links;
use super::drain::DrainList;
use super::drain::policies::Policies;
use super::nodes::{Nodes, Whereabouts};
use super::parts::Parts;
use super::pfs::{Key, PfsDir};
use forebay_interfaces::peers::Peers;
use forebay_proto::net::frame;
use forebay_proto::net::servers::{Question, Reply};
use forebay_proto::{Errno, Ino, Result, ShardId};
use parking_lot::{Mutex, RwLock};
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The metadata server.
const NAMES: ShardId = ShardId(0);
/// How long a mount's call waits for a server that it needs.
const PATIENCE: Duration = Duration::from_secs(40);
/// Pause between two attempts.
const RETRY: Duration = Duration::from_millis(100);
/// What comes within so long is told together.
const GATHER: Duration = Duration::from_millis(100);
/// Longest pause before a server that was away is told again what it did not hear, if it does not ask first.
const RETRY_LONGEST: Duration = Duration::from_secs(5);
/// How often it is looked whether a server is gone for good, while there is nothing to tell.
const LOOK: Duration = Duration::from_secs(10);
/// How long a change of a name waits for a data server: one that hangs hears later of it.
const CHANGE_LIMIT: Duration = Duration::from_secs(3);
/// Then no change waits for it for so long.
const HANG_PAUSE: Duration = Duration::from_secs(10);
/// Most files in one message.
const FILES_MAX: usize = 4096;

/// What a server of a shared cache needs of the others.
pub(crate) struct DataServers {
    peers: Arc<dyn Peers>,
    /// Numbers the descriptions that this data server asks for; begins above those of its last start.
    next: AtomicU64,
    /// Of a data server: the metadata server knows what this one had at its start.
    told_start: Mutex<bool>,
    start: u64,
    /// Until then a start waits for the metadata server.
    start_until: Instant,
    /// Of the metadata server: what data servers that have started are saying that they have.
    starting: Mutex<HashMap<ShardId, (u64, HashSet<Ino>)>>,
    /// Of the metadata server: data servers that did not answer in time, and until when no change of a name waits for them.
    hanging: Mutex<HashMap<ShardId, Instant>>,
    /// Of a data server: inodes on the PFS of files that are about to lose a name.
    leaving: Mutex<HashMap<Ino, OwnedFd>>,
    /// Of the metadata server: held shared while a name is changed on the PFS and in the table of nodes, alone before a data server
    /// is told where a file is.
    pub renaming: RwLock<()>,
    /// Of the metadata server: names that are being made of files elsewhere.
    links: Links,
}

impl DataServers {
    /// Reached by `peers`.
    pub fn new(peers: Arc<dyn Peers>) -> DataServers {
        let now = super::pfs::nanoseconds(forebay_proto::Timestamp::now());
        let start = u64::try_from(now).unwrap_or(1).max(1);
        DataServers {
            peers,
            next: AtomicU64::new(start + 1),
            told_start: Mutex::new(false),
            start,
            start_until: Instant::now() + at_data_server::START_PATIENCE,
            starting: Mutex::default(),
            hanging: Mutex::default(),
            leaving: Mutex::default(),
            renaming: RwLock::new(()),
            links: Links::default(),
        }
    }

    /// True if the names are at this server.
    pub fn has_names(&self) -> bool {
        self.mine() == NAMES
    }

    pub fn count(&self) -> u16 {
        self.peers.count()
    }

    fn mine(&self) -> ShardId {
        self.peers.mine()
    }

    pub fn is_lost(&self, shard: ShardId) -> bool {
        self.peers.is_lost(shard)
    }

    fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn all_others(&self) -> impl Iterator<Item = ShardId> + use<> {
        let mine = self.mine();
        (0..self.count()).map(ShardId).filter(move |shard| *shard != mine)
    }

    fn others(&self) -> impl Iterator<Item = ShardId> {
        self.all_others().filter(|shard| !self.peers.is_lost(*shard))
    }

    /// Asks once. EIO if the server is gone for good.
    fn ask(&self, to: ShardId, asked: &Request) -> Result<Response> {
        self.ask_within(to, asked, None)
    }

    /// The same about a change of a name, which does not wait for a data server that hangs.
    fn ask_about_change(&self, to: ShardId, asked: &Request) -> Result<Response> {
        if self.hanging.lock().get(&to).is_some_and(|until| Instant::now() < *until) {
            return Err(Errno::ETIMEDOUT);
        }
        let since = Instant::now();
        let told = self.ask_within(to, asked, Some(CHANGE_LIMIT));
        let hangs = matches!(told, Err(Errno::ETIMEDOUT)) && since.elapsed() >= CHANGE_LIMIT;
        let mut hanging = self.hanging.lock();
        match hangs {
            true => drop(hanging.insert(to, Instant::now() + HANG_PAUSE)),
            false => drop(hanging.remove(&to)),
        }
        told
    }

    /// A data server that hung answers: changes of names wait for it again.
    fn answers(&self, data_server: ShardId) {
        self.hanging.lock().remove(&data_server);
    }

    fn ask_within(
        &self,
        to: ShardId,
        asked: &Request,
        limit: Option<Duration>,
    ) -> Result<Response> {
        if self.peers.is_lost(to) {
            return Err(Errno::EIO);
        }
        let mut body = Vec::new();
        frame::encode(asked, &mut body).map_err(|_| Errno::EPROTO)?;
        let (buffer, from) = (self.peers.buffer(), self.mine());
        let question = Question::Cache { buffer, from, asked: &body };
        let reply = match limit {
            Some(limit) => self.peers.ask_within(to, &question, limit),
            None => self.peers.ask(to, &question, &[], &mut Vec::new()),
        };
        // Whatever it is, a server that is there later will answer.
        match reply.map_err(|e| if e == Errno::EIO { e } else { Errno::ETIMEDOUT })? {
            Reply::Cache(told) => frame::decode(&told).map_err(|_| Errno::EPROTO),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Asks until there is an answer, for as long as a mount is patient. What can be asked so, can be asked
    /// twice.
    fn ask_patiently(&self, to: ShardId, asked: &Request, patience: Duration) -> Result<Response> {
        let until = Instant::now() + patience;
        loop {
            match self.ask(to, asked) {
                Err(e) if e != Errno::EIO && e != Errno::EPROTO && Instant::now() < until => {
                    std::thread::sleep(RETRY);
                }
                other => return other,
            }
        }
    }
}

/// Which server has what of the files of a cache, and what this one says of it to the others.
pub struct Ownership {
    /// The other servers of a cache whose data is spread over several.
    data_servers: Option<DataServers>,
    nodes: Arc<Nodes>,
    pfs: Arc<PfsDir>,
    policies: Arc<Policies>,
    drain_list: Arc<DrainList>,
}

impl Ownership {
    pub(crate) fn new(parts: &Parts, data_servers: Option<DataServers>) -> Ownership {
        Ownership {
            data_servers,
            nodes: parts.nodes.clone(),
            pfs: parts.pfs.clone(),
            policies: parts.policies.clone(),
            drain_list: parts.drain_list.clone(),
        }
    }

    /// True if data is spread over several servers.
    pub(crate) fn is_shared(&self) -> bool {
        self.data_servers.is_some()
    }

    /// Answers another server what this one knows without a look at the PFS. EPROTO for the rest, which is for
    /// [`PeerService`].
    fn asked(&self, from: ShardId, asked: Request) -> Result<Response> {
        let data_servers = self.data_servers.as_ref().ok_or(Errno::EPROTO)?;
        Ok(match asked {
            Request::Describe { number, inos, to_write } => {
                let one = |ino: &Ino| match ino.shard() == from {
                    true => self.nodes.describe(*ino, number, to_write),
                    false => None,
                };
                Response::Described(inos.iter().map(one).collect())
            }
            Request::LetGo(list) => {
                self.nodes.data_server_let_go(&list);
                Response::Done
            }
            Request::MayWrite(ino, number) => {
                self.nodes.may_be_dirty(ino, number);
                Response::Done
            }
            Request::Clean(list) => {
                self.nodes.data_server_has_clean(list);
                Response::Done
            }
            Request::Start { start, inos, last } => {
                self.data_server_starts(data_servers, from, start, inos, last);
                // It is back: what it did not hear it hears now.
                data_servers.answers(from);
                self.nodes.bell().ring();
                Response::Policies(self.policies.list())
            }
            Request::Where(list) => {
                drop(data_servers.renaming.write());
                let find = |(ino, key): &(Ino, _)| self.nodes.whereabouts(*ino, *key);
                Response::Where(list.iter().map(find).collect())
            }
            Request::Keys { ino, keep, also } => {
                // A name that is being made is on the PFS when the data server looks.
                let settle = |()| also.map_or(Ok(()), |_| data_servers.links.wait_for_none(ino));
                match self.nodes.set_keys(ino, keep, also).and_then(settle) {
                    // Lost in a power cut: nobody there takes it for another file.
                    Ok(()) | Err(Errno::ESTALE) => Response::Done,
                    Err(e) => Response::Failed(e.0),
                }
            }
            Request::Unknown(inos) => {
                let clean = self.nodes.are_clean(&inos);
                let is_unknown = |ino: &Ino| self.nodes.get(*ino).is_err();
                let unknown = inos.into_iter().filter(is_unknown).collect();
                Response::Unknown { unknown, clean }
            }
            Request::Policies(list) => self.heard_policies(list),
            Request::Resolve { .. } | Request::Leaving(_) | Request::Links(_) => {
                return Err(Errno::EPROTO);
            }
        })
    }

    fn heard_policies(&self, list: Vec<(Key, String)>) -> Response {
        match self.policies.replace(list) {
            Ok(()) => {
                // It may have been away.
                self.nodes.bell().ring();
                self.policies.policies_changed();
                Response::Done
            }
            Err(e) => Response::Failed(e.0),
        }
    }
}

impl Ownership {
    /// True if the names are here: for a mount's own cache, and one on one server, too.
    pub fn has_names(&self) -> bool {
        self.data_servers.as_ref().is_none_or(DataServers::has_names)
    }

    /// The other servers, for a data server that does not have the names.
    pub(crate) fn at_data_server(&self) -> Option<&DataServers> {
        self.data_servers.as_ref().filter(|data_servers| !data_servers.has_names())
    }

    /// A thread that tells the others what they have to know, until the server ends. It sleeps while there is
    /// nothing.
    pub(crate) fn tell_others(&self) {
        let Some(data_servers) = &self.data_servers else { return };
        let bell = self.nodes.bell();
        let mut to_settle: Vec<ShardId> = data_servers.others().collect();
        let mut to_leave: Vec<ShardId> = data_servers.all_others().collect();
        let mut pause = RETRY;
        while !self.drain_list.is_stopping() {
            let all_told = match data_servers.mine() == NAMES {
                true => {
                    to_settle.retain(|data_server| !self.settle_with(data_servers, *data_server));
                    to_leave.retain(|data_server| !self.leave_if_lost(data_servers, *data_server));
                    self.tell_removed(data_servers) && to_settle.is_empty()
                }
                false => self.tell_let_go(data_servers) && self.tell_clean(data_servers),
            };
            let longest = if all_told { LOOK } else { pause };
            pause = if all_told { RETRY } else { (pause * 2).min(RETRY_LONGEST) };
            if bell.wait(longest) && !self.drain_list.is_stopping() {
                std::thread::sleep(GATHER);
            }
        }
    }

    /// Wakes who tells the others: there is something to do, or the server ends.
    pub(crate) fn look_at_others(&self) {
        if self.data_servers.is_some() {
            self.nodes.bell().ring();
        }
    }

    /// Says to the list of nodes that files have their data servers at several servers.
    pub(crate) fn share(self: &Arc<Self>) {
        let Some(data_servers) = &self.data_servers else { return };
        let here = Arc::downgrade(self);
        let is_lost = move |shard| {
            let here = here.upgrade();
            here.is_some_and(|here| {
                here.data_servers.as_ref().is_some_and(|data_servers| data_servers.is_lost(shard))
            })
        };
        self.nodes.share(data_servers.count(), Arc::new(is_lost));
    }
}

/// What the server of another part asks: read, and not answered yet.
pub struct PeerRequest(Request);

/// What somebody did elsewhere to the names of a file that is here: mounts that may believe what was have to hear of it.
pub struct NamesChanged {
    /// The file.
    pub ino: Ino,
    /// The client that did it; 0: none that waits.
    pub client: u64,
    /// The directory and the name that is gone, for those who may have cached it.
    pub gone: Option<(Ino, Vec<u8>)>,
}

impl PeerRequest {
    /// From its bytes. EPROTO if they are none.
    pub fn decode(bytes: &[u8]) -> Result<PeerRequest> {
        frame::decode(bytes).map(PeerRequest).map_err(|_| Errno::EPROTO)
    }

    /// The change of names that it tells of, if it does.
    pub fn names_changed(&self) -> Option<NamesChanged> {
        match &self.0 {
            Request::Links(left) => {
                let gone = left.gone.clone();
                Some(NamesChanged { ino: left.ino, client: left.client, gone })
            }
            _ => None,
        }
    }
}
