//! Random operations over three shards against a model, with servers killed in between.
//!
//! And the same with messages that are lost, late, repeated and out of order (the faults that [`super::world`] injects): what is
//! acknowledged is done once, what failed is not done, and as soon as messages arrive again nothing of it is left.
//!
//! `FOREBAY_TEST_SHARDS_SEED` replays one seed, `FOREBAY_TEST_SHARDS_STEPS` makes it longer, `FOREBAY_TEST_SHARDS_SEEDS` says
//! how many seeds (`FOREBAY_TEST_WEATHER_SEEDS`: of the second test).

use super::world::{SHARDS, World};
use super::{over_seeds, variable};
use forebay_proto::api::rename_flags::{EXCHANGE, NOREPLACE};
use forebay_proto::{Errno, FileKind, Ino, Result};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

const STEPS: u32 = 250;
/// Steps of a run in bad weather, and how many of them until it clears up for a look.
const WEATHER_STEPS: u32 = 90;
const WEATHER_LOOK: u32 = 6;
/// One of so many steps has a server killed.
const KILL_ONE_IN: u32 = 4;
const WEATHER_KILL_ONE_IN: u32 = 8;
const NAMES: u32 = 5;
/// Directories beyond this are not made.
const MAX_DIRS: usize = 14;

type Entry = (Ino, FileKind);

/// The tree as it must be.
struct Model {
    dirs: BTreeMap<Ino, BTreeMap<String, Entry>>,
    parents: BTreeMap<Ino, Ino>,
}

impl Model {
    fn get(&self, dir: Ino, name: &str) -> Option<Entry> {
        self.dirs[&dir].get(name).copied()
    }

    fn is_below(&self, mut at: Ino, dir: Ino) -> bool {
        while at != dir {
            if at == Ino::ROOT {
                return false;
            }
            at = self.parents[&at];
        }
        true
    }

    fn put(&mut self, dir: Ino, name: &str, entry: Entry) {
        self.dirs.get_mut(&dir).unwrap().insert(name.into(), entry);
        if entry.1 == FileKind::Dir {
            self.parents.insert(entry.0, dir);
            self.dirs.entry(entry.0).or_default();
        }
    }

    fn drop_name(&mut self, dir: Ino, name: &str) -> Entry {
        self.dirs.get_mut(&dir).unwrap().remove(name).unwrap()
    }

    /// Errors that a rename may have; none if it must succeed.
    fn refusals(&self, from: (Ino, &str), to: (Ino, &str), flags: u32) -> Vec<Errno> {
        let Some(source) = self.get(from.0, from.1) else { return vec![Errno::ENOENT] };
        let target = self.get(to.0, to.1);
        let mut errors = Vec::new();
        let is_dir = |entry: Entry| entry.1 == FileKind::Dir;
        if flags == NOREPLACE && target.is_some() {
            return vec![Errno::EEXIST];
        }
        if is_dir(source) && self.is_below(to.0, source.0) {
            errors.push(Errno::EINVAL);
        }
        match target {
            None if flags == EXCHANGE => errors.push(Errno::ENOENT),
            Some(target)
                if flags == EXCHANGE && is_dir(target) && self.is_below(from.0, target.0) =>
            {
                errors.push(Errno::EINVAL);
            }
            Some(_) if flags == EXCHANGE => {}
            Some(target) if target.0 != source.0 => match (is_dir(source), is_dir(target)) {
                (true, false) => errors.push(Errno::ENOTDIR),
                (false, true) => errors.push(Errno::EISDIR),
                (true, true) if !self.dirs[&target.0].is_empty() => {
                    errors.push(Errno::ENOTEMPTY);
                }
                _ => {}
            },
            _ => {}
        }
        errors
    }

    fn rename(&mut self, from: (Ino, &str), to: (Ino, &str), flags: u32) {
        let (source, target) = (self.get(from.0, from.1).unwrap(), self.get(to.0, to.1));
        if target.is_some_and(|target| target.0 == source.0) {
            return;
        }
        self.drop_name(from.0, from.1);
        self.put(to.0, to.1, source);
        match target {
            Some(target) if flags == EXCHANGE => self.put(from.0, from.1, target),
            Some((ino, FileKind::Dir)) => drop(self.dirs.remove(&ino)),
            _ => {}
        }
    }

    /// At any moment, whatever is under way: no file has fewer links than names.
    fn check_names_count(&self, world: &World) {
        let mut names: BTreeMap<Ino, u32> = BTreeMap::new();
        for (ino, kind) in self.dirs.values().flat_map(BTreeMap::values) {
            *names.entry(*ino).or_default() += u32::from(*kind != FileKind::Dir);
        }
        for (ino, count) in names {
            let nlink = world.nlink(ino);
            assert!(nlink >= count, "{ino}: {nlink} links, {count} names");
        }
    }

    fn check(&self, world: &World) {
        world.check();
        for (dir, entries) in &self.dirs {
            assert_eq!(world.entries(*dir), *entries, "{dir}");
        }
    }
}

struct Run {
    world: World,
    model: Model,
    rng: StdRng,
    kill_one_in: u32,
}

impl Run {
    fn dir(&mut self) -> Ino {
        let at = self.rng.random_range(0..self.model.dirs.len());
        *self.model.dirs.keys().nth(at).unwrap()
    }

    fn name(&mut self) -> String {
        format!("n{}", self.rng.random_range(0..NAMES))
    }

    /// True if the model has to follow: it was done. What failed since a server was killed was not, nor what failed
    /// since a message was lost or late.
    fn done<T>(&self, told: &str, result: &Result<T>, refusals: &[Errno], killed: bool) -> bool {
        match result {
            Ok(_) => assert!(refusals.is_empty(), "{told}: done, not {refusals:?}"),
            Err(Errno::ETIMEDOUT | Errno::EHOSTUNREACH) if killed || self.world.was_struck() => {
                return false;
            }
            Err(errno) => assert!(refusals.contains(errno), "{told}: {errno}, not {refusals:?}"),
        }
        result.is_ok()
    }

