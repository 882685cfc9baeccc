//! References to inodes whose names are at other shards.
//!
//! A name's shard answers `Elsewhere` without a reference; until the client takes one here, nothing
//! keeps the inode but its names. So an inode without names is not given: its name has gone
//! meanwhile, and the client looks it up again.

use crate::session::calls::{At, Reply};
use forebay_proto::api::ops::*;
use forebay_proto::net::Answer;
use forebay_proto::net::answer::KeptAttr;
use forebay_proto::net::call::Taking;
use forebay_proto::{Attr, Errno, Ino, Result};

/// Most references taken at once: more than the longest listing has.
const MAX_TAKEN: usize = 4096;

impl At<'_> {
    /// A reference to an inode that has a name.
    pub(super) fn take(&self, ino: Ino, after: Taking) -> Reply {
        match after {
            Taking::Name => self.take_named(ino).map(|kept| entry(kept, false)).into(),
            Taking::Directory => self.take_directory(ino).into(),
            Taking::File { want_local } => {
                self.take_open(ino, want_local).unwrap_or_else(Reply::failed)
            }
        }
    }

    /// The same for the entries of a listing; nothing for those that have gone.
    pub(super) fn take_all(&self, all: &[Ino]) -> Answer {
        let taken = all.iter().take(MAX_TAKEN).map(|ino| self.take_named(*ino).ok());
        Answer::Taken(taken.collect())
    }

    fn take_named(&self, ino: Ino) -> Result<KeptAttr> {
        let attr = self.reference(ino)?;
        Ok(self.sessions.keep(self.session, attr))
    }

    fn take_directory(&self, ino: Ino) -> Result<Answer> {
        let kept = self.take_named(ino)?;
        Ok(self.empty_dir(entry(kept, false)))
    }

    fn take_open(&self, ino: Ino, want_local: bool) -> Result<Reply> {
        let attr = self.reference(ino)?;
        if let Some(layout) = self.striped(ino) {
            let open = self.opened_striped(ino, layout, true);
            let attr = self.sessions.keep(self.session, attr);
            return Ok(Reply::of(Answer::CreatedStriped { attr, keep_names: false, open }));
        }
        let _turn = self.sessions.sizes.shared(ino);
        let want_local = want_local && self.local;
        let flags = libc::O_RDWR as u32;
        let opened = match self.namespace().open(&self.caller, ino, flags, false, want_local) {
            Ok(opened) => opened,
            Err(errno) => {
                self.sessions.give_back(self.session, ino, 1);
                return Err(errno);
            }
        };
        if opened.local.is_some() {
            self.sessions.leases.opened_locally(ino, self.session.id());
        }
        let answer = Answer::Created {
            attr: self.sessions.keep(self.session, attr),
            keep_names: false,
            local: opened.local.is_some(),
        };
        Ok(Reply::with(answer, opened.local))
    }

    fn reference(&self, ino: Ino) -> Result<Attr> {
        if !self.namespace().names().take_reference(ino) {
            return Err(Errno::ESTALE);
        }
        self.sessions.took(self.session, ino);
        match self.namespace().attrs().of_entry(ino) {
            Ok(attr) if attr.nlink > 0 => Ok(attr),
            other => {
                self.sessions.give_back(self.session, ino, 1);
                Err(other.err().unwrap_or(Errno::ESTALE))
            }
        }
    }
}

/// An answer about an inode whose name is elsewhere: nothing is said of names.
fn entry(attr: KeptAttr, empty: bool) -> Answer {
    Answer::Entry { attr, keep_names: false, empty }
}
