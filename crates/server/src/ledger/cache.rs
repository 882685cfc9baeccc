//! What is asked of a cache without a mount, of all servers that have something of it.
//!
//! Invariant: files of a cache are flushed, fetched and looked at with the rights of the requester. Called by `route`.

use super::cache_spec::share_of;
use super::errors::{absent, of};
use super::parts::Parts;
use super::record_store::RecordStore;
use super::servers::Servers;
use super::{Identity, ServedBuffer};
use forebay_cache::{CacheFs, why_not_invalidated, why_not_resolved};
use forebay_proto::cache::{CacheRequest, CacheStatus, CachedFile, TreeState};
use forebay_proto::control::{ControlError, PathBytes};
use forebay_proto::net::ledger::{BufferName, LedgerReply};
use forebay_proto::net::pool::{PoolQuestion, PoolReply};
use forebay_proto::{Caller, Errno, ServerId};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

const WHAT: &str = "cache for";

/// The caches of which this server has a part.
pub(super) struct Caches {
    record: Arc<RecordStore>,
    parts: Arc<Parts>,
    servers: Arc<Servers>,
}

impl Caches {
    /// Of these parts.
    pub(super) fn new(
        record: Arc<RecordStore>,
        parts: Arc<Parts>,
        servers: Arc<Servers>,
    ) -> Caches {
        Caches { record, parts, servers }
    }

    /// Answers a question about files of a cache, by all servers that have something of them.
    pub(super) fn answer(
        &self,
        who: &Identity,
        name: &BufferName,
        request: CacheRequest,
        on_behalf: Option<Caller>,
    ) -> Result<LedgerReply, ControlError> {
        let (served, caller) = self.of_owner(who, name, on_behalf)?;
        let request = match request {
            CacheRequest::Rate { bytes_per_s } => {
                CacheRequest::Rate { bytes_per_s: share_of(bytes_per_s, served.places.count()) }
            }
            request => request,
        };
        let how = HowMany::of(&request);
        let answers = self.ask_parts(&served, &caller, Some(request));
        how.added(answers).unwrap_or_else(|| Err(absent(WHAT, name)))
    }

    /// State of a cache as a whole.
    pub(super) fn status(
        &self,
        who: &Identity,
        name: &BufferName,
    ) -> Result<LedgerReply, ControlError> {
        let (served, caller) = self.of_owner(who, name, None)?;
        let mut all: Option<CacheStatus> = None;
        for answered in self.ask_parts(&served, &caller, None) {
            let LedgerReply::CacheStatus(part) = answered? else { continue };
            match &mut all {
                None => all = Some(*part),
                Some(all) => add_status(all, *part),
            }
        }
        let all = all.ok_or_else(|| absent(WHAT, name))?;
        Ok(LedgerReply::CacheStatus(Box::new(all)))
    }

    /// The cache's part here, and whose rights are taken.
    fn of_owner(
        &self,
        who: &Identity,
        name: &BufferName,
        on_behalf: Option<Caller>,
    ) -> Result<(Arc<ServedBuffer>, Caller), ControlError> {
        let (part, served) = self.parts.of_owner(WHAT, who, name)?;
        if served.server.cache().is_none() {
            return Err(of(WHAT, name, "it is no cache", libc::EINVAL)
                .hint("files of a scratch buffer reach the PFS by `forebay stage out`"));
        }
        let own = who.stages_as(&part);
        let caller = match (who, on_behalf) {
            (_, None) => own,
            (Identity::Superuser(_), Some(user)) => user,
            (_, Some(user)) if user.uid == own.uid => own,
            (_, Some(user)) => {
                let why = format!("user {} may not ask for user {}", own.uid, user.uid);
                return Err(of(WHAT, name, &why, libc::EPERM).hint(
                    "name the buffer (BUFFER:/PATH) with --server, and use a secret of your own",
                ));
            }
        };
        Ok((served, caller))
    }

