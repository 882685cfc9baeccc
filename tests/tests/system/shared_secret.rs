//! What crosses the network while buffers are made, listed, mounted, staged, extended and
//! destroyed, by servers and commands that have nothing but TCP: every packet of a network
//! namespace is recorded, and no secret may be in them in any form.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::binary;
use forebay_tests::procs;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest time of one command.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);
/// How often the recorder looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);
/// Room for packets that the recorder has not read yet.
const ROOM_BYTES: i32 = 64 << 20;
/// Bytes of an Ethernet header, which `lo` has too.
const ETHERNET_BYTES: usize = 14;
/// What the test writes into the buffer: it must be in the recording, or the recording is none.
const DATA: &[u8] = b"data that is not encrypted crosses the network as it is";

/// Each direction of each TCP connection: the ports, and the bytes in the order of their packets.
type Streams = BTreeMap<(u16, u16), Vec<u8>>;

/// Records what crosses the `lo` of a network namespace.
struct Recorder {
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<Streams>>,
}

/// A socket that gets each packet of `lo` in the namespace.
fn packets(namespace: &Path) -> OwnedFd {
    let namespace = std::fs::File::open(namespace).unwrap();
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    let all = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: a new descriptor that nobody else has.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, all.into());
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd)
    };
    let room = ROOM_BYTES;
    let wait = libc::timeval { tv_sec: 0, tv_usec: LOOK.as_micros() as i64 };
    // SAFETY: reads the two values.
    unsafe {
        let set = |name, value: *const libc::c_void, length: usize| {
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, value, length as u32)
        };
        assert_eq!(set(libc::SO_RCVBUFFORCE, (&raw const room).cast(), 4), 0);
        assert_eq!(set(libc::SO_RCVTIMEO, (&raw const wait).cast(), size_of_val(&wait)), 0);
    }
    socket
}

/// Ports and data of a TCP packet over IPv4.
fn tcp(packet: &[u8]) -> Option<((u16, u16), &[u8])> {
    let ip = packet.get(ETHERNET_BYTES..)?;
    if ip.first()? >> 4 != 4 || *ip.get(9)? != 6 {
        return None;
    }
    let length = usize::from(u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]));
    // A length of 0 is a packet that no card has cut: as long as it is.
    let ip = if length == 0 { ip } else { ip.get(..length)? };
    let tcp = ip.get(usize::from(ip[0] & 15) * 4..)?;
    let port = |at: usize| Some(u16::from_be_bytes([*tcp.get(at)?, *tcp.get(at + 1)?]));
    Some(((port(0)?, port(2)?), tcp.get(usize::from(tcp.get(12)? >> 4) * 4..)?))
}

impl Recorder {
    fn new(namespace: PathBuf) -> Recorder {
        let ending = Arc::new(AtomicBool::new(false));
        let (stop, (ready, is_ready)) = (Arc::clone(&ending), std::sync::mpsc::channel());
        let thread = std::thread::spawn(move || {
            let socket = packets(&namespace);
            ready.send(()).unwrap();
            record(&socket, &stop)
        });
        is_ready.recv().unwrap();
        Recorder { ending, thread: Some(thread) }
    }

    fn end(mut self) -> Streams {
        self.ending.store(true, Ordering::Release);
        self.thread.take().unwrap().join().unwrap()
    }
}

