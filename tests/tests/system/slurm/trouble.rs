//! Servers, nodes and a PFS that fail under jobs of Slurm: what the user reads, what is kept, and how it goes on.

use super::cluster::{Cluster, Options, Plugin};
use serde_json::Value;
use std::fs;

const BUFFER: &str = "#DW jobdw type=scratch access_mode=striped capacity=64MiB pool=flash";

#[test]
fn results_that_cannot_be_staged_out_are_kept_and_rescued() {
    for plugin in [Plugin::Datawarp, Plugin::Lua] {
        let cluster = Cluster::new(plugin);
        let script = cluster.script(
            &[
                BUFFER,
                "#DW stage_out type=file source=$DW_JOB_STRIPED/a destination=@PFS@/a",
                "#DW stage_out type=file source=$DW_JOB_STRIPED/b destination=@PFS@/gone/b",
            ],
            "echo a > ${DW_JOB_STRIPED}a; echo b > ${DW_JOB_STRIPED}b",
        );
        let job = cluster.submit(&script, "").unwrap();
        assert_eq!(cluster.until_over(job), "COMPLETED", "{}", cluster.logs());
        assert_eq!(fs::read_to_string(cluster.pfs("a")).unwrap(), "a\n", "the other line is done");
        let shown = cluster.shown(job);
        for word in ["line 4", "gone", "forebay rescue job-"] {
            assert!(shown.contains(word), "{word}: {shown}");
        }
        let kept = cluster.forebay("rescue");
        let kept = &kept["kept_jobs"][0];
        assert_eq!(kept["job"], job.to_string());
        assert!(kept["missing_results"][0].as_str().unwrap().contains("gone"), "{kept}");
        assert!(cluster.reserved() > 0);
        let found = cluster.forebay("reconcile");
        assert_eq!(found["unknown_buffers"].as_array().unwrap().len(), 0, "{found}");
        let (ok, said) =
            cluster.sh(&format!("{}/bin/forebay rescue {job}", cluster.base.display()));
        assert!(!ok && said.contains("the buffer is kept"), "{said}");
        cluster.put("gone/x", "");
        cluster.forebay(&format!("rescue {job}"));
        assert_eq!(fs::read_to_string(cluster.pfs("gone/b")).unwrap(), "b\n");
        assert_eq!(cluster.forebay("rescue")["kept_jobs"].as_array().unwrap().len(), 0);
        cluster.assert_clean();
    }
}

/// The server is killed in each step of a job's buffer, and comes back.
fn a_server_killed_in_each_step(plugin: Plugin) {
    let cluster = Cluster::new(plugin);
    cluster.put("in", "input");
    let script = cluster.script(
        &[
            "#SBATCH -N 2",
            BUFFER,
            "#DW stage_in type=file source=@PFS@/in destination=$DW_JOB_STRIPED/in",
            "#DW stage_out type=file source=$DW_JOB_STRIPED/out destination=@PFS@/out",
        ],
        "echo > @PFS@/runs; until [ -e @PFS@/go ]; do sleep 0.1; done\n\
         srun -N2 cat ${DW_JOB_STRIPED}in > ${DW_JOB_STRIPED}out",
    );
    const STEPS: [&str; 6] = ["setup", "data_in", "pre_run", "post_run", "data_out", "teardown"];
    let hold = |steps: &[&str]| steps.iter().for_each(|step| cluster.hold("before", step));
    hold(&STEPS[..3]);
    let kill = || {
        cluster.signal("KILL", "forebay serve");
        cluster.start_server();
    };
    // A server that is stopped before the step asks it is killed in that very step.
    let kill_in = |step: &str| {
        cluster.until_held(step);
        cluster.signal("STOP", "forebay serve");
        cluster.let_go(step);
        cluster.until_asking(step);
        kill();
    };
    let job = cluster.submit(&script, "").unwrap();
    STEPS[..3].iter().for_each(|step| kill_in(step));
    cluster.until("the job runs", || {
        // A mount that finds no server fails, and Slurm puts the job back into the queue.
        if cluster.field(job, "JobState") == "PENDING" {
            cluster.start_again(job);
        }
        cluster.pfs("runs").exists()
    });
    kill();
    hold(&STEPS[3..]);
    fs::write(cluster.pfs("go"), "").unwrap();
    STEPS[3..].iter().for_each(|step| kill_in(step));
    assert_eq!(cluster.until_over(job), "COMPLETED", "{}{}", cluster.output(job), cluster.logs());
    assert_eq!(fs::read_to_string(cluster.pfs("out")).unwrap(), "inputinput", "{}", cluster.logs());
    cluster.assert_clean();
}

