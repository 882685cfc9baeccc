//! What is looked at before a job starts.

// Helpers of tests may stop the test.
#![allow(clippy::unwrap_used)]

use forebay_jobs::check::{Report, check};
use forebay_jobs::request::JobRequest;
use forebay_jobs::script::parse;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

fn job(capacity: &str, stages: &[String]) -> JobRequest {
    let script = format!(
        "#!/bin/sh\n#DW jobdw type=scratch capacity={capacity} access_mode=striped\n{}\ntrue\n",
        stages.join("\n")
    );
    parse("job.sh", script.as_bytes()).unwrap_or_else(|refused| panic!("{refused}"))
}

fn stage_in(kind: &str, source: &Path) -> String {
    let source = source.display();
    format!("#DW stage_in type={kind} source={source} destination=$DW_JOB_STRIPED/x")
}

fn stage_out(kind: &str, destination: &Path) -> String {
    let destination = destination.display();
    format!("#DW stage_out type={kind} source=$DW_JOB_STRIPED/x destination={destination}")
}

/// What is said about one stage line on a machine with a directory as flash.
fn said(stage: String) -> String {
    let flash = TempDir::new().unwrap();
    let report = check(&job("1MiB", &[stage]), Some(flash.path()));
    report.findings.iter().map(|f| f.what.clone()).collect::<Vec<_>>().join("; ")
}

#[test]
fn sources_are_looked_at() {
    let pfs = TempDir::new().unwrap();
    let (dir, file) = (pfs.path(), pfs.path().join("file"));
    fs::write(&file, [1u8; 5000]).unwrap();
    assert_eq!(said(stage_in("file", &dir.join("none"))), "it does not exist");
    assert_eq!(said(stage_in("file", dir)), "it is a directory");
    assert_eq!(said(stage_in("directory", &file)), "it is not a directory");
    assert_eq!(said(stage_in("file", &file)), "");
    assert_eq!(said(stage_in("directory", dir)), "");
    assert_eq!(said(stage_in("file", Path::new("/dev/null"))), "it is not a regular file");
}

#[test]
fn paths_in_a_list_are_looked_at() {
    let pfs = TempDir::new().unwrap();
    let (good, list) = (pfs.path().join("a name with blanks"), pfs.path().join("list"));
    fs::write(&good, "x").unwrap();
    fs::write(&list, format!("{}\n\n", good.display())).unwrap();
    assert_eq!(said(stage_in("list", &list)), "");
    fs::write(&list, "a name with blanks\nmissing\n/no/such\n").unwrap();
    assert_eq!(said(stage_in("list", &list)), "it does not exist; it does not exist");
    fs::create_dir_all(pfs.path().join("dir/list")).unwrap();
    fs::write(&list, "dir\nlist\ndir/list\n").unwrap();
    let text = said(stage_in("list", &list));
    assert_eq!(text, "an earlier line of the list has the same last name");
}

#[test]
fn destinations_are_looked_at() {
    let pfs = TempDir::new().unwrap();
    let (dir, file) = (pfs.path(), pfs.path().join("file"));
    fs::write(&file, "x").unwrap();
    assert_eq!(said(stage_out("file", &dir.join("new"))), "");
    assert_eq!(said(stage_out("file", &file)), "");
    assert_eq!(said(stage_out("file", dir)), "it is a directory");
    assert_eq!(said(stage_out("directory", &file)), "it is not a directory");
    assert_eq!(said(stage_out("directory", &dir.join("new"))), "");
    assert_eq!(said(stage_out("directory", &dir.join("no/new"))), "it does not exist");
}

#[test]
fn capacity_is_compared_with_sources_and_flash() {
    let (pfs, flash) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::write(pfs.path().join("a"), vec![1u8; 900 << 10]).unwrap();
    fs::write(pfs.path().join("b"), vec![1u8; 900 << 10]).unwrap();
    let stages = [stage_in("directory", pfs.path())];
    let report: Report = check(&job("1MiB", &stages), Some(flash.path()));
    assert_eq!((report.stage_in_entries, report.findings.len()), (2, 1), "{report:?}");
    assert!(report.findings[0].what.contains("the capacity is 1.00 MiB"), "{report:?}");
    let report = check(&job("4MiB", &stages), Some(flash.path()));
    assert!(report.findings.is_empty() && report.stage_in_complete, "{report:?}");
    let report = check(&job("1000000TiB", &[]), Some(flash.path()));
    assert!(report.findings[0].hint.contains("--flash"), "{report:?}");
    let report = check(&job("1MiB", &[]), Some(Path::new("/no/such/flash")));
    assert_eq!(report.findings[0].what, "it does not exist");
}

#[test]
fn holes_do_not_count() {
    let (pfs, flash) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::File::create(pfs.path().join("sparse")).unwrap().set_len(1 << 40).unwrap();
    let report = check(&job("1MiB", &[stage_in("directory", pfs.path())]), Some(flash.path()));
    assert!(report.findings.is_empty(), "{report:?}");
}

#[test]
fn the_interpreter_is_looked_at() {
    let flash = TempDir::new().unwrap();
    let script = "#!/no/such/sh -e\n#DW jobdw type=scratch capacity=1MiB access_mode=striped\n";
    let job = parse("job.sh", script.as_bytes()).unwrap_or_else(|refused| panic!("{refused}"));
    let report = check(&job, Some(flash.path()));
    assert_eq!(report.findings.len(), 1, "{report:?}");
    assert_eq!(report.findings[0].path, "/no/such/sh");
}