    /// Asks each server that has a part, in the order of the parts.
    fn ask_parts(
        &self,
        served: &ServedBuffer,
        caller: &Caller,
        request: Option<CacheRequest>,
    ) -> Vec<Result<LedgerReply, ControlError>> {
        let found = self.record.lock().part(&served.name).cloned();
        let servers = found.map(|part| part.spec.servers).unwrap_or_default();
        let mine = self.record.server_id();
        let question = PoolQuestion::CachePart {
            uuid: served.uuid.clone(),
            caller: caller.clone(),
            request: request.clone(),
        };
        let ask = |server: ServerId| -> Result<LedgerReply, ControlError> {
            if server == mine {
                let answered = self.answer_part(&served.uuid, caller, request.as_ref());
                return answered.map_err(|error| self.servers.or_stopped(&servers, error));
            }
            let answered = self.servers.ask(server, &question);
            match answered.map_err(|error| self.servers.looked_at_again(server, error))? {
                PoolReply::Ledger(reply) => match *reply {
                    LedgerReply::Error(error) => Err(error),
                    reply => Ok(reply),
                },
                _ => Err(self.servers.nonsense(server)),
            }
        };
        let there = servers.iter().copied().filter(|server| !self.record.is_lost(*server));
        there.map(ask).collect()
    }

    /// What this server's part of a cache has to say.
    pub(super) fn answer_part(
        &self,
        uuid: &str,
        caller: &Caller,
        request: Option<&CacheRequest>,
    ) -> Result<LedgerReply, ControlError> {
        let missing = || ControlError::new(WHAT, None, "it is not served here").errno(libc::EIO);
        let served = self.parts.of_uuid(uuid).ok_or_else(missing)?;
        let cache = served.server.cache().ok_or_else(missing)?;
        match request {
            None => Ok(LedgerReply::CacheStatus(Box::new(cache.cache_status()))),
            Some(request) => answer(cache, &served.name, caller, request),
        }
    }
}

/// Answers what is asked of a cache.
fn answer(
    cache: &CacheFs,
    name: &BufferName,
    caller: &Caller,
    request: &CacheRequest,
) -> Result<LedgerReply, ControlError> {
    use CacheRequest as Q;
    let tree = |state: TreeState| LedgerReply::CacheTree(Box::new(state));
    let one = |file: CachedFile| LedgerReply::CacheFile(Box::new(file));
    let told = |what: &str, path: &PathBytes, result: Result<LedgerReply, Errno>| {
        result.map_err(|errno| {
            let error = std::io::Error::from_raw_os_error(errno.0);
            let path = Path::new(OsStr::from_bytes(path.as_bytes()));
            ControlError::io(&format!("{what}, in buffer {name},"), Some(path), &error)
        })
    };
    match request {
        Q::State { path } => {
            told("look at", path, cache.tree_state(caller, path.as_bytes()).map(tree))
        }
        Q::Flush { path } => told("flush", path, cache.flush(caller, path.as_bytes()).map(tree)),
        Q::List { path, after } => {
            let after = after.as_ref().map_or(&b""[..], PathBytes::as_bytes);
            let list = cache.list_of(caller, path.as_bytes(), after);
            told("list", path, list.map(LedgerReply::CacheList))
        }
        Q::Warm { path } => told("fetch", path, cache.warm(caller, path.as_bytes()).map(one)),
        Q::Pin { path, on } => told("pin", path, cache.pin(caller, path.as_bytes(), *on).map(one)),
        Q::Invalidate { path } => {
            let shown = Path::new(OsStr::from_bytes(path.as_bytes()));
            let what = format!("invalidate, in buffer {name},");
            let forgotten = cache.invalidate(caller, path.as_bytes()).map(one);
            forgotten.map_err(|errno| why_not_invalidated(&what, shown, errno))
        }
        Q::Resolve { path, keep } => {
            let resolved = cache.resolve(caller, path.as_bytes(), *keep).map(tree);
            let shown = Path::new(OsStr::from_bytes(path.as_bytes()));
            let what = format!("resolve, in buffer {name},");
            resolved.map_err(|errno| why_not_resolved(&what, shown, errno))
        }
        Q::Discard => Err(of(WHAT, name, "only its end loses dirty data", libc::EINVAL)
            .hint("`forebay buffer destroy --discard-dirty`")),
        Q::Rate { bytes_per_s } => {
            let set = cache.set_rate(*bytes_per_s);
            set.map_err(|e| of("limit drains of", name, &e.to_string(), e.0))?;
            Ok(LedgerReply::Ok)
        }
    }
}

