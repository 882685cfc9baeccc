//! `forebay sim` as users type it: its targets are met, its output repeats byte for byte, its errors name file, key and
//! what was expected, and each key that it prints as JSON is documented.

use crate::common::text;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn sim(arguments: &[&str]) -> Output {
    Command::new(crate::common::program()).arg("sim").args(arguments).output().unwrap()
}

#[track_caller]
fn done(arguments: &[&str]) -> String {
    let output = sim(arguments);
    assert!(
        output.status.success(),
        "{arguments:?}: {}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

#[track_caller]
fn json(arguments: &[&str]) -> Value {
    let printed = done(arguments);
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
}

#[test]
fn the_published_figures_come_out() {
    let output = sim(&["validate", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let targets = report["targets"].as_array().unwrap();
    let of = |verdict: &str| -> BTreeSet<&str> {
        let some = targets.iter().filter(|target| target["verdict"] == verdict);
        some.map(|target| target["target"].as_str().unwrap()).collect()
    };
    assert!(
        of("not-met").is_empty(),
        "{:#?}",
        targets.iter().filter(|t| t["verdict"] == "not-met").collect::<Vec<_>>()
    );
    // What has no tolerance is never counted as met.
    assert!(of("attempt").contains("T14") && !of("met").contains("T14"));
    for wanted in [
        "T1", "T2", "T3", "T5", "T6", "T7", "T8", "T9", "T10", "T11", "T12", "T13", "T15", "T16",
        "T17", "T18", "T19", "T20", "T21", "T23",
    ] {
        assert!(of("met").contains(wanted), "{wanted} is not among the targets");
    }
    assert!(output.status.success() && report["met"] == true);
    assert!(!report["assumptions"].as_array().unwrap().is_empty());
}

#[test]
fn the_same_question_gives_the_same_bytes() {
    let question = [
        "run",
        "-N",
        "2048",
        "-b",
        "16m",
        "-t",
        "4m",
        "-F",
        "--set",
        "storage.placement=random",
        "--json",
        "--seed",
        "5",
    ];
    let once = done(&question);
    assert_eq!(once, done(&question));
    let other = [&question[..question.len() - 1], &["6"]].concat();
    assert_ne!(once, done(&other));
    let sweep = [
        "sweep",
        "-b",
        "8m",
        "-F",
        "--over",
        "processes=256..2048*2",
        "--over",
        "buffer.capacity=64MiB,1GiB",
        "--csv",
    ];
    let one_thread = [&sweep[..], &["--threads", "1"]].concat();
    assert_eq!(done(&sweep), done(&one_thread));
    assert_eq!(done(&sweep).lines().count(), 1 + 4 * 2);
}

#[test]
fn a_workload_file_runs_on_a_machine_file() {
    let dir = tempfile::tempdir().unwrap();
    let machine = dir.path().join("m.toml");
    let printed = done(&["machine", "laptop"]);
    fs::write(&machine, &printed).unwrap();
    let workload = dir.path().join("w.toml");
    fs::write(
        &workload,
        "workload = 1\n[[file]]\nname = \"ckpt\"\npath = \"{repeat}/{process}\"\n[[job]]\nprocesses = 8\n[[job.phase]]\nname = \"dump\"\nrepeat = 3\n\
         steps = [{ think = \"20s\" }, { write = \"ckpt\", block = \"256MiB\", transfer = \"1MiB\" }]\n",
    )
    .unwrap();
    let (machine, workload) = (machine.to_str().unwrap(), workload.to_str().unwrap());
    let outcome = json(&["run", workload, "-m", machine, "--json"]);
    assert_eq!(outcome["bytes"]["written"], 3_u64 * 8 * (256 << 20));
    assert_eq!(outcome["bytes"]["drained"], outcome["bytes"]["written"]);
    let table = done(&["run", workload, "-m", machine]);
    assert!(
        table.contains("dump") && table.contains("6.000 GiB drained") && table.contains("assumes"),
        "{table}"
    );
    // Without the buffer the job waits for the drive.
    let bare = json(&["run", workload, "-m", machine, "--set", "buffer=none", "--json"]);
    assert!(bare["end_s"].as_f64() > Some(1.5 * outcome["end_s"].as_f64().unwrap()));
    let explained = json(&["explain", workload, "-m", machine, "--json"]);
    let ratio = explained["phases"][0]["ratio"].as_f64().unwrap();
    assert!((ratio - 1.0).abs() < 0.1, "{explained}");
    let sized = json(&["size", workload, "-m", machine, "--seeds", "5", "--json"]);
    // What drains in 20 s is 2 GB of the 2 GiB of each dump: the third dump finds little of the ones before.
    let capacity = sized["answers"][0]["least"].as_f64().unwrap() / f64::from(1 << 30);
    assert!((1.5..3.5).contains(&capacity), "{sized}");
    let compared = json(&["compare", workload, "-m", machine, "--json"]);
    assert!(compared["variants"].as_array().unwrap().len() >= 5, "{compared}");
}

#[test]
fn what_is_wrong_is_told_with_file_key_and_what_was_expected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.toml");
    let laptop = done(&["machine", "laptop"]);
    let told = |from: &str, to: &str| {
        assert!(laptop.contains(from), "{from}");
        fs::write(&path, laptop.replacen(from, to, 1)).unwrap();
        let output = sim(&["run", "-m", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1));
        let error = text(&output.stderr);
        assert!(error.contains("m.toml:"), "{error}");
        error
    };
    assert!(
        told("name = \"laptop\"", "nmae = \"laptop\"")
            .contains("nmae: this key is not known here (did you mean name?); expected one of")
    );
    assert!(
        told("rate = \"1Gbit/s\"", "rate = \"1Gbps\"")
            .contains("network.rate: it is \"1Gbps\"; expected a rate above 0")
    );
    assert!(told("rate = \"1Gbit/s\"", "rate = \"0MB/s\"").contains("network.rate"));
    assert!(told("rate = \"1Gbit/s\"", "rate = \"-5MB/s\"").contains("network.rate"));
    assert!(told("nodes = 1", "nodez = 1").contains("compute.nodez: this key is not known here"));
    assert!(told("\"64GiB\"", "0").contains("buffer.capacity: it is 0; expected a size"));
    assert!(told("\"5ms\"", "\"1000000000h\"").contains("at most 292 years"));
    assert!(
        told("nodes = 1", "nodes = 0")
            .contains("compute.nodes: it is 0; expected an integer from 1")
    );
    assert!(told("capacity = \"64GiB\"", "capacity = \"64 furlongs\"").contains("buffer.capacity"));
    assert!(
        told("attach = \"compute\"", "attach = \"moon\"").contains(
            "buffer.attach: it is \"moon\"; expected one of compute, io, fabric, storage"
        )
    );
    assert!(told("attach = \"compute\"", "attach = \"io\"").contains("the machine has no [io]"));
    assert!(told("[storage]", "[storage").contains("not TOML"));
    let failed = |arguments: &[&str]| {
        let output = sim(arguments);
        assert!(!output.status.success(), "{}", text(&output.stdout));
        text(&output.stderr)
    };
    let divides = failed(&["run", "--set", "io.nodes=600"]);
    assert!(
        divides.contains("40960 compute nodes")
            && divides.contains("600 I/O nodes")
            && divides.contains("leaves 160"),
        "{divides}"
    );
    let shared =
        ["storage.controller.servers=8", "storage.controller.rate=5GB/s", "storage.servers=100"];
    let divides = failed(&["run", "--set", shared[0], "--set", shared[1], "--set", shared[2]]);
    assert!(divides.contains("100 / 8 leaves 4"), "{divides}");
    let many = failed(&["run", "-N", "200000", "-F"]);
    assert!(
        many.contains("200000 processes on 50000 nodes; expected at most 40960 nodes"),
        "{many}"
    );
    assert!(many.contains("simulate intrepid-2011.toml: compute.nodes: ior: "), "{many}");
    // Nothing is begun that no machine of people could hold: it would end by a lack of memory, or count wrongly.
    let wide = ["compute.nodes=1000000", "io.nodes=1000000", "compute.processes_per_node=1000"];
    let wide: Vec<&str> = wide.iter().flat_map(|set| ["--set", *set]).collect();
    let wide = failed(&[&["run", "-N", "900000000", "-F", "-b", "4m"][..], &wide[..]].concat());
    let told = "processes: ior: 900000000 processes to simulate, with those of jobs before it; expected at most 33554432";
    assert!(wide.contains(told), "{wide}");
    let vast = failed(&["run", "-N", "100000", "-F", "-b", "16t", "-t", "16t"]);
    assert!(vast.contains("more than 1 EiB") && vast.contains("block: ior: phase write"), "{vast}");
    let slow = failed(&["run", "-N", "4", "-F", "--set", "network.rate=0.000001B/s"]);
    assert!(slow.contains("given up") && slow.contains("higher rates"), "{slow}");
    assert!(slow.contains("simulate intrepid-2011.toml: network.rate: given up"), "{slow}");
    // What is known beforehand to be too much is told beforehand.
    let tiny = ["run", "-m", "laptop", "-N", "4", "-b", "1t", "-t", "1k"];
    let many = failed(&tiny);
    assert!(
        many.contains("transfer: ior: phase write: about ") && many.contains(" million events"),
        "{many}"
    );
    assert!(
        many.contains("; expected at most 1000000000 events: ") && many.contains("--max-events"),
        "{many}"
    );
    let few = failed(&["run", "-N", "64", "-F", "--max-events", "100"]);
    assert!(few.contains("expected at most 100 events"), "{few}");
    // Both ways out are told, with what each takes.
    let month = failed(&["run", "month-2011"]);
    let ways = month.split_once("; expected at most 1000000000 events: --coarse (about ");
    let (rough, all) = ways.and_then(|(_, ways)| ways.split_once("), --max-events ")).unwrap();
    assert!(rough.contains(" million events, ") && rough.ends_with(" s"), "{month}");
    assert!(all.contains("000000 (all of them, ") && all.contains(" minutes)"), "{month}");
    let strip = ["buffer.redundancy.kind=parity", "buffer.redundancy.strip=0"];
    let strip = failed(&["run", "--set", strip[0], "--set", strip[1]]);
    assert!(strip.contains("buffer.redundancy.strip: it is 0; expected a size"), "{strip}");
    let alone = failed(&["run", "-m", "laptop", "--set", "buffer.redundancy.kind=copies"]);
    assert!(alone.contains("2 copies and the machine has 1 buffers"), "{alone}");
    for wrong in [&["size", "--seeds", "0"][..], &["phold", "--processes", "0"]] {
        assert!(failed(wrong).contains("expected an integer from 1 to "), "{wrong:?}");
    }
    let stuck = failed(&[
        "run",
        "-b",
        "64m",
        "-F",
        "--set",
        "buffer.mode=stage",
        "--set",
        "buffer.capacity=16MiB",
    ]);
    assert!(stuck.contains("cannot end: 1 writes wait for room"), "{stuck}");
    let named = "simulate intrepid-2011.toml: buffer.capacity: the simulation cannot end";
    assert!(stuck.contains(named) && stuck.contains("; expected room for all"), "{stuck}");
    let waits = dir.path().join("waits.toml");
    let events = "workload = 1\n[[job]]\nname = \"a\"\nphase = [{ name = \"p\", steps = [{ await = \"done\", count = 3 }] }]\n\
                [[job]]\nname = \"b\"\nphase = [{ name = \"p\", steps = [{ signal = \"done\" }] }]\n";
    fs::write(&waits, events).unwrap();
    let waiting = failed(&["run", waits.to_str().unwrap()]);
    let of_file = waiting.contains("waits.toml: await: the simulation cannot end: ");
    assert!(of_file && waiting.contains("signalled 1 times of 3"), "{waiting}");
    assert!(waiting.contains("; expected as many signals as are waited for"), "{waiting}");
    assert!(failed(&["run", "-m", "nothing"]).contains("expected a file, or one of intrepid-2011"));
    assert!(failed(&["sweep", "--over", "buffer.capacity=1GiB..2MiB*2"]).contains("is no range"));
    // Errors have the form that they have everywhere.
    let output = sim(&["run", "--set", "io.nodes=600", "--json"]);
    let error: Value = serde_json::from_slice(&output.stdout).unwrap();
    let error = &error["error"];
    assert_eq!((&error["what"], &error["path"]), (&"read".into(), &"intrepid-2011.toml".into()));
    assert!(error["why"].as_str().unwrap().contains("600 I/O nodes"), "{error}");
    assert!(error["hint"].as_str().unwrap().starts_with("expected "), "{error}");
    let output = sim(&["run", "-N", "200000", "-F", "--json"]);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["error"]["what"], "simulate", "{told}");
    let why = told["error"]["why"].as_str().unwrap();
    assert!(why.ends_with("200000 processes on 50000 nodes"), "{told}");
    for (arguments, what, path, why) in [
        (&["run", "-m", "nothing"][..], "read", "nothing", "there is no such machine"),
        (&["run", "nothing"][..], "read", "nothing", "there is no such workload"),
        (
            &["run", "--html", "/no/place/p.html"][..],
            "write the page to",
            "/no/place/p.html",
            "No such",
        ),
        (
            &["run", "--set", "storage.server=1"][..],
            "read",
            "intrepid-2011.toml",
            "storage.server: ",
        ),
        (&["check", "/no/w.toml", "--dir", "/"][..], "read", "/no/w.toml", "No such"),
    ] {
        let output = sim(&[arguments, &["--json"]].concat());
        assert!(!output.status.success(), "{arguments:?}");
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        let error = &told["error"];
        assert_eq!((&error["what"], &error["path"]), (&what.into(), &path.into()), "{error}");
        assert!(error["why"].as_str().unwrap().contains(why), "{error}");
        // Plainly: what failed, on which path, why.
        let plain = text(&output.stderr);
        assert!(plain.contains(&format!("{what} {path}")) && plain.contains(why), "{plain}");
    }
}

#[test]
fn checkpoints_are_written_as_often_as_daly_says() {
    let ai = ["ai-70b", "--coarse", "--set", "buffer=none", "--set", "compute.mtbf=200000h"];
    let run = |more: &[&str]| json(&[&["run"][..], &ai, more, &["--json"]].concat());
    let written = |outcome: &Value| outcome["bytes"]["written"].as_u64().unwrap();
    let (fixed, daly) = (run(&[]), run(&["--checkpoint-interval", "daly"]));
    assert_eq!(fixed["jobs"][0]["name"], "ai-70b", "{fixed}");
    assert_eq!(fixed["chosen"].as_array().map(Vec::len), Some(0));
    let chosen = daly["chosen"][0].as_str().unwrap();
    assert!(
        chosen.starts_with("ai-70b / save: ") && chosen.contains("instead of 11 of 300.0 s"),
        "{chosen}"
    );
    assert!(chosen.contains("Daly's first order"), "{chosen}");
    // Nodes fail so seldom that five minutes are too often.
    assert!(written(&daly) < written(&fixed), "{daly}");
    let often = run(&["--checkpoint-interval", "1min"]);
    assert!(written(&often) > 4 * written(&fixed), "{often}");
    let never = sim(&["run", "ai-70b", "--checkpoint-interval", "daly"]);
    let told = text(&never.stderr);
    let wanted = "simulate intrepid-2011.toml: compute.mtbf: ai-70b: Daly's interval depends on how often nodes fail";
    assert!(!never.status.success() && told.contains(wanted), "{told}");
}

#[test]
fn the_schema_of_machine_files_is_printed() {
    let schema: Value = serde_json::from_str(&done(&["machine", "--schema"])).unwrap();
    assert_eq!(schema["required"][0], "version", "{schema}");
    assert!(!sim(&["machine", "laptop", "--schema"]).status.success());
}

#[test]
fn a_sweep_tells_how_many_points_failed_and_why_the_first_did() {
    let small = ["-m", "laptop", "-N", "4", "-b", "4m", "-t", "1m", "--over"];
    let sweep = |over: &str| sim(&[&["sweep"][..], &small, &[over, "--json"]].concat());
    let output = sweep("nokey=1,2");
    assert_eq!(output.status.code(), Some(1));
    let lines: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [swept, told] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(swept["points"].as_array().unwrap().len(), 2);
    let error = &told["error"];
    assert_eq!((&error["what"], &error["path"]), (&"sweep".into(), &"laptop.toml".into()));
    let why = error["why"].as_str().unwrap();
    assert!(why.starts_with("2 of 2 points failed, the first (nokey=1): nokey: "), "{error}");
    assert!(error["hint"].as_str().unwrap().starts_with("expected "), "{error}");
    let plain = text(&output.stderr);
    assert!(plain.contains("sweep laptop.toml: 2 of 2 points failed"), "{plain}");
    // What is right is not lost by what is wrong.
    let output = sweep("buffer.capacity=1GiB,nonsense");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).lines().count(), 1);
    let plain = text(&output.stderr);
    let wanted = "1 of 2 points failed, the first (buffer.capacity=nonsense): ";
    assert!(plain.contains(wanted), "{plain}");
}

