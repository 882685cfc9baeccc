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
        _from: ShardId,
        _question: &ObjectsQuestion,
        _payload: &[u8],
        _room: &mut Vec<u8>,
    ) -> Result<ObjectsReply> {
        Err(Errno::EPROTO)
    }
}
