//! The mount helper: `mount.fuse.forebay SRC MNT [-sfnvrw] [-o OPTIONS]`, as mount(8) calls it
//! for `mount -t fuse.forebay` and for lines of /etc/fstab.
//!
//! SRC that is a directory is FLASH if no `flash=` is given; any other SRC says nothing.
//!
//! A remount changes what the kernel holds by itself. The process of the mount is not told of it, so an option that it would
//! have to follow is refused, and what it does stays as the kernel shows it.

use crate::args::{Cli, Command, MountArgs};
use crate::commands;
use crate::failure::{EXIT_OK, Outcome, Usage};
use crate::mount_options::{self, MountOptionSet};
use clap::Parser;
use forebay_client::mountinfo::{self, MountEntry};
use forebay_fuse::MountFlags;
use forebay_proto::control::ControlError;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Names under which the program is a mount helper.
const NAMES: [&str; 2] = ["mount.forebay", "mount.fuse.forebay"];
/// Options that become flags of `forebay mount`.
const OWN: [&str; 16] = [
    "scratch",
    "cache",
    "capacity",
    "pfs_ttl",
    "writes",
    "drain",
    "verify",
    "flash",
    "store",
    "buffer",
    "server",
    "secret_file",
    "threads",
    "log_file",
    "log_level",
    "no_fast_path",
];

/// Those of them that say what is mounted: a list that has one says how to make the mount.
const WHAT: [&str; 3] = ["scratch", "buffer", "cache"];

/// True if the program was called under one of its names as a mount helper.
pub fn is_helper(program: Option<&OsStr>) -> bool {
    let name = program.map(Path::new).and_then(Path::file_name);
    name.is_some_and(|name| NAMES.iter().any(|known| name == *known))
}

/// What mount(8) asks for.
#[derive(Debug, Default)]
struct Call {
    source: Option<OsString>,
    mount_point: Option<PathBuf>,
    fake: bool,
    options: MountOptionSet,
}

/// Runs as a mount helper; `arguments` are without the program's name.
pub fn run(arguments: impl Iterator<Item = OsString>) -> Outcome {
    let call = parse(arguments)?;
    let mount_point = call
        .mount_point
        .clone()
        .ok_or_else(|| Usage("usage: mount.fuse.forebay SRC MNT [-sfnvrw] [-o OPTIONS]".into()))?;
    if call.fake {
        return Ok(EXIT_OK);
    }
    if call.options.remount {
        let point = forebay_client::canonical(&mount_point)?;
        let flags = flags_of_remount(&point, &call.options)?;
        forebay_fuse::remount(&point, flags)?;
        return Ok(EXIT_OK);
    }
    let args = mount_args(&call, mount_point)?;
    commands::mount::mount(args, call.options)
}

/// The flags of a mount after a remount; an error where it asks for what would not hold.
fn flags_of_remount(point: &Path, wanted: &MountOptionSet) -> Result<MountFlags, ControlError> {
    let table = mountinfo::read()?;
    // The last of several mounts on one point is the one that is seen.
    let Some(entry) = table.iter().rev().find(|entry| entry.point == point) else {
        return Ok(wanted.flags);
    };
    let new = not_followed(entry, wanted);
    if new.is_empty() {
        return Ok(as_it_is(entry, wanted.flags));
    }
    let why = format!(
        "the process of a mount is not told of a remount, and {} would not hold",
        new.join(", ")
    );
    Err(ControlError::new("remount", Some(point), &why).errno(libc::EOPNOTSUPP).hint(
        "nothing was changed; unmount it (a buffer of `mount --scratch` with `forebay umount --keep`), and mount it again \
         with these options",
    ))
}

/// True if a list of the kernel's options has this one.
fn has(list: &str, name: &str) -> bool {
    list.split(',').any(|option| option == name)
}

/// What the process of a mount does, and not the kernel: access times and syncs, by what the kernel shows of the mount.
fn of_process(entry: &MountEntry) -> MountFlags {
    let of_mount = |name| has(&entry.options, name);
    let of_all = |name| has(&entry.super_options, name);
    MountFlags {
        noatime: of_mount("noatime"),
        nodiratime: of_mount("nodiratime"),
        strictatime: !of_mount("noatime") && !of_mount("relatime"),
        sync: of_all("sync"),
        dirsync: of_all("dirsync"),
        ..MountFlags::default()
    }
}

