//! Names: always the PFS's. Each call goes through to it at once, as the requester.
//!
//! Invariant: a directory is used only if it is the one that the kernel means (its key), so a
//! directory that somebody exchanged on the PFS is ESTALE, never another one's content.

mod elsewhere;
mod links;
mod listing;

use super::attrs::Attributes;
use super::data_servers::LinkChange;
use super::data_servers::Ownership;
use super::drain::DrainList;
use super::drain::dirty::DirtyFiles;
use super::file::CacheFile;
use super::flash::Flash;
use super::intents::Intents;
use super::moves::Moves;
use super::nodes::Nodes;
use super::own_change::OwnChanges;
use super::own_change::lock_metas;
use super::parts::Parts;
use super::pfs::{HELD_PREFIX, PfsDir, PfsStat, errno};
use super::pfs_inodes::PfsInodes;
use super::pfs_leftovers::PfsLeftovers;
use super::publishing::Publishing;
use super::record_store::RecordStore;
use super::stack::Stack;
use super::status::Status;
use forebay_credentials::acting::Who;
use forebay_proto::api::{CreateArgs, rename_flags};
use forebay_proto::attr::FileKind;
use forebay_proto::{Caller, Entry, Errno, Ino, Result, acl};
use rustix::fs::{self as rfs, AtFlags, Mode, OFlags, RenameFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Start of the names of files that a drain makes beside a file. They are not shown.
pub(crate) const DRAIN_PREFIX: &[u8] = b".forebay-drain.";
/// How often, and after which pauses, a directory that has nothing but such files, or files that NFS keeps for who holds
/// them, is tried to be removed again. The first pause is short: a close may be under way.
const RMDIR_TRIES: u32 = 25;
const RMDIR_PAUSE_FIRST: Duration = Duration::from_millis(1);
const RMDIR_PAUSE: Duration = Duration::from_millis(50);

pub(super) fn check_name(name: &[u8]) -> Result<()> {
    match name {
        _ if name.len() > forebay_proto::api::NAME_MAX => Err(Errno::ENAMETOOLONG),
        b"" => Err(Errno::ENOENT),
        _ if name.iter().any(|&b| b == b'/' || b == 0) => Err(Errno::EINVAL),
        _ if name.starts_with(DRAIN_PREFIX) => Err(Errno::EPERM),
        _ => Ok(()),
    }
}

/// Names: looked up, made and removed.
pub(crate) struct Names {
    flash: Arc<Flash>,
    pfs: Arc<PfsDir>,
    nodes: Arc<Nodes>,
    drain_list: Arc<DrainList>,
    moves: Arc<Moves>,
    publishing: Arc<Publishing>,
    ownership: Arc<Ownership>,
    inodes: Arc<PfsInodes>,
    records: Arc<RecordStore>,
    dirty: Arc<DirtyFiles>,
    own_changes: Arc<OwnChanges>,
    intents: Arc<Intents>,
    leftovers: Arc<PfsLeftovers>,
    status: Arc<Status>,
    attributes: Arc<Attributes>,
}

impl Names {
    pub fn new(
        parts: &Parts,
        stack: &Stack,
        status: &Arc<Status>,
        attributes: &Arc<Attributes>,
    ) -> Names {
        Names {
            flash: parts.flash.clone(),
            pfs: parts.pfs.clone(),
            nodes: parts.nodes.clone(),
            drain_list: parts.drain_list.clone(),
            moves: parts.moves.clone(),
            publishing: parts.publishing.clone(),
            ownership: stack.ownership.clone(),
            inodes: stack.inodes.clone(),
            records: stack.records.clone(),
            dirty: stack.dirty.clone(),
            own_changes: stack.own_changes.clone(),
            intents: stack.intents.clone(),
            leftovers: stack.leftovers.clone(),
            status: status.clone(),
            attributes: attributes.clone(),
        }
    }
}

impl Names {
    /// lookup.
    pub(crate) fn lookup_name(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Entry> {
        let who = Who::of(caller);
        if name == b"." || name == b".." {
            return self.lookup_dots(parent, name);
        }
        if name.starts_with(DRAIN_PREFIX) {
            return Err(Errno::ENOENT);
        }
        let dir = self.inodes.open_parent(&who, parent, name)?;
        let _settled = self.inodes.settled(parent);
        let stat = {
            let _act = who.act()?;
            self.pfs.stat_at(dir.as_fd(), name)?
        };
        self.entry(parent, name, &stat, &who)
    }

    fn lookup_dots(&self, ino: Ino, name: &[u8]) -> Result<Entry> {
        let above = self.nodes.names(ino).last().map_or(Ino::ROOT, |(parent, _)| *parent);
        let target = if name == b"." { ino } else { above };
        let attr = self.attributes.getattr_of(target)?;
        if let Some((parent, name)) = self.nodes.names(target).last() {
            let known = self.nodes.get(target)?;
            self.nodes.seen(*parent, name, known.key, known.kind, &known.who, 1);
        }
        Ok(Entry { attr })
    }

    /// A name that leads to this: referenced once more.
    pub(crate) fn entry(
        &self,
        parent: Ino,
        name: &[u8],
        stat: &PfsStat,
        who: &Who,
    ) -> Result<Entry> {
        let ino = self.nodes.seen(parent, name, stat.key, stat.kind(), who, 1);
        if self.ownership.is_elsewhere(ino, stat.kind()) {
            // Its data server has the attributes.
            return Ok(Entry { attr: stat.attr(ino) });
        }
        let file = self.nodes.get(ino)?.file;
        let file = match (file, stat.kind()) {
            (None, FileKind::File) => self.records.dirty_by_key(ino, stat.key)?,
            (file, _) => file,
        };
        if let Some(file) = &file {
            self.leftovers.found_again(file, (parent, name))?;
        }
        Ok(Entry { attr: self.attributes.attr_of(ino, stat, file.as_ref())? })
    }

    /// mkdir, mknod, symlink: whatever `make` makes in the open directory.
    pub(crate) fn make_name(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        make: impl FnOnce(BorrowedFd<'_>) -> rustix::io::Result<()>,
    ) -> Result<Entry> {
        let who = Who::of(caller);
        let dir = self.inodes.open_parent(&who, parent, name)?;
        let stat = {
            let _act = who.act()?;
            make(dir.as_fd()).map_err(errno)?;
            give_group(&who, dir.as_fd(), name);
            self.pfs.stat_at(dir.as_fd(), name)?
        };
        self.entry(parent, name, &stat, &who)
    }

    /// mkdir.
    pub(crate) fn make_dir(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        args: CreateArgs,
    ) -> Result<Entry> {
        self.make_name(caller, parent, name, |dir| {
            rfs::mkdirat(dir, name, Mode::from_raw_mode(masked(dir, args)))
        })
    }

    /// mknod.
    pub(crate) fn make_node(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        args: CreateArgs,
        rdev: u32,
    ) -> Result<Entry> {
        // As the kernel's new_decode_dev.
        let (major, minor) = ((rdev & 0xfff00) >> 8, (rdev & 0xff) | ((rdev >> 12) & 0xfff00));
        self.make_name(caller, parent, name, |dir| {
            let kind = rfs::FileType::from_raw_mode(kind.mode_bits());
            let mode = Mode::from_raw_mode(masked(dir, args));
            rfs::mknodat(dir, name, kind, mode, rfs::makedev(major, minor))
        })
    }

    /// unlink.
    pub(crate) fn remove_name(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        let who = Who::of(caller);
        let dir = self.inodes.open_parent(&who, parent, name)?;
        let leaving = self.leaving(&who, dir.as_fd(), (parent, name), true, caller)?;
        let remove = || {
            let _act = who.act()?;
            rfs::unlinkat(&dir, name, AtFlags::empty()).map_err(errno)
        };
        let intent =
            leaving.last.then(|| self.intents.intent_to_remove(leaving.file.as_ref())).flatten();
        forebay_failpoint::step("a name is about to be removed");
        let left = {
            let _changing = self.ownership.changing_names();
            self.intents.with_intent(intent, || {
                let _meta = leaving.file.as_ref().map(|file| file.meta.lock());
                self.with_leaving(&leaving, dir.as_fd(), (parent, name), &who, remove)
            })?
        };
        left.into_iter().for_each(|left| self.ownership.tell_left(left));
        Ok(())
    }

    /// What a name that moves or `goes` leads to, and its data here. What goes has a number from here on,
    /// and its PFS inode is held: who looked the name up a moment before may open it a moment later.
    /// Its data server has heard that it may lose a name.
    fn leaving(
        &self,
        who: &Who,
        dir: BorrowedFd<'_>,
        at: At<'_>,
        goes: bool,
        caller: &Caller,
    ) -> Result<Leaving<'_>> {
        let leaving = self.leaving_here(who, dir, at, goes)?;
        if let (true, Some(node)) = (leaving.is_elsewhere(), &leaving.node) {
            self.ownership.tell_leaving(node.ino);
        }
        Ok(Leaving { client: caller.request.client, ..leaving })
    }

    fn leaving_here(
        &self,
        who: &Who,
        dir: BorrowedFd<'_>,
        (parent, name): At<'_>,
        goes: bool,
    ) -> Result<Leaving<'_>> {
        let _settled = self.publishing.look();
        let _act = who.act()?;
        let stat = self.pfs.stat_at(dir, name)?;
        let known = goes || self.nodes.number(stat.key).is_some();
        // It may be known by other names only, which lead nowhere any more.
        let ino = known.then(|| self.nodes.seen(parent, name, stat.key, stat.kind(), who, 1));
        let node = ino.map(|ino| Reference { nodes: &self.nodes, ino });
        let elsewhere = ino.is_some_and(|ino| self.ownership.is_elsewhere(ino, stat.kind()));
        let inode = match elsewhere {
            true => {
                let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                rfs::openat(dir, name, flags, Mode::empty()).ok()
            }
            false => None,
        };
        drop(_act);
        let file = match stat.kind() {
            _ if elsewhere => None,
            FileKind::File => match ino.and_then(|ino| self.nodes.get(ino).ok()?.file) {
                Some(file) if !file.is_forgotten() => Some(file),
                _ => self.records.find(stat.key)?,
            },
            _ => None,
        };
        // A name of ours counts for nobody.
        let ours = file.as_ref().is_some_and(|file| file.state.lock().record.kept_as.is_some());
        let last = stat.kind() == FileKind::Dir || stat.nlink <= 1 + u32::from(ours);
        let mut held = None;
        // Held, NFS would rename it: there only what somebody has open is held, at the last moment.
        let is_held_later = stat.kind() != FileKind::Dir && self.pfs.renames_what_is_held();
        if goes && last && !elsewhere && !is_held_later {
            let _act = who.act()?;
            let flags = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
            let open = |flags| rfs::openat(dir, name, flags, Mode::empty());
            let readable = match stat.kind() {
                FileKind::File => open(flags | OFlags::RDONLY).ok(),
                _ => None,
            };
            held = readable.or_else(|| open(flags | OFlags::PATH).ok());
        }
        Ok(Leaving { stat, node, held, file, last, elsewhere, inode, client: 0 })
    }

    /// Removes a name, and what is here of a file that has lost its last one. With its `meta` locked.
    /// If its data server is another server: what that one is to hear.
    fn with_leaving(
        &self,
        leaving: &Leaving<'_>,
        dir: BorrowedFd<'_>,
        (parent, name): At<'_>,
        who: &Who,
        remove: impl FnOnce() -> Result<()>,
    ) -> Result<Option<LinkChange>> {
        if leaving.is_elsewhere() {
            return self.with_leaving_elsewhere(leaving, (parent, name), remove).map(Some);
        }
        let ino = leaving.node.as_ref().map(|node| node.ino);
        match (&leaving.file, ino) {
            (Some(file), _) if leaving.last => {
                self.held_meanwhile(leaving, who, remove)?;
                forebay_failpoint::step("a dirty file has lost its name on the PFS");
                self.leftovers.lose(file)?;
            }
            (Some(file), Some(ino)) => {
                // Its other names may be known to nobody here: what is dirty goes by the inode.
                let inode = self.inodes.open_node(ino, who).ok();
                let path = self.inodes.path_below((parent, name))?;
                self.own_changes.own_change_locked(file, ino, who, || {
                    self.leftovers.keep_reachable(file, ino, dir, &path, who)?;
                    remove()
                })?;
                *file.inode.lock() = inode.map(Arc::new).filter(|_| file.is_dirty());
            }
            _ => self.held_meanwhile(leaving, who, remove)?,
        }
        if let Some(ino) = ino {
            self.nodes.unname(ino, parent, name);
            if leaving.last {
                self.nodes.is_removed(ino);
            }
        }
        Ok(None)
    }

    /// Removes a last name. The PFS inode is held before, so that nobody who knows the number finds
    /// neither name nor inode. With the file's `meta` locked, if it has data here.
    fn held_meanwhile(
        &self,
        leaving: &Leaving<'_>,
        who: &Who,
        remove: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let Some(node) = &leaving.node else { return remove() };
        let Some(held) = self.to_hold(leaving, node.ino, who)? else { return remove() };
        self.nodes.hold(node.ino, Some(held));
        remove().inspect_err(|_| self.nodes.hold(node.ino, None))
    }

    /// The PFS inode of what is about to lose its last name. `None`: nobody is to come to it by its number.
    fn to_hold(&self, leaving: &Leaving<'_>, ino: Ino, who: &Who) -> Result<Option<OwnedFd>> {
        let file = leaving.file.as_ref();
        let Some(held) = &leaving.held else {
            let is_open = self.pfs.renames_what_is_held() && file.is_some_and(|f| f.is_in_use());
            return Ok(is_open.then(|| self.inodes.open_node(ino, who).ok()).flatten());
        };
        // A drain has put another inode there since it was looked at.
        match file.is_some_and(|f| f.state.lock().record.key != leaving.stat.key) {
            true => self.inodes.open_node(ino, who).map(Some),
            false => Ok(Some(held.try_clone()?)),
        }
    }

    /// rmdir.
    pub(crate) fn remove_dir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        let who = Who::of(caller);
        let dir = self.inodes.open_parent(&who, parent, name)?;
        let leaving = self.leaving(&who, dir.as_fd(), (parent, name), true, caller)?;
        let remove = || {
            let mut tries = 0;
            loop {
                let removed = {
                    let _act = who.act()?;
                    rfs::unlinkat(&dir, name, AtFlags::REMOVEDIR).map_err(errno)
                };
                match removed {
                    Err(Errno::ENOTEMPTY)
                        if tries < RMDIR_TRIES && self.only_ours(dir.as_fd(), name) =>
                    {
                        // A drain is just giving up a file that was removed, or has to come first; or a close of one
                        // is under way.
                        let path = self.inodes.path_below((parent, name))?;
                        self.drain_list.ask(&self.status.listed_below(&path)?);
                        std::thread::sleep(RMDIR_PAUSE.min(RMDIR_PAUSE_FIRST * (1 << tries)));
                        tries += 1;
                    }
                    done => break done,
                }
            }
        };
        self.with_leaving(&leaving, dir.as_fd(), (parent, name), &who, remove).map(drop)
    }

    /// True if a directory has nothing but files of drains, and what NFS keeps for who holds it.
    fn only_ours(&self, dir: BorrowedFd<'_>, name: &[u8]) -> bool {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(fd) = rfs::openat(dir, name, flags, Mode::empty()) else { return false };
        let Ok(entries) = rfs::Dir::read_from(&fd) else { return false };
        let is_as_nfs = self.pfs.renames_what_is_held();
        entries.flatten().all(|entry| {
            let name = entry.file_name().to_bytes();
            let is_held = is_as_nfs && name.starts_with(HELD_PREFIX);
            name == b"." || name == b".." || name.starts_with(DRAIN_PREFIX) || is_held
        })
    }

    /// rename.
    pub(crate) fn rename_name(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: u32,
    ) -> Result<()> {
        rename_flags::check(flags)?;
        let who = Who::of(caller);
        let from_dir = self.inodes.open_parent(&who, from.0, from.1)?;
        let to_dir = self.inodes.open_parent(&who, to.0, to.1)?;
        let moved = self.leaving(&who, from_dir.as_fd(), from, false, caller)?;
        let exchange = flags & rename_flags::EXCHANGE != 0;
        let replaced = match self.leaving(&who, to_dir.as_fd(), to, !exchange, caller) {
            Ok(replaced) => Some(replaced),
            Err(Errno::ENOENT) => None,
            Err(e) => return Err(e),
        };
        let rename = || {
            let _act = who.act()?;
            let flags = RenameFlags::from_bits_retain(flags);
            match flags.is_empty() {
                true => rfs::renameat(&from_dir, from.1, &to_dir, to.1),
                false => rfs::renameat_with(&from_dir, from.1, &to_dir, to.1, flags),
            }
            .map_err(errno)
        };
        let same = replaced.as_ref().is_some_and(|r| r.stat.key == moved.stat.key);
        if same {
            // Two names of one file: POSIX does nothing.
            return rename();
        }
        let (old_path, new_path) = (self.inodes.path_below(from)?, self.inodes.path_below(to)?);
        let gone = replaced.as_ref().filter(|r| !exchange && r.last);
        let gone = gone.and_then(|r| r.file.as_ref());
        let intent = self.intents.intent_to_move(&old_path, &new_path, gone, exchange);
        let changing = self.ownership.changing_names();
        let heard = self.intents.with_intent(intent, || {
            let files = [Some(&moved), replaced.as_ref()].map(|l| l.and_then(|l| l.file.clone()));
            let _metas = lock_metas(&files);
            self.do_rename((from, to, to_dir.as_fd()), exchange, moved, replaced, &who, rename)
        })?;
        drop(changing);
        heard.into_iter().for_each(|left| self.ownership.tell_left(left));
        Ok(())
    }

    /// A rename that is decided: on the PFS, in the table of nodes and on record.
    fn do_rename(
        &self,
        (from, to, to_dir): (At<'_>, At<'_>, BorrowedFd<'_>),
        exchange: bool,
        moved: Leaving<'_>,
        replaced: Option<Leaving<'_>>,
        who: &Who,
        rename: impl FnOnce() -> Result<()>,
    ) -> Result<Vec<LinkChange>> {
        let moved_ino = moved.node.as_ref().map(|node| node.ino);
        let displaced = replaced.as_ref().and_then(|r| Some(r.node.as_ref()?.ino));
        if let Some(ino) = moved_ino {
            // A kill may come between the PFS and the table.
            self.nodes.moving(ino, to.0, to.1);
        }
        if let (true, Some(ino)) = (exchange, displaced) {
            self.nodes.moving(ino, from.0, from.1);
        }
        let moving = || match (&moved.file, moved_ino) {
            (Some(file), Some(ino)) => self.own_changes.own_change_locked(file, ino, who, rename),
            _ => rename(),
        };
        let left = match &replaced {
            Some(replaced) if !exchange => self.with_leaving(replaced, to_dir, to, who, moving)?,
            Some(Leaving { file: Some(file), node: Some(node), .. }) => {
                self.own_changes.own_change_locked(file, node.ino, who, moving)?;
                None
            }
            _ => {
                moving()?;
                None
            }
        };
        forebay_failpoint::step("a name is moved on the PFS");
        if let Some(ino) = moved_ino {
            self.nodes.name(ino, to.0, to.1);
            self.nodes.unname(ino, from.0, from.1);
        }
        if let (true, Some(ino)) = (exchange, displaced) {
            self.nodes.name(ino, from.0, from.1);
            self.nodes.unname(ino, to.0, to.1);
        }
        let exchanged = replaced.as_ref().filter(|_| exchange);
        let elsewhere = [Some(&moved), exchanged].into_iter().flatten();
        let heard = elsewhere.filter_map(|leaving| self.moved_elsewhere(leaving)).chain(left);
        let heard = heard.collect();
        self.intents
            .paths_moved(moved.stat.kind() == FileKind::Dir || exchange, moved.file.as_ref())?;
        Ok(heard)
    }
}

/// The mode of a new inode: the umask counts where the directory has no default ACL.
pub(super) fn masked(dir: BorrowedFd<'_>, args: CreateArgs) -> u32 {
    let path = super::pfs::proc_path(dir, b"");
    let has_default = rfs::getxattr(&path[..], acl_name(), &mut [0u8; 0][..]).is_ok();
    let umask = if has_default { 0 } else { args.umask };
    args.mode & 0o7777 & !umask
}

/// A name in a directory.
pub(super) type At<'a> = (Ino, &'a [u8]);

