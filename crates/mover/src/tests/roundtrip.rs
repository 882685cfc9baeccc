//! What goes in and out again is the same, and what the kinds of plans mean.

use super::snapshot;
use super::support::{Site, leftovers, need_root, noise, spec};
use forebay_proto::control::{Direction, PathBytes, PlanState, StageKind, Verify};
use proptest::prelude::*;
use rustix::fs::{AtFlags, CWD, FileType, Mode, XattrFlags};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

#[derive(Clone, Debug)]
enum Kind {
    File(Vec<(u64, usize)>, u64),
    Dir,
    Symlink(Vec<u8>),
    HardLink(usize),
    Fifo,
    Device(u32, u32),
}

#[derive(Clone, Debug)]
struct Thing {
    parent: usize,
    name: Vec<u8>,
    kind: Kind,
    mode: u32,
    owner: (u32, u32),
    times: [(i64, i64); 2],
    xattr: Option<(String, Vec<u8>)>,
}

fn things() -> impl Strategy<Value = Vec<Thing>> {
    let name = prop_oneof![
        prop::collection::vec(prop_oneof![1u8..=46, 48u8..=255], 1..20),
        Just(b"with\nnewline".to_vec()),
        Just(vec![0xff, 0xfe, b'x']),
        Just(vec![b'n'; 255]),
    ];
    let kind = prop_oneof![
        4 => (prop::collection::vec((0u64..2 << 20, 0usize..70_000), 0..4), 0u64..3 << 20)
            .prop_map(|(parts, tail)| Kind::File(parts, tail)),
        3 => Just(Kind::Dir),
        1 => prop::collection::vec(1u8..=255, 1..100).prop_map(Kind::Symlink),
        1 => any::<usize>().prop_map(Kind::HardLink),
        1 => Just(Kind::Fifo),
        // XFS keeps 18 bits of the minor number.
        1 => (0u32..4095, 0u32..0x3ffff).prop_map(|(major, minor)| Kind::Device(major, minor)),
    ];
    let time = (-2_000_000_000i64..4_000_000_000, 0i64..1_000_000_000);
    let xattr =
        prop::option::of(("user\\.[a-z]{1,20}", prop::collection::vec(any::<u8>(), 0..300)));
    let thing = (
        any::<usize>(),
        name,
        kind,
        0u32..0o10000,
        (0u32..3000, 0u32..3000),
        [time.clone(), time],
        xattr,
    );
    let thing = thing.prop_map(|(parent, name, kind, mode, owner, times, xattr)| Thing {
        parent,
        name,
        kind,
        mode,
        owner,
        times,
        xattr,
    });
    prop::collection::vec(thing, 0..40)
}

