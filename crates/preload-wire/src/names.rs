//! Names, rights and attributes in shared memory: the process of a mount writes, programs of the same user read, so that
//! a look at a file, and an open that changes nothing, cost no question.
//!
//! It is a cache of what is certain. What is not in it is asked for. What changes is taken out before the change is made, so
//! what is found was so at the moment that [`Names::still`] says so. Programs map it for reading alone.
//!
//! Two tables of sets with [`WAYS`] places: what a name in a directory leads to, and what an inode grants. A place is a
//! line of words, read without a lock: its first word is odd while it is changed, and another one afterwards.
//!
//! The table ends with the process that writes it: a thread there has the kernel mark [`Head::alive`] when it ends, however
//! it ends (set_robust_list(2)).

use crate::Attributes;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Of this layout; another one is not used.
const LAYOUT: u32 = 2;
/// Places of a set.
const WAYS: usize = 4;
/// Sets of either table.
const SETS: usize = 1 << 13;
/// Preferred I/O size that is told of a file, in bytes.
pub const BLKSIZE_BYTES: u32 = 1 << 20;
/// Longest name that has a place.
pub const NAME_MAX: usize = 88;

/// Words of a place for a name: version, hash, directory, inode, length, and the text.
const NAME_WORDS: usize = 16;
const TEXT_AT: usize = 5;
/// Words of a place for an inode: version, number, mode and flags, owner, names, and two times.
const INODE_WORDS: usize = 8;
const _: () = assert!((NAME_WORDS - TEXT_AT) * 8 == NAME_MAX);

const NAMES_AT: usize = 4096;
const INODES_AT: usize = NAMES_AT + SETS * WAYS * NAME_WORDS * 8;
/// Size of the whole.
pub const BYTES: usize = INODES_AT + SETS * WAYS * INODE_WORDS * 8;

/// FUTEX_OWNER_DIED and what else a word may have beside the thread: linux/futex.h.
const THREAD_MASK: u32 = 0x3fff_ffff;

/// [`Inode::flags`].
pub mod flags {
    /// A regular file that is one object of this store.
    pub const WHOLE: u32 = 1;
    /// It has xattrs: an ACL perhaps.
    pub const XATTRS: u32 = 2;
    /// The kernel believes no attributes of it: a program may open it by itself.
    pub const FREE: u32 = 4;
}

/// The first page.
#[repr(C)]
struct Head {
    layout: AtomicU32,
    /// The thread that lives as long as the mount; another value when it has ended.
    alive: AtomicU32,
    /// The same number, not changed by anybody.
    keeper: AtomicU32,
    /// 0: nothing is to be opened by it now.
    open: AtomicU32,
    /// The kernel's list of words that a thread answers for: one node, that leads back to the list's head.
    node: AtomicU64,
    list: [AtomicU64; 3],
}

/// What an inode grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// [`flags`].
    pub flags: u32,
    /// Names.
    pub nlink: u32,
    /// Last change that is not the object's own: seconds and nanoseconds.
    pub ctime: (i64, u32),
    /// Creation.
    pub btime: (i64, u32),
}

impl Inode {
    /// Whether owner and mode certainly grant a user `want` (4: read, 1: use a directory).
    pub fn grants(&self, uid: u32, want: u32) -> bool {
        if self.uid == uid {
            return self.mode >> 6 & want == want;
        }
        // Which groups a process is in, and what an ACL says, the mount's process knows.
        self.flags & flags::XATTRS == 0 && self.mode & self.mode >> 3 & want == want
    }
}

/// A file that a path leads to, as it was when the path was gone, and the places that say so: of the last name, and of
/// the file.
#[derive(Clone, Copy, Debug)]
pub struct Led {
    /// Its number.
    pub ino: u64,
    /// What it grants.
    pub inode: Inode,
    by: [Place; 2],
}

