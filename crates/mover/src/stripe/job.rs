//! A part of a striped file that another server is asked for: a job, by its random number, with a thread
//! of its own that acts as the requester.
//!
//! Invariants: a job writes nothing before the server that asked has said that it waits for it, so a
//! question that comes late, or twice, begins nothing; it is in the list before it asks, so who stops
//! waiting and then ends it finds it. Nothing is kept on flash: a server that was started anew knows no
//! job, and the lead copies the file anew. A job that nobody asks about for
//! [`JOB_SILENCE_MAX`] stops by itself.

use super::super::engine::{Mover, Shared};
use super::super::fault::{Fault, Outcome, Sort, Where};
use super::super::memory::Memory;
use super::super::meta::Meta;
use super::super::pfs::RequesterPfs;
use super::super::stop::{Pace, StopReason};
use super::part::{How, Part};
use forebay_credentials::identity::Identity;
use forebay_failpoint::step;
use forebay_interfaces::data::Data;
use forebay_interfaces::tree::BufferTree;
use forebay_proto::attr::FileKind;
use forebay_proto::control::Direction;
use forebay_proto::layout::{STRIPE_SIZE_MAX_BYTES, STRIPE_SIZE_UNIT_BYTES};
use forebay_proto::net::staging::{StagingQuestion, StagingReply};
use forebay_proto::net::stripes::{
    JobId, LOOK_WAIT_MAX_MS, StripeEnd, StripeFault, StripeFaultSort, StripeWork, StripesQuestion,
    StripesReply,
};
use forebay_proto::{Errno, ObjectId, ShardId};
use parking_lot::{Condvar, Mutex};
use rustix::fs::{Mode, OFlags};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Jobs at work at once; more are told to ask again.
const JOBS_MAX: usize = 64;
/// Jobs that are known, those included that have come to their end and were not fetched.
const JOBS_KNOWN_MAX: usize = 1_024;
/// A job that nobody asks about for so long stops, and is forgotten.
pub(crate) const JOB_SILENCE_MAX: Duration = Duration::from_secs(60);
/// Longest that the answer to `End` is held back.
const END_WAIT: Duration = Duration::from_millis(200);
/// How often, and how long apart, the file on the PFS is looked for: a PFS may show it late.
const FILE_LOOKS: u32 = 10;
const FILE_PAUSE: Duration = Duration::from_millis(100);
/// Pause before who asked is asked again whether it waits.
const WANTED_PAUSE: Duration = Duration::from_millis(100);

/// Parts that this server waits for, and those that it was asked for.
#[derive(Default)]
pub(crate) struct Stripes {
    wanted: Mutex<HashMap<JobId, HashSet<ShardId>>>,
    jobs: Mutex<HashMap<JobId, Arc<Job>>>,
}

struct Job {
    work: StripeWork,
    pace: Pace,
    copied_bytes: AtomicU64,
    state: Mutex<JobState>,
    changed: Condvar,
}

struct JobState {
    heard: Instant,
    end: Option<StripeEnd>,
    /// Its thread runs no more.
    is_over: bool,
}

impl Stripes {
    /// From now on this server waits for the parts of these shards.
    pub fn want(&self, job: JobId, shards: impl Iterator<Item = ShardId>) {
        self.wanted.lock().insert(job, shards.collect());
    }

    /// It waits for this one no more.
    pub fn unwant(&self, job: JobId, shard: ShardId) {
        let mut wanted = self.wanted.lock();
        if let Some(shards) = wanted.get_mut(&job) {
            shards.remove(&shard);
            if shards.is_empty() {
                wanted.remove(&job);
            }
        }
    }

    fn is_wanted(&self, job: JobId, shard: ShardId) -> bool {
        self.wanted.lock().get(&job).is_some_and(|shards| shards.contains(&shard))
    }

    /// Stops all jobs; who asked for them asks again when this server takes some.
    pub fn stop(&self) {
        self.jobs.lock().values().for_each(|job| job.pace.stop(StopReason::Shutdown));
    }

