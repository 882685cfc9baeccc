//! `forebay completions SHELL`: a completion script, generated from the flags.

use crate::args::{Cli, CompletionsArgs};
use crate::failure::{EXIT_OK, Outcome};
use clap::CommandFactory;
use std::io::Write;

/// Prints the script.
pub fn run(args: CompletionsArgs) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "forebay", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(EXIT_OK)
}
