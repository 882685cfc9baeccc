//! Support of tests, in builds with failpoints: logs that remember which writes a power cut could lose ([`log`]),
//! and stores whose power can be cut while a whole shard works on them ([`power`]).

pub mod log;
pub mod power;

use super::LmdbStore;

impl LmdbStore {
    /// As if the process were killed now: nothing more is written.
    pub fn refuse(&self) {
        self.inner.fail(forebay_proto::Errno::ESHUTDOWN);
    }
}
