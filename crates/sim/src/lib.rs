//! Predicts what a burst buffer brings: runs a workload on a described machine, in simulated time.
//!
//! A machine (`machine`, docs/SIMULATION.md) and a program (`program`) go into `model`; what comes out is a table, JSON, or a
//! page. `validate` holds the model against published figures. Nothing here does I/O but on files that it is given, and
//! nothing reads a clock: the same input and seed give the same bytes.
//!
//! Callers: `forebay sim`.

pub mod calibrate;
pub mod check;
pub mod checkpoints;
pub mod closed;
pub mod compare;
pub mod device;
pub mod explain;
pub mod from_workload;
pub mod fuzzed;
pub mod machine;
pub mod model;
pub mod page;
pub mod parallel;
pub mod presets;
pub mod program;
pub mod report;
pub mod settings;
pub mod size;
pub mod study;
pub mod sweep;
pub mod text;
pub mod units;
pub mod validate;
