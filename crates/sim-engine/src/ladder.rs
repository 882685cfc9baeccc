//! A ladder queue: pending events in buckets of time, of which only the earliest is ever sorted.
//!
//! Three tiers. `bottom` is sorted and gives the next events. Below it lie rungs, each an array of buckets of equal
//! width; a rung covers the bucket of the rung before it that was too full to be sorted, so crowded times get narrow
//! buckets and empty ones cost little. `top` has what lies behind the first rung, in no order. When all rungs are
//! used up, `top` becomes a new first rung.
//!
//! Each event moves at most once per tier, so the cost of an event does not grow with their number as long as rungs
//! stay few. Source: the idea of W. T. Tang, R. S. M. Goh and I. L.-J. Thng, "Ladder queue: An O(1) priority queue
//! structure for large-scale discrete event simulation", ACM TOMACS 15 (2005). Widths here are powers of two, and
//! times are integers, so a rung of the least width (1 ns) has only events of one time in a bucket, which are in
//! order already.
//!
//! Invariants: everything in `bottom` comes before everything in the rungs, a later rung before an earlier one, and all
//! rungs before `top`. In each bucket events stand in the order of their sequence numbers.

use crate::queue::{Entry, LAST_NS, Queue};

/// A bucket of at most so many events is sorted; a fuller one becomes a rung.
const SORTED_AT_MOST: usize = 64;
/// Events that a bucket of a new rung has on average.
const PER_BUCKET: usize = 8;
/// Buckets of a rung, at most.
const BUCKETS_AT_MOST: usize = 1 << 16;

/// Pending events in buckets.
#[derive(Debug)]
pub struct Ladder<E> {
    /// Sorted; those before `head` have come out.
    bottom: Vec<Entry<E>>,
    head: usize,
    /// Events before this time belong into `bottom`.
    bottom_end_ns: u64,
    rungs: Vec<Rung<E>>,
    /// Rungs that are not used now: their memory is.
    spare: Vec<Rung<E>>,
    top: Vec<Entry<E>>,
    /// Events from this time on belong into `top`.
    top_start_ns: u64,
    len: usize,
    sequence: u64,
    now_ns: u64,
    late: u64,
}

#[derive(Debug)]
struct Rung<E> {
    start_ns: u64,
    /// The width of a bucket is 2^shift ns.
    shift: u32,
    /// Buckets before this one are empty and closed.
    current: usize,
    /// Buckets in use; the others are kept for their memory.
    used: usize,
    events: usize,
    buckets: Vec<Vec<Entry<E>>>,
}

impl<E> Default for Rung<E> {
    fn default() -> Self {
        Rung { start_ns: 0, shift: 0, current: 0, used: 0, events: 0, buckets: Vec::new() }
    }
}

impl<E> Rung<E> {
    /// The first time that still belongs here.
    #[inline]
    fn open_ns(&self) -> u64 {
        self.start_ns.saturating_add((self.current as u64) << self.shift)
    }

    /// Covers the times from `first_ns` to `last_ns`, for about `events` events.
    fn cover(&mut self, first_ns: u64, last_ns: u64, events: usize) {
        let span_ns = last_ns - first_ns;
        let wanted = (events / PER_BUCKET).clamp(1, BUCKETS_AT_MOST - 1) as u64;
        let width_ns = (span_ns / wanted).max(1);
        self.shift = 63 - width_ns.leading_zeros();
        // The width was rounded down, to more buckets than wanted.
        while (span_ns >> self.shift) as usize >= BUCKETS_AT_MOST {
            self.shift += 1;
        }
        self.start_ns = first_ns;
        self.current = 0;
        self.used = (span_ns >> self.shift) as usize + 1;
        self.events = 0;
        if self.buckets.len() < self.used {
            self.buckets.resize_with(self.used, Vec::new);
        }
    }

    #[inline]
    fn push(&mut self, entry: Entry<E>) {
        let bucket = ((entry.time_ns - self.start_ns) >> self.shift) as usize;
        self.buckets[bucket].push(entry);
        self.events += 1;
    }
}

impl<E> Default for Ladder<E> {
    fn default() -> Self {
        Ladder {
            bottom: Vec::new(),
            head: 0,
            bottom_end_ns: 0,
            rungs: Vec::new(),
            spare: Vec::new(),
            top: Vec::new(),
            top_start_ns: 0,
            len: 0,
            sequence: 0,
            now_ns: 0,
            late: 0,
        }
    }
}

