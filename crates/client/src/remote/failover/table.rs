//! What the numbers stand for that the kernel has of this mount, and what they are at the server of now.
//!
//! Invariant: a number stands for one name as long as the kernel holds it; what it is at a server counts for
//! the generation of that server only.

use super::OWN_NUMBERS;
use forebay_proto::{Caller, Ino};
use std::collections::HashMap;

/// What a number is at the server of now.
#[derive(Clone, Copy)]
pub(super) struct There {
    pub generation: u64,
    pub ino: Ino,
    /// References that the server gave.
    pub references: u64,
    /// Opens that it counts.
    pub opens: u64,
}

pub(super) struct Known {
    pub parent: Ino,
    pub name: Vec<u8>,
    /// Who looked it up last.
    pub who: Caller,
    /// The kernel's.
    pub lookups: u64,
    pub opens: u64,
    pub there: Option<There>,
}

#[derive(Default)]
pub(super) struct Table {
    pub known: HashMap<Ino, Known>,
    /// Of this generation only.
    pub by_there: HashMap<Ino, Ino>,
    pub generation: u64,
    pub given: u64,
}

impl Table {
    /// All that was known of another server's numbers is not any more.
    pub fn enter(&mut self, generation: u64) {
        if self.generation < generation {
            self.generation = generation;
            self.by_there.clear();
        }
    }

    /// A server says that a name leads to its number `ino`, and gives a reference.
    pub fn seen(
        &mut self,
        generation: u64,
        parent: Ino,
        name: &[u8],
        who: &Caller,
        ino: Ino,
    ) -> Ino {
        self.enter(generation);
        let known = self.by_there.get(&ino).copied();
        let own = known.unwrap_or_else(|| match self.known.get(&ino) {
            None => ino,
            // Known from another server: both number it as the PFS does.
            Some(known)
                if known.parent == parent
                    && known.name == name
                    && known.there.is_none_or(|there| there.generation != generation) =>
            {
                ino
            }
            Some(_) => {
                self.given += 1;
                Ino(OWN_NUMBERS + self.given)
            }
        });
        let known = self.known.entry(own).or_insert_with(|| Known {
            parent,
            name: name.to_vec(),
            who: who.clone(),
            lookups: 0,
            opens: 0,
            there: None,
        });
        (known.parent, known.who) = (parent, who.clone());
        known.name = name.to_vec();
        match &mut known.there {
            Some(there) if there.generation == generation => there.references += 1,
            there => *there = Some(There { generation, ino, references: 1, opens: 0 }),
        }
        self.by_there.insert(ino, own);
        own
    }
}
