//! What a job asks for: the meaning of its `#DW` lines, checked and complete.
//!
//! Invariants: at least one access mode is offered, but to a job under a scheduler that has no buffer of its own; every stage names a path below a mode that
//! the job has; a cache has one mode and no stages; buffer paths are absolute from that mode's root, PFS paths absolute; neither
//! has `.`, `..` or doubled slashes. Built by [`crate::script::parse`] only.

use forebay_proto::control::{PathBytes, StageKind};
use forebay_proto::layout::Logs;
use serde::{Deserialize, Serialize};

/// For whom a script is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `forebay run`: one job, whose buffer is its own.
    Run,
    /// A scheduler: there are persistent buffers (`#DW persistentdw`, `#BB`), and pools with names.
    Scheduler,
}

/// A namespace that a job can ask for.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum AccessMode {
    /// One namespace over all servers and nodes.
    #[default]
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

/// Limits on the files of a job's buffer, kept by each of its mounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLimits {
    /// Largest size of a file; none: as large as the buffer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_file_bytes: Option<u64>,
    /// Most files that a node makes; none: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_files: Option<u64>,
}

impl FileLimits {
    /// True if there is none.
    pub fn is_none(&self) -> bool {
        *self == FileLimits::default()
    }

    /// The flags of `forebay mount` that set them.
    pub fn flags(&self) -> Vec<String> {
        let size = self.max_file_bytes.map(|bytes| ["--max-file-size".into(), bytes.to_string()]);
        let files = self.max_files.map(|files| ["--max-files-created".into(), files.to_string()]);
        size.into_iter().chain(files).flatten().collect()
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
    /// The persistent buffer that the buffer's side lies in; none: it is the job's own.
    #[serde(default, rename = "persistent_buffer", skip_serializing_if = "Option::is_none")]
    pub persistent: Option<String>,
    /// Path in the buffer, absolute from the root of `mode`'s namespace.
    pub buffer_path: PathBytes,
    /// Absolute path on the PFS.
    pub pfs_path: PathBytes,
    /// Files that cannot be copied do not fail the step.
    pub tolerate_errors: bool,
}

/// A persistent buffer that a job uses or destroys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersistentUse {
    /// Line of the directive in the script, from 1.
    pub line: u32,
    /// Its name, which is part of a variable's.
    #[serde(rename = "buffer")]
    pub name: String,
}

/// A persistent buffer that a job makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersistentCreate {
    /// Line of the directive in the script, from 1.
    pub line: u32,
    /// Its name, which is part of a variable's.
    #[serde(rename = "buffer")]
    pub name: String,
    /// Capacity.
    pub capacity_bytes: u64,
    /// Pool named by the script.
    #[serde(default, rename = "pool_name", alias = "pool")]
    pub pool: Option<String>,
    /// The PFS directory that the buffer caches; none: it is scratch.
    #[serde(default, rename = "pfs_path", skip_serializing_if = "Option::is_none")]
    pub cache: Option<PathBytes>,
    /// Striped; a cache may be `ldbalance` instead.
    #[serde(default)]
    pub access: AccessMode,
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
    /// Limits of the files, `striped(MFS=SIZE)`.
    #[serde(default, skip_serializing_if = "FileLimits::is_none")]
    pub limits: FileLimits,
    /// Swap space on each node of the job; 0: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub swap_bytes_per_node: u64,
    /// Pool named by the script.
    #[serde(default, rename = "pool_name", alias = "pool")]
    pub pool: Option<String>,
    /// The PFS directory that the buffer caches; none: it is scratch.
    #[serde(default, rename = "pfs_path", alias = "cache")]
    pub cache: Option<PathBytes>,
    /// New files are written as logs.
    #[serde(default, skip_serializing_if = "Logs::is_off")]
    pub log: Logs,
    /// The script runs with the preload library.
    #[serde(default, skip_serializing_if = "is_false")]
    pub preload: bool,
    /// Persistent buffers that the job uses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub persistent: Vec<PersistentUse>,
    /// Persistent buffers that are made before the job starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub create_persistent: Vec<PersistentCreate>,
    /// Persistent buffers that are destroyed when the job is ready to start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub destroy_persistent: Vec<PersistentUse>,
    /// In the order of the script.
    pub stage_in: Vec<StageRequest>,
    /// In the order of the script.
    pub stage_out: Vec<StageRequest>,
    /// What a user should know.
    pub notes: Vec<Note>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_false(is: &bool) -> bool {
    !is
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
        let root = if stage.persistent.is_some() { "/" } else { self.mode_root(stage.mode) };
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
    script_path_of(mode, None, path)
}

/// The variable in the job's environment that holds the mount path of a persistent buffer.
pub fn persistent_variable(name: &str) -> String {
    format!("DW_PERSISTENT_STRIPED_{name}")
}

/// The same of a persistent cache.
pub fn persistent_cache_variable(name: &str, ldbalance: bool) -> String {
    match ldbalance {
        true => format!("DW_PERSISTENT_LDBAL_CACHE_{name}"),
        false => format!("DW_PERSISTENT_STRIPED_CACHE_{name}"),
    }
}

/// The same, of a persistent buffer if one is named.
pub fn script_path_of(mode: AccessMode, persistent: Option<&str>, path: &PathBytes) -> String {
    let tail = crate::problem::printable_bytes(path.as_bytes());
    let tail = if tail == "/" { "" } else { tail.as_str() };
    match persistent {
        Some(name) => format!("${}{tail}", persistent_variable(name)),
        None => format!("${}{tail}", mode.variable()),
    }
}