#[test]
fn a_sweep_goes_over_keys_of_the_workload_the_seed_and_the_interval() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("w.toml");
    let file = "workload = 1\n[[file]]\nname = \"f\"\npath = \"{repeat}/{process}\"\n[[job]]\nprocesses = 4\n[[job.phase]]\nname = \"dump\"\nrepeat = 3\n\
                pause = \"1min\"\nsteps = [{ write = \"f\", block = \"64MiB\", transfer = \"1MiB\" }]\n";
    fs::write(&path, file).unwrap();
    let workload = path.to_str().unwrap();
    let of_file = ["-m", "laptop", "--set", "workload.repeat=2", "--set", "buffer=none"];
    let written = |more: &[&str]| {
        let outcome = json(&[&["run", workload][..], &of_file, more, &["--json"]].concat());
        outcome["bytes"]["written"].as_u64().unwrap() >> 20
    };
    assert_eq!(written(&[]), 2 * 4 * 64);
    assert_eq!(written(&["--set", "workload.block=32MiB"]), 2 * 4 * 32);
    assert_eq!(written(&["--set", "workload.job[0].phase[0].steps[0].segments=2"]), 2 * 4 * 128);
    let over = |over: &[&str]| {
        let over: Vec<&str> = over.iter().flat_map(|range| ["--over", *range]).collect();
        let swept = [&["sweep", workload][..], &of_file, &over, &["--json"]].concat();
        let points = json(&swept)["points"].as_array().unwrap().clone();
        points.iter().map(|point| point["end_s"].as_f64().unwrap()).collect::<Vec<f64>>()
    };
    let blocks = over(&["workload.block=16MiB..64MiB*2"]);
    assert!(blocks.len() == 3 && blocks.is_sorted() && blocks[2] > blocks[0] + 1.0, "{blocks:?}");
    let seeds = over(&["seed=1..3+1"]);
    assert!(seeds.len() == 3 && seeds[0] == seeds[2], "nothing is drawn: {seeds:?}");
    // Half the interval: twice as many checkpoints behind the first.
    let intervals = over(&["checkpoint_interval=1min,30s"]);
    assert!(intervals[1] > intervals[0] + 1.0, "{intervals:?}");
    let ior = ["sweep", "-m", "laptop", "-N", "4", "-F", "--over", "workload.transfer=1MiB,4MiB"];
    assert_eq!(done(&[&ior[..], &["--csv"]].concat()).lines().count(), 3);
    let kinds =
        ["sweep", "-N", "64", "-b", "4m", "--over", "buffer.redundancy.kind=none,copies,parity"];
    assert!(!done(&[&kinds[..], &["--csv"]].concat()).contains("missing"));
    for (arguments, wanted) in [
        (
            &["run", workload, "--set", "workload.blok=1"][..],
            "blok: this key stands nowhere in the workload",
        ),
        (
            &["run", workload, "--set", "workload.repeat=0"],
            "w.toml: job[0].phase[0].repeat: it is 0",
        ),
        (&["run", "--set", "workload.think=1"], "one of IOR's parameters"),
        (&["run", "month-2011", "--set", "workload.repeat=1"], "generated"),
        (
            &["check", workload, "--dir", "/", "--set", "workload.repeat=1"],
            "keys of the machine file",
        ),
        (&["sweep", workload, "--over", "seed=x"], "seed: \"x\" is no seed"),
        (
            &["sweep", workload, "--over", "checkpoint_interval=x"],
            "(checkpoint_interval=x): checkpoint_interval: ",
        ),
        (&["sweep", "--over", "processes=a"], "processes: it is \"a\""),
    ] {
        let output = sim(arguments);
        let told = text(&output.stderr);
        assert!(!output.status.success() && told.contains(wanted), "{arguments:?}: {told}");
    }
}

