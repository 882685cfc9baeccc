//! What a shared buffer of a test is made of: store, servers and where they run, and how a mount
//! reaches them.

use crate::proxy::Proxy;
use std::path::PathBuf;
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
    /// Servers end what they do not hear of sooner than in production (FOREBAY_TIMING).
    pub timing: Option<&'static str>,
    /// New files are written as logs.
    pub log: bool,
    /// Their readers see all that was written.
    pub strict: bool,
    /// One for each server, or none: all are on this node.
    pub hosts: Vec<Host>,
    /// Where the first server has its flash, if not beside the others.
    pub flash: Option<PathBuf>,
}

impl Options {
    /// A buffer of 512 MiB on 127.0.0.1, over one server, or over as many as the environment
    /// variable FOREBAY_TEST_SERVERS says: so every test can be run over several by hand. In the tests of
    /// the modules `cached_shared` and `cached_traps`, and with FOREBAY_TEST_CACHE=1, it is a cache; in those of
    /// `cached_shared_striped` over two servers.
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
            timing: None,
            log: false,
            strict: false,
            hosts: Vec::new(),
            flash: None,
        }
    }

    /// A cache with these arguments of `forebay buffer create`.
    pub fn cache(store: Store, arguments: &[&str]) -> Options {
        let cache = Some(arguments.iter().map(ToString::to_string).collect());
        Options { cache, pfs_on_disk: false, ..Options::new(store) }
    }

    /// The lease and what follows from it are a third of those of production: for tests that wait until they
    /// are over. A machine under load may leave a process without a processor for a second; these times
    /// forgive that three times over.
    pub fn short_lease(self) -> Options {
        let timing = "lease_ms=4000,server_patience_ms=13000,retry_ms=10000";
        Options { timing: Some(timing), ..self }
    }

    /// The same over several servers.
    pub fn over(servers: usize, store: Store) -> Options {
        Options { servers, ..Options::new(store) }
    }
}

/// True where the tests of shared buffers are to run over caches: in the modules that they are built into a
/// second time.
fn runs_over_caches() -> bool {
    ["cached_shared::", "cached_shared_striped::", "cached_traps::"]
        .iter()
        .any(|module| own_name().starts_with(module))
        || crate::env_u64("FOREBAY_TEST_CACHE", 0) > 0
}

fn default_servers() -> u64 {
    if own_name().starts_with("cached_shared_striped::") { 2 } else { 1 }
}

/// The full name of the test that runs: the test runner gives its thread that name. A thread that a test
/// starts has another one or none, and would silently get a buffer of another kind.
fn own_name() -> String {
    match std::thread::current().name() {
        Some(name) if name != "main" => name.to_string(),
        _ => panic!("make the options of a buffer in the thread of the test itself"),
    }
}
