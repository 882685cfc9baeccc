//! Attributes of inodes: what a record and the file's data show together, and changing them (`set`).
//!
//! Invariant: a regular file's size, data times and blocks are its object's; the record holds the rest. An object that is
//! missing although the record says there is one is reported as lost (EIO), and never made anew here.
//! Called by all operations.

mod set;

pub(crate) use set::{ANY_WRITE, CAPABILITY};

use crate::base::Base;
use crate::records::Records;
use crate::striped::StripedFiles;
use forebay_proto::attr::{Attr, FileKind};
use forebay_proto::layout::Layout;
use forebay_proto::{Errno, Ino, ObjectId, Result};
use forebay_store::objects::{ObjectStat, Objects};
use forebay_store::record::{InodeRecord, inode_flags};
use std::sync::Arc;

/// Preferred I/O size told to programs.
const BLKSIZE_BYTES: u32 = forebay_preload_wire::names::BLKSIZE_BYTES;

/// The attributes.
pub struct Attributes {
    records: Arc<Records>,
    objects: Arc<Objects>,
    striped: Arc<StripedFiles>,
}

impl Attributes {
    /// Of inodes of these records.
    pub(crate) fn new(base: &Base, striped: &Arc<StripedFiles>) -> Attributes {
        let (records, objects) = (Arc::clone(&base.records), Arc::clone(&base.objects));
        Attributes { records, objects, striped: Arc::clone(striped) }
    }

    /// What was done to the object of a whole file. One that is not there although the file's record
    /// says so is lost: EIO, and told.
    pub(crate) fn on_object<T>(&self, ino: Ino, done: Result<T>) -> Result<T> {
        match done {
            Err(Errno::ENOENT) => Err(self.why_no_object(ino)),
            other => other,
        }
    }

    /// Asked after the object was found missing: a file that goes loses its record first.
    fn why_no_object(&self, ino: Ino) -> Errno {
        match self.records.inode(ino) {
            Ok(record) if record.has(inode_flags::HAS_OBJECT) && !record.is_striped() => {
                self.objects.missing(ObjectId::whole(ino))
            }
            Ok(_) => Errno::ENOENT,
            Err(errno) => errno,
        }
    }

    /// The attributes shown for a record.
    pub(crate) fn of_record(&self, ino: Ino, record: &InodeRecord) -> Result<Attr> {
        if record.is_striped() {
            return self.striped.attr(ino, record);
        }
        let object = match record.has(inode_flags::HAS_OBJECT) {
            true => Some(self.on_object(ino, self.objects.stat(ObjectId::whole(ino)))?),
            false => None,
        };
        Ok(merge(ino, record, object))
    }

    /// Attributes of what a name leads to: exact, but for a striped file of which a server is away, and
    /// for one whose data is lost ([`Attr::with_unknown_size`]): their names can be removed.
    pub(crate) fn of_entry_record(&self, ino: Ino, record: &InodeRecord) -> Result<Attr> {
        match record.is_striped() {
            true => self.striped.entry_attr(ino, record),
            false => match self.of_record(ino, record) {
                Err(Errno::EIO) if record.has(inode_flags::HAS_OBJECT) => {
                    Ok(merge(ino, record, None).with_unknown_size())
                }
                known => known,
            },
        }
    }

    /// The same by number.
    pub fn of_entry(&self, ino: Ino) -> Result<Attr> {
        self.of_entry_record(ino, &self.records.inode(ino)?)
    }

    /// Exact attributes by number.
    pub fn of(&self, ino: Ino) -> Result<Attr> {
        self.of_record(ino, &self.records.inode(ino)?)
    }

    /// Layout of a file.
    pub fn layout(&self, ino: Ino) -> Result<Layout> {
        Ok(self.records.inode(ino)?.layout)
    }
}

/// Record and object as `stat` shows them.
pub(crate) fn merge(ino: Ino, record: &InodeRecord, object: Option<ObjectStat>) -> Attr {
    let mut attr = Attr {
        ino,
        size_bytes: record.size,
        blocks_512: 0,
        atime: record.atime,
        mtime: record.mtime,
        ctime: record.ctime,
        btime: record.btime,
        mode: record.mode,
        nlink: record.nlink,
        uid: record.uid,
        gid: record.gid,
        rdev: record.rdev,
        blksize_bytes: BLKSIZE_BYTES,
    };
    if let Some(object) = object {
        attr.size_bytes = object.size_bytes;
        attr.blocks_512 = object.blocks_512;
        attr.atime = object.atime;
        attr.mtime = object.mtime;
        if attr.ctime > object.ctime {
            forebay_store::clock::shown(attr.ctime);
        }
        attr.ctime = attr.ctime.max(object.ctime);
    }
    if record.kind() == FileKind::Dir {
        // As on tmpfs: a size that grows with the entries and takes no blocks.
        attr.size_bytes = record.size * 20;
    }
    attr
}
