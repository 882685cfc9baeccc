//! Which fcntl(2) command a caller is in: POSIX and OFD locks are one request to a FUSE server.
//!
//! The caller sleeps in the system call until we answer, so the kernel shows its arguments in
//! /proc/TID/syscall (proc(5)), to root and to who may trace it. It costs what a request costs,
//! and is asked once for each open file that is locked. Called by [`crate::ops::locks`].

use std::time::Duration;

/// Looks at a caller that has asked, but was not seen asleep yet: on another CPU it is on its
/// way there for some microseconds.
const LOOKS: u32 = 64;
/// From this look on we sleep in between.
const PATIENT_LOOKS: u32 = 32;
const PAUSE: Duration = Duration::from_micros(50);

/// Whether a thread that waits for our answer to a lock request asks for an OFD lock. `None` if
/// the kernel does not tell (no right, another pid namespace).
pub(crate) fn asks_for_ofd(tid: u32) -> Option<bool> {
    if tid == 0 {
        return None;
    }
    let path = format!("/proc/{tid}/syscall");
    for look in 0..LOOKS {
        let text = std::fs::read_to_string(&path).ok()?;
        if let Some(answer) = parse(&text) {
            return Some(answer);
        }
        if !text.starts_with("running") {
            return None;
        }
        if look < PATIENT_LOOKS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(PAUSE);
        }
    }
    None
}

/// `NUMBER ARGUMENT ARGUMENT ...`: the only call that can be in a lock request other than flock
/// is fcntl, whatever its number on this processor; the command is its second argument.
fn parse(text: &str) -> Option<bool> {
    let mut words = text.split_ascii_whitespace();
    let _number = words.next().filter(|n| n.bytes().all(|b| b.is_ascii_digit()))?;
    let command = words.nth(1)?.strip_prefix("0x")?;
    // Commands are ints: the upper half of the register is the caller's own.
    match u64::from_str_radix(command, 16).ok()? as u32 as i32 {
        libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => Some(true),
        _ => Some(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_the_second_argument() {
        assert_eq!(parse("72 0x3 0x25 0x7ffd 0x0 0x0 0x0 0x7ffd 0x7f5a\n"), Some(true));
        assert_eq!(parse("72 0x3 0xffffffff00000026 0x7ffd 0x0 0x0 0x0 0x1 0x2\n"), Some(true));
        assert_eq!(parse("72 0x3 0x7 0x7ffd 0x0 0x0 0x0 0x7ffd 0x7f5a\n"), Some(false));
        for other in ["running\n", "-1 0x7ffd 0x7f5a\n", "", "72 0x3\n"] {
            assert_eq!(parse(other), None);
        }
        assert_eq!(asks_for_ofd(0), None);
    }
}
