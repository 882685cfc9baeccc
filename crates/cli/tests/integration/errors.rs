//! What is refused, with which exit code and words, and that nothing is left behind.

use crate::common::{Flash, Rig, failure, must_be_root, text};
use std::ffi::OsStr;
use std::fs;

fn run(rig: &Rig, arguments: &[&str]) -> std::process::Output {
    let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
    rig.run(&arguments)
}

#[test]
fn wrong_arguments_end_with_2_and_say_what_is_expected() {
    let rig = Rig::new(Flash::Disk);
    let mnt = rig.mnt.to_str().unwrap();
    for (arguments, said) in [
        (vec!["mount", mnt], "--scratch CAPACITY, --cache PFSDIR or --buffer NAME"),
        (vec!["mount", mnt, "--server", "unix:/x"], "--cache PFSDIR or --buffer NAME"),
        (vec!["mount", "--scratch", "4 GiB", mnt], "GiB"),
        (vec!["mount", "--scratch", "lots", mnt], "expected an integer and a unit"),
        (vec!["mount", "--scratch", "4GiB", "--store", "paper", mnt], "tmpfs"),
        (vec!["mount", "--scratch", "4GiB", "-o", "turbo", mnt], "turbo"),
        (vec!["umount"], "MNT"),
        (vec!["stage", "sideways"], "sideways"),
        (vec!["frobnicate"], "frobnicate"),
        (vec![], "Usage"),
    ] {
        let message = failure(&run(&rig, &arguments), 2);
        assert!(message.contains(said), "{arguments:?}: {message}");
    }
    assert!(rig.stores().is_empty());
}

#[test]
fn every_command_explains_itself() {
    let rig = Rig::new(Flash::Disk);
    for command in ["mount", "umount", "stage", "run", "validate", "status", "check", "serve"] {
        let output = run(&rig, &[command, "--help"]);
        assert!(output.status.success());
        assert!(text(&output.stdout).contains("Usage: forebay"), "{command}");
        if command != "stage" {
            assert!(text(&output.stdout).contains("Example"), "{command}");
            assert!(text(&output.stdout).contains("--json"), "{command}");
        }
    }
    for command in ["in", "out", "status", "cancel", "wait", "rate"] {
        let help = text(&run(&rig, &["stage", command, "--help"]).stdout);
        assert!(help.contains("--json"), "{command}: {help}");
    }
    for command in ["create", "list", "status", "extend", "destroy"] {
        let help = text(&run(&rig, &["buffer", command, "--help"]).stdout);
        for said in ["--json", "--server", "--secret-file", "Example"] {
            assert!(help.contains(said), "{command}: {help}");
        }
    }
}

#[test]
fn flash_must_be_named_and_there() {
    let rig = Rig::new(Flash::Disk);
    let output = rig
        .forebay()
        .env_remove("FOREBAY_FLASH")
        .args(["mount", "--scratch", "8MiB"])
        .arg(&rig.mnt)
        .output()
        .unwrap();
    let message = failure(&output, 1);
    assert!(message.contains("--flash") && message.contains("$FOREBAY_FLASH"), "{message}");
    let message = failure(&rig.try_mount("8MiB", &["--flash", rig.mnt.to_str().unwrap()]), 1);
    assert!(message.contains("below the mount"), "{message}");
    let message = failure(&rig.try_mount("8MiB", &["--flash", "/no/such/place"]), 1);
    assert!(message.contains("/no/such/place"), "{message}");
}

#[test]
fn a_mount_point_must_be_a_directory() {
    let rig = Rig::new(Flash::Disk);
    fs::remove_dir(&rig.mnt).unwrap();
    let message = failure(&rig.try_mount("8MiB", &[]), 1);
    assert!(message.contains("make the directory first"), "{message}");
    fs::write(&rig.mnt, b"").unwrap();
    let message = failure(&rig.try_mount("8MiB", &[]), 1);
    assert!(message.contains("not a directory"), "{message}");
    assert!(rig.stores().is_empty());
    fs::remove_file(&rig.mnt).unwrap();
}

#[test]
fn a_second_mount_on_a_live_one_is_refused() {
    must_be_root();
    let rig = Rig::new(Flash::Memory);
    rig.mount("16MiB");
    fs::write(rig.mnt.join("x"), b"1").unwrap();
    let message = failure(&rig.try_mount("16MiB", &[]), 1);
    assert!(message.contains("mounted there already"), "{message}");
    assert_eq!(fs::read(rig.mnt.join("x")).unwrap(), b"1");
}

