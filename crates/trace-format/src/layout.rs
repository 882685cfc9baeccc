//! Where what stands in a trace file. All numbers are little-endian.
//!
//! A file is blocks of [`BLOCK_BYTES`]; block 0 is the header. Every other block belongs to one thread at
//! a time and is slots of [`SLOT_BYTES`]. Slot 0 of a block is its head. The first byte of a slot says what
//! it is; a record of several slots has [`CONTINUED`] there in all but its first. Slots are
//! written first and their first word last, so a slot with a 0 there was never finished and is skipped.

/// First bytes of a trace file.
pub const MAGIC: [u8; 8] = *b"FBTRACE\n";
/// Version of the layout. A reader refuses another one by name.
pub const VERSION: u32 = 1;
/// Bytes of a block, and of the header.
pub const BLOCK_BYTES: usize = 32 << 10;
/// Bytes of the header that are used; the rest of block 0 is a hole.
pub const HEADER_USED_BYTES: usize = 8 << 10;
/// Bytes of a slot.
pub const SLOT_BYTES: usize = 32;
/// Slots of a block.
pub const BLOCK_SLOTS: u64 = (BLOCK_BYTES / SLOT_BYTES) as u64;
/// End of the name of a trace file.
pub const EXTENSION: &str = "fbt";

/// Byte offsets in the header.
pub mod header {
    /// [`super::MAGIC`], written last.
    pub const MAGIC: usize = 0;
    /// u32
    pub const VERSION: usize = 8;
    /// u32, [`super::BLOCK_BYTES`]
    pub const BLOCK_BYTES: usize = 12;
    /// u32, [`super::SLOT_BYTES`]
    pub const SLOT_BYTES: usize = 16;
    /// u32, 1: ticks are those of a counter of the processor; 0: they are nanoseconds
    pub const COUNTER: usize = 20;
    /// u32
    pub const PID: usize = 24;
    /// u32
    pub const PPID: usize = 28;
    /// u32
    pub const UID: usize = 32;
    /// i32, -1 if no launcher gave one
    pub const RANK: usize = 36;
    /// i32, number of ranks, -1 if unknown
    pub const RANKS: usize = 40;
    /// u32, 1: made by fork, without an exec since
    pub const FORKED: usize = 44;
    /// u64, ticks a second as somebody measured them before; 0 if nobody did
    pub const HINT_HZ: usize = 48;
    /// u64 ticks, u64 CLOCK_BOOTTIME ns, u64 CLOCK_REALTIME ns, at the begin
    pub const ANCHOR: usize = 56;
    /// The same at some later moment, and u64 after it: odd while being written
    pub const ANCHOR_LATER: usize = 80;
    /// u64
    pub const ANCHOR_SEQUENCE: usize = 104;
    /// u32: see [`super::ended`]
    pub const ENDED: usize = 112;
    /// u32: why records were lost, see [`super::lost`]
    pub const LOST_WHY: usize = 116;
    /// u64: blocks that were given out, the header's included
    pub const BLOCKS: usize = 120;
    /// u64: calls that left no record
    pub const LOST: usize = 128;
    /// u64: most bytes that the file may have
    pub const LIMIT_BYTES: usize = 136;
    /// u32, u32, u32: bytes of the texts that follow
    pub const TEXT_BYTES: usize = 144;
    /// u32: see [`super::role`]
    pub const ROLE: usize = 156;
    /// Host name, at most [`HOST_MAX`] bytes
    pub const HOST: usize = 256;
    /// Most bytes of the host name.
    pub const HOST_MAX: usize = 256;
    /// Executable, at most [`EXE_MAX`] bytes
    pub const EXE: usize = 512;
    /// Most bytes of the executable's path.
    pub const EXE_MAX: usize = 1536;
    /// Arguments, each with a 0 after it, at most [`ARGV_MAX`] bytes
    pub const ARGV: usize = 2048;
    /// Most bytes of the arguments.
    pub const ARGV_MAX: usize = 6144;
}

/// Whose doings a file has.
pub mod role {
    /// A process of the traced program.
    pub const PROGRAM: u32 = 0;
    /// A buffer: its records are of [`crate::Class::Buffer`].
    pub const BUFFER: u32 = 1;
}

/// Why a call waited for a buffer: the result of a record of a stall.
pub mod stall {
    /// For room.
    pub const ROOM: i64 = 1;
    /// For another's fill of the same blocks.
    pub const FILL: i64 = 2;
    /// For a drain of the file.
    pub const DRAIN: i64 = 3;
    /// For a server that did not answer.
    pub const SERVER: i64 = 4;
}

