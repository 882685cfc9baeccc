//! What the random test does: steps, what they do to a cache, and what they do to the model.
//!
//! A step is chosen by the random numbers alone, so that who replays a journal finds the same ones.
//! What is not known beforehand (whether a file was dirty when somebody else changed it) is told as the
//! step's outcome.

use super::super::*;
use forebay_proto::cache::Keep;
use rand::Rng;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All names that files can have. `d` is a directory with a policy of its own.
pub const NAMES: [&str; 8] = ["a", "b", "c", "e", "f", "d/a", "d/b", "d/c"];
pub const FILE_MAX: u64 = 2 * MIB;
const POLICIES: [&str; 7] =
    ["close", "idle:1", "end", "never", "deadline=1s", "watermark=20:5", "close,watermark=9:3"];
/// What the PFS answers when it fails.
const FOUL: [i32; 3] = [libc::EIO, libc::ENOSPC, libc::EDQUOT];

/// What somebody else does on the PFS.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Theirs {
    Write,
    Replace,
    Cut,
    Remove,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Op {
    Write { name: usize, offset: u64, length: usize, seed: u64, by_kernel: bool },
    Anew { name: usize, length: usize, seed: u64, by_kernel: bool },
    Read { name: usize },
    Truncate { name: usize, size: u64 },
    Unlink { name: usize },
    Rename { name: usize, to: usize },
    Link { name: usize, to: usize },
    Sync { name: usize },
    Flush,
    DrainAll,
    Foreign { name: usize, how: Theirs, length: usize, seed: u64, keep: Keep },
    Invalidate { name: usize },
    Pin { name: usize, on: bool },
    Warm { name: usize },
    SetPolicy { policy: usize },
    Weather { errno: i32 },
}

/// What came of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    Done,
    /// Of a foreign change: there was no file.
    Nothing,
    /// Of a foreign change: theirs counts.
    Theirs,
    /// It was a conflict, and ours counts.
    Ours,
}

/// A random step.
pub fn choose(rng: &mut StdRng, foreign: bool) -> Op {
    let name = rng.random_range(0..NAMES.len());
    let to = rng.random_range(0..NAMES.len());
    let length = match rng.random_range(0..4) {
        0 => rng.random_range(1..5_000),
        1 => rng.random_range(1..400_000),
        2 => 128 << 10,
        _ => 256 << 10,
    };
    let aligned = rng.random_range(0..8) * (128 << 10);
    let offset = if rng.random() { rng.random_range(0..FILE_MAX / 2) } else { aligned };
    let seed = rng.random();
    let how = [Theirs::Write, Theirs::Replace, Theirs::Cut, Theirs::Remove];
    let how = how[rng.random_range(0..how.len())];
    let keep = [Keep::Ours, Keep::Theirs, Keep::Both][rng.random_range(0..3)];
    let by_kernel = rng.random_bool(0.3);
    let size = rng.random_range(0..FILE_MAX);
    let policy = rng.random_range(0..POLICIES.len());
    let errno = FOUL[rng.random_range(0..FOUL.len())];
    match rng.random_range(0..100) {
        0..32 => Op::Write { name, offset, length, seed, by_kernel },
        32..37 => Op::Anew { name, length, seed, by_kernel },
        37..55 => Op::Read { name },
        55..61 => Op::Truncate { name, size },
        61..64 => Op::Unlink { name },
        64..68 => Op::Rename { name, to },
        68..70 => Op::Link { name, to },
        70..72 => Op::Sync { name },
        72..78 => Op::Flush,
        78..83 => Op::DrainAll,
        83..89 if foreign => Op::Foreign { name, how, length, seed, keep },
        83..90 => Op::Invalidate { name },
        90..92 => Op::Pin { name, on: by_kernel },
        92..94 => Op::Warm { name },
        94..97 => Op::SetPolicy { policy },
        _ => Op::Weather { errno },
    }
}

/// What each file holds.
#[derive(Clone, Default)]
pub struct Model {
    /// Hard links have the same number.
    pub names: BTreeMap<usize, u64>,
    pub files: BTreeMap<u64, Vec<u8>>,
    next: u64,
}

fn write_to(file: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let end = offset as usize + data.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[offset as usize..end].copy_from_slice(data);
}

impl Model {
    pub fn get(&self, name: usize) -> Option<&Vec<u8>> {
        self.files.get(self.names.get(&name)?)
    }

