//! The thread that does the deferred work on striped files ([`Keep`]): settles changes, removes objects, brings logs
//! together, and looks through objects here whose files may be no more.
//!
//! Invariant: an object is removed only when its inode's server has removed the file, or has no record of it.
//! Started when the servers of a buffer are joined; [`Keep::stop`] ends it.

use super::file::StripedFiles;
use super::keep::Keep;
use super::logged::LoggedFiles;
use super::stripes::StripeObjects;
use crate::removal::Remover;
use forebay_proto::net::servers::{ObjectsQuestion, ObjectsReply};
use forebay_proto::{Errno, ObjectId, Result, ShardId};
use forebay_store::objects::Objects;
use std::sync::Arc;
use std::time::Duration;

/// First and longest pause before what failed is tried again.
const AGAIN_FIRST: Duration = Duration::from_millis(500);
const AGAIN_LONGEST: Duration = Duration::from_secs(10);
/// Files asked about at once when objects are looked through.
const SWEEP_BATCH: usize = 1024;

/// What the thread works with.
pub(crate) struct Upkeep {
    keep: Arc<Keep>,
    objects: Arc<Objects>,
    stripes: Arc<StripeObjects>,
    striped: Arc<StripedFiles>,
    logs: Arc<LoggedFiles>,
    removal: Arc<Remover>,
}

impl Upkeep {
    /// Of what `keep` lists.
    pub(crate) fn new(
        keep: &Arc<Keep>,
        (objects, stripes): (&Arc<Objects>, &Arc<StripeObjects>),
        (striped, logs): (&Arc<StripedFiles>, &Arc<LoggedFiles>),
        removal: &Arc<Remover>,
    ) -> Upkeep {
        Upkeep {
            keep: Arc::clone(keep),
            objects: Arc::clone(objects),
            stripes: Arc::clone(stripes),
            striped: Arc::clone(striped),
            logs: Arc::clone(logs),
            removal: Arc::clone(removal),
        }
    }

    /// Starts the thread of the server of shard `mine`.
    pub(crate) fn start(self, mine: ShardId) -> Result<()> {
        let others = (0..self.stripes.server_count()).map(ShardId).filter(move |s| *s != mine);
        self.keep.begin(others);
        let keep = Arc::clone(&self.keep);
        let thread = std::thread::Builder::new()
            .name("stripes".into())
            .spawn(move || {
                let mut pause = None;
                while self.keep.wait(pause) {
                    pause = match self.work_off() {
                        true => None,
                        false => Some(pause.map_or(AGAIN_FIRST, |p| (p * 2).min(AGAIN_LONGEST))),
                    };
                }
            })
            .map_err(|e| Errno::from_io(&e))?;
        keep.has_thread(thread);
        Ok(())
    }

    /// Tries once all that is to be done; false if some is left.
    fn work_off(&self) -> bool {
        let mut all = self.settle_changes();
        all &= self.remove_again();
        let (tell, sweeps) = self.keep.looks();
        all &= self.bring_together();
        for shard in tell {
            match self.stripes.ask_objects(shard, ObjectsQuestion::Sweep, &[], &mut Vec::new()) {
                Ok(_) | Err(Errno::EIO) => self.keep.told(shard),
                Err(_) => all = false,
            }
        }
        for shard in sweeps {
            self.keep.sweeping(shard);
            if let Err(error) = self.sweep(shard) {
                tracing::debug!(server = shard.0, %error, "its files' objects are looked through later");
                // Of a server that is lost nobody knows any more which files there were: kept.
                if error != Errno::EIO {
                    self.keep.sweep_again(shard);
                    all = false;
                }
            }
        }
        all
    }

    fn settle_changes(&self) -> bool {
        let mut all = true;
        for ino in self.keep.unsettled_files() {
            if let Err(error) = self.striped.settle(ino) {
                tracing::debug!(%ino, %error, "a change that was interrupted is not settled yet");
                all = false;
            }
        }
        all
    }

    fn remove_again(&self) -> bool {
        let again = self.keep.take_again();
        if again.is_empty() {
            return true;
        }
        if let Err(error) = self.removal.remove(&again, false) {
            tracing::error!(%error, "cannot free removed files; the next start frees them");
        }
        self.keep.all_removed()
    }

    fn bring_together(&self) -> bool {
        let mut all = true;
        for ino in self.keep.take_together() {
            match self.logs.bring_next(ino) {
                Ok(false) => {}
                Ok(true) => self.keep.more_together(ino),
                Err(error) => {
                    tracing::debug!(%ino, %error, "its logs are brought together later");
                    self.keep.more_together(ino);
                    all = false;
                }
            }
        }
        all
    }

    /// Removes objects here of files that their server does not know.
    fn sweep(&self, shard: ShardId) -> Result<()> {
        let mut objects: Vec<ObjectId> = Vec::new();
        self.objects.for_each(&mut |id, _| {
            if id.ino.shard() == shard {
                objects.push(id);
            }
        })?;
        let mut removed = 0u64;
        for batch in objects.chunks(SWEEP_BATCH) {
            let question =
                ObjectsQuestion::Known { inos: batch.iter().map(|object| object.ino).collect() };
            let ObjectsReply::Known(known) =
                self.stripes.ask_objects(shard, question, &[], &mut Vec::new())?
            else {
                return Err(Errno::EPROTO);
            };
            if known.len() != batch.len() {
                return Err(Errno::EPROTO);
            }
            for (object, _) in batch.iter().zip(&known).filter(|(_, known)| !**known) {
                self.stripes.remove_object(*object)?;
                removed += 1;
            }
            let kept = batch.iter().zip(&known).filter(|(_, known)| **known);
            let logs = kept.map(|(object, _)| *object).filter(|object| object.as_log().is_some());
            removed += self.sweep_logs(shard, logs.collect())?;
        }
        if removed > 0 {
            tracing::warn!(server = shard.0, removed, "objects of files that are no more");
        }
        Ok(())
    }

    /// Removes logs here that the index of their file does not have.
    fn sweep_logs(&self, shard: ShardId, logs: Vec<ObjectId>) -> Result<u64> {
        if logs.is_empty() {
            return Ok(0);
        }
        let question = ObjectsQuestion::LogsGone { logs: logs.clone() };
        let reply = self.stripes.ask_objects(shard, question, &[], &mut Vec::new())?;
        let ObjectsReply::Known(gone) = reply else { return Err(Errno::EPROTO) };
        if gone.len() != logs.len() {
            return Err(Errno::EPROTO);
        }
        let gone: Vec<_> = logs.iter().zip(gone).filter(|(_, gone)| *gone).collect();
        gone.iter().try_for_each(|(object, _)| self.stripes.remove_object(**object))?;
        Ok(gone.len() as u64)
    }
}
