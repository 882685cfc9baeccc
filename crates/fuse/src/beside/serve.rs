//! One program's connection, from hello to its end.
//!
//! Who asks is who connected. That it may use the mount is proven by the mount's root directory, which it sends along:
//! whoever cannot reach that cannot ask here. Each connection has a thread, as many as [`MAX_CONNECTIONS`]; a program
//! that gets none uses the mount.

use super::messages::{Asked, Messages, send};
use super::ops::From;
use super::walk::No;
use super::{Parts, lingers};
use forebay_awake::Follower;
use forebay_preload_wire::{
    Answer, Attributes, BELIEVED, BY_KERNEL, MADE, Request, TABLE, VERSION, Welcome, op, start,
};
use forebay_proto::api::SharedNames;
use forebay_proto::{Attr, Caller, Errno, Ino};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, makedev, statx};
use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use zerocopy::IntoBytes;

const NOT_WELCOME: Welcome =
    Welcome { status: BY_KERNEL, version: VERSION, store_device: 0, root: 0 };

/// Most connections at a time.
const MAX_CONNECTIONS: usize = 512;

/// Where programs ask.
pub struct Door {
    pub(super) parts: Parts,
    mount_point: PathBuf,
    /// `st_dev` of the mount.
    device: u64,
    connections: AtomicUsize,
}

/// A connection, counted.
struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Where the paths of a connection begin.
#[derive(Default)]
struct Starts {
    root: Option<Ino>,
    cwd: Option<Ino>,
}

impl Door {
    pub(crate) fn new(parts: Parts, mount_point: PathBuf) -> std::io::Result<Door> {
        let place = rustix::fs::open(&mount_point, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let (device, _) = place_of(&place).ok_or_else(std::io::Error::last_os_error)?;
        // Without the right to this no descriptor could be exchanged.
        let root = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&mount_point, root, Mode::empty())?;
        open_by_number(&opened, Ino::ROOT, root.bits() as i32)
            .map_err(|errno| std::io::Error::from_raw_os_error(errno.0))?;
        Ok(Door { parts, mount_point, device, connections: AtomicUsize::new(0) })
    }

    /// The thread that looks after files without names; ends with the mount. Says when names are shared, if they are.
    pub(crate) fn run_lingers(&self, ready: &Sender<()>) {
        lingers::run(&self.parts.cx, ready);
    }

    /// True if a program has a file open or mapped that it got here.
    pub fn is_in_use(&self) -> bool {
        let beside = self.parts.beside();
        if let Some(names) = self.names() {
            // From here on who opens a file asks, and lets others go on doing so by themselves.
            names.set_open(false);
        }
        let given = beside.given.all();
        given.iter().for_each(|&ino| beside.settle(&self.parts.cx, ino));
        given.into_iter().any(|ino| beside.given.has(ino))
            || self.names().is_some_and(SharedNames::has_unseen)
    }

    /// Whether programs open files that this process is not told of.
    pub fn has_unseen(&self) -> bool {
        self.names().is_some()
    }

    fn names(&self) -> Option<&dyn SharedNames> {
        self.parts.cx.shared_names().filter(|names| names.is_active())
    }

    /// Serves a connection until the program is gone.
    pub fn serve(&self, socket: &OwnedFd, caller: &Caller) {
        let _counted = Counted(&self.connections);
        if self.connections.fetch_add(1, Ordering::AcqRel) >= MAX_CONNECTIONS {
            return;
        }
        let mut messages = Messages::new(socket);
        let mut starts = Starts::default();
        let mut follower = Follower::new();
        while let Some(asked) = messages.next() {
            forebay_awake::request();
            follower.asked_from(asked.request.asked_from());
            if asked.request.version != VERSION {
                send(socket, NOT_WELCOME.as_bytes(), []);
                break;
            }
            let goes_on = match (asked.request.op, starts.root) {
                (op::HELLO, None) => self.hello(socket, caller, &asked, &mut starts),
                (op::HELLO, Some(_)) | (_, None) => false,
                _ => self.answer(socket, caller, asked, &mut starts),
            };
            if !goes_on {
                break;
            }
        }
        self.parts.beside().lingers.look();
    }

