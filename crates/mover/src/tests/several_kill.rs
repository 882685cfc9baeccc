//! Servers of one plan as processes, joined by sockets, each killed at every failpoint
//! of its work: the plan goes on with the next one, ends once, whole, and leaves nothing.

use super::dir_tree::DirTree;
use super::snapshot;
use super::sockets::{receive, send, socket};
use super::support::{LIMIT, leftovers, need_root, noise, spec};
use crate::{Mover, MoverOptions, Servers};
use forebay_failpoint::kill::{KILL_AT, points};
use forebay_interfaces::peers::asking;
use forebay_proto::control::{Direction, PlanState};
use forebay_proto::net::servers::{Question, Reply};
use forebay_proto::{Caller, Errno, Result, ShardId};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SERVERS: u16 = 3;
const DIR: &str = "FOREBAY_TEST_SEVERAL_DIR";
const MINE: &str = "FOREBAY_TEST_SEVERAL_MINE";
const OUT: &str = "FOREBAY_TEST_SEVERAL_OUT";
/// Points of one process that are tried; a run passes them again for each exchange.
const POINTS_MAX: u64 = 40;

fn ask(dir: &Path, to: ShardId, question: &Question<'_>) -> Result<Reply> {
    let Question::Staging { question, .. } = question else { return Err(Errno::EPROTO) };
    let mut stream = UnixStream::connect(socket(dir, to.0)).map_err(|_| Errno::EHOSTUNREACH)?;
    let asked = send(&mut stream, question).and_then(|()| receive(&mut stream));
    asked.map(Reply::Staging).map_err(|_| Errno::ETIMEDOUT)
}

/// Not a test by itself: a server. That of shard 0 ends when the plan has ended.
#[test]
fn server_process() {
    let (Ok(dir), Ok(mine)) = (std::env::var(DIR), std::env::var(MINE)) else { return };
    let (dir, mine) = (PathBuf::from(dir), mine.parse::<u16>().unwrap());
    let tree = Arc::new(DirTree::of_server(&dir.join("buffer"), mine, SERVERS));
    let sockets = dir.clone();
    let peers =
        asking(ShardId(mine), SERVERS, 7, move |to, question, _, _| ask(&sockets, to, question));
    let servers = Some(Servers::new(peers));
    let options = MoverOptions { servers, workers: 2, ..MoverOptions::default() };
    let mover = Arc::new(Mover::new(tree, dir.join(format!("plans-{mine}")), options).unwrap());
    mover.resume();
    if mine == 0 {
        let who = Caller::root();
        if mover.list(&who).is_empty() {
            let plan = match std::env::var(OUT).is_ok() {
                true => spec(Direction::Out, &dir.join("pfs/out"), "/tree"),
                false => spec(Direction::In, &dir.join("pfs/tree"), "/in"),
            };
            mover.start(&who, plan).unwrap();
        }
        let plans = mover.list(&who);
        assert_eq!(plans.len(), 1, "the plan is one");
        let status = mover.wait(&who, plans[0].plan, LIMIT).unwrap();
        assert_eq!(status.state, PlanState::Done, "{status:#?}");
        assert_eq!(status.files_done, status.files_total);
        assert_eq!(status.bytes_done, status.bytes_total);
        return;
    }
    let _ = std::fs::remove_file(socket(&dir, mine));
    let listener = UnixListener::bind(socket(&dir, mine)).unwrap();
    for stream in listener.incoming() {
        let (mut stream, mover) = (stream.unwrap(), mover.clone());
        std::thread::spawn(move || {
            let answered = receive(&mut stream).and_then(|question| mover.answer(&question));
            answered.and_then(|answer| send(&mut stream, &answer))
        });
    }
}

struct Process(Child);

