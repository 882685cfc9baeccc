//! References and opens under faults: a client looks up, lists, opens and lets go while names change under it, messages
//! are lost and late, and servers are killed (the faults that [`super::world`] injects). Whenever messages arrive again, each server counts what
//! the client holds; and when that has let go of everything nothing is counted, nothing is prepared, and no inode without a
//! name is left.
//!
//! `FOREBAY_TEST_SHARDS_SEED` replays one seed; there is one for ten of `FOREBAY_TEST_WEATHER_SEEDS`.

use super::world::{SHARDS, World};
use super::{over_seeds, variable};
use forebay_proto::Ino;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Steps of a run, and how many of them until it clears up for a look.
const STEPS: u32 = 80;
const LOOK: u32 = 8;
/// One of so many steps has a server killed.
const KILL_ONE_IN: u32 = 10;
const NAMES: u32 = 4;
const USUAL_SEEDS: u64 = 30;

struct Run {
    world: World,
    rng: StdRng,
    /// The root, and a directory on each shard.
    dirs: Vec<Ino>,
    /// Opens that were given.
    opened: u32,
}

impl Run {
    fn new(seed: u64) -> Run {
        println!("seed {seed}");
        let world = World::new();
        let on = |shard| world.dir_on(Ino::ROOT, shard, "d").0;
        let dirs = [Ino::ROOT].into_iter().chain((0..SHARDS).map(on)).collect();
        Run { world, rng: StdRng::seed_from_u64(seed), dirs, opened: 0 }
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        match all.len() {
            0 => None,
            many => Some(all[self.rng.random_range(0..many)]),
        }
    }

    fn dir(&mut self) -> Ino {
        let at = self.rng.random_range(0..self.dirs.len());
        self.dirs[at]
    }

    fn name(&mut self) -> String {
        format!("n{}", self.rng.random_range(0..NAMES))
    }

    /// What fails, by the weather or as there is no such name, changes nothing that is counted.
    fn step(&mut self) {
        let (dir, name) = (self.dir(), self.name());
        if self.rng.random_range(0..KILL_ONE_IN) == 0 {
            let at = self.rng.random_range(0..14);
            self.world.kill_at(at);
        }
        let (held, open) = self.world.held();
        match self.rng.random_range(0..14) {
            0..=2 => {
                let near = self.rng.random_range(0..SHARDS);
                let _ = self.world.create(dir, &name, near);
            }
            3 => {
                let _ = self.world.unlink(dir, &name);
            }
            4 => {
                let (to, new) = (self.dir(), self.name());
                let _ = self.world.rename((dir, &name), (to, &new), 0);
            }
            5 => {
                if let Some(ino) = self.one_of(&held) {
                    let _ = self.world.link(ino, dir, &name);
                }
            }
            6..=8 => {
                let _ = self.world.look(dir, &name);
            }
            9 => self.world.list(dir),
            10 | 11 => {
                if let Some(ino) = self.one_of(&held) {
                    self.opened += u32::from(self.world.open_locally(ino));
                }
            }
            _ => match self.one_of(&held) {
                Some(ino) if open.contains(&ino) => self.world.close_locally(ino),
                Some(ino) => self.world.forget(ino),
                None => {}
            },
        }
        self.world.recover();
    }

    /// All messages arrive, and what the servers count is what the client holds.
    fn look(&self) {
        self.world.settle();
        self.world.clear_up();
        self.world.check_counts();
    }

    /// The client lets go of everything.
    fn let_go(&self) {
        loop {
            let (held, open) = self.world.held();
            open.iter().for_each(|ino| self.world.close_locally(*ino));
            held.iter().for_each(|ino| self.world.forget(*ino));
            if held.is_empty() && open.is_empty() {
                return;
            }
        }
    }
}

/// Returns how many opens there were.
fn run(seed: u64) -> u32 {
    let mut run = Run::new(seed);
    run.world.bad_weather(seed);
    for n in 0..STEPS {
        run.step();
        if n % LOOK == LOOK - 1 {
            run.look();
            run.world.bad_weather(seed ^ (u64::from(n) << 32));
        }
    }
    run.look();
    run.let_go();
    run.world.check_counts();
    assert!(run.world.held().0.is_empty());
    run.world.close();
    run.opened
}

#[test]
fn references_and_opens_are_counted_once_whatever_becomes_of_messages_and_servers() {
    let seeds = variable("FOREBAY_TEST_WEATHER_SEEDS").map_or(USUAL_SEEDS, |seeds| seeds / 10);
    let mut opened = 0;
    over_seeds(seeds, |seed| opened += run(seed));
    assert!(opened > 0, "no file was open by descriptor");
}
