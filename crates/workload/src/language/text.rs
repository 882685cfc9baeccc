//! A workload as the text of a workload file: what [`Workload::parse`] reads back as the same.
//! Callers: `forebay bench ... --workload-to`, the export of traces.

use super::check::Place;
use super::model::*;
use super::parse::{CONTENT_WORDS, CONTENTS, INTERFACE_WORDS, INTERFACES};
use crate::units::{size_text, time_text};
use std::fmt::Write;

impl Workload {
    /// The text.
    pub fn to_toml(&self) -> String {
        let mut to = format!("workload = {VERSION}\n");
        if !self.name.is_empty() {
            line(&mut to, "name", &quoted(&self.name));
        }
        if self.seed > 0 {
            line(&mut to, "seed", &self.seed.to_string());
        }
        let content = CONTENTS.iter().position(|kind| *kind == self.content).unwrap_or(0);
        if content > 0 {
            line(&mut to, "content", &quoted(CONTENT_WORDS[content]));
        }
        for file in &self.files {
            to.push_str("\n[[file]]\n");
            self.file(file, &mut to);
        }
        for job in &self.jobs {
            to.push_str("\n[[job]]\n");
            self.job(job, &mut to);
        }
        to
    }

    fn file(&self, file: &FileSpec, to: &mut String) {
        line(to, "name", &quoted(&file.name));
        line(to, "path", &quoted(&file.path.text()));
        if file.items != 1 {
            line(to, "items", &file.items.to_string());
        }
        match file.sizes.as_slice() {
            [] => {}
            [size] => line(to, "size", &size_text(*size)),
            sizes => {
                let sizes: Vec<String> = sizes.iter().map(|size| size_text(*size)).collect();
                line(to, "size", &format!("[{}]", sizes.join(", ")));
            }
        }
        flag(to, "prepared", file.prepared);
        flag(to, "direct", file.direct);
        if file.interface != Interface::Posix {
            let at = INTERFACES.iter().position(|kind| *kind == file.interface).unwrap_or(0);
            line(to, "interface", &quoted(INTERFACE_WORDS[at]));
        }
        if let Some(tree) = &file.tree {
            let mut text = format!(
                "{{ name = {}, branch = {}, depth = {}, items = {}",
                quoted(&tree.name.text()),
                tree.branch,
                tree.depth,
                tree.per_dir
            );
            text.push_str(if tree.leaves { ", leaves = true }" } else { " }" });
            line(to, "tree", &text);
        }
    }

    fn job(&self, job: &Job, to: &mut String) {
        line(to, "name", &quoted(&job.name));
        line(to, "processes", &job.processes.to_string());
        if job.processes_per_node != job.processes {
            line(to, "processes_per_node", &job.processes_per_node.to_string());
        }
        if job.start_ns > 0 {
            line(to, "start", &time_text(job.start_ns));
        }
        if !job.after.is_empty() {
            let names: Vec<String> =
                job.after.iter().map(|&other| quoted(&self.jobs[other as usize].name)).collect();
            line(to, "after", &format!("[{}]", names.join(", ")));
        }
        match &job.work {
            Work::Listed { name, .. } => line(to, "operations", &quoted(&name.to_string_lossy())),
            Work::Phases(phases) => {
                for phase in phases {
                    to.push_str("\n[[job.phase]]\n");
                    self.phase(phase, to);
                }
            }
        }
    }

    fn phase(&self, phase: &Phase, to: &mut String) {
        line(to, "name", &quoted(&phase.name));
        if phase.repeat != 1 {
            line(to, "repeat", &phase.repeat.to_string());
        }
        if phase.pause_ns > 0 {
            line(to, "pause", &time_text(phase.pause_ns));
        }
        if !phase.meet {
            line(to, "meet", "false");
        }
        flag(to, "cold", phase.cold);
        if phase.only != Only::ALL {
            line(to, "only", &quoted(&only_text(&phase.only)));
        }
        to.push_str("steps = [\n");
        for step in &phase.steps {
            let mut keys = Keys(Vec::new());
            self.step(step, &mut keys);
            let _ = writeln!(to, "  {{ {} }},", keys.0.join(", "));
        }
        to.push_str("]\n");
    }

    fn name_of(&self, file: u32) -> String {
        quoted(&self.files[file as usize].name)
    }

