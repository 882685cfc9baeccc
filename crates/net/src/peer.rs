//! Who is at the other end of a Unix socket, as the kernel noted it when they connected; and whether the process that
//! listens at an address of this machine is stopped.

use crate::address::ServerAddress;
use crate::stream::Stream;
use forebay_proto::Caller;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::time::Timespec;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Most supplementary groups taken from a socket.
const MAX_GROUPS: usize = 65_536;

/// What is said of a process that is stopped.
pub const ARE_STOPPED: &str = "stopped (SIGSTOP, Ctrl-Z or a debugger)";

/// Pause between the two looks of [`stays_stopped`], and of who looks for a process that a first look does not see stopped: the
/// threads of a process stop one by one.
pub const SECOND_LOOK: Duration = Duration::from_millis(300);

/// State of a socket that listens, in /proc/net/tcp.
const LISTENS: &str = "0A";

/// Credentials of the peer: SO_PEERCRED and SO_PEERGROUPS.
pub fn identify(socket: impl AsFd) -> io::Result<Caller> {
    let peer = socket_peercred(&socket)?;
    Ok(Caller {
        uid: peer.uid.as_raw(),
        gid: peer.gid.as_raw(),
        groups: peer_groups(socket.as_fd().as_raw_fd())?,
        pid: u32::try_from(peer.pid.as_raw_nonzero().get()).unwrap_or(0),
        ..Caller::default()
    })
}

/// The user at the other end: who connected, or who made the socket; without a look at their groups.
pub fn uid(socket: impl AsFd) -> io::Result<u32> {
    Ok(socket_peercred(&socket)?.uid.as_raw())
}

/// The process at the other end of a Unix socket; of a server's the one that listens. `None` for TCP, and for a process
/// in another PID namespace.
pub fn process(stream: &Stream) -> Option<u32> {
    let Stream::Unix(socket) = stream else { return None };
    let peer = socket_peercred(socket).ok()?;
    u32::try_from(peer.pid.as_raw_nonzero().get()).ok()
}

/// True if a process is stopped, by a signal or a debugger.
pub fn is_stopped(pid: u32) -> bool {
    // `State:  T (stopped)` (proc(5)). Not `stat`, which waits for a program that begins: behind a mount that does not answer
    // that may be for long, since the kernel closes its copies of files first.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    let state = state.and_then(|state| state.split_whitespace().next());
    matches!(state, Some("T" | "t"))
}

/// The same at two looks: once may be by chance, when somebody looks at it with a debugger.
pub fn stays_stopped(pid: u32) -> bool {
    if !is_stopped(pid) {
        return false;
    }
    std::thread::sleep(SECOND_LOOK);
    is_stopped(pid)
}

/// The process that listens at a TCP address of this machine, if that is stopped and this user may see whose its socket
/// is. Nothing is asked of it: the kernel takes connections for it.
pub fn stopped_listener(address: &ServerAddress) -> Option<u32> {
    let ServerAddress::Tcp { host, port } = address else { return None };
    let mut places = (host.as_str(), *port).to_socket_addrs().ok()?;
    // Who may bind there is on this machine, as far as this process sees the network.
    let here = places.find(|at| UdpSocket::bind((at.ip(), 0)).is_ok())?.ip();
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let inodes = |path: &str| -> Vec<String> {
        read(path).lines().filter_map(|line| listener_inode(line, here, *port)).collect()
    };
    let mut sockets = inodes("/proc/net/tcp");
    sockets.extend(inodes("/proc/net/tcp6"));
    if sockets.is_empty() {
        return None;
    }
    let sockets: Vec<String> = sockets.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // One that is stopped begins no program, so where its descriptors lead to can be read ([`crate::look`]).
    let mut stopped = ids.filter(|pid| is_stopped(*pid));
    stopped.find(|pid| {
        let Ok(open) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        let mut leads_to = open.flatten().filter_map(|fd| std::fs::read_link(fd.path()).ok());
        leads_to.any(|to| sockets.iter().any(|socket| to.as_os_str() == socket.as_str()))
    })
}

