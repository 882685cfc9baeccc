//! The sockets on which mounts are asked. A thread takes one that is free, or opens one; if there is none left, the
//! kernel is asked instead, and about descriptors, of which it does not know, the mount on a connection for this one question. Nobody
//! waits for another thread here, but for giving way to others some times.
//!
//! A socket has a high number that programs do not use by themselves. Before a program takes or closes that number,
//! the socket gives it up ([`give_up`]); if it was closed past that, the next use fails and the kernel is asked.

use crate::places::{self, Found, Place, Start};
use crate::{identity, own, raw, report};
use forebay_preload_wire::{
    Answer, BY_KERNEL, PATH_MAX, Request, SOCKET_NAME, TABLE, VERSION, Welcome, op, start,
};
use libc::{c_int, iovec, msghdr};
use std::mem::zeroed;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use zerocopy::IntoBytes;

/// Sockets at a time: so many threads are served at once.
const SOCKETS_MAX: usize = 16;
/// Where their numbers begin, where the limit of open files allows that.
const NUMBERS_FROM: u64 = 900;
/// How often a thread gives way to those that have all sockets, before it makes a connection of its own.
const GIVE_WAY: u32 = 20;
/// How often it tries one, a millisecond apart: a mount may refuse more of them.
const TRIES: u32 = 1_000;
/// How often a mount that cannot be reached is passed over before it is tried again.
const PASS_OVER: u32 = 256;

struct Socket {
    busy: AtomicBool,
    fd: AtomicI32,
    place: AtomicU32,
    /// Who opened it, and when.
    pid: AtomicU32,
    ids: AtomicU64,
    who: AtomicU32,
    /// The current directory that was told.
    whereabouts: AtomicU32,
}

static SOCKETS: [Socket; SOCKETS_MAX] = [const {
    Socket {
        busy: AtomicBool::new(false),
        fd: AtomicI32::new(-1),
        place: AtomicU32::new(0),
        pid: AtomicU32::new(0),
        ids: AtomicU64::new(0),
        who: AtomicU32::new(0),
        whereabouts: AtomicU32::new(0),
    }
}; SOCKETS_MAX];

/// For each mount, how many times it is passed over still.
static PASSED: [AtomicU32; places::MOUNTS_MAX] = [const { AtomicU32::new(0) }; places::MOUNTS_MAX];

/// A word that a child of fork finds 0.
static OWN: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// What came of a question.
pub struct Reply {
    pub answer: Answer,
    /// -1: none came.
    pub fd: c_int,
    /// One came for which this process has no room.
    pub no_room: bool,
}

/// Makes the sockets this process's own. False if that cannot be known.
fn is_own() -> bool {
    let word = OWN.load(Ordering::Acquire);
    // SAFETY: NULL or a word that lives for good.
    if let Some(word) = unsafe { word.as_ref() } {
        if word.load(Ordering::Acquire) == 0 {
            forked();
            word.store(1, Ordering::Release);
        }
        return true;
    }
    let fresh = forebay_interpose::sys::wiped_on_fork(4096).cast::<AtomicU32>();
    if fresh.is_null() {
        return false;
    }
    // SAFETY: fresh memory, aligned to a page, that lives for good.
    unsafe { (*fresh).store(1, Ordering::Release) };
    let null = std::ptr::null_mut();
    let _first = OWN.compare_exchange(null, fresh, Ordering::AcqRel, Ordering::Acquire);
    true
}

/// In a child of fork, which has one thread: its parent's sockets are not its own, and nobody uses one.
fn forked() {
    for socket in &SOCKETS {
        let fd = socket.fd.swap(-1, Ordering::AcqRel);
        if fd >= 0 {
            raw::close(fd);
        }
        socket.busy.store(false, Ordering::Release);
    }
}

