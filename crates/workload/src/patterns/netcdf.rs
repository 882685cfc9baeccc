//! NetCDF-Bench: a four-dimensional variable (t, x, y, z), x cut over the nodes and y over the processes of a node; each
//! process moves its part of one time step after the other, by the series of blocks that lies in the file.
//!
//! Source: the decomposition and options of NetCDF-Bench; reads are those of the next rank's part, as there. A netCDF library
//! makes the file where there is one; otherwise its series of blocks is moved, without the header.
//! Caller: `forebay bench netcdf`.

use super::{Refused, file, phase, refuse, workload};
use crate::language::{
    Action, FileSpec, Interface, Layout, Move, Phase, SyncWhen, Whose, Workload,
};

/// The parameters; letters are NetCDF-Bench's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetCdf {
    /// `-n`: nodes.
    pub nodes: u32,
    /// `-p`: processes of a node.
    pub per_node: u32,
    /// `-d`: t, x, y, z.
    pub shape: [u64; 4],
    /// `-c`: chunks; None: contiguous. `Some([0; 4])`: as large as the part of a process in one time step.
    pub chunk: Option<[u64; 4]>,
    /// `-t coll`: all processes move together.
    pub collective: bool,
    /// The series of blocks is moved, also where a netCDF library could move the variable.
    pub blocks: bool,
    /// `-F`: a file for each process.
    pub file_per_process: bool,
    /// `-w`.
    pub write: bool,
    /// `-r`.
    pub read: bool,
    /// `--verify`.
    pub verify: bool,
    /// One fsync at the end of the write, in its time.
    pub sync: bool,
    /// Whether it is read from an empty cache.
    pub cold: bool,
    /// Seed of the content.
    pub seed: u32,
}

/// Bytes of an element: an int.
const ELEMENT_BYTES: u64 = 4;

impl NetCdf {
    /// As a workload: phases `write` and `read`.
    ///
    /// # Errors
    /// Parameters that do not fit together.
    pub fn workload(&self) -> Result<Workload, Refused> {
        let Some(processes) = self.nodes.checked_mul(self.per_node).filter(|n| *n > 0) else {
            return refuse("-n and -p: expected at least one process");
        };
        let [t, x, y, z] = self.shape;
        let (nodes, per_node) = (u64::from(self.nodes), u64::from(self.per_node));
        if x % nodes != 0 || y % per_node != 0 {
            return refuse(format!(
                "-d {t}:{x}:{y}:{z}: x must divide by the {nodes} nodes, y by the {per_node} processes of a node"
            ));
        }
        let part = [1, x / nodes, y / per_node, z];
        let chunk = self.chunk.map(|chunk| if chunk == [0; 4] { part } else { chunk });
        let (shape, divide) = match self.file_per_process {
            true => ([t, part[1], part[2], z], [1, 1, 1, 1]),
            false => (self.shape, [1, nodes, per_node, 1]),
        };
        let layout = Layout::Array {
            offset: 0,
            shape: shape.to_vec(),
            divide: divide.to_vec(),
            element_bytes: ELEMENT_BYTES,
            chunk: chunk.map(|chunk| chunk.to_vec()),
        };
        let bytes_of =
            |part: [u64; 4]| part.iter().try_fold(ELEMENT_BYTES, |bytes, n| bytes.checked_mul(*n));
        // A call moves one time step, also where a process has all of each, so that they follow each other in the file.
        let most = match chunk {
            None => bytes_of(part).unwrap_or(i64::MAX as u64),
            Some(_) => i64::MAX as u64,
        };
        let transfers = |write: bool| {
            let mut part = Move::new(write, 0, 1, most);
            part.layout = layout.clone();
            part.sync = if write && self.sync { SyncWhen::End } else { SyncWhen::Never };
            part.of = if write { Whose::Own } else { Whose::Shift(1) };
            part.verify = !write && self.verify;
            Action::Move(Box::new(part))
        };
        let path = if self.file_per_process { "variable.nc.{process}" } else { "variable.nc" };
        let interface = match (self.blocks, self.collective) {
            (true, true) => Interface::MpiCollective,
            (true, false) => Interface::MpiIndependent,
            (false, true) => Interface::NetCdfCollective,
            (false, false) => Interface::NetCdfIndependent,
        };
        let bytes = bytes_of(shape);
        let prepared = self.read && !self.write;
        let spec = FileSpec {
            interface,
            prepared,
            sizes: bytes.into_iter().collect(),
            ..file("variable", path)
        };
        let mut phases = Vec::new();
        if self.write {
            phases.push(phase("write", vec![transfers(true).into()]));
        }
        if self.read {
            let read = phase("read", vec![transfers(false).into()]);
            phases.push(Phase { cold: self.cold, ..read });
        }
        let mut workload = workload("netcdf", self.seed, processes, vec![spec], phases)?;
        workload.jobs[0].processes_per_node = self.per_node;
        Ok(workload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::Op;

    /// A17: four ranks of 20:64:64:16 ints: 5.24 MB, each rank 32 runs of 2 KiB in a time step.
    #[test]
    fn parts_are_those_of_the_decomposition() {
        let mut bench = NetCdf {
            nodes: 2,
            per_node: 2,
            shape: [20, 64, 64, 16],
            chunk: None,
            collective: false,
            blocks: false,
            file_per_process: false,
            write: true,
            read: true,
            verify: true,
            sync: false,
            cold: false,
            seed: 0,
        };
        let moved = |bench: &NetCdf, process| -> Vec<(bool, u64, u64)> {
            let workload = bench.workload().expect("good");
            let walk = workload.walk(0, process).expect("walked");
            walk.filter_map(|op| match op.expect("read") {
                Op::Transfer(transfer) => Some((transfer.write, transfer.offset, transfer.bytes)),
                _ => None,
            })
            .collect()
        };
        let of_three = moved(&bench, 3);
        assert_eq!(of_three.len(), 2 * 20 * 32);
        // Rank 3: x from 32, y from 32; it reads rank 0's part.
        assert_eq!(of_three[0], (true, (32 * 64 * 16 + 32 * 16) * 4, 2048));
        assert_eq!(of_three[640], (false, 0, 2048));
        let written: u64 = (0..4)
            .flat_map(|rank| moved(&bench, rank))
            .filter(|(write, ..)| *write)
            .map(|(_, _, bytes)| bytes)
            .sum();
        assert_eq!(written, 20 * 64 * 64 * 16 * 4);
        // Whole time steps: a call moves one of them.
        let whole = NetCdf { nodes: 1, per_node: 1, ..bench.clone() };
        let own_file = NetCdf { file_per_process: true, ..bench.clone() };
        for (whole, bytes) in [(whole, 262_144), (own_file, 65_536)] {
            let wanted: Vec<_> = (0..20).map(|step| (true, step * bytes, bytes)).collect();
            assert_eq!(moved(&whole, 0)[..20], wanted);
        }
        bench.chunk = Some([0; 4]);
        // A chunk is the part in a time step: 65,536 bytes, as NetCDF-Bench printed.
        assert_eq!(moved(&bench, 1)[0], (true, 65_536, 65_536));
        bench.shape[1] = 63;
        assert!(bench.workload().expect_err("refused").to_string().contains("63"));
    }
}
