//! What a job asks for: the meaning of its `#DW` lines, checked and complete.
//!
//! Invariants: at least one access mode is offered; every stage names a path below a mode that
//! the job has; a cache has one mode and no stages; buffer paths are absolute from that mode's root, PFS paths absolute; neither
//! has `.`, `..` or doubled slashes. Built by [`crate::script::parse`] only.

use forebay_proto::control::{PathBytes, StageKind};
use serde::{Deserialize, Serialize};

/// A namespace that a job can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessMode {
    /// One namespace over all servers and nodes.
    Striped,
    /// A namespace per node.
    Private,
    /// Of a cache: read-only, a copy on each server.
    Ldbalance,
}

impl AccessMode {
    /// The variable in the job's environment that holds its mount path.
    pub fn variable(self) -> &'static str {
        match self {
            AccessMode::Striped => "DW_JOB_STRIPED",
            AccessMode::Private => "DW_JOB_PRIVATE",
            AccessMode::Ldbalance => "DW_JOB_LDBAL",
        }
    }

    /// The same of a cache.
    pub fn cache_variable(self) -> &'static str {
        match self {
            AccessMode::Striped => "DW_JOB_STRIPED_CACHE",
            AccessMode::Private => "DW_JOB_PRIVATE_CACHE",
            AccessMode::Ldbalance => "DW_JOB_LDBAL_CACHE",
        }
    }

    /// The word in `access_mode=`.
    pub fn word(self) -> &'static str {
        match self {
            AccessMode::Striped => "striped",
            AccessMode::Private => "private",
            AccessMode::Ldbalance => "ldbalance",
        }
    }
}

/// One `stage_in` or `stage_out` line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageRequest {
    /// Line of the directive in the script, from 1.
    pub line: u32,
    /// File, directory or list.
    pub kind: StageKind,
    /// The namespace that the buffer's side lies in.
    pub mode: AccessMode,
    /// Path in the buffer, absolute from the root of `mode`'s namespace.
    pub buffer_path: PathBytes,
    /// Absolute path on the PFS.
    pub pfs_path: PathBytes,
    /// Files that cannot be copied do not fail the step.
    pub tolerate_errors: bool,
}

/// Something a user should know that is not wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Line in the script, from 1.
    pub line: u32,
    /// What.
    pub text: String,
}

/// All that a script asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRequest {
    /// Interpreter and its argument from the `#!` line; `None` = run by `/bin/sh`.
    pub interpreter: Option<String>,
    /// Capacity of the buffer: the sum over the `jobdw` lines.
    pub capacity_bytes: u64,
    /// Modes offered, without repeats, striped first.
    pub access_modes: Vec<AccessMode>,
    /// Pool named by the script.
    pub pool: Option<String>,
    /// The PFS directory that the buffer caches; none: it is scratch.
    #[serde(default)]
    pub cache: Option<PathBytes>,
    /// In the order of the script.
    pub stage_in: Vec<StageRequest>,
    /// In the order of the script.
    pub stage_out: Vec<StageRequest>,
    /// What a user should know.
    pub notes: Vec<Note>,
}

impl JobRequest {
    /// Directory of a mode inside the buffer: the buffer's root if the job has one mode only,
    /// `/striped` and `/private` if it has both (they share the capacity).
    pub fn mode_root(&self, mode: AccessMode) -> &'static str {
        match (self.access_modes.len(), mode) {
            (0 | 1, _) => "/",
            (_, AccessMode::Striped) => "/striped",
            (_, AccessMode::Private) => "/private",
            // A cache has one mode.
            (_, AccessMode::Ldbalance) => "/",
        }
    }

    /// The variable in the job's environment that holds a mode's mount path.
    pub fn variable(&self, mode: AccessMode) -> &'static str {
        match self.cache {
            Some(_) => mode.cache_variable(),
            None => mode.variable(),
        }
    }

    /// Path of a stage's buffer side, absolute from the buffer's root.
    pub fn buffer_path(&self, stage: &StageRequest) -> PathBytes {
        let root = self.mode_root(stage.mode);
        let path = stage.buffer_path.as_bytes();
        match root {
            "/" => stage.buffer_path.clone(),
            root if path == b"/" => PathBytes::new(root.as_bytes()),
            root => PathBytes::new(&[root.as_bytes(), path].concat()),
        }
    }
}

/// A buffer path as the script writes it: `$DW_JOB_STRIPED/results`.
pub fn script_path(mode: AccessMode, path: &PathBytes) -> String {
    let tail = crate::problem::printable_bytes(path.as_bytes());
    let tail = if tail == "/" { "" } else { tail.as_str() };
    format!("${}{tail}", mode.variable())
}
