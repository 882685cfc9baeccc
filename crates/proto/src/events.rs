//! The event record of a buffer, and of a server: what happened, when, to which bytes. Kept by
//! `forebay_server::events`, asked for over the control socket and of the ledger, shown by
//! `forebay events`. The format on flash is docs/internals/EVENTS.md.
//!
//! Times are what the server's clock said. The order of events is that of their numbers, also where
//! the clock was set back.

use crate::ids::{PlanId, ServerId};
use crate::kinds::Verify;
use crate::path_bytes::PathBytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

/// Most events in one answer.
pub const EVENTS_PAGE_MAX: usize = 1_000;
/// Most bytes of events in one answer, as they are on flash: it must fit a message.
pub const EVENTS_PAGE_BYTES_MAX: usize = 2 << 20;
/// Longest that a server waits for a new event before it answers, in milliseconds.
pub const EVENTS_WAIT_MAX_MS: u64 = 1_000;

const NS_PER_S: u64 = 1_000_000_000;
const S_PER_DAY: u64 = 86_400;

/// Nanoseconds since 1970, UTC. As text `2026-11-22T05:10:33.000000000Z` (RFC 3339): JSON has no
/// whole numbers of this size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UtcTime(pub u64);

impl UtcTime {
    /// What the clock says.
    pub fn now() -> UtcTime {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        UtcTime(since.map_or(0, |since| since.as_nanos() as u64))
    }
}

impl fmt::Display for UtcTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, ns) = (self.0 / NS_PER_S, self.0 % NS_PER_S);
        let (year, month, day) = civil(seconds / S_PER_DAY);
        let of_day = seconds % S_PER_DAY;
        let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ns:09}Z")
    }
}

impl From<UtcTime> for String {
    fn from(time: UtcTime) -> String {
        time.to_string()
    }
}

impl TryFrom<String> for UtcTime {
    type Error = BadTime;

    fn try_from(text: String) -> Result<UtcTime, BadTime> {
        text.parse()
    }
}

/// Not a time.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no time: give one of UTC such as 2026-11-22T05:10:33Z, or 2026-11-22")]
pub struct BadTime(String);

impl FromStr for UtcTime {
    type Err = BadTime;

    fn from_str(text: &str) -> Result<UtcTime, BadTime> {
        parse(text).map(UtcTime).ok_or_else(|| BadTime(text.into()))
    }
}

/// `YYYY-MM-DD`, with `THH:MM:SS`, a fraction and `Z` behind it or not.
fn parse(text: &str) -> Option<u64> {
    let (date, rest) = text.split_at_checked(10)?;
    let number = |text: &str| -> Option<u64> {
        text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
    };
    let field = |from: usize, to: usize, of: &str| number(of.get(from..to)?);
    let bytes = date.as_bytes();
    let (year, month, day) = (field(0, 4, date)?, field(5, 7, date)?, field(8, 10, date)?);
    let dashes = bytes.get(4) == Some(&b'-') && bytes.get(7) == Some(&b'-');
    if !dashes || year < 1970 || !(1..=12).contains(&month) || day == 0 {
        return None;
    }
    let days = days_of(year, month, day);
    if civil(days) != (year, month, day) {
        return None;
    }
    let mut ns = days.checked_mul(S_PER_DAY)?.checked_mul(NS_PER_S)?;
    if rest.is_empty() {
        return Some(ns);
    }
    let clock = rest.strip_prefix(['T', ' '])?.strip_suffix('Z').unwrap_or(&rest[1..]);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let colons = clock.get(2..3) == Some(":") && clock.get(5..6) == Some(":");
    let (hour, minute, second) = (field(0, 2, clock)?, field(3, 5, clock)?, field(6, 8, clock)?);
    if !colons || clock.len() != 8 || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    if fraction.is_empty() || fraction.len() > 9 {
        return None;
    }
    let fraction = number(fraction)? * 10_u64.pow(9 - fraction.len() as u32);
    ns = ns.checked_add((hour * 3_600 + minute * 60 + second) * NS_PER_S)?;
    ns.checked_add(fraction)
}

/// Year, month and day of a count of days since 1970, in the Gregorian calendar. A year that
/// begins in March ends with the leap day, and its months follow a line of 153 days in five.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// The count of days since 1970 of a date from 1970 on.
fn days_of(year: u64, month: u64, day: u64) -> u64 {
    let year = year - u64::from(month <= 2);
    let (era, of_era) = (year / 400, year % 400);
    let from_march = (month + 9) % 12;
    let of_year = (153 * from_march + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// The buffer was made; `bytes` is its capacity.
    Created,
    /// It was made larger; `bytes` is its capacity now.
    Extended,
    /// It was destroyed.
    Destroyed,
    /// A plan has begun; `path` is where it copies from, `note` where to.
    Begun,
    /// A regular file was copied, fsynced, read back with the checksum it has, and got its name.
    Staged,
    /// A plan has ended, and all that it names is fsynced and verified.
    Verified,
    /// With `path`, a file could not be copied; without, a plan has ended with failures.
    Failed,
    /// A plan was given up because somebody asked for it.
    Cancelled,
    /// Dirty bytes of a file of a cache are on the PFS, fsynced and verified.
    Drained,
    /// Clean data of a cache went to make room: `bytes` of `files` files, within some seconds.
    Evicted,
    /// A tree was published on the PFS at once.
    Committed,
    /// Events could not be written down; `files` is how many.
    Lost,
}

impl EventKind {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            EventKind::Created => "created",
            EventKind::Extended => "extended",
            EventKind::Destroyed => "destroyed",
            EventKind::Begun => "begun",
            EventKind::Staged => "staged",
            EventKind::Verified => "verified",
            EventKind::Failed => "failed",
            EventKind::Cancelled => "cancelled",
            EventKind::Drained => "drained",
            EventKind::Evicted => "evicted",
            EventKind::Committed => "committed",
            EventKind::Lost => "lost",
        }
    }
}

