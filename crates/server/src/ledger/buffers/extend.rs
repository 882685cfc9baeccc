//! A larger capacity for a buffer in use: on record first, then each shard at its server. What was
//! killed half way is finished by the leader's next start, or by the same request again.

use super::Buffers;
use crate::ledger::Identity;
use crate::ledger::errors::{absent, no_space, of};
use crate::ledger::record::{BufferRecord, RecordState};
use crate::ledger::servers::{free_bytes, part_in};
use crate::ledger::turn::Busy;
use forebay_failpoint::step;
use forebay_proto::control::ControlError;
use forebay_proto::net::ledger::{BufferName, LedgerReply};
use forebay_proto::net::pool::{PoolQuestion, PoolReply};

const WHAT: &str = "extend";

impl Buffers {
    /// Gives a buffer a larger capacity; nothing is done if it has that already.
    pub(in crate::ledger) fn extend(
        &self,
        who: &Identity,
        name: &BufferName,
        capacity_bytes: u64,
    ) -> Result<LedgerReply, ControlError> {
        let _turn = self.turns.take(WHAT, Busy::Buffer(name.clone()))?;
        let mut record = self.record.owned(WHAT, who, name)?.ok_or_else(|| absent(WHAT, name))?;
        let part = capacity_bytes.div_ceil(record.servers.len().max(1) as u64);
        let wanted = self.rounded(WHAT, name, part)?;
        if wanted < record.part_bytes {
            let has = record.part_bytes * record.servers.len() as u64;
            let why = format!("it has {has} bytes, a buffer only grows");
            return Err(of(WHAT, name, &why, libc::EINVAL)
                .hint("a smaller one is a new one: stage out, destroy, create"));
        }
        if record.state != RecordState::Ready {
            return Err(of(WHAT, name, "it is not ready", libc::EIO)
                .hint("`forebay buffer status` tells why"));
        }
        self.has_room(&record, wanted)?;
        if wanted > record.part_bytes {
            self.set_part_bytes(name, wanted)?;
            record.part_bytes = wanted;
            step("an extension is on the leader's record");
        }
        self.grow_parts(&record)?;
        let survey = self.servers.survey(record.servers.iter().copied());
        Ok(LedgerReply::Buffer(Box::new(self.shown(&record, &survey))))
    }

    /// All parts are served, and their servers have room for them to be so large.
    fn has_room(&self, record: &BufferRecord, wanted: u64) -> Result<(), ControlError> {
        let survey = self.servers.survey(record.servers.iter().copied());
        for (shard, server) in record.shards() {
            let part = part_in(&survey, server, &record.uuid);
            let Some((facts, part)) = part.filter(|(_, part)| part.fault.is_none()) else {
                let mut why =
                    format!("shard {} on {} is not served", shard.0, self.servers.host_of(server));
                let has_told = survey.get(&server).is_some_and(Option::is_some);
                if !has_told && !self.record.is_lost(server) {
                    why += &format!(": {}", self.servers.told_silent(server));
                }
                return Err(of(WHAT, record.name(), &why, libc::EIO)
                    .hint("`forebay buffer status` tells why"));
            };
            let more = wanted.saturating_sub(part.capacity_bytes);
            let free = free_bytes(facts);
            if more > free {
                return Err(no_space(WHAT, record.name(), more, free));
            }
        }
        Ok(())
    }

    /// Grows all parts to what the record says. Where one cannot, the record returns to what the
    /// largest part has, so that the others are made equal to it when there is room.
    pub(super) fn grow_parts(&self, record: &BufferRecord) -> Result<(), ControlError> {
        let (mut failed, mut largest, mut unknown) = (None, 0, false);
        for (_, server) in record.shards() {
            let question = PoolQuestion::GrowPart {
                uuid: record.uuid.clone(),
                capacity_bytes: record.part_bytes,
            };
            match self.ask_about_part(WHAT, record, server, &question) {
                Ok(PoolReply::Part(part)) => largest = largest.max(part.capacity_bytes),
                Ok(_) => failed = Some(self.servers.nonsense(server)),
                Err(error) => failed = Some(error),
            }
            if failed.is_some() {
                break;
            }
        }
        let Some(error) = failed else { return Ok(()) };
        let survey = self.servers.survey(record.servers.iter().copied());
        for (_, server) in record.shards() {
            match part_in(&survey, server, &record.uuid) {
                Some((_, part)) => largest = largest.max(part.capacity_bytes),
                None => unknown = true,
            }
        }
        // What nobody tells may have grown: the record says more then, never less.
        if !unknown && largest > 0 {
            self.set_part_bytes(record.name(), largest)?;
        }
        Err(error)
    }

    fn set_part_bytes(&self, name: &BufferName, bytes: u64) -> Result<(), ControlError> {
        self.record.commit(&mut self.record.lock(), |file| {
            if let Some(buffer) = file.buffer_mut(name) {
                buffer.part_bytes = bytes;
            }
        })
    }
}
