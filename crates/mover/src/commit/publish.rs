//! The one step by which a tree gets its name.
//!
//! Invariant: the journal says how on flash before the name is given. Called by the commit's phases (`mod`).

use super::place::{CommitSite, There};
use super::{CommitRun, CommitStep, refused};
use crate::endpoint::Target;
use crate::fault::{Fault, Outcome};
use crate::journal::Record;
use crate::meta::Dir;
use crate::pfs::{errno, fd};
use forebay_failpoint::step;
use forebay_proto::Errno;
use forebay_proto::commit::{CommitPhase, PublishedBy};
use forebay_proto::control::PathBytes;
use rustix::fs::{AtFlags, RenameFlags};

/// Attempts, where somebody else makes or removes the name at the same moment.
const ATTEMPTS_MAX: u32 = 8;

impl CommitRun<'_> {
    /// Gives the tree its name. An error: it does not have it, for certain.
    pub(super) fn publish(&self) -> Outcome<(PublishedBy, Option<PathBytes>)> {
        let (run, commit, site) = (self.run, self.commit, self.site());
        let mut attempt = 1;
        loop {
            run.pace.check()?;
            let parent = site.parent()?;
            let there = site.there(&parent)?;
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
            run.journal.append_synced(Record::Commit(publishing))?;
            commit.set(|status| status.phase = CommitPhase::Publishing);
            step("a commit is to be published on record");
            let done = site.give_name(&parent, by, &there);
            step("the new tree may have its name");
            let Err(fault) = done else { return Ok((by, old)) };
            if self.is_published_for_certain()? {
                return Ok((by, old));
            }
            commit.set(|status| status.phase = CommitPhase::Copying);
            let moved = matches!(fault.errno, Errno::ENOENT | Errno::EEXIST | Errno::ENOTDIR);
            let attempts_max = ATTEMPTS_MAX.max(run.request.spec.retries);
            if !(moved || fault.is_retryable()) || attempt >= attempts_max {
                return Err(fault);
            }
            attempt += 1;
            run.pace.sleep(super::AWAY_PAUSE / 10)?;
        }
    }
}

impl CommitSite<'_> {
    fn give_name(&self, parent: &Dir, by: PublishedBy, there: &There) -> Outcome<()> {
        let place = self.place;
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
    pub fn is_published(&self) -> Outcome<bool> {
        let fault = Fault::target("look for the new tree");
        if self.has_version(&self.place.path).map_err(&fault)? {
            return Ok(true);
        }
        let beside = self.has_version(&self.place.staging_path).map_err(&fault)?;
        Ok(!beside)
    }

    /// Puts the names in the place's directory on stable storage.
    pub fn sync_parent(&self) -> Outcome<()> {
        self.pfs.fsync_dir(&self.parent()?)
    }
}
