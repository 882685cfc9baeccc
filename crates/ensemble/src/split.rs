//! What splitting transfers would bring. The time of a task is the sum of its calls. If each call is made in `m` parts, of which each
//! takes what chance gives it, the mean of a task's time stays, its spread by chance falls with the root of `m`, and with it the
//! slowest task.
//!
//! What a task is slower by than the others throughout (its node, its path) is no chance, and no part of it goes away. How much that
//! is, the times of the tasks tell: by the analysis of variance they spread by more than independent calls would make them.
//! Of tasks with one call each nobody can tell; then all of the spread is taken for chance.

use crate::draws::{Random, Table};
use crate::histogram::Histogram;

/// Draws of a simulation: enough for 1 %.
const SIMULATED_DRAWS: u64 = 4_000_000;
/// Rounds of one, at least, and at most; of sums of many draws, which are more alike, fewer are enough.
const ROUNDS_MIN: u64 = 30;
const ROUNDS_MAX: u64 = 2_000;
const ROUNDS_OF_SUMS: u64 = 100;
/// A sum of so many draws need not be drawn one by one: its mean, spread and skewness tell.
const SUM_DRAWS: f64 = 16.0;
/// Greatest skewness for which that holds.
const SKEWNESS_MAX: f64 = 4.0;
/// Times of tasks differ by themselves if they do so by more than chance makes them, in standard deviations of that.
const CHANCE_SDS: f64 = 2.0;

/// What a task spent in its calls of one kind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spent {
    /// Number of calls.
    pub calls: u64,
    /// Time in all of them, in the unit of the histogram.
    pub time: f64,
}

/// What splitting each transfer into `parts` would bring.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Split {
    /// Into how many.
    pub parts: u64,
    /// Mean time of the slowest task, in the unit of the histogram, for the same bytes.
    pub slowest: f64,
}

/// The same for several numbers of parts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Splitting {
    /// Share of the variance of the tasks' times that is no chance of single calls, 0 to 1; 0 also of tasks with one call each.
    pub own_share: f64,
    /// In the order in which they were asked for.
    pub by_parts: Vec<Split>,
}

/// The slowest of `tasks` when each makes its transfers as 1, 2, 4, ... parts, each a draw from the distribution
/// of calls scaled to its bytes, independent of the other calls. `correlation` is that of a call with the one before of the same task:
/// by that chance, less what the task's own slowness makes of it, a part repeats the one before. Never less than the mean task.
///
/// Simulated with a fixed seed: the same calls give the same answer.
pub fn split(of: &Histogram, tasks: &[Spent], correlation: f64, parts: &[u64]) -> Splitting {
    let Some(model) = Model::of(of, tasks, correlation) else { return Splitting::default() };
    let table = Table::of(of);
    let mut random = Random::new();
    let parts = parts.iter().filter(|parts| **parts > 0);
    let by_parts = parts
        .map(|parts| Split { parts: *parts, slowest: model.slowest(&table, *parts, &mut random) });
    Splitting { own_share: model.own_share, by_parts: by_parts.collect() }
}

/// What makes the times of tasks.
struct Model {
    /// Of each task the number of calls, and the time without chance; the fastest first.
    tasks: Vec<(u64, f64)>,
    calls: f64,
    mean_task: f64,
    /// Standard deviation and skewness of a call by chance.
    sd: f64,
    skewness: f64,
    /// How often a part repeats the one before.
    repeat: f64,
    own_share: f64,
}

