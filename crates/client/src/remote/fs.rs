//! [`FileSystem`] for a buffer on a server.

use super::RemoteFs;
use super::peer::{Done, Room};
use forebay_proto::api::{
    CreateArgs, DirEntry, FileSystem, Locks, NAME_MAX, Notify, Opened, StatFs, WriteMode,
    rename_flags,
};
use forebay_proto::attr::{Attr, FileKind, SetAttr};
use forebay_proto::net::call::{KeptAttr, MAX_LISTING_BYTES};
use forebay_proto::net::frame::MAX_PAYLOAD_BYTES;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Caller, Cookie, Entry, Errno, Ino, Result};
use std::sync::Arc;
use std::time::Duration;

/// An answer of another kind than the question has.
const STRANGE: Errno = Errno::EPROTO;

impl RemoteFs {
    fn ask(&self, caller: &Caller, call: Call<'_>) -> Result<Done> {
        self.peer.call(caller, call, &[], Room::None)
    }

    fn done(&self, caller: &Caller, call: Call<'_>) -> Result<()> {
        match self.ask(caller, call)?.answer {
            Answer::Done => Ok(()),
            _ => Err(STRANGE),
        }
    }

    fn count(&self, caller: &Caller, call: Call<'_>, payload: &[u8]) -> Result<u64> {
        match self.peer.call(caller, call, payload, Room::None)?.answer {
            Answer::Count(count) => Ok(count),
            _ => Err(STRANGE),
        }
    }

    fn bytes(&self, call: Call<'_>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        match self.peer.call(&Caller::root(), call, &[], Room::Vec(&mut bytes))?.answer {
            Answer::Data => Ok(bytes),
            _ => Err(STRANGE),
        }
    }

    fn note_attr(&self, kept: &KeptAttr, done: &Done) -> Attr {
        if kept.keep {
            self.peer.kept.keep_attr(kept.attr.ino, done.mark);
        }
        kept.attr
    }

    fn note_names(&self, dir: Ino, keep: bool, done: &Done) {
        if keep {
            self.peer.kept.keep_names(dir, done.mark);
        }
    }

    fn attr(&self, caller: &Caller, call: Call<'_>) -> Result<Attr> {
        let done = self.ask(caller, call)?;
        match &done.answer {
            Answer::Attr(kept) => Ok(self.note_attr(kept, &done)),
            _ => Err(STRANGE),
        }
    }

    /// A call that gives a reference to an inode below `parent`.
    fn entry(&self, caller: &Caller, parent: Ino, call: Call<'_>) -> Result<Entry> {
        let done = self.ask(caller, call)?;
        match &done.answer {
            Answer::Entry { attr, keep_names, empty } => {
                self.note_names(parent, *keep_names, &done);
                if *empty {
                    self.peer.kept.keep_empty(attr.attr.ino, done.mark);
                }
                Ok(Entry { attr: self.note_attr(attr, &done) })
            }
            Answer::Absent { keep_names } => {
                self.note_names(parent, *keep_names, &done);
                Err(Errno::ENOENT)
            }
            _ => Err(STRANGE),
        }
    }

    fn created(&self, caller: &Caller, parent: Ino, call: Call<'_>) -> Result<(Entry, Opened)> {
        let mut done = self.ask(caller, call)?;
        let local = done.file.take().map(Arc::new);
        match &done.answer {
            Answer::Created { attr, keep_names, local: sent } => {
                if *sent && local.is_none() {
                    self.peer.held.release(attr.attr.ino);
                }
                self.note_names(parent, *keep_names, &done);
                Ok((Entry { attr: self.note_attr(attr, &done) }, Opened { local }))
            }
            _ => Err(STRANGE),
        }
    }

    fn list(
        &self,
        dir: Ino,
        after: Cookie,
        limit: Cookie,
        plus: bool,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        // The kernel asks for some pages at a time: what does not fit them is fetched again.
        let mut max_bytes = 16 << 10;
        let mut after = after;
        loop {
            let call = Call::List { ino: dir, after, limit, max_bytes, plus };
            let done = self.ask(&Caller::root(), call)?;
            let Answer::Listing { entries, keep_names } = &done.answer else {
                return Err(STRANGE);
            };
            self.note_names(dir, *keep_names, &done);
            let mut full = false;
            for entry in entries {
                let attr = entry.attr.as_ref().map(|kept| self.note_attr(kept, &done));
                full = full
                    || !sink(&DirEntry {
                        cookie: entry.cookie,
                        ino: entry.ino,
                        kind: entry.kind,
                        name: &entry.name,
                        attr: attr.as_ref(),
                    });
                if full && attr.is_some() {
                    self.forget(entry.ino, 1);
                }
            }
            match entries.last() {
                Some(last) if !full => after = last.cookie,
                _ => return Ok(()),
            }
            max_bytes = (max_bytes * 4).min(MAX_LISTING_BYTES);
        }
    }
}

