//! The pseudo-random generators that IOR takes from the C library, reproduced so that our random
//! patterns are IOR's, transfer by transfer.
//!
//! Source: the algorithms of glibc's `random` (an additive feedback generator of degree 31) and
//! `rand_r` (three steps of a linear congruential generator), as its manual and many descriptions
//! give them. The tests compare both with the C library of the machine.
//! Callers: `ior`, `content`.

/// glibc's `srandom`/`random` with its default state, which `srand`/`rand` share.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u32; DEGREE],
    next: usize,
}

const DEGREE: usize = 31;
const SEPARATION: usize = 3;
/// Outputs that glibc discards after seeding.
const DISCARDED: usize = 10 * DEGREE;

impl Random {
    /// As `srandom(seed)`.
    pub fn new(seed: u32) -> Random {
        let mut state = [0_u32; DEGREE];
        let mut word = if seed == 0 { 1 } else { seed as i32 };
        for slot in &mut state {
            *slot = word as u32;
            // 16807 * word mod 2^31-1 without overflow (Schrage's method), as glibc seeds.
            word = 16807 * (word % 127_773) - 2836 * (word / 127_773);
            if word < 0 {
                word += i32::MAX;
            }
        }
        let mut random = Random { state, next: SEPARATION };
        for _ in 0..DISCARDED {
            random.next_u31();
        }
        random
    }

    /// As `random()`: 0 to 2^31-1.
    pub fn next_u31(&mut self) -> u32 {
        // `state[next]` holds the output of 31 steps ago; the one of 3 steps ago is added to it.
        let back = (self.next + DEGREE - SEPARATION) % DEGREE;
        self.state[self.next] = self.state[self.next].wrapping_add(self.state[back]);
        let value = self.state[self.next] >> 1;
        self.next = (self.next + 1) % DEGREE;
        value
    }

    /// As `random() % n`, for `n` of at least 1.
    pub fn below(&mut self, n: u64) -> u64 {
        u64::from(self.next_u31()) % n
    }
}

/// glibc's `rand_r`: advances `seed`, and gives 0 to 2^31-1.
pub fn rand_r(seed: &mut u32) -> u32 {
    let mut step = || {
        *seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        *seed / 65_536
    };
    let high = step() % 2048;
    let middle = step() % 1024;
    let low = step() % 1024;
    (high << 20) ^ (middle << 10) ^ low
}

/// A 64-bit mixing function (SplitMix64's finalizer): each bit of the input changes about half of
/// the output's.
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Where `index` goes in a permutation of `count` places that `seed` names, in constant memory: a Feistel network of four
/// rounds over the next power of four, walked until the value is below `count`. 0 if `count` is 0.
pub fn permuted(seed: u64, count: u64, index: u64) -> u64 {
    if count < 2 {
        return 0;
    }
    let bits = 64 - (count - 1).leading_zeros();
    let half = bits.div_ceil(2);
    let mask = (1_u64 << half) - 1;
    let mut value = index % count;
    loop {
        let (mut left, mut right) = (value >> half, value & mask);
        for round in 0..4_u64 {
            let turned = mix(seed ^ round.rotate_left(60) ^ right) & mask;
            (left, right) = (right, left ^ turned);
        }
        value = (left << half) | right;
        if value < count {
            return value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_hits_each_place_once() {
        for count in [1, 2, 3, 4, 5, 64, 1000] {
            for seed in [0, 1, 77] {
                let mut places: Vec<u64> = (0..count).map(|at| permuted(seed, count, at)).collect();
                if count == 1000 {
                    let kept = places.iter().zip(0..).filter(|(place, at)| **place == *at).count();
                    assert!(kept < 20, "{kept} of 1000 stayed");
                }
                places.sort_unstable();
                assert_eq!(places, (0..count).collect::<Vec<_>>());
            }
        }
        assert!(permuted(3, u64::MAX, 12) < u64::MAX);
    }

    unsafe extern "C" {
        fn rand_r(seed: *mut libc::c_uint) -> libc::c_int;
    }

    #[test]
    fn random_is_the_c_librarys() {
        for seed in [0, 1, 2, 42, 4711, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
            // SAFETY: no other test of this crate uses the C library's generator.
            unsafe { libc::srand(seed) };
            let mut ours = Random::new(seed);
            for step in 0..1000 {
                // SAFETY: as above.
                let theirs = unsafe { libc::rand() } as u32;
                assert_eq!(ours.next_u31(), theirs, "seed {seed}, step {step}");
            }
        }
    }

    #[test]
    fn rand_r_is_the_c_librarys() {
        for start in [0, 1, 77, u32::MAX] {
            let (mut ours, mut theirs) = (start, start);
            for _ in 0..100 {
                // SAFETY: the pointer is valid for the call.
                let expected = unsafe { rand_r(&mut theirs) } as u32;
                assert_eq!(super::rand_r(&mut ours), expected);
                assert_eq!(ours, theirs);
            }
        }
    }
}
