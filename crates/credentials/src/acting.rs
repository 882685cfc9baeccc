//! Acting on the PFS as who asks, in the thread that asks.
//!
//! Staging gives a thread to each requester; the cache answers requests of many users from the
//! same few threads. So here the supplementary groups are taken and given back around each call
//! too. Invariant: when the guard is gone the thread is the server again; if it cannot be, its next
//! own call fails (it has fewer rights, never more).

use crate::identity::{Acting, Identity, set_thread_groups};
use forebay_net::node::groups_of_process;
use forebay_proto::{Caller, Errno, Result};
use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;

/// Whose rights a call has. Kept in records, so that a drain can act as the writer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Who {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl Who {
    /// The server itself.
    pub fn server() -> Who {
        Who {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: Vec::new(),
        }
    }

    /// Who sent a request. FUSE tells no supplementary groups: they are read from the process.
    pub fn of(caller: &Caller) -> Who {
        let mut groups = caller.groups.clone();
        if groups.is_empty() && caller.uid != 0 && caller.pid != 0 && is_root() {
            groups = groups_of_process(caller.pid);
        }
        Who { uid: caller.uid, gid: caller.gid, groups }
    }

    /// The group that what this user makes is to be given afterwards, where the server cannot act with
    /// it: it is not root, and the user's process has another one of the user's groups.
    pub fn group_to_give(&self) -> Option<u32> {
        let gid = rustix::process::getegid().as_raw();
        (!is_root() && self.gid != gid).then_some(self.gid)
    }

    /// Takes the identity until the guard is dropped. EPERM if this server cannot.
    pub fn act(&self) -> Result<Act> {
        own_umask()?;
        let caller = Caller {
            uid: self.uid,
            gid: self.gid,
            groups: self.groups.clone(),
            ..Caller::default()
        };
        let identity = Identity::of(&caller).map_err(|why| {
            tracing::warn!("{why}");
            Errno::EPERM
        })?;
        let switched = identity.must_switch();
        if switched {
            server_groups();
            identity.adopt_thread()?;
        }
        // From here on the groups are given back, also if the rest fails.
        let mut act = Act { acting: None, switched };
        act.acting = Some(identity.enter_with(JUDGEMENT.get().rights)?);
        Ok(act)
    }
}

/// While it lives the thread acts as the requester.
pub struct Act {
    acting: Option<Acting>,
    switched: bool,
}

impl Drop for Act {
    fn drop(&mut self) {
        // Capabilities first: without them the groups cannot be set.
        self.acting = None;
        if self.switched
            && let Err(error) = set_thread_groups(server_groups())
        {
            tracing::error!(%error, "a thread could not get the server's groups back");
        }
    }
}

/// What is known of the request that a thread answers.
#[derive(Clone, Copy)]
struct Judgement {
    /// Who sent it passes on what a kernel asks, and no program can send another one.
    is_kernels: bool,
    /// What the requester is known to have beyond user and groups.
    rights: CapabilitySet,
}

thread_local!(static JUDGEMENT: Cell<Judgement> =
    const { Cell::new(Judgement { is_kernels: false, rights: CapabilitySet::empty() }) });

/// While it lives the thread has that knowledge.
#[must_use]
pub struct Judged {
    before: Judgement,
    /// It is the thread's.
    not_send: PhantomData<*const ()>,
}

impl Judged {
    fn now(judgement: Judgement) -> Judged {
        Judged { before: JUDGEMENT.replace(judgement), not_send: PhantomData }
    }

    /// The request comes from a kernel, by a mount that may ask for anybody.
    pub fn by_kernel(is_kernels: bool) -> Judged {
        Judged::now(Judgement { is_kernels, ..JUDGEMENT.get() })
    }

    /// The kernel has found that the requester may use any directory and name, and with `trusted` also attributes that
    /// only root sees: [`Who::act`] has these rights, too.
    pub fn may_use_directories(trusted: bool) -> Judged {
        let mut rights =
            CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH | CapabilitySet::FOWNER;
        rights.set(CapabilitySet::SYS_ADMIN, trusted);
        Judged::now(Judgement { rights, ..JUDGEMENT.get() })
    }
}

impl Drop for Judged {
    fn drop(&mut self) {
        JUDGEMENT.set(self.before);
    }
}

/// Whether the thread's request is known to come from a kernel ([`Judged::by_kernel`]).
pub fn is_kernels() -> bool {
    JUDGEMENT.get().is_kernels
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The server's own supplementary groups, as they were at the first question.
fn server_groups() -> &'static [u32] {
    static GROUPS: OnceLock<Vec<u32>> = OnceLock::new();
    GROUPS.get_or_init(|| match rustix::process::getgroups() {
        Ok(groups) => groups.iter().map(|g| g.as_raw()).collect(),
        Err(error) => {
            tracing::warn!(%error, "the server's own groups cannot be read: it keeps none");
            Vec::new()
        }
    })
}

/// Modes of new files on the PFS are computed here (umask, default ACL), so this thread must have
/// no umask of its own. The umask is shared with all threads unless a thread leaves that.
fn own_umask() -> Result<()> {
    thread_local!(static DONE: Cell<bool> = const { Cell::new(false) });
    if DONE.get() {
        return Ok(());
    }
    // SAFETY: plain flags; the thread gets its own copy of working directory, root and umask.
    if unsafe { libc::unshare(libc::CLONE_FS) } != 0 {
        return Err(Errno::last());
    }
    rustix::process::umask(rustix::fs::Mode::empty());
    DONE.set(true);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_thread_acts_as_two_users_one_after_the_other() {
        assert!(is_root(), "only root can act as others: run this test as root");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::os::unix::fs::chown(file.path(), Some(4242), Some(77)).unwrap();
        std::fs::set_permissions(file.path(), PermissionsExt::from_mode(0o640)).unwrap();
        let open = |uid, groups: &[u32]| {
            let who = Who { uid, gid: uid, groups: groups.to_vec() };
            let _act = who.act().unwrap();
            std::fs::File::open(file.path()).map(drop).map_err(|e| e.raw_os_error())
        };
        assert_eq!(open(4242, &[]), Ok(()));
        assert_eq!(open(4243, &[]), Err(Some(libc::EACCES)));
        assert_eq!(open(4243, &[77]), Ok(()));
        assert_eq!(open(4243, &[78]), Err(Some(libc::EACCES)), "groups are not left over");
        std::fs::File::open(file.path()).unwrap();
    }

    #[test]
    fn what_the_kernel_has_judged_holds_for_its_scope() {
        assert!(is_root(), "only root can act as others: run this test as root");
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o000)).unwrap();
        let make = |name: &str| {
            let _act = Who { uid: 4242, gid: 4243, groups: Vec::new() }.act().unwrap();
            let made = std::fs::File::create_new(dir.path().join(name));
            made.map(drop).map_err(|e| e.raw_os_error())
        };
        assert_eq!(make("before"), Err(Some(libc::EACCES)));
        {
            let _judged = Judged::may_use_directories(false);
            assert_eq!(make("during"), Ok(()));
        }
        assert_eq!(make("after"), Err(Some(libc::EACCES)));
        let made = std::fs::metadata(dir.path().join("during")).unwrap();
        let owner = std::os::unix::fs::MetadataExt::uid(&made);
        assert_eq!(owner, 4242, "it is the user's all the same");
        assert!(!is_kernels());
    }
}
