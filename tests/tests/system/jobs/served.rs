//! Jobs whose buffer is at a server, on one node and on several: what the script finds, what is
//! staged where, and what is left when a node, the server or the runner dies.

use super::place::{Run, signal, until};
use super::servers::Site;
use forebay_tests::procs;
use serde_json::Value;
use std::fs;
use std::process::Child;
use std::time::{Duration, Instant};

const STRIPED: &str = "jobdw type=scratch capacity=64MiB access_mode=striped";
const OUT: &str =
    "stage_out type=directory source=$DW_JOB_STRIPED/results destination=@PFS@/results";

#[test]
fn a_job_at_a_server_gets_its_input_and_leaves_its_results() {
    let site = Site::new(0);
    for server in [site.unix(), site.tcp.clone()] {
        let pfs = |name: &str| site.place.pfs(name);
        let _ = fs::remove_dir_all(pfs("results"));
        let _ = fs::remove_dir_all(pfs("listed"));
        fs::create_dir_all(pfs("in/deep")).unwrap();
        fs::write(pfs("in/deep/b"), "beta").unwrap();
        fs::write(pfs("single"), "delta").unwrap();
        let script = site.place.script(
            &[
                STRIPED,
                "stage_in type=directory source=@PFS@/in destination=$DW_JOB_STRIPED/made/in",
                "stage_in type=file source=@PFS@/single destination=$DW_JOB_STRIPED/made/single",
                OUT,
                "stage_out type=file source=$DW_JOB_STRIPED/latest destination=@PFS@/latest",
                "stage_out type=list source=$DW_JOB_STRIPED/list destination=@PFS@/listed",
            ],
            r#"[ "$DW_JOB_STRIPED" = "$FOREBAY_BUFFER/" ] || exit 9
[ "$FOREBAY_HOSTS" = "$(uname -n)" ] || exit 8
cd "$DW_JOB_STRIPED"
mkdir results
cat made/in/deep/b made/single > results/all
echo 100 > ckpt.100; ln -s ckpt.100 latest
printf '%s\n' "${DW_JOB_STRIPED}results/all" ckpt.100 > list"#,
        );
        let run = Run::wait(site.start_at(&server, &script, "", &[])).expect(0);
        assert_eq!(fs::read_to_string(pfs("results/all")).unwrap(), "betadelta", "{}", run.err);
        assert_eq!(fs::read_to_string(pfs("latest")).unwrap(), "100\n");
        assert_eq!(fs::read_to_string(pfs("listed/all")).unwrap(), "betadelta");
        assert_eq!(run.step("data-in")["bytes"], 9);
        site.assert_clean();
    }
}

#[test]
fn a_server_that_is_not_there_is_told_at_once_and_holds_nothing() {
    let site = Site::new(0);
    let script = site.place.script(&[STRIPED, OUT], "true");
    let begun = Instant::now();
    let run = Run::wait(site.start_at("127.0.0.1:1", &script, "", &[]));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}: {}", begun.elapsed(), run.err);
    assert_eq!(run.step("setup")["ended"], "failed", "{}", run.err);
    assert_eq!(run.step("teardown")["ended"], "ok", "{}", run.err);
    site.assert_clean();
}

/// On node `n`, in a script: `on n1 'commands'`, with the job's environment.
const ON: &str = "on() { node=$1; shift; @PFS@/../on-node $node env DW_JOB_STRIPED=${DW_JOB_STRIPED-} \
     DW_JOB_PRIVATE=${DW_JOB_PRIVATE-} sh -euc \"$@\"; }\n";

#[test]
fn a_job_on_several_nodes_has_one_striped_namespace() {
    let site = Site::new(2);
    fs::write(site.place.pfs("in"), "input").unwrap();
    let body = format!(
        "set -e\n{ON}[ \"$FOREBAY_HOSTS\" = \"$(uname -n),n1,n2\" ] || exit 9\n\
         mkdir ${{DW_JOB_STRIPED}}results\n\
         for n in n1 n2; do on $n 'cat ${{DW_JOB_STRIPED}}in > ${{DW_JOB_STRIPED}}results/$(uname -n)'; done\n\
         on n1 'cat ${{DW_JOB_STRIPED}}results/n2 > ${{DW_JOB_STRIPED}}results/n2-on-n1'\n\
         [ \"$(cat ${{DW_JOB_STRIPED}}results/n1)\" = input ] || exit 8"
    );
    let input = "stage_in type=file source=@PFS@/in destination=$DW_JOB_STRIPED/in";
    let script = site.place.script(&[STRIPED, input, OUT], &body);
    let run = Run::wait(site.start(&script, "n1,n2", &[])).expect(0);
    for name in ["n1", "n2", "n2-on-n1"] {
        let path = site.place.pfs("results").join(name);
        assert_eq!(fs::read_to_string(path).unwrap(), "input", "{name}: {}", run.err);
    }
    site.assert_clean();
}

