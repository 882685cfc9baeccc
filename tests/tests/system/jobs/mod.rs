//! Jobs on real mounts: `forebay run` with #DW scripts, from stage-in to teardown, and what is
//! left when a step fails, the PFS refuses, or the runner is killed. Jobs at a server are in `served`, those
//! with a cache in `cached`, those that are given up in `given_up`.

// Helpers of tests may stop the test.
#![allow(clippy::unwrap_used)]

mod cached;
mod failed;
mod given_up;
mod place;
mod served;
mod servers;

use crate::umount_copies::Copy;
use forebay_tests::buffer::binary;
use place::{Place, Run, signal, until};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const STRIPED: &str = "jobdw type=scratch capacity=64MiB access_mode=striped";
const OUT: &str =
    "stage_out type=directory source=$DW_JOB_STRIPED/results destination=@PFS@/results";

#[test]
fn a_job_gets_its_input_and_leaves_its_results() {
    let place = Place::new();
    fs::create_dir_all(place.pfs("in/deep")).unwrap();
    fs::write(place.pfs("in/a"), "alpha").unwrap();
    fs::write(place.pfs("in/deep/b"), "beta").unwrap();
    fs::write(place.pfs("one file"), "gamma").unwrap();
    fs::write(place.pfs("list"), format!("{}\n", place.pfs("one file").display())).unwrap();
    fs::write(place.pfs("single"), "delta").unwrap();
    let script = place.script(
        &[
            STRIPED,
            "stage_in type=directory source=@PFS@/in destination=$DW_JOB_STRIPED/in",
            "stage_in type=list source=@PFS@/list destination=$DW_JOB_STRIPED/listed",
            "stage_in type=file source=@PFS@/single destination=$DW_JOB_STRIPED/made/single",
            OUT,
        ],
        r#"case "$DW_JOB_STRIPED" in */) ;; *) echo "no slash at the end"; exit 9;; esac
[ -z "${DW_JOB_PRIVATE-}" ] || exit 8
[ -d "$FOREBAY_BUFFER" ] || exit 7
mkdir "${DW_JOB_STRIPED}results"
cat "${DW_JOB_STRIPED}in/a" "${DW_JOB_STRIPED}in/deep/b" "${DW_JOB_STRIPED}listed/one file" \
  "${DW_JOB_STRIPED}made/single" > "${DW_JOB_STRIPED}results/all"
printf '%s|' "$@" > "${DW_JOB_STRIPED}results/args"
echo said"#,
    );
    let run = place.run(&script, &["first", "with blank", "--json"]).expect(0);
    assert_eq!(fs::read_to_string(place.pfs("results/all")).unwrap(), "alphabetagammadelta");
    assert_eq!(fs::read_to_string(place.pfs("results/args")).unwrap(), "first|with blank|--json|");
    assert!(run.out.starts_with("said\n"), "{}", run.out);
    let (moved_in, moved_out) = (run.step("data-in"), run.step("data-out"));
    assert_eq!(moved_in["bytes"], 19, "{moved_in}");
    // The directory in the tree is no file.
    assert!(moved_in["files"] == 4 && moved_in["other_entries"] == 1, "{moved_in}");
    assert!(run.err.contains("4 files, 19 B, and 1 other entry in "), "{}", run.err);
    assert_eq!(moved_out["bytes"], 19 + 24, "{moved_out}");
    assert_eq!(run.summary()["steps"].as_array().unwrap().len(), 8);
    place.assert_clean();
}

