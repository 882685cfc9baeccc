//! Tests of whole workloads: what is read is walked, written, read again; and what is wrong is told.

use super::operations::tests::sample;
use super::*;
use crate::document::Fault;
use crate::ior;
use std::path::Path;

fn parse(text: &str) -> Result<Workload, Fault> {
    Workload::parse(Path::new("w.toml"), text, &|_| Err("no such file".into()))
}

fn good(text: &str) -> Workload {
    parse(text).unwrap_or_else(|fault| panic!("{fault}"))
}

/// A walk as text, one operation a line.
fn story(workload: &Workload, job: u32, process: u32) -> Vec<String> {
    let mut path = String::new();
    let mut path = |id: &FileId| {
        workload.path(id, &mut path).expect("a path");
        path.clone()
    };
    let walk = workload.walk(job, process).expect("walked");
    walk.map(|op| match op.expect("read") {
        Op::Phase { phase, repeat } => format!("phase {phase}.{repeat}"),
        Op::Think { ns, busy } => format!("think {ns} {busy}"),
        Op::Meet(meeting) => format!("meet {}", meeting.parties),
        Op::TurnBegin { turns, position } => format!("turn {position} of {turns}"),
        Op::TurnEnd { .. } => "end of turn".into(),
        Op::Limit { ns, wear_out, parties } => format!("limit {ns} {wear_out} {parties}"),
        Op::LimitEnd => "end of limit".into(),
        Op::Open { file, mode } => format!("open {} {}", path(&file), mode.word()),
        Op::Close { file } => format!("close {}", path(&file)),
        Op::Transfer(transfer) => {
            let word = if transfer.write { "write" } else { "read" };
            format!("{word} {} {}+{}", path(&transfer.file), transfer.offset, transfer.bytes)
        }
        Op::Wait => "wait".into(),
        Op::Flush { file } => format!("flush {}", path(&file)),
        Op::Seek { file, offset, reads } => format!("seek {} {offset} {reads}", path(&file)),
        Op::Sync { file, data_only } => format!("sync {} {data_only}", path(&file)),
        Op::Truncate { file, bytes } => format!("truncate {} {bytes}", path(&file)),
        Op::Name { op, file, to } => match to {
            Some(to) => format!("{} {} {}", op.word(), path(&file), path(&to)),
            None => format!("{} {}", op.word(), path(&file)),
        },
        Op::Signal { event } => format!("signal {event}"),
        Op::Await { event, count } => format!("await {event} {count}"),
    })
    .collect()
}

#[test]
fn a_checkpoint_is_walked_as_it_was_written() {
    let workload = good(
        r#"
workload = 1
[[file]]
name = "ckpt"
path = "ckpt.{repeat}/{process:02}"
[[job]]
processes = 2
[[job.phase]]
name = "dump"
repeat = 2
steps = [
  { think = "1s", busy = true },
  { write = "ckpt", block = 25, transfer = 10, sync = "end" },
  { barrier = true, only = "0" },
]
"#,
    );
    assert_eq!(
        story(&workload, 0, 1),
        [
            "phase 0.0",
            "meet 2",
            "think 1000000000 true",
            "open ckpt.0/01 write",
            "write ckpt.0/01 0+10",
            "write ckpt.0/01 10+10",
            "write ckpt.0/01 20+5",
            "sync ckpt.0/01 false",
            "close ckpt.0/01",
            "phase 0.1",
            "meet 2",
            "think 1000000000 true",
            "open ckpt.1/01 write",
            "write ckpt.1/01 0+10",
            "write ckpt.1/01 10+10",
            "write ckpt.1/01 20+5",
            "sync ckpt.1/01 false",
            "close ckpt.1/01",
        ]
    );
    assert_eq!(story(&workload, 0, 0).last().map(String::as_str), Some("meet 1"));
    let totals = workload.totals(0, 0);
    assert_eq!((totals.written_bytes, totals.transfers, totals.names), (50, 6, 4));
}

