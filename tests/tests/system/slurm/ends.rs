//! Jobs that end before their time, in each state of their buffer, by `scancel` or a time limit, and jobs that Slurm has
//! forgotten: nothing is lost that was not given up, and nothing is left.

use super::cluster::{Cluster, Options, Plugin};
use std::fs;

const BUFFER: &str = "#DW jobdw type=scratch access_mode=striped capacity=64MiB pool=flash";
const OUT: &str = "#DW stage_out type=file source=$DW_JOB_STRIPED/result destination=@PFS@/";

/// A job that writes its result, says that it runs, and waits to be let go.
fn submitted(cluster: &Cluster, name: &str, args: &str) -> u32 {
    let out = format!("{OUT}{name}");
    let body = format!(
        "echo {name} > ${{DW_JOB_STRIPED}}result; echo > @PFS@/{name}.runs\n\
         until [ -e @PFS@/{name}.go ]; do sleep 0.1; done"
    );
    cluster.submit(&cluster.script(&["#SBATCH -N 2", BUFFER, &out], &body), args).unwrap()
}

/// The same, when it runs.
fn waiting(cluster: &Cluster, name: &str) -> u32 {
    let job = submitted(cluster, name, "");
    cluster.until(&format!("{name} runs"), || cluster.pfs(&format!("{name}.runs")).exists());
    job
}

fn end(cluster: &Cluster, name: &str) {
    fs::write(cluster.pfs(&format!("{name}.go")), "").unwrap();
}

fn result(cluster: &Cluster, name: &str) -> Option<String> {
    fs::read_to_string(cluster.pfs(name)).ok()
}

/// The step of a job stands still, `before` it begins or `behind` its work.
fn held(cluster: &Cluster, when: &str, step: &str, name: &str) -> u32 {
    cluster.hold(when, step);
    let job = submitted(cluster, name, "");
    cluster.until_held(step);
    job
}

/// Cancelled before it starts: all that was made is given back at once.
fn before_it_starts(cluster: &Cluster, plugin: Plugin) {
    // Nothing was begun.
    let job = submitted(cluster, "pending", "--hold");
    assert_eq!(cluster.field(job, "BurstBufferState"), "pending");
    cluster.must(&format!("scancel {job}"));
    assert_eq!(cluster.until_over(job), "CANCELLED");
    assert_eq!(cluster.steps(job), [""; 0]);
    // Staged in, waiting for nodes that another job has.
    let holds = cluster.script(&["#SBATCH -N 2 --exclusive -t 5"], "sleep 300");
    let holder = cluster.submit(&holds, "").unwrap();
    cluster.until("the nodes are taken", || cluster.field(holder, "JobState") == "RUNNING");
    let job = submitted(cluster, "staged", "");
    cluster.until_buffer(job, "staged-in");
    cluster.must(&format!("scancel {job}"));
    assert_eq!(cluster.until_over(job), "CANCELLED", "{}", cluster.logs());
    assert_eq!(cluster.steps(job).last().map(String::as_str), Some("teardown --hurry"));
    cluster.must(&format!("scancel {holder}"));
    // In each step. What was made and mounted when it is killed is torn down.
    for (when, step, state) in [
        ("before", "setup", "staging-in"),
        ("behind", "setup", "staging-in"),
        ("before", "data_in", "staging-in"),
        ("before", "pre_run", "pre-run"),
        ("behind", "pre_run", "pre-run"),
    ] {
        let job = held(cluster, when, step, "started");
        assert_eq!(cluster.field(job, "BurstBufferState"), state);
        cluster.must(&format!("scancel {job}"));
        cluster.let_go(step);
        cluster.until_cancelled_by(plugin, job);
        assert!(!cluster.pfs("started.runs").exists(), "{when} {step}");
        cluster.until("its buffer is gone", || cluster.reserved() == 0);
    }
    // The server does not answer.
    cluster.signal("STOP", "forebay serve");
    let job = submitted(cluster, "stopped", "");
    cluster.until_buffer(job, "staging-in");
    cluster.must(&format!("scancel {job}"));
    cluster.signal("CONT", "forebay serve");
    cluster.until_cancelled_by(plugin, job);
}

