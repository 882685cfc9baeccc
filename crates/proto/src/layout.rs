//! Where files lie: which shard a new one goes to, and how its bytes are spread over objects
//! (round robin, as in Lustre).
//!
//! A file of one object has it where its inode is: all about it is on one server. Only a file of
//! several objects has them on other servers than its inode.

use crate::ids::{Ino, ShardId};
use serde::{Deserialize, Serialize};

/// The attribute by which a file is published.
pub mod publish_xattr {
    use std::time::Duration;

    /// Its name.
    pub const NAME: &[u8] = b"user.forebay.publish";
    /// Its value where all mounts are to see what was written.
    pub const NOW: &[u8] = b"now";
    /// Its value where, besides, nobody is to write any more.
    pub const FINAL: &[u8] = b"final";

    /// A mount hears of the last close of a file after close() has returned. So what is refused while a file is open (this, and
    /// a new layout) waits so long for its close before it is refused. It is what a try for a lock waits.
    pub const CLOSE_HEARD_WITHIN: Duration = Duration::from_millis(200);
    /// So often it is looked whether it is closed.
    pub const CLOSE_LOOK: Duration = Duration::from_millis(10);
}

/// How many directories of placement [`Placement::Auto`] a mount makes on its own node's server before
/// they take turns: a node's own directories are where its names cost one message, and a node that makes
/// the directories of all others still spreads them.
pub const OWN_DIRECTORIES: u32 = 16;

/// Where the inodes of new files (and, but for `Local`, of new directories) of a directory go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[repr(u8)]
pub enum Placement {
    /// Files to the server on the maker's own node; if it has none, as `Spread`. Directories by
    /// the turn of their name, but for the first [`OWN_DIRECTORIES`] of a mount whose node has exactly
    /// one of the servers: those go there.
    #[default]
    Auto = 0,
    /// Files and directories to the server on the maker's own node; if it has none, as `Spread`.
    Local = 1,
    /// Files and directories by the turn of their name.
    Spread = 2,
    /// Files to the server of their directory, directories by the turn of their name.
    Directory = 3,
}

impl Placement {
    /// Its name, as users write it.
    pub const fn name(self) -> &'static str {
        match self {
            Placement::Auto => "auto",
            Placement::Local => "local",
            Placement::Spread => "spread",
            Placement::Directory => "directory",
        }
    }

    /// From its name.
    pub fn from_name(name: &str) -> Option<Placement> {
        let all = [Placement::Auto, Placement::Local, Placement::Spread, Placement::Directory];
        all.into_iter().find(|placement| placement.name() == name)
    }

    /// From its number on flash.
    pub const fn from_byte(byte: u8) -> Option<Placement> {
        match byte {
            0 => Some(Placement::Auto),
            1 => Some(Placement::Local),
            2 => Some(Placement::Spread),
            3 => Some(Placement::Directory),
            _ => None,
        }
    }
}

/// Which turn a new file of this name has in its directory's round over the servers: files whose
/// names differ in one number only (`rank.17`, `out.0017.h5`, `restart-7-of-96`) take turns by that
/// number, so they spread evenly and not by chance; directories begin at different servers.
pub fn placement_index(parent: Ino, name: &[u8]) -> u64 {
    // The sum of a name's numbers follows the one that counts up, whichever it is.
    let (mut sum, mut number) = (0u64, 0u64);
    // FNV-1a over what is no digit, finished by a mix: the low bits choose the server.
    let fnv = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
    let mut hash = parent.0.to_le_bytes().into_iter().fold(0xcbf2_9ce4_8422_2325, fnv);
    for &byte in name {
        if byte.is_ascii_digit() {
            number = number.wrapping_mul(10).wrapping_add(u64::from(byte - b'0'));
        } else {
            sum = sum.wrapping_add(std::mem::take(&mut number));
            hash = fnv(hash, byte);
        }
    }
    hash = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (hash >> 16).wrapping_add(sum).wrapping_add(number)
}

/// Stripe sizes are multiples of this: the unit in which local file systems allocate.
pub const STRIPE_SIZE_UNIT_BYTES: u32 = 4096;
/// Largest stripe size.
pub const STRIPE_SIZE_MAX_BYTES: u32 = 1 << 30;

/// The word for files that each mount writes as a log of its own ([`Layout::log`]), in commands, jobs and answers.
pub const LOG: &str = "log";
/// The word for other files.
pub const PLAIN: &str = "plain";

