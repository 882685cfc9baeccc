//! Commits: a tree appears at once, with a manifest that says what is in it; what fails or is given
//! up leaves nothing behind.

use super::support::{LIMIT, Site, leftovers, need_root, noise};
use crate::MoverOptions;
use forebay_proto::commit::{CommitPhase, CommitSpec, CommitStatus, PublishedBy};
use forebay_proto::control::{PlanState, PlanStatus, StageSpec, Verify};
use forebay_proto::{Caller, Errno};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

pub fn commit_spec(site: &Site, buffer: &str, pfs: &str) -> StageSpec {
    StageSpec { commit: Some(CommitSpec::default()), ..site.stage_out(buffer, pfs) }
}

fn of(status: &PlanStatus) -> CommitStatus {
    *status.commit.clone().expect("it is a commit")
}

fn must(site: &Site, spec: StageSpec) -> CommitStatus {
    let status = site.must(spec);
    assert_eq!(of(&status).phase, CommitPhase::Published);
    assert_eq!(of(&status).left, None);
    of(&status)
}

/// The names in a directory.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Checks a manifest against its tree as a reader would, and returns its version.
pub fn check_manifest(tree: &Path) -> String {
    let text = std::fs::read(tree.join(".forebay-manifest")).unwrap();
    let mut lines: Vec<&[u8]> = text.split_inclusive(|&b| b == b'\n').collect();
    let json = |line: &[u8]| serde_json::from_slice::<serde_json::Value>(line).unwrap();
    let tail = json(lines.pop().unwrap());
    let crc = |bytes: &[u8]| format!("{:08x}", forebay_sums::crc32c(bytes));
    assert_eq!(tail["manifest_crc32c"], crc(&lines.concat()));
    let head = json(lines.remove(0));
    assert_eq!(head["forebay_manifest"], 1);
    assert_eq!(tail["entries"], lines.len());
    let mut listed = BTreeMap::new();
    for line in lines {
        let entry = json(line);
        let path: forebay_proto::control::PathBytes =
            serde_json::from_value(entry["path"].clone()).unwrap();
        let path = tree.join(std::ffi::OsStr::from_bytes(path.as_bytes()));
        let meta = std::fs::symlink_metadata(&path).unwrap();
        assert_eq!(entry["mode"], format!("{:04o}", meta.mode() & 0o7777), "{path:?}");
        if entry["kind"] == "file" {
            assert_eq!(entry["size"], meta.len());
            assert_eq!(entry["crc32c"], crc(&std::fs::read(&path).unwrap()), "{path:?}");
        }
        listed.insert(path, ());
    }
    let mut dirs = vec![tree.to_path_buf()];
    let mut count = 0;
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap().flatten() {
            if dir == tree && entry.file_name().as_bytes().starts_with(b".forebay-") {
                continue;
            }
            count += 1;
            assert!(listed.contains_key(&entry.path()), "{:?} is not listed", entry.path());
            if entry.file_type().unwrap().is_dir() {
                dirs.push(entry.path());
            }
        }
    }
    assert_eq!(count, listed.len());
    head["version"].as_str().unwrap().to_string()
}

fn make_tree(top: &Path, generation: u64) {
    std::fs::create_dir_all(top.join("d/e")).unwrap();
    std::fs::write(top.join("a"), noise(100_000, generation)).unwrap();
    std::fs::write(top.join("d/e/b"), noise(3, generation)).unwrap();
    std::fs::write(top.join("empty"), b"").unwrap();
    let _ = std::fs::remove_file(top.join("d/again"));
    std::fs::hard_link(top.join("a"), top.join("d/again")).unwrap();
    let _ = symlink("a", top.join("link"));
    let odd = std::ffi::OsStr::from_bytes(b"odd \xff\n\"name");
    std::fs::write(top.join(odd), noise(10, generation)).unwrap();
}

