//! A target at or below a mount point of /etc/fstab at which nothing is mounted is refused, unless the requester insists
//! (`--parents`): what is copied there would end on the disk below. Called before a plan makes its first directory, and before a
//! commit does.

use super::fault::{Fault, Outcome, Sort, Where};
use super::pfs::RequesterPfs;
use forebay_proto::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

impl RequesterPfs {
    /// Refuses a directory that lies at or below a mount point of the table at which nothing is mounted.
    pub(super) fn must_be_mounted(&self, dir: BorrowedFd<'_>, path: &[u8]) -> Outcome<()> {
        // Where symbolic links lead. Asked with the server's own rights: no requester may look into its descriptors.
        let real = std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd()));
        let real = real.unwrap_or_else(|_| PathBuf::from(OsStr::from_bytes(path)));
        match forebay_fstab::unmounted_above(&self.fstab, &real) {
            None => Ok(()),
            Some(point) => Err(not_mounted(&point, &self.fstab)),
        }
    }
}

/// The refusal of a target at or below a mount point without its file system.
fn not_mounted(point: &Path, table: &Path) -> Fault {
    let why = format!(
        "{} names {} as a mount point, and nothing is mounted there; nothing was made or copied; mount it (`stage out \
         --parents` writes there all the same)",
        table.display(),
        point.display()
    );
    Fault {
        errno: Errno::ENODEV,
        ..Fault::of(Sort::Refused, Where::Target, "open target directory", why)
    }
}
