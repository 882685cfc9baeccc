//! What reads trace files, as a function of bytes, for `fuzz/` and for the test below.
//!
//! Invariant: it neither panics nor takes long nor much memory, whatever the bytes are.

use crate::layout;
use crate::read::{Item, Process};

/// Reads the bytes as a trace file.
pub fn trace_file(data: &[u8]) {
    let Ok(process) = Process::new(data) else { return };
    let mut events = 0;
    let mut name_bytes = 0;
    let summary = process.each(|item| match item {
        Item::Event(event) => {
            events += 1;
            assert!(event.bytes() <= i64::MAX as u64);
        }
        Item::Name { name, .. } => name_bytes += name.len(),
        Item::Info { .. } => {}
    });
    assert_eq!(summary.map(|summary| summary.events).ok(), Some(events));
    assert!(name_bytes <= data.len() && events <= (data.len() / layout::SLOT_BYTES) as u64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::write::{Who, Writer};

    #[test]
    fn changed_files_break_nothing() {
        let who = Who { host: "n".into(), pid: 1, rank: -1, ranks: -1, exe: "a".into() };
        let mut writer = Writer::new(&who, 0);
        writer.name(1, 0, b"/a/long/enough/name/for/several/slots/of/the/file");
        for at in 0..40 {
            writer.call(Op::Read, 1, at << 44, 1 << (at % 60), 5, at, 1 << (at % 60));
        }
        let whole = writer.finish();
        trace_file(&whole);
        // A generator that needs no crate; the numbers are Knuth's.
        let mut state = 1_u64;
        for _ in 0..5_000 {
            let mut changed = whole.clone();
            for _ in 0..4 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // Where something stands: the header, and the begin of the first block.
                let places = [0..256, layout::BLOCK_BYTES..layout::BLOCK_BYTES + 4_096];
                let place = places[(state >> 20) as usize % 2].clone();
                let at = place.start + (state >> 33) as usize % place.len();
                changed[at] = (state >> 25) as u8;
            }
            changed.truncate(changed.len() - (state >> 40) as usize % layout::BLOCK_BYTES);
            trace_file(&changed);
        }
    }
}
