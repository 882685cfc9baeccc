//! The end of the copying: the source is looked at again, then the manifest is written into the new
//! tree, read back, and the versioned name is made.
//!
//! The manifest lists what *is* in the tree: it is walked, and each file must be one that the journal
//! has with the same inode and size. A file that was copied and is not found, or is found and was
//! not copied, ends the commit. Format: docs/internals/COMMIT.md. Called by the commit's phases (`mod`).

use super::place::Place;
use super::{COMMIT_FILES_MAX, Commit, refused};
use crate::endpoint::{Source, Target};
use crate::fault::{Fault, Outcome, Sort, Where};
use crate::journal::{Finished, Journal, Version};
use crate::meta::{Dir, Meta};
use crate::pfs::{RequesterPfs, errno, fd};
use crate::progress::Progress;
use crate::request::PlanRequest;
use crate::stop::Pace;
use forebay_failpoint::step;
use forebay_proto::Errno;
use forebay_proto::attr::FileKind;
use forebay_proto::commit::{MANIFEST_FORMAT, MANIFEST_NAME, is_reserved};
use forebay_proto::control::{PathBytes, Verify};
use forebay_sums::Crc32c;
use rustix::fs::{Advice, AtFlags, Mode, OFlags};
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::sync::Arc;

const WHAT: &str = "write manifest";

/// First line of a manifest.
#[derive(Serialize)]
struct Head<'a> {
    forebay_manifest: u32,
    version: &'a str,
    source: PathBytes,
    verified: Verify,
}

/// A line for each object of the tree but its top.
#[derive(Serialize)]
struct Line {
    path: PathBytes,
    kind: &'static str,
    mode: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    crc32c: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<PathBytes>,
}

/// Last line: CRC32C of all bytes before it.
#[derive(Serialize)]
struct Tail {
    entries: u64,
    files: u64,
    bytes: u64,
    manifest_crc32c: String,
}

