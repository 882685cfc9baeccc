//! Frames on a stream.
//!
//! Invariants: what arrives is bounded before memory is taken for it, and its checksums are right
//! before anything is used; after any error the link is of no use and must be dropped.

use crate::pipes::{Pipes, Ready, Source};
use crate::seal::Seals;
use crate::stream::{Files, MAX_FILES, Steps, Stream};
use forebay_proto::net::auth::Refusal;
use forebay_proto::net::frame::{
    self, FrameError, FrameHeader, HEADER_BYTES, Kind, MAX_BODY_BYTES, PAYLOAD_SUM_BYTES,
    PayloadSum,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// What is received at a time while a header and body are expected: most frames fit, and of the
/// payload of long ones little has to be copied.
const CHUNK_BYTES: usize = 1024;
/// Payload memory taken before its bytes have come.
const PAYLOAD_STEP_BYTES: usize = 256 << 10;
/// What of a payload is summed and sent at a time: the peer takes one piece while the next is summed.
/// Shorter ones cost more in wake-ups of the peer than they bring (docs/BENCHMARKS.md, striped writes).
const SEND_STEP_BYTES: usize = 512 << 10;

/// Why a link is of no use any more.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The peer closed it between two frames.
    #[error("the peer closed the connection")]
    Closed,
    /// It failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// What came was not understood.
    #[error("{0}")]
    Frame(#[from] FrameError),
    /// The peer said why it ends.
    #[error("{}", .0.why)]
    Refused(Refusal),
}

impl LinkError {
    /// True if nobody waits any more for what was waited for ([`forebay_proto::asked`]). The link is as it was before, if
    /// the head of a frame was waited for.
    pub fn is_given_up(&self) -> bool {
        matches!(self, LinkError::Io(e) if e.kind() == io::ErrorKind::Interrupted)
    }

    /// True if nothing came within the time limit.
    pub fn is_timeout(&self) -> bool {
        matches!(self, LinkError::Io(e)
            if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut))
    }
}

/// A stream that carries frames.
#[derive(Debug)]
pub struct Link {
    stream: Stream,
    /// For short frames, on one node.
    pipes: Option<Pipes>,
    /// This end asks, so it is the first to use the pipes; the other uses them for answers to what came by them. So a
    /// relay of a socket, which loses descriptors, loses no frame.
    asks: bool,
    /// Where the frame at hand comes from.
    source: Source,
    /// Room for what is received; of it, `ready` is received and not yet used.
    ahead: Vec<u8>,
    ready: Range<usize>,
    /// Descriptors that came with the frame at hand.
    files: Files,
    /// Header and body being sent.
    head: Vec<u8>,
    /// Longest body that is received.
    body_limit: u32,
    /// Keys for what is sealed; from the greeting.
    seals: Option<Seals>,
    /// Set last for a wait; a system call less for each frame.
    longest_wait: Option<Duration>,
    /// Longest wait for the peer to take something.
    longest_send: Option<Duration>,
}

impl Link {
    /// On a connected stream.
    pub fn new(stream: Stream) -> Link {
        Link {
            stream,
            pipes: None,
            asks: false,
            source: Source::Socket,
            ahead: vec![0; CHUNK_BYTES],
            ready: 0..0,
            files: Files::default(),
            head: Vec::new(),
            body_limit: MAX_BODY_BYTES,
            seals: None,
            longest_wait: None,
            longest_send: None,
        }
    }

    /// The stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// From now on short frames go by these: where this end `asks` all, else answers to those that came by them.
    pub fn set_pipes(&mut self, pipes: Pipes, asks: bool) {
        self.pipes = Some(pipes);
        self.asks = asks;
    }

    /// Longest body that is received from now on: little from who has not said who it is.
    pub fn set_body_limit(&mut self, bytes: u32) {
        self.body_limit = bytes.min(MAX_BODY_BYTES);
    }

    /// Longest wait for a frame, and for the peer to take one.
    pub fn set_timeouts(
        &mut self,
        read: Option<Duration>,
        write: Option<Duration>,
    ) -> io::Result<()> {
        self.longest_wait = read;
        self.longest_send = write;
        self.stream.set_read_step(read)?;
        self.stream.set_write_step(write)
    }

    /// Longest wait for what is received from now on.
    pub fn wait_at_most(&mut self, limit: Duration) -> io::Result<()> {
        if self.longest_wait != Some(limit) {
            self.stream.set_read_step(Some(limit))?;
            self.longest_wait = Some(limit);
        }
        Ok(())
    }

