//! The programs and set-ups of `examples/`: each runs here as its page says, on a real buffer.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::{Buffer, Kind, binary};
use forebay_tests::procs::{run, try_run, try_run_for};
use forebay_tests::programs;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Longest that one of the programs may take; importing torch takes seconds by itself.
const LIMIT: Duration = Duration::from_secs(240);

fn tree(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).canonicalize().unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn the_job_script_runs_and_continues_where_an_earlier_run_was_cut_off() {
    let pfs = tempfile::tempdir().unwrap();
    let me = pfs.path().join("me");
    fs::create_dir_all(me.join("input")).unwrap();
    fs::write(me.join("input/a"), "c\nb\n").unwrap();
    fs::write(me.join("input/b"), "2\n1\n").unwrap();
    let script = fs::read_to_string(tree("examples/shell-job/job.sh")).unwrap();
    let job = pfs.path().join("job.sh");
    fs::write(&job, script.replace("/pfs/me", me.to_str().unwrap())).unwrap();
    let flash = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut validate = Command::new(binary());
    let said = run(validate.arg("validate").arg(&job).env("FOREBAY_FLASH", flash.path()));
    assert!(said.contains("256 MiB") && said.contains("stage_out"), "{said}");
    let job_run = || {
        let mut command = Command::new(binary());
        command.args(["run", "--flash"]).arg(flash.path()).arg(&job);
        let (ok, said) = try_run(&mut command);
        assert!(ok, "{said}");
        said
    };
    let said = job_run();
    assert!(said.contains("a: sorted") && said.contains("b: sorted"), "{said}");
    assert_eq!(fs::read_to_string(me.join("results/a")).unwrap(), "b\nc\n");
    fs::remove_file(me.join("results/b")).unwrap();
    let said = job_run();
    assert!(said.contains("a: done by an earlier run") && said.contains("b: sorted"), "{said}");
    assert_eq!(names(&me.join("results")), ["a", "b"]);
    let left = names(flash.path()).into_iter().filter(|name| !name.starts_with("forebay-jobs"));
    assert_eq!(left.collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn the_mpi_program_continues_from_its_checkpoint() {
    let out = tempfile::tempdir().unwrap();
    let program = out.path().join("heat");
    let mut compile = Command::new("mpicc.openmpi");
    compile.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    run(compile.arg(tree("examples/mpi-checkpoint/heat.c")));
    let buffer = Buffer::mount(Kind::Tmpfs, 64 << 20);
    let plain = out.path().join("plain");
    fs::create_dir(&plain).unwrap();
    let heat = |dir: &Path, steps: &str| {
        let mut command = Command::new("mpirun");
        command
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .env("TMPDIR", out.path())
            .args(["--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "-n", "3"])
            .arg(&program)
            .arg(dir)
            .arg(steps);
        let (ok, said) = try_run_for(&mut command, LIMIT);
        assert!(ok, "{said}");
        said
    };
    assert!(heat(&buffer.root(), "7").contains("begins at step 0"));
    let said = heat(&buffer.root(), "12");
    assert!(said.contains("begins at step 7") && said.contains("ended at step 12"), "{said}");
    heat(&plain, "12");
    let of = |dir: &Path| fs::read(dir.join("checkpoint")).unwrap();
    assert_eq!(of(&buffer.root()).len(), 8 + 3 * 65_536 * 8);
    assert!(of(&buffer.root()) == of(&plain), "a restart gives another checkpoint");
    let place = out.path().join("pfs");
    run(Command::new(binary()).arg("commit").arg(buffer.root()).arg("--to").arg(&place));
    assert!(of(&place) == of(&plain));
}

#[test]
fn the_training_loop_continues_from_its_published_checkpoint() {
    let named = std::env::var_os("FOREBAY_TORCH_PYTHON").map(PathBuf::from);
    let beside = binary().parent().unwrap().join("../torch-venv/bin/python");
    let python = named.unwrap_or(beside);
    let hint = "scripts/torch-venv target/torch-venv makes it";
    assert!(python.exists(), "no {}: {hint}", python.display());
    let buffer = Buffer::mount(Kind::Tmpfs, 64 << 20);
    let pfs = tempfile::tempdir().unwrap();
    let place = pfs.path().join("checkpoint");
    let train = |epochs: &str| {
        let mut command = Command::new(&python);
        command.args(["-W", "ignore"]).arg(tree("examples/torch/train.py"));
        command.arg(buffer.root()).arg(&place).arg(epochs);
        command.env("PYTHONPATH", tree("python")).env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("FOREBAY_LIB", binary().with_file_name("libforebay.so"));
        let (ok, said) = try_run_for(&mut command, LIMIT);
        assert!(ok, "{said}");
        said
    };
    let said = train("2");
    assert!(said.contains("begins with epoch 0") && said.contains("published epoch 2"), "{said}");
    let said = train("3");
    assert!(said.contains("begins with epoch 2") && said.contains("epoch 3: loss"), "{said}");
    let said = run(Command::new(binary()).arg("verify").arg(&place));
    assert!(said.contains("as committed"), "{said}");
    assert_eq!(names(&buffer.root()), [""; 0], "published checkpoints stay in the buffer");
}

#[test]
fn the_c_program_publishes_a_directory() {
    let out = tempfile::tempdir().unwrap();
    let source = tree("examples/c-api/publish.c");
    let program = programs::compile(&source, out.path(), "forebay", &[]);
    let buffer = Buffer::mount(Kind::Tmpfs, 16 << 20);
    let dir = buffer.root().join("results");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("report"), "all is well\n").unwrap();
    let place = out.path().join("published");
    let said = run(Command::new(&program).arg(&dir).arg(&place));
    let wanted = "report: 12 bytes, survives the death of the program and of the mount\n";
    assert!(said.contains(wanted) && said.contains("published 1 files, 12 bytes"), "{said}");
    assert_eq!(fs::read_to_string(place.join("report")).unwrap(), "all is well\n");
    let (ok, said) = try_run(Command::new(&program).arg(&dir).arg("/proc/no/such/place"));
    assert!(!ok && said.contains("publish: "), "{said}");
}

/// A server with a scratch buffer, which is mounted, and a cache, both with `--http`.
struct Watched {
    base: tempfile::TempDir,
    server: Child,
    /// Where server and mount show their figures.
    http: Vec<String>,
}

impl Watched {
    fn start() -> Watched {
        let base = tempfile::tempdir_in("/dev/shm").unwrap();
        for name in ["flash", "config", "mnt", "pfs"] {
            fs::create_dir(base.path().join(name)).unwrap();
        }
        let mut command = Command::new(binary());
        command.args(["serve", "--capacity", "192MiB", "--json", "--http", "127.0.0.1:0"]);
        command.arg("--listen").arg(format!("unix:{}", base.path().join("sock").display()));
        command.arg("--flash").arg(base.path().join("flash"));
        command.env("FOREBAY_CONFIG_DIR", base.path().join("config"));
        let mut server = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut watched = Watched { base, server, http: Vec::new() };
        watched.note(&line);
        watched.forebay(&["buffer", "create", "run7", "--capacity", "32MiB"]);
        let pfs = watched.base.path().join("pfs").display().to_string();
        let cache = ["buffer", "create", "proj", "--type", "cache", "--pfs", &pfs];
        watched.forebay(&[&cache[..], &["--capacity", "64MiB"]].concat());
        let mnt = watched.mnt().display().to_string();
        let more = ["--http", "127.0.0.1:0", "--json", "--no-fast-path"];
        let said = watched.forebay(&[&["mount", "--buffer", "run7", &mnt], &more[..]].concat());
        watched.note(&said);
        watched
    }

    fn note(&mut self, line: &str) {
        let up: Value = serde_json::from_str(line.lines().next().unwrap()).unwrap();
        self.http.push(up["http"].as_str().unwrap().to_string());
    }

    fn mnt(&self) -> PathBuf {
        self.base.path().join("mnt")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(arguments).env("FOREBAY_CONFIG_DIR", self.base.path().join("config"));
        command.env("FOREBAY_SERVER", format!("unix:{}", self.base.path().join("sock").display()));
        command
    }

    fn forebay(&self, arguments: &[&str]) -> String {
        run(&mut self.command(arguments))
    }

    /// All that `/metrics` of server and mount show.
    fn metrics(&self) -> String {
        let get = |address: &String| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer.split_once("\r\n\r\n").unwrap().1.to_string()
        };
        self.http.iter().map(get).collect()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mnt = self.mnt().display().to_string();
        let _ = try_run(&mut self.command(&["umount", "--force", &mnt]));
        let _ = try_run(&mut self.command(&["buffer", "destroy", "--force", "run7"]));
        let _ = try_run(&mut self.command(&["buffer", "destroy", "--discard-dirty", "proj"]));
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Names of metrics in a query, each with the labels that are asked of it: those in its braces, and those of the
/// query's `by`.
fn asked(query: &str) -> BTreeMap<String, BTreeSet<String>> {
    let is_word = |char: char| char.is_ascii_alphanumeric() || char == '_';
    let words = |list: &str| -> BTreeSet<String> {
        let parts = list.split(',').map(|part| part.chars().take_while(|c| is_word(*c)));
        parts.map(|word| word.collect::<String>()).filter(|word| !word.is_empty()).collect()
    };
    let mut by = BTreeSet::new();
    for part in query.split("by (").skip(1) {
        by.extend(words(&part.split(')').next().unwrap().replace(' ', "")));
    }
    let mut found = BTreeMap::new();
    for (at, _) in query.match_indices("forebay_") {
        let rest = &query[at..];
        let name: String = rest.chars().take_while(|c| is_word(*c)).collect();
        let braces =
            rest[name.len()..].strip_prefix('{').map_or("", |r| r.split('}').next().unwrap());
        let mut labels = words(&braces.replace(' ', ""));
        labels.extend(by.iter().cloned());
        found.entry(name).or_insert_with(BTreeSet::new).extend(labels);
    }
    found
}

/// The queries of the dashboard and of the alerts.
fn queries() -> Vec<String> {
    let dir = tree("examples/prometheus-grafana");
    let dashboard = fs::read_to_string(dir.join("dashboards/forebay.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let mut all = Vec::new();
    let mut ids = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "two panels have one id: {panel}");
        assert!(panel["gridPos"]["w"].as_u64().unwrap() <= 24, "{panel}");
        let targets = panel.get("targets").and_then(Value::as_array);
        assert!(targets.is_some() || panel["type"] == "row", "{panel}");
        for target in targets.into_iter().flatten() {
            all.push(target["expr"].as_str().unwrap().to_string());
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        all.extend(variable["query"]["query"].as_str().map(str::to_string));
    }
    let alerts = fs::read_to_string(dir.join("alerts.yml")).unwrap();
    all.extend(
        alerts.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).map(String::from),
    );
    all
}

#[test]
fn the_queries_of_dashboard_and_alerts_are_about_what_a_server_exports() {
    let watched = Watched::start();
    fs::write(watched.mnt().join("file"), vec![1; 1 << 20]).unwrap();
    // An error, so that errors are counted.
    let failing = ["stage", "out", "--retries", "0", "run7:/file", "/proc/no-such-place"];
    let (ok, said) = try_run(&mut watched.command(&failing));
    assert!(!ok, "{said}");
    let metrics = watched.metrics();
    let document = fs::read_to_string(tree("docs/METRICS.md")).unwrap();
    let queries = queries();
    assert!(queries.len() > 30, "{queries:?}");
    for query in &queries {
        for (metric, labels) in asked(query) {
            // A histogram and a counter are declared by their names without what their samples append.
            let family = metric.trim_end_matches("_bucket").trim_end_matches("_total");
            let declared = metrics.contains(&format!("# TYPE {family} "));
            let row = |start: String| document.lines().find(move |line| line.starts_with(&start));
            let may_be_absent =
                row(format!("| `{metric}`")).is_some_and(|row| row.contains("absent where"));
            assert!(declared || may_be_absent, "{query}: nothing exports {metric}\n{metrics}");
            let samples: Vec<&str> = metrics
                .lines()
                .filter(|line| {
                    line.starts_with(&format!("{metric}{{"))
                        || line.starts_with(&format!("{metric} "))
                })
                .collect();
            for label in labels.iter().filter(|label| *label != "instance") {
                let shown = samples.iter().any(|sample| sample.contains(&format!("{label}=\"")));
                // What has no sample here, such as errors by errno, has its labels in the document.
                let described = row(format!("| `{metric}{{"))
                    .is_some_and(|row| row.split('`').nth(1).unwrap().contains(label))
                    || label == "buffer" && document.contains(&format!("`{metric}"));
                assert!(
                    shown || samples.is_empty() && described,
                    "{query}: {metric} has no label {label}"
                );
            }
        }
    }
}

#[test]
fn a_query_is_taken_apart() {
    let query =
        "sum by (le, kind) (rate(forebay_a_total{buffer=~\"$b\", x=\"1\"}[1m])) / forebay_b";
    let found = asked(query);
    let labels = |name: &str| found[name].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(labels("forebay_a_total"), ["buffer", "kind", "le", "x"]);
    assert_eq!(labels("forebay_b"), ["kind", "le"]);
}
