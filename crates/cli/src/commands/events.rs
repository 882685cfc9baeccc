//! `forebay events`: the event record of a buffer, or of a server.

use super::looking::{Looking, Work};
use super::stager::served_name;
use super::top::is_closed;
use super::which_buffer;
use crate::args::EventsArgs;
use crate::failure::{EXIT_FAILED, EXIT_OK, Outcome, print_json, visible};
use crate::json;
use crate::servers::Server;
use forebay_client::{Control, MountRef};
use forebay_proto::Errno;
use forebay_proto::control::ControlError;
use forebay_proto::events::{
    EVENTS_WAIT_MAX_MS, Event, EventKind, EventRecord, EventsPage, EventsQuery,
};
use forebay_proto::net::ledger::{BufferName, LedgerReply, LedgerRequest};
use forebay_proto::size::format_bytes;
use std::io::{self, Write};

/// Runs the command.
pub fn run(args: EventsArgs) -> Outcome {
    let mut source = Source::connect(&args)?;
    let first = EventsQuery { since: args.since, ..EventsQuery::default() };
    let mut records = source.records();
    let mut shown = Vec::new();
    let mut next = Vec::new();
    let mut code = EXIT_OK;
    let looking = source.looking();
    // A buffer's own record says where the others are.
    while let Some(record) = records.get(next.len()).cloned() {
        match read_all(&mut source, &record, first, &mut shown) {
            Ok((query, others)) => {
                next.push(query);
                records.extend(others);
            }
            // The others prove what they have.
            Err(error) if matches!(record, EventRecord::Part { .. }) => {
                eprintln!("forebay: events of one server are missing here: {error}");
                code = EXIT_FAILED;
                records.remove(next.len());
            }
            Err(error) => return Err(error.into()),
        }
    }
    // What happens from here on may be waited for without end.
    drop(looking);
    // Each record is in order; between them only the clocks can tell.
    if records.len() > 1 {
        shown.sort_by_key(|event| event.time);
    }
    if let Done::Closed = print(&shown, args.json)? {
        return Ok(code);
    }
    if shown.is_empty() && !args.follow && !args.json {
        eprintln!("forebay: no events");
    }
    match args.follow {
        true => follow(&mut source, &records, next, args.json),
        false => Ok(code),
    }
}

/// Reads what a record has now: where to go on, and which other records there are.
fn read_all(
    source: &mut Source,
    record: &EventRecord,
    mut query: EventsQuery,
    shown: &mut Vec<Event>,
) -> Result<(EventsQuery, Vec<EventRecord>), ControlError> {
    loop {
        let page = source.read(record, query)?;
        if query.after == 0 && page.oldest > 1 && query.since.is_none() {
            eprintln!("forebay: events before number {} have given way to later ones", page.oldest);
        }
        query.after = page.next_after;
        shown.extend(page.events);
        if !page.more {
            return Ok((query, page.others));
        }
    }
}

/// Prints events as they happen, until nobody reads them.
fn follow(
    source: &mut Source,
    records: &[EventRecord],
    mut next: Vec<EventsQuery>,
    json: bool,
) -> Outcome {
    loop {
        for (record, query) in records.iter().zip(&mut next) {
            // One waits, so that the others are looked at in between.
            let waits = *record == EventRecord::Buffer || source.only_server();
            query.wait_ms = if waits { EVENTS_WAIT_MAX_MS } else { 0 };
            let page = source.read(record, *query)?;
            query.after = page.next_after;
            if let Done::Closed = print(&page.events, json)? {
                return Ok(EXIT_OK);
            }
        }
    }
}

/// Who has the record.
enum Source {
    /// The server of a mount; `served` if that is a `forebay serve`.
    Mounted { control: Box<Control>, place: MountRef, served: bool },
    /// A server: of one of its buffers, or of itself.
    Server { server: Box<Server>, name: Option<BufferName> },
}

impl Source {
    fn connect(args: &EventsArgs) -> anyhow::Result<Source> {
        let name = args.target.as_deref().and_then(served_name);
        if name.is_some() || (args.target.is_none() && args.at.server.is_some()) {
            let server = Box::new(Server::connect(&args.at, name.as_ref())?);
            return Ok(Source::Server { server, name });
        }
        let (mut control, place) = which_buffer::connect(args.target.as_deref(), &[])?;
        let served = control.buffer_status()?.buffer.is_some();
        Ok(Source::Mounted { control: Box::new(control), place, served })
    }

