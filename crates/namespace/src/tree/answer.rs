//! Answers to the movers of a buffer's servers about the names and inodes of this shard
//! (`proto::net::tree`). Called by `sharded`, of this server and of others.
//!
//! Each question is checked for its requester as in [`LocalTree`]; nothing is locked while another shard
//! is asked. What a change over shards has locked is waited for here.

use super::{LocalTree, READ, SEARCH, WRITE, may_make};
use crate::names::{MAX_LOOKUPS, Named};
use crate::new_inodes::NewInode;
use crate::shards::{Patience, Where};
use forebay_interfaces::tree::BufferTree;
use forebay_proto::api::CreateArgs;
use forebay_proto::attr::{Attr, FileKind};
use forebay_proto::control::{FileStatus, PathBytes};
use forebay_proto::layout::log_or_plain;
use forebay_proto::net::servers::MadeInode;
use forebay_proto::net::tree::{
    Found, Stray, TREE_ANSWER_BYTES_MAX, TREE_ENTRIES_MAX, TREE_INODES_LOOKED_MAX, TreeAsked,
    TreeQuestion, TreeReply,
};
use forebay_proto::{Caller, Cookie, Errno, Ino, Result, ShardId};

/// Bytes of a name in a listing besides its letters.
const NAME_BYTES: usize = 24;

impl LocalTree {
    /// Answers a question about this shard.
    pub fn answer(&self, asked: &TreeAsked<'_>) -> TreeReply {
        if let Some(shards) = &self.shards {
            shards.wait_settled();
        }
        let mut patience = Patience::new();
        loop {
            let replied = self.answer_once(&asked.who, &asked.question);
            match replied {
                Ok(reply) => return reply,
                Err(Errno::ERESTART) => {}
                Err(errno) => return TreeReply::Failed(errno.0),
            }
            if let Err(errno) = self.waits.pause(&mut patience) {
                return TreeReply::Failed(errno.0);
            }
        }
    }

    fn answer_once(&self, who: &Caller, question: &TreeQuestion<'_>) -> Result<TreeReply> {
        match *question {
            TreeQuestion::Child { dir, name } => self.tree_child(who, dir, name),
            TreeQuestion::List { dir, after, limit } => self.tree_list(who, dir, after, limit),
            TreeQuestion::Positions { dir, after } => self.tree_positions(who, dir, after),
            TreeQuestion::StripedOn { ref inos, ref shards } => self.striped_on(inos, shards),
            TreeQuestion::Strays { after, ref shards } => self.strays(after, shards),
            TreeQuestion::Attr(ino) => self.attributes_for_copy(ino).map(TreeReply::Attr),
            TreeQuestion::Readlink(ino) => self.readlink_of(ino).map(TreeReply::Bytes),
            TreeQuestion::Xattrs(ino) => self.xattrs(who, ino).map(TreeReply::Xattrs),
            TreeQuestion::Read { ino, offset, bytes } => {
                let mut data = vec![0; (bytes as usize).min(TREE_ANSWER_BYTES_MAX)];
                let len = self.read_from(who, ino, offset, &mut data)?;
                data.truncate(len);
                Ok(TreeReply::Bytes(data))
            }
            TreeQuestion::Inherit(dir) => {
                let made = self.inherited(who, dir)?;
                Ok(TreeReply::Inherit(Box::new(made)))
            }
            TreeQuestion::Link { dir, name, ino } => self.tree_link(who, ino, dir, name),
            TreeQuestion::Mkdir { dir, name, mode } => self.tree_mkdir(who, dir, name, mode),
            TreeQuestion::Node { dir, name, kind, mode, rdev, target } => {
                let args = CreateArgs { mode, umask: 0 };
                let new = NewInode { rdev, target, ..NewInode::of(kind, args) };
                self.tree_node(who, dir, name, new)
            }
            TreeQuestion::SetAttr { ino, change } => {
                self.set_attr(who, ino, &change).map(TreeReply::Attr)
            }
            TreeQuestion::SetXattr { ino, name, value } => {
                self.set_xattr(who, ino, name, value).map(|()| TreeReply::Done)
            }
            TreeQuestion::Sync => self.sync().map(|()| TreeReply::Done),
            TreeQuestion::SyncAll => self.sync_all().map(|()| TreeReply::Done),
            TreeQuestion::Status { ino, path } => {
                let status = self.status_of(&self.attrs.of(ino)?, path)?;
                serde_json::to_vec(&status).map(TreeReply::Bytes).map_err(|_| Errno::EIO)
            }
        }
    }

