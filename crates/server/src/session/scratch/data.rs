//! Calls on the data of a scratch buffer's regular files.
//!
//! Data is read and written on the object itself, which the kernels of mounts on this node may
//! have open too: all meet in one page cache. What others keep of a file that changes is its
//! attributes (and pages of mappings), so those are recalled.

use super::striped::{StripedOpens, open_writes};
use crate::session::changes::Changes;
use crate::session::grants::Grants;
use crate::session::reply::{CallContext, Reply};
use crate::session::stack::Stack;
use forebay_failpoint::step;
use forebay_lease::leases::Subject;
use forebay_namespace::Namespace;
use forebay_proto::api::WriteMode;
use forebay_proto::api::ops::*;
use forebay_proto::net::frame::MAX_PAYLOAD_BYTES;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Caller, Errno, Ino, RequestId, Result, SetAttr};
use forebay_store::record::Answered;
use std::sync::Arc;

/// Answers them.
pub(super) struct ScratchData {
    namespace: Arc<Namespace>,
    grants: Arc<Grants>,
    changes: Arc<Changes>,
    striped: Arc<StripedOpens>,
}

impl ScratchData {
    pub(super) fn new(stack: &Stack, striped: &Arc<StripedOpens>) -> ScratchData {
        ScratchData {
            namespace: Arc::clone(&stack.namespace),
            grants: Arc::clone(&stack.grants),
            changes: Arc::clone(&stack.changes),
            striped: Arc::clone(striped),
        }
    }

    /// A call on what is in a file.
    pub(super) fn answer(
        &self,
        cx: &CallContext<'_>,
        call: &Call<'_>,
        room: &mut Vec<u8>,
    ) -> Reply {
        let ns = &*self.namespace;
        match *call {
            Call::Open { ino, open_flags, kill_suid, want_local } => {
                self.open(cx, ino, open_flags, kill_suid, want_local && cx.local)
            }
            Call::Read { ino, offset, bytes } => {
                // What the size says is there must not be taken off before it is read.
                let _turn = self.striped.layout(ino).map(|_| self.changes.data_shared(ino));
                self.read(ino, offset, bytes, room)
            }
            Call::Write { ino, append: true, kill_suid, sync, .. } => {
                self.append(cx, ino, WriteMode { append: true, kill_suid, sync }).into()
            }
            Call::Write { ino, offset, append, kill_suid, sync } => {
                let mode = WriteMode { append, kill_suid, sync };
                self.changes
                    .changed(cx.session, ino, || ns.write(ino, offset, cx.payload, mode))
                    .map(|count| Answer::Count(count as u64))
                    .into()
            }
            Call::Fsync { ino, data_only } => ns.fsync(ino, data_only).into(),
            Call::Fsyncdir(ino) => ns.fsyncdir(ino).into(),
            Call::Fallocate { ino, mode, offset, length } => {
                let done = match self.striped.layout(ino) {
                    None => self
                        .changes
                        .changed(cx.session, ino, || ns.fallocate(ino, mode, offset, length)),
                    Some(_) => {
                        let _changing = self.changes.change(cx.session, &[Subject::Attrs(ino)]);
                        let _turn = self.changes.data_alone(ino);
                        ns.fallocate(ino, mode, offset, length)
                    }
                };
                if mode & !libc::FALLOC_FL_KEEP_SIZE as u32 != 0 {
                    self.changes.bytes_gone(cx.session.id(), ino);
                }
                done.into()
            }
            Call::Seek { ino, offset, whence } => {
                ns.seek(ino, offset, whence).map(Answer::Count).into()
            }
            Call::CopyRange { source, source_offset, target, target_offset, length } => self
                .changes
                .changed(cx.session, target, || {
                    ns.copy_file_range(source, source_offset, target, target_offset, length)
                })
                .map(Answer::Count)
                .into(),
            _ => Reply::failed(Errno::ENOSYS),
        }
    }

