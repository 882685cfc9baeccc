//! `forebay bench ior`: IOR's phases on real files.
//!
//! A repetition is, as asked: write, check what was written, read, read and check. Each phase: all meet; each
//! rank opens, moves its transfers one after the other, fsyncs if asked, closes; all meet. Between phases the
//! coordinator (which moves nothing) looks at the page cache, and empties it for a cold read.
//!
//! Invariants: a file that was there before is neither written nor removed unless that was asked for. Files that
//! the run made are removed at its end, also after a failure or a signal, unless they are to be kept. A phase is
//! called cold only if the page cache was seen to hold none of its files.
//! Caller: the command line's `forebay bench ior`.

use crate::failed;
use crate::far::Far;
use crate::far_host::{self, Host};
use crate::log::{Call, Log};
use crate::mpi::{self, How, World};
use crate::outcome::{Access, Phase, Run, Stonewall};
use crate::ranks::{Signals, Team, why_ranks_failed};
use crate::residency::{self, Cache, Pages};
use crate::shared::{MAX_RANKS, Measured, Shared, Slot, Stamp, now_ns};
use crate::target::Target;
use forebay_workload::content::{Aligned, Content, Filler, Place};
use forebay_workload::ior::{Order, Pattern, PatternError, Reorder, Walk};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Ior {
    /// Who accesses what.
    pub pattern: Pattern,
    /// Whose part is read back.
    pub reads: Reorder,
    /// Whose part is compared by `-W`.
    pub write_checks: Reorder,
    /// Whether the seed of `reads` grows by 1 with each repetition (a negative `-X`).
    pub reads_change: bool,
    /// The file (`-o`), or what the names of the ranks' files begin with.
    pub path: PathBuf,
    /// `-w`.
    pub write: bool,
    /// `-W`.
    pub write_check: bool,
    /// `-r`.
    pub read: bool,
    /// `-R`.
    pub read_check: bool,
    /// `-i`.
    pub repetitions: u32,
    /// `-d`: pause before each phase.
    pub delay: Duration,
    /// `-T`: no repetition begins later than this after the start.
    pub time_limit: Option<Duration>,
    /// `-l`.
    pub content: Content,
    /// `-G`, or drawn for the run.
    pub seed: u32,
    /// `-e`: one fsync by each rank at the end of a write phase, inside its time.
    pub fsync: bool,
    /// `-Y`: one after each write.
    pub fsync_per_write: bool,
    /// O_DIRECT.
    pub direct: bool,
    /// By MPI-IO, under an MPI launcher.
    pub mpi_io: Option<MpiIo>,
    /// `-k`.
    pub keep: bool,
    /// `-K`: keep the files if something went wrong.
    pub keep_after_errors: bool,
    /// `-E`: write into files that are there, and do not remove them first.
    pub use_existing: bool,
    /// Replace files that are there.
    pub overwrite: bool,
    /// `-u`: a directory for each rank's file.
    pub unique_dir: bool,
    /// `-m`: a file for each repetition.
    pub multi_file: bool,
    /// `-g`: barriers between open, transfers and close.
    pub barriers: bool,
    /// `-D`: each rank stops issuing transfers after this time.
    pub deadline: Option<Duration>,
    /// After the deadline every rank goes on until it has done as many transfers as the one that did most.
    pub wear_out: bool,
    /// Where the number of transfers of a write phase is kept, for a read phase of this or another run.
    pub status_file: Option<PathBuf>,
    /// `-M`: memory that the ranks hold together, in bytes.
    pub hog_bytes: u64,
    /// Reads must be cold.
    pub cold: bool,
    /// Each transfer's start and duration, as CSV files with this beginning.
    pub per_transfer_csv: Option<PathBuf>,
    /// A directory that is there: each operation is logged there, as a trace.
    pub log: Option<PathBuf>,
}

/// How MPI-IO is used (`-a MPIIO`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MpiIo {
    /// `-c`: transfers to a shared file are collective.
    pub collective: bool,
}

