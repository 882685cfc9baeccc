//! A record that is open: taking events, putting them on flash, and giving them back.

use super::line;
use super::segment::{self, Segment};
use super::{EVENT_SEGMENT_BYTES, EVENT_SEGMENTS};
use crate::flash::replace_file;
use forebay_failpoint::step;
use forebay_proto::Errno;
use forebay_proto::control::ControlError;
use forebay_proto::events::{
    EVENTS_PAGE_BYTES_MAX, EVENTS_PAGE_MAX, EVENTS_WAIT_MAX_MS, Event, EventKind, EventsPage,
    EventsQuery, Happened, UtcTime,
};
use parking_lot::{Condvar, Mutex};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const WHAT: &str = "keep the events in";

/// A record of events.
pub struct EventLog {
    dir: PathBuf,
    /// Whose: 32 hex digits.
    of: String,
    inner: Mutex<Inner>,
    more: Condvar,
    recorded: AtomicU64,
    lost: AtomicU64,
}

struct Inner {
    /// The oldest first; the last is written to, through `file`.
    segments: Vec<Segment>,
    file: File,
    /// Bytes of the last segment.
    bytes: u64,
    /// Number of the next event.
    next: u64,
    /// Events lost that no event says yet, and why.
    unsaid: u64,
    errno: i32,
}

fn failed(dir: &Path, error: &io::Error) -> ControlError {
    let told = ControlError::io(WHAT, Some(dir), error);
    match error.raw_os_error() {
        Some(libc::EPROTONOSUPPORT) => {
            ControlError::new(WHAT, Some(dir), "they have another format")
                .errno(libc::EPROTONOSUPPORT)
                .hint("use the version of forebay that made them")
        }
        Some(libc::ENOSPC) => told.hint("make room on flash"),
        _ => told,
    }
}

impl EventLog {
    /// Opens the record of `of` in `dir`, or begins one. What a kill left is settled: a torn end is
    /// cut, a segment that was being begun is removed.
    pub fn open(dir: &Path, of: &str) -> Result<EventLog, ControlError> {
        let inner = open(dir, of).map_err(|error| failed(dir, &error))?;
        Ok(EventLog {
            dir: dir.to_path_buf(),
            of: of.to_string(),
            inner: Mutex::new(inner),
            more: Condvar::new(),
            recorded: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        })
    }

    /// Records what has just happened; all of it survives a kill -9 when this returns. What
    /// cannot be written is logged and counted, and does not stop what it is about.
    pub fn record(&self, happened: &[Happened]) {
        if happened.is_empty() {
            return;
        }
        let mut inner = self.inner.lock();
        match self.append(&mut inner, happened) {
            Ok(()) => {
                self.recorded.fetch_add(happened.len() as u64, Relaxed);
            }
            Err(error) => {
                let lost = happened.len() as u64;
                self.lost.fetch_add(lost, Relaxed);
                inner.unsaid += lost;
                inner.errno = error.raw_os_error().unwrap_or(libc::EIO);
                tracing::error!(dir = %self.dir.display(), %error, lost, "events cannot be written");
            }
        }
        drop(inner);
        self.more.notify_all();
    }

    fn append(&self, inner: &mut Inner, happened: &[Happened]) -> io::Result<()> {
        let time = UtcTime::now();
        let mut next = inner.next;
        let mut lines = Vec::new();
        let lost = (inner.unsaid > 0).then(|| Happened {
            files: Some(inner.unsaid),
            errno: Some(inner.errno),
            note: Some("events could not be written before this one".into()),
            ..Happened::of(EventKind::Lost, 0)
        });
        for happened in lost.iter().chain(happened) {
            line::put(&Event { seq: next, time, happened: happened.clone() }, &mut lines)?;
            next += 1;
        }
        // Not over the end of the room that was taken for the segment.
        let holds = inner.segments.last().is_some_and(|segment| segment.first < inner.next);
        if holds && inner.bytes + lines.len() as u64 > EVENT_SEGMENT_BYTES {
            self.rotate(inner)?;
        }
        write(inner, &lines)?;
        step("events are written");
        inner.next = next;
        inner.unsaid = 0;
        Ok(())
    }

