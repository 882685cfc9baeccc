//! A Parquet table with a row for each call, in groups of rows that bound the memory. Strings are dictionaries, so a path
//! costs its bytes once in a group.

use crate::{Exported, Walk};
use forebay_trace_format::Class;
use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::io::{BufWriter, Result, Write};
use std::sync::Arc;

/// Rows that are in memory at once.
const GROUP_ROWS: usize = 1 << 17;

/// The columns, in the order in which they are written.
const SCHEMA: &str = "
message call {
    required int64 start_ns;
    required int64 duration_ns;
    optional int64 task;
    required int32 process;
    required int32 pid;
    required int32 tid;
    required binary host (STRING);
    required binary call (STRING);
    required binary class (STRING);
    required binary file (STRING);
    optional int64 offset;
    required int64 length;
    required int64 result;
    required int64 bytes;
}
";

#[derive(Default)]
struct Rows {
    start: Vec<i64>,
    duration: Vec<i64>,
    task: (Vec<i64>, Vec<i16>),
    process: Vec<i32>,
    pid: Vec<i32>,
    tid: Vec<i32>,
    host: Vec<ByteArray>,
    call: Vec<ByteArray>,
    class: Vec<ByteArray>,
    file: Vec<ByteArray>,
    offset: (Vec<i64>, Vec<i16>),
    length: Vec<i64>,
    result: Vec<i64>,
    bytes: Vec<i64>,
}

/// Writes the file.
pub fn write(walk: &Walk<'_>, out: &mut std::fs::File) -> Result<Exported> {
    let mut exported = Exported::default();
    let schema = Arc::new(parse_message_type(SCHEMA).map_err(other)?);
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let out = BufWriter::with_capacity(1 << 20, out);
    let mut table = SerializedFileWriter::new(out, schema, Arc::new(properties)).map_err(other)?;
    let mut rows = Rows::default();
    // A name is copied once for a process: a row holds a reference to it.
    let mut names: std::collections::HashMap<u32, ByteArray> = std::collections::HashMap::new();
    let mut of = usize::MAX;
    let mut host = ByteArray::new();
    walk.each(&mut exported, |who, timed| {
        if of != who.number {
            of = who.number;
            names.clear();
            host = ByteArray::from(who.header.host.as_str());
        }
        let event = &timed.event;
        let file = names
            .entry(event.file)
            .or_insert_with(|| ByteArray::from(who.names.path(event.file)))
            .clone();
        rows.start.push(nanoseconds(timed.start_s));
        rows.duration.push(nanoseconds(timed.duration_s));
        optional(&mut rows.task, who.task.map(|task| task as i64));
        rows.process.push(who.number as i32);
        rows.pid.push(who.header.pid as i32);
        rows.tid.push(event.tid as i32);
        rows.host.push(host.clone());
        rows.call.push(ByteArray::from(event.op.name()));
        rows.class.push(ByteArray::from(class(event.op.class())));
        rows.file.push(file);
        optional(&mut rows.offset, event.offset.map(|offset| offset as i64));
        rows.length.push(event.length as i64);
        rows.result.push(event.result);
        rows.bytes.push(event.bytes() as i64);
        if rows.start.len() == GROUP_ROWS { rows.flush(&mut table) } else { Ok(()) }
    })?;
    rows.flush(&mut table)?;
    table.close().map_err(other)?;
    Ok(exported)
}

fn other(error: parquet::errors::ParquetError) -> std::io::Error {
    std::io::Error::other(error)
}

fn nanoseconds(seconds: f64) -> i64 {
    (seconds * 1e9).round() as i64
}

fn optional((values, present): &mut (Vec<i64>, Vec<i16>), value: Option<i64>) {
    present.push(i16::from(value.is_some()));
    values.extend(value);
}

fn class(class: Class) -> &'static str {
    match class {
        Class::Read => "read",
        Class::Write => "write",
        Class::Open => "open",
        Class::Metadata => "metadata",
        Class::Sync => "sync",
        Class::Other => "other",
        Class::Buffer => "buffer",
    }
}

impl Rows {
    fn flush<W: Write + Send>(&mut self, table: &mut SerializedFileWriter<W>) -> Result<()> {
        if self.start.is_empty() {
            return Ok(());
        }
        let rows = std::mem::take(self);
        let mut group = table.next_row_group().map_err(other)?;
        // In the order of SCHEMA.
        macro_rules! column {
            ($kind:ty, $values:expr, $present:expr) => {
                if let Some(mut column) = group.next_column().map_err(other)? {
                    column.typed::<$kind>().write_batch($values, $present, None).map_err(other)?;
                    column.close().map_err(other)?;
                }
            };
        }
        column!(Int64Type, &rows.start, None);
        column!(Int64Type, &rows.duration, None);
        column!(Int64Type, &rows.task.0, Some(&rows.task.1));
        column!(Int32Type, &rows.process, None);
        column!(Int32Type, &rows.pid, None);
        column!(Int32Type, &rows.tid, None);
        column!(ByteArrayType, &rows.host, None);
        column!(ByteArrayType, &rows.call, None);
        column!(ByteArrayType, &rows.class, None);
        column!(ByteArrayType, &rows.file, None);
        column!(Int64Type, &rows.offset.0, Some(&rows.offset.1));
        column!(Int64Type, &rows.length, None);
        column!(Int64Type, &rows.result, None);
        column!(Int64Type, &rows.bytes, None);
        group.close().map_err(other)?;
        Ok(())
    }
}
