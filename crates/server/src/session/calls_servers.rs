//! Questions of the servers of the buffer's other shards, and what changes over shards need of the
//! sessions here: that nobody believes what is about to change.

use super::Sessions;
use forebay_interfaces::peers::ShardHandler;
use forebay_lease::leases::Subject;
use forebay_namespace::shards::{About, Believers, Quiet};
use forebay_proto::net::servers::{NamesQuestion, NamesReply, ObjectsQuestion, ObjectsReply};
use forebay_proto::net::session::{ClientId, SessionId};
use forebay_proto::{Ino, Result, ShardId};
use std::sync::{Arc, Weak};

impl ShardHandler for Sessions {
    fn names(
        &self,
        from: ShardId,
        question: &NamesQuestion<'_>,
        _payload: &[u8],
        _room: &mut Vec<u8>,
    ) -> Result<NamesReply> {
        self.namespace.asked(from, question)
    }

    fn objects(
        &self,
        from: ShardId,
        question: &ObjectsQuestion,
        payload: &[u8],
        room: &mut Vec<u8>,
    ) -> Result<ObjectsReply> {
        self.namespace.stripes().answer_objects(from, question, payload, room)
    }
}

/// The sessions, as those who believe things without asking.
pub(super) struct ShardBelievers(pub(super) Weak<Sessions>);

/// Ends with itself what [`Sessions::begin_change`] began.
struct Hushed {
    sessions: Weak<Sessions>,
    subjects: Vec<Subject>,
}

impl Drop for Hushed {
    fn drop(&mut self) {
        if let Some(sessions) = self.sessions.upgrade() {
            sessions.end_change(&self.subjects);
        }
    }
}

impl ShardBelievers {
    fn hushed(&self, about: &[About], begin: impl FnOnce(&Sessions, &[Subject])) -> Quiet {
        let subjects: Vec<Subject> = about.iter().map(|about| subject(*about)).collect();
        let Some(sessions) = self.0.upgrade() else {
            return Box::new(Hushed { sessions: Weak::new(), subjects });
        };
        begin(&sessions, &subjects);
        Box::new(Hushed { sessions: Arc::downgrade(&sessions), subjects })
    }
}

impl Believers for ShardBelievers {
    fn recall(&self, client: u64, about: &[About]) -> Quiet {
        self.hushed(about, |sessions, subjects| {
            sessions.begin_change(sessions.session_of(client), subjects);
        })
    }

    fn hush(&self, about: &[About]) -> Quiet {
        self.hushed(about, |sessions, subjects| {
            for subject in subjects {
                sessions.leases.begin(*subject, None);
            }
        })
    }

    fn name_gone(&self, client: u64, ino: Ino, dir: Ino, name: &[u8]) {
        if let Some(sessions) = self.0.upgrade() {
            sessions.name_gone(sessions.session_of(client), ino, dir, name);
        }
    }
}

impl Sessions {
    /// The session of a client that asked another shard for something.
    pub(super) fn session_of(&self, client: u64) -> Option<SessionId> {
        let table = self.table.lock();
        let session = table.sessions.values().find(|s| s.attach.client == ClientId(client));
        session.map(|session| session.id)
    }
}

fn subject(about: About) -> Subject {
    match about {
        About::Names(ino) => Subject::Names(ino),
        About::Attrs(ino) => Subject::Attrs(ino),
    }
}
