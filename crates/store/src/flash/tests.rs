//! Stores of every kind on real flash. Those that mount need root and say so if they cannot run.

use super::*;
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

pub(super) fn options(flash: &Path, kind: Option<StoreKind>, capacity_bytes: u64) -> StoreOptions {
    StoreOptions {
        flash: fs::canonicalize(flash).unwrap(),
        key: StoreKey::mount(Path::new("/mnt/of this\ntest")),
        capacity_bytes,
        kind,
        shared: false,
    }
}

/// A test that may not mount fails here: not run is not passed.
pub(super) fn must_be_root() {
    assert!(rustix::process::geteuid().is_root(), "this test needs root");
}

pub(super) fn memory_dir() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("forebay-test-").tempdir_in("/dev/shm").unwrap()
}

/// A flash of 40 GiB that takes a few MiB of the disk: a file system in a sparse file. An image allocates all its blocks, which
/// a small disk does not have for the tests beside it.
pub(super) struct LargeFlash {
    parent: tempfile::TempDir,
}

impl LargeFlash {
    pub(super) fn new() -> LargeFlash {
        LargeFlash::of(&["mkfs.xfs", "-q"], "loop")
    }

    /// Its free blocks are all taken before an allocation fails (XFS looks first).
    pub(super) fn ext4() -> LargeFlash {
        LargeFlash::of(&["mkfs.ext4", "-q"], "loop,noinit_itable")
    }

    fn of(format: &[&str], mount: &str) -> LargeFlash {
        let parent = tempfile::Builder::new().prefix("forebay-test-").tempdir().unwrap();
        let (image, flash) = (parent.path().join("image"), parent.path().join("flash"));
        fs::create_dir(&flash).unwrap();
        fs::File::create(&image).unwrap().set_len(40 << 30).unwrap();
        run(Command::new(format[0]).args(&format[1..]).arg(&image));
        run(Command::new("mount").args(["-o", mount]).args([&image, &flash]));
        LargeFlash { parent }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.parent.path().join("flash")
    }
}

impl Drop for LargeFlash {
    fn drop(&mut self) {
        run(Command::new("umount").arg(self.path()));
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || std::thread::panicking(), "{command:?}: {said}");
}

pub(super) fn available(path: &Path) -> u64 {
    let stat = statvfs(path).unwrap();
    stat.f_bavail * stat.f_frsize
}

#[test]
fn a_directory_store_is_made_found_and_destroyed() {
    let flash = tempfile::tempdir().unwrap();
    let asked = options(flash.path(), Some(StoreKind::Directory), 8 << 20);
    let store = Store::find_or_create(&asked).unwrap();
    assert!(store.created());
    let uuid = store.record().uuid;
    fs::write(store.data_dir().join("object"), b"x").unwrap();
    let busy = Store::find_or_create(&asked).unwrap_err();
    assert_eq!(busy.errno, Some(libc::EBUSY));
    store.release().unwrap();

    let found = Store::find_or_create(&asked).unwrap();
    assert!(!found.created());
    assert_eq!(found.record().uuid, uuid);
    assert_eq!(fs::read(found.data_dir().join("object")).unwrap(), b"x");
    found.destroy().unwrap();
    assert_eq!(fs::read_dir(flash.path()).unwrap().count(), 0);

    // One that somebody has removed is not there any more either.
    let removed = Store::find_or_create(&asked).unwrap();
    fs::remove_dir_all(removed.dir()).unwrap();
    removed.destroy().unwrap();
    assert_eq!(fs::read_dir(flash.path()).unwrap().count(), 0);
}

#[test]
fn another_capacity_is_refused_with_both_figures() {
    let flash = tempfile::tempdir().unwrap();
    let asked = options(flash.path(), Some(StoreKind::Directory), 8 << 20);
    Store::find_or_create(&asked).unwrap().release().unwrap();
    let message =
        Store::find_or_create(&options(flash.path(), None, 9 << 20)).unwrap_err().to_string();
    assert!(message.contains("8388608") && message.contains("9437184"), "{message}");
    Store::find(&asked.flash, &asked.key).unwrap().unwrap().destroy().unwrap();
}

#[test]
fn a_store_that_was_never_ready_is_replaced() {
    let flash = tempfile::tempdir().unwrap();
    let asked = options(flash.path(), Some(StoreKind::Directory), 8 << 20);
    let store = Store::find_or_create(&asked).unwrap();
    let (dir, mut record) = (store.dir().to_path_buf(), store.record());
    drop(store);
    for state in [StoreState::Creating, StoreState::Destroying] {
        fs::write(dir.join("data/half"), b"x").unwrap();
        record.state = state;
        record::save(&dir, &record).unwrap();
        let store = Store::find_or_create(&asked).unwrap();
        assert!(store.created() && !store.data_dir().join("half").exists());
    }
}

