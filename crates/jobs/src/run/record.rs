//! The record of a job: one file, rewritten whole at every change, so that whatever happens to
//! the process that runs the job, another can say what is left and finish it.
//!
//! It lies in the job's directory, `FLASH/forebay-jobs-UID/job-ID/job.json`, beside the mount
//! point: it lives as long as the buffer's flash. Of a job whose directory lies elsewhere (`--work-dir`) a link there leads to that.
//! Invariants: a step is recorded before it begins; the file is always a whole record (written beside, fsynced, renamed). Beside it
//! room is kept ([`ROOM_NAME`]), so that it can also be written when others have filled the flash: a job can be given up then, which
//! frees some.

use super::nodes::OWN_LINK;
use super::served_job::ServedJob;
use super::step::{Step, StepSummary};
use crate::record_file;
use crate::request::{AccessMode, JobRequest};
use forebay_net::look;
use forebay_proto::PlanId;
use forebay_proto::control::{PathBytes, Verify};
use forebay_proto::events::UtcTime;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Format of the record; another one is refused by name.
pub const RECORD_FORMAT: u32 = 2;

/// How the name of a job and of its directory begins.
pub const JOB_PREFIX: &str = "job-";

/// File name of a record.
pub const RECORD_NAME: &str = "job.json";

/// Longest record that is read, in bytes.
const MAX_RECORD_BYTES: u64 = 64 << 20;

/// A process, told apart from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRef {
    /// Process id.
    pub pid: i32,
    /// Its start in clock ticks since boot: field 22 of `/proc/PID/stat`, see proc(5).
    pub start_ticks: u64,
}

impl ProcessRef {
    /// A running process; `None` if there is none, or if it cannot be looked at.
    pub fn of(pid: i32) -> Option<ProcessRef> {
        ProcessRef::look(pid)?
    }

    /// True if this very process still runs. One that cannot be looked at begins a program, behind a mount that does not
    /// answer: it has not ended.
    pub fn is_alive(&self) -> bool {
        ProcessRef::look(self.pid).is_none_or(|now| now.as_ref() == Some(self))
    }

    /// The process of this number now; `None` if it cannot be looked at.
    fn look(pid: i32) -> Option<Option<ProcessRef>> {
        let stat = move || fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        let stat = look::at(pid.unsigned_abs(), stat)?;
        Some(stat.and_then(|stat| ProcessRef::parse(pid, &stat)))
    }

    fn parse(pid: i32, stat: &str) -> Option<ProcessRef> {
        // The second field is the program's name in parentheses and may hold anything.
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?;
        let start_ticks = fields.nth(18)?.parse().ok()?;
        // A zombie has ended; only its parent does not know yet.
        (state != "Z" && state != "X").then_some(ProcessRef { pid, start_ticks })
    }
}

/// How the script ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScriptExit {
    /// With this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// Nobody saw it: the process that ran the job was killed.
    Unknown,
}

/// A plan that was started for a line of the script.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedPlan {
    /// Line of the directive.
    pub line: u32,
    /// The server's plan.
    pub plan: PlanId,
    /// The node whose namespace it is about, if each has one.
    #[serde(default)]
    pub node: Option<String>,
}

/// All that is needed to go on with a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// Name of the job's directory.
    pub id: String,
    /// The script.
    pub script: PathBytes,
    /// Its arguments.
    pub script_args: Vec<PathBytes>,
    /// What it asks for.
    pub request: JobRequest,
    /// Flash directory; of a job at servers the directory that its own one is made in.
    pub flash: PathBytes,
    /// What it has at servers, if its buffer is there.
    pub served: Option<ServedJob>,
    /// Where the buffer is mounted.
    pub mount_point: PathBytes,
    /// True if the mount point was made for the job, and goes with it.
    pub mount_point_is_ours: bool,
    /// `--store` of the mount.
    pub store: Option<String>,
    /// How staged files are verified.
    pub verify: Verify,
    /// The buffer is to stay on flash at the end.
    pub keep: bool,
    /// Who runs the job.
    pub runner: ProcessRef,
    /// The script's process and group.
    pub job: Option<ProcessRef>,
    /// The step it is in.
    pub step: Step,
    /// How the script ended.
    pub exit: Option<ScriptExit>,
    /// How the job ended, once it has: of a job whose buffer is kept, or could not be removed.
    #[serde(default)]
    pub outcome: Option<Outcome>,
    /// When it was given up with `--discard`: there is no way back. On record before anything is destroyed.
    #[serde(default)]
    pub given_up: Option<UtcTime>,
    /// What the steps did so far.
    pub done: Vec<StepSummary>,
    /// Stage-out plans that were started.
    pub plans: Vec<StartedPlan>,
}

