//! Two pipes beside the socket of a connection on one node, for short frames.
//!
//! A frame by a pipe takes less of the kernel than one by a Unix socket (no buffer to be made and
//! accounted for, no wake-up of a sender when the frame is taken): a round trip of 100 bytes took 5.7 us for 8.0
//! on one processor, and 8.7 for 11.9 on two. What is long or brings a descriptor goes by the socket, which also tells
//! that the peer has ended.
//!
//! Invariants
//! * One frame at most is in a pipe: each end sends only after it has the answer of the other. So a frame that
//!   fits is written at once, or the connection is of no use any more.
//! * Nobody waits in a pipe: both ends do not block, and neither can change that for the other (each end of a
//!   pipe has its own flags).
//!
//! Made by the server for a mount that joins a session (`server::net::conn`), used by `link`.

use crate::stream::{Stream, wait_for};
use rustix::event::{PollFd, PollFlags};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::pipe::{PipeFlags, fcntl_getpipe_size, pipe_with};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Longest frame that goes by a pipe. Longer ones are cheaper by the socket.
const MAX_FRAME_BYTES: usize = 16 << 10;

/// Where the next bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    Socket,
    Pipe,
}

/// What waiting came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ready {
    At(Source),
    /// The peer does not have its end (any more); the connection goes on without.
    NoPipe,
    /// Time was over.
    Never,
}

/// One end of both pipes.
#[derive(Debug)]
pub struct Pipes {
    out: OwnedFd,
    incoming: OwnedFd,
    max_frame_bytes: usize,
}

impl Pipes {
    /// Both ends: for here, and what the peer makes its end of.
    pub fn pair() -> io::Result<(Pipes, [OwnedFd; 2])> {
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (their_incoming, out) = pipe_with(flags)?;
        let (incoming, their_out) = pipe_with(flags)?;
        Ok((Pipes::of([out, incoming])?, [their_out, their_incoming]))
    }

    /// Of what is written to, and what is read. EINVAL if that is no pipe.
    pub fn of([out, incoming]: [OwnedFd; 2]) -> io::Result<Pipes> {
        // A user with many pipes gets short ones.
        let max_frame_bytes = fcntl_getpipe_size(&out)?.min(MAX_FRAME_BYTES);
        fcntl_getpipe_size(&incoming)?;
        Ok(Pipes { out, incoming, max_frame_bytes })
    }

    /// True if a frame of this length goes by them.
    pub(crate) fn takes(&self, frame_bytes: usize) -> bool {
        frame_bytes <= self.max_frame_bytes
    }

    /// Sends a frame that they take.
    pub(crate) fn send(&self, parts: &[&[u8]]) -> io::Result<()> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let mut slices = [IoSlice::new(&[]); 3];
        for (slice, part) in slices.iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        let sent = loop {
            let done = match parts {
                [one] => rustix::io::write(&self.out, one),
                _ => rustix::io::writev(&self.out, &slices[..parts.len().min(3)]),
            };
            match done {
                Err(Errno::INTR) => {}
                // EAGAIN: a peer that answers without having been asked finds no room.
                other => break other?,
            }
        };
        if sent == total { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Waits until something can be received by a pipe or the socket.
    pub(crate) fn wait(&self, socket: &Stream, limit: Option<Duration>) -> io::Result<Ready> {
        let mut wanted =
            [PollFd::new(&self.incoming, PollFlags::IN), PollFd::new(socket, PollFlags::IN)];
        if !wait_for(&mut wanted, limit)? {
            return Ok(Ready::Never);
        }
        let [by_pipe, by_socket] = [wanted[0].revents(), wanted[1].revents()];
        // What was sent before the end comes before it.
        Ok(match () {
            () if by_pipe.contains(PollFlags::IN) => Ready::At(Source::Pipe),
            () if !by_socket.is_empty() => Ready::At(Source::Socket),
            () => Ready::NoPipe,
        })
    }

    /// Receives what is there, into `into` and then `behind`. 0 = the peer has closed.
    pub(crate) fn receive_some(&self, into: &mut [u8], behind: &mut [u8]) -> io::Result<usize> {
        loop {
            let done = match behind.is_empty() {
                true => rustix::io::read(&self.incoming, &mut *into),
                false => {
                    let mut slices = [IoSliceMut::new(into), IoSliceMut::new(behind)];
                    rustix::io::readv(&self.incoming, &mut slices)
                }
            };
            match done {
                Err(Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }
}
