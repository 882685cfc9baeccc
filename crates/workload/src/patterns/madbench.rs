//! MADbench2: the I/O of a map-making code's three phases: S writes matrices, W reads and writes them, C reads them.
//!
//! Source: sizes, offsets and order of MADbench2 (2006) in its IO mode. With N processes, an operation has NPIX^2 * 8 / N bytes
//! (a gang's: NGANG times as many); a slot is that, rounded up to FBLOCKSIZE; matrix b lies at `b * slot`, in a shared file at
//! `b * slot + rank * NBIN * slot`. S: NBIN writes. W: NBIN reads and NBIN writes of the same slots, a read one matrix ahead of
//! the write. C: NBIN reads. RMOD and WMOD: one of so many neighbours is at work at a time, with barriers around each matrix.
//! Busy work before each matrix is (NPIX^2)^BWEXP / N steps, here of processor time at a given rate.
//! Caller: `forebay bench madbench`.

use super::{Refused, close, file, open, phase, refuse, workload};
use crate::language::{Action, Layout, Mode, Move, Step, Workload};

/// The parameters, by their original names.
#[derive(Clone, Debug, PartialEq)]
pub struct Madbench {
    /// Processes: a square.
    pub processes: u32,
    /// NPIX: pixels, the size of a matrix.
    pub pixels: u64,
    /// NBIN: matrices.
    pub bins: u64,
    /// NGANG: gangs that work on matrices of their own in W and C.
    pub gangs: u32,
    /// FBLOCKSIZE: bytes to whose multiples slots are rounded up.
    pub block_bytes: u64,
    /// RMOD.
    pub read_turns: u32,
    /// WMOD.
    pub write_turns: u32,
    /// FILETYPE UNIQUE: a file for each process.
    pub unique: bool,
    /// IOMODE ASYNC: transfers go on while the process computes.
    pub asynchronous: bool,
    /// BWEXP: exponent of the busy work; None: none.
    pub busy_exponent: Option<f64>,
    /// Steps of busy work a second.
    pub busy_rate: f64,
    /// Seed of the content.
    pub seed: u32,
}

/// Most nanoseconds of busy work before a matrix: an hour.
const MAX_BUSY_NS: f64 = 3600e9;

fn is_square(number: u32) -> bool {
    let root = f64::from(number).sqrt().round() as u32;
    root.checked_mul(root) == Some(number)
}

impl Madbench {
    /// Bytes of an operation of one process on a matrix that `processes` work on.
    fn operation_bytes(&self, processes: u32) -> Option<u64> {
        Some(self.pixels.checked_mul(self.pixels)?.checked_mul(8)? / u64::from(processes))
    }

    fn check(&self) -> Result<(), Refused> {
        let (n, gangs) = (self.processes, self.gangs);
        if n == 0 || !is_square(n) {
            return refuse(format!("{n} processes: expected a square, such as 1, 4, 16"));
        }
        if gangs == 0 || !is_square(gangs) || n % gangs != 0 || self.bins % u64::from(gangs) != 0 {
            return refuse(format!(
                "NGANG {gangs}: expected a square that divides the {n} processes and NBIN {}",
                self.bins
            ));
        }
        if self.bins == 0 || self.pixels == 0 {
            return refuse("NPIX and NBIN: expected at least 1");
        }
        if self.block_bytes == 0 || self.block_bytes % 8 != 0 {
            return refuse(format!("FBLOCKSIZE {}: expected a multiple of 8", self.block_bytes));
        }
        let gang = n / gangs;
        for (name, turns) in [("RMOD", self.read_turns), ("WMOD", self.write_turns)] {
            if turns == 0 || gang % turns != 0 {
                return refuse(format!(
                    "{name} {turns}: expected a divisor of the {gang} processes of a gang"
                ));
            }
        }
        if !(self.busy_rate > 0.0 && self.busy_rate.is_finite()) {
            return refuse("the rate of busy work: expected more than 0");
        }
        Ok(())
    }

    /// As a workload: phases `S`, `W` and `C`.
    ///
    /// # Errors
    /// Parameters that do not fit together.
    pub fn workload(&self) -> Result<Workload, Refused> {
        self.check()?;
        let too_large = || Refused("NPIX: the file would be too large".into());
        let gang = self.processes / self.gangs;
        let own = self.operation_bytes(self.processes).filter(|n| *n > 0).ok_or_else(too_large)?;
        let of_gang = self.operation_bytes(gang).ok_or_else(too_large)?;
        let gang_bins = self.bins / u64::from(self.gangs);
        let reads = |bin| self.transfer(false, bin, self.bins, own);
        let gang_reads = |bin| self.transfer(false, bin, gang_bins, of_gang);
        let writes = |bin| self.transfer(true, bin, self.bins, own);
        let gang_writes = |bin| self.transfer(true, bin, gang_bins, of_gang);
        let path = if self.unique { "files/data_{process}" } else { "files/data" };
        let mut s = vec![open(0, Mode::Truncate)];
        for bin in 0..self.bins {
            self.busy(&mut s)?;
            self.in_turns(&mut s, writes(bin)?, self.write_turns);
        }
        self.wait(&mut s);
        let mut w = Vec::new();
        self.in_turns(&mut w, reads(0)?, self.read_turns);
        for bin in 0..self.bins {
            if bin + 1 < self.bins {
                self.in_turns(&mut w, reads(bin + 1)?, self.read_turns);
            }
            // A gang has a matrix of its own when all processes have read one for each gang.
            if (bin + 1) % u64::from(self.gangs) == 0 {
                self.busy(&mut w)?;
                let written = bin / u64::from(self.gangs);
                self.in_turns(&mut w, gang_writes(written)?, self.write_turns);
            }
        }
        self.wait(&mut w);
        let mut c = Vec::new();
        for bin in 0..gang_bins {
            self.in_turns(&mut c, gang_reads(bin)?, self.read_turns);
            self.busy(&mut c)?;
        }
        self.wait(&mut c);
        c.push(close(0));
        let phases = vec![phase("S", s), phase("W", w), phase("C", c)];
        workload("madbench", self.seed, self.processes, vec![file("data", path)], phases)
    }

