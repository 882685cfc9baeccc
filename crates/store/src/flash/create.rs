//! Making a store: choosing its kind, and leaving nothing behind when that fails.

use super::error::{Flash, Result, fail};
use super::lock::StoreLock;
use super::record::{self, MetaBudget, StoreRecord, StoreState};
use super::{
    CAPACITY_MIN_BYTES, IMAGE_MIN_BYTES, Store, StoreKey, image, list, place, remove, tmpfs,
};
use forebay_failpoint::step;
use forebay_proto::control::StoreKind;
use forebay_proto::size::format_bytes;
use forebay_proto::version::FLASH_FORMAT;
use rustix::thread::{CapabilitySet, capabilities};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Capacities are whole blocks of this many bytes.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// What a store is to be.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// FLASH, canonical (see [`place::resolve_flash`]).
    pub flash: PathBuf,
    /// Whose it is.
    pub key: StoreKey,
    /// Capacity for file data in bytes; rounded up to whole 4 KiB blocks.
    pub capacity_bytes: u64,
    /// The kind to insist on; `None` = the best that works here.
    pub kind: Option<StoreKind>,
    /// True if other users may reach the control socket.
    pub shared: bool,
}

impl StoreOptions {
    fn capacity(&self) -> u64 {
        self.capacity_bytes.next_multiple_of(BLOCK_BYTES)
    }

    fn dir_mode(&self) -> u32 {
        if self.shared { 0o711 } else { 0o700 }
    }

    /// Error if a store that was found is not what is asked for.
    pub(super) fn must_match(&self, store: &Store) -> Result<()> {
        let (have, want) = (store.capacity_bytes(), self.capacity());
        let hint = "ask for what it has: that keeps it. `forebay umount --destroy` of its mount point \
                    destroys it with all files in it";
        if have != want {
            let why = format!(
                "it exists with a capacity of {have} bytes ({}), {want} bytes ({}) were asked for",
                format_bytes(have),
                format_bytes(want)
            );
            return Err(fail("use the store", store.dir(), &why).errno(libc::EEXIST).hint(hint));
        }
        if let Some(kind) = self.kind.filter(|kind| *kind != store.kind()) {
            let why = format!("it exists as {:?}, {kind:?} was asked for", store.kind());
            return Err(fail("use the store", store.dir(), &why).errno(libc::EEXIST).hint(hint));
        }
        fs::set_permissions(store.dir(), fs::Permissions::from_mode(self.dir_mode()))
            .at("set the mode of the store", store.dir())
    }
}

/// Creates the store; on any error nothing of it stays.
pub fn create(options: &StoreOptions) -> Result<Store> {
    if options.capacity_bytes < CAPACITY_MIN_BYTES {
        let why = format!("{} bytes are too few for a buffer", options.capacity_bytes);
        return Err(fail("create the buffer on", &options.flash, &why)
            .errno(libc::EINVAL)
            .hint("the least is 1MiB"));
    }
    let memory = place::is_memory(&options.flash)?;
    let mut notices = Vec::new();
    for (kind, reason) in candidates(options, memory)? {
        match create_as(options, kind, reason.as_deref().or(notices.last().map(String::as_str))) {
            Ok((dir, record, lock)) => return Store::assemble(dir, record, lock, true, notices),
            // Full flash is an answer, not a reason to take less than what was asked for.
            Err(error) if options.kind.is_some() || error.errno == Some(libc::ENOSPC) => {
                return Err(error);
            }
            Err(error) if kind == StoreKind::Directory => return Err(error),
            Err(error) => notices.push(error.to_string()),
        }
    }
    Err(fail("create the buffer on", &options.flash, "no kind of store works there"))
}

