//! The links and devices of a machine as waiting lines, and the ways that requests take through them.
//!
//! Invariant: only here do lines get requests; the others ask when one leaves, and how much was worked.
//! Callers: `traffic` (requests), `jobs` (names), `bounds` (what lines worked), the end of a run.

use super::outcome::Resource;
use super::rebuild::may_rebuild;
use super::requests::Request;
use crate::device::Device;
use crate::machine::{Attach, Buffer, Machine, Mode, Redundancy, WhenFull};
use crate::program::{Action, Program};
use forebay_sim_engine::queue::LAST_NS;
use forebay_sim_engine::station::Line;
use forebay_sim_engine::{SECOND_NS, TimeNs};
use serde::Serialize;

/// Kinds of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// A compute node's port, outwards.
    NodeOut,
    /// A compute node's port, inwards.
    NodeIn,
    /// The link of an I/O node's compute nodes, towards it.
    IoUp,
    /// The same, from it.
    IoDown,
    /// The port into the storage network, outwards.
    NetworkOut,
    /// The same, inwards.
    NetworkIn,
    /// A server's port, inwards.
    ServerIn,
    /// A server's port, outwards.
    ServerOut,
    /// A controller of several servers.
    Controller,
    /// A server's disks; with separate reads, their writes.
    Disk,
    /// A server's disks, reads, where they do not delay writes.
    DiskRead,
    /// A fabric buffer's port, inwards.
    BufferIn,
    /// A fabric buffer's port, outwards.
    BufferOut,
    /// A buffer's flash; with separate reads, its writes.
    Flash,
    /// A buffer's flash, reads, where they do not delay writes.
    FlashRead,
    /// A compute node's processors, where names cost something.
    Processors,
}

impl Class {
    /// All, in the order of their numbers.
    pub const ALL: [Class; 16] = [
        Class::NodeOut,
        Class::NodeIn,
        Class::IoUp,
        Class::IoDown,
        Class::NetworkOut,
        Class::NetworkIn,
        Class::ServerIn,
        Class::ServerOut,
        Class::Controller,
        Class::Disk,
        Class::DiskRead,
        Class::BufferIn,
        Class::BufferOut,
        Class::Flash,
        Class::FlashRead,
        Class::Processors,
    ];

    /// What it is, in words.
    pub fn words(self) -> &'static str {
        match self {
            Class::NodeOut => "port of a compute node",
            Class::NodeIn => "port of a compute node, inwards",
            Class::IoUp => "link to an I/O node",
            Class::IoDown => "link from an I/O node",
            Class::NetworkOut => "storage network",
            Class::NetworkIn => "storage network, inwards",
            Class::ServerIn => "port of a server",
            Class::ServerOut => "port of a server, outwards",
            Class::Controller => "controller",
            Class::Disk => "disks of a server",
            Class::DiskRead => "disks of a server, reads",
            Class::BufferIn => "port of a buffer",
            Class::BufferOut => "port of a buffer, outwards",
            Class::Flash => "flash",
            Class::FlashRead => "flash, reads",
            Class::Processors => "names at a compute node",
        }
    }
}

/// What a request of some bytes takes at a line.
#[derive(Clone, Debug, Default)]
struct Rate {
    ns_per_byte: f64,
    overhead_ns: f64,
    /// Of requests of up to so many bytes, the smallest first: their nanoseconds per byte.
    by_size: Vec<(u64, f64)>,
}

impl Rate {
    fn new(bytes_per_s: f64, overhead_s: f64) -> Rate {
        let second = SECOND_NS as f64;
        let (ns_per_byte, overhead_ns) = (second / bytes_per_s, overhead_s * second);
        Rate { ns_per_byte, overhead_ns, by_size: Vec::new() }
    }

    /// The same, where requests of some sizes have only a share of the rate.
    fn with_sizes(self, shares: impl Iterator<Item = (u64, f64)>) -> Rate {
        let by_size = shares.map(|(to, share)| (to, self.ns_per_byte / share)).collect();
        Rate { by_size, ..self }
    }

