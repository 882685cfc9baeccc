//! `forebay verify`: compares a tree that a commit published with its manifest (docs/internals/COMMIT.md).
//!
//! Invariants: nothing is changed; nothing outside of the tree is looked at, whatever the manifest says (a
//! path is opened below the open directory, through no link); 0 is told only if the manifest is whole and
//! all that it lists, and nothing else, is there as listed. The directory is held open: a commit that
//! replaces it meanwhile is told and not mixed in.

use super::cache::progress;
use super::looking::{Looking, Work};
use crate::args::VerifyArgs;
use crate::failure::{EXIT_FAILED, EXIT_OK, Outcome, print_json, visible};
use crc_fast::CrcAlgorithm::Crc32Iscsi;
use crc_fast::Digest;
use forebay_proto::commit::{MANIFEST_FORMAT, MANIFEST_NAME, is_reserved};
use forebay_proto::control::{ControlError, PathBytes};
use forebay_proto::size::entries_text;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const WHAT: &str = "verify";
/// Longest line of a manifest: a path of 4,095 bytes as numbers, twice.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Bytes read at once.
const PIECE_BYTES: usize = 1 << 20;
/// Deepest directory that is walked.
const DEPTH_MAX: usize = 4_096;
/// A path is opened below the tree's top, through no link; the last name may be one that is only looked at.
const BELOW: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::NO_SYMLINKS);

/// First line.
#[derive(Deserialize)]
struct Head {
    forebay_manifest: u32,
    version: String,
}

/// A line for each object.
#[derive(Deserialize)]
struct Entry {
    path: PathBytes,
    kind: String,
    mode: String,
    size: Option<u64>,
    crc32c: Option<String>,
    target: Option<PathBytes>,
}

/// Last line.
#[derive(Deserialize)]
struct Tail {
    entries: u64,
    files: u64,
    bytes: u64,
    manifest_crc32c: String,
}

impl Tail {
    /// Entries that are no regular files.
    fn other_entries(&self) -> u64 {
        self.entries.saturating_sub(self.files)
    }
}

/// A manifest that is whole.
struct Manifest {
    head: Head,
    entries: Vec<Entry>,
    tail: Tail,
}

/// Something that is not as listed.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Finding {
    path: PathBytes,
    what: String,
}

/// What was found.
#[derive(Debug, Default, Serialize)]
struct Findings {
    missing: Vec<PathBytes>,
    extra: Vec<PathBytes>,
    changed: Vec<Finding>,
    /// What could not be read, so that nothing can be said of it.
    unreadable: Vec<Finding>,
}

/// Runs the command.
pub fn run(args: VerifyArgs) -> Outcome {
    let _looking = Looking::at(&args.directory, Work::Other(WHAT));
    let top = open_top(&args.directory)?;
    let manifest = read_manifest(&top, &args.directory)?;
    let found = compare(&top, &manifest, args.json)?;
    if !found.is_sound() {
        must_be_same(&args.directory, &manifest)?;
    }
    tell(&args, &manifest, &found)?;
    Ok(if found.is_sound() { EXIT_OK } else { EXIT_FAILED })
}

impl Findings {
    fn is_sound(&self) -> bool {
        self.missing.is_empty()
            && self.extra.is_empty()
            && self.changed.is_empty()
            && self.unreadable.is_empty()
    }
}

fn open_top(dir: &Path) -> Result<OwnedFd, ControlError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(dir, flags, Mode::empty())
        .map_err(|error| ControlError::io(WHAT, Some(dir), &error.into()))
}

