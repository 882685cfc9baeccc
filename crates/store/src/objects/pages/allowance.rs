//! How much of a store large pages may cost for holes of files, before the files get small ones.
//!
//! A file takes from the allowance what large pages could cost for it at most: all of its holes. What it took comes
//! back when the file is gone, when it was found to be dense, or when it was closed and its empty pages were
//! counted; these stay taken until the file is gone.
//!
//! What a file got in large pages before its holes were seen is owed ([`Allowance::owe`]): it counts, and where it is more than
//! the allowance has, nobody gets large pages until something came back ([`Allowance::is_spent`]). So all files together
//! cost the allowance and what one hole takes that is seen late, however many such holes there are.
//!
//! Pure: ids and bytes in, yes or no out. Invariant: what files are allowed is at most the allowance less what they owe, and the
//! list has at most [`FILES_MAX`] of them. Called by [`super`].

use forebay_proto::ObjectId;

/// Files that may have taken something. No other file is allowed anything meanwhile.
const FILES_MAX: usize = 256;
/// A closed file is counted if it takes at most so many times the allowance: longer ones keep what they took.
const COUNT_SHARE_MOST: u64 = 2;

#[derive(Clone, Copy, Debug)]
struct Taken {
    id: ObjectId,
    bytes: u64,
    /// Closed: what it really took is to be counted.
    is_counted_next: bool,
}

/// See the file's head. [`Default`] allows nothing.
#[derive(Debug, Default)]
pub(super) struct Allowance {
    allowed_bytes: u64,
    taken: Vec<Taken>,
}

impl Allowance {
    pub(super) fn new(allowed_bytes: u64) -> Self {
        Self { allowed_bytes, taken: Vec::new() }
    }

    fn fits(&self, id: ObjectId, bytes: u64) -> bool {
        let others = self.taken.iter().filter(|taken| taken.id != id);
        let room = others.clone().count() < FILES_MAX;
        room && others.map(|taken| taken.bytes).sum::<u64>().saturating_add(bytes)
            <= self.allowed_bytes
    }

    /// Takes `bytes` in all for a file, or more if it has taken more before; false if they are not to be had, and then
    /// nothing changes. `is_gone` tells whether a file is no more.
    pub(super) fn take(
        &mut self,
        id: ObjectId,
        bytes: u64,
        is_gone: &mut dyn FnMut(ObjectId) -> bool,
    ) -> bool {
        let before = self.taken.iter().find(|taken| taken.id == id).map_or(0, |taken| taken.bytes);
        let bytes = bytes.max(before);
        if !self.fits(id, bytes) {
            self.taken.retain(|taken| taken.id == id || !is_gone(taken.id));
            if !self.fits(id, bytes) {
                return false;
            }
        }
        self.give_back(id);
        self.taken.push(Taken { id, bytes, is_counted_next: false });
        true
    }

    /// Large pages took so many bytes more for a file than it was allowed, at most. Not kept of a file that does not fit into the
    /// list.
    pub(super) fn owe(&mut self, id: ObjectId, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let has_room = self.taken.len() < FILES_MAX;
        match self.taken.iter_mut().find(|taken| taken.id == id) {
            Some(taken) => taken.bytes = taken.bytes.saturating_add(bytes),
            None if has_room => self.taken.push(Taken { id, bytes, is_counted_next: false }),
            None => {}
        }
    }

    /// True if large pages have cost more than they may.
    pub(super) fn is_spent(&self) -> bool {
        let taken = self.taken.iter().fold(0, |sum: u64, taken| sum.saturating_add(taken.bytes));
        taken > self.allowed_bytes
    }

    /// What files that are no more have taken comes back.
    pub(super) fn drop_gone(&mut self, is_gone: &mut dyn FnMut(ObjectId) -> bool) {
        self.taken.retain(|taken| !is_gone(taken.id));
    }

    /// A file gets no more large pages: it keeps what they took so far.
    pub(super) fn took(&mut self, id: ObjectId, bytes: u64) {
        if let Some(taken) = self.taken.iter_mut().find(|taken| taken.id == id) {
            taken.bytes = taken.bytes.min(bytes);
        }
    }

    /// The file is gone, or has no holes to speak of.
    pub(super) fn give_back(&mut self, id: ObjectId) {
        self.taken.retain(|taken| taken.id != id);
    }

