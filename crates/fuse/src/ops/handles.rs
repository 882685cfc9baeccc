//! Requests on the directory of handles ([`crate::handles`]), which no file system knows. It has a name for each inode that
//! is no directory: its number.
//!
//! Called by dispatch before anything else. What the directory has not is refused, never with ENOSYS: the kernel would take
//! that for the whole mount.

use crate::abi::{self, op};
use crate::buffer::{Reply, take_name};
use crate::connection::{Connection, Request};
use crate::dispatch::Given;
use crate::handles::{DIR_NODE, dir_attr};
use forebay_proto::{Errno, FileKind, Ino, Result};

/// How long the kernel may believe that the directory is there: it always is.
const VALID_S: u64 = 86_400;

/// The directory itself, as a name of the root.
pub(crate) fn found(reply: &mut Reply) -> Given {
    reply.put(&abi::EntryOut {
        nodeid: DIR_NODE,
        entry_valid: VALID_S,
        attr_valid: VALID_S,
        attr: dir_attr(),
        ..Default::default()
    });
    // Nobody counts references to it.
    Given::Nothing
}

/// Serves what concerns the directory; `None` if it is about something else.
pub(crate) fn call(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Option<Result<Given>> {
    if rq.head.nodeid != DIR_NODE {
        return None;
    }
    match rq.head.opcode {
        op::LOOKUP => Some(lookup(cx, rq, reply)),
        op::GETATTR => {
            reply.put(&abi::AttrOut {
                attr_valid: VALID_S,
                attr: dir_attr(),
                ..Default::default()
            });
            Some(Ok(Given::Nothing))
        }
        op::FORGET => Some(Ok(Given::Nothing)),
        op::GETXATTR => Some(Err(Errno::ENODATA)),
        // Of the whole mount.
        op::STATFS | op::SYNCFS => None,
        _ => Some(Err(Errno::EPERM)),
    }
}

fn lookup(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Result<Given> {
    let mut rest = rq.body;
    let name = take_name(&mut rest)?;
    let number = std::str::from_utf8(name).ok().and_then(|name| name.parse().ok());
    // Not a second way to write a number: it would be a second name.
    let number = number.filter(|number: &u64| number.to_string().as_bytes() == name);
    let node = number.filter(|node| ![0, Ino::ROOT.0, DIR_NODE].contains(node));
    let ino = rq.other(node.ok_or(Errno::ENOENT)?);
    let attr = cx.fs.lookup(&rq.caller()?, ino, b".")?.attr;
    if FileKind::from_mode(attr.mode) == Some(FileKind::Dir) {
        // A directory has one name.
        cx.fs.forget(ino, 1);
        return Err(Errno::ENOENT);
    }
    cx.put_entry(reply, ino, &attr);
    Ok(Given::Entry(attr.ino))
}
