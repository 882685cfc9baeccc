//! Mapped files on a plain file system: what is made, what grows, what is refused, and what processes see of each other.
#![allow(clippy::unwrap_used)]

use forebay_map::root::{HEADER_BYTES, ROOT_MAX_BYTES};
use forebay_map::{Grade, Map, Options};
use std::fs;
use std::path::PathBuf;

const ROOT: Options = Options { read_only: false, root: true };
const READ: Options = Options { read_only: true, root: false };

fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("file");
    (dir, path)
}

fn refused(result: Result<Map, forebay_proto::control::ControlError>) -> i32 {
    result.err().unwrap().errno.unwrap()
}

#[test]
fn a_file_is_made_grows_and_never_shrinks() {
    let (_dir, path) = place();
    assert_eq!(refused(Map::open(&path, 0, Options::default())), libc::ENOENT);
    assert_eq!(refused(Map::open(&path, 9, READ)), libc::ENOENT);
    let map = Map::open(&path, 10, Options::default()).unwrap();
    map.store(2, b"stored").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"\0\0stored\0\0", "it is the file's at once");
    assert_eq!(map.persist(0, 10).unwrap(), Grade::Written, "memory does not survive a power cut");
    assert!(map.store(5, b"behind").is_err() && map.persist(5, 6).is_err());
    drop(map);
    drop(Map::open(&path, 100_000, Options::default()).unwrap());
    assert_eq!(fs::metadata(&path).unwrap().len(), 100_000);
    let map = Map::open(&path, 4, Options::default()).unwrap();
    assert_eq!((map.size_bytes, fs::metadata(&path).unwrap().len()), (4, 100_000));
    let map = Map::open(&path, 0, READ).unwrap();
    let mut bytes = [0; 6];
    map.load(2, &mut bytes).unwrap();
    assert_eq!((&bytes, map.size_bytes), (b"stored", 100_000));
    for error in [map.store(0, b"x").err(), map.persist(0, 1).err()] {
        assert_eq!(error.unwrap().raw_os_error(), Some(libc::EACCES));
    }
}

#[test]
fn a_root_is_there_again_and_other_files_have_none() {
    let (dir, path) = place();
    let map = Map::open(&path, 5_000, ROOT).unwrap();
    assert_eq!(map.root().unwrap(), None);
    map.store(0, b"data").unwrap();
    map.commit(b"first", false).unwrap();
    map.commit(&[7; ROOT_MAX_BYTES], true).unwrap();
    let long = map.commit(&[7; ROOT_MAX_BYTES + 1], true).err().unwrap();
    assert_eq!(long.raw_os_error(), Some(libc::EMSGSIZE));
    drop(map);
    assert_eq!(fs::metadata(&path).unwrap().len() as usize, HEADER_BYTES + 5_000);
    for options in [ROOT, Options { read_only: true, ..ROOT }] {
        let map = Map::open(&path, 0, options).unwrap();
        assert_eq!(map.root().unwrap(), Some(vec![7; ROOT_MAX_BYTES]));
        assert_eq!(map.size_bytes, 5_000);
    }
    let plain = Map::open(&path, 0, Options::default()).unwrap();
    assert_eq!(plain.commit(b"x", true).err().unwrap().raw_os_error(), Some(libc::EINVAL));

    let other = dir.path().join("other");
    fs::write(&other, vec![b'x'; 50_000]).unwrap();
    assert_eq!(refused(Map::open(&other, 50_000, ROOT)), libc::EINVAL);
    assert!(fs::read(&other).unwrap().starts_with(&[b'x'; 50_000]), "nothing of it is lost");
    // What a kill left of one that was being made has no root yet.
    let begun = dir.path().join("begun");
    fs::write(&begun, vec![0; HEADER_BYTES + 10]).unwrap();
    assert_eq!(Map::open(&begun, 10, ROOT).unwrap().root().unwrap(), None);
}

#[test]
fn what_cannot_be_mapped_is_refused_with_a_reason() {
    let (dir, path) = place();
    fs::write(&path, "").unwrap();
    assert_eq!(refused(Map::open(&path, 0, Options::default())), libc::EINVAL);
    assert_eq!(refused(Map::open(dir.path(), 10, Options::default())), libc::EISDIR);
    assert_eq!(refused(Map::open(dir.path(), 0, READ)), libc::EINVAL);
    let no_room = Map::open(&path, 1 << 50, Options::default()).err().unwrap();
    assert_eq!(no_room.errno, Some(libc::ENOSPC), "{no_room}");
    assert!(no_room.to_string().contains("room for all of it"), "{no_room}");
    assert_eq!(refused(Map::open(&path, u64::MAX - 5, Options::default())), libc::EINVAL);
}

#[test]
fn copies_of_the_root_that_are_both_damaged_are_told() {
    let (_dir, path) = place();
    let map = Map::open(&path, 10, ROOT).unwrap();
    map.commit(b"one", true).unwrap();
    map.commit(b"two", true).unwrap();
    drop(map);
    let mut bytes = fs::read(&path).unwrap();
    bytes[4096 + 17] ^= 1;
    bytes[8192 + 17] ^= 1;
    fs::write(&path, &bytes).unwrap();
    assert_eq!(refused(Map::open(&path, 0, ROOT)), libc::EIO);
}
