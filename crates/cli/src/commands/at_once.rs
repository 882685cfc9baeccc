//! The same work on each of many things at once, such as a question to each mount: those that take long are waited for together.
//!
//! Callers: `which_buffer`, `status`.

use parking_lot::Mutex;

/// Most that are worked on at once; the others follow as these end.
const AT_ONCE_MOST: usize = 64;

/// Does `work` on each of `all`, and gives what came of them in their order.
pub fn at_once<T: Send, R: Send>(all: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let threads = all.len().min(AT_ONCE_MOST);
    let came = Mutex::new(Vec::with_capacity(all.len()));
    let left = Mutex::new(all.into_iter().enumerate());
    let next = || left.lock().next();
    let run = || {
        while let Some((at, one)) = next() {
            let result = work(one);
            came.lock().push((at, result));
        }
    };
    std::thread::scope(|scope| {
        // One of them is this thread: all is done also where there can be no other.
        for _ in 1..threads {
            let thread = std::thread::Builder::new().name("at-once".into());
            if let Err(error) = thread.spawn_scoped(scope, run) {
                tracing::debug!(%error, "fewer are asked at once");
                break;
            }
        }
        run();
    });
    let mut came = came.into_inner();
    came.sort_by_key(|(at, _)| *at);
    came.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn all_are_worked_on_together_and_told_in_their_order() {
        // Each waits for all others.
        let together = Barrier::new(5);
        let work = |number: u32| {
            together.wait();
            number * 2
        };
        assert_eq!(at_once(vec![5, 4, 3, 2, 1], work), [10, 8, 6, 4, 2]);
    }

    #[test]
    fn more_than_are_worked_on_at_once_follow() {
        let many = AT_ONCE_MOST * 3;
        assert_eq!(at_once((0..many).collect(), |number| number), (0..many).collect::<Vec<_>>());
        assert!(at_once(Vec::<u8>::new(), |number| number).is_empty());
    }
}
