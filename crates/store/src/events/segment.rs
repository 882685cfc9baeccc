//! The files of a record: `NUMBER.events`, by the number of their first event. Only the newest is
//! written to. A segment whose head is not whole was being begun when the process died: it held
//! nothing, and is removed.

use super::line::{self, FORMAT, Head};
use forebay_proto::Errno;
use forebay_proto::events::Event;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::EVENT_SEGMENT_BYTES;
use forebay_failpoint::step;

/// How the files are named.
const SUFFIX: &str = ".events";

/// A file of a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Segment {
    pub path: PathBuf,
    /// Number of its first event.
    pub first: u64,
}

/// The segments in a directory, the oldest first.
pub(super) fn list(dir: &Path) -> io::Result<Vec<Segment>> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let first = name.and_then(|name| name.strip_suffix(SUFFIX)?.parse().ok());
        segments.extend(first.map(|first| Segment { path: path.clone(), first }));
    }
    segments.sort_by_key(|segment| segment.first);
    Ok(segments)
}

/// Begins a segment, durably: its name is on flash, with its head, before an event is in it. The room
/// of a whole segment is taken; `must_have_room`: ENOSPC where that cannot be had, else each event
/// takes its own.
pub(super) fn begin(
    dir: &Path,
    of: &str,
    first: u64,
    must_have_room: bool,
) -> io::Result<(Segment, File, u64)> {
    let path = dir.join(format!("{first:016}{SUFFIX}"));
    let begun = (|| {
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)?;
        // What an earlier try left.
        file.set_len(0)?;
        step("a segment of events has its name");
        let mut head = Vec::new();
        line::put(&Head { format: FORMAT, of: of.into(), first }, &mut head)?;
        file.write_all(&head)?;
        match fallocate(&file, FallocateFlags::KEEP_SIZE, 0, EVENT_SEGMENT_BYTES) {
            Err(rustix::io::Errno::NOSPC) if must_have_room => {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            Err(error) => tracing::debug!(%error, "no room is kept for events"),
            Ok(()) => {}
        }
        file.sync_all()?;
        File::open(dir)?.sync_all()?;
        step("a segment of events has its head");
        Ok((file, head.len() as u64))
    })();
    match begun {
        Ok((file, bytes)) => Ok((Segment { path, first }, file, bytes)),
        Err(error) => {
            // It would be removed by the next start anyway.
            let _ = fs::remove_file(&path);
            Err(error)
        }
    }
}

/// What a segment holds.
pub(super) struct Content {
    /// Bytes of whole lines, from the start of the file.
    pub good_bytes: u64,
    /// True if something that is no line follows.
    pub torn: bool,
    /// Number of its last event, `first - 1` if it has none.
    pub last: u64,
}

/// Reads a segment up to its end or its first bad line, and hands its events over until `sink`
/// says that it has enough. `None`: it has no head. EPROTONOSUPPORT: it has another format.
pub(super) fn read(
    segment: &Segment,
    of: Option<&str>,
    sink: &mut dyn FnMut(Event, usize) -> bool,
) -> io::Result<Option<Content>> {
    let mut reader = BufReader::new(File::open(&segment.path)?);
    let mut text = Vec::new();
    let head_bytes = reader.read_until(b'\n', &mut text)?;
    let Some(head) = line::take::<Head>(&text) else { return Ok(None) };
    if head.format != FORMAT {
        return Err(io::Error::from_raw_os_error(libc::EPROTONOSUPPORT));
    }
    if head.first != segment.first || of.is_some_and(|of| of != head.of) {
        let why = format!("{} belongs to another record ({})", segment.path.display(), head.of);
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let mut content =
        Content { good_bytes: head_bytes as u64, torn: false, last: head.first.saturating_sub(1) };
    loop {
        text.clear();
        let bytes = reader.read_until(b'\n', &mut text)?;
        if bytes == 0 {
            return Ok(Some(content));
        }
        let Some(event) = line::event(&text) else {
            content.torn = true;
            return Ok(Some(content));
        };
        content.good_bytes += bytes as u64;
        content.last = event.seq;
        if !sink(event, bytes) {
            return Ok(Some(content));
        }
    }
}

/// Opens the newest segment to go on: a torn end is cut.
pub(super) fn reopen(segment: &Segment, content: &Content) -> io::Result<File> {
    let file = OpenOptions::new().append(true).open(&segment.path)?;
    if content.torn {
        tracing::warn!(path = %segment.path.display(), "the torn end of the events is cut");
        file.set_len(content.good_bytes)?;
        step("a torn end of events is cut");
    }
    Ok(file)
}

/// Removes a segment.
pub(super) fn remove(segment: &Segment) -> Result<(), Errno> {
    fs::remove_file(&segment.path).map_err(|error| Errno::from_io(&error))
}