/// Why a run was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum IorError {
    /// The parameters do not fit together.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A parameter, said in words.
    #[error("{0}")]
    Refused(String),
    /// A call on a file failed.
    #[error("{what} {}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Starting the ranks failed.
    #[error("start {ranks} ranks")]
    Start {
        /// How many.
        ranks: u32,
        /// Why not.
        source: io::Error,
    },
    /// It is there, and is to be left alone.
    #[error("write {}: it is there already", .0.display())]
    Exists(PathBuf),
    /// A read that is to be cold would not be, or that cannot be seen.
    #[error("read {} from an empty page cache: {why}", path.display())]
    NotCold {
        /// What was to be read.
        path: PathBuf,
        /// Why it is not cold.
        why: String,
    },
    /// A rank failed, or the run was stopped: a text of [`failed`].
    #[error("{}", failed::plain(.0))]
    Rank(String),
}

/// What a run tells while it goes on.
pub trait Progress {
    /// A phase begins, in which `total_bytes` will move.
    fn begin(&mut self, access: Access, repetition: u32, total_bytes: u64);
    /// So many bytes have moved in it.
    fn moved(&mut self, bytes: u64);
    /// A phase is over.
    fn end(&mut self, phase: &Phase);
}

impl Ior {
    /// Checks the parameters, and what is on the file system, before anything is touched.
    pub fn check(&self) -> Result<(), IorError> {
        self.pattern.check(self.reads)?;
        let refused = |text: String| Err(IorError::Refused(text));
        if self.pattern.tasks > MAX_RANKS {
            return refused(format!("{} processes (-N): at most {MAX_RANKS}", self.pattern.tasks));
        }
        if self.wear_out && self.deadline.is_none() {
            return refused("-O stoneWallingWearOut=1 needs a deadline (-D)".into());
        }
        if let Some(mpi) = self.mpi_io {
            if mpi::world().is_none() {
                return refused("-a MPIIO: start it by mpirun or srun".into());
            }
            let shared = !self.pattern.file_per_process;
            let uneven = self.deadline.is_some() || self.pattern.order != Order::Sequential;
            let together = mpi.collective || self.fsync_per_write;
            if shared && uneven && together {
                return refused(
                    "collective calls (-c, or -Y by MPI-IO) on a shared file need as many transfers of each process: not with -D or -z"
                        .into(),
                );
            }
            if self.direct {
                return refused("O_DIRECT is not MPI-IO's to set: leave --odirect out".into());
            }
        }
        if self.direct && self.pattern.transfer_bytes % 512 != 0 {
            let bytes = self.pattern.transfer_bytes;
            return refused(format!(
                "O_DIRECT needs transfers (-t) of whole blocks: {bytes} is not a multiple of 512"
            ));
        }
        if usize::try_from(self.pattern.transfer_bytes).is_err()
            || self.pattern.transfer_bytes > MAX_TRANSFER_BYTES
        {
            return refused(format!("a transfer (-t) has at most {MAX_TRANSFER_BYTES} bytes"));
        }
        self.check_files()
    }

    fn check_files(&self) -> Result<(), IorError> {
        let reads_only = !self.write && !self.use_existing;
        for repetition in 0..self.repetitions.min(if self.multi_file { u32::MAX } else { 1 }) {
            for rank in 0..self.pattern.files() {
                let path = self.file_of(rank, repetition);
                let there = path.symlink_metadata().is_ok();
                if there && !reads_only && !self.overwrite && !self.use_existing {
                    return Err(IorError::Exists(path));
                }
                if !there && (reads_only || self.use_existing) {
                    let source = io::Error::from_raw_os_error(libc::ENOENT);
                    return Err(IorError::File { what: "find", path, source });
                }
            }
        }
        Ok(())
    }

