//! Daemons killed with -9 at random moments, and mounts that must come off.
//!
//! Workers keep their own account of what was acknowledged, outside the buffer (in the test's
//! memory). After the kill the same command mounts again: everything acknowledged is there, what
//! was under way is there as before or as after, no space is lost.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::{Buffer, Kind, is_raw};
use forebay_tests::procs::{self, Child};
use forebay_tests::sys::{self, Errno, Sys};
use forebay_tests::{long, on_every_kind, seed};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

on_every_kind!(
    killed_under_load,
    killed_while_removing,
    open_files_over_a_kill,
    comes_off_when_dead,
    comes_off_with_open_files,
);

const WORKERS: u64 = 4;
/// How long a command that takes a mount off may need, whatever the daemon does.
const COMES_OFF: Duration = Duration::from_secs(20);
/// The same, where the daemon is asked in vain first.
const COMES_OFF_STOPPED: Duration = Duration::from_secs(10);

/// A file as it must be: length and seed of its bytes.
type File = (usize, u64);

fn content((length, seed): File) -> Vec<u8> {
    (0..length).map(|i| (seed.wrapping_mul(31) as usize + i * 7) as u8 | 1).collect()
}

/// What a worker was doing when the daemon died.
#[derive(Clone, Debug)]
enum Pending {
    None,
    Put(String, File),
    Append,
    Rename(String, String),
    Unlink(String),
}

/// One worker: what was acknowledged to it.
struct Worker {
    number: u64,
    rng: StdRng,
    files: BTreeMap<String, File>,
    appended: u64,
    pending: Pending,
}

impl Worker {
    fn path(&self, buffer: &Buffer, name: &str) -> Vec<u8> {
        buffer.path(format!("w{}/{name}", self.number))
    }

    /// Works until a call fails, which it may only because the daemon died.
    fn work(&mut self, buffer: &Buffer) {
        loop {
            if let Err(error) = self.step(buffer) {
                let died = [libc::ENOTCONN, libc::ECONNABORTED, libc::EIO, libc::EINTR];
                assert!(died.contains(&error.0), "{:?}: {error:?}", self.pending);
                return;
            }
            self.pending = Pending::None;
        }
    }

    fn step(&mut self, buffer: &Buffer) -> Sys<()> {
        let name = format!("f{}", self.rng.random_range(0..30));
        let other = format!("f{}", self.rng.random_range(0..30));
        match self.rng.random_range(0..10) {
            0..5 => {
                let file = (self.rng.random_range(0..60_000), self.rng.random());
                self.pending = Pending::Put(name.clone(), file);
                let flags = libc::O_CREAT | libc::O_TRUNC | libc::O_WRONLY;
                let fd = sys::open(self.path(buffer, &name), flags, 0o644)?;
                write_all(&fd, &content(file))?;
                self.files.insert(name, file);
                sys::close(fd)?;
            }
            5..7 => {
                self.pending = Pending::Append;
                let flags = libc::O_CREAT | libc::O_APPEND | libc::O_WRONLY;
                let fd = sys::open(self.path(buffer, "log"), flags, 0o644)?;
                write_all(&fd, format!("{:07}\n", self.appended).as_bytes())?;
                self.appended += 1;
            }
            7..9 if self.files.contains_key(&name) && name != other => {
                self.pending = Pending::Rename(name.clone(), other.clone());
                sys::rename(self.path(buffer, &name), self.path(buffer, &other))?;
                let file = self.files.remove(&name).unwrap();
                self.files.insert(other, file);
            }
            9 if self.files.contains_key(&name) => {
                self.pending = Pending::Unlink(name.clone());
                sys::unlink(self.path(buffer, &name))?;
                self.files.remove(&name);
            }
            _ => {}
        }
        Ok(())
    }

    /// Compares what is there with what was acknowledged, and takes over what was under way.
    fn verify(&mut self, buffer: &Buffer) {
        let mut real: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for entry in std::fs::read_dir(buffer.root().join(format!("w{}", self.number))).unwrap() {
            let entry = entry.unwrap();
            real.insert(
                entry.file_name().into_string().unwrap(),
                std::fs::read(entry.path()).unwrap(),
            );
        }
        let log = real.remove("log").unwrap_or_default();
        self.verify_log(&String::from_utf8(log).unwrap());
        match std::mem::replace(&mut self.pending, Pending::None) {
            Pending::Put(name, file) => self.verify_put(&name, file, &mut real),
            Pending::Rename(from, to) if !real.contains_key(&from) => {
                if let Some(file) = self.files.remove(&from) {
                    self.files.insert(to, file);
                }
            }
            Pending::Unlink(name) if !real.contains_key(&name) => drop(self.files.remove(&name)),
            _ => {}
        }
        let names: Vec<&String> = real.keys().collect();
        assert_eq!(names, self.files.keys().collect::<Vec<_>>(), "names of worker {}", self.number);
        for (name, bytes) in &real {
            assert!(*bytes == content(self.files[name]), "w{}/{name} has other bytes", self.number);
        }
    }

