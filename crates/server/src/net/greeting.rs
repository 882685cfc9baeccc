//! Places for connections that have not proven yet who they are.
//!
//! A peer that connects and says nothing must not keep others out. So a newcomer
//! always gets a place: when all are taken, the oldest greeting of the address that has most gives way.
//! A peer from another address is not touched by it, and one from the same address has as long as it
//! takes that address to make [`MAX_GREETING`] connections more: a greeting is over in milliseconds.
//!
//! Invariants: at most [`MAX_GREETING`] places are taken of each kind of socket, and the kinds do not
//! take each other's: what comes over the network cannot keep out peers on this node. A peer that gave way is told
//! so, and can try again. Called by `conn`.

use forebay_net::{Stream, peer};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

/// Most connections of each kind of socket that have not proven yet who they are.
pub const MAX_GREETING: usize = 128;

/// Where somebody comes from, as far as it is known before the greeting.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum From {
    /// A user of this node.
    User(u32),
    /// A host: its IPv4 address, or the /64 that one host may have all of.
    Host([u8; 8]),
    /// The socket is over already.
    Nobody,
}

impl From {
    fn of(stream: &Stream) -> From {
        match stream {
            Stream::Unix(_) => peer::uid(stream).map_or(From::Nobody, From::User),
            Stream::Tcp(socket) => match socket.peer_addr() {
                Ok(address) => From::host(address.ip()),
                Err(_) => From::Nobody,
            },
        }
    }

    fn host(address: IpAddr) -> From {
        let mut host = [0; 8];
        match address.to_canonical() {
            IpAddr::V4(v4) => host[..4].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => host.copy_from_slice(&v6.octets()[..8]),
        }
        From::Host(host)
    }
}

/// Connections that greet, by their numbers, which count up: the first is the oldest.
#[derive(Default)]
struct Table(BTreeMap<u64, From>);

impl Table {
    /// Takes a place; who gives way for it.
    fn enter(&mut self, id: u64, from: From) -> Option<u64> {
        let leaves = if self.0.len() >= MAX_GREETING { self.oldest_of_most() } else { None };
        if let Some(leaves) = leaves {
            self.0.remove(&leaves);
        }
        self.0.insert(id, from);
        leaves
    }

    fn oldest_of_most(&self) -> Option<u64> {
        let mut counts: HashMap<From, usize> = HashMap::new();
        for from in self.0.values() {
            *counts.entry(*from).or_default() += 1;
        }
        let most = counts.values().max()?;
        self.0.iter().find(|(_, from)| counts.get(from) == Some(most)).map(|(id, _)| *id)
    }
}

/// All that greet at this server.
#[derive(Default)]
pub(super) struct Greetings {
    near: Mutex<Table>,
    far: Mutex<Table>,
}

impl Greetings {
    fn table(&self, is_unix: bool) -> &Mutex<Table> {
        if is_unix { &self.near } else { &self.far }
    }

    /// A place for a new connection; which other one has to give way for it.
    pub(super) fn enter(&self, id: u64, stream: &Stream) -> Option<u64> {
        self.table(stream.is_unix()).lock().enter(id, From::of(stream))
    }

    /// The greeting is over; false if the connection had to give way.
    pub(super) fn leave(&self, id: u64, is_unix: bool) -> bool {
        self.table(is_unix).lock().0.remove(&id).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(address: &str) -> From {
        From::host(address.parse().unwrap())
    }

    #[test]
    fn the_oldest_of_the_address_that_has_most_gives_way() {
        let mut table = Table::default();
        assert_eq!(table.enter(0, host("10.0.0.7")), None);
        for id in 1..MAX_GREETING as u64 {
            assert_eq!(table.enter(id, host("10.0.0.9")), None);
        }
        for id in 0..2 * MAX_GREETING as u64 {
            let gave_way = table.enter(1000 + id, host("10.0.0.9"));
            assert!(gave_way.is_some_and(|gone| gone != 0), "{gave_way:?}");
            assert_eq!(table.0.len(), MAX_GREETING);
        }
        let oldest = *table.0.keys().nth(1).unwrap();
        assert_eq!(table.enter(5000, host("10.0.0.8")), Some(oldest));
        assert_eq!(table.0.get(&0), Some(&host("10.0.0.7")));
    }

    #[test]
    fn a_host_has_one_address() {
        assert_eq!(host("::ffff:10.0.0.7"), host("10.0.0.7"));
        assert_eq!(host("2001:db8::1"), host("2001:db8::ffff:2"));
        assert_ne!(host("2001:db8::1"), host("2001:db8:0:1::1"));
        assert_ne!(host("10.0.0.7"), host("10.0.0.8"));
    }
}
