//! Client of a mount.
