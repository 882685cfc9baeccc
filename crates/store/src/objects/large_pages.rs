//! Whether the file system of the objects is one in memory that gives large pages: a tmpfs mounted with
//! `huge=always` or `huge=within_size`, as the stores are that Forebay mounts itself (tmpfs(5)).
//!
//! Asked once, when a cache starts.

use super::{Objects, err};
use forebay_proto::Result;
use rustix::fs::{self as rfs, AtFlags, StatxFlags};

const TABLE: &str = "/proc/self/mountinfo";

impl Objects {
    /// True if what is taken at once comes in large pages.
    ///
    /// # Errors
    /// The kernel's table of mounts cannot be read.
    pub fn has_large_pages(&self) -> Result<bool> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
        let st = rfs::statx(&self.dir, "", flags, StatxFlags::MNT_ID).map_err(err)?;
        Ok(has_large_pages(&std::fs::read_to_string(TABLE)?, st.stx_mnt_id))
    }
}

/// `36 35 98:0 /root /point options [tags]... - type source super-options`
fn has_large_pages(table: &str, mount_id: u64) -> bool {
    let is_it =
        |line: &&str| line.split(' ').next().and_then(|id| id.parse().ok()) == Some(mount_id);
    let Some((_, about)) = table.lines().find(is_it).and_then(|line| line.split_once(" - ")) else {
        return false;
    };
    let mut fields = about.split(' ');
    let (kind, options) = (fields.next(), fields.nth(1).unwrap_or_default());
    let is_large = |option| matches!(option, "huge=always" | "huge=within_size");
    kind == Some("tmpfs") && options.split(',').any(is_large)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tmpfs_says_whether_it_has_large_pages() {
        let table = "\
            31 1 0:27 / /dev/shm rw,nosuid - tmpfs tmpfs rw,size=24g\n\
            40 31 0:50 / /dev/shm/a\\040-\\040b/data rw,relatime shared:7 - tmpfs forebay rw,size=2g,huge=within_size\n\
            41 31 0:51 / /b rw - ext4 huge=always rw\n\
            42 31 0:52 / /c rw - tmpfs none rw,huge=never\n";
        let found = [31, 40, 41, 42, 43].map(|id| has_large_pages(table, id));
        assert_eq!(found, [false, true, false, false, false]);
    }
}
