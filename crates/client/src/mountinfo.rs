//! The kernel's table of mounts, /proc/self/mountinfo (proc(5)). Paths are bytes; the kernel
//! writes blank, tab, newline and backslash as three octal digits.

use forebay_proto::control::ControlError;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// File system type of Forebay's mounts.
pub const FILE_SYSTEM_TYPE: &[u8] = b"fuse.forebay";
/// What stands before the store's directory in the source of a mount.
pub const SOURCE_PREFIX: &[u8] = b"forebay:";
const TABLE: &str = "/proc/self/mountinfo";
/// More bytes than the first number of a table has.
const FIRST_NUMBER_MAX: usize = 24;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Its number, of no other mount of the machine while it is there; 0 if the table says something strange.
    pub id: u64,
    /// The number of the mount that it lies on.
    pub parent_id: u64,
    /// Its device, as `stat` shows it for the files there; 0 if the table says something strange.
    pub device: u64,
    /// Which directory of the file system is mounted (not `/` for a bind mount of a part).
    pub root: PathBuf,
    /// Where.
    pub point: PathBuf,
    /// Options of this mount, such as `rw,nosuid`.
    pub options: String,
    /// How changes below it go to and from other mounts, such as `shared:3 master:2`.
    pub propagation: String,
    /// Type, such as `fuse.forebay`.
    pub kind: Vec<u8>,
    /// Source, such as `forebay:/dev/shm/forebay-0123`.
    pub source: Vec<u8>,
    /// Options of the file system, such as `user_id=0,allow_other`.
    pub super_options: String,
}

impl MountEntry {
    /// The store's directory, if this is a mount of Forebay.
    pub fn store_dir(&self) -> Option<PathBuf> {
        if self.kind != FILE_SYSTEM_TYPE {
            return None;
        }
        let dir = self.source.strip_prefix(SOURCE_PREFIX)?;
        Some(PathBuf::from(OsString::from_vec(dir.to_vec())))
    }

    /// The user that mounted it, from the options of a FUSE file system.
    pub fn owner_uid(&self) -> Option<u32> {
        self.super_options
            .split(',')
            .find_map(|option| option.strip_prefix("user_id=")?.parse().ok())
    }
}

/// All mounts that this process sees, in the order they were made.
pub fn read() -> crate::Result<Vec<MountEntry>> {
    let text = std::fs::read(TABLE).map_err(|error| {
        ControlError::io("read the table of mounts", Some(Path::new(TABLE)), &error)
    })?;
    Ok(parse(&text))
}

/// All mounts that another process sees; `None` if it has ended or may not be looked at.
pub fn read_of(pid: u32) -> Option<Vec<MountEntry>> {
    std::fs::read(format!("/proc/{pid}/mountinfo")).ok().map(|text| parse(&text))
}

/// Tells the mount namespace of a process (`self`, or its number), as it sees that, from all others: the number of the first
/// mount in it, which no other namespace has. Who has changed its root sees less, and counts as another one. `None` if the
/// process has ended, or sees none.
///
/// Not the link /proc/PID/ns/mnt: to read that one waits for a process that begins a program behind a mount that does not
/// answer, and only the superuser may. The table of mounts waits for no process, and this reads one line of it.
fn namespace(process: &str) -> Option<u64> {
    let mut line = [0; FIRST_NUMBER_MAX];
    let mut table = File::open(format!("/proc/{process}/mountinfo")).ok()?;
    let length = table.read(&mut line).ok()?;
    let number = line[..length].split(|byte| *byte == b' ').next()?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

/// The mount namespace that a process sees; the same number for all that see the same.
pub fn namespace_of(pid: u32) -> Option<u64> {
    namespace(&pid.to_string())
}

/// That of this process.
pub fn own_namespace() -> Option<u64> {
    namespace("self")
}

/// One process, by its number, of each other mount namespace that is seen.
pub fn other_namespaces() -> Vec<u32> {
    let mut known: HashSet<u64> = own_namespace().into_iter().collect();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|pid: &u32| namespace_of(*pid).is_some_and(|of| known.insert(of))).collect()
}

fn parse(text: &[u8]) -> Vec<MountEntry> {
    text.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /root /point options [tags]... - type source super-options`
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let number = |field: Option<&[u8]>| std::str::from_utf8(field?).ok()?.parse().ok();
    let id = number(fields.next()).unwrap_or(0);
    let parent_id = number(fields.next()).unwrap_or(0);
    let device = fields.next().and_then(device_of).unwrap_or(0);
    let root = fields.next()?;
    let point = fields.next()?;
    let options = fields.next()?;
    let mut tags = Vec::new();
    loop {
        match fields.next()? {
            b"-" => break,
            tag => tags.push(String::from_utf8_lossy(tag)),
        }
    }
    let (kind, source) = (fields.next()?, fields.next()?);
    let super_options = fields.next().unwrap_or_default();
    let path = |raw: &[u8]| PathBuf::from(OsString::from_vec(unescape(raw)));
    Some(MountEntry {
        id,
        parent_id,
        propagation: tags.join(" "),
        device,
        root: path(root),
        point: path(point),
        options: String::from_utf8_lossy(options).into_owned(),
        kind: unescape(kind),
        source: unescape(source),
        super_options: String::from_utf8_lossy(super_options).into_owned(),
    })
}

/// `MAJOR:MINOR`
fn device_of(field: &[u8]) -> Option<u64> {
    let (major, minor) = std::str::from_utf8(field).ok()?.split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

fn unescape(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((&byte, tail)) = rest.split_first() {
        if let (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) =
            (byte, tail)
        {
            out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
            rest = after;
        } else {
            out.push(byte);
            rest = tail;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn lines_parse_with_escapes_and_any_number_of_tags() {
        let line =
            b"71 24 0:45 / /mnt/a\\040b\\012c\\134 rw,nosuid shared:3 master:2 - fuse.forebay \
            forebay:/dev/shm/x\\040y rw,user_id=1000,group_id=0";
        let entry = parse_line(line).unwrap();
        assert_eq!(entry.point.as_os_str().as_bytes(), b"/mnt/a b\nc\\");
        assert_eq!(entry.store_dir().unwrap(), PathBuf::from("/dev/shm/x y"));
        assert_eq!((entry.owner_uid(), entry.device), (Some(1000), 45));
        assert_eq!((entry.id, entry.parent_id), (71, 24));
        assert_eq!(entry.propagation, "shared:3 master:2");
        let plain = parse_line(b"22 1 254:0 / / rw - ext4 /dev/vda rw").unwrap();
        assert_eq!((plain.store_dir(), plain.options.as_str()), (None, "rw"));
        assert_eq!(parse_line(b""), None);
    }

    #[test]
    fn the_table_of_this_machine_has_a_root() {
        assert!(read().unwrap().iter().any(|entry| entry.point == Path::new("/")));
    }

    #[test]
    fn processes_that_see_the_same_mounts_have_one_namespace() {
        let own = own_namespace().unwrap();
        assert_eq!(namespace_of(std::process::id()), Some(own));
        let ids: HashSet<u64> = read().unwrap().iter().map(|entry| entry.id).collect();
        assert!(ids.contains(&own), "it is the number of a mount that we see");
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let of_child = namespace_of(child.id());
        let others = other_namespaces();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(of_child, Some(own));
        assert!(!others.contains(&child.id()) && !others.contains(&std::process::id()));
        assert_eq!(namespace_of(u32::MAX), None);
    }
}
