//! What a command says of a server that it waits for, when that takes long: which server, and why it does not answer.
//!
//! Nothing here ends the wait. The server is greeted on a thread of its own, and the process behind its address looked
//! for. One that greets may wait for another server of its pool: it is asked which of them it has no answer of, which it
//! tells by itself, whoever leads the pool. Callers: a mount that begins (`super::serve`), every question to a server
//! (`servers`), and `job_servers`.

use super::asked::{are_stopped, buffer_name, said_by};
use crate::failure::visible;
use crate::said;
use forebay_client::Ledger;
use forebay_client::remote::Target;
use forebay_client::server_process::{ARE_STOPPED, seen_stopped_at, seen_stopped_at_last};
use forebay_net::handshake::{self, Credential};
use forebay_net::{Link, LinkError, ServerAddress, Stream};
use forebay_proto::control::ControlError;
use forebay_proto::metrics::{PoolMetrics, Unheard};
use forebay_proto::net::auth::Purpose;
use forebay_proto::net::ledger::{BufferName, LedgerReply, LedgerRequest};
use forebay_proto::timing::Timing;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

/// Pause before each look. With the greeting a server that is stopped is told of after some 3 s.
const LOOK_PAUSE: Duration = Duration::from_secs(2);
/// A server that runs greets within this time.
const GREET_LIMIT: Duration = Duration::from_secs(1);
/// Most other servers that are named at once.
const NAMED_MAX: usize = 4;

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

/// Greets the server at `address` as who asks it does, so that it logs no refusal for each look. A refusal is an answer too.
pub(super) fn greet(address: &ServerAddress, credential: &Credential) -> Greeted {
    greet_or_why(address, credential).0
}

/// The same, and if nobody answers, why.
fn greet_or_why(
    address: &ServerAddress,
    credential: &Credential,
) -> (Greeted, Option<ControlError>) {
    let nobody = |error: LinkError| {
        let error = match error {
            LinkError::Io(error) => ControlError::io("greet", None, &error),
            other => ControlError::new("greet", None, &other.to_string()),
        };
        (Greeted::Nobody, Some(error))
    };
    let stream = match Stream::connect_within(address, GREET_LIMIT) {
        Ok(stream) => stream,
        Err(error) => return nobody(error.into()),
    };
    let mut link = Link::new(stream);
    let program = env!("CARGO_PKG_VERSION");
    match handshake::connect_within(&mut link, program, Purpose::Ledger, credential, GREET_LIMIT) {
        Ok(_) | Err(LinkError::Refused(_)) => (Greeted::Answers, None),
        Err(error) if error.is_timeout() => (Greeted::Silent, None),
        Err(error) => nobody(error),
    }
}

/// The error of a server that was waited for in vain: names its process if that is stopped on this node.
pub(super) fn given_up(address: &ServerAddress, error: ControlError) -> ControlError {
    match seen_stopped_at_last(address) {
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
    /// For the server at `address`, which is asked with `credential`: standard error is told why it does not answer, or which
    /// other server it waits for, each reason once.
    pub fn begin(address: &ServerAddress, credential: &Credential) -> ServerWait {
        let (address, credential) = (address.clone(), credential.clone());
        ServerWait::looking(move || why_no_answer(&address, &credential), None, say_once)
    }

    /// The same for a wait that may be long: it is told again from time to time ([`said::is_due`]).
    pub fn begin_long(address: &ServerAddress, credential: &Credential) -> ServerWait {
        let (address, credential) = (address.clone(), credential.clone());
        let say = |why: &str| {
            if said::is_due(why) {
                say(why);
            }
        };
        let look = move || why_no_answer(&address, &credential);
        // Each look is passed on: what was said when, `said` knows, also by other waits of this command.
        ServerWait::looking(look, Some(Duration::ZERO), say)
    }

    /// The same for a mount that begins, and for the other servers of its buffer.
    pub(super) fn of_mount(target: &Target, say: impl FnMut(&str) + Send + 'static) -> ServerWait {
        let target = target.clone();
        ServerWait::looking(move || why_mount_waits(&target), None, say)
    }

    fn looking(
        look: impl Fn() -> Option<String> + Send + 'static,
        again: Option<Duration>,
        say: impl FnMut(&str) + Send + 'static,
    ) -> ServerWait {
        let (waits, ended) = channel();
        let tell = move || tell_while(&ended, (LOOK_PAUSE, again), look, say);
        match std::thread::Builder::new().name("server-wait".into()).spawn(tell) {
            Ok(_) => ServerWait { _waits: Some(waits) },
            Err(error) => {
                tracing::debug!(%error, "nobody tells which server is waited for");
                ServerWait { _waits: None }
            }
        }
    }
}

/// Looks again and again until the wait has ended, with a pause before each look. `again`: time after which a reason is told again.
fn tell_while(
    ended: &Receiver<()>,
    (pause, again): (Duration, Option<Duration>),
    look: impl Fn() -> Option<String>,
    mut say: impl FnMut(&str),
) {
    let mut told: Option<(String, Instant)> = None;
    while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let Some(why) = look() else { continue };
        let waits = ended.try_recv() == Err(TryRecvError::Empty);
        let is_known = told.as_ref().is_some_and(|(what, at)| {
            *what == why && again.is_none_or(|again| at.elapsed() < again)
        });
        if waits && !is_known {
            say(&why);
            told = Some((why, Instant::now()));
        }
    }
}

