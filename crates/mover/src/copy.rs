//! The data path: copies one open file to another, and compares what arrived.
//!
//! Data goes in pieces of [`PIECE_BYTES`] through a buffer that stays in the processor's cache,
//! where its CRC32C is taken on the way; write-back is started behind the writer and kept within
//! [`DIRTY_WINDOW_BYTES`], so that the fsync at the end is short and a cancel is answered soon.
//! A CRC is kept per block of [`BLOCK_BYTES`]; verification reads the target's blocks back after
//! they were written, through its page cache (for big files by a thread that follows the
//! writer) or past it. Holes of the source (`holes`) are holes of the target.
//!
//! What a source's size says is not believed: it is read to its end. Files of /proc and of some
//! FUSE file systems say 0, those of /sys more than they have.

use super::fault::{Fault, Outcome, Sort, Where};
use super::holes::{Holes, is_in_memory, next_data};
use super::memory::{DIRECT_ALIGN, Memory};
use super::meta::Meta;
use super::pfs::{PfsHook, errno};
use super::pieces::{BLOCK_BYTES, PIECE_BYTES, read_upto};
use super::stop::Pace;
use forebay_interfaces::data::Data;
use forebay_proto::Errno;
use forebay_sums::Crc32c;
use rustix::fs::{Advice, OFlags};

/// Files larger than this are read back by a second thread while they are written.
const FOLLOW_FROM_BYTES: u64 = 8 << 20;
/// Blocks that the second thread may be behind.
const FOLLOW_BLOCKS: usize = 4;
/// A source with less of its size allocated, in percent, is sparse. As the store judges (`pages`).
const DENSE_PERCENT: u64 = 75;
/// Bytes of a file that may wait for write-back before the writer waits.
const DIRTY_WINDOW_BYTES: u64 = 32 << 20;

/// A block of data of the source, with its CRC32C.
#[derive(Clone, Copy, Debug)]
struct Block {
    offset: u64,
    len: u64,
    crc: u32,
}

/// What was copied.
#[derive(Debug)]
pub(super) struct Copied {
    size_bytes: u64,
    blocks: Vec<Block>,
    /// True if all blocks were read back already (through the cache).
    followed: bool,
    /// The checksum of a file whose parts were copied, and read back, by several servers.
    of_parts: Option<u32>,
}

/// What a copy needs beside the two files.
pub(super) struct Env<'a> {
    pub pace: &'a Pace,
    pub hook: Option<&'a PfsHook>,
    pub name: &'a [u8],
    /// Told of bytes as they are written.
    pub count: &'a (dyn Fn(u64) + Sync),
    /// Sees what was read at an offset of the source, and may end the copy.
    pub seen: &'a (dyn Fn(u64, &[u8]) -> Outcome<()> + Sync),
    /// Asked before the target grows beyond the size that the source said, with its new size.
    pub grow: &'a (dyn Fn(u64) -> Outcome<()> + Sync),
    /// Read back through the cache while writing.
    pub follow: bool,
    /// Pieces of what is read through servers.
    pub align_bytes: u64,
}

/// Copies all of `source` (as `meta` describes it) to the empty file `target`. A source whose size
/// changes meanwhile is refused as soon as that shows; the caller looks for other changes.
pub(super) fn copy(
    env: &Env<'_>,
    source: &Data,
    meta: &Meta,
    target: &Data,
    memory: &mut Memory,
) -> Outcome<Copied> {
    let size = meta.size_bytes;
    let mut copied =
        Copied { size_bytes: size, blocks: Vec::new(), followed: false, of_parts: None };
    let resize = |size| target.set_len(size).map_err(Fault::target("size target"));
    let grows = gets_its_size_last(source, meta, target);
    if size != 0 && !grows {
        resize(size)?;
    }
    if let Some(file) = source.file().filter(|_| size > PIECE_BYTES) {
        // Only a hint: a file system may refuse it.
        let _ = rustix::fs::fadvise(file, 0, None, Advice::Sequential);
    }
    if !env.follow || size < FOLLOW_FROM_BYTES {
        let end = write_all(env, source, meta, target, memory, &mut |block| {
            copied.blocks.push(block);
            true
        })?;
        copied.size_bytes = end;
        return if end < size || grows { resize(end).map(|()| copied) } else { Ok(copied) };
    }
    let (send, receive) = crossbeam_channel::bounded::<Block>(FOLLOW_BLOCKS);
    let end = std::thread::scope(|scope| {
        let follower = scope.spawn(move || {
            let mut memory = Memory::new();
            let mut end = 0;
            for block in receive {
                check_hole(target, end, block.offset, &mut memory)?;
                check_block(target, &block, false, &mut memory)?;
                end = block.offset + block.len;
            }
            Ok(())
        });
        let blocks = &mut copied.blocks;
        let written = write_all(env, source, meta, target, memory, &mut |block| {
            blocks.push(block);
            send.send(block).is_ok()
        });
        drop(send);
        let followed = follower.join().unwrap_or_else(|_| {
            Err(Fault::of(Sort::Refused, Where::Target, "verify", "the verifier panicked"))
        });
        // What the follower found comes first: it makes the writer stop.
        followed.and(written)
    })?;
    copied.followed = true;
    copied.size_bytes = end;
    if end < size || grows {
        resize(end)?;
    }
    Ok(copied)
}

