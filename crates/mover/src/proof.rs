//! A file in the target directory that every server of the buffer must see, or it does not have the same file system there.
//!
//! Invariant: there is one at most, made for the first server that takes part, and removed when no server asks for it any
//! more. Called by `delegator` (each server's begin) and `run` (the end of the copying); `delegated` looks for it.

use super::endpoint::Target;
use super::fault::{Fault, Outcome};
use super::meta::{Dir, Temp, TempAt};
use super::temps::Temps;
use forebay_proto::Errno;
use parking_lot::Mutex;
use std::sync::Arc;

/// That of one run.
pub(super) struct MountProof {
    target: Arc<dyn Target>,
    temps: Arc<Temps>,
    made: Mutex<Option<ProofFile>>,
}

struct ProofFile {
    temp: Temp,
    dir: Dir,
    name: Vec<u8>,
}

impl MountProof {
    /// Not made yet.
    pub fn new(target: Arc<dyn Target>, temps: Arc<Temps>) -> MountProof {
        MountProof { target, temps, made: Mutex::new(None) }
    }

    /// Makes it in the plan's target directory if it is not there yet; its name.
    pub fn name(&self, target_top: &[u8]) -> Outcome<Vec<u8>> {
        let mut made = self.made.lock();
        if let Some(proof) = &*made {
            return Ok(proof.name.clone());
        }
        let dir = self.target.reopen(target_top, b"")?;
        let temp = self.target.begin(&dir, 0, self.temps.next())?;
        self.temps.made(target_top, b"", &temp);
        let TempAt::Pfs { name, .. } = &temp.at else {
            return Err(Fault::target("make a proof")(Errno::EBADF));
        };
        let name = name.clone();
        *made = Some(ProofFile { temp, dir, name: name.clone() });
        Ok(name)
    }

    /// Removes it; called when no server asks for it any more.
    pub fn remove(&self) {
        if let Some(proof) = self.made.lock().take()
            && self.target.abandon(&proof.temp, &proof.dir)
        {
            self.temps.gone(&proof.temp);
        }
    }
}
