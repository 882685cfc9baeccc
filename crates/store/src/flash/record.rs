//! `store.json`: what a store is. Written whole or not at all (a temporary file, fsync, rename,
//! fsync of the directory); a record of another format is refused by name.

use super::error::{Flash, Result, fail};
use super::key::StoreKey;
use super::place;
use forebay_failpoint::step;
use forebay_proto::control::{ControlError, StoreKind};
use forebay_proto::version::FLASH_FORMAT;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// File name of the record.
pub const RECORD_NAME: &str = "store.json";
/// Longest record that is read, in bytes: one has some 500.
const RECORD_MAX_BYTES: u64 = 64 << 10;
/// Name it has until it is complete.
pub const RECORD_TMP_NAME: &str = "store.json.tmp";

/// Where a store is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreState {
    /// Being made; never served yet, so it may be removed.
    Creating,
    /// In use, or kept.
    Ready,
    /// Being removed.
    Destroying,
}

/// Room for a shard's log and namespace database, outside the buffer's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetaBudget {
    /// Most bytes of the operation log.
    pub log_bytes: u64,
    /// Size of the database's map.
    pub map_bytes: u64,
    /// True if both are to be allocated at once, so that they never meet ENOSPC.
    pub preallocate: bool,
}

/// Metadata room of the smallest buffer.
const META_BASE_BYTES: u64 = 64 << 20;
/// One byte of metadata room for so many bytes of capacity: about 1 KiB of metadata for each
/// 32 KiB of data.
const META_SHARE: u64 = 32;
/// Largest log: replaying it bounds the time of a restart.
const LOG_MAX_BYTES: u64 = 256 << 20;

impl MetaBudget {
    /// The budget of a buffer of this capacity.
    pub fn for_capacity(capacity_bytes: u64, preallocate: bool) -> MetaBudget {
        let page = 4096;
        let total = META_BASE_BYTES + capacity_bytes / META_SHARE;
        let log_bytes = (total / 4).min(LOG_MAX_BYTES) / page * page;
        MetaBudget { log_bytes, map_bytes: (total - log_bytes) / page * page, preallocate }
    }
    /// Both together, in bytes.
    pub fn total_bytes(self) -> u64 {
        self.log_bytes + self.map_bytes
    }
}

/// What `store.json` holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreRecord {
    /// [`FLASH_FORMAT`] of the program that made it.
    pub format: u32,
    /// Identity, 32 hex digits.
    pub uuid: String,
    /// How capacity is held.
    pub kind: StoreKind,
    /// Capacity for file data, in bytes.
    pub capacity_bytes: u64,
    /// Capacity that it is being given (see grow.rs): more than `capacity_bytes`.
    pub growing_to_bytes: Option<u64>,
    /// Room for metadata.
    pub meta: MetaBudget,
    /// Whose it is.
    pub key: StoreKey,
    /// Seconds since 1970 when it was made.
    pub created_s: u64,
    /// Who made it.
    pub uid: u32,
    /// Boot of the node in which it was made.
    pub boot_id: String,
    /// True if other users may reach the control socket (a mount with allow_other).
    pub shared: bool,
    /// Why it is a plain directory, if it is one.
    pub served_reason: Option<String>,
    /// Where it is in its life.
    pub state: StoreState,
}

/// The bytes of a record, which anybody may have put there: neither a link nor a pipe is followed, no
/// more is read than a record can have, and it is by who owns the directory. `None` if there is none.
fn read(dir: &Path, path: &Path) -> Result<Option<Vec<u8>>> {
    let what = "read the store's record";
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).at(what, path),
    };
    let meta = file.metadata().at(what, path)?;
    let owner = fs::symlink_metadata(dir).at(what, dir)?.uid();
    let refuse = |why: &str| {
        Err(fail(what, path, why).errno(libc::EACCES).hint("remove the directory, if it is yours"))
    };
    if !meta.is_file() {
        return refuse("not a regular file: no store has that");
    }
    if meta.uid() != owner {
        return refuse(&format!("it belongs to user {}, its directory to {owner}", meta.uid()));
    }
    if meta.len() > RECORD_MAX_BYTES {
        return refuse("it is too long for a record");
    }
    let mut text = Vec::new();
    file.take(RECORD_MAX_BYTES).read_to_end(&mut text).at(what, path)?;
    Ok(Some(text))
}

/// Error if the record says that its store is another user's.
pub fn must_be_own(dir: &Path, record: &StoreRecord) -> Result<()> {
    match record.uid == rustix::process::geteuid().as_raw() {
        true => Ok(()),
        false => Err(place::belongs_to(&dir.join(RECORD_NAME), record.uid)),
    }
}

/// Reads the record; `None` if there is none. It may be another user's: see [`must_be_own`].
pub fn load(dir: &Path) -> Result<Option<StoreRecord>> {
    let path = dir.join(RECORD_NAME);
    let Some(text) = read(dir, &path)? else { return Ok(None) };
    let broken = |why: &str| {
        fail("read the store's record", &path, why).hint(
            "the store cannot be used; if its data is not needed, unmount what is mounted \
                 below its directory and remove it",
        )
    };
    let value: serde_json::Value = serde_json::from_slice(&text)
        .map_err(|error| broken(&format!("not valid JSON: {error}")))?;
    match value.get("format").and_then(serde_json::Value::as_u64) {
        Some(format) if format == u64::from(FLASH_FORMAT) => (),
        Some(format) => {
            let why =
                format!("it has flash format {format}, this program reads format {FLASH_FORMAT}");
            return Err(fail("use the store", dir, &why)
                .errno(libc::EPROTONOSUPPORT)
                .hint("use the version of forebay that made it"));
        }
        None => return Err(broken("it names no format")),
    }
    serde_json::from_value(value).map(Some).map_err(|error| broken(&error.to_string()))
}

