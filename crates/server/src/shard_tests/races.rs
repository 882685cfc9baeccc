//! Two coordinators in each other's way.

use super::world::World;
use forebay_namespace::Namespace;
use forebay_proto::{Errno, Ino, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const ROUNDS: u32 = 150;

/// As a session does it.
fn rename(namespace: &Arc<Namespace>, from: (Ino, &str), to: (Ino, &str)) -> Result<()> {
    namespace.testing().rename((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()))
}

fn at(world: &World, dir: Ino) -> Arc<Namespace> {
    world.namespace(dir.shard().0)
}

#[test]
fn a_name_that_two_rename_against_each_other_is_one_name_all_the_time() {
    let world = World::new();
    let (a, _) = world.dir_on(Ino::ROOT, 1, "a");
    let (b, _) = world.dir_on(Ino::ROOT, 2, "b");
    world.create(a, "x", 0).unwrap();
    let (moved, missed) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for (from, to) in [((a, "x"), (b, "y")), ((b, "y"), (a, "x"))] {
            let namespace = at(&world, to.0);
            let (moved, missed) = (&moved, &missed);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    match rename(&namespace, from, to) {
                        Ok(()) => moved.fetch_add(1, Ordering::Relaxed),
                        Err(Errno::ENOENT) => missed.fetch_add(1, Ordering::Relaxed),
                        Err(errno) => panic!("{errno}"),
                    };
                }
            });
        }
    });
    let left = world.entries(a).len() + world.entries(b).len();
    assert_eq!(left, 1);
    assert!(moved.load(Ordering::Relaxed) > 0, "missed {}", missed.load(Ordering::Relaxed));
    world.close();
}

#[test]
fn two_directories_are_never_moved_into_each_other() {
    let world = World::new();
    let (a, a_name) = world.dir_on(Ino::ROOT, 1, "a");
    let (b, b_name) = world.dir_on(Ino::ROOT, 2, "b");
    let moved = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let moves = [(a_name.as_str(), b, "a"), (b_name.as_str(), a, "b")];
        for (name, into, inside) in moves {
            let (there, back) = (at(&world, into), at(&world, Ino::ROOT));
            let moved = &moved;
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    match rename(&there, (Ino::ROOT, name), (into, inside)) {
                        Ok(()) => {
                            moved.fetch_add(1, Ordering::Relaxed);
                            rename(&back, (into, inside), (Ino::ROOT, name)).unwrap();
                        }
                        Err(Errno::EINVAL | Errno::ENOENT) => {}
                        Err(errno) => panic!("{errno}"),
                    }
                }
            });
        }
    });
    assert!(moved.load(Ordering::Relaxed) > 0);
    assert_eq!(world.entries(Ino::ROOT).len(), 2);
    world.close();
}

/// A kernel that knows the directories refuses this by itself; the preload library asks, and so does a kernel that has not heard of a move.
#[test]
fn a_directory_is_never_moved_over_the_one_that_it_lies_in() {
    let world = World::new();
    for (outer_at, inner_at) in [(1, 1), (1, 2), (2, 1), (0, 1), (1, 0), (0, 0)] {
        let (outer, outer_name) = world.dir_on(Ino::ROOT, outer_at, "outer");
        let (_, inner_name) = world.dir_on(outer, inner_at, "inner");
        let (from, to) = ((outer, inner_name.as_str()), (Ino::ROOT, outer_name.as_str()));
        let case = format!("a directory of shard {inner_at} in one of shard {outer_at}");
        assert_eq!(world.rename(from, to, 0), Err(Errno::ENOTEMPTY), "{case}");
        let exchange = forebay_proto::api::rename_flags::EXCHANGE;
        assert_eq!(world.rename(from, to, exchange), Err(Errno::EINVAL), "{case}, exchanged");
        assert_eq!(world.entries(outer).len(), 1, "{case}");
        world.rmdir(outer, &inner_name).unwrap();
        world.rmdir(Ino::ROOT, &outer_name).unwrap();
    }
    world.check();
    world.close();
}
