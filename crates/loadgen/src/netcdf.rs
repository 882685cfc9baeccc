//! The parallel netCDF library, loaded while the program runs, as MPI's is: one executable works with it and without it.
//!
//! Invariants: it is loaded only for a workload that has files of netCDF, by a rank of MPI, and only if it uses the same MPI library as this
//! process: the handles of another one would mean nothing to it. A file has one variable, `data`, of the dimensions `time`,
//! `dim_1`, ..., as NetCDF-Bench names them. All ranks of a shared file make each call together.
//! Callers: `target`, `replay`.

use crate::mpi::{Library, World};
use forebay_workload::language::{Layout, Slab};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

/// Says which library, or `off`.
pub const VARIABLE: &str = "FOREBAY_NETCDF";
/// Names under which it is tried: Debian's, then those of sites that have one netCDF, built with MPI.
const NAMES: [&str; 5] = [
    "libnetcdf_mpi.so.19",
    "libnetcdf_mpi.so.22",
    "libnetcdf_mpi.so",
    "libnetcdf.so.19",
    "libnetcdf.so",
];

// Numbers of netcdf.h and netcdf_par.h, which they have kept since netCDF 4.
const NETCDF4: c_int = 0x1000;
const NO_CLOBBER: c_int = 0x4;
const WRITE: c_int = 0x1;
const CHUNKED: c_int = 0;
const CONTIGUOUS: c_int = 1;
const INDEPENDENT: c_int = 0;
const COLLECTIVE: c_int = 1;
/// Types of signed integers of 1, 2, 4 and 8 bytes.
const TYPES: [(u64, c_int); 4] = [(1, 1), (2, 3), (4, 4), (8, 10)];

/// Why a call failed, in the library's words.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {why}")]
pub struct NetCdfError {
    call: &'static str,
    why: String,
}

impl From<NetCdfError> for std::io::Error {
    fn from(error: NetCdfError) -> std::io::Error {
        std::io::Error::other(error.to_string())
    }
}

macro_rules! functions {
    ($($field:ident = $name:literal: fn($($arg:ty),*);)*) => {
        /// The functions that are used. MPI's handles are as wide as a register in all libraries, or narrower.
        struct Functions { $($field: unsafe extern "C" fn($($arg),*) -> c_int,)* }

        impl Functions {
            fn of(library: &Library) -> Result<Functions, String> {
                Ok(Functions {
                    $($field: {
                        let address = library.symbol($name).ok_or_else(|| {
                            format!("{} has no {}", library.name(), $name)
                        })?;
                        // SAFETY: netcdf.h and netcdf_par.h say what a function of this name takes and gives.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> c_int>(address) }
                    },)*
                })
            }
        }
    };
}

functions! {
    create_par = "nc_create_par": fn(*const c_char, c_int, usize, usize, *mut c_int);
    open_par = "nc_open_par": fn(*const c_char, c_int, usize, usize, *mut c_int);
    def_dim = "nc_def_dim": fn(c_int, *const c_char, usize, *mut c_int);
    def_var = "nc_def_var": fn(c_int, *const c_char, c_int, c_int, *const c_int, *mut c_int);
    def_var_chunking = "nc_def_var_chunking": fn(c_int, c_int, c_int, *const usize);
    def_var_fill = "nc_def_var_fill": fn(c_int, c_int, c_int, *const c_void);
    enddef = "nc_enddef": fn(c_int);
    inq_varid = "nc_inq_varid": fn(c_int, *const c_char, *mut c_int);
    var_par_access = "nc_var_par_access": fn(c_int, c_int, c_int);
    put_vara = "nc_put_vara": fn(c_int, c_int, *const usize, *const usize, *const c_void);
    get_vara = "nc_get_vara": fn(c_int, c_int, *const usize, *const usize, *mut c_void);
    sync = "nc_sync": fn(c_int);
    close = "nc_close": fn(c_int);
}

/// The library.
pub struct NetCdf {
    calls: Functions,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
    /// Name and version.
    version: String,
}

impl fmt::Debug for NetCdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.version)
    }
}

static LIBRARY: OnceLock<Result<NetCdf, String>> = OnceLock::new();

/// The library for these ranks.
///
/// # Errors
/// Why there is none, in words that can follow "without a netCDF library:".
pub fn library(world: &'static World) -> Result<&'static NetCdf, String> {
    LIBRARY.get_or_init(|| NetCdf::find(world)).as_ref().map_err(Clone::clone)
}

/// The library, if it was loaded.
pub fn loaded() -> Option<&'static NetCdf> {
    LIBRARY.get().and_then(|library| library.as_ref().ok())
}

