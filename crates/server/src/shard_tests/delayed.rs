//! Messages that arrive again long after: a connection that was cut delivers, once it is whole again, what its server had
//! sent by another one meanwhile. And calls that are made again since an answer between servers was lost.

use super::world::{Fate, PAUSES_MAX, World};
use forebay_proto::{Errno, Ino};
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
    // Waits for what is removed in the background.
    world.check();
    assert!(world.namespace(gone.shard().0).attrs().of(gone).is_err());
    world.close();
}

#[test]
fn a_message_of_an_operation_that_was_given_up_holds_nothing() {
    let world = World::new();
    let (a, a_name) = world.dir_on(Ino::ROOT, 1, "a");
    let (below, _) = world.dir_on(a, 2, "below");
    world.record();
    let refused = world.rename((Ino::ROOT, &a_name), (below, "circle"), 0);
    assert_eq!(refused, Err(Errno::EINVAL));
    let messages = world.recorded();
    assert!(messages.len() > 3, "{} messages", messages.len());
    for message in &messages {
        world.deliver_again(message);
        let unfinished = world.namespace(0).testing().unfinished();
        assert_eq!((unfinished.prepared, unfinished.holds), (0, false));
    }
    world.rename((Ino::ROOT, &a_name), (Ino::ROOT, "free"), 0).unwrap();
    world.close();
}

#[test]
fn a_message_of_an_earlier_start_holds_nothing() {
    let world = World::new();
    let (b, _) = world.dir_on(Ino::ROOT, 2, "b");
    let file = world.create(Ino::ROOT, "file", 1).unwrap();
    world.finish();
    // The decision is lost with the server that makes it, and its question comes after it is back.
    world.these_fates(&[Fate::Late]);
    world.kill_at(0);
    let linked = world.link(file, b, "link");
    assert_eq!(linked, Ok(file), "made again at the next start");
    world.clear_up();
    let unfinished = world.namespace(1).testing().unfinished();
    assert_eq!((unfinished.prepared, world.nlink(file)), (1, 2), "only what was decided");
    world.close();
}

#[test]
fn a_directory_whose_last_name_has_moved_away_can_be_removed_at_once() {
    let world = World::new();
    for (server, parent) in [(1, 0), (2, 0), (0, 0)] {
        let (dir, name) = world.dir_on(Ino::ROOT, server, "dir");
        let (other, _) = world.dir_on(Ino::ROOT, (server + 1) % 3, "other");
        world.create(dir, "x", parent).unwrap();
        // What tells the old name's server that it is decided is lost, each time. The next round tells it.
        let lost = [Fate::Lost; 2 * PAUSES_MAX as usize + 1];
        world.these_fates(&[&[Fate::Arrives], &lost[..]].concat());
        world.rename((dir, "x"), (other, "y"), 0).unwrap();
        world.rounds_in_pauses();
        world.rmdir(Ino::ROOT, &name).unwrap();
        world.clear_up();
    }
    world.close();
}

#[test]
fn a_change_is_seen_at_its_other_server_at_once_though_messages_were_lost() {
    use Fate::*;
    for lost in
        [&[Lost][..], &[AnswerLost], &[NotSent], &[Late], &[Lost, NotSent, AnswerLost, Lost]]
    {
        let world = World::new();
        let (a, _) = world.dir_on(Ino::ROOT, 1, "a");
        let (b, _) = world.dir_on(Ino::ROOT, 2, "b");
        let file = world.create(a, "file", 1).unwrap();
        world.link(file, b, "link").unwrap();
        world.finish();
        let attr = |ino: Ino| world.namespace(1).attrs().of(ino).unwrap();
        let before = attr(a);
        // The old name is prepared; what follows the decision is lost.
        world.these_fates(&[&[Arrives], lost].concat());
        world.rename((a, "file"), (b, "moved"), 0).unwrap();
        assert!(attr(a).mtime > before.mtime, "{lost:?}");
        assert!(world.entries(a).is_empty(), "{lost:?}");
        // Nothing is prepared.
        world.these_fates(lost);
        world.unlink(b, "link").unwrap();
        assert_eq!(attr(file).nlink, 1, "{lost:?}");
        world.clear_up();
        world.close();
    }
}

#[test]
fn a_link_that_is_made_again_since_answers_were_lost_counts_once() {
    use Fate::*;
    let cases = [
        // Prepared, and neither that nor its being given up was heard.
        &[AnswerLost, Lost][..],
        &[AnswerLost, NotSent],
        &[AnswerLost, Late],
        &[AnswerLost, AnswerLost],
        // It arrives when it has been given up.
        &[Late, Arrives],
        // Again and again.
        &[AnswerLost, Lost, Lost, NotSent, Arrives, AnswerLost, Lost],
    ];
    for fates in cases {
        let world = World::new();
        let (b, _) = world.dir_on(Ino::ROOT, 2, "b");
        let file = world.create(Ino::ROOT, "file", 1).unwrap();
        world.these_fates(fates);
        let linked = world.link(file, b, "link");
        assert_eq!((linked, world.nlink(file)), (Ok(file), 2), "{fates:?}");
        world.clear_up();
        assert_eq!(world.nlink(file), 2, "{fates:?}");
        world.unlink(b, "link").unwrap();
        assert_eq!(world.nlink(file), 1, "{fates:?}");
        world.close();
    }
}

