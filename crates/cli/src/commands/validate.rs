//! `forebay validate SCRIPT`: reads the `#DW` lines of a script, looks whether what they name is
//! there, and prints what the job asks for. Changes nothing. `forebay run` starts the same way.

use crate::args::ValidateArgs;
use crate::failure::{EXIT_FAILED, EXIT_OK, Outcome, print_json};
use anyhow::Context;
use forebay_jobs::check::{self, Report};
use forebay_jobs::problem::{Refused, printable};
use forebay_jobs::request::{JobRequest, StageRequest, script_path};
use forebay_jobs::script::{self, MAX_SCRIPT_BYTES};
use forebay_proto::control::StageKind;
use forebay_proto::size::format_bytes;
use std::io::Read;
use std::path::Path;

/// Runs the command.
pub fn run(args: ValidateArgs) -> Outcome {
    let name = args.script.display().to_string();
    let job = match read(&args.script)? {
        Ok(job) => job,
        Err(refused) => {
            print_refused(&name, &refused, args.json)?;
            return Ok(EXIT_FAILED);
        }
    };
    let report = check::check(&job, args.flash.as_deref());
    if args.json {
        print_report(&name, &job, &report)?;
    } else {
        print!("{}", describe(&name, &job, &report));
        print_findings(&name, &report);
    }
    Ok(if report.findings.is_empty() { EXIT_OK } else { EXIT_FAILED })
}

/// Says what is wrong with a script's lines: as JSON on standard output, or as text.
pub fn print_refused(name: &str, refused: &Refused, json: bool) -> anyhow::Result<()> {
    if json {
        return print_json(&serde_json::json!({
            "script": name, "valid": false,
            "problems": refused.problems, "further_problems": refused.further,
        }));
    }
    eprintln!("{refused}\n{}: refused, nothing was started", printable(name));
    Ok(())
}

/// Prints what a job asks for and what was found, as JSON.
pub fn print_report(name: &str, job: &JobRequest, report: &Report) -> anyhow::Result<()> {
    let valid = report.findings.is_empty();
    print_json(&serde_json::json!({
        "script": name, "valid": valid, "job": job, "check": report,
    }))
}

/// Reads and parses a script.
pub fn read(path: &Path) -> anyhow::Result<Result<JobRequest, Refused>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_SCRIPT_BYTES as u64 + 1).read_to_end(&mut bytes))
        .with_context(|| format!("read script {}", path.display()))?;
    Ok(script::parse(&path.display().to_string(), &bytes))
}

/// Says on standard error what would make the job fail.
pub fn print_findings(name: &str, report: &Report) {
    for finding in &report.findings {
        eprintln!("{}: {finding}", printable(name));
    }
}

/// What a job asks for, as a table.
fn describe(name: &str, job: &JobRequest, report: &Report) -> String {
    let modes: Vec<&str> = job.access_modes.iter().map(|m| m.word()).collect();
    let variables: Vec<&str> = job.access_modes.iter().map(|m| job.variable(*m)).collect();
    let kind = match &job.cache {
        Some(pfs) => format!("cache of {pfs}"),
        None => "scratch".into(),
    };
    let interpreter = job.interpreter.as_deref().unwrap_or("/bin/sh (no #! line)");
    let mut lines = vec![
        format!("script       {}", printable(name)),
        format!("run by       {interpreter}"),
        format!("buffer       {kind}, {}, {}", format_bytes(job.capacity_bytes), modes.join(",")),
        format!("environment  {}, FOREBAY_BUFFER", variables.join(", ")),
    ];
    if let (Some(flash), Some(free)) = (&report.flash, report.flash_free_bytes) {
        lines.push(format!("flash        {}, {} free", flash.display(), format_bytes(free)));
    }
    if !job.stage_in.is_empty() {
        let more = if report.stage_in_complete { "" } else { " or more" };
        let bytes = format_bytes(report.stage_in_bytes);
        lines.push(format!("stages in    {} entries, {bytes}{more}", report.stage_in_entries));
    }
    let rows: Vec<[String; 5]> = stage_rows("stage_in", &job.stage_in, true)
        .chain(stage_rows("stage_out", &job.stage_out, false))
        .collect();
    if !rows.is_empty() {
        lines.push(String::new());
        lines.extend(align(&["line", "step", "type", "from", "to"], &rows));
    }
    if !job.notes.is_empty() {
        lines.push(String::new());
        lines.extend(job.notes.iter().map(|n| format!("note: line {}: {}", n.line, n.text)));
    }
    lines.join("\n") + "\n"
}

fn stage_rows<'j>(
    step: &'j str,
    stages: &'j [StageRequest],
    inward: bool,
) -> impl Iterator<Item = [String; 5]> + 'j {
    stages.iter().map(move |stage| {
        let buffer = script_path(stage.mode, &stage.buffer_path);
        let pfs = printable(&stage.pfs_path.to_string());
        let (from, to) = if inward { (pfs, buffer) } else { (buffer, pfs) };
        let kind = match stage.kind {
            StageKind::File => "file",
            StageKind::Directory => "directory",
            StageKind::List => "list",
            StageKind::Auto => "auto",
        };
        let tolerant = if stage.tolerate_errors { " (errors tolerated)" } else { "" };
        [stage.line.to_string(), step.into(), kind.into(), from, to + tolerant]
    })
}

/// Lays out a table; columns as wide as their widest cell.
fn align<const N: usize>(head: &[&str; N], rows: &[[String; N]]) -> Vec<String> {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |cells: Vec<&str>| {
        let cells = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    std::iter::once(line(head.to_vec()))
        .chain(rows.iter().map(|row| line(row.iter().map(String::as_str).collect())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_job_asks_for_is_laid_out() {
        let script = b"#!/bin/bash\n#SBATCH -N 1\n\
            #DW jobdw type=scratch capacity=4GiB access_mode=striped,private pool=wlm_pool\n\
            #DW stage_in type=directory source=/pfs/in destination=$DW_JOB_STRIPED/in\n\
            #DW stage_out type=file source=$DW_JOB_PRIVATE/log destination=/pfs/log \\\n\
            #DW   tolerate_errors=yes\n\
            srun ./app\n";
        let job = script::parse("job.sh", script).unwrap();
        let report = Report {
            stage_in_complete: true,
            stage_in_entries: 12,
            stage_in_bytes: 5 << 20,
            flash: Some("/nvme".into()),
            flash_free_bytes: Some(100 << 30),
            findings: Vec::new(),
        };
        insta::assert_snapshot!(describe("job.sh", &job, &report));
    }
}
