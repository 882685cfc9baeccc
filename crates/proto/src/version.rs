//! Versions of everything that outlives a process. Another version is refused by
//! name, never guessed at.

/// Version of a buffer's files on flash (store.json, log, namespace database, plans).
pub const FLASH_FORMAT: u32 = 8;

/// Version of the control socket's messages.
pub const CONTROL_PROTOCOL: u32 = 8;

/// Version of the frames between mounts, commands and servers, and of all that is in them.
pub const WIRE_PROTOCOL: u16 = 16;
