//! Which directory: FLASH from the command line or the environment, and the store's name in it;
//! and how files on it are given room.

use super::error::{Flash, Result, fail};
use super::key::StoreKey;
use forebay_proto::control::ControlError;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// Prefix of every store's directory.
pub const STORE_PREFIX: &str = "forebay-";
/// Directories that are commonly named as --flash without being set.
const USUAL_PLACES: [&str; 3] = ["/dev/shm", "/tmp", "/var/tmp"];
/// Symbolic links on a way that are followed, as many as the kernel does.
const LINKS_MAX: u32 = 40;
/// The part of a store that holds the objects, in directories of its own.
const OBJECTS: &str = "data";
const TMPFS_MAGIC: i64 = 0x0102_1994;
const RAMFS_MAGIC: i64 = 0x8584_58f6;

/// Gives a file blocks up to so many bytes. Some file systems (ext4) take all that is free before
/// they answer ENOSPC, and others on that flash fail meanwhile: what cannot fit is refused first. What the file system
/// keeps for its administrator is not for buffers, and without CAP_SYS_RESOURCE root does not get it either.
pub fn allocate(file: &fs::File, bytes: u64) -> rustix::io::Result<()> {
    let has_bytes = rustix::fs::fstat(file)?.st_blocks as u64 * 512;
    let flash = rustix::fs::fstatvfs(file)?;
    let has_limit = flash.f_blocks > 0;
    if has_limit && bytes.saturating_sub(has_bytes) > flash.f_bavail * flash.f_frsize {
        return Err(rustix::io::Errno::NOSPC);
    }
    rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes)
}

/// FLASH: `given` (--flash, or the site's), else $FOREBAY_FLASH, else $TMPDIR; canonical, an existing directory.
pub fn resolve_flash(given: Option<&Path>) -> Result<PathBuf> {
    resolve(given, |name| std::env::var_os(name))
}

fn resolve(given: Option<&Path>, variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    let from = |name: &str| variable(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let path =
        given.map(Path::to_path_buf).or_else(|| from("FOREBAY_FLASH")).or_else(|| from("TMPDIR"));
    let Some(path) = path else {
        return Err(ControlError {
            what: "find flash".into(),
            path: None,
            errno: None,
            why: "neither --flash nor $FOREBAY_FLASH nor $TMPDIR is set, and the site's configuration names none"
                .into(),
            hint: Some("name a directory on fast local storage, such as --flash /dev/shm".into()),
        });
    };
    check_links(&path)?;
    let path = fs::canonicalize(&path).at("use flash", &path)?;
    if !path.is_dir() {
        return Err(fail("use flash", &path, "not a directory").errno(libc::ENOTDIR));
    }
    check_way(&path)?;
    Ok(path)
}

/// Refuses a flash directory (canonical) that somebody else could exchange, with the stores in it, while
/// they are used: each directory on the way to it belongs to this user or to root, and if everybody may
/// write to it, it is sticky.
fn check_way(flash: &Path) -> Result<()> {
    let me = rustix::process::geteuid().as_raw();
    for dir in flash.ancestors() {
        let meta = fs::symlink_metadata(dir).at("use flash", dir)?;
        let refuse = |why: &str| {
            Err(fail("use flash", dir, why)
                .errno(libc::EACCES)
                .hint("give a --flash below directories of your own or of root"))
        };
        if ![me, 0].contains(&meta.uid()) && !is_unmapped(meta.uid()) {
            return refuse(&format!("it belongs to user {}, who could plant a store", meta.uid()));
        }
        if meta.mode() & 0o002 != 0 && meta.mode() & libc::S_ISVTX == 0 {
            return refuse("everybody may write to it, and it is not sticky (chmod +t)");
        }
    }
    Ok(())
}

/// Refuses a way to flash that goes by somebody else's symbolic link: who has it can let it lead elsewhere.
fn check_links(flash: &Path) -> Result<()> {
    let me = rustix::process::geteuid().as_raw();
    let whole = std::path::absolute(flash).at("use flash", flash)?;
    let mut left: Vec<OsString> = names_of(&whole).rev().collect();
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    while let Some(name) = left.pop() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        // What is not there, or leads in a circle, is refused with its errno when it is used.
        let Ok(meta) = fs::symlink_metadata(&next) else { return Ok(()) };
        if !meta.is_symlink() {
            at = next;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Ok(());
        }
        if ![me, 0].contains(&meta.uid()) && !is_unmapped(meta.uid()) {
            let why =
                format!("it is a link of user {}, who could let it lead elsewhere", meta.uid());
            return Err(fail("use flash", &next, &why)
                .errno(libc::EACCES)
                .hint("name the directory itself"));
        }
        let target = fs::read_link(&next).at("use flash", &next)?;
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        left.extend(names_of(&target).rev());
    }
    Ok(())
}

