//! Which bytes the transfers of a process are: a pure function of the transfer's number, so that a walk over any number of
//! transfers in any order takes constant memory.
//!
//! With i the segment, N the processes that share a file, p the place of one among them, b the block, d the stride:
//! transfer j of a block lies at `offset + i*N*b + p*b + j*d`, as IOR has it.
//!
//! Invariant: nothing overflows for a workload that [`super::Workload::check`] accepted.
//! Callers: `walk`, `check`.

use super::model::{Layout, MAX_DIMENSIONS, Move, Order};
use crate::random::{mix, permuted};

/// A process's share of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Processes that share the file.
    pub sharers: u32,
    /// The place of this one among them.
    pub position: u32,
}

impl Move {
    /// Transfers of one process.
    pub fn count(&self) -> u64 {
        match &self.layout {
            Layout::Blocks { block_bytes, segments, stride_bytes, .. } => {
                block_bytes.div_ceil((*stride_bytes).max(1)) * segments
            }
            Layout::Array { .. } => {
                let runs = self.runs();
                runs.count * runs.bytes.div_ceil(self.transfer_bytes.max(1))
            }
        }
    }

    /// Bytes that one process moves.
    pub fn bytes(&self) -> u64 {
        match &self.layout {
            Layout::Blocks { block_bytes, segments, stride_bytes, .. } => {
                let stride = (*stride_bytes).max(1);
                let whole = block_bytes / stride * self.transfer_bytes;
                (whole + (block_bytes % stride).min(self.transfer_bytes)) * segments
            }
            Layout::Array { .. } => {
                let runs = self.runs();
                runs.count * runs.bytes
            }
        }
    }

    /// Bytes of the longest transfer.
    pub fn longest(&self) -> u64 {
        match &self.layout {
            Layout::Blocks { block_bytes, .. } => self.transfer_bytes.min(*block_bytes),
            Layout::Array { .. } => self.transfer_bytes.min(self.runs().bytes),
        }
    }

    /// Offset and bytes of transfer `index` of a process's share. `seed` is the workload's.
    pub fn at(&self, share: Share, seed: u32, index: u64) -> (u64, u64) {
        match &self.layout {
            Layout::Blocks { .. } => self.block_at(share, seed, index),
            Layout::Array { .. } => self.array_at(share, seed, index),
        }
    }

    fn block_at(&self, share: Share, seed: u32, index: u64) -> (u64, u64) {
        let Layout::Blocks { offset, block_bytes, segments, stride_bytes } = self.layout else {
            return (0, 0);
        };
        let (sharers, position) = (u64::from(share.sharers.max(1)), u64::from(share.position));
        let stride = stride_bytes.max(1);
        let per_block = block_bytes.div_ceil(stride).max(1);
        let count = per_block * segments;
        let index = match self.order {
            Order::Reverse => count - 1 - index % count,
            Order::Same => 0,
            _ => index % count.max(1),
        };
        let (segment, step) = (index / per_block, index % per_block);
        let seed = mix(u64::from(seed));
        let (segment, block, step) = match self.order {
            Order::Shuffled => {
                let key = seed ^ (position << 32) ^ segment;
                (segment, position, permuted(key, per_block, step))
            }
            Order::Scattered => {
                let dealt = position * per_block + step;
                let place = permuted(seed ^ segment, per_block * sharers, dealt);
                (segment, place / per_block, place % per_block)
            }
            Order::Random => {
                let drawn = mix(seed ^ mix((position << 32) ^ segment ^ (1 << 63)));
                let place = drawn % (sharers * segments).max(1);
                (place / sharers, place % sharers, step)
            }
            Order::Sequential | Order::Reverse | Order::Same => (segment, position, step),
        };
        let within = step * stride;
        let at = offset + (segment * sharers + block) * block_bytes + within;
        (at, self.transfer_bytes.min(block_bytes - within))
    }