    /// An append, which must not be made twice: written down before and after (two records of the
    /// log, without a wait).
    fn append(&self, cx: &CallContext<'_>, ino: Ino, mode: WriteMode) -> Result<Answer> {
        let ns = &self.namespace;
        let _changing = self.changes.change(cx.session, &[Subject::Attrs(ino)]);
        let _turn = self.changes.data_alone(ino);
        let alone = self.striped.changes_alone(ino);
        let (at, count) = (ns.getattr(ino)?.size_bytes, cx.payload.len() as u32);
        ns.answers().note(&cx.caller, Answered::Appending { ino, at, count, alone })?;
        step("append: written down");
        let written = match self.striped.layout(ino) {
            Some(_) => ns.data().append_at(ino, at, cx.payload, mode),
            None => ns.write(ino, at, cx.payload, mode),
        };
        step("append: written");
        let what = match written {
            Ok(count) => Answered::Appended(count as u32),
            Err(_) => Answered::Undone,
        };
        ns.answers().note(&cx.caller, what)?;
        step("append: done");
        written.map(|count| Answer::Count(count as u64))
    }

    fn open(
        &self,
        cx: &CallContext<'_>,
        ino: Ino,
        open_flags: u32,
        kill_suid: bool,
        want_local: bool,
    ) -> Reply {
        if open_flags as i32 & libc::O_TRUNC != 0 {
            return self
                .open_emptied(cx, ino, open_flags, kill_suid, want_local)
                .unwrap_or_else(Reply::failed);
        }
        let open = || self.namespace.open(&cx.caller, ino, open_flags, kill_suid, want_local);
        if let Some(layout) = self.striped.layout(ino) {
            let writes = open_writes(open_flags);
            let enter = || Ok(self.striped.opened(cx.session, ino, layout, writes));
            return open()
                .and_then(|_| {
                    if writes { self.changes.changed(cx.session, ino, enter) } else { enter() }
                })
                .map(Answer::OpenedStriped)
                .into();
        }
        let opened = match want_local {
            // From now on it may be written without a request: nobody else may believe its
            // attributes. Entered before the others may ask again.
            true => self.changes.changed(cx.session, ino, || {
                let opened = open()?;
                if opened.local.is_some() {
                    self.grants.opened_locally(cx.session, ino);
                }
                Ok(opened)
            }),
            false => open(),
        };
        opened.into()
    }

    /// An open that empties the file: written down before and after, as an append.
    fn open_emptied(
        &self,
        cx: &CallContext<'_>,
        ino: Ino,
        open_flags: u32,
        kill_suid: bool,
        want_local: bool,
    ) -> Result<Reply> {
        let ns = &self.namespace;
        let _changing = self.changes.change(cx.session, &[Subject::Attrs(ino)]);
        let _turn = self.changes.data_alone(ino);
        let alone = self.striped.changes_alone(ino);
        ns.answers().note(&cx.caller, Answered::Truncating { ino, size_bytes: 0, alone })?;
        step("open: size written down");
        let opened = ns.open(&cx.caller, ino, open_flags, kill_suid, want_local);
        step("open: emptied");
        let what = if opened.is_ok() { Answered::Truncated } else { Answered::Undone };
        ns.answers().note(&cx.caller, what)?;
        step("open: done");
        self.changes.bytes_gone(cx.session.id(), ino);
        let opened = opened?;
        if let Some(layout) = self.striped.layout(ino) {
            let open = self.striped.opened(cx.session, ino, layout, open_writes(open_flags));
            return Ok(Reply::of(Answer::OpenedStriped(open)));
        }
        if opened.local.is_some() {
            self.grants.opened_locally(cx.session, ino);
        }
        Ok(Ok(opened).into())
    }

    /// The same open, of a file that an earlier attempt emptied.
    pub(super) fn open_again(&self, cx: &CallContext<'_>, call: &Call<'_>) -> Reply {
        let Call::Open { ino, open_flags, kill_suid, want_local } = *call else {
            return Reply::failed(Errno::EPROTO);
        };
        if kill_suid {
            let change = SetAttr { kill_suid, ..SetAttr::default() };
            // Not the request that is repeated, but by the same user.
            let request = RequestId::default();
            let caller = Caller { request, pid: 0, ..cx.caller.clone() };
            if let Err(errno) = self.namespace.setattr(&caller, ino, &change) {
                return Reply::failed(errno);
            }
        }
        let open_flags = open_flags & !(libc::O_TRUNC as u32);
        self.open(cx, ino, open_flags, false, want_local && cx.local)
    }

    fn read(&self, ino: Ino, offset: u64, bytes: u32, room: &mut Vec<u8>) -> Reply {
        let bytes = bytes.min(MAX_PAYLOAD_BYTES) as usize;
        if room.len() < bytes {
            room.resize(bytes, 0);
        }
        match self.namespace.read(ino, offset, &mut room[..bytes]) {
            Ok(count) => Reply::data(count),
            Err(errno) => Reply::failed(errno),
        }
    }
}
