//! `forebay serve` and `forebay buffer` as users run them: several kinds of connections, secrets,
//! restarts, staging without a mount, and what is said of the stores on flash.

use crate::common::{Flash, Rig, failure, must_be_root, text};
use forebay_proto::net::frame::{Kind, MAGIC};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);

/// A server of this test, ended with it.
struct Served {
    rig: Rig,
    child: Option<Child>,
    tcp: String,
    unix: String,
}

impl Served {
    fn new(flash: Flash) -> Served {
        let rig = Rig::new(flash);
        let unix = format!("unix:{}", rig.base().join("sock").display());
        let mut served = Served { rig, child: None, tcp: String::new(), unix };
        served.start();
        served
    }

    fn command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = std::process::Command::new(crate::common::program());
        command
            .args(arguments)
            .env("FOREBAY_FLASH", &self.rig.flash)
            .env("FOREBAY_CONFIG_DIR", self.config())
            .env_remove("FOREBAY_SERVER")
            .env_remove("TMPDIR");
        command
    }

    fn config(&self) -> PathBuf {
        self.rig.base().join("config")
    }

    fn start(&mut self) {
        let unix = self.unix.clone();
        let arguments = [
            "serve",
            "--capacity",
            "128MiB",
            "--listen",
            "127.0.0.1:0",
            "--listen",
            &unix,
            "--json",
        ];
        let mut child =
            self.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        let out = child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
        self.child = Some(child);
        let up: Value = serde_json::from_str(&line).expect("it did not say where it listens");
        self.tcp = up["addresses"][0].as_str().unwrap().to_string();
        assert_eq!(up["addresses"][1], self.unix.as_str());
    }

    /// Ends the server with a signal; its exit code, if it had one.
    fn end(&mut self, signal: i32) -> Option<i32> {
        let mut child = self.child.take()?;
        // SAFETY: only sends a signal, to the server that this test started.
        unsafe { libc::kill(child.id() as i32, signal) };
        let until = Instant::now() + LIMIT;
        while child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        child.wait().unwrap().code()
    }

    fn at(&self, server: &str, arguments: &[&str]) -> Output {
        let mut all = arguments.to_vec();
        all.extend(["--server", server]);
        self.command(&all).output().unwrap()
    }

    /// Over TCP, with what the directory of secrets has.
    fn ask(&self, arguments: &[&str]) -> Output {
        self.at(&self.tcp, arguments)
    }

    #[track_caller]
    fn done(&self, arguments: &[&str]) -> String {
        let output = self.ask(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    fn state(&self, name: &str) -> Value {
        serde_json::from_str(&self.done(&["buffer", "status", name, "--json"])).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.end(libc::SIGKILL);
        for store in self.rig.stores() {
            if store.join("store.json").exists() {
                // What the test left is removed by the program itself: it knows the mounts.
                let _ = forebay_store::flash::Store::discard_dir(&store);
            }
        }
    }
}

#[test]
fn a_buffer_lives_from_create_to_destroy() {
    let mut served = Served::new(Flash::Memory);
    let made = served.done(&["buffer", "create", "run7", "--capacity", "20MiB"]);
    assert!(made.contains("32.0 MiB") && made.contains("run7.secret"), "{made}");
    let again = failure(&served.ask(&["buffer", "create", "run7", "--capacity", "20MiB"]), 1);
    assert!(again.contains("run7") && again.contains("already"), "{again}");
    let list = served.done(&["buffer", "list"]);
    assert!(list.contains("NAME") && list.contains("run7") && list.contains("96.0 MiB of 128 MiB"));
    let large = failure(&served.ask(&["buffer", "create", "b", "--capacity", "1GiB"]), 1);
    assert!(large.contains("no space") && large.contains("buffer list"), "{large}");
    let uuid = served.state("run7")["uuid"].clone();
    served.done(&["buffer", "extend", "run7", "--capacity", "64MiB"]);
    assert_eq!(served.state("run7")["capacity_bytes"], 64 << 20);

    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGINT] {
        let code = served.end(signal);
        assert_eq!(code, if signal == libc::SIGKILL { None } else { Some(0) });
        let gone = failure(&served.ask(&["buffer", "list"]), 1);
        assert!(gone.contains("forebay serve"), "{gone}");
        served.start();
        assert_eq!(
            (served.state("run7")["uuid"].clone(), &served.state("run7")["state"]),
            (uuid.clone(), &"ready".into())
        );
    }
    served.done(&["buffer", "destroy", "run7"]);
    served.done(&["buffer", "destroy", "run7"]);
    assert!(!served.config().join("buffers/run7.secret").exists());
    assert_eq!(served.rig.stores(), [served.rig.flash.join("forebay-server")]);
}

