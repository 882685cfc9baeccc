//! Counts the processes of a traced command that have no file in the trace, and the calls that they made.
//!
//! A process that cannot make its file tells so by a datagram to a socket with an abstract name: that needs neither room nor
//! rights nor a directory, so it works on a full disk, for another user and below chroot. Nobody hears a process on another
//! node or in another network namespace.
//!
//! Invariants: what was sent before [`Listener::end`] is counted; the thread ends with it. Caller: `trace`.

use forebay_trace_format::layout::told;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long [`Listener::end`] tries to reach the thread.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// What was told.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Unrecorded {
    /// Processes without a file.
    pub processes: u64,
    /// Calls that they made; of one that was killed it is not known.
    pub calls: u64,
    /// errno for which the last of them could not make its file; 0: there was none.
    pub errno: i32,
}

impl Unrecorded {
    /// Takes a message; anything else than one is passed over.
    fn add(&mut self, message: &[u8]) {
        let word = |at: usize| message.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        let calls = message.get(8..16).and_then(|bytes| bytes.try_into().ok());
        let (Some(what), Some(errno), Some(calls)) = (word(0), word(4), calls) else { return };
        match what {
            told::NOT_MADE => {
                self.processes = self.processes.saturating_add(1);
                self.errno = errno.cast_signed();
            }
            told::MADE => self.processes = self.processes.saturating_sub(1),
            told::ENDED => self.calls = self.calls.saturating_add(u64::from_le_bytes(calls)),
            _ => {}
        }
    }
}

/// The socket, before the command is started.
pub struct Listener {
    name: String,
    socket: UnixDatagram,
}

/// The socket while the command runs.
pub struct Counting {
    name: String,
    thread: JoinHandle<Unrecorded>,
}

impl Listener {
    /// Makes the socket of this run.
    ///
    /// # Errors
    /// There can be none.
    pub fn new(run: &str) -> io::Result<Listener> {
        let name = format!("forebay-trace.{run}");
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        Ok(Listener { name, socket })
    }

    /// What the recorder in a process must know.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Listens from now on. Not before the command is started, which needs a program of one thread.
    ///
    /// # Errors
    /// There can be no thread.
    pub fn count(self) -> io::Result<Counting> {
        let Listener { name, socket } = self;
        let thread = std::thread::Builder::new().name("unrecorded".into()).spawn(move || {
            let mut unrecorded = Unrecorded::default();
            let mut message = [0; told::BYTES];
            // An empty message is the end.
            while let Ok(bytes @ 1..) = socket.recv(&mut message) {
                unrecorded.add(message.get(..bytes).unwrap_or_default());
            }
            unrecorded
        })?;
        Ok(Counting { name, thread })
    }
}

impl Counting {
    /// Ends, and gives what was told until now.
    pub fn end(self) -> Unrecorded {
        let stop = || -> io::Result<()> {
            let socket = UnixDatagram::unbound()?;
            socket.set_write_timeout(Some(END_PATIENCE))?;
            socket.connect_addr(&SocketAddr::from_abstract_name(&self.name)?)?;
            socket.send(&[]).map(|_| ())
        };
        match stop() {
            Ok(()) => self.thread.join().unwrap_or_default(),
            // The thread ends with this program.
            Err(_) => Unrecorded::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(what: u32, errno: i32, calls: u64) -> Vec<u8> {
        [&what.to_le_bytes()[..], &errno.to_le_bytes(), &calls.to_le_bytes()].concat()
    }

    #[test]
    fn processes_without_a_file_are_counted_until_they_have_one() {
        let listener = Listener::new(&format!("test.{}", std::process::id())).expect("a socket");
        let name = SocketAddr::from_abstract_name(listener.name()).expect("a name");
        let counting = listener.count().expect("a thread");
        let socket = UnixDatagram::unbound().expect("a socket");
        socket.connect_addr(&name).expect("somebody listens");
        for message in [
            message(told::NOT_MADE, libc::ENOSPC, 0),
            message(told::NOT_MADE, libc::EACCES, 0),
            message(told::MADE, 0, 0),
            message(told::ENDED, 0, 41),
            message(99, 0, 7),
            b"short".to_vec(),
        ] {
            socket.send(&message).expect("sent");
        }
        let expected = Unrecorded { processes: 1, calls: 41, errno: libc::EACCES };
        assert_eq!(counting.end(), expected);
    }
}
