//! A cache over several servers: names at one of them (part 0), each file's data at its home.
//!
//! The server of the names makes all calls of names on the PFS and knows every file that a home has
//! anything of which cannot be fetched again. A home has the files whose numbers say so: their data, state, drains
//! and attributes, and asks the server of the names where a file is that is not where it was.
//!
//! Invariants
//! * No question is asked with a lock held that the answer may need: the server of the names answers homes
//!   without asking anybody; a home that is told something takes the file's `meta`, and who holds that asks
//!   only the server of the names.
//! * What a home must hear (a file lost its last name) is on record at the server of the names until it
//!   has heard it. What it may hear (a name was moved) it finds out by asking.
//! * A server that is away delays no change of names; it hears of it when it is back, before it drains.
//!
//! `asked` is what they say to each other, `at_names` and `at_home` the two sides, `links` what keeps links and drains
//! apart. Made by `CacheFs::open_told`, asked by `session::calls_cache_homes` for the other servers.

mod asked;
mod at_home;
mod at_names;
mod bell;
mod links;
mod lost;
mod writing;

pub(crate) use asked::{Asked, Left, Told};
pub(crate) use at_home::NowAt;
pub(crate) use bell::Bell;

use self::links::Links;
use super::CacheFs;
use super::nodes::Whereabouts;
use crate::peers::Peers;
use forebay_proto::net::frame;
use forebay_proto::net::servers::{Question, Reply};
use forebay_proto::{Errno, Ino, Result, ShardId};
use parking_lot::{Mutex, RwLock};
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The server of the names.
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
/// How long a change of a name waits for a home: one that hangs hears later of it.
const CHANGE_LIMIT: Duration = Duration::from_secs(3);
/// Then no change waits for it for so long.
const HANG_PAUSE: Duration = Duration::from_secs(10);
/// Most files in one message.
const FILES_MAX: usize = 4096;

/// What a server of a shared cache needs of the others.
pub(crate) struct Homes {
    peers: Arc<dyn Peers>,
    /// Numbers the descriptions that this home asks for; begins above those of its last start.
    next: AtomicU64,
    /// Of a home: the server of the names knows what this one had at its start.
    told_start: Mutex<bool>,
    start: u64,
    /// Until then a start waits for the server of the names.
    start_until: Instant,
    /// Of names: what homes that have started are saying that they have.
    starting: Mutex<HashMap<ShardId, (u64, HashSet<Ino>)>>,
    /// Of names: homes that did not answer in time, and until when no change of a name waits for them.
    hanging: Mutex<HashMap<ShardId, Instant>>,
    /// Of a home: inodes on the PFS of files that are about to lose a name.
    leaving: Mutex<HashMap<Ino, OwnedFd>>,
    /// Of names: held shared while a name is changed on the PFS and in the table of nodes, alone before a home
    /// is told where a file is.
    pub renaming: RwLock<()>,
    /// Of names: names that are being made of files elsewhere.
    links: Links,
}

