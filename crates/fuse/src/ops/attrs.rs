//! Requests on attributes, and statfs.

use crate::abi::{self, fattr};
use crate::buffer::{Reply, take};
use crate::connection::{Connection, Request};
use crate::dispatch::Given;
use crate::ops::data::may_use;
use forebay_proto::api::NAME_MAX;
use forebay_proto::{FileKind, Result, SetAttr, SetTime, Timestamp};

pub(crate) fn getattr(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Result<Given> {
    cx.beside.asked(cx, rq.ino());
    let attr = cx.fs.getattr(rq.ino())?;
    cx.put_attr(reply, &attr);
    Ok(Given::Nothing)
}

/// The kernel asks this way when somebody wants the time of creation.
pub(crate) fn statx(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Result<Given> {
    let mut rest = rq.body;
    let _arg: abi::StatxIn = take(&mut rest)?;
    cx.beside.asked(cx, rq.ino());
    let attr = cx.fs.getattr(rq.ino())?;
    cx.put_statx(reply, &attr);
    Ok(Given::Nothing)
}

pub(crate) fn setattr(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Result<Given> {
    let mut rest = rq.body;
    let arg: abi::SetattrIn = take(&mut rest)?;
    let has = |bit: u32| arg.valid & bit != 0;
    if has(fattr::SIZE) && has(fattr::FH) {
        may_use(cx, rq.ino(), arg.fh, has(fattr::LOCKOWNER).then_some(arg.lock_owner))?;
    }
    if has(fattr::SIZE) {
        cx.within.must_fit(arg.size)?;
    }
    let attr = cx.fs.setattr(&rq.caller()?, rq.ino(), &change_of(&arg))?;
    if cx.flags.sync {
        match FileKind::from_mode(attr.mode) {
            Some(FileKind::File) => cx.fs.fsync(rq.ino(), false)?,
            _ => cx.fs.fsyncdir(rq.ino())?,
        }
    }
    cx.put_attr(reply, &attr);
    Ok(Given::Nothing)
}

fn change_of(arg: &abi::SetattrIn) -> SetAttr {
    let has = |bit: u32| arg.valid & bit != 0;
    let time = |bit: u32, now: u32, sec: u64, nsec: u32| match () {
        () if !has(bit) => None,
        () if has(now) => Some(SetTime::Now),
        () => Some(SetTime::At(Timestamp { sec: sec as i64, nsec })),
    };
    let mut change = SetAttr {
        mode: has(fattr::MODE).then_some(arg.mode & 0o7777),
        uid: has(fattr::UID).then_some(arg.uid),
        gid: has(fattr::GID).then_some(arg.gid),
        size_bytes: has(fattr::SIZE).then_some(arg.size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, arg.atime, arg.atimensec),
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, arg.mtime, arg.mtimensec),
        ctime: has(fattr::CTIME)
            .then_some(Timestamp { sec: arg.ctime as i64, nsec: arg.ctimensec }),
        kill_suid: false,
    };
    // Without any field: somebody without the right to keep suid bits writes by passthrough.
    change.kill_suid = has(fattr::KILL_SUIDGID) || change == SetAttr::default();
    change
}

pub(crate) fn statfs(cx: &Connection, reply: &mut Reply) -> Result<Given> {
    let s = cx.fs.statfs()?;
    reply.put(&abi::KStatfs {
        blocks: s.blocks_total,
        bfree: s.blocks_free,
        bavail: s.blocks_available,
        files: s.files_total,
        ffree: s.files_free,
        bsize: s.block_bytes,
        namelen: NAME_MAX as u32,
        frsize: s.block_bytes,
        ..Default::default()
    });
    Ok(Given::Nothing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_field_means_kill_suid() {
        let lock_owner_only = abi::SetattrIn { valid: 1 << 9 | 1 << 6, ..Default::default() };
        assert!(change_of(&lock_owner_only).kill_suid);
        let chmod = abi::SetattrIn { valid: fattr::MODE, mode: 0o104755, ..Default::default() };
        assert_eq!(change_of(&chmod), SetAttr { mode: Some(0o4755), ..Default::default() });
    }

    #[test]
    fn times_before_1970_and_now() {
        let arg = abi::SetattrIn {
            valid: fattr::ATIME | fattr::MTIME | fattr::MTIME_NOW,
            atime: -5i64 as u64,
            atimensec: 7,
            ..Default::default()
        };
        let change = change_of(&arg);
        assert_eq!(change.atime, Some(SetTime::At(Timestamp { sec: -5, nsec: 7 })));
        assert_eq!(change.mtime, Some(SetTime::Now));
        assert!(!change.kill_suid);
    }
}
