//! A read-only cache that has a copy on each of its servers, as one file system: a mount uses one server,
//! and another one when that dies.
//!
//! Servers number files for themselves, so the numbers that the kernel sees are this mount's, and each
//! stands for a name that was looked up. At another server the names are looked up again, when they are
//! used, and what is open is opened again. Invariants: what the kernel holds is never forgotten here before
//! the kernel does; a call is made again at another server only if it has no answer. Made by `forebay mount
//! --buffer` for access `ldbalance`.

mod table;

use super::RemoteFs;
use super::peer::Target;
use forebay_proto::api::ops::*;
use forebay_proto::api::{CreateArgs, DirEntry, Notify, Opened, StatFs, WriteMode};
use forebay_proto::asked::{self, LOOK};
use forebay_proto::attr::{Attr, FileKind, SetAttr};
use forebay_proto::{Caller, Cookie, Entry, Errno, Ino, Result};
use parking_lot::{Mutex, RwLock};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use table::{Table, There};

/// How long one server is waited for before the next is asked.
pub const SERVER_PATIENCE: Duration = Duration::from_secs(3);
/// Pause after none of the servers could be reached.
const ROUND_PAUSE: Duration = Duration::from_millis(500);
/// Numbers from here on are given where a server's number stands for another file already.
const OWN_NUMBERS: u64 = 1 << 62;
/// Deepest path, in components.
const DEPTH_MAX: usize = 2_048;

#[derive(Clone)]
struct Current {
    fs: Arc<RemoteFs>,
    /// Which target.
    at: usize,
    /// Counts the servers that were used.
    generation: u64,
}

/// See the module.
pub struct Failover {
    targets: Vec<Target>,
    patience: Duration,
    current: RwLock<Current>,
    /// Who moves on.
    moving: Mutex<()>,
    table: Arc<Mutex<Table>>,
    notify: RwLock<Option<Arc<dyn Notify>>>,
}

impl Failover {
    /// On `targets[at]`, which `fs` is attached to; the others are used when it does not answer. A call that
    /// no server answers for so long as `patience` fails.
    pub fn new(
        fs: Arc<RemoteFs>,
        at: usize,
        targets: Vec<Target>,
        patience: Duration,
    ) -> Arc<Failover> {
        Arc::new(Failover {
            targets,
            patience,
            current: RwLock::new(Current { fs, at, generation: 1 }),
            moving: Mutex::new(()),
            table: Arc::default(),
            notify: RwLock::default(),
        })
    }

    /// The session of now.
    pub fn remote(&self) -> Arc<RemoteFs> {
        Arc::clone(&self.current.read().fs)
    }

    /// Makes a call, at as many servers as it takes.
    fn on<T>(&self, call: impl Fn(&RemoteFs, u64) -> Result<T>) -> Result<T> {
        let start = Instant::now();
        loop {
            let current = self.current.read().clone();
            match call(&current.fs, current.generation) {
                Err(error) if current.fs.is_away() && !asked::is_given_up() => {
                    if start.elapsed() >= self.patience {
                        return Err(error);
                    }
                    self.move_on(&current);
                }
                other => return other,
            }
        }
    }

    /// To the next server that answers, if nobody has done it since `from`.
    fn move_on(&self, from: &Current) {
        let _moving = loop {
            match self.moving.try_lock_for(LOOK) {
                Some(moving) => break moving,
                None if asked::is_given_up() => return,
                None => {}
            }
        };
        if self.current.read().generation != from.generation {
            return;
        }
        for step in 1..=self.targets.len() {
            let at = (from.at + step) % self.targets.len();
            let target = self.targets[at].clone();
            let address = target.address.clone();
            match RemoteFs::attach(target) {
                Ok(fs) => {
                    tracing::warn!(server = %address, "another server of the cache is used from now on");
                    let generation = from.generation + 1;
                    self.table.lock().enter(generation);
                    self.tell(&fs, generation);
                    let old = {
                        let mut current = self.current.write();
                        std::mem::replace(&mut *current, Current { fs, at, generation })
                    };
                    // It does not answer: nothing is waited for.
                    std::thread::spawn(move || old.fs.close());
                    return;
                }
                Err(error) => tracing::debug!(server = %address, %error, "no session there"),
            }
        }
        std::thread::sleep(ROUND_PAUSE);
    }

    fn tell(&self, fs: &RemoteFs, generation: u64) {
        if let Some(notify) = &*self.notify.read() {
            fs.set_notify(Arc::new(Translated {
                inner: Arc::clone(notify),
                table: Arc::downgrade(&self.table),
                generation,
            }));
        }
    }

