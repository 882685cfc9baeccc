//! Writers of one file of which one works at a time, although no write of the trace was ever alone: when writes end shows it.
//!
//! Where one writes at a time, writes end one after the other, each as long after the one before as one write takes; a write that takes long
//! makes all that wait longer. Writers that do not wait for each other end at any distance; if they happen to be spread evenly, one that is
//! late is late alone: the distance before its end is longer and the one after it shorter, by as much.
//!
//! Invariants: memory is bounded by [`ENDS_MAX`]; the trace is read once more only if a file has writers that wait at all.
//! Caller: `assemble`; `findings` says what was seen.

use crate::gather::{Gathered, InTurn, OTHER_FILES};
use crate::load::Trace;
use foldhash::HashMap;
use forebay_trace_format::Class;

/// Fewest tasks that write to the file.
pub const WRITERS_MIN: u64 = 4;
/// Fewest writes.
pub const WRITES_MIN: u64 = 50;
/// At least this share of the writers must be in a write, in the mean.
pub const AT_ONCE_MIN: f64 = 0.5;
/// Writes whose ends are looked at: those in the middle, if there are more.
const ENDS_MAX: usize = 1 << 14;
/// Distances are even if so many of them lie between half and twice their median. Of ends at any distance it is half.
const EVEN_SHARE: f64 = 0.75;
/// Of what is new of a distance and of the next one: -0.5 where each is late alone, 0 where one works at a time.
const CORRELATION_MIN: f64 = -0.25;
/// Distances above so many medians count as that: a pause is no service.
const LONGEST: f64 = 4.0;

/// The file that a rule on writers looks at: the one with most time in writes, of those that enough tasks write.
pub fn candidate(all: &Gathered) -> Option<usize> {
    let files = all.files.iter().enumerate();
    let written =
        files.filter(|(_, file)| file.writers >= WRITERS_MIN && file.writes >= WRITES_MIN);
    written.max_by(|a, b| a.1.write_s.total_cmp(&b.1.write_s)).map(|(at, _)| at)
}

/// Looks at the writes of that file, if its writers wait at all.
pub fn in_turn(trace: &Trace, all: &Gathered) -> Option<InTurn> {
    let at = candidate(all)?;
    let file = all.files.get(at).filter(|file| file.path != OTHER_FILES)?;
    let span_s = file.write_to_s - file.write_from_s;
    if file.write_s < AT_ONCE_MIN * file.writers as f64 * span_s {
        return None;
    }
    let share = (ENDS_MAX as f64 / file.writes as f64).min(1.0);
    let from_s = file.write_from_s + 0.5 * (1.0 - share) * span_s;
    let ends = ends(trace, &file.path, (from_s, from_s + share * span_s));
    let (apart_s, even) = one_at_a_time(&ends, file.writers as usize)?;
    Some(InTurn { file: at, apart_s, even })
}

/// When writes to a file ended, of a stretch of time, in order.
fn ends(trace: &Trace, path: &str, (from_s, to_s): (f64, f64)) -> Vec<f64> {
    let mut ends = Vec::new();
    // Problems were told when the trace was read before.
    let mut told = Vec::new();
    for (number, file) in trace.files.iter().enumerate() {
        let names = trace.names(number);
        let mut known: HashMap<u32, bool> = HashMap::default();
        file.each(&mut told, |timed| {
            let (event, end_s) = (&timed.event, timed.start_s + timed.duration_s);
            let counts = event.op.class() == Class::Write && event.op.is_call();
            if !counts || end_s < from_s || end_s > to_s || ends.len() >= 2 * ENDS_MAX {
                return;
            }
            if *known.entry(event.file).or_insert_with(|| names.path(event.file) == path) {
                ends.push(end_s);
            }
        });
    }
    ends.sort_by(f64::total_cmp);
    ends
}

/// The median distance of ends and how many are near it, if so many writers end as they do where one works at a time.
fn one_at_a_time(ends: &[f64], writers: usize) -> Option<(f64, f64)> {
    let apart: Vec<f64> = ends.windows(2).map(|pair| pair[1] - pair[0]).collect();
    if apart.len() < writers + WRITES_MIN as usize - 1 {
        return None;
    }
    let mut sorted = apart.clone();
    sorted.sort_by(f64::total_cmp);
    let median = *sorted.get(sorted.len() / 2)?;
    let mean = apart.iter().sum::<f64>() / apart.len() as f64;
    if median <= 0.0 || !(0.5..2.0).contains(&(median / mean)) {
        return None;
    }
    let near = apart.iter().filter(|one| (0.5..=2.0).contains(&(**one / median))).count();
    let even = near as f64 / apart.len() as f64;
    let as_one = even >= EVEN_SHARE && correlation(&apart, writers, median) >= CORRELATION_MIN;
    as_one.then_some((median, even))
}

/// How what is new of a distance goes with what is new of the next one: what differs from the round before, for tasks that are spread
/// anyhow stay so for long. 0 if nothing is ever new.
fn correlation(apart: &[f64], writers: usize, median: f64) -> f64 {
    let most = LONGEST * median;
    let later = apart.iter().skip(writers);
    let new: Vec<f64> =
        later.zip(apart).map(|(now, then)| now.min(most) - then.min(most)).collect();
    let square: f64 = new.iter().map(|value| value * value).sum();
    let product: f64 = new.windows(2).map(|pair| pair[0] * pair[1]).sum();
    // Ticks of a clock are nothing new.
    if square < 1e-12 * median * median * new.len() as f64 { 0.0 } else { product / square }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look like chance, from -1 to 1, and are the same each time.
    fn chance() -> impl FnMut() -> f64 {
        let mut state = 7_u64;
        move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f64 / (1_u64 << 30) as f64 - 1.0
        }
    }

    /// Ends of tasks that each go on by themselves: first at `first`, then each `took` after the one before.
    fn apart(tasks: u32, first: impl Fn(u32) -> f64, mut took: impl FnMut() -> f64) -> Vec<f64> {
        let mut ends = Vec::new();
        for task in 0..tasks {
            let mut at = first(task);
            for _ in 0..100 {
                at += took();
                ends.push(at);
            }
        }
        ends.sort_by(f64::total_cmp);
        ends
    }

    #[test]
    fn one_at_a_time_is_told_from_many_that_go_on_by_themselves() {
        for spread in [0.0, 0.2, 0.5] {
            let mut chance = chance();
            let mut at = 5.0;
            let serial: Vec<f64> = (0..400)
                .map(|_| {
                    at += 1e-3 * (spread * chance()).exp();
                    at
                })
                .collect();
            let (median, even) = one_at_a_time(&serial, 8).expect("one at a time");
            assert!((median / 1e-3 - 1.0).abs() < 0.1 && even > 0.75, "{spread}: {median} {even}");
        }
        for tasks in [4, 8, 16, 64] {
            let evenly = |task: u32| f64::from(task) / f64::from(tasks);
            let together = |_: u32| 0.0;
            for spread in [0.002, 0.01, 0.1, 0.5] {
                let mut chance = chance();
                let found = one_at_a_time(
                    &apart(tasks, evenly, || (spread * chance()).exp()),
                    tasks as usize,
                );
                assert!(found.is_none(), "{tasks} spread evenly, {spread}: {found:?}");
                let found = one_at_a_time(
                    &apart(tasks, together, || (spread * chance()).exp()),
                    tasks as usize,
                );
                assert!(found.is_none(), "{tasks} begun together, {spread}: {found:?}");
            }
        }
        assert!(one_at_a_time(&[], 4).is_none() && one_at_a_time(&[1.0; 100], 4).is_none());
    }
}
