//! A mount and its threads: readers, workers, one notifier.
//!
//! The mount lives until it is unmounted, by [`Session::unmount`], `umount(8)` or anybody else;
//! then every reader's read ends with ENODEV, the last reader stops the other threads, and
//! [`Session::wait`] returns. Requests never outlive that: releases and forgets of files that
//! were open when the mount ended are not sent by the kernel.

use crate::beside::{Door, Parts};
use crate::connection::{Connection, Request};
use crate::counters::Counters;
use crate::device::{Device, ECONNABORTED};
use crate::follow::Follower;
use crate::init::{self, InitError};
use crate::mount::{self, MountError, Mounted, UnmountError};
use crate::notify::Notifier;
use crate::options::{FastPath, MountFlags, MountOptions, readers_abreast};
use crate::reader_handoff::ReaderHandoff;
use crate::tally::Served;
use crate::waits::{self, Serving};
use crate::{abi, buffer, dispatch, more_workers, workers};
use forebay_proto::latency::Latency;
use forebay_proto::{Errno, FileSystem, Ino, Notify};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, StatxFlags};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

/// Reads that may fail in a row, for a reason that is not known to pass, before a reader gives
/// the mount up.
const MAX_READ_ERRORS: u32 = 16;

/// How often the kernel is asked for the root before it knows it. One answer is overtaken seldom.
const ROOT_TRIES: u32 = 20;

/// A mounted file system. Dropping it unmounts lazily, without waiting.
pub struct Session {
    connection: Arc<Connection>,
    notifier: Arc<Notifier>,
    counters: Vec<Arc<Counters>>,
    path: PathBuf,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Readers that were started because all others waited.
    more: Arc<Mutex<Vec<JoinHandle<()>>>>,
    live_readers: Arc<AtomicUsize>,
    standby: bool,
}

impl Session {
    /// Mounts `fs` on the directory `mount_point` and starts to serve it. When this returns,
    /// the mount answers. `fs` is told whom to notify of changes behind the mount.
    pub fn mount(
        fs: Arc<dyn FileSystem>,
        mount_point: &Path,
        options: MountOptions,
    ) -> Result<Session, MountError> {
        let Mounted { device, path } = mount::mount(mount_point, &options)?;
        let started = start(fs, device, &path, &options);
        match &started {
            Ok(_) => make_root_known(&path),
            Err(_) => {
                if let Err(error) = mount::unmount(&path, true) {
                    tracing::error!(%error, "a mount that could not be started is left behind");
                }
            }
        }
        started
    }

    /// Waits until the file system is unmounted and all threads have ended.
    pub fn wait(&self) {
        let mut threads = self.threads.lock();
        let more = || std::mem::take(&mut *self.more.lock());
        // The last of them may be started while the others are waited for.
        for thread in threads.drain(..).chain(std::iter::from_fn(|| Some(more())).take(2).flatten())
        {
            // A thread that panicked said so on the panic hook; the mount is over in any case.
            if thread.join().is_err() {
                tracing::error!("a thread of the mount had panicked");
            }
        }
        self.connection.workers.more().join();
    }

    /// True if the kernel has ended the session and no request is under way but such as only read: nobody waits for what
    /// they give, and nothing of it is to be kept.
    pub fn only_reads_are_left(&self) -> bool {
        self.connection.waits.only_reads_are_left()
    }

