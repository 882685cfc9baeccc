//! Destroying a buffer: `destroying` on record, its mounts ended, the store removed, then off the
//! record. From the first step on there is no way back: the next start finishes it.

use super::record::{BufferRecord, RecordState};
use super::turn::of;
use super::{Identity, Ledger, ServedBuffer, reserve};
use crate::flash::Store;
use crate::step::step;
use forebay_proto::Caller;
use forebay_proto::control::ControlError;
use forebay_proto::net::ledger::{BufferName, LedgerReply};
use std::sync::Arc;

const WHAT: &str = "destroy";
/// Most mounts named in a message.
const MAX_NAMED: usize = 10;

impl Ledger {
    /// Destroys a buffer. Of nothing: done. While it is mounted or staged: only with `force`.
    pub(super) fn destroy(
        &self,
        who: &Identity,
        name: &BufferName,
        force: bool,
    ) -> Result<LedgerReply, ControlError> {
        let _turn = self.turn(WHAT, name)?;
        let Some(record) = self.owned(WHAT, who, name)? else { return Ok(LedgerReply::Ok) };
        if let (Some(served), false) = (self.buffer(name), force) {
            must_be_idle(&served)?;
        }
        let served = {
            let mut state = self.state.lock();
            self.commit_freeing(&mut state, |file| {
                if let Some(buffer) = file.buffer_mut(name) {
                    buffer.state = RecordState::Destroying;
                }
            })?;
            state.running.remove(name)
        };
        step("a buffer is to be destroyed on record");
        if let Err(error) = self.remove_store(&record, served) {
            let mut state = self.state.lock();
            state.faults.insert(name.clone(), error.to_string());
            return Err(error.hint("the same command, or the next start of the server, goes on"));
        }
        step("a destroyed buffer has no store");
        let mut state = self.state.lock();
        self.commit_freeing(&mut state, |file| file.remove(name))?;
        state.faults.remove(name);
        reserve::make(&self.dir);
        tracing::info!(buffer = %name, "buffer destroyed");
        Ok(LedgerReply::Ok)
    }

    fn remove_store(
        &self,
        record: &BufferRecord,
        served: Option<Arc<ServedBuffer>>,
    ) -> Result<(), ControlError> {
        let Some(served) = served else {
            return Store::discard(&self.options.flash, &record.key()).map(drop);
        };
        served.end_mounts();
        let store = served.server.abandon();
        // Memory and files that are still open would not come back with the store.
        drop(self.last_of(served));
        step("a buffer is not served any more");
        store.destroy()
    }
}

fn must_be_idle(served: &ServedBuffer) -> Result<(), ControlError> {
    let clients = served.clients();
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
        return Err(of(WHAT, &served.name, &why, libc::EBUSY)
            .hint("unmount it there, or use --force: programs that use it then get errors"));
    }
    let plans = served.server.mover().list(&Caller::root());
    let running = plans.iter().filter(|plan| !plan.state.is_final()).count();
    if running > 0 {
        let why = format!("{running} staging plans are not finished");
        return Err(of(WHAT, &served.name, &why, libc::EBUSY)
            .hint("`forebay stage status` shows them; wait, cancel them, or use --force"));
    }
    Ok(())
}