#[test]
fn a_server_killed_in_each_step_loses_nothing_by_the_datawarp_plugin() {
    a_server_killed_in_each_step(Plugin::Datawarp);
}

#[test]
fn a_server_killed_in_each_step_loses_nothing_by_the_lua_plugin() {
    a_server_killed_in_each_step(Plugin::Lua);
}

/// A step of a job that failed before the job started: what the user reads, and that the job is released and runs.
struct Failure<'c> {
    cluster: &'c Cluster,
    plugin: Plugin,
}

impl Failure<'_> {
    fn submit(&self, more: &[&str], body: &str) -> u32 {
        let lines = [&[BUFFER], more].concat();
        self.cluster.submit(&self.cluster.script(&lines, body), "").unwrap()
    }

    /// The job is held, its buffer is given back, and squeue and scontrol tell why.
    fn is_held(&self, job: u32, words: &[&str]) {
        let cluster = self.cluster;
        cluster.until("the job is held", || cluster.field(job, "Priority") == "0");
        // Slurm writes the reason in one word.
        let (reason, shown) = (cluster.listed(job, "%r"), cluster.shown(job));
        let (reason, shown) = (reason.replace('_', " "), shown.replace('_', " "));
        for word in words {
            let word = word.replace('_', " ");
            assert!(reason.contains(&word), "{:?} {word}: {reason}\n{shown}", self.plugin);
            assert!(shown.contains(&word), "{:?} {word}: {shown}", self.plugin);
        }
    }

    fn runs_when_released(&self, job: u32) {
        let cluster = self.cluster;
        cluster.until("its buffer is given back", || {
            cluster.field(job, "BurstBufferState") == "complete" && cluster.reserved() == 0
        });
        cluster.must(&format!("scontrol release {job}"));
        assert_eq!(cluster.until_over(job), "COMPLETED", "{}", cluster.logs());
    }

    /// setup and data_in: of a server that is away, and of an input that is not there.
    fn before_it_starts(&self) {
        let cluster = self.cluster;
        cluster.signal("KILL", "forebay serve");
        let job = self.submit(&[], "true");
        self.is_held(job, &["setup", "connect to the server", "when the servers are back"]);
        cluster.start_server();
        self.runs_when_released(job);
        let input = "#DW stage_in type=file source=@PFS@/late destination=$DW_JOB_STRIPED/late";
        let job = self.submit(&[input], "cat ${DW_JOB_STRIPED}late > @PFS@/seen");
        self.is_held(job, &["data_in", "line 3", "late"]);
        cluster.put("late", "late");
        self.runs_when_released(job);
        assert_eq!(fs::read_to_string(cluster.pfs("seen")).unwrap(), "late");
    }

    /// real_size and paths, which do not fail by themselves.
    fn of_what_is_told(&self) {
        let cluster = self.cluster;
        cluster.fail("real_size", Some("no size is known"));
        let job = self.submit(&[], "true");
        match self.plugin {
            // It is only logged.
            Plugin::Datawarp => assert_eq!(cluster.until_over(job), "COMPLETED"),
            Plugin::Lua => {
                self.is_held(job, &["real_size", "no size is known"]);
                cluster.fail("real_size", None);
                self.runs_when_released(job);
            }
        }
        let _ = fs::remove_file(cluster.base.join("at/fail.real_size"));
        cluster.fail("paths", Some("no path is known"));
        let job = self.submit(&[], "true");
        cluster.until("the job is held", || cluster.field(job, "Priority") == "0");
        cluster.fail("paths", None);
        cluster.must(&format!("scancel {job}"));
        cluster.until_cancelled_by(self.plugin, job);
        cluster.until("its buffer is gone", || cluster.reserved() == 0);
    }

    /// pre_run, of a node whose agent is dead: the job goes back into the queue.
    fn of_a_mount(&self) {
        let cluster = self.cluster;
        cluster.signal("KILL", "forebay agent --background --listen n1:");
        let job = self.submit(&[], "true");
        cluster.until("the job is back in the queue", || {
            cluster.field(job, "JobState") == "PENDING" && cluster.shown(job).contains("node n1")
        });
        let (reason, shown) = (cluster.listed(job, "%r"), cluster.shown(job));
        assert!(reason.contains("pre_run"), "{reason}\n{shown}");
        assert!(shown.contains("SystemComment") && shown.contains("pre_run"), "{shown}");
        cluster.until("its buffer is gone", || cluster.reserved() == 0);
        cluster.start_agent(1);
        cluster.start_again(job);
        assert_eq!(cluster.until_over(job), "COMPLETED", "{}", cluster.logs());
    }

    /// post_run: nothing was copied yet, so the results are kept.
    fn of_an_unmount(&self) {
        let cluster = self.cluster;
        cluster.fail("post_run", Some("the nodes are not known"));
        let out = "#DW stage_out type=file source=$DW_JOB_STRIPED/a destination=@PFS@/post";
        let job = self.submit(&[out], "echo post > ${DW_JOB_STRIPED}a");
        cluster.until("it is kept", || {
            cluster.forebay("rescue")["kept_jobs"].as_array().unwrap().len() == 1
        });
        cluster.fail("post_run", None);
        assert_eq!(cluster.until_over(job), "COMPLETED", "{}", cluster.logs());
        let shown = cluster.shown(job);
        assert!(shown.contains("post_run") && shown.contains("nodes are not known"), "{shown}");
        assert!(!cluster.pfs("post").exists());
        cluster.forebay(&format!("rescue {job}"));
        assert_eq!(fs::read_to_string(cluster.pfs("post")).unwrap(), "post\n");
    }

    /// teardown, of a server that is away: Slurm calls it again.
    fn of_a_teardown(&self) {
        let cluster = self.cluster;
        cluster.hold("before", "teardown");
        let job = self.submit(&[], "true");
        cluster.until_held("teardown");
        cluster.signal("KILL", "forebay serve");
        cluster.let_go("teardown");
        cluster.until("the teardown has failed", || {
            cluster
                .calls(Some(job))
                .iter()
                .any(|call| call.contains("--function teardown") && call.contains("exit 1"))
        });
        cluster.until("that is told", || cluster.shown(job).contains("teardown: "));
        let shown = cluster.shown(job);
        assert!(shown.contains("connect to the server"), "{shown}");
        cluster.start_server();
        assert_eq!(cluster.until_over(job), "COMPLETED", "{}", cluster.logs());
    }

    /// create_persistent and destroy_persistent.
    fn of_a_persistent_buffer(&self) {
        let cluster = self.cluster;
        let submit =
            |lines: &[&str], body: &str| cluster.submit(&cluster.script(lines, body), "").unwrap();
        let bad =
            submit(&["#BB create_persistent name=bad capacity=16MiB access_mode=private"], "true");
        // The script itself is shown too, so words of the answer count.
        cluster.until("that is told", || cluster.listed(bad, "%r").contains("is striped"));
        let shown = cluster.shown(bad).replace('_', " ");
        assert!(shown.contains("buffer is striped"), "{shown}");
        cluster.must(&format!("scancel {bad}"));
        let made = submit(&["#BB create_persistent name=good capacity=16MiB"], "true");
        assert_eq!(cluster.until_over(made), "COMPLETED", "{}", cluster.logs());
        let uses = submit(
            &["#DW persistentdw name=good"],
            "echo > @PFS@/uses; until [ -e @PFS@/used ]; do sleep 0.1; done",
        );
        cluster.until("a job uses it", || cluster.pfs("uses").exists());
        let ends = submit(&["#BB destroy_persistent name=good"], "true");
        cluster.until("that is told", || cluster.shown(ends).contains("is used by job"));
        assert!(cluster.session_is_there("good"));
        fs::write(cluster.pfs("used"), "").unwrap();
        assert_eq!(cluster.until_over(uses), "COMPLETED", "{}", cluster.logs());
        assert_eq!(cluster.until_over(ends), "COMPLETED", "{}", cluster.logs());
        cluster.until("it is gone", || !cluster.session_is_there("good"));
    }
}

