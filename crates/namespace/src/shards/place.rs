//! Where a new inode goes: `forebay_policy::placement` decides it, from what this shard knows of the others.

use super::Shards;
use crate::Namespace;
use forebay_policy::Origin;
use forebay_policy::placement::{self, PassedOver};
use forebay_proto::attr::FileKind;
use forebay_proto::layout::Layout;
use forebay_proto::{Ino, ShardId};
use parking_lot::Mutex;
use std::time::{Duration, Instant};

pub use forebay_policy::placement::Where;

/// How long our own answer to whether there is space counts.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Which shards are passed over now.
pub(crate) struct Spaces {
    passed_over: Mutex<PassedOver>,
    own: Mutex<Option<(Instant, bool)>>,
    origin: Origin,
}

impl Spaces {
    pub(super) fn new(count: u16) -> Spaces {
        Spaces {
            passed_over: Mutex::new(PassedOver::new(count)),
            own: Mutex::new(None),
            origin: Origin::new(Instant::now()),
        }
    }

    fn is_passed_over(&self, shard: ShardId) -> bool {
        self.passed_over.lock().has(shard, self.origin.moment(Instant::now()))
    }

    /// All are there again.
    #[cfg(any(debug_assertions, feature = "failpoints"))]
    pub(super) fn pass_over_none(&self) {
        self.passed_over.lock().clear();
    }

    /// It has no space, or does not answer.
    pub(super) fn pass_over(&self, shard: ShardId) {
        self.passed_over.lock().pass_over(shard, self.origin.moment(Instant::now()));
    }
}

impl Namespace {
    /// The shards that a new inode may go to, the best first: all, but for those passed over, or the
    /// best one that is not lost if that leaves none.
    pub(crate) fn places(
        &self,
        layout: &Layout,
        (dir, name): (Ino, &[u8]),
        kind: FileKind,
        place: Where,
    ) -> Vec<ShardId> {
        let Some(shards) = &self.shards else { return vec![self.records.shard()] };
        placement::shards(
            (layout, kind, place),
            (dir, name),
            (self.records.shard(), shards.count()),
            |shard| shards.is_lost(shard),
            |shard| self.is_passed_over(shards, shard),
        )
    }

    /// The layout of a new file: on servers that are not gone for good.
    pub(crate) fn avoid_lost(&self, layout: Layout) -> Layout {
        match &self.shards {
            Some(shards) if layout.is_striped() => {
                layout.avoiding(shards.count(), |shard| shards.is_lost(shard))
            }
            _ => layout,
        }
    }

    /// A shard has no space, or does not answer: it is not tried for a while.
    pub(crate) fn pass_over(&self, shard: ShardId) {
        if let Some(shards) = &self.shards {
            shards.place.pass_over(shard);
        }
    }

    fn is_passed_over(&self, shards: &Shards, shard: ShardId) -> bool {
        match shard == self.records.shard() {
            true => self.has_almost_no_space(),
            false => shards.place.is_passed_over(shard),
        }
    }

    /// True if new files had better go elsewhere.
    pub(super) fn has_almost_no_space(&self) -> bool {
        let Some(shards) = &self.shards else { return false };
        let mut own = shards.place.own.lock();
        if let Some((when, short)) = *own
            && when.elapsed() < LOOK_AGAIN
        {
            return short;
        }
        let space = self.space.bytes();
        let short =
            space.is_ok_and(|(used, capacity)| placement::has_almost_no_space(used, capacity));
        *own = Some((Instant::now(), short));
        short
    }
}
