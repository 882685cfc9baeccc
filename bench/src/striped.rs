//! Striped files: two servers on this machine, reached over TCP on loopback, and a file over both.
//!
//! Compared with a plain directory on tmpfs, as all rows on data are, and with what plain TCP
//! connections move between as many processes: that is what bounds a network file system here. The
//! row on one shared file is what a checkpoint does that all processes write in turn.

use crate::data::{self, Point};
use crate::pool::{self, Pool};
use crate::report::{Row, Target};
use crate::sides::{Scratch, run};
use crate::stats::Pairs;
use anyhow::{Context, Result};
use forebay_loadgen::held::{Job, Op, Pattern, TO_WORKER, Workers};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};

/// Name of the buffer.
const NAME: &str = "striped";
const SERVERS: usize = 2;
/// Bytes that one worker moves in a sample.
const SAMPLE_BYTES: u64 = 64 << 20;
/// Blocks of the shared file.
const STRIDED_BLOCK_BYTES: u32 = 47_008;
/// Bytes that one worker reads, or reads and writes back, in a sample of what may wait for the other mount.
const BACK_BYTES: u64 = 4 << 20;
/// Pairs after which the files are made anew.
const PAIRS_PER_FILE: usize = 5;

const NOTE: &str = "striped: CPU of the daemon is that of both mounts and both servers.";
const STRIDED_NOTE: &str = "strided: each of two processes, each on a mount of its own, writes or reads every other \
    block of one file; raw is one directory.";

const BACK_NOTE: &str = "read back: files in logs that were published by closing them, by two processes, a file each; on the own node by the \
    mount that wrote them, by its server's Unix socket; from another node by a mount that reaches all servers by TCP only.";
const LOGS_NOTE: &str = "log layout: raw is not tmpfs but the same two mounts, served, each with a whole file of its own.";
const NEAR_LOGS_NOTE: &str = "log layout on the servers' node: raw is not tmpfs but the same two mounts, each with a whole file of its own, whose data \
    calls are the kernel's; those of the file in logs come to the mounts, which append by descriptors of the logs that the servers gave.";
const MAY_WRITE_NOTE: &str = "who may write: what promise W12 costs. Both sides are files in logs on the same two mounts; a descriptor that may write is shown \
    what the other mount has acknowledged, and what it writes back is published at once. Bytes that are read and written back count once.";

/// Two servers with a buffer over both, and two mounts of it.
pub struct Striped<'a> {
    forebay: &'a Path,
    /// As from other nodes: by TCP only.
    pub mounts: Vec<PathBuf>,
    /// On the servers' node.
    near: Vec<PathBuf>,
    // After the mounts are gone.
    pool: Pool<'a>,
}

impl<'a> Striped<'a> {
    /// Starts the servers on `flash`, makes the buffer and mounts it twice.
    pub fn start(
        forebay: &'a Path,
        flash: &Path,
        disk: &Scratch,
        bytes: u64,
    ) -> Result<Striped<'a>> {
        let pool = Pool::start(forebay, flash, disk, "striped", bytes + (64 << 20), SERVERS)?;
        let mut striped = Striped { forebay, mounts: Vec::new(), near: Vec::new(), pool };
        striped.pool.create(NAME, bytes, SERVERS)?;
        for at in 0..2 {
            let point = disk.dir(&format!("striped.mnt{at}"))?;
            striped.pool.mount(NAME, &point, &["--no-fast-path"])?;
            striped.mounts.push(point);
        }
        let dir = striped.mounts[0].join("striped");
        std::fs::create_dir(&dir).context("make a directory in the buffer")?;
        let logs = striped.mounts[0].join("logs");
        for dir in [&logs, &striped.mounts[0].join("own")] {
            std::fs::create_dir(dir).context("make a directory in the buffer")?;
        }
        let all = ["--count", "all", "--size", "1MiB"].as_slice();
        for (values, dir) in [(all, &dir), (["--layout", "log"].as_slice(), &logs)] {
            let set = ["stripe", "set"].iter().chain(values).map(std::ffi::OsStr::new);
            let arguments: Vec<_> = set.chain([dir.as_os_str()]).collect();
            run(forebay, &arguments)?;
        }
        Ok(striped)
    }

    /// The processes of the servers and of the mounts.
    pub fn daemons(&self) -> Result<Vec<u32>> {
        let mut all = self.pool.pids();
        for point in self.mounts.iter().chain(&self.near) {
            all.push(pool::mount_pid(self.forebay, point)?);
        }
        Ok(all)
    }

    /// Mounts the buffer once more, as on the servers' own node.
    fn mount_near(&mut self, disk: &Scratch) -> Result<PathBuf> {
        let point = disk.dir(&format!("striped.near{}", self.near.len()))?;
        self.pool.mount(NAME, &point, &[])?;
        self.near.push(point.clone());
        Ok(point)
    }
}

