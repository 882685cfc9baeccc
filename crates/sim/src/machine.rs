//! A machine as data: compute nodes, I/O nodes, network, storage, burst buffer. docs/SIMULATION.md describes the file.
//!
//! Invariants: rates are above 0; every count is at least 1; a group of equal things divides evenly by what shares it.
//! Callers: `model` runs it, `closed` computes with it, `sweep` changes it.

use crate::device::{self, Device};
use crate::units::{RATE, rate, time_s};
use forebay_policy::when::{IDLE_DEFAULT, Policy, Watermark, When};
use forebay_workload::document::{Document, Fault, Table};
use serde::Serialize;
use std::path::Path;

/// Version of the file.
pub const VERSION: u64 = 1;
/// Most nodes, I/O nodes, servers or buffers of a machine.
pub const MAX_COUNT: u64 = 1 << 20;

/// Keys of each table: one that is in no such list is told before one that is missing.
const ROOT_KEYS: [&str; 10] = [
    "version",
    "name",
    "about",
    "assumptions",
    "compute",
    "io",
    "network",
    "storage",
    "buffer",
    "cost",
];
const COMPUTE_KEYS: [&str; 7] =
    ["nodes", "processes_per_node", "processors", "shared", "port", "mtbf", "restart"];
const IO_KEYS: [&str; 3] = ["nodes", "link", "mtbf"];
const LINK_KEYS: [&str; 4] = ["rate", "write_rate", "read_rate", "round_trip"];
const STORAGE_KEYS: [&str; 11] = [
    "servers",
    "stripe",
    "placement",
    "port",
    "device",
    "reads_delay_writes",
    "controller",
    "names",
    "sync",
    "fill",
    "rate_when_full",
];
const CONTROLLER_KEYS: [&str; 2] = ["servers", "rate"];
const BUFFER_KEYS: [&str; 17] = [
    "attach",
    "nodes",
    "capacity",
    "devices",
    "device",
    "reads_delay_writes",
    "port",
    "names",
    "sync",
    "mode",
    "rules",
    "servers",
    "access",
    "when_full",
    "redundancy",
    "drain",
    "mtbf",
];
const REDUNDANCY_KEYS: [&str; 5] = ["kind", "copies", "data", "parity", "strip"];

/// A machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// What it is, and where its figures come from.
    pub about: String,
    /// What the file says that nobody has measured.
    pub assumptions: Vec<String>,
    /// Compute nodes.
    pub compute: Compute,
    /// I/O nodes between compute nodes and network; None: there are none.
    pub io: Option<IoNodes>,
    /// What the I/O nodes, or without them the compute nodes, reach storage by.
    pub network: Link,
    /// The file servers.
    pub storage: Storage,
    /// The burst buffer; None: there is none.
    pub buffer: Option<Buffer>,
    /// What its parts cost.
    pub cost: Cost,
}

/// Compute nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compute {
    /// How many.
    pub nodes: u32,
    /// Most processes of a node.
    pub processes_per_node: u32,
    /// Processors of a node: names that its processes ask for at once; by default as many as it has processes.
    pub processors: u32,
    /// A job does not have its nodes to itself: as where nobody schedules, every job starts when it is due, on the first
    /// nodes.
    pub shared: bool,
    /// A node's own port; None: it is never the limit.
    pub port: Option<Link>,
    /// Mean time between failures of one node, in seconds; None: nodes do not fail.
    pub mtbf_s: Option<f64>,
    /// From a failure to the restart of the job, in seconds.
    pub restart_s: f64,
}

/// I/O nodes: each serves the same number of compute nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IoNodes {
    /// How many.
    pub nodes: u32,
    /// The link that the compute nodes of an I/O node share.
    pub link: Link,
    /// Mean time between failures of one, in seconds.
    pub mtbf_s: Option<f64>,
}

/// A link. Both directions work at once.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Link {
    /// Towards storage, in bytes per second.
    pub write_bytes_per_s: f64,
    /// From storage.
    pub read_bytes_per_s: f64,
    /// What each request waits in addition, for both ways and software, in seconds.
    pub round_trip_s: f64,
}