impl<E: Copy> Ladder<E> {
    fn insert_into_bottom(&mut self, entry: Entry<E>) {
        // Most events are later than all that are sorted already, or few are.
        if self.bottom.last().is_none_or(|last| last.key() < entry.key()) {
            self.bottom.push(entry);
            return;
        }
        if self.bottom.len() - self.head > SORTED_AT_MOST && self.split_bottom() {
            self.place(entry);
            return;
        }
        let after = self.bottom[self.head..].partition_point(|other| other.key() < entry.key());
        self.bottom.insert(self.head + after, entry);
    }

    /// Makes a rung of what is sorted, if it has more than one time. Without it, inserting into a long sorted list
    /// would move all of the list each time.
    fn split_bottom(&mut self) -> bool {
        let waiting = &self.bottom[self.head..];
        let (Some(first), Some(last)) = (waiting.first(), waiting.last()) else { return false };
        // Events of the time that is being handled stay: later ones of that time only come behind them.
        let first_ns = first.time_ns.max(self.now_ns);
        if last.time_ns == first_ns {
            return false;
        }
        let end_ns = self.goes_on_ns(self.rungs.len());
        let last_ns = last.time_ns.max(end_ns.saturating_sub(1));
        let mut rung = self.spare.pop().unwrap_or_default();
        rung.cover(first_ns, last_ns, waiting.len());
        if rung.used == 1 {
            self.spare.push(rung);
            return false;
        }
        for entry in &self.bottom[self.head..] {
            rung.push(*entry);
        }
        self.bottom.clear();
        self.head = 0;
        self.bottom_end_ns = first_ns;
        self.rungs.push(rung);
        true
    }

    /// Where the first so many rungs, or `top`, go on. A later rung may reach beyond that by the rounding of its width, but has
    /// no events there.
    fn goes_on_ns(&self, rungs: usize) -> u64 {
        self.rungs[..rungs].iter().map(Rung::open_ns).fold(self.top_start_ns, u64::min)
    }

    #[inline]
    fn place(&mut self, entry: Entry<E>) {
        if entry.time_ns >= self.top_start_ns {
            self.top.push(entry);
            return;
        }
        if entry.time_ns < self.bottom_end_ns {
            return self.insert_into_bottom(entry);
        }
        // The first rung reaches furthest; later ones are nearer.
        for rung in self.rungs.iter_mut() {
            if entry.time_ns >= rung.open_ns() {
                rung.push(entry);
                return;
            }
        }
        self.insert_into_bottom(entry);
    }

    /// Fills `bottom`, which is empty. False if no event waits.
    fn refill(&mut self) -> bool {
        self.bottom.clear();
        self.head = 0;
        loop {
            let Some(rung) = self.rungs.last_mut() else {
                if !self.top_becomes_a_rung() {
                    return false;
                }
                continue;
            };
            if rung.events == 0 {
                // What it covered to its end is closed: the rung before it goes on there.
                let done = self.rungs.pop().unwrap_or_default();
                self.spare.push(done);
                continue;
            }
            while rung.buckets[rung.current].is_empty() {
                rung.current += 1;
            }
            let bucket_start_ns = rung.open_ns();
            let count = rung.buckets[rung.current].len();
            rung.current += 1;
            rung.events -= count;
            let bucket_end_ns = rung.open_ns();
            let full = count > SORTED_AT_MOST && rung.shift > 0;
            let index = rung.current - 1;
            if full {
                let mut narrower = self.spare.pop().unwrap_or_default();
                narrower.cover(bucket_start_ns, bucket_end_ns - 1, count);
                let Some(rung) = self.rungs.last_mut() else { return false };
                for entry in rung.buckets[index].drain(..) {
                    narrower.push(entry);
                }
                self.rungs.push(narrower);
                continue;
            }
            std::mem::swap(&mut self.bottom, &mut rung.buckets[index]);
            if rung.shift > 0 {
                self.bottom.sort_unstable_by_key(Entry::key);
            }
            // What comes later of times from there on belongs behind what the rung before it has of them.
            self.bottom_end_ns = bucket_end_ns.min(self.goes_on_ns(self.rungs.len() - 1));
            return true;
        }
    }

    fn top_becomes_a_rung(&mut self) -> bool {
        let times = self.top.iter().map(|entry| entry.time_ns);
        let (Some(first_ns), Some(last_ns)) = (times.clone().min(), times.max()) else {
            // Nothing waits. The next event, whenever it is, goes into `top`.
            self.bottom_end_ns = self.now_ns;
            self.top_start_ns = self.now_ns;
            return false;
        };
        let mut rung = self.spare.pop().unwrap_or_default();
        rung.cover(first_ns, last_ns, self.top.len());
        for entry in self.top.drain(..) {
            rung.push(entry);
        }
        self.bottom_end_ns = first_ns;
        self.top_start_ns = rung.start_ns.saturating_add((rung.used as u64) << rung.shift);
        self.rungs.push(rung);
        true
    }
}