#[test]
fn a_server_that_cannot_be_asked_for_a_second_part_undoes_the_first() {
    let mut refused = 0;
    // So many messages arrive, then none for as long as the call is patient.
    for arrive in 0..16 {
        let world = World::new();
        let (a, _) = world.dir_on(Ino::ROOT, 1, "a");
        let (_, moved) = world.dir_on(a, 1, "moved");
        let (_, replaced) = world.dir_on(Ino::ROOT, 1, "replaced");
        world.finish();
        let mut fates = vec![Fate::Arrives; arrive];
        fates.resize(arrive + 200, Fate::NotSent);
        world.these_fates(&fates);
        let renamed = world.rename((a, &moved), (Ino::ROOT, &replaced), 0);
        world.clear_up();
        // One round of each server: nothing is left that would only be asked for later.
        world.finish();
        match renamed {
            Ok(()) => assert!(!world.entries(a).contains_key(&moved), "{arrive} arrived"),
            Err(errno) => {
                refused += 1;
                assert!(matches!(errno, Errno::EHOSTUNREACH | Errno::ETIMEDOUT), "{errno}");
                world.rmdir(a, &moved).unwrap();
                world.rmdir(Ino::ROOT, &replaced).unwrap();
            }
        }
        world.close();
    }
    // Both parts were met.
    assert!((2..16).contains(&refused), "{refused} refused");
}

/// A call of the coordinator 2 that prepares something at 1, with a server killed at each point. What the coordinator asks
/// when it starts anew is lost, and the call is made again. How often the coordinator was the one that was killed.
fn made_again_after_a_restart(call: impl Fn(&World, Ino, Ino, Ino) -> Result<(), Errno>) -> u32 {
    let mut restarted = 0;
    for at in 0.. {
        let world = World::new();
        let (a, _) = world.dir_on(Ino::ROOT, 1, "a");
        let (b, _) = world.dir_on(Ino::ROOT, 2, "b");
        let file = world.create(a, "file", 1).unwrap();
        world.finish();
        let coordinator = Arc::downgrade(&world.namespace(2));
        // One is of what gives the operation up while its server goes.
        world.these_fates(&[Fate::Arrives, Fate::Lost, Fate::Lost, Fate::Lost]);
        let fired = world.kill_at(at);
        let done = call(&world, a, b, file);
        world.recover();
        if coordinator.upgrade().is_none() {
            restarted += 1;
            assert_eq!(done, Ok(()), "killed at {at}");
        }
        world.clear_up();
        // Each count is right once all is settled, also of what failed.
        world.close();
        if !fired.load(Ordering::Relaxed) {
            return restarted;
        }
    }
    unreachable!()
}

#[test]
fn a_call_that_is_made_again_after_a_restart_meets_nothing_of_its_first_attempt() {
    let linked = made_again_after_a_restart(|world, _, b, file| {
        let linked = world.link(file, b, "link").map(drop);
        // At once, before any server has settled anything in the background.
        if linked.is_ok() {
            assert_eq!(world.nlink(file), 2);
        }
        linked
    });
    let renamed =
        made_again_after_a_restart(|world, a, b, _| world.rename((a, "file"), (b, "moved"), 0));
    assert!(linked >= 2 && renamed >= 2, "{linked}, {renamed}");
}

#[test]
fn a_server_that_does_not_answer_is_asked_last_and_once_in_a_round() {
    let world = World::new();
    let (b, _) = world.dir_on(Ino::ROOT, 2, "b");
    let file = |name: &str, at| world.create(Ino::ROOT, name, at).unwrap();
    let (silent, other, near) = (file("silent", 0), file("other", 0), file("near", 1));
    world.finish();
    world.link(silent, b, "silent").unwrap();
    world.link(near, b, "near").unwrap();
    world.these_fates(&[Fate::Lost; 64]);
    assert_eq!(world.link(other, b, "other"), Err(Errno::ETIMEDOUT));
    // Both are to hear of a link, and the silent one of what was given up.
    world.these_fates(&[Fate::Arrives, Fate::Lost]);
    world.record();
    world.namespace(2).testing().finish_round().unwrap();
    let asked: Vec<u16> = world.recorded().iter().map(|(to, _)| to.0).collect();
    assert_eq!(asked, [1, 0]);
    world.clear_up();
    world.close();
}
