//! Closed forms: what bandwidth arithmetic alone predicts, to stand beside what was simulated.
//!
//! With R the rate at which processes can fill buffers, D the rate at which buffers drain to storage, V the bytes of a
//! burst and C the room of all buffers together: a burst runs at R while it fits (V <= C / (1 - D/R)), and at D V / (V - C)
//! beyond. Source of the latter: in the time T of such a burst D T drains and C stays, so V = C + D T.
//! The checkpoint intervals are J. T. Daly's first order (FGCS 22, 2006) and J. W. Young's (CACM 17, 1974).

use crate::machine::{Attach, Buffer, Link, Machine, Mode, Storage};
use serde::Serialize;

/// A bound of bandwidth.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Limit {
    /// Of what.
    pub resource: String,
    /// Bytes per second.
    pub bytes_per_s: f64,
}

/// What the closed form says of a burst of writes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Bandwidth that processes see.
    pub bytes_per_s: f64,
    /// Which resource, or the room of the buffers, bounds it.
    #[serde(rename = "bound")]
    pub bound_by: String,
    /// The formula, with its numbers.
    pub formula: String,
    /// All bounds on the way of a write, the least first.
    pub limits: Vec<Limit>,
    /// The least bound of the drain; None without a buffer.
    pub drain: Option<Limit>,
}

/// A burst: so many processes write so many bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Processes.
    pub processes: u32,
    /// Of a node.
    pub processes_per_node: u32,
    /// Bytes of a transfer.
    pub transfer_bytes: u64,
    /// Bytes of a process.
    pub bytes_per_process: u64,
}

/// Limits of a way, and the time that one request takes on it alone.
struct Way {
    limits: Vec<Limit>,
    alone_s: f64,
}

impl Way {
    fn new() -> Way {
        Way { limits: Vec::new(), alone_s: 0.0 }
    }

    /// So many equal lines that take `request_s` for a request of `bytes`.
    fn line(&mut self, resource: &str, count: u32, bytes: u64, request_s: f64) {
        let bytes_per_s = f64::from(count) * bytes as f64 / request_s;
        self.limits.push(Limit { resource: resource.into(), bytes_per_s });
        self.alone_s += request_s;
    }

    /// Over the storage network, from so many ports into it.
    fn network(&mut self, network: &Link, origins: u32, bytes: u64) {
        let request_s = over(bytes, network.write_bytes_per_s);
        self.line("storage network", origins, bytes, request_s);
        self.alone_s += network.round_trip_s;
    }

    /// Into the file servers.
    fn servers(&mut self, storage: &Storage, bytes: u64) {
        if let Some(port) = &storage.port {
            let request_s = over(bytes, port.write_bytes_per_s);
            self.line("ports of servers", storage.servers, bytes, request_s);
        }
    }

    /// On to their disks.
    fn disks(&mut self, storage: &Storage, bytes: u64) {
        if let Some(controller) = &storage.controller {
            let count = storage.servers / controller.servers;
            self.line("controllers", count, bytes, over(bytes, controller.bytes_per_s));
        }
        let device = &storage.device;
        let request_s =
            over(bytes, device.write_rate(bytes) * storage.fill_factor()) + device.write_overhead_s;
        self.line("disks of servers", storage.servers * device.at_once, bytes, request_s);
    }

    fn least(&self) -> Option<&Limit> {
        self.limits.iter().min_by(|one, other| one.bytes_per_s.total_cmp(&other.bytes_per_s))
    }
}

/// The way of so many compute nodes to so many I/O nodes.
fn to_io_nodes(machine: &Machine, (nodes, origins): (u32, u32), bytes: u64) -> Way {
    let mut way = Way::new();
    if let Some(port) = &machine.compute.port {
        let request_s = over(bytes, port.write_bytes_per_s);
        way.line("ports of compute nodes", nodes, bytes, request_s);
        way.alone_s += port.round_trip_s;
    }
    if let Some(io) = &machine.io {
        let request_s = over(bytes, io.link.write_bytes_per_s);
        way.line("links to I/O nodes", origins, bytes, request_s);
        way.alone_s += io.link.round_trip_s;
    }
    way
}

fn over(bytes: u64, bytes_per_s: f64) -> f64 {
    bytes as f64 / bytes_per_s
}

