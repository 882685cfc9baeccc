//! One workload on the same machine with its flash in other places, in other modes, and on less storage, at the same money.
//!
//! The flash of the machine file, N devices over all its buffers, goes to each place: as many devices and as much capacity
//! in all, divided by the buffers there. Where the machine file has prices, what else a place costs (nodes on the fabric) is
//! paid with fewer devices.

use crate::machine::{Attach, Buffer, Link, Machine, Mode};
use crate::model::{self, Key, Options, Outcome, SimError};
use crate::parallel::{self, Progress};
use crate::program::Program;
use crate::units::{digits, format_rate, format_size, format_time};
use serde::Serialize;

/// A variant and what came out.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What it is.
    pub variant: String,
    /// File servers.
    pub servers: u32,
    /// Buffers.
    pub buffers: u32,
    /// Capacity of all.
    pub capacity_bytes: f64,
    /// Bandwidth of the phase that moved most.
    pub bytes_per_s: f64,
    /// When the last job ended.
    pub end_s: f64,
    /// When storage had everything.
    pub drained_s: f64,
    /// Time that processes waited for room.
    pub stalled_s: f64,
    /// Flash that no job of the workload could use, as a share: it is private to idle nodes.
    pub stranded_share: f64,
    /// By the price list.
    pub price: Option<f64>,
    /// Why there are no figures.
    pub error: Option<String>,
    /// The same, with what it is about.
    #[serde(skip)]
    pub failure: Option<SimError>,
}

/// The variants of a machine.
///
/// # Errors
/// A machine without a buffer.
pub fn compare(
    machine: &Machine,
    program: &Program,
    options: &Options,
    threads: usize,
    progress: Progress,
) -> Result<Vec<Row>, SimError> {
    let Some(buffer) = &machine.buffer else {
        return Err(SimError::DoesNotFit {
            job: machine.name.clone(),
            found: "a machine without a buffer".into(),
            expected: "a [buffer] section: its flash is what is moved around".into(),
            key: Key::Machine("buffer"),
        });
    };
    let mut variants = Vec::new();
    let storages = [(1, "full storage"), (2, "half storage")];
    for (part, storage) in storages {
        if machine.storage.servers % part != 0 {
            continue;
        }
        let mut bare = with_servers(machine, machine.storage.servers / part);
        bare.buffer = None;
        variants.push((format!("no buffer, {storage}"), bare));
    }
    for attach in Attach::ALL {
        let Some(placed) = placed(machine, buffer, attach) else { continue };
        for (part, storage) in storages {
            let servers = machine.storage.servers / part;
            if machine.storage.servers % part == 0 {
                let mut placed = with_servers(&placed, servers);
                if let (Attach::Storage, Some(buffer)) = (attach, &mut placed.buffer) {
                    // The same flash in half the servers.
                    buffer.count /= part;
                    buffer.capacity_bytes *= u64::from(part);
                    buffer.device.write_bytes_per_s *= f64::from(part);
                    buffer.device.read_bytes_per_s *= f64::from(part);
                }
                variants.push((format!("flash in {}, {storage}", place(attach)), placed));
            }
        }
    }
    for (mode, name) in [
        (Mode::WriteBack, "a cache that writes back"),
        (Mode::WriteThrough, "a cache that writes through"),
        (Mode::Stage, "scratch, staged out at the end"),
        (Mode::Log, "a log"),
    ] {
        let mut other = machine.clone();
        if let Some(buffer) = &mut other.buffer {
            buffer.mode = mode;
        }
        variants.push((format!("where the file has it, {name}"), other));
    }
    let nodes: u32 = program.jobs.iter().map(crate::program::Job::nodes).max().unwrap_or(0);
    Ok(parallel::map(&variants, threads, progress, |(name, machine)| {
        row(name, machine, nodes, model::run(machine, program, options))
    }))
}

fn place(attach: Attach) -> &'static str {
    match attach {
        Attach::Compute => "compute nodes",
        Attach::Io => "I/O nodes",
        Attach::Fabric => "nodes on the network",
        Attach::Storage => "file servers",
    }
}

/// The machine with fewer servers, and controllers that still divide them.
fn with_servers(machine: &Machine, servers: u32) -> Machine {
    let mut machine = machine.clone();
    machine.storage.servers = servers;
    let keeps = machine.storage.controller.as_ref().is_none_or(|c| servers % c.servers == 0);
    if !keeps {
        machine.storage.controller = None;
    }
    machine
}