/// File servers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Storage {
    /// How many.
    pub servers: u32,
    /// Bytes of a file on one server before the next.
    pub stripe_bytes: u64,
    /// On which server a file begins.
    pub placement: Placement,
    /// A server's port.
    pub port: Option<Link>,
    /// A server's disks, as one device.
    pub device: Device,
    /// Whether reads and writes of the disks wait for each other.
    pub shared_device: bool,
    /// What several servers share.
    pub controller: Option<Controller>,
    /// Share of the capacity in use, 0 to 1: disks are slower inside. See [`Storage::fill_factor`].
    pub fill: f64,
    /// What an operation on a name takes of a node's processor, in seconds, where there is no buffer.
    pub names_s: f64,
    /// What making a file durable takes besides its bytes, in seconds, where there is no buffer.
    pub sync_s: f64,
    /// The rate of full disks, as a share of that of empty ones.
    pub rate_when_full: f64,
}

impl Storage {
    /// What is left of the disks' rate at the fill level: from 1 (empty) linearly to `rate_when_full`.
    pub fn fill_factor(&self) -> f64 {
        1.0 - self.fill * (1.0 - self.rate_when_full)
    }
}

/// A controller before the disks of several servers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Controller {
    /// Servers that share one.
    pub servers: u32,
    /// Its rate, in bytes per second.
    pub bytes_per_s: f64,
}

/// Where a file begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// File after file, the next server.
    RoundRobin,
    /// Drawn by the seed.
    Random,
}

/// Where the flash is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Attach {
    /// In each compute node.
    Compute,
    /// In each I/O node.
    Io,
    /// In nodes of its own on the network.
    Fabric,
    /// In each file server.
    Storage,
}

impl Attach {
    /// Its words, in the order of the variants.
    pub const WORDS: [&str; 4] = ["compute", "io", "fabric", "storage"];
    /// The variants.
    pub const ALL: [Attach; 4] = [Attach::Compute, Attach::Io, Attach::Fabric, Attach::Storage];

    /// Its word.
    pub fn word(self) -> &'static str {
        Attach::WORDS[self as usize]
    }
}

/// When a write is done, and when data leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// When it is on flash; it drains later.
    WriteBack,
    /// When storage has it too.
    WriteThrough,
    /// When it is on flash; it is copied out when its job has ended.
    Stage,
    /// As write-back, appended to a log: small writes cost what large ones do.
    Log,
}

/// What happens to a write that finds no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WhenFull {
    /// It waits.
    Block,
    /// It goes to storage past the buffer.
    Bypass,
    /// Its job fails.
    Fail,
}

/// When a buffer drains.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DrainWhen {
    /// As soon as it has something.
    AtOnce,
    /// From the high mark to the low one, as the server's caches do; and when no job is left.
    Watermarks(#[serde(serialize_with = "mark")] Watermark),
    /// While no request of a job is under way at it, or one waits for room.
    Idle,
    /// As Forebay's caches do, by this policy: file by file, and all else by the same rules.
    Policy(#[serde(serialize_with = "policy")] Policy),
}

fn policy<S: serde::Serializer>(policy: &Policy, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(policy)
}

fn mark<S: serde::Serializer>(mark: &Watermark, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{}:{}", mark.high, mark.low))
}

/// How a buffer survives the loss of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Redundancy {
    /// It does not.
    None,
    /// Each byte is on so many buffers.
    Copies {
        /// How many.
        copies: u32,
    },
    /// Groups of `data` strips with `parity` strips.
    Parity {
        /// Strips of data.
        data: u32,
        /// Strips of parity.
        parity: u32,
        /// Bytes of a strip.
        strip_bytes: u64,
    },
}

impl Redundancy {
    /// Room that a byte takes.
    pub fn room(self) -> f64 {
        match self {
            Redundancy::None => 1.0,
            Redundancy::Copies { copies } => f64::from(copies),
            Redundancy::Parity { data, parity, .. } => f64::from(data + parity) / f64::from(data),
        }
    }