#[test]
fn files_stay_open_where_a_step_opens_them_and_others_are_read() {
    let workload = good(
        r#"
workload = 1
[[file]]
name = "f"
path = "f"
[[job]]
processes = 3
[[job.phase]]
steps = [
  { open = "f", mode = "truncate", only = "0" },
  { write = "f", block = 10, segments = 2, transfer = 10, turns = 2 },
  { read = "f", block = 10, transfer = 10, of = { shift = 1 }, stop_after = "1s", asynchronous = true },
  { wait = true },
]
"#,
    );
    assert_eq!(
        story(&workload, 0, 2),
        [
            "phase 0.0",
            "meet 3",
            "turn 2 of 2",
            "write f 20+10",
            "write f 50+10",
            "end of turn",
            "limit 1000000000 false 3",
            "read f 0+10",
            "end of limit",
            "wait",
        ]
    );
}

/// Who keeps the turns finds them by the step.
#[test]
fn an_operation_belongs_to_its_step() {
    let text = include_str!("../../../../fuzz/corpus/workload_file/all.toml");
    let workload = good(text);
    let mut walk = workload.walk(0, 1).expect("walked");
    let mut ends = 0;
    while let Some(op) = walk.next_op().expect("read") {
        if matches!(op, Op::TurnBegin { .. } | Op::TurnEnd { .. }) {
            assert_eq!(walk.step(), 11, "{op:?}");
            ends += 1;
        }
    }
    assert_eq!(ends, 6, "the last of 12 steps is done in turns, three times");
}

#[test]
fn whole_files_names_and_trees() {
    let workload = good(
        r#"
workload = 1
[[file]]
name = "t"
path = "{job}/t.{item}"
items = 3
size = [5, 0]
[[file]]
name = "u"
path = "u.{item}"
items = 3
[[job]]
name = "j"
[[job.phase]]
steps = [
  { store = "t", transfer = 4, sync = true, first = 1 },
  { rename = "t", to = "u", count = 1 },
  { signal = "e" },
  { await = "e", count = 2 },
]
"#,
    );
    assert_eq!(
        story(&workload, 0, 0)[2..],
        [
            "open j/t.1 write",
            "sync j/t.1 false",
            "close j/t.1",
            "open j/t.2 write",
            "write j/t.2 0+4",
            "write j/t.2 4+1",
            "sync j/t.2 false",
            "close j/t.2",
            "rename j/t.0 u.0",
            "signal 0",
            "await 0 2",
        ]
    );
    let totals = workload.totals(0, 0);
    assert_eq!((totals.written_bytes, totals.transfers, totals.names), (5, 2, 5));
}

/// A1: for 1 to 9 processes, shared and one file each, the places are those of `ior`, which are IOR's.
#[test]
fn blocks_are_those_of_ior() {
    for tasks in 1..=9_u32 {
        for own in [false, true] {
            for shift in [0, 1] {
                let path = if own { "f.{process:08}" } else { "f" };
                let text = format!(
                    "workload = 1\n[[file]]\nname = \"f\"\npath = \"{path}\"\n[[job]]\nprocesses = {tasks}\n[[job.phase]]\nsteps = [{{ read = \"f\", block = 60, transfer = 20, segments = 3, of = {{ shift = {shift} }} }}]\n"
                );
                let workload = good(&text);
                let pattern = ior::Pattern {
                    tasks,
                    block_bytes: 60,
                    transfer_bytes: 20,
                    segments: 3,
                    file_per_process: own,
                    order: ior::Order::Sequential,
                    order_seed: 0,
                };
                for rank in 0..tasks {
                    let part = pattern.read_rank(rank, ior::Reorder::Shift { shift });
                    let mut walk = pattern.walk(part);
                    let name = if own { format!("f.{part:08}") } else { "f".into() };
                    let expected: Vec<String> = (0..pattern.transfers_of(part))
                        .map(|_| format!("read {name} {}+20", walk.next_offset().expect("one")))
                        .collect();
                    let told = story(&workload, 0, rank);
                    assert_eq!(told[3..told.len() - 1], expected, "{tasks} {own} {shift} {rank}");
                }
            }
        }
    }
}