    /// Nanoseconds of `bytes` moved by `operations`.
    #[inline]
    fn ns(&self, bytes: u64, operations: u32) -> u64 {
        let ns_per_byte = match self.by_size.is_empty() {
            true => self.ns_per_byte,
            false => self.of_size(bytes / u64::from(operations.max(1))),
        };
        (bytes as f64 * ns_per_byte + f64::from(operations) * self.overhead_ns + 0.5) as u64
    }

    fn of_size(&self, bytes: u64) -> f64 {
        let found = self.by_size.iter().find(|(to, _)| bytes <= *to);
        found.map_or(self.ns_per_byte, |(_, ns_per_byte)| *ns_per_byte)
    }
}

fn write_shares(device: &Device) -> impl Iterator<Item = (u64, f64)> + '_ {
    device.by_size.iter().map(|size| (size.to_bytes, size.write_share))
}

fn read_shares(device: &Device) -> impl Iterator<Item = (u64, f64)> + '_ {
    device.by_size.iter().map(|size| (size.to_bytes, size.read_share))
}

/// The equal lines of one class.
#[derive(Debug)]
struct Group {
    lines: Vec<Line>,
    write: Rate,
    read: Rate,
}

impl Group {
    fn new(count: u32, write: Rate, read: Rate) -> Group {
        Group { lines: vec![Line::new(1); count as usize], write, read }
    }

    /// Each works at so many requests at once.
    fn at_once(count: u32, write: Rate, read: Rate, at_once: u32) -> Group {
        Group { lines: vec![Line::new(at_once); count as usize], write, read }
    }

    /// Share of the time until `now_ns` that lines worked, of those that had anything to do.
    fn busy_share(&self, now_ns: TimeNs) -> f64 {
        let used = self.lines.iter().filter(|line| line.served > 0);
        let worked = used.map(|line| line.worked_ns(now_ns) as f64 / f64::from(line.servers()));
        worked.sum::<f64>() / (self.used().max(1) as f64 * now_ns.max(1) as f64)
    }

    /// Lines that had anything to do.
    fn used(&self) -> usize {
        self.lines.iter().filter(|line| line.served > 0).count()
    }
}

/// A point of a request's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hop {
    /// A line.
    At(Class),
    /// Room in the buffer.
    Room,
    /// Its end.
    Done,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Writes to storage, past any buffer.
    WriteStorage,
    /// Writes to the buffer.
    WriteBuffer,
    /// Reads from storage.
    ReadStorage,
    /// Reads from the buffer.
    ReadBuffer,
    /// Takes data from the buffer to storage.
    Drain,
}

impl Kind {
    const ALL: [Kind; 5] =
        [Kind::WriteStorage, Kind::WriteBuffer, Kind::ReadStorage, Kind::ReadBuffer, Kind::Drain];
}

/// The way of a kind of request.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub(super) hops: Vec<Hop>,
    /// Of each hop: whether it is joined to the one before, see [`join`].
    pub(super) joined: Vec<bool>,
    /// What each operation waits besides, in nanoseconds.
    pub(super) latency_ns: f64,
}

/// Lines and ways.
#[derive(Debug)]
pub(super) struct Stations {
    groups: Vec<Group>,
    ways: [Way; 5],
    servers_of_controller: u32,
    /// Of the buffers, where there are any.
    redundancy: Option<Redundancy>,
    /// What a disk takes when it goes from one file to another.
    seek_ns: u64,
    /// The file that each server's disks moved last.
    last_file: Vec<u64>,
}

impl Stations {
    pub(super) fn new(machine: &Machine, program: &Program) -> Stations {
        let groups = groups(machine);
        let storage = &machine.storage;
        let mut ways = ways(machine, &groups);
        join(&mut ways, &groups, machine, program);
        Stations {
            groups,
            ways,
            servers_of_controller: storage.controller.as_ref().map_or(1, |c| c.servers),
            redundancy: machine.buffer.as_ref().map(|buffer| buffer.redundancy),
            seek_ns: (storage.device.seek_s * 1e9) as u64,
            last_file: vec![u64::MAX; storage.servers as usize],
        }
    }

    #[inline]
    pub(super) fn way(&self, kind: Kind) -> &Way {
        &self.ways[kind as usize]
    }