    /// Bytes that flash writes and reads when `bytes` are written at once. What is no whole group of strips is
    /// read, changed and written with its parity, as in any RAID of this kind.
    pub fn traffic(self, bytes: u64) -> (u64, u64) {
        match self {
            Redundancy::None => (bytes, 0),
            Redundancy::Copies { copies } => (bytes * u64::from(copies), 0),
            Redundancy::Parity { data, parity, strip_bytes } => {
                let (data, parity) = (u64::from(data), u64::from(parity));
                let group = data * strip_bytes;
                let (whole, part) = (bytes / group * group, bytes % group);
                // Of a part both what changes and the parity are read first; at most a strip each of parity.
                let parity_of_part = parity * part.min(strip_bytes);
                (whole / data * (data + parity) + part + parity_of_part, part + parity_of_part)
            }
        }
    }

    /// How many buffers may be lost at a time without costing data.
    pub fn spares(self) -> u32 {
        match self {
            Redundancy::None => 0,
            Redundancy::Copies { copies } => copies.saturating_sub(1),
            Redundancy::Parity { parity, .. } => parity,
        }
    }
}

/// The burst buffer: equal buffers, one at each place of `attach`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Buffer {
    /// Where they are.
    pub attach: Attach,
    /// How many: of `fabric` as given, otherwise one at each place.
    pub count: u32,
    /// Bytes of one.
    pub capacity_bytes: u64,
    /// Flash devices of one; their rates add up.
    pub devices: u32,
    /// One of them.
    pub device: Device,
    /// Whether reads and writes of a device wait for each other.
    pub shared_device: bool,
    /// A fabric buffer's port.
    pub port: Option<Link>,
    /// As `storage` has it, where there is a buffer.
    pub names_s: f64,
    /// As `storage` has it, where there is a buffer.
    pub sync_s: f64,
    /// When writes are done.
    pub mode: Mode,
    /// Whether files are placed, drained, admitted and evicted by the rules of Forebay's own servers.
    pub forebay: bool,
    /// Of `fabric` with Forebay's rules: on how many servers a job's buffer is; 0: on all.
    pub servers: u32,
    /// Whether each process uses all buffers of its job, or the one nearest.
    pub striped: bool,
    /// What happens when it is full.
    pub when_full: WhenFull,
    /// Against losses.
    pub redundancy: Redundancy,
    /// The drain.
    pub drain: Drain,
    /// Mean time between failures of one buffer node, in seconds (fabric).
    pub mtbf_s: Option<f64>,
}

impl Buffer {
    /// What it says that so many buffers at such places cannot have, and what was expected.
    fn misplaced(&self) -> Option<(String, String)> {
        let (count, attach) = (self.count, self.attach.word());
        if self.servers > 0 && !(self.forebay && self.attach == Attach::Fabric) {
            let expected = "it with rules = \"forebay\" and attach = \"fabric\" only";
            return Some(("buffer.servers is given".into(), expected.into()));
        }
        if self.servers > count {
            let found = format!("buffer.servers is {} and buffer.nodes {count}", self.servers);
            return Some((found, format!("buffer.servers of at most {count}")));
        }
        if let (Some(_), true) = (self.mtbf_s, self.attach != Attach::Fabric) {
            let found = format!("buffer.mtbf is given and buffer.attach is \"{attach}\"");
            let expected =
                "compute.mtbf or io.mtbf, with whose nodes flash fails, or attach = \"fabric\"";
            return Some((found, expected.into()));
        }
        // Strips of a group may share a buffer; all of them on one protect nothing.
        let (least, what) = match self.redundancy {
            Redundancy::None => return None,
            Redundancy::Copies { copies } => (copies, format!("{copies} copies")),
            Redundancy::Parity { .. } => (2, "parity".into()),
        };
        (count < least).then(|| {
            let found = format!("buffer.redundancy has {what} and the machine has {count} buffers (buffer.attach is \"{attach}\")");
            (found, format!("at least {least} buffers, or redundancy.kind = \"none\""))
        })
    }
}

/// How a buffer drains.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Drain {
    /// When.
    pub when: DrainWhen,
    /// Requests that one buffer has under way at once.
    pub depth: u32,
    /// Most bytes per second of one buffer; None: no limit.
    pub limit_bytes_per_s: Option<f64>,
    /// What each file takes besides its bytes, in seconds, by Forebay's rules.
    pub per_file_s: f64,
}

