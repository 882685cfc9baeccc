//! The kernel's overlay with its upper and work directories on a buffer, as containers have it: what it shows and what it leaves
//! in the upper directory are those of an overlay on tmpfs. With its lower directory there, too, what it copied up is found by
//! handles after a new mount.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::Buffer;
use forebay_tests::gluster::Gluster;
use forebay_tests::procs::{Cred, as_user, run, try_run};
use forebay_tests::served::{Options, Served, Store, Via};
use forebay_tests::{on_both_kinds, on_every_kind, site, sys, until};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Overlays over one lower tree.
struct Overlay {
    dir: PathBuf,
    merged: PathBuf,
    options: String,
}

impl Overlay {
    /// Its upper and work directories below `dir`.
    fn new(lower: &Path, dir: &Path, merged: PathBuf) -> Overlay {
        Overlay::with(lower, dir, merged, "redirect_dir=on,metacopy=on")
    }

    fn with(lower: &Path, dir: &Path, merged: PathBuf, more: &str) -> Overlay {
        for sub in ["upper", "work"] {
            fs::create_dir_all(dir.join(sub)).unwrap();
        }
        fs::create_dir_all(&merged).unwrap();
        let (lower, at) = (lower.display(), dir.display());
        let options = format!("lowerdir={lower},upperdir={at}/upper,workdir={at}/work,{more}");
        let overlay = Overlay { dir: dir.to_path_buf(), merged, options };
        overlay.mount();
        overlay
    }

