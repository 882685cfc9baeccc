//! What people ask of a cache by path: state, drains, and what is kept.
//!
//! Each command names a path and a requester; what the PFS refuses to the requester is refused. Called for the control socket, and by the
//! ledger.

use super::CacheFs;
use super::file::CacheFile;
use super::names::DRAIN_PREFIX;
use super::pfs::errno;
use super::record::SyncState;
use super::status::{below, not_cached};
use forebay_credentials::acting::Who;
use forebay_proto::attr::FileKind;
use forebay_proto::cache::{CacheList, CacheStatus, CachedFile, Keep, MAX_LISTED, TreeState};
use forebay_proto::control::PathBytes;
use forebay_proto::metrics::CacheMetrics;
use forebay_proto::{Caller, Errno, Result};
use rustix::fs::OFlags;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

impl CacheFs {
    /// What is counted.
    pub fn metrics(&self) -> CacheMetrics {
        let [hit_bytes, filled_bytes, _, evicted_bytes, drained_bytes] =
            self.parts.counters.bytes();
        let [miss_bytes, hits, misses] = self.parts.counters.reads();
        let tree = self.status.whole_tree();
        CacheMetrics {
            dirty_bytes: tree.dirty_bytes,
            hit_bytes,
            miss_bytes,
            hits,
            misses,
            filled_bytes,
            drained_bytes,
            evicted_bytes,
            failed_files: tree.failed,
            conflicts: tree.conflicts,
            drain_bytes_per_s: tree.rate_bytes_per_s,
            drain_eta_s: tree.eta_s,
        }
    }

    /// The buffer has so much room from now on.
    pub fn set_capacity(&self, bytes: u64) {
        self.stack.space.set_capacity(bytes);
    }

    /// How long what the PFS says may be believed, in milliseconds.
    pub fn ttl_ms(&self) -> u64 {
        self.parts.options.ttl.as_millis() as u64
    }

    /// What is not on the PFS of a file or tree. A path that is not on the PFS is told of too, if
    /// there is something for it here.
    ///
    /// Where nothing is left mounts have heard of it, unless one does not hear for two seconds: who is told so and looks sees the
    /// times that the drain gave.
    pub fn tree_state(&self, caller: &Caller, path: &[u8]) -> Result<TreeState> {
        let below = below(path)?;
        let files = self.status.listed_below(&below)?;
        let tree = self.status.tree_of(caller, path, &below, &files)?;
        if tree.is_durable() {
            self.status.wait_until_shown(&files);
        }
        Ok(tree)
    }

    /// State of the cache as a whole.
    pub fn cache_status(&self) -> CacheStatus {
        let [hit_bytes, filled_bytes, written_bytes, evicted_bytes, _] =
            self.parts.counters.bytes();
        let [miss_bytes, ..] = self.parts.counters.reads();
        CacheStatus {
            pfs: PathBytes::new(self.parts.pfs.path().as_os_str().as_bytes()),
            pfs_error: self.status.pfs_error(),
            flash_error: self.status.flash_error(),
            tree: self.status.whole_tree(),
            hit_bytes,
            miss_bytes,
            filled_bytes,
            written_bytes,
            evicted_bytes,
            rate_limit_bytes_per_s: self.parts.drain_list.rate(),
        }
    }

    /// Names in a directory, for who may list it.
    pub fn list_of(&self, caller: &Caller, path: &[u8], after: &[u8]) -> Result<CacheList> {
        let (path, stat) = self.status.named(caller, path)?;
        if stat.kind() != FileKind::Dir {
            return Ok(CacheList {
                is_file: stat.kind() == FileKind::File,
                ..CacheList::default()
            });
        }
        let who = Who::of(caller);
        let _act = who.act()?;
        let dir = self.parts.pfs.open_at(&path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&dir).map_err(errno)? {
            let entry = entry.map_err(errno)?;
            let name = entry.file_name().to_bytes();
            let hidden = name == b"." || name == b".." || name.starts_with(DRAIN_PREFIX);
            if hidden || name <= after {
                continue;
            }
            match self.parts.pfs.stat_at(dir.as_fd(), name).map(|stat| stat.kind()) {
                Ok(FileKind::Dir) => names.push((PathBytes::new(name), true)),
                Ok(FileKind::File) => names.push((PathBytes::new(name), false)),
                _ => {}
            }
        }
        names.sort_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
        let is_all = names.len() <= MAX_LISTED;
        names.truncate(MAX_LISTED);
        Ok(CacheList { is_file: false, names, is_all })
    }

    /// Drains a file or tree now.
    pub fn flush(&self, caller: &Caller, path: &[u8]) -> Result<TreeState> {
        let files = self.status.listed_below(&below(path)?)?;
        // What was mapped may be so no more: who asks waits for what is open.
        self.opens.mapped().look(&files);
        self.parts.drain_list.ask(&files);
        self.tree_state(caller, path)
    }

