//! The index of a file that is written as logs: which logs there are, and what they published.
//!
//! It is a sequence of entries, kept on flash as frames (length, checksum, body) in the order in which they were
//! decided; applying them in that order gives the index. An index that has become long is written anew,
//! as the entries that lead to its present state and an entry that says they are all: a file of entries without that
//! was not finished, and the one before it counts.
//!
//! Invariants
//! * Entries are applied in one order everywhere: that of the frames. So any start finds the same index. Which write wins is
//!   for their times to say, in whatever order they were published.
//! * What a log has published is a front part of it (`published`): the same part is never published twice, so a
//!   message that comes again changes nothing.
//! * A number of a log is never used again.

use crate::extents::{Extent, Extents, LogId};
use crate::{Fields, crc};
use std::collections::BTreeMap;

/// Begins a file of entries.
const MAGIC: u32 = 0x7849_4c46;
/// Bytes at its front: the magic, a number that grows with each file, a checksum.
pub const FRONT_BYTES: usize = 16;
/// Most bytes of a frame's body.
const BODY_BYTES_MAX: u32 = 64 << 20;
/// Most extents in one entry.
pub const ENTRY_EXTENTS_MAX: usize = 1 << 20;

/// One log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Log {
    /// The part of the buffer that has it.
    pub shard: u16,
    /// The mount that writes it.
    pub client: u64,
    /// The index knows what stands before this.
    pub published: u64,
    /// Nothing is appended to it any more.
    pub ended: bool,
}

/// Seconds since 1970, and nanoseconds.
pub type Stamp = (i64, u32);

/// When a file was written, and when that was entered, by the clock of who keeps the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// Time of writing.
    pub mtime: Stamp,
    /// Time of the change, as it is shown: not before what was shown earlier.
    pub ctime: Stamp,
    /// Entered then: what changed the file later by other ways has a later time.
    pub when: Stamp,
}

/// A step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A log begins.
    Begin {
        /// Which.
        log: LogId,
        /// Where.
        shard: u16,
        /// Whose.
        client: u64,
    },
    /// A log published what it has up to an offset of it.
    Publish {
        /// Which.
        log: LogId,
        /// Up to here.
        to: u64,
        /// What that says; of those that overlap the latest wins.
        extents: Vec<Extent>,
    },
    /// A log has ended.
    End(LogId),
    /// A log has gone.
    Gone(LogId),
    /// A range of the file is in no log any more: it was cut off, or is in the file's own objects.
    Drop {
        /// First byte.
        offset: u64,
        /// Behind the last.
        end: u64,
    },
    /// The file was written, or its time of writing was set.
    Times(Times),
    /// Of a file of entries that was written anew: all that was before is told; the number of the next log.
    Told(u32),
}

impl Entry {
    /// Appends its frame.
    pub fn put(&self, out: &mut Vec<u8>) {
        let begin = out.len();
        out.extend_from_slice(&[0; 8]);
        let log = |out: &mut Vec<u8>, kind: u8, log: LogId| {
            out.push(kind);
            out.extend_from_slice(&log.0.to_le_bytes());
        };
        match self {
            Entry::Begin { log: id, shard, client } => {
                log(out, 1, *id);
                out.extend_from_slice(&shard.to_le_bytes());
                out.extend_from_slice(&client.to_le_bytes());
            }
            Entry::Publish { log: id, to, extents } => {
                log(out, 2, *id);
                out.extend_from_slice(&to.to_le_bytes());
                extents.iter().for_each(|extent| extent.put(out));
            }
            Entry::End(id) => log(out, 3, *id),
            Entry::Gone(id) => log(out, 4, *id),
            Entry::Drop { offset, end } => {
                out.push(5);
                out.extend_from_slice(&offset.to_le_bytes());
                out.extend_from_slice(&end.to_le_bytes());
            }
            Entry::Told(next) => log(out, 6, LogId(*next)),
            Entry::Times(times) => {
                out.push(7);
                for (seconds, nanoseconds) in [times.mtime, times.ctime, times.when] {
                    out.extend_from_slice(&seconds.to_le_bytes());
                    out.extend_from_slice(&nanoseconds.to_le_bytes());
                }
            }
        }
        let body = out.len() - begin - 8;
        let sum = crc(&out[begin + 8..]);
        out[begin..begin + 4].copy_from_slice(&(body as u32).to_le_bytes());
        out[begin + 4..begin + 8].copy_from_slice(&sum.to_le_bytes());
    }

    fn from_body(body: &[u8]) -> Option<Entry> {
        let mut fields = Fields(body);
        let entry = match fields.u8()? {
            1 => Entry::Begin {
                log: LogId(fields.u32()?),
                shard: fields.u16()?,
                client: fields.u64()?,
            },
            2 => {
                let (log, to) = (LogId(fields.u32()?), fields.u64()?);
                return Some(Entry::Publish { log, to, extents: Extent::all(fields.0)? });
            }
            3 => Entry::End(LogId(fields.u32()?)),
            4 => Entry::Gone(LogId(fields.u32()?)),
            5 => Entry::Drop { offset: fields.u64()?, end: fields.u64()? },
            6 => Entry::Told(fields.u32()?),
            7 => {
                let mut stamp = || Some((fields.u64()? as i64, fields.u32()?));
                Entry::Times(Times { mtime: stamp()?, ctime: stamp()?, when: stamp()? })
            }
            _ => return None,
        };
        fields.0.is_empty().then_some(entry)
    }

