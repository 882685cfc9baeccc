//! Calls on objects of striped files.
//!
//! A mount reads and writes the objects straight at their servers; a write to one recalls nothing. The server of an object
//! knows nothing of opens ([`super::striped`]); the mount writes only while its session at the inode's server lives, which is
//! what others go by.

use crate::session::reply::{CallContext, Reply};
use forebay_namespace::Namespace;
use forebay_proto::net::frame::MAX_PAYLOAD_BYTES;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Errno, ObjectId};
use std::sync::Arc;

/// Answers them.
pub(super) struct ScratchObjects {
    namespace: Arc<Namespace>,
}

impl ScratchObjects {
    pub(super) fn new(namespace: &Arc<Namespace>) -> ScratchObjects {
        ScratchObjects { namespace: Arc::clone(namespace) }
    }

    /// A call on an object.
    pub(super) fn answer(
        &self,
        cx: &CallContext<'_>,
        call: &Call<'_>,
        room: &mut Vec<u8>,
    ) -> Reply {
        let stripes = self.namespace.stripes();
        match *call {
            Call::ReadObject { object, offset, bytes } => {
                let bytes = bytes.min(MAX_PAYLOAD_BYTES) as usize;
                if room.len() < bytes {
                    room.resize(bytes, 0);
                }
                match stripes.read_object(object, offset, &mut room[..bytes]) {
                    Ok(count) => Reply::data(count),
                    Err(errno) => Reply::failed(errno),
                }
            }
            Call::WriteObject { object, offset, sync } => {
                self.write_object(object, offset, cx.payload, sync)
            }
            Call::SyncObject { object, data_only } => stripes.sync_object(object, data_only).into(),
            _ => Reply::failed(Errno::ENOSYS),
        }
    }

    fn write_object(&self, object: ObjectId, offset: u64, payload: &[u8], sync: bool) -> Reply {
        let end = offset.checked_add(payload.len() as u64);
        if end.is_none_or(|end| end > i64::MAX as u64) {
            return Reply::failed(Errno::EFBIG);
        }
        let written = self.namespace.stripes().write_object(object, offset, payload, sync);
        written.map(|count| Answer::Count(count as u64)).into()
    }
}
