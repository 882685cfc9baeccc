//! Which node this is: its name for people, and, as far as sharing memory goes, the boot of its kernel.
//!
//! Mounts and servers compare it to know whether they are on one node, and stores to know
//! whether it was restarted.

use forebay_proto::net::session::NodeId;

/// Identity of this boot of the node; empty where the kernel does not tell.
pub fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_string()
}

/// This machine's name; empty where it does not tell.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Most supplementary groups of one user that are taken along (the kernel's own limit).
const GROUPS_MAX: usize = 65_536;

/// Supplementary groups of a process of this node; none if it is gone or cannot be seen.
pub fn groups_of_process(pid: u32) -> Vec<u32> {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/status")) else {
        return Vec::new();
    };
    let line = text.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or("");
    line.split_whitespace().filter_map(|g| g.parse().ok()).take(GROUPS_MAX).collect()
}

/// This node.
pub fn this_node() -> NodeId {
    NodeId(boot_id())
}
