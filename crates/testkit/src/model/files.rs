//! The model's calls on open files: open and close, reads and writes, space, copies, mappings.

use super::data::Data;
use super::names::Maker;
use super::op::{Answer, Fill, Outcome, RawPath};
use super::state::{Id, Last, Model, Node, Slot, Stamp, no};
use crate::procs::Cred;
use crate::sys::Sys;

impl Model {
    pub(super) fn open(
        &mut self,
        maker: &Maker,
        slot: usize,
        path: &RawPath,
        flags: i32,
        mode: u32,
    ) -> Outcome {
        let id = if flags & libc::O_TMPFILE == libc::O_TMPFILE {
            let dir = self.existing(maker.who, path, true)?;
            if !self.get(dir).is_dir() {
                return no(libc::ENOTDIR);
            }
            self.may_change(maker.who, dir)?;
            let id = self.new_inode(maker, dir, Node::File(Data::default()), mode);
            self.get_mut(id).linkable = flags & libc::O_EXCL == 0;
            id
        } else {
            self.open_name(maker, path, flags, mode)?
        };
        if let Some(old) = self.slots[slot].replace(Slot { id, flags, offset: 0 }) {
            self.get_mut(old.id).opens -= 1;
            self.get_mut(id).opens += 1;
            self.drop_if_unused(old.id);
        } else {
            self.get_mut(id).opens += 1;
        }
        self.get_mut(id).atime = None;
        self.touched.insert(id);
        Ok(Answer::Done)
    }

    fn open_name(&mut self, maker: &Maker, path: &RawPath, flags: i32, mode: u32) -> Sys<Id> {
        let (create, exclusive) = (flags & libc::O_CREAT != 0, flags & libc::O_EXCL != 0);
        let follow = flags & libc::O_NOFOLLOW == 0 && !(create && exclusive);
        let found = self.resolve(maker.who, path, follow)?;
        let Some(id) = found.target else {
            if !create {
                return no(libc::ENOENT);
            }
            let Last::Name(name) = found.last else { return no(libc::EISDIR) };
            self.may_change(maker.who, found.parent)?;
            let id = self.new_inode(maker, found.parent, Node::File(Data::default()), mode);
            self.attach(found.parent, name, id);
            return Ok(id);
        };
        if create && exclusive {
            return no(libc::EEXIST);
        }
        if create && self.get(id).is_dir() {
            return no(libc::EISDIR);
        }
        if flags & libc::O_DIRECTORY != 0 && !self.get(id).is_dir() {
            return no(libc::ENOTDIR);
        }
        if create && !self.may_create_in_sticky(maker.who, found.parent, id) {
            return no(libc::EACCES);
        }
        if matches!(self.get(id).node, Node::Symlink(_)) {
            return no(libc::ELOOP);
        }
        self.open_existing(maker.who, id, flags)?;
        Ok(id)
    }

