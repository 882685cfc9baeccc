//! Copies, holes and mappings of striped files on two servers, against a plain file on tmpfs:
//! copy_file_range by programs that have a way without it and by hand, reflinks, fallocate in all its modes,
//! SEEK_HOLE and SEEK_DATA, stores into mappings, each seen on the mount that did not do it. And sizes: how
//! often the servers are asked for that of a file that nobody writes.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::binary;
use forebay_tests::model::{extents, map_write, op::Answer};
use forebay_tests::procs::run;
use forebay_tests::served::{Options, Served, Store, Via};
use forebay_tests::sys::{self, Errno};
use forebay_tests::{long, seed, until};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

const STRIPE: u64 = 64 << 10;
/// Until a close is heard of, and leases are given again.
const LEASED_WITHIN: std::time::Duration = std::time::Duration::from_secs(20);
const NEW: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;

/// A buffer over two servers with a directory `s` whose files are striped, and one `w` whose are not.
fn served() -> Served {
    let served = Served::with(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Tcp]);
    for dir in ["s", "w"] {
        sys::mkdir(served.path(0, dir), 0o777).unwrap();
    }
    let set = |name: &str, value: &str| {
        let name = format!("user.forebay.{name}");
        sys::setxattr(served.path(0, "s"), &name, value.as_bytes(), 0).unwrap();
    };
    set("stripe_size_bytes", &STRIPE.to_string());
    set("stripe_count", "all");
    served
}

/// Bytes at several places of some MiB, with holes between.
fn sparse(fd: &OwnedFd) -> Vec<u8> {
    let size = 4 << 20;
    let mut bytes = vec![0u8; size];
    sys::ftruncate(fd, size as u64).unwrap();
    for (at, length) in [(0usize, 70_000usize), (700_001, 131_072), (3 << 20, 300_000)] {
        let data: Vec<u8> = (at..at + length).map(|n| (n * 31 % 251) as u8 | 1).collect();
        assert_eq!(sys::pwrite(fd, at as u64, &data), Ok(length));
        bytes[at..at + length].copy_from_slice(&data);
    }
    bytes
}

#[test]
fn programs_that_copy_have_right_copies_of_striped_files_on_either_mount() {
    let served = served();
    let fd = sys::open(served.path(0, "s/source"), NEW, 0o640).unwrap();
    let bytes = sparse(&fd);
    drop(fd);
    let outside = tempfile::tempdir().unwrap();
    let outside = outside.path().to_str().unwrap();
    let ways = [
        ("cp", "cp $from $to"),
        ("cp-sparse", "cp --sparse=always $from $to"),
        ("cp-reflink", "cp --reflink=auto $from $to"),
        ("cp-archive", "cp -a $from $to"),
        ("cat", "cat $from > $to"),
        ("append", "head -c 100001 $from > $to; tail -c +100002 $from >> $to"),
        ("dd", "dd if=$from of=$to bs=47008 status=none"),
        ("dd-direct", "dd if=$from of=$to bs=64K iflag=direct status=none"),
        ("install", "install -m 640 $from $to"),
        ("rsync", "rsync -S $from $to"),
        ("tar", "tar -C $(dirname $from) -cSf - $(basename $from) | tar -xOf - > $to"),
        (
            "shutil",
            "/usr/bin/python3 -c 'import shutil,sys; shutil.copy2(*sys.argv[1:])' $from $to",
        ),
        (
            "sendfile",
            "/usr/bin/python3 -c 'import os,sys
f=os.open(sys.argv[1],os.O_RDONLY); t=os.open(sys.argv[2],os.O_CREAT|os.O_WRONLY)
while os.sendfile(t,f,None,1<<20): pass' $from $to",
        ),
        ("mv", "cp $from $to.x; mv $to.x $to"),
    ];
    for (name, script) in ways {
        for (by, from, to) in [
            (0, "s/source", "s/"),
            (1, "s/source", "w/"),
            (1, "s/source", "s/tcp-"),
            (0, "s/source", outside),
        ] {
            let from = served.root(by).join(from);
            let to = match to == outside {
                true => Path::new(outside).join(name),
                false => served.root(by).join(format!("{to}{name}")),
            };
            run(Command::new("sh").args(["-ec", script]).env("from", &from).env("to", &to));
            let seen = match to.strip_prefix(served.root(by)) {
                Ok(inside) => served.root(1 - by).join(inside),
                Err(_) => to.clone(),
            };
            assert!(std::fs::read(&seen).unwrap() == bytes, "{name}: {}", to.display());
            // And back in, from a whole file or from outside.
            let back = served.root(by).join(format!("s/back-{name}"));
            run(Command::new("sh").args(["-ec", script]).env("from", &to).env("to", &back));
            let seen = served.root(1 - by).join(format!("s/back-{name}"));
            assert!(std::fs::read(seen).unwrap() == bytes, "{name}: back from {}", to.display());
            std::fs::remove_file(back).unwrap();
            std::fs::remove_file(to).unwrap();
        }
    }
}

