//! A buffer on servers, as a file system: each call of [`FileSystem`] is a call to a server, now and
//! then two, when a name is at one shard and its inode at another.
//!
//! | module | what it does |
//! | --- | --- |
//! | `place` | where a server is, and whether it is the expected one |
//! | `servers` | which server has what |
//! | `peer` | connections, the session at a server, calls that survive broken connections |
//! | `refusal` | a server that refuses this mount |
//! | `lease_cache` | what may be believed without asking |
//! | `dirs` | attributes of directories that answers to changes bring along |
//! | `local_dir_quota` | the directories that go to this node's server |
//! | `open_refs` | references and opens, and giving them back |
//! | `striped` | data of striped files, straight at the servers of their objects |
//! | `logged` | files that are written as logs |
//! | `objects` | reading and writing one object |
//! | `locks`, `held_locks` | lock requests that wait; locks held and lost |
//! | `fs`, `answers` | `FileSystem` |
//! | `failover` | the same by one of several servers that each have a copy |
//!
//! Threads of a mount, for each server: one that hears recalls, one that gives references back, one
//! that keeps the session alive when nothing else does. Made by `forebay mount --buffer`.

mod answers;
mod dirs;
mod failover;
mod fs;
mod held_locks;
mod lease_cache;
mod local_dir_quota;
mod locks;
mod logged;
mod objects;
mod open_refs;
mod peer;
mod place;
mod refusal;
mod servers;
mod striped;

pub use failover::{Failover, SERVER_PATIENCE};
pub use peer::{PATIENCE, Target};
pub use servers::ServerSeen;

use crate::Result;
use crate::ledger::describe;
use forebay_net::{LinkError, ServerAddress};
use forebay_proto::api::ops::*;
use forebay_proto::control::ControlError;
use forebay_proto::net::Call;
use forebay_proto::net::call::Taking;
use forebay_proto::net::session::Attached;
use forebay_proto::{Caller, Errno, Ino};
use local_dir_quota::LocalDirQuota;
use locks::RemoteLocks;
use logged::Logs;
use peer::{Peer, Room};
use servers::Servers;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use striped::StripedFiles;

/// First and longest pause before recalls are heard on a new connection.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);
const RECONNECT_PAUSE_LONGEST: Duration = Duration::from_secs(2);
/// Longest wait for the servers to hear that the mount ends.
const CLOSE_LIMIT: Duration = Duration::from_secs(3);
/// How often it is looked whether the session needs a sign of life.
const ALIVE_LOOK: Duration = Duration::from_secs(1);

/// A mounted buffer on a server.
pub struct RemoteFs {
    servers: Arc<Servers>,
    locks: Arc<RemoteLocks>,
    attached: Attached,
    /// Where each node has a namespace of its own: its directory.
    root: OnceLock<Ino>,
    striped: Arc<StripedFiles>,
    logs: Arc<Logs>,
    local_dirs: LocalDirQuota,
}

impl RemoteFs {
    /// Begins a session at the server that is named, and at those that it knows of.
    pub fn attach(target: Target) -> Result<Arc<RemoteFs>> {
        let address = target.address.clone();
        let what = format!("attach to buffer {} at", target.buffer);
        let failed = |error: LinkError| describe(&what, &address, error);
        let (servers, attached) = Servers::attach(&target).map_err(failed)?;
        let servers = Arc::new(servers);
        let logs = Arc::new(Logs::new(Arc::clone(&servers)));
        let locks = RemoteLocks::new(Arc::clone(servers.of_locks()), Arc::clone(&logs));
        let striped = Arc::new(StripedFiles::default());
        let fs = RemoteFs {
            servers: Arc::clone(&servers),
            locks: Arc::clone(&locks),
            attached,
            root: OnceLock::new(),
            striped: Arc::clone(&striped),
            logs: Arc::clone(&logs),
            local_dirs: LocalDirQuota::default(),
        };
        for peer in servers.all() {
            let locks = Arc::clone(&locks);
            let keeps_locks = Arc::ptr_eq(peer, servers.of_locks());
            let (striped, logs) = (Arc::clone(&striped), Arc::clone(&logs));
            let hear = move |peer: &Peer| {
                hear_recalls(peer, &locks, keeps_locks, (&striped, &logs));
            };
            start("recalls", peer, hear)?;
            start("give-back", peer, give_back)?;
            start("alive", peer, keep_alive)?;
        }
        if !servers.is_one() {
            start("places", &servers, Servers::keep_places)?;
            start("logs", &logs, Logs::end_closed)?;
            start("publish", &logs, Logs::publish_asked)?;
        }
        Ok(Arc::new(fs))
    }