/// A file in memory gets a large page (2 MiB) for a byte that is below its end, and no more than is written for what makes it
/// longer. So what is mostly holes there is written from its start on, and gets its size last. Where the source may be
/// compressed its blocks tell nothing of holes.
fn gets_its_size_last(source: &Data, meta: &Meta, target: &Data) -> bool {
    let is_sparse = meta.allocated_bytes < meta.size_bytes / 100 * DENSE_PERCENT;
    is_sparse && is_in_memory(target) && Holes::of(source, meta) == Holes::Mapped
}

/// Reads, checksums and writes block by block; `done` takes each block and says whether to go on.
/// Returns where the source ends.
fn write_all(
    env: &Env<'_>,
    source: &Data,
    meta: &Meta,
    target: &Data,
    memory: &mut Memory,
    done: &mut dyn FnMut(Block) -> bool,
) -> Outcome<u64> {
    let size = meta.size_bytes;
    let holes = if size == 0 { Holes::None } else { Holes::of(source, meta) };
    let mut offset = 0;
    let mut waited = 0;
    loop {
        let (start, end) = match offset < size {
            true => holes.next(source, offset, size, env.pace, memory)?,
            // Beyond the size that it says: a block that is mostly found empty.
            false => (offset, offset + BLOCK_BYTES),
        };
        offset = start;
        while offset < end {
            let want = BLOCK_BYTES.min(end - offset);
            let (len, crc) = write_block(env, source, meta, target, offset..offset + want, memory)?;
            if len != 0 {
                let failed = Fault::target("write target");
                let begun = target.write_back(offset, len, libc::SYNC_FILE_RANGE_WRITE);
                begun.map_err(&failed)?;
                if offset > waited + DIRTY_WINDOW_BYTES {
                    let upto = offset - DIRTY_WINDOW_BYTES;
                    let wait = libc::SYNC_FILE_RANGE_WAIT_BEFORE
                        | libc::SYNC_FILE_RANGE_WRITE
                        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
                    target.write_back(waited, upto - waited, wait).map_err(&failed)?;
                    waited = upto;
                }
                if !done(Block { offset, len, crc }) {
                    return Ok(offset + len);
                }
            }
            offset += len;
            if len < want {
                return same_size(source, meta, offset).map(|()| offset);
            }
        }
    }
}

/// Fails if a source that does not end where its size says has got another size meanwhile.
fn same_size(source: &Data, meta: &Meta, end: u64) -> Outcome<()> {
    if end == meta.size_bytes {
        return Ok(());
    }
    let now = source.size_bytes().map_err(Fault::source("stat source"))?;
    match now.cmp(&meta.size_bytes) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Less => Err(Fault::changed("it became shorter")),
        std::cmp::Ordering::Greater => Err(Fault::changed("it became longer")),
    }
}

/// Copies a range, up to the end of the source if that comes first; returns how much it was, and
/// its checksum.
fn write_block(
    env: &Env<'_>,
    source: &Data,
    meta: &Meta,
    target: &Data,
    range: std::ops::Range<u64>,
    memory: &mut Memory,
) -> Outcome<(u64, u32)> {
    let mut digest = Crc32c::new();
    let most = match source.under() {
        Some(_) => PIECE_BYTES,
        // Read through servers, as files in logs are: fewer calls, and large aligned writes for the PFS.
        None => env.align_bytes,
    };
    let mut at = range.start;
    while at < range.end {
        let piece = env.pace.piece_bytes(most).min(range.end - at);
        env.pace.check()?;
        let buf = memory.get(piece as usize);
        if let Some(hook) = env.hook {
            hook("read", env.name).map_err(Fault::source("read source"))?;
        }
        let got = read_upto(source, buf, at)?;
        if got == 0 {
            break;
        }
        let buf = &buf[..got];
        env.pace.take(got as u64)?;
        digest.update(buf);
        (env.seen)(at, buf)?;
        let upto = at + got as u64;
        if upto > meta.size_bytes {
            same_size(source, meta, upto)?;
            (env.grow)(upto)?;
        }
        if let Some(hook) = env.hook {
            hook("write", env.name).map_err(Fault::target("write target"))?;
        }
        let written = target.write_all_at(buf, at);
        written.map_err(|e| Fault::target("write target")(Errno::from_io(&e)))?;
        (env.count)(got as u64);
        at = upto;
        if (got as u64) < piece {
            break;
        }
    }
    Ok((at - range.start, digest.value()))
}

