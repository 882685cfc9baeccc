//! The server of a striped file's inode copies the file: it asks the servers that hold it for their
//! parts, all at once, copies its own meanwhile, and joins what comes of them.
//!
//! Invariants
//! * The temporary file, its size, attributes, publication and journal are this server's; a part is only
//!   bytes. The attributes come after the last part has ended.
//! * A part is waited for until it has ended, or this server has stopped waiting (`Stripes::unwant`) and
//!   then told it to end. If a server cannot be told, the temporary file is given up, and no other
//!   server writes into it again.
//! * The limit is kept here: other servers read no more than they are allowed, a little ahead of what
//!   was counted.
//! * Where a server cannot do its part, the whole file is copied by this one, as a small file is.
//!
//! Called by `worker` for each file, before it copies it alone.

use super::super::copy::Copied;
use super::super::fault::{Fault, Outcome, Sort, Where};
use super::super::memory::Memory;
use super::super::meta::{OpenSource, Temp, TempAt};
use super::super::parts::Servers;
use super::super::pieces::PIECE_BYTES;
use super::super::run::Run;
use super::super::task::Task;
use super::job::JOB_SILENCE_MAX;
use super::part::{How, Part, away};
use super::sum::of_parts;
use forebay_failpoint::step;
use forebay_interfaces::data::{Data, Spread};
use forebay_interfaces::tree::BufferTree;
use forebay_proto::control::{Direction, Verify};
use forebay_proto::net::staging::{StagingQuestion, StagingReply, WORK_PATH_BYTES_MAX};
use forebay_proto::net::stripes::{
    JobId, StripeEnd, StripeFault, StripeFaultSort, StripeWork, StripesQuestion, StripesReply,
};
use forebay_proto::{Errno, ObjectId, ShardId};
use parking_lot::Mutex;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Smaller files are copied by one server: asking costs more than moving the bytes.
pub(crate) const SPREAD_FROM_BYTES: u64 = 1 << 20;
/// How long the answer of a server that has begun is waited for, in milliseconds.
const LOOK_WAIT_MS: u32 = 50;
/// Pause before a server that is busy is asked again.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// Pause before a server that does not answer is asked again.
const AWAY_PAUSE: Duration = Duration::from_millis(200);
/// How long a server that does not answer is asked again, before the file is begun anew. Less than what
/// makes a job stop by itself.
const AWAY_MAX: Duration = Duration::from_secs(40);
const _: () = assert!(AWAY_MAX.as_secs() < JOB_SILENCE_MAX.as_secs());
/// How long a server is told to end its part.
const END_MAX: Duration = Duration::from_secs(3);
/// Pieces of a limited plan that another server may be ahead.
const AHEAD_PIECES: u64 = 2;

/// Told of bytes copied by a server; negative: they do not count after all.
pub(crate) type Count<'a> = &'a (dyn Fn(Option<ShardId>, i64) + Sync);

/// One copy of one file.
struct Lead<'a> {
    run: &'a Run,
    servers: &'a Servers,
    spread: Spread,
    job: JobId,
    work: StripeWork,
    file: Arc<File>,
    count: Count<'a>,
    counted: Mutex<Vec<(Option<ShardId>, u64)>>,
    /// A part has failed: the others stop.
    is_lost: AtomicBool,
}

/// What became of a part.
enum PartEnd {
    /// What it adds to the checksum.
    Copied(u32),
    /// In words.
    Cannot(String),
    Failed(Fault),
}

/// The same, and whether nothing more is written there for sure.
type Ended = (PartEnd, bool);

/// Copies a striped file by the servers that hold it. `None`: this one has to do it alone, from the
/// start; the target is empty.
pub(crate) fn copy_spread(
    run: &Run,
    task: &Task,
    source: &OpenSource,
    temp: &Temp,
    count: Count<'_>,
    memory: &mut Memory,
) -> Outcome<Option<Copied>> {
    let Some(lead) = Lead::of(run, task, source, temp, count)? else { return Ok(None) };
    temp.file.set_len(lead.work.size_bytes).map_err(Fault::target("size target"))?;
    let ends = lead.copy(memory);
    lead.join(ends, temp)
}

