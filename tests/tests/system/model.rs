//! Random operations through a mount agree with the reference model after every step, on every
//! kind of store, also when the daemon is killed with -9 in between.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::Buffer;
use forebay_tests::model::{self, Plan};
use forebay_tests::{env_u64, long, on_every_kind, random_steps, seed};

on_every_kind!(random_operations, random_operations_with_kills);

fn steps(short: u64) -> u64 {
    env_u64("FOREBAY_STEPS", if long() { 100 * short } else { random_steps(short) })
}

fn random_operations(buffer: &Buffer) {
    let plan = Plan {
        seed: seed("random_operations"),
        steps: steps(6_000),
        whole_every: 500,
        kill_every: 0,
    };
    model::run(buffer, plan);
}

fn random_operations_with_kills(buffer: &Buffer) {
    let plan = Plan {
        seed: seed("random_operations_with_kills"),
        steps: steps(3_000),
        whole_every: 1_000,
        kill_every: 150,
    };
    model::run(buffer, plan);
}
