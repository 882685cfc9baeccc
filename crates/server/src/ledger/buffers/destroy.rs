//! Destroying a buffer, by the pool's leader: `destroying` on record, its shards removed by their
//! servers (mounts ended, store removed), then off the record. From the first step on there is no
//! way back: what could not be reached is removed when its server is back.

use super::Buffers;
use super::show::add_clients;
use crate::ledger::Identity;
use crate::ledger::errors::of;
use crate::ledger::record::{BufferRecord, RecordState};
use crate::ledger::servers::part_in;
use crate::ledger::turn::Busy;
use forebay_failpoint::step;
use forebay_proto::control::ControlError;
use forebay_proto::net::ledger::{BufferName, LedgerReply, MountedClient};
use forebay_proto::net::pool::{PartFacts, PoolQuestion};
use forebay_proto::size::files_text;

const WHAT: &str = "destroy";
/// Most mounts named in a message.
const MAX_NAMED: usize = 10;

impl Buffers {
    /// Destroys a buffer. Of nothing: done. While it is mounted or staged: only with `force`.
    pub(in crate::ledger) fn destroy(
        &self,
        who: &Identity,
        name: &BufferName,
        force: bool,
        discard: bool,
    ) -> Result<LedgerReply, ControlError> {
        let _turn = self.turns.take(WHAT, Busy::Buffer(name.clone()))?;
        let Some(record) = self.record.owned(WHAT, who, name)? else { return Ok(LedgerReply::Ok) };
        if record.state == RecordState::Ready {
            if !force {
                self.must_be_idle(&record)?;
            }
            if !discard && record.spec.cache.is_some() {
                self.must_be_drained(&record)?;
            }
            let mut kept = self.record.lock();
            self.record.commit_freeing(&mut kept, |file| {
                if let Some(buffer) = file.buffer_mut(name) {
                    buffer.state = RecordState::Destroying;
                }
            })?;
        }
        step("a buffer is to be destroyed on record");
        if let Err(error) = self.take_apart(&record) {
            self.round.soon();
            return Err(error.hint("the servers go on with it when they can"));
        }
        self.servers.drop_lost();
        tracing::info!(buffer = %name, "buffer destroyed");
        Ok(LedgerReply::Ok)
    }

    /// Removes all parts, then the record. What fails is told as the buffer's fault, and the
    /// other parts are removed all the same.
    pub(super) fn take_apart(&self, record: &BufferRecord) -> Result<(), ControlError> {
        let mut removed = Ok(());
        for (_, server) in record.shards() {
            if self.record.is_lost(server) {
                continue;
            }
            let question = PoolQuestion::RemovePart { uuid: record.uuid.clone() };
            if let Err(error) = self.ask_about_part(WHAT, record, server, &question) {
                removed = removed.and(Err(error));
            }
            step("a part of a buffer is gone");
        }
        let name = record.name();
        let mut kept = self.record.lock();
        if let Err(error) = removed {
            self.unsettled.lock().insert(name.clone(), error.to_string());
            return Err(error);
        }
        self.record.commit_freeing(&mut kept, |file| file.remove(name))?;
        self.unsettled.lock().remove(name);
        Ok(())
    }

    /// A cache has nothing that its PFS does not have.
    fn must_be_drained(&self, record: &BufferRecord) -> Result<(), ControlError> {
        let survey = self.servers.survey(record.servers.iter().copied());
        let mut dirty = 0;
        for (_, server) in record.shards().filter(|(_, server)| !self.record.is_lost(*server)) {
            match part_in(&survey, server, &record.uuid) {
                Some((_, part)) => dirty += part.dirty_files,
                None if survey.get(&server).is_some_and(Option::is_some) => {}
                None => {
                    let why = self.servers.does_not_answer(server);
                    return Err(of(WHAT, record.name(), &why, libc::EHOSTUNREACH).hint(
                        "it may have data that the PFS does not have; --discard-dirty loses it",
                    ));
                }
            }
        }
        match dirty {
            0 => Ok(()),
            _ => {
                let have = if dirty == 1 { "has" } else { "have" };
                let why = format!("{} {have} data that the PFS does not have", files_text(dirty));
                Err(of(WHAT, record.name(), &why, libc::EBUSY).hint(
                    "`forebay wait` drains and waits, `forebay resolve` ends conflicts; --discard-dirty loses it",
                ))
            }
        }
    }

    fn must_be_idle(&self, record: &BufferRecord) -> Result<(), ControlError> {
        let name = record.name();
        let survey = self.servers.survey(record.servers.iter().copied());
        let mut clients: Vec<MountedClient> = Vec::new();
        let mut plans = 0;
        for (_, server) in record.shards() {
            match part_in(&survey, server, &record.uuid) {
                Some((_, PartFacts { fault: Some(fault), .. })) => {
                    let host = self.servers.host_of(server);
                    let why = format!(
                        "on server {host}: {fault}; whether it has files or unfinished plans is not known"
                    );
                    return Err(of(WHAT, name, &why, libc::EBUSY)
                        .hint("mend that first, or use --force: all that is in it is lost"));
                }
                Some((_, part)) => {
                    add_clients(&mut clients, &part.clients);
                    plans += part.plans;
                }
                None if self.record.is_lost(server)
                    || survey.get(&server).is_some_and(Option::is_some) => {}
                None => {
                    let why = self.servers.does_not_answer(server);
                    return Err(of(WHAT, name, &why, libc::EHOSTUNREACH).hint(
                        "it may be mounted there; with --force it is destroyed, on that server when it is back",
                    ));
                }
            }
        }
        if !clients.is_empty() {
            let mut named: Vec<String> = clients
                .iter()
                .take(MAX_NAMED)
                .map(|client| format!("{} (process {})", client.host, client.pid))
                .collect();
            if clients.len() > MAX_NAMED {
                named.push(format!("{} more", clients.len() - MAX_NAMED));
            }
            let why = format!("it is mounted on {}", named.join(", "));
            return Err(of(WHAT, name, &why, libc::EBUSY)
                .hint("unmount it there, or use --force: programs that use it then get errors"));
        }
        if plans > 0 {
            let why = format!("{plans} staging plans are not finished");
            return Err(of(WHAT, name, &why, libc::EBUSY)
                .hint(&format!(
                "`forebay stage status --buffer {name}:` shows them; wait, cancel them, or use --force"
            )));
        }
        Ok(())
    }
}
