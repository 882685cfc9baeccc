//! Calls on names: lookup, creation, removal, rename, links, listings.
//!
//! Every change takes its directory's turn, finds which inodes it is about, recalls what others
//! believe of them, and is then made.

use super::calls::{At, Reply};
use super::leases::Subject;
use crate::namespace::shards::{Patience, Where};
use crate::namespace::{Named, NewInode};
use forebay_proto::api::{CreateArgs, FileSystem, rename_flags};
use forebay_proto::attr::{Attr, FileKind};
use forebay_proto::net::answer::{KeptAttr, ListedEntry};
use forebay_proto::net::call::MAX_LISTING_BYTES;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Cookie, Errno, Ino, Result};
use std::sync::Arc;

/// Bytes of an entry in a listing besides its name, with attributes, at most.
const ENTRY_BYTES: usize = 160;

impl At<'_> {
    /// `None` if it is not a call on names. What a change over shards has locked is waited for
    /// without any lock: it may need ours.
    pub(super) fn names_call(&self, call: &Call<'_>) -> Option<Reply> {
        let mut patience = Patience::new();
        loop {
            let reply = self.names_call_once(call)?;
            let Answer::Failed(errno) = reply.answer else { return Some(reply) };
            if Errno(errno) == Errno::ERESTART {
                if let Err(errno) = self.namespace().wait_for_shards(&mut patience) {
                    return Some(Reply::failed(errno));
                }
            } else if !self.namespace().wait_for_server(Errno(errno), &mut patience) {
                return Some(reply);
            }
        }
    }

    fn names_call_once(&self, call: &Call<'_>) -> Option<Reply> {
        let ns = self.namespace();
        let who = &self.caller;
        let result = match *call {
            Call::Lookup { parent, name } => self.lookup(parent, name),
            Call::Mknod { parent, name, kind, args, rdev, near } => {
                let place = Where::Placed(near);
                let new = NewInode { rdev, place, ..NewInode::of(kind, args) };
                self.make(parent, || ns.op_make(who, parent, name, &new))
            }
            Call::Mkdir { parent, name, args, near, own } => {
                let place = if own { Where::Own(near) } else { Where::Placed(near) };
                let new = NewInode { place, ..NewInode::of(FileKind::Dir, args) };
                let made = self.make(parent, || ns.op_make(who, parent, name, &new));
                made.map(|answer| self.empty_dir(answer))
            }
            Call::Symlink { parent, name, target, near } => {
                let args = CreateArgs { mode: 0o777, umask: 0 };
                let place = Where::Placed(near);
                let new = NewInode { target, place, ..NewInode::of(FileKind::Symlink, args) };
                self.make(parent, || ns.op_make(who, parent, name, &new))
            }
            Call::Link { ino, parent, name } => self.link(ino, parent, name),
            Call::Unlink { parent, name } => {
                self.remove(parent, name, || ns.unlink(who, parent, name))
            }
            Call::Rmdir { parent, name } => {
                self.remove(parent, name, || ns.rmdir(who, parent, name))
            }
            Call::Rename { parent, name, new_parent, new_name, flags } => {
                self.rename((parent, name), (new_parent, new_name), flags)
            }
            Call::Create { parent, name, args, want_local, near } => {
                let made = || ns.op_create(who, parent, name, args, Where::Placed(near));
                return Some(self.created(parent, true, want_local, made));
            }
            Call::Tmpfile { parent, args, want_local } => {
                let made = || {
                    let (entry, object) = ns.op_tmpfile(who, parent, args, false)?;
                    Ok(Named::Here(entry, object))
                };
                return Some(self.created(parent, false, want_local, made));
            }
            Call::Take { ino, after } => return Some(self.take(ino, after)),
            Call::TakeAll(ref all) => Ok(self.take_all(all)),
            Call::DirLimit(ino) => ns.dir_limit(ino).map(Answer::Limit),
            Call::List { ino, after, limit, max_bytes, plus } => {
                self.list(ino, after, limit, max_bytes.min(MAX_LISTING_BYTES), plus)
            }
            _ => return None,
        };
        Some(result.into())
    }

    pub(super) fn keep_names(&self, dir: Ino) -> bool {
        self.sessions.grant(self.session, Subject::Names(dir)).is_some()
    }

    pub(super) fn entry(&self, attr: Attr, keep_names: bool) -> Answer {
        Answer::Entry { attr: self.sessions.keep(self.session, attr), keep_names, empty: false }
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Answer> {
        let keep_names = self.keep_names(parent);
        if let Some((ino, kind)) = self.namespace().leads_elsewhere(parent, name)? {
            return Ok(Answer::Elsewhere { ino, kind: Some(kind), keep_names });
        }
        match self.namespace().lookup(&self.caller, parent, name) {
            Ok(entry) => {
                self.sessions.took(self.session, entry.attr.ino);
                Ok(self.entry(entry.attr, keep_names))
            }
            Err(Errno::ENOENT) => Ok(Answer::Absent { keep_names }),
            Err(errno) => Err(errno),
        }
    }

    fn make(&self, parent: Ino, make: impl FnOnce() -> Result<Named>) -> Result<Answer> {
        let subjects = [Subject::Names(parent), Subject::Attrs(parent)];
        let named = self.name_given(parent, &subjects, make)?;
        Ok(self.named(parent, named))
    }

    /// Gives a name below `parent`.
    fn name_given(
        &self,
        parent: Ino,
        subjects: &[Subject],
        make: impl FnOnce() -> Result<Named>,
    ) -> Result<Named> {
        let _turn = self.sessions.order.of(parent);
        let _changing = self.sessions.change(self.session, subjects);
        let named = make()?;
        if let Named::Here(entry, _) = &named {
            self.sessions.took(self.session, entry.attr.ino);
        }
        Ok(named)
    }

    fn named(&self, parent: Ino, named: Named) -> Answer {
        let keep_names = self.keep_names(parent);
        match named {
            Named::Here(entry, _) => self.entry(entry.attr, keep_names),
            Named::Elsewhere(ino) => Answer::Elsewhere { ino, kind: None, keep_names },
        }
    }

    /// The names of a new directory, too, if nobody was faster to put one there.
    pub(super) fn empty_dir(&self, answer: Answer) -> Answer {
        let Answer::Entry { attr, keep_names, .. } = answer else { return answer };
        let dir = attr.attr.ino;
        let empty = self.keep_names(dir)
            && self.namespace().getattr(dir).is_ok_and(|now| now.size_bytes == 0);
        Answer::Entry { attr, keep_names, empty }
    }

    /// A new file, open. Without a `name` its directory does not change.
    fn created(
        &self,
        parent: Ino,
        named: bool,
        want_local: bool,
        make: impl FnOnce() -> Result<Named>,
    ) -> Reply {
        let made = {
            let _turn = named.then(|| self.sessions.order.of(parent));
            let subjects = [Subject::Names(parent), Subject::Attrs(parent)];
            let subjects = if named { &subjects[..] } else { &[] };
            let _changing = self.sessions.change(self.session, subjects);
            make().inspect(|named| {
                if let Named::Here(entry, _) = named {
                    self.sessions.took(self.session, entry.attr.ino);
                }
            })
        };
        let (entry, object) = match made {
            Ok(Named::Here(entry, object)) => (entry, object),
            Ok(elsewhere) => return Reply::of(self.named(parent, elsewhere)),
            Err(errno) => return Reply::failed(errno),
        };
        let ino = entry.attr.ino;
        let local = object.filter(|_| want_local && self.local).map(Arc::new);
        if local.is_some() {
            let _turn = self.sessions.sizes.shared(ino);
            self.sessions.leases.opened_locally(ino, self.session.id());
        }
        if let Some(layout) = self.striped(ino) {
            let open = self.opened_striped(ino, layout, true);
            let attr = self.sessions.keep(self.session, entry.attr);
            let keep_names = self.keep_names(parent);
            return Reply::of(Answer::CreatedStriped { attr, keep_names, open });
        }
        let answer = Answer::Created {
            attr: self.sessions.keep(self.session, entry.attr),
            keep_names: self.keep_names(parent),
            local: local.is_some(),
        };
        Reply::with(answer, local)
    }

    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Answer> {
        let subjects = [Subject::Names(parent), Subject::Attrs(parent), Subject::Attrs(ino)];
        let link = || self.namespace().op_link(&self.caller, ino, parent, name, false);
        let named = self.name_given(parent, &subjects, link)?;
        Ok(self.named(parent, named))
    }

    fn remove(
        &self,
        parent: Ino,
        name: &[u8],
        remove: impl FnOnce() -> Result<()>,
    ) -> Result<Answer> {
        let _turn = self.sessions.order.of(parent);
        let mut subjects = Vec::with_capacity(3);
        subjects.extend([Subject::Names(parent), Subject::Attrs(parent)]);
        let child = self.namespace().peek(parent, name)?.map(|(ino, _)| ino);
        subjects.extend(child.map(Subject::Attrs));
        let _changing = self.sessions.change(self.session, &subjects);
        remove()?;
        if let Some(child) = child {
            self.sessions.name_gone(Some(self.session.id()), child, parent, name);
        }
        Ok(Answer::Done)
    }

    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: u32) -> Result<Answer> {
        let moved = self.renamed(from, to, flags)?;
        self.sessions.dirs_moved(self.session.id(), &moved);
        Ok(Answer::Done)
    }

    /// Renames, and returns the names that directories had which are in another one now.
    fn renamed<'n>(
        &self,
        from: (Ino, &'n [u8]),
        to: (Ino, &'n [u8]),
        flags: u32,
    ) -> Result<Vec<(Ino, &'n [u8])>> {
        let ns = self.namespace();
        let _turns = self.sessions.order.of_two(from.0, to.0);
        let mut subjects = vec![
            Subject::Names(from.0),
            Subject::Attrs(from.0),
            Subject::Names(to.0),
            Subject::Attrs(to.0),
        ];
        let inode = |(ino, _)| Subject::Attrs(ino);
        subjects.extend(ns.peek(from.0, from.1)?.map(inode));
        let replaced = ns.peek(to.0, to.1)?;
        subjects.extend(replaced.map(inode));
        let _changing = self.sessions.change(self.session, &subjects);
        ns.rename(&self.caller, from.0, from.1, to.0, to.1, flags)?;
        let exchange = flags & rename_flags::EXCHANGE != 0;
        if let Some((replaced, _)) = replaced.filter(|_| !exchange) {
            self.sessions.name_gone(Some(self.session.id()), replaced, to.0, to.1);
        }
        // The new name is always here; the old one may be at another shard.
        let moved = ns.peek(to.0, to.1).ok().flatten();
        Ok(dirs_that_left(from, moved, to, replaced.filter(|_| exchange)))
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
        let fs: &dyn FileSystem = match &self.sessions.cache {
            Some(cache) => &**cache,
            None => self.namespace(),
        };
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
}

/// Of what a rename moved from `from`, and of what it exchanged from `to`: the names of directories that are in another
/// directory now.
pub(super) fn dirs_that_left<'n>(
    from: (Ino, &'n [u8]),
    moved: Option<(Ino, FileKind)>,
    to: (Ino, &'n [u8]),
    exchanged: Option<(Ino, FileKind)>,
) -> Vec<(Ino, &'n [u8])> {
    let is_dir =
        |what: Option<(Ino, FileKind)>| what.is_some_and(|(_, kind)| kind == FileKind::Dir);
    let left = [(from, moved), (to, exchanged)].into_iter().filter(|(_, what)| is_dir(*what));
    left.filter(|_| from.0 != to.0).map(|(name, _)| name).collect()
}
