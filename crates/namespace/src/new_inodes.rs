//! What new inodes are like: what they have from their directory, and the layout of their data.
//!
//! Called by the operations that make inodes, and by other shards for whiteouts and files that are made for a directory here.

use super::base::Base;
use super::records::Records;
use super::shards::{Placement, Where};
use super::striped::StripeObjects;
use forebay_proto::acl::{self, Acl};
use forebay_proto::api::CreateArgs;
use forebay_proto::attr::{FileKind, Timestamp};
use forebay_proto::layout::{self, Layout};
use forebay_proto::net::servers::MadeInode;
use forebay_proto::{Caller, Ino, Result, ShardId};
use forebay_store::record::{InodeRecord, inode_flags};
use std::sync::Arc;

/// What is being made.
pub struct NewInode<'a> {
    /// Its type.
    pub kind: FileKind,
    /// Mode and umask.
    pub args: CreateArgs,
    /// Devices: their number.
    pub rdev: u32,
    /// Symbolic links: the target.
    pub target: &'a [u8],
    /// Make the data object now.
    pub with_object: bool,
    /// Open it with these flags of `open(2)`, for who gets the descriptor itself and asks for no attributes.
    pub open_flags: Option<u32>,
    /// Where.
    pub place: Where,
    /// Of a directory: where what is made in it goes, if not as in its parent.
    pub placement: Option<layout::Placement>,
}

impl<'a> NewInode<'a> {
    /// Of this type, with its name, and nothing special.
    pub fn of(kind: FileKind, args: CreateArgs) -> NewInode<'a> {
        let place = Where::Here;
        NewInode {
            kind,
            args,
            rdev: 0,
            target: b"",
            with_object: false,
            open_flags: None,
            place,
            placement: None,
        }
    }
}

/// Makes up new inodes.
pub(crate) struct NewInodes {
    records: Arc<Records>,
    stripes: Arc<StripeObjects>,
    placement: Arc<Placement>,
}

impl NewInodes {
    /// For directories among these records.
    pub(crate) fn new(
        base: &Base,
        stripes: &Arc<StripeObjects>,
        placement: &Arc<Placement>,
    ) -> NewInodes {
        NewInodes {
            records: Arc::clone(&base.records),
            stripes: Arc::clone(stripes),
            placement: Arc::clone(placement),
        }
    }

    /// What a new inode is like: owner, group of a setgid directory, umask or default ACL.
    pub(crate) fn made_inode(
        &self,
        caller: &Caller,
        parent: Ino,
        parent_record: &InodeRecord,
        new: &NewInode<'_>,
        turn: u64,
        now: Timestamp,
    ) -> Result<MadeInode> {
        let inherits_group = parent_record.mode & libc::S_ISGID != 0;
        let is_dir = new.kind == FileKind::Dir;
        let mut perm = new.args.mode & 0o7777;
        if inherits_group && is_dir {
            perm |= libc::S_ISGID;
        }
        let (mut access_acl, mut default_acl) = (None, None);
        if new.kind == FileKind::Symlink {
            perm = 0o777;
        } else if parent_record.has(inode_flags::HAS_DEFAULT_ACL) {
            let value = self.records.store().xattr(parent, acl::DEFAULT)?.unwrap_or_default();
            if let Some(default) = Acl::parse(&value)? {
                let (access, bits) = default.inherit(perm);
                perm = (perm & !0o777) | bits;
                access_acl = access.map(|access| access.to_bytes());
                default_acl = is_dir.then_some(value);
            }
        } else {
            perm &= !new.args.umask;
        }
        let of_dir = parent_record.layout;
        let of_dir = Layout { placement: new.placement.unwrap_or(of_dir.placement), ..of_dir };
        let layout = self.new_layout(of_dir, new.kind, turn);
        Ok(MadeInode {
            mode: new.kind.mode_bits() | perm,
            uid: caller.uid,
            gid: if inherits_group { parent_record.gid } else { caller.gid },
            rdev: new.rdev,
            parent,
            layout,
            now,
            target: new.target.to_vec(),
            access_acl,
            default_acl,
            with_object: new.with_object && !(layout.is_striped() && new.kind == FileKind::File),
        })
    }

    /// What a whiteout is like that a rename leaves in a directory of this shard.
    pub(crate) fn whiteout_like(&self, caller: &Caller, dir: Ino) -> Result<MadeInode> {
        let of_dir = self.records.directory(dir)?;
        let new = NewInode::of(FileKind::CharDev, CreateArgs { mode: 0, umask: 0 });
        self.made_inode(caller, dir, &of_dir, &new, 0, forebay_store::clock::stamp())
    }

    /// The layout of something new, by that of its directory and its turn there. A directory's is
    /// what new inodes in it get.
    fn new_layout(&self, of_dir: Layout, kind: FileKind, turn: u64) -> Layout {
        if kind != FileKind::File {
            return of_dir;
        }
        let servers = self.stripes.server_count();
        let layout = Layout {
            stripe_count: of_dir.count_among(servers),
            first: ShardId((turn % u64::from(servers)) as u16),
            ..of_dir
        };
        self.placement.avoid_lost(layout.of_file(servers))
    }
}
