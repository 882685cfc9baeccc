//! How much a compressor leaves of the content of a run: what a PFS or a device that compresses may make of it.
//!
//! Callers: `bench`, `bench_ior_json`.

use flate2::Compression;
use flate2::write::DeflateEncoder;
use forebay_loadgen::ior::Ior;
use forebay_workload::content::{Filler, Place};
use std::io::Write;

/// Bytes of content that are compressed to see how much is left: far more than the 32 KiB that gzip remembers.
const SAMPLE_BYTES: u64 = 1 << 20;

/// The share of the first process's content that is left when gzip's method has compressed it.
pub(super) fn compressed_share(ior: &Ior) -> f64 {
    let transfer_bytes = ior.pattern.transfer_bytes.clamp(1, SAMPLE_BYTES);
    let mut filler = Filler::new(ior.content, ior.seed, transfer_bytes as usize);
    let mut compressed = DeflateEncoder::new(Counter(0), Compression::default());
    let mut offset = 0;
    while offset < SAMPLE_BYTES {
        // A counter takes all that it is given.
        let _ = compressed.write_all(filler.bytes(Place { rank: 0, offset }));
        offset += transfer_bytes;
    }
    let left = compressed.finish().map_or(offset, |counter| counter.0);
    left as f64 / offset as f64
}

/// Counts bytes.
struct Counter(u64);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
