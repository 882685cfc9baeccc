//! The log: one line per event, to a file or to standard error.

use forebay_proto::control::ControlError;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Mutex;
use tracing_subscriber::filter::LevelFilter;

/// Opens a log file for appending; only its owner may read it.
pub fn open(path: &Path) -> Result<File, ControlError> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
        .map_err(|error| ControlError::io("open the log file", Some(path), &error))
}

/// Starts to log. The level's name was checked by the command line.
pub fn start(path: Option<&Path>, level: &str) -> Result<(), ControlError> {
    let level = LevelFilter::from_str(level).unwrap_or(LevelFilter::INFO);
    let builder = tracing_subscriber::fmt().with_max_level(level).with_ansi(false);
    let started = match path {
        Some(path) => builder.with_writer(Mutex::new(open(path)?)).try_init(),
        None => builder.with_writer(std::io::stderr).try_init(),
    };
    started.map_err(|error| ControlError::new("start the log", path, &error.to_string()))
}
