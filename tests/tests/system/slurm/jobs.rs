//! Whole jobs: staged in, run on two nodes with MPI, staged out, and nothing left.

use super::cluster::{Cluster, Plugin, repository};
use forebay_tests::procs;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Most milliseconds from the start of a job to its mounts, for each of its nodes.
const MOUNT_LIMIT_MS: f64 = 1_000.0;
/// What tests/programs/mpi_files.c checks: two ranks, 16 transfers, two rounds, by MPI-IO and by read(2).
const CHECKED: u64 = 2 * 2 * 16 * 2 * 47_008;

/// Every step of a job with input, results, and files that one node writes and the other reads, also by MPI.
fn a_job_on_two_nodes(plugin: Plugin) {
    let cluster = Cluster::new(plugin);
    let program = cluster.base.join("mpi_files");
    let mut mpicc = Command::new("mpicc.openmpi");
    mpicc.args(["-O2", "-o"]).arg(&program).arg(repository("tests/programs/mpi_files.c"));
    procs::run(mpicc.current_dir(&cluster.base));
    cluster.put("in/deep/a", "alpha");
    cluster.put("single", "delta");
    // Another user's processes cannot enter the job's directory; root's can. Its output names the command that it is at.
    let body = "set -ex
[ \"$(cat ${DW_JOB_STRIPED}in/deep/a)\" = alpha ]
mkdir ${DW_JOB_STRIPED}results
srun -N2 -n2 bash -c 'hostname > ${DW_JOB_STRIPED}results/$SLURMD_NODENAME; grep -c \" /run/forebay/jobs/\" /proc/self/mountinfo > ${DW_JOB_STRIPED}results/mounts.$SLURMD_NODENAME'
srun -N1 -n1 -w n2 bash -c 'cat ${DW_JOB_STRIPED}results/n1 > ${DW_JOB_STRIPED}results/n1-on-n2'
ls -ld /run/forebay/jobs/$SLURM_JOB_ID > ${DW_JOB_STRIPED}results/door
echo \"$DW_JOB_STRIPED $FOREBAY_BUFFER\" > ${DW_JOB_STRIPED}results/environment
cp ${DW_JOB_STRIPED}file ${DW_JOB_STRIPED}results/file
export OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_mpi_yield_when_idle=1 TMPDIR=/tmp HOME=/tmp
mpirun -n 2 --map-by node --bind-to none hostname > ${DW_JOB_STRIPED}results/ranks
mpirun -n 2 --map-by node --bind-to none PROGRAM strided 16 2 ${DW_JOB_STRIPED%/} > ${DW_JOB_STRIPED}results/mpi
: > @PFS@/waiting; until [ -e @PFS@/go ]; do sleep 0.1; done";
    let script = cluster.script(
        &[
            "#SBATCH -N 2",
            "#DW jobdw type=scratch access_mode=striped capacity=64MiB pool=flash",
            "#DW stage_in type=directory source=@PFS@/in destination=$DW_JOB_STRIPED/in",
            "#DW stage_in type=file source=@PFS@/single destination=$DW_JOB_STRIPED/file",
            "#DW stage_out type=directory source=$DW_JOB_STRIPED/results \\",
            "#DW   destination=@PFS@/out",
        ],
        &body.replace("PROGRAM", program.to_str().unwrap()),
    );
    let job = cluster.submit(&script, "").unwrap();
    cluster.until("the job runs", || {
        let state = cluster.field(job, "JobState");
        assert!(!state.starts_with("FAIL"), "{}{}", cluster.output(job), cluster.logs());
        cluster.pfs("waiting").exists()
    });
    let mount = format!("/run/forebay/jobs/{job}/job");
    let (stranger, said) =
        cluster.on_node(1, &format!("setpriv --reuid=1 --regid=1 --clear-groups ls {mount}"));
    assert!(!stranger && said.contains("Permission denied"), "{said}");
    let (_, said) = cluster
        .on_node(1, &format!("setpriv --reuid=65534 --regid=65534 --clear-groups ls {mount}"));
    assert_eq!(said, "file\nin\nresults\nstrided\n");
    let shown = cluster.must("scontrol show burst");
    assert!(shown.contains(&format!("JobID={job} ")) && shown.contains("64MiB"), "{shown}");
    let status = cluster.must("scontrol show bbstat sessions");
    assert!(status.contains("SLURM 65534"), "{status}");
    let tables = cluster.must("scontrol show bbstat all");
    let has = |some: &str, last: &str| {
        tables.lines().any(|line| {
            let mut words = line.split_whitespace();
            words.clone().any(|word| word == some) && words.next_back() == Some(last)
        })
    };
    // Its instance, its configuration, which two nodes have mounted, and these.
    for (some, last) in [("64.0", "false"), ("scratch", "2"), ("n1", "true"), ("n2", "true")] {
        assert!(has(some, last), "{some}, {last}: {tables}");
    }
    fs::write(cluster.pfs("go"), "").unwrap();
    assert_eq!(cluster.until_over(job), "COMPLETED", "{}{}", cluster.output(job), cluster.logs());
    let out = |name: &str| fs::read_to_string(cluster.pfs("out").join(name)).unwrap();
    assert_eq!(
        (out("n1"), out("n2"), out("n1-on-n2")),
        ("n1\n".into(), "n2\n".into(), "n1\n".into())
    );
    assert_eq!((out("mounts.n1"), out("mounts.n2")), ("1\n".into(), "1\n".into()));
    assert_eq!(out("file"), "delta");
    let mut ranks: Vec<String> = out("ranks").lines().map(str::to_string).collect();
    ranks.sort();
    assert_eq!(ranks, ["n1", "n2"]);
    assert_eq!(out("mpi"), format!("checked {CHECKED} bytes\n"));
    let calls = cluster.calls(Some(job));
    let mounted = calls.iter().find(|call| call.contains("--function pre_run")).unwrap();
    let took_ms: f64 = mounted.split(' ').nth(2).unwrap().parse().unwrap();
    assert!(took_ms < 2.0 * MOUNT_LIMIT_MS, "{mounted}");
    assert_eq!(out("environment"), format!("{mount}/ {mount}\n"));
    let meta = fs::metadata(cluster.pfs("out/n1")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&meta), super::cluster::USER);
    let expected =
        ["setup", "data_in", "real_size", "paths", "pre_run", "post_run", "data_out", "teardown"];
    assert_eq!(cluster.steps(job), expected, "{}", cluster.logs());
    cluster.assert_clean();
}