impl Homes {
    /// Reached by `peers`.
    pub fn new(peers: Arc<dyn Peers>) -> Homes {
        let now = super::pfs::nanoseconds(forebay_proto::Timestamp::now());
        let start = u64::try_from(now).unwrap_or(1).max(1);
        Homes {
            peers,
            next: AtomicU64::new(start + 1),
            told_start: Mutex::new(false),
            start,
            start_until: Instant::now() + at_home::START_PATIENCE,
            starting: Mutex::default(),
            hanging: Mutex::default(),
            leaving: Mutex::default(),
            renaming: RwLock::new(()),
            links: Links::default(),
        }
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
    fn ask(&self, to: ShardId, asked: &Asked) -> Result<Told> {
        self.ask_within(to, asked, None)
    }

    /// The same about a change of a name, which does not wait for a home that hangs.
    fn ask_about_change(&self, to: ShardId, asked: &Asked) -> Result<Told> {
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

    /// A home that hung answers: changes of names wait for it again.
    fn answers(&self, home: ShardId) {
        self.hanging.lock().remove(&home);
    }

    fn ask_within(&self, to: ShardId, asked: &Asked, limit: Option<Duration>) -> Result<Told> {
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
    fn ask_patiently(&self, to: ShardId, asked: &Asked, patience: Duration) -> Result<Told> {
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

impl CacheFs {
    /// True if the names are here: for a mount's own cache, and one on one server, too.
    pub(crate) fn has_names(&self) -> bool {
        self.homes.as_ref().is_none_or(|homes| homes.mine() == NAMES)
    }

    /// The other servers, for a home that does not have the names.
    fn at_home(&self) -> Option<&Homes> {
        self.homes.as_ref().filter(|homes| homes.mine() != NAMES)
    }

    /// Answers another server. What it takes to be told that a name has gone is for
    /// [`CacheFs::left`], which the sessions call when nobody believes in it any more.
    pub(crate) fn asked(&self, from: ShardId, asked: Asked) -> Result<Told> {
        let homes = self.homes.as_ref().ok_or(Errno::EPROTO)?;
        Ok(match asked {
            Asked::Describe { number, inos, to_write } => {
                let one = |ino: &Ino| match ino.shard() == from {
                    true => self.nodes.describe(*ino, number, to_write),
                    false => None,
                };
                Told::Described(inos.iter().map(one).collect())
            }
            Asked::LetGo(list) => {
                self.nodes.home_let_go(&list);
                Told::Done
            }
            Asked::MayWrite(ino, number) => {
                self.nodes.may_be_dirty(ino, number);
                Told::Done
            }
            Asked::Clean(list) => {
                self.nodes.home_has_clean(list);
                Told::Done
            }
            Asked::Start { start, inos, last } => {
                self.home_starts(homes, from, start, inos, last);
                // It is back: what it did not hear it hears now.
                homes.answers(from);
                self.nodes.bell().ring();
                Told::Policies(self.policies.list())
            }
            Asked::Where(list) => {
                drop(homes.renaming.write());
                let find = |(ino, key): &(Ino, _)| self.nodes.whereabouts(*ino, *key);
                Told::Where(list.iter().map(find).collect())
            }
            Asked::Keys { ino, keep, also } => {
                // A name that is being made is on the PFS when the home looks.
                let settle = |()| also.map_or(Ok(()), |_| homes.links.wait_for_none(ino));
                match self.nodes.set_keys(ino, keep, also).and_then(settle) {
                    // Lost in a power cut: nobody there takes it for another file.
                    Ok(()) | Err(Errno::ESTALE) => Told::Done,
                    Err(e) => Told::Failed(e.0),
                }
            }
            Asked::Resolve { path, who } => match self.resolve_for(&path, &who) {
                Ok((ino, kind)) => Told::Resolved(ino, kind),
                Err(e) => Told::Failed(e.0),
            },
            Asked::Leaving(ino) => {
                self.keep_leaving(homes, ino);
                Told::Done
            }
            Asked::Left(left) => match self.left(&left) {
                Ok(()) => Told::Done,
                Err(e) => Told::Failed(e.0),
            },
            Asked::Unknown(inos) => {
                let clean = self.nodes.are_clean(&inos);
                let is_unknown = |ino: &Ino| self.nodes.get(*ino).is_err();
                let unknown = inos.into_iter().filter(is_unknown).collect();
                Told::Unknown { unknown, clean }
            }
            Asked::Policies(list) => match self.policies.replace(&self.flash, list) {
                Ok(()) => {
                    // It may have been away.
                    self.nodes.bell().ring();
                    self.policies_changed();
                    Told::Done
                }
                Err(e) => Told::Failed(e.0),
            },
        })
    }

    /// A thread that tells the others what they have to know, until the server ends. It sleeps while there is
    /// nothing.
    pub(super) fn tell_others(&self) {
        let Some(homes) = &self.homes else { return };
        let bell = self.nodes.bell();
        let mut to_settle: Vec<ShardId> = homes.others().collect();
        let mut to_leave: Vec<ShardId> = homes.all_others().collect();
        let mut pause = RETRY;
        while !self.drainer.is_stopping() {
            let all_told = match homes.mine() == NAMES {
                true => {
                    to_settle.retain(|home| !self.settle_with(homes, *home));
                    to_leave.retain(|home| !self.leave_if_lost(homes, *home));
                    self.tell_removed(homes) && to_settle.is_empty()
                }
                false => self.tell_let_go(homes) && self.tell_clean(homes),
            };
            let longest = if all_told { LOOK } else { pause };
            pause = if all_told { RETRY } else { (pause * 2).min(RETRY_LONGEST) };
            if bell.wait(longest) && !self.drainer.is_stopping() {
                std::thread::sleep(GATHER);
            }
        }
    }

    /// Wakes who tells the others: there is something to do, or the server ends.
    pub(super) fn look_at_others(&self) {
        if self.homes.is_some() {
            self.nodes.bell().ring();
        }
    }
}
