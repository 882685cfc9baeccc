//! The rules of Linux, one by one.

use super::*;
use crate::book::LAST_BYTE;
use crate::fair::OVERTAKEN_OFTEN;
use std::time::{Duration, Instant};

const EAGAIN: Result<()> = Err(Errno::EAGAIN);

#[test]
fn ranges_of_one_owner_replace_split_and_merge() {
    let t = Bench::new();
    t.lock(A, write(1, 0..=99)).unwrap();
    t.lock(A, read(1, 40..=49)).unwrap();
    assert_eq!(t.ranges(A), [(0, 39, true), (40, 49, false), (50, 99, true)]);
    assert_eq!(t.lock(B, read(1, 45..=50)), EAGAIN, "an owner is one of its session");
    t.lock(B, read(1, 40..=49)).unwrap();
    assert_eq!(t.lock(A, write(1, 40..=49)), EAGAIN, "no upgrade while another reads");
    t.unlock(B, read(1, 49..=49));
    assert_eq!(t.ranges(B), [(40, 48, false)]);
    t.unlock(B, read(1, 0..=u64::MAX));
    t.lock(A, write(1, 40..=49)).unwrap();
    assert_eq!(t.ranges(A), [(0, 99, true)]);
    t.lock(A, write(1, 100..=u64::MAX)).unwrap();
    assert_eq!(t.ranges(A), [(0, LAST_BYTE, true)], "to the end, whatever the end is");
    let empty = LockSpec { start: 9, end: 8, ..write(1, 0..=0) };
    assert_eq!(t.lock(A, empty), Err(Errno::EINVAL));
    t.unlock(A, write(1, 0..=LAST_BYTE));
    assert_eq!(t.table.counts(), LockCounts { held: 0, waiting: 0 });
}

#[test]
fn kinds_see_each_other_as_linux_has_it() {
    let t = Bench::new();
    let ofd = |owner, exclusive| spec(LockKind::Ofd, owner, 0..=9, exclusive);
    t.lock(A, write(1, 0..=9)).unwrap();
    assert_eq!(t.lock(A, ofd(2, false)), EAGAIN, "POSIX and OFD conflict, in one process too");
    t.lock(A, flock(3, true)).unwrap();
    assert_eq!(t.lock(B, flock(3, false)), EAGAIN);
    t.unlock(A, write(1, 0..=9));
    t.lock(A, ofd(2, true)).unwrap();
    let in_the_way = t.table.test(B, &read(7, 5..=20)).unwrap().unwrap();
    assert_eq!(in_the_way, (A, ofd(2, true)));
    assert_eq!(t.table.test(A, &ofd(2, true)).unwrap(), None, "one's own is not in the way");
    assert_eq!(t.table.test(B, &read(7, 10..=20)).unwrap(), None);
    t.table.drop_owner(A, Ino(2), LockKind::Ofd, 2);
    assert_eq!(t.table.held_by(A), [flock_held(3)]);
    t.table.drop_owner(A, Ino(2), LockKind::Flock, 3);
    assert_eq!(t.table.counts().held, 0);
}

fn flock_held(owner: u64) -> LockSpec {
    LockSpec { end: LAST_BYTE, ..flock(owner, true) }
}

#[test]
fn waiting_requests_go_in_the_order_of_arrival_and_all_that_can() {
    let t = Bench::new();
    t.lock(A, write(1, 0..=9)).unwrap();
    for (ticket, request) in
        [(1, read(2, 0..=4)), (2, write(3, 0..=4)), (3, read(4, 5..=9)), (4, read(5, 0..=9))]
    {
        assert_eq!(t.wait(B, ticket, request), Ok(LockState::Waits));
    }
    assert_eq!(t.wait(B, 4, read(9, 0..=0)), Err(Errno::EEXIST), "a ticket is one request's");
    t.unlock(A, write(1, 0..=4));
    assert_eq!(t.told(), [(1, Ok(()))], "the writer waits for the reader before it");
    t.unlock(A, write(1, 0..=9));
    assert_eq!(t.told(), [(3, Ok(())), (4, Ok(()))], "readers do not wait for a waiting writer");
    t.unlock(B, read(2, 0..=9));
    assert_eq!(t.told(), []);
    t.unlock(B, read(5, 0..=9));
    assert_eq!(t.told(), [(2, Ok(()))]);
    assert_eq!(t.table.counts(), LockCounts { held: 2, waiting: 0 });
}

