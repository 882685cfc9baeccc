//! Calls on the data of a cache's files.

use super::Cached;
use crate::session::calls::{At, Reply};
use forebay_failpoint::step;
use forebay_lease::leases::Subject;
use forebay_proto::api::ops::*;
use forebay_proto::api::{Opened, WriteMode};
use forebay_proto::net::frame::MAX_PAYLOAD_BYTES;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Errno, Ino, Result};
use forebay_store::record::Answered;

impl At<'_> {
    pub(super) fn cache_data_call(
        &self,
        cache: &Cached,
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
                self.changed(ino, || cache.fs.write(ino, offset, self.payload, mode))
                    .map(|count| Answer::Count(count as u64))
                    .into()
            }
            Call::Fsync { ino, data_only } => cache.fs.fsync(ino, data_only).into(),
            Call::Fsyncdir(ino) => cache.fs.fsyncdir(ino).into(),
            Call::Fallocate { ino, mode, offset, length } => {
                let done = self.changed(ino, || cache.fs.fallocate(ino, mode, offset, length));
                if mode & !libc::FALLOC_FL_KEEP_SIZE as u32 != 0 {
                    self.sessions.bytes_gone(self.session.id(), ino);
                }
                done.into()
            }
            Call::Seek { ino, offset, whence } => {
                cache.fs.seek(ino, offset, whence).map(Answer::Count).into()
            }
            Call::CopyRange { source, source_offset, target, target_offset, length } => {
                let copy = || {
                    cache.fs.copy_file_range(source, source_offset, target, target_offset, length)
                };
                self.changed(target, copy).map(Answer::Count).into()
            }
            // A cache's files are not striped, nor are their names at other servers.
            _ => Reply::failed(Errno::ENOSYS),
        }
    }

    pub(super) fn cache_open(
        &self,
        cache: &Cached,
        ino: Ino,
        open_flags: u32,
        kill_suid: bool,
        want_local: bool,
    ) -> Result<Opened> {
        let want_local = want_local && self.local;
        let open = || {
            let opened = cache.fs.open(&self.caller, ino, open_flags, kill_suid, want_local)?;
            self.opened(cache, ino, opened.local.is_some(), open_flags);
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
        cache: &Cached,
        ino: Ino,
        offset: u64,
        bytes: u32,
        room: &mut Vec<u8>,
    ) -> Reply {
        let bytes = bytes.min(MAX_PAYLOAD_BYTES) as usize;
        if room.len() < bytes {
            room.resize(bytes, 0);
        }
        match cache.fs.read(ino, offset, &mut room[..bytes]) {
            Ok(count) => Reply { payload_bytes: count, ..Reply::of(Answer::Data) },
            Err(errno) => Reply::failed(errno),
        }
    }

    /// An append, which must not be made twice: written down before and after, as for other
    /// buffers; what is written down is about the object.
    fn cache_append(&self, cache: &Cached, ino: Ino, mode: WriteMode) -> Result<Answer> {
        let names = self.namespace();
        let _changing = self.sessions.change(self.session, &[Subject::Attrs(ino)]);
        let _turn = self.sessions.sizes.alone(ino);
        let alone = !self.sessions.leases.is_open_locally(ino);
        let (object, at) = cache.fs.mounts().data_of(ino)?;
        let count = self.payload.len() as u32;
        names
            .answers()
            .note(&self.caller, Answered::Appending { ino: object, at, count, alone })?;
        step("append: written down");
        let written = cache.fs.write(ino, at, self.payload, mode);
        step("append: written");
        let what = match written {
            Ok(count) => Answered::Appended(count as u32),
            Err(_) => Answered::Undone,
        };
        names.answers().note(&self.caller, what)?;
        step("append: done");
        written.map(|count| Answer::Count(count as u64))
    }
}
