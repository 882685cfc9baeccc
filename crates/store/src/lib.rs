//! What a server has on flash, and how it is kept whole over kills and power cuts.
//!
//! | module | what it does |
//! | --- | --- |
//! | `flash` | stores: the directories that buffers are made of, with their capacity and lock |
//! | `objects` | data files |
//! | `metadata` | names and inodes: a log of operations, then LMDB |
//! | `record` | what `metadata` holds |
//! | `events` | the record of events |
//! | `journal_line` | a line of a file that is only appended to |
//! | `clock` | stamps in one order with those of the kernel |
//! | `descriptors` | who gets how many file descriptors |
//! | `room` | what a store would have room for |
//!
//! `flash`, `metadata`, `objects` and `events` know nothing of each other's contents. Called by all other parts of the server.

pub mod clock;
pub mod descriptors;
pub mod events;
pub mod flash;
pub mod journal_line;
pub mod metadata;
pub mod objects;
pub mod record;
pub mod room;
