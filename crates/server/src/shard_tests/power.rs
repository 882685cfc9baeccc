//! Power cuts of one server and of several at once, at any point of an operation over shards and
//! between operations, with any part of what was not synced.
//!
//! After each: the tree is whole (no name without its inode, no inode without its name, none twice,
//! link counts and parents right, nothing left prepared: [`World::check`]); what was synced is there; each
//! name is as some operation left it, after the last sync of its directory if there was one; on a server
//! that kept its power nothing that was answered is undone.

use super::world::{ARGS, Cut, SHARDS, World};
use super::{lives, over_seeds};
use forebay_proto::api::rename_flags::EXCHANGE;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{FileKind, Ino, ShardId};
use forebay_store::metadata::testing::log::Fate;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Names in a directory.
const NAMES: u32 = 5;
/// Points of an operation at which the power may go; fewer are passed by most.
const POINTS: u32 = 14;
/// The inode of what is being made: nobody knows it yet.
const NEW: Ino = Ino(0);

type Listed = BTreeMap<String, (Ino, FileKind)>;
type Place = (Ino, String);

#[derive(Clone, Debug)]
enum Op {
    Make(FileKind, Place, u16),
    Link(Ino, Place),
    Unlink(Place),
    Rmdir(Place),
    Rename(Place, Place, u32),
}

impl Op {
    fn call(&self) -> (u16, Call<'_>) {
        let at = |place: &Place| place.0.shard().0;
        match self {
            Op::Make(kind, place, near) => {
                let (parent, name, near) = (place.0, place.1.as_bytes(), Some(ShardId(*near)));
                let call = match kind {
                    FileKind::Dir => Call::Mkdir { parent, name, args: ARGS, near, own: true },
                    FileKind::Symlink => Call::Symlink { parent, name, target: b"to", near },
                    _ => Call::Create { parent, name, args: ARGS, want_local: false, near },
                };
                (at(place), call)
            }
            Op::Link(ino, place) => {
                let call = Call::Link { ino: *ino, parent: place.0, name: place.1.as_bytes() };
                (at(place), call)
            }
            Op::Unlink(place) => {
                (at(place), Call::Unlink { parent: place.0, name: place.1.as_bytes() })
            }
            Op::Rmdir(place) => {
                (at(place), Call::Rmdir { parent: place.0, name: place.1.as_bytes() })
            }
            Op::Rename(from, to, flags) => {
                let call = Call::Rename {
                    parent: from.0,
                    name: from.1.as_bytes(),
                    new_parent: to.0,
                    new_name: to.1.as_bytes(),
                    flags: *flags,
                };
                (at(to), call)
            }
        }
    }

    /// The directories as they are when it is done.
    fn after(&self, before: &BTreeMap<Ino, Listed>) -> BTreeMap<Ino, Listed> {
        let mut dirs = before.clone();
        let mut put = |place: &Place, entry| {
            dirs.get_mut(&place.0).unwrap().insert(place.1.clone(), entry);
        };
        match self {
            Op::Make(kind, place, _) => put(place, (NEW, *kind)),
            Op::Link(ino, place) => put(place, (*ino, FileKind::File)),
            Op::Unlink(place) | Op::Rmdir(place) => {
                dirs.get_mut(&place.0).unwrap().remove(&place.1);
            }
            Op::Rename(from, to, flags) => {
                let moved = before[&from.0][&from.1];
                let replaced = before[&to.0].get(&to.1).copied();
                if replaced.is_some_and(|replaced| replaced.0 == moved.0) {
                    return dirs;
                }
                put(to, moved);
                match replaced {
                    Some(replaced) if *flags == EXCHANGE => put(from, replaced),
                    _ => drop(dirs.get_mut(&from.0).unwrap().remove(&from.1)),
                }
            }
        }
        dirs
    }
}

/// The same, but for the number of an inode that nobody knows yet.
fn same_entry(wanted: (Ino, FileKind), real: (Ino, FileKind)) -> bool {
    wanted.1 == real.1 && (wanted.0 == NEW || wanted.0 == real.0)
}