/// A job that was submitted under umask 000.
/// With `preload=yes` what the script starts asks the mount's process, and otherwise it does not; other preloads stay.
#[test]
fn a_job_runs_with_the_preload_library_if_it_asks_for_it() {
    let place = Place::new();
    let body = r#"mkdir "${DW_JOB_STRIPED}results"; cd "${DW_JOB_STRIPED}results"
export FOREBAY_PRELOAD_REPORT="$1"
bash -c 'echo one > f; echo two >> f'
echo "${LD_PRELOAD-}""#;
    for (word, asks) in [("yes", true), ("no", false)] {
        let jobdw = format!("{STRIPED} preload={word}");
        let script = place.script(&[&jobdw, OUT], body);
        let report = place.base.join(format!("report.{word}"));
        let mut command = place.command(&["--flash"]);
        command.env("LD_PRELOAD", "/none.so").arg(place.flash()).arg(&script).arg(&report);
        let run = Run::wait(command.spawn().unwrap()).expect(0);
        assert_eq!(fs::read_to_string(place.pfs("results/f")).unwrap(), "one\ntwo\n");
        let library = run.out.lines().next().unwrap_or_default().to_string();
        assert_eq!(library.contains("libforebay_preload.so:/none.so"), asks, "{}", run.out);
        let told = fs::read_to_string(&report).unwrap_or_default();
        assert_eq!(told.contains(" open "), asks, "{told}");
        let said = place.validate(&script);
        assert_eq!(said.out.contains("\npreload "), asks, "{}", said.out);
        fs::remove_dir_all(place.pfs("results")).unwrap();
    }
    place.assert_clean();
}

#[test]
fn records_of_a_job_are_its_owners_whatever_the_umask() {
    let place = Place::new();
    let body = "find @PFS@/../work -type f -printf '%m %f\\n' > @PFS@/modes";
    let (work, mnt) = (place.base.join("work"), place.base.join("above/mnt"));
    let mut command = place.command(&["--flash"]);
    command.arg(place.flash()).arg("--work-dir").arg(&work).arg("--mount-dir").arg(&mnt);
    command.arg(place.script(&[STRIPED], body));
    let open_to_all = || {
        // SAFETY: a number of this child changes, before it becomes another program.
        unsafe { libc::umask(0) };
        Ok(())
    };
    // SAFETY: nothing is allocated between fork and exec.
    unsafe { command.pre_exec(open_to_all) };
    let run = Run::wait(command.spawn().unwrap()).expect(0);
    let modes = fs::read_to_string(place.pfs("modes")).unwrap();
    for wanted in ["644 job.json", "600 mount.stdout", "600 mount.stderr"] {
        assert!(modes.lines().any(|line| line == wanted), "no {wanted}: {modes}{}", run.err);
    }
    for dir in [&work, &place.base.join("above")] {
        let mode = fs::metadata(dir).unwrap().permissions().mode();
        assert_eq!(mode & 0o022, 0, "{} {mode:o}", dir.display());
    }
    place.assert_clean();
}

#[test]
fn results_of_a_failed_script_are_staged_out_and_its_code_is_returned() {
    let place = Place::new();
    let body = "cd $DW_JOB_STRIPED; mkdir results; echo partial > results/x; exit 7";
    let run = place.run(&place.script(&[STRIPED, OUT], body), &[]).expect(7);
    assert_eq!(fs::read_to_string(place.pfs("results/x")).unwrap(), "partial\n");
    assert_eq!(run.step("run")["ended"], "failed");
    place.assert_clean();
}

#[test]
fn results_of_a_script_killed_by_a_signal_are_staged_out() {
    let place = Place::new();
    let body = "cd $DW_JOB_STRIPED; mkdir results; echo partial > results/x; kill -9 $$";
    let run = place.run(&place.script(&[STRIPED, OUT], body), &[]).expect(128 + 9);
    assert_eq!(fs::read_to_string(place.pfs("results/x")).unwrap(), "partial\n");
    assert_eq!(run.summary()["script_exit"]["signal"], 9);
    place.assert_clean();
}

#[test]
fn signals_are_passed_to_the_whole_group_and_results_are_staged_out() {
    for number in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let place = Place::new();
        let body = "cd $DW_JOB_STRIPED; mkdir results\n\
            trap 'echo caught > results/caught; exit 3' INT TERM HUP\n\
            (trap 'echo child > results/child; exit' INT TERM HUP\n\
             echo > results/ready; while :; do sleep 0.05; done) & wait";
        let script = place
            .script(&[STRIPED, OUT, "jobdw type=scratch capacity=1MiB access_mode=private"], body);
        let child = place.start(&script, &[]);
        let ready = || place.mounts().iter().any(|m| m.join("striped/results/ready").exists());
        until("the script runs", ready);
        signal(child.id() as i32, number);
        let run = Run::wait(child).expect(3);
        assert!(place.pfs("results/caught").exists(), "{}", run.err);
        assert!(place.pfs("results/child").exists(), "{}", run.err);
        assert_eq!(run.step("run")["ended"], "interrupted");
        place.assert_clean();
    }
}

