//! Job scripts as a user hands them in, as one program: what is accepted, what is refused and how.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that cannot go on panics")]

mod accepts;
mod check;
mod errors;
mod scheduler;
