//! Keeps a reader thread on the CPU of the client it serves.
//!
//! Client and reader take turns: while one works the other sleeps. On one CPU a turn is a
//! context switch; on two it is an interrupt to another CPU, which may be busy or asleep. On a
//! busy machine of 2 CPUs that was measured to make 26,000 instead of 7,000 files per second.
//! The scheduler cannot know that the two take turns, so it often chooses the second.
//!
//! A thread that made [`FOLLOW_AFTER`] requests in a row is followed, by the reader's affinity,
//! until somebody else asks. Where it runs is looked up once in so many requests, as the look
//! costs two requests. Nothing here can fail in a way that matters: then the reader runs where
//! the scheduler puts it.
//!
//! A thread of its own looks, for all readers, and no reader waits for it. A client that begins a program closes its copies of files
//! first, by requests to its mounts, and until they are answered the kernel lets nobody read its `stat`: a reader that looked by
//! itself would wait for a client that waits for it.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Requests of one thread in a row after which it is followed, and after which it is looked
/// again where it runs.
const FOLLOW_AFTER: u32 = 256;

/// The same while it is found where it was: twice as many each time, up to so many.
const FOLLOW_AFTER_MOST: u32 = 1024;

/// Requests of one thread in a row after which it is taken to ask alone.
const ALONE_AFTER: u32 = 16;

/// Most looks that wait; the others are left out.
const MAX_QUEUED: usize = 64;

/// What was seen last, for one reader: a thread, and the CPU on which it ran.
type Seen = Arc<Mutex<Option<(u32, usize)>>>;

/// A thread to look at, and who wants to know.
type Wanted = (u32, Seen);

/// What one reader knows about its client.
pub(crate) struct Follower {
    /// CPUs that the reader may use; `None` turns following off.
    allowed: Option<CpuSet>,
    tid: u32,
    in_a_row: u32,
    /// Requests in a row until it is looked.
    after: u32,
    alone: u32,
    pinned: Option<usize>,
    /// A look is on its way.
    asked: bool,
    seen: Seen,
}

impl Follower {
    /// For the calling thread.
    pub(crate) fn new(enabled: bool) -> Follower {
        let allowed = if enabled { sched_getaffinity(None).ok() } else { None };
        Follower {
            allowed,
            tid: 0,
            in_a_row: 0,
            after: FOLLOW_AFTER,
            alone: 0,
            pinned: None,
            asked: false,
            seen: Seen::default(),
        }
    }

    /// Counts a request of a thread; 0 is the kernel itself (releases, forgets).
    pub(crate) fn request_of(&mut self, tid: u32) {
        if tid == 0 {
            return;
        }
        self.alone = if tid == self.tid { self.alone.saturating_add(1) } else { 0 };
        if self.allowed.is_none() {
            self.tid = tid;
            return;
        }
        if tid != self.tid {
            self.tid = tid;
            self.in_a_row = 0;
            self.after = FOLLOW_AFTER;
            self.run_anywhere();
            return;
        }
        self.go_where_it_runs();
        self.in_a_row += 1;
        if self.in_a_row >= self.after {
            self.in_a_row = 0;
            self.asked = look_at(tid, &self.seen);
        }
    }

    /// True while all requests come from one thread, as far as this reader sees.
    pub(crate) fn asks_alone(&self) -> bool {
        self.alone >= ALONE_AFTER
    }

    fn run_anywhere(&mut self) {
        if self.pinned.take().is_some() {
            if let Some(allowed) = &self.allowed {
                // If it fails we stay where we are, which is right too.
                let _ = sched_setaffinity(None, allowed);
            }
        }
    }

    /// If a look has found out where.
    fn go_where_it_runs(&mut self) {
        let (true, Some(allowed)) = (self.asked, &self.allowed) else { return };
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((tid, cpu)) = seen else { return };
        self.asked = false;
        if tid != self.tid {
            return;
        }
        if self.pinned == Some(cpu) {
            self.after = (self.after * 2).min(FOLLOW_AFTER_MOST);
            return;
        }
        self.after = FOLLOW_AFTER;
        if cpu >= CpuSet::MAX_CPU || !allowed.is_set(cpu) {
            return;
        }
        let mut only = CpuSet::new();
        only.set(cpu);
        if sched_setaffinity(None, &only).is_ok() {
            self.pinned = Some(cpu);
        }
    }
}

