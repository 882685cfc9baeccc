//! The files that IOR writes with `savePerOpDataCSV`: begin (s), duration (s) and rate (bytes/s) of each transfer, one
//! file for each rank. Reads and writes have files of their own, as each phase of IOR has.
//!
//! Times count from the begin of the trace. A rank's transfers are in memory while its file is written: 24 bytes each.

use crate::{ExportError, Exported, Walk, cannot, create};
use forebay_trace_format::Class;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

/// Columns, as in IOR.
const HEAD: &str = "time,runtime,tp";

#[derive(Default)]
struct Rows(Vec<(f64, f64, u64)>);

/// Writes `read-0-RANK.csv` and `write-0-RANK.csv` for all ranks.
pub fn write(walk: &Walk<'_>, dir: &Path) -> Result<Exported, ExportError> {
    let mut exported = Exported::default();
    // Of one rank there can be several processes; they follow each other in any order.
    let mut by_task: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for number in 0..walk.trace.files.len() {
        match walk.trace.task(number) {
            Some(task) => by_task.entry(task).or_default().push(number),
            None => exported.left_out += 1,
        }
    }
    if exported.left_out > 0 {
        let text = format!("{} processes without a rank are left out", exported.left_out);
        exported.notes.push(text);
        exported.left_out = 0;
    }
    let mut calls = 0;
    for (task, numbers) in by_task {
        let (mut reads, mut writes) = (Rows::default(), Rows::default());
        for number in numbers {
            let Some(file) = walk.trace.files.get(number) else { continue };
            let names = file.names();
            let header = &file.header;
            let who = crate::Who { number, header, task: Some(task), names: &names };
            walk.calls(&who, &mut exported, |timed| -> Result<(), ExportError> {
                let row = (timed.start_s, timed.duration_s, timed.event.bytes());
                match timed.event.op.class() {
                    Class::Read if timed.event.result > 0 => reads.0.push(row),
                    Class::Write if timed.event.result > 0 => writes.0.push(row),
                    _ => {}
                }
                Ok(())
            })?;
        }
        for (name, mut rows) in [("read", reads), ("write", writes)] {
            if rows.0.is_empty() {
                continue;
            }
            rows.0.sort_by(|a, b| a.0.total_cmp(&b.0));
            calls += rows.0.len() as u64;
            let path = dir.join(format!("{name}-0-{task:05}.csv"));
            let mut out = create(&path)?;
            rows.write(&mut out).and_then(|()| out.flush()).map_err(cannot(&path))?;
            exported.files += 1;
        }
    }
    let other = exported.calls - calls;
    if other > 0 {
        exported
            .notes
            .push(format!("{other} calls that move no bytes have no place in this format"));
    }
    exported.calls = calls;
    if calls == 0 {
        return Err(ExportError::Nothing("the trace has no transfers".into()));
    }
    Ok(exported)
}

impl Rows {
    fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        writeln!(out, "{HEAD}")?;
        for (start, runtime, bytes) in &self.0 {
            let rate = *bytes as f64 / runtime.max(1e-9);
            writeln!(
                out,
                "{},{},{}",
                exponent(*start, 9),
                exponent(*runtime, 8),
                exponent(rate, 6)
            )?;
        }
        Ok(())
    }
}

/// A number as C's `%.Ne` writes it: the exponent has a sign and two digits.
fn exponent(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$e}");
    let Some((mantissa, power)) = text.split_once('e') else { return text };
    let power: i32 = power.parse().unwrap_or(0);
    let sign = if power < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", power.abs())
}

#[cfg(test)]
mod tests {
    use super::exponent;

    #[test]
    fn numbers_are_as_in_c() {
        for (value, text) in
            [(0.0, "0.00e+00"), (1234.5, "1.23e+03"), (1.25e-9, "1.25e-09"), (3e123, "3.00e+123")]
        {
            assert_eq!(exponent(value, 2), text);
        }
    }
}