impl NetCdf {
    fn find(world: &World) -> Result<NetCdf, String> {
        let named = std::env::var(VARIABLE).ok().filter(|name| !name.is_empty());
        let names: Vec<&str> = match named.as_deref() {
            Some("off") => return Err(format!("{VARIABLE} is off")),
            Some(name) => vec![name],
            None => NAMES.to_vec(),
        };
        let mut tried = Vec::new();
        for name in names {
            match NetCdf::load(name, world) {
                Ok(library) => return Ok(library),
                Err(why) => tried.push(why),
            }
        }
        tried.dedup();
        Err(format!(
            "none was found ({}): install one (Debian: libnetcdf-mpi-dev), or name it in {VARIABLE}",
            tried.join("; ")
        ))
    }

    fn load(name: &str, world: &World) -> Result<NetCdf, String> {
        let library = Library::open(name)?;
        // A library that has no MPI has the calls all the same, and refuses each.
        let Some(init) = library.symbol("MPI_Init_thread") else {
            return Err(format!("{name} was built without MPI"));
        };
        if init as usize != world.init_address() {
            return Err(format!("{name} uses another MPI library than {}", world.library()));
        }
        let calls = Functions::of(&library)?;
        let missing = |what: &str| format!("{name} has no {what}");
        let strerror = library.symbol("nc_strerror").ok_or_else(|| missing("nc_strerror"))?;
        let libvers = library.symbol("nc_inq_libvers").ok_or_else(|| missing("nc_inq_libvers"))?;
        // SAFETY: netcdf.h says what the two take and give; both give texts that stay.
        let (strerror, version) = unsafe {
            let strerror = std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(c_int) -> *const c_char,
            >(strerror);
            let libvers = std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const c_char>(
                libvers,
            );
            (strerror, CStr::from_ptr(libvers()).to_string_lossy().into_owned())
        };
        let number = version.split_whitespace().next().unwrap_or("");
        Ok(NetCdf { calls, strerror, version: format!("netCDF {number} ({name})") })
    }

    /// Name and version.
    pub fn version(&self) -> &str {
        &self.version
    }

    fn check(&self, call: &'static str, done: c_int) -> Result<(), NetCdfError> {
        if done == 0 {
            return Ok(());
        }
        // SAFETY: it gives a text that stays, for any number.
        let why = unsafe {
            let text = (self.strerror)(done);
            if text.is_null() {
                format!("error {done}")
            } else {
                CStr::from_ptr(text).to_string_lossy().into_owned()
            }
        };
        Err(NetCdfError { call, why })
    }

    /// Makes a file with the variable that a layout describes; `together`: all ranks do, else this one alone.
    ///
    /// # Errors
    /// The library's; with `new`, that the file is there.
    pub fn create(
        &'static self,
        world: &World,
        path: &Path,
        layout: &Layout,
        how: Making,
    ) -> Result<Variable, NetCdfError> {
        let Layout::Array { shape, chunk, element_bytes, .. } = layout else {
            return Err(refused("nc_def_var", "the file has no array"));
        };
        let kind = TYPES.iter().find(|(bytes, _)| bytes == element_bytes);
        let Some(&(_, kind)) = kind else {
            return Err(refused("nc_def_var", "no type has elements of so many bytes"));
        };
        let name = c_path(path, "nc_create_par")?;
        let mode = NETCDF4 | if how.new { NO_CLOBBER } else { 0 };
        let (comm, mut id, mut variable) = (world.comm(how.together), 0, 0);
        // SAFETY: texts and numbers live during the calls; each is made by all ranks of the communicator.
        unsafe {
            let calls = &self.calls;
            let done = (calls.create_par)(name.as_ptr(), mode, comm, world.no_info(), &raw mut id);
            self.check("nc_create_par", done)?;
            let mut dimensions = Vec::with_capacity(shape.len());
            for (at, len) in shape.iter().enumerate() {
                let name = if at == 0 { "time".to_string() } else { format!("dim_{at}") };
                let name = c_text(&name, "nc_def_dim")?;
                let mut dimension = 0;
                let done = (calls.def_dim)(id, name.as_ptr(), *len as usize, &raw mut dimension);
                self.check("nc_def_dim", done)?;
                dimensions.push(dimension);
            }
            let (count, dimensions) = (dimensions.len() as c_int, dimensions.as_ptr());
            let done =
                (calls.def_var)(id, c"data".as_ptr(), kind, count, dimensions, &raw mut variable);
            self.check("nc_def_var", done)?;
            let sizes = chunk.as_ref().map(|chunk| as_sizes(chunk));
            let (storage, sizes) = match &sizes {
                Some(sizes) => (CHUNKED, sizes.as_ptr()),
                None => (CONTIGUOUS, std::ptr::null()),
            };
            let done = (calls.def_var_chunking)(id, variable, storage, sizes);
            self.check("nc_def_var_chunking", done)?;
            // Nothing is written into it but what the workload writes.
            let done = (calls.def_var_fill)(id, variable, 1, std::ptr::null());
            self.check("nc_def_var_fill", done)?;
            self.check("nc_enddef", (calls.enddef)(id))?;
        }
        self.accessed(id, variable, how.collective)
    }

