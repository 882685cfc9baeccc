//! lookup and peek, references that are taken by number, readlink.

use super::Names;
use crate::attributes::merge;
use forebay_proto::api::NAME_MAX;
use forebay_proto::attr::FileKind;
use forebay_proto::{Attr, Entry, Errno, Ino, Result};
use forebay_store::record::InodeRecord;

/// How often a name is looked up whose inode is gone each time.
pub(crate) const MAX_LOOKUPS: u32 = 16;

impl Names {
    /// The entry, with one more reference to its inode. ESTALE if that is at another shard, or if the name was given
    /// to others again and again meanwhile.
    pub(crate) fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.look_up(parent, name, |ino| self.attrs.of_entry(ino))
    }

    /// The same, with what the record says.
    pub(crate) fn lookup_without_object(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.look_up(parent, name, |ino| Ok(merge(ino, &self.records.inode(ino)?, None)))
    }

    fn look_up(
        &self,
        parent: Ino,
        name: &[u8],
        attributes: impl Fn(Ino) -> Result<Attr>,
    ) -> Result<Entry> {
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        // A rename that replaces the name between the two reads takes the first inode away, not the name. Only a
        // second look can tell that from a removal.
        for _ in 0..MAX_LOOKUPS {
            match self.look_up_once(parent, name, &attributes) {
                Err(Errno::ESTALE) => {}
                done => return done,
            }
        }
        Err(Errno::ESTALE)
    }

    /// ESTALE if the name led to an inode that was gone before it could be read, or that is at another shard.
    fn look_up_once(
        &self,
        parent: Ino,
        name: &[u8],
        attributes: &impl Fn(Ino) -> Result<Attr>,
    ) -> Result<Entry> {
        self.records.holds().may_look(parent, name)?;
        let ino = match name {
            b"." => parent,
            b".." => self.records.directory(parent)?.parent,
            _ => match self.records.store().entry(parent, name)? {
                Some(entry) => entry.ino,
                None => {
                    // Only now, off the hot path: is it a directory at all?
                    self.records.directory(parent)?;
                    return Err(Errno::ENOENT);
                }
            },
        };
        if !self.records.is_alone() && ino.shard() != self.records.shard() {
            return Err(Errno::ESTALE);
        }
        // Referenced before it is read, so that it cannot be reclaimed in between.
        self.refs.add(ino);
        match attributes(ino) {
            Ok(attr) => Ok(Entry { attr }),
            Err(e) => {
                self.reclaim.forget(ino, 1);
                Err(e)
            }
        }
    }

    /// The inode of a name and its type, without a reference to it; `None` if there is no such name.
    pub fn peek(&self, parent: Ino, name: &[u8]) -> Result<Option<(Ino, FileKind)>> {
        Ok(self.records.store().entry(parent, name)?.map(|entry| (entry.ino, entry.kind)))
    }

    /// The inode that a name leads to, `..` too, and its type, if it is at another shard. ERESTART while another
    /// shard decides what it leads to.
    pub fn leads_elsewhere(&self, parent: Ino, name: &[u8]) -> Result<Option<(Ino, FileKind)>> {
        if self.records.is_alone() || name.len() > NAME_MAX {
            return Ok(None);
        }
        self.records.holds().may_look(parent, name)?;
        let led = match name {
            b"." => return Ok(None),
            b".." => Some((self.records.directory(parent)?.parent, FileKind::Dir)),
            _ => self.peek(parent, name)?,
        };
        Ok(led.filter(|(ino, _)| ino.shard() != self.records.shard()))
    }

    /// One more reference to an inode that a client held before; false if it is not there any
    /// more.
    pub fn take_reference(&self, ino: Ino) -> bool {
        self.refs.add(ino);
        match self.records.store().inode(ino) {
            Ok(Some(_)) => true,
            _ => {
                self.reclaim.forget(ino, 1);
                false
            }
        }
    }

    /// A reference handed out with a record that was just read or written.
    pub(super) fn entry_for(&self, ino: Ino, record: &InodeRecord) -> Result<Entry> {
        Ok(Entry { attr: self.attrs.of_entry_record(ino, record)? })
    }

    /// Target of a symbolic link.
    pub(crate) fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        if self.records.inode(ino)?.kind() != FileKind::Symlink {
            return Err(Errno::EINVAL);
        }
        self.records.store().symlink(ino)?.ok_or(Errno::EIO)
    }
}
