//! `forebay validate SCRIPT`: reads the `#DW` lines of a script, looks whether what they name is
//! there, and prints what the job asks for. Changes nothing. `forebay run` starts the same way.

use crate::args::ValidateArgs;
use crate::failure::{EXIT_FAILED, EXIT_OK, Outcome, at, print_json};
use crate::scheduler::SiteBack;
use crate::site;
use forebay_jobs::check::{self, Report, StoreRoom};
use forebay_jobs::hooks::answers::Pool;
use forebay_jobs::hooks::site::Site;
use forebay_jobs::hooks::{Back, Refusal, setup};
use forebay_jobs::problem::{Refused, printable};
use forebay_jobs::request::{JobRequest, StageRequest, persistent_variable, script_path_of};
use forebay_jobs::script::{self, Dialect, MAX_SCRIPT_BYTES};
use forebay_proto::control::{StageKind, StoreKind};
use forebay_proto::layout::Logs;
use forebay_proto::net::ledger::{LedgerReply, LedgerRequest};
use forebay_proto::size::{entries_text, format_bytes};
use forebay_store::room::room;
use std::io::Read;
use std::path::Path;

/// Runs the command.
pub fn run(args: ValidateArgs) -> Outcome {
    let name = args.script.display().to_string();
    if args.slurm {
        return slurm(&args, &name);
    }
    let job = match read(&args.script)? {
        Ok(job) => job,
        Err(refused) => {
            print_refused(&name, &refused, args.json)?;
            return Ok(EXIT_FAILED);
        }
    };
    let flash = site::flash(args.flash.as_deref())?;
    let room_of = |capacity_bytes: u64| store_room(capacity_bytes, flash.as_deref(), None);
    let report = check::check(&job, flash.as_deref(), Some(&room_of));
    if args.json {
        print_report(&name, &job, &report)?;
    } else {
        print!("{}", describe(&name, &job, &report));
        print_findings(&name, &report);
    }
    Ok(if report.findings.is_empty() { EXIT_OK } else { EXIT_FAILED })
}

/// What the store of a buffer of this capacity takes, if it is to be on this node; `None` if there cannot be one: what is wrong
/// with the flash directory is found by the check.
pub fn store_room(
    capacity_bytes: u64,
    flash: Option<&Path>,
    kind: Option<StoreKind>,
) -> Option<StoreRoom> {
    let room = room(&check::flash_dir(flash)?, capacity_bytes, kind).ok()?;
    Some(StoreRoom {
        flash_bytes: room.flash_bytes,
        own_bytes: room.own_bytes,
        block_bytes: room.block_bytes,
        file_bytes: room.file_bytes,
        metadata_bytes: room.metadata_bytes,
        entry_bytes: room.entry_bytes,
        name_byte_bytes: room.name_byte_bytes,
    })
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
        "script": name, "valid": valid, "request": job, "check": report,
    }))
}

/// `--slurm`: what `job_process` would say, and what would be allocated.
fn slurm(args: &ValidateArgs, name: &str) -> Outcome {
    let job = match read_for(Dialect::Scheduler, &args.script)? {
        Ok(job) => job,
        Err(refused) => {
            print_refused(name, &refused, args.json)?;
            return Ok(EXIT_FAILED);
        }
    };
    let site = Site::load(&Site::path())?;
    let pools = site.as_ref().map_or_else(Vec::new, pools);
    let refused = site.as_ref().and_then(|site| setup::check_site(site, &pools, &job).err());
    let pool = site.as_ref().and_then(|site| setup::pool_of(site, &job).ok());
    let pool = pool.and_then(|name| pools.iter().find(|pool| pool.id == name));
    let granularity = pool.map_or(1, |pool| pool.granularity.max(1));
    let allocated = job.capacity_bytes.next_multiple_of(granularity);
    if args.json {
        let why = refused.as_ref().map(|refusal| refusal.0.as_str());
        print_json(&serde_json::json!({
            "script": name, "valid": refused.is_none(), "request": job, "why": why,
            "pool_allocated_bytes": allocated,
        }))?;
    } else {
        let report = Report { stage_in_complete: true, ..Report::default() };
        print!("{}", describe(name, &job, &report));
        if let Some(pool) = pool {
            println!("allocated    {} of pool {}", format_bytes(allocated), pool.id);
        } else if site.is_none() {
            println!("note: there is no {}: no pool is known here", Site::path().display());
        } else {
            println!("note: no server of the pool answers: its room is not known");
        }
        if let Some(Refusal(why)) = &refused {
            eprintln!("{}: {why}", printable(name));
        }
    }
    Ok(if refused.is_none() { EXIT_OK } else { EXIT_FAILED })
}

