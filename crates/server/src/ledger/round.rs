//! What waits for other servers, done in rounds by one thread until nothing is left: a member
//! announces itself to the leader; the leader finishes what a kill or a server's absence has left of
//! buffers, and tells members of changes of the pool. Nothing to do: the thread sleeps.

use super::Ledger;
use super::record::{BufferRecord, RecordState};
use super::show::{Survey, part_in};
use super::turn::Busy;
use forebay_proto::ServerId;
use forebay_proto::control::ControlError;
use forebay_proto::net::ledger::BufferName;
use forebay_proto::net::pool::{PoolQuestion, PoolReply};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Pause before a round that is to do what could not be done: first and longest.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_LONGEST: Duration = Duration::from_secs(30);
/// A member does not look for moved servers more often than this.
const LOOK_PAUSE: Duration = Duration::from_secs(2);

/// Other members that are asked in one round where the leader is.
const ASKED_OTHERS: usize = 3;

/// What the thread waits for.
#[derive(Default)]
pub(super) struct Round {
    state: Mutex<RoundState>,
    kicked: Condvar,
}

#[derive(Default)]
struct RoundState {
    soon: bool,
    over: bool,
    /// A member: the leader knows where this server is.
    announced: bool,
    announced_at: Option<Instant>,
    /// What the leader last said against this server.
    refused: Option<ControlError>,
    /// Who is said to be the leader by now.
    follow: Option<ServerId>,
    /// Counts the other members that were asked for the leader.
    asked_others: usize,
    /// A leader: counts changes of the servers, and which count each member was told.
    version: u64,
    told: HashMap<ServerId, u64>,
}

impl Round {
    /// There is something to do.
    pub(super) fn soon(&self) {
        self.state.lock().soon = true;
        self.kicked.notify_all();
    }

    /// Members are to be told of the servers.
    pub(super) fn servers_changed(&self) {
        self.state.lock().version += 1;
        self.soon();
    }

    /// A server could not be reached: the leader may know where it is now.
    fn look_for_moved(&self) {
        let mut state = self.state.lock();
        if state.announced_at.is_none_or(|at| at.elapsed() > LOOK_PAUSE) {
            state.announced = false;
            state.soon = true;
            self.kicked.notify_all();
        }
    }

    /// The pool is said to have another leader.
    pub(super) fn follow_soon(&self, leader: ServerId) {
        let mut state = self.state.lock();
        state.follow = Some(leader);
        state.soon = true;
        self.kicked.notify_all();
    }

    /// A leader knows where this server is.
    pub(super) fn is_announced(&self) {
        self.state.lock().announced = true;
    }

    /// The leader knows another server of this one's identity.
    pub(super) fn is_refused(&self, error: ControlError) {
        self.state.lock().refused = Some(error);
    }

    /// No more rounds.
    pub(super) fn end(&self) {
        self.state.lock().over = true;
        self.kicked.notify_all();
    }

    /// Waits for the next round; false if there is none.
    fn wait(&self, pause: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        let until = pause.map(|pause| Instant::now() + pause);
        while !state.soon && !state.over {
            match until {
                None => self.kicked.wait(&mut state),
                Some(until) => {
                    if self.kicked.wait_until(&mut state, until).timed_out() {
                        break;
                    }
                }
            }
        }
        state.soon = false;
        !state.over
    }
}

impl Ledger {
    /// Starts the thread, once others can reach this server. A member has announced itself when
    /// this returns, if its leader answers.
    pub fn start_rounds(self: &Arc<Ledger>) -> Result<(), ControlError> {
        let weak = Arc::downgrade(self);
        self.links.on_unreached(Box::new(move |_| {
            if let Some(ledger) = weak.upgrade() {
                ledger.round.look_for_moved();
            }
        }));
        self.round.servers_changed();
        if !self.record.is_leader() && !self.announce() {
            if let Some(error) = self.round.state.lock().refused.take() {
                return Err(error);
            }
            tracing::info!("the leader of the pool does not answer: it is told later");
        }
        let weak = Arc::downgrade(self);
        std::thread::Builder::new()
            .name("pool".into())
            .spawn(move || rounds(&weak))
            .map(drop)
            .map_err(|error| ControlError::io("start a thread", None, &error))
    }

    /// Something of a buffer is left to do.
    pub(super) fn round_soon(&self) {
        self.round.soon();
    }

    /// True if nothing is left to do.
    fn round(&self) -> bool {
        let follow = self.round.state.lock().follow.take();
        if let Some(leader) = follow {
            self.follow(leader);
        }
        match self.record.is_leader() {
            true => {
                // First: one that is the leader no more hears it so. All is tried, whatever comes of it.
                let told = self.tell_members();
                let settled = self.settle_buffers();
                self.drop_lost();
                told && settled
            }
            false => self.announce(),
        }
    }

    fn announce(&self) -> bool {
        {
            let mut state = self.round.state.lock();
            if state.announced {
                return true;
            }
            state.announced_at = Some(Instant::now());
        }
        self.follow(self.record.leader()) || self.ask_others()
    }

    /// The leader cannot be reached: other members may have another one by now.
    fn ask_others(&self) -> bool {
        let (mine, leader) = (self.server_id(), self.record.leader());
        let mut others: Vec<ServerId> = self
            .servers()
            .iter()
            .filter(|s| s.id != mine && s.id != leader && !s.lost)
            .map(|s| s.id)
            .collect();
        if others.is_empty() {
            return false;
        }
        {
            let mut state = self.round.state.lock();
            let first = state.asked_others % others.len();
            others.rotate_left(first);
            state.asked_others = state.asked_others.wrapping_add(ASKED_OTHERS);
        }
        others.truncate(ASKED_OTHERS);
        others.into_iter().any(|other| match self.announce_to(other) {
            Ok(None) => {
                self.round.is_announced();
                true
            }
            Ok(Some(named)) if named.id != leader && named.id != mine => {
                self.note_server(&named);
                self.follow(named.id)
            }
            _ => false,
        })
    }

