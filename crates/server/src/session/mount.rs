//! One mount at this server: who it is, when it was heard of, and what it holds.
//!
//! Invariants: it ends once ([`Session::ends`], called by [`super::teardown`]); it is not silent while it has a call under way
//! ([`Busy`]); no more references are taken off than it was given.
//!
//! Made by [`super::Sessions::attach`]; asked by all of `session`, and by `net` for each connection.

use super::attempts::Attempts;
use super::cached::Opens;
use forebay_lease::recall::Channel;
use forebay_lease::slots::Slots;
use forebay_net::peer::Process;
use forebay_proto::net::ledger::MountedClient;
use forebay_proto::net::session::{Attach, ClientId, SessionId, SessionKey};
use forebay_proto::{Caller, Ino};
use parking_lot::{Mutex, MutexGuard};
#[cfg(test)]
use std::collections::BTreeMap;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// A client that has attached makes its connection for recalls within that time, or never.
const CONNECTS_WITHIN: Duration = Duration::from_secs(5);

/// References, by inode.
pub(super) type HeldReferences = HashMap<Ino, u64, foldhash::fast::RandomState>;

/// One mount at this server.
pub struct Session {
    id: SessionId,
    key: u128,
    attach: Attach,
    /// Whose rights its calls have on a PFS, if it is not believed who they say they are.
    acts_as: Option<Caller>,
    /// It ends when nothing was heard of it for so long.
    lease: Duration,
    begun: Instant,
    heard: Mutex<Instant>,
    /// Calls being done: it is not silent meanwhile.
    busy: AtomicUsize,
    channel: Channel,
    slots: Arc<Slots>,
    attempts: Attempts,
    /// References given and not taken back.
    held: Mutex<HeldReferences>,
    /// Opens of a cache's files.
    opens: Mutex<Opens>,
    over: AtomicBool,
    /// Its client will not come back.
    detached: AtomicBool,
    /// The client's process, if it is on this node.
    process: OnceLock<Process>,
}

