//! What a run counts: where bytes are, courses over time, decisions about files.
//!
//! Invariant: each byte that was written is counted once as written, and once by where it is ([`Bytes::conserved`]).
//! Callers: `traffic` (bytes, levels, decisions), `jobs` (ends, what was merged), the end of a run.

use super::outcome::{Bytes, Decided, Decision, Series};
use crate::program::Program;
use forebay_sim_engine::TimeNs;

/// The counters of a run.
pub(super) struct Statistics<'a> {
    program: &'a Program,
    /// Whether decisions are written down.
    tells_decisions: bool,
    bytes: Bytes,
    recorder: Recorder,
    decisions: Vec<Decision>,
    end_ns: TimeNs,
    drained_ns: TimeNs,
    merged_processes: u32,
    merged_transfers: u64,
}

/// What was counted.
pub(super) struct Counted {
    pub(super) bytes: Bytes,
    pub(super) series: Series,
    pub(super) decisions: Vec<Decision>,
    /// When the last job ended.
    pub(super) end_ns: TimeNs,
    /// When storage had everything.
    pub(super) drained_ns: TimeNs,
    pub(super) merged_processes: u32,
    pub(super) merged_transfers: u64,
}

impl<'a> Statistics<'a> {
    pub(super) fn new(program: &'a Program, tells_decisions: bool) -> Statistics<'a> {
        Statistics {
            program,
            tells_decisions,
            bytes: Bytes::default(),
            recorder: Recorder::new(),
            decisions: Vec::new(),
            end_ns: 0,
            drained_ns: 0,
            merged_processes: 1,
            merged_transfers: 1,
        }
    }

    /// A write was acknowledged.
    #[inline]
    pub(super) fn written(&mut self, bytes: u64) {
        self.bytes.written += bytes;
    }

    /// A write came to storage without the buffer, or through it.
    #[inline]
    pub(super) fn past_buffer(&mut self, now_ns: TimeNs, bytes: u64) {
        self.bytes.past_buffer += bytes;
        self.recorder.storage(now_ns, bytes);
        self.drained_ns = now_ns;
    }

    /// A drain came to storage.
    #[inline]
    pub(super) fn drained(&mut self, now_ns: TimeNs, bytes: u64) {
        self.bytes.drained += bytes;
        self.recorder.storage(now_ns, bytes);
        self.drained_ns = now_ns;
    }

    /// Bytes were lost with a buffer.
    pub(super) fn lost(&mut self, bytes: u64) {
        self.bytes.lost += bytes;
    }

    /// A read came from storage.
    #[inline]
    pub(super) fn read_storage(&mut self, now_ns: TimeNs, bytes: u64) {
        self.bytes.read_storage += bytes;
        self.recorder.storage(now_ns, bytes);
    }

    /// A read came from a buffer.
    #[inline]
    pub(super) fn read_buffer(&mut self, bytes: u64) {
        self.bytes.read_buffer += bytes;
    }

    /// A job sees a transfer.
    #[inline]
    pub(super) fn application(&mut self, now_ns: TimeNs, bytes: u64) {
        self.recorder.application(now_ns, bytes);
    }

    /// So many bytes are in buffers only.
    #[inline]
    pub(super) fn level(&mut self, now_ns: TimeNs, bytes: u64) {
        self.recorder.level(now_ns, bytes);
    }

    /// Something was decided about a file (by its key), at a buffer.
    pub(super) fn decided(&mut self, now_ns: TimeNs, what: Decided, key: u64, buffer: u32) {
        if self.tells_decisions {
            let at_s = now_ns as f64 / 1e9;
            let file = self.program.file_name((key >> 32) as u32, key as u32);
            self.decisions.push(Decision { at_s, what, file, buffer });
        }
    }

    /// A job has ended.
    pub(super) fn job_ended(&mut self, now_ns: TimeNs) {
        self.end_ns = now_ns;
    }

    /// When the last of the jobs that have ended did, in seconds.
    pub(super) fn end_s(&self) -> f64 {
        self.end_ns as f64 / 1e9
    }

    /// A simulated process stands for so many.
    pub(super) fn merges_processes(&mut self, count: u32) {
        self.merged_processes = self.merged_processes.max(count);
    }

    /// A simulated request stands for so many transfers.
    pub(super) fn merges_transfers(&mut self, count: u64) {
        self.merged_transfers = self.merged_transfers.max(count);
    }

    /// All of it; so many bytes are in buffers only.
    pub(super) fn end(self, resident_bytes: u64) -> Counted {
        Counted {
            bytes: Bytes { resident: resident_bytes, ..self.bytes },
            series: self.recorder.series(),
            decisions: self.decisions,
            end_ns: self.end_ns,
            drained_ns: self.drained_ns,
            merged_processes: self.merged_processes,
            merged_transfers: self.merged_transfers,
        }
    }
}

/// Collects a [`Series`]: its intervals double when it has become too long.
#[derive(Debug)]
struct Recorder {
    interval_ns: u64,
    application: Vec<u64>,
    storage: Vec<u64>,
    buffered: Vec<u64>,
    level: u64,
}

/// Intervals, at most.
const INTERVALS: usize = 512;
const FIRST_INTERVAL_NS: u64 = 1_000_000;

impl Recorder {
    fn new() -> Recorder {
        Recorder {
            interval_ns: FIRST_INTERVAL_NS,
            application: Vec::new(),
            storage: Vec::new(),
            buffered: Vec::new(),
            level: 0,
        }
    }

    #[inline]
    fn at(&mut self, now_ns: u64) -> usize {
        while now_ns / self.interval_ns >= INTERVALS as u64 {
            self.interval_ns *= 2;
            let sum = |pair: &[u64]| pair.iter().sum();
            self.application = self.application.chunks(2).map(sum).collect();
            self.storage = self.storage.chunks(2).map(sum).collect();
            let most = |pair: &[u64]| pair.iter().copied().max().unwrap_or(0);
            self.buffered = self.buffered.chunks(2).map(most).collect();
        }
        let index = (now_ns / self.interval_ns) as usize;
        if index >= self.application.len() {
            self.application.resize(index + 1, 0);
            self.storage.resize(index + 1, 0);
            self.buffered.resize(index + 1, self.level);
        }
        index
    }

    #[inline]
    fn application(&mut self, now_ns: u64, bytes: u64) {
        let at = self.at(now_ns);
        self.application[at] += bytes;
    }

    #[inline]
    fn storage(&mut self, now_ns: u64, bytes: u64) {
        let at = self.at(now_ns);
        self.storage[at] += bytes;
    }

    #[inline]
    fn level(&mut self, now_ns: u64, bytes: u64) {
        let at = self.at(now_ns);
        self.level = bytes;
        self.buffered[at] = self.buffered[at].max(bytes);
    }

    fn series(self) -> Series {
        Series {
            interval_s: self.interval_ns as f64 / 1e9,
            application_bytes: self.application,
            storage_bytes: self.storage,
            buffered_bytes: self.buffered,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_double_and_lose_nothing() {
        let mut recorder = Recorder::new();
        for second in 0..10_000_u64 {
            recorder.application(second * 1_000_000_000, 3);
            recorder.level(second * 1_000_000_000, second);
        }
        let series = recorder.series();
        assert!(series.application_bytes.len() <= INTERVALS);
        assert_eq!(series.application_bytes.iter().sum::<u64>(), 30_000);
        assert_eq!(series.buffered_bytes.iter().max(), Some(&9_999));
        assert!(series.interval_s * INTERVALS as f64 >= 10_000.0);
    }
}
