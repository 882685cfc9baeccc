//! What is put to the test on a [`Rig`]: XFS on a loop device is the yardstick (its fsync is
//! known to be right), Forebay is on trial, with an image store by passthrough or with a
//! directory store on some file system, everything served.

use super::rig::{COMMAND_TIMEOUT, Rig, is_mount_point, run, run_command};
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Size of the lower file system of a directory store, in bytes.
const LOWER_BYTES: u64 = 1 << 30;

/// A file system that keeps its data in an image below the rig's flash directory.
pub trait Target {
    /// Mounts it on the rig's mount point, making its store if there is none.
    fn start(&mut self, rig: &Rig) -> Result<()>;
    /// Unmounts it; the store stays.
    fn stop(&mut self, rig: &Rig) -> Result<()>;
    /// Kills its process with -9 and clears the mount point; the store's own mount, if any,
    /// lives on in the kernel.
    fn kill(&mut self, rig: &Rig) -> Result<()>;
    /// Checks the stopped store; an error says what is wrong with it.
    fn check(&mut self, rig: &Rig) -> Result<()>;
    /// True if fsync of any directory makes all earlier operations on names durable, and not
    /// only those that touched it.
    fn directory_sync_covers_all(&self) -> bool;
}

/// XFS on a loop device over the recorded disk.
#[derive(Debug, Clone, Copy)]
pub struct LoopXfs {
    /// Size of the image in bytes.
    pub image_bytes: u64,
}

impl LoopXfs {
    fn image(rig: &Rig) -> PathBuf {
        rig.flash.join("xfs.img")
    }
}

impl Target for LoopXfs {
    fn start(&mut self, rig: &Rig) -> Result<()> {
        let image = LoopXfs::image(rig);
        if !image.exists() {
            let file = File::create(&image)?;
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, self.image_bytes)
                .context("reserve the image")?;
            run("mkfs.xfs", ["-q", "-f"], &image)?;
        }
        let mut command = Command::new("mount");
        command.args(["-t", "xfs", "-o", "loop,nouuid"]).arg(&image).arg(&rig.point);
        run_command(&mut command).map(drop)
    }

    fn stop(&mut self, rig: &Rig) -> Result<()> {
        unmount_when_idle(&rig.point)
    }

    fn kill(&mut self, _rig: &Rig) -> Result<()> {
        bail!("the kernel's file system has no process to kill")
    }

    fn check(&mut self, rig: &Rig) -> Result<()> {
        run("xfs_repair", ["-n"], &LoopXfs::image(rig)).map(drop)
    }

    fn directory_sync_covers_all(&self) -> bool {
        false
    }
}

/// Longest that a server may take to exit after it answered an unmount.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// A lower file system that a directory store can lie on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lower {
    /// ext4, with its journal.
    Ext4,
    /// XFS.
    Xfs,
}

impl Lower {
    /// Mounts it from the recorded disk, making it first if there is none.
    fn mount(self, rig: &Rig) -> Result<()> {
        self.mount_with(rig, "loop")
    }

    /// The same with mount options, `loop` among them.
    ///
    /// # Errors
    /// It cannot be made or mounted.
    pub fn mount_with(self, rig: &Rig, options: &str) -> Result<()> {
        let image = rig.flash.join("lower.img");
        let kind = if self == Lower::Ext4 { "ext4" } else { "xfs" };
        if !image.exists() {
            File::create(&image)?.set_len(LOWER_BYTES).context("make the lower image")?;
            let now = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
            match self {
                Lower::Ext4 => run("mkfs.ext4", ["-q", "-F", "-E", now], &image)?,
                Lower::Xfs => run("mkfs.xfs", ["-q", "-f", "-K"], &image)?,
            };
        }
        let mut command = Command::new("mount");
        command.args(["-t", kind, "-o", options]).arg(&image).arg(&rig.lower);
        run_command(&mut command).map(drop)
    }

    /// Mounts the store's own file system, an image on the recorded disk, for a look into it; [`Lower::unmount`].
    ///
    /// # Errors
    /// It cannot be mounted.
    pub fn mount_image(rig: &Rig) -> Result<()> {
        let mut command = Command::new("mount");
        command.args(["-t", "xfs", "-o", "loop,nouuid"]).arg(rig.disk_at()?).arg(&rig.lower);
        run_command(&mut command).map(drop)
    }