    /// The first frame of these bytes, and how long it is; `None` if it is not whole.
    fn first(bytes: &[u8]) -> Option<(Entry, usize)> {
        let mut fields = Fields(bytes);
        let (body, sum) = (fields.u32()?, fields.u32()?);
        if body > BODY_BYTES_MAX {
            return None;
        }
        let body = fields.0.get(..body as usize)?;
        if crc(body) != sum {
            return None;
        }
        Some((Entry::from_body(body)?, 8 + body.len()))
    }
}

/// The front of a file of entries.
pub fn front(number: u64) -> [u8; FRONT_BYTES] {
    let mut out = [0; FRONT_BYTES];
    out[..4].copy_from_slice(&MAGIC.to_le_bytes());
    out[4..12].copy_from_slice(&number.to_le_bytes());
    let sum = crc(&out[..12]);
    out[12..].copy_from_slice(&sum.to_le_bytes());
    out
}

/// A file of entries, read back.
#[derive(Debug)]
pub struct Loaded {
    /// What they lead to.
    pub index: Index,
    /// The number of the file.
    pub number: u64,
    /// Bytes of it that are whole: what comes next goes there.
    pub bytes: u64,
}

/// Reads a file of entries; `None` if it was not finished, or is none. What a kill cut off at its end is left out.
pub fn load(bytes: &[u8]) -> Option<Loaded> {
    let mut fields = Fields(bytes);
    let (magic, number) = (fields.u32()?, fields.u64()?);
    if magic != MAGIC || bytes.get(..FRONT_BYTES) != Some(&front(number)[..]) {
        return None;
    }
    let mut index = Index::default();
    let mut is_told = false;
    let mut at = FRONT_BYTES;
    while let Some((entry, length)) = Entry::first(&bytes[at..]) {
        is_told |= matches!(entry, Entry::Told(_));
        index.apply(&entry);
        at += length;
    }
    is_told.then_some(Loaded { index, number, bytes: at as u64 })
}

/// The index of one file.
#[derive(Clone, Debug, Default)]
pub struct Index {
    extents: Extents,
    logs: BTreeMap<LogId, Log>,
    last: u32,
    times: Option<Times>,
}

impl Index {
    /// What was published, as far as it is in logs.
    pub fn extents(&self) -> &Extents {
        &self.extents
    }

    /// When the file was written, as far as that is known here.
    pub fn times(&self) -> Option<Times> {
        self.times
    }

    /// A log; `None` for one that has gone or never was.
    pub fn log(&self, log: LogId) -> Option<&Log> {
        self.logs.get(&log)
    }

    /// All logs.
    pub fn logs(&self) -> impl Iterator<Item = (LogId, &Log)> {
        self.logs.iter().map(|(id, log)| (*id, log))
    }

    /// How many logs there are.
    pub fn log_count(&self) -> usize {
        self.logs.len()
    }

    /// The number of the next log; `None` when all were used.
    pub fn next_log(&self) -> Option<LogId> {
        self.last.checked_add(1).map(LogId)
    }

    /// Bytes of all logs, as far as they are published.
    pub fn log_bytes(&self) -> u64 {
        self.logs.values().map(|log| log.published).sum()
    }

    /// The logs that can go: ended, and nothing leads into them.
    pub fn idle_logs(&self) -> Vec<(LogId, Log)> {
        let idle = |(id, log): &(LogId, &Log)| log.ended && self.extents.bytes_in(*id) == 0;
        self.logs().filter(idle).map(|(id, log)| (id, *log)).collect()
    }

    /// Does a step.
    pub fn apply(&mut self, entry: &Entry) {
        match entry {
            Entry::Begin { log, shard, client } => {
                self.last = self.last.max(log.0);
                let new = Log { shard: *shard, client: *client, published: 0, ended: false };
                self.logs.insert(*log, new);
            }
            Entry::Publish { log, to, extents } => {
                extents.iter().for_each(|extent| self.extents.insert(*extent));
                if let Some(log) = self.logs.get_mut(log) {
                    log.published = log.published.max(*to);
                }
            }
            Entry::End(log) => {
                if let Some(log) = self.logs.get_mut(log) {
                    log.ended = true;
                }
            }
            Entry::Gone(log) => drop(self.logs.remove(log)),
            Entry::Drop { offset, end } => self.extents.remove(*offset, *end),
            Entry::Times(times) => self.times = Some(*times),
            Entry::Told(next) => self.last = self.last.max(next.saturating_sub(1)),
        }
    }

