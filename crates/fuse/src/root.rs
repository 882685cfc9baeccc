//! The root of a mount. The kernel knows it as node 1, whatever inode of the file system it is: a mount may
//! show a directory below the file system's own root ([`forebay_proto::FileSystem::root`]).
//!
//! Invariant: numbers are changed where bytes of the kernel are read and written, and nowhere else: behind that all are
//! the file system's.

use forebay_proto::Ino;

/// Between the kernel's numbers and the file system's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Root(Ino);

impl Root {
    /// The mount shows what is below this directory.
    pub(crate) fn new(ino: Ino) -> Root {
        Root(ino)
    }

    /// What the kernel asks for.
    pub(crate) fn ino_of(self, node: u64) -> Ino {
        if node == Ino::ROOT.0 { self.0 } else { Ino(node) }
    }

    /// What the kernel is told.
    pub(crate) fn node_of(self, ino: Ino) -> u64 {
        if ino == self.0 { Ino::ROOT.0 } else { ino.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_root_has_two_numbers() {
        let root = Root::new(Ino(77));
        assert_eq!((root.ino_of(1), root.node_of(Ino(77))), (Ino(77), 1));
        assert_eq!((root.ino_of(78), root.node_of(Ino(78))), (Ino(78), 78));
        let whole = Root::new(Ino::ROOT);
        assert_eq!((whole.ino_of(1), whole.node_of(Ino::ROOT)), (Ino::ROOT, 1));
    }
}
