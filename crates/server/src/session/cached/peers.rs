//! A cache over several servers: references to files whose names are at another one, and what its servers
//! ask each other.
//!
//! As with the shards of a namespace, the metadata server answers `Elsewhere`, and the mount takes the
//! file at its data server. Invariant: a mount whose kernel is not believed takes only what its user reaches by a
//! name on the PFS.

use super::opens::OpenFiles;
use crate::session::changes::Changes;
use crate::session::grants::Grants;
use crate::session::reply::{CallContext, Reply};
use crate::session::stack::Stack;
use forebay_cache::{CacheFs, PeerRequest};
use forebay_lease::leases::Subject;
use forebay_proto::attr::FileKind;
use forebay_proto::net::answer::KeptAttr;
use forebay_proto::net::call::Taking;
use forebay_proto::net::session::SessionId;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Attr, Errno, Ino, Result, ShardId};
use std::sync::Arc;

/// Most references taken at once: more than the longest listing has.
const MAX_TAKEN: usize = 4096;

/// True for calls that only the metadata server can answer.
pub(super) fn is_of_names(call: &Call<'_>) -> bool {
    matches!(
        call,
        Call::Lookup { .. }
            | Call::Mknod { .. }
            | Call::Mkdir { .. }
            | Call::Symlink { .. }
            | Call::Link { .. }
            | Call::Unlink { .. }
            | Call::Rmdir { .. }
            | Call::Rename { .. }
            | Call::Create { .. }
            | Call::DirLimit(_)
            | Call::List { .. }
    )
}

/// True if what a name leads to is at another server; one reference to it, which the caller has, then
/// goes to whoever takes it there.
pub(super) fn is_elsewhere(fs: &CacheFs, attr: &Attr) -> bool {
    let kind = FileKind::from_mode(attr.mode).unwrap_or(FileKind::Dir);
    let elsewhere = fs.ownership().is_elsewhere(attr.ino, kind);
    if elsewhere {
        fs.ownership().give_away(attr.ino);
    }
    elsewhere
}

/// Gives references to files whose names are at another server.
pub(super) struct CacheTakes {
    fs: Arc<CacheFs>,
    grants: Arc<Grants>,
    changes: Arc<Changes>,
    open_files: Arc<OpenFiles>,
}

impl CacheTakes {
    pub(super) fn new(stack: &Stack, fs: &Arc<CacheFs>, open_files: &Arc<OpenFiles>) -> CacheTakes {
        CacheTakes {
            fs: Arc::clone(fs),
            grants: Arc::clone(&stack.grants),
            changes: Arc::clone(&stack.changes),
            open_files: Arc::clone(open_files),
        }
    }

    pub(super) fn take(&self, cx: &CallContext<'_>, ino: Ino, after: Taking) -> Reply {
        match self.taken(cx, &[ino], matches!(after, Taking::File { .. })).pop() {
            Some(Ok(attr)) => match after {
                Taking::File { want_local } => self
                    .take_open(cx, &attr, want_local)
                    .inspect_err(|_| self.grants.give_back(cx.session, ino, 1))
                    .unwrap_or_else(Reply::failed),
                Taking::Name | Taking::Directory => {
                    Reply::of(self.grants.entry(cx.session, attr, false))
                }
            },
            Some(Err(errno)) => Reply::failed(errno),
            None => Reply::failed(Errno::ESTALE),
        }
    }

    pub(super) fn take_all(&self, cx: &CallContext<'_>, all: &[Ino]) -> Answer {
        let all = &all[..all.len().min(MAX_TAKEN)];
        let taken = self.taken(cx, all, false).into_iter();
        let keep = |attr| self.grants.keep(cx.session, attr);
        Answer::Taken(taken.map(|attr| attr.ok().map(keep)).collect())
    }

    fn taken(&self, cx: &CallContext<'_>, all: &[Ino], to_write: bool) -> Vec<Result<Attr>> {
        let taken = self.fs.peers().take(all, cx.session.acts_as(), to_write);
        for attr in taken.iter().flatten() {
            self.grants.took(cx.session, attr.ino);
        }
        taken
    }

    /// A file that this mount has just made.
    fn take_open(&self, cx: &CallContext<'_>, attr: &Attr, want_local: bool) -> Result<Reply> {
        let ino = attr.ino;
        if let Some(user) = cx.session.acts_as() {
            // Who makes a file may write it whatever its mode; who owns it can give themselves the right.
            let made = user.uid == attr.uid && attr.size_bytes == 0;
            if !made {
                self.fs.mounts().may_open(user, ino, libc::O_RDWR as u32)?;
            }
        }
        let want_local = want_local && cx.local;
        let open = || {
            let opened = self.fs.opens().open_made(&cx.caller, ino, want_local)?;
            self.open_files.opened(
                cx.session,
                &self.grants,
                ino,
                opened.local.is_some(),
                libc::O_RDWR as u32,
            );
            Ok(opened)
        };
        let opened =
            if want_local { self.changes.changed(cx.session, ino, open)? } else { open()? };
        let attr: KeptAttr = self.grants.keep(cx.session, *attr);
        let local = opened.local.is_some();
        Ok(Reply::with(Answer::Created { attr, keep_names: false, local }, opened.local))
    }
}

/// Answers the servers of other parts of the cache.
pub(super) struct CachePeers {
    fs: Arc<CacheFs>,
    changes: Arc<Changes>,
}

impl CachePeers {
    pub(super) fn new(stack: &Stack, fs: &Arc<CacheFs>) -> CachePeers {
        CachePeers { fs: Arc::clone(fs), changes: Arc::clone(&stack.changes) }
    }

    pub(super) fn answer(&self, from: ShardId, request: &[u8]) -> Result<Vec<u8>> {
        let request = PeerRequest::decode(request)?;
        let Some(change) = request.names_changed() else {
            return self.fs.peers().answer_peer(from, request);
        };
        // Who believes what its attributes were, or has the name cached, hears of it first.
        let by: Option<SessionId> =
            Some(change.client).filter(|c| *c != 0).and_then(|c| self.changes.session_of(c));
        let subjects = [Subject::Attrs(change.ino)];
        self.changes.begin(by, &subjects);
        let told = self.fs.peers().answer_peer(from, request);
        self.changes.end(&subjects);
        if let Some((dir, name)) = change.gone {
            self.changes.name_gone(by, change.ino, dir, &name);
        }
        told
    }
}
