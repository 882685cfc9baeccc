//! The start of a server: each buffer on record is served again, or what a kill has left of it
//! is finished or undone.

use super::Ledger;
use super::record::{BufferRecord, RecordState};
use crate::flash::{self, Store};
use forebay_proto::control::ControlError;

impl Ledger {
    /// Settles all buffers on record. An error of one is kept as its fault; only an error of
    /// the ledger itself ends the start.
    pub(super) fn settle_all(&self) -> Result<(), ControlError> {
        let records = self.state.lock().file.buffers.clone();
        for record in &records {
            let settled = match record.state {
                RecordState::Creating | RecordState::Destroying => self.clear(record),
                RecordState::Ready => self.serve_again(record),
            };
            if let Err(error) = settled {
                tracing::error!(buffer = %record.name(), "not served: {error}");
                self.state.lock().faults.insert(record.name().clone(), error.to_string());
            }
        }
        self.report_unknown(&records);
        let state = self.state.lock();
        let reserved = state.file.reserved_bytes();
        if reserved > self.options.capacity_bytes {
            tracing::warn!(
                "buffers have {reserved} bytes, the capacity is {}: nothing more is given",
                self.options.capacity_bytes
            );
        }
        Ok(())
    }

    /// A creation that nobody was told of is undone (who asks again with its token gets the
    /// buffer then); a destruction is finished.
    fn clear(&self, record: &BufferRecord) -> Result<(), ControlError> {
        Store::discard(&self.options.flash, &record.key())?;
        self.commit_freeing(&mut self.state.lock(), |file| file.remove(record.name()))?;
        tracing::info!(buffer = %record.name(), state = ?record.state, "cleared after a kill");
        Ok(())
    }

    fn serve_again(&self, record: &BufferRecord) -> Result<(), ControlError> {
        let found = Store::find(&self.options.flash, &record.key())?;
        let Some(store) = found else {
            let dir = flash::store_dir(&self.options.flash, &record.key());
            return Err(ControlError::new(
                "serve",
                Some(&dir),
                "the store is not on flash any more",
            )
            .errno(libc::ENODATA)
            .hint("`forebay buffer destroy` gives its capacity back"));
        };
        for notice in store.notices() {
            tracing::warn!(buffer = %record.name(), "{notice}");
        }
        let served = self.serve(record, store)?;
        self.settle_capacity(record, &served.server)?;
        self.state.lock().running.insert(record.name().clone(), served);
        Ok(())
    }

    /// An extension that was killed is finished; where flash has no room for it, the record
    /// returns to what the store has.
    fn settle_capacity(
        &self,
        record: &BufferRecord,
        server: &crate::Server,
    ) -> Result<(), ControlError> {
        let has = server.store().capacity_bytes();
        if has == record.reserved_bytes {
            return Ok(());
        }
        let has = match server.grow(record.reserved_bytes) {
            Ok(has) => has,
            Err(error) => {
                tracing::warn!(buffer = %record.name(), "it keeps its capacity: {error}");
                has
            }
        };
        self.commit_freeing(&mut self.state.lock(), |file| {
            if let Some(buffer) = file.buffer_mut(record.name()) {
                buffer.reserved_bytes = has;
            }
        })
    }

    /// Stores of served buffers that the record does not know (it was lost or replaced) are
    /// told of and left alone: they may hold data.
    fn report_unknown(&self, records: &[BufferRecord]) {
        for found in flash::list(&self.options.flash).unwrap_or_default() {
            let Ok(record) = found.record else { continue };
            if record.key.buffer().is_some() && !records.iter().any(|r| r.uuid == record.uuid) {
                tracing::warn!(store = %found.dir.display(), "store of {}, which is not on record",
                    record.key);
            }
        }
    }
}