#[test]
fn a_job_on_two_nodes_by_the_datawarp_plugin() {
    a_job_on_two_nodes(Plugin::Datawarp);
}

#[test]
fn a_job_on_two_nodes_by_the_lua_plugin() {
    a_job_on_two_nodes(Plugin::Lua);
}

/// Most milliseconds of half of the calls of a step, while sixteen jobs on two nodes of one machine are at it.
const MANY_LIMIT_MS: f64 = 5_000.0;

/// Tells how many jobs ended in a minute, and how long each step took. No step that holds a job, its nodes or its space is slow.
fn tell_times(cluster: &Cluster, jobs: usize, took: Duration) {
    let each_minute = jobs as f64 * 60.0 / took.as_secs_f64();
    let mut text = format!("{jobs} jobs in {took:.1?}: {each_minute:.1} a minute\n");
    text += "step          calls     median       95 %    longest (ms)\n";
    let all = cluster.step_times_ms();
    for (step, times_ms) in &all {
        let at = |percent: usize| times_ms[(times_ms.len() - 1) * percent / 100];
        let (calls, median, most, longest) = (times_ms.len(), at(50), at(95), at(100));
        text += &format!("{step:<12} {calls:>6} {median:>10.1} {most:>10.1} {longest:>10.1}\n");
    }
    println!("{text}");
    // A test that passes shows nothing of what it prints.
    let file = format!("slurm-times-{jobs}.txt");
    fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join(file), &text).unwrap();
    for step in ["setup", "pre_run", "post_run", "teardown"] {
        let times_ms = all.get(step).unwrap_or_else(|| panic!("{step} was not called: {text}"));
        assert!(times_ms.len() >= jobs, "{step}: {text}");
        let median_ms = times_ms[times_ms.len() / 2];
        assert!(median_ms < MANY_LIMIT_MS, "{step}: {text}{}", cluster.logs());
    }
}

/// So many short jobs, several at once. How long they take is in target/tmp/slurm-times-JOBS.txt then.
fn short_jobs_leave_nothing(jobs: usize) {
    let cluster = Cluster::new(Plugin::Datawarp);
    let script = cluster.script(
        &["#DW jobdw type=scratch access_mode=striped capacity=16MiB pool=flash"],
        "echo x > ${DW_JOB_STRIPED}n && echo >> @PFS@/all",
    );
    let begun = Instant::now();
    let job = cluster.submit(&script, &format!("--array=1-{jobs}")).unwrap();
    let all = || fs::read_to_string(cluster.pfs("all")).unwrap_or_default().len();
    // Each takes a place among sixteen for a second or two.
    for quarter in 1..=4 {
        let seen = jobs * quarter / 4;
        cluster.until(&format!("{seen} jobs of {job}"), || all() >= seen);
    }
    let empty = || fs::read_dir(cluster.base.join("site-state/sessions")).unwrap().next().is_none();
    cluster.until("the last is over", empty);
    let took = begun.elapsed();
    assert_eq!(all(), jobs);
    tell_times(&cluster, jobs, took);
    cluster.assert_clean();
}

#[test]
fn two_hundred_short_jobs_leave_nothing() {
    short_jobs_leave_nothing(200);
}

/// More than there is room for at once.
#[test]
fn twenty_short_jobs_leave_nothing() {
    short_jobs_leave_nothing(20);
}
