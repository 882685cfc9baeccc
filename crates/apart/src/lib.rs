//! Programs that are run without copies of this process's descriptors.
//!
//! A process begins with copies of all descriptors of the one that makes it, and the kernel closes them before it runs its
//! program. A close of a file of a network file system is a request there. So a server that has files of a PFS open that does
//! not answer, for a cache or a plan of one buffer, could run no program for another one: it would not begin. Here a thread
//! with a table of descriptors of its own makes the process, which begins with the first three alone.
//!
//! Called where a server makes or grows an image, and where a mount that is not root's is unmounted.

use std::io;
use std::process::{Command, Output};

/// The first descriptor after standard input, output and errors.
const FIRST_OTHER: libc::c_uint = 3;

/// Runs a program to its end, and gives what it said.
///
/// # Errors
/// Those of starting it; how it ended is in what is given.
pub fn output(mut command: Command) -> io::Result<Output> {
    let run = move || {
        // SAFETY: plain numbers. This thread gets a table of its own, without what is above the first three, and uses
        // none of that; other threads keep theirs. Kernels before 5.9 refuse it, and nothing is changed.
        unsafe {
            libc::syscall(
                libc::SYS_close_range,
                FIRST_OTHER,
                libc::c_uint::MAX,
                libc::CLOSE_RANGE_UNSHARE,
            )
        };
        command.output()
    };
    let thread = std::thread::Builder::new().name("program".into()).spawn(run)?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that runs it panicked")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;

    #[test]
    fn a_program_begins_without_copies_of_our_files() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = File::create(dir.path().join("of-a-pfs")).unwrap();
        // Such copies that are closed when the program is run cannot be seen there: this one is not.
        let inherited = rustix::io::dup(&file).unwrap();
        let mut command = Command::new("ls");
        command.args(["-l", "/proc/self/fd"]);
        let said = output(command).unwrap();
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(said.contains("/proc/") && !said.contains("of-a-pfs"), "{said}");
        // Ours are as they were.
        file.write_all(b"bytes").unwrap();
        assert_eq!(File::from(inherited).metadata().unwrap().len(), 5);
    }

    #[test]
    fn a_program_that_is_not_there_is_told() {
        let error = output(Command::new("/no/such/program")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