/// Makes the tree; a thing whose name is taken is left out.
fn build(top: &Path, things: &[Thing]) {
    std::fs::create_dir(top).unwrap();
    let mut dirs = vec![top.to_path_buf()];
    let mut files: Vec<PathBuf> = Vec::new();
    let mut made: Vec<(PathBuf, &Thing)> = Vec::new();
    for thing in things {
        let name = OsString::from_vec(thing.name.clone());
        if thing.name == b"." || thing.name == b".." {
            continue;
        }
        let path = dirs[thing.parent % dirs.len()].join(name);
        if path.symlink_metadata().is_ok() || path.as_os_str().len() > 3_000 {
            continue;
        }
        match &thing.kind {
            Kind::File(parts, tail) => {
                let file = File::create(&path).unwrap();
                for (offset, len) in parts {
                    file.write_all_at(&noise(*len, *offset), *offset).unwrap();
                }
                let len = file.metadata().unwrap().len();
                file.set_len(len + tail).unwrap();
                file.sync_all().unwrap();
                files.push(path.clone());
            }
            Kind::Dir => {
                std::fs::create_dir(&path).unwrap();
                dirs.push(path.clone());
            }
            Kind::Symlink(to) => {
                std::os::unix::fs::symlink(OsString::from_vec(to.clone()), &path).unwrap();
            }
            Kind::HardLink(_) if files.is_empty() => continue,
            Kind::HardLink(which) => {
                std::fs::hard_link(&files[which % files.len()], &path).unwrap();
                continue;
            }
            Kind::Fifo => {
                rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR, 0).unwrap();
            }
            Kind::Device(major, minor) => {
                let dev = libc::makedev(*major, *minor);
                let kind = FileType::CharacterDevice;
                rustix::fs::mknodat(CWD, &path, kind, Mode::RUSR, dev).unwrap();
            }
        }
        made.push((path, thing));
    }
    for (path, thing) in made.iter().rev() {
        std::os::unix::fs::lchown(path, Some(thing.owner.0), Some(thing.owner.1)).unwrap();
        if let (Kind::File(..) | Kind::Dir, Some((name, value))) = (&thing.kind, &thing.xattr) {
            let set = rustix::fs::lsetxattr(path, name.as_str(), value, XattrFlags::empty());
            assert!(set.is_ok() || set == Err(rustix::io::Errno::NOSPC), "{set:?}");
        }
        if !matches!(thing.kind, Kind::Symlink(_)) {
            std::fs::set_permissions(path, PermissionsExt::from_mode(thing.mode)).unwrap();
        }
        let spec = |(sec, nsec): (i64, i64)| rustix::fs::Timespec { tv_sec: sec, tv_nsec: nsec };
        let times = rustix::fs::Timestamps {
            last_access: spec(thing.times[0]),
            last_modification: spec(thing.times[1]),
        };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_tree_staged_in_and_out_is_the_same_tree(things in things(), medium: bool) {
        need_root();
        let site = Site::new();
        build(&site.pfs("a"), &things);
        let before = snapshot::take(&site.pfs("a"));
        let verify = if medium { Verify::Medium } else { Verify::Cache };
        let mut stage_in = site.stage_in("a", "/x/y");
        stage_in.verify = verify;
        let status = site.must(stage_in);
        prop_assert_eq!(status.verified, Some(verify));
        snapshot::assert_same(&before, &snapshot::take(&site.buffer("x/y")));
        let mut stage_out = site.stage_out("/x/y", "b/c");
        stage_out.verify = verify;
        stage_out.options.parents = true;
        let status = site.must(stage_out);
        prop_assert_eq!(status.files_total + 1, before.len() as u64);
        snapshot::assert_same(&before, &snapshot::take(&site.pfs("b/c")));
        prop_assert_eq!(leftovers(&site.pfs("")), Vec::<PathBuf>::new());
        prop_assert_eq!(site.tree.unnamed_files(), 0);
    }
}

/// On ext4 a large xattr lies in a block of its own, which `st_blocks` counts: a file without
/// data looks like one without holes.
#[test]
fn a_hole_is_kept_beside_a_large_xattr() {
    let site = Site::new();
    std::fs::create_dir(site.pfs("a")).unwrap();
    let file = File::create(site.pfs("a/f")).unwrap();
    file.set_len(2_455).unwrap();
    let value = [b'x'; 300];
    rustix::fs::fsetxattr(&file, "user.large", &value, XattrFlags::empty()).unwrap();
    file.sync_all().unwrap();
    let before = snapshot::take(&site.pfs("a"));
    site.must(site.stage_in("a", "/a"));
    snapshot::assert_same(&before, &snapshot::take(&site.buffer("a")));
    site.must(site.stage_out("/a", "b"));
    snapshot::assert_same(&before, &snapshot::take(&site.pfs("b")));
}

#[test]
fn acls_and_capabilities_are_kept() {
    need_root();
    let site = Site::new();
    let top = site.pfs("a");
    std::fs::create_dir(&top).unwrap();
    std::fs::write(top.join("f"), b"x").unwrap();
    std::fs::set_permissions(top.join("f"), PermissionsExt::from_mode(0o4750)).unwrap();
    // user::rwx user:5:r-- group::r-x mask::rwx other::---
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in
        [(1u16, 7u16, u32::MAX), (2, 4, 5), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)]
    {
        acl.extend_from_slice(&tag.to_le_bytes());
        acl.extend_from_slice(&perm.to_le_bytes());
        acl.extend_from_slice(&id.to_le_bytes());
    }
    let none = XattrFlags::empty();
    rustix::fs::setxattr(top.join("f"), "system.posix_acl_access", &acl, none).unwrap();
    rustix::fs::setxattr(&top, "system.posix_acl_default", &acl, none).unwrap();
    rustix::fs::setxattr(top.join("f"), "trusted.x", b"1", none).unwrap();
    let before = snapshot::take(&top);
    site.must(site.stage_in("a", "/a"));
    snapshot::assert_same(&before, &snapshot::take(&site.buffer("a")));
    site.must(site.stage_out("/a", "b"));
    snapshot::assert_same(&before, &snapshot::take(&site.pfs("b")));
}

