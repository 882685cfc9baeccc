//! Calls on a cache: names and attributes, which are the PFS's.
//!
//! As in `scratch::names`: every change takes its directory's turn, finds which inodes it is about, recalls
//! what others believe of them, and is then made. The PFS keeps no record of who asked for what, so a
//! change of names is written down before and after (`replay` reads it).

use super::Cached;
use crate::session::calls::{At, Reply};
use crate::session::names::subjects_of_rename;
use forebay_failpoint::step;
use forebay_lease::leases::Subject;
use forebay_proto::api::ops::*;
use forebay_proto::api::{CreateArgs, Opened};
use forebay_proto::net::Answer;
use forebay_proto::{Attr, Entry, Errno, Ino, Result, SetAttr};
use forebay_store::record::Answered;

/// A number that means nothing: what is moved or removed is not known to any mount.
pub(super) const NOTHING: Ino = Ino(0);

impl At<'_> {
    pub(super) fn cache_lookup(&self, cache: &Cached, parent: Ino, name: &[u8]) -> Result<Answer> {
        let keep_names = self.keep_names(parent);
        match cache.fs.lookup(&self.caller, parent, name) {
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
        names.answers().note(&self.caller, Answered::Begun(goes))?;
        step("cache: a change of names is written down");
        let changed = change();
        step("cache: a change of names is made");
        let what = changed.as_ref().map_or(Answered::Undone, |done| Answered::Made(made(done)));
        names.answers().note(&self.caller, what)?;
        step("cache: a change of names is done");
        changed
    }

    pub(super) fn cache_make(
        &self,
        cache: &Cached,
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

    pub(super) fn cache_create(
        &self,
        cache: &Cached,
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
            let create = || cache.fs.create(&self.caller, parent, name, args, want_local);
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
            self.opened(cache, entry.attr.ino, opened.local.is_some(), libc::O_RDWR as u32);
            (entry, opened)
        };
        Ok(self.made_open(parent, entry.attr, opened))
    }

    /// Nothing of it is written down: a server that starts finds no file without a name, and makes another one.
    pub(super) fn cache_tmpfile(
        &self,
        cache: &Cached,
        parent: Ino,
        args: CreateArgs,
        want_local: bool,
    ) -> Result<Reply> {
        let want_local = want_local && self.local;
        let (entry, opened) = cache.fs.tmpfile(&self.caller, parent, args, want_local)?;
        self.sessions.took(self.session, entry.attr.ino);
        self.opened(cache, entry.attr.ino, opened.local.is_some(), libc::O_RDWR as u32);
        Ok(self.made_open(parent, entry.attr, opened))
    }

    /// The answer with what was made and is open.
    fn made_open(&self, parent: Ino, attr: Attr, opened: Opened) -> Reply {
        let answer = Answer::Created {
            attr: self.sessions.keep(self.session, attr),
            keep_names: self.keep_names(parent),
            local: opened.local.is_some(),
        };
        Reply { file: opened.local, ..Reply::of(answer) }
    }

    pub(super) fn cache_remove(
        &self,
        cache: &Cached,
        parent: Ino,
        name: &[u8],
        remove: impl FnOnce() -> Result<()>,
    ) -> Result<Answer> {
        let _turn = self.sessions.order.of(parent);
        let mut subjects = vec![Subject::Names(parent), Subject::Attrs(parent)];
        let child = cache.fs.mounts().peek(&self.caller, parent, name)?.map(|(ino, _)| ino);
        subjects.extend(child.map(Subject::Attrs));
        let _changing = self.sessions.change(self.session, &subjects);
        self.noted(child.unwrap_or(NOTHING), remove, |()| NOTHING)?;
        if let Some(child) = child {
            self.sessions.name_gone(Some(self.session.id()), child, parent, name);
        }
        Ok(Answer::Done)
    }

    pub(super) fn cache_rename(
        &self,
        cache: &Cached,
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
        cache: &Cached,
        from: (Ino, &'n [u8]),
        to: (Ino, &'n [u8]),
        flags: u32,
    ) -> Result<Vec<(Ino, &'n [u8])>> {
        let _turns = self.sessions.order.of_two(from.0, to.0);
        let mut subjects = subjects_of_rename(from.0, to.0);
        let moved = cache.fs.mounts().peek(&self.caller, from.0, from.1)?;
        let replaced = cache.fs.mounts().peek(&self.caller, to.0, to.1)?;
        let inode = |(ino, _)| Subject::Attrs(ino);
        subjects.extend(moved.into_iter().chain(replaced).map(inode));
        let _changing = self.sessions.change(self.session, &subjects);
        let rename = || cache.fs.rename(&self.caller, from.0, from.1, to.0, to.1, flags);
        self.noted(moved.map_or(NOTHING, |(ino, _)| ino), rename, |()| NOTHING)?;
        Ok(self.after_rename((from, moved), (to, replaced), flags))
    }

    pub(super) fn cache_setattr(
        &self,
        cache: &Cached,
        ino: Ino,
        change: &SetAttr,
    ) -> Result<Answer> {
        let attr = {
            let _changing = self.sessions.change(self.session, &[Subject::Attrs(ino)]);
            match change.size_bytes {
                None => cache.fs.setattr(&self.caller, ino, change)?,
                Some(_) => {
                    let _turn = self.sessions.sizes.alone(ino);
                    let set = || cache.fs.setattr(&self.caller, ino, change);
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
