//! Where a new inode goes (`proto::layout::Placement`), and which servers a new buffer gets.
//!
//! `Spread`, and most directories: by the turn of their name (`proto::layout::placement_index`), so that
//! `rank.0`, `rank.1`, ... of one directory go round over the shards, and each directory begins at
//! another one. A mount's first directories go to its own node's shard: which ones these are the mount
//! counts (`client::remote::local_dir_quota`). A shard that said that it has
//! almost no space is passed over for a while, one that does not answer as well.

use crate::Moment;
use crate::changed::{self, Change};
use forebay_proto::attr::FileKind;
use forebay_proto::layout::{Layout, Placement, placement_index};
use forebay_proto::{Ino, ServerId, ShardId};
use std::time::Duration;

/// A shard has almost no space when less is free than this part of its capacity, or than
/// [`SHORT_BYTES`] (at most a quarter).
pub const SHORT_PART: u64 = 64;
/// See [`SHORT_PART`].
pub const SHORT_BYTES: u64 = 16 << 20;
/// How long a shard that has no space, or does not answer, is passed over.
pub const PASSED_OVER: Duration = Duration::from_secs(2);

/// Where the maker of an inode wants it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Where {
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
#[derive(Clone, Debug)]
pub struct PassedOver(Vec<Option<Moment>>);

impl PassedOver {
    /// None of so many.
    pub fn new(count: u16) -> PassedOver {
        PassedOver(vec![None; count.into()])
    }

    /// True if it had no space a moment ago, or did not answer.
    pub fn has(&self, shard: ShardId, now: Moment) -> bool {
        let until = self.0.get(usize::from(shard.0)).copied().flatten();
        until.is_some_and(|until| now < until)
    }

    /// It has no space, or does not answer.
    pub fn pass_over(&mut self, shard: ShardId, now: Moment) {
        if let Some(until) = self.0.get_mut(usize::from(shard.0)) {
            *until = Some(now + PASSED_OVER);
        }
    }

    /// All are there again.
    pub fn clear(&mut self) {
        self.0.fill(None);
    }
}

/// The shard that a new inode goes to if there is space.
pub fn choose_shard(
    layout: &Layout,
    (dir, name): (Ino, &[u8]),
    kind: FileKind,
    near: Option<ShardId>,
    count: u16,
) -> ShardId {
    let near = near.filter(|shard| shard.0 < count);
    let dealt = || {
        let turn = (placement_index(dir, name) % u64::from(count)) as u16;
        ShardId(if changed::is(Change::Placement) { count - 1 - turn } else { turn })
    };
    match (layout.placement, kind == FileKind::Dir) {
        (Placement::Local, _) | (Placement::Auto, false) => near.unwrap_or_else(dealt),
        (Placement::Directory, false) => dir.shard(),
        (Placement::Spread, _) | (Placement::Auto | Placement::Directory, true) => dealt(),
    }
}

/// The shards that a new inode may go to, the best first: all, but for those passed over, or the
/// best one that is not lost if that leaves none. `here`: the shard of the name.
pub fn shards(
    (layout, kind, place): (&Layout, FileKind, Where),
    name: (Ino, &[u8]),
    (here, count): (ShardId, u16),
    is_lost: impl Fn(ShardId) -> bool,
    is_passed_over: impl Fn(ShardId) -> bool,
) -> Vec<ShardId> {
    let at_near = Layout { placement: Placement::Local, ..*layout };
    let first = match place {
        Where::Here => return vec![here],
        Where::Own(near) if layout.placement == Placement::Auto => {
            choose_shard(&at_near, name, kind, near, count)
        }
        Where::Placed(near) | Where::Own(near) => choose_shard(layout, name, kind, near, count),
        Where::At(near) => choose_shard(&at_near, name, kind, near, count),
    };
    let all = (0..count).map(|n| ShardId((first.0 + n) % count));
    let there: Vec<ShardId> = all.filter(|shard| !is_lost(*shard)).collect();
    let some: Vec<ShardId> =
        there.iter().filter(|shard| !is_passed_over(**shard)).copied().collect();
    if some.is_empty() { there.into_iter().take(1).collect() } else { some }
}

