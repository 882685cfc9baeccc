//! Files beside the kernel: `fb_open`, `fb_stat` and the like, one path or many, over `forebay-files`.

use crate::error::{answer, note};
use crate::{Answer, give, path};
use forebay_files::{Attributes, Follow};
use forebay_proto::control::ControlError;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::io;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const NO_FOLLOW: c_uint = 32;
const FINAL: c_uint = 512;

fn invalid(what: &str, why: &str) -> ControlError {
    ControlError::new(what, None, why).errno(libc::EINVAL)
}

fn follow(flags: c_uint) -> Answer<Follow> {
    match flags {
        0 => Ok(Follow::Yes),
        NO_FOLLOW => Ok(Follow::No),
        _ => Err(invalid("look at files", "flags that it does not have")),
    }
}

fn told<T>(what: &str, path: &Path, result: io::Result<T>) -> Answer<T> {
    result.map_err(|error| ControlError::io(what, Some(path), &error))
}

/// See include/forebay.h.
///
/// # Safety
/// As there: a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_open(text: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    let done = answer(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { path("open", text) }?;
        told("open", &path, forebay_files::open(&path, flags, mode)).map(IntoRawFd::into_raw_fd)
    });
    done.unwrap_or(-1)
}

/// See include/forebay.h.
///
/// # Safety
/// As there: a C string, and room of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_stat(
    text: *const c_char,
    flags: c_uint,
    to: *mut c_void,
    size: usize,
) -> c_int {
    let done = answer(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { path("look at", text) }?;
        let found = told("look at", &path, forebay_files::stat(&path, follow(flags)?))?;
        // SAFETY: the caller's promise; the struct of the messages has no padding.
        unsafe { give(&found, to, size) }
    });
    if done.is_some() { 0 } else { -1 }
}

/// A descriptor of the caller.
fn descriptor<'a>(fd: c_int) -> Answer<BorrowedFd<'a>> {
    if fd < 0 {
        let error = ControlError::new("use a descriptor", None, "it is no open file");
        return Err(error.errno(libc::EBADF));
    }
    // SAFETY: not negative, and used during the call alone; one that is not open is an error of the kernel's.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

fn of_descriptor<T>(what: &str, fd: c_int, result: io::Result<T>) -> Answer<T> {
    told(what, Path::new(&format!("descriptor {fd}")), result)
}

/// See include/forebay.h.
///
/// # Safety
/// As there: room of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_fstat(fd: c_int, to: *mut c_void, size: usize) -> c_int {
    let done = answer(|| {
        let found = forebay_files::fstat(descriptor(fd)?);
        let found = of_descriptor("look at", fd, found)?;
        // SAFETY: the caller's promise; the struct of the messages has no padding.
        unsafe { give(&found, to, size) }
    });
    if done.is_some() { 0 } else { -1 }
}

/// See include/forebay.h.
#[unsafe(no_mangle)]
pub extern "C" fn fb_fsync(fd: c_int) -> c_int {
    let done = answer(|| of_descriptor("sync", fd, forebay_files::fsync(descriptor(fd)?)));
    if done.is_some() { 0 } else { -1 }
}

/// See include/forebay.h.
///
/// # Safety
/// As there: a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_publish(text: *const c_char, flags: c_uint) -> c_int {
    let done = answer(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { path("publish", text) }?;
        let is_final = match flags {
            0 => false,
            FINAL => true,
            _ => return Err(invalid("publish", "flags that it does not have")),
        };
        forebay_client::locate(&path)?;
        told("publish", &path, forebay_client::publish(&path, is_final))
    });
    if done.is_some() { 0 } else { -1 }
}

/// See include/forebay.h.
///
/// # Safety
/// As there: a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_mkdir(text: *const c_char, mode: c_uint) -> c_int {
    let done = answer(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { path("make the directory", text) }?;
        told("make the directory", &path, forebay_files::mkdir(&path, mode))
    });
    if done.is_some() { 0 } else { -1 }
}

/// See include/forebay.h.
///
/// # Safety
/// As there: a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_unlink(text: *const c_char) -> c_int {
    let done = answer(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { path("remove", text) }?;
        told("remove", &path, forebay_files::unlink(&path))
    });
    if done.is_some() { 0 } else { -1 }
}

/// See include/forebay.h.
///
/// # Safety
/// As there: both are C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_rename(from: *const c_char, to: *const c_char) -> c_int {
    let done = answer(|| {
        // SAFETY: the caller's promise.
        let (from, to) = unsafe { (path("rename", from)?, path("rename to", to)?) };
        told("rename", &from, forebay_files::rename(&from, &to))
    });
    if done.is_some() { 0 } else { -1 }
}

type Each = unsafe extern "C" fn(*mut c_void, *const c_char, *const Attributes) -> c_int;

