//! Mounting and unmounting, names and attributes through a real mount.

use crate::common::{Mount, eventually};
use forebay_fuse::{MountError, MountFlags, MountOptions, Session, UnmountError, remount};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

fn mounts_line(path: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let path = path.to_str().unwrap();
    mounts.lines().find(|l| l.split(' ').nth(1) == Some(path)).unwrap_or("").to_string()
}

#[test]
fn names_and_attributes() {
    let m = Mount::new();
    fs::create_dir(m.at("dir")).unwrap();
    fs::write(m.at("dir/a"), b"hello").unwrap();
    assert_eq!(fs::read(m.at("dir/a")).unwrap(), b"hello");
    assert_eq!(fs::metadata(m.at("dir/a")).unwrap().len(), 5);
    fs::rename(m.at("dir/a"), m.at("b")).unwrap();
    assert_eq!(fs::metadata(m.at("dir/a")).unwrap_err().kind(), ErrorKind::NotFound);
    fs::hard_link(m.at("b"), m.at("c")).unwrap();
    assert_eq!(fs::metadata(m.at("b")).unwrap().nlink(), 2);
    symlink("b", m.at("s")).unwrap();
    assert_eq!(fs::read_link(m.at("s")).unwrap(), Path::new("b"));
    assert_eq!(fs::read(m.at("s")).unwrap(), b"hello");
    fs::set_permissions(m.at("b"), fs::Permissions::from_mode(0o4711)).unwrap();
    assert_eq!(fs::metadata(m.at("c")).unwrap().mode() & 0o7777, 0o4711);
    fs::remove_file(m.at("b")).unwrap();
    assert_eq!(fs::remove_dir(m.at("c")).unwrap_err().kind(), ErrorKind::NotADirectory);
    fs::write(m.at("dir/x"), b"").unwrap();
    assert_eq!(fs::remove_dir(m.at("dir")).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
    fs::remove_file(m.at("dir/x")).unwrap();
    fs::remove_dir(m.at("dir")).unwrap();
    assert!(fs::metadata(m.at("c")).unwrap().created().is_ok(), "the time of creation");
    let mut names: Vec<_> =
        fs::read_dir(&m.path).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["c", "s"]);
}

#[test]
fn a_missing_name_is_remembered() {
    let m = Mount::new();
    assert!(!m.at("nothing").exists());
    let before = m.counts()["LOOKUP"];
    for _ in 0..100 {
        assert!(!m.at("nothing").exists());
    }
    assert_eq!(m.counts()["LOOKUP"], before);
}

#[test]
fn attributes_are_remembered() {
    let m = Mount::new();
    fs::write(m.at("f"), b"x").unwrap();
    fs::metadata(m.at("f")).unwrap();
    let before = m.total();
    for _ in 0..100 {
        assert_eq!(fs::metadata(m.at("f")).unwrap().len(), 1);
    }
    assert_eq!(m.total(), before);
}

#[test]
fn unlinked_files_live_while_open_and_references_are_given_back() {
    let m = Mount::new();
    let mut file = File::options().read(true).write(true).create_new(true).open(m.at("f")).unwrap();
    fs::remove_file(m.at("f")).unwrap();
    file.write_all(b"still here").unwrap();
    let mut back = [0; 10];
    file.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(&back, b"still here");
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    drop(file);
    eventually("the reference is given back", || m.fs.references() == 0);
}

#[test]
fn statfs_and_special_files() {
    let m = Mount::new();
    let s = rustix::fs::statvfs(&m.path).unwrap();
    assert_eq!((s.f_blocks, s.f_bfree, s.f_files, s.f_namemax), (1000, 900, 500, 255));
    let fifo = m.at("fifo");
    let kind = rustix::fs::FileType::Fifo;
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, mode, 0).unwrap();
    let (reader, writer) = (fifo.clone(), fifo);
    let thread = std::thread::spawn(move || fs::read(reader).unwrap());
    fs::write(writer, b"through").unwrap();
    assert_eq!(thread.join().unwrap(), b"through");
}