#[test]
fn each_node_of_a_job_has_its_own_private_directory_beside_the_striped_one() {
    let site = Site::new(2);
    fs::write(site.place.pfs("in"), "input").unwrap();
    let body = format!(
        "set -e\n{ON}for n in n1 n2; do\n\
         on $n 'mkdir ${{DW_JOB_PRIVATE}}out; (cat ${{DW_JOB_PRIVATE}}deep/in; uname -n) > ${{DW_JOB_PRIVATE}}out/x'\n\
         on $n 'cp ${{DW_JOB_PRIVATE}}out/x ${{DW_JOB_STRIPED}}$(uname -n)'; done\n\
         mkdir ${{DW_JOB_PRIVATE}}out; cp ${{DW_JOB_STRIPED}}n2 ${{DW_JOB_PRIVATE}}out/x"
    );
    let script = site.place.script(
        &[
            "jobdw type=scratch capacity=64MiB access_mode=striped,private",
            "stage_in type=file source=@PFS@/in destination=$DW_JOB_PRIVATE/deep/in",
            "stage_out type=directory source=$DW_JOB_PRIVATE/out destination=@PFS@/out",
        ],
        &body,
    );
    let run = Run::wait(site.start(&script, "n1,n2", &[])).expect(0);
    let here = rustix::system::uname().nodename().to_str().unwrap().to_string();
    for (node, text) in [("n1", "inputn1\n"), ("n2", "inputn2\n"), (&*here, "inputn2\n")] {
        let path = site.place.pfs("out").join(node).join("x");
        assert_eq!(fs::read_to_string(path).unwrap(), text, "{node}: {}", run.err);
    }
    // The last copy of data-in went to all three.
    assert_eq!(run.step("data-in")["files"], 3);
    site.assert_clean();
}

/// Private alone, over nodes and servers, each a machine with a network of its own: names are each node's own, staged in to each, on capacity
/// that all share and several servers hold; nothing is left.
fn private_over(nodes: usize, servers: usize) {
    let site = Site::on_machines(nodes, servers);
    fs::create_dir(site.place.pfs("in")).unwrap();
    fs::write(site.place.pfs("in/a"), "input").unwrap();
    let names: Vec<String> = (1..=nodes).map(|n| format!("n{n}")).collect();
    let list = names.join(" ");
    // 60 MB of each node: more than one part has, less than all have together.
    let body = format!(
        "set -e\n{ON}for n in {list}; do\n\
         on $n '[ \"$(cat ${{DW_JOB_PRIVATE}}in/a)\" = input ]; [ \"$(ls ${{DW_JOB_PRIVATE}})\" = in ]'\n\
         on $n 'mkdir ${{DW_JOB_PRIVATE}}out; uname -n > ${{DW_JOB_PRIVATE}}out/name; \
         head -c 30000000 /dev/zero > ${{DW_JOB_PRIVATE}}out/big1; \
         head -c 30000000 /dev/zero > ${{DW_JOB_PRIVATE}}big2'\ndone\n\
         for n in {list}; do on $n '[ \"$(cat ${{DW_JOB_PRIVATE}}out/name)\" = '$n' ]'; done\n\
         [ \"$(ls ${{DW_JOB_PRIVATE}})\" = in ]; mkdir ${{DW_JOB_PRIVATE}}out\n\
         for n in {list}; do \
         on $n 'stat -c %d,%i ${{DW_JOB_PRIVATE}}out' > @PFS@/seen.$n; done\n\
         {program} status --json ${{DW_JOB_PRIVATE}}in/a > @PFS@/status",
        program = forebay_tests::buffer::binary().display()
    );
    let script = site.place.script(
        &[
            "jobdw type=scratch capacity=384MiB access_mode=private",
            "stage_in type=directory source=@PFS@/in destination=$DW_JOB_PRIVATE/in",
            "stage_out type=directory source=$DW_JOB_PRIVATE/out destination=@PFS@/out",
        ],
        &body,
    );
    let run = Run::wait(site.start(&script, &names.join(","), &[])).expect(0);
    for name in &names {
        let out = site.place.pfs("out").join(name);
        let told = fs::read_to_string(out.join("name")).unwrap();
        assert_eq!(told, format!("{name}\n"), "{}", run.err);
        assert_eq!(fs::metadata(out.join("big1")).unwrap().len(), 30_000_000);
        assert!(!out.join("big2").exists());
    }
    // The state of a file is that of this node's file.
    let status = fs::read_to_string(site.place.pfs("status")).unwrap();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["size_bytes"], 5, "{status}");
    // Inode numbers carry the shard: the nodes' directories are not all at one server.
    let shard = |name: &String| {
        let seen = fs::read_to_string(site.place.pfs(&format!("seen.{name}"))).unwrap();
        seen.trim().rsplit(',').next().unwrap().parse::<u64>().unwrap() >> 48
    };
    let shards: std::collections::BTreeSet<u64> = names.iter().map(shard).collect();
    assert!(shards.len() > 1, "all at {shards:?}");
    assert_eq!(run.step("data-in")["files"], nodes as u64 + 1);
    site.assert_clean();
}

