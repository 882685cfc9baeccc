//! Several servers on this machine as one pool, with buffers on it and mounts of them. Used by the rows
//! of more than one server; ends what it started when it is dropped.

use crate::sides::{Scratch, run};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Servers, each listening on TCP and on a Unix socket.
pub struct Pool<'a> {
    forebay: &'a Path,
    config: PathBuf,
    servers: Vec<(Child, String)>,
    // After the servers that use it.
    flash: Scratch,
}

impl<'a> Pool<'a> {
    /// Starts `count` servers with so many bytes each on `flash`.
    pub fn start(
        forebay: &'a Path,
        flash: &Path,
        disk: &Scratch,
        name: &str,
        bytes: u64,
        count: usize,
    ) -> Result<Pool<'a>> {
        let place = Scratch::named(flash, name)?;
        let config = std::path::absolute(disk.dir(&format!("{name}.config"))?)?;
        let mut pool = Pool { forebay, config, servers: Vec::new(), flash: place };
        for at in 0..count {
            let socket = std::path::absolute(disk.path().join(format!("{name}{at}.sock")))?;
            pool.serve(at, &socket, bytes)?;
        }
        Ok(pool)
    }

    fn serve(&mut self, at: usize, socket: &Path, bytes: u64) -> Result<()> {
        let flash = self.flash.dir(&format!("flash{at}"))?;
        let socket = format!("unix:{}", socket.display());
        let mut command = Command::new(self.forebay);
        command
            .args(["serve", "--json", "--listen", "127.0.0.1:0", "--listen", &socket])
            .args(["--capacity", &bytes.to_string(), "--flash"])
            .arg(flash)
            .env("FOREBAY_CONFIG_DIR", &self.config)
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        if let Some((_, leader)) = self.servers.first() {
            command.args(["--join", leader]);
        }
        let mut child = command.spawn().context("start forebay serve")?;
        let mut line = String::new();
        let out = child.stdout.take().context("no output of forebay serve")?;
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line)?;
        let up: Value = serde_json::from_str(&line).context("forebay serve did not start")?;
        let address = up["addresses"][0].as_str().context("no address")?;
        self.servers.push((child, address.to_string()));
        Ok(())
    }

    fn ask(&self, arguments: &[&str]) -> Result<()> {
        let (_, leader) = self.servers.first().context("no server")?;
        let mut command = Command::new(self.forebay);
        command.args(arguments).args(["--server", leader]);
        let output = command.env("FOREBAY_CONFIG_DIR", &self.config).output()?;
        if !output.status.success() {
            bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    /// Makes a buffer over so many of the servers.
    pub fn create(&self, name: &str, bytes: u64, servers: usize) -> Result<()> {
        let (bytes, servers) = (bytes.to_string(), servers.to_string());
        self.ask(&["buffer", "create", name, "--capacity", &bytes, "--servers", &servers])
    }

    /// Removes it.
    pub fn destroy(&self, name: &str) {
        if let Err(error) = self.ask(&["buffer", "destroy", name, "--force"]) {
            eprintln!("bench: the buffer {name} is left behind: {error:#}");
        }
    }

    /// Mounts it.
    pub fn mount(&self, name: &str, point: &Path, options: &[&str]) -> Result<()> {
        let at = point.to_str().context("a mount point that is not UTF-8")?;
        let arguments = [&["mount", "--buffer", name][..], options, &[at]].concat();
        self.ask(&arguments)
    }

    /// The servers' processes.
    pub fn pids(&self) -> Vec<u32> {
        self.servers.iter().map(|(child, _)| child.id()).collect()
    }
}

impl Drop for Pool<'_> {
    fn drop(&mut self) {
        for (child, _) in self.servers.iter_mut().rev() {
            let pid = rustix::process::Pid::from_child(child);
            if rustix::process::kill_process(pid, rustix::process::Signal::TERM).is_err()
                || child.wait().is_err()
            {
                eprintln!("bench: a server could not be ended");
            }
        }
    }
}

/// The process of a mount.
pub fn mount_pid(forebay: &Path, point: &Path) -> Result<u32> {
    let arguments: [&OsStr; 3] = ["status".as_ref(), "--json".as_ref(), point.as_os_str()];
    let status: Value = serde_json::from_str(&run(forebay, &arguments)?)?;
    status["pid"].as_u64().map(|pid| pid as u32).context("no pid")
}

/// Ends a mount.
pub fn umount(forebay: &Path, point: &Path) {
    let arguments: [&OsStr; 3] = ["umount".as_ref(), "--force".as_ref(), point.as_os_str()];
    if let Err(error) = run(forebay, &arguments) {
        eprintln!("bench: could not unmount: {error:#}");
    }
}
