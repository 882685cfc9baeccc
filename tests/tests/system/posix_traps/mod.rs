//! One test per trap in which FUSE file systems are known to fall, on every kind of store. The
//! number in a test's name is the trap's; two mounts (8) need several servers, a full store (18)
//! is in `capacity`, a killed daemon (19) in `crash`, atomic renames and appends under load
//! (3, 4) also in `concurrent`.
#![allow(clippy::unwrap_used)]

mod attrs;
mod beside;
mod data;
mod locks;
mod mapped;
mod mounting;
mod names;
mod programs;

use forebay_tests::on_every_kind;

use attrs::{
    t01_acl_decides, t01_umask_and_default_acl, t01_who_creates, t02_suid_is_cleared,
    t10_one_order_of_times, t10_times, t12_xattrs,
};
use data::{
    t03_append, t07_own_write_on_a_shared_page, t09_beyond_4_gib, t09_sparse_files,
    t15_direct_beside_cached,
};
use locks::{t06_deadlock, t06_fcntl_ranges, t06_flock_and_ofd};
use mapped::{t14_mapped_and_written, t14_programs_run, t14_truncated_under_a_map};
use mounting::t17_no_fd_per_inode;
use names::{
    t04_renamed_over_while_open, t05_unlinked_but_open, t11_large_directory,
    t11_listing_under_change, t11_positions, t11_removed_working_directory, t12_long_names,
    t13_exchange_and_tmpfile,
};
use programs::{
    t20_archives, t20_builds, t20_databases, t20_dbench, t20_git, t20_hdf5, t20_netcdf,
    t20_sqlite_torture,
};

on_every_kind!(
    t01_who_creates,
    t01_umask_and_default_acl,
    t01_acl_decides,
    t02_suid_is_cleared,
    t03_append,
    t04_renamed_over_while_open,
    t05_unlinked_but_open,
    t06_fcntl_ranges,
    t06_deadlock,
    t06_flock_and_ofd,
    t07_own_write_on_a_shared_page,
    t09_sparse_files,
    t09_beyond_4_gib,
    t10_times,
    t10_one_order_of_times,
    t11_listing_under_change,
    t11_large_directory,
    t11_positions,
    t11_removed_working_directory,
    t12_long_names,
    t12_xattrs,
    t13_exchange_and_tmpfile,
    t14_mapped_and_written,
    t14_truncated_under_a_map,
    t14_programs_run,
    t15_direct_beside_cached,
    t17_no_fd_per_inode,
    t20_archives,
    t20_builds,
    t20_databases,
    t20_git,
    t20_hdf5,
    t20_netcdf,
    t20_dbench,
    t20_sqlite_torture,
);

/// Makes a file with this content.
fn put(buffer: &forebay_tests::buffer::Buffer, name: &str, content: &[u8]) {
    std::fs::write(buffer.root().join(name), content).unwrap();
}