    /// Events of a request of a kind that waits nowhere else: one where it leaves a line to which no other is joined.
    pub(super) fn events_of(&self, kind: Kind) -> f64 {
        let way = self.way(kind);
        let lines = way.hops.iter().zip(way.joined.iter().skip(1));
        let leaves = lines.filter(|(hop, joined)| matches!(hop, Hop::At(_)) && !**joined);
        leaves.count() as f64
    }

    /// A request comes to a line of its way at `arrives_ns`; when it leaves. `is_ahead`: told now (`now_ns`) of a line that is
    /// joined to the one before.
    #[inline]
    pub(super) fn serve(
        &mut self,
        request: &Request,
        class: Class,
        (now_ns, arrives_ns): (TimeNs, TimeNs),
        is_ahead: bool,
    ) -> TimeNs {
        let place = self.place(class, &request.place);
        let service_ns = self.service_ns(request, class);
        let line = &mut self.groups[class as usize].lines[place];
        match is_ahead {
            true => line.serve_ahead(now_ns, arrives_ns, service_ns),
            false => line.serve(arrives_ns, service_ns),
        }
    }

    #[inline]
    fn service_ns(&mut self, request: &Request, class: Class) -> u64 {
        let group = &self.groups[class as usize];
        let (bytes, operations) = (request.bytes, request.operations);
        let reads = matches!(request.kind, Kind::ReadStorage | Kind::ReadBuffer);
        match class {
            Class::Flash | Class::FlashRead if reads || request.kind == Kind::Drain => {
                group.read.ns(bytes, operations)
            }
            Class::Flash => {
                let Some(redundancy) = &self.redundancy else { return 0 };
                let each = bytes / u64::from(operations.max(1));
                let (written, read) = redundancy.traffic(each);
                let many = u64::from(operations);
                let read_ns = if read > 0 { group.read.ns(read * many, operations) } else { 0 };
                // What redundancy does not divide evenly is lost in the rounding of `each`, not of the sum.
                let written = if written == each { bytes } else { written * many };
                group.write.ns(written, operations).saturating_add(read_ns)
            }
            Class::Disk | Class::DiskRead => {
                let rate = if reads { &group.read } else { &group.write };
                let mut ns = rate.ns(bytes, operations);
                if self.seek_ns > 0 {
                    let last = &mut self.last_file[request.place.server as usize];
                    if *last != request.file {
                        ns = ns.saturating_add(self.seek_ns);
                        *last = request.file;
                    }
                }
                ns
            }
            _ if reads => group.read.ns(bytes, operations),
            _ => group.write.ns(bytes, operations),
        }
    }

    /// Operations on names come to the processors of a node now, and take so long; when they leave.
    pub(super) fn serve_names(&mut self, node: u32, now_ns: TimeNs, service_ns: u64) -> TimeNs {
        match self.groups[Class::Processors as usize].lines.get_mut(node as usize) {
            Some(line) => line.serve(now_ns, service_ns),
            None => now_ns,
        }
    }

    /// The flash of a buffer writes a piece of a rebuild; when it has.
    pub(super) fn write_piece(&mut self, buffer: u32, now_ns: TimeNs, bytes: u64) -> TimeNs {
        let group = &mut self.groups[Class::Flash as usize];
        let service_ns = group.write.ns(bytes, 1);
        group.lines[buffer as usize].serve(now_ns, service_ns)
    }

    /// The flash of a buffer reads a piece of a rebuild; when it has.
    pub(super) fn read_piece(
        &mut self,
        class: Class,
        buffer: u32,
        now_ns: TimeNs,
        bytes: u64,
    ) -> TimeNs {
        let group = &mut self.groups[class as usize];
        let service_ns = group.read.ns(bytes, 1);
        group.lines[buffer as usize].serve(now_ns, service_ns)
    }

    /// The lines of a class.
    #[inline]
    pub(super) fn lines(&self, class: Class) -> &[Line] {
        &self.groups[class as usize].lines
    }

