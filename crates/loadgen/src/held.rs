//! Processes that are held ready for one sample after another: the figures of milliseconds of I/O, or of operations on names, by
//! processes, files and connections that are there already.
//!
//! They are forked once, before anything else starts, and told by JSON lines on a socket pair
//! what to do, so that starting a process is in no sample. A sample: `prepare` or `prepare_names` (untimed: open,
//! truncate), then `run` at a moment given in CLOCK_MONOTONIC, for which each worker spins; so
//! several start together. Workers stop when their socket closes.
//!
//! Caller: `forebay-bench`, whose rows are pairs of such samples.

use crate::clocks::{now_ns, own_cpu_ns, own_waited_ns};
use forebay_workload::content::Aligned;
use forebay_workload::random::mix;
use rustix::fs::{AtFlags, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ffi::CString;
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// Why a worker did not do what it was told.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct HeldError(String);

type Result<T> = std::result::Result<T, HeldError>;

/// What was tried, in front of why it failed.
trait Tried<T> {
    fn tried(self, what: impl Display) -> Result<T>;
}

impl<T, E: Display> Tried<T> for std::result::Result<T, E> {
    fn tried(self, what: impl Display) -> Result<T> {
        self.map_err(|error| HeldError(format!("{what}: {error}")))
    }
}

fn fail<T>(why: impl Into<String>) -> Result<T> {
    Err(HeldError(why.into()))
}

/// In the head of an exchange: the bytes go to the worker.
pub const TO_WORKER: u64 = 1 << 63;

/// What is done with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// pread of bytes that are there.
    Read,
    /// pwrite over bytes that are there.
    Overwrite,
    /// pwrite where no block is yet.
    Fresh,
    /// pread of bytes that are there and pwrite of the same, as libraries do that fill gaps. They count once.
    WriteBack,
}

/// In which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pattern {
    /// From the first byte to the last.
    Sequential,
    /// Each block once, in a random order, the same on both sides of a pair.
    Random,
}

/// One sample of one worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// The file.
    pub path: PathBuf,
    /// What to do.
    pub op: Op,
    /// In which order.
    pub pattern: Pattern,
    /// Bytes per call.
    pub block_bytes: u32,
    /// Index of the first block that this worker touches (workers may share a file).
    pub first_block: u32,
    /// Calls.
    pub blocks: u32,
    /// Blocks from one call's to the next one's: 1, or as many as there are workers that take turns.
    pub step: u32,
    /// Seed of the order.
    pub seed: u64,
    /// Past the page cache (O_DIRECT).
    pub direct: bool,
    /// What was written is on the device at the end (fsync).
    pub synced: bool,
    /// The file is opened for reading only, as by a program that writes nothing.
    pub read_only: bool,
    /// Not a file: as many bytes by a plain TCP connection to this port (see `striped`).
    pub tcp: Option<u16>,
}

/// What is done with each name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Act {
    /// A new file is made and closed.
    Create,
    /// A file is opened for reading and closed.
    Open,
    /// Attributes are asked for.
    Stat,
    /// The file is removed.
    Unlink,
}

/// One sample of operations on names by one worker. All calls are relative to the open directory, so the length of the path to it
/// is in no sample.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NamesJob {
    /// The directory.
    pub dir: PathBuf,
    /// What to do.
    pub act: Act,
    /// Number of the first name: names are `f` and seven digits.
    pub first: u32,
    /// Names.
    pub count: u32,
    /// How often all of them are gone through.
    pub rounds: u32,
}

/// Commands on the socket.
#[derive(Debug, Serialize, Deserialize)]
enum Command {
    Prepare(Job),
    PrepareNames(NamesJob),
    Run { start_ns: u64 },
    Verify { path: PathBuf, bytes: u64 },
    Forget,
}

/// What a worker measured.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// When it began, CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// CPU time it used.
    pub cpu_ns: u64,
    /// Time it waited for a processor.
    pub waited_ns: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Calls that moved them, or names that something was done with.
    pub operations: u64,
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Ready,
    Done(Sample),
    Failed(String),
}

/// How long before its start a sample of several workers is announced, in nanoseconds: longer
/// than it takes to tell them all.
const START_DELAY_NS: u64 = 300_000;
/// Largest block of a job, in bytes.
const BLOCK_BYTES_MAX: usize = 16 << 20;

/// The forked processes.
pub struct Workers {
    links: Vec<Link>,
}

