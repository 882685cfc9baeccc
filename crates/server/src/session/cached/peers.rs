//! A cache over several servers: references to files whose names are at another one, and what its servers
//! ask each other.
//!
//! As with the shards of a namespace, the metadata server answers `Elsewhere`, and the mount takes the
//! file at its data server. Invariant: a mount whose kernel is not believed takes only what its user reaches by a
//! name on the PFS.

use super::Cached;
use crate::session::Sessions;
use crate::session::calls::{At, Reply};
use forebay_cache::PeerRequest;
use forebay_lease::leases::Subject;
use forebay_proto::attr::FileKind;
use forebay_proto::net::answer::KeptAttr;
use forebay_proto::net::call::Taking;
use forebay_proto::net::session::SessionId;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Attr, Errno, Ino, Result, ShardId};

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

impl At<'_> {
    /// True if what a name leads to is at another server; one reference to it, which the caller has, then
    /// goes to whoever takes it there.
    pub(super) fn is_elsewhere(&self, cache: &Cached, attr: &Attr) -> bool {
        let kind = FileKind::from_mode(attr.mode).unwrap_or(FileKind::Dir);
        let elsewhere = cache.fs.ownership().is_elsewhere(attr.ino, kind);
        if elsewhere {
            cache.fs.ownership().give_away(attr.ino);
        }
        elsewhere
    }

    pub(super) fn cache_take(&self, cache: &Cached, ino: Ino, after: Taking) -> Reply {
        match self.cache_taken(cache, &[ino], matches!(after, Taking::File { .. })).pop() {
            Some(Ok(attr)) => match after {
                Taking::File { want_local } => self
                    .cache_take_open(cache, &attr, want_local)
                    .inspect_err(|_| self.sessions.give_back(self.session, ino, 1))
                    .unwrap_or_else(Reply::failed),
                Taking::Name | Taking::Directory => Reply::of(self.entry(attr, false)),
            },
            Some(Err(errno)) => Reply::failed(errno),
            None => Reply::failed(Errno::ESTALE),
        }
    }

    pub(super) fn cache_take_all(&self, cache: &Cached, all: &[Ino]) -> Answer {
        let all = &all[..all.len().min(MAX_TAKEN)];
        let taken = self.cache_taken(cache, all, false).into_iter();
        let keep = |attr| self.sessions.keep(self.session, attr);
        Answer::Taken(taken.map(|attr| attr.ok().map(keep)).collect())
    }

    fn cache_taken(&self, cache: &Cached, all: &[Ino], to_write: bool) -> Vec<Result<Attr>> {
        let taken = cache.fs.peers().take(all, self.session.acts_as.as_ref(), to_write);
        for attr in taken.iter().flatten() {
            self.sessions.took(self.session, attr.ino);
        }
        taken
    }

    /// A file that this mount has just made.
    fn cache_take_open(&self, cache: &Cached, attr: &Attr, want_local: bool) -> Result<Reply> {
        let ino = attr.ino;
        if let Some(user) = &self.session.acts_as {
            // Who makes a file may write it whatever its mode; who owns it can give themselves the right.
            let made = user.uid == attr.uid && attr.size_bytes == 0;
            if !made {
                cache.fs.mounts().may_open(user, ino, libc::O_RDWR as u32)?;
            }
        }
        let want_local = want_local && self.local;
        let open = || {
            let opened = cache.fs.opens().open_made(&self.caller, ino, want_local)?;
            self.opened(cache, ino, opened.local.is_some(), libc::O_RDWR as u32);
            Ok(opened)
        };
        let opened = if want_local { self.changed(ino, open)? } else { open()? };
        let attr: KeptAttr = self.sessions.keep(self.session, *attr);
        let local = opened.local.is_some();
        Ok(Reply::with(Answer::Created { attr, keep_names: false, local }, opened.local))
    }
}

impl Cached {
    /// Answers the server of another part of the cache.
    pub(super) fn peer_answered(
        &self,
        sessions: &Sessions,
        from: ShardId,
        request: &[u8],
    ) -> Result<Vec<u8>> {
        let request = PeerRequest::decode(request)?;
        let Some(change) = request.names_changed() else {
            return self.fs.peers().answer_peer(from, request);
        };
        // Who believes what its attributes were, or has the name cached, hears of it first.
        let by: Option<SessionId> =
            Some(change.client).filter(|c| *c != 0).and_then(|c| sessions.session_of(c));
        let subjects = [Subject::Attrs(change.ino)];
        sessions.begin_change(by, &subjects);
        let told = self.fs.peers().answer_peer(from, request);
        sessions.end_change(&subjects);
        if let Some((dir, name)) = change.gone {
            sessions.name_gone(by, change.ino, dir, &name);
        }
        told
    }
}