#[test]
fn a_tree_is_published_with_a_manifest_and_replaced_by_the_next() {
    let site = Site::new();
    make_tree(&site.buffer("t"), 1);
    let plan = site.must(commit_spec(&site, "/t", "ckpt"));
    let first = of(&plan);
    assert_eq!(first.by, Some(PublishedBy::Rename));
    let place = site.pfs("ckpt");
    assert_eq!(check_manifest(&place), first.version);
    // The plan counts as the manifest does: d, d/e and the link are no files.
    let manifest = std::fs::read_to_string(place.join(".forebay-manifest")).unwrap();
    let tail: serde_json::Value = serde_json::from_str(manifest.lines().last().unwrap()).unwrap();
    assert_eq!((plan.files_done, plan.other_entries_done), (8, 3));
    assert!(tail["entries"] == 8 && tail["files"] == 5, "{tail}");
    let one = std::fs::metadata(place.join("a")).unwrap();
    assert_eq!(one.ino(), std::fs::metadata(place.join("d/again")).unwrap().ino());
    let versioned = place.join(format!(".forebay-{}", first.version));
    assert_eq!(first.versioned.unwrap().as_bytes(), versioned.as_os_str().as_bytes());
    assert_eq!(std::fs::read(versioned.join("a")).unwrap(), noise(100_000, 1));

    make_tree(&site.buffer("t"), 2);
    std::fs::remove_file(site.buffer("t/empty")).unwrap();
    let mut spec = commit_spec(&site, "/t", "ckpt");
    spec.verify = Verify::Medium;
    let second = must(&site, spec);
    assert_eq!(second.by, Some(PublishedBy::Exchange));
    assert_eq!(check_manifest(&place), second.version);
    assert_eq!(std::fs::read(place.join("a")).unwrap(), noise(100_000, 2));
    assert!(!place.join("empty").exists());
    assert!(!versioned.exists(), "the old version's name leads nowhere");
    assert_eq!(names(&site.pfs("")), ["ckpt"]);
}

#[test]
fn empty_trees_and_trees_that_were_committed_before_can_be_committed() {
    let site = Site::new();
    std::fs::create_dir(site.buffer("t")).unwrap();
    let first = must(&site, commit_spec(&site, "/t", "ckpt"));
    assert_eq!(check_manifest(&site.pfs("ckpt")), first.version);
    // Staged in again, with manifest and versioned name, which are no part of the tree.
    site.must(site.stage_in("ckpt", "/u"));
    assert_eq!(names(&site.buffer("u")).len(), 2);
    let second = must(&site, commit_spec(&site, "/u", "ckpt"));
    assert_eq!(check_manifest(&site.pfs("ckpt")), second.version);
    assert_eq!(names(&site.pfs("ckpt")).len(), 2);
}

#[test]
fn a_displaced_tree_can_be_kept() {
    let site = Site::new();
    make_tree(&site.buffer("t"), 1);
    must(&site, commit_spec(&site, "/t", "ckpt"));
    make_tree(&site.buffer("t"), 2);
    let mut spec = commit_spec(&site, "/t", "ckpt");
    spec.commit = Some(CommitSpec { keep_old: true, ..CommitSpec::default() });
    let second = must(&site, spec);
    let kept = site.pfs(&format!("ckpt.before-{}", second.version));
    assert_eq!(second.old.unwrap().as_bytes(), kept.as_os_str().as_bytes());
    check_manifest(&kept);
    assert_eq!(std::fs::read(kept.join("a")).unwrap(), noise(100_000, 1));
    assert_eq!(names(&site.pfs("")).len(), 2);
}

/// A PFS that cannot exchange directories.
fn without_exchange() -> MoverOptions {
    let hook = |call: &'static str, _: &[u8]| match call {
        "exchange" => Err(Errno::EINVAL),
        _ => Ok(()),
    };
    MoverOptions { hook: Some(Arc::new(hook)), ..MoverOptions::default() }
}

