//! `forebay trace export`: a trace in the formats of other programs.
//!
//! Invariants: the trace is only read; an output that exists is never replaced; a file appears whole, under
//! its name, or not at all. Calls on files that a report leaves out are left out here too, and counted. What a format
//! cannot hold is said in [`Exported::notes`].
//! Called by `crates/cli`.

mod chrome;
mod darshan;
mod darshan_record;
mod fio;
mod ftio;
mod ior_csv;
mod order;
mod parquet_file;
mod workload;

use forebay_trace_report::load::{Names, Timed, Trace};
use forebay_trace_report::{Options, ReportError};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// What a trace is written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Chrome's trace events, for Perfetto and chrome://tracing: one JSON file.
    Chrome,
    /// IOR's file for each rank with begin, duration and rate of each transfer: a directory.
    IorCsv,
    /// Logs that fio replays, one for each thread, and the job file: a directory.
    Fio,
    /// Bandwidth over time, for FTIO: one JSON file.
    Ftio,
    /// A log of Darshan with the counters of POSIX and stdio and the transfers (DXT): one file.
    Darshan,
    /// A table with a row for each call: one Parquet file.
    Parquet,
    /// A workload file with its operations, to be replayed and predicted: a directory.
    Workload,
}

impl Format {
    /// True if it is several files in a directory.
    pub fn is_directory(self) -> bool {
        matches!(self, Format::IorCsv | Format::Fio | Format::Workload)
    }

    /// End of the name of its output; nothing for directories.
    pub fn extension(self) -> &'static str {
        match self {
            Format::Chrome | Format::Ftio => "json",
            Format::Darshan => "darshan",
            Format::Parquet => "parquet",
            Format::IorCsv | Format::Fio | Format::Workload => "",
        }
    }
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] ReportError),
    /// The output exists.
    #[error("{path} exists already: give another name", path = .0.display())]
    Exists(PathBuf),
    /// The output cannot be written.
    #[error("cannot write {path}: {error}", path = path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The trace has nothing that this format holds.
    #[error("{0}")]
    Nothing(String),
}

/// What was written.
#[derive(Debug, Clone, Default)]
pub struct Exported {
    /// Number of files.
    pub files: u64,
    /// Calls that are in them.
    pub calls: u64,
    /// Calls of the trace that are not: on files of the system, pipes and devices.
    pub left_out: u64,
    /// What the format cannot hold, in words.
    pub notes: Vec<String>,
    /// What is missing because the trace could not be read there.
    pub problems: Vec<String>,
}

/// Writes traces in another format to `to`: a file, or a directory that is made.
///
/// # Errors
/// The trace cannot be read at all, `to` exists, or it cannot be written.
pub fn export(
    places: &[PathBuf],
    options: Options,
    format: Format,
    to: &Path,
) -> Result<Exported, ExportError> {
    let trace = Trace::open(places)?;
    if to.symlink_metadata().is_ok() {
        return Err(ExportError::Exists(to.to_path_buf()));
    }
    let walk = Walk { trace: &trace, options };
    let mut exported = match format {
        Format::Chrome => one_file(to, |out| chrome::write(&walk, to, out))?,
        Format::Ftio => one_file(to, |out| ftio::write(&walk, out))?,
        Format::Parquet => one_file(to, |out| parquet_file::write(&walk, out))?,
        Format::Darshan => one_file(to, |out| darshan::write(&walk, out))?,
        Format::IorCsv => directory(to, |dir| ior_csv::write(&walk, dir))?,
        Format::Fio => directory(to, |dir| fio::write(&walk, dir))?,
        Format::Workload => directory(to, |dir| workload::write(&walk, dir))?,
    };
    let mut problems = trace.problems.clone();
    problems.append(&mut exported.problems);
    exported.problems = problems;
    let lost = trace.lost();
    if lost > 0 {
        exported.problems.push(format!("{lost} calls were not recorded, so they are missing"));
    }
    Ok(exported)
}

