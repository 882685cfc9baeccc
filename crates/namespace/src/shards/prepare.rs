//! The participant's side before the decision: checks a part of a change, and locks what it is about
//! or does it so that it can be undone.
//!
//! A question that comes twice gets the answer of the first. One that comes so late that its change
//! was given up or applied meanwhile prepares nothing. Where that is not known any more, it leaves something
//! prepared that nobody asks for: the thread (`finish`) asks what became of it.

use super::records::{self, PreparedRecord};
use super::{About, Prepared, Quiet, Shards, hold_of};
use crate::Namespace;
use crate::records::Txn;
use forebay_failpoint::step;
use forebay_proto::acl;
use forebay_proto::api::LINK_MAX;
use forebay_proto::attr::FileKind;
use forebay_proto::net::servers::{MadeInode, NamesQuestion, NamesReply, TxnId, Wanted};
use forebay_proto::{Cookie, Errno, Ino, ObjectId, Result, ShardId};
use forebay_store::record::{Change, InodeRecord, inode_flags};
use std::collections::BTreeSet;
use std::time::Instant;

impl Namespace {
    /// Answers `Prepare`.
    pub(super) fn prepare(
        &self,
        shards: &Shards,
        (txn, part): (TxnId, u8),
        client: u64,
        wanted: &Wanted<'_>,
    ) -> Result<NamesReply> {
        shards.refuse_late(txn)?;
        if let Some(what) = shards.prepared(txn, part) {
            return self.prepared_reply(what);
        }
        let quiet = shards.recall(client, &about(wanted));
        step("participant: recalled");
        let reply = match wanted {
            Wanted::Make { inode, even_if_short } => {
                if !even_if_short && self.has_almost_no_space() {
                    return Ok(NamesReply::Short);
                }
                self.reclaim.with_reclaimed(|| self.prepare_make(shards, (txn, part), inode))
            }
            Wanted::Link(ino) => self.prepare_link(shards, (txn, part), *ino),
            Wanted::Name { dir, name } => {
                self.prepare_name(shards, (txn, part), (*dir, name), quiet)
            }
            Wanted::EmptyDir(ino) => self.prepare_empty(shards, (txn, part), *ino, quiet),
        };
        step("participant: prepared");
        reply
    }

    /// Waits until the names that an inode has just got at other shards are on flash there. Of all
    /// others that is known: what was prepared for them is settled.
    pub(crate) fn sync_names_elsewhere(&self, ino: Ino) -> Result<()> {
        let Some(shards) = &self.shards else { return Ok(()) };
        let is_of = |part: &Prepared| matches!(&part.what, PreparedRecord::Made(of) | PreparedRecord::Linked(of) if *of == ino);
        let coordinators: BTreeSet<ShardId> = {
            let state = shards.state.lock();
            let of = state.prepared.iter().filter(|(_, parts)| parts.iter().any(is_of));
            of.map(|(id, _)| id.shard).collect()
        };
        for shard in coordinators {
            shards.ask(shard, NamesQuestion::Sync)?;
        }
        Ok(())
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
        shards: &Shards,
        (id, part): (TxnId, u8),
        what: PreparedRecord,
        mut txn: Txn<'_>,
        quiet: Option<Quiet>,
    ) -> Result<()> {
        // Again, now that nobody else can give it up.
        shards.refuse_late(id)?;
        txn.push(records::put_prepared(id, part, &what)?);
        // A change that is given up frees what it took; one that removes things must go on when all
        // is full.
        if !matches!(what, PreparedRecord::Made(_)) {
            txn.use_reserve();
        }
        if let Some(key) = hold_of(&what) {
            shards.holds.take(key, id, true)?;
        }
        let prepared = Prepared { part, what, since: Instant::now(), _quiet: quiet };
        let mut first = false;
        let committed = txn.commit_then(|| {
            let mut state = shards.state.lock();
            first = state.prepared.is_empty();
            state.prepared.entry(id).or_default().push(prepared);
        });
        if committed.is_err() && shards.prepared_count(id) == 0 {
            shards.holds.release(id);
        }
        if first {
            shards.changed.notify_all();
        }
        committed.map(drop)
    }

    fn prepare_make(
        &self,
        shards: &Shards,
        id: (TxnId, u8),
        made: &MadeInode,
    ) -> Result<NamesReply> {
        let mut txn = self.records.begin_part();
        let ino = txn.take_ino()?;
        self.make_prepared(&mut txn, ino, made)?;
        step("participant: object made");
        if let Err(errno) = self.commit_prepared(shards, id, PreparedRecord::Made(ino), txn, None) {
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

    fn prepare_link(&self, shards: &Shards, id: (TxnId, u8), ino: Ino) -> Result<NamesReply> {
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
        self.commit_prepared(shards, id, PreparedRecord::Linked(ino), txn, None)?;
        if had_none {
            self.refs.adopted(ino);
        }
        Ok(NamesReply::Linked(record.kind(), nlink))
    }

    fn prepare_name(
        &self,
        shards: &Shards,
        id: (TxnId, u8),
        (dir, name): (Ino, &[u8]),
        quiet: Option<Quiet>,
    ) -> Result<NamesReply> {
        let mut txn = self.records.begin_part();
        txn.is_part_of(id.0);
        txn.live_dir(dir)?;
        let entry = txn.entry(dir, name)?.ok_or(Errno::ENOENT)?;
        let what = PreparedRecord::Name(dir, name.to_vec());
        self.commit_prepared(shards, id, what, txn, quiet)?;
        Ok(NamesReply::Name(entry.ino, entry.kind))
    }

    fn prepare_empty(
        &self,
        shards: &Shards,
        id: (TxnId, u8),
        ino: Ino,
        quiet: Option<Quiet>,
    ) -> Result<NamesReply> {
        let mut txn = self.records.begin_part();
        txn.is_part_of(id.0);
        txn.live_dir(ino)?;
        txn.must_be_empty(ino)?;
        self.commit_prepared(shards, id, PreparedRecord::Dir(ino), txn, quiet)?;
        Ok(NamesReply::Done)
    }
}

impl Shards {
    /// ESTALE for a change that this shard has done, or that was given up. Nobody waits for the answer, and nothing must be
    /// held or counted for it.
    fn refuse_late(&self, txn: TxnId) -> Result<()> {
        let state = self.state.lock();
        match state.is_over(txn) || state.is_given_up(txn) || state.applied.contains(&txn) {
            true => Err(Errno::ESTALE),
            false => Ok(()),
        }
    }

    fn prepared(&self, txn: TxnId, part: u8) -> Option<PreparedRecord> {
        let state = self.state.lock();
        let parts = state.prepared.get(&txn)?;
        parts.iter().find(|prepared| prepared.part == part).map(|prepared| prepared.what.clone())
    }

    fn prepared_count(&self, txn: TxnId) -> usize {
        self.state.lock().prepared.get(&txn).map_or(0, Vec::len)
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