/// What the user reads when a step fails, and how it goes on.
fn a_failure_in_each_step(plugin: Plugin) {
    let flags = "Flags=EnablePersistent,TeardownFailure";
    let options = Options {
        nodes: 1,
        burst_buffer_conf: if plugin == Plugin::Datawarp { flags } else { "" },
        site_conf: "patience_s = 1".into(),
        ..Options::default()
    };
    let cluster = Cluster::with(plugin, options);
    let failure = Failure { cluster: &cluster, plugin };
    failure.before_it_starts();
    failure.of_what_is_told();
    failure.of_a_mount();
    failure.of_an_unmount();
    failure.of_a_teardown();
    if plugin == Plugin::Datawarp {
        failure.of_a_persistent_buffer();
    }
    cluster.assert_clean();
}

#[test]
fn a_failure_in_each_step_is_told_and_can_be_mended_by_the_datawarp_plugin() {
    a_failure_in_each_step(Plugin::Datawarp);
}

#[test]
fn a_failure_in_each_step_is_told_and_can_be_mended_by_the_lua_plugin() {
    a_failure_in_each_step(Plugin::Lua);
}

/// Without `Flags=TeardownFailure` Slurm calls no teardown after a failure. The job waits with the reason, its buffer is there with
/// what only it has, and goes when somebody cancels the job.
#[test]
fn without_the_flag_that_is_recommended_a_failed_job_waits_with_all_it_has() {
    for plugin in [Plugin::Datawarp, Plugin::Lua] {
        let burst_buffer_conf = "Flags=DisablePersistent";
        let options = Options { nodes: 1, burst_buffer_conf, ..Options::default() };
        let cluster = Cluster::with(plugin, options);
        let input = "#DW stage_in type=file source=@PFS@/none destination=$DW_JOB_STRIPED/in";
        let job = cluster.submit(&cluster.script(&[BUFFER, input], "true"), "").unwrap();
        cluster.until("the job is held", || cluster.field(job, "Priority") == "0");
        let shown = cluster.shown(job).replace('_', " ");
        assert!(shown.contains("line 3"), "{plugin:?}: {shown}");
        assert!(cluster.session_is_there(&job.to_string()) && cluster.reserved() > 0);
        cluster.must(&format!("scancel {job}"));
        cluster.until_cancelled_by(plugin, job);
        let out = "#DW stage_out type=file source=$DW_JOB_STRIPED/a destination=@PFS@/gone/a";
        let script = cluster.script(&[BUFFER, out], "echo a > ${DW_JOB_STRIPED}a");
        let job = cluster.submit(&script, "").unwrap();
        cluster.until("the reason is told", || cluster.listed(job, "%r").contains("gone"));
        assert_eq!(cluster.field(job, "BurstBufferState"), "staging-out", "{}", cluster.logs());
        let record = cluster.base.join(format!("site-state/sessions/{job}.json"));
        let session: Value = serde_json::from_slice(&fs::read(record).unwrap()).unwrap();
        cluster.must(&format!(
            "{}/bin/forebay stage out {}:/a {} {}",
            cluster.base.display(),
            session["buffer"].as_str().unwrap(),
            cluster.pfs("rescued").display(),
            Cluster::SERVER
        ));
        assert_eq!(fs::read_to_string(cluster.pfs("rescued")).unwrap(), "a\n");
        cluster.must(&format!("scancel --hurry {job}"));
        cluster.until_over(job);
        cluster.assert_clean();
    }
}