/// A socket that this thread has.
struct Taken(&'static Socket);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

fn take(socket: &'static Socket) -> Option<Taken> {
    let free = !socket.busy.load(Ordering::Relaxed) && !socket.busy.swap(true, Ordering::Acquire);
    // Made only if it is free: dropping one frees it.
    free.then(|| Taken(socket))
}

impl Taken {
    fn fd(&self) -> c_int {
        self.0.fd.load(Ordering::Acquire)
    }

    /// Closes it. A child of vfork has its parent's memory, and descriptors of its own.
    fn close(&self) {
        if self.0.pid.load(Ordering::Relaxed) == raw::pid() {
            let fd = self.0.fd.swap(-1, Ordering::AcqRel);
            if fd >= 0 {
                raw::close(fd);
            }
        }
    }
}

fn ids() -> u64 {
    let (uid, gid) = raw::fs_ids();
    u64::from(uid) << 32 | u64::from(gid)
}

/// What a thread finds that wants to ask.
enum Way {
    Socket(Taken),
    /// Other threads have all of them.
    InUse,
    /// The mount cannot be asked.
    Closed,
}

/// A socket to a mount, opened as who this thread is now.
fn socket_to(at: usize) -> Option<Taken> {
    match way_to(at, false) {
        Way::Socket(taken) => Some(taken),
        Way::InUse | Way::Closed => None,
    }
}

/// The same, and why there is none. `always`: it is tried also if the mount could not be reached a moment ago.
fn way_to(at: usize, always: bool) -> Way {
    if !is_own() {
        return Way::Closed;
    }
    let ids = ids();
    let mine = |socket: &Socket| {
        socket.fd.load(Ordering::Acquire) >= 0
            && socket.place.load(Ordering::Relaxed) == at as u32
            && socket.who.load(Ordering::Relaxed) == identity::who()
            && socket.ids.load(Ordering::Relaxed) == ids
    };
    for socket in &SOCKETS {
        if mine(socket)
            && let Some(taken) = take(socket)
        {
            if mine(socket) {
                return Way::Socket(taken);
            }
        }
    }
    if !always && PASSED[at].load(Ordering::Relaxed) > 0 {
        PASSED[at].fetch_sub(1, Ordering::Relaxed);
        return Way::Closed;
    }
    let empty = |socket: &Socket| socket.fd.load(Ordering::Acquire) < 0;
    let free = SOCKETS.iter().filter(|socket| empty(socket)).find_map(take);
    // One of another mount, or of who this process was.
    let free = free.or_else(|| SOCKETS.iter().find_map(take));
    let Some(free) = free else { return Way::InUse };
    free.close();
    if connect(&free, at, ids) {
        return Way::Socket(free);
    }
    PASSED[at].store(PASS_OVER, Ordering::Relaxed);
    // A mount has as many connections as it wants, and this process may have some that are in use.
    if SOCKETS.iter().any(mine) { Way::InUse } else { Way::Closed }
}

fn connect(taken: &Taken, at: usize, ids: u64) -> bool {
    if taken.fd() >= 0 {
        return false;
    }
    let Some((fd, who)) = connection(at, ids) else { return false };
    let socket = taken.0;
    socket.place.store(at as u32, Ordering::Relaxed);
    socket.pid.store(raw::pid(), Ordering::Relaxed);
    socket.ids.store(ids, Ordering::Relaxed);
    socket.who.store(who, Ordering::Relaxed);
    socket.whereabouts.store(0, Ordering::Relaxed);
    socket.fd.store(fd, Ordering::Release);
    true
}

/// A connection to a mount's process, and as whom it was made.
fn connection(at: usize, ids: u64) -> Option<(c_int, u32)> {
    let place = places::get(at)?;
    // Whoever reads the socket's other end sees the effective ids; the kernel judges by these.
    let (uid, gid) = raw::effective_ids();
    if ids != (u64::from(uid) << 32 | u64::from(gid)) {
        return None;
    }
    let fd = raw::numbers(
        libc::SYS_socket,
        libc::AF_UNIX as usize,
        (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC) as usize,
        0,
    ) as c_int;
    if fd < 0 {
        return None;
    }
    let high = raw::copy_above(fd, numbers_from());
    raw::close(fd);
    if high < 0 {
        return None;
    }
    let who = identity::who();
    if !reach(high, place.store) || !is_trusted(high, uid) || !hello(high, at, place, (who, uid)) {
        raw::close(high);
        return None;
    }
    Some((high, who))
}

/// A number that programs do not choose by themselves.
fn numbers_from() -> u32 {
    let mut limit = [0_u64; 2];
    let arguments = [0, libc::RLIMIT_NOFILE as usize, 0, limit.as_mut_ptr() as usize, 0, 0];
    // SAFETY: the struct that the call fills is these two numbers.
    unsafe { raw::call(libc::SYS_prlimit64, arguments) };
    limit[0].saturating_sub(SOCKETS_MAX as u64 + 4).min(NUMBERS_FROM) as u32
}

/// Connects to the socket in a mount's directory, by that directory if the path is too long for an address.
fn reach(fd: c_int, store: &[u8]) -> bool {
    // SAFETY: zeros are a valid value.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    let mut room = [0_u8; 108];
    let mut dir = -1;
    let written = if store.len() + 1 + SOCKET_NAME.len() < room.len() {
        join(&mut room, &[store, b"/", SOCKET_NAME.as_bytes()])
    } else {
        let mut path = [0_u8; 4096];
        if join(&mut path, &[store]) {
            dir = raw::open(&path, libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC);
        }
        let mut digits = [0_u8; 12];
        let number = report::decimal(dir.max(0) as u32, &mut digits);
        dir >= 0 && join(&mut room, &[b"/proc/self/fd/", number, b"/", SOCKET_NAME.as_bytes()])
    };
    for (to, from) in address.sun_path.iter_mut().zip(room) {
        *to = from as libc::c_char;
    }
    let arguments =
        [fd as usize, (&raw const address) as usize, size_of::<libc::sockaddr_un>(), 0, 0, 0];
    // SAFETY: an address of that size, alive during the call.
    let done = written && unsafe { raw::call(libc::SYS_connect, arguments) } == 0;
    if dir >= 0 {
        raw::close(dir);
    }
    done
}

/// Puts the parts together, with a 0 at the end; false if they do not fit.
fn join(room: &mut [u8], parts: &[&[u8]]) -> bool {
    let mut length = 0;
    for part in parts {
        let Some(to) = room.get_mut(length..length + part.len()) else { return false };
        to.copy_from_slice(part);
        length += part.len();
    }
    length < room.len()
}

/// Descriptors of this process go there: so only to root, or to a process of the same user.
fn is_trusted(fd: c_int, uid: u32) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let arguments = [
        fd as usize,
        libc::SOL_SOCKET as usize,
        libc::SO_PEERCRED as usize,
        (&raw mut peer) as usize,
        (&raw mut length) as usize,
        0,
    ];
    // SAFETY: room of the size that is said, alive during the call.
    let told = unsafe { raw::call(libc::SYS_getsockopt, arguments) } == 0;
    told && (peer.uid == 0 || peer.uid == uid)
}

