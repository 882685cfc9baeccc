//! `libforebay_preload.so`: what a program sees with it is what it sees through the mount.
//!
//! What needs calls of libc runs in this executable once more, with the library preloaded ([`preloaded`]).
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::{Buffer, Kind, Options, binary};
use forebay_tests::model::{Plan, run_beside};
use forebay_tests::procs::{self, Cred, fcntl_lock};
use forebay_tests::{env_u64, long, random_steps, seed, sys};
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Names the mount to a test that runs once more.
const ROOT: &str = "FOREBAY_TEST_PRELOADED";
const REPORT: &str = "FOREBAY_PRELOAD_REPORT";

pub(crate) fn library() -> PathBuf {
    let library = binary().with_file_name("libforebay_preload.so");
    assert!(library.exists(), "{library:?}: cargo build -p forebay-preload first");
    library
}

/// In the process that a test started with the library: the mount point.
pub(crate) fn inside() -> Option<PathBuf> {
    std::env::var_os(ROOT).map(PathBuf::from)
}

/// Runs the test of this name once more, with the library, on a mount; gives what the library reported.
fn preloaded(test: &str, root: &Path) -> Report {
    preloaded_of("preload", test, root)
}

/// Waits until nearly all of a [`tmpfs`] buffer is free again.
pub(crate) fn until_all_is_free(root: &Path) {
    let free = || sys::statfs(sys::bytes(root)).unwrap().free;
    let until = Instant::now() + Duration::from_secs(30);
    while free() < (256 << 20) - (1 << 20) {
        assert!(Instant::now() < until, "{} bytes are free", free());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The same as [`preloaded`] for a test of another file.
pub(crate) fn preloaded_of(module: &str, test: &str, root: &Path) -> Report {
    preloaded_with(module, test, root, &[])
}

/// The same with more variables.
pub(crate) fn preloaded_with(
    module: &str,
    test: &str,
    root: &Path,
    variables: &[(&str, &str)],
) -> Report {
    let report = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", &format!("{module}::{test}"), "--nocapture", "--test-threads=1"])
        .env(ROOT, root)
        .envs(variables.iter().copied())
        .env(REPORT, report.path())
        .env("LD_PRELOAD", library());
    let (done, said) = procs::try_run_for(&mut command, Duration::from_secs(200));
    assert!(done && said.contains("1 passed"), "{test} with the library:\n{said}");
    Report::read(report.path())
}

/// What the library counted, of one process a line.
#[derive(Debug)]
pub(crate) struct Report(String);

impl Report {
    /// What was reported into a file.
    pub(crate) fn read(path: &Path) -> Report {
        Report(std::fs::read_to_string(path).unwrap())
    }

    /// Files that were opened without a question, of all processes.
    pub(crate) fn opened_alone(&self) -> u64 {
        self.alone(" opened alone ")
    }

    /// The same of looks at files.
    pub(crate) fn looked_alone(&self) -> u64 {
        self.alone(" looked alone ")
    }

    fn alone(&self, what: &str) -> u64 {
        let of_line = |line: &str| {
            let (_, rest) = line.split_once(what)?;
            rest.split_once(',')?.0.parse::<u64>().ok()
        };
        self.0.lines().filter_map(of_line).sum()
    }

    /// Questions of this kind that were answered, of all processes.
    pub(crate) fn answered(&self, what: &str) -> u64 {
        self.counted(what).0
    }

    /// Of this kind: what was answered, and what was left to the kernel.
    fn counted(&self, what: &str) -> (u64, u64) {
        let of_line = |line: &str| {
            let (_, rest) = line.split_once(&format!(" {what} "))?;
            let (answered, left) = rest.split_once(',')?.0.split_once('+')?;
            Some((answered.parse::<u64>().ok()?, left.parse::<u64>().ok()?))
        };
        self.0.lines().filter_map(of_line).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}

/// `forebay exec -- COMMAND`, its standard output.
fn exec(buffer: &Buffer, script: &str) -> String {
    let mut command = Command::new(binary());
    command.args(["exec", "--", "bash", "-euc", script]).current_dir(buffer.root());
    procs::run(&mut command)
}

/// Through the mount, whatever is preloaded.
pub(crate) fn by_kernel(root: &Path, name: &str) -> PathBuf {
    PathBuf::from(format!("/.{}/{name}", root.display()))
}

pub(crate) fn tmpfs() -> Buffer {
    Buffer::mount(Kind::Tmpfs, 256 << 20)
}

pub(crate) fn is_object(file: &impl AsRawFd) -> bool {
    // The library would answer for the file; the kernel tells of the descriptor.
    let link = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    std::fs::read_link(link).unwrap().to_str().unwrap().contains("/data/")
}

fn random_operations(name: &str, kind: Kind) {
    if let Some(root) = inside() {
        let steps = env_u64("FOREBAY_STEPS", if long() { 150_000 } else { random_steps(4_000) });
        run_beside(&root, Plan { seed: seed(name), steps, whole_every: 500, kill_every: 0 });
        return;
    }
    let buffer = Buffer::mount(kind, 1 << 30);
    let report = preloaded(name, &buffer.root());
    for what in ["open", "stat", "unlink", "fstat", "exchange"] {
        assert!(report.answered(what) > 0, "no {what} was asked: {}", report.0);
    }
}

#[test]
fn random_operations_by_both_ways_agree_with_the_model() {
    random_operations("random_operations_by_both_ways_agree_with_the_model", Kind::Tmpfs);
}

#[test]
fn random_operations_by_both_ways_agree_on_an_image() {
    random_operations("random_operations_by_both_ways_agree_on_an_image", Kind::Xfs);
}

/// What a program gets is the object itself, and what it is told is the file.
#[test]
fn a_descriptor_is_the_object_and_its_attributes_are_the_files() {
    let Some(root) = inside() else {
        let buffer = tmpfs();
        preloaded("a_descriptor_is_the_object_and_its_attributes_are_the_files", &buffer.root());
        return;
    };
    procs::umask(0o027);
    let path = root.join("f");
    let mut file =
        File::options().create_new(true).read(true).write(true).mode(0o666).open(&path).unwrap();
    assert!(is_object(&file));
    file.write_all(b"twelve bytes").unwrap();
    let other = std::fs::metadata(by_kernel(&root, "f")).unwrap();
    for mine in [file.metadata().unwrap(), std::fs::metadata(&path).unwrap()] {
        assert_eq!((mine.dev(), mine.ino(), mine.mode()), (other.dev(), other.ino(), other.mode()));
        assert_eq!((mine.len(), mine.nlink(), mine.blocks()), (12, 1, other.blocks()));
        assert_eq!(mine.modified().unwrap(), other.modified().unwrap());
        assert_eq!(
            (mine.mode() & 0o777, mine.created().unwrap()),
            (0o640, other.created().unwrap())
        );
    }
    // A program of the kernel's way grows it, and the next that asks here sees it; and the other way round.
    let mut through = File::options().append(true).open(by_kernel(&root, "f")).unwrap();
    assert!(!is_object(&through));
    through.write_all(b", and more").unwrap();
    assert_eq!(file.metadata().unwrap().len(), 22);
    file.write_all(b"!").unwrap();
    file.set_len(5).unwrap();
    assert_eq!(through.metadata().unwrap().len(), 5);
    let mut both = String::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut both).unwrap();
    assert_eq!(both, "twelv");
    // Access modes are the descriptor's own.
    let mut reads = File::open(&path).unwrap();
    assert!(is_object(&reads) && reads.write(b"x").is_err());
    let mut writes = File::options().write(true).open(&path).unwrap();
    assert!(is_object(&writes) && writes.read(&mut [0]).is_err());
    let errno = |result: std::io::Result<File>| result.err().and_then(|error| error.raw_os_error());
    let new = File::options().write(true).create_new(true).open(&path);
    assert_eq!(errno(new), Some(libc::EEXIST));
    assert_eq!(errno(File::open(root.join("absent"))), Some(libc::ENOENT));
    assert_eq!(errno(File::open(root.join("f/below"))), Some(libc::ENOTDIR));
}

/// Makes a file by a template, as mkstemp does.
type Maker<'a> = &'a dyn Fn(*mut libc::c_char) -> i32;

/// mkstemp and its like open by an inner call of libc; their files are the library's too.
#[test]
fn files_by_a_template_are_the_objects() {
    let Some(root) = inside() else {
        let buffer = tmpfs();
        preloaded("files_by_a_template_are_the_objects", &buffer.root());
        return;
    };
    procs::umask(0o022);
    let make = |template: &str, by: Maker<'_>| {
        let path = CString::new(root.join(template).into_os_string().into_vec()).unwrap();
        let mut path = path.into_bytes_with_nul();
        let fd = by(path.as_mut_ptr().cast());
        path.pop();
        let name = PathBuf::from(OsString::from_vec(path));
        // SAFETY: a descriptor that was just opened, if it is one.
        let file = (fd >= 0).then(|| unsafe { File::from_raw_fd(fd) });
        (file.ok_or_else(std::io::Error::last_os_error), name)
    };
    // SAFETY: a C string that may be written, alive during the call; the same of the others.
    let plain = |template: *mut libc::c_char| unsafe { libc::mkstemp(template) };
    // SAFETY: as above.
    let long = |template: *mut libc::c_char| unsafe {
        libc::mkostemps(template, 4, libc::O_CLOEXEC | libc::O_APPEND)
    };
    let mut names = Vec::new();
    let ways: [(&str, Maker<'_>); 2] = [("t.XXXXXX", &plain), ("t-XXXXXX.end", &long)];
    for _ in 0..20 {
        for (template, by) in ways {
            let (file, name) = make(template, by);
            let mut file = file.unwrap();
            assert!(is_object(&file), "{name:?}");
            file.write_all(b"content").unwrap();
            let name = name.file_name().unwrap().to_str().unwrap().to_string();
            assert!(!name.contains("XXXXXX") && name.len() == template.len(), "{name}");
            assert_eq!(name.ends_with(".end"), template.ends_with(".end"), "{name}");
            let through = by_kernel(&root, &name);
            assert_eq!(std::fs::read(&through).unwrap(), b"content");
            assert_eq!(std::fs::metadata(&through).unwrap().mode() & 0o7777, 0o600);
            assert!(!names.contains(&name), "{name} twice");
            names.push(name);
        }
    }
    // What is no template is libc's to refuse, and stays as it was.
    let (refused, name) = make("t.XXXXX", &plain);
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EINVAL));
    assert!(name.ends_with("t.XXXXX"), "{name:?}");
    let (refused, _) = make("absent/t.XXXXXX", &plain);
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::ENOENT));
}

