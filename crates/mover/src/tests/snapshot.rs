//! All that can be seen of a tree, to be compared: names, types, modes, owners, times, content,
//! holes, xattrs, links.
//!
//! Content is compared byte by byte. Where a file system puts its holes is its own affair (XFS
//! writes back whole large pages around what was written), so of holes only this is compared:
//! a copy may not hold more data than its source but for [`SLACK_BYTES`] at each range.

use rustix::fs::{Mode, OFlags, SeekFrom};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// What a range of data may take more in a copy, in bytes: XFS was seen to round up to 64 KiB.
const SLACK_BYTES: u64 = 128 << 10;

/// One object.
#[derive(Debug)]
pub struct Object {
    mode: u32,
    owner: (u32, u32),
    rdev: u64,
    mtime: (i64, i64),
    /// Not of directories and symbolic links, which a look changes.
    atime: Option<(i64, i64)>,
    content: Vec<u8>,
    /// Ranges of data.
    data: Vec<(u64, u64)>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// First path of the same inode.
    same_as: Vec<u8>,
}

impl Object {
    fn agrees(&self, copy: &Object) -> bool {
        let rest = |o: &Object| (o.mode, o.owner, o.rdev, o.mtime, o.atime);
        let bytes = |o: &Object| o.data.iter().map(|(start, end)| end - start).sum::<u64>();
        rest(self) == rest(copy)
            && self.content == copy.content
            && self.xattrs == copy.xattrs
            && self.same_as == copy.same_as
            && bytes(copy) <= bytes(self) + SLACK_BYTES * self.data.len() as u64
    }
}

pub type Tree = BTreeMap<Vec<u8>, Object>;

/// The tree below `top`, `top` itself as the empty path.
pub fn take(top: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut first = HashMap::new();
    walk(top, b"", &mut tree, &mut first);
    tree
}

fn walk(path: &Path, rel: &[u8], tree: &mut Tree, first: &mut HashMap<u64, Vec<u8>>) {
    let meta = path.symlink_metadata().unwrap();
    let kind = meta.file_type();
    let (content, data) = match () {
        () if kind.is_file() => read(path),
        () if kind.is_symlink() => {
            (std::fs::read_link(path).unwrap().as_os_str().as_bytes().to_vec(), Vec::new())
        }
        () => (Vec::new(), Vec::new()),
    };
    let object = Object {
        mode: meta.mode(),
        owner: (meta.uid(), meta.gid()),
        rdev: if kind.is_char_device() || kind.is_block_device() { meta.rdev() } else { 0 },
        mtime: (meta.mtime(), meta.mtime_nsec()),
        atime: (!kind.is_dir() && !kind.is_symlink()).then(|| (meta.atime(), meta.atime_nsec())),
        content,
        data,
        xattrs: xattrs(path),
        same_as: match kind.is_dir() {
            true => rel.to_vec(),
            false => first.entry(meta.ino()).or_insert_with(|| rel.to_vec()).clone(),
        },
    };
    tree.insert(rel.to_vec(), object);
    if kind.is_dir() {
        let mut names: Vec<_> =
            std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        for name in names {
            let below = match rel.is_empty() {
                true => name.as_bytes().to_vec(),
                false => [rel, b"/", name.as_bytes()].concat(),
            };
            walk(&path.join(&name), &below, tree, first);
        }
    }
}

fn read(path: &Path) -> (Vec<u8>, Vec<(u64, u64)>) {
    let flags = OFlags::RDONLY | OFlags::NOATIME;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty()).unwrap());
    let size = file.metadata().unwrap().len();
    let mut data = Vec::new();
    let mut at = 0;
    while let Ok(start) = rustix::fs::seek(&file, SeekFrom::Data(at)) {
        at = rustix::fs::seek(&file, SeekFrom::Hole(start)).unwrap();
        data.push((start, at));
    }
    rustix::fs::seek(&file, SeekFrom::Start(0)).unwrap();
    let mut content = Vec::with_capacity(size as usize);
    file.read_to_end(&mut content).unwrap();
    (content, data)
}

/// For a source that was read meanwhile.
pub fn forget_atimes(mut tree: Tree) -> Tree {
    tree.values_mut().for_each(|object| object.atime = None);
    tree
}

/// All xattrs but those of the system itself.
pub fn xattrs(path: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut names = vec![0; 65_536];
    let Ok(len) = rustix::fs::llistxattr(path, &mut names[..]) else { return Vec::new() };
    let mut all = Vec::new();
    for name in names[..len].split(|&b| b == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 65_536];
        let len = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]).unwrap();
        value.truncate(len);
        all.push((name.to_vec(), value));
    }
    all.sort();
    all
}

/// Fails with the first difference.
pub fn assert_same(left: &Tree, right: &Tree) {
    for (path, object) in left {
        let name = String::from_utf8_lossy(path);
        let Some(other) = right.get(path) else { panic!("{name:?} is missing") };
        if !object.agrees(other) {
            let short = |o: &Object| {
                format!(
                    "mode {:o} owner {:?} rdev {} mtime {:?} atime {:?} size {} data {:?} xattrs {:?} same as {:?}",
                    o.mode,
                    o.owner,
                    o.rdev,
                    o.mtime,
                    o.atime,
                    o.content.len(),
                    o.data,
                    o.xattrs,
                    o.same_as
                )
            };
            panic!("{name:?} differs:\n  {}\n  {}", short(object), short(other));
        }
    }
    for path in right.keys() {
        assert!(left.contains_key(path), "{:?} is too much", String::from_utf8_lossy(path));
    }
}