fn record(socket: &OwnedFd, stop: &AtomicBool) -> Streams {
    let mut streams = Streams::new();
    let mut packet = vec![0u8; 256 << 10];
    loop {
        // SAFETY: all zero is an address that recvfrom writes over; the buffer is as long as said.
        let (count, from) = unsafe {
            let mut from: libc::sockaddr_ll = std::mem::zeroed();
            let mut length = size_of_val(&from) as u32;
            let at = (&raw mut from).cast();
            let into = packet.as_mut_ptr().cast();
            (libc::recvfrom(socket.as_raw_fd(), into, packet.len(), 0, at, &mut length), from)
        };
        let Ok(count) = usize::try_from(count) else {
            if stop.load(Ordering::Acquire) {
                break;
            }
            continue;
        };
        // Each packet of `lo` is seen when it goes out and when it comes in.
        if from.sll_pkttype == libc::PACKET_OUTGOING {
            continue;
        }
        if let Some((ports, data)) = tcp(&packet[..count]) {
            streams.entry(ports).or_default().extend_from_slice(data);
        }
    }
    let mut statistics = [0u32; 2];
    let mut length = size_of_val(&statistics) as u32;
    // SAFETY: the kernel writes two numbers.
    let told = unsafe {
        let into = statistics.as_mut_ptr().cast();
        let (level, name) = (libc::SOL_PACKET, 6); // PACKET_STATISTICS
        libc::getsockopt(socket.as_raw_fd(), level, name, into, &mut length)
    };
    assert_eq!((told, statistics[1]), (0, 0), "packets were lost: the recording is not whole");
    streams
}

/// A network namespace with servers and commands that reach each other by its `lo` only.
struct Machine {
    name: String,
    base: PathBuf,
    servers: Vec<i32>,
}

impl Machine {
    fn new() -> Machine {
        let name = format!("fbsecret{}", std::process::id());
        let base = PathBuf::from(format!("/dev/shm/forebay-{name}"));
        std::fs::create_dir_all(&base).unwrap();
        procs::run(Command::new("ip").args(["netns", "add", &name]));
        procs::run(Command::new("ip").args(["-n", &name, "link", "set", "lo", "up"]));
        Machine { name, base, servers: Vec::new() }
    }

    fn namespace(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        // `ip netns exec` would mount in a mount namespace of its own.
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net={}", self.namespace().display()))
            .arg(binary())
            .args(arguments)
            .env("FOREBAY_CONFIG_DIR", self.base.join("config"))
            .env_remove("FOREBAY_SERVER");
        command
    }

    fn forebay(&self, arguments: &[&str]) -> String {
        let mut command = self.command(arguments);
        let (ok, said) = procs::try_run_for(&mut command, COMMAND_LIMIT);
        assert!(ok, "{arguments:?} failed: {said}");
        said
    }

