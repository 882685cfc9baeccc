//! Questions about a run that end it as soon as they are answered: most of those with a no are answered early.
//!
//! Callers: `size`; the loop of a run, which looks after each event.

use super::buffers::Buffers;
use super::{Options, Sim, SimError, fits};
use crate::machine::Machine;
use crate::program::Program;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Question {
    /// Does every write find room at once?
    NeverFull,
    /// Have all jobs ended by so many seconds?
    EndsBy(f64),
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// It does.
    Yes,
    /// It does not, or it cannot end, or does not fit.
    No,
    /// It was not answered within the events of the question.
    GivenUp,
}

/// Runs a program on a machine until a question is answered, for at most `most_events`.
///
/// # Errors
/// A run that was given up by its options, and a fault of the simulator. What stands still, finds no room or does not fit is a no.
pub fn ask(
    machine: &Machine,
    program: &Program,
    options: &Options,
    question: Question,
    most_events: u64,
) -> Result<Answered, SimError> {
    let limited = Options { max_events: options.max_events.min(most_events), ..*options };
    let asked = || {
        fits::fits(machine, program, &limited)?;
        let mut sim = Sim::new(machine, program, &limited);
        sim.ask(question);
        sim.go()?;
        Ok(sim.answer())
    };
    match asked() {
        Ok(Some(true)) => Ok(Answered::Yes),
        Ok(_) => Ok(Answered::No),
        Err(error) if error.is_want() => Ok(Answered::No),
        Err(SimError::TooLong { events, .. })
            if events >= most_events && most_events < options.max_events =>
        {
            Ok(Answered::GivenUp)
        }
        Err(error) => Err(error),
    }
}

/// A question, and what is known of its answer.
#[derive(Debug)]
pub(super) struct Inquiry {
    question: Question,
    answer: Option<bool>,
}

impl Inquiry {
    pub(super) fn new(question: Question) -> Inquiry {
        Inquiry { question, answer: None }
    }

    /// The answer, as far as it is known.
    pub(super) fn answer(&self) -> Option<bool> {
        self.answer
    }

    /// Looks whether it is answered now: `end_s` is when the last job ended, if all have. Nothing more need happen then.
    #[inline]
    pub(super) fn is_answered(
        &mut self,
        buffers: &Buffers,
        now_s: f64,
        end_s: Option<f64>,
    ) -> bool {
        self.answer = match self.question {
            Question::NeverFull if buffers.found_full() > 0 => Some(false),
            // The last job has ended: nothing that anybody asks for happens later.
            Question::NeverFull => end_s.map(|_| true),
            Question::EndsBy(by_s) if end_s.is_some_and(|end_s| end_s <= by_s) => Some(true),
            Question::EndsBy(by_s) if end_s.is_some() || now_s > by_s => Some(false),
            Question::EndsBy(_) => None,
        };
        self.answer.is_some()
    }
}
