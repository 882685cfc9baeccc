//! Access control of the ledger: whose secret is which, who a connection is, which sessions it gets.
//! What the listener ([`crate::net`]) asks.

use super::errors::{absent, of};
use super::{BufferUser, Identity, Ledger, ServedBuffer};
use crate::net::Backend;
use crate::session::{BufferFacts, Sessions};
use forebay_interfaces::peers::ShardHandler;
use forebay_net::handshake::{Gate, Greeted};
use forebay_net::node::this_node;
use forebay_proto::control::{ControlError, StoreKind};
use forebay_proto::metrics::BufferMetrics;
use forebay_proto::net::auth::{Key, Refusal, Secret};
use forebay_proto::net::ledger::{
    AccessMode, BufferName, LedgerReply, LedgerRequest, MountedClient,
};
use forebay_proto::net::servers::{Question, Reply};
use forebay_proto::net::session::NodeId;
use forebay_proto::{Caller, Errno, ShardId};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

/// File in a store's metadata that lists the clients of the buffer.
const CLIENTS_NAME: &str = "clients";

/// A ledger that connections ask.
pub struct Door {
    ledger: Arc<Ledger>,
    node: NodeId,
    unix_socket: Option<PathBuf>,
    /// Who answers the servers of a buffer's other parts, so that it is found without a lock that
    /// a change of the ledger holds.
    shards: RwLock<HashMap<u128, Weak<Sessions>>>,
}

impl Door {
    /// The sessions of all buffers that are served begin here: clients
    /// of an earlier start may come back. `unix_socket` is told to mounts on this node.
    pub fn open(ledger: Arc<Ledger>, unix_socket: Option<PathBuf>) -> Result<Door, ControlError> {
        let (node, shards) = (this_node(), RwLock::default());
        let door = Door { ledger, node, unix_socket, shards };
        for served in door.ledger.parts.all() {
            door.sessions_of(&served)?;
        }
        Ok(door)
    }

    /// The ledger.
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    fn sessions_of(&self, served: &ServedBuffer) -> Result<Arc<Sessions>, ControlError> {
        let what = "serve mounts of";
        let make = |served: &ServedBuffer| {
            let store = served.server.store();
            let facts = BufferFacts {
                uuid: served.uuid.clone(),
                shard: served.shard(),
                places: Arc::clone(&served.places),
                incarnation: self.ledger.incarnation(),
                node: self.node.clone(),
                unix_socket: self.unix_socket.clone(),
                volatile: store.volatile(),
                gives_objects: store.kind() != StoreKind::Directory,
                capacity_bytes: store.capacity_bytes(),
                private: private(served),
                cache: served.server.buffer().cache_facts(served.access),
            };
            let clients = store.meta_dir().join(CLIENTS_NAME);
            let cache = served.server.cache().cloned();
            Sessions::new(served.server.namespace().clone(), cache, facts, clients)
        };
        served
            .user::<Sessions, _>(make)
            .map_err(|errno| of(what, &served.name, &errno.to_string(), errno.0))?
            .ok_or_else(|| of(what, &served.name, "something else uses it", libc::EBUSY))
    }

    /// Who answers for our part of a buffer to the server of another part. ESTALE: there is none.
    fn shard(&self, buffer: u128, from: ShardId) -> Result<Arc<Sessions>, Errno> {
        let known = self.shards.read().get(&buffer).and_then(Weak::upgrade);
        let sessions = match known {
            Some(sessions) => sessions,
            None => self.find_shard(buffer)?,
        };
        match sessions.places() {
            places if from.0 >= places.count() => Err(Errno::EINVAL),
            // What it has left with us is settled without it.
            places if places.is_lost(from) => Err(Errno::EIO),
            _ => Ok(sessions),
        }
    }

    /// The server of our part of a buffer. EHOSTUNREACH: there is none, it may be being opened.
    fn server_of(&self, buffer: u128, from: ShardId) -> Result<Arc<crate::Server>, Errno> {
        // What a kill of this server left over shards is settled by its sessions.
        self.shard(buffer, from).map_err(|_| Errno::EHOSTUNREACH)?;
        let uuid = format!("{buffer:032x}");
        let found = self.ledger.parts.of_uuid(&uuid);
        found.map(|served| Arc::clone(&served.server)).ok_or(Errno::EHOSTUNREACH)
    }

    /// Sessions of all buffers of several parts, also of new ones: changes over shards, those of
    /// staging too, need them.
    fn begin_sessions(&self) {
        for served in self.ledger.parts.all().iter().filter(|served| served.places.count() > 1) {
            if let Err(error) = self.sessions_of(served) {
                tracing::warn!(buffer = %served.name, "{error}");
            }
        }
    }

    fn find_shard(&self, buffer: u128) -> Result<Arc<Sessions>, Errno> {
        let uuid = format!("{buffer:032x}");
        let served = self.ledger.parts.of_uuid(&uuid).ok_or(Errno::ESTALE)?;
        let sessions =
            self.sessions_of(&served).map_err(|error| error.errno.map_or(Errno::EIO, Errno))?;
        let mut shards = self.shards.write();
        shards.retain(|_, sessions| sessions.strong_count() > 0);
        shards.insert(buffer, Arc::downgrade(&sessions));
        Ok(sessions)
    }

    /// This server has no part of it: another one may. EREMOTE: ask where, and go there.
    fn elsewhere(&self, what: &str, who: &Identity, name: &BufferName) -> ControlError {
        match self.ledger.answer(who, LedgerRequest::Places { name: name.clone() }) {
            LedgerReply::Places(_) => {
                of(what, name, "this server has no shard of it", libc::EREMOTE)
                    .hint("`forebay buffer status` shows its servers")
            }
            LedgerReply::Error(error) => error,
            _ => absent(what, name),
        }
    }

