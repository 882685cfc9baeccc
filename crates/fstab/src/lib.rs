//! Mount points of /etc/fstab at which nothing is mounted.
//!
//! What is copied below such a directory ends on the disk that holds the directory: the copy is complete, and gone from sight as
//! soon as the file system is mounted. A file system that no table names cannot be missed.
//!
//! No path is looked at here, since a file system that hangs would stop the caller: names are compared. Called before a plan or a
//! commit writes to the PFS (`mover`), and when a job script is looked at (`jobs`).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The table of what should be mounted (fstab(5)).
pub const FSTAB: &str = "/etc/fstab";
/// What is mounted, as this process sees it (proc(5)).
const MOUNTED: &str = "/proc/self/mountinfo";
/// The fields of a line that name the mount point.
const MOUNTED_FIELD: usize = 4;
const FSTAB_FIELD: usize = 1;

/// The mount point of `table` at or above `path` (absolute, without symbolic links) at which nothing is mounted; `None` if there is
/// none, or a table cannot be read.
pub fn unmounted_above(table: &Path, path: &Path) -> Option<PathBuf> {
    let table = std::fs::read(table).ok()?;
    let mounted = std::fs::read(MOUNTED).ok()?;
    missed_in(&table, &mounted, path)
}

/// The deepest mount point of the table (fstab(5)) at or above a path, if nothing is mounted there.
fn missed_in(table: &[u8], mounted: &[u8], path: &Path) -> Option<PathBuf> {
    let deepest = |text: &[u8], field| {
        let above = points(text, field).filter(|point| path.starts_with(point));
        above.max_by_key(|point| point.as_os_str().len())
    };
    let expected = deepest(table, FSTAB_FIELD)?;
    // What is mounted deeper is a file system of its own.
    let found = deepest(mounted, MOUNTED_FIELD);
    match found.is_some_and(|found| found.starts_with(&expected)) {
        true => None,
        false => Some(expected),
    }
}

/// The absolute paths in one field of a table's lines, without a slash at their ends.
fn points(text: &[u8], field: usize) -> impl Iterator<Item = PathBuf> + '_ {
    let lines = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    lines.filter(|line| !line.starts_with(b"#")).filter_map(move |line| {
        let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
        let name = unescaped(fields.nth(field)?);
        // Components leave out a slash at the end, and double ones.
        name.starts_with(b"/").then(|| Path::new(OsStr::from_bytes(&name)).components().collect())
    })
}

/// Without the three octal digits that both tables write for blanks and backslashes.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| first == b'\\');
        let octal = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        name.push(escaped.unwrap_or(first));
        rest = if escaped.is_some() { &after[3..] } else { after };
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"# <file system> <mount point> <type>\n\
        UUID=1 / ext4 defaults 0 1\n\
        #server:/old /old nfs\n\
        mgs@tcp:/scratch\t/lustre/scratch/ lustre noauto,_netdev 0 0\n\
        nfs:/home /lustre/scratch/home nfs\n\
        nfs:/a\\040b /with\\040blank nfs\n\
        swap none swap sw\n\
        broken\n";

    fn missed(mounted: &[&str], path: &str) -> Option<String> {
        let lines: Vec<String> = [&["/"], mounted]
            .concat()
            .iter()
            .map(|point| format!("36 35 98:0 / {point} rw,noatime shared:1 - xfs /dev/vda rw\n"))
            .collect();
        let found = missed_in(TABLE, lines.concat().as_bytes(), Path::new(path));
        found.map(|point| point.to_string_lossy().into_owned())
    }

    #[test]
    fn a_path_is_missed_below_the_mount_point_that_should_hold_it() {
        let point = Some("/lustre/scratch".to_string());
        for path in ["/lustre/scratch", "/lustre/scratch/run19", "/lustre/scratch/a/b"] {
            assert_eq!(missed(&[], path), point, "{path}");
            assert_eq!(missed(&["/lustre/scratch"], path), None, "{path}");
        }
        for path in ["/lustre", "/lustre/scratch2/x", "/old/x", "/home/x", "/tmp"] {
            assert_eq!(missed(&[], path), None, "{path}");
        }
        // One below the other, each for itself; a disk mounted deeper holds what is below it.
        let home = "/lustre/scratch/home/me";
        assert_eq!(missed(&["/lustre/scratch"], home), Some("/lustre/scratch/home".to_string()));
        assert_eq!(missed(&["/lustre/scratch/home"], home), None);
        assert_eq!(missed(&["/lustre/scratch/tmp"], "/lustre/scratch/tmp/x"), None);
        assert_eq!(missed(&[], "/with blank/x"), Some("/with blank".to_string()));
        assert_eq!(missed(&["/with\\040blank"], "/with blank/x"), None);
    }
}
