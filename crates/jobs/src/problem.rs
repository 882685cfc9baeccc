//! What is wrong with a script: line, column, word, what was expected, and the line itself.
//!
//! Invariant: whatever bytes the script holds, what is printed is valid UTF-8 without control
//! characters, so a script cannot write to the user's terminal through an error message.
//! Made by [`crate::script`] and [`crate::check`]; printed by the commands.

use serde::Serialize;
use std::fmt;

/// Most problems of one script that are kept; the rest is only counted.
pub const MAX_REPORTED_PROBLEMS: usize = 20;

/// Most characters of a script's line that are shown with a problem.
const MAX_SHOWN_CHARS: usize = 160;

/// One thing that is wrong in a script.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Line, from 1.
    pub line: u32,
    /// Column of the word's first character, from 1, in characters.
    pub column: u32,
    /// The word that is wrong; empty if something is missing.
    pub word: String,
    /// What is wrong with it.
    pub what: String,
    /// What was expected in its place.
    pub expected: String,
    /// The line as it stands in the script, control characters replaced.
    pub text: String,
}

/// A script that was refused, with everything that is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// Name of the script as the user gave it.
    pub script: String,
    /// At most [`MAX_REPORTED_PROBLEMS`], in the order of lines.
    pub problems: Vec<Problem>,
    /// Problems found beyond these.
    pub further: usize,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            problem.render(&self.script, f)?;
        }
        if self.further > 0 {
            writeln!(f, "\nand {} more", self.further)?;
        }
        Ok(())
    }
}

impl std::error::Error for Refused {}

impl Problem {
    /// Writes the problem as `script:line:column: what`, the line, a caret, what was expected.
    fn render(&self, script: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:{}:{}: {}", printable(script), self.line, self.column, self.what)?;
        let first = self.column.saturating_sub(1) as usize;
        // A very long line is shown from a little before the word on.
        let skip = if first + 40 > MAX_SHOWN_CHARS { first - 20 } else { 0 };
        let shown: String = self.text.chars().skip(skip).take(MAX_SHOWN_CHARS).collect();
        let mark = self.word.chars().count().clamp(1, MAX_SHOWN_CHARS - (first - skip));
        let number = self.line.to_string();
        let blank = " ".repeat(number.len());
        writeln!(f, "  {number} | {shown}")?;
        writeln!(f, "  {blank} | {}{}", " ".repeat(first - skip), "^".repeat(mark))?;
        writeln!(f, "  {blank} = expected {}", self.expected)
    }
}

/// Bytes as text that may be printed: what is not UTF-8 and control characters become U+FFFD,
/// a tab one blank.
pub fn printable_bytes(bytes: &[u8]) -> String {
    printable(&String::from_utf8_lossy(bytes))
}

/// See [`printable_bytes`].
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\t' => ' ',
            c if c.is_control() => '\u{fffd}',
            c => c,
        })
        .collect()
}

/// Collects problems against the lines of one script.
pub(crate) struct Problems<'a> {
    lines: &'a [&'a [u8]],
    found: Vec<Problem>,
    further: usize,
}

impl<'a> Problems<'a> {
    /// An empty collection for a script's lines.
    pub(crate) fn new(lines: &'a [&'a [u8]]) -> Self {
        Problems { lines, found: Vec::new(), further: 0 }
    }

    /// Adds one: `line` and `start` (bytes) from 0, `len` bytes are marked.
    pub(crate) fn add(
        &mut self,
        line: usize,
        start: usize,
        len: usize,
        what: impl Into<String>,
        expected: impl Into<String>,
    ) {
        if self.found.len() == MAX_REPORTED_PROBLEMS {
            self.further += 1;
            return;
        }
        let bytes: &[u8] = self.lines.get(line).copied().unwrap_or(&[]);
        let start = start.min(bytes.len());
        let end = (start + len).min(bytes.len());
        let text = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        self.found.push(Problem {
            line: u32::try_from(line + 1).unwrap_or(u32::MAX),
            column: u32::try_from(printable_bytes(&bytes[..start]).chars().count() + 1)
                .unwrap_or(u32::MAX),
            word: printable_bytes(&bytes[start..end]),
            what: what.into(),
            expected: expected.into(),
            text: printable_bytes(text),
        });
    }

    /// True if nothing is wrong so far.
    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// The refusal.
    pub(crate) fn into_refused(mut self, script: &str) -> Refused {
        self.found.sort_by_key(|p| (p.line, p.column));
        Refused { script: script.to_string(), problems: self.found, further: self.further }
    }
}