#[test]
fn a_downgrade_lets_readers_in() {
    let t = Bench::new();
    t.lock(A, write(1, 0..=9)).unwrap();
    t.wait(B, 1, read(2, 0..=4)).unwrap();
    t.wait(B, 2, write(3, 0..=4)).unwrap();
    t.lock(A, read(1, 0..=9)).unwrap();
    assert_eq!(t.told(), [(1, Ok(()))]);
    t.lock(A, flock(1, true)).unwrap();
    t.wait(B, 3, flock(2, false)).unwrap();
    t.lock(A, flock(1, false)).unwrap();
    assert_eq!(t.told(), [(3, Ok(()))]);
}

#[test]
fn a_downgrade_that_waited_lets_others_in() {
    let t = Bench::new();
    t.lock(A, write(1, 0..=9)).unwrap();
    t.lock(A, write(2, 20..=29)).unwrap();
    t.wait(B, 1, read(3, 0..=9)).unwrap();
    // Owner 1 asks to read 0..=29 and so to give up writing 0..=9, but has to wait for owner 2.
    t.wait(A, 2, read(1, 0..=29)).unwrap();
    assert_eq!(t.told(), []);
    t.unlock(A, write(2, 20..=29));
    assert_eq!(t.told(), [(2, Ok(())), (1, Ok(()))]);
}

#[test]
fn a_flock_conversion_first_gives_up_what_it_had() {
    let t = Bench::new();
    t.lock(A, flock(1, false)).unwrap();
    t.lock(A, flock(2, false)).unwrap();
    assert_eq!(t.lock(A, flock(1, true)), EAGAIN);
    assert_eq!(t.table.held_by(A).len(), 1, "the shared lock is lost, as in Linux");
    t.lock(A, flock(1, false)).unwrap();
    // Two that both want more do not hang: the first has given up its share.
    assert_eq!(t.wait(A, 1, flock(1, true)), Ok(LockState::Waits));
    assert_eq!(t.wait(A, 2, flock(2, true)), Ok(LockState::Free));
    t.unlock(A, flock(2, true));
    assert_eq!(t.told(), [(1, Ok(()))]);
    t.lock(A, flock(1, true)).unwrap();
    assert_eq!(t.table.held_by(A), [flock_held(1)]);
}

#[test]
fn circles_of_posix_waiters_are_deadlocks() {
    let t = Bench::new();
    // Over files and sessions: 1 (of A) waits for 2 (of B), 2 for 3, 3 would wait for 1.
    t.lock(A, on(10, write(1, 0..=0))).unwrap();
    t.lock(B, on(11, write(2, 5..=5))).unwrap();
    t.lock(A, on(12, write(3, 0..=9))).unwrap();
    assert_eq!(t.wait(A, 1, on(11, read(1, 0..=9))), Ok(LockState::Waits));
    assert_eq!(t.wait(B, 2, on(12, read(2, 0..=0))), Ok(LockState::Waits));
    assert_eq!(t.wait(A, 3, on(10, read(3, 0..=0))), Err(Errno::EDEADLK));
    assert_eq!(t.lock(A, on(10, read(3, 0..=0))), EAGAIN, "who does not wait is in no circle");
    assert_eq!(t.wait(A, 4, on(10, read(4, 0..=0))), Ok(LockState::Waits), "a tail is none");
    t.unlock(A, on(12, write(3, 0..=9)));
    assert_eq!(t.told(), [(2, Ok(()))]);
}

#[test]
fn two_upgrades_of_one_range_are_a_deadlock() {
    let t = Bench::new();
    t.lock(A, read(1, 0..=9)).unwrap();
    t.lock(B, read(2, 0..=9)).unwrap();
    assert_eq!(t.wait(A, 1, write(1, 0..=9)), Ok(LockState::Waits));
    assert_eq!(t.wait(B, 2, write(2, 0..=9)), Err(Errno::EDEADLK));
    t.unlock(B, read(2, 0..=9));
    assert_eq!(t.told(), [(1, Ok(()))]);
}

