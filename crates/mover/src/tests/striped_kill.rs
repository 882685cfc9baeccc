//! Servers of a buffer with striped files as processes, joined by sockets, each killed at every failpoint
//! of the copy of a part: the plan goes on with the next server, ends once, whole, and leaves
//! nothing.

use super::over_rig::{SERVERS, Server, answer, begin, make_wide, open_server};
use super::sockets::{receive, send, socket};
use super::support::{LIMIT, leftovers, noise, spec};
use forebay_failpoint::kill::{KILL_AT, KILL_ONLY, points};
use forebay_interfaces::peers::asking;
use forebay_proto::control::{Direction, PlanState};
use forebay_proto::net::frame;
use forebay_proto::net::servers::{Question, Reply};
use forebay_proto::{Caller, Errno, Result, ShardId};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const DIR: &str = "FOREBAY_TEST_STRIPED_DIR";
const MINE: &str = "FOREBAY_TEST_STRIPED_MINE";
/// `in` or `out`.
const WHAT: &str = "FOREBAY_TEST_STRIPED_WHAT";
/// Points of one process that are tried.
const POINTS_MAX: u64 = 24;
/// Two files: the first is begun by shard 0, the second by shard 1, and each has a part of both.
const FILES: [&str; 2] = ["a", "b"];

fn ask(
    dir: &Path,
    to: ShardId,
    question: &Question<'_>,
    payload: &[u8],
    room: &mut Vec<u8>,
) -> Result<Reply> {
    let mut body = Vec::new();
    frame::encode(question, &mut body).unwrap();
    let mut stream = UnixStream::connect(socket(dir, to.0)).map_err(|_| Errno::EHOSTUNREACH)?;
    let asked = send(&mut stream, &body).and_then(|()| send(&mut stream, payload));
    let answered = asked.and_then(|()| Ok((receive(&mut stream)?, receive(&mut stream)?)));
    let (reply, data) = answered.map_err(|_| Errno::ETIMEDOUT)?;
    *room = data;
    match frame::decode(&reply).unwrap() {
        Reply::Failed(errno) => Err(Errno(errno)),
        reply => Ok(reply),
    }
}

fn serve(mut stream: UnixStream, server: &Server) -> Result<()> {
    let (body, payload) = (receive(&mut stream)?, receive(&mut stream)?);
    let question = frame::decode_borrowed(&body).unwrap();
    let mut room = Vec::new();
    let reply = answer(server, &question, &payload, &mut room);
    let reply = reply.unwrap_or_else(|errno| Reply::Failed(errno.0));
    let mut body = Vec::new();
    frame::encode(&reply, &mut body).unwrap();
    send(&mut stream, &body)?;
    send(&mut stream, &room)
}

/// Not a test by itself: a server. That of shard 0 ends when the plan has ended.
#[test]
fn server_process() {
    let (Ok(dir), Ok(mine)) = (std::env::var(DIR), std::env::var(MINE)) else { return };
    let (dir, mine) = (PathBuf::from(dir), mine.parse::<u16>().unwrap());
    let unclean = dir.join(format!("store-{mine}")).exists();
    let sockets = dir.clone();
    let peers = asking(ShardId(mine), SERVERS, 5, move |to, question, payload, room| {
        ask(&sockets, to, question, payload, room)
    });
    let server = Arc::new(open_server(&dir, mine, unclean, peers, None));
    let _ = std::fs::remove_file(socket(&dir, mine));
    let listener = UnixListener::bind(socket(&dir, mine)).unwrap();
    let served = server.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, server) = (stream.unwrap(), served.clone());
            std::thread::spawn(move || serve(stream, &server));
        }
    });
    begin(&server);
    if mine > 0 {
        loop {
            std::thread::park();
        }
    }
    let (who, mover) = (Caller::root(), &server.mover);
    let direction = match std::env::var(WHAT).unwrap().as_str() {
        "in" => Direction::In,
        _ => Direction::Out,
    };
    let is_it = |plan: &&forebay_proto::control::PlanStatus| plan.spec.direction == direction;
    let plan = match mover.list(&who).iter().find(is_it) {
        Some(plan) => plan.plan,
        None => {
            if direction == Direction::In {
                make_wide(&server, "wide", 64 << 10);
            }
            let pfs = if direction == Direction::In { "pfs/tree" } else { "pfs/out" };
            mover.start(&who, spec(direction, &dir.join(pfs), "/wide")).unwrap().plan
        }
    };
    let status = mover.wait(&who, plan, LIMIT).unwrap();
    assert_eq!(status.state, PlanState::Done, "{status:#?}");
    assert_eq!(status.files_done, status.files_total);
    assert_eq!(status.bytes_done, status.bytes_total);
}