    /// Nobody has the file open any more. It has `bytes`.
    pub(super) fn close(&mut self, id: ObjectId, bytes: u64) {
        let most = self.allowed_bytes.saturating_mul(COUNT_SHARE_MOST);
        if let Some(taken) = self.taken.iter_mut().find(|taken| taken.id == id) {
            taken.is_counted_next = bytes <= most;
        }
    }

    /// A closed file whose empty pages are to be counted.
    pub(super) fn to_count(&self) -> Option<ObjectId> {
        self.taken.iter().find(|taken| taken.is_counted_next).map(|taken| taken.id)
    }

    /// The file has so many bytes in empty pages.
    pub(super) fn counted(&mut self, id: ObjectId, empty_bytes: u64) {
        let Some(taken) = self.taken.iter_mut().find(|taken| taken.id == id) else { return };
        // Opened again meanwhile: it is counted when it is closed.
        if taken.is_counted_next {
            taken.is_counted_next = false;
            taken.bytes = taken.bytes.min(empty_bytes);
            self.taken.retain(|taken| taken.bytes > 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::Ino;

    fn id(number: u64) -> ObjectId {
        ObjectId::whole(Ino(number))
    }

    #[test]
    fn holes_of_all_files_fit_into_one_allowance() {
        let mut allowance = Allowance::new(100);
        let nobody = &mut |_| false;
        assert!(allowance.take(id(1), 60, nobody));
        assert!(!allowance.take(id(2), 41, nobody), "together they are too much");
        assert!(allowance.take(id(2), 40, nobody));
        assert!(!allowance.take(id(1), 61, nobody));
        // What is filled may be empty again: less is not given back before it is known.
        assert!(allowance.take(id(1), 10, nobody));
        assert!(!allowance.take(id(3), 1, nobody));
        assert!(allowance.take(id(3), 60, &mut |other| other == id(1)), "gone");
        allowance.give_back(id(2));
        assert!(allowance.take(id(4), 40, nobody));
    }

    #[test]
    fn holes_that_are_seen_late_end_large_pages_until_something_comes_back() {
        let mut allowance = Allowance::new(100);
        let nobody = &mut |_| false;
        allowance.owe(id(1), 0);
        assert!(allowance.take(id(2), 100, nobody), "nothing is owed yet");
        assert!(!allowance.is_spent());
        allowance.give_back(id(2));
        allowance.owe(id(1), 60);
        allowance.owe(id(1), 30);
        assert!(!allowance.take(id(2), 11, nobody), "what is owed counts");
        assert!(!allowance.is_spent());
        allowance.owe(id(2), 11);
        assert!(allowance.is_spent());
        // Closed, and most of what it owed was data.
        allowance.close(id(1), 120);
        allowance.counted(id(1), 50);
        assert!(!allowance.is_spent());
        allowance.owe(id(3), 500);
        assert!(allowance.is_spent());
        allowance.drop_gone(&mut |other| other == id(3));
        assert!(!allowance.is_spent(), "gone");
        // Any number of files.
        (10..1_000).for_each(|number| allowance.owe(id(number), 1));
        assert!(allowance.taken.len() <= FILES_MAX && allowance.is_spent());
    }

    #[test]
    fn a_closed_file_keeps_what_its_empty_pages_take() {
        let mut allowance = Allowance::new(100);
        let nobody = &mut |_| false;
        assert!(allowance.take(id(1), 60, nobody));
        assert_eq!(allowance.to_count(), None);
        allowance.close(id(1), 60);
        assert_eq!(allowance.to_count(), Some(id(1)));
        allowance.counted(id(1), 20);
        assert_eq!(allowance.to_count(), None);
        assert!(!allowance.take(id(2), 81, nobody));
        assert!(allowance.take(id(2), 80, nobody));
        // Dense: all of it comes back.
        allowance.close(id(2), 80);
        allowance.counted(id(2), 0);
        assert!(allowance.take(id(3), 80, nobody));
        // Written again while it was counted.
        allowance.close(id(3), 80);
        assert!(allowance.take(id(3), 80, nobody));
        allowance.counted(id(3), 0);
        assert!(!allowance.take(id(4), 21, nobody));
        // Too long to be counted.
        allowance.close(id(3), 201);
        assert_eq!(allowance.to_count(), None);
    }
}
