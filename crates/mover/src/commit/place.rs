//! Where a commit goes: the place (its parent directory and name), the directory beside it in which
//! the tree is made, and what may be at the place before.
//!
//! Invariant: nothing at the place is changed here; what is made is beside it, in the commit's own names. Called by the commit's
//! phases (`mod`) and by `publish`.

use super::{Commit, refused};
use crate::endpoint::{Source, Target};
use crate::fault::{Fault, Outcome};
use crate::meta::{Dir, Meta};
use crate::paths::{join, split};
use crate::pfs::{RequesterPfs, errno, fd};
use forebay_proto::attr::FileKind;
use forebay_proto::commit::{MANIFEST_NAME, PublishedBy, VERSION_PREFIX, is_version};
use forebay_proto::control::PathBytes;
use forebay_proto::{Errno, Result};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use std::sync::Arc;

/// Longest part of the place's name in names beside it: with version and suffix they stay below
/// the 255 bytes of a name.
const NAME_BYTES_MAX: usize = 200;

/// Paths of one commit.
pub(crate) struct Place {
    /// What was asked for.
    pub path: Vec<u8>,
    /// Its directory.
    pub parent: Vec<u8>,
    /// Its name there.
    pub name: Vec<u8>,
    /// 16 hex digits.
    pub version: String,
    /// Name of the directory beside it.
    pub staging: Vec<u8>,
    /// That directory's path.
    pub staging_path: Vec<u8>,
}

impl Place {
    /// Of a path; `None` if it has no last name.
    pub fn of(path: &[u8], version: &str) -> Option<Place> {
        let (parent, name) = split(path)?;
        let staging = beside(name, version);
        Some(Place {
            path: join(parent, b"", name),
            parent: parent.to_vec(),
            name: name.to_vec(),
            version: version.to_string(),
            staging_path: join(parent, b"", &staging),
            staging,
        })
    }

    /// The name in the tree that only this version has.
    pub fn version_link(&self) -> Vec<u8> {
        [VERSION_PREFIX.as_bytes(), self.version.as_bytes()].concat()
    }

    /// The path below which a reader finds this tree or nothing.
    pub fn versioned(&self) -> Vec<u8> {
        join(&self.path, b"", &self.version_link())
    }

    /// Name that a displaced tree is kept under.
    pub fn kept_name(&self) -> Vec<u8> {
        [shortened(&self.name), b".before-", self.version.as_bytes()].concat()
    }

    /// Name of the symbolic link before it has the place's name.
    pub fn link_temp(&self) -> Vec<u8> {
        [&self.staging[..], b".link"].concat()
    }

    /// Tells where the displaced tree is, if it is kept.
    pub(super) fn displaced(&self, by: PublishedBy, old: Option<&PathBytes>, commit: &Commit) {
        let kept = match by {
            PublishedBy::Exchange => Some(join(&self.parent, b"", &self.kept_name())),
            PublishedBy::Symlink => old.map(|old| join(&self.parent, b"", old.as_bytes())),
            PublishedBy::Rename => None,
        };
        if commit.keep_old {
            commit.set(|status| status.old = kept.map(|path| PathBytes::new(&path)));
        }
    }
}

fn shortened(name: &[u8]) -> &[u8] {
    &name[..name.len().min(NAME_BYTES_MAX)]
}

/// Name of the directory beside a place in which a version is made.
pub(super) fn beside(name: &[u8], version: &str) -> Vec<u8> {
    [b".", shortened(name), VERSION_PREFIX.as_bytes(), version.as_bytes()].concat()
}

/// True for the name of a directory beside the place `name` that a commit made.
pub(super) fn is_beside(name: &[u8], other: &[u8]) -> bool {
    let version = other.len().checked_sub(16).map(|at| &other[at..]);
    version.is_some_and(|version| {
        is_version(version) && beside(name, &String::from_utf8_lossy(version)) == other
    })
}