#[test]
fn the_script_does_not_inherit_blocked_signals() {
    let place = Place::new();
    let body = "mkdir ${DW_JOB_STRIPED}results; grep SigBlk /proc/self/status > @PFS@/mask\n\
        echo > ${DW_JOB_STRIPED}ready; exec sleep 60";
    let script = place.script(&[STRIPED, OUT], body);
    // bash leaves the mask as it is; other shells clear it.
    let text = fs::read_to_string(&script).unwrap().replace("#!/bin/sh -u", "#!/bin/bash");
    fs::write(&script, text).unwrap();
    let child = place.start(&script, &[]);
    let find = || place.mounts().into_iter().find(|mount| mount.join("ready").exists());
    until("the script runs", || find().is_some());
    let text = fs::read_to_string(place.pfs("mask")).unwrap();
    let mask = text.trim().strip_prefix("SigBlk:").unwrap().trim();
    assert_eq!(u64::from_str_radix(mask, 16).unwrap(), 0, "blocked: {mask}");
    signal(child.id() as i32, libc::SIGINT);
    Run::wait(child).expect(128 + libc::SIGINT);
    place.assert_clean();
}

#[test]
fn a_signal_that_is_ignored_from_the_start_stays_ignored() {
    let place = Place::new();
    let body = "cd $DW_JOB_STRIPED; mkdir results; echo > results/ready\n\
        while [ ! -e @PFS@/go ]; do sleep 0.05; done; echo > results/end";
    let script = place.script(&[STRIPED, OUT], body);
    // As nohup(1) starts it.
    let mut command = Command::new("env");
    command.args(["--ignore-signal=HUP"]).arg(binary()).args(["run", "--json", "--flash"]);
    command.arg(place.flash()).arg(script).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    until("the script runs", || place.mounts().iter().any(|m| m.join("results/ready").exists()));
    signal(child.id() as i32, libc::SIGHUP);
    std::thread::sleep(Duration::from_millis(300));
    fs::write(place.pfs("go"), "").unwrap();
    Run::wait(child).expect(0);
    assert!(place.pfs("results/end").exists());
    place.assert_clean();
}

/// Waits until a process has taken a signal that it was sent: another one of the kind would be the same one until then.
fn until_taken(pid: u32, number: i32) {
    until("the signal is taken", || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let pending = status.lines().filter_map(|line| {
            let mask = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
            u64::from_str_radix(mask.trim(), 16).ok()
        });
        pending.fold(0, |all, mask| all | mask) & (1 << (number - 1)) == 0
    });
}

#[test]
fn a_script_that_ignores_a_signal_is_killed_by_the_second() {
    let place = Place::new();
    let body = "cd $DW_JOB_STRIPED; mkdir results; trap '' INT\n\
        echo > results/ready; while :; do sleep 0.05; done";
    let child = place.start(&place.script(&[STRIPED, OUT], body), &[]);
    until("the script runs", || place.mounts().iter().any(|m| m.join("results/ready").exists()));
    signal(child.id() as i32, libc::SIGINT);
    until_taken(child.id(), libc::SIGINT);
    std::thread::sleep(Duration::from_millis(300));
    signal(child.id() as i32, libc::SIGINT);
    let run = Run::wait(child).expect(128 + 9);
    assert!(place.pfs("results/ready").exists(), "{}", run.err);
    place.assert_clean();
}

#[test]
fn what_the_script_leaves_running_does_not_hold_the_buffer() {
    let place = Place::new();
    let body = "cd $DW_JOB_STRIPED; mkdir results; echo > results/x\n\
        sh -c 'trap \"\" TERM; exec 9> held; while :; do sleep 1; done' > /dev/null 2>&1 &";
    let run = place.run(&place.script(&[STRIPED, OUT], body), &[]).expect(0);
    let detail = run.step("post-run")["detail"].to_string();
    assert!(detail.contains("left"), "{detail}");
    place.assert_clean();
}

