//! The kernel's latency limit: `/dev/cpu_dma_latency`, one open file of it.
//!
//! A write of a 32-bit number sets the limit of this open file in us; the smallest of all open files counts for the
//! whole node; closing takes it back (kernel/power/qos.c). Used by the keeper's thread only.

use std::fs::{File, OpenOptions};
use std::io::{Result, Write};
use std::os::unix::fs::OpenOptionsExt;

/// Where the kernel is told.
pub(crate) const PATH: &str = "/dev/cpu_dma_latency";

/// What is asked for, in us: the lightest sleep of processors (C1) takes 1 or 2.
pub(crate) const LIMIT_US: i32 = 2;

/// No limit: PM_QOS_CPU_LATENCY_DEFAULT_VALUE of include/linux/pm_qos.h, in us.
const NO_LIMIT_US: i32 = 2000 * 1_000_000;

/// The driver of guests of a hypervisor. It calls its only sleep, a halt that the hypervisor must
/// end, one of 1 us, and polls only for a limit of 0.
const GUEST_DRIVER: &str = "haltpoll";

/// The open file.
pub(crate) struct Limit {
    file: File,
    ask_us: i32,
}

impl Limit {
    /// Opens it without asking for anything. EACCES for who is not root, ENOENT where a container hides it.
    pub(crate) fn open() -> Result<Limit> {
        let mut file = OpenOptions::new().write(true).custom_flags(libc::O_CLOEXEC).open(PATH)?;
        file.write_all(&NO_LIMIT_US.to_ne_bytes())?;
        let driver = std::fs::read_to_string("/sys/devices/system/cpu/cpuidle/current_driver");
        let guest = driver.is_ok_and(|driver| driver.trim() == GUEST_DRIVER);
        Ok(Limit { file, ask_us: if guest { 0 } else { LIMIT_US } })
    }

    pub(crate) fn ask(&mut self) -> Result<()> {
        self.file.write_all(&self.ask_us.to_ne_bytes())
    }

    pub(crate) fn give_up(&mut self) {
        // It was written to before, so this cannot fail; if it does, the processors stay awake
        // until the next burst's end.
        if let Err(error) = self.file.write_all(&NO_LIMIT_US.to_ne_bytes()) {
            tracing::warn!(%error, path = PATH, "cannot let processors sleep again");
        }
    }
}

/// The limit of the node, all open files together, in us.
#[cfg(test)]
pub(crate) fn in_force() -> Result<i32> {
    use std::io::Read;
    let mut bytes = [0; 4];
    File::open(PATH)?.read_exact(&mut bytes)?;
    Ok(i32::from_ne_bytes(bytes))
}
