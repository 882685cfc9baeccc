//! The PFS, seen with the rights of the requester; here the calls both ends need, and the PFS
//! as a source. The PFS as a target is `pfs_target`.
//!
//! Invariants: every call that names something runs inside [`RequesterPfs::act`]; a single name is opened
//! with O_NOFOLLOW from an open directory; a path that a user named is opened by openat2 below an
//! allowed root. Only such a path may go through symbolic links, and then with the requester's
//! rights; nothing inside a tree does.

use super::endpoint::{Located, Source};
use super::fault::{Fault, Outcome, Sort, Where};
use super::meta::{Dir, Meta, OpenSource, Xattrs};
use super::paths::{split, trim_end};
use super::roots_xattrs::is_roots;
use forebay_credentials::identity::{Acting, Identity};
use forebay_proto::attr::FileKind;
use forebay_proto::{Errno, Result, ShardId};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// Called before each call on the PFS with the name of the call and of the object; an error is
/// taken for the call's. For tests of what faults of a PFS do.
pub type PfsHook = Arc<dyn Fn(&'static str, &[u8]) -> Result<()> + Send + Sync>;

/// The PFS with one requester's rights, below the allowed roots.
#[derive(Clone)]
pub(super) struct RequesterPfs {
    pub identity: Identity,
    /// Directories below which paths may lie; none = anywhere.
    pub roots: Arc<Vec<Vec<u8>>>,
    pub hook: Option<PfsHook>,
    /// Start of the plan's temporary names: `.forebay-PLAN.TOKEN-`.
    pub temp_prefix: Vec<u8>,
    /// Nothing that has a name is replaced.
    pub no_clobber: bool,
    /// The table of what should be mounted.
    pub fstab: Arc<Path>,
}

/// The errno of a failed rustix call.
pub(super) fn errno(e: rustix::io::Errno) -> Errno {
    Errno(e.raw_os_error())
}

/// How one name of a directory may be reached: not up, not out, not through any link.
const ONE_NAME: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::NO_SYMLINKS);
/// Most bytes of a path given to the kernel at once (PATH_MAX less its NUL).
const PATH_BYTES_MAX: usize = 4_095;

impl RequesterPfs {
    /// Acts as the requester until the guard is dropped.
    pub fn act(&self, call: &'static str, name: &[u8]) -> Result<Acting> {
        if let Some(hook) = &self.hook {
            hook(call, name)?;
        }
        self.identity.enter()
    }

