//! The calls of the file system in memory.

use super::*;

impl NameOps for MemoryFs {
    fn lookup(&self, _: &Caller, parent: Ino, name: &[u8]) -> Result<Entry> {
        let ms = self.lookup_ms.load(Ordering::Relaxed);
        if ms > 0 {
            std::thread::sleep(std::time::Duration::from_millis(ms));
        }
        let held = self.held_lookup.lock().unwrap().take_if(|(held, _)| *held == name);
        if let Some((_, until)) = held {
            // Not for ever, so that a test that fails ends.
            let _gone = until.recv_timeout(Duration::from_secs(10));
        }
        let mut state = self.lock();
        let dir = state.node(parent)?;
        let ino = match name {
            b"." => parent,
            b".." => dir.parent,
            _ => dir.names.get(name).ok_or(Errno::ENOENT)?.0,
        };
        state.node(ino)?.references += 1;
        Ok(Entry { attr: state.attr(ino)? })
    }

    fn forget(&self, ino: Ino, count: u64) {
        let mut state = self.lock();
        if let Ok(node) = state.node(ino) {
            // The kernel holds the root without having looked it up.
            node.references = node.references.saturating_sub(count);
        }
        self.drop_unused(&mut state, ino);
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        Ok(self.lock().node(ino)?.target.clone())
    }

    fn mknod(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        args: CreateArgs,
        rdev: u32,
    ) -> Result<Entry> {
        self.make(caller, parent, Some(name), args, kind, rdev)
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], args: CreateArgs) -> Result<Entry> {
        self.make(caller, parent, Some(name), args, FileKind::Dir, 0)
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        let args = CreateArgs { mode: 0o777, umask: 0 };
        let mut entry = self.make(caller, parent, Some(name), args, FileKind::Symlink, 0)?;
        let mut state = self.lock();
        let node = state.node(entry.attr.ino)?;
        node.target = target.to_vec();
        node.attr.size_bytes = target.len() as u64;
        entry.attr = node.attr;
        Ok(entry)
    }

    fn link(&self, _: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        let mut state = self.lock();
        state.add_name(parent, name, ino)?;
        let node = state.node(ino)?;
        node.attr.nlink += 1;
        node.references += 1;
        Ok(Entry { attr: state.attr(ino)? })
    }

    fn unlink(&self, _: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.remove(parent, name, false)
    }

    fn rmdir(&self, _: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.remove(parent, name, true)
    }

    fn rename(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: u32,
    ) -> Result<()> {
        if flags & !rename_flags::NOREPLACE != 0 {
            return Err(Errno::EINVAL);
        }
        let target = self.lock().node(new_parent)?.names.get(new_name).map(|e| e.0);
        if let Some(target) = target {
            if flags & rename_flags::NOREPLACE != 0 {
                return Err(Errno::EEXIST);
            }
            let dir = self.lock().node(target)?.is_dir();
            if dir {
                self.rmdir(caller, new_parent, new_name)
            } else {
                self.unlink(caller, new_parent, new_name)
            }?;
        }
        let mut state = self.lock();
        let (ino, _) = *state.node(parent)?.names.get(name).ok_or(Errno::ENOENT)?;
        state.take_name(parent, name);
        state.node(ino)?.parent = new_parent;
        state.add_name(new_parent, new_name, ino)
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        args: CreateArgs,
        want_local: bool,
    ) -> Result<(Entry, Opened)> {
        let entry = self.make(caller, parent, Some(name), args, FileKind::File, 0)?;
        Ok((entry, self.opened(entry.attr.ino, want_local)?))
    }

    fn tmpfile(
        &self,
        caller: &Caller,
        parent: Ino,
        args: CreateArgs,
        want_local: bool,
    ) -> Result<(Entry, Opened)> {
        let entry = self.make(caller, parent, None, args, FileKind::File, 0)?;
        Ok((entry, self.opened(entry.attr.ino, want_local)?))
    }

    fn fsyncdir(&self, _: Ino) -> Result<()> {
        Ok(())
    }

    fn dir_limit(&self, ino: Ino) -> Result<Cookie> {
        Ok(Cookie(self.lock().node(ino)?.next_cookie - 1))
    }

    fn readdir(
        &self,
        ino: Ino,
        after: Cookie,
        limit: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list(ino, after, limit, false, sink)
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        after: Cookie,
        limit: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list(ino, after, limit, true, sink)
    }

    fn entry_ttl(&self, _: Ino) -> Duration {
        *self.entry_ttl.lock().unwrap()
    }
}

impl AttrOps for MemoryFs {
    fn getattr(&self, ino: Ino) -> Result<Attr> {
        assert!(!self.panic_once.swap(false, Ordering::Relaxed), "asked for by a test");
        self.lock().attr(ino)
    }

