//! Where the processes of a job meet.
//!
//! Invariant: whoever waits at a meeting goes on when the last of those has come who are expected, in the order of coming.
//! Caller: `steps`.

use forebay_sim_engine::TimeNs;

/// Where processes meet: (phase, step), step `u32::MAX` is the beginning of a repetition.
#[derive(Clone, Debug)]
struct Meeting {
    phase: u32,
    step: u32,
    /// How many come.
    expected: u32,
    waiting: Vec<u32>,
    /// When the last one comes of those who said so before.
    latest_ns: TimeNs,
}

/// The meetings of a job.
#[derive(Clone, Debug, Default)]
pub(super) struct Meetings {
    all: Vec<Meeting>,
}

impl Meetings {
    /// The number of a meeting that there is.
    #[inline]
    pub(super) fn find(&self, phase: u32, step: u32) -> Option<usize> {
        self.all.iter().position(|meeting| meeting.phase == phase && meeting.step == step)
    }

    /// A new meeting, to which so many come; its number.
    pub(super) fn add(&mut self, phase: u32, step: u32, expected: u32) -> usize {
        self.all.push(Meeting { phase, step, expected, waiting: Vec::new(), latest_ns: 0 });
        self.all.len() - 1
    }

    /// A process comes. False if it waits for others, true if it is the last.
    pub(super) fn comes(&mut self, at: usize, process: u32) -> bool {
        let meeting = &mut self.all[at];
        let is_last = meeting.waiting.len() as u32 + 1 >= meeting.expected;
        if !is_last {
            meeting.waiting.push(process);
        }
        is_last
    }

    /// A process says when it comes. The time of the meeting, if it is the last one.
    pub(super) fn comes_later(
        &mut self,
        at: usize,
        process: u32,
        comes_ns: TimeNs,
    ) -> Option<TimeNs> {
        let meeting = &mut self.all[at];
        meeting.waiting.push(process);
        meeting.latest_ns = meeting.latest_ns.max(comes_ns);
        (meeting.waiting.len() as u32 == meeting.expected).then_some(meeting.latest_ns)
    }

    /// Who waits at a meeting waits no more.
    pub(super) fn release(&mut self, at: usize) -> impl Iterator<Item = u32> {
        self.all[at].waiting.drain(..)
    }

    /// There are no processes any more that meet.
    pub(super) fn clear(&mut self) {
        self.all.clear();
    }

    /// Meetings at which somebody waits: their phases, how many wait, and how many are expected.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (u32, usize, u32)> {
        let waited_for = self.all.iter().filter(|meeting| !meeting.waiting.is_empty());
        waited_for.map(|meeting| (meeting.phase, meeting.waiting.len(), meeting.expected))
    }
}
