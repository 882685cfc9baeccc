//! When passthrough works and when not, with the reason that users are told.

use crate::common::{Mount, memory::MemoryFs};
use forebay_fuse::{FastPath, FastPathOff, MountBy, MountOptions, Session};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An overlay on memory, unmounted at the end.
struct Overlay(PathBuf);

impl Overlay {
    fn new(dir: &Path) -> Overlay {
        let part = |name: &str| {
            let path = dir.join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let (lower, upper, work) = (part("lower"), part("upper"), part("work"));
        let merged = part("merged");
        let data = format!(
            "lowerdir={},upperdir={},workdir={}",
            lower.display(),
            upper.display(),
            work.display()
        );
        let data = std::ffi::CString::new(data).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("overlay", &merged, "overlay", flags, data.as_c_str()).unwrap();
        Overlay(merged)
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_store_on_an_overlay_needs_a_deeper_stack() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let overlay = Overlay::new(dir.path());
    let mount_point = dir.path().join("mnt");
    fs::create_dir(&mount_point).unwrap();
    let mount = |depth: Option<u32>| {
        let fs = Arc::new(MemoryFs::new(&overlay.0));
        let options = MountOptions {
            probe: Some(fs.probe()),
            max_stack_depth: depth,
            ..MountOptions::default()
        };
        Session::mount(fs, &mount_point, options).unwrap()
    };
    let check = |session: Session, expected| {
        assert_eq!(session.fast_path(), expected);
        fs::write(mount_point.join("f"), b"data").unwrap();
        assert_eq!(fs::read(mount_point.join("f")).unwrap(), b"data");
        session.unmount(false).unwrap();
        session.wait();
    };
    check(mount(None), FastPath::On);
    check(mount(Some(1)), FastPath::Off { reason: FastPathOff::Stacking });
}

/// Takes CAP_SYS_ADMIN out of this thread's effective capabilities.
fn drop_sys_admin() {
    #[repr(C)]
    struct Head(u32, i32);
    const VERSION_3: u32 = 0x2008_0522;
    const CAP_SYS_ADMIN: u32 = 21;
    let mut head = Head(VERSION_3, 0);
    let mut data = [[0u32; 3]; 2];
    // SAFETY: head and data have the layout of capget(2) version 3 and live long enough.
    unsafe { assert_eq!(libc::syscall(libc::SYS_capget, &mut head, data.as_mut_ptr()), 0) };
    data[0][0] &= !(1 << CAP_SYS_ADMIN);
    // SAFETY: as above.
    unsafe { assert_eq!(libc::syscall(libc::SYS_capset, &mut head, data.as_ptr()), 0) };
}

#[test]
fn without_the_privilege_everything_is_served() {
    let m = std::thread::spawn(|| {
        drop_sys_admin();
        Mount::with(|o| o.by = MountBy::Auto)
    });
    let m = m.join().unwrap();
    let reason = FastPathOff::NoPrivilege;
    assert_eq!(m.session().fast_path(), FastPath::Off { reason });
    assert_eq!(m.session().fast_path().to_string(), "off (no privilege)");
    fs::write(m.at("f"), b"data").unwrap();
    assert_eq!(fs::read(m.at("f")).unwrap(), b"data");
    assert_eq!(m.counts()["WRITE"], 1);
}
