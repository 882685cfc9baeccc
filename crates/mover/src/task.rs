//! One item of a plan: an object of the source and the name it gets.

use super::meta::{Dir, Meta};
use super::paths::join;
use forebay_proto::Ino;
use forebay_proto::attr::Timestamp;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Where an item comes from and goes to.
#[derive(Clone, Debug)]
pub(super) struct Task {
    /// Path of the source directory that `rel` is below.
    pub source_top: Arc<[u8]>,
    /// Path of the target directory that `rel` is below.
    pub target_top: Arc<[u8]>,
    /// The item's directory, below both tops.
    pub rel: Arc<[u8]>,
    /// Open directories; `None` for an item that waited so long that they were given back.
    pub dirs: Option<(Dir, Dir)>,
    pub source_name: Vec<u8>,
    pub target_name: Vec<u8>,
    /// The source's attributes when it was found.
    pub meta: Meta,
    /// Set if the source has several names and this is the first one found.
    pub leader: Option<Arc<Leader>>,
    /// Counted as given to a server (`parts`).
    pub is_shared: bool,
    /// Set if it is of another server's plan.
    pub afar: Option<Afar>,
}

/// What is known of an item of another server's plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Afar {
    /// Its number.
    pub number: u64,
    /// Its directory in the buffer.
    pub buffer_dir: Ino,
    /// Its size in bytes and its modification time as the plan's server found it.
    pub found: (u64, Timestamp),
}

impl Task {
    /// Path of the source, for messages.
    pub fn source_path(&self) -> Vec<u8> {
        join(&self.source_top, &self.rel, &self.source_name)
    }

    /// Path of the target, for messages.
    pub fn target_path(&self) -> Vec<u8> {
        join(&self.target_top, &self.rel, &self.target_name)
    }

    /// The item has its name: further names of the same source may be linked to it.
    pub fn set_published(&self) {
        if let Some(leader) = &self.leader {
            leader.published.store(true, Relaxed);
        }
    }

    /// Path below the target's top, which the journal knows it by.
    pub fn key(&self) -> Vec<u8> {
        let mut key = self.rel.to_vec();
        if !key.is_empty() {
            key.push(b'/');
        }
        key.extend_from_slice(&self.target_name);
        key
    }
}

/// The first name found of a source that has several.
#[derive(Debug)]
pub(super) struct Leader {
    /// Directory of its target, below the target's top.
    pub rel: Arc<[u8]>,
    /// Its name there.
    pub name: Vec<u8>,
    /// True once it is published.
    published: AtomicBool,
}

impl Leader {
    /// That of an item, which is not published yet.
    pub fn of(task: &Task) -> Leader {
        let published = AtomicBool::new(false);
        Leader { rel: task.rel.clone(), name: task.target_name.clone(), published }
    }

    /// True once it is published.
    pub fn is_published(&self) -> bool {
        self.published.load(Relaxed)
    }
}
