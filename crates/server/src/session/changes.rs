//! Changes: the locks that order them, the recalls before them, and who is told afterwards.
//!
//! Invariants
//! * Nobody else has a lease on what is being changed: leases on it are recalled before, and none is given until the
//!   end ([`Changing`]).
//! * Locks are taken in one order: the order locks of directories, then the recall, then the lock of the size of a file.
//! * No lock but the order lock of a directory is held while a client is waited for.
//!
//! Called by all handlers of calls that change something, by changes over shards ([`super::shard_calls`]) and by those that the
//! server makes itself ([`ServerChanges`]).

use super::grace::Grace;
use super::order::{Order, Turn};
use super::sizes::Sizes;
use super::table::SessionTable;
use super::teardown::Teardown;
use super::{DEAD, DEATH_LOOK, Session, held_up};
use forebay_lease::leases::{Leases, Subject};
use forebay_proto::api::Notify;
use forebay_proto::net::session::{ClientId, MOVED_MAX, SessionId};
use forebay_proto::{Ino, Result};
use parking_lot::{Mutex, RwLockReadGuard, RwLockWriteGuard};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Most files whose bytes have gone and that nobody was told of yet.
const MAX_BYTES_GONE: usize = 4096;

/// The changes of one buffer.
pub(super) struct Changes {
    order: Order,
    sizes: Sizes,
    /// A client does what it is told within that time, or its session ends.
    lease: Duration,
    leases: Arc<Leases>,
    grace: Arc<Grace>,
    table: Arc<SessionTable>,
    teardown: Arc<Teardown>,
    /// Leases taken back.
    recalls: AtomicU64,
    /// Files of which bytes have gone, and who took them if it was one alone, that others are still to be
    /// told of.
    bytes_gone: Mutex<HashMap<Ino, Option<SessionId>>>,
}

/// A change under way: while it exists nobody gets a lease on what is changed.
pub(super) struct Changing<'a> {
    changes: &'a Changes,
    subjects: Vec<Subject>,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.changes.end(&self.subjects);
    }
}

impl Changes {
    pub(super) fn new(
        lease: Duration,
        leases: Arc<Leases>,
        grace: Arc<Grace>,
        table: Arc<SessionTable>,
        teardown: Arc<Teardown>,
    ) -> Changes {
        Changes {
            order: Order::new(),
            sizes: Sizes::new(),
            lease,
            leases,
            grace,
            table,
            teardown,
            recalls: AtomicU64::new(0),
            bytes_gone: Mutex::default(),
        }
    }

