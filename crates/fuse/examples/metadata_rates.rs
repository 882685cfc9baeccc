//! Rates of metadata requests through a mount of the tests' in-memory file system: what this
//! layer and the kernel cost, without a server. `metadata_rates [FILES] [ROUNDS] [served] [nofollow]`.
//!
//! Prints for each round files per second of create+close, open+close, cached stat and unlink,
//! and the requests that each made per file.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../tests/integration/common/mod.rs"]
mod common;

use common::Mount;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

fn rate(m: &Mount, what: &str, names: &[CString], call: impl Fn(&CString)) {
    let before = m.session().request_counts();
    let began = Instant::now();
    names.iter().for_each(&call);
    let per_s = names.len() as f64 / began.elapsed().as_secs_f64();
    println!("{what:12} {per_s:>9.0}/s   {}", requests(m, &before, names.len()));
}

/// Requests per file since `before`.
fn requests(m: &Mount, before: &[(&'static str, u64)], files: usize) -> String {
    let after = m.session().request_counts();
    let pairs = before.iter().zip(after).filter(|(b, a)| a.1 > b.1);
    let per_file = |n: u64| n as f64 / files as f64;
    pairs.map(|(b, a)| format!("{} {:.2}  ", a.0, per_file(a.1 - b.1))).collect()
}

fn open_close(name: &CString, flags: i32) {
    // SAFETY: `name` is a NUL-ended string; the fd is closed where it was opened.
    unsafe {
        let fd = libc::open(name.as_ptr(), flags, 0o644);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        libc::close(fd);
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let files: usize = args.next().map_or(5_000, |a| a.parse().unwrap());
    let rounds: usize = args.next().map_or(5, |a| a.parse().unwrap());
    let modes: Vec<String> = args.collect();
    let has = |mode: &str| modes.iter().any(|m| m == mode);
    let m = Mount::with(|o| {
        o.fast_path = !has("served");
        o.follow_client = !has("nofollow");
    });
    println!("fast path {}", m.session().fast_path());
    let name = |i| CString::new(m.at(&format!("file-{i}")).as_os_str().as_bytes()).unwrap();
    let names: Vec<CString> = (0..files).map(name).collect();
    for _ in 0..rounds {
        rate(&m, "create+close", &names, |n| open_close(n, libc::O_CREAT | libc::O_WRONLY));
        rate(&m, "open+close", &names, |n| open_close(n, libc::O_RDONLY));
        rate(&m, "stat", &names, |n| {
            // SAFETY: a valid path and an out-parameter for one stat.
            unsafe {
                let mut st: libc::stat = std::mem::zeroed();
                assert_eq!(libc::stat(n.as_ptr(), &mut st), 0);
            }
        });
        rate(&m, "unlink", &names, |n| {
            // SAFETY: a NUL-ended path.
            unsafe { assert_eq!(libc::unlink(n.as_ptr()), 0) };
        });
        println!();
    }
}
