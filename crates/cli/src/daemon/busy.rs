//! Who keeps a mount busy: mounts below it, and processes with a file open or mapped, a current or
//! root directory, or their program below the mount point, as /proc shows them.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Most processes named in a message.
const MAX_NAMED: usize = 20;

/// Said when nobody is seen who uses it.
const NOBODY_SEEN: &str = "files are open there, by processes that you may not see";

/// A text that names them; without the right to look at other users' processes, only one's own.
/// A file that was given out beside the mount lies below `store`; this process has others of its there.
pub fn describe(mount_point: &Path, store: &Path) -> String {
    seen(mount_point, store).unwrap_or_else(|| NOBODY_SEEN.into())
}

/// The same, `None` if nobody is seen.
fn seen(mount_point: &Path, store: &Path) -> Option<String> {
    let below = mounts_below(mount_point);
    if !below.is_empty() {
        return Some(format!("other file systems are mounted below it: {}", below.join(", ")));
    }
    let mut users = Vec::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let beside = || (pid != std::process::id()).then(|| use_of(&entry.path(), store)).flatten();
        if let Some(how) = use_of(&entry.path(), mount_point).or_else(beside) {
            let program = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            users.push(format!("{pid} ({}: {how})", program.trim()));
        }
    }
    match users.len() {
        0 => None,
        n if n > MAX_NAMED => {
            users.truncate(MAX_NAMED);
            Some(format!("in use by {n} processes, among them {}", users.join(", ")))
        }
        _ => Some(format!("in use by process {}", users.join(", "))),
    }
}

/// Whether a process other than this one has a file below this directory open or mapped, as far as may be seen.
pub fn is_open(dir: &Path) -> bool {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.into_iter().any(|entry| {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        pid.is_some_and(|pid| pid != std::process::id()) && use_of(&entry.path(), dir).is_some()
    })
}

/// Mount points below, at most [`MAX_NAMED`]; none if the table cannot be read.
fn mounts_below(mount_point: &Path) -> Vec<String> {
    let table = forebay_client::mountinfo::read().unwrap_or_default();
    let points = table.iter().map(|entry| &entry.point);
    let below = points.filter(|point| point.starts_with(mount_point) && *point != mount_point);
    below.take(MAX_NAMED).map(|point| point.display().to_string()).collect()
}

/// How the process uses the mount, if it does.
fn use_of(process: &Path, mount_point: &Path) -> Option<&'static str> {
    let below =
        |link: &Path| fs::read_link(link).is_ok_and(|target| is_below(&target, mount_point));
    for (name, how) in
        [("cwd", "current directory"), ("root", "root directory"), ("exe", "program")]
    {
        if below(&process.join(name)) {
            return Some(how);
        }
    }
    let any_below = |dir: &str| {
        let entries = fs::read_dir(process.join(dir)).into_iter().flatten().flatten();
        entries.into_iter().any(|entry| below(&entry.path()))
    };
    if any_below("fd") {
        return Some("open file");
    }
    any_below("map_files").then_some("mapped file")
}

/// The kernel adds " (deleted)" to the name of an unlinked file.
fn is_below(target: &Path, mount_point: &Path) -> bool {
    let bytes = target.as_os_str().as_bytes();
    let bytes = bytes.strip_suffix(b" (deleted)").unwrap_or(bytes);
    Path::new(OsStr::from_bytes(bytes)).starts_with(mount_point)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_file_is_found_with_its_process() {
        let dir = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(dir.path()).unwrap();
        let _file = fs::File::create(base.join("held")).unwrap();
        let text = describe(&base, Path::new("/no/store"));
        assert!(text.contains(&std::process::id().to_string()), "{text}");
        assert!(text.contains("open file"), "{text}");
        assert!(describe(&base.join("elsewhere"), Path::new("/no/store")).contains("may not see"));
    }
}
