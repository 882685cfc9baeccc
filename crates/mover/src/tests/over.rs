//! Plans over a real namespace of three shards (`over_rig`).

use super::over_rig::{Rig, SERVERS, make_wide};
use super::snapshot;
use super::support::{LIMIT, leftovers, need_root, noise};
use forebay_interfaces::tree::BufferTree;
use forebay_proto::api::CreateArgs;
use forebay_proto::api::ops::*;
use forebay_proto::control::{PathBytes, PlanState, StageKind, StageSpec};
use forebay_proto::{Caller, Ino, ShardId};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

fn make_tree(top: &Path, files: u64) {
    for dir in 0..5 {
        let dir = top.join(format!("d{dir}/\u{e4}\u{df} \n"));
        std::fs::create_dir_all(&dir).unwrap();
        for number in 0..files / 5 {
            let file = dir.join(std::ffi::OsStr::from_bytes(
                &[format!("rank.{number}").as_bytes(), b"\xff"].concat(),
            ));
            std::fs::write(&file, noise(1_000 + 13 * number as usize, number)).unwrap();
            std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
        }
        std::fs::write(dir.join("first"), noise(5_000, 9)).unwrap();
        let again =
            top.join(format!("again-{}", dir.parent().unwrap().file_name().unwrap().display()));
        std::fs::hard_link(dir.join("first"), again).unwrap();
        symlink("first", dir.join("link")).unwrap();
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o555)).unwrap();
    }
    let made = Command::new("mkfifo").arg(top.join("fifo")).status().unwrap();
    assert!(made.success());
    let big = std::fs::File::create(top.join("sparse")).unwrap();
    big.write_all_at(&noise(1 << 20, 5), 1 << 20).unwrap();
    big.set_len(40 << 20).unwrap();
    std::fs::write(top.join("empty"), b"").unwrap();
}

fn same(one: &Path, other: &Path) {
    let take = |path: &Path| snapshot::forget_atimes(snapshot::take(path));
    snapshot::assert_same(&take(one), &take(other));
}