#[test]
fn files_are_staged_without_a_mount() {
    let served = Served::new(Flash::Disk);
    let pfs = served.rig.base().join("pfs");
    fs::create_dir_all(pfs.join("in/sub")).unwrap();
    fs::write(pfs.join("in/sub/file"), vec![9; 300_000]).unwrap();
    served.done(&["buffer", "create", "a", "--capacity", "16MiB", "--store", "directory"]);
    let path = |name: &str| pfs.join(name).to_str().unwrap().to_string();
    let staged = served.done(&["stage", "in", &path("in"), "a:/tree"]);
    assert!(staged.contains("done"), "{staged}");
    served.done(&["stage", "out", "a:/tree", &path("out")]);
    assert_eq!(fs::read(pfs.join("out/sub/file")).unwrap(), vec![9; 300_000]);
    let plan = served.done(&["stage", "in", &path("in"), "a:/more", "--no-wait"]);
    let plan = plan.trim();
    served.done(&["stage", "wait", plan, "--buffer", "a:"]);
    let list = served.done(&["stage", "status", "a:"]);
    assert_eq!(list.lines().count(), 3, "{list}");
    let late = failure(&served.ask(&["stage", "rate", plan, "1MiB", "--buffer", "a:"]), 1);
    assert!(late.contains("ended"), "{late}");
    assert!(served.done(&["stage", "cancel", plan, "--buffer", "a:"]).contains("done"));
    let bad = failure(&served.ask(&["stage", "out", "a:/none", &path("x")]), 1);
    assert!(bad.contains("/none"), "{bad}");
    // A name that no server was given for is not taken for a path.
    let lost = failure(&served.command(&["stage", "in", &path("in"), "a:/x"]).output().unwrap(), 2);
    assert!(lost.contains("--server"), "{lost}");
}

#[test]
fn who_has_no_secret_gets_nothing_over_tcp() {
    let served = Served::new(Flash::Disk);
    let create = ["buffer", "create", "a", "--capacity", "16MiB", "--store", "directory"];
    served.done(&create);
    let key = served.config().join("server.key");
    let secret = served.config().join("buffers/a.secret");
    for file in [&key, &secret] {
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }
    // With the buffer's secret alone: this buffer, and nothing else.
    let away = served.config().join("away");
    fs::rename(&key, &away).unwrap();
    assert_eq!(served.state("a")["state"], "ready");
    let refused = failure(&served.ask(&["buffer", "list"]), 1);
    assert!(refused.contains("a secret is needed") && refused.contains("server.key"), "{refused}");
    let file = secret.to_str().unwrap();
    let with = |name: &str| {
        served.ask(&["buffer", "create", name, "--capacity", "1MiB", "--secret-file", file])
    };
    assert!(failure(&with("b"), 1).contains("that buffer only"));
    // A wrong secret, and a file that others may read.
    fs::write(&key, format!("server {}\n", "ab".repeat(32))).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let wrong = failure(&served.ask(&["buffer", "list"]), 1);
    assert!(wrong.contains("not the right one"), "{wrong}");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let open = failure(&served.ask(&["buffer", "list"]), 1);
    assert!(open.contains("chmod 600"), "{open}");
    fs::rename(&away, &key).unwrap();
    served.done(&["buffer", "list"]);
    // On the Unix socket the kernel tells who asks.
    fs::remove_file(&key).unwrap();
    let local = served.at(&served.unix, &["buffer", "list"]);
    assert!(text(&local.stdout).contains('a'), "{}", text(&local.stderr));
}

