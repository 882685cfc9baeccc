//! Listing of directories. Offsets that the kernel sees are cookies.
//!
//! A handle's listing ends at the highest cookie of the moment when it was opened or rewound.
//! CACHE_DIR is never asked for: the kernel would cache cookies of entries that are gone.

use crate::abi;
use crate::buffer::{MAX_PAYLOAD_BYTES, Reply, take};
use crate::connection::{Connection, Request};
use crate::dispatch::{Given, take_back};
use forebay_proto::{Cookie, DirEntry, Result};

pub(crate) fn opendir(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Result<Given> {
    let handle = cx.dirs.add(cx.fs.dir_limit(rq.ino())?)?;
    reply.put(&abi::OpenOut { fh: handle, open_flags: 0, backing_id: 0 });
    Ok(Given::Dir(handle))
}

pub(crate) fn releasedir(cx: &Connection, rq: &Request<'_>) -> Result<Given> {
    let mut rest = rq.body;
    let arg: abi::ReleaseIn = take(&mut rest)?;
    cx.dirs.remove(arg.fh);
    Ok(Given::Nothing)
}

/// The arguments of a listing and its end; reading from the start is opendir or rewinddir.
fn begin(cx: &Connection, rq: &Request<'_>) -> Result<(abi::ReadIn, Cookie)> {
    let mut rest = rq.body;
    let arg: abi::ReadIn = take(&mut rest)?;
    if arg.offset != Cookie::START.0 {
        return Ok((arg, cx.dirs.limit(arg.fh)?));
    }
    let limit = cx.fs.dir_limit(rq.ino())?;
    cx.dirs.set_limit(arg.fh, limit)?;
    Ok((arg, limit))
}

fn put_dirent(cx: &Connection, reply: &mut Reply, entry: &DirEntry<'_>) {
    reply.put(&abi::Dirent {
        ino: cx.device.root().node_of(entry.ino),
        off: entry.cookie.0,
        namelen: entry.name.len() as u32,
        kind: entry.kind.dirent_type(),
    });
    reply.put_bytes(entry.name);
    reply.pad_to_8();
}

fn dirent_bytes(name_len: usize) -> usize {
    (size_of::<abi::Dirent>() + name_len).next_multiple_of(8)
}

pub(crate) fn readdir(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Result<Given> {
    let (arg, limit) = begin(cx, rq)?;
    let room = (arg.size as usize).min(MAX_PAYLOAD_BYTES);
    cx.fs.readdir(rq.ino(), Cookie(arg.offset), limit, &mut |entry| {
        let fits = reply.len() + dirent_bytes(entry.name.len()) <= room;
        if fits {
            put_dirent(cx, reply, entry);
        }
        fits
    })?;
    Ok(Given::Nothing)
}

pub(crate) fn readdirplus(cx: &Connection, rq: &Request<'_>, reply: &mut Reply) -> Result<Given> {
    let (arg, limit) = begin(cx, rq)?;
    let room = (arg.size as usize).min(MAX_PAYLOAD_BYTES);
    let listed = cx.fs.readdir_plus(rq.ino(), Cookie(arg.offset), limit, &mut |entry| {
        let size = size_of::<abi::EntryOut>() + dirent_bytes(entry.name.len());
        let fits = reply.len() + size <= room;
        if fits {
            // Node id 0: no reference, only a name (`.` and `..`).
            match entry.attr {
                Some(attr) => cx.put_entry(reply, rq.ino(), attr),
                None => reply.put(&abi::EntryOut::default()),
            }
            put_dirent(cx, reply, entry);
        }
        fits
    });
    if listed.is_err() {
        take_back(cx, Given::Listing, reply);
    }
    listed.map(|()| Given::Listing)
}

/// Gives back the references in the payload of a READDIRPLUS reply.
pub(crate) fn forget_entries(cx: &Connection, mut payload: &[u8]) {
    while !payload.is_empty() {
        let Ok(entry) = take::<abi::EntryOut>(&mut payload) else { return };
        let mut after_head = payload;
        let Ok(dirent) = take::<abi::Dirent>(&mut after_head) else { return };
        if entry.nodeid != 0 {
            cx.fs.forget(cx.device.root().ino_of(entry.nodeid), 1);
        }
        let size = dirent_bytes(dirent.namelen as usize);
        payload = payload.get(size..).unwrap_or_default();
    }
}