/// Tells it to who runs the command, unless that was done a moment ago.
fn say_once(why: &str) {
    if said::is_new(why) {
        say(why);
    }
}

fn say(why: &str) {
    eprintln!("forebay: {}", visible(why));
}

fn why_no_answer(address: &ServerAddress, credential: &Credential) -> Option<String> {
    match greet_or_why(address, credential) {
        (Greeted::Silent, _) => Some(silent_text(address, seen_stopped_at(address))),
        (Greeted::Answers, _) => waited_for_by(address, credential),
        (Greeted::Nobody, error) => error.map(|error| nobody_text(address, &error)),
    }
}

/// The servers of its pool that one which answers has no answer of, in words; `None` if there is none.
fn waited_for_by(address: &ServerAddress, credential: &Credential) -> Option<String> {
    // The one question about others that no server passes on.
    let request = LedgerRequest::Metrics { name: None, pool: true };
    let answer = Ledger::connect(address, credential).and_then(|mut ledger| ledger.ask(&request));
    match answer {
        Ok(LedgerReply::PoolMetrics(metrics)) => unheard_text(address, metrics.unheard),
        _ => None,
    }
}

fn unheard_text(address: &ServerAddress, mut unheard: Vec<Unheard>) -> Option<String> {
    // Of many those count which can be mended at once.
    unheard.sort_by_key(|other| !other.why.contains(ARE_STOPPED));
    let named = unheard.iter().take(NAMED_MAX);
    let list: Vec<String> =
        named.map(|other| format!("server {}: {}", other.host, other.why)).collect();
    let list = list.join("; and of ");
    (!unheard.is_empty())
        .then(|| format!("waiting for the server {address}, which has no answer of {list}"))
}

fn why_mount_waits(target: &Target) -> Option<String> {
    let patience_s = target.patience.as_secs();
    let why = match greet(&target.address, &target.credential) {
        Greeted::Silent => silent_text(&target.address, seen_stopped_at(&target.address)),
        Greeted::Answers => {
            let name = buffer_name(target).ok()?;
            match said_by(target, &target.address, name.clone()) {
                Some(away) => format!("waiting for a server of {}: {away}", target.buffer),
                // It answers, and ends that wait by itself.
                None => return Some(format!("waiting: {}", asked_for_awaited(target, name)?)),
            }
        }
        Greeted::Nobody => return None,
    };
    Some(format!("{why}; a server that does not answer is given up after {patience_s} s"))
}

/// Which servers of the buffer wait for mounts that they had before, by the one that is named.
fn asked_for_awaited(target: &Target, name: BufferName) -> Option<String> {
    let request = LedgerRequest::Metrics { name: Some(name), pool: true };
    let mut ledger = Ledger::connect(&target.address, &target.credential).ok()?;
    match ledger.ask(&request) {
        Ok(LedgerReply::PoolMetrics(metrics)) => awaited_text(&metrics, Timing::current().lease),
        _ => None,
    }
}

/// In words: the server that was started again and waits for mounts that it had before; `None` if none does. `lease`: for how long
/// after its start. It tells no times that pass: the same wait is told in the same words.
pub fn awaited_text(metrics: &PoolMetrics, lease: Duration) -> Option<String> {
    let (host, mounts) = metrics.servers.iter().find_map(|server| {
        let mounts: u64 = server.buffers.iter().map(|buffer| buffer.awaited_mounts).sum();
        (mounts > 0).then_some((&server.host, mounts))
    })?;
    let (mounts, come) = match mounts {
        1 => ("1 mount".to_string(), "it comes"),
        mounts => (format!("{mounts} mounts"), "they come"),
    };
    let lease_s = lease.as_secs_f64();
    Some(format!(
        "the server on {host} was started again and waits for {mounts} that it had before, until {come} back or \
         {lease_s} s after its start; one that was unmounted meanwhile does not come"
    ))
}

