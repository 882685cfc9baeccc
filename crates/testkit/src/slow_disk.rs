//! A disk of a given speed, to stand for a slow, shared PFS: an ext4 on a loop device whose reads and
//! writes are limited by the kernel's block-I/O throttle (cgroup v1, in the root group, so that
//! write-back is limited too), and whose share of dirty page cache is limited as a Lustre client's
//! is (32 MiB). Without that last limit a write would only reach this node's memory.
//!
//! Invariant: all that is made is undone on drop, also after a failure half-way. Used by system tests
//! and by `forebay-bench`; the demo makes the same in Python (demo/slow_pfs.py).

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The kernel's block-I/O throttle.
const THROTTLE: &str = "/sys/fs/cgroup/blkio";
/// What a client of the PFS may hold back before its writers wait.
const DIRTY_LIMIT_BYTES: u64 = 32 << 20;
/// How often an unmount is tried, a tenth of a second apart.
const UMOUNT_TRIES: u32 = 50;

/// The disk, mounted.
pub struct SlowDisk {
    image: PathBuf,
    device: Option<String>,
    point: PathBuf,
    mounted: bool,
}

fn run(program: &str, args: &[&OsStr]) -> Result<String> {
    let output = Command::new(program).args(args).output();
    let output = output.with_context(|| format!("run {program}"))?;
    if !output.status.success() {
        bail!("{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
}

impl SlowDisk {
    /// Makes one of `bytes` in the directory `parent`, without a limit yet.
    ///
    /// # Errors
    /// No root, no loop device, or no cgroup v1 throttle.
    pub fn new(parent: &Path, bytes: u64) -> Result<SlowDisk> {
        let throttle = Path::new(THROTTLE).join("blkio.throttle.write_bps_device");
        if !throttle.exists() {
            bail!("{} is missing: a slow disk needs the cgroup v1 throttle", throttle.display());
        }
        let parent = std::path::absolute(parent)?;
        let (image, point) = (parent.join("slow.img"), parent.join("slow"));
        let mut disk = SlowDisk { image, device: None, point, mounted: false };
        let file = std::fs::File::create(&disk.image)
            .with_context(|| format!("make {}", disk.image.display()))?;
        file.set_len(bytes)?;
        drop(file);
        let lazy = OsStr::new("lazy_itable_init=0,lazy_journal_init=0");
        let image = disk.image.as_os_str();
        run("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), "-E".as_ref(), lazy, image])?;
        let attach = |direct: &str| {
            run("losetup", &["-f".as_ref(), "--show".as_ref(), direct.as_ref(), image])
        };
        // A file system without direct I/O (tmpfs) goes through its cache.
        let device = attach("--direct-io=on").or_else(|_| attach("--direct-io=off"))?;
        disk.device = Some(device.clone());
        std::fs::create_dir_all(&disk.point)?;
        run("mount", &["-o".as_ref(), "noatime".as_ref(), device.as_ref(), disk.point.as_ref()])?;
        disk.mounted = true;
        Ok(disk)
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.point
    }

    /// Limits reads and writes, each, to so many bytes per second from now on; 0 ends the limit.
    ///
    /// # Errors
    /// No privilege.
    pub fn limit(&self, bytes_per_s: u64) -> Result<()> {
        let number = self.number()?;
        for side in ["read", "write"] {
            let knob = Path::new(THROTTLE).join(format!("blkio.throttle.{side}_bps_device"));
            std::fs::write(&knob, format!("{number} {bytes_per_s}"))
                .with_context(|| format!("write {}", knob.display()))?;
        }
        let (max_ratio, max_bytes, strict) = match bytes_per_s {
            0 => (Some("100"), None, "0"),
            _ => (None, Some(DIRTY_LIMIT_BYTES.to_string()), "1"),
        };
        let device = PathBuf::from(format!("/sys/class/bdi/{number}"));
        let set = |name: &str, value: &str| {
            let knob = device.join(name);
            std::fs::write(&knob, value).with_context(|| format!("write {}", knob.display()))
        };
        if let Some(ratio) = max_ratio {
            set("max_ratio", ratio)?;
        }
        if let Some(bytes) = max_bytes {
            set("max_bytes", &bytes)?;
        }
        set("strict_limit", strict)
    }

    fn number(&self) -> Result<String> {
        let device = self.device.as_deref().context("no device")?;
        let meta = std::fs::metadata(device).with_context(|| format!("look at {device}"))?;
        Ok(format!("{}:{}", libc::major(meta.rdev()), libc::minor(meta.rdev())))
    }

    fn undo(&mut self) -> Result<()> {
        if let Some(device) = self.device.clone() {
            // Another image may get this device's number.
            self.limit(0)?;
            for left in (0..UMOUNT_TRIES).rev() {
                match run("umount", &[self.point.as_ref()]) {
                    Ok(_) => break,
                    Err(_) if !self.mounted => break,
                    Err(error) if left == 0 => return Err(error),
                    Err(_) => std::thread::sleep(std::time::Duration::from_millis(100)),
                }
            }
            run("losetup", &["-d".as_ref(), device.as_ref()])?;
        }
        std::fs::remove_file(&self.image)?;
        Ok(std::fs::remove_dir(&self.point)?)
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        if let Err(error) = self.undo() {
            eprintln!("the slow disk at {} is left behind: {error:#}", self.point.display());
        }
    }
}
