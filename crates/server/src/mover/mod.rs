//! Staging: plans, copies, verification.

pub mod tree;
