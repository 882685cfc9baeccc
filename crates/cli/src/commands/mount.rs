//! `forebay mount`: finds or creates the buffer, mounts it, and returns when it answers.

use super::cache;
use super::paths::{absolute, must_not_hide, must_not_show};
use crate::args::{MountArgs, StoreChoice};
use crate::daemon::{self, BackingPlan, MountPlan, Reporter};
use crate::failure::{EXIT_OK, Outcome, Usage, visible};
use crate::mount_options::{self, MountOptionSet};
use crate::{secrets, servers, site, state_dir};
use forebay_client::remote::Target;
use forebay_client::{Control, canonical, mounts_at};
use forebay_fuse::Limits;
use forebay_net::ServerAddress;
use forebay_proto::control::{ControlError, StoreKind};
use forebay_store::flash::{self, StoreKey, StoreOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Attempts to reach the server of a mount that is there already.
const CONNECT_TRIES: u32 = 50;
/// Pause between two of them.
const CONNECT_PAUSE: Duration = Duration::from_millis(20);

/// Runs the command.
pub fn run(args: MountArgs) -> Outcome {
    let mut options = MountOptionSet::default();
    for list in &args.options {
        mount_options::add(&mut options, list, &[], false)?;
    }
    if options.remount {
        let what = "this command makes mounts and changes none: `mount -o remount,... MNT` does, for ro, nosuid, nodev, noexec and \
                    nosymfollow; for other options unmount the buffer (`forebay umount --keep`), and mount it again with them";
        return Err(Usage(what.into()).into());
    }
    mount(args, options)
}

/// Mounts with options that were parsed already.
pub fn mount(args: MountArgs, mut options: MountOptionSet) -> Outcome {
    if args.scratch.is_none() && args.buffer.is_none() && args.cached.cache.is_none() {
        let what = "say what to mount: --scratch CAPACITY, --cache PFSDIR or --buffer NAME";
        return Err(Usage(what.into()).into());
    }
    let mount_point = canonical(&args.mount_point)?;
    // A mount made by root is for all users, with the permissions of its files.
    options.allow_other |= rustix::process::geteuid().is_root();
    let (backing, own_dir) = backing(&args, &mount_point, options.allow_other)?;
    let log_file = args.log_file.as_deref().map(absolute).transpose()?;
    if let Some(log_file) = &log_file {
        must_not_hide("the log file", log_file, &mount_point)?;
    }
    clear_dead_mounts(&own_dir, &mount_point)?;
    check_directory(&mount_point)?;
    let plan = MountPlan {
        backing,
        mount_point,
        options,
        threads: args.threads.map(usize::from),
        fast_path: !args.no_fast_path && args.max_file_size.is_none(),
        limits: Limits { file_bytes: args.max_file_size, files: args.max_files_created },
        http: args.http,
        log_file,
        log_level: args.log_level,
        foreground: args.foreground,
    };
    args.cpu.apply();
    let serve = move |report: Reporter| -> Outcome {
        let failed = report.another()?;
        match daemon::serve(plan, report) {
            Ok(()) => Ok(EXIT_OK),
            Err(error) => {
                failed.failed(&error);
                Err(error.into())
            }
        }
    };
    match args.foreground {
        true => serve(Reporter::Terminal { json: args.json }),
        false => daemon::run_in_background(args.json, serve),
    }
}

/// What is to be mounted, and the directory that the mount will have.
fn backing(
    args: &MountArgs,
    mount_point: &Path,
    shared: bool,
) -> anyhow::Result<(BackingPlan, PathBuf)> {
    if let Some(name) = &args.buffer {
        let address = servers::address(&args.at)?;
        let unix = matches!(address, ServerAddress::Unix(_));
        let secret_file = args.at.secret_file.as_deref();
        let credential = secrets::credential(unix, secret_file, Some(name))?;
        // Other servers of the buffer may be on other nodes, where the kernel tells nothing.
        let over_tcp = match unix {
            true => secrets::credential(false, secret_file, Some(name)).ok().map(Box::new),
            false => None,
        };
        let target = Target {
            address,
            credential,
            over_tcp,
            buffer: name.to_string(),
            by_given_address: args.no_fast_path,
            is_told: false,
            activity: std::sync::Arc::default(),
            patience: Duration::from_secs(args.patience.into()),
        };
        return Ok((BackingPlan::Served(target), state_dir::of(mount_point)));
    }
    let cache = cache::options(&args.cached, mount_point)?;
    let Some(capacity_bytes) = cache.as_ref().map(|(_, bytes)| *bytes).or(args.scratch) else {
        let what = "what to mount? Give --scratch CAPACITY, --cache PFSDIR or --buffer NAME";
        return Err(Usage(what.into()).into());
    };
    let flash = flash::resolve_flash(site::flash(args.flash.as_deref())?.as_deref())?;
    must_not_hide("FLASH", &flash, mount_point)?;
    if let Some((cache, _)) = &cache {
        must_not_show(&cache.pfs, &flash)?;
    }
    let key = StoreKey::mount(mount_point);
    let own_dir = flash::store_dir(&flash, &key);
    let kind = args.store.map(Into::into);
    let options = StoreOptions { flash, key, capacity_bytes, kind, shared };
    let plan = match cache {
        Some((cache, _)) => BackingPlan::Cache(options, cache),
        None => BackingPlan::Own(options),
    };
    Ok((plan, own_dir))
}

impl From<StoreChoice> for StoreKind {
    fn from(choice: StoreChoice) -> StoreKind {
        match choice {
            StoreChoice::Tmpfs => StoreKind::Tmpfs,
            StoreChoice::Image => StoreKind::LoopXfs,
            StoreChoice::Directory => StoreKind::Directory,
        }
    }
}

fn check_directory(mount_point: &Path) -> Result<(), ControlError> {
    let what = "mount on";
    let meta = std::fs::metadata(mount_point).map_err(|error| {
        let failed = ControlError::io(what, Some(mount_point), &error);
        match error.kind() {
            std::io::ErrorKind::NotFound => failed.hint("make the directory first"),
            _ => failed,
        }
    })?;
    if !meta.is_dir() {
        return Err(
            ControlError::new(what, Some(mount_point), "not a directory").errno(libc::ENOTDIR)
        );
    }
    Ok(())
}

/// Asks the server of a store whether it lives. One that was just killed may take a connection
/// and drop it while the kernel still ends its threads: that is no answer, so it is asked again.
fn connect(store_dir: &Path) -> Result<Control, ControlError> {
    let mut tries = 0;
    loop {
        tries += 1;
        match Control::connect_store(store_dir) {
            Err(error) if tries < CONNECT_TRIES && !tells_state(error.errno) => {
                std::thread::sleep(CONNECT_PAUSE);
            }
            answer => return answer,
        }
    }
}

/// Whether a failed connection says something about the server: dead, or not ours.
fn tells_state(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::ENOTCONN | libc::EACCES | libc::ETIMEDOUT))
}

