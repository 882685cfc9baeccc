//! Stores, job records and links that another user put where a flash directory lets everybody write, under
//! the name that root's buffer would get: refused, with what and whose, and never hung on.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::{binary, is_raw};
use forebay_tests::procs::try_run_for;
use forebay_tests::sys;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Who plants.
const MALLORY: u32 = 4242;
const LIMIT: Duration = Duration::from_secs(60);

/// A flash directory like /dev/shm, a mount point, and where root's store for it goes.
struct Site {
    base: tempfile::TempDir,
    store: PathBuf,
}

impl Site {
    /// `None` on a plain tmpfs: there is nothing to plant.
    fn new() -> Option<Site> {
        if is_raw() {
            return None;
        }
        let base = tempfile::tempdir_in("/dev/shm").unwrap();
        for dir in ["flash", "mnt"] {
            std::fs::create_dir(base.path().join(dir)).unwrap();
        }
        let mut site = Site { base, store: PathBuf::new() };
        chmod(&site.flash(), 0o1777);
        site.keep();
        let found = std::fs::read_dir(site.flash()).unwrap().next().unwrap().unwrap();
        site.store = found.path();
        Some(site)
    }

    fn flash(&self) -> PathBuf {
        self.base.path().join("flash")
    }

    fn forebay(&self, args: &[&str], path: Option<&Path>) -> (bool, String) {
        let mut command = Command::new(binary());
        command.args(args).args(path).env("FOREBAY_FLASH", self.flash());
        try_run_for(&mut command, LIMIT)
    }

    fn mount(&self) -> (bool, String) {
        let args = ["mount", "--scratch", "8MiB", "--store", "directory", "--no-fast-path"];
        self.forebay(&args, Some(&self.base.path().join("mnt")))
    }

    fn umount(&self, args: &[&str]) -> (bool, String) {
        // Named: of the usual places only what is the caller's own counts.
        let flash = self.flash();
        let mut words = vec!["umount", "--flash", flash.to_str().unwrap()];
        words.extend_from_slice(args);
        self.forebay(&words, Some(&self.base.path().join("mnt")))
    }

    /// Leaves a sound store that is root's.
    fn keep(&self) {
        let (ok, said) = self.mount();
        assert!(ok, "{said}");
        let (ok, said) = self.umount(&["--keep"]);
        assert!(ok, "{said}");
    }

    /// No command takes what is at the store's name; each says what and why. Nothing of it is changed.
    fn is_refused(&self, why: &str) {
        let before = listing(&self.store);
        let check = self.forebay(&["check"], Some(&self.store));
        for (what, (ok, said)) in [("mount", self.mount()), ("check", check)] {
            assert!(!ok, "{what}, {why}: {said}");
            let name = self.store.file_name().unwrap().to_str().unwrap();
            assert!(said.contains(why) && said.contains(name), "{what}, {why}: {said}");
        }
        let (ok, said) = self.umount(&[]);
        assert!(!ok && said.contains(why), "umount, {why}: {said}");
        let (ok, said) = self.forebay(&["status"], None);
        assert!(ok, "status, {why}: {said}");
        assert_eq!(listing(&self.store), before, "{why}");
    }

    fn remove(&self) {
        match std::fs::symlink_metadata(&self.store).unwrap().is_dir() {
            true => std::fs::remove_dir_all(&self.store).unwrap(),
            false => std::fs::remove_file(&self.store).unwrap(),
        }
    }
}

fn listing(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut all: Vec<String> = entries
        .map(|entry| entry.unwrap())
        .map(|entry| format!("{:?} {}", entry.file_name(), entry.metadata().unwrap().uid()))
        .collect();
    all.sort();
    all
}

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn give(path: &Path) {
    sys::lchown(sys::bytes(path), MALLORY, MALLORY).unwrap();
    if std::fs::symlink_metadata(path).unwrap().is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            give(&entry.unwrap().path());
        }
    }
}

#[test]
fn a_store_that_another_user_planted_is_refused() {
    let Some(site) = Site::new() else { return };
    // A whole store, as its owner could have copied it from one of his own.
    give(&site.store);
    site.is_refused("belongs to user 4242");
    // The same, readable for all, and with nothing in it.
    chmod(&site.store, 0o755);
    site.is_refused("belongs to user 4242");
    site.remove();
    std::fs::create_dir(&site.store).unwrap();
    give(&site.store);
    let (ok, said) = site.mount();
    assert!(!ok && said.contains("belongs to user 4242"), "{said}");
    assert_eq!(listing(&site.store), Vec::<String>::new());
    site.remove();
    // Names that lead elsewhere, and what is no directory.
    let elsewhere = site.base.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, &site.store).unwrap();
    let (ok, said) = site.mount();
    assert!(!ok && said.contains("not a directory"), "{said}");
    assert_eq!(listing(&elsewhere), Vec::<String>::new());
    give(&site.store);
    let (ok, said) = site.mount();
    assert!(!ok && said.contains("belongs to user 4242"), "{said}");
    site.remove();
    let listener = UnixListener::bind(&site.store).unwrap();
    give(&site.store);
    let (ok, said) = site.mount();
    assert!(!ok && said.contains("belongs to user 4242"), "{said}");
    drop(listener);
    site.remove();
    site.keep();
    let (ok, said) = site.umount(&["--force"]);
    assert!(ok, "root's own goes: {said}");
}

