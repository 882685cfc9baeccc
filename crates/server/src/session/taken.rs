//! Locks that were reassigned while their mount was away, over starts of the server.
//!
//! The table of locks knows whose locks were reassigned since their session ended; a server that starts anew knows nothing. So
//! this is on record before who got such a lock is answered: a mount that was cut off and comes back to the next start is told that
//! it has lost its locks on that file. A mount that did not come back in time to one start has lost all of them at the next.
//!
//! Bounded: of too many lines the oldest go. What cannot be written is told in the log; the locks go on.

use super::grace;
use forebay_proto::net::session::ClientId;
use forebay_proto::{Errno, Ino, Result};
use parking_lot::Mutex;
use std::path::PathBuf;

/// The file, beside that of the clients.
pub(super) const NAME: &str = "locks_taken";
/// Most lines.
const MAX_LINES: usize = 4096;
/// Instead of a file: all.
const ANY: u64 = 0;

/// A client, and the file on which others had its locks (`None`: nobody knows on which).
pub(super) type Lost = (ClientId, Option<Ino>);

/// The record.
pub(super) struct Taken {
    file: PathBuf,
    /// Client and file, from the oldest on.
    lines: Mutex<Vec<(u64, u64)>>,
}

impl Taken {
    /// Reads what earlier starts have written. A file that makes no sense is an error, as with that of the clients.
    pub(super) fn open(file: PathBuf) -> Result<Taken> {
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error.into()),
        };
        let number = |text: &str| u64::from_str_radix(text, 16).map_err(|_| Errno::EBADMSG);
        let line = |line: &str| -> Result<(u64, u64)> {
            let (client, ino) = line.split_once(' ').ok_or(Errno::EBADMSG)?;
            Ok((number(client)?, number(ino)?))
        };
        let lines = text.lines().map(line).collect::<Result<Vec<(u64, u64)>>>()?;
        Ok(Taken { file, lines: Mutex::new(lines) })
    }

    /// All of it.
    pub(super) fn all(&self) -> Vec<Lost> {
        let lines = self.lines.lock();
        lines
            .iter()
            .map(|(client, ino)| (ClientId(*client), (*ino != ANY).then_some(Ino(*ino))))
            .collect()
    }

    /// On record when this returns.
    pub(super) fn add(&self, lost: impl IntoIterator<Item = Lost>) {
        let mut lines = self.lines.lock();
        let mut is_new = false;
        for (client, ino) in lost {
            let line = (client.0, ino.map_or(ANY, |ino| ino.0));
            if !lines.contains(&line) {
                lines.push(line);
                is_new = true;
            }
        }
        let surplus = lines.len().saturating_sub(MAX_LINES);
        lines.drain(..surplus);
        if is_new {
            self.write(&lines);
        }
    }

    /// A client has said what it holds, or will not come back.
    pub(super) fn forget(&self, client: ClientId) {
        let mut lines = self.lines.lock();
        let before = lines.len();
        lines.retain(|(of, _)| *of != client.0);
        if lines.len() < before {
            self.write(&lines);
        }
    }

    fn write(&self, lines: &[(u64, u64)]) {
        let mut text = String::new();
        for (client, ino) in lines {
            text.push_str(&format!("{client:016x} {ino:016x}\n"));
        }
        if let Err(error) = grace::replace(&self.file, &text) {
            tracing::warn!(%error, file = %self.file.display(), "cannot record whose locks others have; a mount that comes back after a restart may believe that it still has them");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_record_is_there_at_the_next_start_and_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Taken::open(dir.path().join(NAME)).unwrap();
        let (a, b) = ((ClientId(7), Some(Ino(9))), (ClientId(8), None));
        let first = open();
        first.add([a, b, a]);
        assert_eq!(open().all(), [a, b]);
        first.forget(ClientId(7));
        assert_eq!(open().all(), [b]);
        first.add((1..=MAX_LINES as u64).map(|ino| (ClientId(9), Some(Ino(ino)))));
        let all = open().all();
        assert_eq!((all.len(), all[0]), (MAX_LINES, (ClientId(9), Some(Ino(1)))));
        std::fs::write(dir.path().join(NAME), "nonsense\n").unwrap();
        assert!(Taken::open(dir.path().join(NAME)).is_err());
    }
}
