//! The controller is started again in each state of a job's buffer, also while no server answers, and while what it asks
//! first fails.

use super::cluster::{Cluster, Options, Plugin};
use std::fs;

/// Started again in a state before the job starts: Slurm tears down at once and begins anew, a minute later if nobody says
/// otherwise.
fn begins_anew(cluster: &Cluster, job: u32) {
    let before = teardowns(cluster, job);
    cluster.restart_controller();
    cluster.until("the first try is torn down", || teardowns(cluster, job) > before);
    cluster.until("its buffer is gone", || {
        let state = cluster.field(job, "BurstBufferState");
        !cluster.session_is_there(&job.to_string())
            && ["complete", "pending"].contains(&state.as_str())
    });
}

fn teardowns(cluster: &Cluster, job: u32) -> usize {
    cluster.steps(job).iter().filter(|step| step.starts_with("teardown")).count()
}

fn a_controller_that_is_started_again(plugin: Plugin) {
    let cluster = Cluster::new(plugin);
    cluster.put("in", "input");
    // A controller that has just started counts a node when it has answered; a step for more nodes than those is put off
    // until another step ends, or with -I refused.
    let script = cluster.script(
        &[
            "#SBATCH -N 2",
            "#DW jobdw type=scratch access_mode=striped capacity=64MiB pool=flash",
            "#DW stage_in type=file source=@PFS@/in destination=$DW_JOB_STRIPED/in",
            "#DW stage_out type=file source=$DW_JOB_STRIPED/out destination=@PFS@/out",
        ],
        "until srun -I -N2 cat ${DW_JOB_STRIPED}in > ${DW_JOB_STRIPED}out; do sleep 0.1; done
echo > @PFS@/runs; until [ -e @PFS@/go ]; do sleep 0.1; done",
    );
    // Staging in, and no server answers.
    cluster.signal("STOP", "forebay serve");
    let job = cluster.submit(&script, "").unwrap();
    cluster.until_buffer(job, "staging-in");
    cluster.restart_controller();
    cluster.signal("CONT", "forebay serve");
    cluster.until("the first try is torn down", || {
        teardowns(&cluster, job) > 0 && !cluster.session_is_there(&job.to_string())
    });
    // Staged in: nodes are taken by another job.
    let holds = cluster.script(&["#SBATCH -N 2 --exclusive -t 5"], "sleep 300");
    let holder = cluster.submit(&holds, "").unwrap();
    cluster.until("the nodes are taken", || cluster.field(holder, "JobState") == "RUNNING");
    cluster.start_again(job);
    cluster.until_buffer(job, "staged-in");
    begins_anew(&cluster, job);
    cluster.must(&format!("scancel {holder}"));
    // Mounting on its nodes.
    cluster.hold("behind", "pre_run");
    cluster.start_again(job);
    cluster.until_held("pre_run");
    cluster.restart_controller();
    cluster.let_go("pre_run");
    cluster.until("the job runs", || {
        // Slurm may have put it back into the queue.
        if cluster.field(job, "JobState") == "PENDING" {
            cluster.start_again(job);
        }
        cluster.pfs("runs").exists()
    });
    // Running: nothing changes.
    cluster.restart_controller();
    // Unmounting, and copying its results, while no server answers: begun again.
    cluster.hold("before", "post_run");
    fs::write(cluster.pfs("go"), "").unwrap();
    cluster.until_held("post_run");
    cluster.restart_controller();
    cluster.signal("STOP", "forebay serve");
    cluster.let_go("post_run");
    cluster.until_asking("data_out");
    cluster.restart_controller();
    cluster.hold("before", "teardown");
    cluster.signal("CONT", "forebay serve");
    // Its end.
    cluster.until_held("teardown");
    assert_eq!(fs::read_to_string(cluster.pfs("out")).unwrap(), "inputinput", "{}", cluster.logs());
    cluster.restart_controller();
    cluster.let_go("teardown");
    assert_eq!(cluster.until_over(job), "COMPLETED", "{}{}", cluster.output(job), cluster.logs());
    assert_eq!(fs::read_to_string(cluster.pfs("out")).unwrap(), "inputinput", "{}", cluster.logs());
    let found = cluster.forebay("reconcile");
    assert_eq!(found["jobs_without_buffer"].as_array().unwrap().len(), 0, "{found}");
    cluster.assert_clean();
}