#[test]
fn private_namespaces_of_two_nodes_lie_on_two_servers() {
    private_over(2, 2);
}

#[test]
fn private_namespaces_of_three_nodes_lie_on_three_servers() {
    private_over(3, 3);
}

#[test]
fn one_file_of_several_private_namespaces_is_refused() {
    let site = Site::new(1);
    let script = site.place.script(
        &[
            "jobdw type=scratch capacity=64MiB access_mode=private",
            "stage_out type=file source=$DW_JOB_PRIVATE/x destination=@PFS@/x",
        ],
        "touch @PFS@/started",
    );
    let run = Run::wait(site.start(&script, "n1", &[])).expect(2);
    assert!(run.err.contains("line 3") && run.err.contains("type=directory"), "{}", run.err);
    assert!(!site.place.pfs("started").exists());
    site.assert_clean();
}

#[test]
fn a_node_that_does_not_answer_keeps_the_job_from_starting() {
    let site = Site::new(2);
    fs::write(site.place.base.join("n2.away"), "").unwrap();
    let script = site.place.script(&[STRIPED], "touch @PFS@/started");
    let run = Run::wait(site.start(&script, "n1,n2", &[])).expect(120);
    assert!(run.err.contains("node n2: n2: no route to host"), "{}", run.err);
    assert!(!site.place.pfs("started").exists());
    assert_eq!(site.left_on_node(1), "0", "n1 had been mounted");
    assert_eq!(site.buffers(), Vec::<String>::new());
    // No shell ever ran on n2: nothing is left, and nothing waits for it.
    assert_eq!(run.step("teardown")["ended"], "ok", "{}", run.err);
    assert_eq!(run.summary()["outcome"], "not-started");
    assert_eq!(run.summary()["resume"], serde_json::Value::Null);
    fs::remove_file(site.place.base.join("n2.away")).unwrap();
    site.assert_clean();
}

/// The buffer is made, and mounted where the runner is, before any other node is asked: where that
/// fails, teardown needs no node, whether it can be reached or not.
#[test]
fn a_setup_that_fails_before_a_node_is_asked_needs_no_node_to_end() {
    let site = Site::new(1);
    fs::write(site.place.base.join("n1.away"), "").unwrap();
    let large = site.place.script(
        &["jobdw type=scratch capacity=900GiB access_mode=striped", OUT],
        "touch @PFS@/started",
    );
    let too_large = Run::wait(site.start(&large, "n1", &[])).expect(120);
    let small = site.place.script(&[STRIPED, OUT], "touch @PFS@/started");
    let no_server = Run::wait(site.start_at("127.0.0.1:1", &small, "n1", &[])).expect(120);
    for run in [too_large, no_server] {
        assert_eq!(run.step("setup")["ended"], "failed", "{}", run.err);
        assert_eq!(run.step("teardown")["ended"], "ok", "{}", run.err);
        assert_eq!(run.summary()["resume"], serde_json::Value::Null, "{}", run.err);
        assert!(!run.err.contains("Something of the job is left"), "{}", run.err);
    }
    assert!(!site.place.pfs("started").exists());
    assert_eq!(site.buffers(), Vec::<String>::new());
    fs::remove_file(site.place.base.join("n1.away")).unwrap();
    site.assert_clean();
}

#[test]
fn a_node_that_goes_away_in_setup_is_told_with_what_is_left_and_how_to_end_it() {
    let site = Site::new(2);
    // n2 mounts, and then answers no more; n1 fails.
    fs::write(site.place.base.join("n1.away"), "").unwrap();
    let away = format!("touch {}", site.place.base.join("n2.away").display());
    let launch = format!(
        "sh -c '{} \"$0\" \"$@\"; code=$?; [ $0 != n2 ] || {away}; exit $code' {{host}}",
        site.launcher().display()
    );
    let script = site.place.script(&[STRIPED], "touch @PFS@/started");
    let child = site.start(&script, "", &["--on", "n1,n2", "--launch", &launch]);
    let run = Run::wait(child).expect(120);
    assert!(!site.place.pfs("started").exists());
    assert_eq!(site.buffers(), Vec::<String>::new(), "{}", run.err);
    let record = run.record();
    for said in ["Something of the job is left: node n2", "run --resume", "run --discard"] {
        assert!(run.err.contains(said), "not said: {said}\n{}", run.err);
    }
    // As long as it does not answer the record stays; given up, it goes.
    Run::wait(site.resume(&record)).expect(120);
    let discarded = Run::wait(site.discard(&record)).expect(122);
    assert!(discarded.err.contains("node n2: n2: no route to host"), "{}", discarded.err);
    assert!(discarded.err.contains("umount --force"), "{}", discarded.err);
    site.place.assert_clean();
    assert!(site.left_on_node(2).starts_with('1'), "its mount is there, without a buffer");
}

