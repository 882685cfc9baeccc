//! `forebay exec -- COMMAND`: becomes a command with `libforebay_preload.so`, by which it asks the processes of mounts
//! instead of the kernel.

use super::{preload_library, trace_program, trace_run};
use crate::args::ExecArgs;
use crate::failure::Outcome;
use anyhow::Context;
use std::ffi::OsStr;
use std::path::Path;

/// The library.
pub const LIBRARY: &str = "libforebay_preload.so";
/// Where each process adds what it asked for.
const REPORT: &str = "FOREBAY_PRELOAD_REPORT";

/// Runs the command.
pub fn run(args: ExecArgs) -> Outcome {
    let library = preload_library::find(LIBRARY)?;
    let program = trace_program::find(&args.command[0]);
    let unseen = program.as_deref().and_then(trace_program::unseen);
    let harmful = unseen.as_ref().is_some_and(|unseen| unseen.harmful);
    let replaced = |name: &[u8]| args.report.is_some() && name == REPORT.as_bytes();
    let mut environment = preload_library::environment((!harmful).then_some(&library), replaced);
    if let Some(report) = &args.report {
        let file = match report.as_path() {
            standard if standard == Path::new("-") => standard.to_path_buf(),
            file => std::path::absolute(file)
                .with_context(|| format!("cannot report to {}", file.display()))?,
        };
        environment.push(preload_library::variable(OsStr::new(REPORT), file.as_os_str()));
        if let Some(unseen) = unseen {
            eprintln!("forebay: {}: it uses the mount alone", unseen.why);
        }
    }
    let Err(error) = trace_run::exec(&args.command, &environment);
    eprintln!("forebay: cannot run {}: {error}", args.command[0].display());
    Ok(trace_run::exit_code_of(&error))
}
