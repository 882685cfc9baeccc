//! Random operations: mostly sensible ones on what exists, some that must fail.

use super::op::{Fill, Op, RawPath, SLOTS, Step};
use super::state::{Id, Model, Node};
use crate::procs::Cred;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

/// Above so many inodes the generator removes more than it makes.
const INODES_WANTED: usize = 120;

/// Makes operations.
pub struct Generator {
    rng: StdRng,
    users: Vec<Cred>,
    /// Zero range may be refused (a plain tmpfs has none).
    zero_range: bool,
}

const XATTRS: [&str; 4] = ["user.a", "user.b", "user.forest", "user.a.rather.long.name"];

impl Generator {
    /// A generator from a seeded source.
    pub fn new(rng: StdRng, zero_range: bool) -> Generator {
        let users = vec![
            Cred::root(),
            Cred::root(),
            Cred::root(),
            Cred::new(1001, 1001, &[2000]),
            Cred::new(1002, 1002, &[2000, 2001]),
            Cred::new(1003, 1001, &[]),
        ];
        Generator { rng, users, zero_range }
    }

    /// The next step.
    pub fn step(&mut self, model: &Model) -> Step {
        let who = self.users.choose(&mut self.rng).unwrap().clone();
        let mut umask = *[0o022, 0, 0o077, 0o027].choose(&mut self.rng).unwrap();
        let mut op = match self.rng.random_range(0..100) {
            0..40 => self.on_file(model),
            40..75 => self.on_names(model),
            _ => self.on_attributes(model),
        };
        if who.uid != 0 {
            if let Op::LinkFd { slot, .. } = op {
                op = Op::Fsync { slot };
            }
        }
        // A setgid file without group execution is no setgid file, and what a write does to it
        // differs between file systems: none is made.
        if matches!(op, Op::Open { mode, .. } | Op::Mknod { mode, .. } if mode & libc::S_ISGID != 0)
        {
            umask &= !0o070;
        }
        let step = Step { who, umask, op };
        if unwanted(model, &step) { self.step(model) } else { step }
    }

    fn name(&mut self) -> Vec<u8> {
        match self.rng.random_range(0..40) {
            0 => vec![b'n'; 255],
            1 => vec![b'n'; 256],
            2 => b"\xff\xfe not utf-8 \n".to_vec(),
            3 => "größe".as_bytes().to_vec(),
            _ => vec![b'a' + self.rng.random_range(0..8u8)],
        }
    }

