//! The page of a report in a real browser (Debian's chromium, without a window): its charts are drawn, and it asks
//! nothing of any network. With FOREBAY_PAGES=DIRECTORY the pages and pictures of them are left there.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use forebay_plot_page::testing::{Seen, looked_at};
use forebay_trace_format::Op;
use forebay_trace_format::write::{Who, Writer};
use forebay_trace_report::{Options, Report, Run, html, report};
use serde_json::Value;
use std::path::Path;

const MIB: u64 = 1 << 20;
const S: u64 = 1_000_000_000;

/// A run of 32 ranks with three bursts: reads of input, then checkpoints with `shared` kinds of service and a slow rank.
fn traced(dir: &Path, slow: i32, harmonics: &[f64]) -> Report {
    // Knuth's generator: numbers that look like chance and are the same each time.
    let mut state = 42_u64;
    let mut chance = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / (1_u64 << 31) as f64
    };
    for number in 0..32 {
        let who = Who {
            host: "node1".into(),
            pid: 900 + number as u32,
            rank: number,
            ranks: 32,
            exe: "/a/app".into(),
        };
        let mut writer = Writer::new(&who, 1_700_000_000 * S);
        writer.name(1, 0, b"/pfs/input");
        writer.name(2, 0, format!("/pfs/<ckpt> & \"{number}\"").as_bytes());
        writer.regular(1, 8, 9);
        writer.regular(2, 8, 10 + number as u64);
        let mut now = S / 10;
        for at in 0..120_u64 {
            let took = (2e6 * (0.5 + chance())) as u64;
            writer.call(Op::Pread, 1, at * MIB, MIB, MIB as i64, now, took);
            now += took + 10_000;
        }
        for burst in 1..4_u64 {
            now = burst * 4 * S;
            for at in 0..120_u64 {
                let sharers = harmonics[(chance() * harmonics.len() as f64) as usize];
                let spread = (0.1 * (chance() + chance() + chance() - 1.5)).exp();
                let own = if number == slow { 1.8 } else { 1.0 };
                let took = (6e6 * sharers * spread * own) as u64;
                writer.call(Op::Pwrite, 2, at * MIB, MIB, MIB as i64, now, took);
                now += took + 10_000;
            }
            writer.call(Op::Fsync, 2, (1 << 48) - 1, 0, 0, now, 40_000_000);
        }
        std::fs::write(dir.join(format!("n.{number}.1.fbt")), writer.finish()).unwrap();
    }
    report(&[dir.to_path_buf()], Options::default()).unwrap()
}

/// The figures of a page as it has them for its script.
fn figures(page: &str) -> Vec<Value> {
    let data = page.split("id=\"data\">").nth(1).and_then(|rest| rest.split("</script>").next());
    serde_json::from_str(data.unwrap()).unwrap()
}

/// One process that makes so many calls of each kind.
fn of_calls(dir: &Path, calls: &[(Op, u64)]) -> Report {
    of_timed(dir, calls, |at| 1_000_000 + at * 1_000)
}

/// The same with how long each call takes, in ns.
fn of_timed(dir: &Path, calls: &[(Op, u64)], took: fn(u64) -> u64) -> Report {
    let who = Who { host: "node1".into(), pid: 900, rank: 0, ranks: 1, exe: "/a/app".into() };
    let mut writer = Writer::new(&who, 1_700_000_000 * S);
    writer.name(1, 0, b"/pfs/out");
    writer.regular(1, 8, 9);
    let mut now = S / 10;
    for (op, count) in calls {
        for at in 0..*count {
            let (offset, bytes) = match op.moves_data() {
                true => (at * MIB, MIB),
                false => ((1 << 48) - 1, 0),
            };
            writer.call(*op, 1, offset, bytes, bytes as i64, now, took(at));
            now += 2_000_000_u64.max(took(at) + 100_000);
        }
    }
    std::fs::write(dir.join("n.0.1.fbt"), writer.finish()).unwrap();
    report(&[dir.to_path_buf()], Options::default()).unwrap()
}

