//! Objects of files with several, at the servers that have them: read and written in pieces that a message can carry.
//!
//! Invariant: a result says how many bytes from the front were read or written, also after a failure.
//! Called by `striped` and `logged`.

use super::answers::STRANGE;
use super::peer::{Peer, Room};
use forebay_proto::net::frame::MAX_PAYLOAD_BYTES;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Caller, Errno, ObjectId};

/// How many bytes from the front, and why not more. A read without an error that is short met the object's end.
pub(super) type Moved = (u64, Option<Errno>);

/// Reads from one object until `into` is full or the object ends.
pub(super) fn read(peer: &Peer, object: ObjectId, offset: u64, into: &mut [u8]) -> Moved {
    let mut have = 0;
    while have < into.len() {
        let want = (into.len() - have).min(MAX_PAYLOAD_BYTES as usize);
        let call = Call::ReadObject { object, offset: offset + have as u64, bytes: want as u32 };
        let room = Room::Slice(&mut into[have..have + want]);
        match peer.call(&Caller::root(), call, &[], room) {
            Ok(done) => {
                have += done.bytes;
                if done.bytes < want {
                    break;
                }
            }
            Err(errno) => return (have as u64, Some(errno)),
        }
    }
    (have as u64, None)
}

/// Writes to one object. Less than all only with an error: ENOSPC where space ran out in between.
pub(super) fn write(peer: &Peer, object: ObjectId, offset: u64, bytes: &[u8], sync: bool) -> Moved {
    let mut have = 0;
    for piece in bytes.chunks(MAX_PAYLOAD_BYTES as usize) {
        let call = Call::WriteObject { object, offset: offset + have, sync };
        match peer.call(&Caller::root(), call, piece, Room::None).map(|done| done.answer) {
            Ok(Answer::Count(count)) => {
                have += count;
                if count < piece.len() as u64 {
                    return (have, Some(Errno::ENOSPC));
                }
            }
            Ok(_) => return (have, Some(STRANGE)),
            Err(errno) => return (have, Some(errno)),
        }
    }
    (have, None)
}
