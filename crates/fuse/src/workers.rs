//! Threads for requests that take long, so that lookups and opens do not wait behind an fsync
//! or a megabyte.
//!
//! Metadata is answered on the thread that read it: waking another thread costs as much as the
//! request. A large write hands its buffer over and the reader takes another one from a bounded
//! pool; the other requests are short and are copied. When queue or pool is exhausted the
//! reader serves the request itself: slower for the others, never lost and never unbounded.
//!
//! A process that is killed while it waits for such a request is let go at once where nothing
//! depends on the answer ([`can_be_abandoned`]); the kernel waits for all others.

use crate::abi::{self, op};
use crate::buffer::{PageBuffer, REQUEST_LEAD_BYTES, Reply, take};
use crate::connection::{Connection, Request};
use crate::device::Device;
use crate::dispatch::{self, Given};
use crate::ops::files::is_synchronous;
use crossbeam_channel::{Receiver, Sender, bounded};
use forebay_proto::Result;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Most requests waiting for a worker.
const MAX_QUEUED: usize = 1024;
/// Write buffers beyond those of the readers, for each worker: one being written, one waiting.
const BUFFERS_PER_WORKER: usize = 2;
/// From this many bytes on a served read or write goes to a worker.
const LARGE_BYTES: usize = 64 << 10;
/// Longest request that is copied, in bytes: CREATE with the longest name has 312.
const SHORT_BYTES: usize = 320;

#[allow(clippy::large_enum_variant, reason = "moved by value: no allocation for each request")]
enum Job {
    Short { device: Arc<Device>, bytes: [u8; SHORT_BYTES], len: usize },
    Write { device: Arc<Device>, buffer: PageBuffer, len: usize },
    Stop,
}

/// A request under way whose caller may be let go.
struct Waiting {
    device: Arc<Device>,
    tid: u32,
}

/// The queue, the buffers and the requests under way.
pub(crate) struct Workers {
    count: usize,
    jobs: (Sender<Job>, Receiver<Job>),
    spare: (Sender<PageBuffer>, Receiver<PageBuffer>),
    waiting: Mutex<HashMap<u64, Waiting>>,
}