    /// Starts a server; where it listens.
    fn serve(&mut self, join: Option<&str>) -> String {
        let flash = self.base.join(format!("flash{}", self.servers.len()));
        std::fs::create_dir(&flash).unwrap();
        let flash = flash.to_str().unwrap();
        let mut arguments = vec!["serve", "--background", "--json", "--flash", flash];
        arguments.extend(["--capacity", "256MiB", "--listen", "127.0.0.1:0", "--no-own-socket"]);
        arguments.extend(join.iter().flat_map(|join| ["--join", join]));
        let said = self.forebay(&arguments);
        let line = said.lines().rfind(|line| line.starts_with('{')).unwrap();
        let said: serde_json::Value = serde_json::from_str(line).unwrap();
        self.servers.push(said["pid"].as_i64().unwrap() as i32);
        said["addresses"][0].as_str().unwrap().to_string()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let mount = self.base.join("m");
        let _ = procs::try_run(self.command(&["umount", "--force"]).arg(&mount));
        for pid in self.servers.drain(..) {
            // SAFETY: plain numbers: our own servers.
            unsafe { libc::kill(pid, libc::SIGTERM) };
            while forebay_tests::buffer::alive(pid) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let _ = procs::try_run(Command::new("ip").args(["netns", "del", &self.name]));
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let ours = format!("{}/", self.base.display());
        for point in mounts.lines().filter_map(|line| line.split(' ').nth(4)) {
            if point.starts_with(&ours) {
                let _ = Command::new("umount").arg("-l").arg(point).status();
            }
        }
        let _ = std::fs::remove_dir_all(&self.base);
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let groups = bytes.chunks(3).flat_map(|group| {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let number = byte(0) << 16 | byte(1) << 8 | byte(2);
        let digits = group.len() + 1;
        (0..digits).map(move |at| DIGITS[(number >> (18 - 6 * at)) as usize & 63] as char)
    });
    groups.collect()
}

/// The secret of a file as it could be written on the wire, in pieces of some of its bytes: one
/// piece is found also where a packet or a text ends within the secret.
fn forms(path: &Path) -> Vec<(String, Vec<u8>)> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    let hex = text.split_whitespace().last().unwrap();
    let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
    let raw: Vec<u8> = (0..32).map(byte).collect();
    let mut forms: Vec<(&str, Vec<u8>)> = Vec::new();
    for piece in raw.chunks(8) {
        let hex: String = piece.iter().map(|byte| format!("{byte:02x}")).collect();
        let numbers: Vec<String> = piece.iter().map(u8::to_string).collect();
        forms.push(("as bytes", piece.to_vec()));
        forms.push(("in hex", hex.to_uppercase().into_bytes()));
        forms.push(("in hex", hex.into_bytes()));
        forms.push(("in numbers", numbers.join(",").into_bytes()));
    }
    // The text that base64 makes of bytes depends on where among three they begin.
    for skip in 0..3 {
        forms.push(("in base64", base64(&raw[skip..skip + 24]).into_bytes()));
        forms.push(("in base64 of hex", base64(&hex.as_bytes()[skip..skip + 24]).into_bytes()));
    }
    forms.into_iter().map(|(how, bytes)| (format!("{path:?} {how}"), bytes)).collect()
}

fn is_in(streams: &Streams, wanted: &[u8]) -> bool {
    streams.values().any(|bytes| bytes.windows(wanted.len()).any(|some| some == wanted))
}

#[test]
fn no_secret_is_on_the_network_in_any_form() {
    let mut machine = Machine::new();
    let recorder = Recorder::new(machine.namespace());
    let leader = machine.serve(None);
    let member = machine.serve(Some(&leader));
    let pfs = machine.base.join("pfs");
    std::fs::create_dir(&pfs).unwrap();
    std::fs::write(pfs.join("f"), DATA).unwrap();
    let mount = machine.base.join("m");
    std::fs::create_dir(&mount).unwrap();
    let (pfs, mount) = (pfs.to_str().unwrap(), mount.to_str().unwrap());

    // A buffer that the member makes for us, with parts on both, and one that it has no part of.
    for (name, servers) in [("wide", "2"), ("one", "1")] {
        let create = ["buffer", "create", name, "--capacity", "64MiB", "--servers", servers];
        machine.forebay(&[&create[..], &["--server", &member]].concat());
        // With the buffer's own secret, at each server: one has to ask the other for it.
        let secret = machine.base.join(format!("config/buffers/{name}.secret"));
        let secret = secret.to_str().unwrap();
        for at in [&leader, &member] {
            machine.forebay(&["buffer", "status", name, "--server", at, "--secret-file", secret]);
        }
    }
    machine.forebay(&["buffer", "list", "--server", &member]);
    machine.forebay(&["mount", "--buffer", "wide", "--server", &member, mount]);
    for at in 0..8 {
        std::fs::write(Path::new(mount).join(format!("f{at}")), DATA).unwrap();
    }
    machine.forebay(&["stage", "in", pfs, "wide:/in", "--server", &member]);
    assert_eq!(std::fs::read(Path::new(mount).join("in/f")).unwrap(), DATA);
    machine.forebay(&["umount", mount]);
    machine.forebay(&["buffer", "extend", "wide", "--capacity", "128MiB", "--server", &member]);
    let config = machine.base.join("config");
    let files = ["server.key", "buffers/wide.secret", "buffers/one.secret"];
    let secrets: Vec<_> = files.iter().flat_map(|file| forms(&config.join(file))).collect();
    machine.forebay(&["buffer", "destroy", "wide", "--server", &member]);
    machine.forebay(&["buffer", "destroy", "one", "--server", &leader]);

    let streams = recorder.end();
    assert!(is_in(&streams, DATA), "the recording has not even what is known to be in it");
    assert!(is_in(&streams, b"wide"), "the greeting names the buffer");
    for (what, bytes) in secrets {
        assert!(!is_in(&streams, &bytes), "{what} is on the network");
    }
}
