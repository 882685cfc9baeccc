//! MPI programs that write one shared file which no server has alone: striped, and in logs. Each rank works on its mount and checks
//! what a rank on another one wrote; then the file is published for good and staged out, and every copy has the same bytes, whatever
//! the layout was.
//!
//! Readers of files in logs see what was written after MPI_File_sync or a close, as the standard of MPI says; those of
//! strict ones, and of striped files, after the write. Programs and runs are those of `shared_mpi`.
#![allow(clippy::unwrap_used)]

use super::shared_mpi::{IMPLEMENTATIONS, Program, TRANSFER};
use forebay_tests::buffer::binary;
use forebay_tests::long;
use forebay_tests::served::{Options, Served, Store, Via};
use forebay_tests::sys;
use std::path::PathBuf;
use std::process::Command;

/// A directory of the buffer, and the attributes that give its files their layout.
pub(super) const STRIPED: (&str, &[(&str, &str)]) =
    ("striped", &[("stripe_count", "all"), ("stripe_size_bytes", "65536")]);
pub(super) const LOG: (&str, &[(&str, &str)]) = ("log", &[("layout", "log")]);
pub(super) const STRICT: (&str, &[(&str, &str)]) =
    ("strict", &[("layout", "log"), ("consistency", "strict")]);

const RANKS: usize = 4;

/// Two servers, a mount at one of them and one that reaches them by the network.
pub(super) struct Site {
    pub(super) served: Served,
    /// Programs ask mounts beside the kernel.
    preload: bool,
}

impl Site {
    fn new() -> Site {
        Site::of(512 << 20)
    }

    /// The same with a buffer of so many bytes.
    pub(super) fn of(capacity: u64) -> Site {
        let options = Options { capacity, ..Options::over(2, Store::Tmpfs) };
        let served = Served::with(options, &[Via::Local, Via::Tcp]);
        for (dir, attributes) in [STRIPED, LOG, STRICT] {
            sys::mkdir(served.path(0, dir), 0o755).unwrap();
            for (name, value) in attributes {
                let name = format!("user.forebay.{name}");
                sys::setxattr(served.path(0, dir), &name, value.as_bytes(), 0).unwrap();
            }
        }
        Site { served, preload: false }
    }

    pub(super) fn roots(&self, dir: &str) -> Vec<PathBuf> {
        (0..self.served.mount_count()).map(|at| self.served.root(at).join(dir)).collect()
    }

    /// Runs a program in a directory; the bytes that it found right.
    fn run(&self, program: &Program, dir: &str, implementation: &str, args: &[String]) -> u64 {
        let mut command = match self.preload {
            true => {
                let mut command = Command::new(binary());
                command.args(["exec", "--", "mpirun"]);
                command
            }
            false => Command::new("mpirun"),
        };
        if dir == LOG.0 {
            command.env("RANKS_SYNC", "1");
        }
        program.run_by(command, RANKS, implementation, args, &self.roots(dir))
    }

    /// Publishes a file for good and stages it out; its bytes, which are the same on each mount and on the PFS.
    fn bytes(&self, dir: &str, name: &str) -> Vec<u8> {
        let paths: Vec<PathBuf> = self.roots(dir).iter().map(|root| root.join(name)).collect();
        let publish = &mut self.served.forebay(&["publish", "--final"]);
        self.served.must(publish.arg(&paths[1]));
        let out = self.served.pfs(&format!("{dir}-{name}"));
        self.served.must(self.served.forebay(&["stage", "out"]).arg(&paths[0]).arg(&out));
        let staged = std::fs::read(&out).unwrap();
        for path in &paths {
            assert!(std::fs::read(path).unwrap() == staged, "{}", path.display());
            std::fs::remove_file(&out).ok();
        }
        std::fs::remove_file(&paths[0]).unwrap();
        staged
    }
}

/// The implementations that a pattern works with in a directory. OMPIO of Open MPI 4.1 takes no locks in atomic mode (seen by strace):
/// it relies on whole writes, which a striped file does not promise. ROMIO takes locks.
fn implementations(dir: &str, pattern: &str) -> &'static [&'static str] {
    match dir == STRIPED.0 && pattern == "atomic" {
        true => &["romio321"],
        false => &IMPLEMENTATIONS,
    }
}

