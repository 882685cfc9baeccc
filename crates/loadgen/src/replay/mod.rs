//! Replays a workload (docs/WORKLOAD.md) on real files, and measures each phase.
//!
//! Each process of the workload is a process here, forked before anything starts, or a thread ([`Options::threads`]). [`board`] is the
//! memory that they share, [`player`] what each of them does, [`figures`] what comes out.
//!
//! Invariants: a replay touches nothing outside its directory. A phase is called cold only if the page cache was seen to hold
//! none of its files. A process that fails or is killed ends the run with its reason.
//! Caller: the command line's `forebay bench`.

pub mod board;
mod bytes;
pub mod figures;
mod files;
mod helper;
mod player;
mod shape;

use crate::failed;
use crate::far::Far;
use crate::far_host::{self, Host};
use crate::mpi::{self, World};
use crate::netcdf;
use crate::ranks::{Signals, Team, why_ranks_failed};
use crate::shared::{Slot, now_ns};
use board::{Board, BoardError};
use figures::Played;
use forebay_workload::language::{Interface, Workload};
use player::Player;
use std::path::PathBuf;

/// What a rank says that was stopped because another one failed, which has said why.
pub const STOPPED: &str = "the run was stopped";

/// Largest transfer of a replay, in bytes: each process holds two of them.
pub const MAX_TRANSFER_BYTES: u64 = 1 << 30;

/// How a workload is replayed.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory below which all files lie. It is there.
    pub dir: PathBuf,
    /// Processes are threads of one process.
    pub threads: bool,
    /// Think times and starts of jobs are multiplied by this.
    pub think_scale: f64,
    /// A directory that is there: each operation is logged there, as a trace.
    pub log: Option<PathBuf>,
    /// Files of netCDF are moved by its library, or the replay is refused. Otherwise their series of blocks is moved where there is no
    /// library.
    pub needs_netcdf: bool,
    /// The page cache is looked at before phases that read and after phases that write.
    pub look_at_cache: bool,
    /// When the workload begins, CLOCK_MONOTONIC; [`play`] sets it.
    pub begin_ns: u64,
}

impl Options {
    /// In a directory, by processes, as the workload says, with a look at the page cache.
    pub fn of(dir: impl Into<PathBuf>) -> Options {
        Options {
            dir: dir.into(),
            threads: false,
            think_scale: 1.0,
            log: None,
            needs_netcdf: false,
            look_at_cache: true,
            begin_ns: 0,
        }
    }
}

/// Why a replay was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// It is too large.
    #[error(transparent)]
    Board(#[from] BoardError),
    /// It cannot be replayed here, or not like this.
    #[error("{0}")]
    Refused(String),
    /// Starting processes failed.
    #[error("start {processes} processes")]
    Start {
        /// How many.
        processes: u32,
        /// Why not.
        source: std::io::Error,
    },
    /// A file that must be there before could not be made.
    #[error("{}", failed::plain(.0))]
    Prepare(String),
    /// A process failed, or the run was stopped: a text of [`failed`].
    #[error("{}", failed::plain(.0))]
    Rank(String),
}

/// What a replay tells while it goes on.
pub trait Progress {
    /// It begins; so many bytes will move, as far as the workload says.
    fn begin(&mut self, total_bytes: u64);
    /// So many have moved.
    fn moved(&mut self, bytes: u64);
}

/// Tells nothing.
pub struct Silent;

impl Progress for Silent {
    fn begin(&mut self, _: u64) {}
    fn moved(&mut self, _: u64) {}
}