    pub fn links(&self, name: usize) -> usize {
        self.names.get(&name).map_or(0, |id| self.names.values().filter(|n| *n == id).count())
    }

    fn make(&mut self, name: usize) -> &mut Vec<u8> {
        let next = &mut self.next;
        let id = *self.names.entry(name).or_insert_with(|| {
            *next += 1;
            *next
        });
        self.files.entry(id).or_default()
    }

    /// A name that leads to a file of its own.
    pub fn put(&mut self, name: usize, bytes: Vec<u8>) {
        self.names.remove(&name);
        *self.make(name) = bytes;
    }

    /// Files without a name are gone.
    fn sweep(&mut self) {
        let names = &self.names;
        self.files.retain(|id, _| names.values().any(|n| n == id));
    }

    /// What a step did.
    pub fn apply(&mut self, op: &Op, outcome: Outcome) {
        match *op {
            Op::Write { name, offset, length, seed, .. } => {
                write_to(self.make(name), offset, &pattern(seed, length));
            }
            Op::Anew { name, length, seed, .. } => {
                if let Some(id) = self.names.get(&name) {
                    self.files.insert(*id, pattern(seed, length));
                }
            }
            Op::Truncate { name, size } => {
                if let Some(file) = self.names.get(&name).and_then(|id| self.files.get_mut(id)) {
                    file.resize(size as usize, 0);
                }
            }
            Op::Unlink { name } => drop(self.names.remove(&name)),
            Op::Rename { name, to } => {
                // Two names of one file: nothing.
                if let Some(id) = self.names.get(&name).copied()
                    && self.names.get(&to) != Some(&id)
                {
                    self.names.remove(&name);
                    self.names.insert(to, id);
                }
            }
            Op::Link { name, to } => {
                if let Some(id) = self.names.get(&name).copied() {
                    self.names.entry(to).or_insert(id);
                }
            }
            Op::Foreign { name, how, length, seed, .. } if outcome == Outcome::Theirs => {
                self.theirs(name, how, length, seed);
            }
            _ => {}
        }
        self.sweep();
    }

    fn theirs(&mut self, name: usize, how: Theirs, length: usize, seed: u64) {
        let Some(id) = self.names.get(&name).copied() else { return };
        match how {
            Theirs::Write => drop(self.files.insert(id, pattern(seed, length))),
            Theirs::Replace => self.put(name, pattern(seed, length)),
            Theirs::Cut => {
                if let Some(file) = self.files.get_mut(&id) {
                    let half = file.len() / 2;
                    file.truncate(half);
                }
            }
            Theirs::Remove => drop(self.names.remove(&name)),
        }
    }
}

/// A running cache, as the steps see it.
pub struct World<'a> {
    pub rig: &'a Rig,
    pub cache: &'a Running,
}

/// Writes at once, or, half of the time, piece by piece as programs do.
fn write_some(handle: &Handle<'_>, offset: u64, seed: u64, length: usize) -> Result<()> {
    let piece_bytes = if seed.is_multiple_of(2) { PIECE } else { length };
    handle.write_in_pieces(offset, &pattern(seed, length), piece_bytes.max(1))
}