/// Cancelled while it runs or later: its results are staged out, but where it is said to hurry.
fn when_it_has_started(cluster: &Cluster, plugin: Plugin) {
    let job = waiting(cluster, "plain");
    cluster.must(&format!("scancel {job}"));
    assert_eq!(cluster.until_over(job), "CANCELLED");
    assert_eq!(result(cluster, "plain").as_deref(), Some("plain\n"), "{}", cluster.logs());
    let job = waiting(cluster, "hurry");
    cluster.must(&format!("scancel --hurry {job}"));
    assert_eq!(cluster.until_over(job), "CANCELLED");
    assert_eq!(result(cluster, "hurry"), None);
    // In the steps after its end a plain one changes nothing.
    for step in ["post_run", "data_out", "teardown"] {
        cluster.hold("before", step);
        let job = waiting(cluster, step);
        end(cluster, step);
        cluster.until_held(step);
        // Slurm has nothing to cancel, and may say so.
        cluster.sh(&format!("scancel {job}"));
        cluster.let_go(step);
        assert_eq!(cluster.until_over(job), "COMPLETED", "{step}: {}", cluster.logs());
        assert_eq!(result(cluster, step), Some(format!("{step}\n")), "{}", cluster.logs());
    }
    // One that hurries tears down while the step is under way, and what that was about to do is not done.
    for step in ["post_run", "data_out"] {
        let name = format!("{step}.hurry");
        cluster.hold("before", step);
        let job = waiting(cluster, &name);
        end(cluster, &name);
        cluster.until_held(step);
        cluster.must(&format!("scancel --hurry {job}"));
        cluster.until("it is torn down", || {
            cluster.steps(job).last().map(String::as_str) == Some("teardown --hurry")
                || plugin == Plugin::Lua && cluster.teardown_was_killed(job)
        });
        cluster.let_go(step);
        if is_over_in_a_hurry(cluster, plugin, job) {
            assert_eq!(result(cluster, &name), None, "{step}");
        }
    }
    let job = waiting(cluster, "out");
    cluster.signal("STOP", "forebay serve");
    end(cluster, "out");
    cluster.until_buffer(job, "staging-out");
    cluster.must(&format!("scancel --hurry {job}"));
    cluster.signal("CONT", "forebay serve");
    is_over_in_a_hurry(cluster, plugin, job);
    cluster.until("nothing is left", || cluster.reserved() == 0);
}

/// Waits for the end of a job that has run and was cancelled with `--hurry`. False: Slurm's Lua plugin has killed the teardown;
/// it calls it again at its next start, without that word, so what the job left is kept, and given up here.
fn is_over_in_a_hurry(cluster: &Cluster, plugin: Plugin, job: u32) -> bool {
    let is_killed = || plugin == Plugin::Lua && cluster.teardown_was_killed(job);
    cluster.until(&format!("the end of job {job}, or of its teardown"), || {
        let state = cluster.field(job, "BurstBufferState");
        !state.is_empty() && cluster.is_last_state(job, &state) || is_killed()
    });
    let is_killed = is_killed();
    if is_killed {
        cluster.restart_controller();
    }
    cluster.until_over(job);
    for kept in cluster.forebay("rescue")["kept_jobs"].as_array().unwrap() {
        assert!(is_killed, "{kept}{}", cluster.logs());
        cluster.forebay(&format!("rescue --discard {}", kept["buffer"].as_str().unwrap()));
    }
    !is_killed
}

/// Cancelled in the moment in which its stage-in ends; by the DataWarp plugin several at once. The Lua plugin runs two such
/// functions at once at most, and ends one that stands still after a minute.
fn when_its_stage_in_ends(cluster: &Cluster, plugin: Plugin) {
    let count = if plugin == Plugin::Lua { 1 } else { 3 };
    cluster.hold("behind", "real_size");
    let jobs: Vec<u32> = (0..count).map(|_| submitted(cluster, "moment", "")).collect();
    cluster.until("all of them are staged in", || {
        jobs.iter().all(|job| cluster.steps(*job).last().is_some_and(|step| step == "real_size"))
    });
    cluster.until_held("real_size");
    let all = jobs.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    let at = cluster.base.join("at/behind.real_size");
    cluster.must(&format!("rm {}; scancel {all}", at.display()));
    cluster.let_go("real_size");
    for job in jobs {
        cluster.until_cancelled_by(plugin, job);
    }
    assert_eq!(cluster.reserved(), 0, "{}", cluster.logs());
}

fn scancel_in_each_state(plugin: Plugin) {
    let cluster = Cluster::new(plugin);
    before_it_starts(&cluster, plugin);
    when_it_has_started(&cluster, plugin);
    when_its_stage_in_ends(&cluster, plugin);
    cluster.assert_clean();
}

#[test]
fn scancel_in_each_state_leaves_nothing_by_the_datawarp_plugin() {
    scancel_in_each_state(Plugin::Datawarp);
}

#[test]
fn scancel_in_each_state_leaves_nothing_by_the_lua_plugin() {
    scancel_in_each_state(Plugin::Lua);
}

