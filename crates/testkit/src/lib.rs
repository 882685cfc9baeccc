//! Support of the whole-system tests of Forebay on real mounts, and of its benchmark: the fixture that mounts a buffer, children and
//! other users to act as, system calls with their errno, and a reference model of a POSIX file
//! system with a generator of random operations.
//!
//! The tests themselves are in `tests/tests/system/`. They need root, `/dev/fuse` and loop devices, and
//! fail where these are missing: a skipped test proves nothing. Environment:
//! * `FOREBAY_BIN`: the executable under test; without it `forebay` beside the tests' own.
//! * `FOREBAY_BIN_OF_TESTS`: the one that was built with the tests, where the runner has built it.
//! * `FOREBAY_TEST_RAW=1`: a fresh tmpfs instead of a buffer, to check the tests themselves.
//! * `FOREBAY_LONG=1`: longer random runs. `FOREBAY_SEED`, `FOREBAY_STEPS`: replay one.
//! * `FOREBAY_TEST_KINDS=tmpfs,xfs,served`: only these kinds of store.

// A test helper that cannot go on fails the test: there is nobody to hand an error to.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc, clippy::missing_errors_doc)]

pub mod buffer;
pub mod cached;
pub mod gluster;
pub mod machines;
pub mod model;
pub mod pfs;
pub mod pfs_answers;
pub mod procs;
pub mod programs;
pub mod proxy;
pub mod recorder;
pub mod served;
pub mod site;
pub mod slow_disk;
pub mod sys;
pub mod traps;
pub mod worker;

/// True if the long variants were asked for.
pub fn long() -> bool {
    std::env::var_os("FOREBAY_LONG").is_some()
}

/// True if every point at which somebody can be killed is wanted (`make test-full`), not a sample of them.
pub fn every_point() -> bool {
    std::env::var_os("FOREBAY_TEST_EVERY_POINT").is_some()
}

/// How many of so many random steps a test makes: `make test-full` all, `make test` half of them.
pub fn random_steps(all: u64) -> u64 {
    if every_point() { all } else { all.div_ceil(2) }
}

/// A number from the environment, or `default`.
pub fn env_u64(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text:?} is not a number")),
        Err(_) => default,
    }
}

/// The seed of a random test: `FOREBAY_SEED`, or a new one. It is printed, and shown by the test
/// runner when the test fails.
pub fn seed(test: &str) -> u64 {
    let fresh: u64 = rand::random::<u32>().into();
    let seed = env_u64("FOREBAY_SEED", fresh);
    eprintln!("{test}: replay with FOREBAY_SEED={seed}");
    seed
}

/// How often [`until`] looks.
const LOOK: std::time::Duration = std::time::Duration::from_millis(5);

/// Waits until something holds of which no event tells.
#[track_caller]
pub fn until(what: &str, limit: std::time::Duration, mut holds: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(LOOK);
    }
}

/// Makes one test per kind of store out of `fn name(&Kind)`: `name::tmpfs`, `name::xfs`,
/// `name::served`.
#[macro_export]
macro_rules! on_every_kind {
    ($($name:ident),+ $(,)?) => {
        $(
            mod $name {
                #[test]
                fn tmpfs() {
                    $crate::buffer::run($crate::buffer::Kind::Tmpfs, super::$name);
                }
                #[test]
                fn xfs() {
                    $crate::buffer::run($crate::buffer::Kind::Xfs, super::$name);
                }
                #[test]
                fn served() {
                    $crate::buffer::run($crate::buffer::Kind::Served, super::$name);
                }
            }
        )+
    };
}
