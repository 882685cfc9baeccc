//! What mounts that are away may hold: a mount that was cut off for longer than its lease, or did not come back
//! in time to a new server, still has numbers, and comes back with them.
//!
//! Invariants: a node that such a mount may hold stays as long as it has a name; its number is nobody else's,
//! also when the node has gone. Bounded by [`LEFT_MAX`] and [`LEFT_NODES_MAX`]: what a mount held that has
//! been away longest goes first, and is ESTALE for it. Called by `session` at the end of one and when its mount is
//! back.

use super::Nodes;
use forebay_proto::Ino;
use forebay_proto::net::session::ClientId;
use std::collections::{HashMap, VecDeque};

/// Most times that mounts left, and most nodes that they may hold, all together.
const LEFT_MAX: usize = 1024;
const LEFT_NODES_MAX: usize = 1 << 18;

/// What one mount may hold, or any of several.
struct Departed {
    clients: Vec<ClientId>,
    inos: Vec<Ino>,
}

/// All of them, from the one that left first.
#[derive(Default)]
pub(super) struct Away {
    left: VecDeque<Departed>,
    /// How many of them may hold a node.
    may_hold: HashMap<Ino, u32, foldhash::fast::RandomState>,
    /// Lengths of the lists, added up.
    count: usize,
}

impl Away {
    /// True if a mount may come back with this number.
    pub(super) fn may_hold(&self, ino: Ino) -> bool {
        self.may_hold.contains_key(&ino)
    }

    fn add(&mut self, clients: &[ClientId], inos: Vec<Ino>) {
        for ino in &inos {
            *self.may_hold.entry(*ino).or_insert(0) += 1;
        }
        self.count += inos.len();
        self.left.push_back(Departed { clients: clients.to_vec(), inos });
    }

    /// Takes one out; what nobody else may hold.
    fn remove(&mut self, at: usize) -> Vec<Ino> {
        let Some(Departed { inos, .. }) = self.left.remove(at) else { return Vec::new() };
        self.count -= inos.len();
        let may_hold = &mut self.may_hold;
        let last = |ino: &Ino| match may_hold.get_mut(ino) {
            Some(count) if *count > 1 => {
                *count -= 1;
                false
            }
            _ => may_hold.remove(ino).is_some(),
        };
        inos.into_iter().filter(last).collect()
    }
}

impl Nodes {
    /// Mounts are away that may hold these nodes.
    pub fn left(&self, clients: &[ClientId], inos: Vec<Ino>) {
        let mut table = self.0.lock();
        table.away.add(clients, inos);
        let mut files = Vec::new();
        while table.away.left.len() > LEFT_MAX || table.away.count > LEFT_NODES_MAX {
            for ino in table.away.remove(0) {
                files.extend(table.drop_unused(ino));
            }
        }
        drop(table);
        drop(files);
    }

    /// A mount has said what it holds, or will not come back.
    pub fn is_back(&self, client: ClientId) {
        let mut table = self.0.lock();
        let mut files = Vec::new();
        let mut at = 0;
        while at < table.away.left.len() {
            let clients = &mut table.away.left[at].clients;
            let before = clients.len();
            clients.retain(|other| *other != client);
            if before > 0 && clients.is_empty() {
                for ino in table.away.remove(at) {
                    files.extend(table.drop_unused(ino));
                }
            } else {
                at += 1;
            }
        }
        drop(table);
        drop(files);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Key;
    use super::super::table::OWN_NUMBERS;
    use super::*;
    use forebay_credentials::acting::Who;
    use forebay_proto::attr::FileKind;

    fn key(ino: u64, born_ns: i128) -> Key {
        Key { ino, born_ns, ..Key::default() }
    }

    #[test]
    fn what_a_mount_that_is_away_holds_stays_as_long_as_it_has_a_name() {
        let nodes = Nodes::new(key(100, 0));
        let who = Who::default();
        let seen = |name: &[u8], key| nodes.seen(Ino::ROOT, name, key, FileKind::File, &who, 1);
        let (kept, removed) = (seen(b"kept", key(7, 1)), seen(b"removed", key(8, 1)));
        let (one, two) = (ClientId(1), ClientId(2));
        nodes.left(&[one], vec![kept, removed]);
        nodes.left(&[two], vec![kept]);
        nodes.forget(kept, 1);
        nodes.forget(removed, 1);
        assert!(nodes.get(kept).is_ok() && nodes.get(removed).is_ok());
        nodes.unname(removed, Ino::ROOT, b"removed");
        assert!(nodes.get(removed).is_err(), "nothing leads to it any more");
        // The PFS gives its number to another file: who comes back must not meet that one.
        let other = seen(b"other", key(8, 2));
        assert!(other.0 > OWN_NUMBERS && !nodes.reference(removed));
        nodes.is_back(one);
        assert!(nodes.get(kept).is_ok(), "the other one may hold it");
        assert_eq!(seen(b"third", key(8, 3)), removed, "its number is free again");
        assert!(nodes.reference(kept));
        nodes.is_back(two);
        assert!(nodes.get(kept).is_ok(), "it is held");
        nodes.forget(kept, 1);
        assert!(nodes.get(kept).is_err());
    }

    #[test]
    fn what_was_held_by_who_is_away_longest_goes_first() {
        let nodes = Nodes::new(key(100, 0));
        let who = Who::default();
        let hold = |client: u64| {
            let name = client.to_string();
            let name = name.as_bytes();
            let ino = nodes.seen(Ino::ROOT, name, key(200 + client, 0), FileKind::File, &who, 1);
            nodes.left(&[ClientId(client)], vec![ino]);
            nodes.forget(ino, 1);
            ino
        };
        let all: Vec<Ino> = (0..=LEFT_MAX as u64).map(hold).collect();
        assert!(nodes.get(all[0]).is_err());
        assert!(all[1..].iter().all(|ino| nodes.get(*ino).is_ok()));
    }

    #[test]
    fn of_several_mounts_that_did_not_come_back_all_are_waited_for() {
        let nodes = Nodes::new(key(100, 0));
        let ino = nodes.seen(Ino::ROOT, b"f", key(7, 0), FileKind::File, &Who::default(), 1);
        nodes.left(&[ClientId(1), ClientId(2)], vec![ino]);
        nodes.forget(ino, 1);
        nodes.is_back(ClientId(1));
        assert!(nodes.get(ino).is_ok());
        nodes.is_back(ClientId(2));
        assert!(nodes.get(ino).is_err());
    }
}