/// Writes and keeps the checksum of what was written.
struct Summed<W> {
    to: W,
    digest: Crc32c,
}

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        let count = self.to.write(buf)?;
        self.digest.update(&buf[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

/// What the journal says was copied.
struct Copied {
    /// By path: the source then.
    sources: HashMap<u128, Version>,
    /// By inode of the target.
    targets: HashMap<u64, Finished>,
}

/// A directory being walked.
struct Frame {
    rel: Vec<u8>,
    dir: Dir,
    names: std::vec::IntoIter<Vec<u8>>,
}

/// Seals the tree of one commit.
pub(super) struct Sealer<'a> {
    pub request: &'a PlanRequest,
    pub place: &'a Place,
    pub source: &'a dyn Source,
    pub pfs: &'a RequesterPfs,
    pub journal: &'a Journal,
    pub progress: &'a Progress,
    pub pace: &'a Pace,
}

impl Sealer<'_> {
    /// Seals the tree; the attributes of its top come after.
    pub fn seal(&self) -> Outcome<()> {
        self.pace.check()?;
        if self.progress.files_failed() > 0 {
            return Err(Fault::stopped());
        }
        let mut copied = Copied { sources: HashMap::new(), targets: HashMap::new() };
        self.journal.each_done(|path, finished| {
            copied.sources.insert(forebay_sums::short_name(path), finished.source);
            copied.targets.insert(finished.target.ino, *finished);
        })?;
        self.recheck_source(&copied)?;
        step("the source of a commit was looked at again");
        let top = Target::reopen(self.pfs, &self.place.staging_path, b"")?;
        self.write_manifest(&top, &copied)?;
        step("a commit has its manifest");
        self.make_version_link(&top)?;
        step("a commit has its versioned name");
        Ok(())
    }

    /// Every file must still be what was copied, and none may have come or gone: then there was
    /// a moment at which the source was exactly what is published.
    fn recheck_source(&self, copied: &Copied) -> Outcome<()> {
        let inodes: HashSet<u64> = copied.sources.values().map(|version| version.ino).collect();
        let source = self.source;
        let dir = source.top(self.request.source_path())?;
        let names = source.list(&dir)?.into_iter();
        let mut frames = vec![Frame { rel: Vec::new(), dir, names }];
        let mut found = 0;
        while let Some(frame) = frames.last_mut() {
            self.pace.check()?;
            let Some(name) = frame.names.next() else {
                frames.pop();
                continue;
            };
            if frame.rel.is_empty() && is_reserved(&name) {
                continue;
            }
            let path = below(&frame.rel, &name);
            let changed = |how: &str| {
                let shown = String::from_utf8_lossy(&path).into_owned();
                Fault { what: "look at source again", ..Fault::changed(&format!("{shown}: {how}")) }
            };
            let meta = source.stat(&frame.dir, &name)?;
            found += 1;
            if meta.kind == FileKind::Dir {
                let dir = source.enter(&frame.dir, &name)?;
                let names = source.list(&dir)?.into_iter();
                frames.push(Frame { rel: path, dir, names });
            } else if meta.kind == FileKind::File {
                match copied.sources.get(&forebay_sums::short_name(&path)) {
                    Some(then) if *then == Version::of(&meta) => {}
                    None if meta.nlink > 1 && inodes.contains(&meta.ino) => {}
                    Some(_) => return Err(changed("it was written")),
                    None => return Err(changed("it was made")),
                }
            }
        }
        if found != self.progress.files_total() {
            return Err(Fault::changed("files came or went"));
        }
        Ok(())
    }

    fn write_manifest(&self, top: &Dir, copied: &Copied) -> Outcome<()> {
        let fault = Fault::target(WHAT);
        let io = |e: std::io::Error| fault(Errno::from_io(&e));
        let file = {
            let _acting = self.pfs.act("manifest", MANIFEST_NAME.as_bytes()).map_err(&fault)?;
            let at = fd(top).map_err(&fault)?;
            match rustix::fs::unlinkat(at, MANIFEST_NAME, AtFlags::empty()) {
                Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                Err(e) => return Err(fault(errno(e))),
            }
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
            let mode = Mode::from_raw_mode(0o644);
            let opened = self.pfs.open_at(top, MANIFEST_NAME.as_bytes(), flags, mode);
            let opened = opened.map_err(&fault)?;
            rustix::fs::fchmod(&opened, mode).map_err(|e| fault(errno(e)))?;
            File::from(opened)
        };
        let to = BufWriter::new(&file);
        let mut out = Summed { to, digest: Crc32c::new() };
        let head = Head {
            forebay_manifest: MANIFEST_FORMAT,
            version: &self.place.version,
            source: self.request.shown_in_buffer(self.request.source_path()),
            verified: self.request.spec.verify,
        };
        put(&mut out, &head).map_err(io)?;
        let (entries, files, bytes) = self.list_tree(top, copied, &mut out)?;
        let crc = out.digest.value();
        let manifest_crc32c = format!("{crc:08x}");
        put(&mut out, &Tail { entries, files, bytes, manifest_crc32c }).map_err(io)?;
        let whole = out.digest.value();
        let _acting = self.pfs.act("fsync", MANIFEST_NAME.as_bytes()).map_err(&fault)?;
        out.to.flush().map_err(io)?;
        drop(out);
        rustix::fs::fsync(&file).map_err(|e| fault(errno(e)))?;
        if self.request.spec.verify == Verify::Medium {
            let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
        }
        match crc_of(file).map_err(io)? == whole {
            true => Ok(()),
            false => {
                let why = "the manifest that was read back is not what was written";
                Err(Fault::of(Sort::Mismatch, Where::Target, "verify manifest", why))
            }
        }
    }

    /// A line for all in the tree; how many, how many of them files, and their bytes.
    fn list_tree(
        &self,
        top: &Dir,
        copied: &Copied,
        out: &mut dyn Write,
    ) -> Outcome<(u64, u64, u64)> {
        let fault = Fault::target(WHAT);
        let (mut entries, mut files, mut bytes) = (0, 0, 0);
        let mut frames = vec![self.frame(Vec::new(), top.clone())?];
        while let Some(frame) = frames.last_mut() {
            self.pace.check()?;
            let Some(name) = frame.names.next() else {
                frames.pop();
                continue;
            };
            if frame.rel.is_empty() && is_reserved(&name) {
                continue;
            }
            let path = below(&frame.rel, &name);
            let meta = self.pfs.stat_at(&frame.dir, &name).map_err(&fault)?;
            entries += 1;
            let mut line = line_of(&path, &meta);
            match meta.kind {
                FileKind::File => {
                    let known = copied.targets.get(&meta.ino);
                    let known = known.filter(|known| known.target.size_bytes == meta.size_bytes);
                    let known = known.ok_or_else(|| strange(&path))?;
                    files += 1;
                    bytes += meta.size_bytes;
                    line.size = Some(meta.size_bytes);
                    line.crc32c = Some(format!("{:08x}", known.crc32c));
                }
                FileKind::Symlink => {
                    line.target = Some(PathBytes::new(&self.pfs.readlink(&frame.dir, &name)?));
                }
                _ => {}
            }
            put(out, &line).map_err(|e| fault(Errno::from_io(&e)))?;
            if meta.kind == FileKind::Dir {
                let dir = self.pfs.enter_at(&frame.dir, &name).map_err(&fault)?;
                frames.push(self.frame(path, dir)?);
            }
        }
        if entries != self.progress.files_total() {
            return Err(strange(b"."));
        }
        Ok((entries, files, bytes))
    }

    fn frame(&self, rel: Vec<u8>, dir: Dir) -> Outcome<Frame> {
        let mut names = self.pfs.list(&dir)?;
        names.sort_unstable();
        Ok(Frame { rel, dir, names: names.into_iter() })
    }

    fn make_version_link(&self, top: &Dir) -> Outcome<()> {
        let fault = Fault::target("make versioned name");
        let name = self.place.version_link();
        let _acting = self.pfs.act("symlink", &name).map_err(&fault)?;
        match rustix::fs::symlinkat(".", fd(top).map_err(&fault)?, &name[..]) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
            Err(e) => Err(fault(errno(e))),
        }
    }
}

