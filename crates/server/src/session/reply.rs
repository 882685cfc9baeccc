//! Answers to calls, with what goes along with them, and the surroundings of a call.
//!
//! Made by those who answer calls, sent by `net`.

use super::Session;
use forebay_namespace::Namespace;
use forebay_proto::api::Opened;
use forebay_proto::attr::Attr;
use forebay_proto::net::Answer;
use forebay_proto::{Caller, Errno, Result};
use std::fs::File;
use std::sync::Arc;

/// An answer, with what goes along with it.
#[derive(Debug)]
pub struct Reply {
    /// The answer.
    pub answer: Answer,
    /// Bytes of payload, at the front of the room that the call was given.
    pub payload_bytes: usize,
    /// The object, for a client on this node.
    pub file: Option<Arc<File>>,
    /// See [`forebay_proto::net::Response::dirs`].
    pub dirs: [Option<Attr>; 2],
}

impl Reply {
    pub(super) fn of(answer: Answer) -> Reply {
        Reply { answer, payload_bytes: 0, file: None, dirs: [None; 2] }
    }

    /// An answer with the object.
    pub(super) fn with(answer: Answer, file: Option<Arc<File>>) -> Reply {
        Reply { file, ..Reply::of(answer) }
    }

    /// So many bytes at the front of the room.
    pub(super) fn data(payload_bytes: usize) -> Reply {
        Reply { payload_bytes, ..Reply::of(Answer::Data) }
    }

    /// These bytes, which replace the room.
    pub(super) fn bytes(bytes: Result<Vec<u8>>, room: &mut Vec<u8>) -> Reply {
        match bytes {
            Ok(bytes) => {
                *room = bytes;
                Reply::data(room.len())
            }
            Err(errno) => Reply::failed(errno),
        }
    }

    pub(super) fn failed(errno: Errno) -> Reply {
        Reply::of(Answer::failed(errno))
    }
}

impl From<Result<Answer>> for Reply {
    fn from(result: Result<Answer>) -> Reply {
        Reply::of(result.unwrap_or_else(Answer::failed))
    }
}

impl From<Result<Opened>> for Reply {
    fn from(opened: Result<Opened>) -> Reply {
        match opened {
            Ok(Opened { local }) => Reply::with(Answer::Opened { local: local.is_some() }, local),
            Err(errno) => Reply::failed(errno),
        }
    }
}

impl From<Result<()>> for Reply {
    fn from(result: Result<()>) -> Reply {
        result.map(|()| Answer::Done).into()
    }
}

/// The surroundings of a call: what handlers know of it besides the call itself.
pub(super) struct CallContext<'a> {
    /// In which it was made.
    pub(super) session: &'a Arc<Session>,
    /// Whose rights it has.
    pub(super) caller: Caller,
    /// Payload of the request.
    pub(super) payload: &'a [u8],
    /// Descriptors can be sent.
    pub(super) local: bool,
}

impl CallContext<'_> {
    /// A file like the objects of the store, for a mount on this node that tries passthrough.
    pub(super) fn probe(&self, namespace: &Namespace) -> Result<Opened> {
        let probe = || namespace.objects().probe().map(Arc::new);
        self.local.then(probe).transpose().map(|local| Opened { local })
    }
}
