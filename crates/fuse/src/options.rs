//! What a mount is asked for, and what it then is.

use crate::limits::Limits;
use crate::stood_on::AsksIfStoodOn;
use forebay_activity::Activity;
use forebay_proto::api::AccessTimes;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Most reader threads.
pub(crate) const MAX_READERS: usize = 16;
/// Most of them that move large blocks at once.
const MAX_ABREAST: usize = 8;
/// Most worker threads.
pub(crate) const MAX_WORKERS: usize = 64;
/// Fewest worker threads by default: they mostly sleep in fsync, and what sleeps together is
/// committed together.
const DEFAULT_WORKERS: usize = 4;

/// The flags of a mount that `mount(8)` knows, all off by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MountFlags {
    /// `ro`
    pub read_only: bool,
    /// `nosuid`
    pub nosuid: bool,
    /// `nodev`
    pub nodev: bool,
    /// `noexec`
    pub noexec: bool,
    /// `noatime`
    pub noatime: bool,
    /// `nodiratime`
    pub nodiratime: bool,
    /// `strictatime`
    pub strictatime: bool,
    /// `lazytime`
    pub lazytime: bool,
    /// `sync`
    pub sync: bool,
    /// `dirsync`
    pub dirsync: bool,
    /// `nosymfollow`
    pub nosymfollow: bool,
    /// `silent`
    pub silent: bool,
}

impl MountFlags {
    /// The names of those that are on, as `mount -o` takes them.
    pub fn names(self) -> Vec<&'static str> {
        let all = [
            (self.read_only, "ro"),
            (self.nosuid, "nosuid"),
            (self.nodev, "nodev"),
            (self.noexec, "noexec"),
            (self.noatime, "noatime"),
            (self.nodiratime, "nodiratime"),
            (self.strictatime, "strictatime"),
            (self.lazytime, "lazytime"),
            (self.sync, "sync"),
            (self.dirsync, "dirsync"),
            (self.nosymfollow, "nosymfollow"),
            (self.silent, "silent"),
        ];
        all.into_iter().filter(|(on, _)| *on).map(|(_, name)| name).collect()
    }

    /// Those that `fusermount3` is given. It refuses the names of the others. Access times are stored by this
    /// process in any case, as the kernel leaves them to a FUSE file system.
    pub(crate) fn names_for_helper(self) -> Vec<&'static str> {
        let (nodiratime, strictatime, lazytime, silent) = (false, false, false, false);
        MountFlags { nodiratime, strictatime, lazytime, silent, ..self }.names()
    }

    /// Whether each change of names is on flash when its call returns: `sync` says so of all that changes.
    pub(crate) fn syncs_names(self) -> bool {
        self.sync || self.dirsync
    }

    /// When reads of files store access times.
    pub(crate) fn access_times(self) -> AccessTimes {
        match () {
            () if self.noatime => AccessTimes::Never,
            () if self.strictatime => AccessTimes::Always,
            () => AccessTimes::Relative,
        }
    }

    /// When listings of directories do.
    pub(crate) fn access_times_of_dirs(self) -> AccessTimes {
        if self.nodiratime { AccessTimes::Never } else { self.access_times() }
    }
}

/// Who calls mount(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MountBy {
    /// This process if it may, `fusermount3` otherwise.
    #[default]
    Auto,
    /// This process.
    Direct,
    /// `fusermount3`, which always sets nosuid and nodev for who is not root.
    Helper,
}

