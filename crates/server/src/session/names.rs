//! What calls on names are for all types of buffer: listings, and what a rename tells others.
//!
//! Called by the types: `scratch`, `cached`.

use super::Session;
use super::changes::Changes;
use super::grants::Grants;
use forebay_lease::leases::Subject;
use forebay_proto::api::ops::*;
use forebay_proto::api::rename_flags;
use forebay_proto::attr::FileKind;
use forebay_proto::net::Answer;
use forebay_proto::net::answer::{KeptAttr, ListedEntry};
use forebay_proto::net::call::MAX_LISTING_BYTES;
use forebay_proto::{Cookie, Ino, Result};

/// Bytes of an entry in a listing besides its name, with attributes, at most.
const ENTRY_BYTES: usize = 160;

/// A name in a directory.
type Name<'n> = (Ino, &'n [u8]);
/// What a name leads to, if there is one.
type Target = Option<(Ino, FileKind)>;

/// Which part of a directory is asked for, as in `Call::List`.
pub(super) struct Listing {
    pub(super) dir: Ino,
    pub(super) after: Cookie,
    pub(super) limit: Cookie,
    pub(super) max_bytes: u32,
    pub(super) plus: bool,
}

impl Listing {
    /// The answer: names, and of each a reference and attributes, if they are asked for.
    pub(super) fn answer(
        &self,
        fs: &dyn FileSystem,
        grants: &Grants,
        session: &Session,
    ) -> Result<Answer> {
        let &Listing { dir, after, limit, plus, .. } = self;
        let max_bytes = self.max_bytes.min(MAX_LISTING_BYTES) as usize;
        let keep_names = grants.keep_names(session, dir);
        let mut entries: Vec<ListedEntry> = Vec::new();
        let mut bytes = 0;
        let mut sink = |entry: &forebay_proto::DirEntry<'_>| {
            bytes += entry.name.len() + ENTRY_BYTES;
            if bytes > max_bytes && !entries.is_empty() {
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
        match plus {
            true => fs.readdir_plus(dir, after, limit, &mut sink)?,
            false => fs.readdir(dir, after, limit, &mut sink)?,
        }
        for entry in &mut entries {
            if let Some(kept) = &mut entry.attr {
                grants.took(session, entry.ino);
                *kept = grants.keep(session, kept.attr);
            }
        }
        Ok(Answer::Listing { entries, keep_names })
    }
}

/// After a rename of what `from` led to, onto a name that led to what `to` says: nobody believes in what was replaced.
/// Returns the names that directories had which are in another one now.
pub(super) fn after_rename<'n>(
    changes: &Changes,
    session: &Session,
    (from, moved): (Name<'n>, Target),
    (to, replaced): (Name<'n>, Target),
    flags: u32,
) -> Vec<Name<'n>> {
    let exchange = flags & rename_flags::EXCHANGE != 0;
    if let Some((replaced, _)) = replaced.filter(|_| !exchange) {
        changes.name_gone(Some(session.id()), replaced, to.0, to.1);
    }
    dirs_that_left(from, moved, to, replaced.filter(|_| exchange))
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
