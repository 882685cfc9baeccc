//! MPI-IO of all that Debian has of it (Open MPI's two implementations, and MPICH's): transfers of 16 KiB to 10 MiB, in order and at
//! random, into one file and into a file a rank, independent and collective, on each layout of a shared buffer with two mounts, and on
//! a scratch buffer of one machine with and without the preload library. Each byte is checked by another rank, by MPI-IO and by pread.
//!
//! Libraries write back what lies between the pieces of a call as they read it before, also where another node has written and not
//! published: nothing of that is lost, with the settings that libraries and files in logs have by default.
//!
//! And what hints do: who writes, and in what pieces. The programs are `tests/programs/mpi_matrix.c` and `mpi_hints.c`.
#![allow(clippy::unwrap_used)]

use super::preload::Report;
use super::shared_mpi::{Program, TRANSFER, checked, open_mpi};
use super::shared_mpi_logs::{LOG, STRICT, STRIPED, Site};
use forebay_tests::buffer::{Buffer, Kind, binary};
use forebay_tests::sys;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An implementation of MPI-IO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mpi {
    /// Open MPI's own.
    Ompio,
    /// The one that Open MPI has from MPICH.
    Romio,
    /// MPICH with its own.
    Mpich,
}

const ALL: [Mpi; 3] = [Mpi::Ompio, Mpi::Romio, Mpi::Mpich];

impl Mpi {
    fn compiler(self) -> &'static str {
        match self {
            Mpi::Ompio | Mpi::Romio => "mpicc.openmpi",
            Mpi::Mpich => "mpicc.mpich",
        }
    }

    /// Ranks of a run, two for each of two mounts. Those of MPICH spin while they wait, so they are no more than processors; OMPIO
    /// brings no data together for less than three.
    fn ranks(self) -> usize {
        match self {
            Mpi::Ompio | Mpi::Romio => 4,
            Mpi::Mpich => 2,
        }
    }

    /// The command to which only the program is missing; with the preload library if it is to report into a file.
    fn start(self, ranks: usize, report: Option<&Path>) -> Command {
        let launcher = match self {
            Mpi::Ompio | Mpi::Romio => "mpirun",
            Mpi::Mpich => "mpiexec.hydra",
        };
        let mut command = match report {
            Some(report) => {
                let mut command = Command::new(binary());
                command.args(["exec", "--report"]).arg(report).args(["--", launcher]);
                command
            }
            None => Command::new(launcher),
        };
        match self {
            Mpi::Ompio => open_mpi(command, ranks, "ompio"),
            Mpi::Romio => open_mpi(command, ranks, "romio321"),
            Mpi::Mpich => {
                command.args(["-n", &ranks.to_string()]);
                command
            }
        }
    }
}

/// Sizes of transfers, and how much each rank moves with each.
struct Matrix {
    sizes: &'static [u64],
    bytes: u64,
    most: u64,
}

/// Of `make test`: one size that is no more than a stripe, and one of many.
const SMALL: Matrix = Matrix { sizes: &[16 << 10, 1 << 20], bytes: 1 << 20, most: 4 };
/// Of `make test-full`.
const WHOLE: Matrix =
    Matrix { sizes: &[16 << 10, 100 << 10, 1 << 20, 10 << 20], bytes: 20 << 20, most: 16 };

impl Matrix {
    fn args(&self) -> [String; 3] {
        let sizes: Vec<String> = self.sizes.iter().map(u64::to_string).collect();
        [self.bytes.to_string(), self.most.to_string(), sizes.join(",")]
    }

    /// Bytes that so many ranks find right: of one file and of own ones, in order and at random, by independent and by collective
    /// calls, each by MPI-IO and by pread.
    fn wanted(&self, ranks: usize) -> u64 {
        let of_size = |size: &u64| size * (self.bytes / size).clamp(2, self.most);
        2 * 8 * ranks as u64 * self.sizes.iter().map(of_size).sum::<u64>()
    }

    /// Runs it in directories that are one, on several mounts.
    fn run(&self, mpi: Mpi, program: &Program, mut command: Command, mounts: &[PathBuf], of: &str) {
        if of == LOG.0 {
            command.env("RANKS_SYNC", "1");
        }
        let found = checked(&program.said(command, &self.args(), mounts));
        assert_eq!(found, self.wanted(mpi.ranks()), "{mpi:?} {of}");
    }
}

