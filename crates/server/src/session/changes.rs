//! Changes: what must be recalled before they are made, and their order within a directory.

use super::{DEAD, DEATH_LOOK, Session, Sessions, held_up};
use forebay_lease::leases::Subject;
use forebay_proto::Ino;
use forebay_proto::api::Notify;
use forebay_proto::net::session::{MOVED_MAX, SessionId};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Most files whose bytes have gone and that nobody was told of yet.
const MAX_BYTES_GONE: usize = 4096;
/// Parts of the table of turns, each with a lock of its own: calls on several processors rarely meet there.
const ORDER_PARTS: usize = 64;

/// Changes of one directory are made one after the other, from looking which inodes they are
/// about to their end: so what was recalled is what is changed.
///
/// A directory waits for itself only: a change may wait long for another server, and what else this server has must go
/// on meanwhile. The table holds the directories that are being changed, so it is no longer than the calls
/// that are under way.
pub(super) struct Order {
    parts: Vec<Mutex<HashMap<Ino, InUse>>>,
}

/// A directory that is being changed.
struct InUse {
    /// How many calls have its turn or wait for it.
    users: usize,
    is_taken: bool,
    /// Made by the first that waits.
    freed: Option<Arc<Condvar>>,
}

/// The turn of one directory, until it is dropped.
pub(super) struct Turn<'a> {
    order: &'a Order,
    dir: Ino,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut part = self.order.part(self.dir).lock();
        let Some(in_use) = part.get_mut(&self.dir) else { return };
        in_use.users -= 1;
        in_use.is_taken = false;
        match &in_use.freed {
            Some(freed) if in_use.users > 0 => {
                freed.notify_one();
            }
            _ => {
                part.remove(&self.dir);
            }
        }
    }
}

impl Order {
    pub(super) fn new() -> Order {
        Order { parts: (0..ORDER_PARTS).map(|_| Mutex::default()).collect() }
    }

    fn part(&self, dir: Ino) -> &Mutex<HashMap<Ino, InUse>> {
        &self.parts[(dir.0 ^ (dir.0 >> 48)) as usize % ORDER_PARTS]
    }

    /// The turn of one directory.
    pub(super) fn of(&self, dir: Ino) -> Turn<'_> {
        let mut part = self.part(dir).lock();
        let unused = || InUse { users: 0, is_taken: false, freed: None };
        part.entry(dir).or_insert_with(unused).users += 1;
        // Nobody removes the entry while there are users.
        while let Some(in_use) = part.get_mut(&dir) {
            if !in_use.is_taken {
                in_use.is_taken = true;
                break;
            }
            let freed = Arc::clone(in_use.freed.get_or_insert_default());
            freed.wait(&mut part);
        }
        Turn { order: self, dir }
    }

    /// The turn of two, always taken in the same order.
    pub(super) fn of_two(&self, a: Ino, b: Ino) -> (Turn<'_>, Option<Turn<'_>>) {
        let first = self.of(a.min(b));
        (first, (a != b).then(|| self.of(a.max(b))))
    }
}

/// A change under way: while it exists nobody gets a lease on what is changed.
pub(super) struct Changing<'a> {
    sessions: &'a Sessions,
    subjects: Vec<Subject>,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.sessions.end_change(&self.subjects);
    }
}