    /// State of a file of this shard, for people.
    pub fn status_of(&self, attr: &Attr, path: &[u8]) -> Result<FileStatus> {
        let fast_path = self.state.fast_path();
        let layout = self.attrs.layout(attr.ino)?;
        Ok(FileStatus {
            path: PathBytes::new(path),
            ino: attr.ino.0,
            size_bytes: attr.size_bytes,
            allocated_bytes: attr.blocks_512 * 512,
            fast_path: fast_path.is_ok() && layout.is_whole(),
            fast_path_reason: match (fast_path, layout.is_whole()) {
                (Ok(()), true) => None,
                (Ok(()), false) => Some("striped".into()),
                (Err(reason), _) => Some(reason),
            },
            stripe_count: layout.stripe_count,
            in_logs: match layout.log {
                true => Some(self.logs.in_logs(attr.ino, layout.strict)?),
                false => None,
            },
            layout: Some(log_or_plain(layout.log).into()),
            host: None,
            near: None,
            volatile: self.state.is_volatile(),
            grade: self.state.grade(attr).into(),
        })
    }

    /// Attributes, of a strict file after all that was written to it was published.
    fn attributes_for_copy(&self, ino: Ino) -> Result<Attr> {
        if self.stripes.server_count() > 1
            && self.attrs.layout(ino).is_ok_and(|layout| layout.strict)
        {
            self.logs.ask_writers(ino, None)?;
        }
        self.attrs.of(ino)
    }

    fn readlink_of(&self, ino: Ino) -> Result<Vec<u8>> {
        BufferTree::readlink(self, ino)
    }

    fn tree_child(&self, who: &Caller, dir: Ino, name: &[u8]) -> Result<TreeReply> {
        self.search(who, dir)?;
        // A rename may replace the name between two reads: what it leads to then is found by another look.
        for _ in 0..MAX_LOOKUPS {
            if let Some((ino, _)) = self.names.leads_elsewhere(dir, name)? {
                return Ok(TreeReply::Found(Found::Elsewhere(ino)));
            }
            let entry = self.records.store().entry(dir, name)?.ok_or(Errno::ENOENT)?;
            match self.attributes_for_copy(entry.ino) {
                Err(Errno::ESTALE) => {}
                read => return Ok(TreeReply::Found(Found::Here(read?))),
            }
        }
        Err(Errno::ESTALE)
    }

    fn tree_list(
        &self,
        who: &Caller,
        dir: Ino,
        after: Cookie,
        limit: Option<Cookie>,
    ) -> Result<TreeReply> {
        let record = self.records.directory(dir)?;
        self.permit(who, dir, &record, READ)?;
        let limit = limit.unwrap_or(Cookie(record.next_cookie.0 - 1));
        let mut names = Vec::new();
        let mut bytes = 0;
        let mut next = None;
        let mut last = after;
        self.records.store().entries(
            dir,
            after.max(Cookie::DOTDOT),
            limit,
            &mut |name, entry| {
                bytes += name.len() + NAME_BYTES;
                if bytes > TREE_ANSWER_BYTES_MAX {
                    next = Some((last, limit));
                    return false;
                }
                last = entry.cookie;
                names.push((name.to_vec(), entry.ino, entry.kind));
                true
            },
        )?;
        Ok(TreeReply::Names { names, next })
    }

    fn tree_positions(&self, who: &Caller, dir: Ino, after: Cookie) -> Result<TreeReply> {
        let record = self.records.directory(dir)?;
        self.permit(who, dir, &record, READ | SEARCH)?;
        let limit = Cookie(record.next_cookie.0 - 1);
        let mut found = Vec::new();
        let mut bytes = 0;
        self.records.store().entries(
            dir,
            after.max(Cookie::DOTDOT),
            limit,
            &mut |name, entry| {
                bytes += name.len() + NAME_BYTES;
                if found.len() >= TREE_ENTRIES_MAX || bytes > TREE_ANSWER_BYTES_MAX {
                    return false;
                }
                found.push((entry.cookie, name.to_vec(), entry.ino, entry.kind));
                true
            },
        )?;
        Ok(TreeReply::Positions(found))
    }

