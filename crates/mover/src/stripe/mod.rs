//! Striped files, copied by all servers that hold them: each copies the bytes of its own object straight
//! between its flash and the PFS (docs/internals/STAGING.md).
//!
//! | module | what it does |
//! | --- | --- |
//! | `lead` | the server that copies the file: asks for the parts, joins what comes of them |
//! | `job` | a server that was asked for its part |
//! | `part` | the copy of one part, the same on both |
//! | `view` | what an object has of a file on the PFS, as if it lay in one piece |
//! | `sum` | the file's checksum out of the parts |
//!
//! Invariant: a part is begun only while `lead` waits for it, and `lead` waits for no part any more when
//! the file is published or dropped: so nothing that comes late is written into it.

mod job;
mod lead;
mod part;
mod sum;
mod view;

pub(super) use job::Stripes;
pub(super) use lead::{Count, copy_spread};
