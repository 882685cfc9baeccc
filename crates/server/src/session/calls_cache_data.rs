//! Calls on the data of a cache's files, and which mounts have them open.
//!
//! A cache drains a file after its last close, and reads what a kernel wrote then. So all opens are
//! counted, those by descriptor and those that are served, for each session: they end with it, and so does
//! the reference that they have together to each inode.
//! Invariant: a file that a client's kernel may have written while its session had ended is read when the
//! client is back, also if a drain has made it clean meanwhile.

use super::calls::{At, Reply};
use super::leases::Subject;
use super::{Session, Sessions};
use crate::cache::CacheFs;
use crate::namespace::record::Answered;
use crate::step::step;
use forebay_proto::api::{FileSystem, Opened, WriteMode};
use forebay_proto::net::frame::MAX_PAYLOAD_BYTES;
use forebay_proto::net::session::Reclaim;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Errno, Ino, Result};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// What a session has open.
#[derive(Default)]
pub(super) struct Opens {
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

impl Sessions {
    /// Opens of a session are over.
    pub(super) fn closed(&self, session: &Session, ino: Ino, count: u64, local: bool) {
        let Some(cache) = &self.cache else { return };
        let (given, is_last) = session.opens.lock().take(ino, count, local);
        for _ in 0..given {
            cache.release(ino, local);
        }
        if is_last {
            cache.forget(ino, 1);
        }
    }

    /// The session is over: so is what it has open, but a kernel of its client may write on.
    pub(super) fn end_opens(&self, session: &Session) {
        let Some(cache) = &self.cache else { return };
        let opens = std::mem::take(&mut *session.opens.lock());
        let writing: HashSet<Ino> =
            opens.writing.iter().filter(|ino| opens.local.contains_key(ino)).copied().collect();
        if !writing.is_empty() {
            let mut table = self.table.lock();
            table.writing.entry(session.attach.client).or_default().extend(writing);
        }
        let all: HashSet<Ino> = opens.served.keys().chain(opens.local.keys()).copied().collect();
        for (list, local) in [(opens.served, false), (opens.local, true)] {
            for (ino, count) in list {
                for _ in 0..count {
                    cache.release(ino, local);
                }
            }
        }
        for ino in all {
            cache.forget(ino, 1);
        }
    }
}

impl At<'_> {
    /// What is open is referenced. A mount gives references and opens back by different ways: a number must
    /// not mean another file before the last close of this one is heard of.
    fn refer(&self, is_first: bool, ino: Ino) {
        if let (true, Some(cache)) = (is_first, &self.sessions.cache) {
            cache.take_reference(ino);
        }
    }

    /// An open was given out.
    pub(super) fn opened(&self, ino: Ino, local: bool, open_flags: u32) {
        if local {
            self.sessions.leases.opened_locally(ino, self.session.id());
        }
        {
            let mut opens = self.session.opens.lock();
            self.refer(opens.add(ino, 1, local), ino);
            if writes(open_flags) {
                opens.writing.insert(ino);
            }
            if reads(open_flags) {
                opens.reading.insert(ino);
            }
        }
        if self.session.is_over() {
            // It ended just now, perhaps before this.
            self.sessions.end_opens(self.session);
        }
    }