    /// Its directories may be in use for a moment after they were unmounted: another test that begins a mount namespace has a
    /// copy of the overlay until it has let go of it.
    fn mount(&self) {
        let begun = Instant::now();
        loop {
            let mut mount = Command::new("mount");
            mount.args(["-t", "overlay", "overlay", "-o", &self.options]).arg(&self.merged);
            let (ok, said) = try_run(&mut mount);
            if ok {
                return;
            }
            let is_busy = ["busy", "already mounted"].iter().any(|word| said.contains(word));
            assert!(is_busy && begun.elapsed() < LIMIT, "{said}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn umount(&self) {
        let (ok, said) = try_run(Command::new("umount").arg(&self.merged));
        assert!(ok, "{said}");
    }

    fn shell(&self, script: &str) {
        let mut shell = Command::new("sh");
        shell.args(["-euc", script]).current_dir(&self.merged);
        let (ok, said) = try_run(&mut shell);
        assert!(ok, "{script}: {said}");
    }

    /// What is in the merged tree, and in the upper one.
    fn look(&self) -> [BTreeMap<String, String>; 2] {
        [&self.merged, &self.dir.join("upper")].map(|top| {
            let mut all = BTreeMap::new();
            look(top, Path::new(""), &mut all);
            all
        })
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = try_run(Command::new("umount").arg("-l").arg(&self.merged));
    }
}

/// Everything below a directory: type, mode, owner, device, content, and what the overlay says of it.
fn look(top: &Path, below: &Path, all: &mut BTreeMap<String, String>) {
    let mut entries: Vec<_> = fs::read_dir(top.join(below)).unwrap().map(Result::unwrap).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (path, name) = (entry.path(), below.join(entry.file_name()));
        let meta = fs::symlink_metadata(&path).unwrap();
        let kind = meta.file_type();
        let content = match kind {
            _ if kind.is_file() => format!("{:?}", fs::read(&path).unwrap()),
            _ if kind.is_symlink() => format!("{:?}", fs::read_link(&path).unwrap()),
            _ if kind.is_char_device() => format!("device {}", meta.rdev()),
            _ => String::new(),
        };
        let said = ["opaque", "redirect", "metacopy", "whiteout"].map(|what| {
            let name = format!("trusted.overlay.{what}");
            sys::getxattr(sys::bytes(&path), &name).ok()
        });
        let line = format!("{:o} {} {} {content} {said:?}", meta.mode(), meta.uid(), meta.gid());
        all.insert(name.display().to_string(), line);
        if kind.is_dir() {
            look(top, &name, all);
        }
    }
}

const LOWER: &str = "
    mkdir -p dir/deep away gone replaced
    for name in one two three dir/four dir/deep/five away/six gone/seven replaced/eight; do echo $name > $name; done
    chmod 640 three; ln -s one link; touch replaced/nine";

const CHANGES: &str = "
    rm one; rm -r gone
    rm -r replaced; mkdir replaced; echo new > replaced/new
    mv two renamed; mv dir moved; mv moved/deep/five moved/five
    mkdir -p made; mv away made/away
    chmod 600 three; echo more >> link-target; ln renamed again
    mv made/away/six six; echo x > one; rm one
    ln -sf three link";

/// The same work on an overlay on `on` and on one on tmpfs.
fn agrees_with_tmpfs(on: &Path) {
    let own = tempfile::Builder::new().prefix("forebay-test-").tempdir_in("/dev/shm").unwrap();
    let lower = own.path().join("lower");
    fs::create_dir(&lower).unwrap();
    let (ok, said) = try_run(Command::new("sh").args(["-euc", LOWER]).current_dir(&lower));
    assert!(ok, "{said}");
    let ours = Overlay::new(&lower, &on.join("overlay"), own.path().join("ours"));
    let theirs = Overlay::new(&lower, &own.path().join("overlay"), own.path().join("theirs"));
    for overlay in [&ours, &theirs] {
        overlay.shell(CHANGES);
    }
    let expected = theirs.look();
    assert_eq!(ours.look(), expected);
    // Also to an overlay that is mounted anew.
    ours.umount();
    ours.mount();
    assert_eq!(ours.look(), expected);
    ours.shell("mv moved/five back; rm six back");
    theirs.shell("mv moved/five back; rm six back");
    assert_eq!(ours.look(), theirs.look());
    ours.umount();
}

/// Files that give rights to programs: each is copied up in another way.
const WITH_RIGHTS: [&str; 7] =
    ["opened", "attributes", "then-opened", "owner", "written", "cut", "mode-only"];

/// Uses of them. Who opens a file and does not write it takes nothing off; who writes it, or gives it to somebody, does.
const USES: &str = "
    exec 3<> opened; exec 3>&-; touch attributes; chmod 711 then-opened; exec 3<> then-opened; exec 3>&-
    chown 7:8 owner; printf x >> written; truncate -s 1 cut; chmod 6755 mode-only";

/// What a program may by its file is copied up with the file, as it is on tmpfs.
fn copies_keep_what_programs_may(on: &Path) {
    let own = tempfile::Builder::new().prefix("forebay-test-").tempdir_in("/dev/shm").unwrap();
    let (lower, name) = (own.path().join("lower"), "security.capability");
    fs::create_dir(&lower).unwrap();
    // Version 2, effective, permitted: CAP_CHOWN.
    let mut value = [0u8; 20];
    value[..8].copy_from_slice(&[1, 0, 0, 2, 1, 0, 0, 0]);
    for file in WITH_RIGHTS {
        let path = lower.join(file);
        fs::write(&path, file).unwrap();
        // The kernel asks to take capabilities off by a call that takes suid off, too, also where root writes and keeps it.
        let is_written = ["written", "then-opened"].contains(&file);
        let mode = if is_written { 0o755 } else { 0o6755 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        sys::setxattr(sys::bytes(&path), name, &value, 0).unwrap();
    }
    let seen = |top: &Path| {
        WITH_RIGHTS.map(|file| {
            let path = top.join(file);
            let mode = fs::symlink_metadata(&path).unwrap().mode() & 0o7777;
            (file, mode, sys::getxattr(sys::bytes(&path), name).is_ok())
        })
    };
    for more in ["metacopy=off", "redirect_dir=on,metacopy=on"] {
        let [ours, theirs] = [on, own.path()].map(|at| at.join(more.replace([',', '='], "-")));
        let ours = Overlay::with(&lower, &ours, own.path().join("ours"), more);
        let theirs = Overlay::with(&lower, &theirs, own.path().join("theirs"), more);
        for overlay in [&ours, &theirs] {
            overlay.shell(USES);
        }
        let expected = seen(&theirs.merged);
        assert!(expected[..3].iter().all(|(_, _, has)| *has), "{expected:?}");
        assert!(expected[3..6].iter().all(|(_, _, has)| !*has), "{expected:?}");
        assert_eq!(seen(&ours.merged), expected, "{more}");
        let upper = ours.dir.join("upper");
        assert_eq!(seen(&upper), expected, "{more}");
        for overlay in [&ours, &theirs] {
            overlay.umount();
        }
    }
}

/// Who is not root makes names over whiteouts, also where root made these, as on tmpfs.
fn users_make_names_over_whiteouts(on: &Path) {
    let own = tempfile::Builder::new().prefix("forebay-test-").tempdir_in("/dev/shm").unwrap();
    fs::set_permissions(own.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let lower = own.path().join("lower");
    fs::create_dir(&lower).unwrap();
    let fill = "for name in file dir link own; do echo $name > $name; done; mkdir sub; echo 1 > sub/in-sub";
    let (ok, said) = try_run(Command::new("sh").args(["-euc", fill]).current_dir(&lower));
    assert!(ok, "{said}");
    let ours = Overlay::with(&lower, &on.join("users"), own.path().join("ours"), "index=off");
    let theirs =
        Overlay::with(&lower, &own.path().join("users"), own.path().join("theirs"), "index=off");
    let user = Cred { uid: 4242, gid: 4343, groups: vec![] };
    for overlay in [&ours, &theirs] {
        overlay.shell("chown 4242:4343 . own; chmod 1777 sub; rm file dir link sub/in-sub");
        // As Podman has it: what is above the upper directory is root's alone.
        fs::set_permissions(&overlay.dir, fs::Permissions::from_mode(0o700)).unwrap();
        as_user(&user, || {
            let path = |name: &str| overlay.merged.join(name);
            fs::write(path("plain"), b"over nothing").unwrap();
            fs::write(path("file"), b"by a user").unwrap();
            fs::create_dir(path("dir")).unwrap();
            fs::write(path("dir/below"), b"below").unwrap();
            std::os::unix::fs::symlink("nowhere", path("link")).unwrap();
            fs::write(path("sub/in-sub"), b"in a sticky directory").unwrap();
            fs::remove_file(path("own")).unwrap();
            fs::write(path("own"), b"again").unwrap();
        });
    }
    let expected = theirs.look();
    let made = &expected[1]["file"];
    assert!(made.contains(" 4242 4343 "), "{made}");
    assert_eq!(ours.look(), expected);
    // The overlay's own directory is nobody's all the same.
    fs::set_permissions(&ours.dir, fs::Permissions::from_mode(0o755)).unwrap();
    let work = ours.dir.join("work/work");
    as_user(&user, || {
        let refused = fs::write(work.join("planted"), b"").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EACCES));
    });
    assert!(!work.join("planted").exists());
    ours.umount();
    theirs.umount();
}

/// What a user does in an own overlay: its lower directory, where the other two are, and where it is mounted.
const OF_A_USER: &str = "
    mount -t overlay overlay -o userxattr,lowerdir=$1,upperdir=$2/upper,workdir=$2/work $3
    cd $3
    rm gone; echo again > gone; rm -r dir; mkdir dir; echo new > dir/new
    echo more >> changed; mv kept moved; mkdir made; chmod 600 mode
    cd /; umount $3";

/// A user mounts an overlay in a user namespace, as rootless Podman does. Its work directory is the user's, and has mode 0.
fn users_have_overlays_of_their_own(on: &Path) {
    let own = tempfile::Builder::new().prefix("forebay-test-").tempdir_in("/dev/shm").unwrap();
    fs::set_permissions(own.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let user = Cred { uid: 4242, gid: 4343, groups: vec![] };
    let fill = "mkdir -p lower/dir merged; cd lower; chmod 755 .
        for name in gone kept changed mode dir/below; do echo $name > $name; done; chown -R 4242:4343 .";
    let (ok, said) = try_run(Command::new("sh").args(["-euc", fill]).current_dir(own.path()));
    assert!(ok, "{said}");
    let [expected, found] = [own.path(), on].map(|at| {
        let at = at.join("rootless");
        let make = "mkdir -p $1/upper $1/work; chown -R 4242:4343 $1";
        let (ok, said) = try_run(Command::new("sh").args(["-euc", make, "sh"]).arg(&at));
        assert!(ok, "{said}");
        let mut script = Command::new("unshare");
        script.args(["--user", "--map-root-user", "--mount", "sh", "-euc", OF_A_USER, "sh"]);
        script.arg(own.path().join("lower")).arg(&at).arg(own.path().join("merged"));
        let (ok, said) = as_user(&user, || try_run(&mut script));
        assert!(ok, "{}: {said}", at.display());
        let mut all = BTreeMap::new();
        look(&at.join("upper"), Path::new(""), &mut all);
        all
    });
    assert_eq!(found, expected);
}

/// Also somebody without privilege may leave one, and no right comes with it.
fn anybody_leaves_a_whiteout(on: &Path) {
    let dir = on.join("theirs");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    let user = Cred { uid: 4242, gid: 4343, groups: vec![] };
    as_user(&user, || {
        fs::write(dir.join("a"), b"a").unwrap();
        fs::write(dir.join("b"), b"b").unwrap();
        let rename = |from: &str, to: &str, flags: u32| {
            let (from, to) = (dir.join(from), dir.join(to));
            sys::rename2(sys::bytes(&from), sys::bytes(&to), flags).map_err(|errno| errno.0)
        };
        assert_eq!(rename("a", "b", libc::RENAME_WHITEOUT), Ok(()));
        assert_eq!(rename("b", "c", libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE), Ok(()));
        let both = libc::RENAME_WHITEOUT | libc::RENAME_EXCHANGE;
        assert_eq!(rename("a", "c", both), Err(libc::EINVAL));
        assert_eq!(rename("none", "d", libc::RENAME_WHITEOUT), Err(libc::ENOENT));
    });
    for name in ["a", "b"] {
        let meta = fs::symlink_metadata(dir.join(name)).unwrap();
        assert!(meta.file_type().is_char_device(), "{name}");
        let found = (meta.rdev(), meta.mode() & 0o7777, meta.uid(), meta.gid(), meta.nlink());
        assert_eq!(found, (0, 0, 4242, 4343, 1), "{name}");
    }
    assert_eq!(fs::read(dir.join("c")).unwrap(), b"a");
    let mut names: Vec<_> =
        fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a", "b", "c"]);
    fs::remove_dir_all(&dir).unwrap();
}

/// Longer than a helper holds what it has looked up.
const HELPER_LETS_GO: Duration = Duration::from_millis(200);
/// Longer than a name in the directory of handles stays.
const NAMES_ARE_GONE: Duration = Duration::from_secs(4);
const LIMIT: Duration = Duration::from_secs(20);

/// What overlays are mounted with. The first is the default of most kernels.
const OPTIONS: [&str; 6] = [
    "index=off,redirect_dir=off,metacopy=off",
    "index=on",
    "redirect_dir=on",
    "index=on,nfs_export=on",
    "metacopy=on",
    "index=on,redirect_dir=on,metacopy=on,xino=on",
];

/// The kernel forgets what it found by names.
fn forget_names() {
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
}

/// Changes that copy files up, so that the overlay finds the lower ones by their handles.
const COPY_UP: &str = "
    chmod 600 three; echo more >> dir/four; chown -h 7:8 link
    echo more >> two; mv two renamed; mv dir/deep/five five
    echo more >> names/first; chmod 700 dir/deep; touch away";

fn read_open(file: std::os::fd::OwnedFd) -> String {
    let mut content = String::new();
    fs::File::from(file).read_to_string(&mut content).unwrap();
    content
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Handles {
    /// They lead to files also when the kernel has forgotten these.
    Stay,
    /// There are none: overlays do without.
    None,
}

/// An overlay with all of its layers on `on`, mounted anew after the kernel forgot its files: each use of a copied-up file
/// works, not only the first, and it has the number that it had before if that can be found.
fn copied_up_files_are_found_again(on: &Path, more: &str, handles: Handles) {
    let dir = on.join("all-layers");
    let lower = dir.join("lower");
    fs::create_dir_all(&lower).unwrap();
    let script = format!("{LOWER}; mkdir names; echo names > names/first; ln names/first second");
    let (ok, said) = try_run(Command::new("sh").args(["-euc", &script]).current_dir(&lower));
    assert!(ok, "{said}");
    let overlay = Overlay::with(&lower, &dir, dir.join("merged"), more);
    for option in ["index", "nfs_export"] {
        let [on, off] = ["on", "off"].map(|is| format!("{option}={is}"));
        if more.contains(&on) {
            // Without handles it does without these two, and says so. What the kernel has by itself is not shown.
            let (shown, not) =
                (overlay.shown_options(), if handles == Handles::Stay { off } else { on });
            assert!(!shown.contains(&not), "{more}: {shown}");
        }
    }
    overlay.shell(COPY_UP);
    let [expected, _] = overlay.look();
    let numbers = overlay.numbers();
    for round in 0..2 {
        overlay.umount();
        forget_names();
        overlay.mount();
        for look in 0..4 {
            let which = format!("{more}: mount {round}, look {look}");
            assert_eq!(overlay.look()[0], expected, "{which}");
            if handles == Handles::Stay {
                assert_eq!(overlay.numbers(), numbers, "{which}");
            }
            // Once is enough: it is the same with all options.
            if (round, look) == (0, 2) && more == OPTIONS[0] {
                std::thread::sleep(NAMES_ARE_GONE);
            }
        }
        overlay.shell("cat three dir/four renamed five names/first second; stat link > /dev/null");
        if handles == Handles::Stay && more.contains("nfs_export") {
            overlay.opens_by_handle("renamed");
        }
    }
    overlay.shell("echo again >> three; mv renamed once-more; rm five; ls -lR . > /dev/null");
    overlay.umount();
    fs::remove_dir_all(&dir).unwrap();
}

impl Overlay {
    /// What the table of mounts says of it.
    fn shown_options(&self) -> String {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let here = format!(" {} overlay ", self.merged.display());
        table.lines().rev().find(|line| line.contains(&here)).unwrap().to_string()
    }

    /// Inode numbers of what was copied up.
    fn numbers(&self) -> Vec<u64> {
        let paths = ["three", "dir/four", "link", "renamed", "five", "names/first"];
        let number = |path| fs::symlink_metadata(self.merged.join(path)).unwrap().ino();
        paths.into_iter().map(number).collect()
    }

    fn opens_by_handle(&self, path: &str) {
        let content = fs::read_to_string(self.merged.join(path)).unwrap();
        let handle = sys::handle_of(sys::bytes(&self.merged.join(path))).unwrap();
        self.umount();
        forget_names();
        self.mount();
        let top = fs::File::open(&self.merged).unwrap();
        for _ in 0..3 {
            let file = sys::open_by_handle(&top, &handle, libc::O_RDONLY).unwrap();
            assert_eq!(read_open(file), content, "{path}");
        }
    }
}

/// Files are opened by handle with and without their names in the kernel's cache, and go when they are removed.
fn handles_lead_to_files(on: &Path) {
    let dir = on.join("handles");
    fs::create_dir_all(dir.join("sub")).unwrap();
    let [file, other, link] = ["file", "sub/other", "link"].map(|name| dir.join(name));
    fs::write(&file, "content").unwrap();
    fs::hard_link(&file, &other).unwrap();
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    let handle = |path: &Path| sys::handle_of(sys::bytes(path)).unwrap();
    let [to_file, to_link, to_dir] = [handle(&file), handle(&link), handle(&dir.join("sub"))];
    let top = fs::File::open(on).unwrap();
    for _ in 0..3 {
        forget_names();
        let opened = sys::open_by_handle(&top, &to_file, libc::O_RDONLY).unwrap();
        assert_eq!(read_open(opened), "content");
        let opened = sys::open_by_handle(&top, &to_link, libc::O_PATH | libc::O_NOFOLLOW);
        opened.unwrap();
        let found = sys::open_by_handle(&top, &to_dir, libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
        drop(found);
    }
    // Nothing of it is seen.
    let names = |dir: &Path| fs::read_dir(dir).unwrap().count();
    assert_eq!((names(&dir), fs::metadata(&dir).unwrap().nlink()), (3, 3));
    fs::remove_file(&other).unwrap();
    fs::remove_file(&file).unwrap();
    until("a removed file has no handle", LIMIT, || {
        match sys::open_by_handle(&top, &to_file, libc::O_RDONLY) {
            Ok(_) => false,
            Err(errno) => errno.0 == libc::ESTALE,
        }
    });
    drop(top);
    fs::remove_dir_all(&dir).unwrap();
}

fn works_on(on: &Path) {
    anybody_leaves_a_whiteout(on);
    agrees_with_tmpfs(on);
    copies_keep_what_programs_may(on);
}

fn copies_are_found_on(on: &Path, handles: Handles) {
    match handles {
        Handles::Stay => handles_lead_to_files(on),
        Handles::None => {
            let refused = sys::handle_of(sys::bytes(on)).map(drop);
            assert_eq!(refused.map_err(|errno| errno.0), Err(libc::EOPNOTSUPP));
        }
    }
    for more in OPTIONS {
        copied_up_files_are_found_again(on, more, handles);
    }
}

on_every_kind!(copied_up_files_on_a_scratch_buffer_are_found_by_handle);

fn copied_up_files_on_a_scratch_buffer_are_found_by_handle(buffer: &Buffer) {
    copies_are_found_on(&buffer.root(), Handles::Stay);
}

/// The process that helps with handles of the mount at `root`.
fn helper_of(root: &Path) -> Option<i32> {
    let dir = [b"forebay-handles\0", sys::bytes(root), b"/"].concat();
    let processes = fs::read_dir("/proc").unwrap();
    let mut numbers =
        processes.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<i32>().ok());
    numbers.find(|pid| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|c| c.starts_with(&dir)))
}

fn signal(pid: i32, signal: i32) {
    // SAFETY: a signal to a process that this test caused to be.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

on_every_kind!(a_helper_that_is_killed_or_stopped_holds_up_nothing_for_long);

fn a_helper_that_is_killed_or_stopped_holds_up_nothing_for_long(buffer: &Buffer) {
    let root = buffer.root();
    fs::write(root.join("file"), "content").unwrap();
    let handle = sys::handle_of(sys::bytes(&root.join("file"))).unwrap();
    let open = || {
        // It holds what it has looked up for a moment.
        std::thread::sleep(HELPER_LETS_GO);
        forget_names();
        let top = fs::File::open(&root).unwrap();
        let begun = Instant::now();
        assert_eq!(
            read_open(sys::open_by_handle(&top, &handle, libc::O_RDONLY).unwrap()),
            "content"
        );
        begun.elapsed()
    };
    assert!(helper_of(&root).is_none(), "nobody used a handle yet");
    open();
    let first = helper_of(&root).unwrap();
    signal(first, libc::SIGKILL);
    until("it is gone", LIMIT, || helper_of(&root).is_none());
    // The first use finds that it is dead, the next starts another one.
    open();
    open();
    let second = helper_of(&root).unwrap();
    assert_ne!(first, second);
    signal(second, libc::SIGSTOP);
    assert!(open() < LIMIT, "it is waited for");
    assert!(open() < Duration::from_secs(2), "but once");
    signal(second, libc::SIGCONT);
    until("it helps again", LIMIT, || {
        open();
        helper_of(&root) == Some(second)
    });
    signal(second, libc::SIGSTOP);
    buffer.kill();
    signal(second, libc::SIGCONT);
    until("a helper ends with its mount", LIMIT, || helper_of(&root).is_none());
    buffer.start();
    open();
    let third = helper_of(&root).unwrap();
    buffer.umount(&[]).unwrap();
    until("a helper ends with its mount", LIMIT, || helper_of(&root) != Some(third));
}

on_both_kinds!(copied_up_files_on_a_cache_are_found_without_handles);

fn copied_up_files_on_a_cache_are_found_without_handles(kind: site::Kind) {
    let site = site::Site::mounted_as(kind, 64 << 20, &["--drain", "end"]);
    copies_are_found_on(&site.base.join("mnt"), Handles::None);
    let (ok, said) = site.umount(&[]);
    assert!(ok, "{said}");
}

#[test]
fn copied_up_files_over_two_servers_are_found_by_handle() {
    let served = Served::with(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Tcp]);
    for mount in [0, 1] {
        copies_are_found_on(&served.root(mount), Handles::Stay);
    }
}

on_every_kind!(an_overlay_on_a_scratch_buffer);

fn an_overlay_on_a_scratch_buffer(buffer: &Buffer) {
    works_on(&buffer.root());
    users_make_names_over_whiteouts(&buffer.root());
}

/// How a whiteout is left where a file was moved away.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// By the rename itself.
    AtOnce,
    /// By mknod, as the PFS refuses it to the rename.
    Afterwards,
}

fn make_whiteout(path: &Path) {
    run(Command::new("mknod").arg(path).args(["c", "0", "0"]));
}

/// What an overlay leaves on a cache is on the PFS as such, also if what serves the cache is killed then, and the next cache
/// finds it there.
fn whiteouts_are_on_the_pfs(site: &site::Site, how: Left) {
    let opaque = "trusted.overlay.opaque";
    fs::create_dir_all(site.mnt("left/opaque")).unwrap();
    fs::write(site.mnt("left/gone"), b"moved").unwrap();
    let [old, new] = ["left/gone", "left/moved"].map(|name| site.mnt(name));
    let at_once = sys::rename2(sys::bytes(&old), sys::bytes(&new), libc::RENAME_WHITEOUT);
    if how == Left::Afterwards {
        assert_eq!(at_once, Err(sys::Errno(libc::EINVAL)));
        assert_eq!(fs::read(&old).unwrap(), b"moved", "what is refused is not half done");
        fs::rename(&old, &new).unwrap();
        make_whiteout(&old);
    } else {
        at_once.unwrap();
    }
    sys::setxattr(sys::bytes(&site.mnt("left/opaque")), opaque, b"y", 0).unwrap();
    let is_in = |top: &Path| {
        let gone = fs::symlink_metadata(top.join("left/gone")).unwrap();
        assert!(gone.file_type().is_char_device() && gone.rdev() == 0, "{}", top.display());
        assert_eq!(fs::read(top.join("left/moved")).unwrap(), b"moved", "{}", top.display());
        assert_eq!(sys::getxattr(sys::bytes(&top.join("left/opaque")), opaque).unwrap(), b"y");
    };
    is_in(&site.mnt(""));
    // Nothing has drained, and the file is on record by its new name only.
    site.kill();
    site.mount();
    is_in(&site.mnt(""));
    site.must_be_durable();
    is_in(&site.pfs(""));
    let (ok, said) = site.umount(&[]);
    assert!(ok, "{said}");
    is_in(&site.pfs(""));
    site.mount();
    is_in(&site.mnt(""));
    fs::remove_file(site.mnt("left/gone")).unwrap();
    assert!(fs::symlink_metadata(site.pfs("left/gone")).is_err());
}

on_both_kinds!(an_overlay_on_a_cache);

fn an_overlay_on_a_cache(kind: site::Kind) {
    let site = site::Site::mounted_as(kind, 64 << 20, &["--drain", "end"]);
    works_on(&site.base.join("mnt"));
    users_make_names_over_whiteouts(&site.base.join("mnt"));
    users_have_overlays_of_their_own(&site.base.join("mnt"));
    whiteouts_are_on_the_pfs(&site, Left::AtOnce);
    let (ok, said) = site.umount(&[]);
    assert!(ok, "{said}");
}

/// Size of the image that a PFS lies in; mkfs.xfs takes no less than 300 MiB.
const IMAGE_BYTES: u64 = 320 << 20;

/// A cache over a file system of its own, of this type.
fn cache_over(file_system: &str) -> site::Site {
    let site = site::Site::of(site::Kind::Served, 64 << 20, &["--drain", "end"]);
    let image = site.base.join("pfs.img");
    fs::File::create(&image).unwrap().set_len(IMAGE_BYTES).unwrap();
    run(Command::new(format!("mkfs.{file_system}")).arg("-q").arg(&image));
    run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(site.base.join("pfs")));
    site.mount();
    site
}

