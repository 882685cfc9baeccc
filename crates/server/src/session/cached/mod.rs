//! Calls on a cache: its names are those of the PFS, its data is on flash or there.
//!
//! | module | what it does |
//! | --- | --- |
//! | `names`, `data` | names and attributes; what is in files |
//! | `opens` | which mounts have files open |
//! | `peers` | files of which the names are at another server |
//! | `rights` | what a mount may ask whose kernel is not believed |
//! | `replay` | a call that an earlier start of the server had, or may have had |

mod data;
mod names;
mod opens;
mod peers;
mod replay;
mod rights;

pub(super) use opens::Opens;

use super::buffer_type::BufferType;
use super::calls::{At, Reply};
use super::grace::Grace;
use super::inodes::Inodes;
use super::{Session, Sessions};
use forebay_cache::CacheFs;
use forebay_credentials::acting::Judged;
use forebay_lease::leases::Subject;
use forebay_lease::slots::Before;
use forebay_proto::api::Notify;
use forebay_proto::api::ops::*;
use forebay_proto::net::call::MAX_LISTING_BYTES;
use forebay_proto::net::session::{ClientId, Reclaim};
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Caller, Errno, Ino, Result, ShardId};
use parking_lot::Mutex;
use peers::is_of_names;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::sync::Arc;

/// The type.
pub(super) struct Cached {
    fs: Arc<CacheFs>,
    /// Files that the kernels of clients may write although their session has ended.
    writing: Mutex<HashMap<ClientId, HashSet<Ino>>>,
}

impl Cached {
    pub(super) fn new(fs: Arc<CacheFs>) -> Cached {
        Cached { fs, writing: Mutex::default() }
    }
}

impl BufferType for Cached {
    fn files(&self) -> &dyn FileSystem {
        &*self.fs
    }

    fn inodes(&self) -> Arc<dyn Inodes> {
        self.fs.clone()
    }

    fn set_notify(&self, notify: Arc<dyn Notify>) {
        self.fs.set_notify(notify);
    }

    fn wait_until_settled(&self, grace: &Grace) {
        // A mount of the last server may have open what a call could drop.
        grace.wait();
    }

    fn caller(&self, session: &Session, caller: &Caller) -> Caller {
        match &session.acts_as {
            Some(acts_as) => acts_as.clone(),
            // Its process is another node's.
            None => Caller { pid: 0, ..caller.clone() },
        }
    }

    fn believes_kernel_of(&self, session: &Session) -> bool {
        session.acts_as.is_none()
    }

    fn owns_directories(&self) -> bool {
        // They are the PFS's, which others change too: the kernel asks for them.
        false
    }

    fn answer(&self, at: &At<'_>, call: &Call<'_>, room: &mut Vec<u8>) -> Reply {
        let _judged = Judged::by_kernel(at.session.acts_as.is_none());
        at.cache_call(self, call, room)
    }

    fn answer_once(
        &self,
        at: &At<'_>,
        call: &Call<'_>,
        before: Before,
        room: &mut Vec<u8>,
    ) -> Reply {
        let _judged = Judged::by_kernel(at.session.acts_as.is_none());
        at.cache_answer_once(self, call, before, room)
    }

    fn object_again(&self, _: &Caller, ino: Ino) -> Option<Arc<File>> {
        // The open of the first answer counts already.
        self.fs.mounts().object(ino).ok()
    }

    fn answer_peer(&self, sessions: &Sessions, from: ShardId, request: &[u8]) -> Result<Vec<u8>> {
        self.peer_answered(sessions, from, request)
    }

    fn must_know(&self, at: &At<'_>, ino: Ino) -> Result<()> {
        at.must_know(self, ino)
    }

    fn may_have_held(&self, session: &Session, ino: Ino) -> bool {
        match &session.acts_as {
            Some(who) => ino == Ino::ROOT || self.fs.mounts().may_reach(who, ino).is_ok(),
            None => true,
        }
    }

    fn reopen(&self, at: &At<'_>, part: &Reclaim) {
        self.opens_again(at, part);
    }

    fn closed(&self, session: &Session, ino: Ino, count: u64, local: bool) {
        self.opens_closed(session, ino, count, local);
    }

    fn end_opens(&self, session: &Session) {
        self.opens_ended(session);
    }

    fn client_left(&self, client: ClientId, held: Vec<Ino>) {
        self.fs.mounts().mount_left(client, held);
    }

    fn client_is_back(&self, client: ClientId) {
        self.fs.mounts().mount_is_back(client);
    }

    fn client_has_gone(&self, client: ClientId) {
        self.writing.lock().remove(&client);
        self.fs.mounts().mount_is_back(client);
    }

