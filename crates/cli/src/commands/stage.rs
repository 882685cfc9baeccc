//! `forebay stage`.

use crate::args::StageCommand;
use crate::failure::Outcome;

/// Runs the command.
pub fn run(args: StageCommand) -> Outcome {
    anyhow::bail!("{args:?}: not in this build")
}
