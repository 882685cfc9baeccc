//! What crosses between a client and a server, and nothing else.
//!
//! Ids, errors, attributes, the file-system calls ([`api::FileSystem`]), layout
//! arithmetic and the control messages of a mount's socket. No I/O happens here:
//! the crate compiles into every other one (see ARCHITECTURE.md, "crates").
//!
//! Invariants: types that are written to disk or to a socket carry a version
//! (see [`version`]); ids are newtypes; names are bytes, never strings.

pub mod acl;
pub mod activity;
pub mod api;
pub mod asked;
pub mod at_risk;
pub mod attr;
pub mod cache;
pub mod caller;
pub mod commit;
pub mod control;
pub mod count;
pub mod errno;
pub mod events;
pub mod ids;
pub mod kinds;
pub mod latency;
pub mod layout;
pub mod metrics;
pub mod net;
pub mod path_bytes;
pub mod size;
pub mod timing;
pub mod version;

pub use api::{DirEntry, Entry, FileSystem, Notify, Opened};
pub use attr::{Attr, FileKind, SetAttr, SetTime, Timestamp};
pub use caller::{Caller, RequestId};
pub use errno::{Errno, Result};
pub use ids::{Cookie, Ino, Lsn, ObjectId, PlanId, ServerId, ShardId};
pub use timing::Timing;
