//! The simulator from outside, as one program: physics, calibration, decisions, pages.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod bounds;
mod calibration;
mod common;
mod decisions;
mod pages;
mod physics;
mod sizes;
