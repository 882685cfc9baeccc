//! Calls on a cache's names, which are the PFS's.
//!
//! As in `scratch::names`: every change takes its directory's order lock, finds which inodes it is about, recalls
//! the leases of others on them, and is then made. The PFS keeps no record of who asked for what, so a
//! change of names is written down before and after ([`super::journal`]).

use super::journal::{ChangeJournal, NOTHING};
use super::opens::OpenFiles;
use super::peers::is_elsewhere;
use super::rights::CacheRights;
use crate::session::changes::Changes;
use crate::session::grants::Grants;
use crate::session::names::{Listing, after_rename, subjects_of_rename};
use crate::session::reply::{CallContext, Reply};
use crate::session::stack::Stack;
use forebay_cache::CacheFs;
use forebay_lease::leases::Subject;
use forebay_proto::api::ops::*;
use forebay_proto::api::{CreateArgs, Opened};
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Attr, Entry, Errno, Ino, Result};
use std::sync::Arc;

/// Answers them.
pub(super) struct CacheNames {
    fs: Arc<CacheFs>,
    grants: Arc<Grants>,
    changes: Arc<Changes>,
    open_files: Arc<OpenFiles>,
    journal: Arc<ChangeJournal>,
    rights: Arc<CacheRights>,
}

impl CacheNames {
    pub(super) fn new(
        stack: &Stack,
        fs: &Arc<CacheFs>,
        open_files: &Arc<OpenFiles>,
        journal: &Arc<ChangeJournal>,
        rights: &Arc<CacheRights>,
    ) -> CacheNames {
        CacheNames {
            fs: Arc::clone(fs),
            grants: Arc::clone(&stack.grants),
            changes: Arc::clone(&stack.changes),
            open_files: Arc::clone(open_files),
            journal: Arc::clone(journal),
            rights: Arc::clone(rights),
        }
    }

    pub(super) fn answer(&self, cx: &CallContext<'_>, call: &Call<'_>) -> Reply {
        let (fs, who) = (&*self.fs, &cx.caller);
        let answer = match *call {
            Call::Lookup { parent, name } => self.lookup(cx, parent, name),
            Call::Mknod { parent, name, kind, args, rdev, .. } => {
                self.make(cx, parent, None, || fs.mknod(who, parent, name, kind, args, rdev))
            }
            Call::Mkdir { parent, name, args, .. } => {
                self.make(cx, parent, None, || fs.mkdir(who, parent, name, args))
            }
            Call::Symlink { parent, name, target, .. } => {
                self.make(cx, parent, None, || fs.symlink(who, parent, name, target))
            }
            Call::Link { ino, parent, name } => {
                self.make(cx, parent, Some(ino), || fs.link(who, ino, parent, name))
            }
            Call::Unlink { parent, name } => {
                self.remove(cx, parent, name, || fs.unlink(who, parent, name))
            }
            Call::Rmdir { parent, name } => {
                self.remove(cx, parent, name, || fs.rmdir(who, parent, name))
            }
            Call::Rename { parent, name, new_parent, new_name, flags } => {
                self.rename(cx, (parent, name), (new_parent, new_name), flags)
            }
            Call::Create { parent, name, args, want_local, .. } => {
                let created = self.create(cx, parent, name, args, want_local);
                return created.unwrap_or_else(Reply::failed);
            }
            Call::Tmpfile { parent, args, want_local } => {
                let made = self.tmpfile(cx, parent, args, want_local);
                return made.unwrap_or_else(Reply::failed);
            }
            Call::DirLimit(ino) => fs.dir_limit(ino).map(Answer::Limit),
            Call::List { ino, after, limit, max_bytes, plus } => {
                let plus = plus && self.rights.may_stat_below(cx, ino);
                let part = Listing { dir: ino, after, limit, max_bytes, plus };
                part.answer(fs, &self.grants, cx.session)
            }
            _ => Err(Errno::ENOSYS),
        };
        answer.into()
    }