#[test]
fn a_node_that_dies_holds_neither_the_buffer_nor_the_others() {
    let site = Site::new(2);
    let body = "cd $DW_JOB_STRIPED; mkdir results; echo x > results/x; touch @PFS@/../n1.away";
    let script = site.place.script(&[STRIPED, OUT], body);
    let run = Run::wait(site.start(&script, "n1,n2", &[])).expect(122);
    assert_eq!(fs::read_to_string(site.place.pfs("results/x")).unwrap(), "x\n");
    assert!(run.err.contains("node n1: n1: no route to host"), "{}", run.err);
    assert_eq!(site.buffers(), Vec::<String>::new(), "the buffer is given back");
    assert_eq!(site.left_on_node(2), "0");
    assert!(site.left_on_node(1).starts_with('1'), "its mount is there, without a buffer");
    let again = Run::wait(site.resume(&run.record())).expect(122);
    let detail = again.step("teardown")["detail"].to_string();
    assert_eq!(detail.matches("no route to host").count(), 1, "said once: {detail}");
    fs::remove_file(site.place.base.join("n1.away")).unwrap();
    Run::wait(site.resume(&run.record())).expect(0);
    site.assert_clean();
}

#[test]
fn a_process_left_on_a_node_does_not_hold_it() {
    let site = Site::new(1);
    let body = format!(
        "set -e\n{ON}on n1 'cd $DW_JOB_STRIPED; setsid sh -c \"echo \\$\\$; exec sleep 60 > held 2> /dev/null\" &' > @PFS@/pid\n\
         while [ ! -s @PFS@/pid ]; do sleep 0.05; done"
    );
    let script = site.place.script(&[STRIPED], &body);
    Run::wait(site.start(&script, "n1", &[])).expect(0);
    let pid = fs::read_to_string(site.place.pfs("pid")).unwrap().trim().parse().unwrap();
    assert!(forebay_tests::buffer::alive(pid), "the process was to outlive the job");
    signal(pid, libc::SIGKILL);
    until("the detached mount is gone", || site.left_on_node(1) == "0");
    site.assert_clean();
}

#[test]
fn a_server_that_is_killed_and_comes_back_does_not_end_the_job() {
    let site = Site::new(1);
    fs::create_dir(site.place.pfs("in")).unwrap();
    for number in 0..200 {
        fs::write(site.place.pfs(&format!("in/{number}")), vec![b'x'; 100_000]).unwrap();
    }
    let input = "stage_in type=directory source=@PFS@/in destination=$DW_JOB_STRIPED/in";
    let body = "cd $DW_JOB_STRIPED; mkdir results; cp -r in results/; touch @PFS@/ran";
    let script = site.place.script(&[STRIPED, input, OUT], body);
    let child = site.start(&script, "n1", &[]);
    let mut kills = 0;
    // In data-in, in the script, and in data-out. A server that is not there in setup ends the job, as it should.
    until("data-in has begun", || {
        site.place.mounts().iter().any(|mount| fs::read_dir(mount.join("in")).is_ok())
    });
    for done in ["in", "ran", "results"] {
        until("the job goes on", || site.place.pfs(done).exists());
        std::thread::sleep(Duration::from_millis(20));
        site.kill_server();
        std::thread::sleep(Duration::from_millis(200));
        site.start_server();
        kills += 1;
    }
    let run = Run::wait(child).expect(0);
    assert_eq!(kills, 3);
    let staged = fs::read_dir(site.place.pfs("results/in")).unwrap().map(Result::unwrap);
    let sizes: Vec<u64> = staged.map(|entry| entry.metadata().unwrap().len()).collect();
    assert_eq!(sizes, vec![100_000; 200], "{}", run.err);
    site.assert_clean();
}

#[test]
fn a_runner_of_a_job_at_a_server_killed_at_any_moment_leaves_a_job_that_can_be_finished() {
    // Setup, data-in, run and the steps after it are all within these times.
    for delay_ms in (0..600).step_by(30) {
        let site = Site::new(1);
        fs::create_dir(site.place.pfs("in")).unwrap();
        for number in 0..20 {
            fs::write(site.place.pfs(&format!("in/{number}")), vec![b'x'; 100_000]).unwrap();
        }
        let input = "stage_in type=directory source=@PFS@/in destination=$DW_JOB_STRIPED/in";
        let body = "cd $DW_JOB_STRIPED; mkdir results; cat in/* > results/all; sleep 0.05";
        let script = site.place.script(&[STRIPED, input, OUT], body);
        let mut child = site.start(&script, "n1", &[]);
        std::thread::sleep(Duration::from_millis(delay_ms));
        signal(child.id() as i32, libc::SIGKILL);
        child.wait().unwrap();
        let Some(record) = site.records().pop() else {
            // Killed before there was a job, or after it was gone.
            assert_eq!(site.buffers(), Vec::<String>::new(), "after {delay_ms} ms");
            continue;
        };
        let run = Run::wait(site.resume(record.to_str().unwrap()));
        match run.code {
            Some(120) => assert!(!site.place.pfs("results").exists(), "after {delay_ms} ms"),
            Some(0 | 123) => {
                let all = fs::read(site.place.pfs("results/all")).unwrap();
                assert_eq!(all.len(), 2_000_000, "after {delay_ms} ms: {}", run.err);
            }
            other => panic!("after {delay_ms} ms: {other:?}\n{}{}", run.out, run.err),
        }
        eprintln!("after {delay_ms} ms: {}", run.err);
        // What the killed runner had just launched finds no buffer, and cleans up after itself.
        until("nothing is left on the node", || site.left_on_node(1) == "0");
        until("nothing is left where the runner was", || site.place.mounts().is_empty());
        site.assert_clean();
    }
}

