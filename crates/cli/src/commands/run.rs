//! `forebay run SCRIPT [ARGS]` and `forebay run --resume RECORD`: a job through its steps on
//! this machine. The steps are in `forebay_jobs::run`; here is what comes before the first and
//! after the last.

use super::validate;
use crate::args::RunArgs;
use crate::failure::{Outcome, Usage, print_json};
use anyhow::Context;
use clap::ValueEnum;
use forebay_jobs::check;
use forebay_jobs::run::report::EXIT_NOT_STARTED;
use forebay_jobs::run::{self, Finished, Program, RunConfig};
use std::path::Path;
use std::time::Instant;

/// Runs the command.
pub fn run(args: RunArgs) -> Outcome {
    let json = args.json;
    let finished = match (&args.resume, &args.script) {
        (Some(record), _) => run::resume(record, program()?)?,
        (None, Some(script)) => match start(&args, script)? {
            Some(finished) => finished,
            None => return Ok(EXIT_NOT_STARTED),
        },
        (None, None) => return Err(Usage("SCRIPT is missing".into()).into()),
    };
    if json {
        print_json(&finished)?;
    }
    Ok(finished.exit_code)
}

/// Validates and runs a script; `None` if it was refused, which is said already.
fn start(args: &RunArgs, script: &Path) -> anyhow::Result<Option<Finished>> {
    let begun = Instant::now();
    let name = script.display().to_string();
    let request = match validate::read(script)? {
        Ok(request) => request,
        Err(refused) => {
            validate::print_refused(&name, &refused, args.json)?;
            return Ok(None);
        }
    };
    let Some(flash) = check::flash_dir(args.flash.as_deref()) else {
        let text = "no flash directory: give --flash DIR, or set FOREBAY_FLASH";
        return Err(Usage(text.into()).into());
    };
    let report = check::check(&request, Some(&flash));
    if !report.findings.is_empty() {
        validate::print_findings(&name, &report);
        if args.json {
            validate::print_report(&name, &request, &report)?;
        }
        return Ok(None);
    }
    let store = args.store.and_then(|store| store.to_possible_value());
    let finished = run::run(RunConfig {
        script: script.to_path_buf(),
        args: args.script_args.clone(),
        request,
        validate_s: begun.elapsed().as_secs_f64(),
        flash,
        mount_dir: args.mount_dir.clone(),
        work_dir: args.work_dir.clone(),
        store: store.map(|value| value.get_name().to_string()),
        verify: args.verify.into(),
        keep: args.keep,
        program: program()?,
    })?;
    Ok(Some(finished))
}

/// This executable, and how the user called it.
fn program() -> anyhow::Result<Program> {
    let path = std::env::current_exe().context("find this executable")?;
    let called = std::env::args_os().next().unwrap_or_else(|| "forebay".into());
    Ok(Program { path, called: called.to_string_lossy().into_owned() })
}
