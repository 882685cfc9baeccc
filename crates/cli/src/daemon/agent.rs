//! The process of `forebay agent`: mounts the buffers of jobs on its node, and unmounts them, as a scheduler's hooks
//! ask it to.
//!
//! Each job has a directory `MOUNT_ROOT/TOKEN`, which only root and the job's user may enter, with a mount point for
//! each buffer. The mounts are processes of their own (`forebay mount`): they outlive the agent, which has no state
//! but what the kernel's table of mounts says, the files of swap space ([`super::agent_swap`]), and a mark for each job
//! whose mounting or unmounting is under way; what a kill or failure leaves half done is ended by the agent's next start or sweep. Invariants: one question about a job at
//! a time; a job's directory is there as long as something else of it is; every command that is started has a time limit;
//! who asks has the servers' key, or is root on this node.

use super::agent_swap::{Swap, SwapPlace, own_directory};
use super::{Reporter, logging, signals};
use crate::failure::visible;
use forebay_client::mounts_at;
use forebay_jobs::run::signals::with_clear_mask;
use forebay_jobs::run::words::last_words;
use forebay_net::ServerAddress;
use forebay_net::handshake::{Gate, Greeted};
use forebay_net::node::host_name;
use forebay_proto::Caller;
use forebay_proto::control::{ControlError, PathBytes};
use forebay_proto::net::auth::{Key, Refusal, Secret};
use forebay_proto::net::ledger::{LedgerReply, LedgerRequest};
use forebay_proto::net::node::{NodeMount, NodeReply, NodeRequest, OWN_LINK, SessionName};
use forebay_server::net::{Backend, listen};
use forebay_server::session::Sessions;
use parking_lot::{Condvar, Mutex};
use serde::Serialize;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest that mounting one buffer may take, and unmounting it in order and by force.
const MOUNT_LIMIT: Duration = Duration::from_secs(60);
const UMOUNT_LIMIT: Duration = Duration::from_secs(10);
/// Longest wait for another question about the same job to end.
const TURN_LIMIT: Duration = Duration::from_secs(120);
/// Time between two looks for jobs of which something is left half done.
const SWEEP_INTERVAL: Duration = Duration::from_secs(30);
/// Time between two looks at a command.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// Longest message of a command that is passed on, in bytes from its end.
const MAX_MESSAGE_BYTES: usize = 2_048;
/// Directory of the mounts' logs, below the mount root: no name of a job begins with a dot.
const LOGS: &str = ".logs";

/// Directory of the marks of jobs whose mounting or unmounting is under way, beside it.
const UNFINISHED: &str = ".unfinished";

/// All that an agent needs.
pub struct AgentPlan {
    /// The servers' key.
    pub key: Secret,
    /// The file that holds it, shown by the mounts.
    pub key_file: PathBuf,
    /// Where it listens.
    pub addresses: Vec<ServerAddress>,
    /// Where the directories of jobs are.
    pub mount_root: PathBuf,
    /// Where swap space of jobs may lie.
    pub swap: Option<SwapPlace>,
    /// Log file given by the user.
    pub log_file: Option<PathBuf>,
    /// Least severe level logged.
    pub log_level: String,
}

/// What `--json` prints when it is up.
#[derive(Serialize)]
struct Up {
    pid: u32,
    addresses: Vec<String>,
    mount_root: PathBytes,
    log_file: Option<PathBytes>,
}

/// Answers until a signal ends it. Mounts stay.
pub fn serve(plan: AgentPlan, report: Reporter) -> Result<(), ControlError> {
    signals::block();
    super::settle_process()?;
    logging::start(plan.log_file.as_deref(), &plan.log_level)?;
    let agent = Arc::new(Agent::new(&plan)?);
    let listening = listen(agent.clone(), &plan.addresses)?;
    // Beside the work: the end of a mount whose process hangs takes a while.
    std::thread::spawn(move || {
        loop {
            agent.end_unfinished();
            std::thread::sleep(SWEEP_INTERVAL);
        }
    });
    let addresses: Vec<String> = listening.addresses().iter().map(ToString::to_string).collect();
    let bytes = |path: &Path| PathBytes::new(path.as_os_str().as_bytes());
    let root = plan.mount_root.display();
    let text = format!("agent on {}, mounts below {root}", addresses.join(", "));
    tracing::info!(?addresses, "agent");
    let up = Up {
        pid: std::process::id(),
        addresses,
        mount_root: bytes(&plan.mount_root),
        log_file: plan.log_file.as_deref().map(bytes),
    };
    let told = report.ready(&up, Some(&text), plan.log_file.as_deref());
    if told.is_ok() {
        let signal = signals::wait();
        tracing::info!(signal, "ending");
    }
    listening.stop();
    told
}

