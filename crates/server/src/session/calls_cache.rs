//! Calls on a cache: names and attributes, which are the PFS's.
//!
//! As in `calls_names`: every change takes its directory's turn, finds which inodes it is about, recalls
//! what others believe of them, and is then made. The PFS keeps no record of who asked for what, so a
//! change of names is written down before and after (`calls_cache_again` reads it).

use super::calls::{At, Reply};
use super::calls_cache_homes::is_of_names;
use super::calls_names::dirs_that_left;
use super::leases::Subject;
use crate::cache::CacheFs;
use crate::namespace::record::Answered;
use crate::step::step;
use forebay_proto::api::{CreateArgs, FileSystem, Opened, rename_flags};
use forebay_proto::net::call::MAX_LISTING_BYTES;
use forebay_proto::net::ledger::AccessMode;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Entry, Errno, Ino, Result, SetAttr};
use std::sync::Arc;

/// A number that means nothing: what is moved or removed is not known to any mount.
const NOTHING: Ino = Ino(0);

/// True if a call changes something that others see.
fn changes(call: &Call<'_>) -> bool {
    match call {
        Call::Open { open_flags, .. } => {
            call.truncates() || *open_flags as i32 & libc::O_ACCMODE != libc::O_RDONLY
        }
        Call::Forget(_) | Call::Release(_) | Call::Close(_) => false,
        other => other.is_once_only(),
    }
}

