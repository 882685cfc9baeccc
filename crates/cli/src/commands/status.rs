//! `forebay status`: a buffer, a file in one, or all buffers of this machine.

use super::at_once::at_once;
use super::cached::Cached;
use super::looking::{Looking, Work};
use super::status_ending::{self, Said};
use super::still_mounted::has_ended;
use crate::args::{ServerArgs, StatusArgs};
use crate::daemon::{STATE_WAIT, asker_waits};
use crate::failure::{EXIT_OK, Outcome, print_json, visible};
use crate::job_servers::JobServers;
use crate::servers::{BufferPath, Server};
use crate::state_dir::MountRecord;
use crate::{site, state_dir};
use forebay_client::{Control, MountRef, may_have_ended, mount_above, mounts, server_process};
use forebay_jobs::run::left_jobs::{self, LeftJob};
use forebay_jobs::run::record::{LeftOver, RECORD_NAME, as_path, left_at};
use forebay_jobs::run::served::Servers;
use forebay_proto::control::{BufferStatus, ControlError, FileStatus, NO_ANSWER_YET, PathBytes};
use forebay_proto::layout::LOG;
use forebay_proto::net::ledger::{BufferName, LedgerReply, LedgerRequest};
use forebay_proto::size::format_bytes;
use forebay_store::flash::{self, FoundStore, StoreKey};
use serde::Serialize;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the state of one buffer is asked for again while its servers do not tell it, and the pause between.
const SERVERS_WAIT: Duration = Duration::from_secs(6);
const SERVERS_PAUSE: Duration = Duration::from_millis(100);
/// How long a mount's process is waited for where all are listed: it waits for its servers itself.
const MOUNT_WAIT: Duration = asker_waits(STATE_WAIT);

/// One line of the list.
#[derive(Serialize)]
struct Listed {
    #[serde(skip_serializing_if = "Option::is_none")]
    mount_point: Option<PathBytes>,
    /// Name of a buffer whose store `forebay serve` keeps there, or that is mounted there.
    #[serde(skip_serializing_if = "Option::is_none")]
    buffer: Option<BufferName>,
    /// Where a mount's buffer is served, if it is none of its own.
    #[serde(skip_serializing_if = "Option::is_none", rename = "server_address")]
    server: Option<String>,
    store: PathBytes,
    /// `live`, `dead`, `silent` (it does not answer), `stopped`, `kept`, `in use`, `ending` (it is unmounted), `served`,
    /// `hidden` (another user's), `given up` (a job's, that is not removed), `gone` (a job's, that somebody destroyed).
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    used_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// Record of a job that nobody runs any more, for `forebay run --resume`.
    #[serde(skip_serializing_if = "Option::is_none")]
    resume: Option<PathBytes>,
    /// The same of a job that was given up, or whose buffer is gone, for `forebay run --discard`.
    #[serde(skip_serializing_if = "Option::is_none")]
    discard: Option<PathBytes>,
}

impl Listed {
    /// Names the job that left it.
    fn name_job(&mut self, job: &LeftJob) {
        let record = Some(bytes_of(&job.left.dir.join(RECORD_NAME)));
        match job.is_over() {
            true => self.discard = record,
            false => self.resume = record,
        }
        // What its mount says of a buffer that is no more is of no use.
        if let Some(why) = &job.gone {
            self.state = "gone";
            self.why = Some(format!("its buffer is gone: {why}"));
        }
    }

    /// A job that is over, of which nothing else is listed.
    fn of_job(job: &LeftJob) -> Listed {
        let record = &job.left.record;
        let served = record.served.as_ref();
        let mut listed = Listed {
            mount_point: Some(record.mount_point.clone()),
            buffer: served.and_then(|served| served.buffer.to_string().parse().ok()),
            server: served.map(|served| served.server.to_string()),
            store: record.flash.clone(),
            state: "given up",
            capacity_bytes: None,
            used_bytes: None,
            why: None,
            resume: None,
            discard: None,
        };
        listed.name_job(job);
        listed
    }