    /// The plans and the paths on the PFS of jobs at work.
    pub fn at_work(&self) -> Vec<(forebay_proto::PlanId, Vec<u8>)> {
        let jobs = self.jobs.lock();
        let at_work = jobs.values().filter(|job| !job.state.lock().is_over);
        at_work.map(|job| (job.work.plan, job.work.top.clone())).collect()
    }

    fn find(&self, id: JobId) -> Option<Arc<Job>> {
        self.jobs.lock().get(&id).cloned()
    }
}

impl Job {
    fn look(&self, rate_bytes_per_s: u64, allowed_bytes: u64, wait: Duration) -> StripesReply {
        self.pace.set_rate(rate_bytes_per_s);
        self.pace.allow(allowed_bytes);
        let until = Instant::now() + wait;
        let mut state = self.state.lock();
        state.heard = Instant::now();
        while state.end.is_none() {
            if self.changed.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        StripesReply::Working {
            copied_bytes: self.copied_bytes.load(Relaxed),
            taken_bytes: self.pace.taken_bytes(),
            end: state.end.clone(),
        }
    }

    /// Stops it; true if nothing of it runs.
    fn stop(&self) -> bool {
        self.pace.stop(StopReason::Cancel);
        let until = Instant::now() + END_WAIT;
        let mut state = self.state.lock();
        state.heard = Instant::now();
        while !state.is_over {
            if self.changed.wait_until(&mut state, until).timed_out() {
                return false;
            }
        }
        true
    }

    fn is_silent(&self) -> bool {
        self.state.lock().heard.elapsed() > JOB_SILENCE_MAX
    }

    fn check(&self) -> Outcome<()> {
        if self.is_silent() { Err(Fault::stopped()) } else { Ok(()) }
    }
}

impl Mover {
    /// Answers about parts of striped files.
    pub(crate) fn answer_stripes(&self, question: StripesQuestion) -> StripesReply {
        let stripes = &self.shared.stripes;
        match question {
            StripesQuestion::Begin { job, work } => self.shared.begin_stripe(job, *work),
            StripesQuestion::Look { job, rate_bytes_per_s, allowed_bytes, wait_ms } => {
                let wait = Duration::from_millis(wait_ms.min(LOOK_WAIT_MAX_MS).into());
                match stripes.find(job) {
                    Some(found) => found.look(rate_bytes_per_s, allowed_bytes, wait),
                    None => StripesReply::Unknown,
                }
            }
            StripesQuestion::End { job } => match stripes.find(job) {
                Some(found) if !found.stop() => {
                    StripesReply::Busy("the file system does not answer".into())
                }
                Some(_) => {
                    stripes.jobs.lock().remove(&job);
                    step("a part is forgotten");
                    StripesReply::Ended
                }
                None => StripesReply::Unknown,
            },
            StripesQuestion::Wanted { job, shard } => {
                StripesReply::Wanted(stripes.is_wanted(job, shard))
            }
        }
    }
}

impl Shared {
    fn begin_stripe(self: &Arc<Shared>, id: JobId, work: StripeWork) -> StripesReply {
        let mut state = self.state.lock();
        if state.shut_down {
            return StripesReply::Busy("the server ends".into());
        }
        let mut jobs = self.stripes.jobs.lock();
        if jobs.contains_key(&id) {
            return StripesReply::Begun;
        }
        jobs.retain(|_, job| {
            let is_silent = job.is_silent();
            if is_silent {
                job.pace.stop(StopReason::Cancel);
            }
            !is_silent || !job.state.lock().is_over
        });
        let at_work = jobs.values().filter(|job| !job.state.lock().is_over).count();
        if at_work >= JOBS_MAX || jobs.len() >= JOBS_KNOWN_MAX {
            return StripesReply::Busy(format!("{at_work} parts of files are copied there"));
        }
        let plan = work.plan;
        let job = Arc::new(Job {
            work,
            pace: Pace::metered(JOB_SILENCE_MAX),
            copied_bytes: AtomicU64::new(0),
            state: Mutex::new(JobState { heard: Instant::now(), end: None, is_over: false }),
            changed: Condvar::new(),
        });
        jobs.insert(id, job.clone());
        let shared = self.clone();
        let body = move || shared.run_stripe(id, &job);
        match std::thread::Builder::new().name(format!("stripe-{plan}")).spawn(body) {
            Ok(thread) => {
                state.threads.retain(|(_, thread)| !thread.is_finished());
                state.threads.push((plan, thread));
                StripesReply::Begun
            }
            Err(error) => {
                jobs.remove(&id);
                StripesReply::Busy(format!("no thread can be started: {error}"))
            }
        }
    }

