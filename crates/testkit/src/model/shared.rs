//! The model against several mounts of one buffer: each random step is done on some mount, and
//! what it touched is then compared on all of them. Files stay with the mount that opened them.
//! The server and mounts are killed with -9 in between.
//!
//! One thread does it all; it goes from mount to mount by changing its root directory.

use super::check::{self, Inos};
use super::drive::Driver;
use super::generate::Generator;
use super::op::{Op, SLOTS, Step};
use super::state::Model;
use crate::procs;
use crate::served::Served;
use crate::sys;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};

/// Steps kept to show when one fails.
const TRACE_STEPS: usize = 40;

/// How long to run, and how. Of what happens every so many steps, 0 = never.
#[derive(Clone, Copy, Debug)]
pub struct SharedPlan {
    /// Source of all chance.
    pub seed: u64,
    /// Operations.
    pub steps: u64,
    /// The whole tree is compared on all mounts.
    pub whole_every: u64,
    /// The server is killed and started again; files stay open.
    pub kill_server_every: u64,
    /// One mount is killed and mounted again; its files are closed by that.
    pub kill_mount_every: u64,
}

struct Run<'a> {
    served: &'a Served,
    plan: SharedPlan,
    model: Model,
    generator: Generator,
    rng: StdRng,
    inos: Inos,
    /// The root of all, and of each mount.
    outside: OwnedFd,
    roots: Vec<OwnedFd>,
    drivers: Vec<Driver>,
    trace: VecDeque<String>,
    done: u64,
}

/// Runs a plan on all mounts that the fixture has.
pub fn run_shared(served: &Served, plan: SharedPlan) {
    sys::chmod(sys::bytes(&served.root(0)), 0o1777).unwrap();
    procs::apart(|| {
        procs::umask(0);
        let mounts = 0..served.mount_count();
        let mut run = Run {
            served,
            plan,
            model: Model::new(),
            generator: Generator::new(StdRng::seed_from_u64(plan.seed), true),
            rng: StdRng::seed_from_u64(plan.seed ^ 0x5348_4152_4544),
            inos: Inos::default(),
            outside: place(b"/"),
            roots: mounts.clone().map(|at| place(sys::bytes(&served.root(at)))).collect(),
            drivers: mounts.map(|_| Driver::new()).collect(),
            trace: VecDeque::new(),
            done: 0,
        };
        let result = run.all_steps();
        go(&run.outside);
        if let Err(why) = result {
            let trace = Vec::from(std::mem::take(&mut run.trace)).join("\n  ");
            let (step, seed) = (run.done, plan.seed);
            panic!("step {step} of FOREBAY_SEED={seed}: {why}\nlast steps:\n  {trace}");
        }
    });
}

/// A directory to go to.
fn place(path: &[u8]) -> OwnedFd {
    sys::open(path, libc::O_PATH | libc::O_DIRECTORY, 0).unwrap()
}

/// Makes a directory the root of the calling thread, also one outside of its root.
fn go(root: &OwnedFd) {
    // SAFETY: an open directory and a valid string; the thread has a root directory of its own.
    let failed = unsafe { libc::fchdir(root.as_raw_fd()) | libc::chroot(c".".as_ptr()) };
    assert_eq!(failed, 0, "{:?}", sys::last());
}