    /// Its job cannot be finished: somebody has deleted the job's directory.
    fn name_deleted(&mut self, dir: &Path) {
        let Some(point) = &self.mount_point else { return };
        let store = as_path(&self.store);
        let flash = store.parent().map(|flash| bytes_of(flash).shell_word()).unwrap_or_default();
        let flag = match forebay_cache::is_cache(store) {
            true => "--discard-dirty",
            false => "--destroy",
        };
        self.why = Some(format!(
            "the directory of its job, {}, was deleted, and with it the record to finish the job by: \
             `forebay umount {flag} --flash {flash} {}` destroys the buffer, and the next `forebay run` on that flash \
             directory forgets the job",
            dir.display(),
            point.shell_word()
        ));
    }

    fn has_job(&self) -> bool {
        self.resume.is_some() || self.discard.is_some()
    }
}

/// Runs the command.
pub fn run(args: StatusArgs) -> Outcome {
    match &args.path {
        Some(path) => match buffer_named(&args, path) {
            Some(named) => of_buffer(&named, path, &args.at, args.json)?,
            None => one(path, args.json)?,
        },
        None => all(args.flash.as_deref(), args.json)?,
    }
    Ok(EXIT_OK)
}

/// The buffer of a server that is meant, and the path in it: `NAME:/PATH`, or with a server a name
/// that is no file here.
fn buffer_named(args: &StatusArgs, path: &Path) -> Option<BufferPath> {
    let named = BufferPath::parse(path.as_os_str());
    if named.is_some() || args.at.server.is_none() {
        return named;
    }
    // What has a slash is no name: such a path is not looked at here.
    let name = path.to_str()?.trim_end_matches(':').parse().ok()?;
    (!is_here(path)).then(|| BufferPath { name, path: PathBytes::new(b"/") })
}

/// Whether something has this name in the current directory. In a mount it is looked at only where that directory lies in one: else
/// the name is that of the mount point, or of a link that leads to it.
fn is_here(name: &Path) -> bool {
    match (mount_above(Path::new(".")), mount_above(name)) {
        (None, None) => name.exists(),
        (None, Some(_)) => true,
        (Some(_), _) => {
            let _looking = Looking::at(name, Work::Other("look at"));
            // What cannot be told is told by who asks about the path.
            forebay_client::locate(name).is_err() || name.try_exists().unwrap_or(true)
        }
    }
}

/// A cache tells of its files itself; of other buffers the ledger does.
fn of_buffer(named: &BufferPath, path: &Path, at: &ServerArgs, json: bool) -> anyhow::Result<()> {
    if let Some((mut cached, inside)) = Cached::named(path, at)?
        && let Some(answer) = super::cache::status(&mut cached, &inside, path, json)?
    {
        return Ok(answer);
    }
    status_of(at, named, json)
}

/// What is used is not known while a server does not tell.
fn as_json(status: &BufferStatus) -> anyhow::Result<serde_json::Value> {
    let mut told = serde_json::to_value(status)?;
    if status.server_error.is_some() {
        told["used_bytes"] = serde_json::Value::Null;
        told["inodes"] = serde_json::Value::Null;
    }
    Ok(told)
}

fn one(path: &Path, json: bool) -> anyhow::Result<()> {
    let looking = Looking::at(path, Work::Other("look at"));
    let found = super::cache::locate(path)?;
    let mut control = Control::connect_store(&found.store_dir)?;
    if found.path_in_buffer == Path::new("/") {
        // What follows has a bound of its own, and says in its answer which server is silent.
        drop(looking);
        let until = Instant::now() + SERVERS_WAIT;
        let mut status = control.buffer_status()?;
        // A busy server answers late.
        let is_late = |status: &BufferStatus| {
            let why = status.server_error.as_ref().or(status.not_asked.as_ref());
            why.is_some_and(|why| why.contains(NO_ANSWER_YET))
        };
        while is_late(&status) && Instant::now() < until {
            std::thread::sleep(SERVERS_PAUSE);
            status = control.buffer_status()?;
        }
        return if json { print_json(&as_json(&status)?) } else { print_buffer(&status) };
    }
    let mut cached = Cached::Mounted(Box::new(control), looking);
    if let Some(answer) = super::cache::status(&mut cached, &found.path_in_buffer, path, json)? {
        return Ok(answer);
    }
    let Cached::Mounted(mut control, _looking) = cached else { return Ok(()) };
    let status = control.file_status(&found.path_in_buffer)?;
    if json { print_json(&status) } else { print_file(&path.display().to_string(), &status) }
}

