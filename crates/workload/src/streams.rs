//! What libc does for a stream of stdio: which reads and writes of the file come of the calls on the stream.
//!
//! A trace has the calls that the program made (100 bytes by fwrite); the file system saw what libc made of them (4,096 bytes at a
//! time). The rules are those of glibc (libio/fileops.c): a buffer of [`BUFFER_BYTES`]; whole blocks of a call that finds the buffer
//! full or empty go past it; where a position is set, a stream that reads reads its block, from which what is written next fills the buffer.
//!
//! Invariants: pure, but for the moves that are handed to `each`; what is written is written once, in order; a read begins where
//! the call does or before it, in its block. Bytes themselves are not kept: what stands at a place is known from the place.
//! Callers: the replay of `forebay-loadgen`, the simulator.

/// glibc's buffer on file systems with blocks of 4 KiB.
pub const BUFFER_BYTES: u64 = 4096;

/// What is done to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where, in bytes.
    pub offset: u64,
    /// Bytes; a read may get fewer, at the end of the file.
    pub bytes: u64,
    /// Fewest bytes that a read must get.
    pub least_bytes: u64,
}

/// A stream over a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stream {
    /// Where the last call ended.
    next: u64,
    /// Written and still in the buffer: from here, so many bytes.
    kept: (u64, u64),
    /// The buffer may take what is written.
    takes: bool,
    /// Bytes of the buffer before the place to which what is written next goes.
    inside: u64,
    /// Read ahead: from here to there.
    ahead: (u64, u64),
}

impl Stream {
    /// A call that writes; `unseen`: many small ones of which only the sum is known. `each` writes a piece.
    ///
    /// # Errors
    /// Those of `each`.
    pub fn write<E>(
        &mut self,
        (offset, bytes): (u64, u64),
        unseen: bool,
        mut each: impl FnMut(Piece) -> Result<(), E>,
    ) -> Result<(), E> {
        self.ahead = (0, 0);
        if offset != self.next {
            self.flush(&mut each)?;
            (self.takes, self.inside) = (false, 0);
        }
        self.next = offset.saturating_add(bytes);
        if self.kept.1 == 0 {
            self.kept.0 = offset;
        }
        let room = if self.takes { BUFFER_BYTES - self.inside - self.kept.1 } else { 0 };
        let taken = room.min(bytes);
        self.kept.1 += taken;
        let mut left = bytes - taken;
        if left == 0 {
            return Ok(());
        }
        self.flush(&mut each)?;
        self.takes = true;
        let mut at = offset + taken;
        let past = if unseen { 0 } else { left - left % BUFFER_BYTES };
        if past > 0 {
            each(whole(at, past))?;
            (at, left) = (at + past, left - past);
            self.inside = 0;
        }
        while left > BUFFER_BYTES - self.inside {
            let piece = BUFFER_BYTES - std::mem::take(&mut self.inside);
            each(whole(at, piece))?;
            (at, left) = (at + piece, left - piece);
        }
        self.kept = (at, left);
        Ok(())
    }

    /// Sets the position; `reads`: the stream can read. `write` writes a piece that was kept; `each` reads one and gives the bytes that
    /// it got, which may be none.
    ///
    /// # Errors
    /// Those of the two.
    pub fn seek<E>(
        &mut self,
        to: u64,
        reads: bool,
        mut write: impl FnMut(Piece) -> Result<(), E>,
        mut each: impl FnMut(Piece) -> Result<u64, E>,
    ) -> Result<(), E> {
        // A buffer that has nothing is filled up to the place only.
        let exact = self.ahead.0 == self.ahead.1 && self.kept.1 == 0;
        self.flush(&mut write)?;
        (self.takes, self.inside, self.next) = (false, 0, to);
        if !(self.ahead.0 <= to && to < self.ahead.1) {
            let delta = if reads { to % BUFFER_BYTES } else { 0 };
            self.ahead = (to, to);
            if delta > 0 {
                let (offset, least_bytes) = (to - delta, 0);
                let bytes = if exact { delta } else { BUFFER_BYTES };
                let got = each(Piece { offset, bytes, least_bytes })?.min(bytes);
                if got >= delta {
                    self.ahead = (offset, offset + got);
                }
            }
        }
        self.inside = to - self.ahead.0;
        Ok(())
    }