#[test]
fn what_is_written_is_read_as_the_same() {
    let text = include_str!("../../../../fuzz/corpus/workload_file/all.toml");
    let workload = good(text);
    let written = workload.to_toml();
    let again = good(&written);
    assert_eq!(again.to_toml(), written);
    for (job, processes) in [(0, 8), (1, 4)] {
        for process in 0..processes {
            assert_eq!(story(&workload, job, process), story(&again, job, process));
        }
    }
}

/// Each `toml` block of the description is a whole workload.
#[test]
fn the_examples_of_the_description_are_good() {
    let text = include_str!("../../../../docs/WORKLOAD.md");
    let blocks: Vec<&str> = text.split("```toml\n").skip(1).collect();
    assert!(blocks.len() >= 4, "{} examples", blocks.len());
    for block in blocks {
        good(block.split("```").next().expect("a block"));
    }
}

/// And each key that a reader knows stands in it.
#[test]
fn the_description_has_each_key() {
    let text = include_str!("../../../../docs/WORKLOAD.md");
    let wrong = "workload = 1\nx = 1\n[[file]]\nname = \"f\"\npath = \"f\"\n";
    let job = "[[job]]\n[[job.phase]]\nsteps = [STEP]\n";
    let mut samples = vec![
        wrong.to_string() + &job.replace("STEP", "{ barrier = true }"),
        "workload = 1\n[[file]]\nx = 1\nname = \"f\"\npath = \"f\"\n".into(),
        "workload = 1\n[[file]]\nname = \"f\"\npath = \"{tree}\"\ntree = { x = 1 }\n".into(),
        "workload = 1\n[[job]]\nx = 1\n[[job.phase]]\nsteps = [{ barrier = true }]\n".into(),
        "workload = 1\n[[job]]\n[[job.phase]]\nx = 1\nsteps = [{ barrier = true }]\n".into(),
    ];
    for step in [
        "think = 1",
        "open = \"f\", mode = \"read\"",
        "truncate = \"f\", size = 1",
        "stat = \"f\"",
        "rename = \"f\", to = \"f\"",
        "read = \"f\", block = 1",
        "write = \"f\", array = [1], divide = [1], element = 1",
        "store = \"f\"",
        "load = \"f\"",
        "await = \"e\"",
    ] {
        let head = wrong.replace("x = 1\n", "");
        samples.push(head + &job.replace("STEP", &format!("{{ {step}, x = 1 }}")));
    }
    let whose = job.replace("STEP", "{ stat = \"f\", of = { x = 1 } }");
    samples.push(wrong.replace("x = 1\n", "") + &whose);
    for sample in samples {
        let fault = parse(&sample).expect_err("an unknown key");
        assert!(fault.found.contains("not known"), "{fault}");
        for key in fault.expected.trim_start_matches("one of ").split(", ") {
            let forms = [format!("`{key}`"), format!("{key} = ")];
            let there = forms.iter().any(|form| text.contains(form));
            assert!(there, "{key} is not in docs/WORKLOAD.md");
        }
    }
}

