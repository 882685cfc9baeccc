//! Tests of the cache on a real directory as PFS, without a mount: each call is what FUSE would
//! make; an object that an open hands out is written as a kernel would write it.

mod attributes;
mod data;
mod data_servers;
mod faults;
mod fills;
mod forgotten;
mod full;
mod held;
mod kept_sums;
mod kill;
mod lost;
mod model;
mod moves;
mod nameless;
mod powercut;
mod renewed;
mod room;
mod sides;

use super::*;
use forebay_namespace::NamespaceOptions;
use forebay_proto::api::ops::*;
use forebay_proto::api::{CreateArgs, WriteMode};
use forebay_proto::cache::TreeState;
use forebay_proto::ids::ShardId;
use forebay_proto::{Caller, Ino};
use forebay_store::metadata::{LmdbStore, StoreOptions};
use forebay_store::objects::{Accounting, Objects};
use std::os::unix::fs::FileExt;
use std::sync::Weak;
use std::time::Instant;

const MODE: CreateArgs = CreateArgs { mode: 0o644, umask: 0 };
const MIB: u64 = 1 << 20;
/// A block as simulations write them.
const PIECE: usize = 47_008;
/// After so long a drain that was asked for has been tried.
const STUCK: Duration = Duration::from_secs(1);

/// A store's directory, and a PFS.
struct Rig {
    base: Base,
    capacity: u64,
    map_bytes: u64,
    options: CacheOptions,
}

/// Room for metadata.
const MAP_BYTES: u64 = 64 << 20;

/// Where it is; removed by who made it.
enum Base {
    Own(tempfile::TempDir),
    /// With a file system of its own for the data, which goes first.
    OnMount {
        _flash: MountedFlash,
        dir: tempfile::TempDir,
    },
    Of(PathBuf),
}

impl Base {
    fn path(&self) -> &Path {
        match self {
            Base::Own(dir) | Base::OnMount { dir, .. } => dir.path(),
            Base::Of(path) => path,
        }
    }
}

/// A file system in memory for the data of a store, as Forebay mounts it.
struct MountedFlash(PathBuf);

impl MountedFlash {
    /// `options` besides the size of pages.
    fn mount(dir: PathBuf, options: &str) -> MountedFlash {
        let flags = rustix::mount::MountFlags::empty();
        let options = std::ffi::CString::new(format!("{options},mode=700,huge=within_size"));
        rustix::mount::mount("flash", &dir, "tmpfs", flags, options.unwrap().as_c_str()).unwrap();
        MountedFlash(dir)
    }
}

impl Drop for MountedFlash {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

/// A cache that runs on it.
struct Running {
    fs: Arc<CacheFs>,
    names: Arc<Namespace>,
    store: Arc<LmdbStore>,
}

impl Rig {
    fn new(capacity: u64) -> Rig {
        // Memory, where there is some: these tests are about states, not about devices.
        let base = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        for sub in ["store/meta", "store/data", "pfs"] {
            std::fs::create_dir_all(base.path().join(sub)).unwrap();
        }
        let options = CacheOptions {
            pfs: base.path().join("pfs"),
            ttl: Duration::ZERO,
            writes_by_kernel: true,
            // Drained when a test asks.
            policy: When::End.into(),
            verify: Verify::Cache,
            rate_bytes_per_s: 0,
            served: None,
        };
        Rig { base: Base::Own(base), capacity, map_bytes: MAP_BYTES, options }
    }

    /// With flash in large pages.
    fn in_large_pages(capacity: u64) -> Rig {
        let rig = Rig::new(capacity);
        let Base::Own(dir) = rig.base else { return rig };
        let data = dir.path().join("store/data");
        let flash = MountedFlash::mount(data, &format!("nr_inodes=0,size={capacity}"));
        Rig { base: Base::OnMount { _flash: flash, dir }, ..rig }
    }

    /// On what is there.
    fn on(base: &Path, capacity: u64, options: CacheOptions) -> Rig {
        Rig { base: Base::Of(base.to_path_buf()), capacity, map_bytes: MAP_BYTES, options }
    }

    fn pfs(&self, name: &str) -> PathBuf {
        self.base.path().join("pfs").join(name)
    }

    /// A file on the PFS that was written long ago.
    fn put(&self, name: &str, data: &[u8]) {
        std::fs::write(self.pfs(name), data).unwrap();
        let old = std::time::SystemTime::now() - Duration::from_secs(100);
        let file = std::fs::File::options().write(true).open(self.pfs(name)).unwrap();
        file.set_modified(old).unwrap();
        // Its ctime, which nobody can set, has to be old too.
        std::thread::sleep(Duration::from_millis(25));
    }

    fn read_pfs(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.pfs(name)).unwrap()
    }

    fn open(&self) -> Running {
        open_with(self.base.path(), self.capacity, self.map_bytes, self.options.clone())
    }
}

/// Starts a cache on what is in a directory, as after a kill.
fn open_at(base: &Path, capacity: u64, options: CacheOptions) -> Running {
    open_with(base, capacity, MAP_BYTES, options)
}

fn open_with(base: &Path, capacity: u64, map_bytes: u64, options: CacheOptions) -> Running {
    open_shared(&base.join("store"), capacity, map_bytes, options, None)
}

/// The same on a store; with the other servers of the cache, if there are some.
fn open_shared(
    dir: &Path,
    capacity: u64,
    map_bytes: u64,
    options: CacheOptions,
    peers: Option<Arc<dyn Peers>>,
) -> Running {
    open_store(dir, (capacity, map_bytes), options, peers, true)
}

