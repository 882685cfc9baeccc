//! Stores that grow: what they have after it, and after a kill at any point of it.

use super::tests::{LargeFlash, available, memory_dir, must_be_root, options};
use super::*;
use forebay_failpoint::kill::run_killed;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: u64 = 1 << 20;
const CHILD_FLASH: &str = "FOREBAY_TEST_GROW_FLASH";
const CHILD_KIND: &str = "FOREBAY_TEST_GROW_KIND";

fn refuses(store: &Store, capacity_bytes: u64, errno: i32) {
    let had = store.capacity_bytes();
    let error = store.grow(capacity_bytes).unwrap_err();
    assert_eq!(error.errno, Some(errno), "{error}");
    assert_eq!(store.capacity_bytes(), had);
    assert_eq!(record::load(store.dir()).unwrap().unwrap(), store.record());
}

/// Beyond the file system's own size.
fn too_much(flash: &Path) -> u64 {
    available(flash) + (64 << 30)
}

#[test]
fn a_directory_store_grows_on_record() {
    let flash = tempfile::tempdir().unwrap();
    let mut asked = options(flash.path(), Some(StoreKind::Directory), 8 * MIB);
    let store = Store::find_or_create(&asked).unwrap();
    assert_eq!(store.grow(20 * MIB).unwrap(), 20 * MIB);
    assert_eq!(store.grow(20 * MIB).unwrap(), 20 * MIB, "twice is once");
    refuses(&store, 8 * MIB, libc::EINVAL);
    refuses(&store, too_much(flash.path()), libc::ENOSPC);
    store.release().unwrap();
    asked.capacity_bytes = 20 * MIB;
    Store::find_or_create(&asked).unwrap().destroy().unwrap();
}

#[test]
fn a_tmpfs_grows_exactly_and_keeps_what_is_in_it() {
    must_be_root();
    let flash = memory_dir();
    let store = Store::find_or_create(&options(flash.path(), None, 8 * MIB)).unwrap();
    let path = store.data_dir().join("object");
    fallocate(fs::File::create(&path).unwrap(), FallocateFlags::empty(), 0, 8 * MIB).unwrap();
    fs::write(&path, b"kept").unwrap();
    assert_eq!(store.grow(20 * MIB).unwrap(), 20 * MIB);
    assert_eq!(fs::read(&path).unwrap(), b"kept");
    fs::remove_file(&path).unwrap();
    assert_eq!(available(&store.data_dir()), 20 * MIB);
    refuses(&store, too_much(flash.path()), libc::ENOSPC);
    assert_eq!(available(&store.data_dir()), 20 * MIB);
    store.destroy().unwrap();
    assert_eq!(fs::read_dir(flash.path()).unwrap().count(), 0);
}

/// The capacity is there, within 3 %, and no more than it.
fn image_has(store: &Store, capacity_bytes: u64) {
    assert_eq!(store.capacity_bytes(), capacity_bytes);
    let usable = available(&store.data_dir());
    let error = usable.abs_diff(capacity_bytes) as f64 / capacity_bytes as f64;
    println!("{capacity_bytes}: usable {usable} ({error:.4})");
    assert!(error < 0.03, "{usable} of {capacity_bytes}");
}

fn fill_metadata(store: &Store) {
    let meta = fs::File::create(store.meta_dir().join("map")).unwrap();
    fallocate(&meta, FallocateFlags::empty(), 0, store.meta_budget().total_bytes()).unwrap();
}

#[test]
fn an_image_grows_within_three_percent_and_is_found_again() {
    must_be_root();
    let flash = LargeFlash::new();
    let mut asked = options(&flash.path(), None, 300 * MIB);
    let mut store = Store::find_or_create(&asked).unwrap();
    fill_metadata(&store);
    fs::write(store.data_dir().join("object"), b"kept").unwrap();
    for capacity_bytes in [301 * MIB, 1 << 30, 16 << 30] {
        assert_eq!(store.grow(capacity_bytes).unwrap(), capacity_bytes);
        image_has(&store, capacity_bytes);
        assert!(available(&store.data_dir()) <= capacity_bytes, "more than was asked for");
        store.release().unwrap();
        asked.capacity_bytes = capacity_bytes;
        store = Store::find_or_create(&asked).unwrap();
        assert_eq!(fs::read(store.data_dir().join("object")).unwrap(), b"kept");
        image_has(&store, capacity_bytes);
    }
    store.destroy().unwrap();
    assert_eq!(fs::read_dir(flash.path()).unwrap().count(), 0);
}