    /// True if all members that are not lost know the servers as they are now.
    pub(super) fn tell_members(&self) -> bool {
        let version = self.round.state.lock().version;
        let (leader, servers) = (self.record.leader(), self.servers());
        let unheard = self.record.lock().untold.clone();
        let untold: Vec<ServerId> = {
            let state = self.round.state.lock();
            let others = servers.iter().filter(|s| s.id != leader && !s.lost).map(|s| s.id);
            others.filter(|id| state.told.get(id) != Some(&version)).collect()
        };
        let told: Vec<(ServerId, bool)> = std::thread::scope(|scope| {
            let ask = |id| {
                let tell = unheard.contains(&id);
                match self.ask(id, &PoolQuestion::Servers { servers: servers.clone(), tell }) {
                    Ok(PoolReply::Done) => (id, !tell),
                    Ok(PoolReply::Parts(parts)) => (id, self.adopt(id, &parts)),
                    _ => (id, false),
                }
            };
            let asking: Vec<_> = untold.iter().map(|&id| scope.spawn(move || ask(id))).collect();
            asking.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        let mut state = self.round.state.lock();
        for &(id, _) in told.iter().filter(|(_, done)| *done) {
            state.told.insert(id, version);
        }
        told.iter().all(|(_, done)| *done)
    }

    /// Settles all that is on record. An error of one part or buffer is kept as its fault.
    pub(super) fn settle_all(&self) {
        let parts = self.parts.settle();
        let buffers = self.record.lock().buffers.clone();
        let survey = self.survey([self.server_id()]);
        for buffer in &buffers {
            let here = |server: &_| *server == self.server_id() || self.record.is_lost(*server);
            if buffer.servers.iter().all(here) {
                if let Err(error) = self.settle_buffer(buffer.name(), &survey) {
                    tracing::warn!(buffer = %buffer.name(), "not settled: {error}");
                }
            }
        }
        self.parts.report(&parts);
    }

    /// Buffers that are not what the record says they should be.
    fn settle_buffers(&self) -> bool {
        let names: Vec<BufferName> =
            self.record.lock().buffers.iter().map(|b| b.name().clone()).collect();
        let (mut settled, survey) = (true, self.survey_all());
        for name in names {
            // What is left when that change ends is for the next round: the one that it asks for may
            // begin before it has ended.
            let Some(_turn) = self.turns.try_take(Busy::Buffer(name.clone())) else {
                settled = false;
                continue;
            };
            if let Err(error) = self.settle_buffer(&name, &survey) {
                tracing::info!(buffer = %name, "not settled yet: {error}");
                settled = false;
            }
        }
        settled
    }

    /// Undoes a creation that was killed, finishes a destruction or an extension.
    pub(super) fn settle_buffer(
        &self,
        name: &BufferName,
        survey: &Survey,
    ) -> Result<(), ControlError> {
        let Some(record) = self.record.lock().buffer(name).cloned() else { return Ok(()) };
        match record.state {
            RecordState::Creating | RecordState::Destroying => {
                self.take_apart(&record)?;
                tracing::info!(buffer = %name, state = ?record.state, "cleared");
                Ok(())
            }
            RecordState::Ready => self.level(&record, survey),
        }
    }

    /// Parts that an extension has not reached are grown. What cannot be told now waits for the
    /// announcement of its server.
    fn level(&self, record: &BufferRecord, survey: &Survey) -> Result<(), ControlError> {
        let told = record
            .servers
            .iter()
            .filter_map(|&server| part_in(survey, server, &record.uuid))
            .filter(|(_, part)| part.fault.is_none());
        let mut behind = false;
        let mut count = 0;
        for (_, part) in told {
            count += 1;
            behind |= part.capacity_bytes < record.part_bytes;
        }
        if !behind || count < record.servers.len() {
            return Ok(());
        }
        self.grow_parts(record).or_else(|error| {
            tracing::warn!(buffer = %record.name(), "it keeps its capacity: {error}");
            Ok(())
        })
    }

    /// Lost servers of which no buffer has a part are forgotten.
    pub(super) fn drop_lost(&self) {
        let mut kept = self.record.lock();
        let used = |id| kept.buffers.iter().any(|buffer| buffer.servers.contains(&id));
        let gone: Vec<ServerId> =
            kept.servers.iter().filter(|s| s.lost && !used(s.id)).map(|s| s.id).collect();
        if gone.is_empty() {
            return;
        }
        let dropped = self.record.commit_freeing(&mut kept, |file| {
            file.servers.retain(|server| !gone.contains(&server.id));
        });
        match dropped {
            Ok(()) => {
                tracing::info!(?gone, "lost servers of which no buffer has a part any more");
                self.round.servers_changed();
            }
            Err(error) => tracing::warn!("lost servers stay on record: {error}"),
        }
    }
}

fn rounds(ledger: &Weak<Ledger>) {
    let mut pause = PAUSE;
    let mut next = Some(Duration::ZERO);
    loop {
        let Some(ledger) = ledger.upgrade() else { return };
        if !ledger.round.wait(next) {
            return;
        }
        next = match ledger.round() {
            true => {
                pause = PAUSE;
                None
            }
            false => {
                let now = pause;
                pause = (pause * 2).min(PAUSE_LONGEST);
                Some(now)
            }
        };
    }
}
