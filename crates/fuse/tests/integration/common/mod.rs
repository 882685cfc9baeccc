//! What the tests of real mounts share: a mount of a [`memory::MemoryFs`] in a directory of its
//! own, unmounted when it goes out of scope.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

pub mod memory;

use forebay_fuse::{FastPath, MountOptions, Session};
use memory::MemoryFs;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A mount and what it stands on.
pub struct Mount {
    pub session: Option<Session>,
    pub fs: Arc<MemoryFs>,
    pub path: PathBuf,
    _dir: tempfile::TempDir,
}

/// Where stores are made: memory, so that the disk does not decide what a test takes.
fn scratch() -> tempfile::TempDir {
    let base = if std::path::Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
    tempfile::Builder::new().prefix("forebay-fuse-").tempdir_in(base).unwrap()
}

impl Mount {
    /// With the fast path, if this kernel and user have it.
    pub fn new() -> Mount {
        Mount::with(|_| {})
    }

    /// Without the fast path.
    pub fn served() -> Mount {
        Mount::with(|o| o.fast_path = false)
    }

    pub fn with(change: impl FnOnce(&mut MountOptions)) -> Mount {
        Mount::of(|_| {}, change)
    }

    pub fn of(
        change_fs: impl FnOnce(&mut MemoryFs),
        change: impl FnOnce(&mut MountOptions),
    ) -> Mount {
        let dir = scratch();
        let (store, path) = (dir.path().join("store"), dir.path().join("mnt"));
        std::fs::create_dir(&store).unwrap();
        std::fs::create_dir(&path).unwrap();
        let mut fs = MemoryFs::new(&store);
        change_fs(&mut fs);
        let fs = Arc::new(fs);
        let mut options = MountOptions {
            source: format!("forebay:{}", store.display()).into(),
            probe: Some(fs.probe()),
            ..MountOptions::default()
        };
        change(&mut options);
        let session = Session::mount(fs.clone(), &path, options).expect("mounting needs /dev/fuse");
        Mount { session: Some(session), fs, path, _dir: dir }
    }

    pub fn session(&self) -> &Session {
        self.session.as_ref().unwrap()
    }

    /// Fails where the fast path must work: as root on Linux 6.9 and newer.
    pub fn must_have_fast_path(&self) {
        assert_eq!(self.session().fast_path(), FastPath::On, "these tests run as root on 6.9+");
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub fn counts(&self) -> HashMap<&'static str, u64> {
        self.session().request_counts().into_iter().collect()
    }

    pub fn total(&self) -> u64 {
        self.counts().values().sum()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        let end = Instant::now() + Duration::from_secs(10);
        while let Err(e) = session.unmount(false) {
            if Instant::now() > end || std::thread::panicking() {
                eprintln!("{e}");
                let _ = session.unmount(true);
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        session.wait();
    }
}

/// Waits until something is true; fails after 10 s.
pub fn eventually(what: &str, mut test: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !test() {
        assert!(Instant::now() < end, "not within 10 s: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
