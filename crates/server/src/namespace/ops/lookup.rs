//! lookup, forget, getattr, readlink.

use super::super::Namespace;
use crate::namespace::record::InodeRecord;
use forebay_proto::api::NAME_MAX;
use forebay_proto::attr::FileKind;
use forebay_proto::{Entry, Errno, Ino, Result};

impl Namespace {
    /// The entry, with one more reference to its inode.
    pub(crate) fn op_lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if let Some(shards) = &self.shards {
            shards.holds().may_look(parent, name)?;
        }
        let ino = match name {
            b"." => parent,
            b".." => self.directory(parent)?.parent,
            _ => match self.store.entry(parent, name)? {
                Some(entry) => entry.ino,
                None => {
                    // Only now, off the hot path: is it a directory at all?
                    self.directory(parent)?;
                    return Err(Errno::ENOENT);
                }
            },
        };
        // Referenced before it is read, so that it cannot be reclaimed in between.
        self.refs.add(ino);
        match self.entry_attributes(ino) {
            Ok(attr) => Ok(Entry { attr }),
            Err(e) => {
                self.op_forget(ino, 1);
                // The name was removed between the two reads.
                Err(if e == Errno::ESTALE { Errno::ENOENT } else { e })
            }
        }
    }

    /// The inode of a name and its type, without a reference to it; `None` if there is no such name.
    pub(crate) fn peek(&self, parent: Ino, name: &[u8]) -> Result<Option<(Ino, FileKind)>> {
        Ok(self.store.entry(parent, name)?.map(|entry| (entry.ino, entry.kind)))
    }

    /// The inode that a name leads to, `..` too, and its type, if it is at another shard. ERESTART while another
    /// shard decides what it leads to.
    pub(crate) fn leads_elsewhere(
        &self,
        parent: Ino,
        name: &[u8],
    ) -> Result<Option<(Ino, FileKind)>> {
        if self.is_alone() || name.len() > NAME_MAX {
            return Ok(None);
        }
        if let Some(shards) = &self.shards {
            shards.holds().may_look(parent, name)?;
        }
        let led = match name {
            b"." => return Ok(None),
            b".." => Some((self.directory(parent)?.parent, FileKind::Dir)),
            _ => self.peek(parent, name)?,
        };
        Ok(led.filter(|(ino, _)| ino.shard() != self.shard))
    }

    /// One more reference to an inode that a client held before; false if it is not there any
    /// more.
    pub(crate) fn take_reference(&self, ino: Ino) -> bool {
        self.refs.add(ino);
        match self.store.inode(ino) {
            Ok(Some(_)) => true,
            _ => {
                self.op_forget(ino, 1);
                false
            }
        }
    }

    /// Gives references back; the last one of an inode without names frees it.
    pub(crate) fn op_forget(&self, ino: Ino, count: u64) {
        if self.refs.remove(ino, count) {
            self.reclaim.push(ino);
        }
    }

    /// A reference handed out with a record that was just read or written.
    pub(super) fn entry_for(&self, ino: Ino, record: &InodeRecord) -> Result<Entry> {
        Ok(Entry { attr: self.attr_of_entry(ino, record)? })
    }

    /// Target of a symbolic link.
    pub(crate) fn op_readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        if self.inode(ino)?.kind() != FileKind::Symlink {
            return Err(Errno::EINVAL);
        }
        self.store.symlink(ino)?.ok_or(Errno::EIO)
    }
}
