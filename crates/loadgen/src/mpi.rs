//! The MPI library, loaded while the program runs: so one executable works without MPI, and with the MPI of the machine it is
//! on. Open MPI and MPICH (and what has its binary interface: Intel MPI, MVAPICH, Cray MPICH) are known.
//!
//! Invariants: nothing is loaded unless a launcher started this process ([`launched`]). Each call is made by one thread at a
//! time. Handles are pointers in Open MPI and 32-bit numbers in MPICH; both travel in a register, so they are `usize` here.
//! Callers: `far` (who the ranks are, barriers), `target` (MPI-IO), the command line.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::path::Path;
use std::sync::{Mutex, OnceLock};

/// Longest text of the library.
const TEXT_MAX: usize = 8192;
/// Room for a status of any library, in words: they have 24 to 48 bytes.
const STATUS_WORDS: usize = 16;
/// Says which library, or `off`.
pub const VARIABLE: &str = "FOREBAY_MPI";

/// Names under which libraries are tried: of Open MPI, and of those with MPICH's interface.
const OPEN_MPI: [&str; 2] = ["libmpi.so.40", "libmpi.so.80"];
const MPICH: [&str; 4] = ["libmpich.so.12", "libmpi.so.12", "libmpi_intel.so.12", "libmpi.so"];

/// Variables in which launchers say that there is a rank, with those of the number of ranks.
const LAUNCHERS: [(&str, &str); 4] = [
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", "SLURM_NTASKS"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
];

/// Why there is no MPI.
#[derive(Debug, thiserror::Error)]
pub enum MpiError {
    /// No library.
    #[error(
        "a launcher started this process ({launcher}), and no MPI library was found ({tried}): install one, name it in {VARIABLE}, or say {VARIABLE}=off to run each process for itself"
    )]
    NoLibrary {
        /// The variable that told it.
        launcher: String,
        /// What was tried, and why not.
        tried: String,
    },
    /// It is none that is known.
    #[error("{library}: neither Open MPI's nor MPICH's interface ({missing} is missing)")]
    Strange {
        /// Its name.
        library: String,
        /// What was looked for.
        missing: String,
    },
    /// A call failed.
    #[error("{call}: {why}")]
    Call {
        /// Which.
        call: &'static str,
        /// The library's own words.
        why: String,
    },
    /// The launcher and the library do not work together.
    #[error(
        "the launcher started {tasks} processes, but MPI knows of 1 in each: with srun say --mpi=pmix or --mpi=pmi2, as the MPI library needs it"
    )]
    Alone {
        /// Number that the launcher says.
        tasks: u32,
    },
}

/// What an MPI call ended with: an error in the library's words.
impl From<MpiError> for std::io::Error {
    fn from(error: MpiError) -> std::io::Error {
        std::io::Error::other(error.to_string())
    }
}

type File = *mut usize;
type Bytes = *const c_void;
type Room = *mut c_void;

macro_rules! functions {
    ($($field:ident = $name:literal: fn($($arg:ty),*);)*) => {
        /// The functions that are used.
        struct Functions { $($field: unsafe extern "C" fn($($arg),*) -> c_int,)* }

        impl Functions {
            fn of(library: &Library) -> Result<Functions, MpiError> {
                Ok(Functions {
                    $($field: {
                        let address = library.symbol($name).ok_or_else(|| library.strange($name))?;
                        // SAFETY: the MPI standard says what a function of this name takes and gives; handles are described above.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> c_int>(address) }
                    },)*
                })
            }
        }
    };
}

