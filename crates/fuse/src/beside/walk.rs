//! From a path to the directory that its last name is in.
//!
//! What leads out of what is known here is left to the kernel: `..`, symbolic links, an ending `/`, and all that the
//! caller may not pass by mode alone.

use super::rights::{EXECUTE, granted};
use crate::connection::Connection;
use forebay_proto::api::NAME_MAX;
use forebay_proto::{Attr, Caller, Errno, FileKind, Ino};

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum No {
    /// The kernel decides.
    ByKernel,
    /// It is certain.
    Certain(Errno),
}

impl From<Errno> for No {
    /// What a file system answers is often right, and sometimes the begin of another try by the kernel.
    fn from(_: Errno) -> No {
        No::ByKernel
    }
}

/// A reference to an inode, given back when dropped.
pub(super) struct Held<'a> {
    cx: &'a Connection,
    pub(super) attr: Attr,
}

impl<'a> Held<'a> {
    /// Takes over a reference.
    pub(super) fn of(cx: &'a Connection, attr: Attr) -> Held<'a> {
        Held { cx, attr }
    }

    /// Keeps the reference.
    pub(super) fn keep(self) -> Attr {
        let attr = self.attr;
        std::mem::forget(self);
        attr
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.cx.fs.forget(self.attr.ino, 1);
    }
}

/// Looks a name up that is neither `.` nor `..`; `None` if it is not there.
pub(super) fn look<'a>(
    cx: &'a Connection,
    caller: &Caller,
    dir: Ino,
    name: &[u8],
) -> Result<Option<Held<'a>>, No> {
    match cx.fs.lookup(caller, dir, name) {
        // Whose data is lost is told with another error by who asks for it.
        Ok(entry) if !entry.attr.is_size_known() => {
            drop(Held { cx, attr: entry.attr });
            Err(No::ByKernel)
        }
        Ok(entry) => Ok(Some(Held { cx, attr: entry.attr })),
        Err(Errno::ENOENT) => Ok(None),
        Err(_) => Err(No::ByKernel),
    }
}

/// Where a path ends: a directory that the caller may look into, and a name.
pub(super) struct End<'a, 'b> {
    /// Attributes of the directory.
    pub(super) dir: Attr,
    pub(super) name: &'b [u8],
    /// Keeps the directory, if it is not the one where the path began.
    _held: Option<Held<'a>>,
}

impl<'b> End<'_, 'b> {
    /// Another name in the same directory; false if that is not a plain one, and nothing has changed.
    pub(super) fn next_name(&mut self, name: &'b [u8]) -> bool {
        let plain = !matches!(name, b"" | b"." | b"..") && name.len() <= NAME_MAX;
        if plain {
            self.name = name;
        }
        plain
    }
}

/// Follows a path from a directory.
pub(super) fn walk<'a, 'b>(
    cx: &'a Connection,
    caller: &Caller,
    start: Ino,
    path: &'b [u8],
) -> Result<End<'a, 'b>, No> {
    let mut names =
        path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && name != b".");
    let mut name = names.next().ok_or(No::ByKernel)?;
    if path.ends_with(b"/") || path.ends_with(b"/.") {
        return Err(No::ByKernel);
    }
    let mut dir = cx.fs.getattr(start)?;
    let mut held = None;
    loop {
        if name == b".." || name.len() > NAME_MAX || dir.kind() != FileKind::Dir {
            return Err(No::ByKernel);
        }
        if !granted(cx, caller, &dir, EXECUTE) {
            return Err(No::ByKernel);
        }
        let Some(next) = names.next() else { return Ok(End { dir, name, _held: held }) };
        let Some(below) = look(cx, caller, dir.ino, name)? else {
            return Err(No::Certain(Errno::ENOENT));
        };
        match below.attr.kind() {
            FileKind::Dir => {
                if let Some(names) = cx.shared_names() {
                    names.put_name(dir.ino, name, below.attr.ino, false);
                }
                dir = below.attr;
            }
            _ => return Err(No::ByKernel),
        }
        held = Some(below);
        name = next;
    }
}