#[test]
fn results_that_cannot_be_staged_out_keep_the_buffer_at_the_server() {
    let site = Site::new(1);
    // A file where the results are to go.
    let body =
        "cd $DW_JOB_STRIPED; mkdir results; echo x > results/x; echo > @PFS@/results; exit 5";
    let script = site.place.script(&[STRIPED, OUT], body);
    let run = Run::wait(site.start(&script, "n1", &[])).expect(121);
    assert_eq!(site.buffers().len(), 1);
    assert_eq!(site.left_on_node(1), "0", "only this node's mount stays");
    assert!(run.mount_point().join("results/x").exists());
    for said in ["Nothing is lost", "run --discard", "run --resume", "stage out --server"] {
        assert!(run.err.contains(said), "not said: {said}\n{}", run.err);
    }
    fs::remove_file(site.place.pfs("results")).unwrap();
    Run::wait(site.resume(&run.record())).expect(5);
    assert_eq!(fs::read_to_string(site.place.pfs("results/x")).unwrap(), "x\n");
    site.assert_clean();
}

#[test]
fn a_failed_script_without_results_leaves_nothing_at_the_server() {
    // With a namespace for each node the plans tell that there are no results.
    for mode in ["striped", "private", "striped,private"] {
        let site = Site::new(1);
        let jobdw = format!("jobdw type=scratch capacity=64MiB access_mode={mode}");
        let name = if mode == "striped" { "DW_JOB_STRIPED" } else { "DW_JOB_PRIVATE" };
        let out =
            format!("stage_out type=directory source=${name}/results destination=@PFS@/results");
        let script = site.place.script(&[&jobdw, &out], "exit 5");
        let run = Run::wait(site.start(&script, "n1", &[])).expect(5);
        assert_eq!(run.summary()["outcome"], "done", "{mode}: {}", run.err);
        site.assert_clean();
    }
}

#[test]
fn a_job_kept_at_the_server_is_discarded() {
    let site = Site::new(1);
    let body =
        "cd $DW_JOB_STRIPED; mkdir results; echo x > results/x; echo > @PFS@/results; exit 5";
    let script = site.place.script(&[STRIPED, OUT], body);
    let run = Run::wait(site.start(&script, "n1", &[])).expect(121);
    let discarded = Run::wait(site.discard(&run.record())).expect(0);
    assert!(discarded.err.contains("its buffer holds 1 file, 2 B"), "{}", discarded.err);
    site.assert_clean();
}

#[test]
fn a_job_that_is_discarded_names_its_stopped_server_and_goes_on_with_it() {
    /// More than it takes to be told, less than the first wait for the server.
    const STOPPED_FOR: Duration = Duration::from_secs(8);
    let site = Site::new(0);
    let script = site.place.script(&[STRIPED, OUT], "echo x > ${DW_JOB_STRIPED}x; exit 3");
    let run = Run::wait(site.start(&script, "", &[])).expect(121);
    let server = site.pid.get();
    signal(server, libc::SIGSTOP);
    let discarding = site.discard(&run.record());
    std::thread::sleep(STOPPED_FOR);
    signal(server, libc::SIGCONT);
    let discarded = Run::wait(discarding).expect(0);
    for said in ["waiting for the server ".to_string(), format!("`kill -CONT {server}`")] {
        assert!(discarded.err.contains(&said), "not said: {said}\n{}", discarded.err);
    }
    assert!(site.records().is_empty());
}

/// Within this time a command names a stopped process that it waits for; less than a job waits for a mount in use.
const TOLD_WITHIN: Duration = Duration::from_secs(10);

/// A command that begins while a process is stopped says which, and goes on with it.
fn begun_while_stopped(process: i32, begin: impl FnOnce() -> Child) -> Run {
    signal(process, libc::SIGSTOP);
    let running = begin();
    std::thread::sleep(TOLD_WITHIN);
    signal(process, libc::SIGCONT);
    let run = Run::wait(running);
    let said = format!("`kill -CONT {process}`");
    assert!(run.err.contains(&said), "not said: {said}\n{}", run.err);
    run
}

/// A script whose results cannot be staged out: a file is where they are to go.
const KEPT: &str =
    "cd $DW_JOB_STRIPED; mkdir results; echo x > results/x; echo > @PFS@/results; exit 5";

