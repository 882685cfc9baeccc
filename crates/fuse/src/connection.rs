//! What all threads of one mount share, and the conversions between the kernel's structures
//! and those of `forebay-proto`.

use crate::abi::{self, init};
use crate::beside::Beside;
use crate::buffer::{Believed, Reply};
use crate::device::Device;
use crate::dirs::DirHandles;
use crate::handles::Handles;
use crate::init::Agreed;
use crate::lifetime::Lifetimes;
use crate::limits::Within;
use crate::locks::LockRequests;
use crate::lone_sgid::LoneSgid;
use crate::moves::Moves;
use crate::opens::{OpenTable, Releases};
use crate::options::{FastPath, MountFlags, MountOptions};
use crate::root::Root;
use crate::tally::Tally;
use crate::tries::Tries;
use crate::waits::Waits;
use crate::workers::Workers;
use forebay_activity::{Activity, Begun};
use forebay_proto::activity::ActivityKind;
use forebay_proto::api::{LocalFiles, Locks, SharedNames};
use forebay_proto::{Attr, Caller, Errno, FileSystem, Ino, Notify, Timestamp};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// One mount.
pub(crate) struct Connection {
    pub(crate) fs: Arc<dyn FileSystem>,
    /// For registrations and notifications, which belong to no request.
    pub(crate) device: Arc<Device>,
    pub(crate) opens: OpenTable,
    /// What programs do beside the kernel.
    pub(crate) beside: Beside,
    pub(crate) dirs: DirHandles,
    /// Names for what the kernel finds by handle.
    pub(crate) handles: Handles,
    /// Old names of directories that were moved.
    pub(crate) moves: Arc<Moves>,
    pub(crate) workers: Workers,
    pub(crate) waits: Waits,
    pub(crate) fast_path: FastPath,
    pub(crate) agreed: Agreed,
    pub(crate) lifetimes: Lifetimes,
    /// Requests for locks that wait, and who locked what through which file.
    pub(crate) locks: Arc<LockRequests>,
    /// Those of them that wait only for a moment.
    pub(crate) tries: Tries,
    /// What went through.
    pub(crate) tally: Tally,
    /// What is done with files, for who watches.
    pub(crate) activity: Arc<Activity>,
    reads_are_hits: bool,
    /// Flags of the mount.
    pub(crate) flags: MountFlags,
    /// Limits of what is made and written.
    pub(crate) within: Within,
    /// Files whose sgid a write may have to take off.
    pub(crate) lone_sgid: LoneSgid,
    next_handle: AtomicU64,
    /// Who tells the kernel of changes; nobody before the session has begun.
    notify: OnceLock<Arc<dyn Notify>>,
}

impl Connection {
    pub(crate) fn new(
        fs: Arc<dyn FileSystem>,
        device: Arc<Device>,
        options: &MountOptions,
        agreed: Agreed,
        fast_path: FastPath,
    ) -> Connection {
        Connection {
            waits: Waits::new(fs.may_hang()),
            fs,
            device,
            opens: OpenTable::new(),
            beside: Beside::new(),
            dirs: DirHandles::new(),
            handles: Handles::new(options.by_handle.as_deref()),
            moves: Arc::default(),
            workers: Workers::new(options.worker_count()),
            fast_path,
            agreed,
            lifetimes: Lifetimes::new(options, agreed),
            locks: Arc::new(LockRequests::new()),
            tries: Tries::default(),
            tally: Tally::new(),
            activity: options.activity.clone(),
            reads_are_hits: options.reads_are_hits,
            flags: options.flags,
            within: Within::new(options.limits),
            lone_sgid: LoneSgid::default(),
            next_handle: AtomicU64::new(1),
            notify: OnceLock::new(),
        }
    }

    /// Says who tells the kernel of changes.
    pub(crate) fn set_notify(&self, notify: Arc<dyn Notify>) {
        // Once: a session has one.
        let _same = self.notify.set(notify);
    }

    /// Data of a file may have changed of which the kernel does not hear by an answer: it drops what it has, a moment later. Not
    /// here: it waits for pages that requests hold.
    pub(crate) fn changed_in_part(&self, ino: Ino) {
        if let Some(notify) = self.notify.get() {
            notify.inode_changed(ino);
        }
    }