    /// The key of what had most to do. `is_limited`: the drain has a limit.
    pub(super) fn slowest(&self, is_limited: bool) -> &'static str {
        let busy =
            |class: &Class| self.lines(*class).iter().map(|line| line.busy_ns).max().unwrap_or(0);
        match Class::ALL.iter().max_by_key(|class| busy(class)) {
            // Nothing worked for long: what waited did so for its turn.
            Some(most) if is_limited && busy(most) < LAST_NS / 2 => "buffer.drain.limit",
            Some(most) => rate_of(*most),
            None => "network.rate",
        }
    }

    /// What was worked until `last_ns`, of each class that did anything.
    pub(super) fn resources(&self, last_ns: TimeNs) -> Vec<Resource> {
        let all = Class::ALL.iter().zip(&self.groups).filter_map(|(&class, group)| {
            let used = group.used();
            let requests: u64 = group.lines.iter().map(|line| line.served).sum();
            let waits_ns = group.lines.iter().map(|line| line.waited_ns);
            let waited_ns = waits_ns.fold(0, u64::saturating_add);
            (used > 0).then(|| Resource {
                resource: class,
                count: group.lines.len(),
                used,
                busy_share: group.busy_share(last_ns),
                requests,
                mean_wait_s: waited_ns as f64 / requests as f64 / 1e9,
            })
        });
        all.collect()
    }

    /// Which line of a class a request comes to.
    #[inline]
    pub(super) fn place(&self, class: Class, at: &Place) -> usize {
        let place = match class {
            Class::NodeOut | Class::NodeIn | Class::Processors => at.node,
            Class::IoUp | Class::IoDown | Class::NetworkOut | Class::NetworkIn => at.origin,
            Class::ServerIn | Class::ServerOut | Class::Disk | Class::DiskRead => at.server,
            Class::Controller => at.server / self.servers_of_controller,
            Class::BufferIn | Class::BufferOut | Class::Flash | Class::FlashRead => at.buffer,
        };
        place as usize
    }
}

/// The lines of a machine, by the numbers of their classes.
fn groups(machine: &Machine) -> Vec<Group> {
    let mut groups: Vec<Group> =
        Class::ALL.iter().map(|_| Group::new(0, Rate::default(), Rate::default())).collect();
    let mut link = |out: Class, back: Class, count: u32, link: &crate::machine::Link| {
        let (write, read) =
            (Rate::new(link.write_bytes_per_s, 0.0), Rate::new(link.read_bytes_per_s, 0.0));
        groups[out as usize] = Group::new(count, write.clone(), write);
        groups[back as usize] = Group::new(count, read.clone(), read);
    };
    let origins = machine.io.as_ref().map_or(machine.compute.nodes, |io| io.nodes);
    if let Some(port) = &machine.compute.port {
        link(Class::NodeOut, Class::NodeIn, machine.compute.nodes, port);
    }
    if let Some(io) = &machine.io {
        link(Class::IoUp, Class::IoDown, io.nodes, &io.link);
    }
    link(Class::NetworkOut, Class::NetworkIn, origins, &machine.network);
    let storage = &machine.storage;
    if let Some(port) = &storage.port {
        link(Class::ServerIn, Class::ServerOut, storage.servers, port);
    }
    if let Some(port) = machine.buffer.as_ref().and_then(|buffer| buffer.port.as_ref()) {
        let count = machine.buffer.as_ref().map_or(0, |buffer| buffer.count);
        link(Class::BufferIn, Class::BufferOut, count, port);
    }
    let device = &storage.device;
    let factor = storage.fill_factor();
    let write = Rate::new(device.write_bytes_per_s * factor, device.write_overhead_s)
        .with_sizes(write_shares(device));
    let read = Rate::new(device.read_bytes_per_s * factor, device.read_overhead_s)
        .with_sizes(read_shares(device));
    let (servers, at_once) = (storage.servers, device.at_once);
    if !storage.shared_device {
        let group = Group::at_once(servers, write.clone(), read.clone(), at_once);
        groups[Class::DiskRead as usize] = group;
    }
    groups[Class::Disk as usize] = Group::at_once(servers, write, read, at_once);
    if let Some(controller) = &storage.controller {
        let rate = Rate::new(controller.bytes_per_s, 0.0);
        groups[Class::Controller as usize] =
            Group::new(storage.servers / controller.servers, rate.clone(), rate);
    }
    if let Some(buffer) = &machine.buffer {
        let devices = f64::from(buffer.devices);
        // A log puts many writes into one of the device.
        let log = buffer.mode == Mode::Log;
        let overhead_s = if log { 0.0 } else { buffer.device.write_overhead_s };
        let device = &buffer.device;
        let write = Rate::new(device.write_bytes_per_s * devices, overhead_s);
        // And large ones are all that it sees.
        let write = if log { write } else { write.with_sizes(write_shares(device)) };
        let read = Rate::new(device.read_bytes_per_s * devices, device.read_overhead_s);
        let read = read.with_sizes(read_shares(device));
        let at_once = device.at_once;
        if !buffer.shared_device {
            let group = Group::at_once(buffer.count, write.clone(), read.clone(), at_once);
            groups[Class::FlashRead as usize] = group;
        }
        groups[Class::Flash as usize] = Group::at_once(buffer.count, write, read, at_once);
    }
    let names_s = machine.buffer.as_ref().map_or(storage.names_s, |buffer| buffer.names_s);
    if names_s > 0.0 {
        let (count, at_once) = (machine.compute.nodes, machine.compute.processors);
        let (write, read) = (Rate::default(), Rate::default());
        groups[Class::Processors as usize] = Group::at_once(count, write, read, at_once);
    }
    groups
}

