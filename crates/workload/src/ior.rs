//! IOR's access pattern: N processes, each with blocks of `block_bytes` in a shared file or a file of
//! its own, moved in transfers of `transfer_bytes`, segment after segment.
//!
//! With r the rank whose part is accessed (the "pretended" rank), i the segment, j the transfer in the block, N
//! tasks, b and t the bytes of a block and a transfer:
//!
//! - shared file: offset = i*N*b + r*b + j*t
//! - a file each: offset = i*b + j*t
//!
//! Source: the behaviour of IOR 4.1, as its option semantics and per-transfer output show it; random orders
//! come from the same generator ([`crate::random::Random`]), so they are IOR's transfer by transfer.
//!
//! Invariants: without `Order::Random`, each offset of the file is accessed exactly once over all ranks. The
//! walk of a rank never ends by itself: after the last transfer it begins again (IOR does this for a minimum
//! time); [`Pattern::transfers_of`] says how many make one round.
//! Callers: `forebay-loadgen`; `forebay bench ior --show-offsets`.

use crate::random::Random;

/// The order of the transfers of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Ascending.
    Sequential,
    /// IOR's `-z`: own file: a permutation of each block. Shared file: each transfer of a segment
    /// belongs to a random rank, so ranks have uneven counts.
    Shuffled,
    /// IOR's `-z -z`: blocks drawn at random, with repetition, from a file of this many bytes.
    Random {
        /// Size of the file, in bytes.
        file_bytes: u64,
    },
}

/// Which rank's part a rank reads back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reorder {
    /// Its own.
    Own,
    /// IOR's `-C`: of the rank `shift` further on, modulo N. The shift is `-Q` times the tasks of a node.
    Shift {
        /// Ranks.
        shift: u32,
    },
    /// IOR's `-Z`: of a rank that each draws for itself; several may draw the same one. Draws below
    /// `least` are repeated.
    Draw {
        /// Seed (`-X`).
        seed: u32,
        /// Least rank offset, `-Q` times the tasks of a node.
        least: u32,
    },
    /// IOR's `-Z -Z`: a permutation, so each part is read once.
    Permute {
        /// Seed (`-X`).
        seed: u32,
    },
}

/// Why a pattern was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PatternError {
    /// A count or size is 0.
    #[error("{0} is 0: expected at least 1")]
    Zero(&'static str),
    /// The block is not whole transfers.
    #[error(
        "the block of {block_bytes} bytes (-b) is not a multiple of the transfer of {transfer_bytes} bytes (-t)"
    )]
    Uneven {
        /// The block.
        block_bytes: u64,
        /// The transfer.
        transfer_bytes: u64,
    },
    /// A shuffle of one transfer.
    #[error("-z needs a block (-b) larger than the transfer (-t): there is nothing to reorder")]
    NothingToShuffle,
    /// IOR refuses it, for a reader would not know who wrote what.
    #[error("-z on a shared file cannot be combined with -C or -Z: give each process a file (-F)")]
    ShuffledAndReordered,
    /// A draw that cannot end.
    #[error(
        "-Z with -Q: all {tasks} ranks lie below the least shift of {least}: no rank can be drawn"
    )]
    NothingToDraw {
        /// Ranks.
        tasks: u32,
        /// Least shift.
        least: u32,
    },
    /// Sizes beyond what a file can have.
    #[error("the file would have more than 2^63-1 bytes")]
    TooLarge,
}

/// The parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Processes, N.
    pub tasks: u32,
    /// Bytes of a block, b.
    pub block_bytes: u64,
    /// Bytes of a transfer, t.
    pub transfer_bytes: u64,
    /// Segments, s.
    pub segments: u64,
    /// Whether each process has a file of its own (`-F`).
    pub file_per_process: bool,
    /// Order of the transfers.
    pub order: Order,
    /// Seed of `order` (IOR's `--random-offset-seed`).
    pub order_seed: u32,
}