/// The same; not `volatile`: what is synced there survives a power cut.
fn open_store(
    dir: &Path,
    (capacity, map_bytes): (u64, u64),
    options: CacheOptions,
    peers: Option<Arc<dyn Peers>>,
    volatile: bool,
) -> Running {
    let store = LmdbStore::open(StoreOptions {
        dir: dir.join("meta"),
        uuid: [7; 16],
        log_bytes: 8 << 20,
        map_bytes,
        volatile,
        preallocate: false,
    })
    .unwrap();
    let store = Arc::new(store);
    let data = dir.join("data");
    // A file system that was made for it holds the capacity itself.
    let below = rustix::fs::statvfs(&data).unwrap();
    let is_its_own = below.f_blocks * below.f_frsize == capacity;
    let account = (!is_its_own).then(|| Accounting::new(capacity));
    let objects = Objects::open(&data, volatile, true, account).unwrap();
    let names = NamespaceOptions {
        shard: ShardId(0),
        capacity_bytes: capacity,
        volatile,
        root_uid: 0,
        root_gid: 0,
        log: forebay_proto::layout::Logs::Off,
        hold_orphans: false,
        peers: None,
    };
    let (names, _) = Namespace::open(store.clone(), Arc::new(objects), names, true).unwrap();
    let fs = CacheFs::open_told(dir, names.clone(), options, None, peers).unwrap();
    Running { fs, names, store }
}

impl Running {
    /// Ends without writing anything down that a kill would not have left.
    fn crash(self) {
        assert!(self.fs.close(Duration::from_secs(20)), "a thread hangs");
        self.names.close();
        self.store.close().unwrap();
    }

    fn root() -> Caller {
        Caller::root()
    }

    fn lookup(&self, name: &str) -> Result<Ino> {
        let mut at = Ino::ROOT;
        for part in name.split('/') {
            at = self.fs.lookup(&Self::root(), at, part.as_bytes())?.attr.ino;
        }
        Ok(at)
    }

    fn size(&self, name: &str) -> u64 {
        self.fs.getattr(self.lookup(name).unwrap()).unwrap().size_bytes
    }

    /// Opens for writing; created if it is not there.
    fn open(&self, name: &str, flags: i32, want_local: bool) -> Result<Handle<'_>> {
        let opened = match self.lookup(name) {
            Ok(ino) => {
                self.fs.open(&Self::root(), ino, flags as u32, false, want_local).map(|o| (ino, o))
            }
            Err(Errno::ENOENT) if flags & libc::O_CREAT != 0 => self
                .fs
                .create(&Self::root(), Ino::ROOT, name.as_bytes(), MODE, want_local)
                .map(|(entry, opened)| (entry.attr.ino, opened)),
            Err(e) => Err(e),
        }?;
        Ok(Handle { running: self, ino: opened.0, local: opened.1.local })
    }

    fn write(&self, name: &str, offset: u64, data: &[u8]) {
        let handle = self.open(name, libc::O_RDWR | libc::O_CREAT, false).unwrap();
        handle.write(offset, data).unwrap();
    }

    fn read(&self, name: &str) -> Result<Vec<u8>> {
        let handle = self.open(name, libc::O_RDONLY, false)?;
        handle.read_all()
    }

    fn state(&self, path: &str) -> TreeState {
        self.fs.tree_state(&Self::root(), path.as_bytes()).unwrap()
    }

    fn state_of(&self, path: &str) -> Result<forebay_proto::cache::CachedFile> {
        let tree = self.fs.tree_state(&Self::root(), path.as_bytes())?;
        tree.file.ok_or(Errno::ENOENT)
    }

    /// Drains, and waits until all is durable or nothing more is to be expected.
    fn flush(&self, path: &str) -> TreeState {
        self.try_flush(path).unwrap()
    }

    /// The same. ENOENT: neither the PFS has the path nor anything is here for it.
    fn try_flush(&self, path: &str) -> Result<TreeState> {
        let start = Instant::now();
        let until = start + Duration::from_secs(30);
        self.fs.flush(&Self::root(), path.as_bytes())?;
        loop {
            let state = self.fs.tree_state(&Self::root(), path.as_bytes())?;
            let tried = start.elapsed() > STUCK;
            // A conflict waits for a decision, whatever comes.
            let stuck = state.conflicts == state.files
                || (state.conflicts + state.failed == state.files && tried);
            if state.is_durable() || stuck {
                return Ok(state);
            }
            assert!(Instant::now() < until, "not drained: {state:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// An open file.
struct Handle<'a> {
    running: &'a Running,
    ino: Ino,
    local: Option<Arc<std::fs::File>>,
}

impl Handle<'_> {
    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        if let Some(local) = &self.local {
            return local.write_all_at(data, offset).map_err(Into::into);
        }
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            done += self.running.fs.write(self.ino, at, &data[done..], WriteMode::default())?;
        }
        Ok(())
    }

    /// One write after the other, as programs do.
    fn write_in_pieces(&self, offset: u64, data: &[u8], piece_bytes: usize) -> Result<()> {
        let mut at = offset;
        for piece in data.chunks(piece_bytes) {
            self.write(at, piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn read_all(&self) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        let mut buffer = vec![0; 300_000];
        loop {
            let got = match &self.local {
                Some(local) => local.read_at(&mut buffer, all.len() as u64)?,
                None => self.running.fs.read(self.ino, all.len() as u64, &mut buffer)?,
            };
            if got == 0 {
                return Ok(all);
            }
            all.extend_from_slice(&buffer[..got]);
        }
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        // A kernel has closed the data before it tells of the close; else it would count as mapped.
        let is_local = self.local.take().is_some();
        self.running.fs.release(self.ino, is_local);
    }
}

/// Bytes that tell where they are from.
fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; length];
    for chunk in bytes.chunks_mut(8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        chunk.copy_from_slice(&x.to_le_bytes()[..chunk.len()]);
    }
    bytes
}
