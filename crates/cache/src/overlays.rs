//! Overlays with their upper and work directories in a cache.
//!
//! What a user makes over a whiteout an overlay makes in its work directory, and moves it to its place: as the user, and with its
//! mounter's right to use any directory, of which no request tells. The directory is root's and has mode 0, so the PFS refuses
//! it to the user. The overlay holds its upper directory, too, so what is above that need not let the user through (Podman's
//! storage does not): the PFS, which is asked by path, refuses what is made there.
//!
//! A user who mounts an overlay (in a user namespace, as rootless Podman does) owns its work directory, which has mode 0 as well.
//!
//! Invariants: a call is made with these rights only if the PFS has refused it to the user, a kernel has judged it by modes and
//! ACLs (not a program that asks the server itself), and the directory is, on the PFS at that moment,
//! * an overlay's work directory, or below one that has such a directory beside it: of mode 0, and not the user's; or
//! * the user's own work directory of mode 0, or below it, and all directories of the call are the user's, who could open them
//!   to themselves.
//!
//! What is made is the user's. Each look that a server takes at a name before it changes it goes the same way: else the change
//! would be refused before it is asked for. Called by `filesystem` and `served`.

use super::CacheOptions;
use super::nodes::Nodes;
use super::parts::Parts;
use super::paths::{joined, split};
use super::pfs::PfsDir;
use forebay_credentials::acting::{Judged, is_kernels};
use forebay_proto::attr::FileKind;
use forebay_proto::{Caller, Errno, Ino, Result};
use std::sync::Arc;

/// An overlay's own directory in the one that is given to it as `workdir`, which mostly is called so, too.
const WORK: &[u8] = b"work";
/// Most directories above one that are looked at.
const LEVELS_MAX: usize = 128;
/// Attributes that the kernel lets nobody but the superuser see and set.
const TRUSTED: &[u8] = b"trusted.";

/// Makes calls with the rights that an overlay gives.
pub(crate) struct Overlays {
    pfs: Arc<PfsDir>,
    nodes: Arc<Nodes>,
    options: Arc<CacheOptions>,
}

impl Overlays {
    pub fn new(parts: &Parts) -> Overlays {
        Overlays {
            pfs: parts.pfs.clone(),
            nodes: parts.nodes.clone(),
            options: parts.options.clone(),
        }
    }
}

impl Overlays {
    /// A call on names in these directories.
    pub(crate) fn as_judged<T>(
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

    /// A call on what has a name in such a directory, or on a work directory itself.
    pub(crate) fn as_judged_below<T>(
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
                if !self.is_of_an_overlay(caller, &dirs) && !self.is_their_work_dir(caller, ino) {
                    return Err(refused);
                }
                let _judged = Judged::may_use_directories(xattr.starts_with(TRUSTED));
                call()
            }
            done => done,
        }
    }

    /// Whether a kernel has judged a call that the PFS may refuse.
    fn is_judged(&self, caller: &Caller) -> bool {
        // A cache that is not served has the mount of its own process.
        caller.uid != 0 && (self.options.served.is_none() || is_kernels())
    }

    fn is_of_an_overlay(&self, caller: &Caller, dirs: &[Ino]) -> bool {
        if !self.is_judged(caller) {
            return false;
        }
        let paths: Vec<Vec<u8>> =
            dirs.iter().filter_map(|dir| self.nodes.path(*dir).ok()).collect();
        let are_all = paths.len() == dirs.len();
        paths.iter().any(|path| self.is_in_overlay(caller, path))
            || are_all && self.is_in_their_overlay(caller, &paths)
    }

    /// Whether a directory is an overlay's work directory, or in an upper one that lies beside it.
    fn is_in_overlay(&self, caller: &Caller, path: &[u8]) -> bool {
        let is_work_dir = |path: &[u8]| self.is_work_dir(path, |uid| uid != caller.uid);
        let mut at = path;
        for _ in 0..LEVELS_MAX {
            if at.is_empty() {
                return false;
            }
            let (above, name) = split(at);
            let is_it = name == WORK && is_work_dir(at);
            if is_it || is_work_dir(&joined(&joined(above, WORK), WORK)) {
                return true;
            }
            at = above;
        }
        false
    }

    /// Whether these directories are all the user's, and one of them is the work directory of an overlay that the user has
    /// mounted, or below it.
    fn is_in_their_overlay(&self, caller: &Caller, paths: &[Vec<u8>]) -> bool {
        let is_theirs = |path: &Vec<u8>| {
            let stat = self.pfs.stat(path);
            stat.is_ok_and(|stat| stat.kind() == FileKind::Dir && stat.uid == caller.uid)
        };
        paths.iter().all(is_theirs) && paths.iter().any(|path| self.is_below_own(caller, path))
    }

    /// The same of the directory that a call is about.
    fn is_their_work_dir(&self, caller: &Caller, ino: Ino) -> bool {
        let path = self.nodes.path(ino);
        self.is_judged(caller) && path.is_ok_and(|path| self.is_in_their_overlay(caller, &[path]))
    }

    /// Whether a directory is a work directory of the user's, or below one.
    fn is_below_own(&self, caller: &Caller, path: &[u8]) -> bool {
        let mut at = path;
        for _ in 0..LEVELS_MAX {
            if at.is_empty() {
                return false;
            }
            let (above, name) = split(at);
            if name == WORK && self.is_work_dir(at, |uid| uid == caller.uid) {
                return true;
            }
            at = above;
        }
        false
    }

    fn is_work_dir(&self, path: &[u8], is_owner: impl Fn(u32) -> bool) -> bool {
        self.pfs.stat(path).is_ok_and(|stat| {
            stat.kind() == FileKind::Dir && stat.mode & 0o7777 == 0 && is_owner(stat.uid)
        })
    }
}
