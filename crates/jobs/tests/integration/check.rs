//! What is looked at before a job starts.

// Helpers of tests may stop the test.

use forebay_jobs::check::{Report, StoreRoom, check};
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
    let report = check(&job("1MiB", &[stage]), Some(flash.path()), None);
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
    let report: Report = check(&job("1MiB", &stages), Some(flash.path()), None);
    assert_eq!((report.stage_in_entries, report.findings.len()), (2, 1), "{report:?}");
    assert!(report.findings[0].what.contains("the capacity is 1.00 MiB"), "{report:?}");
    let report = check(&job("4MiB", &stages), Some(flash.path()), None);
    assert!(report.findings.is_empty() && report.stage_in_complete, "{report:?}");
    let report = check(&job("1000000TiB", &[]), Some(flash.path()), None);
    assert!(report.findings[0].hint.contains("--flash"), "{report:?}");
    let report = check(&job("1MiB", &[]), Some(Path::new("/no/such/flash")), None);
    assert_eq!(report.findings[0].what, "it does not exist");
}

#[test]
fn blocks_and_names_are_counted_and_not_only_bytes() {
    let (pfs, flash) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for number in 0..300 {
        fs::write(pfs.path().join(format!("{number:08}")), [1u8; 50]).unwrap();
    }
    let job = job("1MiB", &[stage_in("directory", pfs.path())]);
    let report = check(&job, Some(flash.path()), None);
    // 256 blocks are 1 MiB.
    assert_eq!((report.stage_in_bytes, report.stage_in_store_bytes), (300 * 50, 300 * 4096));
    assert_eq!(report.findings.len(), 1, "{report:?}");
    assert!(report.findings[0].what.contains("take 1.17 MiB on flash"), "{report:?}");

    let roomy = StoreRoom {
        block_bytes: 512,
        file_bytes: 500,
        own_bytes: 4096,
        metadata_bytes: 300 * (200 + 8 * 2),
        entry_bytes: 200,
        name_byte_bytes: 2,
        ..StoreRoom::unknown(1 << 20)
    };
    let said = |room: StoreRoom| {
        let report = check(&job, Some(flash.path()), Some(&|_: u64| Some(room)));
        report.findings.iter().map(|found| found.what.clone()).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(said(roomy), "");
    let text = said(StoreRoom { metadata_bytes: roomy.metadata_bytes - 1, ..roomy });
    assert!(text.contains("names and inodes"), "{text}");
    let text = said(StoreRoom { file_bytes: 3_000, ..roomy });
    assert!(text.contains("1.00 MiB on flash"), "{text}");
    let text = said(StoreRoom { flash_bytes: 1 << 60, ..roomy });
    assert!(text.contains("its store takes 1024 PiB"), "{text}");
}

#[test]
fn the_least_capacity_that_is_enough_is_told() {
    let (pfs, flash) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for number in 0..300 {
        fs::write(pfs.path().join(format!("{number:08}")), [1u8; 50]).unwrap();
    }
    let stages = [stage_in("directory", pfs.path())];
    // As of a disk: a small buffer is another kind of store, which takes less for each file.
    let room_of = |capacity_bytes: u64| {
        let is_image = capacity_bytes >= 3 << 20;
        Some(StoreRoom {
            own_bytes: if is_image { 4 << 20 } else { 0 },
            file_bytes: if is_image { 1_000 } else { 0 },
            metadata_bytes: capacity_bytes / 100,
            entry_bytes: 200,
            ..StoreRoom::unknown(capacity_bytes)
        })
    };
    let hint = |mib: u64| {
        let job = job(&format!("{mib}MiB"), &stages);
        let report = check(&job, Some(flash.path()), Some(&room_of));
        report.findings.first().map(|found| found.hint.clone())
    };
    // 300 blocks and 300 times 1,000 bytes are 1.46 MiB, beside 4 MiB; names would fit into 5.72 MiB.
    for refused in [1, 2, 3, 5] {
        let told = hint(refused).unwrap();
        assert!(told.contains("a buffer of 6MiB is enough"), "{refused} MiB: {told}");
    }
    assert_eq!(hint(6), None);
}

#[test]
fn holes_do_not_count() {
    let (pfs, flash) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::File::create(pfs.path().join("sparse")).unwrap().set_len(1 << 40).unwrap();
    let report =
        check(&job("1MiB", &[stage_in("directory", pfs.path())]), Some(flash.path()), None);
    assert!(report.findings.is_empty(), "{report:?}");
}

#[test]
fn the_interpreter_is_looked_at() {
    let flash = TempDir::new().unwrap();
    let script = "#!/no/such/sh -e\n#DW jobdw type=scratch capacity=1MiB access_mode=striped\n";
    let job = parse("job.sh", script.as_bytes()).unwrap_or_else(|refused| panic!("{refused}"));
    let report = check(&job, Some(flash.path()), None);
    assert_eq!(report.findings.len(), 1, "{report:?}");
    assert_eq!(report.findings[0].path, "/no/such/sh");
}
