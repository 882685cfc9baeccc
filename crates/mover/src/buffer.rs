//! The buffer as source and target, through [`BufferTree`], with the requester's rights (which
//! the tree checks).

use super::endpoint::{At, Located, MakeTop, PRIVATE_MODE, Source, Target, not_a_directory};
use super::fault::{Fault, Outcome, Sort, Where};
use super::meta::{Dir, Meta, OpenSource, Temp, TempAt, Xattrs};
use super::paths::{join, split, trim_end};
use super::roots_xattrs::is_roots;
use forebay_credentials::identity::Acting;
use forebay_interfaces::tree::BufferTree;
use forebay_proto::attr::{FileKind, SetAttr, SetTime};
use forebay_proto::{Caller, Errno, Ino, Result, ShardId};
use std::collections::VecDeque;
use std::sync::Arc;

/// Most symbolic links followed in one path, as in the kernel.
const LINKS_MAX: usize = 40;
/// Read at once of a file that may be on another server, in bytes.
const READ_BYTES: usize = 256 << 10;

/// The buffer with one requester's rights.
#[derive(Clone)]
pub(super) struct Buffer {
    pub tree: Arc<dyn BufferTree>,
    pub who: Caller,
    /// Where it is mounted: absolute symbolic links are meant from there.
    pub mount_point: Option<Vec<u8>>,
}

fn ino(dir: &Dir) -> Result<Ino> {
    match dir {
        Dir::Buffer(ino) => Ok(*ino),
        Dir::Pfs(_) => Err(Errno::EBADF),
        Dir::Missing => Err(Errno::ENOENT),
    }
}

impl Buffer {
    fn dir(&self, path: &[u8]) -> Result<Dir> {
        let attr = self.tree.resolve(&self.who, path)?;
        if attr.kind() != FileKind::Dir {
            return Err(Errno::ENOTDIR);
        }
        Ok(Dir::Buffer(attr.ino))
    }

    fn child_dir(&self, dir: &Dir, name: &[u8]) -> Result<Dir> {
        let attr = self.tree.child(&self.who, ino(dir)?, name)?;
        if attr.kind() != FileKind::Dir {
            return Err(Errno::ENOTDIR);
        }
        Ok(Dir::Buffer(attr.ino))
    }

    fn walk_down(&self, top: &[u8], rel: &[u8]) -> Result<Dir> {
        let mut at = self.dir(top)?;
        for name in rel.split(|&b| b == b'/').filter(|name| !name.is_empty()) {
            at = self.child_dir(&at, name)?;
        }
        Ok(at)
    }

    /// The path without symbolic links, `.` and `..` of what the user named; a link that leads out
    /// of the buffer is refused.
    fn follow(&self, path: &[u8]) -> Outcome<Vec<u8>> {
        let fault = Fault::source("open source");
        let parts = |path: &[u8]| -> VecDeque<Vec<u8>> {
            let names = path.split(|&b| b == b'/').filter(|name| !name.is_empty() && *name != b".");
            names.map(<[u8]>::to_vec).collect()
        };
        let mut todo = parts(path);
        let mut here: Vec<(Ino, Vec<u8>)> = Vec::new();
        let mut links = 0;
        while let Some(name) = todo.pop_front() {
            if name == b".." {
                here.pop().ok_or_else(|| leads_out(path))?;
                continue;
            }
            let dir = here.last().map_or(Ino::ROOT, |(ino, _)| *ino);
            let attr = self.tree.child(&self.who, dir, &name).map_err(&fault)?;
            if attr.kind() != FileKind::Symlink {
                here.push((attr.ino, name));
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(fault(Errno::ELOOP));
            }
            let mut to = self.tree.readlink(attr.ino).map_err(&fault)?;
            if to.first() == Some(&b'/') {
                to = self.below_mount(&to).ok_or_else(|| leads_out(&to))?.to_vec();
                here.clear();
            }
            let mut ahead = parts(&to);
            ahead.append(&mut todo);
            todo = ahead;
        }
        let mut real = Vec::new();
        for (_, name) in &here {
            real.push(b'/');
            real.extend_from_slice(name);
        }
        Ok(if real.is_empty() { b"/".to_vec() } else { real })
    }

