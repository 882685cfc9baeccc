//! From a request to its answer: which function serves which opcode, and what happens when a
//! request is malformed, panics, or its answer finds nobody waiting.
//!
//! Called by reader threads for every request and by workers for those that take long. A panic
//! in one request is an EIO for its caller and a line in the log; the mount goes on.

use crate::abi::{self, op};
use crate::buffer::Reply;
use crate::connection::{Connection, Request};
use crate::device::{Device, ECONNABORTED};
use crate::ops::{attrs, data, files, listing, names, xattrs};
use forebay_proto::{Errno, Ino};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What an answer gave to the kernel, to be taken back if it cannot be delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Given {
    /// Nothing.
    Nothing,
    /// One reference to an inode.
    Entry(Ino),
    /// An open file.
    Open(Ino),
    /// Both.
    EntryAndOpen(Ino),
    /// An open directory.
    Dir(u64),
    /// The references in a READDIRPLUS reply.
    Listing,
}

/// Whether the kernel waits for an answer.
fn is_answered(opcode: u32) -> bool {
    !matches!(opcode, op::FORGET | op::BATCH_FORGET | op::INTERRUPT | op::NOTIFY_REPLY)
}

/// Serves one request and sends its answer.
pub(crate) fn serve(cx: &Connection, device: &Device, request: &Request<'_>, reply: &mut Reply) {
    let result = call_guarded(cx, request, reply);
    if is_answered(request.head.opcode) {
        answer(cx, device, request.head.unique, result, reply);
    }
}

/// Serves one request; a panic is EIO.
pub(crate) fn call_guarded(
    cx: &Connection,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<Given, Errno> {
    reply.clear();
    catch_unwind(AssertUnwindSafe(|| call(cx, request, reply))).unwrap_or_else(|panic| {
        let opcode = abi::opcode_name(request.head.opcode).unwrap_or("UNKNOWN");
        let text = panic_text(panic.as_ref());
        tracing::error!(opcode, ino = request.head.nodeid, text, "a request panicked");
        Err(Errno::EIO)
    })
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("")
}

/// Sends an answer; takes back what it gave if nobody waits for it any more.
pub(crate) fn answer(
    cx: &Connection,
    device: &Device,
    unique: u64,
    result: Result<Given, Errno>,
    reply: &mut Reply,
) {
    let (given, error) = match result {
        Ok(given) => (given, None),
        Err(e) => (Given::Nothing, Some(e)),
    };
    let Err(send_error) = device.send(reply.message(unique, error)) else { return };
    take_back(cx, given, reply);
    // ENOENT: the request was given up; ENODEV and EPERM: the mount is going away.
    if !matches!(send_error, Errno::ENOENT | Errno::ENODEV | Errno::EPERM | ECONNABORTED) {
        tracing::error!(error = %send_error, "the kernel refused an answer; sending EIO instead");
        if let Err(error) = device.send(reply.message(unique, Some(Errno::EIO))) {
            tracing::error!(%error, "the kernel refused EIO too");
        }
    }
}

/// Takes back what an answer gave.
pub(crate) fn take_back(cx: &Connection, given: Given, reply: &Reply) {
    match given {
        Given::Nothing => {}
        Given::Entry(ino) => cx.fs.forget(ino, 1),
        Given::Open(ino) => cx.opens.leave(ino, &cx.device),
        Given::EntryAndOpen(ino) => {
            cx.opens.leave(ino, &cx.device);
            cx.fs.forget(ino, 1);
        }
        Given::Dir(handle) => cx.dirs.remove(handle),
        Given::Listing => listing::forget_entries(cx, reply.payload()),
    }
}

fn call(cx: &Connection, request: &Request<'_>, reply: &mut Reply) -> Result<Given, Errno> {
    match request.head.opcode {
        op::LOOKUP => names::lookup(cx, request, reply),
        op::FORGET => names::forget(cx, request),
        op::BATCH_FORGET => names::batch_forget(cx, request),
        op::SYMLINK => names::symlink(cx, request, reply),
        op::MKNOD => names::mknod(cx, request, reply),
        op::MKDIR => names::mkdir(cx, request, reply),
        op::UNLINK => names::unlink(cx, request),
        op::RMDIR => names::rmdir(cx, request),
        op::RENAME => names::rename(cx, request),
        op::RENAME2 => names::rename2(cx, request),
        op::LINK => names::link(cx, request, reply),
        op::READLINK => names::readlink(cx, request, reply),

        op::GETATTR => attrs::getattr(cx, request, reply),
        op::STATX => attrs::statx(cx, request, reply),
        op::SETATTR => attrs::setattr(cx, request, reply),
        op::STATFS => attrs::statfs(cx, reply),

        op::OPEN => files::open(cx, request, reply),
        op::CREATE => files::create(cx, request, reply),
        op::TMPFILE => files::tmpfile(cx, request, reply),
        op::RELEASE => files::release(cx, request),

        op::READ => data::read(cx, request, reply),
        op::WRITE => data::write(cx, request, reply),
        op::FSYNC => data::fsync(cx, request),
        op::FALLOCATE => data::fallocate(cx, request),
        op::LSEEK => data::lseek(cx, request, reply),
        op::COPY_FILE_RANGE => data::copy_file_range(cx, request, reply),
        op::COPY_FILE_RANGE_64 => data::copy_file_range_64(cx, request, reply),
        op::SYNCFS => cx.fs.sync_all().map(|()| Given::Nothing),

        op::OPENDIR => listing::opendir(cx, request, reply),
        op::READDIR => listing::readdir(cx, request, reply),
        op::READDIRPLUS => listing::readdirplus(cx, request, reply),
        op::RELEASEDIR => listing::releasedir(cx, request),
        op::FSYNCDIR => cx.fs.fsyncdir(request.ino()).map(|()| Given::Nothing),

        op::SETXATTR => xattrs::setxattr(cx, request),
        op::GETXATTR => xattrs::getxattr(cx, request, reply),
        op::LISTXATTR => xattrs::listxattr(cx, request, reply),
        op::REMOVEXATTR => xattrs::removexattr(cx, request),

        op::INTERRUPT => crate::workers::interrupt(cx, request),
        // Files are opened with NOFLUSH; a write that returned is at the server already.
        op::FLUSH | op::DESTROY => Ok(Given::Nothing),
        // No file attributes of chattr(1), no device commands.
        op::IOCTL => Err(Errno::ENOTTY),
        // The kernel remembers ENOSYS: it then decides by itself (ACCESS by mode and ACL, POLL
        // as always ready, BMAP as not possible) and does not ask again.
        _ => Err(Errno::ENOSYS),
    }
}
