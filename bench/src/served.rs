//! Buffers of `forebay serve`, mounted several times on this machine: what a second process and a
//! second mount cost, and that idle ones cost nothing.
//!
//! Rows on names compare with a mount that has its buffer to itself; the row on data compares with a
//! plain directory, as all rows on data do. Mounts by Unix socket are "on the server's node"; mounts
//! over TCP are kept from the Unix socket, so all that they do is served.

use crate::names;
use crate::report::{Row, Target};
use crate::sides::{self, Buffer, Scratch, Sides, run};
use crate::{data, idle};
use anyhow::{Context, Result, bail};
use forebay_loadgen::held::{Op, Pattern, Workers};
use serde_json::Value;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Name of the buffer.
const NAME: &str = "bench";
/// CPU seconds that all idle processes together may take in a minute: signs of life alone.
const IDLE_TARGET_S: f64 = 0.05;

const NAMES_NOTE: &str = "served, on names: the ratio is to a mount that has its buffer to itself, not to a \
    plain directory; CPU of the daemon is that of the mount, without the server's.";
const OPEN_NOTE: &str =
    "open elsewhere: a second mount of the same buffer holds the same files open for reading.";
const IDLE_NOTE: &str = "idle: CPU of one server and two mounts together, scaled to a minute.";

/// A server with a buffer.
pub struct Served<'a> {
    forebay: &'a Path,
    config: PathBuf,
    child: Child,
    tcp: String,
    flash: Scratch,
}

impl<'a> Served<'a> {
    /// Starts a server on `flash` and makes the buffer.
    pub fn start(
        forebay: &'a Path,
        flash: &Path,
        disk: &Scratch,
        bytes: u64,
    ) -> Result<Served<'a>> {
        // Beside the directory of the other store, which has this process's number too.
        let place = Scratch::named(flash, "served")?;
        let config = std::path::absolute(disk.dir("served.config")?)?;
        let socket = std::path::absolute(disk.path().join("served.sock"))?;
        let socket = format!("unix:{}", socket.display());
        let child = Command::new(forebay)
            .args(["serve", "--json", "--listen", "127.0.0.1:0", "--listen", &socket])
            .args(["--capacity", &(bytes + (64 << 20)).to_string(), "--flash"])
            .arg(place.path())
            .env("FOREBAY_CONFIG_DIR", &config)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("start forebay serve")?;
        let mut served = Served { forebay, config, child, tcp: String::new(), flash: place };
        let mut line = String::new();
        let out = served.child.stdout.take().context("no output of forebay serve")?;
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line)?;
        let up: Value = serde_json::from_str(&line).context("forebay serve did not start")?;
        let address = up["addresses"][0].as_str().context("no address")?;
        served.tcp = address.to_string();
        let bytes = bytes.to_string();
        served.ask(&["buffer", "create", NAME, "--capacity", &bytes])?;
        Ok(served)
    }

    fn ask(&self, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new(self.forebay);
        command.args(arguments).args(["--server", &self.tcp]);
        let output = command.env("FOREBAY_CONFIG_DIR", &self.config).output()?;
        if !output.status.success() {
            bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    /// Mounts the buffer once more; without `near` over TCP alone.
    fn mount(&self, point: PathBuf, near: bool) -> Result<Mount<'a>> {
        let at = point.to_str().context("a mount point that is not UTF-8")?;
        let mut arguments = vec!["mount", "--buffer", NAME];
        if !near {
            arguments.push("--no-fast-path");
        }
        arguments.push(at);
        self.ask(&arguments)?;
        Ok(Mount { forebay: self.forebay, point })
    }

    /// The directory of the store's objects.
    fn data_dir(&self) -> Result<PathBuf> {
        let entries = std::fs::read_dir(self.flash.path())?;
        let stores = entries.flatten().map(|entry| entry.path().join("data"));
        stores.into_iter().find(|data| data.is_dir()).context("the server has no store")
    }
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.ask(&["buffer", "destroy", NAME, "--force"]) {
            eprintln!("bench: the served buffer is left behind: {error:#}");
        }
        let pid = rustix::process::Pid::from_child(&self.child);
        if rustix::process::kill_process(pid, rustix::process::Signal::TERM).is_err()
            || self.child.wait().is_err()
        {
            eprintln!("bench: the server could not be ended");
        }
    }
}

/// A mount of it.
struct Mount<'a> {
    forebay: &'a Path,
    point: PathBuf,
}

