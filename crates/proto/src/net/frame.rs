//! Frames: a header of [`HEADER_BYTES`] bytes, a body, and where there is one a payload with its
//! checksum behind it.
//!
//! The header carries the protocol's version, both lengths and the checksums of header and body
//! (CRC32C). Lengths are bounded before anything is allocated. A frame that is not
//! understood is refused by name and ends its connection; nothing of it is used.
//!
//! ```text
//! 0  magic "FBAY"   4  version u16   6  kind u8   7  flags u8 (0)
//! 8  id u64        16  body bytes u32   20  payload bytes u32
//! 24 body CRC u32  28  header CRC u32 (of bytes 0..28)
//! 32 body, payload, payload CRC u32 (only if there is a payload)
//! ```
//! All numbers are little-endian. The payload's checksum follows it, so that both ends make it of
//! what they have just touched while the other end still sends or receives ([`PayloadSum`]).

use crate::version::WIRE_PROTOCOL;
use crc_fast::{CrcAlgorithm, Digest, crc32_iscsi};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// First bytes of every frame.
pub const MAGIC: [u8; 4] = *b"FBAY";
/// Length of the header.
pub const HEADER_BYTES: usize = 32;
/// Bytes of the header that its checksum is of.
const SUMMED_BYTES: usize = HEADER_BYTES - 4;
/// Length of the checksum behind a payload.
pub const PAYLOAD_SUM_BYTES: usize = 4;
/// Longest body. The longest is a listing, which is made to fit.
pub const MAX_BODY_BYTES: u32 = 1 << 20;
/// Longest payload: one read or write of the kernel.
pub const MAX_PAYLOAD_BYTES: u32 = 1 << 20;

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// First frame of who connects: [`super::auth::Hello`].
    Hello = 1,
    /// First frame of who accepts: [`super::auth::Welcome`].
    Welcome = 2,
    /// [`super::auth::Proof`].
    Proof = 3,
    /// [`super::auth::Accepted`].
    Accepted = 4,
    /// A file-system or session call: [`super::call::Request`], with a payload for writes.
    Call = 5,
    /// What came of it: [`super::answer::Answer`], with a payload for reads.
    Answer = 6,
    /// A question to the ledger, JSON: [`super::ledger::LedgerRequest`].
    Ledger = 7,
    /// Its answer, JSON.
    LedgerReply = 8,
    /// Server to client, on the connection made for it: [`super::session::Recall`].
    Recall = 9,
    /// The client has done it; same id.
    Recalled = 10,
    /// Why the connection ends here: [`super::auth::Refusal`]. Nothing follows.
    Refused = 11,
    /// One server to another: [`super::servers::Question`], with a payload for data.
    Server = 12,
    /// Its answer: [`super::servers::Reply`], with a payload for data.
    ServerReply = 13,
    /// A question to the agent of a node, JSON: [`super::node::NodeRequest`].
    Node = 14,
    /// Its answer, JSON: [`super::node::NodeReply`].
    NodeReply = 15,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        use Kind::*;
        const ALL: [Kind; 15] = [
            Hello,
            Welcome,
            Proof,
            Accepted,
            Call,
            Answer,
            Ledger,
            LedgerReply,
            Recall,
            Recalled,
            Refused,
            Server,
            ServerReply,
            Node,
            NodeReply,
        ];
        ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Why a frame was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not our protocol.
    #[error("the peer does not speak Forebay's protocol")]
    Magic,
    /// Another version of it.
    #[error("the peer speaks wire protocol {theirs}, this program speaks {WIRE_PROTOCOL}")]
    Version {
        /// The peer's.
        theirs: u16,
    },
    /// A kind this version does not have.
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
    /// Another kind than what has its place here.
    #[error("a frame of kind {found:?} where {expected:?} was expected")]
    Unexpected {
        /// What came.
        found: Kind,
        /// What should have come.
        expected: Kind,
    },
    /// A length above its bound.
    #[error("a frame's {what} of {bytes} bytes is longer than {limit}")]
    TooLong {
        /// Body or payload.
        what: &'static str,
        /// Announced.
        bytes: u32,
        /// Bound.
        limit: u32,
    },
    /// Damaged on the way.
    #[error("the checksum of a frame's {0} is wrong: damaged on the way")]
    Checksum(&'static str),
    /// A body that is not what its kind says.
    #[error("a frame's body makes no sense: {0}")]
    Body(String),
}