    /// The requests that are under way, by the kernel's names of them, for the log.
    pub fn under_way(&self) -> Vec<&'static str> {
        self.connection.waits.under_way()
    }

    /// Unmounts. EBUSY is [`UnmountError::Busy`]; `lazy` detaches the name at once, and the
    /// mount ends when its last file is closed.
    pub fn unmount(&self, lazy: bool) -> Result<(), UnmountError> {
        mount::unmount(&self.path, lazy)
    }

    /// Whom to tell of changes behind the mount.
    pub fn notifier(&self) -> Arc<dyn Notify> {
        Arc::clone(&self.notifier) as Arc<dyn Notify>
    }

    /// Whether the kernel reads and writes local objects itself.
    pub fn fast_path(&self) -> FastPath {
        self.connection.fast_path
    }

    /// Whether an inode is open now, and if so whether by passthrough.
    pub fn open_by_passthrough(&self, ino: Ino) -> Option<bool> {
        let access = self.connection.opens.access(ino)?;
        Some(matches!(access, crate::opens::Access::Passthrough(_)))
    }

    /// Requests served so far, by the kernel's names of them.
    pub fn request_counts(&self) -> Vec<(&'static str, u64)> {
        Counters::sum(self.counters.iter().map(|c| &**c))
    }

    /// How long requests took here so far, by the kernel's names of them. Locks that had to be waited for are left out.
    pub fn request_latency(&self) -> Vec<(&'static str, Latency)> {
        self.connection.tally.latency()
    }

    /// Bytes and errors that went through the daemon so far.
    pub fn served(&self) -> Served {
        self.connection.tally.sum()
    }

    /// The way in for programs that ask this process beside the kernel, with the thread that goes with it; `None` where
    /// there is nothing to give them: no local files, or flags of the mount that only the kernel can honour.
    pub fn door(&self) -> std::io::Result<Option<Arc<Door>>> {
        let flags = self.connection.flags;
        let usual =
            MountFlags { read_only: false, nosuid: false, nodev: false, silent: false, ..flags };
        if self.connection.local_files().is_none() || usual != MountFlags::default() {
            return Ok(None);
        }
        let parts =
            Parts { cx: Arc::clone(&self.connection), notifier: Arc::clone(&self.notifier) };
        let door = Arc::new(Door::new(parts, self.path.clone())?);
        let lingers = Arc::clone(&door);
        let thread = std::thread::Builder::new().name("fuse-lingers".into());
        let (ready, is_ready) = std::sync::mpsc::channel();
        self.threads.lock().push(thread.spawn(move || lingers.run_lingers(&ready))?);
        // A program that came before the names are shared would be without them for its life. An error: the thread has
        // ended, and programs ask for all.
        let _ended = is_ready.recv();
        Ok(Some(door))
    }

    /// Where it is mounted.
    pub fn mount_point(&self) -> &Path {
        &self.path
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.live_readers.load(Ordering::Acquire) == 0 {
            return;
        }
        match mount::unmount(&self.path, true) {
            Ok(()) | Err(UnmountError::NotMounted(_)) => {}
            Err(error) => tracing::error!(%error, "a mount is left behind"),
        }
    }
}

/// The kernel has an inode of the root from the mount on, of root and with no rights, and asks what it is when somebody first uses it.
/// An answer that is overtaken by a notification of the root it ignores: that one is refused, EACCES. So it asks here, until it
/// knows, before anybody else is there to use the mount.
fn make_root_known(path: &Path) {
    let look = |sync| {
        let wanted = StatxFlags::TYPE | StatxFlags::MODE | StatxFlags::UID | StatxFlags::GID;
        let st = rustix::fs::statx(rustix::fs::CWD, path, sync, wanted)?;
        Ok((st.stx_mode, st.stx_uid, st.stx_gid))
    };
    for _ in 0..ROOT_TRIES {
        let answered = look(AtFlags::STATX_FORCE_SYNC);
        let known = answered.and_then(|is| Ok(is == look(AtFlags::STATX_DONT_SYNC)?));
        match known {
            Ok(true) => return,
            Ok(false) => {}
            // Who uses it meets the same.
            Err(error) => {
                let error: rustix::io::Errno = error;
                return tracing::debug!(%error, "the root of a new mount is not looked at");
            }
        }
    }
    tracing::warn!("the kernel does not know yet whose the root of a new mount is");
}

fn start(
    fs: Arc<dyn FileSystem>,
    device: Device,
    path: &Path,
    options: &MountOptions,
) -> Result<Session, MountError> {
    let flags = options.flags;
    let device = device.with_access_times(flags.access_times()).with_root(fs.root());
    fs.set_access_times(flags.access_times(), flags.access_times_of_dirs());
    let served = init::Served { locks: fs.locks().is_some(), handles: fs.finds_by_number() };
    let agreed = init::handshake(&device, options, served).map_err(|e| match e {
        InitError::Protocol { major, minor } => {
            MountError::Protocol { path: path.into(), major, minor }
        }
        InitError::Io(errno) => MountError::Handshake(path.into(), errno),
    })?;
    let fast_path = init::probe_fast_path(&device, &agreed, options);
    let mut channels = vec![Arc::new(device)];
    for _ in 1..options.reader_count() {
        match channels[0].another_channel() {
            Ok(channel) => channels.push(Arc::new(channel)),
            // All readers on one channel are right too, only slower.
            Err(error) => {
                tracing::warn!(%error, "no channel of its own for a reader");
                channels.push(Arc::clone(&channels[0]));
            }
        }
    }
    let main = Arc::clone(&channels[0]);
    let connection = Connection::new(Arc::clone(&fs), main, options, agreed, fast_path);
    let session = Session {
        notifier: Arc::new(Notifier::new(&connection)),
        connection: Arc::new(connection),
        counters: channels.iter().map(|_| Arc::new(Counters::new())).collect(),
        path: path.to_path_buf(),
        threads: Mutex::new(Vec::new()),
        more: Arc::default(),
        live_readers: Arc::new(AtomicUsize::new(channels.len())),
        standby: options.standby,
    };
    fs.set_notify(session.notifier());
    session.connection.set_notify(session.notifier());
    session.connection.handles.begin(path, &session.notifier);
    spawn_threads(&session, channels, options.follow_client)
        .map_err(|e| MountError::Thread(path.into(), Errno::from_io(&e)))?;
    Ok(session)
}

