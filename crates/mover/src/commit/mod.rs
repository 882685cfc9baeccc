//! Commits: a stage-out of a tree that appears on the PFS all at once, or not at all.
//!
//! The tree is copied into a directory of its own beside the place (`place`), sealed with a
//! manifest (`seal`), given its name in one step (`publish`), and what it displaced is removed
//! (`remove`). docs/internals/COMMIT.md has the states and what a kill leaves in each.
//!
//! Invariants: nothing has the name before all is copied, fsynced, verified and listed; the order
//! of records is `Publishing` before the exchange, `Published` after it is durable, `Undoing`
//! before the first removal of an undo; what is removed is never the published tree.
//! Called by `run`, which this replaces for plans that are commits.

mod end;
mod place;
mod publish;
mod remove;
mod seal;

pub(super) use end::check_commit;
use place::CommitSite;
pub(super) use place::Place;
use seal::Sealer;

use super::fault::{Fault, Outcome, Sort, Where};
use super::journal::Record;
use super::plan::PlanFile;
use super::run::Run;
use super::stop::StopReason;
use forebay_failpoint::step;
use forebay_interfaces::tree::BufferTree;
use forebay_proto::Errno;
use forebay_proto::attr::FileKind;
use forebay_proto::commit::{CommitPhase, CommitStatus, PublishedBy};
use forebay_proto::control::{PathBytes, PlanState};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::OnceLock;
use std::time::Duration;

/// Pause before a PFS that is away is asked again whether a tree is published.
const AWAY_PAUSE: Duration = Duration::from_secs(1);
/// First pause before a step that undoes is tried again, and how often it doubles.
const AGAIN_FIRST: Duration = Duration::from_millis(100);
const AGAIN_DOUBLINGS: u32 = 5;
/// Most files of one commit: its manifest is compared in memory.
pub(super) const COMMIT_FILES_MAX: u64 = 4_000_000;

/// How far a commit has come, as its journal has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum CommitStep {
    /// All of the tree is on flash: it is the same after a power cut.
    OnFlash,
    /// The tree is complete; from here on it may have its name.
    Publishing {
        /// How it gets it.
        by: PublishedBy,
        /// Directory beside it that its symbolic link led to before.
        old: Option<PathBytes>,
    },
    /// It has its name, durably.
    Published {
        /// How it got it.
        by: PublishedBy,
        /// As in `Publishing`.
        old: Option<PathBytes>,
    },
    /// It is given up.
    Undoing {
        /// By who asked for it.
        cancelled: bool,
    },
}

/// One commit, in memory: where, and what is told of it.
pub(super) struct Commit {
    pub place: Place,
    pub keep_old: bool,
    /// A directory that no commit made may be removed.
    pub replace: bool,
    status: Mutex<CommitStatus>,
    /// Directory that the place's symbolic link led to before.
    old_link: Mutex<Option<Vec<u8>>>,
    /// Whether the PFS exchanges directories, once it was tried.
    exchanges: OnceLock<bool>,
}

impl Commit {
    /// Of a plan that is one.
    pub fn of(file: &PlanFile) -> Option<Commit> {
        let spec = file.spec.commit.as_ref()?;
        let version = file.version();
        let place = Place::of(file.spec.pfs_path.as_bytes(), &version)?;
        let phase = CommitPhase::Copying;
        let status =
            CommitStatus { version, phase, by: None, versioned: None, old: None, left: None };
        Some(Commit {
            place,
            keep_old: spec.keep_old,
            replace: spec.replace,
            status: Mutex::new(status),
            old_link: Mutex::new(None),
            exchanges: OnceLock::new(),
        })
    }

    /// What is told of it.
    pub fn status(&self) -> CommitStatus {
        self.status.lock().clone()
    }

    fn set(&self, change: impl FnOnce(&mut CommitStatus)) {
        change(&mut self.status.lock());
    }

    fn phase(&self) -> CommitPhase {
        self.status.lock().phase
    }
}

/// The phases of one run of a commit.
pub(super) struct CommitRun<'a> {
    run: &'a Run,
    commit: &'a Commit,
}

