//! The table of nodes by itself: names, numbers, and what the next server knows.

use super::table::OWN_NUMBERS;
use super::*;
use std::collections::HashSet;

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
fn what_gets_the_inode_number_of_a_removed_one_is_another_one() {
    let nodes = Nodes::new(key(100));
    let who = Who::default();
    let make = |name: &[u8]| nodes.seen(Ino::ROOT, name, key(7), FileKind::Dir, &who, 1);
    let old = make(b"d");
    nodes.unname(old, Ino::ROOT, b"d");
    nodes.is_removed(old);
    // The kernel has not yet said that it forgets the old one.
    let new = make(b"d");
    assert_ne!(new, old);
    assert_eq!((nodes.number(key(7)), nodes.shown(7)), (Some(new), new));
    nodes.forget(old, 1);
    assert_eq!((nodes.number(key(7)), nodes.path(new)), (Some(new), Ok(b"d".to_vec())));
    // A time of birth tells them apart, and what is not the last name's end changes nothing.
    let born = Key { born_ns: 4, ..key(8) };
    let file = nodes.seen(Ino::ROOT, b"f", born, FileKind::File, &who, 1);
    nodes.is_removed(file);
    assert_eq!(nodes.number(born), Some(file));
    // So does the type, of what others removed.
    let gone = nodes.seen(Ino::ROOT, b"g", key(9), FileKind::File, &who, 1);
    let dir = nodes.seen(Ino::ROOT, b"dir", key(9), FileKind::Dir, &who, 1);
    assert!(dir != gone && nodes.get(dir).unwrap().kind == FileKind::Dir);
    nodes.forget(gone, 1);
    assert_eq!(nodes.number(key(9)), Some(dir));
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

const NONE_LOST: fn(ShardId) -> bool = |_| false;

/// The table of the metadata server, over so many servers.
fn names_of(dir: &Path, count: u16) -> Nodes {
    let nodes = Nodes::new(key(100));
    nodes.share(count, Arc::new(NONE_LOST));
    nodes.persist(dir, ShardId(0)).unwrap();
    nodes
}

fn seen(nodes: &Nodes, name: &[u8], file: Key) -> Ino {
    let ino = nodes.seen(Ino::ROOT, name, file, FileKind::File, &Who::default(), 1);
    nodes.forget(ino, 1);
    ino
}

#[test]
fn files_of_a_directory_take_turns_over_the_data_servers_and_keep_theirs() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = names_of(dir.path(), 3);
    let mut counts = [0; 3];
    for n in 0..12u64 {
        let ino = seen(&nodes, format!("rank.{n}").as_bytes(), key(200 + n));
        counts[usize::from(ino.shard().0)] += 1;
        // Nobody uses it: it has the same data server again.
        assert_eq!(seen(&nodes, format!("rank.{n}").as_bytes(), key(200 + n)).shard(), ino.shard());
    }
    assert_eq!(counts, [4, 4, 4]);
    assert_eq!(nodes.seen(Ino::ROOT, b"d", key(7), FileKind::Dir, &Who::default(), 0), Ino(7));
    // By another name, too, also for the next server.
    let names: Vec<Vec<u8>> = (0..9).map(|n| format!("new.{n}").into_bytes()).collect();
    let ino = nodes.seen(Ino::ROOT, b"tmp", key(300), FileKind::File, &Who::default(), 1);
    for name in &names {
        nodes.seen(Ino::ROOT, name, key(300), FileKind::File, &Who::default(), 0);
    }
    nodes.forget(ino, 1);
    drop(nodes);
    let nodes = names_of(dir.path(), 3);
    nodes.end_restoring(&[]);
    for name in &names {
        assert_eq!(seen(&nodes, name, key(300)).shard(), ino.shard());
    }
}

#[test]
fn a_file_that_its_data_server_holds_stays_known_until_it_lets_go() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = names_of(dir.path(), 2);
    let all = (0..8u64).map(|n| {
        nodes.seen(
            Ino::ROOT,
            format!("f{n}").as_bytes(),
            key(200 + n),
            FileKind::File,
            &Who::default(),
            1,
        )
    });
    let ino = all.into_iter().find(|ino| ino.shard() == ShardId(1)).unwrap();
    assert!(nodes.describe(ino, 5, false).is_some());
    nodes.forget(ino, 1);
    assert!(nodes.describe(ino, 7, false).is_some(), "asked for once more");
    nodes.data_server_let_go(&[(ino, 5)]);
    assert!(nodes.get(ino).is_ok(), "it has a later description");
    // A restart of the names, then one of the data server.
    drop(nodes);
    let nodes = names_of(dir.path(), 2);
    nodes.end_restoring(&[]);
    assert!(nodes.get(ino).is_ok());
    nodes.data_server_holds(ShardId(1), 20, &HashSet::from([ino]));
    nodes.data_server_let_go(&[(ino, 7)]);
    assert!(nodes.get(ino).is_ok());
    nodes.data_server_holds(ShardId(1), 30, &HashSet::new());
    assert!(nodes.get(ino).is_err());
}

