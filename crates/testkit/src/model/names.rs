//! The model's calls that change names: create, link, unlink, rename and their kin, with the
//! checks in the kernel's order.

use super::op::{Answer, Outcome, RawPath};
use super::state::{Found, Id, Inode, Last, Model, Node, Stamp, no};
use crate::procs::Cred;
use crate::sys::Sys;
use std::collections::BTreeMap;

/// Where a new name goes, and who makes it.
pub(super) struct Maker<'a> {
    pub who: &'a Cred,
    pub umask: u32,
}

impl Model {
    /// `filename_create`: the parent and name for something new.
    pub(super) fn new_place(&self, who: &Cred, path: &RawPath) -> Sys<(Id, Vec<u8>)> {
        let found = self.resolve(who, path, false)?;
        match (found.last, found.target) {
            (Last::Name(name), None) => Ok((found.parent, name)),
            _ => no(libc::EEXIST),
        }
    }

    /// `may_create`: write and search permission in the directory.
    pub(super) fn may_change(&self, who: &Cred, dir: Id) -> Sys<()> {
        if self.may(who, dir, 3) { Ok(()) } else { no(libc::EACCES) }
    }

    /// Makes an inode as a child of `dir` would be made, without a name.
    pub(super) fn new_inode(&mut self, maker: &Maker, dir: Id, node: Node, mode: u32) -> Id {
        let parent = self.get(dir);
        let is_dir = matches!(node, Node::Dir(_));
        let inherits = parent.mode & libc::S_ISGID != 0;
        let gid = if inherits { parent.gid } else { maker.who.gid };
        let mut mode = mode & 0o7777;
        if is_dir {
            mode &= 0o1777;
            if inherits {
                mode |= libc::S_ISGID;
            }
        } else if inherits
            && mode & 0o2010 == 0o2010
            && maker.who.uid != 0
            && !maker.who.in_group(parent.gid)
        {
            mode &= !libc::S_ISGID;
        }
        if matches!(node, Node::Symlink(_)) {
            mode = 0o777;
        } else {
            mode &= !maker.umask;
        }
        let id = self.next;
        self.next += 1;
        let inode = Inode {
            node,
            mode,
            uid: maker.who.uid,
            gid,
            nlink: 0,
            parent: dir,
            opens: 0,
            linkable: false,
            xattrs: BTreeMap::new(),
            mtime: Stamp::Since(self.before),
            ctime: Stamp::Since(self.before),
            atime: Some(Stamp::Since(self.before)),
        };
        self.inodes.insert(id, inode);
        self.touched.insert(id);
        id
    }

    pub(super) fn attach(&mut self, dir: Id, name: Vec<u8>, id: Id) {
        self.entries_mut(dir).insert(name, id);
        let inode = self.get_mut(id);
        inode.nlink += 1;
        if inode.is_dir() {
            inode.parent = dir;
        }
        self.changed(dir);
    }

    pub(super) fn detach(&mut self, dir: Id, name: &[u8]) {
        let id = self.entries_mut(dir).remove(name).unwrap();
        self.changed(dir);
        self.get_mut(id).nlink -= 1;
        self.attributes_changed(id);
        self.drop_if_unused(id);
    }

    /// mkdir, mknod and symlink.
    pub(super) fn make(&mut self, maker: &Maker, path: &RawPath, node: Node, mode: u32) -> Outcome {
        let (dir, name) = self.new_place(maker.who, path)?;
        self.may_change(maker.who, dir)?;
        if let Node::Special(kind, device) = node {
            let is_device = kind == libc::S_IFCHR || kind == libc::S_IFBLK;
            if maker.who.uid != 0 && is_device && (kind, device) != (libc::S_IFCHR, 0) {
                return no(libc::EPERM);
            }
        }
        let id = self.new_inode(maker, dir, node, mode);
        self.attach(dir, name, id);
        Ok(Answer::Done)
    }

