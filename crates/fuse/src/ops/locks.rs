//! Requests on locks, of file systems that serve them ([`forebay_proto::FileSystem::locks`]).
//!
//! flock is told by a flag. POSIX and OFD locks cannot be told apart in a request; all are
//! passed on as POSIX, so a circle of waiting OFD locks is EDEADLK too, where Linux would wait for
//! ever. When they end is told exactly ([`crate::locks`]).

use crate::abi;
use crate::buffer::{Reply, take};
use crate::connection::{Connection, Request};
use crate::device::Device;
use crate::dispatch::Given;
use crate::locks::Through;
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
    /// Of an fcntl lock.
    through: Option<Through>,
}

fn asked<'a>(cx: &'a Connection, rq: &Request<'_>) -> Result<Asked<'a>> {
    let mut rest = rq.body;
    let arg: abi::LkIn = take(&mut rest)?;
    let locks = cx.served_locks().ok_or(Errno::ENOSYS)?;
    if !matches!(arg.lk.kind, UNLOCK | SHARED | EXCLUSIVE) {
        return Err(Errno::EINVAL);
    }
    let flock = arg.lk_flags & abi::LK_FLOCK != 0;
    let spec = LockSpec {
        ino: rq.ino(),
        kind: if flock { LockKind::Flock } else { LockKind::Posix },
        owner: arg.owner,
        pid: arg.lk.pid,
        start: arg.lk.start,
        end: arg.lk.end,
        exclusive: arg.lk.kind == EXCLUSIVE,
    };
    let through = Through { ino: rq.ino(), handle: arg.fh, owner: arg.owner };
    let through = (!flock).then_some(through);
    Ok(Asked { locks, spec, unlock: arg.lk.kind == UNLOCK, through })
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

pub(crate) fn setlk(cx: &Connection, rq: &Request<'_>) -> Result<Given> {
    let asked = asked(cx, rq)?;
    if asked.unlock {
        asked.locks.unset(&asked.spec)?;
        return Ok(Given::Nothing);
    }
    check_room(cx, &asked)?;
    asked.locks.set(&asked.spec, None)?;
    asked.through.into_iter().for_each(|through| cx.locks.note(through));
    Ok(Given::Nothing)
}

fn check_room(cx: &Connection, asked: &Asked<'_>) -> Result<()> {
    match asked.through {
        Some(_) if !cx.locks.has_room() => Err(Errno::ENOLCK),
        _ => Ok(()),
    }
}

/// Locks, and waits if need be, without a thread: the waiter answers.
pub(crate) fn setlkw(cx: &Connection, device: &Arc<Device>, rq: &Request<'_>) -> Result<Given> {
    let asked = asked(cx, rq)?;
    if asked.unlock {
        asked.locks.unset(&asked.spec)?;
        return Ok(Given::Nothing);
    }
    check_room(cx, &asked)?;
    let unique = rq.head.unique;
    cx.locks.begin(unique, device, asked.through)?;
    let requests = Arc::clone(&cx.locks);
    let waiter = Box::new(move |result| requests.finish(unique, result));
    match asked.locks.set(&asked.spec, Some(waiter)) {
        Ok(Some(ticket)) => {
            if cx.locks.waits(unique, ticket) {
                asked.locks.cancel(ticket);
            }
            Ok(Given::Later)
        }
        Ok(None) => {
            cx.locks.did_not_wait(unique);
            asked.through.into_iter().for_each(|through| cx.locks.note(through));
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
    if cx.locks.forget_owner(ino, owner) {
        locks.drop_owner(ino, LockKind::Posix, owner).inspect_err(|_| {
            // It may still hold locks: its next close tries again.
            cx.locks.note(Through { ino, handle: arg.fh, owner });
        })?;
    }
    Ok(Given::Nothing)
}

/// A file was closed for the last time: its flock and its OFD locks go. Nobody waits for the
/// outcome, so a failure is only logged.
pub(crate) fn end_of_file(cx: &Connection, ino: Ino, arg: &abi::ReleaseIn) {
    let Some(locks) = cx.served_locks() else { return };
    let flock = arg.release_flags & abi::RELEASE_FLOCK_UNLOCK != 0;
    let flock = flock.then_some((LockKind::Flock, arg.lock_owner));
    let left = cx.locks.forget_file(ino, arg.fh).into_iter().map(|owner| (LockKind::Ofd, owner));
    for (kind, owner) in left.chain(flock) {
        if let Err(error) = locks.drop_owner(ino, kind, owner) {
            tracing::warn!(%ino, ?kind, %error, "a closed file may still be locked");
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