impl Pattern {
    /// Checks what IOR checks, with `reads` as the read phases will be.
    pub fn check(&self, reads: Reorder) -> Result<(), PatternError> {
        let zero = [
            (u64::from(self.tasks), "the number of processes (-N)"),
            (self.block_bytes, "the block size (-b)"),
            (self.transfer_bytes, "the transfer size (-t)"),
            (self.segments, "the number of segments (-s)"),
        ];
        if let Some((_, name)) = zero.into_iter().find(|(value, _)| *value == 0) {
            return Err(PatternError::Zero(name));
        }
        let (block_bytes, transfer_bytes) = (self.block_bytes, self.transfer_bytes);
        if block_bytes % transfer_bytes != 0 {
            return Err(PatternError::Uneven { block_bytes, transfer_bytes });
        }
        if self.order != Order::Sequential && block_bytes == transfer_bytes {
            return Err(PatternError::NothingToShuffle);
        }
        if self.order == Order::Shuffled && !self.file_per_process && reads != Reorder::Own {
            return Err(PatternError::ShuffledAndReordered);
        }
        if let Reorder::Draw { least, .. } = reads {
            if least >= self.tasks {
                return Err(PatternError::NothingToDraw { tasks: self.tasks, least });
            }
        }
        match self.total_bytes().filter(|&bytes| bytes <= i64::MAX as u64) {
            Some(_) => Ok(()),
            None => Err(PatternError::TooLarge),
        }
    }

    /// Bytes of all files together, or None where that is more than a u64.
    pub fn total_bytes(&self) -> Option<u64> {
        self.file_bytes()?.checked_mul(u64::from(self.files()))
    }

    /// Files.
    pub fn files(&self) -> u32 {
        if self.file_per_process { self.tasks } else { 1 }
    }

    /// Bytes of one file, or None where that is more than a u64.
    pub fn file_bytes(&self) -> Option<u64> {
        let own = self.block_bytes.checked_mul(self.segments)?;
        if self.file_per_process { Some(own) } else { own.checked_mul(u64::from(self.tasks)) }
    }

    /// Transfers in a block.
    pub fn transfers_per_block(&self) -> u64 {
        self.block_bytes / self.transfer_bytes
    }

    /// The rank whose part `rank` reads. The seed is the repetition's: with a negative `-X` IOR changes it
    /// from one to the next.
    pub fn read_rank(&self, rank: u32, reads: Reorder) -> u32 {
        let tasks = self.tasks;
        match reads {
            Reorder::Own => rank,
            Reorder::Shift { shift } => (rank + shift % tasks) % tasks,
            Reorder::Draw { seed, least } => {
                let mut random = Random::new(rank.wrapping_add(seed));
                loop {
                    let offset = random.below(u64::from(tasks)) as u32;
                    if offset >= least {
                        return (rank + offset) % tasks;
                    }
                }
            }
            Reorder::Permute { seed } => {
                let mut random = Random::new(seed);
                let mut ranks: Vec<u32> = (0..tasks).collect();
                for i in 0..tasks {
                    let other = i + random.below(u64::from(tasks - i)) as u32;
                    ranks.swap(i as usize, other as usize);
                }
                ranks[rank as usize]
            }
        }
    }

    /// The walk over the part of `rank`.
    pub fn walk(&self, rank: u32) -> Walk<'_> {
        let order = match self.order {
            Order::Sequential => Steps::Ascending { per_segment: self.transfers_per_block() },
            Order::Shuffled => Steps::Listed(self.shuffled(rank)),
            Order::Random { file_bytes } => {
                let seed = self.seed_of(rank);
                let state = u64::from(seed).wrapping_mul(u64::from(rank) + 1);
                Steps::Drawn {
                    blocks: (file_bytes / self.block_bytes).max(1),
                    draw: Draw { high: 0, low: state },
                    block: 0,
                    per_segment: self.transfers_per_block(),
                }
            }
        };
        Walk { pattern: self, rank, order, segment: 0, step: 0 }
    }

    /// Transfers of one round of `rank`: all of its part.
    pub fn transfers_of(&self, rank: u32) -> u64 {
        let per_segment = match self.order {
            Order::Shuffled if !self.file_per_process => self.shuffled(rank).len() as u64,
            _ => self.transfers_per_block(),
        };
        per_segment * self.segments
    }

    /// The seed of a rank's order: own files differ, a shared one has one order for all.
    fn seed_of(&self, rank: u32) -> u32 {
        if self.file_per_process { self.order_seed.wrapping_add(rank) } else { self.order_seed }
    }

    /// Offsets in a segment, in the order of `-z`.
    fn shuffled(&self, rank: u32) -> Vec<u64> {
        let mut random = Random::new(self.seed_of(rank));
        let mut offsets: Vec<u64> = if self.file_per_process {
            (0..self.transfers_per_block()).map(|j| j * self.transfer_bytes).collect()
        } else {
            let transfers = self.transfers_per_block() * u64::from(self.tasks);
            (0..transfers)
                .filter(|_| random.below(u64::from(self.tasks)) == u64::from(rank))
                .map(|j| j * self.transfer_bytes)
                .collect()
        };
        let count = offsets.len() as u64;
        for i in 0..offsets.len() {
            let other = random.below(count) as usize;
            offsets.swap(i, other);
        }
        offsets
    }
}