impl Drop for Striped<'_> {
    fn drop(&mut self) {
        for point in self.mounts.iter().chain(&self.near) {
            pool::umount(self.forebay, point);
        }
        self.pool.destroy(NAME);
    }
}

/// Jobs of a side (0: raw), for a pair with this number.
type Jobs<'a> = &'a dyn Fn(usize, u64) -> Vec<Job>;

/// One row: jobs on the raw side and on the buffer's.
pub struct Case<'a> {
    /// Part of the table.
    pub part: &'static str,
    /// What it is called.
    pub name: String,
    /// What it has to reach.
    pub target: Option<Target>,
    /// How it is measured.
    pub note: &'static str,
    /// What is measured.
    pub jobs: Jobs<'a>,
    /// What writes the files before, if not the same jobs. They are closed then.
    pub fill: Option<Jobs<'a>>,
    /// Files there are on each side, and their bytes.
    pub files: [Vec<PathBuf>; 2],
    /// Bytes of each of them, by sides.
    pub file_bytes: [u64; 2],
}

/// All rows.
pub fn measure(
    striped: &mut Striped<'_>,
    (raw, disk): (&Path, &Scratch),
    workers: &mut Workers,
    pairs: usize,
    mut keep: impl FnMut(Row),
) -> Result<()> {
    let daemons = striped.daemons()?;
    let near = striped.mounts[0].join("striped");
    let tcp = sink()?;
    let blocks = (SAMPLE_BYTES >> 20) as u32;
    for (op, verb) in [(Op::Overwrite, "overwrite"), (Op::Read, "read")] {
        for (port, against, least) in [(None, "tmpfs", 0.20), (Some(tcp), "plain TCP", 0.30)] {
            let job = |side: usize, worker: u32, seed: u64| Job {
                path: [raw, &near][side].join(format!("data.{worker}")),
                op,
                pattern: Pattern::Sequential,
                block_bytes: 1 << 20,
                first_block: 0,
                blocks,
                step: 1,
                seed,
                direct: false,
                synced: false,
                read_only: false,
                tcp: port.filter(|_| side == 0),
            };
            let jobs = |side, seed| (0..2).map(|worker| job(side, worker, seed)).collect();
            let files = |side: usize| (0..2).map(|worker| job(side, worker, 0).path).collect();
            let case = Case {
                part: "striped",
                name: format!("sequential {verb} 1 MiB, 2 processes, 2 servers, to {against}"),
                target: Some(Target::RatioAtLeast(least)),
                note: NOTE,
                jobs: &jobs,
                fill: None,
                files: if port.is_some() { [Vec::new(), files(1)] } else { [files(0), files(1)] },
                file_bytes: [SAMPLE_BYTES; 2],
            };
            keep(case.measure(&daemons, workers, pairs)?);
        }
    }
    strided(striped, raw, &daemons, workers, pairs, &mut keep)?;
    in_logs(&striped.mounts, &FAR, &daemons, workers, pairs, &mut keep)?;
    by_who_may_write(striped, &daemons, workers, pairs, &mut keep)?;
    // Last: no other row has these mounts beside it.
    let near = striped.mount_near(disk)?;
    let daemons = striped.daemons()?;
    for (mount, port) in [(&near, None), (&striped.mounts[0], Some(tcp))] {
        keep(read_back((&near, mount), raw, port, &daemons, workers, pairs)?);
    }
    striped.mount_near(disk)?;
    in_logs(&striped.near, &NEAR, &striped.daemons()?, workers, pairs, &mut keep)
}

