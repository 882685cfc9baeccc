//! Where files are between flash and PFS, as commands and extended attributes report it.
//!
//! Invariant: a tree is reported as durable only if no file below it is on the list of what has to drain,
//! and a file leaves that list only after its drain is verified and on record.

use super::counters::Counters;
use super::data_servers::Ownership;
use super::drain::DrainList;
use super::drain::dirty::DirtyFiles;
use super::drain::policies::Policies;
use super::file::CacheFile;
use super::flash::Flash;
use super::lost::Losses;
use super::map::{BLOCK_BYTES, bits};
use super::nodes::Nodes;
use super::notifier::Notifier;
use super::parts::Parts;
use super::paths::rooted;
use super::pfs::{Key, PfsDir, PfsStat};
use super::pfs_inodes::PfsInodes;
use super::pfs_leftovers::PfsLeftovers;
use super::probe::Probe;
use super::record::SyncState;
use super::record_store::RecordStore;
use super::space::Space;
use super::stack::Stack;
use forebay_credentials::acting::Who;
use forebay_policy::when::Policy;
use forebay_proto::attr::FileKind;
use forebay_proto::cache::{CacheError, CachedFile, MAX_PROBLEMS, TreeState};
use forebay_proto::control::{ControlError, Verify};
use forebay_proto::{Caller, Errno, Ino, Result};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait of who is told that all is on the PFS for mounts to hear of the drains' ends.
const SHOWN_MAX: Duration = Duration::from_secs(2);

/// A path from the mount's root as one below the PFS directory. EINVAL for one with `..`.
pub(super) fn below(path: &[u8]) -> Result<Vec<u8>> {
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

/// Tells the state of files and trees.
pub(crate) struct Status {
    flash: Arc<Flash>,
    pfs: Arc<PfsDir>,
    nodes: Arc<Nodes>,
    counters: Arc<Counters>,
    drain_list: Arc<DrainList>,
    policies: Arc<Policies>,
    notifier: Arc<Notifier>,
    ownership: Arc<Ownership>,
    inodes: Arc<PfsInodes>,
    records: Arc<RecordStore>,
    dirty: Arc<DirtyFiles>,
    space: Arc<Space>,
    losses: Arc<Losses>,
    leftovers: Arc<PfsLeftovers>,
    probe: Probe,
}

impl Status {
    pub fn new(parts: &Parts, stack: &Stack) -> Status {
        Status {
            flash: parts.flash.clone(),
            pfs: parts.pfs.clone(),
            nodes: parts.nodes.clone(),
            counters: parts.counters.clone(),
            drain_list: parts.drain_list.clone(),
            policies: parts.policies.clone(),
            notifier: parts.notifier.clone(),
            ownership: stack.ownership.clone(),
            inodes: stack.inodes.clone(),
            records: stack.records.clone(),
            dirty: stack.dirty.clone(),
            space: stack.space.clone(),
            losses: stack.losses.clone(),
            leftovers: stack.leftovers.clone(),
            probe: Probe::default(),
        }
    }

    /// What is wrong with the PFS, in words.
    pub fn pfs_error(&self) -> Option<String> {
        self.probe.trouble(&self.pfs)
    }
}

impl Status {
    pub(crate) fn describe(&self, file: &Arc<CacheFile>) -> Result<CachedFile> {
        let object = self.losses.object_unless_lost(file);
        let (is_lost, there) = (matches!(object, Ok(None)), object.ok().flatten());
        let draining = file.drain.is_locked();
        let path = self.nodes.path(file.number()).ok();
        let state = file.state.lock();
        let r = &state.record;
        // What cannot be looked at is told all the same: it is not on the PFS.
        let size = there.map_or(state.extent.seen_bytes(), |object| object.size_bytes);
        let name = match r.state {
            _ if is_lost => "failed",
            SyncState::Clean => "clean",
            SyncState::Conflict => "conflict",
            _ if draining && !state.drain_run.is_for_sums() => "draining",
            SyncState::Failed => "failed",
            SyncState::Dirty => "dirty",
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
            SyncState::Clean => "durable",
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
            drained_bytes: state.drain_run.written_bytes(),
            drain_total_bytes: state.drain_run.total_bytes(),
            opens: state.opens.all(),
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
            let is_conflict = file.state.lock().record.state == SyncState::Conflict;
            is_conflict && self.is_at(file, path)
        };
        self.drain_list.files().into_iter().find(is_it)
    }

    /// State of a file by its number in the mount.
    pub(crate) fn file_state(&self, ino: Ino) -> Result<CachedFile> {
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
    pub(crate) fn named(&self, caller: &Caller, path: &[u8]) -> Result<(Vec<u8>, PfsStat)> {
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
    pub(crate) fn listed_below(&self, path: &[u8]) -> Result<Vec<Arc<CacheFile>>> {
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

    /// Waits until mounts have heard of the ends of drains: of `files`, and of those that are listed no more.
    pub(crate) fn wait_until_shown(&self, files: &[Arc<CacheFile>]) {
        let until = Instant::now() + SHOWN_MAX;
        for file in files {
            drop(file.drain.try_lock_until(until));
        }
        self.drain_list.wait_for_ends(until);
        self.notifier.wait_until_heard(until);
    }

    /// What is not on the PFS of `files`, which are those below the path.
    pub(crate) fn tree_of(
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
    pub(crate) fn add_listed(
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
            if let Some(began) = state.drain_run.last() {
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

    /// What is wrong with flash, in words: it takes no changes any more, or others fill it.
    pub(crate) fn flash_error(&self) -> Option<String> {
        self.flash.fault().or_else(|| self.space.trouble().map(String::from))
    }

    /// What is not on the PFS of all; never less than is known.
    pub(crate) fn whole_tree(&self) -> TreeState {
        let listed = self.listed_below(b"");
        let tree = listed.and_then(|files| self.tree_of(&Caller::root(), b"/", b"", &files));
        tree.unwrap_or_else(|error| {
            tracing::warn!(%error, "where all files are cannot be told");
            TreeState { files: self.dirty.count(), ..TreeState::default() }
        })
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
