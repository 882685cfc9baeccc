//! The server of the names: what it tells homes about changes of names, and what it settles with them.

use super::super::CacheFs;
use super::super::act::Who;
use super::super::names::{At, Leaving};
use super::super::pfs::{Key, PfsStat};
use super::super::record::Base;
use super::asked::{Asked, Left, Told, home_of};
use super::{FILES_MAX, Homes};
use forebay_proto::attr::FileKind;
use forebay_proto::{Errno, Ino, Result, ShardId};
use parking_lot::RwLockReadGuard;
use std::collections::HashSet;
use std::os::fd::AsFd;

impl CacheFs {
    /// True if another server is the file's home.
    pub(crate) fn is_elsewhere(&self, ino: Ino, kind: FileKind) -> bool {
        self.homes.is_some() && self.nodes.is_elsewhere(ino, kind)
    }

    /// A file's number goes to a mount that takes it at its home. Its node stays till then; one reference that
    /// the caller has ends.
    pub(crate) fn give_away(&self, ino: Ino) {
        self.nodes.give(ino);
    }

    /// Its home is to hold what must not go with a name of it. One that is away has nothing open.
    pub(in super::super) fn tell_leaving(&self, ino: Ino) {
        let Some(homes) = &self.homes else { return };
        if let Err(error) = homes.ask_about_change(home_of(ino), &Asked::Leaving(ino)) {
            tracing::debug!(%ino, %error, "its home does not hear that a name is going");
        }
    }

    /// Its home hears what happened to its names. What it must hear, it hears later if it is away now.
    pub(in super::super) fn tell_left(&self, left: Left) {
        let Some(homes) = &self.homes else { return };
        let ino = left.ino;
        let heard = homes.ask_about_change(home_of(ino), &Asked::Left(left.clone()));
        self.has_heard(&left, heard);
    }

    /// What came of telling a home; true if it has heard it.
    fn has_heard(&self, left: &Left, heard: Result<Told>) -> bool {
        let (ino, removed) = (left.ino, left.removed);
        match heard {
            Ok(Told::Done) if removed => self.nodes.home_knows(ino),
            Ok(Told::Done) => {}
            Ok(told) => {
                tracing::warn!(%ino, ?told, "its home cannot take up what happened to its names");
                return false;
            }
            Err(error) => {
                tracing::debug!(%ino, %error, "its home hears later what happened to its names");
                return false;
            }
        }
        true
    }

    /// What a home is told of a name that was made or moved.
    pub(in super::super) fn touched(
        &self,
        client: u64,
        ino: Ino,
        before: &PfsStat,
        after: Option<&PfsStat>,
        gone: Option<(Ino, &[u8])>,
    ) -> Left {
        let mut paths = self.nodes.paths(ino);
        paths.reverse();
        Left {
            ino,
            key: before.key,
            client,
            gone: gone.map(|(dir, name)| (dir, name.to_vec())),
            removed: false,
            change: after.map(|after| (Base::of(before), Base::of(after))),
            paths,
        }
    }

    /// While names are changed on the PFS and in the table of nodes, homes are not told where files are.
    pub(in super::super) fn changing_names(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.homes.as_ref().map(|homes| homes.renaming.read_recursive())
    }

    /// Removes a name of a file whose home is another server; what that one is to hear of it.
    pub(in super::super) fn with_leaving_elsewhere(
        &self,
        leaving: &Leaving<'_>,
        (parent, name): At<'_>,
        remove: impl FnOnce() -> Result<()>,
    ) -> Result<Left> {
        let ino = leaving.node.as_ref().map(|node| node.ino).ok_or(Errno::ESTALE)?;
        if leaving.last {
            self.nodes.removing(ino);
        }
        crate::step::step("a name of a file elsewhere is going");
        if let Err(error) = remove() {
            if leaving.last {
                self.nodes.settled(ino);
            }
            return Err(error);
        }
        crate::step::step("a name of a file elsewhere has gone");
        let after = leaving.inode.as_ref().and_then(|fd| self.pfs.stat_fd(fd.as_fd()).ok());
        self.nodes.unname(ino, parent, name);
        if leaving.last {
            self.nodes.removed(ino);
        }
        crate::step::step("its home is to hear of it");
        let gone = Some((parent, name));
        let left = self.touched(leaving.client, ino, &leaving.stat, after.as_ref(), gone);
        Ok(Left { removed: leaving.last, ..left })
    }