struct Link {
    pid: libc::pid_t,
    writer: UnixStream,
    reader: BufReader<UnixStream>,
}

impl Workers {
    /// Forks `count` of them. Must be called while the process has one thread.
    pub fn start(count: usize) -> Result<Workers> {
        let mut links: Vec<Link> = Vec::new();
        for _ in 0..count {
            let (ours, theirs) = UnixStream::pair().tried("make a socket pair")?;
            // SAFETY: the process has one thread, so the child may run any code.
            match unsafe { libc::fork() } {
                -1 => return Err(std::io::Error::last_os_error()).tried("start a worker"),
                0 => {
                    drop(ours);
                    // The child must not hold the other workers' ends open.
                    links.clear();
                    let failed = serve(theirs).is_err();
                    // SAFETY: ends the child without running the parent's destructors.
                    unsafe { libc::_exit(i32::from(failed)) }
                }
                pid => {
                    let reader = BufReader::new(ours.try_clone().tried("clone a socket")?);
                    links.push(Link { pid, writer: ours, reader });
                }
            }
        }
        Ok(Workers { links })
    }

    /// Makes all ready for a sample: job `i` on worker `i`. What it costs is in no sample.
    pub fn prepare(&mut self, jobs: &[Job]) -> Result<()> {
        self.tell_each(jobs.iter().cloned().map(Command::Prepare).collect())
    }

    /// The same for operations on names.
    pub fn prepare_names(&mut self, jobs: &[NamesJob]) -> Result<()> {
        self.tell_each(jobs.iter().cloned().map(Command::PrepareNames).collect())
    }

    /// Tells one to each of the first workers, and waits until all are ready.
    fn tell_each(&mut self, jobs: Vec<Command>) -> Result<()> {
        let count = jobs.len();
        if count > self.links.len() {
            return fail(format!("{count} jobs for {} workers", self.links.len()));
        }
        for (link, job) in self.links.iter_mut().zip(&jobs) {
            link.tell(job)?;
        }
        self.links[..count].iter_mut().try_for_each(Link::expect_ready)
    }

    /// Runs the sample that the first `count` workers are prepared for.
    pub fn run(&mut self, count: usize) -> Result<Vec<Sample>> {
        let start_ns = match count {
            1 => 0,
            _ => now_ns() + START_DELAY_NS,
        };
        for link in &mut self.links[..count] {
            link.tell(&Command::Run { start_ns })?;
        }
        self.links[..count].iter_mut().map(Link::expect_sample).collect()
    }

    /// Reads a file back in the first worker and checks that it holds what was written.
    pub fn verify(&mut self, path: PathBuf, bytes: u64) -> Result<()> {
        let link = self.links.first_mut().ok_or_else(|| HeldError("no worker".into()))?;
        link.tell(&Command::Verify { path, bytes })?;
        link.expect_ready()
    }

    /// Closes all files that workers hold open.
    pub fn forget(&mut self) -> Result<()> {
        for link in &mut self.links {
            link.tell(&Command::Forget)?;
            link.expect_ready()?;
        }
        Ok(())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for link in self.links.drain(..) {
            let Link { pid, writer, reader } = link;
            drop((writer, reader));
            let mut status = 0;
            // SAFETY: `status` is valid; `pid` is a child of ours that ends as its socket is closed.
            unsafe { libc::waitpid(pid, &mut status, 0) };
        }
    }
}

impl Link {
    fn tell(&mut self, command: &Command) -> Result<()> {
        let mut line = serde_json::to_vec(command).tried("tell a worker")?;
        line.push(b'\n');
        self.writer.write_all(&line).tried("tell a worker")
    }

    fn answer(&mut self) -> Result<Answer> {
        let mut line = String::new();
        if self.reader.read_line(&mut line).tried("hear from a worker")? == 0 {
            return fail("a worker ended");
        }
        match serde_json::from_str(&line).tried("hear from a worker")? {
            Answer::Failed(why) => fail(why),
            answer => Ok(answer),
        }
    }

    fn expect_ready(&mut self) -> Result<()> {
        match self.answer()? {
            Answer::Ready => Ok(()),
            other => fail(format!("a worker answered {other:?} instead of being ready")),
        }
    }

    fn expect_sample(&mut self) -> Result<Sample> {
        match self.answer()? {
            Answer::Done(sample) => Ok(sample),
            other => fail(format!("a worker answered {other:?} instead of a sample")),
        }
    }
}