#[test]
fn a_circle_that_closes_later_is_found() {
    let t = Bench::new();
    t.lock(A, on(10, write(1, 0..=0))).unwrap();
    t.lock(B, on(11, read(9, 0..=0))).unwrap();
    // 2 waits for 1 with one thread; 1 waits for 9.
    t.wait(B, 1, on(10, write(2, 0..=0))).unwrap();
    t.wait(A, 2, on(11, write(1, 0..=0))).unwrap();
    assert_eq!(t.told(), []);
    // Another thread of 2 gets what 1 waits for too.
    t.lock(B, on(11, read(2, 0..=0))).unwrap();
    assert_eq!(t.told(), [(2, Err(Errno::EDEADLK))]);
    assert_eq!(t.table.counts().waiting, 1);
}

#[test]
fn ofd_locks_and_flocks_have_no_deadlock_detection() {
    let t = Bench::new();
    for kind in [LockKind::Ofd, LockKind::Flock] {
        let of = |ino, owner| on(ino, spec(kind, owner, 0..=0, true));
        t.lock(A, of(10, 1)).unwrap();
        t.lock(A, of(11, 2)).unwrap();
        assert_eq!(t.wait(A, 1, of(11, 1)), Ok(LockState::Waits));
        assert_eq!(t.wait(A, 2, of(10, 2)), Ok(LockState::Waits));
        t.table.cancel(A, Ticket(1));
        t.table.cancel(A, Ticket(2));
        assert_eq!(t.told(), [(1, Err(Errno::EINTR)), (2, Err(Errno::EINTR))]);
    }
}

#[test]
fn a_cancelled_request_changes_nothing() {
    let t = Bench::new();
    t.lock(A, write(1, 0..=9)).unwrap();
    t.lock(B, read(2, 20..=29)).unwrap();
    t.wait(B, 1, write(2, 0..=29)).unwrap();
    t.table.cancel(A, Ticket(1));
    assert_eq!(t.told(), [], "a ticket is its session's");
    t.table.cancel(B, Ticket(1));
    t.table.cancel(B, Ticket(1));
    assert_eq!(t.told(), [(1, Err(Errno::EINTR))]);
    t.unlock(A, write(1, 0..=9));
    assert_eq!((t.told(), t.ranges(B)), (vec![], vec![(20, 29, false)]));
}

#[test]
fn an_owner_or_a_session_goes_with_all_it_has() {
    let t = Bench::new();
    t.lock(A, write(1, 0..=9)).unwrap();
    t.lock(A, write(1, 20..=29)).unwrap();
    t.lock(A, on(3, write(1, 0..=9))).unwrap();
    t.lock(A, flock(5, true)).unwrap();
    t.wait(B, 1, write(2, 0..=29)).unwrap();
    t.wait(B, 2, on(3, write(2, 0..=9))).unwrap();
    t.wait(A, 3, on(3, write(7, 0..=9))).unwrap();
    t.table.drop_owner(A, Ino(2), LockKind::Posix, 1);
    assert_eq!(t.told(), [(1, Ok(()))]);
    assert_eq!(t.table.held_by(A).len(), 2, "other files and flocks stay");
    t.table.drop_session(A);
    assert_eq!(t.told(), [(3, Err(SESSION_ENDED)), (2, Ok(()))]);
    assert_eq!(t.table.held_by(A), []);
    t.table.drop_session(B);
    assert_eq!(t.table.counts(), LockCounts { held: 0, waiting: 0 });
}

#[test]
fn locks_are_given_back_after_a_restart() {
    let t = Bench::new();
    t.lock(A, write(1, 0..=9)).unwrap();
    t.lock(A, read(1, 30..=u64::MAX)).unwrap();
    t.lock(A, flock(5, true)).unwrap();
    t.lock(A, on(9, spec(LockKind::Ofd, 6, 3..=4, true))).unwrap();
    let held = t.table.held_by(A);
    let after = Bench::new();
    for spec in &held {
        after.table.restore(A, ClientId(1), spec).unwrap();
    }
    let sorted = |mut all: Vec<LockSpec>| {
        all.sort_unstable_by_key(|s| (s.ino, s.owner, s.start));
        all
    };
    assert_eq!(sorted(after.table.held_by(A)), sorted(held.clone()));
    let stolen = held.iter().find(|s| s.kind == LockKind::Ofd).unwrap();
    assert_eq!(after.table.restore(B, ClientId(2), stolen), EAGAIN);
}