    /// One process's operation on matrix `bin`.
    fn transfer(&self, write: bool, bin: u64, bins: u64, bytes: u64) -> Result<Move, Refused> {
        let slot = bytes.next_multiple_of(self.block_bytes);
        let all = bins.checked_mul(slot).filter(|n| *n <= i64::MAX as u64);
        let Some(all) = all else { return refuse("NPIX: the file would be too large") };
        let layout =
            Layout::Blocks { offset: bin * slot, block_bytes: all, segments: 1, stride_bytes: all };
        let part = Move::new(write, 0, all, bytes);
        Ok(Move { layout, asynchronous: self.asynchronous, opens: false, ..part })
    }

    fn in_turns(&self, steps: &mut Vec<Step>, part: Move, turns: u32) {
        // With one at a time of one there is nothing to wait for.
        let turns = if turns > 1 { turns } else { 0 };
        steps.push(Action::Barrier.into());
        steps.push(Step { turns, ..Action::Move(Box::new(part)).into() });
        steps.push(Action::Barrier.into());
    }

    fn busy(&self, steps: &mut Vec<Step>) -> Result<(), Refused> {
        let Some(exponent) = self.busy_exponent else { return Ok(()) };
        let elements = (self.pixels as f64).powi(2);
        let ns = elements.powf(exponent) / f64::from(self.processes) / self.busy_rate * 1e9;
        if !(0.0..=MAX_BUSY_NS).contains(&ns) {
            return refuse(format!(
                "BWEXP {exponent}: {:.0} s of busy work before each matrix; expected at most an hour",
                ns / 1e9
            ));
        }
        steps.push(Action::Think { ns: ns as u64, busy: true }.into());
        Ok(())
    }

    fn wait(&self, steps: &mut Vec<Step>) {
        if self.asynchronous {
            steps.push(Action::Wait.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::Op;

    fn bench() -> Madbench {
        Madbench {
            processes: 16,
            pixels: 12_500,
            bins: 8,
            gangs: 1,
            block_bytes: 1 << 20,
            read_turns: 1,
            write_turns: 4,
            unique: false,
            asynchronous: false,
            busy_exponent: None,
            busy_rate: 1e9,
            seed: 0,
        }
    }

    /// A18: counts, sizes and offsets of the example NPIX 12500, NBIN 8, 16 processes, FBLOCKSIZE 1 MiB.
    #[test]
    fn operations_are_those_of_the_formula() {
        let workload = bench().workload().expect("good");
        let mut counts = [[0_u32; 2]; 3];
        let (mut phase, mut turns, mut last) = (0, 0, 0);
        for op in workload.walk(0, 5).expect("walked") {
            match op.expect("read") {
                Op::Phase { phase: number, .. } => phase = number as usize,
                Op::TurnBegin { turns: 4, position: 5 } => turns += 1,
                Op::Transfer(transfer) => {
                    counts[phase][usize::from(transfer.write)] += 1;
                    assert_eq!(transfer.bytes, 78_125_000);
                    let slot = 75 << 20;
                    assert_eq!(transfer.offset % slot, 0);
                    assert_eq!(transfer.offset / slot / 8, 5, "the process's own part");
                    last = transfer.offset / slot % 8;
                }
                _ => {}
            }
        }
        assert_eq!(counts, [[0, 8], [8, 8], [8, 0]]);
        assert_eq!((turns, last), (16, 7));
        // W reads one matrix ahead of the write.
        let order: Vec<(bool, u64)> = workload
            .walk(0, 0)
            .expect("walked")
            .filter_map(|op| match op.expect("read") {
                Op::Transfer(transfer) => Some((transfer.write, transfer.offset / (75 << 20))),
                _ => None,
            })
            .skip(8)
            .take(4)
            .collect();
        assert_eq!(order, [(false, 0), (false, 1), (true, 0), (false, 2)]);
    }

    #[test]
    fn parameters_that_do_not_fit_are_refused() {
        let refused = |bench: Madbench| bench.workload().expect_err("refused").to_string();
        assert!(refused(Madbench { processes: 8, ..bench() }).contains("a square"));
        assert!(refused(Madbench { gangs: 3, ..bench() }).contains("NGANG 3"));
        assert!(refused(Madbench { read_turns: 3, ..bench() }).contains("RMOD 3"));
        assert!(refused(Madbench { block_bytes: 12, ..bench() }).contains("multiple of 8"));
        assert!(refused(Madbench { pixels: u64::MAX, ..bench() }).contains("too large"));
        assert!(refused(Madbench { busy_exponent: Some(3.0), ..bench() }).contains("an hour"));
        let gangs = Madbench { gangs: 4, ..bench() }.workload().expect("good");
        let totals = gangs.totals(0, 1);
        assert_eq!(totals.written_bytes, totals.read_bytes);
    }
}
