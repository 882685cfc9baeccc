//! Where files are between flash and PFS, as people and programs are told it.
//!
//! Invariant: a tree is told to be durable only if no file below it is on the list of what has to drain,
//! and a file leaves that list only after its drain is verified and on record.

use super::CacheFs;
use super::file::CacheFile;
use super::map::{BLOCK_BYTES, bits};
use super::names::DRAIN_PREFIX;
use super::paths::rooted;
use super::pfs::{Key, PfsStat, errno};
use super::record::State;
use forebay_credentials::acting::Who;
use forebay_policy::when::Policy;
use forebay_proto::attr::FileKind;
use forebay_proto::cache::{
    CacheError, CacheList, CacheStatus, CachedFile, Keep, MAX_LISTED, MAX_PROBLEMS, TreeState,
};
use forebay_proto::control::{ControlError, PathBytes, Verify};
use forebay_proto::{Caller, Errno, Ino, Result};
use rustix::fs::OFlags;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait of who is told that all is on the PFS for mounts to hear of the drains' ends.
const SHOWN_MAX: Duration = Duration::from_secs(2);

/// A path from the mount's root as one below the PFS directory. EINVAL for one with `..`.
fn below(path: &[u8]) -> Result<Vec<u8>> {
    let parts: Vec<&[u8]> =
        path.split(|b| *b == b'/').filter(|p| !p.is_empty() && *p != b".").collect();
    match parts.contains(&&b".."[..]) {
        true => Err(Errno::EINVAL),
        false => Ok(parts.join(&b'/')),
    }
}

/// Why what is clean of a file was not forgotten, for people.
pub fn why_not_invalidated(what: &str, path: &Path, errno: Errno) -> ControlError {
    if errno == Errno::EBUSY {
        let why = "it has what the PFS does not have, or a program has it open";
        return ControlError::new(what, Some(path), why)
            .errno(errno.0)
            .hint("`forebay wait PATH` waits until the PFS has it; close it, then try again");
    }
    ControlError::io(what, Some(path), &std::io::Error::from_raw_os_error(errno.0))
}

impl CacheFs {
    fn describe(&self, file: &Arc<CacheFile>) -> Result<CachedFile> {
        let object = self.losses.object_unless_lost(file);
        let (is_lost, there) = (matches!(object, Ok(None)), object.ok().flatten());
        let draining = file.drain.is_locked();
        let path = self.nodes.path(file.number()).ok();
        let state = file.state.lock();
        let r = &state.record;
        // What cannot be looked at is told all the same: it is not on the PFS.
        let size = there.map_or(state.seen_bytes, |object| object.size_bytes);
        let name = match r.state {
            _ if is_lost => "failed",
            State::Clean => "clean",
            State::Conflict => "conflict",
            _ if draining && !state.summing => "draining",
            State::Failed => "failed",
            State::Dirty => "dirty",
        };
        let path = path.unwrap_or_else(|| r.path.as_bytes().to_vec());
        let synced = !self.flash.is_volatile()
            && !r.whole
            && state
                .map
                .blocks()
                .all(|(_, e)| !e.has(bits::DIRTY) || (e.has(bits::SYNCED) && !e.has(bits::OPEN)));
        let grade = match r.state {
            _ if is_lost => "lost",
            State::Clean => "durable",
            _ if synced => "on flash",
            _ => "written",
        };
        let lacks_sums = state.map.blocks().any(|(_, e)| e.has(bits::DIRTY | bits::OPEN));
        let here = match r.whole {
            _ if is_lost => 0,
            true => size,
            false => (state.map.present() * BLOCK_BYTES).min(size),
        };
        Ok(CachedFile {
            path: rooted(&path),
            state: name.into(),
            unverified: !is_lost && (r.whole || lacks_sums),
            size_bytes: size,
            cached_bytes: here,
            dirty_bytes: state.dirty_bytes(size),
            drained_bytes: state.drained_bytes,
            drain_total_bytes: state.drain_total_bytes,
            opens: state.opens,
            pinned: r.pinned,
            grade: grade.into(),
            verified: r.verified.map(|how| match how {
                Verify::Cache => "cache".into(),
                Verify::Medium => "medium".into(),
            }),
            error: r.failure.as_ref().map(|f| CacheError {
                errno: f.errno,
                what: f.what.clone(),
                tries: f.tries,
                at_s: f.at_s,
            }),
        })
    }