/// What the pools of a site have; those that do not answer are left out.
fn pools(site: &Site) -> Vec<Pool> {
    let back = SiteBack::new(site);
    let ask = |name: &str| {
        let pool = site.pools.get(name)?;
        match back.ask(pool, None, LedgerRequest::Pool) {
            Ok(LedgerReply::Pool(status)) => Some(Pool::of(name, &status, pool.servers)),
            _ => None,
        }
    };
    site.pool_names().into_iter().filter_map(ask).collect()
}

/// Reads and parses a script for `forebay run`.
pub fn read(path: &Path) -> anyhow::Result<Result<JobRequest, Refused>> {
    read_for(Dialect::Run, path)
}

fn read_for(dialect: Dialect, path: &Path) -> anyhow::Result<Result<JobRequest, Refused>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_SCRIPT_BYTES as u64 + 1).read_to_end(&mut bytes))
        .map_err(at("read script", path))?;
    Ok(script::parse_for(dialect, &path.display().to_string(), &bytes))
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
        None => match job.log {
            Logs::Off => "scratch".into(),
            Logs::Commit => {
                "scratch in logs: other nodes see what was written after fsync or close".into()
            }
            Logs::Strict => {
                "scratch in logs: readers see all that was written, and wait for who writes".into()
            }
        },
    };
    let interpreter = job.interpreter.as_deref().unwrap_or("/bin/sh (no #! line)");
    let mut lines =
        vec![format!("script       {}", printable(name)), format!("run by       {interpreter}")];
    if !modes.is_empty() {
        let capacity = format_bytes(job.capacity_bytes);
        lines.push(format!("buffer       {kind}, {capacity}, {}", modes.join(",")));
        lines.push(format!("environment  {}, FOREBAY_BUFFER", variables.join(", ")));
    }
    if job.preload {
        lines.push(
            "preload      files are opened beside the mount, unless the buffer is at servers"
                .into(),
        );
    }
    if job.swap_bytes_per_node > 0 {
        let size = format_bytes(job.swap_bytes_per_node);
        lines.push(format!("swap         {size} on each node, on its own flash"));
    }
    for used in &job.persistent {
        lines.push(format!("uses         {}, ${}", used.name, persistent_variable(&used.name)));
    }
    for made in &job.create_persistent {
        let capacity = format_bytes(made.capacity_bytes);
        let what = made.cache.as_ref().map_or(String::new(), |pfs| format!(", a cache of {pfs}"));
        lines.push(format!("makes        persistent buffer {}, {capacity}{what}", made.name));
    }
    for gone in &job.destroy_persistent {
        lines.push(format!("destroys     persistent buffer {}", gone.name));
    }
    if let (Some(flash), Some(free)) = (&report.flash, report.flash_free_bytes) {
        lines.push(format!("flash        {}, {} free", flash.display(), format_bytes(free)));
    }
    if !job.stage_in.is_empty() {
        let more = if report.stage_in_complete { "" } else { " or more" };
        let others = report.stage_in_other_entries;
        let files = report.stage_in_entries.saturating_sub(others);
        let brought = entries_text(files, report.stage_in_bytes, others);
        let takes = format_bytes(report.stage_in_store_bytes);
        lines.push(format!("stages in    {brought}{more}; they take {takes} of the capacity"));
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
        let buffer = script_path_of(stage.mode, stage.persistent.as_deref(), &stage.buffer_path);
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
            stage_in_other_entries: 2,
            stage_in_bytes: 5 << 20,
            stage_in_store_bytes: 6 << 20,
            stage_in_metadata_bytes: 4_000,
            flash: Some("/nvme".into()),
            flash_free_bytes: Some(100 << 30),
            findings: Vec::new(),
        };
        insta::assert_snapshot!(describe("job.sh", &job, &report));
    }
}
