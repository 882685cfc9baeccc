//! `forebay publish`: all nodes see what was written to files, and files become read-only for good. By the xattr
//! `user.forebay.publish` of the mount, so the kernel decides who may, as for any change of the file.

use super::looking::{Looking, Work};
use crate::args::PublishArgs;
use crate::failure::{EXIT_OK, Outcome, print_json, visible};
use forebay_client::locate;
use forebay_proto::control::{ControlError, PathBytes};
use serde::Serialize;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const WHAT: &str = "publish";

/// A file that was published.
#[derive(Serialize)]
struct Published<'a> {
    path: PathBytes,
    /// "final" if nobody writes it any more, else "open".
    publish: &'a str,
}

/// As ls(1) does: what can be published is, the rest is told of.
pub fn run(args: PublishArgs) -> Outcome {
    let mut failed: Vec<anyhow::Error> = Vec::new();
    for path in &args.paths {
        let _looking = Looking::at(path, Work::Other(WHAT));
        match locate(path) {
            Ok(_) => each_file(path, &mut |file| match publish(file, args.is_final) {
                Ok(()) => tell(file, &args).unwrap_or_else(|error| failed.push(error)),
                Err(error) => failed.push(error.into()),
            }),
            Err(error) => failed.push(error.into()),
        }
    }
    let Some(last) = failed.pop() else { return Ok(EXIT_OK) };
    for error in failed {
        eprintln!("forebay: {}", visible(&format!("{error:#}")));
    }
    Err(last)
}

fn tell(path: &Path, args: &PublishArgs) -> anyhow::Result<()> {
    let publish = if args.is_final { "final" } else { "open" };
    if args.json {
        return print_json(&Published {
            path: PathBytes::new(path.as_os_str().as_bytes()),
            publish,
        });
    }
    let path = path.display().to_string();
    match args.is_final {
        true => println!("{}: published, and nobody writes it any more", visible(&path)),
        false => println!("{}: published", visible(&path)),
    }
    Ok(())
}

/// The file, or all regular files below a directory. Links are not followed below it.
fn each_file(path: &Path, each: &mut dyn FnMut(&Path)) {
    let mut left: Vec<PathBuf> = vec![path.to_path_buf()];
    let mut is_first = true;
    while let Some(path) = left.pop() {
        let is_dir = match std::mem::take(&mut is_first) {
            true => path.is_dir(),
            false => path.symlink_metadata().is_ok_and(|meta| meta.is_dir()),
        };
        if !is_dir {
            each(&path);
            continue;
        }
        match std::fs::read_dir(&path) {
            Ok(entries) => {
                let mut below: Vec<PathBuf> = entries
                    .flatten()
                    .filter(|entry| {
                        entry.file_type().is_ok_and(|kind| kind.is_dir() || kind.is_file())
                    })
                    .map(|entry| entry.path())
                    .collect();
                below.sort_unstable_by(|a, b| b.cmp(a));
                left.append(&mut below);
            }
            // Its error comes from the attempt itself.
            Err(_) => each(&path),
        }
    }
}

fn publish(path: &Path, is_final: bool) -> Result<(), ControlError> {
    forebay_client::publish(path, is_final).map_err(|error| {
        let error = ControlError::io(WHAT, Some(path), &error);
        let because = |why: &str, hint: &str| {
            ControlError { why: why.into(), ..error.clone() }.hint(hint)
        };
        match error.errno {
            Some(libc::EACCES) => because("you may not write it", "who may write the file publishes it"),
            Some(libc::EPERM) if is_final => {
                because("it is another user's", "its owner makes a file final")
            }
            Some(libc::EOPNOTSUPP) => because(
                "files of a cache are never final",
                "`forebay wait` waits until the PFS has it; chmod makes it read-only",
            ),
            Some(libc::EBUSY) => because(
                "a program has it open and may write it without asking; only files in logs become final then",
                "close it, then publish it again",
            ),
            Some(libc::ETIMEDOUT) => because(
                "a node that has it open for writing did not answer",
                "`forebay buffer status NAME --server ADDR` shows mounts and servers; try again",
            ),
            _ => error,
        }
    })
}
