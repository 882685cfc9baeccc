//! Calls on names of a scratch buffer: lookup, creation, removal, rename, links, listings.
//!
//! Every change takes its directory's order lock, finds which inodes it is about, recalls the leases of others
//! on them, and is then made.

use super::striped::StripedOpens;
use super::take::ScratchTakes;
use crate::session::Session;
use crate::session::changes::Changes;
use crate::session::grants::Grants;
use crate::session::names::{Listing, after_rename, subjects_of_rename};
use crate::session::reply::{CallContext, Reply};
use crate::session::stack::Stack;
use forebay_lease::leases::Subject;
use forebay_namespace::shards::{Patience, Where};
use forebay_namespace::{Named, Namespace, NewInode};
use forebay_proto::api::CreateArgs;
use forebay_proto::api::ops::*;
use forebay_proto::attr::FileKind;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Errno, Ino, Result};
use std::sync::Arc;

/// Answers them.
pub(super) struct ScratchNames {
    namespace: Arc<Namespace>,
    grants: Arc<Grants>,
    changes: Arc<Changes>,
    striped: Arc<StripedOpens>,
    takes: ScratchTakes,
}

impl ScratchNames {
    pub(super) fn new(stack: &Stack, striped: &Arc<StripedOpens>) -> ScratchNames {
        ScratchNames {
            namespace: Arc::clone(&stack.namespace),
            grants: Arc::clone(&stack.grants),
            changes: Arc::clone(&stack.changes),
            striped: Arc::clone(striped),
            takes: ScratchTakes::new(stack, striped),
        }
    }

    /// What a change over shards has locked is waited for without any lock: it may need ours.
    pub(super) fn answer(&self, cx: &CallContext<'_>, call: &Call<'_>) -> Reply {
        let mut patience = Patience::new();
        loop {
            let reply = self.answer_once(cx, call);
            let Answer::Failed(errno) = reply.answer else { return reply };
            if Errno(errno) == Errno::ERESTART {
                if let Err(errno) = self.namespace.waits().pause(&mut patience) {
                    return Reply::failed(errno);
                }
            } else if !self.namespace.waits().wait_for_server(Errno(errno), &mut patience) {
                return reply;
            }
        }
    }

    fn answer_once(&self, cx: &CallContext<'_>, call: &Call<'_>) -> Reply {
        let (ns, who) = (&*self.namespace, &cx.caller);
        let result = match *call {
            Call::Lookup { parent, name } => self.lookup(cx, parent, name),
            Call::Mknod { parent, name, kind, args, rdev, near } => {
                let place = Where::Placed(near);
                let new = NewInode { rdev, place, ..NewInode::of(kind, args) };
                self.make(cx, parent, || ns.names().make(who, parent, name, &new))
            }
            Call::Mkdir { parent, name, args, near, own } => {
                let place = if own { Where::Own(near) } else { Where::Placed(near) };
                let new = NewInode { place, ..NewInode::of(FileKind::Dir, args) };
                let made = self.make(cx, parent, || ns.names().make(who, parent, name, &new));
                made.map(|answer| empty_dir(ns, &self.grants, cx.session, answer))
            }
            Call::Symlink { parent, name, target, near } => {
                let args = CreateArgs { mode: 0o777, umask: 0 };
                let place = Where::Placed(near);
                let new = NewInode { target, place, ..NewInode::of(FileKind::Symlink, args) };
                self.make(cx, parent, || ns.names().make(who, parent, name, &new))
            }
            Call::Link { ino, parent, name } => self.link(cx, ino, parent, name),
            Call::Unlink { parent, name } => {
                self.remove(cx, parent, name, || ns.unlink(who, parent, name))
            }
            Call::Rmdir { parent, name } => {
                self.remove(cx, parent, name, || ns.rmdir(who, parent, name))
            }
            Call::Rename { parent, name, new_parent, new_name, flags } => {
                self.rename(cx, (parent, name), (new_parent, new_name), flags)
            }
            Call::Create { parent, name, args, want_local, near } => {
                let made = || ns.names().create(who, parent, name, args, Where::Placed(near));
                return self.created(cx, parent, true, want_local, made);
            }
            Call::Tmpfile { parent, args, want_local } => {
                let made = || {
                    let (entry, object) = ns.names().tmpfile(who, parent, args, false)?;
                    Ok(Named::Here(entry, object))
                };
                return self.created(cx, parent, false, want_local, made);
            }
            Call::Take { ino, after } => return self.takes.take(cx, ino, after),
            Call::TakeAll(ref all) => Ok(self.takes.take_all(cx, all)),
            Call::DirLimit(ino) => ns.dir_limit(ino).map(Answer::Limit),
            Call::List { ino, after, limit, max_bytes, plus } => {
                let part = Listing { dir: ino, after, limit, max_bytes, plus };
                part.answer(ns, &self.grants, cx.session)
            }
            _ => Err(Errno::ENOSYS),
        };
        result.into()
    }

