//! Requests on names: lookup, references, creation of everything that is not opened with it,
//! removal, rename, links.

use crate::abi;
use crate::buffer::{Reply, take, take_name};
use crate::connection::{Connection, Request};
use crate::dispatch::Given;
use forebay_proto::api::CreateArgs;
use forebay_proto::{Entry, Errno, FileKind, Ino, Result};

/// In the directory that the request is about.
fn put_entry(cx: &Connection, rq: &Request<'_>, reply: &mut Reply, entry: &Entry) -> Given {
    cx.put_entry(reply, rq.ino(), &entry.attr);
    Given::Entry(entry.attr.ino)
}

pub(crate) fn lookup(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Result<Given> {
    let mut rest = rq.body;
    let name = take_name(&mut rest)?;
    match cx.fs.lookup(&rq.caller()?, rq.ino(), name) {
        Ok(entry) => Ok(put_entry(cx, rq, reply, &entry)),
        Err(Errno::ENOENT) => {
            cx.put_negative_entry(reply, rq.ino());
            Ok(Given::Nothing)
        }
        Err(e) => Err(e),
    }
}

pub(crate) fn forget(cx: &Connection, rq: &Request<'_>) -> Result<Given> {
    let mut rest = rq.body;
    let arg: abi::ForgetIn = take(&mut rest)?;
    cx.fs.forget(rq.ino(), arg.nlookup);
    Ok(Given::Nothing)
}

pub(crate) fn batch_forget(cx: &Connection, rq: &Request<'_>) -> Result<Given> {
    let mut rest = rq.body;
    let head: abi::BatchForgetIn = take(&mut rest)?;
    for _ in 0..head.count {
        let one: abi::ForgetOne = take(&mut rest)?;
        cx.fs.forget(Ino(one.nodeid), one.nlookup);
    }
    Ok(Given::Nothing)
}

pub(crate) fn readlink(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Result<Given> {
    let target = cx.fs.readlink(rq.ino())?;
    reply.fill(target.len(), |room| {
        room.copy_from_slice(&target);
        Ok(target.len())
    })?;
    Ok(Given::Nothing)
}

pub(crate) fn symlink(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Result<Given> {
    let mut rest = rq.body;
    let name = take_name(&mut rest)?;
    let target = take_name(&mut rest)?;
    let entry = cx.fs.symlink(&rq.caller()?, rq.ino(), name, target)?;
    Ok(put_entry(cx, rq, reply, &entry))
}

pub(crate) fn mknod(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Result<Given> {
    let mut rest = rq.body;
    let arg: abi::MknodIn = take(&mut rest)?;
    let name = take_name(&mut rest)?;
    let kind = FileKind::from_mode(arg.mode).ok_or(Errno::EINVAL)?;
    let args = CreateArgs { mode: arg.mode & 0o7777, umask: arg.umask };
    let entry = cx.fs.mknod(&rq.caller()?, rq.ino(), name, kind, args, arg.rdev)?;
    Ok(put_entry(cx, rq, reply, &entry))
}

pub(crate) fn mkdir(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Result<Given> {
    let mut rest = rq.body;
    let arg: abi::MkdirIn = take(&mut rest)?;
    let name = take_name(&mut rest)?;
    let args = CreateArgs { mode: arg.mode & 0o7777, umask: arg.umask };
    let entry = cx.fs.mkdir(&rq.caller()?, rq.ino(), name, args)?;
    Ok(put_entry(cx, rq, reply, &entry))
}

pub(crate) fn unlink(cx: &Connection, rq: &Request<'_>) -> Result<Given> {
    let mut rest = rq.body;
    let name = take_name(&mut rest)?;
    cx.fs.unlink(&rq.caller()?, rq.ino(), name)?;
    Ok(Given::Nothing)
}

pub(crate) fn rmdir(cx: &Connection, rq: &Request<'_>) -> Result<Given> {
    let mut rest = rq.body;
    let name = take_name(&mut rest)?;
    cx.fs.rmdir(&rq.caller()?, rq.ino(), name)?;
    Ok(Given::Nothing)
}

pub(crate) fn rename(cx: &Connection, rq: &Request<'_>) -> Result<Given> {
    let mut rest = rq.body;
    let arg: abi::RenameIn = take(&mut rest)?;
    rename_names(cx, rq, rest, Ino(arg.newdir), 0)
}

pub(crate) fn rename2(cx: &Connection, rq: &Request<'_>) -> Result<Given> {
    let mut rest = rq.body;
    let arg: abi::Rename2In = take(&mut rest)?;
    rename_names(cx, rq, rest, Ino(arg.newdir), arg.flags)
}

fn rename_names(
    cx: &Connection,
    rq: &Request<'_>,
    mut names: &[u8],
    new_parent: Ino,
    flags: u32,
) -> Result<Given> {
    let old = take_name(&mut names)?;
    let new = take_name(&mut names)?;
    cx.fs.rename(&rq.caller()?, rq.ino(), old, new_parent, new, flags)?;
    Ok(Given::Nothing)
}

pub(crate) fn link(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Result<Given> {
    let mut rest = rq.body;
    let arg: abi::LinkIn = take(&mut rest)?;
    let name = take_name(&mut rest)?;
    let entry = cx.fs.link(&rq.caller()?, Ino(arg.oldnodeid), rq.ino(), name)?;
    Ok(put_entry(cx, rq, reply, &entry))
}
