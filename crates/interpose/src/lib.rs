//! What the preloaded libraries have in common: the functions behind theirs, and system calls that pass by libc's
//! own names, which the library that calls them may itself define.
//!
//! Invariants: no panic, no allocation, no call of a name of libc that a preloaded library may take the place of.

pub mod real;
pub mod sys;