/// The agent.
struct Agent {
    key: Secret,
    key_file: PathBuf,
    root: PathBuf,
    program: PathBuf,
    swap: Swap,
    busy: Mutex<HashSet<SessionName>>,
    freed: Condvar,
}

/// A turn of a job; the next has it when this one goes.
struct Turn<'a> {
    agent: &'a Agent,
    session: SessionName,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.agent.busy.lock().remove(&self.session);
        self.agent.freed.notify_all();
    }
}

impl Agent {
    fn new(plan: &AgentPlan) -> Result<Agent, ControlError> {
        let program = std::env::current_exe()
            .map_err(|error| ControlError::io("find this executable", None, &error))?;
        let root = &plan.mount_root;
        for (dir, mode) in
            [(root.clone(), 0o755), (root.join(LOGS), 0o700), (root.join(UNFINISHED), 0o700)]
        {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(mode)
                .create(&dir)
                .and_then(|()| own_directory(&dir))
                .map_err(|error| ControlError::io("use the mount root", Some(&dir), &error))?;
        }
        Ok(Agent {
            key: plan.key.clone(),
            key_file: plan.key_file.clone(),
            root: plan.mount_root.clone(),
            program,
            swap: Swap::new(plan.swap.clone())?,
            busy: Mutex::default(),
            freed: Condvar::new(),
        })
    }

