//! The log of each operation of a run: a trace as `forebay trace` writes it, so `forebay report` shows it.
//!
//! Invariants: a rank keeps at most [`MOST_CALLS`] in memory; what comes after that is counted, and the trace says so. Calls on streams of
//! stdio are logged as the recorder records them, so that the trace of a program and the log of its replay count alike.
//! Callers: `ior`, and `player` of `replay`.

use crate::failed;
use crate::shared::now_ns;
use forebay_trace_format::layout::{self, flag};
use forebay_trace_format::{Op, Who, Writer};
use forebay_workload::language::{Calls, NameOp};
use rustix::time::ClockId;
use std::collections::HashMap;
use std::hash::Hash;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Most operations that a rank keeps: 64 MiB.
const MOST_CALLS: u64 = 2 << 20;
/// Looks at two clocks, of which the closest counts.
const CLOCK_LOOKS: u32 = 16;

/// What is logged.
#[derive(Clone, Copy)]
pub(crate) enum Call {
    Open,
    Close,
    Read,
    Write,
    /// On a stream.
    Stream {
        write: bool,
        calls: Calls,
    },
    Fsync,
    Truncate,
    Name(NameOp),
}

impl Call {
    fn op(self) -> Op {
        match self {
            Call::Open => Op::Open,
            Call::Close => Op::Close,
            Call::Read => Op::Pread,
            Call::Write => Op::Pwrite,
            Call::Stream { write: false, calls: Calls::One } => Op::Fread,
            Call::Stream { write: true, calls: Calls::One } => Op::Fwrite,
            Call::Stream { write: false, calls: Calls::Unseen } => Op::StdioRead,
            Call::Stream { write: true, calls: Calls::Unseen } => Op::StdioWrite,
            Call::Fsync => Op::Fsync,
            Call::Truncate => Op::Ftruncate,
            Call::Name(NameOp::Mkdir) => Op::Mkdir,
            Call::Name(NameOp::Rmdir) => Op::Rmdir,
            Call::Name(NameOp::Create) => Op::Creat,
            Call::Name(NameOp::Stat) => Op::Stat,
            Call::Name(NameOp::Unlink) => Op::Unlink,
            Call::Name(NameOp::Readdir) => Op::Readdir,
            Call::Name(NameOp::Rename) => Op::Rename,
        }
    }
}

/// By how much a clock is ahead of that of [`now_ns`]. A process may lose its processor between looks at two clocks, so the looks that
/// lie closest together count: logs of several processes are compared, call by call.
fn ahead_ns(clock: ClockId) -> u64 {
    let look = || {
        let before = now_ns();
        let time = rustix::time::clock_gettime(clock);
        let took = now_ns() - before;
        let time = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
        (took, time.saturating_sub(before + took / 2))
    };
    (0..CLOCK_LOOKS).map(|_| look()).min().map_or(0, |(_, ahead)| ahead)
}

/// The log of a rank, whose files its caller tells apart by `K`.
pub(crate) struct Log<K> {
    path: PathBuf,
    writer: Writer,
    names: HashMap<K, u32, foldhash::fast::RandomState>,
    calls: u64,
    /// What to add to CLOCK_MONOTONIC to get CLOCK_BOOTTIME.
    to_boottime_ns: u64,
}

impl<K: Copy + Eq + Hash> Log<K> {
    pub(crate) fn new(dir: &Path, rank: u32, ranks: u32) -> Result<Log<K>, String> {
        let to_boottime_ns = ahead_ns(ClockId::Boottime);
        let to_realtime_ns = ahead_ns(ClockId::Realtime);
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let pid = std::process::id();
        let path = dir.join(format!("{host}.{pid}.{rank}.{}", layout::EXTENSION));
        let exe = "forebay bench".to_string();
        let who = Who { host, pid, rank: rank as i32, ranks: ranks as i32, exe };
        let writer = Writer::new(&who, to_realtime_ns.saturating_sub(to_boottime_ns));
        Ok(Log { path, writer, names: HashMap::default(), calls: 0, to_boottime_ns })
    }

    pub(crate) fn knows(&self, file: &K) -> bool {
        self.names.contains_key(file)
    }

    pub(crate) fn name(&mut self, file: &K, path: &Path) {
        let id = self.names.len() as u32 + 1;
        self.names.insert(*file, id);
        self.writer.name(id, 0, path.as_os_str().as_bytes());
        self.writer.regular(id, 1, u64::from(id));
    }

    pub(crate) fn call(
        &mut self,
        call: Call,
        file: &K,
        offset: u64,
        length: u64,
        start_ns: u64,
        end_ns: u64,
    ) {
        self.calls += 1;
        if self.calls > MOST_CALLS {
            self.writer.lose(1);
            return;
        }
        let id = self.names.get(file).copied().unwrap_or(0);
        let is_stream = matches!(call, Call::Stream { .. });
        let moves = is_stream || matches!(call, Call::Read | Call::Write | Call::Truncate);
        let offset = if moves { offset } else { layout::NO_OFFSET };
        let flags = if is_stream { flag::STDIO } else { 0 };
        let (start, took) = (start_ns + self.to_boottime_ns, end_ns - start_ns);
        let what = (call.op(), flags);
        self.writer.flagged(what, id, offset, length, length as i64, start, took);
    }

    pub(crate) fn finish(self) -> Result<(), String> {
        std::fs::write(&self.path, self.writer.finish())
            .map_err(|error| failed::said("write", &self.path, &error))
    }
}
