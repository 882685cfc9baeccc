//! POSIX access control lists: the xattr format of `system.posix_acl_access` and
//! `system.posix_acl_default`, and the arithmetic between an ACL and mode bits
//! (acl(5); the kernel's include/uapi/linux/posix_acl_xattr.h).
//!
//! Used by the server where it must keep mode and ACL in step (the kernel leaves that to a
//! FUSE server) and by the mover when it decides for a requester.

use crate::caller::Caller;
use crate::errno::{Errno, Result};

/// xattr name of the access ACL.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// xattr name of the default ACL of a directory.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";
/// Most entries of one ACL that we accept; 8 bytes each, so the xattr stays below 64 KiB.
pub const MAX_ENTRIES: usize = 8_190;

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const UNDEFINED_ID: u32 = u32::MAX;

/// One entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct AclEntry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// A valid ACL, in the kernel's order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

impl Acl {
    /// Reads the xattr value. EINVAL unless it is a complete, ordered ACL; `Ok(None)` for an
    /// empty one, which means "remove".
    pub fn parse(value: &[u8]) -> Result<Option<Acl>> {
        let (head, mut rest) = value.split_first_chunk::<4>().ok_or(Errno::EINVAL)?;
        if u32::from_le_bytes(*head) != VERSION {
            return Err(Errno::EOPNOTSUPP);
        }
        if rest.len() % 8 != 0 || rest.len() / 8 > MAX_ENTRIES {
            return Err(Errno::EINVAL);
        }
        let mut entries = Vec::with_capacity(rest.len() / 8);
        while let Some((raw, tail)) = rest.split_first_chunk::<8>() {
            entries.push(AclEntry {
                tag: u16::from_le_bytes([raw[0], raw[1]]),
                perm: u16::from_le_bytes([raw[2], raw[3]]),
                id: u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]),
            });
            rest = tail;
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Acl { entries };
        acl.validate()?;
        Ok(Some(acl))
    }

    /// Exactly one of each base entry, in the order user, named users, group, named groups,
    /// mask, other; a mask where there are named entries.
    fn validate(&self) -> Result<()> {
        let mut last = 0;
        let mut seen = 0u16;
        for e in &self.entries {
            if e.perm & !7 != 0 || e.tag < last {
                return Err(Errno::EINVAL);
            }
            match e.tag {
                USER | GROUP if e.id == UNDEFINED_ID => return Err(Errno::EINVAL),
                USER | GROUP => {}
                USER_OBJ | GROUP_OBJ | MASK | OTHER if seen & e.tag != 0 => {
                    return Err(Errno::EINVAL);
                }
                USER_OBJ | GROUP_OBJ | MASK | OTHER => {}
                _ => return Err(Errno::EINVAL),
            }
            seen |= e.tag;
            last = e.tag;
        }
        let base = USER_OBJ | GROUP_OBJ | OTHER;
        let named = seen & (USER | GROUP) != 0;
        if seen & base != base || (named && seen & MASK == 0) {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    /// The xattr value.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(4 + 8 * self.entries.len());
        out.extend_from_slice(&VERSION.to_le_bytes());
        for e in &self.entries {
            out.extend_from_slice(&e.tag.to_le_bytes());
            out.extend_from_slice(&e.perm.to_le_bytes());
            out.extend_from_slice(&e.id.to_le_bytes());
        }
        out
    }

    fn perm(&self, tag: u16) -> Option<u16> {
        self.entries.iter().find(|e| e.tag == tag).map(|e| e.perm)
    }

    fn perm_mut(&mut self, tag: u16) -> Option<&mut u16> {
        self.entries.iter_mut().find(|e| e.tag == tag).map(|e| &mut e.perm)
    }

    /// What the owning group may (three bits), which a file's mode does not tell: its group bits are the mask.
    pub fn owning_group(&self) -> u32 {
        let group = self.perm(GROUP_OBJ).unwrap_or(0);
        u32::from(self.perm(MASK).map_or(group, |mask| group & mask))
    }

    /// The nine permission bits that stand for this ACL (the mask is the group class), and
    /// whether they say all of it, so that no xattr need be kept.
    pub fn equivalent_mode(&self) -> (u32, bool) {
        let user = self.perm(USER_OBJ).unwrap_or(0) as u32;
        let group = self.perm(GROUP_OBJ).unwrap_or(0) as u32;
        let other = self.perm(OTHER).unwrap_or(0) as u32;
        let class = self.perm(MASK).map_or(group, u32::from);
        let minimal = self.entries.iter().all(|e| matches!(e.tag, USER_OBJ | GROUP_OBJ | OTHER));
        ((user << 6) | (class << 3) | other, minimal)
    }

    /// The ACL after `chmod(mode)`.
    pub fn chmod(&mut self, mode: u32) {
        if let Some(p) = self.perm_mut(USER_OBJ) {
            *p = ((mode >> 6) & 7) as u16;
        }
        let class = ((mode >> 3) & 7) as u16;
        if let Some(p) = self.perm_mut(MASK) {
            *p = class;
        } else if let Some(p) = self.perm_mut(GROUP_OBJ) {
            *p = class;
        }
        if let Some(p) = self.perm_mut(OTHER) {
            *p = (mode & 7) as u16;
        }
    }

    /// What a new inode gets from this default ACL when created with `mode`: the access ACL
    /// (`None` if mode bits say all of it) and the new nine permission bits.
    pub fn inherit(&self, mode: u32) -> (Option<Acl>, u32) {
        let mut acl = self.clone();
        let mut out = mode & 0o777;
        if let Some(p) = acl.perm_mut(USER_OBJ) {
            *p &= ((mode >> 6) & 7) as u16;
            out = (out & !0o700) | (u32::from(*p) << 6);
        }
        let class = ((mode >> 3) & 7) as u16;
        let group = if acl.perm(MASK).is_some() { MASK } else { GROUP_OBJ };
        if let Some(p) = acl.perm_mut(group) {
            *p &= class;
            out = (out & !0o070) | (u32::from(*p) << 3);
        }
        if let Some(p) = acl.perm_mut(OTHER) {
            *p &= (mode & 7) as u16;
            out = (out & !0o007) | u32::from(*p);
        }
        let minimal = acl.equivalent_mode().1;
        (if minimal { None } else { Some(acl) }, out)
    }

    /// Whether the caller gets `want` (bits 4 read, 2 write, 1 execute) by the algorithm of
    /// acl(5), for an inode owned by (uid, gid).
    fn allows(&self, caller: &Caller, uid: u32, gid: u32, want: u16) -> bool {
        let mask = self.perm(MASK).unwrap_or(7);
        let has = |perm: u16| perm & want == want;
        if caller.uid == uid {
            return has(self.perm(USER_OBJ).unwrap_or(0));
        }
        if let Some(e) = self.entries.iter().find(|e| e.tag == USER && e.id == caller.uid) {
            return has(e.perm & mask);
        }
        let mut member = false;
        for e in &self.entries {
            let mine = match e.tag {
                GROUP_OBJ => caller.in_group(gid),
                GROUP => caller.in_group(e.id),
                _ => false,
            };
            if mine {
                member = true;
                if has(e.perm & mask) {
                    return true;
                }
            }
        }
        !member && has(self.perm(OTHER).unwrap_or(0))
    }
}