    fn striped_on(&self, inos: &[Ino], shards: &[ShardId]) -> Result<TreeReply> {
        if inos.len() > TREE_ENTRIES_MAX {
            return Err(Errno::E2BIG);
        }
        let servers = self.stripes.server_count();
        let one = |ino: &Ino| {
            let Some(record) = self.records.store().inode(*ino)? else { return Ok(false) };
            let layout = record.layout;
            let stripes = 0..u32::from(layout.stripe_count);
            Ok(record.is_striped()
                && stripes
                    .into_iter()
                    .any(|stripe| shards.contains(&layout.shard_of(stripe, servers))))
        };
        Ok(TreeReply::Flags(inos.iter().map(one).collect::<Result<_>>()?))
    }

    /// Only numbers of directories: what is in them is asked with the requester's rights.
    fn strays(&self, after: Ino, shards: &[ShardId]) -> Result<TreeReply> {
        let mut found: Vec<Stray> = Vec::new();
        let mut part = Stray { ino: after, is_stray: false, links: 0 };
        let mut looked = 0;
        let Some(from) = after.0.checked_add(1).map(Ino) else {
            return Ok(TreeReply::Strays(found));
        };
        self.records.store().for_each_inode_from(from, &mut |ino, record| {
            looked += 1;
            part.ino = ino;
            let is_dir = record.kind() == FileKind::Dir;
            let is_named = record.nlink > 0 && ino != Ino::ROOT;
            part.is_stray = is_dir && is_named && shards.contains(&record.parent.shard());
            part.links += if is_dir { 0 } else { u64::from(record.nlink) };
            if part.is_stray {
                found.push(part);
                part.links = 0;
            }
            looked < TREE_INODES_LOOKED_MAX && found.len() < TREE_ENTRIES_MAX
        })?;
        if looked > 0 && !part.is_stray {
            found.push(part);
        }
        Ok(TreeReply::Strays(found))
    }

    /// What a file is like that `who` makes for this directory.
    fn inherited(&self, who: &Caller, dir: Ino) -> Result<MadeInode> {
        let record = self.records.directory(dir)?;
        self.permit(who, dir, &record, WRITE | SEARCH)?;
        let args = CreateArgs { mode: 0o600, umask: 0 };
        let new = NewInode { with_object: true, ..NewInode::of(FileKind::File, args) };
        self.new_inodes.made_inode(who, dir, &record, &new, 0, forebay_store::clock::stamp())
    }

    fn named(&self, dir: Ino, name: &[u8], named: Named) -> TreeReply {
        self.listeners.tell_entry(dir, name);
        TreeReply::Found(match named {
            Named::Here(entry, _) => {
                self.reclaim.forget(entry.attr.ino, 1);
                Found::Here(entry.attr)
            }
            Named::Elsewhere(ino) => Found::Elsewhere(ino),
        })
    }

    fn tree_link(&self, who: &Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<TreeReply> {
        self.permit_name(who, dir, name)?;
        let linked = self.names.link(who, ino, dir, name, true)?;
        if ino.shard() == self.records.shard() {
            self.listeners.tell_inode(ino);
        }
        Ok(self.named(dir, name, linked))
    }

    fn tree_mkdir(&self, who: &Caller, dir: Ino, name: &[u8], mode: u32) -> Result<TreeReply> {
        let searched = self.search(who, dir)?;
        if let Some(old) = self.records.store().entry(dir, name)? {
            return match old.kind {
                FileKind::Dir => self.tree_child(who, dir, name),
                _ => Err(Errno::EEXIST),
            };
        }
        self.permit(who, dir, &searched, WRITE)?;
        let args = CreateArgs { mode, umask: 0 };
        let new = NewInode { place: Where::Placed(None), ..NewInode::of(FileKind::Dir, args) };
        match self.names.make(who, dir, name, &new) {
            Ok(made) => Ok(self.named(dir, name, made)),
            // Made in between; a directory is found the next time.
            Err(Errno::EEXIST) => Err(Errno::ERESTART),
            Err(errno) => Err(errno),
        }
    }

    fn tree_node(
        &self,
        who: &Caller,
        dir: Ino,
        name: &[u8],
        new: NewInode<'_>,
    ) -> Result<TreeReply> {
        may_make(who, new.kind, new.rdev)?;
        self.permit_name(who, dir, name)?;
        self.clear_name(who, dir, name)?;
        let made = self.names.make(who, dir, name, &new)?;
        Ok(self.named(dir, name, made))
    }
}