    fn setattr(&self, _: &Caller, ino: Ino, change: &SetAttr) -> Result<Attr> {
        if let Some(size) = change.size_bytes {
            self.data(ino)?.set_len(size)?;
        }
        let mut state = self.lock();
        let attr = &mut state.node(ino)?.attr;
        attr.mode = change.mode.map_or(attr.mode, |m| (attr.mode & libc::S_IFMT) | m);
        attr.uid = change.uid.unwrap_or(attr.uid);
        attr.gid = change.gid.unwrap_or(attr.gid);
        if change.kill_suid {
            attr.mode &= !(libc::S_ISUID | libc::S_ISGID);
        }
        attr.ctime = Timestamp::now();
        attr.atime = match change.atime {
            Some(SetTime::At(t)) => t,
            Some(SetTime::Now) => attr.ctime,
            None => attr.atime,
        };
        state.attr(ino)
    }

    fn attr_ttl(&self, _: Ino) -> Duration {
        let ttl = *self.attr_ttl.lock().unwrap();
        std::thread::sleep(Duration::from_millis(self.attr_ttl_ms.load(Ordering::Relaxed)));
        ttl
    }
}

impl DataOps for MemoryFs {
    fn open(
        &self,
        _: &Caller,
        ino: Ino,
        open_flags: u32,
        _kill_suid: bool,
        want_local: bool,
    ) -> Result<Opened> {
        if open_flags & libc::O_TRUNC as u32 != 0 {
            self.data(ino)?.set_len(0)?;
        }
        self.opened(ino, want_local)
    }

    fn flush(&self, _ino: Ino) -> Result<()> {
        Ok(())
    }

    fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.moves_block(buffer.len());
        let data = self.data(ino)?;
        let mut done = 0;
        while done < buffer.len() {
            match data.read_at(&mut buffer[done..], offset + done as u64)? {
                0 => break,
                n => done += n,
            }
        }
        Ok(done)
    }

    fn write(&self, ino: Ino, offset: u64, bytes: &[u8], mode: WriteMode) -> Result<usize> {
        self.moves_block(bytes.len());
        let data = self.data(ino)?;
        if mode.append {
            let _one_at_a_time = self.lock();
            let end = data.metadata()?.len();
            data.write_all_at(bytes, end)?;
        } else {
            data.write_all_at(bytes, offset)?;
        }
        if mode.kill_suid {
            self.lock().node(ino)?.attr.mode &= !(libc::S_ISUID | libc::S_ISGID);
        }
        Ok(bytes.len())
    }

    fn fsync(&self, _: Ino, _: bool) -> Result<()> {
        let ms = self.fsync_ms.load(Ordering::Relaxed);
        std::thread::sleep(std::time::Duration::from_millis(ms));
        Ok(())
    }

    fn fallocate(&self, ino: Ino, mode: u32, offset: u64, length: u64) -> Result<()> {
        let data = self.data(ino)?;
        let (offset, length) = (offset as i64, length as i64);
        // SAFETY: a system call on an open fd, without pointers.
        let rc = unsafe { libc::fallocate(data.as_raw_fd(), mode as i32, offset, length) };
        fd_call(rc.into()).map(|_| ())
    }

    fn seek(&self, ino: Ino, offset: u64, whence: u32) -> Result<u64> {
        let data = self.data(ino)?;
        // SAFETY: a system call on an open fd, without pointers.
        fd_call(unsafe { libc::lseek(data.as_raw_fd(), offset as i64, whence as i32) })
    }

    fn copy_file_range(
        &self,
        source: Ino,
        source_offset: u64,
        target: Ino,
        target_offset: u64,
        length: u64,
    ) -> Result<u64> {
        let mut buffer = vec![0; length.min(1 << 20) as usize];
        let n = self.read(source, source_offset, &mut buffer)?;
        self.data(target)?.write_all_at(&buffer[..n], target_offset)?;
        Ok(n as u64)
    }

    fn release(&self, ino: Ino, local: bool) {
        let mut counts = self.open_counts.lock().unwrap();
        let counts = counts.get_mut(&ino).expect("released but never opened");
        counts.released += 1;
        counts.released_local += u64::from(local);
        assert!(counts.released <= counts.opened, "{counts:?}");
        assert!(counts.released_local <= counts.opened_local, "{counts:?}");
    }
}

impl XattrOps for MemoryFs {
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.lock().node(ino)?.xattrs.get(name).cloned().ok_or(Errno::ENODATA)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        let mut state = self.lock();
        let names = state.node(ino)?.xattrs.keys();
        Ok(names.flat_map(|n| n.iter().copied().chain([0])).collect())
    }

    fn setxattr(
        &self,
        _: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        _flags: u32,
        _kill_sgid: bool,
    ) -> Result<()> {
        self.lock().node(ino)?.xattrs.insert(name.to_vec(), value.to_vec());
        Ok(())
    }

    fn removexattr(&self, _: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.lock().node(ino)?.xattrs.remove(name).map(|_| ()).ok_or(Errno::ENODATA)
    }
}

impl FileSystem for MemoryFs {
    fn locks(&self) -> Option<&dyn Locks> {
        self.locks.as_deref()
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(StatFs {
            block_bytes: 4096,
            blocks_total: 1000,
            blocks_free: 900,
            blocks_available: 900,
            files_total: 500,
            files_free: 400,
        })
    }

    fn sync_all(&self) -> Result<()> {
        Ok(())
    }

    fn set_notify(&self, notify: Arc<dyn Notify>) {
        *self.notify.lock().unwrap() = Some(notify);
    }
}
