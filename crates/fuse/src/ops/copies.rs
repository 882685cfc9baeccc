//! `copy_file_range`: by the file system where it can, else here, by reads and writes of pieces.
//!
//! To EXDEV the kernel copies through its page cache, and a signal that the program takes does not end its wait for a page
//! (docs/PROMISES.md, N6). A copy that is made here is a request: it ends with a signal as a read or a write does
//! ([`crate::waits`]). So EXDEV is said of a source on the fast path alone, whose pages nobody is asked for.
//!
//! Invariants: a count tells of bytes that were written, from the front, and an error that nothing is known to be copied. A copy
//! whose thread hangs is answered for, with the count of the pieces that were whole by then ([`asked::did`]); the one that it is
//! at may be done or not. Of a copy that one server makes by itself, of files that are whole there, nobody here knows how far it
//! is: that is EINTR, and may have been done in part. What the kernel has of a target that was not written as far as was asked
//! for, it drops: what failed may have been done in part.

use super::data::{lone_sgid_off, may_use};
use crate::abi;
use crate::buffer::{Reply, take};
use crate::connection::{Connection, Request};
use crate::dispatch::Given;
use crate::opens::Access;
use forebay_proto::activity::ActivityKind;
use forebay_proto::api::WriteMode;
use forebay_proto::{Errno, Ino, Result, asked};

/// Largest copy whose length the old answer can tell: whole pages below 4 GiB.
const MAX_COPY_BYTES_32: u64 = 0xffff_f000;
/// What is read and then written at a time here.
const PIECE_BYTES: u64 = 1 << 20;
/// Most that one request copies here before it answers short: it holds a worker, and the kernel lets nobody else write the target.
const MAX_COPY_BYTES: u64 = 64 << 20;

pub(crate) fn copy_file_range(
    cx: &Connection,
    rq: &Request<'_>,
    reply: &mut Reply,
) -> Result<Given> {
    let copied = copy(cx, rq, MAX_COPY_BYTES_32)?;
    reply.put(&abi::WriteOut { size: copied as u32, padding: 0 });
    Ok(Given::Nothing)
}

pub(crate) fn copy_file_range_64(
    cx: &Connection,
    rq: &Request<'_>,
    reply: &mut Reply,
) -> Result<Given> {
    let bytes_copied = copy(cx, rq, u64::MAX)?;
    reply.put(&abi::CopyFileRangeOut { bytes_copied });
    Ok(Given::Nothing)
}

fn copy(cx: &Connection, rq: &Request<'_>, limit: u64) -> Result<u64> {
    let mut rest = rq.body;
    let arg: abi::CopyFileRangeIn = take(&mut rest)?;
    if arg.flags != 0 {
        return Err(Errno::EINVAL);
    }
    let (from, to) = (rq.ino(), rq.other(arg.nodeid_out));
    may_use(cx, from, arg.fh_in, None)?;
    may_use(cx, to, arg.fh_out, None)?;
    let length = cx.within.part_of(arg.off_out, arg.len.min(limit))?;
    match cx.fs.copy_file_range(from, arg.off_in, to, arg.off_out, length) {
        // The two have not one server, or not one object each. A source on the fast path the kernel reads
        // faster, and without a wait.
        Err(Errno::EXDEV) if !is_read_by_kernel(cx, from) => {
            copy_here(cx, rq, &arg, length.min(MAX_COPY_BYTES))
        }
        other => other,
    }
}

fn is_read_by_kernel(cx: &Connection, ino: Ino) -> bool {
    matches!(cx.opens.access(ino), Some(Access::Passthrough(_)))
}

