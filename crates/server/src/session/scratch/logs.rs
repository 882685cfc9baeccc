//! Calls on files that are written as logs: logs begin and publish, and where a range of a file is.
//!
//! A mount that writes such a file has it open for writing, so it is entered like one that writes a striped file
//! ([`super::striped`]): nobody else is leased its attributes meanwhile. A publication changes the file, so it comes as
//! any change does. It may come again, and late: the index knows what was published.

use super::striped::StripedOpens;
use crate::session::Session;
use crate::session::changes::Changes;
use crate::session::grace::Grace;
use crate::session::grants::Grants;
use crate::session::reply::{CallContext, Reply};
use crate::session::stack::Stack;
use crate::session::table::SessionTable;
use forebay_log::Extent;
use forebay_namespace::{Asked, LogWriters, Namespace, Now, Published};
use forebay_proto::layout::publish_xattr;
use forebay_proto::net::session::ClientId;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Errno, Ino, ObjectId, Result};
use std::sync::{Arc, Weak};

/// Who has one of these may write.
const ANY_WRITE: u32 = 0o222;

/// Answers them.
pub(super) struct ScratchLogs {
    namespace: Arc<Namespace>,
    grants: Arc<Grants>,
    changes: Arc<Changes>,
    striped: Arc<StripedOpens>,
    grace: Arc<Grace>,
}

impl ScratchLogs {
    pub(super) fn new(stack: &Stack, striped: &Arc<StripedOpens>) -> ScratchLogs {
        ScratchLogs {
            namespace: Arc::clone(&stack.namespace),
            grants: Arc::clone(&stack.grants),
            changes: Arc::clone(&stack.changes),
            striped: Arc::clone(striped),
            grace: Arc::clone(&stack.grace),
        }
    }

    /// A call on logs.
    pub(super) fn answer(
        &self,
        cx: &CallContext<'_>,
        call: &Call<'_>,
        room: &mut Vec<u8>,
    ) -> Reply {
        let client = cx.session.client().0;
        match *call {
            Call::LogBegin { ino, shard } => self
                .changes
                .changed(cx.session, ino, || self.namespace.logs().begin(ino, client, shard))
                .map(|(log, newest_ns)| Answer::LogBegun { log, newest_ns })
                .into(),
            Call::LogOpen { object, make } => self.log_open(cx, object, make),
            Call::LogPublish { ino, log, from, to, mtime, sync, ends, turn, clean } => {
                let Some(extents) = Extent::all(cx.payload) else {
                    return Reply::failed(Errno::EPROTO);
                };
                let extents = &extents;
                let published =
                    Published { log, from, to, extents, mtime, sync, ends, turn, clean };
                self.changes
                    .changed(cx.session, ino, || {
                        self.namespace.striped().publish_log(ino, client, &published)
                    })
                    .map(|Now { published, ended, newest_ns }| Answer::LogPublished {
                        published,
                        ended,
                        newest_ns,
                    })
                    .into()
            }
            Call::LogMap { ino, offset, bytes, .. } => {
                self.log_map(cx, (ino, offset, bytes), room).unwrap_or_else(Reply::failed)
            }
            _ => Reply::failed(Errno::ENOSYS),
        }
    }

    /// Before a call that is to see all that was written, other mounts publish: of a file whose readers see that always, and of any
    /// file in logs that is read by who may write it, is cut, appended to or changed in its objects, is published by somebody else
    /// than its writer, or that nobody may write any more. So what was written before such a change is before it for all.
    pub(super) fn ask_writers(&self, cx: &CallContext<'_>, call: &Call<'_>) -> Result<()> {
        let (ino, always) = match call {
            Call::Getattr(ino) | Call::Read { ino, .. } | Call::Seek { ino, .. } => (*ino, false),
            Call::LogMap { ino, all, .. } => (*ino, *all),
            Call::Fallocate { ino, .. } | Call::Write { ino, append: true, .. } => (*ino, true),
            Call::Open { ino, open_flags, .. } => {
                if *open_flags as i32 & libc::O_TRUNC == 0 {
                    return Ok(());
                }
                (*ino, true)
            }
            Call::Setattr { ino, change } => {
                let is_read_only = change.mode.is_some_and(|mode| mode & ANY_WRITE == 0);
                (*ino, is_read_only || change.size_bytes.is_some())
            }
            Call::Setxattr { ino, name, .. } if *name == publish_xattr::NAME => (*ino, true),
            _ => return Ok(()),
        };
        match self.striped.layout(ino) {
            Some(layout) if layout.log && (layout.strict || always) => {
                self.namespace.logs().ask_writers(ino, Some(cx.session.client().0))
            }
            _ => Ok(()),
        }
    }

    fn log_open(&self, cx: &CallContext<'_>, object: ObjectId, make: bool) -> Reply {
        match self.namespace.stripes().open_log(object, make) {
            Ok(file) if cx.local => {
                Reply::with(Answer::Opened { local: true }, Some(Arc::new(file)))
            }
            Ok(_) => Reply::of(Answer::Opened { local: false }),
            Err(errno) => Reply::failed(errno),
        }
    }

    fn log_map(
        &self,
        cx: &CallContext<'_>,
        (ino, offset, bytes): (Ino, u64, u32),
        room: &mut Vec<u8>,
    ) -> Result<Reply> {
        // What the size says is there must not be taken off before it is told.
        let _turn = self.changes.data_shared(ino);
        let map = self.namespace.striped().map_logs(ino, offset, bytes.into())?;
        room.clear();
        map.extents.iter().for_each(|(extent, _)| extent.put(room));
        map.extents.iter().for_each(|(_, shard)| room.extend_from_slice(&shard.0.to_le_bytes()));
        let answer = Answer::LogMap {
            size_bytes: map.size_bytes,
            objects_bytes: map.objects_bytes,
            extents: map.extents.len() as u32,
            more: map.more,
            others: self.others_may_write(cx.session, ino),
        };
        Ok(Reply { payload_bytes: room.len(), ..Reply::of(answer) })
    }

    /// Other mounts have the file open for writing, or may: those of an earlier start that are not back yet.
    fn others_may_write(&self, session: &Session, ino: Ino) -> bool {
        let own = session.id();
        !self.grace.is_over() || self.grants.writers(ino).iter().any(|writer| *writer != own)
    }
}

/// The mounts that have logs, by their sessions.
pub(in crate::session) struct Writers {
    grace: Weak<Grace>,
    table: Weak<SessionTable>,
}

impl Writers {
    pub(in crate::session) fn new(grace: &Arc<Grace>, table: &Arc<SessionTable>) -> Writers {
        Writers { grace: Arc::downgrade(grace), table: Arc::downgrade(table) }
    }
}

impl LogWriters for Writers {
    /// It has a session, or may come back to one.
    fn is_there(&self, client: u64) -> bool {
        let (Some(grace), Some(table)) = (self.grace.upgrade(), self.table.upgrade()) else {
            return true;
        };
        let client = ClientId(client);
        // Before the sessions: one that comes back has its session before it is not awaited any more.
        grace.is_awaited(client) || table.is_there(client)
    }

    fn ask(&self, ino: Ino, logs: &[Asked]) {
        let Some(table) = self.table.upgrade() else { return };
        table.for_each(|session| {
            let client = session.client().0;
            let theirs = logs.iter().filter(|asked| asked.client == client);
            let theirs: Vec<_> = theirs.map(|asked| (ino, asked.log.0, asked.turn)).collect();
            if !theirs.is_empty() {
                session.channel().publish(&theirs);
            }
        });
    }
}