    fn step(&self, step: &Step, keys: &mut Keys) {
        let word = step.action.word();
        match &step.action {
            Action::Think { ns, busy } => {
                keys.put(word, &time_text(*ns));
                keys.flag("busy", *busy);
            }
            Action::Barrier | Action::Wait => keys.put(word, "true"),
            Action::Open { file, mode, .. } => {
                keys.put(word, &self.name_of(*file));
                keys.put("mode", &quoted(mode.word()));
            }
            Action::Close { file, .. } | Action::Sync { file, .. } => {
                keys.put(word, &self.name_of(*file));
            }
            Action::Truncate { file, bytes, .. } => {
                keys.put(word, &self.name_of(*file));
                keys.put("size", &size_text(*bytes));
            }
            Action::Names { file, to, to_first, items, .. } => {
                keys.put(word, &self.name_of(*file));
                if let Some(to) = to {
                    keys.put("to", &self.name_of(*to));
                }
                if let Some(first) = to_first {
                    keys.put("to_first", &first.to_string());
                }
                keys.items(items);
            }
            Action::Store(whole) | Action::Load(whole) => {
                keys.put(word, &self.name_of(whole.file));
                keys.items(&whole.items);
                keys.put("transfer", &size_text(whole.transfer_bytes));
                keys.flag("sync", whole.sync);
                keys.flag("verify", whole.verify);
                keys.limit(whole.stop_after_ns, whole.wear_out);
            }
            Action::Move(part) => {
                keys.put(word, &self.name_of(part.file));
                keys.transfers(part);
            }
            Action::Signal { event } => keys.put(word, &quoted(&self.events[*event as usize])),
            Action::Await { event, count } => {
                keys.put(word, &quoted(&self.events[*event as usize]));
                keys.put("count", &count.to_string());
            }
        }
        match step.action.whose() {
            Whose::Own => {}
            Whose::Shift(shift) => keys.put("of", &format!("{{ shift = {shift} }}")),
            Whose::Drawn { seed } => keys.put("of", &format!("{{ drawn = {seed} }}")),
            Whose::Permuted { seed } => keys.put("of", &format!("{{ permuted = {seed} }}")),
        }
        if step.turns > 0 {
            keys.put("turns", &step.turns.to_string());
        }
        if let Some(only) = &step.only {
            keys.put("only", &quoted(&only_text(only)));
        }
    }
}

/// The keys of a step.
struct Keys(Vec<String>);

impl Keys {
    fn put(&mut self, key: &str, value: &str) {
        self.0.push(format!("{key} = {value}"));
    }

    fn flag(&mut self, key: &str, value: bool) {
        if value {
            self.put(key, "true");
        }
    }

    fn items(&mut self, items: &Items) {
        if items.first > 0 {
            self.put("first", &items.first.to_string());
        }
        if items.count != u32::MAX {
            self.put("count", &items.count.to_string());
        }
    }

    fn limit(&mut self, stop_after_ns: Option<u64>, wear_out: bool) {
        if let Some(ns) = stop_after_ns {
            self.put("stop_after", &time_text(ns));
        }
        self.flag("wear_out", wear_out);
    }

    fn transfers(&mut self, part: &Move) {
        if part.item > 0 {
            self.put("item", &part.item.to_string());
        }
        let list = |numbers: &[u64]| {
            let texts: Vec<String> = numbers.iter().map(u64::to_string).collect();
            format!("[{}]", texts.join(", "))
        };
        match &part.layout {
            Layout::Blocks { offset, block_bytes, segments, stride_bytes } => {
                self.put("block", &size_text(*block_bytes));
                self.put("transfer", &size_text(part.transfer_bytes));
                if *segments != 1 {
                    self.put("segments", &segments.to_string());
                }
                if stride_bytes != &part.transfer_bytes {
                    self.put("stride", &size_text(*stride_bytes));
                }
                if *offset > 0 {
                    self.put("offset", &size_text(*offset));
                }
            }
            Layout::Array { offset, shape, divide, element_bytes, chunk } => {
                self.put("array", &list(shape));
                self.put("divide", &list(divide));
                self.put("element", &size_text(*element_bytes));
                if let Some(chunk) = chunk {
                    self.put("chunk", &list(chunk));
                }
                if part.transfer_bytes != i64::MAX as u64 {
                    self.put("transfer", &size_text(part.transfer_bytes));
                }
                if *offset > 0 {
                    self.put("offset", &size_text(*offset));
                }
            }
        }
        if part.order != Order::Sequential {
            self.put("order", &quoted(part.order.word()));
        }
        if part.think_ns > 0 {
            self.put("pause", &time_text(part.think_ns));
        }
        self.flag("asynchronous", part.asynchronous);
        match part.sync {
            SyncWhen::Never => {}
            SyncWhen::End => self.put("sync", "\"end\""),
            SyncWhen::Each => self.put("sync", "\"each\""),
        }
        self.flag("verify", part.verify);
        self.limit(part.stop_after_ns, part.wear_out);
    }
}

fn only_text(only: &Only) -> String {
    let last = only.last.min(u32::MAX - 1);
    match (only.first == last, only.every) {
        (true, _) => last.to_string(),
        (_, 1) => format!("{}-{last}", only.first),
        (_, every) => format!("{}-{last}/{every}", only.first),
    }
}

fn line(to: &mut String, key: &str, value: &str) {
    let _ = writeln!(to, "{key} = {value}");
}

fn flag(to: &mut String, key: &str, value: bool) {
    if value {
        line(to, key, "true");
    }
}

/// A TOML basic string.
fn quoted(text: &str) -> String {
    let mut to = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => to.push_str("\\\""),
            '\\' => to.push_str("\\\\"),
            '\n' => to.push_str("\\n"),
            c if c.is_control() => {
                let _ = write!(to, "\\u{:04X}", c as u32);
            }
            c => to.push(c),
        }
    }
    to.push('"');
    to
}

impl std::fmt::Display for Place {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Workload => write!(to, "workload"),
            Place::File(file) => write!(to, "file[{file}]"),
            Place::Job(job) => write!(to, "job[{job}]"),
            Place::Phase(job, phase) => write!(to, "job[{job}].phase[{phase}]"),
            Place::Step(job, phase, step) => write!(to, "job[{job}].phase[{phase}].steps[{step}]"),
        }
    }
}