/// True if new files had better go elsewhere.
pub fn has_almost_no_space(used_bytes: u64, capacity_bytes: u64) -> bool {
    let least = SHORT_BYTES.min(capacity_bytes / 4).max(capacity_bytes / SHORT_PART);
    capacity_bytes.saturating_sub(used_bytes) < least
}

/// The servers that a new buffer goes to, with the bytes that each has free: those with the most room, of equals in a
/// fixed order. `wanted`: how many, 0 for all. `None` if there are not so many.
pub fn choose_servers(
    mut free: Vec<(u64, ServerId)>,
    wanted: usize,
) -> Option<Vec<(u64, ServerId)>> {
    if wanted > free.len() {
        return None;
    }
    free.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    if wanted > 0 {
        free.truncate(wanted);
    }
    Some(free)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: Layout = Layout { placement: Placement::Spread, ..Layout::WHOLE_LOCAL };

    #[test]
    fn directories_begin_at_different_shards() {
        let mut have = vec![0; 4];
        for dir in 0..400 {
            let shard = choose_shard(&FILES, (Ino(dir), b"out"), FileKind::File, None, 4);
            have[usize::from(shard.0)] += 1;
        }
        assert!(have.iter().all(|n| (60..=140).contains(n)), "{have:?}");
    }

    #[test]
    fn placements_say_where() {
        let at = |placement, kind, near| {
            let layout = Layout { placement, ..Layout::WHOLE_LOCAL };
            let dir = Ino::new(ShardId(2), 9);
            choose_shard(&layout, (dir, b"name"), kind, near, 4)
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

    #[test]
    fn shards_without_room_come_last_and_lost_ones_never() {
        let name = (Ino::new(ShardId(0), 9), &b"name"[..]);
        let ask = |lost: &[u16], full: &[u16]| {
            let what = (&FILES, FileKind::File, Where::At(Some(ShardId(1))));
            let all = shards(
                what,
                name,
                (ShardId(0), 4),
                |shard| lost.contains(&shard.0),
                |shard| full.contains(&shard.0),
            );
            all.into_iter().map(|shard| shard.0).collect::<Vec<u16>>()
        };
        assert_eq!(ask(&[], &[]), [1, 2, 3, 0]);
        assert_eq!(ask(&[2], &[1]), [3, 0]);
        assert_eq!(ask(&[1], &[0, 1, 2, 3]), [2], "somebody has to say ENOSPC");
    }

    #[test]
    fn a_shard_is_passed_over_for_a_while() {
        let mut passed = PassedOver::new(2);
        passed.pass_over(ShardId(1), Moment::from_ms(0));
        passed.pass_over(ShardId(9), Moment::from_ms(0));
        assert!(passed.has(ShardId(1), Moment::from_ms(1_999)));
        assert!(!passed.has(ShardId(1), Moment::from_ms(2_000)));
        assert!(!passed.has(ShardId(0), Moment::from_ms(0)));
    }

    #[test]
    fn a_buffer_gets_the_servers_with_the_most_room() {
        let free = || vec![(5, ServerId(1)), (9, ServerId(2)), (9, ServerId(3)), (1, ServerId(4))];
        let two = vec![(9, ServerId(2)), (9, ServerId(3))];
        assert_eq!(choose_servers(free(), 2), Some(two));
        assert_eq!(choose_servers(free(), 0).unwrap().len(), 4);
        assert_eq!(choose_servers(free(), 5), None);
    }

    #[test]
    fn a_shard_has_almost_no_space_at_a_part_of_any_capacity() {
        let gib = 1 << 30;
        assert!(!has_almost_no_space(3 * gib, 4 * gib));
        assert!(has_almost_no_space(4 * gib - (64 << 20) + 1, 4 * gib));
        assert!(!has_almost_no_space(48 << 20, 64 << 20));
        assert!(has_almost_no_space((48 << 20) + 1, 64 << 20));
    }
}