    /// What the kernel is to see. EHOSTUNREACH where that is the node's own namespace, and the
    /// server that has it does not answer.
    pub fn file_system(self: &Arc<RemoteFs>) -> Result<Arc<dyn FileSystem>> {
        let fs = Arc::clone(self) as Arc<dyn FileSystem>;
        if self.attached.root == Ino::ROOT {
            return Ok(fs);
        }
        let first = self.servers.of_locks();
        let root = first.session.read().attached.as_ref().map(|attached| attached.root);
        let below = |root| {
            let _same = self.root.set(root);
            Ok(fs)
        };
        match root {
            Some(root) if root.shard() == Ino::ROOT.shard() => below(root),
            // Held until the mount ends, and held again in each new session.
            Some(root) => match self.take(&Caller::root(), root, Taking::Directory) {
                Ok(_) => below(root),
                Err(errno) => {
                    let what = "find this node's namespace in the buffer";
                    let why = format!("the server of shard {} has it: {errno}", root.shard().0);
                    Err(ControlError::new(what, None, &why)
                        .errno(errno.0)
                        .hint("`forebay buffer status NAME --server ADDR` shows its servers"))
                }
            },
            None => {
                let what = "find this node's namespace in the buffer";
                Err(ControlError::new(what, None, "the server of its first shard does not answer")
                    .errno(libc::EHOSTUNREACH)
                    .hint("`forebay buffer status NAME --server ADDR` shows its servers"))
            }
        }
    }

    /// Whether the server that has an inode runs on this node, and whether it gives its objects to
    /// mounts there; `None` while nothing is known of it.
    pub fn at_server_of(&self, ino: Ino) -> Option<(bool, bool)> {
        let peer = self.servers.of(ino).ok()?;
        let gives = peer.session.read().attached.as_ref().map(|attached| attached.gives_objects)?;
        Some((peer.is_near(), gives))
    }

    /// Why the server that has an inode gives no files to this node's kernel, if it is not near.
    pub fn why_far_of(&self, ino: Ino) -> &'static str {
        self.servers.of(ino).map_or("its server is away", Peer::why_far)
    }

    /// The same of the server that this mount asked first.
    pub fn why_far(&self) -> &'static str {
        self.servers.of_locks().why_far()
    }

    /// What the server said of the buffer.
    pub fn attached(&self) -> &Attached {
        &self.attached
    }

    /// True while the server does not answer.
    pub fn is_away(&self) -> bool {
        self.servers.of_locks().is_away()
    }

    /// True if the server runs on this node.
    pub fn is_near(&self) -> bool {
        self.servers.of_locks().is_near()
    }

    /// A file like the objects on this node's server. EOPNOTSUPP where there is none.
    pub fn probe(&self) -> std::result::Result<std::fs::File, Errno> {
        let near = self.servers.all().iter().find(|peer| peer.is_near());
        let first = near.unwrap_or(self.servers.of_locks());
        let done = first.call(&Caller::root(), Call::Probe, &[], Room::None)?;
        done.file.ok_or(Errno::EOPNOTSUPP)
    }

    /// Tells the servers that this mount is over; calls fail from now on.
    pub fn close(&self) {
        self.logs.close();
        self.servers.close(CLOSE_LIMIT);
    }

    /// The same for who is in a hurry: a server that does not answer within `limit` is not told.
    pub fn close_within(&self, limit: Duration) {
        self.logs.leave();
        self.servers.close(limit);
    }

    /// The servers that did not answer when they were last asked, or are gone for good.
    pub fn servers_away(&self) -> Vec<ServerAddress> {
        self.servers.away()
    }

    /// The servers on this node that are stopped (SIGSTOP, a debugger), and their processes. None of them is asked.
    pub fn servers_stopped(&self) -> Vec<(ServerAddress, u32)> {
        self.servers.stopped()
    }

    /// The same of the server that is reached at `address`.
    pub fn server_stopped_at(&self, address: &ServerAddress) -> Option<(ServerAddress, u32)> {
        self.servers.stopped_at(address)
    }

    /// Where the servers are that are neither stopped on this node nor gone for good. All processes are looked through, as by
    /// [`RemoteFs::servers_seen_stopped`].
    pub fn servers_running(&self) -> Vec<ServerAddress> {
        self.servers.running()
    }

    /// Greets the servers: those that answer within `limit`, and those that do not.
    pub fn servers_greeted(&self, limit: Duration) -> (Vec<ServerAddress>, Vec<ServerAddress>) {
        self.servers.greeted(limit)
    }

    /// The servers on this node that are stopped, those that are spoken with by TCP, too. All processes are looked through: for
    /// who has waited already.
    pub fn servers_seen_stopped(&self) -> Vec<(ServerAddress, u32)> {
        self.servers.seen_stopped()
    }

    /// All servers, if programs wait for the answer of one of them now; else none.
    pub fn servers_while_waited_for(&self) -> Vec<ServerSeen> {
        self.servers.while_waited_for()
    }
}