    /// The server's number for one of ours: looked up by name if the server is another one than before.
    fn there(&self, fs: &RemoteFs, generation: u64, own: Ino) -> Result<Ino> {
        let mut todo = vec![own];
        let mut found = Ino::ROOT;
        while let Some(&at) = todo.last() {
            if at == Ino::ROOT {
                found = Ino::ROOT;
                todo.pop();
                continue;
            }
            let (parent, name, who, opens) = {
                let table = self.table.lock();
                let known = table.known.get(&at).ok_or(Errno::ESTALE)?;
                if let Some(there) = known.there.filter(|there| there.generation == generation) {
                    found = there.ino;
                    todo.pop();
                    continue;
                }
                (known.parent, known.name.clone(), known.who.clone(), known.opens)
            };
            let above = match self.known_there(generation, parent) {
                Some(above) => above,
                None if todo.len() >= DEPTH_MAX => return Err(Errno::ELOOP),
                None => {
                    todo.push(parent);
                    continue;
                }
            };
            let entry = fs.lookup(&who, above, &name).map_err(|e| match e {
                Errno::ENOENT => Errno::ESTALE,
                e => e,
            })?;
            let ino = entry.attr.ino;
            if opens > 0 {
                let opened = fs.open(&who, ino, libc::O_RDONLY as u32, false, false);
                opened.inspect_err(|_| fs.forget(ino, 1))?;
            }
            let mut table = self.table.lock();
            table.by_there.insert(ino, at);
            if let Some(known) = table.known.get_mut(&at) {
                let opens = u64::from(opens > 0);
                known.there = Some(There { generation, ino, references: 1, opens });
            }
            found = ino;
            todo.pop();
        }
        Ok(found)
    }

    fn known_there(&self, generation: u64, own: Ino) -> Option<Ino> {
        if own == Ino::ROOT {
            return Some(Ino::ROOT);
        }
        let table = self.table.lock();
        let there = table.known.get(&own)?.there?;
        (there.generation == generation).then_some(there.ino)
    }

    fn list(
        &self,
        dir: Ino,
        (after, limit): (Cookie, Cookie),
        plus: bool,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        // What the kernel has taken is not given again: a server that dies in between is asked from there.
        let sink = std::cell::RefCell::new((sink, after));
        self.on(|fs, generation| {
            let there = self.there(fs, generation, dir)?;
            let from = sink.borrow().1;
            let mut give = |entry: &DirEntry<'_>| {
                let mut guard = sink.borrow_mut();
                let (sink, at) = &mut *guard;
                let mut own = *entry;
                let mut attr = entry.attr.copied();
                if let Some(attr) = &mut attr {
                    let mut table = self.table.lock();
                    let who = Caller::root();
                    let ino = table.seen(generation, dir, entry.name, &who, entry.ino);
                    (attr.ino, own.ino) = (ino, ino);
                } else if let Some(known) = self.table.lock().by_there.get(&entry.ino) {
                    own.ino = *known;
                }
                own.attr = attr.as_ref();
                let took = sink(&own);
                match took {
                    true => *at = entry.cookie,
                    // The server takes its reference back itself.
                    false if attr.is_some() => self.not_taken(own.ino),
                    false => {}
                }
                if took && attr.is_some() {
                    self.looked_up(own.ino);
                }
                took
            };
            match plus {
                true => fs.readdir_plus(there, from, limit, &mut give),
                false => fs.readdir(there, from, limit, &mut give),
            }
        })
    }

    fn looked_up(&self, own: Ino) {
        if let Some(known) = self.table.lock().known.get_mut(&own) {
            known.lookups += 1;
        }
    }

    fn not_taken(&self, own: Ino) {
        let mut table = self.table.lock();
        if let Some(there) = table.known.get_mut(&own).and_then(|known| known.there.as_mut()) {
            there.references = there.references.saturating_sub(1);
        }
        drop_unused(&mut table, own);
    }

    fn attr(&self, own: Ino, mut attr: Attr) -> Attr {
        attr.ino = own;
        attr
    }
}

/// Removes what nobody refers to; what the server is to be told.
fn drop_unused(table: &mut Table, own: Ino) -> Option<There> {
    if table.known.get(&own).is_none_or(|known| known.lookups > 0 || known.opens > 0) {
        return None;
    }
    let there = table.known.remove(&own)?.there?;
    if table.by_there.get(&there.ino) == Some(&own) {
        table.by_there.remove(&there.ino);
    }
    Some(there)
}

/// Recalls of a server, in this mount's numbers.
struct Translated {
    inner: Arc<dyn Notify>,
    table: Weak<Mutex<Table>>,
    generation: u64,
}

impl Translated {
    fn own(&self, ino: Ino) -> Option<Ino> {
        if ino == Ino::ROOT {
            return Some(ino);
        }
        let table = self.table.upgrade()?;
        let table = table.lock();
        (table.generation == self.generation).then(|| table.by_there.get(&ino).copied()).flatten()
    }
}

