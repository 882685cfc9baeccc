//! A buffer that is a plain directory: `base/tree` holds the names, `base/unnamed` files that
//! have none yet. Permission is checked by mode bits, enough for the tests of who may do what.

use crate::meta::{Meta, decode_rdev};
use crate::pfs::errno;
use forebay_interfaces::tree::{BufferTree, Data, NewFile};
use forebay_proto::attr::{Attr, FileKind, SetAttr, SetTime, Timestamp};
use forebay_proto::{Caller, Errno, Ino, Result, ShardId, acl};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, XattrFlags};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub struct DirTree {
    base: PathBuf,
    /// Which of so many servers sees the directory by this.
    server: (u16, u16),
    /// Where inodes seen so far are.
    paths: Mutex<HashMap<Ino, PathBuf>>,
    counter: AtomicU64,
}

impl DirTree {
    /// Opens or makes the buffer; files without names of an earlier run are dropped.
    pub fn open(base: &Path) -> DirTree {
        DirTree::of_server(base, 0, 1)
    }

    /// As the tree of server `mine` of `count` that serve the same names.
    pub fn of_server(base: &Path, mine: u16, count: u16) -> DirTree {
        let tree = DirTree {
            base: base.to_path_buf(),
            server: (mine, count),
            paths: Mutex::new(HashMap::from([(Ino::ROOT, base.join("tree"))])),
            counter: AtomicU64::new(0),
        };
        let _ = std::fs::remove_dir_all(tree.unnamed());
        std::fs::create_dir_all(tree.unnamed()).unwrap();
        std::fs::create_dir_all(base.join("tree")).unwrap();
        tree
    }

    fn unnamed(&self) -> PathBuf {
        self.base.join(format!("unnamed-{}", self.server.0))
    }

    pub fn unnamed_files(&self) -> usize {
        std::fs::read_dir(self.unnamed()).unwrap().count()
    }

    fn path(&self, ino: Ino) -> Result<PathBuf> {
        let known = self.paths.lock().get(&ino).cloned();
        match known {
            Some(path) if ino == Ino::ROOT || inode(&path) == Some(ino.0) => Ok(path),
            _ if self.server.1 > 1 => self.find(&self.base.join("tree"), ino).ok_or(Errno::ESTALE),
            known => known.ok_or(Errno::ESTALE),
        }
    }

    /// Looks for what another server has made.
    fn find(&self, dir: &Path, ino: Ino) -> Option<PathBuf> {
        for entry in std::fs::read_dir(dir).ok()?.flatten() {
            let path = entry.path();
            if inode(&path) == Some(ino.0) {
                self.paths.lock().insert(ino, path.clone());
                return Some(path);
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir())
                && let Some(found) = self.find(&path, ino)
            {
                return Some(found);
            }
        }
        None
    }

    fn see(&self, path: PathBuf) -> Result<Attr> {
        let stat = rustix::fs::statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW).map_err(errno)?;
        let meta = Meta::of_stat(&stat).ok_or(Errno::EIO)?;
        let root = path == self.base.join("tree");
        let ino = if root { Ino::ROOT } else { Ino(meta.ino) };
        self.paths.lock().insert(ino, path);
        Ok(Attr {
            ino,
            size_bytes: meta.size_bytes,
            blocks_512: meta.allocated_bytes / 512,
            atime: meta.atime,
            mtime: meta.mtime,
            ctime: meta.ctime,
            btime: meta.ctime,
            mode: stat.st_mode,
            nlink: meta.nlink as u32,
            uid: meta.uid,
            gid: meta.gid,
            rdev: meta.rdev,
            blksize_bytes: 4096,
        })
    }

    fn may(&self, who: &Caller, ino: Ino, want: u16) -> Result<PathBuf> {
        let path = self.path(ino)?;
        let attr = self.see(path.clone())?;
        match acl::permitted(who, attr.mode, attr.uid, attr.gid, None, want) {
            true => Ok(path),
            false => Err(Errno::EACCES),
        }
    }

    fn place(&self, who: &Caller, dir: Ino, name: &[u8]) -> Result<PathBuf> {
        Ok(self.may(who, dir, 3)?.join(OsStr::from_bytes(name)))
    }

    fn fresh(&self) -> PathBuf {
        self.unnamed().join(self.counter.fetch_add(1, Relaxed).to_string())
    }

    /// Makes something by `make` at a fresh path, for `who`, and renames it into place.
    fn put(
        &self,
        who: &Caller,
        dir: Ino,
        name: &[u8],
        make: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Attr> {
        let place = self.place(who, dir, name)?;
        let fresh = self.fresh();
        make(&fresh)?;
        std::os::unix::fs::lchown(&fresh, Some(who.uid), Some(who.gid))?;
        std::fs::rename(&fresh, &place)?;
        self.see(place)
    }
}

fn inode(path: &Path) -> Option<u64> {
    rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok().map(|stat| stat.st_ino)
}

impl BufferTree for DirTree {
    fn shard_of(&self, ino: Ino) -> ShardId {
        ShardId((ino.0 % u64::from(self.server.1)) as u16)
    }

    fn resolve(&self, who: &Caller, path: &[u8]) -> Result<Attr> {
        let mut attr = self.see(self.base.join("tree"))?;
        for name in path.split(|&b| b == b'/').filter(|name| !name.is_empty()) {
            if attr.kind() != FileKind::Dir {
                return Err(Errno::ENOTDIR);
            }
            attr = self.child(who, attr.ino, name)?;
        }
        Ok(attr)
    }

