//! Jobs that are given up with `forebay run --discard`, and what is left of that when a signal, a server or a launcher comes between:
//! no later command takes such a job for one that can be finished.

use super::place::{Run, signal, until};
use super::servers::Site;
use forebay_tests::buffer::alive;
use forebay_tests::procs;
use serde_json::Value;
use std::fs;
use std::process::Child;
use std::time::{Duration, Instant};

const STRIPED: &str = "jobdw type=scratch capacity=64MiB access_mode=striped";
const OUT: &str =
    "stage_out type=directory source=$DW_JOB_STRIPED/results destination=@PFS@/results";
/// A script whose results cannot be staged out: a file is where they are to go.
const KEPT: &str =
    "cd $DW_JOB_STRIPED; mkdir results; echo x > results/x; echo > @PFS@/results; exit 5";

/// What the record of a job says.
fn said_by(record: &str) -> Value {
    serde_json::from_slice(&fs::read(record).unwrap()).unwrap()
}

/// A job that is kept at two servers.
fn kept_at_two(site: &Site) -> Run {
    let script = site.place.script(&[STRIPED, OUT], KEPT);
    Run::wait(site.start(&script, "", &["--servers", "2"])).expect(121)
}

/// Begins to give up a job of which one server is stopped; it waits for that one when this returns.
fn begin_to_discard(site: &Site, record: &str) -> Child {
    signal(site.member(1), libc::SIGSTOP);
    let discarding = site.discard(record);
    until("the job is given up", || said_by(record)["given_up"].is_string());
    discarding
}

#[test]
fn a_job_that_was_given_up_is_not_resumed_and_each_command_names_the_one_that_finishes_it() {
    let site = Site::of_servers(2);
    let run = kept_at_two(&site);
    let record = run.record();
    let finish = format!("run --discard {record}");
    assert!(said_by(&record)["given_up"].is_null());
    let discarding = begin_to_discard(&site, &record);
    std::thread::sleep(Duration::from_millis(500));
    signal(discarding.id() as i32, libc::SIGINT);
    let left = Run::wait(discarding).expect(128 + libc::SIGINT);
    assert!(left.err.contains("the job is given up, but"), "{}", left.err);
    assert!(left.err.contains(&finish) && !left.err.contains("run --resume"), "{}", left.err);

    let before = fs::read(&record).unwrap();
    let refused = Run::wait(site.resume(&record)).expect(1);
    let said = "this job was given up with --discard at 2";
    assert!(refused.err.contains(said) && refused.err.contains(&finish), "{}", refused.err);
    assert!(!refused.err.contains("Nothing is lost"), "{}", refused.err);
    let summary = refused.summary();
    assert_eq!(summary["outcome"], "given-up", "{summary}");
    assert_eq!((&summary["discard"], &summary["resume"]), (&record.as_str().into(), &Value::Null));
    assert_eq!(fs::read(&record).unwrap(), before, "something was changed");
    assert_eq!(said_by(&record)["outcome"], "given-up");
    let flash = site.place.flash();
    let listed = procs::run(site.forebay(&["status", "--json", "--flash"]).arg(&flash));
    assert!(listed.contains(&format!("\"discard\":\"{record}\"")), "{listed}");

    signal(site.member(1), libc::SIGCONT);
    let script = site.place.script(&[STRIPED], "true");
    let next = Run::wait(site.start(&script, "", &[])).expect(0);
    assert!(next.err.contains("an earlier job was given up at 2"), "{}", next.err);
    assert!(next.err.contains(&finish) && !next.err.contains("run --resume"), "{}", next.err);

    let discarded = Run::wait(site.discard(&record)).expect(0);
    assert!(discarded.err.contains("it was given up at 2"), "{}", discarded.err);
    assert_eq!(discarded.summary()["outcome"], "discarded");
    until("the rest of the buffer is gone", || site.buffers().is_empty());
    site.assert_clean();
}

