//! The lease code under schedules that chance would hardly find: shuttle runs each test with
//! thousands of random orders of all steps between its threads, and says which failed.
//!
//! A client is made here as `client::remote::lease_cache` is: what it believes, and how many recalls it has
//! handled, which an answer under way is compared with. Run by `make test-full`:
//! `cargo test -p forebay-lease --features shuttle schedules`.

use super::leases::{Leases, Subject};
use super::recall::Channel;
use super::slots::{Before, Slots};
use forebay_proto::net::Answer;
use forebay_proto::net::session::{SessionId, SlotId};
use forebay_proto::{Errno, Ino};
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;
use std::time::{Duration, Instant};

/// Orders that each test is run with.
const SCHEDULES: usize = 20_000;
const READER: SessionId = SessionId(1);
const WRITER: SessionId = SessionId(2);
const FILE: Subject = Subject::Attrs(Ino(7));

/// Waits have no end by time here.
fn whenever() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

#[derive(Default)]
struct Belief {
    recalls: u64,
    value: Option<u64>,
}

/// A server with one thing that changes, and a mount that may believe it.
#[derive(Default)]
struct World {
    leases: Leases,
    channel: Channel,
    value: AtomicU64,
    belief: Mutex<Belief>,
}

impl World {
    fn recalled(&self) {
        let mut belief = self.belief.lock().unwrap();
        belief.recalls += 1;
        belief.value = None;
    }

    /// The mount asks: the lease is entered before the value is read, and counts only if no recall
    /// was handled between question and answer.
    fn ask(&self) {
        let mark = self.belief.lock().unwrap().recalls;
        let leased = self.leases.grant(FILE, READER).is_some();
        let value = self.value.load(Ordering::SeqCst);
        let mut belief = self.belief.lock().unwrap();
        if leased && belief.recalls == mark {
            belief.value = Some(value);
        }
    }

    /// Another mount changes it, as `Sessions::change` does.
    fn change(&self, session: SessionId) {
        let lost = self.leases.begin(FILE, Some(session));
        if lost.contains(&READER) {
            let serial = self.channel.recall(&[FILE]);
            assert!(self.channel.wait(serial, whenever()));
        }
        self.value.fetch_add(1, Ordering::SeqCst);
        self.nothing_old_is_believed();
        self.leases.end(FILE);
        self.nothing_old_is_believed();
    }

    fn nothing_old_is_believed(&self) {
        let belief = self.belief.lock().unwrap();
        // Read while it is looked at: what changes meanwhile may be believed still.
        if let Some(value) = belief.value {
            assert_eq!(value, self.value.load(Ordering::SeqCst), "an old value is believed");
        }
    }

    /// A connection for recalls. With `broken` it loses its first message; what it had is told on
    /// the next.
    fn serve(&self, broken: bool) {
        let turn = self.channel.connect();
        while let Some((serial, _)) = self.channel.next(turn) {
            if broken {
                thread::yield_now();
                self.channel.undelivered(turn);
                break;
            }
            self.recalled();
            self.channel.done(turn, serial);
        }
        self.channel.disconnect(turn);
    }
}

#[test]
fn nobody_believes_what_was_changed_when_the_change_returns() {
    shuttle::check_random(
        || {
            let world = Arc::new(World::default());
            let spawn = |work: fn(&World)| {
                let world = Arc::clone(&world);
                thread::spawn(move || work(&world))
            };
            let server = spawn(|world| world.serve(false));
            let ends = [spawn(World::ask), spawn(World::ask), spawn(|world| world.change(WRITER))];
            ends.into_iter().for_each(|end| end.join().unwrap());
            world.change(WRITER);
            world.channel.end();
            server.join().unwrap();
        },
        SCHEDULES,
    );
}

#[test]
fn no_recall_is_lost_when_its_connection_breaks_and_another_takes_over() {
    shuttle::check_random(
        || {
            let world = Arc::new(World::default());
            world.ask();
            assert!(world.belief.lock().unwrap().value.is_some());
            let spawn = |work: fn(&World)| {
                let world = Arc::clone(&world);
                thread::spawn(move || work(&world))
            };
            let broken = spawn(|world| {
                world.serve(true);
                // A client that is there connects again.
                world.serve(false);
            });
            let next = spawn(|world| world.serve(false));
            let other = spawn(|world| {
                // Something else to tell: its end is not that of the first.
                let serial = world.channel.recall(&[Subject::Names(Ino(9))]);
                assert!(world.channel.wait(serial, whenever()));
            });
            let change = spawn(|world| world.change(WRITER));
            change.join().unwrap();
            other.join().unwrap();
            world.channel.end();
            broken.join().unwrap();
            next.join().unwrap();
        },
        SCHEDULES,
    );
}

#[test]
fn the_end_of_a_session_lets_everybody_go_on() {
    shuttle::check_random(
        || {
            let world = Arc::new(World::default());
            world.ask();
            let held = Arc::clone(&world);
            let ends = thread::spawn(move || {
                held.leases.session_over(READER);
                held.channel.end();
                held.belief.lock().unwrap().value = None;
            });
            let held = Arc::clone(&world);
            let serves = thread::spawn(move || held.serve(false));
            let lost = world.leases.begin(FILE, Some(WRITER));
            if !lost.is_empty() {
                let serial = world.channel.recall(&[FILE]);
                assert!(world.channel.wait(serial, whenever()));
            }
            world.leases.end(FILE);
            ends.join().unwrap();
            serves.join().unwrap();
            assert_eq!(world.leases.count(), 0);
        },
        SCHEDULES,
    );
}

#[test]
fn a_call_that_is_repeated_on_three_connections_is_done_once() {
    shuttle::check_random(
        || {
            let slots = Arc::new(Slots::new());
            let done = Arc::new(AtomicU64::new(0));
            let attempts: Vec<_> = (0..3)
                .map(|_| {
                    let (slots, done) = (Arc::clone(&slots), Arc::clone(&done));
                    thread::spawn(move || {
                        let work = |before: Before| {
                            assert!(matches!(before, Before::Nothing));
                            let count = done.fetch_add(1, Ordering::SeqCst);
                            thread::yield_now();
                            Answer::failed(Errno(40 + count as i32))
                        };
                        slots.once(SlotId(0), 1, READER, work)
                    })
                })
                .collect();
            for attempt in attempts {
                let answer = attempt.join().unwrap().expect("an answer");
                assert_eq!(format!("{answer:?}"), format!("{:?}", Answer::failed(Errno(40))));
            }
            assert_eq!(done.load(Ordering::SeqCst), 1);
        },
        SCHEDULES,
    );
}
