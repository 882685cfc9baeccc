//! From a request to its answer: which function serves which opcode, and what happens when a
//! request is malformed, panics, or its answer finds nobody waiting.
//!
//! Called by reader threads for every request and by workers for those that take long. A panic
//! in one request is an EIO for its caller and a line in the log; the mount goes on.

use crate::abi::{self, op};
use crate::buffer::Reply;
use crate::connection::{Connection, Request};
use crate::device::{Device, ECONNABORTED};
use crate::ops::{attrs, copies, data, files, handles, listing, locks, names, xattrs};
use forebay_proto::{Errno, Ino};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

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
    /// Nothing yet: somebody else answers later.
    Later,
}

/// Whether the kernel waits for an answer.
pub(crate) fn is_answered(opcode: u32) -> bool {
    !matches!(opcode, op::FORGET | op::BATCH_FORGET | op::INTERRUPT | op::NOTIFY_REPLY)
}

/// Serves one request and sends its answer.
pub(crate) fn serve(
    cx: &Connection,
    device: &Arc<Device>,
    request: &Request<'_>,
    reply: &mut Reply,
) {
    let result = call_guarded(cx, device, request, reply);
    if is_answered(request.head.opcode) && result != Ok(Given::Later) {
        answer(cx, device, request.head.unique, result, reply);
    }
}

/// Serves one request; a panic is EIO.
pub(crate) fn call_guarded(
    cx: &Connection,
    device: &Arc<Device>,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<Given, Errno> {
    reply.clear();
    let began = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| call(cx, device, request, reply)));
    if !matches!(result, Ok(Ok(Given::Later))) {
        cx.tally.took(request.head.opcode, began.elapsed());
    }
    result.unwrap_or_else(|panic| {
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
        Err(e) => {
            // What is not implemented is not asked again: it is an answer, no trouble.
            if e != Errno::ENOSYS {
                cx.tally.failed(e);
            }
            (Given::Nothing, Some(e))
        }
    };
    let sent = match error {
        None => cx.lifetimes.send(&*cx.fs, (&cx.opens, &cx.beside), device, unique, reply),
        Some(_) => device.send(reply.message(unique, error)),
    };
    let Err(send_error) = sent else { return };
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
        Given::Nothing | Given::Later => {}
        Given::Entry(ino) => cx.fs.forget(ino, 1),
        Given::Open(ino) => cx.release(ino, cx.opens.leave(ino, &cx.device)),
        Given::EntryAndOpen(ino) => {
            cx.release(ino, cx.opens.leave(ino, &cx.device));
            cx.fs.forget(ino, 1);
        }
        Given::Dir(handle) => cx.dirs.remove(handle),
        Given::Listing => listing::forget_entries(cx, reply.payload()),
    }
}

fn call(
    cx: &Connection,
    device: &Arc<Device>,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<Given, Errno> {
    if let Some(done) = handles::call(cx, request, reply) {
        return done;
    }
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
        op::COPY_FILE_RANGE => copies::copy_file_range(cx, request, reply),
        op::COPY_FILE_RANGE_64 => copies::copy_file_range_64(cx, request, reply),
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

        op::GETLK => locks::getlk(cx, request, reply),
        op::SETLK => locks::setlk(cx, device, request),
        op::SETLKW => locks::setlkw(cx, device, request),
        // A write that returned is at the server already.
        op::FLUSH => locks::flush(cx, request),

        op::INTERRUPT => {
            locks::interrupt(cx, request)?;
            crate::waits::interrupt(cx, request)
        }
        op::DESTROY => Ok(Given::Nothing),
        // No file attributes of chattr(1), no device commands. An overlay that copies a file up takes this answer, and no other
        // but EINVAL, for a file system without such attributes, and goes on.
        op::IOCTL => Err(Errno::ENOTTY),
        // The kernel remembers ENOSYS: it then decides by itself (ACCESS by mode and ACL, POLL
        // as always ready, BMAP as not possible) and does not ask again.
        _ => Err(Errno::ENOSYS),
    }
}

#[cfg(test)]
#[allow(dead_code, missing_docs, clippy::unwrap_used)]
#[path = "../tests/integration/common/memory/mod.rs"]
mod memory;

#[cfg(test)]
pub(crate) mod tests {
    use super::memory::MemoryFs;
    use super::*;
    use crate::init::Agreed;
    use crate::options::{FastPath, FastPathOff, MountOptions};
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    /// What serves from this directory, and answers into this file.
    pub(crate) fn connection(store: &std::path::Path, device: &str) -> Connection {
        let file = std::fs::File::options().read(true).write(true).open(device).unwrap();
        let device = Arc::new(Device::new(file.into()));
        let agreed = Agreed { minor: abi::KERNEL_MINOR_VERSION, flags: u64::MAX };
        let fast_path = FastPath::Off { reason: FastPathOff::Disabled };
        let options = MountOptions { workers: Some(1), ..Default::default() };
        Connection::new(Arc::new(MemoryFs::new(store)), device, &options, agreed, fast_path)
    }

