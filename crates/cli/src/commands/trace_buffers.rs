//! The buffers' own events beside a trace: while the command runs, `forebay trace` asks each mounted buffer of the caller's
//! what it does with files, and writes that into files of the trace, on the clock of the calls.
//!
//! Invariants: nothing here delays the command by more than [`BEGIN_MAX`], or its end by more than [`END_MAX`], or fails it: mounts
//! are asked at once, each in a thread of its own, and one that does not answer is asked again beside the command, and left at its
//! end. (Whose answers come slowly is waited for longer: [`Watched::left_at`].) Of a buffer that the command used and that
//! cannot be asked, the end tells; see [`of_used`]. Memory is that of an
//! answer and of the names of files, of each mount. A buffer is watched by one `forebay trace` of a run and node ([`Source::file`]).
//! Caller: `trace`.

use foldhash::{HashMap, HashMapExt, HashSet};
use forebay_client::server_process::{ARE_STOPPED, is_stopped};
use forebay_client::{Control, MountRef, mounts};
use forebay_proto::ServerId;
use forebay_proto::activity::ActivityPage;
use forebay_proto::control::ControlError;
use forebay_trace_format::layout::{self, NO_OFFSET};
use forebay_trace_format::{Item, Op, Process, Who, Writer};
use parking_lot::{Condvar, Mutex};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Pause between two questions while there is something to hear, and while there is not.
const PAUSE: Duration = Duration::from_millis(20);
const QUIET: Duration = Duration::from_millis(200);
/// How often it is looked for new mounts.
const LOOK: Duration = Duration::from_secs(1);
/// Longest wait for the answers of all mounts before the command is started.
const BEGIN_MAX: Duration = Duration::from_millis(500);
/// Longest wait for the last answers of all mounts after the command's end: of those that never answered, or are stopped.
const END_MAX: Duration = Duration::from_millis(500);
/// The same of a mount that has answered: for one answer, and for all.
const END_ANSWER_MAX: Duration = Duration::from_secs(2);
const END_ANSWERS_MAX: Duration = Duration::from_secs(10);
/// How often it is looked meanwhile which of them are stopped.
const END_LOOK: Duration = Duration::from_millis(50);
/// Most mounts that are watched at once, each by a thread, and names of files of each that are written.
const MOUNTS_MAX: usize = 64;
const NAMES_MAX: usize = 1 << 20;
/// A larger trace of one process is not read for the buffers that it used: all count.
const SEARCHED_BYTES_MAX: u64 = 1 << 30;
/// Id of the mount point's name.
const POINT: u32 = 1;

/// What is watched.
pub struct Buffers {
    dir: PathBuf,
    /// In the names of files: what the `forebay trace` of all ranks of a run have in common.
    run: String,
    /// Those that answered, and those that have not until now.
    mounts: Vec<Mounted>,
    late: Vec<MountRef>,
    /// Device numbers of mounts that were looked at.
    looked_at: HashSet<u64>,
    problems: Vec<Problem>,
}

/// Why what a buffer did is missing from the trace.
pub struct Problem {
    /// Device number of the mount.
    device: u64,
    mount_point: PathBuf,
    /// In words.
    what: String,
}

/// A mount, and the servers behind it.
struct Mounted {
    place: MountRef,
    control: Control,
    sources: Vec<Source>,
}

/// Who tells events: the mount, or a server.
struct Source {
    server: Option<ServerId>,
    after: u64,
    /// Where they are written: nothing before the first event, or where another rank writes it.
    out: Out,
    ids: HashMap<u64, u32>,
    named: HashSet<u64>,
    lost: u64,
}

enum Out {
    Nothing,
    File(File, Box<Writer>),
    /// Another `forebay trace` of the run has it.
    Elsewhere,
}

/// The threads.
pub struct Watch {
    shared: Arc<Shared>,
}

