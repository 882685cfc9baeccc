//! The model of names: what a sequence of name operations makes of a tree.
//!
//! The tree's fingerprint is the XOR of the hashes of its entries and linked inodes, so each
//! operation updates it in constant time, and a tree found after a power cut is matched with
//! the number of operations that it holds by looking its fingerprint up. Inodes are named by
//! their number, which every tree on test keeps over a restart. [`super::workload`] fills it,
//! [`super::verify`] compares.

use anyhow::{Context, Result, anyhow};
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Names of xattrs that the workload sets begin so; others (ACLs, security) are not compared.
pub const XATTR_PREFIX: &str = "user.w";

/// Type of an inode, as far as the workload makes them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Regular file.
    File,
    /// Directory.
    Dir,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
}

/// What the tree tells of one inode.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Inode {
    /// Type.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Names (directories: 2 + subdirectories).
    pub nlink: u32,
    /// The workload's xattrs.
    pub xattrs: BTreeMap<String, Vec<u8>>,
    /// Target of a symbolic link.
    pub target: Option<String>,
}

/// A tree of names.
#[derive(Clone, Debug)]
pub struct Names {
    /// Number of the root.
    pub root: u64,
    /// `(directory, name)` to inode.
    pub entries: BTreeMap<(u64, String), u64>,
    /// Inodes, those without a name included as long as nothing takes their number.
    pub inodes: HashMap<u64, Inode>,
    fingerprint: u64,
}

/// One operation on names: whole or absent after a power cut.
#[derive(Clone, Debug)]
pub enum NameOp {
    /// A new file, directory, symbolic link or fifo; `dir` is `None` for O_TMPFILE.
    Make {
        /// Where; `None` = no name yet.
        at: Option<(u64, String)>,
        /// Its number.
        ino: u64,
        /// Type.
        kind: Kind,
        /// Permission bits.
        mode: u32,
        /// Target of a symbolic link.
        target: Option<String>,
    },
    /// Another (or, after O_TMPFILE, the first) name.
    Link {
        /// The inode.
        ino: u64,
        /// Where.
        at: (u64, String),
    },
    /// unlink or rmdir.
    Remove {
        /// What.
        at: (u64, String),
    },
    /// rename, over an existing name too.
    Rename {
        /// Old place.
        from: (u64, String),
        /// New place.
        to: (u64, String),
        /// RENAME_EXCHANGE.
        exchange: bool,
    },
    /// Permission bits.
    Chmod {
        /// The inode.
        ino: u64,
        /// The bits.
        mode: u32,
    },
    /// Owner.
    Chown {
        /// The inode.
        ino: u64,
        /// User.
        uid: u32,
    },
    /// xattr set (`Some`) or removed.
    Xattr {
        /// The inode.
        ino: u64,
        /// Name.
        name: String,
        /// Value.
        value: Option<Vec<u8>>,
    },
}

