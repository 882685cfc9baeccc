//! The traps of `shared_traps` once more, over two mounts of a cache that one server serves: names, attributes,
//! locks, data and mappings have to be as on any file system. `Options::new` makes caches in this module.
//!
//! What a cache over a PFS cannot hold stands in the tests themselves, beside `is_cache`, and in docs/SEMANTICS.md.
//! Programs (trap 20) run over caches in `cache_programs`, and are not run again.
#![allow(clippy::unwrap_used)]

#[path = "../shared_traps/attrs.rs"]
mod attrs;
#[path = "../shared_traps/data.rs"]
mod data;
#[path = "../shared_traps/ends.rs"]
mod ends;
#[path = "../shared_traps/locks.rs"]
mod locks;
#[path = "../shared_traps/mapped.rs"]
mod mapped;
#[path = "../shared_traps/mounting.rs"]
mod mounting;
#[path = "../shared_traps/names.rs"]
mod names;
// Places over two servers are of `shared_traps` alone.
#[allow(dead_code)]
#[path = "../shared_traps/place.rs"]
mod place;

use attrs::{
    pair01_acl_decides, pair01_umask_and_default_acl, pair01_who_creates, pair02_suid_is_cleared,
    pair10_times, pair12_xattrs,
};
use data::{
    pair03_append, pair07_own_write_on_a_shared_page, pair08_never_stale, pair09_sparse_files,
    pair15_direct_beside_cached,
};
use ends::{pair18_full, pair19_killed_under_writes};
use locks::{pair06_deadlock, pair06_fcntl_ranges, pair06_flock_and_ofd};
use mapped::{pair14_mapped_and_written, pair14_programs_run, pair14_truncated_under_a_map};
use mounting::{pair16_options, pair17_no_fd_per_inode};
use names::{
    pair04_renamed_over_while_open, pair04_replaced_name_never_vanishes, pair05_unlinked_but_open,
    pair11_listing_under_change, pair11_positions, pair11_removed_working_directory,
    pair12_long_names, pair13_exchange_and_tmpfile,
};

/// Makes of each `fn name(&Two)` a test over a cache.
macro_rules! over_a_cache {
    ($($name:ident),+ $(,)?) => {
        $(
            mod $name {
                #[test]
                fn over_a_cache() {
                    super::place::run(1, super::$name);
                }
            }
        )+
    };
}

over_a_cache!(
    pair01_who_creates,
    pair01_umask_and_default_acl,
    pair01_acl_decides,
    pair02_suid_is_cleared,
    pair03_append,
    pair04_renamed_over_while_open,
    pair04_replaced_name_never_vanishes,
    pair05_unlinked_but_open,
    pair06_fcntl_ranges,
    pair06_deadlock,
    pair06_flock_and_ofd,
    pair07_own_write_on_a_shared_page,
    pair08_never_stale,
    pair09_sparse_files,
    pair10_times,
    pair11_listing_under_change,
    pair11_positions,
    pair11_removed_working_directory,
    pair12_long_names,
    pair12_xattrs,
    pair13_exchange_and_tmpfile,
    pair14_mapped_and_written,
    pair14_truncated_under_a_map,
    pair14_programs_run,
    pair15_direct_beside_cached,
    pair16_options,
    pair17_no_fd_per_inode,
    pair18_full,
    pair19_killed_under_writes,
);
