//! What is asked of a cache: `forebay flush`, `wait`, `warm`, `pin`, `invalidate`, `resolve`,
//! `drain-rate`, and its part of `status` and `mount`; `umount_drain` is that of `umount`.
//!
//! Invariant: success is told only for what the server said is so: `wait` and an unmount end with 0
//! only when nothing below the path is left that the PFS does not have.

use super::cached::Cached;
use super::looking::{Looking, Work};
use super::paths::{absolute, must_not_hide};
use super::plan_text::verified_text;
use super::umount_drain;
use super::umount_who::Who;
use crate::args::{
    CacheArgs, CachePathArgs, CacheRateArgs, CacheResolveArgs, CacheWaitArgs, ServerArgs, WritesArg,
};
use crate::failure::{EXIT_OK, Outcome, print_json, visible};
use crate::state_dir;
use forebay_cache::CacheOptions;
use forebay_client::{
    Control, MountRef, WaitFor, Waited, cache_wait, canonical, mounts, server_process,
};
use forebay_proto::Errno;
use forebay_proto::cache::{CacheRequest, CacheStatus, CachedFile, TreeState};
use forebay_proto::control::{ControlError, PathBytes, Verify};
use forebay_proto::size::{entries_text, files_text, format_bytes};
use indicatif::{ProgressBar, ProgressStyle};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Problems that are printed.
pub(super) const SHOWN_MAX: usize = 10;

/// The cache that a mount command asks for, and its capacity.
pub fn options(
    args: &CacheArgs,
    mount_point: &Path,
) -> Result<Option<(CacheOptions, u64)>, ControlError> {
    let (Some(pfs), Some(capacity_bytes)) = (&args.cache, args.capacity) else { return Ok(None) };
    let pfs = canonical(pfs)?;
    must_not_hide("the PFS directory", &pfs, mount_point)?;
    if mount_point.starts_with(&pfs) {
        let why = format!("it lies below {}, which it would show", pfs.display());
        return Err(ControlError::new("mount on", Some(mount_point), &why)
            .errno(libc::ELOOP)
            .hint("mount it outside of the PFS directory"));
    }
    let options = CacheOptions {
        pfs,
        ttl: Duration::from_secs_f64(args.how.pfs_ttl),
        writes_by_kernel: args.how.writes == WritesArg::Auto,
        policy: args.how.drain,
        verify: args.how.verify.into(),
        rate_bytes_per_s: args.how.drain_rate.unwrap_or(0),
        served: None,
    };
    Ok(Some((options, capacity_bytes)))
}

/// Who is asked about a path, and the path in the buffer; `what` is to be done with it.
pub(super) fn connect(
    path: &Path,
    at: &ServerArgs,
    what: &'static str,
) -> anyhow::Result<(Cached, PathBuf)> {
    let (cached, path, _) = connect_until(path, at, what, None)?;
    Ok((cached, path))
}

/// The same for who has no time after `until`, with the mount that is asked, if it is one.
fn connect_until(
    path: &Path,
    at: &ServerArgs,
    what: &'static str,
    until: Option<Instant>,
) -> anyhow::Result<(Cached, PathBuf, Option<MountRef>)> {
    if let Some((cached, path)) = Cached::named(path, at)? {
        return Ok((cached, path, None));
    }
    let looking = Looking::at(path, Work::Other(what));
    let found = locate(path)?;
    let mut control = Control::connect_store_until(&found.store_dir, until)?;
    if until.is_some() {
        control.set_limit(until);
    }
    let path = found.path_in_buffer.clone();
    Ok((Cached::Mounted(Box::new(control), looking), path, Some(found)))
}

/// The buffer of a path. If the PFS behind it does not answer, the path is taken as it is
/// written: the cache can tell what it has all the same.
pub fn locate(path: &Path) -> Result<MountRef, ControlError> {
    let failed = match forebay_client::locate(path) {
        Err(error) if !matches!(error.errno, None | Some(libc::ENOENT | libc::EACCES)) => error,
        other => return other,
    };
    let path = absolute(path)?;
    for mut mount in mounts()?.into_iter().rev() {
        if let Ok(rest) = path.strip_prefix(&mount.mount_point) {
            mount.path_in_buffer = Path::new("/").join(rest);
            return Ok(mount);
        }
    }
    Err(failed)
}

pub(super) fn bytes(path: &Path) -> PathBytes {
    PathBytes::new(path.as_os_str().as_bytes())
}