#[test]
fn a_panic_is_eio_for_one_request() {
    let m = Mount::with(|o| o.attr_ttl = std::time::Duration::ZERO);
    fs::write(m.at("f"), b"x").unwrap();
    m.fs.panic_once.store(true, std::sync::atomic::Ordering::Relaxed);
    let error = fs::metadata(m.at("f")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    assert_eq!(fs::metadata(m.at("f")).unwrap().len(), 1);
}

#[test]
fn mount_flags_source_and_remount() {
    let m = Mount::with(|o| {
        o.source = "forebay:/a,b c".into();
        o.flags = MountFlags { nosuid: true, nodev: true, ..Default::default() };
    });
    let line = mounts_line(&m.path);
    assert!(line.starts_with("forebay:/a,b\\040c "), "{line}");
    assert!(line.contains(" fuse.forebay rw,nosuid,nodev,relatime,"), "{line}");
    remount(&m.path, MountFlags { read_only: true, ..Default::default() }).unwrap();
    let error = fs::write(m.at("f"), b"").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    remount(&m.path, MountFlags::default()).unwrap();
    fs::write(m.at("f"), b"").unwrap();
    assert!(mounts_line(&m.path).contains(" fuse.forebay rw,relatime,"));
}

#[test]
fn by_the_helper() {
    let m = Mount::with(|o| {
        o.by = forebay_fuse::MountBy::Helper;
        o.source = "forebay:/a,b".into();
    });
    fs::write(m.at("f"), b"hello").unwrap();
    assert_eq!(fs::read(m.at("f")).unwrap(), b"hello");
    assert!(mounts_line(&m.path).starts_with("forebay:/a,b "), "{}", mounts_line(&m.path));
    assert!(mounts_line(&m.path).contains(" fuse.forebay "));
}

#[test]
fn mount_errors_say_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), b"").unwrap();
    let fs_of = |name| {
        let fs = std::sync::Arc::new(crate::common::memory::MemoryFs::new(dir.path()));
        Session::mount(fs, &dir.path().join(name), MountOptions::default())
    };
    assert!(matches!(fs_of("none"), Err(MountError::Missing(_))));
    assert!(matches!(fs_of("file"), Err(MountError::NotADirectory(_))));
    // Something in the mount point is hidden, as with mount(8).
    fs::create_dir(dir.path().join("full")).unwrap();
    fs::write(dir.path().join("full/x"), b"").unwrap();
    let session = fs_of("full").unwrap();
    assert!(!dir.path().join("full/x").exists());
    session.unmount(false).unwrap();
    session.wait();
    assert!(dir.path().join("full/x").exists());
    assert!(matches!(session.unmount(false), Err(UnmountError::NotMounted(_))));
}

#[test]
fn busy_and_lazy() {
    let mut m = Mount::new();
    let mut file = File::create(m.at("f")).unwrap();
    assert!(matches!(m.session().unmount(false), Err(UnmountError::Busy(_))));
    m.session().unmount(true).unwrap();
    assert!(!m.at("f").exists(), "the name is gone at once");
    file.write_all(b"still works").unwrap();
    assert_eq!(file.metadata().unwrap().len(), 11);
    drop(file);
    m.session.take().unwrap().wait();
}

#[test]
fn several_readers_share_a_mount() {
    let m = Mount::with(|o| o.readers = Some(3));
    std::thread::scope(|scope| {
        for t in 0..6 {
            let m = &m;
            scope.spawn(move || {
                for i in 0..200 {
                    let path = m.at(&format!("{t}-{i}"));
                    fs::write(&path, format!("{t}{i}")).unwrap();
                    assert_eq!(fs::read_to_string(&path).unwrap(), format!("{t}{i}"));
                    fs::remove_file(&path).unwrap();
                }
            });
        }
    });
    assert_eq!(fs::read_dir(&m.path).unwrap().count(), 0);
}

#[test]
fn xattrs() {
    let m = Mount::new();
    let file = File::create(m.at("f")).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    let value = vec![7u8; 65_536];
    rustix::fs::fsetxattr(&file, "user.big", &value, flags).unwrap();
    let mut small = [0u8; 10];
    let error = rustix::fs::fgetxattr(&file, "user.big", &mut small[..]).unwrap_err();
    assert_eq!(error, rustix::io::Errno::RANGE);
    let mut back = vec![0u8; 65_536];
    assert_eq!(rustix::fs::fgetxattr(&file, "user.big", &mut back[..]).unwrap(), 65_536);
    assert_eq!(back, value);
    let mut list = [0u8; 100];
    let n = rustix::fs::flistxattr(&file, &mut list[..]).unwrap();
    assert_eq!(&list[..n], b"user.big\0");
    rustix::fs::fremovexattr(&file, "user.big").unwrap();
    let gone = rustix::fs::fgetxattr(&file, "user.big", &mut back[..]).unwrap_err();
    assert_eq!(gone, rustix::io::Errno::NODATA);
    let mut contents = String::new();
    assert!(File::open(m.at("f")).unwrap().read_to_string(&mut contents).is_ok());
}

#[test]
fn an_answer_that_finds_nobody_is_taken_back() {
    let mut m = Mount::new();
    fs::write(m.at("f"), b"x").unwrap();
    m.fs.remove_behind(b"f");
    eventually("the kernel knows nothing", || m.fs.references() == 0);
    m.fs.put_behind(b"f", b"y");
    m.fs.lookup_ms.store(500, std::sync::atomic::Ordering::Relaxed);
    let before = m.counts()["LOOKUP"];
    let path = m.at("f");
    let asker = std::thread::spawn(move || fs::metadata(path));
    eventually("the lookup is under way", || m.counts()["LOOKUP"] > before);
    let force = rustix::mount::UnmountFlags::FORCE | rustix::mount::UnmountFlags::DETACH;
    rustix::mount::unmount(&m.path, force).unwrap();
    assert!(asker.join().unwrap().is_err());
    m.session.take().unwrap().wait();
    assert_eq!(m.fs.references(), 0);
}
