//! Power cuts of one server and of several at once, and what files hold then: whole files and files cut
//! over all servers, written, appended to, given new sizes, synced and removed, with a cut at any point of such a
//! call or after it, and any part of what was not synced lost.
//!
//! After each: a file that was synced has its name and is what it was then, or what was written to it
//! since, block by block; a file that was not may be gone; a block that nothing has written is zero, so no
//! file shows another's bytes, also not one that was removed; what servers hold that kept their
//! power is what was written last.

use super::world::{ARGS, BLOCK_BYTES, Cut, SHARDS, World};
use super::{lives, over_seeds};
use forebay_proto::attr::SetAttr;
use forebay_proto::layout::Layout;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Errno, FileKind, Ino, ShardId};
use forebay_store::metadata::testing::log::Fate;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks of a file at most, and files.
const BLOCKS: u64 = 12;
const FILES: usize = 6;
/// Points of a call at which the power may go; fewer are passed by most.
const POINTS: u32 = 8;

/// What a file holds, a stamp for each block: 0 where nothing was written.
type BlockStamps = Vec<u64>;

struct File {
    place: (Ino, String),
    layout: Layout,
    /// What it was since it was last synced, the last one as it is.
    since: Vec<BlockStamps>,
    /// It was synced, and its name with it.
    is_synced: bool,
    /// Its size was changed since.
    is_resized: bool,
    /// It was removed, which may not be on flash.
    is_removed: bool,
}

impl File {
    fn now(&self) -> &BlockStamps {
        self.since.last().unwrap()
    }

    fn change(&mut self, state: BlockStamps) {
        self.is_resized |= state.len() != self.now().len();
        self.since.push(state);
    }
}

#[derive(Debug)]
enum Op {
    Create((Ino, String), u16),
    Write(Ino, u64, u64),
    Append(Ino, u64),
    Resize(Ino, u64),
    Remove(Ino),
    Sync(Ino),
}

fn written(state: &BlockStamps, at: u64, stamps: &[u64]) -> BlockStamps {
    let mut state = state.clone();
    let end = at as usize + stamps.len();
    state.resize(state.len().max(end), 0);
    state[at as usize..end].copy_from_slice(stamps);
    state
}

fn bytes_of(stamps: &[u64]) -> Vec<u8> {
    stamps.iter().flat_map(|stamp| stamp.to_le_bytes().repeat(BLOCK_BYTES / 8)).collect()
}

struct Run {
    world: World,
    rng: StdRng,
    /// Directories for files that are striped, and for files that are not.
    dirs: Vec<Ino>,
    files: BTreeMap<Ino, File>,
    stamps: u64,
    names: u32,
    told: Vec<String>,
}

impl Run {
    fn new(seed: u64) -> Run {
        let world = World::with_power_and_data();
        // Who was asked while it started counts as away for a moment.
        world.recover();
        let mut dirs = Vec::new();
        for shard in 0..SHARDS {
            for name in ["striped", "whole"] {
                let (dir, _) = world.dir_on(Ino::ROOT, shard, name);
                if name == "striped" {
                    world.stripe(dir);
                }
                dirs.push(dir);
            }
        }
        for dir in dirs.iter().chain([&Ino::ROOT]) {
            world.call(dir.shard().0, Call::Fsyncdir(*dir));
        }
        let rng = StdRng::seed_from_u64(seed);
        Run { world, rng, dirs, files: BTreeMap::new(), stamps: 0, names: 0, told: Vec::new() }
    }

    fn stamps(&mut self, count: u64) -> Vec<u64> {
        self.stamps += count;
        (self.stamps - count + 1..=self.stamps).collect()
    }

