//! Whether somebody still waits for what a thread does.
//!
//! A program that gets a signal while it waits for the file system is let go at once, by who speaks with the kernel. The
//! thread that serves its request may be anywhere: it waits for a server, for a place among calls, for a PFS. It looks here
//! ([`is_given_up`]) at least every [`LOOK`] while it waits, and ends what it can. So no wait needs to be woken.
//!
//! Invariant: numbers of requests grow and are never used twice, so that a late [`Asked::give_up`] hits no other request.

use crate::{Errno, Result};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often a thread that waits looks whether somebody still waits for it.
pub const LOOK: Duration = Duration::from_millis(200);

thread_local! {
    static HERE: RefCell<Option<Arc<Asked>>> = const { RefCell::new(None) };
}

/// What a thread that serves requests is asked for.
#[derive(Default, Debug)]
pub struct Asked {
    /// The request that it serves; 0: none.
    current: AtomicU64,
    /// The last one that was given up.
    given_up: AtomicU64,
    /// How often it has looked.
    looks: AtomicU64,
    /// How far it is with the request.
    done: AtomicU64,
}

impl Asked {
    /// This thread serves requests: what it waits for ends if they are given up.
    pub fn serve_here(self: &Arc<Asked>) {
        HERE.set(Some(Arc::clone(self)));
    }

    /// The thread begins with a request; its number is not 0.
    pub fn begin(&self, number: u64) {
        self.done.store(0, Ordering::Release);
        self.current.store(number, Ordering::Release);
    }

    /// Nobody waits for that request any more.
    pub fn give_up(&self, number: u64) {
        self.given_up.store(number, Ordering::Release);
    }

    /// How often the thread has looked so far. One that has not for longer than [`LOOK`] is in a call that it cannot end.
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// How many bytes from the front are done of the request that it serves, as was told by [`did`]; 0: none, or that is not known.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }

    fn is_given_up(&self) -> bool {
        self.looks.fetch_add(1, Ordering::Relaxed);
        let current = self.current.load(Ordering::Acquire);
        current != 0 && self.given_up.load(Ordering::Acquire) == current
    }
}

/// True if nobody waits any more for what this thread does. Never on a thread that works for itself.
pub fn is_given_up() -> bool {
    HERE.with_borrow(|here| here.as_ref().is_some_and(|asked| asked.is_given_up()))
}

/// EINTR if nobody waits any more for what this thread is about to do.
pub fn still_wanted() -> Result<()> {
    match is_given_up() {
        true => Err(Errno::EINTR),
        false => Ok(()),
    }
}

/// So many bytes from the front are done of what this thread is asked for, whatever becomes of the rest: who answers for it tells
/// that. Nothing on a thread that works for itself.
pub fn did(bytes: u64) {
    HERE.with_borrow(|here| {
        if let Some(asked) = here {
            asked.done.store(bytes, Ordering::Release);
        }
    });
}

/// What this thread is asked for, to be handed to [`part`] on another one.
pub fn here() -> Option<Arc<Asked>> {
    HERE.with_borrow(Clone::clone)
}

/// Does a part of what another thread is asked for, or with `None` something that is to be done whether or not somebody
/// waits for it.
pub fn part<T>(of: Option<Arc<Asked>>, work: impl FnOnce() -> T) -> T {
    struct Back(Option<Arc<Asked>>);
    impl Drop for Back {
        fn drop(&mut self) {
            HERE.set(self.0.take());
        }
    }
    let _back = Back(HERE.replace(of));
    work()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_look_counts() {
        let asked = Arc::new(Asked::default());
        asked.serve_here();
        assert_eq!(asked.looks(), 0);
        assert!(!is_given_up());
        still_wanted().unwrap();
        assert_eq!(asked.looks(), 2);
        part(None, || still_wanted().unwrap());
        assert_eq!(asked.looks(), 2, "a look at nothing");
        part(here(), || still_wanted().unwrap());
        assert_eq!(asked.looks(), 3);
    }

    #[test]
    fn what_is_done_is_told_of_one_request() {
        did(7);
        let asked = Arc::new(Asked::default());
        asked.serve_here();
        asked.begin(6);
        assert_eq!(asked.done(), 0);
        did(7);
        part(None, || did(8));
        assert_eq!(asked.done(), 7);
        part(here(), || did(9));
        assert_eq!(asked.done(), 9);
        asked.begin(8);
        assert_eq!(asked.done(), 0, "of another request");
    }

    #[test]
    fn only_the_request_that_was_given_up_ends() {
        let asked = Arc::new(Asked::default());
        assert!(!is_given_up());
        asked.serve_here();
        asked.begin(6);
        asked.give_up(4);
        assert!(!is_given_up(), "that was the last one");
        asked.give_up(6);
        assert!(is_given_up());
        part(None, || assert!(!is_given_up(), "to be done in any case"));
        let of = here();
        std::thread::spawn(move || {
            assert!(!is_given_up());
            part(of, || assert!(is_given_up()));
        })
        .join()
        .unwrap();
        asked.begin(8);
        assert!(!is_given_up());
    }
}