/// State of a worker.
struct WorkerState {
    files: HashMap<(PathBuf, bool), File>,
    streams: HashMap<u16, TcpStream>,
    buffer: Aligned,
    job: Option<Job>,
    order: Vec<u32>,
    names: Option<Named>,
}

/// Names that are ready.
struct Named {
    job: NamesJob,
    dir: OwnedFd,
    names: Vec<CString>,
}

/// The worker's loop; ends when the parent closes the socket.
fn serve(stream: UnixStream) -> std::io::Result<()> {
    let mut writer = stream.try_clone()?;
    let mut state = WorkerState {
        files: HashMap::new(),
        streams: HashMap::new(),
        buffer: Aligned::new(BLOCK_BYTES_MAX),
        job: None,
        order: Vec::new(),
        names: None,
    };
    for line in BufReader::new(stream).lines() {
        let answer = state
            .obey(serde_json::from_str(&line?)?)
            .unwrap_or_else(|error| Answer::Failed(error.to_string()));
        let mut text = serde_json::to_vec(&answer)?;
        text.push(b'\n');
        writer.write_all(&text)?;
    }
    Ok(())
}

impl WorkerState {
    fn obey(&mut self, command: Command) -> Result<Answer> {
        match command {
            Command::Prepare(job) => self.prepare(job),
            Command::PrepareNames(job) => self.prepare_names(job),
            Command::Run { start_ns } => self.run(start_ns),
            Command::Verify { path, bytes } => self.verify(&path, bytes),
            Command::Forget => {
                self.files.clear();
                Ok(Answer::Ready)
            }
        }
    }

    fn prepare(&mut self, job: Job) -> Result<Answer> {
        if let Some(port) = job.tcp {
            if let std::collections::hash_map::Entry::Vacant(entry) = self.streams.entry(port) {
                let stream = TcpStream::connect(("127.0.0.1", port)).tried("connect")?;
                stream.set_nodelay(true).tried("connect")?;
                entry.insert(stream);
            }
            fill(&mut self.buffer.bytes_mut()[..job.block_bytes as usize]);
            self.job = Some(job);
            return Ok(Answer::Ready);
        }
        let key = (job.path.clone(), job.direct);
        if !self.files.contains_key(&key) {
            let flags = if job.direct { libc::O_DIRECT } else { 0 };
            let mut options = OpenOptions::new();
            options.read(true).custom_flags(flags);
            if !job.read_only {
                options.write(true).create(true).truncate(false);
            }
            let file = options.open(&job.path).tried(format!("open {}", job.path.display()))?;
            self.files.insert(key.clone(), file);
        }
        let file = &self.files[&key];
        let last = job.first_block + job.blocks * job.step;
        let end = u64::from(last) * u64::from(job.block_bytes);
        if job.op == Op::Fresh && job.first_block == 0 {
            file.set_len(0).tried(format!("truncate {}", job.path.display()))?;
        }
        if job.op == Op::Fresh && job.pattern == Pattern::Random {
            file.set_len(end).tried(format!("extend {}", job.path.display()))?;
        }
        let mut order: Vec<u32> = (job.first_block..last).step_by(job.step as usize).collect();
        if job.pattern == Pattern::Random {
            shuffle(&mut order, job.seed);
        }
        fill(&mut self.buffer.bytes_mut()[..job.block_bytes as usize]);
        self.order = order;
        self.job = Some(job);
        Ok(Answer::Ready)
    }

