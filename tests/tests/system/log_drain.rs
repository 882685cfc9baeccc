//! What the PFS gets of a file that many wrote at odd offsets into logs: large aligned writes. The pattern is that of the
//! GCRM climate model (Howison et al., "Tuning HDF5 for Lustre File Systems", 2010): records of 1.6 MB of each task, and small
//! updates of a header by one. The writes of the servers are read from strace(1).
#![allow(clippy::unwrap_used)]

use forebay_tests::cached;
use forebay_tests::served::{Options, Served, Store, Via};
use forebay_tests::sys;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const MIB: u64 = 1 << 20;
/// Tasks, half of them on each mount.
const TASKS: u64 = 8;
/// Records of a task.
const RECORDS: u64 = 8;
const RECORD_BYTES: u64 = 1_638_411;
const HEADER_BYTES: u64 = 2_947;
/// Small updates in the header: HDF5 and netCDF make some with each record.
const UPDATES: u64 = 40;

/// A PFS that charges for each call, for each block that a write covers only in part (it reads, changes and writes it),
/// and for bytes.
const CALL_MS: f64 = 1.0;
const PARTIAL_BLOCK_MS: f64 = 5.0;
const BYTES_PER_MS: f64 = 1e6;

/// One write.
#[derive(Clone, Copy, Debug)]
struct Write {
    offset: u64,
    bytes: u64,
}

impl Write {
    fn end(self) -> u64 {
        self.offset + self.bytes
    }

    /// Whole blocks of 1 MiB, and nothing else.
    fn is_aligned(self) -> bool {
        self.bytes > 0 && self.offset.is_multiple_of(MIB) && self.bytes.is_multiple_of(MIB)
    }

    fn charge_ms(self) -> f64 {
        let (first, last) = (self.offset / MIB, (self.end() - 1) / MIB);
        let begins = !self.offset.is_multiple_of(MIB);
        let ends = !self.end().is_multiple_of(MIB);
        let partial = if first == last {
            u32::from(begins || ends)
        } else {
            u32::from(begins) + u32::from(ends)
        };
        CALL_MS + PARTIAL_BLOCK_MS * f64::from(partial) + self.bytes as f64 / BYTES_PER_MS
    }
}

fn charged_ms(writes: &[Write]) -> f64 {
    writes.iter().map(|write| write.charge_ms()).sum()
}

/// What a task writes, in its order.
fn pattern(task: u64) -> Vec<Write> {
    let record = |n: u64| Write {
        offset: HEADER_BYTES + (n * TASKS + task) * RECORD_BYTES,
        bytes: RECORD_BYTES,
    };
    let mut writes: Vec<Write> = (0..RECORDS).map(record).collect();
    if task == 0 {
        let update = |n: u64| Write { offset: n * 61 % (HEADER_BYTES - 500), bytes: 100 + n * 9 };
        writes.extend((0..UPDATES).map(update));
    }
    writes
}

fn fill(write: Write, task: u64) -> Vec<u8> {
    cached::bytes_at(write.offset, write.bytes as usize, task)
}

/// Every task writes its own through its mount; what the file is then.
fn write_all(served: &Served, name: &str) -> Vec<u8> {
    std::thread::scope(|scope| {
        for task in 0..TASKS {
            let path = served.path((task % 2) as usize, name);
            scope.spawn(move || {
                let file = sys::open(path, libc::O_WRONLY, 0).unwrap();
                for write in pattern(task) {
                    let bytes = fill(write, task);
                    assert_eq!(sys::pwrite(&file, write.offset, &bytes), Ok(bytes.len()));
                }
            });
        }
    });
    let mut wanted = vec![0; (HEADER_BYTES + RECORDS * TASKS * RECORD_BYTES) as usize];
    for task in 0..TASKS {
        for write in pattern(task) {
            let place = write.offset as usize..write.end() as usize;
            wanted[place].copy_from_slice(&fill(write, task));
        }
    }
    wanted
}

/// Watches the writes of processes.
struct Strace {
    child: Child,
    log: tempfile::NamedTempFile,
}

