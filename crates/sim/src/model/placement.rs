//! Where files lie: which buffer has a byte of a file, and which file it is.
//!
//! With `buffer.rules = "forebay"` names and stripes go where `forebay_policy`, the code that the server asks, puts them; else
//! stripes go round over the buffers of the job.
//! Invariant: it reads the machine and what it is told of a job, and changes nothing.
//! Caller: `jobs`.

use super::buffers::Buffers;
use crate::machine::{Attach, Machine};
use crate::program::Program;
use forebay_policy::placement::{choose_servers, choose_shard};
use forebay_proto::attr::FileKind;
use forebay_proto::layout::{Layout, Placement::Spread};
use forebay_proto::{Ino, ServerId, ShardId};
use std::ops::Range;

/// Where the nodes and servers of a job are.
#[derive(Clone, Copy)]
pub(super) struct JobPlace<'j> {
    /// Its first node, and how many it has.
    pub(super) first_node: u32,
    pub(super) nodes: u32,
    /// By Forebay's rules, the servers of its buffer.
    pub(super) servers: &'j [u32],
}

/// Decides it for a machine.
#[derive(Clone, Copy)]
pub(super) struct Placement<'a> {
    machine: &'a Machine,
    /// Files of the program, at least one.
    files: u32,
}

impl<'a> Placement<'a> {
    pub(super) fn new(machine: &'a Machine, program: &Program) -> Placement<'a> {
        Placement { machine, files: program.files.len().max(1) as u32 }
    }

    /// The buffer that is nearest to a process.
    pub(super) fn nearest_buffer(&self, node: u32, origin: u32, rank: u32) -> u32 {
        let Some(buffer) = &self.machine.buffer else { return 0 };
        match buffer.attach {
            Attach::Compute => node,
            Attach::Io => origin,
            Attach::Fabric | Attach::Storage => rank % buffer.count,
        }
    }

    /// Of a striped buffer, the one that has this stripe: of the job's own where they are its nodes', else of all.
    pub(super) fn striped_over(
        &self,
        job: JobPlace<'_>,
        count: u32,
        attach: Attach,
        stripe: u64,
    ) -> u32 {
        let own = self.own_range(job, attach).unwrap_or(0..count);
        own.start + (stripe % own.len() as u64) as u32
    }

    /// The buffers of a job's own nodes or I/O nodes; `None`: buffers stand elsewhere.
    fn own_range(&self, job: JobPlace<'_>, attach: Attach) -> Option<Range<u32>> {
        let per_io = self.machine.nodes_per_io();
        let (first, own) = match attach {
            Attach::Compute => (job.first_node, job.nodes),
            Attach::Io => (job.first_node / per_io, job.nodes.div_ceil(per_io)),
            Attach::Fabric | Attach::Storage => return None,
        };
        Some(first..first + own)
    }

    /// The number of the file that a repetition writes or reads. Forebay's rules know one file from the next; without
    /// them a file is what lies where it lies, and numbers of 16 bits do for both.
    pub(super) fn file_of(&self, file: u32, new_files: bool, repetition: u32) -> u32 {
        match new_files && self.machine.has_rules() {
            true => (file + repetition * self.files) & 0xffff,
            false => file,
        }
    }

    /// By Forebay's rules, which of its job's buffers has this byte of a file: names take turns over the servers, stripes
    /// go round from there. Files of one number are of one directory.
    pub(super) fn placed(&self, job: JobPlace<'_>, key: u64, offset: u64) -> u32 {
        let Some(settings) = &self.machine.buffer else { return 0 };
        let (range, servers) = (self.own_range(job, settings.attach), job.servers);
        let own = range.as_ref().map_or(servers.len(), ExactSizeIterator::len);
        let count = own.clamp(1, usize::from(u16::MAX)) as u16;
        let dir = Ino::new(ShardId(0), (key >> 32) + 2);
        let name = match key as u32 {
            u32::MAX => "shared".to_string(),
            rank => format!("rank.{rank}"),
        };
        let layout = Layout {
            stripe_size_bytes: self.machine.storage.stripe_bytes.min(u64::from(u32::MAX)) as u32,
            stripe_count: if settings.striped { 0 } else { 1 },
            placement: Spread,
            ..Layout::WHOLE_LOCAL
        };
        let first = choose_shard(&layout, (dir, name.as_bytes()), FileKind::File, None, count);
        let layout = Layout { first, stripe_count: layout.count_among(count), ..layout };
        let (stripe, _) = layout.locate(offset);
        let number = usize::from(layout.shard_of(stripe, count).0);
        let placed = match range {
            Some(mut range) => range.nth(number),
            None => servers.get(number).copied(),
        };
        placed.unwrap_or(0)
    }

    /// By Forebay's rules, the servers that a new job's buffer gets: those with the most room. None where they are not chosen.
    pub(super) fn chosen_servers(&self, buffers: &Buffers) -> Vec<u32> {
        let Some(settings) = self.machine.buffer.as_ref().filter(|b| b.attach == Attach::Fabric)
        else {
            return Vec::new();
        };
        let free = |at: u32| {
            let (used, room) = buffers.used(at as usize);
            (room.saturating_sub(used), ServerId(at.into()))
        };
        let wanted = settings.servers.min(settings.count) as usize;
        let chosen = choose_servers((0..settings.count).map(free).collect(), wanted);
        chosen.unwrap_or_default().into_iter().map(|(_, server)| server.0 as u32).collect()
    }

    /// By Forebay's rules, the buffer in which a file begins; `nearest` is its process's own.
    pub(super) fn first_buffer(&self, job: JobPlace<'_>, key: u64, nearest: u32) -> u32 {
        match &self.machine.buffer {
            Some(b) if b.striped || b.attach == Attach::Fabric => self.placed(job, key, 0),
            _ => nearest,
        }
    }

    /// By Forebay's rules, the buffers that may have parts of a file.
    pub(super) fn buffers_of(&self, job: JobPlace<'_>, key: u64, nearest: u32) -> Vec<u32> {
        let Some(settings) = self.machine.buffer.as_ref().filter(|buffer| buffer.striped) else {
            return vec![self.first_buffer(job, key, nearest)];
        };
        match self.own_range(job, settings.attach) {
            Some(range) => range.collect(),
            None => job.servers.to_vec(),
        }
    }
}
