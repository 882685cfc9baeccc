//! `forebay check`: verifies a buffer that no server uses.

use crate::args::CheckArgs;
use crate::failure::{EXIT_FAILED, EXIT_OK, Outcome, print_json};
use forebay_client::{canonical, mounts};
use forebay_proto::control::{ControlError, PathBytes};
use forebay_server::flash::{self, Store};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Runs the command.
pub fn run(args: CheckArgs) -> Outcome {
    let dir = store_of(&args)?;
    let store = Store::open(&dir).map_err(|error| match error.errno {
        Some(libc::EBUSY) => {
            error.hint("only a stopped buffer can be checked: `forebay umount --keep` it first")
        }
        _ => error,
    })?;
    let problems = forebay_server::check(&store);
    store.release()?;
    let problems = problems?;
    if args.json {
        print_json(&serde_json::json!({
            "store": PathBytes::new(dir.as_os_str().as_bytes()),
            "sound": problems.is_empty(),
            "problems": problems,
        }))?;
    } else {
        for problem in &problems {
            println!("{problem}");
        }
        match problems.len() {
            0 => println!("{}: sound", dir.display()),
            n => println!("{}: {n} problems", dir.display()),
        }
    }
    Ok(if problems.is_empty() { EXIT_OK } else { EXIT_FAILED })
}

/// The store's directory: given, or that of the mount point given.
fn store_of(args: &CheckArgs) -> Result<PathBuf, ControlError> {
    let target = canonical(&args.target)?;
    if target.join("store.json").is_file() {
        return Ok(target);
    }
    if let Some(mount) = mounts()?.into_iter().rev().find(|mount| mount.mount_point == target) {
        return Ok(mount.store_dir);
    }
    let flash = flash::resolve_flash(args.flash.as_deref())?;
    let dir = flash::store_dir(&flash, &target);
    if dir.is_dir() {
        return Ok(dir);
    }
    let why = format!("it is no store, and {} has none for it as a mount point", flash.display());
    Err(ControlError::new("check", Some(&target), &why)
        .errno(libc::ENOENT)
        .hint("`forebay status --flash DIR` lists the buffers kept there"))
}
