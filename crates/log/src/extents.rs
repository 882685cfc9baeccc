//! Which range of a file is where: ranges that do not overlap, each in one piece in one log.
//!
//! Invariants
//! * Of what is said of a byte, that of the latest time is kept, and of one time that of the log with the largest number; within a
//!   log what is said last. So the order in which logs are heard does not matter.
//! * No two extents overlap; two that continue each other in file and log, of one time, are one. How many bytes lead into
//!   each log is counted along.
//!
//! Used by the index, and by mounts for what they have not published.

use crate::Fields;
use std::collections::{BTreeMap, HashMap};

/// Bytes of an extent in a message or on flash.
pub const EXTENT_BYTES: usize = 36;

/// A log of a file; the first has the number 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LogId(pub u32);

/// A range of a file, in one piece in one log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// First byte, in the file.
    pub offset: u64,
    /// Bytes, never 0.
    pub bytes: u64,
    /// Which log.
    pub log: LogId,
    /// First byte, in the log.
    pub at: u64,
    /// When it was written: nanoseconds since 1970, by the writer, who makes it later than all that it has seen.
    pub time_ns: u64,
}

impl Extent {
    /// Behind its last byte, in the file.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes
    }

    /// Appends it to a message.
    pub fn put(&self, out: &mut Vec<u8>) {
        for number in [self.offset, self.bytes, self.at, self.time_ns] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.log.0.to_le_bytes());
    }

    fn take(fields: &mut Fields<'_>) -> Option<Extent> {
        let (offset, bytes, at) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let time_ns = fields.u64()?;
        let extent = Extent { offset, bytes, at, time_ns, log: LogId(fields.u32()?) };
        let fits = bytes > 0
            && offset.checked_add(bytes).is_some_and(|end| end <= i64::MAX as u64)
            && at.checked_add(bytes).is_some();
        fits.then_some(extent)
    }

    /// All of a message; `None` if it is not made of sound extents.
    pub fn all(message: &[u8]) -> Option<Vec<Extent>> {
        let mut fields = Fields(message);
        let mut all = Vec::with_capacity(message.len() / EXTENT_BYTES);
        while !fields.0.is_empty() {
            all.push(Extent::take(&mut fields)?);
        }
        Some(all)
    }
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    bytes: u64,
    log: LogId,
    at: u64,
    time_ns: u64,
}

/// Extents of one file.
#[derive(Clone, Debug, Default)]
pub struct Extents {
    pieces: BTreeMap<u64, Piece>,
    of_logs: HashMap<LogId, u64>,
    newest_ns: u64,
}

impl Extents {
    /// How many.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Behind the last byte; 0 without any.
    pub fn end(&self) -> u64 {
        self.pieces.last_key_value().map_or(0, |(offset, piece)| offset + piece.bytes)
    }

    /// Bytes of all.
    pub fn bytes(&self) -> u64 {
        self.of_logs.values().sum()
    }

    /// Bytes that lead into a log.
    pub fn bytes_in(&self, log: LogId) -> u64 {
        self.of_logs.get(&log).copied().unwrap_or(0)
    }

    /// The latest time that any had, also of those that have gone since.
    pub fn newest_ns(&self) -> u64 {
        self.newest_ns
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.of_logs.clear();
    }

    fn put(&mut self, offset: u64, piece: Piece) {
        *self.of_logs.entry(piece.log).or_insert(0) += piece.bytes;
        self.pieces.insert(offset, piece);
    }

    fn take(&mut self, offset: u64) -> Option<Piece> {
        let piece = self.pieces.remove(&offset)?;
        if let Some(bytes) = self.of_logs.get_mut(&piece.log) {
            *bytes -= piece.bytes;
            if *bytes == 0 {
                self.of_logs.remove(&piece.log);
            }
        }
        Some(piece)
    }