/// The names of a path, `..` among them.
fn names_of(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    let is_name =
        |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().filter(is_name).map(|part| part.as_os_str().to_os_string())
}

/// True if this is how a user namespace shows those whom it does not know, root outside among them.
fn is_unmapped(uid: u32) -> bool {
    let number = |path: &str| fs::read_to_string(path).ok();
    let overflow = number("/proc/sys/kernel/overflowuid").and_then(|text| text.trim().parse().ok());
    // One line for all there are: the initial namespace, or one like it.
    let all = number("/proc/self/uid_map").is_some_and(|map| {
        map.split_whitespace().map(str::to_owned).collect::<Vec<_>>() == ["0", "0", "4294967295"]
    });
    overflow == Some(uid) && !all
}

/// Where stores are looked for without --flash: the directories of $FOREBAY_FLASH, of the site and of $TMPDIR,
/// [`USUAL_PLACES`], and those where `known` stores lie; canonical, each once, those that are there and that nobody else
/// could exchange.
pub fn usual_places(
    of_site: Option<PathBuf>,
    known: impl IntoIterator<Item = PathBuf>,
) -> Vec<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let named = [set("FOREBAY_FLASH"), of_site, set("TMPDIR")].into_iter().flatten();
    let beside = known.into_iter().filter_map(|store| store.parent().map(Path::to_path_buf));
    let all = named.chain(USUAL_PLACES.map(PathBuf::from)).chain(beside);
    let mut places = Vec::new();
    for path in all.filter_map(|path| fs::canonicalize(path).ok()) {
        if path.is_dir() && check_way(&path).is_ok() && !places.contains(&path) {
            places.push(path);
        }
    }
    places
}

/// The directory of the store that this user has on `flash` under this key.
pub fn store_dir(flash: &Path, key: &StoreKey) -> PathBuf {
    let mut bytes = rustix::process::geteuid().as_raw().to_le_bytes().to_vec();
    bytes.extend_from_slice(&key.bytes());
    flash.join(format!("{STORE_PREFIX}{:016x}", xxh3_64(&bytes)))
}

/// True if `dir` exists, is a directory and not a link to one, and belongs to this user: in a
/// FLASH that others may write to, its name can be foreseen and taken by someone else. Root is no
/// exception: what a user planted would be trusted with what root writes.
pub fn is_own_directory(dir: &Path) -> Result<bool> {
    let meta = match fs::symlink_metadata(dir) {
        Ok(meta) => meta,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error).at("look for the store", dir),
    };
    let me = rustix::process::geteuid().as_raw();
    if meta.uid() != me {
        return Err(belongs_to(dir, meta.uid()));
    }
    if !meta.is_dir() {
        return Err(fail("use the store", dir, "not a directory").hint("remove it"));
    }
    if meta.mode() & 0o022 != 0 {
        return Err(others_may_write(dir));
    }
    check_parts(dir, me)?;
    Ok(true)
}

/// Refuses a store of which a part belongs to somebody else, or is a link: who made that could read, or exchange, what is kept
/// there. The parts are all that is in the store, down to the directories of the objects. The objects in those, which may be
/// 100,000, are not looked at one by one. All are the daemon's own, whoever's the files are: the owner of a file is in its record.
/// Nobody else can put one there, since nobody else may write to these directories.
fn check_parts(store: &Path, me: u32) -> Result<()> {
    let what = "look at the store";
    let is_gone = |error: &std::io::Error| error.kind() == ErrorKind::NotFound;
    let mut dirs = vec![store.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        let of_objects = dir.file_name() == Some(OsStr::new(OBJECTS));
        let entries = match fs::read_dir(&dir) {
            // Removed meanwhile by who uses it, as may be what is in it.
            Err(error) if is_gone(&error) && dir != store => continue,
            entries => entries.at(what, &dir)?,
        };
        for entry in entries {
            let path = match entry {
                Err(error) if is_gone(&error) && dir != store => break,
                entry => entry.at(what, &dir)?.path(),
            };
            let meta = match fs::symlink_metadata(&path) {
                Err(error) if is_gone(&error) => continue,
                meta => meta.at(what, &path)?,
            };
            check_part(&path, &meta, me, of_objects)?;
            if meta.is_dir() && !of_objects {
                dirs.push(path);
            }
        }
    }
    Ok(())
}