#[test]
fn the_same_token_gives_the_same_buffer() {
    let served = Served::new(Flash::Disk);
    let create = |token: &str| {
        let with = [
            "buffer",
            "create",
            "a",
            "--capacity",
            "16MiB",
            "--store",
            "directory",
            "--token",
            token,
            "--json",
        ];
        served.ask(&with)
    };
    let uuid = |output: &Output| {
        let made: Value = serde_json::from_slice(&output.stdout).unwrap();
        made["uuid"].as_str().unwrap().to_string()
    };
    let first = create("job-7");
    let kept = fs::read(served.config().join("buffers/a.secret")).unwrap();
    fs::remove_file(served.config().join("buffers/a.secret")).unwrap();
    assert_eq!(uuid(&create("job-7")), uuid(&first));
    assert_eq!(fs::read(served.config().join("buffers/a.secret")).unwrap(), kept);
    failure(&create("job-8"), 1);
}

#[test]
fn one_server_has_a_flash_directory() {
    let served = Served::new(Flash::Disk);
    let second = ["serve", "--capacity", "64MiB", "--listen", "127.0.0.1:0"];
    let refused = failure(&served.command(&second).output().unwrap(), 1);
    assert_eq!(refused.matches("in use by process").count(), 1, "it is said, once: {refused}");
    let log = served.rig.base().join("second.log");
    let logs = [&second[..], &["--log-file", log.to_str().unwrap()]].concat();
    let refused = failure(&served.command(&logs).output().unwrap(), 1);
    assert_eq!(refused.matches("in use by process").count(), 1, "on the terminal too: {refused}");
    assert!(fs::read_to_string(&log).unwrap().contains("in use by process"));
    let none = ["serve", "--capacity", "64MiB"];
    assert!(failure(&served.command(&none).output().unwrap(), 2).contains("--listen"));
    let bad = ["serve", "--capacity", "64MiB", "--listen", "unix:relative"];
    assert!(failure(&served.command(&bad).output().unwrap(), 2).contains("absolute"));
}

#[test]
fn a_store_says_that_it_is_a_served_buffers() {
    let mut served = Served::new(Flash::Disk);
    served.done(&["buffer", "create", "run7", "--capacity", "16MiB", "--store", "directory"]);
    let store: PathBuf =
        served.rig.stores().into_iter().find(|path| path.join("store.json").exists()).unwrap();
    let store = store.to_str().unwrap();
    let run = |served: &Served, arguments: &[&str]| served.command(arguments).output().unwrap();
    let listed = text(&run(&served, &["status"]).stdout);
    assert!(
        listed.lines().any(|l| l.starts_with("served") && l.contains("buffer run7")),
        "{listed}"
    );
    let busy = failure(&run(&served, &["check", store]), 1);
    assert!(busy.contains("forebay serve"), "{busy}");
    let refused = failure(&run(&served, &["umount", store]), 1);
    assert!(refused.contains("buffer run7") && refused.contains("buffer destroy"), "{refused}");
    served.end(libc::SIGTERM);
    let listed = text(&run(&served, &["status"]).stdout);
    assert!(listed.lines().any(|l| l.starts_with("kept") && l.contains("buffer run7")), "{listed}");
    let checked = run(&served, &["check", store]);
    assert!(
        text(&checked.stdout).contains("served buffer run7: sound"),
        "{}",
        text(&checked.stderr)
    );
    assert!(Path::new(store).exists());
}

