//! An outcome as tables for people.

use crate::model::{Outcome, PhaseOutcome};
use crate::text::table;
use crate::units::{digits, format_rate, format_size, format_time};

/// All of it: phases, resources, where the bytes are.
pub fn text(outcome: &Outcome) -> String {
    let mut text = format!("{} on {}\n\n", outcome.workload, outcome.machine);
    text.push_str(&table(&phase_rows(outcome), &[1, 2, 3, 4, 5, 6, 7]));
    text.push('\n');
    text.push_str(&table(&resource_rows(outcome), &[1, 2, 3, 4]));
    text.push('\n');
    text.push_str(&summary(outcome));
    text
}

/// Rows for CSV: a phase each, with plain numbers.
pub fn rows(outcome: &Outcome) -> Vec<Vec<String>> {
    let mut rows = vec![cells(&[
        "job",
        "phase",
        "start_s",
        "end_s",
        "time_s",
        "io_s",
        "written_bytes",
        "read_bytes",
        "bytes_per_s",
        "stalled_s",
        "stalled_share",
        "bound_by",
        "busy_share",
    ])];
    for job in &outcome.jobs {
        for phase in &job.phases {
            let bound = phase.bound_by.as_ref();
            rows.push(vec![
                job.name.clone(),
                phase.name.clone(),
                phase.start_s.to_string(),
                phase.end_s.to_string(),
                phase.time_s.to_string(),
                phase.io_s.to_string(),
                phase.written_bytes.to_string(),
                phase.read_bytes.to_string(),
                phase.bytes_per_s.to_string(),
                phase.stalled_s.to_string(),
                phase.stalled_share.to_string(),
                bound.map_or(String::new(), |bound| bound.resource.words().into()),
                bound.map_or(String::new(), |bound| bound.busy_share.to_string()),
            ]);
        }
    }
    rows
}

fn cells(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_string()).collect()
}

fn phase_rows(outcome: &Outcome) -> Vec<Vec<String>> {
    let mut rows = vec![cells(&[
        "phase",
        "start",
        "end",
        "in I/O",
        "written",
        "read",
        "bandwidth",
        "stalled",
        "bound by",
    ])];
    let several = outcome.jobs.len() > 1;
    for job in &outcome.jobs {
        for phase in &job.phases {
            let name =
                if several { format!("{}/{}", job.name, phase.name) } else { phase.name.clone() };
            rows.push(phase_row(name, phase));
        }
    }
    rows
}

fn phase_row(name: String, phase: &PhaseOutcome) -> Vec<String> {
    let size = |bytes: u64| if bytes == 0 { "-".into() } else { format_size(bytes as f64) };
    let bound = phase.bound_by.as_ref().map_or("-".into(), |bound| {
        format!("{} ({:.0} % busy)", bound.resource.words(), bound.busy_share * 100.0)
    });
    vec![
        name,
        format_time(phase.start_s),
        format_time(phase.end_s),
        format_time(phase.io_s),
        size(phase.written_bytes),
        size(phase.read_bytes),
        if phase.bytes_per_s > 0.0 { format_rate(phase.bytes_per_s) } else { "-".into() },
        format!("{:.0} %", phase.stalled_share * 100.0),
        bound,
    ]
}

fn resource_rows(outcome: &Outcome) -> Vec<Vec<String>> {
    let mut rows = vec![cells(&["resource", "used", "of", "busy", "mean wait"])];
    rows.extend(outcome.resources.iter().map(|resource| {
        vec![
            resource.resource.words().to_string(),
            resource.used.to_string(),
            resource.count.to_string(),
            format!("{:.1} %", resource.busy_share * 100.0),
            format_time(resource.mean_wait_s),
        ]
    }));
    rows
}

fn summary(outcome: &Outcome) -> String {
    let bytes = &outcome.bytes;
    let size = |bytes: u64| format_size(bytes as f64);
    let mut text = format!(
        "jobs ended at {}, storage had everything at {}\n",
        format_time(outcome.end_s),
        format_time(outcome.drained_s)
    );
    text.push_str(&format!(
        "written {} = {} past the buffer + {} drained + {} on flash only + {} lost\n",
        size(bytes.written),
        size(bytes.past_buffer),
        size(bytes.drained),
        size(bytes.resident),
        size(bytes.lost)
    ));
    if let Some(buffer) = &outcome.buffer {
        text.push_str(&format!(
            "{} buffers of {}: the fullest reached {} %; {} writes found one full\n",
            buffer.count,
            size(buffer.capacity_bytes),
            digits(buffer.peak_share * 100.0),
            buffer.found_full
        ));
        if buffer.rebuilt_bytes > 0 {
            text.push_str(&format!(
                "rebuilt of lost buffers from what others had: {}\n",
                size(buffer.rebuilt_bytes)
            ));
        }
    }
    for job in outcome.jobs.iter().filter(|job| job.restarts > 0) {
        text.push_str(&format!(
            "{}: killed by failures and started again {} times, {} of its work was done again\n",
            job.name,
            job.restarts,
            format_time(job.redone_s)
        ));
    }
    if outcome.merged_processes > 1 || outcome.merged_transfers > 1 {
        text.push_str(&format!(
            "simulated coarsely: up to {} processes as one, up to {} transfers as one\n",
            outcome.merged_processes, outcome.merged_transfers
        ));
    }
    text.push_str(&format!("{} events, seed {}\n", outcome.events, outcome.seed));
    for (what, list) in [
        ("checkpoints", &outcome.chosen),
        ("the machine file assumes", &outcome.assumptions),
        ("of the workload, simulated in a simpler form", &outcome.simplified),
    ] {
        if !list.is_empty() {
            text.push_str(&format!("\n{what}:\n"));
            list.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
        }
    }
    text
}
