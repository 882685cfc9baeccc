//! A cluster for a test: Slurm, servers and agents in namespaces of their own (tests/programs/slurm_cluster.sh),
//! which nothing outlives: the end of the test, also by a kill, ends the first process in them, and the kernel all others.

use forebay_tests::buffer::binary;
use forebay_tests::procs;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The user of the jobs: `nobody`.
pub const USER: u32 = 65534;
/// Longest that a cluster may take to be up.
const UP_LIMIT: Duration = Duration::from_secs(120);
/// Longest that a job may take to reach a state.
const STATE_LIMIT: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(100);
/// What a failed test tells of its cluster: so many lines of each log, of so many nodes, and of so many of the last jobs.
const LOGGED_LINES: usize = 40;
const LOGGED_NODES: usize = 4;
const LOGGED_JOBS: usize = 4;
/// Where jobs, steps and processes stand. Slurm and the kernel are asked, each for at most 5 s, and no file system of a job, which may be
/// what does not answer.
const NOW: &str = "exec 2>&1
timeout -s KILL 5 scontrol -o show job | tail -n 4
timeout -s KILL 5 scontrol -o show step | tail -n 8
timeout -s KILL 5 ps -eo pid,ppid,stat,etimes,wchan:24,args --cols 160";
const NOW_LIMIT: Duration = Duration::from_secs(20);

/// The plugin that Slurm has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plugin {
    Lua,
    Datawarp,
}

/// How a cluster is.
#[derive(Clone, Debug)]
pub struct Options {
    pub nodes: usize,
    pub servers: usize,
    pub capacity: &'static str,
    /// A second pool, `wide`, of one server: its capacity, and its granularity.
    pub wide_pool: Option<(&'static str, &'static str)>,
    /// Whether the nodes have a place for swap space.
    pub has_swap: bool,
    /// More lines of burst_buffer.conf, and of the site's configuration.
    pub burst_buffer_conf: &'static str,
    pub site_conf: String,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            nodes: 2,
            servers: 1,
            capacity: "256MiB",
            wide_pool: None,
            has_swap: false,
            burst_buffer_conf: "",
            site_conf: String::new(),
        }
    }
}

pub struct Cluster {
    pub base: PathBuf,
    child: Child,
    /// The first process in its namespaces, as it is called outside.
    init: i32,
    nodes: usize,
    /// Directories for swap space, on a disk: tmpfs holds none.
    swap: Option<PathBuf>,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

/// Where a file of this repository is.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(path)
}

impl Cluster {
    pub fn new(plugin: Plugin) -> Cluster {
        Cluster::with(plugin, Options::default())
    }