#[test]
fn what_has_too_few_calls_is_named_and_not_drawn() {
    let (before, after) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let many = of_calls(before.path(), &[(Op::Open, 2), (Op::Pwrite, 50), (Op::Fsync, 19)]);
    let page = html(&[Run { name: "run", report: &many }]);
    let titles = |page: &str, part: &str| page.matches(&format!("<figcaption>{part}")).count();
    assert_eq!(["pwrite", "open", "fsync"].map(|call| titles(&page, call)), [1, 0, 0]);
    assert!(page.contains("fewer than 20 calls have no shape: fsync in phase 0 (19 calls,"));
    assert!(page.contains("open in phase 0 (2 calls,"));
    // There is no half of a call.
    let is_of_calls = |figure: &Value| figure["axes"][1]["title"] == "number of calls";
    let of_writes = figures(&page).into_iter().find(|figure| is_of_calls(figure)).unwrap();
    assert_eq!(of_writes["axes"][1]["unit"], "count");
    assert!(!page.contains("So few calls do not tell"), "they all take as long");
    // Of two runs what one has enough of is drawn of that one.
    let few = of_calls(after.path(), &[(Op::Open, 2), (Op::Pwrite, 3), (Op::Fsync, 40)]);
    let page = html(&[Run { name: "before", report: &many }, Run { name: "after", report: &few }]);
    assert_eq!(["pwrite", "open", "fsync"].map(|call| titles(&page, call)), [1, 0, 1]);
    assert!(page.contains("Too few to be drawn: after, 3 calls."));
    assert!(page.contains("fewer than 20 calls have no shape: open (4 calls,"));
}

#[test]
fn a_chart_of_few_calls_does_not_claim_that_they_have_one_peak() {
    let dir = tempfile::tempdir().unwrap();
    let took = |at: u64| if at % 2 == 0 { 3_900_000_u64 } else { 7_900_000 };
    let report = of_timed(dir.path(), &[(Op::Pwrite, 25)], took);
    let page = html(&[Run { name: "run", report: &report }]);
    assert!(page.contains("So few calls do not tell whether there are several peaks"));
}

#[test]
fn of_a_run_without_calls_the_page_says_so_and_draws_nothing() {
    let (none, some) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let nothing = of_calls(none.path(), &[]);
    let empty = Run { name: "nothing", report: &nothing };
    let page = html(&[empty]);
    assert!(page.contains("The run has no calls on files"));
    assert!(figures(&page).is_empty(), "{:?}", figures(&page));
    // The other one of two is drawn.
    let few = of_calls(some.path(), &[(Op::Pwrite, 30)]);
    let page = html(&[empty, Run { name: "some", report: &few }]);
    assert!(page.contains("What stands out: nothing") && page.contains("The run has no calls"));
    assert!(!figures(&page).is_empty());
    // Calls that move no bytes have no rates.
    let names = tempfile::tempdir().unwrap();
    let names = of_calls(names.path(), &[(Op::Stat, 30)]);
    let page = html(&[Run { name: "names", report: &names }]);
    assert!(page.contains("No call moved bytes"));
    for figure in figures(&page) {
        assert!(figure["axes"].to_string().find("bytes_per_s").is_none(), "{figure}");
    }
}

#[test]
fn charts_of_two_runs_have_the_same_axes() {
    let (before, after) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let long = traced(before.path(), 11, &[1.0, 2.0, 4.0]);
    let short = of_calls(after.path(), &[(Op::Pwrite, 40)]);
    let page =
        html(&[Run { name: "before", report: &long }, Run { name: "after", report: &short }]);
    let figures = figures(&page);
    let titles: Vec<&str> = page
        .split("<figcaption>")
        .skip(1)
        .filter_map(|rest| rest.split("</figcaption>").next())
        .collect();
    assert_eq!(titles.len(), figures.len());
    for what in ["Task by time", "Bytes a second, all tasks", "Tasks that are in a call"] {
        let axes = ["before", "after"].map(|run| {
            let title = format!("{what}: {run}");
            let at = titles.iter().position(|found| *found == title).unwrap();
            figures[at]["axes"].clone()
        });
        assert_eq!(axes[0], axes[1], "{what}");
        for axis in axes[0].as_array().unwrap() {
            let range = axis["range"].as_array().unwrap();
            assert!(range[0].as_f64() < range[1].as_f64(), "{what}: {axis}");
        }
    }
    // Each axis has a name, and a unit unless it is a number of things.
    for axis in figures.iter().flat_map(|figure| figure["axes"].as_array().unwrap()) {
        let title = axis["title"].as_str().unwrap();
        let counts = title.starts_with("number of");
        assert!(counts || (title.ends_with(')') && !title.starts_with(' ')), "{axis}");
    }
}