    /// Sends a frame with a postcard body.
    pub fn send<T: Serialize>(
        &mut self,
        kind: Kind,
        id: u64,
        body: &T,
        payload: &[u8],
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), LinkError> {
        self.begin_head();
        frame::encode(body, &mut self.head)?;
        self.send_encoded(kind, id, payload, fd.as_slice())
    }

    /// The same without a payload, with several descriptors.
    pub fn send_with<T: Serialize>(
        &mut self,
        kind: Kind,
        id: u64,
        body: &T,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), LinkError> {
        self.begin_head();
        frame::encode(body, &mut self.head)?;
        self.send_encoded(kind, id, &[], fds)
    }

    /// Room for the header; the body follows.
    fn begin_head(&mut self) {
        self.head.clear();
        self.head.resize(HEADER_BYTES, 0);
    }

    /// The keys that the greeting agreed on.
    pub fn set_seals(&mut self, seals: Seals) {
        self.seals = Some(seals);
    }

    /// Encrypts what the next frame is to carry; `id` is the frame's.
    pub fn seal(&mut self, id: u64, plain: &[u8]) -> Result<Vec<u8>, LinkError> {
        let sealed = self.seals.as_mut().and_then(|seals| seals.seal(id, plain));
        sealed.ok_or_else(|| FrameError::Body("there is no key to seal it with".into()).into())
    }

    /// Decrypts what a frame carried.
    pub fn open(&mut self, id: u64, sealed: &[u8]) -> Result<Vec<u8>, LinkError> {
        let plain = self.seals.as_mut().and_then(|seals| seals.open(id, sealed));
        plain.ok_or_else(|| FrameError::Body("it was not sealed on this connection".into()).into())
    }

    /// Sends a frame with a JSON body, sealed.
    pub fn send_json<T: Serialize>(
        &mut self,
        kind: Kind,
        id: u64,
        body: &T,
    ) -> Result<(), LinkError> {
        let plain = serde_json::to_vec(body).map_err(|e| FrameError::Body(e.to_string()))?;
        let sealed = self.seal(id, &plain)?;
        self.begin_head();
        self.head.extend_from_slice(&sealed);
        self.send_encoded(kind, id, &[], &[])
    }

    /// Receives a frame of one kind with a sealed JSON body; its id.
    pub fn receive_json<T: DeserializeOwned>(&mut self, kind: Kind) -> Result<(u64, T), LinkError> {
        let mut body = Vec::new();
        let header = self.receive(&mut body)?;
        header.expect(kind)?;
        self.no_payload(&header)?;
        let plain = self.open(header.id, &body)?;
        let told = serde_json::from_slice(&plain).map_err(|e| FrameError::Body(e.to_string()))?;
        Ok((header.id, told))
    }

