//! `forebay bench suite`: the experiment of a cached write, whose result is where the bytes are, and the IME matrix with its figure.
#![allow(clippy::unwrap_used)]

use forebay_plot_page::testing::{Seen, looked_at};
use forebay_tests::buffer::binary;
use forebay_tests::procs::{run, try_run};
use forebay_tests::site::{Kind, Site};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

forebay_tests::on_both_kinds!(after_a_cached_write_the_buffer_has_all_and_the_pfs_nothing);

const MIB: u64 = 1 << 20;

fn bench(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.arg("bench").args(args).current_dir(dir);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command
}

/// The page in a real browser: so many charts or more, all of them drawn.
fn drawn(name: &str, page: &str, charts: usize) {
    let profile = tempfile::tempdir().unwrap();
    let Seen { dom, figures: (all, drawn), .. } = looked_at(profile.path(), name, page);
    assert!(all >= charts && drawn == all, "{name}: {drawn} of {all}: {dom}");
}

fn after_a_cached_write_the_buffer_has_all_and_the_pfs_nothing(kind: Kind) {
    let site = Site::mounted_as(kind, 128 * MIB, &[]);
    let (mnt, pfs) = (site.base.join("mnt"), site.base.join("pfs"));
    let (mnt, pfs) = (mnt.to_str().unwrap(), pfs.to_str().unwrap());
    let args =
        ["suite", mnt, "--raw", pfs, "--suite", "dw-caching", "--tasks", "1,2", "--bytes", "12m"];
    let page = site.base.join("page.html");
    let mut command = bench(&site.base, &args);
    let told: Value =
        serde_json::from_str(&run(command.arg("--json").arg("--html").arg(&page))).unwrap();
    let rows = told["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for (row, tasks) in rows.iter().zip([1, 2]) {
        let bytes = tasks * 12 * MIB;
        assert_eq!((&row["processes"], &row["bytes"]), (&tasks.into(), &bytes.into()));
        let look = |when: &str, what: &str| row[when][what].as_u64().unwrap();
        assert_eq!(
            (look("after_write", "pfs_bytes"), look("after_write", "buffer_bytes")),
            (0, bytes)
        );
        assert_eq!(
            (look("after_drain", "pfs_bytes"), look("after_drain", "buffer_bytes")),
            (bytes, 0)
        );
        assert_eq!(row["holds"], true);
        // All the time it is on one side at least.
        let looks = row["looks"].as_array().unwrap();
        assert!(looks.len() >= 2, "{row}");
        let written_s = row["after_write"]["at_s"].as_f64().unwrap();
        for look in looks.iter().filter(|look| look["at_s"].as_f64().unwrap() >= written_s) {
            let there = ["pfs_bytes", "buffer_bytes"].map(|side| look[side].as_u64().unwrap());
            assert!(there[0] + there[1] >= bytes, "{look} of {bytes}");
        }
    }
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(text.contains("drain begins") && text.contains("owed by the buffer"));
    if matches!(kind, Kind::Own) {
        drawn("dw-caching", &text, 2);
    }
    // Nothing of it stays on either side.
    for place in [mnt, pfs] {
        let left = std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(
            left.filter(|name| name.to_string_lossy().starts_with("forebay-bench")).count(),
            0
        );
    }
    // Another directory than that which the cache shows is told.
    let flash = site.base.join("flash");
    let args =
        ["suite", mnt, "--raw", flash.to_str().unwrap(), "--suite", "dw-caching", "--bytes", "1m"];
    let (ok, said) = try_run(&mut bench(&site.base, &args));
    assert!(
        !ok && said.contains("it is not the directory of the PFS that") && said.contains("--raw"),
        "{said}"
    );
    let args = ["suite", pfs, "--raw", pfs, "--suite", "dw-caching", "--bytes", "1m"];
    let (ok, said) = try_run(&mut bench(&site.base, &args));
    assert!(!ok && said.contains("it must lie in a mounted cache"), "{said}");
    site.must_be_durable();
}

/// By POSIX calls and by ranks of MPI: a row for each, and a figure with a curve for each over the sizes.
#[test]
fn the_ime_matrix_has_its_figure_by_posix_and_by_mpi_io() {
    let place = tempfile::Builder::new().prefix("forebay-suite-").tempdir_in("/dev/shm").unwrap();
    let dir = place.path();
    for name in ["a", "b"] {
        std::fs::create_dir(dir.join(name)).unwrap();
    }
    let matrix = |more: &[&str]| -> Value {
        let common = [
            "suite", "a", "--raw", "b", "--suite", "ime", "--tasks", "2", "--bytes", "256k",
            "--pairs", "1", "--json",
        ];
        let args: Vec<&str> = common.iter().chain(more).copied().collect();
        serde_json::from_str(&run(&mut bench(dir, &args))).unwrap()
    };
    let told = matrix(&["--transfers", "16k,64k", "--html", "ime.html"]);
    let rows = told["rows"].as_array().unwrap();
    // Sizes, orders, kinds of file; a write and a read of each.
    assert_eq!((rows.len(), &told["differences"]), (2 * 2 * 2 * 2, &0.into()));
    let text = std::fs::read_to_string(dir.join("ime.html")).unwrap();
    for part in [
        "random shared x2",
        "sequential unique x2",
        "size of a transfer",
        "Phase read, 2 processes, POSIX",
    ] {
        assert!(text.contains(part), "{part}");
    }
    // Titles name the directories whole; a table has the units of the one on the terminal.
    let a = dir.join("a").canonicalize().unwrap();
    assert!(text.contains(&format!("{} beside ", a.display())) && text.contains(" MB/s</td>"));
    drawn("ime", &text, 4);
    // The rates of the two sides stand over one axis.
    let data = text.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
    let charts: Vec<Value> = serde_json::from_str(data).unwrap();
    let axes = charts.iter().map(|chart| &chart["axes"][1]);
    let ranges: Vec<&Value> =
        axes.filter(|axis| axis["label"] == "rate").map(|axis| &axis["range"]).collect();
    assert_eq!(ranges.len(), 4, "of two phases and two sides");
    for pair in ranges.chunks(2) {
        let [from, to] = [0, 1].map(|at| pair[0][at].as_f64().unwrap());
        assert!(0.0 < from && from < to && pair[0] == pair[1], "{pair:?}");
    }
    let launcher = "mpirun --oversubscribe --mca mpi_yield_when_idle 1 -n {n}";
    let told = matrix(&["--transfers", "64k", "--calls", "mpi-io", "--launcher", launcher]);
    let rows = told["rows"].as_array().unwrap();
    assert_eq!((rows.len(), &told["differences"]), (8, &0.into()));
    assert!(
        rows.iter().all(|row| row["workload"].as_str().unwrap().ends_with("x2 MPI-IO")),
        "{rows:?}"
    );
    assert!(rows.iter().all(|row| row["a_median"].as_f64().unwrap() > 0.0), "{rows:?}");
    assert_eq!(std::fs::read_dir(dir.join("a")).unwrap().count(), 0);
    // A launcher that is not there is told.
    let args = [
        "suite",
        "a",
        "--raw",
        "b",
        "--suite",
        "ime",
        "--calls",
        "mpi-io",
        "--launcher",
        "no-such-launcher {n}",
    ];
    let (ok, said) = try_run(&mut bench(dir, &args));
    assert!(!ok && said.contains("no-such-launcher 1") && said.contains("--launcher"), "{said}");
}
