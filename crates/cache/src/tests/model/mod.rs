//! A random test against a reference: what each file holds, whatever is evicted, drained, renamed,
//! linked, changed on the PFS, refused by the PFS, killed.
//!
//! Rounds: a child process takes up the store and does random steps, each written to a journal
//! before and after; it ends, or is killed at a random point. The parent replays the journal on its
//! model, opens the cache and compares all files; the step that was under way may be done in part.
//!
//! `FOREBAY_SEED` replays a run (its steps; threads run as they run), `FOREBAY_CACHE_MODEL_S` says
//! how long it goes on, `FOREBAY_SHOW_STEPS` shows the steps.

mod ops;

use super::*;
use forebay_failpoint::kill::run_killed;
use ops::{FILE_MAX, Model, NAMES, Op, Outcome, World, choose, must_be, must_be_on_pfs};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::io::Write;

const CHILD_BASE: &str = "FOREBAY_TEST_CACHE_MODEL_BASE";
const CHILD_SEED: &str = "FOREBAY_TEST_CACHE_MODEL_SEED";
const CHILD: &str = "tests::model::child_model";
/// Small enough that files are evicted, and writers wait.
const CAPACITY: u64 = 10 * MIB;
const STEPS_MAX: usize = 60;
/// Points of one round at which it may be killed.
const KILL_AT_MAX: u64 = 120;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn options(base: &Path, seed: u64) -> CacheOptions {
    let policies = ["close", "idle:1", "end", "end,deadline=1s", "end,watermark=30:10"];
    let policy = policies[seed as usize % policies.len()];
    CacheOptions {
        pfs: base.join("pfs"),
        ttl: Duration::ZERO,
        writes_by_kernel: true,
        policy: Policy::parse(policy.as_bytes()).unwrap(),
        verify: Verify::Cache,
        rate_bytes_per_s: 0,
        served: None,
    }
}

/// The steps of a round: the same for who does them and who replays them.
fn steps(seed: u64, foreign: bool) -> impl Iterator<Item = Op> {
    let mut rng = StdRng::seed_from_u64(seed);
    let count = rng.random_range(1..STEPS_MAX);
    (0..count).map(move |_| choose(&mut rng, foreign))
}

/// Keeps a model in files, for the child.
fn save(model: &Model, dir: &Path) {
    let _ = std::fs::remove_dir_all(dir);
    std::fs::create_dir(dir).unwrap();
    for (id, bytes) in &model.files {
        std::fs::write(dir.join(id.to_string()), bytes).unwrap();
    }
    let names: Vec<(usize, u64)> = model.names.iter().map(|(n, id)| (*n, *id)).collect();
    std::fs::write(dir.join("names"), serde_json::to_vec(&names).unwrap()).unwrap();
}

fn load(dir: &Path) -> Model {
    let names: Vec<(usize, u64)> =
        serde_json::from_slice(&std::fs::read(dir.join("names")).unwrap()).unwrap();
    let mut model = Model::default();
    // Names of one file stay names of one file; numbers are the parent's.
    let mut first = std::collections::BTreeMap::new();
    for (name, id) in names {
        match first.get(&id) {
            None => {
                model.put(name, std::fs::read(dir.join(id.to_string())).unwrap());
                first.insert(id, name);
            }
            Some(with) => model.apply(&Op::Link { name: *with, to: name }, Outcome::Done),
        }
    }
    model
}

