//! Calls on a scratch buffer: its names and data are this server's and those of its other shards.
//!
//! | module | what it does |
//! | --- | --- |
//! | `names`, `take` | names; references to inodes whose names are at other shards |
//! | `attributes`, `data` | attributes; what is in files |
//! | `striped`, `objects` | opens of striped files; the objects of such files |
//! | `logs` | files that are written as logs |
//! | `replay` | a call that an earlier start of the server had, or may have had |
//!
//! Each answers the calls of its area, which [`Scratch`] routes to it once.

mod attributes;
mod data;
mod logs;
mod names;
mod objects;
mod replay;
mod striped;
mod take;

pub(super) use logs::Writers as LogWriters;

use super::Session;
use super::buffer_type::{BufferType, ClientFiles};
use super::reply::{CallContext, Reply};
use super::stack::Stack;
use attributes::ScratchAttributes;
use data::ScratchData;
use forebay_lease::slots::Before;
use forebay_namespace::Namespace;
use forebay_proto::api::ops::*;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Caller, Ino, Result};
use logs::ScratchLogs;
use names::ScratchNames;
use objects::ScratchObjects;
use replay::ScratchReplay;
use std::fs::File;
use std::sync::Arc;
use striped::StripedOpens;

/// The type.
pub(super) struct Scratch {
    namespace: Arc<Namespace>,
    names: ScratchNames,
    attributes: Arc<ScratchAttributes>,
    data: Arc<ScratchData>,
    objects: ScratchObjects,
    logs: ScratchLogs,
    replay: ScratchReplay,
}

impl Scratch {
    pub(super) fn new(stack: &Stack) -> Scratch {
        let namespace = &stack.namespace;
        namespace.set_notify(stack.notify());
        let striped = Arc::new(StripedOpens::new(stack));
        let attributes = Arc::new(ScratchAttributes::new(stack, &striped));
        let data = Arc::new(ScratchData::new(stack, &striped));
        Scratch {
            names: ScratchNames::new(stack, &striped),
            objects: ScratchObjects::new(namespace),
            logs: ScratchLogs::new(stack, &striped),
            replay: ScratchReplay::new(stack, &striped, &attributes, &data),
            attributes,
            data,
            namespace: Arc::clone(namespace),
        }
    }
}

impl BufferType for Scratch {
    fn wait_until_settled(&self) {
        self.namespace.wait_settled();
    }

    fn caller(&self, _: &Session, caller: &Caller) -> Caller {
        caller.clone()
    }

    fn owns_directories(&self) -> bool {
        true
    }

    fn prepare(&self, cx: &CallContext<'_>, call: &Call<'_>) -> Result<()> {
        self.logs.ask_writers(cx, call)
    }

    fn answer(&self, cx: &CallContext<'_>, call: &Call<'_>, room: &mut Vec<u8>) -> Reply {
        match call {
            Call::Read { .. }
            | Call::Write { .. }
            | Call::Open { .. }
            | Call::Fsync { .. }
            | Call::Fsyncdir(_)
            | Call::Fallocate { .. }
            | Call::Seek { .. }
            | Call::CopyRange { .. } => self.data.answer(cx, call, room),
            Call::ReadObject { .. } | Call::WriteObject { .. } | Call::SyncObject { .. } => {
                self.objects.answer(cx, call, room)
            }
            Call::Getattr(_)
            | Call::Setattr { .. }
            | Call::Getxattr { .. }
            | Call::Listxattr(_)
            | Call::Readlink(_)
            | Call::Setxattr { .. }
            | Call::Removexattr { .. } => self.attributes.answer(cx, call, room),
            Call::LogBegin { .. }
            | Call::LogOpen { .. }
            | Call::LogPublish { .. }
            | Call::LogMap { .. } => self.logs.answer(cx, call, room),
            Call::Statfs => self.namespace.statfs().map(Answer::Statfs).into(),
            Call::SyncAll => self.namespace.sync_all().into(),
            Call::Probe => cx.probe(&self.namespace).into(),
            names => self.names.answer(cx, names),
        }
    }

    fn replayed(&self, cx: &CallContext<'_>, call: &Call<'_>, before: Before) -> Option<Reply> {
        self.replay.answer(cx, call, before)
    }

    fn object_again(&self, caller: &Caller, ino: Ino) -> Option<Arc<File>> {
        self.namespace.open(caller, ino, libc::O_RDWR as u32, false, true).ok()?.local
    }
}

/// A scratch buffer keeps nothing about clients: what is open by descriptor is in the leases.
pub(super) struct NothingOpen;

impl ClientFiles for NothingOpen {}