impl Copied {
    /// Of a file whose parts are on stable storage and were read back where they were copied.
    pub fn of_parts(size_bytes: u64, crc32c: u32) -> Copied {
        Copied { size_bytes, blocks: Vec::new(), followed: true, of_parts: Some(crc32c) }
    }

    /// Bytes of the content, holes included.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// CRC32C of the whole content, holes included.
    pub fn crc32c(&self) -> u32 {
        if let Some(crc) = self.of_parts {
            return crc;
        }
        let mut crc = 0;
        let mut end = 0;
        for block in &self.blocks {
            crc = join(crc, zeros_crc(block.offset - end), block.offset - end);
            crc = join(crc, block.crc, block.len);
            end = block.offset + block.len;
        }
        join(crc, zeros_crc(self.size_bytes - end), self.size_bytes - end)
    }

    /// Compares the target with what was written to it. With `medium` it is read past the page
    /// cache where the file system can (O_DIRECT), else after asking the kernel to drop it; the
    /// caller has fsynced it.
    pub fn verify(
        &self,
        pace: &Pace,
        target: &Data,
        medium: bool,
        memory: &mut Memory,
    ) -> Outcome<()> {
        let size = target.size_bytes().map_err(Fault::target("stat target"))?;
        if size != self.size_bytes {
            let why = format!("the target has {size} bytes instead of {}", self.size_bytes);
            return Err(Fault::of(Sort::Mismatch, Where::Target, "verify", why));
        }
        if self.of_parts.is_some() {
            return Ok(());
        }
        if self.followed && !medium {
            let end = self.blocks.last().map_or(0, |last| last.offset + last.len);
            return check_hole(target, end, size, memory);
        }
        let direct = medium && Direct::set(target);
        let result = self.read_back(pace, target, medium && direct, memory);
        if direct {
            Direct::clear(target)?;
        }
        result
    }

    fn read_back(
        &self,
        pace: &Pace,
        target: &Data,
        direct: bool,
        memory: &mut Memory,
    ) -> Outcome<()> {
        let mut end = 0;
        for block in &self.blocks {
            pace.check()?;
            check_hole(target, end, block.offset, memory)?;
            check_block(target, block, direct, memory)?;
            end = block.offset + block.len;
        }
        check_hole(target, end, self.size_bytes, memory)
    }
}

/// O_DIRECT on an open file description that nobody else uses yet.
struct Direct;

impl Direct {
    /// Drops the file's pages and sets O_DIRECT; false where the file system has no such thing.
    fn set(target: &Data) -> bool {
        let Some(file) = target.under() else { return false };
        // Dirty pages are written already; a page that stays is bypassed by O_DIRECT.
        let _ = rustix::fs::fadvise(file, 0, None, Advice::DontNeed);
        let Ok(flags) = rustix::fs::fcntl_getfl(file) else { return false };
        rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT).is_ok()
    }

    fn is_set(target: &Data) -> bool {
        let flags = target.under().map(rustix::fs::fcntl_getfl);
        flags.is_some_and(|flags| flags.is_ok_and(|flags| flags.contains(OFlags::DIRECT)))
    }

    fn clear(target: &Data) -> Outcome<()> {
        let Some(file) = target.under() else { return Ok(()) };
        let fault = |e| Fault::target("verify")(errno(e));
        let flags = rustix::fs::fcntl_getfl(file).map_err(fault)?;
        rustix::fs::fcntl_setfl(file, flags - OFlags::DIRECT).map_err(fault)
    }
}

/// Reads one block back and compares its CRC: past the cache at once, else in pieces that stay in
/// the processor's cache.
fn check_block(target: &Data, block: &Block, direct: bool, memory: &mut Memory) -> Outcome<()> {
    let step = if direct { BLOCK_BYTES } else { PIECE_BYTES };
    let mut digest = Crc32c::new();
    let mut done = 0;
    while done < block.len {
        let len = step.min(block.len - done);
        digest.update(read_piece(target, block.offset + done, len, direct, memory)?);
        done += len;
    }
    if digest.value() != block.crc {
        return Err(mismatch(block.offset, "its checksum is not that of the source"));
    }
    Ok(())
}

