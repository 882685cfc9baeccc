//! The actions of the random program: what users' programs do to files and names.
//!
//! Each is one or a few journaled steps ([`super::workload`]); an action that finds nothing to
//! work on does nothing. An errno that is not expected ends the test.

use super::content::{CELL_BYTES, Content, DataOp, encode};
use super::names::{Kind, NameOp};
use super::workload::{Live, Place, Runner};
use anyhow::{Context, Result};
use rand::Rng;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Most directories.
const MAX_DIRS: usize = 24;
/// Most files kept open after their last name went.
const MAX_HELD: usize = 6;
/// Files of a burst that exist at the same time.
const BURST_LIVE: usize = 100;
/// Size of a burst's xattrs, in bytes.
const BURST_XATTR_BYTES: usize = 60_000;

impl Runner {
    fn make_file(&mut self, at: Place, flags: i32) -> Result<(File, u64, u64)> {
        let started = self.position();
        let path = self.path(&at)?;
        let mode = [0o644, 0o600, 0o755][self.rng.random_range(0..3)];
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(mode)
            .custom_flags(flags)
            .open(&path)
            .with_context(|| format!("create {path:?}"))?;
        let ino = file.metadata()?.ino();
        let serial = self.born(ino);
        let op = NameOp::Make { at: Some(at), ino, kind: Kind::File, mode, target: None };
        self.named(started, op, Some(serial));
        Ok((file, serial, ino))
    }

    fn born(&mut self, ino: u64) -> u64 {
        let serial = self.next_serial;
        self.next_serial += 1;
        self.contents.insert(serial, Content::default());
        self.live.push(Live { serial, ino });
        serial
    }

    fn put(&mut self, file: &File, serial: u64, first: u64, count: u64) -> Result<()> {
        let cells = self.stamps(serial, first, count);
        let started = self.position();
        file.write_all_at(&encode(&cells), first * CELL_BYTES)?;
        self.wrote(started, serial, DataOp::Put { first, cells, sync: false }, 0);
        Ok(())
    }

    fn put_sync(&mut self, file: &File, serial: u64, ino: u64) -> Result<()> {
        let cells = self.stamps(serial, 0, 4);
        let started = self.position();
        let durable_names = self.names_of(ino);
        file.write_all_at(&encode(&cells), 0)?;
        self.wrote(started, serial, DataOp::Put { first: 0, cells, sync: true }, durable_names);
        Ok(())
    }

    pub(super) fn create(&mut self) -> Result<()> {
        let at = self.new_place("f");
        let sync = if self.rng.random_bool(0.1) { libc::O_DSYNC } else { 0 };
        let (file, serial, ino) = self.make_file(at, sync)?;
        if sync != 0 {
            // A log that is opened for synchronous writes and never fsynced.
            return self.put_sync(&file, serial, ino);
        }
        let count = self.some_size();
        if count > 0 {
            self.put(&file, serial, 0, count)?;
        }
        if self.rng.random_bool(0.3) {
            self.sync_file(&file, serial, ino)?;
        }
        Ok(())
    }

    pub(super) fn write(&mut self) -> Result<()> {
        let Some((serial, ino, at)) = self.some_file() else { return Ok(()) };
        let path = self.path(&at)?;
        let size = self.contents[&serial].size();
        let mut count = self.some_size().max(1);
        let sync = self.rng.random_bool(0.2);
        let append = self.rng.random_bool(0.4);
        if sync {
            count = count.min(2048);
        }
        let first = match self.rng.random_range(0..4) {
            _ if append => size,
            0 => size + self.rng.random_range(0..512),
            1 => self.rng.random_range(0..=size) / 128 * 128,
            _ => self.rng.random_range(0..=size),
        };
        let mut options = OpenOptions::new();
        options.write(true).append(append);
        if sync {
            options.custom_flags(if self.rng.random() { libc::O_DSYNC } else { libc::O_SYNC });
        }
        let durable_names = if sync { self.names_of(ino) } else { 0 };
        let file = options.open(&path).with_context(|| format!("open {path:?}"))?;
        let cells = self.stamps(serial, first, count);
        let bytes = encode(&cells);
        let started = self.position();
        if append {
            use std::io::Write;
            (&file).write_all(&bytes)?;
        } else {
            file.write_all_at(&bytes, first * CELL_BYTES)?;
        }
        self.wrote(started, serial, DataOp::Put { first, cells, sync }, durable_names);
        if self.rng.random_bool(0.2) {
            self.sync_file(&file, serial, ino)?;
        }
        Ok(())
    }

