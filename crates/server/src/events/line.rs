//! One line of a segment: eight hex digits of the CRC32C of what follows, a space, JSON without a
//! line break, a line break. The first line of a segment is its [`Head`], all others are events.

use forebay_proto::events::Event;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Version of the lines; a record of another one is refused by name.
pub(super) const FORMAT: u32 = 1;
/// Digits of the CRC and the space behind them.
const CRC_BYTES: usize = 9;

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

/// Appends a line.
pub(super) fn put<T: Serialize>(value: &T, lines: &mut Vec<u8>) -> Result<(), std::io::Error> {
    let json = serde_json::to_vec(value)?;
    lines.extend_from_slice(format!("{:08x} ", crc_fast::crc32_iscsi(&json)).as_bytes());
    lines.extend_from_slice(&json);
    lines.push(b'\n');
    Ok(())
}

/// What a line says, `None` if it is torn or damaged.
pub(super) fn take<T: DeserializeOwned>(line: &[u8]) -> Option<T> {
    let line = line.strip_suffix(b"\n")?;
    let (crc, json) = line.split_at_checked(CRC_BYTES)?;
    let crc = std::str::from_utf8(crc.strip_suffix(b" ")?).ok()?;
    if u32::from_str_radix(crc, 16).ok()? != crc_fast::crc32_iscsi(json) {
        return None;
    }
    serde_json::from_slice(json).ok()
}

/// The event on a line.
pub(super) fn event(line: &[u8]) -> Option<Event> {
    take(line)
}
