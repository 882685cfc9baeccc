//! Files' data on the servers of a [`World`] whose power can be cut: what each server has synced of its
//! objects is remembered, and who loses its power finds that, and any part of the rest, block by block.
//! The calls by which a client writes, syncs and reads files. Called by the tests of power cuts.

use super::{World, as_server};
use forebay_proto::api::ops::*;
use forebay_proto::layout::Layout;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Errno, Ino, ObjectId, Result};
use forebay_store::metadata::testing::log::Fate;
use forebay_store::objects::Objects;
use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::StdRng;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is kept or lost as one.
pub const BLOCK_BYTES: usize = 4096;

type Contents = BTreeMap<PathBuf, Vec<u8>>;

/// The objects of a server, and what of them is on flash.
pub(super) struct OnFlash {
    dir: PathBuf,
    synced: Mutex<Contents>,
}

/// All objects below a directory. One that goes meanwhile is not there.
fn read_all(dir: &Path) -> Contents {
    let mut all = Contents::new();
    for fan in fs::read_dir(dir).unwrap() {
        let fan = fan.unwrap();
        for object in fs::read_dir(fan.path()).unwrap() {
            let path = object.unwrap().path();
            if let Ok(bytes) = fs::read(&path) {
                all.insert(path.strip_prefix(dir).unwrap().to_path_buf(), bytes);
            }
        }
    }
    all
}

/// What a cut leaves of an object that was `old` when it was last on flash and is `new` now.
fn mixed(old: &[u8], new: &[u8], rng: &mut StdRng) -> Vec<u8> {
    let size = if rng.random() { old.len() } else { new.len() };
    let mut bytes = vec![0; size];
    for (n, block) in bytes.chunks_mut(BLOCK_BYTES).enumerate() {
        let from = if rng.random() { old } else { new };
        let at = (n * BLOCK_BYTES).min(from.len());
        let end = (at + block.len()).min(from.len());
        block[..end - at].copy_from_slice(&from[at..end]);
    }
    bytes
}

impl OnFlash {
    fn synced(&self, object: Option<&[u8]>) {
        let mut synced = self.synced.lock();
        match object {
            None => *synced = read_all(&self.dir),
            Some(name) => {
                let name = PathBuf::from(OsStr::from_bytes(name));
                if let Ok(bytes) = fs::read(self.dir.join(&name)) {
                    synced.insert(name, bytes);
                }
            }
        }
    }

    /// Makes what the next start finds.
    pub(super) fn cut(&self, fate: Fate, rng: &mut StdRng, to: &Path) {
        let old = self.synced.lock().clone();
        let new = read_all(&self.dir);
        let names: BTreeSet<&PathBuf> = old.keys().chain(new.keys()).collect();
        for name in names {
            let (old, new) = (old.get(name), new.get(name));
            let left = match fate {
                Fate::AllKept => new.cloned(),
                Fate::AllLost => old.cloned(),
                Fate::Random => match (old, new) {
                    (Some(old), Some(new)) => Some(mixed(old, new, rng)),
                    // Made or removed since: that is done, or not.
                    (one, other) if rng.random() => {
                        let bytes = one.or(other).unwrap();
                        Some(mixed(if one.is_some() { bytes } else { &[] }, bytes, rng))
                    }
                    _ => None,
                },
            };
            if let Some(bytes) = left {
                let path = to.join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, bytes).unwrap();
            }
        }
        fs::create_dir_all(to).unwrap();
    }
}

impl World {
    /// As [`World::with_power`], with what files hold, also striped ones.
    pub fn with_power_and_data() -> World {
        World::with(Some(Arc::default()), true)
    }

    pub(super) fn open_data(&self, shard: u16, dir: &Path) -> Objects {
        let mut power = self.power.as_ref().unwrap().lock();
        let dir = power.left_data.remove(&shard).unwrap_or_else(|| dir.join("data"));
        let objects = Objects::open(&dir, false, true, None).unwrap();
        let synced = Mutex::new(read_all(&dir));
        let on_flash = Arc::new(OnFlash { dir, synced });
        power.data.insert(shard, on_flash.clone());
        objects.set_on_sync(Box::new(move |object| on_flash.synced(object)));
        objects
    }

    pub fn layout(&self, ino: Ino) -> Layout {
        self.namespace(ino.shard().0).attrs().layout(ino).unwrap()
    }

    /// Opens a file for writing: a whole one has its object then.
    pub fn open_file(&self, ino: Ino) {
        let open_flags = libc::O_RDWR as u32;
        let call = Call::Open { ino, open_flags, kill_suid: false, want_local: false };
        let answer = self.call(ino.shard().0, call);
        assert!(!matches!(answer, Answer::Failed(_)), "{ino}: {answer:?}");
    }

