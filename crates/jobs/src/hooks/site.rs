//! The site's configuration file: `$FOREBAY_CONF`, else `/etc/forebay/forebay.conf`. TOML; a key that is not known
//! is an error, so that a misspelled one is not passed over. Read by the hooks, the agents, `forebay validate`, and by any
//! command that needs what it was not told: the flash directory, a server, the roots of the PFS.

use super::refusal::Refusal;
use forebay_proto::control::ControlError;
use forebay_proto::net::node::SessionName;
use forebay_proto::size::{SizeError, parse_bytes};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where it is, unless `$FOREBAY_CONF` says otherwise.
pub const SITE_PATH: &str = "/etc/forebay/forebay.conf";
/// Most bytes of it.
const MAX_SITE_BYTES: u64 = 1 << 20;
/// What stands for a node's name in the address of its agent.
pub const NODE_MARK: &str = "{node}";
/// Name of the mount point of a job's own buffer, in the job's directory.
pub(super) const JOB_MOUNT: &str = "job";

/// A site.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Site {
    /// Pools by the names that job scripts use.
    #[serde(default, rename = "pool")]
    pub pools: BTreeMap<String, PoolSite>,
    /// The pool of jobs that name none; by default the only one.
    pub default_pool: Option<String>,
    /// Directory on fast local storage of commands that are given none.
    pub flash: Option<PathBuf>,
    /// Directories of the PFS: stage lines and caches name paths below one of them. None: any path.
    #[serde(default)]
    pub pfs_roots: Vec<PathBuf>,
    /// Where the hooks keep their records, on the host of slurmctld.
    #[serde(default = "default_state_dir")]
    pub state_dir: PathBuf,
    /// File with the servers' key for who runs the hooks; by default as for `forebay buffer create`.
    pub secret_file: Option<PathBuf>,
    /// How long a server that does not answer is waited for, in seconds.
    #[serde(default = "default_patience_s")]
    pub patience_s: u64,
    /// The nodes' agents.
    #[serde(default)]
    pub agent: AgentSite,
}

/// A pool of servers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolSite {
    /// Any server of the pool: HOST:PORT or unix:/PATH.
    pub server: String,
    /// Servers that a buffer is spread over; 0 = all.
    #[serde(default)]
    pub servers: u16,
}

/// The agents of all nodes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentSite {
    /// Address of a node's agent, with [`NODE_MARK`] for the node's name.
    pub address: String,
    /// Where agents mount the buffers of jobs: the same path on all nodes.
    pub mount_root: PathBuf,
    /// Longest time for mounting on all nodes of a job, in seconds.
    pub mount_limit_s: u64,
    /// The same for unmounting: a node that does not answer by then is left.
    pub umount_limit_s: u64,
    /// Directory on each node's own flash for the swap space of jobs; none: the site offers no swap.
    pub swap_dir: Option<PathBuf>,
    /// Most swap space of all jobs of a node; none: what the file system has.
    pub swap_capacity: Option<Size>,
}

/// A size with its unit, such as `64GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Size {
    /// In bytes.
    pub bytes: u64,
}

impl TryFrom<String> for Size {
    type Error = SizeError;

    fn try_from(text: String) -> Result<Size, SizeError> {
        parse_bytes(&text).map(|bytes| Size { bytes })
    }
}

fn default_state_dir() -> PathBuf {
    PathBuf::from("/var/lib/forebay")
}

fn default_patience_s() -> u64 {
    60
}

/// The name of the mount point of a persistent buffer, in the directory of a job that uses it.
pub(super) fn persistent_mount(name: &str) -> String {
    format!("persistent-{name}")
}

impl Default for AgentSite {
    fn default() -> AgentSite {
        AgentSite {
            address: format!("{NODE_MARK}:4243"),
            mount_root: PathBuf::from("/run/forebay/jobs"),
            mount_limit_s: 60,
            umount_limit_s: 20,
            swap_dir: None,
            swap_capacity: None,
        }
    }
}

impl AgentSite {
    /// Longest time for mounting.
    pub fn mount_limit(&self) -> Duration {
        Duration::from_secs(self.mount_limit_s)
    }

    /// Longest time for unmounting.
    pub fn umount_limit(&self) -> Duration {
        Duration::from_secs(self.umount_limit_s)
    }

    /// The address of a node's agent.
    pub fn of_node(&self, node: &str) -> String {
        self.address.replace(NODE_MARK, node)
    }

    /// Where a buffer of a job is mounted, on every node, by the name of its mount point.
    pub(super) fn mount_point(&self, token: &SessionName, name: &str) -> PathBuf {
        self.mount_root.join(token.as_str()).join(name)
    }

    /// Where a stage line finds its buffer: the job's own, or a persistent one of this name.
    pub(super) fn mount_of(&self, token: &SessionName, persistent: Option<&str>) -> PathBuf {
        match persistent {
            Some(name) => self.mount_point(token, &persistent_mount(name)),
            None => self.mount_point(token, JOB_MOUNT),
        }
    }
}