#[test]
fn xattrs_of_links_and_special_files_are_kept() {
    need_root();
    let site = Site::new();
    let top = site.pfs("a");
    std::fs::create_dir(&top).unwrap();
    std::os::unix::fs::symlink("nowhere", top.join("link")).unwrap();
    let mode = Mode::from_raw_mode(0o640);
    rustix::fs::mknodat(CWD, top.join("fifo"), FileType::Fifo, mode, 0).unwrap();
    let device = libc::makedev(1, 3);
    rustix::fs::mknodat(CWD, top.join("null"), FileType::CharacterDevice, mode, device).unwrap();
    let none = XattrFlags::empty();
    for name in ["link", "fifo", "null"] {
        rustix::fs::lsetxattr(top.join(name), "trusted.x", name.as_bytes(), none).unwrap();
        rustix::fs::lsetxattr(top.join(name), "security.x", b"2", none).unwrap();
    }
    // user::rw- user:5:r-- group::r-- mask::r-- other::---
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in
        [(1u16, 6u16, u32::MAX), (2, 4, 5), (4, 4, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)]
    {
        acl.extend_from_slice(&tag.to_le_bytes());
        acl.extend_from_slice(&perm.to_le_bytes());
        acl.extend_from_slice(&id.to_le_bytes());
    }
    rustix::fs::lsetxattr(top.join("fifo"), "system.posix_acl_access", &acl, none).unwrap();
    let before = snapshot::take(&top);
    site.must(site.stage_in("a", "/a"));
    snapshot::assert_same(&before, &snapshot::take(&site.buffer("a")));
    site.must(site.stage_out("/a", "b"));
    snapshot::assert_same(&before, &snapshot::take(&site.pfs("b")));
}

#[test]
fn a_tree_beyond_the_bounds_of_a_plan_is_told() {
    let site = Site::with(crate::MoverOptions {
        dir_records_bytes_max: 4_000,
        link_records_bytes_max: 4_000,
        ..crate::MoverOptions::default()
    });
    for number in 0..40 {
        std::fs::create_dir_all(site.pfs(&format!("dirs/{number}"))).unwrap();
        std::fs::write(site.pfs(&format!("dirs/{number}/f")), b"x").unwrap();
    }
    std::fs::create_dir(site.pfs("links")).unwrap();
    std::fs::write(site.pfs("links/0"), b"x").unwrap();
    for number in 1..40 {
        std::fs::hard_link(site.pfs("links/0"), site.pfs(&format!("links/{number}"))).unwrap();
    }
    for (tree, what) in [("dirs", "for directories"), ("links", "with several names")] {
        let status = site.run(site.stage_in(tree, &format!("/{tree}")));
        assert!((1..40).contains(&status.files_failed), "{tree}: {}", status.files_failed);
        for error in &status.errors {
            assert!(error.why.contains(what) && error.why.contains("one by one"), "{}", error.why);
        }
        let there = std::fs::read_dir(site.buffer(tree)).unwrap().count() as u64;
        assert_eq!(there, 40 - status.files_failed, "what was not refused is there");
    }
    site.must(site.stage_in("dirs/39", "/alone"));
}

