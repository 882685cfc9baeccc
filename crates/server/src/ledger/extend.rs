//! A larger capacity for a buffer in use: taken on record first, so that the store never has
//! more than the record says; an extension that was killed is finished by the next start.

use super::create::no_space;
use super::record::RecordState;
use super::turn::{absent, of};
use super::{Identity, Ledger};
use crate::step::step;
use forebay_proto::control::ControlError;
use forebay_proto::net::ledger::{BufferName, LedgerReply};

const WHAT: &str = "extend";

impl Ledger {
    /// Gives a buffer a larger capacity; nothing is done if it has that already.
    pub(super) fn extend(
        &self,
        who: &Identity,
        name: &BufferName,
        capacity_bytes: u64,
    ) -> Result<LedgerReply, ControlError> {
        let _turn = self.turn(WHAT, name)?;
        let record = self.owned(WHAT, who, name)?.ok_or_else(|| absent(WHAT, name))?;
        let wanted = self.rounded(WHAT, &record.spec, capacity_bytes)?;
        if wanted == record.reserved_bytes {
            return Ok(LedgerReply::Buffer(Box::new(self.shown(&record))));
        }
        if wanted < record.reserved_bytes {
            let why = format!("it has {} bytes, a buffer only grows", record.reserved_bytes);
            return Err(of(WHAT, name, &why, libc::EINVAL)
                .hint("a smaller one is a new one: stage out, destroy, create"));
        }
        let served = self.buffer(name).filter(|_| record.state == RecordState::Ready);
        let Some(served) = served else {
            return Err(of(WHAT, name, "it is not served", libc::EIO)
                .hint("`forebay buffer status` tells why"));
        };
        self.set_reserved(name, wanted, |free| {
            let more = wanted - record.reserved_bytes;
            if more > free { Err(no_space(WHAT, &record, more, free)) } else { Ok(()) }
        })?;
        step("an extension is on record");
        if let Err(error) = served.server.grow(wanted) {
            // What the store has now, whatever was done, is what the record is to say.
            let has = served.server.store().capacity_bytes();
            self.set_reserved(name, has, |_| Ok(()))?;
            return Err(error);
        }
        tracing::info!(buffer = %name, bytes = wanted, "buffer extended");
        let record = self.owned(WHAT, who, name)?.ok_or_else(|| absent(WHAT, name))?;
        Ok(LedgerReply::Buffer(Box::new(self.shown(&record))))
    }

    fn set_reserved(
        &self,
        name: &BufferName,
        bytes: u64,
        check: impl FnOnce(u64) -> Result<(), ControlError>,
    ) -> Result<(), ControlError> {
        let mut state = self.state.lock();
        check(self.options.capacity_bytes.saturating_sub(state.file.reserved_bytes()))?;
        self.commit(&mut state, |file| {
            if let Some(buffer) = file.buffer_mut(name) {
                buffer.reserved_bytes = bytes;
            }
        })
    }
}
