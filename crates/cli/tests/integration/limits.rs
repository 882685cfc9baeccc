//! Limits of a mount on its files: `--max-file-size` and `--max-files-created`.

use crate::common::{Flash, Rig, must_be_root};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;

const LIMIT: u64 = 1 << 20;

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.expect_err("it is refused").raw_os_error().unwrap()
}

#[test]
fn a_mount_keeps_its_limits_of_sizes_and_numbers() {
    must_be_root();
    // On tmpfs the kernel would write by itself otherwise.
    let rig = Rig::new(Flash::Memory);
    rig.mount_with("16MiB", &["--max-file-size", "1MiB", "--max-files-created", "3"]);
    let path = rig.mnt.join("one");
    let file = File::create(&path).unwrap();
    file.write_all_at(b"x", LIMIT - 1).unwrap();
    assert_eq!(errno(file.write_at(b"x", LIMIT)), libc::EFBIG);
    // What fits of a write is written, as by RLIMIT_FSIZE.
    assert_eq!(file.write_at(&[1; 100], LIMIT - 10).unwrap(), 10);
    assert_eq!(errno(file.set_len(LIMIT + 1)), libc::EFBIG);
    let mut appends = OpenOptions::new().append(true).open(&path).unwrap();
    assert_eq!(errno(appends.write(b"x")), libc::EFBIG);
    // SAFETY: an open file and plain numbers.
    let allocated =
        unsafe { libc::fallocate(std::os::fd::AsRawFd::as_raw_fd(&file), 0, 0, LIMIT as i64 + 1) };
    assert_eq!(
        (allocated, std::io::Error::last_os_error().raw_os_error()),
        (-1, Some(libc::EFBIG))
    );
    assert_eq!(fs::metadata(&path).unwrap().len(), LIMIT);
    // Directories and links are no files; one that is there is opened; one that was removed counts.
    fs::create_dir(rig.mnt.join("dir")).unwrap();
    File::create(rig.mnt.join("two")).unwrap();
    File::create(rig.mnt.join("two")).unwrap();
    fs::remove_file(rig.mnt.join("two")).unwrap();
    File::create(rig.mnt.join("dir/three")).unwrap();
    assert_eq!(errno(File::create(rig.mnt.join("four"))), libc::EDQUOT);
    fs::hard_link(&path, rig.mnt.join("link")).unwrap();
    drop((file, appends));
    assert!(rig.umount(&[]).status.success());
}