impl<'a> Lead<'a> {
    /// `None` for a file that one server copies.
    fn of(
        run: &'a Run,
        task: &Task,
        source: &OpenSource,
        temp: &Temp,
        count: Count<'a>,
    ) -> Outcome<Option<Lead<'a>>> {
        let request = &run.request;
        let direction = request.spec.direction;
        let (striped, file) = match direction {
            Direction::In => (&temp.file, &source.file),
            Direction::Out => (&source.file, &temp.file),
        };
        let size_bytes = source.meta.size_bytes;
        let (Some(servers), Some(spread), Data::File(file)) = (&run.peers, striped.spread(), file)
        else {
            return Ok(None);
        };
        let (top, name, pfs_ino) = match (direction, &temp.at) {
            (Direction::In, _) => (&task.source_top, &task.source_name, source.meta.ino),
            (Direction::Out, TempAt::Pfs { name, ino }) => (&task.target_top, name, *ino),
            (Direction::Out, TempAt::Buffer { .. }) => return Ok(None),
        };
        let work = StripeWork {
            plan: request.plan,
            who: request.who.clone(),
            direction,
            medium: request.spec.verify == Verify::Medium,
            ino: spread.ino,
            layout: spread.layout,
            size_bytes,
            top: top.to_vec(),
            rel: task.rel.to_vec(),
            name: name.clone(),
            pfs_ino,
            mtime: source.meta.mtime,
        };
        let is_spread = spread.layout.is_striped() && spread.objects(size_bytes).nth(1).is_some();
        let is_told = size_bytes >= SPREAD_FROM_BYTES && work.path_bytes() <= WORK_PATH_BYTES_MAX;
        if !is_spread || !is_told || goes_on(direction, file, size_bytes)? {
            return Ok(None);
        }
        let number = forebay_net::random::bytes().map(u64::from_le_bytes);
        let number = number.map_err(|e| Fault::source("take a random number")(e.into()))?;
        Ok(Some(Lead {
            run,
            servers,
            spread,
            job: JobId(number),
            work,
            file: file.clone(),
            count,
            counted: Mutex::default(),
            is_lost: AtomicBool::new(false),
        }))
    }
}

/// True if there are bytes behind the size that a source on the PFS says: it is not to be believed.
fn goes_on(direction: Direction, file: &File, size_bytes: u64) -> Outcome<bool> {
    let read = match direction {
        Direction::In => file.read_at(&mut [0], size_bytes),
        Direction::Out => Ok(0),
    };
    let got = read.map_err(|e| Fault::source("read source")(Errno::from_io(&e)))?;
    Ok(got > 0)
}

