//! The page of `--http` in a real browser (Debian's chromium, without a window): the figures that it
//! shows are those of `/metrics`, and it asks nobody but its own server.

use crate::common::{Flash, Rig, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// What the page may take to load and draw, in the browser's own time.
const BUDGET_MS: &str = "9000";

/// A figure: its buffer, name and further labels.
type Figures = BTreeMap<(String, String), f64>;

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_string()
}

/// `name{buffer="B",labels} value` of `/metrics`.
fn of_metrics(text: &str) -> Figures {
    let samples = text.lines().filter_map(|line| {
        let (name, rest) = line.split_once("{buffer=\"")?;
        let (_, rest) = rest.split_once('"')?;
        let (labels, value) = rest.rsplit_once("} ")?;
        let labels = labels.trim_start_matches(',').to_string();
        Some(((name.to_string(), labels), value.parse().unwrap()))
    });
    samples.collect()
}

/// The value of an attribute in the source of an element.
fn attribute(element: &str, name: &str) -> Option<String> {
    let from = element.find(&format!("{name}=\""))? + name.len() + 2;
    let value = element[from..].split('"').next()?;
    Some(value.replace("&quot;", "\"").replace("&amp;", "&"))
}

/// The figures that the page shows: each element that says which it is, with its text.
fn of_page(dom: &str) -> (Figures, Vec<String>) {
    let mut figures = Figures::new();
    let mut texts = Vec::new();
    for element in dom.split("<dd ").skip(1) {
        let name = attribute(element, "data-metric").unwrap();
        let labels = attribute(element, "data-labels").unwrap();
        let value = attribute(element, "data-value").unwrap().parse().unwrap();
        figures.insert((name, labels), value);
        let shown = element.split_once('>').unwrap().1.split('<').next().unwrap();
        texts.push(shown.to_string());
    }
    (figures, texts)
}

struct Browser {
    profile: tempfile::TempDir,
}

