//! How the thread that chooses pages waits: until it is called, a watched file is written, or a time is over.
//!
//! The kernel tells of a write also where it makes it for a program by itself, on the fast path (inotify; Linux 6.18). A
//! watch is for one write and is gone with it, so a stream of writes pays for its first ones. Stores into a mapping
//! are not told: they make no file longer, so they make no hole that nobody knows of.
//!
//! Invariant: a call or write that came before a wait ends it. Called by [`super`].

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

/// Room for what the kernel tells at a time, in bytes: 16 a write.
const TOLD_BYTES: usize = 4096;
/// Pause where the kernel does not let it wait.
const FAILED_PAUSE: Duration = Duration::from_millis(10);

/// A watched file, until its next write.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Watch(i32);

/// What the thread waits for.
pub(super) struct Bell {
    calls: OwnedFd,
    writes: OwnedFd,
}

impl Bell {
    pub(super) fn new() -> io::Result<Bell> {
        Ok(Bell {
            calls: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            writes: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
        })
    }

    /// Ends the wait, or the next one.
    pub(super) fn ring(&self) {
        // It fails only where there were calls enough already.
        let _called = io::write(&self.calls, &1_u64.to_ne_bytes());
    }

    /// The next write to a file ends the wait. Fails where there are too many watches.
    pub(super) fn watch(&self, path: &Path) -> io::Result<Watch> {
        let once = WatchFlags::MODIFY | WatchFlags::ONESHOT;
        inotify::add_watch(&self.writes, path, once).map(Watch)
    }

    /// A file need not be watched any more.
    pub(super) fn forget(&self, watch: Watch) {
        // It is gone already after a write, and with its file.
        let _gone = inotify::remove_watch(&self.writes, watch.0);
    }

    /// Waits, at most so long. Gives what was written, or was forgotten meanwhile.
    pub(super) fn wait(&self, limit: Option<Duration>) -> Vec<Watch> {
        let limit = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs().min(1 << 30) as i64,
            tv_nsec: i64::from(limit.subsec_nanos()),
        });
        let mut ends =
            [PollFd::new(&self.calls, PollFlags::IN), PollFd::new(&self.writes, PollFlags::IN)];
        if poll(&mut ends, limit.as_ref()).is_err() {
            std::thread::sleep(FAILED_PAUSE);
        }
        let mut count = [0_u8; 8];
        let _calls = io::read(&self.calls, &mut count[..]);
        self.written()
    }

    fn written(&self) -> Vec<Watch> {
        let mut room = [MaybeUninit::uninit(); TOLD_BYTES];
        let mut told = Reader::new(&self.writes, &mut room);
        let mut written = Vec::new();
        while let Ok(event) = told.next() {
            // The last word of a watch, told within the write, after that of the write itself. Who watches the file again
            // before it would get the old watch, which is about to end.
            if event.events().contains(ReadFlags::IGNORED) {
                written.push(Watch(event.wd()));
            }
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::time::Instant;

    const SHORT: Option<Duration> = Some(Duration::from_millis(20));
    const LONG: Option<Duration> = Some(Duration::from_secs(20));

    #[test]
    fn the_next_write_to_a_watched_file_is_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = File::create(&path).unwrap();
        let bell = Bell::new().unwrap();
        let watch = bell.watch(&path).unwrap();
        assert!(bell.wait(SHORT).is_empty());
        file.write_all_at(b"x", 1 << 30).unwrap();
        assert!(bell.wait(LONG).contains(&watch));
        file.write_all_at(b"y", 0).unwrap();
        assert!(bell.wait(SHORT).is_empty(), "not watched any more");
        let again = bell.watch(&path).unwrap();
        assert_ne!(again, watch, "what is told late of the first is not of the second");
        bell.forget(again);
        file.write_all_at(b"z", 0).unwrap();
        assert!(bell.wait(SHORT).iter().all(|told| *told == again), "only that it was forgotten");
        assert!(bell.wait(SHORT).is_empty());
    }

    #[test]
    fn a_call_before_a_wait_ends_it() {
        let bell = Bell::new().unwrap();
        bell.ring();
        bell.ring();
        let start = Instant::now();
        assert!(bell.wait(LONG).is_empty());
        assert!(start.elapsed() < Duration::from_secs(10));
        assert!(bell.wait(SHORT).is_empty(), "one wait for all calls");
    }
}
