//! What tells the changed blocks of a file from those that the PFS has (their XXH3), kept while the file is in nobody's memory.
//! A kernel forgets a file when it likes, and that of a mount of a server is asked to after each close and each drain: without
//! these, all of a file drained again in which the next kernel wrote one byte.
//!
//! Invariants: what is kept is of a clean file. Only who has a file in memory changes its map, its record and what it is on the PFS, so
//! what is kept says later what it said then. It is for who takes the file into memory next, and for nobody else: not for another
//! file under that number, nor with another map, nor where size, mtime or ctime of the object are not what they were. Not on
//! flash: after a restart, what a kernel has written drains whole. Bounded by [`KEPT_BYTES_MAX`]: what was kept first goes first.
//! Called by [`super::file::CacheFile`] when it begins and ends.

use super::file::Seen;
use super::pfs::Key;
use forebay_proto::Ino;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};

/// Most memory that they take, in bytes: enough for 1 TiB of data in large files.
const KEPT_BYTES_MAX: usize = 64 << 20;
/// What a file and a run of blocks take beside their sums, about.
const FILE_BYTES: usize = 256;
const RUN_BYTES: usize = 32;
/// Fewer sums tell little: of a file with one block, that block drains anyway.
pub(crate) const SUMS_LEAST: u64 = 2;

/// XXH3 of blocks, in runs, each from a block on.
pub(crate) type Sums = Vec<(u64, Box<[u64]>)>;

/// What is known of a clean file as it leaves memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Kept {
    /// What it is on the PFS.
    pub key: Key,
    /// The object's size and times.
    pub object: Seen,
    /// What tells its map from others.
    pub map_digest: u64,
    pub sums: Sums,
}

impl Kept {
    fn bytes(&self) -> usize {
        let of_run = |run: &[u64]| RUN_BYTES + size_of_val(run);
        FILE_BYTES + self.sums.iter().map(|(_, run)| of_run(run)).sum::<usize>()
    }

    fn is_worth_it(&self) -> bool {
        self.sums.iter().map(|(_, run)| run.len() as u64).sum::<u64>() >= SUMS_LEAST
    }
}

/// One time that a file is in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Visit(u64);

enum Place {
    InMemory(Visit),
    /// With its place in the order.
    Away(u64, Kept),
}

#[derive(Default)]
struct Table {
    places: HashMap<Ino, Place>,
    /// Those that are kept, from the first one.
    order: BTreeMap<u64, Ino>,
    bytes: usize,
    /// Visits and places in the order.
    counted: u64,
}

impl Table {
    fn next(&mut self) -> u64 {
        self.counted += 1;
        self.counted
    }

    /// Takes out what is kept of a file.
    fn take(&mut self, ino: Ino) -> Option<Kept> {
        let Some(Place::Away(at, kept)) = self.places.remove(&ino) else { return None };
        self.order.remove(&at);
        self.bytes -= kept.bytes();
        Some(kept)
    }
}

/// Those of one cache.
pub(crate) struct KeptSums {
    table: Mutex<Table>,
    bytes_max: usize,
}

impl Default for KeptSums {
    fn default() -> KeptSums {
        KeptSums { table: Mutex::default(), bytes_max: KEPT_BYTES_MAX }
    }
}

impl KeptSums {
    /// A file comes into memory: what is kept of it.
    pub fn come(&self, ino: Ino) -> (Visit, Option<Kept>) {
        let mut table = self.table.lock();
        let visit = Visit(table.next());
        let kept = table.take(ino);
        table.places.insert(ino, Place::InMemory(visit));
        (visit, kept)
    }

    /// It leaves memory, and this is known of it. Another one of it may be in memory already: that one knows better.
    pub fn leave(&self, ino: Ino, visit: Visit, kept: Option<Kept>) {
        let mut table = self.table.lock();
        let is_last =
            matches!(table.places.get(&ino), Some(Place::InMemory(last)) if *last == visit);
        if !is_last {
            return;
        }
        table.places.remove(&ino);
        let Some(kept) = kept.filter(Kept::is_worth_it) else { return };
        let at = table.next();
        table.bytes += kept.bytes();
        table.order.insert(at, ino);
        table.places.insert(ino, Place::Away(at, kept));
        while table.bytes > self.bytes_max
            && let Some((_, first)) = table.order.pop_first()
        {
            drop(table.take(first));
        }
    }

    /// True while somebody has it in memory.
    #[cfg(test)]
    pub fn is_in_memory(&self, ino: Ino) -> bool {
        matches!(self.table.lock().places.get(&ino), Some(Place::InMemory(_)))
    }

    /// As if so many others had been kept since that nothing of these is.
    #[cfg(test)]
    pub fn crowd_out(&self) {
        let mut table = self.table.lock();
        while let Some((_, first)) = table.order.pop_first() {
            drop(table.take(first));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::Timestamp;

    fn kept(seed: u64, count: usize) -> Kept {
        let key = Key { ino: seed, ..Key::default() };
        let object = (seed, Timestamp::default(), Timestamp::default());
        Kept { key, object, map_digest: seed, sums: vec![(0, vec![seed; count].into())] }
    }

    #[test]
    fn what_is_kept_of_a_file_is_for_who_comes_next() {
        let all = KeptSums::default();
        let (first, none) = all.come(Ino(1));
        assert_eq!(none, None);
        all.leave(Ino(1), first, Some(kept(7, 3)));
        let (second, found) = all.come(Ino(1));
        assert_eq!(found, Some(kept(7, 3)));
        // Nothing is known of it any more.
        all.leave(Ino(1), second, None);
        let (third, found) = all.come(Ino(1));
        assert_eq!(found, None);
        // One leaves late, when another one is in memory, or was.
        let (fourth, _) = all.come(Ino(1));
        all.leave(Ino(1), third, Some(kept(7, 3)));
        let (fifth, found) = all.come(Ino(1));
        assert_eq!(found, None);
        all.leave(Ino(1), fifth, None);
        all.leave(Ino(1), fourth, Some(kept(7, 3)));
        assert_eq!(all.come(Ino(1)).1, None);
        let table = all.table.lock();
        assert!(table.order.is_empty() && table.bytes == 0);
    }

    #[test]
    fn sums_of_many_files_take_no_more_than_their_bound() {
        let bytes_max = 10 * kept(0, 100).bytes();
        let all = KeptSums { bytes_max, ..KeptSums::default() };
        let keep = |ino: u64, count: usize| {
            let (visit, _) = all.come(Ino(ino));
            all.leave(Ino(ino), visit, Some(kept(ino, count)));
        };
        (0..25).for_each(|ino| keep(ino, 100));
        keep(25, 1);
        assert!(all.table.lock().bytes <= bytes_max);
        let is_there: Vec<bool> = (0..26).map(|ino| all.come(Ino(ino)).1.is_some()).collect();
        let wanted: Vec<bool> = (0..26).map(|ino| (15..25).contains(&ino)).collect();
        assert_eq!(is_there, wanted, "the last ones, and not one that tells nothing");
        // One that is larger than all of it.
        keep(30, bytes_max);
        let table = all.table.lock();
        assert!(table.order.is_empty() && table.bytes == 0);
    }
}