    fn turn(&self, session: &SessionName) -> Result<Turn<'_>, ControlError> {
        let until = Instant::now() + TURN_LIMIT;
        let mut busy = self.busy.lock();
        while !busy.insert(session.clone()) {
            if self.freed.wait_until(&mut busy, until).timed_out() {
                let why = "another question about the job does not end";
                let error = ControlError::new("mount for a job", Some(&self.dir(session)), why);
                return Err(error.errno(libc::EBUSY));
            }
        }
        Ok(Turn { agent: self, session: session.clone() })
    }

    fn dir(&self, session: &SessionName) -> PathBuf {
        self.root.join(session.as_str())
    }

    /// What is mounted for a job, the last first.
    fn mounted(&self, session: &SessionName) -> Result<Vec<PathBuf>, ControlError> {
        let dir = self.dir(session);
        let all = mounts_at(|point| point.starts_with(&dir))?;
        Ok(all.into_iter().rev().map(|mount| mount.mount_point).collect())
    }

    /// Jobs that something was begun for and not ended: an agent before this one was killed in it, or it failed. Swap
    /// space of a job that has no directory is left from before a restart of the node.
    fn unfinished(&self) -> Result<Vec<SessionName>, ControlError> {
        let mut left = names_in(&self.root.join(UNFINISHED))?;
        left.extend(self.swap.sessions()?);
        left.retain(|session| self.is_unfinished(session));
        left.sort();
        left.dedup();
        Ok(left)
    }

    fn is_unfinished(&self, session: &SessionName) -> bool {
        let marked = self.root.join(UNFINISHED).join(session.as_str()).exists();
        marked || self.swap.is_there(session) && !self.dir(session).exists()
    }

    fn end_unfinished(&self) {
        let left = self.unfinished().unwrap_or_else(|error| {
            tracing::error!("{error}");
            Vec::new()
        });
        for session in &left {
            let ended = self.turn(session).and_then(|_turn| match self.is_unfinished(session) {
                true => self.umount_all(session).map(|()| true),
                // Somebody asked about the job just now, and that is done.
                false => Ok(false),
            });
            match ended {
                Ok(true) => tracing::info!(%session, "removed what was left half done"),
                Ok(false) => {}
                // It is tried again, and by whoever asks for the end of the job.
                Err(error) => tracing::error!(%session, "{error}"),
            }
        }
    }

    /// Marks a job as one that something is under way for, until the mark is taken back.
    fn mark(&self, session: &SessionName) -> Result<(), ControlError> {
        let path = self.root.join(UNFINISHED).join(session.as_str());
        let made = fs::File::create(&path).map(drop);
        made.map_err(|error| ControlError::io("note what is under way", Some(&path), &error))
    }

    fn unmark(&self, session: &SessionName) -> Result<(), ControlError> {
        let path = self.root.join(UNFINISHED).join(session.as_str());
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(ControlError::io("note what is done", Some(&path), &error))
            }
            _ => Ok(()),
        }
    }

    fn mount(
        &self,
        session: &SessionName,
        (uid, gid): (u32, u32),
        wanted: &[NodeMount],
        swap_bytes: u64,
    ) -> Result<(), ControlError> {
        let _turn = self.turn(session)?;
        self.mark(session)?;
        let made = self.mount_all(session, (uid, gid), wanted).and_then(|()| match swap_bytes {
            0 => self.swap.remove(session),
            bytes => self.swap.make(session, bytes),
        });
        match made {
            Ok(()) => self.unmark(session),
            Err(error) => {
                tracing::warn!(%session, %error, "mounting failed");
                // The mark stays where that fails.
                if let Err(left) = self.umount_all(session) {
                    tracing::error!(%session, "{left}");
                }
                Err(error)
            }
        }
    }

    fn mount_all(
        &self,
        session: &SessionName,
        (uid, gid): (u32, u32),
        wanted: &[NodeMount],
    ) -> Result<(), ControlError> {
        let dir = self.dir(session);
        make_directory(&dir, 0o700)?;
        let_in(&dir, uid)
            .map_err(|error| ControlError::io("let the job's user into", Some(&dir), &error))?;
        for mount in wanted {
            let point = dir.join(mount.name.as_str());
            // What a question that was cut off has mounted is mounted anew: it may be another buffer's.
            if self.mounted(session)?.contains(&point) {
                self.umount_one(session, &point)?;
            }
            make_directory(&point, 0o755)?;
            self.mount_one(session, mount, &point)?;
            self.make_directories(mount, &dir, &point, (uid, gid))?;
        }
        Ok(())
    }

    fn mount_one(
        &self,
        session: &SessionName,
        mount: &NodeMount,
        point: &Path,
    ) -> Result<(), ControlError> {
        let address: ServerAddress = mount.server.parse().map_err(|error| {
            ControlError::new("mount", Some(point), &format!("{error}")).errno(libc::EINVAL)
        })?;
        let log = self.log(session, mount.name.as_str());
        let mut args: Vec<OsString> = vec!["mount".into(), "--buffer".into()];
        args.extend([mount.buffer.as_str().into(), "--server".into(), mount.server.clone().into()]);
        args.extend(mount.limits.iter().map(OsString::from));
        if matches!(address, ServerAddress::Tcp { .. }) {
            args.extend(["--secret-file".into(), self.key_file.clone().into()]);
        }
        args.extend(["--log-file".into(), log.into(), "-o".into(), "nosuid,nodev".into()]);
        args.extend(["--".into(), point.into()]);
        self.run(&args, None, MOUNT_LIMIT)
            .map_err(|why| ControlError::new("mount", Some(point), &why))
    }

    /// Directories of the access modes, made by the job's user: whatever names lie in the buffer, nothing is made that
    /// this user could not make.
    fn make_directories(
        &self,
        mount: &NodeMount,
        dir: &Path,
        point: &Path,
        user: (u32, u32),
    ) -> Result<(), ControlError> {
        let mut wanted: Vec<PathBuf> =
            mount.directories.iter().map(|name| point.join(name)).collect();
        if let Some(own_of) = &mount.own_of {
            let own = point.join(own_of).join(host_name());
            let link = dir.join(OWN_LINK);
            // There is one if an earlier question was cut off.
            let _ = fs::remove_file(&link);
            symlink(&own, &link)
                .map_err(|error| ControlError::io("make the link", Some(&link), &error))?;
            wanted.push(own);
        }
        if wanted.iter().any(|path| !path.starts_with(point)) {
            let why = "a directory outside of the buffer was asked for";
            return Err(ControlError::new("mount", Some(point), why).errno(libc::EINVAL));
        }
        for path in &wanted {
            let args = ["-p".into(), "--".into(), path.clone().into()];
            run_program(Path::new("mkdir"), &args, Some(user), UMOUNT_LIMIT)
                .map_err(|why| ControlError::new("make", Some(path), &why))?;
        }
        Ok(())
    }

    fn umount(&self, session: &SessionName) -> Result<(), ControlError> {
        let _turn = self.turn(session)?;
        self.mark(session)?;
        self.umount_all(session)
    }

    /// Ends all that a job has here: the mounts first, which hold the buffer.
    fn umount_all(&self, session: &SessionName) -> Result<(), ControlError> {
        let mounts = self.umount_mounts(session);
        self.swap.remove(session)?;
        mounts?;
        self.remove_directory(session)?;
        self.unmark(session)
    }

    fn umount_mounts(&self, session: &SessionName) -> Result<(), ControlError> {
        for point in self.mounted(session)? {
            self.umount_one(session, &point)?;
        }
        Ok(())
    }

    fn remove_directory(&self, session: &SessionName) -> Result<(), ControlError> {
        let dir = self.dir(session);
        if fs::symlink_metadata(&dir).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            return Ok(());
        }
        let failed = |error: io::Error| ControlError::io("remove the job's", Some(&dir), &error);
        for entry in fs::read_dir(&dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let path = entry.path();
            let removed = match entry.file_type().map_err(failed)?.is_symlink() {
                true => fs::remove_file(&path),
                // Something in it is not ours to remove, and says so.
                false => fs::remove_dir(&path),
            };
            removed.map_err(failed)?;
            if let Some(name) = path.file_name() {
                // There is one only of a mount.
                let _ = fs::remove_file(self.log(session, &name.to_string_lossy()));
            }
        }
        fs::remove_dir(&dir).map_err(failed)
    }

    /// In order; by force if somebody uses it; and if its process does not answer, the kernel lets go of it.
    fn umount_one(&self, session: &SessionName, point: &Path) -> Result<(), ControlError> {
        let words = |force: bool| {
            let mut args: Vec<OsString> = vec!["umount".into(), "--keep".into()];
            args.extend(force.then(|| "--force".into()));
            args.extend(["--".into(), point.into()]);
            args
        };
        let ended = self
            .run(&words(false), None, UMOUNT_LIMIT)
            .or_else(|_| self.run(&words(true), None, UMOUNT_LIMIT));
        let is_there = || -> Result<bool, ControlError> {
            Ok(self.mounted(session)?.iter().any(|mounted| mounted == point))
        };
        if let Err(why) = ended
            && is_there()?
        {
            tracing::warn!(point = %point.display(), why, "detached a mount that did not end");
            rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH)
                .map_err(|error| ControlError::io("unmount", Some(point), &error.into()))?;
        }
        Ok(())
    }

    fn sessions(&self) -> Result<Vec<SessionName>, ControlError> {
        let mut found = names_in(&self.root)?;
        found.extend(self.swap.sessions()?);
        found.sort();
        found.dedup();
        Ok(found)
    }

    fn log(&self, session: &SessionName, mount: &str) -> PathBuf {
        self.root.join(LOGS).join(format!("{session}.{mount}"))
    }

    fn run(
        &self,
        args: &[OsString],
        user: Option<(u32, u32)>,
        limit: Duration,
    ) -> Result<(), String> {
        run_program(&self.program, args, user, limit)
    }
}