/// These flags, where they are about what the process does with those that the mount has: the kernel would take off what is
/// not named (sync, or one of noatime and nodiratime if the other is), and the process would go on with it.
fn as_it_is(entry: &MountEntry, wanted: MountFlags) -> MountFlags {
    let MountFlags { noatime, nodiratime, strictatime, sync, dirsync, .. } = of_process(entry);
    MountFlags { noatime, nodiratime, strictatime, sync, dirsync, ..wanted }
}

/// What is asked for that this mount does not have, or what it has that is taken back, and that its process would have to do.
///
/// A list that has all of a mount takes back what it leaves out: mount(8) before 2.39 hands neither `sync` nor `async` on where
/// the one takes the other back.
fn not_followed(entry: &MountEntry, asked: &MountOptionSet) -> Vec<&'static str> {
    let (is, wanted) = (of_process(entry), asked.flags);
    let by_name = |name: &'static str| asked.taken_back.contains(&name);
    let has_all = asked.as_shown || asked.own.iter().any(|(own, _)| WHAT.contains(&own.as_str()));
    // These take noatime back by their own names.
    let by_others = by_name("relatime") || wanted.strictatime;
    let takes_back =
        |name: &'static str, is: bool, wanted: bool| is && (by_name(name) || (has_all && !wanted));
    let all = [
        ("noatime", wanted.noatime && !is.noatime),
        ("nodiratime", wanted.nodiratime && !is.nodiratime),
        ("strictatime", wanted.strictatime && !is.strictatime),
        ("sync", wanted.sync && !is.sync),
        ("dirsync", wanted.dirsync && !is.dirsync),
        ("relatime", by_name("relatime") && !has(&entry.options, "relatime")),
        ("atime", takes_back("atime", is.noatime, wanted.noatime || by_others)),
        ("nostrictatime", by_name("nostrictatime") && is.strictatime),
        ("diratime", takes_back("diratime", is.nodiratime, wanted.nodiratime)),
        ("async", takes_back("async", is.sync, wanted.sync)),
        // It has no opposite in mount(8).
        ("no dirsync", has_all && is.dirsync && !wanted.dirsync),
    ];
    all.into_iter().filter(|(_, is_new)| *is_new).map(|(name, _)| name).collect()
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Call, Usage> {
    let mut call = Call::default();
    let mut lists: Vec<OsString> = Vec::new();
    let (mut sloppy, mut places) = (false, Vec::new());
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let bytes = argument.as_bytes();
        let letters = match bytes {
            [b'-', letters @ ..] if !letters.is_empty() => letters,
            _ => {
                places.push(argument);
                continue;
            }
        };
        for (index, letter) in letters.iter().enumerate() {
            match letter {
                b's' => sloppy = true,
                b'f' => call.fake = true,
                b'n' | b'v' => (),
                b'r' => lists.push("ro".into()),
                b'w' => lists.push("rw".into()),
                b'o' | b't' | b'N' => {
                    let rest = &letters[index + 1..];
                    let value = match rest {
                        [] => arguments
                            .next()
                            .ok_or_else(|| Usage("the last option needs a value".into()))?,
                        rest => OsStr::from_bytes(rest).to_os_string(),
                    };
                    if *letter == b'o' {
                        lists.push(value);
                    }
                    break;
                }
                other => {
                    return Err(Usage(format!("option -{} is not known", char::from(*other))));
                }
            }
        }
    }
    // A remount gets all options of the mount there is, also those the kernel added.
    let is_remount =
        |list: &OsString| list.as_bytes().split(|byte| *byte == b',').any(|o| o == b"remount");
    sloppy |= lists.iter().any(is_remount);
    for list in lists {
        mount_options::add(&mut call.options, &list, &OWN, sloppy)?;
    }
    if places.len() > 2 {
        return Err(Usage(format!("{:?} is one argument too many", places[2])));
    }
    let mut places = places.into_iter();
    call.source = places.next();
    call.mount_point = places.next().map(PathBuf::from);
    Ok(call)
}

