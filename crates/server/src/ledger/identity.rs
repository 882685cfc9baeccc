//! The requester of the ledger, as the connection has verified it, and what it may do.
//!
//! | identity | verified by | may |
//! | --- | --- | --- |
//! | superuser | SO_PEERCRED says root or the server's own user; or the server's key | everything |
//! | user | SO_PEERCRED, or a MUNGE credential | make buffers; everything with their own |
//! | holder | a buffer's secret | everything with this buffer, as its owner |

use forebay_proto::Caller;
use forebay_proto::control::ControlError;
use forebay_proto::net::ledger::{BufferName, LedgerRequest, ON_BEHALF};
use forebay_proto::net::pool::Asker;
use std::ffi::CStr;

use super::record::PartRecord;

/// Most supplementary groups that are looked up for a user.
const MAX_GROUPS: usize = 65_536;
/// Most bytes of a user's entry in the user database.
const MAX_ENTRY_BYTES: usize = 1 << 20;

/// Who asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Identity {
    /// May everything; with the credentials to stage with.
    Superuser(Caller),
    /// A user of this machine, or of one that shares its users (MUNGE).
    User(Caller),
    /// Who showed the secret of a buffer.
    Holder(BufferName),
}

impl Identity {
    /// Of who connected to a Unix socket, with the credentials that the kernel noted.
    pub fn of_peer(caller: Caller) -> Identity {
        let server = rustix::process::geteuid().as_raw();
        match caller.uid == 0 || caller.uid == server {
            true => Identity::Superuser(caller),
            false => Identity::User(caller),
        }
    }

    /// Of who proved to know the server's key: acts as the server's own user.
    pub fn of_server_key() -> Identity {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        Identity::Superuser(caller_of(uid, gid))
    }

    /// Of a user whom another machine vouches for (MUNGE): the groups are those known here.
    pub fn of_user(uid: u32, gid: u32) -> Identity {
        Identity::of_peer(caller_of(uid, gid))
    }

    /// Who asked another server, which passes the question on.
    pub(super) fn of_asker(asker: Asker) -> Identity {
        match asker {
            Asker::Superuser(caller) => Identity::Superuser(caller),
            Asker::User(caller) => Identity::User(caller),
            Asker::Holder(name) => Identity::Holder(name),
        }
    }

    /// For passing a question on.
    pub(super) fn to_asker(&self) -> Asker {
        match self {
            Identity::Superuser(caller) => Asker::Superuser(caller.clone()),
            Identity::User(caller) => Asker::User(caller.clone()),
            Identity::Holder(name) => Asker::Holder(name.clone()),
        }
    }

    /// Who may do everything with this buffer: its owner, or a superuser.
    pub(super) fn owns(&self, buffer: &BufferName, owner_uid: u32) -> bool {
        match self {
            Identity::Superuser(_) => true,
            Identity::User(caller) => caller.uid == owner_uid,
            Identity::Holder(name) => name == buffer,
        }
    }

    /// User and group that a buffer made by them belongs to.
    pub(super) fn makes_for(&self) -> Result<(u32, u32), ControlError> {
        match self {
            Identity::Superuser(caller) | Identity::User(caller) => Ok((caller.uid, caller.gid)),
            Identity::Holder(name) => {
                let why = format!("the secret of buffer {name} is good for that buffer only");
                Err(ControlError::new("create the buffer", None, &why)
                    .errno(libc::EPERM)
                    .hint("ask with the server's key, or over its Unix socket"))
            }
        }
    }

    /// Who asks, and what, where a superuser asks as another user; `None`: they ask for themselves.
    pub(super) fn on_behalf(
        &self,
        request: LedgerRequest,
    ) -> Result<(Option<Identity>, LedgerRequest), ControlError> {
        let LedgerRequest::OnBehalf { user, request } = request else { return Ok((None, request)) };
        let refuse = |why: &str| Err(ControlError::new(ON_BEHALF, None, why).errno(libc::EPERM));
        match (self, *request) {
            (_, LedgerRequest::OnBehalf { .. }) => refuse("that user would ask as another one"),
            (Identity::Superuser(_), request) => Ok((Some(Identity::of_peer(user)), request)),
            _ => refuse("only root and the holder of the servers' key may"),
        }
    }

