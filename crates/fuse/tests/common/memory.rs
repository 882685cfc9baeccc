//! A file system for the tests of the FUSE layer: names and attributes in memory, each file's
//! data in a file of the store directory. Not durable and behind one lock; it keeps to the
//! contract of `forebay_proto::api` as far as the tests look.

use forebay_proto::api::{CreateArgs, StatFs, WriteMode, rename_flags};
use forebay_proto::{
    Attr, Caller, Cookie, DirEntry, Entry, Errno, FileKind, FileSystem, Ino, Notify, Opened,
    Result, SetAttr, SetTime, Timestamp,
};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

struct Node {
    attr: Attr,
    parent: Ino,
    names: HashMap<Vec<u8>, (Ino, u64)>,
    order: BTreeMap<u64, Vec<u8>>,
    next_cookie: u64,
    target: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    references: u64,
    /// Its object, once it has one; open only while somebody uses it.
    data: Option<Weak<File>>,
}

struct State {
    store: PathBuf,
    nodes: HashMap<Ino, Node>,
    next: u64,
}

/// The file system.
pub struct MemoryFs {
    state: Mutex<State>,
    store: PathBuf,
    notify: Mutex<Option<Arc<dyn Notify>>>,
    /// Milliseconds that fsync takes.
    pub fsync_ms: AtomicU64,
    /// Milliseconds that a lookup takes.
    pub lookup_ms: AtomicU64,
    /// Opens that asked for the local file.
    pub local_opens: AtomicU64,
    /// The next getattr panics.
    pub panic_once: AtomicBool,
    /// Groups of the last creation.
    pub last_groups: Mutex<Vec<u32>>,
}

impl MemoryFs {
    pub fn new(store: &Path) -> MemoryFs {
        let fs = MemoryFs {
            state: Mutex::new(State { store: store.to_path_buf(), nodes: HashMap::new(), next: 2 }),
            store: store.to_path_buf(),
            notify: Mutex::new(None),
            fsync_ms: AtomicU64::new(0),
            lookup_ms: AtomicU64::new(0),
            local_opens: AtomicU64::new(0),
            panic_once: AtomicBool::new(false),
            last_groups: Mutex::new(Vec::new()),
        };
        let root = new_node(Ino::ROOT, Ino::ROOT, libc::S_IFDIR | 0o1777, &Caller::root());
        fs.lock().nodes.insert(Ino::ROOT, root);
        fs
    }

    /// A file to try passthrough with.
    pub fn probe(&self) -> File {
        self.object("probe")
    }