/// What they have in common.
struct Shared {
    dir: PathBuf,
    run: String,
    state: Mutex<WatchedMounts>,
    /// The command has ended.
    ended: Condvar,
    /// The thread of a mount has nothing more to do.
    finished: Condvar,
}

/// The mounts that are watched, and what went wrong.
struct WatchedMounts {
    /// When the command ended.
    ended: Option<Instant>,
    /// Mounts whose threads have not finished.
    watched: Vec<Watched>,
    problems: Vec<Problem>,
}

/// What is known of a mount outside of its thread.
struct Watched {
    device: u64,
    mount_point: PathBuf,
    /// Its process, if it was heard of and can be seen.
    pid: Option<u32>,
    /// When it answered the last time.
    answered: Option<Instant>,
}

impl Buffers {
    /// Finds the mounts that are there, and lets them keep their events from now on.
    pub fn find(dir: &Path, run: String) -> Buffers {
        let mut buffers = Buffers {
            dir: dir.to_path_buf(),
            run,
            mounts: Vec::new(),
            late: Vec::new(),
            looked_at: HashSet::default(),
            problems: Vec::new(),
        };
        let end = Instant::now() + BEGIN_MAX;
        let new = new_mounts(&mut buffers.looked_at, MOUNTS_MAX);
        for (place, begun) in begin_all(new, end) {
            match begun {
                Some(Ok(mounted)) => buffers.mounts.push(mounted),
                Some(Err(error)) if !is_late(&error) => {
                    let MountRef { device, mount_point, .. } = place;
                    let what = format!("is not recorded: {error}");
                    buffers.problems.push(Problem { device, mount_point, what });
                }
                _ => buffers.late.push(place),
            }
        }
        buffers
    }

    /// Writes on from here in threads. The command must have been started: this process has one thread until then.
    pub fn watch(self) -> Watch {
        let Buffers { dir, run, mounts, late, looked_at, problems } = self;
        let state = WatchedMounts { ended: None, watched: Vec::new(), problems };
        let state = Mutex::new(state);
        let (ended, finished) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { dir, run, state, ended, finished });
        for mounted in mounts {
            shared.follow(mounted.place.clone(), Some(mounted));
        }
        for place in late {
            shared.follow(place, None);
        }
        let looker = Arc::clone(&shared);
        let look = move || looker.look(looked_at);
        // Without a thread there are no mounts that come later, and the others are there.
        drop(Builder::new().name("buffers".into()).spawn(look));
        Watch { shared }
    }
}

/// Mounts of this user's that were not looked at before, so many at most.
fn new_mounts(looked_at: &mut HashSet<u64>, most: usize) -> Vec<MountRef> {
    let uid = rustix::process::geteuid().as_raw();
    let mut new = mounts().unwrap_or_default();
    new.retain(|place| uid == 0 || place.owner_uid == Some(uid));
    // One that is mounted at two places is one.
    new.into_iter().filter(|place| looked_at.insert(place.device)).take(most).collect()
}

/// Asks them all at once; none is waited for after `end`, or where there is no thread for it. The threads have ended when this
/// returns: the command is started by a program of one.
fn begin_all(new: Vec<MountRef>, end: Instant) -> Vec<(MountRef, Option<anyhow::Result<Mounted>>)> {
    let ask = |place: MountRef| {
        let asked = place.clone();
        let thread = Builder::new().name("buffer".into());
        (place, thread.spawn(move || Mounted::begin(asked, Some(end))).ok())
    };
    // All of them, before the first is waited for.
    let asked: Vec<_> = new.into_iter().map(ask).collect();
    let heard = asked.into_iter().map(|(place, thread)| {
        let begun = thread.and_then(|thread| thread.join().ok());
        (place, begun)
    });
    heard.collect()
}

