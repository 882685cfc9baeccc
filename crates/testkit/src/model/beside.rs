//! The model against a mount and the way beside it: in a process with `libforebay_preload.so`, each random step is done
//! by a path that the library asks the mount's process about, or by one that it leaves to the kernel; what the step touched is then
//! compared by both.
//!
//! Left out is what only a root directory of the thread's own makes sense of (absolute links, `..` above the root), and
//! what docs/PRELOAD.md leaves out: a set-user-id bit that a file gets while it is open for writing.

use super::check::{self, Inos};
use super::drive::Driver;
use super::generate::Generator;
use super::op::{Op, RawPath, Step};
use super::run::Plan;
use super::state::Model;
use crate::procs::{self, Cred};
use crate::sys;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::VecDeque;
use std::path::Path;

/// Steps kept to show when one fails.
const TRACE_STEPS: usize = 40;
/// Ways to name the same: from the root, from the current directory, as the kernel alone takes it for the mount, and from
/// the root by the native interface.
const WAYS: usize = 4;
/// The last of them.
const NATIVE: usize = WAYS - 1;
/// The share of steps that are of the plain kind ([`make_plain`]).
const PLAIN: f64 = 0.7;
/// Longest path that has room for what stands before it.
const PATH_ROOM: usize = 3_900;

/// Runs a plan in the directory of a mount, which becomes the current one of this process. It must have the library.
pub fn run_beside(root: &Path, plan: Plan) {
    sys::chmod(sys::bytes(root), 0o1777).unwrap();
    std::env::set_current_dir(root).unwrap();
    procs::umask(0);
    let root = sys::bytes(root);
    let ways: [Vec<u8>; WAYS] =
        [root.to_vec(), b".".to_vec(), [b"/.", root].concat(), root.to_vec()];
    let mut rng = StdRng::seed_from_u64(plan.seed ^ 0x4245_5349_4445);
    let mut model = Model::new();
    let mut generator = Generator::new(StdRng::seed_from_u64(plan.seed), true);
    let mut inos = Inos::default();
    let mut driver = Driver { as_process: true, ..Driver::new() };
    let mut trace: VecDeque<String> = VecDeque::new();
    for number in 0..plan.steps {
        let mut step = next(&mut generator, &model);
        // A directory of another user leaves all below it to the kernel.
        if rng.random_bool(PLAIN) || matches!(step.op, Op::Mkdir { .. }) {
            make_plain(&mut step);
        }
        let way = rng.random_range(0..WAYS);
        driver.prefix.clone_from(&ways[way]);
        if trace.len() == TRACE_STEPS {
            trace.pop_front();
        }
        let (who, umask) = (&step.who, step.umask);
        trace.push_back(format!("{number}: {who:?} umask {umask:03o} by way {way}: {:?}", step.op));
        model.before = sys::now().0;
        driver.native = way == NATIVE;
        let real = driver.run(&step);
        let mut result = model.apply(&step, &real).and_then(|wanted| match real == wanted {
            true => Ok(()),
            false => Err(format!("answered {real:?}, must be {wanted:?}")),
        });
        // The way that it was done by comes last.
        for other in (1..=WAYS).map(|offset| (way + offset) % WAYS) {
            driver.prefix.clone_from(&ways[other]);
            let whole = (number + 1).is_multiple_of(plan.whole_every);
            result = result.and_then(|()| {
                check::touched(&mut model, &driver, &mut inos)
                    .and_then(|()| match whole {
                        true => check::all(&mut model, &driver, &mut inos),
                        false => Ok(()),
                    })
                    .map_err(|why| format!("seen by way {other}: {why}"))
            });
        }
        if let Err(why) = result {
            let trace = Vec::from(trace).join("\n  ");
            let seed = plan.seed;
            panic!("step {number} of FOREBAY_SEED={seed}: {why}\nlast steps:\n  {trace}");
        }
    }
}

/// One user's, and files without set-user-id bits: what is not left to the kernel.
fn make_plain(step: &mut Step) {
    step.who = Cred::root();
    match &mut step.op {
        Op::Open { mode, .. } => *mode = *mode & 0o777 | 0o600,
        Op::Mkdir { mode, .. } => *mode |= 0o700,
        Op::Chmod { mode, .. } => *mode |= 0o700,
        Op::Chown { uid, .. } => *uid = 0,
        _ => {}
    }
}

fn next(generator: &mut Generator, model: &Model) -> Step {
    loop {
        let step = generator.step(model);
        if is_wanted(model, &step.op) {
            return step;
        }
    }
}

/// Whether a path means the same whatever is above the root: it neither is the root nor goes up from there.
fn is_below(path: &RawPath) -> bool {
    let mut names = path.0.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    let first = names.find(|name| *name != b".");
    path.0.len() < PATH_ROOM && first.is_some_and(|name| name != b"..")
}

fn is_wanted(model: &Model, op: &Op) -> bool {
    match op {
        Op::Symlink { target, path } => is_below(path) && !target.0.starts_with(b"/"),
        Op::Link { from, to } | Op::Rename { from, to, .. } => is_below(from) && is_below(to),
        Op::Chmod { mode, path } => {
            let opened = model.slots.iter().flatten().any(|slot| slot.writable());
            is_below(path) && !(opened && mode & (libc::S_ISUID | libc::S_ISGID) != 0)
        }
        Op::Open { path, .. }
        | Op::LinkFd { path, .. }
        | Op::Mkdir { path, .. }
        | Op::Rmdir { path }
        | Op::Unlink { path }
        | Op::Readlink { path }
        | Op::Mknod { path, .. }
        | Op::Truncate { path, .. }
        | Op::Chown { path, .. }
        | Op::Utimens { path, .. }
        | Op::SetXattr { path, .. }
        | Op::GetXattr { path, .. }
        | Op::RemoveXattr { path, .. }
        | Op::ListXattr { path }
        | Op::Lstat { path }
        | Op::List { path } => is_below(path),
        _ => true,
    }
}
