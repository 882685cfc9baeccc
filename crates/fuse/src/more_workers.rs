//! More workers while all of them are held up, by a server or a PFS that does not answer: a call that needs neither is served
//! beside them.
//!
//! A thread of its own looks only while a request waits and nobody takes one. Where the workers are merely busy, one of them takes the
//! next request soon, and there are no more of them.
//!
//! Invariants: there are never more than [`MOST_WORKERS`], or as many as the mount was asked for; what was started
//! beyond those ends after [`IDLE`] without a request, and with the mount; nothing is started once the mount ends.
//! Called by `session`, which starts the thread, and by `workers`.

use crate::connection::Connection;
use crate::workers;
use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most workers of a mount, unless it was asked for more.
pub(crate) const MOST_WORKERS: usize = 48;
/// The workers are held up if a request waits and none of them took one for so long.
const HELD_UP: Duration = Duration::from_millis(50);
/// How often it is looked at meanwhile.
const LOOK: Duration = Duration::from_millis(10);
/// How long one that was started beyond the first ones stays without a request.
pub(crate) const IDLE: Duration = Duration::from_secs(10);

/// How many workers are to be started.
fn to_start(queued: usize, untaken_for: Duration, there_are: usize, at_most: usize) -> usize {
    match untaken_for >= HELD_UP {
        true => queued.min(at_most.saturating_sub(there_are)),
        false => 0,
    }
}

#[derive(Default)]
struct Started {
    /// Of those beyond the first ones. Bounded by what may run at once: who has ended is taken out before another one is put in.
    threads: Vec<JoinHandle<()>>,
    running: usize,
    /// The mount ends.
    is_over: bool,
}

/// The workers beyond the first ones.
pub(crate) struct MoreWorkers {
    /// Those that are there from the beginning.
    first: usize,
    at_most: usize,
    begun: Instant,
    /// When a request was taken last, in milliseconds after `begun`.
    taken_ms: AtomicU64,
    /// Workers that wait for a request.
    idle: AtomicUsize,
    /// A request waits. Room for one word: it says all.
    bell: (Sender<()>, Receiver<()>),
    started: Mutex<Started>,
}

impl MoreWorkers {
    pub(crate) fn new(first: usize) -> MoreWorkers {
        MoreWorkers {
            first,
            at_most: first.max(MOST_WORKERS),
            begun: Instant::now(),
            taken_ms: AtomicU64::new(0),
            idle: AtomicUsize::new(0),
            bell: bounded(1),
            started: Mutex::default(),
        }
    }

    /// A worker waits for a request.
    pub(crate) fn waits(&self) {
        self.idle.fetch_add(1, Ordering::Relaxed);
    }

    /// It has one, or has waited long enough; so many are left.
    pub(crate) fn took(&self, queued: usize) {
        self.idle.fetch_sub(1, Ordering::AcqRel);
        self.taken_ms.store(self.begun.elapsed().as_millis() as u64, Ordering::Relaxed);
        self.looks_after(queued);
    }

    /// So many requests wait: somebody looks if they are more than the workers that wait. Called by who puts one into the queue, and by who
    /// takes one: each may not have seen what the other did.
    pub(crate) fn looks_after(&self, queued: usize) {
        if queued > self.idle.load(Ordering::Acquire) {
            // Full: it was called already.
            let _ = self.bell.0.try_send(());
        }
    }

    /// One beyond the first ones has waited for [`IDLE`]; false if it has to stay for what comes just now.
    pub(crate) fn may_end(&self, queued: usize) -> bool {
        let mut started = self.started.lock();
        let may = queued == 0 || started.is_over;
        started.running -= usize::from(may);
        may
    }

    /// The mount ends: nothing is started any more. How many workers have to be told.
    pub(crate) fn stop(&self) -> usize {
        let mut started = self.started.lock();
        started.is_over = true;
        let _ = self.bell.0.try_send(());
        self.first + started.running
    }

    /// Waits until those that were started have ended. After [`MoreWorkers::stop`].
    pub(crate) fn join(&self) {
        let threads = std::mem::take(&mut self.started.lock().threads);
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread of the mount had panicked");
            }
        }
    }

    fn untaken_for(&self) -> Duration {
        let taken = Duration::from_millis(self.taken_ms.load(Ordering::Relaxed));
        self.begun.elapsed().saturating_sub(taken)
    }

    /// Starts what is to be started, where requests were seen to wait `seen_for`. False if the mount ends.
    fn start(
        &self,
        queued: usize,
        seen_for: Duration,
        spawn: impl Fn(usize) -> std::io::Result<JoinHandle<()>>,
    ) -> bool {
        let mut started = self.started.lock();
        if started.is_over {
            return false;
        }
        started.threads.retain(|thread| !thread.is_finished());
        let there_are = self.first + started.running;
        for number in 0..to_start(queued, self.untaken_for().min(seen_for), there_are, self.at_most)
        {
            match spawn(there_are + number) {
                Ok(thread) => {
                    started.threads.push(thread);
                    started.running += 1;
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot start a thread for requests that take long");
                    break;
                }
            }
        }
        true
    }
}

/// What the thread that looks does until the mount ends.
pub(crate) fn run(cx: &Arc<Connection>) {
    let (more, workers) = (cx.workers.more(), &cx.workers);
    let spawn = |number: usize| {
        let cx = Arc::clone(cx);
        let thread = std::thread::Builder::new().name(format!("fuse-work-{number}"));
        thread.spawn(move || workers::run_for_a_while(&cx))
    };
    while more.bell.1.recv().is_ok() {
        let seen_at = Instant::now();
        loop {
            if !more.start(workers.queued(), seen_at.elapsed(), spawn) {
                return;
            }
            std::thread::sleep(LOOK);
            if workers.queued() == 0 {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_are_started_where_nobody_takes_what_waits_and_never_beyond_the_bound() {
        let (busy, held_up) = (HELD_UP / 2, HELD_UP);
        assert_eq!(to_start(3, busy, 4, MOST_WORKERS), 0, "one of them takes it soon");
        assert_eq!(to_start(3, held_up, 4, MOST_WORKERS), 3);
        assert_eq!(to_start(0, held_up, 4, MOST_WORKERS), 0);
        assert_eq!(to_start(100, held_up, 4, MOST_WORKERS), MOST_WORKERS - 4);
        assert_eq!(to_start(1, held_up, MOST_WORKERS, MOST_WORKERS), 0);
        assert_eq!(to_start(1, held_up, 64, 64), 0, "as many as it was asked for");
    }

    #[test]
    fn nothing_is_started_once_the_mount_ends_and_all_are_told() {
        let more = MoreWorkers::new(2);
        more.waits();
        more.took(0);
        std::thread::sleep(HELD_UP);
        let spawn = |_| std::thread::Builder::new().spawn(|| {});
        assert!(
            more.start(3, HELD_UP / 2, spawn) && more.started.lock().running == 0,
            "seen just now"
        );
        assert!(more.start(3, HELD_UP, spawn));
        assert!(!more.may_end(1), "it is needed now");
        assert!(more.may_end(0));
        assert_eq!(more.stop(), 2 + 2);
        assert!(!more.start(3, HELD_UP, spawn));
        more.join();
    }
}