functions! {
    init_thread = "MPI_Init_thread": fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    finalize = "MPI_Finalize": fn();
    abort = "MPI_Abort": fn(usize, c_int);
    comm_rank = "MPI_Comm_rank": fn(usize, *mut c_int);
    comm_size = "MPI_Comm_size": fn(usize, *mut c_int);
    barrier = "MPI_Barrier": fn(usize);
    bcast = "MPI_Bcast": fn(Room, c_int, usize, c_int, usize);
    allgather = "MPI_Allgather": fn(Bytes, c_int, usize, Room, c_int, usize, usize);
    error_string = "MPI_Error_string": fn(c_int, *mut c_char, *mut c_int);
    version = "MPI_Get_library_version": fn(*mut c_char, *mut c_int);
    get_count = "MPI_Get_count": fn(Bytes, usize, *mut c_int);
    wait = "MPI_Wait": fn(*mut usize, Room);
    file_open = "MPI_File_open": fn(usize, *const c_char, c_int, usize, File);
    file_close = "MPI_File_close": fn(File);
    file_set_size = "MPI_File_set_size": fn(usize, i64);
    file_sync = "MPI_File_sync": fn(usize);
    write_at = "MPI_File_write_at": fn(usize, i64, Bytes, c_int, usize, Room);
    write_at_all = "MPI_File_write_at_all": fn(usize, i64, Bytes, c_int, usize, Room);
    read_at = "MPI_File_read_at": fn(usize, i64, Room, c_int, usize, Room);
    read_at_all = "MPI_File_read_at_all": fn(usize, i64, Room, c_int, usize, Room);
    iwrite_at = "MPI_File_iwrite_at": fn(usize, i64, Bytes, c_int, usize, *mut usize);
    iread_at = "MPI_File_iread_at": fn(usize, i64, Room, c_int, usize, *mut usize);
}

/// A shared library that was loaded.
pub(crate) struct Library {
    handle: *mut c_void,
    name: String,
}

impl Library {
    pub(crate) fn open(name: &str) -> Result<Library, String> {
        let c_name = CString::new(name).map_err(|_| "its name holds a NUL byte".to_string())?;
        // Global: Open MPI's own plugins look for its symbols there.
        // SAFETY: loads a library, whose constructors run; that is what the user asked for by starting this under MPI.
        let handle = unsafe { libc::dlopen(c_name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() {
            // SAFETY: after a failed dlopen it gives a string, which is copied at once.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(why.to_string_lossy().into_owned());
        }
        Ok(Library { handle, name: name.to_string() })
    }

    /// The address of a name in it, or in a library that it uses.
    pub(crate) fn symbol(&self, name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: the handle is open for as long as the process lives.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }

    /// As it was asked for.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn strange(&self, missing: &str) -> MpiError {
        MpiError::Strange { library: self.name.clone(), missing: missing.into() }
    }
}

/// The run was stopped: by the coordinator, or because a rank failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

/// All ranks.
pub struct World {
    calls: Functions,
    comm_world: usize,
    comm_self: usize,
    byte: usize,
    no_info: usize,
    rank: u32,
    size: u32,
    /// Host of each rank.
    hosts: Vec<String>,
    /// Name and version of the library.
    library: String,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {} by {}", self.rank, self.size, self.library)
    }
}

/// What is undone before all ranks are ended.
static UNDO: Mutex<Option<Undo>> = Mutex::new(None);
type Undo = Box<dyn FnOnce() + Send>;

/// Says what is to be undone, at rank 0, if the run is aborted; instead of what was said before.
pub fn before_abort(undo: impl FnOnce() + Send + 'static) {
    if let Ok(mut place) = UNDO.lock() {
        *place = Some(Box::new(undo));
    }
}

static WORLD: OnceLock<World> = OnceLock::new();

/// The ranks that this process is one of, after [`begin`].
pub fn world() -> Option<&'static World> {
    WORLD.get()
}

/// True of rank 0, and of who is no rank: who speaks to the user.
pub fn is_first() -> bool {
    world().is_none_or(|world| world.rank() == 0)
}

/// After a meeting of all ranks: those of MPI go on from a barrier of MPI, which lets them go at the same moment.
pub(crate) fn all_go_on() -> Result<(), Stopped> {
    match world() {
        Some(world) => world.barrier().map_err(|_| Stopped),
        None => Ok(()),
    }
}