impl Led {
    /// Whether the user may open it alone for reading.
    pub fn may_be_opened(&self, uid: u32) -> bool {
        self.inode.flags & flags::FREE != 0 && self.inode.grants(uid, 4)
    }

    /// Its attributes, with what the kernel says of its object. `None`: it was changed after that, and who shows this sees to it
    /// that the next change is later still: the mount's process is to be asked.
    pub fn attributes(&self, object: &libc::statx) -> Option<Attributes> {
        let Inode { ctime, btime, .. } = self.inode;
        let time = |time: libc::statx_timestamp| (time.tv_sec, time.tv_nsec);
        if ctime > time(object.stx_ctime) {
            return None;
        }
        let times = [time(object.stx_atime), time(object.stx_mtime), time(object.stx_ctime), btime];
        Some(Attributes {
            ino: self.ino,
            size_bytes: object.stx_size,
            blocks_512: object.stx_blocks,
            sec: times.map(|(sec, _)| sec),
            nsec: times.map(|(_, nsec)| nsec),
            mode: self.inode.mode,
            nlink: self.inode.nlink,
            uid: self.inode.uid,
            gid: self.inode.gid,
            blksize_bytes: BLKSIZE_BYTES,
            padding: 0,
        })
    }
}

/// Flags of `open(2)` that an open alone may have.
const ALONE: i32 = libc::O_NONBLOCK
    | libc::O_NOCTTY
    | libc::O_NOFOLLOW
    | libc::O_CLOEXEC
    | libc::O_APPEND
    | LARGEFILE;
/// O_LARGEFILE as C programs give it; `libc` has 0 for it.
const LARGEFILE: i32 = if cfg!(target_arch = "aarch64") { 0o400_000 } else { 0o100_000 };

/// The flags that the object of a file is opened with alone; `None`: by these nothing is opened alone.
pub fn object_flags(open_flags: i32) -> Option<i32> {
    let kept = libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_APPEND;
    (open_flags & !ALONE == 0).then_some(libc::O_RDONLY | libc::O_NOFOLLOW | (open_flags & kept))
}

/// Room for the path of an object.
pub const OBJECT_PATH_MAX: usize = 512;

/// The path of a file's object in a store; `None` if there is no room for it.
pub fn object_path<'a>(
    store: &[u8],
    ino: u64,
    room: &'a mut [u8; OBJECT_PATH_MAX],
) -> Option<&'a CStr> {
    let object = object_name(ino);
    let mut length = 0;
    for part in [store, b"/data/", &object, b"\0"] {
        room.get_mut(length..length + part.len())?.copy_from_slice(part);
        length += part.len();
    }
    CStr::from_bytes_with_nul(&room[..length]).ok()
}

/// A place as it was when it was read.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    at: usize,
    version: u64,
}

/// The memory, of either side.
#[derive(Clone, Copy)]
pub struct Names(*mut u8);

// SAFETY: all in it are atomic numbers.
unsafe impl Send for Names {}
// SAFETY: as above.
unsafe impl Sync for Names {}

/// The name of a file's object below the objects' directory, as `forebay_store::objects` makes it.
pub fn object_name(ino: u64) -> [u8; 21] {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut name = *b"00/0000000000000000.0";
    let fan = (ino / 64) as usize % 256;
    (name[0], name[1]) = (HEX[fan >> 4], HEX[fan & 15]);
    for digit in 0..16 {
        name[3 + digit] = HEX[(ino >> (60 - 4 * digit)) as usize & 15];
    }
    name
}

fn mix(hash: u64, word: u64) -> u64 {
    let wide = u128::from(hash ^ word) * 0x9e37_79b9_7f4a_7c15;
    (wide as u64) ^ (wide >> 64) as u64
}

/// Never 0.
fn hash_of(dir: u64, name: &[u8]) -> u64 {
    let mut hash = mix(0x243f_6a88_85a3_08d3, dir);
    for piece in name.chunks(8) {
        hash = mix(hash, word_of(piece));
    }
    mix(hash, name.len() as u64) | 1
}