/// How a job ended. A script may end with any exit code, those of the runner included: this tells
/// them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// All steps were done: the exit code is the script's.
    Done,
    /// The script was not started.
    NotStarted,
    /// Results are missing on the PFS; the buffer is kept.
    ResultsMissing,
    /// Results are on the PFS; the buffer could not be removed, or not unmounted on all nodes.
    NotRemoved,
    /// All steps were done; the script's exit code is not known.
    ExitUnknown,
    /// Results are missing on the PFS, and the buffer is gone: somebody destroyed it. Told, and never on record: each look finds it
    /// anew. In records of older versions it says no more than [`Outcome::ResultsMissing`].
    BufferGone,
    /// It was given up with `--discard`, and not all of it is removed yet. A program that does not know this word takes the record
    /// for damaged, rather than finish the job.
    GivenUp,
}

impl JobRecord {
    /// Mount point.
    pub fn mount_point(&self) -> &Path {
        as_path(&self.mount_point)
    }

    /// True if the script is known to have failed, or was ended by a signal.
    pub fn script_failed(&self) -> bool {
        matches!(self.exit, Some(ScriptExit::Signal(_)))
            || matches!(self.exit, Some(ScriptExit::Code(code)) if code != 0)
    }

    /// Notes that a step ended so, in the place of what an earlier try of it did: until then that is what is known of it.
    pub fn note(&mut self, summary: StepSummary) {
        self.done.retain(|earlier| earlier.step != summary.step);
        let at = self.done.iter().position(|other| other.step > summary.step);
        self.done.insert(at.unwrap_or(self.done.len()), summary);
    }

    /// Where the script finds a mode's namespace; `dir` is the job's directory.
    pub fn mode_dir(&self, mode: AccessMode, dir: &Path) -> PathBuf {
        let root = self.request.mode_root(mode).trim_start_matches('/');
        match root {
            "" => self.mount_point().to_path_buf(),
            // The same path on all nodes leads to each node's own directory.
            _ if mode == AccessMode::Private && has_own_link(self) => dir.join(OWN_LINK),
            root => self.mount_point().join(root),
        }
    }

    /// Reads a record; `path` names it or the directory it lies in.
    ///
    /// # Errors
    /// If it cannot be read, is no record, or one of another format.
    pub fn load(path: &Path) -> io::Result<(JobRecord, PathBuf)> {
        JobRecord::load_with(path).map(|(record, dir, _)| (record, dir))
    }

