//! Frames of the control socket: a little-endian u32 length, then that many bytes of JSON.
//!
//! Both sides use this. A length above [`MAX_MESSAGE_BYTES`] is an error before anything is
//! allocated, so a bad peer cannot take memory.

use forebay_proto::control::MAX_MESSAGE_BYTES;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};

/// Writes one message in one piece.
pub fn write_message<T: Serialize>(mut to: impl Write, message: &T) -> io::Result<()> {
    let mut frame = vec![0u8; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = u32::try_from(frame.len() - 4).ok().filter(|length| *length <= MAX_MESSAGE_BYTES);
    let Some(length) = length else { return Err(too_long(frame.len() as u64 - 4)) };
    frame[..4].copy_from_slice(&length.to_le_bytes());
    to.write_all(&frame)
}

/// Reads one message; `None` if the peer closed the connection between two messages.
pub fn read_message<T: DeserializeOwned>(mut from: impl Read) -> io::Result<Option<T>> {
    let mut length = [0u8; 4];
    match from.read(&mut length[..1]) {
        Ok(0) => return Ok(None),
        Ok(_) => from.read_exact(&mut length[1..])?,
        Err(error) => return Err(error),
    }
    let length = u32::from_le_bytes(length);
    if length > MAX_MESSAGE_BYTES {
        return Err(too_long(u64::from(length)));
    }
    // Read as it comes: a peer that only announces much makes us allocate little.
    let mut body = Vec::new();
    from.take(u64::from(length)).read_to_end(&mut body)?;
    if body.len() as u64 != u64::from(length) {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&body).map(Some).map_err(io::Error::from)
}

fn too_long(bytes: u64) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("a message of {bytes} bytes is longer than the limit of {MAX_MESSAGE_BYTES}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_and_end_cleanly() {
        let mut wire = Vec::new();
        write_message(&mut wire, &"one").unwrap();
        write_message(&mut wire, &vec![2, 3]).unwrap();
        let mut from = wire.as_slice();
        assert_eq!(read_message::<String>(&mut from).unwrap().unwrap(), "one");
        assert_eq!(read_message::<Vec<u8>>(&mut from).unwrap().unwrap(), [2, 3]);
        assert!(read_message::<String>(&mut from).unwrap().is_none());
    }

    #[test]
    fn long_and_torn_messages_are_errors() {
        let long = (MAX_MESSAGE_BYTES + 1).to_le_bytes();
        let message = read_message::<String>(&long[..]).unwrap_err().to_string();
        assert!(message.contains("limit"), "{message}");
        let mut wire = Vec::new();
        write_message(&mut wire, &"half of it").unwrap();
        wire.truncate(wire.len() - 3);
        let error = read_message::<String>(wire.as_slice()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