#[test]
fn a_job_that_is_resumed_names_its_stopped_server_or_mount_and_goes_on_with_it() {
    let site = Site::new(0);
    let script = site.place.script(&[STRIPED, OUT], KEPT);
    let run = Run::wait(site.start(&script, "", &[])).expect(121);
    let mount = site.place.server_of(&run.mount_point());
    for process in [site.pid.get(), mount] {
        begun_while_stopped(process, || site.resume(&run.record())).expect(121);
    }
    fs::remove_file(site.place.pfs("results")).unwrap();
    Run::wait(site.resume(&run.record())).expect(5);
    site.assert_clean();
}

/// A command that waits for a server ends within a second of a signal, leaves the job's record, and says how to go on.
#[test]
fn a_signal_ends_a_resume_or_discard_that_waits_for_its_server_and_leaves_the_job() {
    let site = Site::new(0);
    let script = site.place.script(&[STRIPED, OUT], KEPT);
    let run = Run::wait(site.start(&script, "", &[])).expect(121);
    let record = run.record();
    let server = site.pid.get();
    for (number, name) in [(libc::SIGINT, "SIGINT"), (libc::SIGTERM, "SIGTERM")] {
        for begin in [Site::resume, Site::discard] {
            signal(server, libc::SIGSTOP);
            let running = begin(&site, &record);
            std::thread::sleep(Duration::from_secs(4));
            signal(running.id() as i32, number);
            let begun = Instant::now();
            let left = Run::wait(running);
            let took = begun.elapsed();
            signal(server, libc::SIGCONT);
            let left = left.expect(128 + number);
            assert!(took < Duration::from_millis(1500), "{took:?}: {}", left.err);
            let told = format!("{name}: the job is left");
            for said in [told.as_str(), "run --resume", "run --discard"] {
                assert!(left.err.contains(said), "not said: {said}\n{}", left.err);
            }
            assert!(!site.records().is_empty(), "{}", left.err);
        }
    }
    let discarded = Run::wait(site.discard(&record)).expect(0);
    assert!(discarded.err.contains("its buffer holds 1 file"), "{}", discarded.err);
    site.assert_clean();
}

/// A job in data-out whose script has sent this signal to the server.
fn in_data_out(site: &Site, number: i32) -> Child {
    let body = format!(
        "cd $DW_JOB_STRIPED; mkdir results; echo x > results/x; sync results/x; cd /; kill -{number} {}",
        site.pid.get()
    );
    let script = site.place.script(&[STRIPED, OUT], &body);
    let running = site.start(&script, "", &[]);
    let is_there = |path: &std::path::PathBuf| {
        // It is written anew for each step.
        let record = fs::read(path).unwrap_or_default();
        serde_json::from_slice::<Value>(&record).is_ok_and(|record| record["step"] == "data-out")
    };
    until("the job is in data-out", || site.records().iter().any(is_there));
    running
}

/// How soon a signal is told or ends the command; a busy machine may take longer.
const SOON: Duration = Duration::from_millis(1_500);
/// What the first signal in data-out is told while the server does not answer, or answers.
const EXPLAINED: [&str; 2] = ["once more leaves the job as it is", "once more stops the copy"];

#[test]
fn a_second_signal_in_data_out_leaves_a_job_whose_server_does_not_answer() {
    let site = Site::new(0);
    for (server, number) in [(libc::SIGKILL, libc::SIGTERM), (libc::SIGSTOP, libc::SIGINT)] {
        let mut running = in_data_out(&site, server);
        std::thread::sleep(SOON);
        signal(running.id() as i32, number);
        std::thread::sleep(SOON);
        assert!(running.try_wait().unwrap().is_none(), "the first one ended it");
        signal(running.id() as i32, number);
        let begun = Instant::now();
        let left = Run::wait(running);
        let took = begun.elapsed();
        if server == libc::SIGKILL {
            site.kill_server();
            site.start_server();
        } else {
            signal(site.pid.get(), libc::SIGCONT);
        }
        let left = left.expect(128 + number);
        assert!(took < SOON, "{took:?}: {}", left.err);
        for said in [EXPLAINED[0], "the job is left as it is", "run --resume", "run --discard"] {
            assert!(left.err.contains(said), "not said: {said}\n{}", left.err);
        }
        let record = site.records().pop().expect("the record is left");
        Run::wait(site.resume(record.to_str().unwrap())).expect(0);
        let results = site.place.pfs("results");
        assert_eq!(fs::read(results.join("x")).unwrap(), b"x\n");
        fs::remove_dir_all(results).unwrap();
        site.assert_clean();
    }
}

