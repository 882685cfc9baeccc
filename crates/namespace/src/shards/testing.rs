//! What tests of several shards in one process see of a namespace, in builds with failpoints.

use super::{Coordinator, Patience};
use crate::Namespace;
use forebay_proto::{Caller, Errno, Ino, Result};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Who waits for other servers asks it with the number of its pauses, from 1 on, instead of letting time pass; it says
/// whether to go on waiting.
pub type OnPause = Rc<dyn Fn(u32) -> bool>;

thread_local! {
    /// The thread that finishes intents is not started: the test does its rounds.
    pub static BY_HAND: Cell<bool> = const { Cell::new(false) };
    /// What happens in a pause of this thread.
    pub static ON_PAUSE: RefCell<Option<OnPause>> = const { RefCell::new(None) };
}

/// Whether to go on after a pause, if this thread is in the hands of a test.
pub(super) fn pause(count: u32) -> Option<bool> {
    let on_pause = ON_PAUSE.with_borrow(Clone::clone);
    on_pause.map(|on_pause| on_pause(count))
}

/// What of operations over shards is not finished at one of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unfinished {
    /// Intents that participants have not applied.
    pub intents: usize,
    /// Parts that are prepared.
    pub prepared: usize,
    /// Numbers that are being worked at.
    pub working: usize,
    /// What a start found and did not settle yet.
    pub unsettled: usize,
    /// A name or directory is locked.
    pub holds: bool,
}

/// A shard, in the hands of a test. Made by [`Namespace::testing`].
pub struct Testing<'a>(&'a Arc<Namespace>);

impl Namespace {
    /// For tests of a buffer with several shards.
    pub fn testing(self: &Arc<Namespace>) -> Testing<'_> {
        Testing(self)
    }
}

impl Testing<'_> {
    fn shards(&self) -> &Coordinator {
        self.0.shards.as_ref().expect("a buffer with several shards")
    }

    /// Nobody waits for another shard.
    pub fn lose_patience(&self) {
        self.shards().set_patience(Duration::ZERO);
        self.0.stripes.set_patience(Duration::ZERO);
    }

    /// Settles what the start found.
    pub fn settle_start(&self) {
        self.shards().settle_start();
    }

    /// One round of the thread that finishes intents.
    pub fn finish_round(&self) -> Result<()> {
        self.shards().finish_round().map(drop)
    }

    /// All shards may get new inodes again.
    pub fn pass_over_none(&self) {
        self.shards().pass_over_none();
    }

    /// What is not finished here.
    pub fn unfinished(&self) -> Unfinished {
        self.shards().unfinished()
    }

    /// A rename with the patience of this shard, tried again while another shard is in the way.
    pub fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8])) -> Result<()> {
        let mut patience = Patience::new();
        loop {
            match self.0.names.rename(&Caller::root(), from, to, 0) {
                Err(Errno::ERESTART) => self.0.waits.pause(&mut patience)?,
                done => return done.map(drop),
            }
        }
    }
}