/// `forebay status NAME[:/PATH]`: the buffer, or a file in it, as its servers know it.
fn status_of(at: &ServerArgs, of: &BufferPath, json: bool) -> anyhow::Result<()> {
    let mut server = Server::connect(at, Some(&of.name))?;
    if of.path.as_bytes() == b"/" {
        let buffer = server.buffer(&LedgerRequest::Status { name: of.name.clone() })?;
        match json {
            true => print_json(&crate::json::buffer(&buffer)?)?,
            false => print!("{}", super::buffer::describe(&buffer)),
        }
        return Ok(());
    }
    let request = LedgerRequest::FileStatus { name: of.name.clone(), path: of.path.clone() };
    let LedgerReply::File(file) = server.ask(&request)? else {
        return Err(server.unexpected().into());
    };
    match json {
        true => print_json(&file),
        false => print_file(&of.to_string(), &file),
    }
}

fn print_buffer(status: &BufferStatus) -> anyhow::Result<()> {
    let percent = 100.0 * status.used_bytes as f64 / status.capacity_bytes.max(1) as f64;
    let volatile = match status.volatile {
        true => ", volatile: lost at a power cut or restart of the node",
        false => "",
    };
    let (point, store) = (status.mount_point.to_string(), status.store.to_string());
    println!("buffer      {} ({})", visible(&point), status.buffer_type);
    if let (Some(buffer), Some(server)) = (&status.buffer, &status.server) {
        println!("served      {buffer}, by {server}");
    }
    let capacity = format_bytes(status.capacity_bytes);
    if let Some(error) = &status.server_error {
        println!("NO ANSWER   {error}");
        println!("capacity    {capacity}; what is used is not known");
    } else {
        match &status.not_asked {
            Some(why) => println!("not asked   {}", not_asked_text(why)),
            None => println!("store       {} ({}{volatile})", visible(&store), kind_name(status)),
        }
        println!(
            "capacity    {capacity}, {} used ({percent:.1} %), {} inodes",
            format_bytes(status.used_bytes),
            status.inodes
        );
    }
    println!("fast path   {}", yes_or_why(status.fast_path, status.fast_path_reason.as_deref()));
    if let Some(cache) = &status.cache {
        super::cache::print_cache(cache);
    }
    println!("server      process {}, up {} s", status.pid, status.uptime_s);
    if let Some(log) = &status.log_file {
        println!("log         {}", visible(&log.to_string()));
    }
    let requests: Vec<String> =
        status.requests.iter().map(|(name, count)| format!("{name} {count}")).collect();
    println!(
        "requests    {}",
        if requests.is_empty() { "none".into() } else { requests.join(", ") }
    );
    println!("uuid        {}", status.uuid);
    Ok(())
}

/// Who could not be asked, and why: who it is about is told, not that it was asked.
fn not_asked_text(why: &str) -> String {
    why.strip_prefix("ask ").unwrap_or(why).to_string()
}

fn kind_name(status: &BufferStatus) -> &'static str {
    use forebay_proto::control::StoreKind::{Directory, LoopXfs, Tmpfs};
    match status.store_kind {
        Tmpfs => "tmpfs",
        LoopXfs => "XFS image",
        Directory => "directory",
    }
}

fn yes_or_why(yes: bool, why: Option<&str>) -> String {
    match (yes, why) {
        (true, _) => "yes".into(),
        (false, Some(why)) => format!("no: {why}"),
        (false, None) => "no".into(),
    }
}