    fn array_at(&self, share: Share, seed: u32, index: u64) -> (u64, u64) {
        let Layout::Array { offset, shape, divide, element_bytes, chunk } = &self.layout else {
            return (0, 0);
        };
        let count = self.count().max(1);
        let index = match self.order {
            Order::Reverse => count - 1 - index % count,
            Order::Same => 0,
            Order::Sequential => index % count,
            _ => permuted(mix(u64::from(seed)) ^ u64::from(share.position), count, index),
        };
        let runs = self.runs();
        let pieces = runs.bytes.div_ceil(self.transfer_bytes.max(1)).max(1);
        let (run, piece) = (index / pieces, index % pieces);
        // The unit in each dimension: an element, or a chunk. The part's place and the run's, from the last dimension on.
        let unit = |dim: usize| chunk.as_ref().map_or(1, |chunk| chunk[dim]);
        let (mut part, mut rest) = (u64::from(share.position), run);
        let (mut linear, mut scale) = (0, 1);
        for dim in (0..shape.len()).rev() {
            let own = shape[dim] / divide[dim] / unit(dim);
            let first = part % divide[dim] * own;
            part /= divide[dim];
            // Dimensions inside a run begin at their own first unit.
            let inner = if dim >= runs.first_inner { 0 } else { rest % own };
            if dim < runs.first_inner {
                rest /= own;
            }
            linear += (first + inner) * scale;
            scale *= shape[dim] / unit(dim);
        }
        let unit_bytes = (0..shape.len()).map(unit).product::<u64>() * element_bytes;
        let within = piece * self.transfer_bytes;
        (offset + linear * unit_bytes + within, self.transfer_bytes.min(runs.bytes - within))
    }

    /// The contiguous pieces of a process's part of an array.
    fn runs(&self) -> Runs {
        let Layout::Array { shape, divide, element_bytes, chunk, .. } = &self.layout else {
            return Runs { count: 0, bytes: 0, first_inner: 0 };
        };
        let own = |dim: usize| shape[dim] / divide[dim];
        if let Some(chunk) = chunk {
            let count = (0..shape.len()).map(|dim| own(dim) / chunk[dim]).product();
            let bytes = chunk.iter().product::<u64>() * element_bytes;
            return Runs { count, bytes, first_inner: shape.len().min(MAX_DIMENSIONS) };
        }
        // Dimensions that a process has whole join the one before them.
        let mut first_inner = shape.len();
        let mut elements = 1;
        while first_inner > 0 {
            first_inner -= 1;
            elements *= own(first_inner);
            if divide[first_inner] != 1 {
                break;
            }
        }
        let count = (0..first_inner).map(own).product();
        Runs { count, bytes: elements * element_bytes, first_inner }
    }
}

/// What one call of a library that knows arrays moves: one index of the first dimension of a process's part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slab {
    /// Its first element in each dimension.
    pub start: Vec<u64>,
    /// Elements in each dimension.
    pub count: Vec<u64>,
    /// Elements of the array in each dimension.
    pub shape: Vec<u64>,
    /// Bytes of an element.
    pub element_bytes: u64,
}

impl Move {
    /// Slabs of a process's part; 0 if it is not that of an array.
    pub fn slabs(&self) -> u64 {
        match &self.layout {
            Layout::Blocks { .. } => 0,
            Layout::Array { shape, divide, .. } => shape[0] / divide[0].max(1),
        }
    }

    /// Slab `index` of a process's share; None if it is not that of an array.
    pub fn slab(&self, share: Share, index: u64) -> Option<Slab> {
        let Layout::Array { shape, divide, element_bytes, .. } = &self.layout else { return None };
        let mut start = vec![0; shape.len()];
        let mut count = vec![0; shape.len()];
        let mut part = u64::from(share.position);
        for dim in (0..shape.len()).rev() {
            count[dim] = shape[dim] / divide[dim].max(1);
            start[dim] = part % divide[dim].max(1) * count[dim];
            part /= divide[dim].max(1);
        }
        start[0] += index;
        count[0] = 1;
        Some(Slab { start, count, shape: shape.clone(), element_bytes: *element_bytes })
    }
}

