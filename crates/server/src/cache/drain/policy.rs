//! When files drain: a policy for each directory, inherited by what is below. One policy says when
//! (at close, in quiet moments, at the end, never), how old what is dirty may become, and how much
//! of the cache it may fill.
//!
//! Invariants: each policy is read back from the text that it is shown as; a watermark that was
//! passed stays in force until its lower mark is reached. Asked by the drain's workers.

use super::super::CacheFs;
use super::super::flash::Flash;
use super::super::pfs::Key;
use forebay_proto::{Errno, Result};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

/// Quiet time of `idle` without a number.
pub(crate) const IDLE_DEFAULT: Duration = Duration::from_secs(2);
/// How often the share of dirty data is looked at where a policy has a watermark.
pub(crate) const WATERMARK_LOOK: Duration = Duration::from_millis(500);
/// The looks take at most one part in so many of a worker's time.
const LOOK_SHARE: u32 = 50;
/// Most directories with a policy of their own.
const POLICIES_MAX: usize = 4_096;
/// Longest quiet time, in seconds.
const IDLE_MAX_S: u64 = 86_400;
/// Longest deadline, in seconds.
const DEADLINE_MAX_S: u64 = 30 * 86_400;

/// When to drain, apart from limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// At the last close.
    Close,
    /// When nothing has been written for so long.
    Idle(Duration),
    /// At unmount, or when asked.
    End,
    /// Only when asked by name; an unmount refuses to lose it.
    Never,
}

/// Shares of the capacity, in percent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Watermark {
    /// Draining starts when more than this is dirty.
    pub high: u8,
    /// It goes on until no more than this is.
    pub low: u8,
}

/// When to drain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Unless a limit says earlier.
    pub when: When,
    /// Nothing stays dirty for longer.
    pub deadline: Option<Duration>,
    /// No more of the cache is dirty.
    pub watermark: Option<Watermark>,
}

impl From<When> for Policy {
    fn from(when: When) -> Policy {
        Policy { when, deadline: None, watermark: None }
    }
}

impl Policy {
    /// How it is written, for messages.
    pub const SYNTAX: &'static str = "close, idle, idle:SECONDS, end or never; with limits behind commas \
         or alone: deadline=TIME (such as 90s, 10m, 2h), watermark=HIGH:LOW (percent of the capacity); \
         never takes no limit";

    /// From its text: one of `close`, `idle`, `idle:SECONDS`, `end`, `never`, and limits, with commas
    /// between. Limits alone stand on `end`; `never` takes none.
    pub fn parse(text: &[u8]) -> Option<Policy> {
        let text = std::str::from_utf8(text).ok()?.trim_end_matches(['\n', '\0']);
        let (mut when, mut deadline, mut watermark) = (None, None, None);
        for part in text.split(',') {
            if let Some(time) = part.strip_prefix("deadline=") {
                set_once(&mut deadline, parse_time(time)?)?;
            } else if let Some(marks) = part.strip_prefix("watermark=") {
                set_once(&mut watermark, parse_watermark(marks)?)?;
            } else {
                set_once(&mut when, parse_when(part)?)?;
            }
        }
        let limited = deadline.is_some() || watermark.is_some();
        match when {
            Some(When::Never) if limited => None,
            _ => Some(Policy { when: when.unwrap_or(When::End), deadline, watermark }),
        }
    }
}

/// `None` if it was said before.
fn set_once<T>(place: &mut Option<T>, value: T) -> Option<()> {
    place.replace(value).is_none().then_some(())
}

fn parse_when(text: &str) -> Option<When> {
    Some(match text {
        "close" => When::Close,
        "idle" => When::Idle(IDLE_DEFAULT),
        "end" => When::End,
        "never" => When::Never,
        other => {
            let seconds: u64 = other.strip_prefix("idle:")?.parse().ok()?;
            (1..=IDLE_MAX_S).contains(&seconds).then(|| Duration::from_secs(seconds))?;
            When::Idle(Duration::from_secs(seconds))
        }
    })
}

/// Seconds, or a number with `s`, `m`, `h` or `d` behind it.
fn parse_time(text: &str) -> Option<Duration> {
    let (number, unit_s) = match text.char_indices().last()? {
        (at, 's') => (&text[..at], 1),
        (at, 'm') => (&text[..at], 60),
        (at, 'h') => (&text[..at], 3_600),
        (at, 'd') => (&text[..at], 86_400),
        _ => (text, 1),
    };
    let seconds = number.parse::<u64>().ok()?.checked_mul(unit_s)?;
    (1..=DEADLINE_MAX_S).contains(&seconds).then(|| Duration::from_secs(seconds))
}

