//! A plan on flash: `plans/ID/` with `plan.json` (what was asked, by whom; replaced atomically),
//! `journal` (see `journal`), `left.json` if temporary files stay on the PFS (see `temps`) and, once it has ended, `final.json` (its last status).
//!
//! A plan without `final.json` is unfinished and goes on when a server starts.

use super::temps::LeftTemp;
use forebay_proto::control::{PlanStatus, StageSpec};
use forebay_proto::net::ledger::Token;
use forebay_proto::net::staging::ShareId;
use forebay_proto::{Caller, PlanId, Result};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Version of the files of a plan.
const FORMAT: u32 = 1;
/// Start of the names of directories of shares.
const SHARE_PREFIX: &str = "share-";

/// What `plan.json` holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PlanFile {
    format: u32,
    /// The plan.
    pub plan: PlanId,
    /// What was asked.
    pub spec: StageSpec,
    /// By whom.
    pub who: Caller,
    /// Random part of the plan's temporary names.
    pub token: u32,
    /// Seconds since 1970 when it was asked.
    started_s: u64,
    /// Boot of the node in which it was asked.
    boot_id: String,
    /// Names the request that started it: the same one sent again starts no other plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Token>,
    /// It was read from flash: an earlier server began it.
    #[serde(skip)]
    pub is_resumed: bool,
}

impl PlanFile {
    /// True if the node has booted since it was asked: what was not fsynced may be lost.
    pub fn is_of_another_boot(&self) -> bool {
        self.boot_id != forebay_net::node::boot_id()
    }

    /// Version of the tree that a commit publishes: the time it was asked and the token.
    pub fn version(&self) -> String {
        format!("{:08x}{:08x}", self.started_s as u32, self.token)
    }
}

/// The directory of one plan.
#[derive(Clone, Debug)]
pub(super) struct PlanDir {
    path: PathBuf,
}

impl PlanFile {
    /// What was asked now.
    pub fn new(plan: PlanId, token: u32, spec: &StageSpec, who: &Caller) -> PlanFile {
        let (spec, who) = (spec.clone(), who.clone());
        let (started_s, boot_id) = (now_s(), forebay_net::node::boot_id());
        let (request, is_resumed) = (None, false);
        PlanFile { format: FORMAT, plan, spec, who, token, started_s, boot_id, request, is_resumed }
    }
}

impl PlanDir {
    /// That of a share in another server's plan.
    pub fn of_share(plans: &Path, share: ShareId) -> PlanDir {
        PlanDir { path: plans.join(format!("{SHARE_PREFIX}{share}")) }
    }

    /// All shares on record.
    pub fn shares(plans: &Path) -> Vec<(ShareId, PlanDir)> {
        let entries = std::fs::read_dir(plans).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name());
        names
            .filter_map(|name| Some((share_id(name.to_str()?)?, plans.join(&name))))
            .map(|(id, path)| (id, PlanDir { path }))
            .collect()
    }

    /// Makes the record, or replaces what was asked; durable when it returns.
    pub fn make(&self, file: &PlanFile) -> Result<()> {
        match std::fs::create_dir(&self.path) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(e.into()),
            _ => {}
        }
        self.write(file)?;
        if let Some(plans) = self.path.parent() {
            File::open(plans)?.sync_all()?;
        }
        Ok(())
    }

    /// That of `plan`.
    pub fn of(plans: &Path, plan: PlanId) -> PlanDir {
        PlanDir { path: plans.join(plan.to_string()) }
    }

    /// Ids of all plans in a directory, in order.
    pub fn all(plans: &Path) -> Result<Vec<PlanId>> {
        let mut ids = Vec::new();
        for entry in std::fs::read_dir(plans)? {
            let name = entry?.file_name();
            if let Some(id) = name.to_str().and_then(|name| name.parse().ok()) {
                ids.push(PlanId(id));
            }
        }
        ids.sort_unstable();
        Ok(ids)
    }

    /// Makes a new plan, durable when it returns.
    pub fn create(
        plans: &Path,
        plan: PlanId,
        spec: &StageSpec,
        who: &Caller,
        request: Option<Token>,
    ) -> Result<PlanFile> {
        let dir = PlanDir::of(plans, plan);
        std::fs::create_dir(&dir.path)?;
        let file = PlanFile { request, ..PlanFile::new(plan, random()?, spec, who) };
        dir.write(&file)?;
        File::open(plans)?.sync_all()?;
        Ok(file)
    }

    /// Replaces `plan.json`.
    pub fn write(&self, file: &PlanFile) -> Result<()> {
        self.replace("plan.json", &serde_json::to_vec_pretty(file).map_err(std::io::Error::from)?)
    }

    /// Reads `plan.json`; `None` if the plan was killed before it was whole, or is of another
    /// format (which is said in the log).
    pub fn read(&self) -> Result<Option<PlanFile>> {
        let Some(text) = self.text("plan.json")? else { return Ok(None) };
        match serde_json::from_slice::<PlanFile>(&text) {
            Ok(file) if file.format == FORMAT => Ok(Some(PlanFile { is_resumed: true, ..file })),
            Ok(file) => {
                tracing::warn!(path = %self.path.display(), format = file.format,
                    "plan of another format version is left alone");
                Ok(None)
            }
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "plan cannot be read");
                Ok(None)
            }
        }
    }

    /// Writes `final.json`: from now on the plan is over.
    pub fn finish(&self, status: &PlanStatus) -> Result<()> {
        self.replace("final.json", &serde_json::to_vec(status).map_err(std::io::Error::from)?)
    }

    /// Reads `final.json`.
    pub fn finished(&self) -> Result<Option<PlanStatus>> {
        let text = self.text("final.json")?;
        Ok(text.and_then(|text| serde_json::from_slice(&text).ok()))
    }

    /// Writes `left.json`: temporary files that stay on the PFS.
    pub fn write_left(&self, left: &[LeftTemp]) -> Result<()> {
        self.replace("left.json", &serde_json::to_vec(left).map_err(std::io::Error::from)?)
    }

    /// Reads `left.json`; what cannot be read is nothing.
    pub fn left(&self) -> Vec<LeftTemp> {
        let text = self.text("left.json").ok().flatten().unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Path of the journal.
    pub fn journal(&self) -> PathBuf {
        self.path.join("journal")
    }

    /// Removes the plan's record.
    pub fn remove(&self) -> Result<()> {
        Ok(std::fs::remove_dir_all(&self.path)?)
    }

    fn text(&self, name: &str) -> Result<Option<Vec<u8>>> {
        match std::fs::read(self.path.join(name)) {
            Ok(text) => Ok(Some(text)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn replace(&self, name: &str, text: &[u8]) -> Result<()> {
        let fresh = self.path.join(format!("{name}.new"));
        let mut file = File::create(&fresh)?;
        file.write_all(text)?;
        file.sync_all()?;
        std::fs::rename(&fresh, self.path.join(name))?;
        File::open(&self.path)?.sync_all()?;
        Ok(())
    }
}

fn now_s() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

fn share_id(name: &str) -> Option<ShareId> {
    let (plan, token) = name.strip_prefix(SHARE_PREFIX)?.split_once('-')?;
    let token = u32::from_str_radix(token, 16).ok()?;
    Some(ShareId { plan: plan.parse().ok()?, token })
}

fn random() -> Result<u32> {
    Ok(u32::from_le_bytes(forebay_net::random::bytes()?))
}
