//! The study's IOR figure: write bandwidth against processes, without a buffer and with buffers of two sizes, on the whole
//! storage system and on half of it.
//!
//! Source: N. Liu et al., MSST 2012: consecutive writes of 4 MiB, a file for each process, 64 MiB each, four processes on a
//! node, one I/O node for 64 nodes.

use crate::closed::{self, Burst};
use crate::machine::Machine;
use crate::model::{self, Options, Outcome, SimError};
use crate::parallel::{self, Progress};
use crate::presets;
use crate::program::Program;
use crate::units::digits;
use forebay_workload::ior::{Order, Pattern};
use serde::Serialize;

/// Bytes of a GiB.
pub const GIB: f64 = 1_073_741_824.0;
/// Bytes of a transfer of the study.
pub const TRANSFER_BYTES: u64 = 4 << 20;
/// Transfers of a process.
pub const TRANSFERS: u64 = 16;
/// Most processes of the figure.
pub const MOST_PROCESSES: u32 = 131_072;

/// A system of the figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct System {
    /// File servers: 128, or 64 (half).
    pub servers: u32,
    /// Bytes of an I/O node's buffer; None: no buffer.
    pub capacity_bytes: Option<u64>,
}

impl System {
    /// The six of the figure. The largest buffer has room for all that an I/O node gets.
    pub const ALL: [System; 6] = [
        System { servers: 128, capacity_bytes: None },
        System { servers: 64, capacity_bytes: None },
        System { servers: 128, capacity_bytes: Some(4 << 30) },
        System { servers: 64, capacity_bytes: Some(4 << 30) },
        System { servers: 128, capacity_bytes: Some(33 << 29) },
        System { servers: 64, capacity_bytes: Some(33 << 29) },
    ];

    /// Its name in tables.
    pub fn name(&self) -> String {
        let storage = if self.servers == 128 { "full" } else { "half" };
        match self.capacity_bytes {
            None => format!("{storage}, no buffer"),
            Some(bytes) => format!("{storage}, {} GiB", bytes as f64 / GIB),
        }
    }

    /// The machine.
    pub fn machine(&self) -> Machine {
        let mut machine = intrepid();
        machine.storage.servers = self.servers;
        match (self.capacity_bytes, &mut machine.buffer) {
            (Some(bytes), Some(buffer)) => buffer.capacity_bytes = bytes,
            _ => machine.buffer = None,
        }
        machine
    }
}

/// The preset, which a test holds to be sound.
pub fn intrepid() -> Machine {
    match presets::load("intrepid-2011") {
        Ok((.., machine)) => machine,
        Err(fault) => unreachable!("the preset is part of the program: {fault}"),
    }
}

/// The study's writes by so many processes.
pub fn writes(processes: u32) -> Program {
    let pattern = Pattern {
        tasks: processes,
        block_bytes: TRANSFERS * TRANSFER_BYTES,
        transfer_bytes: TRANSFER_BYTES,
        segments: 1,
        file_per_process: true,
        order: Order::Sequential,
        order_seed: 0,
    };
    Program::ior(&pattern, 4)
}

/// One point of it.
///
/// # Errors
/// Those of the simulation.
pub fn point(machine: &Machine, processes: u32) -> Result<Outcome, SimError> {
    model::run(machine, &writes(processes), &Options::default())
}

/// Numbers of processes of the figure: powers of two.
pub fn steps() -> Vec<u32> {
    (8..=17).map(|power| 1 << power).collect()
}

/// Bandwidth as the application sees it, in GiB/s.
pub fn gib_per_s(outcome: &Outcome) -> f64 {
    outcome
        .jobs
        .iter()
        .flat_map(|job| &job.phases)
        .map(|phase| phase.bytes_per_s)
        .fold(0.0, f64::max)
        / GIB
}

/// A point of the figure.
#[derive(Clone, Debug, Serialize)]
pub struct FigurePoint {
    /// Name of the system.
    pub system: String,
    /// Processes.
    pub processes: u32,
    /// Simulated bandwidth, as processes see it.
    pub bytes_per_s: f64,
    /// The closed form.
    pub closed_bytes_per_s: f64,
    /// When storage had everything.
    pub drained_s: f64,
    /// Events.
    pub events: u64,
}

/// The figure: each system at each number of processes.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// Its points.
    pub points: Vec<FigurePoint>,
}

/// Simulates all of the figure.
///
/// # Errors
/// Those of the simulation.
pub fn figure(threads: usize, progress: Progress) -> Result<Figure, SimError> {
    // The long ones first, so that threads end together.
    let steps: Vec<u32> = steps().into_iter().rev().collect();
    let questions: Vec<(System, u32)> =
        steps.iter().flat_map(|&processes| System::ALL.map(|system| (system, processes))).collect();
    let points = parallel::map(&questions, threads, progress, |(system, processes)| {
        let machine = system.machine();
        let outcome = point(&machine, *processes)?;
        let burst = Burst {
            processes: *processes,
            processes_per_node: 4,
            transfer_bytes: TRANSFER_BYTES,
            bytes_per_process: TRANSFERS * TRANSFER_BYTES,
        };
        Ok(FigurePoint {
            system: system.name(),
            processes: *processes,
            bytes_per_s: gib_per_s(&outcome) * GIB,
            closed_bytes_per_s: closed::burst(&machine, burst).bytes_per_s,
            drained_s: outcome.drained_s,
            events: outcome.events,
        })
    });
    let mut points = points.into_iter().collect::<Result<Vec<_>, SimError>>()?;
    points.reverse();
    Ok(Figure { points })
}

impl Figure {
    /// The systems, in the order of [`System::ALL`].
    pub fn systems(&self) -> Vec<String> {
        System::ALL.iter().map(System::name).collect()
    }

    /// Rows for a table (GiB/s) or CSV (bytes per second): a line for each number of processes.
    pub fn rows(&self, for_people: bool) -> Vec<Vec<String>> {
        let mut rows = vec![[vec!["processes".to_string()], self.systems()].concat()];
        for processes in steps() {
            let mut row = vec![processes.to_string()];
            for system in self.systems() {
                let of = |p: &&FigurePoint| p.processes == processes && p.system == system;
                let rate = self.points.iter().find(of).map_or(0.0, |point| point.bytes_per_s);
                row.push(if for_people { digits(rate / GIB) } else { rate.to_string() });
            }
            rows.push(row);
        }
        rows
    }
}