#[test]
fn another_capacity_is_refused_with_both_figures() {
    must_be_root();
    let rig = Rig::new(Flash::Memory);
    rig.mount("16MiB");
    rig.kill_server();
    let message = failure(&rig.try_mount("32MiB", &[]), 1);
    assert!(message.contains("16.0 MiB") && message.contains("32.0 MiB"), "{message}");
    assert_eq!(message.matches("use the store").count(), 1, "said once: {message}");
    rig.mount("16MiB");
}

#[test]
fn full_flash_leaves_nothing_behind() {
    must_be_root();
    for flash in [Flash::Memory, Flash::Disk] {
        let rig = Rig::new(flash);
        let message = failure(&rig.try_mount("900TiB", &[]), 1);
        assert!(message.contains("--flash"), "{message}");
        assert!(rig.stores().is_empty() && !rig.is_mounted());
    }
}

#[test]
fn stores_of_another_format_are_refused_by_name() {
    must_be_root();
    let rig = Rig::new(Flash::Memory);
    rig.mount("16MiB");
    assert!(rig.umount(&["--keep"]).status.success());
    let record = rig.stores()[0].join("store.json");
    let text = fs::read_to_string(&record).unwrap();
    let ours = format!("\"format\": {}", forebay_proto::version::FLASH_FORMAT);
    fs::write(&record, text.replace(&ours, "\"format\": 9")).unwrap();
    for output in [rig.try_mount("16MiB", &[]), rig.umount(&[])] {
        let message = failure(&output, 1);
        assert!(message.contains("flash format 9"), "{message}");
    }
    fs::write(&record, text).unwrap();
    rig.mount("16MiB");
}

#[test]
fn errors_come_as_json_too() {
    let rig = Rig::new(Flash::Disk);
    let output = run(&rig, &["status", "--json", "/proc/self"]);
    failure(&output, 1);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["error"]["path"], "/proc/self");
    assert!(value["error"]["why"].as_str().unwrap().contains("not in a mounted buffer"));
}

#[test]
fn check_tells_sound_from_live() {
    must_be_root();
    let rig = Rig::new(Flash::Disk);
    rig.mount("300MiB");
    fs::write(rig.mnt.join("x"), vec![7; 100_000]).unwrap();
    let message = failure(&run(&rig, &["check", rig.mnt.to_str().unwrap()]), 1);
    assert!(message.contains("--keep"), "{message}");
    assert!(rig.umount(&["--keep"]).status.success());
    for target in [rig.mnt.clone(), rig.stores()[0].clone()] {
        let output = run(&rig, &["check", "--json", target.to_str().unwrap()]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(value["sound"], true);
    }
    let message = failure(&run(&rig, &["check", "/usr"]), 1);
    assert!(message.contains("no store"), "{message}");
}

#[test]
fn manual_pages_and_completions_are_generated() {
    let rig = Rig::new(Flash::Disk);
    let out = rig.base().join("man");
    assert!(run(&rig, &["man", "--out", out.to_str().unwrap()]).status.success());
    for page in ["forebay.1", "forebay-mount.1", "forebay-stage-in.1", "forebay-run.1"] {
        assert!(fs::read_to_string(out.join(page)).unwrap().contains(".TH"), "{page}");
    }
    let page = fs::read_to_string(out.join("forebay-mount.1")).unwrap();
    assert!(page.contains(".SH EXAMPLES\n.nf\nforebay mount \\-\\-scratch 4GiB"), "{page}");
    assert!(!out.join("forebay-completions.1").exists(), "hidden commands have no page");
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&run(&rig, &["completions", shell]).stdout);
        assert!(script.contains("umount") && script.contains("no-fast-path"), "{shell}");
    }
}

/// Changes the offsets of the entries in one page of the namespace database.
fn damage(database: &std::path::Path, page: usize) {
    let mut bytes = fs::read(database).unwrap();
    for byte in &mut bytes[page * 4096 + 16..page * 4096 + 80] {
        *byte ^= 0x55;
    }
    fs::write(database, bytes).unwrap();
}