fn word_of(piece: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..piece.len()].copy_from_slice(piece);
    u64::from_le_bytes(bytes)
}

impl Names {
    /// Memory of [`BYTES`] that a mount has filled; `None` if it is of another layout.
    ///
    /// # Safety
    /// The address of a mapping of that size, shared, that stays.
    pub unsafe fn of(address: *mut u8) -> Option<Names> {
        let names = Names(address);
        (names.head().layout.load(Ordering::Acquire) == LAYOUT).then_some(names)
    }

    fn head(&self) -> &Head {
        // SAFETY: the mapping begins with it, is aligned to a page, and stays.
        unsafe { &*self.0.cast::<Head>() }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at.is_multiple_of(8) && at < BYTES);
        // SAFETY: within the mapping, aligned to a word.
        unsafe { &*self.0.add(at).cast::<AtomicU64>() }
    }

    fn names_of(hash: u64) -> [usize; WAYS] {
        let set = (hash >> 16) as usize % SETS;
        std::array::from_fn(|way| NAMES_AT + (set * WAYS + way) * NAME_WORDS * 8)
    }

    fn inodes_of(ino: u64) -> [usize; WAYS] {
        let set = ino as usize % SETS;
        std::array::from_fn(|way| INODES_AT + (set * WAYS + way) * INODE_WORDS * 8)
    }

    /// Whether the mount is there, and lets files be opened.
    #[inline]
    pub fn are_kept(&self) -> bool {
        let head = self.head();
        let keeper = head.keeper.load(Ordering::Acquire);
        keeper != 0
            && head.alive.load(Ordering::Acquire) & THREAD_MASK == keeper
            && head.open.load(Ordering::Acquire) == 1
    }

    /// Whether files may be opened by it, as long as the mount is there.
    pub fn are_open(&self) -> bool {
        self.head().open.load(Ordering::Acquire) == 1
    }

    /// Whether a place is as it was when it was read.
    #[inline]
    pub fn still(&self, place: Place) -> bool {
        fence(Ordering::SeqCst);
        self.word(place.at).load(Ordering::Acquire) == place.version
    }

    fn read<T>(&self, at: usize, read: impl FnOnce() -> Option<T>) -> Option<(T, Place)> {
        let version = self.word(at).load(Ordering::Acquire);
        if version & 1 == 1 {
            return None;
        }
        let seen = read()?;
        fence(Ordering::Acquire);
        let same = self.word(at).load(Ordering::Relaxed) == version;
        same.then_some((seen, Place { at, version }))
    }

    /// What a name in a directory leads to; `None`: that is to be asked for.
    pub fn name(&self, dir: u64, name: &[u8]) -> Option<(u64, Place)> {
        if name.len() > NAME_MAX {
            return None;
        }
        let hash = hash_of(dir, name);
        Names::names_of(hash).into_iter().find_map(|at| {
            self.read(at, || self.is_name(at, hash, dir, name).then(|| self.load(at, 3)))
        })
    }

    /// What an inode grants; `None`: that is to be asked for.
    pub fn inode(&self, ino: u64) -> Option<(Inode, Place)> {
        Names::inodes_of(ino)
            .into_iter()
            .find_map(|at| self.read(at, || (self.load(at, 1) == ino).then(|| self.load_inode(at))))
    }

    /// Whether a place is that of a name.
    fn is_name(&self, at: usize, hash: u64, dir: u64, name: &[u8]) -> bool {
        let is_word = |(i, piece)| self.load(at, TEXT_AT + i) == word_of(piece);
        self.load(at, 1) == hash
            && self.load(at, 2) == dir
            && self.load(at, 4) == name.len() as u64
            && name.chunks(8).enumerate().all(is_word)
    }

    /// The file that a path leads to from a directory, for a user who may pass there.
    pub fn file(&self, start: u64, path: &[u8], uid: u32) -> Option<Led> {
        if path.ends_with(b"/") || path.ends_with(b"/.") {
            return None;
        }
        let mut parts = path
            .split(|byte| *byte == b'/')
            .filter(|part| !part.is_empty() && part != b".")
            .peekable();
        let mut dir = start;
        while let Some(part) = parts.next() {
            if part == b".." {
                return None;
            }
            let (inode, _) = self.inode(dir)?;
            if inode.mode & libc::S_IFMT != libc::S_IFDIR || !inode.grants(uid, 1) {
                return None;
            }
            let (ino, name) = self.name(dir, part)?;
            if parts.peek().is_none() {
                let (inode, place) = self.inode(ino)?;
                let whole = inode.flags & flags::WHOLE != 0;
                return whole.then_some(Led { ino, inode, by: [name, place] });
            }
            dir = ino;
        }
        None
    }

    /// Whether a path leads there still, and the mount is there.
    pub fn leads_still(&self, led: &Led) -> bool {
        led.by.iter().all(|&place| self.still(place)) && self.are_kept()
    }

    fn load(&self, at: usize, word: usize) -> u64 {
        self.word(at + word * 8).load(Ordering::Relaxed)
    }

    fn load_inode(&self, at: usize) -> Inode {
        let (what, owner) = (self.load(at, 2), self.load(at, 3));
        let nanoseconds = self.load(at, 6);
        Inode {
            mode: what as u32,
            flags: (what >> 32) as u32,
            uid: owner as u32,
            gid: (owner >> 32) as u32,
            nlink: self.load(at, 4) as u32,
            ctime: (self.load(at, 5) as i64, nanoseconds as u32),
            btime: (self.load(at, 7) as i64, (nanoseconds >> 32) as u32),
        }
    }
}