    fn open_existing(&mut self, who: &Cred, id: Id, flags: i32) -> Sys<()> {
        let truncate = flags & libc::O_TRUNC != 0;
        let mut mask = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => 4,
            libc::O_WRONLY => 2,
            _ => 6,
        };
        if truncate {
            mask |= 2;
        }
        if self.get(id).is_dir() && mask & 2 != 0 {
            return no(libc::EISDIR);
        }
        if !self.may(who, id, mask) {
            return no(libc::EACCES);
        }
        if truncate {
            self.strip_privileges(who, id);
            if let Node::File(data) = &mut self.get_mut(id).node {
                data.truncate(0);
            }
            self.changed(id);
        }
        Ok(())
    }

    /// `fs.protected_regular`: O_CREAT on what exists in a sticky directory and is another's.
    fn may_create_in_sticky(&self, who: &Cred, dir: Id, id: Id) -> bool {
        let (dir, inode) = (self.get(dir), self.get(id));
        // What is neither file nor fifo (a link that is not followed) is refused at any setting.
        let is_file = matches!(inode.node, Node::File(_));
        if (self.protected.2 == 0 && is_file)
            || dir.mode & libc::S_ISVTX == 0
            || inode.uid == dir.uid
            || who.uid == inode.uid
        {
            return true;
        }
        let worldly = dir.mode & 0o002 != 0;
        let groupy = dir.mode & 0o020 != 0 && self.protected.2 >= 2 && is_file;
        !(worldly || groupy)
    }

    pub(super) fn close(&mut self, slot: usize) -> Outcome {
        let Some(open) = self.slots[slot].take() else { return no(libc::EBADF) };
        self.get_mut(open.id).opens -= 1;
        self.drop_if_unused(open.id);
        Ok(Answer::Done)
    }

    fn slot(&self, slot: usize) -> Sys<Slot> {
        self.slots[slot].clone().ok_or(crate::sys::Errno(libc::EBADF))
    }

    fn data(&self, id: Id) -> Sys<&Data> {
        match &self.get(id).node {
            Node::File(data) => Ok(data),
            _ => no(libc::EISDIR),
        }
    }

    fn data_mut(&mut self, id: Id) -> &mut Data {
        match &mut self.get_mut(id).node {
            Node::File(data) => data,
            _ => panic!("not a file"),
        }
    }

    /// A write or truncation by somebody without CAP_FSETID takes suid and sgid off.
    pub(super) fn strip_privileges(&mut self, who: &Cred, id: Id) {
        let inode = self.get_mut(id);
        if who.uid == 0 || inode.is_dir() {
            return;
        }
        inode.mode &= !libc::S_ISUID;
        if inode.mode & 0o010 != 0 {
            inode.mode &= !libc::S_ISGID;
        }
    }

    pub(super) fn pread(&mut self, slot: usize, at: Option<u64>, length: usize) -> Outcome {
        let open = self.slot(slot)?;
        if !open.readable() {
            return no(libc::EBADF);
        }
        let bytes = self.data(open.id)?.read(at.unwrap_or(open.offset), length);
        if at.is_none() {
            self.slots[slot].as_mut().unwrap().offset += bytes.len() as u64;
        }
        self.get_mut(open.id).atime = None;
        Ok(Answer::Bytes(bytes))
    }

    pub(super) fn write(
        &mut self,
        who: &Cred,
        slot: usize,
        at: Option<u64>,
        fill: Fill,
    ) -> Outcome {
        let open = self.slot(slot)?;
        if !open.writable() {
            return no(libc::EBADF);
        }
        let bytes = fill.bytes();
        let append = open.flags & libc::O_APPEND != 0;
        let size = self.data(open.id)?.size();
        let place = if append { size } else { at.unwrap_or(open.offset) };
        if !bytes.is_empty() {
            self.strip_privileges(who, open.id);
            self.data_mut(open.id).write(place, &bytes);
            self.changed(open.id);
        }
        if at.is_none() && !bytes.is_empty() {
            self.slots[slot].as_mut().unwrap().offset = place + bytes.len() as u64;
        }
        Ok(Answer::Count(bytes.len()))
    }

    /// Sets the size of a regular file.
    pub(super) fn set_size(&mut self, who: &Cred, id: Id, size: u64) -> Outcome {
        let old_size = self.data(id)?.size();
        let old_mode = self.get(id).mode;
        self.strip_privileges(who, id);
        self.data_mut(id).truncate(size);
        if old_size != size {
            self.changed(id);
        } else {
            self.perhaps_changed(id);
            if self.get(id).mode != old_mode {
                self.attributes_changed(id);
            }
        }
        Ok(Answer::Done)
    }

    pub(super) fn ftruncate(&mut self, who: &Cred, slot: usize, size: u64) -> Outcome {
        let open = self.slot(slot)?;
        if !open.writable() {
            return no(libc::EINVAL);
        }
        self.set_size(who, open.id, size)
    }

    pub(super) fn fallocate(
        &mut self,
        who: &Cred,
        slot: usize,
        mode: i32,
        at: u64,
        length: u64,
    ) -> Outcome {
        let open = self.slot(slot)?;
        if length == 0 {
            return no(libc::EINVAL);
        }
        if !open.writable() {
            return no(libc::EBADF);
        }
        self.strip_privileges(who, open.id);
        let data = self.data_mut(open.id);
        let end = at + length;
        if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0 {
            let inside = data.size().min(end);
            if inside > at {
                data.zero(at, inside - at);
            }
        }
        let grows = mode & libc::FALLOC_FL_KEEP_SIZE == 0 && end > data.size();
        if grows {
            data.grow(end);
            self.changed(open.id);
        } else {
            self.perhaps_changed(open.id);
        }
        Ok(Answer::Done)
    }

    /// Checks what SEEK_DATA and SEEK_HOLE said: no hole where something was written, data
    /// ranges in order and inside, the last hole at the end of the file.
    pub(super) fn extents(&mut self, slot: usize, real: &Outcome) -> Result<(), String> {
        let open = self.slot(slot).map_err(|e| format!("model: {e:?}"))?;
        let data = self.data(open.id).map_err(|e| format!("model: {e:?}"))?;
        let Ok(Answer::Extents(ranges, end)) = real else {
            return Err(format!("SEEK_DATA/SEEK_HOLE failed: {real:?}"));
        };
        if *end != data.size() {
            return Err(format!("the last hole is at {end}, the file ends at {}", data.size()));
        }
        let mut at = 0;
        for &(from, to) in ranges.iter().chain([&(*end, *end)]) {
            if from < at || to < from {
                return Err(format!("data ranges out of order: {ranges:?}"));
            }
            if from > at && !data.is_zero(at, from) {
                return Err(format!("told a hole at {at}..{from}, where data was written"));
            }
            at = to;
        }
        self.slots[slot].as_mut().unwrap().offset = 0;
        Ok(())
    }

    pub(super) fn copy(
        &mut self,
        who: &Cred,
        (from, at): (usize, u64),
        (to, to_at): (usize, u64),
        length: usize,
    ) -> Outcome {
        let (source, target) = (self.slot(from)?, self.slot(to)?);
        if self.get(source.id).is_dir() || self.get(target.id).is_dir() {
            return no(libc::EISDIR);
        }
        let unusable = !source.readable() || !target.writable();
        if unusable || target.flags & libc::O_APPEND != 0 {
            return no(libc::EBADF);
        }
        let size = self.data(source.id)?.size();
        let count = (length as u64).min(size.saturating_sub(at));
        let overlap = at < to_at + count && to_at < at + count;
        if source.id == target.id && overlap {
            return no(libc::EINVAL);
        }
        self.get_mut(source.id).atime = None;
        if count == 0 {
            self.perhaps_changed(target.id);
            return Ok(Answer::Count(0));
        }
        let bytes = self.data(source.id)?.read(at, count as usize);
        self.strip_privileges(who, target.id);
        self.data_mut(target.id).write(to_at, &bytes);
        self.changed(target.id);
        Ok(Answer::Count(bytes.len()))
    }

    /// A store through a shared mapping, inside the file.
    pub(super) fn map_write(&mut self, slot: usize, at: u64, fill: Fill) -> Outcome {
        let open = self.slot(slot)?;
        self.data_mut(open.id).write(at, &fill.bytes());
        let before = self.before;
        let inode = self.get_mut(open.id);
        inode.mtime = Stamp::Loose(inode.mtime.earliest(), before);
        inode.ctime = Stamp::Loose(inode.ctime.earliest(), before);
        inode.atime = None;
        self.touched.insert(open.id);
        Ok(Answer::Done)
    }
}