    fn run_stripe(&self, id: JobId, job: &Job) {
        step("a part is in the list");
        let body = || self.work_stripe(id, job);
        let end = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
            let why = "internal error, please report it";
            Err(Fault::of(Sort::Refused, Where::Target, "copy part of striped file", why))
        });
        let end = end.unwrap_or_else(|fault| StripeEnd::Failed(told(&fault)));
        if !matches!(end, StripeEnd::Copied { .. }) {
            tracing::info!(plan = %job.work.plan, ?id, ino = %job.work.ino, ?end,
                "a part of a striped file is not copied here");
        }
        {
            let mut state = job.state.lock();
            state.end = Some(end);
            state.is_over = true;
        }
        job.changed.notify_all();
        // Who waits for all to end looks under this lock.
        drop(self.state.lock());
        self.changed.notify_all();
    }

    fn work_stripe(&self, id: JobId, job: &Job) -> Outcome<StripeEnd> {
        let cannot = |why: String| Ok(StripeEnd::Cannot(why));
        let work = &job.work;
        let Some(object) = self.object_of(work) else {
            return cannot("it has no such object".into());
        };
        let identity = match Identity::of(&work.who) {
            Ok(identity) => identity,
            Err(why) => return cannot(why),
        };
        identity.adopt_thread().map_err(Fault::source("take identity"))?;
        if !self.is_wanted(id, job)? {
            return cannot("nobody waits for it".into());
        }
        step("a part is wanted");
        let options = &self.options;
        let bytes = |path: &std::path::PathBuf| {
            std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()).to_vec()
        };
        let pfs = RequesterPfs {
            identity,
            roots: Arc::new(options.pfs_roots.iter().map(bytes).collect()),
            hook: options.hook.clone(),
            temp_prefix: Vec::new(),
            // It gives no names.
            no_clobber: false,
            fstab: options.fstab.clone(),
        };
        let file = match find_file(&pfs, work, &job.pace)? {
            Ok(file) => file,
            Err(why) => return cannot(why),
        };
        let bytes = work.layout.object_bytes(object.stripe, work.size_bytes);
        let data = self.tree.object(object, bytes, work.direction == Direction::In);
        let data: Data = match data {
            Ok(data) => data,
            Err(errno) => return cannot(format!("its object cannot be opened: {errno}")),
        };
        step("a part is open");
        let part = Part {
            pfs: &pfs,
            direction: work.direction,
            medium: work.medium,
            layout: work.layout,
            stripe: object.stripe,
            size_bytes: work.size_bytes,
            file: Arc::new(file),
            name: &work.name,
            object: data,
        };
        let how = How {
            pace: &job.pace,
            count: &|bytes| {
                job.copied_bytes.fetch_add(bytes, Relaxed);
            },
            check: &|| job.check(),
        };
        match part.copy(&how, &mut Memory::new())? {
            Some(crc32c) => Ok(StripeEnd::Copied { crc32c }),
            None => cannot("the source does not end where it says".into()),
        }
    }

    /// The object that this server has of the file; `None` if what is asked makes no sense.
    fn object_of(&self, work: &StripeWork) -> Option<ObjectId> {
        let peers = &self.options.servers.as_ref()?.peers;
        let (layout, unit_bytes) = (&work.layout, work.layout.stripe_size_bytes);
        let is_sound = layout.is_striped()
            && layout.stripe_count <= peers.count()
            && (STRIPE_SIZE_UNIT_BYTES..=STRIPE_SIZE_MAX_BYTES).contains(&unit_bytes)
            && unit_bytes.is_multiple_of(STRIPE_SIZE_UNIT_BYTES)
            && work.size_bytes <= i64::MAX as u64
            && work.ino.shard().0 < peers.count()
            && work.ino.shard() != peers.mine();
        let stripe = layout.stripe_on(peers.mine(), peers.count()).filter(|_| is_sound)?;
        Some(ObjectId { ino: work.ino, stripe })
    }

    /// Asks the server of the file's inode whether it waits for this job.
    fn is_wanted(&self, id: JobId, job: &Job) -> Outcome<bool> {
        let Some(servers) = &self.options.servers else { return Ok(false) };
        let question = StripesQuestion::Wanted { job: id, shard: servers.peers.mine() };
        let question = StagingQuestion::Stripes(question);
        loop {
            job.check()?;
            match servers.ask(job.work.ino.shard(), &question) {
                Ok(StagingReply::Stripes(StripesReply::Wanted(wanted))) => return Ok(wanted),
                Err(Errno::ETIMEDOUT | Errno::EHOSTUNREACH) => job.pace.sleep(WANTED_PAUSE)?,
                _ => return Ok(false),
            }
        }
    }
}