fn same(wanted: &Listed, real: &Listed) -> bool {
    let mut pairs = wanted.iter().zip(real);
    wanted.len() == real.len() && pairs.all(|(a, b)| a.0 == b.0 && same_entry(*a.1, *b.1))
}

/// Each name is as one of these have it. What one server did alone may be lost while a later operation over
/// several, which another one has on record, is finished: order is kept for each name, not between names.
fn is_of(may_be: &[&Listed], real: &Listed) -> bool {
    let names = may_be.iter().flat_map(|listed| listed.keys()).chain(real.keys());
    names.into_iter().all(|name| {
        let has = real.get(name);
        may_be.iter().any(|listed| match (listed.get(name), has) {
            (Some(wanted), Some(has)) => same_entry(*wanted, *has),
            (wanted, has) => wanted.is_none() && has.is_none(),
        })
    })
}

struct Run {
    world: World,
    rng: StdRng,
    /// Directories that are always there, on each server, and what is in them.
    dirs: BTreeMap<Ino, Listed>,
    /// What each was since it was last synced, the last one as it is.
    since: BTreeMap<Ino, Vec<Listed>>,
    told: Vec<String>,
}

impl Run {
    fn new(seed: u64) -> Run {
        let world = World::with_power();
        // Who was asked while it started counts as away for a moment.
        world.recover();
        let mut dirs = BTreeMap::new();
        for n in 0..2 {
            for shard in 0..SHARDS {
                let (dir, _) = world.dir_on(Ino::ROOT, shard, &format!("d{n}"));
                dirs.insert(dir, Listed::new());
            }
        }
        for shard in 0..SHARDS {
            world.call(shard, Call::Fsyncdir(Ino::ROOT));
        }
        let since = dirs.keys().map(|dir| (*dir, vec![Listed::new()])).collect();
        Run { world, rng: StdRng::seed_from_u64(seed), dirs, since, told: Vec::new() }
    }

    fn place(&mut self) -> Place {
        let dirs: Vec<Ino> = self.dirs.keys().copied().collect();
        let dir = *dirs.choose(&mut self.rng).unwrap();
        (dir, format!("n{}", self.rng.random_range(0..NAMES)))
    }

    fn at(&self, place: &Place) -> Option<(Ino, FileKind)> {
        self.dirs[&place.0].get(&place.1).copied()
    }

