//! What a job's record has of a buffer at servers.

use super::nodes::Node;
use forebay_proto::control::PathBytes;
use forebay_proto::net::ledger::BufferName;
use serde::{Deserialize, Serialize};

/// What a job has at servers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServedJob {
    /// Server that is asked, as the user named it.
    pub server: String,
    /// Secret to show it, if the user named one.
    pub secret_file: Option<PathBytes>,
    /// The job's buffer.
    pub buffer: BufferName,
    /// Makes the reservation one, however often it is asked for.
    pub token: String,
    /// Servers to spread the buffer over; 0 = all.
    pub servers: u16,
    /// Name of the node that runs the script.
    pub here: String,
    /// The other nodes.
    pub nodes: Vec<Node>,
    /// How a shell is started on them.
    pub launch: String,
}

impl ServedJob {
    /// Names of all nodes that are known, this one first.
    pub fn node_names(&self) -> Vec<&str> {
        let others = self.nodes.iter().filter_map(|node| node.name.as_deref());
        std::iter::once(self.here.as_str()).chain(others).collect()
    }

    /// As what the user has to name the nodes to a launcher, this one first.
    pub fn hosts(&self) -> String {
        let others = self.nodes.iter().map(|node| node.host.as_str());
        std::iter::once(self.here.as_str()).chain(others).collect::<Vec<_>>().join(",")
    }
}
