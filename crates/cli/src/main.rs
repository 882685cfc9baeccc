//! `forebay`: the one executable. Parses the command line and runs one command.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage. Called as `mount.forebay` or
//! `mount.fuse.forebay` it is a mount helper for mount(8).

mod args;
mod args_cache;
mod args_commit;
mod args_servers;
mod args_stripe;
mod args_watch;
mod commands;
mod daemon;
mod failure;
mod helper;
mod job_servers;
mod mount_options;
mod secrets;
mod servers;
mod state_dir;

use args::{Cli, Command};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    if helper::is_helper(arguments.next().as_deref()) {
        return failure::report(helper::run(arguments));
    }
    let cli = Cli::parse();
    if !matches!(cli.command, Command::Mount(_) | Command::Serve(_) | Command::Run(_)) {
        failure::end_with_the_reader();
    }
    failure::report(commands::run(cli.command))
}
