//! Three shards in one process, with sessions, under one client that makes each call until it is
//! answered; and servers that are killed at any point of what they do. What is checked after each
//! recovery: every call was done once or not at all and its answer says which, the tree is the
//! model's, link counts and parents are right, nothing is left prepared or leaked. And power cuts
//! ([`power`], of what files hold [`power_data`]): what was made durable is there, what was not is there as a whole or not at all.

mod costs;
mod delayed;
mod kills;
mod lost;
mod power;
mod power_data;
mod power_logs;
mod races;
mod random;
mod references;
mod world;

use forebay_namespace::testing::BY_HAND;

/// A number that somebody set, to go on longer or to replay.
pub(crate) fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs with FOREBAY_TEST_SHARDS_SEED, or with each of so many seeds; with FOREBAY_TEST_SHARDS_SEEDS from that one on. A
/// failure names the seed.
pub(crate) fn over_seeds(usual: u64, mut run: impl FnMut(u64)) {
    let (first, usual) = match variable("FOREBAY_TEST_SHARDS_SEED") {
        Some(seed) => (seed, 1),
        None => (1, usual),
    };
    for seed in (first..).take(variable("FOREBAY_TEST_SHARDS_SEEDS").unwrap_or(usual) as usize) {
        let named = NamesSeed(seed);
        run(seed);
        std::mem::forget(named);
    }
}

/// Says how to replay a run that does not come to its end.
struct NamesSeed(u64);

impl Drop for NamesSeed {
    fn drop(&mut self) {
        eprintln!("failed: FOREBAY_TEST_SHARDS_SEED={} replays it", self.0);
    }
}

/// How often servers are cut in one run.
fn lives() -> u64 {
    variable("FOREBAY_TEST_SHARDS_LIVES").unwrap_or(6)
}