fn parse_watermark(text: &str) -> Option<Watermark> {
    let percent = |text: &str| text.strip_suffix('%').unwrap_or(text).parse::<u8>().ok();
    let (high, low) = text.split_once(':')?;
    let (high, low) = (percent(high)?, percent(low)?);
    (low < high && high <= 100).then_some(Watermark { high, low })
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.when {
            When::Close => f.write_str("close")?,
            When::Idle(quiet) => write!(f, "idle:{}", quiet.as_secs())?,
            When::End => f.write_str("end")?,
            When::Never => f.write_str("never")?,
        }
        if let Some(deadline) = self.deadline {
            write!(f, ",deadline={}s", deadline.as_secs())?;
        }
        match self.watermark {
            Some(Watermark { high, low }) => write!(f, ",watermark={high}:{low}"),
            None => Ok(()),
        }
    }
}

/// The directories that have one.
pub(crate) struct Policies {
    by_dir: RwLock<HashMap<Key, Policy>>,
    default: Policy,
    marks: Mutex<Marks>,
}

/// Which watermarks were passed.
#[derive(Default)]
struct Marks {
    over: HashMap<Watermark, bool>,
    look_at: Option<Instant>,
    /// What was dirty at the last look, less what is drained since.
    dirty_bytes: u64,
}

impl Policies {
    /// Reads those on flash.
    pub fn load(flash: &Flash, default: Policy) -> Result<Policies> {
        let mut by_dir = HashMap::new();
        for (key, text) in flash.policies()? {
            match Policy::parse(text.as_bytes()) {
                Some(policy) => drop(by_dir.insert(key, policy)),
                None => tracing::error!(%text, "a policy on flash cannot be read: left out"),
            }
        }
        Ok(Policies { by_dir: RwLock::new(by_dir), default, marks: Mutex::default() })
    }

    /// Sets or removes that of a directory; on flash when this returns. ENOSPC with too many.
    pub fn set(&self, flash: &Flash, dir: Key, policy: Option<Policy>) -> Result<()> {
        let mut by_dir = self.by_dir.write();
        let mut changed = by_dir.clone();
        match policy {
            Some(policy) => changed.insert(dir, policy),
            None => changed.remove(&dir),
        };
        if changed.len() > POLICIES_MAX {
            return Err(Errno::ENOSPC);
        }
        let list: Vec<_> = changed.iter().map(|(key, p)| (*key, p.to_string())).collect();
        flash.save_policies(&list)?;
        *by_dir = changed;
        Ok(())
    }

    /// Those of all directories that have one.
    pub fn list(&self) -> Vec<(Key, String)> {
        self.by_dir.read().iter().map(|(key, policy)| (*key, policy.to_string())).collect()
    }

    /// From now on these count; on flash when this returns.
    pub fn replace(&self, flash: &Flash, list: Vec<(Key, String)>) -> Result<()> {
        let parse = |(key, text): &(Key, String)| Some((*key, Policy::parse(text.as_bytes())?));
        let changed: HashMap<Key, Policy> = list.iter().filter_map(parse).collect();
        let mut by_dir = self.by_dir.write();
        if changed != *by_dir {
            flash.save_policies(&list)?;
            *by_dir = changed;
        }
        Ok(())
    }

    /// That of the first of these directories (the nearest first) that has one.
    pub fn of(&self, mut dirs: impl Iterator<Item = Key>) -> Policy {
        let by_dir = self.by_dir.read();
        if by_dir.is_empty() {
            return self.default;
        }
        dirs.find_map(|dir| by_dir.get(&dir).copied()).unwrap_or(self.default)
    }

    /// All watermarks that are set.
    fn watermarks(&self) -> Vec<Watermark> {
        let by_dir = self.by_dir.read();
        by_dir.values().chain([&self.default]).filter_map(|policy| policy.watermark).collect()
    }

    /// True if the share of dirty data has to be watched.
    pub fn watch(&self) -> bool {
        !self.watermarks().is_empty()
    }

    /// True while a watermark was passed and its lower mark is not reached.
    fn is_over(&self, mark: Watermark) -> bool {
        self.marks.lock().over.get(&mark).copied().unwrap_or(false)
    }
}

impl Marks {
    /// So many percent are dirty now. True if a mark has just been passed.
    fn note(&mut self, set: Vec<Watermark>, dirty_percent: f64) -> bool {
        let old = std::mem::take(&mut self.over);
        let mut passed = false;
        for mark in set {
            let was = old.get(&mark).copied().unwrap_or(false);
            let least = f64::from(if was { mark.low } else { mark.high });
            let is = dirty_percent > least;
            passed |= is && !was;
            self.over.insert(mark, is);
        }
        passed
    }
}