    fn object(&self, name: &str) -> File {
        let path = self.store.join(name);
        File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn data(&self, ino: Ino) -> Result<Arc<File>> {
        let mut state = self.lock();
        let node = state.node(ino)?;
        if node.attr.kind() != FileKind::File {
            return Err(Errno::EINVAL);
        }
        if let Some(file) = node.data.as_ref().and_then(Weak::upgrade) {
            return Ok(file);
        }
        let file = Arc::new(self.object(&ino.to_string()));
        node.data = Some(Arc::downgrade(&file));
        Ok(file)
    }

    fn opened(&self, ino: Ino, want_local: bool) -> Result<Opened> {
        if !want_local {
            return Ok(Opened { local: None });
        }
        self.local_opens.fetch_add(1, Ordering::Relaxed);
        Ok(Opened { local: Some(self.data(ino)?) })
    }

    /// What the mount has not given back: references to inodes other than the root.
    pub fn references(&self) -> u64 {
        self.lock().nodes.iter().filter(|(i, _)| **i != Ino::ROOT).map(|(_, n)| n.references).sum()
    }

    /// Makes a file with content that the mount knows nothing of, and tells.
    pub fn put_behind(&self, name: &[u8], content: &[u8]) -> Ino {
        let args = CreateArgs { mode: 0o644, umask: 0 };
        let entry = self.make(&Caller::root(), Ino::ROOT, Some(name), args, FileKind::File, 0);
        let ino = entry.unwrap().attr.ino;
        self.forget(ino, 1);
        self.data(ino).unwrap().write_all_at(content, 0).unwrap();
        self.tell().entry_changed(Ino::ROOT, name);
        ino
    }

    /// Takes a name away that the mount believes in, and tells.
    pub fn remove_behind(&self, name: &[u8]) {
        self.unlink(&Caller::root(), Ino::ROOT, name).unwrap();
        self.tell().entry_changed(Ino::ROOT, name);
    }

    /// Changes a file's content, and tells.
    pub fn change_behind(&self, ino: Ino, content: &[u8]) {
        self.data(ino).unwrap().write_all_at(content, 0).unwrap();
        self.tell().inode_changed(ino);
    }

    pub fn ino_of(&self, name: &[u8]) -> Ino {
        self.lock().nodes[&Ino::ROOT].names[name].0
    }

    fn tell(&self) -> Arc<dyn Notify> {
        self.notify.lock().unwrap().clone().unwrap()
    }

    fn make(
        &self,
        caller: &Caller,
        parent: Ino,
        name: Option<&[u8]>,
        args: CreateArgs,
        kind: FileKind,
        rdev: u32,
    ) -> Result<Entry> {
        self.last_groups.lock().unwrap().clone_from(&caller.groups);
        let mut state = self.lock();
        let ino = Ino(state.next);
        state.next += 1;
        let mode = kind.mode_bits() | (args.mode & !args.umask);
        let mut node = new_node(ino, parent, mode, caller);
        node.attr.rdev = rdev;
        node.attr.nlink = u32::from(name.is_some()) + u32::from(kind == FileKind::Dir);
        node.references = 1;
        let attr = node.attr;
        if let Some(name) = name {
            state.add_name(parent, name, ino)?;
        }
        state.nodes.insert(ino, node);
        Ok(Entry { attr })
    }

    fn drop_unused(&self, state: &mut State, ino: Ino) {
        let unused = state.nodes.get(&ino).is_some_and(|n| {
            n.references == 0 && (n.attr.nlink == 0 || n.attr.nlink == 1 && n.is_dir())
        });
        if unused && ino != Ino::ROOT {
            state.nodes.remove(&ino);
            let _ = std::fs::remove_file(self.store.join(ino.to_string()));
        }
    }

    fn remove(&self, parent: Ino, name: &[u8], dir: bool) -> Result<()> {
        let mut state = self.lock();
        let (ino, _) = *state.node(parent)?.names.get(name).ok_or(Errno::ENOENT)?;
        let node = state.node(ino)?;
        match (node.is_dir(), dir) {
            (true, false) => return Err(Errno::EISDIR),
            (false, true) => return Err(Errno::ENOTDIR),
            (true, true) if !node.names.is_empty() => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        node.attr.nlink -= 1;
        node.attr.ctime = Timestamp::now();
        state.take_name(parent, name);
        self.drop_unused(&mut state, ino);
        Ok(())
    }

    fn list(
        &self,
        ino: Ino,
        after: Cookie,
        limit: Cookie,
        plus: bool,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let mut state = self.lock();
        let node = state.node(ino)?;
        let dots = [(Cookie::DOT, ino, &b"."[..]), (Cookie::DOTDOT, node.parent, &b".."[..])];
        for (cookie, ino, name) in dots {
            let entry = DirEntry { cookie, ino, kind: FileKind::Dir, name, attr: None };
            if cookie > after && !sink(&entry) {
                return Ok(());
            }
        }
        let from = after.0.max(Cookie::DOTDOT.0) + 1;
        let names: Vec<(u64, Vec<u8>)> = node
            .order
            .range(from..=limit.0.max(from))
            .filter(|(c, _)| **c <= limit.0)
            .map(|(c, n)| (*c, n.clone()))
            .collect();
        for (cookie, name) in names {
            let child = state.node(ino)?.names[&name].0;
            let attr = state.attr(child)?;
            let entry = DirEntry {
                cookie: Cookie(cookie),
                ino: child,
                kind: attr.kind(),
                name: &name,
                attr: plus.then_some(&attr),
            };
            if !sink(&entry) {
                break;
            }
            if plus {
                state.node(child)?.references += 1;
            }
        }
        Ok(())
    }
}

fn new_node(ino: Ino, parent: Ino, mode: u32, caller: &Caller) -> Node {
    let now = Timestamp::now();
    let attr = Attr {
        ino,
        size_bytes: 0,
        blocks_512: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        mode,
        nlink: 2,
        uid: caller.uid,
        gid: caller.gid,
        rdev: 0,
        blksize_bytes: 4096,
    };
    Node {
        attr,
        parent,
        names: HashMap::new(),
        order: BTreeMap::new(),
        next_cookie: Cookie::FIRST.0,
        target: Vec::new(),
        xattrs: BTreeMap::new(),
        references: 0,
        data: None,
    }
}

impl Node {
    fn is_dir(&self) -> bool {
        self.attr.kind() == FileKind::Dir
    }
}

impl State {
    fn node(&mut self, ino: Ino) -> Result<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(Errno::ESTALE)
    }

    fn attr(&mut self, ino: Ino) -> Result<Attr> {
        let path = self.store.join(ino.to_string());
        let node = self.node(ino)?;
        let mut attr = node.attr;
        if let Some(object) = &node.data {
            let meta = match object.upgrade() {
                Some(file) => file.metadata()?,
                None => std::fs::metadata(path)?,
            };
            attr.size_bytes = meta.len();
            attr.blocks_512 = meta.blocks();
            attr.mtime = Timestamp { sec: meta.mtime(), nsec: meta.mtime_nsec() as u32 };
        }
        Ok(attr)
    }

    fn add_name(&mut self, parent: Ino, name: &[u8], ino: Ino) -> Result<()> {
        let dir = self.node(parent)?;
        if dir.names.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let cookie = dir.next_cookie;
        dir.next_cookie += 1;
        dir.names.insert(name.to_vec(), (ino, cookie));
        dir.order.insert(cookie, name.to_vec());
        Ok(())
    }

    fn take_name(&mut self, parent: Ino, name: &[u8]) {
        let Ok(dir) = self.node(parent) else { return };
        if let Some((_, cookie)) = dir.names.remove(name) {
            dir.order.remove(&cookie);
        }
    }
}

fn fd_call(rc: i64) -> Result<u64> {
    if rc < 0 { Err(Errno::last()) } else { Ok(rc as u64) }
}

impl FileSystem for MemoryFs {
    fn lookup(&self, _: &Caller, parent: Ino, name: &[u8]) -> Result<Entry> {
        let ms = self.lookup_ms.load(Ordering::Relaxed);
        if ms > 0 {
            std::thread::sleep(std::time::Duration::from_millis(ms));
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

    fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
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

    fn fsyncdir(&self, _: Ino) -> Result<()> {
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

    fn statfs(&self) -> Result<StatFs> {
        Ok(StatFs {
            block_bytes: 4096,
            blocks_total: 1000,
            blocks_free: 900,
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