#[test]
fn a_tree_goes_into_three_shards_and_comes_out_the_same() {
    need_root();
    let rig = Rig::new();
    make_tree(&rig.pfs("tree"), 300);
    let status = rig.must(rig.stage_in("tree", "/in/deep"));
    assert!(status.parts.iter().all(|part| part.files_done > 50), "{:#?}", status.parts);
    let held = rig.held();
    assert!(held.iter().all(|(files, _)| (70..140).contains(files)), "{held:?}");
    // Each server held all of what it copied: the plan's parts say so, and so does the tree.
    let status = rig.must(rig.stage_out("/in/deep", "out"));
    assert!(status.parts.iter().all(|part| part.files_done > 50), "{:#?}", status.parts);
    same(&rig.pfs("tree"), &rig.pfs("out"));
    assert_eq!(leftovers(&rig.dir.join("pfs")), Vec::<PathBuf>::new());
    // Again over what is there: files of other shards give way.
    std::fs::write(rig.pfs("tree/d1/\u{e4}\u{df} \n/first"), b"other").unwrap();
    rig.must(rig.stage_in("tree", "/in/deep"));
    rig.must(rig.stage_out("/in/deep", "out-2"));
    // But for the top, which was there before and keeps its own times.
    let below = |path: &Path| {
        let mut tree = snapshot::forget_atimes(snapshot::take(path));
        tree.remove(&b""[..]).unwrap();
        tree
    };
    snapshot::assert_same(&below(&rig.pfs("tree")), &below(&rig.pfs("out-2")));
    let end = Instant::now() + Duration::from_secs(20);
    while rig.held().iter().map(|(files, _)| files).sum::<usize>() > held.iter().map(|h| h.0).sum()
    {
        assert!(Instant::now() < end, "files that gave way stay: {:?}", rig.held());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn large_files_are_spread_by_bytes() {
    let rig = Rig::new();
    std::fs::create_dir(rig.pfs("tree")).unwrap();
    for number in 0..12 {
        std::fs::write(rig.pfs(&format!("tree/rank.{number}")), noise(3 << 20, number)).unwrap();
    }
    rig.must(rig.stage_in("tree", "/in"));
    assert_eq!(rig.held(), [(4, 12 << 20); 3]);
}

#[test]
fn striped_files_are_staged_both_ways() {
    need_root();
    let rig = Rig::new();
    make_wide(&rig.at(0), "wide", 65536);
    std::fs::create_dir(rig.pfs("tree")).unwrap();
    for number in 0..6 {
        let bytes = noise((number as usize * 700_001) % 3_000_000, number);
        std::fs::write(rig.pfs(&format!("tree/{number}")), bytes).unwrap();
    }
    let sparse = std::fs::File::create(rig.pfs("tree/sparse")).unwrap();
    sparse.write_all_at(&noise(200_000, 5), 7 << 20).unwrap();
    sparse.set_len(9 << 20).unwrap();
    rig.must(rig.stage_in("tree", "/wide"));
    let held = rig.held();
    assert!(held.iter().all(|(files, bytes)| *files == 6 && *bytes > 1 << 20), "{held:?}");
    std::fs::create_dir(rig.pfs("out")).unwrap();
    rig.must(rig.stage_out("/wide", "out"));
    for name in ["0", "1", "2", "3", "4", "5", "sparse"] {
        let read = |dir: &str| std::fs::read(rig.pfs(&format!("{dir}/{name}"))).unwrap();
        assert!(read("tree") == read("out"), "{name}");
    }
    let blocks = std::os::unix::fs::MetadataExt::blocks(&rig.pfs("out/sparse").metadata().unwrap());
    assert!(blocks * 512 < 1 << 20, "{blocks}");
}

#[test]
fn rights_are_checked_by_the_server_that_has_the_directory() {
    need_root();
    let rig = Rig::new();
    let user = Caller { uid: 1234, gid: 1234, groups: vec![1234], ..Caller::default() };
    std::fs::create_dir(rig.pfs("tree")).unwrap();
    for number in 0..20 {
        std::fs::write(rig.pfs(&format!("tree/{number}")), noise(2_000, number)).unwrap();
    }
    let tree = rig.at(1).tree.clone();
    let mut dirs = Vec::new();
    for number in 0..8 {
        let name = format!("closed-{number}");
        let made = tree.mkdir(&Caller::root(), Ino::ROOT, name.as_bytes(), 0o755).unwrap();
        dirs.push(made.ino.shard());
        let status = rig.run_as(&user, rig.stage_in("tree", &format!("/{name}")));
        assert_eq!(status.state, PlanState::Failed);
        assert_eq!(status.files_done, 0, "{status:#?}");
        assert!(status.errors.iter().all(|e| e.errno == libc::EACCES), "{:#?}", status.errors);
    }
    assert!((0..SERVERS).all(|shard| dirs.contains(&ShardId(shard))), "{dirs:?}");
    assert_eq!(rig.held(), [(0, 0); 3]);
}

#[test]
fn lists_and_files_on_other_shards_are_found() {
    let rig = Rig::new();
    let root = rig.at(0);
    let who = Caller::root();
    let mut list = String::new();
    std::fs::create_dir(rig.pfs("tree")).unwrap();
    for number in 0..9 {
        std::fs::write(rig.pfs(&format!("tree/f{number}")), noise(9_000, number)).unwrap();
        list.push_str(&format!("/in/f{number}\n"));
    }
    rig.must(rig.stage_in("tree", "/in"));
    for number in 0..4 {
        std::fs::write(rig.pfs(&format!("list{number}")), &list).unwrap();
        rig.must(rig.stage_in(&format!("list{number}"), &format!("/list{number}")));
        let out = format!("listed{number}");
        std::fs::create_dir(rig.pfs(&out)).unwrap();
        let spec = rig.stage_out(&format!("/list{number}"), &out);
        rig.must(StageSpec { kind: StageKind::List, ..spec });
        for number in 0..9 {
            let file = std::fs::read(rig.pfs(&format!("{out}/f{number}"))).unwrap();
            assert_eq!(file, noise(9_000, number));
        }
        let status = root.tree.status(&who, format!("/list{number}").as_bytes()).unwrap();
        assert_eq!(status.size_bytes, list.len() as u64);
        assert_eq!(status.path, PathBytes::new(format!("/list{number}").as_bytes()));
    }
}

#[test]
fn a_server_that_comes_late_is_waited_for() {
    let rig = Rig::new();
    make_tree(&rig.pfs("tree"), 60);
    let away = rig.net.servers.write()[2].take();
    let mover = rig.at(0).mover.clone();
    let plan = mover.start(&Caller::root(), rig.stage_in("tree", "/in")).unwrap().plan;
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(mover.status(&Caller::root(), plan).unwrap().state, PlanState::Running);
    rig.net.servers.write()[2] = away;
    let status = mover.wait(&Caller::root(), plan, LIMIT).unwrap();
    assert_eq!(status.state, PlanState::Done, "{:#?}", status.errors);
    rig.must(rig.stage_out("/in", "out"));
}

#[test]
fn names_made_meanwhile_by_mounts_are_seen() {
    let rig = Rig::new();
    let (root, who) = (rig.at(0), Caller::root());
    let args = CreateArgs { mode: 0o755, umask: 0 };
    for number in 0..3_000 {
        let name = format!("a name that is long enough for several answers {number:06}");
        NameOps::mkdir(&*root.namespace, &who, Ino::ROOT, name.as_bytes(), args).unwrap();
    }
    let names = rig.at(2).tree.list(&who, Ino::ROOT).unwrap();
    assert_eq!(names.len(), 3_000);
    let many = "x".repeat(200);
    for number in 0..2_000 {
        let name = format!("{many}{number}");
        NameOps::mkdir(&*root.namespace, &who, Ino::ROOT, name.as_bytes(), args).unwrap();
    }
    let mut names = rig.at(1).tree.list(&who, Ino::ROOT).unwrap();
    names.sort_by(|a, b| a.0.cmp(&b.0));
    names.dedup_by(|a, b| a.0 == b.0);
    assert_eq!(names.len(), 5_000);
}