impl Browser {
    fn command(&self, more: &[String]) -> Command {
        let mut command = Command::new("chromium");
        command
            .args(["--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
            // Root has no sandbox; the page is our own.
            .args(["--no-sandbox", "--disable-background-networking", "--disable-sync"])
            .args(["--disable-component-update", "--disable-default-apps"])
            .arg(format!("--virtual-time-budget={BUDGET_MS}"))
            .arg(format!("--user-data-dir={}", self.profile.path().display()))
            // No name is looked up, whatever asks.
            .arg("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
            .args(more)
            .env("HOME", self.profile.path());
        command
    }

    #[track_caller]
    fn run(&self, more: &[String]) -> String {
        let output =
            self.command(more).output().expect("chromium is needed: tests/apt-packages.txt");
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    }
}

/// What was asked by the page itself, not by the browser for its own ends.
fn asked_by_pages(net_log: &Path) -> Vec<(String, String)> {
    let log: Value = serde_json::from_slice(&fs::read(net_log).unwrap()).unwrap();
    let start = &log["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"];
    let events = log["events"].as_array().unwrap().iter();
    let asked = events.filter(|event| event["type"] == *start).filter_map(|event| {
        let url = event["params"]["url"].as_str()?.to_string();
        let by = event["params"]["initiator"].as_str().unwrap_or("").to_string();
        by.starts_with("http").then_some((by, url))
    });
    asked.collect()
}

#[test]
fn the_page_shows_the_figures_of_metrics_and_asks_nobody_else() {
    let rig = Rig::new(Flash::Memory);
    let output = rig.mount_with("64MiB", &["--http", "127.0.0.1:0", "--no-fast-path", "--json"]);
    let up: Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    let address = up["http"].as_str().unwrap().to_string();
    fs::write(rig.mnt.join("a"), vec![7; 5 << 20]).unwrap();
    let source = rig.base().join("file");
    fs::write(&source, vec![1; 3 << 20]).unwrap();
    let staged = rig.forebay().args(["stage", "in"]).arg(&source).arg(rig.mnt.join("f")).output();
    assert!(staged.unwrap().status.success());
    // An amount just below a unit. The kernel has nothing of what was staged, and reads no further than to its end.
    fs::OpenOptions::new()
        .write(true)
        .open(rig.mnt.join("f"))
        .unwrap()
        .set_len(1_020 << 10)
        .unwrap();
    assert_eq!(fs::read(rig.mnt.join("f")).unwrap().len(), 1_020 << 10);

    // A rate takes two samples, and a chart of some of them more.
    crate::common::wait_for("some samples", || {
        get(&address, "/history.json").matches("\"time_ms\"").count() > 3
    });
    let browser = Browser { profile: tempfile::tempdir().unwrap() };
    let net_log = browser.profile.path().join("net.json");
    let url = format!("http://{address}/");
    let before = of_metrics(&get(&address, "/metrics"));
    let log = format!("--log-net-log={}", net_log.display());
    let dom = browser.run(&[log, "--dump-dom".into(), url.clone()]);
    let after = of_metrics(&get(&address, "/metrics"));

    let (shown, texts) = of_page(&dom);
    assert!(shown.len() >= 14, "{dom}");
    for (figure, value) in &shown {
        let (low, high) = (before.get(figure), after.get(figure));
        let (Some(low), Some(high)) = (low, high) else {
            panic!("{figure:?} is shown and not in /metrics: {after:?}")
        };
        assert!(low <= value && value <= high, "{figure:?}: {value}, /metrics has {low} to {high}");
    }
    let exact = |name: &str, labels: &str| shown[&(name.to_string(), labels.to_string())];
    assert_eq!(exact("forebay_buffer_written_bytes_total", ""), f64::from(5 << 20));
    assert_eq!(exact("forebay_buffer_staged_bytes_total", "direction=\"in\""), f64::from(3 << 20));
    assert!(texts.iter().any(|text| text == "5.00 MiB"), "{texts:?}");
    assert!(texts.iter().any(|text| text.ends_with(" of 64.0 MiB")), "{texts:?}");
    // As the commands write it, with no exponent.
    assert!(texts.iter().any(|text| text == "1020 KiB"), "{texts:?}");
    assert!(texts.iter().all(|text| !text.contains("e+")), "{texts:?}");
    assert!(dom.contains(&rig.mnt.display().to_string()));
    // Each chart that has samples was drawn, and something of several samples.
    let points_of =
        |place: &str| -> u32 { attribute(place, "data-points").unwrap().parse().unwrap() };
    let places: Vec<&str> = dom.split("<div class=\"drawing\" ").skip(1).collect();
    assert!(places.iter().any(|place| points_of(place) > 1), "{dom}");
    for place in places {
        assert_eq!(points_of(place) > 0, place.contains("<canvas"), "{place}");
    }

    let asked = asked_by_pages(&net_log);
    assert!(asked.iter().any(|(_, url)| url.contains("/history.json")), "{asked:?}");
    let outside: Vec<_> = asked.iter().filter(|(_, asked)| !asked.starts_with(&url)).collect();
    assert!(outside.is_empty(), "{outside:?}");
    rig.umount(&[]);
}

/// What the charts of a page say that they show, by their titles.
fn charts(dom: &str) -> BTreeMap<String, String> {
    let places = dom.split("<div class=\"drawing\" ").skip(1);
    let charts = places.filter_map(|place| attribute(place, "aria-label"));
    let told = charts.filter_map(|label| {
        let (title, said) = label.split_once(": ")?;
        Some((title.to_string(), said.to_string()))
    });
    told.collect()
}

/// The most that a chart has shown, as it says below.
fn highest(dom: &str, title: &str) -> String {
    let chart =
        dom.split("<figure>").find(|figure| figure.contains(&format!("<span>{title}</span>")));
    let highest = chart.unwrap().split("highest ").nth(1).unwrap();
    highest.split('<').next().unwrap().to_string()
}

/// When a chart begins, as it says below.
fn begins(dom: &str, title: &str) -> String {
    let chart =
        dom.split("<figure>").find(|figure| figure.contains(&format!("<span>{title}</span>")));
    let below = chart.unwrap().split("class=\"below\"><span>").nth(1).unwrap();
    below.split('<').next().unwrap().to_string()
}

#[test]
fn the_page_of_a_cache_draws_hits_drain_and_how_long_it_takes() {
    let rig = Rig::new(Flash::Memory);
    let pfs = rig.base().join("pfs");
    fs::create_dir(&pfs).unwrap();
    fs::write(pfs.join("in"), vec![3; 2 << 20]).unwrap();
    let mut mount = rig.forebay();
    mount.args(["mount", "--cache"]).arg(&pfs).args(["--capacity", "64MiB", "--json"]);
    mount.args(["--http", "127.0.0.1:0", "--no-fast-path", "--drain-rate", "1MiB"]);
    let output = mount.arg(&rig.mnt).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let up: Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    let address = up["http"].as_str().unwrap().to_string();
    // The second time all of it is on flash, and the kernel does not keep it.
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(2_500));
        let file = fs::File::open(rig.mnt.join("in")).unwrap();
        let mut all = Vec::new();
        (&file).read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), 2 << 20);
        // SAFETY: plain numbers.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    }
    fs::write(rig.mnt.join("out"), vec![7; 24 << 20]).unwrap();
    // Some of it has drained; the rest takes longer than the page.
    crate::common::wait_for("a drain", || {
        let metrics = of_metrics(&get(&address, "/metrics"));
        metrics[&("forebay_cache_drained_bytes_total".to_string(), String::new())] > 0.0
    });
    std::thread::sleep(Duration::from_secs(5));
    let browser = Browser { profile: tempfile::tempdir().unwrap() };
    let dom = browser.run(&["--dump-dom".into(), format!("http://{address}/")]);
    let charts = charts(&dom);
    for title in ["dirty", "drained", "clean in about", "hit ratio"] {
        assert!(charts.contains_key(title), "{title}: {charts:?}");
    }
    assert!(highest(&dom, "drained").ends_with("iB/s"), "{}", highest(&dom, "drained"));
    assert!(highest(&dom, "clean in about") != "0 s", "{charts:?}");
    assert_eq!(highest(&dom, "hit ratio"), "100 %");
    // One clock of 24 hours, in the head as on the axes.
    let head = dom.split("id=\"state\"").nth(1).and_then(|rest| rest.split('<').next()).unwrap();
    let time = head.split('>').nth(1).unwrap();
    assert!(time.len() == 8 && time.matches(':').count() == 2, "{time}");
    // How long it takes is not known at each moment; its chart goes over the same time as the others.
    assert_eq!(begins(&dom, "clean in about"), begins(&dom, "dirty"));
    rig.umount(&["--force", "--discard-dirty"]);
    assert!(!rig.is_mounted());
}

#[test]
fn names_of_buffers_are_shown_as_text() {
    let rig = Rig::with_name(Flash::Memory, "<img src=x onerror=document.title='no'>");
    let output = rig.mount_with("64MiB", &["--http", "127.0.0.1:0", "--json"]);
    let up: Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    let url = format!("http://{}/", up["http"].as_str().unwrap());
    let browser = Browser { profile: tempfile::tempdir().unwrap() };
    let dom = browser.run(&["--dump-dom".into(), url]);
    assert!(dom.contains("&lt;img src=x") && !dom.contains("<img"), "{dom}");
    assert!(dom.contains("<title>Forebay</title>"), "{dom}");
    // What kernels move by themselves cannot be known in memory, and the page says so.
    assert_eq!(up["store_kind"], "tmpfs", "{up}");
    assert!(dom.contains("nothing counts it: memory (tmpfs) has no device"), "{dom}");
    rig.umount(&[]);
}
