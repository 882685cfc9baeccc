//! Who may believe what without asking: names of directories and attributes of inodes.
//!
//! A session holds a lease on the names of a directory, or on the attributes of an inode, from
//! the answer that gave it until it is recalled, given up, or the session ends. Before something
//! changes, everybody else who holds a lease on it has lost it ([`Leases::begin`]), and nobody
//! gets one until the change is made ([`Leases::end`]). Who makes the change keeps its own: its
//! kernel made the change in its caches itself.
//!
//! Invariants
//! * A lease is entered before what it is about is read; so a change either finds it and recalls
//!   it, or was made before the reading.
//! * Nothing here waits: recalling and waiting is done by the caller, outside of all locks.
//! * Tables are bounded ([`MAX_LEASES`]); what does not fit is not leased.
//! * What was recalled is not leased again for a moment ([`QUIET`]): things that several nodes
//!   change in turn are cheaper asked than recalled.

use forebay_proto::Ino;
use forebay_proto::net::session::SessionId;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::sync::{AtomicUsize, Mutex};

/// Most leases of one buffer.
pub const MAX_LEASES: usize = 1 << 20;
/// Pause after a recall.
pub const QUIET: Duration = Duration::from_millis(500);
/// Parts with a lock each.
const PARTS: usize = 64;

/// What a lease is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Subject {
    /// Names, present and absent, of a directory.
    Names(Ino),
    /// Attributes, ACLs and pages of an inode.
    Attrs(Ino),
}

impl Subject {
    fn ino(self) -> Ino {
        match self {
            Subject::Names(ino) | Subject::Attrs(ino) => ino,
        }
    }
}

#[derive(Default)]
struct Entry {
    holders: Vec<SessionId>,
    /// Changes being made now.
    changes: u32,
    /// Sessions whose kernel has the object itself open, and how often: it may be written at any
    /// moment without a request.
    local: Vec<(SessionId, u64)>,
    quiet_until: Option<Instant>,
}

impl Entry {
    fn is_idle(&self) -> bool {
        self.holders.is_empty()
            && self.changes == 0
            && self.local.is_empty()
            // The clock is asked where it matters only: each call comes by here several times.
            && self.quiet_until.is_none_or(|until| until <= Instant::now())
    }
}

/// The leases of one buffer.
pub struct Leases {
    parts: [Mutex<HashMap<Subject, Entry, foldhash::fast::RandomState>>; PARTS],
    count: AtomicUsize,
}

impl Default for Leases {
    fn default() -> Leases {
        Leases::new()
    }
}

impl Leases {
    /// Nobody believes anything.
    pub fn new() -> Leases {
        Leases { parts: std::array::from_fn(|_| Mutex::default()), count: AtomicUsize::new(0) }
    }

    fn part(
        &self,
        subject: Subject,
    ) -> &Mutex<HashMap<Subject, Entry, foldhash::fast::RandomState>> {
        &self.parts[subject.ino().0 as usize % PARTS]
    }

    /// Gives `session` a lease, if it may have one. To be called before what it is about is read.
    /// `Some(true)`: it had it already.
    pub fn grant(&self, subject: Subject, session: SessionId) -> Option<bool> {
        let mut part = self.part(subject).lock();
        let entry = part.entry(subject).or_default();
        if entry.holders.contains(&session) {
            return (entry.changes == 0).then_some(true);
        }
        let others_write = entry.local.iter().any(|(holder, _)| *holder != session);
        let quiet = entry.quiet_until.is_some_and(|until| Instant::now() < until);
        if entry.changes > 0
            || others_write
            || quiet
            || self.count.load(Ordering::Relaxed) >= MAX_LEASES
        {
            let idle = entry.is_idle();
            if idle {
                part.remove(&subject);
            }
            return None;
        }
        entry.holders.push(session);
        self.count.fetch_add(1, Ordering::Relaxed);
        Some(false)
    }

    /// A change of `subject` by `session` begins: no lease on it is given until [`Leases::end`].
    /// Returns who else held one and has lost it: they must be told before the change is made.
    pub fn begin(&self, subject: Subject, session: Option<SessionId>) -> Vec<SessionId> {
        let mut part = self.part(subject).lock();
        let entry = part.entry(subject).or_default();
        entry.changes += 1;
        if entry.holders.iter().all(|holder| Some(*holder) == session) {
            return Vec::new();
        }
        let (keep, lost): (Vec<_>, Vec<_>) =
            entry.holders.drain(..).partition(|holder| Some(*holder) == session);
        entry.holders = keep;
        entry.quiet_until = Some(Instant::now() + QUIET);
        self.count.fetch_sub(lost.len(), Ordering::Relaxed);
        lost
    }

    /// The change is made, or given up.
    pub fn end(&self, subject: Subject) {
        let mut part = self.part(subject).lock();
        let Some(entry) = part.get_mut(&subject) else { return };
        entry.changes = entry.changes.saturating_sub(1);
        if entry.is_idle() {
            part.remove(&subject);
        }
    }

    /// `session`'s kernel has the object of `ino` open itself, once more.
    pub fn opened_locally(&self, ino: Ino, session: SessionId) {
        let subject = Subject::Attrs(ino);
        let mut part = self.part(subject).lock();
        let entry = part.entry(subject).or_default();
        match entry.local.iter_mut().find(|(holder, _)| *holder == session) {
            Some((_, count)) => *count += 1,
            None => entry.local.push((session, 1)),
        }
    }

