//! Where the bytes of a file lie: round robin over objects, as in Lustre.

use serde::{Deserialize, Serialize};

/// Layout of one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Layout {
    /// Bytes of one stripe unit; ignored when `stripe_count` is 1.
    pub stripe_size_bytes: u32,
    /// Objects of the file. 1 = a whole local file (same offsets as the file itself).
    pub stripe_count: u16,
}

impl Layout {
    /// A file whose only object has the file's own offsets.
    pub const WHOLE_LOCAL: Layout = Layout { stripe_size_bytes: 1 << 20, stripe_count: 1 };

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
        let l = Layout { stripe_size_bytes: 10, stripe_count: 3 };
        assert_eq!(l.locate(0), (0, 0));
        assert_eq!(l.locate(29), (2, 9));
        assert_eq!(l.locate(30), (0, 10));
        assert_eq!(l.locate(45), (1, 15));
        assert_eq!(Layout::WHOLE_LOCAL.locate(1 << 40), (0, 1 << 40));
    }
}
