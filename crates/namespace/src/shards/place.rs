//! Where a new inode goes: `forebay_policy::placement` decides it, from what this shard knows of the others.

use super::links::ShardLinks;
use crate::base::Base;
use crate::space::Space;
use forebay_policy::placement::{self, PassedOver};
use forebay_policy::{Moment, Origin};
use forebay_proto::attr::FileKind;
use forebay_proto::layout::Layout;
use forebay_proto::{Ino, ShardId};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use forebay_policy::placement::Where;

/// How long our own answer to whether there is space counts.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Where new inodes go.
pub(crate) struct Placement {
    mine: ShardId,
    /// `None` in a buffer of one shard.
    links: Option<Arc<ShardLinks>>,
    space: Arc<Space>,
    /// Which shards are passed over now.
    passed_over: Mutex<PassedOver>,
    own: Mutex<Option<(Instant, bool)>>,
    origin: Origin,
}

impl Placement {
    /// Among the shards of `links`.
    pub(crate) fn new(base: &Base, links: Option<Arc<ShardLinks>>) -> Placement {
        let count = links.as_ref().map_or(1, |links| links.count());
        Placement {
            mine: base.records.shard(),
            links,
            space: Arc::clone(&base.space),
            passed_over: Mutex::new(PassedOver::new(count)),
            own: Mutex::new(None),
            origin: Origin::new(Instant::now()),
        }
    }

    fn now(&self) -> Moment {
        self.origin.moment(Instant::now())
    }

    /// All are there again.
    #[cfg(any(debug_assertions, feature = "failpoints"))]
    pub(super) fn pass_over_none(&self) {
        self.passed_over.lock().clear();
    }

    /// The shards that a new inode may go to, the best first: all, but for those passed over, or the
    /// best one that is not lost if that leaves none.
    pub(crate) fn places(
        &self,
        layout: &Layout,
        (dir, name): (Ino, &[u8]),
        kind: FileKind,
        place: Where,
    ) -> Vec<ShardId> {
        let Some(links) = &self.links else { return vec![self.mine] };
        placement::shards(
            (layout, kind, place),
            (dir, name),
            (self.mine, links.count()),
            |shard| links.is_lost(shard),
            |shard| self.is_passed_over(shard),
        )
    }

    /// The layout of a new file: on servers that are not gone for good.
    pub(crate) fn avoid_lost(&self, layout: Layout) -> Layout {
        match &self.links {
            Some(links) if layout.is_striped() => {
                layout.avoiding(links.count(), |shard| links.is_lost(shard))
            }
            _ => layout,
        }
    }

    /// A shard has no space, or does not answer: it is not tried for a while.
    pub(crate) fn pass_over(&self, shard: ShardId) {
        self.passed_over.lock().pass_over(shard, self.now());
    }

    fn is_passed_over(&self, shard: ShardId) -> bool {
        match shard == self.mine {
            true => self.has_almost_no_space(),
            false => self.passed_over.lock().has(shard, self.now()),
        }
    }

    /// True if new files had better go elsewhere.
    pub(super) fn has_almost_no_space(&self) -> bool {
        if self.links.is_none() {
            return false;
        }
        let mut own = self.own.lock();
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
