//! Tests of the mover over a plain directory as the buffer.

mod commit;
mod commit_kill;
mod deferred;
mod dir_tree;
mod faults;
mod identity;
mod kill;
mod options;
mod over;
mod over_rig;
mod roundtrip;
mod several;
mod several_kill;
mod snapshot;
mod sockets;
mod speed;
mod striped;
mod striped_kill;
pub(super) mod support;
