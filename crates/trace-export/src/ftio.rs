//! Bandwidth over time as FTIO reads it (the JSON of TMIO): for reads and for writes, the sum over all tasks in equal
//! steps of time, at most 4,096.

use crate::{Exported, Walk, buffered};
use forebay_trace_report::timeline::Timeline;
use serde_json::{Value, json};
use std::io::Result;

/// Writes the file.
pub fn write(walk: &Walk<'_>, out: &mut std::fs::File) -> Result<Exported> {
    let line = Timeline::of(walk.trace, walk.options);
    let ranks = walk.trace.files.len().max(1);
    let mut exported = Exported {
        calls: line.events - line.left_out,
        left_out: line.left_out,
        problems: line.problems.clone(),
        ..Exported::default()
    };
    exported.notes.push(format!(
        "{} steps of {} s; FTIO samples by itself at --freq, which the steps bound: 1/{} Hz at most",
        line.steps().len(),
        line.step_s(),
        line.step_s()
    ));
    let tasks = (0..ranks).filter_map(|number| walk.trace.task(number));
    let tasks = tasks.collect::<std::collections::HashSet<u64>>().len().max(1);
    let of = |read: bool| {
        let bytes: Vec<f64> = line
            .steps()
            .iter()
            .map(|step| if read { step.read_bytes } else { step.written_bytes })
            .collect();
        let rates: Vec<f64> = bytes.iter().map(|bytes| bytes / line.step_s()).collect();
        let begins: Vec<f64> =
            (0..bytes.len()).map(|at| line.from_s.max(line.step_from_s(at))).collect();
        json!({
            "total_bytes": bytes.iter().sum::<f64>().round(),
            "number_of_ranks": tasks,
            "bandwidth": {"b_overlap_avr": rates, "t_overlap": begins},
        })
    };
    let none = || json!({"total_bytes": 0, "number_of_ranks": tasks, "bandwidth": {"b_overlap_avr": [], "t_overlap": []}});
    let all: Value = json!({
        "read_sync": of(true),
        "write_sync": of(false),
        "read_async_t": none(),
        "read_async_b": none(),
        "write_async_t": none(),
        "write_async_b": none(),
        "io_time": {"delta_t_agg": line.to_s - line.from_s, "delta_t_agg_io": line.data_span_s()},
    });
    buffered(out, |out| serde_json::to_writer(out, &all).map_err(Into::into))?;
    Ok(exported)
}
