//! `forebay umount` of a mount of which others have copies: a process in a mount namespace of its own, or a bind mount. The kernel
//! ends the mount with the last of them: until then the command says whom it waits for, and nothing is lost.
#![allow(clippy::unwrap_used)]

use forebay_proto::control::{Hello, Reply, Request, SOCKET_NAME, Welcome};
use forebay_proto::version::CONTROL_PROTOCOL;
use forebay_tests::buffer::{Buffer, Kind, binary, is_raw};
use forebay_tests::procs::{LET_GO, run, try_run_for, wait_until_stopped};
use forebay_tests::served::{Options, Served, Store, Via};
use forebay_tests::site::Site;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
/// Longest that a command may take that has to end at once.
const AT_ONCE: Duration = Duration::from_secs(20);
/// Longer than a cache waits for requests after its unmount.
const BEYOND_REQUESTS_S: u32 = 12;

/// What is said of one process, or several, that have copies.
const HAVE: &str = " the buffer mounted in ";

/// A process that has a copy of one buffer's mount, and of no other test's. Tests of jobs use it, too.
pub struct Copy {
    process: Child,
}

impl Copy {
    fn of(point: &Path) -> Copy {
        Copy::doing(point, "exec sleep 600")
    }

    pub fn doing(point: &Path, work: &str) -> Copy {
        let script = format!("{LET_GO}mount --make-rprivate /\necho ready\n{work}");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-ec", &script]);
        command.env("KEEP", point.parent().unwrap()).env("POINT", point);
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let copy = Copy { process };
        forebay_tests::until("it sleeps", LIMIT, || copy.program() != "unshare");
        copy
    }

    fn program(&self) -> String {
        let comm = std::fs::read_to_string(format!("/proc/{}/comm", self.process.id()));
        comm.unwrap().trim().to_string()
    }

    /// How it is named: alone, or beside a process of another test that has just got a copy of all mounts and has not let go of them.
    pub fn named(&self) -> String {
        format!(" {} (sleep)", self.process.id())
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// `forebay umount`, on its way.
struct Umount {
    process: Child,
    said: Arc<Mutex<String>>,
    /// Ends when all that it said has been read.
    listener: JoinHandle<()>,
}

impl Umount {
    fn begin(point: &Path, args: &[&str]) -> Umount {
        let mut command = Command::new(binary());
        command.arg("umount").args(args).arg(point).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let said = Arc::new(Mutex::new(String::new()));
        let (to, mut from) = (Arc::clone(&said), process.stderr.take().unwrap());
        let listener = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut bytes) {
                to.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        });
        Umount { process, said, listener }
    }

    /// Waits until it has said this, and still waits then.
    fn says(&mut self, text: &str) {
        forebay_tests::until("it says whom it waits for", LIMIT, || {
            let ended = self.process.try_wait().unwrap();
            let said = self.said.lock().unwrap();
            assert!(ended.is_none(), "it ended, {ended:?}, and said: {said}");
            said.contains(text)
        });
    }

    fn ends_well(mut self) {
        forebay_tests::until("it ends", LIMIT, || self.process.try_wait().unwrap().is_some());
        let code = self.process.wait().unwrap();
        self.listener.join().unwrap();
        assert!(code.success(), "{code}: {}", self.said.lock().unwrap());
    }

    /// Waits for its end with an error, and gives what it said.
    fn fails(mut self) -> String {
        forebay_tests::until("it ends", LIMIT, || self.process.try_wait().unwrap().is_some());
        let code = self.process.wait().unwrap();
        self.listener.join().unwrap();
        let said = self.said.lock().unwrap().clone();
        assert_eq!(code.code(), Some(1), "{said}");
        said
    }