    fn step(&mut self, n: u32) {
        let (dir, name) = (self.dir(), self.name());
        let near = self.rng.random_range(0..SHARDS);
        let there = self.model.get(dir, &name);
        let exists = if there.is_some() { vec![Errno::EEXIST] } else { vec![] };
        let kill = self.rng.random_range(0..self.kill_one_in) == 0;
        let fired = kill.then(|| self.world.kill_at(self.rng.random_range(0..14)));
        let kind = self.rng.random_range(0..10);
        let told = format!("step {n}: {kind} of {name} in {dir}, near {near}, killed: {kill}");
        let world = &self.world;
        let after = |world: &World| {
            world.recover();
            fired.as_ref().is_some_and(|fired| fired.load(Ordering::Relaxed))
        };
        match kind {
            0 | 1 => {
                let made = world.create(dir, &name, near);
                if self.done(&told, &made, &exists, after(world)) {
                    self.model.put(dir, &name, (made.unwrap(), FileKind::File));
                }
            }
            2 if self.model.dirs.len() < MAX_DIRS => {
                let made = world.mkdir(dir, &name);
                if self.done(&told, &made, &exists, after(world)) {
                    self.model.put(dir, &name, (made.unwrap(), FileKind::Dir));
                }
            }
            3 => {
                let made = world.symlink(dir, &name, near);
                if self.done(&told, &made, &exists, after(world)) {
                    self.model.put(dir, &name, (made.unwrap(), FileKind::Symlink));
                }
            }
            4 => {
                let (other, old) = (self.dir(), self.name());
                let Some((ino, kind)) = self.model.get(other, &old) else {
                    return self.world.recover();
                };
                let refusals = match kind {
                    FileKind::Dir => [exists, vec![Errno::EPERM]].concat(),
                    _ => exists,
                };
                let made = self.world.link(ino, dir, &name);
                if self.done(&told, &made, &refusals, after(&self.world)) {
                    self.model.put(dir, &name, (ino, kind));
                }
            }
            5 | 6 => {
                let gone = world.unlink(dir, &name);
                let refusals = match there {
                    None => vec![Errno::ENOENT],
                    Some((_, FileKind::Dir)) => vec![Errno::EISDIR],
                    Some(_) => vec![],
                };
                if self.done(&told, &gone, &refusals, after(world)) {
                    self.model.drop_name(dir, &name);
                }
            }
            7 => {
                let gone = world.rmdir(dir, &name);
                let refusals = match there {
                    None => vec![Errno::ENOENT],
                    Some((ino, FileKind::Dir)) if self.model.dirs[&ino].is_empty() => vec![],
                    Some((_, FileKind::Dir)) => vec![Errno::ENOTEMPTY],
                    Some(_) => vec![Errno::ENOTDIR],
                };
                if self.done(&told, &gone, &refusals, after(world)) {
                    let (ino, _) = self.model.drop_name(dir, &name);
                    self.model.dirs.remove(&ino);
                }
            }
            _ => {
                let (to, new) = (self.dir(), self.name());
                let flags = [0, 0, NOREPLACE, EXCHANGE][self.rng.random_range(0..4)];
                let told = format!("{told}, to {new} in {to}, flags {flags}");
                let refusals = self.model.refusals((dir, &name), (to, &new), flags);
                let renamed = self.world.rename((dir, &name), (to, &new), flags);
                if self.done(&told, &renamed, &refusals, after(&self.world)) {
                    self.model.rename((dir, &name), (to, &new), flags);
                }
            }
        }
        self.world.recover();
    }
}

impl Run {
    fn new(world: World, seed: u64, kill_one_in: u32) -> Run {
        println!("seed {seed}");
        let dirs = BTreeMap::from([(Ino::ROOT, BTreeMap::new())]);
        let model = Model { dirs, parents: BTreeMap::new() };
        let rng = StdRng::seed_from_u64(seed);
        Run { world, model, rng, kill_one_in }
    }
}

fn run_in_bad_weather(seed: u64) {
    let mut run = Run::new(World::new(), seed, WEATHER_KILL_ONE_IN);
    let steps = variable("FOREBAY_TEST_SHARDS_STEPS").map_or(WEATHER_STEPS, |steps| steps as u32);
    run.world.bad_weather(seed);
    for n in 0..steps {
        run.step(n);
        run.model.check_names_count(&run.world);
        if n % WEATHER_LOOK == WEATHER_LOOK - 1 {
            run.world.settle();
            run.world.clear_up();
            run.model.check(&run.world);
            run.world.bad_weather(seed ^ (u64::from(n) << 32));
        }
    }
    run.world.clear_up();
    run.model.check(&run.world);
    run.world.close();
}

fn run(seed: u64) {
    let mut run = Run::new(World::new(), seed, KILL_ONE_IN);
    let steps = variable("FOREBAY_TEST_SHARDS_STEPS").map_or(STEPS, |steps| steps as u32);
    for n in 0..steps {
        run.step(n);
        if n % 10 == 9 {
            run.model.check(&run.world);
        }
    }
    run.model.check(&run.world);
    run.world.close();
}

#[test]
fn random_operations_over_shards_agree_with_the_model_whoever_is_killed() {
    over_seeds(4, run);
}

#[test]
fn random_operations_over_shards_agree_with_the_model_whatever_becomes_of_messages() {
    over_seeds(variable("FOREBAY_TEST_WEATHER_SEEDS").unwrap_or(200), run_in_bad_weather);
}