/// The same mount as `forebay mount` would have it.
fn mount_args(call: &Call, mount_point: PathBuf) -> Result<MountArgs, Usage> {
    let mut line: Vec<OsString> = vec!["forebay".into(), "mount".into()];
    for (name, value) in &call.options.own {
        let mut flag = OsString::from(format!("--{}", name.replace('_', "-")));
        if let Some(value) = value {
            flag.push("=");
            flag.push(value);
        }
        line.push(flag);
    }
    let given = |name: &str| call.options.own.iter().any(|(own, _)| own == name);
    if !given("scratch") && !given("buffer") && !given("cache") {
        return Err(Usage(
            "what to mount? Add scratch=CAPACITY, such as scratch=4GiB, or buffer=NAME and server=ADDR to the mount options".into(),
        ));
    }
    let wants_flash = !given("flash") && !given("buffer");
    if let Some(source) = call.source.as_ref().filter(|_| wants_flash) {
        let path = Path::new(source);
        if path.is_absolute() && path.is_dir() {
            line.push("--flash".into());
            line.push(source.clone());
        }
    }
    line.push("--".into());
    line.push(mount_point.into());
    match Cli::try_parse_from(line).map(|cli| cli.command) {
        Ok(Command::Mount(args)) => Ok(args),
        Ok(_) => Err(Usage("the mount options make no mount".into())),
        Err(error) => Err(Usage(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(arguments: &[&str]) -> Result<Call, Usage> {
        parse(arguments.iter().map(OsString::from))
    }

    #[test]
    fn the_helper_is_known_by_its_name() {
        assert!(is_helper(Some(OsStr::new("/sbin/mount.fuse.forebay"))));
        assert!(!is_helper(Some(OsStr::new("/usr/bin/forebay"))));
        assert!(!is_helper(None));
    }

    #[test]
    fn lines_of_mount_8_become_mounts() {
        let call =
            call(&["none", "/mnt/a b", "-sn", "-o", "rw,nosuid,scratch=4GiB,flash=/x=y,zap"])
                .unwrap();
        assert_eq!(call.options.flags.names(), ["nosuid"]);
        let args = mount_args(&call, call.mount_point.clone().unwrap()).unwrap();
        assert_eq!((args.scratch, args.flash.unwrap()), (Some(4 << 30), PathBuf::from("/x=y")));
        assert_eq!(args.mount_point, PathBuf::from("/mnt/a b"));
    }

    #[test]
    fn a_remount_takes_what_the_kernel_shows() {
        let shown = "remount,ro,nosuid,user_id=0,group_id=0,default_permissions,allow_other,max_read=1048576";
        let call = call(&["forebay:/x", "/mnt", "-o", shown]).unwrap();
        assert!(call.options.remount);
        assert_eq!(call.options.flags.names(), ["ro", "nosuid"]);
    }

    fn entry(options: &str, super_options: &str) -> MountEntry {
        MountEntry {
            id: 1,
            parent_id: 0,
            device: 1,
            root: "/".into(),
            point: "/mnt".into(),
            options: options.into(),
            propagation: String::new(),
            kind: mountinfo::FILE_SYSTEM_TYPE.to_vec(),
            source: b"forebay:/x".to_vec(),
            super_options: super_options.into(),
        }
    }

    #[test]
    fn a_remount_is_refused_what_the_mount_would_not_follow() {
        let asked = |entry: &MountEntry, list: &str| {
            let call = call(&["none", "/mnt", "-o", &format!("remount,{list}")]).unwrap();
            not_followed(entry, &call.options)
        };
        let plain = entry("rw,relatime", "rw,user_id=0");
        assert_eq!(asked(&plain, "noatime,sync,dirsync"), ["noatime", "sync", "dirsync"]);
        assert_eq!(asked(&plain, "strictatime,nodiratime"), ["nodiratime", "strictatime"]);
        let kernels_own = "ro,nosuid,nodev,noexec,nosymfollow,relatime,lazytime,silent";
        assert_eq!(asked(&plain, kernels_own), [""; 0]);
        let all = entry("rw,noatime,nodiratime", "rw,sync,dirsync,user_id=0");
        assert_eq!(asked(&all, "ro,noatime,nodiratime,sync,dirsync"), [""; 0]);
        assert_eq!(asked(&entry("rw", "rw"), "ro,strictatime"), [""; 0]);
        // Its opposites would not hold either.
        let back = "rw,noatime,nodiratime,relatime,diratime,async";
        assert_eq!(asked(&all, back), ["relatime", "diratime", "async"]);
        assert_eq!(asked(&all, "atime"), ["atime"]);
        assert_eq!(
            asked(&entry("rw", "rw"), "relatime,nostrictatime"),
            ["relatime", "nostrictatime"]
        );
        assert_eq!(asked(&plain, "relatime,atime,nostrictatime,diratime,async"), [""; 0]);
    }

    #[test]
    fn a_list_that_has_all_of_a_mount_takes_back_what_it_leaves_out() {
        let entry = entry("rw,noatime,nodiratime", "rw,sync,dirsync,user_id=0");
        let asked = |list: &str| {
            let call = call(&["none", "/mnt", "-o", &format!("remount,{list}")]).unwrap();
            not_followed(&entry, &call.options)
        };
        // As mount(8) hands on what the kernel shows, without the two that take each other back.
        let shown = "user_id=0,group_id=0,max_read=1048576";
        assert_eq!(asked(&format!("rw,noatime,nodiratime,dirsync,{shown}")), ["async"]);
        assert_eq!(asked(&format!("rw,nodiratime,sync,dirsync,{shown}")), ["atime"]);
        assert_eq!(asked(&format!("rw,noatime,sync,dirsync,{shown}")), ["diratime"]);
        assert_eq!(asked(&format!("ro,noatime,nodiratime,sync,dirsync,{shown}")), [""; 0]);
        let relatime = format!("rw,noatime,nodiratime,sync,dirsync,{shown},relatime");
        assert_eq!(asked(&relatime), ["relatime"]);
        // As it does with a line of fstab.
        let line = "nodev,noatime,nodiratime,scratch=16MiB,flash=/x";
        assert_eq!(asked(line), ["async", "no dirsync"]);
        // Who names a source and a mount point gives what is to change.
        assert_eq!(asked("ro"), [""; 0]);
    }

    #[test]
    fn a_remount_leaves_what_the_process_does() {
        let flags = |entry: &MountEntry, list: &str| {
            let call = call(&["none", "/mnt", "-o", &format!("remount,{list}")]).unwrap();
            as_it_is(entry, call.options.flags).names().join(",")
        };
        let all = entry("rw,noatime,nodiratime", "rw,sync,dirsync,user_id=0");
        assert_eq!(flags(&all, "ro,nodiratime"), "ro,noatime,nodiratime,sync,dirsync");
        assert_eq!(flags(&entry("ro,nodiratime", "ro"), "rw,nodiratime"), "nodiratime,strictatime");
        assert_eq!(flags(&entry("ro,nosuid,relatime", "ro"), "rw"), "");
        // As mount(8) 2.38 hands on `remount,atime`, diratime or async with a source: nothing of that can be told.
        assert_eq!(flags(&all, "rw"), "noatime,nodiratime,sync,dirsync");
    }

    #[test]
    fn a_directory_as_source_is_flash() {
        let call = call(&["/dev/shm", "/mnt", "-oscratch=1GiB"]).unwrap();
        assert_eq!(
            mount_args(&call, "/mnt".into()).unwrap().flash.unwrap(),
            PathBuf::from("/dev/shm")
        );
    }

    #[test]
    fn wrong_lines_are_told() {
        assert!(call(&["none", "/mnt", "-o", "turbo"]).unwrap_err().0.contains("turbo"));
        assert!(call(&["none", "/mnt", "-o"]).is_err());
        assert!(call(&["none", "/mnt", "-q"]).is_err());
        assert!(call(&["a", "b", "c"]).unwrap_err().0.contains("too many"));
        let none = call(&["none", "/mnt"]).unwrap();
        assert!(mount_args(&none, "/mnt".into()).unwrap_err().0.contains("scratch=4GiB"));
        let bad = call(&["none", "/mnt", "-o", "scratch=much"]).unwrap();
        assert!(mount_args(&bad, "/mnt".into()).unwrap_err().0.contains("much"));
    }
}
