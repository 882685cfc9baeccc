//! Which mounts have files of a cache open.
//!
//! A cache drains a file after its last close, and reads what a kernel wrote then. So all opens are
//! counted, those by descriptor and those that are served, for each session: they end with it, and so does
//! the reference that they have together to each inode.
//! Invariant: a file that a client's kernel may have written while its session had ended is read when the
//! client is back, also if a drain has made it clean meanwhile.

use super::rights::CacheRights;
use crate::session::Session;
use crate::session::buffer_type::ClientFiles;
use crate::session::grants::Grants;
use crate::session::reply::CallContext;
use forebay_cache::CacheFs;
use forebay_proto::Ino;
use forebay_proto::api::ops::*;
use forebay_proto::net::session::{ClientId, Reclaim};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// What a session has open.
#[derive(Default)]
pub(in crate::session) struct Opens {
    served: HashMap<Ino, u64>,
    /// The kernel has the object itself.
    local: HashMap<Ino, u64>,
    /// Of all, those that may be written, and those that may be read.
    writing: HashSet<Ino>,
    reading: HashSet<Ino>,
}

impl Opens {
    fn of(&mut self, local: bool) -> &mut HashMap<Ino, u64> {
        match local {
            true => &mut self.local,
            false => &mut self.served,
        }
    }

    /// True if one of the opens is for reading.
    pub(super) fn may_read(&self, ino: Ino) -> bool {
        self.reading.contains(&ino)
    }

    /// True if one of the opens is for writing.
    pub(super) fn may_write(&self, ino: Ino) -> bool {
        self.writing.contains(&ino)
    }

    /// How often a file is open.
    #[cfg(test)]
    pub(in crate::session) fn count(&self, ino: Ino) -> u64 {
        [&self.served, &self.local].into_iter().filter_map(|opens| opens.get(&ino)).sum()
    }

    fn has(&self, ino: Ino) -> bool {
        self.local.contains_key(&ino) || self.served.contains_key(&ino)
    }

    /// Notes opens; true if there was none of this inode.
    fn add(&mut self, ino: Ino, count: u64, local: bool) -> bool {
        let is_first = !self.has(ino);
        *self.of(local).entry(ino).or_insert(0) += count;
        is_first
    }

    /// Takes up to `count` off; how many there were, and whether the last one went.
    fn take(&mut self, ino: Ino, count: u64, local: bool) -> (u64, bool) {
        let opens = self.of(local);
        let Some(have) = opens.get_mut(&ino) else { return (0, false) };
        let given = count.min(*have);
        *have -= given;
        if *have == 0 {
            opens.remove(&ino);
        }
        let is_last = !self.has(ino);
        if is_last {
            self.writing.remove(&ino);
            self.reading.remove(&ino);
        }
        (given, is_last)
    }
}

fn writes(open_flags: u32) -> bool {
    open_flags as i32 & libc::O_ACCMODE != libc::O_RDONLY
}

fn reads(open_flags: u32) -> bool {
    open_flags as i32 & libc::O_ACCMODE != libc::O_WRONLY
}

/// All of a cache's files that its clients have open.
pub(in crate::session) struct OpenFiles {
    fs: Arc<CacheFs>,
    /// Files that the kernels of clients may write although their session has ended.
    writing: Mutex<HashMap<ClientId, HashSet<Ino>>>,
}

impl OpenFiles {
    /// Nothing is open.
    pub(in crate::session) fn new(fs: Arc<CacheFs>) -> OpenFiles {
        OpenFiles { fs, writing: Mutex::default() }
    }

    /// What a client has open from before a restart of the server, or of its session. What is not there
    /// any more is passed over: it is ESTALE when it is used.
    pub(super) fn reopen(&self, cx: &CallContext<'_>, rights: &CacheRights, part: &Reclaim) {
        let cache = &self.fs;
        let client = cx.session.client();
        for (list, local) in [(&part.served, false), (&part.opens, true)] {
            for &(ino, count) in list {
                let written =
                    local && self.writing.lock().get(&client).is_some_and(|w| w.contains(&ino));
                // Only whose kernel is believed is believed what it had open, and how.
                if rights.must_know(cx, ino).is_err() {
                    continue;
                }
                let may = |flags| match cx.session.acts_as() {
                    None => true,
                    Some(who) => cache.mounts().may_open(who, ino, flags).is_ok(),
                };
                let reading = may(libc::O_RDONLY as u32);
                let writing = may(libc::O_WRONLY as u32);
                if !reading && !writing {
                    continue;
                }
                match cache.opens().reopen(ino, count, local, written) {
                    Ok(by_kernel) => {
                        let mut opens = cx.session.opens();
                        self.refer(opens.add(ino, count, local), ino);
                        if writing && (by_kernel || !local) {
                            opens.writing.insert(ino);
                        }
                        if reading {
                            opens.reading.insert(ino);
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%ino, %error, "a mount has a file open that is gone")
                    }
                }
            }
        }
        if part.last {
            self.writing.lock().remove(&client);
        }
    }

    /// What is open is referenced. A mount gives references and opens back by different ways: a number must
    /// not mean another file before the last close of this one is heard of.
    fn refer(&self, is_first: bool, ino: Ino) {
        if is_first {
            self.fs.mounts().take_reference(ino);
        }
    }

    /// An open was given out.
    pub(super) fn opened(
        &self,
        session: &Session,
        grants: &Grants,
        ino: Ino,
        local: bool,
        open_flags: u32,
    ) {
        if local {
            grants.opened_locally(session, ino);
        }
        {
            let mut opens = session.opens();
            self.refer(opens.add(ino, 1, local), ino);
            if writes(open_flags) {
                opens.writing.insert(ino);
            }
            if reads(open_flags) {
                opens.reading.insert(ino);
            }
        }
        if session.is_over() {
            // It ended just now, perhaps before this.
            self.end_opens(session);
        }
    }
}

impl ClientFiles for OpenFiles {
    fn closed(&self, session: &Session, ino: Ino, count: u64, local: bool) {
        let cache = &self.fs;
        let (given, is_last) = session.opens().take(ino, count, local);
        for _ in 0..given {
            cache.release(ino, local);
        }
        if is_last {
            cache.forget(ino, 1);
        }
    }

    fn end_opens(&self, session: &Session) {
        let cache = &self.fs;
        let opens = std::mem::take(&mut *session.opens());
        let writing: HashSet<Ino> =
            opens.writing.iter().filter(|ino| opens.local.contains_key(ino)).copied().collect();
        if !writing.is_empty() {
            let mut clients = self.writing.lock();
            clients.entry(session.client()).or_default().extend(writing);
        }
        let all: HashSet<Ino> = opens.served.keys().chain(opens.local.keys()).copied().collect();
        for (list, local) in [(opens.served, false), (opens.local, true)] {
            for (ino, count) in list {
                for _ in 0..count {
                    cache.opens().release_unheard(ino, local);
                }
            }
        }
        for ino in all {
            cache.forget(ino, 1);
        }
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