/// The transfers of a rank, one after the other, for ever.
pub struct Walk<'a> {
    pattern: &'a Pattern,
    rank: u32,
    order: Steps,
    segment: u64,
    step: u64,
}

enum Steps {
    Ascending {
        per_segment: u64,
    },
    /// Offsets in a segment.
    Listed(Vec<u64>),
    Drawn {
        blocks: u64,
        draw: Draw,
        block: u64,
        per_segment: u64,
    },
}

/// IOR's 64-bit generator of `-z -z`.
struct Draw {
    high: u64,
    low: u64,
}

impl Draw {
    fn next(&mut self) -> u64 {
        let low = self.low.wrapping_mul(0x8664_58cd_56f5_e605);
        self.high = self.high.wrapping_mul(0x0fc9_4e3b_f4e9_ab32).wrapping_add(low >> 32);
        self.low = low;
        self.high
    }
}

impl Walk<'_> {
    fn per_segment(&self) -> u64 {
        match &self.order {
            Steps::Listed(offsets) => offsets.len() as u64,
            Steps::Ascending { per_segment } | Steps::Drawn { per_segment, .. } => *per_segment,
        }
    }

    /// Transfers of one round: what [`Pattern::transfers_of`] says, without making the order again.
    pub fn round(&self) -> u64 {
        self.per_segment() * self.pattern.segments
    }

    /// Offset in the file of the next transfer, in bytes; None if the rank has none at all (a shuffled
    /// shared file may give a rank nothing).
    pub fn next_offset(&mut self) -> Option<u64> {
        let pattern = self.pattern;
        let per_segment = self.per_segment();
        if per_segment == 0 {
            return None;
        }
        let segment_bytes = match pattern.file_per_process {
            true => pattern.block_bytes,
            false => pattern.block_bytes * u64::from(pattern.tasks),
        };
        let offset = match &mut self.order {
            Steps::Ascending { .. } => {
                let part = if pattern.file_per_process {
                    0
                } else {
                    u64::from(self.rank) * pattern.block_bytes
                };
                self.segment * segment_bytes + part + self.step * pattern.transfer_bytes
            }
            Steps::Listed(offsets) => self.segment * segment_bytes + offsets[self.step as usize],
            Steps::Drawn { blocks, draw, block, .. } => {
                if self.step == 0 {
                    *block = draw.next() % *blocks;
                }
                *block * pattern.block_bytes + self.step * pattern.transfer_bytes
            }
        };
        self.step += 1;
        if self.step == per_segment {
            self.step = 0;
            self.segment = (self.segment + 1) % pattern.segments;
        }
        Some(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pattern(tasks: u32, block: u64, transfer: u64, segments: u64, own: bool) -> Pattern {
        Pattern {
            tasks,
            block_bytes: block,
            transfer_bytes: transfer,
            segments,
            file_per_process: own,
            order: Order::Sequential,
            order_seed: 7,
        }
    }

    fn offsets(pattern: &Pattern, rank: u32) -> Vec<u64> {
        let mut walk = pattern.walk(rank);
        assert_eq!(walk.round(), pattern.transfers_of(rank));
        (0..walk.round()).map_while(|_| walk.next_offset()).collect()
    }

    #[test]
    fn a_shared_file_is_cut_as_ior_cuts_it() {
        let pattern = pattern(3, 20, 10, 2, false);
        assert_eq!(offsets(&pattern, 1), [20, 30, 80, 90]);
        assert_eq!(offsets(&pattern, 2), [40, 50, 100, 110]);
    }

    #[test]
    fn own_files_begin_at_zero() {
        let pattern = pattern(3, 20, 10, 2, true);
        assert_eq!(offsets(&pattern, 2), [0, 10, 20, 30]);
    }

    #[test]
    fn shifts_draws_and_permutations() {
        let pattern = pattern(4, 10, 10, 1, false);
        let read = |rank, reads| pattern.read_rank(rank, reads);
        assert_eq!(
            (0..4).map(|r| read(r, Reorder::Shift { shift: 1 })).collect::<Vec<_>>(),
            [1, 2, 3, 0]
        );
        // One node of 4 tasks: IOR's -C reads its own data again.
        assert_eq!(
            (0..4).map(|r| read(r, Reorder::Shift { shift: 4 })).collect::<Vec<_>>(),
            [0, 1, 2, 3]
        );
        for rank in 0..4 {
            let drawn = read(rank, Reorder::Draw { seed: 3, least: 1 });
            assert_ne!(drawn, rank, "a draw of at least 1 is another rank");
        }
    }

    /// What IOR 4.1 did, seen by system call tracing, in units of the transfer.
    #[test]
    fn random_orders_are_those_that_ior_used() {
        let in_transfers = |pattern: &Pattern| -> Vec<Vec<u64>> {
            let of = |rank| offsets(pattern, rank).iter().map(|at| at / 4096).collect();
            (0..pattern.tasks).map(of).collect()
        };
        let mut shuffled = pattern(3, 12_288, 4096, 1, false);
        (shuffled.order, shuffled.order_seed) = (Order::Shuffled, 11);
        assert_eq!(in_transfers(&shuffled), [vec![2, 4], vec![5, 7, 6], vec![3, 8, 0, 1]]);
        let mut own = pattern(3, 16_384, 4096, 1, true);
        (own.order, own.order_seed) = (Order::Shuffled, 11);
        assert_eq!(in_transfers(&own), [[3, 0, 2, 1], [3, 2, 1, 0], [2, 1, 3, 0]]);
        let seven = pattern(7, 4096, 4096, 1, false);
        let read = |reads| (0..7).map(|rank| seven.read_rank(rank, reads)).collect::<Vec<_>>();
        assert_eq!(read(Reorder::Permute { seed: 7 }), [5, 4, 6, 2, 3, 1, 0]);
        assert_eq!(read(Reorder::Draw { seed: 5, least: 0 }), [1, 1, 0, 3, 6, 4, 0]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut wrong = pattern(2, 15, 10, 1, false);
        assert_eq!(
            wrong.check(Reorder::Own),
            Err(PatternError::Uneven { block_bytes: 15, transfer_bytes: 10 })
        );
        wrong.block_bytes = 10;
        wrong.order = Order::Shuffled;
        assert_eq!(wrong.check(Reorder::Own), Err(PatternError::NothingToShuffle));
        wrong.block_bytes = 20;
        assert_eq!(
            wrong.check(Reorder::Shift { shift: 1 }),
            Err(PatternError::ShuffledAndReordered)
        );
        wrong.segments = u64::MAX;
        assert_eq!(wrong.check(Reorder::Own), Err(PatternError::TooLarge));
        let draw = pattern(2, 10, 10, 1, true);
        assert!(draw.check(Reorder::Draw { seed: 1, least: 2 }).is_err());
    }

    proptest! {
        /// Whatever the parameters and the order, the ranks together access each transfer of the files once.
        #[test]
        fn every_offset_is_accessed_once(
            tasks in 1_u32..9, transfers in 1_u64..9, transfer in 1_u64..50, segments in 1_u64..5,
            own in any::<bool>(), shuffled in any::<bool>(), seed in any::<u32>(),
        ) {
            let mut pattern = pattern(tasks, transfers * transfer, transfer, segments, own);
            pattern.order_seed = seed;
            if shuffled {
                pattern.order = Order::Shuffled;
            }
            let file_bytes = pattern.file_bytes().expect("small");
            let expected: Vec<u64> = (0..file_bytes / transfer).map(|i| i * transfer).collect();
            let mut shared = Vec::new();
            for rank in 0..tasks {
                let mut of_rank = offsets(&pattern, rank);
                if own {
                    of_rank.sort_unstable();
                    prop_assert_eq!(&of_rank, &expected);
                } else {
                    shared.extend(of_rank);
                }
            }
            if !own {
                shared.sort_unstable();
                prop_assert_eq!(shared, expected);
            }
        }

        /// Each part is read once under a permutation.
        #[test]
        fn a_permutation_reads_each_part_once(tasks in 1_u32..40, seed in any::<u32>()) {
            let pattern = pattern(tasks, 10, 10, 1, false);
            let mut parts: Vec<u32> =
                (0..tasks).map(|rank| pattern.read_rank(rank, Reorder::Permute { seed })).collect();
            parts.sort_unstable();
            prop_assert_eq!(parts, (0..tasks).collect::<Vec<_>>());
        }
    }
}
