//! A day of drains without a thread: programs write and close files, workers take what is due, and the PFS takes what
//! they bring as fast as the limit lets them. Time is a number. What is checked is what users rely on.

use crate::Moment;
use crate::due::{CacheFacts, Costly, Due, FileFacts, KernelFile, due, retry_pause};
use crate::pace::Pace;
use crate::queue::{DrainQueue, Next};
use crate::watermarks::{LOOK, Watermarks};
use crate::when::{IDLE_DEFAULT, Policy};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const CAPACITY_BYTES: u64 = 100 << 30;
const WORKERS: usize = 6;
const DAY: Duration = Duration::from_secs(86_400);

/// What happens next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A program makes file n.
    Write(usize),
    /// A worker was woken.
    Wake(usize),
    /// A worker has slept long enough, if it still does.
    Alarm(usize),
    /// A worker has brought a file to the PFS, or failed.
    Done(usize, u64, bool),
}

struct File {
    bytes: u64,
    policy: Policy,
    dirty_since: Moment,
    failures: u32,
}

/// What programs do beside.
struct Foreground {
    last_write: Moment,
}

impl Costly for Foreground {
    fn kernel_file(&mut self) -> Option<KernelFile> {
        None
    }

    fn last_foreground_write(&mut self) -> Option<Moment> {
        Some(self.last_write)
    }
}

/// One day: files of 1 MiB to 1 GiB in bursts, at a limit of the rate.
struct Day {
    rng: StdRng,
    now: Moment,
    sequence: u64,
    events: BinaryHeap<Reverse<(Moment, u64, Event)>>,
    policies: Vec<Policy>,
    queue: DrainQueue<u64, u64>,
    marks: Watermarks,
    pace: Pace,
    rate_bytes_per_s: u64,
    files: BTreeMap<u64, File>,
    foreground: Foreground,
    idle: Vec<usize>,
    /// When each worker began to ask for what is next.
    asked_at: [Moment; WORKERS],
    fails_every: u64,
    /// Of each drained file: policy, how long it was dirty, and when its drain began.
    drained: Vec<(Policy, Duration, Moment)>,
    dirty_bytes: u64,
    /// Of these, what workers have.
    draining_bytes: u64,
    /// The most that was dirty, in percent of the capacity, after the first look.
    most_dirty_percent: f64,
    /// The least that was dirty since the mark was first passed.
    least_dirty_percent: f64,
    over_since: Option<Moment>,
    longest_over: Duration,
}

impl Day {
    fn new(seed: u64, policies: &[&str], rate_bytes_per_s: u64, fails_every: u64) -> Day {
        let policies = policies.iter().map(|text| Policy::parse(text.as_bytes()).unwrap());
        Day {
            rng: StdRng::seed_from_u64(seed),
            now: Moment::default(),
            sequence: 0,
            events: BinaryHeap::new(),
            policies: policies.collect(),
            queue: DrainQueue::default(),
            marks: Watermarks::default(),
            pace: Pace::default(),
            rate_bytes_per_s,
            files: BTreeMap::new(),
            foreground: Foreground { last_write: Moment::default() },
            idle: (0..WORKERS).collect(),
            asked_at: [Moment::default(); WORKERS],
            fails_every,
            drained: Vec::new(),
            dirty_bytes: 0,
            draining_bytes: 0,
            most_dirty_percent: 0.0,
            least_dirty_percent: 100.0,
            over_since: None,
            longest_over: Duration::ZERO,
        }
    }

