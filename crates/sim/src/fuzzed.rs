//! What reads machine files, settings and ranges, as functions of bytes, for `fuzz/` and for the test below.
//!
//! Invariant: they neither panic nor take long nor much memory, whatever the bytes are.

use crate::checkpoints::{self, Interval};
use crate::machine::Machine;
use crate::model::{self, Options};
use crate::program::Program;
use crate::settings::Setting;
use crate::sweep::Range;
use forebay_workload::ior::{Order, Pattern};
use std::path::Path;

/// Machines of more nodes, servers or buffers are read, and not simulated.
const SIMULATED_COUNT: u32 = 4_096;

/// Reads the bytes as a machine file; of its first lines what stands after `#set `, `#over ` or `#every ` as a setting, a range, or an interval of
/// checkpoints. A machine that is sound, and small, runs a few writes, three times with a pause.
pub fn machine_file(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for line in text.lines().take(4) {
        let _ = line.strip_prefix("#set ").map(Setting::parse);
        let _ = line.strip_prefix("#over ").map(Range::parse);
        let _ = line.strip_prefix("#every ").map(Interval::parse);
    }
    let Ok(machine) = Machine::parse(Path::new("fuzzed.toml"), text) else { return };
    let buffers = machine.buffer.as_ref().map_or(0, |buffer| buffer.count);
    let ions = machine.io.as_ref().map_or(0, |io| io.nodes);
    if [machine.compute.nodes, machine.storage.servers, buffers, ions]
        .iter()
        .any(|&n| n > SIMULATED_COUNT)
    {
        return;
    }
    let pattern = Pattern {
        tasks: machine.processes().min(8) as u32,
        block_bytes: 1 << 16,
        transfer_bytes: 1 << 14,
        segments: 2,
        file_per_process: true,
        order: Order::Sequential,
        order_seed: 0,
    };
    let mut program = Program::ior(&pattern, machine.compute.processes_per_node.min(4));
    for phase in program.jobs.iter_mut().flat_map(|job| &mut job.phases) {
        (phase.repeat, phase.pause_ns) = (3, 1_000_000_000);
    }
    // Without failures there is no such interval.
    let _ = checkpoints::set_interval(&machine, &mut program, Interval::Daly);
    let options = Options { max_events: 100_000, ..Options::default() };
    if let Ok(outcome) = model::run(&machine, &program, &options) {
        assert!(outcome.bytes.conserved());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_sim_engine::random::Random;

    #[test]
    fn changed_machine_files_break_nothing() {
        let mut random = Random::new(11, 0);
        for (_, whole) in crate::presets::MACHINES {
            machine_file(whole.as_bytes());
            // Small enough to be simulated.
            let small = whole
                .replace("nodes = 40960", "nodes = 64")
                .replace("nodes = 640 ", "nodes = 1 ")
                .replace("nodes = 4608", "nodes = 8");
            for _ in 0..150 {
                let mut changed = small.clone().into_bytes();
                for _ in 0..1 + random.below(3) {
                    let at = random.below(changed.len() as u64) as usize;
                    changed[at] = b"0123456789.-\"=[]\nGMKTsunh"[random.below(25) as usize];
                }
                machine_file(&changed);
            }
        }
    }
}
