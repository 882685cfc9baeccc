//! `libforebay_trace.so`: preloaded into a program by `forebay trace`, it records the program's calls for
//! I/O into a file of its own in `$FOREBAY_TRACE_DIR` (layout: `forebay_trace_format::layout`).
//!
//! Invariants:
//! * It changes nothing that the program can see: results, errno, descriptors. No descriptor stays open:
//!   the file is mapped, and a later extension opens it by name for a moment.
//! * A call costs no system call and takes no memory but its record; names and new blocks do.
//! * No panic and no allocation: an index that could be wrong is checked, a lock that could be held by
//!   the thread that a signal interrupted is waited for a bounded time, and then the record is counted as lost.
//! * Memory that must not be written to unless the file system has room for it is made present first, by
//!   MADV_POPULATE_WRITE: a full disk loses records, and never raises SIGBUS.
//! * After a fork without exec the child finds its state wiped (MADV_WIPEONFORK) and begins a file of its own
//!   at its first call. A vfork child records into its parent's file.
//!
//! A call of libc inside this library would be recorded or recurse, so system calls go by [`sys`].

/// [`forebay_interpose::interpose`] of functions that are passed over while nothing is recorded.
///
/// Functions in `timed { }` only note what the one behind did: what it gave (`done`) and when it began are handed to an
/// expression. Those of one shape, as `pread` and `pread64`, stand in one line.
macro_rules! interpose {
    (timed { $( fn [$($name:ident)+] $args:tt -> $ret:ty => |$done:ident, $start:ident| $record:expr; )* } $($rest:tt)*) => {
        interpose! { @each { $( $( fn $name $args -> $ret => |$done, $start| $record; )+ )* } $($rest)* }
    };
    (@each { $( fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $ret:ty => |$done:ident, $start:ident| $record:expr; )* } $($rest:tt)*) => {
        interpose! {
            $( fn $name($($arg: $type),*) -> $ret, real => {
                let $start = crate::clock::ticks();
                let $done = real($($arg),*);
                $record;
                $done
            } )*
            $($rest)*
        }
    };
    ($($functions:tt)*) => {
        forebay_interpose::interpose! { off = crate::trace::is_off; $($functions)* }
    };
}

mod aio;
mod clock;
mod fds;
mod files;
mod names;
mod paths;
mod processes;
mod stdio;
mod trace;

use forebay_interpose::sys;

/// Called by the loader before the program begins.
extern "C" fn begin() {
    let errno = sys::Errno::keep();
    for table in
        [fds::real::ALL, paths::real::ALL, processes::real::ALL, stdio::real::ALL, aio::real::ALL]
    {
        for real in table {
            real.get();
        }
    }
    trace::begin();
    if !trace::is_off() {
        files::note_standards();
    }
    drop(errno);
}

/// Called when the program ends by `exit` or by returning from `main`.
extern "C" fn end() {
    let errno = sys::Errno::keep();
    stdio::end();
    trace::ended(forebay_trace_format::layout::ended::EXIT);
    drop(errno);
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
