//! The bytes of a model file: pages that were written, zero elsewhere. What the model knows to
//! be zero may be a hole in the real file; what is not zero may not.

use std::collections::BTreeMap;

const PAGE: u64 = 4096;

/// Content of a file.
#[derive(Clone, Debug, Default)]
pub struct Data {
    size: u64,
    pages: BTreeMap<u64, Box<[u8; PAGE as usize]>>,
}

impl Data {
    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Writes, growing the file.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let position = at + done as u64;
            let inside = (position % PAGE) as usize;
            let count = (PAGE as usize - inside).min(bytes.len() - done);
            let page = self.pages.entry(position / PAGE).or_insert_with(|| Box::new([0; 4096]));
            page[inside..inside + count].copy_from_slice(&bytes[done..done + count]);
            done += count;
        }
        if !bytes.is_empty() {
            self.size = self.size.max(at + bytes.len() as u64);
        }
    }

    /// Reads up to `length` bytes, fewer at the end.
    pub fn read(&self, at: u64, length: usize) -> Vec<u8> {
        let end = self.size.min(at.saturating_add(length as u64));
        if at >= end {
            return Vec::new();
        }
        let mut bytes = vec![0u8; (end - at) as usize];
        for (&number, page) in self.pages.range(at / PAGE..=end / PAGE) {
            let start = number * PAGE;
            let (from, to) = (start.max(at), (start + PAGE).min(end));
            if from < to {
                bytes[(from - at) as usize..(to - at) as usize]
                    .copy_from_slice(&page[(from - start) as usize..(to - start) as usize]);
            }
        }
        bytes
    }

    /// Cuts or grows.
    pub fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, self.size - size);
        }
        self.size = size;
    }

    /// Grows to at least `size`.
    pub fn grow(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    /// Makes a range zero, without changing the size.
    pub fn zero(&mut self, at: u64, length: u64) {
        let end = at + length;
        let numbers: Vec<u64> =
            self.pages.range(at / PAGE..=end / PAGE).map(|(&number, _)| number).collect();
        for number in numbers {
            let start = number * PAGE;
            let (from, to) = (start.max(at), (start + PAGE).min(end));
            if from >= to {
                continue;
            }
            if to - from == PAGE {
                self.pages.remove(&number);
            } else if let Some(page) = self.pages.get_mut(&number) {
                page[(from - start) as usize..(to - start) as usize].fill(0);
            }
        }
    }

    /// True if the range holds only zero.
    pub fn is_zero(&self, at: u64, end: u64) -> bool {
        self.pages.range(at / PAGE..=end / PAGE).all(|(&number, page)| {
            let start = number * PAGE;
            let (from, to) = (start.max(at), (start + PAGE).min(end));
            from >= to
                || page[(from - start) as usize..(to - start) as usize].iter().all(|&b| b == 0)
        })
    }

    /// Ranges that hold what was written, with a page of zeros around them: what a check of a
    /// very sparse file reads.
    pub fn interesting(&self) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for &number in self.pages.keys() {
            let (from, to) = ((number * PAGE).saturating_sub(PAGE), (number + 2) * PAGE);
            match ranges.last_mut() {
                Some(last) if last.1 >= from => last.1 = to,
                _ => ranges.push((from, to)),
            }
        }
        ranges
    }
}