#[test]
fn full_flash_is_refused_and_nothing_is_left() {
    must_be_root();
    // It has 2 GiB more, which are kept for its administrator.
    let flash = LargeFlash::ext4();
    let stores = || fs::read_dir(flash.path()).unwrap().filter(is_store).count();
    let free = available(&flash.path());
    for kind in [Some(StoreKind::Directory), None] {
        let asked = options(&flash.path(), kind, free + (1 << 30));
        let least = tests_grow::least_available(&flash.path(), || {
            let error = Store::find_or_create(&asked).unwrap_err();
            assert_eq!(error.errno, Some(libc::ENOSPC), "{error}");
        });
        assert!(least + (64 << 20) > free, "{free} bytes were free, {least} while it was refused");
        assert_eq!(stores(), 0);
    }
}

fn is_store(entry: &std::io::Result<fs::DirEntry>) -> bool {
    entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(place::STORE_PREFIX)
}

#[test]
fn tmpfs_capacity_is_exact_and_outlives_its_process() {
    must_be_root();
    let flash = memory_dir();
    let asked = options(flash.path(), None, 8 << 20);
    let store = Store::find_or_create(&asked).unwrap();
    assert_eq!(store.kind(), StoreKind::Tmpfs);
    assert!(store.volatile());
    assert_eq!(available(&store.data_dir()), 8 << 20);
    let file = fs::File::create(store.data_dir().join("object")).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, 8 << 20).unwrap();
    let more = fs::File::create(store.data_dir().join("more")).unwrap();
    assert!(fallocate(&more, FallocateFlags::empty(), 0, 4096).is_err());
    fs::write(store.meta_dir().join("log"), b"metadata has room of its own").unwrap();
    drop(store);
    let store = Store::find_or_create(&asked).unwrap();
    assert!(!store.created() && store.data_dir().join("object").exists());
    store.destroy().unwrap();
    assert_eq!(fs::read_dir(flash.path()).unwrap().count(), 0);
}

#[test]
fn a_lost_tmpfs_is_told_and_not_replaced() {
    must_be_root();
    let flash = memory_dir();
    let asked = options(flash.path(), None, 8 << 20);
    let store = Store::find_or_create(&asked).unwrap();
    let dir = store.dir().to_path_buf();
    drop(store);
    tmpfs::unmake(&dir).unwrap();
    let message = Store::find_or_create(&asked).unwrap_err().to_string();
    assert!(message.contains("volatile") && message.contains("forebay umount"), "{message}");
    Store::discard(&asked.flash, &asked.key).unwrap();
    assert_eq!(fs::read_dir(flash.path()).unwrap().count(), 0);
}

#[test]
fn tmpfs_buffers_on_one_flash_cannot_promise_more_than_it_has() {
    must_be_root();
    let flash = memory_dir();
    let most = available(flash.path());
    let first = Store::find_or_create(&options(flash.path(), None, most / 2)).unwrap();
    // More than other tests could give back meanwhile.
    let mut second = options(flash.path(), None, most / 4 * 3);
    second.key = StoreKey::mount(Path::new("/mnt/other"));
    let error = Store::find_or_create(&second).unwrap_err();
    assert_eq!(error.errno, Some(libc::ENOSPC), "{error}");
    first.destroy().unwrap();
}

#[test]
fn image_capacity_is_within_three_percent() {
    capacities_are_near(&[300 << 20, 1 << 30, 4 << 30, 16 << 30]);
}

fn capacities_are_near(capacities: &[u64]) {
    must_be_root();
    let flash = LargeFlash::new();
    for &capacity_bytes in capacities {
        let asked = options(&flash.path(), None, capacity_bytes);
        let started = Instant::now();
        let store = Store::find_or_create(&asked).unwrap();
        let took = started.elapsed();
        assert_eq!(store.kind(), StoreKind::LoopXfs, "{:?}", store.notices());
        let meta = fs::File::create(store.meta_dir().join("map")).unwrap();
        fallocate(&meta, FallocateFlags::empty(), 0, store.meta_budget().total_bytes()).unwrap();
        let usable = available(&store.data_dir());
        let error = usable.abs_diff(capacity_bytes) as f64 / capacity_bytes as f64;
        let image = fs::metadata(store.dir().join(image::IMAGE_NAME)).unwrap().len();
        println!("{capacity_bytes}: usable {usable} ({error:.4}), image {image}, {took:?}");
        assert!(error < 0.03, "{usable} of {capacity_bytes}");
        assert!(usable <= capacity_bytes, "more than asked for: {usable} of {capacity_bytes}");
        store.destroy().unwrap();
        assert_eq!(fs::read_dir(flash.path()).unwrap().count(), 0);
    }
}