    fn some<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        all.choose(&mut self.rng).cloned()
    }

    /// A path: of something that exists, or of a name in some directory.
    fn path(&mut self, model: &Model) -> RawPath {
        let paths = model.paths();
        let all: Vec<(Id, RawPath)> = paths.into_iter().collect();
        if self.rng.random_bool(0.55) {
            return self.some(&all).unwrap().1;
        }
        let dirs: Vec<RawPath> =
            all.into_iter().filter(|(id, _)| model.get(*id).is_dir()).map(|(_, p)| p).collect();
        let mut path = self.some(&dirs).unwrap().0;
        if self.rng.random_bool(0.05) {
            path.extend_from_slice(b"/..");
        }
        path.push(b'/');
        let name = self.name();
        path.extend_from_slice(if self.rng.random_bool(0.02) { b"." } else { &name });
        RawPath(path)
    }

    /// A path in a directory, mostly of something new.
    fn new_path(&mut self, model: &Model) -> RawPath {
        for _ in 0..3 {
            let path = self.path(model);
            let found = model.resolve(&Cred::root(), &path, false);
            if found.is_ok_and(|found| found.target.is_none()) {
                return path;
            }
        }
        self.path(model)
    }

    fn mode(&mut self) -> u32 {
        *[0o644, 0o666, 0o600, 0o755, 0o777, 0o4755, 0o2775, 0o6777, 0o1777, 0o400, 0, 0o2770]
            .choose(&mut self.rng)
            .unwrap()
    }

    fn offset(&mut self) -> u64 {
        match self.rng.random_range(0..20) {
            0 => (1 << 32) + self.rng.random_range(0..100_000),
            1..4 => self.rng.random_range(0..64) * 4096,
            _ => self.rng.random_range(0..200_000),
        }
    }

    fn fill(&mut self) -> Fill {
        let length = match self.rng.random_range(0..10) {
            0 => 0,
            1 => 4096,
            2 => self.rng.random_range(0..150_000),
            _ => self.rng.random_range(1..9_000),
        };
        Fill { length, seed: self.rng.random() }
    }

    /// A slot, mostly of an open regular file.
    fn slot(&mut self, model: &Model) -> usize {
        let open: Vec<usize> = (0..SLOTS).filter(|slot| file_in(model, *slot).is_some()).collect();
        match self.some(&open) {
            Some(slot) if self.rng.random_bool(0.97) => slot,
            _ => self.rng.random_range(0..SLOTS),
        }
    }

    fn open(&mut self, model: &Model) -> Op {
        let slot = self.rng.random_range(0..SLOTS);
        let access = *[libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR, libc::O_RDWR]
            .choose(&mut self.rng)
            .unwrap();
        let mode = self.mode();
        if self.rng.random_bool(0.1) {
            let exclusive = if self.rng.random_bool(0.2) { libc::O_EXCL } else { 0 };
            let path = self.path(model);
            let access = if access == libc::O_RDONLY { libc::O_RDWR } else { access };
            return Op::Open { slot, path, flags: libc::O_TMPFILE | access | exclusive, mode };
        }
        let mut flags = access;
        for (flag, chance) in [
            (libc::O_CREAT, 0.6),
            (libc::O_EXCL, 0.1),
            (libc::O_TRUNC, 0.1),
            (libc::O_APPEND, 0.15),
            (libc::O_NOFOLLOW, 0.1),
        ] {
            if self.rng.random_bool(chance) {
                flags |= flag;
            }
        }
        if flags & libc::O_CREAT == 0 {
            flags &= !libc::O_EXCL;
            if self.rng.random_bool(0.1) {
                flags |= libc::O_DIRECTORY;
            }
        }
        if access == libc::O_RDONLY {
            flags &= !libc::O_TRUNC;
        }
        let path = if flags & libc::O_CREAT == 0 { self.path(model) } else { self.new_path(model) };
        Op::Open { slot, path, flags, mode }
    }

    fn on_file(&mut self, model: &Model) -> Op {
        let open = (0..SLOTS).filter(|slot| file_in(model, *slot).is_some()).count();
        if open < 3 {
            return self.open(model);
        }
        let slot = self.slot(model);
        let (at, fill) = (self.offset(), self.fill());
        match self.rng.random_range(0..34) {
            0..4 => self.open(model),
            4 => Op::Close { slot },
            5..8 => Op::Pread { slot, at, length: fill.length },
            8 => Op::Read { slot, length: fill.length },
            9..15 => Op::Pwrite { slot, at, fill },
            15..19 => Op::Write { slot, fill },
            19..21 => Op::Ftruncate { slot, size: at },
            21..25 => self.fallocate(slot, at),
            25..27 => match file_in(model, slot) {
                Some(_) => Op::Extents { slot },
                None => Op::Fsync { slot: self.open_slot(model) },
            },
            27 => Op::Fsync { slot: self.open_slot(model) },
            28..30 => {
                let (to, to_at) = (self.slot(model), self.offset());
                Op::Copy { from: slot, at, to, to_at, length: fill.length }
            }
            30 => Op::LinkFd { slot, path: self.new_path(model) },
            31 => Op::Fchmod { slot, mode: self.mode() },
            _ => self.map_write(model, slot, fill),
        }
    }

    fn open_slot(&mut self, model: &Model) -> usize {
        let open: Vec<usize> = (0..SLOTS).filter(|slot| model.slots[*slot].is_some()).collect();
        self.some(&open).unwrap()
    }

    fn fallocate(&mut self, slot: usize, at: u64) -> Op {
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        let punch = libc::FALLOC_FL_PUNCH_HOLE | keep;
        let mut modes = vec![0, keep, punch, punch];
        if self.zero_range {
            modes.extend([libc::FALLOC_FL_ZERO_RANGE, libc::FALLOC_FL_ZERO_RANGE | keep]);
        }
        let mode = self.some(&modes).unwrap();
        let length = self.rng.random_range(0..100_000);
        Op::Fallocate { slot, mode, at, length }
    }

    fn map_write(&mut self, model: &Model, slot: usize, fill: Fill) -> Op {
        let size = file_in(model, slot).unwrap_or(0);
        let read_write = model.slots[slot]
            .as_ref()
            .is_some_and(|open| open.flags & libc::O_ACCMODE == libc::O_RDWR);
        if size == 0 || !read_write {
            return Op::Fsync { slot: self.open_slot(model) };
        }
        let at = self.rng.random_range(0..size);
        let length = fill.length.clamp(1, 20_000).min((size - at) as usize);
        Op::MapWrite { slot, at, fill: Fill { length, ..fill } }
    }

    fn on_names(&mut self, model: &Model) -> Op {
        let shrink = model.inodes.len() > INODES_WANTED;
        let choice = self.rng.random_range(0..if shrink { 60 } else { 40 });
        match choice {
            0..7 => Op::Mkdir { path: self.new_path(model), mode: self.mode() },
            7..11 => Op::Rmdir { path: self.path(model) },
            11..17 => Op::Unlink { path: self.path(model) },
            17..21 => Op::Link { from: self.path(model), to: self.new_path(model) },
            21..24 => Op::Symlink { target: self.target(model), path: self.new_path(model) },
            24 => Op::Readlink { path: self.path(model) },
            25..36 => {
                // 3 and 6 do not go together.
                let (no, swap, white) =
                    (libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE, libc::RENAME_WHITEOUT);
                let flags = *[0, 0, 0, 0, no, swap, white, white, white | no, 3, 6]
                    .choose(&mut self.rng)
                    .unwrap();
                let from = self.path(model);
                let to =
                    if self.rng.random_bool(0.5) { self.path(model) } else { self.new_path(model) };
                Op::Rename { from, to, flags }
            }
            36 => {
                let (kind, device) = *[
                    (libc::S_IFIFO, 0),
                    (libc::S_IFSOCK, 0),
                    (libc::S_IFCHR, libc::makedev(1, 3)),
                    (libc::S_IFCHR, 0),
                    (libc::S_IFBLK, libc::makedev(259, 70_000)),
                ]
                .choose(&mut self.rng)
                .unwrap();
                Op::Mknod { path: self.new_path(model), mode: kind | self.mode(), device }
            }
            37..40 => Op::List { path: self.path(model) },
            40..50 => Op::Rmdir { path: self.path(model) },
            _ => Op::Unlink { path: self.path(model) },
        }
    }

    fn target(&mut self, model: &Model) -> RawPath {
        if self.rng.random_bool(0.5) { self.path(model) } else { RawPath(self.name()) }
    }

    fn time(&mut self) -> (i64, i64) {
        match self.rng.random_range(0..6) {
            0 => (0, libc::UTIME_NOW),
            1 => (0, libc::UTIME_OMIT),
            2 => (-1_000_000_000, 999_999_999),
            3 => (5_000_000_000, 1),
            _ => (self.rng.random_range(0..2_000_000_000), self.rng.random_range(0..1_000_000_000)),
        }
    }

    fn on_attributes(&mut self, model: &Model) -> Op {
        let path = self.path(model);
        let name = *XATTRS.choose(&mut self.rng).unwrap();
        match self.rng.random_range(0..24) {
            0..5 => Op::Chmod { path, mode: self.mode() },
            5..10 => {
                let ids = [u32::MAX, 0, 1001, 1002, 2000, 2001];
                let (uid, gid) = (self.some(&ids).unwrap(), self.some(&ids).unwrap());
                Op::Chown { path, uid, gid, follow: self.rng.random() }
            }
            10..13 => {
                let (atime, mtime) = if self.rng.random_bool(0.3) {
                    ((0, libc::UTIME_NOW), (0, libc::UTIME_NOW))
                } else {
                    (self.time(), self.time())
                };
                Op::Utimens { path, atime, mtime, follow: self.rng.random() }
            }
            13..17 => {
                let flags =
                    *[0, 0, libc::XATTR_CREATE, libc::XATTR_REPLACE].choose(&mut self.rng).unwrap();
                let value = Fill { length: self.rng.random_range(0..300), seed: self.rng.random() };
                Op::SetXattr { path, name, value, flags }
            }
            17 => Op::GetXattr { path, name },
            18 => Op::RemoveXattr { path, name },
            19 => Op::ListXattr { path },
            20 => Op::Lstat { path },
            _ => Op::Truncate { path, size: self.offset() },
        }
    }
}

