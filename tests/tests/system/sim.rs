//! `forebay sim` as a user has it: the page that leads from a job script to a sizing decision, run as it stands; results as
//! frames in Python; and one policy for server and simulator: a decision that is changed in `crates/policy` changes what a real
//! server does, and what the simulator says it does, alike.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::{binary, use_build_of_tests};
use forebay_tests::procs::{run, try_run_for};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Longest that a command may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(200);

/// A machine of one node whose buffer is a cache of Forebay.
fn machine(capacity: u64, policy: &str) -> String {
    format!(
        "version = 1\n[compute]\nnodes = 1\nprocesses_per_node = 8\n[network]\nrate = \"10GB/s\"\n[storage]\nservers = 1\n\
         stripe = \"1MiB\"\n[storage.device]\nrate = \"500MB/s\"\n[buffer]\nattach = \"compute\"\nrules = \"forebay\"\n\
         capacity = {capacity}\n[buffer.device]\nrate = \"2GB/s\"\n[buffer.drain]\npolicy = \"{policy}\"\n"
    )
}

#[test]
fn the_page_about_sizing_leads_from_a_job_to_a_decision() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/how-to/sizing.md");
    let text = std::fs::read_to_string(page).unwrap();
    let commands: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    assert!(commands.len() >= 10, "{commands:?}");
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    for dir in ["bin", "pfs", "flash"] {
        std::fs::create_dir(place.path().join(dir)).unwrap();
    }
    std::os::unix::fs::symlink(binary(), place.path().join("bin/forebay")).unwrap();
    // A job: it computes and writes, twice.
    let app = "#!/bin/sh\nmkdir -p $1\nfor n in 1 2; do sleep 0.1; dd if=/dev/zero of=$1/$n bs=1M count=8 conv=fsync 2>/dev/null; done\n";
    std::fs::write(place.path().join("app"), app).unwrap();
    run(Command::new("chmod").arg("+x").arg(place.path().join("app")));
    let mut said = String::new();
    for command in commands {
        let mut shell = Command::new("bash");
        shell.args(["-euc", command]).current_dir(&place);
        shell.env("PATH", format!("{}:/usr/bin:/bin", place.path().join("bin").display()));
        shell.env("PFS", place.path().join("pfs")).env("FLASH", place.path().join("flash"));
        let (ok, output) = try_run_for(&mut shell, LIMIT);
        assert!(ok, "{command}: {output}");
        let _ = writeln!(said, "{output}");
    }
    // The job's two files of 8 MiB were seen, and a capacity was found.
    for part in ["capacity of a buffer", "write rate of a flash device", "bound by", "replayed"] {
        assert!(said.contains(part), "no {part}: {said}");
    }
    let workload = std::fs::read_to_string(place.path().join("job/workload.toml")).unwrap();
    assert!(workload.contains("operations"), "{workload}");
    assert!(std::fs::metadata(place.path().join("size.html")).unwrap().len() > 10_000);
}

#[test]
fn simulations_are_frames_in_python() {
    let named = std::env::var_os("FOREBAY_TRACE_PYTHON").map(PathBuf::from);
    let python =
        named.unwrap_or_else(|| binary().parent().unwrap().join("../trace-venv/bin/python"));
    assert!(
        python.exists(),
        "no {}: scripts/trace-venv target/trace-venv makes it",
        python.display()
    );
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("machine.toml"), machine(64 << 20, "close")).unwrap();
    let workload = "workload = 1\nfile = [{ name = \"f\", path = \"f.{process}\", size = \"32MiB\" }]\n[[job]]\nprocesses = 4\nphase = [\n  { name = \"write\", steps = [{ write = \"f\", transfer = \"1MiB\" }] },\n  { name = \"read\", steps = [{ read = \"f\", transfer = \"1MiB\" }] },\n]\n";
    std::fs::write(place.path().join("job.toml"), workload).unwrap();
    let tree = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(python);
    command.arg(tree.join("programs/simulated.py")).arg(place.path());
    command.env("PYTHONPATH", tree.join("../python")).env("PYTHONDONTWRITEBYTECODE", "1");
    let (ok, said) = try_run_for(command.env("FOREBAY", binary()).env_remove("FOREBAY_LIB"), LIMIT);
    assert!(ok && said.contains("2 phases, 6 points"), "{said}");
}

/// A real cache: what it decided about the files of a workload, by its own record.
struct Server {
    base: tempfile::TempDir,
    changed: &'static str,
}

impl Server {
    fn mounted(capacity: u64, policy: &str, changed: &'static str) -> Server {
        let base = tempfile::Builder::new().prefix("forebay-sim-").tempdir_in("/dev/shm").unwrap();
        for dir in ["mnt", "pfs", "flash"] {
            std::fs::create_dir(base.path().join(dir)).unwrap();
        }
        let server = Server { base, changed };
        let mut mount = server.forebay();
        mount.args(["mount", "--drain", policy, "--capacity", &capacity.to_string()]);
        mount.arg("--cache").arg(server.path("pfs")).arg("--flash").arg(server.path("flash"));
        let (ok, said) = try_run_for(mount.arg(server.path("mnt")), LIMIT);
        assert!(ok, "{said}");
        server
    }

    fn path(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }

    fn forebay(&self) -> Command {
        let mut command = Command::new(binary());
        if !self.changed.is_empty() {
            command.env("FOREBAY_CHANGED_POLICY", self.changed);
        }
        command
    }