    /// Begins the next segment, with room for all of it. Where flash is full, older ones give it, but
    /// the last that holds something stays.
    fn rotate(&self, inner: &mut Inner) -> io::Result<()> {
        inner.file.sync_data()?;
        let (segment, file, bytes) = loop {
            match segment::begin(&self.dir, &self.of, inner.next, true) {
                Err(error) if full(&error) && inner.segments.len() > 1 => remove_oldest(inner),
                begun => break begun?,
            }
        };
        inner.segments.push(segment);
        (inner.file, inner.bytes) = (file, bytes);
        while inner.segments.len() > EVENT_SEGMENTS {
            remove_oldest(inner);
        }
        Ok(())
    }

    /// Puts all that was recorded on flash.
    pub fn sync(&self) -> Result<(), ControlError> {
        let file = self.inner.lock().file.try_clone();
        file.and_then(|file| file.sync_data()).map_err(|error| failed(&self.dir, &error))
    }

    /// Records, and puts it on flash. An error is logged and counted as in [`EventLog::record`].
    pub fn record_durably(&self, happened: &[Happened]) {
        self.record(happened);
        if let Err(error) = self.sync() {
            tracing::error!("{error}");
        }
    }

    /// Part of the record, of what `may_see` lets pass.
    pub fn read(
        &self,
        query: &EventsQuery,
        may_see: &dyn Fn(&Event) -> bool,
    ) -> Result<EventsPage, ControlError> {
        let until = Instant::now() + Duration::from_millis(query.wait_ms.min(EVENTS_WAIT_MAX_MS));
        let segments = {
            let mut inner = self.inner.lock();
            while inner.next <= query.after + 1 {
                if self.more.wait_until(&mut inner, until).timed_out() {
                    break;
                }
            }
            if inner.next <= query.after + 1 {
                let oldest = inner.segments[0].first;
                return Ok(EventsPage { next_after: query.after, oldest, ..EventsPage::default() });
            }
            inner.segments.clone()
        };
        page(&segments, Some(&self.of), query, may_see).map_err(|error| failed(&self.dir, &error))
    }

    /// True if it has no event.
    pub fn is_empty(&self) -> bool {
        self.inner.lock().next == 1
    }

    /// Events recorded, and lost, since it was opened.
    pub fn counts(&self) -> (u64, u64) {
        (self.recorded.load(Relaxed), self.lost.load(Relaxed))
    }

    /// Writes all that the record holds to one file `NAME` in `dir`, durably, for
    /// [`read_kept`]; an older one is replaced. The number of its bytes.
    pub fn copy_to(&self, dir: &Path, name: &str) -> Result<u64, ControlError> {
        let segments = self.inner.lock().segments.clone();
        let first = segments[0].first;
        let gathered = (|| {
            let mut text = Vec::new();
            line::put(&line::Head { format: line::FORMAT, of: self.of.clone(), first }, &mut text)?;
            for segment in &segments {
                let mut failed = None;
                segment::read(segment, Some(&self.of), &mut |event, _| {
                    failed = line::put(&event, &mut text).err();
                    failed.is_none()
                })?;
                failed.map_or(Ok(()), Err)?;
            }
            Ok(text)
        })();
        let text = gathered.map_err(|error| failed(&self.dir, &error))?;
        replace_file(dir, name, &format!("{name}.tmp"), &text, WHAT)?;
        Ok(text.len() as u64)
    }
}

fn remove_oldest(inner: &mut Inner) {
    let oldest = inner.segments.remove(0);
    step("the oldest events are to go");
    if let Err(errno) = segment::remove(&oldest) {
        tracing::warn!(path = %oldest.path.display(), %errno, "old events stay");
    }
}

