//! Errors about a buffer that several parts of the ledger give.

use forebay_proto::control::ControlError;
use forebay_proto::net::ledger::BufferName;
use forebay_proto::size::format_bytes;

/// An error about a buffer.
pub(super) fn of(what: &str, name: &BufferName, why: &str, errno: i32) -> ControlError {
    ControlError::new(&format!("{what} buffer {name}"), None, why).errno(errno)
}

/// There is no such buffer.
pub(super) fn absent(what: &str, name: &BufferName) -> ControlError {
    of(what, name, "there is none of this name", libc::ENOENT)
        .hint("`forebay buffer list` shows those that you may use")
}

/// The buffer is another user's.
pub(super) fn not_theirs(what: &str, name: &BufferName) -> ControlError {
    of(what, name, "it belongs to another user", libc::EPERM)
        .hint("only its owner and the holder of the server's key may")
}

/// The server has not so much.
pub(super) fn no_space(
    what: &str,
    name: &BufferName,
    wanted_bytes: u64,
    free_bytes: u64,
) -> ControlError {
    let why = format!(
        "no space: {wanted_bytes} bytes ({}) are needed, the pool has {free_bytes} bytes ({}) free",
        format_bytes(wanted_bytes),
        format_bytes(free_bytes)
    );
    of(what, name, &why, libc::ENOSPC)
        .hint("ask for less, or destroy other buffers (`forebay buffer list` shows them)")
}