impl Mount<'_> {
    fn daemon(&self) -> Result<u32> {
        let arguments: [&OsStr; 3] = ["status".as_ref(), "--json".as_ref(), self.point.as_ref()];
        let status: Value = serde_json::from_str(&run(self.forebay, &arguments)?)?;
        status["pid"].as_u64().map(|pid| pid as u32).context("no pid")
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let arguments: [&OsStr; 3] = ["umount".as_ref(), "--force".as_ref(), self.point.as_ref()];
        if let Err(error) = run(self.forebay, &arguments) {
            eprintln!("bench: could not unmount: {error:#}");
        }
    }
}

/// Holds every file of a directory open until it is dropped.
struct HeldOpen {
    over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl HeldOpen {
    fn new(dir: PathBuf) -> HeldOpen {
        let over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let mut held: HashMap<PathBuf, File> = HashMap::new();
            while !until.load(Ordering::Relaxed) {
                for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
                    if let Ok(file) = File::open(entry.path()) {
                        held.entry(entry.path()).or_insert(file);
                    }
                }
                held.retain(|path, _| path.exists());
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        HeldOpen { over, thread: Some(thread) }
    }
}

impl Drop for HeldOpen {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("bench: the thread that holds files open panicked");
        }
    }
}

/// All rows.
pub fn measure(
    served: &Served<'_>,
    disk: &Scratch,
    alone: &Buffer,
    workers: &mut Workers,
    pairs: usize,
    mut keep: impl FnMut(Row),
) -> Result<()> {
    let near = served.mount(disk.dir("served.near")?, true)?;
    for (mount, how, least) in [
        (None, "Unix socket", 0.5),
        (Some(served.mount(disk.dir("served.tcp")?, false)?), "TCP", 0.4),
    ] {
        let point = &mount.as_ref().unwrap_or(&near).point;
        let daemon = mount.as_ref().unwrap_or(&near).daemon()?;
        for row in on_names((alone, point, daemon), how, least, workers, pairs)? {
            keep(row);
        }
    }
    keep(open_elsewhere(served, disk, &near, workers, pairs)?);
    keep(idle(served, disk, &near)?);
    Ok(())
}

/// Create, stat and unlink of one mount in its own directory.
fn on_names(
    (alone, point, daemon): (&Buffer, &Path, u32),
    how: &str,
    least: f64,
    workers: &mut Workers,
    pairs: usize,
) -> Result<Vec<Row>> {
    let sides = Sides {
        raw: alone.mount_point.join("bench.alone"),
        buffer: point.join("bench"),
        daemon: Some(daemon),
        mounts: [Some(alone.mount_point.clone()), Some(point.to_path_buf())],
    };
    for dir in [&sides.raw, &sides.buffer] {
        std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    }
    let wanted = ["create+close, new name", "stat, repeated", "unlink, name known"];
    let rows = names::measure(&sides, workers, pairs)?;
    Ok(rows
        .into_iter()
        .filter(|row| wanted.contains(&row.case.as_str()))
        .map(|row| Row {
            part: "served",
            case: format!("{} ({how})", row.case),
            target: Some(Target::RatioAtLeast(least)),
            note: NAMES_NOTE,
            ..row
        })
        .collect())
}

/// A whole local file on its own node while another mount has it open.
fn open_elsewhere(
    served: &Served<'_>,
    disk: &Scratch,
    near: &Mount<'_>,
    workers: &mut Workers,
    pairs: usize,
) -> Result<Row> {
    let raw = Scratch::new(&served.data_dir()?)?;
    let other = served.mount(disk.dir("served.other")?, false)?;
    let sides = Sides {
        raw: raw.dir("raw")?,
        buffer: near.point.join("bench.open"),
        daemon: Some(near.daemon()?),
        mounts: [Some(sides::mount_root(raw.path())?), Some(near.point.clone())],
    };
    std::fs::create_dir(&sides.buffer).context("make a directory in the buffer")?;
    let _held = HeldOpen::new(other.point.join("bench.open"));
    let wanted = |case: &data::Case| {
        (case.op, case.pattern, case.block_bytes, case.processes, case.shared)
            == (Op::Overwrite, Pattern::Sequential, 1 << 20, 2, false)
    };
    let case = data::cases(false).into_iter().find(wanted).context("no such case")?;
    let row = data::measure(&case, &sides, workers, pairs)?;
    workers.forget()?;
    Ok(Row {
        part: "served",
        case: format!("{}, open elsewhere", row.case),
        target: Some(Target::RatioAtLeast(0.85)),
        note: OPEN_NOTE,
        ..row
    })
}

/// CPU of a server and two mounts that do nothing.
fn idle(served: &Served<'_>, disk: &Scratch, near: &Mount<'_>) -> Result<Row> {
    let far = served.mount(disk.dir("served.far")?, false)?;
    let all = [served.child.id(), near.daemon()?, far.daemon()?];
    let case = "idle server and two mounts, CPU in a minute";
    idle::row("served", case, IDLE_TARGET_S, IDLE_NOTE, &all)
}
