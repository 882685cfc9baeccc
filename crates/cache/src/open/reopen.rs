//! Opens that mounts have from before a restart of the server, or of their session.

use super::super::attach::Opening;
use super::Opens;
use forebay_credentials::acting::Who;
use forebay_proto::attr::FileKind;
use forebay_proto::{Errno, Ino, Result};
use std::os::fd::AsFd;

/// How often a file is looked for again that is forgotten, or drained, while a mount says that it has it open.
const REOPEN_TRIES: u32 = 3;

impl Opens {
    /// Opens that a mount has from before a restart of the server, or of its session. `local`: its
    /// kernel has the object. `may_have_written`: and may have written it while nobody knew. True
    /// if a kernel may be writing it; ESTALE if the file is gone.
    pub fn reopen(
        &self,
        ino: Ino,
        count: u64,
        local: bool,
        may_have_written: bool,
    ) -> Result<bool> {
        let known = self.nodes.get(ino)?;
        if known.kind != FileKind::File {
            return Err(Errno::ESTALE);
        }
        // The mount has it open whatever the metadata server knows; at the next start all counts as written.
        let _writing = self.ownership.may_write(ino).inspect_err(|error| {
            tracing::warn!(%ino, %error, "the metadata server does not hear that a file may be written");
        });
        let opening = self.file_to_reopen(ino)?;
        let file = opening.file();
        let _meta = file.meta.lock();
        let mut state = file.state.lock();
        if state.is_gone() {
            return Err(Errno::ESTALE);
        }
        if may_have_written && !state.is_lost() {
            // Read once at its close, as after any write by a kernel.
            self.data.mark_dirty(file, &mut state)?;
            state.save(&self.flash, file, |record| record.whole = true)?;
            state.evidence.forget_open();
        }
        state.opens.add(count);
        if local {
            state.opens.add_by_kernel(count);
            if may_have_written && !state.is_lost() {
                self.kernel_may_write(&mut state);
                self.flash.opened_to_write(file.ino);
            }
        }
        Ok(state.record.whole)
    }

    /// What is on flash of a file that a mount has open. Nothing of it is forgotten any more; what is just being forgotten
    /// is made anew: its name is there.
    fn file_to_reopen(&self, ino: Ino) -> Result<Opening> {
        let mut tries = 0;
        loop {
            let known = self.nodes.get(ino)?;
            if let Some(opening) = known.file.and_then(Opening::of) {
                return Ok(opening);
            }
            let who = &known.who;
            let fd = self.inodes.open_node(ino, &Who::server());
            let fd = fd.or_else(|_| self.inodes.open_node(ino, who))?;
            let stat = self.pfs.stat_fd(fd.as_fd())?;
            match self.cached_files.attach_to_open(ino, &stat, who) {
                Err(Errno::ESTALE) if tries < REOPEN_TRIES => tries += 1,
                opening => return opening,
            }
        }
    }
}
