//! What the leader does for its members: takes announcements, tells of changes, and gives servers up that will not come
//! back: what their shards held is lost, says so at once, and holds nothing up any more.

use super::{Members, refuse};
use crate::ledger::Identity;
use crate::ledger::adopt::TAKEN_OVER;
use crate::ledger::record::BufferRecord;
use crate::ledger::servers::known;
use forebay_failpoint::step;
use forebay_net::ServerAddress;
use forebay_proto::ServerId;
use forebay_proto::control::ControlError;
use forebay_proto::net::ledger::LedgerReply;
use forebay_proto::net::pool::{MAX_SERVERS, PartTold, PoolQuestion, PoolReply, PoolServer, Term};

impl Members {
    /// A server says where it is: it is a member from now on, unless it was given up. `term` is the leader that
    /// it goes by.
    pub(super) fn announced(
        &self,
        server: PoolServer,
        parts: &[String],
        term: &Term,
    ) -> Result<PoolReply, ControlError> {
        self.refuse_twin(&server)?;
        let mut kept = self.record.lock();
        if let Some(leader) = kept.leader {
            let found = kept.other(leader).cloned();
            return found.map(PoolReply::LeaderIs).ok_or_else(|| {
                refuse("this member has lost its leader", libc::EHOSTUNREACH, "ask the leader")
            });
        }
        let earlier = kept.other(server.id).cloned();
        match &earlier {
            Some(earlier) if earlier.lost => return Ok(PoolReply::Forgotten),
            None if kept.given_up.contains(&server.id) => return Ok(PoolReply::Forgotten),
            None if kept.servers.len() + 1 >= MAX_SERVERS => {
                let why = format!("the pool has {MAX_SERVERS} servers, the most");
                return Err(refuse(&why, libc::EDQUOT, "forget one first"));
            }
            _ => (),
        }
        // Of a member that only an earlier leader knew the parts are to be learned.
        let unheard = earlier.is_none() && !parts.is_empty() && *term != kept.term();
        let server = PoolServer { lost: false, ..server };
        if earlier.as_ref() != Some(&server) {
            let (id, told) = (server.id, server.clone());
            self.record.commit(&mut kept, |file| {
                match file.servers.iter_mut().find(|other| other.id == id) {
                    Some(other) => *other = told,
                    None => file.servers.push(told),
                }
                if unheard {
                    file.untold.push(id);
                }
            })?;
            tracing::info!(%id, host = server.host, addresses = ?server.addresses, "member");
            self.servers.links().directory().set(id, known(&server));
            self.round.servers_changed();
        }
        self.servers.links().is_back(server.id);
        let has = |uuid: &&String| {
            let of_it = |b: &&BufferRecord| b.servers.contains(&server.id);
            !kept.buffers.iter().filter(of_it).any(|buffer| buffer.uuid == **uuid)
        };
        let unknown = match kept.untold.contains(&server.id) {
            true => Vec::new(),
            false => parts.iter().filter(has).cloned().collect(),
        };
        let term = kept.term();
        drop(kept);
        self.round.soon();
        Ok(PoolReply::Welcome { term, servers: self.servers.all(), unknown })
    }

    /// ENOTUNIQ for a server where it is not known to be, while one of its identity answers where it is: one of the two
    /// runs on a copy of the other's flash. The one that was first stays; who is to know which is the right one?
    fn refuse_twin(&self, server: &PoolServer) -> Result<(), ControlError> {
        if !self.record.is_leader() {
            return Ok(());
        }
        let earlier =
            self.servers.all().into_iter().find(|known| known.id == server.id && !known.lost);
        let Some(earlier) = earlier else { return Ok(()) };
        let (old, new) = (known(&earlier).addresses, known(server).addresses);
        let start_at = |address: &ServerAddress| {
            self.servers.links().started_at(address).ok().filter(|start| start.server == server.id)
        };
        let mut elsewhere = old.iter().filter(|address| !new.contains(address));
        let Some((place, first)) = elsewhere.find_map(|at| start_at(at).map(|start| (at, start)))
        else {
            return Ok(());
        };
        // It may be one that is reached by several addresses.
        if new.iter().find_map(start_at).is_none_or(|second| second == first) {
            return Ok(());
        }
        let why = format!(
            "server {} of the pool, which has the same identity, runs at {place}: the flash of one is a copy of the other's",
            self.servers.host_of(server.id),
        );
        Err(refuse(
            &why,
            libc::ENOTUNIQ,
            "end the one that is not to be used; a copy becomes a server of its own on an empty --flash",
        ))
    }

