//! A root server stages for a user only what the user could read and write.

use super::support::{Site, leftovers, need_root, noise};
use forebay_proto::Caller;
use forebay_proto::control::{PlanState, StageKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const USER: u32 = 4_711;

fn user() -> Caller {
    Caller { uid: USER, gid: USER, groups: vec![USER + 1], ..Caller::default() }
}

/// A site in which the user owns a directory on both sides.
fn site() -> Site {
    let site = Site::new();
    for dir in [site.pfs("home"), site.buffer("home")] {
        std::fs::create_dir(&dir).unwrap();
        chown(&dir, Some(USER), Some(USER)).unwrap();
    }
    site
}

/// What cannot be read leaves no trace at the target; paths of the buffer are named as such.
#[test]
fn nothing_is_made_for_what_cannot_be_read() {
    need_root();
    let options = crate::MoverOptions {
        buffer_prefix: b"/mnt/bb".to_vec(),
        ..crate::MoverOptions::default()
    };
    let site = Site::with(options);
    let who = Caller { uid: 4242, gid: 4242, ..Caller::default() };
    std::fs::set_permissions(site.pfs(""), PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::create_dir_all(site.buffer("d/sec")).unwrap();
    std::fs::write(site.buffer("d/open"), b"x").unwrap();
    std::fs::write(site.buffer("d/shut"), b"x").unwrap();
    for (name, mode) in [("d/sec", 0o711), ("d/shut", 0o600)] {
        std::fs::set_permissions(site.buffer(name), PermissionsExt::from_mode(mode)).unwrap();
    }
    for (from, to) in [("/d/sec", "new/sec"), ("/d/shut", "new/dir/shut"), ("/d", "tree")] {
        let status = site.run_as(&who, site.stage_out(from, to));
        let error = &status.errors[0];
        assert_eq!((status.state, error.errno), (PlanState::Failed, libc::EACCES), "{from}");
        assert!(error.path.to_string().starts_with("/mnt/bb/d/s"), "{from}: {}", error.path);
        assert_eq!(status.buffer_prefix.as_bytes(), b"/mnt/bb");
    }
    assert!(!site.pfs("new").exists());
    let mut names = std::fs::read_dir(site.pfs("tree")).unwrap();
    assert_eq!(names.next().unwrap().unwrap().file_name(), "open");
    assert!(names.next().is_none());
}

#[test]
fn files_the_user_cannot_read_are_refused_and_the_rest_is_copied() {
    need_root();
    let site = site();
    let put = |name: &str, owner: u32, group: u32, mode: u32| {
        let path = site.pfs("home").join(name);
        std::fs::write(&path, name).unwrap();
        chown(&path, Some(owner), Some(group)).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    };
    put("own", USER, USER, 0o600);
    put("group", 0, USER + 1, 0o640);
    put("suid", 0, 0, 0o4755);
    put("secret", 0, 0, 0o600);
    std::fs::create_dir(site.pfs("home/closed")).unwrap();
    std::fs::set_permissions(site.pfs("home/closed"), PermissionsExt::from_mode(0o700)).unwrap();
    let status = site.run_as(&user(), site.stage_in("home", "/home/in"));
    assert_eq!(status.state, PlanState::Failed);
    let mut refused: Vec<_> = status.errors.iter().map(|e| (e.path.to_string(), e.errno)).collect();
    refused.sort();
    let expected = ["closed", "secret"]
        .map(|name| (site.pfs("home").join(name).display().to_string(), libc::EACCES));
    assert_eq!(refused, expected);
    assert!(!site.buffer("home/in/secret").exists());
    assert_eq!(std::fs::read(site.buffer("home/in/group")).unwrap(), b"group");
    let meta = site.buffer("home/in/suid").metadata().unwrap();
    assert_eq!((meta.uid(), meta.mode() & 0o7777), (USER, 0o755), "suid goes with its owner");
}

#[test]
fn a_root_only_tree_is_neither_read_nor_written() {
    need_root();
    let site = site();
    std::fs::create_dir(site.pfs("root")).unwrap();
    std::fs::write(site.pfs("root/key"), b"key").unwrap();
    std::fs::set_permissions(site.pfs("root"), PermissionsExt::from_mode(0o700)).unwrap();
    for kind in [StageKind::Auto, StageKind::File, StageKind::List] {
        let mut spec = site.stage_in("root/key", "/home/key");
        spec.kind = kind;
        let status = site.run_as(&user(), spec);
        assert_eq!((status.state, status.errors[0].errno), (PlanState::Failed, libc::EACCES));
    }
    std::fs::write(site.buffer("home/mine"), b"mine").unwrap();
    chown(site.buffer("home/mine"), Some(USER), Some(USER)).unwrap();
    for to in ["root/new", "new"] {
        let status = site.run_as(&user(), site.stage_out("/home/mine", to));
        assert_eq!((status.state, status.errors[0].errno), (PlanState::Failed, libc::EACCES));
    }
    assert!(!site.pfs("new").exists() && !site.pfs("root/new").exists());
    let status = site.run_as(&user(), site.stage_out("/home/mine", "home/new"));
    assert_eq!(status.state, PlanState::Done, "{:?}", status.errors);
    let meta = site.pfs("home/new").metadata().unwrap();
    assert_eq!((meta.uid(), meta.gid()), (USER, USER));
}

#[test]
fn plans_of_others_are_not_seen() {
    need_root();
    let site = site();
    let plan = site.run(site.stage_in("home", "/x")).plan;
    assert!(site.mover.status(&user(), plan).is_err());
    assert!(site.mover.cancel(&user(), plan).is_err());
    assert!(site.mover.set_rate(&user(), plan, 1).is_err());
    assert!(site.mover.list(&user()).is_empty());
    let own = site.run_as(&user(), site.stage_in("home", "/home/x")).plan;
    assert_eq!(site.mover.list(&user()).len(), 1);
    assert!(site.mover.status(&Caller::root(), own).is_ok());
}

/// The user swaps a file and a directory of the source for symbolic links to root's files, all
/// the time, while the tree is staged for the user and for root.
#[test]
fn swapping_in_symbolic_links_never_leads_out_of_the_tree() {
    need_root();
    let site = site();
    std::fs::create_dir(site.pfs("root")).unwrap();
    std::fs::write(site.pfs("root/f"), b"SECRET").unwrap();
    std::fs::create_dir_all(site.pfs("home/tree/dir")).unwrap();
    std::fs::create_dir_all(site.pfs("home/out/dir")).unwrap();
    for dir in ["home/tree", "home/tree/dir", "home/out", "home/out/dir"] {
        chown(site.pfs(dir), Some(USER), Some(USER)).unwrap();
    }
    std::fs::write(site.pfs("home/tree/dir/f"), b"mine").unwrap();
    std::fs::write(site.pfs("home/tree/f"), noise(300_000, 1)).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let swapper = {
        let (stop, home, root) = (stop.clone(), site.pfs("home"), site.pfs("root"));
        std::thread::spawn(move || {
            symlink(&root, home.join("link")).unwrap();
            symlink(root.join("f"), home.join("link-f")).unwrap();
            let flip = rustix::fs::RenameFlags::EXCHANGE;
            let swap = |one: &str, other: &str| {
                let at = rustix::fs::CWD;
                let _ = rustix::fs::renameat_with(at, home.join(one), at, home.join(other), flip);
            };
            while !stop.load(Relaxed) {
                for (one, other) in
                    [("tree/dir", "link"), ("tree/f", "link-f"), ("out/dir", "link")]
                {
                    swap(one, other);
                    std::thread::yield_now();
                    swap(one, other);
                }
            }
        })
    };
    std::fs::create_dir_all(site.buffer("home/src/dir")).unwrap();
    std::fs::write(site.buffer("home/src/dir/f"), b"planted").unwrap();
    for round in 0..60 {
        let who = if round % 2 == 0 { user() } else { Caller::root() };
        let to = format!("/home/in{round}");
        let mut spec = site.stage_in("home/tree", &to);
        spec.retries = 0;
        site.run_as(&who, spec);
        let mut out = site.stage_out("/home/src", "home/out");
        out.retries = 0;
        site.run_as(&who, out);
        assert_eq!(std::fs::read(site.pfs("root/f")).unwrap(), b"SECRET", "written through a link");
    }
    stop.store(true, Relaxed);
    swapper.join().unwrap();
    let mut dirs = vec![site.buffer("home")];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                dirs.push(entry.path());
            } else if kind.is_file() {
                let content = std::fs::read(entry.path()).unwrap();
                assert_ne!(content, b"SECRET", "{:?} leaked", entry.path());
            }
        }
    }
    assert!(leftovers(&site.pfs("root")).is_empty());
}