    /// A file that was being written: any part of it may be there, of old bytes none but whole.
    fn verify_put(&mut self, name: &str, new: File, real: &mut BTreeMap<String, Vec<u8>>) {
        let Some(bytes) = real.get(name) else {
            assert!(!self.files.contains_key(name), "{name} vanished while it was written");
            return;
        };
        let old = self.files.get(name).copied().map(content);
        let wanted = content(new);
        let whole_old = old.is_some_and(|old| old == *bytes);
        assert!(whole_old || wanted.starts_with(bytes), "{name}: bytes that nobody wrote");
        if !whole_old {
            // What is there is a beginning; from now on it is what has to be there.
            self.files.insert(name.to_string(), (bytes.len(), new.1));
        }
    }

    fn verify_log(&mut self, log: &str) {
        let wanted: String = (0..self.appended).map(|i| format!("{i:07}\n")).collect();
        let rest = log.strip_prefix(&wanted);
        let rest = rest.unwrap_or_else(|| {
            panic!(
                "the log of {} lost records: {} of {}",
                self.number,
                log.len() / 8,
                self.appended
            )
        });
        let next = format!("{:07}\n", self.appended);
        assert!(rest.is_empty() || rest == next, "after the acknowledged records: {rest:?}");
        if rest == next {
            self.appended += 1;
        }
    }
}

fn write_all(fd: &OwnedFd, bytes: &[u8]) -> Sys<()> {
    let mut done = 0;
    while done < bytes.len() {
        done += sys::write(fd, &bytes[done..bytes.len().min(done + 20_000)])?;
    }
    Ok(())
}

fn killed_under_load(buffer: &Buffer) {
    if is_raw() {
        return;
    }
    let seed = seed("killed_under_load");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut workers: Vec<Worker> = (0..WORKERS)
        .map(|number| {
            sys::mkdir(buffer.path(format!("w{number}")), 0o755).unwrap();
            let rng = StdRng::seed_from_u64(seed ^ (number + 1));
            let (files, pending) = (BTreeMap::new(), Pending::None);
            Worker { number, rng, files, appended: 0, pending }
        })
        .collect();
    let rounds = if long() { 200 } else { 12 };
    for round in 0..rounds {
        let pid = buffer.pid();
        std::thread::scope(|scope| {
            for worker in &mut workers {
                scope.spawn(|| worker.work(buffer));
            }
            std::thread::sleep(Duration::from_millis(rng.random_range(1..250)));
            buffer.kill_pid(pid);
        });
        buffer.start();
        for worker in &mut workers {
            worker.verify(buffer);
        }
        no_space_lost(buffer, round);
    }
    let written: u64 = workers.iter().map(|worker| worker.appended).sum();
    assert!(written > 0, "the workers never got to work");
}

/// What statfs calls used is what the files hold (an image's own tables aside).
fn no_space_lost(buffer: &Buffer, round: u32) {
    let held = || -> u64 {
        let dirs = std::fs::read_dir(buffer.root()).unwrap().map(|entry| entry.unwrap().path());
        let files = dirs.flat_map(|dir| std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()));
        files.map(|file| sys::stat(sys::bytes(&file)).unwrap().blocks * 512).sum()
    };
    let used = || {
        let now = sys::statfs(buffer.path("")).unwrap();
        now.total - now.free
    };
    // XFS reserves room for the tables of data that is not on disk yet.
    if buffer.kind() == Kind::Xfs {
        // SAFETY: no arguments.
        unsafe { libc::sync() };
    }
    let slack = if buffer.kind() == Kind::Xfs { buffer.capacity() * 3 / 100 } else { 64 << 10 };
    assert!(used() <= held() + slack, "round {round}: {} used, files hold {}", used(), held());
}

/// Killed in the middle of rm -r of many files: what was told removed is gone, the rest goes.
fn killed_while_removing(buffer: &Buffer) {
    if is_raw() {
        return;
    }
    sys::mkdir(buffer.path("d"), 0o755).unwrap();
    for i in 0..3_000 {
        std::fs::write(buffer.root().join(format!("d/{i}")), vec![1; 8_192]).unwrap();
    }
    let pid = buffer.pid();
    let removed = procs::Shared::new(1);
    let remover = Child::spawn("remover", || {
        for i in 0..3_000 {
            if sys::unlink(buffer.path(format!("d/{i}"))).is_err() {
                return;
            }
            removed[0].store(i + 1, SeqCst);
        }
    });
    while removed[0].load(SeqCst) < 700 {
        std::thread::yield_now();
    }
    buffer.kill_pid(pid);
    remover.join();
    buffer.start();
    let gone = removed[0].load(SeqCst);
    let left = sys::list(buffer.path("d")).unwrap().len() as u64 - 2;
    assert!(left == 3_000 - gone || left == 3_000 - gone - 1, "{gone} removed, {left} left");
    no_space_lost(buffer, 0);
}