/// Replays a workload that was checked. The process must have one thread.
///
/// # Errors
/// Why it was refused, or what failed.
pub fn play(
    workload: &Workload,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<Played, ReplayError> {
    let by_netcdf = netcdf_library(workload, options)?;
    let longest = longest_of(workload, by_netcdf.is_ok());
    if longest > MAX_TRANSFER_BYTES {
        let what =
            format!("a transfer of {longest} bytes: at most {MAX_TRANSFER_BYTES} are replayed");
        return Err(ReplayError::Refused(what));
    }
    if options.dir.to_str().is_none() {
        let what = format!("{}: the path of the directory is no UTF-8", options.dir.display());
        return Err(ReplayError::Refused(what));
    }
    let board = Board::new(workload)?;
    raise_open_files();
    if let Some(world) = mpi::world() {
        return play_by_mpi(world, workload, options, board, progress, longest as usize);
    }
    files::prepare(workload, &options.dir).map_err(ReplayError::Prepare)?;
    let options = Options { begin_ns: now_ns(), ..options.clone() };
    progress.begin(total_bytes(workload));
    let ranks = board.shared.ranks();
    // A player's buffers are as large as the longest transfer, and a page for alignment.
    let longest = (longest as usize).max(1);
    let one = |rank| Player::new(&board, workload, &options, rank, longest)?.play();
    let together = |_| {
        std::thread::scope(|scope| {
            for rank in 0..ranks {
                let (one, board) = (&one, &board);
                scope.spawn(move || {
                    if let Err(message) = one(rank) {
                        board.shared.slot(rank).fail(&message);
                        board.shared.stop();
                    }
                });
            }
        });
        // Each has said what failed by itself.
        Ok(())
    };
    let processes = if options.threads { 1 } else { ranks };
    let team = match options.threads {
        true => Team::start(&board.shared, processes, together),
        false => Team::start(&board.shared, processes, one),
    };
    let team = team.map_err(|source| ReplayError::Start { processes, source })?;
    let ended = team.finish_with(|| {
        progress.moved(board.shared.slots().iter().map(Slot::bytes).sum());
    });
    ended.map_err(ReplayError::Rank)?;
    Ok(Played::gather(workload, &board, notes(workload)))
}

/// The same by ranks of MPI: this process is one of them, rank 0 also the coordinator. All ranks have the result.
fn play_by_mpi(
    world: &'static World,
    workload: &Workload,
    options: &Options,
    board: Board,
    progress: &mut dyn Progress,
    longest: usize,
) -> Result<Played, ReplayError> {
    let (ranks, rank) = (board.shared.ranks(), world.rank());
    if ranks != world.size() {
        let what = format!(
            "the workload has {ranks} processes, and the launcher started {}: start as many",
            world.size()
        );
        return Err(ReplayError::Refused(what));
    }
    let longest = longest.max(1);
    if netcdf::loaded().is_some() {
        must_use_netcdf_together(workload)?;
    }
    // What must be there is there before any rank begins.
    let prepared = match rank {
        0 => files::prepare(workload, &options.dir).map(|()| Vec::new()),
        _ => Ok(Vec::new()),
    };
    world.of_rank_0(prepared).map_err(ReplayError::Prepare)?;
    let options = Options { begin_ns: now_ns(), ..options.clone() };
    if rank != 0 {
        let board = board.far_from_rank_0(Far::join(world).map_err(ReplayError::Rank)?);
        let Some(far) = board.shared.far() else {
            return Err(ReplayError::Rank("rank 0 is not reached".into()));
        };
        far_host::run(far, &board.shared, || {
            Player::new(&board, workload, &options, rank, longest)?.play()
        });
        let fetched = board.fetch_results();
        far.farewell();
        // Rank 0 says why.
        fetched.map_err(|_| ReplayError::Rank(STOPPED.into()))?;
        return Ok(Played::gather(workload, &board, notes(workload)));
    }
    let host = Host::open(world).map_err(ReplayError::Rank)?;
    let signals = Signals::catch();
    progress.begin(total_bytes(workload));
    let over = std::sync::atomic::AtomicBool::new(false);
    let own = || {
        let played = Player::new(&board, workload, &options, rank, longest).and_then(Player::play);
        over.store(true, std::sync::atomic::Ordering::Release);
        played
    };
    host.serve(world, &board.shared, &|_, ask| board.answer(workload, ask), own, || {
        while !(over.load(std::sync::atomic::Ordering::Acquire) || board.shared.is_stopped()) {
            signals.watch(&board.shared);
            progress.moved(board.shared.slots().iter().map(Slot::bytes).sum());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    });
    if let Some(reason) = why_ranks_failed(&board.shared).or_else(|| signals.reason()) {
        return Err(ReplayError::Rank(reason));
    }
    Ok(Played::gather(workload, &board, notes(workload)))
}

/// Refuses a netCDF file that processes share and do not use alike: its library waits for all of them.
fn must_use_netcdf_together(workload: &Workload) -> Result<(), ReplayError> {
    let together = shape::together(workload);
    for (spec, together) in workload.files.iter().zip(together) {
        let shared = !spec.by_process();
        if spec.interface.is_netcdf() && shared && !together {
            let what = format!(
                "{}: a netCDF file that processes share is used by all of them alike, each step by each of them (FOREBAY_NETCDF=off moves its blocks)",
                spec.name
            );
            return Err(ReplayError::Refused(what));
        }
    }
    Ok(())
}

/// The netCDF library, if the workload has files for it and the ranks have one. All ranks come to the same answer, or the run ends.
fn netcdf_library(
    workload: &Workload,
    options: &Options,
) -> Result<Result<(), String>, ReplayError> {
    if !workload.files.iter().any(|spec| spec.interface.is_netcdf()) {
        return Ok(Err(String::new()));
    }
    let found = match mpi::world() {
        None => Err("it works on ranks of MPI: start it by mpirun or srun".to_string()),
        Some(world) => {
            let own = netcdf::library(world).map(drop);
            // The others do as rank 0.
            let first = world.of_rank_0(own.clone().map(|()| Vec::new())).map(drop);
            if let (Ok(()), Err(why)) = (&first, &own) {
                let what =
                    format!("rank {} has no netCDF library, but rank 0: {why}", world.rank());
                return Err(ReplayError::Rank(what));
            }
            first
        }
    };
    match found {
        Err(why) if options.needs_netcdf => {
            Err(ReplayError::Refused(format!("no netCDF library: {why}")))
        }
        found => Ok(found),
    }
}

/// The longest transfer, for which each process has room.
fn longest_of(workload: &Workload, by_netcdf: bool) -> u64 {
    let slab = if by_netcdf { shape::longest_slab(workload) } else { 0 };
    let piece = if slab > 0 { bytes::SLAB_PIECE_BYTES } else { 0 };
    workload.longest_transfer().max(slab).max(piece).max(forebay_workload::streams::BUFFER_BYTES)
}

fn total_bytes(workload: &Workload) -> u64 {
    let mut sum = 0_u64;
    for (number, job) in workload.jobs.iter().enumerate() {
        for phase in 0..job.phase_count() {
            let totals = workload.totals(number as u32, phase);
            let once = totals.read_bytes.saturating_add(totals.written_bytes);
            sum = sum.saturating_add(once.saturating_mul(job.phase_repeat(phase).into()));
        }
    }
    sum
}

/// What the figures do not mean.
fn notes(workload: &Workload) -> Vec<String> {
    let mut notes = Vec::new();
    let netcdf = workload.files.iter().any(|spec| spec.interface.is_netcdf());
    let others = workload.files.iter().any(|spec| spec.interface != Interface::Posix);
    if netcdf {
        notes.push(match (netcdf::loaded(), mpi::world()) {
            (Some(library), Some(world)) => format!("{} on {}", library.version(), world.library()),
            (_, Some(world)) => format!(
                "no netCDF library: {}. The series of blocks that it would move was moved by MPI-IO",
                netcdf::library(world).err().unwrap_or_default()
            ),
            (_, None) => "no netCDF library: it works on ranks of MPI (start it by mpirun or srun). The series of blocks that it would move was moved by POSIX calls".to_string(),
        });
    }
    if others && (!netcdf || (netcdf::loaded().is_none() && mpi::world().is_some())) {
        notes.push(match mpi::world() {
            Some(world) => format!("MPI-IO by {}", world.library()),
            None => "MPI-IO files were read and written by POSIX calls, each process for itself: start it by mpirun or srun for MPI-IO".to_string(),
        });
    }
    if mpi::world().is_some() {
        let together = shape::together(workload);
        let alone = workload
            .files
            .iter()
            .zip(together)
            .filter(|(spec, together)| spec.interface.is_collective() && !together);
        notes.extend(alone.map(|(spec, _)| {
            format!(
                "{}: not all processes do the same with it, so each moves its part by itself",
                spec.name
            )
        }));
    }
    notes
}

/// A process may need a descriptor for each of its files.
fn raise_open_files() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    // Where it is refused, an open that finds no descriptor says so.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, most);
}
