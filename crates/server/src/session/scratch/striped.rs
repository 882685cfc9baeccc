//! Which files are striped, and opens of them.
//!
//! Mounts write the objects of striped files at their servers ([`super::objects`]). So
//! a session that has a striped file open for writing is entered, at the file's inode, like one
//! whose kernel has an object open itself: it may change the file without asking, and nobody else
//! is leased its attributes (`leases`).

use crate::session::Session;
use crate::session::changes::Changes;
use crate::session::grants::Grants;
use crate::session::stack::Stack;
use forebay_lease::leases::Subject;
use forebay_namespace::Namespace;
use forebay_proto::Ino;
use forebay_proto::layout::Layout;
use forebay_proto::net::answer::StripedOpen;
use std::sync::Arc;

/// The opens.
pub(super) struct StripedOpens {
    namespace: Arc<Namespace>,
    grants: Arc<Grants>,
    changes: Arc<Changes>,
}

impl StripedOpens {
    pub(super) fn new(stack: &Stack) -> StripedOpens {
        StripedOpens {
            namespace: Arc::clone(&stack.namespace),
            grants: Arc::clone(&stack.grants),
            changes: Arc::clone(&stack.changes),
        }
    }

    /// The layout of a file, if it is striped.
    pub(super) fn layout(&self, ino: Ino) -> Option<Layout> {
        if self.namespace.stripes().server_count() < 2 {
            return None;
        }
        self.namespace.attrs().layout(ino).ok().filter(Layout::is_striped)
    }

    /// Enters an open of a striped file. Those that write come in here before they are answered, and
    /// after the leases of others were recalled.
    pub(super) fn opened(
        &self,
        session: &Session,
        ino: Ino,
        layout: Layout,
        writes: bool,
    ) -> StripedOpen {
        if writes {
            self.grants.opened_locally(session, ino);
        }
        StripedOpen { layout, writes, kills: writes && self.namespace.data().has_privileges(ino) }
    }

    /// Attributes of a striped file were changed. Mounts that write it ask before their next write whether
    /// something is to be taken off; they need no lease to be told.
    pub(super) fn tell_writers(&self, session: &Session, ino: Ino) {
        if self.layout(ino).is_some() && self.namespace.data().has_privileges(ino) {
            // This one knows.
            let mut writers = self.grants.writers(ino);
            writers.retain(|id| *id != session.id());
            let told = writers.into_iter().map(|id| (id, vec![Subject::Attrs(ino)])).collect();
            self.changes.recall(&told);
        }
    }

    /// No kernel changes the object itself meanwhile. Who has a striped file open changes what is in
    /// it, but not where appends go and what a new size leaves.
    pub(super) fn changes_alone(&self, ino: Ino) -> bool {
        self.layout(ino).is_some() || !self.grants.is_open_locally(ino)
    }
}

/// What a striped file was opened for.
pub(super) fn open_writes(open_flags: u32) -> bool {
    open_flags as i32 & libc::O_ACCMODE != libc::O_RDONLY
}