#[test]
fn copy_file_range_and_reflinks_of_striped_files_are_right_or_refused_by_their_errno() {
    let served = served();
    for (by, from, to) in [
        (0, "s/a", "s/b"),
        (1, "s/c", "s/d"),
        (0, "s/e", "w/f"),
        (1, "w/g", "s/h"),
        (0, "w/i", "w/j"),
    ] {
        let from_fd = sys::open(served.path(by, from), NEW, 0o644).unwrap();
        let bytes = sparse(&from_fd);
        let to_fd = sys::open(served.path(by, to), NEW, 0o644).unwrap();
        let mut at = 0;
        while at < bytes.len() {
            match sys::copy_range(&from_fd, at as u64, &to_fd, at as u64, bytes.len() - at) {
                Ok(0) => panic!("{from} to {to}: nothing copied at {at}"),
                Ok(count) => at += count,
                // What programs take for "copy it yourself".
                Err(Errno(libc::EXDEV | libc::EOPNOTSUPP)) if at == 0 => break,
                Err(error) => panic!("{from} to {to}: {error:?} at {at}"),
            }
        }
        let seen = std::fs::read(served.root(1 - by).join(to)).unwrap();
        let wanted = if at == 0 { &[][..] } else { &bytes[..] };
        assert!(seen == wanted, "{from} to {to}: {at} bytes copied");
        let clone = ficlone(&to_fd, &from_fd);
        assert!(
            matches!(
                clone,
                Err(Errno(libc::EOPNOTSUPP | libc::EXDEV | libc::ENOTTY | libc::EINVAL))
            ),
            "{clone:?}"
        );
    }
}

/// `ioctl(FICLONE)`.
fn ficlone(to: &OwnedFd, from: &OwnedFd) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    // SAFETY: two open descriptors and a request that takes one.
    match unsafe { libc::ioctl(to.as_raw_fd(), libc::FICLONE, from.as_raw_fd()) } {
        0 => Ok(()),
        _ => Err(sys::last()),
    }
}

/// A striped file, open on both mounts, and a plain one with which the same is done.
struct Beside {
    files: [OwnedFd; 2],
    plain: OwnedFd,
    rng: StdRng,
}

impl Beside {
    fn place(&mut self) -> (u64, u64) {
        let units = [1, 4096, STRIPE];
        let unit = units[self.rng.random_range(0..3)];
        let at = self.rng.random_range(0..12 * STRIPE) / unit * unit;
        (at, self.rng.random_range(1..3 * STRIPE).max(unit) / unit * unit)
    }

    fn step(&mut self) -> String {
        let by = self.rng.random_range(0..2);
        let (at, length) = self.place();
        let modes = [
            0,
            libc::FALLOC_FL_KEEP_SIZE,
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            libc::FALLOC_FL_ZERO_RANGE,
            libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
        ];
        let byte = self.rng.random_range(1..=255u8);
        match self.rng.random_range(0..10) {
            0..4 => {
                let bytes = vec![byte; length as usize];
                for fd in [&self.files[by], &self.plain] {
                    assert_eq!(sys::pwrite(fd, at, &bytes), Ok(bytes.len()));
                }
                format!("mount {by} wrote {length} at {at}")
            }
            4 => {
                for fd in [&self.files[by], &self.plain] {
                    sys::ftruncate(fd, at).unwrap();
                }
                format!("mount {by} set the size to {at}")
            }
            5 => {
                let end = sys::fstat(&self.plain).unwrap().size;
                if end < 2 {
                    return "nothing".into();
                }
                let at = at % (end - 1);
                let bytes = vec![byte; (length % (end - at)).max(1) as usize];
                map_write(&self.files[by], at, &bytes).unwrap();
                assert_eq!(sys::pwrite(&self.plain, at, &bytes), Ok(bytes.len()));
                format!("mount {by} stored {} at {at}", bytes.len())
            }
            _ => {
                let mode = modes[self.rng.random_range(0..modes.len())];
                let done = sys::fallocate(&self.files[by], mode, at, length);
                assert_eq!(done, plain_fallocate(&self.plain, mode, at, length), "{mode:#x}");
                format!("mount {by} fallocate {mode:#x} of {length} at {at}: {done:?}")
            }
        }
    }