    fn lookup(&self, cx: &CallContext<'_>, parent: Ino, name: &[u8]) -> Result<Answer> {
        let keep_names = self.grants.keep_names(cx.session, parent);
        if let Some((ino, kind)) = self.namespace.names().leads_elsewhere(parent, name)? {
            return Ok(Answer::Elsewhere { ino, kind: Some(kind), keep_names });
        }
        match self.namespace.lookup(&cx.caller, parent, name) {
            Ok(entry) => {
                self.grants.took(cx.session, entry.attr.ino);
                Ok(self.grants.entry(cx.session, entry.attr, keep_names))
            }
            Err(Errno::ENOENT) => Ok(Answer::Absent { keep_names }),
            Err(errno) => Err(errno),
        }
    }

    fn make(
        &self,
        cx: &CallContext<'_>,
        parent: Ino,
        make: impl FnOnce() -> Result<Named>,
    ) -> Result<Answer> {
        let subjects = [Subject::Names(parent), Subject::Attrs(parent)];
        let named = self.name_given(cx, parent, &subjects, make)?;
        Ok(self.named(cx, parent, named))
    }

    /// Gives a name below `parent`.
    fn name_given(
        &self,
        cx: &CallContext<'_>,
        parent: Ino,
        subjects: &[Subject],
        make: impl FnOnce() -> Result<Named>,
    ) -> Result<Named> {
        let _turn = self.changes.turn(parent);
        let _changing = self.changes.change(cx.session, subjects);
        let named = make()?;
        if let Named::Here(entry, _) = &named {
            self.grants.took(cx.session, entry.attr.ino);
        }
        Ok(named)
    }

    fn named(&self, cx: &CallContext<'_>, parent: Ino, named: Named) -> Answer {
        let keep_names = self.grants.keep_names(cx.session, parent);
        match named {
            Named::Here(entry, _) => self.grants.entry(cx.session, entry.attr, keep_names),
            Named::Elsewhere(ino) => Answer::Elsewhere { ino, kind: None, keep_names },
        }
    }

    /// A new file, open. Without a `name` its directory does not change.
    fn created(
        &self,
        cx: &CallContext<'_>,
        parent: Ino,
        named: bool,
        want_local: bool,
        make: impl FnOnce() -> Result<Named>,
    ) -> Reply {
        let made = {
            let _turn = named.then(|| self.changes.turn(parent));
            let subjects = [Subject::Names(parent), Subject::Attrs(parent)];
            let subjects = if named { &subjects[..] } else { &[] };
            let _changing = self.changes.change(cx.session, subjects);
            make().inspect(|named| {
                if let Named::Here(entry, _) = named {
                    self.grants.took(cx.session, entry.attr.ino);
                }
            })
        };
        let (entry, object) = match made {
            Ok(Named::Here(entry, object)) => (entry, object),
            Ok(elsewhere) => return Reply::of(self.named(cx, parent, elsewhere)),
            Err(errno) => return Reply::failed(errno),
        };
        let ino = entry.attr.ino;
        let local = object.filter(|_| want_local && cx.local).map(Arc::new);
        if local.is_some() {
            let _turn = self.changes.data_shared(ino);
            self.grants.opened_locally(cx.session, ino);
        }
        if let Some(layout) = self.striped.layout(ino) {
            let open = self.striped.opened(cx.session, ino, layout, true);
            let attr = self.grants.keep(cx.session, entry.attr);
            let keep_names = self.grants.keep_names(cx.session, parent);
            return Reply::of(Answer::CreatedStriped { attr, keep_names, open });
        }
        let answer = Answer::Created {
            attr: self.grants.keep(cx.session, entry.attr),
            keep_names: self.grants.keep_names(cx.session, parent),
            local: local.is_some(),
        };
        Reply::with(answer, local)
    }