    /// With whose rights a mount's calls are made on a PFS; `None`: with those of who asks there, as its
    /// kernel says. Only who may everything is believed: a user could say to be another one.
    pub(super) fn mounts_as(&self, part: &PartRecord) -> Option<Caller> {
        match self {
            Identity::Superuser(_) => None,
            // Who has the secret of root's buffer may be anybody.
            Identity::Holder(_) if part.spec.owner_uid == 0 => None,
            _ => Some(self.stages_as(part)),
        }
    }

    /// With whose rights a buffer's staging is done for them.
    pub(super) fn stages_as(&self, part: &PartRecord) -> Caller {
        match self {
            Identity::Superuser(caller) | Identity::User(caller) => caller.clone(),
            Identity::Holder(_) => caller_of(part.spec.owner_uid, part.spec.owner_gid),
        }
    }
}

/// A user with the groups that this machine knows for them; `gid` alone if it knows none.
pub fn caller_of(uid: u32, gid: u32) -> Caller {
    let groups = groups_of(uid, gid).unwrap_or_else(|| vec![gid]);
    Caller { uid, gid, groups, ..Caller::default() }
}

fn groups_of(uid: u32, gid: u32) -> Option<Vec<u32>> {
    let mut room = vec![0u8; 1024];
    loop {
        // SAFETY: zero is a valid value of every field of passwd: integers and pointers.
        let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
        let mut found: *mut libc::passwd = std::ptr::null_mut();
        // SAFETY: all pointers are to live values; the buffer has the length that is told.
        let failed = unsafe {
            libc::getpwuid_r(
                uid,
                &raw mut entry,
                room.as_mut_ptr().cast(),
                room.len(),
                &raw mut found,
            )
        };
        if failed == libc::ERANGE && room.len() < MAX_ENTRY_BYTES {
            room.resize(room.len() * 2, 0);
            continue;
        }
        if failed != 0 || found.is_null() {
            return None;
        }
        // SAFETY: the call succeeded, so the name is a string that lives in `room`.
        let name = unsafe { CStr::from_ptr(entry.pw_name) };
        return group_list(name, gid);
    }
}

fn group_list(name: &CStr, gid: u32) -> Option<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut count = libc::c_int::try_from(groups.len()).ok()?;
        // SAFETY: `name` is a string, `groups` has room for `count` ids.
        let done =
            unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &raw mut count) };
        let count = usize::try_from(count).ok()?;
        if done >= 0 {
            groups.truncate(count);
            return Some(groups);
        }
        let more = count.max(groups.len() * 2);
        if more > MAX_GROUPS {
            return None;
        }
        groups.resize(more, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_of_the_user_database() {
        assert!(caller_of(0, 0).groups.contains(&0));
        // No such user: no groups but the one given.
        assert_eq!(caller_of(4_000_000_000, 77).groups, [77]);
    }

    #[test]
    fn only_superusers_ask_as_another_user() {
        let caller = |uid| Caller { uid, ..Caller::default() };
        let as_user = |request: LedgerRequest| LedgerRequest::OnBehalf {
            user: caller(4242),
            request: Box::new(request),
        };
        let root = Identity::Superuser(caller(0));
        let (who, request) = root.on_behalf(as_user(LedgerRequest::List)).unwrap();
        assert!(matches!(request, LedgerRequest::List));
        assert_eq!(who, Some(Identity::User(caller(4242))));
        assert!(root.on_behalf(as_user(as_user(LedgerRequest::List))).is_err());
        assert_eq!(root.on_behalf(LedgerRequest::Pool).unwrap().0, None);
        let holder = Identity::Holder("b".parse().unwrap());
        for other in [Identity::User(caller(1)), holder] {
            let error = other.on_behalf(as_user(LedgerRequest::List)).unwrap_err();
            assert_eq!(error.errno, Some(libc::EPERM));
        }
    }

    #[test]
    fn root_and_the_servers_user_are_superusers() {
        let me = rustix::process::geteuid().as_raw();
        let of = |uid| Identity::of_peer(Caller { uid, ..Caller::default() });
        assert!(matches!(of(0), Identity::Superuser(_)));
        assert!(matches!(of(me), Identity::Superuser(_)));
        assert!(matches!(of(4242), Identity::User(_)));
    }
}