    fn op(&mut self) -> Op {
        let there: Vec<Ino> =
            self.files.iter().filter(|(_, file)| !file.is_removed).map(|(ino, _)| *ino).collect();
        let ino = match there.choose(&mut self.rng) {
            Some(ino) if there.len() >= FILES || self.rng.random_range(0..5) > 0 => *ino,
            _ => {
                self.names += 1;
                let dir = *self.dirs.choose(&mut self.rng).unwrap();
                return Op::Create(
                    (dir, format!("f{}", self.names)),
                    self.rng.random_range(0..SHARDS),
                );
            }
        };
        let size = self.files[&ino].now().len() as u64;
        match self.rng.random_range(0..12) {
            0 => Op::Remove(ino),
            1..3 => Op::Resize(ino, self.rng.random_range(0..=BLOCKS)),
            3..5 => Op::Sync(ino),
            5..7 if size < BLOCKS => Op::Append(ino, self.rng.random_range(1..=BLOCKS - size)),
            _ => {
                let at = self.rng.random_range(0..BLOCKS);
                Op::Write(ino, at, self.rng.random_range(1..=BLOCKS - at))
            }
        }
    }

    /// Does it. With `once` a server may go meanwhile: what it may have changed is noted all the same.
    fn act(&mut self, op: &Op, once: bool) {
        match op {
            Op::Create(place, near) => self.create(place, *near, once),
            Op::Write(ino, at, count) => {
                let stamps = self.stamps(*count);
                let (layout, state) = (self.files[ino].layout, self.files[ino].now());
                let state = written(state, *at, &stamps);
                self.world.write(*ino, &layout, at * BLOCK, &bytes_of(&stamps), once);
                self.files.get_mut(ino).unwrap().change(state);
            }
            Op::Append(ino, count) => {
                let stamps = self.stamps(*count);
                let state = self.files[ino].now();
                let state = written(state, state.len() as u64, &stamps);
                let answer = self.world.append(*ino, &bytes_of(&stamps), once);
                let whole = matches!(answer, Some(Answer::Count(n)) if n == count * BLOCK);
                assert!(once || whole, "{:?}: {answer:?}", self.told);
                self.files.get_mut(ino).unwrap().change(state);
            }
            Op::Resize(ino, blocks) => {
                let mut state = self.files[ino].now().clone();
                state.resize(*blocks as usize, 0);
                let change = SetAttr { size_bytes: Some(blocks * BLOCK), ..SetAttr::default() };
                let answer = self.call(ino.shard(), Call::Setattr { ino: *ino, change }, once);
                assert!(once || matches!(answer, Some(Answer::Attr(_))), "{answer:?}");
                let file = self.files.get_mut(ino).unwrap();
                file.change(state);
                file.is_resized = true;
            }
            Op::Remove(ino) => {
                let (parent, name) = self.files[ino].place.clone();
                let call = Call::Unlink { parent, name: name.as_bytes() };
                let answer = self.call(parent.shard(), call, once);
                assert!(once || matches!(answer, Some(Answer::Done)), "{answer:?}");
                self.files.get_mut(ino).unwrap().is_removed = true;
            }
            Op::Sync(ino) if once => {
                self.call(ino.shard(), Call::Fsync { ino: *ino, data_only: false }, true);
            }
            Op::Sync(ino) => {
                self.world.fsync(*ino).unwrap();
                let file = self.files.get_mut(ino).unwrap();
                (file.is_synced, file.is_resized) = (true, false);
                file.since = vec![file.now().clone()];
            }
        }
    }

    fn call(&self, shard: ShardId, call: Call<'_>, once: bool) -> Option<Answer> {
        match once {
            true => self.world.call_once(shard.0, call),
            false => Some(self.world.call(shard.0, call)),
        }
    }

    fn create(&mut self, place: &(Ino, String), near: u16, once: bool) {
        let (parent, name) = (place.0, place.1.as_bytes());
        let near = Some(ShardId(near));
        let kind = FileKind::File;
        let call = Call::Mknod { parent, name, kind, args: ARGS, rdev: 0, near };
        let answer = self.call(parent.shard(), call, once);
        if once {
            return;
        }
        assert!(!matches!(answer, Some(Answer::Failed(_))), "{:?}: {answer:?}", self.told);
        self.world.forget_all();
        let (ino, _) = self.world.entries(parent)[&place.1];
        self.adopt(ino, place.clone());
    }

