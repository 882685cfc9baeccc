//! The processes that do the I/O.
//!
//! They are forked once, before anything else starts, and told by JSON lines on a socket pair
//! what to do, so that starting a process is in no sample. A sample: `prepare` (untimed: open,
//! truncate), then `run` at a moment given in CLOCK_MONOTONIC, for which each worker spins; so
//! several start together. Workers stop when their socket closes.

use crate::machine;
use crate::striped::TO_WORKER;
use anyhow::{Context, Result, bail};
use rand::seq::SliceRandom;
use rand::{RngCore, SeedableRng};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// What is done with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// pread of bytes that are there.
    Read,
    /// pwrite over bytes that are there.
    Overwrite,
    /// pwrite where no block is yet.
    Fresh,
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
    /// Not a file: as many bytes by a plain TCP connection to this port (see `striped`).
    pub tcp: Option<u16>,
}

/// Commands on the socket.
#[derive(Debug, Serialize, Deserialize)]
enum Command {
    Prepare(Job),
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
const BLOCK_BYTES_MAX: usize = 4 << 20;

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
            let (ours, theirs) = UnixStream::pair().context("make a socket pair")?;
            // SAFETY: the process has one thread, so the child may run any code.
            match unsafe { libc::fork() } {
                -1 => return Err(std::io::Error::last_os_error()).context("start a worker"),
                0 => {
                    drop(ours);
                    // The child must not hold the other workers' ends open.
                    links.clear();
                    let failed = serve(theirs).is_err();
                    // SAFETY: ends the child without running the parent's destructors.
                    unsafe { libc::_exit(i32::from(failed)) }
                }
                pid => {
                    let reader = BufReader::new(ours.try_clone().context("clone a socket")?);
                    links.push(Link { pid, writer: ours, reader });
                }
            }
        }
        Ok(Workers { links })
    }

    /// Makes all ready for a sample: job `i` on worker `i`. What it costs is in no sample.
    pub fn prepare(&mut self, jobs: &[Job]) -> Result<()> {
        if jobs.len() > self.links.len() {
            bail!("{} jobs for {} workers", jobs.len(), self.links.len());
        }
        for (link, job) in self.links.iter_mut().zip(jobs) {
            link.tell(&Command::Prepare(job.clone()))?;
        }
        self.links[..jobs.len()].iter_mut().try_for_each(Link::expect_ready)
    }

    /// Runs the sample that the first `count` workers are prepared for.
    pub fn run(&mut self, count: usize) -> Result<Vec<Sample>> {
        let start_ns = match count {
            1 => 0,
            _ => machine::monotonic_ns() + START_DELAY_NS,
        };
        for link in &mut self.links[..count] {
            link.tell(&Command::Run { start_ns })?;
        }
        self.links[..count].iter_mut().map(Link::expect_sample).collect()
    }

    /// Reads a file back in the first worker and checks that it holds what was written.
    pub fn verify(&mut self, path: PathBuf, bytes: u64) -> Result<()> {
        let link = self.links.first_mut().context("no worker")?;
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
        let mut line = serde_json::to_vec(command)?;
        line.push(b'\n');
        self.writer.write_all(&line).context("tell a worker")
    }

    fn answer(&mut self) -> Result<Answer> {
        let mut line = String::new();
        if self.reader.read_line(&mut line).context("hear from a worker")? == 0 {
            bail!("a worker ended");
        }
        match serde_json::from_str(&line)? {
            Answer::Failed(why) => bail!("{why}"),
            answer => Ok(answer),
        }
    }

    fn expect_ready(&mut self) -> Result<()> {
        match self.answer()? {
            Answer::Ready => Ok(()),
            other => bail!("a worker answered {other:?} instead of being ready"),
        }
    }

    fn expect_sample(&mut self) -> Result<Sample> {
        match self.answer()? {
            Answer::Done(sample) => Ok(sample),
            other => bail!("a worker answered {other:?} instead of a sample"),
        }
    }
}

/// State of a worker.
struct State {
    files: HashMap<(PathBuf, bool), File>,
    streams: HashMap<u16, TcpStream>,
    buffer: AlignedBuffer,
    job: Option<Job>,
    order: Vec<u32>,
}

/// The worker's loop; ends when the parent closes the socket.
fn serve(stream: UnixStream) -> Result<()> {
    let mut writer = stream.try_clone()?;
    let mut state = State {
        files: HashMap::new(),
        streams: HashMap::new(),
        buffer: AlignedBuffer::new(BLOCK_BYTES_MAX),
        job: None,
        order: Vec::new(),
    };
    for line in BufReader::new(stream).lines() {
        let answer = state
            .obey(serde_json::from_str(&line?)?)
            .unwrap_or_else(|error| Answer::Failed(format!("{error:#}")));
        let mut text = serde_json::to_vec(&answer)?;
        text.push(b'\n');
        writer.write_all(&text)?;
    }
    Ok(())
}

