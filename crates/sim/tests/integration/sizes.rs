//! How large a buffer must be: candidates that cannot work, and how much is simulated.

use crate::common::program;
use forebay_sim::machine::Machine;
use forebay_sim::model::Options;
use forebay_sim::parallel::silent;
use forebay_sim::presets;
use forebay_sim::settings::{self, Setting};
use forebay_sim::size::{self, Sizing, Wish};
use std::path::Path;

fn preset(name: &str, set: &[&str]) -> Machine {
    let set: Vec<Setting> = set.iter().map(|text| Setting::parse(text).unwrap()).collect();
    settings::machine(Path::new(name), presets::text(name).unwrap(), &set).unwrap()
}

/// Three bursts of 8 x 64 MiB, 20 s apart, give or take.
fn sized(machine: &Machine, wish: Wish, threads: usize) -> Sizing {
    let bursts = program(
        "workload = 1\n[[file]]\nname = \"f\"\npath = \"{repeat}/{process}\"\n[[job]]\nprocesses = 8\nprocesses_per_node = 8\n\
         [[job.phase]]\nname = \"dump\"\nrepeat = 3\nsteps = [{ think = \"20s\" }, { write = \"f\", block = \"64MiB\", transfer = \"1MiB\" }]\n",
    );
    size::size(machine, &bursts, Options::default(), wish, threads, &silent).unwrap()
}

const WISH: Wish = Wish { stall_probability: 0.05, seeds: 20, jitter: 0.1, slowdown: 0.01 };
const MIB: f64 = 1_048_576.0;

#[test]
fn a_candidate_that_cannot_work_is_one_that_stalls() {
    let wish = Wish { seeds: 3, ..WISH };
    let least =
        |set: &[&str]| sized(&preset("laptop", set), wish, 2).answers[0].least.unwrap() / MIB;
    let blocks = least(&[]);
    assert!((500.0..=530.0).contains(&blocks), "{blocks}");
    // Who fails stalls where others wait, and Forebay's own keep a 64th free.
    assert_eq!(least(&["buffer.when_full=fail"]), blocks);
    let forebay = least(&["buffer.rules=forebay", "buffer.drain.policy=close"]);
    assert!((500.0..=1600.0).contains(&forebay), "{forebay}");
    // Staging keeps everything until the job has ended.
    let staged = least(&["buffer.mode=stage"]);
    assert!((1536.0..=1552.0).contains(&staged), "{staged}");
    // A machine whose own buffers are too small can be sized too.
    for set in [
        ["buffer.mode=stage", "buffer.capacity=64MiB"],
        ["buffer.when_full=fail", "buffer.capacity=64MiB"],
    ] {
        assert!(least(&set) >= blocks, "{set:?}");
    }
    let sizing = sized(&preset("cori-datawarp", &[]), wish, 2);
    assert!(sizing.answers[0].least.is_some(), "{:?}", sizing.answers[0]);
}

#[test]
fn few_simulations_find_the_least_and_threads_change_nothing() {
    let sizing = sized(&preset("laptop", &[]), WISH, 1);
    let capacity = &sizing.answers[0];
    // The largest, the smallest, some about what was on flash at most, and three further below.
    assert!(capacity.tried.len() <= 11, "{:?}", capacity.tried);
    assert!(capacity.tried.iter().all(|tried| tried.given_up == 0));
    let least = capacity.least.unwrap();
    for tried in &capacity.tried {
        match tried.value.total_cmp(&least) {
            // Who has stalled too often is not asked again.
            std::cmp::Ordering::Less => assert!(tried.stalled_share > 0.05, "{tried:?}"),
            std::cmp::Ordering::Equal => assert_eq!(tried.runs, 20, "{tried:?}"),
            std::cmp::Ordering::Greater => {}
        }
    }
    assert!(capacity.tried[0].runs < 20, "{:?}", capacity.tried[0]);
    // How fast it gets worse below the answer is among what the chart shows: from half of it on.
    let below = |from: f64, to: f64| {
        let is_there = |value: f64| value >= least * from && value < least * to;
        capacity.tried.iter().filter(|tried| is_there(tried.value)).count()
    };
    assert!(below(0.49, 0.51) >= 1 && below(0.49, 0.9) >= 3, "{:?}", capacity.tried);
    let again = sized(&preset("laptop", &[]), WISH, 3);
    assert_eq!(serde_json::to_string(&sizing).unwrap(), serde_json::to_string(&again).unwrap());
}
