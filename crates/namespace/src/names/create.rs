//! mknod, mkdir, symlink, create, tmpfile: everything that makes an inode, with its name or at
//! another shard than it (`shards::place`).

use super::Names;
use crate::attributes::merge;
use crate::check_name;
use crate::new_inodes::NewInode;
use crate::records::Txn;
use crate::shards::{Joint, Where, push_parts, record_of};
use forebay_proto::api::{CreateArgs, SYMLINK_MAX};
use forebay_proto::attr::FileKind;
use forebay_proto::layout::{Layout, placement_index};
use forebay_proto::net::servers::{MadeInode, NamesReply, Step, Wanted};
use forebay_proto::{Caller, Entry, Errno, Ino, ObjectId, Result, ShardId};
use forebay_store::objects::Objects;
use forebay_store::record::{Change, InodeRecord, inode_flags};
use std::fs::File;

/// An inode that got a name of this shard.
#[derive(Debug)]
pub enum Named {
    /// It is here: referenced, with its object if that was made.
    Here(Entry, Option<File>),
    /// It is at another shard, and no reference was taken there.
    Elsewhere(Ino),
}

impl Named {
    /// Where only this shard can be meant.
    pub(crate) fn here(self) -> Result<(Entry, Option<File>)> {
        match self {
            Named::Here(entry, object) => Ok((entry, object)),
            Named::Elsewhere(_) => Err(Errno::EXDEV),
        }
    }
}