    /// The file that holds the part of `rank`.
    pub fn file_of(&self, rank: u32, repetition: u32) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        if self.pattern.file_per_process {
            if self.unique_dir {
                let dir = self.path.parent().unwrap_or(Path::new(""));
                let file = self.path.file_name().unwrap_or_default();
                name = dir.join(rank.to_string()).join(file).into_os_string();
            }
            name.push(format!(".{rank:08}"));
        }
        if self.multi_file {
            name.push(format!(".{repetition}"));
        }
        PathBuf::from(name)
    }

    /// Runs it all. The process must have one thread.
    pub fn run(&self, progress: &mut dyn Progress) -> Result<Run, IorError> {
        self.check()?;
        let ranks = self.pattern.tasks;
        let shared = Shared::new(ranks).map_err(|source| IorError::Start { ranks, source })?;
        let plan = self.plan();
        if let Some(world) = mpi::world() {
            return self.run_by_mpi(world, shared, &plan, progress);
        }
        let mut made = Made { ior: self, began: false, failed: true };
        let work = |rank| Rank { ior: self, shared: &shared, rank }.work(&plan);
        let mut team = Team::start(&shared, ranks, work)
            .map_err(|source| IorError::Start { ranks, source })?;
        let (phases, outcome) =
            self.coordinate(&shared, &plan, &mut made, &mut || team.watch(), progress);
        let ended = team.finish();
        outcome?;
        ended.map_err(IorError::Rank)?;
        made.failed = phases.iter().any(|phase| phase.differences > 0);
        Ok(Run { phases })
    }

    /// The same by ranks of MPI: this process is one of them, rank 0 also the coordinator. Only rank 0 has the result.
    fn run_by_mpi(
        &self,
        world: &'static World,
        shared: Shared,
        plan: &[(u32, Access)],
        progress: &mut dyn Progress,
    ) -> Result<Run, IorError> {
        let rank = world.rank();
        if rank != 0 {
            let far = Far::join(world).map_err(IorError::Rank)?;
            let shared = shared.far_from_rank_0(far);
            if let Some(far) = shared.far() {
                far_host::run(far, &shared, || {
                    Rank { ior: self, shared: &shared, rank }.work(plan)
                });
                far.farewell();
            }
            return Ok(Run { phases: Vec::new() });
        }
        let host = Host::open(world).map_err(IorError::Rank)?;
        let mut made = Made { ior: self, began: false, failed: true };
        let all = self.clone();
        mpi::before_abort(move || drop(Made { ior: &all, began: true, failed: true }));
        let signals = Signals::catch();
        let (phases, outcome) = host.serve(
            world,
            &shared,
            &|rank, ask| shared.answer(rank, ask),
            || Rank { ior: self, shared: &shared, rank }.work(plan),
            || self.coordinate(&shared, plan, &mut made, &mut || signals.watch(&shared), progress),
        );
        outcome?;
        if let Some(reason) = why_ranks_failed(&shared).or_else(|| signals.reason()) {
            return Err(IorError::Rank(reason));
        }
        made.failed = phases.iter().any(|phase| phase.differences > 0);
        Ok(Run { phases })
    }

    /// The coordinator's side of all phases; stops the ranks if not all of them came.
    fn coordinate(
        &self,
        shared: &Shared,
        plan: &[(u32, Access)],
        made: &mut Made<'_>,
        watch: &mut dyn FnMut(),
        progress: &mut dyn Progress,
    ) -> (Vec<Phase>, Result<(), IorError>) {
        let began = Instant::now();
        let mut phases = Vec::new();
        let mut outcome = Ok(());
        let first = plan.first().map(|&(_, access)| access);
        for (repetition, access) in plan.iter().copied() {
            let next_repetition = repetition > 0 && Some(access) == first;
            if next_repetition && self.time_limit.is_some_and(|limit| began.elapsed() >= limit) {
                break;
            }
            made.began = true;
            match self.phase(shared, watch, repetition, access, progress) {
                Ok(Some(phase)) => phases.push(phase),
                Ok(None) => break,
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        // Ranks that still wait (after a time limit, or because a phase was refused) end with the stop.
        let complete = phases.len() == plan.len();
        if !complete {
            shared.stop();
        }
        (phases, outcome)
    }

    /// The phases of a repetition, in order.
    fn accesses(&self) -> Vec<Access> {
        let wanted = [
            (self.write, Access::Write),
            (self.write_check, Access::WriteCheck),
            (self.read, Access::Read),
            (self.read_check, Access::ReadCheck),
        ];
        wanted.into_iter().filter(|(asked, _)| *asked).map(|(_, access)| access).collect()
    }

    fn plan(&self) -> Vec<(u32, Access)> {
        let accesses = self.accesses();
        (0..self.repetitions).flat_map(|rep| accesses.iter().map(move |&a| (rep, a))).collect()
    }

    /// One phase, from the coordinator's side. None if the run was stopped.
    fn phase(
        &self,
        shared: &Shared,
        watch: &mut dyn FnMut(),
        repetition: u32,
        access: Access,
        progress: &mut dyn Progress,
    ) -> Result<Option<Phase>, IorError> {
        std::thread::sleep(self.delay);
        if access == Access::Write && !self.use_existing {
            self.remove_files(repetition)?;
        }
        let before = if access.is_write() { None } else { Some(self.before_read(repetition)?) };
        shared.clear();
        let total_bytes = self.pattern.total_bytes().unwrap_or(u64::MAX);
        progress.begin(access, repetition, total_bytes);
        if shared.meet_everybody(&mut *watch).is_err() {
            return Ok(None);
        }
        let met = shared.meet_everybody(|| {
            watch();
            progress.moved(shared.slots().iter().map(Slot::bytes).sum());
        });
        if met.is_err() {
            return Ok(None);
        }
        let ranks: Vec<Measured> = shared.slots().iter().map(Slot::measured).collect();
        let mut latency = vec![0; forebay_ensemble::histogram::BUCKETS];
        shared.slots().iter().for_each(|slot| slot.add_latency(&mut latency));
        let stonewall = self.deadline.map(|_| Stonewall::of(&ranks));
        if access == Access::Write && self.deadline.is_some() {
            self.keep_status(ranks.iter().map(|rank| rank.transfers).max().unwrap_or(0))?;
        }
        let after = self.cache_of(repetition)?;
        let phase = Phase {
            access,
            repetition,
            block_bytes: self.pattern.block_bytes,
            transfer_bytes: self.pattern.transfer_bytes,
            differences: ranks.iter().map(|rank| rank.differences).sum(),
            ranks,
            latency,
            stonewall,
            before,
            after,
        };
        progress.end(&phase);
        Ok(Some(phase))
    }

    /// The page cache's state before a read; emptied first, and seen to be empty, if reads are to be cold.
    fn before_read(&self, repetition: u32) -> Result<Cache, IorError> {
        if !self.cold {
            return self.cache_of(repetition);
        }
        residency::drop_all(self.files(repetition)).map_err(|(path, source)| IorError::File {
            what: "drop the pages of",
            path,
            source,
        })?;
        let why = match self.cache_of(repetition)? {
            Cache::Seen(Pages { resident: 0, .. }) => return self.cache_of(repetition),
            Cache::Seen(pages) => format!(
                "{} of {} pages stay in the page cache (another process may use them): the read would not be cold",
                pages.resident, pages.total
            ),
            Cache::Memory => {
                "it lies on a file system in memory: no read there is cold".to_string()
            }
            Cache::Unseen => "its file system may have a cache elsewhere (FUSE, network): whether a read is cold cannot be seen from here".to_string(),
        };
        Err(IorError::NotCold { path: self.path.clone(), why })
    }

    /// The files of a repetition.
    fn files(&self, repetition: u32) -> impl Iterator<Item = PathBuf> {
        (0..self.pattern.files()).map(move |rank| self.file_of(rank, repetition))
    }

    /// What the page cache has of all files.
    fn cache_of(&self, repetition: u32) -> Result<Cache, IorError> {
        if mpi::world().is_some_and(|world| world.nodes() > 1) {
            // Each node has a cache of its own, and this one sees its own only.
            return Ok(Cache::Unseen);
        }
        let what = "look at the page cache of";
        Cache::of_all(self.files(repetition)).map_err(|(path, source)| IorError::File {
            what,
            path,
            source,
        })
    }

    /// Whose part `rank` accesses in a repetition.
    pub fn part_of(&self, access: Access, rank: u32, repetition: u32) -> u32 {
        match access {
            Access::Write => rank,
            Access::WriteCheck => self.pattern.read_rank(rank, self.write_checks),
            Access::Read | Access::ReadCheck => {
                self.pattern.read_rank(rank, self.reads_of(repetition))
            }
        }
    }

    /// Whose part is read back in a repetition.
    fn reads_of(&self, repetition: u32) -> Reorder {
        let more = if self.reads_change { repetition } else { 0 };
        match self.reads {
            Reorder::Draw { seed, least } => Reorder::Draw { seed: seed.wrapping_add(more), least },
            Reorder::Permute { seed } => Reorder::Permute { seed: seed.wrapping_add(more) },
            other => other,
        }
    }

    fn remove_files(&self, repetition: u32) -> Result<(), IorError> {
        for rank in 0..self.pattern.files() {
            let path = self.file_of(rank, repetition);
            match std::fs::remove_file(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(IorError::File { what: "remove", path, source }),
            }
        }
        Ok(())
    }

    fn keep_status(&self, transfers: u64) -> Result<(), IorError> {
        let Some(path) = &self.status_file else { return Ok(()) };
        std::fs::write(path, format!("{transfers}\n")).map_err(|source| IorError::File {
            what: "write",
            path: path.clone(),
            source,
        })
    }
}

/// Largest transfer, in bytes: each rank holds two of them.
const MAX_TRANSFER_BYTES: u64 = 1 << 30;

/// The files of a run, removed when it is over.
struct Made<'a> {
    ior: &'a Ior,
    began: bool,
    failed: bool,
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        let ior = self.ior;
        // Files that were read only, or that were there before and were written into, are not the run's.
        let keeps = ior.keep || (self.failed && ior.keep_after_errors);
        if !self.began || keeps || ior.use_existing || !ior.write {
            return;
        }
        let repetitions = if ior.multi_file { ior.repetitions } else { 1 };
        for repetition in 0..repetitions {
            if let Err(error) = ior.remove_files(repetition) {
                eprintln!("forebay bench: {error}: remove it by hand");
            }
            if ior.unique_dir && ior.pattern.file_per_process {
                for rank in 0..ior.pattern.tasks {
                    if let Some(dir) = ior.file_of(rank, repetition).parent() {
                        // One that holds something else stays.
                        let _ = std::fs::remove_dir(dir);
                    }
                }
            }
        }
    }
}