fn hash_of(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl Names {
    /// A tree of nothing but its root.
    pub fn new(root: u64, mode: u32, uid: u32) -> Names {
        let mut names =
            Names { root, entries: BTreeMap::new(), inodes: HashMap::new(), fingerprint: 0 };
        let inode =
            Inode { kind: Kind::Dir, mode, uid, nlink: 2, xattrs: BTreeMap::new(), target: None };
        names.put(root, Some(inode));
        names
    }

    /// What distinguishes this tree from others.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    fn put(&mut self, ino: u64, inode: Option<Inode>) {
        if let Some(old) = self.inodes.get(&ino).filter(|old| old.nlink > 0) {
            self.fingerprint ^= hash_of((ino, old));
        }
        match inode {
            Some(new) => {
                if new.nlink > 0 {
                    self.fingerprint ^= hash_of((ino, &new));
                }
                self.inodes.insert(ino, new);
            }
            None => {
                self.inodes.remove(&ino);
            }
        }
    }

    fn change(&mut self, ino: u64, change: impl FnOnce(&mut Inode)) {
        if let Some(mut inode) = self.inodes.get(&ino).cloned() {
            change(&mut inode);
            self.put(ino, Some(inode));
        }
    }

    fn is_dir(&self, ino: u64) -> bool {
        self.inodes.get(&ino).is_some_and(|inode| inode.kind == Kind::Dir)
    }

    fn set_entry(&mut self, at: &(u64, String), ino: Option<u64>) -> Option<u64> {
        let old = match ino {
            Some(ino) => self.entries.insert(at.clone(), ino),
            None => self.entries.remove(at),
        };
        for ino in [old, ino].into_iter().flatten() {
            self.fingerprint ^= hash_of((at, ino));
        }
        old
    }

    /// Takes the name away from whatever has it, with its effect on link counts.
    fn drop_name(&mut self, at: &(u64, String)) -> Option<u64> {
        let ino = self.set_entry(at, None)?;
        if self.is_dir(ino) {
            self.change(ino, |inode| inode.nlink = 0);
            self.change(at.0, |parent| parent.nlink -= 1);
        } else {
            self.change(ino, |inode| inode.nlink -= 1);
        }
        Some(ino)
    }

    /// Applies an operation; returns the inodes whose fsync makes it durable.
    pub fn apply(&mut self, op: &NameOp) -> Vec<u64> {
        match op {
            NameOp::Make { at, ino, kind, mode, target } => {
                let nlink = match (at, kind) {
                    (None, _) => 0,
                    (_, Kind::Dir) => 2,
                    _ => 1,
                };
                let inode = Inode {
                    kind: *kind,
                    mode: *mode,
                    uid: 0,
                    nlink,
                    xattrs: BTreeMap::new(),
                    target: target.clone(),
                };
                self.put(*ino, Some(inode));
                let Some(at) = at else { return vec![*ino] };
                self.set_entry(at, Some(*ino));
                if *kind == Kind::Dir {
                    self.change(at.0, |parent| parent.nlink += 1);
                }
                vec![*ino, at.0]
            }
            NameOp::Link { ino, at } => {
                self.change(*ino, |inode| inode.nlink += 1);
                self.set_entry(at, Some(*ino));
                vec![*ino, at.0]
            }
            NameOp::Remove { at } => {
                let gone = self.drop_name(at);
                vec![at.0, gone.unwrap_or(at.0)]
            }
            NameOp::Rename { from, to, exchange } => self.rename(from, to, *exchange),
            NameOp::Chmod { ino, mode } => {
                self.change(*ino, |inode| inode.mode = *mode);
                vec![*ino]
            }
            NameOp::Chown { ino, uid } => {
                self.change(*ino, |inode| inode.uid = *uid);
                vec![*ino]
            }
            NameOp::Xattr { ino, name, value } => {
                self.change(*ino, |inode| match value {
                    Some(value) => {
                        inode.xattrs.insert(name.clone(), value.clone());
                    }
                    None => {
                        inode.xattrs.remove(name);
                    }
                });
                vec![*ino]
            }
        }
    }

    fn rename(&mut self, from: &(u64, String), to: &(u64, String), exchange: bool) -> Vec<u64> {
        let mut touched = vec![from.0, to.0];
        if exchange {
            let (Some(a), Some(b)) =
                (self.entries.get(from).copied(), self.entries.get(to).copied())
            else {
                return touched;
            };
            self.set_entry(from, Some(b));
            self.set_entry(to, Some(a));
            let change = i64::from(self.is_dir(a)) - i64::from(self.is_dir(b));
            self.change(from.0, |dir| dir.nlink = (i64::from(dir.nlink) - change) as u32);
            self.change(to.0, |dir| dir.nlink = (i64::from(dir.nlink) + change) as u32);
            touched.extend([a, b]);
            return touched;
        }
        touched.extend(self.drop_name(to));
        if let Some(ino) = self.set_entry(from, None) {
            self.set_entry(to, Some(ino));
            if self.is_dir(ino) {
                self.change(from.0, |parent| parent.nlink -= 1);
                self.change(to.0, |parent| parent.nlink += 1);
            }
            touched.push(ino);
        }
        touched
    }

    /// Path of a directory or file from the root, without a leading slash. Any of its names.
    pub fn path_of(&self, ino: u64) -> Option<PathBuf> {
        if ino == self.root {
            return Some(PathBuf::new());
        }
        let ((dir, name), _) = self.entries.iter().find(|(_, found)| **found == ino)?;
        Some(self.path_of(*dir)?.join(name))
    }

    /// Path of a place.
    pub fn path(&self, at: &(u64, String)) -> Option<PathBuf> {
        Some(self.path_of(at.0)?.join(&at.1))
    }

    /// Reads the tree below `point`.
    pub fn observe(point: &Path) -> Result<Names> {
        let meta = std::fs::symlink_metadata(point)?;
        let mut names = Names::new(meta.ino(), meta.mode() & 0o7777, meta.uid());
        names.put(meta.ino(), Some(read_inode(point, &meta)?));
        let mut pending = vec![(meta.ino(), point.to_path_buf())];
        while let Some((dir, path)) = pending.pop() {
            for found in std::fs::read_dir(&path).with_context(|| format!("list {path:?}"))? {
                let found = found?;
                let path = found.path();
                let meta = std::fs::symlink_metadata(&path)
                    .with_context(|| format!("{path:?} is listed but cannot be looked at"))?;
                let name = found.file_name().to_string_lossy().into_owned();
                if path.components().count() == point.components().count() + 1
                    && name == "lost+found"
                {
                    continue;
                }
                names.put(meta.ino(), Some(read_inode(&path, &meta)?));
                if names.set_entry(&(dir, name), Some(meta.ino())).is_some() {
                    return Err(anyhow!("{path:?} is listed twice"));
                }
                if meta.is_dir() {
                    pending.push((meta.ino(), path));
                }
            }
        }
        Ok(names)
    }

    /// Differences to `other`, for people.
    pub fn differences(&self, other: &Names) -> Vec<String> {
        let mut lines = Vec::new();
        let shown = |names: &Names, at: &(u64, String)| match names.path(at) {
            Some(path) => path.display().to_string(),
            None => format!("[dir {}]/{}", at.0, at.1),
        };
        for (at, ino) in &self.entries {
            match other.entries.get(at) {
                Some(same) if same == ino => {}
                found => {
                    lines.push(format!("{} should be inode {ino}: {found:?}", shown(self, at)))
                }
            }
        }
        for (at, ino) in &other.entries {
            if !self.entries.contains_key(at) {
                lines.push(format!("{} should not exist (inode {ino})", shown(other, at)));
            }
        }
        for (ino, inode) in self.inodes.iter().filter(|(_, inode)| inode.nlink > 0) {
            match other.inodes.get(ino) {
                Some(found) if found != inode => {
                    lines.push(format!("inode {ino} should be {inode:?}, is {found:?}"));
                }
                _ => {}
            }
        }
        lines
    }
}

