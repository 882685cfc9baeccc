//! Questions about a run that end it as soon as they are answered: most of those with a no are answered early.
//!
//! Caller: `size`.

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
        sim.question = Some(question);
        sim.go()?;
        Ok(sim.answer)
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

impl Sim<'_> {
    /// A write has found no room.
    pub(super) fn has_found_full(&mut self) {
        if self.question == Some(Question::NeverFull) {
            self.answer = Some(false);
        }
    }

    /// The last job has ended: nothing that anybody asks for happens later.
    pub(super) fn all_have_ended(&mut self) {
        let by_then = match self.question {
            None => return,
            Some(Question::NeverFull) => true,
            Some(Question::EndsBy(end_s)) => self.end_ns as f64 / 1e9 <= end_s,
        };
        self.answer = self.answer.or(Some(by_then));
    }

    /// Nothing more need happen.
    #[inline]
    pub(super) fn is_answered(&mut self) -> bool {
        if let Some(Question::EndsBy(end_s)) = self.question
            && self.now_ns as f64 / 1e9 > end_s
        {
            self.answer = self.answer.or(Some(false));
        }
        self.answer.is_some()
    }
}