/// Whether `caller` may do `want` (4 read, 2 write, 1 execute) to an inode of this `mode`
/// (with type bits), owner, group and access ACL, as the kernel would decide. The superuser
/// may all, but execute a file that nobody may execute.
pub fn permitted(
    caller: &Caller,
    mode: u32,
    uid: u32,
    gid: u32,
    acl: Option<&Acl>,
    want: u16,
) -> bool {
    if caller.uid == 0 {
        let is_dir = mode & libc::S_IFMT == libc::S_IFDIR;
        return want & 1 == 0 || is_dir || mode & 0o111 != 0;
    }
    if let Some(acl) = acl {
        return acl.allows(caller, uid, gid, want);
    }
    let shift = match () {
        () if caller.uid == uid => 6,
        () if caller.in_group(gid) => 3,
        () => 0,
    };
    (mode >> shift) as u16 & want == want
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let entries = entries.iter().map(|&(tag, perm, id)| AclEntry { tag, perm, id }).collect();
        Acl { entries }.to_bytes()
    }

    #[test]
    fn named_entries_need_a_mask() {
        let u = UNDEFINED_ID;
        let bad = acl(&[(USER_OBJ, 7, u), (USER, 7, 5), (GROUP_OBJ, 5, u), (OTHER, 0, u)]);
        assert_eq!(Acl::parse(&bad), Err(Errno::EINVAL));
        let good =
            acl(&[(USER_OBJ, 7, u), (USER, 7, 5), (GROUP_OBJ, 5, u), (MASK, 5, u), (OTHER, 0, u)]);
        let parsed = Acl::parse(&good).unwrap().unwrap();
        assert_eq!(parsed.to_bytes(), good);
        assert_eq!(parsed.equivalent_mode(), (0o750, false));
    }

    #[test]
    fn the_mask_limits_named_users_and_chmod_moves_it() {
        let u = UNDEFINED_ID;
        let bytes =
            acl(&[(USER_OBJ, 6, u), (USER, 6, 5), (GROUP_OBJ, 4, u), (MASK, 6, u), (OTHER, 0, u)]);
        let mut a = Acl::parse(&bytes).unwrap().unwrap();
        let five = Caller { uid: 5, gid: 5, ..Caller::default() };
        assert!(permitted(&five, 0o660, 1, 1, Some(&a), 2));
        a.chmod(0o640);
        assert!(!permitted(&five, 0o640, 1, 1, Some(&a), 2));
        assert!(permitted(&five, 0o640, 1, 1, Some(&a), 4));
    }

    #[test]
    fn default_acl_replaces_the_umask() {
        let u = UNDEFINED_ID;
        let bytes = acl(&[(USER_OBJ, 7, u), (GROUP_OBJ, 7, u), (OTHER, 5, u)]);
        let a = Acl::parse(&bytes).unwrap().unwrap();
        assert_eq!(a.inherit(0o666), (None, 0o664));
    }
}