/// One of three nodes does not answer when the job ends: it is named, and nobody waits for it longer than the limit.
#[test]
fn a_dead_node_holds_up_the_end_of_a_job_no_longer_than_its_limit() {
    const LIMIT_MS: f64 = 5_000.0;
    let cluster = Cluster::with(Plugin::Datawarp, Options { nodes: 3, ..Options::default() });
    let script = cluster.script(
        &[
            "#SBATCH -N 3",
            BUFFER,
            "#DW stage_out type=file source=$DW_JOB_STRIPED/out destination=@PFS@/out",
        ],
        "echo out > ${DW_JOB_STRIPED}out; echo > @PFS@/runs; until [ -e @PFS@/go ]; do sleep 0.1; done",
    );
    let job = cluster.submit(&script, "").unwrap();
    cluster.until("the job runs", || cluster.pfs("runs").exists());
    cluster.signal("STOP", "forebay agent --background --listen n3:");
    fs::write(cluster.pfs("go"), "").unwrap();
    assert_eq!(cluster.until_over(job), "COMPLETED", "{}", cluster.logs());
    assert_eq!(fs::read_to_string(cluster.pfs("out")).unwrap(), "out\n");
    let calls = cluster.calls(Some(job));
    for step in ["post_run", "teardown"] {
        let call = calls.iter().find(|call| call.contains(&format!("--function {step}"))).unwrap();
        assert!(call.contains("node n3") && !call.contains("node n1"), "{call}");
        let took_ms: f64 = call.split(' ').nth(2).unwrap().parse().unwrap();
        assert!(took_ms < LIMIT_MS + 5_000.0, "{call}");
    }
    // It comes back, with what it still had of the job.
    cluster.signal("CONT", "forebay agent --background --listen n3:");
    cluster.until("the node has nothing of it any more", || {
        cluster.forebay("reconcile");
        !cluster.on_node(3, "grep /run/forebay/jobs/ /proc/self/mountinfo").0
    });
    cluster.assert_clean();
}