/// Has a thread looked at; false if nobody can.
fn look_at(tid: u32, seen: &Seen) -> bool {
    static LOOKS: OnceLock<Option<SyncSender<Wanted>>> = OnceLock::new();
    let looks = LOOKS.get_or_init(|| {
        let (wants, wanted) = sync_channel(MAX_QUEUED);
        let looks = move || look(&wanted, cpu_of);
        std::thread::Builder::new().name("follow".into()).spawn(looks).ok().map(|_| wants)
    });
    looks.as_ref().is_some_and(|looks| looks.try_send((tid, Arc::clone(seen))).is_ok())
}

/// What the thread does that looks: to the end of the process.
fn look(wanted: &Receiver<Wanted>, cpu_of: impl Fn(u32) -> Option<usize>) {
    while let Ok((tid, seen)) = wanted.recv() {
        let cpu = cpu_of(tid);
        *seen.lock().unwrap_or_else(PoisonError::into_inner) = cpu.map(|cpu| (tid, cpu));
    }
}

/// The CPU on which a thread ran last: field 39 of /proc/TID/stat (proc(5)).
fn cpu_of(tid: u32) -> Option<usize> {
    let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).ok()?;
    // The name, field 2, may contain anything; what follows its last parenthesis is plain.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(39 - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_look_that_hangs_holds_no_reader_up() {
        let (wants, wanted) = sync_channel::<Wanted>(1);
        let (let_go, hangs) = sync_channel::<()>(0);
        let seen = Seen::default();
        let looks = std::thread::spawn(move || {
            look(&wanted, |tid| {
                let _ = hangs.recv();
                Some(tid as usize)
            });
        });
        wants.send((7, Arc::clone(&seen))).unwrap();
        // The client of this reader begins a program now; the reader serves it all the same.
        let mut follower = Follower::new(true);
        (follower.tid, follower.asked, follower.seen) = (7, true, Arc::clone(&seen));
        follower.request_of(7);
        assert!(follower.asked && follower.pinned.is_none());
        drop((let_go, wants));
        looks.join().unwrap();
        assert_eq!(*seen.lock().unwrap(), Some((7, 7)));
    }

    #[test]
    fn a_client_that_stays_where_it_is_is_looked_for_more_seldom() {
        let mut follower = Follower::new(true);
        (follower.tid, follower.pinned) = (7, Some(0));
        // Where no reader may run: none is moved here.
        let elsewhere = CpuSet::MAX_CPU;
        for (cpu, after) in [(0, 512), (0, 1024), (0, 1024), (elsewhere, 256), (0, 512)] {
            follower.asked = true;
            *follower.seen.lock().unwrap() = Some((7, cpu));
            follower.request_of(7);
            assert_eq!((follower.asked, follower.after), (false, after), "seen at {cpu}");
        }
        follower.request_of(8);
        assert_eq!(follower.after, FOLLOW_AFTER);
    }

    #[test]
    fn a_thread_asks_alone_until_another_one_does() {
        for enabled in [true, false] {
            let mut follower = Follower::new(enabled);
            for _ in 0..=ALONE_AFTER {
                assert!(!follower.asks_alone());
                follower.request_of(7);
                follower.request_of(0);
            }
            assert!(follower.asks_alone());
            follower.request_of(8);
            assert!(!follower.asks_alone());
        }
    }

    #[test]
    fn a_reader_goes_to_its_client_and_leaves_again() {
        // On a thread of its own: affinity must not leak into other tests.
        std::thread::spawn(|| {
            let before = sched_getaffinity(None).unwrap();
            let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            let mut follower = Follower::new(true);
            for _ in 0..=FOLLOW_AFTER {
                follower.request_of(own);
                follower.request_of(0);
            }
            // Somebody else looks where we run.
            let until = Instant::now() + Duration::from_secs(60);
            while sched_getaffinity(None).unwrap().count() != 1 && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
                follower.request_of(own);
            }
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
            follower.request_of(own + 1);
            assert_eq!(sched_getaffinity(None).unwrap(), before);
        })
        .join()
        .unwrap();
    }
}