impl World<'_> {
    fn dir_and_name(&self, name: usize) -> (Ino, &'static [u8]) {
        let path = NAMES[name];
        match path.split_once('/') {
            None => (Ino::ROOT, path.as_bytes()),
            Some((dir, name)) => (self.cache.lookup(dir).unwrap(), name.as_bytes()),
        }
    }

    fn open(&self, name: usize, flags: i32, by_kernel: bool) -> Result<Handle<'_>> {
        let (fs, root) = (&self.cache.fs, Caller::root());
        let (dir, last) = self.dir_and_name(name);
        let (ino, opened) = match fs.lookup(&root, dir, last) {
            Ok(entry) => {
                let ino = entry.attr.ino;
                (ino, fs.open(&root, ino, flags as u32, false, by_kernel)?)
            }
            Err(Errno::ENOENT) if flags & libc::O_CREAT != 0 => {
                let (entry, opened) = fs.create(&root, dir, last, MODE, by_kernel)?;
                (entry.attr.ino, opened)
            }
            Err(e) => return Err(e),
        };
        Ok(Handle { running: self.cache, ino, local: opened.local })
    }

    fn weather(&self, errno: i32) {
        self.cache.fs.parts.pfs.foul.store(errno, Ordering::Relaxed);
    }

    fn is_foul(&self) -> bool {
        self.cache.fs.parts.pfs.foul.load(Ordering::Relaxed) != 0
    }

    /// Lets all files go that were pinned; false if none was.
    fn unpin_all(&self) -> bool {
        let mut found = false;
        for name in NAMES {
            let path = format!("/{name}");
            let pinned = self.cache.state_of(&path).is_ok_and(|file| file.pinned);
            found |= pinned;
            if pinned {
                self.cache.fs.pin(&Caller::root(), path.as_bytes(), false).unwrap();
            }
        }
        found
    }

    /// What a PFS that fails refuses is done again when it does not.
    fn again<T>(&self, call: impl Fn() -> Result<T>) -> T {
        match call() {
            Err(_) if self.is_foul() => {
                self.weather(0);
                self.again(call)
            }
            // What is pinned has taken all.
            Err(Errno::ENOSPC) if self.unpin_all() => call().unwrap(),
            done => done
                .unwrap_or_else(|error| panic!("{error}, where flash has {:#?}", self.on_flash())),
        }
    }

    /// What takes the room: of each file its name on flash, what is here, and why it may stay.
    fn on_flash(&self) -> Vec<String> {
        let fs = &self.cache.fs;
        let describe = |(ino, record): (_, crate::record::Record)| {
            let path = String::from_utf8_lossy(record.path.as_bytes()).into_owned();
            let pinned = if record.pinned { "pinned " } else { "" };
            let Some(file) = fs.stack.records.loaded_or_load(ino).ok().flatten() else {
                return format!("{path}: not loaded");
            };
            let state = file.state.lock();
            let (present, state_is) = (state.map.present(), state.record.state);
            format!(
                "{path}: {pinned}{state_is:?}, {present} blocks, {:?}, listed {}, gone {}, whole {}",
                state.opens,
                state.listed,
                state.is_gone(),
                state.record.whole
            )
        };
        let mut told: Vec<String> =
            fs.parts.flash.all().unwrap().into_iter().map(describe).collect();
        told.push(format!("used and capacity {:?}", fs.parts.flash.space()));
        told
    }

    /// Does a step; what `model` says is looked at.
    pub fn run(&self, op: &Op, model: &Model) -> Outcome {
        let (fs, root) = (&self.cache.fs, Caller::root());
        let path_of = |name: usize| format!("/{}", NAMES[name]);
        match *op {
            Op::Write { name, offset, length, seed, by_kernel } => self.again(|| {
                let handle = self.open(name, libc::O_RDWR | libc::O_CREAT, by_kernel)?;
                write_some(&handle, offset, seed, length)
            }),
            Op::Anew { name, length, seed, by_kernel } if model.get(name).is_some() => {
                self.again(|| {
                    let handle = self.open(name, libc::O_RDWR | libc::O_TRUNC, by_kernel)?;
                    write_some(&handle, 0, seed, length)
                });
            }
            Op::Read { name } => self.check(name, model.get(name)),
            Op::Truncate { name, size } if model.get(name).is_some() => {
                let change =
                    forebay_proto::SetAttr { size_bytes: Some(size), ..Default::default() };
                self.again(|| {
                    let ino = self.cache.lookup(NAMES[name])?;
                    fs.setattr(&root, ino, &change)
                });
            }
            Op::Unlink { name } if model.get(name).is_some() => {
                let ino = self.cache.lookup(NAMES[name]).unwrap();
                let (dir, name) = self.dir_and_name(name);
                fs.unlink(&root, dir, name).unwrap();
                // As a kernel does with what has no name.
                fs.forget(ino, u64::MAX);
            }
            Op::Rename { name, to } if name != to && model.get(name).is_some() => {
                let replaced = self.cache.lookup(NAMES[to]);
                let same = replaced == self.cache.lookup(NAMES[name]);
                let (dir, name) = self.dir_and_name(name);
                let (to_dir, to) = self.dir_and_name(to);
                fs.rename(&root, dir, name, to_dir, to, 0).unwrap();
                if let (Ok(ino), false) = (replaced, same) {
                    fs.forget(ino, u64::MAX);
                }
            }
            Op::Link { name, to } if model.get(name).is_some() => {
                let ino = self.cache.lookup(NAMES[name]).unwrap();
                let (dir, last) = self.dir_and_name(to);
                let linked = fs.link(&root, ino, dir, last).map(drop);
                let wanted = if model.get(to).is_some() { Err(Errno::EEXIST) } else { Ok(()) };
                assert_eq!(linked, wanted);
            }
            Op::Sync { name } => {
                if let Ok(handle) = self.open(name, libc::O_RDWR, false) {
                    fs.fsync(handle.ino, false).unwrap();
                }
            }
            Op::Flush => drop(fs.flush(&root, b"/").unwrap()),
            Op::DrainAll => {
                self.weather(0);
                let state = self.cache.flush("/");
                assert!(state.is_durable(), "{state:?}");
                must_be_on_pfs(self.rig, model);
            }
            Op::Foreign { name, how, length, seed, keep } => {
                return self.foreign(name, how, pattern(seed, length), keep, model);
            }
            // Busy where it is dirty.
            Op::Invalidate { name } => drop(fs.invalidate(&root, path_of(name).as_bytes())),
            Op::Pin { name, on } => drop(fs.pin(&root, path_of(name).as_bytes(), on)),
            // There may be no room for it.
            Op::Warm { name } => drop(fs.warm(&root, path_of(name).as_bytes())),
            Op::SetPolicy { policy } => {
                let dir = self.cache.lookup("d").unwrap();
                let text = POLICIES[policy].as_bytes();
                fs.setxattr(&root, dir, b"user.forebay.drain", text, 0, false).unwrap();
            }
            Op::Weather { errno } => self.weather(if self.is_foul() { 0 } else { errno }),
            _ => {}
        }
        Outcome::Done
    }

    /// A file holds what it should, or is not there.
    pub fn check(&self, name: usize, wanted: Option<&Vec<u8>>) {
        let read = || self.open(name, libc::O_RDONLY, false)?.read_all();
        let got = match read() {
            Err(e) if self.is_foul() && e != Errno::ENOENT => {
                self.weather(0);
                read()
            }
            got => got,
        };
        let shown = NAMES[name];
        match wanted {
            Some(wanted) => {
                let got = got.unwrap_or_else(|e| panic!("read {shown}: {e}"));
                assert_eq!(got.len(), wanted.len(), "size of {shown}");
                let differs = got.iter().zip(wanted).position(|(g, w)| g != w);
                assert_eq!(differs, None, "{shown} differs there");
            }
            None => assert_eq!(got, Err(Errno::ENOENT), "{shown}"),
        }
    }

    /// Somebody else changes a file on the PFS. If it had something that the PFS had not, that is a
    /// conflict, which is ended.
    fn foreign(
        &self,
        name: usize,
        how: Theirs,
        data: Vec<u8>,
        keep: Keep,
        model: &Model,
    ) -> Outcome {
        let path = format!("/{}", NAMES[name]);
        if model.get(name).is_none() || model.links(name) > 1 {
            return Outcome::Nothing;
        }
        self.weather(0);
        let on_pfs = self.rig.pfs(NAMES[name]);
        let beside = self.rig.base.path().join("pfs/.theirs");
        let dirty = !self.cache.state(&path).is_durable();
        // Not before: a drain may just have ended.
        let half = std::fs::metadata(&on_pfs).unwrap().len() / 2;
        if dirty && how == Theirs::Cut {
            // Its size on the PFS says nothing about its content here.
            return Outcome::Nothing;
        }
        // Between a drain's look at the PFS file and its write in place nobody can be seen.
        let file = self.cache.lookup(NAMES[name]).ok();
        let file = file.and_then(|ino| self.cache.fs.parts.nodes.get(ino).ok()?.file);
        let no_drain = file.as_ref().map(|file| file.drain.lock());
        let had = std::fs::read(&on_pfs);
        let had_all = had.as_ref().is_ok_and(|had| Some(had) == model.get(name));
        let is_gone = |asked: &str| {
            // A file that was opened for writing and not written, for instance, is not told of any more.
            if !had_all {
                for (ino, record) in self.cache.fs.parts.flash.all().unwrap_or_default() {
                    let size = self.cache.fs.parts.flash.stat(ino).map(|object| object.size_bytes);
                    eprintln!("on record: inode {ino}, {size:?} bytes, {record:?}");
                }
                let lengths = (had.as_ref().map(Vec::len), model.get(name).map(Vec::len));
                let known = file.as_ref().map(|file| {
                    let state = file.state.lock();
                    (file.ino, state.is_gone(), state.listed, format!("{:?}", state.opens))
                });
                panic!(
                    "{path}: what the PFS did not have is gone without a word ({asked}, {how:?}, dirty {dirty}, {lengths:?}, {known:?})"
                );
            }
            Outcome::Theirs
        };
        match how {
            Theirs::Write => std::fs::write(&on_pfs, &data).unwrap(),
            Theirs::Replace => {
                std::fs::write(&beside, &data).unwrap();
                std::fs::rename(&beside, &on_pfs).unwrap();
            }
            Theirs::Cut => {
                std::fs::File::options().write(true).open(&on_pfs).unwrap().set_len(half).unwrap();
            }
            Theirs::Remove => std::fs::remove_file(&on_pfs).unwrap(),
        }
        drop(no_drain);
        let state = match self.cache.fs.tree_state(&Caller::root(), path.as_bytes()) {
            Err(Errno::ENOENT) => return is_gone("state"),
            state => state.unwrap(),
        };
        if state.is_durable() {
            return Outcome::Theirs;
        }
        let state = match self.cache.try_flush(&path) {
            Err(Errno::ENOENT) => return is_gone("flush"),
            state => state.unwrap(),
        };
        if state.is_durable() {
            // It had been drained before.
            return Outcome::Theirs;
        }
        assert_eq!((state.files, state.conflicts), (1, 1), "{how:?}: {state:?}");
        let here = state.file.as_ref().is_some_and(|f| f.cached_bytes >= f.size_bytes);
        self.end_conflict((&path, &on_pfs), keep, here, model.get(name))
    }

    /// `here` says that all of our version is on flash; else parts of it are theirs now.
    fn end_conflict(
        &self,
        (path, on_pfs): (&str, &Path),
        keep: Keep,
        here: bool,
        ours: Option<&Vec<u8>>,
    ) -> Outcome {
        let resolve = |keep| self.cache.fs.resolve(&Caller::root(), path.as_bytes(), keep);
        let keep = match resolve(keep) {
            Ok(_) => keep,
            // Ours had parts that only the lost PFS file had.
            Err(Errno::ENODATA) if !here => {
                resolve(Keep::Theirs).unwrap();
                Keep::Theirs
            }
            Err(e) => panic!("{path}: {keep:?}, whole here {here}: {e}"),
        };
        if keep == Keep::Both {
            let beside = on_pfs.with_extension("forebay-ours");
            let bytes = std::fs::read(&beside).unwrap();
            let same = !here || ours.is_some_and(|ours| bytes == *ours);
            assert!(same, "{path}: ours beside theirs is another one");
            std::fs::remove_file(&beside).unwrap();
        }
        if keep == Keep::Ours && !here {
            // A mixture that nobody can foretell: written anew.
            let cut = libc::O_RDWR | libc::O_TRUNC;
            let handle = self.again(|| self.cache.open(&path[1..], cut, false));
            self.again(|| handle.write(0, ours.unwrap()));
        }
        if keep == Keep::Ours { Outcome::Ours } else { Outcome::Theirs }
    }
}

