//! The record in one process, and killed at each of its steps.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use super::*;
use forebay_failpoint::kill::run_killed;
use forebay_proto::events::{Event, EventKind, EventsQuery, Happened, UtcTime};
use std::fs;
use std::path::Path;

const OF: &str = "0123456789abcdef0123456789abcdef";

fn open(dir: &Path) -> EventLog {
    EventLog::open(dir, OF).unwrap()
}

fn numbered(number: u64) -> Happened {
    Happened { bytes: Some(number), ..Happened::of(EventKind::Staged, 1000) }
}

/// All that there is, page by page.
fn all(log: &EventLog) -> Vec<Event> {
    let (mut query, mut events) = (EventsQuery::default(), Vec::new());
    loop {
        let page = log.read(&query, &|_| true).unwrap();
        events.extend(page.events);
        query.after = page.next_after;
        if !page.more {
            return events;
        }
    }
}

#[test]
fn events_come_back_in_order_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let before = UtcTime::now();
    let log = open(dir.path());
    log.record(&[numbered(1), numbered(2)]);
    log.record_durably(&[numbered(3)]);
    drop(log);
    let log = open(dir.path());
    log.record(&[numbered(4)]);
    let events = all(&log);
    let told: Vec<_> = events.iter().map(|e| (e.seq, e.happened.bytes.unwrap())).collect();
    assert_eq!(told, [(1, 1), (2, 2), (3, 3), (4, 4)]);
    assert!(events.iter().all(|e| e.time >= before && e.time <= UtcTime::now()));
    let query = EventsQuery { after: 2, ..EventsQuery::default() };
    assert_eq!(log.read(&query, &|_| true).unwrap().events, events[2..]);
    let query = EventsQuery { since: Some(events[3].time), ..EventsQuery::default() };
    assert_eq!(log.read(&query, &|_| true).unwrap().events, events[3..]);
    let mine = log.read(&EventsQuery::default(), &|e| e.happened.bytes == Some(2)).unwrap();
    assert_eq!((mine.events.len(), mine.next_after), (1, 4));
}

#[test]
fn the_record_is_bounded_and_says_what_has_given_way() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let long = Happened { note: Some("x".repeat(60_000)), ..numbered(0) };
    let events = EVENT_SEGMENT_BYTES * (EVENT_SEGMENTS as u64 + 3) / 60_000;
    for _ in 0..events {
        log.record(std::slice::from_ref(&long));
    }
    let sizes: Vec<u64> =
        fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).collect();
    assert_eq!(sizes.len(), EVENT_SEGMENTS);
    assert!(sizes.iter().all(|size| *size <= EVENT_SEGMENT_BYTES), "{sizes:?}");
    let kept = all(&log);
    let page = log.read(&EventsQuery::default(), &|_| true).unwrap();
    assert!(page.oldest > 1 && page.more);
    assert_eq!(kept.first().unwrap().seq, page.oldest);
    assert_eq!(kept.last().unwrap().seq, events);
    assert!(kept.windows(2).all(|two| two[0].seq + 1 == two[1].seq));
    drop(log);
    assert_eq!(all(&open(dir.path())), kept);
}

#[test]
fn a_torn_end_is_cut_and_numbers_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    (1..=3).for_each(|number| log.record(&[numbered(number)]));
    drop(log);
    let path = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    let whole = fs::read(&path).unwrap();
    for cut in 0..=whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        let lines = whole[..cut].iter().filter(|byte| **byte == b'\n').count() as u64;
        let log = open(dir.path());
        log.record(&[numbered(9)]);
        let told: Vec<_> = all(&log).iter().map(|e| (e.seq, e.happened.bytes.unwrap())).collect();
        let whole_events = lines.saturating_sub(1);
        let mut wanted: Vec<_> = (1..=whole_events).map(|number| (number, number)).collect();
        wanted.push((whole_events + 1, 9));
        assert_eq!(told, wanted, "cut at {cut}");
    }
    // A bit that has changed ends what can be believed; nothing behind it is shown as true.
    let mut flipped = whole.clone();
    let at = whole.len() - 20;
    flipped[at] ^= 1;
    fs::write(&path, &flipped).unwrap();
    assert_eq!(all(&open(dir.path())).len(), 2);
}

#[test]
fn another_format_or_owner_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    let error = EventLog::open(dir.path(), &"f".repeat(32)).err().unwrap().to_string();
    assert!(error.contains("another record") && error.contains(OF), "{error}");
    let path = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    let mut text = Vec::new();
    line::put(&line::Head { format: 99, of: OF.into(), first: 1 }, &mut text).unwrap();
    fs::write(&path, text).unwrap();
    let error = EventLog::open(dir.path(), OF).err().unwrap();
    assert_eq!(error.errno, Some(libc::EPROTONOSUPPORT));
    assert!(error.to_string().contains("another format"), "{error}");
}

#[test]
fn who_waits_hears_of_the_next_event_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let query = EventsQuery { wait_ms: 20, ..EventsQuery::default() };
    let none = log.read(&query, &|_| true).unwrap();
    assert_eq!((none.events.len(), none.next_after), (0, 0));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let query = EventsQuery { wait_ms: 60_000, ..EventsQuery::default() };
            log.read(&query, &|_| true).unwrap()
        });
        std::thread::sleep(std::time::Duration::from_millis(30));
        log.record(&[numbered(1)]);
        assert_eq!(waiting.join().unwrap().events.len(), 1);
    });
}

