//! The two directories of a comparison, and the buffer behind one of them.
//!
//! Raw is a plain directory in the store's own mounted file system, beside the objects, so both
//! sides have the same medium, page size and fragmentation. In a control both are raw.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What is compared.
#[derive(Clone, Debug)]
pub struct Sides {
    /// Plain directory.
    pub raw: PathBuf,
    /// Directory in the mount; another plain directory in a control.
    pub buffer: PathBuf,
    /// The daemon that serves it; `None` in a control.
    pub daemon: Option<u32>,
    /// Mounts whose cached names can be dropped: of the raw side, and of the buffer's.
    pub mounts: [Option<PathBuf>; 2],
}

/// A mounted buffer that is destroyed when this is dropped.
pub struct Buffer {
    forebay: PathBuf,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// State at the time of the mount, of `forebay status --json`.
    pub status: Value,
    mounted: bool,
}

/// The first value of `key` anywhere in `value`.
fn find<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    match value {
        Value::Object(map) => map.get(key).or_else(|| map.values().find_map(|v| find(v, key))),
        Value::Array(list) => list.iter().find_map(|v| find(v, key)),
        _ => None,
    }
}

/// The root of the mount that holds `path`: the last directory upwards with the same device.
pub fn mount_root(path: &Path) -> Result<PathBuf> {
    let device = |path: &Path| -> Result<u64> {
        let meta = std::fs::metadata(path).with_context(|| format!("stat {}", path.display()))?;
        Ok(meta.dev())
    };
    let mut root = path.to_path_buf();
    while let Some(parent) = root.parent() {
        if device(parent)? != device(&root)? {
            break;
        }
        root = parent.to_path_buf();
    }
    Ok(root)
}

