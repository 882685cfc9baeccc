//! The workload language: an application's I/O as jobs, phases, processes, files and steps. docs/WORKLOAD.md describes it
//! for people.
//!
//! [`Workload::read`] reads a file, [`Workload::walk`] gives what one process does, operation by operation, and
//! [`Workload::to_toml`] writes the file. A traced run keeps its operations in a binary file beside it ([`operations`]).
//!
//! Invariants: a workload that [`Workload::check`] accepted can be walked without a panic or overflow; a walk takes constant
//! memory, whatever the numbers are.

mod check;
mod model;
pub mod operations;
mod parse;
mod path;
mod spread;
#[cfg(test)]
mod tests;
mod text;
mod walk;

/// Schema of workload files (JSON Schema, draft 7), for editors.
pub const SCHEMA: &str = include_str!("../../../../docs/workload.schema.json");

pub use check::{Place, Totals, Wrong};
pub use model::{
    Action, FileSpec, Interface, Items, Job, Layout, MAX_DIMENSIONS, MAX_ENTRIES, Mode, Move,
    NameOp, Only, Order, Phase, Step, SyncWhen, VERSION, Whole, Whose, Work, Workload,
};
pub use operations::{MAX_PROCESSES, OperationsError, OperationsFile, OperationsWriter};
pub use path::{FileId, Part, Template, Tree, is_below};
pub use spread::{Share, Slab};
pub use walk::{Calls, Meeting, Op, Transfer, Walk};
