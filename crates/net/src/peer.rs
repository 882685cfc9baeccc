//! Who is at the other end of a Unix socket, as the kernel noted it when they connected.

use forebay_proto::Caller;
use rustix::net::sockopt::socket_peercred;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

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
}
