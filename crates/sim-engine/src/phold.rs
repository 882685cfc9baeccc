//! PHOLD, the usual benchmark of event engines: each event schedules one more, at a random delay, for itself or for
//! another of `processes` logical processes.
//!
//! Source: R. M. Fujimoto, "Performance of Time Warp under synthetic workloads" (1990); the delay of 1.0 plus an
//! exponential one of mean 1.0, and a quarter of events to others, are the parameters with which other engines are
//! usually measured.

use crate::queue::Queue;
use crate::random::Random;
use crate::{SECOND_NS, ns};

/// The parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phold {
    /// Logical processes; each starts with one event.
    pub processes: u32,
    /// Events to handle.
    pub events: u64,
    /// Part of events that go to a process drawn at random.
    pub remote: f64,
    /// Seed.
    pub seed: u64,
}

/// What came out. It depends on the parameters only, not on the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Events handled.
    pub events: u64,
    /// Time of the last one.
    pub end_ns: u64,
    /// Of the order in which processes had events.
    pub checksum: u64,
}

impl Phold {
    /// Runs it on a queue, which is empty.
    pub fn run(&self, queue: &mut impl Queue<u32>) -> Outcome {
        let mut random = Random::new(self.seed, 0);
        let delay = |random: &mut Random| SECOND_NS + ns(random.exponential(1.0));
        for process in 0..self.processes {
            let at_ns = delay(&mut random);
            queue.push(at_ns, process);
        }
        let mut handled = vec![0_u32; self.processes as usize];
        let mut outcome = Outcome { events: 0, end_ns: 0, checksum: 0 };
        while outcome.events < self.events {
            let Some(entry) = queue.pop() else { break };
            let process = entry.event;
            handled[process as usize] = handled[process as usize].wrapping_add(1);
            outcome.events += 1;
            outcome.end_ns = entry.time_ns;
            outcome.checksum = outcome
                .checksum
                .rotate_left(5)
                .wrapping_add(u64::from(process) ^ u64::from(handled[process as usize]) << 32);
            let to = match random.unit() < self.remote {
                true => random.below(u64::from(self.processes)) as u32,
                false => process,
            };
            queue.push(entry.time_ns + delay(&mut random), to);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ladder::Ladder;
    use crate::queue::Heap;

    #[test]
    fn both_queues_give_the_same_and_the_seed_matters() {
        for processes in [1, 16, 1_024, 20_000] {
            let phold = Phold { processes, events: 100_000, remote: 0.25, seed: 3 };
            let by_heap = phold.run(&mut Heap::default());
            assert_eq!(by_heap, phold.run(&mut Ladder::default()));
            let other = Phold { seed: 4, ..phold };
            assert_ne!(by_heap, other.run(&mut Ladder::default()));
        }
    }
}
