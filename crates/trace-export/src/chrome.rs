//! Chrome's trace event format (JSON object form): a complete event for each call, on its thread's line; aio, which
//! overlaps other calls of its thread, as asynchronous events; what the processes are as metadata.
//!
//! Times are microseconds with three decimals, so a nanosecond is kept.

use crate::{Exported, Walk, Who, buffered};
use flate2::Compression;
use flate2::write::GzEncoder;
use forebay_trace_format::{Class, Op};
use forebay_trace_report::load::Timed;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::io::{Result, Write};
use std::path::Path;

/// Writes it, compressed if the name says so.
pub fn write(walk: &Walk<'_>, name: &Path, out: &mut std::fs::File) -> Result<Exported> {
    let mut exported = Exported::default();
    let gz = name.extension().is_some_and(|end| end == "gz");
    buffered(out, |out| {
        if gz {
            let mut packed = GzEncoder::new(out, Compression::fast());
            events(walk, &mut packed, &mut exported)?;
            packed.finish().map(drop)
        } else {
            events(walk, out, &mut exported)
        }
    })?;
    Ok(exported)
}

fn events(walk: &Walk<'_>, out: &mut dyn Write, exported: &mut Exported) -> Result<()> {
    out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")?;
    let mut first = true;
    walk.each_process(exported, |who, walk, exported| -> Result<()> {
        let mut put = |out: &mut dyn Write, event: &Value| {
            if !std::mem::replace(&mut first, false) {
                out.write_all(b",\n")?;
            }
            serde_json::to_writer(out, event).map_err(std::io::Error::from)
        };
        for event in metadata(who) {
            put(out, &event)?;
        }
        let mut threads = HashSet::new();
        let mut pending = 0_u64;
        walk.calls(who, exported, |timed| -> Result<()> {
            if threads.insert(timed.event.tid) {
                put(out, &thread(who, timed.event.tid))?;
            }
            for event in call(who, timed, &mut pending) {
                put(out, &event)?;
            }
            Ok(())
        })
    })?;
    for (number, file) in walk.trace.buffers.iter().enumerate() {
        let names = file.names();
        let number = walk.trace.files.len() + number;
        let who = Who { number, header: &file.header, task: None, names: &names };
        let name = format!("buffer {} ({})", file.header.exe, file.header.host);
        let head =
            json!({"ph": "M", "name": "process_name", "pid": pid(&who), "args": {"name": name}});
        let mut put = |event: &Value| {
            if !std::mem::replace(&mut first, false) {
                out.write_all(b",\n")?;
            }
            serde_json::to_writer(&mut *out, event).map_err(std::io::Error::from)
        };
        put(&head)?;
        let (mut ended, mut pending) = (Ok(()), 0_u64);
        file.each(&mut exported.problems, |timed| {
            for event in buffer_event(&who, &timed, &mut pending) {
                if ended.is_ok() {
                    ended = put(&event);
                }
            }
        });
        ended?;
    }
    out.write_all(b"\n]}\n")
}

/// Events of a buffer overlap, so they are asynchronous ones.
fn buffer_event(who: &Who<'_>, timed: &Timed, pending: &mut u64) -> [Value; 2] {
    let event = &timed.event;
    *pending += 1;
    let (name, id) = (event.op.name(), format!("{}.{pending}", who.number));
    let args = json!({
        "file": who.names.path(event.file), "result": event.result,
        "offset": event.offset, "length": event.length,
    });
    let end = micros(timed.start_s + timed.duration_s);
    [
        json!({"ph": "b", "name": name, "cat": "buffer", "pid": pid(who), "tid": 0, "id": id, "ts": micros(timed.start_s), "args": args}),
        json!({"ph": "e", "name": name, "cat": "buffer", "pid": pid(who), "tid": 0, "id": id, "ts": end}),
    ]
}

/// Processes of several hosts may have one number, so they are counted; the real one is in the name.
fn pid(who: &Who<'_>) -> u64 {
    who.number as u64 + 1
}

fn metadata(who: &Who<'_>) -> [Value; 2] {
    let header = who.header;
    let rank = header.rank.map_or(String::new(), |rank| format!("rank {rank}: "));
    let name = format!("{rank}{} ({} process {})", header.program(), header.host, header.pid);
    let order = who.task.unwrap_or(pid(who));
    [
        json!({"ph": "M", "name": "process_name", "pid": pid(who), "args": {"name": name}}),
        json!({"ph": "M", "name": "process_sort_index", "pid": pid(who), "args": {"sort_index": order}}),
    ]
}

fn thread(who: &Who<'_>, tid: u32) -> Value {
    let name = if tid == who.header.pid { "main".to_string() } else { format!("thread {tid}") };
    json!({"ph": "M", "name": "thread_name", "pid": pid(who), "tid": tid, "args": {"name": name}})
}

/// Microseconds, to the nanosecond.
fn micros(seconds: f64) -> Value {
    let nanoseconds = (seconds * 1e9).round();
    json!(nanoseconds / 1e3)
}

fn category(op: Op) -> &'static str {
    match op.class() {
        Class::Read => "read",
        Class::Write => "write",
        Class::Open => "open",
        Class::Metadata => "metadata",
        Class::Sync => "sync",
        Class::Other => "other",
        Class::Buffer => "buffer",
    }
}

fn call(who: &Who<'_>, timed: &Timed, pending: &mut u64) -> Vec<Value> {
    let event = &timed.event;
    let mut args = json!({"file": who.names.path(event.file), "result": event.result});
    if let Some(offset) = event.offset {
        args["offset"] = json!(offset);
    }
    if event.length > 0 {
        args["length"] = json!(event.length);
    }
    let (name, cat, tid) = (event.op.name(), category(event.op), event.tid);
    if matches!(event.op, Op::AioRead | Op::AioWrite | Op::AioFsync) {
        *pending += 1;
        let id = format!("{}.{pending}", who.number);
        let end = micros(timed.start_s + timed.duration_s);
        return vec![
            json!({"ph": "b", "name": name, "cat": cat, "pid": pid(who), "tid": tid, "id": id, "ts": micros(timed.start_s), "args": args}),
            json!({"ph": "e", "name": name, "cat": cat, "pid": pid(who), "tid": tid, "id": id, "ts": end}),
        ];
    }
    vec![json!({
        "ph": "X", "name": name, "cat": cat, "pid": pid(who), "tid": tid,
        "ts": micros(timed.start_s), "dur": micros(timed.duration_s), "args": args,
    })]
}