/// As on tmpfs, on the file systems that a PFS keeps its own data on.
#[test]
fn an_overlay_on_a_cache_over_ext4_and_xfs() {
    for file_system in ["ext4", "xfs"] {
        let site = cache_over(file_system);
        agrees_with_tmpfs(&site.base.join("mnt"));
        whiteouts_are_on_the_pfs(&site, Left::AtOnce);
        let (ok, said) = site.umount(&[]);
        assert!(ok, "{file_system}: {said}");
    }
}

/// GlusterFS takes whiteouts, but not from a rename: so an upper directory cannot lie there, and layers with whiteouts can.
#[test]
fn layers_with_whiteouts_lie_on_a_cache_over_glusterfs() {
    let place = tempfile::Builder::new().prefix("forebay-test-").tempdir_in("/dev/shm").unwrap();
    let gluster = Gluster::start(&place.path().join("gluster"));
    // The cache ends before its PFS does.
    let site = site::Site::of(site::Kind::Served, 64 << 20, &["--drain", "end"]);
    run(Command::new("mount").arg("--bind").arg(gluster.path()).arg(site.base.join("pfs")));
    site.mount();
    whiteouts_are_on_the_pfs(&site, Left::Afterwards);
    let below = site.base.join("below");
    fs::create_dir(&below).unwrap();
    for name in ["hidden", "seen"] {
        fs::write(below.join(name), name).unwrap();
    }
    fs::create_dir(site.mnt("layer")).unwrap();
    make_whiteout(&site.mnt("layer/hidden"));
    fs::write(site.mnt("layer/more"), "more").unwrap();
    let upper = site.base.join("upper");
    let lower = format!("{}:{}", site.mnt("layer").display(), below.display());
    let overlay = Overlay::with(Path::new(&lower), &upper, site.base.join("merged"), "index=off");
    overlay.shell("test ! -e hidden; test $(cat seen) = seen; test $(cat more) = more; rm more");
    overlay.umount();
    let (ok, said) = site.umount(&[]);
    assert!(ok, "{said}");
}