/// Files in logs that one mount wrote and closed, read by it or by another one; to tmpfs, or to plain TCP by this port.
fn read_back(
    (writes, reads): (&Path, &Path),
    raw: &Path,
    port: Option<u16>,
    daemons: &[u32],
    workers: &mut Workers,
    pairs: usize,
) -> Result<Row> {
    let job = |dir: &Path, side: usize, worker: u32, seed: u64| Job {
        path: [raw, &dir.join("logs")][side].join(format!("back.{worker}")),
        op: Op::Read,
        pattern: Pattern::Sequential,
        block_bytes: 1 << 20,
        first_block: 0,
        blocks: (SAMPLE_BYTES >> 20) as u32,
        step: 1,
        seed,
        direct: false,
        synced: false,
        read_only: true,
        tcp: port.filter(|_| side == 0),
    };
    let jobs = |side, seed| (0..2).map(|worker| job(reads, side, worker, seed)).collect();
    let fill = |side, seed| (0..2).map(|worker| job(writes, side, worker, seed)).collect();
    let files = |side: usize| (0..2).map(|worker| job(reads, side, worker, 0).path).collect();
    let (from, to) = match port {
        None => ("own node", "tmpfs"),
        Some(_) => ("another node", "plain TCP"),
    };
    let case = Case {
        part: "striped",
        name: format!("log layout: read back 1 MiB, {from}, 2 processes, to {to}"),
        // What the network gives has no figure of its own.
        target: port.is_none().then_some(Target::RatioAtLeast(0.8)),
        note: BACK_NOTE,
        jobs: &jobs,
        fill: Some(&fill),
        files: if port.is_some() { [Vec::new(), files(1)] } else { [files(0), files(1)] },
        file_bytes: [SAMPLE_BYTES; 2],
    };
    case.measure(daemons, workers, pairs)
}

/// Where two mounts are that write one file in logs.
struct Where {
    /// As the rows are called.
    name: &'static str,
    /// What writing and reading have to reach.
    least: [Option<f64>; 2],
    note: &'static str,
}

const FAR: Where = Where { name: "2 mounts", least: [Some(0.9), Some(0.5)], note: LOGS_NOTE };
const NEAR: Where =
    Where { name: "2 mounts on the servers' node", least: [Some(0.9), None], note: NEAR_LOGS_NOTE };

/// One file in logs, its blocks by turns from two mounts, to what the same mounts do with a file each.
fn in_logs(
    mounts: &[PathBuf],
    place: &Where,
    daemons: &[u32],
    workers: &mut Workers,
    pairs: usize,
    keep: &mut dyn FnMut(Row),
) -> Result<()> {
    let half = SAMPLE_BYTES / 2;
    let path = |side: usize, worker: u32| match side {
        0 => mounts[worker as usize].join(format!("own/data.{worker}")),
        _ => mounts[worker as usize].join("logs/shared"),
    };
    let acts = [(Op::Overwrite, "overwrite"), (Op::Read, "read")];
    for ((op, verb), least) in acts.into_iter().zip(place.least) {
        let jobs = |side: usize, seed| {
            let job = |worker| {
                let (block_bytes, first_block, step) = match side {
                    0 => (1 << 20, 0, 1),
                    _ => (STRIDED_BLOCK_BYTES, worker, 2),
                };
                Job {
                    path: path(side, worker),
                    op,
                    pattern: Pattern::Sequential,
                    block_bytes,
                    first_block,
                    blocks: (half / u64::from(block_bytes)) as u32,
                    step,
                    seed,
                    direct: false,
                    synced: false,
                    read_only: false,
                    tcp: None,
                }
            };
            (0..2).map(job).collect()
        };
        let blocks = 2 * (half / u64::from(STRIDED_BLOCK_BYTES));
        let case = Case {
            part: "striped",
            name: format!(
                "log layout: strided {verb} 47008 B of one file, {}, to a file each, 1 MiB",
                place.name
            ),
            target: least.map(Target::RatioAtLeast),
            note: place.note,
            jobs: &jobs,
            fill: None,
            files: [vec![path(0, 0), path(0, 1)], vec![path(1, 0)]],
            file_bytes: [half, blocks * u64::from(STRIDED_BLOCK_BYTES)],
        };
        keep(case.measure(daemons, workers, pairs)?);
    }
    Ok(())
}