/// The variable by which a launcher says that this process is a rank; none if it is not to be asked.
pub fn launched() -> Option<(&'static str, Option<u32>)> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    if std::env::var(VARIABLE).is_ok_and(|value| value == "off") {
        return None;
    }
    LAUNCHERS
        .into_iter()
        .find(|(rank, _)| number(rank).is_some())
        .map(|(rank, size)| (rank, number(size)))
}

/// Joins the other ranks, if a launcher started this process. The process must have one thread.
///
/// # Errors
/// No library, or it refused.
pub fn begin() -> Result<Option<&'static World>, MpiError> {
    let Some((launcher, tasks)) = launched() else { return Ok(None) };
    let library = find(launcher)?;
    let world = World::join(&library)?;
    if let (1, Some(tasks @ 2..)) = (world.size, tasks) {
        return Err(MpiError::Alone { tasks });
    }
    Ok(Some(WORLD.get_or_init(|| world)))
}

fn find(launcher: &str) -> Result<Library, MpiError> {
    let named = std::env::var(VARIABLE).ok().filter(|name| !name.is_empty());
    let names: Vec<String> = match named {
        Some(name) => vec![name],
        None if launcher.starts_with("PMI_") || launcher.starts_with("MPI_") => {
            MPICH.iter().chain(&OPEN_MPI).map(ToString::to_string).collect()
        }
        None => OPEN_MPI.iter().chain(&MPICH).map(ToString::to_string).collect(),
    };
    let mut tried = Vec::new();
    for name in &names {
        match Library::open(name) {
            Ok(library) => return Ok(library),
            Err(why) if names.len() == 1 => tried.push(why),
            Err(_) => tried.push(name.clone()),
        }
    }
    Err(MpiError::NoLibrary { launcher: launcher.into(), tried: tried.join(", ") })
}

impl World {
    fn join(library: &Library) -> Result<World, MpiError> {
        let calls = Functions::of(library)?;
        let pointer = |name: &str| library.symbol(name).map(|address| address as usize);
        // Open MPI's handles are addresses of its objects; MPICH's are fixed numbers.
        let (comm_world, comm_self, byte, no_info) = match pointer("ompi_mpi_comm_world") {
            Some(comm_world) => {
                let need = |name: &str| pointer(name).ok_or_else(|| library.strange(name));
                (
                    comm_world,
                    need("ompi_mpi_comm_self")?,
                    need("ompi_mpi_byte")?,
                    need("ompi_mpi_info_null")?,
                )
            }
            None => (0x4400_0000, 0x4400_0001, 0x4c00_010d, 0x1c00_0000),
        };
        let mut world = World {
            calls,
            comm_world,
            comm_self,
            byte,
            no_info,
            rank: 0,
            size: 1,
            hosts: Vec::new(),
            library: String::new(),
        };
        // MPI_THREAD_SERIALIZED: one thread at a time.
        let (serialized, mut given) = (2, 0);
        let (no_argc, no_argv) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the standard allows both to be null; the number lives during the call.
        let done =
            unsafe { (world.calls.init_thread)(no_argc, no_argv, serialized, &raw mut given) };
        world.check("MPI_Init_thread", done)?;
        let (mut rank, mut size) = (0, 1);
        // SAFETY: the numbers live during the calls.
        let done = unsafe {
            let done = (world.calls.comm_rank)(comm_world, &raw mut rank);
            if done == 0 { (world.calls.comm_size)(comm_world, &raw mut size) } else { done }
        };
        world.check("MPI_Comm_rank", done)?;
        (world.rank, world.size) = (rank as u32, size as u32);
        world.library = world.text(|to, length| {
            // SAFETY: the room is as large as the standard asks for.
            unsafe { (world.calls.version)(to, length) }
        });
        world.hosts = world.all_hosts()?;
        Ok(world)
    }

