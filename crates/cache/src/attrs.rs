//! Attributes, xattrs and symbolic links' targets: the PFS's, but for size and times of what is dirty
//! here, and `user.forebay.*`, which answer from the cache's state.

use super::attach::CachedFiles;
use super::data_servers::Ownership;
use super::drain::DrainList;
use super::drain::policies::Policies;
use super::file::CacheFile;
use super::file_data::FileData;
use super::flash::Flash;
use super::lost::Losses;
use super::nodes::Nodes;
use super::own_change::OwnChanges;
use super::parts::Parts;
use super::pfs::{PfsDir, PfsStat, errno, proc_path};
use super::pfs_inodes::PfsInodes;
use super::stack::Stack;
use super::status::Status;
use forebay_credentials::acting::Who;
use forebay_credentials::privileges;
use forebay_policy::when::Policy;
use forebay_proto::api::XATTR_VALUE_MAX;
use forebay_proto::attr::{Attr, FileKind, SetAttr, SetTime, Timestamp};
use forebay_proto::cache::{CacheError, CachedFile, TreeState};
use forebay_proto::layout::publish_xattr;
use forebay_proto::{Caller, Errno, Ino, Result, acl};
use rustix::fs::{self as rfs, AtFlags, Mode, Timespec, Timestamps, XattrFlags};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Prefix of the xattrs that tell the cache's own state.
const OWN: &[u8] = b"user.forebay.";
/// Set on directories.
const DRAIN_POLICY: &[u8] = b"user.forebay.drain";
/// Rights that a program has from its file, which a write takes off.
const CAPABILITY: &str = "security.capability";
/// How often a change of size is tried again that met the end of a drain.
const RESIZE_TRIES: u32 = 3;
/// Size that most xattrs fit into.
const XATTR_FIRST_BYTES: usize = 512;

/// Attributes of files: the PFS's, together with what is here.
pub(crate) struct Attributes {
    flash: Arc<Flash>,
    pfs: Arc<PfsDir>,
    nodes: Arc<Nodes>,
    drain_list: Arc<DrainList>,
    policies: Arc<Policies>,
    ownership: Arc<Ownership>,
    inodes: Arc<PfsInodes>,
    own_changes: Arc<OwnChanges>,
    losses: Arc<Losses>,
    data: Arc<FileData>,
    cached_files: Arc<CachedFiles>,
    status: Arc<Status>,
}

impl Attributes {
    pub fn new(parts: &Parts, stack: &Stack, status: &Arc<Status>) -> Attributes {
        Attributes {
            flash: parts.flash.clone(),
            pfs: parts.pfs.clone(),
            nodes: parts.nodes.clone(),
            drain_list: parts.drain_list.clone(),
            policies: parts.policies.clone(),
            ownership: stack.ownership.clone(),
            inodes: stack.inodes.clone(),
            own_changes: stack.own_changes.clone(),
            losses: stack.losses.clone(),
            data: stack.data.clone(),
            cached_files: stack.cached_files.clone(),
            status: status.clone(),
        }
    }
}

impl Attributes {
    /// What `stat` shows of a PFS inode with this data here.
    pub(crate) fn attr_of(
        &self,
        ino: Ino,
        stat: &PfsStat,
        file: Option<&Arc<CacheFile>>,
    ) -> Result<Attr> {
        // Looked at while it was dirty, and believed now that it is clean, it would have the size from before its drain.
        // If it is gone, or somebody else changed it, the first look is as good.
        let again = file.filter(|file| is_overtaken(file, stat)).and_then(|_| {
            self.inodes.open_node_any(ino).and_then(|fd| self.pfs.stat_fd(fd.as_fd())).ok()
        });
        let stat = again.as_ref().unwrap_or(stat);
        let mut attr = stat.attr(ino);
        let Some(file) = file else { return Ok(attr) };
        if file.state.lock().record.kept_as.is_some() {
            // A name of ours is nobody's.
            attr.nlink = attr.nlink.saturating_sub(1).max(1);
        }
        let promised = file.state.lock().extent.promised_until().div_ceil(512);
        if file.is_dirty() {
            let Some(object) = self.losses.object_unless_lost(file)? else {
                // It can be removed, and written anew: nobody opens it to read.
                let known = file.state.lock().record.lost_bytes.unwrap_or(0);
                attr.size_bytes = known.max(attr.size_bytes);
                return Ok(attr);
            };
            attr.size_bytes = object.size_bytes;
            attr.mtime = object.mtime;
            // Of what a kernel may write and has not, the data's ctime is of the open.
            let state = file.state.lock();
            if !state.evidence.is_untouched(&object) {
                attr.ctime = attr.ctime.max(state.evidence.ctime_of(&object));
            }
            drop(state);
            // What is not here is on the PFS.
            attr.blocks_512 =
                object.blocks_512.max(stat.blocks.min(object.size_bytes.div_ceil(512)));
        }
        attr.blocks_512 = attr.blocks_512.max(promised);
        // The next change may be of the other inode, which nobody has looked at: of the PFS's by a chmod, of the data's by
        // a write. Its stamp is to be later, too.
        forebay_store::clock::shown(attr.ctime);
        Ok(attr)
    }

