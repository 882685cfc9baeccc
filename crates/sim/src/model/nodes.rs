//! Which compute nodes are free.
//!
//! Invariant: ranges are in order, and no two touch. Nodes that jobs share are never taken.
//! Caller: `jobs`.

use crate::machine::Machine;

/// Free nodes.
#[derive(Debug)]
pub(super) struct Nodes {
    /// Ranges [first, end) that are free, in order.
    free: Vec<(u32, u32)>,
    shared: bool,
}

impl Nodes {
    /// All of a machine.
    pub(super) fn new(machine: &Machine) -> Nodes {
        Nodes { free: vec![(0, machine.compute.nodes)], shared: machine.compute.shared }
    }

    /// The first range of so many nodes that begins at a multiple of `align`, where one does.
    pub(super) fn take(&mut self, count: u32, align: u32) -> Option<u32> {
        for align in [align, 1] {
            for at in 0..self.free.len() {
                let (first, end) = self.free[at];
                let begin = first.next_multiple_of(align);
                if begin < end && end - begin >= count {
                    if self.shared {
                        return Some(begin);
                    }
                    self.free.remove(at);
                    let rest = [(first, begin), (begin + count, end)];
                    for range in rest.into_iter().rev().filter(|(first, end)| first < end) {
                        self.free.insert(at, range);
                    }
                    return Some(begin);
                }
            }
        }
        None
    }

    /// Nodes are free again.
    pub(super) fn give(&mut self, first: u32, count: u32) {
        if self.shared {
            return;
        }
        let at = self.free.partition_point(|&(other, _)| other < first);
        self.free.insert(at, (first, first + count));
        let mut joined: Vec<(u32, u32)> = Vec::with_capacity(self.free.len());
        for &(first, end) in &self.free {
            match joined.last_mut() {
                Some(last) if last.1 == first => last.1 = end,
                _ => joined.push((first, end)),
            }
        }
        self.free = joined;
    }
}
