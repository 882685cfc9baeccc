//! What calls on names are for all types of buffer: leases that go along with an answer, and listings.
//!
//! Called by the types: `scratch`, `cached`.

use super::calls::At;
use forebay_lease::leases::Subject;
use forebay_proto::api::rename_flags;
use forebay_proto::attr::{Attr, FileKind};
use forebay_proto::net::Answer;
use forebay_proto::net::answer::{KeptAttr, ListedEntry};
use forebay_proto::{Cookie, Ino, Result};

/// Bytes of an entry in a listing besides its name, with attributes, at most.
const ENTRY_BYTES: usize = 160;

/// A name in a directory.
type Name<'n> = (Ino, &'n [u8]);
/// What a name leads to, if there is one.
type Target = Option<(Ino, FileKind)>;

impl At<'_> {
    pub(super) fn keep_names(&self, dir: Ino) -> bool {
        self.sessions.grant(self.session, Subject::Names(dir)).is_some()
    }

    pub(super) fn entry(&self, attr: Attr, keep_names: bool) -> Answer {
        Answer::Entry { attr: self.sessions.keep(self.session, attr), keep_names, empty: false }
    }

    pub(super) fn list(
        &self,
        dir: Ino,
        after: Cookie,
        limit: Cookie,
        max_bytes: u32,
        plus: bool,
    ) -> Result<Answer> {
        let keep_names = self.keep_names(dir);
        let mut entries: Vec<ListedEntry> = Vec::new();
        let mut bytes = 0;
        let mut sink = |entry: &forebay_proto::DirEntry<'_>| {
            bytes += entry.name.len() + ENTRY_BYTES;
            if bytes > max_bytes as usize && !entries.is_empty() {
                return false;
            }
            entries.push(ListedEntry {
                cookie: entry.cookie,
                ino: entry.ino,
                kind: entry.kind,
                name: entry.name.to_vec(),
                attr: entry.attr.map(|attr| KeptAttr { attr: *attr, keep: false }),
            });
            true
        };
        let fs = self.sessions.buffer.files();
        match plus {
            true => fs.readdir_plus(dir, after, limit, &mut sink)?,
            false => fs.readdir(dir, after, limit, &mut sink)?,
        }
        for entry in &mut entries {
            if let Some(kept) = &mut entry.attr {
                self.sessions.took(self.session, entry.ino);
                *kept = self.sessions.keep(self.session, kept.attr);
            }
        }
        Ok(Answer::Listing { entries, keep_names })
    }

    /// After a rename of what `from` led to, onto a name that led to what `to` says: nobody believes in what was replaced.
    /// Returns the names that directories had which are in another one now.
    pub(super) fn after_rename<'n>(
        &self,
        (from, moved): (Name<'n>, Target),
        (to, replaced): (Name<'n>, Target),
        flags: u32,
    ) -> Vec<Name<'n>> {
        let exchange = flags & rename_flags::EXCHANGE != 0;
        if let Some((replaced, _)) = replaced.filter(|_| !exchange) {
            self.sessions.name_gone(Some(self.session.id()), replaced, to.0, to.1);
        }
        dirs_that_left(from, moved, to, replaced.filter(|_| exchange))
    }
}

/// What a rename from one directory to another changes for sure; what is moved and replaced comes on top.
pub(super) fn subjects_of_rename(from: Ino, to: Ino) -> Vec<Subject> {
    vec![Subject::Names(from), Subject::Attrs(from), Subject::Names(to), Subject::Attrs(to)]
}

/// Of what a rename moved from `from`, and of what it exchanged from `to`: the names of directories that are in another
/// directory now.
fn dirs_that_left<'n>(
    from: Name<'n>,
    moved: Target,
    to: Name<'n>,
    exchanged: Target,
) -> Vec<Name<'n>> {
    let is_dir = |what: Target| what.is_some_and(|(_, kind)| kind == FileKind::Dir);
    let left = [(from, moved), (to, exchanged)].into_iter().filter(|(_, what)| is_dir(*what));
    left.filter(|_| from.0 != to.0).map(|(name, _)| name).collect()
}