/// [`LOG`] or [`PLAIN`].
pub const fn log_or_plain(log: bool) -> &'static str {
    if log { LOG } else { PLAIN }
}

/// The word for files in logs of which other mounts see what was published ([`Layout::strict`]).
pub const COMMIT: &str = "commit";
/// The word for those of which others see all that was written.
pub const STRICT: &str = "strict";

/// [`STRICT`] or [`COMMIT`].
pub const fn commit_or_strict(strict: bool) -> &'static str {
    if strict { STRICT } else { COMMIT }
}

/// A piece of a file that lies in one piece in one object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Offset in the file.
    pub file_offset: u64,
    /// Offset in the object.
    pub object_offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What one object has of a range of its file: one range of the object, whose units lie apart in
/// the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Which object.
    pub stripe: u32,
    /// First byte in the object.
    pub offset: u64,
    /// Bytes in the object, never 0.
    pub bytes: u64,
}

/// How new files of a buffer are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Logs {
    /// Straight to their objects.
    #[default]
    Off,
    /// As logs; other mounts see what was published.
    Commit,
    /// As logs; other mounts see all that was written.
    Strict,
}

impl Logs {
    /// Straight to their objects.
    pub const fn is_off(&self) -> bool {
        matches!(self, Logs::Off)
    }
}

/// Layout of one file; of a directory, what new files in it get.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Layout {
    /// Bytes of one stripe unit; ignored when `stripe_count` is 1.
    pub stripe_size_bytes: u32,
    /// Objects of the file. 1 = a whole file (same offsets as the file itself), its object being
    /// where its inode is. Of a directory, 0 = one on each server.
    pub stripe_count: u16,
    /// Shard of a striped file's first object; the next ones follow in the order of the shards.
    pub first: ShardId,
    /// Of a directory: where new files go.
    pub placement: Placement,
    /// Each mount appends what it writes to a log of its own; the objects have what was brought together since. A file
    /// of such a layout has several objects, so that no kernel has it to itself.
    pub log: bool,
    /// Of such a layout: who reads asks those who write, and waits until what they wrote is published.
    pub strict: bool,
}

impl Layout {
    /// A file whose only object has the file's own offsets.
    pub const WHOLE_LOCAL: Layout = Layout {
        stripe_size_bytes: 1 << 20,
        stripe_count: 1,
        first: ShardId(0),
        placement: Placement::Auto,
        log: false,
        strict: false,
    };

    /// True if the kernel can be given the object itself (passthrough).
    pub const fn is_whole(&self) -> bool {
        self.stripe_count == 1
    }

    /// True if its objects are on several servers.
    pub const fn is_striped(&self) -> bool {
        self.stripe_count > 1
    }

    /// Objects of a new file in a directory of this layout, in a buffer of so many servers.
    pub const fn count_among(&self, shards: u16) -> u16 {
        match self.stripe_count {
            0 => shards,
            count if count > shards => shards,
            count => count,
        }
    }

    /// The layout of a file, in a buffer of so many servers: one that is written as logs has two objects at least, and
    /// with one server there is nothing to gain: that has the file whole.
    pub const fn of_file(self, shards: u16) -> Layout {
        match (self.log, shards) {
            (false, _) => self,
            (true, 0 | 1) => Layout { log: false, strict: false, ..self },
            (true, _) if self.stripe_count < 2 => Layout { stripe_count: shards, ..self },
            (true, _) => self,
        }
    }

    /// The same with its objects on servers that are there: begins at the next one from which
    /// enough follow each other, or has as many as follow each other anywhere.
    pub fn avoiding(self, shards: u16, is_lost: impl Fn(ShardId) -> bool) -> Layout {
        let at = |start: u16, n: u16| {
            ShardId(((u32::from(start) + u32::from(n)) % u32::from(shards.max(1))) as u16)
        };
        let run = |start: ShardId| {
            (0..self.stripe_count).take_while(|n| !is_lost(at(start.0, *n))).count() as u16
        };
        let starts = (0..shards).map(|n| at(self.first.0, n));
        let mut best = (0, self.first);
        for start in starts {
            let length = run(start);
            if length > best.0 {
                best = (length, start);
            }
        }
        match best {
            (0, _) => self,
            // What is left of a file in logs is whole.
            (1, first) => Layout { stripe_count: 1, first, log: false, strict: false, ..self },
            (stripe_count, first) => Layout { stripe_count, first, ..self },
        }
    }