fn spawn_threads(
    session: &Session,
    channels: Vec<Arc<Device>>,
    follow_client: bool,
) -> std::io::Result<()> {
    let mut threads = session.threads.lock();
    let mut spawn = |name: String, run: Box<dyn FnOnce() + Send>| {
        threads.push(std::thread::Builder::new().name(name).spawn(run)?);
        std::io::Result::Ok(())
    };
    for number in 0..session.connection.workers.count() {
        let cx = Arc::clone(&session.connection);
        spawn(format!("fuse-work-{number}"), Box::new(move || workers::run(&cx)))?;
    }
    let cx = Arc::clone(&session.connection);
    spawn("fuse-more".into(), Box::new(move || more_workers::run(&cx)))?;
    if session.connection.served_locks().is_some() {
        let cx = Arc::clone(&session.connection);
        spawn("fuse-tries".into(), Box::new(move || cx.tries.run(&cx)))?;
    }
    let (cx, notifier) = (Arc::clone(&session.connection), Arc::clone(&session.notifier));
    spawn("fuse-notify".into(), Box::new(move || notifier.run(&cx)))?;
    let cx = Arc::clone(&session.connection);
    spawn("fuse-waits".into(), Box::new(move || cx.waits.run(&cx)))?;
    let turns =
        session.standby.then(|| Arc::new(ReaderHandoff::new(channels.len(), readers_abreast())));
    if let Some(turns) = turns.clone() {
        turns.start_more_by(more_readers(session, &turns, follow_client));
        spawn("fuse-turns".into(), Box::new(move || turns.monitor()))?;
    }
    for (number, device) in channels.into_iter().enumerate() {
        let reader = Reader {
            number,
            turns: turns.clone(),
            connection: Arc::clone(&session.connection),
            notifier: Arc::clone(&session.notifier),
            counters: Arc::clone(&session.counters[number]),
            live_readers: Arc::clone(&session.live_readers),
            path: session.path.clone(),
            device,
            follow_client,
        };
        spawn(format!("fuse-read-{number}"), Box::new(move || reader.run()))?;
    }
    Ok(())
}

/// Starts one more reader where all wait, for servers or a PFS: somebody has to read that they are interrupted.
fn more_readers(
    session: &Session,
    turns: &Arc<ReaderHandoff>,
    follow_client: bool,
) -> impl Fn(usize) -> bool + Send + Sync + 'static {
    let turns = Arc::downgrade(turns);
    let (connection, notifier) = (Arc::clone(&session.connection), Arc::clone(&session.notifier));
    let (counters, path) = (Arc::clone(&session.counters[0]), session.path.clone());
    let (live_readers, more) = (Arc::clone(&session.live_readers), Arc::clone(&session.more));
    move |number| {
        let Some(turns) = turns.upgrade() else { return false };
        let reader = Reader {
            number,
            turns: Some(turns),
            connection: Arc::clone(&connection),
            notifier: Arc::clone(&notifier),
            counters: Arc::clone(&counters),
            live_readers: Arc::clone(&live_readers),
            path: path.clone(),
            device: Arc::clone(&connection.device),
            follow_client,
        };
        // Counted before it could end. None is started when all have ended: the monitor ends with them.
        live_readers.fetch_add(1, Ordering::AcqRel);
        let name = format!("fuse-read-{number}");
        match std::thread::Builder::new().name(name).spawn(move || reader.run()) {
            Ok(thread) => {
                more.lock().push(thread);
                true
            }
            Err(error) => {
                tracing::warn!(%error, "cannot start a thread that reads requests");
                live_readers.fetch_sub(1, Ordering::AcqRel);
                false
            }
        }
    }
}