#[test]
fn tables_are_bounded() {
    let limits = LockLimits { held: 6, held_by_session: 4, waiting: 3, waiting_of_session: 2 };
    let t = Bench::with(limits);
    for i in 0..4 {
        t.lock(A, write(1, i * 10..=i * 10)).unwrap();
    }
    assert_eq!(t.lock(A, write(1, 90..=90)), Err(Errno::ENOLCK));
    t.lock(B, write(1, 100..=109)).unwrap();
    t.lock(B, write(1, 200..=209)).unwrap();
    assert_eq!(t.lock(B, write(1, 300..=300)), Err(Errno::ENOLCK), "the whole table is full");
    assert_eq!(t.table.unset(B, &write(1, 105..=105)), Err(Errno::ENOLCK), "it would split");
    t.unlock(A, write(1, 30..=30));
    for ticket in 1..=2 {
        t.wait(A, ticket, write(20 + ticket, 99 + ticket..=99 + ticket)).unwrap();
    }
    assert_eq!(t.wait(A, 9, write(9, 100..=100)), Err(Errno::ENOLCK));
    t.wait(B, 3, write(1, 0..=0)).unwrap();
    assert_eq!(t.wait(SessionId(3), 9, write(9, 100..=100)), Err(Errno::ENOLCK));
    // What was waited for is free, but A has room for one more range only.
    t.table.drop_owner(B, Ino(2), LockKind::Posix, 1);
    assert_eq!(t.told(), [(1, Ok(())), (2, Err(Errno::ENOLCK))]);
    t.table.drop_session(A);
    t.table.drop_session(B);
    assert_eq!(t.table.counts(), LockCounts { held: 0, waiting: 0 });
}

#[test]
fn a_program_that_is_right_on_linux_does_not_hang_on_a_waiting_writer() {
    let t = Bench::new();
    t.lock(A, flock(1, false)).unwrap();
    t.wait(B, 1, flock(2, true)).unwrap();
    // A child that its parent, owner 1, waits for.
    assert_eq!(t.wait(A, 2, flock(3, false)), Ok(LockState::Free));
}

#[test]
fn a_writer_that_was_overtaken_often_holds_newcomers_back_for_a_while() {
    let t = Bench::new();
    t.lock(A, flock(1, false)).unwrap();
    t.wait(B, 1, flock(2, true)).unwrap();
    let mut ticket = 10;
    let mut newcomer = |owner| {
        ticket += 1;
        t.wait(A, ticket, flock(owner, false))
    };
    for owner in 0..u64::from(OVERTAKEN_OFTEN) {
        assert_eq!(newcomer(100 + owner), Ok(LockState::Free));
    }
    assert_eq!(newcomer(500), Ok(LockState::Waits), "held back, though only shared locks are held");
    t.lock(A, flock(501, false)).unwrap();
    // Nobody gives anything up: the newcomer is let go all the same.
    let began = Instant::now();
    let told = t.told.recv_timeout(Duration::from_secs(5)).unwrap();
    assert_eq!(told.1, Ok(()));
    assert!(told.0 > 10 && began.elapsed() < Duration::from_secs(2));
    for owner in 0..u64::from(OVERTAKEN_OFTEN) - 1 {
        assert_eq!(newcomer(600 + owner), Ok(LockState::Free));
    }
    assert_eq!(newcomer(700), Ok(LockState::Waits));
    let (last, reader) = (ticket, flock(700, false));
    for held in t.table.held_by(A) {
        t.unlock(A, held);
    }
    assert_eq!(t.told(), [(1, Ok(()))], "the writer comes first");
    t.unlock(B, flock(2, true));
    assert_eq!(t.told(), [(last, Ok(()))]);
    t.unlock(A, reader);
    assert_eq!(t.table.counts(), LockCounts { held: 0, waiting: 0 });
}

#[test]
fn a_cancelled_writer_holds_nobody_back() {
    let t = Bench::new();
    t.lock(A, flock(1, false)).unwrap();
    t.wait(B, 1, flock(2, true)).unwrap();
    for owner in 0..u64::from(OVERTAKEN_OFTEN) {
        t.lock(A, flock(100 + owner, false)).unwrap();
    }
    t.wait(A, 2, flock(500, false)).unwrap();
    t.table.cancel(B, Ticket(1));
    assert_eq!(t.told(), [(1, Err(Errno::EINTR)), (2, Ok(()))]);
}
