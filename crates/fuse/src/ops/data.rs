//! Requests on the data of regular files. Those of passthrough files come here too when the
//! kernel has no way to the backing file (fallocate, SEEK_DATA, readahead, fsync).

use crate::abi;
use crate::buffer::{Reply, take};
use crate::connection::{Connection, Request};
use crate::dispatch::Given;
use forebay_proto::activity::ActivityKind;
use forebay_proto::api::{LockUser, WriteMode};
use forebay_proto::{Errno, Ino, Result, SetAttr};

pub(crate) fn read(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Result<Given> {
    let mut rest = rq.body;
    let arg: abi::ReadIn = take(&mut rest)?;
    let process = (arg.read_flags & abi::READ_LOCKOWNER != 0).then_some(arg.lock_owner);
    may_use(cx, rq.ino(), arg.fh, process)?;
    reply.fill(arg.size as usize, |room| {
        let begun = cx.activity.begin();
        let bytes = match may_write_back(&arg) {
            true => cx.fs.read_to_write(rq.ino(), arg.offset, room)?,
            false => cx.fs.read(rq.ino(), arg.offset, room)?,
        };
        cx.tally.read(bytes);
        cx.moved(begun, ActivityKind::Hit, rq.ino(), arg.offset, bytes);
        Ok(bytes)
    })?;
    Ok(Given::Nothing)
}

/// True if what is read may be written back by the same descriptor.
fn may_write_back(arg: &abi::ReadIn) -> bool {
    arg.flags & libc::O_ACCMODE as u32 == libc::O_RDWR as u32
}

pub(crate) fn write(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Result<Given> {
    let mut rest = rq.body;
    let arg: abi::WriteIn = take(&mut rest)?;
    let data = rest.get(..arg.size as usize).ok_or(Errno::EINVAL)?;
    // Pages of a mapping are nobody's: they come with any file that is open.
    if arg.write_flags & abi::WRITE_CACHE == 0 {
        let process = (arg.write_flags & abi::WRITE_LOCKOWNER != 0).then_some(arg.lock_owner);
        may_use(cx, rq.ino(), arg.fh, process)?;
    }
    let mode = write_mode(&arg);
    lone_sgid_off(cx, rq, rq.ino(), mode)?;
    let begun = cx.activity.begin();
    let data = &data[..cx.within.part_of_write(&*cx.fs, rq.ino(), &arg, mode.append)?];
    let written = cx.fs.write(rq.ino(), arg.offset, data, mode)?;
    cx.tally.written(written.min(data.len()));
    cx.moved(begun, ActivityKind::Absorb, rq.ino(), arg.offset, written.min(data.len()));
    reply.put(&abi::WriteOut { size: written.min(data.len()) as u32, padding: 0 });
    Ok(Given::Nothing)
}

/// Before a write to a file whose sgid it may have to take off ([`crate::lone_sgid`]).
pub(super) fn lone_sgid_off(
    cx: &Connection,
    rq: &Request<'_>,
    ino: Ino,
    mode: WriteMode,
) -> Result<()> {
    if mode.kill_suid && cx.lone_sgid.is_one(ino) {
        let change = SetAttr { kill_suid: true, ..SetAttr::default() };
        let attr = cx.fs.setattr(&rq.caller()?, ino, &change)?;
        cx.lone_sgid.seen(&attr);
    }
    Ok(())
}

/// Who has lost a lock on the file does nothing there any more.
pub(super) fn may_use(cx: &Connection, ino: Ino, handle: u64, process: Option<u64>) -> Result<()> {
    match cx.served_locks() {
        Some(locks) => locks.may_use(ino, LockUser { handle, process }),
        None => Ok(()),
    }
}

/// With O_APPEND the offset is only the kernel's guess of the end. Pages written back from a
/// mapping have true offsets, whatever the flags of the file that they are sent with.
fn write_mode(arg: &abi::WriteIn) -> WriteMode {
    let has = |flag: i32| arg.flags & flag as u32 != 0;
    WriteMode {
        append: has(libc::O_APPEND) && arg.write_flags & abi::WRITE_CACHE == 0,
        kill_suid: arg.write_flags & abi::WRITE_KILL_SUIDGID != 0,
        // O_SYNC contains this bit.
        sync: has(libc::O_DSYNC),
    }
}

pub(crate) fn fsync(cx: &Connection, rq: &Request<'_>) -> Result<Given> {
    let mut rest = rq.body;
    let arg: abi::FsyncIn = take(&mut rest)?;
    cx.fs.fsync(rq.ino(), arg.fsync_flags & abi::FSYNC_FDATASYNC != 0)?;
    Ok(Given::Nothing)
}

pub(crate) fn fallocate(cx: &Connection, rq: &Request<'_>) -> Result<Given> {
    let mut rest = rq.body;
    let arg: abi::FallocateIn = take(&mut rest)?;
    may_use(cx, rq.ino(), arg.fh, None)?;
    cx.within.must_fit_allocated(&*cx.fs, rq.ino(), &arg)?;
    cx.fs.fallocate(rq.ino(), arg.mode, arg.offset, arg.length)?;
    Ok(Given::Nothing)
}

pub(crate) fn lseek(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Result<Given> {
    let mut rest = rq.body;
    let arg: abi::LseekIn = take(&mut rest)?;
    let offset = cx.fs.seek(rq.ino(), arg.offset, arg.whence)?;
    reply.put(&abi::LseekOut { offset });
    Ok(Given::Nothing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_descriptor_may_write_back_is_told_by_its_flags() {
        let of =
            |flags: i32| may_write_back(&abi::ReadIn { flags: flags as u32, ..Default::default() });
        assert!(of(libc::O_RDWR) && of(libc::O_RDWR | libc::O_DIRECT | libc::O_NOFOLLOW));
        assert!(!of(libc::O_RDONLY) && !of(libc::O_RDONLY | libc::O_DIRECT));
    }

    #[test]
    fn pages_written_back_are_not_appends() {
        let flags = (libc::O_APPEND | libc::O_SYNC) as u32;
        let mode = write_mode(&abi::WriteIn { flags, ..Default::default() });
        assert!(mode.append && mode.sync && !mode.kill_suid);
        let write_flags = abi::WRITE_CACHE | abi::WRITE_KILL_SUIDGID;
        let mode = write_mode(&abi::WriteIn { flags, write_flags, ..Default::default() });
        assert!(!mode.append && mode.kill_suid);
    }
}