#[test]
fn a_process_that_left_the_group_does_not_hold_the_buffer() {
    let place = Place::new();
    let body = "cd $DW_JOB_STRIPED; mkdir results; echo > results/x\n\
        setsid sh -c 'exec 9> held; echo $$ > @PFS@/pid; exec sleep 60' > /dev/null 2>&1 &\n\
        while [ ! -s @PFS@/pid ]; do sleep 0.05; done";
    let run = place.run(&place.script(&[STRIPED, OUT], body), &[]).expect(0);
    let pid = fs::read_to_string(place.pfs("pid")).unwrap().trim().parse().unwrap();
    assert!(forebay_tests::buffer::alive(pid), "the process was to outlive the job");
    signal(pid, libc::SIGKILL);
    assert!(run.err.contains("by force"), "{}", run.err);
    assert!(place.pfs("results/x").exists());
    until("the detached mount is gone", || place.mounts().is_empty());
    place.assert_clean();
}

#[test]
fn a_teardown_that_waits_for_a_copy_of_the_mount_says_who_has_it() {
    let place = Place::new();
    let body = "cd $DW_JOB_STRIPED; mkdir results; echo > results/ready\n\
        while [ ! -e @PFS@/go ]; do sleep 0.05; done";
    let mut child = place.start(&place.script(&[STRIPED, OUT], body), &[]);
    let find = || place.mounts().into_iter().find(|mount| mount.join("results/ready").exists());
    until("the script runs", || find().is_some());
    // It ends by itself if nothing is said.
    let copy = Copy::doing(&find().unwrap(), "exec sleep 40");
    fs::write(place.pfs("go"), "").unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let line = said.find(|line| line.contains(": waiting for the end of its last copy: "));
    let line = line.expect("it ended and has not said what it waited for");
    assert!(line.starts_with("forebay: teardown: ") && line.contains(&copy.named()), "{line}");
    assert!(line.ends_with(" ends it there, too; this wait ends after 300 s"), "{line}");
    assert!(child.try_wait().unwrap().is_none(), "it waits: {line}");
    drop(copy);
    let rest: Vec<String> = said.collect();
    let run = Run::wait(child).expect(0);
    assert_eq!(run.step("teardown")["ended"], "ok", "{rest:?}");
    place.assert_clean();
}

#[test]
fn a_runner_killed_at_any_moment_leaves_a_job_that_can_be_finished() {
    // Setup, data-in, run and the steps after it are all within these times.
    for delay_ms in (0..300).step_by(12) {
        let place = Place::new();
        fs::create_dir(place.pfs("in")).unwrap();
        for number in 0..20 {
            fs::write(place.pfs(&format!("in/{number}")), vec![b'x'; 100_000]).unwrap();
        }
        let input = "stage_in type=directory source=@PFS@/in destination=$DW_JOB_STRIPED/in";
        let body = "cd $DW_JOB_STRIPED; mkdir results; cat in/* > results/all; sleep 0.05";
        let mut child = place.start(&place.script(&[STRIPED, input, OUT], body), &[]);
        std::thread::sleep(Duration::from_millis(delay_ms));
        signal(child.id() as i32, libc::SIGKILL);
        child.wait().unwrap();
        let jobs = place.flash().join("forebay-jobs-0");
        let dirs = fs::read_dir(&jobs).map(|dir| dir.map(|entry| entry.unwrap().path()).collect());
        let dirs: Vec<PathBuf> = dirs.unwrap_or_default();
        let record = dirs.iter().map(|dir| dir.join("job.json")).find(|path| path.exists());
        let Some(record) = record else {
            // Killed before there was a job, or after it was gone: at most an empty directory.
            assert_eq!(place.mounts(), Vec::<PathBuf>::new(), "after {delay_ms} ms");
            continue;
        };
        let run = place.resume(record.to_str().unwrap());
        match run.code {
            Some(120) => assert!(!place.pfs("results").exists(), "after {delay_ms} ms"),
            Some(0 | 123) => {
                let all = fs::read(place.pfs("results/all")).unwrap();
                assert_eq!(all.len(), 2_000_000, "after {delay_ms} ms: {}", run.err);
            }
            other => panic!("after {delay_ms} ms: {other:?}\n{}{}", run.out, run.err),
        }
        place.assert_clean();
    }
}

