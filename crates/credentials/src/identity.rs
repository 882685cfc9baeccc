//! Acting as the requester: PFS calls are made with the requester's file-system identity.
//!
//! Linux credentials are per thread. A thread of the mover takes the requester's supplementary
//! groups for good ([`Identity::adopt_thread`]), and around every PFS call also its fsuid and
//! fsgid, with no effective capability ([`Identity::enter`]): a root server then can read and
//! write on the PFS exactly what the requester can, quotas and reserved blocks included.
//! Outside the guard the thread is the server again, as it must be to reach its own flash. Who needs
//! that flash for a piece of work inside it does this work by [`as_server`].
//! The raw system calls are used because the C library's wrappers change all threads.

use forebay_proto::{Caller, Errno, Result};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use std::cell::Cell;
use std::marker::PhantomData;

/// Whose rights a plan has.
#[derive(Clone, Debug)]
pub struct Identity {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    /// True if threads must change identity: the server is root and the requester is not.
    switch: bool,
    /// The server's group.
    server_gid: u32,
    /// True if the requester is root with another group than the server: what is made gets it. All
    /// else root may do is the same.
    switch_group: bool,
}

impl Identity {
    /// The identity of `who`; refused in words where this server cannot take it.
    pub fn of(who: &Caller) -> std::result::Result<Identity, String> {
        let server = rustix::process::geteuid().as_raw();
        if server != 0 && who.uid != server {
            return Err(format!(
                "this server runs as uid {server} and cannot act on the PFS as uid {}",
                who.uid
            ));
        }
        let server_gid = rustix::process::getegid().as_raw();
        Ok(Identity {
            uid: who.uid,
            gid: who.gid,
            groups: who.groups.clone(),
            switch: server == 0 && who.uid != 0,
            server_gid,
            switch_group: server == 0 && who.uid == 0 && who.gid != server_gid,
        })
    }

    /// The requester's uid.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// True for the superuser: owners and special files are kept.
    pub fn is_superuser(&self) -> bool {
        self.uid == 0
    }

    /// Gives this thread the requester's supplementary groups, for the rest of its life.
    pub fn adopt_thread(&self) -> Result<()> {
        match self.switch {
            true => set_thread_groups(&self.groups),
            false => Ok(()),
        }
    }

    /// True if threads must change identity to act as the requester.
    pub fn must_switch(&self) -> bool {
        self.switch
    }

    /// Acts as the requester until the guard is dropped. The thread must have adopted the
    /// identity before. Fails closed: EPERM if the identity could not be taken whole.
    pub fn enter(&self) -> Result<Acting> {
        self.enter_with(CapabilitySet::empty())
    }

    /// The same with capabilities that the server has, for what the kernel has judged of the requester.
    pub(crate) fn enter_with(&self, rights: CapabilitySet) -> Result<Acting> {
        let server_gid = self.server_gid;
        if self.switch_group {
            let acting = Acting { back: Back::Group, server_gid, not_send: PhantomData };
            set_fs_ids(self.uid, self.gid);
            return if fs_ids() == (self.uid, self.gid) { Ok(acting) } else { Err(Errno::EPERM) };
        }
        if !self.switch {
            return Ok(Acting { back: Back::Nothing, server_gid, not_send: PhantomData });
        }
        let server = capabilities(None).map_err(|e| Errno(e.raw_os_error()))?;
        let acting = Acting { back: Back::All(server), server_gid, not_send: PhantomData };
        let fewer = CapabilitySets { effective: server.effective & rights, ..server };
        let requester = Requester { uid: self.uid, gid: self.gid, fewer, server, server_gid };
        requester.take_on()?;
        Ok(acting)
    }
}

/// As whom a thread acts, and what it is without.
#[derive(Clone, Copy)]
struct Requester {
    uid: u32,
    gid: u32,
    /// Capabilities while it acts.
    fewer: CapabilitySets,
    /// The server's.
    server: CapabilitySets,
    /// The server's group.
    server_gid: u32,
}

thread_local!(static REQUESTER: Cell<Option<Requester>> = const { Cell::new(None) });

impl Requester {
    /// The calling thread, which is the server, has these rights from now on. EPERM if not all of it was taken.
    fn take_on(self) -> Result<()> {
        set_fs_ids(self.uid, self.gid);
        set_capabilities(None, self.fewer).map_err(|e| Errno(e.raw_os_error()))?;
        if fs_ids() != (self.uid, self.gid) {
            return Err(Errno::EPERM);
        }
        REQUESTER.set(Some(self));
        Ok(())
    }
}