/// The key of a kind of line's rate.
fn rate_of(class: Class) -> &'static str {
    match class {
        Class::NodeOut | Class::NodeIn => "compute.port",
        Class::IoUp | Class::IoDown => "io.link",
        Class::NetworkOut | Class::NetworkIn => "network.rate",
        Class::ServerIn | Class::ServerOut => "storage.port",
        Class::Controller => "storage.controller",
        Class::Disk | Class::DiskRead => "storage.device",
        Class::BufferIn | Class::BufferOut => "buffer.port",
        Class::Flash | Class::FlashRead => "buffer.device",
        Class::Processors => "compute.processors",
    }
}

/// Where a request goes through.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    /// Its compute node.
    pub(super) node: u32,
    /// Its I/O node, or its compute node where there are none.
    pub(super) origin: u32,
    /// Its server.
    pub(super) server: u32,
    /// Its buffer.
    pub(super) buffer: u32,
}

impl Place {
    /// Where what a buffer drains to a server goes through.
    pub(super) fn of_drain(machine: &Machine, attach: Attach, buffer: u32, server: u32) -> Place {
        let (node, origin) = match attach {
            Attach::Compute => (buffer, buffer / machine.nodes_per_io()),
            Attach::Io => (0, buffer),
            Attach::Fabric | Attach::Storage => (0, 0),
        };
        Place { node, origin, server, buffer }
    }
}

/// Parts of a way, one after the other.
type Parts<'a> = &'a [&'a [Class]];

/// What makes ways of a machine: its links that are there, and their round trips.
struct WayMaker<'m> {
    machine: &'m Machine,
    groups: &'m [Group],
    /// Round trips to an I/O node, and from there to storage, in seconds.
    near_s: f64,
    far_s: f64,
}

fn trip_s(link: Option<&crate::machine::Link>) -> f64 {
    link.map_or(0.0, |link| link.round_trip_s)
}

