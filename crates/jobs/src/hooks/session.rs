//! What the hooks know of a job's buffer, or of a persistent one: a record for each token in
//! `STATE_DIR/sessions/TOKEN.json`, and in `STATE_DIR/kept/` that of a job whose results did not all reach the PFS.
//!
//! Invariants: a record is a whole one (written beside, fsynced, renamed), and changed under one lock
//! ([`Sessions::change`]), so that a hook that a teardown has overtaken cannot bring its session back; the name of a
//! buffer and the token that makes it one are on record before a server is asked for it, so that whatever is killed,
//! the next call finds the buffer or knows that there is none. What is on record is the schedulers' view: it answers
//! without a server.

use super::refusal::{NO_SESSION, Refusal};
use crate::record_file;
use crate::request::JobRequest;
use forebay_proto::PlanId;
use forebay_proto::control::{ControlError, PathBytes};
use forebay_proto::net::ledger::BufferName;
use forebay_proto::net::node::SessionName;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Format of the record; another one is refused by name.
pub const SESSION_FORMAT: u32 = 1;
/// Most records that are listed.
const MAX_LISTED: usize = 100_000;

/// Whose buffer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SessionKind {
    /// A job's; the token is its number.
    Job,
    /// A persistent one; the token is its name.
    Persistent,
}

/// A node of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionNode {
    /// As the scheduler calls it.
    pub name: String,
    /// As it calls itself, once it has mounted.
    pub host: Option<String>,
    /// Something may be mounted there.
    pub mounted: bool,
}

/// A plan that was started for a line of the script.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionPlan {
    /// Line of the directive.
    pub line: u32,
    /// The node whose namespace it is about, if each has one.
    pub node: Option<String>,
    /// The server's plan.
    pub plan: PlanId,
}

/// A persistent buffer that is a cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersistentCache {
    /// The PFS directory; none before the script of the job that makes it was read.
    pub pfs: Option<PathBytes>,
    /// Read-only, a copy on each server.
    pub ldbalance: bool,
}

/// What is known of one token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// [`SESSION_FORMAT`].
    pub format: u32,
    /// The scheduler's name for it.
    pub token: SessionName,
    /// Whose it is.
    pub kind: SessionKind,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Seconds since 1970.
    pub created_s: u64,
    /// Pool, by the name that scripts use.
    pub pool: String,
    /// Its own buffer; none: the job uses persistent ones, or has only asked to make or destroy some.
    pub buffer: Option<BufferName>,
    /// Makes the creation one, however often it is asked for.
    pub create_token: String,
    /// The buffer was made.
    pub made: bool,
    /// Capacity: as asked for, and as it is once the buffer is made.
    pub capacity_bytes: u64,
    /// What the script asks for; `None` for a persistent buffer.
    pub request: Option<JobRequest>,
    /// Of a persistent buffer: it is a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_cache: Option<PersistentCache>,
    /// Nodes of the job, once they are known.
    pub nodes: Vec<SessionNode>,
    /// The job may have started: what is in the buffer is its results.
    pub ran: bool,
    /// All results are on the PFS.
    pub results_safe: bool,
    /// Plans that were started.
    pub plans: Vec<SessionPlan>,
    /// Why results are missing on the PFS, a line each.
    pub missing: Vec<String>,
}

impl Session {
    /// Swap space that the job has on each of its nodes.
    pub fn swap_bytes_per_node(&self) -> u64 {
        self.request.as_ref().map_or(0, |request| request.swap_bytes_per_node)
    }

    /// The PFS directory that its buffer caches, if it is a cache.
    pub fn cached(&self) -> Option<&PathBytes> {
        let of_job = self.request.as_ref().and_then(|request| request.cache.as_ref());
        of_job.or_else(|| self.persistent_cache.as_ref().and_then(|cache| cache.pfs.as_ref()))
    }

    /// True if its buffer is a cache.
    pub fn is_cache(&self) -> bool {
        self.persistent_cache.is_some() || self.cached().is_some()
    }

    /// The buffer of a persistent cache that jobs may write to.
    pub fn writable_cache(&self) -> Option<&BufferName> {
        let writable = self.persistent_cache.as_ref().is_some_and(|cache| !cache.ldbalance);
        self.buffer.as_ref().filter(|_| writable)
    }

    /// True of a persistent buffer that was asked for and is not made.
    pub fn is_unmade(&self) -> bool {
        self.kind == SessionKind::Persistent && !self.made
    }

    /// True if the buffer holds results that the PFS may not have.
    pub fn holds_results(&self) -> bool {
        self.kind == SessionKind::Job && self.made && self.ran && !self.results_safe
    }
}

