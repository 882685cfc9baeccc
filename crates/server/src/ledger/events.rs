//! What a server writes down of buffers: made, extended, destroyed; and the records of those that are gone.
//!
//! The record is told of each change after the ledger's file has it, by comparing the two: so
//! what a kill has kept from being told is told by the next start. The leader of a pool tells of its
//! buffers, other servers of their shards. Called by `record_store`; `history` answers questions from it.

use super::record::{LedgerFile, RecordState};
use super::{Identity, ServedBuffer};
use forebay_failpoint::step;
use forebay_proto::ServerId;
use forebay_proto::control::ControlError;
use forebay_proto::events::{Event, EventKind, EventsPage, EventsQuery, Happened};
use forebay_proto::net::ledger::BufferName;
use forebay_store::events::{EventLog, keep};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Directory of the record, in the ledger's.
const EVENTS_NAME: &str = "events";
/// Directory of the records of destroyed buffers, in that.
const ENDED_NAME: &str = "ended";
/// Most records of destroyed buffers that are kept; the oldest give way.
const ENDED_RECORDS_MAX: usize = 64;
/// Most bytes of them.
const ENDED_BYTES_MAX: u64 = 64 << 20;
/// Said of what is told by a start.
pub(super) const LATE: &str = "seen by a start of the server";

/// A buffer that is there, as far as the record says.
#[derive(Clone, PartialEq, Eq)]
struct Alive {
    name: String,
    owner_uid: u32,
    capacity_bytes: u64,
    note: Option<String>,
}

/// The record.
pub(super) struct Told {
    log: EventLog,
    ended: PathBuf,
    alive: Mutex<BTreeMap<String, Alive>>,
}

impl Told {
    /// Opens it, in the ledger's directory.
    pub(super) fn open(dir: &Path, server: ServerId) -> Result<Told, ControlError> {
        let dir = dir.join(EVENTS_NAME);
        // A server that lost its identity begins a record of its own.
        let log = EventLog::open(&dir.join(server.to_string()), &server.to_string())?;
        let ended = dir.join(ENDED_NAME);
        let made = std::fs::DirBuilder::new().mode(0o700).recursive(true).create(&ended);
        made.map_err(|error| ControlError::io("keep events in", Some(&ended), &error))?;
        let mut alive = BTreeMap::new();
        let mut query = EventsQuery::default();
        loop {
            let page = log.read(&query, &|_| true)?;
            page.events.into_iter().for_each(|event| take(&mut alive, event.happened));
            query.after = page.next_after;
            if !page.more {
                return Ok(Told { log, ended, alive: Mutex::new(alive) });
            }
        }
    }

    /// Tells how the ledger's file, which is on flash, differs from what was told.
    pub(super) fn tell(&self, file: &LedgerFile, note: Option<&str>) {
        let mut alive = self.alive.lock();
        let now = of_file(file);
        let mut happened = Vec::new();
        let mut add = |event, uuid: &String, of: &Alive| {
            let note = note.map(String::from).or_else(|| of.note.clone());
            happened.push(Happened {
                bytes: Some(of.capacity_bytes),
                buffer: Some(of.name.clone()),
                uuid: Some(uuid.clone()),
                note,
                ..Happened::of(event, of.owner_uid)
            });
        };
        for (uuid, (state, of)) in &now {
            match alive.get(uuid) {
                // What is going changes no more.
                _ if *state != RecordState::Ready => {}
                None => add(EventKind::Created, uuid, of),
                Some(told) if told.capacity_bytes != of.capacity_bytes => {
                    add(EventKind::Extended, uuid, of);
                }
                Some(_) => {}
            }
        }
        for (uuid, of) in alive.iter().filter(|(uuid, _)| !now.contains_key(*uuid)) {
            add(EventKind::Destroyed, uuid, of);
        }
        if happened.is_empty() {
            return;
        }
        step("a change of the ledger is to be told");
        self.log.record_durably(&happened);
        happened.into_iter().for_each(|happened| take(&mut alive, happened));
    }