    /// The path in the buffer of one below its mount point.
    fn below_mount<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        let rest = path.strip_prefix(trim_end(self.mount_point.as_deref()?))?;
        (rest.is_empty() || rest[0] == b'/').then_some(rest)
    }

    /// Owner, xattrs, mode, times, in this order: chown takes suid off, an ACL changes the mode,
    /// and all of them change nothing about times but ctime.
    fn dress_ino(&self, ino: Ino, meta: &Meta, xattrs: &Xattrs) -> Outcome<()> {
        let fault = Fault::target("set attributes");
        let owner = SetAttr { uid: Some(meta.uid), gid: Some(meta.gid), ..SetAttr::default() };
        let got = self.tree.set_attr(&self.who, ino, &owner).map_err(&fault)?;
        let mut lost = None;
        for (name, value) in xattrs {
            if let Err(e) = self.tree.set_xattr(&self.who, ino, name, value) {
                lost = Some(Fault::lost_xattr(name, e));
            }
        }
        let mut mode = meta.mode;
        if got.uid != meta.uid {
            mode &= !libc::S_ISUID;
        }
        if got.gid != meta.gid && meta.kind != FileKind::Dir {
            mode &= !libc::S_ISGID;
        }
        let rest = SetAttr {
            mode: (meta.kind != FileKind::Symlink).then_some(mode),
            atime: Some(SetTime::At(meta.atime)),
            mtime: Some(SetTime::At(meta.mtime)),
            ..SetAttr::default()
        };
        self.tree.set_attr(&self.who, ino, &rest).map_err(&fault)?;
        lost.map_or(Ok(()), Err)
    }
}

impl Source for Buffer {
    fn top(&self, path: &[u8]) -> Outcome<Dir> {
        self.dir(path).map_err(Fault::source("open source"))
    }

    fn locate(&self, path: &[u8]) -> Outcome<Located> {
        let fault = Fault::source("open source");
        let path = self.follow(path)?;
        let (parent, name) = split(&path).ok_or_else(|| {
            Fault::of(Sort::Refused, Where::Source, "open source", "it has no name of its own")
        })?;
        let dir = self.dir(parent).map_err(&fault)?;
        let attr = self.tree.child(&self.who, ino(&dir).map_err(&fault)?, name).map_err(&fault)?;
        let (top, name) = (parent.to_vec(), name.to_vec());
        Ok(Located { dir, top, name, meta: Meta::of_attr(&attr) })
    }

    fn reopen(&self, top: &[u8], rel: &[u8]) -> Outcome<Dir> {
        self.walk_down(top, rel).map_err(Fault::source("open source directory"))
    }

    fn list(&self, dir: &Dir) -> Outcome<Vec<Vec<u8>>> {
        let fault = Fault::source("list source directory");
        let entries = self.tree.list(&self.who, ino(dir).map_err(&fault)?).map_err(&fault)?;
        Ok(entries.into_iter().map(|(name, _, _)| name).collect())
    }

    fn stat(&self, dir: &Dir, name: &[u8]) -> Outcome<Meta> {
        let attr = ino(dir).and_then(|dir| self.tree.child(&self.who, dir, name));
        attr.map(|attr| Meta::of_attr(&attr)).map_err(Fault::source("stat source"))
    }

    fn enter(&self, dir: &Dir, name: &[u8]) -> Outcome<Dir> {
        self.child_dir(dir, name).map_err(Fault::source("open source directory"))
    }

    fn dir_meta(&self, dir: &Dir) -> Outcome<Meta> {
        let attr = ino(dir).and_then(|ino| self.tree.attr(ino));
        attr.map(|attr| Meta::of_attr(&attr)).map_err(Fault::source("stat source directory"))
    }

    fn open(&self, _dir: &Dir, _name: &[u8], expect: &Meta) -> Outcome<OpenSource> {
        let fault = Fault::source("open source");
        let ino = Ino(expect.ino);
        let file = self.tree.open_read(&self.who, ino).map_err(&fault)?;
        let meta = Meta::of_attr(&self.tree.attr(ino).map_err(&fault)?);
        Ok(OpenSource { file, meta })
    }

    fn recheck(&self, open: &OpenSource) -> Outcome<Meta> {
        let attr = self.tree.attr(Ino(open.meta.ino)).map_err(Fault::source("stat source"))?;
        Ok(Meta::of_attr(&attr))
    }

    fn readlink(&self, dir: &Dir, name: &[u8]) -> Outcome<Vec<u8>> {
        let meta = Source::stat(self, dir, name)?;
        self.tree.readlink(Ino(meta.ino)).map_err(Fault::source("read symbolic link"))
    }

    fn file_xattrs(&self, open: &OpenSource) -> Outcome<Xattrs> {
        let got = self.tree.xattrs(&self.who, Ino(open.meta.ino));
        got.map_err(Fault::source("read xattrs of source"))
    }

    fn name_xattrs(&self, _dir: &Dir, _name: &[u8], meta: &Meta) -> Outcome<Xattrs> {
        let got = self.tree.xattrs(&self.who, Ino(meta.ino));
        got.map_err(Fault::source("read xattrs of source"))
    }

    fn dir_xattrs(&self, dir: &Dir) -> Outcome<Xattrs> {
        let got = ino(dir).and_then(|ino| self.tree.xattrs(&self.who, ino));
        got.map_err(Fault::source("read xattrs of source"))
    }

