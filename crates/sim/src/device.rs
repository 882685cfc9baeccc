//! Storage devices: flash and disks. A request of L bytes takes L/B + T, with B and T of its direction; B may depend on L.
//!
//! Source of the model and of the devices of January 2012: Table II of N. Liu et al., "On the Role of Burst Buffers in
//! Leadership-Class Storage Systems", MSST 2012. `nvme-2023` and `datawarp-2016` say their sources beside them.

use crate::units::{RATE, rate, time_s};
use forebay_workload::document::{Fault, Table};
use serde::Serialize;

/// A device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Device {
    /// Its name, of those below or one's own.
    pub name: String,
    /// Writes, in bytes per second.
    pub write_bytes_per_s: f64,
    /// Reads, in bytes per second.
    pub read_bytes_per_s: f64,
    /// Small requests that have only a share of these rates, by size; the smallest first.
    pub by_size: Vec<BySize>,
    /// What each write takes besides, in seconds.
    pub write_overhead_s: f64,
    /// What each read takes besides.
    pub read_overhead_s: f64,
    /// What a request takes besides if it does not follow the last one in the same file, in seconds.
    pub seek_s: f64,
    /// Requests that it works at at once, each at its rate.
    pub at_once: u32,
    /// Bytes that may be written in all its life, as a multiple of its capacity for each day of five years (DWPD).
    pub writes_per_day: Option<f64>,
}

/// What requests of up to so many bytes have of a device's rates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BySize {
    /// The largest of them.
    pub to_bytes: u64,
    /// Of the rate of writes, 0 to 1 or more.
    pub write_share: f64,
    /// Of that of reads.
    pub read_share: f64,
}

/// Keys of a device, and of one of its sizes.
const KEYS: [&str; 11] = [
    "model",
    "rate",
    "write_rate",
    "read_rate",
    "overhead",
    "write_overhead",
    "read_overhead",
    "seek",
    "writes_per_day",
    "at_once",
    "by_size",
];
const SIZE_KEYS: [&str; 4] = ["to", "rate", "write_rate", "read_rate"];

/// Most sizes of a device that have rates of their own.
const MOST_SIZES: usize = 64;

const GIB: f64 = 1_073_741_824.0;

const fn flash(write: f64, read: f64, write_us: f64, read_us: f64) -> [f64; 4] {
    [write * GIB, read * GIB, write_us / 1e6, read_us / 1e6]
}

/// The devices that a file may name: write and read rate, write and read overhead, and full writes a day.
///
/// Table II gives one pair of rates (write/read in GiB/s) and one of overheads in microseconds.
const KNOWN: [(&str, [f64; 4], Option<f64>); 8] = [
    ("fusionio-0.40-slc", flash(1.30, 1.40, 15.0, 47.0), None),
    ("fusionio-1.20-mlc", flash(1.20, 1.30, 15.0, 68.0), None),
    ("intel-0.25-mlc", flash(0.32, 0.50, 80.0, 65.0), None),
    ("virident-0.30-slc", flash(1.10, 1.40, 16.0, 47.0), None),
    ("virident-1.40-mlc", flash(0.60, 1.30, 19.0, 62.0), None),
    // Makers' sheets of PCIe 4 drives of 2023 for data centres, mixed use: about 7 and 4 GB/s, 10 us, 3 writes a day.
    ("nvme-2023", [4.0e9, 7.0e9, 15e-6, 80e-6], Some(3.0)),
    // NERSC on Cori's DataWarp nodes: 1.7 TB/s over 288 nodes with two 3.2 TB devices each.
    ("datawarp-2016", [2.95e9, 2.95e9, 20e-6, 90e-6], Some(3.0)),
    // Takes anything at once: what remains is the way there.
    ("null", [1e15, 1e15, 0.0, 0.0], None),
];

/// The names of known devices.
pub fn names() -> Vec<&'static str> {
    KNOWN.iter().map(|(name, ..)| *name).collect()
}

/// A known device.
pub fn known(name: &str) -> Option<Device> {
    let (name, [write, read, write_s, read_s], per_day) =
        KNOWN.iter().find(|(known, ..)| *known == name)?;
    Some(Device {
        name: (*name).into(),
        write_bytes_per_s: *write,
        read_bytes_per_s: *read,
        by_size: Vec::new(),
        write_overhead_s: *write_s,
        read_overhead_s: *read_s,
        seek_s: 0.0,
        at_once: 1,
        writes_per_day: *per_day,
    })
}