    /// Nothing of this range is in a log any more.
    pub fn remove(&mut self, offset: u64, end: u64) {
        if offset >= end {
            return;
        }
        let before = self.pieces.range(..offset).next_back().map(|(at, piece)| (*at, *piece));
        if let Some((at, piece)) = before.filter(|(at, piece)| at + piece.bytes > offset) {
            self.take(at);
            self.put(at, Piece { bytes: offset - at, ..piece });
            if at + piece.bytes > end {
                let cut = end - at;
                self.put(end, Piece { bytes: piece.bytes - cut, at: piece.at + cut, ..piece });
            }
        }
        let inside: Vec<u64> = self.pieces.range(offset..end).map(|(at, _)| *at).collect();
        for at in inside {
            let Some(piece) = self.take(at) else { continue };
            if at + piece.bytes > end {
                let cut = end - at;
                self.put(end, Piece { bytes: piece.bytes - cut, at: piece.at + cut, ..piece });
            }
        }
    }

    /// A range is there, but for what was written there later.
    pub fn insert(&mut self, extent: Extent) {
        self.newest_ns = self.newest_ns.max(extent.time_ns);
        let stays = |other: &Extent| (other.time_ns, other.log.0) > (extent.time_ns, extent.log.0);
        let later: Vec<Extent> = self.within(extent.offset, extent.end()).filter(stays).collect();
        for (offset, end) in gaps(&later, extent.offset, extent.end()) {
            let at = extent.at + (offset - extent.offset);
            self.insert_over(Extent { offset, bytes: end - offset, at, ..extent });
        }
    }

    /// A range is there from now on, and nowhere else.
    fn insert_over(&mut self, extent: Extent) {
        if extent.bytes == 0 {
            return;
        }
        self.remove(extent.offset, extent.end());
        let Extent { mut offset, bytes, log, mut at, time_ns } = extent;
        let mut piece = Piece { bytes, log, at, time_ns };
        let before = self.pieces.range(..offset).next_back().map(|(at, piece)| (*at, *piece));
        if let Some((from, other)) = before
            && from + other.bytes == offset
            && other.log == log
            && other.at + other.bytes == at
            && other.time_ns == time_ns
        {
            self.take(from);
            (offset, at) = (from, other.at);
            piece = Piece { bytes: bytes + other.bytes, at, ..piece };
        }
        let behind = offset + piece.bytes;
        if let Some(other) = self.pieces.get(&behind).copied()
            && other.log == log
            && other.at == at + piece.bytes
            && other.time_ns == time_ns
        {
            self.take(behind);
            piece.bytes += other.bytes;
        }
        self.put(offset, piece);
    }

    /// What there is of a range, in the order of the file, cut to it.
    pub fn within(&self, offset: u64, end: u64) -> impl Iterator<Item = Extent> + '_ {
        let cut = move |(at, piece): (&u64, &Piece)| {
            let from = offset.max(*at);
            let to = end.min(at + piece.bytes);
            (from < to).then(|| Extent {
                offset: from,
                bytes: to - from,
                log: piece.log,
                at: piece.at + (from - at),
                time_ns: piece.time_ns,
            })
        };
        let before = self.pieces.range(..offset).next_back();
        let inside = self.pieces.range(offset..end.max(offset));
        before.into_iter().chain(inside).filter_map(cut)
    }

    /// The same as a list.
    pub fn look(&self, offset: u64, end: u64) -> Vec<Extent> {
        self.within(offset, end).collect()
    }

    /// All, in the order of the file.
    pub fn all(&self) -> impl Iterator<Item = Extent> + '_ {
        self.pieces.iter().map(|(offset, piece)| Extent {
            offset: *offset,
            bytes: piece.bytes,
            log: piece.log,
            at: piece.at,
            time_ns: piece.time_ns,
        })
    }
}

