//! What users write under Slurm: what is refused at submission, jobs that have to wait for room, persistent buffers,
//! and scripts that were written for DataWarp.

use super::cluster::{Cluster, Options, Plugin};
use std::fs;
use std::time::Duration;

const BUFFER: &str = "#DW jobdw type=scratch access_mode=striped capacity=160MiB";

#[test]
fn what_cannot_be_is_refused_at_submission_with_line_and_word() {
    for plugin in [Plugin::Datawarp, Plugin::Lua] {
        let site_conf = "pfs_roots = [\"@ROOT@/pfs\"]".to_string();
        let cluster = Cluster::with(plugin, Options { nodes: 1, site_conf, ..Options::default() });
        let pool = "pool=flash";
        let refused = |lines: &[&str]| {
            let script = cluster.script(lines, "true");
            cluster.submit(&script, "").expect_err("it is refused")
        };
        let jobdw = format!("#DW jobdw type=scratch access_mode=striped capacity=64MiB {pool}");
        for (lines, words) in [
            (
                vec![format!("#DW jobdw type=scratch access_mode=striped capacity=1TiB {pool}")],
                ["capacity=1.00 TiB", "more than pool flash has"],
            ),
            (
                vec![format!("#DW jobdw type=scratch access_mode=stripped capacity=1GiB {pool}")],
                ["line 2", "\"stripped\""],
            ),
            (
                vec![
                    jobdw.clone(),
                    "#DW stage_in type=file source=/etc/passwd destination=$DW_JOB_STRIPED/p"
                        .into(),
                ],
                ["line 3", "not on the parallel file system"],
            ),
            (
                vec![
                    jobdw.clone(),
                    "#DW stage_out type=file source=/tmp/x destination=@PFS@/x".into(),
                ],
                ["line 3, word \"/tmp/x\"", "expected $DW_JOB_STRIPED"],
            ),
            (vec!["#DW swap 1GiB".into()], ["this site offers no swap", "agent.swap_dir"]),
            (
                vec![jobdw.clone(), "#DW stage_ni type=file".into()],
                ["\"stage_ni\"", "did you mean stage_in?"],
            ),
        ] {
            let said = refused(&lines.iter().map(String::as_str).collect::<Vec<_>>());
            assert!(words.iter().all(|word| said.contains(word)), "{plugin:?} {lines:?}: {said}");
        }
        // Without a server the answer is the same: what the pool had when it last answered is known.
        cluster.signal("STOP", "forebay serve");
        let said =
            refused(&[&format!("#DW jobdw type=scratch access_mode=striped capacity=1TiB {pool}")]);
        assert!(said.contains("more than pool flash has"), "{said}");
        let pools = format!("{}/bin/dw_wlm_cli --function pools", cluster.base.display());
        let (ok, said) = cluster.sh(&pools);
        // What they said last: a Slurm that is started now would forget all jobs' buffers without it.
        assert!(
            ok && said.contains(r#""id":"flash""#) && said.contains(r#""quantity":16"#),
            "{said}"
        );
        no_server_is_waited_for(&cluster);
        cluster.signal("CONT", "forebay serve");
        cluster.assert_clean();
    }
}

/// What a scheduler asks with its locks held, while the servers stand still: scripts and environments are answered without
/// them, and `pools` gives up by its own limit. The calls are the test's own, with a record that nobody else writes.
fn no_server_is_waited_for(cluster: &Cluster) {
    let base = cluster.base.display();
    cluster.must(&format!(
        "mkdir {base}/own-state; sed 's|{base}/site-state|{base}/own-state|' {base}/forebay.conf > {base}/own.conf"
    ));
    let call = |words: &str| {
        let conf = format!("FOREBAY_CONF={base}/own.conf");
        cluster.sh(&format!("{conf} {base}/bin/dw_wlm_cli --function {words}"))
    };
    let script = cluster.script(&[BUFFER], "true");
    let script = script.display();
    // One that asks the servers never ends well while they stand still; one that does not may be late on a busy machine.
    let path_file = cluster.base.join("own-paths");
    let paths = format!("paths --job {script} --token 7 --pathfile {}", path_file.display());
    for words in [format!("job_process --job {script}"), paths] {
        cluster.until(&format!("{words} is answered"), || call(&words) == (true, String::new()));
    }
    let environment = fs::read_to_string(&path_file).unwrap();
    assert!(environment.contains("DW_JOB_STRIPED=/run/forebay/jobs/7/job/\n"), "{environment}");
    // The servers have not answered, so it was the limit that ended the call; it is named, and is below a second.
    let (ok, said) = call("pools");
    let named = said.strip_prefix("ask the servers for their pools: no answer within ");
    let limit = named.and_then(|rest| rest.strip_suffix(" ms")).map(str::parse::<f64>);
    let Some(Ok(limit_ms)) = limit else { panic!("no limit is named: {said}") };
    assert!(!ok && limit_ms < 1_000.0, "{said}");
    let log = fs::read_to_string(cluster.base.join("own-state/hooks.log")).unwrap();
    let line = log.lines().rfind(|line| line.contains("--function pools")).unwrap();
    let took_ms: f64 = line.split(' ').nth(2).unwrap().parse().unwrap();
    assert!(took_ms >= limit_ms, "{line}");
}

/// Two pools with granules of their own: a job's buffer lies in the one that `pool=` names, in whole granules of that one,
/// and what can be had in one cannot be had in the other.
fn a_job_has_its_buffer_in_the_pool_that_it_names(plugin: Plugin) {
    const MIB: u64 = 1 << 20;
    let wide_pool = Some(("256MiB", "64MiB"));
    let cluster =
        Cluster::with(plugin, Options { capacity: "128MiB", wide_pool, ..Options::default() });
    cluster.put("in", "input");
    cluster.until("Slurm knows both pools", || {
        let (_, shown) = cluster.sh("scontrol show burst");
        shown.contains("=flash Granularity=16MiB TotalSpace=128MiB")
            && shown.contains("=wide Granularity=64MiB TotalSpace=256MiB")
    });
    let script = |name: &str, size: &str, pool: &str| {
        let buffer = format!("#DW jobdw type=scratch access_mode=striped capacity={size} {pool}");
        let input = "#DW stage_in type=file source=@PFS@/in destination=$DW_JOB_STRIPED/in";
        let out = format!(
            "#DW stage_out type=file source=$DW_JOB_STRIPED/out destination=@PFS@/{name}.out"
        );
        let body = format!(
            "set -e; cp ${{DW_JOB_STRIPED}}in ${{DW_JOB_STRIPED}}out\n\
             df --output=size -B1 $DW_JOB_STRIPED | tail -1 | tr -d ' ' >> ${{DW_JOB_STRIPED}}out\n\
             echo > @PFS@/{name}.runs; until [ -e @PFS@/go ]; do sleep 0.1; done"
        );
        cluster.script(&["#SBATCH -N 1", &buffer, input, &out], &body)
    };
    // By the Lua plugin Slurm refuses a capacity without a pool; by the other one it takes the site's default pool.
    let flash = if plugin == Plugin::Lua { "pool=flash" } else { "" };
    let jobs = [("wide", "pool=wide", 128 * MIB), ("flash", flash, 80 * MIB)].map(
        |(name, pool, bytes)| {
            (name, bytes, cluster.submit(&script(name, "65MiB", pool), "").unwrap())
        },
    );
    for (name, bytes, job) in jobs {
        let runs = cluster.pfs(&format!("{name}.runs"));
        cluster.until(&format!("{name} runs"), || runs.exists());
        let shown = cluster.must("scontrol show burst");
        let line = shown.lines().find(|line| line.contains(&format!("JobID={job} ")));
        let size = format!("Pool={name} Size={}MiB", bytes / MIB);
        assert!(line.is_some_and(|line| line.contains(&size)), "{size}: {shown}");
    }
    let reserved = (cluster.reserved_at(Cluster::WIDE_SERVER), cluster.reserved());
    assert_eq!(reserved, (128 * MIB, 80 * MIB), "{}", cluster.logs());
    // More than one pool has, and not more than the other; and a pool that nobody has.
    let refused = |pool: &str| {
        cluster.submit(&script("refused", "200MiB", pool), "").expect_err("it is refused")
    };
    let said = refused("pool=flash");
    assert!(said.contains("more than pool flash has in all, 128"), "{said}");
    refused("pool=none");
    let held = cluster.submit(&script("held", "200MiB", "pool=wide"), "--hold").unwrap();
    cluster.must(&format!("scancel {held}"));
    fs::write(cluster.pfs("go"), "").unwrap();
    for (name, bytes, job) in jobs {
        assert_eq!(cluster.until_over(job), "COMPLETED", "{}", cluster.logs());
        let out = fs::read_to_string(cluster.pfs(&format!("{name}.out"))).unwrap();
        assert_eq!(out, format!("input{bytes}\n"));
    }
    assert_eq!(cluster.reserved_at(Cluster::WIDE_SERVER), 0, "{}", cluster.logs());
    cluster.assert_clean();
}

#[test]
fn a_job_has_its_buffer_in_the_pool_that_it_names_by_the_datawarp_plugin() {
    a_job_has_its_buffer_in_the_pool_that_it_names(Plugin::Datawarp);
}

#[test]
fn a_job_has_its_buffer_in_the_pool_that_it_names_by_the_lua_plugin() {
    a_job_has_its_buffer_in_the_pool_that_it_names(Plugin::Lua);
}

#[test]
fn jobs_that_do_not_fit_together_run_one_after_the_other() {
    let cluster = Cluster::new(Plugin::Datawarp);
    let run = |name: &str| {
        let body =
            format!("echo > @PFS@/{name}.runs; until [ -e @PFS@/{name}.go ]; do sleep 0.1; done");
        cluster.submit(&cluster.script(&["#SBATCH -N 1", BUFFER], &body), "").unwrap()
    };
    let first = run("a");
    cluster.until("the first runs", || cluster.pfs("a.runs").exists());
    let second = run("b");
    cluster.until_buffer(second, "pending");
    std::thread::sleep(Duration::from_secs(3));
    assert!(!cluster.pfs("b.runs").exists(), "there is room for one");
    let reason = cluster.field(second, "Reason");
    assert!(reason.contains("BurstBufferResources") || reason.contains("Priority"), "{reason}");
    fs::write(cluster.pfs("a.go"), "").unwrap();
    fs::write(cluster.pfs("b.go"), "").unwrap();
    for job in [first, second] {
        assert_eq!(cluster.until_over(job), "COMPLETED", "{}", cluster.logs());
    }
    cluster.assert_clean();
}

#[test]
fn a_persistent_buffer_lives_through_three_jobs() {
    let conf = "Flags=EnablePersistent,TeardownFailure";
    let options = Options { burst_buffer_conf: conf, ..Options::default() };
    let cluster = Cluster::with(Plugin::Datawarp, options);
    cluster.put("in", "input");
    let done = |script: &[&str], body: &str| {
        let job = cluster.submit(&cluster.script(script, body), "").unwrap();
        assert_eq!(
            cluster.until_over(job),
            "COMPLETED",
            "{}{}",
            cluster.output(job),
            cluster.logs()
        );
        job
    };
    done(
        &["#BB create_persistent name=alpha capacity=64MiB access_mode=striped type=scratch"],
        "true",
    );
    let shown = cluster.must("scontrol show burst");
    assert!(shown.contains("Name=alpha") && shown.contains("Size=64MiB"), "{shown}");
    let uses = "#DW persistentdw name=alpha";
    done(
        &[
            uses,
            "#DW stage_in type=file source=@PFS@/in destination=$DW_PERSISTENT_STRIPED_alpha/in",
        ],
        "set -e; echo \"$(cat ${DW_PERSISTENT_STRIPED_alpha}in) one\" > ${DW_PERSISTENT_STRIPED_alpha}kept",
    );
    // Beside a buffer of its own.
    done(
        &[
            "#SBATCH -N 2",
            uses,
            "#DW jobdw type=scratch access_mode=striped,private capacity=64MiB",
        ],
        "set -e; srun -N2 bash -c 'echo $SLURMD_NODENAME > ${DW_JOB_PRIVATE}own'
[ $(cat ${DW_JOB_PRIVATE}own) = n1 ]
ls ${DW_JOB_STRIPED}
echo two >> ${DW_PERSISTENT_STRIPED_alpha}kept",
    );
    done(
        &[
            uses,
            "#DW stage_out type=file source=$DW_PERSISTENT_STRIPED_alpha/kept destination=@PFS@/out",
        ],
        "echo three >> ${DW_PERSISTENT_STRIPED_alpha}kept",
    );
    assert_eq!(fs::read_to_string(cluster.pfs("out")).unwrap(), "input one\ntwo\nthree\n");
    done(&["#BB destroy_persistent name=alpha"], "true");
    cluster.until("the buffer is gone", || !cluster.must("scontrol show burst").contains("alpha"));
    cluster.until("its session is gone", || !cluster.session_is_there("alpha"));
    cluster.assert_clean();
}

/// A persistent cache: made by a `#BB` line whose `pfs=` Slurm does not pass on, filled by one job and read by another, on
/// the PFS when each of them is over, and drained when it is destroyed.
#[test]
fn a_persistent_cache_is_filled_by_one_job_and_read_by_another() {
    let conf = "Flags=EnablePersistent,TeardownFailure";
    let options = Options {
        burst_buffer_conf: conf,
        site_conf: "pfs_roots = [\"@ROOT@/pfs\"]".into(),
        ..Options::default()
    };
    let cluster = Cluster::with(Plugin::Datawarp, options);
    cluster.put("data/in", "input");
    let submit =
        |lines: &[&str], body: &str| cluster.submit(&cluster.script(lines, body), "").unwrap();
    let done = |lines: &[&str], body: &str| {
        let job = submit(lines, body);
        let state = cluster.until_over(job);
        assert_eq!(state, "COMPLETED", "{}{}", cluster.output(job), cluster.logs());
    };
    // Outside of what the site caches, and of a directory that is not there: told, and nothing is left.
    for (pfs, why) in [("/etc", "not on the parallel file system"), ("@PFS@/none", "none")] {
        let made = format!("#BB create_persistent name=bad capacity=64MiB type=cache pfs={pfs}");
        let job = submit(&[&made], "true");
        cluster.until("that is told", || cluster.shown(job).contains(why));
        cluster.must(&format!("scancel {job}"));
        cluster.until("the name is forgotten", || !cluster.session_is_there("bad"));
    }
    assert_eq!(cluster.reserved(), 0, "{}", cluster.logs());
    done(
        &[
            "#BB create_persistent name=warm capacity=64MiB access_mode=striped type=cache pfs=@PFS@/data",
        ],
        "true",
    );
    let uses = "#DW persistentdw name=warm";
    let dir = "${DW_PERSISTENT_STRIPED_CACHE_warm}";
    let fills = format!(
        "set -e; [ $(cat {dir}in) = input ]; srun -N2 bash -c 'echo $SLURMD_NODENAME > {dir}$SLURMD_NODENAME'"
    );
    done(&["#SBATCH -N 2", uses], &fills);
    let on_pfs = |name: &str| fs::read_to_string(cluster.pfs("data").join(name)).unwrap();
    assert_eq!((on_pfs("n1"), on_pfs("n2")), ("n1\n".into(), "n2\n".into()));
    let shown = cluster.must("scontrol show bbstat configurations");
    assert!(shown.contains("cache"), "{shown}");
    // Nothing is staged to it.
    let stage =
        "#DW stage_in type=file source=@PFS@/data/in destination=$DW_PERSISTENT_STRIPED_warm/x";
    let job = submit(&[uses, stage], "true");
    cluster.until("that is told", || cluster.shown(job).contains("warm is a cache"));
    cluster.must(&format!("scancel {job}"));
    cluster.until_over(job);
    done(&[uses], &format!("set -e; [ $(cat {dir}n2) = n2 ]; echo again > {dir}again"));
    done(&["#BB destroy_persistent name=warm"], "true");
    cluster.until("it is gone", || !cluster.session_is_there("warm"));
    assert_eq!(on_pfs("again"), "again\n");
    cluster.assert_clean();
}

/// The two scripts of a course on burst buffers (ATPESC 2019), but for their paths: scratch with three stage lines, and
/// a cache, where the file on the PFS is empty while the cache has the data.
fn scripts_of_a_datawarp_course(plugin: Plugin) {
    let cluster = Cluster::new(plugin);
    cluster.put("input/1", "one");
    cluster.put("input.dat", "data");
    // Slurm refuses a capacity without a pool by the Lua plugin.
    let pool = if plugin == Plugin::Lua { "pool=flash" } else { "" };
    let scratch = cluster.script(
        &[
            "#SBATCH --nodes=1",
            &format!("#DW jobdw capacity=64MiB access_mode=striped type=scratch {pool}"),
            "#DW stage_in type=directory source=@PFS@/input destination=$DW_JOB_STRIPED/input",
            "#DW stage_in type=file source=@PFS@/input.dat destination=$DW_JOB_STRIPED/input.dat",
            "#DW stage_out type=directory source=$DW_JOB_STRIPED/output destination=@PFS@/output",
        ],
        "mkdir $DW_JOB_STRIPED/output\nsrun cat $DW_JOB_STRIPED/input/1 $DW_JOB_STRIPED/input.dat > $DW_JOB_STRIPED/output/all",
    );
    let cache = cluster.script(
        &[
            "#SBATCH --nodes=1",
            &format!("#DW jobdw pfs=@PFS@ capacity=64MiB access_mode=striped type=cache {pool}"),
        ],
        "dd if=/dev/zero of=$DW_JOB_STRIPED_CACHE/cached bs=1M count=8\n\
         stat -c 'cache %s' $DW_JOB_STRIPED_CACHE/cached\nstat -c 'pfs %s' @PFS@/cached",
    );
    let (scratch, cache) =
        (cluster.submit(&scratch, "").unwrap(), cluster.submit(&cache, "").unwrap());
    for job in [scratch, cache] {
        assert_eq!(
            cluster.until_over(job),
            "COMPLETED",
            "{}{}",
            cluster.output(job),
            cluster.logs()
        );
    }
    assert_eq!(fs::read_to_string(cluster.pfs("output/all")).unwrap(), "onedata");
    let said = cluster.output(cache);
    assert!(said.contains("cache 8388608\npfs 0\n"), "{said}");
    assert_eq!(fs::metadata(cluster.pfs("cached")).unwrap().len(), 8 << 20);
    cluster.assert_clean();
}

#[test]
fn scripts_of_a_datawarp_course_run_as_they_stand() {
    scripts_of_a_datawarp_course(Plugin::Datawarp);
    scripts_of_a_datawarp_course(Plugin::Lua);
}

/// Requests on the command line (`--bb=`), jobs that hold no node (`-N0`), limits of files, a cache of which each node has its own
/// view, and read-only copies.
#[test]
fn requests_on_the_command_line_and_jobs_without_nodes() {
    let options = Options {
        nodes: 1,
        has_swap: true,
        burst_buffer_conf: "Flags=EnablePersistent,TeardownFailure",
        ..Options::default()
    };
    let cluster = Cluster::with(Plugin::Datawarp, options);
    let done = |lines: &[&str], body: &str, args: &str| {
        let job = cluster.submit(&cluster.script(lines, body), args).unwrap();
        let said = |cluster: &Cluster| format!("{}{}", cluster.output(job), cluster.logs());
        assert_eq!(cluster.until_over(job), "COMPLETED", "{}", said(&cluster));
        job
    };
    done(&["#BB create_persistent name=beta capacity=16MiB"], "true", "-N0");
    assert!(cluster.session_is_there("beta"), "{}", cluster.logs());
    done(&["#BB destroy_persistent name=beta"], "true", "-N0");
    cluster.until("the persistent buffer is gone", || !cluster.session_is_there("beta"));
    done(
        &[],
        "set -e; [ -d $DW_JOB_STRIPED ]; grep -c slurm-swap /proc/swaps; df --output=size -B1 $DW_JOB_STRIPED | tail -1 > @PFS@/size",
        "--bb=\"swap=1 capacity=32MiB access=striped type=scratch pool=flash\"",
    );
    let size = fs::read_to_string(cluster.pfs("size")).unwrap();
    assert_eq!(size.trim(), (32 << 20).to_string());
    // Limits of the files, which the job's mounts keep.
    done(
        &["#DW jobdw type=scratch access_mode=private(MFS=1MiB,MFC=3) capacity=32MiB"],
        "cd $DW_JOB_PRIVATE; dd if=/dev/zero of=big bs=1M count=2 2>&1 | grep 'File too large' && stat -c %s big > @PFS@/limits
touch a b; touch c 2>&1 | grep 'quota exceeded' && ls | wc -l >> @PFS@/limits",
        "",
    );
    assert_eq!(fs::read_to_string(cluster.pfs("limits")).unwrap(), "1048576\n3\n");
    cluster.put("cached/in", "input");
    done(
        &["#DW jobdw type=cache access_mode=private pfs=@PFS@/cached capacity=32MiB"],
        "set -e; cp ${DW_JOB_PRIVATE_CACHE}in ${DW_JOB_PRIVATE_CACHE}out",
        "",
    );
    assert_eq!(fs::read_to_string(cluster.pfs("cached/out")).unwrap(), "input");
    read_only_copies(&cluster, &done);
    cluster.assert_clean();
}

/// Caches that are read-only, with a copy on each server: of the job, and one that outlives it. `done` runs a job to its end.
fn read_only_copies(cluster: &Cluster, done: &dyn Fn(&[&str], &str, &str) -> u32) {
    let made = "#BB create_persistent name=copies capacity=32MiB access_mode=ldbalance type=cache pfs=@PFS@/cached";
    done(&[made], "true", "");
    let job = done(
        &[
            "#DW jobdw type=cache access_mode=ldbalance pfs=@PFS@/cached capacity=32MiB",
            "#DW persistentdw name=copies",
        ],
        "set -e; env | grep '^DW_.*LDBAL' | sort > @PFS@/variables
cat ${DW_JOB_LDBAL_CACHE}in ${DW_PERSISTENT_LDBAL_CACHE_copies}out > @PFS@/copies
touch ${DW_JOB_LDBAL_CACHE}new && exit 3
touch ${DW_PERSISTENT_LDBAL_CACHE_copies}new && exit 4
true",
        "",
    );
    assert_eq!(fs::read_to_string(cluster.pfs("copies")).unwrap(), "inputinput");
    let at = format!("/run/forebay/jobs/{job}");
    let variables = format!(
        "DW_JOB_LDBAL_CACHE={at}/job/\nDW_PERSISTENT_LDBAL_CACHE_copies={at}/persistent-copies/\n"
    );
    assert_eq!(fs::read_to_string(cluster.pfs("variables")).unwrap(), variables);
    done(&["#BB destroy_persistent name=copies"], "true", "-N0");
    cluster.until("the copies are gone", || !cluster.session_is_there("copies"));
}

/// One file that two nodes write in small pieces in turn, of a buffer in logs over two servers: the job's two nodes see all of
/// it when both have closed it, and so does the PFS at the end.
#[test]
fn a_job_writes_one_file_from_two_nodes_into_logs() {
    const PIECE: usize = 47_008;
    const ROUNDS: usize = 6;
    let options = Options { servers: 2, ..Options::default() };
    let cluster = Cluster::with(Plugin::Lua, options);
    let body = format!(
        "set -e
srun -N2 -n2 bash -ec 'for ((i = 0; i < {ROUNDS}; i++)); do
  head -c {PIECE} /dev/zero | tr \"\\0\" $SLURM_PROCID |
    dd of=${{DW_JOB_STRIPED}}all bs={PIECE} iflag=fullblock seek=$((2 * i + SLURM_PROCID)) conv=notrunc status=none
done'
srun -N2 -n2 bash -c 'sha256sum < ${{DW_JOB_STRIPED}}all' > @PFS@/seen
{} stripe ${{DW_JOB_STRIPED}}all > @PFS@/layout",
        cluster.base.join("bin/forebay").display()
    );
    let script = cluster.script(
        &[
            "#SBATCH -N 2",
            "#DW jobdw type=scratch access_mode=striped capacity=128MiB pool=flash layout=log",
            "#DW stage_out type=file source=$DW_JOB_STRIPED/all destination=@PFS@/all",
        ],
        &body,
    );
    let job = cluster.submit(&script, "").unwrap();
    assert_eq!(cluster.until_over(job), "COMPLETED", "{}{}", cluster.output(job), cluster.logs());
    let pieces = ["0", "1"].map(|rank| rank.repeat(PIECE)).concat();
    assert!(fs::read(cluster.pfs("all")).unwrap() == pieces.repeat(ROUNDS).into_bytes());
    let layout = fs::read_to_string(cluster.pfs("layout")).unwrap();
    assert!(layout.contains("in logs"), "{layout}");
    let sum = cluster.must(&format!("sha256sum < {}", cluster.pfs("all").display()));
    assert_eq!(fs::read_to_string(cluster.pfs("seen")).unwrap(), sum.repeat(2));
    cluster.assert_clean();
}