/// What things cost, in any one unit. All 0: nobody said.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    /// A GiB of flash.
    pub flash_gib: f64,
    /// A flash device, whatever its size.
    pub flash_device: f64,
    /// A buffer node (fabric).
    pub buffer_node: f64,
    /// A file server with its disks.
    pub server: f64,
}

impl Machine {
    /// Whether its buffers are Forebay's: its code says where files go.
    pub(crate) fn has_placement(&self) -> bool {
        self.buffer.as_ref().is_some_and(|buffer| buffer.forebay)
    }

    /// Whether Forebay's code also says when they drain, and what is let in and goes: of buffers that write back.
    #[inline]
    pub(crate) fn has_rules(&self) -> bool {
        self.buffer.as_ref().is_some_and(|b| matches!(b.drain.when, DrainWhen::Policy(_)))
    }

    /// Reads a machine file: the text of `path`.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn parse(path: &Path, text: &str) -> Result<Machine, Fault> {
        let document = Document::parse(path, text)?;
        let root = document.root();
        root.knows(&ROOT_KEYS)?;
        let version = root.integer("version", VERSION..=VERSION)?;
        root.required("version", version, "version = 1")?;
        let machine = Machine {
            name: root.text("name", "a name")?.unwrap_or_else(|| "unnamed".into()),
            about: root.text("about", "a text")?.unwrap_or_default(),
            assumptions: root.texts("assumptions", "a list of texts")?,
            compute: compute(&section(&root, "compute")?)?,
            io: root.table("io")?.map(|table| io_nodes(&table)).transpose()?,
            network: whole_link(&section(&root, "network")?)?,
            storage: storage(&section(&root, "storage")?)?,
            buffer: root.table("buffer")?.map(|table| buffer(&table)).transpose()?,
            cost: root.table("cost")?.map(|table| cost(&table)).transpose()?.unwrap_or_default(),
        };
        root.finish()?;
        machine.fit_together(&root)
    }

    /// What one section cannot know of the others.
    fn fit_together(mut self, root: &Table) -> Result<Machine, Fault> {
        if let Some(io) = &self.io {
            let (nodes, ions) = (self.compute.nodes, io.nodes);
            if nodes % ions != 0 {
                return Err(root.fault(
                    "io",
                    format!("{nodes} compute nodes (compute.nodes) cannot be shared evenly by {ions} I/O nodes (io.nodes): {nodes} / {ions} leaves {}", nodes % ions),
                    "io.nodes that divides compute.nodes",
                ));
            }
        }
        if let Some(controller) = &self.storage.controller {
            let (servers, each) = (self.storage.servers, controller.servers);
            if servers % each != 0 {
                return Err(root.fault(
                    "storage",
                    format!("{servers} servers (storage.servers) cannot be shared evenly by controllers of {each} (storage.controller.servers): {servers} / {each} leaves {}", servers % each),
                    "storage.controller.servers that divides storage.servers",
                ));
            }
        }
        let Some(buffer) = &mut self.buffer else { return Ok(self) };
        if buffer.forebay && buffer.attach == Attach::Storage {
            return Err(root.fault(
                "buffer",
                "buffer.rules is \"forebay\" and buffer.attach \"storage\"",
                "attach = \"compute\", \"io\" or \"fabric\": Forebay's servers are no servers of the PFS",
            ));
        }
        let places = match buffer.attach {
            Attach::Compute => self.compute.nodes,
            Attach::Io => match &self.io {
                Some(io) => io.nodes,
                None => {
                    return Err(root.fault(
                        "buffer",
                        "buffer.attach is \"io\" and the machine has no [io]",
                        "an [io] section, or attach = \"compute\", \"fabric\" or \"storage\"",
                    ));
                }
            },
            Attach::Storage => self.storage.servers,
            Attach::Fabric => buffer.count,
        };
        if buffer.count != 0 && buffer.count != places {
            return Err(root.fault(
                "buffer",
                format!(
                    "buffer.nodes is {} and there are {places} places of buffer.attach = \"{}\"",
                    buffer.count,
                    buffer.attach.word()
                ),
                "no buffer.nodes, or attach = \"fabric\"",
            ));
        }
        if places == 0 {
            return Err(root.fault(
                "buffer",
                "buffer.nodes is missing",
                "how many nodes on the fabric have flash",
            ));
        }
        buffer.count = places;
        match buffer.misplaced() {
            Some((found, expected)) => Err(root.fault("buffer", found, expected)),
            None => Ok(self),
        }
    }

    /// What it costs, by its price list; None if nobody gave prices.
    pub fn price(&self) -> Option<f64> {
        if self.cost == Cost::default() {
            return None;
        }
        let flash = self.buffer.as_ref().map_or(0.0, |buffer| {
            let gib = buffer.capacity_bytes as f64 / (1_u64 << 30) as f64;
            let each =
                gib * self.cost.flash_gib + f64::from(buffer.devices) * self.cost.flash_device;
            let node = if buffer.attach == Attach::Fabric { self.cost.buffer_node } else { 0.0 };
            f64::from(buffer.count) * (each + node)
        });
        Some(flash + f64::from(self.storage.servers) * self.cost.server)
    }

    /// Whether something of it fails now and then.
    pub fn can_fail(&self) -> bool {
        self.compute.mtbf_s.is_some()
            || self.io.as_ref().is_some_and(|io| io.mtbf_s.is_some())
            || self.buffer.as_ref().is_some_and(|buffer| buffer.mtbf_s.is_some())
    }

    /// Compute nodes of an I/O node, or 1 without I/O nodes.
    pub fn nodes_per_io(&self) -> u32 {
        self.io.as_ref().map_or(1, |io| self.compute.nodes / io.nodes)
    }

    /// Most processes.
    pub fn processes(&self) -> u64 {
        u64::from(self.compute.nodes) * u64::from(self.compute.processes_per_node)
    }
}