    fn send_encoded(
        &mut self,
        kind: Kind,
        id: u64,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), LinkError> {
        let header = FrameHeader::of(kind, id, &self.head[HEADER_BYTES..], payload)?;
        self.head[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        if payload.is_empty() {
            match self.pipes_for(self.head.len(), fds) {
                Some(pipes) => pipes.send(&[&self.head])?,
                None => self.stream.send_all(&[&self.head], fds, self.longest_send)?,
            }
            return Ok(());
        }
        let total = self.head.len() + payload.len() + PAYLOAD_SUM_BYTES;
        if let Some(pipes) = self.pipes_for(total, fds) {
            let mut sum = PayloadSum::default();
            sum.add(payload);
            return Ok(pipes.send(&[&self.head, payload, &sum.to_bytes()])?);
        }
        let mut sum = PayloadSum::default();
        let (mut first, mut fds): (&[u8], _) = (&self.head, fds);
        let mut left = payload;
        while left.len() > SEND_STEP_BYTES {
            let (piece, rest) = left.split_at(SEND_STEP_BYTES);
            sum.add(piece);
            let parts = [std::mem::take(&mut first), piece];
            self.stream.send_all(&parts, std::mem::take(&mut fds), self.longest_send)?;
            left = rest;
        }
        sum.add(left);
        self.stream.send_all(&[first, left, &sum.to_bytes()], fds, self.longest_send)?;
        Ok(())
    }

    /// By which a frame of this length goes; `None`: by the socket.
    fn pipes_for(&self, frame_bytes: usize, fds: &[BorrowedFd<'_>]) -> Option<&Pipes> {
        let by_pipe = fds.is_empty() && (self.asks || self.source == Source::Pipe);
        self.pipes.as_ref().filter(|pipes| by_pipe && pipes.takes(frame_bytes))
    }

    /// Receives until so many bytes are ready. `Closed` only before the first byte of a frame.
    fn fill(&mut self, want: usize) -> Result<(), LinkError> {
        while self.ready.len() < want {
            let have = self.ready.len();
            let room = (want - have).max(CHUNK_BYTES.saturating_sub(have));
            self.make_room(room);
            let end = self.ready.end;
            let mut ahead = std::mem::take(&mut self.ahead);
            let got = self.receive_some(&mut ahead[end..end + room], &mut [], have == 0);
            self.ahead = ahead;
            let (count, files) = got?;
            self.ready.end += count;
            if files[0].is_some() {
                self.files = files;
            }
            match (count, have) {
                (0, 0) => return Err(LinkError::Closed),
                (0, _) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Room for so many bytes behind what is ready.
    fn make_room(&mut self, room: usize) {
        let have = self.ready.len();
        if self.ready.end + room > self.ahead.len() {
            self.ahead.copy_within(self.ready.clone(), 0);
            self.ready = 0..have;
        }
        if have + room > self.ahead.len() {
            self.ahead.resize(have + room, 0);
        }
    }

    /// Receives header and body, and goes on where a wait for them ended that nobody waited for any more; the payload is to be taken next, by one of the `payload`
    /// functions. A `Refused` frame is the error of that name.
    pub fn receive(&mut self, body: &mut Vec<u8>) -> Result<FrameHeader, LinkError> {
        self.fill(HEADER_BYTES)?;
        let mut head = [0u8; HEADER_BYTES];
        head.copy_from_slice(&self.ahead[self.ready.clone()][..HEADER_BYTES]);
        let header = FrameHeader::parse(&head)?;
        if header.body_bytes > self.body_limit {
            let (bytes, limit) = (header.body_bytes, self.body_limit);
            return Err(FrameError::TooLong { what: "body", bytes, limit }.into());
        }
        let end = HEADER_BYTES + header.body_bytes as usize;
        self.fill(end)?;
        body.clear();
        body.extend_from_slice(&self.ahead[self.ready.clone()][HEADER_BYTES..end]);
        self.ready.start += end;
        header.check_body(body)?;
        if header.kind == Kind::Refused {
            return Err(LinkError::Refused(frame::decode(body)?));
        }
        Ok(header)
    }

    /// Receives a frame of one kind, without payload, with a postcard body.
    pub fn receive_as<T: DeserializeOwned>(&mut self, kind: Kind) -> Result<T, LinkError> {
        let mut body = Vec::new();
        let header = self.receive(&mut body)?;
        header.expect(kind)?;
        self.no_payload(&header)?;
        Ok(frame::decode(&body)?)
    }

    /// A payload where none belongs is an error.
    pub fn no_payload(&self, header: &FrameHeader) -> Result<(), LinkError> {
        match header.payload_bytes {
            0 => Ok(()),
            bytes => Err(FrameError::TooLong { what: "payload", bytes, limit: 0 }.into()),
        }
    }

    /// Takes the payload into the front of `into`; its length. Longer than `into` is an error.
    pub fn payload_into(
        &mut self,
        header: &FrameHeader,
        into: &mut [u8],
    ) -> Result<usize, LinkError> {
        let want = header.payload_bytes as usize;
        let Some(into) = into.get_mut(..want) else {
            let limit = u32::try_from(into.len()).unwrap_or(u32::MAX);
            return Err(FrameError::TooLong {
                what: "payload",
                bytes: header.payload_bytes,
                limit,
            }
            .into());
        };
        let mut coming = Coming::new(want);
        self.start(&mut coming, into);
        while coming.more() {
            self.go_on(&mut coming, into)?;
        }
        coming.check()?;
        Ok(want)
    }

    /// Takes the payload into `into`, which is made as long as it. Memory is taken as bytes come.
    pub fn payload_vec(
        &mut self,
        header: &FrameHeader,
        into: &mut Vec<u8>,
    ) -> Result<(), LinkError> {
        let want = header.payload_bytes as usize;
        let ready = self.ready.len().min(want);
        // What the last payload took is not filled with zeros again: a pass over memory less.
        into.truncate(want);
        if into.len() < ready {
            into.resize(ready, 0);
        }
        let mut coming = Coming::new(want);
        self.start(&mut coming, into);
        while coming.more() {
            if coming.have == into.len() {
                into.resize(want.min(coming.have + PAYLOAD_STEP_BYTES), 0);
            }
            self.go_on(&mut coming, into)?;
        }
        Ok(coming.check()?)
    }

    /// What of a payload came along with its frame's head.
    fn start(&mut self, coming: &mut Coming, into: &mut [u8]) {
        let ahead = &self.ahead[self.ready.clone()];
        let ready = ahead.len().min(coming.want);
        into[..ready].copy_from_slice(&ahead[..ready]);
        coming.took(into, ready);
        let behind = match coming.have < coming.want {
            true => 0,
            false => (ahead.len() - ready).min(coming.behind()),
        };
        let end = ready + behind;
        coming.sum_have = behind;
        coming.sum_bytes[..behind].copy_from_slice(&ahead[ready..end]);
        self.ready.start += end;
    }

    /// Receives more of a payload, into `into` from where it ends so far.
    fn go_on(&mut self, coming: &mut Coming, into: &mut [u8]) -> Result<(), LinkError> {
        // The checksum only together with the last of the payload.
        let last = into.len() >= coming.want;
        let behind = if last { coming.behind() } else { 0 };
        let end = coming.want.min(into.len());
        let room = &mut into[coming.have..end];
        let space = room.len();
        let behind = &mut coming.sum_bytes[coming.sum_have..][..behind];
        let count = self.receive_some(room, behind, false)?.0;
        if count == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        coming.took(into, count.min(space));
        coming.sum_have += count.saturating_sub(space);
        Ok(())
    }

    /// Receives into `into`, and what comes after it into `behind`; a frame `begins` where something
    /// comes first, and goes on there.
    fn receive_some(
        &mut self,
        into: &mut [u8],
        behind: &mut [u8],
        begins: bool,
    ) -> io::Result<(usize, Files)> {
        let limit = self.longest_wait;
        let mut is_ready = false;
        if let (Some(pipes), true) = (&self.pipes, begins) {
            self.source = Source::Socket;
            match pipes.wait(&self.stream, limit)? {
                Ready::At(source) => (self.source, is_ready) = (source, true),
                Ready::NoPipe => self.pipes = None,
                Ready::Never => return Err(io::ErrorKind::WouldBlock.into()),
            }
        }
        let mut steps = Steps::new(limit);
        match (&self.pipes, self.source) {
            (Some(pipes), Source::Pipe) => {
                Ok((pipes.receive_some(into, behind)?, Files::default()))
            }
            _ if is_ready || self.stream.wait_to_receive(limit)? => loop {
                match self.stream.receive_some(into, behind) {
                    // A step of the wait for a TCP connection.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock && steps.go_on()? => {}
                    done => return done,
                }
            },
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// The descriptor that came with the frame at hand.
    pub fn take_file(&mut self) -> Option<File> {
        self.files[0].take()
    }

    /// The descriptors that came with the frame at hand, if all that there can be did.
    pub fn take_files(&mut self) -> Option<[File; MAX_FILES]> {
        match std::mem::take(&mut self.files) {
            [Some(a), Some(b)] => Some([a, b]),
            _ => None,
        }
    }

    /// Tells the peer why it ends here; nothing can be sent after it.
    pub fn refuse(&mut self, refusal: &Refusal) {
        // The peer may be gone already: then nobody wants to know.
        let _ = self.send(Kind::Refused, 0, refusal, &[], None);
        self.stream.shutdown();
    }
}

/// A payload that is being received.
struct Coming {
    /// Its length.
    want: usize,
    /// Received of it.
    have: usize,
    sum: PayloadSum,
    /// What follows it, and what is here of that.
    sum_bytes: [u8; PAYLOAD_SUM_BYTES],
    sum_have: usize,
}

impl Coming {
    fn new(want: usize) -> Coming {
        let sum_bytes = [0; PAYLOAD_SUM_BYTES];
        Coming { want, have: 0, sum: PayloadSum::default(), sum_bytes, sum_have: 0 }
    }

    /// Bytes missing of the checksum. Without a payload there is none.
    fn behind(&self) -> usize {
        if self.want == 0 { 0 } else { PAYLOAD_SUM_BYTES - self.sum_have }
    }

    fn more(&self) -> bool {
        self.have < self.want || self.behind() > 0
    }

    /// The next bytes are in `into`, and summed while they are in the processor's cache.
    fn took(&mut self, into: &[u8], count: usize) {
        self.sum.add(&into[self.have..self.have + count]);
        self.have += count;
    }

    fn check(&self) -> Result<(), FrameError> {
        if self.want == 0 { Ok(()) } else { self.sum.check(self.sum_bytes) }
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
