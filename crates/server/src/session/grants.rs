//! What a session is given with its answers: references to inodes, leases on names and attributes, objects that its kernel
//! writes itself.
//!
//! Invariants: no lease without a reference, as only the session's end would end it; attributes that go along with a lease are
//! read after the lease was entered; what is given to a session that ends meanwhile is given back here.
//!
//! Called by all who answer calls.

use super::Session;
use super::grace::Grace;
use super::inodes::Inodes;
use forebay_lease::leases::{Leases, Subject};
use forebay_proto::attr::Attr;
use forebay_proto::net::Answer;
use forebay_proto::net::answer::KeptAttr;
use forebay_proto::net::session::SessionId;
use forebay_proto::{Ino, Result};
use std::sync::Arc;

/// Gives and takes back.
pub(super) struct Grants {
    inodes: Arc<dyn Inodes>,
    leases: Arc<Leases>,
    grace: Arc<Grace>,
}

impl Grants {
    pub(super) fn new(inodes: Arc<dyn Inodes>, leases: Arc<Leases>, grace: Arc<Grace>) -> Grants {
        Grants { inodes, leases, grace }
    }

    /// Gives a lease, if the session may have one: true if it had it before.
    pub(super) fn lease(&self, session: &Session, subject: Subject) -> Option<bool> {
        let ino = match subject {
            Subject::Names(ino) | Subject::Attrs(ino) => ino,
        };
        // Without a reference there is no end to it but the session's.
        let held = ino == Ino::ROOT || session.holds(ino);
        if !held || !session.channel().is_connected() {
            return None;
        }
        // A mount that is not back yet may be changing the file without asking.
        if matches!(subject, Subject::Attrs(_)) && !self.grace.is_over() {
            return None;
        }
        self.leases.grant(subject, session.id())
    }

    /// Whether the session may keep what a directory's names lead to.
    pub(super) fn keep_names(&self, session: &Session, dir: Ino) -> bool {
        self.lease(session, Subject::Names(dir)).is_some()
    }

    /// Attributes with a lease on them, if there can be one. They are read again after a new
    /// lease: they may have changed before it.
    pub(super) fn keep(&self, session: &Session, attr: Attr) -> KeptAttr {
        if !attr.is_size_known() {
            // Not to be asked for: a server is away.
            return KeptAttr { attr, keep: false };
        }
        // A removed file is to be let go of as soon as it is closed.
        let lease = match attr.nlink {
            0 => None,
            _ => self.lease(session, Subject::Attrs(attr.ino)),
        };
        match lease {
            None => KeptAttr { attr, keep: false },
            Some(true) => KeptAttr { attr, keep: true },
            Some(false) => match self.inodes.attributes_now(attr.ino) {
                Ok(attr) => KeptAttr { attr, keep: attr.nlink > 0 },
                Err(_) => KeptAttr { attr, keep: false },
            },
        }
    }

    /// The answer with what a name leads to.
    pub(super) fn entry(&self, session: &Session, attr: Attr, keep_names: bool) -> Answer {
        Answer::Entry { attr: self.keep(session, attr), keep_names, empty: false }
    }

    /// The answer to a call for attributes.
    pub(super) fn getattr(&self, session: &Session, ino: Ino) -> Result<Answer> {
        // First the lease, then the reading: once is enough.
        let keep = self.lease(session, Subject::Attrs(ino)).is_some();
        let attr = self.inodes.attributes_now(ino)?;
        Ok(Answer::Attr(KeptAttr { attr, keep: keep && attr.nlink > 0 }))
    }

    /// The namespace gave a reference: it is the session's from now on.
    pub(super) fn took(&self, session: &Session, ino: Ino) {
        session.took(ino);
        if session.is_over() {
            // It ended just now and has given back what it held, perhaps before this.
            let (count, _) = session.gave_back(ino, u64::MAX);
            self.inodes.forget(ino, count);
        }
    }

    /// Gives a session a reference to an inode that is known by its number; false if there is none.
    pub(super) fn take_reference(&self, session: &Session, ino: Ino) -> bool {
        let is_there = self.inodes.take_reference(ino);
        if is_there {
            self.took(session, ino);
        }
        is_there
    }

    /// A session gives references back: no more than it has.
    pub(super) fn give_back(&self, session: &Session, ino: Ino, count: u64) {
        let (given, none_left) = session.gave_back(ino, count);
        if none_left {
            self.leases.forgotten(ino, session.id());
        }
        if given > 0 {
            self.inodes.forget(ino, given);
        }
    }

    /// A session may write a file without a request from now on: nobody else may believe its attributes.
    pub(super) fn opened_locally(&self, session: &Session, ino: Ino) {
        self.leases.opened_locally(ino, session.id());
    }

    /// So many of these opens are over.
    pub(super) fn closed_locally(&self, session: &Session, ino: Ino, count: u64) {
        self.leases.closed_locally(ino, session.id(), count);
    }

    /// True if somebody may write a file without a request.
    pub(super) fn is_open_locally(&self, ino: Ino) -> bool {
        self.leases.is_open_locally(ino)
    }

    /// Who may.
    pub(super) fn writers(&self, ino: Ino) -> Vec<SessionId> {
        self.leases.writers(ino)
    }
}