    pub fn with(plugin: Plugin, options: Options) -> Cluster {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let base = PathBuf::from(format!("/dev/shm/forebay-slurm-{}-{number}", std::process::id()));
        fs::create_dir(&base).unwrap();
        let name = match plugin {
            Plugin::Lua => "lua",
            Plugin::Datawarp => "datawarp",
        };
        let swap = options.has_swap.then(|| {
            let name = format!("slurm-swap-{}-{number}", std::process::id());
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
        });
        if let Some(dir) = &swap {
            fs::create_dir_all(dir).unwrap();
        }
        let log = fs::File::create(base.join("cluster.log")).unwrap();
        let (wide_capacity, wide_granularity) = options.wide_pool.unwrap_or_default();
        let mut command = Command::new("unshare");
        command
            .args(["--fork", "--pid", "--kill-child=KILL", "--mount", "--mount-proc"])
            .args(["--net", "--uts", "--ipc", "bash"])
            .arg(repository("tests/programs/slurm_cluster.sh"))
            .env("ROOT", &base)
            .env("NODES", options.nodes.to_string())
            .env("SERVERS", options.servers.to_string())
            .env("PLUGIN", name)
            .env("FOREBAY", binary())
            .env("LET_GO", procs::LET_GO)
            .env("LUA", repository("packaging/slurm/burst_buffer.lua"))
            .env("CAPACITY", options.capacity)
            .env("WIDE_CAPACITY", wide_capacity)
            .env("WIDE_GRANULARITY", wide_granularity)
            .env("SWAP", swap.clone().unwrap_or_default())
            .env("BURST_BUFFER_CONF", options.burst_buffer_conf)
            .env("SITE_CONF", options.site_conf.replace("@ROOT@", &base.display().to_string()))
            .env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap()))
            .stdin(Stdio::null())
            .stderr(log.try_clone().unwrap())
            .stdout(log);
        // SAFETY: prctl may be called between fork and exec. A killed test ends the cluster too.
        let child = unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            })
        }
        .spawn()
        .unwrap();
        let mut cluster = Cluster { base, child, init: 0, nodes: options.nodes, swap };
        let begun = Instant::now();
        while !cluster.base.join("up").exists() {
            let failed = cluster.base.join("failed").exists();
            let ended = cluster.child.try_wait().unwrap();
            assert!(
                !failed && ended.is_none() && begun.elapsed() < UP_LIMIT,
                "the cluster does not come up: {}",
                cluster.logs()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        let children = format!("/proc/{0}/task/{0}/children", cluster.child.id());
        cluster.init = fs::read_to_string(children).unwrap().trim().parse().unwrap();
        cluster
    }

    /// A program on the host of slurmctld, as root.
    pub fn command(&self, program: &str, args: &[&str]) -> Command {
        self.entered(self.init, program, args)
    }

    fn entered(&self, pid: i32, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["-t", &pid.to_string(), "--mount", "--pid", "--net", "--uts", "--ipc"])
            .args(["--", program])
            .args(args)
            .current_dir("/")
            .env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap()))
            .env("FOREBAY_CONFIG_DIR", self.base.join("config"))
            .env("FOREBAY_CONF", self.base.join("forebay.conf"))
            .env("SLURM_CONF", self.base.join("slurm.conf"))
            // Jobs have this from whoever submits them. Their steps take no processors from each other: an `srun` right behind another
            // would else find them taken until Slurm has heard of the end of the first, and on a busy machine wait for minutes.
            .env("SLURM_OVERLAP", "1")
            .env_remove("FOREBAY_SERVER")
            .env_remove("FOREBAY_FLASH");
        command
    }

    /// A command of the shell on the host of slurmctld; whether it ended well, and what it said.
    pub fn sh(&self, text: &str) -> (bool, String) {
        procs::try_run_for(&mut self.command("bash", &["-c", text]), Duration::from_secs(60))
    }

    /// The same; it must end well.
    pub fn must(&self, text: &str) -> String {
        let (ok, said) = self.sh(text);
        assert!(ok, "{text}: {said}\n{}", self.logs());
        said
    }

    /// A command of the shell on a node, from 1.
    pub fn on_node(&self, node: usize, text: &str) -> (bool, String) {
        assert!(!text.contains('\''), "{text} stands between single quotes");
        let inner = fs::read_to_string(self.base.join(format!("node.{node}.pid"))).unwrap();
        let text = format!("nsenter -t {} --mount --uts bash -c '{text}'", inner.trim());
        self.sh(&text)
    }

    /// A path on the PFS.
    pub fn pfs(&self, name: &str) -> PathBuf {
        self.base.join("pfs").join(name)
    }

    /// Makes a file on the PFS that is the jobs' user's.
    pub fn put(&self, name: &str, text: &str) {
        let path = self.pfs(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        let mut own = path.as_path();
        while own != self.pfs("").parent().unwrap().join("pfs") {
            std::os::unix::fs::chown(own, Some(USER), Some(USER)).unwrap();
            own = own.parent().unwrap();
        }
    }

    /// A job script: the lines of its head, and its body. `@PFS@` is the PFS.
    pub fn script(&self, head: &[&str], body: &str) -> PathBuf {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = self.base.join(format!("job-{number}.sh"));
        let text = format!("#!/bin/bash\n{}\n{body}\n", head.join("\n"));
        let text = text.replace("@PFS@", self.pfs("").display().to_string().trim_end_matches('/'));
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Submits a script; its number, or what Slurm said.
    pub fn submit(&self, script: &Path, args: &str) -> Result<u32, String> {
        self.submit_as(USER, script, args)
    }

    pub fn submit_as(&self, uid: u32, script: &Path, args: &str) -> Result<u32, String> {
        let pfs = self.pfs("");
        let (ok, said) = self.sh(&format!(
            "sbatch --parsable --uid={uid} --gid={uid} -D {} -o {}slurm-%j.out {args} {} 2>&1",
            pfs.display(),
            pfs.display(),
            script.display()
        ));
        match ok {
            true => Ok(said.trim().rsplit('\n').next().unwrap().parse().unwrap()),
            false => Err(said),
        }
    }

    /// A field of `scontrol show job`.
    pub fn field(&self, job: u32, name: &str) -> String {
        let (_, said) = self.sh(&format!("scontrol -o show job {job}"));
        let start = format!("{name}=");
        let value = said.split_whitespace().find_map(|word| word.strip_prefix(start.as_str()));
        value.unwrap_or_default().to_string()
    }

    /// The line of a job that `scontrol show job` prints.
    pub fn shown(&self, job: u32) -> String {
        self.sh(&format!("scontrol -o show job {job}")).1
    }

    /// Waits for it.
    pub fn until(&self, what: &str, mut is: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is() {
            assert!(begun.elapsed() < STATE_LIMIT, "waited for: {what}\n{}", self.logs());
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until a job's buffer is in a state, as Slurm calls it.
    pub fn until_buffer(&self, job: u32, state: &str) {
        let what = format!("buffer of job {job} {state}");
        self.until(&what, || self.field(job, "BurstBufferState").starts_with(state));
    }

    /// Waits until all of a job is over, and its buffer gone or kept; the job's state.
    pub fn until_over(&self, job: u32) -> String {
        const OVER: [&str; 6] =
            ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "DEADLINE"];
        let mut state = String::new();
        self.until(&format!("the end of job {job}"), || {
            let said = self.shown(job);
            let value = |name: &str| {
                let word = said.split_whitespace().find_map(|word| word.strip_prefix(name));
                word.unwrap_or_default().to_string()
            };
            state = value("JobState=");
            let buffer = value("BurstBufferState=");
            OVER.contains(&state.as_str())
                && self.is_last_state(job, &buffer)
                && !self.session_is_there(&job.to_string())
        });
        state
    }

    /// True if this is what Slurm shows last of a job's buffer. A `scancel --hurry` in post_run removes Slurm's record of the
    /// buffer; when post_run ends after that, Slurm's DataWarp plugin shows `staging-out` from then on, and does nothing.
    pub fn is_last_state(&self, job: u32, state: &str) -> bool {
        let has_no_record = || {
            let log = fs::read_to_string(self.base.join("log/slurmctld.log")).unwrap_or_default();
            log.contains(&format!("unable to find bb record for JobId={job}\n"))
        };
        state.is_empty() || state == "complete" || state == "staging-out" && has_no_record()
    }

    /// True if Slurm says that it has killed a teardown of a job.
    pub fn teardown_was_killed(&self, job: u32) -> bool {
        let log = fs::read_to_string(self.base.join("log/slurmctld.log")).unwrap_or_default();
        log.contains(&format!("teardown for JobId={job} terminated by slurmctld"))
    }

    /// Waits until all of a cancelled job is over, as [`Cluster::until_over`]. Slurm's Lua plugin may kill the teardown that
    /// it calls for it, and calls none after it: the job is over, and Slurm counts its buffer still. Reconciling ends what has
    /// no results, and a start of the controller the rest, and what Slurm has on record.
    pub fn until_cancelled(&self, job: u32) {
        let token = job.to_string();
        let is_over = || {
            let state = self.field(job, "BurstBufferState");
            !self.session_is_there(&token) && self.is_last_state(job, &state)
        };
        self.until(&format!("the end of job {job}, or of its teardown"), || {
            let state = self.field(job, "JobState");
            state == "CANCELLED" && (is_over() || self.teardown_was_killed(job))
        });
        if self.session_is_there(&token) && !is_over() {
            self.age(&token);
            self.forebay("reconcile");
        }
        // A job that got as far as its mounts may have results, and is left to Slurm: that calls its teardown again when it starts.
        if !is_over() {
            self.restart_controller();
        }
        assert_eq!(self.until_over(job), "CANCELLED", "{}", self.logs());
    }

    /// The same by either plugin.
    pub fn until_cancelled_by(&self, plugin: Plugin, job: u32) {
        match plugin {
            Plugin::Datawarp => assert_eq!(self.until_over(job), "CANCELLED", "{}", self.logs()),
            Plugin::Lua => self.until_cancelled(job),
        }
    }

    /// What a job printed.
    pub fn output(&self, job: u32) -> String {
        fs::read_to_string(self.pfs(&format!("slurm-{job}.out"))).unwrap_or_default()
    }

    pub fn session_is_there(&self, token: &str) -> bool {
        self.base.join(format!("site-state/sessions/{token}.json")).exists()
    }

    /// The lines of the hooks' log for a token, or all.
    pub fn calls(&self, token: Option<u32>) -> Vec<String> {
        let text = fs::read_to_string(self.base.join("site-state/hooks.log")).unwrap_or_default();
        let mine = |line: &&str| {
            token.is_none_or(|token| {
                line.contains(&format!("--token {token} "))
                    || line.contains(&format!("--token {token}:"))
            })
        };
        text.lines().filter(mine).map(str::to_string).collect()
    }

    /// How long the calls of each step took, by the hooks' log, in milliseconds; the shortest first.
    pub fn step_times_ms(&self) -> BTreeMap<String, Vec<f64>> {
        let mut all: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for line in self.calls(None) {
            let Some(rest) = line.split("--function ").nth(1) else { continue };
            let Some(Ok(took_ms)) = line.split(' ').nth(2).map(str::parse::<f64>) else { continue };
            let step = rest.split([' ', ':']).next().unwrap_or_default();
            all.entry(step.to_string()).or_default().push(took_ms);
        }
        all.values_mut().for_each(|times_ms| times_ms.sort_by(f64::total_cmp));
        all
    }

    /// The steps of a job's buffer that were called, in order.
    pub fn steps(&self, job: u32) -> Vec<String> {
        let name = |line: &String| {
            let rest = line.split("--function ").nth(1).unwrap_or_default();
            let name = rest.split([' ', ':']).next().unwrap_or_default().to_string();
            match line.contains("--hurry") {
                true => format!("{name} --hurry"),
                false => name,
            }
        };
        self.calls(Some(job)).iter().map(name).collect()
    }

    /// Sends a signal to the processes on the cluster whose command line is like that; no other ones are seen there.
    pub fn signal(&self, name: &str, like: &str) {
        self.must(&format!("pkill -{name} -f {like:?}"));
    }

    fn at(&self, what: &str, step: &str) -> PathBuf {
        self.base.join(format!("at/{what}.{step}"))
    }

    /// From now on a step stands still before it begins (`before`), or before it returns (`behind`).
    pub fn hold(&self, when: &str, step: &str) {
        let _ = fs::remove_file(self.at("is", step));
        fs::write(self.at(when, step), "").unwrap();
    }

    /// Waits until a step stands still.
    pub fn until_held(&self, step: &str) {
        self.until(&format!("{step} is called"), || self.is_held(step));
    }

    /// True while a step that was to stand still does.
    pub fn is_held(&self, step: &str) -> bool {
        self.at("is", step).exists()
    }

    /// Steps that stand still go on, and others do not stop any more.
    pub fn let_go(&self, step: &str) {
        for what in ["before", "behind", "is"] {
            let _ = fs::remove_file(self.at(what, step));
        }
    }

    /// From now on a step fails, and says this; or does what it should again.
    pub fn fail(&self, step: &str, said: Option<&str>) {
        match said {
            Some(said) => fs::write(self.at("fail", step), said).unwrap(),
            None => fs::remove_file(self.at("fail", step)).unwrap(),
        }
    }

    /// Waits until the program of a step asks servers or nodes.
    pub fn until_asking(&self, step: &str) {
        self.until(&format!("{step} runs"), || self.is_asking(step));
    }

    /// True while a program of a step runs.
    pub fn is_asking(&self, step: &str) -> bool {
        self.sh(&format!("pgrep -f '^dw_wlm_cli --function {step} '")).0
    }

    /// Ends slurmctld, which ends what it runs, and starts it again.
    pub fn restart_controller(&self) {
        self.must(
            "pkill -x slurmctld; while pgrep -x slurmctld > /dev/null; do sleep 0.05; done; slurmctld; \
             until timeout 5 scontrol ping | grep -q \"is UP\"; do sleep 0.05; done",
        );
    }

    /// Makes a job's record as old as those that `forebay reconcile` looks at.
    pub fn age(&self, token: &str) {
        let record = self.base.join(format!("site-state/sessions/{token}.json"));
        // It may be gone in this moment.
        let Ok(text) = fs::read_to_string(&record) else { return };
        let mut session: Value = serde_json::from_str(&text).unwrap();
        session["created_s"] = 1.into();
        let new = record.with_extension("test");
        fs::write(&new, session.to_string()).unwrap();
        fs::rename(&new, &record).unwrap();
    }

    /// Lets a job start again now that went back into the queue.
    pub fn start_again(&self, job: u32) {
        let held = self.field(job, "Priority") == "0";
        if held || self.shown(job).contains("pre_run") {
            self.sh(&format!("scontrol release {job}"));
        }
        // It may start by itself in this moment, which Slurm calls an error: callers wait for what follows.
        self.sh(&format!("scontrol update jobid={job} starttime=now"));
    }

    /// A field of `squeue`'s own line of a job, such as `%r`, the reason.
    pub fn listed(&self, job: u32, format: &str) -> String {
        self.sh(&format!("squeue -h -t all -j {job} -o '{format}'")).1.trim().to_string()
    }

    /// Starts a server again that was killed.
    pub fn start_server(&self) {
        self.must(&format!("bash {}/bin/server 1", self.base.display()));
    }

    /// Starts the agent of a node again, from 1, that was killed.
    pub fn start_agent(&self, node: usize) {
        let (ok, said) =
            self.on_node(node, &format!("bash {}/bin/agent {node}", self.base.display()));
        assert!(ok, "{said}{}", self.logs());
    }

    /// The directory for swap space of a node, from 1.
    pub fn swap_dir(&self, node: usize) -> PathBuf {
        self.swap.as_ref().unwrap().join(format!("n{node}"))
    }

    /// Files of the cluster that the kernel swaps to.
    pub fn swaps(&self) -> usize {
        let Some(dir) = &self.swap else { return 0 };
        let all = fs::read_to_string("/proc/swaps").unwrap();
        all.lines().filter(|line| line.contains(dir.to_str().unwrap())).count()
    }

    /// `forebay ... --json`, as root on the host of slurmctld.
    pub fn forebay(&self, args: &str) -> Value {
        let said = self.must(&format!("{} {args} --json", binary().display()));
        serde_json::from_str(said.trim()).unwrap_or_else(|error| panic!("{error}: {said}"))
    }

    pub const SERVER: &str = "--server 10.77.0.1:4242";
    /// The server of the second pool.
    pub const WIDE_SERVER: &str = "--server 10.77.0.1:4342";

    /// Bytes that the servers have promised to buffers.
    pub fn reserved(&self) -> u64 {
        self.reserved_at(Cluster::SERVER)
    }

    /// The same of one pool.
    pub fn reserved_at(&self, server: &str) -> u64 {
        let pool = self.forebay(&format!("pool status {server}"));
        let servers = pool["servers"].as_array().unwrap();
        servers.iter().map(|server| server["reserved_bytes"].as_u64().unwrap()).sum()
    }

    /// All that slurmctld has logged.
    pub fn controller_log(&self) -> String {
        let log = fs::read(self.base.join("log/slurmctld.log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Nothing of any job is left: no session, no buffer, no mount, no directory. Nor has a hook said anything where it must not.
    pub fn assert_clean(&self) {
        let said = fs::read_to_string(self.base.join("hooks.stderr")).unwrap_or_default();
        assert_eq!(said, "", "hooks said this on standard error");
        let sessions: Vec<_> = fs::read_dir(self.base.join("site-state/sessions"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert!(sessions.is_empty(), "{sessions:?}\n{}", self.logs());
        assert_eq!(self.reserved(), 0, "{}", self.logs());
        for node in 1..=self.nodes {
            // A test beside this one may have mounted while the namespaces were made: its mounts are none of ours.
            let script =
                r#"grep " /run/forebay/.*fuse.forebay" /proc/self/mountinfo; ls /run/forebay/jobs"#;
            let (_, said) = self.on_node(node, script);
            assert_eq!(said.trim(), "", "node {node}: {}", self.logs());
            if self.swap.is_some() {
                assert_eq!(fs::read_dir(self.swap_dir(node)).unwrap().count(), 0, "node {node}");
            }
        }
        assert_eq!(self.swaps(), 0, "{}", self.logs());
    }

    /// What the last jobs printed: files below `base`.
    fn outputs(&self) -> Vec<String> {
        let number = |name: &str| -> Option<u32> {
            name.strip_prefix("slurm-")?.strip_suffix(".out")?.parse().ok()
        };
        let mut jobs: Vec<u32> = fs::read_dir(self.pfs(""))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| number(entry.file_name().to_str()?))
            .collect();
        jobs.sort_unstable();
        let last = &jobs[jobs.len().saturating_sub(LOGGED_JOBS)..];
        last.iter().map(|job| format!("pfs/slurm-{job}.out")).collect()
    }

    /// What may tell why something went wrong: the ends of all logs, what the last jobs printed, and where they stand.
    pub fn logs(&self) -> String {
        let all = ["cluster.log", "site-state/hooks.log", "log/slurmctld.log", "log/serve1.log"];
        let mut names: Vec<String> = all.into_iter().map(str::to_string).collect();
        for node in 1..=self.nodes.min(LOGGED_NODES) {
            names.push(format!("log/agent-n{node}.log"));
            names.push(format!("log/slurmd-n{node}.log"));
        }
        names.extend(self.outputs());
        let mut text = String::new();
        for name in names {
            let log = fs::read(self.base.join(&name)).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(LOGGED_LINES)..].join("\n");
            text += &format!("---- {name}\n{tail}\n");
        }
        // A cluster that did not come up has no namespaces that we know.
        if self.init != 0 {
            let mut look = self.command("bash", &["-c", NOW]);
            text += &format!("---- now\n{}\n", procs::try_run_for(&mut look, NOW_LIMIT).1);
        }
        text
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The kernel ends what is in the namespace of a first process that has ended.
        let gone = Instant::now() + Duration::from_secs(30);
        while Path::new(&format!("/proc/{}", self.init)).exists() && Instant::now() < gone {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = fs::remove_dir_all(&self.base);
        // Of a test that has failed: the kernel swaps to a file until it is told otherwise.
        if let Some(dir) = &self.swap {
            for node in 1..=self.nodes {
                for entry in fs::read_dir(self.swap_dir(node)).into_iter().flatten().flatten() {
                    let _ = Command::new("swapoff").arg(entry.path()).status();
                }
            }
            let _ = fs::remove_dir_all(dir);
        }
    }
}
