//! Giving a server up that will not come back: what its parts held is lost, says so at once, and
//! holds nothing up any more.

use super::{Identity, Ledger};
use crate::places::KnownServer;
use forebay_failpoint::step;
use forebay_proto::ServerId;
use forebay_proto::control::ControlError;
use forebay_proto::net::ledger::LedgerReply;

const WHAT: &str = "forget the server";

impl Ledger {
    /// Marks a server as lost, on record. One that answers is not given up.
    pub(super) fn forget(
        &self,
        who: &Identity,
        server: ServerId,
    ) -> Result<LedgerReply, ControlError> {
        let refuse = |why: &str, errno: i32, hint: &str| {
            let what = format!("{WHAT} {server}");
            Err(ControlError::new(&what, None, why).errno(errno).hint(hint))
        };
        if !matches!(who, Identity::Superuser(_)) {
            let hint = "ask with the servers' key, or as root on a server's Unix socket";
            return refuse("only who runs the servers may", libc::EPERM, hint);
        }
        if server == self.server_id() {
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
        if self.survey([server]).values().any(Option::is_some) {
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
        let known =
            KnownServer { lost: true, ..self.links.directory().get(server).unwrap_or_default() };
        self.links.directory().set(server, known);
        tracing::warn!(%server, "given up: what it had of buffers is lost");
        self.round.servers_changed();
        // Who asks a member next is to be told the same. One that does not answer now hears it later.
        self.tell_members();
        Ok(LedgerReply::Ok)
    }
}
