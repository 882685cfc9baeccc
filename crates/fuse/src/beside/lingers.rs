//! Files without names that a program still has: nobody tells when it closes the last descriptor, so a thread looks,
//! ever more slowly, and only while there are any. When a program's connection ends, it looks at once.

use super::{Beside, given, let_go};
use crate::connection::Connection;
use forebay_proto::Ino;
use parking_lot::{Condvar, Mutex};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// Between the first two looks at a file.
const PAUSE_LEAST: Duration = Duration::from_millis(1);
/// Longest between two looks.
const PAUSE_MOST: Duration = Duration::from_secs(1);

struct File {
    ino: Ino,
    pause: Duration,
    due: Instant,
}

/// What is in the list, and whether its thread is to end.
#[derive(Default)]
struct LingeringFiles {
    files: Vec<File>,
    stop: bool,
}

/// The list. Bounded by what was given out.
pub(super) struct Lingers {
    state: Mutex<LingeringFiles>,
    wake: Condvar,
}

impl Lingers {
    pub(super) fn new() -> Lingers {
        Lingers { state: Mutex::default(), wake: Condvar::new() }
    }

    /// A file without a name is in use.
    pub(super) fn watch(&self, ino: Ino) {
        let mut state = self.state.lock();
        if state.files.iter().any(|file| file.ino == ino) {
            return;
        }
        let due = Instant::now() + PAUSE_LEAST;
        state.files.push(File { ino, pause: PAUSE_LEAST, due });
        self.wake.notify_one();
    }

    /// A program has ended its connection: what it had open is over, mostly.
    pub(super) fn look(&self) {
        let mut state = self.state.lock();
        if state.files.is_empty() {
            return;
        }
        let now = Instant::now();
        for file in &mut state.files {
            (file.pause, file.due) = (PAUSE_LEAST, now);
        }
        self.wake.notify_one();
    }

    pub(super) fn stop(&self) {
        self.state.lock().stop = true;
        self.wake.notify_one();
    }

    /// The files that are due; `None` at the end.
    fn next(&self) -> Option<Vec<Ino>> {
        let mut state = self.state.lock();
        loop {
            if state.stop {
                return None;
            }
            let now = Instant::now();
            let mut due = Vec::new();
            for file in state.files.iter_mut().filter(|file| file.due <= now) {
                due.push(file.ino);
                file.pause = (file.pause * 2).min(PAUSE_MOST);
                file.due = now + file.pause;
            }
            if !due.is_empty() {
                return Some(due);
            }
            match state.files.iter().map(|file| file.due).min() {
                Some(at) => drop(self.wake.wait_until(&mut state, at)),
                None => self.wake.wait(&mut state),
            }
        }
    }

    fn over(&self, ino: Ino) {
        self.state.lock().files.retain(|file| file.ino != ino);
    }
}

/// What the thread does until the mount ends.
pub(super) fn run(cx: &Connection, ready: &Sender<()>) {
    let beside: &Beside = &cx.beside;
    if let Some(names) = cx.shared_names() {
        // Programs use them as long as this thread lives.
        names.keep_by_this_thread();
    }
    // Nobody waits any more: the mount is ending.
    let _gone = ready.send(());
    while let Some(due) = beside.lingers.next() {
        for ino in due {
            let Some(local) = cx.local_files() else { return };
            let state = beside.given.take_if_unused(ino, || local.is_in_use(ino));
            if state == given::Use::Over {
                let_go(cx, ino);
            }
            if state != given::Use::Goes {
                beside.lingers.over(ino);
            }
        }
    }
}
