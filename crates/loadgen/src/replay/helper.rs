//! The thread that moves the asynchronous transfers of a process, one after the other, while the process goes on.
//!
//! Invariants: a process has at most one; its transfers keep their order. At most [`MOST_BEGUN`] wait: who begins more waits
//! for the oldest.
//! Caller: `player`.

use super::bytes::Bytes;
use crate::shared::now_ns;
use crate::target::Target;
use forebay_workload::content::Aligned;
use forebay_workload::language::{Transfer, Workload};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Most transfers that have begun and are not done.
pub(super) const MOST_BEGUN: usize = 64;

/// A transfer that is over.
pub(super) struct Done {
    pub transfer: Transfer,
    pub start_ns: u64,
    pub end_ns: u64,
    pub error: Option<io::Error>,
    pub differs: bool,
}

/// The thread.
pub(super) struct Helper {
    begin: Sender<(Transfer, Arc<Target>)>,
    done: Receiver<Done>,
    under_way: usize,
}

impl Helper {
    /// Starts it; it ends when this is dropped.
    pub(super) fn start(workload: &Workload, longest: usize) -> Helper {
        let (begin, waiting) = channel::<(Transfer, Arc<Target>)>();
        let (tell, done) = channel();
        let mut bytes = Bytes::new(workload, longest);
        let mut buffer = Aligned::new(longest);
        std::thread::spawn(move || {
            while let Ok((transfer, file)) = waiting.recv() {
                let one = move_one(&transfer, &file, &mut bytes, &mut buffer);
                drop(file);
                if tell.send(one).is_err() {
                    break;
                }
            }
        });
        Helper { begin, done, under_way: 0 }
    }

    /// Begins a transfer. Gives those that are over.
    pub(super) fn begin(&mut self, transfer: &Transfer, file: Arc<Target>) -> Vec<Done> {
        let mut over: Vec<Done> = self.done.try_iter().collect();
        self.under_way -= over.len();
        while self.under_way >= MOST_BEGUN {
            match self.done.recv() {
                Ok(one) => over.push(one),
                Err(_) => break,
            }
            self.under_way -= 1;
        }
        if self.begin.send((*transfer, file)).is_ok() {
            self.under_way += 1;
        }
        over
    }

    /// Waits for all. Gives those that nobody has got yet.
    pub(super) fn wait(&mut self) -> Vec<Done> {
        let mut over = Vec::new();
        while self.under_way > 0 {
            match self.done.recv() {
                Ok(one) => over.push(one),
                Err(_) => break,
            }
            self.under_way -= 1;
        }
        over
    }
}

fn move_one(transfer: &Transfer, file: &Target, bytes: &mut Bytes, buffer: &mut Aligned) -> Done {
    let (start_ns, moved) = if transfer.write {
        let bytes = bytes.of(transfer);
        let start = now_ns();
        let mut moved = file.write_all_at(bytes, transfer.offset);
        if moved.is_ok() && transfer.sync {
            moved = file.sync(false);
        }
        (start, moved)
    } else {
        let buffer = &mut buffer.bytes_mut()[..transfer.bytes as usize];
        let start = now_ns();
        (start, file.read_exact_at(buffer, transfer.offset))
    };
    let end_ns = now_ns();
    let differs = moved.is_ok()
        && transfer.verify
        && !transfer.write
        && bytes.of(transfer) != &buffer.bytes_mut()[..transfer.bytes as usize];
    Done { transfer: *transfer, start_ns, end_ns, error: moved.err(), differs }
}