/// The inode of a socket that listens at this address, or at all, of a line of /proc/net/tcp or tcp6.
fn listener_inode(line: &str, at: IpAddr, port: u16) -> Option<String> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
    let (address, local_port) = local.split_once(':')?;
    let is_port = u16::from_str_radix(local_port, 16).is_ok_and(|found| found == port);
    // Words of 32 bits, each as this machine has it in memory.
    let words = address.as_bytes().chunks(8).map(|word| {
        let word = std::str::from_utf8(word).ok()?;
        u32::from_str_radix(word, 16).ok().map(u32::to_ne_bytes)
    });
    let bytes = words.collect::<Option<Vec<[u8; 4]>>>()?.concat();
    let listens_at = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        16 => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical(),
        _ => return None,
    };
    let is_at = listens_at == at
        || listens_at == IpAddr::V4(Ipv4Addr::UNSPECIFIED)
        || listens_at == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    (*state == LISTENS && is_port && is_at).then(|| (*inode).to_string())
}

/// Was the Unix socket that this one is connected to made by root, by this process's user, or by `also`? The path of a
/// socket that somebody told may be another user's by now: what that one answers is not to be believed. A TCP
/// connection is proven by a secret.
pub fn is_made_by_trusted(stream: &Stream, also: Option<u32>) -> io::Result<bool> {
    let Stream::Unix(socket) = stream else { return Ok(true) };
    let maker = uid(socket)?;
    Ok(maker == 0 || maker == rustix::process::geteuid().as_raw() || also == Some(maker))
}

fn peer_groups(socket: i32) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let room = groups.len() * size_of::<libc::gid_t>();
        let mut length = libc::socklen_t::try_from(room).map_err(io::Error::other)?;
        // SAFETY: the kernel writes at most `length` bytes into `groups`, which has that room,
        // and the length it needs into `length`.
        let done = unsafe {
            libc::getsockopt(
                socket,
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = length as usize / size_of::<libc::gid_t>();
        if done == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() || count > MAX_GROUPS
        {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

/// The process that connected, on this node: that one, also when its number is another's later.
#[derive(Debug)]
pub struct Process(OwnedFd);

impl Process {
    /// Of a Unix socket; `None` if the kernel cannot tell (before Linux 6.5, or another node's).
    pub fn of(socket: impl AsFd) -> Option<Process> {
        let mut fd: i32 = -1;
        let mut length = size_of::<i32>() as libc::socklen_t;
        // SAFETY: the kernel writes a descriptor of this size, and the length, to live values.
        let done = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERPIDFD,
                (&raw mut fd).cast(),
                &raw mut length,
            )
        };
        // SAFETY: the kernel made it for us, and nobody else has it.
        (done == 0 && fd >= 0).then(|| Process(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// True once all of it is over: what it had open is closed.
    pub fn is_dead(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut fds, Some(&now)), Ok(ready) if ready > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_listener_of_a_port_is_found_when_it_is_stopped() {
        let script = "import socket,sys,time; s=socket.socket(); s.bind(('127.0.0.1',0)); s.listen(); \
                      print(s.getsockname()[1], flush=True); time.sleep(60)";
        let mut child = std::process::Command::new("python3")
            .args(["-c", script])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
        let address =
            ServerAddress::Tcp { host: "127.0.0.1".into(), port: line.trim().parse().unwrap() };
        assert_eq!(stopped_listener(&address), None);
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        let found = (0..100).find_map(|_| {
            std::thread::sleep(Duration::from_millis(20));
            stopped_listener(&address)
        });
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, Some(child.id()));
    }

    #[test]
    fn lines_of_sockets_are_read() {
        let line = "   0: 0100007F:147D 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 x";
        let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
        if cfg!(target_endian = "little") {
            assert_eq!(listener_inode(line, here, 0x147D), Some("4711".into()));
            assert_eq!(listener_inode(line, IpAddr::V6(Ipv6Addr::LOCALHOST), 0x147D), None);
        }
        assert_eq!(listener_inode(line, here, 80), None);
        assert_eq!(listener_inode(&line.replace(" 0A ", " 01 "), here, 0x147D), None);
        assert_eq!(listener_inode("  sl  local_address rem_address   st", here, 80), None);
    }

    #[test]
    fn the_peer_is_who_connected() {
        let (here, _there) = UnixStream::pair().unwrap();
        let caller = identify(&here).unwrap();
        assert_eq!(caller.uid, rustix::process::geteuid().as_raw());
        assert_eq!(caller.pid, std::process::id());
    }

    #[test]
    fn a_dead_peer_is_told_from_a_live_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let script = "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); sys.stdin.read()";
        let mut child = std::process::Command::new("python3")
            .args(["-c", script])
            .arg(&path)
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let (socket, _) = listener.accept().unwrap();
        let process = Process::of(&socket).unwrap();
        assert!(!process.is_dead());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(process.is_dead());
    }
}
