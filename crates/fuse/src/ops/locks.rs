//! Requests on locks, of file systems that serve them ([`forebay_proto::FileSystem::locks`]).
//!
//! flock is told by a flag; whether an fcntl lock is POSIX or OFD is found out ([`crate::fcntl`]),
//! and taken for POSIX if it cannot be. The owner of a flock or OFD lock is our number of the open
//! file; the kernel's, an address, may be another file's before the first one's RELEASE is read.

use crate::abi;
use crate::buffer::{Reply, take};
use crate::connection::{Connection, Request};
use crate::device::Device;
use crate::dispatch::Given;
use crate::fcntl::asks_for_ofd;
use crate::locked::{Through, Whose};
use forebay_proto::api::Locks;
use forebay_proto::net::session::{LockKind, LockSpec};
use forebay_proto::{Errno, Ino, Result};
use std::sync::Arc;

const UNLOCK: u32 = libc::F_UNLCK as u32;
const SHARED: u32 = libc::F_RDLCK as u32;
const EXCLUSIVE: u32 = libc::F_WRLCK as u32;
/// The kernel takes no end beyond this one.
const LAST_BYTE: u64 = u64::MAX >> 1;

/// One request, taken apart.
struct Asked<'a> {
    locks: &'a dyn Locks,
    spec: LockSpec,
    unlock: bool,
    /// Of a POSIX lock, or one that may be.
    through: Option<Through>,
}

fn asked<'a>(cx: &'a Connection, rq: &Request<'_>) -> Result<Asked<'a>> {
    let mut rest = rq.body;
    let arg: abi::LkIn = take(&mut rest)?;
    let locks = cx.served_locks().ok_or(Errno::ENOSYS)?;
    if !matches!(arg.lk.kind, UNLOCK | SHARED | EXCLUSIVE) {
        return Err(Errno::EINVAL);
    }
    let kind = kind_of(cx, rq, &arg);
    let spec = LockSpec {
        ino: rq.ino(),
        kind,
        owner: if kind == LockKind::Posix { arg.owner } else { arg.fh },
        pid: arg.lk.pid,
        start: arg.lk.start,
        end: arg.lk.end,
        exclusive: arg.lk.kind == EXCLUSIVE,
    };
    let (start, end) = (arg.lk.start, arg.lk.end);
    let through = Through { ino: rq.ino(), handle: arg.fh, owner: arg.owner, start, end };
    let through = (kind == LockKind::Posix).then_some(through);
    Ok(Asked { locks, spec, unlock: arg.lk.kind == UNLOCK, through })
}

/// The kind, found out when an owner first locks through a file. An owner that was not met holds
/// nothing through it, so before that it does not matter.
fn kind_of(cx: &Connection, rq: &Request<'_>, arg: &abi::LkIn) -> LockKind {
    if arg.lk_flags & abi::LK_FLOCK != 0 {
        return LockKind::Flock;
    }
    match cx.locks.note(|locked| locked.whose(rq.ino(), arg.fh, arg.owner)) {
        Whose::File => return LockKind::Ofd,
        Whose::Process => return LockKind::Posix,
        Whose::NotMet => {}
    }
    let locks = rq.head.opcode != abi::op::GETLK && arg.lk.kind != UNLOCK;
    if !locks || asks_for_ofd(rq.head.pid) != Some(true) {
        return LockKind::Posix;
    }
    cx.locks.note(|locked| locked.is_file(arg.fh, arg.owner));
    LockKind::Ofd
}

