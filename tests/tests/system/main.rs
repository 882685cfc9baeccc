//! The system tests: one executable, because linking some forty of them took longer than many of their
//! tests do. Each file here is a module of it, and a test's full name begins with its file's:
//! `cargo test -p forebay-tests --test system cache::` runs those of cache.rs.
//!
//! The tests mount, fork and change what a process has only once (working directory, umask, signal
//! handlers, open descriptors that a fork copies). They take care of that where they stand
//! ([`forebay_tests::procs`]), and the whole suite runs each in a process of its own.
//!
//! `scripts/check-semantics` fails if a file of this directory is missing in the list below.

// Tests of shared buffers run over caches once more: these modules take them in a second time.
#![allow(clippy::duplicate_mod)]

mod bench_curve;
mod bench_ior;
mod bench_mpi;
mod bench_netcdf;
mod bench_suites;
mod cache;
mod cache_faults;
mod cache_faults_more;
mod cache_lost;
mod cache_programs;
mod cache_room;
mod cache_stat;
mod cache_xattrs;
mod cached_shared;
mod cached_shared_striped;
mod cached_traps;
mod capacity;
mod commands;
mod commit;
mod commit_faults;
mod concurrent;
mod containers;
mod crash;
mod documents;
mod examples;
mod fast_path;
mod install;
mod installed;
mod jobs;
mod log_drain;
mod mapped;
mod model;
mod mpi_matrix;
mod native_files;
mod overlays;
mod planted;
mod posix_traps;
mod powercut;
mod powercut_cache;
mod powercut_commit;
mod powercut_staging;
mod preload;
mod preload_alone;
mod preload_programs;
mod python;
mod readme;
mod served_cache;
mod served_cache_model;
mod served_cache_modes;
mod served_cache_striped;
mod served_cache_striped_faults;
mod shared_coherence;
mod shared_concurrent;
mod shared_copies;
mod shared_faults;
mod shared_hang;
mod shared_interrupt;
mod shared_links;
mod shared_locks;
mod shared_logs;
mod shared_lost;
mod shared_model;
mod shared_mpi;
mod shared_mpi_logs;
mod shared_secret;
mod shared_status;
mod shared_striped;
mod shared_traps;
mod sim;
mod slurm;
mod staging;
mod staging_faults;
mod standstill;
mod stood_on;
mod trace;
mod trace_buffer;
mod trace_export;
mod trace_replay;
mod trace_report;
mod umount_copies;
mod umount_plans;
