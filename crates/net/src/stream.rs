//! One socket, Unix or TCP, with what both need: time limits, gathered writes, descriptors sent
//! along with bytes (Unix only), and for TCP keep-alive, so that a peer that vanished is noticed.

use crate::address::ServerAddress;
use crate::socket_path::with_short_path;
use forebay_proto::asked::{LOOK, is_given_up};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::IoSlice;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, sockopt,
};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Longest wait for a TCP connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Idle time after which TCP asks whether the peer still lives, between two such questions, and
/// how many may stay without answer.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
const KEEPALIVE_COUNT: u32 = 3;
/// How long bytes may stay unacknowledged by the peer's kernel.
const USER_TIMEOUT: Duration = Duration::from_secs(15);

/// Most descriptors that come along with a frame.
pub const MAX_FILES: usize = 2;

/// What came along with a frame.
pub type Files = [Option<File>; MAX_FILES];

/// Why a wait ended of which nobody waits for the end any more ([`forebay_proto::asked`]).
pub(crate) fn given_up() -> io::Error {
    io::ErrorKind::Interrupted.into()
}

/// A wait in steps, that ends with its limit or when nobody waits for it any more.
pub(crate) struct Steps {
    limit: Option<Duration>,
    waited: Duration,
}

impl Steps {
    pub(crate) fn new(limit: Option<Duration>) -> Steps {
        Steps { limit, waited: Duration::ZERO }
    }

    /// The next step; `None`: as long as it takes.
    fn next(&self) -> Option<Duration> {
        self.limit.map(|limit| limit.saturating_sub(self.waited).min(LOOK))
    }

    /// A step is over. False with the limit; an error of kind `Interrupted` if nobody waits any more.
    pub(crate) fn go_on(&mut self) -> io::Result<bool> {
        if is_given_up() {
            return Err(given_up());
        }
        self.waited += LOOK;
        Ok(self.limit.is_none_or(|limit| self.waited < limit))
    }
}

