//! What the user sees while a job goes through its steps: lines on standard error, a bar there
//! if it is a terminal.
//!
//! Invariant: nothing here fails or panics; a terminal that is gone (SIGHUP) must not keep
//! results from being staged out. Standard output belongs to the script.

use crate::problem::printable;
use crate::run::step::Step;
use forebay_proto::control::PlanStatus;
use forebay_proto::size::format_bytes;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Time between two lines of progress where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Copies shorter than this show no bar.
const BAR_DELAY: Duration = Duration::from_millis(500);

/// The user's view of a run.
pub struct Console {
    bar: Option<ProgressBar>,
    terminal: bool,
    last_line: Instant,
}

impl Default for Console {
    fn default() -> Self {
        Console::new()
    }
}

impl Console {
    /// On standard error.
    pub fn new() -> Console {
        let terminal = std::io::stderr().is_terminal();
        Console { bar: None, terminal, last_line: Instant::now() }
    }

    /// A line.
    pub fn say(&self, text: &str) {
        let write = || {
            for line in text.lines() {
                // Whoever does not read this any more does not need it.
                let _ = writeln!(std::io::stderr().lock(), "{}", printable(line));
            }
        };
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// A line that belongs to a step.
    pub fn step(&self, step: Step, text: &str) {
        self.say(&format!("forebay: {step}: {text}"));
    }

    /// Copies begin: the first line of progress is due after an interval.
    pub fn begin_progress(&mut self) {
        self.last_line = Instant::now();
    }

    /// How far a copy is.
    pub fn progress(&mut self, step: Step, name: &str, status: &PlanStatus) {
        if self.terminal && self.bar.is_none() && self.last_line.elapsed() < BAR_DELAY {
            return;
        }
        if self.terminal {
            let bar = self.bar.get_or_insert_with(|| {
                let style = ProgressStyle::with_template("{msg} {wide_bar} {percent:>3} %");
                let bar = ProgressBar::new(0);
                bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
                bar
            });
            bar.set_length(status.bytes_total.max(1));
            bar.set_position(status.bytes_done);
            bar.set_message(format!("forebay: {step}: {}", amounts(status)));
        } else if self.last_line.elapsed() >= LINE_INTERVAL {
            self.last_line = Instant::now();
            self.step(step, &format!("{name}: {}", amounts(status)));
        }
    }

    /// Removes the bar.
    pub fn end_progress(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// `12/40 files, 1.20/4.00 GiB, 310 MiB/s, 9 s left`; `entries` where some are directories or links.
fn amounts(status: &PlanStatus) -> String {
    let more = if status.scanned { "" } else { "+" };
    let mut text = format!(
        "{}/{}{more} {}, {} of {}{more}",
        status.files_done,
        status.files_total,
        status.noun(),
        format_bytes(status.bytes_done),
        format_bytes(status.bytes_total),
    );
    if status.rate_bytes_per_s >= 1.0 {
        text += &format!(", {}/s", format_bytes(status.rate_bytes_per_s as u64));
    }
    if let Some(eta) = status.eta_s {
        text += &format!(", {eta:.0} s left");
    }
    if status.files_failed > 0 {
        text += &format!(", {} failed", status.files_failed);
    }
    text
}
