//! Who is at the other end of a Unix socket, as the kernel noted it when they connected.

use crate::stream::Stream;
use forebay_proto::Caller;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::time::Timespec;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Most supplementary groups taken from a socket.
const MAX_GROUPS: usize = 65_536;

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