/// `forebay flush`.
pub fn flush(args: CachePathArgs) -> Outcome {
    let (mut cached, path) = connect(&args.path, &args.at, "flush")?;
    let state = cached.tree(CacheRequest::Flush { path: bytes(&path) })?;
    match args.json {
        true => print_json(&state)?,
        false => println!("{}", summary(&state)),
    }
    if has_lost(&state) {
        // All else may drain yet; this never will.
        done(&state, &args.path, "flush")?;
    }
    Ok(EXIT_OK)
}

/// `forebay wait`.
pub fn wait(args: CacheWaitArgs) -> Outcome {
    let timeout = args.timeout.map(Duration::from_secs);
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let (mut cached, path, mount) = connect_until(&args.path, &args.at, "drain", until)?;
    let served = mount.filter(|mount| state_dir::record(&mount.store_dir).is_some());
    let point = served.as_ref().map(|mount| mount.mount_point.clone());
    let silent = served.map(|mount| (Who::silent(&mount.store_dir, until), mount));
    let what = (WaitFor::WrittenBefore, !args.no_flush);
    let mut newest = None;
    let waited = drain_noting(&mut cached, &path, timeout, what, args.json, &mut newest);
    let waited = waited.or_else(|error| match is_late(&error, until) && cached.gave_up() {
        true => without_the_last_answer(error, &args.path, silent, newest),
        false => Err(with_what_goes_on(error, &args.path, point.as_deref())),
    })?;
    let state = &waited.state;
    if args.json {
        print_json(state)?;
    }
    if !waited.is_done {
        done(state, &args.path, "wait for")?;
    } else if !state.is_durable() && !args.json {
        let are = if state.files == 1 { "is" } else { "are" };
        println!(
            "all that was written before is on the PFS; {} {are} still open or written",
            files_text(state.files)
        );
    }
    Ok(EXIT_OK)
}

/// The error of a wait; of a server that does not run with the mount that is asked by (`point`), and what is to be done.
fn with_what_goes_on(error: ControlError, path: &Path, point: Option<&Path>) -> ControlError {
    let Some(point) = point.filter(|_| umount_drain::is_of_dead_server(&error)) else {
        return error;
    };
    let why = format!("whether it is drained is not known: {error}");
    let hint = format!(
        "start the server again (`forebay serve`): the mount {} goes on by itself, and so does the drain; then wait again",
        point.display()
    );
    ControlError::new("wait for", Some(path), &why)
        .errno(error.errno.unwrap_or(libc::EIO))
        .hint(&hint)
}

/// How a wait ended whose time is over, and whose last look has no answer: by a server that is silent, which is named; else what
/// the look before told is what is known.
fn without_the_last_answer(
    error: ControlError,
    path: &Path,
    silent: Option<(Who, MountRef)>,
    newest: Option<(TreeState, Instant)>,
) -> Result<Waited, ControlError> {
    let server = silent.and_then(|(who, mount)| umount_drain::who_is_silent(None, &who, &mount));
    match (server, newest) {
        (Some(server), _) => {
            Err(ControlError::new("wait for", Some(path), &umount_drain::waits_for(&server))
                .errno(libc::ETIMEDOUT)
                .hint(
                    "without --timeout this command waits for that; the rest drains by itself then",
                ))
        }
        (None, Some((state, at))) => {
            let silent = at.elapsed().as_secs_f64();
            eprintln!("forebay: no answer for {silent:.1} s; what was told before that:");
            Ok(Waited { is_done: false, state })
        }
        (None, None) => Err(error),
    }
}

/// Waits for that (`true`: draining now), until nothing moves any more, or the time is over. A server that is stopped is waited for.
pub fn drain(
    cached: &mut Cached,
    path: &Path,
    timeout: Option<Duration>,
    what: (WaitFor, bool),
    quiet: bool,
) -> Result<Waited, ControlError> {
    drain_noting(cached, path, timeout, what, quiet, &mut None)
}

/// The same; `newest` is what was told last, and when.
fn drain_noting(
    cached: &mut Cached,
    path: &Path,
    timeout: Option<Duration>,
    what: (WaitFor, bool),
    quiet: bool,
    newest: &mut Option<(TreeState, Instant)>,
) -> Result<Waited, ControlError> {
    let start = Instant::now();
    let until = timeout.and_then(|timeout| start.checked_add(timeout));
    let style = "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta} {wide_msg}";
    let bar = progress(u64::MAX, style, quiet);
    let mut first = None;
    let waited = cache_wait(
        |request| cached.tree_patiently(request, until),
        &bytes(path),
        what,
        |state| {
            let first = *first.get_or_insert(state.drained_bytes);
            // Less than at first when data that was drained is lost meanwhile.
            let drained = state.drained_bytes.saturating_sub(first);
            bar.set_length(drained + state.dirty_bytes);
            bar.set_position(drained);
            bar.set_message(summary(state));
            *newest = Some((state.clone(), Instant::now()));
            timeout.is_none_or(|timeout| start.elapsed() < timeout)
        },
    );
    bar.finish_and_clear();
    waited
}