/// Kinds to try, the best first, the last with the reason why not a better one.
fn candidates(options: &StoreOptions, memory: bool) -> Result<Vec<(StoreKind, Option<String>)>> {
    use StoreKind::{Directory, LoopXfs, Tmpfs};
    let refuse = |why: &str, hint: &str| {
        Err(fail("create the buffer on", &options.flash, why).errno(libc::EINVAL).hint(hint))
    };
    match options.kind {
        Some(Tmpfs) if !memory => {
            return refuse(
                "a tmpfs store needs FLASH on tmpfs",
                "give --flash /dev/shm or another --store",
            );
        }
        Some(LoopXfs) if memory => {
            return refuse("an image on tmpfs would take memory twice", "leave --store out");
        }
        Some(LoopXfs) if options.capacity_bytes < IMAGE_MIN_BYTES => {
            return refuse("an image needs 300MiB or more", "ask for more, or leave --store out");
        }
        Some(Directory) => {
            let why = "a plain directory was asked for with --store";
            return Ok(vec![(Directory, Some(why.into()))]);
        }
        Some(Tmpfs | LoopXfs) if !may_mount() => {
            return refuse(
                "only root (CAP_SYS_ADMIN) can mount a file system for it",
                "mount as root, or leave --store out",
            );
        }
        Some(kind) => return Ok(vec![(kind, None)]),
        None => (),
    }
    if !may_mount() {
        return Ok(vec![(
            Directory,
            Some("no privilege: only root (CAP_SYS_ADMIN) can mount a file system for it".into()),
        )]);
    }
    Ok(match memory {
        true => vec![(Tmpfs, None), (Directory, None)],
        false if options.capacity_bytes >= IMAGE_MIN_BYTES => {
            vec![(LoopXfs, None), (Directory, None)]
        }
        false => {
            let why = "on a disk a buffer below 300MiB is a plain directory";
            vec![(Directory, Some(why.into()))]
        }
    })
}

/// The kind that a store of this capacity on this flash would be tried as first; `kind`: the one that is
/// insisted on. Errors: as those of making it, as far as they can be foreseen.
pub(crate) fn expected_kind(
    flash: &Path,
    capacity_bytes: u64,
    kind: Option<StoreKind>,
) -> Result<StoreKind> {
    let flash = place::resolve_flash(Some(flash))?;
    let memory = place::is_memory(&flash)?;
    let key = StoreKey::mount(&flash);
    let options = StoreOptions { flash, key, capacity_bytes, kind, shared: false };
    let first = candidates(&options, memory)?.into_iter().next();
    Ok(first.map_or(StoreKind::Directory, |(kind, _)| kind))
}

/// What a store of a kind needs beside its capacity.
pub(crate) struct Needs {
    /// Bytes that FLASH must have free to make it.
    pub flash_bytes: u64,
    /// Room for its log and database.
    pub meta: MetaBudget,
}

/// What a store of this kind and capacity needs.
pub(crate) fn needs(kind: StoreKind, capacity_bytes: u64) -> Needs {
    let meta = MetaBudget::for_capacity(capacity_bytes, kind == StoreKind::LoopXfs);
    let flash_bytes = match kind {
        StoreKind::Tmpfs => capacity_bytes,
        StoreKind::LoopXfs => image::image_bytes(capacity_bytes, meta),
        // Its log is allocated at once.
        StoreKind::Directory => capacity_bytes + meta.log_bytes,
    };
    Needs { flash_bytes, meta }
}

fn may_mount() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

fn create_as(
    options: &StoreOptions,
    kind: StoreKind,
    served_reason: Option<&str>,
) -> Result<(PathBuf, StoreRecord, StoreLock)> {
    let dir = place::store_dir(&options.flash, &options.key);
    let record = new_record(options, kind, served_reason)?;
    check_room(&options.flash, &dir, &record, record.capacity_bytes)?;
    match fs::DirBuilder::new().mode(0o700).create(&dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(error).at("make the store", &dir);
        }
        _ => (),
    }
    place::is_own_directory(&dir)?;
    step("a store has its directory");
    let lock = StoreLock::acquire(&dir)?
        .ok_or_else(|| fail("make the store", &dir, "it was removed at the same moment"))?;
    if record::load(&dir)?.is_some() {
        return Err(fail("make the store", &dir, "another process made it at the same moment")
            .errno(libc::EEXIST)
            .hint("try again"));
    }
    fill(options, &dir, record).map(|record| (dir, record, lock))
}

