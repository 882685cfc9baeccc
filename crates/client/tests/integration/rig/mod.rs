//! A server of one buffer in this process, over real sockets.

use forebay_client::remote::Target;
use forebay_net::ServerAddress;
use forebay_net::handshake::{Credential, Gate, Greeted};
use forebay_net::node::this_node;
use forebay_proto::metrics::BufferMetrics;
use forebay_proto::net::auth::{Key, Refusal, Secret};
use forebay_proto::net::ledger::{LedgerReply, LedgerRequest};
use forebay_proto::net::session::NodeId;
use forebay_proto::{Caller, ServerId, ShardId};
use forebay_server::net::{Backend, Listening, listen};
use forebay_server::places::Places;
use forebay_server::session::{BufferFacts, Sessions};
use forebay_server::{Server, ServerOptions};
use forebay_store::flash::{Store, StoreKey, StoreOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn secret() -> Secret {
    Secret::from_bytes([9; 32])
}

/// A server of one buffer named `b`.
struct OneBuffer {
    incarnation: u64,
    sessions: Arc<Sessions>,
}

impl Gate for OneBuffer {
    fn secret(&self, key: &Key) -> Result<Secret, Refusal> {
        match key {
            Key::Buffer(name) if name == "b" => Ok(secret()),
            _ => Err(Refusal { errno: libc::ENOENT, why: "unknown".into(), hint: None }),
        }
    }
}

impl Backend for OneBuffer {
    type Who = ();

    fn server(&self) -> u128 {
        7
    }
    fn incarnation(&self) -> u64 {
        self.incarnation
    }
    fn identify(&self, _: &Greeted, _: Option<Caller>) -> Result<(), Refusal> {
        Ok(())
    }
    fn answer(&self, (): &(), _: LedgerRequest) -> LedgerReply {
        LedgerReply::Ok
    }
    fn sessions(&self, (): &(), _: &str) -> Result<Arc<Sessions>, Refusal> {
        Ok(Arc::clone(&self.sessions))
    }
}

/// A running server.
pub struct Running {
    pub server: Arc<Server>,
    sessions: Arc<Sessions>,
    listening: Listening,
}

/// Serves the buffer in `dir`, making it if there is none. `near`: clients may take it for a server
/// of their own node, reach it by a socket in `dir`, and are given objects.
pub fn serve(dir: &Path, incarnation: u64, address: &ServerAddress, near: bool) -> Running {
    let store = Store::find_or_create(&StoreOptions {
        flash: dir.to_path_buf(),
        key: StoreKey::mount(Path::new("/b")),
        capacity_bytes: 64 << 20,
        kind: Some(forebay_proto::control::StoreKind::Directory),
        shared: false,
    })
    .unwrap();
    let options = ServerOptions { hold_orphans: true, ..ServerOptions::default() };
    let server = Server::open(store.clone(), options).unwrap();
    let socket = dir.join("server.sock");
    let facts = BufferFacts {
        uuid: store.record().uuid.clone(),
        shard: ShardId(0),
        places: Places::of_one(ServerId(7)),
        incarnation,
        node: if near { this_node() } else { NodeId("elsewhere".into()) },
        unix_socket: Some(socket.clone()),
        volatile: store.volatile(),
        gives_objects: near,
        capacity_bytes: store.capacity_bytes(),
        private: None,
        cache: None,
    };
    let clients = store.dir().join("clients");
    let sessions = Sessions::new(Arc::clone(server.namespace()), None, facts, clients).unwrap();
    let backend = Arc::new(OneBuffer { incarnation, sessions: Arc::clone(&sessions) });
    let addresses = [address.clone(), ServerAddress::Unix(socket)];
    let listening = listen(backend, &addresses).unwrap();
    Running { server, sessions, listening }
}

impl Running {
    pub fn address(&self) -> ServerAddress {
        self.listening.addresses()[0].clone()
    }

    /// Calls so far of the kinds that anybody made, but for signs of life.
    pub fn calls(&self) -> std::collections::BTreeMap<String, u64> {
        let mut told = BufferMetrics::default();
        self.sessions.fill_metrics(&mut told);
        told.calls.into_iter().filter(|(kind, _)| kind != "session").collect()
    }

    /// Ends it in order, and finds nothing wrong with what it leaves.
    pub fn stop(self) {
        self.listening.stop();
        self.sessions.close();
        let store = self.server.close().unwrap();
        let namespace = Arc::downgrade(self.server.namespace());
        drop((self.sessions, self.server));
        let until = Instant::now() + Duration::from_secs(5);
        while namespace.strong_count() > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(forebay_server::check(&store).unwrap(), Vec::<String>::new());
        store.release().unwrap();
    }
}

/// A directory for a store.
pub fn flash() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = std::fs::canonicalize(dir.path()).unwrap();
    (dir, path)
}

/// The buffer at `address`.
pub fn target(address: &ServerAddress) -> Target {
    Target {
        address: address.clone(),
        credential: Credential::Secret(Key::Buffer("b".into()), secret()),
        buffer: "b".into(),
        over_tcp: None,
        by_given_address: false,
        is_told: false,
        activity: std::sync::Arc::default(),
        patience: forebay_client::remote::PATIENCE,
    }
}
