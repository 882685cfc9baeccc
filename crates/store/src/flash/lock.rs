//! The store's lock: an exclusive flock on `STORE/lock`, held by the process that uses it, given
//! back when it is dropped, and by the kernel when that process dies.

use super::error::{Flash, Result, fail};
use super::place;
use forebay_net::look;
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// File name of the lock.
pub const LOCK_NAME: &str = "lock";
/// Tries when a store is removed and made again under our eyes, or its holder may be ending.
const MAX_TRIES: u32 = 16;
/// Longest wait for a holder that is known to be ending.
const ENDING_WAIT: Duration = Duration::from_secs(10);
/// Pause between two tries.
const TRY_PAUSE: Duration = Duration::from_millis(10);

/// The lock, held.
#[derive(Debug)]
pub struct StoreLock {
    file: File,
}

impl Drop for StoreLock {
    /// By name, and not by closing the file: a child that another thread is just making has a copy
    /// of every descriptor until it runs its program, and would hold the lock so long.
    fn drop(&mut self) {
        let _unlocked = flock(&self.file, FlockOperation::Unlock);
    }
}

impl StoreLock {
    /// Takes the lock of the store; `None` if the directory has gone meanwhile. Error EBUSY if
    /// another process has it. The file then holds the process id of the holder.
    pub fn acquire(dir: &Path) -> Result<Option<StoreLock>> {
        let path = dir.join(LOCK_NAME);
        let deadline = Instant::now() + ENDING_WAIT;
        let mut tries = 0;
        while tries < MAX_TRIES {
            let opened = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
                .open(&path);
            let mut file = match opened {
                Ok(file) => file,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error).at("lock the store", &path),
            };
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => (),
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let ending = holder_is_ending(dir) && Instant::now() < deadline;
                    tries += u32::from(!ending);
                    std::thread::sleep(TRY_PAUSE);
                    continue;
                }
                Err(error) => return Err(error).at("lock the store", &path),
            }
            let ours = file.metadata().at("lock the store", &path)?;
            if !ours.is_file() || ours.uid() != rustix::process::geteuid().as_raw() {
                return Err(place::belongs_to(&path, ours.uid()));
            }
            // The store may have been removed between open and flock: then this is the lock of
            // nothing, and another process may hold that of a new store.
            match std::fs::symlink_metadata(&path) {
                Ok(now) if now.ino() == ours.ino() && now.dev() == ours.dev() => {
                    let id = std::process::id().to_string();
                    file.set_len(0)
                        .and_then(|()| file.write_all(id.as_bytes()))
                        .at("lock the store", &path)?;
                    return Ok(Some(StoreLock { file }));
                }
                _ => tries += 1,
            }
        }
        Err(in_use(dir))
    }

    /// True if some process has the lock now.
    pub fn is_held(dir: &Path) -> Result<bool> {
        let path = dir.join(LOCK_NAME);
        // Anybody may have put something there, such as a pipe that nobody writes to.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error).at("look at the store's lock", &path),
        };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
            Err(error) => Err(error).at("look at the store's lock", &path),
        }
    }
}

/// True if the process named in the lock is gone, or on its way: the kernel gives its files back
/// late, after its memory.
fn holder_is_ending(dir: &Path) -> bool {
    let holder = std::fs::read_to_string(dir.join(LOCK_NAME)).unwrap_or_default();
    holder.trim().parse().is_ok_and(look::is_ending)
}

fn in_use(dir: &Path) -> forebay_proto::control::ControlError {
    let holder = std::fs::read_to_string(dir.join(LOCK_NAME)).unwrap_or_default();
    let why = match holder.trim() {
        "" => "it is in use by another process".to_string(),
        pid => format!("it is in use by process {pid}"),
    };
    fail("use the store", dir, &why)
        .errno(libc::EBUSY)
        .hint("unmount it first (`forebay umount --keep` leaves it on flash), or wait until that process has ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_given_back_also_while_a_child_has_a_copy_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let held = StoreLock::acquire(dir.path()).unwrap().unwrap();
        // As a child has it between fork and exec.
        let copy = held.file.try_clone().unwrap();
        drop(held);
        assert!(!StoreLock::is_held(dir.path()).unwrap());
        let again = StoreLock::acquire(dir.path()).unwrap().unwrap();
        drop(copy);
        assert!(StoreLock::is_held(dir.path()).unwrap(), "the copy held nothing of the new holder");
        drop(again);
    }

    #[test]
    fn one_holder_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!StoreLock::is_held(dir.path()).unwrap());
        let held = StoreLock::acquire(dir.path()).unwrap().unwrap();
        let message = StoreLock::acquire(dir.path()).unwrap_err().to_string();
        assert!(message.contains(&format!("process {}", std::process::id())), "{message}");
        assert!(StoreLock::is_held(dir.path()).unwrap());
        drop(held);
        assert!(StoreLock::acquire(dir.path()).unwrap().is_some());
        assert!(StoreLock::acquire(&dir.path().join("absent")).unwrap().is_none());
    }
}