    fn left_out(&self, _dir: &Dir, _name: &[u8], meta: &Meta) -> Vec<Vec<u8>> {
        let all = self.tree.xattrs(&Caller::root(), Ino(meta.ino)).unwrap_or_default();
        all.into_iter().map(|(name, _)| name).filter(|name| is_roots(name)).collect()
    }

    fn shard_of(&self, meta: &Meta) -> Option<ShardId> {
        Some(self.tree.shard_of(Ino(meta.ino)))
    }

    fn check_readable(&self, file: &Located) -> Outcome<()> {
        let read = self.tree.read_from(&self.who, Ino(file.meta.ino), 0, &mut []);
        read.map(drop).map_err(Fault::source("open source"))
    }

    fn read_all(&self, file: &Located, most_bytes: u64) -> Outcome<Option<Vec<u8>>> {
        let mut text = Vec::new();
        let mut piece = vec![0; READ_BYTES];
        loop {
            let at = text.len() as u64;
            let read = self.tree.read_from(&self.who, Ino(file.meta.ino), at, &mut piece);
            let len = read.map_err(Fault::source("read source"))?;
            text.extend_from_slice(&piece[..len]);
            match len {
                0 => return Ok(Some(text)),
                _ if text.len() as u64 > most_bytes => return Ok(None),
                _ => {}
            }
        }
    }
}

impl Target for Buffer {
    fn make_top(&self, path: &[u8], how: &MakeTop) -> Outcome<Dir> {
        let fault = Fault::target("make directory");
        match self.dir(path) {
            Ok(dir) => return Ok(dir),
            Err(Errno::ENOENT) => {}
            Err(e) => return Err(Fault::target("open target directory")(e)),
        }
        let mut at = Ino::ROOT;
        let mut names = names_of(path).peekable();
        while let Some(name) = names.next() {
            at = match self.tree.child(&self.who, at, name) {
                Ok(attr) if attr.kind() != FileKind::Dir => return Err(fault(Errno::ENOTDIR)),
                Ok(attr) => attr.ino,
                Err(Errno::ENOENT) => {
                    let mode = how.mode(names.peek().is_none()).unwrap_or(PRIVATE_MODE);
                    self.tree.mkdir(&self.who, at, name, mode).map_err(&fault)?.ino
                }
                Err(e) => return Err(fault(e)),
            };
        }
        Ok(Dir::Buffer(at))
    }

    fn find_top(&self, path: &[u8], _how: &MakeTop) -> Outcome<(Dir, Vec<Vec<u8>>)> {
        let (mut at, mut here, mut missing) = (Dir::Buffer(Ino::ROOT), Vec::new(), Vec::new());
        for name in names_of(path) {
            here = join(&here, b"", name);
            at = self.find_dir(&at, name)?;
            if matches!(at, Dir::Missing) {
                missing.push(here.clone());
            }
        }
        Ok((at, missing))
    }

    fn find_dir(&self, dir: &Dir, name: &[u8]) -> Outcome<Dir> {
        match self.child_dir(dir, name) {
            Err(Errno::ENOENT) => Ok(Dir::Missing),
            Err(Errno::ENOTDIR) => Err(not_a_directory()),
            found => found.map_err(Fault::target("open target directory")),
        }
    }

    fn look(&self, path: &[u8]) -> Outcome<Option<Meta>> {
        match self.tree.resolve(&self.who, path) {
            Ok(attr) => Ok(Some(Meta::of_attr(&attr))),
            Err(Errno::ENOENT) => Ok(None),
            Err(e) => Err(Fault::target("open target")(e)),
        }
    }

    fn reopen(&self, top: &[u8], rel: &[u8]) -> Outcome<Dir> {
        self.walk_down(top, rel).map_err(Fault::target("open target directory"))
    }

    fn stat(&self, dir: &Dir, name: &[u8]) -> Outcome<Option<Meta>> {
        match ino(dir).and_then(|dir| self.tree.child(&self.who, dir, name)) {
            Ok(attr) => Ok(Some(Meta::of_attr(&attr))),
            Err(Errno::ENOENT) => Ok(None),
            Err(e) => Err(Fault::target("stat target")(e)),
        }
    }

    fn make_dir(&self, dir: &Dir, name: &[u8]) -> Outcome<Dir> {
        let fault = Fault::target("make directory");
        let at = ino(dir).map_err(&fault)?;
        let attr = self.tree.mkdir(&self.who, at, name, 0o700).map_err(&fault)?;
        if attr.uid == self.who.uid && attr.mode & 0o700 != 0o700 {
            // Left so by an earlier run: without this its own owner could not write in it.
            let mode = Some((attr.mode & 0o7777) | 0o700);
            let change = SetAttr { mode, ..SetAttr::default() };
            self.tree.set_attr(&self.who, attr.ino, &change).map_err(&fault)?;
        }
        Ok(Dir::Buffer(attr.ino))
    }