unsafe extern "C" {
    /// What compilers make of readlink where a program is built with _FORTIFY_SOURCE.
    fn __readlink_chk(
        path: *const libc::c_char,
        to: *mut libc::c_char,
        length: usize,
        room: usize,
    ) -> isize;
}

/// Attributes by ioctl, paths of /dev/fd, and what compilers make of calls are about the mount's file, never the object.
#[test]
fn what_names_a_descriptor_in_other_words_means_the_file() {
    let Some(root) = inside() else {
        let buffer = tmpfs();
        preloaded("what_names_a_descriptor_in_other_words_means_the_file", &buffer.root());
        return;
    };
    let new = |name: &str| {
        let path = root.join(name);
        let file = File::options().create_new(true).read(true).write(true).open(path).unwrap();
        assert!(is_object(&file), "{name}");
        let path = CString::new(format!("/dev/fd/{}", file.as_raw_fd())).unwrap();
        (file, path)
    };
    // FS_IOC_GETFLAGS, and FS_IOC_SETFLAGS of what chattr(1) calls "d".
    let refused = |file: &File, request: libc::Ioctl| {
        let mut flags: libc::c_long = 0x40;
        // SAFETY: room for the flags, alive during the call.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), request, &raw mut flags) };
        (done != 0).then(|| std::io::Error::last_os_error().raw_os_error())
    };
    for request in [0x8008_6601_u32 as libc::Ioctl, 0x4008_6602_u32 as libc::Ioctl] {
        let (file, _) = new(&format!("attributes{request}"));
        let through = File::open(by_kernel(&root, &format!("attributes{request}"))).unwrap();
        let wanted = refused(&through, request);
        assert!(wanted.is_some(), "{request:x}: the mount has no such attributes");
        assert_eq!(refused(&file, request), wanted, "{request:x}");
        assert!(!is_object(&file), "{request:x}");
    }
    let (_file, path) = new("link");
    let proc = CString::new(path.to_str().unwrap().replace("/dev/", "/proc/self/")).unwrap();
    let mut text = [0_u8; 4096];
    // SAFETY: a C string, and room of that size, alive during the call.
    let count = unsafe {
        __readlink_chk(proc.as_ptr(), text.as_mut_ptr().cast(), text.len() - 1, text.len())
    };
    let link = Path::new(OsStr::from_bytes(&text[..usize::try_from(count).unwrap()]));
    assert_eq!(link, root.join("link"));
    let (_file, path) = new("mode");
    // SAFETY: a C string that lives during the call.
    assert_eq!(unsafe { libc::fchmodat(libc::AT_FDCWD, path.as_ptr(), 0o604, 0) }, 0);
    assert_eq!(std::fs::metadata(by_kernel(&root, "mode")).unwrap().mode() & 0o777, 0o604);
    let (_file, path) = new("named");
    let (name, value) = (c"user.colour", b"blue");
    // SAFETY: C strings, and bytes as many as said, alive during the call.
    let set = unsafe {
        libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0)
    };
    assert_eq!(set, 0);
    let through = sys::getxattr(sys::bytes(&by_kernel(&root, "named")), "user.colour");
    assert_eq!(through.unwrap(), value);
}

