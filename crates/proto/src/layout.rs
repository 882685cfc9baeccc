//! Where files lie: which shard a new one goes to, and how its bytes are spread over objects
//! (round robin, as in Lustre).
//!
//! A file of one object has it where its inode is: all about it is on one server. Only a file of
//! several objects has them on other servers than its inode.

use crate::ids::ShardId;
use serde::{Deserialize, Serialize};

/// Where the inodes of new files (and, but for `Local`, of new directories) of a directory go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[repr(u8)]
pub enum Placement {
    /// Files to the server on the maker's own node; if it has none, as `Spread`. Directories by
    /// the hash of parent and name.
    #[default]
    Auto = 0,
    /// Files and directories to the server on the maker's own node; if it has none, as `Spread`.
    Local = 1,
    /// Files round robin over all servers, directories by hash.
    Spread = 2,
    /// Files to the server of their directory, directories by hash.
    Directory = 3,
}

impl Placement {
    /// From its number on flash.
    pub const fn from_byte(byte: u8) -> Option<Placement> {
        match byte {
            0 => Some(Placement::Auto),
            1 => Some(Placement::Local),
            2 => Some(Placement::Spread),
            3 => Some(Placement::Directory),
            _ => None,
        }
    }
}

/// Layout of one file; of a directory, what new files in it get.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Layout {
    /// Bytes of one stripe unit; ignored when `stripe_count` is 1.
    pub stripe_size_bytes: u32,
    /// Objects of the file. 1 = a whole file (same offsets as the file itself), its object being
    /// where its inode is. Of a directory, 0 = one on each server.
    pub stripe_count: u16,
    /// Shard of a striped file's first object; the next ones follow in the order of the shards.
    pub first: ShardId,
    /// Of a directory: where new files go.
    pub placement: Placement,
}

impl Layout {
    /// A file whose only object has the file's own offsets.
    pub const WHOLE_LOCAL: Layout = Layout {
        stripe_size_bytes: 1 << 20,
        stripe_count: 1,
        first: ShardId(0),
        placement: Placement::Auto,
    };

    /// True if the kernel can be given the object itself (passthrough).
    pub const fn is_whole(&self) -> bool {
        self.stripe_count == 1
    }

    /// `(stripe index, offset in that object)` of a byte of the file.
    pub const fn locate(&self, offset: u64) -> (u32, u64) {
        if self.is_whole() {
            return (0, offset);
        }
        let size = self.stripe_size_bytes as u64;
        let count = self.stripe_count as u64;
        let unit = offset / size;
        ((unit % count) as u32, (unit / count) * size + offset % size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_go_round_robin() {
        let l = Layout { stripe_size_bytes: 10, stripe_count: 3, ..Layout::WHOLE_LOCAL };
        assert_eq!(l.locate(0), (0, 0));
        assert_eq!(l.locate(29), (2, 9));
        assert_eq!(l.locate(30), (0, 10));
        assert_eq!(l.locate(45), (1, 15));
        assert_eq!(Layout::WHOLE_LOCAL.locate(1 << 40), (0, 1 << 40));
    }
}
