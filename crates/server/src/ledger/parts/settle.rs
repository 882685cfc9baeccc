//! The start of a server: each shard on record is served again, or what a kill has left of it is
//! finished or undone.

use super::Parts;
use crate::ledger::record::{PartRecord, RecordState};
use forebay_proto::control::ControlError;
use forebay_store::flash::{self, Store};

impl Parts {
    /// Settles all parts on record; those that were on record before. An error of one is kept as its fault.
    pub(in crate::ledger) fn settle(&self) -> Vec<PartRecord> {
        let (parts, buffers) = {
            let kept = self.record.lock();
            (kept.parts.clone(), kept.buffers.clone())
        };
        for part in &parts {
            let unfinished =
                buffers.iter().any(|b| b.uuid == part.spec.uuid && b.state != RecordState::Ready);
            let settled = match part.state {
                RecordState::Ready if !unfinished => self.serve_again(part),
                state => self.clear(part).inspect(|()| {
                    tracing::info!(buffer = %part.name(), ?state, "cleared after a kill");
                }),
            };
            if let Err(error) = settled {
                tracing::error!(buffer = %part.name(), "not served: {error}");
                self.state.lock().faults.insert(part.name().clone(), error.to_string());
            }
        }
        parts
    }

    /// Tells the log of what is not as it should be, but harms nothing. `parts`: those on record when the server started.
    pub(in crate::ledger) fn report(&self, parts: &[PartRecord]) {
        self.report_unknown(parts);
        let reserved: u64 = parts.iter().map(|part| part.spec.capacity_bytes).sum();
        if reserved > self.options.capacity_bytes {
            tracing::warn!(
                "buffers have {reserved} bytes, the capacity is {}: nothing more is given",
                self.options.capacity_bytes
            );
        }
    }

    fn serve_again(&self, part: &PartRecord) -> Result<(), ControlError> {
        let found = Store::find(&self.options.flash, &part.key())?;
        let Some(store) = found else {
            let dir = flash::store_dir(&self.options.flash, &part.key());
            return Err(ControlError::new(
                "serve",
                Some(&dir),
                "the store is not on flash any more",
            )
            .errno(libc::ENODATA)
            .hint("if the flash is gone for good, `forebay buffer destroy --force` gives its capacity back"));
        };
        for notice in store.notices() {
            tracing::warn!(buffer = %part.name(), "{notice}");
        }
        let served = self.serve(part, store)?;
        self.settle_capacity(part, &served.server)?;
        self.state.lock().running.insert(part.name().clone(), served);
        Ok(())
    }

    /// An extension that was killed is finished; where flash has no room for it, the record
    /// returns to what the store has.
    fn settle_capacity(
        &self,
        part: &PartRecord,
        server: &crate::Server,
    ) -> Result<(), ControlError> {
        let has = server.store().capacity_bytes();
        if has == part.spec.capacity_bytes {
            return Ok(());
        }
        let has = match server.grow(part.spec.capacity_bytes) {
            Ok(has) => has,
            Err(error) => {
                tracing::warn!(buffer = %part.name(), "it keeps its capacity: {error}");
                has
            }
        };
        self.record.commit_freeing(&mut self.record.lock(), |file| {
            if let Some(part) = file.part_mut(part.name()) {
                part.spec.capacity_bytes = has;
            }
        })
    }

    /// Stores of served buffers that the record does not know (it was lost or replaced) are
    /// told of and left alone: they may hold data.
    fn report_unknown(&self, parts: &[PartRecord]) {
        for found in flash::list(&self.options.flash).unwrap_or_default() {
            let Ok(record) = found.record else { continue };
            if record.key.buffer().is_some()
                && !parts.iter().any(|part| part.spec.uuid == record.uuid)
            {
                tracing::warn!(store = %found.dir.display(), "store of {}, which is not on record",
                    record.key);
            }
        }
    }
}
