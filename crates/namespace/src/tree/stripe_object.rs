//! One object of a striped file, at the server that has it, as bytes for the mover
//! (`mover::stripe`): straight to the store, with the store's account of space.
//!
//! Invariants: it is as long as what it has of the file, whatever the object's end: behind that is a
//! hole; an object that is only read is opened once, at the start, when the thread has the server's own
//! rights; one that is written is made with the leave of the inode's server, as for a mount.

use crate::Namespace;
use forebay_interfaces::tree::{Striped, sync_range};
use forebay_proto::{Errno, ObjectId, Result};
use rustix::fs::SeekFrom;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

pub(crate) struct StripeObject {
    namespace: Arc<Namespace>,
    object: ObjectId,
    size_bytes: u64,
    written: bool,
    file: OnceLock<File>,
}

impl StripeObject {
    /// The object, which may not be there yet.
    pub fn open(
        namespace: Arc<Namespace>,
        object: ObjectId,
        size_bytes: u64,
        written: bool,
    ) -> Result<StripeObject> {
        let file = OnceLock::new();
        let opened = StripeObject { namespace, object, size_bytes, written, file };
        opened.open_again()?;
        Ok(opened)
    }

    fn open_again(&self) -> Result<Option<&File>> {
        match self.namespace.objects().open_object(self.object) {
            Ok(file) => Ok(Some(self.file.get_or_init(|| file))),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// The object's file; `None` if it is not there.
    fn opened(&self) -> Result<Option<&File>> {
        match self.file.get() {
            Some(file) => Ok(Some(file)),
            None if self.written => self.open_again(),
            None => Ok(None),
        }
    }
}

fn file_bytes(file: &File) -> Result<u64> {
    let stat = rustix::fs::fstat(file).map_err(|e| Errno(e.raw_os_error()))?;
    Ok(stat.st_size as u64)
}

impl Striped for StripeObject {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let want = self.size_bytes.saturating_sub(offset).min(buf.len() as u64) as usize;
        if want == 0 {
            return Ok(0);
        }
        let mut got = 0;
        if let Some(file) = self.opened()? {
            // Into all of it: a read past the cache must not end in the middle of a block.
            got = file.read_at(buf, offset)?.min(want);
            if got < want && offset + (got as u64) < file_bytes(file)? {
                return if got > 0 { Ok(got) } else { Err(Errno::EIO) };
            }
        }
        buf[got..want].fill(0);
        Ok(want)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        self.namespace.stripes().write_object(self.object, offset, data, false)
    }

    fn set_len(&self, _size_bytes: u64) -> Result<()> {
        // The size of the file is set by the server of its inode, on all objects.
        Ok(())
    }

    fn size_bytes(&self) -> Result<u64> {
        let has = self.opened()?.map_or(Ok(0), file_bytes)?;
        Ok(has.max(self.size_bytes))
    }

    fn seek(&self, offset: u64, whence: u32) -> Result<u64> {
        let is_data = whence == libc::SEEK_DATA as u32;
        let from = if is_data { SeekFrom::Data(offset) } else { SeekFrom::Hole(offset) };
        match self.opened()?.map(|file| rustix::fs::seek(file, from)) {
            Some(Ok(at)) => Ok(at),
            Some(Err(rustix::io::Errno::NXIO)) | None if !is_data => Ok(offset),
            Some(Err(error)) => Err(Errno(error.raw_os_error())),
            None => Err(Errno::ENXIO),
        }
    }

    fn under(&self) -> Option<&File> {
        self.opened().ok().flatten()
    }

    fn write_back(&self, offset: u64, bytes: u64, flags: u32) -> Result<()> {
        match self.opened() {
            Ok(Some(file)) => sync_range(file, offset, bytes, flags),
            _ => Ok(()),
        }
    }

    fn sync(&self) -> Result<()> {
        self.namespace.stripes().sync_object(self.object, false)
    }
}