/// All sessions of a site.
#[derive(Clone, Debug)]
pub struct Sessions {
    dir: PathBuf,
}

const LIVE: &str = "sessions";
const KEPT: &str = "kept";
const LOCK: &str = "lock";
/// What to do if the record may not be used.
const OWN: &str =
    "state_dir in the site's configuration, and all in it, must be the scheduler's user's own";

/// Opens a log in the state directory for appending; a new one is of whom that directory is.
///
/// # Errors
/// Those of the file system.
pub fn open_log(state_dir: &Path, name: &str) -> io::Result<File> {
    record_file::open_in(state_dir, name)
}

impl Sessions {
    /// In this directory, which is made.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn open(state_dir: &Path) -> Result<Sessions, ControlError> {
        for name in [LIVE, KEPT] {
            record_file::create_dir_in(state_dir, name).map_err(|error| {
                let dir = state_dir.join(name);
                ControlError::io("make the directory of the sessions", Some(&dir), &error).hint(OWN)
            })?;
        }
        Ok(Sessions { dir: state_dir.to_path_buf() })
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn path(&self, token: &SessionName) -> PathBuf {
        self.dir.join(LIVE).join(format!("{token}.json"))
    }

    fn failed(&self, path: &Path, error: &io::Error) -> ControlError {
        let failed = ControlError::io("use the record of the session", Some(path), error);
        match error.kind() {
            io::ErrorKind::PermissionDenied => failed.hint(OWN),
            _ => failed,
        }
    }

    /// The session of a token.
    ///
    /// # Errors
    /// If its record cannot be read.
    pub fn load(&self, token: &SessionName) -> Result<Option<Session>, ControlError> {
        let path = self.path(token);
        read(&path).map_err(|error| self.failed(&path, &error))
    }

    /// Changes the session of a token as `change` says, which gets what is on record and leaves what is to be;
    /// under the lock of all sessions.
    ///
    /// # Errors
    /// If it cannot be read or written, or what `change` says.
    pub fn change<T>(
        &self,
        token: &SessionName,
        change: impl FnOnce(&mut Option<Session>) -> Result<T, ControlError>,
    ) -> Result<T, ControlError> {
        let _lock = self.lock()?;
        let path = self.path(token);
        let mut session = read(&path).map_err(|error| self.failed(&path, &error))?;
        let before = session.clone();
        let result = change(&mut session)?;
        if session != before {
            let written = match &session {
                Some(session) => write(&path, session),
                None => fs::remove_file(&path).and_then(|()| record_file::sync_dir_of(&path)),
            };
            written.map_err(|error| self.failed(&path, &error))?;
        }
        Ok(result)
    }

    /// The session of a token, which must be there.
    ///
    /// # Errors
    /// [`NO_SESSION`], or that its record cannot be read.
    pub(super) fn find(&self, token: &SessionName) -> Result<Session, Refusal> {
        self.load(token)?.ok_or_else(|| Refusal::new(NO_SESSION))
    }

    /// Changes what is on record of a session, if it is still that session's: another one may have its token by now. True if
    /// it is.
    ///
    /// # Errors
    /// As [`Self::change`].
    pub(super) fn note(
        &self,
        session: &Session,
        change: impl FnOnce(&mut Session),
    ) -> Result<bool, ControlError> {
        self.change(&session.token, |found| {
            let same = found.as_mut().filter(|found| found.buffer == session.buffer);
            Ok(same.map(change).is_some())
        })
    }

    /// Forgets a session, if it is still that session's.
    ///
    /// # Errors
    /// As [`Self::change`].
    pub(super) fn forget(&self, session: &Session) -> Result<(), ControlError> {
        self.change(&session.token, |found| {
            // Another job may have the token by now.
            if found.as_ref().is_some_and(|found| found.buffer == session.buffer) {
                *found = None;
            }
            Ok(())
        })
    }

    /// True if a session is still on record, or kept: it was not torn down meanwhile.
    pub(super) fn is_there(&self, session: &Session) -> bool {
        let live = self
            .load(&session.token)
            .is_ok_and(|found| found.is_some_and(|found| found.buffer == session.buffer));
        live || self
            .list_kept()
            .is_ok_and(|kept| kept.iter().any(|kept| kept.buffer == session.buffer))
    }

    fn lock(&self) -> Result<File, ControlError> {
        let path = self.dir.join(LOCK);
        let opened = record_file::open_in(&self.dir, LOCK);
        let file = opened.map_err(|error| self.failed(&path, &error))?;
        flock(&file, FlockOperation::LockExclusive)
            .map_err(|error| self.failed(&path, &error.into()))?;
        Ok(file)
    }

