//! The buffers of the pool, as its leader makes, extends, destroys and shows them.
//!
//! Invariants: the leader has a buffer on record before any of its shards is made, and until all are gone; one change of a
//! buffer runs at a time (`turn`). What a kill or a server's absence has left is settled: by the start where no other server is
//! needed for it, else in rounds. Called by the ledger. docs/internals/LEDGER.md.

mod create;
mod destroy;
mod extend;
mod show;

use super::LedgerOptions;
use super::errors::of;
use super::record::{BufferRecord, RecordState};
use super::record_store::RecordStore;
use super::round::Round;
use super::servers::{Servers, Survey, part_in};
use super::turn::{Busy, Turns};
use forebay_proto::ServerId;
use forebay_proto::control::ControlError;
use forebay_proto::net::ledger::BufferName;
use forebay_proto::net::pool::{PoolQuestion, PoolReply};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The buffers of the pool.
pub(super) struct Buffers {
    options: Arc<LedgerOptions>,
    record: Arc<RecordStore>,
    turns: Arc<Turns>,
    servers: Arc<Servers>,
    round: Arc<Round>,
    /// Why a buffer is not made, or not gone, yet. Taken below the record's lock, or alone.
    unsettled: Mutex<BTreeMap<BufferName, String>>,
}

impl Buffers {
    /// Those on this record.
    pub(super) fn new(
        options: Arc<LedgerOptions>,
        record: Arc<RecordStore>,
        turns: Arc<Turns>,
        servers: Arc<Servers>,
        round: Arc<Round>,
    ) -> Buffers {
        Buffers { options, record, turns, servers, round, unsettled: Mutex::default() }
    }

    /// Settles the buffers that need no other server for that, when this one starts.
    pub(super) fn settle_alone(&self) {
        let buffers = self.record.lock().buffers.clone();
        let survey = self.servers.survey([self.record.server_id()]);
        for buffer in &buffers {
            let here =
                |server: &_| *server == self.record.server_id() || self.record.is_lost(*server);
            if buffer.servers.iter().all(here) {
                if let Err(error) = self.settle_buffer(buffer.name(), &survey) {
                    tracing::warn!(buffer = %buffer.name(), "not settled: {error}");
                }
            }
        }
    }

    /// Settles all buffers that are not what the record says they should be. True if nothing is left to do.
    pub(super) fn settle(&self) -> bool {
        let names: Vec<BufferName> =
            self.record.lock().buffers.iter().map(|b| b.name().clone()).collect();
        let (mut settled, survey) = (true, self.servers.survey_all());
        for name in names {
            // What is left when that change ends is for the next round: the one that it asks for may
            // begin before it has ended.
            let Some(_turn) = self.turns.try_take(Busy::Buffer(name.clone())) else {
                settled = false;
                continue;
            };
            if let Err(error) = self.settle_buffer(&name, &survey) {
                tracing::info!(buffer = %name, "not settled yet: {error}");
                settled = false;
            }
        }
        settled
    }

    /// Undoes a creation that was killed, finishes a destruction or an extension.
    fn settle_buffer(&self, name: &BufferName, survey: &Survey) -> Result<(), ControlError> {
        let Some(record) = self.record.lock().buffer(name).cloned() else { return Ok(()) };
        match record.state {
            RecordState::Creating | RecordState::Destroying => {
                self.take_apart(&record)?;
                tracing::info!(buffer = %name, state = ?record.state, "cleared");
                Ok(())
            }
            RecordState::Ready => self.level(&record, survey),
        }
    }

    /// Parts that an extension has not reached are grown. What cannot be told now waits for the
    /// announcement of its server.
    fn level(&self, record: &BufferRecord, survey: &Survey) -> Result<(), ControlError> {
        let told = record
            .servers
            .iter()
            .filter_map(|&server| part_in(survey, server, &record.uuid))
            .filter(|(_, part)| part.fault.is_none());
        let mut behind = false;
        let mut count = 0;
        for (_, part) in told {
            count += 1;
            behind |= part.capacity_bytes < record.part_bytes;
        }
        if !behind || count < record.servers.len() {
            return Ok(());
        }
        self.grow_parts(record).or_else(|error| {
            tracing::warn!(buffer = %record.name(), "it keeps its capacity: {error}");
            Ok(())
        })
    }

    /// A capacity rounded up to the granularity.
    fn rounded(
        &self,
        what: &str,
        name: &BufferName,
        capacity_bytes: u64,
    ) -> Result<u64, ControlError> {
        let granularity_bytes = self.options.granularity_bytes;
        match capacity_bytes.checked_next_multiple_of(granularity_bytes) {
            Some(bytes) if bytes > 0 && i64::try_from(bytes).is_ok() => Ok(bytes),
            _ => {
                let why = format!("{capacity_bytes} bytes are no capacity");
                Err(of(what, name, &why, libc::EINVAL))
            }
        }
    }

    /// Asks about a part of a buffer; an error of another server says whose it is.
    fn ask_about_part(
        &self,
        what: &str,
        record: &BufferRecord,
        server: ServerId,
        question: &PoolQuestion,
    ) -> Result<PoolReply, ControlError> {
        self.turns.must_be_open(what, record.name())?;
        self.servers.ask(server, question).map_err(|mut error| {
            if server != self.record.server_id() && error.what.starts_with(what) {
                error.why = format!("on server {}: {}", self.servers.host_of(server), error.why);
            }
            error
        })
    }
}
