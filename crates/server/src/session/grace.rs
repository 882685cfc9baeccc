//! Clients of an earlier start of the server.
//!
//! A client that was attached when the server died may still believe what it leased, until the
//! lease is over by its own clock, and holds files that have no name any more. So the clients
//! are listed in a file; a server that finds some makes no change and frees no file without a
//! name until all of them have attached anew or a lease's time has passed (the *grace*). Time in which this process did
//! not run does not count: a client that came back meanwhile waits to be heard.

use super::{SWEEP, held_up};
use forebay_proto::net::session::ClientId;
use forebay_proto::{Errno, Result};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The clients, and until when those of an earlier start are awaited.
struct GraceClients {
    /// All that may be there, as in the file.
    clients: BTreeSet<u64>,
    /// Of an earlier start and not back yet.
    awaited: BTreeSet<u64>,
    /// Of those that were awaited, who has attached since.
    attached: BTreeSet<u64>,
    until: Instant,
    /// When it was last looked whether that is over.
    looked: Instant,
    over_told: bool,
    /// Did not come back in time.
    given_up: Vec<ClientId>,
}

impl GraceClients {
    /// Whether the time is over. The thread that ends sessions looks every [`SWEEP`]; where nobody has for longer, this process
    /// was held up.
    fn is_time_over(&mut self, now: Instant) -> bool {
        self.until += held_up(self.looked + SWEEP, now);
        self.looked = now;
        now >= self.until
    }
}

/// The clients of a buffer.
pub(super) struct Grace {
    file: PathBuf,
    state: Mutex<GraceClients>,
    changed: Condvar,
    /// Nobody is awaited.
    over: AtomicBool,
}

impl Grace {
    /// Reads who was attached when the last server ended. A file that cannot be read or makes no
    /// sense is an error: guessing "nobody" could break a promise.
    pub(super) fn open(file: PathBuf, lease: Duration) -> Result<Grace> {
        let clients = read(&file)?;
        let now = Instant::now();
        let state = GraceClients {
            awaited: clients.clone(),
            attached: BTreeSet::new(),
            clients,
            until: now + lease,
            looked: now,
            over_told: false,
            given_up: Vec::new(),
        };
        let over = AtomicBool::new(state.awaited.is_empty());
        Ok(Grace { file, state: Mutex::new(state), changed: Condvar::new(), over })
    }

    /// A client is attached; durable when this returns.
    pub(super) fn attached(&self, client: ClientId) -> Result<()> {
        let mut state = self.state.lock();
        if state.awaited.contains(&client.0) {
            state.attached.insert(client.0);
        }
        if state.clients.insert(client.0) {
            write(&self.file, &state.clients)?;
        }
        Ok(())
    }

    /// A client that attached anew has said what it holds.
    pub(super) fn reclaimed(&self, client: ClientId) {
        let mut state = self.state.lock();
        state.awaited.remove(&client.0);
        // It has come late, and before that was told.
        state.given_up.retain(|gone| *gone != client);
        self.over.store(state.awaited.is_empty(), Ordering::Release);
        drop(state);
        self.changed.notify_all();
    }

    /// True while a client of an earlier start may still come back.
    pub(super) fn is_awaited(&self, client: ClientId) -> bool {
        let mut state = self.state.lock();
        if state.is_time_over(Instant::now()) {
            self.give_up(&mut state);
        }
        state.awaited.contains(&client.0)
    }

    /// A client has gone for good.
    pub(super) fn detached(&self, client: ClientId) -> Result<()> {
        let mut state = self.state.lock();
        state.awaited.remove(&client.0);
        state.attached.remove(&client.0);
        self.over.store(state.awaited.is_empty(), Ordering::Release);
        if state.clients.remove(&client.0) {
            write(&self.file, &state.clients)?;
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Clients of an earlier start that are not back yet.
    pub(super) fn awaited(&self) -> Vec<ClientId> {
        self.state.lock().awaited.iter().copied().map(ClientId).collect()
    }

    /// The time is over.
    #[cfg(test)]
    pub(super) fn give_up_now(&self) {
        self.give_up(&mut self.state.lock());
    }

    /// True if nobody is awaited any more: all that mounts of an earlier start may change without
    /// asking is known again.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Waits until the grace is over.
    pub(super) fn wait(&self) {
        let mut state = self.state.lock();
        while !state.awaited.is_empty() {
            let until = state.until;
            let is_late = self.changed.wait_until(&mut state, until).timed_out();
            if is_late && state.is_time_over(Instant::now()) {
                self.give_up(&mut state);
            }
        }
    }

    /// Those who did not come back have lost what they held.
    fn give_up(&self, state: &mut GraceClients) {
        if state.awaited.is_empty() {
            return;
        }
        tracing::warn!(
            clients = state.awaited.len(),
            "mounts of the last server did not come back"
        );
        let gone = std::mem::take(&mut state.awaited);
        state.given_up.extend(gone.iter().map(|client| ClientId(*client)));
        self.over.store(true, Ordering::Release);
        // Who is there has said that it is; the next start waits for it, too.
        let attached = &state.attached;
        state.clients.retain(|client| !gone.contains(client) || attached.contains(client));
        if let Err(error) = write(&self.file, &state.clients) {
            tracing::warn!(%error, "cannot record that mounts have gone; the next start waits for them");
        }
        self.changed.notify_all();
    }

    /// Clients that did not come back in time, told once. They may come later.
    pub(super) fn given_up(&self) -> Vec<ClientId> {
        std::mem::take(&mut self.state.lock().given_up)
    }

    /// True once, when the grace is over.
    pub(super) fn just_over(&self) -> bool {
        let mut state = self.state.lock();
        if state.is_time_over(Instant::now()) {
            self.give_up(&mut state);
        }
        state.awaited.is_empty() && !std::mem::replace(&mut state.over_told, true)
    }
}

/// One client a line, 16 hex digits.
fn read(file: &Path) -> Result<BTreeSet<u64>> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(error.into()),
    };
    text.lines().map(|line| u64::from_str_radix(line, 16).map_err(|_| Errno::EBADMSG)).collect()
}

