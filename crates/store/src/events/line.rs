//! The lines of a segment ([`crate::journal_line`]): the first is its [`Head`], all others are
//! events.

pub(super) use crate::journal_line::{put, take};
use forebay_proto::events::Event;
use serde::{Deserialize, Serialize};

/// Version of the lines; a record of another one is refused by name.
pub(super) const FORMAT: u32 = 1;

/// The first line of a segment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Head {
    /// [`FORMAT`].
    pub format: u32,
    /// Whose record it is: the identity of the buffer or of the server, 32 hex digits.
    pub of: String,
    /// Number of the first event.
    pub first: u64,
}

/// The event on a line.
pub(super) fn event(line: &[u8]) -> Option<Event> {
    take(line)
}
