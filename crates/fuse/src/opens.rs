//! Which inodes are open, and how: one entry for each open inode.
//!
//! The kernel wants one kind of access for an inode as long as any file of it is open, and
//! one backing id; any other mixture is EIO at open. So the first open decides and the last
//! release undoes. Invariants:
//! * an id is registered under the shard's lock, in the same step that makes the entry, so an
//!   inode never has two;
//! * an open is counted before its reply is sent, so an id is not given back while an answer
//!   that names it is under way;
//! * the kernel ends its own use of an id before it sends RELEASE, so giving the id back when
//!   the count reaches zero can never pull it from under an open file;
//! * what the kernel may store into by a mapping without anybody noticing is known ([`OpenTable::attr_limit`]):
//!   a mapping goes to the object itself, so it can outlive the file's close, but not the kernel's inode;
//! * the file system hears of the end of each of its opens once ([`Releases`]): as often
//!   with `local` as opens came with a local file, the last time not before the kernel has ended
//!   its use of it.

use crate::device::{BackingId, Device};
use forebay_proto::{Errno, Ino};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Locks that the table is spread over.
const SHARDS: usize = 64;
/// Most inodes open at once in one shard; ENFILE beyond. The kernel's own limits of open files
/// are far below this, so it bounds memory if it ever sent opens without releases.
const MAX_OPEN_PER_SHARD: usize = 1 << 16;

/// Most inodes in one shard that were mapped and may still be; beyond, attributes of all are believed for
/// [`TTL_AFTER_MAPPING`] at most.
const MAX_MAPPED_PER_SHARD: usize = 1 << 10;
/// How long the kernel may believe attributes of a file that it may have mapped for writing though it is closed.
const TTL_AFTER_MAPPING: Duration = Duration::from_secs(1);

/// How an open inode is accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    /// The kernel reads and writes the object itself.
    Passthrough(BackingId),
    /// Reads and writes are requests.
    Served,
}

/// Opens of an inode that the file system is to be told the end of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use]
pub(crate) struct Releases {
    /// With a local file.
    pub(crate) local: u64,
    /// Without.
    pub(crate) plain: u64,
}

struct Open {
    access: Access,
    /// Opens that the file system has granted and the kernel has not released.
    granted: u64,
    /// Opens that the file system is being asked for.
    asked: u64,
    /// Local files that came with opens and were not released.
    locals: u64,
    /// Opens that have ended and were not released.
    ended: u64,
    /// The kernel may have it mapped for writing.
    maps: bool,
    /// It was opened with O_SYNC or O_DSYNC.
    synchronous: bool,
}

/// One part of the table.
#[derive(Default)]
struct Shard {
    open: HashMap<Ino, Open>,
    /// Not open any more; they may still be mapped for writing, until the kernel forgets them.
    mapped: HashSet<Ino>,
}

impl Open {
    fn first(access: Access, local: bool) -> Open {
        let locals = u64::from(local);
        Open { access, granted: 1, asked: 0, locals, ended: 0, maps: false, synchronous: false }
    }

    /// Which ended opens can be released now. The last local file goes with the last open,
    /// whichever that is: the kernel uses it until then. So an end may have to wait for what
    /// becomes of an open that is being asked for.
    fn settle(&mut self) -> Releases {
        let mut out = Releases::default();
        let in_use = self.granted + self.asked > 0;
        while self.ended > 0 {
            if self.locals > u64::from(in_use) {
                self.locals -= 1;
                out.local += 1;
            } else if self.locals == 1 && self.granted == 0 && self.ended == 1 {
                break;
            } else {
                out.plain += 1;
            }
            self.ended -= 1;
        }
        out
    }
}

/// The table.
pub(crate) struct OpenTable {
    shards: [Mutex<Shard>; SHARDS],
    /// Inodes that are mapped for writing, or were: most mounts have none, and look no further.
    may_be_mapped: AtomicUsize,
    /// There were too many to know them.
    too_many: AtomicBool,
}

impl OpenTable {
    pub(crate) fn new() -> OpenTable {
        OpenTable {
            shards: std::array::from_fn(|_| Mutex::default()),
            may_be_mapped: AtomicUsize::new(0),
            too_many: AtomicBool::new(false),
        }
    }

    /// An open for reading and writing by passthrough was counted, and is about to be answered: from now on the kernel
    /// may store into a mapping. True if that is news.
    pub(crate) fn may_map(&self, ino: Ino) -> bool {
        let mut shard = self.shard(ino).lock();
        let known = shard.mapped.remove(&ino);
        let Some(open) = shard.open.get_mut(&ino) else { return false };
        let news = !std::mem::replace(&mut open.maps, true);
        if news && !known {
            self.may_be_mapped.fetch_add(1, Ordering::AcqRel);
        }
        news
    }

