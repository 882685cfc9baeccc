//! Independent simulations at once, each on one thread; results in the order of the questions.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Is told how many of how many are done, from any thread.
pub type Progress<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// Says nothing.
pub fn silent(_: usize, _: usize) {}

/// Threads that a machine has processors for.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// `of` each item, on at most so many threads.
pub fn map<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    progress: Progress,
    of: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return };
            let result = of(item);
            if let Ok(mut place) = results[at].lock() {
                *place = Some(result);
            }
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, items.len());
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.clamp(1, items.len().max(1)) {
            scope.spawn(work);
        }
        work();
    });
    // A thread that panicked has ended the scope with its panic: each place is filled.
    results.into_iter().filter_map(|place| place.into_inner().ok().flatten()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_questions() {
        let items: Vec<u32> = (0..100).collect();
        let doubled = map(&items, 4, &silent, |&item| item * 2);
        assert_eq!(doubled, items.iter().map(|item| item * 2).collect::<Vec<_>>());
        assert!(map(&[] as &[u32], 4, &silent, |&item| item).is_empty());
    }
}