/// Reads of a file in logs by descriptors that may write (promise W12): alone, to descriptors that only read; and with the bytes
/// written back, by turns from two mounts, to a file for each.
fn by_who_may_write(
    striped: &Striped<'_>,
    daemons: &[u32],
    workers: &mut Workers,
    pairs: usize,
    keep: &mut dyn FnMut(Row),
) -> Result<()> {
    let blocks = (BACK_BYTES / u64::from(STRIDED_BLOCK_BYTES)) as u32;
    let bytes = u64::from(blocks) * u64::from(STRIDED_BLOCK_BYTES);
    let by_turns = |name: String, op: Op, worker: u32, seed: u64| Job {
        path: striped.mounts[worker as usize].join(name),
        op,
        pattern: Pattern::Sequential,
        block_bytes: STRIDED_BLOCK_BYTES,
        first_block: worker,
        blocks,
        step: 2,
        seed,
        direct: false,
        synced: false,
        read_only: false,
        tcp: None,
    };
    let reads = |side: usize, seed: u64| -> Vec<Job> {
        let job = |worker: u32| Job {
            read_only: side == 0,
            ..by_turns(format!("logs/may.{side}"), Op::Read, worker, seed)
        };
        (0..2).map(job).collect()
    };
    let backs = |side: usize, seed: u64| -> Vec<Job> {
        let job = |worker: u32| match side {
            0 => {
                let name = format!("logs/alone.{worker}");
                Job { first_block: 0, step: 1, ..by_turns(name, Op::WriteBack, worker, seed) }
            }
            _ => by_turns("logs/both".into(), Op::WriteBack, worker, seed),
        };
        (0..2).map(job).collect()
    };
    let file = |jobs: Vec<Job>, count: usize| -> Vec<PathBuf> {
        jobs.into_iter().map(|job| job.path).take(count).collect()
    };
    let case = Case {
        part: "striped",
        name: "log layout: strided read 47008 B by who may write, 2 mounts, to who only reads"
            .into(),
        target: None,
        note: MAY_WRITE_NOTE,
        jobs: &reads,
        fill: Some(&reads),
        files: [file(reads(0, 0), 1), file(reads(1, 0), 1)],
        file_bytes: [2 * bytes; 2],
    };
    keep(case.measure(daemons, workers, pairs)?);
    let case = Case {
        part: "striped",
        name: "log layout: strided read and write back 47008 B of one file by who may write, 2 mounts, to a file each"
            .into(),
        target: None,
        note: MAY_WRITE_NOTE,
        jobs: &backs,
        fill: None,
        files: [file(backs(0, 0), 2), file(backs(1, 0), 1)],
        file_bytes: [bytes, 2 * bytes],
    };
    keep(case.measure(daemons, workers, pairs)?);
    Ok(())
}

/// One file, its blocks by turns from two mounts.
fn strided(
    striped: &Striped<'_>,
    raw: &Path,
    daemons: &[u32],
    workers: &mut Workers,
    pairs: usize,
    keep: &mut dyn FnMut(Row),
) -> Result<()> {
    let blocks = (SAMPLE_BYTES / 2 / u64::from(STRIDED_BLOCK_BYTES)) as u32;
    for (op, verb) in [(Op::Overwrite, "overwrite"), (Op::Read, "read")] {
        let path = |side: usize, worker: u32| match side {
            0 => raw.join("shared"),
            _ => striped.mounts[worker as usize].join("striped/shared"),
        };
        let jobs = |side, seed| {
            let job = |worker| Job {
                path: path(side, worker),
                op,
                pattern: Pattern::Sequential,
                block_bytes: STRIDED_BLOCK_BYTES,
                first_block: worker,
                blocks,
                step: 2,
                seed,
                direct: false,
                synced: false,
                read_only: false,
                tcp: None,
            };
            (0..2).map(job).collect()
        };
        let case = Case {
            part: "striped",
            name: format!("strided {verb} 47008 B of one file, 2 processes on 2 mounts, 2 servers"),
            target: None,
            note: STRIDED_NOTE,
            jobs: &jobs,
            fill: None,
            files: [vec![path(0, 0)], vec![path(1, 0)]],
            file_bytes: [u64::from(2 * blocks) * u64::from(STRIDED_BLOCK_BYTES); 2],
        };
        keep(case.measure(daemons, workers, pairs)?);
    }
    Ok(())
}

