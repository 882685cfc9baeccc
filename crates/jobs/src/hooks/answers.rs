//! What a scheduler asks about all buffers: pools, sessions, instances, configurations, as JSON in the form that
//! Slurm's plugins read. Sessions come from the hooks' own record: a scheduler forgets what is not listed for a
//! minute, so a server that is away must not make the list shorter.
//!
//! Invariant: the last answer of the pools is a whole one, in a file of its own in the state directory.
//! Callers: the front; `tables`; `setup`, which looks at the pools' last answer.

use super::refusal::{Done, Refusal, unexpected};
use super::servers::PoolServers;
use super::session::{Session, SessionKind, Sessions};
use super::site::Site;
use crate::record_file;
use forebay_proto::control::ControlError;
use forebay_proto::net::ledger::{LedgerReply, LedgerRequest, PoolStatus};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::Path;

/// In the state directory: the last answer to `pools`.
const POOLS_NAME: &str = "pools.json";
const NEW_POOLS_NAME: &str = "pools.new";

/// A pool as schedulers count it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Its name.
    pub id: String,
    /// Of the numbers below.
    pub units: String,
    /// A buffer's capacity is a multiple of this.
    pub granularity: u64,
    /// Size in granules.
    pub quantity: u64,
    /// Of them free.
    pub free: u64,
}

#[derive(Serialize, Deserialize)]
struct Pools {
    pools: Vec<Pool>,
}

impl Pool {
    /// Size.
    pub fn total_bytes(&self) -> u64 {
        self.granularity.saturating_mul(self.quantity)
    }

    /// From what its servers say. A buffer is divided evenly over `servers` of them (0 = all), each part a multiple
    /// of the servers' granularity; so a granule of the pool is one of each of these servers, and the pool has as
    /// many as the server of them with the least room.
    pub fn of(id: &str, status: &PoolStatus, servers: u16) -> Pool {
        let granularity = status.granularity_bytes.max(1);
        let alive = status.servers.iter().filter(|server| server.alive && !server.lost);
        let mut granules: Vec<(u64, u64)> = alive
            .map(|server| {
                let free = server.capacity_bytes.saturating_sub(server.reserved_bytes);
                (server.capacity_bytes / granularity, free / granularity)
            })
            .collect();
        granules.sort_unstable();
        let spread = match usize::from(servers) {
            0 => granules.len(),
            wanted => wanted.min(granules.len()),
        };
        let (quantity, free) = match granules.len() == spread {
            true => {
                let least = |of: fn(&(u64, u64)) -> u64| granules.iter().map(of).min();
                (least(|g| g.0).unwrap_or(0), least(|g| g.1).unwrap_or(0))
            }
            // Buffers go to those with the most room: all of it can be had, but for what is left on single servers.
            false => {
                let sum = |of: fn(&(u64, u64)) -> u64| granules.iter().map(of).sum::<u64>();
                (sum(|g| g.0) / spread.max(1) as u64, sum(|g| g.1) / spread.max(1) as u64)
            }
        };
        Pool {
            id: id.into(),
            units: "bytes".into(),
            granularity: granularity * spread.max(1) as u64,
            quantity,
            free,
        }
    }
}

/// The pools as they last answered; none if they never did.
fn last_pools(state_dir: &Path) -> Vec<Pool> {
    let text = fs::read(state_dir.join(POOLS_NAME)).unwrap_or_default();
    serde_json::from_slice(&text).map_or_else(|_| Vec::new(), |pools: Pools| pools.pools)
}

/// What `pools` says while the servers do not answer: what they said last. A Slurm whose first question after its start
/// fails forgets the buffers of all jobs, and calls no step of them any more.
pub fn last_answer(state_dir: &Path) -> Option<String> {
    let pools = last_pools(state_dir);
    (!pools.is_empty()).then(|| json!({ "pools": pools }).to_string())
}

/// The number of a session, which stays the same: a job's own; of a persistent buffer one made of its name, above
/// the numbers of jobs.
pub(super) fn id(session: &Session) -> u32 {
    const ABOVE_JOBS: u32 = 1 << 30;
    let name = session.token.as_str();
    // FNV-1a, 32 bits.
    let hash = name
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    name.parse().unwrap_or(ABOVE_JOBS | hash & (ABOVE_JOBS - 1))
}

/// Answers about all buffers.
#[derive(Clone, Copy)]
pub struct Answers<'a> {
    site: &'a Site,
    sessions: &'a Sessions,
    servers: PoolServers<'a>,
}