impl Names {
    /// Makes `new` under a name.
    pub fn make(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Named> {
        check_name(name)?;
        if new.target.len() > SYMLINK_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if new.kind == FileKind::Symlink && new.target.is_empty() {
            return Err(Errno::ENOENT);
        }
        if new.place != Where::Here && !self.records.is_alone() {
            let layout = self.records.directory(parent)?.layout;
            let places = self.placement.places(&layout, (parent, name), new.kind, new.place);
            if places.first() != Some(&self.records.shard()) {
                return self.make_elsewhere(caller, (parent, name), new, &places);
            }
        }
        self.reclaim
            .with_reclaimed(|| self.make_once(caller, parent, name, new))
            .map(|(entry, object)| Named::Here(entry, object))
    }

    fn make_once(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<(Entry, Option<File>)> {
        let mut txn = self.records.begin(caller);
        let parent_record = txn.live_dir(parent)?;
        if txn.entry(parent, name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        let ino = txn.take_ino()?;
        let made = self.new_inodes.made_inode(
            caller,
            parent,
            &parent_record,
            new,
            placement_index(parent, name),
            txn.now,
        )?;
        let mut record = record_of(&made);
        push_parts(&mut txn, ino, &made);
        add_name(&mut txn, (parent, name), ino, new.kind)?;
        let object = self.new_object(ino, &mut record, new)?;
        txn.put_new(ino, record);
        self.refs.add(ino);
        if let Err(e) = txn.commit() {
            self.undo_new(ino, object.is_some());
            return Err(e);
        }
        let asked = object.as_ref().filter(|_| new.open_flags.is_none());
        let stat = asked.map(Objects::stat_open).transpose()?;
        Ok((Entry { attr: merge(ino, &record, stat) }, object))
    }

    /// Makes it at the first of these shards that has space, and gives it its name here.
    fn make_elsewhere(
        &self,
        caller: &Caller,
        (parent, name): (Ino, &[u8]),
        new: &NewInode<'_>,
        places: &[ShardId],
    ) -> Result<Named> {
        let mut joint = self.joint(caller)?;
        let made = {
            let mut txn = self.records.begin_part();
            let parent_record = txn.live_dir(parent)?;
            if txn.entry(parent, name)?.is_some() {
                return Err(Errno::EEXIST);
            }
            self.new_inodes.made_inode(
                caller,
                parent,
                &parent_record,
                new,
                placement_index(parent, name),
                txn.now,
            )?
        };
        let Some((shard, ino)) = self.make_at(&mut joint, places, &made)? else {
            drop(joint);
            return self
                .reclaim
                .with_reclaimed(|| self.make_once(caller, parent, name, new))
                .map(|(entry, object)| Named::Here(entry, object));
        };
        let mut txn = self.records.begin(caller);
        txn.live_dir(parent)?;
        if txn.entry(parent, name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        add_name(&mut txn, (parent, name), ino, new.kind)?;
        joint.step(shard, Step::Made { ino, inode: Box::new(made) });
        joint.decide(txn)?;
        Ok(Named::Elsewhere(ino))
    }

    /// `None`: it is our turn. An error if no shard is left: that of the last one.
    fn make_at(
        &self,
        joint: &mut Joint<'_>,
        places: &[ShardId],
        made: &MadeInode,
    ) -> Result<Option<(ShardId, Ino)>> {
        let mut failed = Errno::ENOSPC;
        // Those that have almost no space are asked again when nobody else has any.
        for even_if_short in [false, true] {
            for &shard in places {
                if shard == self.records.shard() {
                    return Ok(None);
                }
                let inode = Box::new(made.clone());
                match joint.prepare(shard, Wanted::Make { inode, even_if_short }) {
                    Ok(NamesReply::Made(ino)) => return Ok(Some((shard, ino))),
                    Ok(_) => failed = Errno::ENOSPC,
                    Err(Errno::ERESTART) => return Err(Errno::ERESTART),
                    Err(errno) => failed = errno,
                }
                self.placement.pass_over(shard);
            }
        }
        Err(failed)
    }

    /// Makes a regular file without a name, referenced, with its object if it is not striped; never
    /// striped if it is to be `whole`. It is where its directory is.
    pub fn tmpfile(
        &self,
        caller: &Caller,
        parent: Ino,
        args: CreateArgs,
        whole: bool,
    ) -> Result<(Entry, Option<File>)> {
        self.reclaim.wait_reclaimed_if_short();
        self.reclaim.with_reclaimed(|| self.tmpfile_once(caller, parent, args, whole))
    }

    fn tmpfile_once(
        &self,
        caller: &Caller,
        parent: Ino,
        args: CreateArgs,
        whole: bool,
    ) -> Result<(Entry, Option<File>)> {
        let new = NewInode { with_object: true, ..NewInode::of(FileKind::File, args) };
        let mut txn = self.records.begin(caller);
        let parent_record = txn.live_dir(parent)?;
        let ino = txn.take_ino()?;
        let made =
            self.new_inodes.made_inode(caller, parent, &parent_record, &new, ino.0, txn.now)?;
        self.tmpfile_made(txn, ino, &made, whole)
    }

    /// The same for a directory of another shard, which has said what the file is like.
    pub(crate) fn tmpfile_like(
        &self,
        caller: &Caller,
        made: &MadeInode,
    ) -> Result<(Entry, Option<File>)> {
        self.reclaim.wait_reclaimed_if_short();
        self.reclaim.with_reclaimed(|| {
            let mut txn = self.records.begin(caller);
            let ino = txn.take_ino()?;
            let first = ShardId((ino.0 % u64::from(self.stripes.server_count())) as u16);
            let layout = self.placement.avoid_lost(Layout { first, ..made.layout });
            let made = MadeInode { now: txn.now, layout, ..made.clone() };
            self.tmpfile_made(txn, ino, &made, false)
        })
    }

    fn tmpfile_made(
        &self,
        mut txn: Txn<'_>,
        ino: Ino,
        made: &MadeInode,
        whole: bool,
    ) -> Result<(Entry, Option<File>)> {
        let args = CreateArgs { mode: made.mode & 0o7777, umask: 0 };
        let new = NewInode { with_object: true, ..NewInode::of(FileKind::File, args) };
        let mut record = record_of(made);
        push_parts(&mut txn, ino, made);
        record.nlink = 0;
        if whole {
            record.layout.stripe_count = 1;
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
        self.reclaim.made_nameless(ino);
        let stat = object.as_ref().map(Objects::stat_open).transpose()?;
        Ok((Entry { attr: merge(ino, &record, stat) }, object))
    }

    /// Creates a regular file, with its object, to be open if it is here.
    pub fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        args: CreateArgs,
        place: Where,
    ) -> Result<Named> {
        self.reclaim.wait_reclaimed_if_short();
        let new = NewInode { with_object: true, place, ..NewInode::of(FileKind::File, args) };
        self.make(caller, parent, name, &new)
    }

    fn undo_new(&self, ino: Ino, has_object: bool) {
        self.refs.remove(ino, 1);
        if has_object && let Err(e) = self.objects.remove(ObjectId::whole(ino)) {
            tracing::warn!(%ino, error = %e, "a failed create left an object; the next start removes it");
        }
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
        let id = ObjectId::whole(ino);
        let file = match new.open_flags {
            Some(flags) => self.objects.create_for(id, flags)?,
            None => self.objects.create_given(id)?,
        };
        record.flags |= inode_flags::HAS_OBJECT;
        Ok(Some(file))
    }
}

/// Gives a new inode its name.
fn add_name(
    txn: &mut Txn<'_>,
    (parent, name): (Ino, &[u8]),
    ino: Ino,
    kind: FileKind,
) -> Result<()> {
    txn.add_entry(parent, name, ino, kind, None)?;
    if kind == FileKind::Dir {
        txn.edit(parent)?.nlink += 1;
    }
    txn.answer_with(ino);
    Ok(())
}