/// The closed form of a burst of writes on this machine.
pub fn burst(machine: &Machine, burst: Burst) -> Prediction {
    let nodes = burst.processes.div_ceil(burst.processes_per_node.max(1));
    let origins = nodes.div_ceil(machine.nodes_per_io());
    let storage = &machine.storage;
    let bytes = burst.transfer_bytes.min(storage.stripe_bytes);
    let mut near = to_io_nodes(machine, (nodes, origins), bytes);
    let mut far = Way::new();
    let to_servers = |way: &mut Way| way.servers(storage, bytes);
    let to_disks = |way: &mut Way| way.disks(storage, bytes);
    let over_network = |way: &mut Way| way.network(&machine.network, origins, bytes);
    let Some(buffer) = &machine.buffer else {
        over_network(&mut near);
        to_servers(&mut near);
        to_disks(&mut near);
        return plain(near, burst, bytes);
    };
    let used = match buffer.attach {
        Attach::Compute => nodes,
        Attach::Io => origins,
        Attach::Fabric | Attach::Storage => buffer.count,
    };
    let (take_s, drain_read_s) = flash_s(buffer, bytes);
    far.line("flash, read by the drain", used * buffer.device.at_once, bytes, drain_read_s);
    match buffer.attach {
        Attach::Compute => {
            // Writes of a private buffer leave the node only to drain.
            let to_io = std::mem::replace(&mut near, Way::new());
            far.limits.extend(to_io.limits);
            over_network(&mut far);
            to_servers(&mut far);
        }
        Attach::Io => {
            over_network(&mut far);
            to_servers(&mut far);
        }
        Attach::Fabric => {
            over_network(&mut near);
            if let Some(port) = &buffer.port {
                let request_s = over(bytes, port.write_bytes_per_s);
                near.line("ports of buffers", buffer.count, bytes, request_s);
                far.line("ports of buffers", buffer.count, bytes, request_s);
            }
            to_servers(&mut far);
        }
        Attach::Storage => {
            over_network(&mut near);
            to_servers(&mut near);
        }
    }
    to_disks(&mut far);
    near.line("flash", used * buffer.device.at_once, bytes, take_s);
    if buffer.mode == Mode::WriteThrough {
        near.limits.extend(far.limits);
        near.alone_s += far.alone_s;
        return plain(near, burst, bytes);
    }
    let drain = drain_of(&far, buffer, used);
    if buffer.shared_device && buffer.drain.when == crate::machine::DrainWhen::AtOnce {
        // While it writes, flash reads what drains: of each second D/R_read is gone.
        let share = drain.bytes_per_s * drain_read_s / bytes as f64 / f64::from(used);
        if let Some(flash) = near.limits.last_mut() {
            flash.bytes_per_s *= (1.0 - share).max(0.5);
        }
    }
    let room = f64::from(used) * buffer.capacity_bytes as f64 / buffer.redundancy.room();
    with_room(plain(near, burst, bytes), burst, room, drain)
}

/// Seconds of flash for a request of so many bytes: to take it, with what redundancy writes and reads for it, and to read it for
/// the drain.
fn flash_s(buffer: &Buffer, bytes: u64) -> (f64, f64) {
    let (written, read) = buffer.redundancy.traffic(bytes);
    let rate = f64::from(buffer.devices);
    let device = &buffer.device;
    let read_s =
        |bytes: u64| bytes as f64 / (device.read_rate(bytes) * rate) + device.read_overhead_s;
    let overhead_s = if buffer.mode == Mode::Log { 0.0 } else { device.write_overhead_s };
    let write_s = written as f64 / (device.write_rate(written) * rate) + overhead_s;
    let read_back_s = if read == 0 { 0.0 } else { read_s(read) };
    (write_s + read_back_s, read_s(bytes))
}

/// The least bound of the drain of so many buffers.
fn drain_of(far: &Way, buffer: &Buffer, used: u32) -> Limit {
    let least = far.least().cloned();
    let drain = least.unwrap_or(Limit { resource: "drain".into(), bytes_per_s: f64::INFINITY });
    match buffer.drain.limit_bytes_per_s.map(|limit| limit * f64::from(used)) {
        Some(limit) if limit < drain.bytes_per_s => {
            Limit { resource: "the drain's limit".into(), bytes_per_s: limit }
        }
        _ => drain,
    }
}