/// How to mount.
#[derive(Debug)]
pub struct MountOptions {
    /// What stands in the first column of /proc/mounts, such as `forebay:/path/to/store`.
    pub source: OsString,
    /// Mount flags.
    pub flags: MountFlags,
    /// Let other users in. The kernel checks permissions in any case.
    pub allow_other: bool,
    /// Who calls mount(2).
    pub by: MountBy,
    /// Threads that read requests, 1 to 16; `None`: half the CPUs.
    pub readers: Option<usize>,
    /// Threads for requests that take long, 1 to 64; `None`: half the CPUs, at least 4. While all are held up there are more for a
    /// time, 48 in all.
    pub workers: Option<usize>,
    /// Keep a reader on the CPU of a client that asks many times in a row.
    pub follow_client: bool,
    /// One of the readers reads at a time ([`readers_abreast`] of them where several threads move large
    /// blocks), the others when it is stuck: for a file system whose answers may take long.
    pub standby: bool,
    /// How long the kernel may believe a name without asking. Changes made behind the mount
    /// are told by [`forebay_proto::Notify`]. At most 1 s is used on kernels before 6.16,
    /// which cannot drop all names at once when too many changes come at a time.
    pub entry_ttl: Duration,
    /// The same for the absence of a name.
    pub negative_ttl: Duration,
    /// The same for attributes.
    pub attr_ttl: Duration,
    /// Give local objects to the kernel (passthrough) where that works.
    pub fast_path: bool,
    /// A regular file of the store, open for reading and writing, to find out at mount time
    /// if passthrough works. `None`: the store has no local files, everything is served.
    pub probe: Option<File>,
    /// How deep file systems may be stacked at and below this mount: 1, or 2 for a store on an
    /// overlay or on another passthrough mount (nothing can then be stacked on this one).
    /// `None`: by the type of the probe's file system.
    pub max_stack_depth: Option<u32>,
    /// Where it is told, while somebody watches, which files the kernel has itself, and what is served.
    pub activity: Arc<Activity>,
    /// What is served is on flash: reads are hits. Not so for a cache, which tells by itself.
    pub reads_are_hits: bool,
    /// Limits of sizes and numbers of files.
    pub limits: Limits,
    /// The store is in memory, where nothing is to be on flash.
    pub in_memory: bool,
    /// A program that calls [`crate::help_with_handles`] first: so that files that are found by handle can go on being used.
    /// `None`: an overlay may say ESTALE of them.
    pub by_handle: Option<PathBuf>,
    /// Whether other mounts stand on this one: they would go with its names. `None`: nobody knows.
    pub asks_if_stood_on: Option<AsksIfStoodOn>,
}

/// One day: the kernel is told of what changes behind it.
const LONG_TTL: Duration = Duration::from_secs(86_400);

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            source: OsString::from("forebay"),
            flags: MountFlags::default(),
            allow_other: false,
            by: MountBy::Auto,
            readers: None,
            workers: None,
            follow_client: true,
            standby: false,
            entry_ttl: LONG_TTL,
            negative_ttl: LONG_TTL,
            attr_ttl: LONG_TTL,
            fast_path: true,
            probe: None,
            max_stack_depth: None,
            activity: Arc::default(),
            reads_are_hits: true,
            limits: Limits::default(),
            in_memory: false,
            by_handle: None,
            asks_if_stood_on: None,
        }
    }
}

fn half_the_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get() / 2)
}

/// How many readers of a mount move large blocks at once where the others stand by
/// ([`MountOptions::standby`]): half the CPUs, the programs that ask have the rest, but 2 to 8.
pub fn readers_abreast() -> usize {
    half_the_cpus().clamp(2, MAX_ABREAST)
}

impl MountOptions {
    /// Reader threads to start. One on two CPUs: a second was measured to cost more in wake-ups
    /// on the other CPU than it brings.
    pub(crate) fn reader_count(&self) -> usize {
        self.readers.unwrap_or_else(half_the_cpus).clamp(1, MAX_READERS)
    }

    /// Worker threads to start with.
    pub(crate) fn worker_count(&self) -> usize {
        self.workers.unwrap_or_else(|| half_the_cpus().max(DEFAULT_WORKERS)).clamp(1, MAX_WORKERS)
    }
}

/// Whether the kernel reads and writes local objects itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FastPath {
    /// Yes.
    On,
    /// No: every read and write is a request.
    Off {
        /// Why not.
        reason: FastPathOff,
    },
}

/// Why there is no passthrough.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FastPathOff {
    /// CAP_SYS_ADMIN in the initial user namespace is needed.
    NoPrivilege,
    /// The store's file system is itself stacked too deep.
    Stacking,
    /// Linux 6.9 or newer, built with FUSE passthrough, is needed.
    KernelTooOld,
    /// Turned off by an option.
    Disabled,
    /// The store has no whole local files.
    StoreIsServed,
    /// `sync`: the kernel does not tell the file behind that its writes are to be on flash when they return.
    Sync,
    /// The kernel refused with this errno.
    Refused(forebay_proto::Errno),
}

impl fmt::Display for FastPathOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FastPathOff::NoPrivilege => f.write_str("no privilege"),
            FastPathOff::Stacking => f.write_str("stacking"),
            FastPathOff::KernelTooOld => f.write_str("kernel too old"),
            FastPathOff::Disabled => f.write_str("disabled"),
            FastPathOff::StoreIsServed => f.write_str("store is served"),
            FastPathOff::Sync => {
                f.write_str("with -o sync each write is served, to be on flash when it returns")
            }
            FastPathOff::Refused(errno) => write!(f, "refused by the kernel: {errno}"),
        }
    }
}

impl fmt::Display for FastPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FastPath::On => f.write_str("on"),
            FastPath::Off { reason } => write!(f, "off ({reason})"),
        }
    }
}