#[test]
fn tables_are_printed_as_csv() {
    let ior = ["-N", "512", "-b", "8m", "-F", "--csv"];
    for (arguments, head) in [
        (&[&["run"][..], &ior].concat()[..], "job,phase,start_s,end_s,time_s,io_s,written_bytes"),
        (&[&["explain"][..], &ior].concat(), "job,phase,bytes_per_s,bound_by,busy_share,closed_"),
        (&["phold", "--events", "10000", "--processes", "16", "--csv"], "processes,queue,events"),
    ] {
        let printed = done(arguments);
        let mut lines = printed.lines();
        assert!(lines.next().unwrap().starts_with(head), "{printed}");
        assert!(lines.next().is_some(), "{printed}");
    }
    assert!(!sim(&["run", "-N", "1", "--csv", "--json"]).status.success());
}

/// A replay of two phases of one name, which do very different things.
#[test]
fn phases_of_one_name_are_checked_each_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("w.toml");
    let phase = |think: &str| {
        format!(
            "{{ name = \"p\", steps = [{{ write = \"f\", block = \"64KiB\" }}, {{ think = \"{think}\" }}] }}"
        )
    };
    let text = format!(
        "workload = 1\n[[file]]\nname = \"f\"\npath = \"f\"\n[[job]]\nname = \"j\"\nphase = [{}, {}]\n",
        phase("100ms"),
        phase("1s")
    );
    fs::write(&path, text).unwrap();
    let (workload, place) = (path.to_str().unwrap(), dir.path().to_str().unwrap());
    let asked = ["check", workload, "-m", "laptop", "--dir", place, "--runs", "1"];
    let checked = json(&[&asked[..], &["--json"]].concat());
    let phases = checked["checked"].as_array().unwrap();
    assert_eq!(phases.len(), 2, "{checked}");
    for (number, least_s) in [(0, 0.1), (1, 1.0)] {
        let phase = &phases[number];
        assert_eq!(phase["number"], number, "{checked}");
        for key in ["predicted_s", "replayed_s"] {
            let time_s = phase[key].as_f64().unwrap();
            assert!(time_s >= least_s, "{key}: {checked}");
        }
    }
    assert!(phases[0]["predicted_s"].as_f64() < Some(1.0), "{checked}");
    let csv = done(&[&asked[..], &["--csv"]].concat());
    assert!(csv.starts_with("job,phase,number,predicted_s,replayed_s,error,runs\nj,p,0,"), "{csv}");
}