    /// An operation that can be done now.
    fn op(&mut self) -> Op {
        loop {
            let (one, other) = (self.place(), self.place());
            let near = self.rng.random_range(0..SHARDS);
            let kinds = [FileKind::File, FileKind::File, FileKind::Dir, FileKind::Symlink];
            match (self.at(&one), self.at(&other)) {
                (None, _) => {
                    return Op::Make(*kinds.choose(&mut self.rng).unwrap(), one, near);
                }
                (Some((ino, FileKind::File)), None) if near == 0 => return Op::Link(ino, other),
                (Some((_, FileKind::Dir)), _) if self.rng.random_range(0..4) == 0 => {
                    return Op::Rmdir(one);
                }
                (Some((_, kind)), _)
                    if kind != FileKind::Dir && self.rng.random_range(0..3) == 0 =>
                {
                    return Op::Unlink(one);
                }
                (Some((_, a)), Some((_, b))) => {
                    let is_dir = |kind| kind == FileKind::Dir;
                    if self.rng.random_range(0..3) == 0 {
                        return Op::Rename(one, other, EXCHANGE);
                    }
                    if is_dir(a) == is_dir(b) {
                        return Op::Rename(one, other, 0);
                    }
                }
                (Some(_), None) => return Op::Rename(one, other, 0),
            }
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

    /// Does one operation to its end.
    fn step(&mut self) {
        let op = self.op();
        self.told.push(format!("{op:?}"));
        let (shard, call) = op.call();
        let answer = self.world.call(shard, call);
        assert!(!matches!(answer, Answer::Failed(_)), "{:?}: {answer:?}", self.told);
        self.world.forget_all();
        let after = op.after(&self.dirs);
        for (dir, wanted) in after {
            let real = self.world.entries(dir);
            assert!(same(&wanted, &real), "{:?}: {real:?}, not {wanted:?}", self.told);
            if real != self.dirs[&dir] {
                self.since.get_mut(&dir).unwrap().push(real.clone());
            }
            self.dirs.insert(dir, real);
        }
        match self.rng.random_range(0..12) {
            0 => self.sync(),
            1 => {
                let shard = self.rng.random_range(0..SHARDS);
                self.told.push(format!("database of {shard} written"));
                self.world.checkpoint(shard);
            }
            _ => {}
        }
    }

    /// A directory, or a file and with it its name, is synced.
    fn sync(&mut self) {
        let place = self.place();
        let dir = place.0;
        let answer = match self.at(&place) {
            Some((ino, FileKind::File)) if self.rng.random() => {
                self.told.push(format!("{place:?} synced"));
                self.world.call(ino.shard().0, Call::Fsync { ino, data_only: false })
            }
            _ => {
                self.told.push(format!("{dir} synced"));
                self.world.call(dir.shard().0, Call::Fsyncdir(dir))
            }
        };
        assert!(matches!(answer, Answer::Done), "{:?}: {answer:?}", self.told);
        self.since.insert(dir, vec![self.dirs[&dir].clone()]);
    }

    /// One life: some operations, then a power cut in the middle of one or after it.
    fn life(&mut self) {
        for _ in 0..self.rng.random_range(1..16) {
            self.step();
        }
        let (op, cut) = (self.op(), self.cut());
        let victims = cut.victims.clone();
        self.told.push(format!("power cut of {victims:?} in {op:?}"));
        let mut ends = vec![self.dirs.clone()];
        if self.rng.random_range(0..4) == 0 {
            self.world.cut_now(cut);
        } else {
            let fired = self.world.cut_at(self.rng.random_range(0..POINTS), cut);
            let (shard, call) = op.call();
            let _ = self.world.call_once(shard, call);
            ends.push(op.after(&self.dirs));
            if !fired.load(Ordering::Relaxed) {
                self.told.push("(it did not come)".into());
            }
        }
        self.world.recover();
        self.world.forget_all();
        self.world.check();
        for (dir, since) in &mut self.since {
            let real = self.world.entries(*dir);
            let mut may_be: Vec<&Listed> = ends.iter().map(|end| &end[dir]).collect();
            let fine = match victims.contains(&dir.shard().0) {
                false => may_be.iter().any(|wanted| same(wanted, &real)),
                true => {
                    may_be.extend(since.iter());
                    is_of(&may_be, &real)
                }
            };
            assert!(fine, "{:#?}: {dir} has {real:?}, may have {may_be:#?}", self.told);
            // What a start has found is durable.
            *since = vec![real.clone()];
            self.dirs.insert(*dir, real);
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
fn after_power_cuts_of_one_server_or_all_operations_over_shards_are_whole_or_not_there() {
    over_seeds(8, run);
}

#[test]
fn what_is_decided_while_others_are_told_is_told_only_when_it_is_on_flash() {
    let world = World::with_power();
    world.recover();
    let (b, _) = world.dir_on(Ino::ROOT, 2, "b");
    let file = world.create(Ino::ROOT, "file", 1).unwrap();
    world.finish();
    world.link(file, b, "one").unwrap();
    // Decided between the moment when the round made all durable and that when it tells the others.
    let two = Call::Link { ino: file, parent: b, name: b"two" };
    world.call_at("coordinator: what was decided is on flash", 2, two);
    world.namespace(2).testing().finish_round().unwrap();
    assert_eq!((world.nlink(file), world.entries(b).len()), (3, 2), "both were made");
    let rng = StdRng::seed_from_u64(1);
    world.cut_now(Cut { victims: vec![2], fate: Fate::AllLost, rng });
    world.recover();
    // The name of the second has gone with the power, and the link that was counted for it must not stay.
    assert_eq!((world.nlink(file), world.entries(b).len()), (2, 1));
    world.close();
}