impl Strace {
    fn of(pids: &[i32]) -> Strace {
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut command = Command::new("strace");
        command.args([
            "-f",
            "-y",
            "-s",
            "0",
            "-e",
            "trace=write,pwrite64,writev,pwritev,pwritev2,copy_file_range,sendfile,splice",
        ]);
        command.arg("-o").arg(log.path()).stderr(Stdio::piped());
        for pid in pids {
            command.arg("-p").arg(pid.to_string());
        }
        let mut child = command.spawn().unwrap();
        // It says so of each process that it has attached to.
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        let attached = said
            .by_ref()
            .take(pids.len())
            .filter(|line| line.as_ref().unwrap().contains("attached"));
        assert_eq!(attached.count(), pids.len(), "strace cannot attach");
        std::thread::spawn(move || said.for_each(drop));
        Strace { child, log }
    }

    /// All writes below a directory.
    fn writes_below(mut self, dir: &Path) -> Vec<Write> {
        // SAFETY: a signal to a child that was not waited for.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGINT) };
        self.child.wait().unwrap();
        let below = format!("<{}/", dir.display());
        let text = std::fs::read_to_string(self.log.path()).unwrap();
        text.lines().filter(|line| line.contains(&below)).map(parsed).collect()
    }
}

/// `123 pwrite64(5</pfs/f>, ""..., 1048576, 0) = 1048576`, or the first half of it.
fn parsed(line: &str) -> Write {
    let (_, rest) =
        line.split_once("pwrite64(").unwrap_or_else(|| panic!("another kind of write: {line}"));
    let numbers = rest.split_once("...,").unwrap().1;
    let mut numbers =
        numbers.split([',', ')', ' ']).filter(|part| !part.is_empty()).map(str::parse::<u64>);
    let (bytes, offset) = (numbers.next().unwrap().unwrap(), numbers.next().unwrap().unwrap());
    Write { offset, bytes }
}

#[test]
fn what_many_wrote_at_odd_offsets_reaches_the_pfs_in_large_aligned_writes() {
    let served = Served::with(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Local]);
    sys::mkdir(served.path(0, "l"), 0o777).unwrap();
    sys::setxattr(served.path(0, "l"), "user.forebay.layout", b"log", 0).unwrap();
    drop(sys::open(served.path(0, "l/gcrm"), libc::O_CREAT | libc::O_WRONLY, 0o644).unwrap());
    let wanted = write_all(&served, "l/gcrm");
    assert!(std::fs::read(served.root(1).join("l/gcrm")).unwrap() == wanted, "read");

    let out = served.pfs("gcrm");
    let strace = Strace::of(&[served.server_pid(0), served.server_pid(1)]);
    served.must(served.forebay(&["stage", "out"]).arg(served.root(0).join("l/gcrm")).arg(&out));
    let drained = strace.writes_below(out.parent().unwrap());
    assert!(std::fs::read(&out).unwrap() == wanted, "staged out");

    let total: u64 = drained.iter().map(|write| write.bytes).sum();
    assert_eq!(total, wanted.len() as u64, "each byte once: {drained:?}");
    let aligned: u64 =
        drained.iter().filter(|write| write.is_aligned()).map(|write| write.bytes).sum();
    let directly: Vec<Write> = (0..TASKS).flat_map(pattern).collect();
    let (direct_ms, drain_ms) = (charged_ms(&directly), charged_ms(&drained));
    println!(
        "{} writes for {} of the program, {:.4} of the bytes aligned; charged {drain_ms:.0} ms for {direct_ms:.0}",
        drained.len(),
        directly.len(),
        aligned as f64 / total as f64
    );
    assert!(aligned as f64 >= 0.99 * total as f64, "{drained:?}");
    // By another alignment.
    let out = served.pfs("by4");
    let strace = Strace::of(&[served.server_pid(0), served.server_pid(1)]);
    let mut stage = served.forebay(&["stage", "out", "--align", "4MiB"]);
    served.must(stage.arg(served.root(0).join("l/gcrm")).arg(&out));
    let by_four = strace.writes_below(out.parent().unwrap());
    assert!(std::fs::read(&out).unwrap() == wanted, "staged out by 4 MiB");
    let is_whole = |write: &&Write| write.bytes == 4 * MIB && write.offset % (4 * MIB) == 0;
    assert_eq!(by_four.iter().filter(is_whole).count(), wanted.len() / (4 << 20), "{by_four:?}");
    assert!(4.0 * drain_ms <= direct_ms, "{drain_ms} ms, directly {direct_ms} ms: {drained:?}");
}