fn write(file: &Path, clients: &BTreeSet<u64>) -> Result<()> {
    let mut text = String::new();
    for client in clients {
        text.push_str(&format!("{client:016x}\n"));
    }
    replace(file, &text)
}

/// Writes a file anew, as a whole; durable when this returns.
pub(super) fn replace(file: &Path, text: &str) -> Result<()> {
    let new = file.with_extension("new");
    let mut out = File::create(&new)?;
    out.write_all(text.as_bytes())?;
    out.sync_all()?;
    std::fs::rename(&new, file)?;
    if let Some(dir) = file.parent() {
        File::open(dir)?.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_waits_for_the_clients_of_the_last_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("clients");
        let lease = Duration::from_millis(80);
        let first = Grace::open(file.clone(), lease).unwrap();
        first.wait();
        assert!(first.just_over() && !first.just_over());
        first.attached(ClientId(7)).unwrap();
        first.attached(ClientId(8)).unwrap();
        first.attached(ClientId(9)).unwrap();
        first.detached(ClientId(8)).unwrap();

        let second = Grace::open(file.clone(), lease).unwrap();
        assert!(!second.just_over() && !second.is_over());
        second.reclaimed(ClientId(7));
        let begun = Instant::now();
        second.wait();
        assert!(begun.elapsed() >= Duration::from_millis(40), "9 was waited for");
        assert!(second.just_over() && second.is_over());
        assert_eq!((second.given_up(), second.given_up()), (vec![ClientId(9)], vec![]));

        let third = Grace::open(file, lease).unwrap();
        assert_eq!(third.state.lock().awaited, BTreeSet::from([7]), "9 is not waited for again");
    }

    #[test]
    fn a_client_that_is_there_and_has_not_said_all_is_waited_for_at_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("clients");
        let lease = Duration::from_millis(40);
        let first = Grace::open(file.clone(), lease).unwrap();
        [7, 8].into_iter().for_each(|client| first.attached(ClientId(client)).unwrap());
        let second = Grace::open(file.clone(), lease).unwrap();
        second.attached(ClientId(7)).unwrap();
        second.wait();
        assert!(second.is_over() && !second.is_awaited(ClientId(7)));
        second.reclaimed(ClientId(7));
        assert_eq!(second.given_up(), [ClientId(8)], "7 has come late, and has not lost its locks");
        let third = Grace::open(file.clone(), lease).unwrap();
        assert_eq!(third.awaited(), [ClientId(7)], "8 did not come back");
        third.attached(ClientId(7)).unwrap();
        third.detached(ClientId(7)).unwrap();
        assert!(third.is_over() && Grace::open(file, lease).unwrap().is_over());
    }

    #[test]
    fn a_start_that_was_held_up_itself_waits_for_that_time_longer() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("clients");
        Grace::open(file.clone(), LEASE).unwrap().attached(ClientId(7)).unwrap();
        let grace = Grace::open(file, LEASE).unwrap();
        let now = Instant::now();
        let seconds = Duration::from_secs;
        // Nobody looked for 20 s, in which the time was over.
        let held_up = |state: &mut GraceClients| {
            (state.looked, state.until) = (now - seconds(20), now - seconds(15));
        };
        held_up(&mut grace.state.lock());
        assert!(grace.is_awaited(ClientId(7)), "it may have come back and was not heard");
        // Looked at each second, as ever.
        let mut state = grace.state.lock();
        assert!(!state.is_time_over(now + seconds(1)) && !state.is_time_over(now + seconds(2)));
        let until = state.until;
        state.looked = until - SWEEP;
        assert!(state.is_time_over(until));
        held_up(&mut state);
        drop(state);
        assert!(!grace.just_over(), "nor is it over for who looks for that");
    }

    #[test]
    fn a_file_that_makes_no_sense_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("clients");
        std::fs::write(&file, "nonsense\n").unwrap();
        assert!(Grace::open(file, LEASE).is_err());
    }

    const LEASE: Duration = Duration::from_secs(1);
}