    /// Ours, if what a path leads to on the PFS is not the file that it is in conflict with: theirs may have come by a
    /// rename, and is a clean file by itself.
    fn conflict_at(&self, path: &[u8]) -> Option<Arc<CacheFile>> {
        if !self.records.had_conflict() {
            return None;
        }
        let is_it = |file: &Arc<CacheFile>| {
            let is_conflict = file.state.lock().record.state == State::Conflict;
            is_conflict && self.is_at(file, path)
        };
        self.drain_list.files().into_iter().find(is_it)
    }

    /// State of a file by its number in the mount.
    pub(super) fn file_state(&self, ino: Ino) -> Result<CachedFile> {
        let state = self.own_state(ino)?;
        match state.state.as_str() {
            "clean" => match self.nodes.path(ino).ok().and_then(|path| self.conflict_at(&path)) {
                Some(ours) => self.describe(&ours),
                None => Ok(state),
            },
            _ => Ok(state),
        }
    }

    fn own_state(&self, ino: Ino) -> Result<CachedFile> {
        let known = self.nodes.get(ino)?;
        if let Some(file) = &known.file {
            return self.describe(file);
        }
        let path = self.nodes.path(ino).unwrap_or_default();
        match self.records.find(known.key)? {
            Some(file) => {
                file.set_number(ino);
                self.describe(&self.nodes.attach(ino, file)?)
            }
            None => {
                let stat = self.pfs.stat_fd(self.inodes.open_node(ino, &known.who)?.as_fd())?;
                Ok(not_cached(&path, stat.size))
            }
        }
    }

    /// What the requester's path leads to on the PFS.
    fn named(&self, caller: &Caller, path: &[u8]) -> Result<(Vec<u8>, PfsStat)> {
        let path = below(path)?;
        let who = Who::of(caller);
        let _act = who.act()?;
        let stat = self.pfs.stat(&path)?;
        Ok((path, stat))
    }

    /// What a path leads to, if that may be a file which is known here by other names only.
    fn key_of_a_name(&self, path: &[u8]) -> Option<Key> {
        if path.is_empty() || self.probe.is_silent() {
            return None;
        }
        let stat = self.pfs.stat(path).ok()?;
        (stat.kind() == FileKind::File && stat.nlink > 1).then_some(stat.key)
    }

    /// Listed files at or below a path.
    pub(super) fn listed_below(&self, path: &[u8]) -> Result<Vec<Arc<CacheFile>>> {
        let is_below = |of: &[u8]| {
            path.is_empty()
                || of.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        };
        let mut files = self.drain_list.files();
        if !path.is_empty() {
            self.ownership.look_where(&files)?;
        }
        let named = self.key_of_a_name(path);
        files.retain(|file| {
            if named.is_some_and(|key| file.state.lock().record.key == key) {
                self.leftovers.is_also_at(file, path);
                return true;
            }
            let paths = self.nodes.paths(file.number());
            match paths.is_empty() {
                // It has no name on the PFS any more that is known.
                true => is_below(file.state.lock().record.path.as_bytes()),
                false => paths.iter().any(|p| is_below(p)),
            }
        });
        Ok(files)
    }

    /// What is not on the PFS of a file or tree. A path that is not on the PFS is told of too, if
    /// there is something for it here.
    ///
    /// Where nothing is left mounts have heard of it, unless one does not hear for [`SHOWN_MAX`]: who is told so and looks sees the
    /// times that the drain gave.
    pub fn tree_state(&self, caller: &Caller, path: &[u8]) -> Result<TreeState> {
        let below = below(path)?;
        let files = self.listed_below(&below)?;
        let tree = self.tree_of(caller, path, &below, &files)?;
        if tree.is_durable() {
            self.wait_until_shown(&files);
        }
        Ok(tree)
    }

    /// Waits until mounts have heard of the ends of drains: of `files`, and of those that are listed no more.
    fn wait_until_shown(&self, files: &[Arc<CacheFile>]) {
        let until = Instant::now() + SHOWN_MAX;
        for file in files {
            drop(file.drain.try_lock_until(until));
        }
        self.drain_list.wait_for_ends(until);
        self.notifier.wait_until_heard(until);
    }