    /// An open with O_SYNC or O_DSYNC was counted.
    pub(crate) fn note_synchronous(&self, ino: Ino) {
        if let Some(open) = self.shard(ino).lock().open.get_mut(&ino) {
            open.synchronous = true;
        }
    }

    /// Whether one of the opens since the inode was not open last was with O_SYNC or O_DSYNC: what is written by a request that
    /// does not tell the flags of its file goes to flash.
    pub(crate) fn is_synchronous(&self, ino: Ino) -> bool {
        self.shard(ino).lock().open.get(&ino).is_some_and(|open| open.synchronous)
    }

    /// How long the kernel may believe attributes of an inode, as far as mappings are concerned: stores into one change
    /// mtime, ctime and blocks of the object, and neither the kernel's FUSE nor this process hears of it.
    pub(crate) fn attr_limit(&self, ino: Ino) -> Duration {
        if self.may_be_mapped.load(Ordering::Acquire) == 0 {
            return Duration::MAX;
        }
        let shard = self.shard(ino).lock();
        match shard.open.get(&ino) {
            Some(open) if open.maps => Duration::ZERO,
            _ if shard.mapped.contains(&ino) => TTL_AFTER_MAPPING,
            _ if self.too_many.load(Ordering::Relaxed) => TTL_AFTER_MAPPING,
            _ => Duration::MAX,
        }
    }