/// What it means that some servers of a cache know nothing of a path.
enum HowMany {
    /// Each that knows of the path adds what it has.
    Some,
    /// What is asked for is at one: the others know of none.
    One,
    /// All have to do it.
    All,
}

impl HowMany {
    fn of(request: &CacheRequest) -> HowMany {
        match request {
            // A file that is not on the PFS any more is known where it is dirty only.
            CacheRequest::State { .. } | CacheRequest::Flush { .. } => HowMany::Some,
            CacheRequest::Resolve { .. } => HowMany::One,
            _ => HowMany::All,
        }
    }

    /// How much an error says, if other servers have said something else.
    fn weight(&self, error: &ControlError) -> u8 {
        match (self, error.errno) {
            (HowMany::Some | HowMany::One, Some(libc::ENOENT)) => 0,
            (HowMany::One, Some(libc::EINVAL)) => 1,
            _ => HowMany::COUNTS,
        }
    }

    /// One answer of those of all servers that were asked; `None` if none was.
    fn added(
        &self,
        answers: Vec<Result<LedgerReply, ControlError>>,
    ) -> Option<Result<LedgerReply, ControlError>> {
        let mut all: Option<LedgerReply> = None;
        let mut failed: Option<ControlError> = None;
        for answered in answers {
            match (answered, &mut all) {
                (Err(error), _) => {
                    // Of several the one that says most.
                    let says = |error: &ControlError| self.weight(error);
                    if failed.as_ref().is_none_or(|known| says(known) < says(&error)) {
                        failed = Some(error);
                    }
                }
                (Ok(reply), None) => all = Some(reply),
                (Ok(LedgerReply::CacheTree(more)), Some(LedgerReply::CacheTree(tree))) => {
                    add_tree(tree, *more);
                }
                (Ok(_), Some(_)) => {}
            }
        }
        match (all, failed) {
            (Some(reply), Some(error)) if self.weight(&error) < HowMany::COUNTS => Some(Ok(reply)),
            (_, Some(error)) => Some(Err(error)),
            (all, None) => all.map(Ok),
        }
    }

    /// An error that says so much counts whatever the others have answered.
    const COUNTS: u8 = 2;
}

/// What two servers have of a tree.
fn add_tree(all: &mut TreeState, part: TreeState) {
    // Each by its name: one that is new is not left out.
    let TreeState {
        files,
        draining,
        failed,
        conflicts,
        busy,
        drained_files,
        drained_ms,
        dirty_bytes,
        drained_bytes,
        rate_bytes_per_s,
        eta_s,
        problems,
        pfs_error,
        volatile,
        policy,
        file,
    } = part;
    all.files += files;
    all.draining += draining;
    all.failed += failed;
    all.conflicts += conflicts;
    all.busy += busy;
    all.drained_files += drained_files;
    all.drained_ms = all.drained_ms.max(drained_ms);
    all.dirty_bytes += dirty_bytes;
    all.drained_bytes += drained_bytes;
    all.rate_bytes_per_s += rate_bytes_per_s;
    all.eta_s = match (all.eta_s, eta_s) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    };
    let room = forebay_proto::cache::MAX_PROBLEMS.saturating_sub(all.problems.len());
    all.problems.extend(problems.into_iter().take(room));
    all.pfs_error = all.pfs_error.take().or(pfs_error);
    all.volatile |= volatile;
    all.policy = all.policy.take().or(policy);
    // Of one path, the server that has the worst of it, or most of it, knows most.
    let better = match (&all.file, &file) {
        (Some(a), Some(b)) => b.is_worse_than(a),
        (a, b) => a.is_none() && b.is_some(),
    };
    if better {
        all.file = file;
    }
}

