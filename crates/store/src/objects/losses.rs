//! Objects that are not there although they must be: somebody cleaned the flash directory.
//!
//! A file that has a name and lost its data is EIO and never ENOENT: programs take "no such file" for
//! "make it". Each loss is one line of the log, with the path on flash, for the first
//! [`MAX_NAMED`]; the state of the buffer tells of all. Nothing that was lost is ever forgotten while the
//! server runs. Used by [`super::Objects`]; told by `ledger::parts`.

use forebay_proto::ObjectId;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Most lost objects that are named in the log and counted one by one.
const MAX_NAMED: usize = 1000;

#[derive(Default)]
struct Known {
    objects: HashSet<ObjectId>,
    first: Option<PathBuf>,
    /// There are more than are counted.
    more: bool,
}

/// What was lost so far.
#[derive(Default)]
pub(super) struct Losses {
    known: Mutex<Known>,
    some: AtomicBool,
}

impl Losses {
    /// An object that must be at `path` is not.
    pub(super) fn note(&self, id: ObjectId, path: &Path) {
        self.some.store(true, Ordering::Release);
        let mut known = self.known.lock();
        if known.objects.contains(&id) {
            return;
        }
        if known.objects.len() >= MAX_NAMED {
            if !std::mem::replace(&mut known.more, true) {
                tracing::error!(
                    "data of more than {MAX_NAMED} files is gone: the others are not named"
                );
            }
            return;
        }
        known.objects.insert(id);
        known.first.get_or_insert_with(|| path.to_path_buf());
        tracing::error!(
            ino = %id.ino, path = %path.display(),
            "the data of a file is gone: somebody removed it from the flash directory. The file answers EIO"
        );
    }

    /// True if anything was lost.
    pub(super) fn some(&self) -> bool {
        self.some.load(Ordering::Acquire)
    }

    /// In words, if anything was lost.
    pub(super) fn told(&self) -> Option<String> {
        let known = self.known.lock();
        let first = known.first.as_ref()?.display();
        let more = if known.more { "more than " } else { "" };
        let count = match known.objects.len() {
            1 => "a file".to_string(),
            count => format!("{more}{count} files"),
        };
        Some(format!("data of {count} is gone from the flash directory, such as {first}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::Ino;

    #[test]
    fn losses_are_counted_once_and_bounded() {
        let losses = Losses::default();
        assert_eq!(losses.told(), None);
        let note = |number: u64| {
            let path = PathBuf::from(format!("/flash/{number}"));
            losses.note(ObjectId::whole(Ino(number)), &path);
        };
        note(1);
        note(1);
        assert!(losses.told().unwrap().contains("data of a file is gone"));
        (1..=MAX_NAMED as u64).for_each(note);
        assert!(losses.told().unwrap().contains("data of 1000 files"));
        note(5000);
        let told = losses.told().unwrap();
        assert!(told.contains("more than 1000 files") && told.ends_with("/flash/1"), "{told}");
    }
}