/// The kernel's overlay links its whiteouts.
#[test]
fn hard_links_of_what_has_no_data_stay_links() {
    need_root();
    let site = Site::new();
    std::fs::create_dir_all(site.pfs("tree/deep")).unwrap();
    for (name, kind) in [("gone", FileType::CharacterDevice), ("fifo", FileType::Fifo)] {
        let path = site.pfs(&format!("tree/{name}"));
        rustix::fs::mknodat(CWD, &path, kind, Mode::RUSR, 0).unwrap();
    }
    std::os::unix::fs::symlink("nowhere", site.pfs("tree/link")).unwrap();
    for name in ["gone", "fifo", "link"] {
        for other in ["a", "b"] {
            let [from, to] =
                [format!("tree/{name}"), format!("tree/deep/{name}-{other}")].map(|p| site.pfs(&p));
            rustix::fs::linkat(CWD, &from, CWD, &to, AtFlags::empty()).unwrap();
        }
    }
    site.must(site.stage_in("tree", "/tree"));
    site.must(site.stage_out("/tree", "out"));
    // Once more over itself.
    site.must(site.stage_out("/tree", "out"));
    for top in [site.buffer("tree"), site.pfs("out")] {
        for name in ["gone", "fifo", "link"] {
            let look = |path: String| std::fs::symlink_metadata(top.join(path)).unwrap();
            let first = look(name.to_string());
            assert_eq!(first.nlink(), 3, "{name} in {}", top.display());
            for other in ["a", "b"] {
                assert_eq!(look(format!("deep/{name}-{other}")).ino(), first.ino(), "{name}");
            }
        }
    }
}

#[test]
fn a_file_goes_where_cp_would_put_it() {
    let site = Site::new();
    std::fs::write(site.pfs("f"), b"1").unwrap();
    site.must(site.stage_in("f", "/new/name"));
    assert_eq!(std::fs::read(site.buffer("new/name")).unwrap(), b"1");
    site.must(site.stage_in("f", "/new"));
    site.must(site.stage_in("f", "/other/"));
    site.must(site.stage_in("f", "/"));
    for path in ["new/f", "other/f", "f"] {
        assert_eq!(std::fs::read(site.buffer(path)).unwrap(), b"1");
    }
    // Once more over itself, with other content.
    std::fs::write(site.pfs("f"), b"22").unwrap();
    site.must(site.stage_in("f", "/new/name"));
    assert_eq!(std::fs::read(site.buffer("new/name")).unwrap(), b"22");
    site.must(site.stage_out("/new/name", "g"));
    assert_eq!(std::fs::read(site.pfs("g")).unwrap(), b"22");
}

#[test]
fn type_file_is_strict_about_directories() {
    let site = Site::new();
    std::fs::write(site.pfs("f"), b"1").unwrap();
    std::fs::create_dir(site.buffer("d")).unwrap();
    let mut to_dir = site.stage_in("f", "/d");
    to_dir.kind = StageKind::File;
    let status = site.run(to_dir);
    assert_eq!(status.state, PlanState::Failed);
    assert_eq!(status.errors[0].errno, libc::EISDIR);
    assert_eq!(status.errors[0].path.as_bytes(), b"/d");
    let mut of_dir = site.stage_out("/d", "x");
    of_dir.kind = StageKind::File;
    assert_eq!(site.run(of_dir).errors[0].errno, libc::EISDIR);
    assert!(!site.pfs("x").exists());
}

#[test]
fn a_named_symbolic_link_is_followed_and_one_in_a_tree_is_kept() {
    let site = Site::new();
    std::fs::create_dir(site.pfs("real")).unwrap();
    std::fs::write(site.pfs("real/f"), b"1").unwrap();
    std::os::unix::fs::symlink("f", site.pfs("real/l")).unwrap();
    std::os::unix::fs::symlink(site.pfs("real"), site.pfs("named")).unwrap();
    site.must(site.stage_in("named/l", "/file"));
    assert!(site.buffer("file").symlink_metadata().unwrap().is_file());
    site.must(site.stage_in("named", "/tree"));
    assert_eq!(std::fs::read_link(site.buffer("tree/l")).unwrap(), Path::new("f"));
}

#[test]
fn directories_that_fail_are_counted_beside_the_files_that_fail() {
    let site = Site::new();
    for name in ["a", "b", "good"] {
        std::fs::create_dir_all(site.buffer("from")).unwrap();
        std::fs::write(site.buffer("from").join(name), b"1").unwrap();
    }
    for name in ["d", "e"] {
        std::fs::create_dir(site.buffer("from").join(name)).unwrap();
    }
    // What is there is of another kind: neither can take its place.
    for name in ["a", "b"] {
        std::fs::create_dir_all(site.pfs("to").join(name)).unwrap();
    }
    for name in ["d", "e"] {
        std::fs::write(site.pfs("to").join(name), b"0").unwrap();
    }
    let status = site.run(site.stage_out("/from", "to"));
    assert_eq!(status.state, PlanState::Failed);
    assert_eq!((status.files_failed, status.other_entries_failed), (4, 2), "{:?}", status.errors);
    let told = forebay_proto::at_risk::describe(&status);
    assert!(told.ends_with(", 2 files and 2 other entries not copied"), "{told}");
}

