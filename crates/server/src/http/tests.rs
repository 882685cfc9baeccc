//! The HTTP server as clients see it, good and bad ones.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use super::*;
use forebay_proto::events::UtcTime;
use forebay_proto::metrics::{
    BufferMetrics, CacheMetrics, CallCount, ErrorCount, ErrorSource, StagingMetrics,
};
use std::collections::BTreeMap;

/// A sample that has a value for every name.
fn full() -> ServerMetrics {
    let buffer = BufferMetrics {
        buffer: "run\"7\\\n".into(),
        uuid: "u7".into(),
        up: true,
        capacity_bytes: 1 << 62,
        used_bytes: 77,
        calls: vec![CallCount { kind: "read".into(), count: 3 }],
        errors: vec![ErrorCount { source: ErrorSource::Staging, errno: libc::ENOSPC, count: 2 }],
        staging: StagingMetrics { eta_s: Some(1.5), ..StagingMetrics::default() },
        cache: Some(CacheMetrics { drain_eta_s: Some(2.0), ..CacheMetrics::default() }),
        ..BufferMetrics::default()
    };
    ServerMetrics {
        time: UtcTime::now(),
        capacity_bytes: Some(9),
        reserved_bytes: Some(8),
        buffers: vec![buffer],
        ..crate::metrics::process()
    }
}

struct Fixed(ServerMetrics);

impl Watched for Fixed {
    fn metrics(&self) -> ServerMetrics {
        self.0.clone()
    }
}

fn start(metrics: ServerMetrics) -> Http {
    let bound = HttpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    Http::start(bound, Arc::new(Fixed(metrics))).unwrap()
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
fn a_buffer_that_is_not_served_is_no_good_health() {
    let mut metrics = full();
    metrics.buffers.push(BufferMetrics { buffer: "lost".into(), ..BufferMetrics::default() });
    let http = start(metrics);
    let (status, _, body) = get(&http, "/healthz");
    assert_eq!((status, body.as_str()), (503, "not served: lost\n"));
    let (_, _, body) = get(&http, "/metrics");
    assert!(body.contains("forebay_buffer_up{buffer=\"lost\"} 0"), "{body}");
    assert!(!body.contains("forebay_buffer_used_bytes{buffer=\"lost\"}"), "{body}");
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
        history.take(&metrics);
    }
    assert_eq!(history.len(), (HISTORY_SAMPLES_MAX, HISTORY_SAMPLES_MAX));
    metrics.buffers = vec![metrics.buffers[0].clone(); 1_000];
    for _ in 0..HISTORY_POINTS_MAX / 1_000 + 5 {
        history.take(&metrics);
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
    let names: std::collections::BTreeSet<_> =
        samples.map(|line| line.split(['{', ' ']).next().unwrap().to_string()).collect();
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
        let found = page.replace("http://www.w3.org/2000/svg", "").contains(outside);
        assert!(!found, "{outside}");
    }
}