#[test]
fn in_the_background_it_returns_when_it_listens() {
    let served = {
        let mut served = Served::new(Flash::Disk);
        served.end(libc::SIGTERM);
        served
    };
    let unix = &served.unix;
    let arguments = ["serve", "--capacity", "64MiB", "--listen", unix, "--background", "--json"];
    let started = served.command(&arguments).output().unwrap();
    assert!(started.status.success(), "{}", text(&started.stderr));
    let up: Value = serde_json::from_slice(&started.stdout).unwrap();
    let pid = i32::try_from(up["pid"].as_i64().unwrap()).unwrap();
    let listed = served.at(unix, &["buffer", "list", "--json"]);
    // SAFETY: only sends a signal, to the server that this test started.
    unsafe { libc::kill(pid, libc::SIGTERM) };
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["pool"]["servers"][0]["server"], up["server"]);
    let log = up["log_file"].as_str().unwrap();
    crate::common::wait_for("the server's end", || {
        fs::read_to_string(log).unwrap().contains("ending")
    });
    crate::common::wait_for("its end", || !Path::new(&format!("/proc/{pid}")).exists());
}

/// Key, ledger and a buffer, made under umask 000.
#[test]
fn nobody_else_writes_what_a_server_makes_for_itself() {
    let mut served = Served::new(Flash::Disk);
    served.end(libc::SIGTERM);
    for dir in [served.config(), served.rig.flash.clone()] {
        fs::remove_dir_all(dir).unwrap();
    }
    fs::create_dir(&served.rig.flash).unwrap();
    let unix = served.unix.clone();
    let mut command =
        served.command(&["serve", "--capacity", "64MiB", "--listen", &unix, "--json"]);
    let open_to_all = || {
        // SAFETY: a number of this child changes, before it becomes another program.
        unsafe { libc::umask(0) };
        Ok(())
    };
    // SAFETY: nothing is allocated between fork and exec.
    unsafe { command.pre_exec(open_to_all) };
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    let out = child.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
    served.child = Some(child);
    let create = ["buffer", "create", "a", "--capacity", "16MiB", "--store", "directory"];
    let made = served.at(&unix, &create);
    assert!(made.status.success(), "{line}{}", text(&made.stderr));
    let (mut paths, mut seen) = (vec![served.config(), served.rig.flash.clone()], 0);
    while let Some(path) = paths.pop() {
        // Gone meanwhile: the server goes on.
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        let is_socket = std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type());
        let mode = meta.permissions().mode();
        // The flash directory is this test's, and who may use a socket is decided by who connects.
        let is_made = path != served.rig.flash && !is_socket;
        assert!(!is_made || mode & 0o022 == 0, "{} {mode:o}", path.display());
        seen += 1;
        if meta.is_dir() {
            paths.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    assert!(seen > 8, "{seen} found");
    let destroyed = served.at(&unix, &["buffer", "destroy", "a"]);
    assert!(destroyed.status.success(), "{}", text(&destroyed.stderr));
}

#[test]
fn a_command_that_follows_a_plan_waits_for_a_server_that_is_restarted() {
    let mut served = Served::new(Flash::Disk);
    let pfs = served.rig.base().join("big");
    fs::write(&pfs, vec![7; 3 << 20]).unwrap();
    served.done(&["buffer", "create", "a", "--capacity", "16MiB", "--store", "directory"]);
    let source = pfs.to_str().unwrap().to_string();
    let unix = served.unix.clone();
    let copy = ["stage", "in", &source, "a:/big", "--rate", "1MiB", "--json", "--server", &unix];
    let mut following =
        served.command(&copy).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    crate::common::wait_for("the plan", || {
        served.done(&["stage", "status", "a:"]).contains("plan 1")
    });
    served.end(libc::SIGKILL);
    let (mut said, mut errors) = (String::new(), BufReader::new(following.stderr.take().unwrap()));
    while !said.contains("waiting for the server unix:") {
        assert!(errors.read_line(&mut said).unwrap() > 0, "it ended: {said}");
    }
    served.start();
    errors.read_to_string(&mut said).unwrap();
    let ended = following.wait_with_output().unwrap();
    assert!(ended.status.success(), "{said}");
    assert_eq!(said.matches("waiting for the server unix:").count(), 1, "{said}");
    assert!(text(&ended.stdout).lines().last().unwrap().contains("\"done\""));
    // As documented: one object a line, whatever is asked.
    served.done(&["stage", "in", &source, "a:/again"]);
    let plans = served.done(&["stage", "status", "a:", "--json"]);
    let numbers =
        plans.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["plan"].clone());
    assert_eq!(numbers.collect::<Vec<_>>().len(), 2, "{plans}");
}