    proptest! {
        /// Whatever is in a request, it is answered or refused, never a panic.
        #[test]
        fn no_request_panics(
            requests in prop::collection::vec(
                (0..abi::OPCODE_END + 2, 0u64..4, prop::collection::vec(any::<u8>(), 0..160)),
                1..20,
            )
        ) {
            let dir = tempfile::tempdir_in("/dev/shm").unwrap();
            let cx = connection(dir.path(), "/dev/null");
            let mut reply = Reply::new();
            for (opcode, nodeid, body) in requests {
                let len = (size_of::<abi::InHeader>() + body.len()) as u32;
                let head = abi::InHeader { len, opcode, nodeid, ..Default::default() };
                let bytes = [head.as_bytes(), &body].concat();
                let request = Request::parse(&bytes, cx.device.root()).unwrap();
                reply.clear();
                let _ = call(&cx, &cx.device, &request, &mut reply);
            }
        }
    }

    #[test]
    fn short_requests_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let cx = connection(dir.path(), "/dev/null");
        let mut reply = Reply::new();
        for opcode in [op::OPEN, op::CREATE, op::WRITE, op::SETATTR, op::RENAME2, op::LOOKUP] {
            let head = abi::InHeader { len: 44, opcode, nodeid: 1, ..Default::default() };
            let bytes = [head.as_bytes(), b"abcd"].concat();
            let request = Request::parse(&bytes, cx.device.root()).unwrap();
            assert_eq!(call_guarded(&cx, &cx.device, &request, &mut reply), Err(Errno::EINVAL));
        }
    }

    #[test]
    fn who_asks_for_attributes_of_chattr_hears_that_there_are_none() {
        let dir = tempfile::tempdir().unwrap();
        let cx = connection(dir.path(), "/dev/null");
        let mut reply = Reply::new();
        let head = abi::InHeader { len: 72, opcode: op::IOCTL, nodeid: 1, ..Default::default() };
        let bytes = [head.as_bytes(), &[0u8; 32]].concat();
        let request = Request::parse(&bytes, cx.device.root()).unwrap();
        assert_eq!(call_guarded(&cx, &cx.device, &request, &mut reply), Err(Errno::ENOTTY));
    }

    #[test]
    fn undelivered_listings_give_their_references_back() {
        let dir = tempfile::tempdir().unwrap();
        let cx = connection(dir.path(), "/dev/full");
        let mut reply = Reply::new();
        let root = forebay_proto::Caller::root();
        let args = forebay_proto::api::CreateArgs { mode: 0o644, umask: 0 };
        for name in [&b"a"[..], b"a longer name", b"b"] {
            let entry = cx.fs.create(&root, Ino::ROOT, name, args, false).unwrap().0;
            cx.fs.forget(entry.attr.ino, 1);
        }
        let handle = cx.dirs.add(cx.fs.dir_limit(Ino::ROOT).unwrap()).unwrap();
        let read = abi::ReadIn { fh: handle, size: 65_536, ..Default::default() };
        let head = abi::InHeader {
            len: 80,
            opcode: op::READDIRPLUS,
            nodeid: Ino::ROOT.0,
            ..Default::default()
        };
        let bytes = [head.as_bytes(), read.as_bytes()].concat();
        let request = Request::parse(&bytes, cx.device.root()).unwrap();
        assert_eq!(call_guarded(&cx, &cx.device, &request, &mut reply), Ok(Given::Listing));
        let held = references(&reply);
        assert_eq!(held.len(), 3);
        // The inodes go with their names only if nobody holds them.
        for name in [&b"a"[..], b"a longer name", b"b"] {
            cx.fs.unlink(&root, Ino::ROOT, name).unwrap();
        }
        assert!(held.iter().all(|&ino| cx.fs.getattr(ino).is_ok()));
        // /dev/full refuses every write, as the kernel does when nobody waits.
        answer(&cx, &cx.device, 1, Ok(Given::Listing), &mut reply);
        assert!(held.iter().all(|&ino| cx.fs.getattr(ino) == Err(Errno::ESTALE)));
    }

    fn references(reply: &Reply) -> Vec<Ino> {
        let mut rest = reply.payload();
        let mut out = Vec::new();
        while let Ok((entry, after)) = abi::EntryOut::read_from_prefix(rest) {
            let (dirent, _) = abi::Dirent::read_from_prefix(after).unwrap();
            out.extend((entry.nodeid != 0).then_some(Ino(entry.nodeid)));
            rest = &after[(24 + dirent.namelen as usize).next_multiple_of(8)..];
        }
        out
    }
}
