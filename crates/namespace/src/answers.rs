//! Answers kept for clients on the net, so that a call that is repeated after a restart of the
//! server is answered and not done twice. Called by `session`.
//!
//! A change of names or attributes is one batch of the store and its answer is in it (see `txn`).
//! Data is not in the log, so a call that appends or sets a size writes down first what it is
//! about to do, and then that it is done; [`Answers::settle`] finds at the next start what came of
//! those that were killed in between.
//!
//! Invariant of the callers: from the first note to the last of such a call, no other call of a
//! client changes the object. `alone` says that no kernel could either: what the object shows
//! after a kill is then this call's doing alone.

use super::attributes::Attributes;
use super::base::Base;
use super::data::FileData;
use super::records::Records;
use super::striped::Keep;
use forebay_proto::{Caller, Errno, Ino, ObjectId, RequestId, Result};
use forebay_store::objects::Objects;
use forebay_store::record::{AnswerRecord, Answered, Change, KeptAnswer, slot_of};
use std::sync::Arc;

/// Answers settled by one record of the log.
const BATCH_ANSWERS: usize = 1024;
/// How far behind the end that a file had before an append its bytes are looked for, when kernels
/// could append at the same time.
const SEARCH_MAX_BYTES: u64 = 64 << 20;
/// Bytes read at a time meanwhile.
const SEARCH_WINDOW_BYTES: usize = 1 << 20;

/// The answers.
pub struct Answers {
    records: Arc<Records>,
    objects: Arc<Objects>,
    keep: Arc<Keep>,
    attrs: Arc<Attributes>,
    data: Arc<FileData>,
}

impl Answers {
    /// On record here.
    pub(crate) fn new(
        base: &Base,
        keep: &Arc<Keep>,
        attrs: &Arc<Attributes>,
        data: &Arc<FileData>,
    ) -> Answers {
        Answers {
            records: Arc::clone(&base.records),
            objects: Arc::clone(&base.objects),
            keep: Arc::clone(keep),
            attrs: Arc::clone(attrs),
            data: Arc::clone(data),
        }
    }

    /// Writes down what is about to become, or has become, of a caller's call.
    pub fn note(&self, caller: &Caller, what: Answered) -> Result<()> {
        let (slot, seq) = slot_of(caller.request);
        let answer = AnswerRecord { seq, what };
        let change = Change::PutAnswer { client: caller.request.client, slot, answer };
        self.records.commit(caller.request, vec![change])
    }

    /// Forgets a client.
    pub fn forget(&self, client: u64) -> Result<()> {
        self.records.commit(RequestId::default(), vec![Change::DelAnswers(client)])
    }

    /// At the start, before any client is heard: ends what a kill interrupted between two notes,
    /// and returns all answers.
    pub fn settle(&self) -> Result<Vec<KeptAnswer>> {
        let mut answers = self.records.store().answers()?;
        let mut changes = Vec::new();
        for ((client, slot), answer) in &mut answers {
            if let Answered::Appending { ino, .. } | Answered::Truncating { ino, .. } = answer.what
                && self.records.store().inode(ino)?.is_some_and(|record| record.is_striped())
            {
                // Other servers have to be asked, and may be away.
                self.keep.unsettled((*client, *slot), ino, *answer);
                continue;
            }
            let settled = match answer.what {
                Answered::Appending { ino, at, count, alone: true } => {
                    self.settle_append(ino, at, count)?
                }
                Answered::Truncating { ino, size_bytes, alone: true } => {
                    match self.objects.truncate(ObjectId::whole(ino), size_bytes) {
                        Ok(()) => Answered::Truncated,
                        // No such file, or one that never had data: nothing was done.
                        Err(Errno::ENOENT) => Answered::Undone,
                        Err(errno) => return Err(errno),
                    }
                }
                _ => continue,
            };
            answer.what = settled;
            changes.push(Change::PutAnswer { client: *client, slot: *slot, answer: *answer });
        }
        for batch in changes.chunks(BATCH_ANSWERS) {
            self.records.commit(RequestId::default(), batch.to_vec())?;
        }
        Ok(answers)
    }

    /// All of an append is there, or none of it: a part that a kill left is taken off.
    fn settle_append(&self, ino: Ino, at: u64, count: u32) -> Result<Answered> {
        let id = ObjectId::whole(ino);
        let size_bytes = match self.objects.stat(id) {
            Ok(stat) => stat.size_bytes,
            Err(Errno::ENOENT) => return Ok(Answered::Undone),
            Err(errno) => return Err(errno),
        };
        if size_bytes >= at + u64::from(count) {
            return Ok(Answered::Appended(count));
        }
        if size_bytes > at {
            self.objects.truncate(id, at)?;
        }
        Ok(Answered::Undone)
    }

    /// Whether `data` stands in a file at or behind `from`: what came of an append when kernels
    /// could append at the same time.
    pub fn has_appended(&self, ino: Ino, from: u64, data: &[u8]) -> Result<bool> {
        let Some(&first) = data.first() else { return Ok(true) };
        let end = self.attrs.of(ino)?.size_bytes.min(from.saturating_add(SEARCH_MAX_BYTES));
        let mut window = vec![0; SEARCH_WINDOW_BYTES.max(2 * data.len())];
        let mut at = from;
        while at + data.len() as u64 <= end {
            let want = window.len().min((end - at) as usize);
            let have = self.data.read(ino, at, &mut window[..want])?;
            let bytes = &window[..have];
            let starts = (have + 1).saturating_sub(data.len());
            let begins = |i: &usize| bytes[*i] == first && bytes[*i..].starts_with(data);
            if (0..starts).any(|i| begins(&i)) {
                return Ok(true);
            }
            if starts == 0 {
                break;
            }
            at += starts as u64;
        }
        Ok(false)
    }
}