impl Model {
    fn of(of: &Histogram, tasks: &[Spent], correlation: f64) -> Option<Model> {
        let mut tasks: Vec<Spent> = tasks.iter().copied().filter(|task| task.calls > 0).collect();
        if of.count() == 0 || tasks.is_empty() {
            return None;
        }
        // In whatever order they came.
        tasks.sort_by(|a, b| a.time.total_cmp(&b.time).then(a.calls.cmp(&b.calls)));
        let count = tasks.len() as f64;
        let calls: f64 = tasks.iter().map(|task| task.calls as f64).sum();
        let time: f64 = tasks.iter().map(|task| task.time).sum();
        let mean = time / calls;
        let variance = of.moments.sd().powi(2);
        let (within, own) = variances(&tasks, variance, mean);
        let time_of = |task: &Spent| {
            let calls = task.calls as f64;
            // The root: so the times spread as much as the tasks' own slowness does.
            let kept = if own > 0.0 { (own / (own + within / calls)).sqrt() } else { 0.0 };
            calls * mean + kept * (task.time - calls * mean)
        };
        let own_of_task = own * calls / count;
        let repeat = (correlation * variance - own) / within;
        Some(Model {
            tasks: tasks.iter().map(|task| (task.calls, time_of(task))).collect(),
            calls,
            mean_task: time / count,
            sd: within.sqrt(),
            skewness: of.moments.skewness(),
            repeat: if within > 0.0 { repeat.clamp(0.0, 1.0) } else { 0.0 },
            own_share: if own > 0.0 { own_of_task / (own_of_task + within) } else { 0.0 },
        })
    }

    /// Mean time of the slowest task with each call in so many parts.
    fn slowest(&self, table: &Table, parts: u64, random: &mut Random) -> f64 {
        let each = self.calls / self.tasks.len() as f64;
        let drawn = each * parts as f64;
        let all = SIMULATED_DRAWS as f64 / ROUNDS_MIN as f64;
        let one_by_one = drawn * self.tasks.len() as f64 <= all || drawn < SUM_DRAWS;
        let cost = if one_by_one { drawn.max(1.0) } else { 1.0 };
        // Bounded in time: of more tasks, the slowest of so many, which is a little less.
        let simulated = self.tasks.len().min((all / cost) as usize).max(1);
        let rounds = SIMULATED_DRAWS as f64 / (cost * simulated as f64);
        let most = (ROUNDS_MAX as f64 / each).max(ROUNDS_OF_SUMS as f64);
        let rounds = rounds.clamp(ROUNDS_MIN as f64, most) as u64;
        let slowest = |random: &mut Random| {
            let tasks = self.tasks.iter().rev().take(simulated);
            let times = tasks.map(|(calls, time)| {
                let chance = match one_by_one {
                    true => {
                        (0..*calls).map(|_| self.call(table, parts, random)).sum::<f64>() * self.sd
                    }
                    false => self.sum(*calls, parts, random),
                };
                time + chance
            });
            times.fold(0.0, f64::max)
        };
        let sum: f64 = (0..rounds).map(|_| slowest(random)).sum();
        (sum / rounds as f64).max(self.mean_task)
    }

    /// How far a call in so many parts is from the mean, in standard deviations of one.
    fn call(&self, table: &Table, parts: u64, random: &mut Random) -> f64 {
        if table.sd <= 0.0 {
            return 0.0;
        }
        let mut draw = table.draw(random);
        let mut sum = draw;
        for _ in 1..parts {
            if random.uniform() >= self.repeat {
                draw = table.draw(random);
            }
            sum += draw;
        }
        (sum / parts as f64 - table.mean) / table.sd
    }

    /// How far the sum of so many calls is from its mean: of a gamma distribution with its spread and skewness, by the
    /// transformation of Wilson and Hilferty.
    fn sum(&self, calls: u64, parts: u64, random: &mut Random) -> f64 {
        // Parts that repeat others count for less.
        let (mut together, mut power) = (1.0, 1.0);
        for apart in 1..parts {
            power *= self.repeat;
            together += 2.0 * (1.0 - apart as f64 / parts as f64) * power;
        }
        let independent = calls as f64 * parts as f64 / together;
        let sd = self.sd * calls as f64 / independent.sqrt();
        let skewness = (self.skewness / independent.sqrt()).clamp(-SKEWNESS_MAX, SKEWNESS_MAX);
        let normal = random.normal();
        if skewness.abs() < 1e-3 {
            return sd * normal;
        }
        let root = 1.0 + skewness * normal / 6.0 - skewness * skewness / 36.0;
        sd * 2.0 / skewness * (root.max(0.0).powi(3) - 1.0)
    }
}

