//! Locks of the lease code: those of `parking_lot`, or, with the feature `shuttle`, ones whose every
//! step a test schedules (`crate::schedules`). Same calls, so that what is tested is what runs.
//!
//! Invariant: nothing here differs from `parking_lot` but who decides which thread goes on. Under
//! `shuttle` a wait never ends by time: what is waited for and never comes is found as a deadlock.

#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::{Condvar, Mutex};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::atomic::AtomicUsize;

#[cfg(feature = "shuttle")]
pub(crate) use scheduled::{Condvar, Mutex};
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::atomic::AtomicUsize;

#[cfg(feature = "shuttle")]
mod scheduled {
    use std::ops::{Deref, DerefMut};
    use std::time::Instant;

    /// As `parking_lot::Mutex`.
    #[derive(Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    /// Empty only while its condition is waited for.
    pub(crate) struct MutexGuard<'a, T>(Option<shuttle::sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            // A panic in a holder fails the test that made it.
            MutexGuard(Some(self.0.lock().expect("not poisoned")))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().expect("held")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("held")
        }
    }

    /// As `parking_lot::Condvar`.
    #[derive(Default)]
    pub(crate) struct Condvar(shuttle::sync::Condvar);

    /// Never: see above.
    pub(crate) struct TimedOut;

    impl TimedOut {
        pub(crate) fn timed_out(&self) -> bool {
            false
        }
    }

    impl Condvar {
        pub(crate) fn new() -> Condvar {
            Condvar::default()
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let held = guard.0.take().expect("held");
            guard.0 = Some(self.0.wait(held).expect("not poisoned"));
        }

        pub(crate) fn wait_until<T>(
            &self,
            guard: &mut MutexGuard<'_, T>,
            _until: Instant,
        ) -> TimedOut {
            self.wait(guard);
            TimedOut
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
