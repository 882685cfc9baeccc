//! Many threads at once, waiting for real: nobody is let in beside a writer, nobody is lost.

use super::*;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

const THREADS: u64 = 12;
const ROUNDS: u64 = 400;
const CELLS: u64 = 8;

/// Readers count up, a writer takes 1,000,000: any other sum is somebody beside a writer.
const WRITER: i64 = 1_000_000;

struct Shared {
    table: Arc<LockTable>,
    cells: [AtomicI64; CELLS as usize],
    deadlocks: AtomicU64,
    cancelled: AtomicU64,
}

fn lock(shared: &Shared, session: SessionId, ticket: u64, spec: &LockSpec, cancel: bool) -> bool {
    let (tell, told) = channel();
    let waiter: LockWaiter = Box::new(move |result| tell.send(result).unwrap());
    let result = match shared.table.set(session, spec, Some((Ticket(ticket), waiter))) {
        Ok(LockState::Waits) => {
            if cancel {
                shared.table.cancel(session, Ticket(ticket));
            }
            told.recv_timeout(Duration::from_secs(60)).expect("a waiter that was lost")
        }
        other => other.map(|_| ()),
    };
    match result {
        Ok(()) => true,
        Err(Errno::EDEADLK) => {
            shared.deadlocks.fetch_add(1, Ordering::Relaxed);
            false
        }
        Err(Errno::EINTR) => {
            shared.cancelled.fetch_add(1, Ordering::Relaxed);
            false
        }
        Err(e) => panic!("{e}"),
    }
}

fn enter(shared: &Shared, spec: &LockSpec, enter: bool) {
    let weight = if spec.exclusive { WRITER } else { 1 };
    for cell in &shared.cells[spec.start as usize..=spec.end as usize] {
        if enter {
            let before = cell.fetch_add(weight, Ordering::SeqCst);
            let alone = if spec.exclusive { before == 0 } else { before < WRITER };
            assert!(alone, "{before} while {spec:?} was granted");
        } else {
            cell.fetch_sub(weight, Ordering::SeqCst);
        }
    }
}

fn one_thread(shared: &Shared, thread: u64, kind: LockKind) {
    let mut random = StdRng::seed_from_u64(thread);
    let session = SessionId(thread % 3);
    let owner = 100 + thread;
    for round in 0..ROUNDS {
        let mut held = Vec::new();
        // Two at a time in any order: circles come up all the time.
        let half = CELLS / 2;
        let (first, second) = match kind {
            LockKind::Posix => (0..half, Some(half..CELLS)),
            // Without detection of deadlocks only one at a time can go on for ever.
            LockKind::Ofd | LockKind::Flock => (0..CELLS, None),
        };
        let halves: Vec<_> = std::iter::once(first).chain(second).collect();
        let turned = if random.random() { 1 } else { 0 };
        for i in 0..halves.len() {
            let half = &halves[(i + turned) % halves.len()];
            let (a, b) = (random.random_range(half.clone()), random.random_range(half.clone()));
            let range = if kind == LockKind::Flock { 0..=CELLS - 1 } else { a.min(b)..=a.max(b) };
            let wanted = spec(kind, owner, range, random.random_ratio(1, 3));
            let ticket = thread * ROUNDS * 2 + round * 2 + i as u64;
            if lock(shared, session, ticket, &wanted, random.random_ratio(1, 8)) {
                enter(shared, &wanted, true);
                held.push(wanted);
            }
        }
        std::thread::yield_now();
        for held in held {
            enter(shared, &held, false);
            shared.table.unset(session, &held).unwrap();
        }
    }
}

#[test]
fn many_threads_that_wait_for_each_other() {
    for kind in [LockKind::Posix, LockKind::Ofd, LockKind::Flock] {
        let shared = Shared {
            table: LockTable::new(),
            cells: std::array::from_fn(|_| AtomicI64::new(0)),
            deadlocks: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
        };
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let shared = &shared;
                scope.spawn(move || one_thread(shared, thread, kind));
            }
        });
        assert_eq!(shared.table.counts(), LockCounts { held: 0, waiting: 0 });
        let deadlocks = shared.deadlocks.load(Ordering::Relaxed);
        assert_eq!(deadlocks > 0, kind == LockKind::Posix, "{deadlocks} deadlocks of {kind:?}");
    }
}

#[test]
fn a_writer_gets_through_a_crowd_of_readers() {
    let table = LockTable::new();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let waited = std::thread::scope(|scope| {
        for thread in 0..6u64 {
            let (table, stop) = (&table, &stop);
            scope.spawn(move || {
                let mut ticket = thread << 32;
                while !stop.load(Ordering::Relaxed) {
                    ticket += 1;
                    let (tell, told) = channel();
                    let waiter: LockWaiter = Box::new(move |result| tell.send(result).unwrap());
                    let reader = flock(thread + 10, false);
                    if table.set(A, &reader, Some((Ticket(ticket), waiter))) == Ok(LockState::Waits)
                    {
                        told.recv().unwrap().unwrap();
                    }
                    // The six overlap: at every moment somebody reads.
                    std::thread::sleep(Duration::from_millis(3));
                    table.unset(A, &reader).unwrap();
                }
            });
        }
        std::thread::sleep(Duration::from_millis(50));
        let began = std::time::Instant::now();
        let (tell, told) = channel();
        let waiter: LockWaiter = Box::new(move |result| tell.send(result).unwrap());
        let writer = flock(1, true);
        if table.set(B, &writer, Some((Ticket(1), waiter))) == Ok(LockState::Waits) {
            let told = told.recv_timeout(Duration::from_secs(20));
            stop.store(true, Ordering::Relaxed);
            told.expect("the writer starves").unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        table.unset(B, &writer).unwrap();
        began.elapsed()
    });
    assert!(waited < Duration::from_secs(10), "{waited:?}");
    assert_eq!(table.counts(), LockCounts { held: 0, waiting: 0 });
}