/// How a process ended, as far as its trace knows.
pub mod ended {
    /// Still running, or killed.
    pub const NOT: u32 = 0;
    /// It ended by itself.
    pub const EXIT: u32 = 1;
    /// It went on as another program, which has a file of its own.
    pub const EXEC: u32 = 2;
}

/// Why calls left no record: bits.
pub mod lost {
    /// The file reached its limit.
    pub const LIMIT: u32 = 1;
    /// The file system had no room, or refused more.
    pub const SPACE: u32 = 2;
    /// Before the file could be made.
    pub const NO_FILE: u32 = 4;
}

/// What a process without a file tells the program that traces it, as a datagram: u32 what at 0, i32 errno at 4, u64 calls at 8.
pub mod told {
    /// Bytes of the message.
    pub const BYTES: usize = 16;
    /// Its file could not be made, for the reason in errno.
    pub const NOT_MADE: u32 = 1;
    /// Its file was made after all; what was not recorded before stands there.
    pub const MADE: u32 = 2;
    /// It ends, or becomes another program; so many calls were not recorded since the message before.
    pub const ENDED: u32 = 3;
}

/// First byte of a slot that goes on with the record before it.
pub const CONTINUED: u8 = 255;
/// First byte of slot 0 of a block: u32 thread at 4, u64 block number at 8.
pub const BLOCK_HEAD: u8 = 254;
/// First byte: the records that follow in this block are of another thread: u32 at 4.
pub const THREAD: u8 = 253;
/// First byte of a name: u16 bytes at 2, u32 id at 4, u32 id of the directory it is relative to at 8 (0: none);
/// then slots with [`NAME_BYTES`] bytes each.
pub const NAME: u8 = 252;
/// First byte: what an opened file is: kind at 1, u32 id at 4, u64 device at 8, u64 inode at 16.
pub const FILE_INFO: u8 = 251;
/// Bytes of a name in each continued slot.
pub const NAME_BYTES: usize = SLOT_BYTES - 1;
/// Most bytes of a name; longer ones are cut.
pub const NAME_MAX: usize = 4096;

/// Flags of a call's record (byte 1).
pub mod flag {
    /// Two more slots: u64 length at 8, i64 result at 16, u64 duration at 24; u64 offset at 8.
    pub const WIDE: u8 = 1;
    /// By a stream of stdio.
    pub const STDIO: u8 = 2;
    /// The descriptor was opened with O_DIRECT.
    pub const DIRECT: u8 = 4;
    /// The descriptor was opened with O_SYNC or O_DSYNC.
    pub const SYNC: u8 = 8;
    /// The descriptor was opened with O_APPEND.
    pub const APPEND: u8 = 16;
    /// The file was opened to be created or emptied; of a mapping: shared and writable.
    pub const WRITES: u8 = 32;
    /// The same bit of a stream's position that was set: the stream reads, so libc may have read the block of its new place. The length is then
    /// that of what the stream's buffer has read.
    pub const READS: u8 = 32;
    /// With `STDIO`: the stream has no buffer (setvbuf), so the call went to the file as it is.
    pub const UNBUFFERED: u8 = 64;
    /// With `STDIO`, of a write: the stream writes at each end of a line, and did so during this call.
    pub const LINE: u8 = 128;
}

/// Kinds of file in [`FILE_INFO`].
pub mod kind {
    /// Nobody asked.
    pub const UNKNOWN: u8 = 0;
    /// A regular file.
    pub const REGULAR: u8 = 1;
    /// A directory.
    pub const DIRECTORY: u8 = 2;
    /// A pipe or FIFO.
    pub const PIPE: u8 = 3;
    /// A socket.
    pub const SOCKET: u8 = 4;
    /// A character or block device.
    pub const DEVICE: u8 = 5;
    /// None of these.
    pub const OTHER: u8 = 6;
}

/// Offset of a call that has none.
pub const NO_OFFSET: u64 = (1 << 48) - 1;
/// Largest length of a record of one slot.
pub const LARGEST_NARROW: u64 = u32::MAX as u64;

/// First word of a call's record: its number, flags and offset.
#[inline]
pub const fn first_word(op: u8, flags: u8, offset: u64) -> u64 {
    (op as u64) | (flags as u64) << 8 | (offset & NO_OFFSET) << 16
}

/// Two numbers as a word.
#[inline]
pub const fn two(low: u32, high: u32) -> u64 {
    (low as u64) | (high as u64) << 32
}