    /// The same for who takes up the job: no other command does, at the same moment, as long as the file lives. Whoever has the job in
    /// hand for longer is the record's runner.
    ///
    /// # Errors
    /// EWOULDBLOCK if another command has it in hand.
    pub fn take_up(path: &Path) -> io::Result<(JobRecord, PathBuf, File)> {
        let (_, dir, held) = JobRecord::load_with(path)?;
        flock(&held, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            Errno::WOULDBLOCK => {
                let why = "another command has this job in hand; wait for its end";
                io::Error::new(io::ErrorKind::WouldBlock, why)
            }
            error => error.into(),
        })?;
        // Again: it may have been taken up and left meanwhile.
        let (record, dir_again, _) = JobRecord::load_with(path)?;
        debug_assert_eq!(dir, dir_again);
        Ok((record, dir_again, held))
    }

    /// With its directory, opened.
    fn load_with(path: &Path) -> io::Result<(JobRecord, PathBuf, File)> {
        let path = if path.is_dir() { path.join(RECORD_NAME) } else { path.to_path_buf() };
        // What it says is run: nobody else may have written it, or put another in its place.
        own_dir(path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
        let meta = fs::symlink_metadata(&path)?;
        if !meta.is_file() || meta.uid() != rustix::process::geteuid().as_raw() {
            let text = format!("{} is not a file of your own", path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        let size = meta.len();
        if size > MAX_RECORD_BYTES {
            return Err(io::Error::other(format!("{size} bytes are too many for a record")));
        }
        let bytes = fs::read(&path)?;
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let head: Head = serde_json::from_slice(&bytes)
            .map_err(|error| io::Error::other(format!("this is no record of a job: {error}")))?;
        if head.format != RECORD_FORMAT {
            let found = head.format;
            let text = format!("record format {found}, this program reads {RECORD_FORMAT}");
            return Err(io::Error::other(text));
        }
        let record = serde_json::from_slice(&bytes)
            .map_err(|error| io::Error::other(format!("the record is damaged: {error}")))?;
        let dir = path.parent().map(Path::to_path_buf).unwrap_or_default().canonicalize()?;
        let opened = File::open(&dir)?;
        Ok((record, dir, opened))
    }

    /// Writes the record into the job's directory.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn save(&self, dir: &Path) -> io::Result<()> {
        let (path, room) = (dir.join(RECORD_NAME), dir.join(ROOM_NAME));
        let put = || record_file::replace(&path, &dir.join(NEW_RECORD_NAME), self);
        match put() {
            Err(error) if record_file::is_full(&error) && fs::remove_file(&room).is_ok() => put()?,
            saved => saved?,
        }
        match self.given_up {
            // Nothing is noted any more. The commands that remove the rest say in files what they do.
            Some(_) => record_file::give_room(&room),
            None => record_file::keep_room(&room, &path),
        }
        Ok(())
    }
}

/// True if a mode's namespace is one for each node, so that a path in it has the node's name
/// before it where the server sees it.
pub fn is_per_node(record: &JobRecord, mode: AccessMode) -> bool {
    let several = record.served.as_ref().is_some_and(|job| !job.nodes.is_empty());
    several && mode == AccessMode::Private
}

/// True if nodes have their own part of one buffer by a directory and a link: with both modes.
pub fn has_own_link(record: &JobRecord) -> bool {
    is_per_node(record, AccessMode::Private) && record.request.access_modes.len() > 1
}

/// Bytes as a path.
pub fn as_path(bytes: &PathBytes) -> &Path {
    Path::new(OsStr::from_bytes(bytes.as_bytes()))
}

/// A path as bytes.
pub fn as_bytes(path: &Path) -> PathBytes {
    PathBytes::new(path.as_os_str().as_bytes())
}

/// The directory of all jobs of this user on a flash directory.
pub fn jobs_dir(flash: &Path) -> PathBuf {
    flash.join(format!("forebay-jobs-{}", rustix::process::geteuid().as_raw()))
}

/// Tries to make a job's directory: another job's end may remove the directory of jobs.
const MAKE_TRIES: u32 = 10;

/// Makes the directory of a job, readable by its user only.
///
/// # Errors
/// Those of the file system; permission denied if the directory of jobs is not this user's own
/// (a flash directory may be writable by everyone).
pub fn make_job_dir(flash: &Path, id: &str) -> io::Result<PathBuf> {
    in_jobs_dir(flash, |jobs| {
        let dir = jobs.join(id);
        fs::DirBuilder::new().mode(0o700).create(&dir)?;
        Ok(dir)
    })
}

/// Makes a link to the directory of a job that lies elsewhere than in the directory of jobs: by it that is found from the flash
/// directory, also when the job's mount is gone. See [`dirs_elsewhere`].
///
/// # Errors
/// As [`make_job_dir`].
pub fn note_elsewhere(flash: &Path, dir: &Path) -> io::Result<()> {
    let Some(name) = dir.file_name() else { return Ok(()) };
    in_jobs_dir(flash, |jobs| std::os::unix::fs::symlink(dir, jobs.join(name)))
}

/// True if the flash directory has what a job leaves in the directory of jobs as long as it has a record: its own directory, or the
/// link to that. Flash without it may be another one than the job's: what is at its path while it is not mounted.
pub fn is_noted(flash: &Path, id: &str) -> bool {
    own_dir(&jobs_dir(flash)).is_ok_and(|jobs| fs::symlink_metadata(jobs.join(id)).is_ok())
}

/// Removes what [`note_elsewhere`] made, if it is there.
pub fn forget_elsewhere(flash: &Path, dir: &Path) {
    let Some(name) = dir.file_name() else { return };
    let link = jobs_dir(flash).join(name);
    if fs::read_link(&link).is_ok_and(|target| target == dir) {
        // What cannot be removed leads to nothing any more.
        let _ = fs::remove_file(link);
    }
}

/// Makes something in the directory of jobs, which is made too.
fn in_jobs_dir<T>(flash: &Path, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
    let jobs = jobs_dir(flash);
    let mut tries = 0;
    loop {
        match fs::DirBuilder::new().mode(0o700).create(&jobs) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let made = own_dir(&jobs).and_then(|jobs| make(&jobs));
        tries += 1;
        match made {
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries < MAKE_TRIES => {}
            made => return made,
        }
    }
}

/// A directory's real path, if only this user can write to it.
fn own_dir(dir: &Path) -> io::Result<PathBuf> {
    let meta = fs::symlink_metadata(dir)?;
    let mine = meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw();
    if !mine || meta.mode() & 0o022 != 0 {
        let text = format!("{} is not a directory that only you can write", dir.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    dir.canonicalize()
}

/// A job whose runner is gone.
#[derive(Clone, Debug)]
pub struct LeftOver {
    /// Its directory.
    pub dir: PathBuf,
    /// Its record.
    pub record: JobRecord,
}

/// Most job directories that are looked at.
const MAX_LISTED_JOBS: usize = 10_000;

/// Jobs of this user on a flash directory that nobody runs any more.
///
/// # Errors
/// Those of listing the directory; none if there is no such directory. What is no readable
/// record is passed over.
pub fn left_over(flash: &Path) -> io::Result<Vec<LeftOver>> {
    match own_dir(&jobs_dir(flash)) {
        Ok(jobs) => left_over_in(&jobs),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The same of a directory in which jobs have theirs (`--work-dir`), beside whatever else and whoever may write there.
///
/// # Errors
/// As [`left_over`].
pub fn left_over_in(work_dir: &Path) -> io::Result<Vec<LeftOver>> {
    let entries = match fs::read_dir(work_dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries.take(MAX_LISTED_JOBS) {
        let entry = entry?;
        // What a link leads to may not answer, see [`dirs_elsewhere`].
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        if !is_link && entry.file_name().as_bytes().starts_with(JOB_PREFIX.as_bytes()) {
            found.extend(left_at(&entry.path().join(RECORD_NAME)));
        }
    }
    found.sort_by(|a, b| a.record.id.cmp(&b.record.id));
    Ok(found)
}

/// The directories of jobs with this flash directory that lie elsewhere (`--work-dir`). Nothing is looked at there: they may be on a
/// file system that does not answer, or be gone.
pub fn dirs_elsewhere(flash: &Path) -> Vec<PathBuf> {
    let Ok(jobs) = own_dir(&jobs_dir(flash)) else { return Vec::new() };
    let entries = fs::read_dir(jobs).into_iter().flatten().flatten();
    let links =
        entries.filter(|entry| entry.file_name().as_bytes().starts_with(JOB_PREFIX.as_bytes()));
    let targets = links.filter_map(|link| fs::read_link(link.path()).ok());
    targets.filter(|target| target.is_absolute()).take(MAX_LISTED_JOBS).collect()
}

/// The job of a record, if nobody runs it any more. What is no readable record of this user is none.
pub fn left_at(path: &Path) -> Option<LeftOver> {
    let (record, dir) = JobRecord::load(path).ok()?;
    (!record.runner.is_alive()).then_some(LeftOver { dir, record })
}

/// Name of the file that has no other use than the room it takes.
pub(super) const ROOM_NAME: &str = "job.json.room";

/// Name of a record that is being written.
const NEW_RECORD_NAME: &str = "job.json.new";

/// Name of the default mount point in a job's directory.
pub const MOUNT_NAME: &str = "mnt";

/// Age from which a job's directory without a record is taken as left: a runner writes the record
/// some milliseconds after it made the directory.
const UNBORN_AGE: Duration = Duration::from_secs(60);

/// Removes the directories of jobs whose runner was killed before it had written a record. One
/// that holds anything but what a runner makes before the record stays, as that of a job whose
/// buffer is kept.
pub fn remove_unborn(flash: &Path, now: SystemTime) {
    let jobs = jobs_dir(flash);
    if own_dir(&jobs).is_err() {
        return;
    }
    let entries = fs::read_dir(&jobs).into_iter().flatten().flatten();
    let is_dir = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    for entry in entries.filter(is_dir).take(MAX_LISTED_JOBS) {
        let dir = entry.path();
        let is_old = entry
            .metadata()
            .and_then(|meta| meta.modified())
            .is_ok_and(|made| now.duration_since(made).is_ok_and(|age| age >= UNBORN_AGE));
        let names = fs::read_dir(&dir).into_iter().flatten();
        let only_ours = names
            .map(|name| name.map(|name| name.file_name()))
            .all(|name| name.is_ok_and(|name| name == NEW_RECORD_NAME || name == MOUNT_NAME));
        if is_old && only_ours {
            // What cannot be removed is in use, or is tried by another runner too.
            let _ = fs::remove_file(dir.join(NEW_RECORD_NAME));
            let _ = fs::remove_dir(dir.join(MOUNT_NAME));
            let _ = fs::remove_dir(&dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_from_its_successor() {
        let own = ProcessRef::of(std::process::id() as i32).expect("we run");
        assert!(own.is_alive());
        let earlier = ProcessRef { start_ticks: own.start_ticks - 1, ..own };
        assert!(!earlier.is_alive());
    }

    #[test]
    fn other_formats_are_refused_by_name() {
        let dir = tempfile::tempdir().expect("a directory");
        for (text, said) in [
            (r#"{"format":7}"#, "record format 7, this program reads 2"),
            (r#"{"format":2}"#, "the record is damaged"),
            ("nonsense", "this is no record of a job"),
        ] {
            fs::write(dir.path().join(RECORD_NAME), text).expect("write");
            let error = JobRecord::load(dir.path()).expect_err("refused").to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn a_directory_of_jobs_that_others_can_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let flash = tempfile::tempdir().expect("a directory");
        fs::create_dir(jobs_dir(flash.path())).expect("mkdir");
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(jobs_dir(flash.path()), open).expect("chmod");
        let error = make_job_dir(flash.path(), "job-1").expect_err("refused");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_job_whose_directory_lies_elsewhere_is_noted_until_it_is_gone() {
        let (flash, work) =
            (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
        let dir = work.path().canonicalize().expect("there").join("job-1-2");
        fs::create_dir(&dir).expect("mkdir");
        note_elsewhere(flash.path(), &dir).expect("noted");
        let here = make_job_dir(flash.path(), "job-1-3").expect("make");
        assert_eq!(dirs_elsewhere(flash.path()), std::slice::from_ref(&dir));
        assert!(is_noted(flash.path(), "job-1-2") && is_noted(flash.path(), "job-1-3"));
        assert!(!is_noted(work.path(), "job-1-2"), "it was made on other flash");
        // What has no record is old enough to be removed, and what a link leads to is none of that.
        fs::create_dir(dir.join(MOUNT_NAME)).expect("mkdir");
        remove_unborn(flash.path(), SystemTime::now() + UNBORN_AGE * 2);
        assert!(dir.join(MOUNT_NAME).exists() && !here.exists());
        forget_elsewhere(flash.path(), &work.path().join("job-1-2-3"));
        assert_eq!(dirs_elsewhere(flash.path()), std::slice::from_ref(&dir));
        forget_elsewhere(flash.path(), &dir);
        assert!(dirs_elsewhere(flash.path()).is_empty() && dir.exists());
    }

    #[test]
    fn only_old_directories_without_a_record_are_removed() {
        let flash = tempfile::tempdir().expect("a directory");
        let make = |id: &str, files: &[&str]| {
            let dir = make_job_dir(flash.path(), id).expect("make");
            fs::create_dir(dir.join(MOUNT_NAME)).expect("mkdir");
            for file in files {
                fs::write(dir.join(file), "").expect("write");
            }
            dir
        };
        let unborn = make("job-1", &[NEW_RECORD_NAME]);
        let running = make("job-2", &[RECORD_NAME]);
        let kept = make("job-3", &["mount.log"]);
        remove_unborn(flash.path(), SystemTime::now());
        assert!(unborn.exists(), "a runner may just have made it");
        remove_unborn(flash.path(), SystemTime::now() + 2 * UNBORN_AGE);
        assert!(!unborn.exists());
        assert!(running.join(MOUNT_NAME).exists() && kept.join(MOUNT_NAME).exists());
    }
}