fn print_file(path: &str, status: &FileStatus) -> anyhow::Result<()> {
    println!("file        {} (inode {})", visible(path), status.ino);
    println!(
        "size        {} ({} bytes), {} allocated",
        format_bytes(status.size_bytes),
        status.size_bytes,
        format_bytes(status.allocated_bytes)
    );
    println!("fast path   {}", yes_or_why(status.fast_path, status.fast_path_reason.as_deref()));
    println!(
        "layout      {}",
        match status.stripe_count {
            0 | 1 => format!("whole, {}", place(status)),
            n if status.layout.as_deref() == Some(LOG) => {
                format!("in logs, one for each mount, brought together over {n} objects")
            }
            n => format!("striped over {n} objects"),
        }
    );
    if let Some(logs) = &status.in_logs {
        println!(
            "logs        {} of {}, {} of it counts, in {} pieces; consistency {}{}",
            logs.log_count,
            format_bytes(logs.log_bytes),
            format_bytes(logs.live_bytes),
            logs.extent_count,
            logs.consistency,
            if logs.publish == "final" { "; final: nobody writes it any more" } else { "" }
        );
    }
    println!(
        "safety      {}{}",
        status.grade,
        if status.volatile { " (volatile store)" } else { "" }
    );
    Ok(())
}

/// Where a whole file is.
fn place(status: &FileStatus) -> String {
    match (&status.host, status.near) {
        (None, _) => "on this node".into(),
        (Some(host), Some(true)) => format!("on this node ({})", visible(host)),
        (Some(host), _) => format!("on {}", visible(host)),
    }
}

fn all(flash: Option<&Path>, json: bool) -> anyhow::Result<()> {
    let mounted = mounts()?;
    let places = places(flash, &mounted)?;
    let is_mounted = |dir: &Path| mounted.iter().any(|mount| mount.store_dir == dir);
    let mut kept = kept_stores(flash.is_some(), &places)?;
    kept.retain(|found| !is_mounted(&found.dir));
    // A mount of a served buffer has no store of its own: it is known by its directory.
    let mut ending = state_dir::all();
    ending.retain(|(dir, _)| !is_mounted(dir));
    let mut listed = list_all(&mounted, &kept, &ending);
    name_left_jobs(&places, &mut listed);
    if json {
        return print_json(&serde_json::json!({ "buffers": listed }));
    }
    if listed.is_empty() {
        println!("no buffers");
    }
    for entry in &listed {
        let size = match (entry.capacity_bytes, entry.used_bytes) {
            (Some(capacity), Some(used)) => {
                format!("  {} of {} used", format_bytes(used), format_bytes(capacity))
            }
            (Some(capacity), None) => format!("  {}", format_bytes(capacity)),
            _ => String::new(),
        };
        let why = entry.why.as_ref().map(|why| format!("  ({why})")).unwrap_or_default();
        let what = match (&entry.mount_point, &entry.buffer) {
            (Some(point), _) => point.to_string(),
            (None, Some(name)) => format!("buffer {name}"),
            (None, None) => "?".into(),
        };
        let on = match (&entry.buffer, &entry.server) {
            (Some(name), Some(server)) => format!("buffer {name} at {server}"),
            _ => format!("store {}", entry.store),
        };
        let text = format!("{:<7} {what}  {on}{size}{why}", entry.state);
        println!("{}", visible(&text));
        if let Some(record) = &entry.resume {
            let text = format!("       its job is not finished: forebay run --resume {record}");
            println!("{}", visible(&text));
        }
        if let Some(record) = &entry.discard {
            let text = format!(
                "       its job cannot be finished, and is not removed: forebay run --discard {record}"
            );
            println!("{}", visible(&text));
        }
    }
    Ok(())
}