    /// Keeps the record of a buffer whose store is about to go. That it cannot be kept does not
    /// keep the store.
    pub(super) fn keep_of(&self, served: &ServedBuffer) {
        let kept = served.server.events().copy_to(&self.ended, &served.uuid).and_then(|_| {
            keep(&self.ended, ENDED_RECORDS_MAX, ENDED_BYTES_MAX).map_err(|errno| {
                ControlError::io("remove old events in", Some(&self.ended), &errno.into())
            })
        });
        if let Err(error) = kept {
            tracing::warn!(buffer = %served.name, "its events are not kept: {error}");
        }
    }

    /// What `who` may see of it, of all buffers or of those of this name.
    pub(super) fn read(
        &self,
        who: &Identity,
        name: Option<&BufferName>,
        query: &EventsQuery,
    ) -> Result<EventsPage, ControlError> {
        self.log.read(query, &|event| sees(who, name, event))
    }

    /// The identity of the newest destroyed buffer of this name that `who` may see.
    pub(super) fn ended_of(
        &self,
        who: &Identity,
        name: &BufferName,
    ) -> Result<Option<String>, ControlError> {
        let mut query = EventsQuery::default();
        let mut found = None;
        let may_see = |event: &Event| {
            event.happened.event == EventKind::Destroyed && sees(who, Some(name), event)
        };
        loop {
            let page = self.log.read(&query, &may_see)?;
            found = page.events.into_iter().filter_map(|e| e.happened.uuid).next_back().or(found);
            query.after = page.next_after;
            if !page.more {
                return Ok(found);
            }
        }
    }

    /// Where the record of a destroyed buffer is, if it is kept here.
    pub(super) fn kept(&self, uuid: &str) -> Option<PathBuf> {
        Some(self.ended.join(uuid)).filter(|path| path.exists())
    }

    /// True if `who` may see what happened to the destroyed buffer of this identity.
    pub(super) fn may_see_ended(
        &self,
        who: &Identity,
        name: &BufferName,
        uuid: &str,
    ) -> Result<bool, ControlError> {
        let mut query = EventsQuery::default();
        let may_see = |event: &Event| {
            event.happened.uuid.as_deref() == Some(uuid) && sees(who, Some(name), event)
        };
        loop {
            let page = self.log.read(&query, &may_see)?;
            if !page.events.is_empty() || !page.more {
                return Ok(!page.events.is_empty());
            }
            query.after = page.next_after;
        }
    }
}

/// Follows the record.
fn take(alive: &mut BTreeMap<String, Alive>, happened: Happened) {
    let Happened { event, uid, bytes, buffer, uuid, note, .. } = happened;
    let (Some(name), Some(uuid)) = (buffer, uuid) else { return };
    match event {
        EventKind::Destroyed => drop(alive.remove(&uuid)),
        _ => {
            let note = note.filter(|note| note != LATE);
            let capacity_bytes = bytes.unwrap_or(0);
            alive.insert(uuid, Alive { name, owner_uid: uid, capacity_bytes, note });
        }
    }
}

/// What is on the ledger's file, by identity.
fn of_file(file: &LedgerFile) -> BTreeMap<String, (RecordState, Alive)> {
    if file.leader.is_none() {
        let of = |b: &super::record::BufferRecord| Alive {
            name: b.name().to_string(),
            owner_uid: b.owner_uid,
            capacity_bytes: b.part_bytes * b.servers.len() as u64,
            note: None,
        };
        return file.buffers.iter().map(|b| (b.uuid.clone(), (b.state, of(b)))).collect();
    }
    let of = |p: &super::record::PartRecord| Alive {
        name: p.name().to_string(),
        owner_uid: p.spec.owner_uid,
        capacity_bytes: p.spec.capacity_bytes,
        note: Some(format!("shard {} of {}", p.spec.shard.0, p.spec.servers.len())),
    };
    file.parts.iter().map(|p| (p.spec.uuid.clone(), (p.state, of(p)))).collect()
}

/// May they see this event of the server's record?
fn sees(who: &Identity, name: Option<&BufferName>, event: &Event) -> bool {
    let of = event.happened.buffer.as_deref();
    let wanted = name.is_none_or(|name| of == Some(name.as_str()));
    wanted
        && match who {
            Identity::Superuser(_) => true,
            Identity::User(caller) => caller.uid == event.happened.uid,
            Identity::Holder(name) => of == Some(name.as_str()),
        }
}
