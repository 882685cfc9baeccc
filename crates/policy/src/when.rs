//! When files drain: a policy for each directory, inherited by what is below. One policy says when
//! (at close, in quiet moments, at the end, never), how old what is dirty may become, and how much
//! of the cache it may fill.
//!
//! Invariant: each policy is read back from the text that it is shown as. Kept by the cache (`drain/policies.rs`),
//! applied by [`crate::due`] and [`crate::watermarks`].

use std::fmt;
use std::time::Duration;

/// Quiet time of `idle` without a number.
pub const IDLE_DEFAULT: Duration = Duration::from_secs(2);
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
}
