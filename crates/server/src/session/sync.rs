//! Locks of the lease code: those of `parking_lot`, or, with the feature `shuttle`, ones whose every
//! step a test schedules (`super::schedules`). Same calls, so that what is tested is what runs.
//!
//! Invariant: nothing here differs from `parking_lot` but who decides which thread goes on. Under
//! `shuttle` a wait never ends by time: what is waited for and never comes is found as a deadlock.

#[cfg(not(feature = "shuttle"))]
pub(super) use parking_lot::{Condvar, Mutex};
#[cfg(not(feature = "shuttle"))]
pub(super) use std::sync::atomic::AtomicUsize;

#[cfg(feature = "shuttle")]
pub(super) use scheduled::{Condvar, Mutex};
#[cfg(feature = "shuttle")]
pub(super) use shuttle::sync::atomic::AtomicUsize;

#[cfg(feature = "shuttle")]
mod scheduled {
    use std::ops::{Deref, DerefMut};
    use std::time::Instant;

    /// As `parking_lot::Mutex`.
    #[derive(Default)]
    pub(in crate::session) struct Mutex<T>(shuttle::sync::Mutex<T>);

    /// Empty only while its condition is waited for.
    pub(in crate::session) struct MutexGuard<'a, T>(Option<shuttle::sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub(in crate::session) fn new(value: T) -> Mutex<T> {
            Mutex(shuttle::sync::Mutex::new(value))
        }

        pub(in crate::session) fn lock(&self) -> MutexGuard<'_, T> {
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
    pub(in crate::session) struct Condvar(shuttle::sync::Condvar);

    /// Never: see above.
    pub(in crate::session) struct TimedOut;

    impl TimedOut {
        pub(in crate::session) fn timed_out(&self) -> bool {
            false
        }
    }

    impl Condvar {
        pub(in crate::session) fn new() -> Condvar {
            Condvar::default()
        }

        pub(in crate::session) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let held = guard.0.take().expect("held");
            guard.0 = Some(self.0.wait(held).expect("not poisoned"));
        }

        pub(in crate::session) fn wait_until<T>(
            &self,
            guard: &mut MutexGuard<'_, T>,
            _until: Instant,
        ) -> TimedOut {
            self.wait(guard);
            TimedOut
        }

        pub(in crate::session) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