/// What one mount's rename left, another one sees, on whichever server the directories are.
fn over_servers(servers: usize) {
    let served = Served::with(Options::over(servers, Store::Tmpfs), &[Via::Local, Via::Tcp]);
    works_on(&served.root(0));
    users_make_names_over_whiteouts(&served.root(0));
    let [here, there] = [0, 1].map(|at| served.root(at));
    for number in 0..8 {
        let (from, to) = (format!("from.{number}"), format!("to.{number}"));
        for dir in [&from, &to] {
            fs::create_dir(here.join(dir)).unwrap();
        }
        fs::write(there.join(&from).join("file"), dir_of(number)).unwrap();
        let [old, new] = [here.join(&from).join("file"), here.join(&to).join("file")];
        sys::rename2(sys::bytes(&old), sys::bytes(&new), libc::RENAME_WHITEOUT).unwrap();
        for mount in [&here, &there] {
            let left = fs::symlink_metadata(mount.join(&from).join("file")).unwrap();
            assert!(left.file_type().is_char_device() && left.rdev() == 0, "{number}");
            assert_eq!(fs::read(mount.join(&to).join("file")).unwrap(), dir_of(number));
        }
        fs::remove_file(there.join(&from).join("file")).unwrap();
        fs::remove_dir(here.join(&from)).unwrap();
    }
}

fn dir_of(number: i32) -> Vec<u8> {
    format!("file of {number}").into_bytes()
}

#[test]
fn an_overlay_over_one_server() {
    over_servers(1);
}

#[test]
fn an_overlay_over_two_servers() {
    over_servers(2);
}

/// As on a cache, where the PFS has a say too.
#[test]
fn users_have_overlays_of_their_own_without_a_pfs() {
    let buffer = Buffer::mount(forebay_tests::buffer::Kind::Tmpfs, 64 << 20);
    users_have_overlays_of_their_own(&buffer.root());
    let served = Served::with(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Tcp]);
    for mount in [0, 1] {
        users_have_overlays_of_their_own(&served.root(mount));
        fs::remove_dir_all(served.root(mount).join("rootless")).unwrap();
    }
}
