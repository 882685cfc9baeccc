//! Tests of the crate from outside, as one program.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod damaged;