#[test]
fn a_full_pfs_keeps_the_buffer_until_the_job_is_resumed() {
    let place = Place::new();
    let pfs = place.pfs("");
    let mount = ["-t", "tmpfs", "-o", "size=1m", "forebay-tests"];
    assert!(Command::new("mount").args(mount).arg(&pfs).status().unwrap().success());
    let body = "cd $DW_JOB_STRIPED; mkdir results; echo small > results/small\n\
        head -c 4000000 /dev/urandom > results/large; sha256sum < results/large > results/sum; exit 5";
    let run = place.run(&place.script(&[STRIPED, OUT], body), &[]).expect(121);
    let record = run.record();
    for said in [
        "Nothing is lost: the buffer is kept",
        "No space left on device",
        &format!("run --resume {record}"),
        "stage out",
        &format!("run --discard {record}"),
    ] {
        assert!(run.err.contains(said), "not said: {said}\n{}", run.err);
    }
    assert_eq!(fs::metadata(run.mount_point().join("results/large")).unwrap().len(), 4_000_000);

    // Still full: the same again, nothing lost.
    place.resume(&record).expect(121);

    let grow = ["-o", "remount,size=64m"];
    assert!(Command::new("mount").args(grow).arg(&pfs).status().unwrap().success());
    let resumed = place.resume(&record).expect(5);
    let check = format!("cd {}/results && sha256sum < large | cmp - sum", pfs.display());
    let same = Command::new("sh").args(["-c", &check]).status().unwrap();
    assert!(same.success(), "{}", resumed.err);
    assert!(Command::new("umount").arg(&pfs).status().unwrap().success());
    place.assert_clean();
}

#[test]
fn a_pfs_that_becomes_read_only_keeps_the_buffer() {
    let place = Place::new();
    let pfs = place.pfs("");
    let mount = ["-t", "tmpfs", "-o", "size=8m", "forebay-tests"];
    assert!(Command::new("mount").args(mount).arg(&pfs).status().unwrap().success());
    let body = "cd $DW_JOB_STRIPED; mkdir results; echo x > results/x; mount -o remount,ro @PFS@";
    let run = place.run(&place.script(&[STRIPED, OUT], body), &[]).expect(121);
    assert!(run.err.contains("Read-only file system"), "{}", run.err);
    assert!(run.mount_point().join("results/x").exists());
    // The message's own commands: copy by hand elsewhere, then give the buffer up.
    let by_hand = Command::new(binary())
        .args(["stage", "out"])
        .arg(run.mount_point().join("results"))
        .arg(place.base.join("rescued"))
        .status()
        .unwrap();
    assert!(by_hand.success());
    assert_eq!(fs::read_to_string(place.base.join("rescued/x")).unwrap(), "x\n");
    let give_up = run.err.lines().find(|line| line.contains("run --discard")).unwrap();
    assert!(Command::new("sh").args(["-c", give_up]).status().unwrap().success(), "{give_up}");
    assert!(Command::new("umount").arg(&pfs).status().unwrap().success());
    place.assert_clean();
}

#[test]
fn a_missing_source_is_refused_before_anything_starts() {
    let place = Place::new();
    let line = "stage_in type=file source=@PFS@/none destination=$DW_JOB_STRIPED/none";
    let script = place.script(&[STRIPED, line], "touch @PFS@/started");
    let run = place.run(&script, &[]).expect(120);
    assert!(run.err.contains("it does not exist"), "{}", run.err);
    assert!(!place.pfs("started").exists());
    assert_eq!(fs::read_dir(place.flash()).unwrap().count(), 0, "nothing was made");
}