/// Reads a range back, all of it.
fn read_piece<'m>(
    target: &Data,
    offset: u64,
    len: u64,
    direct: bool,
    memory: &'m mut Memory,
) -> Outcome<&'m [u8]> {
    let align = if direct { DIRECT_ALIGN } else { 1 };
    let start = offset - offset % align;
    let lead = (offset - start) as usize;
    let want = lead + len as usize;
    let bytes = memory.get(want.next_multiple_of(align as usize));
    let mut got = 0;
    while got < want {
        match target.read_at(&mut bytes[got..], start + got as u64) {
            Ok(0) => return Err(mismatch(offset, "it ends early")),
            Ok(count) => got += count,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            // This file system cannot read so: the cache was dropped, read through it.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) && Direct::is_set(target) => {
                Direct::clear(target)?;
            }
            Err(e) => return Err(Fault::target("verify")(Errno::from_io(&e))),
        }
    }
    Ok(&bytes[lead..want])
}

/// Checks that a range which is a hole in the source has no data but zeros in the target.
fn check_hole(target: &Data, start: u64, end: u64, memory: &mut Memory) -> Outcome<()> {
    let mut at = start;
    while at < end {
        let (data, hole) = match next_data(target, at, end) {
            Ok(range) => range,
            Err(fault) => return Err(Fault { side: Where::Target, what: "verify", ..fault }),
        };
        at = data;
        while at < hole {
            // Aligned, for a file that is read by O_DIRECT.
            let start = at - at % DIRECT_ALIGN;
            let bytes = memory.get(DIRECT_ALIGN as usize);
            let got = target.read_at(bytes, start);
            let got = got.map_err(|e| Fault::target("verify")(Errno::from_io(&e)))? as u64;
            let upto = hole.min(start + got);
            if upto <= at {
                return Err(mismatch(at, "it ends early"));
            }
            if !forebay_sums::is_zeros(&bytes[(at - start) as usize..(upto - start) as usize]) {
                return Err(mismatch(at, "a hole of the source has data"));
            }
            at = upto;
        }
    }
    Ok(())
}

fn mismatch(offset: u64, how: &str) -> Fault {
    let why = format!("the target is not what was written, at byte {offset}: {how}");
    Fault { errno: Errno::EIO, ..Fault::of(Sort::Mismatch, Where::Target, "verify", why) }
}

/// CRC of two neighbouring ranges.
pub(super) fn join(first: u32, second: u32, second_len: u64) -> u32 {
    if second_len == 0 {
        return first;
    }
    // The combination is linear in `first`. Small files, of one block, take this way: combining
    // cost them a twelfth of all CPU time of a stage in.
    if first == 0 {
        return second;
    }
    forebay_sums::joined(first, second, second_len)
}

