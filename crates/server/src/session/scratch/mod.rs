//! Calls on a scratch buffer: its names and data are this server's and those of its other shards.
//!
//! | module | what it does |
//! | --- | --- |
//! | `names`, `take` | names; references to inodes whose names are at other shards |
//! | `attributes`, `data` | attributes; what is in files |
//! | `objects` | objects of striped files, and opening such files |
//! | `logs` | files that are written as logs |
//! | `replay` | a call that an earlier start of the server had, or may have had |

mod attributes;
mod data;
mod logs;
mod names;
mod objects;
mod replay;
mod take;

pub(super) use logs::Writers as LogWriters;

use super::Session;
use super::buffer_type::BufferType;
use super::calls::{At, Reply};
use super::grace::Grace;
use super::inodes::Inodes;
use forebay_lease::slots::Before;
use forebay_namespace::Namespace;
use forebay_proto::api::Notify;
use forebay_proto::api::ops::*;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Caller, Ino, Result};
use std::fs::File;
use std::sync::Arc;

/// The type.
pub(super) struct Scratch(pub(super) Arc<Namespace>);

impl BufferType for Scratch {
    fn files(&self) -> &dyn FileSystem {
        &*self.0
    }

    fn inodes(&self) -> Arc<dyn Inodes> {
        self.0.clone()
    }

    fn set_notify(&self, notify: Arc<dyn Notify>) {
        self.0.set_notify(notify);
    }

    fn wait_until_settled(&self, _: &Grace) {
        self.0.wait_settled();
    }

    fn caller(&self, _: &Session, caller: &Caller) -> Caller {
        caller.clone()
    }

    fn owns_directories(&self) -> bool {
        true
    }

    fn prepare(&self, at: &At<'_>, call: &Call<'_>) -> Result<()> {
        at.ask_writers(call)
    }

    fn answer(&self, at: &At<'_>, call: &Call<'_>, room: &mut Vec<u8>) -> Reply {
        match call {
            Call::Read { .. }
            | Call::Write { .. }
            | Call::Open { .. }
            | Call::Fsync { .. }
            | Call::Fsyncdir(_)
            | Call::Fallocate { .. }
            | Call::Seek { .. }
            | Call::CopyRange { .. } => at.data_call(call, room),
            Call::ReadObject { .. } | Call::WriteObject { .. } | Call::SyncObject { .. } => {
                at.object_call(call, room)
            }
            Call::Getattr(_)
            | Call::Setattr { .. }
            | Call::Getxattr { .. }
            | Call::Listxattr(_)
            | Call::Readlink(_)
            | Call::Setxattr { .. }
            | Call::Removexattr { .. } => at.attributes_call(call, room),
            Call::LogBegin { .. }
            | Call::LogOpen { .. }
            | Call::LogPublish { .. }
            | Call::LogMap { .. } => at.log_call(call, room),
            Call::Statfs => self.0.statfs().map(Answer::Statfs).into(),
            Call::SyncAll => self.0.sync_all().into(),
            Call::Probe => at.probe().into(),
            names => at.names_call(names),
        }
    }

    fn answer_once(
        &self,
        at: &At<'_>,
        call: &Call<'_>,
        before: Before,
        room: &mut Vec<u8>,
    ) -> Reply {
        at.scratch_once(call, before, room)
    }

    fn object_again(&self, caller: &Caller, ino: Ino) -> Option<Arc<File>> {
        self.0.open(caller, ino, libc::O_RDWR as u32, false, true).ok()?.local
    }
}
