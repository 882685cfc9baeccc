//! Where servers listen and which are gone for good, and on which of them a buffer's shards are.
//!
//! One [`Directory`] in a process, kept true by the ledger; each buffer has its [`Places`]. Called by
//! the links to other servers, and by sessions that tell mounts where to go.

use forebay_net::ServerAddress;
use forebay_proto::net::servers::ShardPlace;
use forebay_proto::{ServerId, ShardId};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;

/// What is known of a server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KnownServer {
    /// Where it listens.
    pub addresses: Vec<ServerAddress>,
    /// Somebody has said that it will not come back.
    pub lost: bool,
    /// Name of its node; empty where that is not known.
    pub host: String,
}

/// The servers that this process has heard of. Bounded by those on record.
#[derive(Debug, Default)]
pub struct Directory {
    known: RwLock<HashMap<ServerId, KnownServer>>,
}

impl Directory {
    /// Notes what is known of a server now.
    pub fn set(&self, server: ServerId, known: KnownServer) {
        self.known.write().insert(server, known);
    }

    /// What is known of a server.
    pub fn get(&self, server: ServerId) -> Option<KnownServer> {
        self.known.read().get(&server).cloned()
    }
}

/// The servers of one buffer's parts, in the order of its shards.
#[derive(Debug)]
pub struct Places {
    servers: Vec<ServerId>,
    directory: Arc<Directory>,
}

impl Places {
    /// Of a buffer whose part i is on `servers[i]`.
    pub fn new(servers: Vec<ServerId>, directory: Arc<Directory>) -> Arc<Places> {
        Arc::new(Places { servers, directory })
    }

    /// Of a buffer that is on one server, which has told nobody where it listens.
    pub fn of_one(server: ServerId) -> Arc<Places> {
        Places::new(vec![server], Arc::default())
    }

    /// How many parts there are.
    pub fn count(&self) -> u16 {
        u16::try_from(self.servers.len()).unwrap_or(u16::MAX)
    }

    /// The server of a part.
    pub fn server(&self, shard: ShardId) -> Option<ServerId> {
        self.servers.get(usize::from(shard.0)).copied()
    }

    /// True if the server of a part is gone for good.
    pub fn is_lost(&self, shard: ShardId) -> bool {
        let known = self.server(shard).and_then(|server| self.directory.get(server));
        known.is_some_and(|known| known.lost)
    }

    /// The part whose server runs on the node of this name.
    pub fn shard_on(&self, host: &str) -> Option<ShardId> {
        let is_on = |server: &ServerId| {
            let known = self.directory.get(*server);
            known.is_some_and(|known| !known.lost && !host.is_empty() && known.host == host)
        };
        (0..).map(ShardId).zip(&self.servers).find(|(_, server)| is_on(server)).map(|(at, _)| at)
    }

    /// Where each part is now.
    pub fn shards(&self) -> Vec<ShardPlace> {
        let place = |(shard, &server): (u16, &ServerId)| {
            let known = self.directory.get(server).unwrap_or_default();
            ShardPlace {
                shard: ShardId(shard),
                server,
                addresses: known.addresses.iter().map(ToString::to_string).collect(),
                lost: known.lost,
            }
        };
        (0..).zip(&self.servers).map(place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_now() {
        let directory = Arc::new(Directory::default());
        let places = Places::new(vec![ServerId(5), ServerId(3)], Arc::clone(&directory));
        assert_eq!(places.shards()[1].addresses, [""; 0]);
        let addresses = vec!["node3:7".parse().unwrap()];
        directory.set(ServerId(3), KnownServer { addresses, lost: true, host: "node3".into() });
        assert_eq!(places.shard_on("node3"), None, "it is lost");
        let place = &places.shards()[1];
        assert_eq!((place.shard, place.server, place.lost), (ShardId(1), ServerId(3), true));
        assert_eq!(place.addresses, ["node3:7"]);
        assert!(places.is_lost(ShardId(1)) && !places.is_lost(ShardId(0)));
        assert_eq!(
            (places.server(ShardId(0)), places.server(ShardId(2))),
            (Some(ServerId(5)), None)
        );
    }
}