/// The report counts what the library leaves to the kernel without a question, too.
#[test]
fn a_report_tells_of_calls_that_are_always_the_kernels() {
    let name = "a_report_tells_of_calls_that_are_always_the_kernels";
    let Some(root) = inside() else {
        let buffer = tmpfs();
        let report = preloaded(name, &buffer.root());
        assert_eq!(report.counted("other"), (0, 6), "{report:?}");
        return;
    };
    std::fs::write(root.join("f"), b"f").unwrap();
    std::fs::create_dir(root.join("d")).unwrap();
    std::fs::rename(root.join("f"), root.join("d/g")).unwrap();
    assert_eq!(std::fs::read_dir(root.join("d")).unwrap().count(), 1);
    std::os::unix::fs::symlink("g", root.join("d/link")).unwrap();
    let direct = File::options().read(true).custom_flags(libc::O_SYNC).open(root.join("d/g"));
    assert!(!is_object(&direct.unwrap()));
    sys::chmod(sys::bytes(&root.join("d/g")), 0o600).unwrap();
    // Elsewhere the library has nothing to count.
    std::fs::create_dir(root.with_file_name("outside").join("d")).unwrap();
}

/// Locks, modes, attributes: for these the descriptor becomes one of the mount, with its copies and position.
#[test]
fn a_lock_is_seen_through_the_mount_and_the_position_stays() {
    let Some(root) = inside() else {
        let buffer = tmpfs();
        preloaded("a_lock_is_seen_through_the_mount_and_the_position_stays", &buffer.root());
        return;
    };
    let lock = |fd: &OwnedFd| fcntl_lock(fd, libc::F_SETLK, libc::F_WRLCK, 0, 0).map(drop);
    let mut file = File::create(root.join("f")).unwrap();
    let mut copy = file.try_clone().unwrap();
    let apart = OwnedFd::from(File::options().write(true).open(root.join("f")).unwrap());
    file.write_all(b"0123456789").unwrap();
    assert!(is_object(&file) && is_object(&copy) && is_object(&apart));
    let file = OwnedFd::from(file);
    assert_eq!(lock(&file), Ok(()));
    assert!(!is_object(&file) && !is_object(&copy) && is_object(&apart));
    copy.write_all(b"abc").unwrap();
    assert_eq!(std::fs::read(by_kernel(&root, "f")).unwrap(), b"0123456789abc");
    // That closed a descriptor of the file, and with it the lock.
    assert_eq!(lock(&file), Ok(()));
    let other = OwnedFd::from(File::options().write(true).open(by_kernel(&root, "f")).unwrap());
    let child = procs::Child::spawn("another process", || {
        let refused = lock(&other);
        assert!(matches!(refused, Err(sys::Errno(libc::EAGAIN | libc::EACCES))), "{refused:?}");
        // The one that was not locked yet meets it too.
        let refused = lock(&apart);
        assert!(matches!(refused, Err(sys::Errno(libc::EAGAIN | libc::EACCES))), "{refused:?}");
    });
    child.join();
    let link = std::fs::read_link(format!("/proc/self/fd/{}", apart.as_raw_fd())).unwrap();
    assert_eq!(link, root.join("f"), "by its own link a program sees the file's name");
    let fresh = File::create(root.join("g")).unwrap();
    fresh.set_permissions(std::fs::Permissions::from_mode(0o604)).unwrap();
    assert_eq!(std::fs::metadata(by_kernel(&root, "g")).unwrap().mode() & 0o777, 0o604);
}

/// Has the kernel refuse a call of this thread, as the seccomp filters of containers do.
fn forbid(call: libc::c_long) {
    let step = |code: u32, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let mut steps = [
        // The number is the first word of struct seccomp_data.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, call as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    let (one, zero): (libc::c_ulong, libc::c_ulong) = (1, 0);
    let mode = libc::c_ulong::from(libc::SECCOMP_MODE_FILTER);
    // SAFETY: numbers, and a program that lives during the call.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, one, zero, zero, zero), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program), 0);
    }
}

