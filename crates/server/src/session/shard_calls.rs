//! Questions of the servers of the buffer's other shards, and what changes over shards need of the
//! sessions here: that nobody believes what is about to change.

use super::Sessions;
use super::changes::Changes;
use forebay_interfaces::peers::ShardHandler;
use forebay_lease::leases::Subject;
use forebay_namespace::shards::{About, Believers, Quiet};
use forebay_proto::net::servers::{NamesQuestion, NamesReply, ObjectsQuestion, ObjectsReply};
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
pub(super) struct ShardBelievers(pub(super) Weak<Changes>);

/// Ends with itself what [`Changes::begin`] began.
struct Hushed {
    changes: Weak<Changes>,
    subjects: Vec<Subject>,
}

impl Drop for Hushed {
    fn drop(&mut self) {
        if let Some(changes) = self.changes.upgrade() {
            changes.end(&self.subjects);
        }
    }
}

impl ShardBelievers {
    fn hushed(&self, about: &[About], begin: impl FnOnce(&Changes, &[Subject])) -> Quiet {
        let subjects: Vec<Subject> = about.iter().map(|about| subject(*about)).collect();
        let Some(changes) = self.0.upgrade() else {
            return Box::new(Hushed { changes: Weak::new(), subjects });
        };
        begin(&changes, &subjects);
        Box::new(Hushed { changes: Arc::downgrade(&changes), subjects })
    }
}

impl Believers for ShardBelievers {
    fn recall(&self, client: u64, about: &[About]) -> Quiet {
        self.hushed(about, |changes, subjects| {
            changes.begin(changes.session_of(client), subjects);
        })
    }

    fn hush(&self, about: &[About]) -> Quiet {
        self.hushed(about, Changes::hush)
    }

    fn name_gone(&self, client: u64, ino: Ino, dir: Ino, name: &[u8]) {
        if let Some(changes) = self.0.upgrade() {
            changes.name_gone(changes.session_of(client), ino, dir, name);
        }
    }
}

fn subject(about: About) -> Subject {
    match about {
        About::Names(ino) => Subject::Names(ino),
        About::Attrs(ino) => Subject::Attrs(ino),
    }
}
