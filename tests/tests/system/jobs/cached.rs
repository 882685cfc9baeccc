//! Jobs with a cache of a PFS directory: nothing is staged, the end is a barrier, and what cannot drain keeps
//! the buffer.

use super::place::{Place, Run};
use super::servers::Site;
use forebay_tests::buffer::binary;
use forebay_tests::procs;
use std::fs;
use std::process::Command;

fn jobdw(mode: &str) -> String {
    format!("jobdw type=cache pfs=@PFS@/project capacity=64MiB access_mode={mode}")
}

#[test]
fn a_job_with_a_cache_leaves_its_results_on_the_pfs() {
    for (mode, variable) in
        [("striped", "DW_JOB_STRIPED_CACHE"), ("private", "DW_JOB_PRIVATE_CACHE")]
    {
        let place = Place::new();
        fs::create_dir_all(place.pfs("project/in")).unwrap();
        fs::write(place.pfs("project/in/a"), "alpha").unwrap();
        let body = format!(
            "cd ${variable}\n[ -z \"${{DW_JOB_STRIPED-}}\" ] || exit 9\nmkdir results\n\
             cat in/a > results/copy\nhead -c 3000000 /dev/zero > results/zeros"
        );
        let run = place.run(&place.script(&[&jobdw(mode)], &body), &[]).expect(0);
        assert_eq!(fs::read_to_string(place.pfs("project/results/copy")).unwrap(), "alpha");
        assert_eq!(fs::metadata(place.pfs("project/results/zeros")).unwrap().len(), 3_000_000);
        assert!(run.err.contains("all on the PFS"), "{}", run.err);
        place.assert_clean();
    }
}

#[test]
fn a_job_whose_cache_cannot_drain_keeps_it_until_that_is_decided() {
    let place = Place::new();
    fs::create_dir_all(place.pfs("project")).unwrap();
    fs::write(place.pfs("project/f"), "before").unwrap();
    // The file is written here, and by somebody else on the PFS.
    let body = "cd $DW_JOB_STRIPED_CACHE; cat f > /dev/null; echo ours > f; echo theirs, longer > @PFS@/project/f";
    let run = place.run(&place.script(&[&jobdw("striped")], body), &[]).expect(121);
    assert!(run.err.contains("conflict") && run.err.contains("resolve"), "{}", run.err);
    assert_eq!(fs::read_to_string(place.pfs("project/f")).unwrap(), "theirs, longer\n");
    let file = run.mount_point().join("f");
    let mut resolve = Command::new(binary());
    procs::run(resolve.args(["resolve", "--keep", "ours"]).arg(file));
    place.resume(&run.record()).expect(0);
    assert_eq!(fs::read_to_string(place.pfs("project/f")).unwrap(), "ours\n");
    place.assert_clean();
}

#[test]
fn the_cache_of_a_job_that_cannot_drain_is_given_up_by_the_command_that_the_job_names() {
    let place = Place::new();
    fs::create_dir_all(place.pfs("project")).unwrap();
    let body = "cd $DW_JOB_STRIPED_CACHE; echo ours > f; rm -f @PFS@/project/f; echo theirs > @PFS@/project/f";
    let run = place.run(&place.script(&[&jobdw("striped")], body), &[]).expect(121);
    let give_up = run.err.lines().find(|line| line.contains("run --discard")).unwrap();
    let given_up = Command::new("sh").args(["-c", give_up]).output().unwrap();
    assert!(given_up.status.success(), "{give_up}: {}", String::from_utf8_lossy(&given_up.stderr));
    assert_eq!(fs::read_to_string(place.pfs("project/f")).unwrap(), "theirs\n");
    place.assert_clean();
}

#[test]
fn nodes_of_a_job_share_a_cache_at_a_server() {
    let site = Site::new(1);
    let pfs = |name: &str| site.place.pfs(name);
    fs::create_dir_all(pfs("project")).unwrap();
    fs::write(pfs("project/in"), "input").unwrap();
    let body = "set -e\ncd $DW_JOB_STRIPED_CACHE\ncat in > here\n\
        @PFS@/../on-node n1 sh -euc \"cd $DW_JOB_STRIPED_CACHE; cat in here > there\"\n\
        [ \"$(cat there)\" = inputinput ] || exit 9";
    let script = site.place.script(&[&jobdw("striped")], body);
    Run::wait(site.start(&script, "n1", &[])).expect(0);
    assert_eq!(fs::read_to_string(pfs("project/here")).unwrap(), "input");
    assert_eq!(fs::read_to_string(pfs("project/there")).unwrap(), "inputinput");
    site.assert_clean();
    // Read-only copies.
    let body =
        "cat ${DW_JOB_LDBAL_CACHE}in > @PFS@/seen; ! echo x 2>/dev/null > ${DW_JOB_LDBAL_CACHE}new";
    let script = site.place.script(&[&jobdw("ldbalance")], body);
    Run::wait(site.start(&script, "", &[])).expect(0);
    assert_eq!(fs::read_to_string(pfs("seen")).unwrap(), "input");
    assert!(!pfs("project/new").exists());
    site.assert_clean();
}