impl Notify for Translated {
    fn entry_changed(&self, parent: Ino, name: &[u8]) {
        if let Some(parent) = self.own(parent) {
            self.inner.entry_changed(parent, name);
        }
    }

    fn inode_changed(&self, ino: Ino) {
        if let Some(ino) = self.own(ino) {
            self.inner.inode_changed(ino);
        }
    }

    fn dir_moved(&self, parent: Ino, name: &[u8]) {
        if let Some(parent) = self.own(parent) {
            self.inner.dir_moved(parent, name);
        }
    }

    fn names_recalled(&self) -> bool {
        self.inner.names_recalled()
    }

    fn names_stay(&self) -> bool {
        self.inner.names_stay()
    }

    fn attr_recalled(&self, ino: Ino) {
        if let Some(ino) = self.own(ino) {
            self.inner.attr_recalled(ino);
        }
    }

    fn wait_heard_within(&self, longest: Duration) {
        self.inner.wait_heard_within(longest);
    }

    fn not_kept(&self, ino: Ino) {
        if let Some(ino) = self.own(ino) {
            self.inner.not_kept(ino);
        }
    }
}

/// What changes anything: the buffer is read-only.
const READ_ONLY: Errno = Errno::EROFS;

impl NameOps for Failover {
    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Entry> {
        if name == b"." || name == b".." {
            // Names that lead to no new file would give a number a second parent.
            return Err(Errno::EOPNOTSUPP);
        }
        self.on(|fs, generation| {
            let there = self.there(fs, generation, parent)?;
            let entry = fs.lookup(caller, there, name)?;
            let mut table = self.table.lock();
            let own = table.seen(generation, parent, name, caller, entry.attr.ino);
            if let Some(known) = table.known.get_mut(&own) {
                known.lookups += 1;
            }
            Ok(Entry { attr: self.attr(own, entry.attr) })
        })
    }

    fn forget(&self, own: Ino, count: u64) {
        let current = self.current.read().clone();
        let told = {
            let mut table = self.table.lock();
            let Some(known) = table.known.get_mut(&own) else { return };
            known.lookups = known.lookups.saturating_sub(count);
            drop_unused(&mut table, own)
        };
        if let Some(there) = told.filter(|there| there.generation == current.generation) {
            current.fs.forget(there.ino, there.references);
        }
    }

    fn readlink(&self, own: Ino) -> Result<Vec<u8>> {
        self.on(|fs, generation| fs.readlink(self.there(fs, generation, own)?))
    }

    fn mknod(
        &self,
        _: &Caller,
        _: Ino,
        _: &[u8],
        _: FileKind,
        _: CreateArgs,
        _: u32,
    ) -> Result<Entry> {
        Err(READ_ONLY)
    }

    fn mkdir(&self, _: &Caller, _: Ino, _: &[u8], _: CreateArgs) -> Result<Entry> {
        Err(READ_ONLY)
    }

    fn symlink(&self, _: &Caller, _: Ino, _: &[u8], _: &[u8]) -> Result<Entry> {
        Err(READ_ONLY)
    }

    fn link(&self, _: &Caller, _: Ino, _: Ino, _: &[u8]) -> Result<Entry> {
        Err(READ_ONLY)
    }

    fn unlink(&self, _: &Caller, _: Ino, _: &[u8]) -> Result<()> {
        Err(READ_ONLY)
    }

    fn rmdir(&self, _: &Caller, _: Ino, _: &[u8]) -> Result<()> {
        Err(READ_ONLY)
    }

    fn rename(&self, _: &Caller, _: Ino, _: &[u8], _: Ino, _: &[u8], _: u32) -> Result<()> {
        Err(READ_ONLY)
    }

    fn create(
        &self,
        _: &Caller,
        _: Ino,
        _: &[u8],
        _: CreateArgs,
        _: bool,
    ) -> Result<(Entry, Opened)> {
        Err(READ_ONLY)
    }

    fn tmpfile(&self, _: &Caller, _: Ino, _: CreateArgs, _: bool) -> Result<(Entry, Opened)> {
        Err(READ_ONLY)
    }

    fn fsyncdir(&self, _: Ino) -> Result<()> {
        Ok(())
    }

    fn dir_limit(&self, own: Ino) -> Result<Cookie> {
        self.on(|fs, generation| fs.dir_limit(self.there(fs, generation, own)?))
    }

    fn readdir(
        &self,
        own: Ino,
        after: Cookie,
        limit: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list(own, (after, limit), false, sink)
    }

    fn readdir_plus(
        &self,
        own: Ino,
        after: Cookie,
        limit: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list(own, (after, limit), true, sink)
    }