/// With `--work-dir` nothing of such a job is below the flash directory, and without its mount nothing leads to it but what the job
/// has noted there.
#[test]
fn a_job_that_was_given_up_is_listed_where_its_directory_lies_elsewhere_and_its_mount_is_gone() {
    let site = Site::of_servers(2);
    let work = site.place.base.join("work");
    let script = site.place.script(&[STRIPED, OUT], KEPT);
    let args = ["--servers", "2", "--work-dir", work.to_str().unwrap()];
    let run = Run::wait(site.start(&script, "", &args)).expect(121);
    let record = run.record();
    assert!(record.starts_with(work.to_str().unwrap()), "{record}");
    let discarding = begin_to_discard(&site, &record);
    std::thread::sleep(Duration::from_millis(500));
    signal(discarding.id() as i32, libc::SIGINT);
    Run::wait(discarding).expect(128 + libc::SIGINT);
    // The command may have ended it: then there is nothing to be content with.
    let _ = site.forebay(&["umount", "--force"]).arg(run.mount_point()).output();
    until("the mount is gone", || site.place.mounts().is_empty());

    let finish = format!("run --discard {record}");
    let flash = site.place.flash();
    for named in [None, Some(&flash), Some(&work)] {
        let mut status = site.forebay(&["status"]);
        if let Some(dir) = named {
            status.arg("--flash").arg(dir);
        }
        let listed = procs::run(&mut status);
        let of_job: Vec<&str> = listed.lines().filter(|line| line.contains(&record)).collect();
        assert!(of_job.len() == 1 && of_job[0].ends_with(&finish), "{named:?}: {listed}");
    }
    let listed = procs::run(site.forebay(&["status", "--json", "--flash"]).arg(&flash));
    assert!(listed.contains(&format!("\"discard\":\"{record}\"")), "{listed}");

    signal(site.member(1), libc::SIGCONT);
    // Without --work-dir.
    let next = site.place.script(&[STRIPED], "true");
    let next = Run::wait(site.start(&next, "", &[])).expect(0);
    assert!(next.err.contains(&finish) && !next.err.contains("run --resume"), "{}", next.err);
    Run::wait(site.discard(&record)).expect(0);
    until("the rest of the buffer is gone", || site.buffers().is_empty());
    assert_eq!(fs::read_dir(&work).unwrap().count(), 0);
    site.assert_clean();
}

#[test]
fn a_job_that_a_command_has_in_hand_is_taken_up_by_no_other_one() {
    let site = Site::of_servers(2);
    let record = kept_at_two(&site).record();
    let discarding = begin_to_discard(&site, &record);
    for other in [site.discard(&record), site.resume(&record)] {
        let refused = Run::wait(other).expect(1);
        assert!(refused.err.contains("another command has this job in hand"), "{}", refused.err);
    }
    signal(site.member(1), libc::SIGCONT);
    Run::wait(discarding).expect(0);
    until("the buffer is gone", || site.buffers().is_empty());
    site.assert_clean();
}

/// The server that is asked is stopped: the look for the buffer waits for it, and then the look into its mount.
#[test]
fn a_discard_that_waits_for_its_stopped_server_says_so_again() {
    /// So long that it is told at its beginning and 30 s later, with what a busy machine adds.
    const STOPPED_FOR: Duration = Duration::from_secs(42);
    let site = Site::of_servers(2);
    let record = kept_at_two(&site).record();
    let server = site.pid.get();
    signal(server, libc::SIGSTOP);
    let discarding = site.discard(&record);
    std::thread::sleep(STOPPED_FOR);
    signal(server, libc::SIGCONT);
    let discarded = Run::wait(discarding);
    // With 122 the servers go on with it.
    assert!(matches!(discarded.code, Some(0 | 122)), "{:?}: {}", discarded.code, discarded.err);
    let said = format!("`kill -CONT {server}`");
    let told = discarded.err.lines().filter(|line| line.contains(&said)).count();
    assert!(told >= 2, "told {told} times: {}", discarded.err);
}

