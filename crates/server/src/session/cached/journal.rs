//! Changes of names on the PFS, written down before and after: the PFS keeps no record of who asked for what. `replay` reads it.

use crate::session::reply::CallContext;
use forebay_failpoint::step;
use forebay_namespace::Namespace;
use forebay_proto::{Ino, Result};
use forebay_store::record::Answered;
use std::sync::Arc;

/// A number that means nothing: what is moved or removed is not known to any mount.
pub(super) const NOTHING: Ino = Ino(0);

/// Writes them down, in the log of the cache's flash.
pub(super) struct ChangeJournal {
    namespace: Arc<Namespace>,
}

impl ChangeJournal {
    pub(super) fn new(namespace: &Arc<Namespace>) -> ChangeJournal {
        ChangeJournal { namespace: Arc::clone(namespace) }
    }

    /// Makes a change of names on the PFS, written down before and after. `goes`: what it moves or
    /// removes.
    pub(super) fn noted<T>(
        &self,
        cx: &CallContext<'_>,
        goes: Ino,
        change: impl FnOnce() -> Result<T>,
        made: impl FnOnce(&T) -> Ino,
    ) -> Result<T> {
        self.note(cx, Answered::Begun(goes))?;
        step("cache: a change of names is written down");
        let changed = change();
        step("cache: a change of names is made");
        let what = changed.as_ref().map_or(Answered::Undone, |done| Answered::Made(made(done)));
        self.note(cx, what)?;
        step("cache: a change of names is done");
        changed
    }

    /// Writes down how far a call is.
    pub(super) fn note(&self, cx: &CallContext<'_>, what: Answered) -> Result<()> {
        self.namespace.answers().note(&cx.caller, what)
    }

    /// True if the bytes of an append that was cut are there.
    pub(super) fn has_appended(&self, cx: &CallContext<'_>, object: Ino, at: u64) -> Result<bool> {
        self.namespace.answers().has_appended(object, at, cx.payload)
    }
}