    /// A file as it is now, opened as programs do before they write.
    fn adopt(&mut self, ino: Ino, place: (Ino, String)) {
        self.world.open_file(ino);
        let layout = self.world.layout(ino);
        let state = self.read(ino);
        let file = File {
            place,
            layout,
            since: vec![state],
            is_synced: false,
            is_resized: false,
            is_removed: false,
        };
        self.files.insert(ino, file);
    }

    fn read(&self, ino: Ino) -> BlockStamps {
        let bytes = self.world.contents(ino);
        let bytes = bytes.unwrap_or_else(|e| panic!("{:#?}: {ino}: {e}", self.told));
        assert_eq!(bytes.len() % BLOCK_BYTES, 0, "{:#?}: {ino}", self.told);
        let stamp = |block: &[u8]| {
            let first = &block[..8];
            assert!(block.chunks(8).all(|word| word == first), "{:#?}: {ino} is torn", self.told);
            u64::from_le_bytes(first.try_into().unwrap())
        };
        bytes.chunks(BLOCK_BYTES).map(stamp).collect()
    }

    /// All files are what was written last.
    fn check_all(&self) {
        for (ino, file) in self.files.iter().filter(|(_, file)| !file.is_removed) {
            assert_eq!(self.read(*ino), *file.now(), "{:#?}: {ino} {:?}", self.told, file.place);
        }
    }

    fn cut(&mut self) -> Cut {
        let all: Vec<u16> = (0..SHARDS).collect();
        let victims = match self.rng.random_range(0..4) {
            0 => all,
            1 => vec![0, 1],
            _ => vec![*all.choose(&mut self.rng).unwrap()],
        };
        let fates = [Fate::AllKept, Fate::AllLost, Fate::Random, Fate::Random];
        let fate = *fates.choose(&mut self.rng).unwrap();
        Cut { victims, fate, rng: StdRng::seed_from_u64(self.rng.random()) }
    }

    /// One life: some calls, then a power cut in the middle of one or after it.
    fn life(&mut self) {
        for _ in 0..self.rng.random_range(1..16) {
            let op = self.op();
            self.told.push(format!("{op:?}"));
            self.act(&op, false);
        }
        self.check_all();
        let (op, cut) = (self.op(), self.cut());
        let victims = cut.victims.clone();
        self.told.push(format!("power cut of {victims:?} in {op:?}"));
        let in_flight = match self.rng.random_range(0..4) {
            0 => {
                self.world.cut_now(cut);
                None
            }
            _ => {
                let fired = self.world.cut_at(self.rng.random_range(0..POINTS), cut);
                self.act(&op, true);
                if !fired.load(Ordering::Relaxed) {
                    self.told.push("(it did not come)".into());
                }
                match op {
                    Op::Create(..) => None,
                    Op::Write(ino, ..) | Op::Append(ino, _) | Op::Resize(ino, _) => Some(ino),
                    Op::Remove(ino) | Op::Sync(ino) => Some(ino),
                }
            }
        };
        self.world.recover();
        self.world.forget_all();
        self.world.check();
        self.judge(&victims, in_flight);
    }