/// Finds the jobs on the flash whose runner is gone, and names them with their buffers.
fn name_left_jobs(places: &[PathBuf], listed: &mut Vec<Listed>) {
    let servers: Arc<dyn Servers> = Arc::new(JobServers);
    let found = left_jobs::find(places);
    for dir in found.silent {
        let text = format!("{}: not looked at: it does not answer", dir.display());
        eprintln!("forebay: {}", visible(&text));
    }
    for job in left_jobs::with_buffers(found.jobs, &servers) {
        let point = &job.left.record.mount_point;
        let of_job = listed.iter_mut().find(|entry| entry.mount_point.as_ref() == Some(point));
        match of_job {
            Some(entry) => entry.name_job(&job),
            // Its mount is gone, and the buffer or the record is not.
            None if job.is_over() => listed.push(Listed::of_job(&job)),
            None => {}
        }
    }
    for dir in &found.deleted {
        let is_in_it = |point: &PathBytes| as_path(point).starts_with(dir);
        let kept = listed.iter_mut().filter(|entry| entry.state == "kept" && !entry.has_job());
        let of_job = kept.filter(|entry| entry.mount_point.as_ref().is_some_and(is_in_it));
        of_job.for_each(|entry| entry.name_deleted(dir));
    }
    // With --work-dir a job's directory lies elsewhere, and its buffer is mounted in it: where no flash directory says so.
    let beside = |entry: &Listed| -> Option<LeftOver> {
        let point = entry.mount_point.as_ref()?;
        // In another mount nothing is looked at: its server may not answer.
        let dir = as_path(point).parent().filter(|dir| mount_above(dir).is_none())?;
        left_at(&dir.join(RECORD_NAME)).filter(|job| job.record.mount_point == *point)
    };
    let jobs = listed.iter().filter(|entry| !entry.has_job()).filter_map(beside).collect();
    for job in left_jobs::with_buffers(jobs, &servers) {
        let point = Some(&job.left.record.mount_point);
        let entries = listed.iter_mut().filter(|entry| entry.mount_point.as_ref() == point);
        entries.for_each(|entry| entry.name_job(&job));
    }
}

/// Where stores are looked for: in the flash that is named, else in the usual places and beside the stores
/// of mounts.
fn places(flash: Option<&Path>, mounted: &[MountRef]) -> Result<Vec<PathBuf>, ControlError> {
    if flash.is_some() {
        return Ok(vec![flash::resolve_flash(flash)?]);
    }
    let mut places = site::usual_places();
    let own = mounted.iter().filter(|mount| state_dir::record(&mount.store_dir).is_none());
    for dir in own.filter_map(|mount| mount.store_dir.parent()) {
        if !places.iter().any(|place| place == dir) {
            places.push(dir.to_path_buf());
        }
    }
    Ok(places)
}

/// Stores there that this user may have; of the superuser, all. A place that cannot be listed is an error
/// only where it was named.
fn kept_stores(named: bool, places: &[PathBuf]) -> Result<Vec<FoundStore>, ControlError> {
    let mut all = Vec::new();
    for place in places {
        match flash::list(place) {
            Ok(found) => all.extend(found),
            Err(error) if named => return Err(error),
            Err(error) => tracing::debug!(%error, "not listed"),
        }
    }
    let is_root = rustix::process::geteuid().is_root();
    all.retain(|found: &FoundStore| found.own || is_root);
    Ok(all)
}

fn bytes_of(path: &Path) -> PathBytes {
    PathBytes::new(path.as_os_str().as_bytes())
}

