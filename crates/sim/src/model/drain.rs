//! The drain of one buffer by the machine's own rule (`buffer.drain`): at once, when nothing else moves, by watermarks, or after
//! the job; at most so many at once, and so fast.
//!
//! Invariants: what was written first drains first, but for what waits for the end of its job; at most one event looks again.
//! Callers: `buffers`, which has one for each buffer; `traffic`, which tells it what goes on. Buffers with Forebay's rules (`rules`)
//! use the pace and the counts of this only.

use super::clock::{Clock, Event};
use super::rules::{Chunk, moment};
use crate::machine::{Buffer as Settings, DrainWhen, Mode};
use forebay_policy::Moment;
use forebay_policy::pace::Pace;
use forebay_policy::watermarks::{LOOK, Watermarks};
use forebay_policy::when::Watermark;
use forebay_sim_engine::TimeNs;
use std::collections::VecDeque;
use std::time::Duration;

/// What a drain looks at of its buffer.
#[derive(Clone, Copy)]
pub(super) struct Facts {
    /// The number of the buffer.
    pub(super) at: usize,
    /// Bytes that have not begun to drain, and room for data.
    pub(super) undrained_bytes: u64,
    pub(super) room_bytes: u64,
    /// Something waits for it: a write for room, or the end of the run, with no job left.
    pub(super) is_waited_for: bool,
}

/// A drain.
#[derive(Default)]
pub(super) struct Drain {
    /// What is on flash and has not begun to drain.
    to_drain: VecDeque<Chunk>,
    /// Drains under way.
    draining: u32,
    /// Requests of jobs under way.
    foreground: u32,
    /// Which watermark is in force: the server's own rule.
    marks: Watermarks,
    /// The limit of the drain: the server's own rule.
    pace: Pace,
    /// When the next request of a limited drain may begin; None: not asked yet.
    granted_ns: Option<TimeNs>,
    /// An event that looks again is under way.
    armed: bool,
}

impl Drain {
    /// What was written is to drain.
    pub(super) fn add(&mut self, chunk: Chunk) {
        self.to_drain.push_back(chunk);
    }

    /// A request of a job comes to the buffer's sight: an idle drain looks at that.
    #[inline]
    pub(super) fn foreground_begins(&mut self) {
        self.foreground += 1;
    }

    /// It leaves it.
    #[inline]
    pub(super) fn foreground_ends(&mut self) {
        self.foreground -= 1;
    }

    /// A request of the drain begins.
    pub(super) fn begins(&mut self) {
        self.draining += 1;
    }

    /// One has ended.
    pub(super) fn ends(&mut self) {
        self.draining -= 1;
    }

    /// An event that looks again has come.
    pub(super) fn has_come(&mut self) {
        self.armed = false;
    }

    /// The buffer is lost: gives what had not begun to drain.
    pub(super) fn lose(&mut self) -> impl Iterator<Item = Chunk> {
        self.granted_ns = None;
        self.to_drain.drain(..)
    }

    /// When so many bytes may begin to drain, with a limit in bytes per second.
    pub(super) fn pace(&mut self, bytes: u64, limit: f64, now: Moment) -> Moment {
        self.pace.take(bytes, (limit as u64).max(1), now)
    }

    /// What drains now; `None`: nothing, now. `ended` says of a job whether it has.
    pub(super) fn next_chunk(
        &mut self,
        settings: &Settings,
        facts: Facts,
        clock: &mut Clock,
        ended: impl Fn(u32) -> bool,
    ) -> Option<Chunk> {
        if self.draining >= settings.drain.depth {
            return None;
        }
        let which = self.which(settings, facts, clock, ended)?;
        if !self.pace_allows(settings, facts.at, which, clock) {
            return None;
        }
        let chunk = self.to_drain.remove(which)?;
        if let DrainWhen::Watermarks(mark) = settings.drain.when {
            self.marks.drains(&[mark], chunk.bytes, facts.room_bytes);
        }
        Some(chunk)
    }

    /// Which of what is on flash drains next; None: nothing now.
    fn which(
        &mut self,
        settings: &Settings,
        facts: Facts,
        clock: &mut Clock,
        ended: impl Fn(u32) -> bool,
    ) -> Option<usize> {
        if self.to_drain.is_empty() {
            return None;
        }
        if settings.mode == Mode::Stage {
            return self.to_drain.iter().position(|chunk| ended(chunk.job));
        }
        let wanted = match settings.drain.when {
            _ if facts.is_waited_for => true,
            DrainWhen::AtOnce => true,
            DrainWhen::Idle => self.foreground == 0,
            DrainWhen::Policy(_) => false,
            DrainWhen::Watermarks(mark) => self.is_over(mark, facts, clock),
        };
        wanted.then_some(0)
    }

    /// Whether so much waits to drain that a watermark lets it.
    fn is_over(&mut self, mark: Watermark, facts: Facts, clock: &mut Clock) -> bool {
        let now = moment(clock.now_ns());
        if self.marks.begin_look(&[mark], now) {
            // What has begun to drain counts as gone.
            let took = (now, Duration::ZERO);
            self.marks.looked(&[mark], facts.undrained_bytes, facts.room_bytes, took);
        } else if !self.marks.is_over(mark) && !self.armed {
            // As the server does: it looks again a little later.
            self.armed = true;
            let again_ns = clock.now_ns() + LOOK.as_nanos() as u64;
            clock.at(again_ns, Event::Pump(facts.at as u32));
        }
        self.marks.is_over(mark)
    }

    /// Whether the drain's limit lets the next chunk go now; if not, an event comes when it does.
    fn pace_allows(
        &mut self,
        settings: &Settings,
        at: usize,
        which: usize,
        clock: &mut Clock,
    ) -> bool {
        let Some(limit) = settings.drain.limit_bytes_per_s else { return true };
        let bytes = self.to_drain[which].bytes;
        let now = moment(clock.now_ns());
        let may_ns = match self.granted_ns {
            Some(may_ns) => may_ns,
            None => {
                let may = self.pace(bytes, limit, now);
                may.since(Moment::default()).as_nanos() as u64
            }
        };
        self.granted_ns = Some(may_ns);
        if may_ns > clock.now_ns() {
            if !self.armed {
                self.armed = true;
                clock.at(may_ns, Event::Pump(at as u32));
            }
            return false;
        }
        self.granted_ns = None;
        true
    }
}