#[test]
fn faults_say_where_and_what_was_expected() {
    let file = "workload = 1\n[[file]]\nname = \"f\"\npath = \"f\"\n";
    let with = |step: &str| {
        format!(
            "{file}[[job]]\nprocesses = 4\n[[job.phase]]\nsteps = [\n  {{ barrier = true }},\n  {{ {step} }},\n]\n"
        )
    };
    let step = "w.toml:10: job[0].phase[0].steps[1]";
    for (text, expected) in [
        ("name = \"x\"\n".to_string(), "w.toml:1: workload: it is missing; expected workload = 1"),
        ("workload = 2\n".into(), "w.toml:1: workload: it is 2; expected workload = 1"),
        ("workload = 1\n".into(), "w.toml:1: job: there is none; expected at least one [[job]]"),
        ("workload = 1\n[[job]\n".into(), "w.toml:2: this is not TOML"),
        (with("wrtie = \"f\""), &format!("{step}.wrtie: this key is not known here (did you mean write?)")),
        (with("only = \"0\""), &format!("{step}: the step does nothing; expected exactly one of")),
        // What is misspelt is said before what is missing.
        (with("write = \"f\", blok = \"1MiB\""), &format!("{step}.blok: this key is not known here (did you mean block?); expected one of array, asynchronous, block, chunk")),
        (with("rename = \"f\", too = \"f\""), &format!("{step}.too: this key is not known here (did you mean to?)")),
        (with("open = \"f\", mod = \"read\""), &format!("{step}.mod: this key is not known here (did you mean mode?)")),
        (with("stat = \"f\", of = { shfit = 1 }"), &format!("{step}.of.shfit: this key is not known here (did you mean shift?)")),
        ("wrokload = 1\n".into(), "w.toml:1: wrokload: this key is not known here (did you mean workload?)"),
        ("workload = 2\nnew = 1\n".into(), "w.toml:1: workload: it is 2"),
        (file.replace("path", "paht"), "w.toml:4: file[0].paht: this key is not known here (did you mean path?)"),
        ("workload = 1\n[[job]]\nproceses = 0\n".into(), "w.toml:3: job[0].proceses: this key is not known here (did you mean processes?)"),
        (with("read = \"f\", write = \"f\""), &format!("{step}: the step has both read and write")),
        (with("read = \"g\", block = 1"), &format!("{step}.read: no file is called \"g\"")),
        (with("read = \"f\", block = 0"), &format!("{step}.block: it is 0")),
        (with("read = \"f\", block = \"4 KiB\""), &format!("{step}.block: it is \"4 KiB\"; expected a size")),
        (with("read = \"f\", block = \"8000000TiB\""), &format!("{step}.block: the file would be too large")),
        (with("read = \"f\", block = 8, transfer = 4, stride = 2"), &format!("{step}.stride: transfers of 4 bytes would overlap")),
        (with("read = \"f\", array = [6], divide = [4], element = 1"), &format!("{step}.divide: 6 elements cannot be cut into 4 parts")),
        (with("read = \"f\", array = [6], divide = [3], element = 1"), &format!("{step}.divide: it makes 3 parts; expected one for each of the 4")),
        (with("read = \"f\", block = 1, wear_out = true"), &format!("{step}.wear_out: there is no limit")),
        (with("barrier = true, only = \"3-9\""), &format!("{step}.only: process 9 is not there")),
        (with("barrier = true, only = \"a\""), &format!("{step}.only: it is \"a\"; expected processes")),
        (with("think = \"soon\""), &format!("{step}.think: it is \"soon\"; expected a time")),
        (with("think = \"1s\", busier = true"), &format!("{step}.busier: this key is not known here; expected one of busy, only, think, turns")),
        (with("stat = \"f\", first = 1"), &format!("{step}.items: all of them from 1 on")),
        (with("open = \"f\""), &format!("{step}.mode: it is missing")),
        (
            with("write = \"f\", block = 47008, transfer = 47008").replace("path = \"f\"", "path = \"f\"\ndirect = true"),
            "w.toml:11: job[0].phase[0].steps[1].block: 47008 bytes of a file with direct = true; expected a multiple of 512",
        ),
        (
            with("store = \"f\", transfer = 4096").replace("path = \"f\"", "path = \"f\"\ndirect = true\nsize = 5000"),
            "w.toml:6: file[0].size: 5000 bytes of a file with direct = true; expected multiples of 512",
        ),
        (format!("{file}items = 2\n"), "w.toml:5: file[0].items: several items have one path; expected {item}"),
        (format!("{file}prepared = true\n"), "w.toml:5: file[0].prepared: its size is not known"),
        (file.replace("\"f\"\n", "\"../f\"\n"), "w.toml:4: file[0].path: \"../f\"; expected a path relative"),
        (
            with("barrier = true").replace("path = \"f\"", "path = \"f.{process+1%3}\""),
            "w.toml:4: file[0].path: {process+N%3} where a job has 4 processes; expected at least as many",
        ),
        ("workload = 1\n[[job]]\noperations = \"o\"\n".into(), "w.toml:3: job[0].operations: o: no such file"),
        (
            "workload = 1\n[[job]]\nname = \"a\"\nafter = [\"b\"]\n[[job.phase]]\nsteps = [{ barrier = true }]\n[[job]]\nname = \"b\"\nafter = [\"a\"]\n[[job.phase]]\nsteps = [{ barrier = true }]\n".into(),
            "w.toml:4: job[0].after: the job waits for itself",
        ),
        ("workload = 1\n[[job]]\nprocesses = 0\n".into(), "w.toml:3: job[0].processes: it is 0; expected an integer from 1"),
    ] {
        let complete = if text.contains("[[job]") || !text.contains("[[file]]") {
            text
        } else {
            text + "[[job]]\n[[job.phase]]\nsteps = [{ barrier = true }]\n"
        };
        let fault = parse(&complete).map(|_| ()).expect_err(&complete).to_string();
        assert!(fault.starts_with(expected), "{fault}\nexpected {expected}");
    }
}