    /// getattr.
    pub(crate) fn getattr_of(&self, ino: Ino) -> Result<Attr> {
        let known = self.nodes.get(ino)?;
        let look = || self.pfs.stat_fd(self.inodes.open_node_any(ino)?.as_fd());
        let stat = match look() {
            Err(e) if super::pfs::went_away(e) && self.pfs.check().is_ok() => look()?,
            other => other?,
        };
        self.attr_of(ino, &stat, known.file.as_ref())
    }

    /// setattr.
    pub(crate) fn setattr_of(&self, caller: &Caller, ino: Ino, change: &SetAttr) -> Result<Attr> {
        let who = Who::of(caller);
        let known = self.nodes.get(ino)?;
        let new_owner = change.uid.is_some() || change.gid.is_some();
        let mut file = known.file.clone();
        let is_copy = file.as_ref().is_some_and(|file| self.is_copied_up(caller, ino, file));
        let keeps = is_copy && new_owner && change.size_bytes.is_none();
        if change.kill_suid && !keeps {
            self.kill_suid(ino, Some(caller))?;
        }
        if let Some(size) = change.size_bytes {
            let mut tries = 0;
            file = loop {
                match self.resize(&who, ino, size, is_copy && !change.kill_suid) {
                    Err(Errno::ESTALE) if tries < RESIZE_TRIES => tries += 1,
                    done => break Some(done?),
                }
            };
        }
        let through =
            change.mode.is_some() || new_owner || change.atime.is_some() || change.mtime.is_some();
        if through {
            let data_times =
                self.own_changes.own_change_of_inode(file.as_ref(), ino, &who, |inode| {
                    let path = proc_path(inode, b"");
                    let rights = match keeps {
                        true => Some(Rights::of(&path, self.pfs.stat_fd(inode)?.mode)?),
                        false => None,
                    };
                    {
                        let _act = who.act()?;
                        set_on_pfs(&path, change)?;
                    }
                    rights.map_or(Ok(()), |rights| rights.give_back(&path, change))?;
                    // Before a drain looks what it has to put on; the base follows whatever comes of it.
                    let has_times = |f: &&Arc<CacheFile>| f.is_dirty() && !f.state.lock().is_lost();
                    let dirty = file.as_ref().filter(has_times);
                    Ok(dirty.map_or(Ok(()), |f| f.set_times(at(change.atime), at(change.mtime))))
                })?;
            data_times?;
        }
        self.getattr_of(ino)
    }

    /// Whether this is an overlay's copy of a lower file: without a name as yet, of who asks. The overlay sets
    /// `security.capability` and the mode before the owner, and means to keep them; the kernel asks for a copy's owner as
    /// it does for chown(2). Nobody else has written the file.
    fn is_copied_up(&self, caller: &Caller, ino: Ino, file: &CacheFile) -> bool {
        let is_nameless = {
            let state = file.state.lock();
            state.record.nameless && !state.is_gone()
        };
        let owner =
            || self.pfs.stat_fd(self.inodes.open_node_any(ino)?.as_fd()).map(|stat| stat.uid);
        is_nameless && owner() == Ok(caller.uid)
    }