    /// Unmounts it. The server answers an unmount a moment before it exits, and holds files here
    /// until then.
    ///
    /// # Errors
    /// It stays busy.
    pub fn unmount(rig: &Rig) -> Result<()> {
        unmount_when_idle(&rig.lower)
    }
}

/// Unmounts; busy for a moment is not an error: a process that another test starts just then has a
/// copy of all our open files until it runs its program.
fn unmount_when_idle(point: &Path) -> Result<()> {
    let started = Instant::now();
    loop {
        match run("umount", [] as [&str; 0], point) {
            Err(error) if started.elapsed() > EXIT_TIMEOUT => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
            Ok(_) => return Ok(()),
        }
    }
}

/// `forebay mount --scratch` with its flash on the recorded directory.
#[derive(Debug, Clone)]
pub struct Forebay {
    /// The program.
    pub program: PathBuf,
    /// Capacity as written on the command line.
    pub capacity: String,
    /// `None`: an image store straight on the recorded directory; else a directory store on
    /// this file system, everything served.
    pub lower: Option<Lower>,
}

impl Forebay {
    /// The executable under test, with a buffer of `capacity`.
    pub fn new(capacity: &str) -> Forebay {
        Forebay { program: crate::buffer::binary(), capacity: capacity.to_string(), lower: None }
    }

    /// The same with a directory store on `lower`.
    pub fn on(lower: Lower, capacity: &str) -> Forebay {
        Forebay { lower: Some(lower), ..Forebay::new(capacity) }
    }

    fn flash<'a>(&self, rig: &'a Rig) -> &'a Path {
        if self.lower.is_some() { &rig.lower } else { &rig.flash }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).env_remove("FOREBAY_FLASH");
        command
    }

    /// Process id of the server on the rig's mount point.
    fn pid(&self, rig: &Rig) -> Result<i32> {
        let text = run_command(self.command(&["status", "--json"]).arg(&rig.point))?;
        let status: serde_json::Value = serde_json::from_str(&text)?;
        find_number(&status, "pid")
            .and_then(|pid| i32::try_from(pid).ok())
            .ok_or_else(|| anyhow!("status names no process: {text}"))
    }
}

/// The first number under `key` anywhere in a JSON value.
fn find_number(value: &serde_json::Value, key: &str) -> Option<u64> {
    match value {
        serde_json::Value::Object(map) => map
            .get(key)
            .and_then(serde_json::Value::as_u64)
            .or_else(|| map.values().find_map(|value| find_number(value, key))),
        serde_json::Value::Array(list) => list.iter().find_map(|value| find_number(value, key)),
        _ => None,
    }
}

impl Target for Forebay {
    fn start(&mut self, rig: &Rig) -> Result<()> {
        let store = if self.lower.is_some() { "directory" } else { "image" };
        if let Some(lower) = self.lower.filter(|_| !is_mount_point(&rig.lower)) {
            lower.mount(rig).context("mount the lower file system")?;
        }
        let mut command = self.command(&["mount", "--scratch", &self.capacity]);
        command.args(["--store", store, "--flash"]).arg(self.flash(rig)).arg(&rig.point);
        run_command(&mut command).map(drop)
    }

    fn stop(&mut self, rig: &Rig) -> Result<()> {
        run_command(self.command(&["umount", "--keep"]).arg(&rig.point))?;
        self.lower.map_or(Ok(()), |_| Lower::unmount(rig))
    }

    fn kill(&mut self, rig: &Rig) -> Result<()> {
        let pid = self.pid(rig)?;
        let pid = rustix::process::Pid::from_raw(pid).ok_or_else(|| anyhow!("pid 0"))?;
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
        // Nobody may be there to reap it: a zombie is dead enough, its files are closed.
        let status = format!("/proc/{}/status", pid.as_raw_nonzero());
        let started = Instant::now();
        while fs::read_to_string(&status).is_ok_and(|status| !status.contains("\nState:\tZ")) {
            ensure!(started.elapsed() < COMMAND_TIMEOUT, "process {pid:?} survives kill -9");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn check(&mut self, rig: &Rig) -> Result<()> {
        if let Some(lower) = self.lower {
            lower.mount(rig)?;
        }
        let mut command = self.command(&["check", "--flash"]);
        let checked = run_command(command.arg(self.flash(rig)).arg(&rig.point)).map(drop);
        if self.lower.is_some() {
            Lower::unmount(rig)?;
        }
        checked
    }

    fn directory_sync_covers_all(&self) -> bool {
        true
    }
}