/// Reads the manifest, whose own checksum must be right.
fn read_manifest(top: &OwnedFd, dir: &Path) -> Result<Manifest, ControlError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let path = dir.join(MANIFEST_NAME);
    let opened = openat(top, MANIFEST_NAME, flags, Mode::empty()).map_err(|error| {
        let failed = ControlError::io(WHAT, Some(dir), &error.into());
        match error {
            rustix::io::Errno::NOENT => {
                let why = format!("it has no {MANIFEST_NAME}: no commit made it");
                ControlError::new(WHAT, Some(dir), &why)
                    .errno(libc::ENOENT)
                    .hint("name the directory that `forebay commit --to` named")
            }
            _ => failed,
        }
    })?;
    parse(BufReader::new(File::from(opened))).map_err(|why| {
        ControlError::new("read the manifest", Some(&path), &why)
            .errno(libc::EBADMSG)
            .hint("without its manifest nothing can be said of the tree: commit it again")
    })
}

/// Parses a manifest; an error says what is wrong with it.
fn parse(mut from: impl BufRead) -> Result<Manifest, String> {
    let mut digest = Digest::new(Crc32Iscsi);
    let mut line = Vec::new();
    let mut next = |line: &mut Vec<u8>| -> Result<bool, String> {
        line.clear();
        let read = from.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', line);
        let count = read.map_err(|error| error.to_string())?;
        match line.last() {
            _ if count == 0 => Ok(false),
            Some(b'\n') => Ok(true),
            _ => Err("its last line is torn, or a line is too long".into()),
        }
    };
    let of = |error: serde_json::Error| format!("a line is not of a manifest: {error}");
    if !next(&mut line)? {
        return Err("it is empty".into());
    }
    let head: Head = serde_json::from_slice(&line).map_err(of)?;
    if head.forebay_manifest != MANIFEST_FORMAT {
        let theirs = head.forebay_manifest;
        return Err(format!("it has format {theirs}; this program reads {MANIFEST_FORMAT}"));
    }
    let mut entries = Vec::new();
    digest.update(&line);
    let tail: Tail = loop {
        if !next(&mut line)? {
            return Err("its last line is missing".into());
        }
        // The last line is the one that is no entry.
        match serde_json::from_slice(&line) {
            Ok(tail) => break tail,
            Err(_) => entries.push(serde_json::from_slice(&line).map_err(of)?),
        }
        digest.update(&line);
    };
    let known = u32::from_str_radix(&tail.manifest_crc32c, 16);
    if known != Ok(digest.finalize() as u32) || tail.entries != entries.len() as u64 {
        return Err("it is damaged: its checksum is not that of its lines".into());
    }
    match next(&mut line)? {
        false => Ok(Manifest { head, entries, tail }),
        true => Err("it continues after its last line".into()),
    }
}

/// Compares all that is listed, then looks for what is not.
fn compare(top: &OwnedFd, manifest: &Manifest, quiet: bool) -> Result<Findings, ControlError> {
    let bar = progress(
        manifest.tail.bytes.max(1),
        "{percent:>3}% {bar:16} {bytes}/{total_bytes} {wide_msg}",
        quiet,
    );
    let mut found = Findings::default();
    let mut listed = HashSet::with_capacity(manifest.entries.len());
    for entry in &manifest.entries {
        listed.insert(entry.path.as_bytes());
        match look(top, entry, &mut |bytes| bar.inc(bytes)) {
            Ok(None) => {}
            Ok(Some(what)) => found.changed.push(Finding { path: entry.path.clone(), what }),
            Err(error) if is_absent(&error) => found.missing.push(entry.path.clone()),
            Err(error) => {
                let what = ControlError::io(WHAT, None, &error).why;
                found.unreadable.push(Finding { path: entry.path.clone(), what });
            }
        }
    }
    find_extra(top, &listed, &mut found);
    bar.finish_and_clear();
    Ok(found)
}

/// Nothing has the name, or something on the way is no directory any more.
fn is_absent(error: &io::Error) -> bool {
    let gone = [libc::ENOENT, libc::ENOTDIR, libc::ELOOP];
    error.raw_os_error().is_some_and(|errno| gone.contains(&errno))
}