impl CacheFs {
    /// When a file may drain by its policy and its limits, but for what [`When`] says: `None` if
    /// a limit wants it now.
    pub(super) fn limit_of(&self, policy: &Policy, since: Instant) -> Option<Option<Instant>> {
        if policy.watermark.is_some_and(|mark| self.policies.is_over(mark)) {
            return None;
        }
        match policy.deadline.map(|deadline| since + deadline) {
            Some(due) if due <= Instant::now() => None,
            due => Some(due),
        }
    }

    /// So much is being drained: it counts as gone, so that no more is drained than down to the lower
    /// mark, however many workers there are. A drain that fails is seen by the next look.
    pub(super) fn less_is_dirty(&self, bytes: u64) {
        let set = self.policies.watermarks();
        if set.is_empty() {
            return;
        }
        let capacity = self.capacity_bytes();
        let mut marks = self.policies.marks.lock();
        marks.dirty_bytes = marks.dirty_bytes.saturating_sub(bytes);
        let percent = marks.dirty_bytes as f64 * 100.0 / capacity as f64;
        marks.note(set, percent);
    }

    fn capacity_bytes(&self) -> u64 {
        self.flash.space().map_or(u64::MAX, |(_, capacity)| capacity).max(1)
    }

    /// Looks how much is dirty, if a policy cares and the last look was a while ago.
    pub(super) fn look_at_watermarks(&self) {
        let set = self.policies.watermarks();
        let started = Instant::now();
        {
            let mut marks = self.policies.marks.lock();
            if set.is_empty() {
                marks.over.clear();
                return;
            }
            if marks.look_at.is_some_and(|at| started < at) {
                return;
            }
            // Nobody else looks meanwhile.
            marks.look_at = Some(started + WATERMARK_LOOK);
        }
        let files = self.drainer.files();
        let waiting = files.iter().filter(|file| !file.drain.is_locked());
        let dirty: u64 = waiting.map(|file| self.dirty_bytes_of(file)).sum();
        let capacity = self.capacity_bytes();
        let passed = {
            let mut marks = self.policies.marks.lock();
            marks.look_at = Some(started + WATERMARK_LOOK.max(started.elapsed() * LOOK_SHARE));
            marks.dirty_bytes = dirty;
            marks.note(set, dirty as f64 * 100.0 / capacity as f64)
        };
        if passed {
            self.drainer.look_again();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_back() {
        for text in [
            "close",
            "idle:7",
            "end",
            "never",
            "end,deadline=600s",
            "idle:2,watermark=60:30",
            "close,deadline=5s,watermark=100:0",
        ] {
            assert_eq!(Policy::parse(text.as_bytes()).unwrap().to_string(), text);
        }
        assert_eq!(Policy::parse(b"idle"), Some(When::Idle(IDLE_DEFAULT).into()));
        for (text, shown) in [
            ("deadline=10m", "end,deadline=600s"),
            ("deadline=90", "end,deadline=90s"),
            ("watermark=60%:30%,idle:3,deadline=2h", "idle:3,deadline=7200s,watermark=60:30"),
        ] {
            assert_eq!(Policy::parse(text.as_bytes()).unwrap().to_string(), shown);
        }
        for wrong in [
            "",
            "idle:",
            "idle:0",
            "idle:x",
            "soon",
            "close ",
            "close,end",
            "deadline=0",
            "deadline=m",
            "deadline=1m,deadline=2m",
            "watermark=30:60",
            "watermark=101:5",
            "watermark=60",
            "never,deadline=1m",
            "end,",
            "deadline=99999999d",
            "deadline=1\u{b5}",
        ] {
            assert_eq!(Policy::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn a_watermark_is_in_force_from_its_high_to_its_low_mark() {
        let (one, two) = (Watermark { high: 60, low: 30 }, Watermark { high: 80, low: 10 });
        let mut marks = Marks::default();
        for (percent, passed, over) in [
            (60.0, false, [false, false]),
            (61.0, true, [true, false]),
            (81.0, true, [true, true]),
            (31.0, false, [true, true]),
            (30.0, false, [false, true]),
            (59.0, false, [false, true]),
            (9.0, false, [false, false]),
        ] {
            assert_eq!(marks.note(vec![one, two], percent), passed, "{percent}");
            assert_eq!([marks.over[&one], marks.over[&two]], over, "{percent}");
        }
    }
}