/// Writes the record and makes the contents; removes all of it on an error.
fn fill(options: &StoreOptions, dir: &Path, mut record: StoreRecord) -> Result<StoreRecord> {
    let made = record::save(dir, &record).and_then(|()| {
        step("a store says that it is being made");
        match record.kind {
            StoreKind::Tmpfs => tmpfs::make(dir, &record),
            StoreKind::LoopXfs => image::make(dir, &record),
            StoreKind::Directory => ["data", "meta", "plans"]
                .iter()
                .try_for_each(|name| tmpfs::make_private_dir(&dir.join(name))),
        }
    });
    step("a store has its contents");
    let ready = made.and_then(|()| {
        fs::set_permissions(dir, fs::Permissions::from_mode(options.dir_mode()))
            .at("set the mode of the store", dir)?;
        record.state = StoreState::Ready;
        record::save(dir, &record)
    });
    match ready {
        Ok(()) => Ok(record),
        Err(mut error) => {
            if let Err(left) = remove::remove_store(dir, &record) {
                error.why = format!("{}; and it could not be removed again: {left}", error.why);
            }
            Err(error)
        }
    }
}

fn new_record(
    options: &StoreOptions,
    kind: StoreKind,
    served_reason: Option<&str>,
) -> Result<StoreRecord> {
    let capacity_bytes = options.capacity();
    let preallocate = kind == StoreKind::LoopXfs;
    Ok(StoreRecord {
        format: FLASH_FORMAT,
        uuid: match &options.key {
            StoreKey::Buffer { uuid, .. } => uuid.clone(),
            StoreKey::Mount { .. } => record::new_uuid()?,
        },
        kind,
        capacity_bytes,
        growing_to_bytes: None,
        meta: MetaBudget::for_capacity(capacity_bytes, preallocate),
        key: options.key.clone(),
        created_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        uid: rustix::process::geteuid().as_raw(),
        boot_id: forebay_net::node::boot_id(),
        shared: options.shared,
        served_reason: served_reason.filter(|_| kind == StoreKind::Directory).map(Into::into),
        state: StoreState::Creating,
    })
}

/// A buffer is a reservation: refused if FLASH has not the room now for `more_bytes`. An image
/// allocates its room and needs no such check; memory is counted with what the other buffers on
/// the same FLASH may still fill.
pub(super) fn check_room(
    flash: &Path,
    dir: &Path,
    record: &StoreRecord,
    more_bytes: u64,
) -> Result<()> {
    if record.kind == StoreKind::LoopXfs {
        return Ok(());
    }
    let stat = rustix::fs::statvfs(flash).at("look at flash", flash)?;
    let mut free_bytes = stat.f_bavail.saturating_mul(stat.f_frsize);
    // A tmpfs that was mounted without a size limit says zero.
    if stat.f_blocks == 0 {
        return Ok(());
    }
    if record.kind == StoreKind::Tmpfs {
        let others = list(flash)?;
        let reserved: u64 = others
            .iter()
            // Without the right to mount nobody has a tmpfs of Forebay: what others say they have
            // need not be so.
            .filter(|other| other.own)
            .filter(|other| other.dir != dir || record.state == StoreState::Ready)
            .filter_map(|other| other.record.as_ref().ok())
            .map(|other| other.capacity_bytes)
            .sum();
        free_bytes = free_bytes.saturating_sub(reserved);
    }
    // In a plain directory the log is allocated at once, beside the capacity.
    let allocates = record.kind == StoreKind::Directory && record.state == StoreState::Creating;
    let log_bytes = if allocates { record.meta.log_bytes } else { 0 };
    if free_bytes < more_bytes.saturating_add(log_bytes) {
        let beside = match log_bytes {
            0 => String::new(),
            _ => format!(" and {} for metadata", format_bytes(log_bytes)),
        };
        let why = format!(
            "no space: {more_bytes} bytes ({}){beside} were asked for, {free_bytes} bytes ({}) are free",
            format_bytes(more_bytes),
            format_bytes(free_bytes)
        );
        return Err(fail("reserve a buffer's capacity on", flash, &why)
            .errno(libc::ENOSPC)
            .hint("ask for less, destroy other buffers (`forebay status` lists them), or give another --flash"));
    }
    Ok(())
}
