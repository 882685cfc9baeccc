//! FOREBAY_CHANGED_POLICY: other decisions than those of production, for the tests that hold server and simulator to one
//! policy (`forebay_policy::changed`). A build for users refuses it.

use crate::failure::Usage;
use anyhow::Result;

/// The environment variable.
const VARIABLE: &str = "FOREBAY_CHANGED_POLICY";

/// Changes the decisions of this process, if the environment says so. Errors say what is wrong with it.
pub fn set() -> Result<()> {
    let Some(text) = std::env::var_os(VARIABLE) else { return Ok(()) };
    let text = text.to_string_lossy();
    let set = forebay_policy::changed::set(&text);
    set.map_err(|wrong| Usage(format!("{VARIABLE}: {wrong}")))?;
    eprintln!(
        "forebay: {VARIABLE}={text} is set: decisions for tests. Unset it for anything else."
    );
    Ok(())
}
