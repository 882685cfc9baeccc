//! The control socket of a mount: accepts, says who asks, answers.
//!
//! A thread per connection, at most [`MAX_CONNECTIONS`] and per user [`MAX_PER_USER`] (the owner
//! and root may always have some), messages bounded by the frame, writes by a time limit: a slow
//! or hostile client takes a place of its own user, nothing else. Who asks comes from the
//! socket (SO_PEERCRED, SO_PEERGROUPS).

use super::{Mount, requests};
use forebay_client::Unmounting;
use forebay_client::frame::{read_message, write_message};
use forebay_net::peer;
use forebay_net::socket_path::with_short_path;
use forebay_proto::Caller;
use forebay_proto::control::{ControlError, Hello, Reply, Request, SOCKET_NAME, Welcome};
use forebay_proto::version::CONTROL_PROTOCOL;
use std::collections::HashMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Most connections of all other users together.
const MAX_CONNECTIONS: usize = 128;
/// Most connections of one user.
const MAX_PER_USER: usize = 32;
/// Longest that a client may take to read its answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest that a client may take to say hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// When an unmount begins to say what it waits for, and how often it looks whether that is another thing.
const WAITING_AFTER: Duration = Duration::from_secs(2);
const WAITING_LOOK: Duration = Duration::from_secs(1);
/// When it says the same thing again: who asked gives up an answer that stays away for long.
const WAITING_AGAIN: Duration = Duration::from_secs(300);
/// Pause after an error of accept (such as too many open files).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections by user.
type Table = Arc<Mutex<HashMap<u32, usize>>>;

/// Binds the socket in a mount's directory, in place of one that a dead server left. Other users may
/// connect if the mount is shared with them.
pub fn listen(dir: &Path, shared: bool) -> Result<UnixListener, ControlError> {
    let path = dir.join(SOCKET_NAME);
    let failed =
        |error: io::Error| ControlError::io("make the control socket", Some(&path), &error);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
        _ => (),
    }
    let listener = with_short_path(&path, |path| UnixListener::bind(path)).map_err(failed)?;
    let mode = if shared { 0o666 } else { 0o600 };
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).map_err(failed)?;
    Ok(listener)
}