impl Shared {
    /// Looks for new mounts until the command ends.
    fn look(self: &Arc<Shared>, mut looked_at: HashSet<u64>) {
        loop {
            self.pause(LOOK);
            let room = {
                let state = self.state.lock();
                if state.ended.is_some() {
                    return;
                }
                MOUNTS_MAX.saturating_sub(state.watched.len())
            };
            for place in new_mounts(&mut looked_at, room) {
                self.follow(place, None);
            }
        }
    }

    /// Waits so long, or until the command ends.
    fn pause(&self, pause: Duration) {
        let mut state = self.state.lock();
        if state.ended.is_none() {
            self.ended.wait_for(&mut state, pause);
        }
    }

    fn has_ended(&self) -> bool {
        self.state.lock().ended.is_some()
    }

    /// Gives a mount its thread. `begun`: it has answered already.
    fn follow(self: &Arc<Shared>, place: MountRef, begun: Option<Mounted>) {
        let device = place.device;
        let watched = Watched {
            device,
            mount_point: place.mount_point.clone(),
            pid: begun.as_ref().and_then(|begun| begun.control.process_id()),
            answered: begun.as_ref().map(|_| Instant::now()),
        };
        {
            let mut state = self.state.lock();
            if state.ended.is_some() {
                return;
            }
            state.watched.push(watched);
        }
        let shared = Arc::clone(self);
        let record = move || {
            let problem = shared.record(place, begun);
            shared.finish(device, problem);
        };
        if let Err(error) = Builder::new().name("buffer".into()).spawn(record) {
            self.finish(device, Some(format!("is not recorded: there is no thread: {error}")));
        }
    }

    /// The thread of a mount is done, with this problem.
    fn finish(&self, device: u64, problem: Option<String>) {
        let mut state = self.state.lock();
        let at = state.watched.iter().position(|watched| watched.device == device);
        // At the end it may have been left.
        if let Some(at) = at {
            let Watched { mount_point, .. } = state.watched.swap_remove(at);
            state.problems.extend(problem.map(|what| Problem { device, mount_point, what }));
        }
        self.finished.notify_all();
    }

    /// A mount has answered.
    fn heard(&self, device: u64, pid: Option<u32>) {
        let mut state = self.state.lock();
        if let Some(watched) = state.watched.iter_mut().find(|watched| watched.device == device) {
            (watched.pid, watched.answered) = (pid, Some(Instant::now()));
        }
    }

    /// Writes what one mount does until the command has ended. What went wrong.
    fn record(&self, place: MountRef, begun: Option<Mounted>) -> Option<String> {
        let mut mounted = match begun {
            Some(mounted) => mounted,
            None => match Mounted::begin(place, None) {
                Err(error) => return Some(format!("is not recorded: {error}")),
                Ok(_) if self.has_ended() => {
                    return Some("is not recorded: it answered after the command's end".into());
                }
                Ok(mounted) => mounted,
            },
        };
        self.heard(mounted.place.device, mounted.control.process_id());
        loop {
            // Before it is asked: what happened until the end is fetched then.
            let is_last = self.has_ended();
            match mounted.fetch(self) {
                Ok(_) if is_last => return None,
                Ok(more) => self.pause(if more { PAUSE } else { QUIET }),
                // An unmount is no fault.
                Err(_) if !is_mounted(&mounted.place) => return None,
                Err(why) => return Some(format!("is recorded in part: {why}")),
            }
        }
    }
}

fn is_late(error: &anyhow::Error) -> bool {
    let known = error.downcast_ref::<ControlError>();
    known.is_some_and(|error| error.errno == Some(libc::ETIMEDOUT))
}

fn is_mounted(place: &MountRef) -> bool {
    mounts().unwrap_or_default().iter().any(|other| other.device == place.device)
}

