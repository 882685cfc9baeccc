//! What operations cost: questions between servers, and records of the log.

use super::world::World;
use forebay_proto::api::ops::*;
use forebay_proto::{Errno, Ino};

fn commits(world: &World) -> u64 {
    (0..super::world::SHARDS).map(|shard| world.namespace(shard).commit_count()).sum()
}

#[test]
fn what_is_on_the_shard_of_its_directory_is_one_record_and_asks_nobody() {
    let world = World::new();
    let (dir, _) = world.dir_on(Ino::ROOT, 1, "dir");
    world.check();
    let (asked, had) = (world.asked(), commits(&world));
    let file = world.create(dir, "file", 1).unwrap();
    world.rename((dir, "file"), (dir, "renamed"), 0).unwrap();
    world.link(file, dir, "linked").unwrap();
    world.unlink(dir, "renamed").unwrap();
    assert_eq!(world.rmdir(dir, "linked"), Err(Errno::ENOTDIR));
    assert_eq!((world.asked() - asked, commits(&world) - had), (0, 4));
    world.close();
}

#[test]
fn what_is_made_elsewhere_costs_one_question_and_its_end_is_for_many() {
    let world = World::new();
    let (dir, _) = world.dir_on(Ino::ROOT, 0, "dir");
    world.check();
    let asked = world.asked();
    let last = (0..20).map(|n| world.create(dir, &format!("f{n}"), 1).unwrap()).last().unwrap();
    assert_eq!(world.asked() - asked, 20);
    // Its name is on flash when the file is: its shard asks for it.
    world.namespace(1).fsync(last, false).unwrap();
    assert_eq!(world.asked() - asked, 21);
    let asked = world.asked();
    world.check();
    assert!(world.asked() - asked < 12, "all are settled together");
    let asked = world.asked();
    world.namespace(1).fsync(last, false).unwrap();
    assert_eq!(world.asked(), asked, "of settled ones it is known");
    world.close();
}