/// Containers forbid kcmp(2), which tells which descriptors share a position. Those that do go on sharing it all the same.
#[test]
fn copies_keep_their_position_where_kcmp_is_forbidden() {
    let Some(root) = inside() else {
        let buffer = tmpfs();
        preloaded("copies_keep_their_position_where_kcmp_is_forbidden", &buffer.root());
        return;
    };
    forbid(libc::SYS_kcmp);
    let mut file = File::create(root.join("f")).unwrap();
    let mut copy = file.try_clone().unwrap();
    let mut apart = File::options().write(true).open(root.join("f")).unwrap();
    file.write_all(b"one ").unwrap();
    let flags = |file: &File| {
        // SAFETY: a number.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) }
    };
    let before = flags(&apart);
    // SAFETY: a number.
    assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }, 0);
    assert!(!is_object(&file) && !is_object(&copy) && is_object(&apart));
    copy.write_all(b"two ").unwrap();
    file.write_all(b"three").unwrap();
    apart.write_all(b"ONE").unwrap();
    assert_eq!(std::fs::read(by_kernel(&root, "f")).unwrap(), b"ONE two three");
    assert_eq!(flags(&apart), before, "a flag stayed");
    assert_eq!(flags(&copy) & libc::O_NONBLOCK, 0, "a flag stayed");
}

/// Relative names, directories as starting points, links that lead in and out, and what else a path can be.
#[test]
fn paths_mean_what_the_kernel_takes_them_for() {
    let Some(root) = inside() else {
        let buffer = tmpfs();
        std::fs::create_dir_all(buffer.root().join("d/e")).unwrap();
        std::fs::write(buffer.outside().join("out"), b"outside").unwrap();
        std::os::unix::fs::symlink(buffer.outside().join("out"), buffer.root().join("leads-out"))
            .unwrap();
        std::os::unix::fs::symlink(buffer.root(), buffer.outside().join("leads-in")).unwrap();
        std::os::unix::fs::symlink("d/e", buffer.root().join("short")).unwrap();
        let report = preloaded("paths_mean_what_the_kernel_takes_them_for", &buffer.root());
        assert!(report.answered("open") >= 4, "{}", report.0);
        return;
    };
    let outside = root.with_file_name("outside");
    let is =
        |path: PathBuf, wanted: &str| assert_eq!(std::fs::read_to_string(path).unwrap(), wanted);
    std::fs::write(root.join("d/e/f"), b"deep").unwrap();
    is(root.join("leads-out"), "outside");
    is(outside.join("leads-in/d/e/f"), "deep");
    is(root.join("short/f"), "deep");
    is(root.join("d/../d/./e//f"), "deep");
    std::env::set_current_dir(root.join("d")).unwrap();
    is("e/f".into(), "deep");
    std::fs::write("here", b"new").unwrap();
    is(by_kernel(&root, "d/here"), "new");
    // The current directory is what it is, whatever it is called now.
    std::fs::rename(root.join("d"), root.join("moved")).unwrap();
    is("e/f".into(), "deep");
    std::fs::create_dir_all(root.join("d/e")).unwrap();
    std::fs::write(root.join("d/e/f"), b"another").unwrap();
    is("e/f".into(), "deep");
    std::env::set_current_dir(&outside).unwrap();
    is("out".into(), "outside");
    let dir =
        sys::open(sys::bytes(&root.join("moved/e")), libc::O_PATH | libc::O_DIRECTORY, 0).unwrap();
    let open_at = |name: &std::ffi::CStr, flags: i32| {
        // SAFETY: an open directory and a C string.
        let fd = unsafe { libc::openat(dir.as_raw_fd(), name.as_ptr(), flags, 0o600) };
        // SAFETY: a descriptor of this test's own.
        (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
    };
    assert!(is_object(&open_at(c"f", libc::O_RDONLY).unwrap()));
    assert!(is_object(&open_at(c"made", libc::O_CREAT | libc::O_RDWR).unwrap()));
    assert!(by_kernel(&root, "moved/e/made").exists());
    // SAFETY: an open directory and a C string.
    assert_eq!(unsafe { libc::unlinkat(dir.as_raw_fd(), c"made".as_ptr(), 0) }, 0);
    assert!(!by_kernel(&root, "moved/e/made").exists());
    let refused = |path: &Path, flags: i32| sys::open(sys::bytes(path), flags, 0).unwrap_err().0;
    assert_eq!(refused(&root.join("leads-out"), libc::O_NOFOLLOW), libc::ELOOP);
    assert_eq!(refused(&root.join("d/e/f"), libc::O_DIRECTORY), libc::ENOTDIR);
    assert_eq!(refused(&root.join("d"), libc::O_WRONLY), libc::EISDIR);
    assert_eq!(refused(&root.join("d/e/f/"), libc::O_RDONLY), libc::ENOTDIR);
    // What paths mean changes: from here on the kernel is asked.
    procs::Child::spawn("in a root of its own", || {
        let place = sys::c(sys::bytes(&outside));
        // SAFETY: C strings; the child has a root of its own.
        let failed = unsafe { libc::chroot(place.as_ptr()) | libc::chdir(c"/".as_ptr()) };
        assert_eq!(failed, 0);
        assert!(std::fs::read(root.join("d/e/f")).is_err(), "there is no such path here");
        assert_eq!(std::fs::read("/out").unwrap(), b"outside");
    })
    .join();
}

/// Copies of a mount on 21 directories; they go with this.
struct Copies(PathBuf);

impl Copies {
    fn of(root: &Path, outside: &Path) -> Copies {
        let copies = Copies(outside.join("copies"));
        let script =
            "for i in $(seq 21); do mkdir -p \"$1/$i\"; mount --bind \"$0\" \"$1/$i\"; done";
        procs::run(Command::new("bash").args(["-euc", script]).arg(root).arg(&copies.0));
        copies
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        let script = "umount -l \"$0\"/*";
        let _some_are_mounted = Command::new("bash").args(["-c", script]).arg(&self.0).status();
    }
}

/// The kernel would tell of the object. Mounts of other buffers count as the copies do.
#[test]
fn a_descriptor_shows_the_file_with_many_mounts_and_when_paths_change() {
    let name = "a_descriptor_shows_the_file_with_many_mounts_and_when_paths_change";
    let Some(root) = inside() else {
        let buffer = tmpfs();
        let _copies = Copies::of(&buffer.root(), &buffer.outside());
        preloaded(name, &buffer.root());
        return;
    };
    procs::umask(0o022);
    let create = |name: &str| {
        let mut how = File::options();
        how.create_new(true).write(true).mode(0o640).open(root.join(name)).unwrap()
    };
    let below = std::fs::metadata(root.parent().unwrap()).unwrap().dev();
    let file = create("f");
    assert!(is_object(&file), "the library is off");
    // One that this library has not given out.
    let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_CLOEXEC;
    let native = File::from(forebay_files::open(&root.join("native"), flags, 0o640).unwrap());
    assert!(is_object(&native));
    let told = |file: &File| {
        let told = file.metadata().unwrap();
        (told.mode() & 0o7777, told.ino(), told.dev())
    };
    let by_mount = |name: &str| told(&File::open(by_kernel(&root, name)).unwrap());
    let files = [(&file, by_mount("f")), (&native, by_mount("native"))];
    for (file, wanted) in files {
        assert_eq!(told(file), wanted);
        assert_eq!(wanted.0, 0o640);
    }
    let (_, (_, _, device)) = files[0];
    assert_ne!(device, below, "they are files of the mount");
    // What paths mean changes, and what is open stays what it is.
    procs::Child::spawn("with a directory of its own", || {
        procs::own_fs_state();
        for (file, wanted) in files {
            assert_eq!(told(file), wanted);
        }
        assert!(!is_object(&File::open(root.join("f")).unwrap()), "paths are the kernel's now");
    })
    .join();
}

/// A buffer with a mount in it is left to the kernel, so that the mount stays.
#[test]
fn what_is_mounted_below_a_buffer_is_not_the_buffers() {
    let name = "what_is_mounted_below_a_buffer_is_not_the_buffers";
    let Some(root) = inside() else {
        let buffer = tmpfs();
        let hole = buffer.root().join("hole");
        std::fs::create_dir(&hole).unwrap();
        std::fs::write(hole.join("f"), "covered").unwrap();
        std::fs::write(buffer.outside().join("f"), "covers").unwrap();
        procs::run(Command::new("mount").arg("--bind").arg(buffer.outside()).arg(&hole));
        let root = buffer.root();
        let report = std::panic::catch_unwind(|| preloaded(name, &root));
        procs::run(Command::new("umount").arg(&hole));
        assert_eq!(report.unwrap().answered("open"), 0);
        return;
    };
    std::fs::write(root.join("beside"), "asked").unwrap();
    for way in ["hole/f", "./hole/f", "hole/./f", "/hole//f", ".//hole/f"] {
        let path = PathBuf::from(format!("{}/{way}", root.display()));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "covers", "{path:?}");
        let native = forebay_files::open_many(&[&path], libc::O_RDONLY | libc::O_CLOEXEC, 0);
        let native = File::from(native.into_iter().next().unwrap().unwrap());
        assert_eq!(std::io::read_to_string(native).unwrap(), "covers", "{path:?}");
    }
}

