//! Buffers that are read into and written from `/dev/fuse`.
//!
//! A request or reply has a header of fixed length before its payload. Each buffer starts so
//! many bytes before a page boundary that the payload begins on the boundary: data then goes to
//! and from the object without straddling pages. Replies without data begin on the boundary
//! themselves, so that the kernel has to pin one page only. Made once, never resized, never
//! cleared.

use crate::abi::{InHeader, OutHeader, WriteIn};
use forebay_proto::{Errno, Ino};
use zerocopy::{FromBytes, IntoBytes};

const PAGE_BYTES: usize = 4096;
/// Largest payload of one request or reply, in bytes.
pub(crate) const MAX_PAYLOAD_BYTES: usize = 1 << 20;
/// Bytes before the data of a WRITE request.
pub(crate) const REQUEST_LEAD_BYTES: usize = size_of::<InHeader>() + size_of::<WriteIn>();
const REPLY_LEAD_BYTES: usize = size_of::<OutHeader>();

/// Room for a head of fixed length and [`MAX_PAYLOAD_BYTES`] after it.
pub(crate) struct PageBuffer {
    bytes: Vec<u8>,
    /// A page boundary, at least a page from the start.
    boundary: usize,
    start: usize,
}

impl PageBuffer {
    fn new(lead: usize) -> PageBuffer {
        // A page for alignment, a page for the lead, a page more for names and extensions.
        let bytes = vec![0u8; MAX_PAYLOAD_BYTES + 3 * PAGE_BYTES];
        let to_boundary = bytes.as_ptr().addr().wrapping_neg() % PAGE_BYTES;
        let boundary = to_boundary + PAGE_BYTES;
        PageBuffer { bytes, boundary, start: boundary - lead }
    }

    /// A buffer to read requests into.
    pub(crate) fn for_requests() -> PageBuffer {
        PageBuffer::new(REQUEST_LEAD_BYTES)
    }

    /// Lets what is written from now on begin `lead` bytes before the boundary.
    fn set_lead(&mut self, lead: usize) {
        self.start = self.boundary - lead;
    }

    /// All of the room, from the head on.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }

    /// The first `len` bytes, from the head on.
    pub(crate) fn filled(&self, len: usize) -> &[u8] {
        &self.bytes[self.start..self.start + len]
    }
}

/// A structure of a reply that says how long it may be believed, filled in when the reply is
/// sent ([`crate::lifetime`]).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Believed {
    /// An `EntryOut`: a name of a directory, and attributes.
    Entry { at: usize, parent: Ino, ino: Ino },
    /// An `EntryOut`: a name that a directory does not have.
    Negative { at: usize, parent: Ino },
    /// An `AttrOut` or `StatxOut`.
    Attr { at: usize, ino: Ino },
}

/// A reply being put together; each thread that answers has one.
pub(crate) struct Reply {
    buffer: PageBuffer,
    len: usize,
    believed: Vec<Believed>,
}

impl Reply {
    pub(crate) fn new() -> Reply {
        Reply { buffer: PageBuffer::new(0), len: 0, believed: Vec::new() }
    }

