//! `forebay run SCRIPT [ARGS]`, `forebay run --resume RECORD` and `--discard RECORD`: a job through
//! its steps on this machine, to its end, or given up. The steps are in `forebay_jobs::run`; here is what comes before the first and
//! after the last.

use super::{exec, preload_library, validate};
use crate::args::RunArgs;
use crate::failure::{Outcome, Usage, print_json};
use crate::job_servers::JobServers;
use crate::site;
use anyhow::Context;
use clap::ValueEnum;
use forebay_jobs::check;
use forebay_jobs::run::nodes::{HOST_MARK, MAX_NODES, Node};
use forebay_jobs::run::record::Outcome as JobOutcome;
use forebay_jobs::run::report::EXIT_NOT_STARTED;
use forebay_jobs::run::served::refused_on_nodes;
use forebay_jobs::run::words::words;
use forebay_jobs::run::{self, Finished, Program, RunConfig, ServedConfig, discard};
use forebay_net::ServerAddress;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Runs the command.
pub fn run(args: RunArgs) -> Outcome {
    let json = args.json;
    if let Some(record) = &args.discard {
        let discarded = discard::discard(record, &program()?, args.force)?;
        if json {
            print_json(&discarded)?;
        }
        return Ok(discarded.exit_code);
    }
    let finished = match (&args.resume, &args.script) {
        (Some(record), _) => run::resume(record, program()?)?,
        (None, Some(script)) => match start(&args, script)? {
            Some(finished) => finished,
            None => {
                if let Some(text) = JobOutcome::NotStarted.exit_text(None) {
                    eprintln!("forebay: {text}");
                }
                return Ok(EXIT_NOT_STARTED);
            }
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
    if request.preload {
        preload_library::find(exec::LIBRARY)?;
    }
    let served = served(args)?;
    let flash = site::flash(args.flash.as_deref())?;
    let (flash, report) = match (&served, check::flash_dir(flash.as_deref())) {
        (Some(served), found) => {
            if let Some(why) = refused_on_nodes(&request, served.nodes.len()) {
                return Err(Usage(why).into());
            }
            // It holds the job's record and mount point, no data.
            (found.unwrap_or_else(std::env::temp_dir), check::check_named(&request))
        }
        (None, Some(flash)) => {
            let kind = args.store.map(Into::into);
            let room_of =
                |capacity_bytes: u64| validate::store_room(capacity_bytes, Some(&flash), kind);
            let report = check::check(&request, Some(&flash), Some(&room_of));
            (flash, report)
        }
        (None, None) => {
            let text = "no flash directory: give --flash DIR, set FOREBAY_FLASH, or name it in the site's configuration";
            return Err(Usage(text.into()).into());
        }
    };
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
        served,
        mount_dir: args.mount_dir.clone(),
        work_dir: args.work_dir.clone(),
        store: store.map(|value| value.get_name().to_string()),
        verify: args.verify.into(),
        keep: args.keep,
        program: program()?,
    })?;
    Ok(Some(finished))
}

/// What the job wants of servers; `None` if its buffer is to be on this node.
fn served(args: &RunArgs) -> anyhow::Result<Option<ServedConfig>> {
    let usage = |text: &str| anyhow::Error::from(Usage(text.into()));
    let by_environment = || std::env::var("FOREBAY_SERVER").ok().filter(|text| !text.is_empty());
    let server = match (&args.at.server, &args.flash) {
        (Some(server), _) => server.to_string(),
        (None, Some(_)) => return Ok(None),
        (None, None) => match by_environment() {
            Some(text) => text.parse::<ServerAddress>()?.to_string(),
            // Other nodes mount only what servers have.
            None if !args.at.on.is_empty() => match site::server()? {
                Some(server) => server.to_string(),
                None => {
                    return Err(usage("--on needs --server: other nodes mount what servers have"));
                }
            },
            None => return Ok(None),
        },
    };
    if !args.at.launch.contains(HOST_MARK) {
        return Err(usage(
            "--launch has no {host}: it would start the same command for every node",
        ));
    }
    words(&args.at.launch).map_err(|why| usage(&format!("--launch: {why}")))?;
    let named: Result<Vec<Node>, String> =
        args.at.on.iter().map(|host| Node::named(host)).collect();
    let nodes = named.map_err(|why| usage(&format!("--on: {why}")))?;
    if nodes.len() > MAX_NODES {
        return Err(usage(&format!("--on: at most {MAX_NODES} nodes")));
    }
    let secret_file = args.at.secret_file.as_deref().map(std::path::absolute).transpose()?;
    Ok(Some(ServedConfig {
        server,
        secret_file,
        servers: args.at.servers,
        token: format!("{:032x}", forebay_net::random::u128()?),
        nodes,
        launch: args.at.launch.clone(),
    }))
}

/// This executable, and how the user called it.
fn program() -> anyhow::Result<Program> {
    let path = std::env::current_exe().context("find this executable")?;
    let called = std::env::args_os().next().unwrap_or_else(|| "forebay".into());
    Ok(Program {
        path,
        called: called.to_string_lossy().into_owned(),
        servers: Arc::new(JobServers),
        preload: preload_library::find(exec::LIBRARY).ok(),
    })
}