#[test]
fn where_nothing_can_be_exchanged_a_symbolic_link_is_replaced() {
    let site = Site::with(without_exchange());
    for generation in 1..4 {
        make_tree(&site.buffer("t"), generation);
        let done = must(&site, commit_spec(&site, "/t", "ckpt"));
        assert_eq!(done.by, Some(PublishedBy::Symlink));
        let place = site.pfs("ckpt");
        assert!(std::fs::symlink_metadata(&place).unwrap().is_symlink());
        assert_eq!(check_manifest(&place), done.version);
        assert_eq!(std::fs::read(place.join("a")).unwrap(), noise(100_000, generation));
        let tree = format!(".ckpt.forebay-{}", done.version);
        assert_eq!(names(&site.pfs("")), [tree.as_str(), "ckpt"]);
    }
    std::fs::create_dir(site.pfs("real")).unwrap();
    let failed = site.run(commit_spec(&site, "/t", "real"));
    assert_eq!(failed.state, PlanState::Failed);
    assert!(failed.errors[0].why.contains("cannot exchange"), "{:?}", failed.errors);
    assert_eq!(names(&site.pfs("real")).len(), 0);
}

#[test]
fn what_a_commit_may_not_replace_is_refused_before_anything_is_copied() {
    let site = Site::new();
    make_tree(&site.buffer("t"), 1);
    std::fs::write(site.pfs("file"), b"x").unwrap();
    symlink("elsewhere", site.pfs("link")).unwrap();
    for (place, word) in [("file", "no directory"), ("link", "no commit made"), ("no/x", "make it")]
    {
        let failed = site.run(commit_spec(&site, "/t", place));
        assert_eq!(failed.state, PlanState::Failed, "{place}");
        assert!(failed.errors[0].why.contains(word), "{place}: {:?}", failed.errors);
        assert_eq!(failed.bytes_done, 0);
        assert_eq!(of(&failed).phase, CommitPhase::Undone);
    }
    assert_eq!(names(&site.pfs("")), ["file", "link"]);
    let root = Caller::root();
    let bad = |spec: StageSpec| site.mover.start(&root, spec).unwrap_err().why;
    let mut spec = site.stage_in("file", "/x");
    spec.commit = Some(CommitSpec::default());
    assert!(bad(spec).contains("to the PFS"));
    assert!(bad(commit_spec(&site, "/t", "x/..")).contains("must end in the name"));
}

#[test]
fn a_directory_that_no_commit_made_goes_only_if_that_is_said() {
    let site = Site::new();
    make_tree(&site.buffer("t"), 1);
    std::fs::create_dir_all(site.pfs("run/ck")).unwrap();
    std::fs::write(site.pfs("run/plain"), b"somebody's").unwrap();
    let refused = site.run(commit_spec(&site, "/t", "run"));
    assert_eq!(refused.state, PlanState::Failed);
    assert!(refused.errors[0].why.contains("no commit made"), "{:?}", refused.errors);
    assert_eq!((refused.bytes_done, of(&refused).phase), (0, CommitPhase::Undone));
    assert_eq!(names(&site.pfs("")), ["run"]);
    assert_eq!(names(&site.pfs("run")), ["ck", "plain"]);
    // An empty one has nothing to lose, and what a commit made is replaced by the next.
    for _ in 0..2 {
        must(&site, commit_spec(&site, "/t", "run/ck"));
    }
    // Kept under another name nothing is lost.
    let mut spec = commit_spec(&site, "/t", "run");
    spec.commit = Some(CommitSpec { keep_old: true, ..CommitSpec::default() });
    let kept = must(&site, spec).old.unwrap();
    let kept = Path::new(std::ffi::OsStr::from_bytes(kept.as_bytes()));
    assert_eq!(std::fs::read(kept.join("plain")).unwrap(), b"somebody's");
    std::fs::remove_dir_all(site.pfs("run")).unwrap();
    std::fs::rename(kept, site.pfs("run")).unwrap();
    let mut spec = commit_spec(&site, "/t", "run");
    spec.commit = Some(CommitSpec { replace: true, ..CommitSpec::default() });
    must(&site, spec);
    check_manifest(&site.pfs("run"));
    assert!(!site.pfs("run/plain").exists());
}