impl<'a> Answers<'a> {
    pub(super) fn new(
        site: &'a Site,
        sessions: &'a Sessions,
        servers: PoolServers<'a>,
    ) -> Answers<'a> {
        Answers { site, sessions, servers }
    }

    /// `pools`. What the servers say is kept for the time when they do not answer.
    ///
    /// # Errors
    /// If a pool does not answer, or the answer cannot be kept.
    pub fn pools(&self) -> Done {
        let mut pools = Vec::new();
        for name in self.site.pool_names() {
            let site = self.servers.pool(name)?;
            match self.servers.ask_pool(name, LedgerRequest::Pool)? {
                LedgerReply::Pool(status) => pools.push(Pool::of(name, &status, site.servers)),
                _ => return Err(unexpected().into()),
            }
        }
        let pools = Pools { pools };
        let text = serde_json::to_string(&pools)
            .map_err(|error| Refusal::new(&format!("write the pools: {error}")))?;
        if self.last_pools() != pools.pools {
            let dir = self.sessions.dir();
            let path = dir.join(POOLS_NAME);
            record_file::create_in(dir, NEW_POOLS_NAME)
                .and_then(|mut file| file.write_all(text.as_bytes()))
                .and_then(|()| fs::rename(dir.join(NEW_POOLS_NAME), &path))
                .map_err(|error| ControlError::io("note the pools", Some(&path), &error))?;
        }
        Ok(text)
    }

    /// The pools as they last answered; none if they never did.
    pub(super) fn last_pools(&self) -> Vec<Pool> {
        last_pools(self.sessions.dir())
    }

    /// `show_sessions`.
    ///
    /// # Errors
    /// If the sessions cannot be listed.
    pub fn show_sessions(&self) -> Done {
        let all = self.sessions.list()?;
        let sessions: Vec<Value> = all
            .iter()
            .map(|session| {
                json!({
                    "id": id(session), "created": session.created_s, "owner": session.uid,
                    "token": session.token, "swap_bytes_per_node": session.swap_bytes_per_node(),
                })
            })
            .collect();
        Ok(json!({ "sessions": sessions }).to_string())
    }

    /// `show_instances`: one for each session that has a buffer, of the same number.
    ///
    /// # Errors
    /// If the sessions cannot be listed.
    pub fn show_instances(&self) -> Done {
        let all = self.sessions.list()?;
        let with_buffer = all.iter().filter(|session| session.buffer.is_some());
        let instances: Vec<Value> = with_buffer
            .map(|session| {
                let label = session.buffer.as_ref().map_or("", |buffer| buffer.as_str());
                json!({
                    "id": id(session), "label": label, "public": session.kind == SessionKind::Persistent,
                    "capacity": { "bytes": session.capacity_bytes, "nodes": session.nodes.len() },
                    "links": { "session": id(session) },
                })
            })
            .collect();
        Ok(json!({ "instances": instances }).to_string())
    }

    /// `show_configurations`: one for each instance.
    ///
    /// # Errors
    /// If the sessions cannot be listed.
    pub fn show_configurations(&self) -> Done {
        let all = self.sessions.list()?;
        let with_buffer = all.iter().filter(|session| session.buffer.is_some());
        let configurations: Vec<Value> = with_buffer
            .map(|session| {
                let request = session.request.as_ref();
                let mode = request.and_then(|request| request.access_modes.first());
                let kind = if session.is_cache() { "cache" } else { "scratch" };
                json!({
                    "id": id(session), "access_mode": mode.map_or("striped", |mode| mode.word()),
                    "type": kind, "links": { "instance": id(session) },
                })
            })
            .collect();
        Ok(json!({ "configurations": configurations }).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::net::ledger::ServerStatus;

    fn server(capacity_bytes: u64, reserved_bytes: u64) -> ServerStatus {
        ServerStatus {
            id: "0".into(),
            addresses: Vec::new(),
            host: "h".into(),
            alive: true,
            leader: false,
            lost: false,
            why: None,
            capacity_bytes,
            reserved_bytes,
        }
    }

    #[test]
    fn a_granule_of_a_pool_is_one_of_each_server_of_a_buffer() {
        let mut status = PoolStatus {
            granularity_bytes: 16,
            servers: vec![server(1_000, 0), server(160, 32), server(320, 0)],
        };
        // Over all three: the smallest has 10 granules, 8 of them free.
        let pool = Pool::of("p", &status, 0);
        assert_eq!((pool.granularity, pool.quantity, pool.free), (48, 10, 8));
        // Over one: all granules of all.
        let pool = Pool::of("p", &status, 1);
        assert_eq!((pool.granularity, pool.quantity, pool.free), (16, 62 + 10 + 20, 62 + 8 + 20));
        // One that does not answer has nothing to give.
        status.servers[1].alive = false;
        let pool = Pool::of("p", &status, 0);
        assert_eq!((pool.granularity, pool.quantity, pool.free), (32, 20, 20));
        status.servers.clear();
        assert_eq!(Pool::of("p", &status, 0).total_bytes(), 0);
    }
}