fn hello(fd: c_int, at: usize, place: &Place, as_whom: (u32, u32)) -> bool {
    let mut path = [0_u8; 4096];
    if !join(&mut path, &[place.point]) {
        return false;
    }
    let root = raw::open(&path, libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC);
    if root < 0 {
        return false;
    }
    // A mount that was made again has another one; whether this is its root, its process says.
    let device = raw::place_of(root).map(|(device, _)| device);
    let request = Request { version: VERSION, op: op::HELLO, flags: TABLE, ..Request::default() };
    let sent = device.is_some() && send(fd, &request, &[], root);
    raw::close(root);
    let mut welcome = Welcome::default();
    let got = if sent { receive(fd, welcome.as_mut_bytes(), true) } else { None };
    let table = got.map_or(-1, |(table, _)| table);
    let welcomed = got.is_some() && welcome.status == 0 && welcome.version == VERSION;
    if let Some(device) = device.filter(|_| welcomed) {
        places::learn(at, welcome.store_device, device);
        own::learn(at, welcome.root, table, as_whom);
    }
    if table >= 0 {
        raw::close(table);
    }
    welcomed
}

/// Room for a descriptor beside a message, aligned as the kernel wants it.
#[repr(C, align(8))]
struct Control([u8; 24]);

fn send(fd: c_int, request: &Request, path: &[u8], given: c_int) -> bool {
    let mut parts = [
        iovec { iov_base: request.as_bytes().as_ptr() as *mut _, iov_len: size_of::<Request>() },
        iovec { iov_base: path.as_ptr() as *mut _, iov_len: path.len() },
    ];
    let mut control = Control([0; 24]);
    // SAFETY: zeros are a valid value.
    let mut message: msghdr = unsafe { zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = 2;
    if given >= 0 {
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control.0.len();
        // SAFETY: room for one header with one number, aligned for it.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
            libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(given);
        }
    }
    let arguments =
        [fd as usize, (&raw const message) as usize, libc::MSG_NOSIGNAL as usize, 0, 0, 0];
    loop {
        // SAFETY: a message with parts that live during the call.
        match unsafe { raw::call(libc::SYS_sendmsg, arguments) } {
            error if error == -i64::from(libc::EINTR) => {}
            done => return done >= 0,
        }
    }
}

