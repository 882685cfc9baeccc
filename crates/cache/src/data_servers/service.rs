//! Answers to the other servers of a cache, and to mounts that take a file at its data server.
//!
//! Invariant: no question is asked with a lock held that the answer may need (see [`super`]). Called by the sessions.

use super::super::attrs::Attributes;
use super::super::nodes::Nodes;
use super::super::own_change::OwnChanges;
use super::super::parts::Parts;
use super::super::pfs::{PfsDir, proc_path};
use super::super::pfs_inodes::PfsInodes;
use super::super::pfs_leftovers::PfsLeftovers;
use super::super::record_store::RecordStore;
use super::super::stack::Stack;
use super::messages::{LinkChange, Request, Response};
use super::{NAMES, Ownership, PATIENCE, PeerRequest};
use forebay_credentials::acting::Who;
use forebay_proto::attr::{Attr, FileKind};
use forebay_proto::net::frame;
use forebay_proto::{Caller, Errno, Ino, Result, ShardId};
use rustix::fs::{Mode, OFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Answers other servers and mounts.
pub struct PeerService {
    pfs: Arc<PfsDir>,
    nodes: Arc<Nodes>,
    ownership: Arc<Ownership>,
    inodes: Arc<PfsInodes>,
    records: Arc<RecordStore>,
    own_changes: Arc<OwnChanges>,
    leftovers: Arc<PfsLeftovers>,
    attributes: Arc<Attributes>,
}

impl PeerService {
    pub(crate) fn new(parts: &Parts, stack: &Stack, attributes: &Arc<Attributes>) -> PeerService {
        PeerService {
            pfs: parts.pfs.clone(),
            nodes: parts.nodes.clone(),
            ownership: stack.ownership.clone(),
            inodes: stack.inodes.clone(),
            records: stack.records.clone(),
            own_changes: stack.own_changes.clone(),
            leftovers: stack.leftovers.clone(),
            attributes: attributes.clone(),
        }
    }
}

impl PeerService {
    /// Takes references to files that names led to, with their attributes now. `as_user`: only what this user
    /// can reach. `to_write`: they will be opened for writing.
    pub fn take(
        &self,
        inos: &[Ino],
        as_user: Option<&Caller>,
        to_write: bool,
    ) -> Vec<Result<Attr>> {
        if let Err(error) = self.ownership.know(inos, to_write) {
            return inos.iter().map(|_| Err(error)).collect();
        }
        inos.iter().map(|ino| self.take_known(*ino, as_user)).collect()
    }

    fn take_known(&self, ino: Ino, as_user: Option<&Caller>) -> Result<Attr> {
        if !self.nodes.reference(ino) {
            return Err(Errno::ESTALE);
        }
        let reached =
            as_user.map_or(Ok(()), |user| self.inodes.open_node(ino, &Who::of(user)).map(drop));
        reached.and_then(|()| self.attr_to_take(ino)).inspect_err(|_| {
            drop(self.nodes.forget(ino, 1));
        })
    }

    fn attr_to_take(&self, ino: Ino) -> Result<Attr> {
        let stat = self.pfs.stat_fd(self.inodes.open_node_any(ino)?.as_fd())?;
        if stat.nlink == 0 {
            return Err(Errno::ESTALE);
        }
        let file = match self.nodes.get(ino)?.file {
            None => self.records.dirty_by_key(ino, stat.key)?,
            file => file,
        };
        self.attributes.attr_of(ino, &stat, file.as_ref())
    }

    /// The number of a file of this data server that a path leads to for a requester, referenced; `None` if another
    /// server is its data server.
    pub(crate) fn walk_to_file(&self, path: &[u8], who: &Who) -> Result<Option<Ino>> {
        let Some(data_servers) = self.ownership.at_data_server() else {
            let ino = self.inodes.walk(path, who)?;
            if self.ownership.is_elsewhere(ino, self.nodes.get(ino)?.kind) {
                drop(self.nodes.forget(ino, 1));
                return Ok(None);
            }
            return Ok(Some(ino));
        };
        let question = Request::Resolve { path: path.to_vec(), who: who.clone() };
        match data_servers.ask_patiently(NAMES, &question, PATIENCE)? {
            Response::Resolved(ino, FileKind::File) if ino.shard() == data_servers.mine() => {
                self.ownership.know(&[ino], false)?;
                match self.nodes.reference(ino) {
                    true => Ok(Some(ino)),
                    false => Err(Errno::ESTALE),
                }
            }
            Response::Resolved(..) => Ok(None),
            Response::Failed(errno) => Err(Errno(errno)),
            _ => Err(Errno::EPROTO),
        }
    }

    /// A name of a file is about to go on the PFS: what is open of it, or has to drain, holds its inode.
    /// One that is not known may be taken by a mount before it goes.
    fn keep_leaving(&self, ino: Ino) {
        if self.ownership.know(&[ino], false).is_err() {
            return;
        }
        let Ok(node) = self.inodes.open_node_any(ino) else { return };
        if self.pfs.renames_what_is_held() && !self.is_held_on_nfs(ino, &node) {
            return;
        }
        let path = proc_path(node.as_fd(), b"");
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let readable = rustix::fs::open(&path[..], flags, Mode::empty());
        let held: OwnedFd = readable.unwrap_or(node);
        self.ownership.hold_leaving(ino, held);
    }

    /// True for what somebody has open, and for what has to drain and has other names. Anything else that is held while its
    /// name goes, NFS would rename.
    fn is_held_on_nfs(&self, ino: Ino, node: &OwnedFd) -> bool {
        let Some(file) = self.nodes.get(ino).ok().and_then(|known| known.file) else {
            return false;
        };
        let has_others = || self.pfs.stat_fd(node.as_fd()).is_ok_and(|stat| stat.nlink > 1);
        file.is_in_use() || (file.is_dirty() && has_others())
    }

    /// Something happened to names of a file.
    pub(crate) fn left(&self, left: &LinkChange) -> Result<()> {
        if self.ownership.at_data_server().is_none() {
            return Err(Errno::EPROTO);
        }
        let heard = self.heard_of(left);
        // Perhaps nobody else needs its node.
        drop(self.nodes.forget(left.ino, 0));
        heard
    }

    fn heard_of(&self, left: &LinkChange) -> Result<()> {
        if left.removed {
            // Before anything else says so: nobody who knows the number finds neither name nor inode.
            self.ownership.hold_removed(left.ino);
        }
        let held = self.ownership.take_leaving(left.ino);
        let known = self.nodes.get(left.ino).ok();
        let key = known.as_ref().map_or(left.key, |known| known.key);
        let file = match known.and_then(|known| known.file) {
            Some(file) => Some(file),
            None => self.records.find(key)?,
        };
        if left.removed {
            if let Some(file) = &file {
                let _meta = file.meta.lock();
                self.leftovers.lose(file)?;
            }
            self.nodes.set_paths(left.ino, &[]);
            return Ok(());
        }
        self.nodes.set_paths(left.ino, &left.paths);
        let Some(file) = file else { return Ok(()) };
        let _meta = file.meta.lock();
        if let Some((before, after)) = &left.change {
            self.own_changes.follow_own_change(&file, before, after)?;
        }
        if let Some(held) = held.filter(|_| left.gone.is_some()) {
            *file.inode.lock() = Some(Arc::new(held)).filter(|_| file.is_dirty());
        }
        Ok(())
    }

    fn resolve_for(&self, path: &[u8], who: &Who) -> Result<(Ino, FileKind)> {
        let ino = self.inodes.walk(path, who)?;
        let kind = self.nodes.get(ino)?.kind;
        match self.ownership.is_elsewhere(ino, kind) {
            true => self.nodes.give(ino),
            false => drop(self.nodes.forget(ino, 1)),
        }
        Ok((ino, kind))
    }

    /// Answers another server. What it takes to be told that a name has gone is for [`PeerService::left`], which the
    /// sessions call when nobody believes in it any more.
    pub(crate) fn asked(&self, from: ShardId, asked: Request) -> Result<Response> {
        if !self.ownership.is_shared() {
            return Err(Errno::EPROTO);
        }
        Ok(match asked {
            Request::Resolve { path, who } => match self.resolve_for(&path, &who) {
                Ok((ino, kind)) => Response::Resolved(ino, kind),
                Err(e) => Response::Failed(e.0),
            },
            Request::Leaving(ino) => {
                self.keep_leaving(ino);
                Response::Done
            }
            Request::Links(left) => match self.left(&left) {
                Ok(()) => Response::Done,
                Err(e) => Response::Failed(e.0),
            },
            other => return self.ownership.asked(from, other),
        })
    }

    /// The answer to the server of another part, as bytes.
    pub fn answer_peer(&self, from: ShardId, request: PeerRequest) -> Result<Vec<u8>> {
        let told = self.asked(from, request.0)?;
        let mut body = Vec::new();
        frame::encode(&told, &mut body).map_err(|_| Errno::EPROTO)?;
        Ok(body)
    }
}
