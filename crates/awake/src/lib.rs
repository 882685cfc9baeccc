//! Keeps the processors of this node from sleeping deeply while requests come one after the other.
//!
//! A program, the daemon of its mount and a server take turns: while one works the others wait. A
//! processor with nobody to run goes to sleep, and each turn then begins by waking one: 1 to 2 us from the
//! lightest sleep, 100 us and more from a deep one, 20 to 50 us where a hypervisor has to be
//! asked. The kernel's interface for such a need is the latency limit of `/dev/cpu_dma_latency`
//! (Documentation/power/pm_qos_interface.rst): as long as the file is open, no idle processor sleeps
//! deeper than the limit in it allows. Nobody's work is delayed by it, since the kernel gives
//! way at once to whatever can run; it costs power, and the turbo of the others.
//!
//! Invariants: the limit is asked for while requests come fast, and given up [`QUIET_LOOKS`] looks of [`LOOK`]
//! after the last burst; the kernel gives it up itself when the process dies. Without requests
//! nothing here runs. Whoever may not open the file (it is root's) goes on as before.
//!
//! Called for each request by the readers of a mount (`fuse`) and the connections of a server.

mod follow;
mod limit;
mod on_time;

pub use follow::Follower;
pub use on_time::{at_leisure, be_early, be_on_time};

use limit::Limit;
use parking_lot::{Condvar, Mutex};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Requests after which it is looked whether they come fast.
const BURST: u64 = 16;
/// A burst is so many requests in less than this.
const BURST_WITHIN: Duration = Duration::from_millis(20);
/// How often it is looked whether requests still come.
const LOOK: Duration = Duration::from_millis(4);
/// Fewer requests than this between two looks are no burst any more.
const FEW: u64 = 2;
/// Looks without a burst in a row after which the limit is given up.
const QUIET_LOOKS: u32 = 3;

static KEEPER: Keeper = Keeper::new();

/// One request has come. Costs a counter, and every sixteenth time a look at the clock.
#[inline]
pub fn request() {
    KEEPER.request();
}

/// Whether processors may be kept awake at all; they may until this says no.
pub fn allow(yes: bool) {
    KEEPER.refused.store(!yes, Ordering::Relaxed);
}

/// Whether they are kept awake now.
pub fn is_on() -> bool {
    KEEPER.on.load(Ordering::Relaxed)
}

struct Keeper {
    requests: AtomicU64,
    /// When the last [`BURST`] was counted, in microseconds since `began`.
    counted_us: AtomicU64,
    began: OnceLock<Instant>,
    on: AtomicBool,
    /// By the user, or by the system.
    refused: AtomicBool,
    started: OnceLock<()>,
    wanted: Mutex<bool>,
    want: Condvar,
}

impl Keeper {
    const fn new() -> Keeper {
        Keeper {
            requests: AtomicU64::new(0),
            counted_us: AtomicU64::new(0),
            began: OnceLock::new(),
            on: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            started: OnceLock::new(),
            wanted: Mutex::new(false),
            want: Condvar::new(),
        }
    }

    #[inline]
    fn request(&'static self) {
        let count = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        if count % BURST == 0 && !self.on.load(Ordering::Relaxed) {
            self.look();
        }
    }

    #[cold]
    fn look(&'static self) {
        if self.refused.load(Ordering::Relaxed) {
            return;
        }
        let now_us = self.began.get_or_init(Instant::now).elapsed().as_micros() as u64;
        let before_us = self.counted_us.swap(now_us, Ordering::Relaxed);
        if before_us == 0 || now_us - before_us.min(now_us) > BURST_WITHIN.as_micros() as u64 {
            return;
        }
        self.started.get_or_init(|| {
            let run = move || self.keep();
            if let Err(error) = std::thread::Builder::new().name("awake".into()).spawn(run) {
                tracing::warn!(%error, "processors are not kept awake: no thread");
                self.refused.store(true, Ordering::Relaxed);
            }
        });
        *self.wanted.lock() = true;
        self.want.notify_one();
    }

    /// What the thread does, as long as the process lives.
    fn keep(&self) {
        let mut limit = match Limit::open() {
            Ok(limit) => limit,
            // Mostly EACCES: not root. The mount works as well, only slower.
            Err(error) => {
                tracing::info!(%error, path = limit::PATH, "idle processors may sleep deeply");
                self.refused.store(true, Ordering::Relaxed);
                return;
            }
        };
        loop {
            {
                let mut wanted = self.wanted.lock();
                while !*wanted {
                    self.want.wait(&mut wanted);
                }
                *wanted = false;
            }
            if let Err(error) = limit.ask() {
                tracing::warn!(%error, path = limit::PATH, "cannot keep processors awake");
                self.refused.store(true, Ordering::Relaxed);
                return;
            }
            self.on.store(true, Ordering::Relaxed);
            self.wait_for_quiet();
            self.on.store(false, Ordering::Relaxed);
            limit.give_up();
        }
    }

    fn wait_for_quiet(&self) {
        let mut quiet = 0;
        let mut last = self.requests.load(Ordering::Relaxed);
        while quiet < QUIET_LOOKS && !self.refused.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK);
            let now = self.requests.load(Ordering::Relaxed);
            quiet = if now - last < FEW { quiet + 1 } else { 0 };
            last = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn until(what: &str, mut is: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(10);
        while !is() {
            assert!(Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// One test, since there is one keeper in a process.
    #[test]
    fn processors_are_kept_awake_while_requests_come_fast_and_not_afterwards() {
        let before = limit::in_force().expect("tests run as root");
        // Slow requests: nothing happens.
        for _ in 0..3 * BURST {
            request();
            std::thread::sleep(Duration::from_millis(3));
        }
        assert!(!is_on(), "300 requests a second are slow");
        until("fast requests were not noticed", || {
            (0..BURST).for_each(|_| request());
            is_on()
        });
        assert!(limit::in_force().unwrap() <= limit::LIMIT_US, "the kernel was not asked");
        until("still on without requests", || !is_on());
        until("the limit is still there", || limit::in_force().unwrap() >= before);
        // Who does not want it.
        allow(false);
        for _ in 0..1000 * BURST {
            request();
        }
        std::thread::sleep(LOOK * 4);
        assert!(!is_on());
        allow(true);
    }
}