fn section<'d>(root: &Table<'d>, key: &'static str) -> Result<Table<'d>, Fault> {
    let table = root.table(key)?;
    root.required(key, table, &format!("a table: [{key}]"))
}

fn count(table: &Table, key: &'static str) -> Result<u32, Fault> {
    let value = table.integer(key, 1..=MAX_COUNT)?;
    Ok(table.required(key, value, "an integer of at least 1")? as u32)
}

fn mtbf(table: &Table) -> Result<Option<f64>, Fault> {
    match time_s(table, "mtbf")? {
        Some(0.0) => {
            Err(table.fault("mtbf", "it is 0", "a time above 0, or no mtbf: nothing fails"))
        }
        time => Ok(time),
    }
}

/// `rate` for both directions, or `write_rate` and `read_rate`, and `round_trip`.
fn link(table: &Table) -> Result<Link, Fault> {
    table.knows(&LINK_KEYS)?;
    let both = rate(table, "rate")?;
    let (write, read) = (rate(table, "write_rate")?, rate(table, "read_rate")?);
    if let (Some(_), true) = (both, write.is_some() || read.is_some()) {
        return Err(table.fault(
            "rate",
            "there is write_rate or read_rate too",
            "rate for both directions, or one of each",
        ));
    }
    let write = table.required("rate", both.or(write).or(read), RATE)?;
    Ok(Link {
        write_bytes_per_s: write,
        read_bytes_per_s: both.or(read).unwrap_or(write),
        round_trip_s: time_s(table, "round_trip")?.unwrap_or(0.0),
    })
}

fn whole_link(table: &Table) -> Result<Link, Fault> {
    let link = link(table)?;
    table.finish()?;
    Ok(link)
}

fn optional_link(table: &Table, key: &'static str) -> Result<Option<Link>, Fault> {
    table.table(key)?.map(|table| whole_link(&table)).transpose()
}

fn compute(table: &Table) -> Result<Compute, Fault> {
    table.knows(&COMPUTE_KEYS)?;
    let per_node = count(table, "processes_per_node")?;
    let processors = table.integer("processors", 1..=4096)?;
    let compute = Compute {
        nodes: count(table, "nodes")?,
        processes_per_node: per_node,
        processors: processors.map_or(per_node.min(4096), |processors| processors as u32),
        shared: table.boolean("shared")?.unwrap_or(false),
        port: optional_link(table, "port")?,
        mtbf_s: mtbf(table)?,
        restart_s: time_s(table, "restart")?.unwrap_or(0.0),
    };
    table.finish()?;
    Ok(compute)
}

