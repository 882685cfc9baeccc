//! What a mount stands on: a buffer of its own, served in this process, or a buffer that
//! `forebay serve` serves.

use super::MountPlan;
use super::asked::{
    GREET_WAIT, are_stopped, ask, away_part, buffer_name, connect_at, no_answer, there,
};
use super::server_wait::{self, Greeted};
use super::silent::{self, LOOK_GRACE, LastSeen, Look, Seen, ToldByOther};
use super::waiting::{self, Reasons};
use crate::state_dir::{self, MountRecord, StateDir};
use forebay_activity::Activity;
use forebay_cache::CacheOptions;
use forebay_client::Ledger;
use forebay_client::remote::{Failover, RemoteFs, SERVER_PATIENCE, Target};
use forebay_mover::Stuck;
use forebay_net::ServerAddress;
use forebay_net::node::host_name;
use forebay_proto::api::CreateArgs;
use forebay_proto::api::ops::*;
use forebay_proto::cache::CacheStatus;
use forebay_proto::control::{ControlError, PathBytes, PlanStatus, StoreKind};
use forebay_proto::net::ledger::{BufferName, LedgerReply, LedgerRequest, ServedBuffer};
use forebay_proto::net::servers::ShardPlace;
use forebay_proto::size::files_text;
use forebay_proto::{Caller, Errno};
use forebay_server::{Server, ServerOptions};
use forebay_store::flash::{Store, StoreOptions};
use parking_lot::Mutex;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// How long the end of a mount waits for a drain that may hang in a call on the PFS.
const DRAIN_WAIT: Duration = Duration::from_secs(3);

/// How long an end by force waits for servers to hear of it.
const FORCE_CLOSE_WAIT: Duration = Duration::from_millis(700);

/// How long the state of a buffer is waited for by a mount that is asked for it, and by one that begins. Who asks for this or what
/// follows waits for longer ([`silent::asker_waits`]).
pub const STATE_WAIT: Duration = Duration::from_millis(1500);
pub const FIRST_STATE_WAIT: Duration = Duration::from_secs(10);
/// How long what all servers of a buffer count is waited for: they wait for each other for 3 s, and then tell of a part.
pub const FIGURES_WAIT: Duration = Duration::from_millis(5_500);
/// How long the state of plans is waited for: servers wait for each other for 6 s.
pub const PLANS_WAIT: Duration = Duration::from_secs(7);
/// How long a server on this node that is stopped is given to go on, before who asks it is told.
const STOPPED_WAIT: Duration = Duration::from_secs(3);
/// Pause between two looks at it.
const STOPPED_LOOK: Duration = Duration::from_millis(200);
/// Most questions for it that may wait for silent servers at once.
const STATE_QUESTIONS_MAX: usize = 4;

/// What is asked for.
#[derive(Debug, Clone)]
pub enum BackingPlan {
    /// The store to find or create.
    Own(StoreOptions),
    /// The same, for a cache.
    Cache(StoreOptions, CacheOptions),
    /// The buffer to mount.
    Served(Target),
}

/// Where the mount's socket and log are.
pub enum Place {
    /// The store.
    Own(Store, Option<CacheOptions>),
    /// A directory of the mount's own.
    Served(StateDir, Target),
}

impl Place {
    /// Finds it, or makes it.
    pub fn prepare(plan: &MountPlan) -> Result<Place, ControlError> {
        match &plan.backing {
            BackingPlan::Own(options) => {
                Store::find_or_create(options).map(|store| Place::Own(store, None))
            }
            BackingPlan::Cache(options, cache) => {
                Store::find_or_create(options).map(|store| Place::Own(store, Some(cache.clone())))
            }
            BackingPlan::Served(target) => {
                let record = MountRecord {
                    mount_point: state_dir::bytes_of(&plan.mount_point),
                    buffer: target.buffer.clone(),
                    server: target.address.to_string(),
                };
                let shared = plan.options.allow_other;
                let dir = StateDir::make(&record, &plan.mount_point, shared)?;
                Ok(Place::Served(dir, target.clone()))
            }
        }
    }

    pub fn dir(&self) -> &Path {
        match self {
            Place::Own(store, _) => store.dir(),
            Place::Served(dir, _) => dir.path(),
        }
    }