impl At<'_> {
    /// Answers any call on a cache's files.
    pub(super) fn cache_call(
        &self,
        cache: &Arc<CacheFs>,
        call: &Call<'_>,
        room: &mut Vec<u8>,
    ) -> Reply {
        let who = &self.caller;
        if self.is_read_only() && changes(call) {
            return Reply::failed(Errno::EROFS);
        }
        if let Err(errno) = self.must_be_allowed(cache, call) {
            return Reply::failed(errno);
        }
        if !cache.has_names() && is_of_names(call) {
            // No mount that keeps to the numbers asks this here.
            return Reply::failed(Errno::ESTALE);
        }
        let answer = match *call {
            Call::Take { ino, after } => return self.cache_take(cache, ino, after),
            Call::TakeAll(ref all) => Ok(self.cache_take_all(cache, all)),
            Call::Lookup { parent, name } => self.cache_lookup(cache, parent, name),
            Call::Mknod { parent, name, kind, args, rdev, .. } => {
                let make = || cache.mknod(who, parent, name, kind, args, rdev);
                self.cache_make(cache, parent, None, make)
            }
            Call::Mkdir { parent, name, args, .. } => {
                self.cache_make(cache, parent, None, || cache.mkdir(who, parent, name, args))
            }
            Call::Symlink { parent, name, target, .. } => {
                self.cache_make(cache, parent, None, || cache.symlink(who, parent, name, target))
            }
            Call::Link { ino, parent, name } => {
                self.cache_make(cache, parent, Some(ino), || cache.link(who, ino, parent, name))
            }
            Call::Unlink { parent, name } => {
                self.cache_remove(cache, parent, name, || cache.unlink(who, parent, name))
            }
            Call::Rmdir { parent, name } => {
                self.cache_remove(cache, parent, name, || cache.rmdir(who, parent, name))
            }
            Call::Rename { parent, name, new_parent, new_name, flags } => {
                self.cache_rename(cache, (parent, name), (new_parent, new_name), flags)
            }
            Call::Create { parent, name, args, want_local, .. } => {
                let created = self.cache_create(cache, parent, name, args, want_local);
                return created.unwrap_or_else(Reply::failed);
            }
            Call::Tmpfile { .. } => Err(Errno::EOPNOTSUPP),
            Call::DirLimit(ino) => cache.dir_limit(ino).map(Answer::Limit),
            Call::List { ino, after, limit, max_bytes, plus } => {
                let plus = plus && self.may_stat_below(cache, ino);
                self.list(ino, after, limit, max_bytes.min(MAX_LISTING_BYTES), plus)
            }
            Call::Setattr { ino, ref change } => self.cache_setattr(cache, ino, change),
            Call::Getxattr { ino, name } => return self.bytes(cache.getxattr(ino, name), room),
            Call::Listxattr(ino) => return self.bytes(cache.listxattr(ino), room),
            Call::Readlink(ino) => return self.bytes(cache.readlink(ino), room),
            Call::Setxattr { ino, name, flags, kill_sgid } => {
                let _changing = self.sessions.change(self.session, &[Subject::Attrs(ino)]);
                let set = cache.setxattr(who, ino, name, self.payload, flags, kill_sgid);
                set.map(|()| Answer::Done)
            }
            Call::Removexattr { ino, name } => {
                let _changing = self.sessions.change(self.session, &[Subject::Attrs(ino)]);
                cache.removexattr(who, ino, name).map(|()| Answer::Done)
            }
            Call::Getattr(ino) => self.getattr(ino),
            Call::Probe => {
                let probe = || self.namespace().objects().probe().map(Arc::new);
                let local = self.local.then(probe).transpose();
                return local.map(|local| Opened { local }).into();
            }
            Call::Statfs => cache.statfs().map(Answer::Statfs),
            Call::SyncAll => cache.sync_all().map(|()| Answer::Done),
            ref data => return self.cache_data_call(cache, data, room),
        };
        answer.into()
    }

    fn is_read_only(&self) -> bool {
        self.sessions.facts.cache.is_some_and(|facts| facts.access == AccessMode::Ldbalance)
    }

    pub(super) fn cache_lookup(&self, cache: &CacheFs, parent: Ino, name: &[u8]) -> Result<Answer> {
        let keep_names = self.keep_names(parent);
        match cache.lookup(&self.caller, parent, name) {
            Ok(entry) if self.is_elsewhere(cache, &entry.attr) => {
                Ok(Answer::Elsewhere { ino: entry.attr.ino, kind: None, keep_names })
            }
            Ok(entry) => {
                self.sessions.took(self.session, entry.attr.ino);
                Ok(self.entry(entry.attr, keep_names))
            }
            Err(Errno::ENOENT) => Ok(Answer::Absent { keep_names }),
            Err(errno) => Err(errno),
        }
    }

    /// Makes a change of names on the PFS, written down before and after. `goes`: what it moves or
    /// removes.
    pub(super) fn noted<T>(
        &self,
        goes: Ino,
        change: impl FnOnce() -> Result<T>,
        made: impl FnOnce(&T) -> Ino,
    ) -> Result<T> {
        let names = self.namespace();
        names.note_answer(&self.caller, Answered::Begun(goes))?;
        step("cache: a change of names is written down");
        let changed = change();
        step("cache: a change of names is made");
        let what = changed.as_ref().map_or(Answered::Undone, |done| Answered::Made(made(done)));
        names.note_answer(&self.caller, what)?;
        step("cache: a change of names is done");
        changed
    }

    fn cache_make(
        &self,
        cache: &CacheFs,
        parent: Ino,
        linked: Option<Ino>,
        make: impl FnOnce() -> Result<Entry>,
    ) -> Result<Answer> {
        let (entry, elsewhere) = {
            let _turn = self.sessions.order.of(parent);
            let mut subjects = vec![Subject::Names(parent), Subject::Attrs(parent)];
            subjects.extend(linked.map(Subject::Attrs));
            let _changing = self.sessions.change(self.session, &subjects);
            let entry = self.noted(NOTHING, make, |entry| entry.attr.ino)?;
            let elsewhere = self.is_elsewhere(cache, &entry.attr);
            if !elsewhere {
                self.sessions.took(self.session, entry.attr.ino);
            }
            (entry, elsewhere)
        };
        let keep_names = self.keep_names(parent);
        if elsewhere {
            return Ok(Answer::Elsewhere { ino: entry.attr.ino, kind: None, keep_names });
        }
        Ok(self.entry(entry.attr, keep_names))
    }

    fn cache_create(
        &self,
        cache: &CacheFs,
        parent: Ino,
        name: &[u8],
        args: CreateArgs,
        want_local: bool,
    ) -> Result<Reply> {
        let want_local = want_local && self.local;
        let (entry, opened) = {
            let _turn = self.sessions.order.of(parent);
            let subjects = [Subject::Names(parent), Subject::Attrs(parent)];
            let _changing = self.sessions.change(self.session, &subjects);
            let create = || cache.create(&self.caller, parent, name, args, want_local);
            let (entry, opened) = self.noted(NOTHING, create, |(entry, _)| entry.attr.ino)?;
            if self.is_elsewhere(cache, &entry.attr) {
                let keep_names = self.keep_names(parent);
                return Ok(Reply::of(Answer::Elsewhere {
                    ino: entry.attr.ino,
                    kind: None,
                    keep_names,
                }));
            }
            self.sessions.took(self.session, entry.attr.ino);
            self.opened(entry.attr.ino, opened.local.is_some(), libc::O_RDWR as u32);
            (entry, opened)
        };
        let answer = Answer::Created {
            attr: self.sessions.keep(self.session, entry.attr),
            keep_names: self.keep_names(parent),
            local: opened.local.is_some(),
        };
        Ok(Reply { file: opened.local, ..Reply::of(answer) })
    }

    fn cache_remove(
        &self,
        cache: &CacheFs,
        parent: Ino,
        name: &[u8],
        remove: impl FnOnce() -> Result<()>,
    ) -> Result<Answer> {
        let _turn = self.sessions.order.of(parent);
        let mut subjects = vec![Subject::Names(parent), Subject::Attrs(parent)];
        let child = cache.peek(&self.caller, parent, name)?.map(|(ino, _)| ino);
        subjects.extend(child.map(Subject::Attrs));
        let _changing = self.sessions.change(self.session, &subjects);
        self.noted(child.unwrap_or(NOTHING), remove, |()| NOTHING)?;
        if let Some(child) = child {
            self.sessions.name_gone(Some(self.session.id()), child, parent, name);
        }
        Ok(Answer::Done)
    }

    fn cache_rename(
        &self,
        cache: &CacheFs,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: u32,
    ) -> Result<Answer> {
        let moved = self.cache_renamed(cache, from, to, flags)?;
        self.sessions.dirs_moved(self.session.id(), &moved);
        Ok(Answer::Done)
    }

    fn cache_renamed<'n>(
        &self,
        cache: &CacheFs,
        from: (Ino, &'n [u8]),
        to: (Ino, &'n [u8]),
        flags: u32,
    ) -> Result<Vec<(Ino, &'n [u8])>> {
        let _turns = self.sessions.order.of_two(from.0, to.0);
        let mut subjects = vec![
            Subject::Names(from.0),
            Subject::Attrs(from.0),
            Subject::Names(to.0),
            Subject::Attrs(to.0),
        ];
        let moved = cache.peek(&self.caller, from.0, from.1)?;
        let replaced = cache.peek(&self.caller, to.0, to.1)?;
        let inode = |(ino, _)| Subject::Attrs(ino);
        subjects.extend(moved.into_iter().chain(replaced).map(inode));
        let _changing = self.sessions.change(self.session, &subjects);
        let rename = || cache.rename(&self.caller, from.0, from.1, to.0, to.1, flags);
        self.noted(moved.map_or(NOTHING, |(ino, _)| ino), rename, |()| NOTHING)?;
        let exchange = flags & rename_flags::EXCHANGE != 0;
        if let Some((replaced, _)) = replaced.filter(|_| !exchange) {
            self.sessions.name_gone(Some(self.session.id()), replaced, to.0, to.1);
        }
        Ok(dirs_that_left(from, moved, to, replaced.filter(|_| exchange)))
    }

    pub(super) fn cache_setattr(
        &self,
        cache: &CacheFs,
        ino: Ino,
        change: &SetAttr,
    ) -> Result<Answer> {
        let attr = {
            let _changing = self.sessions.change(self.session, &[Subject::Attrs(ino)]);
            match change.size_bytes {
                None => cache.setattr(&self.caller, ino, change)?,
                Some(_) => {
                    let _turn = self.sessions.sizes.alone(ino);
                    let set = || cache.setattr(&self.caller, ino, change);
                    self.noted(NOTHING, set, |_| NOTHING)?
                }
            }
        };
        if change.size_bytes.is_some() {
            self.sessions.bytes_gone(self.session.id(), ino);
        }
        Ok(Answer::Attr(self.sessions.keep(self.session, attr)))
    }
}