/// The jobs that entries of a directory are called by.
fn names_in(dir: &Path) -> Result<Vec<SessionName>, ControlError> {
    let failed = |error: io::Error| ControlError::io("list", Some(dir), &error);
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        found.extend(name.to_str().and_then(|name| name.parse().ok()));
    }
    Ok(found)
}

/// Runs a command to its end; why it failed, in its own words.
fn run_program(
    program: &Path,
    args: &[OsString],
    user: Option<(u32, u32)>,
    limit: Duration,
) -> Result<(), String> {
    // A file, not a pipe: what the command leaves behind may keep it open.
    let said = memory_file()?;
    let stderr = said.try_clone().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).process_group(0);
    command.current_dir("/");
    if let Some((uid, gid)) = user {
        command.uid(uid).gid(gid);
    }
    // The signals that this process waits for are blocked in it.
    let mut child = with_clear_mask(&mut command)
        .spawn()
        .map_err(|error| format!("start {}: {error}", program.display()))?;
    let until = Instant::now() + limit;
    loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => {
                let text = reason(said);
                return Err(if text.is_empty() { format!("it ended: {status}") } else { text });
            }
            None if Instant::now() >= until => {
                // Both fail only if it has ended just now.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("it did not end within {} s", limit.as_secs()));
            }
            None => std::thread::sleep(LOOK_INTERVAL),
        }
    }
}

fn memory_file() -> Result<fs::File, String> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let made = rustix::fs::memfd_create("said", flags);
    made.map(fs::File::from).map_err(|error| format!("make a file in memory: {error}"))
}

fn reason(mut said: fs::File) -> String {
    use std::io::{Read, Seek};
    let mut text = Vec::new();
    if said.rewind().is_err() || said.read_to_end(&mut text).is_err() {
        return String::new();
    }
    let words = last_words(&text, MAX_MESSAGE_BYTES).unwrap_or_default();
    visible(&words).into_owned()
}

