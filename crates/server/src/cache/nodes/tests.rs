//! The table of nodes by itself: names, numbers, and what the next server knows.

use super::*;

fn key(ino: u64) -> Key {
    Key { ino, ..Key::default() }
}

#[test]
fn paths_follow_renames_of_parents_and_links() {
    let nodes = Nodes::new(key(100));
    let who = Who::default();
    let dir = nodes.seen(Ino::ROOT, b"d", key(7), FileKind::Dir, &who, 1);
    let file = nodes.seen(dir, b"f", key(8), FileKind::File, &who, 1);
    assert_eq!((dir, file), (Ino(7), Ino(8)));
    assert_eq!(nodes.path(file), Ok(b"d/f".to_vec()));
    nodes.seen(Ino::ROOT, b"e", key(7), FileKind::Dir, &who, 0);
    assert_eq!(nodes.path(file), Ok(b"e/f".to_vec()));
    nodes.seen(Ino::ROOT, b"link", key(8), FileKind::File, &who, 0);
    assert_eq!(nodes.paths(file), [b"link".to_vec(), b"e/f".to_vec()]);
    nodes.unname(file, Ino::ROOT, b"link");
    assert_eq!(nodes.path(file), Ok(b"e/f".to_vec()));
    nodes.unname(file, dir, b"f");
    assert_eq!(nodes.path(file), Err(Errno::ENOENT));
}

#[test]
fn what_mounts_may_hold_is_known_to_the_next_server() {
    let dir = tempfile::tempdir().unwrap();
    let who = Who::default();
    let shard = ShardId(3);
    let open = || {
        let nodes = Nodes::new(key(100));
        nodes.persist(dir.path(), shard).unwrap();
        nodes
    };
    let nodes = open();
    let sub = nodes.seen(Ino::ROOT, b"d", key(7), FileKind::Dir, &who, 1);
    let file = nodes.seen(sub, b"f", key(8), FileKind::File, &who, 1);
    let odd = nodes.seen(sub, b"odd", Key { dev: 9, ..key(8) }, FileKind::File, &who, 1);
    assert_eq!((sub, file), (Ino::new(shard, 7), Ino::new(shard, 8)));
    // A rename, a drain that put another inode there, a file that is gone and its number free.
    nodes.seen(Ino::ROOT, b"g", key(8), FileKind::File, &who, 0);
    nodes.unname(file, sub, b"f");
    nodes.rekey(file, key(18));
    let gone = nodes.seen(Ino::ROOT, b"old", key(30), FileKind::File, &who, 1);
    nodes.unname(gone, Ino::ROOT, b"old");
    nodes.forget(gone, 1);
    let young = Key { born_ns: 4, ..key(30) };
    assert_eq!(nodes.seen(Ino::ROOT, b"new", young, FileKind::File, &who, 1), gone);
    drop(nodes);

    // As the next one reads it, and as the one after it does, which reads it written anew.
    for _ in 0..2 {
        let next = open();
        assert_eq!(next.path(file), Ok(b"g".to_vec()));
        assert_eq!(next.get(file).unwrap().key, key(18));
        assert_eq!(next.path(odd), Ok(b"d/odd".to_vec()));
        assert_eq!(next.get(gone).unwrap().key, young);
        let another = Key { dev: 5, ..key(8) };
        let fresh = next.seen(Ino::ROOT, b"x", another, FileKind::File, &who, 1);
        assert!(fresh != odd && fresh.shard() == shard);
        next.unname(fresh, Ino::ROOT, b"x");
        next.forget(fresh, 1);
        assert!(next.reference(file) && !next.reference(Ino(77)));
        next.end_restoring(&[]);
        assert!(next.get(file).is_ok(), "it is held");
        assert!(next.get(odd).is_err(), "nobody came back for it");
        // For the next turn: known again.
        next.seen(Ino::ROOT, b"d", key(7), FileKind::Dir, &who, 1);
        next.seen(sub, b"odd", Key { dev: 9, ..key(8) }, FileKind::File, &who, 1);
        let again = next.number(Key { dev: 9, ..key(8) }).unwrap();
        if again != odd {
            break;
        }
        next.seen(Ino::ROOT, b"new", young, FileKind::File, &who, 1);
    }
}

