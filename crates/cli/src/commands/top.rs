//! `forebay top`: what buffers do now, one line each, again and again. A buffer is one line, however many servers have
//! parts of it and wherever it is mounted here: the sum of what its servers tell. Where one of them does not, the line
//! says so: a part never stands for the whole.

mod asked;

use crate::args::TopArgs;
use crate::failure::{EXIT_OK, Outcome, print_json, visible};
use asked::{Asked, Look};
use forebay_proto::metrics::{BufferMetrics, LogMetrics, ServerMetrics};
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
        let shown = Shown::of(&before, &now);
        let printed = match args.json {
            true => json(&shown).and_then(|shown| print_json(&shown)),
            false => print(&shown, terminal && !args.once),
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

/// What one look shows.
#[derive(serde::Serialize)]
struct Shown {
    buffers: Vec<Line>,
    /// Mounts and servers that did not answer.
    unheard: Vec<Unheard>,
}

/// Who did not answer.
#[derive(serde::Serialize, PartialEq)]
struct Unheard {
    /// A mount point, or a server's host.
    who: String,
    why: String,
}

/// One buffer with its rates.
#[derive(serde::Serialize)]
struct Line {
    /// Servers of the buffer, but those that were given up.
    server_count: u64,
    /// Some of them did not tell: all but the capacity is of the others.
    partial: bool,
    /// Servers that told what they have.
    #[serde(skip)]
    told_count: u64,
    /// Capacity of one part: all are of one size.
    #[serde(skip)]
    part_bytes: u64,
    /// Where it is mounted, of the mounts that told of it.
    mount_points: Vec<String>,
    /// Bytes per second; `None` if it was not there before.
    read_bytes_per_s: Option<f64>,
    written_bytes_per_s: Option<f64>,
    /// May be negative.
    used_bytes_per_s: Option<f64>,
    calls_per_s: Option<f64>,
    #[serde(flatten)]
    now: BufferMetrics,
}

impl Shown {
    fn of(before: &Look, now: &Look) -> Shown {
        let earlier: Vec<&ServerMetrics> =
            before.told.iter().flat_map(|told| &told.metrics.servers).collect();
        let mut shown = Shown { buffers: Vec::new(), unheard: Vec::new() };
        // Each mount of a buffer tells of the same parts.
        let mut seen = std::collections::HashSet::new();
        for told in &now.told {
            for server in &told.metrics.servers {
                for buffer in &server.buffers {
                    let is_new = seen.insert((&server.host, server.pid, &buffer.uuid));
                    let line = is_new.then(|| rates(&earlier, server, buffer));
                    shown.add(&buffer.uuid, line, told.mount.as_ref());
                }
            }
            for unheard in &told.metrics.unheard {
                shown.not_heard(&unheard.host, &unheard.why);
            }
        }
        for (mount, why) in &now.unheard {
            shown.not_heard(mount, why);
        }
        shown.buffers.iter_mut().for_each(Line::complete);
        shown
    }

    fn not_heard(&mut self, who: &str, why: &str) {
        let unheard = Unheard { who: who.into(), why: why.into() };
        if !self.unheard.contains(&unheard) {
            self.unheard.push(unheard);
        }
    }

    /// A part of a buffer that was not there yet, and where it is mounted.
    fn add(&mut self, uuid: &str, part: Option<Line>, mount: Option<&String>) {
        let at = self.buffers.iter().position(|line| line.now.uuid == uuid);
        let line = match (at, part) {
            (Some(at), None) => &mut self.buffers[at],
            (Some(at), Some(part)) => {
                let whole = &mut self.buffers[at];
                let sum = |a: &mut Option<f64>, b: Option<f64>| *a = a.zip(b).map(|(a, b)| a + b);
                sum(&mut whole.read_bytes_per_s, part.read_bytes_per_s);
                sum(&mut whole.written_bytes_per_s, part.written_bytes_per_s);
                sum(&mut whole.used_bytes_per_s, part.used_bytes_per_s);
                sum(&mut whole.calls_per_s, part.calls_per_s);
                whole.told_count += part.told_count;
                whole.part_bytes = whole.part_bytes.max(part.part_bytes);
                whole.server_count += part.server_count;
                whole.now.add(&part.now);
                whole
            }
            (None, Some(part)) => {
                self.buffers.push(part);
                let last = self.buffers.len() - 1;
                &mut self.buffers[last]
            }
            (None, None) => return,
        };
        if let Some(mount) = mount
            && !line.mount_points.contains(mount)
        {
            line.mount_points.push(mount.clone());
        }
    }
}

/// One server's part of a buffer.
fn rates(before: &[&ServerMetrics], server: &ServerMetrics, buffer: &BufferMetrics) -> Line {
    let found = before
        .iter()
        .filter(|b| b.pid == server.pid && b.host == server.host)
        .find_map(|s| Some((s, s.buffers.iter().find(|b| b.uuid == buffer.uuid)?)));
    let per_s = |of: &dyn Fn(&BufferMetrics) -> u64| {
        let (server_then, then) = found?;
        let seconds = server.time.0.checked_sub(server_then.time.0)? as f64 / 1e9;
        (seconds > 0.0).then(|| (of(buffer) as f64 - of(then) as f64) / seconds)
    };
    Line {
        server_count: 1,
        partial: false,
        // Of a part that is not served nothing is told.
        told_count: buffer.up.into(),
        part_bytes: buffer.capacity_bytes,
        mount_points: Vec::new(),
        read_bytes_per_s: per_s(&|b| b.read_bytes),
        written_bytes_per_s: per_s(&|b| b.written_bytes),
        used_bytes_per_s: per_s(&|b| b.used_bytes),
        calls_per_s: per_s(&BufferMetrics::call_count),
        now: buffer.clone(),
    }
}

/// As JSON: what is used is not known where a server did not tell, and then stands under a name of its own. So inodes are not
/// known; and of a buffer that nobody serves neither is.
fn json(shown: &Shown) -> anyhow::Result<serde_json::Value> {
    let mut value = serde_json::to_value(shown)?;
    let lines = value.get_mut("buffers").and_then(serde_json::Value::as_array_mut);
    for (line, of) in lines.into_iter().flatten().zip(&shown.buffers) {
        if of.partial {
            line["used_at_least_bytes"] = line["used_bytes"].take();
        }
        if of.partial || of.told_count == 0 {
            line["used_bytes"] = serde_json::Value::Null;
            line["inodes"] = serde_json::Value::Null;
        }
    }
    Ok(value)
}

fn print(shown: &Shown, refresh: bool) -> anyhow::Result<()> {
    let mut text = String::new();
    if refresh {
        text.push_str(CLEAR);
    }
    text += &table(&shown.buffers);
    for line in shown.buffers.iter().filter(|line| line.partial) {
        let (told, all) = (line.told_count, line.server_count);
        text += &visible(&format!("{}: figures of {told} of its {all} servers", line.now.buffer));
        text.push('\n');
    }
    for unheard in &shown.unheard {
        text += &visible(&format!("not heard: {}: {}", unheard.who, unheard.why));
        text.push('\n');
    }
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

fn table(lines: &[Line]) -> String {
    let any_cache = lines.iter().any(|line| line.now.cache.is_some());
    let any_logs = lines.iter().any(|line| line.now.logs.is_some());
    let mut head = vec!["BUFFER", "USED", "OF", "USED/S"];
    if any_logs {
        head.extend(["IN LOGS", "LOGS", "TOGETHER"]);
    }
    if any_cache {
        head.extend(["DIRTY", "HITS"]);
    }
    head.extend(["IN/S", "OUT/S", "CALLS/S", "STAGING", "STAGE/S", "ETA"]);
    if any_cache {
        head.extend(["DRAIN/S", "CLEAN IN"]);
    }
    head.push("ERRORS");
    let any_mount = lines.iter().any(Line::is_mounted_elsewhere);
    if any_mount {
        head.push("MOUNTED AT");
    }
    let mut rows = vec![head.into_iter().map(String::from).collect::<Vec<_>>()];
    let columns = rows[0].len();
    rows.extend(lines.iter().map(|line| {
        let mut row = row(line, any_cache, any_logs);
        if any_mount {
            row.resize(columns - 1, String::new());
            row.push(visible(&line.mount_points.join(" ")).into_owned());
        }
        row.resize(columns, String::new());
        row
    }));
    let widths: Vec<usize> = (0..columns)
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let aligned = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, &width))| match column {
            0 => format!("{cell:<width$}"),
            last if any_mount && last == columns - 1 => cell.clone(),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string() + "\n"
    };
    rows.iter().map(aligned).collect()
}