/// Writes the record atomically and durably.
pub fn save(dir: &Path, record: &StoreRecord) -> Result<()> {
    let what = "write the store's record";
    let text =
        serde_json::to_vec_pretty(record).map_err(|error| fail(what, dir, &error.to_string()))?;
    replace_file(dir, RECORD_NAME, RECORD_TMP_NAME, &text, what)
}

/// Replaces `dir/name` by `text`, atomically and durably; only its owner may read it.
pub fn replace_file(dir: &Path, name: &str, tmp_name: &str, text: &[u8], what: &str) -> Result<()> {
    let tmp = dir.join(tmp_name);
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&tmp)
        .at(what, &tmp)?;
    file.write_all(text).and_then(|()| file.sync_all()).at(what, &tmp)?;
    step("a record is written beside");
    let path = dir.join(name);
    fs::rename(&tmp, &path).at(what, &path)?;
    File::open(dir).and_then(|dir| dir.sync_all()).at(what, dir)
}

/// Marks a store as one that is being destroyed. Full flash must not stop what gives space back:
/// where there is no room for a new record, the old one is overwritten in its own block.
pub fn save_destroying(dir: &Path, record: &StoreRecord) -> Result<()> {
    match save(dir, record) {
        Err(error) if matches!(error.errno, Some(libc::ENOSPC | libc::EDQUOT)) => {
            overwrite(dir, record)
        }
        saved => saved,
    }
}

/// Writes the record over the old one. Not atomic: only for a store whose contents go anyway.
fn overwrite(dir: &Path, record: &StoreRecord) -> Result<()> {
    let path = dir.join(RECORD_NAME);
    let what = "write the store's record";
    let mut text =
        serde_json::to_vec(record).map_err(|error| fail(what, &path, &error.to_string()))?;
    let mut file = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&path)
        .at(what, &path)?;
    let old_bytes = file.metadata().at(what, &path)?.len();
    // Blanks after the value are JSON too: the length stays, so no block is asked for.
    text.resize(text.len().max(usize::try_from(old_bytes).unwrap_or(0)), b' ');
    file.write_all(&text).and_then(|()| file.sync_all()).at(what, &path)?;
    match fs::remove_file(dir.join(RECORD_TMP_NAME)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error).at(what, &path),
        _ => Ok(()),
    }
}

/// 32 random hex digits.
pub fn new_uuid() -> Result<String> {
    let bytes = random_bytes::<16>()?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Random bytes, fit for secrets.
pub fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    forebay_net::random::bytes().map_err(|error| ControlError::io("get random bytes", None, &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::control::PathBytes;

    fn sample() -> StoreRecord {
        StoreRecord {
            format: FLASH_FORMAT,
            uuid: new_uuid().unwrap(),
            kind: StoreKind::Directory,
            capacity_bytes: 1 << 30,
            meta: MetaBudget::for_capacity(1 << 30, true),
            growing_to_bytes: None,
            key: StoreKey::Mount { mount_point: PathBytes::new(b"/m\xff\n") },
            created_s: 7,
            uid: 0,
            boot_id: forebay_net::node::boot_id(),
            shared: false,
            served_reason: None,
            state: StoreState::Ready,
        }
    }

    #[test]
    fn a_record_comes_back_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load(dir.path()).unwrap(), None);
        save(dir.path(), &sample()).unwrap();
        let mut other = sample();
        other.state = StoreState::Destroying;
        other.key = StoreKey::Buffer { name: "a".parse().unwrap(), uuid: new_uuid().unwrap() };
        save(dir.path(), &other).unwrap();
        assert_eq!(load(dir.path()).unwrap(), Some(other));
        assert!(!dir.path().join(RECORD_TMP_NAME).exists());
    }

    #[test]
    fn another_format_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let mut record = sample();
        record.format = 99;
        save(dir.path(), &record).unwrap();
        let message = load(dir.path()).unwrap_err().to_string();
        assert!(message.contains("flash format 99"), "{message}");
        assert!(message.contains(&format!("reads format {FLASH_FORMAT}")), "{message}");
    }

    #[test]
    fn a_torn_record_is_an_error_not_an_absent_store() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(RECORD_NAME), b"{\"format\": 1, \"uu").unwrap();
        assert!(load(dir.path()).is_err());
    }

    #[test]
    fn budgets_are_whole_pages_and_bounded() {
        for capacity in [1 << 20, 300 << 20, 4 << 30, 1 << 40] {
            let budget = MetaBudget::for_capacity(capacity, true);
            assert_eq!(budget.log_bytes % 4096 + budget.map_bytes % 4096, 0);
            assert!(budget.log_bytes <= LOG_MAX_BYTES && budget.map_bytes >= budget.log_bytes);
        }
    }
}