pub(crate) fn getlk(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Result<Given> {
    let asked = asked(cx, rq)?;
    let lk = match asked.locks.test(&asked.spec)? {
        Some(held) => abi::FileLock {
            start: held.start,
            end: held.end.min(LAST_BYTE),
            kind: if held.exclusive { EXCLUSIVE } else { SHARED },
            pid: held.pid,
        },
        None => abi::FileLock { kind: UNLOCK, ..Default::default() },
    };
    reply.put(&abi::LkOut { lk });
    Ok(Given::Nothing)
}

/// Locks, or answers EAGAIN: for an open file's lock after a moment only, in which its holder may turn out to have
/// been closed ([`crate::tries`]).
pub(crate) fn setlk(cx: &Connection, device: &Arc<Device>, rq: &Request<'_>) -> Result<Given> {
    let asked = asked(cx, rq)?;
    if asked.unlock {
        return unlock(cx, &asked);
    }
    check_room(cx, &asked)?;
    match asked.locks.set(&asked.spec, None) {
        Ok(_) => {
            note(cx, &asked);
            Ok(Given::Nothing)
        }
        Err(Errno::EAGAIN) if asked.spec.kind != LockKind::Posix && cx.tries.has_room() => {
            // A table that is full of requests that wait does not change the answer.
            match wait(cx, device, rq, &asked, true) {
                Err(Errno::ENOLCK) => Err(Errno::EAGAIN),
                other => other,
            }
        }
        Err(e) => Err(e),
    }
}

fn unlock(cx: &Connection, asked: &Asked<'_>) -> Result<Given> {
    asked.locks.unset(&asked.spec)?;
    if let Some(t) = asked.through {
        cx.locks.note(|locked| locked.unset(t.ino, t.owner, t.start, t.end));
    }
    Ok(Given::Nothing)
}

/// A lock was granted, and its request will be answered now.
fn note(cx: &Connection, asked: &Asked<'_>) {
    if let Some(through) = asked.through {
        cx.locks.note(|locked| locked.set(through));
    }
}

fn check_room(cx: &Connection, asked: &Asked<'_>) -> Result<()> {
    let counts = asked.spec.kind != LockKind::Flock;
    if counts && !cx.locks.has_room() { Err(Errno::ENOLCK) } else { Ok(()) }
}

/// Locks, and waits if need be, without a thread: the waiter answers.
pub(crate) fn setlkw(cx: &Connection, device: &Arc<Device>, rq: &Request<'_>) -> Result<Given> {
    let asked = asked(cx, rq)?;
    if asked.unlock {
        return unlock(cx, &asked);
    }
    check_room(cx, &asked)?;
    wait(cx, device, rq, &asked, false)
}

/// Makes a request that may wait; `briefly`: as [`crate::tries`] has it.
fn wait(
    cx: &Connection,
    device: &Arc<Device>,
    rq: &Request<'_>,
    asked: &Asked<'_>,
    briefly: bool,
) -> Result<Given> {
    let unique = rq.head.unique;
    cx.locks.begin(unique, device, asked.through)?;
    let requests = Arc::clone(&cx.locks);
    let waiter = Box::new(move |result| requests.finish(unique, result));
    match asked.locks.set(&asked.spec, Some(waiter)) {
        Ok(Some(ticket)) => {
            if cx.locks.waits(unique, ticket) {
                asked.locks.cancel(ticket);
            } else if briefly {
                cx.tries.add(unique);
            }
            Ok(Given::Later)
        }
        Ok(None) => {
            cx.locks.did_not_wait(unique);
            note(cx, asked);
            Ok(Given::Nothing)
        }
        Err(e) => {
            cx.locks.did_not_wait(unique);
            Err(e)
        }
    }
}

/// A descriptor is closed: the process's POSIX locks on the file go, whichever descriptor they
/// were taken with. Most files were never locked and need not ask.
pub(crate) fn flush(cx: &Connection, rq: &Request<'_>) -> Result<Given> {
    let Some(locks) = cx.served_locks() else { return Ok(Given::Nothing) };
    let mut rest = rq.body;
    let arg: abi::FlushIn = take(&mut rest)?;
    let (ino, owner) = (rq.ino(), arg.lock_owner);
    // First, so that who gets a lock next sees what was written under it.
    let flushed = cx.fs.flush(ino);
    if cx.locks.note(|locked| locked.forget_owner(ino, owner)) {
        locks.drop_owner(ino, LockKind::Posix, owner).inspect_err(|_| {
            // It may still hold locks: its next close tries again.
            cx.locks.note(|locked| locked.may_hold(ino, arg.fh, owner));
        })?;
    }
    flushed.map(|()| Given::Nothing)
}

/// A file was closed for the last time: its flock and its OFD locks go. Nobody waits for the
/// outcome, so a failure is only logged.
pub(crate) fn end_of_file(cx: &Connection, ino: Ino, arg: &abi::ReleaseIn) {
    let Some(locks) = cx.served_locks() else { return };
    let failed = |error| tracing::warn!(%ino, %error, "a closed file may still be locked");
    if arg.release_flags & abi::RELEASE_FLOCK_UNLOCK != 0 {
        locks.drop_owner(ino, LockKind::Flock, arg.fh).unwrap_or_else(failed);
    }
    if cx.locks.note(|locked| locked.forget_own(arg.fh)) {
        locks.drop_owner(ino, LockKind::Ofd, arg.fh).unwrap_or_else(failed);
    }
    for left in cx.locks.forget_file(ino, arg.fh) {
        let owner = left.owner;
        let Some(ranges) = left.ranges else {
            // Under the kind that it was locked as.
            locks.drop_owner(ino, LockKind::Posix, owner).unwrap_or_else(failed);
            continue;
        };
        for (start, end) in ranges {
            let (kind, exclusive) = (LockKind::Posix, false);
            let spec = LockSpec { ino, kind, owner, pid: 0, start, end, exclusive };
            locks.unset(&spec).unwrap_or_else(failed);
        }
    }
}

/// INTERRUPT: gives a request up that waits for a lock, whatever the signal: the kernel
/// restarts the call or tells EINTR, as it does for a local lock.
pub(crate) fn interrupt(cx: &Connection, rq: &Request<'_>) -> Result<()> {
    let Some(locks) = cx.served_locks() else { return Ok(()) };
    let mut rest = rq.body;
    let arg: abi::InterruptIn = take(&mut rest)?;
    if let Some(ticket) = cx.locks.interrupt(arg.unique) {
        locks.cancel(ticket);
    }
    Ok(())
}

/// The mount has ended: nobody waits any more. What is held goes with the file system's session.
pub(crate) fn end_of_mount(cx: &Connection) {
    let Some(locks) = cx.served_locks() else { return };
    for ticket in cx.locks.interrupt_all() {
        locks.cancel(ticket);
    }
}
