//! When files drain: a policy for each directory, inherited by what is below.

use super::super::flash::Flash;
use super::super::pfs::Key;
use forebay_proto::Result;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

/// Quiet time of `idle` without a number.
pub(crate) const IDLE_DEFAULT: Duration = Duration::from_secs(2);
/// Most directories with a policy of their own.
const POLICIES_MAX: usize = 4_096;
/// Longest quiet time, in seconds.
const IDLE_MAX_S: u64 = 86_400;

/// When to drain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// At the last close.
    Close,
    /// When nothing has been written for so long.
    Idle(Duration),
    /// At unmount, or when asked.
    End,
    /// Only when asked by name; an unmount refuses to lose it.
    Never,
}

impl Policy {
    /// From its text: `close`, `idle`, `idle:SECONDS`, `end`, `never`.
    pub fn parse(text: &[u8]) -> Option<Policy> {
        let text = std::str::from_utf8(text).ok()?.trim_end_matches(['\n', '\0']);
        Some(match text {
            "close" => Policy::Close,
            "idle" => Policy::Idle(IDLE_DEFAULT),
            "end" => Policy::End,
            "never" => Policy::Never,
            other => {
                let seconds: u64 = other.strip_prefix("idle:")?.parse().ok()?;
                (1..=IDLE_MAX_S).contains(&seconds).then(|| Duration::from_secs(seconds))?;
                Policy::Idle(Duration::from_secs(seconds))
            }
        })
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Close => f.write_str("close"),
            Policy::Idle(quiet) => write!(f, "idle:{}", quiet.as_secs()),
            Policy::End => f.write_str("end"),
            Policy::Never => f.write_str("never"),
        }
    }
}

/// The directories that have one.
pub(crate) struct Policies {
    by_dir: RwLock<HashMap<Key, Policy>>,
    default: Policy,
}

impl Policies {
    /// Reads those on flash.
    pub fn load(flash: &Flash, default: Policy) -> Result<Policies> {
        let mut by_dir = HashMap::new();
        for (key, text) in flash.policies()? {
            if let Some(policy) = Policy::parse(text.as_bytes()) {
                by_dir.insert(key, policy);
            }
        }
        Ok(Policies { by_dir: RwLock::new(by_dir), default })
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
            return Err(forebay_proto::Errno::ENOSPC);
        }
        let list: Vec<_> = changed.iter().map(|(key, p)| (*key, p.to_string())).collect();
        flash.save_policies(&list)?;
        *by_dir = changed;
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_back() {
        for text in ["close", "idle:7", "end", "never"] {
            assert_eq!(Policy::parse(text.as_bytes()).unwrap().to_string(), text);
        }
        assert_eq!(Policy::parse(b"idle"), Some(Policy::Idle(IDLE_DEFAULT)));
        for wrong in ["", "idle:", "idle:0", "idle:x", "soon", "close "] {
            assert_eq!(Policy::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