#[test]
fn a_failed_stage_in_does_not_start_the_job() {
    let place = Place::new();
    fs::write(place.pfs("a"), "a").unwrap();
    let script = place.script(
        &[
            STRIPED,
            "stage_in type=file source=@PFS@/a destination=$DW_JOB_STRIPED/x",
            // Not to be seen by looking at the PFS: x is a file.
            "stage_in type=file source=@PFS@/a destination=$DW_JOB_STRIPED/x/y",
        ],
        "touch @PFS@/started",
    );
    let run = place.run(&script, &[]).expect(120);
    assert!(run.err.contains("line 4"), "{}", run.err);
    assert!(!place.pfs("started").exists());
    assert_eq!(run.summary()["script_exit"], Value::Null);
    place.assert_clean();
}

#[test]
fn a_refused_script_starts_nothing() {
    let place = Place::new();
    let script = place.script(&["jobdw type=scratch capacity=1 access_mode=striped"], "true");
    let run = place.run(&script, &[]).expect(120);
    assert_eq!(run.summary()["problems"][0]["line"], 2);
    assert_eq!(fs::read_dir(place.flash()).unwrap().count(), 0, "nothing was made");
}

#[test]
fn striped_and_private_share_one_buffer() {
    let place = Place::new();
    let script = place.script(
        &[
            "jobdw type=scratch capacity=32MiB access_mode=striped,private",
            "stage_out type=file source=$DW_JOB_PRIVATE/x destination=@PFS@/private",
            "stage_out type=file source=$DW_JOB_STRIPED/x destination=@PFS@/striped",
        ],
        "echo p > ${DW_JOB_PRIVATE}x; echo s > ${DW_JOB_STRIPED}x",
    );
    place.run(&script, &[]).expect(0);
    assert_eq!(fs::read_to_string(place.pfs("private")).unwrap(), "p\n");
    assert_eq!(fs::read_to_string(place.pfs("striped")).unwrap(), "s\n");
    place.assert_clean();
}

#[test]
fn private_alone_has_the_whole_buffer() {
    let place = Place::new();
    let script = place.script(
        &[
            "jobdw type=scratch capacity=32MiB access_mode=private",
            "stage_out type=file source=$DW_JOB_PRIVATE/x destination=@PFS@/x",
        ],
        "[ -z \"${DW_JOB_STRIPED-}\" ] && [ \"$DW_JOB_PRIVATE\" = \"$FOREBAY_BUFFER/\" ] && \
         echo p > ${DW_JOB_PRIVATE}x",
    );
    place.run(&script, &[]).expect(0);
    assert!(place.pfs("x").exists());
    place.assert_clean();
}

#[test]
fn a_list_in_the_buffer_names_results() {
    let place = Place::new();
    let script = place.script(
        &[
            "jobdw type=scratch capacity=32MiB access_mode=striped,private",
            "stage_out type=list source=$DW_JOB_STRIPED/list destination=@PFS@/listed",
        ],
        "cd $DW_JOB_STRIPED; mkdir deep; echo a > 'with blank'; echo b > deep/b\n\
         echo c > ${DW_JOB_PRIVATE}c; echo not > not\n\
         printf '%s\\n' \"${DW_JOB_STRIPED}with blank\" deep/b ${DW_JOB_PRIVATE}c > list",
    );
    let run = place.run(&script, &[]).expect(0);
    let mut names: Vec<_> =
        fs::read_dir(place.pfs("listed")).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["b", "c", "with blank"], "{}", run.err);
    place.assert_clean();
}

#[test]
fn tolerated_errors_do_not_keep_the_buffer() {
    let place = Place::new();
    let line = "stage_out type=file source=$DW_JOB_STRIPED/none destination=@PFS@/none \
                tolerate_errors=yes";
    let run = place.run(&place.script(&[STRIPED, line], "true"), &[]).expect(0);
    assert!(run.step("data-out")["detail"].as_str().unwrap().contains("tolerated"));
    place.assert_clean();
}