/// Waits until there is something at one of them: false after `limit`.
pub(crate) fn wait_for(wanted: &mut [PollFd<'_>], limit: Option<Duration>) -> io::Result<bool> {
    let mut steps = Steps::new(limit);
    loop {
        let step = steps.next().map(|step| Timespec {
            tv_sec: step.as_secs() as i64,
            tv_nsec: step.subsec_nanos().into(),
        });
        match poll(wanted, step.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(0) if steps.go_on()? => {}
            other => return Ok(other? > 0),
        }
    }
}

/// A connected socket.
#[derive(Debug)]
pub enum Stream {
    /// On this machine.
    Unix(UnixStream),
    /// Anywhere.
    Tcp(TcpStream),
}

impl Stream {
    /// Connects.
    pub fn connect(address: &ServerAddress) -> io::Result<Stream> {
        Stream::connect_within(address, CONNECT_TIMEOUT)
    }

    /// The same, waiting so long for each address of a TCP host.
    pub fn connect_within(address: &ServerAddress, limit: Duration) -> io::Result<Stream> {
        match address {
            ServerAddress::Unix(path) => {
                with_short_path(path, |path| UnixStream::connect(path)).map(Stream::Unix)
            }
            ServerAddress::Tcp { host, port } => {
                let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
                for address in (host.as_str(), *port).to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, limit) {
                        Ok(stream) => return Stream::from_tcp(stream),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    /// An accepted TCP connection.
    pub fn from_tcp(stream: TcpStream) -> io::Result<Stream> {
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_COUNT)?;
        sockopt::set_tcp_user_timeout(&stream, USER_TIMEOUT.as_millis() as u32)?;
        Ok(Stream::Tcp(stream))
    }

    /// True if both ends are on this machine and descriptors can be sent.
    pub fn is_unix(&self) -> bool {
        matches!(self, Stream::Unix(_))
    }

    /// Longest step of a wait for bytes to come; `None` = as long as it takes.
    pub(crate) fn set_read_step(&self, limit: Option<Duration>) -> io::Result<()> {
        let limit = limit.map(|limit| limit.min(LOOK));
        match self {
            Stream::Unix(s) => s.set_read_timeout(limit),
            Stream::Tcp(s) => s.set_read_timeout(limit),
        }
    }

    /// Longest step of a wait for the peer to take bytes.
    pub(crate) fn set_write_step(&self, limit: Option<Duration>) -> io::Result<()> {
        let limit = limit.map(|limit| limit.min(LOOK));
        match self {
            Stream::Unix(s) => s.set_write_timeout(limit),
            Stream::Tcp(s) => s.set_write_timeout(limit),
        }
    }

    /// Ends both directions: whoever waits on it wakes up.
    pub fn shutdown(&self) {
        // Fails only if the peer has done so already.
        let _ = match self {
            Stream::Unix(s) => s.shutdown(Shutdown::Both),
            Stream::Tcp(s) => s.shutdown(Shutdown::Both),
        };
    }

    /// Nothing more is received: whoever waits for it wakes up, and can still be sent something.
    pub fn shutdown_receive(&self) {
        // Fails only if the peer has ended it already.
        let _ = match self {
            Stream::Unix(s) => s.shutdown(Shutdown::Read),
            Stream::Tcp(s) => s.shutdown(Shutdown::Read),
        };
    }

    /// Another handle on the same socket, for ending it from another thread.
    pub fn try_clone(&self) -> io::Result<Stream> {
        Ok(match self {
            Stream::Unix(s) => Stream::Unix(s.try_clone()?),
            Stream::Tcp(s) => Stream::Tcp(s.try_clone()?),
        })
    }

    /// For messages.
    pub fn peer_name(&self) -> String {
        match self {
            Stream::Unix(_) => "unix".into(),
            Stream::Tcp(s) => s.peer_addr().map_or_else(|_| "tcp".into(), |a| a.to_string()),
        }
    }

    /// Sends all of the parts; descriptors, at most [`MAX_FILES`], go along with the first byte (Unix only). The peer is
    /// waited for `limit` each time that it takes nothing.
    pub(crate) fn send_all(
        &self,
        parts: &[&[u8]],
        fds: &[BorrowedFd<'_>],
        limit: Option<Duration>,
    ) -> io::Result<()> {
        let mut steps = Steps::new(limit);
        let total: usize = parts.iter().map(|p| p.len()).sum();
        let mut sent = 0;
        let mut fds = fds;
        while sent < total {
            let mut skip = sent;
            let mut slices = [IoSlice::new(&[]); 4];
            let mut used = 0;
            for part in parts {
                if skip >= part.len() {
                    skip -= part.len();
                    continue;
                }
                if used < slices.len() {
                    slices[used] = IoSlice::new(&part[skip..]);
                    used += 1;
                }
                skip = 0;
            }
            match self.send_some(&slices[..used], fds) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    sent += count;
                    fds = &[];
                    steps = Steps::new(limit);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && steps.go_on()? => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn send_some(&self, slices: &[IoSlice<'_>], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        if let ([], [one]) = (fds, slices) {
            // Most frames; the kernel has less to read of it.
            return Ok(rustix::net::send(self, one, SendFlags::NOSIGNAL)?);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && self.is_unix() && !control.push(SendAncillaryMessage::ScmRights(fds))
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(rustix::net::sendmsg(self, slices, &mut control, SendFlags::NOSIGNAL)?)
    }

    /// Waits until there is something to receive, on a Unix socket: false after `limit`. A thread that
    /// waits in recvmsg(2) there is also woken whenever the peer takes what it was sent, once for each
    /// frame and for nothing; poll(2) wakes for what it was asked to.
    pub(crate) fn wait_to_receive(&self, limit: Option<Duration>) -> io::Result<bool> {
        let Stream::Unix(socket) = self else { return Ok(true) };
        wait_for(&mut [PollFd::new(socket, PollFlags::IN)], limit)
    }

    /// Receives some bytes into `into`, and what comes after them into `behind`; and the descriptors that
    /// may come along. 0 = the peer has closed.
    pub fn receive_some(&self, into: &mut [u8], behind: &mut [u8]) -> io::Result<(usize, Files)> {
        loop {
            let mut slices = [io::IoSliceMut::new(into), io::IoSliceMut::new(behind)];
            let done = match self {
                Stream::Tcp(_) => {
                    rustix::io::readv(self, &mut slices).map(|count| (count, Files::default()))
                }
                Stream::Unix(_) => self.receive_with_fds(&mut slices),
            };
            match done {
                Err(rustix::io::Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    fn receive_with_fds(
        &self,
        slices: &mut [io::IoSliceMut<'_>],
    ) -> rustix::io::Result<(usize, Files)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = rustix::net::recvmsg(self, slices, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let mut files = Files::default();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut fds) = message {
                // For more there is no room; the kernel closes them.
                files = std::array::from_fn(|_| fds.next().map(|fd: OwnedFd| File::from(fd)));
            }
        }
        Ok((got.bytes, files))
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Unix(s) => s.as_fd(),
            Stream::Tcp(s) => s.as_fd(),
        }
    }
}
