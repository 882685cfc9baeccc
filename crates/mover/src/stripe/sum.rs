//! The checksum of a striped file out of what each server sees of it, without a byte or a list of
//! checksums crossing the network.
//!
//! A CRC is linear: that of a file is the CRC of as many zeros, xor what each part adds to it; what a
//! part adds depends on its own bytes and where in the file they are. So each server adds up its own
//! part in the order in which it reads it, and the lead xors one number of each.
//! Called by `part` with every piece, by `lead` at the end.

use super::super::copy::{join, zeros_crc};
use forebay_proto::layout::{Layout, Part};

/// Distances and lengths that are remembered: a part has few different ones.
const REMEMBERED_MAX: usize = 8;

/// What an object adds to the CRC32C of its file.
pub(crate) struct StripeSum {
    layout: Layout,
    stripe: u32,
    /// What was added up, of the file up to `end`.
    sum: u32,
    end: u64,
    shifts: Vec<Shift>,
    /// CRC of so many zeros.
    zeros: Vec<(u64, u32)>,
}

impl StripeSum {
    pub fn new(layout: Layout, stripe: u32) -> StripeSum {
        StripeSum { layout, stripe, sum: 0, end: 0, shifts: Vec::new(), zeros: Vec::new() }
    }

    /// Bytes at an offset of the object, behind all before.
    pub fn add(&mut self, offset: u64, bytes: &[u8]) {
        let part = Part { stripe: self.stripe, offset, bytes: bytes.len() as u64 };
        let layout = self.layout;
        for run in layout.runs(part) {
            let from = (run.object_offset - offset) as usize;
            let run_bytes = &bytes[from..from + run.bytes as usize];
            let end = run.file_offset + run.bytes;
            self.go_to(end);
            let crc = forebay_sums::crc32c(run_bytes);
            self.sum ^= crc ^ self.zeros(run.bytes);
        }
    }

    /// What the object adds to the checksum of a file of this size.
    pub fn of_file(mut self, size_bytes: u64) -> u32 {
        self.go_to(size_bytes);
        self.sum
    }

    fn go_to(&mut self, end: u64) {
        let distance = end.saturating_sub(self.end);
        self.end = end;
        if self.sum == 0 || distance == 0 {
            return;
        }
        let known = self.shifts.iter().find(|shift| shift.bytes == distance);
        self.sum = match known {
            Some(shift) => shift.of(self.sum),
            None if self.shifts.len() < REMEMBERED_MAX => {
                let shift = Shift::by(distance);
                let sum = shift.of(self.sum);
                self.shifts.push(shift);
                sum
            }
            None => join(self.sum, 0, distance),
        };
    }

    fn zeros(&mut self, bytes: u64) -> u32 {
        if let Some((_, crc)) = self.zeros.iter().find(|(known, _)| *known == bytes) {
            return *crc;
        }
        let crc = zeros_crc(bytes);
        if self.zeros.len() < REMEMBERED_MAX {
            self.zeros.push((bytes, crc));
        }
        crc
    }
}

/// The CRC32C of a file of this size, of what its parts add.
pub(crate) fn of_parts(size_bytes: u64, parts: impl Iterator<Item = u32>) -> u32 {
    parts.fold(zeros_crc(size_bytes), |sum, part| sum ^ part)
}

/// What becomes of a CRC when so many zeros follow, as tables: a combination costs as much as the
/// checksum of some KiB.
struct Shift {
    bytes: u64,
    tables: Box<[[u32; 256]; 4]>,
}

impl Shift {
    fn by(bytes: u64) -> Shift {
        let mut tables = Box::new([[0; 256]; 4]);
        for (at, table) in tables.iter_mut().enumerate() {
            for bit in 0..8 {
                table[1 << bit] = join(1 << (8 * at + bit), 0, bytes);
            }
            for value in 1..256usize {
                let low = value & value.wrapping_neg();
                table[value] = table[low] ^ table[value ^ low];
            }
        }
        Shift { bytes, tables }
    }

    fn of(&self, crc: u32) -> u32 {
        let bytes = crc.to_le_bytes();
        let of = |at: usize| self.tables[at][usize::from(bytes[at])];
        of(0) ^ of(1) ^ of(2) ^ of(3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    #[test]
    fn the_parts_of_any_file_give_its_checksum() {
        let mut rng = StdRng::seed_from_u64(11);
        for _ in 0..300 {
            let layout = Layout {
                stripe_size_bytes: rng.random_range(1..5_000),
                stripe_count: rng.random_range(2..6),
                ..Layout::WHOLE_LOCAL
            };
            let mut file = vec![0; rng.random_range(0..60_000)];
            rng.fill(&mut file[..]);
            // Holes, which the parts do not see.
            let hole = rng.random_range(0..=file.len())..file.len();
            file[hole.clone()].fill(0);
            let size = file.len() as u64;
            let sums = (0..u32::from(layout.stripe_count)).map(|stripe| {
                let mut sum = StripeSum::new(layout, stripe);
                let mut at = 0;
                let end = layout.object_bytes(stripe, hole.start as u64);
                while at < end {
                    let bytes = rng.random_range(1..7_000).min(end - at);
                    let part = Part { stripe, offset: at, bytes };
                    let mut piece = Vec::new();
                    for run in layout.runs(part) {
                        let from = run.file_offset as usize;
                        piece.extend_from_slice(&file[from..from + run.bytes as usize]);
                    }
                    sum.add(at, &piece);
                    at += bytes;
                }
                sum.of_file(size)
            });
            let sums: Vec<u32> = sums.collect();
            let whole = forebay_sums::crc32c(&file);
            assert_eq!(of_parts(size, sums.into_iter()), whole, "{layout:?} {size}");
        }
    }
}
