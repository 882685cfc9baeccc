//! `forebay report TRACE...`: what a trace says. The work is in `forebay_trace_report`.

use crate::args::ReportArgs;
use crate::failure::{EXIT_OK, Outcome, at, print_json};
use forebay_trace_report::{Options, Report, ReportError, Run, html, report, text};
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Clears a terminal and goes to its first place.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Runs the command.
pub fn run(args: ReportArgs) -> Outcome {
    let options = Options { all_files: args.all_files };
    if args.watch {
        return watch(&args, options);
    }
    let found = report(&args.traces, options)?;
    if let Some(file) = &args.html {
        return page(&args, file, &found, options);
    }
    show(&args, &found, false)?;
    Ok(EXIT_OK)
}

fn show(args: &ReportArgs, found: &Report, clear: bool) -> anyhow::Result<()> {
    if args.json {
        return print_json(found);
    }
    let mut out = std::io::stdout().lock();
    if clear {
        out.write_all(CLEAR.as_bytes())?;
    }
    out.write_all(text(found).as_bytes())?;
    out.flush()?;
    Ok(())
}

/// What a run is called in a page: the name of its trace.
fn name(trace: &Path) -> String {
    let whole = std::fs::canonicalize(trace).unwrap_or_else(|_| trace.to_path_buf());
    whole.file_name().map_or_else(|| "trace".into(), |name| name.to_string_lossy().into_owned())
}

fn page(args: &ReportArgs, file: &Path, found: &Report, options: Options) -> Outcome {
    let first = args.traces.first().map_or_else(String::new, |trace| name(trace));
    let mut runs = vec![Run { name: &first, report: found }];
    let other = match &args.against {
        Some(trace) => Some((name(trace), report(std::slice::from_ref(trace), options)?)),
        None => None,
    };
    let mut second = String::new();
    if let Some((name, report)) = &other {
        second.push_str(name);
        if second == first {
            second.push_str(" (second)");
        }
        runs.push(Run { name: &second, report });
    }
    std::fs::write(file, html(&runs)).map_err(at("cannot write", file))?;
    for run in &runs {
        for problem in &run.report.problems {
            eprintln!("forebay: INCOMPLETE: {}", crate::failure::visible(problem));
        }
    }
    println!("{}: open it in a browser", file.display());
    Ok(EXIT_OK)
}

/// Looks again and again. The trace is read anew each time, so memory does not grow with it.
fn watch(args: &ReportArgs, options: Options) -> Outcome {
    let clear = std::io::stdout().is_terminal() && !args.json;
    let pause = Duration::from_secs_f64(args.interval);
    let waited = wait_for(&args.traces, pause);
    loop {
        let begun = Instant::now();
        // Both are asked before the look: what comes after it is seen by the next one. A directory that the run has just made gets
        // its record next, so it is asked first whether it is empty.
        let begins = waited && args.traces.iter().any(|trace| is_empty_directory(trace));
        let running = args.traces.iter().any(|trace| super::trace_run::runs(trace));
        match report(&args.traces, options) {
            Ok(found) => show(args, &found, clear)?,
            // The run has just been started.
            Err(ReportError::Nothing { .. }) if running || begins => {}
            Err(error) => return Err(error.into()),
        }
        if !(running || begins) {
            return Ok(EXIT_OK);
        }
        std::thread::sleep(pause.max(begun.elapsed()));
    }
}

/// Waits until all traces are there: a job that is queued makes its trace when it begins. True if any was not.
fn wait_for(traces: &[PathBuf], pause: Duration) -> bool {
    let missing = |trace: &&PathBuf| {
        // Every other error is told by the look.
        std::fs::metadata(trace).is_err_and(|error| error.kind() == ErrorKind::NotFound)
    };
    let mut told = None;
    while let Some(trace) = traces.iter().find(missing) {
        if told != Some(trace) {
            let name = trace.to_string_lossy();
            let name = crate::failure::visible(&name);
            eprintln!("forebay report: waiting for {name}, which is not there yet (Ctrl-C ends)");
            told = Some(trace);
        }
        std::thread::sleep(pause);
    }
    told.is_some()
}

fn is_empty_directory(place: &Path) -> bool {
    std::fs::read_dir(place).is_ok_and(|mut entries| entries.next().is_none())
}
