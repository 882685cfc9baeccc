//! Messages that arrive again long after: a connection that was cut delivers, once it is whole again, what its server had
//! sent by another one meanwhile.

use super::world::World;
use forebay_proto::Ino;

#[test]
fn messages_of_operations_that_are_over_change_nothing() {
    let world = World::new();
    let (a, _) = world.dir_on(Ino::ROOT, 1, "a");
    let (b, _) = world.dir_on(Ino::ROOT, 2, "b");
    let file = world.create(a, "file", 1).unwrap();
    world.record();
    for n in 0..3 {
        world.link(file, b, &format!("link.{n}")).unwrap();
    }
    world.unlink(b, "link.0").unwrap();
    world.create(b, "far", 1).unwrap();
    world.create(a, "there", 1).unwrap();
    world.rename((a, "there"), (b, "here"), 0).unwrap();
    let gone = world.mkdir(b, "gone").unwrap();
    world.rmdir(b, "gone").unwrap();
    world.finish();
    let messages = world.recorded();
    assert!(messages.len() > 12, "{} messages", messages.len());
    // A later operation between each two of them: with it each server hears that the earlier ones are over.
    let all = [(0, Ino::ROOT), (1, a), (2, b)];
    for (shard, dir) in all {
        for near in (0..3).filter(|near| *near != shard) {
            world.create(dir, &format!("later.{near}"), near).unwrap();
        }
        world.finish();
    }
    // The same names once more, for what is dropped by a name.
    world.create(a, "there", 1).unwrap();
    let before = (world.nlink(file), [Ino::ROOT, a, b].map(|dir| world.entries(dir)));
    assert_eq!(before.0, 3);
    for message in &messages {
        world.deliver_again(message);
        let now = (world.nlink(file), [Ino::ROOT, a, b].map(|dir| world.entries(dir)));
        assert_eq!(now, before);
    }
    assert!(world.namespace(gone.shard().0).attributes(gone).is_err());
    world.close();
}