impl Run<'_> {
    fn all_steps(&mut self) -> Result<(), String> {
        self.whole()?;
        while self.done < self.plan.steps {
            self.step()?;
            self.done += 1;
            let due = |every: u64| every > 0 && self.done.is_multiple_of(every);
            let (server, mount) =
                (due(self.plan.kill_server_every), due(self.plan.kill_mount_every));
            if server {
                self.kill_server();
            }
            if mount {
                self.kill_mount();
            }
            if server || mount || self.done.is_multiple_of(self.plan.whole_every) {
                self.whole()?;
            }
        }
        self.whole()
    }

    fn step(&mut self) -> Result<(), String> {
        let (step, at) = self.next();
        self.note(format!("{:?} umask {:03o} on mount {at}: {:?}", step.who, step.umask, step.op));
        go(&self.roots[at]);
        self.model.before = sys::now().0;
        let real = self.drivers[at].run(&step);
        let wanted = self.model.apply(&step, &real)?;
        if real != wanted {
            return Err(format!("mount {at} answered {real:?}, must be {wanted:?}"));
        }
        if let (Op::Open { slot, .. }, true) = (&step.op, real.is_ok()) {
            for (other, driver) in self.drivers.iter_mut().enumerate() {
                driver.elsewhere[*slot] = other != at;
                if other != at {
                    driver.files[*slot] = None;
                }
            }
        }
        if let Op::Close { slot } = &step.op {
            self.drivers.iter_mut().for_each(|driver| driver.elsewhere[*slot] = false);
        }
        // Who did it is asked last: the others' view comes first.
        for offset in 1..=self.roots.len() {
            let other = (at + offset) % self.roots.len();
            go(&self.roots[other]);
            check::touched(&mut self.model, &self.drivers[other], &mut self.inos)
                .map_err(|why| format!("seen on mount {other}: {why}"))?;
        }
        Ok(())
    }

    /// The next step and the mount to do it on.
    fn next(&mut self) -> (Step, usize) {
        loop {
            let step = self.generator.step(&self.model);
            let any = self.rng.random_range(0..self.roots.len());
            let owners: Vec<usize> =
                slots(&step.op).into_iter().filter_map(|slot| self.owner(slot)).collect();
            match owners[..] {
                [] => return (step, any),
                [owner] => return (step, owner),
                [a, b] if a == b => return (step, a),
                _ => {}
            }
        }
    }

    fn owner(&self, slot: usize) -> Option<usize> {
        self.drivers.iter().position(|driver| driver.files[slot].is_some())
    }

    fn whole(&mut self) -> Result<(), String> {
        for at in 0..self.roots.len() {
            go(&self.roots[at]);
            check::all(&mut self.model, &self.drivers[at], &mut self.inos)
                .map_err(|why| format!("seen on mount {at}: {why}"))?;
        }
        Ok(())
    }

    fn kill_server(&mut self) {
        go(&self.outside);
        let at = self.rng.random_range(0..self.served.server_count());
        self.served.kill_and_restart_server_at(at);
        self.note(format!("(server {at} killed with -9 and started again)"));
    }

    fn kill_mount(&mut self) {
        let at = self.rng.random_range(0..self.roots.len());
        go(&self.outside);
        self.served.kill_mount(at);
        for slot in 0..SLOTS {
            if self.drivers[at].files[slot].take().is_some() {
                self.drivers.iter_mut().for_each(|driver| driver.elsewhere[slot] = false);
                let _ = self.model.close(slot);
            }
        }
        self.served.mount_again(at);
        self.roots[at] = place(sys::bytes(&self.served.root(at)));
        self.note(format!("(mount {at} killed with -9 and mounted again)"));
    }

    fn note(&mut self, what: String) {
        if self.trace.len() == TRACE_STEPS {
            self.trace.pop_front();
        }
        self.trace.push_back(format!("{}: {what}", self.done));
    }
}

/// Slots of open files that an operation is about. A file that is opened may replace another
/// mount's.
fn slots(op: &Op) -> Vec<usize> {
    match op {
        Op::Close { slot }
        | Op::Pread { slot, .. }
        | Op::Read { slot, .. }
        | Op::Pwrite { slot, .. }
        | Op::Write { slot, .. }
        | Op::Ftruncate { slot, .. }
        | Op::Fallocate { slot, .. }
        | Op::Extents { slot }
        | Op::Fsync { slot }
        | Op::MapWrite { slot, .. }
        | Op::LinkFd { slot, .. }
        | Op::Fchmod { slot, .. } => vec![*slot],
        Op::Copy { from, to, .. } => vec![*from, *to],
        _ => Vec::new(),
    }
}
