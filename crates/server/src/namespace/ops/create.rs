//! mknod, mkdir, symlink, create, tmpfile: everything that makes an inode.

use super::super::{Namespace, check_name, merge, txn::Txn};
use crate::namespace::record::{Change, InodeRecord, inode_flags};
use crate::objects::Objects;
use forebay_proto::acl::{self, Acl};
use forebay_proto::api::{CreateArgs, Opened, SYMLINK_MAX};
use forebay_proto::attr::FileKind;
use forebay_proto::layout::turn;
use forebay_proto::{Caller, Cookie, Entry, Errno, Ino, ObjectId, Result, ShardId};
use std::fs::File;
use std::sync::Arc;

/// What is being made.
pub(crate) struct NewInode<'a> {
    pub(crate) kind: FileKind,
    pub(crate) args: CreateArgs,
    pub(crate) rdev: u32,
    /// Symbolic links: the target.
    pub(crate) target: &'a [u8],
    /// Make the data object now.
    pub(crate) with_object: bool,
}

impl<'a> NewInode<'a> {
    pub(crate) fn of(kind: FileKind, args: CreateArgs) -> NewInode<'a> {
        NewInode { kind, args, rdev: 0, target: b"", with_object: false }
    }
}

impl Namespace {
    /// Makes `new` under a name and returns it referenced, with its object if it has one.
    pub(crate) fn op_make(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<(Entry, Option<File>)> {
        check_name(name)?;
        if new.target.len() > SYMLINK_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if new.kind == FileKind::Symlink && new.target.is_empty() {
            return Err(Errno::ENOENT);
        }
        self.with_reclaimed(|| self.make_once(caller, parent, name, new))
    }

    fn make_once(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<(Entry, Option<File>)> {
        let mut txn = self.begin(caller);
        let parent_record = txn.live_dir(parent)?;
        if txn.entry(parent, name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        let ino = txn.take_ino()?;
        let mut record = self.new_record(&mut txn, caller, parent, &parent_record, ino, new)?;
        txn.add_entry(parent, name, ino, new.kind, None)?;
        if new.kind == FileKind::Dir {
            txn.edit(parent)?.nlink += 1;
        }
        if !new.target.is_empty() {
            txn.push(Change::PutSymlink(ino, new.target.to_vec()));
        }
        self.new_layout(&mut record, turn(parent, name));
        let object = self.new_object(ino, &mut record, new)?;
        txn.put_new(ino, record);
        txn.answer_with(ino);
        self.refs.add(ino);
        if let Err(e) = txn.commit() {
            self.undo_new(ino, object.is_some());
            return Err(e);
        }
        let stat = object.as_ref().map(Objects::stat_open).transpose()?;
        Ok((Entry { attr: merge(ino, &record, stat) }, object))
    }

    /// Makes a regular file without a name, referenced, with its object if it is not striped; never
    /// striped if it is to be `whole`.
    pub(crate) fn op_tmpfile(
        &self,
        caller: &Caller,
        parent: Ino,
        args: CreateArgs,
        whole: bool,
    ) -> Result<(Entry, Option<File>)> {
        self.wait_reclaimed_if_short();
        self.with_reclaimed(|| self.tmpfile_once(caller, parent, args, whole))
    }

    fn tmpfile_once(
        &self,
        caller: &Caller,
        parent: Ino,
        args: CreateArgs,
        whole: bool,
    ) -> Result<(Entry, Option<File>)> {
        let new = NewInode { with_object: true, ..NewInode::of(FileKind::File, args) };
        let mut txn = self.begin(caller);
        let parent_record = txn.live_dir(parent)?;
        let ino = txn.take_ino()?;
        let mut record = self.new_record(&mut txn, caller, parent, &parent_record, ino, &new)?;
        record.nlink = 0;
        match whole {
            true => record.layout.stripe_count = 1,
            false => self.new_layout(&mut record, ino.0),
        }
        let object = self.new_object(ino, &mut record, &new)?;
        txn.put_new(ino, record);
        txn.answer_with(ino);
        txn.push(Change::PutOrphan(ino));
        self.refs.add(ino);
        if let Err(e) = txn.commit() {
            self.undo_new(ino, object.is_some());
            return Err(e);
        }
        self.after_last_name(ino);
        let stat = object.as_ref().map(Objects::stat_open).transpose()?;
        Ok((Entry { attr: merge(ino, &record, stat) }, object))
    }

    /// Creates and opens a regular file.
    pub(crate) fn op_create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        args: CreateArgs,
        want_local: bool,
    ) -> Result<(Entry, Opened)> {
        self.wait_reclaimed_if_short();
        let new = NewInode { with_object: true, ..NewInode::of(FileKind::File, args) };
        let (entry, object) = self.op_make(caller, parent, name, &new)?;
        let local = object.filter(|_| want_local).map(Arc::new);
        Ok((entry, Opened { local }))
    }

    fn undo_new(&self, ino: Ino, has_object: bool) {
        self.refs.remove(ino, 1);
        if has_object && let Err(e) = self.objects.remove(ObjectId::whole(ino)) {
            tracing::warn!(%ino, error = %e, "a failed create left an object; the next start removes it");
        }
    }

    /// The layout of a new file, by that of its directory and its turn there.
    fn new_layout(&self, record: &mut InodeRecord, turn: u64) {
        if record.kind() != FileKind::File {
            return;
        }
        let servers = self.server_count();
        record.layout.stripe_count = record.layout.count_among(servers);
        record.layout.first = ShardId((turn % u64::from(servers)) as u16);
    }

    fn new_object(
        &self,
        ino: Ino,
        record: &mut InodeRecord,
        new: &NewInode<'_>,
    ) -> Result<Option<File>> {
        if !new.with_object || record.is_striped() {
            return Ok(None);
        }
        let file = self.objects.create(ObjectId::whole(ino))?;
        record.flags |= inode_flags::HAS_OBJECT;
        Ok(Some(file))
    }

    /// The record of a new inode: owner, group of a setgid directory, umask or default ACL.
    fn new_record(
        &self,
        txn: &mut Txn<'_>,
        caller: &Caller,
        parent: Ino,
        parent_record: &InodeRecord,
        ino: Ino,
        new: &NewInode<'_>,
    ) -> Result<InodeRecord> {
        let inherits_group = parent_record.mode & libc::S_ISGID != 0;
        let is_dir = new.kind == FileKind::Dir;
        let mut perm = new.args.mode & 0o7777;
        if inherits_group && is_dir {
            perm |= libc::S_ISGID;
        }
        let mut flags = 0;
        if new.kind == FileKind::Symlink {
            perm = 0o777;
        } else if parent_record.has(inode_flags::HAS_DEFAULT_ACL) {
            let value = self.store.xattr(parent, acl::DEFAULT)?.unwrap_or_default();
            if let Some(default) = Acl::parse(&value)? {
                let (access, bits) = default.inherit(perm);
                perm = (perm & !0o777) | bits;
                if let Some(access) = access {
                    let value = access.to_bytes();
                    txn.push(Change::PutXattr { ino, name: acl::ACCESS.to_vec(), value });
                    flags |= inode_flags::HAS_ACL | inode_flags::HAS_XATTRS;
                }
                if is_dir {
                    txn.push(Change::PutXattr { ino, name: acl::DEFAULT.to_vec(), value });
                    flags |= inode_flags::HAS_DEFAULT_ACL | inode_flags::HAS_XATTRS;
                }
            }
        } else {
            perm &= !new.args.umask;
        }
        Ok(InodeRecord {
            mode: new.kind.mode_bits() | perm,
            uid: caller.uid,
            gid: if inherits_group { parent_record.gid } else { caller.gid },
            nlink: if is_dir { 2 } else { 1 },
            rdev: new.rdev,
            flags,
            // A directory's layout is what new inodes in it get.
            layout: parent_record.layout,
            atime: txn.now,
            mtime: txn.now,
            ctime: txn.now,
            btime: txn.now,
            size: new.target.len() as u64,
            parent: if is_dir { parent } else { Ino(0) },
            next_cookie: if is_dir { Cookie::FIRST } else { Cookie::START },
        })
    }
}