/// Copies by reads and writes, and counts them as such.
fn copy_here(
    cx: &Connection,
    rq: &Request<'_>,
    arg: &abi::CopyFileRangeIn,
    length: u64,
) -> Result<u64> {
    let (from, to) = (rq.ino(), rq.other(arg.nodeid_out));
    if [arg.off_in, arg.off_out].iter().any(|offset| offset.checked_add(length).is_none()) {
        return Err(Errno::EINVAL);
    }
    let mode = WriteMode {
        append: false,
        // The request does not tell who may keep suid and sgid (CAP_FSETID), but who is root.
        kill_suid: rq.head.uid != 0,
        sync: cx.flags.sync || cx.opens.is_synchronous(to),
    };
    lone_sgid_off(cx, rq, to, mode)?;
    let mut buffer = vec![0; length.min(PIECE_BYTES) as usize];
    let copied = in_pieces(length, |done, most| {
        asked::still_wanted()?;
        // Who has lost a lock meanwhile does nothing there any more.
        may_use(cx, from, arg.fh_in, None)?;
        may_use(cx, to, arg.fh_out, None)?;
        let have = read_piece(cx, (from, to), arg.off_in + done, &mut buffer[..most])?;
        if have == 0 {
            return Ok(0);
        }
        let count = write_piece(cx, to, arg.off_out + done, &buffer[..have], mode)?;
        asked::did(done + count as u64);
        Ok(count)
    });
    if copied != Ok(length) {
        cx.changed_in_part(to);
    }
    copied
}

fn read_piece(
    cx: &Connection,
    (from, to): (Ino, Ino),
    offset: u64,
    room: &mut [u8],
) -> Result<usize> {
    let begun = cx.activity.begin();
    let bytes = match from == to {
        true => cx.fs.read_to_write(from, offset, room)?,
        false => cx.fs.read(from, offset, room)?,
    };
    cx.tally.read(bytes);
    cx.moved(begun, ActivityKind::Hit, from, offset, bytes);
    Ok(bytes)
}

fn write_piece(
    cx: &Connection,
    to: Ino,
    offset: u64,
    bytes: &[u8],
    mode: WriteMode,
) -> Result<usize> {
    let begun = cx.activity.begin();
    let written = cx.fs.write(to, offset, bytes, mode)?.min(bytes.len());
    cx.tally.written(written);
    cx.moved(begun, ActivityKind::Absorb, to, offset, written);
    Ok(written)
}

/// Copies so many bytes by `piece`, which is told how many are done and how many it may do at most; one that does fewer is the
/// last one. An error counts only where nothing was copied before it.
fn in_pieces(length: u64, mut piece: impl FnMut(u64, usize) -> Result<usize>) -> Result<u64> {
    let mut done = 0;
    while done < length {
        let most = (length - done).min(PIECE_BYTES) as usize;
        match piece(done, most) {
            Ok(count) => {
                done += count as u64;
                if count < most {
                    break;
                }
            }
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_fails_half_way_tells_how_far_it_came() {
        let length = 2 * PIECE_BYTES + 7;
        let copy = |room: u64, errno: Errno| {
            let mut places = Vec::new();
            let copied = in_pieces(length, |done, most| {
                places.push((done, most as u64));
                match (done + most as u64).min(room).saturating_sub(done) {
                    0 => Err(errno),
                    count => Ok(count as usize),
                }
            });
            (copied, places)
        };
        let all = vec![(0, PIECE_BYTES), (PIECE_BYTES, PIECE_BYTES), (2 * PIECE_BYTES, 7)];
        assert_eq!(copy(u64::MAX, Errno::EINTR), (Ok(length), all.clone()));
        assert_eq!(copy(0, Errno::EINTR), (Err(Errno::EINTR), all[..1].to_vec()));
        assert_eq!(copy(PIECE_BYTES, Errno::EINTR), (Ok(PIECE_BYTES), all[..2].to_vec()));
        // One that comes to less is the last: who asks again hears why.
        assert_eq!(copy(9, Errno::ENOSPC), (Ok(9), all[..1].to_vec()));
        assert_eq!(in_pieces(length, |_, _| Ok(0)), Ok(0), "the end of the source");
        assert_eq!(in_pieces(0, |_, _| Err(Errno::EIO)), Ok(0));
    }
}