/// The least that was free on flash while something was done.
pub(super) fn least_available(flash: &Path, during: impl FnOnce()) -> u64 {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut least = available(flash);
            while !ended.load(Ordering::Acquire) {
                least = least.min(available(flash));
            }
            least
        });
        during();
        ended.store(true, Ordering::Release);
        watch.join().unwrap()
    })
}

#[test]
fn an_image_that_cannot_grow_takes_nothing() {
    must_be_root();
    let flash = LargeFlash::ext4();
    let store = Store::find_or_create(&options(&flash.path(), None, 300 * MIB)).unwrap();
    fill_metadata(&store);
    let image = store.dir().join(image::IMAGE_NAME);
    let before = fs::metadata(&image).unwrap().len();
    let free = available(&flash.path());
    let least = least_available(&flash.path(), || {
        refuses(&store, too_much(&flash.path()), libc::ENOSPC);
    });
    assert!(least > free - 16 * MIB, "{free} bytes were free, {least} while it was refused");
    assert_eq!(fs::metadata(&image).unwrap().len(), before);
    image_has(&store, 300 * MIB);
    assert_eq!(store.grow(400 * MIB).unwrap(), 400 * MIB);
    image_has(&store, 400 * MIB);
    store.destroy().unwrap();
}

/// Not a test by itself: the process that is killed while its store grows.
#[test]
fn child_that_grows() {
    let Ok(flash) = std::env::var(CHILD_FLASH) else { return };
    let kind = serde_json::from_str(&std::env::var(CHILD_KIND).unwrap()).unwrap();
    let asked = options(Path::new(&flash), Some(kind), 300 * MIB);
    let store = Store::find(&asked.flash, &asked.key).unwrap().unwrap();
    store.grow(400 * MIB).unwrap();
}

fn killed_while_growing(kind: StoreKind, flash: &Path) {
    let asked = options(flash, Some(kind), 300 * MIB);
    let kind_text = serde_json::to_string(&kind).unwrap();
    let variables = [(CHILD_FLASH, flash.to_str().unwrap()), (CHILD_KIND, &kind_text)];
    let (mut grown, mut at) = (0, 1);
    loop {
        let store = Store::find_or_create(&asked).unwrap();
        if kind == StoreKind::LoopXfs {
            fill_metadata(&store);
        }
        fs::write(store.data_dir().join("object"), b"kept").unwrap();
        // The lock only: as a server leaves it that is killed.
        drop(store);
        let name = "flash::tests_grow::child_that_grows";
        let killed = run_killed(name, &variables, at);
        let store = Store::find(&asked.flash, &asked.key).unwrap().unwrap();
        println!("{kind:?} {killed:?}: {}", store.capacity_bytes());
        assert_eq!(fs::read(store.data_dir().join("object")).unwrap(), b"kept");
        assert_eq!(store.record().growing_to_bytes, None);
        assert!([300 * MIB, 400 * MIB].contains(&store.capacity_bytes()), "{killed:?}");
        grown += u64::from(store.capacity_bytes() == 400 * MIB);
        if kind != StoreKind::Directory {
            fs::remove_file(store.data_dir().join("object")).unwrap();
            image_has(&store, store.capacity_bytes());
        }
        store.destroy().unwrap();
        if killed.is_none() {
            break;
        }
        at += 1;
    }
    assert!(at > 3 && grown > 1 && grown < at, "{at} kills, {grown} times grown");
}

#[test]
fn a_directory_killed_while_it_grows_has_the_old_or_the_new_capacity() {
    killed_while_growing(StoreKind::Directory, tempfile::tempdir().unwrap().path());
}

#[test]
fn a_tmpfs_killed_while_it_grows_has_the_old_or_the_new_capacity() {
    must_be_root();
    killed_while_growing(StoreKind::Tmpfs, memory_dir().path());
}

#[test]
fn an_image_killed_while_it_grows_has_the_old_or_the_new_capacity() {
    must_be_root();
    killed_while_growing(StoreKind::LoopXfs, tempfile::tempdir().unwrap().path());
}
