//! Mounts that stand on names of this one: what is mounted on a directory of it, and overlays with a layer in it.
//!
//! All names are dropped at once by an epoch that the kernel counts up (NOTIFY_INC_EPOCH). A name of an older epoch is not
//! asked for again: the kernel throws it away when it is used next, and unmounts, without a word, what is mounted on it or
//! below it (`d_invalidate`); an overlay that has it in a layer says ESTALE from then on. A name whose *lifetime* is over is
//! asked for, is the same, and stays. So while something stands on a mount its names have a short lifetime
//! ([`STOOD_ON_TTL`]), and who would drop them waits until all that was said of names is over.
//!
//! Invariant: an answer that gives a name a lifetime is noted here, or under way ([`crate::lifetime`]), before anybody who
//! asks whether something stands on the mount waits.
//!
//! Called by [`crate::lifetime`] for each answer, and by [`crate::notify`] before it drops all names.

use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a name may be believed on a mount on which something stands: as long as another mount waits with a change.
const STOOD_ON_TTL: Duration = Duration::from_millis(200);
/// Longest wait for names to be over, more than a lease: names that live longer are dropped all the same.
const OUTLAST_MAX: Duration = Duration::from_secs(15);
/// The time to which names may be believed is noted in steps of this.
const STEP_MS: u64 = 50;

/// Tells whether something stands on a mount, seen now. It is asked each time that names would be dropped.
#[derive(Clone)]
pub struct AsksIfStoodOn(pub Arc<dyn Fn() -> bool + Send + Sync>);

impl fmt::Debug for AsksIfStoodOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AsksIfStoodOn")
    }
}

/// Of one mount.
pub(crate) struct StoodOn {
    asks: Option<AsksIfStoodOn>,
    is: AtomicBool,
    began: Instant,
    /// Until when the kernel may believe a name of an answer, in milliseconds after `began`.
    believed_until_ms: AtomicU64,
    /// It was said that names had to be dropped all the same.
    told: Mutex<bool>,
}

impl StoodOn {
    pub(crate) fn new(asks: Option<AsksIfStoodOn>) -> StoodOn {
        StoodOn {
            asks,
            is: AtomicBool::new(false),
            began: Instant::now(),
            believed_until_ms: AtomicU64::new(0),
            told: Mutex::default(),
        }
    }

    /// The longest lifetime of a name now.
    pub(crate) fn limit(&self) -> Duration {
        if self.is.load(Ordering::Acquire) { STOOD_ON_TTL } else { Duration::MAX }
    }

    /// Names of an answer that is being sent have this lifetime.
    pub(crate) fn gives(&self, lifetime: Duration) {
        if lifetime.is_zero() || self.asks.is_none() {
            return;
        }
        let until = self.began.elapsed().saturating_add(lifetime).as_millis();
        let until = u64::try_from(until).unwrap_or(u64::MAX);
        if until > self.believed_until_ms.load(Ordering::Relaxed) {
            self.believed_until_ms.fetch_max(until.saturating_add(STEP_MS), Ordering::Relaxed);
        }
    }

    /// Looks whether something stands on the mount. If so, names that are answered from now on have a short lifetime.
    pub(crate) fn is_now(&self) -> bool {
        let is = self.asks.as_ref().is_some_and(|asks| (asks.0)());
        self.is.store(is, Ordering::Release);
        is
    }

    /// Looks whether something stands on the mount, and if so, waits until no name is believed any more that was answered
    /// before now. False: all names are to be dropped. `answers_are_sent` returns when answers under way are.
    pub(crate) fn outlasts(&self, answers_are_sent: impl FnOnce()) -> bool {
        if !self.is_now() {
            return false;
        }
        answers_are_sent();
        let until = Duration::from_millis(self.believed_until_ms.load(Ordering::Relaxed));
        let left = until.saturating_sub(self.began.elapsed());
        if left > OUTLAST_MAX {
            if !std::mem::replace(&mut *self.told.lock(), true) {
                tracing::warn!(
                    "names are dropped on which other mounts stand: what is mounted on this mount may come off, and \
                     overlays with layers in it may say ESTALE"
                );
            }
            return false;
        }
        std::thread::sleep(left);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stood_on(is: &Arc<AtomicBool>) -> StoodOn {
        let is = Arc::clone(is);
        StoodOn::new(Some(AsksIfStoodOn(Arc::new(move || is.load(Ordering::Relaxed)))))
    }

    #[test]
    fn names_are_outlasted_while_something_stands_on_the_mount() {
        let is = Arc::new(AtomicBool::new(false));
        let stood_on = stood_on(&is);
        stood_on.gives(Duration::from_millis(300));
        assert!(!stood_on.outlasts(|| {}) && stood_on.limit() == Duration::MAX);
        is.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        // An answer that was under way counts.
        assert!(stood_on.outlasts(|| stood_on.gives(Duration::from_millis(400))));
        assert!(begun.elapsed() >= Duration::from_millis(400));
        assert_eq!(stood_on.limit(), STOOD_ON_TTL);
        is.store(false, Ordering::Relaxed);
        assert!(!stood_on.outlasts(|| {}) && stood_on.limit() == Duration::MAX);
    }

    #[test]
    fn what_lives_too_long_is_not_waited_for() {
        let stood_on = stood_on(&Arc::new(AtomicBool::new(true)));
        stood_on.gives(Duration::MAX);
        assert!(!stood_on.outlasts(|| {}));
        assert!(!StoodOn::new(None).outlasts(|| {}));
    }
}