    /// What a client has open from before a restart of the server, or of its session. What is not there
    /// any more is passed over: it is ESTALE when it is used.
    pub(super) fn reopen(&self, part: &Reclaim) {
        let Some(cache) = &self.sessions.cache else { return };
        let client = self.session.attach.client;
        for (list, local) in [(&part.served, false), (&part.opens, true)] {
            for &(ino, count) in list {
                let written = local
                    && self
                        .sessions
                        .table
                        .lock()
                        .writing
                        .get(&client)
                        .is_some_and(|w| w.contains(&ino));
                // Only whose kernel is believed is believed what it had open, and how.
                if self.must_know(ino).is_err() {
                    continue;
                }
                let may = |flags| match &self.session.acts_as {
                    None => true,
                    Some(who) => cache.may_open(who, ino, flags).is_ok(),
                };
                let reading = may(libc::O_RDONLY as u32);
                let writing = may(libc::O_WRONLY as u32);
                if !reading && !writing {
                    continue;
                }
                match cache.reopen(ino, count, local, written) {
                    Ok(by_kernel) => {
                        let mut opens = self.session.opens.lock();
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
            self.sessions.table.lock().writing.remove(&client);
        }
    }

    pub(super) fn cache_data_call(
        &self,
        cache: &Arc<CacheFs>,
        call: &Call<'_>,
        room: &mut Vec<u8>,
    ) -> Reply {
        match *call {
            Call::Open { ino, open_flags, kill_suid, want_local } => {
                self.cache_open(cache, ino, open_flags, kill_suid, want_local).into()
            }
            Call::Read { ino, offset, bytes } => self.cache_read(cache, ino, offset, bytes, room),
            Call::Write { ino, append: true, kill_suid, sync, .. } => {
                let mode = WriteMode { append: true, kill_suid, sync };
                self.cache_append(cache, ino, mode).into()
            }
            Call::Write { ino, offset, append, kill_suid, sync } => {
                let mode = WriteMode { append, kill_suid, sync };
                self.changed(ino, || cache.write(ino, offset, self.payload, mode))
                    .map(|count| Answer::Count(count as u64))
                    .into()
            }
            Call::Fsync { ino, data_only } => cache.fsync(ino, data_only).into(),
            Call::Fsyncdir(ino) => cache.fsyncdir(ino).into(),
            Call::Fallocate { ino, mode, offset, length } => {
                let done = self.changed(ino, || cache.fallocate(ino, mode, offset, length));
                if mode & !libc::FALLOC_FL_KEEP_SIZE as u32 != 0 {
                    self.sessions.bytes_gone(self.session.id(), ino);
                }
                done.into()
            }
            Call::Seek { ino, offset, whence } => {
                cache.seek(ino, offset, whence).map(Answer::Count).into()
            }
            Call::CopyRange { source, source_offset, target, target_offset, length } => {
                let copy =
                    || cache.copy_file_range(source, source_offset, target, target_offset, length);
                self.changed(target, copy).map(Answer::Count).into()
            }
            // A cache's files are not striped, nor are their names at other servers.
            _ => Reply::failed(Errno::ENOSYS),
        }
    }

    pub(super) fn cache_open(
        &self,
        cache: &CacheFs,
        ino: Ino,
        open_flags: u32,
        kill_suid: bool,
        want_local: bool,
    ) -> Result<Opened> {
        let want_local = want_local && self.local;
        let open = || {
            let opened = cache.open(&self.caller, ino, open_flags, kill_suid, want_local)?;
            self.opened(ino, opened.local.is_some(), open_flags);
            Ok(opened)
        };
        if open_flags as i32 & libc::O_TRUNC != 0 {
            let _changing = self.sessions.change(self.session, &[Subject::Attrs(ino)]);
            let _turn = self.sessions.sizes.alone(ino);
            let opened = self.noted(Ino(0), open, |_| Ino(0));
            self.sessions.bytes_gone(self.session.id(), ino);
            return opened;
        }
        match want_local {
            // From now on it may be written without a request: nobody else may believe its attributes.
            true => self.changed(ino, open),
            false => open(),
        }
    }

    fn cache_read(
        &self,
        cache: &CacheFs,
        ino: Ino,
        offset: u64,
        bytes: u32,
        room: &mut Vec<u8>,
    ) -> Reply {
        let bytes = bytes.min(MAX_PAYLOAD_BYTES) as usize;
        if room.len() < bytes {
            room.resize(bytes, 0);
        }
        match cache.read(ino, offset, &mut room[..bytes]) {
            Ok(count) => Reply { payload_bytes: count, ..Reply::of(Answer::Data) },
            Err(errno) => Reply::failed(errno),
        }
    }

    /// An append, which must not be made twice: written down before and after, as for other
    /// buffers; what is written down is about the object.
    fn cache_append(&self, cache: &CacheFs, ino: Ino, mode: WriteMode) -> Result<Answer> {
        let names = self.namespace();
        let _changing = self.sessions.change(self.session, &[Subject::Attrs(ino)]);
        let _turn = self.sessions.sizes.alone(ino);
        let alone = !self.sessions.leases.is_open_locally(ino);
        let (object, at) = cache.data_of(ino)?;
        let count = self.payload.len() as u32;
        names.note_answer(&self.caller, Answered::Appending { ino: object, at, count, alone })?;
        step("append: written down");
        let written = cache.write(ino, at, self.payload, mode);
        step("append: written");
        let what = match written {
            Ok(count) => Answered::Appended(count as u32),
            Err(_) => Answered::Undone,
        };
        names.note_answer(&self.caller, what)?;
        step("append: done");
        written.map(|count| Answer::Count(count as u64))
    }
}