impl Sessions {
    /// Begins a change by `session`: when this returns, nobody else believes anything about the
    /// subjects. A client that does not answer a recall within its lease is ended.
    pub(super) fn change(&self, session: &Session, subjects: &[Subject]) -> Changing<'_> {
        self.begin_change(Some(session.id), subjects);
        Changing { sessions: self, subjects: subjects.to_vec() }
    }

    /// The same for a session that may be unknown here; to be followed by `end_change`.
    pub(super) fn begin_change(&self, by: Option<SessionId>, subjects: &[Subject]) {
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

    /// What was changed may be believed again.
    pub(super) fn end_change(&self, subjects: &[Subject]) {
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
            let Some(holder) = self.table.lock().sessions.get(id).cloned() else { continue };
            self.recalls.fetch_add(subjects.len() as u64, Relaxed);
            let serial = holder.channel.recall(subjects);
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
            if holder.channel.wait(serial, look) {
                return;
            }
            // Its answer may wait to be read.
            until += held_up(look, Instant::now());
            if holder.is_dead() {
                return self.detach(holder, DEAD);
            }
            if Instant::now() >= until {
                return self.end(holder, "it did not answer a recall");
            }
        }
    }

    /// A name of `child` was removed or replaced: kernels of others that know the inode are to let it
    /// go, if nobody uses it there. Not waited for.
    pub(super) fn name_gone(&self, by: Option<SessionId>, child: Ino, dir: Ino, name: &[u8]) {
        let others: Vec<_> = {
            let table = self.table.lock();
            if by.is_some() && table.sessions.len() < 2 {
                return;
            }
            table.sessions.values().filter(|other| Some(other.id) != by).cloned().collect()
        };
        for other in others {
            if other.held.lock().contains_key(&child) {
                other.channel.gone(dir, name);
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
        let hears = |other: &&Arc<Session>| other.id != by && other.hears_soon();
        let others: Vec<_> = self.table.lock().sessions.values().filter(hears).cloned().collect();
        let until = Instant::now() + MOVED_MAX;
        let serials: Vec<_> = others.iter().map(|other| other.channel.moved(names)).collect();
        for (other, serial) in others.iter().zip(serials) {
            other.channel.wait(serial, until);
        }
    }

    /// Bytes of a file were cut off or punched out by `by`. A kernel that has pages of it mapped keeps them
    /// without any lease, and would show what is not there any more instead of SIGBUS: those of others
    /// that know the inode are to drop its pages ([`Sessions::tell_bytes_gone`]).
    pub(super) fn bytes_gone(&self, by: SessionId, ino: Ino) {
        if self.table.lock().sessions.len() < 2 {
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
        let sessions: Vec<_> = self.table.lock().sessions.values().cloned().collect();
        for session in sessions {
            let known = {
                let held = session.held.lock();
                let theirs = gone.iter().filter(|(_, by)| **by != Some(session.id));
                let known = theirs.filter(|(ino, _)| held.contains_key(ino));
                known.map(|(ino, _)| Subject::Attrs(*ino)).collect::<Vec<_>>()
            };
            if !known.is_empty() {
                session.channel.recall(&known);
            }
        }
    }

    /// Something was changed by the server itself: those who believe otherwise are told.
    fn changed_here(&self, subjects: &[Subject]) {
        for subject in subjects {
            let lost = self.leases.begin(*subject, None);
            for id in lost {
                let holder = self.table.lock().sessions.get(&id).cloned();
                if let Some(holder) = holder {
                    self.recalls.fetch_add(1, Relaxed);
                    holder.channel.recall(&[*subject]);
                }
            }
            self.leases.end(*subject);
        }
    }
}

impl Sessions {
    /// Waits until each client has done all that it was told before; one that does not within its
    /// lease is ended, as with any recall.
    fn wait_heard(&self) {
        let until = Instant::now() + self.lease;
        let sessions: Vec<_> = self.table.lock().sessions.values().cloned().collect();
        let told: Vec<_> = sessions.iter().map(|session| session.channel.last_recall()).collect();
        for (session, serial) in sessions.iter().zip(told) {
            self.wait_for(session, serial, until);
        }
    }

    /// The same for at most so long: nobody is ended for it.
    fn wait_heard_within(&self, longest: Duration) {
        let until = Instant::now() + longest;
        let sessions: Vec<_> = self.table.lock().sessions.values().cloned().collect();
        for session in sessions {
            session.channel.wait(session.channel.last_recall(), until);
        }
    }
}

/// Hears of what staging and drains change, after it is made. It is waited for at the end of a plan, and where who asks about a
/// cache is told that all is on the PFS.
pub(super) struct ServerChanges(pub(super) Weak<Sessions>);

impl Notify for ServerChanges {
    fn entry_changed(&self, parent: Ino, _name: &[u8]) {
        if let Some(sessions) = self.0.upgrade() {
            sessions.changed_here(&[Subject::Names(parent), Subject::Attrs(parent)]);
        }
    }

    fn inode_changed(&self, ino: Ino) {
        if let Some(sessions) = self.0.upgrade() {
            sessions.changed_here(&[Subject::Attrs(ino)]);
        }
    }

    fn wait_heard(&self) {
        if let Some(sessions) = self.0.upgrade() {
            sessions.wait_heard();
        }
    }

    fn wait_heard_within(&self, longest: Duration) {
        if let Some(sessions) = self.0.upgrade() {
            sessions.wait_heard_within(longest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_directory_waits_for_itself_only() {
        let order = Order::new();
        let held = order.of(Ino(7));
        // All others of this server go on, whatever their numbers, and those of other servers.
        (8..2_000).for_each(|dir| drop(order.of(Ino(dir))));
        (0..2_000).for_each(|dir| drop(order.of(Ino((1 << 48) | dir))));
        drop(order.of_two(Ino(9), Ino(9)));
        let (told, heard) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _turns = order.of_two(Ino(8), Ino(7));
                told.send(()).expect("the test hears");
            });
            assert!(heard.recv_timeout(Duration::from_millis(50)).is_err(), "7 is taken");
            drop(held);
            heard.recv().expect("7 was let go");
        });
        assert!(order.parts.iter().all(|part| part.lock().is_empty()), "nothing is left");
    }
}