    /// Puts the record of a job aside whose buffer holds results; the token is free for another job.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn keep(&self, session: &Session) -> Result<(), ControlError> {
        let _lock = self.lock()?;
        let Some(buffer) = &session.buffer else { return Ok(()) };
        let kept = self.dir.join(KEPT).join(format!("{buffer}.json"));
        let live = self.path(&session.token);
        write(&kept, session).map_err(|error| self.failed(&kept, &error))?;
        match fs::remove_file(&live) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(self.failed(&live, &error))
            }
            _ => Ok(()),
        }
    }

    /// Forgets a kept job.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn forget_kept(&self, buffer: &BufferName) -> Result<(), ControlError> {
        let path = self.dir.join(KEPT).join(format!("{buffer}.json"));
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(self.failed(&path, &error))
            }
            _ => Ok(()),
        }
    }

    /// All sessions, by their age.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub fn list(&self) -> Result<Vec<Session>, ControlError> {
        self.all(LIVE)
    }

    /// Jobs whose results did not all reach the PFS, by their age.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub fn list_kept(&self) -> Result<Vec<Session>, ControlError> {
        self.all(KEPT)
    }

    fn all(&self, kind: &str) -> Result<Vec<Session>, ControlError> {
        let dir = self.dir.join(kind);
        let entries = fs::read_dir(&dir).map_err(|error| self.failed(&dir, &error))?;
        let mut found = Vec::new();
        for entry in entries.take(MAX_LISTED) {
            let path = entry.map_err(|error| self.failed(&dir, &error))?.path();
            if path.extension().is_none_or(|ending| ending != "json") {
                continue;
            }
            // One that goes meanwhile is not there.
            found.extend(read(&path).map_err(|error| self.failed(&path, &error))?);
        }
        found.sort_by_key(|session: &Session| (session.created_s, session.token.clone()));
        Ok(found)
    }
}

fn read(path: &Path) -> io::Result<Option<Session>> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes?,
    };
    #[derive(Deserialize)]
    struct Head {
        format: u32,
    }
    let head: Head = serde_json::from_slice(&bytes)
        .map_err(|error| io::Error::other(format!("it is damaged: {error}")))?;
    if head.format != SESSION_FORMAT {
        let text = format!("format {}, this program reads {SESSION_FORMAT}", head.format);
        return Err(io::Error::other(text));
    }
    let session = serde_json::from_slice(&bytes)
        .map_err(|error| io::Error::other(format!("it is damaged: {error}")))?;
    Ok(Some(session))
}

fn write(path: &Path, session: &Session) -> io::Result<()> {
    record_file::replace_of_owner(path, session)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn session(token: &str) -> Session {
        Session {
            format: SESSION_FORMAT,
            token: token.parse().unwrap(),
            kind: SessionKind::Job,
            uid: 1000,
            gid: 100,
            created_s: 7,
            pool: "p".into(),
            buffer: Some(format!("job-{token}-ab").parse().unwrap()),
            create_token: "t".into(),
            made: true,
            capacity_bytes: 1 << 30,
            request: None,
            persistent_cache: None,
            nodes: Vec::new(),
            ran: true,
            results_safe: false,
            plans: Vec::new(),
            missing: Vec::new(),
        }
    }

    #[test]
    fn a_session_that_was_torn_down_does_not_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = Sessions::open(dir.path()).unwrap();
        let token: SessionName = "17".parse().unwrap();
        let begin = |found: &mut Option<Session>| {
            *found = Some(session("17"));
            Ok(())
        };
        sessions.change(&token, begin).unwrap();
        assert_eq!(sessions.load(&token).unwrap(), Some(session("17")));
        sessions
            .change(&token, |found| {
                *found = None;
                Ok(())
            })
            .unwrap();
        // A hook that still runs for it finds nothing to change.
        let late = sessions.change(&token, |found| Ok(found.as_mut().map(|s| s.ran = true)));
        assert_eq!(late.unwrap(), None);
        assert!(sessions.list().unwrap().is_empty());
    }

    #[test]
    fn a_kept_job_frees_its_token() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = Sessions::open(dir.path()).unwrap();
        let token: SessionName = "17".parse().unwrap();
        sessions
            .change(&token, |found| {
                *found = Some(session("17"));
                Ok(())
            })
            .unwrap();
        sessions.keep(&session("17")).unwrap();
        assert_eq!(sessions.load(&token).unwrap(), None);
        assert_eq!(sessions.list_kept().unwrap(), [session("17")]);
        sessions.forget_kept(&"job-17-ab".parse().unwrap()).unwrap();
        assert!(sessions.list_kept().unwrap().is_empty());
    }
}