fn on_a_shared_buffer(matrix: &Matrix, implementations: &[Mpi], dirs: &[&str]) {
    // Files of a case lie beside what logs of the last one have not given back yet.
    let site = Site::of(2 << 30);
    for mpi in implementations {
        let program = Program::compile(mpi.compiler(), "mpi_matrix.c", &[]);
        for dir in dirs {
            let command = mpi.start(mpi.ranks(), None);
            matrix.run(*mpi, &program, command, &site.roots(dir), dir);
        }
    }
}

/// In one of these cases (16 KiB, one file, at random, collective) ROMIO has rank 0 write what both ranks give it, and back what lies in
/// between, where rank 1 wrote by itself in the call before: of files in logs it must have read that.
#[test]
fn mpich_on_striped_files_and_on_files_in_logs() {
    on_a_shared_buffer(&SMALL, &[Mpi::Mpich], &[STRIPED.0, LOG.0, STRICT.0]);
}

#[test]
fn the_matrix_of_sizes_on_striped_files() {
    on_a_shared_buffer(&WHOLE, &ALL, &[STRIPED.0]);
}

#[test]
fn the_matrix_of_sizes_on_files_in_logs() {
    on_a_shared_buffer(&WHOLE, &ALL, &[LOG.0]);
}

/// On a buffer of one machine, through the mount or with the library, which opens files as they lie on flash and must have been asked.
fn on_a_scratch_buffer(matrix: &Matrix, runs: &[(Mpi, bool)]) {
    let buffer = Buffer::mount(Kind::Tmpfs, 1 << 30);
    for (mpi, preload) in runs {
        let program = Program::compile(mpi.compiler(), "mpi_matrix.c", &[]);
        let report = tempfile::NamedTempFile::new().unwrap();
        let command = mpi.start(mpi.ranks(), preload.then(|| report.path()));
        matrix.run(*mpi, &program, command, &[buffer.root()], "scratch");
        if *preload {
            let report = Report::read(report.path());
            assert!(report.answered("open") > 8, "{mpi:?}: {report:?}");
        }
    }
}

#[test]
fn mpi_io_beside_the_mount_of_a_scratch_buffer() {
    on_a_scratch_buffer(&SMALL, &[(Mpi::Ompio, true), (Mpi::Mpich, true)]);
}

#[test]
fn the_matrix_of_sizes_on_a_scratch_buffer_through_the_mount_and_beside_it() {
    let runs: Vec<(Mpi, bool)> = ALL.iter().flat_map(|mpi| [(*mpi, false), (*mpi, true)]).collect();
    on_a_scratch_buffer(&WHOLE, &runs);
}

/// Parallel HDF5 there, by independent and collective calls, with metadata of the file by several ranks.
#[test]
fn parallel_hdf5_beside_the_mount_of_a_scratch_buffer() {
    let (rows, rounds) = (10, 3);
    let program = Program::compile("h5pcc.openmpi", "mpi_hdf5.c", &[]);
    let buffer = Buffer::mount(Kind::Tmpfs, 512 << 20);
    for mpi in [Mpi::Ompio, Mpi::Romio] {
        let report = tempfile::NamedTempFile::new().unwrap();
        let command = mpi.start(mpi.ranks(), Some(report.path()));
        let args = [rows.to_string(), rounds.to_string()];
        let found = checked(&program.said(command, &args, &[buffer.root()]));
        // Two datasets.
        assert_eq!(found, 2 * mpi.ranks() as u64 * rows * rounds * TRANSFER, "{mpi:?}");
        let report = Report::read(report.path());
        assert!(report.answered("open") > 0, "{mpi:?}: {report:?}");
        let file = buffer.root().join("parallel.h5");
        forebay_tests::procs::run(Command::new("h5stat").arg("-h").arg(&file));
        std::fs::remove_file(file).unwrap();
    }
}