#[test]
fn a_page_draws_all_its_charts_without_a_network() {
    let dir = tempfile::tempdir().unwrap();
    let report = traced(dir.path(), 11, &[1.0, 1.0, 1.0, 2.0, 4.0]);
    let page = html(&[Run { name: "run <1>", report: &report }]);
    let profile = tempfile::tempdir().unwrap();
    let Seen { dom, figures: (all, drawn), canvases } = looked_at(profile.path(), "one", &page);
    assert!(all >= 8 && drawn == all, "{drawn} of {all}: {dom}");
    assert!(canvases >= all, "{dom}");
    // The progress of bytes and that of tasks are told apart in the legend, too.
    assert!(dom.contains("u-marker dashed-line") && dom.contains("u-marker solid-line"));
    for text in
        ["One task is slower than the others", "run &lt;1&gt;", "What each task does when", "BURST"]
    {
        assert!(dom.to_lowercase().contains(&text.to_lowercase()), "{text}");
    }
    // Names of files are text.
    assert!(dom.contains("/pfs/&lt;ckpt&gt; &amp; \"11\"") && !dom.contains("<ckpt>"));
}

#[test]
fn two_runs_stand_side_by_side() {
    let (before, after) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let slow = traced(before.path(), 11, &[1.0, 2.0, 4.0]);
    let fast = traced(after.path(), -1, &[1.0]);
    let page = html(&[Run { name: "before", report: &slow }, Run { name: "after", report: &fast }]);
    // The modes of each run are marked in its colour, from the fastest to the slowest.
    let writes = figures(&page).into_iter().find(|figure| {
        let is_distribution = figure["axes"][1]["label"] == "share of calls";
        is_distribution && figure["marks"].as_array().is_some_and(|marks| marks.len() > 2)
    });
    let writes = writes.expect("a distribution of two runs with marks");
    let marks: Vec<(&str, u64, f64)> = writes["marks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mark| {
            let (text, colour) = (mark["text"].as_str().unwrap(), mark["colour"].as_u64().unwrap());
            (text, colour, mark["at"].as_f64().unwrap())
        })
        .collect();
    let of = |name: &str, colour: u64| -> Vec<f64> {
        let mine = marks.iter().filter(|mark| mark.0.starts_with(name) && mark.1 == colour);
        mine.map(|mark| mark.2).collect()
    };
    let (slow_s, fast_s) = (of("before: ", 0), of("after: ", 1));
    // The last one is of the slow rank.
    assert_eq!((slow_s.len(), fast_s.len(), marks.len()), (4, 1, 5), "{marks:?}");
    let peaks_s = [6e-3, 12e-3, 24e-3, 1.8 * 24e-3, 6e-3];
    for (at_s, peak_s) in slow_s.iter().chain(&fast_s).zip(peaks_s) {
        assert!((at_s / peak_s - 1.0).abs() < 0.2, "{marks:?}");
    }
    assert!(marks.is_sorted_by(|a, b| a.2 <= b.2), "{marks:?}");
    let profile = tempfile::tempdir().unwrap();
    let Seen { dom, figures: (all, drawn), .. } = looked_at(profile.path(), "two", &page);
    assert!(all >= 9 && drawn == all, "{drawn} of {all}");
    for text in
        ["What stands out: before", "What stands out: after", "side by side", "Task by time: after"]
    {
        assert!(dom.contains(text), "{text}");
    }
}