    /// What is not on the PFS of `files`, which are those below the path.
    fn tree_of(
        &self,
        caller: &Caller,
        path: &[u8],
        below: &[u8],
        files: &[Arc<CacheFile>],
    ) -> Result<TreeState> {
        let pfs_error = self.probe.trouble(&self.pfs);
        let asked = match below.is_empty() {
            // The root is what it is.
            true => Err(Errno::EISDIR),
            false if files.is_empty() && self.probe.stays_silent() => Err(Errno::ETIMEDOUT),
            false if self.probe.is_silent() => Err(Errno::ETIMEDOUT),
            false => self.named(caller, path),
        };
        let named = match asked {
            Ok(named) => Some(named),
            Err(Errno::ENOENT) if !files.is_empty() => None,
            Err(e @ (Errno::ENOENT | Errno::EACCES | Errno::EPERM | Errno::EINVAL)) => {
                return Err(e);
            }
            // The PFS does not answer: what is here can be told all the same.
            Err(_) if !files.is_empty() || below.is_empty() => None,
            Err(e) => return Err(e),
        };
        let mut tree = TreeState {
            pfs_error: pfs_error.filter(|_| !files.is_empty()),
            volatile: self.flash.is_volatile(),
            ..TreeState::default()
        };
        if below.is_empty() {
            tree.policy = Some(self.policies.policy_of(Ino::ROOT).to_string());
        }
        let on_pfs_bytes = self.add_listed(&mut tree, caller, files)?;
        self.add_lost(&mut tree, caller, below);
        tree.drained_bytes = self.counters.on_their_way();
        tree.rate_bytes_per_s = self.counters.drain_rate();
        // Of what waits for a policy, a decision or another try nobody knows.
        if tree.rate_bytes_per_s > 0.0 && tree.draining > 0 {
            let left_bytes = tree.dirty_bytes.saturating_sub(on_pfs_bytes);
            tree.eta_s = Some(left_bytes as f64 / tree.rate_bytes_per_s);
        }
        if named.is_none()
            && let [file] = files
            && self.is_at(file, below)
        {
            tree.file = Some(self.describe(file)?);
        }
        if let Some((path, stat)) = &named {
            tree.policy = self.policy_at(caller, path, stat).map(|policy| policy.to_string());
        }
        if let Some((path, stat)) = named
            && stat.kind() == FileKind::File
            && tree.file.is_none()
        {
            let ours = self.conflict_at(below);
            tree.file = Some(match (ours, files.first(), self.records.find(stat.key)?) {
                (Some(file), ..) | (None, _, Some(file)) => self.describe(&file)?,
                (None, Some(file), None) => self.describe(file)?,
                (None, None, None) => not_cached(&path, stat.size),
            });
        }
        Ok(tree)
    }

    /// Adds files that have something that the PFS does not; how many bytes of that drains under way have written.
    pub(super) fn add_listed(
        &self,
        tree: &mut TreeState,
        caller: &Caller,
        files: &[Arc<CacheFile>],
    ) -> Result<u64> {
        let mut on_pfs_bytes = 0;
        for file in files {
            let told = self.describe(file)?;
            if told.state == "clean" {
                continue;
            }
            if told.state == "draining" {
                on_pfs_bytes += told.drained_bytes.min(told.dirty_bytes);
            }
            tree.files += 1;
            tree.dirty_bytes += told.dirty_bytes;
            tree.draining += u64::from(told.state == "draining");
            tree.failed += u64::from(told.error.is_some() && told.state != "conflict");
            tree.conflicts += u64::from(told.state == "conflict");
            let state = file.state.lock();
            tree.busy += u64::from(state.may_kernel_write());
            if let Some(began) = state.drained_from {
                tree.drained_files += 1;
                tree.drained_ms = tree.drained_ms.max(began.elapsed().as_millis() as u64 + 1);
            }
            drop(state);
            let shown = told.error.is_some() && tree.problems.len() < MAX_PROBLEMS;
            if shown && self.may_see(caller, file) {
                tree.problems.push(told);
            }
        }
        Ok(on_pfs_bytes)
    }

    /// Adds files that are lost with their servers.
    fn add_lost(&self, tree: &mut TreeState, caller: &Caller, below: &[u8]) {
        for (lost, may_see) in self.ownership.lost_below(caller, below) {
            tree.files += 1;
            tree.failed += 1;
            if lost.path.as_bytes() == rooted(below).as_bytes() {
                tree.file = Some(lost.clone());
            }
            if may_see && tree.problems.len() < MAX_PROBLEMS {
                tree.problems.push(lost);
            }
        }
    }

