//! Calls on streams of stdio: what libc does to the file, from what the program's calls were.
//!
//! Invariant: the stream of a file is taken out of the process's table while it is at work, and is back in it after.

use super::{End, Player, moving};
use crate::log::Call;
use crate::replay::board::Class;
use crate::shared::now_ns;
use crate::target::Target;
use forebay_workload::language::{Calls, FileId, Interface, Transfer};
use forebay_workload::streams::Piece;
use std::io;

impl Player<'_> {
    /// A call on a stream of stdio: does to the file what libc would. It counts as the one call that it is; a sum of many is
    /// no number of calls, and counts as its bytes and its time, as in the report of the trace.
    pub(super) fn by_stream(
        &mut self,
        transfer: &Transfer,
        calls: Calls,
        opened: &Target,
    ) -> Result<(), End> {
        let (place, unseen) = ((transfer.offset, transfer.bytes), calls == Calls::Unseen);
        let mut stream = self.streams.remove(&transfer.file).unwrap_or_default();
        let start = now_ns();
        let moved = match transfer.write {
            true => stream.write(place, unseen, |piece| self.write_piece(transfer, opened, piece)),
            false => {
                // One is at work at a time.
                let player = std::cell::RefCell::new(&mut *self);
                stream.read(
                    place,
                    unseen,
                    |piece| player.borrow_mut().write_piece(transfer, opened, piece),
                    |piece| player.borrow_mut().read_piece(transfer, opened, piece),
                )
            }
        };
        let end = now_ns();
        self.streams.insert(transfer.file, stream);
        moved?;
        let class = if transfer.write { Class::Write } else { Class::Read };
        match calls {
            Calls::One => self.count(class, start, end),
            Calls::Unseen => self.record.busy_ns[class as usize] += end - start,
        }
        self.record.bytes[usize::from(transfer.write)] += transfer.bytes;
        self.board.shared.slot(self.rank).progress(transfer.bytes);
        let call = Call::Stream { write: transfer.write, calls };
        self.log(call, &transfer.file, place, start, end);
        Ok(())
    }

    fn write_piece(&mut self, of: &Transfer, opened: &Target, piece: Piece) -> Result<(), End> {
        // As long as the buffer for a transfer; a longer one is a call's, and no call is longer.
        let whole = Transfer { write: true, offset: piece.offset, bytes: piece.bytes, ..*of };
        let written = opened.write_all_at(self.bytes.of(&whole), piece.offset);
        written.map_err(|error| self.failed(&moving(&whole), &of.file, &error))
    }

    fn read_piece(&mut self, of: &Transfer, opened: &Target, piece: Piece) -> Result<u64, End> {
        let begun_ns = now_ns();
        loop {
            let buffer = &mut self.buffer.bytes_mut()[..piece.bytes as usize];
            let error = match opened.read_at_most(buffer, piece.offset) {
                Ok(got) if got as u64 >= piece.least_bytes => return Ok(got as u64),
                Ok(_) => io::ErrorKind::UnexpectedEof.into(),
                Err(error) => error,
            };
            if !self.waits_for_another(&error, begun_ns) {
                let least = Transfer { offset: piece.offset, bytes: piece.least_bytes, ..*of };
                return Err(self.failed(&moving(&least), &of.file, &error));
            }
        }
    }

    /// Writes what the stream over a file keeps.
    pub(super) fn flush(&mut self, file: FileId) -> Result<(), End> {
        let Some(mut stream) = self.streams.remove(&file) else { return Ok(()) };
        let flushed = match self.files.get(&file).cloned() {
            // It was closed, and what the stream kept was written then.
            None => Ok(()),
            Some(opened) => {
                let of = written_by_a_stream(file);
                stream.flush(&mut |piece| self.write_piece(&of, &opened, piece))
            }
        };
        self.streams.insert(file, stream);
        flushed
    }

    /// Sets the position of the stream over a file, for which libc may write what the stream keeps, and read. A file that is not open
    /// is not opened for that.
    pub(super) fn seek(&mut self, file: FileId, to: u64, reads: bool) -> Result<(), End> {
        let Some(opened) = self.files.get(&file).cloned() else { return Ok(()) };
        let mut stream = self.streams.remove(&file).unwrap_or_default();
        let of = written_by_a_stream(file);
        // One is at work at a time.
        let player = std::cell::RefCell::new(&mut *self);
        let sought = stream.seek(
            to,
            reads,
            |piece| player.borrow_mut().write_piece(&of, &opened, piece),
            |piece| player.borrow_mut().read_piece(&of, &opened, piece),
        );
        self.streams.insert(file, stream);
        sought
    }
}

/// A transfer, for what a stream writes later than the call that it was for.
fn written_by_a_stream(file: FileId) -> Transfer {
    Transfer {
        write: true,
        file,
        offset: 0,
        bytes: 0,
        part: 0,
        asynchronous: false,
        sync: false,
        verify: false,
        interface: Interface::Posix,
        stream: None,
    }
}