/// The header of one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// What it is.
    pub kind: Kind,
    /// Ties an answer to its question.
    pub id: u64,
    /// Length of the body.
    pub body_bytes: u32,
    /// Length of the payload.
    pub payload_bytes: u32,
    body_crc: u32,
}

/// The checksum of a payload (CRC32C), made piece by piece.
#[derive(Debug)]
pub struct PayloadSum(Digest);

impl Default for PayloadSum {
    fn default() -> PayloadSum {
        PayloadSum(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }
}

impl PayloadSum {
    /// The next piece.
    pub fn add(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// What follows the payload, after its last piece.
    pub fn to_bytes(&self) -> [u8; PAYLOAD_SUM_BYTES] {
        // The algorithm has 32 bits.
        (self.0.finalize() as u32).to_le_bytes()
    }

    /// Did the payload arrive as it was sent?
    pub fn check(&self, received: [u8; PAYLOAD_SUM_BYTES]) -> Result<(), FrameError> {
        match received == self.to_bytes() {
            true => Ok(()),
            false => Err(FrameError::Checksum("payload")),
        }
    }
}

fn crc(bytes: &[u8]) -> u32 {
    match bytes {
        [] => 0,
        _ => crc32_iscsi(bytes),
    }
}

fn u32_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl FrameHeader {
    /// The header for a body and a payload. `TooLong` if one is.
    pub fn of(kind: Kind, id: u64, body: &[u8], payload: &[u8]) -> Result<FrameHeader, FrameError> {
        Ok(FrameHeader {
            kind,
            id,
            body_bytes: bounded("body", body.len() as u64, MAX_BODY_BYTES)?,
            payload_bytes: bounded("payload", payload.len() as u64, MAX_PAYLOAD_BYTES)?,
            body_crc: crc(body),
        })
    }

    /// As bytes.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0u8; HEADER_BYTES];
        out[0..4].copy_from_slice(&MAGIC);
        out[4..6].copy_from_slice(&WIRE_PROTOCOL.to_le_bytes());
        out[6] = self.kind as u8;
        out[8..16].copy_from_slice(&self.id.to_le_bytes());
        out[16..20].copy_from_slice(&self.body_bytes.to_le_bytes());
        out[20..24].copy_from_slice(&self.payload_bytes.to_le_bytes());
        out[24..28].copy_from_slice(&self.body_crc.to_le_bytes());
        let head_crc = crc(&out[..SUMMED_BYTES]);
        out[SUMMED_BYTES..].copy_from_slice(&head_crc.to_le_bytes());
        out
    }

    /// From bytes: what is not understood is refused by name, in the order magic, version,
    /// checksum, kind, lengths (so that another version is told as such).
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<FrameHeader, FrameError> {
        if bytes[0..4] != MAGIC {
            return Err(FrameError::Magic);
        }
        let theirs = u16::from_le_bytes([bytes[4], bytes[5]]);
        if theirs != WIRE_PROTOCOL {
            return Err(FrameError::Version { theirs });
        }
        if crc(&bytes[..SUMMED_BYTES]) != u32_at(bytes, SUMMED_BYTES) {
            return Err(FrameError::Checksum("header"));
        }
        let kind = Kind::from_byte(bytes[6]).ok_or(FrameError::Kind(bytes[6]))?;
        let mut id = [0u8; 8];
        id.copy_from_slice(&bytes[8..16]);
        Ok(FrameHeader {
            kind,
            id: u64::from_le_bytes(id),
            body_bytes: bounded("body", u32_at(bytes, 16).into(), MAX_BODY_BYTES)?,
            payload_bytes: bounded("payload", u32_at(bytes, 20).into(), MAX_PAYLOAD_BYTES)?,
            body_crc: u32_at(bytes, 24),
        })
    }

    /// Is this the kind that has its place here?
    pub fn expect(&self, expected: Kind) -> Result<(), FrameError> {
        match self.kind == expected {
            true => Ok(()),
            false => Err(FrameError::Unexpected { found: self.kind, expected }),
        }
    }