/// Of a server that makes no connection; only who asks again and again waits for it.
fn nobody_text(address: &ServerAddress, error: &ControlError) -> String {
    let what = match error.errno {
        Some(libc::ECONNREFUSED | libc::ENOENT) => {
            "it does not run; start it again (`forebay serve`), what it holds is still there"
        }
        _ => "it cannot be reached; its log, and the way to its node, tell more",
    };
    format!("waiting for the server {address}: nothing answers at {address}: {}: {what}", error.why)
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
    use forebay_proto::metrics::{BufferMetrics, ServerMetrics};

    #[test]
    fn a_silent_server_is_told_with_its_process_and_what_to_do() {
        let address: ServerAddress = "127.0.0.1:7".parse().unwrap();
        let told = silent_text(&address, Some(9));
        assert!(told.starts_with("waiting for the server 127.0.0.1:7: its process 9 is stopped ("));
        assert!(told.contains("`kill -CONT 9` lets it go on"), "{told}");
        assert!(silent_text(&address, None).contains("it gives no answer at 127.0.0.1:7"));
    }

    #[test]
    fn a_server_that_does_not_run_is_told_with_what_to_do() {
        let address: ServerAddress = "127.0.0.1:1".parse().unwrap();
        let refused = std::io::Error::from_raw_os_error(libc::ECONNREFUSED);
        let told = nobody_text(&address, &ControlError::io("greet", None, &refused));
        let begins = "waiting for the server 127.0.0.1:1: nothing answers at 127.0.0.1:1: Connection refused: it does not run";
        assert!(told.starts_with(begins), "{told}");
        let away = std::io::Error::from_raw_os_error(libc::EHOSTUNREACH);
        let told = nobody_text(&address, &ControlError::io("greet", None, &away));
        assert!(told.contains(": No route to host: it cannot be reached"), "{told}");
    }

    #[test]
    fn a_server_that_waits_for_another_one_is_told_with_that_and_one_that_is_only_slow_is_not() {
        let address: ServerAddress = "127.0.0.1:7".parse().unwrap();
        let other = |host: &str, why: &str| Unheard {
            server: "0".into(),
            host: host.into(),
            why: why.into(),
        };
        assert_eq!(unheard_text(&address, Vec::new()), None);
        let stopped = format!("its process 9 is {ARE_STOPPED} (`kill -CONT 9` lets it go on)");
        let unheard = vec![other("n2", "it cannot be reached"), other("n3", &stopped)];
        let told = unheard_text(&address, unheard).unwrap();
        let begins =
            "waiting for the server 127.0.0.1:7, which has no answer of server n3: its process 9";
        assert!(told.starts_with(begins), "{told}");
        assert!(
            told.contains("`kill -CONT 9`")
                && told.ends_with("; and of server n2: it cannot be reached"),
            "{told}"
        );
    }

    #[test]
    fn a_server_that_waits_for_mounts_of_its_earlier_start_is_told_with_how_long() {
        let lease = Duration::from_secs(12);
        let told = |mounts: &[u64]| {
            let buffer = |awaited_mounts: &u64| BufferMetrics {
                awaited_mounts: *awaited_mounts,
                ..BufferMetrics::default()
            };
            let server = |mounts| ServerMetrics {
                host: "n1".into(),
                buffers: vec![buffer(mounts)],
                ..forebay_server::metrics::process()
            };
            let servers = mounts.iter().map(server).collect();
            awaited_text(&PoolMetrics { servers, ..PoolMetrics::default() }, lease)
        };
        assert_eq!((told(&[]), told(&[0, 0])), (None, None));
        assert_eq!(
            told(&[0, 1]).unwrap(),
            "the server on n1 was started again and waits for 1 mount that it had before, until it comes back or 12 s after \
             its start; one that was unmounted meanwhile does not come"
        );
        assert!(
            told(&[2]).unwrap().contains("waits for 2 mounts that it had before, until they come")
        );
    }

    #[test]
    fn each_reason_is_told_once_and_nothing_after_the_end() {
        let (waits, ended) = channel::<()>();
        let (tell, told) = channel();
        let looks = std::thread::spawn(move || {
            let look = || Some("why".to_string());
            let say = |why: &str| tell.send(why.to_string()).unwrap();
            tell_while(&ended, (Duration::from_millis(1), None), look, say);
        });
        assert_eq!(told.recv().unwrap(), "why");
        std::thread::sleep(Duration::from_millis(20));
        drop(waits);
        looks.join().unwrap();
        assert!(told.recv().is_err(), "told twice");
    }

    #[test]
    fn a_reason_is_told_again_to_who_waits_for_long() {
        const AGAIN: Duration = Duration::from_millis(20);
        let (waits, ended) = channel::<()>();
        let (tell, told) = channel();
        let begun = Instant::now();
        let looks = std::thread::spawn(move || {
            let look = || Some("why".to_string());
            // Who has heard enough does not listen any more.
            let say = |why: &str| drop(tell.send(why.to_string()));
            tell_while(&ended, (Duration::from_millis(1), Some(AGAIN)), look, say);
        });
        for _ in 0..3 {
            assert_eq!(told.recv().unwrap(), "why");
        }
        assert!(begun.elapsed() >= AGAIN * 2, "{:?}", begun.elapsed());
        drop(waits);
        looks.join().unwrap();
    }
}