    /// A new file of entries, of this number, that leads here.
    pub fn to_file(&self, number: u64) -> Vec<u8> {
        let mut out = front(number).to_vec();
        for (id, log) in self.logs() {
            Entry::Begin { log: id, shard: log.shard, client: log.client }.put(&mut out);
            Entry::Publish { log: id, to: log.published, extents: Vec::new() }.put(&mut out);
            if log.ended {
                Entry::End(id).put(&mut out);
            }
        }
        if let Some(times) = self.times {
            Entry::Times(times).put(&mut out);
        }
        // They do not overlap: any order gives the same.
        let all: Vec<Extent> = self.extents.all().collect();
        for extents in all.chunks(ENTRY_EXTENTS_MAX) {
            Entry::Publish { log: LogId(0), to: 0, extents: extents.to_vec() }.put(&mut out);
        }
        Entry::Told(self.last.saturating_add(1)).put(&mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(offset: u64, bytes: u64, log: u32, at: u64) -> Extent {
        Extent { offset, bytes, log: LogId(log), at, time_ns: log.into() }
    }

    fn steps() -> Vec<Entry> {
        let publish = |log, to, extents: &[Extent]| Entry::Publish {
            log: LogId(log),
            to,
            extents: extents.to_vec(),
        };
        vec![
            Entry::Begin { log: LogId(1), shard: 0, client: 7 },
            Entry::Begin { log: LogId(2), shard: 3, client: 8 },
            publish(1, 500, &[extent(0, 100, 1, 64), extent(300, 100, 1, 228)]),
            publish(2, 264, &[extent(50, 100, 2, 64)]),
            Entry::End(LogId(2)),
            Entry::Times(Times { mtime: (-5, 999_999_999), ctime: (7, 8), when: (1 << 40, 0) }),
            Entry::Drop { offset: 0, end: 150 },
            Entry::Gone(LogId(2)),
            Entry::Begin { log: LogId(3), shard: 1, client: 8 },
            publish(3, 90, &[extent(310, 5, 3, 64)]),
        ]
    }

    fn told(entries: &[Entry]) -> Index {
        let mut index = Index::default();
        entries.iter().for_each(|entry| index.apply(entry));
        index
    }

    type Shown = (Vec<Extent>, Vec<(LogId, Log)>, Option<LogId>, Option<Times>);

    fn state(index: &Index) -> Shown {
        let logs = index.logs().map(|(id, log)| (id, *log)).collect();
        (index.extents().all().collect(), logs, index.next_log(), index.times())
    }

    fn file(entries: &[Entry]) -> Vec<u8> {
        let mut bytes = Index::default().to_file(4);
        entries.iter().for_each(|entry| entry.put(&mut bytes));
        bytes
    }

    #[test]
    fn a_file_of_entries_leads_to_the_same_index_wherever_a_kill_cut_it() {
        let entries = steps();
        let bytes = file(&entries);
        let start = Index::default().to_file(4).len();
        let mut whole = 0;
        for cut in start..=bytes.len() {
            let loaded = load(&bytes[..cut]).unwrap();
            let next = file(&entries[..(whole + 1).min(entries.len())]).len();
            if whole < entries.len() && cut >= next {
                whole += 1;
            }
            assert_eq!(state(&loaded.index), state(&told(&entries[..whole])), "cut at {cut}");
            assert_eq!(loaded.bytes as usize, file(&entries[..whole]).len());
        }
        assert_eq!(whole, entries.len());
    }

    #[test]
    fn a_file_written_anew_leads_to_the_same_index_or_is_not_finished() {
        let entries = steps();
        for count in 0..=entries.len() {
            let index = told(&entries[..count]);
            let bytes = index.to_file(9);
            let loaded = load(&bytes).unwrap();
            assert_eq!(state(&loaded.index), state(&index), "after {count}");
            assert_eq!((loaded.number, loaded.bytes), (9, bytes.len() as u64));
            for cut in 0..bytes.len() {
                assert!(load(&bytes[..cut]).is_none(), "cut at {cut}");
            }
        }
    }

    #[test]
    fn a_damaged_entry_ends_a_file() {
        let entries = steps();
        let bytes = file(&entries);
        let at = file(&entries[..3]).len() + 10;
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        let loaded = load(&damaged).unwrap();
        assert_eq!(state(&loaded.index), state(&told(&entries[..3])));
        damaged[1] ^= 1;
        assert!(load(&damaged).is_none());
    }

    #[test]
    fn the_last_one_written_wins_and_a_log_is_idle_when_nothing_leads_into_it() {
        let mut index = told(&steps());
        assert_eq!(
            index.extents().look(300, 400),
            [extent(300, 10, 1, 228), extent(310, 5, 3, 64), extent(315, 85, 1, 243)]
        );
        assert!(index.idle_logs().is_empty(), "none has ended");
        index.apply(&Entry::End(LogId(3)));
        assert!(index.idle_logs().is_empty(), "it is still read");
        index.apply(&Entry::Drop { offset: 310, end: 312 });
        index.apply(&Entry::Publish {
            log: LogId(1),
            to: 900,
            extents: vec![Extent { time_ns: 4, ..extent(312, 9, 1, 700) }],
        });
        assert_eq!(index.idle_logs().len(), 1);
        assert_eq!(index.log(LogId(1)).unwrap().published, 900);
        assert_eq!(index.next_log(), Some(LogId(4)));
    }
}