/// The machine's flash at another place, for the same money; None where there is no such place.
fn placed(machine: &Machine, buffer: &Buffer, attach: Attach) -> Option<Machine> {
    let count = match attach {
        Attach::Compute => machine.compute.nodes,
        Attach::Io => machine.io.as_ref()?.nodes,
        Attach::Storage => machine.storage.servers,
        // As many nodes as there are buffers now, unless they are as many as compute nodes: then one for each server.
        Attach::Fabric if buffer.attach == Attach::Compute => machine.storage.servers,
        Attach::Fabric => buffer.count,
    };
    let total = f64::from(buffer.count) * buffer.capacity_bytes as f64;
    let rate = f64::from(buffer.count) * f64::from(buffer.devices);
    // What nodes on the fabric cost is not there for flash.
    let node = |attach| if attach == Attach::Fabric { machine.cost.buffer_node } else { 0.0 };
    let paid = |count: u32, attach| f64::from(count) * node(attach);
    let gib = total / (1_u64 << 30) as f64;
    let flash = gib * machine.cost.flash_gib + rate * machine.cost.flash_device;
    let budget = flash + paid(buffer.count, buffer.attach) - paid(count, attach);
    let share = if flash > 0.0 { budget / flash } else { 1.0 };
    if share <= 0.0 {
        return None;
    }
    let mut machine = machine.clone();
    let mut device = buffer.device.clone();
    // Devices in all, over the places: a place may have a part of one.
    let each = rate * share / f64::from(count);
    device.write_bytes_per_s *= each;
    device.read_bytes_per_s *= each;
    let port = match (attach, &buffer.port) {
        (Attach::Fabric, Some(port)) => Some(port.clone()),
        // As fast as what it replaces could be reached.
        (Attach::Fabric, None) => Some(Link { round_trip_s: 0.0, ..machine.network.clone() }),
        _ => None,
    };
    machine.buffer = Some(Buffer {
        attach,
        count,
        capacity_bytes: (total * share / f64::from(count)) as u64,
        devices: 1,
        device,
        port,
        striped: attach == Attach::Fabric || (buffer.striped && attach == buffer.attach),
        ..buffer.clone()
    });
    Some(machine)
}

fn row(name: &str, machine: &Machine, nodes: u32, outcome: Result<Outcome, SimError>) -> Row {
    let buffer = machine.buffer.as_ref();
    let reached = match buffer.map(|buffer| buffer.attach) {
        Some(Attach::Compute) => f64::from(nodes) / f64::from(machine.compute.nodes),
        Some(Attach::Io) => {
            let used = nodes.div_ceil(machine.nodes_per_io());
            f64::from(used) / f64::from(machine.io.as_ref().map_or(1, |io| io.nodes))
        }
        _ => 1.0,
    };
    let mut row = Row {
        variant: name.into(),
        servers: machine.storage.servers,
        buffers: buffer.map_or(0, |buffer| buffer.count),
        capacity_bytes: buffer.map_or(0.0, |b| f64::from(b.count) * b.capacity_bytes as f64),
        bytes_per_s: 0.0,
        end_s: 0.0,
        drained_s: 0.0,
        stalled_s: 0.0,
        stranded_share: 1.0 - reached,
        price: machine.price(),
        error: None,
        failure: None,
    };
    match outcome {
        Ok(outcome) => {
            let phases = outcome.jobs.iter().flat_map(|job| &job.phases);
            let most = phases.clone().max_by_key(|phase| phase.written_bytes + phase.read_bytes);
            row.bytes_per_s = most.map_or(0.0, |phase| phase.bytes_per_s);
            row.stalled_s = phases.map(|phase| phase.stalled_s).sum();
            (row.end_s, row.drained_s) = (outcome.end_s, outcome.drained_s);
        }
        Err(error) => {
            row.error = Some(error.to_string());
            row.failure = Some(error);
        }
    }
    row
}

/// Rows for a table or CSV.
pub fn rows(compared: &[Row], for_people: bool) -> Vec<Vec<String>> {
    let head: &[&str] = match for_people {
        true => &[
            "variant",
            "servers",
            "buffers",
            "capacity",
            "bandwidth",
            "jobs end",
            "drained",
            "stalled",
            "stranded",
            "price",
        ],
        false => &[
            "variant",
            "servers",
            "buffers",
            "capacity_bytes",
            "bytes_per_s",
            "end_s",
            "drained_s",
            "stalled_s",
            "stranded_share",
            "price",
            "error",
        ],
    };
    let mut rows = vec![head.iter().map(|name| (*name).to_string()).collect::<Vec<_>>()];
    for row in compared {
        let price = row.price.map_or(String::new(), |price| {
            if for_people { digits(price) } else { price.to_string() }
        });
        let error = row.error.clone().unwrap_or_default();
        let mut cells = vec![row.variant.clone(), row.servers.to_string(), row.buffers.to_string()];
        cells.extend(match (for_people, &row.error) {
            (true, Some(_)) => vec![format_size(row.capacity_bytes), error],
            (true, None) => vec![
                format_size(row.capacity_bytes),
                format_rate(row.bytes_per_s),
                format_time(row.end_s),
                format_time(row.drained_s),
                format_time(row.stalled_s),
                format!("{:.0} %", row.stranded_share * 100.0),
                price,
            ],
            (false, _) => vec![
                row.capacity_bytes.to_string(),
                row.bytes_per_s.to_string(),
                row.end_s.to_string(),
                row.drained_s.to_string(),
                row.stalled_s.to_string(),
                row.stranded_share.to_string(),
                price,
                error,
            ],
        });
        rows.push(cells);
    }
    rows
}