struct Process(Child);

impl Process {
    fn start(dir: &Path, server: u16, what: &str, kill_at: Option<u64>) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "tests::striped_kill::server_process", "--nocapture"])
            .env(DIR, dir)
            .env(MINE, server.to_string())
            .env(WHAT, what);
        if let Some(at) = kill_at {
            command.env(KILL_AT, at.to_string()).env(KILL_ONLY, "a part ");
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
    fn ended(&mut self, dir: &Path, server: u16) -> Option<bool> {
        let status = self.0.try_wait().unwrap()?;
        let log = || std::fs::read_to_string(dir.join(format!("log-{server}"))).unwrap();
        let is_killed = status.signal() == Some(libc::SIGKILL);
        assert!(status.success() || is_killed, "server {server}: {status}\n{}", log());
        Some(is_killed)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a plan to its end; `kill`: which server at which of its points. True if it was killed.
fn run(dir: &Path, what: &str, kill: Option<(u16, u64)>) -> bool {
    let at = |server| kill.filter(|(victim, _)| *victim == server).map(|(_, at)| at);
    let start = |server| Process::start(dir, server, what, at(server));
    let mut servers: Vec<_> = (0..SERVERS).map(start).collect();
    let mut killed = false;
    let end = Instant::now() + LIMIT;
    loop {
        assert!(Instant::now() < end, "the plan does not end: {}", dir.display());
        for server in 0..SERVERS {
            match servers[usize::from(server)].ended(dir, server) {
                Some(true) => {
                    killed = true;
                    servers[usize::from(server)] = Process::start(dir, server, what, None);
                }
                Some(false) if server == 0 => return killed,
                Some(false) => panic!("server {server} ended"),
                None => {}
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// In and out again, `victim` being killed at its point `at` in one of both; false if it has no such
/// point.
fn killed_at(victim: u16, at: u64, out: bool) -> bool {
    let keep = tempfile::tempdir_in("/dev/shm").unwrap();
    let dir = keep.path();
    for sub in ["pfs/tree", "pfs/out"] {
        std::fs::create_dir_all(dir.join(sub)).unwrap();
    }
    for (number, name) in FILES.iter().enumerate() {
        let bytes = noise((1 << 20) + 70_001 * (number + 1), number as u64);
        std::fs::write(dir.join("pfs/tree").join(name), bytes).unwrap();
    }
    let kill = |now: bool| now.then_some((victim, at));
    let killed = run(dir, "in", kill(!out)) | run(dir, "out", kill(out));
    for name in FILES {
        let read = |sub: &str| std::fs::read(dir.join(sub).join(name)).unwrap();
        assert!(read("pfs/tree") == read("pfs/out"), "{name}, killed at {at}, out: {out}");
    }
    assert_eq!(leftovers(&dir.join("pfs")), Vec::<PathBuf>::new(), "killed at {at}, out: {out}");
    killed
}

fn killed_everywhere(victim: u16, step: usize) {
    for out in [false, true] {
        let mut points = points().step_by(step);
        let end = points.find(|&at| at > POINTS_MAX || !killed_at(victim, at, out)).unwrap();
        assert!(end > 10, "no point {end}, in steps of {step}, out: {out}");
    }
}

#[test]
fn a_server_with_parts_is_killed_at_each_point() {
    killed_everywhere(1, 1);
}

#[test]
fn the_plans_server_is_killed_at_points_of_its_parts() {
    killed_everywhere(0, 3);
}