/// Not a test by itself: the server that is killed.
#[test]
fn child_model() {
    let Ok(base) = std::env::var(CHILD_BASE) else { return };
    let (base, seed) = (Path::new(&base), number(CHILD_SEED, 0));
    let killed = std::env::var(forebay_failpoint::kill::KILL_AT).is_ok_and(|at| at != "0");
    let rig = Rig::on(base, CAPACITY, options(base, seed));
    let mut model = load(&base.join("model"));
    let mut journal = std::fs::File::create(base.join("journal")).unwrap();
    let cache = rig.open();
    let world = World { rig: &rig, cache: &cache };
    let show = std::env::var_os("FOREBAY_SHOW_STEPS").is_some();
    let told = ToldOnPanic(&cache);
    for op in steps(seed, !killed) {
        forebay_failpoint::kill::trace(&format!("{op:?}"));
        if show {
            eprintln!("{op:?}");
        }
        journal.write_all(b"begin\n").unwrap();
        let outcome = world.run(&op, &model);
        model.apply(&op, outcome);
        let line = serde_json::to_string(&outcome).unwrap();
        journal.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
    drop(told);
    cache.fs.parts.pfs.foul.store(0, Ordering::Relaxed);
    cache.crash();
}

/// What the journal says was done; the step that was under way, if there is one.
fn replay(base: &Path, seed: u64, foreign: bool, model: &mut Model) -> (usize, Option<Op>) {
    let text = std::fs::read_to_string(base.join("journal")).unwrap_or_default();
    let mut done = 0;
    let mut lines = text.lines();
    for op in steps(seed, foreign) {
        let Some("begin") = lines.next() else { return (done, None) };
        match lines.next() {
            Some(line) => model.apply(&op, serde_json::from_str(line).unwrap()),
            None => return (done, Some(op)),
        }
        done += 1;
    }
    (done, None)
}

/// Names are the PFS's: what was under way has happened to them, or not.
fn settle_names(rig: &Rig, model: &mut Model, pending: &Op) {
    let on_pfs = |name: usize| rig.pfs(NAMES[name]).exists();
    let happened = match *pending {
        Op::Unlink { name } => !on_pfs(name),
        Op::Rename { name, .. } => !on_pfs(name),
        Op::Link { to, .. } => on_pfs(to),
        Op::Write { name, .. } => {
            if model.get(name).is_none() && on_pfs(name) {
                model.put(name, Vec::new());
            }
            return;
        }
        _ => return,
    };
    let before = model.get(match *pending {
        Op::Unlink { name } | Op::Rename { name, .. } | Op::Link { name, .. } => name,
        _ => return,
    });
    if happened && before.is_some() {
        model.apply(pending, Outcome::Done);
    }
}

/// True if each byte is that of one of two contents, and so is the size or between.
fn is_between(now: &[u8], one: &[u8], other: &[u8]) -> bool {
    let sizes = [one.len(), other.len()];
    let at = |bytes: &[u8], i: usize| bytes.get(i).copied().unwrap_or(0);
    now.len() <= sizes[0].max(sizes[1])
        && (now.len() >= sizes[0].min(sizes[1]))
        && (0..now.len()).all(|i| now[i] == at(one, i) || now[i] == at(other, i))
}

/// The file of the step that was under way holds what it had, will have, or a part of each; the
/// model takes that over.
fn settle_content(world: &World<'_>, model: &mut Model, pending: &Op) {
    let (Op::Write { name, .. } | Op::Anew { name, .. } | Op::Truncate { name, .. }) = *pending
    else {
        return;
    };
    let Some(old) = model.get(name).cloned() else { return };
    let mut after = model.clone();
    after.apply(pending, Outcome::Done);
    let new = after.get(name).cloned().unwrap_or_default();
    let now = world.cache.read(NAMES[name]).unwrap();
    // What is written anew was cut before.
    let cut = matches!(pending, Op::Anew { .. }) && is_between(&now, &[], &new);
    let grown = now.len() <= old.len().max(new.len());
    assert!(
        cut || is_between(&now, &old, &new) && grown,
        "{}: killed in {pending:?} it is neither old ({}) nor new ({}) but {}",
        NAMES[name],
        old.len(),
        new.len(),
        now.len()
    );
    let id = model.names[&name];
    model.files.insert(id, now);
}

#[test]
fn cache_is_what_the_model_says() {
    let seconds = number("FOREBAY_CACHE_MODEL_S", 10);
    let seed = number("FOREBAY_SEED", rand::random::<u32>().into());
    eprintln!("replay with FOREBAY_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut rig = Rig::in_large_pages(CAPACITY);
    let base = rig.base.path().to_path_buf();
    std::fs::create_dir(rig.pfs("d")).unwrap();
    let mut model = Model::default();
    let (mut count, mut rounds, mut kills) = (0, 0, 0);
    while Instant::now() < until {
        let round_seed: u64 = rng.random();
        let at = if rng.random_bool(0.6) { rng.random_range(1..KILL_AT_MAX) } else { 0 };
        save(&model, &base.join("model"));
        let variables =
            [(CHILD_BASE, base.to_str().unwrap()), (CHILD_SEED, &round_seed.to_string())];
        let ran = std::panic::catch_unwind(|| run_killed(CHILD, &variables, at));
        let killed = ran.unwrap_or_else(|why| {
            let (done, _) = replay(&base, round_seed, at == 0, &mut model);
            eprintln!("round {} (seed {round_seed}), to be killed at {at}; its steps:", rounds + 1);
            tell_steps(round_seed, at == 0, done);
            std::panic::resume_unwind(why)
        });
        let (done, pending) = replay(&base, round_seed, at == 0, &mut model);
        count += done;
        rounds += 1;
        kills += usize::from(killed.is_some());
        if std::env::var_os("FOREBAY_SHOW_STEPS").is_some() {
            eprintln!("round {rounds}: {round_seed}, {done} steps, {killed:?} in {pending:?}");
        }
        let when = format!("round {rounds} (seed {round_seed}), killed after {killed:?} at {at}");
        rig.options = options(&base, rng.random());
        let judged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            judge(&rig, &mut model, pending.as_ref(), rng.random_bool(0.3));
        }));
        if let Err(why) = judged {
            eprintln!("{when}, in {pending:?}; its steps:");
            tell_steps(round_seed, at == 0, done);
            std::panic::resume_unwind(why);
        }
    }
    judge(&rig, &mut model, None, true);
    eprintln!("{count} steps in {rounds} rounds, {kills} kills, seed {seed}");
}