/// Slurm kills a hook at its time limit. Of a function of the Lua plugin it would take that for success, if the function
/// did not look whether its program has ended by itself.
#[test]
fn a_hook_that_slurm_kills_does_not_count_as_done() {
    for plugin in [Plugin::Lua, Plugin::Datawarp] {
        let options = Options { burst_buffer_conf: "OtherTimeout=3", ..Options::default() };
        let cluster = Cluster::with(plugin, options);
        cluster.put("in", "input");
        let script = cluster.script(
            &[BUFFER, "#DW stage_in type=file source=@PFS@/in destination=$DW_JOB_STRIPED/in"],
            "cat ${DW_JOB_STRIPED}in > @PFS@/out",
        );
        cluster.signal("STOP", "forebay serve");
        let job = cluster.submit(&script, "").unwrap();
        cluster.until("the step has failed", || {
            cluster.field(job, "Priority") == "0" && cluster.shown(job).contains("setup")
        });
        cluster.signal("CONT", "forebay serve");
        cluster.until("its buffer is given back", || {
            cluster.field(job, "BurstBufferState") == "complete" && cluster.reserved() == 0
        });
        assert!(!cluster.pfs("out").exists(), "{}", cluster.logs());
        cluster.must(&format!("scontrol release {job}"));
        assert_eq!(cluster.until_over(job), "COMPLETED", "{}", cluster.logs());
        assert_eq!(fs::read_to_string(cluster.pfs("out")).unwrap(), "input");
        cluster.assert_clean();
    }
}