/// Pieces of a rank, and bytes of a piece: no multiple of a page.
const PIECES: u64 = 8;
const PIECE: u64 = 47_008;
/// Ranks, of which hints say how many write.
const RANKS: usize = 4;
const ALL_BYTES: u64 = RANKS as u64 * PIECES * PIECE;
/// What libraries may write meanwhile for other reasons.
const NOISE: u64 = 4096;

/// What each rank that wrote did, by its bytes: bytes and calls.
fn hinted(site: &Site, mpi: Mpi, program: &Program, hints: &str) -> Vec<(u64, u64)> {
    let args = [hints.to_string(), PIECES.to_string(), PIECE.to_string()];
    let said = program.said(mpi.start(RANKS, None), &args, &site.roots(STRIPED.0));
    assert_eq!(checked(&said), ALL_BYTES, "{mpi:?} {hints}");
    let of_line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["rank", _, "wrote", bytes, "bytes", "by", calls, "calls"] => {
                Some((bytes.parse::<u64>().unwrap(), calls.parse::<u64>().unwrap()))
            }
            _ => None,
        }
    };
    let mut ranks: Vec<(u64, u64)> = said.lines().filter_map(of_line).collect();
    assert_eq!(ranks.len(), RANKS, "{said}");
    ranks.retain(|(bytes, _)| *bytes >= NOISE);
    ranks.sort_unstable();
    let all: u64 = ranks.iter().map(|(bytes, _)| bytes).sum();
    assert!(is_about(all, ALL_BYTES), "{mpi:?} {hints}: {ranks:?}");
    ranks
}

fn is_about(bytes: u64, wanted: u64) -> bool {
    (wanted..wanted + NOISE).contains(&bytes)
}

fn calls(ranks: &[(u64, u64)]) -> u64 {
    ranks.iter().map(|(_, calls)| calls).sum()
}

/// docs/how-to/mpi-io.md has what is held here.
#[test]
fn hints_of_mpi_io_are_followed_or_change_nothing() {
    let site = Site::of(512 << 20);
    let file = |at: usize| site.served.root(at).join(STRIPED.0).join("hints");
    for mpi in ALL {
        let program = Program::compile(mpi.compiler(), "mpi_hints.c", &[]);
        let run = |hints: &str| {
            let ranks = hinted(&site, mpi, &program, hints);
            // The layout is the directory's, whatever a hint says.
            for (name, wanted) in [("stripe_count", "2"), ("stripe_size_bytes", "65536")] {
                let name = format!("user.forebay.{name}");
                let value = sys::getxattr(sys::bytes(&file(1)), &name).unwrap();
                assert_eq!(String::from_utf8(value).unwrap(), wanted, "{mpi:?} {hints}");
            }
            std::fs::remove_file(file(0)).unwrap();
            ranks
        };
        // ROMIO takes one rank of each node if it is not told another list of them.
        let list = if mpi == Mpi::Ompio { "" } else { "cb_config_list=*:4," };
        assert_eq!(run(&format!("{list}cb_nodes=1")).len(), 1, "{mpi:?}");
        let two = run(&format!("{list}cb_nodes=2"));
        assert_eq!(two.len(), 2, "{mpi:?}: {two:?}");
        if mpi != Mpi::Ompio {
            assert_eq!(run("cb_nodes=4").len(), 1, "{mpi:?}: ranks of one node");
        }
        let small = run(&format!("{list}cb_nodes=2,cb_buffer_size=65536"));
        assert!(calls(&small) >= ALL_BYTES / 65_536, "{mpi:?}: {small:?}");
        assert!(calls(&two) < calls(&small), "{mpi:?}: {two:?} {small:?}");
        let striped = run(&format!("{list}cb_nodes=2,striping_factor=1,striping_unit=65536"));
        // Two parts of the file: for ROMIO they meet at the multiple of the unit that is nearest to its middle.
        let middle = match mpi {
            Mpi::Ompio => two[0].0,
            Mpi::Romio | Mpi::Mpich => (ALL_BYTES / 2 + 32_768) / 65_536 * 65_536,
        };
        let first = middle.min(ALL_BYTES - middle);
        assert!(striped[0].0.abs_diff(first) < NOISE, "{mpi:?}: {striped:?} {first}");
    }
}
