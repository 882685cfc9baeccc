//! The model's calls on attributes: chmod, chown, times, xattrs, and the dispatch of every
//! operation.

use super::names::Maker;
use super::op::{Answer, Fill, Op, Outcome, RawPath, Step, Time};
use super::state::{Id, Model, Node, Stamp, no};
use crate::procs::Cred;
use crate::sys::Sys;
use std::collections::BTreeMap;

impl Model {
    /// Does one operation. `real` is what the real file system answered: only SEEK_DATA and
    /// SEEK_HOLE, which may legally answer in more than one way, are judged by it. `Err` says
    /// what was wrong with them; otherwise what must have been answered.
    pub fn apply(&mut self, step: &Step, real: &Outcome) -> Result<Outcome, String> {
        self.touched.clear();
        let maker = Maker { who: &step.who, umask: step.umask };
        let who = &step.who;
        Ok(match &step.op {
            Op::Extents { slot } => {
                self.extents(*slot, real)?;
                real.clone()
            }
            Op::Open { slot, path, flags, mode } => self.open(&maker, *slot, path, *flags, *mode),
            Op::Close { slot } => self.close(*slot),
            Op::Pread { slot, at, length } => self.pread(*slot, Some(*at), *length),
            Op::Read { slot, length } => self.pread(*slot, None, *length),
            Op::Pwrite { slot, at, fill } => self.write(who, *slot, Some(*at), *fill),
            Op::Write { slot, fill } => self.write(who, *slot, None, *fill),
            Op::Ftruncate { slot, size } => self.ftruncate(who, *slot, *size),
            Op::Fallocate { slot, mode, at, length } => {
                self.fallocate(who, *slot, *mode, *at, *length)
            }
            Op::Fsync { slot } => match &self.slots[*slot] {
                Some(_) => Ok(Answer::Done),
                None => no(libc::EBADF),
            },
            Op::Copy { from, at, to, to_at, length } => {
                self.copy(who, (*from, *at), (*to, *to_at), *length)
            }
            Op::MapWrite { slot, at, fill } => self.map_write(*slot, *at, *fill),
            Op::LinkFd { slot, path } => match &self.slots[*slot] {
                Some(open) => self.link_inode(who, open.id, path),
                None => no(libc::EBADF),
            },
            Op::Mkdir { path, mode } => self.make(&maker, path, Node::Dir(BTreeMap::new()), *mode),
            Op::Mknod { path, mode, device } => {
                let node = Node::Special(mode & libc::S_IFMT, *device);
                self.make(&maker, path, node, *mode)
            }
            Op::Symlink { target, path } => {
                self.make(&maker, path, Node::Symlink(target.0.clone()), 0o777)
            }
            Op::Rmdir { path } => self.rmdir(who, path),
            Op::Unlink { path } => self.unlink(who, path),
            Op::Link { from, to } => self.link(who, from, to),
            Op::Rename { from, to, flags } => self.rename(who, from, to, *flags),
            _ => self.apply_attributes(step),
        })
    }

    fn apply_attributes(&mut self, step: &Step) -> Outcome {
        let who = &step.who;
        match &step.op {
            Op::Readlink { path } => {
                let id = self.existing(who, path, false)?;
                match &self.get(id).node {
                    Node::Symlink(target) => Ok(Answer::Bytes(target.clone())),
                    _ => no(libc::EINVAL),
                }
            }
            Op::Truncate { path, size } => {
                let id = self.existing(who, path, true)?;
                match self.get(id).node {
                    Node::Dir(_) => return no(libc::EISDIR),
                    Node::File(_) => {}
                    _ => return no(libc::EINVAL),
                }
                if !self.may(who, id, 2) {
                    return no(libc::EACCES);
                }
                self.set_size(who, id, *size)
            }
            Op::Chmod { path, mode } => {
                let id = self.existing(who, path, true)?;
                self.chmod(who, id, *mode)
            }
            Op::Fchmod { slot, mode } => match &self.slots[*slot] {
                Some(open) => self.chmod(who, open.id, *mode),
                None => no(libc::EBADF),
            },
            Op::Chown { path, uid, gid, follow } => {
                let id = self.existing(who, path, *follow)?;
                self.chown(who, id, *uid, *gid)
            }
            // The kernel does not even look for the file when both times are to be left.
            Op::Utimens { atime: (_, libc::UTIME_OMIT), mtime: (_, libc::UTIME_OMIT), .. } => {
                Ok(Answer::Done)
            }
            Op::Utimens { path, atime, mtime, follow } => {
                let id = self.existing(who, path, *follow)?;
                self.utimens(who, id, *atime, *mtime)
            }
            Op::SetXattr { path, name, value, flags } => {
                self.set_xattr(who, path, name, *value, *flags)
            }
            Op::GetXattr { path, name } => self.get_xattr(who, path, name),
            Op::RemoveXattr { path, name } => {
                let id = self.existing(who, path, false)?;
                self.xattr_permission(who, id, 2)?;
                if self.get_mut(id).xattrs.remove(*name).is_none() {
                    return no(libc::ENODATA);
                }
                self.attributes_changed(id);
                Ok(Answer::Done)
            }
            Op::ListXattr { path } => {
                let id = self.existing(who, path, false)?;
                Ok(Answer::Xattrs(self.get(id).xattrs.keys().cloned().collect()))
            }
            Op::Lstat { path } => {
                let id = self.existing(who, path, false)?;
                self.touched.insert(id);
                Ok(Answer::Done)
            }
            Op::List { path } => self.list(who, path),
            other => panic!("{other:?} is not about attributes"),
        }
    }