/// One event, without its number and time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Happened {
    /// What.
    pub event: EventKind,
    /// The user that asked for it; a buffer's own doings are its owner's.
    pub uid: u32,
    /// The plan that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanId>,
    /// Where: in the buffer behind its mount point or `NAME:`, or on the PFS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBytes>,
    /// Bytes that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Files that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<u64>,
    /// CRC32C (Castagnoli) of the file's content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crc32c: Option<u32>,
    /// How the content was read back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified: Option<Verify>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
    /// More in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// In a server's record: the buffer's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer: Option<String>,
    /// In a server's record: the buffer's identity, 32 hex digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
}

impl Happened {
    /// Something that a user's wish brought about.
    pub fn of(event: EventKind, uid: u32) -> Happened {
        Happened {
            event,
            uid,
            plan: None,
            path: None,
            bytes: None,
            files: None,
            crc32c: None,
            verified: None,
            errno: None,
            note: None,
            buffer: None,
            uuid: None,
        }
    }
}

/// One event.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Its number in its record, from 1. What is missing in between was never written, or has
    /// given way to later ones.
    pub seq: u64,
    /// When, by the server's clock.
    pub time: UtcTime,
    /// What.
    #[serde(flatten)]
    pub happened: Happened,
}

/// Whose record is asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventRecord {
    /// The buffer's own.
    #[default]
    Buffer,
    /// The server's, of what it made and destroyed.
    Server,
    /// What another server of the buffer has on record about its part ([`EventsPage::others`]).
    Part {
        /// Whose.
        server: ServerId,
        /// The buffer's identity: its name may be another one's by now.
        uuid: String,
    },
}

/// Which events are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct EventsQuery {
    /// Those with a higher number.
    pub after: u64,
    /// Those of this time and later.
    pub since: Option<UtcTime>,
    /// Where there is none, wait so long for one ([`EVENTS_WAIT_MAX_MS`] at most).
    pub wait_ms: u64,
}

/// Part of a record.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct EventsPage {
    /// In order of their numbers.
    pub events: Vec<Event>,
    /// `after` of the next question.
    pub next_after: u64,
    /// There is more now.
    pub more: bool,
    /// The number of the oldest event that is still kept.
    pub oldest: u64,
    /// Where more of what happened to this buffer may be on record: servers that have, or had, parts of it.
    #[serde(default)]
    pub others: Vec<EventRecord>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read_as_rfc_3339() {
        for (ns, text) in [
            (0, "1970-01-01T00:00:00.000000000Z"),
            (951_782_400 * NS_PER_S + 7, "2000-02-29T00:00:00.000000007Z"),
            (1_795_324_233 * NS_PER_S + 123_000_000, "2026-11-22T05:10:33.123000000Z"),
            (4_107_542_399 * NS_PER_S + 999_999_999, "2100-02-28T23:59:59.999999999Z"),
        ] {
            assert_eq!(UtcTime(ns).to_string(), text);
            assert_eq!(text.parse(), Ok(UtcTime(ns)));
        }
        let short = |text: &str| text.parse::<UtcTime>().map(|time| time.to_string());
        assert_eq!(short("2026-11-22"), Ok("2026-11-22T00:00:00.000000000Z".into()));
        assert_eq!(short("2026-11-22 05:10:33.5"), Ok("2026-11-22T05:10:33.500000000Z".into()));
        for day in 0..80_000 {
            let (year, month, of_month) = civil(day);
            assert_eq!(days_of(year, month, of_month), day);
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "now",
            "2026",
            "2026-02-30",
            "1969-12-31",
            "2026-13-01",
            "2026-11-22T25:00:00Z",
            "2026-11-22T05:10",
            "2026-11-22T05:10:33.",
            "2026-11-22X05:10:33",
            "2026/11/22",
            "2026-11-22T05:10:33.1234567890Z",
            "+026-11-22",
            "２０２６-11-22",
        ] {
            assert!(text.parse::<UtcTime>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_event_is_one_flat_object() {
        let happened =
            Happened { bytes: Some(3), crc32c: Some(7), ..Happened::of(EventKind::Staged, 5) };
        let event = Event { seq: 9, time: UtcTime(0), happened };
        let json = serde_json::to_string(&event).unwrap();
        assert_eq!(
            json,
            r#"{"seq":9,"time":"1970-01-01T00:00:00.000000000Z","event":"staged","uid":5,"bytes":3,"crc32c":7}"#
        );
        assert_eq!(serde_json::from_str::<Event>(&json).unwrap(), event);
        assert_eq!(event.happened.event.name(), "staged");
    }
}