/// Size of the regular file open in a slot.
fn file_in(model: &Model, slot: usize) -> Option<u64> {
    match &model.get(model.slots[slot].as_ref()?.id).node {
        Node::File(data) => Some(data.size()),
        _ => None,
    }
}

/// True for what is not to be tried: what would block or reach a device, and what has no one
/// right answer.
fn unwanted(model: &Model, step: &Step) -> bool {
    let special = |id: Id| matches!(model.get(id).node, Node::Special(..));
    match &step.op {
        Op::Open { path, .. } => model
            .resolve(&Cred::root(), path, true)
            .is_ok_and(|found| found.target.is_some_and(special)),
        // These work only on regular files; other errors than EBADF are the kernel's own.
        Op::Ftruncate { slot, .. } | Op::Fallocate { slot, .. } => {
            model.slots[*slot].is_some() && file_in(model, *slot).is_none()
        }
        Op::Copy { from, to, .. } => [from, to]
            .iter()
            .any(|slot| model.slots[**slot].is_some() && file_in(model, **slot).is_none()),
        // A chown that changes nothing takes suid off. FUSE's kernel side does not tell it from
        // a write that does, and lets strangers do it.
        Op::Chown { uid: u32::MAX, gid: u32::MAX, .. } => step.who.uid != 0,
        // Which of two errors a rename gives first differs between kernels.
        Op::Rename { from, to, .. } => {
            [from, to].iter().any(|path| path.0.split(|&b| b == b'/').any(|part| part.len() > 255))
        }
        _ => false,
    }
}
