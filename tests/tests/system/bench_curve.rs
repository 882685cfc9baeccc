//! MADbench2's pattern on real files. Its busy work: a program that computes between its writes long enough sees no I/O time on a
//! buffer, which drains meanwhile; on the slow file system itself it waits. And RMOD and WMOD bound who is at work at a time.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::binary;
use forebay_tests::procs::{run, try_run_for};
use forebay_tests::slow_disk::SlowDisk;
use forebay_trace_format::{Class, Item, Process};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Longest wait for a mount or its end.
const LIMIT: Duration = Duration::from_secs(90);
/// Speed of the slow disk.
const SLOW_BYTES_PER_S: u64 = 40_000_000;
/// Processes of MADbench: a square.
const PROCESSES: f64 = 4.0;
/// Seconds of busy work of each process before each matrix with exponent 1: NPIX^2 / processes / rate.
const SHORT_S: f64 = 0.003;
/// The exponent with which computing a matrix takes longer than draining it: 8 MiB at 40 MB/s are 0.21 s, this is 0.38 s of
/// processor time of each process.
const ABOVE: &str = "1.35";

/// Share of the time of a run of MADbench that was spent in reads and writes, of matrices of 8 MiB.
fn visible(dir: &Path, exponent: &str) -> f64 {
    let rate = (1024.0 * 1024.0 / PROCESSES / SHORT_S).to_string();
    let mut bench = Command::new(binary());
    bench.args(["bench", "madbench", "--tasks", "4", "--npix", "1024", "--nbin", "8", "--unique"]);
    bench.args(["--bwexp", exponent, "--busy-rate", &rate, "--json"]);
    let told: Value = serde_json::from_str(&run(bench.arg(dir))).unwrap();
    let (mut io, mut all) = (0.0, 0.0);
    for line in told["summary"].as_array().unwrap() {
        let seconds = line["time_s"]["mean"].as_f64().unwrap();
        match line["operation"].as_str().unwrap().rsplit('_').next() {
            Some("t") => all += seconds,
            _ => io += seconds,
        }
    }
    eprintln!("{}: exponent {exponent}: {io:.3} of {all:.3} s", dir.display());
    io / all
}

/// A19: below the crossover the slow file system is what the program waits for; above it, on the buffer, hardly anything is seen of
/// I/O, and all of it is on the slow file system at the end.
#[test]
fn a_buffer_hides_the_io_of_a_program_that_computes_long_enough() {
    let place = tempfile::Builder::new().prefix("forebay-curve-").tempdir_in("/tmp").unwrap();
    let slow = SlowDisk::new(place.path(), 1 << 30).unwrap();
    slow.limit(SLOW_BYTES_PER_S).unwrap();
    let direct = visible(slow.path(), "1.0");
    assert!(direct > 0.4, "on the slow disk {direct:.3} of the time is I/O");
    let flash = tempfile::Builder::new().prefix("forebay-curve-").tempdir_in("/dev/shm").unwrap();
    let point = place.path().join("mnt");
    std::fs::create_dir(&point).unwrap();
    let mut mount = Command::new(binary());
    mount.args(["mount", "--capacity", "512MiB", "--cache"]).arg(slow.path());
    run(mount.arg("--flash").arg(flash.path()).arg(&point));
    let hidden = visible(&point, ABOVE);
    let (ok, said) = try_run_for(Command::new(binary()).arg("umount").arg(&point), LIMIT);
    assert!(ok, "{said}");
    assert!(hidden < 0.1, "on the buffer {hidden:.3} of the time is I/O");
}

/// Most transfers of a kind that were under way at the same time, by the log of each process, and how many there were.
fn most_at_once(log: &Path, class: Class) -> (i64, usize) {
    let mut edges = Vec::new();
    for entry in std::fs::read_dir(log).unwrap() {
        let Ok(process) = Process::open(&entry.unwrap().path()) else { continue };
        assert!(!process.header.counter, "its clock is that of all processes, in ns");
        process
            .each(|item| match item {
                Item::Event(event) if event.op.class() == class && event.op.moves_data() => {
                    edges.push((event.start_ticks, 1));
                    edges.push((event.start_ticks + event.duration_ticks, -1));
                }
                _ => {}
            })
            .unwrap();
    }
    // Of the same moment ends come first.
    edges.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, step) in &edges {
        now += step;
        most = most.max(now);
    }
    (most, edges.len() / 2)
}

/// A18: of 16 processes at most N / MOD move bytes at a time.
#[test]
fn rmod_and_wmod_bound_how_many_processes_move_bytes_at_a_time() {
    let place = tempfile::Builder::new().prefix("forebay-mod-").tempdir_in("/dev/shm").unwrap();
    for (name, turns, reads, writes) in [("all", [1, 1], 16, 16), ("some", [4, 8], 4, 2)] {
        let (dir, log) = (place.path().join(name), place.path().join(format!("{name}.log")));
        std::fs::create_dir(&dir).unwrap();
        let mut bench = Command::new(binary());
        bench.args(["bench", "madbench", "--tasks", "16", "--npix", "1024", "--nbin", "4", "-q"]);
        let [rmod, wmod] = turns.map(|turns: u32| turns.to_string());
        bench.args(["--rmod", &rmod, "--wmod", &wmod, "--log"]).arg(&log);
        run(bench.arg(&dir));
        // S and W write each matrix, W and C read each.
        for (class, bound) in [(Class::Read, reads), (Class::Write, writes)] {
            let (most, count) = most_at_once(&log, class);
            eprintln!("{name}: {class:?}: at most {most} of {count} at a time");
            assert_eq!(count, 16 * 2 * 4, "{name} {class:?}");
            assert!(most <= bound, "{name} {class:?}: {most} at a time, {bound} are allowed");
        }
    }
}
