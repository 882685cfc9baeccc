//! FOREBAY_TIMING: other times than those of production, for tests of what happens when they are over.
//!
//! Every process that has it says so on its standard error: nobody shall run with it unaware.

use crate::failure::Usage;
use anyhow::Result;
use forebay_proto::Timing;

/// The environment variable.
const VARIABLE: &str = "FOREBAY_TIMING";

/// Sets the times of this process, if the environment has any. Errors say what is wrong with them.
pub fn set() -> Result<()> {
    let Some(text) = std::env::var_os(VARIABLE) else { return Ok(()) };
    let text = text.to_string_lossy();
    let timing = Timing::parse(&text).map_err(|wrong| Usage(format!("{VARIABLE}: {wrong}")))?;
    timing.set();
    eprintln!(
        "forebay: {VARIABLE}={text} is set: times for tests. Servers end mounts that are merely slow. \
         Unset it for anything else."
    );
    Ok(())
}
