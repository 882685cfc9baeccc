//! `forebay top`: what buffers do now, one line each, again and again. A buffer of several servers is
//! one line: the sum of what its servers tell.

mod asked;

use crate::args::TopArgs;
use crate::failure::{EXIT_OK, Outcome, print_json, visible};
use asked::Asked;
use forebay_proto::metrics::{BufferMetrics, ServerMetrics};
use forebay_proto::size::format_bytes;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// Time between the two looks of `--once`.
const ONCE_INTERVAL: Duration = Duration::from_secs(1);
/// Clears a terminal from its first line on.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Runs the command.
pub fn run(args: TopArgs) -> Outcome {
    let mut asked = Asked::connect(&args)?;
    let mut before = asked.look()?;
    let interval = if args.once { ONCE_INTERVAL } else { Duration::from_secs(args.interval) };
    let terminal = io::stdout().is_terminal();
    loop {
        std::thread::sleep(interval);
        let now = asked.look()?;
        let lines = whole_buffers(rates(&before, &now), asked.is_pool());
        let printed = match args.json {
            true => print_json(&lines),
            false => print(&lines, &asked.unheard, terminal && !args.once),
        };
        match printed {
            // Nobody reads any more, as after `| head`.
            Err(error) if is_closed(&error) => return Ok(EXIT_OK),
            printed => printed?,
        }
        if args.once {
            return Ok(EXIT_OK);
        }
        before = now;
    }
}

