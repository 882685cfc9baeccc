//! Whether the PFS answers, asked without waiting for it for long.
//!
//! A call on a PFS that hangs takes its thread with it. Who only wants to tell people how things are
//! must not be taken: one thread at a time asks, all others hear what it heard, or how long it has
//! been waiting. Asked for the state of trees and of the buffer.

use super::pfs::PfsDir;
use forebay_proto::Errno;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an answer counts.
const BELIEVED: Duration = Duration::from_millis(500);
/// How long it is waited for by who can tell something without it.
const WAIT: Duration = Duration::from_millis(300);
/// How long by who cannot. A busy machine takes longer than [`WAIT`] now and then.
const WAIT_ALL: Duration = Duration::from_secs(4);

#[derive(Default)]
struct Asked {
    /// Since when a thread waits for the answer.
    since: Option<Instant>,
    /// What was heard, and when.
    heard: Option<(Instant, Option<String>)>,
}

/// What is known.
#[derive(Default)]
pub(crate) struct Probe(Arc<(Mutex<Asked>, Condvar)>);

impl Probe {
    /// Why the PFS cannot be used now, if so.
    pub fn trouble(&self, pfs: &Arc<PfsDir>) -> Option<String> {
        let (asked, answered) = &*self.0;
        let mut asked = asked.lock();
        let known = asked.heard.as_ref().is_some_and(|(at, _)| at.elapsed() < BELIEVED);
        if asked.since.is_none() && !known && self.ask(pfs) {
            asked.since = Some(Instant::now());
        }
        if asked.since.is_some_and(|since| since.elapsed() < WAIT) {
            answered.wait_while_for(&mut asked, |asked| asked.since.is_some(), WAIT);
        }
        match asked.since {
            Some(since) => Some(format!("it has not answered for {} s", since.elapsed().as_secs())),
            None => asked.heard.as_ref().and_then(|(_, trouble)| trouble.clone()),
        }
    }

    /// True if the PFS has been asked and does not answer.
    pub fn is_silent(&self) -> bool {
        self.0.0.lock().since.is_some_and(|since| since.elapsed() >= WAIT)
    }

    /// True if the PFS has been asked and does not answer, also if that is waited for.
    pub fn stays_silent(&self) -> bool {
        let (asked, answered) = &*self.0;
        let mut asked = asked.lock();
        if let Some(since) = asked.since {
            let left = WAIT_ALL.saturating_sub(since.elapsed());
            answered.wait_while_for(&mut asked, |asked| asked.since.is_some(), left);
        }
        asked.since.is_some()
    }

    /// Starts the thread that asks. It ends when the PFS answers; nobody waits for it.
    fn ask(&self, pfs: &Arc<PfsDir>) -> bool {
        let (pfs, shared) = (pfs.clone(), self.0.clone());
        let ask = move || {
            let heard = pfs.check().err().map(|e| match e {
                Errno::ENODEV => "something else is mounted at its path".into(),
                e => e.to_string(),
            });
            let (asked, answered) = &*shared;
            let mut asked = asked.lock();
            asked.since = None;
            asked.heard = Some((Instant::now(), heard));
            answered.notify_all();
        };
        match std::thread::Builder::new().name("cache-probe".into()).spawn(ask) {
            Ok(_) => true,
            Err(error) => {
                tracing::warn!(%error, "no thread to ask the PFS");
                false
            }
        }
    }
}