    fn link(&self, cx: &CallContext<'_>, ino: Ino, parent: Ino, name: &[u8]) -> Result<Answer> {
        let subjects = [Subject::Names(parent), Subject::Attrs(parent), Subject::Attrs(ino)];
        let link = || self.namespace.names().link(&cx.caller, ino, parent, name, false);
        let named = self.name_given(cx, parent, &subjects, link)?;
        Ok(self.named(cx, parent, named))
    }

    fn remove(
        &self,
        cx: &CallContext<'_>,
        parent: Ino,
        name: &[u8],
        remove: impl FnOnce() -> Result<()>,
    ) -> Result<Answer> {
        let _turn = self.changes.turn(parent);
        let mut subjects = Vec::with_capacity(3);
        subjects.extend([Subject::Names(parent), Subject::Attrs(parent)]);
        let child = self.namespace.names().peek(parent, name)?.map(|(ino, _)| ino);
        subjects.extend(child.map(Subject::Attrs));
        let _changing = self.changes.change(cx.session, &subjects);
        remove()?;
        if let Some(child) = child {
            self.changes.name_gone(Some(cx.session.id()), child, parent, name);
        }
        Ok(Answer::Done)
    }

    fn rename(
        &self,
        cx: &CallContext<'_>,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: u32,
    ) -> Result<Answer> {
        let moved = self.renamed(cx, from, to, flags)?;
        self.changes.dirs_moved(cx.session.id(), &moved);
        Ok(Answer::Done)
    }

    /// Renames, and returns the names that directories had which are in another one now.
    fn renamed<'n>(
        &self,
        cx: &CallContext<'_>,
        from: (Ino, &'n [u8]),
        to: (Ino, &'n [u8]),
        flags: u32,
    ) -> Result<Vec<(Ino, &'n [u8])>> {
        let ns = &self.namespace;
        let _turns = self.changes.turns(from.0, to.0);
        let mut subjects = subjects_of_rename(from.0, to.0);
        let inode = |(ino, _)| Subject::Attrs(ino);
        subjects.extend(ns.names().peek(from.0, from.1)?.map(inode));
        let replaced = ns.names().peek(to.0, to.1)?;
        subjects.extend(replaced.map(inode));
        let _changing = self.changes.change(cx.session, &subjects);
        ns.rename(&cx.caller, from.0, from.1, to.0, to.1, flags)?;
        // The new name is always here; the old one may be at another shard.
        let moved = ns.names().peek(to.0, to.1).ok().flatten();
        Ok(after_rename(&self.changes, cx.session, (from, moved), (to, replaced), flags))
    }
}

/// The names of a new directory, too, if nobody was faster to put one there.
pub(super) fn empty_dir(
    namespace: &Namespace,
    grants: &Grants,
    session: &Session,
    answer: Answer,
) -> Answer {
    let Answer::Entry { attr, keep_names, .. } = answer else { return answer };
    let dir = attr.attr.ino;
    let empty = grants.keep_names(session, dir)
        && namespace.getattr(dir).is_ok_and(|now| now.size_bytes == 0);
    Answer::Entry { attr, keep_names, empty }
}