    /// Bytes were served from flash or to it.
    pub(crate) fn moved(&self, begun: Begun, kind: ActivityKind, ino: Ino, at: u64, bytes: usize) {
        if self.reads_are_hits {
            let place = (at, bytes as u64);
            self.activity.end(begun, kind, ino, place, bytes as i64);
        }
    }

    /// The file system's locks, if the kernel sends requests for them.
    pub(crate) fn served_locks(&self) -> Option<&dyn Locks> {
        if self.agreed.has(init::POSIX_LOCKS) { self.fs.locks() } else { None }
    }

    /// A number for a file that is being opened. Only locks need to know through which file
    /// they were taken.
    pub(crate) fn new_handle(&self) -> u64 {
        match self.served_locks() {
            Some(_) => self.next_handle.fetch_add(1, Ordering::Relaxed),
            None => 0,
        }
    }

    /// Tells the file system of opens that have ended.
    pub(crate) fn release(&self, ino: Ino, releases: Releases) {
        (0..releases.plain).for_each(|_| self.fs.release(ino, false));
        (0..releases.local).for_each(|_| self.fs.release(ino, true));
    }

    /// After a change of names in a directory: with `sync` or `dirsync` it is on flash when the call returns.
    pub(crate) fn names_changed(&self, dir: Ino) -> Result<(), Errno> {
        match self.flags.syncs_names() {
            true => self.fs.fsyncdir(dir),
            false => Ok(()),
        }
    }

    pub(crate) fn wants_local(&self) -> bool {
        self.fast_path == FastPath::On && self.within.let_objects_go()
    }

    /// The files that programs may have themselves.
    pub(crate) fn local_files(&self) -> Option<&dyn LocalFiles> {
        if self.within.let_objects_go() { self.fs.local_files() } else { None }
    }

    /// The names that are shared with them.
    pub(crate) fn shared_names(&self) -> Option<&dyn SharedNames> {
        self.local_files()?.shared_names()
    }

    pub(crate) fn has_setxattr_ext(&self) -> bool {
        self.agreed.has(init::SETXATTR_EXT)
    }

    /// Answers with an entry of a directory.
    pub(crate) fn put_entry(&self, reply: &mut Reply, parent: Ino, attr: &Attr) {
        reply.believe(Believed::Entry { at: reply.len(), parent, ino: attr.ino });
        self.beside.told(attr.ino);
        self.lone_sgid.seen(attr);
        let attr_out = self.raw_attr(attr);
        reply.put(&abi::EntryOut { nodeid: attr_out.ino, attr: attr_out, ..Default::default() });
    }

    /// Answers "there is no such name", to be remembered.
    pub(crate) fn put_negative_entry(&self, reply: &mut Reply, parent: Ino) {
        reply.believe(Believed::Negative { at: reply.len(), parent });
        reply.put(&abi::EntryOut::default());
    }

    pub(crate) fn put_attr(&self, reply: &mut Reply, attr: &Attr) {
        reply.believe(Believed::Attr { at: reply.len(), ino: attr.ino });
        self.lone_sgid.seen(attr);
        reply.put(&abi::AttrOut { attr: self.raw_attr(attr), ..Default::default() });
    }

    pub(crate) fn put_statx(&self, reply: &mut Reply, attr: &Attr) {
        reply.believe(Believed::Attr { at: reply.len(), ino: attr.ino });
        // The kernel's 32-bit encoding: minor bits 20..8 above major's 12 bits above minor 8..0.
        let (major, minor) =
            ((attr.rdev & 0xf_ff00) >> 8, (attr.rdev & 0xff) | ((attr.rdev >> 12) & 0xf_ff00));
        let stat = abi::RawStatx {
            mask: libc::STATX_BASIC_STATS | libc::STATX_BTIME,
            blksize: attr.blksize_bytes,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            mode: attr.mode as u16,
            ino: self.device.root().node_of(attr.ino),
            size: attr.size_bytes,
            blocks: attr.blocks_512,
            atime: sx_time(attr.atime),
            btime: sx_time(attr.btime),
            ctime: sx_time(attr.ctime),
            mtime: sx_time(attr.mtime),
            rdev_major: major,
            rdev_minor: minor,
            ..Default::default()
        };
        reply.put(&abi::StatxOut { stat, ..Default::default() });
    }

    fn raw_attr(&self, attr: &Attr) -> abi::RawAttr {
        abi::RawAttr { ino: self.device.root().node_of(attr.ino), ..raw_attr(attr) }
    }
}

