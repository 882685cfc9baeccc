//! Links and drains of files whose names and data are at different servers.
//!
//! A data server that puts another PFS inode under a file's name tells the metadata server both before (`Keys`). A name that
//! is made of the file at that moment would lead to the old inode for ever.
//!
//! Invariants
//! * A name is made only while one inode is the file, and counted while it is made.
//! * A data server hears that both are known only when no name is being made: what it looks at then has all of them.
//! * One file at a time is waited for: other files' names are made and moved meanwhile.
//!
//! Called by `names` for each link, and for each `Keys`.

use super::super::data_servers::Ownership;
use super::messages::data_server_of;
use super::{CHANGE_LIMIT, DataServers, PATIENCE};
use forebay_proto::attr::FileKind;
use forebay_proto::{Errno, Ino, Result};
use parking_lot::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// Between two looks whether a data server has exchanged a file's inode: that takes some calls of the PFS.
const EXCHANGE_PAUSE: Duration = Duration::from_millis(2);

/// Files of which a name is being made, one entry for each; bounded by the calls under way.
#[derive(Default)]
pub(super) struct Links {
    made: Mutex<Vec<Ino>>,
    ended: Condvar,
}

/// A name that is being made.
struct Making<'a> {
    links: &'a Links,
    ino: Ino,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        let mut made = self.links.made.lock();
        if let Some(at) = made.iter().position(|ino| *ino == self.ino) {
            made.swap_remove(at);
        }
        self.links.ended.notify_all();
    }
}

impl Links {
    /// Begins to make a name, if `may` says so at this moment.
    fn make(&self, ino: Ino, may: impl FnOnce() -> bool) -> Option<Making<'_>> {
        let mut made = self.made.lock();
        if !may() {
            return None;
        }
        made.push(ino);
        Some(Making { links: self, ino })
    }

    /// Waits until no name of this file is being made. ETIMEDOUT where that takes long: the PFS hangs.
    pub fn wait_for_none(&self, ino: Ino) -> Result<()> {
        let until = Instant::now() + CHANGE_LIMIT;
        let mut made = self.made.lock();
        while made.contains(&ino) {
            if self.ended.wait_until(&mut made, until).timed_out() {
                return Err(Errno::ETIMEDOUT);
            }
        }
        Ok(())
    }
}

impl Ownership {
    /// Makes a name of a file, but not while its data server puts another inode under the names that it knows. ETIMEDOUT if
    /// the data server, perhaps killed, does not say what came of it.
    pub(crate) fn while_one_inode<T>(
        &self,
        ino: Ino,
        kind: FileKind,
        make: impl Fn() -> Result<T>,
    ) -> Result<T> {
        let Some(data_servers) =
            self.data_servers.as_ref().filter(|_| self.is_elsewhere(ino, kind))
        else {
            return make();
        };
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(_making) =
                data_servers.links.make(ino, || self.is_one_inode(data_servers, ino))
            {
                return make();
            }
            if Instant::now() >= until {
                return Err(Errno::ETIMEDOUT);
            }
            std::thread::sleep(EXCHANGE_PAUSE);
        }
    }

    fn is_one_inode(&self, data_servers: &DataServers, ino: Ino) -> bool {
        !self.nodes.is_perhaps_another(ino) || data_servers.is_lost(data_server_of(ino))
    }
}