/// One rank's side.
struct Rank<'a> {
    ior: &'a Ior,
    shared: &'a Shared,
    rank: u32,
}

impl Rank<'_> {
    /// All phases. A stop is no failure of the rank.
    fn work(&self, plan: &[(u32, Access)]) -> Result<(), String> {
        let transfer_bytes = self.ior.pattern.transfer_bytes as usize;
        let mut filler = Filler::new(self.ior.content, self.ior.seed, transfer_bytes);
        let mut buffer = Aligned::new(transfer_bytes);
        let hog = Hog::new(self.ior.hog_bytes / u64::from(self.ior.pattern.tasks));
        let log = self.ior.log.as_ref();
        let mut log =
            log.map(|dir| Log::new(dir, self.rank, self.ior.pattern.tasks)).transpose()?;
        for &(repetition, access) in plan {
            if self.shared.rank_meets_everybody(self.rank, false).is_err() {
                break;
            }
            self.phase(repetition, access, &mut filler, &mut buffer, &mut log)?;
            if self.shared.rank_meets_everybody(self.rank, true).is_err() {
                break;
            }
        }
        drop(hog);
        log.map_or(Ok(()), Log::finish)
    }

    fn slot(&self) -> &Slot {
        self.shared.slot(self.rank)
    }

    fn phase(
        &self,
        repetition: u32,
        access: Access,
        filler: &mut Filler,
        buffer: &mut Aligned,
        log: &mut Option<Log<LoggedFile>>,
    ) -> Result<(), String> {
        let ior = self.ior;
        let part = ior.part_of(access, self.rank, repetition);
        let file_part = if ior.pattern.file_per_process { part } else { 0 };
        let path = ior.file_of(file_part, repetition);
        let mut noted = Noted::new(log, (file_part, repetition), &path);
        let said = |what: &str, error: io::Error| failed::said(what, &path, &error);
        let slot = self.slot();
        slot.stamp(Stamp::OpenStart);
        let began_ns = noted.now_ns();
        let file = self.open(&path, access).map_err(|error| said("open", error))?;
        noted.call(Call::Open, began_ns);
        slot.stamp(Stamp::OpenStop);
        let mut trace = PerTransfer::new(ior, repetition, access, self.rank)?;
        if ior.barriers && self.shared.meet_ranks().is_err() {
            return Ok(());
        }
        let mut mover =
            Mover { rank: self, access, part, file: &file, path: &path, filler, buffer };
        // A random order takes long to make: it is ready before the time of the transfers begins.
        let pattern = mover.pattern()?;
        let walk = pattern.walk(part);
        slot.stamp(Stamp::MoveStart);
        mover.move_all(walk, &mut trace, &mut noted)?;
        if access == Access::Write && ior.fsync {
            let began_ns = noted.now_ns();
            file.sync(false).map_err(|error| said("fsync", error))?;
            noted.call(Call::Fsync, began_ns);
        }
        slot.stamp(Stamp::MoveStop);
        if ior.barriers && self.shared.meet_ranks().is_err() {
            return Ok(());
        }
        slot.stamp(Stamp::CloseStart);
        let began_ns = noted.now_ns();
        file.close().map_err(|error| said("close", error))?;
        noted.call(Call::Close, began_ns);
        slot.stamp(Stamp::CloseStop);
        trace.finish()
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Target> {
        let ior = self.ior;
        if access == Access::Write && ior.unique_dir && ior.pattern.file_per_process {
            if let Some(dir) = path.parent() {
                std::fs::create_dir_all(dir)?;
            }
        }
        let writes = access == Access::Write;
        if let (Some(mpi), Some(world)) = (ior.mpi_io, mpi::world()) {
            let how = if writes { How::Write } else { How::Read };
            let together = !ior.pattern.file_per_process;
            return Target::open_mpi(world, path, how, together, mpi.collective);
        }
        let opened = OpenOptions::new()
            .read(true)
            .write(writes)
            .create(writes)
            .truncate(false)
            .custom_flags(if ior.direct { libc::O_DIRECT } else { 0 })
            .open(path);
        opened.map(Target::Posix)
    }
}