#[test]
fn a_controller_started_again_in_each_state_goes_on_by_the_datawarp_plugin() {
    a_controller_that_is_started_again(Plugin::Datawarp);
}

#[test]
fn a_controller_started_again_in_each_state_goes_on_by_the_lua_plugin() {
    a_controller_that_is_started_again(Plugin::Lua);
}

/// A burst_buffer.lua that is not there, is no Lua, or lacks a function which Slurm wants: the controller comes up, and its log
/// names the file, or the function.
fn has_no_use_of_its_script(cluster: &Cluster) {
    let path = cluster.base.join("burst_buffer.lua");
    let whole = fs::read_to_string(&path).unwrap();
    let lacking = whole.replace("function slurm_bb_get_status", "function slurm_bb_of_later");
    assert_ne!(whole, lacking);
    for (text, word) in [
        (None, "burst_buffer.lua"),
        (Some("function ("), "burst_buffer.lua"),
        (Some(lacking.as_str()), "missing required function slurm_bb_get_status"),
    ] {
        match text {
            Some(text) => fs::write(&path, text).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        let before = cluster.controller_log().len();
        cluster.restart_controller();
        cluster.until(&format!("{word} is named, of {text:?}"), || {
            let log = cluster.controller_log();
            let new = log.get(before..).unwrap_or_default();
            new.lines().any(|line| line.contains("error: ") && line.contains(word))
        });
    }
    fs::write(&path, whole).unwrap();
}

/// `pools` fails when the controller starts: it comes up and says why, runs jobs without a buffer, and those with one from
/// its next question on that is answered.
fn a_controller_whose_pools_fail(plugin: Plugin) {
    const KNOWN: &str = "TotalSpace=256MiB";
    let cluster = Cluster::with(plugin, Options { nodes: 1, ..Options::default() });
    cluster.put("in", "input");
    let shown = || cluster.sh("scontrol show burst").1;
    cluster.until("the pool is known", || shown().contains(KNOWN));
    if plugin == Plugin::Lua {
        has_no_use_of_its_script(&cluster);
    }
    cluster.fail("pools", Some("no pool is known here"));
    cluster.restart_controller();
    cluster.until("it is told", || cluster.controller_log().contains("no pool is known here"));
    assert!(!shown().contains(KNOWN), "{}", cluster.logs());
    let plain = cluster.submit(&cluster.script(&["#SBATCH -N 1"], "true"), "").unwrap();
    assert_eq!(cluster.until_over(plain), "COMPLETED", "{}", cluster.logs());
    let script = cluster.script(
        &[
            "#SBATCH -N 1",
            "#DW jobdw type=scratch access_mode=striped capacity=64MiB pool=flash",
            "#DW stage_in type=file source=@PFS@/in destination=$DW_JOB_STRIPED/in",
            "#DW stage_out type=file source=$DW_JOB_STRIPED/out destination=@PFS@/out",
        ],
        "cp ${DW_JOB_STRIPED}in ${DW_JOB_STRIPED}out",
    );
    if plugin == Plugin::Lua {
        // Slurm knows no pool of that name. By the other plugin it does not look at a job that names the default pool.
        cluster.submit(&script, "").expect_err("it is refused");
    }
    cluster.fail("pools", None);
    // Slurm asks every 30 s.
    cluster.until("the pool is known again", || shown().contains(KNOWN));
    let job = cluster.submit(&script, "").unwrap();
    assert_eq!(cluster.until_over(job), "COMPLETED", "{}", cluster.logs());
    assert_eq!(fs::read_to_string(cluster.pfs("out")).unwrap(), "input", "{}", cluster.logs());
    cluster.assert_clean();
}

#[test]
fn a_controller_whose_pools_fail_at_its_start_works_when_they_answer_by_the_lua_plugin() {
    a_controller_whose_pools_fail(Plugin::Lua);
}

#[test]
fn a_controller_whose_pools_fail_at_its_start_works_when_they_answer_by_the_datawarp_plugin() {
    a_controller_whose_pools_fail(Plugin::Datawarp);
}