impl<'a> CommitRun<'a> {
    /// Of a run whose plan is this commit.
    pub fn new(run: &'a Run, commit: &'a Commit) -> CommitRun<'a> {
        CommitRun { run, commit }
    }

    /// Runs it to its end or until it is stopped. `None`: to be resumed.
    pub fn run(&self) -> Option<PlanState> {
        let run = self.run;
        let outcome = run.request.identity.adopt_thread().map_err(Fault::source("take identity"));
        if let Err(fault) = outcome.and_then(|()| self.to_publication()) {
            self.fail(&fault);
        }
        let stopped = run.pace.stopping();
        match self.commit.phase() {
            CommitPhase::Published => self.clean(),
            // It may have its name or not, and nobody could be asked.
            CommitPhase::Publishing => match stopped {
                Some(StopReason::Cancel) => Some(PlanState::Failed),
                _ => None,
            },
            _ if stopped == Some(StopReason::Shutdown) => None,
            _ => self.undo(stopped == Some(StopReason::Cancel)),
        }
    }

    fn site(&self) -> CommitSite<'a> {
        let (commit, pfs) = (self.commit, &self.run.pfs);
        CommitSite { pfs, place: &commit.place, may_displace: commit.replace || commit.keep_old }
    }

    /// Tells the user of a failure of the commit as a whole.
    fn fail(&self, fault: &Fault) {
        let source = self.run.request.source_path();
        self.run.completion.fail(FileKind::File, fault, source, &self.commit.place.path, 1);
    }

    /// From wherever it is until the tree has its name.
    fn to_publication(&self) -> Outcome<()> {
        let (run, commit) = (self.run, self.commit);
        let (by, old) = match run.past.commit.clone() {
            Some(CommitStep::Undoing { .. }) => {
                // The journal does not say of what kind they were.
                for error in &run.past.errors {
                    run.progress.failed(FileKind::File, error.clone());
                }
                commit.set(|status| status.phase = CommitPhase::Undoing);
                return Ok(());
            }
            Some(CommitStep::Published { by, old }) => {
                run.progress.scanned(true);
                self.tell_published(by, old.as_ref());
                return Ok(());
            }
            Some(CommitStep::Publishing { by, old }) => {
                run.progress.scanned(true);
                commit.set(|status| status.phase = CommitPhase::Publishing);
                let _ = commit.exchanges.set(by != PublishedBy::Symlink);
                match self.is_published_for_certain()? {
                    true => (by, old),
                    false => self.publish()?,
                }
            }
            begun @ (None | Some(CommitStep::OnFlash)) => {
                if begun.is_none() {
                    self.put_source_on_flash()?;
                }
                self.copy_tree()?;
                self.publish()?
            }
        };
        self.keep_published(by, old)
    }

    /// What the application wrote may be in memory only, and a power cut would leave a part of it, which the next
    /// server could not tell from the tree that was to be committed.
    fn put_source_on_flash(&self) -> Outcome<()> {
        let (run, what) = (self.run, "put the tree on flash");
        if run.request.is_of_another_boot {
            let why = "the node went down before all of the tree was on its flash, and a part may \
                       be missing; look at it, and commit it again";
            return Err(Fault::of(Sort::Refused, Where::Source, what, why));
        }
        let _on_flash = run.pace.on_flash();
        let synced = |_| run.tree.sync_all().map_err(Fault::source(what));
        run.retry.call(synced).map_err(|(fault, _)| fault)?;
        run.journal.append_synced(Record::Commit(CommitStep::OnFlash))?;
        step("the tree of a commit is on flash");
        Ok(())
    }

    /// All files beside the place, sealed.
    fn copy_tree(&self) -> Outcome<()> {
        let (run, site) = (self.run, self.site());
        run.watch.check()?;
        self.remove_leftovers();
        let by = run.retry.call(|_| site.prepare()).map_err(|(fault, _)| fault)?;
        let _ = self.commit.exchanges.set(by != PublishedBy::Symlink);
        step("a commit has its directory beside the place");
        run.temps.sweep(&run.dirs.top(), run.past.dirs.iter().cloned().collect());
        run.copy_all()?;
        self.no_failures()?;
        run.make_links()?;
        self.no_failures()?;
        // What comes into the top has to come before its mode.
        run.dirs.finish(|| self.seal())?;
        self.no_failures()?;
        run.target.sync()?;
        run.watch.check()
    }

    fn seal(&self) -> Outcome<()> {
        let run = self.run;
        let sealer = Sealer {
            request: &run.request,
            place: &self.commit.place,
            source: &*run.source,
            pfs: &run.pfs,
            journal: &run.journal,
            progress: &run.progress,
            pace: &run.pace,
        };
        run.retry.call(|_| sealer.seal()).map_err(|(fault, _)| fault)
    }

    /// Nothing is published of a tree that misses a file.
    fn no_failures(&self) -> Outcome<()> {
        self.run.pace.check()?;
        match self.run.progress.files_failed() {
            0 => Ok(()),
            _ => Err(Fault::stopped()),
        }
    }

    /// The tree has its name: makes that durable, and puts it on record.
    fn keep_published(&self, by: PublishedBy, old: Option<PathBytes>) -> Outcome<()> {
        self.until_answered(|| self.site().sync_parent())?;
        step("the new tree has its name, durably");
        let published = CommitStep::Published { by, old: old.clone() };
        self.run.journal.append_synced(Record::Commit(published))?;
        step("a commit is published on record");
        self.tell_published(by, old.as_ref());
        Ok(())
    }

    fn tell_published(&self, by: PublishedBy, old: Option<&PathBytes>) {
        let commit = self.commit;
        *commit.old_link.lock() = old.map(|old| old.as_bytes().to_vec());
        commit.place.displaced(by, old, commit);
        commit.set(|status| {
            status.phase = CommitPhase::Published;
            status.by = Some(by);
            status.versioned = Some(PathBytes::new(&commit.place.versioned()));
        });
        tracing::info!(plan = %self.run.request.plan, path = %PathBytes::new(&commit.place.path),
            ?by, version = %commit.place.version, "commit published");
    }

    /// Asks the PFS whether the tree has its name, until it answers.
    fn is_published_for_certain(&self) -> Outcome<bool> {
        self.until_answered(|| {
            self.run.watch.check()?;
            self.site().is_published()
        })
    }

    /// Repeats what must be known or done before anything else can be, while the PFS is away.
    fn until_answered<T>(&self, mut step: impl FnMut() -> Outcome<T>) -> Outcome<T> {
        loop {
            match step() {
                Err(fault) if !fault.is_stop() => {
                    tracing::warn!(plan = %self.run.request.plan, what = fault.what,
                        errno = %fault.errno, "the PFS does not say whether the tree is published; asked again");
                    self.run.pace.sleep(AWAY_PAUSE).map_err(|_| Fault {
                        why: Some(format!(
                            "{}; whether the tree is published cannot be told: look there",
                            fault.errno
                        )),
                        ..fault
                    })?;
                }
                answered => return answered,
            }
        }
    }

    /// Removes what was displaced. The commit is done whatever comes of it.
    fn clean(&self) -> Option<PlanState> {
        let (run, commit) = (self.run, self.commit);
        let cleaned = self.retrying_unasked(|| self.clean_once());
        if run.pace.stopping() == Some(StopReason::Shutdown) && cleaned.is_err() {
            return None;
        }
        if let Err(fault) = cleaned {
            let left = PathBytes::new(&commit.place.staging_path);
            tracing::warn!(plan = %run.request.plan, path = %left, errno = %fault.errno,
                "the tree that a commit displaced could not be removed");
            commit.set(|status| status.left = Some(left));
        }
        Some(PlanState::Done)
    }

    /// Removes what was copied; the old tree is what it was.
    fn undo(&self, cancelled: bool) -> Option<PlanState> {
        let (run, commit) = (self.run, self.commit);
        let cancelled = match run.past.commit {
            Some(CommitStep::Undoing { cancelled }) => cancelled,
            _ => {
                let record = Record::Commit(CommitStep::Undoing { cancelled });
                if let Err(fault) = run.journal.append_synced(record) {
                    self.fail(&fault);
                    return Some(PlanState::Failed);
                }
                step("a commit is given up on record");
                cancelled
            }
        };
        commit.set(|status| status.phase = CommitPhase::Undoing);
        let undone = self.retrying_unasked(|| self.undo_once());
        if run.pace.stopping() == Some(StopReason::Shutdown) && undone.is_err() {
            return None;
        }
        match undone {
            Ok(()) => commit.set(|status| status.phase = CommitPhase::Undone),
            Err(fault) => {
                let left = PathBytes::new(&commit.place.staging_path);
                let why = format!(
                    "{}; {left} stays; your next commit to the same place removes it",
                    fault.errno
                );
                let fault = Fault { why: Some(why), what: "remove what was copied", ..fault };
                self.fail(&fault);
                commit.set(|status| {
                    status.phase = CommitPhase::Undone;
                    status.left = Some(left);
                });
            }
        }
        Some(if cancelled { PlanState::Cancelled } else { PlanState::Failed })
    }

    /// Retries as the plan's files are, but also when the plan is being stopped (but for a
    /// shutdown): leaving things behind is worse than being late.
    fn retrying_unasked(&self, mut step: impl FnMut() -> Outcome<()>) -> Outcome<()> {
        let mut attempt = 0;
        loop {
            match step() {
                // Not empty: another server that could not be told was still writing there.
                Err(fault)
                    if (fault.is_retryable() || fault.errno == Errno::ENOTEMPTY)
                        && attempt < self.run.request.spec.retries =>
                {
                    attempt += 1;
                    std::thread::sleep(AGAIN_FIRST * (1 << attempt.min(AGAIN_DOUBLINGS)));
                }
                done => return done,
            }
            if self.run.pace.stopping() == Some(StopReason::Shutdown) {
                return Err(Fault::stopped());
            }
        }
    }
}

/// A refusal with an errno, of the place.
fn refused(errno: Errno, what: &'static str, why: impl Into<String>) -> Fault {
    Fault { errno, ..Fault::of(Sort::Refused, Where::Target, what, why) }
}
