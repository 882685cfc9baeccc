//! Which nodes of a cache of several servers may have, at their data servers, what the PFS does not
//! (docs/internals/CACHE.md, "Several servers").
//!
//! Invariants
//! * Of the metadata server: a file that a data server has is clean there only if the data server has said so to this server since it
//!   started; of what the last server knew nothing is believed.
//! * Of a data server: what is told of one file has growing numbers.
//!
//! Called by `cache::data_servers`.

use super::super::nodes_log::Line;
use super::Nodes;
use super::shared::first_of;
use super::table::Table;
use forebay_proto::attr::FileKind;
use forebay_proto::{Ino, ShardId};

/// What a data server knows of one file.
#[derive(Default)]
pub(super) struct Writing {
    /// So many are about to open or cut it.
    under_way: u32,
    /// The metadata server knows that it may be dirty.
    told: bool,
}

impl Writing {
    /// The metadata server takes it for dirty.
    pub fn is_told(&mut self) {
        self.told = true;
    }
}

impl Nodes {
    /// At a data server: somebody is about to open a file for writing, or to cut it. True if the metadata server
    /// knows that it may be dirty; nothing if it is not known here.
    pub fn writing_begins(&self, ino: Ino) -> Option<bool> {
        let mut table = self.0.lock();
        let writing = &mut table.nodes.get_mut(&ino)?.shared.writing;
        writing.under_way += 1;
        Some(writing.told)
    }

    /// At a data server: the metadata server has heard of it.
    pub fn writing_told(&self, ino: Ino) {
        if let Some(node) = self.0.lock().nodes.get_mut(&ino) {
            node.shared.writing.is_told();
        }
    }

    /// At a data server: it is open now, or is not going to be.
    pub fn writing_ends(&self, ino: Ino) {
        if let Some(node) = self.0.lock().nodes.get_mut(&ino) {
            let writing = &mut node.shared.writing;
            writing.under_way = writing.under_way.saturating_sub(1);
        }
    }

    /// At a data server: nobody has it open and nothing of it is dirty, as of this number.
    pub fn clean_again(&self, ino: Ino, number: u64) {
        let mut table = self.0.lock();
        let Some(node) = table.nodes.get_mut(&ino) else { return };
        let writing = &mut node.shared.writing;
        if writing.under_way == 0 && std::mem::take(&mut writing.told) {
            table.data_servers.clean.push((ino, number));
            table.data_servers.bell.ring();
        }
    }

    /// At a data server: all that the metadata server takes for dirty.
    pub fn told_to_be_written(&self) -> Vec<Ino> {
        let table = self.0.lock();
        let told = table.nodes.iter().filter(|(_, node)| node.shared.writing.told);
        told.map(|(ino, _)| *ino).collect()
    }

    /// At a data server: which of these are clean, as far as the metadata server has to know.
    pub fn are_clean(&self, inos: &[Ino]) -> Vec<Ino> {
        let table = self.0.lock();
        let is_clean = |ino: &&Ino| {
            let writing = table.nodes.get(ino).map(|node| &node.shared.writing);
            writing.is_some_and(|writing| writing.under_way == 0 && !writing.told)
        };
        inos.iter().filter(is_clean).copied().collect()
    }

    /// At a data server: files that are clean again, with the numbers of that.
    pub fn take_clean(&self, most: usize) -> Vec<(Ino, u64)> {
        first_of(&mut self.0.lock().data_servers.clean, most)
    }

    /// At a data server: the metadata server may not have heard this.
    pub fn put_clean(&self, list: Vec<(Ino, u64)>) {
        self.0.lock().data_servers.clean.extend(list);
    }

    /// Of the metadata server: a file may be dirty at its data server, as of this number.
    pub fn may_be_dirty(&self, ino: Ino, number: u64) {
        if let Some(node) = self.0.lock().nodes.get_mut(&ino) {
            node.shared.dirty = node.shared.dirty.max(Some(number));
        }
    }

    /// Of the metadata server: files are clean at their data servers, unless that is older than what is known.
    pub fn data_server_has_clean(&self, list: impl IntoIterator<Item = (Ino, u64)>) {
        let mut table = self.0.lock();
        for (ino, number) in list {
            let node = table.nodes.get_mut(&ino);
            if let Some(node) = node.filter(|node| node.shared.dirty <= Some(number)) {
                node.shared.dirty = None;
            }
        }
    }

    /// Of the metadata server: a data server is gone for good. What was clean there gets another data server when it is next looked up,
    /// also after a restart of this server.
    pub fn leave_clean(&self, data_server: ShardId) {
        let mut table = self.0.lock();
        let clean = table.nodes.iter().filter(|(ino, node)| {
            let shared = &node.shared;
            let is_there = ino.shard() == data_server && node.kind == FileKind::File;
            is_there && shared.dirty.is_none() && !shared.removed
        });
        let clean: Vec<Ino> = clean.map(|(ino, _)| *ino).collect();
        table.leave(&clean);
    }

    /// Of the metadata server: nobody wants what a data server that is gone for good had of a file. False if it is not lost.
    pub fn give_up(&self, ino: Ino) -> bool {
        let mut table = self.0.lock();
        let is_lost = table.is_lost_file(ino);
        if is_lost {
            table.leave(&[ino]);
        }
        is_lost
    }

    /// Of the metadata server: files of which a data server has what the PFS may not have, with their newest paths.
    pub fn dirty_at(&self, data_server: ShardId) -> Vec<(Vec<u8>, Ino)> {
        let table = self.0.lock();
        let dirty = table.nodes.iter().filter(|(ino, node)| {
            let shared = &node.shared;
            ino.shard() == data_server
                && shared.is_held()
                && shared.dirty.is_some()
                && !shared.removed
        });
        dirty.filter_map(|(ino, _)| Some((table.path(*ino, 0).ok()?, *ino))).collect()
    }
}

impl Table {
    fn is_lost_file(&self, ino: Ino) -> bool {
        let node = self.nodes.get(&ino);
        let is_dirty = node.is_some_and(|n| n.shared.is_held() && n.shared.dirty.is_some());
        is_dirty && ino.shard() != self.shard && self.data_servers.is_lost(ino.shard())
    }

    /// Nodes go whose data server is gone for good: the list on record, too, has them no more.
    fn leave(&mut self, inos: &[Ino]) {
        for ino in inos {
            self.note(&Line::Left { ino: *ino });
            self.replaced(*ino);
        }
    }
}