impl<'m> WayMaker<'m> {
    fn new(machine: &'m Machine, groups: &'m [Group]) -> WayMaker<'m> {
        let io_s = machine.io.as_ref().map_or(0.0, |io| io.link.round_trip_s);
        let near_s = trip_s(machine.compute.port.as_ref()) + io_s;
        let far_s = near_s + machine.network.round_trip_s + trip_s(machine.storage.port.as_ref());
        WayMaker { machine, groups, near_s, far_s }
    }

    /// A way through lines, with room in the buffer before those of `room_before`; links that the machine does not have are left
    /// out.
    fn way(&self, parts: Parts, room_before: Option<Class>, latency_s: f64) -> Way {
        let mut hops = Vec::new();
        for &class in parts.iter().copied().flatten() {
            if room_before == Some(class) {
                hops.push(Hop::Room);
            }
            if !self.groups[class as usize].lines.is_empty() {
                hops.push(Hop::At(class));
            }
        }
        hops.push(Hop::Done);
        Way { joined: vec![false; hops.len()], hops, latency_ns: latency_s * SECOND_NS as f64 }
    }

    /// To a buffer, from it, and from it to storage.
    fn of_buffer(&self, buffer: &Buffer) -> [Way; 3] {
        use Class::{
            BufferIn, BufferOut, Controller, Disk, Flash, FlashRead, IoDown, IoUp, NetworkOut,
            NodeIn, NodeOut, ServerIn, ServerOut,
        };
        let machine = self.machine;
        let flash_read: &[Class] = if buffer.shared_device { &[Flash] } else { &[FlashRead] };
        let buffer_s = self.near_s + machine.network.round_trip_s + trip_s(buffer.port.as_ref());
        let (there, back, drain, latency_s): (Parts, Parts, Parts, f64) = match buffer.attach {
            // Most of it goes to other nodes. Their ports carry as much inwards, which takes no time of its own here.
            Attach::Compute if buffer.striped => (
                &[&[NodeOut], &[Flash]],
                &[flash_read, &[NodeIn]],
                &[flash_read, TO_NETWORK, TO_DISK],
                trip_s(machine.compute.port.as_ref()),
            ),
            Attach::Compute => {
                (&[&[Flash]], &[flash_read], &[flash_read, TO_NETWORK, TO_DISK], 0.0)
            }
            Attach::Io => (
                &[&[NodeOut, IoUp], &[Flash]],
                &[flash_read, &[IoDown, NodeIn]],
                &[flash_read, &[NetworkOut], TO_DISK],
                self.near_s,
            ),
            Attach::Fabric => (
                &[TO_NETWORK, &[BufferIn], &[Flash]],
                &[flash_read, &[BufferOut], FROM_NETWORK],
                &[flash_read, &[BufferOut], TO_DISK],
                buffer_s,
            ),
            Attach::Storage => (
                &[TO_NETWORK, &[ServerIn], &[Flash]],
                &[flash_read, &[ServerOut], FROM_NETWORK],
                &[flash_read, &[Controller, Disk]],
                self.far_s,
            ),
        };
        let mut write = self.way(there, Some(Flash), latency_s);
        if buffer.mode == Mode::WriteThrough {
            self.goes_through(buffer, &mut write);
        }
        let drain_s = match buffer.attach {
            Attach::Storage => 0.0,
            _ => machine.network.round_trip_s + trip_s(machine.storage.port.as_ref()),
        };
        [write, self.way(back, None, latency_s), self.way(drain, None, drain_s)]
    }

    /// Flash first, then on to storage; a write is done when both have it.
    fn goes_through(&self, buffer: &Buffer, write: &mut Way) {
        use Class::{BufferOut, Controller, Disk, NetworkOut};
        let onward = match buffer.attach {
            Attach::Compute => self.way(&[TO_NETWORK, TO_DISK], None, 0.0),
            Attach::Io => self.way(&[&[NetworkOut], TO_DISK], None, 0.0),
            Attach::Fabric => self.way(&[&[BufferOut], TO_DISK], None, 0.0),
            Attach::Storage => self.way(&[&[Controller, Disk]], None, 0.0),
        };
        write.hops.pop();
        write.hops.extend(onward.hops);
        write.joined = vec![false; write.hops.len()];
        write.latency_ns = self.far_s * SECOND_NS as f64;
    }
}

const TO_NETWORK: &[Class] = &[Class::NodeOut, Class::IoUp, Class::NetworkOut];
const FROM_NETWORK: &[Class] = &[Class::NetworkIn, Class::IoDown, Class::NodeIn];
const TO_DISK: &[Class] = &[Class::ServerIn, Class::Controller, Class::Disk];
const FROM_DISK: &[Class] = &[Class::Controller, Class::ServerOut];

/// The ways in this machine, by the numbers of their kinds.
fn ways(machine: &Machine, groups: &[Group]) -> [Way; 5] {
    let maker = WayMaker::new(machine, groups);
    let write_storage = maker.way(&[TO_NETWORK, TO_DISK], None, maker.far_s);
    let disk: &[Class] =
        if machine.storage.shared_device { &[Class::Disk] } else { &[Class::DiskRead] };
    let read_storage = maker.way(&[disk, FROM_DISK, FROM_NETWORK], None, maker.far_s);
    let Some(buffer) = &machine.buffer else {
        let none = write_storage.clone();
        return [write_storage, none.clone(), read_storage.clone(), read_storage, none];
    };
    let [write_buffer, read_buffer, drain] = maker.of_buffer(buffer);
    [write_storage, write_buffer, read_storage, read_buffer, drain]
}