    fn clients_are_back(&self, given_up: &[ClientId]) {
        self.fs.mounts().mounts_are_back(given_up);
    }
}

/// True if a call changes something that others see.
fn changes(call: &Call<'_>) -> bool {
    match call {
        Call::Open { open_flags, .. } => {
            call.truncates() || *open_flags as i32 & libc::O_ACCMODE != libc::O_RDONLY
        }
        Call::Forget(_) | Call::Release(_) | Call::Close(_) | Call::Lock(_) | Call::Take { .. } => {
            false
        }
        other => other.is_once_only(),
    }
}

impl At<'_> {
    /// Answers any call on a cache's files.
    fn cache_call(&self, cache: &Cached, call: &Call<'_>, room: &mut Vec<u8>) -> Reply {
        let who = &self.caller;
        if self.sessions.facts.is_read_only() && changes(call) {
            return Reply::failed(Errno::EROFS);
        }
        if let Err(errno) = self.must_be_allowed(cache, call) {
            return Reply::failed(errno);
        }
        if !cache.fs.ownership().has_names() && is_of_names(call) {
            // No mount that keeps to the numbers asks this here.
            return Reply::failed(Errno::ESTALE);
        }
        let answer = match *call {
            Call::Take { ino, after } => return self.cache_take(cache, ino, after),
            Call::TakeAll(ref all) => Ok(self.cache_take_all(cache, all)),
            Call::Lookup { parent, name } => self.cache_lookup(cache, parent, name),
            Call::Mknod { parent, name, kind, args, rdev, .. } => {
                let make = || cache.fs.mknod(who, parent, name, kind, args, rdev);
                self.cache_make(cache, parent, None, make)
            }
            Call::Mkdir { parent, name, args, .. } => {
                self.cache_make(cache, parent, None, || cache.fs.mkdir(who, parent, name, args))
            }
            Call::Symlink { parent, name, target, .. } => {
                self.cache_make(cache, parent, None, || cache.fs.symlink(who, parent, name, target))
            }
            Call::Link { ino, parent, name } => {
                self.cache_make(cache, parent, Some(ino), || cache.fs.link(who, ino, parent, name))
            }
            Call::Unlink { parent, name } => {
                self.cache_remove(cache, parent, name, || cache.fs.unlink(who, parent, name))
            }
            Call::Rmdir { parent, name } => {
                self.cache_remove(cache, parent, name, || cache.fs.rmdir(who, parent, name))
            }
            Call::Rename { parent, name, new_parent, new_name, flags } => {
                self.cache_rename(cache, (parent, name), (new_parent, new_name), flags)
            }
            Call::Create { parent, name, args, want_local, .. } => {
                let created = self.cache_create(cache, parent, name, args, want_local);
                return created.unwrap_or_else(Reply::failed);
            }
            Call::Tmpfile { parent, args, want_local } => {
                let made = self.cache_tmpfile(cache, parent, args, want_local);
                return made.unwrap_or_else(Reply::failed);
            }
            Call::DirLimit(ino) => cache.fs.dir_limit(ino).map(Answer::Limit),
            Call::List { ino, after, limit, max_bytes, plus } => {
                let plus = plus && self.may_stat_below(cache, ino);
                self.list(ino, after, limit, max_bytes.min(MAX_LISTING_BYTES), plus)
            }
            Call::Setattr { ino, ref change } => self.cache_setattr(cache, ino, change),
            Call::Getxattr { ino, name } => return self.bytes(cache.fs.getxattr(ino, name), room),
            Call::Listxattr(ino) => return self.bytes(cache.fs.listxattr(ino), room),
            Call::Readlink(ino) => return self.bytes(cache.fs.readlink(ino), room),
            Call::Setxattr { ino, name, flags, kill_sgid } => {
                let _changing = self.sessions.change(self.session, &[Subject::Attrs(ino)]);
                let set = cache.fs.setxattr(who, ino, name, self.payload, flags, kill_sgid);
                set.map(|()| Answer::Done)
            }
            Call::Removexattr { ino, name } => {
                let _changing = self.sessions.change(self.session, &[Subject::Attrs(ino)]);
                cache.fs.removexattr(who, ino, name).map(|()| Answer::Done)
            }
            Call::Getattr(ino) => self.getattr(ino),
            Call::Probe => return self.probe().into(),
            Call::Statfs => cache.fs.statfs().map(Answer::Statfs),
            Call::SyncAll => cache.fs.sync_all().map(|()| Answer::Done),
            ref data => return self.cache_data_call(cache, data, room),
        };
        answer.into()
    }
}