/// A program may close all numbers, take them, fork and exec: its own files and the library's questions go on.
#[test]
fn programs_do_with_descriptors_what_they_like() {
    let Some(root) = inside() else {
        let buffer = tmpfs();
        preloaded("programs_do_with_descriptors_what_they_like", &buffer.root());
        return;
    };
    let write = |name: &str| {
        let file = File::create(root.join(name)).unwrap();
        assert!(is_object(&file), "{name}");
        assert_eq!(std::fs::metadata(root.join(name)).unwrap().len(), 0);
    };
    write("first");
    procs::Child::spawn("closes all", || {
        // SAFETY: numbers; nothing of this child needs a descriptor.
        assert_eq!(unsafe { libc::close_range(3, u32::MAX, 0) }, 0);
        write("after close_range");
        for fd in 3..2_000 {
            // SAFETY: numbers; what is not open is EBADF.
            unsafe { libc::close(fd) };
        }
        write("after closing each");
        // Past the library: its socket is closed under it, and another file has its number.
        for fd in 3..2_000 {
            // SAFETY: as above.
            unsafe { libc::syscall(libc::SYS_close, fd) };
        }
        let file = by_kernel(&root, "taken");
        let taken = File::create(&file).unwrap();
        for fd in 3..1_000 {
            // SAFETY: numbers: copies of an open file, over whatever is there.
            unsafe { libc::syscall(libc::SYS_dup3, taken.as_raw_fd(), fd, 0) };
        }
        std::fs::write(root.join("late"), b"late").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"", "nothing of the library's is written there");
        std::mem::forget(taken);
        // With the library: the numbers are the program's.
        // SAFETY: numbers.
        assert_eq!(unsafe { libc::close_range(3, u32::MAX, 0) }, 0);
        write("before dup2");
        for fd in 3..1_000 {
            // SAFETY: numbers: standard error is open.
            assert_eq!(unsafe { libc::dup2(2, fd) }, fd);
        }
        // SAFETY: numbers.
        assert_eq!(unsafe { libc::close_range(3, u32::MAX, 0) }, 0);
        write("after dup2");
    })
    .join();
    write("the parent goes on");
    // A descriptor over fork and exec is the same file still, also for a program that has it from its parent.
    let file = File::create(root.join("log")).unwrap();
    let said = Command::new("bash")
        .args(["-c", "echo one; python3 -c 'import os; print(os.fstat(1).st_dev, os.fstat(1).st_ino, flush=True)'; echo two >&1"])
        .stdout(file.try_clone().unwrap())
        .status();
    assert!(said.unwrap().success());
    let meta = std::fs::metadata(by_kernel(&root, "log")).unwrap();
    let text = std::fs::read_to_string(root.join("log")).unwrap();
    assert_eq!(text, format!("one\n{} {}\ntwo\n", meta.dev(), meta.ino()));
    // Threads at once, more than there are sockets.
    std::thread::scope(|scope| {
        for thread in 0..24 {
            let root = &root;
            scope.spawn(move || {
                for number in 0..50 {
                    let path = root.join(format!("t{thread}.{number}"));
                    std::fs::write(&path, [thread as u8; 100]).unwrap();
                    assert_eq!(std::fs::read(&path).unwrap(), [thread as u8; 100]);
                    std::fs::remove_file(&path).unwrap();
                }
            });
        }
    });
}

