//! Where the traps are laid: two mounts of a buffer on one server or two, and names that lie on the
//! servers that a test wants. Used by every module of this suite.
//!
//! Invariant: on several servers [`Two::files`] has a file in a directory of the same server, one in a
//! directory of the other, each both ways, and one striped over both; that they lie so is asserted.

use forebay_tests::served::{Options, Served, Store, Via};
use forebay_tests::sys;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Bits of an inode number below its shard (`proto::ids`).
const SHARD_SHIFT: u32 = 48;
/// Names tried at once until one lies where it is wanted.
const MAX_TRIES: u32 = 64;
/// How long the servers pass one over that did not answer.
const PASSED_OVER: Duration = Duration::from_secs(2);

/// One mount that acts and one that looks.
pub struct Two<'a> {
    pub served: &'a Served,
    /// Who acts.
    pub a: usize,
    /// Who looks.
    pub b: usize,
    /// Directory of this turn.
    top: String,
    /// A directory on each server whose new files go to all servers in turn.
    dirs: Vec<String>,
}

/// Runs a trap with either mount acting.
pub fn run(servers: usize, trap: fn(&Two)) {
    let options = Options::over(servers, Store::Tmpfs);
    if options.cache.is_some() && servers > 1 {
        // A cache with one namespace is on one server.
        return;
    }
    let served = Served::with(options, &[Via::Local, Via::Tcp]);
    for (a, b) in [(0, 1), (1, 0)] {
        trap(&Two::new(&served, a, b));
    }
}

/// The server that has the inode.
pub fn shard(path: impl AsRef<[u8]>) -> u64 {
    sys::lstat(path).unwrap().ino >> SHARD_SHIFT
}

impl<'a> Two<'a> {
    fn new(served: &'a Served, a: usize, b: usize) -> Two<'a> {
        let top = format!("by{a}");
        let mut two = Two { served, a, b, top, dirs: Vec::new() };
        sys::mkdir(served.path(a, &two.top), 0o777).unwrap();
        sys::chmod(served.path(a, &two.top), 0o777).unwrap();
        for wanted in 0..served.server_count() as u64 {
            let name = two.found(|n| format!("d{n}"), wanted, |path| sys::mkdir(path, 0o777));
            let path = two.here(&name);
            sys::chmod(&path, 0o777).unwrap();
            two.place(&name, b"spread");
            two.dirs.push(name);
        }
        if served.server_count() > 1 {
            sys::mkdir(two.here("striped"), 0o777).unwrap();
            sys::chmod(two.here("striped"), 0o777).unwrap();
            sys::setxattr(two.here("striped"), "user.forebay.stripe_count", b"all", 0).unwrap();
        }
        two
    }

    /// The first of the names whose inode is on the wanted server; `make` makes it.
    fn found(
        &self,
        name: impl Fn(u32) -> String,
        wanted: u64,
        make: impl Fn(&[u8]) -> sys::Sys<()>,
    ) -> String {
        let start = Instant::now();
        for n in 0.. {
            if n > MAX_TRIES {
                // A server that did not answer in time, on a busy machine, is passed over for two seconds.
                assert!(start.elapsed() < PASSED_OVER * 5, "no name lies on server {wanted}");
                std::thread::sleep(PASSED_OVER / 20);
            }
            let name = name(n);
            let path = self.here(&name);
            if sys::lstat(&path).is_ok() {
                continue;
            }
            make(&path).unwrap();
            if shard(&path) == wanted {
                return name;
            }
            sys::rmdir(&path).or_else(|_| sys::unlink(&path)).unwrap();
        }
        panic!("no name lies on server {wanted}");
    }

    /// Where new files of a directory go. A cache's are all at one server.
    pub fn place(&self, dir: &str, how: &[u8]) {
        if !self.served.is_cache() {
            sys::setxattr(self.here(dir), "user.forebay.placement", how, 0).unwrap();
        }
    }

    /// A path on the mount that acts.
    pub fn here(&self, name: impl AsRef<[u8]>) -> Vec<u8> {
        self.at(self.a, name)
    }

    /// A path on the mount that looks.
    pub fn there(&self, name: impl AsRef<[u8]>) -> Vec<u8> {
        self.at(self.b, name)
    }

    /// A path on one of both.
    pub fn at(&self, mount: usize, name: impl AsRef<[u8]>) -> Vec<u8> {
        let mut path = self.served.path(mount, &self.top);
        path.push(b'/');
        path.extend_from_slice(name.as_ref());
        path
    }

    /// The same for the standard library.
    pub fn here_path(&self, name: &str) -> PathBuf {
        sys::path(self.here(name))
    }

    /// The same on the mount that looks.
    pub fn there_path(&self, name: &str) -> PathBuf {
        sys::path(self.there(name))
    }

    /// A directory on each server.
    pub fn dirs(&self) -> &[String] {
        &self.dirs
    }

    /// Each pair of these directories.
    pub fn dir_pairs(&self) -> Vec<(String, String)> {
        let pairs =
            |x: &String| self.dirs.iter().map(|y| (x.clone(), y.clone())).collect::<Vec<_>>();
        self.dirs.iter().flat_map(pairs).collect()
    }

    /// New empty files that begin with this name, one for each place that there is (see above).
    pub fn files(&self, stem: &str) -> Vec<String> {
        let mut all = Vec::new();
        for dir in &self.dirs {
            for wanted in 0..self.served.server_count() as u64 {
                all.push(self.file_on(dir, stem, wanted));
            }
        }
        if self.served.server_count() > 1 {
            let name = format!("striped/{stem}");
            self.touch(&self.here(&name)).unwrap();
            all.push(name);
        }
        all
    }

    fn touch(&self, path: &[u8]) -> sys::Sys<()> {
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
        sys::open(path, flags, 0o644).map(drop)
    }

    /// A new empty file in a directory, its inode on the wanted server.
    pub fn file_on(&self, dir: &str, stem: &str, wanted: u64) -> String {
        self.found(|n| format!("{dir}/{stem}.{n}"), wanted, |path| self.touch(path))
    }

    /// A new directory in a directory, on the wanted server.
    pub fn dir_on(&self, dir: &str, stem: &str, wanted: u64) -> String {
        self.found(|n| format!("{dir}/{stem}.{n}"), wanted, |path| sys::mkdir(path, 0o777))
    }

    /// The numbers of the servers.
    pub fn servers(&self) -> std::ops::Range<u64> {
        0..self.served.server_count() as u64
    }

    /// Writes a file as a whole on the mount that acts.
    pub fn put(&self, name: &str, content: &[u8]) {
        std::fs::write(self.here_path(name), content).unwrap();
    }

    /// What the mount that looks reads of it.
    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.there_path(name)).unwrap()
    }
}