    /// Opens a file that is there.
    ///
    /// # Errors
    /// The library's.
    pub fn open(
        &'static self,
        world: &World,
        path: &Path,
        write: bool,
        how: Making,
    ) -> Result<Variable, NetCdfError> {
        let name = c_path(path, "nc_open_par")?;
        let mode = if write { WRITE } else { 0 };
        let (comm, mut id, mut variable) = (world.comm(how.together), 0, 0);
        // SAFETY: as above.
        unsafe {
            let calls = &self.calls;
            let done = (calls.open_par)(name.as_ptr(), mode, comm, world.no_info(), &raw mut id);
            self.check("nc_open_par", done)?;
            let done = (calls.inq_varid)(id, c"data".as_ptr(), &raw mut variable);
            self.check("nc_inq_varid", done)?;
        }
        self.accessed(id, variable, how.collective)
    }

    fn accessed(
        &'static self,
        id: c_int,
        variable: c_int,
        collective: bool,
    ) -> Result<Variable, NetCdfError> {
        let access = if collective { COLLECTIVE } else { INDEPENDENT };
        // SAFETY: an open file and its variable.
        let done = unsafe { (self.calls.var_par_access)(id, variable, access) };
        self.check("nc_var_par_access", done)?;
        Ok(Variable { library: self, id, variable })
    }
}

fn refused(call: &'static str, why: &str) -> NetCdfError {
    NetCdfError { call, why: why.into() }
}

fn c_text(text: &str, call: &'static str) -> Result<CString, NetCdfError> {
    CString::new(text).map_err(|_| refused(call, "its name holds a NUL byte"))
}

fn c_path(path: &Path, call: &'static str) -> Result<CString, NetCdfError> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| refused(call, "its name holds a NUL byte"))
}

fn as_sizes(numbers: &[u64]) -> Vec<usize> {
    numbers.iter().map(|number| *number as usize).collect()
}

/// How a file is made or opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Making {
    /// By all ranks.
    pub together: bool,
    /// Its transfers are made by all ranks together.
    pub collective: bool,
    /// It must not be there.
    pub new: bool,
}

/// The variable of an open file. It is closed by [`Variable::close`] only: a rank that fails does not wait for the others.
#[derive(Debug)]
pub struct Variable {
    library: &'static NetCdf,
    id: c_int,
    variable: c_int,
}

impl Variable {
    /// Writes a slab, which has as many bytes.
    ///
    /// # Errors
    /// The library's.
    pub fn put(&self, slab: &Slab, bytes: &[u8]) -> Result<(), NetCdfError> {
        self.fits(slab, bytes.len())?;
        let (start, count) = (as_sizes(&slab.start), as_sizes(&slab.count));
        // SAFETY: the slab lies in the variable, or the library refuses it; the bytes are as many as its elements have.
        let done = unsafe {
            let (start, count) = (start.as_ptr(), count.as_ptr());
            (self.library.calls.put_vara)(
                self.id,
                self.variable,
                start,
                count,
                bytes.as_ptr().cast(),
            )
        };
        self.library.check("nc_put_vara", done)
    }

    /// Reads one.
    ///
    /// # Errors
    /// The library's.
    pub fn get(&self, slab: &Slab, bytes: &mut [u8]) -> Result<(), NetCdfError> {
        self.fits(slab, bytes.len())?;
        let (start, count) = (as_sizes(&slab.start), as_sizes(&slab.count));
        // SAFETY: as above.
        let done = unsafe {
            let (start, count) = (start.as_ptr(), count.as_ptr());
            let to = bytes.as_mut_ptr().cast();
            (self.library.calls.get_vara)(self.id, self.variable, start, count, to)
        };
        self.library.check("nc_get_vara", done)
    }

    fn fits(&self, slab: &Slab, bytes: usize) -> Result<(), NetCdfError> {
        match slab.bytes() == bytes as u64 {
            true => Ok(()),
            false => Err(refused("nc_put_vara", "the slab has another number of bytes")),
        }
    }

    /// What was written goes to the medium: with all ranks of the file.
    ///
    /// # Errors
    /// The library's.
    pub fn sync(&self) -> Result<(), NetCdfError> {
        // SAFETY: an open file.
        self.library.check("nc_sync", unsafe { (self.library.calls.sync)(self.id) })
    }

    /// Closes the file: with all ranks of it.
    ///
    /// # Errors
    /// The library's.
    pub fn close(self) -> Result<(), NetCdfError> {
        // SAFETY: an open file, which nobody uses afterwards.
        self.library.check("nc_close", unsafe { (self.library.calls.close)(self.id) })
    }
}