    /// The policy that counts for a path.
    fn policy_at(&self, caller: &Caller, path: &[u8], stat: &PfsStat) -> Option<Policy> {
        if !self.ownership.has_names() {
            return matches!(stat.kind(), FileKind::File | FileKind::Dir)
                .then(|| self.policies.policy_at_path(path));
        }
        let who = Who::of(caller);
        let ino = self
            .inodes
            .walk(path, &who)
            .or_else(|_| self.inodes.walk(path, &Who::server()))
            .ok()?;
        let policy = self.policies.policy_of(ino);
        drop(self.nodes.forget(ino, 1));
        matches!(stat.kind(), FileKind::File | FileKind::Dir).then_some(policy)
    }

    fn is_at(&self, file: &CacheFile, path: &[u8]) -> bool {
        self.nodes.paths(file.number()).iter().any(|p| *p == path)
            || file.state.lock().record.path.as_bytes() == path
    }

    /// Names of problems are told to who could list them: root, the writer, and who can reach the
    /// path.
    fn may_see(&self, caller: &Caller, file: &CacheFile) -> bool {
        let (uid, path) = {
            let state = file.state.lock();
            (state.record.writer.uid, state.record.path.as_bytes().to_vec())
        };
        caller.uid == 0
            || caller.uid == uid
            || Who::of(caller).act().is_ok_and(|_act| self.pfs.stat(&path).is_ok())
    }

    /// State of the cache as a whole.
    pub fn cache_status(&self) -> CacheStatus {
        let [hit_bytes, filled_bytes, written_bytes, evicted_bytes, _] = self.counters.bytes();
        let [miss_bytes, ..] = self.counters.reads();
        CacheStatus {
            pfs: PathBytes::new(self.pfs.path().as_os_str().as_bytes()),
            pfs_error: self.probe.trouble(&self.pfs),
            flash_error: self.flash_error(),
            tree: self.whole_tree(),
            hit_bytes,
            miss_bytes,
            filled_bytes,
            written_bytes,
            evicted_bytes,
            rate_limit_bytes_per_s: self.drain_list.rate(),
        }
    }

    /// What is wrong with flash, in words: it takes no changes any more, or others fill it.
    fn flash_error(&self) -> Option<String> {
        self.flash.fault().or_else(|| self.space.trouble().map(String::from))
    }

    /// What is not on the PFS of all; never less than is known.
    pub(super) fn whole_tree(&self) -> TreeState {
        let listed = self.listed_below(b"");
        let tree = listed.and_then(|files| self.tree_of(&Caller::root(), b"/", b"", &files));
        tree.unwrap_or_else(|error| {
            tracing::warn!(%error, "where all files are cannot be told");
            TreeState { files: self.dirty_files(), ..TreeState::default() }
        })
    }

