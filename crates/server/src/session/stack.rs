//! The components of a buffer's sessions below its type, made from the bottom up.
//!
//! Each gets what it needs when it is made and has its own fields and locks; none calls one that is made later. Made by
//! [`super::Sessions::new`]; a type of buffer takes of it what its handlers of calls need.

use super::buffer_type::ClientFiles;
use super::changes::{Changes, ServerChanges};
use super::grace::Grace;
use super::grants::Grants;
use super::inodes::Inodes;
use super::locks::Locks;
use super::table::SessionTable;
use super::taken::{self, Taken};
use super::teardown::Teardown;
use forebay_interfaces::references::References;
use forebay_lease::leases::Leases;
use forebay_lease::slots::OldClients;
use forebay_namespace::Namespace;
use forebay_proto::api::Notify;
use forebay_proto::{Result, ShardId};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The components.
pub(super) struct Stack {
    /// Part of the namespace served here.
    pub(super) shard: ShardId,
    /// Of a cache, its flash.
    pub(super) namespace: Arc<Namespace>,
    pub(super) inodes: Arc<dyn Inodes>,
    pub(super) files: Arc<dyn ClientFiles>,
    pub(super) leases: Arc<Leases>,
    pub(super) grace: Arc<Grace>,
    pub(super) locks: Arc<Locks>,
    pub(super) table: Arc<SessionTable>,
    pub(super) teardown: Arc<Teardown>,
    pub(super) grants: Arc<Grants>,
    pub(super) changes: Arc<Changes>,
}

impl Stack {
    /// For a buffer whose clients hold references to `inodes`, and of which its type keeps `files`. `clients_file` has the
    /// clients of an earlier start that may still be there.
    pub(super) fn new(
        shard: ShardId,
        namespace: Arc<Namespace>,
        inodes: Arc<dyn Inodes>,
        files: Arc<dyn ClientFiles>,
        clients_file: PathBuf,
        lease: Duration,
    ) -> Result<Stack> {
        let references: Arc<dyn References> = inodes.clone();
        let old = OldClients::recorded(&references, namespace.answers().settle()?);
        let taken = Taken::open(clients_file.with_file_name(taken::NAME))?;
        let grace = Arc::new(Grace::open(clients_file, lease)?);
        let locks = Arc::new(Locks::new(taken, &grace));
        let table = Arc::new(SessionTable::new(old));
        let leases = Arc::new(Leases::new());
        let teardown = Arc::new(Teardown::new(
            table.clone(),
            leases.clone(),
            locks.clone(),
            grace.clone(),
            inodes.clone(),
            files.clone(),
            namespace.clone(),
        ));
        let grants = Grants::new(inodes.clone(), leases.clone(), grace.clone());
        let changes =
            Changes::new(lease, leases.clone(), grace.clone(), table.clone(), teardown.clone());
        Ok(Stack {
            shard,
            namespace,
            inodes,
            files,
            leases,
            grace,
            locks,
            table,
            teardown,
            grants: Arc::new(grants),
            changes: Arc::new(changes),
        })
    }

    /// Who hears of changes that the server makes itself (staging, drains).
    pub(super) fn notify(&self) -> Arc<dyn Notify> {
        Arc::new(ServerChanges(Arc::downgrade(&self.changes)))
    }
}