/// No call on such a mount ends by itself.
#[test]
fn a_discard_beside_a_stopped_mount_ends_and_says_what_is_left_of_it() {
    /// Longest look at the mount, which is given 15 s, and the unmount by force.
    const ENDS_WITHIN: Duration = Duration::from_secs(45);
    let site = Site::new(0);
    let script = site.place.script(&[STRIPED, OUT], KEPT);
    let run = Run::wait(site.start(&script, "", &[])).expect(121);
    let record = run.record();
    let mount = site.place.server_of(&run.mount_point());
    signal(mount, libc::SIGSTOP);
    let begun = Instant::now();
    let failed = Run::wait(site.discard(&record)).expect(122);
    let took = begun.elapsed();
    let finish = format!("run --discard {record}");
    signal(mount, libc::SIGKILL);
    assert!(took < ENDS_WITHIN, "{took:?}: {}", failed.err);
    for said in [
        format!("its process {mount} is stopped"),
        "the job is given up, but not all of it is removed".to_string(),
        "its buffer is at its server".to_string(),
        finish,
    ] {
        assert!(failed.err.contains(&said), "not said: {said}\n{}", failed.err);
    }
    assert_eq!(failed.summary()["outcome"], "given-up");
    Run::wait(site.discard(&record)).expect(0);
    site.assert_clean();
}

/// The server is killed when the job is given up, and waited for in vain.
#[test]
fn a_discard_whose_server_was_killed_says_that_the_job_is_given_up_and_what_is_left() {
    /// Longer than a server is waited for that is away.
    const WAITED: Duration = Duration::from_secs(120);
    let site = Site::of_servers(2);
    let run = kept_at_two(&site);
    let record = run.record();
    let mut discarding = begin_to_discard(&site, &record);
    site.kill_server();
    forebay_tests::until("the command gives up", WAITED, || {
        discarding.try_wait().unwrap().is_some()
    });
    let failed = Run::wait(discarding).expect(122);
    for said in [
        "the job is given up, but not all of it is removed: ",
        "What may be left:\n  the buffer job-",
        format!(" at the server {}\n", site.tcp).as_str(),
        format!("the record {record}\n").as_str(),
        format!("run --discard {record}\n").as_str(),
    ] {
        assert!(failed.err.contains(said), "not said: {said}\n{}", failed.err);
    }
    assert!(!failed.err.contains("run --resume"), "{}", failed.err);
    // Nobody waits in silence: it is said again every 30 s.
    let waits = format!("waiting for the server {}: nothing answers", site.tcp);
    assert!(failed.err.matches(&waits).count() >= 2, "{}", failed.err);
    let summary = failed.summary();
    assert_eq!((&summary["outcome"], &summary["discard"]), (&"given-up".into(), &record.into()));
    assert!(summary["left"].is_string(), "{summary}");

    signal(site.member(1), libc::SIGCONT);
    site.start_server();
    let record = run.record();
    Run::wait(site.resume(&record)).expect(1);
    Run::wait(site.discard(&record)).expect(0);
    until("the rest of the buffer is gone", || site.buffers().is_empty());
    site.assert_clean();
}

/// An earlier `--discard` has ended the mount while the server did not run: the server, started again, waits for that mount.
#[test]
fn a_discard_that_waits_for_a_server_that_was_started_again_says_so() {
    let site = Site::new(0);
    let script = site.place.script(&[STRIPED, OUT], KEPT);
    let run = Run::wait(site.start(&script, "", &[])).expect(121);
    site.kill_server();
    // Whether it is content with that does not matter.
    let _ = site.forebay(&["umount", "--force"]).arg(run.mount_point()).output();
    until("the mount is gone", || site.place.mounts().is_empty());
    site.start_server();
    let discarded = Run::wait(site.discard(&run.record())).expect(0);
    let said = "to look at what its buffer holds: it answers, but not yet about files";
    assert!(discarded.err.contains(said), "not said: {said}\n{}", discarded.err);
    assert!(discarded.err.contains("its buffer holds 1 file, 2 B"), "{}", discarded.err);
    site.assert_clean();
}

