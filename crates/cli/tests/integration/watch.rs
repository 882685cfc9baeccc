//! `forebay events`, `forebay top` and `--http` as users run them, on mounts and on a server.

use crate::common::{Flash, Rig, failure, text};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);

/// CRC32C of bytes, bit by bit, as RFC 3720 has it: another way than the program's.
fn crc32c(bytes: &[u8]) -> String {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    format!("{:08x}", !crc)
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn of_kind<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["event"] == kind).collect()
}

#[track_caller]
fn done(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn events(rig: &Rig, more: &[&str]) -> Vec<Value> {
    let mut command = rig.forebay();
    command.args(["events", "--json"]).args(more).arg(&rig.mnt);
    lines(&done(&command.output().unwrap()))
}

/// The body of a GET.
fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_string()
}

/// The value of a sample whose name and labels begin so.
#[track_caller]
fn value(metrics: &str, sample: &str) -> f64 {
    let line = metrics.lines().find(|line| line.starts_with(sample));
    let line = line.unwrap_or_else(|| panic!("no {sample} in {metrics}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn what_was_staged_can_be_proven_after_a_crash() {
    let rig = Rig::new(Flash::Disk);
    rig.mount_with("64MiB", &["--store", "directory"]);
    let pfs = rig.base().join("pfs");
    fs::create_dir(&pfs).unwrap();
    let content: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(pfs.join("in.dat"), &content).unwrap();
    fs::write(pfs.join("empty"), b"").unwrap();
    let stage = |arguments: &[&Path]| {
        let mut command = rig.forebay();
        command.args(["stage", "in"]).args(arguments).output().unwrap()
    };
    done(&stage(&[&pfs, &rig.mnt.join("data")]));
    let failed = rig
        .forebay()
        .args(["stage", "out", "--retries", "0"])
        .arg(rig.mnt.join("data"))
        .arg("/proc/no-such-place")
        .output()
        .unwrap();
    assert_eq!(failed.status.code(), Some(1));
    let before = events(&rig, &[]);
    rig.kill_server();
    rig.mount_with("64MiB", &["--store", "directory"]);
    let after = events(&rig, &[]);
    assert_eq!(after[..before.len()], before, "the record is another one after the crash");

    assert_eq!(before[0]["event"], "created");
    assert_eq!(before[0]["bytes"], 64 << 20);
    let staged = of_kind(&after, "staged");
    let big = staged.iter().find(|e| e["bytes"] == content.len()).unwrap();
    assert_eq!(big["crc32c"], crc32c(&content));
    assert_eq!(big["path"], rig.mnt.join("data/in.dat").to_str().unwrap());
    assert_eq!((&big["verified"], &big["plan"]), (&Value::from("cache"), &Value::from(1)));
    assert_eq!(staged.len(), 2);
    let verified = of_kind(&after, "verified");
    assert_eq!((verified.len(), &verified[0]["plan"]), (1, &Value::from(1)));
    assert_eq!(verified[0]["bytes"], content.len());
    let failed = of_kind(&after, "failed");
    assert!(failed.iter().all(|e| e["plan"] == 2) && failed.iter().any(|e| e["errno"].is_u64()));
    let seqs: Vec<u64> = after.iter().map(|e| e["seq"].as_u64().unwrap()).collect();
    assert!(seqs.windows(2).all(|two| two[0] + 1 == two[1]), "{seqs:?}");

    let time = staged[0]["time"].as_str().unwrap();
    let later = events(&rig, &["--since", time]);
    assert!(later.len() < after.len() && later.iter().any(|e| e["event"] == "staged"));
    assert!(events(&rig, &["--since", "2100-01-01"]).is_empty());
    let shown = done(&rig.forebay().arg("events").arg(&rig.mnt).output().unwrap());
    let crc = format!("crc32c {}", crc32c(&content));
    assert!(
        shown.contains(&crc) && shown.contains("verified: read back through the page cache"),
        "{shown}"
    );
    let wrong = rig.forebay().args(["events", "--since", "yesterday"]).output().unwrap();
    let wrong = failure(&wrong, 2);
    assert!(wrong.contains("yesterday") && wrong.contains("2026-11-22"), "{wrong}");
    rig.umount(&[]);
}

#[test]
fn events_are_followed_as_they_happen() {
    let rig = Rig::new(Flash::Memory);
    rig.mount("64MiB");
    let mut follower = std::process::Command::new(crate::common::program())
        .args(["events", "--json", "--follow"])
        .arg(&rig.mnt)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(follower.stdout.take().unwrap());
    let mut next = || {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        serde_json::from_str::<Value>(&line).unwrap()["event"].as_str().unwrap().to_string()
    };
    assert_eq!(next(), "created");
    let source = rig.base().join("file");
    fs::write(&source, b"x").unwrap();
    let mut command = rig.forebay();
    done(&command.args(["stage", "in"]).arg(&source).arg(rig.mnt.join("f")).output().unwrap());
    assert_eq!([next(), next(), next()], ["begun", "staged", "verified"]);
    follower.kill().unwrap();
    follower.wait().unwrap();
    rig.umount(&[]);
}

#[test]
fn a_mount_shows_its_figures_by_http_and_on_a_terminal() {
    let rig = Rig::new(Flash::Memory);
    let output = rig.mount_with("64MiB", &["--http", "127.0.0.1:0", "--no-fast-path", "--json"]);
    let up: Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    let address = up["http"].as_str().unwrap().to_string();
    let taken = rig.forebay();
    let mut taken = taken;
    let other = rig.base().join("other");
    fs::create_dir(&other).unwrap();
    let taken = taken.args(["mount", "--scratch", "8MiB", "--http", &address]).arg(&other).output();
    assert!(failure(&taken.unwrap(), 1).contains("--http"));

    fs::write(rig.mnt.join("a"), vec![7; 3 << 20]).unwrap();
    assert_eq!(fs::read(rig.mnt.join("a")).unwrap().len(), 3 << 20);
    let source = rig.base().join("file");
    fs::write(&source, vec![1; 1 << 20]).unwrap();
    let mut command = rig.forebay();
    done(&command.args(["stage", "in"]).arg(&source).arg(rig.mnt.join("f")).output().unwrap());
    let metrics = get(&address, "/metrics");
    let buffer = format!("{{buffer=\"{}\"", rig.mnt.display());
    let of =
        |name: &str, more: &str| value(&metrics, &format!("forebay_buffer_{name}{buffer}{more}"));
    assert_eq!(of("written_bytes_total", "}"), f64::from(3 << 20));
    // The page cache may have answered, or read ahead once.
    assert!(of("read_bytes_total", "}") <= f64::from(4 << 20));
    assert!(of("used_bytes", "}") >= f64::from(4 << 20));
    assert_eq!(of("capacity_bytes", "}"), f64::from(64 << 20));
    assert_eq!(of("staged_bytes_total", ",direction=\"in\"}"), f64::from(1 << 20));
    assert_eq!(of("plans_ended_total", ",result=\"done\"}"), 1.0);
    assert!(of("calls_total", ",kind=\"create\"}") >= 1.0);
    assert_eq!(of("events_lost_total", "}"), 0.0);
    assert!(value(&metrics, "forebay_cpu_seconds_total") > 0.0);
    assert_eq!(get(&address, "/healthz"), "ok\n");
    // What is not there, or not wanted, is an answer; how long calls took is told.
    assert!(rustix::fs::getxattr(rig.mnt.join("a"), "user.none", &mut [0u8; 8]).is_err());
    let metrics = get(&address, "/metrics");
    let of =
        |name: &str, more: &str| value(&metrics, &format!("forebay_buffer_{name}{buffer}{more}"));
    assert!(of("answers_total", ",errno=\"ENODATA\"}") >= 1.0, "{metrics}");
    assert!(!metrics.contains("forebay_buffer_errors_total"), "{metrics}");
    let calls = of("calls_total", ",kind=\"create\"}");
    assert_eq!(of("call_seconds_count", ",kind=\"create\"}"), calls);
    let all = metrics.lines().find(|line| {
        line.starts_with("forebay_buffer_call_seconds_bucket{le=\"+Inf\"")
            && line.contains("kind=\"create\"")
    });
    assert!(all.unwrap().ends_with(&format!("}} {calls}")), "{all:?}");
    assert!(of("call_seconds_sum", ",kind=\"create\"}") > 0.0);
    let mount = format!("{{mount=\"{}\",buffer=\"\"", rig.mnt.display());
    assert_eq!(value(&metrics, &format!("forebay_mount_fast_path{mount}}}")), 0.0);
    assert!(value(&metrics, &format!("forebay_mount_written_bytes_total{mount}}}")) > 0.0);

    let mut command = rig.forebay();
    let top = done(&command.args(["top", "--once"]).arg(&rig.mnt).output().unwrap());
    let rows: Vec<&str> = top.lines().collect();
    assert!(rows.len() == 2 && rows[0].starts_with("BUFFER"), "{top}");
    assert!(
        rows[1].starts_with(rig.mnt.to_str().unwrap()) && rows[1].contains("64.0 MiB"),
        "{top}"
    );
    let mut command = rig.forebay();
    let top = done(&command.args(["top", "--once", "--json"]).arg(&rig.mnt).output().unwrap());
    let top: Value = serde_json::from_str(&top).unwrap();
    let top = &top["buffers"][0];
    assert_eq!(top["written_bytes"], 3 << 20);
    assert_eq!(top["written_bytes_per_s"], 0.0);
    assert_eq!(top["mount_points"][0], rig.mnt.to_str().unwrap());

    rig.umount(&[]);
    assert!(TcpStream::connect(&address).is_err(), "it still listens after the unmount");
}

/// A server of this test, ended with it.
struct Served {
    rig: Rig,
    child: Child,
    unix: String,
    http: String,
}

impl Served {
    fn start(rig: Rig) -> Served {
        let unix = format!("unix:{}", rig.base().join("sock").display());
        let mut child = std::process::Command::new(crate::common::program())
            .args(["serve", "--capacity", "128MiB", "--listen", &unix, "--json"])
            .args(["--http", "127.0.0.1:0"])
            .env("FOREBAY_FLASH", &rig.flash)
            .env("FOREBAY_CONFIG_DIR", rig.base().join("config"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let up: Value = serde_json::from_str(&line).expect("it did not say where it listens");
        let http = up["http"].as_str().unwrap().to_string();
        Served { rig, child, unix, http }
    }

    fn again(mut self) -> Served {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let rig = std::mem::replace(&mut self.rig, Rig::new(Flash::Memory));
        Served::start(rig)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = self.rig.forebay();
        command.env("FOREBAY_CONFIG_DIR", self.rig.base().join("config"));
        command.args(arguments).args(["--server", &self.unix]).output().unwrap()
    }

    #[track_caller]
    fn done(&self, arguments: &[&str]) -> String {
        done(&self.run(arguments))
    }

    fn events(&self, target: &[&str]) -> Vec<Value> {
        let mut arguments = vec!["events", "--json"];
        arguments.extend(target);
        lines(&self.done(&arguments))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It has ended already if the test started it again.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for store in self.rig.stores() {
            if store.join("store.json").exists() {
                let _ = forebay_store::flash::Store::discard_dir(&store);
            }
        }
    }
}

#[test]
fn a_servers_record_outlives_its_buffers_and_its_kills() {
    let served = Served::start(Rig::new(Flash::Memory));
    let create = ["buffer", "create", "run7", "--capacity", "32MiB", "--store", "directory"];
    served.done(&create);
    served.done(&["buffer", "extend", "run7", "--capacity", "48MiB"]);
    let source = served.rig.base().join("file");
    fs::write(&source, b"evidence").unwrap();
    let source = source.to_str().unwrap();
    served.done(&["stage", "in", source, "run7:/f"]);
    let of_buffer = served.events(&["run7:"]);
    let kinds = |events: &[Value]| -> Vec<String> {
        events.iter().map(|event| event["event"].as_str().unwrap().into()).collect()
    };
    assert_eq!(kinds(&of_buffer), ["created", "extended", "begun", "staged", "verified"]);
    assert_eq!(of_buffer[3]["path"], "run7:/f");
    assert_eq!(of_buffer[3]["crc32c"], crc32c(b"evidence"));

    let served = served.again();
    assert_eq!(served.events(&["run7:"]), of_buffer);
    served.done(&["buffer", "destroy", "run7"]);
    // What it was, after it is gone, and after its server was killed once more.
    let served = served.again();
    let gone = served.events(&["run7:"]);
    assert_eq!(kinds(&gone), ["created", "extended", "begun", "staged", "verified", "destroyed"]);
    assert_eq!(gone[3], of_buffer[3]);
    let of_server = served.events(&[]);
    assert_eq!(kinds(&of_server), ["created", "extended", "destroyed"]);
    assert_eq!(of_server[1]["bytes"], 48 << 20);
    assert!(of_server.iter().all(|event| event["buffer"] == "run7"));
    let none = failure(&served.run(&["events", "other:"]), 1);
    assert!(none.contains("other") && none.contains("none of this name"), "{none}");
}

#[test]
fn a_server_counts_the_calls_of_its_mounts() {
    let served = Served::start(Rig::new(Flash::Memory));
    let create = ["buffer", "create", "run7", "--capacity", "32MiB", "--store", "directory"];
    served.done(&create);
    let mnt = served.rig.mnt.to_str().unwrap().to_string();
    served.done(&["mount", "--buffer", "run7", &mnt]);
    fs::write(served.rig.mnt.join("a"), vec![7; 2 << 20]).unwrap();
    assert_eq!(fs::read(served.rig.mnt.join("a")).unwrap().len(), 2 << 20);
    assert!(fs::read(served.rig.mnt.join("absent")).is_err());
    let metrics = get(&served.http, "/metrics");
    let of = |sample: &str| value(&metrics, &format!("forebay_buffer_{sample}"));
    assert_eq!(of("written_bytes_total{buffer=\"run7\"}"), f64::from(2 << 20));
    assert!(of("calls_total{buffer=\"run7\",kind=\"write\"}") >= 1.0);
    assert!(of("calls_total{buffer=\"run7\",kind=\"create\"}") >= 1.0);
    assert_eq!(of("sessions{buffer=\"run7\"}"), 1.0);
    assert!(of("leases{buffer=\"run7\"}") >= 1.0);
    assert_eq!(value(&metrics, "forebay_capacity_bytes"), f64::from(128 << 20));
    assert_eq!(value(&metrics, "forebay_reserved_bytes"), f64::from(32 << 20));
    assert!(!metrics.contains("other=\""), "a call has no name of its own: {metrics}");
    // No secret of the buffer or the server is anywhere in what is shown.
    let config = served.rig.base().join("config");
    let key = fs::read_to_string(config.join("server.key")).unwrap();
    for path in ["/metrics", "/history.json", "/"] {
        assert!(!get(&served.http, path).contains(key.trim()), "{path}");
    }
    let top = served.done(&["top", "--once"]);
    assert!(top.lines().nth(1).unwrap().starts_with("run7 "), "{top}");
    // The mount tells what its server counts.
    let mut command = served.rig.forebay();
    let by_mount =
        done(&command.args(["top", "--once", "--json"]).arg(&served.rig.mnt).output().unwrap());
    let by_mount: Value = serde_json::from_str(&by_mount).unwrap();
    assert_eq!(by_mount["buffers"][0]["written_bytes"], 2 << 20);
    let until = Instant::now() + LIMIT;
    while !served.rig.umount(&[]).status.success() {
        assert!(Instant::now() < until);
    }
}

/// What kernels write by themselves is seen at the device of an image.
#[test]
fn the_device_of_an_image_tells_what_the_fast_path_moved() {
    crate::common::must_be_root();
    let rig = Rig::new(Flash::Disk);
    let more = ["--store", "image", "--http", "127.0.0.1:0", "--json"];
    let up: Value = serde_json::from_str(&text(&rig.mount_with("320MiB", &more).stdout)).unwrap();
    assert_eq!(up["fast_path"], true, "{up}");
    let address = up["http"].as_str().unwrap();
    let buffer = format!("{{buffer=\"{}\"}}", rig.mnt.display());
    let of =
        |name: &str| value(&get(address, "/metrics"), &format!("forebay_buffer_{name}{buffer}"));
    // The loop device may have had another image before, whose bytes are not this one's.
    let before = of("device_written_bytes_total");
    assert!(before < f64::from(320 << 20), "{before}");
    let file = fs::File::create(rig.mnt.join("a")).unwrap();
    (&file).write_all(&vec![7; 8 << 20]).unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(of("written_bytes_total"), 0.0);
    assert!(of("device_written_bytes_total") - before >= f64::from(8 << 20));
    rig.umount(&[]);
}

/// Two servers, a buffer on both, mounted twice on this machine.
#[test]
fn a_buffer_of_several_servers_is_shown_once_and_whole() {
    crate::common::must_be_root();
    let mut pool = crate::common::pool::Pool::new(&["128MiB", "128MiB"]);
    let http = {
        let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        probe.local_addr().unwrap().to_string()
    };
    pool.kill(0);
    pool.start_on(0, &["--http", &http], None);
    pool.done(0, &["buffer", "create", "b", "--capacity", "64MiB", "--servers", "2"]);
    let mounts = [pool.rig.mnt.clone(), pool.rig.base().join("second")];
    fs::create_dir(&mounts[1]).unwrap();
    let mut by_http = String::new();
    for (at, mount) in mounts.iter().enumerate() {
        let arguments = ["mount", "--buffer", "b", "--json", "--http", "127.0.0.1:0"];
        let up = pool.done(at, &[&arguments[..], &[mount.to_str().unwrap()]].concat());
        let up: Value = serde_json::from_str(&up).unwrap();
        by_http = up["http"].as_str().unwrap().to_string();
    }
    for number in 0..20 {
        fs::create_dir(mounts[1].join(format!("d{number}"))).unwrap();
        fs::write(mounts[1].join(format!("d{number}/f")), vec![7; 100_000]).unwrap();
    }
    let whole = pool.json(0, &["buffer", "status", "b"]);
    let top = pool.command(&["top", "--once", "--json"]).output().unwrap();
    let top: Value = serde_json::from_str(&done(&top)).unwrap();
    // All of the machine are shown, and another test may have one of the same name.
    let lines = top["buffers"].as_array().unwrap().iter();
    let lines: Vec<_> = lines.filter(|line| line["uuid"] == whole["uuid"]).collect();
    assert_eq!(lines.len(), 1, "{top}");
    assert_eq!(lines[0]["buffer"], "b");
    assert_eq!(lines[0]["capacity_bytes"], whole["capacity_bytes"]);
    assert_eq!(lines[0]["used_bytes"], whole["used_bytes"]);
    assert_eq!((&lines[0]["server_count"], &lines[0]["sessions"]), (&2.into(), &4.into()));
    let mut shown: Vec<_> = lines[0]["mount_points"].as_array().unwrap().iter().collect();
    shown.sort_by_key(|mount| mount.to_string());
    let mut wanted: Vec<Value> = mounts.iter().map(|m| m.to_str().unwrap().into()).collect();
    wanted.sort_by_key(ToString::to_string);
    assert!(shown.iter().copied().eq(&wanted), "{shown:?}");

    // The page has the buffer of the whole pool, and a mount shows what went through it.
    let of_page = || serde_json::from_str::<Value>(&get(&http, "/history.json")).unwrap();
    crate::common::wait_for("the page to hear the other server", || {
        of_page()["buffers"][0]["parts"].as_array().is_some_and(|parts| parts.len() == 2)
    });
    assert_eq!(of_page()["buffers"][0]["capacity_bytes"], whole["capacity_bytes"]);
    assert_eq!(get(&http, "/healthz"), "ok\n");
    assert!(rustix::fs::getxattr(&mounts[1], "user.none", &mut [0u8; 8]).is_err());
    let metrics = get(&by_http, "/metrics");
    let mount = format!("{{mount=\"{}\",buffer=\"b\"", mounts[1].display());
    let of = |name: &str| value(&metrics, &format!("forebay_mount_{name}{mount}"));
    assert!(of("requests_total") > 0.0 && of("request_seconds_count") > 0.0);
    assert!(
        metrics.contains("errno=\"ENODATA\"}") && !metrics.contains("mount_errors"),
        "{metrics}"
    );

    // A server that is away: the buffer is not whole, and is shown all the same.
    pool.kill(1);
    crate::common::wait_for("the state of the buffer", || {
        get(&http, "/healthz").starts_with("b: degraded: server ")
    });
    let metrics = get(&http, "/metrics");
    assert_eq!(value(&metrics, "forebay_buffer_degraded{buffer=\"b\"}"), 1.0);
    let top = done(&pool.ask(0, &["top", "--once", "--json"]));
    let top: Value = serde_json::from_str(&top).unwrap();
    assert_eq!(
        (&top["buffers"][0]["server_count"], top["unheard"].as_array().unwrap().len()),
        (&2.into(), 1)
    );
    assert_eq!(top["buffers"][0]["capacity_bytes"], whole["capacity_bytes"], "{top}");
    assert_eq!(top["buffers"][0]["partial"], true, "{top}");
    assert!(top["buffers"][0]["used_bytes"].is_null(), "{top}");
    pool.start(1, None);
    crate::common::wait_for("the state of the buffer", || get(&http, "/healthz") == "ok\n");
    for mount in &mounts {
        done(&pool.command(&["umount", mount.to_str().unwrap()]).output().unwrap());
    }
    pool.done(0, &["buffer", "destroy", "b"]);
}

/// Another user sees what they did themselves, nothing of others.
#[test]
fn users_see_their_own_events() {
    let rig = Rig::new(Flash::Memory);
    rig.mount_with("64MiB", &["-o", "allow_other"]);
    fs::write(rig.base().join("file"), b"x").unwrap();
    let mut command = rig.forebay();
    let staged = command.args(["stage", "in"]).arg(rig.base().join("file")).arg(rig.mnt.join("f"));
    done(&staged.output().unwrap());
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid=1234", "--regid=1234", "--clear-groups"]);
    command.arg(crate::common::program()).args(["events", "--json"]).arg(&rig.mnt);
    assert_eq!(done(&command.output().unwrap()), "");
    assert_eq!(events(&rig, &[]).len(), 4);
    rig.umount(&[]);
}

#[test]
fn what_a_cache_drains_is_told_and_counted() {
    let rig = Rig::new(Flash::Memory);
    let pfs = rig.base().join("pfs");
    fs::create_dir(&pfs).unwrap();
    fs::write(pfs.join("old"), vec![5; 1 << 20]).unwrap();
    let mut command = rig.forebay();
    command.args(["mount", "--capacity", "64MiB", "--http", "127.0.0.1:0", "--json", "--cache"]);
    let up = done(&command.arg(&pfs).arg(&rig.mnt).output().unwrap());
    let up: Value = serde_json::from_str(&up).unwrap();
    let address = up["http"].as_str().unwrap();
    fs::write(rig.mnt.join("new"), vec![7; 300_000]).unwrap();
    assert_eq!(fs::read(rig.mnt.join("old")).unwrap().len(), 1 << 20);
    for arguments in [["flush"], ["wait"]] {
        done(&rig.forebay().args(arguments).arg(&rig.mnt).output().unwrap());
    }
    assert_eq!(fs::read(pfs.join("new")).unwrap(), vec![7; 300_000]);
    let events = events(&rig, &[]);
    let drained = of_kind(&events, "drained");
    assert_eq!(drained.len(), 1, "{events:?}");
    assert_eq!(drained[0]["path"], rig.mnt.join("new").to_str().unwrap());
    assert_eq!(drained[0]["verified"], "cache");
    assert!(drained[0]["bytes"].as_u64().unwrap() >= 300_000);
    let metrics = get(address, "/metrics");
    let of = |name: &str| {
        value(&metrics, &format!("forebay_cache_{name}{{buffer=\"{}\"}}", rig.mnt.display()))
    };
    assert_eq!((of("dirty_bytes"), of("conflicts"), of("failed_files")), (0.0, 0.0, 0.0));
    assert!(of("drained_bytes_total") >= 300_000.0);
    assert!(of("filled_bytes_total") >= f64::from(1 << 20));
    let mut command = rig.forebay();
    let top = done(&command.args(["top", "--once"]).arg(&rig.mnt).output().unwrap());
    assert!(top.contains("DIRTY") && top.contains("HITS"), "{top}");
    assert!(rig.umount(&[]).status.success());
}