    fn text(&self, write: impl Fn(*mut c_char, *mut c_int) -> c_int) -> String {
        let mut room = vec![0_u8; TEXT_MAX + 1];
        let mut length = 0;
        if write(room.as_mut_ptr().cast(), &raw mut length) != 0 {
            return String::new();
        }
        let text = &room[..(length.max(0) as usize).min(TEXT_MAX)];
        let text = String::from_utf8_lossy(text);
        text.lines()
            .next()
            .unwrap_or("")
            .trim_matches(|c: char| c == '\0' || c.is_whitespace())
            .into()
    }

    fn check(&self, call: &'static str, done: c_int) -> Result<(), MpiError> {
        if done == 0 {
            return Ok(());
        }
        // SAFETY: the room is as large as the standard asks for.
        let why = self.text(|to, length| unsafe { (self.calls.error_string)(done, to, length) });
        let why = if why.is_empty() { format!("error {done}") } else { why };
        Err(MpiError::Call { call, why })
    }

    fn all_hosts(&self) -> Result<Vec<String>, MpiError> {
        const HOST: usize = 256;
        let mut mine = [0_u8; HOST];
        let name = rustix::system::uname().nodename().to_bytes().to_vec();
        for (to, from) in mine.iter_mut().zip(&name) {
            *to = *from;
        }
        let mut all = vec![0_u8; HOST * self.size as usize];
        let count = HOST as c_int;
        // SAFETY: each rank gives and gets so many bytes of each; both buffers live during the call.
        let done = unsafe {
            let (from, to) = (mine.as_ptr().cast(), all.as_mut_ptr().cast());
            (self.calls.allgather)(from, count, self.byte, to, count, self.byte, self.comm_world)
        };
        self.check("MPI_Allgather", done)?;
        let name = |bytes: &[u8]| {
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..end]).into_owned()
        };
        Ok(all.chunks(HOST).map(name).collect())
    }

    /// Where its MPI_Init_thread is: tells whether another library uses the same MPI.
    pub(crate) fn init_address(&self) -> usize {
        self.calls.init_thread as usize
    }

    /// The communicator of all ranks, or of this one alone.
    pub(crate) fn comm(&self, together: bool) -> usize {
        if together { self.comm_world } else { self.comm_self }
    }

    /// MPI_INFO_NULL.
    pub(crate) fn no_info(&self) -> usize {
        self.no_info
    }

    /// This one.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many there are.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Name and version of the library.
    pub fn library(&self) -> &str {
        &self.library
    }

    /// Number of hosts.
    pub fn nodes(&self) -> u32 {
        let mut hosts = self.hosts.clone();
        hosts.sort();
        hosts.dedup();
        hosts.len() as u32
    }

    /// Ranks on the host of rank 0.
    pub fn tasks_on_node_0(&self) -> u32 {
        self.hosts.iter().filter(|host| Some(*host) == self.hosts.first()).count() as u32
    }

    /// True if this rank is on the host of rank 0.
    pub fn is_beside_rank_0(&self) -> bool {
        self.hosts.get(self.rank as usize) == self.hosts.first()
    }

    /// Waits for all ranks.
    ///
    /// # Errors
    /// The library's.
    pub fn barrier(&self) -> Result<(), MpiError> {
        // SAFETY: a communicator of the library.
        let done = unsafe { (self.calls.barrier)(self.comm_world) };
        self.check("MPI_Barrier", done)
    }

    /// What rank 0 has, or why it has none: all ranks call this together.
    ///
    /// # Errors
    /// Rank 0's, or the library's.
    pub fn of_rank_0(&self, mine: Result<Vec<u8>, String>) -> Result<Vec<u8>, String> {
        let (good, mut bytes) = match mine {
            Ok(bytes) => (1_u64, bytes),
            Err(why) => (0, why.into_bytes()),
        };
        let mut head = [0_u8; 16];
        head[..8].copy_from_slice(&good.to_le_bytes());
        head[8..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        self.bcast(&mut head).map_err(|error| error.to_string())?;
        let word = |at: usize| {
            let bytes = head[at..at + 8].try_into().unwrap_or_default();
            u64::from_le_bytes(bytes)
        };
        if self.rank != 0 {
            bytes = vec![0; word(8) as usize];
        }
        self.bcast(&mut bytes).map_err(|error| error.to_string())?;
        match word(0) {
            1 => Ok(bytes),
            _ => Err(String::from_utf8_lossy(&bytes).into_owned()),
        }
    }

    fn bcast(&self, bytes: &mut [u8]) -> Result<(), MpiError> {
        for piece in bytes.chunks_mut(1 << 30) {
            let (room, count) = (piece.as_mut_ptr().cast(), piece.len() as c_int);
            // SAFETY: the buffer lives during the call, and is as long at each rank.
            let done = unsafe { (self.calls.bcast)(room, count, self.byte, 0, self.comm_world) };
            self.check("MPI_Bcast", done)?;
        }
        Ok(())
    }

    /// The end of all ranks together.
    pub fn end(&self) {
        // SAFETY: nothing of the library is used afterwards.
        unsafe { (self.calls.finalize)() };
    }

    /// Ends all ranks at once, where some hang in calls that all have to make together, after what was said to
    /// [`before_abort`].
    pub fn abort(&self) -> ! {
        let undo = UNDO.lock().ok().and_then(|mut undo| undo.take());
        if let Some(undo) = undo {
            undo();
        }
        // SAFETY: the library ends this process and all others; where it does not, this one ends by itself.
        unsafe {
            (self.calls.abort)(self.comm_world, 1);
            libc::_exit(1)
        }
    }

    /// Opens a file by MPI-IO; `together`: all ranks do, and each of them does.
    ///
    /// # Errors
    /// The library's.
    pub fn open(&'static self, path: &Path, how: How, together: bool) -> Result<MpiFile, MpiError> {
        use std::os::unix::ffi::OsStrExt;
        let call = "MPI_File_open";
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| MpiError::Call { call, why: "its name holds a NUL byte".into() })?;
        // The numbers are those of ROMIO, which all libraries have kept.
        let (create, read_only, read_write, exclusive) = (1, 2, 8, 64);
        let mode = match how {
            How::Read => read_only,
            How::Write | How::Truncate => read_write | create,
            How::New => read_write | create | exclusive,
        };
        let comm = if together { self.comm_world } else { self.comm_self };
        let mut file = 0;
        // SAFETY: the name and the place of the handle live during the call.
        let done = unsafe {
            (self.calls.file_open)(comm, name.as_ptr(), mode, self.no_info, &raw mut file)
        };
        self.check(call, done)?;
        let file = MpiFile { world: self, file };
        if how == How::Truncate {
            file.set_len(0)?;
        }
        Ok(file)
    }
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// To read.
    Read,
    /// To read and write; made if it is not there.
    Write,
    /// The same, and emptied.
    Truncate,
    /// It must not be there.
    New,
}

