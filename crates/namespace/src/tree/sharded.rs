//! The whole tree of a buffer as the mover of one of its servers sees it: what is of another shard is
//! asked of the server that has it, with the requester's rights, which that one checks.
//!
//! Files are begun and read by their own server, and the objects of striped files each by the server
//! that has it (`stripe_object`): what the mover copies here is here. So only names
//! and attributes cross, and lists of files. Made by `server` for a buffer of several servers.

use super::LocalTree;
use super::stripe_object::StripeObject;
use crate::Namespace;
use forebay_credentials::identity::as_server;
use forebay_interfaces::peers::Peers;
use forebay_interfaces::tree::{BufferTree, Data, NewFile, Spread, Striped};
use forebay_proto::api::WriteMode;
use forebay_proto::attr::{Attr, FileKind, SetAttr};
use forebay_proto::control::FileStatus;
use forebay_proto::net::frame;
use forebay_proto::net::servers::{MadeInode, Question, Reply};
use forebay_proto::net::tree::{Found, TREE_ANSWER_BYTES_MAX, TreeAsked, TreeQuestion, TreeReply};
use forebay_proto::{Caller, Cookie, Errno, Ino, ObjectId, Result, ShardId};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Questions of this process to others that are under way at once. Who answers them asks in its
/// turn, over the same connections (`net::links::MAX_LINKS`): there is always room for that.
const ASKED_MAX: usize = 24;
/// A name that leads to what is gone was looked up while it changed; it is looked up so often.
const LOOKS_MAX: u32 = 8;
/// What a directory gives to new files is believed so long.
const INHERIT_KEPT: Duration = Duration::from_secs(1);
/// Directories of which that is kept.
const INHERIT_DIRS_MAX: usize = 1_024;
/// Deepest path walked, in components.
const COMPONENTS_MAX: usize = 4_096;

/// Places for questions under way.
static ASKED: Places = Places { taken: Mutex::new(0), freed: Condvar::new() };

struct Places {
    taken: Mutex<usize>,
    freed: Condvar,
}

struct Place;

impl Places {
    fn take(&self) -> Place {
        let mut taken = self.taken.lock();
        while *taken >= ASKED_MAX {
            self.freed.wait(&mut taken);
        }
        *taken += 1;
        Place
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *ASKED.taken.lock() -= 1;
        ASKED.freed.notify_one();
    }
}

/// The tree.
pub struct ShardedTree {
    namespace: Arc<Namespace>,
    /// What of it is here.
    local: LocalTree,
    peers: Arc<dyn Peers>,
    /// By directory and user.
    inherited: Mutex<HashMap<(Ino, u32), (Instant, MadeInode)>>,
}

impl ShardedTree {
    /// Seen from the server of `namespace`.
    pub fn new(namespace: Arc<Namespace>, peers: Arc<dyn Peers>) -> ShardedTree {
        ShardedTree { local: namespace.tree(), namespace, peers, inherited: Mutex::default() }
    }