    fn cut_off(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Stores on a buffer's flash.
fn stores(buffer: &Buffer) -> usize {
    std::fs::read_dir(buffer.flash()).unwrap().count()
}

fn waits_for(point: &Path, args: &[&str]) {
    let copy = Copy::of(point);
    let mut umount = Umount::begin(point, args);
    umount.says(&copy.named());
    umount.says(HAVE);
    umount.says(&format!("`forebay umount --force {}` ends it there, too", point.display()));
    drop(copy);
    umount.ends_well();
}

#[test]
fn umount_names_who_has_a_copy_and_ends_with_it() {
    if is_raw() {
        return;
    }
    for (args, left) in [(&[][..], 0), (&["--keep"][..], 1)] {
        let buffer = Buffer::mount(Kind::Tmpfs, 64 << 20);
        std::fs::write(buffer.root().join("file"), "kept").unwrap();
        waits_for(&buffer.root(), args);
        assert_eq!((buffer.is_mounted(), stores(&buffer)), (false, left));
        if left == 1 {
            buffer.start();
            let kept = std::fs::read_to_string(buffer.root().join("file")).unwrap();
            assert_eq!(kept, "kept");
        }
    }
    let served = Served::new(Store::Tmpfs, &[Via::Local]);
    waits_for(&served.root(0), &[]);
    served.mount_ended(0);
}

#[test]
fn a_cache_lives_until_the_users_of_its_copies_have_ended() {
    if is_raw() {
        return;
    }
    let site = Site::mounted(64 << 20, &[]);
    // At first it would have been given up after some seconds, with what is written then.
    let work = format!("sleep {BEYOND_REQUESTS_S}; echo late > $POINT/late; sync $POINT/late");
    let copy = Copy::doing(&site.mnt(""), &work);
    let mut umount = Umount::begin(&site.mnt(""), &[]);
    umount.says(&format!("{} (sh)", copy.process.id()));
    // Nobody could drain what was written after the unmount: it is kept, and the next mount does.
    let said = umount.fails();
    assert!(said.contains("kept on flash"), "{said}");
    drop(copy);
    site.mount();
    site.must_be_durable();
    assert_eq!(std::fs::read_to_string(site.pfs("late")).unwrap(), "late\n");
}

#[test]
fn without_waiting_who_has_a_copy_is_named_and_by_force_it_ends_there() {
    if is_raw() {
        return;
    }
    let buffer = Buffer::mount(Kind::Tmpfs, 64 << 20);
    let root = buffer.root();
    let refused = |named: &str| {
        let said = buffer.umount(&["--no-wait"]).unwrap_err();
        assert!(said.contains(named) && said.contains("--force"), "not said: {named}\n{said}");
        assert!(buffer.is_mounted(), "{said}");
        std::fs::write(root.join("file"), &said).unwrap();
    };
    let other = buffer.outside().join("other");
    std::fs::create_dir(&other).unwrap();
    run(Command::new("mount").arg("--bind").arg(&root).arg(&other));
    refused(&format!("it is mounted on {} as well", other.display()));
    run(Command::new("umount").arg(&other));

    let copy = Copy::of(&root);
    refused(&copy.named());
    refused(HAVE);
    let begun = Instant::now();
    buffer.umount(&["--force"]).unwrap();
    assert!(begun.elapsed() < AT_ONCE, "after {:?}", begun.elapsed());
    assert_eq!((buffer.is_mounted(), stores(&buffer)), (false, 0));
    let there = PathBuf::from(format!("/proc/{}/root", copy.process.id()));
    let file = there.join(root.join("file").strip_prefix("/").unwrap());
    assert!(std::fs::read(file).is_err(), "it has ended there, too");
}

#[test]
fn a_second_umount_finds_the_mount_that_the_first_one_left_to_end() {
    if is_raw() {
        return;
    }
    let buffer = Buffer::mount(Kind::Tmpfs, 64 << 20);
    let (root, flash) = (buffer.root(), buffer.flash().display().to_string());
    let copy = Copy::of(&root);
    let mut first = Umount::begin(&root, &[]);
    first.says(&copy.named());
    first.cut_off();
    assert!(!buffer.is_mounted());

    let status = run(Command::new(binary()).args(["status", "--flash", &flash]));
    let is_it = |line: &str| line.starts_with("ending ") && line.contains(&copy.named());
    assert!(status.lines().any(is_it), "{status}");
    // Nobody has to name its flash, which is no usual place.
    let unnamed = |args: &[&str]| {
        let mut command = Command::new(binary());
        command.env_remove("FOREBAY_FLASH").env_remove("TMPDIR").args(args);
        command
    };
    let status = run(&mut unnamed(&["status"]));
    assert!(status.lines().any(is_it), "{status}");
    let (ok, said) = try_run_for(unnamed(&["umount", "--no-wait"]).arg(&root), AT_ONCE);
    assert!(!ok && said.contains("unmounted before and is ending: "), "{said}");
    assert!(said.contains(&copy.named()), "{said}");
    let mut no_wait = Command::new(binary());
    no_wait.args(["umount", "--no-wait", "--flash", &flash]).arg(&root);
    let (ok, said) = try_run_for(&mut no_wait, AT_ONCE);
    assert!(!ok && said.contains("unmounted before and is ending: "), "{said}");
    assert!(said.contains(&copy.named()), "{said}");
    let mut second = Umount::begin(&root, &["--flash", &flash]);
    second.says(&copy.named());
    assert_eq!(stores(&buffer), 1, "it goes on living there");

    let begun = Instant::now();
    Umount::begin(&root, &["--force", "--flash", &flash]).ends_well();
    assert!(begun.elapsed() < AT_ONCE, "after {:?}", begun.elapsed());
    second.ends_well();
    assert_eq!(stores(&buffer), 0);
}

/// Messages of a mount's control socket.
fn say(mut to: &UnixStream, message: &serde_json::Value) {
    let text = message.to_string();
    to.write_all(&u32::try_from(text.len()).unwrap().to_le_bytes()).unwrap();
    to.write_all(text.as_bytes()).unwrap();
}

fn hear(mut from: &UnixStream) -> serde_json::Value {
    let mut length = [0; 4];
    from.read_exact(&mut length).unwrap();
    let mut text = vec![0; u32::from_le_bytes(length) as usize];
    from.read_exact(&mut text).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// A kept buffer whose control socket is this test's, and what the process of a mount that is ending says of its state.
fn in_place_of_a_process(buffer: &Buffer) -> (PathBuf, UnixListener, serde_json::Value) {
    let dir = std::fs::read_dir(buffer.flash()).unwrap().next().unwrap().unwrap().path();
    let at = dir.join(SOCKET_NAME);
    let real = UnixStream::connect(&at).unwrap();
    say(&real, &serde_json::to_value(Hello { protocol: CONTROL_PROTOCOL }).unwrap());
    hear(&real);
    say(&real, &serde_json::to_value(Request::BufferStatus).unwrap());
    let Reply::Buffer(mut status) = serde_json::from_value(hear(&real)).unwrap() else {
        panic!("it does not tell its state");
    };
    drop(real);
    status.ending = Some("its last requests".into());
    buffer.umount(&["--keep"]).unwrap();
    // It may have been left there.
    let _old = std::fs::remove_file(&at);
    let listener = UnixListener::bind(&at).unwrap();
    (dir, listener, serde_json::to_value(Reply::Buffer(status)).unwrap())
}

/// A connection of a command, up to its first question, the state.
fn greet(listener: &UnixListener) -> UnixStream {
    let (stream, _) = listener.accept().unwrap();
    hear(&stream);
    let welcome = Welcome { protocol: CONTROL_PROTOCOL, program: "test".into() };
    say(&stream, &serde_json::to_value(welcome).unwrap());
    hear(&stream);
    stream
}

#[test]
fn a_mount_that_ends_while_it_is_asked_to_has_ended() {
    if is_raw() {
        return;
    }
    // In a plain directory, which is removed as its process does.
    let buffer = Buffer::mount(Kind::Served, 64 << 20);
    let (dir, listener, status) = in_place_of_a_process(&buffer);
    let ends = std::thread::spawn(move || {
        let stream = greet(&listener);
        say(&stream, &status);
        // The kernel resets a connection that is closed with something unread.
        (&stream).read_exact(&mut [0]).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    });
    let mut umount = Command::new(binary());
    umount.args(["umount", "--flash"]).arg(buffer.flash()).arg(buffer.root());
    let (ok, said) = try_run_for(&mut umount, AT_ONCE);
    ends.join().unwrap();
    assert!(ok, "{said}");
    assert_eq!(stores(&buffer), 0);
}

#[test]
fn a_time_limit_is_kept_where_the_process_of_the_mount_says_nothing() {
    if is_raw() {
        return;
    }
    let buffer = Buffer::mount(Kind::Tmpfs, 64 << 20);
    let (_dir, listener, status) = in_place_of_a_process(&buffer);
    let silent = std::thread::spawn(move || {
        let first = greet(&listener);
        let second = greet(&listener);
        say(&second, &status);
        // Nobody who asks once more is greeted, until the command has ended.
        while (&second).read(&mut [0; 64]).is_ok_and(|length| length > 0) {}
        drop(first);
    });
    for said in ["it is not known whether it is ending", "has not ended: its last requests"] {
        let begun = Instant::now();
        let mut umount = Command::new(binary());
        umount.args(["umount", "--timeout", "1", "--flash"]).arg(buffer.flash());
        let (ok, told) = try_run_for(umount.arg(buffer.root()), AT_ONCE);
        assert!(!ok && told.contains("the time is over") && told.contains(said), "{told}");
        // The least that was waited for in vain was longer.
        assert!(begun.elapsed() < Duration::from_secs(8), "after {:?}", begun.elapsed());
    }
    silent.join().unwrap();
    assert_eq!(stores(&buffer), 1);
}

#[test]
fn a_time_limit_ends_the_wait_for_copies_and_says_who_has_them() {
    if is_raw() {
        return;
    }
    let buffer = Buffer::mount(Kind::Tmpfs, 64 << 20);
    let (root, flash) = (buffer.root(), buffer.flash().display().to_string());
    std::fs::write(root.join("file"), "kept").unwrap();
    let copy = Copy::of(&root);
    let limited = |args: &[&str]| {
        let begun = Instant::now();
        let mut umount = Command::new(binary());
        umount.args(["umount", "--json", "--timeout", "2", "--flash", &flash]).args(args);
        let output = umount.arg(&root).stdin(Stdio::null()).output().unwrap();
        assert!(begun.elapsed() < AT_ONCE, "after {:?}", begun.elapsed());
        assert_eq!(output.status.code(), Some(1));
        let printed = String::from_utf8(output.stdout).unwrap();
        let told: serde_json::Value =
            serde_json::from_str(printed.lines().last().unwrap()).unwrap();
        assert_eq!(told["error"]["errno"], libc::ETIMEDOUT, "{told}");
        let why = told["error"]["why"].as_str().unwrap();
        assert!(why.contains("the time is over") && why.contains(&copy.named()), "{told}");
        assert!(told["error"]["hint"].as_str().unwrap().contains("--force"), "{told}");
    };
    // The one that unmounts, and those that come after it.
    limited(&["--keep"]);
    assert!(!buffer.is_mounted());
    limited(&["--keep"]);
    assert_eq!(stores(&buffer), 1);
    drop(copy);
    forebay_tests::until("it ends by itself", LIMIT, || {
        let status = run(Command::new(binary()).args(["status", "--flash", &flash]));
        status.lines().any(|line| line.starts_with("kept "))
    });
    buffer.start();
    assert_eq!(std::fs::read_to_string(root.join("file")).unwrap(), "kept");

    // After umount(8), too.
    let copy = Copy::of(&root);
    run(Command::new("umount").arg(&root));
    let mut umount = Command::new(binary());
    umount.args(["umount", "--timeout", "2", "--flash", &flash]).arg(&root);
    let (ok, said) = try_run_for(&mut umount, AT_ONCE);
    assert!(!ok && said.contains("the time is over") && said.contains(&copy.named()), "{said}");
    Umount::begin(&root, &["--force", "--flash", &flash]).ends_well();
    assert_eq!(stores(&buffer), 0);
}

#[test]
fn a_mount_of_a_served_buffer_that_is_ending_is_found_again() {
    if is_raw() {
        return;
    }
    let served = Served::new(Store::Tmpfs, &[Via::Local]);
    let root = served.root(0);
    let copy = Copy::of(&root);
    let mut first = Umount::begin(&root, &[]);
    first.says(&copy.named());
    first.cut_off();
    // Its process lives on, and is shown as that of a mount on this machine's flash is.
    let status = run(Command::new(binary()).arg("status"));
    let point = root.display().to_string();
    let is_it = |line: &str| line.starts_with(&format!("ending  {point}  buffer "));
    let line = status.lines().find(|line| is_it(line));
    let line = line.unwrap_or_else(|| panic!("it is not shown: {status}"));
    assert!(line.contains("unmounted, and waits for its last copy: "), "{line}");
    assert!(line.contains(&copy.named()), "{line}");
    let told = run(Command::new(binary()).args(["status", "--json"]));
    let told: serde_json::Value = serde_json::from_str(told.trim()).unwrap();
    let all = told["buffers"].as_array().unwrap();
    let of_point: Vec<_> = all.iter().filter(|one| one["mount_point"] == point.as_str()).collect();
    assert_eq!(of_point.len(), 1, "{told}");
    assert_eq!(of_point[0]["state"], "ending", "{told}");
    assert!(of_point[0]["why"].as_str().unwrap().contains(&copy.named()), "{told}");
    let mut second = Umount::begin(&root, &[]);
    second.says(&copy.named());
    drop(copy);
    second.ends_well();
    served.mount_ended(0);
    let status = run(Command::new(binary()).arg("status"));
    assert!(!status.lines().any(is_it), "{status}");
}

/// A program with a copy of the mount waits, by `makes`, for a server that is stopped: so does the end of the mount, as long as that
/// is so, and names its process.
fn an_unmount_names_the_stopped_server(served: &Served, stopped: usize, makes: &str) {
    let root = served.root(0);
    let pid = served.server_pid(stopped);
    let work =
        format!("until [ -e \"$KEEP/stopped\" ]; do sleep 0.05; done\n{makes}\nexec sleep 600");
    let copy = Copy::doing(&root, &work);
    served.signal_server(stopped, libc::SIGSTOP);
    wait_until_stopped(pid);
    std::fs::write(root.parent().unwrap().join("stopped"), "").unwrap();
    let mut umount = Umount::begin(&root, &[]);
    umount.says(&format!("whose process {pid} is stopped"));
    umount.says(&format!("`kill -CONT {pid}` lets it go on"));
    umount.says("Ctrl-C leaves the mount to end by itself, --force does not wait");
    served.signal_server(stopped, libc::SIGCONT);
    // What it waits for then.
    umount.says(&copy.named());
    drop(copy);
    umount.ends_well();
    served.mount_ended(0);
}

/// The shell makes the file by itself: nothing begins while the server is stopped.
const A_FILE: &str = ": > \"$POINT/made\"";

#[test]
fn an_unmount_that_waits_for_a_stopped_server_names_its_process() {
    if is_raw() {
        return;
    }
    let served = Served::new(Store::Tmpfs, &[Via::Local]);
    an_unmount_names_the_stopped_server(&served, 0, A_FILE);
}

/// So does a mount by TCP, on the server's node; and the first look at it.
#[test]
fn an_unmount_by_tcp_names_the_process_of_a_stopped_server() {
    if is_raw() {
        return;
    }
    let served = Served::new(Store::Tmpfs, &[Via::Tcp]);
    let pid = served.server_pid(0);
    served.signal_server(0, libc::SIGSTOP);
    wait_until_stopped(pid);
    let looked = served.local(&["status", served.root(0).to_str().unwrap()]).1;
    served.signal_server(0, libc::SIGCONT);
    assert!(looked.contains(&format!("`kill -CONT {pid}` lets it go on")), "{looked}");
    an_unmount_names_the_stopped_server(&served, 0, A_FILE);
}

/// The server that is asked runs, and waits itself for the stopped one, for some of these directories at least.
#[test]
fn an_unmount_names_a_stopped_server_that_its_own_one_waits_for() {
    if is_raw() {
        return;
    }
    let served = Served::with(Options::over(2, Store::Tmpfs), &[]);
    served.mount(Via::AtServer(served.server_of_part(0)));
    // They are dealt to both servers by name. What makes them has no file of the mount open when it begins.
    let makes =
        "for n in 1 2 3 4 5 6 7 8 9 10 11 12; do set -- \"$@\" \"$POINT/d$n\"; done\nmkdir \"$@\"";
    an_unmount_names_the_stopped_server(&served, served.server_of_part(1), makes);
}
