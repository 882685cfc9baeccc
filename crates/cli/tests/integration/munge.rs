//! Users of other nodes, told by MUNGE: a real munged, a server on TCP, a user without any secret.

use crate::common::{Flash, Rig, failure, text};
use forebay_net::handshake::{Gate, Vouched, accept};
use forebay_net::{Link, Stream};
use forebay_proto::net::auth::{Key, Refusal, Secret};
use forebay_proto::net::frame::Kind;
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const SOCKET: &str = "/run/munge/munge.socket.2";
const USER: u32 = 4242;
const GROUP: u32 = 4243;

/// The system's munged: one that runs already, or one for this test.
struct Munged(Option<Child>);

impl Munged {
    fn new() -> Munged {
        if Command::new("munge").arg("-n").output().expect("munge is installed").status.success() {
            return Munged(None);
        }
        let id = |flag: &str| -> u32 {
            let out = Command::new("id").args([flag, "munge"]).output().unwrap();
            text(&out.stdout).trim().parse().expect("the package makes a user munge")
        };
        let (uid, gid) = (id("-u"), id("-g"));
        fs::create_dir_all("/run/munge").unwrap();
        fs::set_permissions("/run/munge", fs::Permissions::from_mode(0o755)).unwrap();
        chown("/run/munge", Some(uid), Some(gid)).unwrap();
        let child = Command::new("/usr/sbin/munged")
            .args(["--foreground", "--force"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .uid(uid)
            .gid(gid)
            .spawn()
            .unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while !Path::new(SOCKET).exists() {
            assert!(Instant::now() < until, "munged does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        Munged(Some(child))
    }
}

impl Drop for Munged {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // SAFETY: only sends a signal, to the munged that this test started.
            unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
            let _ = child.wait();
        }
    }
}

/// The command as a user who has no secret.
fn as_user(program: &Path, server: &str, arguments: &[&str]) -> Output {
    Command::new(program)
        .args(arguments)
        .args(["--server", server])
        .env("FOREBAY_CONFIG_DIR", "/nonexistent/forebay")
        .uid(USER)
        .gid(GROUP)
        .output()
        .unwrap()
}

/// Lets everybody in, without asking MUNGE.
struct Stranger;

impl Gate for Stranger {
    fn secret(&self, _: &Key) -> Result<Secret, Refusal> {
        Ok(Secret::from_bytes([1; 32]))
    }

    fn munge(&self, _: &str, _: &str) -> Result<Vouched, Refusal> {
        Ok(Vouched { uid: 0, gid: 0, secret: Secret::from_bytes([1; 32]) })
    }
}

/// Something else listens where a server should be.
fn who_cannot_read_the_credential_is_told_nothing(program: &Path) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let listens = std::thread::spawn(move || {
        let mut link = Link::new(Stream::from_tcp(listener.accept().unwrap().0).unwrap());
        accept(&mut link, "stranger", 9, 1, &Stranger).unwrap();
        // The client has gone: no question came.
        link.receive_json::<Value>(Kind::Ledger).map(|(_, question)| question)
    });
    let asked = as_user(program, &address, &["buffer", "list"]);
    let said = failure(&asked, 1);
    assert!(said.contains("cannot read the MUNGE credential"), "{said}");
    assert!(listens.join().unwrap().is_err(), "a stranger was asked something");
}

#[test]
fn a_user_whom_munge_names_has_buffers_of_their_own() {
    let _munged = Munged::new();
    let rig = Rig::new(Flash::Memory);
    let program = rig.base().join("forebay");
    let copied = Command::new("install")
        .args(["-m", "755", crate::common::program()])
        .arg(&program)
        .status();
    assert!(copied.unwrap().success());
    let mut server = Command::new(&program)
        .args(["serve", "--capacity", "128MiB", "--listen", "127.0.0.1:0", "--json"])
        .env("FOREBAY_FLASH", &rig.flash)
        .env("FOREBAY_CONFIG_DIR", rig.base().join("config"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let out = server.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
    let up: Value = serde_json::from_str(&line).unwrap();
    let address = up["addresses"][0].as_str().unwrap().to_string();

    // The buffer's secret cannot be kept where this user has no directory: asked for elsewhere.
    let config = rig.base().join("user-config");
    fs::create_dir(&config).unwrap();
    chown(&config, Some(USER), Some(GROUP)).unwrap();
    let made = Command::new(&program)
        .args(["buffer", "create", "mine", "--capacity", "16MiB", "--server", &address])
        .env("FOREBAY_CONFIG_DIR", &config)
        .uid(USER)
        .gid(GROUP)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", text(&made.stderr));
    let status = as_user(&program, &address, &["buffer", "status", "mine", "--json"]);
    assert!(status.status.success(), "{}", text(&status.stderr));
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["owner_uid"], USER);

    who_cannot_read_the_credential_is_told_nothing(&program);

    // Another user whom MUNGE names sees nothing of it.
    let other = Command::new(&program)
        .args(["buffer", "status", "mine", "--server", &address])
        .env("FOREBAY_CONFIG_DIR", "/nonexistent/forebay")
        .uid(USER + 7)
        .gid(GROUP)
        .output()
        .unwrap();
    failure(&other, 1);
    let gone = as_user(&program, &address, &["buffer", "destroy", "mine"]);
    assert!(gone.status.success(), "{}", text(&gone.stderr));
    // SAFETY: only sends a signal, to the server that this test started.
    unsafe { libc::kill(server.id() as i32, libc::SIGTERM) };
    assert!(server.wait().unwrap().success());
}