/// Detaches what a dead server of this same buffer left; refuses a live mount, and a dead one
/// of another buffer.
fn clear_dead_mounts(own_dir: &Path, mount_point: &Path) -> Result<(), ControlError> {
    for mount in mounts_at(|point| point == mount_point)? {
        let refuse = |why: &str, errno: i32, hint: &str| {
            Err(ControlError::new("mount on", Some(mount_point), why).errno(errno).hint(hint))
        };
        match connect(&mount.store_dir) {
            Err(error) if error.errno == Some(libc::ENOTCONN) => (),
            Err(error) if error.errno == Some(libc::EACCES) => {
                return refuse(
                    "another user's buffer is mounted there",
                    libc::EBUSY,
                    "mount elsewhere",
                );
            }
            // Stopped, or stuck: its own words say what to do.
            Err(error) if error.errno == Some(libc::ETIMEDOUT) => return Err(error),
            Ok(_) | Err(_) => {
                return refuse(
                    "a buffer is mounted there already",
                    libc::EBUSY,
                    "`forebay status` tells which; `forebay umount` waits for its plans and ends it",
                );
            }
        }
        if mount.store_dir != own_dir {
            let why = format!("a dead mount of {} is there", mount.store_dir.display());
            let hint =
                "`forebay umount --keep` detaches it and keeps its buffer, with every file in it";
            return refuse(&why, libc::EBUSY, hint);
        }
        forebay_fuse::unmount(mount_point, true).map_err(|error| {
            ControlError::new("detach the dead mount at", Some(mount_point), &error.to_string())
        })?;
        let point = mount_point.display().to_string();
        eprintln!("forebay: {}: detached the mount of a dead server", visible(&point));
    }
    Ok(())
}