/// What is not as listed of an object, in words.
fn look(top: &OwnedFd, entry: &Entry, read: &mut dyn FnMut(u64)) -> io::Result<Option<String>> {
    let path = entry.path.as_bytes();
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let object = openat2(top, path, flags, Mode::empty(), BELOW)?;
    let stat = fstat(&object)?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        _ => "special",
    };
    if kind != entry.kind {
        return Ok(Some(format!("it is a {kind}, not a {}", entry.kind)));
    }
    let mode = format!("{:04o}", stat.st_mode & 0o7777);
    if kind != "symlink" && mode != entry.mode {
        return Ok(Some(format!("its mode is {mode}, not {}", entry.mode)));
    }
    if kind == "symlink" {
        let target = rustix::fs::readlinkat(&object, "", Vec::new())?;
        let target = PathBytes::new(target.as_bytes());
        let same = entry.target.as_ref() == Some(&target);
        return Ok((!same).then(|| format!("it leads to {target}")));
    }
    let (Some(size), Some(crc32c)) = (entry.size, &entry.crc32c) else { return Ok(None) };
    if stat.st_size as u64 != size {
        return Ok(Some(format!("it has {} bytes, not {size}", stat.st_size)));
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat2(top, path, flags, Mode::empty(), BELOW)?);
    let (bytes, crc) = checksum(file, read)?;
    if bytes != size || format!("{crc:08x}") != *crc32c {
        return Ok(Some(format!("its CRC32C is {crc:08x}, not {crc32c}")));
    }
    Ok(None)
}