    /// The kernel has given references back. It keeps an inode as long as one is mapped.
    pub(crate) fn forgotten(&self, ino: Ino) {
        if self.may_be_mapped.load(Ordering::Acquire) > 0
            && self.shard(ino).lock().mapped.remove(&ino)
        {
            self.may_be_mapped.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[(ino.0 ^ (ino.0 >> 48)) as usize % SHARDS]
    }

    /// Counts one more open, that the file system has not granted yet, if the inode is open
    /// already. [`OpenTable::granted`] or [`OpenTable::refused`] follows.
    pub(crate) fn join(&self, ino: Ino) -> Option<Access> {
        let mut shard = self.shard(ino).lock();
        let open = shard.open.get_mut(&ino)?;
        open.asked += 1;
        Some(open.access)
    }

    /// An open that joined was granted, with a local file or without.
    pub(crate) fn granted(&self, ino: Ino, local: bool) -> Releases {
        let mut shard = self.shard(ino).lock();
        let Some(open) = shard.open.get_mut(&ino) else { return Releases::default() };
        open.asked -= 1;
        open.granted += 1;
        open.locals += u64::from(local);
        open.settle()
    }

    /// An open that joined was refused.
    pub(crate) fn refused(&self, ino: Ino, device: &Device) -> Releases {
        self.less(ino, device, |open| open.asked -= 1)
    }

    /// Counts one more open that was granted; the first one decides by whether `local` can be
    /// registered.
    pub(crate) fn join_or_decide(
        &self,
        ino: Ino,
        local: Option<&File>,
        device: &Device,
    ) -> Result<Access, Errno> {
        let mut shard = self.shard(ino).lock();
        if let Some(open) = shard.open.get_mut(&ino) {
            open.granted += 1;
            open.locals += u64::from(local.is_some());
            return Ok(open.access);
        }
        if shard.open.len() >= MAX_OPEN_PER_SHARD {
            return Err(Errno::ENFILE);
        }
        let access = match local.map(|file| device.backing_open(file)) {
            Some(Ok(id)) => Access::Passthrough(id),
            Some(Err(error)) => {
                tracing::warn!(%ino, %error, "no passthrough for this file until its last close");
                Access::Served
            }
            None => Access::Served,
        };
        shard.open.insert(ino, Open::first(access, local.is_some()));
        Ok(access)
    }

    /// Counts one open less; the last one gives the registration back.
    pub(crate) fn leave(&self, ino: Ino, device: &Device) -> Releases {
        self.less(ino, device, |open| {
            open.granted -= 1;
            open.ended += 1;
        })
    }

    fn less(&self, ino: Ino, device: &Device, less: impl FnOnce(&mut Open)) -> Releases {
        let (releases, access) = {
            let mut shard = self.shard(ino).lock();
            let Some(open) = shard.open.get_mut(&ino) else { return Releases::default() };
            less(open);
            let releases = open.settle();
            if open.granted + open.asked > 0 {
                return releases;
            }
            let ended = shard.open.remove(&ino);
            if ended.as_ref().is_some_and(|open| open.maps) {
                self.was_mapped(&mut shard, ino);
            }
            (releases, ended.map(|open| open.access))
        };
        if let Some(Access::Passthrough(id)) = access {
            if let Err(error) = device.backing_close(id) {
                tracing::warn!(%ino, id = id.0, %error, "cannot give a backing file back");
            }
        }
        releases
    }

    /// The last file is closed; a mapping may be left.
    fn was_mapped(&self, shard: &mut Shard, ino: Ino) {
        match shard.mapped.len() < MAX_MAPPED_PER_SHARD {
            true => drop(shard.mapped.insert(ino)),
            // It stays counted, so that what is not known is believed for a short time only.
            false => self.too_many.store(true, Ordering::Relaxed),
        }
    }

    /// The inodes open now.
    pub(crate) fn open_inodes(&self) -> Vec<Ino> {
        self.shards.iter().flat_map(|s| s.lock().open.keys().copied().collect::<Vec<_>>()).collect()
    }

    /// How the inode is open, `None` if it is not.
    pub(crate) fn access(&self, ino: Ino) -> Option<Access> {
        self.shard(ino).lock().open.get(&ino).map(|open| open.access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: Releases = Releases { local: 1, plain: 0 };
    const PLAIN: Releases = Releases { local: 0, plain: 1 };
    const NONE: Releases = Releases { local: 0, plain: 0 };

    fn setup() -> (OpenTable, Device, File) {
        let file = File::options().read(true).write(true).open("/dev/null").unwrap();
        let device = Device::new(file.try_clone().unwrap().into());
        (OpenTable::new(), device, file)
    }

    #[test]
    fn the_local_file_is_released_with_the_last_open() {
        let (table, device, file) = setup();
        let ino = Ino(7);
        table.join_or_decide(ino, Some(&file), &device).unwrap();
        assert!(table.join(ino).is_some());
        assert_eq!(table.granted(ino, false), NONE);
        assert_eq!(table.leave(ino, &device), PLAIN, "the other one still uses it");
        assert_eq!(table.leave(ino, &device), LOCAL);
        assert_eq!(table.access(ino), None);
    }

    #[test]
    fn an_open_under_way_decides_what_an_end_was() {
        let (table, device, file) = setup();
        let ino = Ino(7);
        for granted in [false, true] {
            table.join_or_decide(ino, Some(&file), &device).unwrap();
            assert!(table.join(ino).is_some());
            assert_eq!(table.leave(ino, &device), NONE);
            if granted {
                assert_eq!(table.granted(ino, false), PLAIN);
                assert_eq!(table.leave(ino, &device), LOCAL);
            } else {
                assert_eq!(table.refused(ino, &device), LOCAL);
            }
            assert_eq!(table.access(ino), None);
        }
    }

    #[test]
    fn what_may_be_mapped_is_known_until_the_kernel_forgets_it() {
        let (table, device, file) = setup();
        let ino = Ino(7);
        table.join_or_decide(ino, Some(&file), &device).unwrap();
        assert_eq!(table.attr_limit(ino), Duration::MAX);
        assert!(table.may_map(ino) && !table.may_map(ino), "told once");
        assert_eq!(
            (table.attr_limit(ino), table.attr_limit(Ino(8))),
            (Duration::ZERO, Duration::MAX)
        );
        assert_eq!(table.leave(ino, &device), LOCAL);
        assert_eq!(table.attr_limit(ino), TTL_AFTER_MAPPING, "the mapping may be left");
        table.join_or_decide(ino, Some(&file), &device).unwrap();
        assert!(table.may_map(ino));
        assert_eq!(table.leave(ino, &device), LOCAL);
        table.forgotten(ino);
        assert_eq!(table.attr_limit(ino), Duration::MAX);
        assert_eq!(table.may_be_mapped.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_file_is_synchronous_until_its_last_close() {
        let (table, device, _) = setup();
        let ino = Ino(7);
        table.note_synchronous(ino);
        table.join_or_decide(ino, None, &device).unwrap();
        assert!(!table.is_synchronous(ino));
        table.join_or_decide(ino, None, &device).unwrap();
        table.note_synchronous(ino);
        assert_eq!(table.leave(ino, &device), PLAIN);
        assert!(table.is_synchronous(ino) && !table.is_synchronous(Ino(8)));
        assert_eq!(table.leave(ino, &device), PLAIN);
        table.join_or_decide(ino, None, &device).unwrap();
        assert!(!table.is_synchronous(ino));
    }

    #[test]
    fn each_local_file_of_a_race_is_released() {
        let (table, device, file) = setup();
        let ino = Ino(7);
        table.join_or_decide(ino, Some(&file), &device).unwrap();
        table.join_or_decide(ino, Some(&file), &device).unwrap();
        table.join_or_decide(ino, None, &device).unwrap();
        assert_eq!(table.leave(ino, &device), LOCAL);
        assert_eq!(table.leave(ino, &device), PLAIN);
        assert_eq!(table.leave(ino, &device), LOCAL);
    }
}