    /// Did the body arrive as it was sent?
    pub fn check_body(&self, body: &[u8]) -> Result<(), FrameError> {
        match crc(body) == self.body_crc {
            true => Ok(()),
            false => Err(FrameError::Checksum("body")),
        }
    }
}

fn bounded(what: &'static str, bytes: u64, limit: u32) -> Result<u32, FrameError> {
    match u32::try_from(bytes) {
        Ok(bytes) if bytes <= limit => Ok(bytes),
        Ok(bytes) => Err(FrameError::TooLong { what, bytes, limit }),
        Err(_) => Err(FrameError::TooLong { what, bytes: u32::MAX, limit }),
    }
}

/// Most bodies are shorter.
const SHORT_BODY_BYTES: usize = 512;

/// Appends a postcard body to `out`.
pub fn encode<T: Serialize>(value: &T, out: &mut Vec<u8>) -> Result<(), FrameError> {
    // Into a place of known size first: growing `out` byte by byte takes twice the time.
    let mut short = [0; SHORT_BODY_BYTES];
    if let Ok(body) = postcard::to_slice(value, &mut short) {
        out.extend_from_slice(body);
        return Ok(());
    }
    let taken = std::mem::take(out);
    *out = postcard::to_extend(value, taken).map_err(|e| FrameError::Body(e.to_string()))?;
    Ok(())
}

/// Reads a postcard body that owns what it has. Bytes left over are an error.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, FrameError> {
    decode_borrowed(body)
}

/// Reads a postcard body that may borrow from `body`. Bytes left over are an error.
pub fn decode_borrowed<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> Result<T, FrameError> {
    let (value, rest) =
        postcard::take_from_bytes(body).map_err(|e| FrameError::Body(e.to_string()))?;
    match rest {
        [] => Ok(value),
        _ => Err(FrameError::Body(format!("{} bytes too many", rest.len()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> FrameHeader {
        FrameHeader::of(Kind::Call, 77, b"body", b"payload").unwrap()
    }

    #[test]
    fn a_header_comes_back_and_checks_what_follows() {
        let read = FrameHeader::parse(&header().to_bytes()).unwrap();
        assert_eq!(read, header());
        assert_eq!(read.check_body(b"body"), Ok(()));
        assert_eq!(read.check_body(b"b0dy"), Err(FrameError::Checksum("body")));
    }

    #[test]
    fn a_payload_has_one_checksum_however_it_is_cut() {
        let sum_of = |pieces: &[&[u8]]| {
            let mut sum = PayloadSum::default();
            pieces.iter().for_each(|piece| sum.add(piece));
            sum
        };
        let whole = sum_of(&[b"123456789"]);
        // The check value of CRC32C (iSCSI, RFC 3720).
        assert_eq!(whole.to_bytes(), 0xE306_9283_u32.to_le_bytes());
        assert_eq!(sum_of(&[b"1", b"", b"2345678", b"9"]).check(whole.to_bytes()), Ok(()));
        let damaged = sum_of(&[b"123456788"]).check(whole.to_bytes());
        assert_eq!(damaged, Err(FrameError::Checksum("payload")));
    }

    #[test]
    fn another_version_is_refused_by_name() {
        let mut bytes = header().to_bytes();
        bytes[4] = 99;
        let error = FrameHeader::parse(&bytes).unwrap_err();
        assert_eq!(error, FrameError::Version { theirs: 99 });
        assert!(error.to_string().contains("wire protocol 99"), "{error}");
        bytes[0] = b'G';
        assert_eq!(FrameHeader::parse(&bytes), Err(FrameError::Magic));
    }

    #[test]
    fn long_bodies_are_refused_before_they_are_read() {
        let mut long = header();
        long.body_bytes = MAX_BODY_BYTES + 1;
        let error = FrameHeader::parse(&long.to_bytes()).unwrap_err();
        assert!(matches!(error, FrameError::TooLong { what: "body", .. }));
        let body = vec![0; MAX_BODY_BYTES as usize + 1];
        assert!(FrameHeader::of(Kind::Call, 0, &body, &[]).is_err());
    }

    #[test]
    fn bytes_left_over_are_an_error() {
        let mut body = Vec::new();
        encode(&(1u8, 2u64), &mut body).unwrap();
        assert_eq!(decode::<(u8, u64)>(&body), Ok((1, 2)));
        body.push(0);
        assert!(decode::<(u8, u64)>(&body).is_err());
    }

    proptest! {
        /// Any damage of a header is seen.
        #[test]
        fn a_damaged_header_is_refused(at in 0usize..HEADER_BYTES, flip in 1u8..=255) {
            let mut bytes = header().to_bytes();
            bytes[at] ^= flip;
            prop_assert!(FrameHeader::parse(&bytes).is_err());
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), HEADER_BYTES)) {
            let bytes: [u8; HEADER_BYTES] = bytes.try_into().unwrap();
            let _ = FrameHeader::parse(&bytes);
        }
    }
}