/// The transfers of a phase.
struct Mover<'a> {
    rank: &'a Rank<'a>,
    access: Access,
    part: u32,
    file: &'a Target,
    path: &'a Path,
    filler: &'a mut Filler,
    buffer: &'a mut Aligned,
}

impl Mover<'_> {
    fn move_all(
        &mut self,
        mut walk: Walk,
        trace: &mut PerTransfer,
        noted: &mut Noted<'_>,
    ) -> Result<(), String> {
        let Rank { ior, shared, .. } = *self.rank;
        let limit = self.transfers_to_do(walk.round())?;
        let began_ns = now_ns();
        let deadline_ns = ior.deadline.map(|after| began_ns + after.as_nanos() as u64);
        let mut done = 0;
        while done < limit && !shared.is_stopped() {
            let Some(offset) = walk.next_offset() else { break };
            let ended_ns = self.transfer(offset, began_ns, trace, noted)?;
            done += 1;
            if deadline_ns.is_some_and(|deadline| ended_ns > deadline) {
                break;
            }
        }
        let slot = self.rank.slot();
        if ior.deadline.is_some() {
            slot.meet_deadline(now_ns() - began_ns);
        }
        if ior.wear_out {
            let Ok(most) = shared.most_transfers(done) else { return Ok(()) };
            while done < most && !shared.is_stopped() {
                let Some(offset) = walk.next_offset() else { break };
                self.transfer(offset, began_ns, trace, noted)?;
                done += 1;
            }
        }
        if self.access == Access::Write {
            slot.has_written(done);
        }
        Ok(())
    }

    /// The pattern; `-z -z` draws from the file that is there.
    fn pattern(&self) -> Result<Pattern, String> {
        let mut pattern = self.rank.ior.pattern.clone();
        if let (Order::Random { .. }, false) = (pattern.order, self.access == Access::Write) {
            let file_bytes = self.file.len(self.path);
            let file_bytes =
                file_bytes.map_err(|error| failed::said("look at", self.path, &error))?;
            pattern.order = Order::Random { file_bytes };
        }
        Ok(pattern)
    }

    /// A read after a write that a deadline ended reads what was written: by this run, or by the one that left
    /// the status file.
    fn transfers_to_do(&self, round: u64) -> Result<u64, String> {
        let ior = self.rank.ior;
        if self.access == Access::Write {
            return Ok(round);
        }
        if ior.write {
            return Ok(self.rank.shared.written_by(self.part).min(round));
        }
        let Some(path) = &ior.status_file else { return Ok(round) };
        let text =
            std::fs::read_to_string(path).map_err(|error| failed::said("read", path, &error))?;
        let transfers: u64 = text.trim().parse().map_err(|_| {
            let why = "it is not the number of transfers that a write phase leaves there";
            failed::because("read", path, why)
        })?;
        Ok(transfers.min(round))
    }

    /// One transfer; returns when it ended.
    fn transfer(
        &mut self,
        offset: u64,
        began_ns: u64,
        trace: &mut PerTransfer,
        noted: &mut Noted<'_>,
    ) -> Result<u64, String> {
        let place = Place { rank: self.part, offset };
        let mut synced_from_ns = None;
        let (start_ns, moved) = match self.access {
            Access::Write => {
                let bytes = self.filler.bytes(place);
                let start_ns = now_ns();
                let mut moved = self.file.write_all_at(bytes, offset);
                if moved.is_ok() && self.rank.ior.fsync_per_write {
                    synced_from_ns = Some(now_ns());
                    moved = self.file.sync(false);
                }
                (start_ns, moved)
            }
            _ => {
                let buffer = self.buffer.bytes_mut();
                // A read that moves nothing must not find the bytes of the one before.
                buffer[0] = !buffer[0];
                let start_ns = now_ns();
                (start_ns, self.file.read_exact_at(buffer, offset))
            }
        };
        let ended_ns = now_ns();
        let bytes = self.rank.ior.pattern.transfer_bytes;
        moved.map_err(|error| {
            let what = if self.access == Access::Write { "write" } else { "read" };
            failed::said(&format!("{what} {bytes} bytes at {offset} of"), self.path, &error)
        })?;
        let call = if self.access == Access::Write { Call::Write } else { Call::Read };
        noted.at(call, (offset, bytes), (start_ns, synced_from_ns.unwrap_or(ended_ns)));
        if let Some(from_ns) = synced_from_ns {
            noted.at(Call::Fsync, (0, 0), (from_ns, ended_ns));
        }
        let slot = self.rank.slot();
        slot.moved(bytes, ended_ns - start_ns);
        trace.note(start_ns - began_ns, ended_ns - start_ns);
        if self.access.checks() {
            self.compare(place);
        }
        Ok(ended_ns)
    }

    fn compare(&mut self, place: Place) {
        let read = self.buffer.bytes_mut();
        let Some(at) = self.filler.first_difference(place, read) else { return };
        if self.rank.slot().differs() {
            eprintln!(
                "forebay bench: rank {}: {}: the byte at {} is not the one that rank {} wrote",
                self.rank.rank,
                self.path.display(),
                place.offset + at as u64,
                self.part
            );
        }
    }
}