#[test]
fn a_tree_whose_place_is_missing_fails_as_a_directory() {
    let site = Site::new();
    std::fs::create_dir(site.buffer("from")).unwrap();
    for name in ["a", "b"] {
        std::fs::write(site.buffer("from").join(name), b"1").unwrap();
    }
    for kind in [StageKind::Auto, StageKind::Directory] {
        let mut stage_out = site.stage_out("/from", "missing/x");
        stage_out.kind = kind;
        let status = site.run(stage_out);
        assert_eq!(status.errors[0].errno, libc::ENOENT, "{:?}", status.errors);
        // No file was tried.
        assert_eq!((status.files_failed, status.other_entries_failed), (1, 1));
    }
    // Of a file it is that.
    let status = site.run(site.stage_out("/from/a", "missing/x"));
    assert_eq!((status.files_failed, status.other_entries_failed), (1, 0));
}

#[test]
fn lists_name_paths_on_either_side() {
    let mut site = Site::new();
    std::fs::create_dir_all(site.pfs("sub/tree")).unwrap();
    std::fs::write(site.pfs("sub/a"), b"a").unwrap();
    std::fs::write(site.pfs("sub/tree/b"), b"b").unwrap();
    let list = format!("{}\nsub/tree\n\nsub/missing\n", site.pfs("sub/a").display());
    std::fs::write(site.pfs("list"), list).unwrap();
    let mut stage_in = site.stage_in("list", "/in");
    stage_in.kind = StageKind::List;
    let status = site.run(stage_in);
    assert_eq!(status.state, PlanState::Failed);
    assert_eq!(status.files_failed, 1);
    assert_eq!(status.errors[0].errno, libc::ENOENT);
    assert_eq!(std::fs::read(site.buffer("in/a")).unwrap(), b"a");
    assert_eq!(std::fs::read(site.buffer("in/tree/b")).unwrap(), b"b");

    let options = crate::MoverOptions {
        mount_point: Some("/mnt/bb".into()),
        ..crate::MoverOptions::default()
    };
    site.mover = crate::Mover::new(site.tree.clone(), site.dir.join("p2"), options).unwrap();
    std::fs::write(site.buffer("list"), "/mnt/bb/in/a\n/in/tree/b\n").unwrap();
    let mut stage_out = site.stage_out("/list", "out");
    stage_out.kind = StageKind::List;
    site.must(stage_out);
    assert_eq!(std::fs::read(site.pfs("out/a")).unwrap(), b"a");
    assert_eq!(std::fs::read(site.pfs("out/b")).unwrap(), b"b");

    std::fs::write(site.buffer("list"), "in/a\n/in/tree/../a\nin/a\n").unwrap();
    let mut twice = site.stage_out("/list", "out");
    twice.kind = StageKind::List;
    let status = site.run(twice);
    assert!(status.errors.iter().any(|e| e.errno == libc::EEXIST), "{:?}", status.errors);
}

/// Files of /proc say that they are empty, those of /sys that they have a page.
#[test]
fn a_file_is_read_to_its_end_whatever_its_size_says() {
    let site = Site::new();
    for path in ["/proc/version", "/proc/cpuinfo", "/sys/kernel/mm/transparent_hugepage/enabled"] {
        let path = Path::new(path);
        let text = std::fs::read(path).unwrap();
        assert_ne!(path.metadata().unwrap().len(), text.len() as u64, "a test for nothing");
        for verify in [Verify::Cache, Verify::Medium] {
            let mut stage = spec(Direction::In, path, "/f");
            stage.verify = verify;
            assert_eq!(site.must(stage).bytes_done, text.len() as u64);
            assert_eq!(std::fs::read(site.buffer("f")).unwrap(), text);
        }
    }
}