    fn child(&self, who: &Caller, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.see(self.may(who, dir, 1)?.join(OsStr::from_bytes(name)))
    }

    fn list(&self, who: &Caller, dir: Ino) -> Result<Vec<(Vec<u8>, Ino, FileKind)>> {
        let path = self.may(who, dir, 4)?;
        let mut all = Vec::new();
        for entry in std::fs::read_dir(&path)? {
            let name = entry?.file_name();
            let attr = self.see(path.join(&name))?;
            all.push((name.as_bytes().to_vec(), attr.ino, attr.kind()));
        }
        Ok(all)
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        self.see(self.path(ino)?)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        Ok(std::fs::read_link(self.path(ino)?)?.as_os_str().as_bytes().to_vec())
    }

    fn xattrs(&self, _who: &Caller, ino: Ino) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        Ok(super::snapshot::xattrs(&self.path(ino)?))
    }

    fn read_from(&self, who: &Caller, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let file = self.open_read(who, ino)?;
        Ok(file.read_at(buf, offset)?)
    }

    fn open_read(&self, who: &Caller, ino: Ino) -> Result<Data> {
        let path = self.may(who, ino, 4)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NOATIME;
        Ok(File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(errno)?).into())
    }

    fn begin_file(&self, who: &Caller, dir: Ino, _size_bytes: u64) -> Result<NewFile> {
        self.may(who, dir, 3)?;
        let fresh = self.fresh();
        let file = File::options().read(true).write(true).create_new(true).open(&fresh)?;
        std::os::unix::fs::fchown(&file, Some(who.uid), Some(who.gid))?;
        let attr = self.see(fresh)?;
        Ok(NewFile { ino: attr.ino, file: file.into() })
    }

    fn grow_file(&self, _ino: Ino, _size_bytes: u64) -> Result<()> {
        Ok(())
    }

    fn finish_file(&self, ino: Ino) -> Result<()> {
        Ok(File::open(self.path(ino)?)?.sync_all()?)
    }

    fn publish(&self, who: &Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        let place = self.place(who, dir, name)?;
        std::fs::rename(self.path(ino)?, &place)?;
        self.see(place)
    }

    fn abandon(&self, ino: Ino) {
        if let Some(path) = self.paths.lock().remove(&ino) {
            std::fs::remove_file(path).unwrap();
        }
    }

    fn mkdir(&self, who: &Caller, dir: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        let place = self.place(who, dir, name)?;
        match rustix::fs::mkdirat(CWD, &place, Mode::from_raw_mode(mode)) {
            Ok(()) => std::os::unix::fs::lchown(&place, Some(who.uid), Some(who.gid))?,
            Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(errno(e)),
        }
        let attr = self.see(place)?;
        if attr.kind() == FileKind::Dir { Ok(attr) } else { Err(Errno::EEXIST) }
    }

    fn symlink(&self, who: &Caller, dir: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.put(who, dir, name, |path| {
            Ok(std::os::unix::fs::symlink(OsStr::from_bytes(target), path)?)
        })
    }

    fn mknod(
        &self,
        who: &Caller,
        dir: Ino,
        name: &[u8],
        kind: FileKind,
        mode: u32,
        rdev: u32,
    ) -> Result<Attr> {
        let kind = rustix::fs::FileType::from_raw_mode(kind.mode_bits());
        self.put(who, dir, name, |path| {
            let mode = Mode::from_raw_mode(mode);
            rustix::fs::mknodat(CWD, path, kind, mode, decode_rdev(rdev)).map_err(errno)
        })
    }

    fn link(&self, who: &Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        let place = self.place(who, dir, name)?;
        let fresh = self.fresh();
        std::fs::hard_link(self.path(ino)?, &fresh)?;
        std::fs::rename(&fresh, &place)?;
        let _ = std::fs::remove_file(&fresh);
        self.see(place)
    }

    fn set_attr(&self, who: &Caller, ino: Ino, change: &SetAttr) -> Result<Attr> {
        let path = self.path(ino)?;
        let uid = change.uid.filter(|_| who.uid == 0);
        let gid = change.gid.filter(|&gid| who.uid == 0 || who.in_group(gid));
        if uid.is_some() || gid.is_some() {
            std::os::unix::fs::lchown(&path, uid, gid)?;
        }
        if let Some(mode) = change.mode {
            rustix::fs::chmodat(CWD, &path, Mode::from_raw_mode(mode), AtFlags::empty())
                .map_err(errno)?;
        }
        let now = self.see(path.clone())?;
        let at = |time: Option<SetTime>, old: Timestamp| match time {
            Some(SetTime::At(time)) => time,
            _ => old,
        };
        let spec = |t: Timestamp| rustix::fs::Timespec { tv_sec: t.sec, tv_nsec: t.nsec.into() };
        let times = rustix::fs::Timestamps {
            last_access: spec(at(change.atime, now.atime)),
            last_modification: spec(at(change.mtime, now.mtime)),
        };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(errno)?;
        self.see(path)
    }

    fn set_xattr(&self, _who: &Caller, ino: Ino, name: &[u8], value: &[u8]) -> Result<()> {
        let path = self.path(ino)?;
        rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).map_err(errno)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}
