//! What a command says of a server that it waits for, when that takes long: which server, and why it does not answer.
//!
//! Nothing here ends the wait. The server is greeted on a thread of its own, and the process behind its address looked
//! for. Callers: a mount that begins (`super::serve`), and `job_servers`.

use super::backing::{are_stopped, buffer_name, said_by};
use forebay_client::remote::Target;
use forebay_client::server_process::{ARE_STOPPED, seen_stopped_at};
use forebay_net::handshake::{self, Credential};
use forebay_net::{Link, LinkError, ServerAddress, Stream};
use forebay_proto::control::ControlError;
use forebay_proto::net::auth::Purpose;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::Duration;

/// Pause before each look. With the greeting a server that is stopped is told of after some 3 s.
const LOOK_PAUSE: Duration = Duration::from_secs(2);
/// A server that runs greets within this time.
const GREET_LIMIT: Duration = Duration::from_secs(1);

/// What a greeting found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Greeted {
    /// It answers.
    Answers,
    /// A connection is made, and nothing comes.
    Silent,
    /// No connection is made.
    Nobody,
}

/// Greets the server at `address` and tells it no secret. A refusal is an answer too.
pub(super) fn greet(address: &ServerAddress) -> Greeted {
    let Ok(stream) = Stream::connect_within(address, GREET_LIMIT) else { return Greeted::Nobody };
    let mut link = Link::new(stream);
    let (program, nobody) = (env!("CARGO_PKG_VERSION"), Credential::Peer);
    match handshake::connect_within(&mut link, program, Purpose::Ledger, &nobody, GREET_LIMIT) {
        Ok(_) | Err(LinkError::Refused(_)) => Greeted::Answers,
        Err(error) if error.is_timeout() => Greeted::Silent,
        Err(_) => Greeted::Nobody,
    }
}

/// The error of a server that was waited for in vain: names its process if that is stopped on this node.
pub(super) fn given_up(address: &ServerAddress, error: ControlError) -> ControlError {
    match seen_stopped_at(address) {
        Some(pid) => are_stopped(&[(address.clone(), pid)]),
        None => error,
    }
}

/// As long as it lives a server may be waited for.
pub struct ServerWait {
    /// Dropped with it, which the thread that looks sees.
    _waits: Option<Sender<()>>,
}

impl ServerWait {
    /// For the server at `address`; `say` is told why it does not answer, each reason once.
    pub fn begin(address: &ServerAddress, say: impl FnMut(&str) + Send + 'static) -> ServerWait {
        let address = address.clone();
        ServerWait::looking(move || why_silent(&address), say)
    }

    /// The same for a mount that begins, and for the other servers of its buffer.
    pub(super) fn of_mount(target: &Target, say: impl FnMut(&str) + Send + 'static) -> ServerWait {
        let target = target.clone();
        ServerWait::looking(move || why_mount_waits(&target), say)
    }

    fn looking(
        look: impl Fn() -> Option<String> + Send + 'static,
        say: impl FnMut(&str) + Send + 'static,
    ) -> ServerWait {
        let (waits, ended) = channel();
        let tell = move || tell_while(&ended, LOOK_PAUSE, look, say);
        match std::thread::Builder::new().name("server-wait".into()).spawn(tell) {
            Ok(_) => ServerWait { _waits: Some(waits) },
            Err(error) => {
                tracing::debug!(%error, "nobody tells which server is waited for");
                ServerWait { _waits: None }
            }
        }
    }
}

/// Looks again and again until the wait has ended.
fn tell_while(
    ended: &Receiver<()>,
    pause: Duration,
    look: impl Fn() -> Option<String>,
    mut say: impl FnMut(&str),
) {
    let mut told = None;
    while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let Some(why) = look() else { continue };
        let waits = ended.try_recv() == Err(TryRecvError::Empty);
        if waits && told.as_ref() != Some(&why) {
            say(&why);
            told = Some(why);
        }
    }
}

fn why_silent(address: &ServerAddress) -> Option<String> {
    match greet(address) {
        Greeted::Silent => Some(silent_text(address, seen_stopped_at(address))),
        Greeted::Answers | Greeted::Nobody => None,
    }
}

fn why_mount_waits(target: &Target) -> Option<String> {
    let patience_s = target.patience.as_secs();
    let why = match greet(&target.address) {
        Greeted::Silent => silent_text(&target.address, seen_stopped_at(&target.address)),
        Greeted::Answers => {
            let name = buffer_name(target).ok()?;
            let away = said_by(target, &target.address, name)?;
            format!("waiting for a server of {}: {away}", target.buffer)
        }
        Greeted::Nobody => return None,
    };
    Some(format!("{why}; a server that does not answer is given up after {patience_s} s"))
}

fn silent_text(address: &ServerAddress, stopped: Option<u32>) -> String {
    match stopped {
        Some(pid) => format!(
            "waiting for the server {address}: its process {pid} is {ARE_STOPPED}: `kill -CONT {pid}` lets it go on; \
             nothing is lost meanwhile"
        ),
        None => format!(
            "waiting for the server {address}: it gives no answer at {address} (is its process stopped, or its machine \
             overloaded? On its node `pgrep forebay | xargs ps -o pid,stat,args -p` shows it, and `kill -CONT PID` lets \
             one in state T go on)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_server_is_told_with_its_process_and_what_to_do() {
        let address: ServerAddress = "127.0.0.1:7".parse().unwrap();
        let told = silent_text(&address, Some(9));
        assert!(told.starts_with("waiting for the server 127.0.0.1:7: its process 9 is stopped ("));
        assert!(told.contains("`kill -CONT 9` lets it go on"), "{told}");
        assert!(silent_text(&address, None).contains("it gives no answer at 127.0.0.1:7"));
    }

    #[test]
    fn each_reason_is_told_once_and_nothing_after_the_end() {
        let (waits, ended) = channel::<()>();
        let (tell, told) = channel();
        let looks = std::thread::spawn(move || {
            let look = || Some("why".to_string());
            let say = |why: &str| tell.send(why.to_string()).unwrap();
            tell_while(&ended, Duration::from_millis(1), look, say);
        });
        assert_eq!(told.recv().unwrap(), "why");
        std::thread::sleep(Duration::from_millis(20));
        drop(waits);
        looks.join().unwrap();
        assert!(told.recv().is_err(), "told twice");
    }
}
