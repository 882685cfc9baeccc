//! Processes go through the phases and steps of their job, and meet.
//!
//! Invariant: a process that waits is at one place: an event, a meeting, the end of its transfer or of its drains, or a signal.
//! Callers: the loop of a run; `moving`, when a transfer has ended.

use super::super::clock::Event;
use super::super::traffic::Traffic;
use super::super::{Key, SimError};
use super::Jobs;
use crate::program::{Action, Phase, Step, Who};
use forebay_sim_engine::TimeNs;

/// Repetitions of phases, of all processes, without time going on: seconds of a simulation that does nothing.
pub(in super::super) const MOST_STILL: u64 = 1 << 28;
/// A phase's pause, beside its steps, as a time that varies.
const PAUSE: u32 = 0xffff;
/// The meeting at the beginning of a repetition, and numbered ones, beside those of steps.
const BEGINNING: u32 = u32::MAX;
const MEETINGS: u32 = 1 << 31;
/// The operations on names of a step are asked for in so many parts, between which others have their turn.
pub(in super::super) const NAMES_PARTS: u64 = 256;

/// A phase is repeated, and no time passes: after so many repetitions, those of all its processes together.
pub(in super::super) fn stands_still(job: &str, phase: &str, most: u64) -> SimError {
    SimError::Stuck {
        why: format!(
            "phase {phase} of job {job}: more than {most} repetitions of its processes together, and no time has passed"
        ),
        expected: format!("something in it that takes time, or at most {most} repetitions"),
        key: Key::Workload("repeat"),
    }
}