#[test]
fn a_symbolic_link_in_a_list_is_followed_in_both_directions() {
    let options = crate::MoverOptions {
        mount_point: Some("/mnt/bb".into()),
        ..crate::MoverOptions::default()
    };
    let site = Site::with(options);
    for top in [site.pfs("from"), site.buffer("from")] {
        std::fs::create_dir_all(top.join("dir/sub")).unwrap();
        std::fs::write(top.join("dir/f"), b"1").unwrap();
        let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, top.join(name)).unwrap();
        link("dir/sub/../f", "near");
        link("near", "far");
        link("dir", "way");
        link("loop", "loop");
        link("dir/sub", "tree");
        std::fs::write(top.join("list"), "near\nfar\nway/f\n").unwrap();
        std::fs::write(top.join("bad"), "loop\ntree\n").unwrap();
    }
    let list = |direction, pfs: &str, buffer: &str| {
        let stage = spec(direction, &site.pfs(pfs), buffer);
        forebay_proto::control::StageSpec { kind: StageKind::List, ..stage }
    };
    for (direction, to) in [(Direction::In, site.buffer("to")), (Direction::Out, site.pfs("to"))] {
        let plan = |name: &str| match direction {
            Direction::In => list(direction, &format!("from/{name}"), "/to"),
            Direction::Out => list(direction, "to", &format!("/from/{name}")),
        };
        site.must(plan("list"));
        for name in ["near", "far", "f"] {
            assert!(to.join(name).symlink_metadata().unwrap().is_file(), "{name}");
            assert_eq!(std::fs::read(to.join(name)).unwrap(), b"1");
        }
        let status = site.run(plan("bad"));
        assert_eq!(status.files_failed, 2, "{:?}", status.errors);
        assert!(status.errors.iter().all(|e| e.errno == libc::ELOOP), "{:?}", status.errors);
    }
    let link = |to: &str, name: &str| {
        std::os::unix::fs::symlink(to, site.buffer("from").join(name)).unwrap();
    };
    link("/mnt/bb/from/dir/f", "whole");
    std::fs::write(site.buffer("from/list"), "whole\n").unwrap();
    site.must(list(Direction::Out, "to", "/from/list"));
    assert_eq!(std::fs::read(site.pfs("to/whole")).unwrap(), b"1");
    for (number, to) in ["/etc/hostname", "/mnt/bbb/x", "../../x"].iter().enumerate() {
        link(to, &format!("out{number}"));
        std::fs::write(site.buffer("from/list"), format!("out{number}\n")).unwrap();
        let status = site.run(list(Direction::Out, "to", "/from/list"));
        assert_eq!(status.errors[0].errno, libc::EXDEV, "{to}: {:?}", status.errors);
        assert!(status.errors[0].why.contains("leads out of the buffer"), "{:?}", status.errors);
    }
}

#[test]
fn paths_must_be_absolute_and_below_an_allowed_root() {
    let site = Site::new();
    let mut relative = site.stage_in("f", "/f");
    relative.pfs_path = PathBytes::new(b"f");
    let error = site.mover.start(&forebay_proto::Caller::root(), relative).unwrap_err();
    assert!(error.to_string().contains("absolute"), "{error}");

    let options = crate::MoverOptions {
        pfs_roots: vec![site.pfs("allowed")],
        ..crate::MoverOptions::default()
    };
    let mut site = site;
    site.mover = crate::Mover::new(site.tree.clone(), site.dir.join("p2"), options).unwrap();
    std::fs::create_dir(site.pfs("allowed")).unwrap();
    std::fs::write(site.pfs("secret"), b"s").unwrap();
    std::fs::write(site.pfs("allowed/f"), b"f").unwrap();
    std::os::unix::fs::symlink("../secret", site.pfs("allowed/out")).unwrap();
    site.must(site.stage_in("allowed/f", "/f"));
    for path in ["secret", "allowed/../secret", "allowed/out", "allowedx"] {
        let status = site.run(spec(Direction::In, &site.pfs(path), "/s"));
        assert_eq!(status.state, PlanState::Failed, "{path}");
        assert!(!site.buffer("s").exists());
        assert!(status.errors[0].why.contains("only below"), "{:?}", status.errors);
    }
}
