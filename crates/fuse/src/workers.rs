//! Threads for requests that take long, so that lookups and opens do not wait behind an fsync
//! or a megabyte.
//!
//! Metadata is answered on the thread that read it: waking another thread costs as much as the
//! request. A large write hands its buffer over and the reader takes another one from a bounded
//! pool; the other requests are short and are copied. When queue or pool is exhausted the
//! reader serves the request itself: slower for the others, never lost and never unbounded.
//! Who waits for one that waits here may be let go ([`crate::waits`]). Where all workers are held up there are more
//! ([`crate::more_workers`]).

use crate::abi::{self, op};
use crate::buffer::{PageBuffer, REQUEST_LEAD_BYTES, Reply, take};
use crate::connection::{Connection, Request};
use crate::device::Device;
use crate::more_workers::{IDLE, MoreWorkers};
use crate::ops::files::is_synchronous;
use crate::waits::{self, Serving, Waits};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
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

/// The queue and the buffers.
pub(crate) struct Workers {
    count: usize,
    more: MoreWorkers,
    jobs: (Sender<Job>, Receiver<Job>),
    spare: (Sender<PageBuffer>, Receiver<PageBuffer>),
}

impl Workers {
    pub(crate) fn new(count: usize) -> Workers {
        let spare = bounded(count * BUFFERS_PER_WORKER);
        for _ in 0..count * BUFFERS_PER_WORKER {
            // The channel has exactly this capacity, so this cannot fail.
            let _ = spare.0.try_send(PageBuffer::for_requests());
        }
        Workers { count, more: MoreWorkers::new(count), jobs: bounded(MAX_QUEUED), spare }
    }

    pub(crate) fn more(&self) -> &MoreWorkers {
        &self.more
    }

    /// Requests that wait.
    pub(crate) fn queued(&self) -> usize {
        self.jobs.1.len()
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Lets every worker finish what is queued and end.
    pub(crate) fn stop(&self) {
        for _ in 0..self.more.stop() {
            // Fails only if no receiver is left, and we own one.
            let _ = self.jobs.0.send(Job::Stop);
        }
    }

    /// Gives a long request to a worker. Returns the buffer to read the next request into, and
    /// whether the request was taken; if not, it is still in the buffer.
    pub(crate) fn hand_over(
        &self,
        waits: &Waits,
        device: &Arc<Device>,
        buffer: PageBuffer,
        len: usize,
    ) -> (PageBuffer, bool) {
        let Ok(rq) = Request::parse(buffer.filled(len), device.root()) else {
            return (buffer, false);
        };
        let (unique, is_write) = (rq.head.unique, rq.head.opcode == op::WRITE);
        if !is_write && len > SHORT_BYTES {
            return (buffer, false);
        }
        waits.enqueue(device, &rq);
        let (buffer, taken) = self.give(Arc::clone(device), buffer, len, is_write);
        if !taken {
            // It was answered in that moment: then there is nothing more to do for it.
            return (buffer, !waits.dequeue(unique));
        }
        self.more.looks_after(self.queued());
        (buffer, true)
    }

    fn give(
        &self,
        device: Arc<Device>,
        buffer: PageBuffer,
        len: usize,
        is_write: bool,
    ) -> (PageBuffer, bool) {
        if is_write {
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
        let mut bytes = [0; SHORT_BYTES];
        bytes[..len].copy_from_slice(buffer.filled(len));
        (buffer, self.jobs.0.try_send(Job::Short { device, bytes, len }).is_ok())
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
    takes_space(rq.head.opcode) && cx.fs.space_is_coming()
}

/// Whether a request takes space, of data or of names.
pub(crate) fn takes_space(opcode: u32) -> bool {
    matches!(
        opcode,
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
    )
}

/// What a worker thread does until [`Workers::stop`].
pub(crate) fn run(cx: &Connection) {
    serve_all(cx, || {
        let workers = &cx.workers;
        workers.more.waits();
        let job = workers.jobs.1.recv();
        workers.more.took(workers.queued());
        job.ok()
    });
}

/// What one does that was started since the others are held up: it ends when nothing came for [`IDLE`], too.
pub(crate) fn run_for_a_while(cx: &Connection) {
    serve_all(cx, || {
        let workers = &cx.workers;
        loop {
            workers.more.waits();
            let job = workers.jobs.1.recv_timeout(IDLE);
            workers.more.took(workers.queued());
            match job {
                Ok(job) => return Some(job),
                Err(RecvTimeoutError::Timeout) if !workers.more.may_end(workers.queued()) => {}
                Err(_) => return None,
            }
        }
    });
}

fn serve_all(cx: &Connection, next: impl Fn() -> Option<Job>) {
    let mut reply = Reply::new();
    let serving = cx.waits.serving();
    while let Some(job) = next() {
        match job {
            Job::Short { device, bytes, len } => {
                serve(cx, &device, &bytes[..len], &mut reply, &serving);
            }
            Job::Write { device, buffer, len } => {
                serve(cx, &device, buffer.filled(len), &mut reply, &serving);
                cx.workers.give_back(buffer);
            }
            Job::Stop => break,
        }
    }
    cx.waits.served(&serving);
}

fn serve(
    cx: &Connection,
    device: &Arc<Device>,
    bytes: &[u8],
    reply: &mut Reply,
    serving: &Serving,
) {
    // The reader parsed the same bytes.
    if let Ok(rq) = Request::parse(bytes, device.root())
        && cx.waits.dequeue(rq.head.unique)
    {
        cx.handles.before(cx, &rq);
        waits::serve(cx, device, &rq, reply, serving);
    }
}
