//! MPI programs on several mounts of one buffer: ranks stand for nodes, each works on its own
//! mount, and checks byte for byte what a rank on another mount wrote. N-N and N-1 as IOR does
//! them, collective calls, shared file pointers and atomic mode (under locks of the file system; OMPIO
//! takes none in atomic mode, and relies on whole writes), with both of Open MPI's implementations of MPI-IO, and parallel HDF5.
//!
//! The programs are in `tests/programs`, compiled here by `mpicc` and `h5pcc`.
#![allow(clippy::unwrap_used)]

use forebay_tests::procs;
use forebay_tests::served::{Served, Store, Via};
use forebay_tests::{every_point, long};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Bytes of a transfer, and of a row: as in the programs.
pub(super) const TRANSFER: u64 = 47_008;
/// How long one program may take.
const PROGRAM_LIMIT: Duration = Duration::from_secs(120);
/// Open MPI's implementations of MPI-IO.
pub(super) const IMPLEMENTATIONS: [&str; 2] = ["ompio", "romio321"];

/// A program of `tests/programs`, compiled into a directory of its own that goes with it.
pub(super) struct Program {
    dir: tempfile::TempDir,
}

impl Program {
    pub(super) fn compile(compiler: &str, name: &str, libraries: &[String]) -> Program {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name);
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(compiler);
        command.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(dir.path().join("program"));
        // The compiler of HDF5 leaves its object file where it is started.
        procs::run(command.arg(source).args(libraries).current_dir(dir.path()));
        Program { dir }
    }

    /// Runs it with `ranks` ranks; the bytes that it found right.
    fn run(&self, ranks: usize, implementation: &str, args: &[String], mounts: &[PathBuf]) -> u64 {
        self.run_by(Command::new("mpirun"), ranks, implementation, args, mounts)
    }

    /// The same by a command that ends with `mpirun`.
    pub(super) fn run_by(
        &self,
        command: Command,
        ranks: usize,
        implementation: &str,
        args: &[String],
        mounts: &[PathBuf],
    ) -> u64 {
        checked(&self.said(open_mpi(command, ranks, implementation), args, mounts))
    }

    /// What the program says when a launcher's command, to which only the program is missing, starts its ranks.
    pub(super) fn said(&self, mut command: Command, args: &[String], mounts: &[PathBuf]) -> String {
        command
            // What a launcher keeps while it runs goes with the program.
            .env("TMPDIR", self.dir.path())
            .arg(self.dir.path().join("program"))
            .args(args)
            .args(mounts);
        let (ok, said) = procs::try_run_for(&mut command, PROGRAM_LIMIT);
        assert!(ok, "{command:?}: {said}");
        said
    }
}

/// A command that ends with `mpirun`, with all that stands before the program.
pub(super) fn open_mpi(mut command: Command, ranks: usize, implementation: &str) -> Command {
    command
        // The tests are root, and use fewer processors than there are ranks.
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .args(["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"])
        // The shared file pointer in a file beside the data, under fcntl locks: memory, its
        // first choice here, is nothing that nodes share.
        .args(["--mca", "sharedfp", "lockedfile"])
        .args(["--mca", "io", implementation, "-n", &ranks.to_string()]);
    command
}

/// The bytes that a program's ranks found right.
pub(super) fn checked(said: &str) -> u64 {
    let line = said.lines().find_map(|line| line.strip_prefix("checked "));
    let count = line.and_then(|line| line.strip_suffix(" bytes"));
    count.unwrap_or_else(|| panic!("{said}")).parse().unwrap()
}

fn roots(served: &Served) -> Vec<PathBuf> {
    (0..served.mount_count()).map(|at| served.root(at)).collect()
}

/// The nodes of a job, as mounts: on the server's node by passthrough, there but served, on other
/// nodes, and both kinds at once. Of the latter is each way in, so those of one kind are left to `make test-full`.
fn setups() -> Vec<(Store, Vec<Via>)> {
    let mut setups = vec![
        (Store::Directory, vec![Via::Local, Via::Local]),
        (Store::Tmpfs, vec![Via::Local, Via::Tcp]),
    ];
    if every_point() || long() {
        setups.push((Store::Tmpfs, vec![Via::Local, Via::Local]));
        setups.push((Store::Tmpfs, vec![Via::Tcp, Via::Tcp]));
    }
    setups
}

/// Runs a pattern of `mpi_files` on every setup with both implementations.
fn files(pattern: &str) {
    let (transfers, rounds) = if long() { (200, 20) } else { (16, 4) };
    let program = Program::compile("mpicc.openmpi", "mpi_files.c", &[]);
    for (store, vias) in setups() {
        let served = Served::new(store, &vias);
        let ranks = 2 * vias.len();
        for implementation in IMPLEMENTATIONS {
            let args = [pattern.to_string(), transfers.to_string(), rounds.to_string()];
            let checked = program.run(ranks, implementation, &args, &roots(&served));
            // By MPI-IO and by read(2).
            let wanted = 2 * ranks as u64 * transfers * rounds * TRANSFER;
            assert_eq!(checked, wanted, "{pattern} {implementation} {vias:?}");
        }
    }
}

#[test]
fn mpi_io_with_a_file_a_rank() {
    files("own");
}

#[test]
fn mpi_io_with_a_part_of_one_file_a_rank() {
    files("segmented");
}

#[test]
fn mpi_io_with_ranks_in_turn_in_one_file() {
    files("strided");
}

#[test]
fn mpi_io_by_collective_calls() {
    files("collective");
}

#[test]
fn mpi_io_by_independent_calls_of_a_view() {
    files("sieved");
}

#[test]
fn mpi_io_by_a_shared_file_pointer() {
    files("ordered");
}

#[test]
fn mpi_io_in_atomic_mode() {
    files("atomic");
}

#[test]
fn parallel_hdf5() {
    let (rows, rounds) = if long() { (100, 20) } else { (10, 4) };
    let program = Program::compile("h5pcc.openmpi", "mpi_hdf5.c", &[]);
    for (store, vias) in setups() {
        let served = Served::new(store, &vias);
        let ranks = 2 * vias.len();
        for implementation in IMPLEMENTATIONS {
            let args = [rows.to_string(), rounds.to_string()];
            let checked = program.run(ranks, implementation, &args, &roots(&served));
            // Two datasets.
            let wanted = 2 * ranks as u64 * rows * rounds * TRANSFER;
            assert_eq!(checked, wanted, "{implementation} {vias:?}");
            let file = |at| std::fs::read(served.root(at).join("parallel.h5")).unwrap();
            assert!(file(0) == file(1), "the mounts show different files");
            let listed = procs::run(Command::new("h5ls").arg(served.root(1).join("parallel.h5")));
            let whole = format!("{{{}, {}}}", rows * ranks as u64, TRANSFER / 8);
            assert!(listed.contains(&whole), "{listed}");
        }
    }
}
