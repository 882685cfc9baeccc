//! How servers that are processes of a test speak: a socket each in one directory, and pieces of bytes with
//! their length. Used by the tests that kill them.

use forebay_proto::Result;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Where a server listens.
pub fn socket(dir: &Path, server: u16) -> PathBuf {
    dir.join(format!("sock-{server}"))
}

/// Sends a piece.
pub fn send(stream: &mut UnixStream, bytes: &[u8]) -> Result<()> {
    stream.write_all(&(bytes.len() as u32).to_le_bytes())?;
    Ok(stream.write_all(bytes)?)
}

/// Waits for a piece.
pub fn receive(stream: &mut UnixStream) -> Result<Vec<u8>> {
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let mut bytes = vec![0; u32::from_le_bytes(len) as usize];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}
