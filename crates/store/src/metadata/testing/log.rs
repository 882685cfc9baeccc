//! A log file that remembers which writes a power cut could lose.

use crate::metadata::segment::LogFile;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const SECTOR: usize = 512;

/// One thing that was done to one of the two files.
#[derive(Clone)]
pub enum Op {
    /// Bytes were written.
    Write {
        /// Which of the two.
        file: usize,
        /// Where, in bytes.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// All that was written before is durable.
    Sync {
        /// Which of the two.
        file: usize,
    },
}

/// What was done to both, in order, since `start`.
#[derive(Clone, Default)]
pub struct History {
    /// Their contents at the start, durable.
    pub start: [Vec<u8>; 2],
    /// What was done.
    pub ops: Vec<Op>,
}

/// How unsynced writes fare in a power cut.
#[derive(Clone, Copy)]
pub enum Fate {
    /// All are there.
    AllKept,
    /// None is there.
    AllLost,
    /// Each sector of each write is there or not.
    Random,
}

fn write(image: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if image.len() < offset + bytes.len() {
        image.resize(offset + bytes.len(), 0);
    }
    image[offset..offset + bytes.len()].copy_from_slice(bytes);
}

impl History {
    /// Both files as a power cut after the first `n` operations leaves them; `coin` decides where that is random.
    pub fn after_cut(&self, n: usize, fate: Fate, coin: &mut dyn FnMut() -> bool) -> [Vec<u8>; 2] {
        let ops = &self.ops[..n];
        let mut images = self.start.clone();
        for (file, image) in images.iter_mut().enumerate() {
            let synced =
                ops.iter().rposition(|op| matches!(op, Op::Sync { file: f } if *f == file));
            for (at, op) in ops.iter().enumerate() {
                let Op::Write { file: f, offset, bytes } = op else { continue };
                if *f != file {
                    continue;
                }
                let kept_whole = synced.is_some_and(|s| at < s) || matches!(fate, Fate::AllKept);
                let mut pos = 0;
                while pos < bytes.len() {
                    let start = *offset as usize + pos;
                    let len = (SECTOR - start % SECTOR).min(bytes.len() - pos);
                    let kept = kept_whole || (matches!(fate, Fate::Random) && coin());
                    if kept {
                        write(image, start, &bytes[pos..pos + len]);
                    }
                    pos += len;
                }
            }
        }
        images
    }
}

/// One of the two files.
pub struct SimLog {
    /// Which of the two.
    pub file: usize,
    /// Its contents.
    pub image: Mutex<Vec<u8>>,
    /// What was done to both.
    pub history: Arc<Mutex<History>>,
    /// Syncs fail.
    pub fail_sync: Arc<AtomicBool>,
}

/// Both files with these contents, taken as durable, and their history.
pub fn logs(images: [Vec<u8>; 2]) -> ([Arc<SimLog>; 2], Arc<Mutex<History>>) {
    let history = Arc::new(Mutex::new(History { start: images.clone(), ops: Vec::new() }));
    let fail_sync = Arc::new(AtomicBool::new(false));
    let mut file = 0;
    let logs = images.map(|image| {
        file += 1;
        Arc::new(SimLog {
            file: file - 1,
            image: Mutex::new(image),
            history: history.clone(),
            fail_sync: fail_sync.clone(),
        })
    });
    (logs, history)
}

impl LogFile for SimLog {
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        write(&mut self.image.lock(), offset as usize, buf);
        let op = Op::Write { file: self.file, offset, bytes: buf.to_vec() };
        self.history.lock().ops.push(op);
        Ok(())
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let image = self.image.lock();
        let rest = image.get(offset as usize..).unwrap_or(&[]);
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }
    fn datasync(&self) -> io::Result<()> {
        if self.fail_sync.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.history.lock().ops.push(Op::Sync { file: self.file });
        Ok(())
    }
}
