//! An open file that transfers go to: by POSIX calls, by MPI-IO, or by a netCDF library.
//! Callers: `ior`, `replay::player`.

use crate::mpi::{How, MpiFile, World};
use crate::netcdf::Variable;
use forebay_workload::language::Slab;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The file.
#[derive(Debug)]
pub enum Target {
    /// By pread, pwrite, fsync, close.
    Posix(File),
    /// By MPI_File_read_at and its like; `collective`: by those that all ranks call together.
    Mpi {
        /// The file.
        file: MpiFile,
        /// Transfers are collective ones.
        collective: bool,
    },
    /// By nc_put_vara and nc_get_vara: slabs only.
    NetCdf(Variable),
}

/// Closes a file, and says what close says: on a network file system it may be where a write fails.
fn close(file: File) -> io::Result<()> {
    use std::os::fd::IntoRawFd;
    // SAFETY: the descriptor was owned by `file`, which has given it up.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn by_slabs_only() -> io::Error {
    io::Error::other("a variable of netCDF is moved by slabs")
}

impl Target {
    /// Opens by MPI-IO.
    ///
    /// # Errors
    /// The library's.
    pub fn open_mpi(
        world: &'static World,
        path: &Path,
        how: How,
        together: bool,
        collective: bool,
    ) -> io::Result<Target> {
        let file = world.open(path, how, together)?;
        Ok(Target::Mpi { file, collective: together && collective })
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match self {
            Target::Posix(file) => file.write_all_at(bytes, offset),
            Target::Mpi { file, collective } => {
                Ok(file.write_all_at(bytes, offset, *collective)?)
            }
            Target::NetCdf(_) => Err(by_slabs_only()),
        }
    }

    /// Writes a slab of a variable.
    ///
    /// # Errors
    /// Those of the library; it is no variable.
    pub fn write_slab(&self, slab: &Slab, bytes: &[u8]) -> io::Result<()> {
        match self {
            Target::NetCdf(variable) => Ok(variable.put(slab, bytes)?),
            _ => Err(io::Error::other("the file has no variable")),
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// Those of the library; it is no variable.
    pub fn read_slab(&self, slab: &Slab, bytes: &mut [u8]) -> io::Result<()> {
        match self {
            Target::NetCdf(variable) => Ok(variable.get(slab, bytes)?),
            _ => Err(io::Error::other("the file has no variable")),
        }
    }

    /// Reads all of it.
    ///
    /// # Errors
    /// Those of the calls; the file ends before.
    pub fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Target::Posix(file) => file.read_exact_at(bytes, offset),
            Target::Mpi { file, collective } => {
                Ok(file.read_exact_at(bytes, offset, *collective)?)
            }
            Target::NetCdf(_) => Err(by_slabs_only()),
        }
    }

    /// Reads what there is, at most all of it; the bytes that it got.
    ///
    /// # Errors
    /// Those of the calls; it is no file of this process alone.
    pub fn read_at_most(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        match self {
            Target::Posix(file) => file.read_at(bytes, offset),
            Target::Mpi { .. } | Target::NetCdf(_) => {
                self.read_exact_at(bytes, offset).map(|()| bytes.len())
            }
        }
    }

    /// What was written is on the medium. A file that all ranks have opened together is synced by all of them.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn sync(&self, data_only: bool) -> io::Result<()> {
        match self {
            Target::Posix(file) if data_only => file.sync_data(),
            Target::Posix(file) => file.sync_all(),
            Target::Mpi { file, .. } => Ok(file.sync()?),
            Target::NetCdf(variable) => Ok(variable.sync()?),
        }
    }

    /// Sets the size.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn set_len(&self, bytes: u64) -> io::Result<()> {
        match self {
            Target::Posix(file) => file.set_len(bytes),
            Target::Mpi { file, .. } => Ok(file.set_len(bytes)?),
            Target::NetCdf(_) => Err(io::Error::other("the size of a variable of netCDF is fixed")),
        }
    }

    /// Bytes of the file.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn len(&self, path: &Path) -> io::Result<u64> {
        match self {
            Target::Posix(file) => Ok(file.metadata()?.len()),
            Target::Mpi { .. } | Target::NetCdf(_) => Ok(std::fs::metadata(path)?.len()),
        }
    }

    /// Closes it, and says if that failed.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn close(self) -> io::Result<()> {
        match self {
            Target::Posix(file) => close(file),
            Target::Mpi { file, .. } => Ok(file.close()?),
            Target::NetCdf(variable) => Ok(variable.close()?),
        }
    }
}