/// CRC32C of `len` zero bytes, by doubling.
pub(super) fn zeros_crc(len: u64) -> u32 {
    let mut power = forebay_sums::crc32c(&[0]);
    let mut power_len = 1;
    let (mut crc, mut rest) = (0, len);
    while rest != 0 {
        if rest & 1 == 1 {
            crc = join(crc, power, power_len);
        }
        power = join(power, power, power_len);
        power_len <<= 1;
        rest >>= 1;
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn meta_of(data: &Data) -> Meta {
        Meta::of_stat(&rustix::fs::fstat(data.kernel().unwrap()).unwrap()).unwrap()
    }

    fn env<'a>(pace: &'a Pace) -> Env<'a> {
        Env {
            pace,
            hook: None,
            name: b"x",
            count: &|_| {},
            seen: &|_, _| Ok(()),
            grow: &|_| Ok(()),
            follow: true,
            align_bytes: 1 << 20,
        }
    }

    #[test]
    fn holes_stay_and_the_checksum_is_that_of_the_content() {
        let source = Data::from(tempfile::tempfile().unwrap());
        source.write_all_at(&[7; 5000], 0).unwrap();
        source.write_all_at(&[9; 70_000], 33 << 20).unwrap();
        source.set_len((40 << 20) + 17).unwrap();
        let target = Data::from(tempfile::tempfile().unwrap());
        let pace = Pace::new(0);
        let mut memory = Memory::new();
        let copied = copy(&env(&pace), &source, &meta_of(&source), &target, &mut memory).unwrap();
        for medium in [false, true] {
            copied.verify(&pace, &target, medium, &mut memory).unwrap();
        }
        assert!(meta_of(&target).allocated_bytes < 1 << 20);
        let mut whole = vec![0; (40 << 20) + 17];
        target.kernel().unwrap().read_exact_at(&mut whole, 0).unwrap();
        assert_eq!(copied.crc32c(), forebay_sums::crc32c(&whole));
    }

    #[test]
    fn a_file_of_holes_in_memory_gets_its_size_last_and_any_other_one_first() {
        let in_memory = || Data::from(tempfile::tempfile_in("/dev/shm").unwrap());
        let pace = Pace::new(0);
        let mut memory = Memory::new();
        for (offset, size, is_sparse) in [(3 << 20, 10 << 20, true), (0, 5000, false)] {
            let (source, target) = (in_memory(), in_memory());
            source.write_all_at(&[7; 5000], offset).unwrap();
            source.set_len(size).unwrap();
            let size_at_first = std::sync::Mutex::new(None);
            let seen = |_: u64, _: &[u8]| -> Outcome<()> {
                let size = target.size_bytes().map_err(Fault::target("stat target"))?;
                size_at_first.lock().unwrap().get_or_insert(size);
                Ok(())
            };
            let env = Env { seen: &seen, ..env(&pace) };
            let copied = copy(&env, &source, &meta_of(&source), &target, &mut memory).unwrap();
            copied.verify(&pace, &target, false, &mut memory).unwrap();
            let expected = if is_sparse { 0 } else { size };
            assert_eq!(*size_at_first.lock().unwrap(), Some(expected));
            assert_eq!(target.size_bytes().unwrap(), size);
        }
    }

    /// A file on a device that fails once, as write-back is waited for: its fsync says nothing of it any more.
    struct FailsOnce(std::fs::File);

    impl forebay_interfaces::data::Striped for FailsOnce {
        fn read_at(&self, buf: &mut [u8], offset: u64) -> forebay_proto::Result<usize> {
            Ok(self.0.read_at(buf, offset)?)
        }
        fn write_at(&self, data: &[u8], offset: u64) -> forebay_proto::Result<usize> {
            Ok(self.0.write_at(data, offset)?)
        }
        fn set_len(&self, size_bytes: u64) -> forebay_proto::Result<()> {
            Ok(self.0.set_len(size_bytes)?)
        }
        fn size_bytes(&self) -> forebay_proto::Result<u64> {
            Ok(self.0.metadata()?.len())
        }
        fn seek(&self, _offset: u64, _whence: u32) -> forebay_proto::Result<u64> {
            Err(Errno::EOPNOTSUPP)
        }
        fn write_back(&self, _: u64, _: u64, flags: u32) -> forebay_proto::Result<()> {
            match flags & libc::SYNC_FILE_RANGE_WAIT_AFTER {
                0 => Ok(()),
                _ => Err(Errno::EIO),
            }
        }
        fn sync(&self) -> forebay_proto::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_error_of_write_back_that_was_waited_for_is_an_error_of_the_copy() {
        let source = Data::from(tempfile::tempfile().unwrap());
        for offset in [0, DIRTY_WINDOW_BYTES, DIRTY_WINDOW_BYTES + BLOCK_BYTES] {
            source.write_all_at(&vec![3; BLOCK_BYTES as usize], offset).unwrap();
        }
        let pace = Pace::new(0);
        for follow in [false, true] {
            let target =
                Data::Striped(std::sync::Arc::new(FailsOnce(tempfile::tempfile().unwrap())));
            let env = Env { follow, ..env(&pace) };
            let copied = copy(&env, &source, &meta_of(&source), &target, &mut Memory::new());
            let fault = copied.unwrap_err();
            assert_eq!((fault.errno, fault.side == Where::Target), (Errno::EIO, true));
        }
    }

    #[test]
    fn one_wrong_bit_is_found_in_data_and_in_holes() {
        let source = Data::from(tempfile::tempfile().unwrap());
        source.write_all_at(&[5; 300_000], 1 << 20).unwrap();
        let target = Data::from(tempfile::tempfile().unwrap());
        let pace = Pace::new(0);
        let mut memory = Memory::new();
        let copied = copy(&env(&pace), &source, &meta_of(&source), &target, &mut memory).unwrap();
        for offset in [(1 << 20) + 77, 5] {
            for medium in [false, true] {
                target.write_all_at(&[4], offset).unwrap();
                target.kernel().unwrap().sync_all().unwrap();
                let fault = copied.verify(&pace, &target, medium, &mut memory).unwrap_err();
                assert_eq!(fault.sort, Sort::Mismatch);
                target.write_all_at(&[if offset > 1 << 20 { 5 } else { 0 }], offset).unwrap();
                copied.verify(&pace, &target, medium, &mut memory).unwrap();
            }
        }
    }
}