/// On a full file system: what cannot be written is counted and said later, what is there stays.
#[test]
fn events_that_find_no_room_are_counted_and_said() {
    assert!(rustix::process::geteuid().is_root(), "it mounts: run this test as root");
    let dir = tempfile::tempdir().unwrap();
    let options = std::ffi::CString::new("size=3m").unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("test", dir.path(), "tmpfs", flags, options.as_c_str()).unwrap();
    let result = std::panic::catch_unwind(|| full_flash(dir.path()));
    rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
    result.unwrap();
}

fn full_flash(dir: &Path) {
    let record = dir.join("events");
    let log = open(&record);
    let filler = dir.join("filler");
    let fill = || {
        let mut file = fs::File::options().append(true).create(true).open(&filler).unwrap();
        while std::io::Write::write_all(&mut file, &[1; 4096]).is_ok() {}
    };
    fill();
    // The room of the segment is there.
    let long = Happened { note: Some("x".repeat(10_000)), ..numbered(5) };
    while log.counts().1 == 0 {
        log.record(std::slice::from_ref(&long));
    }
    let kept = all(&log).len();
    assert!(kept > 90, "{kept}");
    log.record(&[long.clone(), long.clone()]);
    assert_eq!((all(&log).len(), log.counts().1), (kept, 3));
    fs::remove_file(&filler).unwrap();
    log.record(std::slice::from_ref(&long));
    let events = all(&log);
    let said = &events[kept].happened;
    assert_eq!(
        (said.event, said.files, said.errno),
        (EventKind::Lost, Some(3), Some(libc::ENOSPC))
    );
    assert_eq!(events[kept + 1].happened, long);
    // With more than one segment, the oldest makes room for the next one.
    fill();
    for _ in 0..300 {
        log.record(std::slice::from_ref(&long));
    }
    assert!(log.read(&EventsQuery::default(), &|_| true).unwrap().oldest > 1);
    assert_eq!(log.counts().1, 3);
}

const CHILD_DIR: &str = "FOREBAY_TEST_EVENTS_DIR";
const CHILD_EVENTS: u64 = 70;

/// Not a test by itself: the process that is killed. It tells what it has recorded.
#[test]
fn child_recorder() {
    let Ok(dir) = std::env::var(CHILD_DIR) else { return };
    let log = open(Path::new(&dir));
    for number in 1..=CHILD_EVENTS {
        log.record(&[Happened {
            note: Some("x".repeat(EVENT_SEGMENT_BYTES as usize / 2)),
            ..numbered(number)
        }]);
        fs::write(Path::new(&dir).join("told"), number.to_string()).unwrap();
    }
}

#[test]
fn a_process_killed_at_any_step_lost_no_event_that_it_was_told_of() {
    let mut places = Vec::new();
    let mut at = 1;
    loop {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().to_str().unwrap();
        let killed = run_killed("events::tests::child_recorder", &[(CHILD_DIR, path)], at);
        let told: u64 =
            fs::read_to_string(dir.path().join("told")).map_or(0, |t| t.parse().unwrap());
        let log = open(dir.path());
        let events = all(&log);
        let last = events.last().map_or(0, |event| event.happened.bytes.unwrap());
        // The one under way may be there or not; none is there twice, none is missing.
        assert!(last == told || last == told + 1, "{killed:?}: told {told}, found {last}");
        assert!(events.windows(2).all(|two| two[0].seq + 1 == two[1].seq), "{killed:?}");
        assert!(events.iter().all(|event| event.happened.bytes == Some(event.seq)), "{killed:?}");
        log.record(&[numbered(last + 1)]);
        assert_eq!(all(&log).last().unwrap().seq, last + 1, "{killed:?}");
        match killed {
            Some(place) => places.push(place),
            None => break,
        }
        // All of the first steps, then some of the many alike.
        at += if at < 12 { 1 } else { 7 };
    }
    for place in [
        "a segment of events has its name",
        "a segment of events has its head",
        "events are written",
        "the oldest events are to go",
    ] {
        assert!(places.iter().any(|killed| killed == place), "never killed after: {place}");
    }
}

#[test]
fn the_record_of_a_destroyed_buffer_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir.path().join("log"));
    (1..=30).for_each(|number| {
        let long = "x".repeat(EVENT_SEGMENT_BYTES as usize / 8);
        log.record(&[Happened { note: Some(long), ..numbered(number) }]);
    });
    let ended = dir.path().join("ended");
    fs::create_dir(&ended).unwrap();
    let bytes = log.copy_to(&ended, "one").unwrap();
    assert_eq!(bytes, fs::metadata(ended.join("one")).unwrap().len());
    let mut query = EventsQuery::default();
    let mut kept = Vec::new();
    loop {
        let page = read_kept(&ended.join("one"), &query, &|_| true).unwrap();
        kept.extend(page.events);
        query.after = page.next_after;
        if !page.more {
            break;
        }
    }
    assert_eq!(kept, all(&log));
    log.copy_to(&ended, "two").unwrap();
    keep(&ended, 1, u64::MAX).unwrap();
    let left: Vec<_> = fs::read_dir(&ended).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["two"]);
    keep(&ended, 1, bytes - 1).unwrap();
    assert_eq!(fs::read_dir(&ended).unwrap().count(), 0);
}