/// A file of MPI-IO. It is closed by [`MpiFile::close`] only: a rank that fails does not wait for the others to close.
#[derive(Debug)]
pub struct MpiFile {
    world: &'static World,
    file: usize,
}

/// A transfer that has begun.
#[derive(Debug)]
pub struct Begun {
    request: usize,
}

impl MpiFile {
    fn moved(
        &self,
        call: &'static str,
        done: c_int,
        status: &[u64],
        wanted: usize,
    ) -> Result<(), MpiError> {
        self.world.check(call, done)?;
        let mut count = 0;
        // SAFETY: the status was filled by the call before.
        let done = unsafe {
            (self.world.calls.get_count)(status.as_ptr().cast(), self.world.byte, &raw mut count)
        };
        self.world.check("MPI_Get_count", done)?;
        if count as usize == wanted {
            return Ok(());
        }
        Err(MpiError::Call { call, why: format!("{count} of {wanted} bytes were moved") })
    }

    /// Writes all of it; `collective`: with all ranks.
    ///
    /// # Errors
    /// The library's.
    pub fn write_all_at(
        &self,
        bytes: &[u8],
        offset: u64,
        collective: bool,
    ) -> Result<(), MpiError> {
        let mut status = [0_u64; STATUS_WORDS];
        let calls = &self.world.calls;
        let write = if collective { calls.write_at_all } else { calls.write_at };
        let (from, count) = (bytes.as_ptr().cast(), bytes.len() as c_int);
        let to = status.as_mut_ptr().cast();
        // SAFETY: bytes and status live during the call; a transfer has at most 1 GiB.
        let done = unsafe { write(self.file, offset as i64, from, count, self.world.byte, to) };
        self.moved("MPI_File_write_at", done, &status, bytes.len())
    }

