//! How the two ends of a connection prove that they know the same secret, without sending it.
//!
//! Who connects says what it wants and a nonce ([`Hello`]); who accepts answers with a nonce of
//! its own ([`Welcome`]); then the client proves ([`Proof`]), and then the server ([`Accepted`]).
//! A proof is HMAC-SHA256 over role, both nonces, the purpose and the server's identity, keyed by
//! the secret: a recorded one is of no use on another connection, and one end's proof is not the
//! other's. The nonces are X25519 public keys made for the connection, so that both ends also have
//! keys that only they know (`forebay_net::seal`); the proofs say that nobody exchanged them. On a Unix socket the kernel tells who connects, and root and the server's own user
//! need no proof (docs/internals/WIRE.md, "Who").

use crate::control::ControlError;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

/// Bytes of a nonce and of a secret.
pub const NONCE_BYTES: usize = 32;
/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;

/// An X25519 public key (RFC 7748) that is used once.
pub type Nonce = [u8; NONCE_BYTES];

/// What both ends know and nobody sends. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; NONCE_BYTES]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// From random bytes.
    pub fn from_bytes(bytes: [u8; NONCE_BYTES]) -> Secret {
        Secret(bytes)
    }

    /// As text for a file: 64 hex digits.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// From the text of a file; `None` if it is not 64 hex digits (blanks around them are allowed).
    pub fn from_hex(text: &str) -> Option<Secret> {
        let text = text.trim().as_bytes();
        if text.len() != 2 * NONCE_BYTES {
            return None;
        }
        let mut bytes = [0u8; NONCE_BYTES];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            let digit = |c: u8| (c as char).to_digit(16).and_then(|d| u8::try_from(d).ok());
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Secret(bytes))
    }

    fn mac(&self, role: &[u8], hello: &Hello, welcome: &Welcome) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        mac.update(role);
        mac.update(&hello.nonce);
        mac.update(&welcome.nonce);
        mac.update(&welcome.server.to_le_bytes());
        let key = hello.key.to_string();
        mac.update(&(key.len() as u64).to_le_bytes());
        mac.update(key.as_bytes());
        mac.update(&[hello.purpose as u8]);
        Some(mac)
    }

    /// The proof of one end. All-zero (which proves nothing) only if the key has no length.
    pub fn prove(&self, end: End, hello: &Hello, welcome: &Welcome) -> [u8; PROOF_BYTES] {
        let mut proof = [0; PROOF_BYTES];
        if let Some(mac) = self.mac(end.role(), hello, welcome) {
            proof.copy_from_slice(&mac.finalize().into_bytes());
        }
        proof
    }

    /// Is `proof` that of the other end? Takes the same time whatever it is.
    pub fn accepts(&self, end: End, hello: &Hello, welcome: &Welcome, proof: &[u8]) -> bool {
        self.mac(end.role(), hello, welcome).is_some_and(|mac| mac.verify_slice(proof).is_ok())
    }
}

/// Whose proof it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Of who connected.
    Client,
    /// Of who accepted.
    Server,
}

impl End {
    fn role(self) -> &'static [u8] {
        match self {
            End::Client => b"forebay client",
            End::Server => b"forebay server",
        }
    }
}

/// Which secret a client knows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Key {
    /// That of the servers: acts as their owner.
    Server,
    /// That of a buffer, by its name: acts as the buffer's owner, on this buffer.
    Buffer(String),
    /// None: who it is is told by the kernel (Unix socket).
    Peer,
    /// None: who it is is told by a MUNGE credential in the [`Proof`].
    Munge,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Key::Server => f.write_str("server"),
            Key::Buffer(name) => write!(f, "buffer {name}"),
            Key::Peer => f.write_str("peer"),
            Key::Munge => f.write_str("munge"),
        }
    }
}

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum Purpose {
    /// Questions to the ledger.
    Ledger = 1,
    /// File-system calls of a session.
    Calls = 2,
    /// Recalls of a session: the server speaks first.
    Recalls = 3,
    /// One server to another.
    Servers = 4,
    /// Questions to the agent of a node.
    Node = 5,
}

/// First frame of who connects.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Version of the program, for messages.
    pub program: String,
    /// What for.
    pub purpose: Purpose,
    /// Which secret it knows.
    pub key: Key,
    /// Made for this connection.
    pub nonce: Nonce,
}

/// First frame of who accepts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// Version of the program, for messages.
    pub program: String,
    /// The server's identity, kept over restarts.
    pub server: u128,
    /// Counts the server's starts.
    pub incarnation: u64,
    /// Made for this connection.
    pub nonce: Nonce,
}

/// The client's proof.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Proof {
    /// HMAC; all zero with [`Key::Peer`] and [`Key::Munge`].
    pub proof: [u8; PROOF_BYTES],
    /// With [`Key::Munge`]: the credential. It carries the nonces and the server's identity, so that it
    /// fits no other connection, and a secret made for it, by which the server proves that it can read it.
    pub credential: Option<String>,
}

/// The server's proof, with [`Key::Munge`] by the secret that the credential carries; all zero with [`Key::Peer`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Accepted {
    /// HMAC.
    pub proof: [u8; PROOF_BYTES],
}

/// Why a connection ends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// Errno that fits.
    pub errno: i32,
    /// Why, in words.
    pub why: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Refusal {
    /// As the error of what was being done.
    pub fn into_error(self, what: &str) -> ControlError {
        let error = ControlError::new(what, None, &self.why).errno(self.errno);
        match self.hint {
            Some(hint) => error.hint(&hint),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(key: Key) -> Hello {
        Hello { program: "1".into(), purpose: Purpose::Calls, key, nonce: [3; NONCE_BYTES] }
    }

    fn welcome(nonce: u8) -> Welcome {
        Welcome { program: "1".into(), server: 9, incarnation: 1, nonce: [nonce; NONCE_BYTES] }
    }

    #[test]
    fn only_who_knows_the_secret_can_prove_it() {
        let (secret, other) = (Secret([1; 32]), Secret([2; 32]));
        let (hello, welcome) = (hello(Key::Buffer("a".into())), welcome(5));
        let proof = secret.prove(End::Client, &hello, &welcome);
        assert!(secret.accepts(End::Client, &hello, &welcome, &proof));
        assert!(!other.accepts(End::Client, &hello, &welcome, &proof));
        assert!(!secret.accepts(End::Server, &hello, &welcome, &proof), "reflected");
        assert!(!secret.accepts(End::Client, &hello, &welcome, &proof[..31]));
    }

    #[test]
    fn a_recorded_proof_is_of_no_use_elsewhere() {
        let secret = Secret([1; 32]);
        let first = hello(Key::Buffer("a".into()));
        let proof = secret.prove(End::Client, &first, &welcome(5));
        assert!(!secret.accepts(End::Client, &first, &welcome(6), &proof));
        assert!(!secret.accepts(End::Client, &hello(Key::Server), &welcome(5), &proof));
        let elsewhere = Hello { purpose: Purpose::Recalls, ..first };
        assert!(!secret.accepts(End::Client, &elsewhere, &welcome(5), &proof));
    }

    #[test]
    fn secrets_are_kept_as_text_and_never_printed() {
        let secret = Secret([0xab; 32]);
        assert_eq!(Secret::from_hex(&format!(" {}\n", secret.to_hex())), Some(secret.clone()));
        assert_eq!(Secret::from_hex("abc"), None);
        assert_eq!(Secret::from_hex(&"x".repeat(64)), None);
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }
}
