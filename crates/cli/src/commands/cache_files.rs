//! Commands that a cache is asked about each file of a tree: `forebay warm`, `pin`, `invalidate`.
//!
//! Invariant: all files are tried; the first error is the command's, others are told as they come.

use super::cache::{bytes, connect, locate, progress};
use super::cached::Cached;
use crate::args::{CachePathsArgs, CachePinArgs, ServerArgs};
use crate::failure::{EXIT_OK, Outcome, print_json, visible};
use forebay_proto::cache::{CacheRequest, CachedFile};
use forebay_proto::control::{ControlError, PathBytes};
use forebay_proto::size::{entries_text, files_text, format_bytes};
use std::path::{Path, PathBuf};

/// The files that a path stands for. What below it cannot be looked at is one failure, and the others go on.
fn files_of(path: &Path, failures: &mut Failures) -> anyhow::Result<Vec<PathBuf>> {
    let meta = std::fs::symlink_metadata(path)
        .map_err(|error| ControlError::io("look at", Some(path), &error))?;
    let mut files = Vec::new();
    if meta.is_file() {
        files.push(path.to_path_buf());
    }
    if meta.is_dir() {
        add_files_below(path, &mut files, failures)
            .map_err(|error| ControlError::io("list", Some(path), &error))?;
    }
    Ok(files)
}

fn add_files_below(
    dir: &Path,
    files: &mut Vec<PathBuf>,
    failures: &mut Failures,
) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        let added = entry.file_type().and_then(|kind| {
            if kind.is_dir() {
                return add_files_below(&path, files, failures);
            }
            if kind.is_file() {
                // Its path may be longer than a system call takes.
                std::fs::symlink_metadata(&path)?;
                files.push(path.clone());
            }
            Ok(())
        });
        match added {
            // Removed since.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => failures.add(ControlError::io("look at", Some(&path), &error)),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Who is asked about a path, and the files that it stands for; `what` is done with them.
fn asked(
    path: &Path,
    at: &ServerArgs,
    what: &'static str,
    failures: &mut Failures,
) -> anyhow::Result<(Cached, Vec<PathBytes>)> {
    let (mut cached, top) = connect(path, at, what)?;
    let mut files = Vec::new();
    match &mut cached {
        Cached::Mounted(..) => {
            for file in files_of(path, failures)? {
                match locate(&file) {
                    Ok(found) => files.push(found.path_in_buffer),
                    Err(error) => failures.add(error),
                }
            }
        }
        Cached::Served(..) => files = cached.files_below(&top)?,
    }
    Ok((cached, files.iter().map(|file| bytes(file)).collect()))
}

/// The first error is kept, others are told.
#[derive(Default)]
struct Failures(Option<ControlError>);

impl Failures {
    fn add(&mut self, error: ControlError) {
        if self.0.is_some() {
            eprintln!("forebay: {}", visible(&error.to_string()));
        }
        self.0.get_or_insert(error);
    }

    fn end(self) -> Outcome {
        self.0.map_or(Ok(EXIT_OK), |error| Err(error.into()))
    }
}

/// Asks about each file.
fn each(
    paths: &[PathBuf],
    at: &ServerArgs,
    json: bool,
    what: &'static str,
    request: impl Fn(PathBytes) -> CacheRequest,
) -> Outcome {
    let mut failures = Failures::default();
    for path in paths {
        let (mut cached, files) = asked(path, at, what, &mut failures)?;
        for file in files {
            match cached.file(request(file)) {
                Ok(state) if json => print_json(&state)?,
                Ok(_) => {}
                Err(error) => failures.add(error),
            }
        }
    }
    failures.end()
}

/// `forebay warm`.
pub fn warm(args: CachePathsArgs) -> Outcome {
    let mut failures = Failures::default();
    let (mut files, mut bytes_here) = (0u64, 0);
    for path in &args.paths {
        let (mut cached, names) = asked(path, &args.at, "warm", &mut failures)?;
        let bar = progress(names.len() as u64, "{bar:30} {pos}/{len} files {wide_msg}", args.json);
        let mut fetched: Vec<CachedFile> = Vec::with_capacity(names.len());
        for name in names {
            match cached.file(CacheRequest::Warm { path: name }) {
                Ok(state) => {
                    if args.json {
                        print_json(&state)?;
                    }
                    bytes_here += state.cached_bytes;
                    fetched.push(state);
                }
                Err(error) => bar.suspend(|| failures.add(error)),
            }
            bar.inc(1);
            bar.set_message(format_bytes(bytes_here));
        }
        bar.finish_and_clear();
        files += fetched.len() as u64;
        if let Some(error) = no_longer_here(&mut cached, path, &fetched) {
            failures.add(error);
        }
    }
    if failures.0.is_none() && !args.json {
        println!("{} on flash", entries_text(files, bytes_here, 0));
    }
    failures.end()
}

/// What was fetched may have made room for what was fetched after it.
fn no_longer_here(
    cached: &mut Cached,
    path: &Path,
    fetched: &[CachedFile],
) -> Option<ControlError> {
    let (mut files, mut bytes) = (0, 0);
    for file in fetched {
        // One that cannot be asked for is another's to change now.
        let Ok(tree) = cached.tree(CacheRequest::State { path: file.path.clone() }) else {
            continue;
        };
        let here_bytes = tree.file.map_or(0, |now| now.cached_bytes);
        if here_bytes < file.cached_bytes && tree.files == 0 {
            files += 1;
            bytes += file.cached_bytes - here_bytes;
        }
    }
    let why = format!(
        "not all of it fits: of {files} of {} {} had to go again",
        files_text(fetched.len() as u64),
        format_bytes(bytes)
    );
    let hint = "warm less, or use a cache with more --capacity";
    (files > 0).then(|| ControlError::new("warm", Some(path), &why).errno(libc::ENOSPC).hint(hint))
}

/// `forebay pin`.
pub fn pin(args: CachePinArgs) -> Outcome {
    let on = !args.off;
    let what = if on { "pin" } else { "unpin" };
    each(&args.paths, &args.at, args.json, what, |path| CacheRequest::Pin { path, on })
}

/// `forebay invalidate`.
pub fn invalidate(args: CachePathsArgs) -> Outcome {
    each(&args.paths, &args.at, args.json, "invalidate", |path| CacheRequest::Invalidate { path })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags};

    #[test]
    fn what_is_too_deep_to_be_named_is_one_failure_and_the_others_are_found() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "z"] {
            std::fs::write(dir.path().join(name), b"data").unwrap();
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut at = rustix::fs::open(dir.path(), flags, Mode::empty()).unwrap();
        for _ in 0..120 {
            let name = "deep".repeat(10);
            rustix::fs::mkdirat(&at, &name, Mode::from_raw_mode(0o700)).unwrap();
            at = rustix::fs::openat(&at, &name, flags, Mode::empty()).unwrap();
        }
        let made = OFlags::CREATE | OFlags::WRONLY;
        rustix::fs::openat(&at, "file", made, Mode::from_raw_mode(0o600)).unwrap();
        let mut failures = Failures::default();
        let mut files = files_of(dir.path(), &mut failures).unwrap();
        files.sort();
        assert_eq!(files, ["a", "z"].map(|name| dir.path().join(name)));
        assert_eq!(failures.0.and_then(|error| error.errno), Some(libc::ENAMETOOLONG));
    }
}