#[test]
fn a_rename_that_a_kill_cut_is_known_to_the_next_server() {
    let dir = tempfile::tempdir().unwrap();
    let who = Who::default();
    let open = || {
        let nodes = Nodes::new(key(100));
        nodes.persist(dir.path(), ShardId(0)).unwrap();
        nodes
    };
    let nodes = open();
    let sub = nodes.seen(Ino::ROOT, b"d", key(7), FileKind::Dir, &who, 1);
    let done = nodes.seen(sub, b"f", key(8), FileKind::File, &who, 1);
    nodes.moving(done, sub, b"g");
    nodes.name(done, sub, b"g");
    nodes.unname(done, sub, b"f");
    nodes.moving(sub, Ino::ROOT, b"e");
    drop(nodes);
    let next = open();
    let cut: Vec<_> = next.moved();
    assert_eq!(cut, [(sub, Ino::ROOT, b"e".to_vec().into_boxed_slice(), key(7))]);
    assert_eq!(next.path(done), Ok(b"d/g".to_vec()), "as before, until it is looked");
    next.name(sub, Ino::ROOT, b"e");
    assert_eq!(next.path(done), Ok(b"e/g".to_vec()));
    assert!(next.moved().is_empty());
    next.end_restoring(&[forebay_proto::net::session::ClientId(5)]);
    assert_eq!(next.path(done), Ok(b"e/g".to_vec()), "a mount may still come back for it");
    assert!(next.reference(done));
    next.is_back(forebay_proto::net::session::ClientId(5));
    next.forget(done, 1);
    assert!(next.get(done).is_err() && next.get(sub).is_err());
}

#[test]
fn a_directory_whose_number_another_one_got_keeps_what_is_below_it() {
    let dir = tempfile::tempdir().unwrap();
    let who = Who::default();
    let young = Key { born_ns: 9, ..key(7) };
    let nodes = Nodes::new(key(100));
    nodes.persist(dir.path(), ShardId(0)).unwrap();
    // A directory with a file, both forgotten; another one gets its number, with a file of its own.
    let old = nodes.seen(Ino::ROOT, b"old", key(7), FileKind::Dir, &who, 1);
    let gone = nodes.seen(old, b"gone", key(8), FileKind::File, &who, 1);
    nodes.forget(gone, 1);
    nodes.forget(old, 1);
    let new = nodes.seen(Ino::ROOT, b"new", young, FileKind::Dir, &who, 1);
    assert_eq!(new, old);
    let file = nodes.seen(new, b"f", key(9), FileKind::File, &who, 1);
    drop(nodes);
    let next = Nodes::new(key(100));
    next.persist(dir.path(), ShardId(0)).unwrap();
    assert!(next.reference(file));
    next.end_restoring(&[]);
    assert_eq!(next.path(file), Ok(b"new/f".to_vec()));
}

#[test]
fn a_parent_stays_while_a_child_needs_it() {
    let nodes = Nodes::new(key(100));
    let who = Who::default();
    let dir = nodes.seen(Ino::ROOT, b"d", key(7), FileKind::Dir, &who, 1);
    let file = nodes.seen(dir, b"f", key(8), FileKind::File, &who, 1);
    nodes.pin(file);
    nodes.forget(file, 1);
    nodes.forget(dir, 1);
    assert_eq!(nodes.path(file), Ok(b"d/f".to_vec()));
    nodes.unpin(file);
    assert!(nodes.get(file).is_err());
    assert!(nodes.get(dir).is_err(), "nothing needs it any more");
}

#[test]
fn numbers_are_those_of_the_pfs_where_they_are_free() {
    let nodes = Nodes::new(key(1));
    let who = Who::default();
    let seen = |key, name| nodes.seen(Ino::ROOT, name, key, FileKind::File, &who, 1);
    assert_eq!(seen(key(9), b"a"), Ino(9));
    let again = Key { born_ns: 5, ..key(9) };
    assert!(seen(again, b"b").0 > OWN_NUMBERS, "the number of a file that is still open");
    assert!(seen(Key { dev: 3, ..key(12) }, b"c").0 > OWN_NUMBERS);
    assert!(seen(key(u64::MAX), b"d").0 > OWN_NUMBERS);
}
