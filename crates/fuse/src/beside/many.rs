//! Questions about many paths at once: each is answered as if it had been asked alone, one after the other, and all
//! answers go back together. What is saved is the turn from the program to this process and back.
//!
//! Paths of one directory that follow each other are looked for in it without a walk from the beginning: as for a
//! single call, what a directory on the way allows is what it allowed when the way was gone.

use super::messages::send;
use super::ops::{From, ToSend};
use super::serve::Door;
use super::walk::{End, No};
use forebay_preload_wire::{Answer, BY_KERNEL, MADE, MANY_MAX, Outcome, Request, op};
use std::os::fd::OwnedFd;
use zerocopy::IntoBytes;

/// A path in two: with its last `/`, and what is behind it.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let at = path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    path.split_at(at)
}

fn outcome(result: Result<u32, No>) -> Outcome {
    match result {
        Ok(flags) => Outcome { status: 0, flags },
        Err(No::Certain(errno)) => Outcome { status: errno.0, flags: 0 },
        Err(No::ByKernel) => Outcome { status: BY_KERNEL, flags: 0 },
    }
}

impl Door {
    /// Answers a question about the paths in `from.path`; false at the end of the connection.
    pub(super) fn answer_many(&self, socket: &OwnedFd, from: From<'_>, request: &Request) -> bool {
        let Some(text) = from.path.strip_suffix(&[0]) else { return false };
        let paths = text.split(|byte| *byte == 0);
        if paths.clone().nth(MANY_MAX).is_some() {
            return false;
        }
        let mut bytes = Vec::with_capacity(MANY_MAX * size_of::<Outcome>());
        let mut opened: Vec<ToSend> = Vec::new();
        let mut last: Option<(&[u8], End<'_, '_>)> = None;
        for path in paths {
            let (before, name) = split(path);
            let near = last.as_mut().filter(|(known, _)| *known == before);
            if !near.is_some_and(|(_, end)| end.next_name(name)) {
                last = None;
                match self.parts.walk(From { path, ..from }) {
                    Ok(end) => last = Some((before, end)),
                    Err(no) => {
                        put_no(&mut bytes, request.op, no);
                        continue;
                    }
                }
            }
            let Some((_, end)) = &last else { return false };
            match request.op {
                op::OPEN_MANY => {
                    let how = (request.flags, request.mode, request.umask);
                    let made = self.parts.open(from.caller, end, how).map(|file| {
                        let flags = if file.made { MADE } else { 0 };
                        opened.push(file);
                        flags
                    });
                    bytes.extend_from_slice(outcome(made).as_bytes());
                }
                op::UNLINK_MANY => {
                    let removed = self.parts.unlink(from.caller, end).map(|()| 0);
                    bytes.extend_from_slice(outcome(removed).as_bytes());
                }
                _ => {
                    let nofollow = request.flags as i32 & libc::AT_SYMLINK_NOFOLLOW != 0;
                    let told = Door::told(self.parts.stat(from.caller, end, nofollow));
                    bytes.extend_from_slice(told.as_bytes());
                }
            }
        }
        let sent = send(socket, &bytes, opened.iter().map(|file| &file.file));
        for ToSend { attr, file, .. } in opened {
            drop(file);
            self.parts.sent(attr.ino);
        }
        sent
    }
}

/// Says of one path that there is no way to it here.
fn put_no(bytes: &mut Vec<u8>, operation: u32, no: No) {
    let Outcome { status, flags } = outcome(Err(no));
    match operation {
        op::STAT_MANY => {
            bytes.extend_from_slice(Answer { status, flags, ..Answer::default() }.as_bytes());
        }
        _ => bytes.extend_from_slice(Outcome { status, flags }.as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn a_path_is_split_behind_its_last_slash() {
        assert_eq!(split(b"a/b/c"), (&b"a/b/"[..], &b"c"[..]));
        assert_eq!(split(b"c"), (&b""[..], &b"c"[..]));
        assert_eq!(split(b"a/"), (&b"a/"[..], &b""[..]));
    }
}