/// Calls, and what they are to fail with.
type Faults = Arc<Mutex<Vec<(&'static str, Errno)>>>;

fn faulty(site_faults: &Faults) -> MoverOptions {
    let faults = site_faults.clone();
    let hook = move |call: &'static str, _: &[u8]| {
        let faults = faults.lock();
        faults.iter().find(|(at, _)| *at == call).map_or(Ok(()), |(_, errno)| Err(*errno))
    };
    MoverOptions { hook: Some(Arc::new(hook)), ..MoverOptions::default() }
}

#[test]
fn a_commit_that_fails_leaves_the_old_tree_and_nothing_else() {
    let faults = Faults::default();
    let site = Site::with(faulty(&faults));
    make_tree(&site.buffer("t"), 1);
    let first = must(&site, commit_spec(&site, "/t", "ckpt"));
    make_tree(&site.buffer("t"), 2);
    let mut spec = commit_spec(&site, "/t", "ckpt");
    spec.retries = 1;
    let calls = [
        ("mkdir", Errno::ENOSPC),
        ("write", Errno::ENOSPC),
        ("write", Errno::EDQUOT),
        ("create", Errno::EROFS),
        ("fsync", Errno::EIO),
        ("rename", Errno::EIO),
        ("dress", Errno::EIO),
        ("manifest", Errno::ENOSPC),
        ("symlink", Errno::ESTALE),
        ("publish", Errno::EACCES),
    ];
    for (call, errno) in calls {
        *faults.lock() = vec![(call, errno)];
        let failed = site.run(spec.clone());
        faults.lock().clear();
        assert_eq!(failed.state, PlanState::Failed, "{call}");
        assert_eq!(failed.errors[0].errno, errno.0, "{call}: {:?}", failed.errors);
        let names = names(&site.pfs(""));
        assert_eq!(names, ["ckpt"], "after {call}: {errno}");
        assert_eq!(check_manifest(&site.pfs("ckpt")), first.version);
    }
    must(&site, spec);
    assert_eq!(std::fs::read(site.pfs("ckpt/a")).unwrap(), noise(100_000, 2));
}

#[test]
fn what_an_undo_could_not_remove_goes_with_the_next_commit() {
    let faults = Faults::default();
    let site = Site::with(faulty(&faults));
    make_tree(&site.buffer("t"), 1);
    let mut spec = commit_spec(&site, "/t", "ckpt");
    spec.retries = 0;
    *faults.lock() = vec![("write", Errno::EIO), ("remove", Errno::EIO)];
    let failed = site.run(spec.clone());
    assert_eq!(failed.state, PlanState::Failed);
    let left = of(&failed).left.unwrap();
    assert_eq!(names(&site.pfs("")).len(), 1);
    assert!(failed.errors.iter().any(|error| error.why.contains(&left.to_string())));
    faults.lock().clear();
    must(&site, spec);
    assert_eq!(names(&site.pfs("")), ["ckpt"]);
}

#[test]
fn a_source_that_changes_while_it_is_committed_is_not_published() {
    let changed = Arc::new(AtomicBool::new(false));
    let keep = tempfile::tempdir().unwrap();
    std::fs::create_dir(keep.path().join("pfs")).unwrap();
    let (flag, path) = (changed.clone(), keep.path().join("buffer/tree/t/a"));
    let hook = move |call: &'static str, _: &[u8]| {
        // All files are copied: the attributes of the directories are set.
        if call == "rename" && !flag.swap(true, SeqCst) {
            std::thread::sleep(Duration::from_millis(50));
        }
        if call == "link" || (call == "dress" && flag.load(SeqCst) && path.exists()) {
            std::fs::write(&path, b"the next generation").unwrap();
        }
        Ok(())
    };
    let options =
        MoverOptions { hook: Some(Arc::new(hook)), workers: 1, ..MoverOptions::default() };
    let site = Site::open(keep.path(), options);
    std::fs::create_dir_all(site.buffer("t/d")).unwrap();
    std::fs::write(site.buffer("t/a"), noise(1_000, 1)).unwrap();
    let mut spec = commit_spec(&site, "/t", "ckpt");
    spec.retries = 0;
    let failed = site.run(spec);
    assert_eq!(failed.state, PlanState::Failed);
    assert!(failed.errors[0].why.contains("changed"), "{:?}", failed.errors);
    assert_eq!(names(&site.pfs("")), [""; 0]);
}