    /// True if some mount's kernel has the object open itself.
    pub fn is_open_locally(&self, ino: Ino) -> bool {
        let subject = Subject::Attrs(ino);
        self.part(subject).lock().get(&subject).is_some_and(|entry| !entry.local.is_empty())
    }

    /// Opens by which kernels have objects themselves, of all sessions, by inode.
    pub fn local_opens(&self) -> BTreeMap<Ino, u64> {
        let mut opens = BTreeMap::new();
        for part in &self.parts {
            for (subject, entry) in part.lock().iter().filter(|(_, entry)| !entry.local.is_empty())
            {
                let count: u64 = entry.local.iter().map(|(_, count)| count).sum();
                *opens.entry(subject.ino()).or_insert(0) += count;
            }
        }
        opens
    }

    /// Sessions that may change the file without asking.
    pub fn writers(&self, ino: Ino) -> Vec<SessionId> {
        let subject = Subject::Attrs(ino);
        let part = self.part(subject).lock();
        part.get(&subject).map_or_else(Vec::new, |e| e.local.iter().map(|(id, _)| *id).collect())
    }

    /// `count` such opens are over.
    pub fn closed_locally(&self, ino: Ino, session: SessionId, count: u64) {
        let subject = Subject::Attrs(ino);
        let mut part = self.part(subject).lock();
        let Some(entry) = part.get_mut(&subject) else { return };
        if let Some(open) = entry.local.iter_mut().find(|(holder, _)| *holder == session) {
            open.1 = open.1.saturating_sub(count);
        }
        entry.local.retain(|(_, count)| *count > 0);
        if entry.is_idle() {
            part.remove(&subject);
        }
    }

    /// `session` has no reference to `ino` any more, so it holds nothing about it.
    pub fn forgotten(&self, ino: Ino, session: SessionId) {
        for subject in [Subject::Names(ino), Subject::Attrs(ino)] {
            let mut part = self.part(subject).lock();
            let Some(entry) = part.get_mut(&subject) else { continue };
            self.take_from(entry, session);
            if entry.is_idle() {
                part.remove(&subject);
            }
        }
    }

    /// `session` is over.
    pub fn session_over(&self, session: SessionId) {
        for part in &self.parts {
            part.lock().retain(|_, entry| {
                self.take_from(entry, session);
                entry.local.retain(|(holder, _)| *holder != session);
                !entry.is_idle()
            });
        }
    }

    fn take_from(&self, entry: &mut Entry, session: SessionId) {
        let before = entry.holders.len();
        entry.holders.retain(|holder| *holder != session);
        self.count.fetch_sub(before - entry.holders.len(), Ordering::Relaxed);
    }

    /// Leases given out now.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);
    const DIR: Subject = Subject::Names(Ino(5));
    const FILE: Subject = Subject::Attrs(Ino(6));

    #[test]
    fn a_change_takes_the_leases_of_others_and_gives_none_meanwhile() {
        let leases = Leases::new();
        assert_eq!(leases.grant(DIR, A), Some(false));
        assert_eq!(leases.grant(DIR, B), Some(false));
        assert_eq!(leases.grant(DIR, B), Some(true));
        assert_eq!(leases.begin(DIR, Some(A)), [B]);
        assert_eq!(leases.grant(DIR, B), None, "a change is under way");
        leases.end(DIR);
        assert_eq!(leases.grant(DIR, A), Some(true), "its own it keeps");
        assert_eq!(leases.grant(DIR, B), None, "recalled a moment ago");
        std::thread::sleep(QUIET + Duration::from_millis(20));
        assert_eq!(leases.grant(DIR, B), Some(false));
        assert_eq!(leases.begin(DIR, None).len(), 2, "the server itself changes it");
        leases.end(DIR);
        assert_eq!(leases.count(), 0);
    }

    #[test]
    fn changes_of_ones_own_recall_nobody_and_leave_nothing_behind() {
        let leases = Leases::new();
        assert_eq!(leases.grant(DIR, A), Some(false));
        assert!(leases.begin(DIR, Some(A)).is_empty());
        leases.end(DIR);
        assert_eq!(leases.grant(DIR, A), Some(true));
        leases.forgotten(Ino(5), A);
        assert!(leases.parts.iter().all(|part| part.lock().is_empty()));
    }

    #[test]
    fn a_file_that_a_kernel_writes_itself_is_leased_to_nobody_else() {
        let leases = Leases::new();
        leases.opened_locally(Ino(6), A);
        leases.opened_locally(Ino(6), A);
        assert_eq!(leases.grant(FILE, B), None);
        assert_eq!(leases.grant(FILE, A), Some(false), "it hears of its own writes");
        assert_eq!(leases.local_opens(), BTreeMap::from([(Ino(6), 2)]));
        leases.closed_locally(Ino(6), A, 1);
        assert_eq!(leases.grant(FILE, B), None);
        leases.closed_locally(Ino(6), A, 7);
        assert!(leases.local_opens().is_empty());
        assert_eq!(leases.grant(FILE, B), Some(false));
        leases.session_over(A);
        leases.session_over(B);
        assert_eq!(leases.count(), 0);
    }
}
