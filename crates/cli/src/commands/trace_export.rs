//! `forebay trace export`: a trace in the format of another program. The work is in `forebay_trace_export`.

use crate::args::{ExportFormat, TraceExportArgs};
use crate::failure::{EXIT_OK, Outcome, at, print_json, visible};
use anyhow::Context;
use forebay_trace_export::{Format, export};
use forebay_trace_report::Options;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// What `--json` prints.
#[derive(Serialize)]
struct Written<'a> {
    path: &'a Path,
    format: &'static str,
    files: u64,
    exported_calls: u64,
    left_out_calls: u64,
    not_held: &'a [String],
    problems: &'a [String],
}

/// Runs the command.
pub fn run(args: TraceExportArgs) -> Outcome {
    let (format, name) = match args.to {
        ExportFormat::Chrome => (Format::Chrome, "chrome"),
        ExportFormat::IorCsv => (Format::IorCsv, "ior-csv"),
        ExportFormat::Fio => (Format::Fio, "fio"),
        ExportFormat::Ftio => (Format::Ftio, "ftio"),
        ExportFormat::Darshan => (Format::Darshan, "darshan"),
        ExportFormat::Parquet => (Format::Parquet, "parquet"),
        ExportFormat::Workload => (Format::Workload, "workload"),
    };
    let to = match args.output {
        Some(path) => path,
        None => default_output(&args.traces, format, name)?,
    };
    let options = Options { all_files: args.all_files };
    let exported = export(&args.traces, options, format, &to)?;
    for problem in &exported.problems {
        eprintln!("forebay: INCOMPLETE: {}", visible(problem));
    }
    if args.json {
        print_json(&Written {
            path: &to,
            format: name,
            files: exported.files,
            exported_calls: exported.calls,
            left_out_calls: exported.left_out,
            not_held: &exported.notes,
            problems: &exported.problems,
        })?;
        return Ok(EXIT_OK);
    }
    for note in &exported.notes {
        eprintln!("forebay: note: {}", visible(note));
    }
    let (calls, left_out) = (exported.calls, exported.left_out);
    println!("{}: {calls} calls as {name}, {left_out} left out", to.display());
    Ok(EXIT_OK)
}

/// The name of the trace, in the working directory.
fn default_output(traces: &[PathBuf], format: Format, name: &str) -> anyhow::Result<PathBuf> {
    let first = traces.first().context("no trace was given")?;
    let first = std::fs::canonicalize(first).map_err(at("read", first))?;
    let own = first.file_name().map(|own| own.to_string_lossy().into_owned());
    let own = own.unwrap_or_else(|| "trace".into());
    Ok(PathBuf::from(match format.extension() {
        "" => format!("{own}.{name}"),
        // Both are JSON.
        "json" if format == Format::Ftio => format!("{own}.ftio.json"),
        extension => format!("{own}.{extension}"),
    }))
}