impl Site {
    /// Where the site's file is.
    pub fn path() -> PathBuf {
        let set = std::env::var_os("FOREBAY_CONF").filter(|path| !path.is_empty());
        set.map_or_else(|| PathBuf::from(SITE_PATH), PathBuf::from)
    }

    /// Reads the site's file; `None` if there is none.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn load(path: &Path) -> Result<Option<Site>, ControlError> {
        use std::io::Read;
        let what = "read the site's configuration";
        let mut text = String::new();
        let read = std::fs::File::open(path)
            .and_then(|file| file.take(MAX_SITE_BYTES).read_to_string(&mut text));
        match read {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(ControlError::io(what, Some(path), &error)),
            Ok(_) => {}
        }
        let site: Site = toml::from_str(&text).map_err(|error| {
            let why = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
            ControlError::new(what, Some(path), &why).errno(libc::EINVAL)
        })?;
        match site.wrong() {
            Some(why) => Err(ControlError::new(what, Some(path), &why).errno(libc::EINVAL)),
            None => Ok(Some(site)),
        }
    }

    fn wrong(&self) -> Option<String> {
        let named = self.default_pool.as_ref();
        if let Some(name) = named.filter(|name| !self.pools.contains_key(*name)) {
            return Some(format!("default_pool names {name:?}, and there is no [pool.{name}]"));
        }
        if self.pools.len() > 1 && named.is_none() {
            return Some("there are several pools: default_pool has to name one".into());
        }
        if !self.agent.address.contains(NODE_MARK) {
            return Some(format!("agent.address has no {NODE_MARK}"));
        }
        if !self.agent.mount_root.is_absolute() || !self.state_dir.is_absolute() {
            return Some("state_dir and agent.mount_root must be absolute".into());
        }
        if self.flash.as_ref().is_some_and(|dir| !dir.is_absolute()) {
            return Some("flash must be absolute".into());
        }
        if self.agent.swap_dir.as_ref().is_some_and(|dir| !dir.is_absolute()) {
            return Some("agent.swap_dir must be absolute".into());
        }
        None
    }

    /// A pool by its name.
    ///
    /// # Errors
    /// If there is none.
    pub fn pool(&self, name: &str) -> Result<&PoolSite, Refusal> {
        self.pools.get(name).ok_or_else(|| {
            let known = self.pool_names().join(", ");
            let known = if known.is_empty() { "none".into() } else { known };
            Refusal::new(&format!(
                "there is no pool {name:?} (expected one of this site's: {known})"
            ))
        })
    }

    /// The name of the pool of jobs that name none.
    pub fn default_pool(&self) -> Option<&str> {
        let only = || self.pools.keys().next();
        self.default_pool.as_ref().or_else(only).map(String::as_str)
    }

    /// Names of all pools, the default one first: Slurm takes the first for its own default.
    pub fn pool_names(&self) -> Vec<&str> {
        let first = self.default_pool();
        let others = self.pools.keys().map(String::as_str).filter(|name| Some(*name) != first);
        first.into_iter().chain(others).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Site, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("forebay.conf");
        std::fs::write(&path, text).unwrap();
        match Site::load(&path) {
            Ok(site) => Ok(site.expect("it is there")),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn a_site_is_read_and_what_is_wrong_is_said() {
        let site = load("default_pool = 'fast'\n[pool.big]\nserver = 'a:1'\n[pool.fast]\nserver = 'b:1'\nservers = 2\n")
            .unwrap();
        assert_eq!(site.pool_names(), ["fast", "big"]);
        assert_eq!(site.agent.of_node("n7"), "n7:4243");
        assert_eq!(load("[pool.p]\nserver = 'a:1'").unwrap().default_pool(), Some("p"));
        let site = load("[agent]\nswap_dir = '/nvme/swap'\nswap_capacity = '64GiB'").unwrap();
        assert_eq!(site.agent.swap_capacity, Some(Size { bytes: 64 << 30 }));
        for (text, why) in [
            ("[pool.p]\nserver = 'a:1'\nspeed = 3", "unknown field"),
            ("default_pool = 'q'", "no [pool.q]"),
            ("[pool.a]\nserver='a:1'\n[pool.b]\nserver='b:1'", "default_pool has to name one"),
            ("[agent]\naddress = 'here:1'", "has no {node}"),
            ("state_dir = 'x'", "absolute"),
            ("flash = 'x'", "flash must be absolute"),
            ("[agent]\nswap_dir = 'x'", "agent.swap_dir must be absolute"),
            ("[agent]\nswap_capacity = '64G'", "64G"),
            ("= 3", "read the site's configuration"),
        ] {
            let said = load(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
        assert!(Site::load(Path::new("/no/such/file")).unwrap().is_none());
    }
}