/// More threads than the library has sockets ask about files that they have open at once, of which the kernel knows nothing.
#[test]
fn many_threads_ask_about_their_files_at_once() {
    const THREADS: u64 = 48;
    let Some(root) = inside() else {
        let buffer = tmpfs();
        preloaded("many_threads_ask_about_their_files_at_once", &buffer.root());
        return;
    };
    let start = Barrier::new(THREADS as usize);
    let new = |thread: u64| {
        let file = File::create(root.join(format!("f{thread}"))).unwrap();
        assert!(is_object(&file), "{thread}");
        file
    };
    let files: Vec<File> = (0..THREADS).map(new).collect();
    std::thread::scope(|scope| {
        for mut file in files {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                for size in 1..=60 {
                    file.write_all(b"x").unwrap();
                    assert_eq!(file.metadata().unwrap().len(), size);
                    assert!(!size.is_multiple_of(10) || file.sync_data().is_ok(), "fdatasync");
                }
            });
        }
    });
}

/// A file without a name lives as long as a program has it, whoever took the name, and then gives its space back.
#[test]
fn a_removed_file_stays_for_who_has_it_and_its_space_comes_back() {
    let name = "a_removed_file_stays_for_who_has_it_and_its_space_comes_back";
    const SIZE: usize = 64 << 20;
    let Some(root) = inside() else {
        let buffer = tmpfs();
        preloaded(name, &buffer.root());
        until_all_is_free(&buffer.root());
        return;
    };
    let data = vec![7_u8; SIZE];
    for (number, by) in ["the library", "the kernel", "a rename"].into_iter().enumerate() {
        let path = root.join(format!("f{number}"));
        std::fs::write(&path, &data).unwrap();
        let mut held = File::options().read(true).write(true).open(&path).unwrap();
        assert!(is_object(&held));
        let through = by_kernel(&root, &format!("f{number}"));
        match number {
            0 => std::fs::remove_file(&path).unwrap(),
            1 => std::fs::remove_file(&through).unwrap(),
            _ => {
                std::fs::write(by_kernel(&root, "new"), b"new").unwrap();
                std::fs::rename(by_kernel(&root, "new"), &through).unwrap();
                assert_eq!(std::fs::read(&path).unwrap(), b"new");
            }
        }
        // Others come and go meanwhile: nothing of it is given away.
        for other in 0..50 {
            std::fs::write(root.join(format!("other{other}")), b"other").unwrap();
            std::fs::remove_file(root.join(format!("other{other}"))).unwrap();
        }
        std::thread::sleep(Duration::from_millis(50));
        let meta = held.metadata().unwrap();
        assert_eq!((meta.nlink(), meta.len()), (0, SIZE as u64), "removed by {by}");
        let mut back = Vec::new();
        held.read_to_end(&mut back).unwrap();
        assert!(back == data, "removed by {by}");
        held.write_all(b"more").unwrap();
        assert_eq!(held.metadata().unwrap().len(), SIZE as u64 + 4);
    }
}