#[test]
fn a_result_that_cannot_be_copied_and_is_tolerated_does_not_keep_the_buffer() {
    let place = Place::new();
    // A directory where a file is to go.
    fs::create_dir_all(place.pfs("results/x")).unwrap();
    let body = "cd $DW_JOB_STRIPED; mkdir results; echo x > results/x; echo y > results/y";
    let line = format!("{OUT} tolerate_errors=yes");
    let run = place.run(&place.script(&[STRIPED, &line], body), &[]).expect(0);
    assert_eq!(fs::read_to_string(place.pfs("results/y")).unwrap(), "y\n", "{}", run.err);
    place.assert_clean();
}

#[test]
fn a_result_that_was_never_written_keeps_the_buffer() {
    let place = Place::new();
    let line = "stage_out type=file source=$DW_JOB_STRIPED/none destination=@PFS@/none";
    let run = place.run(&place.script(&[STRIPED, line], "true"), &[]).expect(121);
    assert!(run.err.contains("/none"), "{}", run.err);
}

#[test]
fn a_result_named_by_a_symbolic_link_is_what_it_leads_to() {
    let place = Place::new();
    let file = "stage_out type=file source=$DW_JOB_STRIPED/latest destination=@PFS@/checkpoint";
    let tree = "stage_out type=directory source=$DW_JOB_STRIPED/run destination=@PFS@/run";
    let body = "cd $DW_JOB_STRIPED; echo 100 > ckpt.100; ln -s ckpt.100 latest\n\
        mkdir run.7; echo 7 > run.7/x; ln -s x run.7/y; ln -s run.7 run";
    place.run(&place.script(&[STRIPED, file, tree], body), &[]).expect(0);
    for (name, text) in [("checkpoint", "100\n"), ("run/x", "7\n")] {
        assert!(fs::symlink_metadata(place.pfs(name)).unwrap().is_file(), "{name}");
        assert_eq!(fs::read_to_string(place.pfs(name)).unwrap(), text);
    }
    // In a tree a link stays a link.
    assert_eq!(fs::read_link(place.pfs("run/y")).unwrap(), PathBuf::from("x"));

    // One that leads out of the buffer, or nowhere, is no result: the buffer is kept.
    let run = place.run(&place.script(&[STRIPED, file], "ln -s /etc $DW_JOB_STRIPED/latest"), &[]);
    assert!(run.expect(121).err.contains("leads out of the buffer"));
}

#[test]
fn a_stage_out_that_the_script_left_running_is_waited_for() {
    let place = Place::new();
    let stage = format!("{} stage out --no-wait --rate 1MiB", binary().display());
    let body = format!(
        "cd $DW_JOB_STRIPED; mkdir more; head -c 2500000 /dev/zero > more/x; {stage} more @PFS@/more"
    );
    let run = place.run(&place.script(&[STRIPED], &body), &[]).expect(0);
    assert_eq!(fs::metadata(place.pfs("more/x")).unwrap().len(), 2_500_000, "{}", run.err);
    assert!(run.err.contains("waiting for the stage-out to"), "{}", run.err);
    place.assert_clean();
    // One that fails keeps the buffer, and the message's own command gives it up.
    let body = format!(
        "cd $DW_JOB_STRIPED; mkdir more; echo x > more/x; {stage} --retries 0 more /proc/more"
    );
    let run = place.run(&place.script(&[STRIPED], &body), &[]).expect(122);
    assert!(run.err.contains("the stage-out to /proc/more has failed"), "{}", run.err);
    let kept = place.mounts().remove(0);
    assert_eq!(fs::read_to_string(kept.join("more/x")).unwrap(), "x\n");
}