    fn buffer_for(&self, who: &Identity, name: &str) -> Result<Arc<Sessions>, ControlError> {
        let what = "mount";
        let name: BufferName = name.parse().map_err(|error| {
            ControlError::new(what, None, &format!("{error}")).errno(libc::EINVAL)
        })?;
        if self.ledger.record.owned_part(what, who, &name)?.is_none() {
            return Err(self.elsewhere(what, who, &name));
        }
        let served = self.ledger.parts.serving(what, &name)?;
        self.sessions_of(&served)
    }
}

/// The owner of each node's root, where each has one.
fn private(served: &ServedBuffer) -> Option<(u32, u32)> {
    let is_private = served.access == AccessMode::Private;
    let own_roots = is_private && served.server.buffer().may_have_private_roots();
    own_roots.then_some((served.owner_uid, served.owner_gid))
}

fn refusal(error: ControlError) -> Refusal {
    let errno = error.errno.unwrap_or(libc::EIO);
    Refusal { errno, why: format!("{}: {}", error.what, error.why), hint: error.hint }
}

impl Gate for Door {
    fn secret(&self, key: &Key) -> Result<Secret, Refusal> {
        let unknown = || Refusal { errno: libc::EACCES, why: "no such key".into(), hint: None };
        match key {
            Key::Server => Ok(self.ledger.options.key.clone()),
            Key::Buffer(name) => {
                let name: BufferName = name.parse().map_err(|_| unknown())?;
                self.ledger.secret(&name).ok_or_else(unknown)
            }
            Key::Peer | Key::Munge => Err(unknown()),
        }
    }
}

impl Backend for Door {
    type Who = Identity;

    fn server(&self) -> u128 {
        self.ledger.server_id().0
    }

    fn incarnation(&self) -> u64 {
        self.ledger.incarnation()
    }

    fn identify(&self, greeted: &Greeted, peer: Option<Caller>) -> Result<Identity, Refusal> {
        let refuse = |why: &str| Err(Refusal { errno: libc::EACCES, why: why.into(), hint: None });
        match (&greeted.key, peer) {
            (Key::Server, _) => Ok(Identity::of_server_key()),
            (Key::Buffer(name), _) => match name.parse() {
                Ok(name) => Ok(Identity::Holder(name)),
                Err(_) => refuse("no such buffer"),
            },
            (Key::Peer, Some(caller)) => Ok(Identity::of_peer(caller)),
            (Key::Munge, _) => match greeted.user {
                Some((uid, gid)) => Ok(Identity::of_user(uid, gid)),
                None => refuse("nobody tells who it is"),
            },
            (Key::Peer, None) => refuse("nobody tells who it is"),
        }
    }

    fn answer(&self, who: &Identity, request: LedgerRequest) -> LedgerReply {
        self.begin_sessions();
        self.ledger.answer(who, request)
    }

    fn sessions(&self, who: &Identity, buffer: &str) -> Result<Arc<Sessions>, Refusal> {
        self.buffer_for(who, buffer).map_err(refusal)
    }

    fn acts_as(&self, who: &Identity, buffer: &str) -> Result<Option<Caller>, Refusal> {
        let what = "mount";
        let name: BufferName = buffer.parse().map_err(|_| {
            refusal(ControlError::new(what, None, "no such name").errno(libc::EINVAL))
        })?;
        let part = self.ledger.record.owned_part(what, who, &name).map_err(refusal)?;
        Ok(part.and_then(|part| who.mounts_as(&part)))
    }

    fn is_server(&self, who: &Identity) -> Result<(), Refusal> {
        match who {
            Identity::Superuser(_) => Ok(()),
            _ => Err(Refusal {
                errno: libc::EACCES,
                why: "only servers of the same key, or of the same user on this node, may".into(),
                hint: Some("give all servers of a pool the same --secret-file".into()),
            }),
        }
    }

    fn question(&self, question: &Question<'_>, payload: &[u8], room: &mut Vec<u8>) -> Reply {
        if matches!(question, Question::Pool(_)) {
            self.begin_sessions();
        }
        let replied = match question {
            Question::Pool(json) => self.ledger.answer_json(json).map(Reply::Pool),
            Question::Names { buffer, from, question } => {
                self.shard(*buffer, *from).and_then(|sessions| {
                    sessions.names(*from, question, payload, room).map(Reply::Names)
                })
            }
            Question::Objects { buffer, from, question } => {
                self.shard(*buffer, *from).and_then(|sessions| {
                    sessions.objects(*from, question, payload, room).map(Reply::Objects)
                })
            }
            Question::Cache { buffer, from, asked } => {
                let sessions = self.shard(*buffer, *from);
                sessions.and_then(|sessions| sessions.answer_peer(*from, asked)).map(Reply::Cache)
            }
            Question::Staging { buffer, from, question } => {
                let server = self.server_of(*buffer, *from);
                server.and_then(|server| server.mover().answer(question)).map(Reply::Staging)
            }
            Question::Tree { buffer, from, asked } => {
                let server = self.server_of(*buffer, *from);
                server.and_then(|server| server.answer_tree(asked)).map(Reply::Tree)
            }
        };
        replied.unwrap_or_else(|errno| Reply::Failed(errno.0))
    }
}

impl BufferUser for Sessions {
    fn clients(&self) -> Vec<MountedClient> {
        Sessions::clients(self)
    }

    fn fill_metrics(&self, told: &mut BufferMetrics) {
        Sessions::fill_metrics(self, told);
    }

    fn end(&self) {
        self.close();
    }
}