#[test]
fn check_outlives_a_damaged_database_and_says_so() {
    must_be_root();
    let rig = Rig::new(Flash::Disk);
    rig.mount("8MiB");
    for name in 0..500 {
        fs::write(rig.mnt.join(format!("file {name}")), b"x").unwrap();
    }
    assert!(rig.umount(&["--keep"]).status.success());
    let store = rig.stores().remove(0);
    let database = store.join("meta/namespace/data.mdb");
    let sound = fs::read(&database).unwrap();
    let (mut died, mut found) = (0, 0);
    for page in 2..sound.len() / 4096 {
        damage(&database, page);
        let output = run(&rig, &["check", "--json", store.to_str().unwrap()]);
        let told = text(&output.stdout);
        let value: serde_json::Value = serde_json::from_str(&told).unwrap();
        // A page that is not in use may have any bytes.
        let expected = if value["sound"] == true { 0 } else { 1 };
        assert_eq!(output.status.code(), Some(expected), "page {page}: {told}");
        died += usize::from(told.contains("reading it ended the check"));
        found += usize::from(expected == 1);
        fs::write(&database, &sound).unwrap();
    }
    assert!(died > 0, "nothing here makes the reader crash: this test shows nothing");
    assert!(found > died, "{found} pages found, {died} by the reader's death");
    let output = run(&rig, &["check", store.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stdout));
    // The objects are counted without the database.
    damage(&database, 2);
    let message = failure(&rig.umount(&[]), 1);
    assert!(message.contains("500 files"), "{message}");
    assert!(rig.umount(&["--destroy"]).status.success());
}

#[test]
fn check_says_what_it_is_not() {
    let rig = Rig::new(Flash::Disk);
    let check = |path: &std::path::Path| {
        let output =
            rig.forebay().env_remove("FOREBAY_FLASH").arg("check").arg(path).output().unwrap();
        failure(&output, 1)
    };
    let message = check(&rig.mnt);
    assert!(message.contains("it is no store") && message.contains("--flash"), "{message}");
    let rest = rig.flash.join("forebay-0123456789abcdef");
    fs::create_dir(&rest).unwrap();
    let message = check(&rest);
    assert!(message.contains("no store.json"), "{message}");
    fs::remove_dir(&rest).unwrap();
}

#[test]
fn a_cache_does_not_show_its_own_store() {
    must_be_root();
    let rig = Rig::new(Flash::Memory);
    let inside = rig.mnt.parent().unwrap().join("pfs/tmp");
    fs::create_dir_all(&inside).unwrap();
    let (pfs, inside) = (inside.parent().unwrap().to_str().unwrap(), inside.to_str().unwrap());
    let mnt = rig.mnt.to_str().unwrap();
    let arguments = ["mount", "--cache", pfs, "--capacity", "64MiB", "--flash", inside, mnt];
    let message = failure(&run(&rig, &arguments), 1);
    assert!(message.contains("its own store") && message.contains("--flash"), "{message}");
    assert_eq!(fs::read_dir(inside).unwrap().count(), 0, "nothing is left there");
}

#[test]
fn the_path_of_a_failure_stands_apart_from_what_and_why() {
    let rig = Rig::new(Flash::Disk);
    let (base, told) = (rig.base(), |arguments: &[&OsStr]| {
        let output = rig.run(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        let printed = text(&output.stdout);
        let last: serde_json::Value =
            serde_json::from_str(printed.lines().last().unwrap()).unwrap();
        last["error"].clone()
    });
    let garbage = base.join("garbage");
    fs::write(&garbage, "nonsense = [\n").unwrap();
    let garbage = garbage.to_str().unwrap();
    let trace = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/slow-job/before");
    let trace = trace.to_str().unwrap();
    let export = ["trace", "export", "--json", "--to", "chrome", "-o", "/no/such/x"];
    let enoent = serde_json::json!(libc::ENOENT);
    let null = serde_json::Value::Null;
    for (arguments, what, path, errno) in [
        (vec!["run", "--json", "--resume", "/no/such"], "go on with", "/no/such", &enoent),
        (vec!["run", "--json", "--discard", "/no/such"], "discard", "/no/such", &enoent),
        (vec!["run", "--json", "/no/such"], "read script", "/no/such", &enoent),
        (vec!["validate", "--json", "/no/such"], "read script", "/no/such", &enoent),
        (vec!["report", "--json", garbage], "find a trace in", garbage, &null),
        ([&export[..], &[garbage]].concat(), "find a trace in", garbage, &null),
        ([&export[..], &[trace]].concat(), "write", "/no/such/x", &enoent),
    ] {
        let line: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
        let error = told(&line);
        assert_eq!((&error["what"], &error["path"]), (&what.into(), &path.into()), "{error}");
        assert_eq!(&error["errno"], errno, "{error}");
        let why = error["why"].as_str().unwrap();
        assert!(!why.contains(path) && !why.contains("os error"), "{error}");
    }
}