#[test]
fn a_job_that_was_sent_one_signal_in_data_out_goes_on_with_its_server_and_prints_its_summary() {
    let site = Site::new(0);
    let mut running = in_data_out(&site, libc::SIGKILL);
    std::thread::sleep(SOON);
    signal(running.id() as i32, libc::SIGTERM);
    std::thread::sleep(SOON);
    assert!(running.try_wait().unwrap().is_none(), "the signal ended it");
    site.kill_server();
    site.start_server();
    let run = Run::wait(running).expect(0);
    assert!(EXPLAINED.iter().any(|said| run.err.contains(said)), "{}", run.err);
    assert_eq!(run.summary()["outcome"], "done", "{}", run.err);
    assert_eq!(fs::read(site.place.pfs("results/x")).unwrap(), b"x\n");
    site.assert_clean();
}

/// A server that does not run is told once, by its address, also where it is asked again and again.
#[test]
fn a_job_that_is_resumed_tells_that_its_server_does_not_run() {
    let site = Site::new(0);
    let body = KEPT.replace("exit 5", "exit 0");
    let script = site.place.script(&[STRIPED, OUT], &body);
    let run = Run::wait(site.start(&script, "", &[])).expect(121);
    site.kill_server();
    let resumed = site.resume(&run.record());
    std::thread::sleep(TOLD_WITHIN);
    signal(resumed.id() as i32, libc::SIGINT);
    let resumed = Run::wait(resumed).expect(128 + libc::SIGINT);
    let said = format!("nothing answers at {}: Connection refused", site.tcp);
    assert_eq!(resumed.err.matches(&said).count(), 1, "{}", resumed.err);
    assert!(!resumed.err.contains("os error"), "{}", resumed.err);
    site.start_server();
    Run::wait(site.discard(&run.record())).expect(0);
    site.assert_clean();
}

/// Takes room at the leader, so that a buffer of one server is made at the other; the names of the buffers that do.
fn fill_the_leader(site: &Site) -> Vec<&'static str> {
    let unix = site.unix();
    let ask = |args: &[&str]| procs::run(site.forebay(args).args(["--server", &unix]));
    let mut made = Vec::new();
    // The first may be at the other server: then the leader has most room for the second, which is larger.
    for (name, capacity) in [("small", "64MiB"), ("large", "128MiB")] {
        let pool: Value = serde_json::from_str(ask(&["pool", "status", "--json"]).trim()).unwrap();
        let servers = pool["servers"].as_array().unwrap();
        let leader = servers.iter().find(|server| server["leader"] == true).unwrap();
        if leader["reserved_bytes"].as_u64().unwrap() > 0 {
            break;
        }
        let create = ["buffer", "create", name, "--capacity", capacity, "--servers", "1"];
        ask(&[&create[..], &["--store", "directory"]].concat());
        made.push(name);
    }
    made
}

/// The server that is asked answers and has the buffer, the one that leads the pool does not.
#[test]
fn a_job_at_another_server_names_the_stopped_leader_when_it_is_resumed_or_discarded() {
    let site = Site::of_servers(2);
    let fills = fill_the_leader(&site);
    let script = site.place.script(&[STRIPED, OUT], KEPT);
    let (member, alone) = (site.member_address(1), ["--servers", "1"]);
    let run = Run::wait(site.start_at(&member, &script, "", &alone)).expect(121);
    let leader = site.pid.get();
    begun_while_stopped(leader, || site.resume(&run.record())).expect(121);
    begun_while_stopped(leader, || site.discard(&run.record())).expect(0);
    for name in fills {
        procs::run(&mut site.forebay(&["buffer", "destroy", name, "--server", &site.unix()]));
    }
    site.assert_clean();
}

/// What the others have stands for the whole neither in what is said nor in what is printed, nobody waits long for the one that is
/// away, and the rest goes when it is back.
#[test]
fn a_job_is_discarded_while_a_server_of_its_buffer_is_away() {
    let mut site = Site::of_servers(2);
    let script = site.place.script(&[STRIPED, OUT], "echo x > ${DW_JOB_STRIPED}x; exit 3");
    let run = Run::wait(site.start(&script, "", &["--servers", "2"])).expect(121);
    signal(site.member(1), libc::SIGKILL);
    let begun = Instant::now();
    let discarded = Run::wait(site.discard(&run.record())).expect(122);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(45), "{took:?}: {}", discarded.err);
    for said in ["its buffer holds at least ", "not all of its servers tell", "goes by itself"] {
        assert!(discarded.err.contains(said), "not said: {said}\n{}", discarded.err);
    }
    let told = discarded.summary();
    assert_eq!(told["outcome"], "discarded");
    assert!(told["files"].is_null() && told["bytes"].is_null(), "{told}");
    assert!(told["left"].is_string() && site.records().is_empty(), "{told}");
    site.start_member(1);
    until("the rest of the buffer is gone", || site.buffers().is_empty());
    site.assert_clean();
}