/// The descriptor that came, or -1, and whether one had no room. `None` if the other side is gone, or says what it
/// must not.
fn receive(fd: c_int, into: &mut [u8], close_on_exec: bool) -> Option<(c_int, bool)> {
    let mut part = iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let mut control = Control([0; 24]);
    // SAFETY: zeros are a valid value.
    let mut message: msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len();
    let flags = if close_on_exec { libc::MSG_CMSG_CLOEXEC } else { 0 };
    let arguments = [fd as usize, (&raw mut message) as usize, flags as usize, 0, 0, 0];
    let count = loop {
        // SAFETY: a message with room that lives during the call.
        match unsafe { raw::call(libc::SYS_recvmsg, arguments) } {
            error if error == -i64::from(libc::EINTR) => {}
            done => break done,
        }
    };
    let mut given = -1;
    // SAFETY: the kernel filled in what it says that it did.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if !header.is_null()
            && (*header).cmsg_level == libc::SOL_SOCKET
            && (*header).cmsg_type == libc::SCM_RIGHTS
        {
            given = libc::CMSG_DATA(header).cast::<c_int>().read_unaligned();
        }
    }
    if usize::try_from(count) != Ok(into.len()) || message.msg_flags & libc::MSG_TRUNC != 0 {
        if given >= 0 {
            raw::close(given);
        }
        return None;
    }
    Some((given, message.msg_flags & libc::MSG_CTRUNC != 0))
}

fn exchange(taken: &Taken, request: &Request, path: &[u8], given: c_int) -> Option<Reply> {
    let reply = exchange_on(taken.fd(), request, path, given);
    if reply.is_none() {
        taken.close();
    }
    reply
}

fn exchange_on(socket: c_int, request: &Request, path: &[u8], given: c_int) -> Option<Reply> {
    let mut answer = Answer::default();
    let keep = request.op == op::OPEN && request.flags as c_int & libc::O_CLOEXEC == 0;
    let (fd, no_room) = match send(socket, &request.here(), path, given) {
        true => receive(socket, answer.as_mut_bytes(), !keep)?,
        false => return None,
    };
    Some(Reply { answer, fd, no_room })
}

