//! Mounts of served buffers against real servers in this process, as one program: calls, several servers, faults.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that cannot go on panics")]

mod calls;
mod held_up;
mod hostile;
mod once;
mod remote;
mod rig;
mod several;
