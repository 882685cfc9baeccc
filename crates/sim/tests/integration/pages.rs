//! Pages of the simulator in a real browser (Debian's chromium, without a window): all charts are drawn, the figures that
//! the tables tell stand there, and nothing is asked of a network. With FOREBAY_PAGES=DIRECTORY the pages and pictures of them
//! are left there; with FOREBAY_LONG=1 that of the study's whole figure too.

use forebay_plot_page::testing::{Seen, looked_at};
use forebay_sim::model::{self, Options};
use forebay_sim::study::{Figure, FigurePoint, System};
use forebay_sim::sweep::{Question, Range};
use forebay_sim::{explain, page, parallel, presets, size, study, sweep};
use std::path::Path;

/// The page is whole, with so many charts, and tells these texts.
#[track_caller]
fn drawn(name: &str, page: &str, charts: usize, texts: &[&str]) {
    let profile = tempfile::tempdir().unwrap();
    let Seen { dom, figures, canvases } = looked_at(profile.path(), name, page);
    assert_eq!(figures, (charts, charts), "{name}: figures, and those that were drawn");
    assert!(canvases >= charts, "{name}: {canvases} canvases");
    for text in texts {
        assert!(dom.contains(text), "{name}: {text} in {dom}");
    }
}

#[test]
fn a_run_shows_throughput_and_occupancy_over_time() {
    let (.., machine) = presets::load("intrepid-2011").unwrap();
    let program = presets::program(Path::new("astrophysics")).unwrap();
    let explained = explain::explain(&machine, &program, &Options::default().coarse()).unwrap();
    let texts = [
        "AstroPhysics, December 2011 on intrepid-2011",
        "writes that found one full",
        "Beside the closed form",
        "Assumptions",
    ];
    drawn("run", &page::run(&explained, &machine), 2, &texts);
    // Without a buffer nothing has an occupancy.
    let mut bare = machine.clone();
    bare.buffer = None;
    let explained = explain::explain(&bare, &program, &Options::default().coarse()).unwrap();
    drawn("run-bare", &page::run(&explained, &bare), 1, &["Throughput over time"]);
}

fn swept(over: &[&str]) -> sweep::Sweep {
    let (path, text, _) = presets::load("intrepid-2011").unwrap();
    let ranges: Vec<Range> = over.iter().map(|range| Range::parse(range).unwrap()).collect();
    let set = [
        "cost.flash_gib=0.3",
        "cost.flash_device=200",
        "cost.server=12000",
        "buffer.drain.depth=8",
    ];
    let set: Vec<_> =
        set.iter().map(|set| forebay_sim::settings::Setting::parse(set).unwrap()).collect();
    let question = Question {
        machine: (&path, &text),
        set: &set,
        ranges: &ranges,
        program: &|_, set| {
            Ok(study::writes(set.first().map_or(8192, |set| set.value.parse().unwrap())))
        },
        workload: None,
        options: Options::default().coarse(),
    };
    sweep::sweep(&question, 2, &parallel::silent).unwrap()
}

#[test]
fn a_sweep_shows_bandwidth_time_and_the_front() {
    let swept = swept(&["buffer.capacity=512MiB..16384MiB*2", "storage.servers=16,32,64,128"]);
    drawn(
        "sweep",
        &page::sweep(&swept, "intrepid-2011"),
        3,
        &["Against buffer.capacity", "storage.servers=64", "Pareto front", "16384MiB"],
    );
}

#[test]
fn a_sweep_of_words_has_a_table_and_a_front() {
    let swept = swept(&["buffer.mode=write-back,write-through"]);
    drawn("sweep-words", &page::sweep(&swept, "intrepid-2011"), 1, &["write-through"]);
}

#[test]
fn a_sizing_shows_its_answers_and_how_sure_they_are() {
    let (.., machine) = presets::load("laptop").unwrap();
    let program =
        presets::program(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bursts.toml")))
            .unwrap();
    let wish = size::Wish { stall_probability: 0.1, seeds: 10, jitter: 0.2, slowdown: 0.01 };
    let options = Options::default();
    let sizing = size::size(&machine, &program, options, wish, 2, &parallel::silent).unwrap();
    let outcome = model::run(&machine, &program, &options).unwrap();
    drawn(
        "size",
        &page::size(&sizing, &machine, (&outcome, true)),
        5,
        &["capacity of a buffer", "of runs may stall", "95 % confidence interval"],
    );
}

/// The study's figure with made-up points: its simulation takes longer than a test may.
fn made_up() -> Figure {
    let points = study::steps().into_iter().flat_map(|processes| {
        System::ALL.into_iter().enumerate().map(move |(number, system)| {
            let rate = (f64::from(processes) * 2.6e6).min((number as f64 + 1.0) * 4e10);
            FigurePoint {
                system: system.name(),
                processes,
                bytes_per_s: rate * 0.97,
                closed_bytes_per_s: rate,
                drained_s: 1.0,
                events: 1,
            }
        })
    });
    Figure { points: points.collect() }
}

#[test]
fn the_figure_shows_six_systems_beside_their_closed_form() {
    let figure = match std::env::var_os("FOREBAY_LONG") {
        Some(_) => study::figure(parallel::threads(), &parallel::silent).unwrap(),
        None => made_up(),
    };
    drawn(
        "figure",
        &page::figure(&figure, &study::intrepid()),
        1,
        &["full, no buffer", "half, 16.5 GiB", "131072", "Assumptions"],
    );
}