/// Put back into the queue while it runs: what it has written is staged out, its buffer is given back, and it begins anew
/// with a buffer of its own, into which its input is staged as it is by then.
fn a_requeued_job_begins_anew(plugin: Plugin) {
    let cluster = Cluster::with(plugin, Options { nodes: 1, ..Options::default() });
    cluster.put("in", "first");
    let input = "#DW stage_in type=file source=@PFS@/in destination=$DW_JOB_STRIPED/in";
    let out = format!("{OUT}out");
    let body =
        "set -e; [ ! -e ${DW_JOB_STRIPED}result ]; cp ${DW_JOB_STRIPED}in ${DW_JOB_STRIPED}result
echo >> @PFS@/runs; until [ -e @PFS@/go ]; do sleep 0.1; done";
    let script = cluster.script(&["#SBATCH -N 1 --requeue", BUFFER, input, &out], body);
    let job = cluster.submit(&script, "").unwrap();
    let runs = || result(&cluster, "runs").unwrap_or_default().len();
    let count = |step: &str| cluster.steps(job).iter().filter(|name| *name == step).count();
    cluster.until("the job runs", || runs() == 1);
    cluster.must(&format!("scontrol requeue {job}"));
    cluster.until("its first buffer is given back", || {
        count("teardown") > 0 && !cluster.session_is_there(&job.to_string())
    });
    assert_eq!(result(&cluster, "out").as_deref(), Some("first"), "{}", cluster.logs());
    // Slurm lets it begin two minutes later at the earliest, so nothing of it is there now.
    cluster.assert_clean();
    cluster.put("in", "second");
    cluster.until("it is back in the queue", || cluster.field(job, "JobState") == "PENDING");
    cluster.until("the job runs again", || {
        if count("setup") == 1 {
            cluster.start_again(job);
        }
        runs() == 2
    });
    assert_eq!(cluster.field(job, "Restarts"), "1");
    fs::write(cluster.pfs("go"), "").unwrap();
    assert_eq!(cluster.until_over(job), "COMPLETED", "{}{}", cluster.output(job), cluster.logs());
    assert_eq!(result(&cluster, "out").as_deref(), Some("second"), "{}", cluster.logs());
    for step in ["setup", "data_in", "pre_run", "post_run", "data_out"] {
        assert_eq!(count(step), 2, "{step}: {:?}", cluster.steps(job));
    }
    assert_eq!(count("teardown --hurry"), 0, "{:?}", cluster.steps(job));
    cluster.assert_clean();
}

#[test]
fn a_requeued_job_begins_anew_and_loses_nothing_by_the_lua_plugin() {
    a_requeued_job_begins_anew(Plugin::Lua);
}

#[test]
fn a_requeued_job_begins_anew_and_loses_nothing_by_the_datawarp_plugin() {
    a_requeued_job_begins_anew(Plugin::Datawarp);
}

/// A teardown that its caller does not survive, as Slurm does to a job that is cancelled while it waits, and a job whose
/// teardown was killed before it did anything.
#[test]
fn a_teardown_whose_caller_is_killed_goes_on_and_one_that_never_began_is_made_up_for() {
    let cluster = Cluster::new(Plugin::Lua);
    cluster.hold("behind", "data_in");
    let job = submitted(&cluster, "waits", "");
    cluster.until_held("data_in");
    cluster.signal("STOP", "forebay serve");
    cluster.must(&format!("scancel {job}"));
    // On a busy machine Slurm does what this test is about: what it kills for the cancelled job may be the teardown that it has
    // just begun, before that has asked for anything.
    let is_killed = || cluster.teardown_was_killed(job);
    cluster
        .until("the teardown runs, or was killed", || cluster.is_asking("teardown") || is_killed());
    // The process group of the call, but for the program itself, which goes on.
    let (goes_on, said) =
        cluster.sh("shell=$(pgrep -f \"^sh -c exec 2>/dev/null.*teardown\") || true; \
         if [ -n \"$shell\" ]; then \
           kill -KILL -- -$(ps -o pgid= -p $shell | tr -d ' ') || true; \
           while kill -0 $shell 2> /dev/null; do sleep 0.01; done; \
         fi; sleep 0.2; pgrep -f \"^dw_wlm_cli --function teardown\"");
    assert!(goes_on || is_killed(), "{said}\n{}", cluster.logs());
    cluster.signal("CONT", "forebay serve");
    cluster.let_go("data_in");
    if goes_on {
        cluster.until("the buffer is gone", || {
            !cluster.session_is_there(&job.to_string()) && cluster.reserved() == 0
        });
    }
    cluster.until_cancelled(job);
    // One that never began.
    cluster.hold("before", "teardown");
    cluster.hold("behind", "data_in");
    let job = submitted(&cluster, "never", "");
    cluster.until_held("data_in");
    let found = cluster.forebay("reconcile");
    assert_eq!(found["ended_jobs"].as_array().unwrap().len(), 0, "it is young: {found}");
    cluster.must(&format!("scancel {job}"));
    cluster.until("the teardown is called, or killed", || {
        cluster.is_held("teardown") || cluster.teardown_was_killed(job)
    });
    cluster.let_go("data_in");
    cluster.age(&job.to_string());
    let found = cluster.forebay("reconcile");
    assert_eq!(found["ended_jobs"][0], job.to_string(), "{found}{}", cluster.logs());
    // Slurm counts it still: the two records differ.
    assert_eq!(found["jobs_without_buffer"][0], job.to_string(), "{found}");
    assert_eq!(cluster.reserved(), 0);
    cluster.let_go("teardown");
    cluster.until_cancelled(job);
    let found = cluster.forebay("reconcile");
    assert_eq!(found["jobs_without_buffer"].as_array().unwrap().len(), 0, "{found}");
    cluster.assert_clean();
}