/// Does work on what is the server's own, such as its flash, as the server: also in a thread that acts as a requester
/// meanwhile, and does so again afterwards. EPERM, whatever came of the work, if it could not be made the requester
/// again: it has too many rights then, and what it was to do as the requester must not go on.
pub fn as_server<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let Some(requester) = REQUESTER.take() else { return work() };
    let done = {
        let _again = Again(requester);
        set_fs_ids(0, requester.server_gid);
        set_capabilities(None, requester.server)
            .map_err(|e| Errno(e.raw_os_error()))
            .and_then(|()| work())
    };
    if REQUESTER.get().is_none() {
        return Err(Errno::EPERM);
    }
    done
}

/// The requester that the thread is again when this goes, also by a panic.
struct Again(Requester);

impl Drop for Again {
    fn drop(&mut self) {
        if let Err(error) = self.0.take_on() {
            tracing::error!(%error, "a thread could not act as its requester again");
        }
    }
}

/// While it lives the thread acts as the requester.
pub struct Acting {
    back: Back,
    /// The server's group.
    server_gid: u32,
    /// Credentials are the thread's: the guard must not leave it.
    not_send: PhantomData<*const ()>,
}

/// What is to be given back.
enum Back {
    /// Nothing was changed.
    Nothing,
    /// The group.
    Group,
    /// User and group, and these capabilities.
    All(CapabilitySets),
}

impl Drop for Acting {
    fn drop(&mut self) {
        let sets = match self.back {
            Back::Nothing => return,
            Back::Group => return set_fs_ids(0, self.server_gid),
            Back::All(sets) => sets,
        };
        REQUESTER.set(None);
        set_fs_ids(0, self.server_gid);
        if let Err(error) = set_capabilities(None, sets) {
            // The thread keeps fewer rights than it had: its next own call fails and is reported.
            tracing::error!(%error, "a staging thread could not get its capabilities back");
        }
    }
}

/// Gives the calling thread alone these supplementary groups.
pub fn set_thread_groups(groups: &[u32]) -> Result<()> {
    // SAFETY: pointer and count describe the slice, gid_t is u32; the raw call changes only the
    // calling thread.
    let rc = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    if rc == 0 { Ok(()) } else { Err(Errno::last()) }
}

fn set_fs_ids(uid: u32, gid: u32) {
    // SAFETY: both calls take plain integers, change only the calling thread and cannot fail
    // with memory effects; the caller checks the outcome by `fs_ids`.
    unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsuid, uid);
    }
}

/// The current (fsuid, fsgid): an invalid id changes nothing and returns the present one.
fn fs_ids() -> (u32, u32) {
    // SAFETY: see `set_fs_ids`; u32::MAX is not a valid id.
    unsafe {
        (
            libc::syscall(libc::SYS_setfsuid, u32::MAX) as u32,
            libc::syscall(libc::SYS_setfsgid, u32::MAX) as u32,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_root_server_opens_as_the_requester_and_is_root_again_after() {
        let root = rustix::process::geteuid().is_root();
        assert!(root, "only root can act as others: run this test as root");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::set_permissions(file.path(), PermissionsExt::from_mode(0o600)).unwrap();
        let path = file.path().to_path_buf();
        let who = Caller { uid: 4242, gid: 4242, groups: vec![7], ..Caller::default() };
        std::thread::spawn(move || {
            let identity = Identity::of(&who).unwrap();
            identity.adopt_thread().unwrap();
            {
                let _acting = identity.enter().unwrap();
                let error = std::fs::File::open(&path).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::EACCES));
                // The server's own work in between, also within such work, and also if it fails.
                let open = || std::fs::File::open(&path).map_err(|e| Errno::from_io(&e));
                as_server(|| as_server(open)).unwrap();
                assert_eq!(as_server(|| Err::<(), _>(Errno::ENOENT)), Err(Errno::ENOENT));
                assert_eq!(fs_ids(), (4242, 4242));
                assert_eq!(open().unwrap_err(), Errno::EACCES, "the requester again");
                assert!(capabilities(None).unwrap().effective.is_empty());
            }
            std::fs::File::open(&path).unwrap();
            as_server(|| Ok(())).unwrap();
            assert_eq!(fs_ids(), (0, rustix::process::getegid().as_raw()));
        })
        .join()
        .unwrap();
        // Root with another group stays root, and makes what is its group's.
        let made = std::thread::spawn(move || {
            let who = Caller { gid: 4242, ..Caller::root() };
            let dir = tempfile::tempdir().unwrap();
            let make = || std::fs::File::create_new(dir.path().join("f")).unwrap();
            let gid = {
                let _acting = Identity::of(&who).unwrap().enter().unwrap();
                std::os::unix::fs::MetadataExt::gid(&make().metadata().unwrap())
            };
            (gid, fs_ids())
        });
        assert_eq!(made.join().unwrap(), (4242, (0, rustix::process::getegid().as_raw())));
        let mut groups = [0; 64];
        // SAFETY: the array has the 64 places that the call is told of.
        let count = unsafe { libc::getgroups(64, groups.as_mut_ptr()) };
        assert!(!groups[..count.max(0) as usize].contains(&7), "other threads are untouched");
    }
}
