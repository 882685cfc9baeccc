//! What servers and mounts of a test wrote down, for the message of one that fails.

use super::Served;
use std::path::{Path, PathBuf};

impl Served {
    /// The end of the logs, for a failure's message.
    pub fn log_tail(&self) -> String {
        let servers = 0..self.options.servers;
        let log = |at| self.flash(at).join("forebay-server/forebay.log");
        let mut logs: Vec<PathBuf> = servers.map(log).collect();
        for at in 0..self.mount_count() {
            logs.extend(state_dir_log(&self.root(at)));
        }
        let mut text = String::new();
        for log in logs {
            if let Ok(said) = std::fs::read_to_string(&log) {
                let lines: Vec<&str> = said.lines().collect();
                text += &format!("--- {}\n", log.display());
                text += &lines[lines.len().saturating_sub(20)..].join("\n");
                text.push('\n');
            }
        }
        text
    }
}

/// Where the mount's log is: `forebay status` would say, but not of a dead mount.
fn state_dir_log(root: &Path) -> Option<PathBuf> {
    let wanted = root.display().to_string();
    for dir in std::fs::read_dir("/run/forebay").ok()?.flatten() {
        let record = std::fs::read_to_string(dir.path().join("mount.json")).unwrap_or_default();
        if record.contains(&format!("{wanted}\"")) {
            return Some(dir.path().join("forebay.log"));
        }
    }
    None
}