/// A way to a server that loses the ledger's first answer, and the connection with it. Counts such answers.
fn way_that_loses_an_answer(socket: &Path, server: &Path) -> Arc<AtomicUsize> {
    let answers = Arc::new(AtomicUsize::new(0));
    let (listener, server) = (UnixListener::bind(socket).unwrap(), server.to_path_buf());
    let counted = Arc::clone(&answers);
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let (mut near, mut far) = (near.unwrap(), UnixStream::connect(&server).unwrap());
            let (mut asks, mut asked) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut asks, &mut asked));
            let counted = Arc::clone(&counted);
            std::thread::spawn(move || {
                let mut room = [0; 65_536];
                while let Ok(bytes @ 1..) = far.read(&mut room) {
                    // Frames come one by one: each question waits for its answer.
                    let is_answer = room.starts_with(&MAGIC) && room[6] == Kind::LedgerReply as u8;
                    if is_answer && counted.fetch_add(1, Ordering::SeqCst) == 0 {
                        break;
                    }
                    if near.write_all(&room[..bytes]).is_err() {
                        break;
                    }
                }
                let _ = near.shutdown(Shutdown::Both);
                let _ = far.shutdown(Shutdown::Both);
            });
        }
    });
    answers
}

#[test]
fn a_copy_whose_start_got_no_answer_is_started_once() {
    let served = Served::new(Flash::Disk);
    let (pfs, way) = (served.rig.base().join("f"), served.rig.base().join("way"));
    fs::write(&pfs, b"once").unwrap();
    served.done(&["buffer", "create", "a", "--capacity", "16MiB", "--store", "directory"]);
    let answers = way_that_loses_an_answer(&way, &served.rig.base().join("sock"));
    let way = format!("unix:{}", way.display());
    let copy = ["stage", "in", pfs.to_str().unwrap(), "a:/f", "--json", "--server", &way];
    let ended = served.command(&copy).output().unwrap();
    let said = text(&ended.stderr);
    assert!(ended.status.success(), "{said}");
    assert_eq!(said.matches("waiting for the server unix:").count(), 1, "{said}");
    assert!(answers.load(Ordering::SeqCst) > 1, "the first answer was lost, others came");
    let plans = served.done(&["stage", "status", "a:", "--json"]);
    assert_eq!(plans.lines().count(), 1, "{plans}");
}

#[test]
fn a_reader_that_goes_away_ends_a_command_quietly() {
    use std::os::unix::process::ExitStatusExt;
    let served = Served::new(Flash::Disk);
    served.done(&["buffer", "create", "a", "--capacity", "16MiB", "--store", "directory"]);
    for arguments in [vec!["buffer", "list"], vec!["buffer", "list", "--json"], vec!["status"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = served.command(&arguments);
        command.env("FOREBAY_SERVER", &served.unix).stdout(writer).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        drop(command);
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.signal(), Some(libc::SIGPIPE), "{arguments:?}: {ended:?}");
        assert_eq!(text(&ended.stderr), "");
    }
    // A server that closes is still an error in words.
    let gone = failure(&served.at("unix:/none", &["buffer", "list"]), 1);
    assert!(gone.contains("forebay serve"), "{gone}");
}

/// A server that was told to listen on TCP only, as README does it.
fn serve_by_tcp(served: &mut Served, more: &[&str]) -> Value {
    served.end(libc::SIGTERM);
    let mut command = served.command(&["serve", "--capacity", "128MiB", "--json"]);
    command.args(["--listen", "127.0.0.1:0"]).args(more);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    let out = child.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
    served.child = Some(child);
    let up: Value = serde_json::from_str(&line).unwrap();
    served.tcp = up["addresses"][0].as_str().unwrap().to_string();
    up
}