/// Reads a device: `model` names a known one, and the other keys replace what it has.
pub(crate) fn read(table: &Table) -> Result<Device, Fault> {
    table.knows(&KEYS)?;
    let model = table.choice("model", &names())?.and_then(|at| known(KNOWN[at].0));
    let both = rate(table, "rate")?;
    let write = rate(table, "write_rate")?.or(both);
    let read = rate(table, "read_rate")?.or(both);
    let overhead = time_s(table, "overhead")?;
    let write_overhead = time_s(table, "write_overhead")?.or(overhead);
    let read_overhead = time_s(table, "read_overhead")?.or(overhead);
    let (seek, per_day) = (time_s(table, "seek")?, table.number("writes_per_day", 0.0..=1000.0)?);
    let at_once = table.integer("at_once", 1..=1024)?;
    let sizes = table.tables("by_size")?;
    table.finish()?;
    let base = match model {
        Some(model) => model,
        None => {
            let write = table.required(
                "write_rate",
                write,
                &format!("model, or rate, or write_rate and read_rate: {RATE}"),
            )?;
            Device {
                name: "as described".into(),
                write_bytes_per_s: write,
                read_bytes_per_s: read.unwrap_or(write),
                by_size: Vec::new(),
                write_overhead_s: 0.0,
                read_overhead_s: 0.0,
                seek_s: 0.0,
                at_once: 1,
                writes_per_day: None,
            }
        }
    };
    let write_bytes_per_s = write.unwrap_or(base.write_bytes_per_s);
    let read_bytes_per_s = read.unwrap_or(base.read_bytes_per_s);
    Ok(Device {
        write_bytes_per_s,
        read_bytes_per_s,
        by_size: by_size(table, &sizes, (write_bytes_per_s, read_bytes_per_s))?,
        write_overhead_s: write_overhead.unwrap_or(base.write_overhead_s),
        read_overhead_s: read_overhead.unwrap_or(base.read_overhead_s),
        seek_s: seek.unwrap_or(base.seek_s),
        at_once: at_once.map_or(base.at_once, |at_once| at_once as u32),
        writes_per_day: per_day.or(base.writes_per_day),
        ..base
    })
}

/// Rates by size, as shares of the device's own: who changes those changes these too.
fn by_size(table: &Table, sizes: &[Table], device: (f64, f64)) -> Result<Vec<BySize>, Fault> {
    if sizes.len() > MOST_SIZES {
        let found = format!("it has {} sizes", sizes.len());
        return Err(table.fault("by_size", found, format!("at most {MOST_SIZES}")));
    }
    let mut all: Vec<BySize> = Vec::new();
    for size in sizes {
        size.knows(&SIZE_KEYS)?;
        let to = size.positive_size("to")?;
        let both = rate(size, "rate")?;
        let write = rate(size, "write_rate")?.or(both);
        let read = rate(size, "read_rate")?.or(both);
        size.finish()?;
        let to_bytes = size.required("to", to, "the largest request that has this rate")?;
        if all.last().is_some_and(|before| before.to_bytes >= to_bytes) {
            let found = format!("it is {to_bytes} bytes, and not above the one before it");
            return Err(size.fault("to", found, "sizes in ascending order"));
        }
        if write.or(read).is_none() {
            let expected = format!("rate, write_rate or read_rate: {RATE}");
            return Err(size.fault("rate", "it is missing", expected));
        }
        all.push(BySize {
            to_bytes,
            write_share: write.map_or(1.0, |write| write / device.0),
            read_share: read.map_or(1.0, |read| read / device.1),
        });
    }
    Ok(all)
}

impl Device {
    fn of_size(&self, bytes: u64) -> Option<&BySize> {
        self.by_size.iter().find(|size| bytes <= size.to_bytes)
    }

    /// The rate of writes of so many bytes, in bytes per second.
    pub fn write_rate(&self, bytes: u64) -> f64 {
        self.write_bytes_per_s * self.of_size(bytes).map_or(1.0, |size| size.write_share)
    }

    /// The rate of reads of so many bytes.
    pub fn read_rate(&self, bytes: u64) -> f64 {
        self.read_bytes_per_s * self.of_size(bytes).map_or(1.0, |size| size.read_share)
    }

    /// A write of so many bytes, in seconds: L/B + T.
    pub fn write_s(&self, bytes: u64) -> f64 {
        bytes as f64 / self.write_rate(bytes) + self.write_overhead_s
    }

    /// A read of so many bytes, in seconds.
    pub fn read_s(&self, bytes: u64) -> f64 {
        bytes as f64 / self.read_rate(bytes) + self.read_overhead_s
    }
}
