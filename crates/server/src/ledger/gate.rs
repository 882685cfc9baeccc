//! The ledger at the door: whose secret is which, who a connection is, which sessions it gets.
//! What the listener ([`crate::net`]) asks.

use super::turn::{absent, of};
use super::{BufferUser, Identity, Ledger, ServedBuffer};
use crate::net::Backend;
use crate::session::{BufferFacts, Sessions};
use forebay_net::handshake::{Gate, Greeted};
use forebay_net::node::this_node;
use forebay_proto::control::{ControlError, StoreKind};
use forebay_proto::net::auth::{Key, Refusal, Secret};
use forebay_proto::net::ledger::{BufferName, LedgerReply, LedgerRequest, MountedClient};
use forebay_proto::net::session::NodeId;
use forebay_proto::{Caller, ShardId};
use std::path::PathBuf;
use std::sync::Arc;

/// File in a store's metadata that lists the clients of the buffer.
const CLIENTS_NAME: &str = "clients";

/// A ledger that connections ask.
pub struct Door {
    ledger: Arc<Ledger>,
    key: Secret,
    node: NodeId,
    unix_socket: Option<PathBuf>,
}

impl Door {
    /// With the server's key. The sessions of all buffers that are served begin here: clients
    /// of an earlier start may come back. `unix_socket` is told to mounts on this node.
    pub fn open(
        ledger: Arc<Ledger>,
        key: Secret,
        unix_socket: Option<PathBuf>,
    ) -> Result<Door, ControlError> {
        let node = this_node();
        let door = Door { ledger, key, node, unix_socket };
        for served in door.ledger.buffers() {
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
                shard: ShardId(0),
                incarnation: self.ledger.incarnation(),
                node: self.node.clone(),
                unix_socket: self.unix_socket.clone(),
                volatile: store.volatile(),
                gives_objects: store.kind() != StoreKind::Directory,
                capacity_bytes: store.capacity_bytes(),
            };
            let clients = store.meta_dir().join(CLIENTS_NAME);
            Sessions::new(served.server.namespace().clone(), facts, clients)
        };
        served
            .user::<Sessions, _>(make)
            .map_err(|errno| of(what, &served.name, &errno.to_string(), errno.0))?
            .ok_or_else(|| of(what, &served.name, "something else uses it", libc::EBUSY))
    }

    fn buffer_for(&self, who: &Identity, name: &str) -> Result<Arc<Sessions>, ControlError> {
        let what = "mount";
        let name: BufferName = name.parse().map_err(|error| {
            ControlError::new(what, None, &format!("{error}")).errno(libc::EINVAL)
        })?;
        self.ledger.owned(what, who, &name)?.ok_or_else(|| absent(what, &name))?;
        let served = self.ledger.buffer(&name).ok_or_else(|| {
            of(what, &name, "it is not served", libc::EIO).hint("`forebay buffer status` tells why")
        })?;
        self.sessions_of(&served)
    }
}

fn refusal(error: ControlError) -> Refusal {
    let errno = error.errno.unwrap_or(libc::EIO);
    Refusal { errno, why: format!("{}: {}", error.what, error.why), hint: error.hint }
}

impl Gate for Door {
    fn secret(&self, key: &Key) -> Result<Secret, Refusal> {
        let unknown = || Refusal { errno: libc::EACCES, why: "no such key".into(), hint: None };
        match key {
            Key::Server => Ok(self.key.clone()),
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
        self.ledger.server_id()
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
        self.ledger.answer(who, request)
    }

    fn sessions(&self, who: &Identity, buffer: &str) -> Result<Arc<Sessions>, Refusal> {
        self.buffer_for(who, buffer).map_err(refusal)
    }
}

impl BufferUser for Sessions {
    fn clients(&self) -> Vec<MountedClient> {
        Sessions::clients(self)
    }

    fn end(&self) {
        self.close();
    }
}
