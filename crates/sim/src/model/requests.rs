//! Requests that are under way.
//!
//! Invariant: a number stands for one request from its begin to its end; it is used again afterwards.
//! Callers: `traffic`; `jobs` makes those of processes.

use super::stations::{Kind, Place};
use forebay_sim_engine::TimeNs;

/// A request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) kind: Kind,
    pub(super) hop: u8,
    /// Transfers that it stands for.
    pub(super) operations: u32,
    pub(super) bytes: u64,
    pub(super) process: u32,
    pub(super) job: u32,
    pub(super) place: Place,
    /// When it began to wait for room.
    pub(super) waits_since_ns: TimeNs,
    /// Of which file it is: job, file and process, see [`Request::file_name`].
    pub(super) file: u64,
    /// Where in it.
    pub(super) offset: u64,
    /// Which checkpoint of its job it belongs to; `u32::MAX`: none.
    pub(super) checkpoint: u32,
    /// How often its buffer had been lost when it got room there.
    pub(super) buffer_life: u32,
}

impl Request {
    /// What is one file to a disk: the file of a job, and of a process unless it is shared.
    pub(super) fn file_name(job: u32, file: u32, process: u32) -> u64 {
        u64::from(job) << 48 ^ u64::from(file) << 32 | u64::from(process)
    }

    /// The file of the program.
    pub(super) fn file_number(&self) -> u32 {
        ((self.file ^ u64::from(self.job) << 48) >> 32) as u32
    }
}

/// All requests.
#[derive(Debug, Default)]
pub(super) struct Requests {
    all: Vec<Request>,
    free: Vec<u32>,
}

impl Requests {
    /// Begins one; its number.
    pub(super) fn add(&mut self, request: Request) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.all[index as usize] = request;
                index
            }
            None => {
                self.all.push(request);
                (self.all.len() - 1) as u32
            }
        }
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> &Request {
        &self.all[index as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> &mut Request {
        &mut self.all[index as usize]
    }

    /// Ends one.
    #[inline]
    pub(super) fn end(&mut self, index: u32) -> Request {
        self.free.push(index);
        self.all[index as usize]
    }
}
