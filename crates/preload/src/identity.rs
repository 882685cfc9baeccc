//! What of a process decides about its files and cannot be seen from outside: umask, changes of user and groups,
//! of the current directory, and of what paths mean at all.

use crate::{places, raw};
use forebay_interpose::real::Real;
use libc::{c_char, c_int, gid_t, mode_t, size_t, uid_t};
use std::sync::atomic::{AtomicU32, Ordering};

static UMASK: AtomicU32 = AtomicU32::new(0o022);
/// Counts changes of user and groups: sockets that are older are not used.
static WHO: AtomicU32 = AtomicU32::new(0);

/// Before the program has threads.
pub fn begin() {
    let mask = raw::numbers(libc::SYS_umask, 0o077, 0, 0) as u32;
    raw::numbers(libc::SYS_umask, mask as usize, 0, 0);
    UMASK.store(mask, Ordering::Relaxed);
}

pub fn umask_now() -> u32 {
    UMASK.load(Ordering::Relaxed)
}

pub fn who() -> u32 {
    WHO.load(Ordering::Acquire)
}

fn changed(counter: &AtomicU32) {
    counter.fetch_add(1, Ordering::AcqRel);
}

/// Always: what is noted here must be right when places are found later.
fn never() -> bool {
    false
}

/// The function behind `umask`.
static REAL_UMASK: Real = Real::new("umask\0");

#[unsafe(no_mangle)]
unsafe extern "C" fn umask(mask: mode_t) -> mode_t {
    let address = REAL_UMASK.get();
    let before = if address.is_null() {
        raw::numbers(libc::SYS_umask, mask as usize, 0, 0) as mode_t
    } else {
        // SAFETY: the address is that of the function of this name, which has this type.
        unsafe {
            let real = std::mem::transmute::<
                *mut std::ffi::c_void,
                unsafe extern "C" fn(mode_t) -> mode_t,
            >(address);
            real(mask)
        }
    };
    UMASK.store(mask & 0o777, Ordering::Relaxed);
    before
}

/// Calls that make the process another user.
macro_rules! as_another {
    ($( $name:ident($($arg:ident: $type:ty),*); )*) => {
        forebay_interpose::interpose! {
            off = crate::identity::never;
            $( fn $name($($arg: $type),*) -> c_int, real => {
                changed(&WHO);
                let done = real($($arg),*);
                changed(&WHO);
                done
            } )*
            fn chdir(path: *const c_char) -> c_int, real => {
                let done = real(path);
                places::moved();
                done
            }
            fn fchdir(fd: c_int) -> c_int, real => {
                let done = real(fd);
                places::moved();
                done
            }
            fn chroot(path: *const c_char) -> c_int, real => {
                places::leave();
                real(path)
            }
            fn unshare(flags: c_int) -> c_int, real => {
                if flags & (libc::CLONE_FS | libc::CLONE_NEWNS | libc::CLONE_NEWUSER | libc::CLONE_FILES) != 0 {
                    places::leave();
                }
                real(flags)
            }
            fn setns(fd: c_int, kind: c_int) -> c_int, real => {
                places::leave();
                real(fd, kind)
            }
            fn mount(source: *const c_char, target: *const c_char, kind: *const c_char,
                flags: libc::c_ulong, data: *const libc::c_void) -> c_int, real => {
                places::leave();
                real(source, target, kind, flags, data)
            }
            fn umount(target: *const c_char) -> c_int, real => {
                places::leave();
                real(target)
            }
            fn umount2(target: *const c_char, flags: c_int) -> c_int, real => {
                places::leave();
                real(target, flags)
            }
        }
    };
}

as_another! {
    setuid(uid: uid_t);
    setgid(gid: gid_t);
    seteuid(uid: uid_t);
    setegid(gid: gid_t);
    setreuid(real_id: uid_t, effective: uid_t);
    setregid(real_id: gid_t, effective: gid_t);
    setresuid(real_id: uid_t, effective: uid_t, saved: uid_t);
    setresgid(real_id: gid_t, effective: gid_t, saved: gid_t);
    setgroups(count: size_t, list: *const gid_t);
    initgroups(user: *const c_char, group: gid_t);
}