/// Never signalled as often as it is waited for.
const WAITS: &str = "workload = 1\n[[job]]\nname = \"a\"\nphase = [{ name = \"p\", steps = [{ await = \"done\", count = 3 }] }]\n\
                     [[job]]\nname = \"b\"\nphase = [{ name = \"p\", steps = [{ signal = \"done\" }] }]\n";

#[test]
fn a_comparison_in_which_nothing_ends_fails() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("waits.toml");
    fs::write(&path, WAITS).unwrap();
    let workload = path.to_str().unwrap();
    let output = sim(&["compare", workload, "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let lines: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [compared, told] = &lines[..] else { panic!("{lines:?}") };
    let variants = compared["variants"].as_array().unwrap();
    assert!(variants.iter().all(|variant| variant["error"].is_string()), "{compared}");
    let error = &told["error"];
    assert_eq!((&error["what"], &error["path"]), (&"compare".into(), &workload.into()));
    let (all, first) = (variants.len(), variants[0]["variant"].as_str().unwrap());
    let said = error["why"].as_str().unwrap();
    let wanted = format!("{all} of {all} variants failed, the first ({first}): ");
    assert!(said.starts_with(&wanted) && said.contains("the simulation cannot end: "), "{error}");
    let plain = sim(&["compare", workload]);
    assert_eq!(plain.status.code(), Some(1));
    let plain = text(&plain.stderr);
    assert!(
        plain.contains(&format!("compare {workload}: {all} of {all} variants failed")),
        "{plain}"
    );
}

#[test]
fn a_sweep_names_the_file_that_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    for (workload, why) in [
        ("/no/w.toml".to_string(), "No such"),
        (file("old.toml", "workload = 2\n"), "line 1: workload: it is 2"),
        (file("waits.toml", WAITS), "the simulation cannot end: "),
    ] {
        let output = sim(&["sweep", &workload, "--over", "storage.servers=64,128", "--json"]);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        let printed = text(&output.stdout);
        let told: Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
        let error = &told["error"];
        assert_eq!((&error["what"], &error["path"]), (&"sweep".into(), &workload.as_str().into()));
        let all = format!("2 of 2 points failed, the first (storage.servers=64): {why}");
        let said = error["why"].as_str().unwrap();
        assert!(said.starts_with(&all) && !said.contains(&workload), "{error}");
        let plain = text(&output.stderr);
        assert!(plain.contains(&format!("sweep {workload}: 2 of 2 points failed")), "{plain}");
    }
}