    /// True if all members that are not lost know the servers as they are now.
    pub(in crate::ledger) fn tell_members(&self) -> bool {
        let version = self.round.version();
        let (leader, servers) = (self.record.leader(), self.servers.all());
        let unheard = self.record.lock().untold.clone();
        let others = servers.iter().filter(|s| s.id != leader && !s.lost).map(|s| s.id);
        let untold: Vec<ServerId> = self.round.untold(version, others);
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
        self.round.are_told(version, told.iter().filter(|(_, done)| *done).map(|(id, _)| *id));
        told.iter().all(|(_, done)| *done)
    }

    /// A server that follows this leader has told of all its parts: true if that is on record.
    fn adopt(&self, server: ServerId, parts: &[PartTold]) -> bool {
        let mut taken = Vec::new();
        let mut kept = self.record.lock();
        if !kept.untold.contains(&server) {
            return true;
        }
        let adopted = self.record.commit_noted(&mut kept, Some(TAKEN_OVER), |file| {
            taken = file.adopt(server, parts);
        });
        drop(kept);
        if let Err(error) = adopted {
            tracing::warn!(%server, "its buffers are not on record yet: {error}");
            return false;
        }
        step("a new leader has a server's parts on record");
        for name in &taken {
            tracing::warn!(%server, buffer = %name,
                "it has a buffer of the old leader whose name another buffer has by now: destroy that one, or give the server up");
        }
        // Servers that it named are to be asked, and buffers that are not whole cleared.
        self.round.servers_changed();
        taken.is_empty()
    }

    /// Marks a server as lost, on record. One that answers is not given up.
    pub(in crate::ledger) fn forget(
        &self,
        who: &Identity,
        server: ServerId,
    ) -> Result<LedgerReply, ControlError> {
        let refuse = |why: &str, errno: i32, hint: &str| {
            let what = format!("forget the server {server}");
            Err(ControlError::new(&what, None, why).errno(errno).hint(hint))
        };
        if !matches!(who, Identity::Superuser(_)) {
            let hint = "ask with the servers' key, or as root on a server's Unix socket";
            return refuse("only who runs the servers may", libc::EPERM, hint);
        }
        if server == self.record.server_id() {
            let hint = "if it is to go for good: end it, then `forebay pool leader --take-over` at another server";
            return refuse("it is the leader of the pool", libc::EINVAL, hint);
        }
        let Some(known) = self.record.lock().other(server).cloned() else {
            let hint = "`forebay pool status` shows the servers";
            return refuse("the pool has no such server", libc::ENOENT, hint);
        };
        if known.lost {
            return Ok(LedgerReply::Ok);
        }
        if self.servers.survey([server]).values().any(Option::is_some) {
            let hint = "end it first, if what it has is to be given up";
            return refuse("it answers", libc::EBUSY, hint);
        }
        {
            let mut kept = self.record.lock();
            self.record.commit_freeing(&mut kept, |file| {
                file.give_up(server);
                file.settle_adopted();
            })?;
        }
        step("a server is lost on record");
        self.servers.note_lost(server);
        tracing::warn!(%server, "given up: what it had of buffers is lost");
        self.round.servers_changed();
        // Who asks a member next is to be told the same. One that does not answer now hears it later.
        self.tell_members();
        Ok(LedgerReply::Ok)
    }
}
