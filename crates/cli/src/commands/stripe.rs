//! `forebay stripe`: shows and sets layouts, by the xattrs `user.forebay.*` of the mount. So the
//! kernel decides who may, as for any change of the file.

use super::looking::{Looking, Work};
use crate::args::{PlacementArg, StripeArgs, StripeCommand, StripeCount, StripeSetArgs};
use crate::failure::{EXIT_OK, Outcome, print_json, visible};
use anyhow::bail;
use forebay_client::locate;
use forebay_proto::control::{ControlError, PathBytes};
use forebay_proto::layout::{LOG, STRICT, STRIPE_SIZE_MAX_BYTES, STRIPE_SIZE_UNIT_BYTES};
use forebay_proto::size::format_bytes;
use rustix::fs::{CWD, FileType, Mode, XattrFlags};
use rustix::io::Errno;
use serde::Serialize;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const PREFIX: &str = "user.forebay.";
/// Longest value read.
const VALUE_BYTES: usize = 4096;

/// A layout as it is shown.
#[derive(Serialize)]
struct Shown {
    path: PathBytes,
    /// "log" where each mount appends to a log of its own, else "plain".
    layout: String,
    /// Of that layout: "commit" or "strict".
    #[serde(skip_serializing_if = "Option::is_none")]
    consistency: Option<String>,
    /// Objects of a file; of a directory what new files get. A number, or "all".
    stripe_count: serde_json::Value,
    stripe_size_bytes: u64,
    /// Of a directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    placement: Option<String>,
    /// Parts of the buffer that a file has objects on, in their order; of a directory the one that
    /// it is on.
    shards: Vec<u16>,
    /// Servers of the buffer.
    server_count: u16,
}

/// Runs the command.
pub fn run(args: StripeArgs) -> Outcome {
    match args.command {
        Some(StripeCommand::Set(args)) => set(&args)?,
        None => return show_all(&args),
    }
    Ok(EXIT_OK)
}

/// As ls(1) does: what can be shown is shown, the rest is told of.
fn show_all(args: &StripeArgs) -> Outcome {
    let (mut shown, mut failed) = (Vec::new(), Vec::new());
    for path in &args.paths {
        match show(path) {
            Ok(one) => shown.push(one),
            Err(error) => failed.push(error),
        }
    }
    match args.json {
        true => shown.iter().try_for_each(print_json)?,
        false => shown.iter().for_each(print),
    }
    let Some(last) = failed.pop() else { return Ok(EXIT_OK) };
    for error in failed {
        eprintln!("forebay: {}", visible(&format!("{error:#}")));
    }
    Err(last)
}

