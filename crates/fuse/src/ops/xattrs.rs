//! Extended attributes. POSIX ACLs come as `system.posix_acl_access` and `_default`.

use crate::abi;
use crate::buffer::{Reply, take, take_name};
use crate::connection::{Connection, Request};
use crate::dispatch::Given;
use forebay_proto::{Errno, Result};

pub(crate) fn setxattr(cx: &Connection, rq: &Request<'_>) -> Result<Given> {
    let mut rest = rq.body;
    let arg = if cx.has_setxattr_ext() {
        take::<abi::SetxattrIn>(&mut rest)?
    } else {
        let short: abi::SetxattrCompatIn = take(&mut rest)?;
        abi::SetxattrIn { size: short.size, flags: short.flags, ..Default::default() }
    };
    let name = take_name(&mut rest)?;
    let value = rest.get(..arg.size as usize).ok_or(Errno::EINVAL)?;
    let kill_sgid = arg.setxattr_flags & abi::SETXATTR_ACL_KILL_SGID != 0;
    cx.fs.setxattr(&rq.caller()?, rq.ino(), name, value, arg.flags, kill_sgid)?;
    Ok(Given::Nothing)
}

/// Answers with the value if the caller has room for it, or with its length if it only asks.
fn put_value(reply: &mut Reply, value: &[u8], room: u32) -> Result<Given> {
    if room == 0 {
        reply.put(&abi::GetxattrOut { size: value.len() as u32, padding: 0 });
        return Ok(Given::Nothing);
    }
    if value.len() > room as usize {
        return Err(Errno::ERANGE);
    }
    reply.fill(value.len(), |to| {
        to.copy_from_slice(value);
        Ok(value.len())
    })?;
    Ok(Given::Nothing)
}

pub(crate) fn getxattr(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Result<Given> {
    let mut rest = rq.body;
    let arg: abi::GetxattrIn = take(&mut rest)?;
    let name = take_name(&mut rest)?;
    put_value(reply, &cx.fs.getxattr(rq.ino(), name)?, arg.size)
}

pub(crate) fn listxattr(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Result<Given> {
    let mut rest = rq.body;
    let arg: abi::GetxattrIn = take(&mut rest)?;
    put_value(reply, &cx.fs.listxattr(rq.ino())?, arg.size)
}

pub(crate) fn removexattr(cx: &Connection, rq: &Request<'_>) -> Result<Given> {
    let mut rest = rq.body;
    let name = take_name(&mut rest)?;
    cx.fs.removexattr(&rq.caller()?, rq.ino(), name)?;
    Ok(Given::Nothing)
}