impl Process {
    fn start(dir: &Path, server: u16, out: bool, kill_at: Option<u64>) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "tests::several_kill::server_process", "--nocapture"])
            .env(DIR, dir)
            .env(MINE, server.to_string());
        if out {
            command.env(OUT, "1");
        }
        if let Some(at) = kill_at {
            command.env(KILL_AT, at.to_string());
        }
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(dir.join(format!("log-{server}")))
            .unwrap();
        command.stdout(Stdio::from(log.try_clone().unwrap())).stderr(Stdio::from(log));
        Process(command.spawn().unwrap())
    }

    /// How it ended, if it has: true if it was killed.
    fn ended(&mut self) -> Option<bool> {
        let status = self.0.try_wait().unwrap()?;
        assert!(status.success() || status.signal() == Some(libc::SIGKILL), "{status}");
        Some(status.signal().is_some())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn make_tree(top: &Path) {
    for dir in 0..2 {
        let dir = top.join(format!("d{dir}"));
        std::fs::create_dir_all(&dir).unwrap();
        for number in 0..9u64 {
            std::fs::write(dir.join(number.to_string()), noise(3_000, number)).unwrap();
        }
        std::fs::hard_link(dir.join("7"), dir.join("7-again")).unwrap();
        symlink("7", dir.join("link")).unwrap();
    }
    std::fs::write(top.join("big"), noise(3 << 20, 5)).unwrap();
}

/// One plan, in which `victim` is killed at its point `at`; false if it has no such point.
fn killed_at(victim: u16, at: u64, out: bool) -> bool {
    let keep = tempfile::tempdir().unwrap();
    let dir = keep.path();
    let (source, target) = match out {
        true => (dir.join("buffer/tree/tree"), dir.join("pfs/out")),
        false => (dir.join("pfs/tree"), dir.join("buffer/tree/in")),
    };
    std::fs::create_dir(dir.join("pfs")).unwrap();
    std::fs::create_dir_all(&source).unwrap();
    make_tree(&source);
    let before = snapshot::forget_atimes(snapshot::take(&source));
    let kill = |server| (server == victim).then_some(at);
    let mut servers: Vec<_> =
        (0..SERVERS).rev().map(|server| Process::start(dir, server, out, kill(server))).collect();
    servers.reverse();
    let mut killed = false;
    let end = Instant::now() + LIMIT;
    loop {
        assert!(Instant::now() < end, "the plan does not end");
        for server in 0..SERVERS {
            match servers[usize::from(server)].ended() {
                Some(true) => {
                    killed = true;
                    servers[usize::from(server)] = Process::start(dir, server, out, None);
                }
                Some(false) if server == 0 => {
                    settled(dir, victim, killed, &mut servers, out);
                    let after = snapshot::forget_atimes(snapshot::take(&target));
                    snapshot::assert_same(&before, &after);
                    return killed;
                }
                Some(false) => panic!("server {server} ended"),
                None => {}
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// After the plan's end nothing of it may stay, also where it was killed at the last moment.
fn settled(dir: &Path, victim: u16, killed: bool, servers: &mut [Process], out: bool) {
    let shares = || {
        let plans = (1..SERVERS).map(|server| dir.join(format!("plans-{server}")));
        let entries = plans.flat_map(|plans| std::fs::read_dir(plans).into_iter().flatten());
        entries.flatten().filter(|e| e.file_name().to_string_lossy().starts_with("share")).count()
    };
    let end = Instant::now() + Duration::from_secs(20);
    while shares() > 0 || !leftovers(&dir.join("pfs")).is_empty() {
        assert!(Instant::now() < end, "{} shares, {:?}", shares(), leftovers(&dir.join("pfs")));
        if victim > 0 && !killed && servers[usize::from(victim)].ended() == Some(true) {
            servers[usize::from(victim)] = Process::start(dir, victim, out, None);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn killed_everywhere(victim: u16) {
    need_root();
    for out in [false, true] {
        let end = points().find(|&at| at > POINTS_MAX || !killed_at(victim, at, out)).unwrap();
        assert!(end > 6, "no point {end}, out: {out}");
    }
}

#[test]
fn the_server_that_has_the_plan_is_killed_at_each_point() {
    killed_everywhere(0);
}

#[test]
fn a_server_with_a_share_is_killed_at_each_point() {
    killed_everywhere(1);
}
