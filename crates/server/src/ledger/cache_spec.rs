//! Buffers that are to cache a PFS directory: who may have one over which directory, and how a shard caches.
//!
//! Invariant: a server with the rights of root caches nothing for a user that this user could not list
//! themselves, nor anything outside the roots that it was started with. Called by `create`, `parts`.

use super::errors::of;
use super::served::shard_of;
use super::{Identity, LedgerOptions};
use forebay_cache::{CacheOptions, Policy};
use forebay_credentials::identity::Identity as Rights;
use forebay_proto::control::{ControlError, PathBytes};
use forebay_proto::net::ledger::{AccessMode, BufferName, BufferSpec, BufferType, CacheSpec};
use forebay_proto::net::pool::PartSpec;
use forebay_proto::{Caller, Errno};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

/// Longest time that a name may be believed without asking the PFS.
const TTL_MAX: Duration = Duration::from_secs(86_400);

fn path_of(bytes: &PathBytes) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes.as_bytes()))
}

/// A buffer's spec with the PFS directory's true path, if the requester may have it cached.
pub(super) fn checked_cache(
    options: &LedgerOptions,
    who: &Identity,
    mut spec: BufferSpec,
) -> Result<BufferSpec, ControlError> {
    let refuse = |why: &str| Err(of("create", &spec.name, why, libc::EINVAL));
    match (spec.buffer_type, &spec.cache) {
        (BufferType::Scratch, None) if spec.access == AccessMode::Ldbalance => {
            refuse("access ldbalance is for caches")
        }
        (BufferType::Scratch, None) => Ok(spec),
        (BufferType::Scratch, Some(_)) => refuse("a scratch buffer caches nothing"),
        (BufferType::Cache, None) => refuse("what is it to cache? Give --pfs DIR"),
        (BufferType::Cache, Some(_)) => {
            let caller = match who {
                Identity::Superuser(caller) | Identity::User(caller) => caller.clone(),
                Identity::Holder(_) => return refuse("a secret makes no buffers"),
            };
            let pfs = check_cache(options, &caller, &spec.name, &spec.cache)?;
            if let (Some(cache), Some(pfs)) = (&mut spec.cache, pfs) {
                cache.pfs = PathBytes::new(pfs.as_os_str().as_bytes());
            }
            Ok(spec)
        }
    }
}

/// The PFS directory's true path, looked at with the rights of `caller`; `None` for a buffer that is no
/// cache.
pub(super) fn check_cache(
    options: &LedgerOptions,
    caller: &Caller,
    name: &BufferName,
    cache: &Option<CacheSpec>,
) -> Result<Option<PathBuf>, ControlError> {
    let Some(cache) = cache else { return Ok(None) };
    options_of(name, cache)?;
    let asked = path_of(&cache.pfs);
    let fail = |why: &str, errno: i32| {
        ControlError::new(&format!("cache, in buffer {name},"), Some(&asked), why).errno(errno)
    };
    if !asked.is_absolute() {
        return Err(fail("the path of the PFS directory must be absolute", libc::EINVAL));
    }
    let rights = Rights::of(caller).map_err(|why| fail(&why.to_string(), libc::EPERM))?;
    // On a thread of its own: it takes the requester's groups.
    let looked = std::thread::scope(|scope| {
        let look = || -> Result<PathBuf, Errno> {
            rights.adopt_thread()?;
            let _acting = rights.enter()?;
            let path = std::fs::canonicalize(&asked)?;
            std::fs::read_dir(&path)?;
            Ok(path)
        };
        scope.spawn(look).join().unwrap_or(Err(Errno::EIO))
    });
    let path = looked.map_err(|errno| {
        fail(&errno.to_string(), errno.0).hint("it must be a directory that you may list")
    })?;
    let roots = &options.server.pfs_roots;
    if !roots.is_empty() && !roots.iter().any(|root| path.starts_with(root)) {
        let list: Vec<_> = roots.iter().map(|root| root.display().to_string()).collect();
        let why = format!("this server caches only below {}", list.join(", "));
        return Err(fail(&why, libc::EACCES));
    }
    if path.starts_with(&options.flash) || options.flash.starts_with(&path) {
        return Err(fail("it is where the server has its flash", libc::ELOOP));
    }
    Ok(Some(path))
}

/// How a part caches; `None` if it is no cache.
pub(super) fn options_of_part(spec: &PartSpec) -> Result<Option<CacheOptions>, ControlError> {
    let Some(cache) = &spec.cache else { return Ok(None) };
    let options = options_of(&spec.name, cache)?;
    let rate_bytes_per_s = match spec.access {
        AccessMode::Striped => share_of(options.rate_bytes_per_s, spec.servers.len() as u16),
        AccessMode::Private | AccessMode::Ldbalance => options.rate_bytes_per_s,
    };
    Ok(Some(CacheOptions { served: Some(shard_of(spec)), rate_bytes_per_s, ..options }))
}

/// What each of so many servers of one cache may drain, so that all of them keep to a limit. 0: no limit.
pub(super) fn share_of(bytes_per_s: u64, servers: u16) -> u64 {
    bytes_per_s.div_ceil(u64::from(servers.max(1)))
}

/// How a part caches, whatever part it is.
fn options_of(name: &BufferName, cache: &CacheSpec) -> Result<CacheOptions, ControlError> {
    let policy = Policy::parse(cache.policy.as_bytes()).ok_or_else(|| {
        let why = format!("{:?} is no policy for draining", cache.policy);
        of("create", name, &why, libc::EINVAL)
    })?;
    Ok(CacheOptions {
        pfs: path_of(&cache.pfs),
        ttl: Duration::from_millis(cache.ttl_ms).min(TTL_MAX),
        writes_by_kernel: cache.writes_by_kernel,
        policy,
        verify: cache.verify,
        rate_bytes_per_s: cache.rate_bytes_per_s,
        served: None,
    })
}
