//! Connections to the processes of mounts, each a thread's own.

use crate::alone::{self, Mapping, Told};
use crate::places::{self, Found, Mount, Start};
use forebay_net::socket_path::with_short_path;
use forebay_preload_wire::{
    Answer, MANY_MAX, PATH_MAX, Request, SOCKET_NAME, TABLE, VERSION, Welcome, op, start,
};
use rustix::fs::{Mode, OFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, recvmsg, sendmsg, socket_with, sockopt,
};
use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::IntoBytes;

/// Most mounts that a thread keeps a connection to.
const CONNECTIONS_MAX: usize = 16;
/// How often a mount that cannot be reached is passed over before it is tried again.
const PASS_OVER: u32 = 256;
/// Most supplementary groups by which a thread is known; one with more has no connection.
const GROUPS_MAX: usize = 64;

/// `st_dev` of the files that mounts have given out to this process; 0: none yet. Files of a mount that has
/// ended are known by it.
static STORE_DEVICES: [AtomicU64; CONNECTIONS_MAX] = [const { AtomicU64::new(0) }; CONNECTIONS_MAX];

fn learn(device: u64) {
    let is_free = |known: &&AtomicU64| {
        let before = known.compare_exchange(0, device, Ordering::AcqRel, Ordering::Acquire);
        before.is_ok() || before == Err(device)
    };
    let _known = STORE_DEVICES.iter().find(is_free);
}

fn is_store(device: u64) -> bool {
    device != 0 && STORE_DEVICES.iter().any(|known| known.load(Ordering::Acquire) == device)
}

/// What came of a question about one path.
pub(crate) struct Reply {
    pub(crate) answer: Answer,
    pub(crate) fd: Option<OwnedFd>,
}

/// Who a thread is, as the kernel judges what it does.
#[derive(Clone, PartialEq, Eq)]
struct Who {
    pid: i32,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

impl Who {
    /// `None` if whoever reads a socket's other end would see another one, or too many groups.
    fn now() -> Option<Who> {
        let mut groups = [0; GROUPS_MAX];
        // SAFETY: room for as many numbers as said; the calls change nothing: -1 is no id.
        let (count, uid, gid, effective) = unsafe {
            (
                libc::getgroups(GROUPS_MAX as i32, groups.as_mut_ptr()),
                libc::setfsuid(u32::MAX) as u32,
                libc::setfsgid(u32::MAX) as u32,
                (libc::geteuid(), libc::getegid()),
            )
        };
        let groups = groups.get(..usize::try_from(count).ok()?)?.to_vec();
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        ((uid, gid) == effective).then_some(Who { pid, uid, gid, groups })
    }
}

struct Connection {
    store: PathBuf,
    device: u64,
    who: Who,
    socket: OwnedFd,
    /// `st_dev` of the files that are given out.
    store_device: u64,
    /// What is told in shared memory, and the inode where paths begin.
    table: Option<Rc<Mapping>>,
    root: u64,
}

#[derive(Default)]
struct Pool {
    connections: Vec<Connection>,
    /// Mounts that could not be reached, and how many times each is passed over still.
    passed: Vec<(PathBuf, u32)>,
}

thread_local! {
    static POOL: RefCell<Pool> = RefCell::default();
}

impl Pool {
    /// The connection to a mount, as who this thread is now.
    fn to(&mut self, mount: &Mount, fresh: bool) -> Option<&mut Connection> {
        let who = Who::now()?;
        let is_it = |c: &Connection| c.device == mount.device && c.store == mount.store;
        // Of another process (this is a child of fork) or user: closed.
        self.connections.retain(|c| !is_it(c) || (c.who == who && !fresh));
        if let Some(at) = self.connections.iter().position(is_it) {
            return self.connections.get_mut(at);
        }
        if let Some(passed) = self.passed.iter_mut().find(|(store, _)| *store == mount.store)
            && passed.1 > 0
            && !fresh
        {
            passed.1 -= 1;
            return None;
        }
        self.passed.retain(|(store, _)| *store != mount.store);
        match Connection::open(mount, who) {
            Some(connection) => {
                self.connections.truncate(CONNECTIONS_MAX - 1);
                self.connections.insert(0, connection);
                self.connections.first_mut()
            }
            None => {
                self.passed.truncate(CONNECTIONS_MAX - 1);
                self.passed.insert(0, (mount.store.clone(), PASS_OVER));
                None
            }
        }
    }

    fn close(&mut self, mount: &Mount) {
        self.connections.retain(|c| c.device != mount.device || c.store != mount.store);
    }
}

/// What came back: its length is as expected.
pub(crate) struct Received {
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl Connection {
    fn open(mount: &Mount, who: Who) -> Option<Connection> {
        let kind = SocketType::SEQPACKET;
        let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).ok()?;
        let path = mount.store.join(SOCKET_NAME);
        with_short_path(&path, |path| Ok(connect(&socket, &SocketAddrUnix::new(path)?)?)).ok()?;
        // Descriptors of this process go there: so only to root, or to a process of the same user.
        let peer = sockopt::socket_peercred(&socket).ok()?.uid.as_raw();
        if peer != 0 && peer != who.uid {
            return None;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&mount.point, flags, Mode::empty()).ok()?;
        let store = mount.store.clone();
        let (device, store_device) = (mount.device, 0);
        let mut made =
            Connection { store, device, who, socket, store_device, table: None, root: 0 };
        let request =
            Request { version: VERSION, op: op::HELLO, flags: TABLE, ..Request::default() };
        let mut welcome = Welcome::default();
        if !made.send(&request, &[], Some(root.as_fd())) {
            return None;
        }
        let told = made.receive(welcome.as_mut_bytes(), true)?.descriptors;
        made.table = told.first().and_then(alone::map);
        made.root = welcome.root;
        made.store_device = welcome.store_device;
        learn(welcome.store_device);
        (welcome.status == 0 && welcome.version == VERSION).then_some(made)
    }