fn io_nodes(table: &Table) -> Result<IoNodes, Fault> {
    table.knows(&IO_KEYS)?;
    let io = IoNodes {
        nodes: count(table, "nodes")?,
        link: whole_link(&section(table, "link")?)?,
        mtbf_s: mtbf(table)?,
    };
    table.finish()?;
    Ok(io)
}

fn storage(table: &Table) -> Result<Storage, Fault> {
    table.knows(&STORAGE_KEYS)?;
    let stripe = table.positive_size("stripe")?;
    let placement = table.choice("placement", &["round-robin", "random"])?;
    let controller = table.table("controller")?;
    let storage = Storage {
        servers: count(table, "servers")?,
        stripe_bytes: table.required("stripe", stripe, "a size of at least 1 byte")?,
        placement: match placement {
            Some(1) => Placement::Random,
            _ => Placement::RoundRobin,
        },
        port: optional_link(table, "port")?,
        device: device::read(&section(table, "device")?)?,
        shared_device: table.boolean("reads_delay_writes")?.unwrap_or(true),
        controller: controller
            .map(|table| -> Result<_, Fault> {
                table.knows(&CONTROLLER_KEYS)?;
                let bytes_per_s = rate(&table, "rate")?;
                let controller = Controller {
                    servers: count(&table, "servers")?,
                    bytes_per_s: table.required("rate", bytes_per_s, RATE)?,
                };
                table.finish()?;
                Ok(controller)
            })
            .transpose()?,
        names_s: time_s(table, "names")?.unwrap_or(0.0),
        sync_s: time_s(table, "sync")?.unwrap_or(0.0),
        fill: table.number("fill", 0.0..=1.0)?.unwrap_or(0.0),
        rate_when_full: table.number("rate_when_full", 0.01..=1.0)?.unwrap_or(1.0),
    };
    table.finish()?;
    Ok(storage)
}

fn buffer(table: &Table) -> Result<Buffer, Fault> {
    table.knows(&BUFFER_KEYS)?;
    let attach = table.choice("attach", &Attach::WORDS)?;
    let capacity = table.positive_size("capacity")?;
    let mode = table.choice("mode", &["write-back", "write-through", "stage", "log"])?;
    let when_full = table.choice("when_full", &["block", "bypass", "fail"])?;
    let access = table.choice("access", &["private", "striped"])?;
    let rules = table.choice("rules", &["simple", "forebay"])?;
    let forebay = rules == Some(1);
    let is_cache = forebay && mode.unwrap_or(0) == 0;
    let drain = table.table("drain")?.map(|table| self::drain(&table, is_cache)).transpose()?;
    let buffer = Buffer {
        attach: Attach::ALL
            [table.required("attach", attach, "one of compute, io, fabric, storage")?],
        count: table.integer("nodes", 1..=MAX_COUNT)?.unwrap_or(0) as u32,
        capacity_bytes: table.required("capacity", capacity, "a size of at least 1 byte")?,
        devices: table.integer("devices", 1..=1024)?.unwrap_or(1) as u32,
        device: device::read(&section(table, "device")?)?,
        shared_device: table.boolean("reads_delay_writes")?.unwrap_or(true),
        port: optional_link(table, "port")?,
        names_s: time_s(table, "names")?.unwrap_or(0.0),
        sync_s: time_s(table, "sync")?.unwrap_or(0.0),
        mode: [Mode::WriteBack, Mode::WriteThrough, Mode::Stage, Mode::Log][mode.unwrap_or(0)],
        forebay,
        servers: table.integer("servers", 1..=MAX_COUNT)?.unwrap_or(0) as u32,
        striped: access == Some(1),
        when_full: [WhenFull::Block, WhenFull::Bypass, WhenFull::Fail][when_full.unwrap_or(0)],
        redundancy: table
            .table("redundancy")?
            .map(|table| redundancy(&table))
            .transpose()?
            .unwrap_or(Redundancy::None),
        drain: drain.unwrap_or(Drain {
            when: match is_cache {
                true => DrainWhen::Policy(Policy::from(When::Idle(IDLE_DEFAULT))),
                false => DrainWhen::AtOnce,
            },
            depth: DEPTH,
            limit_bytes_per_s: None,
            per_file_s: 0.0,
        }),
        mtbf_s: mtbf(table)?,
    };
    table.finish()?;
    Ok(buffer)
}

