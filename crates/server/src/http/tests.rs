//! The HTTP server as clients see it, good and bad ones.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use super::*;
use forebay_proto::events::UtcTime;
use forebay_proto::latency::Latency;
use forebay_proto::metrics::Unheard;
use forebay_proto::metrics::{
    BufferMetrics, CacheMetrics, Counts, DeviceMetrics, Errors, LogMetrics, MountMetrics,
    StagingMetrics,
};
use std::collections::BTreeMap;

fn counts(name: &str, count: u64) -> Counts {
    Counts::from([(name.to_string(), count)])
}

/// Three reads: two of up to 10 us, one of up to 1 s.
fn latency() -> BTreeMap<String, Latency> {
    let mut took = Latency { sum_s: 0.5, ..Latency::default() };
    (took.buckets[1], took.buckets[11]) = (2, 1);
    [("read".to_string(), took)].into()
}

/// A sample that has a value for every name.
fn full() -> ServerMetrics {
    let buffer = BufferMetrics {
        buffer: "run\"7\\\n".into(),
        uuid: "u7".into(),
        up: true,
        capacity_bytes: 1 << 62,
        used_bytes: 77,
        calls: counts("read", 3),
        latency: latency(),
        device: Some(DeviceMetrics { read_bytes: 4096, written_bytes: 512 }),
        error_counts: Errors { staging: counts("ENOSPC", 2), ..Errors::default() },
        answer_counts: counts("ENODATA", 9),
        staging: StagingMetrics { eta_s: Some(1.5), ..StagingMetrics::default() },
        cache: Some(CacheMetrics { drain_eta_s: Some(2.0), ..CacheMetrics::default() }),
        logs: Some(LogMetrics::default()),
        ..BufferMetrics::default()
    };
    ServerMetrics {
        time: UtcTime::now(),
        capacity_bytes: Some(9),
        reserved_bytes: Some(8),
        buffers: vec![buffer],
        mount: Some(MountMetrics {
            mount_point: "/mnt/<b>".into(),
            requests: counts("read", 3),
            latency: latency(),
            error_counts: counts("EIO", 1),
            answer_counts: counts("ENOENT", 1),
            ..MountMetrics::default()
        }),
        ..crate::metrics::process()
    }
}

#[derive(Default)]
struct Fixed {
    mine: Option<ServerMetrics>,
    others: PoolMetrics,
    troubled: BTreeMap<String, String>,
}

impl Watched for Fixed {
    fn metrics(&self) -> ServerMetrics {
        self.mine.clone().unwrap()
    }

    fn others(&self) -> PoolMetrics {
        self.others.clone()
    }

    fn troubled(&self) -> BTreeMap<String, String> {
        self.troubled.clone()
    }
}

fn start(metrics: ServerMetrics) -> Http {
    start_of(Fixed { mine: Some(metrics), ..Fixed::default() })
}

fn start_of(fixed: Fixed) -> Http {
    let bound = HttpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    Http::start(bound, Arc::new(fixed)).unwrap()
}