/// Whether an answer did not come within the time of a command, of a process that is not stopped.
fn is_late(error: &ControlError, until: Option<Instant>) -> bool {
    let is_over = until.is_some_and(|until| Instant::now() >= until);
    let is_stopped = error.why.contains(server_process::ARE_STOPPED);
    is_over && error.errno == Some(libc::ETIMEDOUT) && !is_stopped
}

pub(super) fn progress(length: u64, style: &str, quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(length);
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}

/// An error that says what is left, if something is.
pub fn done(state: &TreeState, path: &Path, what: &str) -> Result<(), ControlError> {
    if state.is_durable() {
        return Ok(());
    }
    for problem in state.problems.iter().take(SHOWN_MAX) {
        eprintln!("forebay: {}", visible(&describe_problem(problem)));
    }
    let hint = match (state.conflicts, state.failed) {
        _ if has_lost(state) => {
            "`forebay resolve --keep theirs PATH` continues with what the PFS has of a lost file"
        }
        (1.., _) => "`forebay resolve --keep ours|theirs|both PATH` decides a conflict",
        (_, 1..) => "what failed is tried again by itself; `forebay status PATH` tells the errors",
        _ if state.pfs_error.is_some() => "it goes on by itself when the PFS answers",
        _ if state.busy > 0 => {
            "what a program has written and still has open (for reading, too) may change at any moment: it counts as on the PFS when it is closed"
        }
        _ => "wait longer: it drains by itself",
    };
    Err(ControlError::new(what, Some(path), &summary(state)).errno(state.errno()).hint(hint))
}

/// Something can never drain.
fn has_lost(state: &TreeState) -> bool {
    state.problems.iter().any(|problem| problem.grade == "lost")
}

fn describe_problem(file: &CachedFile) -> String {
    match &file.error {
        Some(error) if file.grade == "lost" => format!("{}: failed: {}", file.path, error.what),
        Some(error) if file.state == "conflict" => {
            format!("{}: conflict: {}", file.path, error.what)
        }
        Some(error) => format!(
            "{}: {}: {} (tried {} times)",
            file.path,
            error.what,
            Errno(error.errno),
            error.tries
        ),
        None => format!("{}: {}", file.path, file.state),
    }
}

