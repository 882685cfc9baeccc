//! The state of the model: inodes, names, open files; path resolution and permission checks in
//! the order in which Linux does them. Pure memory, no system call but at [`Model::new`].

use super::data::Data;
use super::op::{RawPath, SLOTS};
use crate::procs::Cred;
use crate::sys::{Errno, Sys};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// An inode of the model; real inode numbers are not compared, only their sameness.
pub type Id = u64;
/// The root directory.
pub const ROOT: Id = 1;
/// Most symbolic links in one resolution, as in Linux.
const LINKS_MAX: usize = 40;
/// Seconds and nanoseconds.
pub type Time = (i64, i64);

/// What a time stamp must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    /// This.
    Exactly(Time),
    /// Not before this, not in the future.
    Since(Time),
    /// As it was, or a new one not before the second.
    Maybe(Time, Time),
    /// As [`Stamp::Maybe`], and it may still move: the file was written through a mapping.
    Loose(Time, Time),
}

impl Stamp {
    /// The earliest that it can be.
    pub fn earliest(self) -> Time {
        match self {
            Stamp::Exactly(t) | Stamp::Since(t) | Stamp::Maybe(t, _) | Stamp::Loose(t, _) => t,
        }
    }

    /// True if `time` fits, read at `now`.
    pub fn allows(self, time: Time, now: Time) -> bool {
        match self {
            Stamp::Exactly(exact) => time == exact,
            Stamp::Since(since) => since <= time && time <= now,
            Stamp::Maybe(old, since) | Stamp::Loose(old, since) => {
                time == old || (since <= time && time <= now)
            }
        }
    }
}

/// What an inode is.
#[derive(Clone, Debug)]
pub enum Node {
    /// Regular file.
    File(Data),
    /// Directory.
    Dir(BTreeMap<Vec<u8>, Id>),
    /// Symbolic link.
    Symlink(Vec<u8>),
    /// Fifo, socket or device: `S_IFMT` bits and device number.
    Special(u32, u64),
}

/// An inode.
#[derive(Clone, Debug)]
pub struct Inode {
    /// What.
    pub node: Node,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names; of a directory 1 until it is removed.
    pub nlink: u64,
    /// The directory that holds a directory.
    pub parent: Id,
    /// Open files.
    pub opens: u32,
    /// Made by O_TMPFILE without O_EXCL, and not yet named.
    pub linkable: bool,
    /// `user.*` attributes.
    pub xattrs: BTreeMap<String, Vec<u8>>,
    /// Modification.
    pub mtime: Stamp,
    /// Change.
    pub ctime: Stamp,
    /// Access, where it was set and nothing has read since.
    pub atime: Option<Stamp>,
}

impl Inode {
    /// True for a directory.
    pub fn is_dir(&self) -> bool {
        matches!(self.node, Node::Dir(_))
    }
    /// The `S_IFMT` bits.
    pub fn type_bits(&self) -> u32 {
        match self.node {
            Node::File(_) => libc::S_IFREG,
            Node::Dir(_) => libc::S_IFDIR,
            Node::Symlink(_) => libc::S_IFLNK,
            Node::Special(bits, _) => bits,
        }
    }
}

/// An open file.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Inode.
    pub id: Id,
    /// Flags of open.
    pub flags: i32,
    /// File position.
    pub offset: u64,
}

impl Slot {
    /// True if it may be read.
    pub fn readable(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_WRONLY
    }
    /// True if it may be written.
    pub fn writable(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_RDONLY
    }
}

/// The last component of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Last {
    /// A name.
    Name(Vec<u8>),
    /// `.`
    Dot,
    /// `..`
    DotDot,
    /// Nothing: the root.
    Root,
}

/// Where a path leads.
#[derive(Clone, Debug)]
pub struct Found {
    /// The directory of the last component.
    pub parent: Id,
    /// The last component.
    pub last: Last,
    /// What it names, if it exists.
    pub target: Option<Id>,
}