/// Opens the file on the PFS as the requester; in words why it is not the one that is meant.
fn find_file(
    pfs: &RequesterPfs,
    work: &StripeWork,
    pace: &Pace,
) -> Outcome<std::result::Result<File, String>> {
    let mut why = String::new();
    for look in 0..FILE_LOOKS {
        if look > 0 {
            pace.sleep(FILE_PAUSE)?;
        }
        match open_file(pfs, work) {
            Ok((file, meta)) if is_meant(&meta, work) => return Ok(Ok(file)),
            Ok(_) => why = "this server sees another file there".into(),
            Err(errno) => why = format!("it cannot be opened here: {errno}"),
        }
    }
    Ok(Err(format!("{why}; is the same file system mounted here?")))
}

fn open_file(pfs: &RequesterPfs, work: &StripeWork) -> Result<(File, Meta), Errno> {
    let dir = pfs.walk_down(&work.top, &work.rel)?;
    let _acting = pfs.act("open", &work.name)?;
    // O_NONBLOCK: a fifo in its place must not hang the thread. O_NOATIME: as the copy by one server.
    let access = match work.direction {
        Direction::In => OFlags::RDONLY,
        Direction::Out => OFlags::RDWR,
    };
    let flags = access | OFlags::NONBLOCK;
    let opened = match pfs.open_at(&dir, &work.name, flags | OFlags::NOATIME, Mode::empty()) {
        // Only the owner may read without leaving a trace.
        Err(Errno::EPERM) => pfs.open_at(&dir, &work.name, flags, Mode::empty()),
        opened => opened,
    };
    let file = File::from(opened?);
    let stat = rustix::fs::fstat(&file).map_err(|e| Errno(e.raw_os_error()))?;
    let meta = Meta::of_stat(&stat).ok_or(Errno::EINVAL)?;
    Ok((file, meta))
}

fn is_meant(meta: &Meta, work: &StripeWork) -> bool {
    let is_same = meta.kind == FileKind::File
        && meta.ino == work.pfs_ino
        && meta.size_bytes == work.size_bytes;
    is_same && (work.direction == Direction::Out || meta.mtime == work.mtime)
}

fn told(fault: &Fault) -> StripeFault {
    StripeFault {
        at_source: fault.side == Where::Source,
        what: fault.what.into(),
        errno: fault.errno.0,
        why: fault.why.clone(),
        sort: match fault.sort {
            Sort::System => StripeFaultSort::System,
            Sort::SourceChanged => StripeFaultSort::SourceChanged,
            Sort::Mismatch => StripeFaultSort::Mismatch,
            Sort::Refused | Sort::Partial => StripeFaultSort::Refused,
            Sort::Stopped => StripeFaultSort::Stopped,
        },
    }
}