impl Commit {
    /// Fails if a commit of which `found` files are found may have no more.
    pub(crate) fn room_for_one_more(&self, found: u64) -> Outcome<()> {
        if found < COMMIT_FILES_MAX {
            return Ok(());
        }
        let why = format!("a commit may have {COMMIT_FILES_MAX} files; commit parts of the tree");
        Err(Fault::of(Sort::Refused, Where::Source, "walk source", why))
    }
}

fn below(rel: &[u8], name: &[u8]) -> Vec<u8> {
    match rel {
        b"" => name.to_vec(),
        rel => [rel, b"/", name].concat(),
    }
}

fn line_of(path: &[u8], meta: &Meta) -> Line {
    let kind = match meta.kind {
        FileKind::File => "file",
        FileKind::Dir => "directory",
        FileKind::Symlink => "symlink",
        _ => "special",
    };
    let mode = format!("{:04o}", meta.mode);
    Line { path: PathBytes::new(path), kind, mode, size: None, crc32c: None, target: None }
}

/// Something in the new tree that the commit did not put there so.
fn strange(path: &[u8]) -> Fault {
    let path = String::from_utf8_lossy(path);
    let why = format!("{path} in the new tree is not what was copied; somebody wrote there");
    refused(Errno(0), WHAT, why)
}

fn put(out: &mut dyn Write, line: &impl Serialize) -> std::io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    out.write_all(&text)
}

/// CRC32C of a whole file.
fn crc_of(file: File) -> std::io::Result<u32> {
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
    let file = Arc::new(file);
    let mut reader = BufReader::new(&*file);
    let mut digest = Crc32c::new();
    let mut piece = [0; 64 << 10];
    loop {
        match reader.read(&mut piece)? {
            0 => return Ok(digest.value()),
            count => digest.update(&piece[..count]),
        }
    }
}