#[test]
fn a_cancelled_commit_is_undone_and_a_published_one_stays() {
    let site = Site::new();
    let root = Caller::root();
    make_tree(&site.buffer("t"), 1);
    std::fs::write(site.buffer("t/big"), noise(8 << 20, 1)).unwrap();
    let mut slow = commit_spec(&site, "/t", "ckpt");
    slow.rate_bytes_per_s = 1 << 20;
    let plan = site.mover.start(&root, slow).unwrap().plan;
    site.until(plan, |status| status.bytes_done > 0);
    let ended = site.mover.cancel(&root, plan).unwrap();
    assert_eq!((ended.state, of(&ended).phase), (PlanState::Cancelled, CommitPhase::Undone));
    assert_eq!(names(&site.pfs("")), [""; 0]);
    let status = site.run(commit_spec(&site, "/t", "ckpt"));
    let after = site.mover.cancel(&root, status.plan).unwrap();
    assert_eq!((after.state, of(&after).phase), (PlanState::Done, CommitPhase::Published));
}

#[test]
fn commits_to_one_place_take_turns_and_others_run_beside_them() {
    let site = Site::new();
    let root = Caller::root();
    for generation in 1..4 {
        std::fs::create_dir_all(site.buffer(&format!("t{generation}"))).unwrap();
        let file = site.buffer(&format!("t{generation}/a"));
        std::fs::write(file, noise(400_000, generation)).unwrap();
    }
    let start = |number: u32, place: &str| {
        let mut spec = commit_spec(&site, &format!("/t{number}"), place);
        spec.rate_bytes_per_s = 1 << 20;
        site.mover.start(&root, spec).unwrap().plan
    };
    let plans = [start(1, "ckpt"), start(2, "ckpt/"), start(3, "other")];
    let running = |plan| site.mover.status(&root, plan).unwrap().state;
    let end = Instant::now() + LIMIT;
    while running(plans[2]) != PlanState::Running {
        assert!(Instant::now() < end, "the commit to another place waits");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(running(plans[1]), PlanState::Queued);
    for plan in plans {
        assert_eq!(site.wait(plan).state, PlanState::Done);
    }
    assert_eq!(std::fs::read(site.pfs("ckpt/a")).unwrap(), noise(400_000, 2));
    assert_eq!(names(&site.pfs("")), ["ckpt", "other"]);
}

#[test]
fn a_user_commits_with_their_own_rights_only() {
    need_root();
    let site = Site::new();
    let who = Caller { uid: 4242, gid: 4242, ..Caller::default() };
    std::fs::create_dir(site.buffer("t")).unwrap();
    std::fs::create_dir(site.buffer("t/d")).unwrap();
    std::fs::write(site.buffer("t/d/a"), b"mine").unwrap();
    for path in ["t", "t/d", "t/d/a"] {
        std::os::unix::fs::chown(site.buffer(path), Some(4242), Some(4242)).unwrap();
    }
    // A tree that its owner may not write to.
    for path in ["t/d", "t"] {
        std::fs::set_permissions(site.buffer(path), PermissionsExt::from_mode(0o555)).unwrap();
    }
    let denied = site.run_as(&who, commit_spec(&site, "/t", "ckpt"));
    assert_eq!(denied.state, PlanState::Failed);
    assert_eq!(denied.errors[0].errno, Errno::EACCES.0);
    std::fs::create_dir(site.pfs("mine")).unwrap();
    std::os::unix::fs::chown(site.pfs("mine"), Some(4242), Some(4242)).unwrap();
    for _ in 0..2 {
        let done = site.run_as(&who, commit_spec(&site, "/t", "mine/ckpt"));
        assert_eq!(done.state, PlanState::Done, "{:?}", done.errors);
        assert_eq!(of(&done).left, None);
        let made = std::fs::metadata(site.pfs("mine/ckpt")).unwrap();
        assert_eq!((made.uid(), made.mode() & 0o7777), (4242, 0o555));
        check_manifest(&site.pfs("mine/ckpt"));
    }
    assert_eq!(names(&site.pfs("mine")), ["ckpt"]);
}

#[test]
fn ten_thousand_files_are_one_commit() {
    let site = Site::new();
    for dir in 0..10 {
        let dir = site.buffer(&format!("t/{dir}"));
        std::fs::create_dir_all(&dir).unwrap();
        for file in 0..1_000 {
            std::fs::write(dir.join(file.to_string()), [7; 100]).unwrap();
        }
    }
    for _ in 0..2 {
        let done = must(&site, commit_spec(&site, "/t", "ckpt"));
        assert_eq!(check_manifest(&site.pfs("ckpt")), done.version);
    }
    assert_eq!(names(&site.pfs("")), ["ckpt"]);
    assert_eq!(leftovers(&site.pfs("")).len(), 2);
}

/// What a reader who holds the directory finds: the generation, or `None` if some was gone.
pub fn read_held(place: &Path, files: &[&str]) -> Option<u64> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let dir = rustix::fs::open(place, flags, Mode::empty()).ok()?;
    let mut found = Vec::new();
    for file in files {
        let opened = rustix::fs::openat(&dir, *file, OFlags::RDONLY, Mode::empty()).ok()?;
        let text = std::io::read_to_string(std::fs::File::from(opened)).unwrap();
        found.push(text.trim().parse::<u64>().expect("a file is not whole"));
    }
    assert!(found.windows(2).all(|two| two[0] == two[1]), "a mixture: {found:?}");
    found.first().copied()
}

