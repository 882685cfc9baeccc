//! What servers count for the client of a [`World`]: references, and opens by descriptor.
//!
//! The client counts what the answers gave that it heard, and gives back as a mount does: in the session that was told that it
//! holds it, or not at all.

use super::World;
use forebay_proto::api::ops::*;
use forebay_proto::net::call::Taking;
use forebay_proto::net::{Answer, Attempt, Call};
use forebay_proto::{Cookie, Ino, Result};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// Counts by inode.
type Counts = BTreeMap<Ino, u64>;

/// Those of the inodes of one shard.
pub(super) fn of_shard(counts: &RefCell<Counts>, shard: u16) -> Counts {
    let counts = counts.borrow();
    counts.iter().filter(|(ino, _)| ino.shard().0 == shard).map(|(ino, n)| (*ino, *n)).collect()
}

fn one_more(counts: &RefCell<Counts>, ino: Ino) {
    *counts.borrow_mut().entry(ino).or_default() += 1;
}

fn one_less(counts: &RefCell<Counts>, ino: Ino) {
    let mut counts = counts.borrow_mut();
    let count = counts.get_mut(&ino).unwrap();
    *count -= 1;
    if *count == 0 {
        counts.remove(&ino);
    }
}

impl World {
    /// The number of the next attempt of a call at a shard.
    pub(super) fn next_attempt(&self, shard: u16) -> Attempt {
        let mut attempts = self.attempts.borrow_mut();
        let attempt = &mut attempts[usize::from(shard)];
        attempt.number += 1;
        *attempt
    }

    /// The answer to the last attempt is here.
    pub(super) fn heard(&self, shard: u16) {
        let mut attempts = self.attempts.borrow_mut();
        let attempt = &mut attempts[usize::from(shard)];
        attempt.heard = attempt.number;
    }

    /// Counts what an answer gave.
    pub(super) fn note(&self, answer: Answer) -> Answer {
        let took = |ino| one_more(&self.held, ino);
        match &answer {
            Answer::Entry { attr, .. } | Answer::Created { attr, .. } => took(attr.attr.ino),
            Answer::Listing { entries, .. } => {
                entries.iter().filter(|entry| entry.attr.is_some()).for_each(|e| took(e.ino));
            }
            Answer::Taken(all) => all.iter().flatten().for_each(|kept| took(kept.attr.ino)),
            _ => {}
        }
        answer
    }

    /// Looks a name up, and holds what it leads to.
    pub fn look(&self, dir: Ino, name: &str) -> Result<Ino> {
        let call = Call::Lookup { parent: dir, name: name.as_bytes() };
        self.given(self.call(dir.shard().0, call), Taking::Name)
    }

    /// Lists a directory with attributes, and holds what is in it.
    pub fn list(&self, dir: Ino) {
        let (shard, after) = (dir.shard(), Cookie::DOTDOT);
        let limit = self.namespace(shard.0).dir_limit(dir).unwrap();
        let call = Call::List { ino: dir, after, limit, max_bytes: 64 << 10, plus: true };
        let Answer::Listing { entries, .. } = self.call(shard.0, call) else { return };
        let mut elsewhere: BTreeMap<u16, Vec<Ino>> = BTreeMap::new();
        for entry in entries.iter().filter(|entry| entry.ino.shard() != shard) {
            elsewhere.entry(entry.ino.shard().0).or_default().push(entry.ino);
        }
        for (shard, inos) in elsewhere {
            self.call(shard, Call::TakeAll(inos));
        }
    }

    /// Opens a file by descriptor; false if that failed.
    pub fn open_locally(&self, ino: Ino) -> bool {
        let open_flags = libc::O_RDWR as u32;
        let call = Call::Open { ino, open_flags, kill_suid: false, want_local: true };
        let is_open = matches!(self.call(ino.shard().0, call), Answer::Opened { local: true });
        if is_open {
            one_more(&self.opens, ino);
        }
        is_open
    }

    /// What the client holds, and what of it is open.
    pub fn held(&self) -> (Vec<Ino>, BTreeSet<Ino>) {
        let held = self.held.borrow().keys().copied().collect();
        (held, self.opens.borrow().keys().copied().collect())
    }

    /// Gives one reference back.
    pub fn forget(&self, ino: Ino) {
        one_less(&self.held, ino);
        self.give_back(ino, &Call::Forget(vec![(ino, 1)]));
    }

    /// Closes a file that is open by descriptor.
    pub fn close_locally(&self, ino: Ino) {
        one_less(&self.opens, ino);
        self.give_back(ino, &Call::Release(vec![(ino, 1)]));
    }

    fn give_back(&self, ino: Ino, call: &Call<'_>) {
        let answer = self.call_until_answered(ino.shard().0, call, &[], true);
        assert_eq!(answer, Answer::Done, "{call:?}");
    }

    /// Each server counts for the client what it holds. To be called while all messages arrive.
    pub fn check_counts(&self) {
        for shard in self.there() {
            // With it the server hears which answers were not heard.
            assert_eq!(self.call(shard, Call::Renew), Answer::Done);
            let (sessions, session) = {
                let servers = self.net.servers.read();
                (servers[&shard].sessions.clone(), servers[&shard].session.clone())
            };
            let held = of_shard(&self.held, shard);
            assert_eq!(session.references(), held, "shard {shard}");
            let opens = of_shard(&self.opens, shard);
            assert_eq!(sessions.local_opens(), opens, "shard {shard}");
        }
    }
}