fn cannot(path: &Path) -> impl FnOnce(std::io::Error) -> ExportError + '_ {
    |error| ExportError::Write { path: path.to_path_buf(), error }
}

/// A file that has its name when it is whole.
fn one_file(
    to: &Path,
    write: impl FnOnce(&mut std::fs::File) -> std::io::Result<Exported>,
) -> Result<Exported, ExportError> {
    let parent = match to.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut made = tempfile::Builder::new()
        .prefix(".forebay-export-")
        .permissions(permissions())
        .tempfile_in(parent)
        .map_err(cannot(to))?;
    let mut exported = write(made.as_file_mut()).map_err(cannot(to))?;
    made.persist_noclobber(to).map_err(|error| cannot(to)(error.error))?;
    exported.files = 1;
    Ok(exported)
}

/// As a file that a program makes: what the umask leaves of it.
fn permissions() -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o666)
}

/// A directory that has its name when all is in it.
fn directory(
    to: &Path,
    write: impl FnOnce(&Path) -> Result<Exported, ExportError>,
) -> Result<Exported, ExportError> {
    std::fs::create_dir(to).map_err(cannot(to))?;
    let written = write(to);
    if written.is_err() {
        // It was made above, so what is in it is ours.
        let _ = std::fs::remove_dir_all(to);
    }
    written
}

/// A buffered file in a directory.
fn create(path: &Path) -> Result<BufWriter<std::fs::File>, ExportError> {
    Ok(BufWriter::new(std::fs::File::create(path).map_err(cannot(path))?))
}

/// A process of the trace.
pub(crate) struct Who<'a> {
    /// Its place in the trace, from 0.
    pub number: usize,
    /// The head of its file.
    pub header: &'a forebay_trace_format::Header,
    /// The rank, or the number of the process where there are no ranks.
    pub task: Option<u64>,
    /// Names of its files.
    pub names: &'a Names,
}

/// All calls of a trace that count.
pub(crate) struct Walk<'a> {
    pub trace: &'a Trace,
    pub options: Options,
}

impl Walk<'_> {
    /// Hands out each call, process after process; in the order of time within a thread. The first error ends it.
    pub fn each<E>(
        &self,
        exported: &mut Exported,
        mut each: impl FnMut(&Who<'_>, &Timed) -> Result<(), E>,
    ) -> Result<(), E> {
        self.each_process(exported, |who, walk, exported| {
            walk.calls(who, exported, |timed| each(who, timed))
        })
    }

    /// Hands out each process.
    pub fn each_process<E>(
        &self,
        exported: &mut Exported,
        mut each: impl FnMut(&Who<'_>, &Walk<'_>, &mut Exported) -> Result<(), E>,
    ) -> Result<(), E> {
        for (number, file) in self.trace.files.iter().enumerate() {
            let names = file.names();
            let task = self.trace.task(number);
            let who = Who { number, header: &file.header, task, names: &names };
            each(&who, self, exported)?;
        }
        Ok(())
    }

    /// Hands out the calls of a process.
    pub fn calls<E>(
        &self,
        who: &Who<'_>,
        exported: &mut Exported,
        mut each: impl FnMut(&Timed) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut ended = Ok(());
        let (mut calls, mut left_out) = (0, 0);
        if let Some(file) = self.trace.files.get(who.number) {
            file.each(&mut exported.problems, |timed| {
                if ended.is_err() {
                    return;
                }
                if who.names.counts(timed.event.file, self.options) {
                    calls += 1;
                    ended = each(&timed);
                } else {
                    left_out += 1;
                }
            });
        }
        exported.calls += calls;
        exported.left_out += left_out;
        ended
    }
}

/// Writes buffered to a file.
pub(crate) fn buffered(
    out: &mut std::fs::File,
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut buffer = BufWriter::with_capacity(1 << 20, out);
    write(&mut buffer)?;
    buffer.flush()
}
