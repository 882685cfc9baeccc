//! The servers of a buffer's other shards, as its server sees them.
//!
//! The seam between operations that need more than one shard (`namespace`, `session`, striped
//! objects) and how servers reach each other ([`crate::net::links`]). [`Peers`] asks, a
//! [`ShardHandler`] answers. Tests join namespaces of one process by it.

use forebay_proto::net::servers::{
    NamesQuestion, NamesReply, ObjectsQuestion, ObjectsReply, Question, Reply,
};
use forebay_proto::{Result, ShardId};
#[cfg(any(debug_assertions, feature = "failpoints"))]
use std::sync::Arc;
use std::time::Duration;

/// Reaches the servers of the other shards of one buffer.
pub trait Peers: Send + Sync {
    /// Our own shard.
    fn mine(&self) -> ShardId;
    /// How many shards the buffer has.
    fn count(&self) -> u16;
    /// Asks the server of another shard and waits for its answer. `payload` goes along; the
    /// payload of the answer replaces what `room` holds. An answer that says it failed is `Err`.
    ///
    /// Errors of reaching it: ETIMEDOUT when it did not answer within the bound of one question,
    /// or the connection broke meanwhile (then it may have been done or not), EHOSTUNREACH when it
    /// could not be reached at all (then it was not), EIO when it is known to be gone for good.
    fn ask(
        &self,
        to: ShardId,
        question: &Question<'_>,
        payload: &[u8],
        room: &mut Vec<u8>,
    ) -> Result<Reply>;
    /// The same with nothing but the question, for no longer than `limit`: who is asked may hang.
    fn ask_within(&self, to: ShardId, question: &Question<'_>, _limit: Duration) -> Result<Reply> {
        self.ask(to, question, &[], &mut Vec::new())
    }
    /// True if the server of a shard is gone for good: somebody has said so.
    fn is_lost(&self, _shard: ShardId) -> bool {
        false
    }
    /// True while a question of this buffer to the server of a shard has no answer for so long that people are told.
    fn is_waited_for(&self, _shard: ShardId) -> bool {
        false
    }
    /// Why the server of a shard does not answer and what to do, for people; `None` as long as nothing is known to be wrong.
    fn why_silent(&self, _shard: ShardId) -> Option<String> {
        None
    }
    /// Which buffer, for the questions.
    fn buffer(&self) -> u128;
    /// The server of a shard, for people.
    fn name(&self, shard: ShardId) -> String {
        format!("the server of shard {}", shard.0)
    }
}

/// Answers the servers of the other shards of one buffer. A question may come twice, and late: who
/// asked got no answer and asked again. The payload of the answer replaces what `room` holds (it is
/// given empty).
pub trait ShardHandler: Send + Sync {
    /// About names and inodes.
    fn names(
        &self,
        from: ShardId,
        question: &NamesQuestion<'_>,
        payload: &[u8],
        room: &mut Vec<u8>,
    ) -> Result<NamesReply>;
    /// About objects.
    fn objects(
        &self,
        from: ShardId,
        question: &ObjectsQuestion,
        payload: &[u8],
        room: &mut Vec<u8>,
    ) -> Result<ObjectsReply>;
}

/// In tests: one of `count` shards of the buffer of this number, whose questions a function answers.
#[cfg(any(debug_assertions, feature = "failpoints"))]
pub fn asking(
    mine: ShardId,
    count: u16,
    buffer: u128,
    ask: impl Fn(ShardId, &Question<'_>, &[u8], &mut Vec<u8>) -> Result<Reply> + Send + Sync + 'static,
) -> Arc<dyn Peers> {
    struct Asking<F> {
        mine: ShardId,
        count: u16,
        buffer: u128,
        ask: F,
    }

    impl<F> Peers for Asking<F>
    where
        F: Fn(ShardId, &Question<'_>, &[u8], &mut Vec<u8>) -> Result<Reply> + Send + Sync,
    {
        fn mine(&self) -> ShardId {
            self.mine
        }

        fn count(&self) -> u16 {
            self.count
        }

        fn ask(
            &self,
            to: ShardId,
            question: &Question<'_>,
            payload: &[u8],
            room: &mut Vec<u8>,
        ) -> Result<Reply> {
            (self.ask)(to, question, payload, room)
        }

        fn buffer(&self) -> u128 {
            self.buffer
        }
    }

    Arc::new(Asking { mine, count, buffer, ask })
}
