//! Which of several readers reads, for a file system whose answers may take long.
//!
//! Readers that wait together are woken in turn, each on a processor of its own: measured, that
//! costs more than it brings, as a request and its answer then cross processors. So one reader
//! reads and serves, and the others stand by. A monitor looks every [`LOOK`] while requests come;
//! when all readers at work were at the same request before, it lets another one read. A reader
//! that has answered stands by again if another one reads.
//!
//! While several threads move large blocks ([`ReaderHandoff::asks`]) it is the other way round: handing each
//! over to a worker costs more than the turns. So some readers read abreast and serve what they read, but
//! no more of them at once: the others are left for requests that may have to wait for each other.
//!
//! Invariant: unless all readers serve, at least one reads: a reader stands by only under the
//! lock, while another one is seen reading, and who reads goes on to serve without it.

use parking_lot::{Condvar, Mutex};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// How often the monitor looks.
const LOOK: Duration = Duration::from_millis(1);
/// Looks without any request after which it sleeps until one comes.
const IDLE_LOOKS: u32 = 200;

/// How sure it gets that large blocks of several threads come: so much surer with each that is of another
/// thread than the one before, one less with any other request. From the one on readers read abreast, until
/// it is down at the other.
const SURER: u32 = 2;
const SURE_MAX: u32 = 16;
const SURE_IT_BEGAN: u32 = 12;
const SURE_IT_ENDED: u32 = 4;

/// Looks at which all wait for the same before more readers are started: not for calls that are only slow.
const LONG_LOOKS: u32 = 50;
/// Most readers: so many requests may wait for somebody else before nobody reads that they are interrupted.
const MOST: usize = 256;

/// Starts a reader with this number; false if that cannot be.
type Start = Box<dyn Fn(usize) -> bool + Send + Sync>;

/// What a reader does; the number above it counts what it has served.
const STANDS_BY: u64 = 0;
const READS: u64 = 1;
const SERVES: u64 = 2;
const WHAT: u64 = 3;
const ONE_MORE: u64 = 4;

/// The readers of one mount.
pub(crate) struct ReaderHandoff {
    readers: Vec<AtomicU64>,
    /// So many of them there are, from the front.
    started: AtomicUsize,
    /// Starts more, when all are stuck.
    start: OnceLock<Start>,
    lock: Mutex<()>,
    /// Signalled when a reader may read, or the mount is over.
    may_read: Condvar,
    /// Signalled when the monitor is to look again.
    look: Condvar,
    monitor_sleeps: AtomicBool,
    over: AtomicBool,
    /// How many may read at once.
    may: AtomicUsize,
    /// How many may while several threads move large blocks.
    abreast: usize,
    /// How sure it is that blocks are large, and of several threads.
    sure: AtomicU32,
    /// Who asked for the last one.
    last_tid: AtomicU32,
}

impl ReaderHandoff {
    /// The first of `count` readers reads, the others stand by; of large blocks `abreast` do, or all but
    /// one if that is less.
    pub(crate) fn new(count: usize, abreast: usize) -> ReaderHandoff {
        let most = count.max(MOST);
        let readers: Vec<AtomicU64> = (0..most).map(|_| AtomicU64::new(STANDS_BY)).collect();
        if let Some(first) = readers.first() {
            first.store(READS, Ordering::SeqCst);
        }
        ReaderHandoff {
            readers,
            started: AtomicUsize::new(count),
            start: OnceLock::new(),
            lock: Mutex::new(()),
            may_read: Condvar::new(),
            look: Condvar::new(),
            monitor_sleeps: AtomicBool::new(false),
            over: AtomicBool::new(false),
            may: AtomicUsize::new(1),
            abreast: abreast.min(count.saturating_sub(1)).max(1),
            sure: AtomicU32::new(0),
            last_tid: AtomicU32::new(0),
        }
    }

    /// Who starts more readers when all are stuck; once.
    pub(crate) fn start_more_by(&self, start: impl Fn(usize) -> bool + Send + Sync + 'static) {
        // A second one would be the same.
        let _first = self.start.set(Box::new(start));
    }

    fn count(&self) -> usize {
        self.started.load(Ordering::SeqCst)
    }

    fn what(&self, reader: usize) -> u64 {
        self.readers[reader].load(Ordering::SeqCst) & WHAT
    }

    fn become_(&self, reader: usize, what: u64) {
        let now = self.readers[reader].load(Ordering::SeqCst);
        self.readers[reader].store((now & !WHAT) | what, Ordering::SeqCst);
    }