    /// The cached file that a requester's path leads to, and the right to have it changed. Where another
    /// server is its data server: what this one has of it, nothing.
    pub(crate) fn cached(
        &self,
        caller: &Caller,
        path: &[u8],
        owner_only: bool,
    ) -> Result<std::result::Result<Arc<CacheFile>, CachedFile>> {
        let (path, stat) = self.status.named(caller, path)?;
        if stat.kind() != FileKind::File {
            return Err(Errno::EISDIR);
        }
        let who = Who::of(caller);
        if owner_only && who.uid != 0 && who.uid != stat.uid {
            return Err(Errno::EPERM);
        }
        let Some(ino) = self.peers.walk_to_file(&path, &who)? else {
            return Ok(Err(not_cached(&path, stat.size)));
        };
        let file = self.stack.cached_files.attach(ino, &stat, &who);
        // Only while somebody else needs the node.
        drop(self.parts.nodes.forget(ino, 1));
        file.map(Ok)
    }

    /// Fetches a file whole.
    pub fn warm(&self, caller: &Caller, path: &[u8]) -> Result<CachedFile> {
        let file = match self.cached(caller, path, false)? {
            Ok(file) => file,
            Err(elsewhere) => return Ok(elsewhere),
        };
        {
            let _meta = file.meta.lock();
            let (path, stat) = self.status.named(caller, path)?;
            let who = Who::of(caller);
            let source = {
                let _act = who.act()?;
                let key = file.state.lock().record.key;
                self.parts.pfs.open_file(&path, key, OFlags::RDONLY)?.0
            };
            self.stack.cached_files.revalidate(&file, &stat)?;
            if file.state.lock().is_lost() {
                return Err(Errno::EIO);
            }
            file.set_source(Some(Arc::new(source)));
        }
        let fetched = self.stack.fills.fetch_all(&file);
        if file.state.lock().opens.all() == 0 {
            file.set_source(None);
        }
        fetched?;
        self.status.describe(&file)
    }

    /// Keeps a file from being evicted, or not any more.
    pub fn pin(&self, caller: &Caller, path: &[u8], on: bool) -> Result<CachedFile> {
        let file = match self.cached(caller, path, true)? {
            Ok(file) => file,
            Err(elsewhere) => return Ok(elsewhere),
        };
        file.state.lock().save(&self.parts.flash, &file, |record| record.pinned = on)?;
        self.status.describe(&file)
    }

    /// Forgets what is clean of a file. EBUSY while a kernel has it open itself or it is dirty.
    pub fn invalidate(&self, caller: &Caller, path: &[u8]) -> Result<CachedFile> {
        let file = match self.cached(caller, path, true)? {
            Ok(file) => file,
            Err(elsewhere) => return Ok(elsewhere),
        };
        file.wait_closed(true)?;
        let _meta = file.meta.lock();
        let (_, stat) = self.status.named(caller, path)?;
        {
            let state = file.state.lock();
            if state.record.is_dirty() || state.opens.by_kernel() > 0 {
                return Err(Errno::EBUSY);
            }
        }
        self.stack.cached_files.take_base(&file, &stat)?;
        self.status.describe(&file)
    }

    /// Ends a conflict, or the wait for what was lost: with a server, or on flash.
    pub fn resolve(&self, caller: &Caller, path: &[u8], keep: Keep) -> Result<TreeState> {
        let below = below(path)?;
        if keep == Keep::Theirs && self.stack.ownership.give_up_lost(caller, &below)? {
            return self.tree_state(caller, path);
        }
        let file = match self.in_conflict(&below) {
            Err(Errno::ENOENT) => {
                return Err(self.status.named(caller, path).err().unwrap_or(Errno::EINVAL));
            }
            found => found?,
        };
        let uid = file.state.lock().record.writer.uid;
        if caller.uid != 0 && caller.uid != uid {
            return Err(Errno::EPERM);
        }
        self.drains.conflicts.end_conflict(&file, keep, &below)?;
        match self.tree_state(caller, path) {
            Err(Errno::ENOENT) => Ok(TreeState::default()),
            other => other,
        }
    }

    /// The file in conflict or lost at a path, or the only one below it. ENOENT: nothing there is dirty; EINVAL: nothing is
    /// in conflict or lost; ENOTEMPTY: several files are.
    fn in_conflict(&self, below: &[u8]) -> Result<Arc<CacheFile>> {
        let mut files = self.status.listed_below(below)?;
        if files.is_empty() {
            return Err(Errno::ENOENT);
        }
        files.retain(|file| {
            let is_lost = self.stack.losses.data_is_lost(file).unwrap_or(false);
            is_lost || file.state.lock().record.state == SyncState::Conflict
        });
        // A directory may have the name that the file had; and several files may have had it: one after the other.
        let is_it = |file: &&Arc<CacheFile>| {
            let recorded = file.state.lock().record.path.as_bytes() == below;
            recorded || self.parts.nodes.paths(file.number()).iter().any(|path| path == below)
        };
        match &files[..] {
            [] => Err(Errno::EINVAL),
            [file] => Ok(file.clone()),
            several => several.iter().find(is_it).cloned().ok_or(Errno::ENOTEMPTY),
        }
    }

    /// Limits the drain; 0 = not. At a server it stays so after a restart. For who may end the mount.
    pub fn set_rate(&self, bytes_per_s: u64) -> Result<()> {
        if self.parts.options.served.is_some() {
            self.parts.flash.save_drain_rate(bytes_per_s)?;
        }
        self.parts.drain_list.set_rate(bytes_per_s);
        Ok(())
    }
}
