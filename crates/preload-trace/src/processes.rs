//! Calls that make or change processes: what they share of the descriptors is noted, the file of a process
//! that becomes another program or ends is closed off.

use crate::names;
use crate::trace::{self, Call, HOT};
use crate::{clock, sys};
use forebay_trace_format::Op;
use forebay_trace_format::layout::{NO_OFFSET, ended};
use libc::{
    FILE, c_char, c_int, pid_t, posix_spawn_file_actions_t as Actions, posix_spawnattr_t as Attr,
};
use std::sync::atomic::{AtomicPtr, Ordering};

/// From now on, what is open may be another process's too.
fn shared() {
    HOT.epoch.fetch_add(1, Ordering::Relaxed);
}

fn forked(pid: pid_t, start: u64) {
    let end = clock::ticks();
    // The child finds its state wiped, and begins at its first call.
    if pid != 0 {
        shared();
        let (op, result) = (Op::Fork, sys::result(pid.into()));
        let offset = NO_OFFSET;
        trace::put(Call { op, flags: 0, file: 0, offset, length: 0, result, start, end });
    }
}

/// Records an exec, calls it, and if it came back takes that back.
///
/// # Safety
/// `path` is what `exec` is called with.
unsafe fn exec(path: *const c_char, exec: impl FnOnce() -> c_int) -> c_int {
    let errno = sys::Errno::keep();
    let start = clock::ticks();
    // SAFETY: a program that execs passes a C string; a bad pointer would make the exec itself fail, and
    // programs do not try that.
    let file = unsafe { names::of_path(libc::AT_FDCWD, path, false) }.id();
    let (op, offset) = (Op::Exec, NO_OFFSET);
    let end = start;
    let call = Call { op, flags: 0, file, offset, length: 0, result: 0, start, end };
    let record = trace::put_early(call);
    // Also of a vfork child, which runs in its parent's memory: the parent must know.
    shared();
    trace::ended(ended::EXEC);
    drop(errno);
    let done = exec();
    let errno = sys::Errno::keep();
    trace::correct(record, sys::result(done.into()));
    trace::ended(ended::NOT);
    drop(errno);
    done
}

/// # Safety
/// `path` is what the program was spawned by.
unsafe fn spawned(path: *const c_char, done: c_int, start: u64) {
    let end = clock::ticks();
    let _errno = sys::Errno::keep();
    shared();
    // SAFETY: by the caller's promise.
    let file = unsafe { names::of_path(libc::AT_FDCWD, path, false) }.id();
    let (op, offset, result) = (Op::Spawn, NO_OFFSET, -i64::from(done));
    trace::put(Call { op, flags: 0, file, offset, length: 0, result, start, end });
}

type Strings = *const *const c_char;

interpose! {
    timed {
        fn [fork _Fork]() -> pid_t => |pid, start| forked(pid, start);
        fn [posix_spawn posix_spawnp](pid: *mut pid_t, path: *const c_char, actions: *const Actions, attributes: *const Attr, argv: Strings, environment: Strings) -> c_int => |done, start| spawned(path, done, start);
    }
    fn execve(path: *const c_char, argv: Strings, environment: Strings) -> c_int, real => {
        exec(path, || real(path, argv, environment))
    }
    fn execv(path: *const c_char, argv: Strings) -> c_int, real => {
        exec(path, || real(path, argv))
    }
    fn execvp(path: *const c_char, argv: Strings) -> c_int, real => {
        exec(path, || real(path, argv))
    }
    fn execvpe(path: *const c_char, argv: Strings, environment: Strings) -> c_int, real => {
        exec(path, || real(path, argv, environment))
    }
    fn fexecve(fd: c_int, argv: Strings, environment: Strings) -> c_int, real => {
        exec(std::ptr::null(), || real(fd, argv, environment))
    }
    fn system(command: *const c_char) -> c_int, real => {
        shared();
        real(command)
    }
    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE, real => {
        shared();
        real(command, mode)
    }
    fn pclose(stream: *mut FILE) -> c_int, real => {
        let fd = crate::stdio::fileno_unlocked(stream);
        crate::files::detach(fd);
        real(stream)
    }
}

/// Ends the process as `code` says, by the function behind `name`, or by the kernel.
fn leave(behind: &AtomicPtr<libc::c_void>, name: &std::ffi::CStr, code: c_int) -> ! {
    if !trace::is_off() {
        trace::ended(ended::EXIT);
    }
    let mut address = behind.load(Ordering::Relaxed);
    if address.is_null() {
        // SAFETY: a C string that lives.
        address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        behind.store(address, Ordering::Relaxed);
    }
    if !address.is_null() {
        // SAFETY: the address is that of the function of this name, which has this type.
        unsafe {
            let real: unsafe extern "C" fn(c_int) = std::mem::transmute(address);
            real(code);
        }
    }
    loop {
        // SAFETY: ends the process.
        unsafe { libc::syscall(libc::SYS_exit_group, code) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _exit(code: c_int) -> ! {
    static REAL: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());
    leave(&REAL, c"_exit", code)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _Exit(code: c_int) -> ! {
    static REAL: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());
    leave(&REAL, c"_Exit", code)
}
