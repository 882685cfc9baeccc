//! The calls of include/datawarp.h that are about no stage: waiting until a file of a cache is on the PFS, and accounting.
//!
//! Their arguments are those that public programs pass (libhio calls the first with a descriptor, a wrapper of NERSC the
//! second with a path and a number for the error); the names in the JSON are those of a sample of its output.

use crate::error::answer;
use crate::plans::Deadline;
use crate::{Answer, path, state};
use forebay_client::Control;
use forebay_proto::control::ControlError;
use forebay_proto::metrics::{BufferMetrics, ServerMetrics};
use serde_json::{Value, json};
use std::ffi::{CString, c_char, c_int};
use std::path::Path;

/// Digits of a buffer's identity that make its number.
const NUMBER_DIGITS: usize = 7;
const HEX: u32 = 16;

fn last_errno() -> c_int {
    // SAFETY: errno is this thread's own; `answer` has set it.
    unsafe { *libc::__errno_location() }
}

/// See include/datawarp.h.
#[unsafe(no_mangle)]
pub extern "C" fn dw_wait_sync_complete(fd: c_int) -> c_int {
    let waited = answer(|| {
        let what = "wait for";
        let link = format!("/proc/self/fd/{fd}");
        let path = std::fs::read_link(&link).map_err(|error| {
            let error = ControlError::io(what, Some(Path::new(&link)), &error);
            if error.errno == Some(libc::ENOENT) { error.errno(libc::EBADF) } else { error }
        })?;
        state::wait(&path, Deadline::after(-1.0))
    });
    waited.map_or_else(|| -last_errno(), |()| 0)
}

/// See include/datawarp.h.
///
/// # Safety
/// As there: a C string; the number is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_get_accounting_data_json(
    dw: *const c_char,
    code: *mut c_int,
) -> *mut c_char {
    let told = answer(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { path("account for", dw) }?;
        let text = accounting(&path)?.to_string();
        CString::new(text).map_err(|_| ControlError::new("account for", Some(&path), "a NUL"))
    });
    let errno = if told.is_some() { 0 } else { -last_errno() };
    if !code.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *code = errno };
    }
    // SAFETY: a C string of ours; the copy is malloc's, as the caller frees it.
    told.map_or(std::ptr::null_mut(), |text| unsafe { libc::strdup(text.as_ptr()) })
}

fn accounting(path: &Path) -> Answer<Value> {
    let (mut control, _) = Control::connect_path(path)?;
    let status = control.buffer_status()?;
    let all = control.metrics()?;
    let parts: Vec<(&ServerMetrics, &BufferMetrics)> = all
        .servers
        .iter()
        .flat_map(|one| one.buffers.iter().map(move |part| (one, part)))
        .collect();
    let sum = |of: fn(&BufferMetrics) -> u64| parts.iter().map(|(_, part)| of(part)).sum::<u64>();
    let digits = status.uuid.get(..NUMBER_DIGITS).unwrap_or_default();
    let number = u32::from_str_radix(digits, HEX).unwrap_or(0);
    let fragments: Vec<Value> = parts.iter().map(|(server, part)| fragment(server, part)).collect();
    Ok(json!({ "realm": {
        "realm_id": number,
        "server_count": parts.len(),
        "namespace_count": 1,
        "fragments": fragments,
        "namespaces": [{
            "namespace_id": number,
            "bytes_read": sum(|part| part.read_bytes),
            "bytes_written": sum(|part| part.written_bytes),
            "stage_bytes_read": sum(|part| part.staging.out_bytes),
            "stage_bytes_written": sum(|part| part.staging.in_bytes),
            "files_created": sum(created),
            // There are no such limits.
            "file_size_limit": 0,
            "files_create_threshold": 0,
        }],
    } }))
}

/// What one server has of the buffer.
fn fragment(server: &ServerMetrics, part: &BufferMetrics) -> Value {
    json!({
        "server_hostname": server.host,
        "fs_capacity": part.capacity_bytes,
        "capacity_max": part.capacity_bytes,
        "capacity_used": part.used_bytes,
        "files_created": created(part),
        "bytes_read": part.read_bytes,
        "bytes_written": part.written_bytes,
        "write_limit": 0,
    })
}

/// Files made, by the names of the calls.
fn created(part: &BufferMetrics) -> u64 {
    ["create", "mknod"].iter().filter_map(|call| part.calls.get(*call)).sum()
}