/// Sends bytes; all that comes back.
fn send_raw(http: &Http, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(http.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // A server that refuses early may not take all of it.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

fn get(http: &Http, path: &str) -> (u16, String, String) {
    let answer = send_raw(http, format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_string(), body.to_string())
}

#[test]
fn each_path_gives_what_it_is_for() {
    let http = start(full());
    let (status, head, body) = get(&http, "/metrics");
    assert_eq!(status, 200);
    assert!(head.contains("openmetrics-text; version=1.0.0"), "{head}");
    for line in [
        "# TYPE forebay_buffer_used_bytes gauge",
        "forebay_buffer_used_bytes{buffer=\"run\\\"7\\\\\\n\"} 77",
        "forebay_buffer_capacity_bytes{buffer=\"run\\\"7\\\\\\n\"} 4611686018427387904",
        "forebay_buffer_calls_total{buffer=\"run\\\"7\\\\\\n\",kind=\"read\"} 3",
        "errno=\"ENOSPC\"} 2",
        "forebay_buffer_answers_total{buffer=\"run\\\"7\\\\\\n\",errno=\"ENODATA\"} 9",
        "# TYPE forebay_buffer_call_seconds histogram",
        "forebay_buffer_call_seconds_bucket{le=\"0.00001\",buffer=\"run\\\"7\\\\\\n\",kind=\"read\"} 2",
        "forebay_buffer_call_seconds_bucket{le=\"+Inf\",buffer=\"run\\\"7\\\\\\n\",kind=\"read\"} 3",
        "forebay_mount_request_seconds_count{mount=\"/mnt/<b>\",buffer=\"\",kind=\"read\"} 3",
        "forebay_capacity_bytes 9",
        "# EOF",
    ] {
        assert!(body.contains(line), "{line}: {body}");
    }
    let (status, head, page) = get(&http, "/");
    assert_eq!(status, 200);
    assert!(head.contains("connect-src 'self'") && page.contains("<title>Forebay</title>"));
    assert_eq!(get(&http, "/healthz").2, "ok\n");
    let (_, _, history) = get(&http, "/history.json");
    let history: serde_json::Value = serde_json::from_str(&history).unwrap();
    assert_eq!(history["now"]["buffers"][0]["used_bytes"], 77);
    assert_eq!(get(&http, "/history.json?after=x").0, 400);
    assert_eq!(get(&http, "/../etc/passwd").0, 404);
    let head_only = send_raw(&http, b"HEAD /metrics HTTP/1.0\r\n\r\n");
    assert!(head_only.starts_with("HTTP/1.1 200") && head_only.ends_with("\r\n\r\n"));
    assert!(send_raw(&http, b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
}

#[test]
fn a_buffer_that_is_not_served_or_not_whole_is_no_good_health() {
    let mut metrics = full();
    metrics.buffers.push(BufferMetrics { buffer: "lost".into(), ..BufferMetrics::default() });
    metrics.buffers[0].why = Some("its shard on n2 is lost".into());
    let troubled =
        [("lost", "not served: store gone"), ("run7", "degraded: its shard on n2 is lost")];
    let troubled = troubled.map(|(name, why)| (name.to_string(), why.to_string())).into();
    let http = start_of(Fixed { mine: Some(metrics), troubled, ..Fixed::default() });
    let (status, _, body) = get(&http, "/healthz");
    let wanted = "lost: not served: store gone\nrun7: degraded: its shard on n2 is lost\n";
    assert_eq!((status, body.as_str()), (503, wanted));
    let (_, _, body) = get(&http, "/metrics");
    assert!(body.contains("forebay_buffer_up{buffer=\"lost\"} 0"), "{body}");
    assert!(!body.contains("forebay_buffer_used_bytes{buffer=\"lost\"}"), "{body}");
    assert!(body.contains("forebay_buffer_degraded{buffer=\"run\\\"7\\\\\\n\"} 1"), "{body}");
}

#[test]
fn the_page_of_a_pool_has_the_parts_of_all_servers() {
    let mut other = full();
    other.host = "n2".into();
    other.server = Some("s2".into());
    (other.buffers[0].used_bytes, other.mount) = (23, None);
    let unheard = Unheard { server: "s3".into(), host: "n3".into(), why: "away".into() };
    let others = PoolMetrics { servers: vec![other], unheard: vec![unheard] };
    let http = start_of(Fixed { mine: Some(full()), others, ..Fixed::default() });
    let (_, _, history) = get(&http, "/history.json");
    let told: serde_json::Value = serde_json::from_str(&history).unwrap();
    let buffers = told["buffers"].as_array().unwrap();
    assert_eq!((buffers.len(), &buffers[0]["used_bytes"]), (1, &100.into()), "{told}");
    assert_eq!(buffers[0]["parts"][1]["host"], "n2");
    assert_eq!(told["unheard"][0]["host"], "n3");
    // /metrics stays that of this server: each is scraped by itself.
    assert!(
        get(&http, "/metrics")
            .2
            .contains("forebay_buffer_used_bytes{buffer=\"run\\\"7\\\\\\n\"} 77")
    );
}

#[test]
fn the_page_says_of_a_buffer_with_a_dead_server_what_it_has_at_least() {
    let mut mine = full();
    (mine.buffers[0].part_count, mine.buffers[0].capacity_bytes) = (2, 64 << 20);
    let told = |others: PoolMetrics| -> serde_json::Value {
        let fixed = Fixed { mine: Some(mine.clone()), others, ..Fixed::default() };
        let (_, _, history) = get(&start_of(fixed), "/history.json");
        serde_json::from_str::<serde_json::Value>(&history).unwrap()["buffers"][0].clone()
    };
    let unheard = Unheard { server: "s2".into(), host: "n2".into(), why: "away".into() };
    let dead = told(PoolMetrics { servers: vec![], unheard: vec![unheard] });
    assert_eq!((&dead["partial"], &dead["told_count"]), (&true.into(), &1.into()), "{dead}");
    assert_eq!((&dead["server_count"], &dead["used_bytes"]), (&2.into(), &77.into()), "{dead}");
    assert_eq!(dead["capacity_bytes"], 128 << 20, "of all its servers: {dead}");
    // The other server answers, and does not serve its part.
    let mut other = mine.clone();
    (other.host, other.server) = ("n2".into(), Some("s2".into()));
    let down =
        BufferMetrics { buffer: "run7".into(), uuid: "u7".into(), ..BufferMetrics::default() };
    let not_served = ServerMetrics { buffers: vec![down], ..other.clone() };
    let half = told(PoolMetrics { servers: vec![not_served], unheard: vec![] });
    assert_eq!((&half["partial"], &half["capacity_bytes"]), (&true.into(), &(128 << 20).into()));
    let both = told(PoolMetrics { servers: vec![other], unheard: vec![] });
    assert_eq!((&both["partial"], &both["capacity_bytes"]), (&false.into(), &(128 << 20).into()));
    assert_eq!(both["used_bytes"], 154, "{both}");
}

#[test]
fn nonsense_is_refused_by_name() {
    let http = start(full());
    assert!(send_raw(&http, b"\x16\x03\x01\x02\x00\r\n\r\n").starts_with("HTTP/1.1 400"));
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(9_000));
    assert!(send_raw(&http, long.as_bytes()).starts_with("HTTP/1.1 431"));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(100));
    assert!(send_raw(&http, many.as_bytes()).starts_with("HTTP/1.1 431"));
    // And goes on answering.
    assert_eq!(get(&http, "/healthz").0, 200);
}

#[test]
fn slow_clients_take_their_own_places_only_for_a_while() {
    let http = start(full());
    let slow: Vec<_> = (0..HTTP_CONNECTIONS_MAX)
        .map(|_| {
            let mut stream = TcpStream::connect(http.address()).unwrap();
            stream.write_all(b"GET / HT").unwrap();
            stream
        })
        .collect();
    // All places are taken; one more is told so at once.
    let until = Instant::now() + Duration::from_secs(2);
    while http.shared.places.load(Ordering::Acquire) < HTTP_CONNECTIONS_MAX {
        assert!(Instant::now() < until, "they are not let in");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(send_raw(&http, b"").starts_with("HTTP/1.1 503"));
    let until = Instant::now() + REQUEST_WAIT + Duration::from_secs(5);
    while http.shared.places.load(Ordering::Acquire) > 0 {
        assert!(Instant::now() < until, "they keep their places");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(get(&http, "/healthz").0, 200);
    drop(slow);
}

#[test]
fn an_address_that_is_taken_is_told_with_what_to_do() {
    let http = start(full());
    let error = HttpListener::bind(http.address()).err().unwrap();
    assert_eq!(error.errno, Some(libc::EADDRINUSE));
    assert!(error.to_string().contains("--http"), "{error}");
    let address = http.address();
    drop(http);
    assert!(TcpStream::connect(address).is_err(), "it still listens");
}

#[test]
fn samples_are_bounded() {
    let history = History::default();
    let mut metrics = full();
    for _ in 0..HISTORY_SAMPLES_MAX + 5 {
        history.take(&metrics, &PoolMetrics::default());
    }
    assert_eq!(history.len(), (HISTORY_SAMPLES_MAX, HISTORY_SAMPLES_MAX));
    metrics.buffers = vec![metrics.buffers[0].clone(); 1_000];
    for _ in 0..HISTORY_POINTS_MAX / 1_000 + 5 {
        history.take(&metrics, &PoolMetrics::default());
    }
    let (_, points) = history.len();
    assert!(points <= HISTORY_POINTS_MAX && points > HISTORY_POINTS_MAX - 2_000, "{points}");
}

/// `| \`name\` | type | meaning |` in docs/METRICS.md.
fn documented() -> BTreeMap<String, String> {
    let text = include_str!("../../../../docs/METRICS.md");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `forebay_"));
    rows.map(|row| {
        let mut cells = row.split(" | ");
        let name = cells.next().unwrap().trim_end_matches('`');
        let name = name.split('{').next().unwrap().trim_end_matches('`');
        (format!("forebay_{name}"), cells.next().unwrap().trim().to_string())
    })
    .collect()
}

#[test]
fn the_names_are_those_of_the_document() {
    let metrics = full();
    let told: BTreeMap<String, String> =
        prometheus::names(&metrics).into_iter().map(|(name, kind)| (name, kind.into())).collect();
    assert_eq!(told, documented());
    // And those of the text are these.
    let text = prometheus::text(metrics).unwrap();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let of = |sample: &str| {
        let name = sample.split(['{', ' ']).next().unwrap();
        let parts = ["_bucket", "_sum", "_count"].into_iter();
        let histogram = parts.filter_map(|part| name.strip_suffix(part)).next();
        histogram.filter(|name| told.contains_key(*name)).unwrap_or(name).to_string()
    };
    let names: std::collections::BTreeSet<_> = samples.map(of).collect();
    assert_eq!(names, told.keys().cloned().collect());
}

/// Relative luminance and contrast of WCAG 2.1.
fn luminance(colour: &str) -> f64 {
    let channel = |at: usize| {
        let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
        if value <= 0.039_28 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    };
    0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
}

#[test]
fn the_page_is_readable_on_light_and_dark() {
    let page = include_str!("page.html");
    let palettes: Vec<BTreeMap<&str, &str>> = page
        .split(":root {")
        .skip(1)
        .map(|text| {
            let block = text.split('}').next().unwrap();
            block.split(';').filter_map(|pair| pair.trim().split_once(": ")).collect()
        })
        .collect();
    assert_eq!(palettes.len(), 2, "one for light, one for dark");
    for palette in palettes {
        for ground in ["--ground", "--card"] {
            for ink in ["--text", "--quiet", "--one", "--two", "--bad"] {
                let (a, b) = (luminance(palette[ground]), luminance(palette[ink]));
                let contrast = (a.max(b) + 0.05) / (a.min(b) + 0.05);
                assert!(contrast >= 4.5, "{ink} on {ground}: {contrast:.2}");
            }
        }
    }
    // It loads nothing: all that it names is its own.
    for outside in ["http://", "https://", "//cdn", "@import", "src="] {
        assert!(!page.contains(outside), "{outside}");
    }
}
