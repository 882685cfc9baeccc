//! The traps in which FUSE file systems are known to fall, over two mounts of one buffer: one mount
//! acts and the other looks, or both act; on one server and on two, by Unix socket (with
//! passthrough) and TCP (served). Directories, files and links lie on each combination of servers,
//! and files that are striped over both are among them.
//!
//! The number in a test's name is the trap's, as in `posix_traps`, where the same is done on one
//! machine; docs/TRAPS.md maps traps to tests. `pair` in a name: over a pair of mounts.
#![allow(clippy::unwrap_used)]

mod attrs;
mod data;
mod ends;
mod locks;
mod mapped;
mod mounting;
mod names;
mod place;
mod programs;

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
use programs::{
    pair20_archives, pair20_builds, pair20_databases, pair20_dbench, pair20_git, pair20_hdf5,
    pair20_netcdf, pair20_sqlite,
};

/// Makes of each `fn name(&Two)` a test on one server and one on two.
macro_rules! over_servers {
    ($($name:ident),+ $(,)?) => {
        $(
            mod $name {
                #[test]
                fn one_server() {
                    super::place::run(1, super::$name);
                }
                #[test]
                fn two_servers() {
                    super::place::run(2, super::$name);
                }
            }
        )+
    };
}

over_servers!(
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
    pair20_archives,
    pair20_builds,
    pair20_databases,
    pair20_dbench,
    pair20_git,
    pair20_hdf5,
    pair20_netcdf,
    pair20_sqlite,
);