#[test]
fn a_store_of_ones_own_with_parts_of_another_user_is_refused() {
    let Some(site) = Site::new() else { return };
    let record = site.store.join("store.json");
    let text = std::fs::read_to_string(&record).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["uid"], 0);
    let mut other = value.clone();
    other["uid"] = MALLORY.into();
    std::fs::write(&record, other.to_string()).unwrap();
    site.is_refused("belongs to user 4242");
    std::fs::write(&record, &text).unwrap();
    give(&record);
    site.is_refused("belongs to user 4242");
    sys::chown(sys::bytes(&record), 0, 0).unwrap();
    chmod(&site.store, 0o770);
    site.is_refused("others may write to it");
    chmod(&site.store, 0o700);
    give(&site.store.join("lock"));
    site.is_refused("belongs to user 4242");
    sys::chown(sys::bytes(&site.store.join("lock")), 0, 0).unwrap();
    // What is kept in it, and what is kept below that.
    for part in ["meta", "data", "plans", "meta/namespace", "meta/namespace/data.mdb"] {
        let path = site.store.join(part);
        sys::lchown(sys::bytes(&path), MALLORY, MALLORY).unwrap();
        site.is_refused("belongs to user 4242");
        sys::chown(sys::bytes(&path), 0, 0).unwrap();
    }
    let (meta, elsewhere) = (site.store.join("meta"), site.base.path().join("elsewhere"));
    std::fs::rename(&meta, &elsewhere).unwrap();
    symlink(&elsewhere, &meta).unwrap();
    site.is_refused("it is a link");
    std::fs::remove_file(&meta).unwrap();
    std::fs::rename(&elsewhere, &meta).unwrap();
    // Pipes that nobody writes to hold nobody up.
    for name in ["store.json", "lock"] {
        let path = site.store.join(name);
        std::fs::rename(&path, site.base.path().join("aside")).unwrap();
        sys::mknod(sys::bytes(&path), libc::S_IFIFO | 0o666, 0).unwrap();
        let (ok, said) = site.mount();
        assert!(!ok, "{name}: {said}");
        site.forebay(&["status"], None);
        std::fs::rename(site.base.path().join("aside"), &path).unwrap();
    }
    let (ok, said) = site.mount();
    assert!(ok, "as it was, it is taken: {said}");
    let (ok, said) = site.umount(&[]);
    assert!(ok, "{said}");
}

/// Whoever has the directories of the objects could exchange what files hold. What is refused is named with its path.
#[test]
fn what_another_user_has_where_the_objects_are_is_refused() {
    let Some(site) = Site::new() else { return };
    let (data, aside) = (site.store.join("data"), site.base.path().join("aside"));
    let names_it = |path: &Path| {
        let (ok, said) = site.mount();
        let below_flash = path.strip_prefix(site.flash()).unwrap().to_str().unwrap();
        assert!(!ok && said.contains(below_flash), "{below_flash}: {said}");
    };
    // One of the directories that hold objects: another user's, open to others, and a link.
    let of_objects = data.join("3f");
    give(&of_objects);
    site.is_refused("belongs to user 4242");
    names_it(&of_objects);
    sys::lchown(sys::bytes(&of_objects), 0, 0).unwrap();
    for dir in [&of_objects, &data] {
        chmod(dir, 0o777);
        site.is_refused("others may write to it");
        names_it(dir);
        chmod(dir, 0o700);
    }
    std::fs::rename(&of_objects, &aside).unwrap();
    symlink(&aside, &of_objects).unwrap();
    site.is_refused("it is a link");
    names_it(&of_objects);
    std::fs::remove_file(&of_objects).unwrap();
    std::fs::rename(&aside, &of_objects).unwrap();
    // What does not belong there at all: a file, and a directory with something in it.
    let (file, dir) = (data.join("file"), data.join("dir"));
    std::fs::write(&file, b"planted").unwrap();
    std::fs::create_dir_all(dir.join("below")).unwrap();
    for planted in [&file, &dir] {
        give(planted);
        site.is_refused("belongs to user 4242");
        names_it(planted);
        sys::lchown(sys::bytes(planted), 0, 0).unwrap();
    }
    std::fs::remove_file(&file).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let (ok, said) = site.mount();
    assert!(ok, "as it was, it is taken: {said}");
    let (ok, said) = site.umount(&[]);
    assert!(ok, "{said}");
}

