//! What the end of a mount of a served buffer says of the servers whose answers programs wait for: which are stopped, with
//! their processes, or what another server says of one that does not answer. Called by `backing` for each look of an unmount.
//!
//! Nothing here waits for a server. Others are asked on a thread of its own, one at a time, and what it found is told at the
//! next look.

use super::asked::{GREET_WAIT, listed, no_answer, said_by};
use forebay_client::remote::{RemoteFs, ServerSeen, Target};
use forebay_client::server_process::ARE_STOPPED;
use forebay_net::ServerAddress;
use forebay_proto::net::ledger::BufferName;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Others are asked again after so long.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// What they said is told for so long.
const SAID_HOLDS: Duration = Duration::from_secs(15);

/// What programs wait for, in words, and what is to be done; `told`: what others say of a server that does not answer.
pub fn describe(servers: &[ServerSeen], told: Option<&str>, patience: Duration) -> String {
    let stopped = |server: &ServerSeen, pid: u32| {
        format!(
            "{}, whose process {pid} is {ARE_STOPPED} (`kill -CONT {pid}` lets it go on)",
            server.address
        )
    };
    let one = |server: &&ServerSeen| match (server.stopped, server.is_away) {
        (Some(pid), _) => stopped(server, pid),
        (None, true) => format!("{}, which does not answer", server.address),
        (None, false) => server.address.to_string(),
    };
    let (waited_for, others): (Vec<&ServerSeen>, Vec<&ServerSeen>) =
        servers.iter().partition(|server| server.is_waited_for);
    let list = waited_for.iter().map(one).collect::<Vec<_>>().join(" and ");
    let behind = others.iter().filter_map(|server| Some(stopped(server, server.stopped?)));
    let behind = behind.collect::<Vec<_>>().join(" and ");
    // One that is stopped waits for nobody.
    let may_wait = waited_for.iter().any(|server| server.stopped.is_none());
    let behind = match behind.is_empty() || !may_wait {
        true => String::new(),
        false => format!(", and that may wait for {behind}"),
    };
    let told = told.map_or_else(String::new, |told| format!("; {told}"));
    let patience_s = patience.as_secs();
    format!(
        "an answer of {list}{behind}{told}; a server that does not answer is given up after {patience_s} s. Ctrl-C leaves \
         the mount to end by itself, --force does not wait"
    )
}

/// What other servers say of those that do not answer.
#[derive(Clone, Default)]
pub struct Reasons(Arc<Mutex<LatestReason>>);

/// What was said last, and when it was asked.
#[derive(Default)]
struct LatestReason {
    is_asking: bool,
    asked_at: Option<Instant>,
    said: Option<(Instant, String)>,
}

impl Reasons {
    /// What was said lately, in words. Asks again if it is time to, and does not wait for that.
    pub fn found(
        &self,
        remote: Arc<RemoteFs>,
        target: &Target,
        name: BufferName,
    ) -> Option<String> {
        let mut state = self.0.lock();
        let is_time = state.asked_at.is_none_or(|at| at.elapsed() >= ASK_AGAIN);
        if is_time && !state.is_asking {
            state.asked_at = Some(Instant::now());
            let (reasons, target) = (self.clone(), target.clone());
            let ask = move || {
                let (there, silent) = remote.servers_greeted(GREET_WAIT);
                drop(remote);
                reasons.ask(&there, &silent, &target, name);
                reasons.0.lock().is_asking = false;
            };
            let spawned = std::thread::Builder::new().name("reasons".into()).spawn(ask);
            state.is_asking = spawned.is_ok();
        }
        let said = state.said.as_ref().filter(|(at, _)| at.elapsed() < SAID_HOLDS);
        said.map(|(_, text)| text.clone())
    }

    /// Asks the first of those that answer about those that do not even greet.
    fn ask(
        &self,
        there: &[ServerAddress],
        silent: &[ServerAddress],
        target: &Target,
        name: BufferName,
    ) {
        if silent.is_empty() {
            self.0.lock().said = None;
            return;
        }
        let note = |text: &str| {
            // Who it is about is told, not that it was asked.
            let text = text.strip_prefix("ask ").unwrap_or(text).to_string();
            self.0.lock().said = Some((Instant::now(), text));
        };
        let unsaid = no_answer(&listed(silent), there.first()).to_string();
        // What to do is known at once; the other server may need some seconds.
        let is_first = self.0.lock().said.is_none();
        if is_first {
            note(&unsaid);
        }
        let said = there.first().and_then(|asked| said_by(target, asked, name));
        note(&said.map_or(unsaid, |error| error.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(port: u16, is_waited_for: bool) -> ServerSeen {
        let address = ServerAddress::Tcp { host: "127.0.0.1".into(), port };
        ServerSeen { address, is_waited_for, is_away: false, stopped: None }
    }

    fn text(servers: &[ServerSeen], told: Option<&str>) -> String {
        describe(servers, told, Duration::from_secs(60))
    }

    #[test]
    fn a_stopped_server_that_is_waited_for_is_named_with_its_process() {
        let servers = [ServerSeen { stopped: Some(7), ..server(1, true) }, server(2, false)];
        assert_eq!(
            text(&servers, None),
            "an answer of 127.0.0.1:1, whose process 7 is stopped (SIGSTOP, Ctrl-Z or a debugger) (`kill -CONT 7` lets it \
             go on); a server that does not answer is given up after 60 s. Ctrl-C leaves the mount to end by itself, --force \
             does not wait"
        );
    }

    #[test]
    fn so_is_one_that_the_server_may_wait_for() {
        let stopped = ServerSeen { stopped: Some(7), ..server(1, false) };
        let told = text(&[stopped.clone(), server(2, true)], None);
        let named = "an answer of 127.0.0.1:2, and that may wait for 127.0.0.1:1, whose process 7 is stopped";
        assert!(told.starts_with(named) && told.contains("`kill -CONT 7` lets it go on"), "{told}");
        // What is stopped itself waits for nobody.
        let told = text(&[stopped, ServerSeen { stopped: Some(8), ..server(2, true) }], None);
        assert!(told.contains("process 8 is stopped") && !told.contains("may wait for"), "{told}");
    }

    #[test]
    fn what_another_server_says_is_told() {
        let away = [ServerSeen { is_away: true, ..server(1, true) }];
        let told = text(&away, Some("the server of shard 1 on n2: its process 7 is stopped"));
        let wanted = "an answer of 127.0.0.1:1, which does not answer; the server of shard 1 on n2: its process 7 is stopped; a \
                      server that does not answer is given up";
        assert!(told.starts_with(wanted), "{told}");
    }

    #[test]
    fn a_silent_server_of_which_nobody_tells_is_told_with_what_tells_why() {
        let (silent, there) = (server(1, true).address, server(2, true).address);
        let told = no_answer(&listed(&[silent]), Some(&there)).to_string();
        assert!(told.contains("`forebay pool status --server 127.0.0.1:2` tells why"), "{told}");
    }
}