fn summary(state: &TreeState) -> String {
    if state.is_durable() {
        return "all on the PFS".into();
    }
    let mut parts =
        vec![format!("{} not on the PFS", entries_text(state.files, state.dirty_bytes, 0))];
    for (count, what) in [
        (state.draining, "draining"),
        (state.busy, "still open"),
        (state.failed, "failed"),
        (state.conflicts, "in conflict"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    if let Some(error) = &state.pfs_error {
        parts.push(format!("the PFS cannot be used: {error}"));
    }
    parts.join(", ") + &pace(state).collect::<String>()
}

/// How fast it drains and how long that will take, each behind a comma, as far as it is known.
fn pace(state: &TreeState) -> impl Iterator<Item = String> {
    let rate = state.rate_bytes_per_s;
    let rate = (rate > 0.0).then(|| format!(", {}/s", format_bytes(rate as u64)));
    let eta = state.eta_s.map(|eta| format!(", {eta:.0} s left"));
    rate.into_iter().chain(eta)
}

/// `forebay resolve`.
pub fn resolve(args: CacheResolveArgs) -> Outcome {
    let (mut cached, path) = connect_by_name(&args.path, &args.at)?;
    let path = bytes(&path);
    let state = cached.tree(CacheRequest::Resolve { path, keep: args.keep.into() })?;
    match args.json {
        true => print_json(&state)?,
        false => println!("{}", summary(&state)),
    }
    Ok(EXIT_OK)
}

/// By the directory of a file that may not be there any more.
fn connect_by_name(path: &Path, at: &ServerArgs) -> anyhow::Result<(Cached, PathBuf)> {
    let is_absent = |error: &anyhow::Error| {
        let known = error.downcast_ref::<ControlError>();
        known.is_some_and(|error| error.errno == Some(libc::ENOENT))
    };
    const WHAT: &str = "resolve";
    match connect(path, at, WHAT) {
        Err(error) if is_absent(&error) => {
            let path = absolute(path)?;
            let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(error);
            };
            let (cached, above) = connect(dir, at, WHAT)?;
            Ok((cached, above.join(name)))
        }
        other => other,
    }
}

/// `forebay drain-rate`.
pub fn drain_rate(args: CacheRateArgs) -> Outcome {
    let (mut cached, _) = connect(&args.path, &args.at, "limit the drains of")?;
    cached.tell(CacheRequest::Rate { bytes_per_s: args.bytes_per_s })?;
    if args.json {
        let path = PathBytes::new(args.path.as_os_str().as_bytes());
        print_json(&serde_json::json!({ "path": path, "rate_bytes_per_s": args.bytes_per_s }))?;
    }
    Ok(EXIT_OK)
}

/// The state of a file or directory of a cache; `None` if the buffer is none.
pub fn status(
    cached: &mut Cached,
    path_in_buffer: &Path,
    path: &Path,
    json: bool,
) -> anyhow::Result<Option<()>> {
    let asked = CacheRequest::State { path: bytes(path_in_buffer) };
    let state = match cached.tree(asked) {
        Ok(state) => state,
        Err(error) if error.errno == Some(libc::EINVAL) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if json {
        print_json(&state)?;
        return Ok(Some(()));
    }
    let shown = path.display().to_string();
    match &state.file {
        Some(file) => print_file(&shown, file, &state),
        None => println!("tree        {}\nsafety      {}", visible(&shown), summary(&state)),
    }
    if let Some(policy) = &state.policy {
        println!("drain       {policy}");
    }
    for problem in state.problems.iter().take(SHOWN_MAX) {
        println!("problem     {}", visible(&describe_problem(problem)));
    }
    Ok(Some(()))
}

fn print_file(path: &str, file: &CachedFile, tree: &TreeState) {
    println!("file        {}", visible(path));
    println!(
        "size        {} ({} bytes), {} on flash",
        format_bytes(file.size_bytes),
        file.size_bytes,
        format_bytes(file.cached_bytes)
    );
    let dirty = match file.dirty_bytes {
        0 => String::new(),
        bytes => format!(", {} not on the PFS", format_bytes(bytes)),
    };
    let verified = file
        .verified
        .as_ref()
        .map(|how| match how.as_str() {
            "cache" => format!(", last drain {}", verified_text(Verify::Cache)),
            "medium" => format!(", last drain {}", verified_text(Verify::Medium)),
            other => format!(", last drain verified: {other}"),
        })
        .unwrap_or_default();
    let unverified = if file.unverified { ", unverified" } else { "" };
    let mut drains = String::new();
    if file.state == "draining" {
        let (done, all) = (format_bytes(file.drained_bytes), format_bytes(file.drain_total_bytes));
        drains =
            [format!(", {done} of {all} written there")].into_iter().chain(pace(tree)).collect();
    }
    println!("state       {}{dirty}{unverified}{drains}", file.state);
    println!("safety      {}{verified}", file.grade);
    if file.pinned {
        println!("pinned      yes");
    }
}

/// The cache's part of a buffer's status.
pub fn print_cache(cache: &CacheStatus) {
    println!("pfs         {}", visible(&cache.pfs.to_string()));
    if let Some(error) = &cache.pfs_error {
        println!("pfs error   {error}");
    }
    if let Some(error) = &cache.flash_error {
        println!("flash full  {error}");
    }
    println!("safety      {}", summary(&cache.tree));
    println!(
        "traffic     {} read from flash, {} fetched, {} written by requests, {} drained, {} evicted",
        format_bytes(cache.hit_bytes),
        format_bytes(cache.filled_bytes),
        format_bytes(cache.written_bytes),
        format_bytes(cache.tree.drained_bytes),
        format_bytes(cache.evicted_bytes)
    );
    for problem in cache.tree.problems.iter().take(SHOWN_MAX) {
        println!("problem     {}", visible(&describe_problem(problem)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_for_a_cache_whose_server_is_dead_names_the_mount_and_says_what_to_do() {
        let refused = std::io::Error::from_raw_os_error(libc::ECONNREFUSED);
        let dead = ControlError::io("connect to the server n1:7", None, &refused);
        let (path, point) = (Path::new("m/f"), Path::new("/n/m"));
        let error = with_what_goes_on(dead.clone(), path, Some(point));
        assert_eq!(error.errno, Some(libc::ECONNREFUSED));
        let text = error.to_string();
        for said in [
            "m/f: whether it is drained is not known: connect to the server n1:7: Connection refused",
            "start the server again (`forebay serve`): the mount /n/m goes on by itself",
        ] {
            assert!(text.contains(said), "{text}");
        }
        // No mount was asked, or its server runs.
        assert_eq!(with_what_goes_on(dead.clone(), path, None), dead);
        let other = ControlError::new("ask the server n1:7", None, "a strange answer");
        assert_eq!(with_what_goes_on(other.clone(), path, Some(point)), other);
    }
}
