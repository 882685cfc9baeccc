//! `forebay validate`.

use crate::args::ValidateArgs;
use crate::failure::Outcome;

/// Runs the command.
pub fn run(args: ValidateArgs) -> Outcome {
    anyhow::bail!("{args:?}: not in this build")
}