impl Workers {
    pub(crate) fn new(count: usize) -> Workers {
        let spare = bounded(count * BUFFERS_PER_WORKER);
        for _ in 0..count * BUFFERS_PER_WORKER {
            // The channel has exactly this capacity, so this cannot fail.
            let _ = spare.0.try_send(PageBuffer::for_requests());
        }
        Workers { count, jobs: bounded(MAX_QUEUED), spare, waiting: Mutex::new(HashMap::new()) }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Lets every worker finish what is queued and end.
    pub(crate) fn stop(&self) {
        for _ in 0..self.count {
            // Fails only if no receiver is left, and we own one.
            let _ = self.jobs.0.send(Job::Stop);
        }
    }

    /// Gives a long request to a worker. Returns the buffer to read the next request into, and
    /// whether the request was taken; if not, it is still in the buffer.
    pub(crate) fn hand_over(
        &self,
        device: &Arc<Device>,
        buffer: PageBuffer,
        len: usize,
        head: &abi::InHeader,
    ) -> (PageBuffer, bool) {
        let device = Arc::clone(device);
        if head.opcode == op::WRITE {
            let Ok(next) = self.spare.1.try_recv() else { return (buffer, false) };
            return match self.jobs.0.try_send(Job::Write { device, buffer, len }) {
                Ok(()) => (next, true),
                Err(refused) => {
                    self.give_back(next);
                    match refused.into_inner() {
                        Job::Write { buffer, .. } => (buffer, false),
                        // What was sent comes back; the type cannot say so.
                        Job::Short { .. } | Job::Stop => (PageBuffer::for_requests(), true),
                    }
                }
            };
        }
        if len > SHORT_BYTES {
            return (buffer, false);
        }
        let mut bytes = [0; SHORT_BYTES];
        bytes[..len].copy_from_slice(buffer.filled(len));
        self.can_be_let_go(&device, head);
        let taken = self.jobs.0.try_send(Job::Short { device, bytes, len }).is_ok();
        if !taken {
            self.waiting.lock().remove(&head.unique);
        }
        (buffer, taken)
    }

    /// Its caller need not wait for the end if it is killed.
    fn can_be_let_go(&self, device: &Arc<Device>, head: &abi::InHeader) {
        if can_be_abandoned(head.opcode) {
            let waiting = Waiting { device: Arc::clone(device), tid: head.pid };
            self.waiting.lock().insert(head.unique, waiting);
        }
    }

    fn give_back(&self, buffer: PageBuffer) {
        // Full only if the pool has all its buffers: then this one is not needed.
        let _ = self.spare.0.try_send(buffer);
    }
}

/// Whether a request goes to a worker.
pub(crate) fn takes_long(rq: &Request<'_>) -> bool {
    match rq.head.opcode {
        op::FSYNC
        | op::FSYNCDIR
        | op::FALLOCATE
        | op::COPY_FILE_RANGE
        | op::COPY_FILE_RANGE_64
        | op::SYNCFS
        | op::STATFS => true,
        // These wait for flash (see `ops::files`).
        op::OPEN => {
            let mut rest = rq.body;
            take::<abi::OpenIn>(&mut rest).is_ok_and(|arg| is_synchronous(arg.flags))
        }
        op::CREATE => {
            let mut rest = rq.body;
            take::<abi::CreateIn>(&mut rest).is_ok_and(|arg| is_synchronous(arg.flags))
        }
        _ => is_large(rq),
    }
}

/// Whether a request moves a large block.
pub(crate) fn is_large(rq: &Request<'_>) -> bool {
    match rq.head.opcode {
        op::WRITE => rq.head.len as usize >= LARGE_BYTES + REQUEST_LEAD_BYTES,
        op::READ => {
            let mut rest = rq.body;
            take::<abi::ReadIn>(&mut rest).is_ok_and(|arg| arg.size as usize >= LARGE_BYTES)
        }
        _ => false,
    }
}

/// Whether a request may wait for space that is on its way back. What it waits for is mostly a
/// FORGET behind it, so the reader must go on reading.
pub(crate) fn waits_for_space(cx: &Connection, rq: &Request<'_>) -> bool {
    let takes_space = matches!(
        rq.head.opcode,
        op::CREATE
            | op::OPEN
            | op::TMPFILE
            | op::WRITE
            | op::MKNOD
            | op::MKDIR
            | op::SYMLINK
            | op::LINK
            | op::RENAME
            | op::RENAME2
    );
    takes_space && cx.fs.space_is_coming()
}

/// Requests after which a killed caller need not wait for the end: they change nothing that the
/// answer would tell.
fn can_be_abandoned(opcode: u32) -> bool {
    matches!(opcode, op::FSYNC | op::FSYNCDIR | op::SYNCFS | op::STATFS | op::READ)
}

/// What a worker thread does until [`Workers::stop`].
pub(crate) fn run(cx: &Connection) {
    let mut reply = Reply::new();
    while let Ok(job) = cx.workers.jobs.1.recv() {
        match job {
            Job::Short { device, bytes, len } => serve(cx, &device, &bytes[..len], &mut reply),
            Job::Write { device, buffer, len } => {
                serve(cx, &device, buffer.filled(len), &mut reply);
                cx.workers.give_back(buffer);
            }
            Job::Stop => return,
        }
    }
}

/// A long request is served by its reader, like a worker would.
pub(crate) fn serve_in_place(
    cx: &Connection,
    device: &Arc<Device>,
    rq: &Request<'_>,
    reply: &mut Reply,
) {
    cx.workers.can_be_let_go(device, &rq.head);
    serve_long(cx, device, rq, reply);
}

fn serve(cx: &Connection, device: &Arc<Device>, bytes: &[u8], reply: &mut Reply) {
    // The reader parsed the same bytes.
    if let Ok(rq) = Request::parse(bytes) {
        serve_long(cx, device, &rq, reply);
    }
}

fn serve_long(cx: &Connection, device: &Arc<Device>, rq: &Request<'_>, reply: &mut Reply) {
    let result = dispatch::call_guarded(cx, device, rq, reply);
    let abandoned = can_be_abandoned(rq.head.opcode)
        && cx.workers.waiting.lock().remove(&rq.head.unique).is_none();
    if !abandoned {
        dispatch::answer(cx, device, rq.head.unique, result, reply);
    }
}

/// INTERRUPT: a signal reached somebody who waits. If it is a deadly one, answers in place of
/// the worker. Other signals change nothing: fsync of a local file is not interrupted either.
/// (The kernel tells of the first signal only; a later SIGKILL waits for the answer.)
pub(crate) fn interrupt(cx: &Connection, rq: &Request<'_>) -> Result<Given> {
    let mut rest = rq.body;
    let arg: abi::InterruptIn = take(&mut rest)?;
    let waits = |w: &Waiting| w.tid != 0 && is_being_killed(w.tid);
    let waiting = {
        let mut map = cx.workers.waiting.lock();
        if !map.get(&arg.unique).is_some_and(waits) {
            return Ok(Given::Nothing);
        }
        map.remove(&arg.unique)
    };
    if let Some(waiting) = waiting {
        let message = abi::OutHeader {
            len: size_of::<abi::OutHeader>() as u32,
            error: -libc::EINTR,
            unique: arg.unique,
        };
        // ENOENT: gone meanwhile. Nothing was given that would have to be taken back.
        if let Err(error) = waiting.device.send(zerocopy::IntoBytes::as_bytes(&message)) {
            tracing::debug!(%error, "nobody waits for an interrupted request");
        }
    }
    Ok(Given::Nothing)
}

/// Whether SIGKILL (into which the kernel turns every deadly signal) is pending for a thread.
fn is_being_killed(tid: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{tid}/status")) else { return false };
    let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
    let bits = pending.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    bits.is_some_and(|bits| bits & (1 << (libc::SIGKILL - 1)) != 0)
}