    /// Tells whom the mount waits for while it is asked.
    fn looking(&self) -> Option<Looking> {
        match self {
            Source::Mounted { place, .. } => {
                Some(Looking::in_mount(place, Work::Other("read the events of")))
            }
            Source::Server { .. } => None,
        }
    }

    fn only_server(&self) -> bool {
        matches!(self, Source::Server { name: None, .. })
    }

    fn records(&self) -> Vec<EventRecord> {
        match self {
            Source::Mounted { served: false, .. } => vec![EventRecord::Buffer],
            _ if self.only_server() => vec![EventRecord::Server],
            _ => vec![EventRecord::Server, EventRecord::Buffer],
        }
    }

    fn read(
        &mut self,
        record: &EventRecord,
        query: EventsQuery,
    ) -> Result<EventsPage, ControlError> {
        let record = record.clone();
        match self {
            Source::Mounted { control, .. } => control.events(record, query),
            Source::Server { server, name } => {
                match server.ask(&LedgerRequest::Events { name: name.clone(), record, query })? {
                    LedgerReply::Events(page) => Ok(page),
                    _ => Err(server.unexpected()),
                }
            }
        }
    }
}

enum Done {
    Printed,
    /// Nobody reads any more, as after `| head`.
    Closed,
}

fn print(events: &[Event], json: bool) -> anyhow::Result<Done> {
    for event in events {
        let printed = match json {
            true => print_json(&json::event(event)?),
            false => writeln!(io::stdout(), "{}", line(event)).map_err(Into::into),
        };
        match printed {
            Err(error) if is_closed(&error) => return Ok(Done::Closed),
            printed => printed?,
        }
    }
    io::stdout().flush()?;
    Ok(Done::Printed)
}

/// An event for people: when, what, then what it has.
fn line(event: &Event) -> String {
    let happened = &event.happened;
    let mut text = format!("{} {:<9}", event.time, happened.event.name());
    let mut add = |more: String| {
        text.push_str("  ");
        text.push_str(&more);
    };
    if let Some(buffer) = &happened.buffer {
        add(format!("buffer {buffer}"));
    }
    if let Some(plan) = happened.plan {
        add(format!("plan {plan}"));
    }
    if let Some(path) = &happened.path {
        add(path.to_string());
    }
    if let Some(files) = happened.files {
        let of = if happened.event == EventKind::Lost { "events" } else { "files" };
        add(format!("{files} {of}"));
    }
    match happened.bytes {
        Some(bytes) if bytes < 1024 => add(format!("{bytes} bytes")),
        Some(bytes) => add(format!("{bytes} bytes ({})", format_bytes(bytes))),
        None => {}
    }
    if let Some(crc) = happened.crc32c {
        add(format!("crc32c {crc:08x}"));
    }
    if let Some(how) = happened.verified {
        add(super::plan_text::verified_text(how).into());
    }
    if let Some(errno) = happened.errno {
        add(Errno(errno).to_string());
    }
    if let Some(note) = &happened.note {
        add(note.clone());
    }
    add(format!("user {}", happened.uid));
    visible(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::PlanId;
    use forebay_proto::control::{PathBytes, Verify};
    use forebay_proto::events::{Happened, UtcTime};

    #[test]
    fn events_are_told_on_one_line_each() {
        let event = |happened| Event { seq: 1, time: UtcTime(0), happened };
        let staged = Happened {
            plan: Some(PlanId(3)),
            path: Some(PathBytes::new(b"/pfs/a\nb")),
            bytes: Some(5 << 20),
            crc32c: Some(0xabc),
            verified: Some(Verify::Medium),
            ..Happened::of(EventKind::Staged, 1000)
        };
        let text = line(&event(staged));
        assert!(!text.contains('\n'), "{text}");
        for part in [
            "1970-01-01T00:00:00.000000000Z staged",
            "plan 3",
            "/pfs/a",
            "5242880 bytes (5.00 MiB)",
            "crc32c 00000abc",
            "verified: read back from the medium",
            "user 1000",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let failed = Happened { errno: Some(libc::ENOSPC), ..Happened::of(EventKind::Failed, 0) };
        assert!(line(&event(failed)).contains("ENOSPC"));
    }
}