/// Variance of a call by chance, and of the mean call of a task by what is its own; the latter 0 if chance explains all, or
/// if nobody can tell.
fn variances(tasks: &[Spent], variance: f64, mean: f64) -> (f64, f64) {
    let count = tasks.len() as f64;
    let calls: f64 = tasks.iter().map(|task| task.calls as f64).sum();
    if calls <= count || count < 2.0 {
        return (variance, 0.0);
    }
    let of = |task: &Spent| (task.time - task.calls as f64 * mean).powi(2) / task.calls as f64;
    let squares: f64 = tasks.iter().map(of).sum();
    let within = ((variance * calls - squares) / (calls - count)).max(0.0);
    let between = squares / (count - 1.0);
    let chance = 1.0 + CHANCE_SDS * (2.0 / (count - 1.0) + 2.0 / (calls - count)).sqrt();
    // What may be chance is taken for it.
    let own = between - chance * within;
    if own <= 0.0 {
        return (variance, 0.0);
    }
    // Calls of a task, in the mean that fits where tasks make different numbers of them.
    let uneven: f64 = tasks.iter().map(|task| (task.calls as f64).powi(2)).sum();
    let each = (calls - uneven / calls) / (count - 1.0);
    (within, own / each)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    /// Unit of the draws: a histogram counts whole numbers.
    const UNIT: f64 = 1e6;
    const TASKS: usize = 64;

    fn exponential(random: &mut StdRng) -> f64 {
        -(1.0 - random.random::<f64>()).ln()
    }

    /// As a trace has it: tasks whose calls take so many times what the others' do, each with so many calls.
    fn traced(random: &mut StdRng, slow: &[f64], calls: u64) -> (Histogram, Vec<Spent>) {
        let mut of = Histogram::default();
        let mut tasks = Vec::new();
        for times in slow {
            let mut time = 0.0;
            for _ in 0..calls {
                let took = (exponential(random) * times * UNIT) as u64;
                of.add(took);
                time += took as f64;
            }
            tasks.push(Spent { calls, time });
        }
        (of, tasks)
    }

    /// The slowest task of such a run by direct simulation, each call in so many parts.
    fn simulated(random: &mut StdRng, slow: &[f64], calls: u64, parts: u64) -> f64 {
        let rounds = (2_000_000 / (slow.len() as u64 * calls * parts)).clamp(60, 4_000);
        let mut task = |times: &f64| {
            (0..calls * parts).map(|_| exponential(random)).sum::<f64>() * times / parts as f64
        };
        let mut slowest = || slow.iter().map(&mut task).fold(0.0, f64::max);
        (0..rounds).map(|_| slowest()).sum::<f64>() / rounds as f64
    }

    fn ratio(found: &Splitting) -> f64 {
        found.by_parts[1].slowest / found.by_parts[0].slowest
    }

    #[test]
    fn splitting_shortens_the_slowest_task_of_independent_draws_only() {
        let mut random = StdRng::seed_from_u64(5);
        let mut of = Histogram::default();
        (0..2_000_000).for_each(|_| of.add((exponential(&mut random) * UNIT) as u64));
        let tasks = [Spent { calls: 1, time: UNIT }; 256];
        let found = split(&of, &tasks, 0.0, &[1, 2, 4, 8, 16]);
        // Simulated independently before.
        for (split, wanted) in found.by_parts.iter().zip([6.12, 4.14, 3.00, 2.31, 1.85]) {
            let ratio = split.slowest / UNIT / wanted;
            assert!((ratio - 1.0).abs() < 0.03, "{split:?} {wanted}");
        }
        let bound = split(&of, &tasks, 1.0, &[1, 16]);
        assert!((ratio(&bound) - 1.0).abs() < 0.05, "{bound:?}");
        assert_eq!(found, split(&of, &tasks, 0.0, &[1, 2, 4, 8, 16]));
        assert_eq!(split(&Histogram::default(), &tasks, 0.0, &[1]), Splitting::default());
        assert_eq!(split(&of, &[], 0.0, &[1]), Splitting::default());
    }

    #[test]
    fn tasks_of_many_calls_gain_less_by_splitting_than_those_of_one() {
        let alike = [1.0; TASKS];
        // 256 calls tell less of their distribution than 6,400.
        for (calls, parts, within) in [(1, 8, 0.03), (4, 8, 0.1), (100, 2, 0.03), (100, 8, 0.03)] {
            let mut random = StdRng::seed_from_u64(11);
            let now = simulated(&mut random, &alike, calls, 1);
            let wanted = simulated(&mut random, &alike, calls, parts) / now;
            let mut off: Vec<f64> = Vec::new();
            for seed in 0..5 {
                let mut random = StdRng::seed_from_u64(100 + seed);
                let (mut of, mut tasks) = traced(&mut random, &alike, calls);
                // So few calls have another distribution than that which they are from.
                if calls == 1 {
                    of = traced(&mut random, &[1.0; 100_000], 1).0;
                    tasks.iter_mut().for_each(|task| task.time = UNIT);
                }
                let found = split(&of, &tasks, 0.0, &[1, parts]);
                off.push((ratio(&found) / wanted - 1.0).abs());
            }
            // Now and then 64 tasks spread by more than one would expect of chance.
            off.sort_by(f64::total_cmp);
            assert!(off[2] < within && off[4] < 0.2, "{calls} in {parts}: {off:?}, {wanted}");
        }
    }

    #[test]
    fn sums_that_are_not_drawn_one_by_one_are_as_those_that_are() {
        let (tasks, calls) = (256, 300);
        let mut random = StdRng::seed_from_u64(12);
        let alike = vec![1.0; tasks];
        let (of, spent) = traced(&mut random, &alike, calls);
        let found = split(&of, &spent, 0.0, &[1, 8]);
        let mean = spent.iter().map(|task| task.time).sum::<f64>() / tasks as f64;
        for split in &found.by_parts {
            // The mean of the greatest of 256 normal draws is 2.81 standard deviations above theirs.
            let wanted = 1.0 + 2.85 / ((calls * split.parts) as f64).sqrt();
            let off = split.slowest / mean / wanted;
            assert!((off - 1.0).abs() < 0.03, "{split:?}: {off}");
        }
    }

    #[test]
    fn where_tasks_are_slow_by_themselves_splitting_helps_little() {
        for seed in 0..5 {
            let mut random = StdRng::seed_from_u64(200 + seed);
            // One node of eight tasks, and tasks that all differ.
            let node: Vec<f64> = (0..TASKS).map(|at| if at < 8 { 3.0 } else { 1.0 }).collect();
            let differ: Vec<f64> =
                (0..TASKS).map(|at| 1.0 + at as f64 / (TASKS - 1) as f64).collect();
            for slow in [&node, &differ] {
                let (of, tasks) = traced(&mut random, slow, 100);
                let found = split(&of, &tasks, 0.0, &[1, 8]);
                assert!(found.own_share > 0.6, "{found:?}");
                let now = simulated(&mut random, slow, 100, 1);
                let wanted = simulated(&mut random, slow, 100, 8) / now;
                let ratio = ratio(&found);
                assert!(ratio > 0.9 && ratio < 1.01, "{found:?}");
                assert!((ratio / wanted - 1.0).abs() < 0.12, "{wanted} {found:?}");
                // No slower task than the slowest, and no faster one than the mean.
                let mean = tasks.iter().map(|task| task.time).sum::<f64>() / TASKS as f64;
                assert!(found.by_parts.iter().all(|split| split.slowest >= mean), "{found:?}");
            }
        }
    }
}