impl Watch {
    /// The command has ended: fetches the rest, and leaves who does not answer. What went wrong.
    pub fn end(self) -> Vec<Problem> {
        let ended = Instant::now();
        let mut state = self.shared.state.lock();
        state.ended = Some(ended);
        self.shared.ended.notify_all();
        loop {
            let now = Instant::now();
            let until = state.watched.iter().map(|watched| watched.left_at(ended)).max();
            let Some(until) = until.filter(|until| *until > now) else { break };
            self.shared.finished.wait_until(&mut state, until.min(now + END_LOOK));
        }
        // Threads that still wait end with this program.
        let left = std::mem::take(&mut state.watched);
        let mut problems = std::mem::take(&mut state.problems);
        problems.extend(left.into_iter().map(Watched::leave));
        problems
    }
}

impl Watched {
    fn is_stopped(&self) -> bool {
        self.pid.is_some_and(is_stopped)
    }

    /// How long it is waited for, if the command ended then. One that answers may be slow: a busy machine, or much to tell.
    fn left_at(&self, ended: Instant) -> Instant {
        match self.answered {
            Some(answered) if !self.is_stopped() => {
                (answered.max(ended) + END_ANSWER_MAX).min(ended + END_ANSWERS_MAX)
            }
            _ => ended + END_MAX,
        }
    }

    fn leave(self) -> Problem {
        let told = if self.answered.is_some() { "is recorded in part" } else { "is not recorded" };
        let what = match self.pid.filter(|pid| is_stopped(*pid)) {
            Some(pid) => format!("{told}: its process {pid} is {ARE_STOPPED}"),
            None => format!("{told}: it did not answer until the command's end"),
        };
        Problem { device: self.device, mount_point: self.mount_point, what }
    }
}

/// In words, the problems with the buffers that the traced processes of this host used. What happens to the other
/// buffers of a node does not concern the command.
pub fn of_used(problems: Vec<Problem>, dir: &Path, host: &str) -> Vec<String> {
    if problems.is_empty() {
        return Vec::new();
    }
    let mut used = vec![false; problems.len()];
    let mut uses = |by: &dyn Fn(&Problem) -> bool| {
        for (used, problem) in used.iter_mut().zip(&problems) {
            *used |= by(problem);
        }
    };
    // A trace that cannot be read says nothing against a problem.
    let files = std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    for path in files.map(|entry| entry.path()) {
        if path.extension() != Some(OsStr::new(layout::EXTENSION)) {
            continue;
        }
        let Ok(process) = Process::open(&path) else { continue };
        let header = &process.header;
        if header.role == layout::role::BUFFER || header.host != host {
            continue;
        }
        if header.blocks.saturating_mul(layout::BLOCK_BYTES as u64) > SEARCHED_BYTES_MAX {
            uses(&|_| true);
            continue;
        }
        // Of a file that ends early, what could be read counts.
        let _ = process.each(|item| match item {
            Item::Info { device, .. } => uses(&|problem| problem.device == device),
            Item::Name { name, .. } => uses(&|problem| {
                Path::new(OsStr::from_bytes(name)).starts_with(&problem.mount_point)
            }),
            Item::Event(_) => {}
        });
    }
    let used = problems.iter().zip(used).filter(|(_, used)| *used).map(|(problem, _)| problem);
    used.map(|Problem { mount_point, what, .. }| {
        format!("what the buffer at {} did {what}", mount_point.display())
    })
    .collect()
}

impl Mounted {
    /// Lets it keep its events. With `by` no answer is waited for longer.
    fn begin(place: MountRef, by: Option<Instant>) -> anyhow::Result<Mounted> {
        let mut control = match by {
            Some(end) => Control::connect_store_by(&place.store_dir, end)?,
            None => Control::connect_store_until(&place.store_dir, Some(Instant::now()))?,
        };
        let page = control.activity(None, None)?;
        let mut sources = vec![Source::new(None, page.next_after)];
        for server in page.others {
            let page = control.activity(Some(server), None)?;
            sources.push(Source::new(Some(server), page.next_after));
        }
        // From here on nobody waits for it but the thread that watches.
        control.set_until(Some(Instant::now()));
        Ok(Mounted { place, control, sources })
    }