    /// Reads all of it.
    ///
    /// # Errors
    /// The library's; the file ends before.
    pub fn read_exact_at(
        &self,
        bytes: &mut [u8],
        offset: u64,
        collective: bool,
    ) -> Result<(), MpiError> {
        let mut status = [0_u64; STATUS_WORDS];
        let calls = &self.world.calls;
        let read = if collective { calls.read_at_all } else { calls.read_at };
        let (room, count) = (bytes.as_mut_ptr().cast(), bytes.len() as c_int);
        let to = status.as_mut_ptr().cast();
        // SAFETY: as above.
        let done = unsafe { read(self.file, offset as i64, room, count, self.world.byte, to) };
        self.moved("MPI_File_read_at", done, &status, bytes.len())
    }

    /// Begins a transfer.
    ///
    /// # Errors
    /// The library's.
    ///
    /// # Safety
    /// The bytes stay where they are until [`MpiFile::wait`] has returned.
    pub unsafe fn begin(
        &self,
        bytes: &mut [u8],
        offset: u64,
        write: bool,
    ) -> Result<Begun, MpiError> {
        let (calls, count, mut request) = (&self.world.calls, bytes.len() as c_int, 0);
        let (offset, byte) = (offset as i64, self.world.byte);
        // SAFETY: by the caller's promise; the request lives during the call.
        let done = unsafe {
            match write {
                true => (calls.iwrite_at)(
                    self.file,
                    offset,
                    bytes.as_ptr().cast(),
                    count,
                    byte,
                    &raw mut request,
                ),
                false => (calls.iread_at)(
                    self.file,
                    offset,
                    bytes.as_mut_ptr().cast(),
                    count,
                    byte,
                    &raw mut request,
                ),
            }
        };
        self.world.check("MPI_File_iwrite_at", done)?;
        Ok(Begun { request })
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// The library's; it moved less.
    pub fn wait(&self, mut begun: Begun, bytes: usize) -> Result<(), MpiError> {
        let mut status = [0_u64; STATUS_WORDS];
        // SAFETY: a request that has begun; both live during the call.
        let done =
            unsafe { (self.world.calls.wait)(&raw mut begun.request, status.as_mut_ptr().cast()) };
        self.moved("MPI_Wait", done, &status, bytes)
    }

    /// What was written goes to the medium: with all ranks that have opened it together.
    ///
    /// # Errors
    /// The library's.
    pub fn sync(&self) -> Result<(), MpiError> {
        // SAFETY: an open file.
        let done = unsafe { (self.world.calls.file_sync)(self.file) };
        self.world.check("MPI_File_sync", done)
    }

    /// Sets the size: with all ranks that have opened it together.
    ///
    /// # Errors
    /// The library's.
    pub fn set_len(&self, bytes: u64) -> Result<(), MpiError> {
        // SAFETY: an open file.
        let done = unsafe { (self.world.calls.file_set_size)(self.file, bytes as i64) };
        self.world.check("MPI_File_set_size", done)
    }

    /// Closes it: with all ranks that have opened it together.
    ///
    /// # Errors
    /// The library's.
    pub fn close(mut self) -> Result<(), MpiError> {
        // SAFETY: an open file, which nobody uses afterwards.
        let done = unsafe { (self.world.calls.file_close)(&raw mut self.file) };
        self.world.check("MPI_File_close", done)
    }
}