#[test]
fn a_job_whose_buffer_was_destroyed_is_discarded_and_says_so() {
    let site = Site::new(0);
    let script = site.place.script(&[STRIPED, OUT], "echo x > ${DW_JOB_STRIPED}x; exit 3");
    let run = Run::wait(site.start(&script, "", &[])).expect(121);
    let buffer = &site.buffers()[0];
    let mut destroy = site.forebay(&["buffer", "destroy", buffer, "--force"]);
    assert!(destroy.args(["--server", &site.unix()]).status().unwrap().success());
    let discarded = Run::wait(site.discard(&run.record())).expect(0);
    let said = "cannot be told: there is none any more";
    assert!(discarded.err.contains(said), "{}", discarded.err);
    assert!(!discarded.err.contains("secret"), "{}", discarded.err);
    site.assert_clean();
}

/// There is nothing to finish, and nothing is kept.
#[test]
fn a_job_whose_buffer_was_destroyed_is_not_resumed_and_says_what_is_lost() {
    let site = Site::new(0);
    let script = site.place.script(&[STRIPED, OUT], KEPT);
    let run = Run::wait(site.start(&script, "", &[])).expect(121);
    let record = run.record();
    let buffer = &site.buffers()[0];
    let mut destroy = site.forebay(&["buffer", "destroy", buffer, "--force"]);
    assert!(destroy.args(["--server", &site.unix()]).status().unwrap().success());
    let flash = site.place.flash();
    let listed = procs::run(site.forebay(&["status", "--json", "--flash"]).arg(&flash));
    let listed: Value = serde_json::from_str(listed.trim()).unwrap();
    let of_job = listed["buffers"].as_array().unwrap().iter().find(|e| e["discard"] == *record);
    assert!(of_job.is_some_and(|entry| entry["state"] == "gone"), "{listed}");
    let refused = Run::wait(site.resume(&record)).expect(121);
    let finish = format!("run --discard {record}");
    for said in ["the buffer of this job is gone: ", "what was not staged out", finish.as_str()] {
        assert!(refused.err.contains(said), "not said: {said}\n{}", refused.err);
    }
    assert!(!refused.err.contains("Nothing is lost"), "{}", refused.err);
    assert!(!refused.err.contains("buffer is kept"), "{}", refused.err);
    let summary = refused.summary();
    assert_eq!((&summary["outcome"], &summary["resume"]), (&"buffer-gone".into(), &Value::Null));
    assert_eq!(summary["discard"], record.as_str());
    Run::wait(site.discard(&record)).expect(0);
    site.assert_clean();
}

/// The script has destroyed it: the first run says the same.
#[test]
fn a_job_whose_buffer_is_destroyed_while_it_runs_does_not_say_that_it_is_kept() {
    let site = Site::new(0);
    let body = format!(
        "name=$({program} buffer list --json --server {unix} | sed 's/.*\"buffer\":\"\\([^\"]*\\)\".*/\\1/')\n\
         {program} buffer destroy \"$name\" --force --server {unix}",
        program = forebay_tests::buffer::binary().display(),
        unix = site.unix(),
    );
    let script = site.place.script(&[STRIPED, OUT], &body);
    let run = Run::wait(site.start(&script, "", &[])).expect(121);
    assert_eq!(site.buffers(), Vec::<String>::new(), "{}", run.err);
    assert!(run.err.contains("the buffer of this job is gone: "), "{}", run.err);
    assert!(!run.err.contains("Nothing is lost"), "{}", run.err);
    let summary = run.summary();
    assert_eq!(summary["outcome"], "buffer-gone", "{summary}");
    assert!(!run.err.contains("the buffer is kept"), "{}", run.err);
    let data_out = run.step("data-out")["detail"].to_string();
    assert!(data_out.contains("; the buffer is gone"), "{data_out}");
    Run::wait(site.discard(summary["discard"].as_str().unwrap())).expect(0);
    site.assert_clean();
}

#[test]
fn a_capacity_that_the_servers_do_not_have_starts_nothing() {
    let site = Site::new(0);
    let line = "jobdw type=scratch capacity=64GiB access_mode=striped";
    let script = site.place.script(&[line], "touch @PFS@/started");
    let run = Run::wait(site.start(&script, "", &[])).expect(120);
    assert!(run.err.contains("setup"), "{}", run.err);
    assert!(!site.place.pfs("started").exists());
    site.assert_clean();
}

#[test]
fn a_buffer_kept_at_the_server_can_be_mounted_again() {
    let site = Site::new(0);
    let script = site.place.script(&[STRIPED], "echo x > ${DW_JOB_STRIPED}x");
    let run = Run::wait(site.start(&script, "", &["--keep"])).expect(0);
    let command = run.err.lines().find(|line| line.contains(" mount --buffer ")).unwrap();
    let mnt = run.mount_point();
    fs::create_dir_all(&mnt).unwrap();
    let words: Vec<&str> = command.split_whitespace().skip(1).collect();
    assert!(site.forebay(&words).status().unwrap().success(), "{command}");
    assert_eq!(fs::read_to_string(mnt.join("x")).unwrap(), "x\n");
    assert!(site.forebay(&["umount"]).arg(&mnt).status().unwrap().success());
    assert_eq!(site.buffers().len(), 1);
}