#[test]
fn flash_that_somebody_else_could_exchange_is_refused() {
    let Some(site) = Site::new() else { return };
    chmod(&site.flash(), 0o777);
    let (ok, said) = site.mount();
    assert!(!ok && said.contains("not sticky"), "{said}");
    chmod(&site.flash(), 0o1777);
    sys::chown(sys::bytes(&site.flash()), MALLORY, MALLORY).unwrap();
    let (ok, said) = site.mount();
    assert!(!ok && said.contains("belongs to user 4242"), "{said}");
    sys::chown(sys::bytes(&site.flash()), 0, 0).unwrap();
    // By a link of root's, and by one that somebody else can let lead elsewhere, on the way and at its end.
    let link = site.base.path().join("link");
    let by_link = |flash: &Path| {
        let point = site.base.path().join("mnt");
        let flash = flash.to_str().unwrap();
        let mount = "mount --scratch 8MiB --store directory --no-fast-path --flash";
        let words: Vec<&str> = mount.split(' ').chain([flash]).collect();
        site.forebay(&words, Some(&point))
    };
    for (target, rest) in [(site.flash(), ""), (site.base.path().to_path_buf(), "flash")] {
        symlink(&target, &link).unwrap();
        let (ok, said) = by_link(&link.join(rest));
        assert!(ok, "{said}");
        assert!(site.umount(&["--keep"]).0);
        sys::lchown(sys::bytes(&link), MALLORY, MALLORY).unwrap();
        let (ok, said) = by_link(&link.join(rest));
        assert!(!ok && said.contains("it is a link of user 4242"), "{said}");
        std::fs::remove_file(&link).unwrap();
    }
}

#[test]
fn a_job_record_that_another_user_planted_is_never_run() {
    let Some(site) = Site::new() else { return };
    let job = site.flash().join("forebay-jobs-0/job-planted");
    std::fs::create_dir_all(&job).unwrap();
    std::fs::write(job.join("job.json"), r#"{"format":2}"#).unwrap();
    let resume = || site.forebay(&["run", "--resume", job.to_str().unwrap()], None);
    give(&site.flash().join("forebay-jobs-0"));
    let (ok, said) = resume();
    assert!(!ok && said.contains("only you can write"), "{said}");
    sys::chown(sys::bytes(&job), 0, 0).unwrap();
    let (ok, said) = resume();
    assert!(!ok && said.contains("not a file of your own"), "{said}");
    let (ok, said) = site.forebay(&["status"], None);
    assert!(ok && !said.contains("job-planted"), "{said}");
}

/// As who cleans up what is old leaves it.
#[test]
fn a_kept_buffer_whose_names_were_removed_is_not_taken_for_an_empty_one() {
    let Some(site) = Site::new() else { return };
    let (ok, said) = site.mount();
    assert!(ok, "{said}");
    std::fs::write(site.base.path().join("mnt/file"), b"kept").unwrap();
    let (ok, said) = site.umount(&["--keep"]);
    assert!(ok, "{said}");
    let (meta, aside) = (site.store.join("meta"), site.base.path().join("aside"));
    std::fs::rename(&meta, &aside).unwrap();
    std::fs::create_dir(&meta).unwrap();
    chmod(&meta, 0o700);
    let (ok, said) = site.mount();
    assert!(!ok && said.contains("meta") && said.contains("somebody removed them"), "{said}");
    // Nothing was made or removed there: brought back, it is as it was.
    std::fs::remove_dir(&meta).unwrap();
    std::fs::rename(&aside, &meta).unwrap();
    let (ok, said) = site.mount();
    assert!(ok, "{said}");
    assert_eq!(std::fs::read(site.base.path().join("mnt/file")).unwrap(), b"kept");
    let (ok, said) = site.umount(&["--destroy"]);
    assert!(ok, "{said}");
}

/// Whatever the umask of who mounts.
#[test]
fn nobody_else_writes_what_a_mount_makes_for_itself() {
    let Some(site) = Site::new() else { return };
    let (ok, said) = site.umount(&["--destroy"]);
    assert!(ok, "{said}");
    let mut command = Command::new(binary());
    command.args(["mount", "--scratch", "8MiB", "--store", "directory"]);
    command.arg(site.base.path().join("mnt")).env("FOREBAY_FLASH", site.flash());
    let open_to_all = || {
        rustix::process::umask(rustix::fs::Mode::empty());
        Ok(())
    };
    // SAFETY: a number of this child changes, before it becomes another program; nothing is allocated.
    unsafe { command.pre_exec(open_to_all) };
    let (ok, said) = try_run_for(&mut command, LIMIT);
    assert!(ok, "{said}");
    let mut dirs = vec![site.store.clone()];
    let mut seen = 0;
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let metadata = std::fs::symlink_metadata(&path).unwrap();
            let is_socket = std::os::unix::fs::FileTypeExt::is_socket(&metadata.file_type());
            assert!(is_socket || metadata.mode() & 0o022 == 0, "{path:?} {:o}", metadata.mode());
            seen += 1;
            if metadata.is_dir() {
                dirs.push(path);
            }
        }
    }
    assert!(seen > 3, "{seen} found");
    let (ok, said) = site.umount(&["--destroy"]);
    assert!(ok, "{said}");
}
