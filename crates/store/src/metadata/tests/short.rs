//! A store on a file system that others fill: it waits for room, says so, and loses nothing.

use super::*;
use crate::metadata::files::LOG_MIN_BYTES;
use forebay_proto::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::path::PathBuf;

/// A small file system in memory.
struct Small(PathBuf);

impl Small {
    fn new(dir: &Path, size: &str) -> Small {
        let options = std::ffi::CString::new(format!("size={size},mode=700")).unwrap();
        mount("small", dir, "tmpfs", MountFlags::empty(), Some(options.as_c_str())).unwrap();
        Small(dir.to_path_buf())
    }

    fn fill(&self) {
        let mut file = std::fs::File::create(self.0.join("others")).unwrap();
        while std::io::Write::write_all(&mut file, &[7; 4096]).is_ok() {}
    }

    /// Gives a part back.
    fn leave(&self, bytes: u64) {
        let file = std::fs::File::options().write(true).open(self.0.join("others")).unwrap();
        let len = file.metadata().unwrap().len();
        file.set_len(len - bytes).unwrap();
    }

    fn give_back(&self) {
        std::fs::remove_file(self.0.join("others")).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        unmount(&self.0, UnmountFlags::DETACH).unwrap();
    }
}

fn wait_for_room(store: &LmdbStore) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while let Err(error) = store.checkpoint() {
        assert_eq!(error, Errno::ENOSPC);
        assert!(std::time::Instant::now() < until, "it does not see the room");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

fn goes_on_when_there_is_room_again(volatile: bool) {
    let dir = tempfile::tempdir().unwrap();
    let small = Small::new(dir.path(), "48m");
    let meta = dir.path().join("meta");
    std::fs::create_dir(&meta).unwrap();
    let options = StoreOptions { log_bytes: LOG_MIN_BYTES, volatile, ..options(&meta) };
    let store = LmdbStore::open(options.clone()).unwrap();
    store.commit(batch(create(Ino(1), 0))).unwrap();
    store.checkpoint().unwrap();
    small.fill();
    // The log has its room: changes are taken until it is full, then refused, and nobody hangs.
    let full = (1..).find_map(|n| store.commit(batch(create(Ino(1), n))).err().map(|e| (n, e)));
    let (count, error) = full.unwrap();
    assert_eq!((error, store.checkpoint()), (Errno::ENOSPC, Err(Errno::ENOSPC)));
    assert!(count > 1_000, "{count} changes fit into the log");
    assert_eq!(store.commit(batch(create(Ino(1), count))), Err(Errno::ENOSPC));
    assert_eq!(store.fault(), None, "it is no fault of the store");
    assert!(store.inode(Ino(100 + count - 1)).unwrap().is_some(), "what was taken is there");
    small.give_back();
    wait_for_room(&store);
    store.commit(batch(create(Ino(1), count))).unwrap();
    // The same, ended while it is short: the next start has all.
    small.fill();
    let more = (count + 1..).find(|n| store.commit(batch(create(Ino(1), *n))).is_err()).unwrap();
    assert_eq!(store.close(), Err(Errno::ENOSPC));
    drop(store);
    small.give_back();
    let again = LmdbStore::open(options).unwrap();
    assert!((0..more).all(|n| again.inode(Ino(100 + n)).unwrap().is_some()));
    assert!(again.inode(Ino(100 + more)).unwrap().is_none());
    again.close().unwrap();
    drop(small);
}

/// LMDB answers EIO, not ENOSPC, where only a part of a write has room.
#[test]
fn a_store_whose_write_has_room_for_a_part_of_it_goes_on_when_there_is_more() {
    let dir = tempfile::tempdir().unwrap();
    let small = Small::new(dir.path(), "48m");
    let meta = dir.path().join("meta");
    std::fs::create_dir(&meta).unwrap();
    let options = StoreOptions { log_bytes: LOG_MIN_BYTES, volatile: true, ..options(&meta) };
    let store = LmdbStore::open(options).unwrap();
    let mut count = 0;
    for pages in [1, 2, 3, 5, 9, 17] {
        small.fill();
        small.leave(pages * 4096);
        // Neighbours in the database, written in one go.
        for _ in 0..500 {
            store.commit(batch(create(Ino(1), count))).unwrap();
            count += 1;
        }
        assert_eq!(store.checkpoint(), Err(Errno::ENOSPC), "{pages} pages are left");
        assert_eq!(store.fault(), None, "{pages} pages are left");
        small.give_back();
        wait_for_room(&store);
    }
    assert!((0..count).all(|n| store.inode(Ino(100 + n)).unwrap().is_some()));
    store.close().unwrap();
    drop(store);
    drop(small);
}

#[test]
fn a_store_that_others_leave_no_room_in_memory_goes_on_when_there_is_some() {
    goes_on_when_there_is_room_again(true);
}

#[test]
fn a_store_that_others_leave_no_room_on_a_device_goes_on_when_there_is_some() {
    goes_on_when_there_is_room_again(false);
}