/// The session is not silent while it has a call under way.
pub(super) struct Busy<'a>(&'a Session);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.hear();
        self.0.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Session {
    /// Begins now, with the slots that its client has already.
    pub(super) fn new(
        key: &SessionKey,
        attach: Attach,
        acts_as: Option<Caller>,
        lease: Duration,
        slots: Arc<Slots>,
    ) -> Session {
        Session {
            id: key.session,
            key: key.key,
            attach,
            acts_as,
            lease,
            begun: Instant::now(),
            heard: Mutex::new(Instant::now()),
            busy: AtomicUsize::new(0),
            channel: Channel::default(),
            slots,
            attempts: Attempts::default(),
            held: Mutex::default(),
            opens: Mutex::default(),
            over: AtomicBool::new(false),
            detached: AtomicBool::new(false),
            process: OnceLock::new(),
        }
    }

    /// Which.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// True if a connection may join it.
    pub(super) fn has_key(&self, key: &SessionKey) -> bool {
        self.key == key.key
    }

    /// Whose it is: a client's next session has the same.
    pub(super) fn client(&self) -> ClientId {
        self.attach.client
    }

    /// The client's node, as it says.
    pub(super) fn host(&self) -> &str {
        &self.attach.host
    }

    /// The client's process, as it says.
    pub fn pid(&self) -> u32 {
        self.attach.pid
    }

    /// The client, for who asks who is attached.
    pub(super) fn mounted(&self) -> MountedClient {
        MountedClient {
            host: self.attach.host.clone(),
            pid: self.attach.pid,
            silent_s: self.heard.lock().elapsed().as_secs_f64(),
        }
    }

    /// Whose rights its calls have on a PFS; `None` if its kernel is believed who they say they are.
    pub(super) fn acts_as(&self) -> Option<&Caller> {
        self.acts_as.as_ref()
    }

    /// By which it is told of recalls.
    pub(super) fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Whether what it is told now reaches it, or will in a moment: a mount may know names before its connection for recalls
    /// is there.
    pub(super) fn hears_soon(&self) -> bool {
        let connects = self.channel.is_new() && self.begun.elapsed() < CONNECTS_WITHIN;
        self.channel.is_connected() || connects
    }

    /// Its last answers.
    pub(super) fn slots(&self) -> &Arc<Slots> {
        &self.slots
    }

    /// What answers gave that it has not heard of.
    pub(super) fn attempts(&self) -> &Attempts {
        &self.attempts
    }

    /// What it has open of a cache's files. HeldReferences for a moment only.
    pub(super) fn opens(&self) -> MutexGuard<'_, Opens> {
        self.opens.lock()
    }

    /// True once it has ended.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// It ends; true for the first who says so.
    pub(super) fn ends(&self) -> bool {
        !self.over.swap(true, Ordering::AcqRel)
    }

    /// True if its client will not come back.
    pub(super) fn is_detached(&self) -> bool {
        self.detached.load(Ordering::Acquire)
    }

    /// Its client will not come back.
    pub(super) fn detach(&self) {
        self.detached.store(true, Ordering::Release);
    }

    /// The client is over when this process is.
    pub fn lives_with(&self, process: Process) {
        // Each connection of a session is that of the same one.
        let _ = self.process.set(process);
    }

    /// True if the client has died: its kernel has let go of the mount, and asks nothing any more.
    pub(super) fn is_dead(&self) -> bool {
        self.process.get().is_some_and(Process::is_dead)
    }

    /// It was heard of.
    pub(super) fn hear(&self) {
        *self.heard.lock() = Instant::now();
    }

    /// It was heard of last at this time.
    #[cfg(test)]
    pub(super) fn was_heard(&self, at: Instant) {
        *self.heard.lock() = at;
    }

    /// For so long nobody read what it says.
    pub(super) fn was_not_read(&self, late: Duration, now: Instant) {
        let mut heard = self.heard.lock();
        *heard = now.min(*heard + late);
    }

    /// When it ends if nothing is heard.
    pub(super) fn lease_end(&self) -> Instant {
        *self.heard.lock() + self.lease
    }

    /// A call of it begins, and lasts as long as what this returns.
    pub(super) fn begin_call(&self) -> Busy<'_> {
        self.busy.fetch_add(1, Ordering::AcqRel);
        self.hear();
        Busy(self)
    }

    /// Calls under way.
    #[cfg(test)]
    pub(super) fn busy(&self) -> &AtomicUsize {
        &self.busy
    }

    /// True if it has no call under way.
    pub(super) fn is_idle(&self) -> bool {
        self.busy.load(Ordering::Acquire) == 0
    }

    /// References that it was given and has not given back.
    #[cfg(test)]
    pub(crate) fn references(&self) -> BTreeMap<Ino, u64> {
        self.held.lock().iter().map(|(ino, count)| (*ino, *count)).collect()
    }

    /// True if it has a reference to this inode.
    pub(super) fn holds(&self, ino: Ino) -> bool {
        self.held.lock().contains_key(&ino)
    }

    /// Those of `inodes` to which it has a reference.
    pub(super) fn held_of(&self, inodes: impl Iterator<Item = Ino>) -> Vec<Ino> {
        let held = self.held.lock();
        inodes.filter(|ino| held.contains_key(ino)).collect()
    }

    /// It was given a reference.
    pub(super) fn took(&self, ino: Ino) {
        *self.held.lock().entry(ino).or_insert(0) += 1;
    }

    /// Takes up to `count` references off what it holds; how many there were, and whether none is
    /// left.
    pub(super) fn gave_back(&self, ino: Ino, count: u64) -> (u64, bool) {
        let mut held = self.held.lock();
        let Some(have) = held.get_mut(&ino) else { return (0, true) };
        let given = count.min(*have);
        *have -= given;
        let none = *have == 0;
        if none {
            held.remove(&ino);
        }
        (given, none)
    }

    /// Takes off all that it holds.
    pub(super) fn gave_back_all(&self) -> HeldReferences {
        std::mem::take(&mut *self.held.lock())
    }
}
