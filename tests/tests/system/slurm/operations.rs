//! The page for administrators, followed word by word (tests/programs/operations.sh), and that for users on the site that comes of it
//! (tests/programs/jobs_page.sh).

use super::cluster::repository;
use forebay_tests::buffer::binary;
use forebay_tests::procs::{LET_GO, try_run};
use std::fs;
use std::process::Command;

/// Whose Slurm the site has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SlurmUser {
    Root,
    Own,
}

/// An administrator follows the one page, and a user the other, if there is one.
fn follow(page: &str, jobs: Option<&str>, slurm_user: SlurmUser) -> (bool, String) {
    let base = tempfile::tempdir().unwrap();
    let (path, of_user) = (base.path().join("page.md"), base.path().join("jobs.md"));
    fs::write(&path, page).unwrap();
    let mut command = Command::new("timeout");
    command.args([
        "--kill-after=5",
        "280",
        "unshare",
        "--mount",
        "--uts",
        "--ipc",
        "--net",
        "--pid",
    ]);
    command.args(["--fork", "--kill-child", "bash"]);
    command.arg(repository("tests/programs/operations.sh"));
    command.env("BASE", base.path()).env("PAGE", &path).env("TREE", repository(""));
    command.env("FOREBAY", binary()).env("LET_GO", LET_GO).env_remove("JOBS");
    command.env("SITE_USER", if slurm_user == SlurmUser::Own { "slurm" } else { "" });
    if let Some(jobs) = jobs {
        fs::write(&of_user, jobs).unwrap();
        command.env("JOBS", &of_user);
    }
    try_run(&mut command)
}

fn page() -> String {
    fs::read_to_string(repository("docs/OPERATIONS.md")).unwrap()
}

#[test]
fn the_page_for_administrators_sets_up_a_site_that_runs_jobs() {
    let (done, said) = follow(&page(), None, SlurmUser::Root);
    assert!(done && said.ends_with("THE END\n"), "{said}");
}

/// As Debian sets Slurm up: the controller, and with it each hook, is not root's.
#[test]
fn the_page_for_administrators_sets_up_a_site_whose_slurm_has_a_user_of_its_own() {
    let (done, said) = follow(&page(), None, SlurmUser::Own);
    assert!(done && said.ends_with("THE END\n"), "{said}");
}

#[test]
fn a_page_that_says_what_does_not_work_is_found() {
    let page = page().replace("enable --now forebay-serve ", "enable --now forebay-none ");
    let (done, said) = follow(&page, None, SlurmUser::Root);
    assert!(!done && said.contains("OPERATIONS: "), "{said}");
}

#[test]
fn a_user_of_that_site_follows_the_page_about_jobs() {
    let jobs = fs::read_to_string(repository("docs/JOBS.md")).unwrap();
    let (done, said) = follow(&page(), Some(&jobs), SlurmUser::Root);
    assert!(done && said.ends_with("THE END\n"), "{said}");
}