/// Whose process is asked for a line of the list.
enum Asked<'a> {
    Mounted(&'a MountRef),
    Kept(&'a FoundStore),
    Ending(&'a Path, &'a MountRecord),
}

/// All of them, in their order, without those that have ended meanwhile. They are asked at once, so that those which do not answer
/// are waited for together.
fn list_all(
    mounted: &[MountRef],
    kept: &[FoundStore],
    ending: &[(PathBuf, MountRecord)],
) -> Vec<Listed> {
    let mounted = mounted.iter().map(Asked::Mounted);
    let kept = kept.iter().map(Asked::Kept);
    let ending = ending.iter().map(|(dir, record)| Asked::Ending(dir, record));
    let listed = at_once(mounted.chain(kept).chain(ending).collect(), |asked| match asked {
        Asked::Mounted(mount) => list_mounted(mount),
        Asked::Kept(found) => list_kept(found),
        Asked::Ending(dir, record) => list_ending(dir, record),
    });
    listed.into_iter().flatten().collect()
}

/// `None`: it has ended meanwhile.
fn list_mounted(mount: &MountRef) -> Option<Listed> {
    let served = state_dir::record(&mount.store_dir);
    let mut listed = Listed {
        mount_point: Some(bytes_of(&mount.mount_point)),
        buffer: served.as_ref().and_then(|record| record.buffer.parse().ok()),
        server: served.as_ref().map(|record| record.server.clone()),
        store: bytes_of(&mount.store_dir),
        state: "live",
        capacity_bytes: None,
        used_bytes: None,
        why: None,
        resume: None,
        discard: None,
    };
    if let Some(pid) = server_process::stopped_server(&mount.store_dir) {
        listed.state = "stopped";
        listed.why =
            Some(format!("its process {pid} is stopped: `kill -CONT {pid}` lets it go on"));
        return Some(listed);
    }
    // One that hangs is waited for no longer than this; one that waits for its servers answers before.
    let until = Instant::now() + MOUNT_WAIT;
    let control = Control::connect_store_until(&mount.store_dir, Some(until));
    match control.and_then(|mut control| control.buffer_status()) {
        Ok(status) => {
            listed.capacity_bytes = Some(status.capacity_bytes);
            match status.server_error {
                Some(error) => {
                    listed.state = if error.contains(server_process::ARE_STOPPED) {
                        "stopped"
                    } else {
                        "silent"
                    };
                    listed.why = Some(error);
                }
                None => {
                    listed.used_bytes = Some(status.used_bytes);
                    listed.why = status.not_asked.map(|why| not_asked_text(&why));
                }
            }
        }
        Err(error) if error.errno == Some(libc::EACCES) => listed.state = "hidden",
        Err(error) if has_ended(&error, mount) => return None,
        Err(error) => {
            let is_dead = may_have_ended(&error);
            listed.state = if is_dead { "dead" } else { "silent" };
            listed.why = Some(match (&listed.server, error.errno) {
                // The mount answers by itself, unless it is asking.
                (Some(server), Some(libc::ETIMEDOUT)) => {
                    let point = mount.mount_point.display();
                    format!(
                        "no answer yet: it waits for its servers, of which {server} is one; `forebay status {point}` waits \
                         for them and tells more"
                    )
                }
                _ => error.why,
            });
        }
    }
    Some(listed)
}

/// A store that is not mounted; `None` if its process ended just now, and took it along.
fn list_kept(found: &FoundStore) -> Option<Listed> {
    let key = found.record.as_ref().ok().map(|record| &record.key);
    let buffer = key.and_then(StoreKey::buffer).cloned();
    let (capacity_bytes, why) = match &found.record {
        Ok(record) => (Some(record.capacity_bytes), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let is_mounts = found.in_use && buffer.is_none();
    let (state, said) = match is_mounts.then(|| status_ending::ask(&found.dir)) {
        Some(Said::Ended) if matches!(flash::is_own_directory(&found.dir), Ok(false)) => {
            return None;
        }
        Some(Said::Ending(_, why)) => ("ending", Some(why)),
        Some(Said::Silent(why)) => ("in use", Some(why)),
        Some(Said::Nothing | Said::Ended) => ("in use", None),
        None if found.in_use => ("served", None),
        None => ("kept", None),
    };
    Some(Listed {
        mount_point: key.and_then(StoreKey::mount_point).map(bytes_of),
        state,
        buffer,
        server: None,
        store: bytes_of(&found.dir),
        capacity_bytes,
        used_bytes: None,
        why: why.or(said),
        resume: None,
        discard: None,
    })
}

/// A mount of a served buffer that was unmounted and has not ended; `None` if the directory is not that of such a one.
fn list_ending(dir: &Path, record: &MountRecord) -> Option<Listed> {
    let Said::Ending(status, why) = status_ending::ask(dir) else { return None };
    Some(Listed {
        mount_point: Some(record.mount_point.clone()),
        buffer: record.buffer.parse().ok(),
        server: Some(record.server.clone()),
        store: bytes_of(dir),
        state: "ending",
        capacity_bytes: Some(status.capacity_bytes).filter(|bytes| *bytes > 0),
        used_bytes: None,
        why: Some(why),
        resume: None,
        discard: None,
    })
}
