//! Logs for fio's `read_iolog` (version 3, fio 3.31 and later): one for each thread of the program, `replay.fio` that
//! replays them all at once, `files.csv` that says which file of the program each name stands for, and
//! `prepare.sh` that makes the files that are read and not written before.
//!
//! A replay never touches the program's own files: names in the logs are plain names in the directory where fio runs.
//! Times are microseconds from the begin of the trace, so fio keeps the pauses between calls (`replay_no_stall=1`
//! leaves them out).

use crate::{ExportError, Exported, Walk, cannot, create};
use forebay_trace_format::{Class, Op};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write;
use std::path::Path;

/// Longest part of a file's own name that is kept.
const NAME_MAX: usize = 80;

/// A file of the program, over all processes.
struct Used {
    name: String,
    /// Greatest end of a read before which nothing was written there.
    read_bytes: u64,
    end_bytes: u64,
    written: bool,
}

#[derive(Default)]
struct Files {
    by_path: HashMap<String, usize>,
    all: Vec<Used>,
}

impl Files {
    fn of(&mut self, path: &str) -> usize {
        if let Some(number) = self.by_path.get(path) {
            return *number;
        }
        let number = self.all.len();
        let own = path.rsplit('/').next().unwrap_or(path);
        let plain: String = own
            .chars()
            .take(NAME_MAX)
            .map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' })
            .collect();
        let name = format!("{number:05}-{plain}");
        self.by_path.insert(path.to_string(), number);
        self.all.push(Used { name, read_bytes: 0, end_bytes: 0, written: false });
        number
    }
}

/// A line of a log: microseconds, file, what.
struct Line {
    at_us: u64,
    file: usize,
    what: What,
}

