//! Ending the process while threads of it hang in calls on a PFS that does not answer.
//!
//! The kernel gives back what a process held when its last thread is gone, and a thread that waits
//! for a PFS goes when the PFS answers, if ever. So it is given back here: the store's lock and
//! files, `/dev/fuse`, and the connections, whose end tells those who asked that the process has
//! ended. Closing a file of the PFS may hang too (it is flushed), and nothing can tell without
//! hanging which PFS still answers: what is surely not on one is closed first, the rest by a
//! thread that is not waited for long. A database that is mapped holds its file system as an open file does: other memory takes its
//! place.
//!
//! Other threads run until the end, and what they find closed or unmapped may make one of them fail in a deadly way. That ends
//! the process as well, but for a dump of its memory: the kernel gathers all threads for one, so the process would wait for those
//! that hang. So there is none. Called by `ending`, at the very end.

use forebay_store::flash::Store;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::collections::HashSet;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// Longest wait for files that may lie on a PFS to be closed.
const CLOSE_WAIT: Duration = Duration::from_secs(1);
/// Descriptors that stay: standard input, output, errors.
const STANDARD: i32 = 2;

/// When a descriptor is closed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// At once: it is not a file of a PFS.
    First,
    /// Its mount is no longer in the table: most likely a store that was destroyed.
    Second,
    /// It may lie on a PFS.
    Last,
}

/// Gives back what the process holds and ends it. Nothing of it runs any more: a thread that hangs
/// dies when its call returns.
pub fn without_hanging_threads(store: &Store, code: i32) -> ! {
    let mut open = open_files(store);
    open.sort_unstable();
    let databases = mapped_databases(&fs::read("/proc/self/maps").unwrap_or_default());
    // After the looks at /proc: whose memory is not to be dumped is hidden there from other users.
    dump_nothing();
    // No number of a descriptor may be given out again: another thread could write through an
    // old one to what is no longer its file.
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    if setrlimit(Resource::Nofile, none).is_ok() {
        let at = open.partition_point(|(turn, _)| *turn == Turn::First);
        let rest = open.split_off(at);
        close_all(&open);
        let (done, wait) = mpsc::channel();
        let closing = std::thread::Builder::new().spawn(move || {
            close_all(&rest);
            // Nobody waits any more: the process has ended.
            let _ = done.send(());
        });
        if closing.is_ok() {
            let _ = wait.recv_timeout(CLOSE_WAIT);
        }
        // Last: who still reads in them may end the process at once. Nothing can be written by what was read there.
        unmap_all(&databases);
    }
    // SAFETY: ends the process without running anything of it, which would use what was closed.
    unsafe { libc::_exit(code) }
}

/// From now on a signal that is deadly ends this process at once, without a core dump (prctl(2)).
fn dump_nothing() {
    let no: libc::c_ulong = 0;
    // SAFETY: plain numbers. It fails for no process with this one.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, no) };
}

fn close_all(open: &[(Turn, i32)]) {
    for (_, fd) in open {
        // SAFETY: no descriptor can be opened any more, so calls through this one fail with
        // EBADF from now on and reach no other file; this process is about to end.
        unsafe { libc::close(*fd) };
    }
}

/// Where the files of namespace databases are mapped: addresses and lengths, from lines of /proc/self/maps (proc(5)).
fn mapped_databases(maps: &[u8]) -> Vec<(usize, usize)> {
    let is_database = |line: &str| {
        let path = line.strip_suffix(" (deleted)").unwrap_or(line);
        path.ends_with("/data.mdb") || path.ends_with("/lock.mdb")
    };
    let place = |line: &str| {
        let (from, to) = line.split_whitespace().next()?.split_once('-')?;
        let from = usize::from_str_radix(from, 16).ok()?;
        Some((from, usize::from_str_radix(to, 16).ok()?.checked_sub(from)?))
    };
    let text = String::from_utf8_lossy(maps);
    text.lines().filter(|line| is_database(line)).filter_map(place).collect()
}

/// Puts empty memory in the place of what is mapped, so that a thread which still runs finds some there.
fn unmap_all(mapped: &[(usize, usize)]) {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    for (from, length) in mapped {
        let from = std::ptr::with_exposed_provenance_mut::<libc::c_void>(*from);
        // SAFETY: the place is that of a database of this process, which is about to end and uses it no more; a thread that is still
        // in it reads zeros, and what it writes reaches no file.
        unsafe { libc::mmap(from, *length, access, flags, -1, 0) };
    }
}