    /// Names in a directory, for who may list it.
    pub fn list_of(&self, caller: &Caller, path: &[u8], after: &[u8]) -> Result<CacheList> {
        let (path, stat) = self.named(caller, path)?;
        if stat.kind() != FileKind::Dir {
            return Ok(CacheList {
                is_file: stat.kind() == FileKind::File,
                ..CacheList::default()
            });
        }
        let who = Who::of(caller);
        let _act = who.act()?;
        let dir = self.pfs.open_at(&path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&dir).map_err(errno)? {
            let entry = entry.map_err(errno)?;
            let name = entry.file_name().to_bytes();
            let hidden = name == b"." || name == b".." || name.starts_with(DRAIN_PREFIX);
            if hidden || name <= after {
                continue;
            }
            match self.pfs.stat_at(dir.as_fd(), name).map(|stat| stat.kind()) {
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
        let files = self.listed_below(&below(path)?)?;
        // What was mapped may be so no more: who asks waits for what is open.
        self.mapped.look(&files);
        self.drain_list.ask(&files);
        self.tree_state(caller, path)
    }

    /// The cached file that a requester's path leads to, and the right to have it changed. Where another
    /// server is its data server: what this one has of it, nothing.
    fn cached(
        &self,
        caller: &Caller,
        path: &[u8],
        owner_only: bool,
    ) -> Result<std::result::Result<Arc<CacheFile>, CachedFile>> {
        let (path, stat) = self.named(caller, path)?;
        if stat.kind() != FileKind::File {
            return Err(Errno::EISDIR);
        }
        let who = Who::of(caller);
        if owner_only && who.uid != 0 && who.uid != stat.uid {
            return Err(Errno::EPERM);
        }
        let Some(ino) = self.walk_to_file(&path, &who)? else {
            return Ok(Err(not_cached(&path, stat.size)));
        };
        let file = self.cached_files.attach(ino, &stat, &who);
        // Only while somebody else needs the node.
        drop(self.nodes.forget(ino, 1));
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
            let (path, stat) = self.named(caller, path)?;
            let who = Who::of(caller);
            let source = {
                let _act = who.act()?;
                let key = file.state.lock().record.key;
                self.pfs.open_file(&path, key, rustix::fs::OFlags::RDONLY)?.0
            };
            self.cached_files.revalidate(&file, &stat)?;
            if file.state.lock().is_lost() {
                return Err(Errno::EIO);
            }
            file.set_source(Some(Arc::new(source)));
        }
        let fetched = self.fills.fetch_all(&file);
        if file.state.lock().opens == 0 {
            file.set_source(None);
        }
        fetched?;
        self.describe(&file)
    }

    /// Keeps a file from being evicted, or not any more.
    pub fn pin(&self, caller: &Caller, path: &[u8], on: bool) -> Result<CachedFile> {
        let file = match self.cached(caller, path, true)? {
            Ok(file) => file,
            Err(elsewhere) => return Ok(elsewhere),
        };
        file.state.lock().save(&self.flash, &file, |record| record.pinned = on)?;
        self.describe(&file)
    }

    /// Forgets what is clean of a file. EBUSY while a kernel has it open itself or it is dirty.
    pub fn invalidate(&self, caller: &Caller, path: &[u8]) -> Result<CachedFile> {
        let file = match self.cached(caller, path, true)? {
            Ok(file) => file,
            Err(elsewhere) => return Ok(elsewhere),
        };
        file.wait_closed(true)?;
        let _meta = file.meta.lock();
        let (_, stat) = self.named(caller, path)?;
        {
            let state = file.state.lock();
            if state.record.is_dirty() || state.locals > 0 {
                return Err(Errno::EBUSY);
            }
        }
        self.cached_files.take_base(&file, &stat)?;
        self.describe(&file)
    }

    /// Ends a conflict, or the wait for what was lost: with a server, or on flash.
    pub fn resolve(&self, caller: &Caller, path: &[u8], keep: Keep) -> Result<TreeState> {
        let below = below(path)?;
        if keep == Keep::Theirs && self.ownership.give_up_lost(caller, &below)? {
            return self.tree_state(caller, path);
        }
        let file = match self.in_conflict(&below) {
            Err(Errno::ENOENT) => {
                return Err(self.named(caller, path).err().unwrap_or(Errno::EINVAL));
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
        let mut files = self.listed_below(below)?;
        if files.is_empty() {
            return Err(Errno::ENOENT);
        }
        files.retain(|file| {
            let is_lost = self.losses.data_is_lost(file).unwrap_or(false);
            is_lost || file.state.lock().record.state == State::Conflict
        });
        // A directory may have the name that the file had; and several files may have had it: one after the other.
        let is_it = |file: &&Arc<CacheFile>| {
            let recorded = file.state.lock().record.path.as_bytes() == below;
            recorded || self.nodes.paths(file.number()).iter().any(|path| path == below)
        };
        match &files[..] {
            [] => Err(Errno::EINVAL),
            [file] => Ok(file.clone()),
            several => several.iter().find(is_it).cloned().ok_or(Errno::ENOTEMPTY),
        }
    }

    /// Limits the drain; 0 = not. At a server it stays so after a restart. For who may end the mount.
    pub fn set_rate(&self, bytes_per_s: u64) -> Result<()> {
        if self.options.served.is_some() {
            self.flash.save_drain_rate(bytes_per_s)?;
        }
        self.drain_list.set_rate(bytes_per_s);
        Ok(())
    }
}

/// A file of which nothing is on flash, and the PFS has all.
pub(super) fn not_cached(path: &[u8], size_bytes: u64) -> CachedFile {
    CachedFile {
        path: rooted(path),
        state: "clean".into(),
        unverified: false,
        size_bytes,
        cached_bytes: 0,
        dirty_bytes: 0,
        drained_bytes: 0,
        drain_total_bytes: 0,
        opens: 0,
        pinned: false,
        grade: "durable".into(),
        verified: None,
        error: None,
    }
}