fn add_status(all: &mut CacheStatus, part: CacheStatus) {
    // Each by its name: one that is new is not left out.
    let CacheStatus {
        pfs: _,
        pfs_error,
        flash_error,
        tree,
        hit_bytes,
        miss_bytes,
        filled_bytes,
        written_bytes,
        evicted_bytes,
        rate_limit_bytes_per_s,
    } = part;
    all.pfs_error = all.pfs_error.take().or(pfs_error);
    all.flash_error = all.flash_error.take().or(flash_error);
    add_tree(&mut all.tree, tree);
    all.hit_bytes += hit_bytes;
    all.miss_bytes += miss_bytes;
    all.filled_bytes += filled_bytes;
    all.written_bytes += written_bytes;
    all.evicted_bytes += evicted_bytes;
    all.rate_limit_bytes_per_s += rate_limit_bytes_per_s;
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::cache::Keep;

    fn part(of: u64, pfs_error: Option<&str>) -> CacheStatus {
        let pfs_error = pfs_error.map(String::from);
        CacheStatus {
            pfs: PathBytes::new(b"/pfs"),
            pfs_error: pfs_error.clone(),
            flash_error: None,
            tree: TreeState {
                files: of,
                drained_files: of,
                drained_ms: of,
                dirty_bytes: of,
                pfs_error,
                ..TreeState::default()
            },
            hit_bytes: of,
            miss_bytes: of,
            filled_bytes: of,
            written_bytes: of,
            evicted_bytes: of,
            rate_limit_bytes_per_s: of,
        }
    }

    #[test]
    fn figures_of_all_servers_of_a_cache_add_up() {
        let mut all = part(1, None);
        add_status(&mut all, part(2, Some("ENODEV")));
        let tree = &all.tree;
        let sums = [
            all.hit_bytes,
            all.miss_bytes,
            all.filled_bytes,
            all.written_bytes,
            all.evicted_bytes,
            all.rate_limit_bytes_per_s,
            tree.files,
            tree.dirty_bytes,
        ];
        assert_eq!(sums, [3; 8]);
        assert_eq!((tree.drained_files, tree.drained_ms), (3, 2), "the oldest counts");
        // One server without the PFS is enough to say so.
        assert_eq!(all.pfs_error.as_deref(), Some("ENODEV"));
        assert_eq!(tree.pfs_error.as_deref(), Some("ENODEV"));
    }

    fn error(errno: i32) -> Result<LedgerReply, ControlError> {
        Err(ControlError::new("ask", None, "why").errno(errno))
    }

    fn tree(conflicts: u64) -> Result<LedgerReply, ControlError> {
        let state = TreeState { files: conflicts, conflicts, ..TreeState::default() };
        Ok(LedgerReply::CacheTree(Box::new(state)))
    }

    #[test]
    fn a_path_that_one_server_knows_is_known() {
        let path = PathBytes::new(b"/f");
        let (state, flush) = (
            CacheRequest::State { path: path.clone() },
            CacheRequest::Flush { path: path.clone() },
        );
        let resolve = CacheRequest::Resolve { path: path.clone(), keep: Keep::Ours };
        let invalidate = CacheRequest::Invalidate { path };
        let told = |request: &CacheRequest, answers| match HowMany::of(request).added(answers) {
            Some(Ok(LedgerReply::CacheTree(tree))) => Ok(tree.conflicts),
            Some(Err(error)) => Err(error.errno.unwrap()),
            other => panic!("{other:?}"),
        };
        for request in [&state, &flush, &resolve] {
            for answers in [[error(libc::ENOENT), tree(1)], [tree(1), error(libc::ENOENT)]] {
                assert_eq!(told(request, answers.into()), Ok(1), "{request:?}");
            }
            let none = vec![error(libc::ENOENT), error(libc::ENOENT)];
            assert_eq!(told(request, none), Err(libc::ENOENT), "{request:?}");
            let away = vec![tree(1), error(libc::ETIMEDOUT), error(libc::ENOENT)];
            assert_eq!(told(request, away), Err(libc::ETIMEDOUT), "it may have more: {request:?}");
        }
        assert_eq!(told(&resolve, vec![tree(0), error(libc::EINVAL)]), Ok(0));
        let is_none = vec![error(libc::ENOENT), error(libc::EINVAL), error(libc::ENOENT)];
        assert_eq!(told(&resolve, is_none), Err(libc::EINVAL));
        assert_eq!(told(&invalidate, vec![tree(0), error(libc::ENOENT)]), Err(libc::ENOENT));
    }
}
