//! Swap space of jobs: what it is for, and that none is left, whoever is killed.

use super::cluster::{Cluster, Options, Plugin};
use std::fs;
use std::path::PathBuf;

const BUFFER: &str = "#DW jobdw type=scratch access_mode=striped capacity=16MiB pool=flash";

fn cluster(plugin: Plugin) -> Cluster {
    Cluster::with(plugin, Options { nodes: 1, has_swap: true, ..Options::default() })
}

/// A memory cgroup of this test's, of either version of cgroups; gone with it.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(limit_bytes: u64) -> Cgroup {
        let name = format!("forebay-swap-{}", std::process::id());
        let v1 = PathBuf::from("/sys/fs/cgroup/memory");
        let (dir, limit) = match v1.is_dir() {
            true => (v1.join(name), "memory.limit_in_bytes"),
            false => (PathBuf::from("/sys/fs/cgroup").join(name), "memory.max"),
        };
        fs::create_dir(&dir).unwrap();
        let group = Cgroup(dir);
        fs::write(group.0.join(limit), limit_bytes.to_string())
            .expect("the kernel has a cgroup controller of memory, for groups below the root");
        group
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Its last process may be ending just now.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

/// A program that needs three times the memory that its cgroup has is killed, and with swap it runs through.
#[test]
fn a_program_that_needs_more_memory_than_its_cgroup_has_runs_through_with_swap() {
    let cluster = cluster(Plugin::Datawarp);
    let group = Cgroup::new(32 << 20);
    let run = |lines: &[&str]| {
        let body = "echo $$ > @PFS@/$SLURM_JOB_ID.pid
until [ -e @PFS@/$SLURM_JOB_ID.go ]; do sleep 0.1; done
dd if=/dev/zero of=/dev/null bs=96M count=1 && echo through";
        let job = cluster.submit(&cluster.script(lines, body), "").unwrap();
        let pid = cluster.pfs(&format!("{job}.pid"));
        cluster.until("the job runs", || {
            fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n'))
        });
        cluster.must(&format!("cat {} > {}/cgroup.procs", pid.display(), group.0.display()));
        (job, move |cluster: &Cluster| {
            fs::write(cluster.pfs(&format!("{job}.go")), "").unwrap();
            cluster.until_over(job)
        })
    };
    let (job, end) = run(&[BUFFER]);
    assert_eq!(end(&cluster), "FAILED", "{}", cluster.output(job));
    assert!(!cluster.output(job).contains("through"), "{}", cluster.output(job));
    let (job, end) = run(&["#DW swap 128MiB"]);
    assert_eq!(cluster.swaps(), 1, "{}", cluster.logs());
    let shown = cluster.must("scontrol show bbstat instances");
    assert!(shown.contains("swap of 128 MiB on 1 nodes"), "{shown}");
    let size = cluster.must(&format!(
        "{}/bin/dw_wlm_cli --function real_size --token {job}",
        cluster.base.display()
    ));
    assert_eq!(size, r#"{"units":"bytes","capacity":0,"swap_bytes_per_node":134217728}"#);
    assert_eq!(end(&cluster), "COMPLETED", "{}{}", cluster.output(job), cluster.logs());
    assert!(cluster.output(job).contains("through"), "{}", cluster.output(job));
    cluster.assert_clean();
}

/// A job that runs until it is let go.
fn waiting(cluster: &Cluster, name: &str) -> u32 {
    let body =
        format!("echo > @PFS@/{name}.runs; until [ -e @PFS@/{name}.go ]; do sleep 0.1; done");
    let job = cluster.submit(&cluster.script(&["#DW swap 64MiB", BUFFER], &body), "").unwrap();
    cluster.until(&format!("{name} runs"), || cluster.pfs(&format!("{name}.runs")).exists());
    assert_eq!(cluster.swaps(), 1, "{}", cluster.logs());
    job
}

#[test]
fn swap_space_is_not_left_by_an_agent_that_was_killed() {
    let cluster = cluster(Plugin::Lua);
    // It is away when the job ends: nobody waits for it, and it comes back with what it had of the job.
    let job = waiting(&cluster, "away");
    cluster.signal("KILL", "forebay agent");
    fs::write(cluster.pfs("away.go"), "").unwrap();
    cluster.until_over(job);
    assert_eq!(cluster.swaps(), 1);
    let found = cluster.forebay("reconcile");
    assert_eq!(found["unreachable_nodes"].as_array().unwrap().len(), 1, "{found}");
    cluster.start_agent(1);
    let found = cluster.forebay("reconcile");
    assert_eq!(found["ended_on_nodes"][0]["job"], job.to_string(), "{found}{}", cluster.logs());
    cluster.assert_clean();
    // It was killed while it was about the job: its next start goes on.
    let job = waiting(&cluster, "amid");
    cluster.signal("KILL", "forebay agent");
    let (_, said) = cluster.on_node(1, &format!("touch /run/forebay/jobs/.unfinished/{job}"));
    assert_eq!(said, "");
    cluster.start_agent(1);
    cluster.until("it is all gone", || cluster.swaps() == 0);
    fs::write(cluster.pfs("amid.go"), "").unwrap();
    cluster.until_over(job);
    // The node was restarted: the file is there, and the job's directory is not.
    cluster.signal("KILL", "forebay agent");
    let file = cluster.swap_dir(1).join("99.swap");
    fs::write(&file, "").unwrap();
    cluster.start_agent(1);
    cluster.until("the file is gone", || !file.exists());
    cluster.assert_clean();
}