impl Line {
    /// Once all parts that were told of are added: what the buffer has, also on servers that did not tell.
    fn complete(&mut self) {
        self.server_count = self.server_count.max(self.now.part_count);
        let missing = self.server_count.saturating_sub(self.told_count);
        // Where no part is served nothing is known.
        self.partial = missing > 0 && self.told_count > 0;
        if self.partial {
            self.now.capacity_bytes += missing * self.part_bytes;
            self.used_bytes_per_s = None;
        }
    }

    /// Bytes of which a server that did not tell may have more.
    fn at_least(&self, bytes: u64) -> String {
        match self.partial {
            true => format!("at least {}", format_bytes(bytes)),
            false => format_bytes(bytes),
        }
    }

    /// Its name does not say where it is mounted.
    fn is_mounted_elsewhere(&self) -> bool {
        self.mount_points.iter().any(|mount| *mount != self.now.buffer)
    }
}

fn row(line: &Line, any_cache: bool, any_logs: bool) -> Vec<String> {
    let b = &line.now;
    let name = visible(&b.buffer).into_owned();
    if !b.up {
        return vec![name, "not served".into()];
    }
    let mut row = vec![
        name,
        line.at_least(b.used_bytes),
        format_bytes(b.capacity_bytes),
        rate(line.used_bytes_per_s),
    ];
    if any_logs {
        let of = |bytes: &dyn Fn(&LogMetrics) -> String| b.logs.as_ref().map_or("-".into(), bytes);
        row.push(of(&|logs| format_bytes(logs.log_bytes)));
        row.push(of(&|logs| logs.log_count.to_string()));
        row.push(of(&|logs| format_bytes(logs.together_bytes)));
    }
    if any_cache {
        row.push(b.cache.as_ref().map_or("-".into(), |c| line.at_least(c.dirty_bytes)));
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
    use asked::Told;
    use forebay_proto::Errno;
    use forebay_proto::events::UtcTime;
    use forebay_proto::metrics::{self, CacheMetrics, PoolMetrics, StagingMetrics};

    fn buffer(name: &str, used_bytes: u64, written_bytes: u64) -> BufferMetrics {
        let mut told = BufferMetrics {
            buffer: name.into(),
            uuid: name.into(),
            up: true,
            capacity_bytes: 4 << 30,
            used_bytes,
            written_bytes,
            calls: [("write".to_string(), written_bytes >> 20)].into(),
            ..BufferMetrics::default()
        };
        told.answered(Errno::ENOENT, 50);
        told.answered(Errno::EIO, 2);
        told
    }

    /// Of one mount, or of a server.
    fn look(mounts: &[Option<&str>], servers: &[ServerMetrics]) -> Look {
        let told = |mount: &Option<&str>| Told {
            mount: mount.map(Into::into),
            metrics: PoolMetrics { servers: servers.to_vec(), unheard: Vec::new() },
        };
        Look { told: mounts.iter().map(told).collect(), unheard: Vec::new() }
    }

    fn server(seconds: u64, buffers: Vec<BufferMetrics>) -> ServerMetrics {
        ServerMetrics {
            time: UtcTime(seconds * 1_000_000_000),
            program: "1".into(),
            host: "node1".into(),
            server: None,
            pid: 7,
            uptime_s: 1.0,
            cpu_s: 1.0,
            resident_bytes: 1,
            capacity_bytes: None,
            reserved_bytes: None,
            buffers,
            mount: None,
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
        let shown = Shown::of(&look(&[None], &[before]), &look(&[None], &[now]));
        insta::assert_snapshot!(table(&shown.buffers));
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
        // Two mounts of this machine, whose servers tell each the same.
        let at = [Some("/mnt/a"), Some("/mnt/b")];
        let mut now = look(&at, &now);
        let unheard =
            metrics::Unheard { server: "s3".into(), host: "c".into(), why: "away".into() };
        now.told.iter_mut().for_each(|told| told.metrics.unheard.push(unheard.clone()));
        let shown = Shown::of(&look(&at, &before), &now);
        let lines = &shown.buffers;
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].mount_points, ["/mnt/a", "/mnt/b"]);
        assert!(table(lines).lines().nth(1).unwrap().ends_with("  4  /mnt/a /mnt/b"));
        assert_eq!((shown.unheard.len(), shown.unheard[0].who.as_str()), (1, "c"));
        let whole = &lines[0];
        assert_eq!((whole.server_count, whole.now.capacity_bytes), (2, 8 << 30));
        assert_eq!(whole.now.used_bytes, 4 << 20);
        assert_eq!(whole.written_bytes_per_s, Some(3.0 * f64::from(1 << 20)));
        assert_eq!(whole.used_bytes_per_s, Some(1.5 * f64::from(1 << 20)));
        assert_eq!((whole.now.call_count(), whole.now.error_count()), (6, 4));
    }

    #[test]
    fn a_part_does_not_stand_for_a_buffer_whose_other_server_is_silent() {
        let part = BufferMetrics { part_count: 2, ..buffer("run9", 20 << 20, 1 << 20) };
        let before = look(&[None], &[server(10, vec![part.clone()])]);
        let now = look(&[None], &[server(12, vec![part.clone()])]);
        let shown = Shown::of(&before, &now);
        let line = &shown.buffers[0];
        assert!(line.partial);
        assert_eq!((line.server_count, line.now.capacity_bytes), (2, 8 << 30));
        let told = json(&shown).unwrap();
        let told = &told["buffers"][0];
        assert!(told["used_bytes"].is_null() && told["used_bytes_per_s"].is_null(), "{told}");
        assert_eq!(told["used_at_least_bytes"], 20 << 20, "{told}");
        assert!(told["inodes"].is_null(), "as in `buffer status`: {told}");
        assert!(told["partial"] == true && told["server_count"] == 2, "{told}");
        let text = table(&shown.buffers);
        assert!(text.contains("at least 20.0 MiB") && text.contains("8.00 GiB"), "{text}");

        // With the other part, also one that its server does not serve, or alone.
        let other = ServerMetrics { host: "b".into(), ..server(12, vec![part.clone()]) };
        let both = look(&[None], &[server(12, vec![part.clone()]), other.clone()]);
        let shown = Shown::of(&both, &both);
        let line = &shown.buffers[0];
        assert!(!line.partial);
        assert_eq!((line.server_count, line.now.capacity_bytes), (2, 8 << 30));
        let fault = BufferMetrics {
            uuid: "run9".into(),
            part_count: 2,
            why: Some("broken".into()),
            ..BufferMetrics::default()
        };
        let other = ServerMetrics { buffers: vec![fault], ..other };
        let none = look(&[None], std::slice::from_ref(&other));
        let told = json(&Shown::of(&none, &none)).unwrap();
        let told = &told["buffers"][0];
        assert!(told["inodes"].is_null() && told["used_bytes"].is_null(), "{told}");
        assert!(told["up"] == false && told.get("used_at_least_bytes").is_none(), "{told}");
        let half = look(&[None], &[server(12, vec![part]), other]);
        let shown = Shown::of(&half, &half);
        let line = &shown.buffers[0];
        assert!(line.partial);
        assert_eq!((line.server_count, line.now.capacity_bytes), (2, 8 << 30));
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
        let now = look(&[None], &now);
        insta::assert_snapshot!(table(&Shown::of(&now, &now).buffers));
    }
}
