//! A file system for the tests of the FUSE layer: names and attributes in memory, each file's
//! data in a file of the store directory. Not durable and behind one lock; it keeps to the
//! contract of `forebay_proto::api` as far as the tests look.

mod filesystem;

use forebay_proto::api::ops::*;
use forebay_proto::api::{CreateArgs, Locks, StatFs, WriteMode, rename_flags};
use forebay_proto::{
    Attr, Caller, Cookie, DirEntry, Entry, Errno, FileKind, Ino, Notify, Opened, Result, SetAttr,
    SetTime, Timestamp,
};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

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

/// All files, and the number of the next one.
struct MemoryTree {
    store: PathBuf,
    nodes: HashMap<Ino, Node>,
    next: u64,
}

/// Opens of one file, and their ends as told by the mount; of them with a local file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenCounts {
    pub opened: u64,
    pub opened_local: u64,
    pub released: u64,
    pub released_local: u64,
}

/// The file system.
pub struct MemoryFs {
    state: Mutex<MemoryTree>,
    store: PathBuf,
    notify: Mutex<Option<Arc<dyn Notify>>>,
    /// Milliseconds that fsync takes.
    pub fsync_ms: AtomicU64,
    /// Milliseconds that a large block takes, written or read.
    pub block_ms: AtomicU64,
    /// Large blocks that were served by the thread which reads requests.
    pub blocks_in_place: AtomicU64,
    /// Milliseconds that a lookup takes.
    pub lookup_ms: AtomicU64,
    /// The next lookup of this name takes until the sender is gone.
    pub held_lookup: Mutex<Option<(&'static [u8], Receiver<()>)>>,
    /// Opens that asked for the local file.
    pub local_opens: AtomicU64,
    /// The next getattr panics.
    pub panic_once: AtomicBool,
    /// Groups of the last creation.
    pub last_groups: Mutex<Vec<u32>>,
    /// How long names and attributes may be believed.
    pub entry_ttl: Mutex<Duration>,
    pub attr_ttl: Mutex<Duration>,
    /// Milliseconds between what `attr_ttl` has found and its return.
    pub attr_ttl_ms: AtomicU64,
    /// Locks, if they are served.
    pub locks: Option<Box<dyn Locks>>,
    open_counts: Mutex<HashMap<Ino, OpenCounts>>,
}

impl MemoryFs {
    pub fn new(store: &Path) -> MemoryFs {
        let fs = MemoryFs {
            state: Mutex::new(MemoryTree {
                store: store.to_path_buf(),
                nodes: HashMap::new(),
                next: 2,
            }),
            store: store.to_path_buf(),
            notify: Mutex::new(None),
            fsync_ms: AtomicU64::new(0),
            block_ms: AtomicU64::new(0),
            blocks_in_place: AtomicU64::new(0),
            lookup_ms: AtomicU64::new(0),
            held_lookup: Mutex::new(None),
            local_opens: AtomicU64::new(0),
            panic_once: AtomicBool::new(false),
            last_groups: Mutex::new(Vec::new()),
            entry_ttl: Mutex::new(Duration::MAX),
            attr_ttl: Mutex::new(Duration::MAX),
            attr_ttl_ms: AtomicU64::new(0),
            locks: None,
            open_counts: Mutex::new(HashMap::new()),
        };
        let root = new_node(Ino::ROOT, Ino::ROOT, libc::S_IFDIR | 0o1777, &Caller::root());
        fs.lock().nodes.insert(Ino::ROOT, root);
        fs
    }

    fn moves_block(&self, bytes: usize) {
        if bytes < 64 << 10 {
            return;
        }
        if std::thread::current().name().is_some_and(|name| name.starts_with("fuse-read")) {
            self.blocks_in_place.fetch_add(1, Ordering::Relaxed);
        }
        std::thread::sleep(Duration::from_millis(self.block_ms.load(Ordering::Relaxed)));
    }

    /// A file to try passthrough with.
    pub fn probe(&self) -> File {
        self.object("probe")
    }

    fn object(&self, name: &str) -> File {
        let path = self.store.join(name);
        File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    }

    fn lock(&self) -> MutexGuard<'_, MemoryTree> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub fn data(&self, ino: Ino) -> Result<Arc<File>> {
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
        let local = if want_local { Some(self.data(ino)?) } else { None };
        self.local_opens.fetch_add(want_local.into(), Ordering::Relaxed);
        let mut counts = self.open_counts.lock().unwrap();
        let counts = counts.entry(ino).or_default();
        counts.opened += 1;
        counts.opened_local += u64::from(want_local);
        Ok(Opened { local })
    }

    /// Opens of a file and their ends.
    pub fn open_counts(&self, ino: Ino) -> OpenCounts {
        self.open_counts.lock().unwrap().get(&ino).copied().unwrap_or_default()
    }

    /// Files whose opens have not all ended as they began.
    pub fn still_open(&self) -> Vec<(Ino, OpenCounts)> {
        let counts = self.open_counts.lock().unwrap();
        let open = |c: &OpenCounts| c.opened != c.released || c.opened_local != c.released_local;
        counts.iter().filter(|(_, c)| open(c)).map(|(ino, c)| (*ino, *c)).collect()
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

    /// Changes a file's content, and tells nobody.
    pub fn change_quietly(&self, ino: Ino, content: &[u8]) {
        self.data(ino).unwrap().write_all_at(content, 0).unwrap();
    }

    /// Changes a file's content, and tells.
    pub fn change_behind(&self, ino: Ino, content: &[u8]) {
        self.change_quietly(ino, content);
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

    fn drop_unused(&self, state: &mut MemoryTree, ino: Ino) {
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

impl MemoryTree {
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
