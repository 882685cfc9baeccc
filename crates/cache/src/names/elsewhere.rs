//! Names of files whose data server is another server: what that one is to hear when they are removed or moved.

use super::super::data_servers::LinkChange;
use super::{At, Leaving, Names};
use forebay_proto::{Errno, Result};
use std::os::fd::AsFd;

impl Names {
    /// Removes a name of a file whose data server is another server; what that one is to hear of it.
    pub(crate) fn with_leaving_elsewhere(
        &self,
        leaving: &Leaving<'_>,
        (parent, name): At<'_>,
        remove: impl FnOnce() -> Result<()>,
    ) -> Result<LinkChange> {
        let ino = leaving.node.as_ref().map(|node| node.ino).ok_or(Errno::ESTALE)?;
        if leaving.last {
            self.nodes.removing(ino);
        }
        forebay_failpoint::step("a name of a file elsewhere is going");
        if let Err(error) = remove() {
            if leaving.last {
                self.nodes.settled(ino);
            }
            return Err(error);
        }
        forebay_failpoint::step("a name of a file elsewhere has gone");
        let after = leaving.inode.as_ref().and_then(|fd| self.pfs.stat_fd(fd.as_fd()).ok());
        self.nodes.unname(ino, parent, name);
        if leaving.last {
            self.nodes.removed(ino);
        }
        forebay_failpoint::step("its data server is to hear of it");
        let gone = Some((parent, name));
        let left = self.ownership.touched(leaving.client, ino, &leaving.stat, after.as_ref(), gone);
        Ok(LinkChange { removed: leaving.last, ..left })
    }

    /// What the data server of a file that got another name is to hear. The kernel of who renamed it knows; others
    /// look the old name up again.
    pub(crate) fn moved_elsewhere(&self, moved: &Leaving<'_>) -> Option<LinkChange> {
        let node = moved.node.as_ref().filter(|_| moved.is_elsewhere())?;
        let after = self.pfs.stat_fd(moved.inode.as_ref()?.as_fd()).ok();
        Some(self.ownership.touched(moved.client, node.ino, &moved.stat, after.as_ref(), None))
    }
}
