//! The rig: a recorded flash directory and a mount point, for the file systems of
//! [`super::target`].
//!
//! Everything of a rig lies on a tmpfs of its own below the temporary directory and goes when
//! the rig is dropped, mounts first. Needs root, /dev/fuse and loop devices.

use super::disk::Disk;
use super::mirror;
use anyhow::{Context, Result, anyhow, bail};
use fuser::BackgroundSession;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// Longest that any command (mount, unmount, check) may take before it counts as hung.
pub(super) const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest that a loop device may hold the image after its unmount: as long as another test that began in a mount namespace of
/// its own needs on a busy machine to let go of what it has no use for ([`crate::procs::LET_GO`]), or to end.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(60);
/// The same where something went wrong, and the test does not depend on it.
const FAILED_RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// Most lines that are told of who holds it.
const HOLDERS_MAX: usize = 20;
/// Size of the tmpfs that holds images (sparse), in bytes.
const TMPFS_BYTES: u64 = 6 << 30;

/// Where one test runs.
pub struct Rig {
    /// The recorded directory.
    pub flash: PathBuf,
    /// Where the file system on trial is mounted.
    pub point: PathBuf,
    /// Where a file system of the disk is mounted, if what is on trial lies in one.
    pub lower: PathBuf,
    /// The disk in `flash`.
    pub disk: Arc<Disk>,
    backing: PathBuf,
    pool: PathBuf,
    session: Option<BackgroundSession>,
    root: tempfile::TempDir,
}

/// A small file of the flash directory, beside the disk.
#[derive(Debug, Clone)]
enum Small {
    Dir,
    File(Vec<u8>),
    Link(PathBuf),
    Disk,
}

/// The flash directory but for the contents of the disk.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    entries: Vec<(PathBuf, u32, Small)>,
}

/// Why a rig cannot be had here, if so.
fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root for mounts and loop devices".to_string());
    }
    ["/dev/fuse", "/dev/loop-control"]
        .into_iter()
        .find(|path| !Path::new(path).exists())
        .map(|path| format!("needs {path}"))
}

impl Rig {
    /// A new, empty rig.
    pub fn new(name: &str) -> Result<Rig> {
        Rig::with_clock(name, Arc::default())
    }

    /// The same, whose disk has a clock with others.
    pub fn with_clock(name: &str, clock: Arc<AtomicU64>) -> Result<Rig> {
        if let Some(why) = missing() {
            bail!("power cuts cannot be tested here: {why}");
        }
        let root = tempfile::Builder::new().prefix(&format!("forebay-{name}-")).tempdir()?;
        let base = root.path();
        run("mount", ["-t", "tmpfs", "-o", &format!("size={TMPFS_BYTES},mode=700"), name], base)?;
        let at = |name: &str| base.join(name);
        for name in ["backing", "pool", "flash", "lower", "mnt"] {
            fs::create_dir(at(name))?;
        }
        let disk = Arc::new(Disk::with_clock(clock));
        let session = mirror::mount(&at("backing"), &at("flash"), disk.clone())
            .context("mount the recording layer")?;
        Ok(Rig {
            flash: at("flash"),
            point: at("mnt"),
            lower: at("lower"),
            disk,
            backing: at("backing"),
            pool: at("pool"),
            session: Some(session),
            root,
        })
    }

    /// Keeps the disk's file alive whatever the file system on trial does with its name.
    pub fn hold_disk(&self) -> Result<()> {
        let (_, path) = self.disk_path()?;
        fs::hard_link(path, self.pool.join("disk")).context("hold the disk")
    }

    /// The disk's path in the flash directory.
    pub fn disk_at(&self) -> Result<PathBuf> {
        Ok(self.flash.join(self.disk_path()?.0))
    }

    fn disk_path(&self) -> Result<(PathBuf, PathBuf)> {
        let surroundings = self.surroundings()?;
        let found = surroundings.entries.iter().find(|(_, _, small)| matches!(small, Small::Disk));
        let (relative, _, _) = found.ok_or_else(|| anyhow!("no image was made in the flash"))?;
        Ok((relative.clone(), self.backing.join(relative)))
    }

    /// Unmounts all that is mounted in the rig but the rig's own, whatever state it is in.
    pub fn clear(&self) {
        detach(&self.point);
        for mount in mounts_below(self.root.path()) {
            if mount != self.flash && mount != self.root.path() {
                detach(&mount);
            }
        }
    }

    /// Waits until no loop device holds the disk. An unmount does not see to that: a process that another test starts in a mount
    /// namespace of its own has a copy of the mount for a moment, and the file system is unmounted when that copy goes.
    ///
    /// # Errors
    /// A loop device still holds it after [`RELEASE_TIMEOUT`]; who has a mount of it is named.
    pub fn must_be_released(&self) -> Result<()> {
        if !self.released_within(RELEASE_TIMEOUT)? {
            let holders = self.holders();
            let who =
                if holders.is_empty() { "nobody who is seen".into() } else { holders.join("; ") };
            bail!("the disk is still in use after the unmount: {who}");
        }
        Ok(())
    }

    /// Waits until no loop device holds the disk; false if one still does after some seconds.
    pub(super) fn wait_released(&self) -> Result<bool> {
        self.released_within(FAILED_RELEASE_TIMEOUT)
    }

