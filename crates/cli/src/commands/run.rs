//! `forebay run`.

use crate::args::RunArgs;
use crate::failure::Outcome;

/// Runs the command.
pub fn run(args: RunArgs) -> Outcome {
    anyhow::bail!("{args:?}: not in this build")
}