    /// Fetches all that is there; whether there was something.
    fn fetch(&mut self, shared: &Shared) -> Result<bool, String> {
        let (dir, run) = (shared.dir.as_path(), shared.run.as_str());
        let mut any = false;
        for source in &mut self.sources {
            loop {
                let page = self
                    .control
                    .activity(source.server, Some(source.after))
                    .map_err(|error| error.to_string())?;
                shared.heard(self.place.device, self.control.process_id());
                source.after = page.next_after;
                source.lost += page.lost;
                any |= !page.rows.is_empty();
                let more = page.more;
                source
                    .take(&page, &self.place, dir, run)
                    .map_err(|error| format!("write into {}: {error}", dir.display()))?;
                if !more {
                    break;
                }
            }
        }
        Ok(any)
    }
}

impl Source {
    fn new(server: Option<ServerId>, after: u64) -> Source {
        Source {
            server,
            after,
            out: Out::Nothing,
            ids: HashMap::new(),
            named: HashSet::default(),
            lost: 0,
        }
    }

    /// Makes the file, if no other rank on this node did.
    fn file(
        &self,
        page: &ActivityPage,
        place: &MountRef,
        dir: &Path,
        run: &str,
    ) -> std::io::Result<Out> {
        let host = rustix::system::uname().nodename().to_string_lossy().replace('/', "_");
        let server = self.server.map_or_else(|| "mount".to_string(), |server| server.to_string());
        let name = format!("buffer.{host}.{:x}.{server}.{run}.{}", place.device, layout::EXTENSION);
        let made = OpenOptions::new().write(true).create_new(true).open(dir.join(name));
        let file = match made {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                return Ok(Out::Elsewhere);
            }
            made => made?,
        };
        let point = place.mount_point.display();
        let exe = match self.server {
            None => point.to_string(),
            Some(server) => format!("{point} at server {server}"),
        };
        let who = Who { host: page.host.clone(), pid: 0, rank: -1, ranks: -1, exe };
        let mut writer = Writer::new(&who, page.realtime_ns);
        writer.of_buffer(page.boottime_ns, page.realtime_ns);
        writer.name(POINT, 0, place.mount_point.as_os_str().as_bytes());
        Ok(Out::File(file, Box::new(writer)))
    }

    fn take(
        &mut self,
        page: &ActivityPage,
        place: &MountRef,
        dir: &Path,
        run: &str,
    ) -> std::io::Result<()> {
        if page.rows.is_empty() {
            return Ok(());
        }
        if matches!(self.out, Out::Nothing) {
            self.out = self.file(page, place, dir, run)?;
        }
        let Out::File(file, writer) = &mut self.out else { return Ok(()) };
        let names: HashMap<u64, &[u8]> =
            page.names.iter().map(|(ino, path)| (*ino, path.as_bytes())).collect();
        for row in &page.rows {
            let next = POINT + 1 + self.ids.len() as u32;
            let ids = &mut self.ids;
            let id = match ids.get(&row.1) {
                Some(id) => *id,
                None if ids.len() < NAMES_MAX => {
                    ids.insert(row.1, next);
                    writer.regular(next, place.device, row.1);
                    next
                }
                None => POINT,
            };
            if id != POINT && !self.named.contains(&row.1) {
                // A file of which the path is not known yet may be named by a later answer; a reader takes the last.
                let path = names.get(&row.1).map(|path| path.strip_prefix(b"/").unwrap_or(path));
                if let Some(path) = path {
                    self.named.insert(row.1);
                    writer.name(id, POINT, path);
                } else if id == next {
                    writer.name(id, POINT, format!("(inode {})", row.1).as_bytes());
                }
            }
            if let Some(op) = Op::from_number(row.0) {
                let offset = if row.3 == 0 { NO_OFFSET } else { row.2 };
                writer.call(op, id, offset, row.3, row.4, row.5, row.6);
            }
        }
        writer.lose(std::mem::take(&mut self.lost));
        writer.flush_to(file)
    }
}
