//! Data servers that are gone for good: what they had of a cache that the PFS may not have.
//!
//! Invariants
//! * What was clean there, and nobody had open for writing, gets another data server: the PFS has it.
//! * The rest is not taken for what the PFS has: its names lead to the lost data server (EIO), it is listed, and whoever
//!   waits for it hears of it, until its owner says that what the PFS has counts (`resolve --keep theirs`).
//!
//! The metadata server does it. Called by its thread, and for people.

use super::super::data_servers::Ownership;
use super::super::paths::rooted;
use super::super::status::not_cached;
use super::DataServers;
use forebay_credentials::acting::Who;
use forebay_proto::cache::{CacheError, CachedFile};
use forebay_proto::net::lost::{LOST_PATHS_MAX, Lost, LostCursor, LostPage, LostPath};
use forebay_proto::{Caller, Errno, Ino, Result, ShardId};

impl Ownership {
    /// A data server that is gone for good had clean files: they get another one. True when that is done.
    pub(crate) fn leave_if_lost(&self, data_servers: &DataServers, data_server: ShardId) -> bool {
        let is_lost = data_servers.is_lost(data_server);
        if is_lost {
            self.nodes.leave_clean(data_server);
        }
        is_lost
    }

    /// Files of data servers that are gone for good, sorted by path.
    fn lost_files(&self) -> Vec<(Vec<u8>, Ino)> {
        let Some(data_servers) = self.data_servers.as_ref().filter(|_| self.has_names()) else {
            return Vec::new();
        };
        let lost = (0..data_servers.count())
            .map(ShardId)
            .filter(|data_server| data_servers.is_lost(*data_server));
        let mut files: Vec<_> =
            lost.flat_map(|data_server| self.nodes.dirty_at(data_server)).collect();
        files.sort();
        files
    }

    /// What servers that are gone for good had of this cache that the PFS may not have: files that were dirty
    /// there, or open for writing. From a position on, as many as a page has, for who can reach them.
    pub fn lost(&self, who: &Caller, from: Option<LostCursor>) -> Result<LostPage> {
        let files = self.lost_files();
        let first = from.and_then(|from| from.after.first().copied()).unwrap_or(0) as usize;
        let mut page = LostPage::default();
        for (path, _) in files.iter().skip(first).take(LOST_PATHS_MAX) {
            if self.reaches(who, path) {
                page.paths.push(LostPath { path: rooted(path), lost: Lost::Data });
            }
        }
        let next = first + LOST_PATHS_MAX;
        if next < files.len() {
            page.next = Some(LostCursor { after: vec![next as u64], ..LostCursor::default() });
        }
        Ok(page)
    }

    fn reaches(&self, who: &Caller, path: &[u8]) -> bool {
        Who::of(who).act().is_ok_and(|_act| self.pfs.stat(path).is_ok())
    }

    /// The same at or below a path, as files that failed; and whether the requester may hear of each.
    pub(crate) fn lost_below(&self, who: &Caller, path: &[u8]) -> Vec<(CachedFile, bool)> {
        let is_below = |of: &[u8]| {
            let rest = of.strip_prefix(path);
            rest.is_some_and(|rest| path.is_empty() || rest.is_empty() || rest[0] == b'/')
        };
        let files = self.lost_files().into_iter().filter(|(of, _)| is_below(of));
        files.map(|(of, _)| (lost_file(&of), self.reaches(who, &of))).collect()
    }

    /// What is lost of a file is not wanted any more: what the PFS has counts. False if there is none there. Errors:
    /// EPERM for who does not own it.
    pub(crate) fn give_up_lost(&self, who: &Caller, path: &[u8]) -> Result<bool> {
        let found = self.lost_files().into_iter().find(|(of, _)| of == path);
        let Some((_, ino)) = found else { return Ok(false) };
        let stat = {
            let who = Who::of(who);
            let _act = who.act()?;
            self.pfs.stat(path)?
        };
        if who.uid != 0 && who.uid != stat.uid {
            return Err(Errno::EPERM);
        }
        Ok(self.nodes.give_up(ino))
    }
}

fn lost_file(path: &[u8]) -> CachedFile {
    CachedFile {
        state: "failed".into(),
        grade: "lost".into(),
        error: Some(CacheError {
            errno: Errno::EIO.0,
            what: "its server is gone for good, with what the PFS may not have; \
                   `forebay resolve --keep theirs` goes on with what the PFS has"
                .into(),
            tries: 0,
            at_s: 0,
        }),
        ..not_cached(path, 0)
    }
}