impl FileSystem for RemoteFs {
    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Entry> {
        // A name that is too long is no absent name: the server says so.
        if name.len() <= NAME_MAX && self.peer.kept.is_absent(parent, name) {
            return Err(Errno::ENOENT);
        }
        self.entry(caller, parent, Call::Lookup { parent, name })
    }

    fn forget(&self, ino: Ino, count: u64) {
        if self.peer.held.forget(ino, count) {
            self.peer.kept.forgotten(ino);
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.attr(&Caller::root(), Call::Getattr(ino))
    }

    fn setattr(&self, caller: &Caller, ino: Ino, change: &SetAttr) -> Result<Attr> {
        self.attr(caller, Call::Setattr { ino, change: *change })
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.bytes(Call::Readlink(ino))
    }

    fn mknod(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        args: CreateArgs,
        rdev: u32,
    ) -> Result<Entry> {
        self.peer.kept.puts(parent, name);
        self.entry(caller, parent, Call::Mknod { parent, name, kind, args, rdev })
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], args: CreateArgs) -> Result<Entry> {
        self.peer.kept.puts(parent, name);
        self.entry(caller, parent, Call::Mkdir { parent, name, args })
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.peer.kept.puts(parent, name);
        self.entry(caller, parent, Call::Symlink { parent, name, target })
    }

    fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.peer.kept.puts(parent, name);
        self.entry(caller, parent, Call::Link { ino, parent, name })
    }

    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.done(caller, Call::Unlink { parent, name })
    }

    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.done(caller, Call::Rmdir { parent, name })
    }

    fn rename(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: u32,
    ) -> Result<()> {
        self.peer.kept.puts(new_parent, new_name);
        if flags & rename_flags::EXCHANGE != 0 {
            self.peer.kept.puts(parent, name);
        }
        self.done(caller, Call::Rename { parent, name, new_parent, new_name, flags })
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        args: CreateArgs,
        want_local: bool,
    ) -> Result<(Entry, Opened)> {
        self.peer.kept.puts(parent, name);
        self.created(caller, parent, Call::Create { parent, name, args, want_local })
    }

    fn tmpfile(
        &self,
        caller: &Caller,
        parent: Ino,
        args: CreateArgs,
        want_local: bool,
    ) -> Result<(Entry, Opened)> {
        self.created(caller, parent, Call::Tmpfile { parent, args, want_local })
    }

    fn open(
        &self,
        caller: &Caller,
        ino: Ino,
        open_flags: u32,
        kill_suid: bool,
        want_local: bool,
    ) -> Result<Opened> {
        let mut done = self.ask(caller, Call::Open { ino, open_flags, kill_suid, want_local })?;
        match done.answer {
            Answer::Opened { local } => {
                let file = done.file.take().map(Arc::new);
                if local && file.is_none() {
                    self.peer.held.release(ino);
                }
                Ok(Opened { local: file })
            }
            _ => Err(STRANGE),
        }
    }

    fn release(&self, ino: Ino, local: bool) {
        self.peer.kept.closed(ino);
        if local {
            self.peer.held.release(ino);
        }
    }

    fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let limit = MAX_PAYLOAD_BYTES as usize;
        let mut have = 0;
        while have < buffer.len() {
            let want = (buffer.len() - have).min(limit);
            let call = Call::Read { ino, offset: offset + have as u64, bytes: want as u32 };
            let room = Room::Slice(&mut buffer[have..have + want]);
            let done = self.peer.call(&Caller::root(), call, &[], room)?;
            have += done.bytes;
            if done.bytes < want {
                break;
            }
        }
        Ok(have)
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<usize> {
        // An append must arrive in one piece, and a longer one than the kernel's longest request
        // cannot come; anything else is written piece by piece.
        let limit = MAX_PAYLOAD_BYTES as usize;
        let mut have = 0;
        loop {
            let piece = &data[have..data.len().min(have + limit)];
            let call = Call::Write {
                ino,
                offset: offset + have as u64,
                append: mode.append,
                kill_suid: mode.kill_suid,
                sync: mode.sync,
            };
            match self.count(&Caller::root(), call, piece) {
                Ok(count) => have += count as usize,
                Err(_) if have > 0 => return Ok(have),
                Err(errno) => return Err(errno),
            }
            if have >= data.len() || have % limit != 0 {
                return Ok(have);
            }
        }
    }

    fn fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        self.done(&Caller::root(), Call::Fsync { ino, data_only })
    }

    fn fsyncdir(&self, ino: Ino) -> Result<()> {
        self.done(&Caller::root(), Call::Fsyncdir(ino))
    }

    fn fallocate(&self, ino: Ino, mode: u32, offset: u64, length: u64) -> Result<()> {
        self.done(&Caller::root(), Call::Fallocate { ino, mode, offset, length })
    }

    fn seek(&self, ino: Ino, offset: u64, whence: u32) -> Result<u64> {
        self.count(&Caller::root(), Call::Seek { ino, offset, whence }, &[])
    }

    fn copy_file_range(
        &self,
        source: Ino,
        source_offset: u64,
        target: Ino,
        target_offset: u64,
        length: u64,
    ) -> Result<u64> {
        let call = Call::CopyRange { source, source_offset, target, target_offset, length };
        self.count(&Caller::root(), call, &[])
    }

    fn dir_limit(&self, ino: Ino) -> Result<Cookie> {
        match self.ask(&Caller::root(), Call::DirLimit(ino))?.answer {
            Answer::Limit(cookie) => Ok(cookie),
            _ => Err(STRANGE),
        }
    }

    fn readdir(
        &self,
        ino: Ino,
        after: Cookie,
        limit: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list(ino, after, limit, false, sink)
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        after: Cookie,
        limit: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list(ino, after, limit, true, sink)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.bytes(Call::Getxattr { ino, name })
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        self.bytes(Call::Listxattr(ino))
    }

    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: u32,
        kill_sgid: bool,
    ) -> Result<()> {
        let call = Call::Setxattr { ino, name, flags, kill_sgid };
        match self.peer.call(caller, call, value, Room::None)?.answer {
            Answer::Done => Ok(()),
            _ => Err(STRANGE),
        }
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.done(caller, Call::Removexattr { ino, name })
    }

    fn entry_ttl(&self, parent: Ino) -> Duration {
        self.peer.kept.names_ttl(parent)
    }

    fn attr_ttl(&self, ino: Ino) -> Duration {
        self.peer.kept.attr_ttl(ino)
    }

    fn locks(&self) -> Option<&dyn Locks> {
        Some(&*self.locks)
    }

    fn statfs(&self) -> Result<StatFs> {
        match self.ask(&Caller::root(), Call::Statfs)?.answer {
            Answer::Statfs(statfs) => Ok(statfs),
            _ => Err(STRANGE),
        }
    }

    fn sync_all(&self) -> Result<()> {
        self.done(&Caller::root(), Call::SyncAll)
    }

    fn set_notify(&self, notify: Arc<dyn Notify>) {
        self.peer.kept.set_notify(notify);
    }
}
