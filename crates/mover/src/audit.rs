//! What a plan leaves in the buffer's event record: its beginning, each file that was copied or
//! failed, its end. Recorded before the journal, and before the plan is over on record: a kill in between
//! makes the plan say it again, never leave it out.

use super::journal::{Past, Record};
use super::plan::PlanFile;
use crate::counts::StagingCounts;
use forebay_proto::control::{Direction, PathBytes, PlanState, PlanStatus, Verify};
use forebay_proto::events::{EventKind, Happened};
use forebay_proto::{Errno, PlanId};
use forebay_store::events::EventLog;
use parking_lot::Mutex;
use std::sync::Arc;

/// Tells of one plan.
pub(super) struct Audit {
    log: Option<Arc<EventLog>>,
    counts: Arc<StagingCounts>,
    plan: PlanId,
    uid: u32,
    direction: Direction,
    verify: Verify,
    prefix: Vec<u8>,
    /// What the journal's paths are below.
    top: Mutex<Vec<u8>>,
}

impl Audit {
    /// Of a plan that is about to run; the first time this is told.
    pub fn begin(
        log: Option<Arc<EventLog>>,
        counts: Arc<StagingCounts>,
        file: &PlanFile,
        prefix: &PathBytes,
        past: &Past,
    ) -> Audit {
        let audit = Audit {
            log,
            counts,
            plan: file.plan,
            uid: file.who.uid,
            direction: file.spec.direction,
            verify: file.spec.verify,
            prefix: prefix.as_bytes().to_vec(),
            top: Mutex::new(past.top.clone().unwrap_or_default()),
        };
        if past.is_fresh() {
            let in_buffer =
                PathBytes::in_buffer(prefix.as_bytes(), file.spec.buffer_path.as_bytes());
            let (from, to) = match file.spec.direction {
                Direction::In => (file.spec.pfs_path.clone(), in_buffer),
                Direction::Out => (in_buffer, file.spec.pfs_path.clone()),
            };
            let note = Some(format!("to {to}"));
            let begun = Happened { path: Some(from), note, ..audit.of(EventKind::Begun) };
            audit.record(&[begun]);
        }
        audit
    }

    fn of(&self, event: EventKind) -> Happened {
        Happened { plan: Some(self.plan), ..Happened::of(event, self.uid) }
    }

    fn record(&self, happened: &[Happened]) {
        if let Some(log) = &self.log {
            log.record(happened);
        }
    }

    /// Lines that are about to be journaled.
    pub fn tell(&self, records: &[Record]) {
        let happened: Vec<_> = records.iter().filter_map(|record| self.event(record)).collect();
        self.record(&happened);
    }

    fn event(&self, record: &Record) -> Option<Happened> {
        match record {
            Record::Top { path, .. } => {
                *self.top.lock() = path.as_bytes().to_vec();
                None
            }
            Record::Done { path, target, crc32c, .. } => Some(Happened {
                path: Some(self.shown(path.as_bytes())),
                bytes: Some(target.size_bytes()),
                crc32c: Some(*crc32c),
                verified: Some(self.verify),
                ..self.of(EventKind::Staged)
            }),
            Record::Error(error) => {
                self.counts.errors.count(Errno(error.errno));
                Some(Happened {
                    path: Some(error.path.clone()),
                    errno: (error.errno != 0).then_some(error.errno),
                    note: Some(format!("{}: {}", error.what, error.why)),
                    ..self.of(EventKind::Failed)
                })
            }
            _ => None,
        }
    }

    /// A path below the target's top as users see it.
    fn shown(&self, path: &[u8]) -> PathBytes {
        let full = super::paths::join(&self.top.lock(), path, b"");
        match self.direction {
            Direction::In => PathBytes::in_buffer(&self.prefix, &full),
            Direction::Out => PathBytes::new(&full),
        }
    }
}

/// A plan ends: on flash when this returns, before the plan's own record says so.
pub(super) fn tell_end(
    log: Option<&EventLog>,
    counts: &StagingCounts,
    status: &PlanStatus,
    state: PlanState,
) {
    counts.ended(state);
    let event = match state {
        PlanState::Done => EventKind::Verified,
        PlanState::Failed => EventKind::Failed,
        PlanState::Cancelled => EventKind::Cancelled,
        PlanState::Queued | PlanState::Running => return,
    };
    let failed = || format!("{} failed", status.failed_text());
    let note = (status.files_failed > 0).then(failed);
    let happened = Happened {
        plan: Some(status.plan),
        bytes: Some(status.bytes_done),
        files: Some(status.files_done.saturating_sub(status.other_entries_done)),
        verified: (state == PlanState::Done).then_some(status.spec.verify),
        note,
        ..Happened::of(event, status.uid)
    };
    // What a commit published, it had verified.
    let commit = status.commit.as_ref().filter(|_| state == PlanState::Done);
    let committed = commit.map(|commit| Happened {
        event: EventKind::Committed,
        path: Some(status.spec.pfs_path.clone()),
        note: Some(format!("version {}", commit.version)),
        ..happened.clone()
    });
    let told: Vec<_> = std::iter::once(happened).chain(committed).collect();
    if let Some(log) = log {
        log.record_durably(&told);
    }
}
