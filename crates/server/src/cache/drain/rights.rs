//! Calls on the PFS that a drain makes with the rights of who wrote.
//!
//! Invariant: the writer is tried first: where the PFS refuses root (root_squash) nobody else may. Called
//! by `publish`.

use super::super::CacheFs;
use super::super::act::Who;
use super::super::file::CacheFile;
use super::super::pfs::errno;
use super::{Failed, failed};
use forebay_proto::Errno;
use rustix::fs as rfs;
use std::fs::File;

fn told(what: &'static str) -> impl Fn(Errno) -> Failed {
    move |errno| failed(errno, what)
}

impl CacheFs {
    /// Runs something as the writer; as the server where the writer may not (a file that was made
    /// without the right to write, and written by who made it).
    pub(super) fn as_writer<T>(
        &self,
        file: &CacheFile,
        call: impl Fn() -> forebay_proto::Result<T>,
    ) -> forebay_proto::Result<T> {
        let writer = file.state.lock().record.writer.clone();
        let tried = writer.act().and_then(|_act| call());
        match tried {
            Err(Errno::EACCES | Errno::EPERM) => {
                let _act = Who::server().act()?;
                call()
            }
            other => other,
        }
    }

    /// Sets the size of what is drained to.
    pub(super) fn resize_target(
        &self,
        file: &CacheFile,
        target: &File,
        size: u64,
    ) -> Result<(), Failed> {
        let resize = || rfs::ftruncate(target, size).map_err(errno);
        self.as_writer(file, resize).map_err(told("set the size of the PFS file"))
    }

    /// Waits until the PFS has it.
    pub(super) fn sync_target(&self, target: &File) -> Result<(), Failed> {
        let synced = self.pfs.weather().and_then(|()| rfs::fsync(target).map_err(errno));
        synced.map_err(told("fsync the PFS file"))
    }
}
