//! The metadata server's side: tells data servers about changes of names, and settles with them what is open.

use super::super::data_servers::Ownership;
use super::super::pfs::{Key, PfsStat};
use super::super::record::Base;
use super::messages::{LinkChange, Request, Response, data_server_of};
use super::{DataServers, FILES_MAX};
use forebay_credentials::acting::Who;
use forebay_proto::attr::FileKind;
use forebay_proto::{Errno, Ino, Result, ShardId};
use parking_lot::RwLockReadGuard;
use std::collections::HashSet;

impl Ownership {
    /// True if another server is the file's data server.
    pub fn is_elsewhere(&self, ino: Ino, kind: FileKind) -> bool {
        self.data_servers.is_some() && self.nodes.is_elsewhere(ino, kind)
    }

    /// A file's number goes to a mount that takes it at its data server. Its node stays till then; one reference that
    /// the caller has ends.
    pub fn give_away(&self, ino: Ino) {
        self.nodes.give(ino);
    }

    /// Its data server is to hold what must not go with a name of it. One that is away has nothing open.
    pub(crate) fn tell_leaving(&self, ino: Ino) {
        let Some(data_servers) = &self.data_servers else { return };
        if let Err(error) =
            data_servers.ask_about_change(data_server_of(ino), &Request::Leaving(ino))
        {
            tracing::debug!(%ino, %error, "its data server does not hear that a name is going");
        }
    }

    /// Its data server hears what happened to its names. What it must hear, it hears later if it is away now.
    pub(crate) fn tell_left(&self, left: LinkChange) {
        let Some(data_servers) = &self.data_servers else { return };
        let ino = left.ino;
        let heard =
            data_servers.ask_about_change(data_server_of(ino), &Request::Links(left.clone()));
        self.has_heard(&left, heard);
    }

    /// What came of telling a data server; true if it has heard it.
    fn has_heard(&self, left: &LinkChange, heard: Result<Response>) -> bool {
        let (ino, removed) = (left.ino, left.removed);
        match heard {
            Ok(Response::Done) if removed => self.nodes.data_server_knows(ino),
            Ok(Response::Done) => {}
            Ok(told) => {
                tracing::warn!(%ino, ?told, "its data server cannot take up what happened to its names");
                return false;
            }
            Err(error) => {
                tracing::debug!(%ino, %error, "its data server hears later what happened to its names");
                return false;
            }
        }
        true
    }

    /// What a data server is told of a name that was made or moved.
    pub(crate) fn touched(
        &self,
        client: u64,
        ino: Ino,
        before: &PfsStat,
        after: Option<&PfsStat>,
        gone: Option<(Ino, &[u8])>,
    ) -> LinkChange {
        let mut paths = self.nodes.paths(ino);
        paths.reverse();
        LinkChange {
            ino,
            key: before.key,
            client,
            gone: gone.map(|(dir, name)| (dir, name.to_vec())),
            removed: false,
            change: after.map(|after| (Base::of(before), Base::of(after))),
            paths,
        }
    }

    /// While names are changed on the PFS and in the table of nodes, data servers are not told where files are.
    pub(crate) fn changing_names(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.data_servers.as_ref().map(|data_servers| data_servers.renaming.read_recursive())
    }

    /// Tells data servers of files without a name of which they have not heard. True when all have heard of all.
    pub(crate) fn tell_removed(&self, data_servers: &DataServers) -> bool {
        let mut deaf = HashSet::new();
        for (ino, key) in self.nodes.removed_unheard() {
            let data_server = data_server_of(ino);
            if data_servers.peers.is_lost(data_server) {
                self.nodes.data_server_knows(ino);
                continue;
            }
            let paths = Vec::new();
            let left =
                LinkChange { ino, key, client: 0, gone: None, removed: true, change: None, paths };
            // One that does not answer is not asked about each file in turn.
            if deaf.contains(&data_server) {
                continue;
            }
            match self
                .has_heard(&left, data_servers.ask(data_server, &Request::Links(left.clone())))
            {
                true => data_servers.answers(data_server),
                false => drop(deaf.insert(data_server)),
            }
        }
        deaf.is_empty()
    }

    /// What the last server believed that a data server has, it may not have. And it hears the policies. True when
    /// that is done.
    pub(crate) fn settle_with(&self, data_servers: &DataServers, data_server: ShardId) -> bool {
        if !matches!(
            data_servers.ask(data_server, &Request::Policies(self.policies.list())),
            Ok(Response::Done)
        ) {
            return data_servers.peers.is_lost(data_server);
        }
        for some in self.nodes.believed_held(data_server).chunks(FILES_MAX) {
            match data_servers.ask(data_server, &Request::Unknown(some.to_vec())) {
                // One that it got meanwhile has a larger number.
                Ok(Response::Unknown { unknown, clean }) => {
                    let list: Vec<_> = unknown.into_iter().map(|ino| (ino, 0)).collect();
                    self.nodes.data_server_let_go(&list);
                    self.nodes.data_server_has_clean(clean.into_iter().map(|ino| (ino, 0)));
                }
                _ => return false,
            }
        }
        true
    }

    /// Data servers hear of new policies of directories. One that is away asks when it starts.
    pub(crate) fn tell_policies(&self) {
        let Some(data_servers) = &self.data_servers else { return };
        for data_server in data_servers.others() {
            if let Err(error) =
                data_servers.ask(data_server, &Request::Policies(self.policies.list()))
            {
                tracing::warn!(part = data_server.0, %error, "a server of the cache does not hear of a new policy now");
            }
        }
    }

    pub(crate) fn data_server_starts(
        &self,
        data_servers: &DataServers,
        data_server: ShardId,
        start: u64,
        inos: Vec<Ino>,
        last: bool,
    ) {
        let mut starting = data_servers.starting.lock();
        let has = starting.entry(data_server).or_default();
        if has.0 != start {
            *has = (start, Default::default());
        }
        has.1.extend(inos);
        if last && let Some((start, inos)) = starting.remove(&data_server) {
            drop(starting);
            self.nodes.data_server_holds(data_server, start, &inos);
        }
    }

    /// At the start: which last names has the last server removed? What the PFS has tells.
    pub(crate) fn settle_removals(&self) {
        for ino in self.nodes.unsettled() {
            let is_there = self.nodes.get(ino).is_ok_and(|known| {
                let paths = self.nodes.paths(ino);
                paths.iter().any(|path| self.is_at_path(path, known.key, &known.who))
            });
            match is_there || self.nodes.get(ino).is_err() {
                true => self.nodes.settled(ino),
                false => self.nodes.removed(ino),
            }
        }
    }

    /// True if a path leads to this PFS inode, or that cannot be known now.
    fn is_at_path(&self, path: &[u8], key: Key, who: &Who) -> bool {
        let look = |who: &Who| {
            let _act = who.act()?;
            self.pfs.stat(path)
        };
        match look(&Who::server()).or_else(|_| look(who)) {
            // The data server may have put another inode there, which it has told before.
            Ok(stat) => stat.key == key || self.nodes.number(stat.key) == self.nodes.number(key),
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => false,
            Err(_) => true,
        }
    }
}