impl Case<'_> {
    /// Takes the pairs of samples, and checks at the end what the files hold.
    pub fn measure(&self, daemons: &[u32], workers: &mut Workers, pairs: usize) -> Result<Row> {
        let mut collected = Pairs::new(pairs);
        let mut points: [Vec<Point>; 2] = [Vec::new(), Vec::new()];
        while collected.more() {
            let pair = collected.run();
            if pair.is_multiple_of(PAIRS_PER_FILE) {
                self.make_files(workers)?;
            }
            let mut rates = [0.0; 2];
            let mut waits = [(0, 0); 2];
            for turn in 0..2 {
                let side = (turn + pair) % 2;
                let daemons = if side == 1 { daemons } else { &[] };
                let point = data::run_jobs(&(self.jobs)(side, pair as u64), daemons, workers)?;
                rates[side] = point.bytes_per_s;
                waits[side] = (point.waited_ns, point.elapsed_ns);
                points[side].push(point);
            }
            collected.take(rates[1] / rates[0], waits);
        }
        workers.forget()?;
        let all = self.files.iter().zip(self.file_bytes);
        for (file, bytes) in all.flat_map(|(files, bytes)| files.iter().map(move |f| (f, bytes))) {
            workers.verify(file.clone(), bytes)?;
            std::fs::remove_file(file).with_context(|| format!("remove {}", file.display()))?;
        }
        let name = self.name.clone();
        data::bandwidth_row(self.part, name, self.target, self.note, &collected, &points)
    }

    /// Fills the files anew: the jobs' own blocks, written.
    fn make_files(&self, workers: &mut Workers) -> Result<()> {
        workers.forget()?;
        for (side, files) in self.files.iter().enumerate().filter(|(_, files)| !files.is_empty()) {
            for file in files {
                match std::fs::remove_file(file) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(error).with_context(|| format!("remove {}", file.display()));
                    }
                    _ => {}
                }
            }
            let fill = |job: Job| Job { op: Op::Overwrite, read_only: false, ..job };
            let jobs = self.fill.unwrap_or(self.jobs)(side, 0);
            let jobs: Vec<Job> = jobs.into_iter().map(fill).collect();
            // One after the other: the second of a shared file finds it there.
            workers.prepare(&jobs)?;
            workers.run(jobs.len())?;
        }
        if self.fill.is_some() {
            workers.forget()?;
        }
        Ok(())
    }
}

/// Listens for workers' connections until the benchmark ends: takes or gives what they ask for, as
/// fast as TCP does. Returns the port.
fn sink() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("listen for plain TCP")?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                // A worker that ends closes its connection.
                let _ = exchange(stream);
            });
        }
    });
    Ok(port)
}

/// A worker says how many bytes it sends, or with the highest bit set how many it wants; what it
/// sends is answered by one byte at the end.
fn exchange(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![1; 1 << 20];
    loop {
        let mut head = [0; 8];
        stream.read_exact(&mut head)?;
        let head = u64::from_le_bytes(head);
        let mut left = head & !TO_WORKER;
        while left > 0 {
            let some = buffer.len().min(left as usize);
            match head & TO_WORKER {
                0 => stream.read_exact(&mut buffer[..some])?,
                _ => stream.write_all(&buffer[..some])?,
            }
            left -= some as u64;
        }
        if head & TO_WORKER == 0 {
            stream.write_all(&[1])?;
        }
    }
}
