//! Client of a mount.