fn read_inode(path: &Path, meta: &std::fs::Metadata) -> Result<Inode> {
    let file_type = meta.file_type();
    let kind = if file_type.is_dir() {
        Kind::Dir
    } else if file_type.is_symlink() {
        Kind::Symlink
    } else if file_type.is_fifo() {
        Kind::Fifo
    } else {
        Kind::File
    };
    let target = match kind {
        Kind::Symlink => Some(std::fs::read_link(path)?.to_string_lossy().into_owned()),
        _ => None,
    };
    let mut xattrs = BTreeMap::new();
    if matches!(kind, Kind::File | Kind::Dir) {
        let mut list = vec![0; 4096];
        let count = rustix::fs::llistxattr(path, &mut list)
            .with_context(|| format!("list xattrs of {path:?}"))?;
        for name in list[..count].split(|byte| *byte == 0) {
            let name = String::from_utf8_lossy(name).into_owned();
            if name.starts_with(XATTR_PREFIX) {
                let mut value = vec![0; 65_536];
                let count = rustix::fs::lgetxattr(path, &name, &mut value)
                    .with_context(|| format!("read xattr {name} of {path:?}"))?;
                value.truncate(count);
                xattrs.insert(name, value);
            }
        }
    }
    let (mode, uid, nlink) = (meta.mode() & 0o7777, meta.uid(), meta.nlink() as u32);
    Ok(Inode { kind, mode, uid, nlink, xattrs, target })
}