fn files(site: &Site, layouts: &[(&str, &[(&str, &str)])], patterns: &[&str]) {
    let (transfers, rounds) = if long() { (200, 20) } else { (8, 2) };
    let program = Program::compile("mpicc.openmpi", "mpi_files.c", &[]);
    for pattern in patterns {
        let mut all: Vec<Vec<u8>> = Vec::new();
        for (dir, _) in layouts {
            for implementation in implementations(dir, pattern) {
                let args = [pattern.to_string(), transfers.to_string(), rounds.to_string()];
                let checked = site.run(&program, dir, implementation, &args);
                let wanted = 2 * RANKS as u64 * transfers * rounds * TRANSFER;
                assert_eq!(checked, wanted, "{pattern} {implementation} {dir}");
                all.push(site.bytes(dir, pattern));
                assert_eq!(all.last().unwrap().len() as u64, file_bytes(pattern, transfers));
            }
        }
        // Of atomic writes anybody's may be the last.
        if *pattern != "atomic" {
            assert!(all.windows(2).all(|two| two[0] == two[1]), "{pattern}");
        }
    }
}

fn file_bytes(pattern: &str, transfers: u64) -> u64 {
    let writers = if pattern == "atomic" { 1 } else { RANKS as u64 };
    writers * transfers * TRANSFER
}

const PATTERNS: [&str; 6] = ["segmented", "strided", "collective", "sieved", "ordered", "atomic"];

#[test]
fn mpi_io_on_a_striped_file() {
    files(&Site::new(), &[STRIPED], &PATTERNS);
}

#[test]
fn mpi_io_on_a_file_in_logs() {
    files(&Site::new(), &[LOG], &PATTERNS);
}

#[test]
fn mpi_io_on_a_strict_file_in_logs() {
    files(&Site::new(), &[STRICT], &PATTERNS);
}

#[test]
fn mpi_io_through_the_preload_library_on_each_layout() {
    let site = Site { preload: true, ..Site::new() };
    files(&site, &[STRIPED, LOG, STRICT], &["strided", "collective"]);
}

/// Both of HDF5's and netCDF's ways to write (independent and collective), metadata of the file by several ranks, and data over
/// fill values that another rank wrote.
fn library(program: &Program, name: &str, rounds: u64, wanted: impl Fn(u64) -> u64, tool: &str) {
    let rows = if long() { 100 } else { 10 };
    for preload in [false, true] {
        let site = Site { preload, ..Site::new() };
        for (dir, _) in [STRIPED, LOG, STRICT] {
            for implementation in &IMPLEMENTATIONS[..if preload { 1 } else { 2 }] {
                let args = [rows.to_string(), rounds.to_string()];
                let checked = site.run(program, dir, implementation, &args);
                assert_eq!(checked, wanted(rows), "{name} {implementation} {dir}");
                let shown = site.served.root(1).join(dir).join(name);
                forebay_tests::procs::run(Command::new(tool).arg("-h").arg(shown));
                let bytes = site.bytes(dir, name);
                assert!(bytes.len() as u64 > 2 * RANKS as u64 * rows * TRANSFER, "{name} {dir}");
            }
        }
    }
}

#[test]
fn parallel_hdf5_on_each_layout() {
    let rounds = if long() { 20 } else { 3 };
    let program = Program::compile("h5pcc.openmpi", "mpi_hdf5.c", &[]);
    let wanted = |rows| 2 * RANKS as u64 * rows * rounds * TRANSFER;
    library(&program, "parallel.h5", rounds, wanted, "h5stat");
}

#[test]
fn parallel_netcdf_on_each_layout() {
    let rounds = if long() { 20 } else { 3 };
    let ask = |args: &[&str]| {
        let said =
            forebay_tests::procs::run(Command::new("pkg-config").args(args).arg("netcdf-mpi"));
        said.split_whitespace().map(String::from).collect::<Vec<_>>()
    };
    let mut flags = ask(&["--cflags", "--libs"]);
    // Where Debian has its headers, which is not where its file says.
    flags.push(format!("-I{}/include", ask(&["--variable=prefix"])[0]));
    let program = Program::compile("mpicc.openmpi", "mpi_netcdf.c", &flags);
    // The variable that grows is read back from its first record on.
    let wanted = |rows| RANKS as u64 * rows * (rounds + rounds * (rounds + 1) / 2) * TRANSFER;
    library(&program, "parallel.nc", rounds, wanted, "ncdump");
}
