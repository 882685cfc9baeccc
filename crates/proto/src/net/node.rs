//! Questions to the agent of a node (`forebay agent`): a job's buffers mounted there and unmounted. Bodies are
//! JSON. Asked with the servers' key, or by root over the agent's Unix socket: nobody else is answered.
//!
//! Every change may be asked for again: mounted twice is mounted once, and unmounting nothing is done.

use super::ledger::BufferName;
use crate::control::ControlError;
use serde::{Deserialize, Serialize};

/// Longest name of a session.
pub const SESSION_NAME_MAX: usize = 64;

/// What a scheduler calls a job's buffer, or a persistent one: its job id, or its name. Letters, digits, `-`, `_`
/// and `.`, beginning with a letter or digit: it is a directory's and a file's name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SessionName(String);

/// Why a text is no name of a session.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no token: letters, digits, '-', '_' and '.', at most {SESSION_NAME_MAX}")]
pub struct BadSessionName(String);

impl TryFrom<String> for SessionName {
    type Error = BadSessionName;

    fn try_from(text: String) -> Result<SessionName, BadSessionName> {
        // A buffer's name has the same rules, for the same reasons.
        match BufferName::try_from(text.clone()) {
            Ok(_) if text.len() <= SESSION_NAME_MAX => Ok(SessionName(text)),
            _ => Err(BadSessionName(text)),
        }
    }
}

impl From<SessionName> for String {
    fn from(name: SessionName) -> String {
        name.0
    }
}

impl std::str::FromStr for SessionName {
    type Err = BadSessionName;

    fn from_str(text: &str) -> Result<SessionName, BadSessionName> {
        SessionName::try_from(text.to_string())
    }
}

impl std::fmt::Display for SessionName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl SessionName {
    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One buffer to be mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMount {
    /// Name of the mount point in the job's directory.
    pub name: SessionName,
    /// Buffer.
    pub buffer: BufferName,
    /// A server of its pool: HOST:PORT or unix:/PATH.
    pub server: String,
    /// Directories to be made below the buffer's root for the job's user.
    pub directories: Vec<String>,
    /// One of them of which each node has a part of its own, of the node's name, that the link [`OWN_LINK`] in the
    /// job's directory leads to.
    pub own_of: Option<String>,
    /// More flags of `forebay mount`: limits of the files.
    pub limits: Vec<String>,
}

/// In a job's directory: what leads to the node's own part of a buffer with both access modes.
pub const OWN_LINK: &str = "private";

/// What is asked of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeRequest {
    /// Mounts a job's buffers, so that only its user reaches them.
    Mount {
        /// The job.
        session: SessionName,
        /// Its user.
        uid: u32,
        /// Its group.
        gid: u32,
        /// Its buffers.
        mounts: Vec<NodeMount>,
        /// Swap space for it, on the node's own flash; 0: none.
        #[serde(default)]
        swap_bytes: u64,
    },
    /// Ends all that a job has on the node: its swap space, and its mounts, by force if somebody still uses them.
    Umount {
        /// The job.
        session: SessionName,
    },
    /// The jobs that have something mounted, or swap space.
    Sessions,
}

/// What comes of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum NodeReply {
    /// All is mounted.
    Mounted {
        /// What the node calls itself: the name of its part of a private namespace.
        host: String,
    },
    /// Nothing of the job is mounted any more.
    Unmounted,
    /// To `Sessions`.
    Sessions(Vec<SessionName>),
    /// It failed, and left nothing mounted that was not before.
    Error(ControlError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_names_of_files() {
        for good in ["17", "17_3", "alpha", "a.b-c"] {
            assert!(good.parse::<SessionName>().is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "-a", "a b", &"7".repeat(65)] {
            assert!(bad.parse::<SessionName>().is_err(), "{bad}");
        }
        assert!(serde_json::from_str::<SessionName>("\"../x\"").is_err());
    }
}