    fn at(&mut self, when: Moment, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((when, self.sequence, event)));
    }

    fn set(&self) -> Vec<crate::when::Watermark> {
        self.policies.iter().filter_map(|policy| policy.watermark).collect()
    }

    fn percent(&self) -> f64 {
        self.dirty_bytes as f64 * 100.0 / CAPACITY_BYTES as f64
    }

    /// Somebody who waits is woken, as by the condition of the drain's list.
    fn wake(&mut self) {
        while let Some(worker) = self.idle.pop() {
            self.at(self.now, Event::Wake(worker));
        }
    }

    fn look(&mut self) {
        let set = self.set();
        if self.marks.begin_look(&set, self.now) {
            let look = (self.now, Duration::ZERO);
            let waiting_bytes = self.dirty_bytes - self.draining_bytes;
            if self.marks.looked(&set, waiting_bytes, CAPACITY_BYTES, look) {
                self.queue.look_again(self.now);
                self.wake();
            }
        }
    }

    fn write(&mut self, number: usize) {
        let bytes = self.rng.random_range(MIB..1024 * MIB);
        let policy = self.policies[number % self.policies.len()];
        let file = File { bytes, policy, dirty_since: self.now, failures: 0 };
        self.dirty_bytes += bytes;
        self.foreground.last_write = self.now;
        self.files.insert(number as u64, file);
        // It is closed as soon as it is written.
        self.queue.add(number as u64, number as u64, self.now + IDLE_DEFAULT, self.now);
        self.queue.set_due(number as u64, self.now);
        self.wake();
    }

    fn work(&mut self, worker: usize) {
        let is_watching = !self.set().is_empty();
        loop {
            let look = is_watching.then(|| self.asked_at[worker] + LOOK);
            match self.queue.next(self.now, look) {
                Next::File { file: key, asked, since } => {
                    let file = &self.files[&key];
                    let facts = FileFacts {
                        since,
                        last_write: file.dirty_since,
                        opens: 0,
                        kernel_writes: false,
                        needs_decision: false,
                    };
                    let cache = CacheFacts {
                        is_pressed: false,
                        is_over_watermark: file
                            .policy
                            .watermark
                            .is_some_and(|mark| self.marks.is_over(mark)),
                    };
                    let decision = due(&file.policy, &facts, cache, self.now, &mut self.foreground);
                    if !asked && let Due::At(due) = decision {
                        self.queue.put_back(key, due, false, self.now);
                        continue;
                    }
                    let bytes = file.bytes;
                    self.marks.drains(&self.set(), bytes, CAPACITY_BYTES);
                    self.draining_bytes += bytes;
                    // Pieces of 4 MiB, each when the rate lets it.
                    let mut end = self.now;
                    for _ in 0..bytes.div_ceil(4 * MIB) {
                        end = end.max(self.pace.take(4 * MIB, self.rate_bytes_per_s, end));
                    }
                    let fails =
                        self.fails_every > 0 && self.rng.random_range(0..self.fails_every) == 0;
                    return self.at(end, Event::Done(worker, key, fails));
                }
                Next::Look => {
                    self.look();
                    self.asked_at[worker] = self.now;
                }
                Next::Wait(until) => {
                    // It sleeps until then, or until it is woken.
                    self.idle.push(worker);
                    if let Some(until) = until {
                        self.at(until.max(self.now + LOOK / 10), Event::Alarm(worker));
                    }
                    return;
                }
            }
        }
    }

    fn done(&mut self, worker: usize, key: u64, failed: bool) {
        self.draining_bytes -= self.files[&key].bytes;
        if failed {
            let file = self.files.get_mut(&key).unwrap();
            file.failures += 1;
            let pause = retry_pause(file.failures, true);
            self.queue.put_back(key, self.now + pause, false, self.now);
        } else {
            let file = self.files.remove(&key).unwrap();
            self.dirty_bytes -= file.bytes;
            self.queue.remove(key);
            self.drained.push((file.policy, self.now.since(file.dirty_since), self.now));
        }
        self.look();
        self.asked_at[worker] = self.now;
        self.work(worker);
    }

    /// Until the end of the day; then until nothing more happens for an hour, or all is drained.
    fn run(&mut self, bursts: &[(u64, usize)]) {
        let mut number = 0;
        for &(second, files) in bursts {
            for n in 0..files {
                let at = Moment::from_ms((second * 1_000 + n as u64 * 20) as i64);
                self.at(at, Event::Write(number));
                number += 1;
            }
        }
        self.wake();
        let end = Moment::default() + DAY + Duration::from_secs(7_200);
        while let Some(Reverse((when, _, event))) = self.events.pop() {
            assert!(when >= self.now, "nothing happens before now");
            if when > end {
                break;
            }
            self.now = when;
            match event {
                Event::Write(number) => self.write(number),
                Event::Wake(worker) => self.work(worker),
                Event::Alarm(worker) => {
                    if let Some(at) = self.idle.iter().position(|idle| *idle == worker) {
                        self.idle.swap_remove(at);
                        self.work(worker);
                    }
                }
                Event::Done(worker, key, failed) => self.done(worker, key, failed),
            }
            self.most_dirty_percent = self.most_dirty_percent.max(self.percent());
            let high = self.set().iter().map(|mark| mark.high).min().unwrap_or(100);
            if self.most_dirty_percent > f64::from(high) {
                self.least_dirty_percent = self.least_dirty_percent.min(self.percent());
            }
            match (self.percent() > f64::from(high), self.over_since) {
                (true, None) => self.over_since = Some(self.now),
                (true, Some(since)) => {
                    self.longest_over = self.longest_over.max(self.now.since(since));
                }
                (false, _) => self.over_since = None,
            }
        }
    }
}

/// A checkpoint of so many files each half hour of the day.
fn checkpoints(files: usize) -> Vec<(u64, usize)> {
    (0..48).map(|n| (n * 1_800, files)).collect()
}