/// Mounts buffer `a` by TCP; what the mount says of itself, and it is unmounted.
fn mounted_by_tcp(served: &Served) -> Value {
    let mnt = served.rig.mnt.to_str().unwrap();
    served.done(&["mount", "--buffer", "a", mnt]);
    fs::write(served.rig.mnt.join("f"), vec![7; 100_000]).unwrap();
    assert_eq!(fs::read(served.rig.mnt.join("f")).unwrap(), vec![7; 100_000]);
    let status = served.command(&["status", "--json", mnt]).output().unwrap();
    assert!(served.rig.umount(&[]).status.success());
    serde_json::from_slice(&status.stdout).unwrap()
}

#[test]
fn a_mount_by_tcp_on_the_servers_own_node_takes_the_servers_own_socket() {
    must_be_root();
    let mut served = Served::new(Flash::Memory);
    let up = serve_by_tcp(&mut served, &[]);
    assert_eq!(up["addresses"].as_array().unwrap().len(), 1, "{up}");
    let socket = PathBuf::from(up["own_socket"].as_str().unwrap());
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    served.done(&["buffer", "create", "a", "--capacity", "32MiB", "--store", "tmpfs"]);
    let status = mounted_by_tcp(&served);
    assert_eq!(status["fast_path"], true, "{status}");
    // Killed, it leaves the socket; the next start takes its place, and its end removes it.
    served.end(libc::SIGKILL);
    assert!(socket.exists());
    serve_by_tcp(&mut served, &[]);
    assert_eq!(mounted_by_tcp(&served)["fast_path"], true);
    served.end(libc::SIGTERM);
    assert!(!socket.exists());
    let up = serve_by_tcp(&mut served, &["--no-own-socket"]);
    assert!(up["own_socket"].is_null() && !socket.exists(), "{up}");
    let status = mounted_by_tcp(&served);
    assert_eq!(status["fast_path"], false, "{status}");
    assert!(status["fast_path_reason"].as_str().unwrap().contains("own-socket"), "{status}");
    served.done(&["buffer", "destroy", "a"]);
}

/// A socket of user 1234 that passes on what comes to `far` and back; how many bytes came.
fn plant(socket: &Path, far: &str) -> Arc<AtomicUsize> {
    let (path, far) = (socket.to_path_buf(), far.to_string());
    let heard = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&heard);
    let listener = std::thread::spawn(move || {
        // SAFETY: plain numbers; by itself the system call changes the user of this thread alone, which ends soon.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 1234, 1234, 1234) }, 0);
        UnixListener::bind(path).unwrap()
    });
    let listener = listener.join().unwrap();
    fs::set_permissions(socket, fs::Permissions::from_mode(0o666)).unwrap();
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let (near, far) = (near.unwrap(), TcpStream::connect(&far).unwrap());
            let (mut back, mut answers) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut answers, &mut back));
            let counted = Arc::clone(&counted);
            std::thread::spawn(move || {
                let (mut near, mut far, mut room) = (near, far, [0; 65_536]);
                while let Ok(bytes @ 1..) = near.read(&mut room) {
                    counted.fetch_add(bytes, Ordering::SeqCst);
                    far.write_all(&room[..bytes]).unwrap();
                }
            });
        }
    });
    heard
}

/// Somebody puts a socket of their own where the server said that its socket is, and passes on what both say.
#[test]
fn a_socket_that_another_user_planted_is_not_used() {
    must_be_root();
    let mut served = Served::new(Flash::Memory);
    served.done(&["buffer", "create", "a", "--capacity", "32MiB", "--store", "tmpfs"]);
    let place = served.rig.base().join("place");
    fs::create_dir(&place).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(served.rig.base(), fs::Permissions::from_mode(0o755)).unwrap();
    let socket = place.join("s");
    serve_by_tcp(&mut served, &["--listen", &format!("unix:{}", socket.display())]);
    assert_eq!(mounted_by_tcp(&served)["fast_path"], true);
    fs::remove_file(&socket).unwrap();
    let heard = plant(&socket, &served.tcp);
    let status = mounted_by_tcp(&served);
    assert_eq!(status["fast_path"], false, "{status}");
    assert_eq!(heard.load(Ordering::SeqCst), 0, "the planted socket was spoken to");
    served.done(&["buffer", "destroy", "a"]);
}
