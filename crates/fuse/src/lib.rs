//! A buffer as a file system of the kernel: requests of `/dev/fuse` become calls of
//! [`forebay_proto::FileSystem`].
//!
//! | module | what it does |
//! | --- | --- |
//! | `abi` | structures and numbers of linux/fuse.h |
//! | `mount`, `options` | mount(2), `fusermount3`, unmounting; what can be asked for |
//! | `init` | the first exchange with the kernel, the trial of passthrough |
//! | `session` | threads: readers, workers, the notifier |
//! | `workers`, `more_workers` | threads for requests that take long, and more of them while all are held up |
//! | `connection`, `dispatch`, `ops` | from a request to its answer |
//! | `beside` | programs that ask this process instead of the kernel, and what the kernel must then hear |
//! | `opens` | which inodes are open, and how |
//! | `lifetime` | how long the kernel may believe what it is told |
//! | `locks`, `locked`, `fcntl` | requests for locks that wait; whose locks are whose |
//! | `handles` | names for files that the kernel finds by handle |
//! | `follow` | keeps a reader on its client's CPU |
//! | `reader_handoff` | one reader at a time, some for large blocks, others when it is stuck |
//! | `notify` | what changed behind the mount |
//!
//! Data of whole local files does not pass here: the kernel reads and writes the objects itself
//! (passthrough). What counts then is the cost of a request on metadata, so these are answered
//! on the thread that read them, from buffers made once, with one write(2).

mod abi;
mod beside;
mod buffer;
mod connection;
mod counters;
mod device;
mod dirs;
mod dispatch;
mod fcntl;
mod follow;
mod handles;
mod init;
mod lifetime;
mod limits;
mod locked;
mod locks;
mod lone_sgid;
mod more_workers;
mod mount;
mod moves;
mod notify;
mod opens;
mod ops;
mod options;
mod reader_handoff;
mod root;
mod session;
mod stood_on;
mod tally;
mod tries;
mod waits;
mod workers;

pub use beside::Door;
pub use handles::help as help_with_handles;
pub use limits::Limits;
pub use mount::{FILE_SYSTEM_TYPE, MountError, UnmountError, abort, remount, unmount};
pub use options::{FastPath, FastPathOff, MountBy, MountFlags, MountOptions, readers_abreast};
pub use session::Session;
pub use stood_on::AsksIfStoodOn;
pub use tally::Served;