    /// A call that reads. `write` writes a piece that was kept; `each` reads one and gives the bytes that it got.
    ///
    /// # Errors
    /// Those of the two.
    pub fn read<E>(
        &mut self,
        (offset, bytes): (u64, u64),
        unseen: bool,
        mut write: impl FnMut(Piece) -> Result<(), E>,
        mut each: impl FnMut(Piece) -> Result<u64, E>,
    ) -> Result<(), E> {
        self.flush(&mut write)?;
        (self.takes, self.inside) = (false, 0);
        let end = offset.saturating_add(bytes);
        let is_ahead = |ahead: (u64, u64), at: u64| ahead.0 <= at && at < ahead.1;
        let mut at = offset;
        if offset != self.next && !is_ahead(self.ahead, at) {
            let block = at - at % BUFFER_BYTES;
            self.fill(block, end, &mut each)?;
        }
        while at < end {
            let left = end - at;
            if is_ahead(self.ahead, at) {
                at = self.ahead.1.min(end);
            } else if left < BUFFER_BYTES || unseen {
                self.fill(at, end, &mut each)?;
            } else {
                let past = left - left % BUFFER_BYTES;
                each(whole(at, past))?;
                at += past;
                self.ahead = (at, at);
            }
        }
        self.next = end;
        Ok(())
    }

    /// Fills the buffer from a place; `end` is where the call ends.
    fn fill<E>(
        &mut self,
        from: u64,
        end: u64,
        each: &mut impl FnMut(Piece) -> Result<u64, E>,
    ) -> Result<(), E> {
        let least_bytes = (end - from).min(BUFFER_BYTES);
        let got = each(Piece { offset: from, bytes: BUFFER_BYTES, least_bytes })?;
        // Who gives fewer than it must has said why.
        self.ahead = (from, from + got.max(least_bytes));
        Ok(())
    }

    /// Writes what is in the buffer.
    ///
    /// # Errors
    /// Those of `each`.
    pub fn flush<E>(&mut self, each: &mut impl FnMut(Piece) -> Result<(), E>) -> Result<(), E> {
        let (offset, bytes) = std::mem::take(&mut self.kept);
        if bytes == 0 {
            return Ok(());
        }
        self.inside = 0;
        each(whole(offset, bytes))
    }
}