impl Slab {
    /// All of it.
    pub fn bytes(&self) -> u64 {
        self.count.iter().product::<u64>() * self.element_bytes
    }

    /// Its contiguous pieces in the array in row-major order, as (place, bytes), in the order in which a library takes them
    /// from memory.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        // Dimensions that it has whole join the one before them.
        let mut inner = self.count.len().saturating_sub(1);
        while inner > 0 && self.count[inner] == self.shape[inner] {
            inner -= 1;
        }
        let len = self.count[inner..].iter().product::<u64>() * self.element_bytes;
        let pieces = self.count[..inner].iter().product::<u64>();
        (0..pieces).map(move |piece| {
            let (mut rest, mut linear, mut scale) = (piece, 0, 1);
            for dim in (0..self.count.len()).rev() {
                let at = match dim < inner {
                    true => rest % self.count[dim],
                    false => 0,
                };
                if dim < inner {
                    rest /= self.count[dim];
                }
                linear += (self.start[dim] + at) * scale;
                scale *= self.shape[dim];
            }
            (linear * self.element_bytes, len)
        })
    }
}

struct Runs {
    count: u64,
    bytes: u64,
    /// Dimensions from here on lie inside a run.
    first_inner: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn offsets(part: &Move, sharers: u32, position: u32) -> Vec<(u64, u64)> {
        let share = Share { sharers, position };
        (0..part.count()).map(|index| part.at(share, 7, index)).collect()
    }

    fn blocks(block: u64, transfer: u64, segments: u64, stride: u64) -> Move {
        let mut part = Move::new(true, 0, block, transfer);
        part.layout =
            Layout::Blocks { offset: 0, block_bytes: block, segments, stride_bytes: stride };
        part
    }

    #[test]
    fn blocks_lie_as_ior_has_them() {
        let part = blocks(20, 10, 2, 10);
        assert_eq!(offsets(&part, 3, 1), [(20, 10), (30, 10), (80, 10), (90, 10)]);
        let strided = blocks(100, 10, 1, 50);
        assert_eq!(offsets(&strided, 1, 0), [(0, 10), (50, 10)]);
        let short = blocks(25, 10, 1, 10);
        assert_eq!(offsets(&short, 1, 0), [(0, 10), (10, 10), (20, 5)]);
        assert_eq!((short.bytes(), strided.bytes()), (25, 20));
    }

    #[test]
    fn reverse_same_and_random() {
        let mut part = blocks(30, 10, 1, 10);
        part.order = Order::Reverse;
        assert_eq!(offsets(&part, 1, 0), [(20, 10), (10, 10), (0, 10)]);
        part.order = Order::Same;
        assert_eq!(offsets(&part, 1, 0), [(0, 10); 3]);
        let mut part = blocks(20, 10, 50, 10);
        part.order = Order::Random;
        let drawn = offsets(&part, 2, 1);
        assert!(drawn.chunks(2).all(|pair| pair[1].0 == pair[0].0 + 10 && pair[0].0 % 20 == 0));
        assert!(drawn.iter().all(|(at, _)| *at < 2000));
        let places: std::collections::BTreeSet<u64> = drawn.iter().map(|(at, _)| *at).collect();
        assert!(places.len() > 40, "{} places of 50 draws", places.len());
    }

    /// The decomposition of NetCDF-Bench: x over nodes, y over processes of a node, one time step after the other.
    #[test]
    fn an_array_is_cut_into_runs() {
        let mut part = Move::new(true, 0, 1, 1 << 30);
        part.layout = Layout::Array {
            offset: 0,
            shape: vec![2, 4, 6, 5],
            divide: vec![1, 2, 2, 1],
            element_bytes: 4,
            chunk: None,
        };
        // Process 1: x 0..2, y 3..6, all z: a run of 15 elements for each x and time step.
        let step = 4 * 6 * 5 * 4;
        let row = 6 * 5 * 4;
        let first = 3 * 5 * 4;
        assert_eq!(
            offsets(&part, 4, 1),
            [(first, 60), (first + row, 60), (step + first, 60), (step + first + row, 60)]
        );
        let Layout::Array { chunk, .. } = &mut part.layout else { panic!("an array") };
        *chunk = Some(vec![1, 2, 3, 5]);
        // Chunks of 30 elements; four of them make a time step.
        assert_eq!(offsets(&part, 4, 1), [(120, 120), (600, 120)]);
        assert_eq!(offsets(&part, 4, 2), [(240, 120), (720, 120)]);
    }