/// Asks about a path. `None`: the kernel is to be asked.
pub fn ask(found: Found<'_>, mut request: Request) -> Option<Reply> {
    if found.path.len() > PATH_MAX {
        return None;
    }
    let Some(taken) = socket_to(found.place) else {
        report::not_reached();
        return None;
    };
    request.version = VERSION;
    let given = match found.start {
        Start::Root => -1,
        Start::Given(dir) => {
            request.start = start::GIVEN;
            dir
        }
        Start::Cwd => {
            request.start = start::CWD;
            if !tell_cwd(&taken) {
                return None;
            }
            -1
        }
    };
    let reply = exchange(&taken, &request, found.path, given)?;
    report::asked(request.op, reply.answer.status != BY_KERNEL);
    (reply.answer.status != BY_KERNEL).then_some(reply)
}

/// Says which the current directory is, if that was not said since it changed.
fn tell_cwd(taken: &Taken) -> bool {
    let now = places::whereabouts();
    let own = taken.0.pid.load(Ordering::Relaxed) == raw::pid();
    if own && taken.0.whereabouts.load(Ordering::Relaxed) == now {
        return true;
    }
    let dir = raw::open(b".\0", libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC);
    if dir < 0 {
        return false;
    }
    let request = Request { version: VERSION, op: op::CWD, ..Request::default() };
    let reply = exchange(taken, &request, &[], dir);
    raw::close(dir);
    let told = reply.is_some_and(|reply| reply.answer.status == 0);
    // What a child of vfork has told is not its parent's.
    taken.0.whereabouts.store(if told && own { now } else { 0 }, Ordering::Relaxed);
    told
}

/// Asks about a descriptor that a mount gave out. `None` if the mount cannot be asked.
pub fn ask_about(place: usize, operation: u32, flags: u32, fd: c_int) -> Option<Reply> {
    let request = Request { version: VERSION, op: operation, flags, ..Request::default() };
    // A mount that was away may be there again: a file that is open is worth a try each time.
    PASSED[place].store(0, Ordering::Relaxed);
    let mut turns = 0;
    // A socket from before the mount was started again ends at the first use, and all may be from before.
    for _ in 0..TRIES {
        let reply = match way_to(place, true) {
            Way::Socket(taken) => exchange(&taken, &request, &[], fd),
            Way::InUse if turns < GIVE_WAY => {
                turns += 1;
                raw::numbers(libc::SYS_sched_yield, 0, 0, 0);
                continue;
            }
            Way::InUse => {
                let reply = ask_apart(place, &request, fd);
                if reply.is_none() {
                    raw::sleep_1_ms();
                }
                reply
            }
            Way::Closed => return None,
        };
        if let Some(reply) = reply {
            report::asked(operation, reply.answer.status != BY_KERNEL);
            return Some(reply);
        }
    }
    None
}

/// Asks on a connection for this one question.
fn ask_apart(at: usize, request: &Request, given: c_int) -> Option<Reply> {
    let (socket, _) = connection(at, ids())?;
    let reply = exchange_on(socket, request, &[], given);
    raw::close(socket);
    reply
}

/// Whether a number is one of these sockets.
pub fn is_socket(fd: c_int) -> bool {
    fd >= 0 && SOCKETS.iter().any(|socket| socket.fd.load(Ordering::Relaxed) == fd)
}

/// Gives up sockets whose numbers are in this range: the program is about to close or take them.
pub fn give_up(first: u32, last: u32) {
    if OWN.load(Ordering::Acquire).is_null() || !is_own() {
        return;
    }
    for socket in &SOCKETS {
        let fd = socket.fd.load(Ordering::Acquire);
        if fd < 0 || !(first..=last).contains(&(fd as u32)) {
            continue;
        }
        // Of a child of vfork, its own copy goes; another thread that uses it finds it gone.
        match take(socket) {
            Some(taken) => taken.close(),
            None => raw::close(fd),
        }
    }
}

/// A header and one descriptor are what [`Control`] has room for.
const _: () = assert!(size_of::<libc::cmsghdr>() + 8 == size_of::<Control>());
