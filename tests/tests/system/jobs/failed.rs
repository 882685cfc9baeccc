//! Jobs whose script fails: what becomes of results that it did not write, whose exit code is whose, and how
//! a kept job is given up.

use super::place::{Place, Run, signal, until};
use forebay_tests::buffer::{alive, binary};
use forebay_tests::procs;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

const STRIPED: &str = "jobdw type=scratch capacity=64MiB access_mode=striped";
const IN: &str = "stage_in type=directory source=@PFS@/in destination=$DW_JOB_STRIPED/";
const OUT: &str =
    "stage_out type=directory source=$DW_JOB_STRIPED/results destination=@PFS@/results";
const LOG: &str = "stage_out type=file source=$DW_JOB_STRIPED/log destination=@PFS@/log";
const LIST: &str = "stage_out type=list source=$DW_JOB_STRIPED/list destination=@PFS@/listed";

fn place_with_input() -> Place {
    let place = Place::new();
    fs::create_dir_all(place.pfs("in/deep")).unwrap();
    fs::write(place.pfs("in/a"), "alpha").unwrap();
    fs::write(place.pfs("in/deep/b"), "beta").unwrap();
    place
}

#[test]
fn a_script_that_fails_before_its_results_exist_ends_with_its_own_code() {
    for (modes, body, code) in [
        ("striped", "exit 7", 7),
        ("striped,private", ": > ${DW_JOB_STRIPED}empty; rm ${DW_JOB_STRIPED}a; exit 7", 7),
        ("striped", "mkdir ${DW_JOB_STRIPED}other; kill -9 $$", 128 + 9),
    ] {
        let place = place_with_input();
        let jobdw = format!("jobdw type=scratch capacity=64MiB access_mode={modes}");
        let run = place.run(&place.script(&[&jobdw, IN, OUT, LOG, LIST], body), &[]).expect(code);
        assert_eq!(run.summary()["outcome"], "done");
        let detail = run.step("data-out")["detail"].to_string();
        assert!(detail.contains("line 4, 5, 6: the script failed before it wrote"), "{detail}");
        assert!(!place.pfs("results").exists() && !place.pfs("log").exists());
        place.assert_clean();
    }
}

#[test]
fn results_that_a_failed_script_wrote_are_staged_out_without_those_that_it_did_not() {
    let place = place_with_input();
    let body = "cd $DW_JOB_STRIPED; mkdir results; echo partial > results/x; echo y > y\n\
        echo y > list; exit 7";
    let run = place.run(&place.script(&[STRIPED, IN, LOG, OUT, LIST], body), &[]).expect(7);
    assert_eq!(fs::read_to_string(place.pfs("results/x")).unwrap(), "partial\n", "{}", run.err);
    assert_eq!(fs::read_to_string(place.pfs("listed/y")).unwrap(), "y\n", "{}", run.err);
    place.assert_clean();
}

/// What only the buffer has after a failed script, as a name below it.
#[test]
fn files_that_only_the_buffer_has_keep_it_until_they_are_discarded() {
    for (body, only) in [
        ("mkdir results.tmp; echo partial > results.tmp/x", "results.tmp/x"),
        // An input that the script wrote to is not the input any more.
        ("echo more >> deep/b", "deep/b"),
    ] {
        let place = place_with_input();
        let body = format!("cd $DW_JOB_STRIPED; {body}; exit 7");
        let run = place.run(&place.script(&[STRIPED, IN, OUT], &body), &[]).expect(121);
        assert!(run.err.contains(&format!("such as {only} (1 in all")), "{}", run.err);
        assert!(run.mount_point().join(only).exists());
        let give_up = run.err.lines().find(|line| line.contains("run --discard")).unwrap();
        assert!(give_up.ends_with(&run.record()), "{give_up}");
        let discarded = place.discard(&run.record()).expect(0);
        assert!(discarded.err.contains("its buffer holds "), "{}", discarded.err);
        let held = discarded.summary();
        assert_eq!(held["outcome"], "discarded");
        assert!(held["files"].as_u64().unwrap() >= 1 && held["bytes"].as_u64().unwrap() > 0);
        place.assert_clean();
    }
}