/// The descriptors of this process but the standard three. Nothing here asks a file system but
/// /proc and the store's.
fn open_files(store: &Store) -> Vec<(Turn, i32)> {
    let own: HashSet<u64> = [store.dir().to_path_buf(), store.data_dir(), store.meta_dir()]
        .iter()
        .filter_map(|dir| mount_of_path(dir))
        .collect();
    let listed = mounts();
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let above = numbers.filter(|fd| *fd > STANDARD);
    above.map(|fd| (turn(fd, &own, &listed), fd)).collect()
}

fn turn(fd: i32, own: &HashSet<u64>, listed: &HashSet<u64>) -> Turn {
    let link = fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    let name = link.as_os_str().as_bytes();
    // Sockets and pipes have no path.
    let is_kernels = !name.starts_with(b"/") || link.starts_with("/dev/fuse");
    match mount_of(fd) {
        _ if is_kernels => Turn::First,
        Some(mount) if own.contains(&mount) => Turn::First,
        Some(mount) if !listed.contains(&mount) => Turn::Second,
        _ => Turn::Last,
    }
}

/// The number of the mount that a directory lies on.
fn mount_of_path(dir: &Path) -> Option<u64> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(dir, flags, Mode::empty()).ok()?;
    mount_of(opened.as_raw_fd())
}

/// The number of the mount that an open file lies on (proc(5), fdinfo).
fn mount_of(fd: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
    line.trim().parse().ok()
}

/// Numbers of all mounts that are in the table.
fn mounts() -> HashSet<u64> {
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let lines = table.split(|byte| *byte == b'\n');
    let first = lines.filter_map(|line| line.split(|byte| *byte == b' ').next());
    first.filter_map(|number| std::str::from_utf8(number).ok()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_and_the_stores_files_are_closed_before_others() {
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = fs::File::create(dir.path().join("object")).unwrap();
        let mount = mount_of(file.as_raw_fd()).unwrap();
        let listed = mounts();
        assert!(listed.contains(&mount));
        let own = HashSet::from([mount]);
        let none = HashSet::new();
        assert!(turn(socket.as_raw_fd(), &none, &listed) == Turn::First);
        assert!(turn(file.as_raw_fd(), &own, &listed) == Turn::First);
        assert!(turn(file.as_raw_fd(), &none, &listed) == Turn::Last);
        assert!(turn(file.as_raw_fd(), &none, &none) == Turn::Second);
    }

    #[test]
    fn a_thread_that_fails_at_the_end_makes_nobody_wait_for_a_dump() {
        // SAFETY: a process of its own, since it is for good: it makes two calls and ends.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            dump_nothing();
            // SAFETY: plain numbers.
            unsafe { libc::_exit(libc::prctl(libc::PR_GET_DUMPABLE)) };
        }
        let mut status = -1;
        // SAFETY: our own child, and a place for the answer.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status}");
    }

    #[test]
    fn databases_are_found_where_they_are_mapped() {
        let maps =
            b"7f0000000000-7f0000100000 r--s 00000000 07:00 133 /run/forebay-1/fs/meta/data.mdb\n\
                     7f0000200000-7f0000202000 rw-s 00000000 07:00 134 /meta/lock.mdb (deleted)\n\
                     7f0000300000-7f0000400000 r-xp 00000000 fe:00 135 /usr/lib/libc.so.6\n\
                     7f0000500000-7f0000600000 rw-p 00000000 00:00 0 \n";
        let found = mapped_databases(maps);
        assert_eq!(found, [(0x7f00_0000_0000, 0x10_0000), (0x7f00_0020_0000, 0x2000)]);
        assert!(mapped_databases(b"").is_empty());
    }

    #[test]
    fn what_is_unmapped_is_free_and_can_still_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data.mdb");
        fs::write(&path, [7u8; 4096]).unwrap();
        let file = fs::File::open(&path).unwrap();
        let (access, flags) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: a new mapping of an open file, which nothing else uses.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, flags, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let mapped = || mapped_databases(&fs::read("/proc/self/maps").unwrap());
        let here = (at.expose_provenance(), 4096);
        assert!(mapped().contains(&here));
        unmap_all(&[here]);
        assert!(!mapped().contains(&here));
        // SAFETY: the memory that took its place, of the same length.
        let read = unsafe { at.cast::<u8>().read_volatile() };
        assert_eq!(read, 0);
        // SAFETY: nothing uses it.
        unsafe { libc::munmap(at, 4096) };
    }
}