/// What is known of a step stays on record until it is done again. A record without the moment of giving up, as programs before
/// this one wrote it, is that of a job that can be finished.
#[test]
fn a_resume_that_a_signal_ends_leaves_what_the_job_had_reported() {
    let site = Site::new(0);
    let script = site.place.script(&[STRIPED, OUT], KEPT);
    let run = Run::wait(site.start(&script, "", &[])).expect(121);
    let record = run.record();
    let steps = |of: &Value| -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap().to_string();
        let steps = of.as_array().unwrap().iter();
        steps.map(|step| (text(&step["step"]), text(&step["ended"]))).collect()
    };
    let before = steps(&said_by(&record)["done"]);
    assert_eq!(before.last().unwrap(), &("data-out".to_string(), "failed".to_string()));
    let server = site.pid.get();
    signal(server, libc::SIGSTOP);
    let resuming = site.resume(&record);
    std::thread::sleep(Duration::from_secs(4));
    signal(resuming.id() as i32, libc::SIGINT);
    let left = Run::wait(resuming);
    signal(server, libc::SIGCONT);
    left.expect(128 + libc::SIGINT);
    assert_eq!(steps(&said_by(&record)["done"]), before);

    let mut older = said_by(&record);
    assert!(older.as_object_mut().unwrap().remove("given_up").is_some());
    fs::write(&record, older.to_string()).unwrap();
    fs::remove_file(site.place.pfs("results")).unwrap();
    let resumed = Run::wait(site.resume(&record)).expect(5);
    let names: Vec<String> = steps(&resumed.summary()["steps"]).into_iter().map(|s| s.0).collect();
    let all =
        ["validate", "setup", "data-in", "pre-run", "run", "post-run", "data-out", "teardown"];
    assert_eq!(names, all);
    assert_eq!(resumed.step("data-out")["ended"], "ok", "{}", resumed.err);
    site.assert_clean();
}

#[test]
fn a_launcher_that_a_discard_waits_for_ends_with_it() {
    /// A signal ends the command within a second; a busy machine may take longer.
    const ENDS_WITHIN: Duration = Duration::from_secs(5);
    let site = Site::new(1);
    let (hold, held) = (site.place.base.join("hold"), site.place.base.join("held"));
    let launch = format!(
        "sh -c '[ ! -e {hold} ] || . {hold}; exec {launcher} \"$0\" \"$@\"' {{host}}",
        hold = hold.display(),
        launcher = site.launcher().display()
    );
    let script = site.place.script(&[STRIPED, OUT], KEPT);
    let child = site.start(&script, "", &["--on", "n1", "--launch", &launch]);
    let run = Run::wait(child).expect(121);
    // Neither the launcher nor what it starts ends when it is asked to.
    let text = format!(
        "trap '' TERM\nsleep 600 > /dev/null 2>&1 &\necho $$ $! > {held}.new; mv {held}.new {held}\nwait\n",
        held = held.display()
    );
    fs::write(&hold, text).unwrap();
    let discarding = site.discard(&run.record());
    until("the launcher is waited for", || held.exists());
    let text = fs::read_to_string(&held).unwrap();
    let pids: Vec<i32> = text.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    assert!(pids.len() == 2 && pids.iter().all(|pid| alive(*pid)), "{text}");
    let begun = Instant::now();
    signal(discarding.id() as i32, libc::SIGINT);
    let left = Run::wait(discarding).expect(128 + libc::SIGINT);
    assert!(begun.elapsed() < ENDS_WITHIN, "{:?}: {}", begun.elapsed(), left.err);
    assert!(left.err.contains("the job is given up, but"), "{}", left.err);
    until("the launcher is gone", || pids.iter().all(|pid| !alive(*pid)));
    fs::remove_file(&hold).unwrap();
    Run::wait(site.discard(&run.record())).expect(0);
    site.assert_clean();
}