/// What a line's number is the number of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// A compute node.
    Node,
    /// An I/O node, or a compute node where there are none.
    Origin,
    /// A server.
    Server,
    /// A controller.
    Controller,
    /// A buffer.
    Buffer,
}

/// What the lines of a class are numbered by.
pub(super) fn numbered_by(class: Class) -> Of {
    match class {
        Class::NodeOut | Class::NodeIn | Class::Processors => Of::Node,
        Class::IoUp | Class::IoDown | Class::NetworkOut | Class::NetworkIn => Of::Origin,
        Class::ServerIn | Class::ServerOut | Class::Disk | Class::DiskRead => Of::Server,
        Class::Controller => Of::Controller,
        Class::BufferIn | Class::BufferOut | Class::Flash | Class::FlashRead => Of::Buffer,
    }
}

/// Whether all requests that come from one line of `before` go to one line of `after`, and to that line from no other.
fn is_one_to_one(machine: &Machine, before: Class, after: Class) -> bool {
    let private = |attach: Attach| {
        machine.buffer.as_ref().is_some_and(|buffer| buffer.attach == attach && !buffer.striped)
    };
    match (numbered_by(before), numbered_by(after)) {
        (one, other) if one == other => true,
        (Of::Origin, Of::Buffer) | (Of::Buffer, Of::Origin) if machine.nodes_per_io() == 1 => {
            private(Attach::Io) || private(Attach::Compute)
        }
        (Of::Origin, Of::Buffer) | (Of::Buffer, Of::Origin) => private(Attach::Io),
        (Of::Node, Of::Buffer) | (Of::Buffer, Of::Node) => private(Attach::Compute),
        (Of::Node, Of::Origin) | (Of::Origin, Of::Node) => machine.nodes_per_io() == 1,
        _ => false,
    }
}

/// Joins lines that follow each other: a line that gets requests from one other line only gets them in the order in
/// which that one lets them go, so when a request leaves both is known when it comes to the first, and needs one event
/// instead of two.
///
/// Kinds of requests that the program cannot make are left out of sight. Where a full buffer is passed by, requests
/// begin in the middle of a way, and where lost buffers are rebuilt, flash has requests of its own: nothing is joined then.
fn join(ways: &mut [Way; 5], groups: &[Group], machine: &Machine, program: &Program) {
    let passes_by = machine.buffer.as_ref().is_some_and(|b| b.when_full == WhenFull::Bypass);
    // A rebuild's requests come from no line before the flash.
    if passes_by || may_rebuild(machine) {
        return;
    }
    let steps = program.jobs.iter().flat_map(|job| &job.phases).flat_map(|phase| &phase.steps);
    let reads = steps.into_iter().any(|s| matches!(s.action, Action::Move { write: false, .. }));
    // Who restarts reads its checkpoint back.
    let fails = machine.can_fail();
    let has_buffer = machine.buffer.is_some();
    let made = |kind: Kind| match kind {
        Kind::WriteStorage => !has_buffer,
        Kind::WriteBuffer | Kind::Drain => has_buffer,
        Kind::ReadStorage => reads || fails,
        Kind::ReadBuffer => has_buffer && (reads || fails),
    };
    let made: Vec<usize> =
        Kind::ALL.iter().filter(|kind| made(**kind)).map(|k| *k as usize).collect();
    for class in Class::ALL {
        let before = made.iter().flat_map(|&way| {
            let hops = &ways[way].hops;
            let comes = hops.iter().enumerate().filter(|(_, hop)| **hop == Hop::At(class));
            comes.map(|(at, _)| at.checked_sub(1).map(|at| hops[at])).collect::<Vec<_>>()
        });
        let mut before: Vec<Option<Hop>> = before.collect();
        before.dedup();
        let [Some(Hop::At(only))] = before[..] else {
            continue;
        };
        // What is worked at at once may leave in another order than it came.
        let in_order = groups[only as usize].lines.iter().all(|line| line.servers() == 1);
        if !in_order || !is_one_to_one(machine, only, class) {
            continue;
        }
        for &way in &made {
            for at in 1..ways[way].hops.len() {
                if ways[way].hops[at] == Hop::At(class) {
                    ways[way].joined[at] = true;
                }
            }
        }
    }
}
