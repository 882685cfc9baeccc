//! Waiting until a cache has drained a path, whoever is asked about it: a mount or a server.
//!
//! Invariants: who waits for little is told at once; looking takes a small part of the time, since the server
//! goes through all that is dirty for an answer. Called by the commands and by libforebay.

use crate::Result;
use forebay_proto::cache::{CacheRequest, TreeState};
use forebay_proto::control::PathBytes;
use std::time::{Duration, Instant};

/// Shortest and longest time between two looks at a drain that is waited for, and the part of the
/// time so far that it is.
const LOOK_FIRST: Duration = Duration::from_millis(2);
const LOOK_LAST: Duration = Duration::from_millis(100);
const LOOK_SHARE: u32 = 32;
/// A look takes at most this part of the time.
const LOOK_COST: u32 = 32;
/// How long a drain that makes no way because of errors is waited for before a wait gives up.
const STUCK_AFTER: Duration = Duration::from_secs(3);
/// Time after which a drain that is waited for is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Time after which a file that looks open is open: of a close the server hears a moment later, and then
/// the file drains once more and is clean.
const OPEN_AFTER: Duration = Duration::from_millis(1_500);

/// What a wait is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitFor {
    /// What was written before it began is on the PFS, of files that are still open and written, too.
    WrittenBefore,
    /// Nothing is dirty any more.
    Clean,
}

/// How a wait ended.
#[derive(Debug)]
pub struct Waited {
    /// What it was for is so.
    pub is_done: bool,
    /// What is left.
    pub state: TreeState,
}

/// Waits until a path of a cache is on the PFS, or nothing more is to be expected, or `go_on`
/// (told the state at each look) says no. With `flush` what is dirty is drained now; what was
/// written again meanwhile too. `tree` asks the cache.
pub fn cache_wait(
    mut tree: impl FnMut(CacheRequest) -> Result<TreeState>,
    path: &PathBytes,
    (what, flush): (WaitFor, bool),
    mut go_on: impl FnMut(&TreeState) -> bool,
) -> Result<Waited> {
    let ask = |flush: bool| match flush {
        true => CacheRequest::Flush { path: path.clone() },
        false => CacheRequest::State { path: path.clone() },
    };
    let started = Instant::now();
    let mut state = tree(ask(flush))?;
    let mut took = started.elapsed();
    let (mut asked, mut moved) = (started, (started, 0, 0));
    let mut before = Duration::ZERO;
    loop {
        // What a failed attempt had written is taken back, and comes again with the next one.
        if state.drained_bytes > moved.1 || state.files != moved.2 {
            moved = (Instant::now(), state.drained_bytes.max(moved.1), state.files);
        }
        // What failed is tried again by the server; who waits is told after a moment.
        let stuck = state.is_stuck() && moved.0.elapsed() > STUCK_AFTER;
        let is_done = match what {
            WaitFor::Clean => state.is_durable(),
            WaitFor::WrittenBefore => {
                state.is_durable() || (before > OPEN_AFTER && state.has_all_before(before))
            }
        };
        if is_done || stuck || !go_on(&state) {
            return Ok(Waited { is_done, state });
        }
        let pause = (started.elapsed() / LOOK_SHARE).max(took * LOOK_COST);
        std::thread::sleep(pause.clamp(LOOK_FIRST, LOOK_LAST));
        let again = flush && asked.elapsed() > ASK_AGAIN;
        if again {
            asked = Instant::now();
        }
        let look = Instant::now();
        before = look - started;
        state = tree(ask(again))?;
        took = look.elapsed();
    }
}
