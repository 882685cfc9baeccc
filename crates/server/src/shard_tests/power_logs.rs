//! Power cuts of one server and of several at once, and what files in logs hold then: written, published and synced as a mount
//! does it, with a cut at any point of such a call or after it, and any part of what was not synced lost.
//!
//! After each: what was synced is there, unless it was written again since: then each word is one of those that were
//! written there since, or zero, or the block is EIO. What was never written is zero, so no file shows another's bytes.

use super::world::{ARGS, BLOCK_BYTES, Cut, SHARDS, World};
use super::{lives, over_seeds};
use forebay_log::{Extent, LogId, Record};
use forebay_proto::attr::Timestamp;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Errno, FileKind, Ino, ObjectId, ShardId};
use forebay_store::metadata::testing::log::Fate;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::ops::Range;

const BLOCKS: u64 = 12;
/// Points of a call at which the power may go.
const POINTS: u32 = 8;

/// The log of the mount.
struct Log {
    id: u32,
    shard: u16,
    end: u64,
    published: u64,
    turn: u64,
    extents: Vec<Extent>,
}

struct Run {
    world: World,
    rng: StdRng,
    ino: Ino,
    log: Option<Log>,
    /// Of each block the stamp that is on flash, and those written since.
    blocks: Vec<(u64, Vec<u64>)>,
    stamp: u64,
    told: Vec<String>,
}

impl Run {
    fn new(seed: u64) -> Run {
        let world = World::with_power_and_data();
        world.recover();
        let mut rng = StdRng::seed_from_u64(seed);
        let (dir, _) = world.dir_on(Ino::ROOT, rng.random_range(0..SHARDS), "logs");
        let size = BLOCK_BYTES.to_string();
        world.set_layout(dir, &[("stripe_size_bytes", size.as_str()), ("layout", "log")]);
        let near = Some(ShardId(rng.random_range(0..SHARDS)));
        let (kind, name) = (FileKind::File, b"f".as_slice());
        let call = Call::Mknod { parent: dir, name, kind, args: ARGS, rdev: 0, near };
        let answer = world.call(dir.shard().0, call);
        assert!(!matches!(answer, Answer::Failed(_)), "{answer:?}");
        world.forget_all();
        let ino = world.entries(dir)["f"].0;
        world.open_file(ino);
        assert!(world.layout(ino).log);
        let blocks = vec![(0, Vec::new()); BLOCKS as usize];
        let mut run = Run { world, rng, ino, log: None, blocks, stamp: 0, told: Vec::new() };
        run.world.call(dir.shard().0, Call::Fsyncdir(dir));
        run.sync(false);
        run
    }

    fn call(&self, shard: u16, call: Call<'_>, data: &[u8], once: bool) -> Option<Answer> {
        self.world.call_with_data(shard, call, data, once)
    }

    fn begin(&mut self) {
        let shard = self.rng.random_range(0..SHARDS);
        let call = Call::LogBegin { ino: self.ino, shard: ShardId(shard) };
        let answer = self.call(self.ino.shard().0, call, &[], false);
        let Some(Answer::LogBegun { log: id, .. }) = answer else {
            panic!("{:#?}: {answer:?}", self.told)
        };
        self.log = Some(Log { id, shard, end: 0, published: 0, turn: 0, extents: Vec::new() });
    }

    fn write(&mut self, once: bool) {
        if self.log.is_none() {
            self.begin();
        }
        let at = self.rng.random_range(0..BLOCKS);
        let count = self.rng.random_range(1..=BLOCKS - at);
        self.append(at..at + count, once);
    }

    /// Appends blocks to the log in one record.
    fn append(&mut self, blocks: Range<u64>, once: bool) {
        let at = blocks.start;
        let mut data = Vec::new();
        for block in blocks {
            self.stamp += 1;
            self.blocks[block as usize].1.push(self.stamp);
            data.extend_from_slice(&self.stamp.to_le_bytes().repeat(BLOCK_BYTES / 8));
        }
        let Some(log) = &mut self.log else { return };
        let (ino, offset) = (self.ino, at * BLOCK_BYTES as u64);
        let record = Record::new(ino.0, LogId(log.id), log.end, offset, &data, 1);
        let bytes = [&record.to_bytes()[..], &data].concat();
        let object = ObjectId::log(ino, log.id).unwrap();
        let call = Call::WriteObject { object, offset: log.end, sync: false };
        log.end += bytes.len() as u64;
        log.extents.push(record.extent());
        let shard = log.shard;
        let answer = self.call(shard, call, &bytes, once);
        let whole = matches!(answer, Some(Answer::Count(n)) if n == bytes.len() as u64);
        assert!(once || whole, "{:#?}: {answer:?}", self.told);
    }