fn get(path: &Path, name: &str) -> Result<Option<String>, Errno> {
    let mut value = vec![0; VALUE_BYTES];
    match rustix::fs::getxattr(path, format!("{PREFIX}{name}"), &mut value) {
        Ok(count) => {
            value.truncate(count);
            Ok(Some(String::from_utf8_lossy(&value).into_owned()))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn failed(what: &str, path: &Path, errno: Errno) -> ControlError {
    ControlError::io(what, Some(path), &errno.into())
}

fn show(path: &Path) -> anyhow::Result<Shown> {
    const WHAT: &str = "show the layout of";
    let _looking = Looking::at(path, Work::Other(WHAT));
    // What is no Forebay path gets the error that says so.
    locate(path)?;
    must_have_layouts(WHAT, path)?;
    let number = |name: &str| -> anyhow::Result<u64> {
        let value = get(path, name).map_err(|e| failed(WHAT, path, e))?;
        match value.as_deref().map(str::parse) {
            Some(Ok(number)) => Ok(number),
            _ => Err(ControlError::new(WHAT, Some(path), "only files and directories have one")
                .errno(libc::EINVAL)
                .into()),
        }
    };
    let text = |name: &str| get(path, name).map_err(|e| failed(WHAT, path, e));
    let server_count = number("server_count")? as u16;
    let count = text("stripe_count")?.unwrap_or_default();
    let servers = text("servers")?.unwrap_or_default();
    Ok(Shown {
        path: PathBytes::new(path.as_os_str().as_bytes()),
        layout: text("layout")?.unwrap_or_default(),
        consistency: text("consistency")?,
        stripe_count: count.parse::<u64>().map_or(count.into(), Into::into),
        stripe_size_bytes: number("stripe_size_bytes")?,
        placement: text("placement")?,
        shards: servers.split(',').filter_map(|server| server.parse().ok()).collect(),
        server_count,
    })
}

fn print(shown: &Shown) {
    let path = shown.path.to_string();
    let path = visible(&path);
    let servers: Vec<String> = shown.shards.iter().map(u16::to_string).collect();
    let on = format!("{} of {} servers", servers.join(","), shown.server_count);
    let size = format_bytes(shown.stripe_size_bytes);
    let logs = shown.layout == LOG;
    let strict = match shown.consistency.as_deref() == Some(STRICT) {
        true => ", consistency strict",
        false => "",
    };
    match (&shown.placement, &shown.stripe_count) {
        (Some(placement), count) => {
            let count = count.as_str().map_or_else(|| count.to_string(), String::from);
            let layout = if logs { format!("layout log{strict}, ") } else { String::new() };
            println!(
                "{path}  directory, new files: {layout}count {count}, size {size}, placement {placement}"
            );
        }
        (None, count) if count.as_u64() == Some(1) => println!("{path}  whole, on {on}"),
        (None, count) if logs => {
            println!(
                "{path}  in logs{strict}, brought together over {count}, size {size}, on {on}"
            );
        }
        (None, count) => println!("{path}  striped over {count}, size {size}, on {on}"),
    }
}

fn set(args: &StripeSetArgs) -> anyhow::Result<()> {
    let nothing = args.count.is_none() && args.size.is_none() && args.placement.is_none();
    if nothing && args.layout.is_none() && args.consistency.is_none() {
        bail!(
            ControlError::new("set the layout of", Some(&args.path), "nothing to set was given")
                .errno(libc::EINVAL)
                .hint("give --layout, --consistency, --count, --size or --placement")
        );
    }
    let looking = Looking::at(&args.path, Work::Other("set the layout of"));
    locate(&args.path)?;
    must_have_layouts("set the layout of", &args.path)?;
    let made = make_if_absent(&args.path)?;
    if let Err(error) = set_values(args) {
        if made && let Err(left) = std::fs::remove_file(&args.path) {
            tracing::warn!(path = %args.path.display(), error = %left, "an empty file is left behind");
        }
        return Err(error.into());
    }
    drop(looking);
    let shown = show(&args.path)?;
    match args.json {
        true => print_json(&shown),
        false => {
            print(&shown);
            Ok(())
        }
    }
}

/// An error for a path on a cache: its directories tell a policy of draining, those of a scratch buffer do not.
fn must_have_layouts(what: &str, path: &Path) -> Result<(), ControlError> {
    let here = path.symlink_metadata().is_ok_and(|meta| meta.is_dir());
    let parent = || path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let dir = if here { path } else { parent().unwrap_or(Path::new(".")) };
    // What cannot be asked gets its error from what follows.
    match get(dir, "drain").ok().flatten() {
        None => Ok(()),
        Some(_) => Err(ControlError::new(what, Some(path), "files of a cache have no layout")
            .errno(libc::EOPNOTSUPP)
            .hint("each is whole on one of the buffer's servers, by the turn of its name; striping is for scratch buffers")),
    }
}

/// True if it was not there and is an empty file now: without data, so its layout is open.
fn make_if_absent(path: &Path) -> Result<bool, ControlError> {
    let mode = Mode::from_raw_mode(0o666);
    match rustix::fs::mknodat(CWD, path, FileType::RegularFile, mode, 0) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(errno) => Err(failed("make the file", path, errno)),
    }
}

fn set_values(args: &StripeSetArgs) -> Result<(), ControlError> {
    let path = &args.path;
    let servers = get(path, "server_count").ok().flatten().unwrap_or_default();
    let put = |name: &str, value: String, range: &str| {
        let done = rustix::fs::setxattr(
            path,
            format!("{PREFIX}{name}"),
            value.as_bytes(),
            XattrFlags::empty(),
        );
        done.map_err(|errno| explained(path, errno, range))
    };
    if let Some(size) = args.size {
        let range = format!(
            "a stripe size is a multiple of {} up to {}",
            format_bytes(STRIPE_SIZE_UNIT_BYTES.into()),
            format_bytes(STRIPE_SIZE_MAX_BYTES.into())
        );
        // More than fits is out of range for whoever reads it.
        put("stripe_size_bytes", size.min(u32::MAX.into()).to_string(), &range)?;
    }
    if let Some(count) = args.count {
        let text = match count {
            StripeCount::All => "all".into(),
            StripeCount::Of(count) => count.to_string(),
        };
        let plural = if servers == "1" { "server" } else { "servers" };
        put("stripe_count", text, &format!("the buffer has {servers} {plural}"))?;
    }
    if let Some(layout) = args.layout {
        put("layout", layout.name().into(), "")?;
    }
    if let Some(consistency) = args.consistency {
        put("consistency", consistency.name().into(), "")?;
    }
    match args.placement.map(PlacementArg::placement) {
        Some(placement) => put("placement", placement.name().into(), ""),
        None => Ok(()),
    }
}

fn explained(path: &Path, errno: Errno, range: &str) -> ControlError {
    let error = failed("set the layout of", path, errno);
    let because = |why: &str, hint: &str| {
        ControlError::new("set the layout of", Some(path), why)
            .errno(errno.raw_os_error())
            .hint(hint)
    };
    match errno {
        Errno::RANGE => because(range, "give a value within that"),
        Errno::EXIST => because(
            "the file has data, so its layout is fixed",
            "make a new file with the layout and copy the data into it",
        ),
        Errno::OPNOTSUPP => because(
            "only files in logs have a consistency of their own; others see all that was written at once",
            "give --layout log too (a buffer of one server has no such files)",
        ),
        Errno::BUSY => because("a program has the file open", "set it before the file is opened"),
        Errno::NOTDIR => because(
            "only directories have a placement: where a file is was decided when it was made",
            "set it on the directory, for new files",
        ),
        _ => error,
    }
}