/// A job that its time limit ends. What it has written is staged out; what cannot be is kept and listed.
#[test]
fn a_job_that_its_time_limit_ends_loses_nothing() {
    let cluster = Cluster::with(Plugin::Datawarp, Options { nodes: 1, ..Options::default() });
    cluster.put("cached/x", "");
    let ended = |name: &str, lines: &[&str], body: &str| {
        let body = format!("{body}\necho > @PFS@/{name}.runs; sleep 300");
        let job = cluster.submit(&cluster.script(lines, &body), "-t 1").unwrap();
        cluster.until(&format!("{name} runs"), || cluster.pfs(&format!("{name}.runs")).exists());
        cluster.must(&format!("scontrol update jobid={job} endtime=now"));
        assert_eq!(cluster.until_over(job), "TIMEOUT", "{}", cluster.logs());
        job
    };
    let gone = format!("{OUT}gone/result");
    let good = "#DW stage_out type=file source=$DW_JOB_STRIPED/good destination=@PFS@/good";
    let body = "echo kept > ${DW_JOB_STRIPED}result; echo good > ${DW_JOB_STRIPED}good";
    let job = ended("scratch", &[BUFFER, &gone, good], body);
    assert_eq!(result(&cluster, "good").as_deref(), Some("good\n"));
    let shown = cluster.shown(job);
    assert!(shown.contains("line 3") && shown.contains("forebay rescue job-"), "{shown}");
    let kept = cluster.forebay("rescue");
    assert!(
        kept["kept_jobs"][0]["missing_results"][0].as_str().unwrap().contains("gone"),
        "{kept}"
    );
    cluster.put("gone/x", "");
    cluster.forebay(&format!("rescue {job}"));
    assert_eq!(result(&cluster, "gone/result").as_deref(), Some("kept\n"));
    // A cache that had drained nothing yet.
    let cache =
        "#DW jobdw type=cache access_mode=striped pfs=@PFS@/cached capacity=64MiB pool=flash";
    ended("cache", &[cache], "dd if=/dev/zero of=${DW_JOB_STRIPED_CACHE}late bs=1M count=4");
    assert_eq!(fs::metadata(cluster.pfs("cached/late")).unwrap().len(), 4 << 20);
    cluster.assert_clean();
}

/// A job that Slurm has forgotten without a teardown: its state was wiped.
#[test]
fn a_job_that_slurm_has_forgotten_is_torn_down_and_its_results_are_kept() {
    let cluster = Cluster::new(Plugin::Lua);
    let job = waiting(&cluster, "forgotten");
    // Old enough not to be a job that Slurm is about to tell of.
    cluster.age(&job.to_string());
    let found = cluster.forebay("reconcile");
    assert_eq!(found["ended_jobs"].as_array().unwrap().len(), 0, "it runs: {found}");
    assert_eq!(found["jobs_without_buffer"].as_array().unwrap().len(), 0, "{found}");
    cluster.must(
        "pkill -9 slurmctld; pkill -9 slurmscriptd; while pgrep -x slurmctld > /dev/null; do sleep 0.05; done; \
         rm -rf $(dirname $SLURM_CONF)/state; mkdir $(dirname $SLURM_CONF)/state; slurmctld; \
         until timeout 5 scontrol ping | grep -q 'is UP'; do sleep 0.05; done",
    );
    let found = cluster.forebay("reconcile");
    assert_eq!(found["ended_jobs"][0], job.to_string(), "{found}{}", cluster.logs());
    let kept = cluster.forebay("rescue");
    assert_eq!(kept["kept_jobs"][0]["job"], job.to_string());
    cluster.forebay(&format!("rescue {job}"));
    assert_eq!(result(&cluster, "forgotten").as_deref(), Some("forgotten\n"));
    cluster.assert_clean();
}