    /// The files that it tells of in these events, in order.
    fn told(&self, event: &str) -> Vec<String> {
        let output =
            self.forebay().args(["events", "--json"]).arg(self.path("mnt")).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let events = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let of_kind = events.filter(|found| found["event"] == event);
        let path = |event: Value| event["path"].as_str().map(str::to_string);
        let name = |path: String| path.rsplit('/').next().unwrap().to_string();
        of_kind.filter_map(path).map(name).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let (ok, said) = try_run_for(self.forebay().arg("umount").arg(self.path("mnt")), LIMIT);
        if !ok {
            eprintln!("{said}");
        }
    }
}

fn name(n: u32) -> String {
    format!("f{n:02}")
}

/// One process writes files one after the other, and waits.
fn workload(count: u32, bytes: u64, think: &str) -> String {
    let mut text = String::from("workload = 1\n");
    for n in 0..count {
        let _ = write!(text, "[[file]]\nname = \"{0}\"\npath = \"{0}\"\nsize = {bytes}\n", name(n));
    }
    text.push_str("[[job]]\n[[job.phase]]\nname = \"write\"\nsteps = [\n");
    for n in 0..count {
        let _ = writeln!(text, "{{ write = \"{}\", transfer = \"1MiB\" }},", name(n));
    }
    let _ =
        write!(text, "]\n[[job.phase]]\nname = \"wait\"\nsteps = [{{ think = \"{think}\" }}]\n");
    text
}

/// Files of a kind of decision of the simulator, in order.
fn simulated(
    place: &Path,
    machine: &str,
    workload: &str,
    what: &str,
    changed: &str,
) -> Vec<String> {
    std::fs::write(place.join("m.toml"), machine).unwrap();
    std::fs::write(place.join("w.toml"), workload).unwrap();
    let mut command = Command::new(binary());
    command.args(["sim", "run", "w.toml", "-m", "m.toml", "--decisions", "--json"]);
    let output =
        command.current_dir(place).env("FOREBAY_CHANGED_POLICY", changed).output().unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let all = found["decisions"].as_array().unwrap().iter();
    let of_kind =
        all.filter(|decision| decision["what"] == what && decision["at_s"].as_f64() < Some(3.0));
    of_kind
        .map(|decision| decision["file"].as_str().unwrap().split('.').next().unwrap().to_string())
        .collect()
}

/// A changed order of the drain: server and simulator begin at the other end.
#[test]
fn a_changed_order_of_drains_changes_server_and_simulator_alike() {
    // A release refuses such changes.
    use_build_of_tests();
    let place = tempfile::tempdir().unwrap();
    // A deadline that all have passed when they are looked at: the order alone is left to decide.
    let (count, bytes) = (24, 1 << 20);
    for changed in ["", "drain-order"] {
        let server = Server::mounted(128 << 20, "end", changed);
        for n in 0..count {
            std::fs::write(server.path("mnt").join(name(n)), vec![n as u8; bytes]).unwrap();
        }
        // At 8 MB/s files end one after the other, whoever drains them.
        let mut rate = server.forebay();
        run(rate.arg("drain-rate").arg(server.path("mnt")).arg("8MB"));
        run(server.forebay().arg("wait").arg(server.path("mnt")));
        let mut machine = machine(128 << 20, "end");
        machine.push_str("limit = \"8MB/s\"\n");
        let text = workload(count, bytes as u64, "10ms");
        let said = simulated(place.path(), &machine, &text, "drain", changed);
        let told = server.told("drained");
        assert_eq!((told.len(), said.len()), (24, 24), "{told:?} {said:?}");
        // As many workers as there are may end in any order among themselves.
        let first: BTreeSet<_> = told[..8].iter().cloned().collect();
        let expected: Vec<u32> =
            if changed.is_empty() { (0..12).collect() } else { (12..24).collect() };
        let half: BTreeSet<String> = expected.into_iter().map(name).collect();
        assert!(first.is_subset(&half), "{changed}: the server drained {told:?}");
        assert!(said[..8].iter().all(|file| half.contains(file)), "{changed}: simulated {said:?}");
    }
}

/// A changed watermark: what is below it as it is, and above it as it is changed, drains on both sides or on neither.
#[test]
fn a_changed_watermark_changes_server_and_simulator_alike() {
    // A release refuses such changes.
    use_build_of_tests();
    let place = tempfile::tempdir().unwrap();
    // 40 MiB are a third of 120: below 50 %, and above the half of that, from which they drain down to an eighth.
    let (policy, capacity, bytes) = ("end,watermark=50:25", 120_u64 << 20, 4_u64 << 20);
    for (changed, least, most) in [("", 0, 0), ("watermarks", 3, 10)] {
        let server = Server::mounted(capacity, policy, changed);
        for n in 0..10 {
            std::fs::write(server.path("mnt").join(name(n)), vec![1; bytes as usize]).unwrap();
        }
        let text = workload(10, bytes, "10s");
        let said = simulated(place.path(), &machine(capacity, policy), &text, "drain", changed);
        assert!((least..=most).contains(&said.len()), "{changed}: simulated {said:?}");
        // Without a drain to wait for: four looks at the watermark.
        let patience = if least == 0 { Duration::from_secs(2) } else { LIMIT };
        let until = std::time::Instant::now() + patience;
        while server.told("drained").len() < least.max(1) && std::time::Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
        }
        let told = server.told("drained");
        assert!((least..=most).contains(&told.len()), "{changed}: the server drained {told:?}");
    }
}