impl Drop for RemoteFs {
    fn drop(&mut self) {
        self.close();
    }
}

fn start<T: Send + Sync + 'static>(
    name: &str,
    of: &Arc<T>,
    work: impl FnOnce(&T) + Send + 'static,
) -> Result<()> {
    let of = Arc::clone(of);
    std::thread::Builder::new()
        .name(name.into())
        .spawn(move || work(&of))
        .map(drop)
        .map_err(|error| ControlError::io("start a thread", None, &error))
}

fn hear_recalls(
    peer: &Peer,
    locks: &Arc<RemoteLocks>,
    keeps_locks: bool,
    (striped, logs): (&StripedFiles, &Logs),
) {
    let (mut heard_in, mut pause) = (1, RECONNECT_PAUSE);
    while !peer.is_closing() {
        let new_session = |generation| {
            if generation != std::mem::replace(&mut heard_in, generation) && keeps_locks {
                // On a thread of its own: a request may have to wait for a recall.
                let locks = Arc::clone(locks);
                let asking = std::thread::Builder::new().name("locks".into());
                if let Err(error) = asking.spawn(move || locks.ask_again()) {
                    tracing::error!(%error, "lock requests that wait were not made again");
                }
            }
        };
        let heard = peer.hear_recalls(new_session, |recall| {
            peer.kept.recalled(&recall.names, &recall.attrs);
            peer.kept.gone(&recall.gone);
            peer.kept.moved(&recall.moved);
            recall.attrs.iter().for_each(|ino| striped.attributes_changed(*ino));
            recall.attrs.iter().for_each(|ino| logs.forget_map(*ino));
            logs.asked(&recall.publish);
            locks.heard(recall);
        });
        if let Err(error) = heard {
            tracing::debug!(%error, "recalls are not heard");
        }
        // The server may have started anew: others there wait until it has heard what this mount
        // holds, so it is told now and not at the next call.
        pause = match peer.call(&Caller::root(), Call::Renew, &[], Room::None) {
            Ok(_) => RECONNECT_PAUSE,
            Err(_) => (pause * 2).min(RECONNECT_PAUSE_LONGEST),
        };
        std::thread::sleep(pause);
    }
}

fn give_back(peer: &Peer) {
    let caller = Caller::root();
    loop {
        let Some(given) = peer.held.next_given_back() else { return };
        let tell = |call| {
            match peer.call_in(Some(given.generation), &caller, call, &[], Room::None) {
                // A new session was not told that we hold them.
                Ok(_) | Err(Errno::ECANCELED) => {}
                Err(error) => tracing::debug!(%error, "references could not be given back"),
            }
        };
        if !given.releases.is_empty() {
            tell(Call::Release(given.releases));
        }
        if !given.closes.is_empty() {
            tell(Call::Close(given.closes));
        }
        if !given.forgets.is_empty() {
            tell(Call::Forget(given.forgets));
        }
    }
}

fn keep_alive(peer: &Peer) {
    while !peer.is_closing() {
        peer.ask_for_wanted_sign(ALIVE_LOOK);
        let lease = peer.lease();
        if (peer.kept.lease_left() < lease * 2 / 3 || peer.is_away())
            && let Err(error) = peer.call(&Caller::root(), Call::Renew, &[], Room::None)
        {
            tracing::debug!(%error, "no sign of life from the server");
        }
        peer.settle_unheard();
    }
}