    fn prepare_names(&mut self, job: NamesJob) -> Result<Answer> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&job.dir, flags, Mode::empty())
            .tried(format!("open {}", job.dir.display()))?;
        let numbers = job.first..job.first.saturating_add(job.count);
        // No NUL inside: the text is a letter and digits.
        let names = numbers.filter_map(|number| CString::new(format!("f{number:07}")).ok());
        self.names = Some(Named { dir, names: names.collect(), job });
        Ok(Answer::Ready)
    }

    fn run_names(&self, named: &Named, start_ns: u64) -> Result<Answer> {
        let waited_ns = own_waited_ns();
        while now_ns() < start_ns {
            std::hint::spin_loop();
        }
        let cpu_ns = own_cpu_ns();
        let begin_ns = now_ns();
        for _ in 0..named.job.rounds {
            named.act()?;
        }
        let end_ns = now_ns();
        Ok(Answer::Done(Sample {
            start_ns: begin_ns,
            end_ns,
            cpu_ns: own_cpu_ns() - cpu_ns,
            waited_ns: own_waited_ns() - waited_ns,
            bytes: 0,
            operations: named.names.len() as u64 * u64::from(named.job.rounds),
        }))
    }

    fn run(&mut self, start_ns: u64) -> Result<Answer> {
        if let Some(named) = self.names.take() {
            return self.run_names(&named, start_ns);
        }
        let job = self.job.take().ok_or_else(|| HeldError("run without prepare".into()))?;
        let block = u64::from(job.block_bytes);
        let buffer = &mut self.buffer.bytes_mut()[..job.block_bytes as usize];
        let waited_ns = own_waited_ns();
        while now_ns() < start_ns {
            std::hint::spin_loop();
        }
        let cpu_ns = own_cpu_ns();
        let begin_ns = now_ns();
        match job.tcp {
            Some(port) => {
                let stream =
                    self.streams.get_mut(&port).ok_or_else(|| HeldError("no connection".into()))?;
                by_tcp(stream, &job, buffer).tried("exchange by TCP")?;
            }
            None => {
                let file = &self.files[&(job.path.clone(), job.direct)];
                by_file(file, &job, &self.order, buffer).tried(job.path.display())?;
            }
        }
        let end_ns = now_ns();
        Ok(Answer::Done(Sample {
            start_ns: begin_ns,
            end_ns,
            cpu_ns: own_cpu_ns() - cpu_ns,
            waited_ns: own_waited_ns() - waited_ns,
            bytes: block * u64::from(job.blocks),
            operations: job.blocks.into(),
        }))
    }

    /// Content written by jobs repeats with the block; here only what any block has is checked:
    /// the size, and that no byte of the pattern is missing (the pattern has no zero byte, so a
    /// hole or a lost write shows).
    fn verify(&mut self, path: &std::path::Path, bytes: u64) -> Result<Answer> {
        let file = File::open(path).tried(format!("open {}", path.display()))?;
        let what = || format!("read {}", path.display());
        let size = file.metadata().tried(what())?.len();
        if size != bytes {
            return fail(format!("{} has {size} bytes instead of {bytes}", path.display()));
        }
        let buffer = self.buffer.bytes_mut();
        let mut offset = 0;
        while offset < bytes {
            let want = buffer.len().min((bytes - offset) as usize);
            file.read_exact_at(&mut buffer[..want], offset).tried(what())?;
            if let Some(hole) = buffer[..want].iter().position(|&byte| byte == 0) {
                let at = offset + hole as u64;
                return fail(format!("{}: a write at {at} is lost", path.display()));
            }
            offset += want as u64;
        }
        Ok(Answer::Ready)
    }
}

impl Named {
    fn act(&self) -> Result<()> {
        let failed = |name: &CString| {
            format!("{:?} {} in {}", self.job.act, name.to_string_lossy(), self.job.dir.display())
        };
        for name in &self.names {
            let name_c = name.as_c_str();
            let done = match self.job.act {
                Act::Create => {
                    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                    rustix::fs::openat(&self.dir, name_c, flags, Mode::from(0o644)).map(drop)
                }
                Act::Open => {
                    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
                    rustix::fs::openat(&self.dir, name_c, flags, Mode::empty()).map(drop)
                }
                Act::Stat => rustix::fs::statat(&self.dir, name_c, AtFlags::empty()).map(drop),
                Act::Unlink => rustix::fs::unlinkat(&self.dir, name_c, AtFlags::empty()),
            };
            done.tried(failed(name))?;
        }
        Ok(())
    }
}

fn by_file(file: &File, job: &Job, order: &[u32], buffer: &mut [u8]) -> std::io::Result<()> {
    for &index in order {
        let offset = u64::from(index) * u64::from(job.block_bytes);
        match job.op {
            Op::Read => file.read_exact_at(buffer, offset)?,
            Op::Overwrite | Op::Fresh => file.write_all_at(buffer, offset)?,
            Op::WriteBack => {
                file.read_exact_at(buffer, offset)?;
                file.write_all_at(buffer, offset)?;
            }
        }
    }
    if job.synced {
        file.sync_all()?;
    }
    Ok(())
}