/// The side that writes: one thread at a time.
pub struct Writer {
    names: Names,
    /// The place of a full set that is taken next.
    next: usize,
}

impl Writer {
    /// Begins in fresh memory of [`BYTES`] zeros.
    ///
    /// # Safety
    /// As for [`Names::of`]; nobody else writes there.
    pub unsafe fn begin(address: *mut u8) -> Writer {
        let names = Names(address);
        names.head().layout.store(LAYOUT, Ordering::Release);
        Writer { names, next: 0 }
    }

    /// The same memory, for reading.
    pub fn names(&self) -> Names {
        self.names
    }

    /// Makes the calling thread the one whose end, however it comes, ends the table. It may keep no other lock of
    /// that kind.
    #[cfg(target_os = "linux")]
    pub fn keep_by_this_thread(&self) {
        let head = self.names.head();
        // SAFETY: no arguments.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
        let list = (&raw const head.list).addr() as u64;
        let node = (&raw const head.node).addr() as u64;
        let word = (&raw const head.alive).addr() as u64;
        // struct robust_list_head: the list, where a word is from its node, and none that is being taken.
        head.node.store(list, Ordering::Relaxed);
        head.list[0].store(node, Ordering::Relaxed);
        head.list[1].store(word.wrapping_sub(node), Ordering::Relaxed);
        head.list[2].store(0, Ordering::Relaxed);
        // SAFETY: a list of the kernel's form, that stays as long as the process.
        let done = unsafe { libc::syscall(libc::SYS_set_robust_list, list, 24) };
        if done == 0 {
            head.alive.store(thread, Ordering::Release);
            head.keeper.store(thread, Ordering::Release);
        }
    }

