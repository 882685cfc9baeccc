//! What both ends of a connection encrypt for each other: questions to the ledger and what servers
//! tell each other about the pool, because buffers' secrets are among it.
//!
//! The nonces of the greeting are X25519 public keys, made for this connection and forgotten with
//! it. Their agreement gives two keys (HKDF-SHA256), one for each direction; a body is then
//! ChaCha20-Poly1305 with the count of bodies in that direction as its nonce and the frame's id as
//! what is authenticated beside it. The proofs of the greeting cover both public keys, so who knows
//! the secret knows also that nobody sits between. What was recorded cannot be read later, also not
//! by who learns the secret later.
//!
//! Invariants: a nonce is used once per key; a body is opened in the order in which it was sealed,
//! anything else is an error, after which the link is of no use. Used by [`crate::Link`], the keys
//! are agreed on by [`crate::handshake`].

use crate::random;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{ChaCha20Poly1305, Nonce as CipherNonce};
use forebay_proto::net::auth::{End, Nonce};
use hkdf::Hkdf;
use sha2::Sha256;
use std::io;
use x25519_dalek::{X25519_BASEPOINT_BYTES, x25519};

/// Bytes by which a sealed body is longer.
pub const SEAL_BYTES: usize = 16;

/// Our half of an agreement.
pub struct Share {
    private: [u8; 32],
    /// What is sent: the nonce of our greeting.
    pub public: Nonce,
}

impl std::fmt::Debug for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Share(..)")
    }
}

impl Share {
    /// A new one.
    pub fn new() -> io::Result<Share> {
        let private = random::bytes()?;
        Ok(Share { private, public: x25519(private, X25519_BASEPOINT_BYTES) })
    }

    /// The keys for this connection; `None` if what the other end sent is no public key that
    /// agrees with anything (RFC 7748, section 6.1: an all-zero result).
    pub fn agree(self, mine: End, client: &Nonce, server: &Nonce) -> Option<Seals> {
        let theirs = match mine {
            End::Client => server,
            End::Server => client,
        };
        let shared = x25519(self.private, *theirs);
        if shared == [0; 32] {
            return None;
        }
        let salt = [client.as_slice(), server.as_slice()].concat();
        let both = Hkdf::<Sha256>::new(Some(&salt), &shared);
        let from_client = Direction::new(&both, b"forebay client seals")?;
        let from_server = Direction::new(&both, b"forebay server seals")?;
        Some(match mine {
            End::Client => Seals { out: from_client, into: from_server },
            End::Server => Seals { out: from_server, into: from_client },
        })
    }
}

/// The keys of a connection, as one end has them.
pub struct Seals {
    out: Direction,
    into: Direction,
}

impl std::fmt::Debug for Seals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seals(..)")
    }
}

struct Direction {
    cipher: ChaCha20Poly1305,
    count: u64,
}

impl Direction {
    fn new(both: &Hkdf<Sha256>, name: &[u8]) -> Option<Direction> {
        let mut key = [0; 32];
        both.expand(name, &mut key).ok()?;
        Some(Direction { cipher: ChaCha20Poly1305::new(&key.into()), count: 0 })
    }

    /// The next body's nonce; `None` after 2^64 bodies.
    fn next(&mut self) -> Option<CipherNonce> {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.count.to_le_bytes());
        self.count = self.count.checked_add(1)?;
        Some(nonce.into())
    }
}

impl Seals {
    /// Encrypts the next body that is sent, of the frame `id`.
    pub fn seal(&mut self, id: u64, body: &[u8]) -> Option<Vec<u8>> {
        let nonce = self.out.next()?;
        let aad = id.to_le_bytes();
        self.out.cipher.encrypt(&nonce, Payload { msg: body, aad: &aad }).ok()
    }

    /// Decrypts the next body that came, of the frame `id`; `None` if it is not what the other end
    /// sealed next.
    pub fn open(&mut self, id: u64, sealed: &[u8]) -> Option<Vec<u8>> {
        let nonce = self.into.next()?;
        let aad = id.to_le_bytes();
        self.into.cipher.decrypt(&nonce, Payload { msg: sealed, aad: &aad }).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both() -> (Seals, Seals) {
        let (a, b) = (Share::new().unwrap(), Share::new().unwrap());
        let (client, server) = (a.public, b.public);
        let one = a.agree(End::Client, &client, &server).unwrap();
        (one, b.agree(End::Server, &client, &server).unwrap())
    }

    #[test]
    fn both_ends_read_what_the_other_sealed() {
        let (mut client, mut server) = both();
        for id in 0..3 {
            let sealed = client.seal(id, b"a question").unwrap();
            assert_eq!(sealed.len(), b"a question".len() + SEAL_BYTES);
            assert!(!sealed.windows(8).any(|some| some == b"question"));
            assert_eq!(server.open(id, &sealed).unwrap(), b"a question");
            let sealed = server.seal(id, b"an answer").unwrap();
            assert_eq!(client.open(id, &sealed).unwrap(), b"an answer");
        }
    }

    #[test]
    fn what_was_changed_repeated_reflected_or_moved_is_not_opened() {
        let (mut client, mut server) = both();
        let sealed = client.seal(1, b"x").unwrap();
        let mut changed = sealed.clone();
        changed[0] ^= 1;
        assert!(server.open(1, &changed).is_none());
        let (mut client, mut server) = both();
        let first = client.seal(1, b"x").unwrap();
        assert!(client.open(1, &first).is_none(), "reflected");
        assert!(server.open(1, &first).is_some());
        assert!(server.open(1, &first).is_none(), "repeated");
        let (mut client, mut server) = both();
        let sealed = client.seal(1, b"x").unwrap();
        assert!(server.open(2, &sealed).is_none(), "under another id");
        assert!(both().1.open(1, &both().0.seal(1, b"x").unwrap()).is_none(), "elsewhere");
    }

    #[test]
    fn a_key_that_agrees_with_nothing_is_refused() {
        let share = Share::new().unwrap();
        let mine = share.public;
        assert!(share.agree(End::Server, &[0; 32], &mine).is_none());
    }
}