    /// False: nobody has got it.
    fn send(&mut self, request: &Request, text: &[u8], given: Option<BorrowedFd<'_>>) -> bool {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let given: Vec<BorrowedFd<'_>> = given.into_iter().collect();
        if !given.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&given)) {
            return false;
        }
        let request = request.here();
        let parts = [IoSlice::new(request.as_bytes()), IoSlice::new(text)];
        loop {
            match sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL) {
                Err(rustix::io::Errno::INTR) => {}
                sent => return sent.is_ok(),
            }
        }
    }

    /// Fills `into`; `None` if the other side is gone, or says what it must not.
    fn receive(&mut self, into: &mut [u8], close_on_exec: bool) -> Option<Received> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MANY_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = if close_on_exec { RecvFlags::CMSG_CLOEXEC } else { RecvFlags::empty() };
        let wanted = into.len();
        let received = loop {
            let mut parts = [IoSliceMut::new(into)];
            match recvmsg(&self.socket, &mut parts, &mut control, flags) {
                Err(rustix::io::Errno::INTR) => {}
                other => break other.ok()?,
            }
        };
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                descriptors.extend(more);
            }
        }
        let whole = received.bytes == wanted && !received.flags.contains(ReturnFlags::TRUNC);
        whole.then_some(Received { descriptors })
    }
}

/// Asks a mount: the text goes with the request, the answer fills `into`. `None`: nobody could be asked.
pub(crate) fn question(
    (mount, start): (&Rc<Mount>, &Start),
    mut request: Request,
    text: &[u8],
    into: &mut [u8],
) -> Option<Received> {
    request.version = VERSION;
    let given = match start {
        Start::Root => None,
        Start::Given(dir) => {
            request.start = start::GIVEN;
            Some(dir.as_fd())
        }
    };
    let opens = matches!(request.op, op::OPEN | op::OPEN_MANY);
    let close_on_exec = !opens || request.flags as i32 & libc::O_CLOEXEC != 0;
    POOL.with(|pool| {
        // A signal handler that comes in between has the kernel.
        let mut pool = pool.try_borrow_mut().ok()?;
        // A connection from before the mount was started again ends at the first use.
        for fresh in [false, true] {
            let connection = pool.to(mount, fresh)?;
            if connection.send(&request, text, given) {
                let received = connection.receive(into, close_on_exec);
                if received.is_none() {
                    pool.close(mount);
                }
                return received;
            }
        }
        pool.close(mount);
        None
    })
}

/// What a mount tells in shared memory; `None`: it is to be asked.
pub(crate) fn told(mount: &Rc<Mount>, start: &Start) -> Option<Told> {
    POOL.with(|pool| {
        let mut pool = pool.try_borrow_mut().ok()?;
        let connection = pool.to(mount, false)?;
        let start = match start {
            Start::Root => connection.root,
            Start::Given(dir) => alone::inode_of(dir.as_fd())?,
        };
        let mapping = Rc::clone(connection.table.as_ref()?);
        Some(Told { mapping, store: connection.store.clone(), start, uid: connection.who.uid })
    })
}

/// Asks about one path. `None`: nobody could be asked.
pub(crate) fn ask(found: &Found<'_>, request: Request) -> Option<Reply> {
    if found.path.len() > PATH_MAX {
        return None;
    }
    let mut answer = Answer::default();
    let at = (&found.mount, &found.start);
    let received = question(at, request, found.path, answer.as_mut_bytes())?;
    Some(Reply { answer, fd: received.descriptors.into_iter().next() })
}

/// Asks about a descriptor that a mount may have given out; `None`: none has.
pub(crate) fn ask_about(file: BorrowedFd<'_>, mut request: Request) -> io::Result<Option<Reply>> {
    let stat = rustix::fs::fstat(file)?;
    if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Ok(None);
    }
    request.version = VERSION;
    let not_connected = || io::Error::from_raw_os_error(libc::ENOTCONN);
    POOL.with(|pool| {
        // A signal handler that comes in between.
        let mut pool = pool.try_borrow_mut().map_err(|_| not_connected())?;
        for mount in places::all() {
            if stat.st_dev == mount.device {
                return Ok(None);
            }
            for fresh in [false, true] {
                let Some(connection) = pool.to(&mount, fresh) else { break };
                if connection.store_device != stat.st_dev {
                    break;
                }
                let mut answer = Answer::default();
                if connection.send(&request, &[], Some(file))
                    && connection.receive(answer.as_mut_bytes(), true).is_some()
                {
                    return Ok(Some(Reply { answer, fd: None }));
                }
            }
        }
        if is_store(stat.st_dev) { Err(not_connected()) } else { Ok(None) }
    })
}
