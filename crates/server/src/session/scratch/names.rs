//! Calls on names of a scratch buffer: lookup, creation, removal, rename, links, listings.
//!
//! Every change takes its directory's turn, finds which inodes it is about, recalls what others
//! believe of them, and is then made.

use crate::session::calls::{At, Reply};
use crate::session::names::subjects_of_rename;
use forebay_lease::leases::Subject;
use forebay_namespace::shards::{Patience, Where};
use forebay_namespace::{Named, NewInode};
use forebay_proto::api::CreateArgs;
use forebay_proto::api::ops::*;
use forebay_proto::attr::FileKind;
use forebay_proto::net::call::MAX_LISTING_BYTES;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Errno, Ino, Result};
use std::sync::Arc;

impl At<'_> {
    /// What a change over shards has locked is waited for without any lock: it may need ours.
    pub(super) fn names_call(&self, call: &Call<'_>) -> Reply {
        let mut patience = Patience::new();
        loop {
            let reply = self.names_call_once(call);
            let Answer::Failed(errno) = reply.answer else { return reply };
            if Errno(errno) == Errno::ERESTART {
                if let Err(errno) = self.namespace().waits().pause(&mut patience) {
                    return Reply::failed(errno);
                }
            } else if !self.namespace().waits().wait_for_server(Errno(errno), &mut patience) {
                return reply;
            }
        }
    }

    fn names_call_once(&self, call: &Call<'_>) -> Reply {
        let ns = self.namespace();
        let who = &self.caller;
        let result = match *call {
            Call::Lookup { parent, name } => self.lookup(parent, name),
            Call::Mknod { parent, name, kind, args, rdev, near } => {
                let place = Where::Placed(near);
                let new = NewInode { rdev, place, ..NewInode::of(kind, args) };
                self.make(parent, || ns.names().make(who, parent, name, &new))
            }
            Call::Mkdir { parent, name, args, near, own } => {
                let place = if own { Where::Own(near) } else { Where::Placed(near) };
                let new = NewInode { place, ..NewInode::of(FileKind::Dir, args) };
                let made = self.make(parent, || ns.names().make(who, parent, name, &new));
                made.map(|answer| self.empty_dir(answer))
            }
            Call::Symlink { parent, name, target, near } => {
                let args = CreateArgs { mode: 0o777, umask: 0 };
                let place = Where::Placed(near);
                let new = NewInode { target, place, ..NewInode::of(FileKind::Symlink, args) };
                self.make(parent, || ns.names().make(who, parent, name, &new))
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
                let made = || ns.names().create(who, parent, name, args, Where::Placed(near));
                return self.created(parent, true, want_local, made);
            }
            Call::Tmpfile { parent, args, want_local } => {
                let made = || {
                    let (entry, object) = ns.names().tmpfile(who, parent, args, false)?;
                    Ok(Named::Here(entry, object))
                };
                return self.created(parent, false, want_local, made);
            }
            Call::Take { ino, after } => return self.take(ino, after),
            Call::TakeAll(ref all) => Ok(self.take_all(all)),
            Call::DirLimit(ino) => ns.dir_limit(ino).map(Answer::Limit),
            Call::List { ino, after, limit, max_bytes, plus } => {
                self.list(ino, after, limit, max_bytes.min(MAX_LISTING_BYTES), plus)
            }
            _ => Err(Errno::ENOSYS),
        };
        result.into()
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Answer> {
        let keep_names = self.keep_names(parent);
        if let Some((ino, kind)) = self.namespace().names().leads_elsewhere(parent, name)? {
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
        let link = || self.namespace().names().link(&self.caller, ino, parent, name, false);
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
        let child = self.namespace().names().peek(parent, name)?.map(|(ino, _)| ino);
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
        let mut subjects = subjects_of_rename(from.0, to.0);
        let inode = |(ino, _)| Subject::Attrs(ino);
        subjects.extend(ns.names().peek(from.0, from.1)?.map(inode));
        let replaced = ns.names().peek(to.0, to.1)?;
        subjects.extend(replaced.map(inode));
        let _changing = self.sessions.change(self.session, &subjects);
        ns.rename(&self.caller, from.0, from.1, to.0, to.1, flags)?;
        // The new name is always here; the old one may be at another shard.
        let moved = ns.names().peek(to.0, to.1).ok().flatten();
        Ok(self.after_rename((from, moved), (to, replaced), flags))
    }
}
