//! The participant's side before the decision: checks a part of a change, and locks what it is about
//! or does it so that it can be undone.
//!
//! A question that comes twice gets the answer of the first. One that comes so late that its change
//! was given up or applied meanwhile prepares nothing. Where that is not known any more, it leaves something
//! prepared that nobody asks for: the thread (`finish`) asks what became of it.

use super::{About, Participant, Quiet};
use crate::records::Txn;
use crate::shards::records::{self, PreparedRecord};
use crate::shards::table::{Prepared, hold_of};
use forebay_failpoint::step;
use forebay_proto::acl;
use forebay_proto::api::LINK_MAX;
use forebay_proto::attr::FileKind;
use forebay_proto::net::servers::{MadeInode, NamesReply, TxnId, Wanted};
use forebay_proto::{Cookie, Errno, Ino, ObjectId, Result};
use forebay_store::record::{Change, InodeRecord, inode_flags};

impl Participant {
    /// Answers `Prepare`.
    pub(in crate::shards) fn prepare(
        &self,
        (txn, part): (TxnId, u8),
        client: u64,
        wanted: &Wanted<'_>,
    ) -> Result<NamesReply> {
        self.table.refuse_late(txn)?;
        if let Some(what) = self.table.prepared(txn, part) {
            return self.prepared_reply(what);
        }
        let quiet = self.recall(client, &about(wanted));
        step("participant: recalled");
        let reply = match wanted {
            Wanted::Make { inode, even_if_short } => {
                if !even_if_short && self.placement.has_almost_no_space() {
                    return Ok(NamesReply::Short);
                }
                self.reclaim.with_reclaimed(|| self.prepare_make((txn, part), inode))
            }
            Wanted::Link(ino) => self.prepare_link((txn, part), *ino),
            Wanted::Name { dir, name } => self.prepare_name((txn, part), (*dir, name), quiet),
            Wanted::EmptyDir(ino) => self.prepare_empty((txn, part), *ino, quiet),
        };
        step("participant: prepared");
        reply
    }

    /// What a question that comes again is answered.
    fn prepared_reply(&self, what: PreparedRecord) -> Result<NamesReply> {
        Ok(match what {
            PreparedRecord::Made(ino) => NamesReply::Made(ino),
            PreparedRecord::Linked(ino) => {
                let record = self.records.inode(ino)?;
                NamesReply::Linked(record.kind(), record.nlink)
            }
            PreparedRecord::Name(dir, name) => {
                let entry = self.records.store().entry(dir, &name)?.ok_or(Errno::ENOENT)?;
                NamesReply::Name(entry.ino, entry.kind)
            }
            PreparedRecord::Dir(_) => NamesReply::Done,
        })
    }

    /// Commits what a part does together with its record, and holds what it locks.
    fn commit_prepared(
        &self,
        (id, part): (TxnId, u8),
        what: PreparedRecord,
        mut txn: Txn<'_>,
        quiet: Option<Quiet>,
    ) -> Result<()> {
        // Again, now that nobody else can give it up.
        self.table.refuse_late(id)?;
        txn.push(records::put_prepared(id, part, &what)?);
        // A change that is given up frees what it took; one that removes things must go on when all
        // is full.
        if !matches!(what, PreparedRecord::Made(_)) {
            txn.use_reserve();
        }
        if let Some(key) = hold_of(&what) {
            self.holds.take(key, id, true)?;
        }
        let prepared = Prepared::new(part, what, quiet);
        let mut first = false;
        let committed = txn.commit_then(|| first = self.table.note_prepared(id, prepared));
        if committed.is_err() && self.table.prepared_count(id) == 0 {
            self.holds.release(id);
        }
        if first {
            self.table.wake();
        }
        committed.map(drop)
    }

    fn prepare_make(&self, id: (TxnId, u8), made: &MadeInode) -> Result<NamesReply> {
        let mut txn = self.records.begin_part();
        let ino = txn.take_ino()?;
        self.make_prepared(&mut txn, ino, made)?;
        step("participant: object made");
        if let Err(errno) = self.commit_prepared(id, PreparedRecord::Made(ino), txn, None) {
            self.remove_object_of(ino, made);
            return Err(errno);
        }
        Ok(NamesReply::Made(ino))
    }