/// Runs a command to its end.
///
/// # Errors
/// It cannot be started, or fails: with its standard error.
pub fn run<S: AsRef<OsStr>>(program: &Path, args: &[S]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    let output = command.output().with_context(|| format!("run {}", program.display()))?;
    if !output.status.success() {
        bail!(
            "{command:?} ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

impl Buffer {
    /// Makes a buffer of `capacity_bytes` on `flash`, or finds the one kept there, mounts it at
    /// `mount_point` and asks for its status.
    pub fn mount(
        forebay: &Path,
        flash: &Path,
        mount_point: &Path,
        capacity_bytes: u64,
    ) -> Result<Buffer> {
        let mut buffer = Buffer::mount_quietly(forebay, flash, mount_point, capacity_bytes)?;
        buffer.status = buffer.read_status()?;
        Ok(buffer)
    }

    /// Like `mount`, without the status.
    pub fn mount_quietly(
        forebay: &Path,
        flash: &Path,
        mount_point: &Path,
        capacity_bytes: u64,
    ) -> Result<Buffer> {
        let capacity = capacity_bytes.to_string();
        let kind: [&OsStr; 2] = ["--scratch".as_ref(), capacity.as_ref()];
        Buffer::mount_as(forebay, flash, mount_point, &kind)
    }

    /// Mounts a cache of the directory `pfs`, with more arguments for `forebay mount`, and asks for
    /// its status.
    pub fn mount_cache(
        forebay: &Path,
        flash: &Path,
        mount_point: &Path,
        capacity_bytes: u64,
        pfs: &Path,
        more: &[&str],
    ) -> Result<Buffer> {
        let capacity = capacity_bytes.to_string();
        let mut kind: Vec<&OsStr> = vec!["--cache".as_ref(), pfs.as_ref()];
        kind.extend(["--capacity".as_ref(), OsStr::new(&capacity)]);
        kind.extend(more.iter().map(OsStr::new));
        let mut buffer = Buffer::mount_as(forebay, flash, mount_point, &kind)?;
        buffer.status = buffer.read_status()?;
        Ok(buffer)
    }

    fn mount_as(
        forebay: &Path,
        flash: &Path,
        mount_point: &Path,
        kind: &[&OsStr],
    ) -> Result<Buffer> {
        std::fs::create_dir_all(mount_point)
            .with_context(|| format!("make {}", mount_point.display()))?;
        let mut args: Vec<&OsStr> = vec!["mount".as_ref()];
        args.extend_from_slice(kind);
        args.extend(["--flash".as_ref(), flash.as_os_str(), mount_point.as_os_str()]);
        run(forebay, &args)?;
        Ok(Buffer {
            forebay: forebay.to_path_buf(),
            mount_point: mount_point.to_path_buf(),
            status: Value::Null,
            mounted: true,
        })
    }

    /// The executable that mounted it.
    pub fn executable(&self) -> &Path {
        &self.forebay
    }

    /// `forebay COMMAND... PATH`.
    pub fn forebay(&self, command: &[&str], path: &Path) -> Result<String> {
        let mut args: Vec<&OsStr> = command.iter().map(OsStr::new).collect();
        args.push(path.as_ref());
        run(&self.forebay, &args)
    }

    /// `forebay status --json MNT`.
    pub fn read_status(&self) -> Result<Value> {
        let args: [&OsStr; 3] = ["status".as_ref(), "--json".as_ref(), self.mount_point.as_ref()];
        let text = run(&self.forebay, &args)?;
        serde_json::from_str(&text).with_context(|| format!("status is not JSON: {text}"))
    }

    fn text(&self, key: &str) -> Result<&str> {
        find(&self.status, key)
            .and_then(Value::as_str)
            .with_context(|| format!("status has no {key}"))
    }

    /// The store's directory of objects: on the store's own file system, where it has one.
    pub fn data_dir(&self) -> Result<PathBuf> {
        let store = Path::new(self.text("store")?);
        let inside = if self.store_kind()? == "loop-xfs" { "fs/data" } else { "data" };
        Ok(store.join(inside))
    }

    /// How the store holds its capacity.
    pub fn store_kind(&self) -> Result<String> {
        Ok(self.text("store_kind")?.to_string())
    }

    /// True if files go by passthrough.
    pub fn fast_path(&self) -> bool {
        find(&self.status, "fast_path").and_then(Value::as_bool).unwrap_or(false)
    }

    /// Process id of the daemon.
    pub fn daemon(&self) -> Result<u32> {
        find(&self.status, "pid").and_then(Value::as_u64).map(|pid| pid as u32).context("no pid")
    }

    /// Unmounts; with `keep` the buffer stays on flash.
    pub fn umount(mut self, keep: bool) -> Result<()> {
        self.mounted = false;
        let mut args: Vec<&OsStr> = vec!["umount".as_ref()];
        if keep {
            args.push("--keep".as_ref());
        }
        args.push(self.mount_point.as_ref());
        run(&self.forebay, &args).map(|_| ())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.mounted {
            let mut args: Vec<&OsStr> = vec!["umount".as_ref(), "--force".as_ref()];
            if find(&self.status, "cache").is_some_and(|cache| !cache.is_null()) {
                args.push("--discard-dirty".as_ref());
            }
            args.push(self.mount_point.as_ref());
            if let Err(error) = run(&self.forebay, &args) {
                eprintln!("bench: could not unmount: {error:#}");
            }
        }
    }
}

/// A directory that is removed with all in it when this is dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes `parent/forebay-bench-PID`.
    pub fn new(parent: &Path) -> Result<Scratch> {
        let dir = parent.join(format!("forebay-bench-{}", std::process::id()));
        std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        Ok(Scratch(dir))
    }

    /// Makes `parent/forebay-bench-PID-NAME`.
    pub fn named(parent: &Path, name: &str) -> Result<Scratch> {
        let dir = parent.join(format!("forebay-bench-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        Ok(Scratch(dir))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes a directory in it.
    pub fn dir(&self, name: &str) -> Result<PathBuf> {
        let dir = self.0.join(name);
        std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        Ok(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("bench: could not remove {}: {error}", self.0.display());
        }
    }
}