    /// Starts anew.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
        self.believed.clear();
        self.buffer.set_lead(0);
    }

    /// Notes a structure whose lifetimes are to be filled in.
    pub(crate) fn believe(&mut self, what: Believed) {
        self.believed.push(what);
    }

    /// What was noted.
    pub(crate) fn believed(&self) -> &[Believed] {
        &self.believed
    }

    /// Changes bytes of the payload that are there already.
    pub(crate) fn patch(&mut self, at: usize, bytes: &[u8]) {
        if at + bytes.len() <= self.len {
            let at = REPLY_LEAD_BYTES + at;
            self.buffer.room()[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// The payload so far.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.buffer.filled(REPLY_LEAD_BYTES + self.len)[REPLY_LEAD_BYTES..]
    }

    /// Appends a structure. Replies have few of them: they always fit.
    pub(crate) fn put<T: IntoBytes + zerocopy::Immutable>(&mut self, value: &T) {
        self.put_bytes(value.as_bytes());
    }

    /// Appends bytes; the caller has compared with [`MAX_PAYLOAD_BYTES`].
    pub(crate) fn put_bytes(&mut self, bytes: &[u8]) {
        let at = REPLY_LEAD_BYTES + self.len;
        self.buffer.room()[at..at + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Appends zeros up to a multiple of 8.
    pub(crate) fn pad_to_8(&mut self) {
        let zeros = self.len.wrapping_neg() % 8;
        self.put_bytes(&[0u8; 8][..zeros]);
    }

    /// Payload bytes so far.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Lets `fill` write up to `size` bytes of payload and say how many.
    pub(crate) fn fill(
        &mut self,
        size: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<(), Errno> {
        let size = size.min(MAX_PAYLOAD_BYTES);
        if self.len == 0 && size >= PAGE_BYTES {
            self.buffer.set_lead(REPLY_LEAD_BYTES);
        }
        let at = REPLY_LEAD_BYTES + self.len;
        let filled = fill(&mut self.buffer.room()[at..at + size])?;
        self.len += filled.min(size);
        Ok(())
    }

    /// The message for the device: the payload if `error` is `None`, else only the error.
    pub(crate) fn message(&mut self, unique: u64, error: Option<Errno>) -> &[u8] {
        if error.is_some() {
            self.len = 0;
        }
        let total = REPLY_LEAD_BYTES + self.len;
        let head = OutHeader { len: total as u32, error: error.map_or(0, |e| -e.0.abs()), unique };
        self.buffer.room()[..REPLY_LEAD_BYTES].copy_from_slice(head.as_bytes());
        self.buffer.filled(total)
    }
}

/// Takes a structure off the front of `rest`. EINVAL if it is too short.
pub(crate) fn take<T: FromBytes>(rest: &mut &[u8]) -> Result<T, Errno> {
    let (value, tail) = T::read_from_prefix(rest).map_err(|_| Errno::EINVAL)?;
    *rest = tail;
    Ok(value)
}

/// Takes a NUL-ended string off the front of `rest`. EINVAL without a NUL.
pub(crate) fn take_name<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Errno> {
    let end = rest.iter().position(|&b| b == 0).ok_or(Errno::EINVAL)?;
    let name = &rest[..end];
    *rest = &rest[end + 1..];
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_begin_on_a_page() {
        let buffer = PageBuffer::for_requests();
        let payload = &buffer.filled(REQUEST_LEAD_BYTES + 1)[REQUEST_LEAD_BYTES..];
        assert_eq!(payload.as_ptr().addr() % PAGE_BYTES, 0);
        let mut reply = Reply::new();
        let fill = |room: &mut [u8]| Ok(room.len());
        reply.fill(MAX_PAYLOAD_BYTES, fill).unwrap();
        assert_eq!(reply.payload().as_ptr().addr() % PAGE_BYTES, 0);
        assert_eq!(reply.message(1, None).len(), MAX_PAYLOAD_BYTES + 16);
        reply.clear();
        reply.put_bytes(b"short");
        assert_eq!(reply.message(1, None).as_ptr().addr() % PAGE_BYTES, 0);
    }

    #[test]
    fn an_error_reply_carries_no_payload() {
        let mut reply = Reply::new();
        reply.put_bytes(b"12345");
        reply.pad_to_8();
        assert_eq!(reply.payload(), b"12345\0\0\0");
        let message = reply.message(7, Some(Errno::EIO));
        let head = OutHeader::read_from_bytes(message).unwrap();
        assert_eq!((head.len, head.error, head.unique), (16, -libc::EIO, 7));
    }

    #[test]
    fn short_requests_are_refused() {
        let mut rest: &[u8] = b"abc";
        assert_eq!(take::<u64>(&mut rest), Err(Errno::EINVAL));
        assert_eq!(take_name(&mut rest), Err(Errno::EINVAL));
    }
}