/// Without any limit of room: the least bound, or what processes reach that wait for each transfer.
fn plain(mut way: Way, burst: Burst, bytes: u64) -> Prediction {
    // A process has one transfer under way; its requests go side by side.
    let at_once = f64::from(burst.processes) * burst.transfer_bytes.div_ceil(bytes) as f64;
    let by_latency = at_once * bytes as f64 / way.alone_s;
    way.limits.push(Limit {
        resource: "processes, each waiting for its transfer".into(),
        bytes_per_s: by_latency,
    });
    way.limits.sort_by(|one, other| one.bytes_per_s.total_cmp(&other.bytes_per_s));
    let least = way.limits[0].clone();
    Prediction {
        bytes_per_s: least.bytes_per_s,
        formula: format!("R = {}", crate::units::format_rate(least.bytes_per_s)),
        bound_by: least.resource,
        limits: way.limits,
        drain: None,
    }
}

fn with_room(ingest: Prediction, burst: Burst, room: f64, drain: Limit) -> Prediction {
    use crate::units::{format_rate, format_size};
    let volume = f64::from(burst.processes) * burst.bytes_per_process as f64;
    let (r, d) = (ingest.bytes_per_s, drain.bytes_per_s);
    let fits = d >= r || volume <= room / (1.0 - d / r);
    if fits {
        let formula = format!("R = {} (V = {} fits)", format_rate(r), format_size(volume));
        return Prediction { formula, drain: Some(drain), ..ingest };
    }
    let rate = d * volume / (volume - room);
    Prediction {
        bytes_per_s: rate,
        bound_by: format!("room of the buffers, which drain by {}", drain.resource),
        formula: format!(
            "D V / (V - C) = {} x {} / ({} - {})",
            format_rate(d),
            format_size(volume),
            format_size(volume),
            format_size(room)
        ),
        limits: ingest.limits,
        drain: Some(drain),
    }
}

/// The best time between checkpoints by Daly's first order, in seconds: sqrt(2 delta M) - delta, and M where a checkpoint
/// takes more than twice the mean time to interrupt.
pub fn daly_interval_s(checkpoint_s: f64, mtti_s: f64) -> f64 {
    if checkpoint_s >= 2.0 * mtti_s {
        return mtti_s;
    }
    libm::sqrt(2.0 * checkpoint_s * mtti_s) - checkpoint_s
}

/// Expected time of `work_s` seconds of work with checkpoints after every `interval_s`, under exponential failures.
/// Source: Daly's complete model, M e^(R/M) (e^((tau+delta)/M) - 1) / tau for each second of work.
pub fn expected_time_s(
    work_s: f64,
    interval_s: f64,
    checkpoint_s: f64,
    restart_s: f64,
    mtti_s: f64,
) -> f64 {
    let grown = libm::expm1((interval_s + checkpoint_s) / mtti_s);
    mtti_s * libm::exp(restart_s / mtti_s) * grown * work_s / interval_s
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::{GIB, System, TRANSFER_BYTES, TRANSFERS};

    fn study(processes: u32) -> Burst {
        Burst {
            processes,
            processes_per_node: 4,
            transfer_bytes: TRANSFER_BYTES,
            bytes_per_process: TRANSFERS * TRANSFER_BYTES,
        }
    }

    #[test]
    fn the_studys_figure_in_closed_form() {
        let at = |system: usize, processes| {
            let predicted = burst(&System::ALL[system].machine(), study(processes));
            (predicted.bytes_per_s / GIB, predicted.bound_by)
        };
        let near = |(rate, bound): (f64, String), expected: f64, by: &str| {
            assert!((rate / expected - 1.0).abs() < 0.005, "{rate} {expected}");
            assert!(bound.contains(by), "{bound}");
        };
        near(at(0, 16_384), 39.70, "links to I/O nodes");
        near(at(0, 131_072), 43.77, "disks");
        near(at(1, 131_072), 21.89, "disks");
        near(at(2, 131_072), 58.36, "room of the buffers");
        near(at(4, 131_072), 317.6, "links to I/O nodes");
    }

    #[test]
    fn daly_is_sound() {
        let interval = daly_interval_s(195.05, 36.0 * 3600.0);
        assert!((interval / 6915.25 - 1.0).abs() < 1e-4, "{interval}");
        // It is near the minimum of the expected time.
        let time = |interval| expected_time_s(1e6, interval, 195.05, 60.0, 129_600.0);
        assert!(time(interval) < time(interval * 1.3) && time(interval) < time(interval / 1.3));
        assert_eq!(daly_interval_s(100.0, 10.0), 10.0);
    }
}