/// Memory that a rank touches and holds, so that the page cache has less.
struct Hog(#[allow(dead_code, reason = "it is there to be held")] Vec<u8>);

impl Hog {
    fn new(bytes: u64) -> Hog {
        let mut memory = vec![0_u8; bytes as usize];
        for page in memory.chunks_mut(4096) {
            page[0] = 1;
        }
        Hog(memory)
    }
}

/// A file in the log of a rank: whose part it holds (0 if it is shared), and its repetition.
type LoggedFile = (u32, u32);

/// The log of a rank while it uses one file; does nothing, and looks at no clock, without a log.
struct Noted<'a> {
    log: Option<&'a mut Log<LoggedFile>>,
    file: LoggedFile,
}

impl<'a> Noted<'a> {
    fn new(log: &'a mut Option<Log<LoggedFile>>, file: LoggedFile, path: &Path) -> Noted<'a> {
        let mut log = log.as_mut();
        if let Some(log) = log.as_mut().filter(|log| !log.knows(&file)) {
            // A trace has whole paths. Without a working directory there is none.
            let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
            log.name(&file, &path);
        }
        Noted { file, log }
    }

    fn now_ns(&self) -> u64 {
        if self.log.is_some() { now_ns() } else { 0 }
    }

    /// A call on the whole file, which has just ended.
    fn call(&mut self, call: Call, began_ns: u64) {
        let ended_ns = self.now_ns();
        self.at(call, (0, 0), (began_ns, ended_ns));
    }

    /// A call at an offset, of a length, with its start and end.
    fn at(&mut self, call: Call, place: (u64, u64), times: (u64, u64)) {
        if let Some(log) = &mut self.log {
            log.call(call, &self.file, place.0, place.1, times.0, times.1);
        }
    }
}

/// Starts and durations of transfers, as IOR's `savePerOpDataCSV` writes them. Kept in memory until the phase is over.
struct PerTransfer {
    path: Option<PathBuf>,
    transfer_bytes: u64,
    rows: Vec<(u64, u64)>,
}

/// Most transfers that a rank keeps for its CSV file, 16 MiB of memory; more are an error, not a silent loss.
const MAX_ROWS: usize = 1 << 20;

impl PerTransfer {
    fn new(ior: &Ior, repetition: u32, access: Access, rank: u32) -> Result<PerTransfer, String> {
        let path = ior.per_transfer_csv.as_ref().map(|prefix| {
            let mut name = prefix.clone().into_os_string();
            name.push(format!("-{}-{repetition}-{rank:05}.csv", access.word()));
            PathBuf::from(name)
        });
        let rows = if path.is_some() { ior.pattern.transfers_of(rank) } else { 0 };
        if rows > MAX_ROWS as u64 {
            return Err(format!(
                "savePerOpDataCSV: {rows} transfers of a rank: at most {MAX_ROWS} are kept"
            ));
        }
        Ok(PerTransfer { path, transfer_bytes: ior.pattern.transfer_bytes, rows: Vec::new() })
    }

    fn note(&mut self, start_ns: u64, duration_ns: u64) {
        if self.path.is_some() {
            self.rows.push((start_ns, duration_ns));
        }
    }

    fn finish(self) -> Result<(), String> {
        let Some(path) = self.path else { return Ok(()) };
        let write = || -> io::Result<()> {
            let mut out = io::BufWriter::new(File::create(&path)?);
            writeln!(out, "time,runtime,tp")?;
            for (start_ns, duration_ns) in &self.rows {
                let duration_s = *duration_ns as f64 / 1e9;
                let rate = self.transfer_bytes as f64 / duration_s;
                writeln!(out, "{:.9},{duration_s:.9},{rate:.3}", *start_ns as f64 / 1e9)?;
            }
            out.flush()
        };
        write().map_err(|error| failed::said("write", &path, &error))
    }
}
