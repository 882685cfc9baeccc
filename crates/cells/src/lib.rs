//! The model of data: which bytes each file may show after a power cut.
//!
//! Data is written in cells of [`CELL_BYTES`]; each cell tells the file, the step and the place
//! it was written at, sealed by a hash, so a block of another file, or a torn cell (cells divide
//! sectors), cannot pass for this file's. For each cell the model keeps what it holds and what
//! it held since it was last made durable: any of these may be found, nothing else.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

/// Unit of all offsets and lengths of the workload. Divides a sector (512 bytes).
pub const CELL_BYTES: u64 = 32;

/// What a cell holds: 0 = zeroes, else [`stamp`].
pub type Cell = u64;

const INDEX_BITS: u32 = 24;
const STEP_BITS: u32 = 24;

/// The value of a cell written by step `step` to file `serial` at cell `index`.
pub fn stamp(serial: u64, step: u64, index: u64) -> Cell {
    ((serial + 1) << (INDEX_BITS + STEP_BITS)) | (step << INDEX_BITS) | index
}

/// A cell's stamp in words.
pub fn describe(cell: Cell) -> String {
    if cell == 0 {
        return "zeroes".to_string();
    }
    let serial = (cell >> (INDEX_BITS + STEP_BITS)) - 1;
    let step = (cell >> INDEX_BITS) & ((1 << STEP_BITS) - 1);
    let index = cell & ((1 << INDEX_BITS) - 1);
    format!("file {serial}, step {step}, offset {}", index * CELL_BYTES)
}

fn mix(value: u64, salt: u64) -> u64 {
    let mut mixed = value.wrapping_add(salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^= mixed >> 29;
    mixed = mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 32)
}

/// The bytes of cells.
pub fn encode(cells: &[Cell]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(cells.len() * CELL_BYTES as usize);
    for cell in cells {
        if *cell == 0 {
            bytes.extend_from_slice(&[0; CELL_BYTES as usize]);
            continue;
        }
        for word in [*cell, mix(*cell, 1), mix(*cell, 2), mix(*cell, 3)] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
    }
    bytes
}

/// The cell in some bytes; `None` if they are no cell.
pub fn decode(bytes: &[u8]) -> Option<Cell> {
    let word = |index: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
        u64::from_le_bytes(word)
    };
    let (cell, a, b, c) = (word(0), word(1), word(2), word(3));
    let zero = cell == 0 && a == 0 && b == 0 && c == 0;
    let sealed = cell != 0 && a == mix(cell, 1) && b == mix(cell, 2) && c == mix(cell, 3);
    (zero || sealed).then_some(cell)
}

/// A change of one file's data. Offsets and lengths are in cells.
#[derive(Clone, Debug)]
pub enum DataOp {
    /// Cells written. `sync`: O_DSYNC, durable when acknowledged.
    Put {
        /// First cell.
        first: u64,
        /// The cells.
        cells: Vec<Cell>,
        /// O_DSYNC.
        sync: bool,
    },
    /// Set the size.
    Truncate {
        /// New size.
        size: u64,
    },
    /// Punch a hole (the size stays).
    Punch {
        /// First cell.
        first: u64,
        /// Count.
        count: u64,
    },
    /// fallocate that may make the file longer.
    Allocate {
        /// End.
        end: u64,
    },
}

/// Hashes of numbers that follow each other. Models of files are made anew for each cut, and hashes that withstand an
/// attacker took most of the time.
#[derive(Clone, Debug, Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

/// Other values that a cell may still have: mostly one.
#[derive(Clone, Debug)]
struct Older {
    first: Cell,
    more: Vec<Cell>,
}

impl Older {
    fn all(&self) -> impl Iterator<Item = Cell> + '_ {
        std::iter::once(self.first).chain(self.more.iter().copied())
    }

    fn has(&self, cell: Cell) -> bool {
        self.all().any(|older| older == cell)
    }
}

/// What one file may hold.
#[derive(Clone, Debug, Default)]
pub struct Content {
    cells: Vec<Cell>,
    size: u64,
    /// By the number of the cell.
    older: HashMap<u64, Older, BuildHasherDefault<Spread>>,
    size_min: u64,
    size_max: u64,
    /// False while nothing older needs to be kept (a later fsync makes all of it durable).
    settled: bool,
}

impl Content {
    /// Says that what follows, until [`Content::make_durable`], is known to be durable later:
    /// nothing older is kept. For speed only.
    pub fn settle(&mut self, settled: bool) {
        self.settled = settled;
    }