    fn hello(
        &self,
        socket: &OwnedFd,
        caller: &Caller,
        asked: &Asked<'_>,
        starts: &mut Starts,
    ) -> bool {
        let local = self.parts.cx.local_files();
        let (Some(root), Some(local)) = (self.inode_of(asked.file.as_ref()), local) else {
            send(socket, NOT_WELCOME.as_bytes(), []);
            return false;
        };
        self.parts.begin();
        starts.root = Some(root);
        let welcome =
            Welcome { status: 0, version: VERSION, store_device: local.device(), root: root.0 };
        // It tells all names: to who could read them anyway.
        let same_user = caller.uid == rustix::process::geteuid().as_raw();
        let names = local.shared_names().filter(|_| same_user && asked.request.flags & TABLE != 0);
        let table = names.and_then(|names| {
            let table = names.table()?;
            names.set_open(true);
            names.put_inode(root);
            Some(table)
        });
        send(socket, welcome.as_bytes(), table)
    }

    /// The inode of a directory or file of this mount.
    fn inode_of(&self, file: Option<&File>) -> Option<Ino> {
        let (device, ino) = place_of(file?)?;
        (device == self.device).then_some(Ino(ino))
    }

    /// Answers one request; false at the end.
    fn answer(
        &self,
        socket: &OwnedFd,
        caller: &Caller,
        asked: Asked<'_>,
        starts: &mut Starts,
    ) -> bool {
        let Asked { request, path, file } = asked;
        if request.op == op::CWD {
            starts.cwd = self.inode_of(file.as_ref());
            if let (Some(names), Some(cwd)) = (self.names(), starts.cwd) {
                names.put_inode(cwd);
            }
            let done = if starts.cwd.is_some() { Ok(None) } else { Err(No::ByKernel) };
            return self.send(socket, done);
        }
        let start = match request.start {
            start::ROOT => starts.root,
            start::CWD => starts.cwd,
            _ => self.inode_of(file.as_ref()),
        };
        match (request.op, &file, start) {
            (op::OPEN, _, Some(start)) => {
                let how = (request.flags, request.mode, request.umask);
                let end = self.parts.walk(From { caller, start, path });
                let opened = end.and_then(|end| self.parts.open(caller, &end, how));
                let Ok(opened) = opened else { return self.send(socket, opened.map(|_| None)) };
                let flags = if opened.made { MADE } else { 0 };
                let answer = Answer { status: 0, flags, attributes: attributes(&opened.attr) };
                let sent = send(socket, answer.as_bytes(), [&opened.file]);
                drop(opened.file);
                self.parts.sent(opened.attr.ino);
                sent
            }
            (op::EXCHANGE, Some(file), _) => match self.exchange(file) {
                Ok(file) => send(socket, Answer::default().as_bytes(), [&file]),
                Err(no) => self.send(socket, Err(no)),
            },
            (op::FSTAT, Some(file), _) => self.send(socket, self.parts.stat_given(file).map(Some)),
            (op::FSYNC, Some(file), _) => {
                let done = self.parts.sync_given(file, request.flags & 1 != 0);
                self.send(socket, done.map(|()| None))
            }
            (op::UNLINK, _, Some(start)) => {
                let end = self.parts.walk(From { caller, start, path });
                let removed = end.and_then(|end| self.parts.unlink(caller, &end));
                self.send(socket, removed.map(|()| None))
            }
            (op::OPEN_MANY | op::STAT_MANY | op::UNLINK_MANY, _, Some(start)) => {
                self.answer_many(socket, From { caller, start, path }, &request)
            }
            (_, _, Some(start)) => {
                let told = self.tell(From { caller, start, path }, &request);
                send(socket, told.as_bytes(), [])
            }
            _ => self.send(socket, Err(No::ByKernel)),
        }
    }

    /// Answers what changes nothing.
    fn tell(&self, from: From<'_>, request: &Request) -> Answer {
        let nofollow = request.flags as i32 & libc::AT_SYMLINK_NOFOLLOW != 0;
        let told = self.parts.walk(from).and_then(|end| match request.op {
            op::STAT => self.parts.stat(from.caller, &end, nofollow),
            op::ACCESS => self.parts.access(from.caller, &end, nofollow, request.mode),
            _ => Err(No::ByKernel),
        });
        Door::told(told)
    }

