//! Who keeps a mount busy: mounts below it, and processes with a file open or mapped, a current or
//! root directory, or their program below the mount point, as /proc shows them. A process that begins a program behind a
//! mount that does not answer cannot be looked at: it is named, and nobody waits for it. This process's own helper, which
//! has files open for a moment, is nobody who uses the mount.

use forebay_net::look::Looks;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The name of the process that looks up files by their handles for this one (`forebay_fuse::handles`).
const HELPER: &str = "forebay-handles";
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
pub fn seen(mount_point: &Path, store: &Path) -> Option<String> {
    let below = mounts_below(mount_point);
    if !below.is_empty() {
        return Some(format!("other file systems are mounted below it: {}", below.join(", ")));
    }
    let mut looks = Looks::default();
    let mut users = Vec::new();
    for pid in processes().filter(|pid| !is_own_helper(*pid)) {
        if let Some(Some(how)) = looks.at(pid, looks_for(pid, mount_point, store)) {
            users.push(format!("{pid} ({}: {how})", program(pid)));
        }
    }
    users_in_words(users, looks.unseen())
}

/// A look at how a process uses the mount.
fn looks_for(
    pid: u32,
    mount_point: &Path,
    store: &Path,
) -> impl FnOnce() -> Option<&'static str> + Send + 'static + use<> {
    let (mount_point, store) = (mount_point.to_path_buf(), store.to_path_buf());
    move || {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let beside = || (pid != std::process::id()).then(|| use_of(&process, &store)).flatten();
        use_of(&process, &mount_point).or_else(beside)
    }
}

/// `None` if there are none of either kind.
fn users_in_words(mut users: Vec<String>, unseen: &[u32]) -> Option<String> {
    let mut parts = Vec::new();
    match users.len() {
        0 => {}
        n if n > MAX_NAMED => {
            users.truncate(MAX_NAMED);
            parts.push(format!("in use by {n} processes, among them {}", users.join(", ")));
        }
        _ => parts.push(format!("in use by process {}", users.join(", "))),
    }
    if !unseen.is_empty() {
        let named = unseen.iter().take(MAX_NAMED).map(|pid| format!("{pid} ({})", program(*pid)));
        let named = named.collect::<Vec<_>>().join(", ");
        parts.push(format!(
            "perhaps in use by {} that cannot be looked at, since a program begins there behind a mount that does not \
             answer: {named}",
            if unseen.len() == 1 { "one process" } else { "processes" }
        ));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// True for the helper of this process. To read `status` waits for nobody; `stat` would (`forebay_net::look`).
fn is_own_helper(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    is_helper_of(&status, std::process::id())
}

/// By name and parent, see proc_pid_status(5). A line break in a name is written as `\n` there.
fn is_helper_of(status: &str, parent: u32) -> bool {
    let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let its_parent = value("PPid:").and_then(|pid| pid.parse::<u32>().ok());
    value("Name:") == Some(HELPER) && its_parent == Some(parent)
}

/// The name of its program. To read it waits for nobody.
fn program(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim().to_string()
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
}

/// Whether a process other than this one has a file below this directory open or mapped, as far as may be seen. One that
/// cannot be looked at may have.
pub fn is_open(dir: &Path) -> bool {
    let mut looks = Looks::default();
    let mut others = processes().filter(|pid| *pid != std::process::id());
    let mut has = |pid: u32| {
        let (process, dir) = (PathBuf::from(format!("/proc/{pid}")), dir.to_path_buf());
        looks.at(pid, move || use_of(&process, &dir).is_some())
    };
    others.any(|pid| has(pid).unwrap_or(true))
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

    #[test]
    fn the_helper_of_this_process_is_no_user_and_those_of_others_are() {
        let helper =
            "Name:\tforebay-handles\nUmask:\t0022\nState:\tS (sleeping)\nPid:\t70\nPPid:\t7\n";
        assert!(is_helper_of(helper, 7));
        assert!(!is_helper_of(helper, 70), "it is no child of itself");
        assert!(!is_helper_of(&helper.replace("PPid:\t7", "PPid:\t17"), 7));
        assert!(!is_helper_of(&helper.replace("forebay-handles", "sh"), 7));
        assert!(!is_helper_of(
            &helper.replace("forebay-handles", "x\\nName:\\tforebay-handles"),
            7
        ));
        assert!(!is_helper_of("", 7), "it has ended");
        // As this kernel writes it.
        let own = fs::read_to_string("/proc/self/status").unwrap();
        let name = program(std::process::id());
        let parent = std::os::unix::process::parent_id();
        let as_helper = own.replacen(&format!("Name:\t{name}\n"), "Name:\tforebay-handles\n", 1);
        assert!(is_helper_of(&as_helper, parent), "{own}");
    }

    #[test]
    fn who_cannot_be_looked_at_is_named() {
        let own = std::process::id();
        assert_eq!(users_in_words(Vec::new(), &[]), None);
        let text = users_in_words(Vec::new(), &[own]).unwrap();
        let named = format!("does not answer: {own} ({})", program(own));
        assert!(
            text.starts_with("perhaps in use by one process that cannot") && text.ends_with(&named),
            "{text}"
        );
        let text = users_in_words(vec!["7 (sh: open file)".into()], &[own, own]).unwrap();
        assert!(
            text.starts_with(
                "in use by process 7 (sh: open file); perhaps in use by processes that"
            ),
            "{text}"
        );
    }
}