    fn publish(&mut self, sync: bool, once: bool) {
        let Some(log) = &mut self.log else { return };
        log.turn += 1;
        let mut payload = Vec::new();
        log.extents.iter().for_each(|extent| extent.put(&mut payload));
        let call = Call::LogPublish {
            ino: self.ino,
            log: log.id,
            from: log.published,
            to: log.end,
            mtime: Timestamp::now(),
            sync,
            ends: false,
            turn: log.turn,
            clean: false,
        };
        let answer = self.call(self.ino.shard().0, call, &payload, once);
        match answer {
            Some(Answer::LogPublished { ended, .. }) => {
                let Some(log) = &mut self.log else { return };
                log.published = log.end;
                log.extents.clear();
                if ended {
                    self.log = None;
                }
            }
            other => assert!(once, "{:#?}: {other:?}", self.told),
        }
    }

    /// fsync as a mount does it: its log, the index, then the inode's server.
    fn sync(&mut self, once: bool) {
        if let Some(log) = &self.log {
            let object = ObjectId::log(self.ino, log.id).unwrap();
            let call = Call::SyncObject { object, data_only: false };
            let answer = self.call(log.shard, call, &[], once);
            assert!(once || matches!(answer, Some(Answer::Done)), "{answer:?}");
        }
        self.publish(true, once);
        let call = Call::Fsync { ino: self.ino, data_only: false };
        let answer = self.call(self.ino.shard().0, call, &[], once);
        if once {
            return;
        }
        assert!(matches!(answer, Some(Answer::Done)), "{:#?}: {answer:?}", self.told);
        for (synced, since) in &mut self.blocks {
            *synced = since.last().copied().unwrap_or(*synced);
            since.clear();
        }
    }

    fn act(&mut self, once: bool) {
        match self.rng.random_range(0..8) {
            0 | 1 => {
                self.told.push("publish".into());
                self.publish(false, once);
            }
            2 => {
                self.told.push("sync".into());
                self.sync(once);
            }
            3 => {
                self.told.push("bring together".into());
                let namespace = self.world.namespace(self.ino.shard().0);
                let ino = self.ino;
                let brought =
                    self.world.as_server(ino.shard().0, || namespace.logs().bring_next(ino));
                let failed = brought.is_some_and(|brought| brought.is_err());
                assert!(once || !failed, "{:#?}", self.told);
            }
            _ => {
                self.told.push("write".into());
                self.write(once);
            }
        }
    }

    fn cut(&mut self) -> Cut {
        let all: Vec<u16> = (0..SHARDS).collect();
        let victims = match self.rng.random_range(0..3) {
            0 => all,
            _ => vec![*all.choose(&mut self.rng).unwrap()],
        };
        let fates = [Fate::AllKept, Fate::AllLost, Fate::Random, Fate::Random];
        let fate = *fates.choose(&mut self.rng).unwrap();
        Cut { victims, fate, rng: StdRng::seed_from_u64(self.rng.random()) }
    }

    /// One life: some calls, then a power cut in the middle of one or after it.
    fn life(&mut self) {
        for _ in 0..self.rng.random_range(1..12) {
            self.act(false);
        }
        let cut = self.cut();
        self.told.push(format!("power cut of {:?}", cut.victims));
        if self.rng.random_range(0..4) == 0 {
            self.world.cut_now(cut);
        } else {
            let _fired = self.world.cut_at(self.rng.random_range(0..POINTS), cut);
            self.act(true);
        }
        self.world.recover();
        // The mount begins anew: what it had not published is read from its log, as far as it is there.
        self.begin();
        self.judge();
        // All of it is written again: what a cut left of a log may be EIO.
        (0..BLOCKS).for_each(|block| self.append(block..block + 1, false));
        self.sync(false);
        self.judge();
        self.told.clear();
    }

    fn judge(&self) {
        for (at, (synced, since)) in self.blocks.iter().enumerate() {
            let told = |what: String| {
                format!("{:#?}: block {at} is {what}, was {synced}, then {since:?}", self.told)
            };
            match self.world.block(self.ino, at as u64) {
                Ok(bytes) => {
                    // What ends before it is not there, as zeros.
                    let whole = bytes.len() == BLOCK_BYTES || *synced == 0;
                    assert!(whole, "{}", told(format!("{} bytes", bytes.len())));
                    for word in bytes.chunks_exact(8) {
                        let word = u64::from_le_bytes(word.try_into().unwrap());
                        let may_be = word == *synced
                            || since.contains(&word)
                            || word == 0 && !since.is_empty();
                        assert!(may_be, "{}", told(word.to_string()));
                    }
                }
                Err(errno) => {
                    let lost = errno == Errno::EIO && !since.is_empty();
                    assert!(lost, "{}", told(format!("{errno:?}")));
                }
            }
        }
    }
}

#[test]
fn after_power_cuts_files_in_logs_hold_what_was_synced() {
    over_seeds(5, |seed| {
        println!("seed {seed}");
        let mut run = Run::new(seed);
        for _ in 0..lives() {
            run.life();
        }
        run.world.forget_all();
        run.world.close();
    });
}
