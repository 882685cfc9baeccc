//! How long the kernel may believe names and attributes: the shorter of what the mount's options
//! and the file system say.
//!
//! It is decided when an answer is sent, not when it is put together, so that the file system
//! can take back what it said ([`forebay_proto::Notify::attr_recalled`]): from the question how
//! long until the kernel has the answer, an answer is *under way*, and nothing else happens in
//! between. A recall changes what the file system says first, then waits for the answers that
//! are under way, then tells the kernel; so no old word can come after it.

use crate::abi;
use crate::beside::Beside;
use crate::buffer::{Believed, Reply};
use crate::device::Device;
use crate::init::Agreed;
use crate::opens::OpenTable;
use crate::options::MountOptions;
use crate::stood_on::StoodOn;
use forebay_proto::api::LocalFiles;
use forebay_proto::{Errno, FileSystem, Ino};
use parking_lot::RwLock;
use std::mem::offset_of;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Longest lifetime on kernels that cannot drop all names at once: an invalidation that had to
/// be given up (see [`crate::notify`]) is then made good by time.
pub(crate) const TTL_WITHOUT_EPOCH: Duration = Duration::from_secs(1);

/// Held shared by who sends an answer, for the time of a few memory accesses and one write(2)
/// that waits for nobody.
#[derive(Clone, Default)]
pub(crate) struct AnswersUnderWay(Arc<RwLock<()>>);

impl AnswersUnderWay {
    /// Waits until the kernel has every answer that is under way now.
    pub(crate) fn wait(&self) {
        drop(self.0.write());
    }
}

/// The mount's part of the decision.
pub(crate) struct Lifetimes {
    entry: Duration,
    negative: Duration,
    attr: Duration,
    answers: AnswersUnderWay,
    stood_on: Arc<StoodOn>,
}

impl Lifetimes {
    pub(crate) fn new(options: &MountOptions, agreed: Agreed) -> Lifetimes {
        let has_epoch = agreed.minor >= abi::MINOR_INC_EPOCH;
        let limit = if has_epoch { Duration::MAX } else { TTL_WITHOUT_EPOCH };
        Lifetimes {
            entry: options.entry_ttl.min(limit),
            negative: options.negative_ttl.min(limit),
            attr: options.attr_ttl.min(limit),
            answers: AnswersUnderWay::default(),
            stood_on: Arc::new(StoodOn::new(options.asks_if_stood_on.clone())),
        }
    }

    pub(crate) fn answers_under_way(&self) -> AnswersUnderWay {
        self.answers.clone()
    }

    pub(crate) fn stood_on(&self) -> Arc<StoodOn> {
        Arc::clone(&self.stood_on)
    }

    /// Fills in the lifetimes of an answer and sends it.
    pub(crate) fn send(
        &self,
        fs: &dyn FileSystem,
        (opens, beside): (&OpenTable, &Beside),
        device: &Device,
        unique: u64,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        if reply.believed().is_empty() {
            return device.send(reply.message(unique, None));
        }
        let _under_way = self.answers.0.read();
        self.fill_in(fs, opens, beside, reply);
        device.send(reply.message(unique, None))
    }

    fn fill_in(&self, fs: &dyn FileSystem, opens: &OpenTable, beside: &Beside, reply: &mut Reply) {
        use abi::{AttrOut, EntryOut};
        // A listing is of one directory.
        let mut last: Option<(Ino, Duration)> = None;
        let mut of_names = |parent: Ino| match last {
            Some((known, ttl)) if known == parent => ttl,
            _ => {
                let ttl = fs.entry_ttl(parent).min(beside.entry_limit(parent));
                let ttl = ttl.min(self.stood_on.limit());
                last = Some((parent, ttl));
                ttl
            }
        };
        let names = fs.local_files().and_then(LocalFiles::shared_names);
        let of_attr = |ino| {
            let beside = match beside.attr_limit(ino) {
                limit if limit.is_zero() => limit,
                // A program may have it open that asked nobody.
                _ if names.is_some_and(|names| !names.may_be_believed(ino)) => Duration::ZERO,
                limit => limit,
            };
            self.attr.min(fs.attr_ttl(ino)).min(opens.attr_limit(ino)).min(beside)
        };
        for i in 0..reply.believed().len() {
            let (at, name, attr) = match reply.believed()[i] {
                Believed::Entry { at, parent, ino } => {
                    let name = self.entry.min(of_names(parent));
                    (at, Some(name), of_attr(ino))
                }
                Believed::Negative { at, parent } => {
                    (at, Some(self.negative.min(of_names(parent))), Duration::ZERO)
                }
                // A statx answer begins in the same way.
                Believed::Attr { at, ino } => (at, None, of_attr(ino)),
            };
            if let Some(name) = name {
                self.stood_on.gives(name);
                put(reply, at + offset_of!(EntryOut, entry_valid), name.as_secs());
                put(reply, at + offset_of!(EntryOut, entry_valid_nsec), name.subsec_nanos());
                put(reply, at + offset_of!(EntryOut, attr_valid), attr.as_secs());
                put(reply, at + offset_of!(EntryOut, attr_valid_nsec), attr.subsec_nanos());
            } else {
                put(reply, at + offset_of!(AttrOut, attr_valid), attr.as_secs());
                put(reply, at + offset_of!(AttrOut, attr_valid_nsec), attr.subsec_nanos());
            }
        }
    }
}

fn put<T: IntoBytes + zerocopy::Immutable>(reply: &mut Reply, at: usize, value: T) {
    reply.patch(at, value.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statx_answer_begins_like_one_of_getattr() {
        use abi::{AttrOut, StatxOut};
        assert_eq!(offset_of!(AttrOut, attr_valid), offset_of!(StatxOut, attr_valid));
        assert_eq!(offset_of!(AttrOut, attr_valid_nsec), offset_of!(StatxOut, attr_valid_nsec));
    }
}