/// A write past the capacity is ENOSPC by the library's way too, and then nothing else is lost.
#[test]
fn a_descriptor_writes_no_more_than_the_capacity() {
    let name = "a_descriptor_writes_no_more_than_the_capacity";
    let Some(root) = inside() else {
        for kind in [Kind::Tmpfs, Kind::Xfs] {
            let buffer = Buffer::mount(kind, 320 << 20);
            preloaded(name, &buffer.root());
        }
        // A store whose capacity this process counts gives nothing out.
        let buffer = Buffer::mount(Kind::Served, 16 << 20);
        exec(&buffer, "echo x > f; [[ $(readlink /proc/self/fd/3) ]] 3< f; rm f");
        // Its data lies among other files, which are none of it.
        let other = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(
            exec(&buffer, &format!("stat -c %s - < {}", other.path().display())).trim(),
            "0"
        );
        assert!(!buffer.status().to_string().contains("preload.sock"));
        return;
    };
    std::fs::write(root.join("old"), b"old").unwrap();
    let mut file = File::create(root.join("big")).unwrap();
    assert!(is_object(&file));
    let block = vec![1_u8; 1 << 20];
    let mut written = 0_u64;
    let error = loop {
        match file.write(&block) {
            Ok(count) => written += count as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    assert!(written <= 320 << 20 && written > 250 << 20, "{written}");
    assert_eq!(std::fs::read(by_kernel(&root, "old")).unwrap(), b"old");
    drop(file);
    std::fs::remove_file(root.join("big")).unwrap();
    let mut again = File::create(root.join("again")).unwrap();
    (0..200).for_each(|_| again.write_all(&block).unwrap());
}

/// Nobody gets by the library what the kernel would refuse.
#[test]
fn other_users_get_what_the_kernel_gives_them() {
    let name = "other_users_get_what_the_kernel_gives_them";
    let Some(root) = inside() else {
        let buffer = tmpfs();
        sys::chmod(sys::bytes(&buffer.root()), 0o777).unwrap();
        for (file, mode) in [("secret", 0o600), ("shared", 0o660), ("open", 0o644)] {
            std::fs::write(buffer.root().join(file), file).unwrap();
            sys::chmod(buffer.path(file), mode).unwrap();
        }
        sys::chown(buffer.path("shared"), 0, 2000).unwrap();
        for (dir, mode) in [("closed", 0o700), ("sticky", 0o1777), ("ours", 0o2775)] {
            sys::mkdir(buffer.path(dir), 0o777).unwrap();
            std::fs::write(buffer.root().join(dir).join("f"), dir).unwrap();
            sys::chown(buffer.path(dir), 0, 2000).unwrap();
            sys::chmod(buffer.path(dir), mode).unwrap();
            sys::chmod(buffer.path(format!("{dir}/f")), 0o666).unwrap();
        }
        let acl = "setfacl -m u:1001:r secret 2>/dev/null || true";
        procs::run(Command::new("bash").args(["-c", acl]).current_dir(buffer.root()));
        preloaded(name, &buffer.root());
        return;
    };
    let member = Cred::new(1001, 1001, &[2000]);
    let stranger = Cred::new(1002, 1002, &[]);
    let opens = |path: &Path, flags: i32| {
        sys::open(sys::bytes(path), flags, 0o600).map(|fd| is_object(&fd))
    };
    let paths = [
        "secret",
        "shared",
        "open",
        "closed/f",
        "closed/new",
        "sticky/f",
        "ours/f",
        "ours/new",
        "new",
    ];
    for who in [&member, &stranger, &Cred::root()] {
        for path in paths {
            for flags in [libc::O_RDONLY, libc::O_RDWR, libc::O_WRONLY | libc::O_CREAT] {
                who.act_as_process();
                let through = opens(&by_kernel(&root, path), flags).map(|_| ());
                if path.ends_with("new") {
                    let _ = sys::unlink(sys::bytes(&by_kernel(&root, path)));
                }
                let mine = opens(&root.join(path), flags).map(|_| ());
                let owner =
                    sys::stat(sys::bytes(&root.join(path))).map(|stat| (stat.uid, stat.gid));
                if path.ends_with("new") {
                    let _ = sys::unlink(sys::bytes(&root.join(path)));
                }
                Cred::root().act_as_process();
                assert_eq!(mine, through, "{who:?} opens {path} with {flags:o}");
                if let (true, true, Ok(owner)) = (path.ends_with("new"), mine.is_ok(), owner) {
                    let group = if path == "ours/new" { 2000 } else { who.gid };
                    assert_eq!(owner, (who.uid, group), "{path}");
                }
            }
        }
    }
    // In a sticky directory only the owner removes; a member by the directory's rights.
    stranger.act_as_process();
    assert_eq!(sys::unlink(sys::bytes(&root.join("sticky/f"))), Err(sys::Errno(libc::EPERM)));
    assert_eq!(sys::unlink(sys::bytes(&root.join("ours/f"))), Err(sys::Errno(libc::EACCES)));
    assert_eq!(
        sys::access(sys::bytes(&root.join("open")), libc::W_OK),
        Err(sys::Errno(libc::EACCES))
    );
    member.act_as_process();
    assert_eq!(sys::unlink(sys::bytes(&root.join("ours/f"))), Ok(()));
    Cred::root().act_as_process();
}

/// Who cannot reach the mount cannot ask beside it, whatever it knows.
#[test]
fn who_cannot_reach_the_mount_gets_no_answer() {
    let buffer = tmpfs();
    std::fs::write(buffer.root().join("f"), b"x").unwrap();
    sys::chmod(buffer.path("f"), 0o666).unwrap();
    let base = buffer.root().parent().unwrap().to_path_buf();
    sys::chmod(sys::bytes(&base), 0o711).unwrap();
    let ask = format!("cat {} && echo read", buffer.root().join("f").display());
    let as_user = |ask: &str| {
        let mut command = Command::new("setpriv");
        let ids = ["--reuid=1002", "--regid=1002", "--clear-groups"];
        let copied =
            std::env::temp_dir().join(format!("forebay-preload-{}.so", std::process::id()));
        std::fs::copy(library(), &copied).unwrap();
        command.args(ids).args(["bash", "-c", ask]).env("LD_PRELOAD", &copied);
        let out = procs::try_run(&mut command);
        std::fs::remove_file(&copied).unwrap();
        out
    };
    let (may, said) = as_user(&ask);
    assert!(may && said.contains("read"), "{said}");
    sys::chmod(sys::bytes(&base), 0o700).unwrap();
    let (may, said) = as_user(&ask);
    assert!(!may && said.contains("Permission denied"), "{said}");
    sys::chmod(sys::bytes(&base), 0o755).unwrap();
}

/// Unmounting waits for nobody who has a file by the library's way: it says who.
#[test]
fn a_mount_whose_files_are_held_is_busy() {
    let buffer = tmpfs();
    let script = format!("exec 3<> {}; echo ready; read", buffer.root().join("held").display());
    let mut child = Command::new(binary())
        .args(["exec", "--", "bash", "-c", &script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
    let refused = buffer.umount(&[]).unwrap_err();
    assert!(refused.contains(&format!("{} (bash", child.id())), "{refused}");
    assert!(buffer.is_mounted());
    drop(child.stdin.take());
    child.wait().unwrap();
    buffer.umount(&[]).unwrap();
}

/// A killed mount: data goes on, all else is the errno that the kernel has; the next mount is used again.
#[test]
fn a_killed_mount_is_not_connected_and_the_next_one_is_used() {
    let name = "a_killed_mount_is_not_connected_and_the_next_one_is_used";
    let Some(root) = inside() else {
        let buffer = tmpfs();
        let signal = buffer.outside().join("signal");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let wait = |state: &[u8]| {
                    let until = Instant::now() + Duration::from_secs(100);
                    while std::fs::read(&signal).unwrap_or_default() != state {
                        assert!(Instant::now() < until, "{state:?} did not come");
                        std::thread::sleep(Duration::from_millis(5));
                    }
                };
                wait(b"open");
                buffer.kill();
                std::fs::write(&signal, b"killed").unwrap();
                wait(b"seen");
                // Another file system takes the device number that the mount had.
                procs::run(Command::new("umount").arg("--lazy").arg(buffer.root()));
                let other = buffer.outside().join("other");
                std::fs::create_dir(&other).unwrap();
                let tmpfs = ["-t", "tmpfs", "none"];
                procs::run(Command::new("mount").args(tmpfs).arg(&other));
                let _held = File::open(&other).unwrap();
                procs::run(Command::new("umount").arg("--lazy").arg(&other));
                buffer.start();
                std::fs::write(&signal, b"again").unwrap();
            });
            preloaded(name, &buffer.root());
        });
        return;
    };
    let signal = root.with_file_name("outside").join("signal");
    let wait = |state: &[u8]| {
        let until = Instant::now() + Duration::from_secs(100);
        while std::fs::read(&signal).unwrap_or_default() != state {
            assert!(Instant::now() < until, "{state:?} did not come");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let mut file = File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(root.join("f"))
        .unwrap();
    file.write_all(b"before").unwrap();
    std::fs::write(&signal, b"open").unwrap();
    wait(b"killed");
    file.write_all(b" after").unwrap();
    let errno = |error: std::io::Error| error.raw_os_error();
    assert_eq!(errno(file.metadata().unwrap_err()), Some(libc::ENOTCONN));
    assert_eq!(errno(file.sync_all().unwrap_err()), Some(libc::ENOTCONN));
    assert_eq!(errno(File::open(root.join("f")).unwrap_err()), Some(libc::ENOTCONN));
    assert_eq!(errno(std::fs::metadata(root.join("f")).unwrap_err()), Some(libc::ENOTCONN));
    std::fs::write(&signal, b"seen").unwrap();
    wait(b"again");
    assert_eq!(std::fs::read(root.join("f")).unwrap(), b"before after");
    assert_eq!(file.metadata().unwrap().len(), 12);
    file.sync_all().unwrap();
    let again = (0..2_000).any(|_| is_object(&File::open(root.join("f")).unwrap()));
    assert!(again, "the new mount is asked");
}

/// Programs as they are: what they leave is what they leave through the mount.
#[test]
fn programs_leave_the_same_with_the_library() {
    let buffer =
        Buffer::mount_with(Options { kind: Kind::Tmpfs, capacity: 1 << 30, extra: Vec::new() });
    let work = r#"
        mkdir "$1"; cd "$1"
        export HOME=$PWD GIT_AUTHOR_DATE="2026-01-01T00:00:00Z" GIT_COMMITTER_DATE="2026-01-01T00:00:00Z"
        git init -q -b main r; cd r; git config user.name n; git config user.email e@e
        for n in $(seq 40); do mkdir -p d$((n % 5)); seq $n 300 > d$((n % 5))/f$n; done
        git add .; git commit -qm one; git mv d1 e1; echo more >> e1/f1; git rm -q d2/f2; git commit -qam two
        git fsck --strict 2>&1 | grep -v notice || true; git checkout -q HEAD~1; git checkout -q main; git -c pack.threads=1 gc -q; cd ..
        printf 'int twice(int n) { return 2 * n; }\n' > a.c
        printf '#include <stdio.h>\nint twice(int);\nint main(void) { printf("%%d\\n", twice(21)); return 0; }\n' > m.c
        gcc -O1 -c a.c m.c && gcc -o prog a.o m.o && ./prog > ran
        python3 -c 'import json, os, sqlite3, tempfile
json.dump(list(range(100)), open("j", "w"))
db = sqlite3.connect("db"); db.execute("create table t(x)")
[db.execute("insert into t values (?)", (n,)) for n in range(200)]; db.commit()
print(db.execute("select sum(x) from t").fetchone(), os.path.getsize("j"), file=open("said", "w"))
os.remove("db")'
        tar cf t.tar --sort=name --mtime=@0 --owner=0 --group=0 r/e1 r/d0 && mkdir x && tar xf t.tar -C x && rm t.tar
        cp -a x y; rm -r x; sort -u y/r/e1/* > sorted; sed -i s/1/one/ sorted; dd if=sorted of=dd bs=100 status=none
        cat < sorted >> dd; mv dd moved; ln moved linked; truncate -s 1000 linked; find . -name 'f1*' | sort > found
        rm -rf r/.git/logs r/.git/index r/.git/gc.log
        find . -type f ! -path '*/objects/pack/*' ! -name prog ! -name '*.o' -print0 | sort -z | xargs -0 sha256sum
        git -C r log --format=%H; git -C r rev-list --objects --all | sort | sha256sum
    "#;
    let script = buffer.outside().join("work.sh");
    std::fs::write(&script, work).unwrap();
    let run = |dir: &str| format!("exec bash -eu {} {dir}", script.display());
    let mut plain = Command::new("bash");
    let plain = procs::run(plain.args(["-euc", &run("plain")]).current_dir(buffer.root()));
    let report = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new(binary());
    command.args(["exec", "--report"]).arg(report.path()).args([
        "--",
        "bash",
        "-euc",
        &run("beside"),
    ]);
    let beside = procs::run(command.current_dir(buffer.root()));
    assert_eq!(beside, plain);
    let report = Report::read(report.path());
    for what in ["open", "stat", "unlink"] {
        assert!(report.answered(what) > 20, "{what}: {}", report.0);
    }
}

/// The recorder of `forebay trace` and this library serve one program, in either order.
#[test]
fn the_recorder_goes_along_in_either_order() {
    let buffer = tmpfs();
    let script = "echo one > f; cat f; rm f";
    for order in [
        "trace -q --append -o T -- B exec -- bash -c",
        "exec -- B trace -q --append -o T -- bash -c",
    ] {
        let trace = buffer.outside().join("trace");
        let words: Vec<String> = order
            .split(' ')
            .map(|word| match word {
                "T" => trace.to_str().unwrap().to_string(),
                "B" => binary().to_str().unwrap().to_string(),
                word => word.to_string(),
            })
            .collect();
        let mut command = Command::new(binary());
        let said = procs::run(command.args(&words).arg(script).current_dir(buffer.root()));
        // A mount that a busy machine lets answer late is told.
        let is_late = |line: &&str| line.starts_with("forebay trace: what the buffer at ");
        let said: Vec<&str> = said.lines().filter(|line| !is_late(line)).collect();
        assert_eq!(said, ["one"], "{order}");
        assert!(std::fs::read_dir(&trace).unwrap().count() > 1, "{order}");
    }
}

#[test]
fn exec_gives_the_programs_exit_code_and_says_what_it_cannot_do() {
    let code =
        |words: &[&str]| Command::new(binary()).arg("exec").args(words).status().unwrap().code();
    assert_eq!(code(&["--", "bash", "-c", "exit 7"]), Some(7));
    assert_eq!(code(&["--", "/no/such/program"]), Some(127));
    let mut shown = Command::new(binary());
    let line = procs::run(
        shown.args(["exec", "--", "bash", "-c", "echo $LD_PRELOAD"]).env("LD_PRELOAD", ""),
    );
    assert!(line.trim().ends_with("libforebay_preload.so"), "{line}");
}
