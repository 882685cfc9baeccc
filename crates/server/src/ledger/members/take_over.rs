//! A leader that is gone for good: another server of the pool takes its place, when it is told to.
//!
//! | step | killed after it |
//! | --- | --- |
//! | 1 nobody hears the old leader, all others answer | nothing was changed |
//! | 2 record of the new leader: it is the leader, with the next epoch; the old one is lost; its own shards' buffers; who has not told yet | its next start goes on with 3 |
//! | 3 each other server: follows it on record, then tells of its shards | told again, tells again |
//! | 4 record of the new leader: those buffers (`adopt`) | the server is asked again |
//!
//! Fencing: each server keeps the greatest term (pool, epoch, leader) on record that it was told; a leader with a smaller one is
//! told who leads the pool, and nothing is done for it. The old leader then starts over as a
//! new member (`members`). docs/internals/LEDGER.md.

use super::Members;
use crate::ledger::Identity;
use crate::ledger::adopt::{TAKEN_OVER, nameless, told_of};
use forebay_failpoint::step;
use forebay_proto::ServerId;
use forebay_proto::control::ControlError;
use forebay_proto::net::ledger::LedgerReply;
use forebay_proto::net::pool::{PoolAsked, PoolQuestion, PoolReply, PoolServer, Term};
use std::collections::{BTreeMap, BTreeSet};

const WHAT: &str = "take the pool over";

fn refuse(why: &str, errno: i32, hint: &str) -> ControlError {
    ControlError::new(WHAT, None, why).errno(errno).hint(hint)
}

impl Members {
    /// Makes this server the leader. Done already if it is that.
    pub(in crate::ledger) fn take_over(
        &self,
        who: &Identity,
        without: &[ServerId],
    ) -> Result<LedgerReply, ControlError> {
        if !matches!(who, Identity::Superuser(_)) {
            let hint = "ask with the servers' key, or as root on a server's Unix socket";
            return Err(refuse("only who runs the servers may", libc::EPERM, hint));
        }
        let term = self.record.term();
        if term.leader != self.record.server_id() {
            self.must_be_gone(term.leader)?;
            let servers = self.survivors(term.leader, without)?;
            self.keep_from_now(term, servers)?;
        }
        // Whoever does not answer now hears it later.
        self.tell_members();
        Ok(LedgerReply::Ok)
    }

    fn must_be_gone(&self, leader: ServerId) -> Result<(), ControlError> {
        self.servers.links().is_back(leader);
        match self.ask(leader, &PoolQuestion::Facts) {
            Ok(_) => {
                let why = format!("the leader, {}, answers", self.servers.host_of(leader));
                Err(refuse(&why, libc::EBUSY, "end it first, if what it has is to be given up"))
            }
            // It follows another one by now, and so will this server.
            Err(error) if error.errno == Some(libc::ESTALE) => Err(error),
            Err(_) => Ok(()),
        }
    }

    /// Asks all other servers, and those that they know. All servers but this one, with those that are
    /// given up marked as lost.
    fn survivors(
        &self,
        leader: ServerId,
        without: &[ServerId],
    ) -> Result<Vec<PoolServer>, ControlError> {
        let mut known: BTreeMap<ServerId, PoolServer> = BTreeMap::new();
        note(&mut known, self.servers.all());
        let mut asked = BTreeSet::from([self.record.server_id(), leader]);
        loop {
            let next: Vec<ServerId> = known
                .values()
                .filter(|server| !server.lost && asked.insert(server.id))
                .map(|server| server.id)
                .collect();
            if next.is_empty() {
                break;
            }
            for (id, heard) in self.ask_who_hears(&next) {
                let (given_up, host) = (without.contains(&id), self.servers.host_of(id));
                match heard {
                    Ok(PoolReply::Heard { .. }) if given_up => {
                        let why = format!("server {host}, which is to be given up, answers");
                        return Err(refuse(&why, libc::EBUSY, "end it first, or do not name it"));
                    }
                    Ok(PoolReply::Heard { leader: true, .. }) => {
                        let why = format!("server {host} hears the leader");
                        return Err(refuse(&why, libc::EBUSY, "end the leader first"));
                    }
                    Ok(PoolReply::Heard { servers, .. }) => {
                        self.note_new(&known, &servers);
                        note(&mut known, servers);
                    }
                    Ok(_) => return Err(self.servers.nonsense(id)),
                    Err(_) if given_up => {}
                    Err(error) => {
                        let why = format!("server {host} does not answer: {}", error.why);
                        let hint = format!(
                            "start it; or give it up as well, what it has is lost then: --without {id}"
                        );
                        return Err(refuse(&why, error.errno.unwrap_or(libc::EIO), &hint));
                    }
                }
            }
        }
        if let Some(unknown) = without.iter().find(|id| !known.contains_key(id)) {
            let why = format!("the pool has no server {unknown}");
            return Err(refuse(
                &why,
                libc::ENOENT,
                "give identities as the servers' logs say them",
            ));
        }
        known.remove(&self.record.server_id());
        for id in without.iter().chain([&leader]) {
            known.entry(*id).or_insert_with(|| nameless(*id)).lost = true;
        }
        Ok(known.into_values().collect())
    }