#[test]
fn a_day_of_checkpoints_is_drained_within_its_deadlines_and_nothing_starves() {
    // 40 files of half a GiB on average each half hour: 11 MiB/s, at a limit of 100 MB/s; one drain in ten fails.
    let mut day = Day::new(7, &["end,deadline=10m", "close", "idle:5"], 100_000_000, 10);
    day.run(&checkpoints(40));
    assert!(day.files.is_empty(), "{} files were never drained", day.files.len());
    assert_eq!(day.drained.len(), 48 * 40);
    // A burst takes 20 GiB / 100 MB/s = 215 s, failures and their pauses some more.
    let longest = |when: &str| {
        let policy = Policy::parse(when.as_bytes()).unwrap();
        let of = day.drained.iter().filter(|(has, ..)| *has == policy);
        of.map(|(_, dirty, _)| *dirty).max().unwrap()
    };
    assert!(longest("close") < Duration::from_secs(600), "{:?}", longest("close"));
    assert!(longest("idle:5") < Duration::from_secs(600), "{:?}", longest("idle:5"));
    let late = longest("end,deadline=10m");
    assert!(late < Duration::from_secs(600 + 600), "{late:?} for a deadline of 600 s");
    let early = day.drained.iter().filter(|(policy, ..)| policy.deadline.is_some());
    let earliest = early.map(|(_, dirty, _)| *dirty).min().unwrap();
    assert!(earliest >= Duration::from_secs(600), "{earliest:?}: `end` waits for its limit");
}

#[test]
fn a_watermark_is_held_all_day_and_no_more_is_drained_than_down_to_its_low_mark() {
    // 30 files, 15 GiB, at once, of which nothing drains before 40 of 100 GiB are dirty.
    let mut day = Day::new(11, &["end,watermark=40:20"], 500_000_000, 0);
    day.run(&checkpoints(30));
    assert!(day.most_dirty_percent > 40.0, "the mark was passed");
    assert!(day.most_dirty_percent < 40.0 + 16.0, "{:.1} %", day.most_dirty_percent);
    // From 56 to 40 % at 500 MB/s: 35 s. It begins at the next look.
    assert!(day.longest_over < Duration::from_secs(60), "{:?} over the mark", day.longest_over);
    // Each of the six workers has counted what it drains as gone, so they stop together: at most a file below.
    let least = day.least_dirty_percent;
    assert!((19.0..=20.5).contains(&least), "{least:.1} % at least: the low mark is 20");
    assert!(!day.drained.is_empty());
}

#[test]
fn the_rate_is_kept_over_a_whole_day() {
    let rate = 20_000_000;
    let mut day = Day::new(3, &["close"], rate, 0);
    // More than the rate can take until the evening.
    day.run(&checkpoints(100));
    let written: u64 = day.drained.len() as u64;
    assert!(written > 1_000, "{written}");
    let total: u64 = 4_800;
    assert!(written < total && !day.files.is_empty(), "the PFS is too slow for all of it");
    let seconds = (DAY + Duration::from_secs(7_200)).as_secs_f64();
    let left: u64 = day.files.values().map(|file| file.bytes).sum();
    // What was drained follows from what is left: all was written by the same numbers.
    let all = {
        let mut rng = StdRng::seed_from_u64(3);
        (0..total).map(|_| rng.random_range(MIB..1024 * MIB)).sum::<u64>()
    };
    let rate_seen = (all - left) as f64 / seconds;
    assert!(rate_seen <= rate as f64 * 1.01, "{rate_seen:.0} B/s");
    assert!(rate_seen >= rate as f64 * 0.95, "{rate_seen:.0} B/s: it was busy all day");
}

#[test]
fn files_that_are_due_drain_in_the_order_in_which_they_became_so() {
    let mut day = Day::new(5, &["close"], 1_000_000, 0);
    day.idle = vec![0];
    day.run(&[(0, 200)]);
    // One worker at 1 MB/s: a file of n MB takes n seconds, so the order of the ends is that of the beginnings.
    let ends: Vec<Moment> = day.drained.iter().map(|(.., end)| *end).collect();
    assert!(ends.is_sorted());
    let drained = day.drained.len() as u64;
    let left: Vec<u64> = day.files.keys().copied().collect();
    assert!(drained > 50 && !left.is_empty(), "{drained}");
    assert_eq!(left, (drained..200).collect::<Vec<u64>>(), "later ones wait for earlier ones");
}

#[test]
fn a_quiet_moment_is_waited_for_while_an_application_writes_all_day() {
    let mut day = Day::new(9, &["idle:10"], 1_000_000_000, 0);
    // One file a second for three hours: there is no quiet moment.
    day.run(&(0..10_800).map(|second| (second, 1)).collect::<Vec<_>>());
    assert!(day.files.is_empty());
    let longest = day.drained.iter().map(|(_, dirty, _)| *dirty).max().unwrap();
    assert!(longest > Duration::from_secs(30), "it was busy");
    assert!(
        longest < Duration::from_secs(150),
        "{longest:?}: what waits for quiet does not starve"
    );
}

#[test]
fn the_same_day_comes_twice() {
    let run = || {
        let mut day = Day::new(21, &["close", "idle:5", "end,watermark=10:5"], 80_000_000, 7);
        day.run(&checkpoints(20));
        day.drained
    };
    assert_eq!(run(), run());
}