/// crates/sim/tests/integration/pages.rs looks at the pages in a browser.
#[test]
fn pages_are_written_where_the_user_says() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    let html = ["--html", page.to_str().unwrap()];
    let written = |more: &[&str]| {
        done(&[more, &html].concat());
        let written = fs::read_to_string(&page).unwrap();
        fs::remove_file(&page).unwrap();
        written
    };
    let small = ["-m", "laptop", "-N", "4", "-F"];
    assert!(written(&[&["run"][..], &small].concat()).contains("Throughput over time"));
    let over = ["--over", "buffer.capacity=64MiB..1024MiB*2"];
    assert!(written(&[&["sweep"][..], &small, &over].concat()).contains("Pareto front"));
    let sized = written(&[&["size"][..], &small, &["--seeds", "2"]].concat());
    assert!(sized.contains("least that will do"));
    let nowhere = dir.path().join("none/page.html");
    let output = sim(&[&["run"][..], &small, &["--html", nowhere.to_str().unwrap()]].concat());
    let told = text(&output.stderr);
    assert!(!output.status.success() && told.contains("none/page.html"), "{told}");
}

/// Keys of objects, at any depth.
fn keys(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => object.iter().for_each(|(key, value)| {
            found.insert(key.clone());
            keys(value, found);
        }),
        Value::Array(list) => list.iter().for_each(|value| keys(value, found)),
        _ => {}
    }
}