/// The kinds of what copies lack, each with the names in order.
fn told(status: &forebay_proto::control::PlanStatus) -> Vec<(String, Vec<String>)> {
    let names = |kind: &forebay_proto::control::NotKept| {
        let mut names: Vec<String> = kind.paths.iter().map(ToString::to_string).collect();
        names.sort();
        assert_eq!(names.len() as u64, kind.files);
        names
    };
    let mut told: Vec<_> =
        status.not_kept.iter().map(|kind| (kind.what.clone(), names(kind))).collect();
    told.sort();
    told
}

/// Marks of overlays that a user cannot even list, on whatever has them; not of files that the user may not read.
#[test]
fn marks_that_a_user_does_not_see_are_told_by_name() {
    need_root();
    let site = site();
    let tree = |name: &str| site.pfs(&format!("home/tree/{name}"));
    std::fs::create_dir(site.pfs("home/tree")).unwrap();
    for (name, owner, mode) in [("meta", USER, 0o644), ("cap", USER, 0o644), ("secret", 0, 0o600)] {
        std::fs::write(tree(name), name).unwrap();
        chown(tree(name), Some(owner), Some(USER)).unwrap();
        std::fs::set_permissions(tree(name), PermissionsExt::from_mode(mode)).unwrap();
    }
    symlink("meta", tree("link")).unwrap();
    let device = rustix::fs::FileType::CharacterDevice;
    let mode = rustix::fs::Mode::empty();
    rustix::fs::mknodat(rustix::fs::CWD, tree("gone"), device, mode, 0).unwrap();
    for name in ["link", "gone"] {
        std::os::unix::fs::lchown(tree(name), Some(USER), Some(USER)).unwrap();
    }
    // Version 2, effective, permitted: CAP_CHOWN.
    let mut capability = [0u8; 20];
    capability[..8].copy_from_slice(&[1, 0, 0, 2, 1, 0, 0, 0]);
    let marks: [(&str, &str, &[u8]); 7] = [
        ("", "trusted.overlay.impure", b"y"),
        ("meta", "trusted.overlay.metacopy", b"m"),
        ("meta", "trusted.overlay.redirect", b"/x"),
        ("link", "trusted.overlay.origin", b"o"),
        ("gone", "trusted.overlay.origin", b"o"),
        ("cap", "security.capability", &capability),
        ("secret", "trusted.secret", b"s"),
    ];
    for (name, mark, value) in marks {
        let path = if name.is_empty() { site.pfs("home/tree") } else { tree(name) };
        rustix::fs::lsetxattr(path, mark, value, rustix::fs::XattrFlags::empty()).unwrap();
    }
    let status = site.run_as(&user(), site.stage_in("home/tree", "/home/copy"));
    // One file cannot be read; the rest is there.
    assert_eq!((status.state, status.errors[0].errno), (PlanState::Failed, libc::EACCES));
    assert!(site.buffer("home/copy/meta").exists());
    let kind = |what: &str, names: &[&str]| {
        let path = |name: &&str| tree(name).display().to_string();
        (what.to_string(), names.iter().map(path).collect::<Vec<_>>())
    };
    let top = site.pfs("home/tree").display().to_string();
    let expected = [
        kind("owner", &["secret"]),
        kind("security.capability", &["cap"]),
        ("trusted.overlay.impure".to_string(), vec![top]),
        kind("trusted.overlay.metacopy", &["meta"]),
        kind("trusted.overlay.origin", &["gone", "link"]),
        kind("trusted.overlay.redirect", &["meta"]),
    ];
    assert_eq!(told(&status), expected);
}