fn whole(offset: u64, bytes: u64) -> Piece {
    Piece { offset, bytes, least_bytes: bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// A file and what was done to it.
    #[derive(Default)]
    struct Seen {
        stream: Stream,
        size_bytes: u64,
        writes: Vec<(u64, u64)>,
        reads: Vec<(u64, u64)>,
    }

    impl Seen {
        fn write(&mut self, offset: u64, bytes: u64, unseen: bool) {
            let writes = &mut self.writes;
            let Ok(()) = self.stream.write((offset, bytes), unseen, |piece| {
                writes.push((piece.offset, piece.bytes));
                Ok::<_, Infallible>(())
            });
        }

        fn read(&mut self, offset: u64, bytes: u64) {
            let (writes, reads, size) = (&mut self.writes, &mut self.reads, self.size_bytes);
            let Ok(()) = self.stream.read(
                (offset, bytes),
                false,
                |piece| {
                    writes.push((piece.offset, piece.bytes));
                    Ok::<_, Infallible>(())
                },
                |piece| {
                    let got = piece.bytes.min(size - piece.offset);
                    assert!(got >= piece.least_bytes, "{piece:?} of {size}");
                    reads.push((piece.offset, got));
                    Ok(got)
                },
            );
        }

        fn seek(&mut self, to: u64) {
            let (writes, reads, size) = (&mut self.writes, &mut self.reads, self.size_bytes);
            let Ok(()) = self.stream.seek(
                to,
                true,
                |piece| {
                    writes.push((piece.offset, piece.bytes));
                    Ok::<_, Infallible>(())
                },
                |piece| {
                    let got = piece.bytes.min(size.saturating_sub(piece.offset));
                    reads.push((piece.offset, got));
                    Ok(got)
                },
            );
        }

        fn flush(&mut self) {
            let writes = &mut self.writes;
            let Ok(()) = self.stream.flush(&mut |piece| {
                writes.push((piece.offset, piece.bytes));
                Ok::<_, Infallible>(())
            });
        }
    }

    #[test]
    fn small_writes_are_collected_and_large_ones_go_past_the_buffer() {
        let mut seen = Seen::default();
        (0..100).for_each(|at| seen.write(at * 100, 100, false));
        assert_eq!(seen.writes, [(0, 4096), (4096, 4096)]);
        seen.flush();
        assert_eq!(seen.writes[2..], [(8192, 1808)]);
        // The buffer is filled first, and what is left of whole blocks is kept.
        seen.write(10_000, 10_000, false);
        assert_eq!(seen.writes[3..], [(10_000, 4096), (14_096, 4096)]);
        seen.flush();
        assert_eq!(seen.writes[5..], [(18_192, 1808)]);
        // After a seek it is not.
        seen.write(50_000, 10_000, false);
        seen.write(70_000, 10, false);
        assert_eq!(seen.writes[6..], [(50_000, 8192), (58_192, 1808)]);
        seen.flush();
        assert_eq!(seen.writes[8..], [(70_000, 10)]);
    }

    /// As strace shows a program of glibc 2.36 that does these calls on a file of 100,000 bytes.
    #[test]
    fn a_stream_that_reads_and_writes_reads_the_block_of_a_position_that_is_set() {
        let mut seen = Seen { size_bytes: 100_000, ..Seen::default() };
        seen.seek(5000);
        seen.write(5000, 10, false);
        seen.seek(20_000);
        assert_eq!(seen.reads, [(4096, 904), (16_384, 4096)]);
        seen.write(20_000, 3000, false);
        seen.write(23_000, 3000, false);
        seen.seek(30_000);
        assert_eq!(seen.writes, [(5000, 10), (20_000, 480), (20_480, 4096), (24_576, 1424)]);
        seen.read(30_000, 10);
        seen.seek(30_010);
        assert_eq!(seen.reads[2..], [(28_672, 4096)], "it is in the buffer");
        seen.write(30_010, 9000, false);
        seen.seek(8192);
        seen.write(8192, 100, false);
        seen.flush();
        assert_eq!(seen.writes[4..], [(30_010, 8192), (38_202, 808), (8192, 100)]);
        assert_eq!(seen.reads.len(), 3, "nothing of a block's begin");

        let mut seen = Seen { size_bytes: 100_000, ..Seen::default() };
        seen.seek(50_001);
        seen.read(50_001, 10);
        seen.seek(60_001);
        seen.seek(70_001);
        seen.read(70_001, 10);
        seen.seek(99_999);
        seen.seek(150_000);
        let reads = [(49_152, 849), (50_001, 4096), (57_344, 4096), (69_632, 4096), (98_304, 1696)];
        assert_eq!((&seen.reads[..5], &seen.reads[5..]), (&reads[..], &[(147_456, 0)][..]));
    }

    #[test]
    fn what_is_written_is_written_once_whatever_the_calls() {
        for size in [1, 99, 4095, 4096, 4097, 12_288, 50_000] {
            for unseen in [false, true] {
                let mut seen = Seen::default();
                (0..20).for_each(|at| seen.write(at * size, size, unseen));
                seen.flush();
                let mut end = 0;
                for (offset, bytes) in &seen.writes {
                    assert_eq!(*offset, end, "{size}, {unseen}: {:?}", seen.writes);
                    assert!(!unseen || *bytes <= BUFFER_BYTES);
                    end += bytes;
                }
                assert_eq!(end, 20 * size);
            }
        }
    }

    #[test]
    fn reads_are_ahead_by_a_buffer_and_begin_at_its_block_after_a_seek() {
        let mut seen = Seen { size_bytes: 100_000, ..Seen::default() };
        (0..50).for_each(|at| seen.read(at * 100, 100));
        assert_eq!(seen.reads, [(0, 4096), (4096, 4096)]);
        // What the buffer has, then whole blocks past it, then a buffer again.
        seen.read(5000, 20_000);
        assert_eq!(seen.reads[2..], [(8192, 16_384), (24_576, 4096)]);
        seen.read(70_001, 9);
        assert_eq!(seen.reads[4..], [(69_632, 4096)]);
        seen.read(70_000, 10);
        assert_eq!(seen.reads.len(), 5, "it is in the buffer");
        seen.read(99_990, 10);
        assert_eq!(seen.reads[5..], [(98_304, 1696)]);
        seen.write(0, 10, false);
        seen.read(10, 10);
        assert_eq!((seen.writes, &seen.reads[6..]), (vec![(0, 10)], &[(10, 4096)][..]));
    }
}