    pub fn default_log(&self) -> PathBuf {
        match self {
            Place::Own(store, _) => store.log_path(),
            Place::Served(dir, _) => dir.log_path(),
        }
    }

    /// It could not be mounted: what this command made and nobody has used goes with it.
    pub fn clear(self) -> Result<(), ControlError> {
        match self {
            Place::Own(store, _) if store.created() => store.destroy(),
            Place::Own(store, _) => store.release(),
            Place::Served(dir, _) => dir.remove(),
        }
    }

    /// Starts what serves the file system.
    pub fn open(&self) -> Result<Backing, ControlError> {
        match self {
            Place::Own(store, cache) => {
                for notice in store.notices() {
                    tracing::warn!("{notice}");
                }
                let server = Server::open(
                    store.clone(),
                    ServerOptions { cache: cache.clone(), ..ServerOptions::default() },
                )?;
                Ok(Backing::Own { server, store: store.clone() })
            }
            Place::Served(dir, target) => {
                let patience = target.patience;
                let (fs, target) = attach(target)?;
                let (fs, target, others) = settle(fs, target)?;
                let balanced = fs.attached().is_balanced().then(|| {
                    let mut all = vec![target.clone()];
                    all.extend(others.iter().cloned());
                    Failover::new(Arc::clone(&fs), 0, all, patience)
                });
                let dir = dir.clone();
                Ok(Backing::Served(Box::new(Served {
                    fs,
                    balanced,
                    dir,
                    target,
                    others,
                    told_capacity_bytes: AtomicU64::new(0),
                    state_questions: Arc::default(),
                    told_by_other: Arc::default(),
                    last_seen: Arc::default(),
                    reasons: Reasons::default(),
                })))
            }
        }
    }
}