impl<E: Copy> Queue<E> for Ladder<E> {
    #[inline]
    fn push(&mut self, time_ns: u64, event: E) {
        self.late += u64::from(time_ns < self.now_ns);
        let time_ns = time_ns.max(self.now_ns).min(LAST_NS);
        let entry = Entry { time_ns, sequence: self.sequence, event };
        self.sequence += 1;
        self.len += 1;
        self.place(entry);
    }

    #[inline]
    fn pop(&mut self) -> Option<Entry<E>> {
        if self.head == self.bottom.len() && !self.refill() {
            return None;
        }
        let entry = self.bottom[self.head];
        self.head += 1;
        self.len -= 1;
        self.now_ns = entry.time_ns;
        Some(entry)
    }

    fn len(&self) -> usize {
        self.len
    }

    fn late(&self) -> u64 {
        self.late
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Heap;
    use proptest::prelude::*;

    /// A step of a simulation: events in the future of the one that is handled, or one more taken.
    #[derive(Clone, Debug)]
    enum Step {
        /// Schedules one so many nanoseconds from now.
        Push(u64),
        /// Schedules many, all of the same delay.
        Crowd(u64, usize),
        Pop(usize),
    }

    fn delay() -> impl Strategy<Value = u64> {
        // Times of all scales, and many equal ones.
        (0_u32..50, any::<u64>(), 0_u8..4).prop_map(|(bits, value, kind)| match kind {
            0 => 0,
            1 => 1 << bits,
            _ => value & ((1 << bits) - 1),
        })
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => delay().prop_map(Step::Push),
            1 => (delay(), 1_usize..300).prop_map(|(delay, count)| Step::Crowd(delay, count)),
            3 => (1_usize..200).prop_map(Step::Pop),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(600))]

        /// Whatever is scheduled, the ladder gives what the heap gives, in its order.
        #[test]
        fn ladder_and_heap_agree(steps in prop::collection::vec(step(), 1..120)) {
            let (mut ladder, mut heap) = (Ladder::default(), Heap::default());
            let (mut now, mut name) = (0, 0_u32);
            let mut push = |ladder: &mut Ladder<u32>, heap: &mut Heap<u32>, at| {
                ladder.push(at, name);
                heap.push(at, name);
                name += 1;
            };
            for step in steps {
                match step {
                    Step::Push(delay) => push(&mut ladder, &mut heap, now + delay),
                    Step::Crowd(delay, count) => {
                        // Some of a crowd are a little later than others.
                        (0..count).for_each(|n| push(&mut ladder, &mut heap, now + delay + (n as u64 % 7) * (delay / 64)));
                    }
                    Step::Pop(count) => for _ in 0..count {
                        let (ours, expected) = (ladder.pop(), heap.pop());
                        prop_assert_eq!(ours.map(|e| (e.time_ns, e.sequence, e.event)), expected.map(|e| (e.time_ns, e.sequence, e.event)));
                        let Some(entry) = ours else { break };
                        prop_assert!(entry.time_ns >= now);
                        now = entry.time_ns;
                    },
                }
                prop_assert_eq!(ladder.len(), heap.len());
            }
            while let Some(expected) = heap.pop() {
                let ours = ladder.pop().map(|e| (e.time_ns, e.sequence));
                prop_assert_eq!(ours, Some((expected.time_ns, expected.sequence)));
            }
            prop_assert!(ladder.pop().is_none() && ladder.is_empty());
            prop_assert_eq!((ladder.late(), heap.late()), (0, 0));
        }
    }

    #[test]
    fn what_comes_too_late_is_counted() {
        let mut ladder = Ladder::default();
        ladder.push(10, 'a');
        ladder.push(20, 'b');
        assert_eq!(ladder.pop().map(|e| e.event), Some('a'));
        ladder.push(3, 'c');
        assert_eq!(ladder.pop().map(|e| (e.time_ns, e.event)), Some((10, 'c')));
        assert_eq!(ladder.late(), 1);
        assert_eq!(ladder.pop().map(|e| e.event), Some('b'));
    }

    /// A crowd at one time, to which each event adds one at that time: no sorted list is moved again and again.
    #[test]
    fn a_crowd_at_one_moment_takes_no_quadratic_time() {
        let mut ladder = Ladder::default();
        let count = 200_000_u32;
        (0..count).for_each(|n| ladder.push(5, n));
        let began = std::time::Instant::now();
        let mut seen = 0;
        while let Some(entry) = ladder.pop() {
            seen += 1;
            if entry.event < count {
                ladder.push(5 + u64::from(entry.event % 2), entry.event + count);
            }
        }
        assert_eq!(seen, 2 * count);
        assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
    }
}