    /// The turn of a directory, until it is dropped.
    pub(super) fn turn(&self, dir: Ino) -> Turn<'_> {
        self.order.of(dir)
    }

    /// The turn of two, always taken in the same order.
    pub(super) fn turns(&self, a: Ino, b: Ino) -> (Turn<'_>, Option<Turn<'_>>) {
        self.order.of_two(a, b)
    }

    /// A file's data together with others that do not change its size.
    pub(super) fn data_shared(&self, ino: Ino) -> RwLockReadGuard<'_, ()> {
        self.sizes.shared(ino)
    }

    /// A file's data alone, to change its size.
    pub(super) fn data_alone(&self, ino: Ino) -> RwLockWriteGuard<'_, ()> {
        self.sizes.alone(ino)
    }

    /// Changes a file, but not from one size to another.
    pub(super) fn changed<T>(
        &self,
        session: &Session,
        ino: Ino,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let _changing = self.change(session, &[Subject::Attrs(ino)]);
        let _turn = self.sizes.shared(ino);
        change()
    }

    /// Begins a change by `session`: when this returns, nobody else believes anything about the
    /// subjects. A client that does not answer a recall within its lease is ended.
    pub(super) fn change(&self, session: &Session, subjects: &[Subject]) -> Changing<'_> {
        self.begin(Some(session.id()), subjects);
        Changing { changes: self, subjects: subjects.to_vec() }
    }

    /// The same for a session that may be unknown here; to be followed by [`Changes::end`].
    pub(super) fn begin(&self, by: Option<SessionId>, subjects: &[Subject]) {
        self.grace.wait();
        let mut lost: HashMap<SessionId, Vec<Subject>> = HashMap::new();
        for subject in subjects {
            for holder in self.leases.begin(*subject, by) {
                lost.entry(holder).or_default().push(*subject);
            }
        }
        if !lost.is_empty() {
            self.recall(&lost);
        }
    }

    /// Nobody gets a lease on the subjects until [`Changes::end`]; nobody is told of that.
    pub(super) fn hush(&self, subjects: &[Subject]) {
        for subject in subjects {
            self.leases.begin(*subject, None);
        }
    }

    /// What was changed may be believed again.
    pub(super) fn end(&self, subjects: &[Subject]) {
        for subject in subjects {
            self.leases.end(*subject);
        }
    }

    /// Tells those who lost leases, all at once, and waits for them.
    pub(super) fn recall(&self, lost: &HashMap<SessionId, Vec<Subject>>) {
        let until = Instant::now() + self.lease;
        let mut told = Vec::with_capacity(lost.len());
        for (id, subjects) in lost {
            // A session that has ended believes nothing any more.
            let Some(holder) = self.table.get(*id) else { continue };
            self.recalls.fetch_add(subjects.len() as u64, Relaxed);
            let serial = holder.channel().recall(subjects);
            told.push((holder, serial));
        }
        for (holder, serial) in told {
            self.wait_for(&holder, serial, until);
        }
    }

    /// Waits until a client has done what it was told. One that does not within its lease is ended, and
    /// one that has died at once.
    fn wait_for(&self, holder: &Arc<Session>, serial: u64, mut until: Instant) {
        loop {
            let look = until.min(Instant::now() + DEATH_LOOK);
            if holder.channel().wait(serial, look) {
                return;
            }
            // Its answer may wait to be read.
            until += held_up(look, Instant::now());
            if holder.is_dead() {
                return self.teardown.detach(holder, DEAD);
            }
            if Instant::now() >= until {
                return self.teardown.end(holder, "it did not answer a recall");
            }
        }
    }

    /// The session of a client that asked another server for something.
    pub(super) fn session_of(&self, client: u64) -> Option<SessionId> {
        self.table.id_of(ClientId(client))
    }

    /// A name of `child` was removed or replaced: kernels of others that know the inode are to let it
    /// go, if nobody uses it there. Not waited for.
    pub(super) fn name_gone(&self, by: Option<SessionId>, child: Ino, dir: Ino, name: &[u8]) {
        for other in self.table.others(by) {
            if other.holds(child) {
                other.channel().gone(dir, name);
            }
        }
    }

    /// Directories that had these names were moved to another directory. The kernels of others may still have them
    /// there, and would answer ESTALE to who renames them where they are now: they let the old names go first, unless
    /// that takes long (one may be busy there with a request that waits for this very change). With no turn held.
    pub(super) fn dirs_moved(&self, by: SessionId, names: &[(Ino, &[u8])]) {
        if names.is_empty() {
            return;
        }
        // The directory may be at another server, so who has it in its kernel is not known here.
        let others = self.table.filtered(|other| other.id() != by && other.hears_soon());
        let until = Instant::now() + MOVED_MAX;
        let serials: Vec<_> = others.iter().map(|other| other.channel().moved(names)).collect();
        for (other, serial) in others.iter().zip(serials) {
            other.channel().wait(serial, until);
        }
    }

    /// Bytes of a file were cut off or punched out by `by`. A kernel that has pages of it mapped keeps them
    /// without any lease, and would show what is not there any more instead of SIGBUS: those of others
    /// that know the inode are to drop its pages ([`Changes::tell_bytes_gone`]).
    pub(super) fn bytes_gone(&self, by: SessionId, ino: Ino) {
        if self.table.count() < 2 {
            return;
        }
        let full = {
            let mut gone = self.bytes_gone.lock();
            let only = gone.entry(ino).or_insert(Some(by));
            // Of two who took some, each is to hear of the other.
            *only = only.filter(|before| *before == by);
            gone.len() >= MAX_BYTES_GONE
        };
        if full {
            self.tell_bytes_gone();
        }
    }

    /// Tells whose bytes have gone since it was last told: a moment later, and not when the change is answered.
    /// A kernel does not believe what it is asking for while it is told that something has changed, and who
    /// hears of the change asks at once. Not waited for.
    pub(super) fn tell_bytes_gone(&self) {
        let gone = std::mem::take(&mut *self.bytes_gone.lock());
        if gone.is_empty() {
            return;
        }
        for session in self.table.all() {
            let theirs = gone.iter().filter(|(_, by)| **by != Some(session.id()));
            let known = session.held_of(theirs.map(|(ino, _)| *ino));
            let known: Vec<_> = known.into_iter().map(Subject::Attrs).collect();
            if !known.is_empty() {
                session.channel().recall(&known);
            }
        }
    }

    /// Something was changed by the server itself: those who believe otherwise are told.
    fn changed_here(&self, subjects: &[Subject]) {
        for subject in subjects {
            let lost = self.leases.begin(*subject, None);
            for id in lost {
                if let Some(holder) = self.table.get(id) {
                    self.recalls.fetch_add(1, Relaxed);
                    holder.channel().recall(&[*subject]);
                }
            }
            self.leases.end(*subject);
        }
    }

    /// Waits until each client has done all that it was told before; one that does not within its
    /// lease is ended, as with any recall.
    fn wait_heard(&self) {
        let until = Instant::now() + self.lease;
        let sessions = self.table.all();
        let told: Vec<_> = sessions.iter().map(|session| session.channel().last_recall()).collect();
        for (session, serial) in sessions.iter().zip(told) {
            self.wait_for(session, serial, until);
        }
    }

    /// The same for at most so long: nobody is ended for it.
    fn wait_heard_within(&self, longest: Duration) {
        let until = Instant::now() + longest;
        for session in self.table.all() {
            session.channel().wait(session.channel().last_recall(), until);
        }
    }

    /// Leases taken back until now.
    pub(super) fn recalls(&self) -> u64 {
        self.recalls.load(Relaxed)
    }
}

/// Hears of what staging and drains change, after it is made. It is waited for at the end of a plan, and where who asks about a
/// cache is told that all is on the PFS.
pub(super) struct ServerChanges(pub(super) Weak<Changes>);

impl Notify for ServerChanges {
    fn entry_changed(&self, parent: Ino, _name: &[u8]) {
        if let Some(changes) = self.0.upgrade() {
            changes.changed_here(&[Subject::Names(parent), Subject::Attrs(parent)]);
        }
    }

    fn inode_changed(&self, ino: Ino) {
        if let Some(changes) = self.0.upgrade() {
            changes.changed_here(&[Subject::Attrs(ino)]);
        }
    }

    fn wait_heard(&self) {
        if let Some(changes) = self.0.upgrade() {
            changes.wait_heard();
        }
    }

    fn wait_heard_within(&self, longest: Duration) {
        if let Some(changes) = self.0.upgrade() {
            changes.wait_heard_within(longest);
        }
    }
}