fn open_files_over_a_kill(buffer: &Buffer) {
    if is_raw() {
        return;
    }
    let path = buffer.path("f");
    let fd = sys::open(&path, libc::O_CREAT | libc::O_RDWR, 0o644).unwrap();
    sys::pwrite(&fd, 0, b"before the kill").unwrap();
    let pid = buffer.pid();
    buffer.kill_pid(pid);
    let start = Instant::now();
    let write = sys::pwrite(&fd, 4096, b"while dead");
    let stat = sys::stat(&path);
    // Who waits for a dead daemon waits for ever.
    assert!(start.elapsed() < COMES_OFF, "a dead daemon must not make anybody wait");
    assert_eq!(stat, Err(Errno(libc::ENOTCONN)));
    if buffer.kind() == Kind::Served {
        assert_eq!(write, Err(Errno(libc::ENOTCONN)));
    } else {
        assert_eq!(write, Ok(10), "passthrough goes on");
    }
    buffer.start();
    if buffer.kind() != Kind::Served {
        sys::pwrite(&fd, 8192, b"after").unwrap();
    }
    let bytes = std::fs::read(buffer.root().join("f")).unwrap();
    assert!(bytes.starts_with(b"before the kill"));
    if buffer.kind() != Kind::Served {
        assert_eq!((&bytes[4096..4106], &bytes[8192..]), (&b"while dead"[..], &b"after"[..]));
        std::fs::write(buffer.root().join("f"), b"by the new mount").unwrap();
        assert_eq!(sys::pread(&fd, 0, 64).unwrap(), b"by the new mount", "one file for both");
    }
}

/// `forebay umount` with arguments ends in time, and leaves neither mount nor flash.
fn must_come_off(buffer: &Buffer, args: &[&str]) {
    let start = Instant::now();
    let ended = buffer.umount(args);
    assert!(start.elapsed() < COMES_OFF, "umount took {:?}", start.elapsed());
    ended.unwrap();
    assert!(!buffer.is_mounted(), "still mounted");
    let left: Vec<_> =
        std::fs::read_dir(buffer.flash()).unwrap().flatten().map(|e| e.path()).collect();
    assert!(left.is_empty(), "left on flash: {left:?}");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let flash = buffer.flash().display().to_string();
    assert!(!mounts.contains(&flash), "a store is still mounted");
}

fn comes_off_when_dead(buffer: &Buffer) {
    if is_raw() {
        return;
    }
    std::fs::write(buffer.root().join("f"), b"x").unwrap();
    buffer.kill();
    let start = Instant::now();
    let refused = buffer.umount(&[]).unwrap_err();
    assert!(start.elapsed() < COMES_OFF, "umount took {:?}", start.elapsed());
    assert!(refused.contains("the buffer holds 1 file"), "{refused}");
    assert!(buffer.is_mounted(), "a refusal leaves all as it is");
    must_come_off(buffer, &["--destroy"]);
}

/// A daemon that does not answer: --force takes the mount off all the same, and says that the
/// process is left; when that is gone too, the same command finds the buffer.
#[test]
fn comes_off_when_stopped() {
    if is_raw() {
        return;
    }
    let buffer = &Buffer::mount(Kind::Tmpfs, 64 << 20);
    std::fs::write(buffer.root().join("f"), b"x").unwrap();
    let pid = buffer.pid();
    // SAFETY: our own daemon.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    let stuck = Child::spawn("waiting for a stopped daemon", || {
        let _ = sys::mkdir(buffer.path("d"), 0o755);
    });
    std::thread::sleep(Duration::from_millis(50));
    let start = Instant::now();
    let ended = buffer.umount(&["--force"]);
    let (took, mounted, waiting) = (start.elapsed(), buffer.is_mounted(), stuck.wait(COMES_OFF));
    buffer.kill_pid(pid);
    assert!(took < COMES_OFF_STOPPED, "umount --force took {took:?}: {ended:?}");
    assert!(!mounted, "still mounted: {ended:?}");
    waiting.unwrap();
    let said = ended.unwrap_err();
    assert!(said.contains("detached") && said.contains("process"), "{said}");
    buffer.start();
    assert_eq!(std::fs::read(buffer.root().join("f")).unwrap(), b"x");
}

fn comes_off_with_open_files(buffer: &Buffer) {
    if is_raw() {
        return;
    }
    std::fs::write(buffer.root().join("f"), b"x").unwrap();
    let fd = sys::open(buffer.path("f"), libc::O_RDWR, 0).unwrap();
    let refused = buffer.umount(&[]).unwrap_err();
    assert!(buffer.is_mounted(), "a busy mount stays: {refused}");
    assert!(refused.contains("--force") || refused.contains("open"), "says what to do: {refused}");
    assert_eq!(sys::pread(&fd, 0, 8).unwrap(), b"x", "and works on");
    let mut inside = Command::new("sleep").arg("30").current_dir(buffer.root()).spawn().unwrap();
    must_come_off(buffer, &["--force"]);
    inside.kill().unwrap();
    inside.wait().unwrap();
    drop(fd);
}