    pub(super) fn truncate(&mut self) -> Result<()> {
        let Some((serial, _, at)) = self.some_file() else { return Ok(()) };
        let path = self.path(&at)?;
        let old = self.contents[&serial].size();
        let started = self.position();
        let size = match self.rng.random_range(0..4) {
            0 => 0,
            1 => old + self.rng.random_range(0..4096),
            _ => self.rng.random_range(0..=old),
        };
        if size == 0 && self.rng.random() {
            OpenOptions::new().write(true).truncate(true).open(&path)?;
        } else {
            OpenOptions::new().write(true).open(&path)?.set_len(size * CELL_BYTES)?;
        }
        self.wrote(started, serial, DataOp::Truncate { size }, 0);
        Ok(())
    }

    pub(super) fn punch(&mut self) -> Result<()> {
        use rustix::fs::FallocateFlags;
        let Some((serial, _, at)) = self.some_file() else { return Ok(()) };
        let path = self.path(&at)?;
        let size = self.contents[&serial].size();
        let file = OpenOptions::new().write(true).open(&path)?;
        let started = self.position();
        let first = self.rng.random_range(0..=size);
        let count = self.rng.random_range(1..=(size - first).max(128));
        let (offset, length) = (first * CELL_BYTES, count * CELL_BYTES);
        let op = if self.rng.random_bool(0.7) {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&file, flags, offset, length)?;
            DataOp::Punch { first, count }
        } else {
            rustix::fs::fallocate(&file, FallocateFlags::empty(), offset, length)?;
            DataOp::Allocate { end: first + count }
        };
        self.wrote(started, serial, op, 0);
        Ok(())
    }

    pub(super) fn sync_some_file(&mut self) -> Result<()> {
        let Some((serial, ino, at)) = self.some_file() else { return Ok(()) };
        let file = File::open(self.path(&at)?)?;
        self.sync_file(&file, serial, ino)
    }

    pub(super) fn sync_dir(&mut self) -> Result<()> {
        let dir = self.some_dir();
        self.sync_path(dir)
    }

    pub(super) fn copy(&mut self) -> Result<()> {
        let (Some((from, _, from_at)), Some((to, to_ino, to_at))) =
            (self.some_file(), self.some_file())
        else {
            return Ok(());
        };
        let size = self.contents[&from].size();
        if from == to || size == 0 {
            return Ok(());
        }
        let source = File::open(self.path(&from_at)?)?;
        let target = OpenOptions::new().write(true).open(self.path(&to_at)?)?;
        // Whole blocks half of the time, so that the flash may share them.
        let align = if self.rng.random() { 128 } else { 1 };
        let first = self.rng.random_range(0..size) / align * align;
        let count = (size - first).min(self.rng.random_range(1..=8192));
        let at = self.rng.random_range(0..=self.contents[&to].size()) / align * align;
        let started = self.position();
        let (mut from_offset, mut to_offset) = (first * CELL_BYTES, at * CELL_BYTES);
        let mut left = (count * CELL_BYTES) as usize;
        while left > 0 {
            let done = rustix::fs::copy_file_range(
                &source,
                Some(&mut from_offset),
                &target,
                Some(&mut to_offset),
                left,
            )?;
            anyhow::ensure!(done > 0, "copy_file_range stopped {left} bytes early");
            left -= done;
        }
        let cells = self.contents[&from].cells(first, count);
        self.wrote(started, to, DataOp::Put { first: at, cells, sync: false }, 0);
        if self.rng.random_bool(0.4) {
            self.sync_file(&target, to, to_ino)?;
        }
        Ok(())
    }

    pub(super) fn mapped_write(&mut self) -> Result<()> {
        let Some((serial, _, at)) = self.some_file() else { return Ok(()) };
        let size = self.contents[&serial].size();
        if size == 0 {
            return Ok(());
        }
        let file = OpenOptions::new().read(true).write(true).open(self.path(&at)?)?;
        let first = self.rng.random_range(0..size);
        let count = (size - first).min(self.rng.random_range(1..=1024));
        let cells = self.stamps(serial, first, count);
        let bytes = encode(&cells);
        let length = (size * CELL_BYTES) as usize;
        let started = self.position();
        store_mapped(&file, length, (first * CELL_BYTES) as usize, &bytes)?;
        self.wrote(started, serial, DataOp::Put { first, cells, sync: false }, 0);
        Ok(())
    }

    fn forget_unlinked(&mut self) {
        let names = &self.names;
        self.live.retain(|live| names.inodes.get(&live.ino).is_some_and(|inode| inode.nlink > 0));
    }

    fn remove(&mut self, at: Place, dir: bool) -> Result<()> {
        let path = self.path(&at)?;
        let started = self.position();
        if dir { fs::remove_dir(&path) } else { fs::remove_file(&path) }
            .with_context(|| format!("remove {path:?}"))?;
        self.named(started, NameOp::Remove { at }, None);
        self.forget_unlinked();
        Ok(())
    }

    pub(super) fn unlink(&mut self) -> Result<()> {
        match self.some_file() {
            Some((_, _, at)) => self.remove(at, false),
            None => Ok(()),
        }
    }

    /// unlink of an open file, with writes to it afterwards.
    pub(super) fn unlink_open(&mut self) -> Result<()> {
        let Some((serial, _, at)) = self.some_file() else { return Ok(()) };
        let file = OpenOptions::new().read(true).write(true).open(self.path(&at)?)?;
        self.remove(at, false)?;
        let size = self.contents[&serial].size();
        let first = self.rng.random_range(0..=size);
        self.put(&file, serial, first, 128)?;
        self.held.push((file, serial));
        if self.held.len() > MAX_HELD {
            self.held.remove(0);
        }
        Ok(())
    }

    fn move_to(&mut self, from: Place, to: Place, exchange: bool) -> Result<()> {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        let (old, new) = (self.path(&from)?, self.path(&to)?);
        let flags = if exchange { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
        let started = self.position();
        renameat_with(CWD, &old, CWD, &new, flags)
            .with_context(|| format!("rename {old:?} {new:?}"))?;
        self.named(started, NameOp::Rename { from, to, exchange }, None);
        self.forget_unlinked();
        Ok(())
    }

    pub(super) fn rename(&mut self) -> Result<()> {
        let over = self.rng.random_bool(0.4);
        if !over && self.rng.random_bool(0.2) && self.dirs.len() > 1 {
            return self.rename_dir();
        }
        let Some((_, ino, from)) = self.some_file() else { return Ok(()) };
        let to = match (over, self.some_file()) {
            (true, Some((_, other, to))) if other != ino => to,
            _ => self.new_place("r"),
        };
        self.move_to(from, to, false)
    }

    fn rename_dir(&mut self) -> Result<()> {
        let dir = self.dirs[self.rng.random_range(1..self.dirs.len())];
        let to = self.new_place("d");
        let from =
            self.names.entries.iter().find(|(_, ino)| **ino == dir).map(|(at, _)| at.clone());
        let Some(from) = from else { return Ok(()) };
        // Not into itself.
        let inside = self.path_of(to.0)?.starts_with(self.path_of(dir)?);
        if inside { Ok(()) } else { self.move_to(from, to, false) }
    }

    pub(super) fn exchange(&mut self) -> Result<()> {
        let (Some((_, a, from)), Some((_, b, to))) = (self.some_file(), self.some_file()) else {
            return Ok(());
        };
        if a == b { Ok(()) } else { self.move_to(from, to, true) }
    }

    pub(super) fn link(&mut self) -> Result<()> {
        let Some((_, ino, from)) = self.some_file() else { return Ok(()) };
        let at = self.new_place("l");
        let started = self.position();
        fs::hard_link(self.path(&from)?, self.path(&at)?)?;
        self.named(started, NameOp::Link { ino, at }, None);
        Ok(())
    }

    pub(super) fn make_dir(&mut self) -> Result<()> {
        if self.dirs.len() >= MAX_DIRS {
            return self.remove_dir();
        }
        let at = self.new_place("d");
        let started = self.position();
        let path = self.path(&at)?;
        fs::create_dir(&path)?;
        let ino = fs::symlink_metadata(&path)?.ino();
        let op = NameOp::Make { at: Some(at), ino, kind: Kind::Dir, mode: 0o755, target: None };
        self.named(started, op, None);
        self.dirs.push(ino);
        Ok(())
    }

    pub(super) fn remove_dir(&mut self) -> Result<()> {
        let entries = &self.names.entries;
        let empty = self.dirs.iter().skip(1).position(|dir| !entries.keys().any(|at| at.0 == *dir));
        let Some(index) = empty else { return Ok(()) };
        let dir = self.dirs[index + 1];
        let at = entries.iter().find(|(_, ino)| **ino == dir).map(|(at, _)| at.clone());
        let Some(at) = at else { return Ok(()) };
        self.dirs.remove(index + 1);
        self.remove(at, true)
    }

    pub(super) fn symlink(&mut self) -> Result<()> {
        let links = self.names.inodes.iter().filter(|(_, inode)| inode.kind == Kind::Symlink);
        let mut inos: Vec<u64> =
            links.filter(|(_, inode)| inode.nlink > 0).map(|(ino, _)| *ino).collect();
        inos.sort_unstable();
        if inos.len() > 8 {
            let gone = inos[self.rng.random_range(0..inos.len())];
            let at = self.names.entries.iter().find(|(_, ino)| **ino == gone);
            if let Some(at) = at.map(|(at, _)| at.clone()) {
                return self.remove(at, false);
            }
        }
        let at = self.new_place("s");
        let path = self.path(&at)?;
        let started = self.position();
        let (kind, mode, target) = if self.rng.random_bool(0.7) {
            let target = format!("to/{}", "x".repeat(self.rng.random_range(1..400)));
            std::os::unix::fs::symlink(&target, &path)?;
            (Kind::Symlink, 0o777, Some(target))
        } else {
            let mode = rustix::fs::Mode::from_raw_mode(0o644);
            rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)?;
            (Kind::Fifo, 0o644, None)
        };
        let ino = fs::symlink_metadata(&path)?.ino();
        self.named(started, NameOp::Make { at: Some(at), ino, kind, mode, target }, None);
        Ok(())
    }

    pub(super) fn attributes(&mut self) -> Result<()> {
        let Some((_, ino, at)) = self.some_file() else { return Ok(()) };
        let path = self.path(&at)?;
        let started = self.position();
        let op = match self.rng.random_range(0..4) {
            0 => {
                let mode = [0o644, 0o640, 0o400, 0o777][self.rng.random_range(0..4)];
                fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
                NameOp::Chmod { ino, mode }
            }
            1 => {
                let uid = self.rng.random_range(0..5) * 1000;
                std::os::unix::fs::chown(&path, Some(uid), None)?;
                NameOp::Chown { ino, uid }
            }
            _ => self.change_xattr(ino, &path)?,
        };
        self.named(started, op, None);
        Ok(())
    }

    fn change_xattr(&mut self, ino: u64, path: &Path) -> Result<NameOp> {
        let name = format!("{}{}", super::names::XATTR_PREFIX, self.rng.random_range(0..3));
        let exists = self.names.inodes[&ino].xattrs.contains_key(&name);
        if exists && self.rng.random_bool(0.3) {
            rustix::fs::removexattr(path, &name)?;
            return Ok(NameOp::Xattr { ino, name, value: None });
        }
        let value: Vec<u8> = vec![self.rng.random(); self.rng.random_range(1..600)];
        rustix::fs::setxattr(path, &name, &value, rustix::fs::XattrFlags::empty())?;
        Ok(NameOp::Xattr { ino, name, value: Some(value) })
    }

    /// O_TMPFILE, written, often fsynced, and usually given a name.
    pub(super) fn temporary(&mut self) -> Result<()> {
        let dir = self.some_dir();
        let started = self.position();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .mode(0o644)
            .custom_flags(libc::O_TMPFILE)
            .open(self.path_of(dir)?)
            .context("O_TMPFILE")?;
        let ino = file.metadata()?.ino();
        let serial = self.born(ino);
        let op = NameOp::Make { at: None, ino, kind: Kind::File, mode: 0o644, target: None };
        self.named(started, op, Some(serial));
        let count = self.some_size().max(1);
        self.put(&file, serial, 0, count)?;
        if self.rng.random_bool(0.5) {
            self.sync_file(&file, serial, ino)?;
        }
        if self.rng.random_bool(0.7) {
            let at = self.new_place("t");
            let started = self.position();
            let source = super::disk::fd_path(&file);
            let (path, follow) = (self.path(&at)?, rustix::fs::AtFlags::SYMLINK_FOLLOW);
            rustix::fs::linkat(rustix::fs::CWD, source, rustix::fs::CWD, path, follow)
                .context("give a temporary file a name")?;
            self.named(started, NameOp::Link { ino, at }, None);
            if self.rng.random_bool(0.5) {
                self.sync_file(&file, serial, ino)?;
            }
        } else {
            self.forget_unlinked();
        }
        Ok(())
    }

    /// What editors and checkpoint writers do: write beside, fsync, rename over, fsync the
    /// directory.
    pub(super) fn replace_safely(&mut self) -> Result<()> {
        let Some((_, _, to)) = self.some_file() else { return self.create() };
        let at = self.new_place("n");
        let at = (to.0, at.1);
        let (file, serial, ino) = self.make_file(at.clone(), 0)?;
        let count = self.some_size().max(1);
        self.put(&file, serial, 0, count)?;
        self.sync_file(&file, serial, ino)?;
        self.move_to(at, to.clone(), false)?;
        if self.rng.random_bool(0.6) {
            self.sync_path(to.0)?;
        }
        Ok(())
    }

    /// Many small files made and removed, and large xattrs set over and over, so that logs turn
    /// over and batches go to their place while it lasts.
    pub(super) fn burst(&mut self) -> Result<()> {
        let dir = self.some_dir();
        for index in 0..self.program.burst_files {
            let (file, serial, ino) = self.make_file((dir, format!("b{index}")), 0)?;
            if index % 16 == 0 {
                self.put(&file, serial, 0, 2)?;
            }
            if index % 4 == 0 {
                let value = vec![index as u8; BURST_XATTR_BYTES];
                let name = format!("{}0", super::names::XATTR_PREFIX);
                let started = self.position();
                rustix::fs::fsetxattr(&file, &name, &value, rustix::fs::XattrFlags::empty())
                    .context("set a large xattr")?;
                self.named(started, NameOp::Xattr { ino, name, value: Some(value) }, None);
            }
            if index % 128 == 127 {
                self.sync_file(&file, serial, ino)?;
            }
            if index >= BURST_LIVE {
                self.remove((dir, format!("b{}", index - BURST_LIVE)), false)?;
            }
        }
        let first = self.program.burst_files.saturating_sub(BURST_LIVE);
        for index in first..self.program.burst_files {
            self.remove((dir, format!("b{index}")), false)?;
        }
        Ok(())
    }
}

/// Stores `bytes` into a shared mapping of the whole file, in a child process. The recorder
/// runs in this process: a fault on the mapping waits for the disk with the process's memory
/// map locked, and the disk would wait for the recorder's next allocation.
fn store_mapped(file: &fs::File, length: usize, offset: usize, bytes: &[u8]) -> Result<()> {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    // SAFETY: the child makes only system calls and a copy inside the file's size, which nobody
    // changes meanwhile, and leaves by _exit: nothing of the parent's other threads is needed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above; the mapping is as long as the file.
        let stored = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, 0).and_then(
                |map| {
                    let target = map.cast::<u8>().add(offset);
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
                    munmap(map, length)
                },
            )
        };
        // SAFETY: ends the child without running the parent's destructors.
        unsafe { libc::_exit(i32::from(stored.is_err())) };
    }
    anyhow::ensure!(child > 0, "fork: {}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: waits for our own child; `status` is a valid out-parameter.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    anyhow::ensure!(waited == child && status == 0, "mapped store: status {status}");
    Ok(())
}