#[test]
fn each_key_of_the_json_is_documented() {
    let document =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/SIMULATION.md"))
            .unwrap();
    // Keys of machine files and questions have tables of their own.
    let (_, document) = document.split_once("\n## JSON\n").unwrap();
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `"));
    let documented: BTreeSet<String> = rows
        .flat_map(|row| row.split(" | ").next().unwrap().split('`').step_by(2))
        .map(String::from)
        .collect();
    let ior = ["-N", "512", "-b", "8m", "-F"];
    let mut found = BTreeSet::new();
    let mut look = |name: &str, more: &[&str]| {
        keys(&json(&[&[name][..], more, &["--json"]].concat()), &mut found);
    };
    look("run", &ior);
    look("explain", &ior);
    look("sweep", &["-b", "8m", "-F", "--over", "processes=256,512"]);
    look("compare", &[&ior[..], &["--coarse"]].concat());
    look("size", &[&ior[..], &["--coarse", "--seeds", "2"]].concat());
    look("phold", &["--events", "10000", "--processes", "100"]);
    look("machine", &[]);
    for machine in ["intrepid-2011", "cori-datawarp", "summit-like", "gordon-like", "laptop"] {
        look("machine", &[machine]);
    }
    let missing: Vec<_> = found.difference(&documented).collect();
    assert!(missing.is_empty(), "keys that docs/SIMULATION.md does not have: {missing:?}");
}
