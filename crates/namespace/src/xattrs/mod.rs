//! Extended attributes, POSIX ACLs among them, and `user.forebay.*`, which answer from the
//! server's state and are never stored or listed.

mod layout;

pub use layout::is_layout_xattr;

use crate::attributes::{ANY_WRITE, Attributes, CAPABILITY};
use crate::base::Base;
use crate::records::Records;
use crate::service_state::ServiceState;
use crate::striped::{StripeObjects, StripedFiles};
use forebay_failpoint::step;
use forebay_proto::acl::{self, Acl};
use forebay_proto::api::{NAME_MAX, XATTR_LIST_MAX, XATTR_VALUE_MAX, xattr_flags};
use forebay_proto::attr::FileKind;
use forebay_proto::layout::publish_xattr::{self, CLOSE_HEARD_WITHIN, CLOSE_LOOK, FINAL, NOW};
use forebay_proto::{Caller, Errno, Ino, ObjectId, Result};
use forebay_store::objects::Objects;
use forebay_store::record::{Change, inode_flags};
use std::sync::Arc;
use std::time::Instant;

/// Prefix of the attributes that tell Forebay's own state.
pub const OWN: &[u8] = b"user.forebay.";

/// The attributes.
pub(crate) struct Xattrs {
    records: Arc<Records>,
    objects: Arc<Objects>,
    stripes: Arc<StripeObjects>,
    striped: Arc<StripedFiles>,
    attrs: Arc<Attributes>,
    state: Arc<ServiceState>,
}

impl Xattrs {
    /// Of inodes of these records.
    pub(crate) fn new(
        base: &Base,
        stripes: &Arc<StripeObjects>,
        striped: &Arc<StripedFiles>,
        attrs: &Arc<Attributes>,
        state: &Arc<ServiceState>,
    ) -> Xattrs {
        Xattrs {
            records: Arc::clone(&base.records),
            objects: Arc::clone(&base.objects),
            stripes: Arc::clone(stripes),
            striped: Arc::clone(striped),
            attrs: Arc::clone(attrs),
            state: Arc::clone(state),
        }
    }

    /// Value of an xattr.
    pub(crate) fn get(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        if let Some(own) = name.strip_prefix(OWN) {
            return self.own_xattr(ino, own);
        }
        if !self.records.inode(ino)?.has(inode_flags::HAS_XATTRS) {
            return Err(Errno::ENODATA);
        }
        self.records.store().xattr(ino, name)?.ok_or(Errno::ENODATA)
    }

