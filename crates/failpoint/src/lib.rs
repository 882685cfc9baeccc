//! Failpoints: points between two steps of work on flash, where tests kill the process ([`kill`]).
//!
//! They are there in each build with debug assertions, which is what all tests run (so crates are not
//! compiled once more for tests with another feature), and in others with the feature `failpoints`.
//! Elsewhere, as in what is installed, a point is nothing.

/// True where points can kill.
pub const ENABLED: bool = cfg!(any(debug_assertions, feature = "failpoints"));

/// A point between two steps.
#[inline]
pub fn step(_what: &str) {
    #[cfg(any(debug_assertions, feature = "failpoints"))]
    kill::passed(_what);
}

/// The variable [`kill::KILL_AT`] says at which point (counted from 1) the process is killed, as by
/// `kill -9`. It prints `killed after: WHAT` first.
#[cfg(any(debug_assertions, feature = "failpoints"))]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]
pub mod kill {
    use std::cell::RefCell;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// The variable.
    pub const KILL_AT: &str = "FOREBAY_TEST_KILL_AT";
    /// The variable has tests kill at each of their points (`make test-full`) instead of a sample of them.
    const EVERY: &str = "FOREBAY_TEST_EVERY_POINT";
    /// A sample is one of so many points.
    const SAMPLED_ONE_IN: usize = 3;
    /// Only points whose names begin so are counted.
    pub const KILL_ONLY: &str = "FOREBAY_TEST_KILL_ONLY";
    /// The variable says to which file each point is written as it is passed, for who looks for a fault.
    const TRACE: &str = "FOREBAY_TEST_STEPS_TO";
    static TRACED: OnceLock<Option<std::fs::File>> = OnceLock::new();
    static ONLY: OnceLock<String> = OnceLock::new();
    static PASSED: AtomicU64 = AtomicU64::new(0);
    static AT: OnceLock<Option<u64>> = OnceLock::new();

    /// Hears of a point.
    pub type Hook = Box<dyn FnMut(&str)>;

    thread_local! {
        /// Told of each point that this thread passes; a test that runs several servers in one
        /// process kills one of them so.
        pub static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    }

    /// Writes a line to the trace, if there is one.
    pub fn trace(line: &str) {
        let open = |path| std::fs::File::options().append(true).create(true).open(path).ok();
        let file = TRACED.get_or_init(|| std::env::var_os(TRACE).and_then(open));
        if let Some(mut file) = file.as_ref() {
            use std::io::Write;
            let thread = std::thread::current();
            let line = format!("{} {:?} {line}\n", thread.name().unwrap_or("?"), thread.id());
            let _ = file.write_all(line.as_bytes());
        }
    }

    /// A thread passes a point; [`super::step`] calls it.
    pub fn passed(what: &str) {
        trace(what);
        HOOK.with_borrow_mut(|hook| {
            if let Some(hook) = hook {
                hook(what);
            }
        });
        let at = AT.get_or_init(|| std::env::var(KILL_AT).ok()?.parse().ok());
        let Some(at) = *at else { return };
        let only = ONLY.get_or_init(|| std::env::var(KILL_ONLY).unwrap_or_default());
        if !what.starts_with(only.as_str()) {
            return;
        }
        if PASSED.fetch_add(1, Ordering::SeqCst) + 1 == at {
            use std::io::Write;
            // Past the test harness, which keeps what is printed for later.
            let _ = writeln!(std::io::stderr().lock(), "killed after: {what}");
            // SAFETY: only sends a signal, to this process, which ends here.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            loop {
                std::thread::park();
            }
        }
    }

    /// Runs the test `name` of this program in a process that is killed at the point `at`, with
    /// the given variables; where it was killed, or `None` if it ended in order before.
    pub fn run_killed(name: &str, variables: &[(&str, &str)], at: u64) -> Option<String> {
        use std::os::unix::process::ExitStatusExt;
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture", "--test-threads", "1"])
            .env(KILL_AT, at.to_string())
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.signal() {
            Some(libc::SIGKILL) => {
                let place = said.lines().find_map(|line| line.strip_prefix("killed after: "));
                Some(place.unwrap_or("?").to_string())
            }
            Some(signal) => panic!("{name} was ended by signal {signal}: {said}"),
            None => {
                let out = String::from_utf8_lossy(&output.stdout).into_owned();
                assert!(output.status.success(), "{name} failed: {out}{said}");
                assert!(out.contains("1 passed"), "{name} is no test: {out}");
                None
            }
        }
    }

    /// The points at which a test kills, counted from 1: all, or a sample that is another one in each run. Whoever
    /// fails says at which point, and can be killed there again.
    pub fn points() -> std::iter::StepBy<std::ops::RangeFrom<u64>> {
        use std::hash::{BuildHasher, RandomState};
        let one_in = if every_point() { 1 } else { SAMPLED_ONE_IN };
        let first = 1 + RandomState::new().hash_one(0) % one_in as u64;
        (first..).step_by(one_in)
    }

    /// True if tests are to try all that they can, whatever time it takes.
    pub fn every_point() -> bool {
        std::env::var_os(EVERY).is_some()
    }

    /// Kills a test at its [`points`], and judges what is left: `run` gets the number of the point, and
    /// which points count (`None`: all). Where it was killed. A sample does not have all points, and with several threads
    /// they come in another order each time: each of those `wanted` that was missed is killed at by its name.
    pub fn at_each_point(
        wanted: &[&str],
        mut run: impl FnMut(u64, Option<&str>) -> Option<String>,
    ) -> Vec<String> {
        let mut places: Vec<String> = points().map_while(|at| run(at, None)).collect();
        for place in wanted {
            if !places.iter().any(|p| p == place) {
                let killed = run(1, Some(place));
                assert_eq!(killed.as_deref(), Some(*place), "no kill after it: {places:?}");
                places.extend(killed);
            }
        }
        places
    }
}