    pub(super) fn lookup(&self, cx: &CallContext<'_>, parent: Ino, name: &[u8]) -> Result<Answer> {
        let keep_names = self.grants.keep_names(cx.session, parent);
        match self.fs.lookup(&cx.caller, parent, name) {
            Ok(entry) if is_elsewhere(&self.fs, &entry.attr) => {
                Ok(Answer::Elsewhere { ino: entry.attr.ino, kind: None, keep_names })
            }
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
        linked: Option<Ino>,
        make: impl FnOnce() -> Result<Entry>,
    ) -> Result<Answer> {
        let (entry, elsewhere) = {
            let _turn = self.changes.turn(parent);
            let mut subjects = vec![Subject::Names(parent), Subject::Attrs(parent)];
            subjects.extend(linked.map(Subject::Attrs));
            let _changing = self.changes.change(cx.session, &subjects);
            let entry = self.journal.noted(cx, NOTHING, make, |entry| entry.attr.ino)?;
            let elsewhere = is_elsewhere(&self.fs, &entry.attr);
            if !elsewhere {
                self.grants.took(cx.session, entry.attr.ino);
            }
            (entry, elsewhere)
        };
        let keep_names = self.grants.keep_names(cx.session, parent);
        if elsewhere {
            return Ok(Answer::Elsewhere { ino: entry.attr.ino, kind: None, keep_names });
        }
        Ok(self.grants.entry(cx.session, entry.attr, keep_names))
    }

    fn create(
        &self,
        cx: &CallContext<'_>,
        parent: Ino,
        name: &[u8],
        args: CreateArgs,
        want_local: bool,
    ) -> Result<Reply> {
        let want_local = want_local && cx.local;
        let (entry, opened) = {
            let _turn = self.changes.turn(parent);
            let subjects = [Subject::Names(parent), Subject::Attrs(parent)];
            let _changing = self.changes.change(cx.session, &subjects);
            let create = || self.fs.create(&cx.caller, parent, name, args, want_local);
            let (entry, opened) =
                self.journal.noted(cx, NOTHING, create, |(entry, _)| entry.attr.ino)?;
            if is_elsewhere(&self.fs, &entry.attr) {
                let keep_names = self.grants.keep_names(cx.session, parent);
                return Ok(Reply::of(Answer::Elsewhere {
                    ino: entry.attr.ino,
                    kind: None,
                    keep_names,
                }));
            }
            self.grants.took(cx.session, entry.attr.ino);
            self.open_files.opened(
                cx.session,
                &self.grants,
                entry.attr.ino,
                opened.local.is_some(),
                libc::O_RDWR as u32,
            );
            (entry, opened)
        };
        Ok(self.made_open(cx, parent, entry.attr, opened))
    }

    /// Nothing of it is written down: a server that starts finds no file without a name, and makes another one.
    fn tmpfile(
        &self,
        cx: &CallContext<'_>,
        parent: Ino,
        args: CreateArgs,
        want_local: bool,
    ) -> Result<Reply> {
        let want_local = want_local && cx.local;
        let (entry, opened) = self.fs.tmpfile(&cx.caller, parent, args, want_local)?;
        self.grants.took(cx.session, entry.attr.ino);
        self.open_files.opened(
            cx.session,
            &self.grants,
            entry.attr.ino,
            opened.local.is_some(),
            libc::O_RDWR as u32,
        );
        Ok(self.made_open(cx, parent, entry.attr, opened))
    }

    /// The answer with what was made and is open.
    fn made_open(&self, cx: &CallContext<'_>, parent: Ino, attr: Attr, opened: Opened) -> Reply {
        let answer = Answer::Created {
            attr: self.grants.keep(cx.session, attr),
            keep_names: self.grants.keep_names(cx.session, parent),
            local: opened.local.is_some(),
        };
        Reply { file: opened.local, ..Reply::of(answer) }
    }

    fn remove(
        &self,
        cx: &CallContext<'_>,
        parent: Ino,
        name: &[u8],
        remove: impl FnOnce() -> Result<()>,
    ) -> Result<Answer> {
        let _turn = self.changes.turn(parent);
        let mut subjects = vec![Subject::Names(parent), Subject::Attrs(parent)];
        let child = self.fs.mounts().peek(&cx.caller, parent, name)?.map(|(ino, _)| ino);
        subjects.extend(child.map(Subject::Attrs));
        let _changing = self.changes.change(cx.session, &subjects);
        self.journal.noted(cx, child.unwrap_or(NOTHING), remove, |()| NOTHING)?;
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

    fn renamed<'n>(
        &self,
        cx: &CallContext<'_>,
        from: (Ino, &'n [u8]),
        to: (Ino, &'n [u8]),
        flags: u32,
    ) -> Result<Vec<(Ino, &'n [u8])>> {
        let _turns = self.changes.turns(from.0, to.0);
        let mut subjects = subjects_of_rename(from.0, to.0);
        let moved = self.fs.mounts().peek(&cx.caller, from.0, from.1)?;
        let replaced = self.fs.mounts().peek(&cx.caller, to.0, to.1)?;
        let inode = |(ino, _)| Subject::Attrs(ino);
        subjects.extend(moved.into_iter().chain(replaced).map(inode));
        let _changing = self.changes.change(cx.session, &subjects);
        let rename = || self.fs.rename(&cx.caller, from.0, from.1, to.0, to.1, flags);
        self.journal.noted(cx, moved.map_or(NOTHING, |(ino, _)| ino), rename, |()| NOTHING)?;
        Ok(after_rename(&self.changes, cx.session, (from, moved), (to, replaced), flags))
    }
}
