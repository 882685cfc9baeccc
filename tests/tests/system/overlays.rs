//! The kernel's overlay with its upper and work directories on a buffer, as containers have it: what it shows and what it leaves
//! in the upper directory are those of an overlay on tmpfs.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::Buffer;
use forebay_tests::procs::{Cred, as_user, try_run};
use forebay_tests::served::{Options, Served, Store, Via};
use forebay_tests::{on_both_kinds, on_every_kind, site, sys};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Overlays over one lower tree.
struct Overlay {
    dir: PathBuf,
    merged: PathBuf,
    options: String,
}

impl Overlay {
    /// Its upper and work directories below `dir`.
    fn new(lower: &Path, dir: &Path, merged: PathBuf) -> Overlay {
        for sub in ["upper", "work"] {
            fs::create_dir_all(dir.join(sub)).unwrap();
        }
        fs::create_dir_all(&merged).unwrap();
        let (lower, at) = (lower.display(), dir.display());
        let options = format!(
            "lowerdir={lower},upperdir={at}/upper,workdir={at}/work,redirect_dir=on,metacopy=on"
        );
        let overlay = Overlay { dir: dir.to_path_buf(), merged, options };
        overlay.mount();
        overlay
    }

    fn mount(&self) {
        let mut mount = Command::new("mount");
        mount.args(["-t", "overlay", "overlay", "-o", &self.options]).arg(&self.merged);
        let (ok, said) = try_run(&mut mount);
        assert!(ok, "{said}");
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

fn works_on(on: &Path) {
    anybody_leaves_a_whiteout(on);
    agrees_with_tmpfs(on);
}

on_every_kind!(an_overlay_on_a_scratch_buffer);

fn an_overlay_on_a_scratch_buffer(buffer: &Buffer) {
    works_on(&buffer.root());
}

on_both_kinds!(an_overlay_on_a_cache);

fn an_overlay_on_a_cache(kind: site::Kind) {
    let site = site::Site::mounted_as(kind, 64 << 20, &["--drain", "end"]);
    works_on(&site.base.join("mnt"));
    let (ok, said) = site.umount(&[]);
    assert!(ok, "{said}");
}

/// What one mount's rename left, another one sees, on whichever server the directories are.
fn over_servers(servers: usize) {
    let served = Served::with(Options::over(servers, Store::Tmpfs), &[Via::Local, Via::Tcp]);
    works_on(&served.root(0));
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