    /// Where an object is, in a buffer of so many servers.
    pub const fn shard_of(&self, stripe: u32, shards: u16) -> ShardId {
        ShardId(((self.first.0 as u64 + stripe as u64) % shards as u64) as u16)
    }

    /// The object that a server has of the file: at most one, as there are no more objects than
    /// servers.
    pub fn stripe_on(&self, shard: ShardId, shards: u16) -> Option<u32> {
        (0..u32::from(self.stripe_count)).find(|stripe| self.shard_of(*stripe, shards) == shard)
    }

    /// `(stripe index, offset in that object)` of a byte of the file.
    pub const fn locate(&self, offset: u64) -> (u32, u64) {
        if self.is_whole() {
            return (0, offset);
        }
        let size = self.stripe_size_bytes as u64;
        let count = self.stripe_count as u64;
        let unit = offset / size;
        ((unit % count) as u32, (unit / count) * size + offset % size)
    }

    /// Bytes that an object has of a file of `size_bytes`.
    pub const fn object_bytes(&self, stripe: u32, size_bytes: u64) -> u64 {
        if self.is_whole() {
            return size_bytes;
        }
        let unit = self.stripe_size_bytes as u64;
        let round = unit * self.stripe_count as u64;
        let rest = (size_bytes % round).saturating_sub(stripe as u64 * unit);
        (size_bytes / round) * unit + if rest < unit { rest } else { unit }
    }

    /// Where a byte of an object is in the file; `None` beyond what a file can have.
    pub fn file_offset(&self, stripe: u32, object_offset: u64) -> Option<u64> {
        if self.is_whole() {
            return Some(object_offset);
        }
        let size = u64::from(self.stripe_size_bytes);
        let unit = (object_offset / size).checked_mul(u64::from(self.stripe_count))?;
        unit.checked_add(u64::from(stripe))?.checked_mul(size)?.checked_add(object_offset % size)
    }

    /// The size of the file, as far as one object of so many bytes shows it.
    pub fn end_shown(&self, stripe: u32, object_bytes: u64) -> u64 {
        match object_bytes.checked_sub(1) {
            None => 0,
            Some(last) => self.file_offset(stripe, last).map_or(u64::MAX, |at| at + 1),
        }
    }

    /// What the objects have of `offset..offset + bytes`, in the order of the file.
    pub fn parts(&self, offset: u64, bytes: u64) -> Vec<Part> {
        let (first, _) = self.locate(offset);
        let count = u32::from(self.stripe_count.max(1));
        let part = |n| {
            let stripe = (first + n) % count;
            let begin = self.object_bytes(stripe, offset);
            let bytes = self.object_bytes(stripe, offset + bytes) - begin;
            Part { stripe, offset: begin, bytes }
        };
        (0..count).map(part).filter(|part| part.bytes > 0).collect()
    }

    /// The pieces of a part, which lie apart in the file.
    pub fn runs(&self, part: Part) -> impl Iterator<Item = Run> + '_ {
        let end = part.offset + part.bytes;
        let mut at = part.offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let left = match self.is_whole() {
                true => end - at,
                false => {
                    let unit = u64::from(self.stripe_size_bytes);
                    (unit - at % unit).min(end - at)
                }
            };
            let file_offset = self.file_offset(part.stripe, at)?;
            let run = Run { file_offset, object_offset: at, bytes: left };
            at += left;
            Some(run)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_go_round_robin() {
        let l = Layout { stripe_size_bytes: 10, stripe_count: 3, ..Layout::WHOLE_LOCAL };
        assert_eq!(l.locate(0), (0, 0));
        assert_eq!(l.locate(29), (2, 9));
        assert_eq!(l.locate(30), (0, 10));
        assert_eq!(l.locate(45), (1, 15));
        assert_eq!(Layout::WHOLE_LOCAL.locate(1 << 40), (0, 1 << 40));
    }