    fn entry_ttl(&self, parent: Ino) -> Duration {
        let current = self.current.read().clone();
        let there = self.known_there(current.generation, parent);
        there.map_or(Duration::ZERO, |there| current.fs.entry_ttl(there))
    }
}

impl AttrOps for Failover {
    fn getattr(&self, own: Ino) -> Result<Attr> {
        self.on(|fs, generation| {
            let there = self.there(fs, generation, own)?;
            Ok(self.attr(own, fs.getattr(there)?))
        })
    }

    fn setattr(&self, _: &Caller, _: Ino, _: &SetAttr) -> Result<Attr> {
        Err(READ_ONLY)
    }

    fn attr_ttl(&self, own: Ino) -> Duration {
        let current = self.current.read().clone();
        let there = self.known_there(current.generation, own);
        there.map_or(Duration::ZERO, |there| current.fs.attr_ttl(there))
    }
}

impl DataOps for Failover {
    fn open(
        &self,
        caller: &Caller,
        own: Ino,
        open_flags: u32,
        kill_suid: bool,
        want_local: bool,
    ) -> Result<Opened> {
        self.on(|fs, generation| {
            let there = self.there(fs, generation, own)?;
            let opened = fs.open(caller, there, open_flags, kill_suid, want_local)?;
            let mut table = self.table.lock();
            if let Some(known) = table.known.get_mut(&own) {
                known.opens += 1;
                if let Some(there) = known.there.as_mut().filter(|t| t.generation == generation) {
                    there.opens += 1;
                }
            }
            Ok(opened)
        })
    }

    fn flush(&self, _ino: Ino) -> Result<()> {
        Ok(())
    }

    fn read(&self, own: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let buffer = std::cell::RefCell::new(buffer);
        self.on(|fs, generation| {
            let there = self.there(fs, generation, own)?;
            fs.read(there, offset, &mut buffer.borrow_mut())
        })
    }

    fn write(&self, _: Ino, _: u64, _: &[u8], _: WriteMode) -> Result<usize> {
        Err(READ_ONLY)
    }

    fn fsync(&self, _: Ino, _: bool) -> Result<()> {
        Ok(())
    }

    fn fallocate(&self, _: Ino, _: u32, _: u64, _: u64) -> Result<()> {
        Err(READ_ONLY)
    }

    fn seek(&self, own: Ino, offset: u64, whence: u32) -> Result<u64> {
        self.on(|fs, generation| fs.seek(self.there(fs, generation, own)?, offset, whence))
    }

    fn copy_file_range(&self, _: Ino, _: u64, _: Ino, _: u64, _: u64) -> Result<u64> {
        Err(READ_ONLY)
    }

    fn release(&self, own: Ino, local: bool) {
        let current = self.current.read().clone();
        let (told, gone) = {
            let mut table = self.table.lock();
            let Some(known) = table.known.get_mut(&own) else { return };
            known.opens = known.opens.saturating_sub(1);
            let now = known.there.as_mut().filter(|t| t.generation == current.generation);
            let told = now.filter(|there| there.opens > 0).map(|there| {
                there.opens -= 1;
                there.ino
            });
            (told, drop_unused(&mut table, own))
        };
        if let Some(ino) = told {
            current.fs.release(ino, local);
        }
        if let Some(there) = gone.filter(|there| there.generation == current.generation) {
            current.fs.forget(there.ino, there.references);
        }
    }
}

impl XattrOps for Failover {
    fn getxattr(&self, own: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.on(|fs, generation| fs.getxattr(self.there(fs, generation, own)?, name))
    }

    fn listxattr(&self, own: Ino) -> Result<Vec<u8>> {
        self.on(|fs, generation| fs.listxattr(self.there(fs, generation, own)?))
    }

    fn setxattr(&self, _: &Caller, _: Ino, _: &[u8], _: &[u8], _: u32, _: bool) -> Result<()> {
        Err(READ_ONLY)
    }

    fn removexattr(&self, _: &Caller, _: Ino, _: &[u8]) -> Result<()> {
        Err(READ_ONLY)
    }
}

impl FileSystem for Failover {
    fn statfs(&self) -> Result<StatFs> {
        self.on(|fs, _| fs.statfs())
    }

    fn sync_all(&self) -> Result<()> {
        Ok(())
    }

    fn finds_by_number(&self) -> bool {
        false
    }

    fn may_hang(&self) -> bool {
        true
    }

    fn is_answering(&self) -> bool {
        let current = self.current.read().clone();
        current.fs.is_answering()
    }

    fn set_notify(&self, notify: Arc<dyn Notify>) {
        *self.notify.write() = Some(notify);
        let current = self.current.read().clone();
        self.tell(&current.fs, current.generation);
    }
}
