//! Mount options, as `-o` of `forebay mount` and of mount(8) gives them.

use crate::failure::Usage;
use forebay_fuse::MountFlags;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// What a list of mount options says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountOptionSet {
    /// Flags of the mount.
    pub flags: MountFlags,
    /// Other users may use the mount.
    pub allow_other: bool,
    /// The mount is there: change its flags.
    pub remount: bool,
    /// Opposites of flags that were asked for by name, and not followed by what they take back: `relatime` and the like. A
    /// mount that is there may have what they take back.
    pub taken_back: Vec<&'static str>,
    /// The kernel's own are among them, as where mount(8) hands back all that the kernel shows of a mount.
    pub as_shown: bool,
    /// Options with a value or that only `forebay` knows, in order: name and value.
    pub own: Vec<(String, Option<PathBuf>)>,
}

/// Options of fstab and mount(8) that say nothing to a file system.
const NOTHING_TO_DO: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "_netdev",
    "nofail",
    "rw",
    "suid",
    "dev",
    "exec",
    "atime",
    "relatime",
    "norelatime",
    "nostrictatime",
    "diratime",
    "nolazytime",
    "symfollow",
    "loud",
    "async",
    "default_permissions",
];

/// Those of them that take back what the mount's process does.
const OPPOSITES: [&str; 5] = ["relatime", "atime", "nostrictatime", "diratime", "async"];

/// What the kernel shows of a mount; `mount -o remount` hands all of it back.
const KERNELS_OWN: [&str; 5] = ["user_id", "group_id", "max_read", "rootmode", "blksize"];

impl MountOptionSet {
    /// What these take back is asked for after them.
    fn asks_again(&mut self, opposites: &[&str]) {
        self.taken_back.retain(|taken| !opposites.contains(taken));
    }
}

/// Adds the options of one list (separated by commas) to a set. `known` are the names with
/// values that the caller takes; another name is an error unless `sloppy`.
pub fn add(
    set: &mut MountOptionSet,
    list: &OsStr,
    known: &[&str],
    sloppy: bool,
) -> Result<(), Usage> {
    for option in list.as_bytes().split(|byte| *byte == b',').filter(|option| !option.is_empty()) {
        let mut parts = option.splitn(2, |byte| *byte == b'=');
        let name = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
        let value = parts.next().map(|value| PathBuf::from(OsStr::from_bytes(value)));
        match (name.as_str(), value) {
            ("ro", None) => set.flags.read_only = true,
            ("nosuid", None) => set.flags.nosuid = true,
            ("nodev", None) => set.flags.nodev = true,
            ("noexec", None) => set.flags.noexec = true,
            ("noatime", None) => {
                (set.flags.noatime, set.flags.strictatime) = (true, false);
                set.asks_again(&["relatime", "atime"]);
            }
            ("strictatime", None) => {
                (set.flags.noatime, set.flags.strictatime) = (false, true);
                set.asks_again(&["relatime", "nostrictatime"]);
            }
            ("nodiratime", None) => {
                set.flags.nodiratime = true;
                set.asks_again(&["diratime"]);
            }
            ("lazytime", None) => set.flags.lazytime = true,
            ("sync", None) => {
                set.flags.sync = true;
                set.asks_again(&["async"]);
            }
            ("dirsync", None) => set.flags.dirsync = true,
            ("nosymfollow", None) => set.flags.nosymfollow = true,
            ("silent", None) => set.flags.silent = true,
            ("allow_other", None) => set.allow_other = true,
            ("remount", None) => set.remount = true,
            (name, None) if NOTHING_TO_DO.contains(&name) => {
                undo(&mut set.flags, name);
                set.taken_back.extend(OPPOSITES.iter().find(|opposite| **opposite == name));
            }
            (name, _) if name.starts_with("x-") || name == "comment" => (),
            (name, Some(_)) if KERNELS_OWN.contains(&name) => set.as_shown = true,
            (name, value) if known.contains(&name) => set.own.push((name.into(), value)),
            _ if sloppy => (),
            (name, _) => {
                return Err(Usage(format!(
                    "mount option {name:?} is not known; see `forebay mount --help`"
                )));
            }
        }
    }
    Ok(())
}

/// `rw` after `ro` takes it back, as in mount(8).
fn undo(flags: &mut MountFlags, name: &str) {
    match name {
        "rw" => flags.read_only = false,
        "suid" => flags.nosuid = false,
        "dev" => flags.nodev = false,
        "exec" => flags.noexec = false,
        "atime" => flags.noatime = false,
        "relatime" => (flags.noatime, flags.strictatime) = (false, false),
        "nostrictatime" => flags.strictatime = false,
        "diratime" => flags.nodiratime = false,
        "nolazytime" => flags.lazytime = false,
        "symfollow" => flags.nosymfollow = false,
        "loud" => flags.silent = false,
        "async" => flags.sync = false,
        _ => (),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<MountOptionSet, Usage> {
        let mut set = MountOptionSet::default();
        add(&mut set, OsStr::new(list), &["scratch"], false).map(|()| set)
    }

    #[test]
    fn the_last_of_two_opposites_counts() {
        let set = parse("ro,nosuid,nodev,rw,,defaults,x-systemd.automount").unwrap();
        assert_eq!(set.flags.names(), ["nosuid", "nodev"]);
        assert!(parse("remount,ro").unwrap().remount);
    }

    #[test]
    fn what_mount_8_passes_is_known() {
        let all = "ro,nosuid,nodev,noexec,nodiratime,strictatime,lazytime,sync,dirsync,nosymfollow,silent";
        assert_eq!(parse(all).unwrap().flags.names().join(","), all);
        let back = "rw,suid,dev,exec,diratime,relatime,nolazytime,async,symfollow,loud";
        let flags = parse(&format!("{all},{back}")).unwrap().flags;
        assert_eq!(flags.names(), ["dirsync"], "it has no opposite");
        assert_eq!(parse("noatime,strictatime").unwrap().flags.names(), ["strictatime"]);
        assert_eq!(parse("strictatime,noatime").unwrap().flags.names(), ["noatime"]);
    }

    #[test]
    fn what_is_taken_back_by_name_is_noted_unless_it_is_asked_for_again() {
        let taken_back = |list: &str| parse(list).unwrap().taken_back;
        assert_eq!(taken_back("ro,noatime,relatime,async"), ["relatime", "async"]);
        assert_eq!(taken_back("relatime,atime,diratime,async,noatime,nodiratime,sync"), [""; 0]);
        assert_eq!(taken_back("nostrictatime,relatime,strictatime"), [""; 0]);
        assert_eq!(taken_back("relatime,nostrictatime,noatime"), ["nostrictatime"]);
        assert_eq!(taken_back("defaults,rw,suid,dev,exec,norelatime"), [""; 0]);
    }

    #[test]
    fn what_the_kernel_shows_is_told_from_what_a_user_gives() {
        assert!(parse("ro,user_id=0,group_id=0,remount").unwrap().as_shown);
        assert!(!parse("ro,nosuid,remount,scratch=4GiB").unwrap().as_shown);
    }

    #[test]
    fn own_options_are_kept_and_unknown_ones_named() {
        let set = parse("scratch=4GiB,allow_other").unwrap();
        assert_eq!(set.own, [("scratch".into(), Some("4GiB".into()))]);
        assert!(set.allow_other);
        assert!(parse("turbo").unwrap_err().0.contains("turbo"));
    }
}