    #[test]
    fn parts_and_runs_cover_a_range_once_and_in_place() {
        let mut random = 7u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % below
        };
        for _ in 0..2000 {
            let layout = Layout {
                stripe_size_bytes: 1 + next(40) as u32,
                stripe_count: 1 + next(5) as u16,
                ..Layout::WHOLE_LOCAL
            };
            let (offset, bytes) = (next(500), 1 + next(300));
            let mut seen = vec![0; (offset + bytes) as usize];
            let parts = layout.parts(offset, bytes);
            assert_eq!(parts[0].stripe, layout.locate(offset).0);
            for part in parts {
                for run in layout.runs(part) {
                    for n in 0..run.bytes {
                        let at = run.file_offset + n;
                        assert_eq!(layout.locate(at), (part.stripe, run.object_offset + n));
                        let back = layout.file_offset(part.stripe, run.object_offset + n);
                        assert_eq!(back, Some(at));
                        seen[at as usize] += 1;
                    }
                }
            }
            assert!(seen[..offset as usize].iter().all(|n| *n == 0));
            assert!(seen[offset as usize..].iter().all(|n| *n == 1), "{layout:?}");
        }
    }

    #[test]
    fn the_objects_of_a_file_show_its_size() {
        let layout = Layout { stripe_size_bytes: 10, stripe_count: 3, ..Layout::WHOLE_LOCAL };
        for size in 0..100 {
            let bytes: Vec<u64> = (0..3).map(|stripe| layout.object_bytes(stripe, size)).collect();
            assert_eq!(bytes.iter().sum::<u64>(), size);
            let ends = (0..3).map(|stripe| layout.end_shown(stripe, bytes[stripe as usize]));
            assert_eq!(ends.max(), Some(size));
        }
        assert_eq!(layout.end_shown(1, u64::MAX), u64::MAX, "more than a file can have");
    }

    #[test]
    fn objects_are_on_servers_in_their_order() {
        let layout = Layout { stripe_count: 3, first: ShardId(3), ..Layout::WHOLE_LOCAL };
        let shards: Vec<u16> = (0..3).map(|stripe| layout.shard_of(stripe, 4).0).collect();
        assert_eq!(shards, [3, 0, 1]);
        assert_eq!(layout.stripe_on(ShardId(1), 4), Some(2));
        assert_eq!(layout.stripe_on(ShardId(2), 4), None);
        assert_eq!(Layout { stripe_count: 0, ..layout }.count_among(4), 4);
        assert_eq!(layout.count_among(2), 2);
    }

    #[test]
    fn objects_avoid_servers_that_are_lost() {
        let layout = |stripe_count, first| Layout {
            stripe_count,
            first: ShardId(first),
            ..Layout::WHOLE_LOCAL
        };
        let without = |lost: &'static [u16], count, first| {
            let layout = layout(count, first).avoiding(4, |shard| lost.contains(&shard.0));
            (layout.stripe_count, layout.first.0)
        };
        assert_eq!(without(&[], 4, 3), (4, 3));
        assert_eq!(without(&[1], 2, 0), (2, 2), "the next two that are there");
        assert_eq!(without(&[1], 4, 0), (3, 2), "as many as there are");
        assert_eq!(without(&[0, 2], 2, 1), (1, 1));
        assert_eq!(without(&[0, 1, 2, 3], 2, 1), (2, 1), "nothing is better than anything");
    }

    #[test]
    fn a_file_in_logs_has_several_objects_or_is_whole() {
        let logs = |stripe_count| Layout { stripe_count, log: true, ..Layout::WHOLE_LOCAL };
        let kind = |layout: Layout| (layout.stripe_count, layout.log);
        assert_eq!(kind(logs(1).of_file(1)), (1, false));
        assert_eq!(kind(logs(1).of_file(3)), (3, true));
        assert_eq!(kind(logs(2).of_file(3)), (2, true));
        assert_eq!(kind(Layout::WHOLE_LOCAL.of_file(3)), (1, false));
        assert_eq!(kind(logs(3).avoiding(3, |shard| shard.0 == 1)), (2, true));
        assert_eq!(kind(logs(2).avoiding(2, |shard| shard.0 == 1)), (1, false));
    }

    #[test]
    fn numbered_names_take_turns() {
        for servers in 2..6u64 {
            for pattern in ["rank.#", "out.#.h5", "#", "step2_#.dat", "restart-#-of-96"] {
                let mut counts = vec![0u32; servers as usize];
                for n in 0..60 {
                    let name = pattern.replace('#', &format!("{n:04}"));
                    counts[(placement_index(Ino(77), name.as_bytes()) % servers) as usize] += 1;
                }
                let even = counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1;
                assert!(even, "{pattern} over {servers}: {counts:?}");
            }
        }
        let first = |dir| placement_index(Ino(dir), b"out.0") % 4;
        let mut begins = [0u32; 4];
        (100..500).for_each(|dir| begins[first(dir) as usize] += 1);
        assert!(begins.iter().all(|n| *n > 60), "directories begin anywhere: {begins:?}");
    }
}
