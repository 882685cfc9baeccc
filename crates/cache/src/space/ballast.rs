//! Room for maps on a full flash.
//!
//! A kernel that writes a file by itself may fill the flash to the last page, and the map of
//! what it wrote has to be written before that file can drain. So some of the flash is taken beforehand, by an object
//! that has nothing in it, and given back when a map finds no room.
//!
//! Invariants: while the ballast is there, a map can be written on a full flash; it is no part of what [`Flash::space`]
//! calls used, since [`super`] keeps as much free. A kill leaves it as it was, or cut: the next start
//! fills it up. Called by [`Flash::write_map`] (gives it), at the start and after drains (takes it again).

use super::super::flash::Flash;
use super::Space;
use forebay_policy::room::RESERVE_SHARE;
use forebay_proto::{Errno, Ino, ObjectId, Result};
use forebay_store::objects::COMPANION;
use std::sync::atomic::Ordering;

/// Most that is taken: the maps of 1 TiB in whole blocks, or of 16,384 small files at once.
const BALLAST_MAX_BYTES: u64 = 64 << 20;

/// The object: the second one of the root, which has no first.
const BALLAST: ObjectId = ObjectId { ino: Ino::ROOT, stripe: COMPANION };

impl Flash {
    /// Takes the room, as far as it is not taken. ENOSPC if it is not there now.
    pub fn take_ballast(&self) -> Result<()> {
        let (_, capacity) = self.space()?;
        let wanted = (capacity / RESERVE_SHARE).min(BALLAST_MAX_BYTES);
        let objects = self.objects();
        match objects.create(BALLAST) {
            Ok(_) | Err(Errno::EEXIST) => {}
            Err(e) => return Err(e),
        }
        if let Err(e) = objects.fallocate(BALLAST, 0, 0, wanted) {
            objects.truncate(BALLAST, 0)?;
            return Err(e);
        }
        self.ballast_bytes.store(wanted, Ordering::Release);
        Ok(())
    }

    /// True if it was given away.
    pub fn lacks_ballast(&self) -> bool {
        self.ballast_bytes.load(Ordering::Acquire) == 0
    }

    /// Gives it back to the flash, for a map.
    pub(crate) fn give_ballast(&self) -> Result<()> {
        self.ballast_bytes.store(0, Ordering::Release);
        tracing::info!("the flash is full: the room kept for maps is used");
        self.objects().truncate(BALLAST, 0)
    }
}

impl Space {
    /// Takes the ballast again, where clean data can go for it.
    pub(crate) fn restore_ballast(&self) {
        if !self.flash.lacks_ballast() {
            return;
        }
        let taken = self.make_room(BALLAST_MAX_BYTES.min(self.reserve_bytes()));
        if let Err(error) = taken.and_then(|()| self.flash.take_ballast()) {
            tracing::debug!(%error, "no room yet for the ballast");
        }
    }
}