    /// Current size in cells.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Current cells of a range inside the file.
    pub fn cells(&self, first: u64, count: u64) -> Vec<Cell> {
        let end = (first + count).min(self.size);
        (first..end).map(|index| self.cells.get(index as usize).copied().unwrap_or(0)).collect()
    }

    fn set(&mut self, index: u64, cell: Cell, durable: bool) {
        if self.cells.len() <= index as usize {
            self.cells.resize(index as usize + 1, 0);
        }
        let old = std::mem::replace(&mut self.cells[index as usize], cell);
        if durable {
            self.older.remove(&index);
        } else if old != cell && !self.settled {
            match self.older.entry(index) {
                Entry::Vacant(place) => {
                    place.insert(Older { first: old, more: Vec::new() });
                }
                Entry::Occupied(mut older) => {
                    if !older.get().has(old) {
                        older.get_mut().more.push(old);
                    }
                }
            }
        }
    }

    fn set_size(&mut self, size: u64) {
        for index in size..self.size.min(self.cells.len() as u64) {
            self.set(index, 0, false);
        }
        self.size = size;
        self.size_min = self.size_min.min(size);
        self.size_max = self.size_max.max(size);
    }

    /// Applies a change. `durable`: it was acknowledged before the cut (counts for O_DSYNC).
    pub fn apply(&mut self, op: &DataOp, acknowledged: bool) {
        match op {
            DataOp::Put { first, cells, sync } => {
                let durable = *sync && acknowledged;
                for (index, cell) in (*first..).zip(cells) {
                    self.set(index, *cell, durable);
                }
                let end = first + cells.len() as u64;
                if end > self.size {
                    self.set_size(end);
                }
                if durable {
                    self.size_min = self.size_min.max(end);
                }
            }
            DataOp::Truncate { size } => self.set_size(*size),
            DataOp::Punch { first, count } => {
                for index in *first..(first + count).min(self.size) {
                    self.set(index, 0, false);
                }
            }
            DataOp::Allocate { end } => {
                if *end > self.size {
                    self.set_size(*end);
                }
            }
        }
    }

    /// All that was done so far is on the medium.
    pub fn make_durable(&mut self) {
        self.older.clear();
        self.size_min = self.size;
        self.size_max = self.size;
    }

    /// What is wrong with the bytes found, if anything. `serial` is for the message.
    pub fn judge(&self, bytes: &[u8]) -> Option<String> {
        let size_bytes = bytes.len() as u64;
        let (min, max) = (self.size_min * CELL_BYTES, self.size_max * CELL_BYTES);
        if size_bytes < min || size_bytes > max {
            return Some(format!("size is {size_bytes}, must be {min} to {max}"));
        }
        for (index, chunk) in bytes.chunks(CELL_BYTES as usize).enumerate() {
            let offset = index as u64 * CELL_BYTES;
            if chunk.len() < CELL_BYTES as usize {
                return Some(format!("size {size_bytes} is none that the file ever had"));
            }
            let Some(cell) = decode(chunk) else {
                return Some(format!("offset {offset}: bytes of no file: {chunk:02x?}"));
            };
            let current = self.cells.get(index).copied().unwrap_or(0);
            if cell == current {
                continue;
            }
            let older = self.older.get(&(index as u64));
            if !older.is_some_and(|older| older.has(cell)) {
                let older: Vec<String> =
                    older.into_iter().flat_map(Older::all).map(describe).collect();
                return Some(format!(
                    "offset {offset} holds {}; it may hold {} or {older:?}",
                    describe(cell),
                    describe(current),
                ));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_its_own_or_nothing() {
        let cell = stamp(3, 77, 5);
        let mut bytes = encode(&[cell, 0]);
        assert_eq!(decode(&bytes[..32]), Some(cell));
        assert_eq!(decode(&bytes[32..]), Some(0));
        bytes[9] ^= 1;
        assert_eq!(decode(&bytes[..32]), None);
    }

    #[test]
    fn durable_data_must_be_there_and_newer_may() {
        let put =
            |step, first| DataOp::Put { first, cells: vec![stamp(1, step, first)], sync: false };
        let mut content = Content::default();
        content.apply(&put(1, 0), true);
        assert!(content.judge(&[]).is_none(), "nothing of it was fsynced");
        content.make_durable();
        assert!(content.judge(&[]).is_some());
        content.apply(&put(2, 0), true);
        assert!(content.judge(&encode(&[stamp(1, 1, 0)])).is_none());
        assert!(content.judge(&encode(&[stamp(1, 2, 0)])).is_none());
        assert!(content.judge(&encode(&[0])).is_some(), "zeroes over durable data");
        assert!(content.judge(&encode(&[stamp(2, 1, 0)])).is_some(), "another file's");
    }
}
