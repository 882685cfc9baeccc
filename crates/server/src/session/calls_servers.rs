//! Questions of the servers of the buffer's other shards.

use super::Sessions;
use crate::peers::ShardHandler;
use forebay_proto::net::servers::{NamesQuestion, NamesReply, ObjectsQuestion, ObjectsReply};
use forebay_proto::{Errno, Result, ShardId};

impl ShardHandler for Sessions {
    fn names(
        &self,
        _from: ShardId,
        question: &NamesQuestion<'_>,
        _payload: &[u8],
        _room: &mut Vec<u8>,
    ) -> Result<NamesReply> {
        match question {
            NamesQuestion::Ping => Ok(NamesReply::Shard(self.facts.shard)),
            _ => Err(Errno::EPROTO),
        }
    }

    fn objects(
        &self,
        from: ShardId,
        question: &ObjectsQuestion,
        payload: &[u8],
        room: &mut Vec<u8>,
    ) -> Result<ObjectsReply> {
        self.namespace.answer_objects(from, question, payload, room)
    }
}
