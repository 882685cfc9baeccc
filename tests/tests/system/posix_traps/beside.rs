//! The traps once more in a process with `libforebay_preload.so`, on a scratch buffer of one machine, whose files the library opens
//! as they lie on flash. The programs of trap 20 run with it too.
//!
//! Left out is what docs/PRELOAD.md has under "What differs": of `t06_fcntl_ranges`, that a lock goes with any close. And the mount
//! options of trap 16, where each test has a mount of its own.

use crate::preload::{inside, is_object, preloaded_with};
use forebay_tests::buffer::{Buffer, Kind, Options, is_raw};
use forebay_tests::procs::AS_PROCESS;
use std::fs::File;
use std::path::Path;

macro_rules! hold_beside_the_mount {
    ($($name:ident),+ $(,)?) => {
        $(
            #[test]
            fn $name() {
                hold(stringify!($name), super::$name);
            }
        )+
    };
}

hold_beside_the_mount!(
    t01_who_creates,
    t01_umask_and_default_acl,
    t01_acl_decides,
    t02_suid_is_cleared,
    t03_append,
    t04_renamed_over_while_open,
    t05_unlinked_but_open,
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

/// Runs a trap in a process with the library, which must have files of its own before and after it.
fn hold(name: &str, trap: fn(&Buffer)) {
    let options = Options { kind: Kind::Tmpfs, capacity: 1 << 30, extra: Vec::new() };
    if is_raw() {
        return;
    }
    let Some(root) = inside() else {
        let buffer = Buffer::mount_with(options);
        preloaded_with("posix_traps::beside", name, &buffer.root(), &[(AS_PROCESS, "1")]);
        return;
    };
    is_asked(&root);
    trap(&Buffer::of_another(&root, options));
    is_asked(&root);
}

/// The library opens files by itself, and has not ended its questions.
fn is_asked(root: &Path) {
    let path = root.join("a file of the library");
    let file = File::create_new(&path).unwrap();
    assert!(is_object(&file), "the library left a new file to the kernel");
    drop(file);
    std::fs::remove_file(path).unwrap();
}
