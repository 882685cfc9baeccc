//! The data server's side: resolves files through the metadata server (what they are, where they are
//! now), and applies the changes of their names that it hears of.

use super::super::data_servers::Ownership;
use super::super::file::CacheFile;
use super::super::nodes::Whereabouts;
use super::super::pfs::Key;
use super::messages::{Request, Response};
use super::{DataServers, FILES_MAX, NAMES, PATIENCE};
use forebay_proto::{Errno, Ino, Result};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most inodes that are held for names that are going.
const LEAVING_MAX: usize = 1024;
/// How long a start waits for the metadata server to finish drains that a kill cut, all together; and
/// how long people wait for the paths of files.
pub(super) const START_PATIENCE: Duration = Duration::from_secs(15);

/// Where a file is that was not where it was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NowAt {
    /// By these paths, perhaps.
    Paths(Vec<Vec<u8>>),
    /// Nobody knows.
    AsBefore,
    /// It lost its last name by a mount: nothing of it is here any more.
    Removed,
}

impl Ownership {
    /// There are nodes of these files, as far as they have names.
    pub(super) fn know(&self, inos: &[Ino], to_write: bool) -> Result<()> {
        let Some(data_servers) = self.at_data_server() else { return Ok(()) };
        let unknown: Vec<Ino> =
            inos.iter().copied().filter(|ino| self.nodes.get(*ino).is_err()).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        if !self.tell_start(data_servers, PATIENCE) {
            return Err(Errno::ETIMEDOUT);
        }
        for some in unknown.chunks(FILES_MAX) {
            let number = data_servers.next();
            let question = Request::Describe { number, inos: some.to_vec(), to_write };
            match data_servers.ask_patiently(NAMES, &question, PATIENCE) {
                Ok(Response::Described(all)) => {
                    for (ino, described) in some.iter().zip(all) {
                        if let Some(described) = described {
                            self.nodes.adopt(*ino, described, number);
                            if to_write {
                                self.nodes.writing_told(*ino);
                            }
                        }
                    }
                }
                other => {
                    // It may have taken it for asked.
                    self.nodes.put_let_go(some.iter().map(|ino| (*ino, number)).collect());
                    return Err(other.err().unwrap_or(Errno::EPROTO));
                }
            }
        }
        Ok(())
    }

    /// Says at the start what this data server has; true when the metadata server knows it.
    fn tell_start(&self, data_servers: &DataServers, patience: Duration) -> bool {
        let mut told = data_servers.told_start.lock();
        if *told {
            return true;
        }
        let inos = self.nodes.files_since(data_servers.start);
        let mut parts: Vec<&[Ino]> = inos.chunks(FILES_MAX).collect();
        if parts.is_empty() {
            parts.push(&[]);
        }
        for (at, part) in parts.iter().enumerate() {
            let last = at + 1 == parts.len();
            let question = Request::Start { start: data_servers.start, inos: part.to_vec(), last };
            match data_servers.ask_patiently(NAMES, &question, patience) {
                Ok(Response::Policies(list)) => {
                    if let Err(error) = self.policies.replace(list) {
                        tracing::warn!(%error, "policies of directories are not known here");
                    }
                }
                _ => return false,
            }
        }
        self.drain_list.watch(self.policies.watch());
        *told = true;
        if !self.drain_list.is_held() {
            // Mounts were back before this was told.
            self.look_what_is_clean();
        }
        true
    }

    /// True when all of it is told, or the metadata server is gone for good.
    pub(crate) fn tell_let_go(&self, data_servers: &DataServers) -> bool {
        if !self.tell_start(data_servers, Duration::ZERO) {
            return data_servers.is_lost(NAMES);
        }
        loop {
            let list = self.nodes.take_let_go(FILES_MAX);
            if list.is_empty() {
                return true;
            }
            if data_servers.ask(NAMES, &Request::LetGo(list.clone())).is_err() {
                self.nodes.put_let_go(list);
                return data_servers.is_lost(NAMES);
            }
        }
    }

    /// Asks where a file is that is not where it was. Errors: the metadata server is away.
    pub(crate) fn look_again(&self, ino: Ino, key: Key, patience: Duration) -> Result<NowAt> {
        let Some(data_servers) = self.at_data_server() else { return Ok(NowAt::AsBefore) };
        let question = Request::Where(vec![(ino, key)]);
        let told = match data_servers.ask_patiently(NAMES, &question, patience) {
            // With the names all of them are lost; what is here drains to where it was.
            Err(Errno::EIO) => return Ok(NowAt::AsBefore),
            other => other?,
        };
        let Response::Where(list) = told else { return Err(Errno::EPROTO) };
        Ok(match list.into_iter().next() {
            Some(Whereabouts::At(paths)) => {
                self.nodes.set_paths(ino, &paths);
                NowAt::Paths(paths)
            }
            Some(Whereabouts::Removed) => NowAt::Removed,
            _ => NowAt::AsBefore,
        })
    }

