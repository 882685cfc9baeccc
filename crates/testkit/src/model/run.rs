//! Runs random steps on the model and on a real file system side by side.

use super::check::{self, Inos};
use super::drive::Driver;
use super::generate::Generator;
use super::op::Step;
use super::state::Model;
use crate::buffer::{self, Buffer};
use crate::procs;
use crate::sys;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::collections::VecDeque;
use std::path::Path;

/// Steps kept to show when one fails.
const TRACE_STEPS: usize = 25;

/// How long to run, and how.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Source of all chance.
    pub seed: u64,
    /// Operations.
    pub steps: u64,
    /// The whole tree is compared every so many steps.
    pub whole_every: u64,
    /// The daemon is killed with -9 and restarted every so many steps; 0 = never.
    pub kill_every: u64,
}

/// One run: the model and all that goes with it.
struct Run {
    plan: Plan,
    model: Model,
    generator: Generator,
    inos: Inos,
    trace: VecDeque<String>,
    done: u64,
}

impl Run {
    fn new(plan: Plan) -> Run {
        let rng = StdRng::seed_from_u64(plan.seed);
        Run {
            plan,
            model: Model::new(),
            generator: Generator::new(rng, !buffer::is_raw()),
            inos: Inos::default(),
            trace: VecDeque::new(),
            done: 0,
        }
    }

    fn step(&mut self, driver: &mut Driver) -> Result<(), String> {
        let step = self.generator.step(&self.model);
        self.note(&step);
        self.model.before = sys::now().0;
        let real = driver.run(&step);
        let wanted = self.model.apply(&step, &real)?;
        if real != wanted {
            return Err(format!("answered {real:?}, must be {wanted:?}"));
        }
        check::touched(&mut self.model, driver, &mut self.inos)?;
        self.done += 1;
        if self.done.is_multiple_of(self.plan.whole_every) {
            check::all(&mut self.model, driver, &mut self.inos)?;
        }
        Ok(())
    }

    fn note(&mut self, step: &Step) {
        if self.trace.len() == TRACE_STEPS {
            self.trace.pop_front();
        }
        let (number, who) = (self.done, &step.who);
        self.trace.push_back(format!("{number}: {who:?} umask {:03o}: {:?}", step.umask, step.op));
    }

    /// Runs until the end or the next kill, in a thread whose root is the buffer's. Gives back
    /// the files that are still open.
    fn section(&mut self, root: &Path) -> Driver {
        let root = sys::c(sys::bytes(root));
        procs::apart(|| {
            // SAFETY: a valid string; the thread has a root directory of its own.
            assert_eq!(unsafe { libc::chroot(root.as_ptr()) }, 0, "{:?}", sys::last());
            std::env::set_current_dir("/").unwrap();
            procs::umask(0);
            let mut driver = Driver::new();
            let mut result = check::all(&mut self.model, &driver, &mut self.inos);
            let end = match self.plan.kill_every {
                0 => self.plan.steps,
                every => self.plan.steps.min((self.done / every + 1) * every),
            };
            while result.is_ok() && self.done < end {
                result = self.step(&mut driver);
            }
            let result = result.and_then(|()| check::all(&mut self.model, &driver, &mut self.inos));
            if let Err(why) = result {
                let trace = Vec::from(std::mem::take(&mut self.trace)).join("\n  ");
                let seed = self.plan.seed;
                panic!("step {} of FOREBAY_SEED={seed}: {why}\nlast steps:\n  {trace}", self.done);
            }
            driver
        })
    }
}

fn prepare(root: &Path) {
    sys::chmod(sys::bytes(root), 0o1777).unwrap();
}

/// Runs a plan on a buffer, with kills of its daemon as planned.
pub fn run(buffer: &Buffer, plan: Plan) {
    prepare(&buffer.root());
    let mut run = Run::new(plan);
    while run.done < plan.steps {
        let driver = run.section(&buffer.root());
        if run.done < plan.steps {
            // Files stay open while the daemon dies.
            if !buffer::is_raw() {
                buffer.kill();
            }
            drop(driver);
            run.model.close_all();
            if !buffer::is_raw() {
                buffer.start();
            }
            run.trace.push_back("(killed with -9 and started again)".into());
        }
    }
}

/// Runs a plan in a directory of a file system, without kills.
pub fn run_in(dir: &Path, plan: Plan) {
    prepare(dir);
    let mut run = Run::new(Plan { kill_every: 0, ..plan });
    run.section(dir);
}