    /// Whether programs may open files by it.
    pub fn set_open(&self, yes: bool) {
        self.names.head().open.store(u32::from(yes), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    fn write(&self, at: usize, write: impl FnOnce(&dyn Fn(usize, u64))) {
        let version = self.names.word(at).load(Ordering::Relaxed);
        self.names.word(at).store(version | 1, Ordering::Relaxed);
        fence(Ordering::Release);
        write(&|word, value| self.names.word(at + word * 8).store(value, Ordering::Relaxed));
        self.names.word(at).store((version | 1) + 1, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// The place of what is there already, an empty one, or one that something else gives up.
    fn place_for(&mut self, places: [usize; WAYS], is_it: impl Fn(usize) -> bool) -> usize {
        let known = places.iter().find(|&&at| is_it(at));
        let empty = || places.iter().find(|&&at| self.names.load(at, 1) == 0);
        if let Some(&at) = known.or_else(empty) {
            return at;
        }
        self.next = (self.next + 1) % WAYS;
        places[self.next]
    }

    /// A name leads to this inode. Tells its place, by which [`Writer::name_of`] finds it again.
    pub fn put_name(&mut self, dir: u64, name: &[u8], ino: u64) -> Option<usize> {
        if name.is_empty() || name.len() > NAME_MAX {
            return None;
        }
        let hash = hash_of(dir, name);
        let names = self.names;
        let at = self.place_for(Names::names_of(hash), |at| names.is_name(at, hash, dir, name));
        self.write(at, |put| {
            for (word, value) in [(1, hash), (2, dir), (3, ino), (4, name.len() as u64)] {
                put(word, value);
            }
            name.chunks(8).enumerate().for_each(|(i, piece)| put(TEXT_AT + i, word_of(piece)));
        });
        Some(at)
    }

    /// What a name leads to is not certain any more.
    pub fn drop_name(&mut self, dir: u64, name: &[u8]) {
        let hash = hash_of(dir, name);
        for at in Names::names_of(hash) {
            if self.names.is_name(at, hash, dir, name) {
                self.write(at, |put| put(1, 0));
            }
        }
    }

    /// An inode grants this. Tells which other one had to go for it, if that was free.
    pub fn put_inode(&mut self, ino: u64, inode: Inode) -> Option<u64> {
        let names = self.names;
        let at = self.place_for(Names::inodes_of(ino), |at| names.load(at, 1) == ino);
        let (before, what) = (names.load(at, 1), names.load_inode(at));
        self.write(at, |put| {
            put(1, ino);
            put(2, u64::from(inode.mode) | u64::from(inode.flags) << 32);
            put(3, u64::from(inode.uid) | u64::from(inode.gid) << 32);
            put(4, u64::from(inode.nlink));
            put(5, inode.ctime.0 as u64);
            put(6, u64::from(inode.ctime.1) | u64::from(inode.btime.1) << 32);
            put(7, inode.btime.0 as u64);
        });
        let other = before != 0 && before != ino && what.flags & flags::FREE != 0;
        other.then_some(before)
    }

    /// What an inode grants is not certain any more.
    pub fn drop_inode(&mut self, ino: u64) {
        for at in Names::inodes_of(ino) {
            if self.names.load(at, 1) == ino {
                self.write(at, |put| put(1, 0));
            }
        }
    }

    /// The directory and the name that lead to an inode, if they are still at this place.
    pub fn name_of(&self, at: usize, ino: u64) -> Option<(u64, Vec<u8>)> {
        if self.names.load(at, 1) == 0 || self.names.load(at, 3) != ino {
            return None;
        }
        let length = (self.names.load(at, 4) as usize).min(NAME_MAX);
        let words = (TEXT_AT..NAME_WORDS).map(|word| self.names.load(at, word).to_le_bytes());
        let mut name: Vec<u8> = words.flatten().collect();
        name.truncate(length);
        Some((self.names.load(at, 2), name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Memory(*mut u8);

    impl Memory {
        fn new() -> Memory {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping.
            let address =
                unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, flags, -1, 0) };
            assert_ne!(address, libc::MAP_FAILED);
            Memory(address.cast())
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: the mapping made above.
            unsafe { libc::munmap(self.0.cast(), BYTES) };
        }
    }

    const FILE: Inode = Inode {
        mode: 0o100_644,
        uid: 5,
        gid: 6,
        flags: flags::WHOLE,
        nlink: 2,
        ctime: (-1, 999_999_999),
        btime: (7, 8),
    };

    #[test]
    fn what_was_put_is_found_until_it_is_dropped_and_a_place_knows_that_it_changed() {
        let memory = Memory::new();
        // SAFETY: fresh memory of that size.
        let mut writer = unsafe { Writer::begin(memory.0) };
        let names = writer.names();
        let put: [(&[u8], u64); 4] =
            [(b"a", 7), (b"a\0", 8), (b"12345678", 9), (&[b'x'; NAME_MAX], 10)];
        let places = put.map(|(name, ino)| writer.put_name(1, name, ino).unwrap());
        assert_eq!(names.name(1, b"a").map(|(ino, _)| ino), Some(7));
        assert_eq!(names.name(1, b"a\0").map(|(ino, _)| ino), Some(8), "the length counts");
        assert_eq!(names.name(1, &[b'x'; NAME_MAX]).map(|(ino, _)| ino), Some(10));
        assert!(names.name(2, b"a").is_none() && names.name(1, b"b").is_none());
        assert_eq!(writer.name_of(places[2], 9), Some((1, b"12345678".to_vec())));
        assert!(writer.name_of(places[2], 8).is_none());
        let (_, place) = names.name(1, b"a").unwrap();
        assert!(names.still(place));
        writer.drop_name(1, b"a");
        assert!(names.name(1, b"a").is_none() && !names.still(place));
        writer.put_name(1, b"a", 7);
        assert!(!names.still(place), "it was gone in between");
        writer.put_inode(7, FILE);
        let (inode, place) = names.inode(7).unwrap();
        assert_eq!(inode, FILE);
        writer.put_inode(7, Inode { mode: 0o100_600, ..FILE });
        assert!(!names.still(place));
        writer.drop_inode(7);
        assert!(names.inode(7).is_none());
    }

    #[test]
    fn what_does_not_fit_is_left_out_and_nothing_is_mixed_up() {
        let memory = Memory::new();
        // SAFETY: fresh memory of that size.
        let mut writer = unsafe { Writer::begin(memory.0) };
        let names = writer.names();
        let count = (SETS * WAYS * 2) as u64;
        for ino in 1..=count {
            writer.put_name(3, format!("name {ino}").as_bytes(), ino);
            writer.put_inode(ino, Inode { uid: ino as u32, ..FILE });
        }
        let mut found = 0;
        for ino in 1..=count {
            if let Some((led, _)) = names.name(3, format!("name {ino}").as_bytes()) {
                assert_eq!(led, ino);
                found += 1;
            }
            assert!(names.inode(ino).is_none_or(|(inode, _)| inode.uid == ino as u32));
        }
        assert!(found > count / 3, "{found} of {count}");
        writer.put_name(3, &[b'x'; NAME_MAX + 1], 1);
        assert!(names.name(3, &[b'x'; NAME_MAX + 1]).is_none());
    }

    #[test]
    fn a_table_ends_with_the_thread_that_keeps_it() {
        let memory = Memory::new();
        // SAFETY: fresh memory of that size.
        let writer = unsafe { Writer::begin(memory.0) };
        let names = writer.names();
        writer.set_open(true);
        assert!(!names.are_kept(), "nobody keeps it yet");
        let (tell, told) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let (kept, is_kept) = std::sync::mpsc::channel();
            let writer = &writer;
            let thread = scope.spawn(move || {
                writer.keep_by_this_thread();
                kept.send(()).unwrap();
                told.recv().unwrap();
            });
            is_kept.recv().unwrap();
            assert!(names.are_kept());
            writer.set_open(false);
            assert!(!names.are_kept());
            writer.set_open(true);
            tell.send(()).unwrap();
            thread.join().unwrap();
        });
        assert!(!names.are_kept());
    }
}
