//! The calls that a trace names.

/// What a call is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Moves bytes from a file.
    Read,
    /// Moves bytes to a file.
    Write,
    /// Opens and closes.
    Open,
    /// Names and attributes.
    Metadata,
    /// Waits for the medium.
    Sync,
    /// Anything else: positions, processes, locks.
    Other,
    /// What a buffer did with a file: no call of the program.
    Buffer,
}

macro_rules! ops {
    ($($name:ident = $number:literal, $text:literal, $class:ident;)*) => {
        /// A call. The numbers are part of the format: new calls get new numbers.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Op {
            $(#[doc = $text] $name = $number,)*
        }

        impl Op {
            /// All calls.
            pub const ALL: &[Op] = &[$(Op::$name),*];

            /// The call of this number.
            pub fn from_number(number: u8) -> Option<Op> {
                match number {
                    $($number => Some(Op::$name),)*
                    _ => None,
                }
            }

            /// Its name, as in C.
            pub fn name(self) -> &'static str {
                match self { $(Op::$name => $text,)* }
            }

            /// What it is for.
            pub fn class(self) -> Class {
                match self { $(Op::$name => Class::$class,)* }
            }
        }
    };
}

ops! {
    Open = 1, "open", Open;
    Creat = 2, "creat", Open;
    Close = 3, "close", Open;
    Dup = 4, "dup", Open;
    Opendir = 5, "opendir", Metadata;
    Closedir = 6, "closedir", Metadata;
    Readdir = 7, "readdir", Metadata;
    Read = 10, "read", Read;
    Write = 11, "write", Write;
    Pread = 12, "pread", Read;
    Pwrite = 13, "pwrite", Write;
    Readv = 14, "readv", Read;
    Writev = 15, "writev", Write;
    Preadv = 16, "preadv", Read;
    Pwritev = 17, "pwritev", Write;
    Lseek = 20, "lseek", Other;
    Fsync = 21, "fsync", Sync;
    Fdatasync = 22, "fdatasync", Sync;
    SyncFileRange = 23, "sync_file_range", Sync;
    Sync = 24, "sync", Sync;
    Ftruncate = 25, "ftruncate", Metadata;
    Truncate = 26, "truncate", Metadata;
    Fallocate = 27, "fallocate", Metadata;
    Fadvise = 28, "posix_fadvise", Other;
    Lock = 29, "lock", Other;
    Stat = 30, "stat", Metadata;
    Fstat = 31, "fstat", Metadata;
    Access = 32, "access", Metadata;
    Unlink = 33, "unlink", Metadata;
    Rename = 34, "rename", Metadata;
    Mkdir = 35, "mkdir", Metadata;
    Rmdir = 36, "rmdir", Metadata;
    Link = 37, "link", Metadata;
    Symlink = 38, "symlink", Metadata;
    Readlink = 39, "readlink", Metadata;
    Chmod = 40, "chmod", Metadata;
    Chown = 41, "chown", Metadata;
    Utimens = 42, "utimens", Metadata;
    Xattr = 43, "xattr", Metadata;
    Statfs = 44, "statfs", Metadata;
    Mmap = 50, "mmap", Other;
    Munmap = 51, "munmap", Other;
    Msync = 52, "msync", Sync;
    CopyFileRange = 55, "copy_file_range", Write;
    Sendfile = 56, "sendfile", Write;
    Splice = 57, "splice", Write;
    CopySource = 58, "copy_file_range source", Read;
    SendSource = 59, "sendfile source", Read;
    SpliceSource = 60, "splice source", Read;
    Fopen = 70, "fopen", Open;
    Fclose = 71, "fclose", Open;
    Fread = 72, "fread", Read;
    Fwrite = 73, "fwrite", Write;
    Fseek = 74, "fseek", Other;
    Fflush = 75, "fflush", Other;
    StdioRead = 76, "stdio reads not seen one by one", Read;
    StdioWrite = 77, "stdio writes not seen one by one", Write;
    AioSubmit = 80, "aio submit", Other;
    AioRead = 81, "aio_read", Read;
    AioWrite = 82, "aio_write", Write;
    AioFsync = 83, "aio_fsync", Sync;
    Exec = 90, "exec", Other;
    Fork = 91, "fork", Other;
    Chdir = 92, "chdir", Metadata;
    Spawn = 93, "posix_spawn", Other;
    RenameTarget = 94, "rename target", Metadata;
    BufferHit = 120, "buffer hit", Buffer;
    BufferMiss = 121, "buffer miss", Buffer;
    BufferFill = 122, "buffer fill", Buffer;
    BufferDrain = 123, "buffer drain", Buffer;
    BufferStall = 124, "buffer stall", Buffer;
    BufferKernel = 125, "buffer open by the kernel", Buffer;
    BufferEvict = 126, "buffer evict", Buffer;
    BufferAbsorb = 127, "buffer absorb", Buffer;
}

impl Op {
    /// True if a record of this kind stands for one call of the program. A source is the other side of
    /// a call that has a record already, and bytes that stdio moved unseen are no known number of calls.
    pub fn is_call(self) -> bool {
        use Op::*;
        self.class() != Class::Buffer
            && !matches!(
                self,
                CopySource | SendSource | SpliceSource | StdioRead | StdioWrite | RenameTarget
            )
    }

    /// True if it moves bytes of a file.
    pub fn moves_data(self) -> bool {
        matches!(self.class(), Class::Read | Class::Write)
    }

    /// True if the file's own position says where it reads or writes, so that a program seeks first.
    pub fn by_position(self) -> bool {
        use Op::*;
        matches!(self, Read | Write | Readv | Writev | Fread | Fwrite)
    }
}