enum What {
    Open,
    Close,
    Move(&'static str, u64, u64),
    Sync(&'static str),
}

/// Writes the directory.
pub fn write(walk: &Walk<'_>, dir: &Path) -> Result<Exported, ExportError> {
    let mut exported = Exported::default();
    let mut files = Files::default();
    let (mut jobs, mut replayed) = (Vec::new(), 0);
    walk.each_process(&mut exported, |who, walk, exported| -> Result<(), ExportError> {
        let mut threads: BTreeMap<u32, Vec<Line>> = BTreeMap::new();
        walk.calls(who, exported, |timed| -> Result<(), ExportError> {
            let event = &timed.event;
            let at_us = (timed.start_s * 1e6) as u64;
            let Some(what) = what(event) else { return Ok(()) };
            let file = files.of(who.names.path(event.file));
            if let (What::Move(kind, offset, bytes), Some(used)) = (&what, files.all.get_mut(file))
            {
                let end = offset.saturating_add(*bytes);
                used.end_bytes = used.end_bytes.max(end);
                if *kind == "read" {
                    used.read_bytes = used.read_bytes.max(end);
                } else {
                    used.written = true;
                }
            }
            threads.entry(event.tid).or_default().push(Line { at_us, file, what });
            replayed += 1;
            Ok(())
        })?;
        let task = who.task.map_or("x".to_string(), |task| task.to_string());
        for (tid, lines) in threads {
            if !lines.iter().any(|line| matches!(line.what, What::Move(..) | What::Sync(_))) {
                continue;
            }
            let name =
                format!("task-{task}-process-{}-{}-thread-{tid}", who.number, who.header.pid);
            let path = dir.join(format!("{name}.iolog"));
            let mut out = create(&path)?;
            log(&lines, &files, &mut out).and_then(|()| out.flush()).map_err(cannot(&path))?;
            jobs.push(name);
        }
        Ok(())
    })?;
    if jobs.is_empty() {
        return Err(ExportError::Nothing(
            "the trace has no reads, writes or syncs of files".into(),
        ));
    }
    jobs.sort();
    exported.files = jobs.len() as u64 + 3;
    for (name, text) in [
        ("replay.fio", job_file(&jobs)),
        ("prepare.sh", prepare(&files)),
        ("files.csv", names(&files)),
    ] {
        let path = dir.join(name);
        std::fs::write(&path, text).map_err(cannot(&path))?;
    }
    let other = exported.calls - replayed;
    exported.calls = replayed;
    if other > 0 {
        let text = "names, attributes, positions, and transfers without an offset or of nothing";
        exported.notes.push(format!("{other} calls have no place in fio's log: {text}"));
    }
    exported.notes.push(
        "a replay works on files of its own in the directory where fio runs: see files.csv".into(),
    );
    Ok(exported)
}

fn what(event: &forebay_trace_format::Event) -> Option<What> {
    if event.result < 0 {
        return None;
    }
    let moves = |kind| {
        let offset = event.offset?;
        (event.bytes() > 0).then_some(What::Move(kind, offset, event.bytes()))
    };
    match (event.op, event.op.class()) {
        (Op::Open | Op::Creat | Op::Fopen, _) => Some(What::Open),
        (Op::Close | Op::Fclose, _) => Some(What::Close),
        (Op::Fdatasync, _) => Some(What::Sync("datasync")),
        (Op::Fsync | Op::AioFsync | Op::Msync, _) => Some(What::Sync("sync")),
        (_, Class::Read) => moves("read"),
        (_, Class::Write) => moves("write"),
        _ => None,
    }
}

/// fio wants a file added once, and open while it is used: a descriptor that another thread opened, or that
/// was there from the begin, is opened here first.
fn log(lines: &[Line], files: &Files, out: &mut impl Write) -> std::io::Result<()> {
    writeln!(out, "fio version 3 iolog")?;
    let mut added = HashSet::new();
    let mut open = HashSet::new();
    let mut last_us = 0;
    for line in lines {
        let Some(used) = files.all.get(line.file) else { continue };
        let (at, name) = (line.at_us, &used.name);
        last_us = at;
        if added.insert(line.file) {
            writeln!(out, "{at} {name} add")?;
        }
        match line.what {
            What::Close => {
                if open.remove(&line.file) {
                    writeln!(out, "{at} {name} close")?;
                }
                continue;
            }
            _ => {
                if open.insert(line.file) {
                    writeln!(out, "{at} {name} open")?;
                }
            }
        }
        match line.what {
            What::Move(kind, offset, bytes) => {
                writeln!(out, "{at} {name} {kind} {offset} {bytes}")?
            }
            What::Sync(kind) => writeln!(out, "{at} {name} {kind} 0 0")?,
            What::Open | What::Close => {}
        }
    }
    let mut left: Vec<usize> = open.into_iter().collect();
    left.sort_unstable();
    for used in left.into_iter().filter_map(|file| files.all.get(file)) {
        writeln!(out, "{last_us} {} close", used.name)?;
    }
    Ok(())
}

fn job_file(jobs: &[String]) -> String {
    let mut text = String::from(
        "; Run in an empty directory: sh LOGS/prepare.sh && fio LOGS/replay.fio\n[global]\nioengine=psync\nthread=1\n",
    );
    for job in jobs {
        text.push_str(&format!("\n[{job}]\nread_iolog=${{LOGS}}/{job}.iolog\n"));
    }
    // fio takes ${NAME} from the environment.
    text.replace("; Run in an empty directory: sh LOGS/prepare.sh && fio LOGS/replay.fio",
        "; In an empty directory, with LOGS the directory of this file:\n;   sh \"$LOGS/prepare.sh\" && LOGS=\"$LOGS\" fio \"$LOGS/replay.fio\"")
}

/// Sparse files of the right sizes: fio makes no file that a log only reads.
fn prepare(files: &Files) -> String {
    let mut text = String::from(
        "#!/bin/sh\n# Makes the files that the replay reads, with holes for data.\nset -e\n",
    );
    for used in files.all.iter().filter(|used| used.read_bytes > 0) {
        text.push_str(&format!("truncate -s {} ./{}\n", used.end_bytes, used.name));
    }
    text
}

fn names(files: &Files) -> String {
    let mut rows: Vec<(&String, &usize)> = files.by_path.iter().collect();
    rows.sort_by_key(|(_, number)| **number);
    let mut text = String::from("name,file,bytes,written\n");
    for (path, number) in rows {
        if let Some(used) = files.all.get(*number) {
            let path = path.replace('"', "\"\"");
            text.push_str(&format!(
                "{},\"{path}\",{},{}\n",
                used.name, used.end_bytes, used.written
            ));
        }
    }
    text
}