    /// truncate(2) and ftruncate(2). An overlay gives its copy of a lower file (`is_copy`) the size that it has.
    pub(crate) fn resize(
        &self,
        who: &Who,
        ino: Ino,
        size: u64,
        is_copy: bool,
    ) -> Result<Arc<CacheFile>> {
        let _writing = self.ownership.may_write(ino)?;
        let fd = self.inodes.open_node(ino, who)?;
        let stat = self.pfs.stat_fd(fd.as_fd())?;
        let file = self.cached_files.attach(ino, &stat, who)?;
        if size == 0 {
            self.losses.wait_to_begin_anew(&file)?;
        }
        {
            let _meta = file.meta.lock();
            // A drain may have ended since, or a name gone: what it left counts.
            let stat = self.pfs.stat_fd(fd.as_fd())?;
            self.inodes.must_be(ino, &stat)?;
            self.cached_files.is_lost_or_valid(ino, &file, &stat)?;
            if !is_copy {
                self.kill_capability(&file, ino, fd.as_fd())?;
            }
            self.note_acl(&file, fd.as_fd())?;
            let mut state = file.state.lock();
            if state.opens.all() == 0 {
                state.writer = who.clone();
            }
            drop(state);
            self.data.truncate_data(&file, size)?;
        }
        let closed = file.state.lock().opens.all() == 0;
        if closed {
            self.drain_list.closed(&file);
        }
        Ok(file)
    }

    /// Takes suid and sgid off, as a write by somebody without the right to keep them does; `None`: it
    /// is not told by whom.
    pub(crate) fn kill_suid(&self, ino: Ino, by: Option<&Caller>) -> Result<()> {
        let known = self.nodes.get(ino)?;
        let _meta = known.file.as_ref().map(|file| file.meta.lock());
        self.kill_suid_locked(ino, by)
    }

    /// The same with the file's `meta` locked, if it has data here.
    pub(crate) fn kill_suid_locked(&self, ino: Ino, by: Option<&Caller>) -> Result<()> {
        let known = self.nodes.get(ino)?;
        let fd = self.inodes.open_node_any(ino)?;
        let stat = self.pfs.stat_fd(fd.as_fd())?;
        let mode = stat.mode;
        let kill = privileges::killed(mode, stat.gid, by);
        if kill == 0 {
            return Ok(());
        }
        let change = SetAttr { mode: Some(mode & 0o7777 & !kill), ..SetAttr::default() };
        let path = proc_path(fd.as_fd(), b"");
        let set = || set_on_pfs(&path, &change);
        match &known.file {
            Some(file) => self.own_changes.own_change_locked(file, ino, &Who::server(), set),
            None => set(),
        }
    }