/// As many bytes, the same way, without a file system.
fn by_tcp(stream: &mut TcpStream, job: &Job, buffer: &mut [u8]) -> std::io::Result<()> {
    let bytes = u64::from(job.block_bytes) * u64::from(job.blocks);
    let reads = job.op == Op::Read;
    let head = if reads { bytes | TO_WORKER } else { bytes };
    stream.write_all(&head.to_le_bytes())?;
    for _ in 0..job.blocks {
        match reads {
            true => stream.read_exact(buffer)?,
            false => stream.write_all(buffer)?,
        }
    }
    if !reads {
        stream.read_exact(&mut buffer[..1])?;
        buffer[0] |= 1;
    }
    Ok(())
}

/// Each place once, in an order that the seed gives.
fn shuffle(order: &mut [u32], seed: u64) {
    for at in (1..order.len()).rev() {
        let other = mix(seed ^ mix(at as u64)) % (at as u64 + 1);
        order.swap(at, other as usize);
    }
}

/// What does not compress and has no zero byte.
fn fill(bytes: &mut [u8]) {
    let seed = bytes.len() as u64;
    for (at, word) in bytes.chunks_mut(8).enumerate() {
        let random = mix(seed ^ mix(at as u64)).to_le_bytes();
        for (to, from) in word.iter_mut().zip(random) {
            *to = from | 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> WorkerState {
        let (files, streams) = (HashMap::new(), HashMap::new());
        let buffer = Aligned::new(BLOCK_BYTES_MAX);
        WorkerState { files, streams, buffer, job: None, order: Vec::new(), names: None }
    }

    #[test]
    fn a_sample_of_names_makes_finds_and_removes_them() {
        let dir = tempfile::tempdir().unwrap();
        let mut state = state();
        let mut run = |act, rounds| {
            let (dir, first, count) = (dir.path().to_path_buf(), 3, 7);
            let job = NamesJob { dir, act, first, count, rounds };
            state.obey(Command::PrepareNames(job)).unwrap();
            state.obey(Command::Run { start_ns: 0 })
        };
        let there = || std::fs::read_dir(dir.path()).unwrap().count();
        for (act, rounds, left) in
            [(Act::Create, 1, 7), (Act::Open, 1, 7), (Act::Stat, 5, 7), (Act::Unlink, 1, 0)]
        {
            let Ok(Answer::Done(sample)) = run(act, rounds) else { panic!("no sample") };
            assert_eq!(sample.operations, 7 * u64::from(rounds), "{act:?}");
            assert_eq!(there(), left, "{act:?}");
        }
        let why = run(Act::Stat, 1).unwrap_err().to_string();
        assert!(why.contains("Stat f0000003 in "), "{why}");
    }

    #[test]
    fn a_sample_moves_what_its_job_says_and_a_lost_write_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut job = Job {
            path: path.clone(),
            op: Op::Fresh,
            pattern: Pattern::Random,
            block_bytes: 4_096,
            first_block: 0,
            blocks: 50,
            step: 1,
            seed: 3,
            direct: false,
            synced: true,
            read_only: false,
            tcp: None,
        };
        let mut state = state();
        for op in [Op::Fresh, Op::Overwrite, Op::WriteBack, Op::Read] {
            job.op = op;
            state.obey(Command::Prepare(job.clone())).unwrap();
            let mut order = state.order.clone();
            assert_ne!(order, (0..50).collect::<Vec<u32>>());
            order.sort_unstable();
            assert_eq!(order, (0..50).collect::<Vec<u32>>(), "each block once");
            let Ok(Answer::Done(sample)) = state.obey(Command::Run { start_ns: 0 }) else {
                panic!("no sample")
            };
            assert!(sample.bytes == 50 * 4_096 && sample.end_ns > sample.start_ns, "{sample:?}");
        }
        state.obey(Command::Forget).unwrap();
        (job.op, job.read_only) = (Op::Overwrite, true);
        state.obey(Command::Prepare(job.clone())).unwrap();
        assert!(state.obey(Command::Run { start_ns: 0 }).is_err(), "opened for reading only");
        let bytes = 50 * 4_096;
        state.obey(Command::Verify { path: path.clone(), bytes }).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[0], 8_192).unwrap();
        let lost = state.obey(Command::Verify { path, bytes }).unwrap_err().to_string();
        assert!(lost.ends_with("a write at 8192 is lost"), "{lost}");
        assert!(state.obey(Command::Run { start_ns: 0 }).is_err(), "without prepare");
    }
}