/// The same for one part. `of_objects`: it lies where the objects' directories are.
fn check_part(path: &Path, meta: &fs::Metadata, me: u32, of_objects: bool) -> Result<()> {
    if ![me, 0].contains(&meta.uid()) {
        return Err(belongs_to(path, meta.uid()));
    }
    if meta.is_symlink() {
        return Err(fail("use the store", path, "it is a link, and no store has any")
            .errno(libc::EACCES)
            .hint("remove it, if you know whose it is; or give another --flash"));
    }
    // Who may write there could put objects of their own in it.
    let has_objects = of_objects || path.file_name() == Some(OsStr::new(OBJECTS));
    if has_objects && meta.is_dir() && meta.mode() & 0o022 != 0 {
        return Err(others_may_write(path));
    }
    Ok(())
}

/// The error for a directory of a store in which others could exchange what is kept there.
fn others_may_write(dir: &Path) -> ControlError {
    fail("use the store", dir, "others may write to it")
        .errno(libc::EACCES)
        .hint("chmod go-w it, if it is yours and nobody has changed it")
}

/// The error for what is not this user's.
pub(super) fn belongs_to(path: &Path, uid: u32) -> ControlError {
    let me = rustix::process::geteuid().as_raw();
    let why = format!("it belongs to user {uid}, not to you (user {me}): it may be planted");
    fail("use the store", path, &why)
        .errno(libc::EACCES)
        .hint("run the command as that user if the buffer is theirs; else remove it, or give another --flash")
}

/// True if `path` lies in memory (tmpfs, ramfs).
pub fn is_memory(path: &Path) -> Result<bool> {
    let stat = rustix::fs::statfs(path).at("look at flash", path)?;
    #[allow(clippy::unnecessary_cast, reason = "the type differs between architectures")]
    let magic = stat.f_type as i64;
    Ok(magic == TMPFS_MAGIC || magic == RAMFS_MAGIC)
}

/// True if `path` is a mount point (or a directory of a mount other than its parent's).
pub fn is_mounted_on(path: &Path) -> Result<bool> {
    let parent = path.parent().unwrap_or(path);
    match (fs::metadata(path), fs::metadata(parent)) {
        (Ok(here), Ok(above)) => Ok(here.dev() != above.dev()),
        (Err(error), _) if error.kind() == ErrorKind::NotFound => Ok(false),
        (Err(error), _) => Err(error).at("look at", path),
        (_, Err(error)) => Err(error).at("look at", parent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flash_is_taken_from_the_first_that_is_set() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let env = |name: &str| match name {
            "FOREBAY_FLASH" => Some(a.path().into()),
            "TMPDIR" => Some(b.path().into()),
            _ => None,
        };
        let canonical = |dir: &tempfile::TempDir| fs::canonicalize(dir.path()).unwrap();
        assert_eq!(resolve(Some(b.path()), env).unwrap(), canonical(&b));
        assert_eq!(resolve(None, env).unwrap(), canonical(&a));
        let only_tmpdir = |name: &str| env(name).filter(|_| name == "TMPDIR");
        assert_eq!(resolve(None, only_tmpdir).unwrap(), canonical(&b));
        let message = resolve(None, |_| None).unwrap_err().to_string();
        assert!(message.contains("--flash") && message.contains("$FOREBAY_FLASH"), "{message}");
    }

    #[test]
    fn mount_points_and_buffers_have_stores_of_their_own() {
        let flash = Path::new("/flash");
        let mount = |path: &str| store_dir(flash, &StoreKey::mount(Path::new(path)));
        let buffer = |name: &str, uuid: &str| {
            let key = StoreKey::Buffer { name: name.parse().unwrap(), uuid: uuid.into() };
            store_dir(flash, &key)
        };
        assert_eq!(mount("/a"), mount("/a"));
        assert_ne!(mount("/a"), mount("/b"));
        assert_eq!(buffer("a", "01"), buffer("a", "01"));
        assert_ne!(buffer("a", "01"), buffer("a", "02"));
    }

    #[test]
    fn a_link_is_not_a_store() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("forebay-x");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(is_own_directory(&link).is_err());
        assert!(!is_own_directory(&dir.path().join("absent")).unwrap());
    }
}