    /// Writes as a mount does: a striped file straight at the servers of its objects. Of `once`, each
    /// call is made once; false if one had no answer.
    pub fn write(&self, ino: Ino, layout: &Layout, offset: u64, data: &[u8], once: bool) -> bool {
        let call = |shard, call: Call<'_>, payload: &[u8]| match once {
            true => matches!(self.call_once_with(shard, call, payload), Some(Answer::Count(_))),
            false => {
                let answer = self.call_with(shard, call, payload);
                assert!(matches!(answer, Answer::Count(_)), "{ino}: {answer:?}");
                true
            }
        };
        if !layout.is_striped() {
            let write = Call::Write { ino, offset, append: false, kill_suid: false, sync: false };
            return call(ino.shard().0, write, data);
        }
        layout.parts(offset, data.len() as u64).into_iter().all(|part| {
            let runs = layout.runs(part);
            let bytes: Vec<u8> = runs
                .flat_map(|run| {
                    let from = (run.file_offset - offset) as usize;
                    data[from..from + run.bytes as usize].to_vec()
                })
                .collect();
            let object = ObjectId { ino, stripe: part.stripe };
            let write = Call::WriteObject { object, offset: part.offset, sync: false };
            call(layout.shard_of(part.stripe, super::SHARDS).0, write, &bytes)
        })
    }

    /// Appends; `None` without an answer.
    pub fn append(&self, ino: Ino, data: &[u8], once: bool) -> Option<Answer> {
        let call = Call::Write { ino, offset: 0, append: true, kill_suid: false, sync: false };
        match once {
            true => self.call_once_with(ino.shard().0, call, data),
            false => Some(self.call_with(ino.shard().0, call, data)),
        }
    }

    /// fsync as a mount does it: all objects, then the inode's server.
    pub fn fsync(&self, ino: Ino) -> Result<()> {
        let layout = self.layout(ino);
        let stripes = if layout.is_striped() { layout.stripe_count } else { 0 };
        for stripe in 0..u32::from(stripes) {
            let call = Call::SyncObject { object: ObjectId { ino, stripe }, data_only: false };
            self.done(layout.shard_of(stripe, super::SHARDS).0, call)?;
        }
        self.done(ino.shard().0, Call::Fsync { ino, data_only: false })
    }

    /// All that a file holds.
    pub fn contents(&self, ino: Ino) -> Result<Vec<u8>> {
        let namespace = self.namespace(ino.shard().0);
        let read = as_server(ino.shard().0, || {
            let size = namespace.getattr(ino)?.size_bytes as usize;
            let mut bytes = vec![0xee; size];
            let have = namespace.read(ino, 0, &mut bytes)?;
            if have == size { Ok(bytes) } else { Err(Errno::EIO) }
        });
        read.unwrap()
    }

    /// New files of this directory are cut over all servers, a block at a time.
    pub fn stripe(&self, dir: Ino) {
        let size = BLOCK_BYTES.to_string();
        self.set_layout(dir, &[("stripe_size_bytes", size.as_str()), ("stripe_count", "all")]);
    }

    /// New files of this directory get such a layout.
    pub fn set_layout(&self, dir: Ino, values: &[(&str, &str)]) {
        for (name, value) in values {
            let name = format!("user.forebay.{name}");
            let call =
                Call::Setxattr { ino: dir, name: name.as_bytes(), flags: 0, kill_sgid: false };
            let answer = self.call_with(dir.shard().0, call, value.as_bytes());
            assert!(matches!(answer, Answer::Done), "{answer:?}");
        }
    }

    /// A call with a payload; of `once` made once, `None` without an answer.
    pub fn call_with_data(
        &self,
        shard: u16,
        call: Call<'_>,
        payload: &[u8],
        once: bool,
    ) -> Option<Answer> {
        match once {
            true => self.call_once_with(shard, call, payload),
            false => Some(self.call_with(shard, call, payload)),
        }
    }

    /// Does something as a server; `None` if that went meanwhile.
    pub fn as_server<T>(&self, shard: u16, work: impl FnOnce() -> T) -> Option<T> {
        as_server(shard, work)
    }

    /// A block of a file.
    pub fn block(&self, ino: Ino, block: u64) -> Result<Vec<u8>> {
        let namespace = self.namespace(ino.shard().0);
        let mut bytes = vec![0xee; BLOCK_BYTES];
        let read = as_server(ino.shard().0, || {
            namespace.read(ino, block * BLOCK_BYTES as u64, &mut bytes)
        });
        bytes.truncate(read.unwrap()?);
        Ok(bytes)
    }
}
