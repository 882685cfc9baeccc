//! Files that were given out to programs as descriptors.
//!
//! Invariant: a file is entered before its descriptor is opened and is *pending* until that was sent: from then on the
//! kernel's own count of open files tells, as a descriptor under way in a socket is open too. The file system's
//! reference, one for each entry, is the caller's to take before and to give back after.

use forebay_proto::Ino;
use parking_lot::Mutex;
use std::collections::HashMap;

/// Locks that the table is spread over.
const SHARDS: usize = 16;
/// Most files in one shard; when it is full, all of it are looked at.
const MAX_PER_SHARD: usize = 512;

/// A name in a directory.
pub(super) type Named = (Ino, Box<[u8]>);

#[derive(Default)]
struct File {
    /// The name that it was opened by last, in which directory.
    name: Option<Named>,
    /// A descriptor was given out by which attributes change.
    changes: bool,
    /// The kernel believes no attributes of it since.
    recalled: bool,
    /// Descriptors that are being given out.
    pending: u32,
}

/// What became of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// It was not given out.
    None,
    /// Nobody has it any more: the caller gives the reference back.
    Over,
    /// Somebody has it.
    Goes,
}

/// What a file that is about to be given out was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Before {
    /// It was in the table: it has its reference already.
    pub(super) given: bool,
    /// Its attributes could change, and the kernel believes none of them.
    pub(super) recalled: bool,
}

/// The table.
pub(super) struct Given([Mutex<HashMap<Ino, File>>; SHARDS]);

impl Given {
    pub(super) fn new() -> Given {
        Given(std::array::from_fn(|_| Mutex::default()))
    }

    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, File>> {
        &self.0[(ino.0 ^ (ino.0 >> 48)) as usize % SHARDS]
    }

    pub(super) fn has(&self, ino: Ino) -> bool {
        self.shard(ino).lock().contains_key(&ino)
    }

    pub(super) fn may_change(&self, ino: Ino) -> bool {
        self.shard(ino).lock().get(&ino).is_some_and(|file| file.changes)
    }

    /// The name that a file was opened by last, in which directory.
    pub(super) fn name(&self, ino: Ino) -> Option<Named> {
        self.shard(ino).lock().get(&ino)?.name.clone()
    }

    /// A file that was entered has this name.
    pub(super) fn set_name(&self, ino: Ino, dir: Ino, name: &[u8]) {
        if let Some(file) = self.shard(ino).lock().get_mut(&ino) {
            file.name = Some((dir, name.into()));
        }
    }

    /// A file is about to be given out, pending until [`Given::sent`]. `None`: there are too many, and all are in
    /// use. Those that are not are handed to `over`.
    pub(super) fn enter(
        &self,
        ino: Ino,
        changes: bool,
        in_use: impl Fn(Ino) -> bool,
        mut over: impl FnMut(Ino),
    ) -> Option<Before> {
        let mut ended = Vec::new();
        let mut shard = self.shard(ino).lock();
        if shard.len() >= MAX_PER_SHARD && !shard.contains_key(&ino) {
            shard.retain(|&ino, file| {
                let keep = file.pending > 0 || in_use(ino);
                if !keep {
                    ended.push(ino);
                }
                keep
            });
        }
        let before = if shard.len() >= MAX_PER_SHARD && !shard.contains_key(&ino) {
            None
        } else {
            let known = shard.contains_key(&ino);
            let file = shard.entry(ino).or_default();
            let before = Before { given: known, recalled: file.recalled };
            file.changes |= changes;
            file.pending += 1;
            Some(before)
        };
        drop(shard);
        ended.into_iter().for_each(&mut over);
        before
    }

    /// The kernel believes no attributes of a file that was entered.
    pub(super) fn recalled(&self, ino: Ino) {
        if let Some(file) = self.shard(ino).lock().get_mut(&ino) {
            file.recalled = true;
        }
    }

    /// A descriptor has gone, or will not.
    pub(super) fn sent(&self, ino: Ino) {
        if let Some(file) = self.shard(ino).lock().get_mut(&ino) {
            file.pending = file.pending.saturating_sub(1);
        }
    }

    /// Takes a file out if nobody has it.
    pub(super) fn take_if_unused(&self, ino: Ino, in_use: impl FnOnce() -> bool) -> Use {
        let mut shard = self.shard(ino).lock();
        match shard.get(&ino) {
            None => Use::None,
            Some(file) if file.pending > 0 || in_use() => Use::Goes,
            Some(_) => {
                shard.remove(&ino);
                Use::Over
            }
        }
    }

    /// All that were given out and not taken out.
    pub(super) fn all(&self) -> Vec<Ino> {
        self.0.iter().flat_map(|s| s.lock().keys().copied().collect::<Vec<_>>()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_under_way_is_in_use_whatever_the_kernel_says() {
        let given = Given::new();
        let ino = Ino(9);
        let before = given.enter(ino, true, |_| false, |_| {}).unwrap();
        assert_eq!(before, Before { given: false, recalled: false });
        assert_eq!(given.take_if_unused(ino, || false), Use::Goes);
        given.sent(ino);
        assert_eq!(given.take_if_unused(ino, || true), Use::Goes);
        assert!(given.may_change(ino));
        assert_eq!(given.take_if_unused(ino, || false), Use::Over);
        assert_eq!(given.take_if_unused(ino, || false), Use::None);
    }

    #[test]
    fn the_table_is_bounded_and_lets_go_of_what_nobody_has() {
        let given = Given::new();
        let many = (MAX_PER_SHARD * SHARDS) as u64;
        for ino in 0..many {
            assert!(given.enter(Ino(ino), false, |_| true, |_| {}).is_some());
            given.sent(Ino(ino));
        }
        assert_eq!(given.enter(Ino(many), false, |_| true, |_| {}), None);
        let mut over = Vec::new();
        assert!(given.enter(Ino(many), false, |_| false, |ino| over.push(ino)).is_some());
        assert_eq!(over.len(), MAX_PER_SHARD);
    }
}
