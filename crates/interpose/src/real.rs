//! The functions behind ours: the next definition in the order of the loader, which is libc's, or that
//! of another preloaded library.

use crate::sys;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// One of them, looked up when the library is loaded, or at its first call if that is earlier.
pub struct Real {
    name: &'static str,
    address: AtomicPtr<c_void>,
}

impl Real {
    /// `name` ends with a 0.
    pub const fn new(name: &'static str) -> Real {
        Real { name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address; NULL if nothing has this name.
    #[inline(always)]
    pub fn get(&self) -> *mut c_void {
        let address = self.address.load(Ordering::Relaxed);
        if address.is_null() { self.find() } else { address }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        let Ok(name) = CStr::from_bytes_with_nul(self.name.as_bytes()) else {
            return std::ptr::null_mut();
        };
        // SAFETY: a C string that lives; dlsym may be called from any thread.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// What a function returns that is not there: as the kernel answers for a call that it does not have.
pub trait Missing {
    /// Its value; errno is set.
    fn missing() -> Self;
}

impl Missing for i32 {
    fn missing() -> i32 {
        sys::set_errno(libc::ENOSYS);
        -1
    }
}

impl Missing for i64 {
    fn missing() -> i64 {
        sys::set_errno(libc::ENOSYS);
        -1
    }
}

impl Missing for isize {
    fn missing() -> isize {
        sys::set_errno(libc::ENOSYS);
        -1
    }
}

impl Missing for usize {
    fn missing() -> usize {
        sys::set_errno(libc::ENOSYS);
        0
    }
}

impl<T> Missing for *mut T {
    fn missing() -> *mut T {
        sys::set_errno(libc::ENOSYS);
        std::ptr::null_mut()
    }
}

impl Missing for () {
    fn missing() {}
}

/// Defines functions that take the place of libc's. In a body, `$real` is the function behind. While `$off` says
/// so, that one is called and nothing else.
#[macro_export]
macro_rules! interpose {
    (off = $off:path; $( fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $ret:ty, $real:ident => $body:block )*) => {
        /// The functions behind those of this file.
        #[allow(non_upper_case_globals)]
        pub mod real {
            use $crate::real::Real;
            $( pub static $name: Real = Real::new(concat!(stringify!($name), "\0")); )*
            /// All of them.
            pub const ALL: &[&Real] = &[$(&$name),*];
        }
        $(
            #[unsafe(no_mangle)]
            #[allow(clippy::too_many_arguments)]
            unsafe extern "C" fn $name($($arg: $type),*) -> $ret {
                let address = real::$name.get();
                if address.is_null() {
                    return $crate::real::Missing::missing();
                }
                type Behind = unsafe extern "C" fn($($type),*) -> $ret;
                // SAFETY: the address is that of the function of this name, which has this type.
                let $real = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Behind>(address) };
                if $off() {
                    // SAFETY: the caller's own arguments, as they came.
                    return unsafe { $real($($arg),*) };
                }
                // SAFETY: the caller's own arguments go on as they came; what they point to is read
                // only after the function behind took it as valid.
                unsafe { $body }
            }
        )*
    };
}
