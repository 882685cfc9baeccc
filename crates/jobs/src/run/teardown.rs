//! The last step of a job: every mount ends, and the buffer is destroyed or given to the user. No node
//! that does not answer holds it. Called by [`Machine::drive`].

use super::record::{RECORD_NAME, ROOM_NAME};
use super::step::{Ended, Step, StepSummary};
use super::{Machine, commits, mount, served};
use crate::record_file;
use std::fs;

impl Machine {
    /// The step.
    pub(super) fn teardown(&mut self) -> StepSummary {
        let summary = StepSummary::new(Step::Teardown);
        let say = |text: &str| self.console.step(Step::Teardown, text);
        // Plans are asked for by the mount; what comes after that says by itself whom it waits for.
        let point = self.record.mount_point();
        let told = self.program.servers.tell_of_mount(point, "look for plans of");
        let waited = commits::wait(&self.record, &self.signals, &say);
        drop(told);
        if let Err(why) = waited {
            return summary.ending(Ended::Failed, why);
        }
        if let Err(why) = self.give_back() {
            return summary.ending(Ended::Failed, why);
        }
        if self.record.keep {
            // The buffer is the user's now, and nobody is to finish the job.
            let record = self.dir.join(RECORD_NAME);
            record_file::give_room(&self.dir.join(ROOM_NAME));
            return match self.signals.while_removing(|| fs::remove_file(&record)) {
                Ok(()) => summary,
                Err(error) => {
                    summary.ending(Ended::Failed, format!("remove {}: {error}", record.display()))
                }
            };
        }
        let remove = || mount::remove_job_dir(&self.record, &self.dir);
        match self.signals.while_removing(remove) {
            Ok(()) => summary,
            Err(error) => {
                summary.ending(Ended::Failed, format!("remove {}: {error}", self.dir.display()))
            }
        }
    }

    /// Ends all mounts and destroys the buffer. A node that does not answer is named, and holds
    /// nothing: its mount has no buffer any more.
    fn give_back(&self) -> Result<(), String> {
        let Some(job) = &self.record.served else { return self.unmount() };
        let say = |text: &str| self.console.step(Step::Teardown, text);
        let here = self.unmount();
        let (path, dir, signals) = (&self.program.path, &self.dir, &self.signals);
        let umount_nodes = || served::umount_nodes(&self.program, &self.record, dir, signals, &say);
        let mut nodes = umount_nodes();
        let gone = match self.record.keep || self.unasked {
            true => Ok(()),
            false => self.program.servers.destroy(job, false).map_err(|error| error.to_string()),
        };
        let mut late = Ok(());
        if self.resumed && !self.record.keep && gone.is_ok() {
            late = mount::end_late(path, &self.record, dir, signals, &say);
            if late.is_ok() {
                // What they answer now is how it is.
                nodes = umount_nodes();
            }
        }
        let results = [here, nodes, gone, late];
        let failed: Vec<String> = results.into_iter().filter_map(Result::err).collect();
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    }

    /// Unmounts, which destroys the buffer; by force if something holds it.
    fn unmount(&self) -> Result<(), String> {
        let (path, point) = (&self.program.path, self.record.mount_point());
        if !mount::is_mounted(point) {
            return Ok(());
        }
        let (dir, signals) = (&self.dir, &self.signals);
        let say = |text: &str| self.console.step(Step::Teardown, text);
        let Err(why) = mount::umount(path, &self.record, dir, false, signals, &say) else {
            return Ok(());
        };
        if mount::is_mounted(point) {
            // Everything that is to be kept is on the PFS: nobody may hold the node.
            say(&format!("{why}; detaching it by force"));
        } else if self.record.served.is_some() {
            return Ok(());
        } else {
            // The umount of a runner that was killed came first. Whether it also destroyed the
            // buffer is not known: what is mounted again is the old buffer or an empty one.
            let stopped = mount::Stopped::Bounded;
            mount::mount_again(path, &self.record, dir, signals, stopped, &say)?;
        }
        mount::umount(path, &self.record, dir, true, signals, &say)
    }
}
