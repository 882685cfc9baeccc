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

/// This node.
pub fn this_node() -> NodeId {
    NodeId(boot_id())
}
