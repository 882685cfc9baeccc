//! What a job's program copies by itself: with the calls of DataWarp's library, and with Forebay's own command.

use super::cluster::{Cluster, Options, Plugin, USER, repository};
use forebay_tests::buffer::binary;
use forebay_tests::procs;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::process::Command;

const BUFFER: &str = "#DW jobdw type=scratch access_mode=striped capacity=64MiB pool=flash";

fn cluster() -> Cluster {
    Cluster::with(Plugin::Datawarp, Options { nodes: 1, ..Options::default() })
}

/// What it puts off to the end of its job is copied then, with the content of then and as its user.
#[test]
fn a_program_for_datawarp_stages_in_a_job_and_what_it_defers_is_staged_at_the_end() {
    let cluster = cluster();
    let program = cluster.base.join("program");
    fs::copy(binary().with_file_name("libforebay.so"), cluster.base.join("libforebay.so.0"))
        .unwrap();
    symlink("libforebay.so.0", cluster.base.join("libdatawarp.so")).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c99", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-I"]);
    gcc.arg(repository("crates/libforebay/include"));
    gcc.arg(repository("crates/libforebay/tests/datawarp.c")).arg("-o").arg(&program);
    gcc.arg("-L").arg(&cluster.base).arg("-ldatawarp");
    procs::run(gcc.arg(format!("-Wl,-rpath,{}", cluster.base.display())));
    cluster.put("out/x", "");
    let script = cluster
        .script(&[BUFFER], &format!("{} ${{DW_JOB_STRIPED%/}} @PFS@/out", program.display()));
    let job = cluster.submit(&script, "").unwrap();
    assert_eq!(cluster.until_over(job), "COMPLETED", "{}{}", cluster.output(job), cluster.logs());
    assert_eq!(cluster.output(job), "all as it should be\n");
    let late = cluster.pfs("out/late");
    assert_eq!(fs::read_to_string(&late).unwrap(), "two", "{}", cluster.logs());
    assert_eq!(fs::metadata(&late).unwrap().uid(), USER);
    assert!(!cluster.pfs("out/never").exists());
    cluster.assert_clean();
}

/// The job's end waits for copies that its script began, and keeps the buffer if one failed.
#[test]
fn copies_that_a_job_began_are_waited_for_at_its_end_and_kept_if_they_fail() {
    let cluster = cluster();
    let forebay = cluster.base.join("bin/forebay");
    let body = format!(
        "set -e
echo good > ${{DW_JOB_STRIPED}}good; echo bad > ${{DW_JOB_STRIPED}}bad
{0} stage out --no-wait ${{DW_JOB_STRIPED}}good @PFS@/good
{0} stage out --no-wait ${{DW_JOB_STRIPED}}bad @PFS@/gone/bad || true",
        forebay.display()
    );
    let job = cluster.submit(&cluster.script(&[BUFFER], &body), "").unwrap();
    let state = cluster.until_over(job);
    assert_eq!(state, "COMPLETED", "{}{}", cluster.output(job), cluster.logs());
    assert_eq!(fs::read_to_string(cluster.pfs("good")).unwrap(), "good\n");
    let shown = cluster.shown(job);
    assert!(shown.contains("stage-out by the program") && shown.contains("gone"), "{shown}");
    let kept = cluster.forebay("rescue");
    assert_eq!(kept["kept_jobs"][0]["job"], job.to_string(), "{kept}");
    cluster.put("gone/x", "");
    cluster.forebay(&format!("rescue {job}"));
    assert_eq!(fs::read_to_string(cluster.pfs("gone/bad")).unwrap(), "bad\n");
    cluster.assert_clean();
}