fn make_directory(path: &Path, mode: u32) -> Result<(), ControlError> {
    match fs::DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(ControlError::io("make", Some(path), &error))
        }
        _ => Ok(()),
    }
}

/// Lets one user enter a directory that stays root's: an ACL (format of `system.posix_acl_access`, acl(5) and
/// linux/posix_acl_xattr.h). Where the file system has none, the directory becomes the user's, read-only.
fn let_in(dir: &Path, uid: u32) -> io::Result<()> {
    const VERSION: u32 = 2;
    const ANY: u32 = u32::MAX;
    const ENTRIES: [(u16, u16); 5] = [(0x01, 7), (0x02, 5), (0x04, 0), (0x10, 5), (0x20, 0)];
    let mut value = VERSION.to_le_bytes().to_vec();
    for (tag, permissions) in ENTRIES {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(if tag == 0x02 { uid } else { ANY }.to_le_bytes());
    }
    let flags = rustix::fs::XattrFlags::empty();
    match rustix::fs::setxattr(dir, "system.posix_acl_access", &value, flags) {
        Err(rustix::io::Errno::OPNOTSUPP) => {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o500))?;
            std::os::unix::fs::chown(dir, Some(uid), None)
        }
        set => set.map_err(Into::into),
    }
}

impl Gate for Agent {
    fn secret(&self, key: &Key) -> Result<Secret, Refusal> {
        match key {
            Key::Server => Ok(self.key.clone()),
            _ => Err(refused("an agent knows the servers' key only")),
        }
    }
}

fn refused(why: &str) -> Refusal {
    Refusal { errno: libc::EACCES, why: why.into(), hint: None }
}

impl Backend for Agent {
    type Who = ();

    fn server(&self) -> u128 {
        0
    }

    fn incarnation(&self) -> u64 {
        0
    }

    fn identify(&self, greeted: &Greeted, peer: Option<Caller>) -> Result<(), Refusal> {
        let me = rustix::process::geteuid().as_raw();
        match (&greeted.key, peer) {
            (Key::Server, _) => Ok(()),
            (Key::Peer, Some(caller)) if caller.uid == 0 || caller.uid == me => Ok(()),
            _ => Err(refused("only root and the holder of the servers' key may call an agent")),
        }
    }

    fn answer(&self, _who: &(), _request: LedgerRequest) -> LedgerReply {
        let error = ControlError::new("answer", None, "an agent listens there, and no server");
        LedgerReply::Error(error.errno(libc::EPROTONOSUPPORT))
    }

    fn sessions(&self, _who: &(), _buffer: &str) -> Result<Arc<Sessions>, Refusal> {
        Err(Refusal {
            errno: libc::EPROTONOSUPPORT,
            why: "an agent listens there, and no server of buffers".into(),
            hint: None,
        })
    }

    fn is_agent(&self, _who: &()) -> Result<(), Refusal> {
        Ok(())
    }

    fn node(&self, request: NodeRequest) -> NodeReply {
        let begun = Instant::now();
        let (what, answer) = match request {
            NodeRequest::Mount { session, uid, gid, mounts, swap_bytes } => {
                let mounted = self.mount(&session, (uid, gid), &mounts, swap_bytes);
                let answer = mounted.map(|()| NodeReply::Mounted { host: host_name() });
                (format!("mount for {session}"), answer)
            }
            NodeRequest::Umount { session } => {
                let answer = self.umount(&session).map(|()| NodeReply::Unmounted);
                (format!("unmount of {session}"), answer)
            }
            NodeRequest::Sessions => {
                ("list".to_string(), Agent::sessions(self).map(NodeReply::Sessions))
            }
        };
        let took_ms = begun.elapsed().as_millis();
        match answer {
            Ok(reply) => {
                tracing::info!(took_ms, "{what}");
                reply
            }
            Err(error) => {
                tracing::warn!(took_ms, "{what}: {error}");
                NodeReply::Error(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_command_says_is_passed_on_as_one_line() {
        let fail = ["-c".into(), "echo forebay: it broke >&2; echo why >&2; exit 3".into()];
        let why = run_program(Path::new("sh"), &fail, None, UMOUNT_LIMIT).unwrap_err();
        assert_eq!(why, "it broke; why");
        let hang = ["-c".into(), "exec sleep 60".into()];
        let why = run_program(Path::new("sh"), &hang, None, Duration::from_millis(50)).unwrap_err();
        assert!(why.contains("did not end"), "{why}");
    }
}
