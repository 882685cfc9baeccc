//! The socket of a mount where programs with `libforebay_preload.so` ask: accepts, and says who asks.
//!
//! A thread for each connection; how many there may be is the door's. Other users may connect if the mount is shared
//! with them, and each must then show that it can reach the mount (`forebay_fuse::Door`).

use super::Mount;
use forebay_fuse::Door;
use forebay_net::peer;
use forebay_net::socket_path::with_short_path;
use forebay_preload_wire::SOCKET_NAME;
use forebay_proto::control::ControlError;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// Pause after an error of accept (such as too many open files).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Stack of a thread that serves a program.
const STACK_BYTES: usize = 1 << 20;

/// Opens the way in for programs, where there is one. Without it they use the mount: no error is worth an end of that.
pub fn start(mount: &Arc<Mount>) {
    let door = match mount.session.door() {
        Ok(Some(door)) => door,
        Ok(None) => return,
        Err(error) => {
            return tracing::info!(%error, "programs with the preload use the mount alone");
        }
    };
    mount.door.get_or_init(|| Arc::clone(&door));
    let begun = bound(mount.backing.dir(), mount.shared).and_then(|socket| {
        let owner = (!mount.shared).then(|| mount.owner_uid());
        let accept = move || accept_all(&door, &socket, owner);
        std::thread::Builder::new().name("preload".into()).spawn(accept).map(drop)
    });
    if let Err(error) = begun {
        let error = ControlError::io(
            "make the socket for preloaded programs in",
            Some(mount.backing.dir()),
            &error,
        );
        tracing::warn!("{error}");
    }
}

fn bound(dir: &Path, shared: bool) -> io::Result<OwnedFd> {
    let path = dir.join(SOCKET_NAME);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => (),
    }
    let kind = SocketType::SEQPACKET;
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    with_short_path(&path, |path| Ok(bind(&socket, &SocketAddrUnix::new(path)?)?))?;
    let mode = if shared { 0o666 } else { 0o600 };
    fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn accept_all(door: &Arc<Door>, socket: &OwnedFd, owner: Option<u32>) {
    loop {
        match accept_with(socket, SocketFlags::CLOEXEC) {
            Ok(program) => admit(door, program, owner),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a preloaded program");
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

fn admit(door: &Arc<Door>, program: OwnedFd, owner: Option<u32>) {
    let caller = match peer::identify(&program) {
        Ok(caller) => caller,
        Err(error) => return tracing::warn!(%error, "cannot tell who asks"),
    };
    if owner.is_some_and(|owner| owner != caller.uid) {
        return;
    }
    let door = Arc::clone(door);
    let thread = std::thread::Builder::new().name("preload-conn".into()).stack_size(STACK_BYTES);
    // Who gets none finds the connection ended, and uses the mount.
    if let Err(error) = thread.spawn(move || door.serve(&program, &caller)) {
        tracing::warn!(%error, "cannot start a thread for a preloaded program");
    }
}