    /// Opens a path that the user named.
    pub fn open_named(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
        let _acting = self.act("open", path)?;
        let (root, rel, resolve) = self.root_of(path)?;
        let base = rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY, Mode::empty());
        let base = base.map_err(errno)?;
        let rel = if rel.is_empty() { b"." } else { rel };
        let flags = flags | OFlags::CLOEXEC;
        let resolve = resolve | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(&base, rel, flags, Mode::empty(), resolve).map_err(errno)
    }

    /// The allowed root of a path, and the rest of it.
    fn root_of<'a>(&'a self, path: &'a [u8]) -> Result<(&'a [u8], &'a [u8], ResolveFlags)> {
        if path.first() != Some(&b'/') {
            return Err(Errno::EINVAL);
        }
        if self.roots.is_empty() {
            return Ok((b"/", trim_slashes(path), ResolveFlags::IN_ROOT));
        }
        for root in self.roots.iter() {
            let root = trim_end(root);
            if let Some(rest) = path.strip_prefix(root) {
                if rest.is_empty() || rest[0] == b'/' {
                    let root = if root.is_empty() { b"/" } else { root };
                    return Ok((root, trim_slashes(rest), ResolveFlags::BENEATH));
                }
            }
        }
        Err(Errno::EACCES)
    }

    /// Opens one name of a directory.
    pub fn open_at(&self, dir: &Dir, name: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY;
        rustix::fs::openat2(fd(dir)?, name, flags, mode, ONE_NAME).map_err(errno)
    }

    /// Walks `rel` from a path that the user named, through directories only.
    pub fn walk_down(&self, top: &[u8], rel: &[u8]) -> Result<Dir> {
        let mut at = self.open_named(top, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let _acting = self.act("open", rel)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if !rel.is_empty() && rel.len() <= PATH_BYTES_MAX {
            at = rustix::fs::openat2(&at, rel, flags, Mode::empty(), ONE_NAME).map_err(errno)?;
            return Ok(Dir::Pfs(Arc::new(at)));
        }
        for name in rel.split(|&b| b == b'/').filter(|name| !name.is_empty()) {
            at = rustix::fs::openat2(&at, name, flags, Mode::empty(), ONE_NAME).map_err(errno)?;
        }
        Ok(Dir::Pfs(Arc::new(at)))
    }

    /// Attributes of a name, of a symbolic link itself.
    pub fn stat_at(&self, dir: &Dir, name: &[u8]) -> Result<Meta> {
        let _acting = self.act("stat", name)?;
        let stat = rustix::fs::statat(fd(dir)?, name, AtFlags::SYMLINK_NOFOLLOW).map_err(errno)?;
        Meta::of_stat(&stat).ok_or(Errno::EINVAL)
    }

    /// Opens a subdirectory.
    pub fn enter_at(&self, dir: &Dir, name: &[u8]) -> Result<Dir> {
        let _acting = self.act("open", name)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        Ok(Dir::Pfs(Arc::new(self.open_at(dir, name, flags, Mode::empty())?)))
    }

    /// Whether an xattr of a source is kept by a plan of this requester.
    fn keeps(&self, name: &[u8]) -> bool {
        let any = |prefixes: &[&[u8]]| prefixes.iter().any(|p| name.starts_with(p));
        if name.starts_with(b"user.forebay.") {
            return false;
        }
        any(&[b"user.", b"system.posix_acl_"])
            || (self.identity.is_superuser() && any(&[b"trusted.", b"security."]))
    }

    fn xattrs_of(&self, fd: BorrowedFd<'_>) -> Result<Xattrs> {
        self.xattrs_by(
            |buf| rustix::fs::flistxattr(fd, buf),
            |name, buf| rustix::fs::fgetxattr(fd, name, buf),
        )
    }

    fn xattrs_by(
        &self,
        list: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
        get: impl Fn(&[u8], &mut [u8]) -> rustix::io::Result<usize>,
    ) -> Result<Xattrs> {
        let _acting = self.act("getxattr", b"")?;
        let names = match xattr_bytes(list) {
            Err(Errno::EOPNOTSUPP) => return Ok(Vec::new()),
            names => names?,
        };
        let mut all = Vec::new();
        for name in names.split(|&b| b == 0).filter(|name| !name.is_empty() && self.keeps(name)) {
            match xattr_bytes(|buf| get(name, buf)) {
                Ok(value) => all.push((name.to_vec(), value)),
                // Removed since the list was read.
                Err(Errno::ENODATA) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(all)
    }
}

/// Reads a value whose size is not known: most fit the first buffer.
fn xattr_bytes(call: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> Result<Vec<u8>> {
    const FIRST_BYTES: usize = 512;
    let mut buf = vec![0; FIRST_BYTES];
    loop {
        match call(&mut buf) {
            Ok(len) => {
                buf.truncate(len);
                return Ok(buf);
            }
            Err(rustix::io::Errno::RANGE) if buf.len() < forebay_proto::api::XATTR_VALUE_MAX => {
                buf.resize(forebay_proto::api::XATTR_VALUE_MAX, 0);
            }
            Err(e) => return Err(errno(e)),
        }
    }
}

/// The descriptor of a PFS directory.
pub(super) fn fd(dir: &Dir) -> Result<BorrowedFd<'_>> {
    match dir {
        Dir::Pfs(fd) => Ok(fd.as_fd()),
        Dir::Buffer(_) => Err(Errno::EBADF),
        Dir::Missing => Err(Errno::ENOENT),
    }
}

fn trim_slashes(path: &[u8]) -> &[u8] {
    let start = path.iter().take_while(|&&b| b == b'/').count();
    trim_end(&path[start..])
}

/// A path of a name in an open directory, for calls that have no form with a descriptor. The name
/// itself is not followed by calls that do not follow links.
pub(super) fn below_fd(dir: BorrowedFd<'_>, name: &[u8]) -> Vec<u8> {
    let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    path
}

/// The path that the kernel knows an open object by.
pub(super) fn path_of(fd: BorrowedFd<'_>) -> Result<Vec<u8>> {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(std::fs::read_link(link)?.as_os_str().as_bytes().to_vec())
}

impl Source for RequesterPfs {
    fn top(&self, path: &[u8]) -> Outcome<Dir> {
        let opened = self.open_named(path, OFlags::RDONLY | OFlags::DIRECTORY);
        opened.map(|fd| Dir::Pfs(Arc::new(fd))).map_err(|e| self.named(e, "open source"))
    }

    fn locate(&self, path: &[u8]) -> Outcome<Located> {
        let what = "open source";
        let found = self.open_named(path, OFlags::PATH).map_err(|e| self.named(e, what))?;
        // The object's own directory, so that it can be opened there again and again.
        let real = path_of(found.as_fd()).map_err(Fault::source(what))?;
        let (parent, name) = split(&real)
            .ok_or_else(|| Fault::of(Sort::Refused, Where::Source, what, "it has no name"))?;
        let dir = self.top(parent)?;
        let meta = Source::stat(self, &dir, name)?;
        Ok(Located { dir, top: parent.to_vec(), name: name.to_vec(), meta })
    }

    fn reopen(&self, top: &[u8], rel: &[u8]) -> Outcome<Dir> {
        self.walk_down(top, rel).map_err(Fault::source("open source directory"))
    }

    fn list(&self, dir: &Dir) -> Outcome<Vec<Vec<u8>>> {
        let fault = Fault::source("list source directory");
        let _acting = self.act("list", b"").map_err(&fault)?;
        let entries = rustix::fs::Dir::read_from(fd(dir).map_err(&fault)?);
        let mut names = Vec::new();
        for entry in entries.map_err(|e| fault(errno(e)))? {
            let entry = entry.map_err(|e| fault(errno(e)))?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(name.to_vec());
            }
        }
        Ok(names)
    }

    fn stat(&self, dir: &Dir, name: &[u8]) -> Outcome<Meta> {
        self.stat_at(dir, name).map_err(Fault::source("stat source"))
    }

    fn enter(&self, dir: &Dir, name: &[u8]) -> Outcome<Dir> {
        self.enter_at(dir, name).map_err(Fault::source("open source directory"))
    }

    fn dir_meta(&self, dir: &Dir) -> Outcome<Meta> {
        let fault = Fault::source("stat source directory");
        let stat = rustix::fs::fstat(fd(dir).map_err(&fault)?).map_err(|e| fault(errno(e)))?;
        Meta::of_stat(&stat).ok_or_else(|| fault(Errno::EINVAL))
    }

    fn open(&self, dir: &Dir, name: &[u8], expect: &Meta) -> Outcome<OpenSource> {
        let fault = Fault::source("open source");
        let _acting = self.act("open", name).map_err(&fault)?;
        // O_NONBLOCK: a fifo swapped in must not hang the worker.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let quiet = self.open_at(dir, name, flags | OFlags::NOATIME, Mode::empty());
        let opened = match quiet {
            // Only the owner may read without leaving a trace.
            Err(Errno::EPERM) => self.open_at(dir, name, flags, Mode::empty()),
            opened => opened,
        };
        let fd = opened.map_err(|e| match e {
            Errno::ELOOP => Fault::changed("a symbolic link has its name"),
            e => fault(e),
        })?;
        let stat = rustix::fs::fstat(&fd).map_err(|e| fault(errno(e)))?;
        let meta = Meta::of_stat(&stat).ok_or_else(|| fault(Errno::EINVAL))?;
        if meta.kind != FileKind::File || (meta.dev, meta.ino) != (expect.dev, expect.ino) {
            return Err(Fault::changed("another file has its name"));
        }
        Ok(OpenSource { file: std::fs::File::from(fd).into(), meta })
    }

    fn recheck(&self, open: &OpenSource) -> Outcome<Meta> {
        let fault = Fault::source("stat source");
        let stat =
            rustix::fs::fstat(open.file.kernel().map_err(&fault)?).map_err(|e| fault(errno(e)))?;
        Meta::of_stat(&stat).ok_or_else(|| fault(Errno::EINVAL))
    }

    fn readlink(&self, dir: &Dir, name: &[u8]) -> Outcome<Vec<u8>> {
        let fault = Fault::source("read symbolic link");
        let _acting = self.act("readlink", name).map_err(&fault)?;
        let dir = fd(dir).map_err(&fault)?;
        let target = rustix::fs::readlinkat(dir, name, Vec::new()).map_err(|e| fault(errno(e)))?;
        Ok(target.into_bytes())
    }

    fn file_xattrs(&self, open: &OpenSource) -> Outcome<Xattrs> {
        let got = open.file.kernel().and_then(|file| self.xattrs_of(file.as_fd()));
        got.map_err(Fault::source("read xattrs of source"))
    }

    fn name_xattrs(&self, dir: &Dir, name: &[u8], meta: &Meta) -> Outcome<Xattrs> {
        if meta.kind == FileKind::Symlink && !self.identity.is_superuser() {
            // It can have none that they may copy: no user.* and no ACL.
            return Ok(Vec::new());
        }
        let fault = Fault::source("read xattrs of source");
        let path = below_fd(fd(dir).map_err(&fault)?, name);
        let got = self.xattrs_by(
            |buf| rustix::fs::llistxattr(&path[..], buf),
            |name, buf| rustix::fs::lgetxattr(&path[..], name, buf),
        );
        got.map_err(&fault)
    }

    fn dir_xattrs(&self, dir: &Dir) -> Outcome<Xattrs> {
        let fault = Fault::source("read xattrs of source");
        self.xattrs_of(fd(dir).map_err(&fault)?).map_err(&fault)
    }

    fn left_out(&self, dir: &Dir, name: &[u8], _meta: &Meta) -> Vec<Vec<u8>> {
        let Ok(at) = fd(dir) else { return Vec::new() };
        let path = below_fd(at, name);
        let list = || xattr_bytes(|buf| rustix::fs::llistxattr(&path[..], buf));
        // As the server: the kernel shows `trusted.*` to nobody but root. A PFS may let root in nowhere.
        let names = match list() {
            Err(Errno::EACCES | Errno::EPERM) => {
                let as_requester = self.act("getxattr", name);
                as_requester.and_then(|_acting| list())
            }
            names => names,
        };
        let names = names.unwrap_or_default();
        names.split(|&b| b == 0).filter(|name| is_roots(name)).map(<[u8]>::to_vec).collect()
    }

    fn shard_of(&self, _meta: &Meta) -> Option<ShardId> {
        None
    }

    fn check_readable(&self, file: &Located) -> Outcome<()> {
        self.open(&file.dir, &file.name, &file.meta).map(drop)
    }

    fn read_all(&self, file: &Located, most_bytes: u64) -> Outcome<Option<Vec<u8>>> {
        let open = self.open(&file.dir, &file.name, &file.meta)?;
        let _acting = self.act("read", &file.name).map_err(Fault::source("read source"))?;
        let mut text = Vec::new();
        let mut file = open.file.kernel().map_err(Fault::source("read source"))?;
        let read = (&mut file).take(most_bytes + 1).read_to_end(&mut text);
        let len = read.map_err(|e| Fault::source("read source")(e.into()))?;
        Ok((len as u64 <= most_bytes).then_some(text))
    }
}

impl RequesterPfs {
    /// A failure to open a path that the user named, with words for our own rules.
    fn named(&self, e: Errno, what: &'static str) -> Fault {
        let mut fault = Fault::source(what)(e);
        fault.why = match e {
            Errno::ENOSYS => Some("openat2 is missing (Linux 5.6 or newer is needed)".to_string()),
            Errno::EXDEV | Errno::EACCES if !self.roots.is_empty() => {
                let roots: Vec<_> =
                    self.roots.iter().map(|r| String::from_utf8_lossy(r).into_owned()).collect();
                Some(format!("{e}; this server stages only below {}", roots.join(", ")))
            }
            _ => None,
        };
        fault
    }

    /// The same, on the target's side.
    pub fn named_target(&self, e: Errno, what: &'static str) -> Fault {
        Fault { side: Where::Target, ..self.named(e, what) }
    }
}