/// Requests of a drain at once, where the file says nothing.
const DEPTH: u32 = 8;

/// `is_cache`: it drains by a policy of Forebay.
fn drain(table: &Table, is_cache: bool) -> Result<Drain, Fault> {
    table.knows(&["when", "high", "low", "depth", "limit", "policy", "per_file"])?;
    let policy = table.text("policy", Policy::SYNTAX)?;
    if is_cache {
        let policy = policy.map(|text| match Policy::parse(text.as_bytes()) {
            Some(policy) => Ok(policy),
            None => Err(table.fault("policy", format!("it is {text:?}"), Policy::SYNTAX)),
        });
        let policy = policy.transpose()?.unwrap_or(Policy::from(When::Idle(IDLE_DEFAULT)));
        let limit_bytes_per_s = rate(table, "limit")?;
        let per_file_s = time_s(table, "per_file")?.unwrap_or(0.0);
        table.finish()?;
        let when = DrainWhen::Policy(policy);
        return Ok(Drain { when, depth: DEPTH, limit_bytes_per_s, per_file_s });
    }
    if policy.is_some() {
        return Err(table.fault(
            "policy",
            "the buffer is no cache by Forebay's rules",
            "buffer.rules = \"forebay\" and buffer.mode = \"write-back\", or when instead of policy",
        ));
    }
    let when = table.choice("when", &["at-once", "watermarks", "idle"])?;
    let high = table.number("high", 0.0..=1.0)?;
    let low = table.number("low", 0.0..=1.0)?;
    let when = match when {
        Some(1) => {
            let (high, low) = (high.unwrap_or(0.75), low.unwrap_or(0.5));
            if low > high {
                return Err(table.fault(
                    "low",
                    format!("it is {low}, above high, which is {high}"),
                    "low of at most high",
                ));
            }
            let percent = |share: f64| (share * 100.0).round() as u8;
            DrainWhen::Watermarks(Watermark { high: percent(high), low: percent(low) })
        }
        _ if high.is_some() || low.is_some() => {
            return Err(table.fault("when", "high and low are given", "when = \"watermarks\""));
        }
        Some(2) => DrainWhen::Idle,
        _ => DrainWhen::AtOnce,
    };
    let drain = Drain {
        when,
        depth: table.integer("depth", 1..=4096)?.unwrap_or(u64::from(DEPTH)) as u32,
        limit_bytes_per_s: rate(table, "limit")?,
        per_file_s: 0.0,
    };
    table.finish()?;
    Ok(drain)
}

fn redundancy(table: &Table) -> Result<Redundancy, Fault> {
    table.knows(&REDUNDANCY_KEYS)?;
    let kind = table.choice("kind", &["none", "copies", "parity"])?;
    let redundancy = match table.required("kind", kind, "one of none, copies, parity")? {
        0 => Redundancy::None,
        1 => Redundancy::Copies { copies: table.integer("copies", 2..=8)?.unwrap_or(2) as u32 },
        _ => Redundancy::Parity {
            data: table.integer("data", 1..=64)?.unwrap_or(8) as u32,
            parity: table.integer("parity", 1..=4)?.unwrap_or(1) as u32,
            strip_bytes: table.positive_size("strip")?.unwrap_or(1 << 20),
        },
    };
    table.finish()?;
    Ok(redundancy)
}

fn cost(table: &Table) -> Result<Cost, Fault> {
    table.knows(&["flash_gib", "flash_device", "buffer_node", "server"])?;
    let number = |key| Ok(table.number(key, 0.0..=1e12)?.unwrap_or(0.0));
    let cost = Cost {
        flash_gib: number("flash_gib")?,
        flash_device: number("flash_device")?,
        buffer_node: number("buffer_node")?,
        server: number("server")?,
    };
    table.finish()?;
    Ok(cost)
}