/// The parts of a range that these extents, in the order of the file, leave out.
pub fn gaps(extents: &[Extent], offset: u64, end: u64) -> Vec<(u64, u64)> {
    let mut gaps = Vec::new();
    let mut at = offset;
    for extent in extents {
        if extent.offset > at {
            gaps.push((at, extent.offset.min(end)));
        }
        at = at.max(extent.end());
    }
    if at < end {
        gaps.push((at, end));
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};

    fn is_sound(extents: &Extents) {
        let all: Vec<Extent> = extents.all().collect();
        for pair in all.windows(2) {
            assert!(pair[0].end() <= pair[1].offset, "{pair:?}");
            let continues = pair[0].end() == pair[1].offset
                && (pair[0].log, pair[0].time_ns) == (pair[1].log, pair[1].time_ns)
                && pair[0].at + pair[0].bytes == pair[1].at;
            assert!(!continues, "{pair:?} are one");
        }
        let mut of_logs: HashMap<LogId, u64> = HashMap::new();
        all.iter().for_each(|extent| *of_logs.entry(extent.log).or_default() += extent.bytes);
        assert_eq!(extents.of_logs, of_logs);
    }

    #[test]
    fn extents_say_of_each_byte_what_was_written_there_last() {
        let seed = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or(11);
        println!("FOREBAY_SEED={seed}");
        let mut random = rand::rngs::StdRng::seed_from_u64(seed);
        for _ in 0..50 {
            let mut extents = Extents::default();
            // The time, the log, and where it is there.
            let mut bytes: Vec<Option<(u64, LogId, u64)>> = vec![None; 200];
            let mut ends = [0u64; 3];
            let mut times = [0u64; 3];
            for _ in 0..150 {
                let offset = random.random_range(0..190u64);
                let end = (offset + random.random_range(1..60)).min(200);
                if random.random_range(0..4) == 0 {
                    extents.remove(offset, end);
                    bytes[offset as usize..end as usize].fill(None);
                } else {
                    let log = random.random_range(0..3usize);
                    let at = ends[log];
                    ends[log] += end - offset;
                    // A log's own times grow, or stay; those of different logs come in any order.
                    times[log] += random.random_range(0..3);
                    let time_ns = times[log];
                    let log = LogId(log as u32);
                    extents.insert(Extent { offset, bytes: end - offset, log, at, time_ns });
                    for byte in offset..end {
                        let is_later = |(time, other, _)| (time, other) > (time_ns, log);
                        let here = &mut bytes[byte as usize];
                        if !here.is_some_and(is_later) {
                            *here = Some((time_ns, log, at + byte - offset));
                        }
                    }
                }
                let (from, to) = (random.random_range(0..150), random.random_range(50..220));
                let mut seen = vec![None; 400];
                let look = extents.look(from, to);
                for extent in &look {
                    assert!(from <= extent.offset && extent.end() <= to);
                    for n in 0..extent.bytes {
                        seen[(extent.offset + n) as usize] =
                            Some((extent.time_ns, extent.log, extent.at + n));
                    }
                }
                for (offset, end) in gaps(&look, from, to.max(from)) {
                    assert!(offset < end);
                    assert!(seen[offset as usize..end as usize].iter().all(Option::is_none));
                }
                let missing: u64 = gaps(&look, from, to.max(from)).iter().map(|(a, b)| b - a).sum();
                let there: u64 = look.iter().map(|extent| extent.bytes).sum();
                assert_eq!(missing + there, to.saturating_sub(from));
                for byte in from..to.min(200) {
                    assert_eq!(seen[byte as usize], bytes[byte as usize], "byte {byte}");
                }
                let end = bytes.iter().rposition(Option::is_some).map_or(0, |at| at as u64 + 1);
                assert_eq!(extents.end(), end);
            }
            is_sound(&extents);
        }
    }

    #[test]
    fn a_message_of_extents_is_read_back_or_refused() {
        let extents = [
            Extent { offset: 5, bytes: 7, log: LogId(1), at: 64, time_ns: 3 },
            Extent {
                offset: 1 << 60,
                bytes: 1,
                log: LogId(u32::MAX),
                at: 1 << 50,
                time_ns: u64::MAX,
            },
        ];
        let mut message = Vec::new();
        extents.iter().for_each(|extent| extent.put(&mut message));
        assert_eq!(message.len(), 2 * EXTENT_BYTES);
        assert_eq!(Extent::all(&message).as_deref(), Some(&extents[..]));
        assert_eq!(Extent::all(&message[..30]), None);
        let mut beyond = Vec::new();
        Extent { offset: u64::MAX, bytes: 1, log: LogId(1), at: 0, time_ns: 0 }.put(&mut beyond);
        assert_eq!(Extent::all(&beyond), None);
    }
}
