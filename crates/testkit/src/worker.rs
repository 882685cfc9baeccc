//! A program on a mount of a shared buffer that knows what each of its calls must have done: names,
//! links, contents and an append log, each call done once. Used by the tests that kill servers and cut
//! links meanwhile.

use crate::served::Served;
use crate::sys;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

const NEW_FILE: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;

/// A program that never gets an error: each call has the outcome that its history says, done once.
pub struct Worker<'a> {
    served: &'a Served,
    at: usize,
    rng: StdRng,
    /// Content of each file by number.
    files: BTreeMap<u64, u64>,
    next: u64,
    log: OwnedFd,
    logged: u64,
}

fn content(seed: u64) -> Vec<u8> {
    seed.to_le_bytes().repeat(1 + (seed % 400) as usize)
}

impl<'a> Worker<'a> {
    /// On a mount, in a directory of its own; on several servers its names go to all of them in turn.
    pub fn new(served: &'a Served, at: usize, seed: u64) -> Worker<'a> {
        let flags = libc::O_APPEND | libc::O_CREAT | libc::O_WRONLY;
        let dir = served.path(at, format!("w{at}"));
        sys::mkdir(&dir, 0o755).unwrap();
        // Of a cache names are at one server whatever is asked for, and files on all of them by turns.
        if served.server_count() > 1 && !served.is_cache() {
            sys::setxattr(&dir, "user.forebay.placement", b"spread", 0).unwrap();
        }
        let log = sys::open(served.path(at, format!("w{at}/log")), flags, 0o644).unwrap();
        let rng = StdRng::seed_from_u64(seed + at as u64);
        Worker { served, at, rng, files: BTreeMap::new(), next: 0, log, logged: 0 }
    }

    fn path(&self, name: impl std::fmt::Display) -> Vec<u8> {
        self.served.path(self.at, format!("w{}/{name}", self.at))
    }

    fn some(&mut self) -> Option<u64> {
        let at = self.rng.random_range(0..self.files.len().max(1));
        self.files.keys().nth(at).copied()
    }

    /// The next call, or a few that belong together.
    pub fn step(&mut self) {
        self.next += 1;
        let (new, some) = (self.next, self.some());
        match (self.rng.random_range(0..10), some) {
            (0..3, _) => {
                let fd = sys::open(self.path(new), NEW_FILE, 0o644).unwrap();
                let bytes = content(new);
                assert_eq!(sys::write(&fd, &bytes), Ok(bytes.len()));
                self.files.insert(new, new);
            }
            (3..5, Some(old)) => {
                let kept = self.files.remove(&old).unwrap();
                sys::rename2(self.path(old), self.path(new), libc::RENAME_NOREPLACE).unwrap();
                self.files.insert(new, kept);
            }
            (5..6, Some(old)) => {
                sys::unlink(self.path(old)).unwrap();
                self.files.remove(&old);
            }
            (6, Some(old)) => {
                sys::link(self.path(old), self.path("second")).unwrap();
                assert_eq!(sys::stat(self.path(old)).unwrap().nlink, 2);
                sys::unlink(self.path("second")).unwrap();
            }
            (7, _) => {
                sys::mkdir(self.path("dir"), 0o755).unwrap();
                sys::symlink("x", self.path("dir/link")).unwrap();
                sys::unlink(self.path("dir/link")).unwrap();
                sys::rmdir(self.path("dir")).unwrap();
            }
            (8, Some(old)) => {
                let fd = sys::open(self.path(old), libc::O_RDONLY, 0).unwrap();
                let bytes = sys::pread(&fd, 0, 1 << 16).unwrap();
                assert!(bytes == content(self.files[&old]), "{old} has other bytes");
            }
            _ => {
                let record = format!("{:07}\n", self.logged);
                assert_eq!(sys::write(&self.log, record.as_bytes()), Ok(record.len()));
                self.logged += 1;
            }
        }
    }

    /// All is there once, seen from every mount.
    pub fn verify(&self) {
        for view in 0..self.served.mount_count() {
            let dir = self.served.root(view).join(format!("w{}", self.at));
            let mut real = BTreeMap::new();
            for entry in std::fs::read_dir(&dir).unwrap() {
                let entry = entry.unwrap();
                let name = entry.file_name().into_string().unwrap();
                if name != "log" {
                    real.insert(name.parse().unwrap(), std::fs::read(entry.path()).unwrap());
                }
            }
            let wanted = self.files.iter().map(|(name, seed)| (*name, content(*seed)));
            let wanted: BTreeMap<u64, Vec<u8>> = wanted.collect();
            assert!(real.keys().eq(wanted.keys()), "{real:?} are the names, not {wanted:?}");
            assert!(real == wanted, "a file of worker {} has other bytes", self.at);
            let log: String = (0..self.logged).map(|number| format!("{number:07}\n")).collect();
            let real = std::fs::read_to_string(dir.join("log")).unwrap();
            assert!(real == log, "the log of worker {} has not each record once", self.at);
        }
    }
}