    /// A library that is given slabs moves the same bytes as the series of blocks.
    #[test]
    fn slabs_are_the_runs_of_a_contiguous_array() {
        for divide in [[1, 2, 2, 1], [1, 1, 1, 1], [2, 1, 3, 1], [1, 1, 2, 5]] {
            let mut part = Move::new(true, 0, 1, 1 << 30);
            let shape = vec![2, 4, 6, 5];
            let (divide, element_bytes) = (divide.to_vec(), 4);
            let sharers = divide.iter().product::<u64>() as u32;
            part.layout = Layout::Array { offset: 0, shape, divide, element_bytes, chunk: None };
            for position in 0..sharers {
                let share = Share { sharers, position };
                let slabs = (0..part.slabs()).map(|index| part.slab(share, index).expect("array"));
                let pieces: Vec<_> =
                    slabs.flat_map(|slab| slab.pieces().collect::<Vec<_>>()).collect();
                // Runs may join slabs: compared byte range by byte range.
                let bytes = |parts: Vec<(u64, u64)>| -> Vec<u64> {
                    parts.into_iter().flat_map(|(at, len)| at..at + len).collect()
                };
                assert_eq!(bytes(pieces), bytes(offsets(&part, sharers, position)));
            }
        }
    }

    fn covered(parts: &[(u64, u64)], bytes: u64) -> bool {
        let mut sorted = parts.to_vec();
        sorted.sort_unstable();
        let mut end = 0;
        for (at, len) in sorted {
            if at != end {
                return false;
            }
            end += len;
        }
        end == bytes
    }

    proptest! {
        /// Each byte of a shared file is moved once, in any order but Same and Random.
        #[test]
        fn processes_cover_the_file_once(
            sharers in 1_u32..7, transfers in 1_u64..9, transfer in 1_u64..50, segments in 1_u64..4,
            order in 0_usize..5,
        ) {
            let mut part = blocks(transfers * transfer, transfer, segments, transfer);
            part.order = [Order::Sequential, Order::Reverse, Order::Shuffled, Order::Scattered, Order::Shuffled][order];
            let all: Vec<_> = (0..sharers).flat_map(|p| offsets(&part, sharers, p)).collect();
            prop_assert!(covered(&all, transfers * transfer * segments * u64::from(sharers)));
            prop_assert_eq!(part.bytes() * u64::from(sharers), all.iter().map(|(_, len)| len).sum::<u64>());
        }

        /// And of an array, contiguous or in chunks, with runs cut into transfers.
        #[test]
        fn processes_cover_an_array_once(
            own in proptest::collection::vec((1_u64..4, 1_u64..4, 1_u64..3), 1..5),
            element in 1_u64..9, transfer in 1_u64..40, chunked in any::<bool>(),
        ) {
            let mut part = Move::new(true, 0, 1, transfer);
            let shape: Vec<u64> = own.iter().map(|(chunk, chunks, parts)| chunk * chunks * parts).collect();
            let divide: Vec<u64> = own.iter().map(|(_, _, parts)| *parts).collect();
            let chunk = chunked.then(|| own.iter().map(|(chunk, _, _)| *chunk).collect());
            let sharers = divide.iter().product::<u64>() as u32;
            let bytes = shape.iter().product::<u64>() * element;
            part.layout = Layout::Array { offset: 0, shape, divide, element_bytes: element, chunk };
            let all: Vec<_> = (0..sharers).flat_map(|p| offsets(&part, sharers, p)).collect();
            prop_assert!(covered(&all, bytes));
            prop_assert_eq!(part.bytes() * u64::from(sharers), bytes);
        }
    }
}
