//! Real mounts of a file system in memory, as one program: what the kernel asks, and what it is answered.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that cannot go on panics")]

mod cache;
mod common;
mod data;
mod fast_path;
mod locks;
mod mount;
mod process;