impl Lead<'_> {
    /// All parts, at once.
    fn copy(&self, memory: &mut Memory) -> Vec<Ended> {
        let mine = self.servers.peers.mine();
        let objects: Vec<_> = self.spread.objects(self.work.size_bytes).collect();
        let others = || objects.iter().filter(|(shard, _)| *shard != mine);
        self.run.stripes.want(self.job, others().map(|(shard, _)| *shard));
        let ends = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (shard, _) in others() {
                let name = format!("parts-{}", self.run.request.plan);
                let body = move || self.other_part(*shard);
                match std::thread::Builder::new().name(name).spawn_scoped(scope, body) {
                    Ok(thread) => threads.push(Ok(thread)),
                    Err(error) => {
                        self.run.stripes.unwant(self.job, *shard);
                        let fault = Fault::source("start a thread")(error.into());
                        threads.push(Err((self.lost(PartEnd::Failed(fault)), true)));
                    }
                }
            }
            let own = objects.iter().find(|(shard, _)| *shard == mine);
            let own = own.map(|(_, object)| (self.own_part(*object, memory), true));
            let panicked = || {
                let why = "internal error, please report it";
                let what = "copy part of striped file";
                (PartEnd::Failed(Fault::of(Sort::Refused, Where::Target, what, why)), false)
            };
            let others = threads.into_iter().map(|thread| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|_| panicked()),
                Err(ended) => ended,
            });
            own.into_iter().chain(others.collect::<Vec<_>>()).collect()
        });
        // Also of one whose thread panicked.
        others().for_each(|(shard, _)| self.run.stripes.unwant(self.job, *shard));
        ends
    }

    /// What comes of all parts: the copy; or a failure; or nothing, on an empty target.
    fn join(&self, ends: Vec<Ended>, temp: &Temp) -> Outcome<Option<Copied>> {
        let are_over = ends.iter().all(|(_, is_over)| *is_over);
        let (mut sums, mut cannot, mut stopped) = (Vec::new(), None, None);
        for (end, _) in ends {
            match end {
                PartEnd::Copied(sum) => sums.push(sum),
                PartEnd::Cannot(why) => cannot = Some(why),
                PartEnd::Failed(fault) if fault.is_stop() => stopped = Some(fault),
                PartEnd::Failed(fault) => return Err(fault),
            }
        }
        self.run.pace.check()?;
        if let Some(why) = cannot {
            if !are_over {
                let why = format!("{why}; and it does not answer any more");
                return Err(away(self.work.direction, Errno::ETIMEDOUT, why));
            }
            tracing::warn!(plan = %self.run.request.plan, ino = %self.work.ino,
                "a striped file is copied by one server: {why}");
            for (shard, bytes) in self.counted.lock().drain(..) {
                (self.count)(shard, -(bytes as i64));
            }
            temp.file.set_len(0).map_err(Fault::target("size target"))?;
            return Ok(None);
        }
        match stopped {
            Some(fault) => Err(fault),
            None => {
                let size_bytes = self.work.size_bytes;
                Ok(Some(Copied::of_parts(size_bytes, of_parts(size_bytes, sums.into_iter()))))
            }
        }
    }

    /// Counts what a server copied; `None`: this one.
    fn count(&self, shard: Option<ShardId>, bytes: u64) {
        (self.count)(shard, bytes as i64);
        let mut counted = self.counted.lock();
        match counted.iter_mut().find(|(whose, _)| *whose == shard) {
            Some((_, sum)) => *sum += bytes,
            None => counted.push((shard, bytes)),
        }
    }

    /// The end of a part; if it is not what was wanted, the others stop.
    fn lost(&self, end: PartEnd) -> PartEnd {
        if !matches!(end, PartEnd::Copied(_)) {
            self.is_lost.store(true, Relaxed);
        }
        end
    }

    fn check(&self) -> Outcome<()> {
        self.run.pace.check()?;
        if self.is_lost.load(Relaxed) { Err(Fault::stopped()) } else { Ok(()) }
    }

    /// What this server has itself.
    fn own_part(&self, object: ObjectId, memory: &mut Memory) -> PartEnd {
        let (run, work) = (self.run, &self.work);
        let is_target = work.direction == Direction::In;
        let mut copied = || {
            let bytes = work.layout.object_bytes(object.stripe, work.size_bytes);
            let side = if is_target { Where::Target } else { Where::Source };
            let data = run
                .tree
                .object(object, bytes, is_target)
                .map_err(|errno| Fault { side, ..Fault::source("open object")(errno) })?;
            let part = Part {
                pfs: &run.pfs,
                direction: work.direction,
                medium: work.medium,
                layout: work.layout,
                stripe: object.stripe,
                size_bytes: work.size_bytes,
                file: self.file.clone(),
                name: &work.name,
                object: data,
            };
            let how = How {
                pace: &run.pace,
                count: &|bytes| self.count(None, bytes),
                check: &|| self.check(),
            };
            part.copy(&how, memory)
        };
        self.lost(match copied() {
            Ok(Some(sum)) => PartEnd::Copied(sum),
            Ok(None) => PartEnd::Cannot("the source does not end where it says".into()),
            Err(fault) => PartEnd::Failed(fault),
        })
    }

    /// What another server has.
    fn other_part(&self, shard: ShardId) -> Ended {
        let end = self.follow(shard).unwrap_or_else(PartEnd::Failed);
        let is_copied = matches!(end, PartEnd::Copied(_));
        let end = self.lost(end);
        step("a part has ended elsewhere");
        // In this order: what is begun there from now on is refused, what was is ended.
        self.run.stripes.unwant(self.job, shard);
        (end, self.end(shard, is_copied))
    }

    /// Asks a server for its part until it has come to its end.
    fn follow(&self, shard: ShardId) -> Outcome<PartEnd> {
        let pace = &self.run.pace;
        let (mut has_begun, mut away_since) = (false, None);
        let (mut copied, mut taken, mut allowed) = (0, 0, 0);
        loop {
            self.check()?;
            let (job, rate) = (self.job, pace.rate());
            let question = match has_begun {
                false => StripesQuestion::Begin { job, work: Box::new(self.work.clone()) },
                true => StripesQuestion::Look {
                    job,
                    rate_bytes_per_s: rate,
                    allowed_bytes: if rate == 0 { u64::MAX } else { allowed },
                    wait_ms: LOOK_WAIT_MS,
                },
            };
            let reply = match self.ask(shard, question) {
                Ok(reply) => reply,
                Err(Errno::EIO) => return Err(self.away(shard, Errno::EIO, "it is lost")),
                // Also of one that has started and has not opened the buffer yet.
                Err(errno) => {
                    if away_since.get_or_insert_with(Instant::now).elapsed() > AWAY_MAX {
                        let why = format!("it does not answer: {errno}");
                        return Err(self.away(shard, Errno::ETIMEDOUT, &why));
                    }
                    self.run.parts.note_away();
                    pace.sleep(AWAY_PAUSE)?;
                    continue;
                }
            };
            away_since = None;
            match reply {
                StripesReply::Begun => {
                    step("a part is begun elsewhere");
                    has_begun = true;
                }
                StripesReply::Busy(_) => pace.sleep(BUSY_PAUSE)?,
                StripesReply::Working { copied_bytes, taken_bytes, end } => {
                    self.count(Some(shard), copied_bytes.saturating_sub(copied));
                    copied = copied.max(copied_bytes);
                    if pace.charge(taken_bytes.saturating_sub(taken)) {
                        allowed = taken_bytes + AHEAD_PIECES * pace.piece_bytes(PIECE_BYTES);
                    }
                    taken = taken.max(taken_bytes);
                    if let Some(end) = end {
                        return Ok(self.end_of(shard, end));
                    }
                }
                StripesReply::Unknown => {
                    let why = "it was started anew while it copied its part";
                    return Err(self.away(shard, Errno::ETIMEDOUT, why));
                }
                StripesReply::Ended | StripesReply::Wanted(_) => {
                    let why = "its answer makes no sense; do all servers run the same version?";
                    return Err(self.away(shard, Errno::EPROTO, why));
                }
            }
        }
    }

    fn ask(&self, shard: ShardId, question: StripesQuestion) -> Result<StripesReply, Errno> {
        match self.servers.ask(shard, &StagingQuestion::Stripes(question))? {
            StagingReply::Stripes(reply) => Ok(reply),
            _ => Err(Errno::EPROTO),
        }
    }

    /// A failure to ask a server, by its name.
    fn away(&self, shard: ShardId, errno: Errno, why: &str) -> Fault {
        let why = format!("{}: {why}", self.servers.peers.name(shard));
        away(self.work.direction, errno, why)
    }

    fn end_of(&self, shard: ShardId, end: StripeEnd) -> PartEnd {
        let server = || self.servers.peers.name(shard);
        match end {
            StripeEnd::Copied { crc32c } => PartEnd::Copied(crc32c),
            StripeEnd::Cannot(why) => PartEnd::Cannot(format!("{}: {why}", server())),
            StripeEnd::Failed(fault) if fault.sort == StripeFaultSort::Stopped => {
                PartEnd::Failed(self.away(shard, Errno::ETIMEDOUT, "it has stopped its part"))
            }
            StripeEnd::Failed(fault) => PartEnd::Failed(heard(fault, &server())),
        }
    }

    /// Tells a server to stop its part and forget it; true if nothing of it runs there. One that has
    /// copied it is told once: it forgets by itself.
    fn end(&self, shard: ShardId, is_copied: bool) -> bool {
        let until = Instant::now() + END_MAX;
        loop {
            match self.ask(shard, StripesQuestion::End { job: self.job }) {
                Ok(StripesReply::Ended | StripesReply::Unknown) => return true,
                _ if is_copied => return true,
                _ if Instant::now() > until => return false,
                _ => std::thread::sleep(BUSY_PAUSE),
            }
        }
    }
}

/// What is being done when a part fails, as `Fault` has it.
const KNOWN_STEPS: [&str; 9] = [
    "find holes of source",
    "fsync target",
    "read source",
    "size target",
    "stat source",
    "stat target",
    "take identity",
    "verify",
    "write target",
];

/// Another server's failure, as one of this server's.
fn heard(fault: StripeFault, server: &str) -> Fault {
    let what = KNOWN_STEPS.into_iter().find(|known| *known == fault.what);
    let errno = Errno(fault.errno);
    let why = fault.why.unwrap_or_else(|| errno.to_string());
    Fault {
        what: what.unwrap_or("copy part of striped file"),
        side: if fault.at_source { Where::Source } else { Where::Target },
        errno,
        why: Some(format!("{server}: {why}")),
        sort: match fault.sort {
            StripeFaultSort::System | StripeFaultSort::Stopped => Sort::System,
            StripeFaultSort::SourceChanged => Sort::SourceChanged,
            StripeFaultSort::Mismatch => Sort::Mismatch,
            StripeFaultSort::Refused => Sort::Refused,
        },
    }
}