    /// What is there now may be there; then all of it is synced, and is what the next life begins with.
    fn judge(&mut self, victims: &[u16], in_flight: Option<Ino>) {
        let mut found = BTreeMap::new();
        for dir in &self.dirs {
            for (name, (ino, _)) in self.world.entries(*dir) {
                found.insert(ino, (*dir, name));
            }
        }
        for (ino, file) in &self.files {
            let is_cut = |shard: ShardId| victims.contains(&shard.0);
            let may_move = is_cut(file.place.0.shard()) || is_cut(ino.shard());
            match found.get(ino) {
                // A number that was never on flash may be a new file's.
                Some(place) if *place != file.place => assert!(!file.is_synced && may_move),
                Some(_) if file.is_removed && Some(*ino) != in_flight => {
                    assert!(may_move, "{:#?}: {ino} is back", self.told);
                    self.judge_file(*ino, file, victims, true);
                }
                Some(_) => self.judge_file(*ino, file, victims, Some(*ino) == in_flight),
                None => {
                    let may_go = file.is_removed || (may_move && !file.is_synced);
                    assert!(may_go, "{:#?}: {ino} {:?} is gone", self.told, file.place);
                }
            }
        }
        for (ino, place) in &found {
            if self.files.get(ino).is_none_or(|file| file.place != *place) {
                let real = self.read(*ino);
                assert!(real.is_empty(), "{:#?}: {ino} is new and holds {real:?}", self.told);
            }
        }
        self.files.clear();
        for (ino, place) in found {
            self.adopt(ino, place);
            self.act(&Op::Sync(ino), false);
        }
    }

    /// Each block is as it was when the file was last synced, or as it was written since.
    fn judge_file(&self, ino: Ino, file: &File, victims: &[u16], in_flight: bool) {
        let real = self.read(ino);
        let sizes = || file.since.iter().map(Vec::len);
        let told = || format!("{:#?}: {ino} is {real:?}, was {:?}", self.told, file.since);
        let least = sizes().min().unwrap();
        assert!((least..=sizes().max().unwrap()).contains(&real.len()), "{}", told());
        let shard_of = |block: u64| match file.layout.is_striped() {
            true => {
                let (stripe, _) = file.layout.locate(block * BLOCK);
                file.layout.shard_of(stripe, SHARDS)
            }
            false => ino.shard(),
        };
        // An append or a new size of which the inode's server does not know any more that it was done is
        // settled as if it had been cut short.
        let is_settled = victims.contains(&ino.shard().0) && file.is_resized;
        let is_exact = !(in_flight || is_settled);
        for (block, stamp) in real.iter().enumerate() {
            let of = |state: &BlockStamps| state.get(block).copied().unwrap_or(0);
            match is_exact && !victims.contains(&shard_of(block as u64).0) {
                true => assert_eq!(*stamp, of(file.now()), "block {block}: {}", told()),
                false => {
                    let may_be = file.since.iter().any(|state| of(state) == *stamp);
                    assert!(may_be, "block {block}: {}", told());
                }
            }
        }
        if is_exact && !(0..BLOCKS).any(|block| victims.contains(&shard_of(block).0)) {
            assert_eq!(real.len(), file.now().len(), "{}", told());
        }
    }
}

fn run(seed: u64) {
    println!("seed {seed}");
    let mut run = Run::new(seed);
    for _ in 0..lives() {
        run.life();
    }
    run.world.close();
}

#[test]
fn after_power_cuts_of_one_server_or_all_files_hold_what_was_synced_and_nobody_else_s_bytes() {
    over_seeds(5, run);
}

/// What the calls of this test promise is what a mount's fsync promises: an error of any server is told.
#[test]
fn fsync_fails_while_a_server_with_a_part_of_the_file_is_away() {
    let mut run = Run::new(1);
    let place = (run.dirs[0], "f".to_string());
    run.create(&place, 0, false);
    let ino = *run.files.keys().next().unwrap();
    run.act(&Op::Write(ino, 0, BLOCKS), false);
    let cut = Cut { victims: vec![1], fate: Fate::AllKept, rng: StdRng::seed_from_u64(1) };
    run.world.cut_now(cut);
    let answer = run.world.call_once(ino.shard().0, Call::Fsync { ino, data_only: false });
    let away = [Errno::ETIMEDOUT, Errno::EHOSTUNREACH].map(|errno| errno.0);
    assert!(matches!(answer, Some(Answer::Failed(errno)) if away.contains(&errno)), "{answer:?}");
    run.world.recover();
    assert_eq!(run.read(ino), *run.files[&ino].now());
    run.world.forget_all();
    run.world.close();
}
