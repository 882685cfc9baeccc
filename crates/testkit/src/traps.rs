//! What the traps of POSIX are laid with both on one mount (`posix_traps`) and over two (`shared_traps`).

use crate::procs::try_run;
use crate::sys::{self, Dirent};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

/// HDF5 with one writer at the first path and a reader that follows it at the second: the same file, on
/// the same mount or on another.
pub const HDF5: &str = r#"
import h5py, numpy, os, sys, time
path, other = sys.argv[1:3]
with h5py.File(path, "w", libver="latest") as f:
    f.create_dataset("grid", data=numpy.arange(1_000_000, dtype="f8").reshape(1000, 1000), chunks=(100, 100), compression="gzip")
    f.create_dataset("steps", (0,), maxshape=(None,), chunks=(100,), dtype="i8")
    f["grid"].attrs["unit"] = "m"
r, w = os.pipe()
pid = os.fork()
if pid == 0:
    os.read(r, 1)
    with h5py.File(other, "r", libver="latest", swmr=True) as f:
        d, last, end = f["steps"], 0, time.time() + 60
        while last < 300 and time.time() < end:
            d.refresh()
            n = d.shape[0]
            if n: assert (d[:n] == numpy.arange(n)).all(), "a reader saw wrong data"
            assert n >= last
            last = n
    os._exit(0 if last == 300 else 3)
with h5py.File(path, "a", libver="latest") as f:
    f.swmr_mode = True
    os.write(w, b"x")
    d = f["steps"]
    for i in range(300):
        d.resize((i + 1,)); d[i] = i
        if i % 10 == 9: d.flush()
    d.flush()
    assert os.waitpid(pid, 0)[1] == 0
with h5py.File(other, "r") as f:
    assert f["grid"][999, 999] == 999_999 and f["steps"].shape == (300,)
print("ok")
"#;

/// Names as numbers, without the dots.
pub fn numbers(entries: &[Dirent]) -> Vec<u32> {
    let names = entries.iter().map(|entry| std::str::from_utf8(&entry.name).expect("it is text"));
    let number = |name: &str| name.parse().expect("a number");
    names.filter(|name| !name.starts_with('.')).map(number).collect()
}

/// What is left of a listing, from where the descriptor stands, in calls of `room_bytes`; `between` is
/// told what each of them brought.
pub fn rest_of_listing(fd: &OwnedFd, room_bytes: usize, mut between: impl FnMut(&[Dirent])) {
    loop {
        let some = sys::getdents(fd, room_bytes).expect("the directory can be listed");
        if some.is_empty() {
            return;
        }
        between(&some);
    }
}

/// seekdir to every 37th position gives the entry after it, also when `remove` has just removed the one
/// before it; rewinddir shows what `add` makes under a name that was not there.
pub fn positions_hold(fd: &OwnedFd, remove: impl Fn(&str), add: impl FnOnce(&str)) {
    let mut all = Vec::new();
    rest_of_listing(fd, 4096, |some| all.extend_from_slice(some));
    for index in (0..all.len() - 1).step_by(37) {
        if index > 2 && index % 2 == 0 && all[index].name[0] != b'.' {
            remove(&String::from_utf8_lossy(&all[index].name));
        }
        sys::lseek(fd, all[index].next, libc::SEEK_SET).expect("a position of the listing");
        let some = sys::getdents(fd, 1024).expect("the directory can be listed");
        assert_eq!(some[0].name, all[index + 1].name, "after position {index}");
    }
    add("99999");
    sys::lseek(fd, 0, libc::SEEK_SET).expect("the beginning");
    let mut found = false;
    rest_of_listing(fd, 4096, |some| found |= some.iter().any(|entry| entry.name == b"99999"));
    assert!(found, "what was made since is not listed");
}

/// Runs dbench below a directory, for so many seconds of its load by so many clients, and wants no error in what it says.
pub fn dbench(below: &Path, seconds: u32, clients: u32) {
    use_semaphore_zero();
    let mut command = Command::new("dbench");
    command.arg("-D").arg(below).args(["-t", &seconds.to_string(), &clients.to_string()]);
    let (ok, said) = try_run(&mut command);
    assert!(ok && said.contains("Throughput") && !said.contains("failed"), "{said}");
}

/// Takes the first semaphore that a kernel gives after its start, and gives it back: dbench takes its number, 0, for
/// an error, and says that it failed.
fn use_semaphore_zero() {
    // SAFETY: plain numbers; the set is new, and nobody else's.
    let set = unsafe { libc::semget(libc::IPC_PRIVATE, 1, libc::IPC_CREAT | 0o600) };
    assert!(set >= 0, "{:?}", std::io::Error::last_os_error());
    // SAFETY: the set from above, which is not used after it.
    let removed = unsafe { libc::semctl(set, 0, libc::IPC_RMID) };
    assert_eq!(removed, 0, "{:?}", std::io::Error::last_os_error());
}
