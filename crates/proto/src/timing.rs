//! Times after which a server gives something up: the lease of a session, and how long another server is
//! waited for.
//!
//! A server's parts take them when a buffer is opened and keep them. The executable sets them once, before it
//! does anything, and only if FOREBAY_TIMING says so: tests of what happens after a lease then need not wait
//! for the lease of production.

use std::sync::OnceLock;
use std::time::Duration;

static CURRENT: OnceLock<Timing> = OnceLock::new();

/// The shortest time that can be set: less would end what is merely slow.
pub const SHORTEST: Duration = Duration::from_millis(100);
/// The longest.
pub const LONGEST: Duration = Duration::from_secs(600);

/// The times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A session ends when nothing was heard of it for so long.
    pub lease: Duration,
    /// How long a server that does not answer is waited for before an operation fails. Less than a mount
    /// waits for an answer, so that the mount hears of it; at once if it has been away for that long.
    pub server_patience: Duration,
    /// Longest that an operation is begun again and again: the time in which a session that does not
    /// answer is ended twice.
    pub retry: Duration,
}

impl Timing {
    /// Those of production.
    pub const PRODUCTION: Timing = Timing {
        lease: Duration::from_secs(12),
        server_patience: Duration::from_secs(40),
        retry: Duration::from_secs(30),
    };

    /// Those of this process.
    pub fn current() -> Timing {
        *CURRENT.get_or_init(|| Timing::PRODUCTION)
    }

    /// Sets those of this process. False if something has asked for them before: then nothing changes.
    pub fn set(self) -> bool {
        CURRENT.set(self).is_ok()
    }

    /// Of `lease_ms=3000,server_patience_ms=9000`: what is not named stays as in production. Errors say what
    /// is wrong with which part.
    pub fn parse(text: &str) -> Result<Timing, String> {
        let mut timing = Timing::PRODUCTION;
        for part in text.split(',') {
            let (name, value) =
                part.split_once('=').ok_or_else(|| format!("`{part}` is not NAME=MILLISECONDS"))?;
            let time = match name {
                "lease_ms" => &mut timing.lease,
                "server_patience_ms" => &mut timing.server_patience,
                "retry_ms" => &mut timing.retry,
                _ => {
                    return Err(format!(
                        "`{name}` is none of lease_ms, server_patience_ms, retry_ms"
                    ));
                }
            };
            let ms: u64 = value.parse().map_err(|_| format!("`{part}`: `{value}` is no number"))?;
            *time = Duration::from_millis(ms);
            if !(SHORTEST..=LONGEST).contains(time) {
                let (least, most) = (SHORTEST.as_millis(), LONGEST.as_millis());
                return Err(format!("`{part}` is not between {least} and {most}"));
            }
        }
        Ok(timing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_changes_and_the_rest_stays() {
        let timing = Timing::parse("lease_ms=3000,retry_ms=9000");
        let wanted = Timing {
            lease: Duration::from_secs(3),
            retry: Duration::from_secs(9),
            ..Timing::PRODUCTION
        };
        assert_eq!(timing, Ok(wanted));
    }

    #[test]
    fn a_wrong_time_is_refused_by_name() {
        for (text, named) in [
            ("", "NAME=MILLISECONDS"),
            ("lease_ms", "NAME=MILLISECONDS"),
            ("lease=3", "lease_ms"),
            ("lease_ms=3s", "no number"),
            ("lease_ms=0", "between"),
            ("retry_ms=999999999", "between"),
        ] {
            let said = Timing::parse(text).err().unwrap_or_default();
            assert!(said.contains(named), "{text}: {said}");
        }
    }
}