/// See include/forebay.h.
///
/// # Safety
/// As there: a C string, and a function that may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_list(
    text: *const c_char,
    each: Option<Each>,
    context: *mut c_void,
) -> c_int {
    let done = answer(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { path("list", text) }?;
        let each = each.ok_or_else(|| invalid("list", "the function is NULL"))?;
        let mut last = 0;
        let listed = forebay_files::list(&path, |name, attributes| {
            // Names of the kernel have no 0 in them.
            let Ok(name) = CString::new(name.as_bytes()) else { return true };
            // SAFETY: by the caller's promise; both live during the call.
            last = unsafe { each(context, name.as_ptr(), attributes) };
            last == 0
        });
        told("list", &path, listed).map(|()| last)
    });
    done.unwrap_or(-1)
}

/// The caller's paths.
///
/// # Safety
/// NULL, or as many C strings as said.
unsafe fn paths(what: &str, texts: *const *const c_char, count: usize) -> Answer<Vec<PathBuf>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if texts.is_null() {
        return Err(invalid(what, "the paths are NULL"));
    }
    // SAFETY: by the caller's promise.
    let texts = unsafe { std::slice::from_raw_parts(texts, count) };
    // SAFETY: by the caller's promise.
    texts.iter().map(|text| unsafe { path(what, *text) }).collect()
}

/// Counts what succeeded, tells each error, and the first as the thread's message.
///
/// # Safety
/// `errnos` is NULL, or has room for as many numbers as there are results.
unsafe fn tell<T>(
    what: &str,
    paths: &[PathBuf],
    results: Vec<io::Result<T>>,
    errnos: *mut c_int,
    mut each: impl FnMut(usize, Option<T>),
) -> i64 {
    let mut succeeded = 0;
    let mut first = true;
    for (at, result) in results.into_iter().enumerate() {
        let (errno, value) = match result {
            Ok(value) => {
                succeeded += 1;
                (0, Some(value))
            }
            Err(error) => {
                if std::mem::take(&mut first) {
                    let path = paths.get(at).map(PathBuf::as_path);
                    note(&ControlError::io(what, path, &error).to_string());
                }
                (error.raw_os_error().unwrap_or(libc::EINVAL), None)
            }
        };
        if !errnos.is_null() {
            // SAFETY: by the caller's promise.
            unsafe { errnos.add(at).write(errno) };
        }
        each(at, value);
    }
    succeeded
}

/// See include/forebay.h.
///
/// # Safety
/// As there: `count` C strings, and as much room where it is not NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_open_many(
    texts: *const *const c_char,
    count: usize,
    flags: c_int,
    mode: c_uint,
    fds: *mut c_int,
    errnos: *mut c_int,
) -> i64 {
    let done = answer(|| {
        // SAFETY: the caller's promise.
        let paths = unsafe { paths("open", texts, count) }?;
        let results = forebay_files::open_many(&paths, flags, mode);
        // SAFETY: the caller's promise.
        Ok(unsafe {
            tell("open", &paths, results, errnos, |at, file| {
                // Without a place for its number it is closed here.
                if !fds.is_null() {
                    fds.add(at).write(file.map_or(-1, IntoRawFd::into_raw_fd));
                }
            })
        })
    });
    done.unwrap_or(-1)
}

/// See include/forebay.h.
///
/// # Safety
/// As there: `count` C strings, and as much room where it is not NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_create_many(
    texts: *const *const c_char,
    count: usize,
    mode: c_uint,
    fds: *mut c_int,
    errnos: *mut c_int,
) -> i64 {
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR | libc::O_CLOEXEC;
    // SAFETY: the caller's promise.
    unsafe { fb_open_many(texts, count, flags, mode, fds, errnos) }
}

/// See include/forebay.h.
///
/// # Safety
/// As there: `count` C strings, as many structs of `size` bytes, and as much room where it is not NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_stat_many(
    texts: *const *const c_char,
    count: usize,
    flags: c_uint,
    to: *mut c_void,
    size: usize,
    errnos: *mut c_int,
) -> i64 {
    let done = answer(|| {
        // SAFETY: the caller's promise.
        let paths = unsafe { paths("look at", texts, count) }?;
        let follow = follow(flags)?;
        if to.is_null() && count > 0 {
            return Err(invalid("look at files", "the structs are NULL"));
        }
        let results = forebay_files::stat_many(&paths, follow);
        // SAFETY: the caller's promise; the struct of the messages has no padding.
        Ok(unsafe {
            tell("look at", &paths, results, errnos, |at, attributes| {
                let at = to.cast::<u8>().add(at * size);
                // Not NULL, which is all that it could refuse.
                let _given = give(&attributes.unwrap_or_default(), at.cast(), size);
            })
        })
    });
    done.unwrap_or(-1)
}

/// See include/forebay.h.
///
/// # Safety
/// As there: `count` C strings, and as much room where it is not NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_unlink_many(
    texts: *const *const c_char,
    count: usize,
    errnos: *mut c_int,
) -> i64 {
    let done = answer(|| {
        // SAFETY: the caller's promise.
        let paths = unsafe { paths("remove", texts, count) }?;
        let results = forebay_files::unlink_many(&paths);
        // SAFETY: the caller's promise.
        Ok(unsafe { tell("remove", &paths, results, errnos, |_, _| {}) })
    });
    done.unwrap_or(-1)
}