/// Length and CRC32C of a file.
fn checksum(mut file: File, read: &mut dyn FnMut(u64)) -> io::Result<(u64, u32)> {
    let mut digest = Digest::new(Crc32Iscsi);
    let mut piece = vec![0; PIECE_BYTES];
    let mut bytes = 0;
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok((bytes, digest.finalize() as u32)),
            Ok(count) => {
                digest.update(&piece[..count]);
                bytes += count as u64;
                read(count as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Names in the tree that are not listed; of a directory only its own.
fn find_extra(top: &OwnedFd, listed: &HashSet<&[u8]>, found: &mut Findings) {
    let mut todo = vec![Vec::new()];
    while let Some(rel) = todo.pop() {
        if let Err(error) = names_in(top, &rel, listed, found, &mut todo) {
            let what = ControlError::io(WHAT, None, &error).why;
            found.unreadable.push(Finding { path: PathBytes::new(&rel), what });
        }
    }
}

fn names_in(
    top: &OwnedFd,
    rel: &[u8],
    listed: &HashSet<&[u8]>,
    found: &mut Findings,
    todo: &mut Vec<Vec<u8>>,
) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let at = if rel.is_empty() { &b"."[..] } else { rel };
    let dir = openat2(top, at, flags, Mode::empty(), BELOW)?;
    for entry in Dir::read_from(&dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") || (rel.is_empty() && is_reserved(name)) {
            continue;
        }
        let path = match rel {
            b"" => name.to_vec(),
            _ => [rel, b"/", name].concat(),
        };
        if !listed.contains(&path[..]) {
            found.extra.push(PathBytes::new(&path));
            continue;
        }
        let is_dir = match entry.file_type() {
            FileType::Unknown => {
                let stat =
                    rustix::fs::statat(dir.as_fd(), entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
                FileType::from_raw_mode(stat.st_mode) == FileType::Directory
            }
            kind => kind == FileType::Directory,
        };
        if is_dir && rel.iter().filter(|byte| **byte == b'/').count() < DEPTH_MAX {
            todo.push(path);
        }
    }
    Ok(())
}

/// A tree that a newer commit has replaced is being removed: what was found says nothing then.
fn must_be_same(dir: &Path, manifest: &Manifest) -> Result<(), ControlError> {
    let now = open_top(dir).and_then(|top| read_manifest(&top, dir));
    match now {
        Ok(now) if now.head.version != manifest.head.version => {
            let why = "a newer commit has replaced it meanwhile";
            Err(ControlError::new(WHAT, Some(dir), why)
                .errno(libc::ESTALE)
                .hint("run the command again: it then verifies the new tree"))
        }
        _ => Ok(()),
    }
}

fn tell(args: &VerifyArgs, manifest: &Manifest, found: &Findings) -> anyhow::Result<()> {
    let tail = &manifest.tail;
    if args.json {
        return print_json(&serde_json::json!({
            "directory": PathBytes::new(args.directory.as_os_str().as_bytes()),
            "version": manifest.head.version,
            "entries": tail.entries,
            "files": tail.files,
            "other_entries": tail.other_entries(),
            "bytes": tail.bytes,
            "sound": found.is_sound(),
            "missing": found.missing,
            "extra": found.extra,
            "changed": found.changed,
            "unreadable": found.unreadable,
        }));
    }
    let print = |text: &str| println!("{}", visible(text));
    found.missing.iter().for_each(|path| print(&format!("missing     {path}")));
    found.extra.iter().for_each(|path| print(&format!("extra       {path}")));
    for (label, list) in [("changed", &found.changed), ("unreadable", &found.unreadable)] {
        list.iter().for_each(|one| print(&format!("{label:<11} {}: {}", one.path, one.what)));
    }
    let head = format!(
        "{}: version {}, {}",
        args.directory.display(),
        manifest.head.version,
        entries_text(tail.files, tail.bytes, tail.other_entries())
    );
    match found.is_sound() {
        true => print(&format!("{head}: as committed (read through the page cache)")),
        false => print(&format!(
            "{head}: {} missing, {} extra, {} changed, {} unreadable",
            found.missing.len(),
            found.extra.len(),
            found.changed.len(),
            found.unreadable.len()
        )),
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]
mod tests {
    use super::*;

    fn text(lines: &[&str]) -> Vec<u8> {
        let head = r#"{"forebay_manifest":1,"version":"0123456789abcdef","source":"/b","verified":"cache"}"#;
        let mut all = head.as_bytes().to_vec();
        all.push(b'\n');
        lines.iter().for_each(|line| all.extend([line.as_bytes(), b"\n"].concat()));
        let crc = crc_fast::checksum(Crc32Iscsi, &all) as u32;
        let (entries, files) = (lines.len(), lines.len());
        all.extend(
            format!(
                "{{\"entries\":{entries},\"files\":{files},\"bytes\":1,\"manifest_crc32c\":\"{crc:08x}\"}}\n"
            )
            .as_bytes(),
        );
        all
    }

    const FILE: &str = r#"{"path":"a","kind":"file","mode":"0644","size":1,"crc32c":"00000000"}"#;

    #[test]
    fn a_manifest_is_read_whole_or_not_at_all() {
        let whole = text(&[FILE]);
        let manifest = parse(&whole[..]).unwrap();
        assert_eq!((manifest.entries.len(), manifest.tail.bytes), (1, 1));
        for end in 0..whole.len() {
            assert!(parse(&whole[..end]).is_err(), "cut at {end}");
        }
        for at in 0..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 1;
            // A digit of what is not compared here (files, bytes) may differ.
            let is_sum = at > whole.len() - 65;
            assert!(parse(&bad[..]).is_err() || is_sum, "bit at {at}");
        }
        let longer = [&whole[..], b"{}\n"].concat();
        assert!(parse(&longer[..]).is_err());
    }

    #[test]
    fn nothing_outside_of_the_tree_is_opened() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("tree");
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(base.path().join("outside"), b"x").unwrap();
        std::os::unix::fs::symlink(base.path(), dir.join("up")).unwrap();
        let top = open_top(&dir).unwrap();
        for path in ["../outside", "/etc/hostname", "up/outside"] {
            let line = FILE.replace("\"a\"", &format!("\"{path}\""));
            let entry: Entry = serde_json::from_str(&line).unwrap();
            assert!(look(&top, &entry, &mut |_| {}).is_err(), "{path}");
        }
    }
}
