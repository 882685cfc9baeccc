//! Other decisions than those of production, each plainly another one, so that tests can see who asks this crate: a
//! changed decision must change the server and the simulator alike.
//!
//! Invariant: nothing can be changed in a release build without `failpoints`; there [`is`] is a constant. The executable sets the
//! changes once, before it does anything, and says so. Callers: the decisions of this crate; `forebay`.

use std::sync::atomic::{AtomicU8, Ordering};

static CHANGES: AtomicU8 = AtomicU8::new(0);

/// A decision that is another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Change {
    /// Of files that are due the last one drains first.
    DrainOrder = 1,
    /// Names take their turns over the servers backwards.
    Placement = 2,
    /// A watermark is in force from half of its marks.
    Watermarks = 4,
    /// Half of the capacity is kept free: writes wait, and clean data goes, so much earlier.
    Room = 8,
    /// Everything that is clean goes at once.
    Eviction = 16,
}

/// All changes and their names.
pub const NAMES: [(&str, Change); 5] = [
    ("drain-order", Change::DrainOrder),
    ("placement", Change::Placement),
    ("watermarks", Change::Watermarks),
    ("room", Change::Room),
    ("eviction", Change::Eviction),
];

/// Whether a decision is another one.
#[inline]
pub(crate) fn is(change: Change) -> bool {
    cfg!(any(debug_assertions, feature = "failpoints"))
        && CHANGES.load(Ordering::Relaxed) & change as u8 != 0
}

/// Changes the decisions of this process: names with commas between, of [`NAMES`]; none changes nothing.
///
/// # Errors
/// A name that is not known, or a build that has no changes.
pub fn set(names: &str) -> Result<(), String> {
    if !cfg!(any(debug_assertions, feature = "failpoints")) {
        return Err("this build's decisions cannot be changed: a debug build's can".into());
    }
    let mut changes = 0;
    for name in names.split(',').filter(|name| !name.is_empty()) {
        let known = NAMES.iter().find(|(known, _)| *known == name);
        let (_, change) = known.ok_or_else(|| {
            let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
            format!("{name:?} is no decision: expected some of {}", names.join(", "))
        })?;
        changes |= *change as u8;
    }
    CHANGES.store(changes, Ordering::Relaxed);
    Ok(())
}