impl Jobs<'_> {
    /// A process goes on from where it is, until it has to wait.
    pub(in super::super) fn proceed(&mut self, traffic: &mut Traffic<'_>, index: u32) {
        while self.goes_on(traffic, index) {}
    }

    /// One part of a process's way: to the next phase, through a meeting, or a step. False if it has to wait.
    #[inline]
    fn goes_on(&mut self, traffic: &mut Traffic<'_>, index: u32) -> bool {
        let process = &mut self.processes[index as usize];
        if process.dead {
            return false;
        }
        let job = process.job as usize;
        let Some(phase) = self.program.jobs[job].phases.get(process.phase as usize) else {
            self.states[job].running -= 1;
            if self.states[job].running == 0 {
                self.job_ended(traffic, job as u32);
            }
            return false;
        };
        if process.repetition >= phase.repeat || process.members(phase.who) == 0 {
            (process.phase, process.repetition) = (process.phase + 1, 0);
            return true;
        }
        let may_pause = process.step == 0 && process.repetition > 0 && !process.met;
        if phase.pause_ns > 0 && may_pause && !process.paused {
            process.paused = true;
            let ns = self.options.varied(phase.pause_ns, process.time_of(PAUSE));
            traffic.clock().after(ns, Event::Go(index));
            return false;
        }
        if process.step == 0 && phase.meet && !process.met {
            process.met = true;
            return self.meet(traffic, index, BEGINNING, phase.who);
        }
        let state = &mut self.states[job].phases[process.phase as usize];
        state.begins(process.repetition, traffic.now_ns());
        let Some(step) = phase.steps.get(process.step as usize) else {
            return self.repetition_ends(traffic, index, phase);
        };
        let members = process.members(step.who);
        let skips = process.restores && !matches!(step.action, Action::Move { write: true, .. });
        if members == 0 || skips {
            process.step += 1;
            return true;
        }
        self.does(traffic, index, (phase, step), members)
    }

    /// A process has done all steps of a repetition. False if the run cannot go on.
    #[inline]
    fn repetition_ends(&mut self, traffic: &mut Traffic<'_>, index: u32, phase: &Phase) -> bool {
        let now_ns = traffic.now_ns();
        let process = &mut self.processes[index as usize];
        let state = &mut self.states[process.job as usize];
        let ended = (process.phase, process.repetition);
        state.phases[ended.0 as usize].ends(ended.1, now_ns);
        let restored = std::mem::take(&mut process.restores);
        (process.step, process.met, process.paused) = (0, false, false);
        process.repetition += 1;
        if phase.checkpoint && !restored {
            state.checkpoints.ended(ended.0, ended.1, now_ns);
        }
        let most = MOST_STILL.min(self.options.max_events);
        if traffic.clock().repeats() <= most {
            return true;
        }
        let job = &self.program.jobs[process.job as usize].name;
        traffic.clock().fail(stands_still(job, &phase.name, most));
        false
    }

    /// A process does a step, for so many of those that it stands for. False if it has to wait.
    #[inline]
    fn does(
        &mut self,
        traffic: &mut Traffic<'_>,
        index: u32,
        (phase, step): (&Phase, &Step),
        members: u32,
    ) -> bool {
        let process = &mut self.processes[index as usize];
        match step.action {
            Action::Move { .. } => self.go_on_moving(traffic, index, members),
            Action::Names { count, implied } => self.ask_for_names(traffic, index, count, implied),
            Action::Compute { ns } => self.computes(traffic, index, (phase, step), ns),
            Action::Barrier => {
                let at = process.step;
                process.step += 1;
                self.meet(traffic, index, at, step.who)
            }
            Action::Meet { number } => {
                process.step += 1;
                self.meet(traffic, index, MEETINGS + number, phase.who)
            }
            Action::Sync { count } => {
                process.step += 1;
                let sync_s = match &self.machine.buffer {
                    Some(buffer) => buffer.sync_s,
                    None => self.machine.storage.sync_s,
                };
                if sync_s > 0.0 {
                    let ns = (sync_s * 1e9 * count as f64) as u64;
                    traffic.clock().after(ns, Event::Go(index));
                    return false;
                }
                true
            }
            Action::Signal { event } => {
                process.step += 1;
                traffic.clock().go_on(self.signals.signal(event, members));
                true
            }
            Action::Await { event, count } => {
                let need = u64::from(count) * u64::from(process.repetition + 1);
                let waits = self.signals.waits(index, event, need);
                process.step += u32::from(!waits);
                !waits
            }
        }
    }

    /// A process computes for so many nanoseconds.
    fn computes(
        &mut self,
        traffic: &mut Traffic<'_>,
        index: u32,
        (phase, step): (&Phase, &Step),
        ns: u64,
    ) -> bool {
        let process = &mut self.processes[index as usize];
        let what = process.time_of(process.step);
        let is_last = process.step as usize + 1 == phase.steps.len()
            && process.repetition + 1 < phase.repeat
            && phase.pause_ns == 0;
        let all = step.who == Who::ALL && phase.who == Who::ALL;
        process.step += 1;
        if ns == 0 {
            return true;
        }
        let ns = self.options.varied(ns, what);
        if is_last && all && phase.meet && !self.can_fail {
            let comes_ns = traffic.now_ns().saturating_add(ns);
            self.meet_later(traffic, index, comes_ns);
        } else {
            traffic.clock().after(ns, Event::Go(index));
        }
        false
    }

    /// A process does its operations on names, some at a time. True if it need not wait for them.
    fn ask_for_names(
        &mut self,
        traffic: &mut Traffic<'_>,
        index: u32,
        count: u64,
        implied: bool,
    ) -> bool {
        let io_s = self.machine.io.as_ref().map_or(0.0, |io| io.link.round_trip_s);
        let trip_s = if implied { 0.0 } else { io_s + self.machine.network.round_trip_s };
        let names_s = match &self.machine.buffer {
            Some(buffer) => buffer.names_s,
            None => self.machine.storage.names_s,
        };
        let process = &mut self.processes[index as usize];
        if implied && names_s == 0.0 {
            process.step += 1;
            return true;
        }
        if process.names_left == 0 {
            process.names_left = count;
        }
        let together = match names_s > 0.0 {
            true => count.div_ceil(NAMES_PARTS).min(process.names_left),
            false => process.names_left,
        };
        process.names_left -= together;
        process.step += u32::from(process.names_left == 0);
        let trips_ns = (trip_s * 1e9 * together as f64) as u64;
        let service_ns = (names_s * 1e9 * together as f64) as u64;
        let leaves_ns = traffic.serve_names(process.node, service_ns);
        traffic.clock().at(leaves_ns.saturating_add(trips_ns), Event::Go(index));
        false
    }

    /// A process comes to where those of `who` meet. True if it was the last: then it goes on, and the others too.
    fn meet(&mut self, traffic: &mut Traffic<'_>, index: u32, step: u32, who: Who) -> bool {
        let process = &self.processes[index as usize];
        let (job, phase) = (process.job as usize, process.phase);
        let at = self.meeting(job, phase, step, who);
        let meetings = &mut self.states[job].meetings;
        let is_last = meetings.comes(at, index);
        if is_last {
            traffic.clock().go_on(meetings.release(at));
        }
        is_last
    }

    /// A process computes until then and has nothing else to do before it meets all others for the next repetition: its
    /// coming is known, and only the last one's needs an event.
    fn meet_later(&mut self, traffic: &mut Traffic<'_>, index: u32, comes_ns: TimeNs) {
        let process = &mut self.processes[index as usize];
        let (job, phase) = (process.job as usize, process.phase);
        self.states[job].phases[phase as usize].ends(process.repetition, comes_ns);
        (process.step, process.met) = (0, true);
        process.repetition += 1;
        process.restores = false;
        let at = self.meeting(job, phase, BEGINNING, Who::ALL);
        if let Some(at_ns) = self.states[job].meetings.comes_later(at, index, comes_ns) {
            traffic.clock().at(at_ns, Event::Met(job as u32, at as u32));
        }
    }

    /// All have come to a meeting to which they were to come.
    pub(in super::super) fn all_have_met(&mut self, traffic: &mut Traffic<'_>, job: u32, at: u32) {
        traffic.clock().go_on(self.states[job as usize].meetings.release(at as usize));
    }

    /// The number of a meeting of a job.
    #[inline]
    fn meeting(&mut self, job: usize, phase: u32, step: u32, who: Who) -> usize {
        let state = &mut self.states[job];
        if let Some(at) = state.meetings.find(phase, step) {
            return at;
        }
        let all = &self.processes[state.processes.start as usize..state.processes.end as usize];
        let expected = match who == Who::ALL {
            true => all.len(),
            false => all.iter().filter(|process| process.members(who) > 0).count(),
        };
        state.meetings.add(phase, step, expected as u32)
    }
}