    /// What is said of attributes, or that there is no such name.
    pub(super) fn told(told: Result<(Option<Attr>, bool), No>) -> Answer {
        let flags = |believed| if believed { BELIEVED } else { 0 };
        match told {
            Ok((Some(attr), believed)) => {
                Answer { status: 0, flags: flags(believed), attributes: attributes(&attr) }
            }
            Ok((None, believed)) => {
                Answer { status: libc::ENOENT, flags: flags(believed), ..Answer::default() }
            }
            Err(No::Certain(errno)) => Answer { status: errno.0, ..Answer::default() },
            Err(No::ByKernel) => Answer { status: BY_KERNEL, ..Answer::default() },
        }
    }

    fn send(&self, socket: &OwnedFd, answer: Result<Option<Attr>, No>) -> bool {
        let mut out = Answer::default();
        match answer {
            Ok(Some(attr)) => out.attributes = attributes(&attr),
            Ok(None) => {}
            Err(No::Certain(errno)) => out.status = errno.0,
            Err(No::ByKernel) => out.status = BY_KERNEL,
        }
        send(socket, out.as_bytes(), [])
    }

    /// The same file through the mount, open in the same way. A mount that this process cannot open files of by
    /// number has none.
    fn exchange(&self, file: &File) -> Result<File, No> {
        let (ino, name) = self.parts.inode_given(file)?;
        let errno = |error: rustix::io::Errno| No::Certain(Errno(error.raw_os_error()));
        let flags = rustix::fs::fcntl_getfl(file).map_err(errno)?;
        // Opened for this alone: a descriptor that is kept would keep the mount busy.
        let root = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&self.mount_point, root, Mode::empty()).map_err(errno)?;
        if place_of(&root).map(|(device, _)| device) != Some(self.device) {
            return Err(No::Certain(Errno::ENOTCONN));
        }
        let kept =
            OFlags::from_bits_retain(libc::O_ACCMODE as u32) | OFlags::APPEND | OFlags::NONBLOCK;
        let flags = (flags & kept) | OFlags::CLOEXEC;
        // The kernel knows the file by its name then, and shows that in /proc.
        let _named = name.and_then(|(dir, name)| {
            let dir = open_by_number(&root, dir, (OFlags::PATH | OFlags::CLOEXEC).bits() as i32);
            let look = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(dir.ok()?, &*name, look, Mode::empty()).ok()
        });
        open_by_number(&root, ino, flags.bits() as i32).map_err(No::Certain)
    }
}

/// `struct file_handle` with what the kernel's FUSE puts there: number and generation.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    ino: [u32; 2],
    generation: u32,
}

/// FILEID_INO64_GEN of linux/exportfs.h, as FUSE numbers it.
const HANDLE_OF_FUSE: i32 = 0x81;

fn open_by_number(root: &OwnedFd, ino: Ino, flags: i32) -> Result<File, Errno> {
    let mut handle = Handle {
        bytes: 12,
        kind: HANDLE_OF_FUSE,
        ino: [(ino.0 >> 32) as u32, ino.0 as u32],
        generation: 0,
    };
    // SAFETY: the call reads a handle of the size that it says, which lives until it returns.
    let fd = unsafe {
        libc::syscall(libc::SYS_open_by_handle_at, root.as_raw_fd(), &raw mut handle, flags)
    };
    if fd < 0 {
        return Err(Errno::last());
    }
    // SAFETY: the kernel has just given this descriptor to nobody else.
    Ok(unsafe { File::from_raw_fd(fd as i32) })
}

/// Device and inode number, by what the kernel knows without asking: it would ask this process.
fn place_of(file: &impl AsFd) -> Option<(u64, u64)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::from_bits_retain(libc::AT_STATX_DONT_SYNC as u32);
    let name = CString::default();
    let stat = statx(file.as_fd(), name, flags, StatxFlags::INO).ok()?;
    Some((makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino))
}

fn attributes(attr: &Attr) -> Attributes {
    let times = [attr.atime, attr.mtime, attr.ctime, attr.btime];
    Attributes {
        ino: attr.ino.0,
        size_bytes: attr.size_bytes,
        blocks_512: attr.blocks_512,
        sec: times.map(|time| time.sec),
        nsec: times.map(|time| time.nsec),
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        blksize_bytes: attr.blksize_bytes,
        padding: 0,
    }
}
