//! Power cuts made to order: a disk that records, the states that a cut can leave, and the
//! judge of what a file system made of them.
//!
//! [`mirror`] serves a directory whose image file is a recorded [`disk`]; [`rig`] puts a file
//! system ([`target`]) on it; [`workload`] runs a random program there and writes down what was
//! acknowledged when; [`state`] builds what a power cut at some moment can leave; [`verify`]
//! mounts that state and holds it against the record; [`pair`] does the first three for flash and PFS at once. [`names`] and [`content`] are the models
//! of what may be seen.

mod actions;
pub mod cached;
pub mod disk;
pub mod mirror;
pub mod names;
mod nodes;
pub mod pair;
pub mod rig;
pub mod state;
pub mod target;
pub mod verify;
pub mod workload;

pub use forebay_cells as content;