/// Starts the thread that accepts.
pub fn start(mount: Arc<Mount>, listener: UnixListener) -> Result<(), ControlError> {
    let table = Table::default();
    let accept = move || {
        loop {
            match listener.accept() {
                Ok((stream, _)) => admit(&mount, &table, stream),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept on the control socket");
                    std::thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    };
    std::thread::Builder::new()
        .name("control".into())
        .spawn(accept)
        .map(drop)
        .map_err(|error| ControlError::io("start a thread", None, &error))
}

/// Gives the connection a thread, or an error if there are too many.
fn admit(mount: &Arc<Mount>, table: &Table, stream: UnixStream) {
    let caller = match peer::identify(&stream) {
        Ok(caller) => caller,
        Err(error) => return tracing::warn!(%error, "cannot tell which user calls"),
    };
    let place = Place { uid: caller.uid, table: Arc::clone(table) };
    if !take_place(table, caller.uid, mount.owner_uid()) {
        std::mem::forget(place);
        let error = ControlError::new("ask the server", None, "too many connections at a time")
            .errno(libc::EAGAIN)
            .hint("try again later");
        // A client that does not read this gets a closed connection.
        let _unread = stream
            .set_nonblocking(true)
            .and_then(|()| write_message(&stream, &Reply::Error(error)));
        return;
    }
    let mount = Arc::clone(mount);
    let serve = move || {
        let place = place;
        if let Err(error) = converse(&mount, &stream, &caller) {
            tracing::debug!(%error, uid = place.uid, "a connection ended");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("control-conn".into()).spawn(serve) {
        tracing::warn!(%error, "cannot start a thread for a connection");
    }
}

/// A place in the table, given back when the connection ends.
struct Place {
    uid: u32,
    table: Table,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = table.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                table.remove(&self.uid);
            }
        }
    }
}

fn take_place(table: &Table, uid: u32, owner: u32) -> bool {
    let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
    let privileged = |uid: u32| uid == 0 || uid == owner;
    let others: usize = table.iter().filter(|(uid, _)| !privileged(**uid)).map(|(_, n)| n).sum();
    let count = table.get(&uid).copied().unwrap_or(0);
    if count >= MAX_PER_USER || (!privileged(uid) && others >= MAX_CONNECTIONS) {
        return false;
    }
    table.insert(uid, count + 1);
    true
}

/// Greeting, then requests one after the other until the client goes.
fn converse(mount: &Arc<Mount>, stream: &UnixStream, caller: &Caller) -> io::Result<()> {
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    stream.set_read_timeout(Some(HELLO_TIMEOUT))?;
    let hello = match read_message::<Hello>(stream) {
        Ok(Some(hello)) => hello,
        Ok(None) => return Ok(()),
        Err(error) => return refuse(stream, error),
    };
    let program = env!("CARGO_PKG_VERSION").to_string();
    write_message(stream, &Welcome { protocol: CONTROL_PROTOCOL, program })?;
    if hello.protocol != CONTROL_PROTOCOL {
        return Ok(());
    }
    stream.set_read_timeout(None)?;
    loop {
        match read_message::<Request>(stream) {
            Ok(Some(Request::Umount { keep, force, destroy, no_wait })) => {
                let asked = Unmounting { keep, force, destroy, no_wait };
                let reply = tell_waiting(mount, stream, || requests::umount(mount, caller, asked));
                let sent = write_message(stream, &reply.reply);
                if reply.counted {
                    mount.answered();
                }
                sent?;
            }
            Ok(Some(request)) => write_message(stream, &requests::answer(mount, caller, request))?,
            Ok(None) => return Ok(()),
            Err(error) => return refuse(stream, error),
        }
    }
}

/// Does it, and tells the other end what it waits for, if that takes long. One that does not hear it
/// any more does not stop what it began.
fn tell_waiting<T>(mount: &Mount, stream: &UnixStream, work: impl FnOnce() -> T) -> T {
    let (ended, end) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut told, mut told_at, mut pause) = (None, Instant::now(), WAITING_AFTER);
            while let Err(mpsc::RecvTimeoutError::Timeout) = end.recv_timeout(pause) {
                pause = WAITING_LOOK;
                let what = mount.waits_for();
                if what.is_none() || (what == told && told_at.elapsed() < WAITING_AGAIN) {
                    continue;
                }
                told.clone_from(&what);
                told_at = Instant::now();
                let what = what.unwrap_or_default();
                if let Err(error) = write_message(stream, &Reply::Waiting { what }) {
                    return tracing::debug!(%error, "the command that asked to unmount has ended");
                }
            }
        });
        let result = work();
        drop(ended);
        result
    })
}

/// A message that makes no sense: says so and ends the connection.
fn refuse(stream: &UnixStream, error: io::Error) -> io::Result<()> {
    let reply = ControlError::new("read a message", None, &error.to_string()).errno(libc::EPROTO);
    write_message(stream, &Reply::Error(reply))?;
    Err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_cannot_take_all_places() {
        let table = Table::default();
        assert!((0..MAX_PER_USER).all(|_| take_place(&table, 1000, 0)));
        assert!(!take_place(&table, 1000, 0));
        for uid in 2000..2000 + u32::try_from(MAX_CONNECTIONS).unwrap() {
            take_place(&table, uid, 0);
        }
        assert!(!take_place(&table, 1, 0), "others are bounded together");
        assert!(take_place(&table, 0, 0), "root always gets in");
        drop(Place { uid: 1000, table: Arc::clone(&table) });
        assert_eq!(table.lock().unwrap()[&1000], MAX_PER_USER - 1);
    }
}
