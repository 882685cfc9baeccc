//! What suites of caches share: contents by a seed, a tree in words, xattrs, and what people ask of a cache
//! that a server serves, by a mount or by name.

use crate::procs::{run, try_run_for};
use crate::served::{Options, Served, Store, Via};
use crate::sys;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Bytes that are others for each seed, and in each block.
pub fn pattern(seed: u8, length: usize) -> Vec<u8> {
    let mut bytes = vec![0_u8; length];
    for (number, block) in bytes.chunks_mut(512).enumerate() {
        let first = (number as u8).wrapping_add(seed);
        for (at, byte) in block.iter_mut().enumerate() {
            *byte = (at as u8).wrapping_mul(31).wrapping_add(first);
        }
    }
    bytes
}

/// Bytes that tell where in a file they are, and whose: made here, since nothing optimizes the tests themselves.
pub fn bytes_at(offset: u64, length: usize, whose: u64) -> Vec<u8> {
    (offset..).take(length).map(|at| (at * 131 / 7 + whose) as u8).collect()
}

/// Checksums, modes and sizes of all of a tree, by path.
pub fn sums(dir: &Path) -> String {
    let script = "find . -type f ! -name '.forebay-*' -print0 | sort -z | xargs -0 sha256sum; \
                  find . -type l -printf '%p %l\\n' | sort; find . -printf '%p %m %s\\n' | grep -v '^. ' | sort";
    run(Command::new("sh").arg("-c").arg(script).current_dir(dir))
}

/// The xattr `user.forebay.WHICH`.
pub fn xattr(path: &Path, which: &str) -> String {
    let value = sys::getxattr(sys::bytes(path), &format!("user.forebay.{which}")).unwrap();
    String::from_utf8(value).unwrap()
}

/// The root of a served cache, by name.
pub fn everything() -> PathBuf {
    PathBuf::from("shared:/")
}

/// `forebay COMMAND ARGS... PATH`, by a mount or with `--server` for `NAME:/path`.
pub fn ask(served: &Served, args: &[&str], path: &Path, limit: Duration) -> (bool, String) {
    let mut command = served.forebay(args);
    if path.to_string_lossy().starts_with("shared:") {
        command.args(["--server", &served.unix()]);
    }
    try_run_for(command.arg(path), limit)
}

/// Waits until the PFS has all of a path, so many seconds at most.
pub fn must_be_durable(served: &Served, path: &Path, seconds: u64) {
    let (seconds, limit) = (seconds.to_string(), Duration::from_secs(seconds + 20));
    let (ok, said) = ask(served, &["wait", "--timeout", &seconds, "--json"], path, limit);
    assert!(ok, "{said}\n{}", served.log_tail());
}

/// `forebay status --json`.
pub fn state(served: &Served, path: &Path, limit: Duration) -> serde_json::Value {
    let (ok, said) = ask(served, &["status", "--json"], path, limit);
    assert!(ok, "{said}");
    serde_json::from_str(&said).unwrap()
}

/// What is above this in a file's number says which server has its data.
const SHARD_SHIFT: u32 = 48;

/// A cache over so many servers, with these arguments of `forebay buffer create`.
pub fn cache(servers: usize, arguments: &[&str], mounts: &[Via]) -> Served {
    Served::with(Options { servers, ..Options::cache(Store::Tmpfs, arguments) }, mounts)
}

/// The part of a cache over several servers that has a file's data.
pub fn data_server_of(path: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap()) >> SHARD_SHIFT
}

/// The first of some names whose file, made here, has its data at this server's part.
pub fn name_at(served: &Served, mount: usize, part: u64, stem: &str) -> String {
    let names = (0..64).map(|n| format!("{stem}{n}"));
    let made = |name: &String| {
        std::fs::write(served.root(mount).join(name), b"").unwrap();
        data_server_of(&served.root(mount).join(name)) == part
    };
    names.into_iter().find(made).expect("files are spread")
}