#[test]
fn a_job_is_finished_after_its_runner_was_killed() {
    let place = Place::new();
    let body = "cd $DW_JOB_STRIPED; mkdir results; echo > ready\n\
        while [ ! -e go ]; do sleep 0.05; done; echo late > results/late";
    let script = place.script(&[STRIPED, OUT], body);
    let mut child = place.start(&script, &[]);
    let find = || place.mounts().into_iter().find(|mount| mount.join("ready").exists());
    until("the script runs", || find().is_some());
    let mount = find().unwrap();
    let record = mount.parent().unwrap().join("job.json");
    let record = record.to_str().unwrap();

    // While it is run, nobody else takes it.
    let refused = place.resume(record).expect(1);
    assert!(refused.err.contains("runs this job"), "{}", refused.err);

    signal(child.id() as i32, libc::SIGKILL);
    child.wait().unwrap();

    // The next run points it out.
    let other = Place::new();
    let script = other.script(&[STRIPED], "true");
    let mut command = place.command(&["--flash"]);
    let next = Run::wait(command.arg(place.flash()).arg(script).spawn().unwrap()).expect(0);
    assert!(next.err.contains(&format!("run --resume {record}")), "{}", next.err);

    // So does status.
    let mut status = Command::new(binary());
    status.args(["status", "--json", "--flash"]).arg(place.flash());
    let status = status.output().unwrap();
    let listed: Value = serde_json::from_slice(&status.stdout).unwrap();
    let mine = listed["buffers"].as_array().unwrap().iter().find(|entry| entry["resume"] == record);
    assert_eq!(mine.unwrap_or_else(|| panic!("{listed}"))["state"], "live");

    // The script goes on; who resumes waits for it.
    let resumed = place.command(&["--resume", record]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert!(!place.pfs("results").exists(), "staged out before the script ended");
    fs::write(mount.join("go"), "").unwrap();
    let run = Run::wait(resumed).expect(123);
    assert_eq!(fs::read_to_string(place.pfs("results/late")).unwrap(), "late\n", "{}", run.err);
    place.assert_clean();
}

#[test]
fn a_job_is_finished_after_runner_script_and_server_were_killed() {
    let place = Place::new();
    let body = "cd $DW_JOB_STRIPED; mkdir results; echo kept > results/x; echo $$ > ready\n\
        while :; do sleep 0.05; done";
    let mut child = place.start(&place.script(&[STRIPED, OUT], body), &[]);
    let find = || {
        let mounts = place.mounts();
        mounts.into_iter().find(|m| fs::read(m.join("ready")).is_ok_and(|text| !text.is_empty()))
    };
    until("the script runs", || find().is_some());
    let mount = find().unwrap();
    let script_pid: i32 = fs::read_to_string(mount.join("ready")).unwrap().trim().parse().unwrap();
    let status = Command::new(binary()).args(["status", "--json"]).arg(&mount).output().unwrap();
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    let status = status.get(0).unwrap_or(&status);
    let server = status["pid"].as_i64().unwrap_or_else(|| panic!("{status}")) as i32;
    for pid in [child.id() as i32, -script_pid, server] {
        signal(pid, libc::SIGKILL);
    }
    child.wait().unwrap();
    until("the server is gone", || !forebay_tests::buffer::alive(server));
    let record = mount.parent().unwrap().join("job.json");

    // What does not pass by waiting is said soon, and the job stays as it is.
    let store = PathBuf::from(status["store"].as_str().unwrap()).join("store.json");
    let sound = fs::read(&store).unwrap();
    fs::write(&store, "{").unwrap();
    let begun = Instant::now();
    let refused = place.resume(record.to_str().unwrap()).expect(1);
    assert!(begun.elapsed() < Duration::from_secs(5), "took {:?}", begun.elapsed());
    assert!(refused.err.contains("store.json"), "{}", refused.err);
    fs::write(&store, sound).unwrap();

    let run = place.resume(record.to_str().unwrap()).expect(123);
    assert!(run.err.contains("run       unknown"), "{}", run.err);
    assert_eq!(fs::read_to_string(place.pfs("results/x")).unwrap(), "kept\n", "{}", run.err);
    place.assert_clean();
}

#[test]
fn a_kept_buffer_can_be_mounted_again() {
    let place = Place::new();
    let script = place.script(&[STRIPED], "echo x > ${DW_JOB_STRIPED}x");
    let mut command = place.command(&["--keep", "--flash"]);
    let run = Run::wait(command.arg(place.flash()).arg(script).spawn().unwrap()).expect(0);
    assert!(!place.mounts().contains(&run.mount_point()));
    let again = run.err.lines().find(|line| line.contains(" mount --scratch ")).unwrap();
    assert!(Command::new("sh").args(["-c", again]).status().unwrap().success(), "{again}");
    assert_eq!(fs::read_to_string(run.mount_point().join("x")).unwrap(), "x\n");
}
