//! Sockets whose path is longer than a socket's address holds: such a path goes through an open directory.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Longest path that fits into a socket's address (unix(7)), without the final zero.
pub const SOCKET_PATH_MAX: usize = 107;

/// Does something with a path that leads to the socket `path` and is short enough for an address.
pub fn with_short_path<T>(path: &Path, done: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    if path.as_os_str().len() <= SOCKET_PATH_MAX {
        return done(path);
    }
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let dir = File::options()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC)
        .open(dir)?;
    done(&Path::new(&format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn a_socket_may_have_a_long_path() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("x".repeat(200));
        std::fs::create_dir(&deep).unwrap();
        let path = deep.join("s.sock");
        let _listener = with_short_path(&path, |path| UnixListener::bind(path)).unwrap();
        assert!(path.exists());
        with_short_path(&path, |path| UnixStream::connect(path)).unwrap();
    }
}