    fn list(&mut self, who: &Cred, path: &RawPath) -> Outcome {
        let id = self.existing(who, path, true)?;
        if !self.get(id).is_dir() {
            return no(libc::ENOTDIR);
        }
        if !self.may(who, id, 4) {
            return no(libc::EACCES);
        }
        self.get_mut(id).atime = None;
        let kind = |child: &Id| (self.get(*child).type_bits() >> 12) as u8;
        let names = self.entries(id).iter().map(|(name, child)| (name.clone(), kind(child)));
        Ok(Answer::Names(names.collect()))
    }

    fn chmod(&mut self, who: &Cred, id: Id, mode: u32) -> Outcome {
        if !self.owner(who, id) {
            return no(libc::EPERM);
        }
        let inode = self.get_mut(id);
        inode.mode = mode & 0o7777;
        if who.uid != 0 && !who.in_group(inode.gid) {
            inode.mode &= !libc::S_ISGID;
        }
        self.attributes_changed(id);
        Ok(Answer::Done)
    }

    fn chown(&mut self, who: &Cred, id: Id, uid: u32, gid: u32) -> Outcome {
        let inode = self.get(id);
        let keep = u32::MAX;
        if who.uid != 0 {
            let mine = who.uid == inode.uid;
            let uid_ok = uid == keep || (mine && uid == inode.uid);
            let gid_ok = gid == keep || (mine && (who.in_group(gid) || gid == inode.gid));
            if !uid_ok || !gid_ok {
                return no(libc::EPERM);
            }
            // Taking suid and sgid off is a change of mode, for the owner alone.
            let kills = !inode.is_dir()
                && (inode.mode & libc::S_ISUID != 0 || inode.mode & 0o2010 == 0o2010);
            if kills && !mine {
                return no(libc::EPERM);
            }
        }
        let inode = self.get_mut(id);
        if !inode.is_dir() {
            inode.mode &= !libc::S_ISUID;
            if inode.mode & 0o010 != 0 {
                inode.mode &= !libc::S_ISGID;
            }
        }
        if uid != keep {
            inode.uid = uid;
        }
        if gid != keep {
            inode.gid = gid;
        }
        self.attributes_changed(id);
        Ok(Answer::Done)
    }

    fn utimens(&mut self, who: &Cred, id: Id, atime: Time, mtime: Time) -> Outcome {
        let both_now = atime.1 == libc::UTIME_NOW && mtime.1 == libc::UTIME_NOW;
        if !self.owner(who, id) {
            if !both_now {
                return no(libc::EPERM);
            }
            if !self.may(who, id, 2) {
                return no(libc::EACCES);
            }
        }
        let before = self.before;
        let wanted = |time: Time| match time.1 {
            libc::UTIME_OMIT => None,
            libc::UTIME_NOW => Some(Stamp::Since(before)),
            _ => Some(Stamp::Exactly(time)),
        };
        let inode = self.get_mut(id);
        inode.mtime = wanted(mtime).unwrap_or(inode.mtime);
        inode.atime = wanted(atime).or(inode.atime);
        self.attributes_changed(id);
        Ok(Answer::Done)
    }

    /// `xattr_permission` for `user.*`.
    fn xattr_permission(&self, who: &Cred, id: Id, mask: u32) -> Sys<()> {
        let inode = self.get(id);
        if !matches!(inode.node, Node::File(_) | Node::Dir(_)) {
            return no(if mask == 2 { libc::EPERM } else { libc::ENODATA });
        }
        let sticky = inode.is_dir() && inode.mode & libc::S_ISVTX != 0;
        if sticky && mask == 2 && !self.owner(who, id) {
            return no(libc::EPERM);
        }
        if self.may(who, id, mask) { Ok(()) } else { no(libc::EACCES) }
    }

    fn get_xattr(&self, who: &Cred, path: &RawPath, name: &str) -> Outcome {
        let id = self.existing(who, path, false)?;
        self.xattr_permission(who, id, 4)?;
        match self.get(id).xattrs.get(name) {
            Some(value) => Ok(Answer::Bytes(value.clone())),
            None => no(libc::ENODATA),
        }
    }

    fn set_xattr(
        &mut self,
        who: &Cred,
        path: &RawPath,
        name: &str,
        value: Fill,
        flags: i32,
    ) -> Outcome {
        let id = self.existing(who, path, false)?;
        self.xattr_permission(who, id, 2)?;
        let exists = self.get(id).xattrs.contains_key(name);
        if exists && flags & libc::XATTR_CREATE != 0 {
            return no(libc::EEXIST);
        }
        if !exists && flags & libc::XATTR_REPLACE != 0 {
            return no(libc::ENODATA);
        }
        self.get_mut(id).xattrs.insert(name.to_string(), value.bytes());
        self.attributes_changed(id);
        Ok(Answer::Done)
    }
}
