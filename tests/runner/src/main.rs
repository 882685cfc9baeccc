//! Runs the tests of the workspace: those of all executables together, each in a process of its own,
//! several at once.
//!
//! `cargo test` runs one executable after the other, so a test that waits holds up everything, and tests
//! of one executable share a process: its descriptors (which a fork copies), umask and working directory.
//! Here none of that is shared, a test that hangs is killed and named, and `tests/tiers.conf` says which
//! tests belong to which run, which ones may not run beside others, and how long one may take.
//! A test that failed is tried again alone, after all others: one that passes then is named as flaky at the end.
//!
//! Used by `make check`, `make test` and `make test-full`, and by hand: CONTRIBUTING.md.
//!
//! * [`tiers`]: the file that says what runs when.
//! * [`build`]: builds the executables of tests and lists what is in them.
//! * [`junit`]: results for CI systems.
//! * [`leftovers`]: what tests leave on the machine.
//! * [`promises`]: the tests that docs/PROMISES.md and docs/TRAPS.md name, and whether a run has them.
//! * [`run`]: processes, limits, output, times.
//! * [`stacks`]: where the processes of a test hang that is killed by its limit.
//! * [`stalls`]: when the machine stood still.

mod build;
mod junit;
mod leftovers;
mod promises;
mod run;
mod stacks;
mod stalls;
mod tiers;

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tiers::{Tier, Tiers};

const USAGE: &str = "\
usage: test-runner [OPTIONS] [NAME...]

Builds all tests and runs those of a tier, or with NAME those whose full name contains one of them
(CRATE::MODULE::TEST, CRATE/FILE::TEST, system::FILE::TEST; NAME='x$' must end in x).

  --tier check|test|full  which tests (test; with NAME: full)
  --jobs N                how many at once, beside those that mostly wait (twice the number of processors)
  --repeat N              each test N times, none tried again: for a test that fails now and then
  --list                  name the tests, run none
  --promises              only check that the tier has a test of each promise in docs/
  --verbose               a line for each test, also if it passed
";

struct Options {
    tier: Option<Tier>,
    jobs: usize,
    repeat: usize,
    is_list: bool,
    is_promises: bool,
    is_verbose: bool,
    names: Vec<String>,
}

fn options() -> Result<Options> {
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    let mut options = Options {
        tier: None,
        jobs: 2 * processors,
        repeat: 1,
        is_list: false,
        is_promises: false,
        is_verbose: false,
        names: Vec::new(),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--tier" => options.tier = Some(value()?.parse()?),
            "--jobs" => options.jobs = value()?.parse().context("--jobs wants a number")?,
            "--repeat" => options.repeat = value()?.parse().context("--repeat wants a number")?,
            "--list" => options.is_list = true,
            "--promises" => options.is_promises = true,
            "--verbose" => options.is_verbose = true,
            "--help" | "-h" => {
                print!("{USAGE}");
                std::process::exit(0);
            }
            name if !name.starts_with('-') => options.names.push(name.to_string()),
            other => bail!("no such option: {other}\n{USAGE}"),
        }
    }
    if options.jobs == 0 || options.repeat == 0 {
        bail!("--jobs and --repeat want at least 1");
    }
    Ok(options)
}

/// The directory of the workspace: this crate is built in it.
fn workspace() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(here.ancestors().nth(2).context("this crate is not in tests/runner")?.to_path_buf())
}

fn main() -> Result<ExitCode> {
    let options = options()?;
    let workspace = workspace()?;
    let tiers = Tiers::read(&workspace.join("tests/tiers.conf"))?;
    let names = &options.names;
    let tier = options.tier.unwrap_or(if names.is_empty() { Tier::Test } else { Tier::Full });
    let built = build::build(&workspace, tier == Tier::Check)?;
    if tier != Tier::Check {
        tiers.check(&built.tests)?;
    }
    let mut tests: Vec<_> =
        built.tests.iter().filter(|t| tiers.has(tier, &t.name)).cloned().collect();
    if tier != Tier::Check {
        promises::check(&workspace, &tests, tier)?;
    }
    if options.is_promises {
        return Ok(ExitCode::SUCCESS);
    }
    if !names.is_empty() {
        tests.retain(|test| names.iter().any(|name| is_named(&test.name, name)));
        if tests.is_empty() {
            bail!("no test's name contains {}", names.join(" or "));
        }
    }
    if options.is_list {
        tests.iter().for_each(|test| println!("{}", test.name));
        return Ok(ExitCode::SUCCESS);
    }
    let plan = run::Plan {
        tests: tests.iter().flat_map(|test| vec![test.clone(); options.repeat]).collect(),
        jobs: options.jobs,
        is_retrying: options.repeat == 1,
        is_verbose: options.is_verbose || !names.is_empty(),
        output: built.target.join("test-output"),
        times: built.target.join("test-times.json"),
        junit: built.target.join("test-junit.xml"),
        variables: built.variables,
        stalls: stalls::Stalls::watch()?,
    };
    run::run(&plan, &tiers)
}

fn is_named(test: &str, name: &str) -> bool {
    match name.strip_suffix('$') {
        Some(end) => test.ends_with(end),
        None => test.contains(name),
    }
}