    /// The same for a node that a call is about: true if it is worth to look once more.
    pub(crate) fn is_worth_another_look(&self, ino: Ino) -> bool {
        if self.at_data_server().is_none() {
            return false;
        }
        let Ok(known) = self.nodes.get(ino) else { return false };
        if known.held.is_some() {
            return false;
        }
        match self.look_again(ino, known.key, PATIENCE) {
            Ok(NowAt::Paths(_)) => true,
            Ok(NowAt::Removed) => self.hold_removed(ino),
            Ok(NowAt::AsBefore) | Err(_) => false,
        }
    }

    /// A last name is gone, and this data server is about to be told so: who knows the number opens the inode that is
    /// held since before. False if none is.
    pub(super) fn hold_removed(&self, ino: Ino) -> bool {
        let Some(data_servers) = self.at_data_server() else { return false };
        let held = data_servers.leaving.lock().get(&ino).and_then(|fd| fd.try_clone().ok());
        let is_held = held.is_some();
        if is_held {
            self.nodes.hold(ino, held);
        }
        is_held
    }

    /// An inode of a file that is about to lose a name is held until that is heard of.
    pub(super) fn hold_leaving(&self, ino: Ino, held: OwnedFd) {
        let Some(data_servers) = &self.data_servers else { return };
        let mut leaving = data_servers.leaving.lock();
        if leaving.len() >= LEAVING_MAX {
            leaving.clear();
        }
        leaving.insert(ino, held);
    }

    /// What is held of it.
    pub(super) fn take_leaving(&self, ino: Ino) -> Option<OwnedFd> {
        self.data_servers.as_ref()?.leaving.lock().remove(&ino)
    }

    /// A drain has put another inode under the name of a file that may be about to lose it.
    pub(crate) fn holds_another(&self, file: &CacheFile, inode: &File) {
        let Some(data_servers) = self.at_data_server() else { return };
        let mut leaving = data_servers.leaving.lock();
        if let Some(held) = leaving.get_mut(&file.number())
            && let Ok(inode) = inode.try_clone()
        {
            *held = inode.into();
        }
    }

    /// Files whose paths people are to be told: where they are now.
    pub(crate) fn look_where(&self, files: &[Arc<CacheFile>]) -> Result<()> {
        let Some(data_servers) = self.at_data_server() else { return Ok(()) };
        for some in files.chunks(FILES_MAX) {
            let of = |file: &Arc<CacheFile>| (file.number(), file.state.lock().record.key);
            let list: Vec<(Ino, Key)> = some.iter().map(of).collect();
            let told =
                match data_servers.ask_patiently(NAMES, &Request::Where(list), START_PATIENCE) {
                    Err(Errno::EIO) => return Ok(()),
                    other => other?,
                };
            let Response::Where(list) = told else { return Err(Errno::EPROTO) };
            for (file, place) in some.iter().zip(list) {
                if let Whereabouts::At(paths) = place {
                    self.nodes.set_paths(file.number(), &paths);
                }
            }
        }
        Ok(())
    }

    /// The PFS inode of a file is `keep` from now on, and perhaps `also`: known where the names are when
    /// this returns.
    pub(crate) fn tell_keys(&self, file: &CacheFile, keep: Key, also: Option<Key>) -> Result<()> {
        let Some(data_servers) = self.at_data_server() else { return Ok(()) };
        let question = Request::Keys { ino: file.number(), keep, also };
        match data_servers.ask(NAMES, &question) {
            Ok(Response::Failed(errno)) => Err(Errno(errno)),
            Ok(_) | Err(Errno::EIO) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// At the start: waits for the metadata server. That may be waiting to be started until this one is:
    /// however much there is to ask it, the start waits only once.
    pub(crate) fn wait_for_names(&self) {
        if let Some(data_servers) = self.at_data_server() {
            let left = data_servers.start_until.saturating_duration_since(Instant::now());
            let _known = data_servers.ask_patiently(NAMES, &Request::Where(Vec::new()), left);
        }
    }
}