/// Who is not root is told what the copies lack, by kind and name.
#[test]
fn what_only_root_keeps_is_told_by_name() {
    need_root();
    let site = site();
    std::fs::create_dir_all(site.pfs("home/tree/opaque")).unwrap();
    // Version 2, effective, permitted: CAP_CHOWN.
    let mut value = [0u8; 20];
    value[..8].copy_from_slice(&[1, 0, 0, 2, 1, 0, 0, 0]);
    for (name, owner, mode) in
        [("mine", USER, 0o755), ("theirs", 0, 0o4755), ("plain", USER, 0o644)]
    {
        let path = site.pfs(&format!("home/tree/{name}"));
        std::fs::write(&path, name).unwrap();
        chown(&path, Some(owner), Some(USER)).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    }
    let set = |path: &str, name: &str, value: &[u8]| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::lsetxattr(site.pfs(path), name, value, flags).unwrap();
    };
    set("home/tree/mine", "security.capability", &value);
    set("home/tree/opaque", "trusted.overlay.opaque", b"y");
    let status = site.run_as(&user(), site.stage_in("home/tree", "/home/copy"));
    assert_eq!(status.state, PlanState::Done, "{status:?}");
    let mut told: Vec<_> = status
        .not_kept
        .iter()
        .map(|kind| (kind.what.as_str(), kind.files, kind.paths[0].to_string()))
        .collect();
    told.sort();
    let path = |name: &str| site.pfs(&format!("home/tree/{name}")).display().to_string();
    let expected = [
        ("owner", 1, path("theirs")),
        ("security.capability", 1, path("mine")),
        ("set-user-id bit", 1, path("theirs")),
        ("trusted.overlay.opaque", 1, path("opaque")),
    ];
    assert_eq!(told, expected);
    let by_root = site.must(site.stage_in("home/tree", "/by-root"));
    assert!(by_root.not_kept.is_empty(), "root keeps all: {:?}", by_root.not_kept);
}