/// What is at the place.
pub(super) enum There {
    Nothing,
    Directory,
    /// A symbolic link that a commit made, and where it leads.
    Link(Vec<u8>),
}

/// The place of one commit, and what is beside it, on the PFS.
pub(super) struct CommitSite<'a> {
    pub pfs: &'a RequesterPfs,
    pub place: &'a Place,
    /// A directory that no commit made may be removed, or is kept under another name.
    pub may_displace: bool,
}

impl CommitSite<'_> {
    /// The directory that the place is in.
    pub fn parent(&self) -> Outcome<Dir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = self.pfs.open_named(&self.place.parent, flags);
        opened.map(|fd| Dir::Pfs(Arc::new(fd))).map_err(|errno| match errno {
            Errno::ENOENT => {
                let why = "the directory that it goes into does not exist; make it first";
                refused(errno, "open target directory", why)
            }
            errno => Fault::target("open target directory")(errno),
        })
    }

    /// Looks at the place; refuses what a commit may not replace.
    pub fn there(&self, parent: &Dir) -> Outcome<There> {
        let what = "look at the place";
        let fault = Fault::target(what);
        let name = &self.place.name;
        let found = match self.pfs.stat_at(parent, name) {
            Err(Errno::ENOENT) => return Ok(There::Nothing),
            found => found.map_err(&fault)?,
        };
        match found.kind {
            FileKind::Dir => {
                if !self.may_displace {
                    self.must_be_of_a_commit(parent)?;
                }
                Ok(There::Directory)
            }
            FileKind::Symlink => {
                let _acting = self.pfs.act("readlink", name).map_err(&fault)?;
                let at = fd(parent).map_err(&fault)?;
                let to = rustix::fs::readlinkat(at, name, Vec::new());
                let to = to.map_err(|e| fault(errno(e)))?.into_bytes();
                if is_beside(name, &to) {
                    return Ok(There::Link(to));
                }
                let why = "it is a symbolic link that no commit made; name the directory it leads \
                           to, or remove it";
                Err(refused(Errno::EEXIST, what, why))
            }
            _ => {
                let why = "it is no directory; a commit replaces only a directory";
                Err(refused(Errno::ENOTDIR, what, why))
            }
        }
    }

    /// Refuses a directory with something in it that no commit made: a path that was meant to be longer must not
    /// cost what is there. With the place's directory.
    fn must_be_of_a_commit(&self, parent: &Dir) -> Outcome<()> {
        let what = "look at the directory that is there";
        let name = &self.place.name;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let opened = self.pfs.open_at(parent, name, flags, Mode::empty());
        let there = Dir::Pfs(Arc::new(opened.map_err(Fault::target(what))?));
        match self.pfs.stat_at(&there, MANIFEST_NAME.as_bytes()) {
            Ok(meta) if meta.kind == FileKind::File => return Ok(()),
            Ok(_) | Err(Errno::ENOENT) => {}
            Err(e) => return Err(Fault::target(what)(e)),
        }
        if self.pfs.list(&there)?.is_empty() {
            return Ok(());
        }
        let why = "there is a directory that no commit made, and it is not empty; name another place, \
                   or let it go (--replace) or keep it under another name (--keep-old)";
        Err(refused(Errno::ENOTEMPTY, what, why))
    }

    /// Makes the directory beside the place, private until it is complete, and finds out how the
    /// tree can be published: what cannot be is refused before anything is copied.
    pub fn prepare(&self) -> Outcome<PublishedBy> {
        let fault = Fault::target("make directory");
        let parent = match self.parent() {
            Err(missing) if missing.errno == Errno::ENOENT => {
                // A directory that is missing may be on the file system that is not there.
                self.pfs.must_be_mounted_above(&self.place.parent)?;
                return Err(missing);
            }
            parent => parent?,
        };
        self.pfs.must_be_mounted(fd(&parent).map_err(&fault)?, &self.place.parent)?;
        let there = self.there(&parent)?;
        {
            let staging = &self.place.staging;
            let _acting = self.pfs.act("mkdir", staging).map_err(&fault)?;
            match rustix::fs::mkdirat(fd(&parent).map_err(&fault)?, staging, Mode::RWXU) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(e) => return Err(fault(errno(e))),
            }
        }
        // An earlier run may have given it its final mode.
        let staging = self.pfs.make_dir(&parent, &self.place.staging)?;
        self.how(&staging, &there)
    }

    /// How a tree can replace what is there.
    fn how(&self, staging: &Dir, there: &There) -> Outcome<PublishedBy> {
        let exchanges = match there {
            There::Link(_) => return Ok(PublishedBy::Symlink),
            _ => self.can_exchange(staging).map_err(Fault::target("try an exchange"))?,
        };
        match (there, exchanges) {
            (There::Nothing, true) => Ok(PublishedBy::Rename),
            (There::Nothing, false) => Ok(PublishedBy::Symlink),
            (_, true) => Ok(PublishedBy::Exchange),
            (_, false) => {
                let why = "this file system cannot exchange two directories, and the name is a \
                           directory's: rename it, and the commit makes a symbolic link there, \
                           which later ones replace in one step";
                Err(refused(Errno::EOPNOTSUPP, "exchange", why))
            }
        }
    }

    /// Tries RENAME_EXCHANGE on two directories of our own.
    fn can_exchange(&self, staging: &Dir) -> Result<bool> {
        const NAMES: [&[u8]; 2] = [b".forebay-try-a", b".forebay-try-b"];
        let at = fd(staging)?;
        let hooked = self.pfs.act("exchange", NAMES[0]);
        let _acting = match hooked {
            Err(Errno::EINVAL) => return Ok(false),
            acting => acting?,
        };
        for name in NAMES {
            match rustix::fs::mkdirat(at, name, Mode::RWXU) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(e) => return Err(errno(e)),
            }
        }
        let tried = rustix::fs::renameat_with(at, NAMES[0], at, NAMES[1], RenameFlags::EXCHANGE);
        for name in NAMES {
            rustix::fs::unlinkat(at, name, AtFlags::REMOVEDIR).map_err(errno)?;
        }
        match tried {
            Ok(()) => Ok(true),
            Err(e) => match errno(e) {
                Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP => Ok(false),
                e => Err(e),
            },
        }
    }

    /// Whether a directory of the PFS has this commit's tree in it.
    pub fn has_version(&self, path: &[u8]) -> Result<bool> {
        let opened = self.pfs.open_named(path, OFlags::PATH | OFlags::DIRECTORY);
        let dir = match opened {
            Ok(fd) => Dir::Pfs(Arc::new(fd)),
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => return Ok(false),
            Err(e) => return Err(e),
        };
        match self.pfs.stat_at(&dir, &self.place.version_link()) {
            Ok(Meta { kind, .. }) => Ok(kind == FileKind::Symlink),
            Err(Errno::ENOENT) => Ok(false),
            Err(e) => Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beside_a_place_are_told_from_others() {
        let place = Place::of(b"/pfs/run/ckpt/", "0123456789abcdef").unwrap();
        assert_eq!(place.path, b"/pfs/run/ckpt");
        assert_eq!(place.staging, b".ckpt.forebay-0123456789abcdef");
        assert!(is_beside(b"ckpt", &place.staging));
        assert!(!is_beside(b"other", &place.staging));
        assert!(!is_beside(b"ckpt", b".ckpt.forebay-0123456789abcdeg"));
        assert!(!is_beside(b"ckpt", b"x"));
        assert!(Place::of(b"/", "0123456789abcdef").is_none());
        let long = [b"/".as_slice(), &[0xff; 255]].concat();
        let place = Place::of(&long, "0123456789abcdef").unwrap();
        assert!(place.link_temp().len() < 255 && place.kept_name().len() < 255);
        assert!(is_beside(&place.name, &place.staging));
    }
}
