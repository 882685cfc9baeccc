//! `libforebay_preload.so`: preloaded into a program, it asks the process of a Forebay mount for what paths lead to, and
//! gets the files themselves as descriptors, where the kernel would make two or three FUSE requests.
//!
//! Invariants:
//! * Only what was granted, and errors that are certain, come from here. All else is the call that the program made,
//!   at the same path, by the kernel: so nothing that this library does not know is an error of its own.
//! * A descriptor that a program gets is one of the kernel, of the file's object. Calls on it that ask for more than data
//!   (`descriptors`) are answered by the mount's process, or the descriptor is first exchanged, under the same number, for one of
//!   the same file through the mount. It is known by the device of its file system alone, also after dup, fork and exec.
//! * No allocation, no lock that is waited for, no thread; errno changes only where the call failed.
//! * The sockets are the process's own: a child of fork has none of them, and who changes user or groups none of those
//!   that were opened before.

/// [`forebay_interpose::interpose`] of functions that are passed over while there is nothing to ask, about a descriptor or a path.
macro_rules! interpose {
    ($($functions:tt)*) => {
        forebay_interpose::interpose! { off = crate::places::knows_none; $($functions)* }
    };
}

mod calls;
mod descriptors;
mod identity;
mod own;
mod passed;
mod places;
mod raw;
mod report;
mod sockets;
mod streams;
mod temporaries;

/// Called by the loader before the program begins.
extern "C" fn begin() {
    let errno = forebay_interpose::sys::Errno::keep();
    // Here, since looking them up is nothing for a signal handler.
    for table in [
        calls::real::ALL,
        descriptors::real::ALL,
        identity::real::ALL,
        passed::real::ALL,
        streams::real::ALL,
        temporaries::real::ALL,
    ] {
        for real in table {
            real.get();
        }
    }
    report::begin();
    identity::begin();
    places::begin();
    drop(errno);
}

/// Called when the program ends by `exit` or by returning from `main`.
extern "C" fn end() {
    report::end();
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