#[test]
fn listed_operations_are_walked() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("run.ops"), sample()).expect("written");
    let text = "workload = 1\n[[job]]\noperations = \"run.ops\"\n";
    std::fs::write(dir.path().join("run.toml"), text).expect("written");
    let workload = Workload::read(&dir.path().join("run.toml")).expect("good");
    assert_eq!(workload.jobs[0].processes, 2);
    let told = story(&workload, 0, 0);
    assert_eq!(
        told[..5],
        ["phase 0.0", "read in 0+100", "phase 1.0", "think 5 false", "open out/0 write"]
    );
    assert_eq!((told.len(), told[5].as_str()), (56, "write out/0 0+10"));
    assert_eq!(story(&workload, 0, 1)[..2], ["phase 1.0", "think 5 false"]);
    assert_eq!(workload.totals(0, 0).written_bytes, 1000);
    std::fs::write(dir.path().join("run.toml"), text.to_string() + "processes = 3\n")
        .expect("written");
    let fault = Workload::read(&dir.path().join("run.toml")).expect_err("wrong").to_string();
    assert!(
        fault.contains("run.toml:4: job[0].processes: the operations are those of 2"),
        "{fault}"
    );
}

/// The largest run of the simulator's studies: a walk for each process, held at once.
#[test]
fn walks_of_131072_processes_are_small() {
    let workload = good(
        r#"
workload = 1
[[file]]
name = "f"
path = "f"
[[job]]
processes = 131072
processes_per_node = 4
[[job.phase]]
steps = [{ write = "f", block = "64MiB", transfer = "4MiB", order = "scattered", sync = "end" }]
"#,
    );
    assert!(size_of::<Walk>() <= 128, "{} bytes", size_of::<Walk>());
    let mut walks: Vec<Walk> = (0..131_072).map(|p| workload.walk(0, p).expect("walked")).collect();
    let mut transfers = 0_u64;
    for walk in &mut walks {
        for _ in 0..6 {
            let op = walk.next_op().expect("read").expect("there");
            transfers += u64::from(matches!(op, Op::Transfer(_)));
        }
    }
    assert_eq!(transfers, 131_072 * 3);
    assert_eq!(workload.totals(0, 0).written_bytes, 8 << 40);
}
