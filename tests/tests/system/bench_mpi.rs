//! `forebay bench` under real MPI launchers (Open MPI, MPICH): its processes are the ranks, its shared files are files of MPI-IO, and
//! the figures are those of all of them.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::binary;
use forebay_tests::procs::run;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Seconds that a run may take: ten times and more what it takes.
const LIMIT: &str = "120";

/// `mpirun -n RANKS COMMAND` in a directory.
pub(crate) fn launched(dir: &Path, ranks: usize, environment: &[(&str, &str)]) -> Command {
    let mut command = limited("mpirun");
    command
        // The tests are root, and use fewer processors than there are ranks.
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("TMPDIR", dir)
        .envs(environment.iter().copied())
        .args(["--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "-n", &ranks.to_string()])
        .current_dir(dir);
    command
}

/// `mpirun -n RANKS forebay bench ARGS` in a directory.
pub(crate) fn mpirun(
    dir: &Path,
    ranks: usize,
    environment: &[(&str, &str)],
    args: &[&str],
) -> Command {
    let mut command = launched(dir, ranks, environment);
    command.arg(binary()).arg("bench").args(args);
    command
}

/// The same by MPICH's launcher and library.
fn mpich(dir: &Path, ranks: usize, args: &[&str]) -> Command {
    let mut command = limited("mpiexec.hydra");
    command.args(["-n", &ranks.to_string()]).arg(binary()).arg("bench").args(args).current_dir(dir);
    command
}

/// A command that is killed if it hangs.
pub(crate) fn limited(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", LIMIT]).arg(program);
    command
}

/// Its standard output and error, which must end well.
pub(crate) fn good(dir: &Path, ranks: usize, args: &[&str]) -> (String, String) {
    let output = mpirun(dir, ranks, &[], args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {said}");
    (String::from_utf8(output.stdout).unwrap(), said)
}

pub(crate) fn json(dir: &Path, ranks: usize, args: &[&str]) -> Value {
    let (out, said) = good(dir, ranks, args);
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out} {said}"))
}

pub(crate) fn place() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("forebay-mpi-").tempdir_in("/dev/shm").unwrap()
}

/// The same pattern by ranks and by processes of its own: the same file, byte by byte; each rank reads its neighbour's part.
#[test]
fn ior_by_ranks_writes_what_ior_by_processes_writes() {
    let place = place();
    let dir = place.path();
    let common = ["-t", "47008", "-b", "94016", "-s", "5", "-G", "7", "-w", "-R", "-k", "--json"];
    let with = |file: &str, more: &[&str]| -> Vec<String> {
        let neighbour = ["ior", "-C", "-O", "numTasksOnNode0=1", "-o", file];
        neighbour.iter().chain(&common).chain(more).map(ToString::to_string).collect()
    };
    let own = with("own", &["-N", "3"]);
    run(limited(binary()).arg("bench").args(own).current_dir(dir));
    let wanted = std::fs::read(dir.join("own")).unwrap();
    assert_eq!(wanted.len(), 3 * 5 * 94_016);
    for (file, more) in [
        ("posix", &["-a", "POSIX", "-g", "-e"][..]),
        ("independent", &["-a", "MPIIO", "-e"][..]),
        ("collective", &["-a", "MPIIO", "-c", "-Y"][..]),
    ] {
        let args = with(file, more);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let told = json(dir, 3, &args);
        let test = &told["tests"][0];
        assert_eq!(test["Parameters"]["numTasks"], 3, "{file}");
        let results = test["Results"].as_array().unwrap();
        assert_eq!(results.len(), 2, "{file}: a write and a read");
        for result in results {
            assert!(result["bwMiB"].as_f64().unwrap() > 0.0, "{file}: {result}");
        }
        assert!(std::fs::read(dir.join(file)).unwrap() == wanted, "{file}");
    }
}

/// The same under MPICH: all ranks are one run, by POSIX calls and by its MPI-IO; and a rank that fails ends it.
#[test]
fn ranks_of_mpich_are_one_run() {
    let place = place();
    let dir = place.path();
    let common = ["ior", "-C", "-O", "numTasksOnNode0=1", "-t", "47008", "-b", "94016", "-s", "5"];
    let with = |file: &str, more: &[&str]| -> Vec<String> {
        let rest = ["-G", "7", "-w", "-R", "-k", "--json", "-o", file];
        common.iter().chain(&rest).chain(more).map(ToString::to_string).collect()
    };
    run(limited(binary()).arg("bench").args(with("own", &["-N", "3"])).current_dir(dir));
    let wanted = std::fs::read(dir.join("own")).unwrap();
    for (file, more) in [
        ("posix", &["-a", "POSIX", "-e"][..]),
        ("independent", &["-a", "MPIIO"][..]),
        ("collective", &["-a", "MPIIO", "-c", "-e"][..]),
    ] {
        let args = with(file, more);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let told: Value = serde_json::from_str(&run(&mut mpich(dir, 3, &args))).unwrap();
        assert_eq!(told["tests"][0]["Parameters"]["numTasks"], 3, "{file}");
        assert!(std::fs::read(dir.join(file)).unwrap() == wanted, "{file}");
    }
    // The netCDF library of this machine is one for Open MPI: said, and its blocks are moved.
    let netcdf =
        ["netcdf", "-n", "3", "-p", "1", "-d", "2:9:4:4", "-t", "coll", "--verify", "--json", "."];
    let told: Value = serde_json::from_str(&run(&mut mpich(dir, 3, &netcdf))).unwrap();
    let notes = told["notes"].to_string();
    assert!(notes.contains("uses another MPI library than MPICH"), "{notes}");
    assert!(notes.contains("MPI-IO by MPICH") && told["differences"] == 0, "{told}");
    let out = run(&mut mpich(dir, 3, &["mdtest", "-n", "20", "-u", "-F", "-N", "1", "."]));
    assert!(out.contains("File creation") && out.matches("SUMMARY").count() == 1, "{out}");
    std::fs::write(
        dir.join("fails.toml"),
        "workload = 1\n[[file]]\nname = \"missing\"\npath = \"missing\"\nsize = \"4KiB\"\n[[job]]\nprocesses = 3\n[[job.phase]]\nsteps = [{ read = \"missing\", block = 4096, only = \"1\" }, { barrier = true }]\n",
    )
    .unwrap();
    let output = mpich(dir, 3, &["run", "fails.toml", "."]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("rank 1: open ") && said.contains("missing: No such file"), "{said}");
}

/// Each kind of waiting that a workload knows, and both kinds of MPI-IO, also asynchronous: the same calls and bytes as by
/// processes of its own, and all that is read is what was written.
#[test]
fn a_workload_by_ranks_does_what_it_does_by_processes() {
    let place = place();
    let dir = place.path();
    std::fs::write(
        dir.join("all.toml"),
        r#"
workload = 1
[[file]]
name = "own"
path = "own.{process}"
[[file]]
name = "shared"
path = "shared"
interface = "mpi-io"
[[file]]
name = "array"
path = "array"
interface = "mpi-io-collective"
[[file]]
name = "names"
path = "d{process}/f{item}"
items = 7
[[job]]
name = "a"
processes = 3
[[job.phase]]
name = "turns"
repeat = 2
steps = [
  { write = "own", block = "96KiB", transfer = "32KiB", turns = 3, sync = "end" },
  { signal = "done" },
  { await = "done", count = 3 },
  { barrier = true, only = "0-2/2" },
]
[[job.phase]]
name = "shared"
steps = [
  { write = "shared", block = "64KiB", transfer = "16KiB", segments = 2, asynchronous = true },
  { wait = true },
  { barrier = true },
  { read = "shared", block = "64KiB", transfer = "16KiB", segments = 2, of = { shift = 1 }, verify = true },
]
[[job.phase]]
name = "array"
steps = [
  { write = "array", array = [4, 6, 8], divide = [1, 3, 1], element = 4 },
  { barrier = true },
  { read = "array", array = [4, 6, 8], divide = [1, 3, 1], element = 4, of = { shift = 1 }, verify = true },
]
[[job.phase]]
name = "names"
steps = [{ create = "names" }, { stat = "names" }, { unlink = "names" }]
"#,
    )
    .unwrap();
    let mut alone = limited(binary());
    alone.args(["bench", "run", "all.toml", ".", "--json", "--seed", "5"]).current_dir(dir);
    let output = alone.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let wanted: Value = serde_json::from_slice(&output.stdout).unwrap();
    let told = json(dir, 3, &["run", "all.toml", ".", "--json", "--seed", "5"]);
    let phases = |told: &Value| -> Vec<Value> {
        let of = |phase: &Value| {
            let ranks = phase["ranks"].as_array().unwrap().iter();
            let calls: Vec<&Value> = ranks.map(|rank| &rank["calls"]).collect();
            serde_json::json!([phase["phase"], phase["read_bytes"], phase["written_bytes"], calls])
        };
        told["phases"].as_array().unwrap().iter().map(of).collect()
    };
    assert_eq!(phases(&told), phases(&wanted));
    assert_eq!((&told["differences"], &wanted["differences"]), (&0.into(), &0.into()));
    let notes = told["notes"].to_string();
    assert!(notes.contains("MPI-IO by Open MPI") && !notes.contains("by itself"), "{notes}");
    assert!(wanted["notes"].to_string().contains("start it by mpirun"), "{wanted}");
    // Nothing is left.
    assert_eq!(
        std::fs::read_dir(dir)
            .unwrap()
            .filter(|entry| {
                entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("forebay-bench")
            })
            .count(),
        0
    );
}

/// The patterns take as many ranks as were started.
#[test]
fn patterns_take_the_ranks_that_were_started() {
    let place = place();
    let dir = place.path();
    let (out, _) = good(dir, 2, &["mdtest", "-n", "20", "-u", "-F", "-N", "1", "."]);
    assert!(out.contains("File creation") && out.matches("SUMMARY").count() == 1, "{out}");
    let netcdf =
        ["netcdf", "-n", "2", "-p", "1", "-d", "3:8:4:4", "-t", "coll", "--verify", "--json", "."];
    let told = json(dir, 2, &netcdf);
    assert_eq!(told["phases"][0]["ranks"].as_array().unwrap().len(), 2, "{told}");
    let io500 = [
        "io500",
        "-D",
        "0.2",
        "--easy-bytes",
        "4m",
        "--hard-records",
        "20",
        "-n",
        "20",
        "--json",
        ".",
    ];
    let told = json(dir, 2, &io500);
    assert_eq!(told["phases"].as_array().unwrap().len(), 12, "{told}");
    assert!(told["score"]["total"].as_f64().unwrap() > 0.0, "{told}");
}

/// A rank that fails ends all of them, with its reason, and what the run made is removed.
#[test]
fn a_rank_that_fails_ends_the_run_with_its_reason() {
    let place = place();
    let dir = place.path();
    std::fs::write(
        dir.join("fails.toml"),
        r#"
workload = 1
[[file]]
name = "missing"
path = "missing"
size = "4KiB"
[[file]]
name = "shared"
path = "shared"
interface = "mpi-io-collective"
[[job]]
processes = 3
[[job.phase]]
steps = [
  { read = "missing", block = 4096, only = "1" },
  { write = "shared", block = 4096 },
]
"#,
    )
    .unwrap();
    let failed = |environment: &[(&str, &str)], args: &[&str]| -> String {
        let mut command = mpirun(dir, 3, environment, args);
        let output = command.output().unwrap();
        assert!(!output.status.success(), "{args:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = failed(&[], &["run", "fails.toml", "."]);
    assert!(said.contains("rank 1: open ") && said.contains("missing: No such file"), "{said}");
    let left: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(
        !left.iter().any(|name| name.to_string_lossy().starts_with("forebay-bench")),
        "{left:?}"
    );
    // What cannot be is told once.
    let said = failed(&[], &["mdtest", "-n", "2", "--tasks", "2", "."]);
    assert_eq!(
        said.matches("2 processes are asked for, and the launcher started 3").count(),
        1,
        "{said}"
    );
    let said = failed(&[], &["ior", "-a", "MPIIO", "-c", "-z", "-o", "f"]);
    assert_eq!(said.matches("as many transfers of each process").count(), 1, "{said}");
    let said = failed(&[], &["suite", ".", "--raw", "."]);
    assert!(said.contains("it runs without a launcher"), "{said}");
    let said = failed(&[("FOREBAY_MPI", "/no/libmpi.so")], &["mdtest", "-n", "2", "."]);
    assert!(
        said.contains("no MPI library was found") && said.contains("FOREBAY_MPI=off"),
        "{said}"
    );
}