    fn same(&self, said: &str) {
        let size = sys::fstat(&self.plain).unwrap().size;
        let wanted = sys::pread(&self.plain, 0, size as usize).unwrap();
        // Compared as a whole: a loop over bytes takes longer than all else here.
        let zeros = vec![0_u8; wanted.len()];
        for (mount, fd) in self.files.iter().enumerate() {
            assert_eq!(sys::fstat(fd).unwrap().size, size, "after {said}: size on mount {mount}");
            let seen = sys::pread(fd, 0, size as usize + 100).unwrap();
            assert_eq!(seen.len() as u64, size, "after {said}: mount {mount}");
            let differs = || seen.iter().zip(&wanted).position(|(a, b)| a != b);
            assert!(seen == wanted, "after {said}: mount {mount} differs at {:?}", differs());
            // What is called a hole is zeros, and no data is left out.
            let Ok(Answer::Extents(ranges, end)) = extents(fd) else { panic!("{said}: extents") };
            assert_eq!(end, size, "after {said}");
            let mut at = 0;
            for (from, to) in ranges.into_iter().chain([(size, size)]) {
                let hole = &wanted[at as usize..from as usize];
                assert!(*hole == zeros[..hole.len()], "after {said}: data in {at}..{from}");
                at = to;
            }
        }
    }
}

/// tmpfs has no zero range of its own: what it means, by what it has.
fn plain_fallocate(fd: &OwnedFd, mode: i32, at: u64, length: u64) -> Result<(), Errno> {
    let keep = mode & libc::FALLOC_FL_KEEP_SIZE;
    if mode & libc::FALLOC_FL_ZERO_RANGE == 0 {
        return sys::fallocate(fd, mode, at, length);
    }
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    sys::fallocate(fd, punch, at, length)?;
    sys::fallocate(fd, keep, at, length)
}

#[test]
fn striped_files_agree_with_a_plain_one_whatever_is_done_with_their_space() {
    let seed = seed("striped_files_agree_with_a_plain_one_whatever_is_done_with_their_space");
    let served = served();
    let plain = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    let plain = sys::open(sys::bytes(plain.path()), libc::O_RDWR, 0).unwrap();
    drop(sys::open(served.path(0, "s/f"), NEW, 0o644).unwrap());
    let open = |at| sys::open(served.path(at, "s/f"), libc::O_RDWR, 0).unwrap();
    let rng = StdRng::seed_from_u64(seed);
    let mut beside = Beside { files: [open(0), open(1)], plain, rng };
    for _ in 0..if long() { 5_000 } else { 250 } {
        let said = beside.step();
        beside.same(&said);
    }
}

/// Requests that the kernel has sent to mount 1.
fn requests(served: &Served) -> u64 {
    let said = run(Command::new(binary()).args(["status", "--json"]).arg(served.root(1)));
    let status: serde_json::Value = serde_json::from_str(&said).unwrap();
    let counts = &status["requests"];
    counts.as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum()
}

/// The size of a striped file is what its objects show. While nobody has it open for writing it is
/// leased with the other attributes, and nobody is asked.
#[test]
fn the_size_of_a_striped_file_that_nobody_writes_is_not_asked_for_each_time() {
    const LOOKS: u32 = 2_000;
    let served = served();
    for name in ["s/f", "w/f"] {
        std::fs::write(served.root(0).join(name), vec![1; 300_000]).unwrap();
    }
    let look = |name: &str| {
        let path = served.path(1, name);
        let start = std::time::Instant::now();
        (0..LOOKS).for_each(|_| assert_eq!(sys::stat(&path).unwrap().size, 300_000));
        start.elapsed()
    };
    // The last close is heard of a moment later, and what was recalled is not leased at once again.
    until("the attributes of both are leased", LEASED_WITHIN, || {
        let before = requests(&served);
        for name in ["s/f", "w/f"] {
            (0..20).for_each(|_| {
                let _seen = sys::stat(served.path(1, name)).unwrap();
            });
        }
        requests(&served) - before < 20
    });
    let before = requests(&served);
    let (striped, whole) = (look("s/f"), look("w/f"));
    let asked = requests(&served) - before;
    eprintln!("{LOOKS} stats: striped {striped:?}, whole {whole:?}, {asked} requests");
    assert!(asked < u64::from(LOOKS) / 10, "{asked} requests for {LOOKS} stats of each");
    // With a writer it is asked for, and right each time.
    let writer = sys::open(served.path(0, "s/f"), libc::O_WRONLY, 0).unwrap();
    for size in 300_001..300_050 {
        assert_eq!(sys::pwrite(&writer, size - 1, b"x"), Ok(1));
        assert_eq!(sys::stat(served.path(1, "s/f")).unwrap().size, size);
    }
}