    /// Where servers are that only others knew.
    fn note_new(&self, known: &BTreeMap<ServerId, PoolServer>, servers: &[PoolServer]) {
        for server in servers.iter().filter(|server| !known.contains_key(&server.id)) {
            self.servers.note(server);
        }
    }

    fn ask_who_hears(
        &self,
        servers: &[ServerId],
    ) -> Vec<(ServerId, Result<PoolReply, ControlError>)> {
        std::thread::scope(|scope| {
            let ask = |id| {
                self.servers.links().is_back(id);
                (id, self.ask(id, &PoolQuestion::Hears))
            };
            let asking: Vec<_> = servers.iter().map(|&id| scope.spawn(move || ask(id))).collect();
            asking.into_iter().filter_map(|thread| thread.join().ok()).collect()
        })
    }

    /// To a server that is to take over.
    pub(super) fn hears(&self) -> PoolReply {
        let (mine, leader) = (self.record.server_id(), self.record.leader());
        self.servers.links().is_back(leader);
        let answers = leader == mine || self.ask(leader, &PoolQuestion::Facts).is_ok();
        let servers = self.servers.all().into_iter().filter(|server| server.id != mine).collect();
        PoolReply::Heard { leader: answers, servers }
    }

    /// On record this server is the leader from here on.
    fn keep_from_now(&self, before: Term, servers: Vec<PoolServer>) -> Result<(), ControlError> {
        let lost: Vec<ServerId> = servers.iter().filter(|s| s.lost).map(|s| s.id).collect();
        let mut kept = self.record.lock();
        if kept.term() != before {
            let why = "the pool got another leader at the same moment";
            return Err(refuse(why, libc::EAGAIN, "`forebay pool status` shows it"));
        }
        self.record.commit_noted(&mut kept, Some(TAKEN_OVER), |file| {
            file.epoch += 1;
            file.leader = None;
            file.untold = servers.iter().filter(|s| !s.lost).map(|s| s.id).collect();
            file.servers = servers;
            file.given_up.clear();
            lost.iter().for_each(|id| file.give_up(*id));
            let own: Vec<_> = file.parts.iter().map(told_of).collect();
            file.adopt(file.server, &own);
        })?;
        drop(kept);
        step("a server is the leader on record");
        tracing::warn!(old = %before.leader, epoch = before.epoch + 1, ?lost,
            "this server keeps the ledger of the pool from now on; what the lost ones had is lost");
        self.servers.note_all();
        self.round.servers_changed();
        Ok(())
    }

    /// The leader that the pool has got since the one that asks, if that is a question of a leader.
    pub(in crate::ledger) fn leader_since(&self, asked: &PoolAsked) -> Option<PoolServer> {
        use PoolQuestion as Q;
        let of_leader = match &asked.question {
            Q::Servers { .. }
            | Q::Hears
            | Q::Facts
            | Q::MakePart(_)
            | Q::GrowPart { .. }
            | Q::RemovePart { .. } => true,
            Q::Announce { .. }
            | Q::Follow(_)
            | Q::Ledger { .. }
            | Q::CachePart { .. }
            | Q::Secret(_) => false,
        };
        let mine = self.record.term();
        if !of_leader || !asked.term.is_before(&mine) {
            return None;
        }
        tracing::warn!(old = %asked.term.leader, leader = %mine.leader,
            "a leader that the pool has no more asks: it is told who keeps the pool");
        let servers = self.servers.all();
        let found = servers.into_iter().find(|server| server.id == mine.leader);
        Some(found.unwrap_or_else(|| nameless(mine.leader)))
    }
}

/// Adds what a server knows of others. What one was told to be lost is lost.
fn note(known: &mut BTreeMap<ServerId, PoolServer>, servers: Vec<PoolServer>) {
    for server in servers {
        let lost = server.lost;
        known.entry(server.id).or_insert(server).lost |= lost;
    }
}