#[test]
fn what_is_done_to_names_is_known_to_data_servers_that_come_later() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = names_of(dir.path(), 2);
    let inos: Vec<Ino> = (0..8u64)
        .map(|n| {
            nodes.seen(
                Ino::ROOT,
                format!("f{n}").as_bytes(),
                key(200 + n),
                FileKind::File,
                &Who::default(),
                1,
            )
        })
        .filter(|ino| ino.shard() == ShardId(1))
        .collect();
    let [removed, published, cut] = inos[..3] else { panic!("files are spread") };
    for ino in &inos {
        assert!(nodes.describe(*ino, 5, false).is_some());
    }
    let (gone, name) = (nodes.get(removed).unwrap().key, nodes.path(removed).unwrap());
    nodes.removing(removed);
    nodes.unname(removed, Ino::ROOT, &name);
    nodes.removed(removed);
    nodes.removing(cut);
    let was = nodes.get(published).unwrap().key;
    nodes.set_keys(published, was, Some(key(900))).unwrap();
    assert_eq!((nodes.number(was), nodes.number(key(900))), (Some(published), Some(published)));
    drop(nodes);
    let nodes = names_of(dir.path(), 2);
    nodes.end_restoring(&[]);
    assert_eq!(nodes.whereabouts(removed, gone), Whereabouts::Removed);
    assert_eq!(nodes.removed_unheard(), [(removed, gone)]);
    assert_eq!(nodes.number(key(900)), Some(published));
    assert_eq!(nodes.unsettled(), [cut]);
    nodes.set_keys(published, key(900), None).unwrap();
    assert_eq!((nodes.number(was), nodes.number(key(900))), (None, Some(published)));
    nodes.data_server_knows(removed);
    assert_eq!(nodes.whereabouts(removed, gone), Whereabouts::Unknown);
    nodes.settled(cut);
    // Nothing of it is left for the one after.
    drop(nodes);
    let nodes = names_of(dir.path(), 2);
    assert!(nodes.unsettled().is_empty() && nodes.removed_unheard().is_empty());
    assert_eq!((nodes.number(was), nodes.number(key(900))), (None, Some(published)));
    let young = nodes.seen(Ino::ROOT, b"young", key(950), FileKind::File, &Who::default(), 1);
    assert!(
        inos.iter().all(|ino| (ino.0 << 16) < (young.0 << 16)),
        "numbers are never given again"
    );
}

#[test]
fn what_was_clean_at_a_lost_data_server_gets_another_one_and_the_rest_waits_for_a_decision() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let dir = tempfile::tempdir().unwrap();
    let is_lost = Arc::new(AtomicBool::new(false));
    let open = || {
        let nodes = Nodes::new(key(100));
        let lost = Arc::clone(&is_lost);
        nodes.share(
            2,
            Arc::new(move |data_server| data_server == ShardId(1) && lost.load(Ordering::Relaxed)),
        );
        nodes.persist(dir.path(), ShardId(0)).unwrap();
        nodes
    };
    let nodes = open();
    let name = |n: u64| format!("f{n}").into_bytes();
    let look =
        |n| nodes.seen(Ino::ROOT, &name(n), key(200 + n), FileKind::File, &Who::default(), 1);
    let files: Vec<(u64, Ino)> =
        (0..12).map(|n| (n, look(n))).filter(|(_, ino)| ino.shard() == ShardId(1)).collect();
    for (_, ino) in &files {
        assert!(nodes.describe(*ino, 5, false).is_some());
        nodes.forget(*ino, 1);
    }
    let [(clean, _), (dirty, at_dirty), (again, at_again), (made, at_made), (unseen, _)] =
        files[..5]
    else {
        panic!("files are spread")
    };
    nodes.may_be_dirty(at_dirty, 7);
    nodes.may_be_dirty(at_again, 8);
    nodes.data_server_has_clean([(at_again, 9)]);
    // What is told late is older.
    nodes.may_be_dirty(at_dirty, 11);
    nodes.data_server_has_clean([(at_dirty, 10)]);
    assert!(nodes.describe(at_made, 12, true).is_some(), "for somebody who writes it");
    is_lost.store(true, Ordering::Relaxed);
    let data_server = |nodes: &Nodes, n: u64| seen(nodes, &name(n), key(200 + n)).shard();
    assert_eq!(data_server(&nodes, clean), ShardId(0), "it is looked up");
    let lost = |nodes: &Nodes| {
        let mut lost: Vec<Vec<u8>> =
            nodes.dirty_at(ShardId(1)).into_iter().map(|(path, _)| path).collect();
        lost.sort();
        lost
    };
    let mut wanted = vec![name(dirty), name(made)];
    wanted.sort();
    assert_eq!(lost(&nodes), wanted);
    nodes.leave_clean(ShardId(1));
    // The next server knows as much.
    drop(nodes);
    let nodes = open();
    nodes.end_restoring(&[]);
    assert_eq!(lost(&nodes), wanted);
    for n in [clean, again, unseen] {
        assert_eq!(data_server(&nodes, n), ShardId(0), "f{n}");
    }
    assert_eq!(data_server(&nodes, dirty), ShardId(1), "what the PFS has is not taken for it");
    assert!(nodes.give_up(at_dirty) && !nodes.give_up(at_dirty));
    assert_eq!(data_server(&nodes, dirty), ShardId(0));
    drop(nodes);
    let nodes = open();
    nodes.end_restoring(&[]);
    assert_eq!((lost(&nodes), data_server(&nodes, dirty)), (vec![name(made)], ShardId(0)));
}
