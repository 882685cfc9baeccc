//! Opening, creating and closing regular files; which kind of access they get.
//!
//! The file system is called outside of any lock. Only the decision about an inode's access,
//! with the registration that goes with it, is one step of [`crate::opens`].

use crate::abi::{self, fopen};
use crate::buffer::{Reply, take, take_name};
use crate::connection::{Connection, Request};
use crate::dispatch::Given;
use crate::opens::Access;
use forebay_proto::activity::ActivityKind;
use forebay_proto::api::CreateArgs;
use forebay_proto::{Entry, Errno, Ino, Opened, Result};

/// Never KEEP_CACHE: pages that readahead fetched before passthrough writes would be old.
/// NOFLUSH: closing needs no request, as no data and no lock waits in the kernel; unless locks
/// are served, because then a close ends the process's locks.
fn open_out(cx: &Connection, access: Access) -> abi::OpenOut {
    let (open_flags, backing_id) = match access {
        Access::Passthrough(id) => (fopen::PASSTHROUGH, id.0),
        Access::Served => (fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES, 0),
    };
    let flush = if cx.served_locks().is_some() { 0 } else { fopen::NOFLUSH };
    abi::OpenOut { fh: cx.new_handle(), open_flags: open_flags | flush, backing_id }
}

/// Counts an open that was granted. If that cannot be, it has ended.
fn decide(cx: &Connection, ino: Ino, opened: &Opened) -> Result<Access> {
    let access = cx.opens.join_or_decide(ino, opened.local.as_deref(), &cx.device);
    access.inspect_err(|_| cx.fs.release(ino, opened.local.is_some()))
}

/// An open that is counted already, and counted no more if the file system refuses it (or
/// panics).
struct Joined<'a> {
    cx: &'a Connection,
    ino: Ino,
    access: Access,
}

impl<'a> Joined<'a> {
    fn join(cx: &'a Connection, ino: Ino) -> Option<Joined<'a>> {
        let access = cx.opens.join(ino)?;
        Some(Joined { cx, ino, access })
    }

    fn keep(self, opened: &Opened) -> Access {
        let (cx, ino, access) = (self.cx, self.ino, self.access);
        std::mem::forget(self);
        cx.release(ino, cx.opens.granted(ino, opened.local.is_some()));
        access
    }
}

impl Drop for Joined<'_> {
    fn drop(&mut self) {
        self.cx.release(self.ino, self.cx.opens.refused(self.ino, &self.cx.device));
    }
}

pub(crate) fn open(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Result<Given> {
    let mut rest = rq.body;
    let arg: abi::OpenIn = take(&mut rest)?;
    let ino = rq.ino();
    let kill_suid = arg.open_flags & abi::OPEN_KILL_SUIDGID != 0;
    let caller = rq.caller()?;
    let joined = Joined::join(cx, ino);
    let want_local = joined.is_none() && cx.wants_local();
    sync_names_for(cx, ino, arg.flags)?;
    let opened = cx.fs.open(&caller, ino, arg.flags, kill_suid, want_local)?;
    let access = match joined {
        Some(joined) => joined.keep(&opened),
        None => decide(cx, ino, &opened)?,
    };
    may_map(cx, ino, access, arg.flags);
    note_synchronous(cx, ino, arg.flags);
    reply.put(&open_out(cx, access));
    Ok(Given::Open(ino))
}

/// A file that the kernel itself reads and writes can be mapped, and no request tells of stores into the mapping. What
/// the kernel believes of its times is dropped before the open is answered, and from then on it asks.
fn may_map(cx: &Connection, ino: Ino, access: Access, open_flags: u32) {
    let by_kernel = matches!(access, Access::Passthrough(_));
    if by_kernel {
        cx.activity.happened(ActivityKind::Kernel, ino, (0, 0), 0);
    }
    let both_ways = open_flags & libc::O_ACCMODE as u32 == libc::O_RDWR as u32;
    if by_kernel && both_ways && cx.opens.may_map(ino) {
        cx.lifetimes.answers_under_way().wait();
        crate::notify::attributes_unknown(&cx.device, ino);
    }
}

/// O_SYNC and O_DSYNC promise that what a write returned for can be read after a power cut. By
/// passthrough the kernel syncs the object alone and no request tells of it, so the names that
/// lead to it go to flash before such a file is handed out.
fn sync_names_for(cx: &Connection, ino: Ino, open_flags: u32) -> Result<()> {
    match cx.flags.sync || is_synchronous(open_flags) {
        true => cx.fs.fsyncdir(ino),
        false => Ok(()),
    }
}

/// Of an open that was counted. A request to copy into the file does not tell its flags.
fn note_synchronous(cx: &Connection, ino: Ino, open_flags: u32) {
    if is_synchronous(open_flags) {
        cx.opens.note_synchronous(ino);
    }
}

/// Whether a file is opened with O_SYNC or O_DSYNC (the first contains the second).
pub(crate) fn is_synchronous(open_flags: u32) -> bool {
    open_flags & libc::O_DSYNC as u32 != 0
}

pub(crate) fn create(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Result<Given> {
    let mut rest = rq.body;
    let arg: abi::CreateIn = take(&mut rest)?;
    let name = take_name(&mut rest)?;
    let args = CreateArgs { mode: arg.mode & 0o7777, umask: arg.umask };
    let caller = rq.caller()?;
    let make = || cx.fs.create(&caller, rq.ino(), name, args, cx.wants_local());
    match cx.within.make(make) {
        Ok(made) => {
            let synced = cx.names_changed(rq.ino());
            synced.and_then(|()| sync_names_for(cx, rq.ino(), arg.flags)).inspect_err(|_| {
                cx.fs.release(made.0.attr.ino, made.1.local.is_some());
                cx.fs.forget(made.0.attr.ino, 1);
            })?;
            put_created(cx, rq.ino(), arg.flags, reply, made)
        }
        // The kernel believed the name absent, and it was made behind the mount. ESTALE makes
        // the kernel look again and open what is there, with its permission checks.
        Err(Errno::EEXIST) if arg.flags & libc::O_EXCL as u32 == 0 => Err(Errno::ESTALE),
        Err(e) => Err(e),
    }
}

pub(crate) fn tmpfile(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Result<Given> {
    let mut rest = rq.body;
    let arg: abi::CreateIn = take(&mut rest)?;
    let args = CreateArgs { mode: arg.mode & 0o7777, umask: arg.umask };
    let caller = rq.caller()?;
    let made = cx.within.make(|| cx.fs.tmpfile(&caller, rq.ino(), args, cx.wants_local()))?;
    put_created(cx, rq.ino(), arg.flags, reply, made)
}

fn put_created(
    cx: &Connection,
    parent: Ino,
    open_flags: u32,
    reply: &mut Reply,
    (entry, opened): (Entry, Opened),
) -> Result<Given> {
    let ino = entry.attr.ino;
    let access = decide(cx, ino, &opened).inspect_err(|_| cx.fs.forget(ino, 1))?;
    may_map(cx, ino, access, open_flags);
    note_synchronous(cx, ino, open_flags);
    cx.put_entry(reply, parent, &entry.attr);
    reply.put(&open_out(cx, access));
    Ok(Given::EntryAndOpen(ino))
}

/// The last close of a file.
pub(crate) fn release(cx: &Connection, rq: &Request<'_>) -> Result<Given> {
    let mut rest = rq.body;
    let arg: abi::ReleaseIn = take(&mut rest)?;
    super::locks::end_of_file(cx, rq.ino(), &arg);
    cx.release(rq.ino(), cx.opens.leave(rq.ino(), &cx.device));
    Ok(Given::Nothing)
}