/// The reference model.
#[derive(Clone, Debug)]
pub struct Model {
    /// All inodes that have a name or are open.
    pub inodes: BTreeMap<Id, Inode>,
    /// Open files.
    pub slots: Vec<Option<Slot>>,
    /// Inodes that the last operation touched: their real attributes are to be compared.
    pub touched: BTreeSet<Id>,
    /// Coarse time before the operation.
    pub before: Time,
    /// `fs.protected_hardlinks`, `fs.protected_symlinks`, `fs.protected_regular`.
    pub protected: (u32, u32, u32),
    pub(super) next: Id,
}

pub(super) fn no<T>(errno: i32) -> Sys<T> {
    Err(Errno(errno))
}

fn sysctl(name: &str) -> u32 {
    let text = std::fs::read_to_string(format!("/proc/sys/fs/{name}")).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

impl Model {
    /// An empty file system whose root has mode 1777 and belongs to root; its times are
    /// compared from the first change on.
    pub fn new() -> Model {
        let root = Inode {
            node: Node::Dir(BTreeMap::new()),
            mode: 0o1777,
            uid: 0,
            gid: 0,
            nlink: 2,
            parent: ROOT,
            opens: 0,
            linkable: false,
            xattrs: BTreeMap::new(),
            mtime: Stamp::Loose((0, 0), (0, 0)),
            ctime: Stamp::Loose((0, 0), (0, 0)),
            atime: None,
        };
        Model {
            inodes: BTreeMap::from([(ROOT, root)]),
            slots: vec![None; SLOTS],
            touched: BTreeSet::new(),
            before: (0, 0),
            protected: (
                sysctl("protected_hardlinks"),
                sysctl("protected_symlinks"),
                sysctl("protected_regular"),
            ),
            next: ROOT + 1,
        }
    }

    /// An inode that must exist.
    pub fn get(&self, id: Id) -> &Inode {
        &self.inodes[&id]
    }

    /// As [`Model::get`], to change.
    pub fn get_mut(&mut self, id: Id) -> &mut Inode {
        self.inodes.get_mut(&id).unwrap()
    }

    /// Entries of a directory.
    pub fn entries(&self, id: Id) -> &BTreeMap<Vec<u8>, Id> {
        match &self.get(id).node {
            Node::Dir(entries) => entries,
            _ => panic!("{id} is no directory"),
        }
    }

    pub(super) fn entries_mut(&mut self, id: Id) -> &mut BTreeMap<Vec<u8>, Id> {
        match &mut self.get_mut(id).node {
            Node::Dir(entries) => entries,
            _ => panic!("{id} is no directory"),
        }
    }

    /// What stat shows as the number of names.
    pub fn nlink(&self, id: Id) -> u64 {
        match &self.get(id).node {
            Node::Dir(_) if self.get(id).nlink == 0 && id != ROOT => 0,
            Node::Dir(entries) => {
                2 + entries.values().filter(|child| self.get(**child).is_dir()).count() as u64
            }
            _ => self.get(id).nlink,
        }
    }

    /// The kernel's `inode_permission` for a mask of 4 (read), 2 (write) and 1 (execute).
    pub fn may(&self, who: &Cred, id: Id, mask: u32) -> bool {
        let inode = self.get(id);
        if who.uid == 0 {
            return mask & 1 == 0 || inode.is_dir() || inode.mode & 0o111 != 0;
        }
        let shift = match () {
            () if who.uid == inode.uid => 6,
            () if who.in_group(inode.gid) => 3,
            () => 0,
        };
        inode.mode >> shift & mask == mask
    }

    /// Owner, or root.
    pub fn owner(&self, who: &Cred, id: Id) -> bool {
        who.uid == 0 || who.uid == self.get(id).uid
    }

    /// Resolves a path.
    pub fn resolve(&self, who: &Cred, path: &RawPath, follow: bool) -> Sys<Found> {
        let mut left: VecDeque<Vec<u8>> = components(&path.0);
        let mut found = Found { parent: ROOT, last: Last::Root, target: Some(ROOT) };
        let mut current = ROOT;
        let mut links = 0;
        while let Some(name) = left.pop_front() {
            if !self.may(who, current, 1) {
                return no(libc::EACCES);
            }
            let (last, target) = match &name[..] {
                b"." => (Last::Dot, Some(current)),
                b".." => (Last::DotDot, Some(self.get(current).parent)),
                _ if name.len() > 255 => return no(libc::ENAMETOOLONG),
                _ => (Last::Name(name.clone()), self.entries(current).get(&name).copied()),
            };
            let is_last = left.is_empty();
            found = Found { parent: current, last, target };
            let Some(target) = target else {
                return if is_last { Ok(found) } else { no(libc::ENOENT) };
            };
            if let (Node::Symlink(to), true) = (&self.get(target).node, !is_last || follow) {
                links += 1;
                if links > LINKS_MAX {
                    return no(libc::ELOOP);
                }
                if is_last && !self.may_follow(who, current, target) {
                    return no(libc::EACCES);
                }
                if to.first() == Some(&b'/') {
                    current = ROOT;
                    found = Found { parent: ROOT, last: Last::Root, target: Some(ROOT) };
                }
                for part in components(to).into_iter().rev() {
                    left.push_front(part);
                }
                continue;
            }
            if !is_last && !self.get(target).is_dir() {
                return no(libc::ENOTDIR);
            }
            current = target;
        }
        Ok(found)
    }

    /// `fs.protected_symlinks`.
    fn may_follow(&self, who: &Cred, dir: Id, link: Id) -> bool {
        let (dir, link) = (self.get(dir), self.get(link));
        self.protected.1 == 0
            || who.uid == link.uid
            || dir.mode & 0o1002 != 0o1002
            || dir.uid == link.uid
    }

    /// The target of a path that must exist.
    pub fn existing(&self, who: &Cred, path: &RawPath, follow: bool) -> Sys<Id> {
        self.resolve(who, path, follow)?.target.ok_or(Errno(libc::ENOENT))
    }

    /// Some path to every inode that has a name.
    pub fn paths(&self) -> BTreeMap<Id, RawPath> {
        let mut paths = BTreeMap::from([(ROOT, RawPath(b"/".to_vec()))]);
        let mut todo = vec![ROOT];
        while let Some(dir) = todo.pop() {
            let base = paths[&dir].0.clone();
            for (name, &child) in self.entries(dir) {
                let mut path = base.clone();
                if path.last() != Some(&b'/') {
                    path.push(b'/');
                }
                path.extend_from_slice(name);
                paths.entry(child).or_insert(RawPath(path));
                if self.get(child).is_dir() {
                    todo.push(child);
                }
            }
        }
        paths
    }

    /// Content changed: mtime and ctime are new.
    pub fn changed(&mut self, id: Id) {
        let before = self.before;
        self.get_mut(id).mtime = Stamp::Since(before);
        self.attributes_changed(id);
    }

    /// Attributes changed: ctime is new.
    pub fn attributes_changed(&mut self, id: Id) {
        let before = self.before;
        self.get_mut(id).ctime = Stamp::Since(before);
        self.touched.insert(id);
    }

    /// Content may have changed without a difference to see: both times may be new or old.
    pub fn perhaps_changed(&mut self, id: Id) {
        let before = self.before;
        let inode = self.get_mut(id);
        inode.mtime = Stamp::Maybe(inode.mtime.earliest(), before);
        inode.ctime = Stamp::Maybe(inode.ctime.earliest(), before);
        self.touched.insert(id);
    }

    /// Forgets an inode that has neither name nor open file.
    pub(super) fn drop_if_unused(&mut self, id: Id) {
        let inode = self.get(id);
        if inode.nlink == 0 && inode.opens == 0 {
            self.inodes.remove(&id);
            self.touched.remove(&id);
        }
    }

    /// The server died: no file is open any more.
    pub fn close_all(&mut self) {
        for slot in 0..SLOTS {
            if let Some(open) = self.slots[slot].take() {
                self.get_mut(open.id).opens -= 1;
                self.drop_if_unused(open.id);
            }
        }
    }
}

impl Default for Model {
    fn default() -> Self {
        Model::new()
    }
}

fn components(path: &[u8]) -> VecDeque<Vec<u8>> {
    path.split(|&b| b == b'/').filter(|part| !part.is_empty()).map(<[u8]>::to_vec).collect()
}