fn sx_time(t: Timestamp) -> abi::SxTime {
    abi::SxTime { sec: t.sec, nsec: t.nsec, reserved: 0 }
}

fn raw_attr(attr: &Attr) -> abi::RawAttr {
    abi::RawAttr {
        ino: attr.ino.0,
        size: attr.size_bytes,
        blocks: attr.blocks_512,
        atime: attr.atime.sec as u64,
        mtime: attr.mtime.sec as u64,
        ctime: attr.ctime.sec as u64,
        atimensec: attr.atime.nsec,
        mtimensec: attr.mtime.nsec,
        ctimensec: attr.ctime.nsec,
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: attr.blksize_bytes,
        flags: 0,
    }
}

/// One request, taken apart.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) head: abi::InHeader,
    /// Arguments.
    pub(crate) body: &'a [u8],
    /// Extensions.
    extensions: &'a [u8],
    root: Root,
}

impl<'a> Request<'a> {
    /// EINVAL if the lengths do not fit what was read.
    pub(crate) fn parse(bytes: &'a [u8], root: Root) -> Result<Request<'a>, Errno> {
        let mut rest = bytes;
        let head: abi::InHeader = crate::buffer::take(&mut rest)?;
        let extensions = usize::from(head.total_extlen_8) * 8;
        if head.len as usize != bytes.len() || extensions > rest.len() {
            return Err(Errno::EINVAL);
        }
        let (body, extensions) = rest.split_at(rest.len() - extensions);
        Ok(Request { head, body, extensions, root })
    }

    pub(crate) fn ino(&self) -> Ino {
        self.root.ino_of(self.head.nodeid)
    }

    /// Another inode that it names.
    pub(crate) fn other(&self, node: u64) -> Ino {
        self.root.ino_of(node)
    }

    /// Who asks, with the supplementary groups that the kernel sends with a creation.
    pub(crate) fn caller(&self) -> Result<Caller, Errno> {
        Ok(Caller {
            uid: self.head.uid,
            gid: self.head.gid,
            groups: self.groups()?,
            pid: self.head.pid,
            ..Caller::default()
        })
    }

    fn groups(&self) -> Result<Vec<u32>, Errno> {
        let mut groups = Vec::new();
        let mut rest = self.extensions;
        while !rest.is_empty() {
            let mut body = rest;
            let head: abi::ExtHeader = crate::buffer::take(&mut body)?;
            let size = (head.size as usize).next_multiple_of(8);
            if size < size_of::<abi::ExtHeader>() || size > rest.len() {
                return Err(Errno::EINVAL);
            }
            if head.kind == abi::EXT_GROUPS {
                let mut list = &body[..size - size_of::<abi::ExtHeader>()];
                let count: u32 = crate::buffer::take(&mut list)?;
                for _ in 0..count {
                    groups.push(crate::buffer::take(&mut list)?);
                }
            }
            rest = &rest[size..];
        }
        Ok(groups)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn parse(bytes: &[u8]) -> Result<Request<'_>, Errno> {
        Request::parse(bytes, Root::new(Ino::ROOT))
    }

    fn request(body: &[u8], extension: &[u32]) -> Vec<u8> {
        let head = abi::InHeader {
            len: (40 + body.len() + 4 * extension.len()) as u32,
            opcode: abi::op::MKDIR,
            total_extlen_8: (extension.len() / 2) as u16,
            ..Default::default()
        };
        [head.as_bytes(), body, extension.as_bytes()].concat()
    }

    #[test]
    fn groups_are_read_from_the_extension() {
        let bytes = request(b"name\0", &[16, abi::EXT_GROUPS, 1, 4711]);
        let parsed = parse(&bytes).unwrap();
        assert_eq!(parsed.body, b"name\0");
        assert_eq!(parsed.caller().unwrap().groups, [4711]);
    }

    #[test]
    fn wrong_lengths_are_refused() {
        for extension in [&[16, abi::EXT_GROUPS, 9, 1][..], &[64, 32, 0, 0], &[0, 32, 0, 0]] {
            let bytes = request(b"", extension);
            assert_eq!(parse(&bytes).unwrap().caller(), Err(Errno::EINVAL));
        }
        let bytes = request(b"", &[]);
        assert!(parse(&bytes[..39]).is_err());
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(parse(&longer).is_err());
    }
}
