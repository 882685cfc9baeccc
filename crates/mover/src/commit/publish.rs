//! The one step by which a tree gets its name.

use super::place::There;
use super::{Commit, CommitStep, refused};
use crate::fault::{Fault, Outcome};
use crate::journal::Record;
use crate::meta::Dir;
use crate::pfs::{errno, fd};
use crate::run::Run;
use forebay_failpoint::step;
use forebay_proto::Errno;
use forebay_proto::commit::{CommitPhase, PublishedBy};
use forebay_proto::control::PathBytes;
use rustix::fs::{AtFlags, RenameFlags};

/// Attempts, where somebody else makes or removes the name at the same moment.
const ATTEMPTS_MAX: u32 = 8;

impl Run {
    /// Gives the tree its name. An error: it does not have it, for certain.
    pub(super) fn publish(&self, commit: &Commit) -> Outcome<(PublishedBy, Option<PathBytes>)> {
        let mut attempt = 1;
        loop {
            self.pace.check()?;
            let parent = self.parent_of(commit)?;
            let there = self.there(commit, &parent)?;
            let by = match (&there, commit.exchanges.get()) {
                (There::Link(_), _) | (There::Nothing, Some(false)) => PublishedBy::Symlink,
                (There::Nothing, _) => PublishedBy::Rename,
                (There::Directory, _) => PublishedBy::Exchange,
            };
            let old = match &there {
                There::Link(to) => Some(PathBytes::new(to)),
                _ => None,
            };
            let publishing = CommitStep::Publishing { by, old: old.clone() };
            self.journal.append_synced(Record::Commit(publishing))?;
            commit.set(|status| status.phase = CommitPhase::Publishing);
            step("a commit is to be published on record");
            let done = self.give_name(commit, &parent, by, &there);
            step("the new tree may have its name");
            let Err(fault) = done else { return Ok((by, old)) };
            if self.is_published_for_certain(commit)? {
                return Ok((by, old));
            }
            commit.set(|status| status.phase = CommitPhase::Copying);
            let moved = matches!(fault.errno, Errno::ENOENT | Errno::EEXIST | Errno::ENOTDIR);
            if !(moved || fault.is_retryable()) || attempt >= ATTEMPTS_MAX.max(self.spec.retries) {
                return Err(fault);
            }
            attempt += 1;
            self.pace.sleep(super::AWAY_PAUSE / 10)?;
        }
    }

    fn give_name(
        &self,
        commit: &Commit,
        parent: &Dir,
        by: PublishedBy,
        there: &There,
    ) -> Outcome<()> {
        let place = &commit.place;
        let what = match by {
            PublishedBy::Rename => "rename",
            PublishedBy::Exchange => "exchange",
            PublishedBy::Symlink => "replace symbolic link",
        };
        let fault = Fault::target(what);
        let _acting = self.pfs.act("publish", &place.name).map_err(&fault)?;
        let at = fd(parent).map_err(&fault)?;
        let flags = match by {
            PublishedBy::Rename => RenameFlags::NOREPLACE,
            PublishedBy::Exchange => RenameFlags::EXCHANGE,
            PublishedBy::Symlink => {
                let linked = match there {
                    There::Nothing => {
                        rustix::fs::symlinkat(&place.staging[..], at, &place.name[..])
                    }
                    _ => {
                        let temp = place.link_temp();
                        let _ = rustix::fs::unlinkat(at, &temp[..], AtFlags::empty());
                        rustix::fs::symlinkat(&place.staging[..], at, &temp[..])
                            .and_then(|()| rustix::fs::renameat(at, &temp[..], at, &place.name[..]))
                    }
                };
                return linked.map_err(|e| fault(errno(e)));
            }
        };
        let renamed = rustix::fs::renameat_with(at, &place.staging[..], at, &place.name[..], flags);
        renamed.map_err(|e| match errno(e) {
            Errno::EBUSY => {
                let why = "it is a mount point or the root of something mounted; name a directory \
                           below it";
                refused(Errno::EBUSY, what, why)
            }
            e => fault(e),
        })
    }

    /// Whether the tree has its name. It had it also if another commit has displaced it since:
    /// then it is not beside the place any more, and nobody else removes it from there.
    pub(super) fn is_published(&self, commit: &Commit) -> Outcome<bool> {
        let fault = Fault::target("look for the new tree");
        if self.has_version(commit, &commit.place.path).map_err(&fault)? {
            return Ok(true);
        }
        let beside = self.has_version(commit, &commit.place.staging_path).map_err(&fault)?;
        Ok(!beside)
    }

    /// Puts the names in the place's directory on stable storage.
    pub(super) fn sync_parent(&self, commit: &Commit) -> Outcome<()> {
        let parent = self.parent_of(commit)?;
        self.target.fsync_dir(&parent)
    }
}