    fn released_within(&self, limit: Duration) -> Result<bool> {
        let started = Instant::now();
        while self.disk_in_use()? {
            if started.elapsed() > limit {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(true)
    }

    /// Who has something of the rig mounted but the rig's own: places here, and processes of other mount namespaces with them.
    fn holders(&self) -> Vec<String> {
        let own = [self.root.path(), self.flash.as_path()];
        // The kernel makes nobody wait for this file, whatever a process does.
        let points = |process: &str| -> (String, Vec<String>) {
            let table =
                fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap_or_default();
            let point = |line: &str| line.split(' ').nth(4).map(String::from);
            let below = table.lines().filter_map(point);
            let below = below.filter(|point| Path::new(point).starts_with(self.root.path()));
            // Its number tells one namespace from another.
            let first = table.split(' ').next().unwrap_or_default().to_string();
            (first, below.collect())
        };
        let (here, mounted) = points("self");
        let is_left = |point: &&String| !own.contains(&Path::new(point.as_str()));
        let mut found: Vec<String> = mounted.iter().filter(is_left).cloned().collect();
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = processes.filter_map(|entry| entry.file_name().into_string().ok());
        for id in ids.filter(|id| id.bytes().all(|byte| byte.is_ascii_digit())) {
            let (namespace, below) = points(&id);
            if namespace != here && !below.is_empty() {
                let name = fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
                found.push(format!("process {id} ({}) has {}", name.trim(), below.join(", ")));
            }
        }
        found.truncate(HOLDERS_MAX);
        found
    }

    /// True while a loop device is bound to the disk.
    fn disk_in_use(&self) -> Result<bool> {
        for found in fs::read_dir("/sys/block")? {
            let backing = found?.path().join("loop/backing_file");
            let bound = fs::read_to_string(backing).unwrap_or_default();
            if Path::new(bound.trim_end()).starts_with(&self.flash) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What lies around the disk now.
    pub fn surroundings(&self) -> Result<Surroundings> {
        let mut entries = Vec::new();
        let mut pending = vec![PathBuf::new()];
        while let Some(dir) = pending.pop() {
            for found in fs::read_dir(self.backing.join(&dir))? {
                let found = found?;
                let (path, meta) = (dir.join(found.file_name()), found.metadata()?);
                let small = if meta.is_dir() {
                    pending.push(path.clone());
                    Small::Dir
                } else if meta.is_symlink() {
                    Small::Link(fs::read_link(found.path())?)
                } else if self.disk.id() == Some((meta.dev(), meta.ino())) {
                    Small::Disk
                } else if meta.is_file() {
                    Small::File(fs::read(found.path())?)
                } else {
                    // A socket: a power cut leaves its name, but nothing behind it.
                    continue;
                };
                entries.push((path, meta.mode() & 0o7777, small));
            }
        }
        Ok(Surroundings { entries })
    }

    /// Puts the surroundings back, around the held disk.
    pub fn restore(&self, surroundings: &Surroundings) -> Result<()> {
        for found in fs::read_dir(&self.backing)? {
            let path = found?.path();
            if path.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
        }
        for (path, mode, small) in &surroundings.entries {
            let path = self.backing.join(path);
            match small {
                Small::Dir => fs::create_dir(&path)?,
                Small::File(bytes) => fs::write(&path, bytes)?,
                Small::Link(target) => std::os::unix::fs::symlink(target, &path)?,
                Small::Disk => fs::hard_link(self.pool.join("disk"), &path)?,
            }
            if !matches!(small, Small::Link(_)) {
                use std::os::unix::fs::PermissionsExt;
                fs::set_permissions(&path, fs::Permissions::from_mode(*mode))?;
            }
        }
        Ok(())
    }

    /// Copies the flash directory as it is now to `target` (for a look at a failure).
    pub fn keep(&self, target: &Path) -> Result<()> {
        fs::create_dir_all(target)?;
        let source = self.backing.join(".");
        run("cp", [OsStr::new("-a"), OsStr::new("--sparse=always"), source.as_os_str()], target)?;
        Ok(())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.clear();
        if let Some(session) = self.session.take() {
            match self.wait_released() {
                Ok(true) => drop(session.umount_and_join()),
                // Something still holds the image: the thread serves it until the test ends.
                _ => std::mem::forget(session),
            }
        }
        detach(&self.flash);
        detach(self.root.path());
    }
}

fn detach(path: &Path) {
    // Nothing mounted is the usual case, and there is nobody to tell.
    let _ = rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
}

/// Mount points at or below `base`, the innermost first.
fn mounts_below(base: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(1).map(PathBuf::from));
    let mut below: Vec<PathBuf> = points.filter(|point| point.starts_with(base)).collect();
    below.reverse();
    below
}

/// True if something is mounted on `path`.
pub(super) fn is_mount_point(path: &Path) -> bool {
    mounts_below(path).iter().any(|point| point == path)
}

/// Runs a command whose last argument is a path; its output is part of the error.
pub fn run<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    arguments: impl IntoIterator<Item = S>,
    last: &Path,
) -> Result<String> {
    let mut command = Command::new(&program);
    command.args(arguments).arg(last);
    run_command(&mut command)
}

/// Runs a command with a time limit; returns what it printed.
pub fn run_command(command: &mut Command) -> Result<String> {
    let output = tempfile::tempfile()?;
    let errors = output.try_clone()?;
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::from(output.try_clone()?))
        .stderr(Stdio::from(errors))
        .spawn()
        .with_context(|| format!("run {command:?}"))?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if started.elapsed() > COMMAND_TIMEOUT {
            child.kill()?;
            child.wait()?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let text = read_from_start(output)?;
    match status {
        Some(status) if status.success() => Ok(text),
        Some(status) => bail!("{command:?} ended with {status}: {text}"),
        None => bail!("{command:?} hung for {COMMAND_TIMEOUT:?}: {text}"),
    }
}

fn read_from_start(mut file: File) -> Result<String> {
    use std::io::Seek;
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