/// Shows the steps of a round that were done, and the one that was under way.
fn tell_steps(seed: u64, foreign: bool, done: usize) {
    for op in steps(seed, foreign).take(done + 1) {
        eprintln!("  {op:?}");
    }
}

/// Shows what is on record when a check fails.
struct ToldOnPanic<'a>(&'a Running);

impl Drop for ToldOnPanic<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for (ino, record) in self.0.fs.parts.flash.all().unwrap_or_default() {
            let size = self.0.fs.parts.flash.stat(ino).map(|object| object.size_bytes);
            eprintln!("on record: inode {ino}, {size:?} bytes, {record:?}");
        }
        for file in self.0.fs.parts.drain_list.files() {
            eprintln!("to be drained: inode {}, {} opens", file.ino, file.state.lock().opens.all());
        }
        eprintln!("to be removed from the PFS: {:?}", self.0.fs.parts.flash.leftovers());
        for name in NAMES {
            eprintln!("on the PFS: {name}: {:?}", self.0.fs.parts.pfs.stat(name.as_bytes()));
        }
    }
}

/// What the last round left is what the model says; with `drain` the PFS has it then.
fn judge(rig: &Rig, model: &mut Model, pending: Option<&Op>, drain: bool) {
    if let Some(op) = pending {
        settle_names(rig, model, op);
    }
    let cache = rig.open();
    let world = World { rig, cache: &cache };
    let told = ToldOnPanic(&cache);
    if let Some(op) = pending {
        settle_content(&world, model, op);
    }
    for (name, shown) in NAMES.iter().enumerate() {
        assert!(model.get(name).is_none_or(|bytes| bytes.len() as u64 <= 2 * FILE_MAX));
        world.check(name, model.get(name));
        if let Some(wanted) = model.get(name)
            && cache.state(&format!("/{shown}")).is_durable()
        {
            must_be(shown, &rig.read_pfs(shown), wanted);
        }
    }
    if drain {
        let state = cache.flush("/");
        assert!(state.is_durable(), "{state:?}");
        must_be_on_pfs(rig, model);
    }
    let (used, capacity) = cache.names.space().unwrap();
    assert!(used <= capacity, "{used} of {capacity} used");
    drop(told);
    cache.crash();
}