#[test]
fn an_image_is_found_again_after_release_and_after_a_crash() {
    must_be_root();
    let flash = tempfile::tempdir().unwrap();
    let asked = options(flash.path(), None, 300 << 20);
    let store = Store::find_or_create(&asked).unwrap();
    fs::write(store.data_dir().join("object"), b"x").unwrap();
    // A crash leaves it mounted; a restart of the node or --keep leaves the image alone.
    drop(store);
    for _ in 0..2 {
        let store = Store::find_or_create(&asked).unwrap();
        assert!(!store.created());
        assert_eq!(fs::read(store.data_dir().join("object")).unwrap(), b"x");
        let image = store.dir().join(image::IMAGE_NAME);
        store.release().unwrap();
        assert!(loopdev::find(&image).unwrap().is_none(), "the loop device stayed");
    }
    Store::find(&asked.flash, &asked.key).unwrap().unwrap().destroy().unwrap();
    assert_eq!(fs::read_dir(flash.path()).unwrap().count(), 0);
}

/// 100,000 files in 100 directories.
fn fill_with_objects(data: &Path) {
    for fan in 0..100 {
        let dir = data.join(format!("{fan:02x}"));
        tmpfs::make_private_dir(&dir).unwrap();
        for object in 0..1000 {
            fs::File::create(dir.join(object.to_string())).unwrap();
        }
    }
}

#[test]
fn a_store_of_100000_objects_is_destroyed_within_a_second() {
    let flash = memory_dir();
    let asked = options(flash.path(), Some(StoreKind::Directory), 8 << 20);
    let store = Store::find_or_create(&asked).unwrap();
    fill_with_objects(&store.data_dir());
    let started = Instant::now();
    store.destroy().unwrap();
    let took = started.elapsed();
    // The same files deleted in the plainest way tell how loaded the machine is.
    let plain = flash.path().join("plain");
    fs::create_dir(&plain).unwrap();
    fill_with_objects(&plain);
    let started = Instant::now();
    fs::remove_dir_all(&plain).unwrap();
    let plain = started.elapsed();
    println!("destroyed in {took:?}, plain {plain:?}");
    let limit = 1f64.max(1.5 * plain.as_secs_f64());
    assert!(took.as_secs_f64() < limit, "{took:?}, plain deletion took {plain:?}");
}

/// A small tmpfs of its own as flash, unmounted at the end.
struct SmallFlash(tempfile::TempDir);

impl SmallFlash {
    fn new(size: &std::ffi::CStr) -> SmallFlash {
        let dir = tempfile::tempdir().unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("flash", dir.path(), "tmpfs", flags, size).unwrap();
        SmallFlash(dir)
    }

    /// Takes all that is left.
    fn fill(&self) {
        let big = fs::File::create(self.0.path().join("big")).unwrap();
        fallocate(&big, FallocateFlags::empty(), 0, available(self.0.path())).unwrap();
        assert!(fs::write(self.0.path().join("more"), b"x").is_err(), "it is not full");
        fs::remove_file(self.0.path().join("more")).unwrap();
    }

    fn stores(&self) -> usize {
        fs::read_dir(self.0.path()).unwrap().filter(|e| e.as_ref().unwrap().path().is_dir()).count()
    }
}

impl Drop for SmallFlash {
    fn drop(&mut self) {
        tmpfs::unmount_all(self.0.path()).unwrap();
    }
}

#[test]
fn a_store_on_full_flash_is_destroyed_all_the_same() {
    must_be_root();
    let flash = SmallFlash::new(c"size=64m");
    let asked = options(flash.0.path(), Some(StoreKind::Directory), 8 << 20);
    Store::find_or_create(&asked).unwrap().release().unwrap();
    flash.fill();
    assert!(Store::discard(&asked.flash, &asked.key).unwrap());
    assert_eq!(flash.stores(), 0);
    fs::remove_file(flash.0.path().join("big")).unwrap();

    let store = Store::find_or_create(&asked).unwrap();
    flash.fill();
    store.destroy().unwrap();
    assert_eq!(flash.stores(), 0);
}

#[test]
fn a_plain_directory_needs_room_for_its_log_too() {
    must_be_root();
    let flash = SmallFlash::new(c"size=16m");
    let asked = options(flash.0.path(), Some(StoreKind::Directory), 8 << 20);
    let error = Store::find_or_create(&asked).unwrap_err();
    assert_eq!(error.errno, Some(libc::ENOSPC), "{error}");
    assert!(error.why.contains("for metadata"), "{error}");
    assert_eq!(flash.stores(), 0);
}