    fn others(&self, reader: usize) -> impl Iterator<Item = u64> + '_ {
        (0..self.count()).filter(move |other| *other != reader).map(|other| self.what(other))
    }

    /// As many others read as may.
    fn others_read(&self, reader: usize) -> bool {
        let reading = self.others(reader).filter(|what| *what == READS).count();
        reading >= self.may.load(Ordering::SeqCst)
    }

    /// Few enough others serve that this one may, too, for as long as it takes.
    pub(crate) fn is_relieved(&self, reader: usize) -> bool {
        let serving = self.others(reader).filter(|what| *what == SERVES).count();
        serving < self.abreast
    }

    /// A thread asked for something, a large block or not. True while several threads ask for one large block
    /// after the other. Readers that count at once may lose a step: it is a guess.
    pub(crate) fn asks(&self, tid: u32, is_large: bool) -> bool {
        let before = self.sure.load(Ordering::Relaxed);
        let changes = is_large && self.last_tid.swap(tid, Ordering::Relaxed) != tid;
        let sure = match changes {
            true => (before + SURER).min(SURE_MAX),
            false => before.saturating_sub(1),
        };
        if sure != before {
            self.sure.store(sure, Ordering::Relaxed);
        }
        let several = self.may.load(Ordering::SeqCst) > 1;
        if sure >= SURE_IT_BEGAN && !several && self.abreast > 1 {
            let _lock = self.lock.lock();
            self.may.store(self.abreast, Ordering::SeqCst);
            for _ in 1..self.abreast {
                let _all_read = self.let_another_read();
            }
        } else if sure <= SURE_IT_ENDED && several {
            // Who is one too many stands by after its next request.
            self.may.store(1, Ordering::SeqCst);
        }
        several
    }

    /// Before it reads, each time: returns when it is to read.
    pub(crate) fn wait_to_read(&self, reader: usize) {
        if self.what(reader) == SERVES {
            let now = self.readers[reader].load(Ordering::SeqCst);
            if !self.others_read(reader) {
                self.readers[reader].store(now - SERVES + READS + ONE_MORE, Ordering::SeqCst);
                return;
            }
        } else if self.what(reader) == READS {
            return;
        }
        let mut lock = self.lock.lock();
        if self.what(reader) == SERVES {
            // Still? One may have begun to serve meanwhile.
            let keeps = !self.others_read(reader);
            self.become_(reader, if keeps { READS } else { STANDS_BY });
        }
        while self.what(reader) == STANDS_BY && !self.over.load(Ordering::SeqCst) {
            self.may_read.wait(&mut lock);
        }
        self.become_(reader, READS);
    }

    /// It has read a request and serves it.
    pub(crate) fn serves(&self, reader: usize) {
        let now = self.readers[reader].load(Ordering::SeqCst);
        self.readers[reader].store(now - READS + SERVES, Ordering::SeqCst);
        if self.monitor_sleeps.load(Ordering::SeqCst) {
            drop(self.lock.lock());
            self.look.notify_one();
        }
    }

    /// The mount is over: nobody stands by any more.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        drop(self.lock.lock());
        self.may_read.notify_all();
        self.look.notify_all();
    }

    fn seen(&self) -> Vec<u64> {
        self.readers[..self.count()].iter().map(|reader| reader.load(Ordering::SeqCst)).collect()
    }

    /// What the monitor's thread does until the end.
    pub(crate) fn monitor(&self) {
        let mut last = self.seen();
        let mut idle = 0;
        // What all did when nobody stood by, and how often they were seen at just that.
        let mut stall: Option<(Vec<u64>, u32)> = None;
        while !self.over.load(Ordering::SeqCst) {
            let mut lock = self.lock.lock();
            if idle >= IDLE_LOOKS {
                self.monitor_sleeps.store(true, Ordering::SeqCst);
                // A request that came just before would not have waked it.
                if self.seen() == last && !self.over.load(Ordering::SeqCst) {
                    self.look.wait(&mut lock);
                }
                self.monitor_sleeps.store(false, Ordering::SeqCst);
                idle = 0;
            } else {
                let _ = self.look.wait_for(&mut lock, LOOK);
            }
            let now = self.seen();
            let stuck = now == last && !now.iter().any(|reader| reader & WHAT == READS);
            if stuck && !self.let_another_read() {
                match &mut stall {
                    Some((since, looks)) if now.starts_with(since) => {
                        *looks += 1;
                        if *looks >= LONG_LOOKS {
                            self.start_another();
                        }
                    }
                    _ => stall = Some((now.clone(), 0)),
                }
            }
            // Readers that only stand by or read are idle; one that serves is looked after.
            let at_work = now.iter().any(|reader| reader & WHAT == SERVES);
            idle = if now == last && !at_work { idle + 1 } else { 0 };
            last = now;
        }
    }

    /// Under the lock. False if nobody stands by.
    fn let_another_read(&self) -> bool {
        let Some(next) = (0..self.count()).find(|reader| self.what(*reader) == STANDS_BY) else {
            return false;
        };
        self.become_(next, READS);
        self.may_read.notify_all();
        true
    }

    /// Under the lock: all wait for somebody.
    fn start_another(&self) {
        let (next, Some(start)) = (self.count(), self.start.get()) else { return };
        if next < self.readers.len() && !self.over.load(Ordering::SeqCst) {
            self.become_(next, READS);
            self.started.store(next + 1, Ordering::SeqCst);
            if !start(next) {
                self.started.store(next, Ordering::SeqCst);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    #[test]
    fn one_reads_until_it_is_stuck() {
        let turns = Arc::new(ReaderHandoff::new(2, 2));
        let monitor = Arc::clone(&turns);
        let monitoring = std::thread::spawn(move || monitor.monitor());
        let (began, begun) = channel();
        let second = Arc::clone(&turns);
        let standing_by = std::thread::spawn(move || {
            second.wait_to_read(1);
            began.send(()).unwrap();
            second.serves(1);
            second.wait_to_read(1);
            began.send(()).unwrap();
        });
        for _ in 0..50 {
            turns.wait_to_read(0);
            turns.serves(0);
        }
        turns.wait_to_read(0);
        assert!(begun.recv_timeout(LOOK * 20).is_err(), "the first reads: nobody else is needed");
        turns.serves(0);
        begun.recv_timeout(Duration::from_secs(10)).expect("the first is stuck");
        begun.recv_timeout(Duration::from_secs(10)).expect("nobody else reads");
        turns.wait_to_read_or_not(0);
        standing_by.join().unwrap();
        turns.end();
        monitoring.join().unwrap();
    }

    /// Readers 1 and 2 of four, each telling when it may read.
    fn stand_by(turns: &Arc<ReaderHandoff>) -> std::sync::mpsc::Receiver<usize> {
        let (may, may_read) = channel();
        for reader in [1, 2] {
            let (turns, may) = (Arc::clone(turns), may.clone());
            std::thread::spawn(move || {
                turns.wait_to_read(reader);
                // After the end nobody may listen any more.
                let _ = may.send(reader);
            });
        }
        may_read
    }

    #[test]
    fn large_blocks_of_several_threads_are_read_abreast_until_they_end() {
        let turns = Arc::new(ReaderHandoff::new(4, 2));
        let may_read = stand_by(&turns);
        for tid in [7, 8].into_iter().cycle().take((SURE_IT_BEGAN / SURER) as usize) {
            assert!(!turns.asks(tid, true));
        }
        let second = may_read.recv_timeout(Duration::from_secs(10)).expect("it reads, too");
        assert!(may_read.recv_timeout(LOOK * 20).is_err(), "two are enough");
        assert!(turns.asks(7, true));
        // Both serve: nobody else serves for long, or names would wait.
        turns.serves(0);
        assert!(turns.is_relieved(0));
        turns.serves(second);
        assert!(turns.is_relieved(second), "one beside it");
        assert!(!turns.is_relieved(3), "two beside it");
        turns.wait_to_read(0);
        turns.wait_to_read(second);
        for _ in 0..SURE_MAX {
            turns.asks(9, false);
        }
        assert!(!turns.asks(9, false));
        turns.serves(0);
        turns.wait_to_read_or_not(0);
        turns.end();
    }

    #[test]
    fn large_blocks_of_one_thread_are_read_by_one() {
        let turns = Arc::new(ReaderHandoff::new(4, 2));
        let may_read = stand_by(&turns);
        for at in 0..200 {
            // Another one comes by now and then.
            assert!(!turns.asks(if at % 8 == 0 { 8 } else { 7 }, true));
        }
        assert!(may_read.recv_timeout(LOOK * 20).is_err(), "the first one reads");
        turns.end();
    }

    #[test]
    fn the_end_wakes_who_stands_by() {
        let turns = Arc::new(ReaderHandoff::new(3, 2));
        let waiting: Vec<_> = (1..3)
            .map(|reader| {
                let turns = Arc::clone(&turns);
                std::thread::spawn(move || turns.wait_to_read(reader))
            })
            .collect();
        let monitor = Arc::clone(&turns);
        let monitoring = std::thread::spawn(move || monitor.monitor());
        std::thread::sleep(LOOK * 3);
        turns.end();
        for thread in waiting {
            thread.join().unwrap();
        }
        monitoring.join().unwrap();
    }

    impl ReaderHandoff {
        /// The first reader has answered while the second reads: it stands by.
        fn wait_to_read_or_not(self: &Arc<ReaderHandoff>, reader: usize) {
            let turns = Arc::clone(self);
            let (back, came_back) = channel();
            std::thread::spawn(move || {
                turns.wait_to_read(reader);
                // The test may have ended by now.
                let _ = back.send(());
            });
            assert!(came_back.recv_timeout(LOOK * 20).is_err(), "the other one reads");
        }
    }
}