    /// `may_delete`.
    fn may_delete(&self, who: &Cred, dir: Id, victim: Id, as_dir: bool) -> Sys<()> {
        self.may_change(who, dir)?;
        let (parent, inode) = (self.get(dir), self.get(victim));
        let sticky = parent.mode & libc::S_ISVTX != 0;
        if sticky && who.uid != 0 && who.uid != inode.uid && who.uid != parent.uid {
            return no(libc::EPERM);
        }
        match (as_dir, inode.is_dir()) {
            (true, false) => no(libc::ENOTDIR),
            (false, true) => no(libc::EISDIR),
            _ => Ok(()),
        }
    }

    pub(super) fn unlink(&mut self, who: &Cred, path: &RawPath) -> Outcome {
        let found = self.resolve(who, path, false)?;
        let Last::Name(name) = found.last else { return no(libc::EISDIR) };
        let Some(victim) = found.target else { return no(libc::ENOENT) };
        self.may_delete(who, found.parent, victim, false)?;
        self.detach(found.parent, &name);
        Ok(Answer::Done)
    }

    pub(super) fn rmdir(&mut self, who: &Cred, path: &RawPath) -> Outcome {
        let found = self.resolve(who, path, false)?;
        let name = match found.last {
            Last::Name(name) => name,
            Last::Dot => return no(libc::EINVAL),
            Last::DotDot => return no(libc::ENOTEMPTY),
            Last::Root => return no(libc::EBUSY),
        };
        let Some(victim) = found.target else { return no(libc::ENOENT) };
        self.may_delete(who, found.parent, victim, true)?;
        if !self.entries(victim).is_empty() {
            return no(libc::ENOTEMPTY);
        }
        self.detach(found.parent, &name);
        Ok(Answer::Done)
    }

    pub(super) fn link(&mut self, who: &Cred, from: &RawPath, to: &RawPath) -> Outcome {
        let source = self.existing(who, from, false)?;
        self.link_inode(who, source, to)
    }

    pub(super) fn link_inode(&mut self, who: &Cred, source: Id, to: &RawPath) -> Outcome {
        let (dir, name) = self.new_place(who, to)?;
        if !self.may_link(who, source) {
            return no(libc::EPERM);
        }
        self.may_change(who, dir)?;
        let inode = self.get(source);
        if inode.is_dir() {
            return no(libc::EPERM);
        }
        if inode.nlink == 0 && !inode.linkable {
            return no(libc::ENOENT);
        }
        self.get_mut(source).linkable = false;
        self.attach(dir, name, source);
        self.attributes_changed(source);
        Ok(Answer::Done)
    }

    /// `fs.protected_hardlinks`.
    fn may_link(&self, who: &Cred, source: Id) -> bool {
        let inode = self.get(source);
        let safe = matches!(inode.node, Node::File(_))
            && inode.mode & libc::S_ISUID == 0
            && inode.mode & 0o2010 != 0o2010
            && self.may(who, source, 6);
        self.protected.0 == 0 || safe || self.owner(who, source)
    }

    fn is_above(&self, above: Id, mut below: Id) -> bool {
        loop {
            if below == above {
                return true;
            }
            let parent = self.get(below).parent;
            if parent == below {
                return false;
            }
            below = parent;
        }
    }

    pub(super) fn rename(
        &mut self,
        who: &Cred,
        from: &RawPath,
        to: &RawPath,
        flags: u32,
    ) -> Outcome {
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        let no_replace = flags & libc::RENAME_NOREPLACE != 0;
        let whiteout = flags & libc::RENAME_WHITEOUT != 0;
        if exchange && (no_replace || whiteout) {
            return no(libc::EINVAL);
        }
        // Both parents are looked up first, then the two last names.
        let old = self.parent_of(who, from)?;
        let new = self.parent_of(who, to)?;
        let Last::Name(old_name) = old.last else { return no(libc::EBUSY) };
        let Last::Name(new_name) = new.last else {
            return no(if no_replace { libc::EEXIST } else { libc::EBUSY });
        };
        let source = self.look_up(old.parent, &old_name)?;
        let target = self.look_up(new.parent, &new_name)?;
        let Some(source) = source else { return no(libc::ENOENT) };
        match target {
            Some(_) if no_replace => return no(libc::EEXIST),
            None if exchange => return no(libc::ENOENT),
            _ => {}
        }
        if self.get(source).is_dir() && self.is_above(source, new.parent) {
            return no(libc::EINVAL);
        }
        if let Some(target) = target {
            if self.get(target).is_dir() && self.is_above(target, old.parent) {
                return no(if exchange { libc::EINVAL } else { libc::ENOTEMPTY });
            }
        }
        if target == Some(source) {
            return Ok(Answer::Done);
        }
        let moved = (old.parent, old_name, source);
        self.may_rename(who, &moved, (new.parent, target), exchange)?;
        let (old_parent, old_name) = (moved.0, moved.1.clone());
        self.do_rename(moved, (new.parent, new_name, target), exchange)?;
        if whiteout {
            let maker = Maker { who, umask: 0 };
            let id = self.new_inode(&maker, old_parent, Node::Special(libc::S_IFCHR, 0), 0);
            self.attach(old_parent, old_name, id);
        }
        Ok(Answer::Done)
    }