    fn begin(&self, dir: &Dir, size_bytes: u64, _temp: u64) -> Outcome<Temp> {
        let made = ino(dir).and_then(|dir| self.tree.begin_file(&self.who, dir, size_bytes));
        let new = made.map_err(Fault::target("create target"))?;
        Ok(Temp { file: new.file, at: TempAt::Buffer { ino: new.ino } })
    }

    fn grow(&self, temp: &Temp, size_bytes: u64) -> Outcome<()> {
        let grown = self.tree.grow_file(temp_ino(temp)?, size_bytes);
        grown.map_err(Fault::target("write target"))
    }

    fn writing(&self) -> Outcome<Option<Acting>> {
        Ok(None)
    }

    fn dress(&self, temp: &Temp, meta: &Meta, xattrs: &Xattrs) -> Outcome<()> {
        self.dress_ino(temp_ino(temp)?, meta, xattrs)
    }

    fn fsync(&self, temp: &Temp) -> Outcome<()> {
        self.tree.finish_file(temp_ino(temp)?).map_err(Fault::target("fsync target"))
    }

    fn publish(&self, temp: &Temp, dir: &Dir, name: &[u8]) -> Outcome<Meta> {
        let fault = Fault::target("publish target");
        let at = ino(dir).map_err(&fault)?;
        let attr = self.tree.publish(&self.who, temp_ino(temp)?, at, name).map_err(&fault)?;
        Ok(Meta::of_attr(&attr))
    }

    fn abandon(&self, temp: &Temp, _dir: &Dir) -> bool {
        if let TempAt::Buffer { ino } = temp.at {
            self.tree.abandon(ino);
        }
        true
    }

    fn remove_temp(&self, _dir: &Dir, _name: &[u8], _ino: u64) -> Outcome<bool> {
        Ok(false)
    }

    fn symlink(&self, at: At<'_>, to: &[u8], meta: &Meta, xattrs: &Xattrs) -> Outcome<()> {
        let made = ino(at.dir).and_then(|dir| self.tree.symlink(&self.who, dir, at.name, to));
        let attr = made.map_err(Fault::target("make symbolic link"))?;
        self.dress_ino(attr.ino, meta, xattrs)
    }

    fn node(&self, at: At<'_>, meta: &Meta, xattrs: &Xattrs) -> Outcome<()> {
        let made = ino(at.dir)
            .and_then(|dir| self.tree.mknod(&self.who, dir, at.name, meta.kind, 0o600, meta.rdev));
        let attr = made.map_err(Fault::target("make special file"))?;
        self.dress_ino(attr.ino, meta, xattrs)
    }

    fn link(&self, old_dir: &Dir, old_name: &[u8], at: At<'_>) -> Outcome<()> {
        let linked = ino(old_dir).and_then(|old| {
            let leader = self.tree.child(&self.who, old, old_name)?;
            let there = self.tree.child(&self.who, ino(at.dir)?, at.name);
            if there.is_ok_and(|there| there.ino == leader.ino) {
                return Ok(());
            }
            self.tree.link(&self.who, leader.ino, ino(at.dir)?, at.name).map(drop)
        });
        linked.map_err(Fault::target("make hard link"))
    }

    fn finish_dir(&self, dir: &Dir, attrs: Option<(&Meta, &Xattrs)>) -> Outcome<()> {
        let Some((meta, xattrs)) = attrs else { return Ok(()) };
        let ino = ino(dir).map_err(Fault::target("set attributes of directory"))?;
        self.dress_ino(ino, meta, xattrs)
    }

    fn fsync_dir(&self, _dir: &Dir) -> Outcome<()> {
        Ok(())
    }

    fn sync(&self) -> Outcome<()> {
        self.tree.sync().map_err(Fault::target("sync the buffer"))
    }

    fn sweep(&self, _dir: &Dir, _prefix: &[u8]) -> Outcome<()> {
        // Inodes without names are dropped by the buffer itself when its server starts.
        Ok(())
    }
}

/// The names of a path.
fn names_of(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&b| b == b'/').filter(|name| !name.is_empty())
}

fn leads_out(to: &[u8]) -> Fault {
    let why = format!("it leads out of the buffer, to {}", String::from_utf8_lossy(to));
    let errno = Errno::EXDEV;
    Fault { errno, ..Fault::of(Sort::Refused, Where::Source, "open source", why) }
}

fn temp_ino(temp: &Temp) -> Outcome<Ino> {
    match &temp.at {
        TempAt::Buffer { ino } => Ok(*ino),
        TempAt::Pfs { .. } => Err(Fault::target("find target")(Errno::EBADF)),
    }
}
