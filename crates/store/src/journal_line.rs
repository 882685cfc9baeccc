//! One line of a file that is only appended to: eight hex digits of the CRC32C of what follows, a
//! space, JSON without a line break, a line break. So a line that a kill or a power cut tore, or that is
//! damaged, is told from a whole one.
//!
//! The journals of plans (`mover::journal`) and the records of events (`events`) are made of them.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Digits of the CRC and the space behind them.
const CRC_BYTES: usize = 9;

/// Appends a line.
pub fn put<T: Serialize>(value: &T, lines: &mut Vec<u8>) -> Result<(), std::io::Error> {
    let json = serde_json::to_vec(value)?;
    lines.extend_from_slice(format!("{:08x} ", crc_fast::crc32_iscsi(&json)).as_bytes());
    lines.extend_from_slice(&json);
    lines.push(b'\n');
    Ok(())
}

/// What a line says, `None` if it is torn or damaged.
pub fn take<T: DeserializeOwned>(line: &[u8]) -> Option<T> {
    let line = line.strip_suffix(b"\n")?;
    let (crc, json) = line.split_at_checked(CRC_BYTES)?;
    let crc = std::str::from_utf8(crc.strip_suffix(b" ")?).ok()?;
    if u32::from_str_radix(crc, 16).ok()? != crc_fast::crc32_iscsi(json) {
        return None;
    }
    serde_json::from_slice(json).ok()
}