/// Writes all of the lines or nothing: part of one would be taken for a torn end, and what follows
/// be cut with it.
fn write(inner: &mut Inner, lines: &[u8]) -> io::Result<()> {
    if let Err(error) = inner.file.write_all(lines) {
        inner.file.set_len(inner.bytes)?;
        return Err(error);
    }
    inner.bytes += lines.len() as u64;
    Ok(())
}

fn full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

fn open(dir: &Path, of: &str) -> io::Result<Inner> {
    fs::create_dir_all(dir)?;
    let mut segments = segment::list(dir)?;
    loop {
        let Some(newest) = segments.last() else {
            let (segment, file, bytes) = segment::begin(dir, of, 1, false)?;
            segments.push(segment);
            return Ok(Inner { segments, file, bytes, next: 1, unsaid: 0, errno: 0 });
        };
        let Some(content) = segment::read(newest, Some(of), &mut |_, _| true)? else {
            segment::remove(newest)?;
            segments.pop();
            continue;
        };
        let file = segment::reopen(newest, &content)?;
        let (bytes, next) = (content.good_bytes, content.last + 1);
        return Ok(Inner { segments, file, bytes, next, unsaid: 0, errno: 0 });
    }
}

/// Events of some segments. One that has given way meanwhile is passed over.
fn page(
    segments: &[Segment],
    of: Option<&str>,
    query: &EventsQuery,
    may_see: &dyn Fn(&Event) -> bool,
) -> io::Result<EventsPage> {
    let oldest = segments.first().map_or(1, |segment| segment.first);
    let mut page = EventsPage { next_after: query.after, oldest, ..EventsPage::default() };
    let mut page_bytes = 0;
    for (index, segment) in segments.iter().enumerate() {
        let after_it = segments.get(index + 1).map(|next| next.first);
        if after_it.is_some_and(|first| first <= query.after + 1) {
            continue;
        }
        let read = segment::read(segment, of, &mut |event, bytes| {
            if event.seq <= query.after {
                return true;
            }
            let is_full = page.events.len() >= EVENTS_PAGE_MAX
                || page_bytes + bytes > EVENTS_PAGE_BYTES_MAX && !page.events.is_empty();
            if is_full {
                page.more = true;
                return false;
            }
            page.next_after = event.seq;
            if query.since.is_none_or(|since| event.time >= since) && may_see(&event) {
                page_bytes += bytes;
                page.events.push(event);
            }
            true
        });
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
            Ok(_) if page.more => break,
            Ok(_) => {}
        }
    }
    Ok(page)
}

/// The events in a file that [`EventLog::copy_to`] wrote.
pub fn read_kept(
    path: &Path,
    query: &EventsQuery,
    may_see: &dyn Fn(&Event) -> bool,
) -> Result<EventsPage, ControlError> {
    let read = (|| {
        let head = io::BufReader::new(File::open(path)?);
        let mut text = Vec::new();
        io::BufRead::read_until(&mut { head }, b'\n', &mut text)?;
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "its first line is damaged");
        let head = line::take::<line::Head>(&text).ok_or_else(damaged)?;
        let segment = Segment { path: path.to_path_buf(), first: head.first };
        page(&[segment], None, query, may_see)
    })();
    read.map_err(|error| failed(path, &error))
}

/// Removes the oldest files of a directory until at most `most` with at most `most_bytes` stay.
pub fn keep(dir: &Path, most: usize, most_bytes: u64) -> Result<(), Errno> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        files.push((meta.modified()?, meta.len(), entry.path()));
    }
    files.sort();
    let mut bytes: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
    let mut count = files.len();
    for (_, len, path) in files {
        if count <= most && bytes <= most_bytes {
            break;
        }
        fs::remove_file(path)?;
        (count, bytes) = (count - 1, bytes - len);
    }
    Ok(())
}
