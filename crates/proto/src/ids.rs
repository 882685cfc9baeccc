//! Identifiers. Each is a newtype so that an inode number can never be passed
//! where a log position is meant.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Number of low bits of an [`Ino`] that count inodes inside one shard.
/// The 16 bits above them name the shard that owns the inode.
pub const INO_SHARD_SHIFT: u32 = 48;

/// A part of the namespace, owned by one server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct ShardId(pub u16);

/// A server of a pool: random, chosen at its first start, kept. As text 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServerId(pub u128);

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerId({self})")
    }
}

impl std::str::FromStr for ServerId {
    type Err = String;

    fn from_str(text: &str) -> Result<ServerId, Self::Err> {
        let digits = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        u128::from_str_radix(text, 16)
            .ok()
            .filter(|_| digits)
            .map(ServerId)
            .ok_or_else(|| format!("{text:?} is not the identity of a server: 32 hex digits"))
    }
}

impl TryFrom<String> for ServerId {
    type Error = String;

    fn try_from(text: String) -> Result<ServerId, Self::Error> {
        text.parse()
    }
}

impl From<ServerId> for String {
    fn from(id: ServerId) -> String {
        id.to_string()
    }
}

/// An inode number: shard in the top 16 bits, a never reused counter below.
///
/// Because numbers are never reused, a (FUSE) generation is always zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory of every buffer, as the kernel's FUSE expects it.
    pub const ROOT: Ino = Ino(1);

    /// Builds a number from its shard and its counter (counter < 2^48).
    pub const fn new(shard: ShardId, counter: u64) -> Ino {
        Ino(((shard.0 as u64) << INO_SHARD_SHIFT) | (counter & ((1 << INO_SHARD_SHIFT) - 1)))
    }

    /// The shard that owns this inode.
    pub const fn shard(self) -> ShardId {
        ShardId((self.0 >> INO_SHARD_SHIFT) as u16)
    }
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The part of one file that one server holds: `(file, stripe index)`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct ObjectId {
    /// The file.
    pub ino: Ino,
    /// Index of the object in the file's layout; 0 for a whole local file. Logs and their index have numbers of their own.
    pub stripe: u32,
}

impl ObjectId {
    /// The only object of a whole local file.
    pub const fn whole(ino: Ino) -> ObjectId {
        ObjectId { ino, stripe: 0 }
    }

    /// One of the two places of the index of a file that is written as logs.
    pub const fn log_index(ino: Ino, number: u64) -> ObjectId {
        ObjectId { ino, stripe: LOG_OBJECTS + (number % 2) as u32 }
    }

    /// A log of such a file; `None` for a number that cannot be.
    pub const fn log(ino: Ino, log: u32) -> Option<ObjectId> {
        match log {
            1..LOGS_MAX => Some(ObjectId { ino, stripe: LOG_OBJECTS + 1 + log }),
            _ => None,
        }
    }

    /// The number of the log that it is, if it is one.
    pub const fn as_log(self) -> Option<u32> {
        match self.stripe.checked_sub(LOG_OBJECTS + 1) {
            Some(log @ 1..LOGS_MAX) => Some(log),
            _ => None,
        }
    }
}

/// Objects from this one on are those of logs: two places for the index, then the logs. Stripes are far below.
const LOG_OBJECTS: u32 = 1 << 31;
/// Numbers of logs are below this.
const LOGS_MAX: u32 = 1 << 30;

/// A position in a directory listing. Cookies of real entries grow in order of
/// insertion and are never reused in a directory, so a listing that runs while
/// the directory changes shows each surviving entry exactly once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Cookie(pub u64);

impl Cookie {
    /// Before the first entry.
    pub const START: Cookie = Cookie(0);
    /// The entry `.`.
    pub const DOT: Cookie = Cookie(1);
    /// The entry `..`.
    pub const DOTDOT: Cookie = Cookie(2);
    /// The cookie of the first real entry of a new directory.
    pub const FIRST: Cookie = Cookie(3);
}

/// Log sequence number: the position of one acknowledged operation in a shard's
/// operation log. Grows by one for each record, never reused.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize,
)]
pub struct Lsn(pub u64);

/// A staging plan of one buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct PlanId(pub u64);

impl fmt::Display for PlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl std::str::FromStr for PlanId {
    type Err = String;

    fn from_str(text: &str) -> Result<PlanId, Self::Err> {
        let expected = || format!("{text:?} is not the number of a plan");
        text.parse().map(PlanId).map_err(|_| expected())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_named_by_32_digits() {
        let id = ServerId(0xab);
        assert_eq!(id.to_string().parse(), Ok(id));
        for bad in ["ab", "", "+0000000000000000000000000000000", "zz"] {
            assert!(bad.parse::<ServerId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn ino_carries_its_shard() {
        let ino = Ino::new(ShardId(7), 42);
        assert_eq!(ino.shard(), ShardId(7));
        assert_eq!(ino.0 & 0xffff_ffff_ffff, 42);
        assert_eq!(Ino::ROOT.shard(), ShardId(0));
    }
}
