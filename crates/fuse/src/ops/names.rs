//! Requests on names: lookup, references, creation of everything that is not opened with it,
//! removal, rename, links.

use crate::abi;
use crate::buffer::{Reply, take, take_name};
use crate::connection::{Connection, Request};
use crate::dispatch::Given;
use crate::handles::DIR_NODE;
use crate::ops::handles;
use forebay_proto::api::CreateArgs;
use forebay_proto::{Entry, Errno, FileKind, Ino, Result};

/// In the directory that the request is about.
fn put_entry(cx: &Connection, rq: &Request<'_>, reply: &mut Reply, entry: &Entry) -> Given {
    cx.put_entry(reply, rq.ino(), &entry.attr);
    Given::Entry(entry.attr.ino)
}

/// The same of a name that was made.
fn put_made(cx: &Connection, rq: &Request<'_>, reply: &mut Reply, entry: &Entry) -> Result<Given> {
    cx.names_changed(rq.ino()).inspect_err(|_| cx.fs.forget(entry.attr.ino, 1))?;
    Ok(put_entry(cx, rq, reply, entry))
}

pub(crate) fn lookup(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Result<Given> {
    let mut rest = rq.body;
    let name = take_name(&mut rest)?;
    if rq.head.nodeid == Ino::ROOT.0 && cx.handles.is_dir(name) {
        return Ok(handles::found(reply));
    }
    match cx.fs.lookup(&rq.caller()?, rq.ino(), name) {
        Ok(entry) => {
            if entry.attr.kind() == FileKind::Dir {
                cx.moves.wait(rq.ino());
            }
            Ok(put_entry(cx, rq, reply, &entry))
        }
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
    forget_one(cx, rq.ino(), arg.nlookup);
    Ok(Given::Nothing)
}

fn forget_one(cx: &Connection, ino: Ino, count: u64) {
    cx.opens.forgotten(ino);
    cx.fs.forget(ino, count);
    cx.beside.forgotten(cx, ino);
}

pub(crate) fn batch_forget(cx: &Connection, rq: &Request<'_>) -> Result<Given> {
    let mut rest = rq.body;
    let head: abi::BatchForgetIn = take(&mut rest)?;
    for _ in 0..head.count {
        let one: abi::ForgetOne = take(&mut rest)?;
        if one.nodeid != DIR_NODE {
            forget_one(cx, rq.other(one.nodeid), one.nlookup);
        }
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
    put_made(cx, rq, reply, &entry)
}

pub(crate) fn mknod(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Result<Given> {
    let mut rest = rq.body;
    let arg: abi::MknodIn = take(&mut rest)?;
    let name = take_name(&mut rest)?;
    let kind = FileKind::from_mode(arg.mode).ok_or(Errno::EINVAL)?;
    let args = CreateArgs { mode: arg.mode & 0o7777, umask: arg.umask };
    let caller = rq.caller()?;
    let make = || cx.fs.mknod(&caller, rq.ino(), name, kind, args, arg.rdev);
    let entry = if kind == FileKind::File { cx.within.make(make) } else { make() }?;
    put_made(cx, rq, reply, &entry)
}

pub(crate) fn mkdir(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Result<Given> {
    let mut rest = rq.body;
    let arg: abi::MkdirIn = take(&mut rest)?;
    let name = take_name(&mut rest)?;
    let args = CreateArgs { mode: arg.mode & 0o7777, umask: arg.umask };
    let entry = cx.fs.mkdir(&rq.caller()?, rq.ino(), name, args)?;
    put_made(cx, rq, reply, &entry)
}

pub(crate) fn unlink(cx: &Connection, rq: &Request<'_>) -> Result<Given> {
    let mut rest = rq.body;
    let name = take_name(&mut rest)?;
    cx.fs.unlink(&rq.caller()?, rq.ino(), name)?;
    cx.names_changed(rq.ino())?;
    Ok(Given::Nothing)
}

pub(crate) fn rmdir(cx: &Connection, rq: &Request<'_>) -> Result<Given> {
    let mut rest = rq.body;
    let name = take_name(&mut rest)?;
    cx.fs.rmdir(&rq.caller()?, rq.ino(), name)?;
    cx.names_changed(rq.ino())?;
    Ok(Given::Nothing)
}

pub(crate) fn rename(cx: &Connection, rq: &Request<'_>) -> Result<Given> {
    let mut rest = rq.body;
    let arg: abi::RenameIn = take(&mut rest)?;
    rename_names(cx, rq, rest, rq.other(arg.newdir), 0)
}

pub(crate) fn rename2(cx: &Connection, rq: &Request<'_>) -> Result<Given> {
    let mut rest = rq.body;
    let arg: abi::Rename2In = take(&mut rest)?;
    rename_names(cx, rq, rest, rq.other(arg.newdir), arg.flags)
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
    cx.names_changed(rq.ino())?;
    if new_parent != rq.ino() {
        cx.names_changed(new_parent)?;
    }
    Ok(Given::Nothing)
}

pub(crate) fn link(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Result<Given> {
    let mut rest = rq.body;
    let arg: abi::LinkIn = take(&mut rest)?;
    let name = take_name(&mut rest)?;
    let entry = cx.fs.link(&rq.caller()?, rq.other(arg.oldnodeid), rq.ino(), name)?;
    put_made(cx, rq, reply, &entry)
}