    fn own_xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let record = self.records.inode(ino)?;
        let yes_no = |b: bool| if b { "yes" } else { "no" }.to_string();
        let value = match name {
            b"fast_path" if record.kind() == FileKind::File => match self.state.fast_path() {
                Ok(()) => "yes".into(),
                Err(reason) => format!("no: {reason}"),
            },
            b"publish" if record.kind() == FileKind::File => match record.has(inode_flags::FINAL) {
                true => "final".into(),
                false => "open".into(),
            },
            b"volatile" => yes_no(self.state.is_volatile()),
            b"grade" if record.kind() == FileKind::File => {
                self.state.grade(&self.attrs.of(ino)?).into()
            }
            _ => self.layout_xattr(ino, &record, name).ok_or(Errno::ENODATA)?,
        };
        Ok(value.into_bytes())
    }

    /// Names, each ended by NUL.
    pub(crate) fn list(&self, ino: Ino) -> Result<Vec<u8>> {
        let mut list = Vec::new();
        if self.records.inode(ino)?.has(inode_flags::HAS_XATTRS) {
            for (name, _) in self.records.store().xattr_names(ino)? {
                list.extend_from_slice(&name);
                list.push(0);
            }
        }
        Ok(list)
    }

    /// Sets an xattr.
    pub(crate) fn set(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: u32,
        kill_sgid: bool,
    ) -> Result<()> {
        if let Some(own) = name.strip_prefix(OWN)
            && is_layout_xattr(own)
        {
            return self.set_layout_xattr(caller, ino, own, value);
        }
        if name == publish_xattr::NAME {
            return self.publish(caller, ino, value);
        }
        check_xattr_name(name)?;
        if value.len() > XATTR_VALUE_MAX {
            return Err(Errno::E2BIG);
        }
        if name == acl::ACCESS || name == acl::DEFAULT {
            return self.set_acl(caller, ino, name, value, kill_sgid);
        }
        let mut txn = self.records.begin(caller);
        let record = txn.get(ino)?;
        let exists = self.records.store().xattr(ino, name)?.is_some();
        if flags & xattr_flags::CREATE != 0 && exists {
            return Err(Errno::EEXIST);
        }
        if flags & xattr_flags::REPLACE != 0 && !exists {
            return Err(Errno::ENODATA);
        }
        if !exists && record.has(inode_flags::HAS_XATTRS) {
            let names = self.records.store().xattr_names(ino)?;
            let list: usize = names.iter().map(|(n, _)| n.len() + 1).sum();
            if list + name.len() + 1 > XATTR_LIST_MAX {
                return Err(Errno::ENOSPC);
            }
        }
        let now = txn.now;
        let edited = txn.edit(ino)?;
        edited.flags |= inode_flags::HAS_XATTRS;
        if name == CAPABILITY {
            edited.flags |= inode_flags::HAS_CAPS;
        }
        edited.ctime = now;
        txn.push(Change::PutXattr { ino, name: name.to_vec(), value: value.to_vec() });
        txn.commit()?;
        Ok(())
    }

    /// `user.forebay.publish`: what all mounts wrote was asked for before this. With `final` nobody writes the file from now
    /// on: EPERM, also for who has it open. A mode that lets somebody write it takes that back. EBUSY for a file whose object a
    /// program has open itself, which nobody can stop, and does not close in a moment; that no mount has a striped file open is the caller's to know.
    fn publish(&self, caller: &Caller, ino: Ino, value: &[u8]) -> Result<()> {
        let record = self.records.regular(ino)?;
        match value {
            NOW => return Ok(()),
            FINAL if record.has(inode_flags::FINAL) => return Ok(()),
            FINAL => {}
            _ => return Err(Errno::EINVAL),
        }
        if caller.uid != 0 && caller.uid != record.uid {
            return Err(Errno::EPERM);
        }
        let has_object = !record.is_striped() && record.has(inode_flags::HAS_OBJECT);
        let is_busy = || match has_object {
            true => self.objects.may_be_written_elsewhere(ObjectId::whole(ino)),
            false => Ok(false),
        };
        let until = Instant::now() + CLOSE_HEARD_WITHIN;
        while is_busy()? {
            if Instant::now() >= until {
                return Err(Errno::EBUSY);
            }
            step("publish: the last close is waited for");
            std::thread::sleep(CLOSE_LOOK);
        }
        let mut txn = self.records.begin(caller);
        let now = txn.now;
        let edited = txn.edit(ino)?;
        edited.flags |= inode_flags::FINAL;
        edited.mode &= !ANY_WRITE;
        edited.ctime = now;
        txn.commit()?;
        // Once more when nobody new can open it for writing.
        if is_busy()? {
            let mut txn = self.records.begin(caller);
            let edited = txn.edit(ino)?;
            edited.flags &= !inode_flags::FINAL;
            edited.mode |= record.mode & ANY_WRITE;
            txn.commit()?;
            return Err(Errno::EBUSY);
        }
        Ok(())
    }

    fn set_acl(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        kill_sgid: bool,
    ) -> Result<()> {
        let list = Acl::parse(value)?;
        let is_access = name == acl::ACCESS;
        let mut txn = self.records.begin(caller);
        let record = txn.get(ino)?;
        if record.kind() == FileKind::Symlink {
            return Err(Errno::EOPNOTSUPP);
        }
        if !is_access && record.kind() != FileKind::Dir {
            return if list.is_some() { Err(Errno::EACCES) } else { Ok(()) };
        }
        let now = txn.now;
        let edited = txn.edit(ino)?;
        edited.ctime = now;
        let flag = if is_access { inode_flags::HAS_ACL } else { inode_flags::HAS_DEFAULT_ACL };
        let mut keep = list.is_some();
        if let (Some(list), true) = (&list, is_access) {
            let (bits, minimal) = list.equivalent_mode();
            edited.mode = (edited.mode & !0o777) | bits;
            if kill_sgid {
                edited.mode &= !libc::S_ISGID;
            }
            keep = !minimal;
        }
        match (keep, list) {
            (true, Some(list)) => {
                edited.flags |= flag | inode_flags::HAS_XATTRS;
                let value = list.to_bytes();
                txn.push(Change::PutXattr { ino, name: name.to_vec(), value });
            }
            _ => {
                let had = edited.flags & flag != 0;
                edited.flags &= !flag;
                if had {
                    txn.push(Change::DelXattr { ino, name: name.to_vec() });
                }
            }
        }
        txn.commit()?;
        Ok(())
    }

    /// Removes an xattr.
    pub(crate) fn remove(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        check_xattr_name(name)?;
        let mut txn = self.records.begin(caller);
        txn.use_reserve();
        txn.get(ino)?;
        if self.records.store().xattr(ino, name)?.is_none() {
            return Err(Errno::ENODATA);
        }
        let now = txn.now;
        let edited = txn.edit(ino)?;
        edited.ctime = now;
        match name {
            acl::ACCESS => edited.flags &= !inode_flags::HAS_ACL,
            acl::DEFAULT => edited.flags &= !inode_flags::HAS_DEFAULT_ACL,
            CAPABILITY => edited.flags &= !inode_flags::HAS_CAPS,
            _ => {}
        }
        txn.push(Change::DelXattr { ino, name: name.to_vec() });
        txn.commit()?;
        Ok(())
    }
}

/// The name spaces that Linux knows; `user.forebay.*` cannot be written, but for the layout.
fn check_xattr_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Errno::ERANGE);
    }
    if name.starts_with(OWN) {
        return Err(Errno::EPERM);
    }
    let known: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    let prefixed = known.iter().any(|p| name.starts_with(p) && name.len() > p.len());
    match name {
        acl::ACCESS | acl::DEFAULT => Ok(()),
        _ if prefixed => Ok(()),
        _ => Err(Errno::EOPNOTSUPP),
    }
}
