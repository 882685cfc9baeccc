//! Each kind of operation with a server killed at each point, and given up for good: the names of the
//! others stay, can be used, and nothing waits for it any more, on record or in memory.

use super::kills::{Case, Op, Rename};
use super::world::World;
use forebay_proto::api::rename_flags::EXCHANGE;
use forebay_proto::{Errno, FileKind, Ino, Result};
use std::sync::atomic::Ordering;

/// All names of a directory that is left, of which each that leads to what is left can be moved away
/// and back; a directory also to another parent.
fn use_names(world: &World, dir: Ino, told: &str) {
    if !world.there().contains(&dir.shard().0) {
        return;
    }
    for (name, (ino, kind)) in world.entries(dir) {
        if !world.there().contains(&ino.shard().0) {
            continue;
        }
        let moves = |from: (Ino, &str), to: (Ino, &str)| {
            let moved: Result<()> = world.rename(from, to, 0);
            moved.unwrap_or_else(|errno| panic!("{told}: {name} is not moved: {errno}"));
        };
        moves((dir, &name), (dir, "elsewhere"));
        if kind == FileKind::Dir {
            assert_eq!(world.parent(ino), dir, "{told}: {name}");
            moves((dir, "elsewhere"), (Ino::ROOT, "elsewhere"));
            assert_eq!(world.parent(ino), Ino::ROOT, "{told}: {name}");
            moves((Ino::ROOT, "elsewhere"), (dir, "elsewhere"));
        }
        moves((dir, "elsewhere"), (dir, &name));
    }
    world.create(dir, "one more", dir.shard().0).unwrap();
    world.finish();
}

/// How many points there were; the server that was killed at each was given up.
fn given_up_everywhere(op: Op, shards: (u16, u16)) -> u32 {
    for at in 0.. {
        let world = World::new();
        let case = Case::prepare(&world, op, shards, at);
        world.finish();
        let told = format!("{op:?} between {shards:?}, given up at {at}");
        world.kill_for_good();
        let fired = world.kill_at(at);
        let done = case.run();
        world.recover();
        match done {
            Ok(()) | Err(Errno::EIO | Errno::ETIMEDOUT | Errno::EHOSTUNREACH) => {}
            Err(errno) => panic!("{told}: {errno}"),
        }
        world.finish();
        // A name is gone only if it was said to be, or went to what is lost.
        let may_go = done.is_ok() || !world.there().contains(&case.b.shard().0);
        if world.there().contains(&case.a.shard().0) && !may_go {
            assert_eq!(world.entries(case.a), case.before.0, "{told}");
        }
        use_names(&world, case.a, &told);
        use_names(&world, case.b, &told);
        if !fired.load(Ordering::Relaxed) {
            return at;
        }
    }
    unreachable!()
}

#[test]
fn what_was_made_removed_or_linked_with_a_lost_server_holds_nobody_up() {
    assert!(given_up_everywhere(Op::Create(1), (0, 2)) >= 6);
    assert!(given_up_everywhere(Op::Unlink { at: 1, links: 2 }, (1, 2)) >= 4);
    assert!(given_up_everywhere(Op::Rmdir(2), (0, 1)) >= 7);
    assert!(given_up_everywhere(Op::Link(1), (1, 2)) >= 5);
}

#[test]
fn names_that_were_to_go_to_a_lost_server_stay_and_can_be_used() {
    for (a, b, moved, dirs) in [(1, 2, 0, false), (1, 2, 1, true), (0, 1, 2, true)] {
        let rename = Rename { moved, dirs, target: None, flags: 0 };
        assert!(given_up_everywhere(Op::Rename(rename), (a, b)) >= 5);
    }
    let rename = Rename { moved: 0, dirs: true, target: Some(1), flags: EXCHANGE };
    given_up_everywhere(Op::Rename(rename), (1, 2));
}