    /// What the home of a file that got another name is to hear. The kernel of who renamed it knows; others
    /// look the old name up again.
    pub(in super::super) fn moved_elsewhere(&self, moved: &Leaving<'_>) -> Option<Left> {
        let node = moved.node.as_ref().filter(|_| moved.is_elsewhere())?;
        let after = self.pfs.stat_fd(moved.inode.as_ref()?.as_fd()).ok();
        Some(self.touched(moved.client, node.ino, &moved.stat, after.as_ref(), None))
    }

    /// Tells homes of files without a name of which they have not heard. True when all have heard of all.
    pub(super) fn tell_removed(&self, homes: &Homes) -> bool {
        let mut deaf = HashSet::new();
        for (ino, key) in self.nodes.removed_unheard() {
            let home = home_of(ino);
            if homes.peers.is_lost(home) {
                self.nodes.home_knows(ino);
                continue;
            }
            let paths = Vec::new();
            let left = Left { ino, key, client: 0, gone: None, removed: true, change: None, paths };
            // One that does not answer is not asked about each file in turn.
            if deaf.contains(&home) {
                continue;
            }
            match self.has_heard(&left, homes.ask(home, &Asked::Left(left.clone()))) {
                true => homes.answers(home),
                false => drop(deaf.insert(home)),
            }
        }
        deaf.is_empty()
    }

    /// What the last server believed that a home has, it may not have. And it hears the policies. True when
    /// that is done.
    pub(super) fn settle_with(&self, homes: &Homes, home: ShardId) -> bool {
        if !matches!(homes.ask(home, &Asked::Policies(self.policies.list())), Ok(Told::Done)) {
            return homes.peers.is_lost(home);
        }
        for some in self.nodes.believed_held(home).chunks(FILES_MAX) {
            match homes.ask(home, &Asked::Unknown(some.to_vec())) {
                // One that it got meanwhile has a larger number.
                Ok(Told::Unknown { unknown, clean }) => {
                    let list: Vec<_> = unknown.into_iter().map(|ino| (ino, 0)).collect();
                    self.nodes.home_let_go(&list);
                    self.nodes.home_has_clean(clean.into_iter().map(|ino| (ino, 0)));
                }
                _ => return false,
            }
        }
        true
    }

    /// Homes hear of new policies of directories. One that is away asks when it starts.
    pub(in super::super) fn tell_policies(&self) {
        let Some(homes) = &self.homes else { return };
        for home in homes.others() {
            if let Err(error) = homes.ask(home, &Asked::Policies(self.policies.list())) {
                tracing::warn!(part = home.0, %error, "a server of the cache does not hear of a new policy now");
            }
        }
    }

    pub(super) fn home_starts(
        &self,
        homes: &Homes,
        home: ShardId,
        start: u64,
        inos: Vec<Ino>,
        last: bool,
    ) {
        let mut starting = homes.starting.lock();
        let has = starting.entry(home).or_default();
        if has.0 != start {
            *has = (start, Default::default());
        }
        has.1.extend(inos);
        if last && let Some((start, inos)) = starting.remove(&home) {
            drop(starting);
            self.nodes.home_holds(home, start, &inos);
        }
    }

    pub(super) fn resolve_for(&self, path: &[u8], who: &Who) -> Result<(Ino, FileKind)> {
        let ino = self.walk(path, who)?;
        let kind = self.nodes.get(ino)?.kind;
        match self.is_elsewhere(ino, kind) {
            true => self.nodes.give(ino),
            false => drop(self.nodes.forget(ino, 1)),
        }
        Ok((ino, kind))
    }

    /// At the start: which last names has the last server removed? What the PFS has tells.
    pub(in super::super) fn settle_removals(&self) {
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
            // The home may have put another inode there, which it has told before.
            Ok(stat) => stat.key == key || self.nodes.number(stat.key) == self.nodes.number(key),
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => false,
            Err(_) => true,
        }
    }
}