/// Nobody reads what is printed.
pub fn is_closed(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// One buffer with its rates.
#[derive(serde::Serialize)]
struct Line {
    /// Servers that told of it.
    servers: u32,
    /// Bytes per second; `None` if it was not there before.
    read_bytes_per_s: Option<f64>,
    written_bytes_per_s: Option<f64>,
    /// May be negative.
    used_bytes_per_s: Option<f64>,
    calls_per_s: Option<f64>,
    #[serde(flatten)]
    now: BufferMetrics,
}

fn rates(before: &[ServerMetrics], now: &[ServerMetrics]) -> Vec<Line> {
    let mut lines = Vec::new();
    for server in now {
        for buffer in &server.buffers {
            let earlier = before.iter().filter(|b| b.pid == server.pid && b.host == server.host);
            let found = earlier
                .filter_map(|s| Some((s, s.buffers.iter().find(|b| b.uuid == buffer.uuid)?)))
                .next();
            let per_s = |of: &dyn Fn(&BufferMetrics) -> u64| {
                let (server_then, then) = found?;
                let seconds = server.time.0.checked_sub(server_then.time.0)? as f64 / 1e9;
                (seconds > 0.0).then(|| (of(buffer) as f64 - of(then) as f64) / seconds)
            };
            lines.push(Line {
                servers: 1,
                read_bytes_per_s: per_s(&|b| b.read_bytes),
                written_bytes_per_s: per_s(&|b| b.written_bytes),
                used_bytes_per_s: per_s(&|b| b.used_bytes),
                calls_per_s: per_s(&BufferMetrics::call_count),
                now: buffer.clone(),
            });
        }
    }
    lines
}

/// The parts of a buffer on the servers of one pool, where its name means it, are one line.
fn whole_buffers(lines: Vec<Line>, pool: bool) -> Vec<Line> {
    if !pool {
        return lines;
    }
    let mut whole: Vec<Line> = Vec::new();
    for line in lines {
        let Some(found) = whole.iter_mut().find(|w| w.now.buffer == line.now.buffer) else {
            whole.push(line);
            continue;
        };
        let sum = |a: &mut Option<f64>, b: Option<f64>| *a = a.zip(b).map(|(a, b)| a + b);
        sum(&mut found.read_bytes_per_s, line.read_bytes_per_s);
        sum(&mut found.written_bytes_per_s, line.written_bytes_per_s);
        sum(&mut found.used_bytes_per_s, line.used_bytes_per_s);
        sum(&mut found.calls_per_s, line.calls_per_s);
        found.servers += line.servers;
        found.now.add(&line.now);
    }
    whole
}

fn print(lines: &[Line], unheard: &[String], refresh: bool) -> anyhow::Result<()> {
    let mut text = String::new();
    if refresh {
        text.push_str(CLEAR);
    }
    text += &table(lines);
    for why in unheard {
        text += &visible(&format!("not heard: {why}"));
        text.push('\n');
    }
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

fn table(lines: &[Line]) -> String {
    let any_cache = lines.iter().any(|line| line.now.cache.is_some());
    let mut head = vec!["BUFFER", "USED", "OF", "USED/S"];
    if any_cache {
        head.extend(["DIRTY", "HITS"]);
    }
    head.extend(["IN/S", "OUT/S", "CALLS/S", "STAGING", "STAGE/S", "ETA"]);
    if any_cache {
        head.extend(["DRAIN/S", "CLEAN IN"]);
    }
    head.push("ERRORS");
    let mut rows = vec![head.into_iter().map(String::from).collect::<Vec<_>>()];
    rows.extend(lines.iter().map(|line| row(line, any_cache)));
    let columns = rows[0].len();
    let widths: Vec<usize> = (0..columns)
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let aligned = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, &width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string() + "\n"
    };
    rows.iter().map(aligned).collect()
}

fn row(line: &Line, any_cache: bool) -> Vec<String> {
    let b = &line.now;
    let name = visible(&b.buffer).into_owned();
    if !b.up {
        let mut row = vec![name, "not served".into()];
        row.resize(if any_cache { 15 } else { 11 }, String::new());
        return row;
    }
    let mut row = vec![
        name,
        format_bytes(b.used_bytes),
        format_bytes(b.capacity_bytes),
        rate(line.used_bytes_per_s),
    ];
    if any_cache {
        row.push(b.cache.as_ref().map_or("-".into(), |c| format_bytes(c.dirty_bytes)));
        let ratio = b.cache.as_ref().and_then(|c| c.hit_ratio());
        row.push(ratio.map_or("-".into(), |ratio| format!("{:.0} %", ratio * 100.0)));
    }
    // Into the buffer is what was written.
    row.push(rate(line.written_bytes_per_s));
    row.push(rate(line.read_bytes_per_s));
    row.push(line.calls_per_s.map_or("-".into(), |calls| format!("{calls:.0}")));
    row.push(staging(b));
    row.push(match b.staging.running {
        0 => "-".into(),
        _ => rate(Some(b.staging.rate_bytes_per_s)),
    });
    row.push(seconds(b.staging.eta_s));
    if any_cache {
        let cache = b.cache.as_ref();
        row.push(rate(cache.map(|c| c.drain_bytes_per_s)));
        row.push(seconds(cache.and_then(|c| c.drain_eta_s)));
    }
    row.push(b.error_count().to_string());
    row
}

/// Plans that run and wait, and what they have to do.
fn staging(b: &BufferMetrics) -> String {
    let plans = b.staging.running + b.staging.queued;
    match plans {
        0 => "-".into(),
        1 => format!("1 plan, {}", format_bytes(b.staging.backlog_bytes)),
        _ => format!("{plans} plans, {}", format_bytes(b.staging.backlog_bytes)),
    }
}

fn rate(bytes_per_s: Option<f64>) -> String {
    match bytes_per_s {
        None => "-".into(),
        Some(rate) if rate < 0.0 => format!("-{}", format_bytes(-rate as u64)),
        Some(rate) => format_bytes(rate as u64),
    }
}

fn seconds(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".into(),
        Some(s) if s < 100.0 => format!("{s:.0} s"),
        Some(s) if s < 6_000.0 => format!("{:.0} min", s / 60.0),
        Some(s) => format!("{:.1} h", s / 3_600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::events::UtcTime;
    use forebay_proto::metrics::{
        CacheMetrics, CallCount, ErrorCount, ErrorSource, StagingMetrics,
    };

    fn buffer(name: &str, used_bytes: u64, written_bytes: u64) -> BufferMetrics {
        let error = |errno, count| ErrorCount { source: ErrorSource::Calls, errno, count };
        BufferMetrics {
            buffer: name.into(),
            uuid: name.into(),
            up: true,
            capacity_bytes: 4 << 30,
            used_bytes,
            written_bytes,
            calls: vec![CallCount { kind: "write".into(), count: written_bytes >> 20 }],
            errors: vec![error(libc::ENOENT, 50), error(libc::EIO, 2)],
            ..BufferMetrics::default()
        }
    }

    fn server(seconds: u64, buffers: Vec<BufferMetrics>) -> ServerMetrics {
        ServerMetrics {
            time: UtcTime(seconds * 1_000_000_000),
            program: "1".into(),
            host: "node1".into(),
            pid: 7,
            uptime_s: 1.0,
            cpu_s: 1.0,
            resident_bytes: 1,
            capacity_bytes: None,
            reserved_bytes: None,
            buffers,
        }
    }

    #[test]
    fn buffers_are_shown_with_their_rates() {
        let mut staged = buffer("/mnt/b", 2 << 30, 40 << 20);
        staged.staging = StagingMetrics {
            running: 1,
            queued: 1,
            backlog_bytes: 1 << 30,
            rate_bytes_per_s: 1e8,
            eta_s: Some(10.7),
            ..StagingMetrics::default()
        };
        let gone = BufferMetrics { buffer: "broken".into(), ..BufferMetrics::default() };
        let before = server(10, vec![buffer("/mnt/b", 3 << 30, 0), buffer("run7", 0, 0)]);
        let now = server(12, vec![staged, buffer("run7", 4096, 0), buffer("new", 1, 1), gone]);
        insta::assert_snapshot!(table(&rates(&[before], &[now])));
    }

    #[test]
    fn the_parts_of_a_buffer_are_one_line() {
        let part = |used: u64, written: u64| buffer("run8", used, written);
        let on = |host: &str, seconds, buffers| ServerMetrics {
            host: host.into(),
            ..server(seconds, buffers)
        };
        let before = [on("a", 10, vec![part(1 << 20, 0)]), on("b", 20, vec![part(0, 0)])];
        let now = [
            on("a", 12, vec![part(3 << 20, 4 << 20), buffer("one", 1, 1)]),
            on("b", 22, vec![part(1 << 20, 2 << 20)]),
        ];
        let lines = whole_buffers(rates(&before, &now), true);
        assert_eq!(lines.len(), 2);
        let whole = &lines[0];
        assert_eq!((whole.servers, whole.now.capacity_bytes), (2, 8 << 30));
        assert_eq!(whole.now.used_bytes, 4 << 20);
        assert_eq!(whole.written_bytes_per_s, Some(3.0 * f64::from(1 << 20)));
        assert_eq!(whole.used_bytes_per_s, Some(1.5 * f64::from(1 << 20)));
        assert_eq!((whole.now.call_count(), whole.now.error_count()), (6, 4));
        // Mounts of one name on one machine are different buffers.
        assert_eq!(whole_buffers(rates(&before, &now), false).len(), 3);
    }

    #[test]
    fn a_cache_has_columns_of_its_own() {
        let mut cached = buffer("/mnt/c", 2 << 30, 0);
        cached.cache = Some(CacheMetrics {
            dirty_bytes: 1 << 30,
            hit_bytes: 900,
            miss_bytes: 100,
            drain_bytes_per_s: 1e8,
            drain_eta_s: Some(700.0),
            ..CacheMetrics::default()
        });
        let now = [server(1, vec![cached, buffer("/mnt/b", 0, 0)])];
        insta::assert_snapshot!(table(&rates(&now, &now)));
    }
}
