//! What a stage-out may make and replace: parents, names that are taken, dry runs.

use super::commit::commit_spec;
use super::support::{Site, leftovers, noise, spec};
use crate::{MoverOptions, PfsHook};
use forebay_proto::control::{
    Direction, DryRun, PathBytes, PlanState, PlanStatus, StageKind, StageOptions, StageSpec,
};
use forebay_proto::{Caller, Errno};
use parking_lot::Mutex;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

fn with(spec: StageSpec, kind: StageKind, options: &StageOptions) -> StageSpec {
    StageSpec { kind, options: options.clone(), ..spec }
}

fn parents(umask: Option<u32>) -> StageOptions {
    StageOptions { parents: true, umask, ..StageOptions::default() }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// `/tree/sub/f`, `/tree/g`, `/list`.
fn site_with_tree(options: MoverOptions) -> Site {
    let site = Site::with(options);
    fs::create_dir_all(site.buffer("tree/sub")).unwrap();
    fs::write(site.buffer("tree/sub/f"), noise(5_000, 1)).unwrap();
    fs::write(site.buffer("tree/g"), noise(300, 2)).unwrap();
    fs::write(site.buffer("list"), "tree/g\n").unwrap();
    site
}

/// All kinds of stage-outs, each to its own place below `top`.
fn each_kind(site: &Site, top: &str) -> Vec<(StageKind, StageSpec)> {
    [("/tree", StageKind::Directory), ("/tree/g", StageKind::File), ("/list", StageKind::List)]
        .map(|(from, kind)| (kind, site.stage_out(from, &format!("{top}/{kind:?}"))))
        .into()
}

fn dry(status: &PlanStatus) -> DryRun {
    *status.dry_run.clone().unwrap()
}

#[test]
fn a_stage_out_into_a_missing_directory_is_refused_without_parents() {
    let site = site_with_tree(MoverOptions::default());
    for (kind, plan) in each_kind(&site, "typo/deep") {
        for dry_run in [false, true] {
            let options = StageOptions { dry_run, ..StageOptions::default() };
            let status = site.run(with(plan.clone(), kind, &options));
            assert_eq!(status.state, PlanState::Failed, "{kind:?}");
            let [error] = &status.errors[..] else { panic!("{:?}", status.errors) };
            assert_eq!(error.errno, libc::ENOENT);
            // The first one that is missing, and what to do.
            let first = format!("directory {} does not exist", site.pfs("typo").display());
            assert!(error.why.contains(&first) && error.why.contains("--parents"), "{error:?}");
            assert!(!site.pfs("typo").exists(), "{kind:?} made a directory");
        }
    }
    // Where a file goes must be there; a directory that is copied is made.
    let into = PathBuf::from(format!("{}/", site.pfs("new").display()));
    assert_eq!(site.run(spec(Direction::Out, &into, "/tree/g")).state, PlanState::Failed);
    assert!(!site.pfs("new").exists());
    for (kind, plan) in each_kind(&site, ".") {
        site.must(with(plan, kind, &StageOptions::default()));
    }
    for (kind, plan) in each_kind(&site, "typo/deep") {
        site.must(with(plan, kind, &parents(None)));
    }
    assert_eq!(fs::read(site.pfs("typo/deep/Directory/sub/f")).unwrap(), noise(5_000, 1));
    // Into a buffer, which holds nothing but what its user put there, parents are made.
    site.must(spec(Direction::In, &site.pfs("Directory"), "/a/b/c"));
    assert_eq!(mode(&site.buffer("a/b")), 0o755);
}

#[test]
fn a_target_whose_file_system_is_not_mounted_is_refused_without_parents() {
    let tables = tempfile::tempdir().unwrap();
    let fstab = tables.path().join("fstab");
    let options = MoverOptions { fstab: Arc::from(&*fstab), ..MoverOptions::default() };
    let site = site_with_tree(options);
    // No table: nothing is missed.
    for (kind, plan) in each_kind(&site, ".") {
        site.must(with(plan, kind, &StageOptions::default()));
    }
    fs::create_dir(site.pfs("empty")).unwrap();
    let point = site.pfs("empty").canonicalize().unwrap();
    fs::write(&fstab, format!("mgs@tcp:/work {} lustre _netdev 0 0\n", point.display())).unwrap();
    symlink("empty", site.pfs("link")).unwrap();
    // Directories that are missing below it as well.
    for top in ["empty", "link", "empty/deep", "link/deep/er"] {
        for (kind, plan) in each_kind(&site, top) {
            for dry_run in [false, true] {
                let options = StageOptions { dry_run, ..StageOptions::default() };
                let status = site.run(with(plan.clone(), kind, &options));
                assert_eq!(status.state, PlanState::Failed, "{kind:?}");
                let [error] = &status.errors[..] else { panic!("{:?}", status.errors) };
                assert_eq!(error.errno, libc::ENODEV);
                let missed = format!("names {} as a mount point", point.display());
                assert!(error.why.contains(&missed), "{error:?}");
            }
        }
        let commit = site.run(commit_spec(&site, "/tree", &format!("{top}/v1")));
        assert_eq!(commit.state, PlanState::Failed);
        assert!(commit.errors[0].why.contains("as a mount point"), "{:?}", commit.errors);
        assert_eq!(fs::read_dir(&point).unwrap().count(), 0, "something was made");
    }
    // Beside it as ever, and there too if the requester insists.
    site.must(with(site.stage_out("/tree", "beside"), StageKind::Directory, &parents(None)));
    site.must(with(site.stage_out("/tree", "empty/run"), StageKind::Directory, &parents(None)));
    assert_eq!(fs::read(site.pfs("empty/run/sub/f")).unwrap(), noise(5_000, 1));
}

#[test]
fn directories_on_the_way_are_made_by_the_requesters_umask() {
    let private = Arc::new(Mutex::new(None::<PathBuf>));
    let hook: PfsHook = {
        let private = private.clone();
        Arc::new(move |call, _| {
            if let ("create", Some(top)) = (call, &*private.lock()) {
                assert_eq!(mode(top), 0o700, "it is not private while it is made");
            }
            Ok(())
        })
    };
    let site = site_with_tree(MoverOptions { hook: Some(hook), ..MoverOptions::default() });
    fs::set_permissions(site.buffer("tree"), PermissionsExt::from_mode(0o775)).unwrap();
    let umasks = [(None, 0o755), (Some(0o027), 0o750), (Some(0), 0o777), (Some(0o77), 0o700)];
    for (number, (umask, expected)) in umasks.into_iter().enumerate() {
        for (kind, plan) in each_kind(&site, &format!("{number}/b")) {
            let tree = site.pfs(&format!("{number}/b/Directory"));
            *private.lock() = (kind == StageKind::Directory).then_some(tree);
            site.must(with(plan, kind, &parents(umask)));
        }
        for path in [format!("{number}"), format!("{number}/b"), format!("{number}/b/List")] {
            assert_eq!(mode(&site.pfs(&path)), expected, "{path}");
        }
        assert_eq!(mode(&site.pfs(&format!("{number}/b/Directory"))), 0o775, "as its source");
    }
    *private.lock() = None;
    // A setgid directory's group goes on; a default ACL stands in for the umask.
    fs::create_dir(site.pfs("s")).unwrap();
    std::os::unix::fs::chown(site.pfs("s"), None, Some(4242)).unwrap();
    fs::set_permissions(site.pfs("s"), PermissionsExt::from_mode(0o2775)).unwrap();
    fs::create_dir(site.pfs("acl")).unwrap();
    let acl = ["-d", "-m", "u::rwx,g::rwx,o::-"];
    assert!(Command::new("setfacl").args(acl).arg(site.pfs("acl")).status().unwrap().success());
    for (top, expected) in [("s", 0o2755), ("acl", 0o770)] {
        let plan = site.stage_out("/tree/g", &format!("{top}/new/g"));
        site.must(with(plan, StageKind::File, &parents(None)));
        assert_eq!(mode(&site.pfs(&format!("{top}/new"))), expected, "{top}");
    }
    assert_eq!(fs::metadata(site.pfs("s/new")).unwrap().gid(), 4242);
}

/// A target that has some of `/tree` already, in another shape.
fn half_there(site: &Site) {
    fs::create_dir_all(site.pfs("out/sub")).unwrap();
    fs::write(site.pfs("out/sub/f"), b"mine").unwrap();
    fs::set_permissions(site.pfs("out/sub"), PermissionsExt::from_mode(0o711)).unwrap();
    symlink("nowhere", site.pfs("out/link")).unwrap();
    symlink("sub/f", site.buffer("tree/link")).unwrap();
    fs::hard_link(site.buffer("tree/g"), site.buffer("tree/g2")).unwrap();
    fs::hard_link(site.buffer("tree/sub/f"), site.buffer("tree/sub/f2")).unwrap();
    fs::create_dir(site.buffer("tree/new")).unwrap();
    fs::set_permissions(site.buffer("tree/new"), PermissionsExt::from_mode(0o751)).unwrap();
}

#[test]
fn what_is_there_stays_as_it_is_with_no_clobber() {
    let site = site_with_tree(MoverOptions::default());
    half_there(&site);
    let options = StageOptions { no_clobber: true, ..StageOptions::default() };
    let plan = with(site.stage_out("/tree", "out"), StageKind::Directory, &options);
    let status = site.must(plan.clone());
    assert_eq!(status.files_existing, 2, "sub/f and link");
    assert_eq!(fs::read(site.pfs("out/sub/f")).unwrap(), b"mine");
    assert_eq!(fs::read_link(site.pfs("out/link")).unwrap(), Path::new("nowhere"));
    assert_eq!(mode(&site.pfs("out/sub")), 0o711, "a directory that was there keeps its mode");
    // What was not there is there; a second name of a file that was left out is a file of its own.
    assert_eq!(fs::read(site.pfs("out/sub/f2")).unwrap(), noise(5_000, 1));
    assert_eq!(mode(&site.pfs("out/new")), 0o751);
    let [g, g2] = ["out/g", "out/g2"].map(|name| fs::metadata(site.pfs(name)).unwrap());
    assert_eq!((g.ino(), g.nlink()), (g2.ino(), 2));
    // Once more: all is taken.
    let status = site.must(plan);
    assert_eq!((status.files_existing, status.bytes_done), (5, 0));
    assert_eq!(leftovers(&site.pfs("")), Vec::<PathBuf>::new());
    let into = StageSpec { options, ..site.stage_in("out", "/in") };
    let refused = site.mover.start(&Caller::root(), into).unwrap_err();
    assert_eq!(refused.errno, Some(libc::EINVAL));
}

#[test]
fn a_name_that_is_taken_while_its_file_is_copied_is_not_replaced() {
    // Also where the PFS cannot rename without replacing.
    for can_rename in [true, false] {
        let place = Arc::new(Mutex::new(None::<PathBuf>));
        let hook: PfsHook = {
            let place = place.clone();
            Arc::new(move |call, name| {
                if let ("noreplace", b"g", Some(place)) = (call, name, &*place.lock()) {
                    fs::write(place, b"theirs").unwrap();
                }
                if call == "noreplace" && !can_rename { Err(Errno::EINVAL) } else { Ok(()) }
            })
        };
        let site = site_with_tree(MoverOptions { hook: Some(hook), ..MoverOptions::default() });
        symlink("g", site.buffer("tree/link")).unwrap();
        *place.lock() = Some(site.pfs("out/g"));
        let options = StageOptions { no_clobber: true, ..StageOptions::default() };
        let plan = with(site.stage_out("/tree", "out"), StageKind::Directory, &options);
        let status = site.run(plan);
        assert_eq!((status.state, status.files_failed), (PlanState::Failed, 1));
        assert_eq!(status.errors[0].errno, libc::EEXIST, "{:?}", status.errors);
        assert_eq!(fs::read(site.pfs("out/g")).unwrap(), b"theirs");
        assert_eq!(fs::read(site.pfs("out/sub/f")).unwrap(), noise(5_000, 1));
        assert_eq!(fs::read_link(site.pfs("out/link")).unwrap(), Path::new("g"));
        assert_eq!(leftovers(&site.pfs("")), Vec::<PathBuf>::new());
    }
}

#[test]
fn a_dry_run_tells_what_would_be_done_and_does_nothing() {
    let site = site_with_tree(MoverOptions::default());
    half_there(&site);
    let before = super::snapshot::take(&site.pfs(""));
    let run = |no_clobber, to: &str| {
        let options =
            StageOptions { dry_run: true, no_clobber, parents: true, ..StageOptions::default() };
        let plan = with(site.stage_out("/tree", to), StageKind::Directory, &options);
        let status = site.run(plan);
        assert_eq!((status.state, status.bytes_done, status.verified), (PlanState::Done, 0, None));
        status
    };
    let over = dry(&run(false, "out"));
    // New: g, g2, sub/f2. Over others: sub/f and link.
    assert_eq!((over.files_new, over.bytes_new), (3, 300 + 300 + 5_000));
    assert_eq!((over.files_overwritten, over.bytes_overwritten), (2, 5_000));
    assert_eq!(over.other_entries, 1, "the link");
    assert_eq!((over.directories_made, over.parents.len()), (1, 0));
    let mut taken: Vec<_> = over.existing.iter().map(PathBytes::to_string).collect();
    taken.sort();
    assert_eq!(taken, ["out/link", "out/sub/f"].map(|name| site.pfs(name).display().to_string()));
    let kept = run(true, "out");
    assert_eq!((dry(&kept).files_overwritten, kept.files_existing), (0, 2));
    let anew = dry(&run(false, "a/b/c"));
    assert_eq!((anew.files_new, anew.directories_made), (5, 5), "a, b, c, sub and new");
    let on_the_way: Vec<_> = anew.parents.iter().map(PathBytes::to_string).collect();
    assert_eq!(on_the_way, ["a", "a/b"].map(|name| site.pfs(name).display().to_string()));
    super::snapshot::assert_same(&before, &super::snapshot::take(&site.pfs("")));
    // What stands in the way of the real one is an error of the dry one.
    fs::create_dir(site.pfs("out/g")).unwrap();
    let options = StageOptions { dry_run: true, ..StageOptions::default() };
    let status = site.run(with(site.stage_out("/tree", "out"), StageKind::Directory, &options));
    assert_eq!((status.state, status.errors[0].errno), (PlanState::Failed, libc::EISDIR));
    // Into the buffer as well.
    fs::remove_dir(site.pfs("out/g")).unwrap();
    let status = site.run(StageSpec { options, ..site.stage_in("out", "/tree") });
    assert_eq!(dry(&status).files_overwritten, 2, "{:?}", status.dry_run);
    assert_eq!(fs::read(site.buffer("tree/sub/f")).unwrap(), noise(5_000, 1));
}

#[test]
fn a_directory_that_a_cancelled_plan_made_is_not_left_private() {
    let site = site_with_tree(MoverOptions::default());
    fs::write(site.buffer("tree/big"), noise(4 << 20, 3)).unwrap();
    fs::set_permissions(site.buffer("tree"), PermissionsExt::from_mode(0o755)).unwrap();
    let slow = StageSpec { rate_bytes_per_s: 64 << 10, ..site.stage_out("/tree", "out") };
    let plan = site.mover.start(&Caller::root(), slow).unwrap().plan;
    let begun = std::time::Instant::now();
    while !site.pfs("out").exists() {
        assert!(begun.elapsed() < super::support::LIMIT, "it does not begin");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    site.mover.cancel(&Caller::root(), plan).unwrap();
    assert_eq!(site.wait(plan).state, PlanState::Cancelled);
    site.must(site.stage_out("/tree", "out"));
    assert_eq!(mode(&site.pfs("out")), 0o755);
}