    /// Takes `security.capability` off a file that is about to be written. What a kernel writes itself it may write without
    /// a word, where it believes that there is none; so a user's goes at the open. With the file's `meta` locked.
    pub(crate) fn kill_capability(
        &self,
        file: &Arc<CacheFile>,
        ino: Ino,
        inode: BorrowedFd<'_>,
    ) -> Result<()> {
        let path = proc_path(inode, b"");
        if !has_capability(&path) {
            file.has_capability.store(false, Ordering::Relaxed);
            return Ok(());
        }
        let remove = || rfs::removexattr(&path[..], CAPABILITY).map_err(errno);
        match self.own_changes.own_change_locked(file, ino, &Who::server(), remove) {
            // Where the server may not, the drain cannot keep it either.
            Ok(()) | Err(Errno::ENODATA | Errno::EPERM | Errno::EACCES) => {
                file.has_capability.store(false, Ordering::Relaxed);
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    /// The superuser opens the file for writing: an overlay does so with what it has copied up, and nothing may be written.
    /// `security.capability` stays until the first write: of what the kernel writes itself the kernel takes it off.
    pub(crate) fn leave_capability(&self, file: &CacheFile, inode: BorrowedFd<'_>) {
        let has = has_capability(&proc_path(inode, b""));
        file.has_capability.store(has, Ordering::Relaxed);
    }

    /// Takes off, before a write that is asked for here, what was left on at the open.
    pub(crate) fn kill_capability_left(&self, file: &Arc<CacheFile>, ino: Ino) -> Result<()> {
        if !file.has_capability.load(Ordering::Relaxed) {
            return Ok(());
        }
        let _meta = file.meta.lock();
        let fd = self.inodes.open_node_any(ino)?;
        self.kill_capability(file, ino, fd.as_fd())
    }

    /// Keeps in mind what an ACL lets the owning group do, for when the PFS file is gone and ours is to take its place.
    /// Before a file is written, and when its ACL was changed.
    pub(crate) fn note_acl(&self, file: &CacheFile, inode: BorrowedFd<'_>) -> Result<()> {
        let path = proc_path(inode, b"");
        let value = grown(|buffer| rfs::getxattr(&path[..], acl::ACCESS, buffer));
        let list = value.ok().and_then(|value| acl::Acl::parse(&value).ok().flatten());
        let group = list.map(|list| list.owning_group());
        let mut state = file.state.lock();
        if state.record.acl_group == group {
            return Ok(());
        }
        state.save(&self.flash, file, |record| record.acl_group = group)
    }

    /// An xattr was changed in the mount: of an ACL that is kept in mind.
    fn acl_changed(
        &self,
        file: Option<&Arc<CacheFile>>,
        name: &[u8],
        inode: BorrowedFd<'_>,
    ) -> Result<()> {
        match file.filter(|_| name == acl::ACCESS) {
            Some(file) => self.note_acl(file, inode),
            None => Ok(()),
        }
    }

    /// readlink.
    pub(crate) fn readlink_of(&self, ino: Ino) -> Result<Vec<u8>> {
        let fd = self.inodes.open_node_any(ino)?;
        Ok(rfs::readlinkat(&fd, "", Vec::new()).map_err(errno)?.into_bytes())
    }

    /// getxattr.
    pub(crate) fn getxattr_of(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        if let Some(own) = name.strip_prefix(OWN) {
            return self.own_xattr(ino, own);
        }
        if name == CAPABILITY.as_bytes() {
            return self.capability_of(ino);
        }
        let fd = self.inodes.open_node_any(ino)?;
        let path = proc_path(fd.as_fd(), b"");
        match grown(|buffer| rfs::getxattr(&path[..], name, buffer)) {
            // A kernel that asks for ACLs takes any other errno for a refusal of the access.
            Err(Errno::EOPNOTSUPP) if name == acl::ACCESS || name == acl::DEFAULT => {
                Err(Errno::ENODATA)
            }
            other => other,
        }
    }

    /// `security.capability`: a kernel asks for it before a write, whenever it has looked at the attributes since the one before. Of a
    /// dirty file that is open the PFS is asked until it says that there is none: who writes what is here waits for no PFS.
    fn capability_of(&self, ino: Ino) -> Result<Vec<u8>> {
        let file = self.nodes.get(ino)?.file;
        let is_known =
            |file: &Arc<CacheFile>| file.is_dirty() && file.state.lock().opens.has_no_capability();
        if file.as_ref().is_some_and(is_known) {
            return Err(Errno::ENODATA);
        }
        let fd = self.inodes.open_node_any(ino)?;
        let path = proc_path(fd.as_fd(), b"");
        // A PFS without such xattrs has none: that is remembered as well.
        let read = || match read_capability(&path) {
            Err(Errno::EOPNOTSUPP) => Err(Errno::ENODATA),
            other => other,
        };
        let Some(file) = file else { return read() };
        // No change of it by this cache falls into the look. Who is at one may wait for a kernel that asks here.
        let meta = file.meta.try_lock();
        let value = read();
        if meta.is_some() {
            file.state.lock().opens.note_capability(value != Err(Errno::ENODATA));
        }
        value
    }

    /// listxattr.
    pub(crate) fn listxattr_of(&self, ino: Ino) -> Result<Vec<u8>> {
        let fd = self.inodes.open_node_any(ino)?;
        let path = proc_path(fd.as_fd(), b"");
        match grown(|buffer| rfs::listxattr(&path[..], buffer)) {
            Err(Errno::EOPNOTSUPP) => Ok(Vec::new()),
            other => other,
        }
    }

    /// setxattr.
    pub(crate) fn setxattr_of(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<()> {
        let who = Who::of(caller);
        let known = self.nodes.get(ino)?;
        if name == DRAIN_POLICY {
            let policy = Policy::parse(value).ok_or(Errno::EINVAL)?;
            return self.set_policy(&who, ino, Some(policy));
        }
        if name == publish_xattr::NAME {
            // What was written is seen at once; who may write is for the PFS to say.
            return if value == publish_xattr::NOW { Ok(()) } else { Err(Errno::EOPNOTSUPP) };
        }
        if name.starts_with(OWN) {
            return Err(Errno::EPERM);
        }
        let file = known.file.as_ref();
        self.own_changes.own_change_of_inode(file, ino, &who, |inode| {
            if let Some(file) = file.filter(|_| name == CAPABILITY.as_bytes()) {
                // Also if it fails: it may be done on the PFS. Nobody notes what a look finds meanwhile, with `meta` locked.
                file.state.lock().opens.forget_capability();
            }
            let set = {
                let _act = who.act()?;
                let path = proc_path(inode, b"");
                rfs::setxattr(&path[..], name, value, XattrFlags::from_bits_retain(flags))
            };
            set.map_err(errno)?;
            self.acl_changed(file, name, inode)
        })
    }

    /// removexattr.
    pub(crate) fn removexattr_of(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        let who = Who::of(caller);
        let known = self.nodes.get(ino)?;
        if name == DRAIN_POLICY {
            return self.set_policy(&who, ino, None);
        }
        let file = known.file.as_ref();
        self.own_changes.own_change_of_inode(file, ino, &who, |inode| {
            let removed = {
                let _act = who.act()?;
                rfs::removexattr(&proc_path(inode, b"")[..], name)
            };
            removed.map_err(errno)?;
            self.acl_changed(file, name, inode)
        })
    }

    /// A directory's policy is its owner's and root's.
    fn set_policy(&self, who: &Who, ino: Ino, policy: Option<Policy>) -> Result<()> {
        let known = self.nodes.get(ino)?;
        if known.kind != FileKind::Dir {
            return Err(Errno::ENOTDIR);
        }
        let fd = self.inodes.open_node(ino, who)?;
        let owner = self.pfs.stat_fd(fd.as_fd())?.uid;
        if who.uid != 0 && who.uid != owner {
            return Err(Errno::EPERM);
        }
        self.policies.set(known.key, policy)?;
        self.policies.policies_changed();
        self.ownership.tell_policies();
        Ok(())
    }

    /// The worst of what is below a directory. ENODATA where other servers have some of it: the commands ask them all.
    fn own_xattr_of_dir(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        if self.ownership.is_shared() || !matches!(name, b"state" | b"dirty_bytes" | b"error") {
            return Err(Errno::ENODATA);
        }
        let files = self.status.listed_below(&self.nodes.path(ino)?)?;
        let mut tree = TreeState::default();
        self.status.add_listed(&mut tree, &Caller::root(), &files)?;
        let value = match name {
            b"state" => tree.worst().into(),
            b"dirty_bytes" => tree.dirty_bytes.to_string(),
            _ => {
                let is_it = |problem: &&CachedFile| problem.state == tree.worst();
                in_words(tree.problems.iter().find(is_it).and_then(|p| p.error.as_ref()))?
            }
        };
        Ok(value.into_bytes())
    }

    fn own_xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let known = self.nodes.get(ino)?;
        if name == b"drain" {
            return Ok(self.policies.policy_of(ino).to_string().into_bytes());
        }
        if known.kind == FileKind::Dir {
            return self.own_xattr_of_dir(ino, name);
        }
        if known.kind != FileKind::File {
            return Err(Errno::ENODATA);
        }
        let status = self.status.file_state(ino)?;
        let value = match name {
            b"state" => status.state.clone(),
            b"dirty_bytes" => status.dirty_bytes.to_string(),
            b"cached_bytes" => status.cached_bytes.to_string(),
            b"progress" => format!("{}/{}", status.drained_bytes, status.drain_total_bytes),
            b"pinned" => if status.pinned { "yes" } else { "no" }.into(),
            b"error" => in_words(status.error.as_ref())?,
            b"grade" => status.grade.clone(),
            b"verified" => match &status.verified {
                Some(how) => how.clone(),
                None => return Err(Errno::ENODATA),
            },
            b"fast_path" => match self.flash.fast_path() {
                Ok(()) => "yes".into(),
                Err(reason) => format!("no: {reason}"),
            },
            b"volatile" => if self.flash.is_volatile() { "yes" } else { "no" }.into(),
            _ => return Err(Errno::ENODATA),
        };
        Ok(value.into_bytes())
    }
}

/// True if a drain may have ended since this look at the PFS: what was looked at has been displaced, or the file is clean
/// and has other data.
fn is_overtaken(file: &CacheFile, stat: &PfsStat) -> bool {
    let state = file.state.lock();
    stat.nlink == 0 || !state.record.is_dirty() && !state.record.base.holds_data(stat)
}

/// Why something is not on the PFS. ENODATA if there is no reason.
fn in_words(error: Option<&CacheError>) -> Result<String> {
    let error = error.ok_or(Errno::ENODATA)?;
    Ok(format!("{} {}", Errno(error.errno).name(), error.what))
}

fn read_capability(path: &[u8]) -> Result<Vec<u8>> {
    grown(|buffer| rfs::getxattr(path, CAPABILITY, buffer))
}

fn has_capability(path: &[u8]) -> bool {
    rfs::getxattr(path, CAPABILITY, &mut [0u8; 0][..]).is_ok()
}

/// What the PFS takes off a file whose owner is changed.
struct Rights {
    mode: u32,
    capability: Option<Vec<u8>>,
}

impl Rights {
    fn of(path: &[u8], mode: u32) -> Result<Rights> {
        let capability = match read_capability(path) {
            Ok(value) => Some(value),
            Err(Errno::ENODATA | Errno::EOPNOTSUPP) => None,
            Err(e) => return Err(e),
        };
        Ok(Rights { mode: mode & 0o7777, capability })
    }

    /// As the server, after `change`.
    fn give_back(self, path: &[u8], change: &SetAttr) -> Result<()> {
        if change.mode.is_none() && self.mode & (libc::S_ISUID | libc::S_ISGID) != 0 {
            let mode = Mode::from_raw_mode(self.mode);
            rfs::chmodat(rfs::CWD, path, mode, AtFlags::empty()).map_err(errno)?;
        }
        match self.capability {
            Some(value) => {
                let set = rfs::setxattr(path, CAPABILITY, &value, XattrFlags::empty());
                set.map_err(errno)
            }
            None => Ok(()),
        }
    }
}

fn at(time: Option<SetTime>) -> Option<Timestamp> {
    match time {
        Some(SetTime::At(t)) => Some(t),
        Some(SetTime::Now) => Some(forebay_store::clock::stamp()),
        None => None,
    }
}

fn set_on_pfs(path: &[u8], change: &SetAttr) -> Result<()> {
    if change.uid.is_some() || change.gid.is_some() {
        let uid = change.uid.map(rfs::Uid::from_raw);
        let gid = change.gid.map(rfs::Gid::from_raw);
        rfs::chownat(rfs::CWD, path, uid, gid, AtFlags::empty()).map_err(errno)?;
    }
    if let Some(mode) = change.mode {
        rfs::chmodat(rfs::CWD, path, Mode::from_raw_mode(mode & 0o7777), AtFlags::empty())
            .map_err(errno)?;
    }
    if change.atime.is_some() || change.mtime.is_some() {
        let spec = |t: Option<SetTime>| match t {
            // Who may write may do this, but not set a time of their own.
            Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: rfs::UTIME_NOW },
            Some(SetTime::At(t)) => Timespec { tv_sec: t.sec, tv_nsec: i64::from(t.nsec) },
            None => Timespec { tv_sec: 0, tv_nsec: rfs::UTIME_OMIT },
        };
        let times =
            Timestamps { last_access: spec(change.atime), last_modification: spec(change.mtime) };
        rfs::utimensat(rfs::CWD, path, &times, AtFlags::empty()).map_err(errno)?;
    }
    Ok(())
}

/// Reads a value whose size is not known.
pub(super) fn grown(call: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> Result<Vec<u8>> {
    let mut buffer = vec![0; XATTR_FIRST_BYTES];
    loop {
        match call(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
            Err(rustix::io::Errno::RANGE) if buffer.len() < XATTR_VALUE_MAX => {
                buffer.resize(XATTR_VALUE_MAX, 0);
            }
            Err(e) => return Err(errno(e)),
        }
    }
}