    /// Asks every server for the same.
    fn ask_all(&self, question: impl Fn() -> TreeQuestion<'static>) -> Result<()> {
        for shard in (0..self.peers.count()).map(ShardId) {
            match self.put(shard, &Caller::root(), question()) {
                Ok(reply) => ShardedTree::done(reply)?,
                // Lost for good: nothing of it can be on stable storage any more.
                Err(Errno::EIO) if shard != self.peers.mine() => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// The shards whose servers are gone for good.
    pub fn lost_shards(&self) -> Vec<ShardId> {
        (0..self.peers.count()).map(ShardId).filter(|shard| self.peers.is_lost(*shard)).collect()
    }

    /// Shards of the buffer.
    pub fn shard_count(&self) -> u16 {
        self.peers.count()
    }

    fn is_here(&self, ino: Ino) -> bool {
        ino.shard() == self.peers.mine()
    }

    /// Asks the server of a shard, this one too.
    pub fn put(&self, to: ShardId, who: &Caller, question: TreeQuestion<'_>) -> Result<TreeReply> {
        let asked = TreeAsked { who: who.clone(), question };
        let reply = match to == self.peers.mine() {
            true => self.local.answer(&asked),
            false => self.ask(to, &asked)?,
        };
        match reply {
            TreeReply::Failed(errno) => Err(Errno(errno)),
            reply => Ok(reply),
        }
    }

    fn ask(&self, to: ShardId, asked: &TreeAsked<'_>) -> Result<TreeReply> {
        let mut body = Vec::new();
        frame::encode(asked, &mut body).map_err(|_| Errno::EPROTO)?;
        let (buffer, from) = (self.peers.buffer(), self.peers.mine());
        let question = Question::Tree { buffer, from, asked: &body };
        let _place = ASKED.take();
        match self.peers.ask(to, &question, &[], &mut Vec::new())? {
            Reply::Tree(body) => frame::decode(&body).map_err(|_| Errno::EPROTO),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Attributes of what a question about a name found.
    fn found(&self, who: &Caller, reply: TreeReply) -> Result<Attr> {
        match reply {
            TreeReply::Found(Found::Here(attr)) => Ok(attr),
            TreeReply::Found(Found::Elsewhere(ino)) => self.attr_as(who, ino),
            _ => Err(Errno::EPROTO),
        }
    }

    fn attr_as(&self, who: &Caller, ino: Ino) -> Result<Attr> {
        match self.put(ino.shard(), who, TreeQuestion::Attr(ino))? {
            TreeReply::Attr(attr) => Ok(attr),
            _ => Err(Errno::EPROTO),
        }
    }

    fn done(reply: TreeReply) -> Result<()> {
        match reply {
            TreeReply::Done => Ok(()),
            _ => Err(Errno::EPROTO),
        }
    }

    /// What a file made for `dir` is like.
    fn inherit(&self, who: &Caller, dir: Ino) -> Result<MadeInode> {
        let key = (dir, who.uid);
        if let Some((when, made)) = self.inherited.lock().get(&key)
            && when.elapsed() < INHERIT_KEPT
        {
            return Ok(made.clone());
        }
        let TreeReply::Inherit(made) = self.put(dir.shard(), who, TreeQuestion::Inherit(dir))?
        else {
            return Err(Errno::EPROTO);
        };
        let mut inherited = self.inherited.lock();
        if inherited.len() >= INHERIT_DIRS_MAX {
            inherited.clear();
        }
        inherited.insert(key, (Instant::now(), (*made).clone()));
        Ok(*made)
    }

    fn striped(&self, ino: Ino) -> Data {
        Data::Striped(Arc::new(StripedFile { namespace: self.namespace.clone(), ino }))
    }

    /// State of a file for people, by its path.
    pub fn status(&self, who: &Caller, path: &[u8]) -> Result<FileStatus> {
        let ino = self.resolve(who, path)?.ino;
        match self.put(ino.shard(), who, TreeQuestion::Status { ino, path })? {
            TreeReply::Bytes(json) => serde_json::from_slice(&json).map_err(|_| Errno::EPROTO),
            _ => Err(Errno::EPROTO),
        }
    }
}

/// A striped file at the server of its inode. Its objects and logs are the server's own: a thread of a plan reads and
/// writes them as the server, also while it acts as the requester on the PFS. Who may open the file was judged before.
struct StripedFile {
    namespace: Arc<Namespace>,
    ino: Ino,
}

impl Striped for StripedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        as_server(|| self.namespace.data().read(self.ino, offset, buf))
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        as_server(|| self.namespace.data().write(self.ino, offset, data, WriteMode::default()))
    }

    fn set_len(&self, size_bytes: u64) -> Result<()> {
        let change = SetAttr { size_bytes: Some(size_bytes), ..SetAttr::default() };
        as_server(|| self.namespace.attrs().set(&Caller::root(), self.ino, &change).map(drop))
    }

    fn size_bytes(&self) -> Result<u64> {
        as_server(|| self.namespace.attrs().of(self.ino).map(|attr| attr.size_bytes))
    }

    fn seek(&self, offset: u64, whence: u32) -> Result<u64> {
        as_server(|| self.namespace.data().seek(self.ino, offset, whence))
    }

    fn spread(&self) -> Option<Spread> {
        let layout = self.namespace.attrs().layout(self.ino).ok()?;
        // What is in logs is read by the index, here.
        if layout.log && as_server(|| self.namespace.logs().is_in_logs(self.ino)).unwrap_or(true) {
            return None;
        }
        Some(Spread { ino: self.ino, layout, servers: self.namespace.stripes().server_count() })
    }
}

impl BufferTree for ShardedTree {
    fn resolve(&self, who: &Caller, path: &[u8]) -> Result<Attr> {
        let mut at = Ino::ROOT;
        let mut found = None;
        let parts = path.split(|&b| b == b'/').filter(|p| !p.is_empty() && *p != b".");
        for (depth, part) in parts.enumerate() {
            if part == b".." || depth >= COMPONENTS_MAX {
                return Err(Errno::EINVAL);
            }
            let attr = self.child(who, at, part)?;
            at = attr.ino;
            found = Some(attr);
        }
        found.map_or_else(|| self.attr_as(who, at), Ok)
    }

    fn child(&self, who: &Caller, dir: Ino, name: &[u8]) -> Result<Attr> {
        for _ in 1..LOOKS_MAX {
            let reply = self.put(dir.shard(), who, TreeQuestion::Child { dir, name })?;
            match self.found(who, reply) {
                Err(Errno::ESTALE) => {}
                found => return found,
            }
        }
        let reply = self.put(dir.shard(), who, TreeQuestion::Child { dir, name })?;
        self.found(who, reply)
    }

    fn list(&self, who: &Caller, dir: Ino) -> Result<Vec<(Vec<u8>, Ino, FileKind)>> {
        let mut all = Vec::new();
        let (mut after, mut limit) = (Cookie::START, None);
        loop {
            let question = TreeQuestion::List { dir, after, limit };
            let TreeReply::Names { mut names, next } = self.put(dir.shard(), who, question)? else {
                return Err(Errno::EPROTO);
            };
            all.append(&mut names);
            match next {
                None => return Ok(all),
                Some((last, upto)) => (after, limit) = (last, Some(upto)),
            }
        }
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        self.attr_as(&Caller::root(), ino)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        match self.put(ino.shard(), &Caller::root(), TreeQuestion::Readlink(ino))? {
            TreeReply::Bytes(target) => Ok(target),
            _ => Err(Errno::EPROTO),
        }
    }

    fn xattrs(&self, who: &Caller, ino: Ino) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        match self.put(ino.shard(), who, TreeQuestion::Xattrs(ino))? {
            TreeReply::Xattrs(xattrs) => Ok(xattrs),
            _ => Err(Errno::EPROTO),
        }
    }

    fn open_read(&self, who: &Caller, ino: Ino) -> Result<Data> {
        if !self.is_here(ino) {
            return Err(Errno::EXDEV);
        }
        if !self.namespace.attrs().layout(ino)?.is_striped() {
            return self.local.open_read(who, ino);
        }
        // May it be read?
        self.local.read_from(who, ino, 0, &mut [])?;
        Ok(self.striped(ino))
    }

    fn object(&self, object: ObjectId, size_bytes: u64, written: bool) -> Result<Data> {
        let object = StripeObject::open(self.namespace.clone(), object, size_bytes, written)?;
        Ok(Data::Striped(Arc::new(object)))
    }

    fn read_from(&self, who: &Caller, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let bytes = buf.len().min(TREE_ANSWER_BYTES_MAX) as u32;
        let question = TreeQuestion::Read { ino, offset, bytes };
        let TreeReply::Bytes(data) = self.put(ino.shard(), who, question)? else {
            return Err(Errno::EPROTO);
        };
        let room = buf.get_mut(..data.len()).ok_or(Errno::EPROTO)?;
        room.copy_from_slice(&data);
        Ok(data.len())
    }

    fn begin_file(&self, who: &Caller, dir: Ino, size_bytes: u64) -> Result<NewFile> {
        let made = self.inherit(who, dir)?;
        let (ino, object) = self.local.begin_file_like(who, &made, size_bytes)?;
        let file = object.map_or_else(|| self.striped(ino), Data::from);
        Ok(NewFile { ino, file })
    }

    fn grow_file(&self, ino: Ino, size_bytes: u64) -> Result<()> {
        match self.namespace.attrs().layout(ino)?.is_striped() {
            // Its objects take space as they are written.
            true => Ok(()),
            false => self.local.grow_file(ino, size_bytes),
        }
    }

    fn finish_file(&self, ino: Ino) -> Result<()> {
        self.local.finish_file(ino)
    }

    fn publish(&self, who: &Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        let question = TreeQuestion::Link { dir, name, ino };
        let reply = self.put(dir.shard(), who, question)?;
        let attr = self.found(who, reply)?;
        self.local.published(ino);
        Ok(attr)
    }

    fn abandon(&self, ino: Ino) {
        self.local.abandon(ino);
    }

    fn mkdir(&self, who: &Caller, dir: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        let reply = self.put(dir.shard(), who, TreeQuestion::Mkdir { dir, name, mode })?;
        self.found(who, reply)
    }

    fn symlink(&self, who: &Caller, dir: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        let (kind, mode) = (FileKind::Symlink, 0o777);
        let question = TreeQuestion::Node { dir, name, kind, mode, rdev: 0, target };
        let reply = self.put(dir.shard(), who, question)?;
        self.found(who, reply)
    }

    fn mknod(
        &self,
        who: &Caller,
        dir: Ino,
        name: &[u8],
        kind: FileKind,
        mode: u32,
        rdev: u32,
    ) -> Result<Attr> {
        let question = TreeQuestion::Node { dir, name, kind, mode, rdev, target: b"" };
        let reply = self.put(dir.shard(), who, question)?;
        self.found(who, reply)
    }

    fn link(&self, who: &Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        let reply = self.put(dir.shard(), who, TreeQuestion::Link { dir, name, ino })?;
        self.found(who, reply)
    }

    fn set_attr(&self, who: &Caller, ino: Ino, change: &SetAttr) -> Result<Attr> {
        let question = TreeQuestion::SetAttr { ino, change: *change };
        match self.put(ino.shard(), who, question)? {
            TreeReply::Attr(attr) => Ok(attr),
            _ => Err(Errno::EPROTO),
        }
    }

    fn set_xattr(&self, who: &Caller, ino: Ino, name: &[u8], value: &[u8]) -> Result<()> {
        ShardedTree::done(self.put(
            ino.shard(),
            who,
            TreeQuestion::SetXattr { ino, name, value },
        )?)
    }

    fn sync(&self) -> Result<()> {
        self.ask_all(|| TreeQuestion::Sync)
    }

    fn sync_all(&self) -> Result<()> {
        self.ask_all(|| TreeQuestion::SyncAll)
    }
}