    /// An inode with its number, object, ACLs and target.
    pub(super) fn make_prepared(
        &self,
        txn: &mut Txn<'_>,
        ino: Ino,
        made: &MadeInode,
    ) -> Result<()> {
        let mut record = record_of(made);
        push_parts(txn, ino, made);
        if made.with_object {
            match self.objects.create(ObjectId::whole(ino)) {
                Ok(_) | Err(Errno::EEXIST) => record.flags |= inode_flags::HAS_OBJECT,
                Err(errno) => return Err(errno),
            }
        }
        txn.put_new(ino, record);
        Ok(())
    }

    fn remove_object_of(&self, ino: Ino, made: &MadeInode) {
        if made.with_object
            && let Err(error) = self.objects.remove(ObjectId::whole(ino))
        {
            tracing::warn!(%ino, %error, "a failed create left an object; the next start removes it");
        }
    }

    fn prepare_link(&self, id: (TxnId, u8), ino: Ino) -> Result<NamesReply> {
        let mut txn = self.records.begin_part();
        let record = txn.get(ino)?;
        if record.kind() == FileKind::Dir {
            return Err(Errno::EPERM);
        }
        if record.nlink >= LINK_MAX {
            return Err(Errno::EMLINK);
        }
        let had_none = record.nlink == 0;
        if had_none && !self.refs.is_orphan(ino) {
            return Err(Errno::ENOENT);
        }
        txn.add_link(ino)?;
        let nlink = record.nlink + 1;
        self.commit_prepared(id, PreparedRecord::Linked(ino), txn, None)?;
        if had_none {
            self.refs.adopted(ino);
        }
        Ok(NamesReply::Linked(record.kind(), nlink))
    }

    fn prepare_name(
        &self,
        id: (TxnId, u8),
        (dir, name): (Ino, &[u8]),
        quiet: Option<Quiet>,
    ) -> Result<NamesReply> {
        let mut txn = self.records.begin_part();
        txn.is_part_of(id.0);
        txn.live_dir(dir)?;
        let entry = txn.entry(dir, name)?.ok_or(Errno::ENOENT)?;
        let what = PreparedRecord::Name(dir, name.to_vec());
        self.commit_prepared(id, what, txn, quiet)?;
        Ok(NamesReply::Name(entry.ino, entry.kind))
    }

    fn prepare_empty(&self, id: (TxnId, u8), ino: Ino, quiet: Option<Quiet>) -> Result<NamesReply> {
        let mut txn = self.records.begin_part();
        txn.is_part_of(id.0);
        txn.live_dir(ino)?;
        txn.must_be_empty(ino)?;
        self.commit_prepared(id, PreparedRecord::Dir(ino), txn, quiet)?;
        Ok(NamesReply::Done)
    }
}

/// What others may not believe while it is prepared, or is done.
fn about(wanted: &Wanted<'_>) -> Vec<About> {
    match wanted {
        Wanted::Make { .. } => Vec::new(),
        Wanted::Link(ino) => vec![About::Attrs(*ino)],
        Wanted::Name { dir, .. } => vec![About::Names(*dir), About::Attrs(*dir)],
        Wanted::EmptyDir(ino) => vec![About::Names(*ino), About::Attrs(*ino)],
    }
}

/// The record of a new inode, without an object.
pub(crate) fn record_of(made: &MadeInode) -> InodeRecord {
    let is_dir = FileKind::from_mode(made.mode) == Some(FileKind::Dir);
    let mut flags = 0;
    if made.access_acl.is_some() {
        flags |= inode_flags::HAS_ACL | inode_flags::HAS_XATTRS;
    }
    if made.default_acl.is_some() {
        flags |= inode_flags::HAS_DEFAULT_ACL | inode_flags::HAS_XATTRS;
    }
    InodeRecord {
        mode: made.mode,
        uid: made.uid,
        gid: made.gid,
        nlink: if is_dir { 2 } else { 1 },
        rdev: made.rdev,
        flags,
        layout: made.layout,
        atime: made.now,
        mtime: made.now,
        ctime: made.now,
        btime: made.now,
        size: made.target.len() as u64,
        parent: if is_dir { made.parent } else { Ino(0) },
        next_cookie: if is_dir { Cookie::FIRST } else { Cookie::START },
    }
}

/// What a new inode has beside its record.
pub(crate) fn push_parts(txn: &mut Txn<'_>, ino: Ino, made: &MadeInode) {
    let acls = [(acl::ACCESS, &made.access_acl), (acl::DEFAULT, &made.default_acl)];
    for (name, value) in acls {
        if let Some(value) = value {
            txn.push(Change::PutXattr { ino, name: name.to_vec(), value: value.clone() });
        }
    }
    if !made.target.is_empty() {
        txn.push(Change::PutSymlink(ino, made.target.clone()));
    }
}
