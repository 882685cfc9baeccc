//! Listing directories: the PFS's entries in its own order, under its own positions.

use super::super::names::Names;
use super::super::pfs::errno;
use super::DRAIN_PREFIX;
use forebay_credentials::acting::Who;
use forebay_proto::api::DirEntry;
use forebay_proto::attr::FileKind;
use forebay_proto::{Cookie, Errno, Ino, Result};
use rustix::fs::{self as rfs, SeekFrom};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

/// Bytes of entries that are asked of the PFS at a time.
const BATCH_BYTES: usize = 32 << 10;

impl Names {
    /// Calls `sink` with the entries after a position until it returns false. With `plus` each has
    /// its attributes, and one that was accepted is referenced.
    pub(crate) fn list(
        &self,
        ino: Ino,
        after: Cookie,
        plus: bool,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let (who, dir) = self.inodes.open_list(ino)?;
        rfs::seek(&dir, SeekFrom::Start(after.0)).map_err(errno)?;
        let mut buffer = vec![MaybeUninit::uninit(); BATCH_BYTES];
        let mut entries = rfs::RawDir::new(&dir, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(errno)?;
            let name = entry.file_name().to_bytes();
            if name.starts_with(DRAIN_PREFIX) {
                continue;
            }
            let cookie = Cookie(entry.next_entry_cookie());
            let kind = kind_of(entry.file_type());
            let go_on = match (name, kind) {
                (b"." | b"..", _) => self.give_dots(ino, name, cookie, sink),
                (_, Some(kind)) if !plus => {
                    let ino = self.nodes.shown(entry.ino());
                    sink(&DirEntry { cookie, ino, kind, name, attr: None })
                }
                _ => match self.give(&who, &dir, ino, name, cookie, plus, sink) {
                    // Removed since the directory was read.
                    Err(Errno::ENOENT) => true,
                    other => other?,
                },
            };
            if !go_on {
                break;
            }
        }
        Ok(())
    }

    fn give_dots(
        &self,
        ino: Ino,
        name: &[u8],
        cookie: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> bool {
        let above = self.nodes.names(ino).last().map_or(Ino::ROOT, |(parent, _)| *parent);
        let ino = if name == b"." { ino } else { above };
        sink(&DirEntry { cookie, ino, kind: FileKind::Dir, name, attr: None })
    }

    #[expect(clippy::too_many_arguments, reason = "the entry's parts, passed on as they come")]
    pub(crate) fn give(
        &self,
        who: &Who,
        dir: &OwnedFd,
        parent: Ino,
        name: &[u8],
        cookie: Cookie,
        plus: bool,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<bool> {
        let _settled = self.publishing.look();
        let stat = {
            let _act = who.act()?;
            self.pfs.stat_at(dir.as_fd(), name)?
        };
        if !plus {
            let ino = self.nodes.number(stat.key).unwrap_or(Ino(stat.key.ino));
            return Ok(sink(&DirEntry { cookie, ino, kind: stat.kind(), name, attr: None }));
        }
        let ino = self.nodes.seen(parent, name, stat.key, stat.kind(), who, 1);
        if self.ownership.is_elsewhere(ino, stat.kind()) {
            self.nodes.give(ino);
            return Ok(sink(&DirEntry { cookie, ino, kind: stat.kind(), name, attr: None }));
        }
        let file = match self.nodes.get(ino)?.file {
            None if stat.kind() == FileKind::File => self.records.dirty_by_key(ino, stat.key)?,
            file => file,
        };
        let given = self.attributes.attr_of(ino, &stat, file.as_ref()).map(|attr| {
            sink(&DirEntry { cookie, ino, kind: stat.kind(), name, attr: Some(&attr) })
        });
        if !matches!(given, Ok(true)) {
            drop(self.nodes.forget(ino, 1));
        }
        given
    }
}

fn kind_of(kind: rfs::FileType) -> Option<FileKind> {
    Some(match kind {
        rfs::FileType::RegularFile => FileKind::File,
        rfs::FileType::Directory => FileKind::Dir,
        rfs::FileType::Symlink => FileKind::Symlink,
        rfs::FileType::Fifo => FileKind::Fifo,
        rfs::FileType::Socket => FileKind::Socket,
        rfs::FileType::CharacterDevice => FileKind::CharDev,
        rfs::FileType::BlockDevice => FileKind::BlockDev,
        // The PFS does not tell types in listings.
        rfs::FileType::Unknown => return None,
    })
}