impl State {
    fn obey(&mut self, command: Command) -> Result<Answer> {
        match command {
            Command::Prepare(job) => self.prepare(job),
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
                let stream = TcpStream::connect(("127.0.0.1", port)).context("connect")?;
                stream.set_nodelay(true)?;
                entry.insert(stream);
            }
            self.buffer.fill_at(job.block_bytes as usize);
            self.job = Some(job);
            return Ok(Answer::Ready);
        }
        let key = (job.path.clone(), job.direct);
        if !self.files.contains_key(&key) {
            let flags = if job.direct { libc::O_DIRECT } else { 0 };
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).custom_flags(flags);
            let file =
                options.open(&job.path).with_context(|| format!("open {}", job.path.display()))?;
            self.files.insert(key.clone(), file);
        }
        let file = &self.files[&key];
        let last = job.first_block + job.blocks * job.step;
        let end = u64::from(last) * u64::from(job.block_bytes);
        if job.op == Op::Fresh && job.first_block == 0 {
            file.set_len(0).with_context(|| format!("truncate {}", job.path.display()))?;
        }
        if job.op == Op::Fresh && job.pattern == Pattern::Random {
            file.set_len(end).with_context(|| format!("extend {}", job.path.display()))?;
        }
        let mut order: Vec<u32> = (job.first_block..last).step_by(job.step as usize).collect();
        if job.pattern == Pattern::Random {
            order.shuffle(&mut rand::rngs::SmallRng::seed_from_u64(job.seed));
        }
        self.buffer.fill_at(job.block_bytes as usize);
        self.order = order;
        self.job = Some(job);
        Ok(Answer::Ready)
    }

    fn run(&mut self, start_ns: u64) -> Result<Answer> {
        let job = self.job.take().context("run without prepare")?;
        let block = u64::from(job.block_bytes);
        let buffer = &mut self.buffer.bytes_mut()[..job.block_bytes as usize];
        let waited_ns = machine::own_waited_ns();
        while machine::monotonic_ns() < start_ns {
            std::hint::spin_loop();
        }
        let cpu_ns = machine::own_cpu_ns();
        let begin_ns = machine::monotonic_ns();
        match job.tcp {
            Some(port) => {
                let stream = self.streams.get_mut(&port).context("no connection")?;
                by_tcp(stream, &job, buffer)?;
            }
            None => {
                let file = &self.files[&(job.path.clone(), job.direct)];
                by_file(file, &job, &self.order, buffer)?;
            }
        }
        let end_ns = machine::monotonic_ns();
        Ok(Answer::Done(Sample {
            start_ns: begin_ns,
            end_ns,
            cpu_ns: machine::own_cpu_ns() - cpu_ns,
            waited_ns: machine::own_waited_ns() - waited_ns,
            bytes: block * u64::from(job.blocks),
        }))
    }

    /// Content written by jobs repeats with the block; here only what any block has is checked:
    /// the size, and that no byte of the pattern is missing (the pattern has no zero byte, so a
    /// hole or a lost write shows).
    fn verify(&mut self, path: &std::path::Path, bytes: u64) -> Result<Answer> {
        let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
        let size = file.metadata()?.len();
        if size != bytes {
            bail!("{} has {size} bytes instead of {bytes}", path.display());
        }
        let buffer = self.buffer.bytes_mut();
        let mut offset = 0;
        while offset < bytes {
            let want = buffer.len().min((bytes - offset) as usize);
            file.read_exact_at(&mut buffer[..want], offset)?;
            if let Some(hole) = buffer[..want].iter().position(|&byte| byte == 0) {
                bail!("{}: a write at {} is lost", path.display(), offset + hole as u64);
            }
            offset += want as u64;
        }
        Ok(Answer::Ready)
    }
}

fn by_file(file: &File, job: &Job, order: &[u32], buffer: &mut [u8]) -> Result<()> {
    for &index in order {
        let offset = u64::from(index) * u64::from(job.block_bytes);
        match job.op {
            Op::Read => file.read_exact_at(buffer, offset)?,
            Op::Overwrite | Op::Fresh => file.write_all_at(buffer, offset)?,
        }
    }
    if job.synced {
        file.sync_all()?;
    }
    Ok(())
}

/// As many bytes, the same way, without a file system.
fn by_tcp(stream: &mut TcpStream, job: &Job, buffer: &mut [u8]) -> Result<()> {
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

/// A buffer at a page boundary, as O_DIRECT wants it.
struct AlignedBuffer {
    memory: Vec<u8>,
    first: usize,
    len: usize,
}

const PAGE_BYTES: usize = 4096;

impl AlignedBuffer {
    fn new(len: usize) -> AlignedBuffer {
        let memory = vec![1_u8; len + PAGE_BYTES];
        let first = memory.as_ptr().align_offset(PAGE_BYTES);
        AlignedBuffer { memory, first, len }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.first..self.first + self.len]
    }

    /// Fills the first `len` bytes with what does not compress and has no zero byte.
    fn fill_at(&mut self, len: usize) {
        let bytes = &mut self.bytes_mut()[..len];
        rand::rngs::SmallRng::seed_from_u64(len as u64).fill_bytes(bytes);
        for byte in bytes {
            *byte |= 1;
        }
    }
}
