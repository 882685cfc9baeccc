//! Files that programs have mapped, and closed: they count as open until they are unmapped.
//!
//! A mapping by passthrough goes to the object itself. The kernel says that the file was closed, and nothing says when
//! the last store was made: what a program stores after its close would stay on flash and never drain. The kernel's own count
//! of who may write an object tells ([`Objects::may_be_written_elsewhere`](forebay_store::objects::Objects)): while somebody may,
//! the end of the last open is put off. A thread looks, ever more slowly, and only while there are such files.
//!
//! Invariants: a file is in the list at most once, and each end that was put off is told once, by this thread. Bounded by the
//! objects that are mapped. A close without a mapping may come here too, for a moment: the kernel lets go of an object
//! a little after it has told of the close. Of a mount that is not heard any more nothing is put off: its programs may
//! have its files open for ever. A restart of the server forgets the list; the file is dirty then and drains once.
//! Called by `open` at each close, and by waits for drains.

use super::file::CacheFile;
use forebay_proto::Ino;
use parking_lot::{Condvar, Mutex};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between the first two looks at a file.
const PAUSE_LEAST: Duration = Duration::from_millis(1);
/// Longest between two looks.
const PAUSE_MOST: Duration = Duration::from_millis(500);

/// A file in the list.
pub(crate) struct Mapped {
    pub file: Arc<CacheFile>,
    pause: Duration,
    due: Instant,
    /// Somebody waits for its drain.
    asked: bool,
}

/// What is in the list, and whether its thread is to end.
#[derive(Default)]
struct MappedList {
    files: Vec<Mapped>,
    /// The one that is being looked at, and whether somebody has asked for it since.
    looking: Option<(Ino, bool)>,
    stop: bool,
}

/// The list.
#[derive(Default)]
pub(crate) struct MappedFiles {
    state: Mutex<MappedList>,
    wake: Condvar,
}

impl MappedFiles {
    pub fn watch(&self, file: &Arc<CacheFile>) {
        let due = Instant::now() + PAUSE_LEAST;
        let mapped = Mapped { file: file.clone(), pause: PAUSE_LEAST, due, asked: false };
        self.state.lock().files.push(mapped);
        self.wake.notify_one();
    }

    /// Somebody waits for the drain of these files: those that are in the list are looked at now, and often, and drain
    /// once they are unmapped, whatever their policy says.
    pub fn look(&self, asked: &[Arc<CacheFile>]) {
        let mut state = self.state.lock();
        if state.files.is_empty() && state.looking.is_none() {
            return;
        }
        let asked: HashSet<Ino> = asked.iter().map(|file| file.ino).collect();
        let now = Instant::now();
        for mapped in state.files.iter_mut().filter(|mapped| asked.contains(&mapped.file.ino)) {
            (mapped.pause, mapped.due, mapped.asked) = (PAUSE_LEAST, now, true);
        }
        if let Some((ino, is_asked)) = &mut state.looking {
            *is_asked |= asked.contains(ino);
        }
        self.wake.notify_one();
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.wake.notify_one();
    }

    /// A file to look at, out of the list until [`MappedFiles::looked`]; `None` at the end.
    pub fn next(&self) -> Option<Mapped> {
        let mut state = self.state.lock();
        loop {
            if state.stop {
                return None;
            }
            let first = state.files.iter().enumerate().min_by_key(|(_, mapped)| mapped.due);
            match first.map(|(at, mapped)| (at, mapped.due)) {
                None => self.wake.wait(&mut state),
                Some((at, due)) if due <= Instant::now() => {
                    let mapped = state.files.swap_remove(at);
                    state.looking = Some((mapped.file.ino, mapped.asked));
                    return Some(mapped);
                }
                Some((_, due)) => drop(self.wake.wait_until(&mut state, due)),
            }
        }
    }

    /// It was looked at, and is `still` mapped: later once more. Whether somebody has asked for it.
    pub fn looked(&self, mapped: Mapped, still: bool) -> bool {
        let mut state = self.state.lock();
        let asked = state.looking.take().is_some_and(|(_, asked)| asked);
        if still {
            let pause = (mapped.pause * 2).min(PAUSE_MOST);
            let due = Instant::now() + pause;
            state.files.push(Mapped { pause, due, asked, ..mapped });
        }
        asked
    }
}
