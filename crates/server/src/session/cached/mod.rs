//! Calls on a cache: its names are those of the PFS, its data is on flash or there.
//!
//! | module | what it does |
//! | --- | --- |
//! | `names`, `attributes`, `data` | names; attributes; what is in files |
//! | `journal` | changes of names, written down before and after |
//! | `opens` | which mounts have files open |
//! | `peers` | files of which the names are at another server |
//! | `rights` | what a mount may ask whose kernel is not believed |
//! | `replay` | a call that an earlier start of the server had, or may have had |
//!
//! Each answers the calls of its area, which [`Cached`] routes to it once.

mod attributes;
mod data;
mod journal;
mod names;
mod opens;
mod peers;
mod replay;
mod rights;

pub(super) use opens::{OpenFiles, Opens};

use super::Session;
use super::buffer_type::BufferType;
use super::grace::Grace;
use super::reply::{CallContext, Reply};
use super::stack::Stack;
use attributes::CacheAttributes;
use data::CacheData;
use forebay_cache::CacheFs;
use forebay_credentials::acting::Judged;
use forebay_lease::slots::Before;
use forebay_namespace::Namespace;
use forebay_proto::api::ops::*;
use forebay_proto::net::session::Reclaim;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Caller, Errno, Ino, Result, ShardId};
use journal::ChangeJournal;
use names::CacheNames;
use peers::{CachePeers, CacheTakes, is_of_names};
use replay::CacheReplay;
use rights::CacheRights;
use std::fs::File;
use std::sync::Arc;

/// The type.
pub(super) struct Cached {
    fs: Arc<CacheFs>,
    /// Has what is on flash.
    namespace: Arc<Namespace>,
    grace: Arc<Grace>,
    /// No mount may change anything.
    is_read_only: bool,
    rights: Arc<CacheRights>,
    open_files: Arc<OpenFiles>,
    names: Arc<CacheNames>,
    attributes: CacheAttributes,
    data: Arc<CacheData>,
    takes: CacheTakes,
    peers: CachePeers,
    replay: CacheReplay,
}

impl Cached {
    /// `open_files` is what `stack` was made with.
    pub(super) fn new(
        stack: &Stack,
        fs: Arc<CacheFs>,
        open_files: Arc<OpenFiles>,
        is_read_only: bool,
    ) -> Cached {
        fs.set_notify(stack.notify());
        let journal = Arc::new(ChangeJournal::new(&stack.namespace));
        let rights = Arc::new(CacheRights::new(stack.shard, &fs));
        let names = Arc::new(CacheNames::new(stack, &fs, &open_files, &journal, &rights));
        let data = Arc::new(CacheData::new(stack, &fs, &open_files, &journal));
        Cached {
            namespace: Arc::clone(&stack.namespace),
            grace: Arc::clone(&stack.grace),
            is_read_only,
            attributes: CacheAttributes::new(stack, &fs, &journal),
            takes: CacheTakes::new(stack, &fs, &open_files),
            peers: CachePeers::new(stack, &fs),
            replay: CacheReplay::new(stack, &fs, &names, &data, &journal),
            rights,
            open_files,
            names,
            data,
            fs,
        }
    }
}

impl BufferType for Cached {
    fn wait_until_settled(&self) {
        // A mount of the last server may have open what a call could drop.
        self.grace.wait();
    }

    fn caller(&self, session: &Session, caller: &Caller) -> Caller {
        match session.acts_as() {
            Some(acts_as) => acts_as.clone(),
            // Its process is another node's.
            None => Caller { pid: 0, ..caller.clone() },
        }
    }

    fn believes_kernel_of(&self, session: &Session) -> bool {
        session.acts_as().is_none()
    }

    fn owns_directories(&self) -> bool {
        // They are the PFS's, which others change too: the kernel asks for them.
        false
    }

    fn answer(&self, cx: &CallContext<'_>, call: &Call<'_>, room: &mut Vec<u8>) -> Reply {
        let _judged = Judged::by_kernel(cx.session.acts_as().is_none());
        if self.is_read_only && changes(call) {
            return Reply::failed(Errno::EROFS);
        }
        if let Err(errno) = self.rights.must_be_allowed(cx, call) {
            return Reply::failed(errno);
        }
        if !self.fs.ownership().has_names() && is_of_names(call) {
            // No mount that keeps to the numbers asks this here.
            return Reply::failed(Errno::ESTALE);
        }
        match *call {
            Call::Read { .. }
            | Call::Write { .. }
            | Call::Open { .. }
            | Call::Fsync { .. }
            | Call::Fsyncdir(_)
            | Call::Fallocate { .. }
            | Call::Seek { .. }
            | Call::CopyRange { .. } => self.data.answer(cx, call, room),
            Call::Getattr(_)
            | Call::Setattr { .. }
            | Call::Getxattr { .. }
            | Call::Listxattr(_)
            | Call::Readlink(_)
            | Call::Setxattr { .. }
            | Call::Removexattr { .. } => self.attributes.answer(cx, call, room),
            Call::Take { ino, after } => self.takes.take(cx, ino, after),
            Call::TakeAll(ref all) => Reply::of(self.takes.take_all(cx, all)),
            Call::Probe => cx.probe(&self.namespace).into(),
            Call::Statfs => self.fs.statfs().map(Answer::Statfs).into(),
            Call::SyncAll => self.fs.sync_all().into(),
            // A cache's files are not striped, nor written as logs.
            _ => self.names.answer(cx, call),
        }
    }

    fn replayed(&self, cx: &CallContext<'_>, call: &Call<'_>, before: Before) -> Option<Reply> {
        let _judged = Judged::by_kernel(cx.session.acts_as().is_none());
        if let Err(errno) = self.rights.must_be_allowed(cx, call) {
            return Some(Reply::failed(errno));
        }
        self.replay.answer(cx, call, before)
    }

    fn object_again(&self, _: &Caller, ino: Ino) -> Option<Arc<File>> {
        // The open of the first answer counts already.
        self.fs.mounts().object(ino).ok()
    }

    fn answer_peer(&self, from: ShardId, request: &[u8]) -> Result<Vec<u8>> {
        self.peers.answer(from, request)
    }

    fn must_know(&self, cx: &CallContext<'_>, ino: Ino) -> Result<()> {
        self.rights.must_know(cx, ino)
    }

    fn may_have_held(&self, session: &Session, ino: Ino) -> bool {
        match session.acts_as() {
            Some(who) => ino == Ino::ROOT || self.fs.mounts().may_reach(who, ino).is_ok(),
            None => true,
        }
    }

    fn reopen(&self, cx: &CallContext<'_>, part: &Reclaim) {
        self.open_files.reopen(cx, &self.rights, part);
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