#[test]
fn a_result_that_was_not_written_does_not_hide_one_that_was_not_staged_out() {
    let place = place_with_input();
    // A file where the results are to go.
    let body =
        "cd $DW_JOB_STRIPED; mkdir results; echo x > results/x; echo > @PFS@/results; exit 7";
    let run = place.run(&place.script(&[STRIPED, LOG, OUT], body), &[]).expect(121);
    assert_eq!(run.summary()["outcome"], "results-missing");
    let record: Value = serde_json::from_slice(&fs::read(run.record()).unwrap()).unwrap();
    assert_eq!(record["outcome"], "results-missing");
    assert!(run.mount_point().join("results/x").exists());
    fs::remove_file(place.pfs("results")).unwrap();
    let resumed = place.resume(&run.record()).expect(7);
    assert_eq!(fs::read_to_string(place.pfs("results/x")).unwrap(), "x\n", "{}", resumed.err);
    place.assert_clean();
}

#[test]
fn exit_codes_of_a_script_are_told_from_those_of_the_runner() {
    for code in 120..=123 {
        let place = Place::new();
        let body = format!("mkdir ${{DW_JOB_STRIPED}}results; exit {code}");
        let run = place.run(&place.script(&[STRIPED, OUT], &body), &[]).expect(code);
        assert_eq!(run.summary()["outcome"], "done");
        assert_eq!(run.summary()["script_exit"]["code"], code);
        let last = run.err.lines().last().unwrap();
        assert_eq!(
            last,
            format!("forebay: exit code {code}: it is the script's own, all steps were done")
        );
        assert!(!run.err.contains("Nothing is lost"), "{}", run.err);
        assert_eq!(run.summary()["resume"], Value::Null);
        place.assert_clean();
    }
    let place = Place::new();
    let run = place.run(&place.script(&[STRIPED, OUT], "exit 0"), &[]).expect(121);
    assert_eq!(run.summary()["outcome"], "results-missing");
    let last = run.err.lines().last().unwrap();
    assert!(last.starts_with("forebay: exit code 121: results are missing on the PFS"), "{last}");
    place.discard(&run.record()).expect(0);
    place.assert_clean();
}

/// A directory that nobody can remove.
struct Immutable(PathBuf);