/// A file is on the PFS as it is in the model.
pub fn must_be(name: &str, there: &[u8], wanted: &[u8]) {
    let same = there.iter().zip(wanted).take_while(|(a, b)| a == b).count();
    let differ = there.iter().zip(wanted).filter(|(a, b)| a != b).count();
    assert!(
        there == wanted,
        "{name} is another one on the PFS: {} bytes, wanted {}; the same up to {same}, {differ} bytes differ",
        there.len(),
        wanted.len()
    );
}

/// The PFS has what the model has, and nothing else.
pub fn must_be_on_pfs(rig: &Rig, model: &Model) {
    for (name, id) in &model.names {
        must_be(NAMES[*name], &rig.read_pfs(NAMES[*name]), &model.files[id]);
    }
    let list = || {
        let mut there = Vec::new();
        for dir in ["", "d"] {
            for entry in std::fs::read_dir(rig.pfs(dir)).unwrap() {
                let entry = entry.unwrap();
                // Gone since it was listed, if it has no type.
                if entry.file_type().is_ok_and(|kind| kind.is_file()) {
                    there.push(entry.file_name());
                }
            }
        }
        there
    };
    // The drain of a file that was removed meanwhile takes a moment to give its temporary up.
    let until = Instant::now() + Duration::from_secs(10);
    let is_ours = |name: &std::ffi::OsString| {
        use std::os::unix::ffi::OsStrExt;
        name.as_bytes().starts_with(super::super::super::names::DRAIN_PREFIX)
    };
    let mut there = list();
    while there.iter().any(is_ours) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
        there = list();
    }
    assert_eq!(there.len(), model.names.len(), "nothing else is on the PFS: {there:?}");
}
