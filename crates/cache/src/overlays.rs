//! Overlays with their upper and work directories in a cache.
//!
//! What a user makes over a whiteout an overlay makes in its work directory, and moves it to its place: as the user, and with its
//! mounter's right to use any directory, of which no request tells. The directory is root's and has mode 0, so the PFS refuses
//! it to the user. The overlay holds its upper directory, too, so what is above that need not let the user through (Podman's
//! storage does not): the PFS, which is asked by path, refuses what is made there.
//!
//! Invariants: a call is made with these rights only if the PFS has refused it to the user, a kernel has judged it by modes and
//! ACLs (not a program that asks the server itself), and the directory is, on the PFS at that moment, an overlay's work directory
//! or below one that has such a directory beside it: of mode 0, and not the user's. What is made is the user's. Called by
//! `filesystem`.

use super::CacheFs;
use super::paths::{joined, split};
use forebay_credentials::acting::{Judged, is_kernels};
use forebay_proto::attr::FileKind;
use forebay_proto::{Caller, Errno, Ino, Result};

/// An overlay's own directory in the one that is given to it as `workdir`, which mostly is called so, too.
const WORK: &[u8] = b"work";
/// Most directories above one that are looked at.
const LEVELS_MAX: usize = 128;
/// Attributes that the kernel lets nobody but the superuser see and set.
const TRUSTED: &[u8] = b"trusted.";

impl CacheFs {
    /// A call on names in these directories.
    pub(super) fn as_judged<T>(
        &self,
        caller: &Caller,
        dirs: &[Ino],
        call: impl Fn() -> Result<T>,
    ) -> Result<T> {
        match call() {
            Err(Errno::EACCES | Errno::EPERM) if self.is_of_an_overlay(caller, dirs) => {
                let _judged = Judged::may_use_directories(false);
                call()
            }
            done => done,
        }
    }

    /// A call on what has a name in such a directory.
    pub(super) fn as_judged_below<T>(
        &self,
        caller: &Caller,
        ino: Ino,
        xattr: &[u8],
        call: impl Fn() -> Result<T>,
    ) -> Result<T> {
        match call() {
            Err(refused @ (Errno::EACCES | Errno::EPERM)) => {
                let names = self.nodes.names(ino);
                let dirs: Vec<Ino> = names.into_iter().map(|(dir, _)| dir).collect();
                if !self.is_of_an_overlay(caller, &dirs) {
                    return Err(refused);
                }
                let _judged = Judged::may_use_directories(xattr.starts_with(TRUSTED));
                call()
            }
            done => done,
        }
    }

    fn is_of_an_overlay(&self, caller: &Caller, dirs: &[Ino]) -> bool {
        // A cache that is not served has the mount of its own process.
        let is_judged = self.options.served.is_none() || is_kernels();
        let is_in_one = |dir: &Ino| {
            let path = self.nodes.path(*dir);
            path.is_ok_and(|path| self.is_in_overlay(caller, &path))
        };
        caller.uid != 0 && is_judged && dirs.iter().any(is_in_one)
    }

    /// Whether a directory is an overlay's work directory, or in an upper one that lies beside it.
    fn is_in_overlay(&self, caller: &Caller, path: &[u8]) -> bool {
        let mut at = path;
        for _ in 0..LEVELS_MAX {
            if at.is_empty() {
                return false;
            }
            let (above, name) = split(at);
            let is_it = name == WORK && self.is_work_dir(caller, at);
            if is_it || self.is_work_dir(caller, &joined(&joined(above, WORK), WORK)) {
                return true;
            }
            at = above;
        }
        false
    }

    fn is_work_dir(&self, caller: &Caller, path: &[u8]) -> bool {
        self.pfs.stat(path).is_ok_and(|stat| {
            stat.kind() == FileKind::Dir && stat.mode & 0o7777 == 0 && stat.uid != caller.uid
        })
    }
}