impl Immutable {
    fn end(&self) {
        let _ = Command::new("chattr").arg("-i").arg(&self.0).status();
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn a_buffer_that_cannot_be_removed_is_told_by_each_resume_until_it_can() {
    let place = Place::new();
    let body = "mkdir ${DW_JOB_STRIPED}results\n\
        for held in @PFS@/../flash/forebay-*/data/*; do break; done\n\
        chattr +i $held; printf %s $held > @PFS@/held";
    let script = place.script(&[STRIPED, OUT], body);
    let mut command = place.command(&["--store", "directory", "--flash"]);
    let run = Run::wait(command.arg(place.flash()).arg(script).spawn().unwrap());
    let held = Immutable(fs::read_to_string(place.pfs("held")).unwrap().into());
    let run = run.expect(122);
    assert_eq!(run.summary()["outcome"], "not-removed");
    let again = place.resume(&run.record()).expect(122);
    assert_eq!(again.summary()["outcome"], "not-removed");
    assert_eq!(again.record(), run.record());
    let detail = again.step("teardown")["detail"].to_string();
    assert!(detail.contains("Operation not permitted"), "{detail}");
    assert!(again.err.contains("Something of the job is left"), "{}", again.err);
    held.end();
    place.resume(&run.record()).expect(0);
    place.assert_clean();
}

#[test]
fn a_discard_that_cannot_remove_the_buffer_says_that_the_job_is_given_up_and_goes_on_later() {
    let place = Place::new();
    let body = "echo x > ${DW_JOB_STRIPED}x\n\
        for held in @PFS@/../flash/forebay-*/data/*; do break; done\n\
        chattr +i $held; printf %s $held > @PFS@/held";
    let script = place.script(&[STRIPED, OUT], body);
    let mut command = place.command(&["--store", "directory", "--flash"]);
    let run = Run::wait(command.arg(place.flash()).arg(script).spawn().unwrap());
    let held = Immutable(fs::read_to_string(place.pfs("held")).unwrap().into());
    let run = run.expect(121);
    let record = run.record();
    let failed = place.discard(&record).expect(122);
    let finish = format!("run --discard {record}");
    for said in
        ["the job is given up, but not all of it is removed", "What may be left:", finish.as_str()]
    {
        assert!(failed.err.contains(said), "not said: {said}\n{}", failed.err);
    }
    assert!(!failed.err.contains("run --resume"), "{}", failed.err);
    let summary = failed.summary();
    assert_eq!(summary["outcome"], "given-up", "{summary}");
    assert!(summary["left"].to_string().contains("Operation not permitted"), "{summary}");
    let refused = place.resume(&record).expect(1);
    assert_eq!(refused.summary()["outcome"], "given-up", "{}", refused.err);
    held.end();
    assert_eq!(place.discard(&record).expect(0).summary()["outcome"], "discarded");
    place.assert_clean();
}

/// Mounted again it would be an empty one, whose results are "missing".
#[test]
fn a_job_whose_buffer_was_destroyed_with_its_mount_is_not_resumed() {
    let place = Place::new();
    let body = "cd $DW_JOB_STRIPED; mkdir results; echo x > results/x; echo > @PFS@/results";
    let run = place.run(&place.script(&[STRIPED, OUT], body), &[]).expect(121);
    let record = run.record();
    let mut destroy = Command::new(binary());
    procs::run(destroy.args(["umount", "--destroy"]).arg(run.mount_point()));
    fs::remove_file(place.pfs("results")).unwrap();
    let listed = listed_with(&place, "discard", &record);
    assert_eq!(listed["state"], "gone", "{listed}");
    let refused = place.resume(&record).expect(121);
    assert!(refused.err.contains("the buffer of this job is gone: nothing is"), "{}", refused.err);
    assert!(refused.err.contains(&format!("run --discard {record}")), "{}", refused.err);
    assert!(!refused.err.contains("Nothing is lost"), "{}", refused.err);
    assert_eq!(refused.summary()["outcome"], "buffer-gone");
    assert_eq!(place.mounts(), Vec::<PathBuf>::new(), "an empty one was made");
    listed_with(&place, "discard", &record);
    let discarded = place.discard(&record).expect(0);
    assert!(discarded.err.contains("there is none any more: nothing is"), "{}", discarded.err);
    place.assert_clean();
}

/// What `forebay status` lists of the flash with this record, to be ended by this command.
#[track_caller]
fn listed_with(place: &Place, command: &str, record: &str) -> Value {
    let mut status = Command::new(binary());
    let status = status.args(["status", "--json", "--flash"]).arg(place.flash()).output().unwrap();
    let listed: Value = serde_json::from_slice(&status.stdout).unwrap();
    let found = listed["buffers"].as_array().unwrap().iter().find(|entry| entry[command] == record);
    found.unwrap_or_else(|| panic!("no {command} {record} in {listed}")).clone()
}

/// A job on this flash whose directory lies elsewhere and whose results are missing; what serves its mount is dead, as after a restart
/// of the node, and what hindered its results is removed. Its record.
fn left_elsewhere(place: &Place) -> String {
    let body = "cd $DW_JOB_STRIPED; mkdir results; echo x > results/x; echo > @PFS@/results";
    let script = place.script(&[STRIPED, OUT], body);
    let mut command = place.command(&["--work-dir", "work", "--store", "directory", "--flash"]);
    let run = Run::wait(command.arg(place.flash()).arg(script).spawn().unwrap()).expect(121);
    fs::remove_file(place.pfs("results")).unwrap();
    let server = place.server_of(&run.mount_point());
    signal(server, libc::SIGKILL);
    until("the server is gone", || !alive(server));
    procs::run(Command::new("umount").arg("-l").arg(run.mount_point()));
    run.record()
}

/// Neither command changed anything, and each said why.
#[track_caller]
fn refused_without_flash(place: &Place, record: &str) {
    let before = fs::read(record).unwrap();
    let each = [
        (place.resume(record), 121, "results-missing"),
        (place.discard(record), 122, "not-removed"),
    ];
    for (refused, code, outcome) in each {
        let refused = refused.expect(code);
        let said =
            "has not what the job left there: is its file system mounted? Nothing is changed";
        assert!(refused.err.contains(said), "{}", refused.err);
        assert!(!refused.err.contains("lost"), "{}", refused.err);
        assert_eq!(refused.summary()["outcome"], outcome);
        assert_eq!(fs::read(record).unwrap(), before, "something was changed");
    }
}

/// What is at the path of the flash then has no buffer of the job: that is no sign that it was destroyed.
#[test]
fn a_job_whose_flash_is_not_mounted_is_kept_until_it_is() {
    let place = Place::new();
    let (flash, disk) = (place.flash(), place.base.join("disk"));
    fs::create_dir(&disk).unwrap();
    procs::run(Command::new("mount").arg("--bind").arg(&disk).arg(&flash));
    let record = left_elsewhere(&place);
    let unmounted = || Command::new("umount").arg(&flash).status().unwrap().success();
    until("the flash is not mounted", unmounted);
    refused_without_flash(&place, &record);
    assert_eq!(fs::read_dir(&flash).unwrap().count(), 0, "something was made there");
    procs::run(Command::new("mount").arg("--bind").arg(&disk).arg(&flash));
    let listed = listed_with(&place, "resume", &record);
    assert_eq!(listed["state"], "kept", "{listed}");
    let resumed = place.resume(&record).expect(0);
    assert_eq!(fs::read_to_string(place.pfs("results/x")).unwrap(), "x\n", "{}", resumed.err);
    until("the flash is not mounted", unmounted);
    assert_eq!(fs::read_dir(&disk).unwrap().count(), 0, "something is left there");
    place.assert_clean();
}

#[test]
fn a_job_whose_flash_was_emptied_is_discarded_by_force() {
    let place = Place::new();
    let record = left_elsewhere(&place);
    fs::remove_dir_all(place.flash()).unwrap();
    refused_without_flash(&place, &record);
    fs::create_dir(place.flash()).unwrap();
    refused_without_flash(&place, &record);
    // The command that is told, as it is printed.
    let told = place.discard(&record).expect(122).err;
    let printed = told.lines().find(|line| line.ends_with("--force")).unwrap();
    let (_, args) = printed.split_once(" run ").unwrap();
    let args: Vec<&str> = args.split(' ').collect();
    let discarded = Run::wait(place.command(&args).spawn().unwrap()).expect(0);
    assert_eq!(discarded.summary()["outcome"], "discarded", "{}", discarded.err);
    assert_eq!(fs::read_dir(place.base.join("work")).unwrap().count(), 0);
    place.assert_clean();
}

/// That frees room: it must not need any.
#[test]
fn a_job_is_discarded_on_flash_that_others_have_filled_to_the_last_byte() {
    let place = Place::new();
    let flash = place.flash();
    let mut mount = Command::new("mount");
    procs::run(mount.args(["-t", "tmpfs", "-o", "size=32m,mode=755", "flash"]).arg(&flash));
    let jobdw = "jobdw type=scratch capacity=4MiB access_mode=striped";
    let script = place.script(&[jobdw, OUT], "echo x > ${DW_JOB_STRIPED}x; exit 3");
    let mut command = place.command(&["--store", "directory", "--flash"]);
    let run = Run::wait(command.arg(&flash).arg(script).spawn().unwrap()).expect(121);
    let full = flash.join("of others");
    let mut file = fs::File::create(&full).unwrap();
    while std::io::Write::write(&mut file, &[1; 4096]).is_ok() {}
    drop(file);
    assert!(fs::write(flash.join("more"), [1; 4096]).is_err(), "the flash is not full");
    fs::remove_file(flash.join("more")).unwrap();
    let discarded = place.discard(&run.record()).expect(0);
    assert_eq!(discarded.summary()["outcome"], "discarded", "{}", discarded.err);
    fs::remove_file(&full).unwrap();
    let left = procs::run(Command::new("find").arg(&flash).args(["-mindepth", "1", "-ls"]));
    assert!(left.is_empty(), "left on flash: {left}");
    procs::run(Command::new("umount").arg(&flash));
    place.assert_clean();
}

#[test]
fn a_buffer_whose_job_has_no_directory_any_more_is_listed_with_what_ends_it() {
    let place = Place::new();
    let record = left_elsewhere(&place);
    let dir = PathBuf::from(&record).parent().unwrap().to_path_buf();
    fs::remove_dir_all(&dir).unwrap();
    let mut status = Command::new(binary());
    let listed = procs::run(status.args(["status", "--json", "--flash"]).arg(place.flash()));
    let listed: Value = serde_json::from_str(&listed).unwrap();
    // Mounts of others may be there.
    let is_its = |entry: &&Value| {
        entry["mount_point"].as_str().is_some_and(|point| point.starts_with(dir.to_str().unwrap()))
    };
    let kept = listed["buffers"].as_array().unwrap().iter().find(is_its).unwrap();
    assert_eq!(kept["state"], "kept", "{listed}");
    let why = kept["why"].as_str().unwrap();
    assert!(why.contains(&format!("{}, was deleted", dir.display())), "{why}");
    // The command that is told, as it is printed.
    let printed = why.split('`').nth(1).unwrap();
    procs::run(Command::new(binary()).args(printed.split(' ').skip(1)));
    place.run(&place.script(&[STRIPED], "true"), &[]).expect(0);
    place.assert_clean();
}

#[test]
fn a_job_whose_directory_lies_elsewhere_is_pointed_out_as_well() {
    let place = Place::new();
    let run = |script: PathBuf| {
        let mut command = place.command(&["--work-dir", "work", "--flash"]);
        Run::wait(command.arg(place.flash()).arg(script).spawn().unwrap())
    };
    let kept = run(place.script(&[STRIPED, OUT], "exit 0")).expect(121);
    let record = kept.record();
    // One whose directory somebody has deleted.
    let link = place.flash().join("forebay-jobs-0/job-1-1");
    std::os::unix::fs::symlink(place.base.join("work/job-1-1"), &link).unwrap();
    let next = run(place.script(&[STRIPED], "true")).expect(0);
    let finish = format!("run --resume {record}");
    assert_eq!(next.err.matches(&finish).count(), 1, "{}", next.err);
    assert!(fs::symlink_metadata(&link).is_err(), "a link to nothing is left");
    let elsewhere = place.run(&place.script(&[STRIPED], "true"), &[]).expect(0);
    assert_eq!(elsewhere.err.matches(&finish).count(), 1, "{}", elsewhere.err);
    listed_with(&place, "resume", &record);
    place.discard(&record).expect(0);
    place.assert_clean();
}

#[test]
fn a_job_is_discarded_after_its_runner_and_its_server_were_killed_and_not_before() {
    let place = Place::new();
    let body = "cd $DW_JOB_STRIPED; echo 12345 > x; echo $$ > ready\n\
        while :; do sleep 0.05; done";
    let mut child = place.start(&place.script(&[STRIPED, OUT], body), &[]);
    let find = || {
        let mounts = place.mounts();
        mounts.into_iter().find(|m| fs::read(m.join("ready")).is_ok_and(|text| !text.is_empty()))
    };
    until("the script runs", || find().is_some());
    let mount = find().unwrap();
    let record: PathBuf = mount.parent().unwrap().join("job.json");
    let discard = || place.discard(record.to_str().unwrap());
    let script: i32 = fs::read_to_string(mount.join("ready")).unwrap().trim().parse().unwrap();
    let refused: Run = discard().expect(1);
    assert!(refused.err.contains("runs this job"), "{}", refused.err);
    signal(child.id() as i32, libc::SIGKILL);
    child.wait().unwrap();
    let refused = discard().expect(1);
    assert!(refused.err.contains("its script still runs"), "{}", refused.err);
    let server = place.server_of(&mount);
    for pid in [-script, server] {
        signal(pid, libc::SIGKILL);
    }
    until("the script and the server are gone", || !alive(script) && !alive(server));
    let discarded = discard().expect(0);
    assert!(discarded.err.contains("its buffer holds 2 files"), "{}", discarded.err);
    place.assert_clean();
}

/// A job with so many small files as input, in a buffer of 2 MiB: 512 blocks.
fn small_files(count: u32) -> (Place, PathBuf) {
    let place = Place::new();
    fs::create_dir(place.pfs("many")).unwrap();
    for number in 0..count {
        fs::write(place.pfs(&format!("many/{number}")), [b'x'; 50]).unwrap();
    }
    let jobdw = "jobdw type=scratch capacity=2MiB access_mode=striped";
    let input = "stage_in type=directory source=@PFS@/many destination=$DW_JOB_STRIPED/many";
    let script = place.script(&[jobdw, input], "ls ${DW_JOB_STRIPED}many | wc -l");
    (place, script)
}

/// Longer than a look at a mount takes, and than a `--discard` waits for one.
const STOPPED: Duration = Duration::from_secs(25);

#[test]
fn a_job_is_resumed_on_its_mount_that_was_stopped_for_long_and_answers_again() {
    let place = Place::new();
    // A file where the results are to go.
    let body = "cd $DW_JOB_STRIPED; mkdir results; echo x > results/x; echo > @PFS@/results";
    let run = place.run(&place.script(&[STRIPED, OUT], body), &[]).expect(121);
    fs::remove_file(place.pfs("results")).unwrap();
    let mount = place.server_of(&run.mount_point());
    signal(mount, libc::SIGSTOP);
    let resumed = place.command(&["--resume", &run.record()]).spawn().unwrap();
    std::thread::sleep(STOPPED);
    signal(mount, libc::SIGCONT);
    let resumed = Run::wait(resumed).expect(0);
    assert_eq!(fs::read_to_string(place.pfs("results/x")).unwrap(), "x\n", "{}", resumed.err);
    place.assert_clean();
}

/// A destination at or below a mount point of /etc/fstab at which nothing is mounted would be refused in data-out, when the script
/// has run.
#[test]
fn a_job_whose_results_go_to_a_pfs_that_is_not_mounted_is_refused_beforehand() {
    let place = Place::new();
    fs::create_dir(place.pfs("scratch")).unwrap();
    let table = place.base.join("fstab");
    let point = place.pfs("scratch");
    fs::write(&table, format!("mgs@tcp:/w {} lustre _netdev 0 0\n", point.display())).unwrap();
    let script = |to: &str| {
        let out = "stage_out type=directory source=$DW_JOB_STRIPED/r destination=@PFS@/scratch";
        let jobdw = "jobdw type=scratch capacity=2MiB access_mode=striped";
        place.script(&[jobdw, &format!("{out}/{to}")], "touch @PFS@/started")
    };
    place.validate(&script("run")).expect(0);
    // Below a directory that is missing with the file system as well.
    let each = [("run", "validate"), ("run", "run"), ("deep/run", "validate"), ("deep/run", "run")];
    for (to, command) in each {
        let script = script(to);
        let shell = format!("mount --bind {} /etc/fstab; exec \"$@\"", table.display());
        let mut forebay = Command::new("unshare");
        forebay.args(["--mount", "--propagation", "private", "sh", "-ec", &shell, "sh"]);
        forebay.arg(binary()).args([command, "--flash"]).arg(place.flash()).arg(&script);
        let said = forebay.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let refused = Run::wait(said).expect(if command == "run" { 120 } else { 1 });
        let why = format!("{}: /etc/fstab names it as a mount point, and nothing", point.display());
        assert!(refused.err.contains(&why), "{command} {to}: {}", refused.err);
    }
    assert!(!place.pfs("started").exists());
    place.assert_clean();
}

#[test]
fn what_validate_accepts_is_staged_in_and_what_it_refuses_is_not() {
    let (place, script) = small_files(512);
    place.validate(&script).expect(0);
    let run = place.run(&script, &[]).expect(0);
    assert!(run.out.starts_with("512\n"), "{}", run.out);
    place.assert_clean();

    let (place, script) = small_files(513);
    let refused = place.validate(&script).expect(1);
    assert!(refused.err.contains("take 2.00 MiB on flash"), "{}", refused.err);
    assert!(place.run(&script, &[]).expect(120).err.contains("ask for a larger capacity="));
    // It does not fit, as said.
    let mount = place.base.join("mnt");
    fs::create_dir(&mount).unwrap();
    let forebay = || Command::new(binary());
    let flash = place.flash();
    procs::run(forebay().args(["mount", "--scratch", "2MiB", "--flash"]).arg(&flash).arg(&mount));
    let mut stage = forebay();
    let (done, said) =
        procs::try_run(stage.args(["stage", "in"]).arg(place.pfs("many")).arg(mount.join("many")));
    assert!(!done && said.contains("No space left on device"), "{said}");
    procs::run(forebay().args(["umount", "--force"]).arg(&mount));
}
