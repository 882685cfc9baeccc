//! The buffers' own events beside a trace: while the command runs, `forebay trace` asks each mounted buffer of the caller's
//! what it does with files, and writes that into files of the trace, on the clock of the calls.
//!
//! Invariants: nothing here delays the command by more than [`BEGIN_MAX`] or fails it: a mount that does not answer so soon is
//! asked again beside the command. Of a buffer that the command used and that cannot be asked, the
//! end tells; see [`of_used`]. Memory is that of an
//! answer and of the names of files. A buffer is watched by one `forebay trace` of a run and node ([`Source::file`]).
//! Caller: `trace`.

use foldhash::{HashMap, HashMapExt, HashSet};
use forebay_client::{Control, MountRef, mounts};
use forebay_proto::ServerId;
use forebay_proto::activity::ActivityPage;
use forebay_proto::control::ControlError;
use forebay_trace_format::layout::{self, NO_OFFSET};
use forebay_trace_format::{Item, Op, Process, Who, Writer};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Pause between two questions while there is something to hear, and while there is not.
const PAUSE: Duration = Duration::from_millis(20);
const QUIET: Duration = Duration::from_millis(200);
/// How often it is looked for new mounts.
const LOOK: Duration = Duration::from_secs(1);
/// Longest wait for the answers of all mounts before the command is started.
const BEGIN_MAX: Duration = Duration::from_millis(500);
/// Most mounts that are watched, and names of files of each that are written.
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
    mounts: Vec<Mounted>,
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

/// The thread.
pub struct Watch {
    end: Sender<()>,
    thread: JoinHandle<Vec<Problem>>,
}

impl Buffers {
    /// Finds the mounts that are there, and lets them keep their events from now on.
    pub fn find(dir: &Path, run: String) -> Buffers {
        let mut buffers = Buffers {
            dir: dir.to_path_buf(),
            run,
            mounts: Vec::new(),
            looked_at: HashSet::default(),
            problems: Vec::new(),
        };
        buffers.look(Some(Instant::now() + BEGIN_MAX));
        buffers
    }

    /// New mounts. What does not answer by `end` is left for another look.
    fn look(&mut self, end: Option<Instant>) {
        let uid = rustix::process::geteuid().as_raw();
        let mut new = mounts().unwrap_or_default();
        new.retain(|place| uid == 0 || place.owner_uid == Some(uid));
        new.retain(|place| !self.looked_at.contains(&place.device));
        // Each has its share of the time that the others left.
        let mut left = new.len() as u32;
        for place in new {
            if self.mounts.len() == MOUNTS_MAX {
                return;
            }
            if self.looked_at.contains(&place.device) {
                continue;
            }
            let (device, mount_point) = (place.device, place.mount_point.clone());
            let now = Instant::now();
            let by = end.map(|end| now + end.saturating_duration_since(now) / left.max(1));
            left = left.saturating_sub(1);
            match Mounted::begin(place, by) {
                Ok(mounted) => self.mounts.push(mounted),
                Err(error) if by.is_some() && is_late(&error) => continue,
                Err(error) => {
                    let what = format!("is not recorded: {error}");
                    self.problems.push(Problem { device, mount_point, what });
                }
            }
            self.looked_at.insert(device);
        }
    }

    /// Writes on from here in a thread. The command must have been started: this process has one thread until then.
    pub fn watch(self) -> Option<Watch> {
        let (end, ended) = channel();
        let name = std::thread::Builder::new().name("buffers".into());
        // Without a thread there are no events, and the trace is there.
        let thread = name.spawn(move || self.go_on(&ended)).ok()?;
        Some(Watch { end, thread })
    }

    fn go_on(mut self, ended: &Receiver<()>) -> Vec<Problem> {
        // At once: some may have been left.
        self.look(None);
        let mut looked = Instant::now();
        loop {
            let more = self.fetch();
            let pause = if more { PAUSE } else { QUIET };
            match ended.recv_timeout(pause) {
                Err(RecvTimeoutError::Timeout) => {}
                _ => break,
            }
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                self.look(None);
            }
        }
        // What happened since the last look, of a mount that came in between too.
        self.look(None);
        self.fetch();
        self.problems
    }

    /// Fetches all that is there; whether there was something.
    fn fetch(&mut self) -> bool {
        let mut any = false;
        let (dir, run) = (&self.dir, &self.run);
        let problems = &mut self.problems;
        self.mounts.retain_mut(|mounted| match mounted.fetch(dir, run) {
            Ok(more) => {
                any |= more;
                true
            }
            Err(why) => {
                let MountRef { device, mount_point, .. } = &mounted.place;
                // An unmount is no fault.
                if mount_point.exists() && is_mounted(&mounted.place) {
                    let what = format!("is recorded in part: {why}");
                    let (device, mount_point) = (*device, mount_point.clone());
                    problems.push(Problem { device, mount_point, what });
                }
                false
            }
        });
        any
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
    /// The command has ended: fetches the rest. What went wrong.
    pub fn end(self) -> Vec<Problem> {
        // If the thread is gone it has said why.
        let _ = self.end.send(());
        self.thread.join().unwrap_or_default()
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

    fn fetch(&mut self, dir: &Path, run: &str) -> Result<bool, String> {
        let mut any = false;
        for source in &mut self.sources {
            loop {
                let page = self
                    .control
                    .activity(source.server, Some(source.after))
                    .map_err(|error| error.to_string())?;
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
