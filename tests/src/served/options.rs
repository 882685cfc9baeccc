//! What a shared buffer of a test is made of: store, servers and where they run, and how a mount
//! reaches them.

use crate::proxy::Proxy;
use std::sync::Arc;

/// Kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// A tmpfs: mounts on the node use passthrough.
    Tmpfs,
    /// A directory: all I/O is served.
    Directory,
}

/// How a mount reaches its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Via {
    /// The Unix socket; with a store that can, by passthrough.
    Local,
    /// TCP, as from another node: all I/O is served.
    Tcp,
    /// TCP to this one of the servers, and no other way.
    AtServer(usize),
    /// TCP out of a network namespace of this name, to the server at this address.
    Namespace(String, String),
    /// TCP to this address: that of something between the mount and the first server.
    At(String),
}

/// Where a server runs and how it is reached, if not on this node by its Unix socket too.
#[derive(Clone, Debug)]
pub enum Host {
    /// In a network namespace of this name, where it listens on this address.
    Namespace(String, String),
    /// On this node, by TCP only; others are told that it is where the proxy is.
    Behind(Arc<Proxy>),
}

/// How to make a shared buffer.
#[derive(Clone, Debug)]
pub struct Options {
    /// Store.
    pub store: Store,
    /// Capacity in bytes.
    pub capacity: u64,
    /// Address to listen on, without the port.
    pub listen: String,
    /// Seconds that mounts wait for a server, if not the default.
    pub patience_s: Option<u32>,
    /// Servers that the buffer is spread over.
    pub servers: usize,
    /// The buffer is a cache of a directory beside it, with these arguments.
    pub cache: Option<Vec<String>>,
    /// That directory is on a disk, whose positions in a listing stay when names change: those of a tmpfs
    /// do not.
    pub pfs_on_disk: bool,
    /// One for each server, or none: all are on this node.
    pub hosts: Vec<Host>,
}

impl Options {
    /// A buffer of 512 MiB on 127.0.0.1, over one server, or over as many as the environment
    /// variable FOREBAY_TEST_SERVERS says: so every test can be run over several by hand. In the tests of
    /// `cached_shared` and `cached_traps`, and with FOREBAY_TEST_CACHE=1, it is a cache; in those of `cached_shared_striped`
    /// over two servers.
    pub fn new(store: Store) -> Options {
        let is_cache = runs_over_caches();
        Options {
            store,
            capacity: 512 << 20,
            listen: "127.0.0.1".into(),
            patience_s: None,
            servers: crate::env_u64("FOREBAY_TEST_SERVERS", default_servers()) as usize,
            cache: is_cache.then(Vec::new),
            pfs_on_disk: is_cache,
            hosts: Vec::new(),
        }
    }

    /// A cache with these arguments of `forebay buffer create`.
    pub fn cache(store: Store, arguments: &[&str]) -> Options {
        let cache = Some(arguments.iter().map(ToString::to_string).collect());
        Options { cache, pfs_on_disk: false, ..Options::new(store) }
    }

    /// The same over several servers.
    pub fn over(servers: usize, store: Store) -> Options {
        Options { servers, ..Options::new(store) }
    }
}

/// True where the tests of shared buffers are to run over caches: in the second executable that they are built
/// into.
fn runs_over_caches() -> bool {
    let own = own_name();
    ["cached_shared", "cached_traps"].iter().any(|name| own.starts_with(name))
        || crate::env_u64("FOREBAY_TEST_CACHE", 0) > 0
}

fn default_servers() -> u64 {
    if own_name().starts_with("cached_shared_striped") { 2 } else { 1 }
}

fn own_name() -> String {
    let own = std::env::current_exe().unwrap_or_default();
    own.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