    fn may_rename(
        &self,
        who: &Cred,
        (old_dir, _, source): &(Id, Vec<u8>, Id),
        (new_dir, target): (Id, Option<Id>),
        exchange: bool,
    ) -> Sys<()> {
        let is_dir = self.get(*source).is_dir();
        self.may_delete(who, *old_dir, *source, is_dir)?;
        match target {
            None => self.may_change(who, new_dir)?,
            Some(target) => {
                let as_dir = if exchange { self.get(target).is_dir() } else { is_dir };
                self.may_delete(who, new_dir, target, as_dir)?;
            }
        }
        // A directory that changes its parent has its `..` rewritten.
        if *old_dir != new_dir {
            if is_dir && !self.may(who, *source, 2) {
                return no(libc::EACCES);
            }
            if let (true, Some(target)) = (exchange, target) {
                if self.get(target).is_dir() && !self.may(who, target, 2) {
                    return no(libc::EACCES);
                }
            }
        }
        Ok(())
    }

    fn do_rename(
        &mut self,
        (old_dir, old_name, source): (Id, Vec<u8>, Id),
        (new_dir, new_name, target): (Id, Vec<u8>, Option<Id>),
        exchange: bool,
    ) -> Outcome {
        if let Some(target) = target {
            if exchange {
                self.entries_mut(old_dir).insert(old_name, target);
                self.entries_mut(new_dir).insert(new_name, source);
                self.get_mut(source).parent = new_dir;
                self.get_mut(target).parent = old_dir;
                self.attributes_changed(target);
                self.attributes_changed(source);
                self.changed(old_dir);
                self.changed(new_dir);
                return Ok(Answer::Done);
            }
            if self.get(target).is_dir() && !self.entries(target).is_empty() {
                return no(libc::ENOTEMPTY);
            }
            self.detach(new_dir, &new_name);
        }
        self.entries_mut(old_dir).remove(&old_name);
        self.changed(old_dir);
        self.get_mut(source).nlink -= 1;
        self.attach(new_dir, new_name, source);
        self.attributes_changed(source);
        Ok(Answer::Done)
    }

    /// The parent directory of a path, with search permission on all above but not on itself.
    fn parent_of(&self, who: &Cred, path: &RawPath) -> Sys<Found> {
        let end = path.0.iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
        let (above, name) = path.0.split_at(end);
        let last = match name {
            b"" => return Ok(Found { parent: super::state::ROOT, last: Last::Root, target: None }),
            b"." => Last::Dot,
            b".." => Last::DotDot,
            name => Last::Name(name.to_vec()),
        };
        // Resolving `dir/.` asks for search permission on `dir`, as resolving `dir/name` does.
        let mut above = above.to_vec();
        above.push(b'.');
        let parent = self.existing(who, &RawPath(above), true)?;
        Ok(Found { parent, last, target: None })
    }

    fn look_up(&self, dir: Id, name: &[u8]) -> Sys<Option<Id>> {
        if name.len() > 255 {
            return no(libc::ENAMETOOLONG);
        }
        Ok(self.entries(dir).get(name).copied())
    }
}
