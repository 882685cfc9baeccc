//! Calls on the data of a cache's files.

use super::journal::{ChangeJournal, NOTHING};
use super::opens::OpenFiles;
use crate::session::changes::Changes;
use crate::session::grants::Grants;
use crate::session::reply::{CallContext, Reply};
use crate::session::stack::Stack;
use forebay_cache::CacheFs;
use forebay_failpoint::step;
use forebay_lease::leases::Subject;
use forebay_proto::api::ops::*;
use forebay_proto::api::{Opened, WriteMode};
use forebay_proto::net::frame::MAX_PAYLOAD_BYTES;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Errno, Ino, Result};
use forebay_store::record::Answered;
use std::sync::Arc;

/// Answers them.
pub(super) struct CacheData {
    fs: Arc<CacheFs>,
    grants: Arc<Grants>,
    changes: Arc<Changes>,
    open_files: Arc<OpenFiles>,
    journal: Arc<ChangeJournal>,
}

impl CacheData {
    pub(super) fn new(
        stack: &Stack,
        fs: &Arc<CacheFs>,
        open_files: &Arc<OpenFiles>,
        journal: &Arc<ChangeJournal>,
    ) -> CacheData {
        CacheData {
            fs: Arc::clone(fs),
            grants: Arc::clone(&stack.grants),
            changes: Arc::clone(&stack.changes),
            open_files: Arc::clone(open_files),
            journal: Arc::clone(journal),
        }
    }

    pub(super) fn answer(
        &self,
        cx: &CallContext<'_>,
        call: &Call<'_>,
        room: &mut Vec<u8>,
    ) -> Reply {
        match *call {
            Call::Open { ino, open_flags, kill_suid, want_local } => {
                self.open(cx, ino, open_flags, kill_suid, want_local).into()
            }
            Call::Read { ino, offset, bytes } => self.read(ino, offset, bytes, room),
            Call::Write { ino, append: true, kill_suid, sync, .. } => {
                let mode = WriteMode { append: true, kill_suid, sync };
                self.append(cx, ino, mode).into()
            }
            Call::Write { ino, offset, append, kill_suid, sync } => {
                let mode = WriteMode { append, kill_suid, sync };
                self.changes
                    .changed(cx.session, ino, || self.fs.write(ino, offset, cx.payload, mode))
                    .map(|count| Answer::Count(count as u64))
                    .into()
            }
            Call::Fsync { ino, data_only } => self.fs.fsync(ino, data_only).into(),
            Call::Fsyncdir(ino) => self.fs.fsyncdir(ino).into(),
            Call::Fallocate { ino, mode, offset, length } => {
                let done = self
                    .changes
                    .changed(cx.session, ino, || self.fs.fallocate(ino, mode, offset, length));
                if mode & !libc::FALLOC_FL_KEEP_SIZE as u32 != 0 {
                    self.changes.bytes_gone(cx.session.id(), ino);
                }
                done.into()
            }
            Call::Seek { ino, offset, whence } => {
                self.fs.seek(ino, offset, whence).map(Answer::Count).into()
            }
            Call::CopyRange { source, source_offset, target, target_offset, length } => {
                let copy = || {
                    self.fs.copy_file_range(source, source_offset, target, target_offset, length)
                };
                self.changes.changed(cx.session, target, copy).map(Answer::Count).into()
            }
            _ => Reply::failed(Errno::ENOSYS),
        }
    }

    pub(super) fn open(
        &self,
        cx: &CallContext<'_>,
        ino: Ino,
        open_flags: u32,
        kill_suid: bool,
        want_local: bool,
    ) -> Result<Opened> {
        let want_local = want_local && cx.local;
        let open = || {
            let opened = self.fs.open(&cx.caller, ino, open_flags, kill_suid, want_local)?;
            self.open_files.opened(
                cx.session,
                &self.grants,
                ino,
                opened.local.is_some(),
                open_flags,
            );
            Ok(opened)
        };
        if open_flags as i32 & libc::O_TRUNC != 0 {
            let _changing = self.changes.change(cx.session, &[Subject::Attrs(ino)]);
            let _turn = self.changes.data_alone(ino);
            let opened = self.journal.noted(cx, NOTHING, open, |_| NOTHING);
            self.changes.bytes_gone(cx.session.id(), ino);
            return opened;
        }
        match want_local {
            // From now on it may be written without a request: nobody else may believe its attributes.
            true => self.changes.changed(cx.session, ino, open),
            false => open(),
        }
    }

    fn read(&self, ino: Ino, offset: u64, bytes: u32, room: &mut Vec<u8>) -> Reply {
        let bytes = bytes.min(MAX_PAYLOAD_BYTES) as usize;
        if room.len() < bytes {
            room.resize(bytes, 0);
        }
        match self.fs.read(ino, offset, &mut room[..bytes]) {
            Ok(count) => Reply { payload_bytes: count, ..Reply::of(Answer::Data) },
            Err(errno) => Reply::failed(errno),
        }
    }

    /// An append, which must not be made twice: written down before and after, as for other
    /// buffers; what is written down is about the object.
    fn append(&self, cx: &CallContext<'_>, ino: Ino, mode: WriteMode) -> Result<Answer> {
        let _changing = self.changes.change(cx.session, &[Subject::Attrs(ino)]);
        let _turn = self.changes.data_alone(ino);
        let alone = !self.grants.is_open_locally(ino);
        let (object, at) = self.fs.mounts().data_of(ino)?;
        let count = cx.payload.len() as u32;
        self.journal.note(cx, Answered::Appending { ino: object, at, count, alone })?;
        step("append: written down");
        let written = self.fs.write(ino, at, cx.payload, mode);
        step("append: written");
        let what = match written {
            Ok(count) => Answered::Appended(count as u32),
            Err(_) => Answered::Undone,
        };
        self.journal.note(cx, what)?;
        step("append: done");
        written.map(|count| Answer::Count(count as u64))
    }
}
