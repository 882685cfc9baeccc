//! What tests of the simulator share.

use forebay_sim::from_workload;
use forebay_sim::program::Program;
use forebay_workload::language::Workload;
use std::path::Path;

/// What a workload, as text, does.
pub fn program(text: &str) -> Program {
    let refuse = |_: &Path| Err("no operations here".into());
    let workload = Workload::parse(Path::new("w.toml"), text, &refuse).unwrap();
    from_workload::program(&workload).unwrap()
}