/// Attaches to the server that was named, or, where that one has no part of the buffer, to one
/// that has: any server of the pool may be named.
fn attach(target: &Target) -> Result<(Arc<RemoteFs>, Target), ControlError> {
    let mut failed = match attach_patiently(target) {
        Ok(fs) => return Ok((fs, target.clone())),
        Err(error) if error.errno == Some(libc::EREMOTE) => error,
        Err(error) => return Err(error),
    };
    for there in places(target)?.into_iter().flatten() {
        match RemoteFs::attach(there.clone()) {
            Ok(fs) => return Ok((fs, there)),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Attaches to a server; one that takes connections and says nothing is asked again, as long as the mount is patient.
fn attach_patiently(target: &Target) -> Result<Arc<RemoteFs>, ControlError> {
    let begun = Instant::now();
    loop {
        let error = match RemoteFs::attach(target.clone()) {
            Err(error) if error.errno == Some(libc::ETIMEDOUT) => error,
            ended => return ended,
        };
        if begun.elapsed() >= target.patience {
            return Err(server_wait::given_up(&target.address, error));
        }
        // A machine that is not there is told at once.
        if server_wait::greet(&target.address, &target.credential) == Greeted::Nobody {
            return Err(error);
        }
    }
}

/// The buffer's servers, each with the ways to reach it.
fn places(target: &Target) -> Result<Vec<Vec<Target>>, ControlError> {
    let name = buffer_name(target)?;
    let mut ledger = Ledger::connect(&target.address, &target.credential)?;
    let LedgerReply::Places(places) = ledger.ask(&LedgerRequest::Places { name })? else {
        return Err(ControlError::new("find the buffer's servers", None, "a strange answer"));
    };
    let targets = |place: &ShardPlace| {
        place.addresses.iter().filter_map(|address| there(target, address)).collect()
    };
    Ok(places.iter().filter(|place| !place.lost).map(targets).collect())
}

/// Of a cache that each node uses by one server: the one on this node, else one by the node's name, so
/// that nodes are spread. One that was named is kept if it is here, or to be used by that address
/// only. With the ways to the others, in the order in which they are tried.
fn settle(
    fs: Arc<RemoteFs>,
    target: Target,
) -> Result<(Arc<RemoteFs>, Target, Vec<Target>), ControlError> {
    if !fs.attached().is_whole_on_each_server() {
        return Ok((fs, target, Vec::new()));
    }
    // The first of them is shown to who cannot go on.
    let patience = target.patience.min(SERVER_PATIENCE);
    let mut servers = places(&target)?;
    let count = servers.len();
    servers.rotate_left(share_of(&host_name(), count).min(count));
    let mut others: Vec<Target> = servers.iter().flatten().cloned().collect();
    others.iter_mut().for_each(|other| other.patience = patience);
    if fs.is_near() || target.by_given_address {
        return Ok(again(fs, target, others, patience));
    }
    let here = |other: &&Target| match &other.address {
        ServerAddress::Unix(path) => path.exists(),
        ServerAddress::Tcp { .. } => false,
    };
    let near = others.iter().find(here).cloned();
    for chosen in near.into_iter().chain(others.first().cloned()) {
        match RemoteFs::attach(chosen.clone()) {
            Ok(found) => {
                fs.close();
                return Ok(again(found, chosen, others, patience));
            }
            Err(error) => tracing::debug!(server = %chosen.address, %error, "not used"),
        }
    }
    Ok(again(fs, target, others, patience))
}

/// The server that is used, and the others without it.
fn again(
    fs: Arc<RemoteFs>,
    target: Target,
    mut others: Vec<Target>,
    patience: Duration,
) -> (Arc<RemoteFs>, Target, Vec<Target>) {
    others.retain(|other| other.address != target.address);
    if fs.attached().is_balanced() {
        // A server that does not answer is left for another one, not waited for.
        let short = Target { patience, ..target.clone() };
        if let Ok(other) = RemoteFs::attach(short.clone()) {
            fs.close();
            return (other, short, others);
        }
    }
    (fs, target, others)
}

/// Which of `count` is for a name: the same always, spread over names.
fn share_of(name: &str, count: usize) -> usize {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    (hasher.finish() % count.max(1) as u64) as usize
}

/// Asks on a thread of its own. Nothing is told if there can be none.
fn asked_beside(
    question: impl FnOnce() -> Result<LedgerReply, ControlError> + Send + 'static,
) -> mpsc::Receiver<Result<LedgerReply, ControlError>> {
    let (tell, told) = mpsc::channel();
    let ask = move || {
        // Whoever asked may have gone.
        let _gone = tell.send(question());
    };
    if let Err(error) = std::thread::Builder::new().name("question".into()).spawn(ask) {
        tracing::debug!(%error, "the servers are not asked");
    }
    told
}

/// A question for the buffer's state, as long as it lives.
struct UnderWay(Arc<AtomicUsize>);

impl UnderWay {
    /// `None` if too many are under way.
    fn begin(questions: &Arc<AtomicUsize>) -> Option<UnderWay> {
        let under_way = UnderWay(Arc::clone(questions));
        (questions.fetch_add(1, Ordering::Relaxed) < STATE_QUESTIONS_MAX).then_some(under_way)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A mounted served buffer.
pub struct Served {
    pub fs: Arc<RemoteFs>,
    /// Each server has a copy: what the kernel sees, by `fs` as long as that answers.
    pub balanced: Option<Arc<Failover>>,
    pub dir: StateDir,
    pub target: Target,
    /// Other servers that may be asked.
    pub others: Vec<Target>,
    /// Capacity of the whole buffer when its servers last told it; 0 = not yet.
    told_capacity_bytes: AtomicU64,
    /// Questions for the buffer's state that are under way.
    state_questions: Arc<AtomicUsize>,
    told_by_other: Arc<Mutex<ToldByOther>>,
    last_seen: Arc<LastSeen>,
    /// Why servers are silent that programs wait for while the mount ends.
    reasons: Reasons,
}

impl Served {
    /// Asks the server's ledger. One on this node that stays stopped is not waited for, where no other one may be asked.
    pub fn ask(&self, request: &LedgerRequest) -> Result<LedgerReply, ControlError> {
        if self.others.is_empty() {
            self.asked_must_run()?;
        }
        ask(&self.target, &self.others, request)
    }

    /// An error if the server that is asked is stopped, and stays so for [`STOPPED_WAIT`].
    fn asked_must_run(&self) -> Result<(), ControlError> {
        let until = Instant::now() + STOPPED_WAIT;
        loop {
            match self.remote().server_stopped_at(&self.target.address) {
                None => return Ok(()),
                Some(stopped) if Instant::now() >= until => {
                    return Err(are_stopped(&[stopped]));
                }
                Some(_) => std::thread::sleep(STOPPED_LOOK),
            }
        }
    }

    /// Asks the server's ledger about plans: who asks is told soon if there is no answer.
    pub fn ask_of_plans(&self, request: LedgerRequest) -> Result<LedgerReply, ControlError> {
        if self.others.is_empty() {
            self.asked_must_run()?;
        }
        let (target, others) = (self.target.clone(), self.others.clone());
        self.question_within(PLANS_WAIT, move || ask(&target, &others, &request))
    }

    /// Asks the server's ledger for what all servers of the buffer tell, for so long, or until one of them is seen stopped (`ends`:
    /// which): its thread may wait for longer, and no more than some do at once.
    fn ask_within(
        &self,
        request: LedgerRequest,
        (limit, ends): (Duration, Seen),
    ) -> Result<LedgerReply, ControlError> {
        let Some(under_way) = UnderWay::begin(&self.state_questions) else {
            let found = self.look().begin().recv_timeout(GREET_WAIT + LOOK_GRACE);
            return Err(found.map_or_else(|_| self.no_answer(), |found| found.error));
        };
        let (target, others) = (self.target.clone(), self.others.clone());
        let told = asked_beside(move || {
            let _under_way = under_way;
            ask(&target, &others, &request)
        });
        // It asks all servers of the buffer.
        let answer = silent::answer_unless_stopped(&told, (limit, ends), || self.look().begin());
        answer.unwrap_or_else(|found| Err(found.unwrap_or_else(|| self.no_answer())))
    }

    /// The same beside questions for the state that wait for silent servers: for what servers answer from memory.
    pub(super) fn ask_beside(
        &self,
        request: LedgerRequest,
        limit: Duration,
    ) -> Result<LedgerReply, ControlError> {
        let (target, others) = (self.target.clone(), self.others.clone());
        self.question_within(limit, move || ask(&target, &others, &request))
    }

    /// The answer to a question that is asked on a thread of its own, within `limit`; without one which servers are silent, soon
    /// after that at the latest.
    fn question_within(
        &self,
        limit: Duration,
        question: impl FnOnce() -> Result<LedgerReply, ControlError> + Send + 'static,
    ) -> Result<LedgerReply, ControlError> {
        let told = asked_beside(question);
        let answer = silent::answer_within(&told, limit, || self.look().begin());
        answer.unwrap_or_else(|found| Err(found.unwrap_or_else(|| self.no_answer())))
    }

    /// Which servers are silent is looked for by it.
    fn look(&self) -> Look {
        Look {
            remote: self.remote(),
            target: self.target.clone(),
            told_by_other: Arc::clone(&self.told_by_other),
            last_seen: Arc::clone(&self.last_seen),
        }
    }

    /// The look of a question was late: what another one saw, if that is so still; else nothing is known of who is silent.
    fn no_answer(&self) -> ControlError {
        let unknown = || no_answer(&self.target.address.to_string(), Some(&self.target.address));
        self.last_seen.told_late().unwrap_or_else(unknown)
    }

    /// What the servers count, told by one of them that is not stopped.
    pub fn figures(&self, request: LedgerRequest) -> Result<LedgerReply, ControlError> {
        let begun = Instant::now();
        let stopped = match self.stopped() {
            Some(stopped) => stopped,
            // Of another one that is stopped the one that is asked tells without it: "at least".
            None => match self.ask_within(request.clone(), (FIGURES_WAIT, Seen::Asked)) {
                // One that is spoken with by TCP is seen only while it is waited for.
                Err(error) if self.is_seen_stopped(&error) => error,
                answer => return answer,
            },
        };
        let left = FIGURES_WAIT.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Err(stopped);
        }
        let (target, running) = (self.target.clone(), self.remote().servers_running());
        self.question_within(left, move || {
            for address in running {
                match connect_at(&target, &address) {
                    Ok(mut ledger) => return ledger.ask(&request),
                    Err(error) => tracing::debug!(%error, "not asked"),
                }
            }
            Err(stopped)
        })
    }

    /// Whether a question had no answer while servers of the buffer are stopped.
    fn is_seen_stopped(&self, error: &ControlError) -> bool {
        error.errno == Some(libc::ETIMEDOUT) && self.look().found_stopped().is_some()
    }

    /// What is used now.
    fn remote(&self) -> Arc<RemoteFs> {
        self.balanced.as_ref().map_or_else(|| Arc::clone(&self.fs), |balanced| balanced.remote())
    }

    /// What programs, or the end of the mount, wait for, in words; `None` if for nothing.
    fn waits_for(&self) -> Option<String> {
        let remote = self.remote();
        let servers = remote.servers_while_waited_for();
        if !servers.iter().any(|server| server.is_waited_for) {
            return None;
        }
        let is_seen = servers.iter().any(|server| server.stopped.is_some());
        // Of one that is seen nobody else has to tell.
        let told = match (is_seen, self.name()) {
            (false, Ok(name)) => self.reasons.found(remote, &self.target, name),
            _ => None,
        };
        Some(waiting::describe(&servers, told.as_deref(), self.target.patience))
    }

    /// Which of its servers are known not to answer, in words.
    pub fn away(&self) -> Option<String> {
        let away = self.remote().servers_away();
        let list = away.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        (!away.is_empty()).then(|| format!("no answer from {list}"))
    }

    /// The buffer's name.
    pub fn name(&self) -> Result<BufferName, ControlError> {
        buffer_name(&self.target)
    }

    /// What the servers say of a cache.
    pub fn cache_status(&self, limit: Duration) -> Result<Box<CacheStatus>, ControlError> {
        let request = LedgerRequest::CacheStatus { name: self.name()? };
        match self.ask_within(request, (limit, Seen::Another))? {
            LedgerReply::CacheStatus(cache) => Ok(cache),
            _ => Err(ControlError::new("ask the server", None, "a strange answer")),
        }
    }

    /// What the servers say of the buffer within `limit`; an error if one of them does not tell of its part. One on this node
    /// that is stopped is not waited for.
    pub fn status(&self, limit: Duration) -> Result<ServedBuffer, ControlError> {
        if let Some(error) = self.stopped() {
            return Err(error);
        }
        let request = LedgerRequest::Status { name: self.name()? };
        let buffer = match self.ask_within(request, (limit, Seen::Another))? {
            LedgerReply::Buffer(buffer) => *buffer,
            _ => return Err(ControlError::new("ask the server", None, "a strange answer")),
        };
        self.told_capacity_bytes.store(buffer.capacity_bytes, Ordering::Relaxed);
        match away_part(&buffer, &self.target.address) {
            // Who asks it may have waited long enough for it to be stopped meanwhile.
            Some(error) => Err(self.stopped().unwrap_or(error)),
            None => Ok(buffer),
        }
    }

    /// Says which of its servers on this node are stopped.
    pub fn stopped(&self) -> Option<ControlError> {
        let stopped = self.remote().servers_stopped();
        (!stopped.is_empty()).then(|| are_stopped(&stopped))
    }

    /// Capacity of the whole buffer in bytes, as far as it is known without asking: all parts are of one size.
    pub fn known_capacity_bytes(&self) -> u64 {
        match self.told_capacity_bytes.load(Ordering::Relaxed) {
            0 => {
                let attached = self.fs.attached();
                attached.capacity_bytes * attached.shards.len().max(1) as u64
            }
            told => told,
        }
    }
}

/// What a mount stands on.
pub enum Backing {
    /// A server in this process.
    Own { server: Arc<Server>, store: Store },
    /// Servers elsewhere.
    Served(Box<Served>),
}

impl Backing {
    pub fn file_system(&self) -> Result<Arc<dyn FileSystem>, ControlError> {
        match self {
            Backing::Own { server, .. } => Ok(server.file_system()),
            Backing::Served(served) => match &served.balanced {
                Some(balanced) => Ok(Arc::clone(balanced) as Arc<dyn FileSystem>),
                None => served.fs.file_system(),
            },
        }
    }

    pub fn dir(&self) -> &Path {
        match self {
            Backing::Own { store, .. } => store.dir(),
            Backing::Served(served) => served.dir.path(),
        }
    }

    /// What is done with files, for who watches.
    pub fn activity(&self) -> Arc<Activity> {
        match self {
            Backing::Own { server, .. } => Arc::clone(server.activity()),
            Backing::Served(served) => Arc::clone(&served.target.activity),
        }
    }

    /// True if not all that is served is on flash: a cache knows by itself what was a hit.
    pub fn may_miss(&self) -> bool {
        match self {
            Backing::Own { server, .. } => server.buffer().needs_pfs(),
            Backing::Served(served) => served.fs.attached().needs_pfs(),
        }
    }

    /// True if what is written is lost with the node's memory, so that nothing is ever on flash.
    pub fn is_in_memory(&self) -> bool {
        match self {
            Backing::Own { store, .. } => store.volatile(),
            Backing::Served(served) => served.fs.attached().volatile,
        }
    }

    /// A file like the objects, to try passthrough with; `None` where there is no hope.
    pub fn probe(&self) -> Result<Option<File>, ControlError> {
        match self {
            Backing::Own { store, .. } if store.kind() == StoreKind::Directory => Ok(None),
            Backing::Own { server, store } => server.probe_object().map(Some).map_err(|errno| {
                let error = std::io::Error::from_raw_os_error(errno.0);
                ControlError::io("make a file in", Some(&store.data_dir()), &error)
            }),
            Backing::Served(served) => Ok(probe_of(&served.fs)),
        }
    }

    /// Why files are not read and written by the kernel itself, if the reason is the backing's.
    pub fn served_reason(&self) -> Option<String> {
        match self {
            Backing::Own { store, .. } => store.served_reason(),
            Backing::Served(served) if !served.fs.attached().gives_objects => {
                Some("the server's store is a plain directory".into())
            }
            Backing::Served(served) => Some(served.fs.why_far().into()),
        }
    }

    /// True if this process made the buffer.
    pub fn created(&self) -> bool {
        matches!(self, Backing::Own { store, .. } if store.created())
    }

    /// The buffer is to be destroyed although plans have not ended: commits are undone first.
    pub fn give_up_commits(&self) {
        if let Backing::Own { server, .. } = self {
            server.mover().give_up_commits();
        }
    }

    /// All plans of a buffer that goes with its mount.
    pub fn plans(&self) -> Vec<PlanStatus> {
        match self {
            Backing::Own { server, .. } => server.mover().list(&Caller::root()),
            Backing::Served(_) => Vec::new(),
        }
    }

    /// False if there is certainly nothing of this path in the buffer.
    pub fn has(&self, path: &PathBytes) -> bool {
        match self {
            Backing::Own { server, .. } => {
                let found = server.file_status(&Caller::root(), path.as_bytes());
                found.err() != Some(Errno::ENOENT)
            }
            Backing::Served(_) => true,
        }
    }

    /// Stops staging that this process does, for a while; which plans did not stop in time.
    pub fn hold_staging(&self, wait: Duration) -> Vec<Stuck> {
        match self {
            Backing::Own { server, .. } => server.mover().hold(wait),
            Backing::Served(_) => Vec::new(),
        }
    }

    /// Lets it go on.
    pub fn go_on_staging(&self) {
        if let Backing::Own { server, .. } = self {
            server.mover().go_on();
        }
    }

    /// Stops it for good; which plans did not stop in time.
    pub fn stop_staging(&self, wait: Duration) -> Vec<Stuck> {
        match self {
            Backing::Own { server, .. } => server.mover().shutdown(wait),
            Backing::Served(_) => Vec::new(),
        }
    }

    /// True if it is a cache of this process, whose requests may wait for the PFS or hang in a call on it.
    pub fn is_cache(&self) -> bool {
        matches!(self, Backing::Own { server, .. } if server.buffer().needs_pfs())
    }

    /// True if a thread was left behind that hangs in a call on the PFS.
    pub fn hangs(&self) -> bool {
        matches!(self, Backing::Own { server, .. } if server.buffer().hangs())
    }

    /// What an unmount waits for, in words; `None` if for nothing that takes long.
    pub fn waits_for(&self) -> Option<String> {
        match self {
            Backing::Own { .. } => None,
            Backing::Served(served) => served.waits_for(),
        }
    }

    /// Which servers of the buffer are known not to answer, and what to do, in words. None is asked.
    pub fn silent_servers(&self) -> Option<String> {
        let Backing::Served(served) = self else { return None };
        // Those that are spoken with by TCP, too: who asks for this has waited for them.
        let stopped = served.look().found_stopped().map(|found| found.error.to_string());
        // Who it is about is told, not that it was asked.
        let stopped = stopped.map(|text| text.strip_prefix("ask ").unwrap_or(&text).to_string());
        stopped.or_else(|| served.away())
    }

    /// The mount is over and its session has ended (or `session_over` is false). With `force` servers
    /// that do not answer are not waited for.
    pub fn finish(&self, keep: bool, session_over: bool, force: bool) -> Result<(), ControlError> {
        match self {
            Backing::Own { server, store } => {
                // By force files may stay open that programs have beside the kernel.
                finish_own(server, store, keep, (session_over, !force))
            }
            Backing::Served(served) => {
                match force {
                    true => served.remote().close_within(FORCE_CLOSE_WAIT),
                    false => served.remote().close(),
                }
                tracing::info!("unmounted");
                served.dir.remove()
            }
        }
    }
}

/// A file without a name on the server, if it is on this node and hands its objects over.
fn probe_of(fs: &RemoteFs) -> Option<File> {
    if fs.attached().needs_pfs() {
        // Its files have names on the PFS, always.
        return fs.probe().ok();
    }
    let args = CreateArgs { mode: 0o600, umask: 0 };
    let (entry, opened) = fs.tmpfile(&Caller::root(), fs.root(), args, true).ok()?;
    let ino = entry.attr.ino;
    let file = opened.local.as_deref().and_then(|file| file.try_clone().ok());
    fs.release(ino, opened.local.is_some());
    fs.forget(ino, 1);
    // New files in the root may have several objects; others of the buffer may be whole.
    file.or_else(|| fs.probe().ok())
}

/// Closes the server and keeps or destroys the store. A session that is not over may still
/// change the buffer: it is then not closed but left as after a crash, to be recovered. `may_forget`: no program has a file of it open
/// when the session is over.
fn finish_own(
    server: &Server,
    store: &Store,
    keep: bool,
    (session_over, may_forget): (bool, bool),
) -> Result<(), ControlError> {
    server.buffer().close(DRAIN_WAIT);
    let dirty = server.cache().filter(|cache| !keep && !cache.may_be_destroyed());
    if let Some(cache) = dirty {
        let files = cache.dirty_files();
        let pfs = cache.pfs_path().to_path_buf();
        finish_own(server, store, true, (session_over, may_forget))?;
        let have = if files == 1 { "has" } else { "have" };
        let why = format!("{} {have} data that the PFS does not have", files_text(files));
        return Err(ControlError::new("destroy the cache of", Some(&pfs), &why)
            .errno(libc::EBUSY)
            .hint("it is kept on flash: the same mount command finds it and drains it"));
    }
    if !keep {
        tracing::info!("unmounted; the buffer is destroyed");
        let store = server.abandon();
        // A drain that hangs reads what it drains when its PFS answers.
        let hangs = server.buffer().hangs();
        return match may_forget && session_over && !hangs {
            true => store.destroy_unwritten(),
            false => store.destroy(),
        };
    }
    if server.buffer().hangs() {
        // Left as after a crash: the next mount goes on.
        tracing::warn!("a drain hangs in a call on the PFS and is left behind; the buffer is kept");
        return Ok(());
    }
    if !session_over {
        tracing::warn!("ended with files open; the buffer is kept and recovered at the next mount");
        return Ok(());
    }
    let result = server.close().and_then(|store| store.release());
    match &result {
        Ok(()) => tracing::info!(
            store = %store.dir().display(),
            "unmounted; the buffer is kept, the same mount command finds it"
        ),
        Err(error) => tracing::error!("unmounted, but closing failed: {error}"),
    }
    result
}