/// A name that is going.
pub(super) struct Leaving<'a> {
    pub stat: PfsStat,
    pub node: Option<Reference<'a>>,
    held: Option<OwnedFd>,
    file: Option<Arc<CacheFile>>,
    /// The file goes with it.
    pub last: bool,
    /// Another server is its data server.
    elsewhere: bool,
    /// Then, its PFS inode to look at.
    pub inode: Option<OwnedFd>,
    /// Who does it.
    pub client: u64,
}

impl Leaving<'_> {
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.elsewhere
    }
}

/// A reference to a node for as long as it lives.
pub(super) struct Reference<'a> {
    nodes: &'a Nodes,
    pub ino: Ino,
}

impl Drop for Reference<'_> {
    fn drop(&mut self) {
        drop(self.nodes.forget(self.ino, 1));
    }
}

/// Gives what was just made the group of who asked, where the server could not make it so. A
/// setgid directory has given it its own group, which stays.
pub(super) fn give_group(who: &Who, dir: BorrowedFd<'_>, name: &[u8]) {
    let Some(gid) = who.group_to_give() else { return };
    let inherits = rfs::fstat(dir).is_ok_and(|stat| stat.st_mode & libc::S_ISGID != 0);
    if inherits {
        return;
    }
    let gid = Some(rfs::Gid::from_raw(gid));
    // Refused where the server's user is not in that group: then it has the server's.
    if let Err(error) = rfs::chownat(dir, name, None, gid, AtFlags::SYMLINK_NOFOLLOW) {
        tracing::debug!(%error, "what was made keeps the server's group");
    }
}

/// The same for a file that was made without a name.
pub(super) fn give_group_of(who: &Who, dir: BorrowedFd<'_>, made: BorrowedFd<'_>) {
    let Some(gid) = who.group_to_give() else { return };
    let inherits = rfs::fstat(dir).is_ok_and(|stat| stat.st_mode & libc::S_ISGID != 0);
    if inherits {
        return;
    }
    if let Err(error) = rfs::fchown(made, None, Some(rfs::Gid::from_raw(gid))) {
        tracing::debug!(%error, "what was made keeps the server's group");
    }
}

fn acl_name() -> &'static str {
    std::str::from_utf8(acl::DEFAULT).unwrap_or_default()
}
