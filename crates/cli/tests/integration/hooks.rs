//! `forebay` as `dw_wlm_cli` and `dwstat`, without a scheduler: what it says and where, what it keeps open, and how long it takes
//! where no server answers.

use crate::common::{must_be_root, program, text};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// Most milliseconds that a question may take which Slurm asks with its locks held.
const MOST_MS: u64 = 1_000;

/// A site whose servers and agents listen on sockets in its directory; nobody does until a test says so.
struct Site(TempDir);

impl Site {
    fn new() -> Site {
        let site = Site(tempfile::Builder::new().prefix("forebay-hooks-").tempdir().unwrap());
        let base = site.0.path().display();
        let conf = format!(
            "patience_s = 0\nstate_dir = \"{base}/state\"\n[pool.flash]\nserver = \"unix:{base}/server\"\n\
             [agent]\naddress = \"unix:{base}/{{node}}\"\n"
        );
        fs::write(site.path("forebay.conf"), conf).unwrap();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A path as a word of a command line.
    fn word(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// A call as Slurm makes it; no command of Slurm is found.
    fn hook(&self, name: &str, words: &str) -> Command {
        let mut command = Command::new(program());
        command
            .arg0(name)
            .args(words.split_whitespace())
            .env("FOREBAY_CONF", self.path("forebay.conf"))
            .env("FOREBAY_CONFIG_DIR", self.path("config"))
            .env("PATH", self.0.path())
            .env_remove("FOREBAY_TIMING")
            .env_remove("FOREBAY_SERVER")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

/// An answer is on standard output, and what failed in one line.
fn answered(call: &str, output: &Output) -> (bool, String) {
    let (said, wrong) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(wrong, "", "{call}: on standard error, with on standard output: {said}");
    let code = output.status.code();
    assert!(code == Some(0) || code == Some(1), "{call}: {code:?}: {said}");
    if code == Some(1) {
        assert!(!said.is_empty() && !said.contains('\n'), "{call}: {said:?}");
    }
    (code == Some(0), said)
}

/// All calls that Slurm makes, and some that it does not: a word of the answer, and whether it is one of success.
const CALLS: [(&str, &str, bool, &str); 32] = [
    ("dw_wlm_cli", "--function pools", false, "connect to the server"),
    ("dw_wlm_cli", "--function show_instances", true, r#"{"instances":[]}"#),
    ("dw_wlm_cli", "--function show_sessions", true, r#"{"sessions":[]}"#),
    ("dw_wlm_cli", "--function show_configurations", true, r#"{"configurations":[]}"#),
    ("dw_wlm_cli", "--function job_process --job @/good", true, ""),
    ("dw_wlm_cli", "--function job_process --job @/bad", false, "line 2"),
    ("dw_wlm_cli", "--function job_process --job @/none", false, "read the job script"),
    // Before there is a session of that number.
    ("dw_wlm_cli", "--function data_in --token 7 --job @/good", false, "No matching session"),
    ("dw_wlm_cli", "--function real_size --token 7", false, "No matching session"),
    ("dw_wlm_cli", "--function data_out --token 7 --job @/good", false, "No matching session"),
    ("dw_wlm_cli", "--function teardown --token 7 --job @/good", false, "token not found"),
    (
        "dw_wlm_cli",
        "--function setup --token 7 --caller SLURM --user 1 --groupid 1 --capacity flash:16MiB --job @/good",
        false,
        "connect to the server",
    ),
    ("dw_wlm_cli", "--function data_in --token 7 --job @/good", false, "connect to the server"),
    ("dw_wlm_cli", "--function real_size --token 7", true, r#""capacity":16777216"#),
    ("dw_wlm_cli", "--function paths --job @/good --token 7 --pathfile @/paths", true, ""),
    (
        "dw_wlm_cli",
        "--function pre_run --token 7 --job @/good --nodehostnamefile @/nodes",
        false,
        "node n1",
    ),
    ("dw_wlm_cli", "--function post_run --token 7 --job @/good", true, ""),
    ("dw_wlm_cli", "--function data_out --token 7 --job @/good", false, ""),
    ("dw_wlm_cli", "--function teardown --token 7 --job @/good", false, "connect to the server"),
    ("dw_wlm_cli", "--function teardown --token 7 --job @/good --hurry", false, ""),
    (
        "dw_wlm_cli",
        "--function create_persistent -c CLI -t alpha -u 1 -C flash:16777216 -a striped -T scratch",
        false,
        "",
    ),
    ("dw_wlm_cli", "--function teardown --token alpha --job @/good", false, ""),
    ("dw_wlm_cli", "--function setup --token 7", false, "--user and --groupid are missing"),
    ("dw_wlm_cli", "--function nonsense", false, "invalid function"),
    ("dw_wlm_cli", "", false, "--function NAME is missing"),
    ("dwstat", "pools", false, "do not answer"),
    ("dwstat", "sessions", true, "token"),
    ("dwstat", "instances", true, "label"),
    ("dwstat", "configurations", true, "activs"),
    ("dwstat", "nodes", true, "mounted"),
    ("dwstat", "all", false, ""),
    ("dwstat", "nonsense", false, "is no table"),
];

/// Both plugins merge what is on standard error into the answer: none of it may be there, whatever is called and whatever the
/// environment of slurmctld makes the program say.
#[test]
fn hooks_say_all_on_standard_output() {
    let site = Site::new();
    let line = "#DW jobdw type=scratch access_mode=striped capacity=16MiB";
    let input = "#DW stage_in type=file source=/pfs/in destination=$DW_JOB_STRIPED/in";
    fs::write(site.path("good"), format!("#!/bin/bash\n{line}\n{input}\ntrue\n")).unwrap();
    fs::write(site.path("bad"), format!("#!/bin/bash\n{line} wrong\n")).unwrap();
    fs::write(site.path("nodes"), "n1\n").unwrap();
    for (name, words, is_done, part) in CALLS {
        let words = words.replace('@', &site.0.path().display().to_string());
        let mut call = site.hook(name, &words);
        // It tells on standard error of everybody else that it is set.
        let output = call.env("FOREBAY_TIMING", "retry_ms=9000").output().unwrap();
        let (done, said) = answered(&words, &output);
        assert!(done == is_done && said.contains(part), "{name} {words}: {done}, {said}");
    }
    // What keeps it from beginning.
    let wrong = |conf: &str, timing: &str, word: &str| {
        let mut call = site.hook("dw_wlm_cli", "--function show_sessions");
        call.env("FOREBAY_CONF", site.path(conf)).env("FOREBAY_TIMING", timing);
        let (done, said) = answered(word, &call.output().unwrap());
        assert!(!done && said.contains(word), "{said}");
    };
    wrong("forebay.conf", "soon", "FOREBAY_TIMING");
    wrong("none.conf", "retry_ms=9000", "none.conf");
    fs::write(site.path("wrong.conf"), "flahs = \"/nvme\"\n").unwrap();
    wrong("wrong.conf", "retry_ms=9000", "flahs");
}

/// What Slurm asks with its locks held, where nothing comes to an end: a server takes the connection and says nothing, a script's end
/// never comes. Each call names the limit that ended it. No clock is read: what waits without a limit says something else, or nothing.
#[test]
fn what_is_asked_with_locks_held_is_given_up_within_a_second() {
    let site = Site::new();
    let _silent = UnixListener::bind(site.path("server")).unwrap();
    let script = site.word("script");
    assert!(Command::new("mkfifo").arg(&script).status().unwrap().success());
    let paths = site.word("paths");
    let calls = [
        ("dw_wlm_cli", format!("--function job_process --job {script}"), "look at the script"),
        (
            "dw_wlm_cli",
            format!("--function paths --job {script} --token 7 --pathfile {paths}"),
            "make the job's environment",
        ),
        ("dw_wlm_cli", "--function pools".to_string(), "ask the servers for their pools"),
        ("dwstat", "pools".to_string(), "ask for the state"),
    ];
    // Side by side: each waits for its limit.
    let running = calls.map(|(name, words, what)| {
        let child = site.hook(name, &words).spawn().unwrap();
        (words, what, child)
    });
    for (words, what, child) in running {
        let (done, said) = answered(&words, &child.wait_with_output().unwrap());
        let limit = said.strip_prefix(&format!("{what}: no answer within "));
        let limit = limit.and_then(|rest| rest.strip_suffix(" ms")).map(str::parse::<u64>);
        assert!(
            !done && limit.is_some_and(|ms| ms.is_ok_and(|ms| ms < MOST_MS)),
            "{words}: {said}"
        );
    }
}

/// What slurmctld asks with its locks held calls no command of Slurm, which would wait for these locks; by the Lua plugin it asks so inside
/// of slurmctld.
#[test]
fn no_command_of_slurm_is_called_while_its_locks_are_held() {
    let site = Site::new();
    let called = site.path("called");
    for name in ["scontrol", "squeue", "sinfo"] {
        let text = format!("#!/bin/sh\necho {name} >> {}\n", called.display());
        fs::write(site.path(name), text).unwrap();
        fs::set_permissions(site.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let script = "#!/bin/bash\n#DW jobdw type=scratch access_mode=striped capacity=16MiB\n";
    fs::write(site.path("job"), script).unwrap();
    let call = |words: &str| {
        let output = site.hook("dw_wlm_cli", &format!("--function {words}")).output().unwrap();
        answered(words, &output)
    };
    let (job, paths) = (site.word("job"), site.word("paths"));
    call(&format!("setup --token 7 --user 1 --groupid 1 --capacity flash:16MiB --job {job}"));
    for token in [7, 8] {
        let words = format!("paths --job {job} --token {token} --pathfile {paths}");
        assert_eq!(call(&words), (true, String::new()), "{words}");
    }
    assert_eq!(call(&format!("job_process --job {job}")), (true, String::new()));
    call("pools");
    assert!(!called.exists(), "{:?}", fs::read_to_string(&called));
    // They would have been found: a step that is asked without locks calls one.
    let (done, said) = call(&format!("pre_run --token 7 --job {job}"));
    assert!(!done && called.exists(), "{said}");
}

#[test]
fn nobody_else_writes_the_log_of_hooks_whatever_the_umask() {
    let site = Site::new();
    let conf = site.word("forebay.conf");
    let shell = format!("umask 000; exec -a dw_wlm_cli {} --function show_sessions", program());
    let mut command = Command::new("bash");
    command.args(["-c", &shell]).env("FOREBAY_CONF", conf).env_remove("FOREBAY_TIMING");
    assert!(command.output().unwrap().status.success());
    for entry in fs::read_dir(site.path("state")).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o022, 0, "{}: {mode:o}", entry.path().display());
    }
    assert!(site.path("state").join("hooks.log").exists());
}

/// Where Slurm has a user of its own, the state directory is that user's, and what is in it too: commands of an administrator are root's,
/// and hooks write afterwards what those have made.
#[test]
fn what_root_makes_in_the_record_belongs_to_whom_the_record_belongs_to() {
    const OWNER: u32 = 64_030;
    must_be_root();
    let site = Site::new();
    let state = site.path("state");
    fs::create_dir(&state).unwrap();
    chown(&state, Some(OWNER), Some(OWNER)).unwrap();
    let line = "#DW jobdw type=scratch access_mode=striped capacity=16MiB";
    fs::write(site.path("job"), format!("#!/bin/bash\n{line}\n")).unwrap();
    let setup = "--function setup --token 7 --user 1 --groupid 1 --capacity flash:16MiB --job";
    let words = format!("{setup} {}", site.word("job"));
    let (done, said) = answered(&words, &site.hook("dw_wlm_cli", &words).output().unwrap());
    assert!(!done && said.contains("connect to the server"), "{said}");
    for name in ["sessions", "sessions/7.json", "kept", "lock", "hooks.log"] {
        let meta = fs::metadata(state.join(name)).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (OWNER, OWNER), "{name}");
        assert_eq!(meta.mode() & 0o022, 0, "{name}");
    }
}

/// Slurm waits for whoever has its pipes open: a hook that waits for a server has none but that of its answer.
#[test]
fn a_hook_that_waits_keeps_nothing_open_that_is_slurms() {
    let site = Site::new();
    let _silent = UnixListener::bind(site.path("server")).unwrap();
    let pipe = site.word("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let conf = site.word("forebay.conf");
    fs::write(
        site.path("job"),
        "#!/bin/bash\n#DW jobdw type=scratch access_mode=striped capacity=16MiB\n",
    )
    .unwrap();
    let setup = "--function setup --token 7 --user 1 --groupid 1 --capacity flash:16MiB --job";
    let shell =
        format!("exec 9>{pipe}; exec -a dw_wlm_cli {} {setup} {}", program(), site.word("job"));
    let mut command = Command::new("bash");
    command.args(["-c", &shell]).env("FOREBAY_CONF", conf).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // Opened when the shell opens it, and at its end when nobody has it any more.
    let read = File::open(&pipe).and_then(|mut pipe| pipe.read_to_end(&mut Vec::new()));
    let ended = child.try_wait().unwrap();
    let _ = child.kill();
    let _ = child.wait();
    assert_eq!(read.unwrap(), 0);
    assert!(ended.is_none(), "it waits for its server: {ended:?}");
}
