//! `forebay`: the one executable. Parses the command line and runs one command.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage. Called as `mount.forebay` or
//! `mount.fuse.forebay` it is a mount helper for mount(8); as `dw_wlm_cli` or `dwstat` it answers Slurm.

mod args;
mod args_bench;
mod args_cache;
mod args_commit;
mod args_common;
mod args_compare;
mod args_replay;
mod args_scheduler;
mod args_servers;
mod args_sim;
mod args_stripe;
mod args_trace;
mod args_watch;
mod changed_policy;
mod commands;
mod daemon;
mod failure;
mod failure_parts;
mod helper;
mod hints;
mod job_servers;
mod json;
mod mount_options;
mod said;
mod scheduler;
mod secrets;
mod servers;
mod site;
mod state_dir;
mod timing;

use args::{Cli, Command};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = forebay_fuse::help_with_handles(std::env::args_os()) {
        return code;
    }
    let front = commands::hook::front(std::env::args_os().next().as_deref());
    if front.is_some() {
        commands::hook::quiet();
    }
    if let Err(wrong) = timing::set().and_then(|()| changed_policy::set()) {
        return match front {
            Some(_) => commands::hook::refuse(&wrong),
            None => failure::report(Err(wrong)),
        };
    }
    let mut arguments = std::env::args_os();
    if let Some(front) = front {
        return commands::hook::run(front, arguments.skip(1));
    }
    if helper::is_helper(arguments.next().as_deref()) {
        return failure::report(helper::run(arguments));
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return wrong_usage(&error),
    };
    if !matches!(
        cli.command,
        Command::Mount(_)
            | Command::Serve(_)
            | Command::Agent(_)
            | Command::Run(_)
            | Command::Exec(_)
            | Command::Trace(_)
    ) {
        failure::end_with_the_reader();
    }
    failure::report(commands::run(cli.command))
}

/// A wrong command line ends as clap has it. Whoever asked for JSON gets the reason as JSON too.
fn wrong_usage(error: &clap::Error) -> ExitCode {
    // Nobody may be there to read it.
    let _ = error.print();
    let asked_for_json =
        std::env::args_os().skip(1).take_while(|a| a != "--").any(|a| a == "--json");
    if error.use_stderr() && asked_for_json {
        let _ = failure::print_json(&json::usage(&error.render().to_string()));
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(failure::EXIT_USAGE))
}