/// What a reader finds who takes the version from the manifest and follows its name.
pub fn read_versioned(place: &Path, files: &[&str]) -> Option<u64> {
    let manifest = std::fs::read_to_string(place.join(".forebay-manifest")).ok()?;
    let head: serde_json::Value = serde_json::from_str(manifest.lines().next()?).ok()?;
    let below = place.join(format!(".forebay-{}", head["version"].as_str()?));
    let mut found = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(below.join(file)).ok()?;
        found.push(text.trim().parse::<u64>().expect("a file is not whole"));
    }
    assert!(found.windows(2).all(|two| two[0] == two[1]), "a mixture: {found:?}");
    found.first().copied()
}

#[test]
fn a_reader_sees_the_old_tree_or_the_new_one() {
    for options in [MoverOptions::default(), without_exchange()] {
        let site = Site::with(options);
        let files: Vec<String> = (0..8).map(|n| format!("d{}/{n}", n % 2)).collect();
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let write = |generation: u64| {
            for file in &files {
                let path = site.buffer("t").join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, generation.to_string()).unwrap();
            }
        };
        write(0);
        must(&site, commit_spec(&site, "/t", "ckpt"));
        let (over, reads) = (AtomicBool::new(false), AtomicU64::new(0));
        let published = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for read in [read_held, read_versioned] {
                let (place, files) = (site.pfs("ckpt"), &files);
                let (over, reads, published) = (&over, &reads, &published);
                scope.spawn(move || {
                    while !over.load(SeqCst) {
                        let least = published.load(SeqCst);
                        assert!(place.exists(), "the place is always there");
                        if let Some(generation) = read(&place, files) {
                            assert!(generation >= least, "an older tree came back");
                            reads.fetch_add(1, SeqCst);
                        }
                    }
                });
            }
            for generation in 1..25 {
                write(generation);
                let status = site.run(commit_spec(&site, "/t", "ckpt"));
                if status.state == PlanState::Done {
                    published.store(generation, SeqCst);
                }
            }
            over.store(true, SeqCst);
        });
        assert_eq!(published.load(SeqCst), 24);
        assert!(reads.load(SeqCst) > 20, "hardly anything was read");
    }
}
