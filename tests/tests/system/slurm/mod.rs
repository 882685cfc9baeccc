//! Jobs under an unmodified Slurm, by both of its burst-buffer plugins.
#![allow(clippy::unwrap_used)]

mod bench;
mod cluster;
mod demo;
mod ends;
mod jobs;
mod language;
mod lua;
mod operations;
mod program;
mod restart;
mod swap;
mod trouble;
