//! `forebay check`: verifies a buffer that no server uses.
//!
//! A damaged database can make the reader crash (`in_child`). So a child process verifies, and its death is a finding
//! like any other.

use super::in_child::{self, Child};
use crate::args::CheckArgs;
use crate::failure::{EXIT_FAILED, EXIT_OK, Outcome, print_json, visible};
use crate::site;
use forebay_client::{canonical, mounts_at};
use forebay_proto::control::{ControlError, PathBytes};
use forebay_store::flash::{self, Store, StoreKey};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// Runs the command.
pub fn run(args: CheckArgs) -> Outcome {
    let dir = store_of(&args)?;
    // What cannot be read is told by the verification.
    let key = flash::load_record(&dir).ok().flatten().map(|record| record.key);
    let problems = match in_child::run("the check", || verify(&dir))? {
        Child::Ended(found) => found?,
        Child::Died(status) => {
            give_back(&dir)?;
            vec![died_text(status)]
        }
    };
    if args.json {
        print_json(&serde_json::json!({
            "store": PathBytes::new(dir.as_os_str().as_bytes()),
            "mount_point": key.as_ref().and_then(StoreKey::mount_point)
                .map(|point| PathBytes::new(point.as_os_str().as_bytes())),
            "buffer": key.as_ref().and_then(StoreKey::buffer),
            "sound": problems.is_empty(),
            "problems": problems,
        }))?;
    } else {
        for problem in &problems {
            println!("{}", visible(problem));
        }
        let count = match problems.len() {
            0 => "sound".to_string(),
            1 => "1 problem".to_string(),
            n => format!("{n} problems"),
        };
        let whose = key.map(|key| format!(", store of {key}")).unwrap_or_default();
        println!("{}: {count}", visible(&format!("{}{whose}", dir.display())));
    }
    Ok(if problems.is_empty() { EXIT_OK } else { EXIT_FAILED })
}

/// Takes the store, verifies it, gives it back.
fn verify(dir: &Path) -> Result<Vec<String>, ControlError> {
    let store = Store::open(dir).map_err(|error| match error.errno {
        Some(libc::EBUSY) => error.hint(
            "only a stopped buffer can be checked: `forebay umount --keep` it, or end the \
                 `forebay serve` that serves it",
        ),
        _ => error,
    })?;
    let problems = forebay_server::check(&store);
    store.release()?;
    problems
}

/// What a dead child held: an image stays mounted.
fn give_back(dir: &Path) -> Result<(), ControlError> {
    Store::open(dir)?.release()
}

fn died_text(status: ExitStatus) -> String {
    format!("the namespace database is damaged: reading it ended the check ({status})")
}

/// The store's directory: given, or that of the mount point given.
fn store_of(args: &CheckArgs) -> Result<PathBuf, ControlError> {
    let target = canonical(&args.target)?;
    // Before anything is looked at through the mount, which may not answer.
    if let Some(mount) = mounts_at(|point| point == target)?.pop() {
        return Ok(mount.store_dir);
    }
    if target.join("store.json").is_file() {
        return Ok(target);
    }
    let is_store = target.file_name().is_some_and(|name| name.as_bytes().starts_with(b"forebay-"));
    if target.is_dir() && is_store {
        return Err(ControlError::new("check", Some(&target), "it has no store.json")
            .errno(libc::ENOENT)
            .hint("it is no store, or what is left of one"));
    }
    let flash = site::flash(args.flash.as_deref())
        .and_then(|flash| flash::resolve_flash(flash.as_deref()))
        .map_err(|error| {
            let why = "it is no store; to check the one of a mount point, its FLASH must be known";
            match args.flash {
                Some(_) => error,
                None => ControlError::new("check", Some(&target), why)
                    .errno(libc::ENOENT)
                    .hint("name it with --flash"),
            }
        })?;
    let dir = flash::store_dir(&flash, &StoreKey::mount(&target));
    if dir.is_dir() {
        return Ok(dir);
    }
    let why = format!("it is no store, and {} has none for it as a mount point", flash.display());
    Err(ControlError::new("check", Some(&target), &why)
        .errno(libc::ENOENT)
        .hint("`forebay status --flash DIR` lists the buffers kept there"))
}
