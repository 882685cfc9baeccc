//! Mounts are asked to publish what they wrote: before a read of a file whose readers see all that was written, before the file is
//! cut or appended to, before it is final, and when what they have not published holds up bringing together.
//!
//! Invariants
//! * A mount that was asked says when all of its log is published, and asks before it writes there again. So a log that
//!   is clean has nothing that others do not see.
//! * Answers of mounts may come twice and late: each has a sequence number, and an older one changes nothing. So may questions: each
//!   has the last number that was heard, which tells a mount whether it has answered.
//! * Who waits here holds no lock that a publication needs.

use super::{Asked, LoadedIndex, LoggedFiles, Published};
use forebay_log::{Entry, Log, LogId};
use forebay_proto::{Errno, Ino, Result};
use forebay_store::record::inode_flags;
use std::time::{Duration, Instant};

/// Who asks waits so long; a mount that has died is known sooner. Less than mounts wait for an answer: they would ask anew, and never
/// hear of it.
const ASK_MAX: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 45 });
/// How often it is looked whether a mount that was asked has died.
const LOOK: Duration = Duration::from_millis(100);

impl LoadedIndex {
    fn asked(&self, id: LogId, log: &Log) -> Asked {
        // Nothing is known after a restart.
        let turn = self.said.get(&id).map_or(u64::MAX, |said| said.turn);
        Asked { client: log.client, log: id, turn }
    }
}

impl LoggedFiles {
    /// A mount said how its log is.
    pub(super) fn said_of(&self, ino: Ino, state: &mut LoadedIndex, published: &Published<'_>) {
        let id = LogId(published.log);
        let Some(log) = state.index.log(id).copied() else {
            state.said.remove(&id);
            return;
        };
        let said = state.said.entry(id).or_default();
        if published.turn > said.turn {
            said.turn = published.turn;
            said.clean = published.clean && log.published >= published.to;
            said.cleaned += u64::from(said.clean);
            if published.is_all() && log.published >= published.to {
                said.floor_ns = state.index.extents().newest_ns();
            }
        }
        let logs = &state.index;
        state.said.retain(|id, _| logs.log(*id).is_some());
        self.indexes.of(ino).said.notify_all();
    }

    /// All that other mounts than `by` have written to a file in logs by now is published when this returns. ETIMEDOUT if one of them
    /// cannot.
    pub fn ask_writers(&self, ino: Ino, by: Option<u64>) -> Result<()> {
        let Some(writers) = self.writers.get() else { return Ok(()) };
        // Each with how often it was clean before.
        let mut waits: Vec<(Asked, u64)> = self.with_whole_index(ino, |state| {
            let is_open = |(id, log): &(LogId, &Log)| {
                let is_clean = state.said.get(id).is_some_and(|said| said.clean);
                !log.ended && !is_clean && Some(log.client) != by
            };
            let cleaned = |id| state.said.get(&id).map_or(0, |said| said.cleaned);
            let open = state.index.logs().filter(is_open);
            Ok(open.map(|(id, log)| (state.asked(id, log), cleaned(id))).collect())
        })?;
        let ask = |waits: &[(Asked, u64)]| {
            let logs: Vec<Asked> = waits.iter().map(|(asked, _)| *asked).collect();
            writers.ask(ino, &logs);
        };
        if waits.is_empty() {
            return Ok(());
        }
        ask(&waits);
        let until = Instant::now() + ASK_MAX;
        let file = self.indexes.of(ino);
        loop {
            let waited = file.look_or_wait(LOOK, |state| {
                waits.retain(|(Asked { log: id, .. }, cleaned)| {
                    let Some(state) = state else { return false };
                    let now = state.said.get(id).map_or(0, |said| said.cleaned);
                    state.index.log(*id).is_some_and(|log| !log.ended) && now == *cleaned
                });
                waits.is_empty()
            });
            let Some(is_late) = waited else { return Ok(()) };
            if Instant::now() >= until {
                return Err(Errno::ETIMEDOUT);
            }
            if is_late {
                self.with_whole_index(ino, |_| Ok(()))?;
                // A mount that was away may be back.
                ask(&waits);
            }
        }
    }

    /// All that is still to be published is later than this. The mounts that hold it up are asked to publish.
    pub(super) fn settled_until(&self, ino: Ino, state: &LoadedIndex) -> u64 {
        let LoadedIndex { index, said, .. } = state;
        let newest_ns = index.extents().newest_ns();
        let open = index.logs().filter(|(_, log)| !log.ended);
        // Of a log of which nothing was heard since this server started: any time may come.
        let floor = |id: &LogId| said.get(id).map_or(0, |said| said.floor_ns);
        let behind: Vec<_> = open.filter(|(id, _)| floor(id) < newest_ns).collect();
        if !behind.is_empty()
            && let Some(writers) = self.writers.get()
        {
            let logs: Vec<Asked> = behind.iter().map(|(id, log)| state.asked(*id, log)).collect();
            writers.ask(ino, &logs);
        }
        behind.iter().map(|(id, _)| floor(id)).min().unwrap_or(u64::MAX)
    }

    /// A file that is final: nobody begins a log or goes on in one, so after this its index is whole.
    pub fn end_of_final(&self, ino: Ino) -> Result<()> {
        let record = self.records.regular(ino)?;
        if !record.layout.log || !record.has(inode_flags::FINAL) {
            return Ok(());
        }
        self.ask_writers(ino, None)?;
        self.with_whole_index(ino, |state| {
            let open = state.index.logs().filter(|(_, log)| !log.ended);
            let open: Vec<LogId> = open.map(|(id, _)| id).collect();
            for id in open {
                self.indexes.enter(ino, state, &Entry::End(id), None)?;
            }
            self.release_idle(ino, state);
            Ok(())
        })
    }
}
