//! Where a new inode goes (`proto::layout::Placement`).
//!
//! `Spread`, and most directories: by the turn of their name (`proto::layout::turn`), so that
//! `rank.0`, `rank.1`, ... of one directory go round over the shards, and each directory begins at
//! another one. A mount's first directories go to its own node's shard: which ones these are the mount
//! counts (`client::remote::own_dirs`). A shard that said that it has
//! almost no space is passed over for a while, one that does not answer as well.

use super::Shards;
use crate::namespace::Namespace;
use forebay_proto::attr::FileKind;
use forebay_proto::layout::{Layout, Placement, turn};
use forebay_proto::{Ino, ShardId};
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// A shard has almost no space when less is free than this part of its capacity, or than
/// [`SHORT_BYTES`] (at most a quarter).
const SHORT_PART: u64 = 64;
const SHORT_BYTES: u64 = 16 << 20;
/// How long a shard that has no space, or does not answer, is passed over.
const PASSED_OVER: Duration = Duration::from_secs(2);
/// How long our own answer to that counts.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Where the maker of an inode wants it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Where {
    /// With its name.
    Here,
    /// As its directory says; the shard on the maker's node, if there is one.
    Placed(Option<ShardId>),
    /// A directory: at the shard on the maker's node, unless its directory says more than `Auto`.
    Own(Option<ShardId>),
    /// At this shard whatever the directory says; without one, by the turn of its name.
    At(Option<ShardId>),
}

/// Which shards are passed over now.
pub(crate) struct Spaces {
    passed_over_until: Mutex<Vec<Option<Instant>>>,
    own: Mutex<Option<(Instant, bool)>>,
}

impl Spaces {
    pub(super) fn new(count: u16) -> Spaces {
        Spaces { passed_over_until: Mutex::new(vec![None; count.into()]), own: Mutex::new(None) }
    }

    fn is_passed_over(&self, shard: ShardId) -> bool {
        let until = self.passed_over_until.lock().get(usize::from(shard.0)).copied().flatten();
        until.is_some_and(|until| Instant::now() < until)
    }

    /// All are there again.
    #[cfg(test)]
    pub(super) fn pass_over_none(&self) {
        self.passed_over_until.lock().fill(None);
    }

    /// It has no space, or does not answer.
    pub(super) fn pass_over(&self, shard: ShardId) {
        if let Some(until) = self.passed_over_until.lock().get_mut(usize::from(shard.0)) {
            *until = Some(Instant::now() + PASSED_OVER);
        }
    }
}

/// The shard that a new inode goes to if there is space.
fn wanted(
    layout: &Layout,
    (dir, name): (Ino, &[u8]),
    kind: FileKind,
    near: Option<ShardId>,
    count: u16,
) -> ShardId {
    let near = near.filter(|shard| shard.0 < count);
    let dealt = || ShardId((turn(dir, name) % u64::from(count)) as u16);
    match (layout.placement, kind == FileKind::Dir) {
        (Placement::Local, _) | (Placement::Auto, false) => near.unwrap_or_else(dealt),
        (Placement::Directory, false) => dir.shard(),
        (Placement::Spread, _) | (Placement::Auto | Placement::Directory, true) => dealt(),
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
        let Some(shards) = &self.shards else { return vec![self.shard] };
        let count = shards.count();
        let at_near = Layout { placement: Placement::Local, ..*layout };
        let first = match place {
            Where::Here => return vec![self.shard],
            Where::Own(near) if layout.placement == Placement::Auto => {
                wanted(&at_near, (dir, name), kind, near, count)
            }
            Where::Placed(near) | Where::Own(near) => {
                wanted(layout, (dir, name), kind, near, count)
            }
            Where::At(near) => wanted(&at_near, (dir, name), kind, near, count),
        };
        let all = (0..count).map(|n| ShardId((first.0 + n) % count));
        let there: Vec<ShardId> = all.filter(|shard| !shards.is_lost(*shard)).collect();
        let has_room = |shard: &&ShardId| !self.is_passed_over(shards, **shard);
        let some: Vec<ShardId> = there.iter().filter(has_room).copied().collect();
        if some.is_empty() { there.into_iter().take(1).collect() } else { some }
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
        match shard == self.shard {
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
        let short = self.space().is_ok_and(|(used, capacity)| {
            let least = SHORT_BYTES.min(capacity / 4).max(capacity / SHORT_PART);
            capacity.saturating_sub(used) < least
        });
        *own = Some((Instant::now(), short));
        short
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: Layout = Layout { placement: Placement::Spread, ..Layout::WHOLE_LOCAL };

    #[test]
    fn directories_begin_at_different_shards() {
        let mut have = vec![0; 4];
        for dir in 0..400 {
            let shard = wanted(&FILES, (Ino(dir), b"out"), FileKind::File, None, 4);
            have[usize::from(shard.0)] += 1;
        }
        assert!(have.iter().all(|n| (60..=140).contains(n)), "{have:?}");
    }

    #[test]
    fn placements_say_where() {
        let at = |placement, kind, near| {
            let layout = Layout { placement, ..Layout::WHOLE_LOCAL };
            let dir = Ino::new(ShardId(2), 9);
            wanted(&layout, (dir, b"name"), kind, near, 4)
        };
        let (near, file, dir) = (Some(ShardId(1)), FileKind::File, FileKind::Dir);
        let dealt = at(Placement::Spread, file, near);
        assert_eq!(at(Placement::Auto, file, near), ShardId(1));
        assert_eq!(at(Placement::Auto, file, None), dealt);
        assert_eq!(at(Placement::Auto, file, Some(ShardId(9))), dealt, "no such shard");
        assert_eq!(at(Placement::Auto, dir, near), dealt);
        assert_eq!(at(Placement::Local, dir, near), ShardId(1));
        assert_eq!(at(Placement::Directory, file, near), ShardId(2));
        assert_eq!(at(Placement::Directory, dir, near), dealt);
    }
}