struct Reader {
    number: usize,
    /// One reads at a time.
    turns: Option<Arc<ReaderHandoff>>,
    connection: Arc<Connection>,
    notifier: Arc<Notifier>,
    counters: Arc<Counters>,
    live_readers: Arc<AtomicUsize>,
    path: PathBuf,
    device: Arc<Device>,
    follow_client: bool,
}

impl Reader {
    fn run(self) {
        let serving = self.connection.waits.serving();
        let end = self.read_until_the_end(&serving);
        self.connection.waits.served(&serving);
        if end.is_ok() {
            self.connection.waits.callers_are_gone();
        }
        if let Some(turns) = &self.turns {
            turns.end();
        }
        if self.live_readers.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        if let Err(error) = end {
            // Nobody would answer any more: end the mount rather than let its users hang.
            tracing::error!(%error, path = %self.path.display(), "cannot read requests; giving the mount up");
            if let Err(error) = mount::abort(&self.path) {
                tracing::error!(%error, "cannot end the mount");
            }
        }
        self.notifier.stop();
        self.connection.waits.end();
        self.connection.workers.stop();
        self.connection.tries.stop();
        self.connection.handles.stop();
        self.connection.beside.stop();
        crate::ops::locks::end_of_mount(&self.connection);
    }

    fn read_until_the_end(&self, serving: &Serving) -> Result<(), Errno> {
        let cx = &*self.connection;
        let mut buffer = buffer::PageBuffer::for_requests();
        let mut reply = buffer::Reply::new();
        let mut follower = Follower::new(self.follow_client);
        let mut errors = 0;
        loop {
            if let Some(turns) = &self.turns {
                turns.wait_to_read(self.number);
            }
            let len = match self.device.receive(buffer.room()) {
                Ok(len) => len,
                // ENOENT: the request was given up before it was read.
                Err(Errno::EINTR | Errno::EAGAIN | Errno::ENOENT) => continue,
                Err(Errno::ENODEV | ECONNABORTED) => return Ok(()),
                Err(e) if errors >= MAX_READ_ERRORS => return Err(e),
                Err(_) => {
                    errors += 1;
                    continue;
                }
            };
            errors = 0;
            if let Some(turns) = &self.turns {
                turns.serves(self.number);
            }
            let request = match Request::parse(buffer.filled(len), self.device.root()) {
                Ok(request) => request,
                Err(e) => {
                    self.refuse(buffer.filled(len), e, &mut reply);
                    continue;
                }
            };
            self.counters.count(request.head.opcode);
            forebay_awake::request();
            follower.request_of(request.head.pid);
            let here = self.serves_in_place(&request, &follower);
            let syncs = cx.flags.syncs_names() && workers::takes_space(request.head.opcode);
            let by_handle = cx.handles.asks(&request);
            let long = (syncs || by_handle || workers::takes_long(&request)) && !here;
            if long || workers::waits_for_space(cx, &request) {
                let (next, taken) = cx.workers.hand_over(&cx.waits, &self.device, buffer, len);
                buffer = next;
                if taken {
                    continue;
                }
            }
            if let Ok(request) = Request::parse(buffer.filled(len), self.device.root()) {
                waits::serve(cx, &self.device, &request, &mut reply, serving);
            }
        }
    }

    /// Whether a large block is served by who read it. Handing it over would move it to another
    /// processor, which a thread that asks alone gains nothing by, and costs a turn, which several
    /// that ask in turn do not get back. Where others stand by, one of them reads as soon as it takes
    /// long; the last of them serves nothing that may.
    fn serves_in_place(&self, request: &Request<'_>, follower: &Follower) -> bool {
        let Some(turns) = &self.turns else { return false };
        let large = workers::is_large(request);
        // 0 is the kernel itself (releases, forgets).
        let several = request.head.pid != 0 && turns.asks(request.head.pid, large);
        let is_write = request.head.opcode == abi::op::WRITE;
        let gains = several || (is_write && follower.asks_alone());
        large && gains && turns.is_relieved(self.number)
    }

    /// Answers a request that makes no sense, if at least its number can be read.
    fn refuse(&self, bytes: &[u8], errno: Errno, reply: &mut buffer::Reply) {
        let mut rest = bytes;
        if let Ok(head) = buffer::take::<abi::InHeader>(&mut rest) {
            tracing::error!(opcode = head.opcode, len = head.len, "malformed request");
            reply.clear();
            let cx = &*self.connection;
            dispatch::answer(cx, &self.device, head.unique, Err(errno), reply);
        }
    }
}
