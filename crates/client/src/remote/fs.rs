//! [`FileSystem`] for a buffer on servers: names are asked of the shard of their directory, all else
//! of the shard of the inode. A reference to an inode that a name at another shard leads to is taken
//! where the inode is (`taking`).

use super::RemoteFs;
use super::answers::{STRANGE, given, is_done, lost, note_attr, note_names};
use super::logged::Logs;
use super::peer::{Done, Peer, Room};
use forebay_proto::api::ops::*;
use forebay_proto::api::{
    CreateArgs, DirEntry, Locks, NAME_MAX, Notify, Opened, StatFs, WriteMode, rename_flags,
};
use forebay_proto::asked;
use forebay_proto::attr::{Attr, FileKind, SetAttr};
use forebay_proto::layout::publish_xattr;
use forebay_proto::net::answer::{KeptAttr, ListedEntry};
use forebay_proto::net::call::{MAX_LISTING_BYTES, Taking};
use forebay_proto::net::frame::MAX_PAYLOAD_BYTES;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Caller, Cookie, Entry, Errno, Ino, Result};
use std::sync::Arc;
use std::time::Duration;

/// Most times that attributes are asked for because this mount published meanwhile.
const OVERTAKEN_TRIES: u32 = 8;
/// How often a name is looked up whose inode has gone when it is asked for.
const MAX_LOOKUPS: u32 = 16;

impl RemoteFs {
    fn of(&self, ino: Ino) -> Result<&Peer> {
        self.servers.of(ino)
    }

    /// Asks the server that has `ino`.
    fn ask(&self, ino: Ino, caller: &Caller, call: Call<'_>) -> Result<Done> {
        self.of(ino)?.call(caller, call, &[], Room::None)
    }

    fn done(&self, ino: Ino, caller: &Caller, call: Call<'_>) -> Result<()> {
        is_done(self.ask(ino, caller, call)?)
    }

    fn count(&self, ino: Ino, caller: &Caller, call: Call<'_>, payload: &[u8]) -> Result<u64> {
        match self.of(ino)?.call(caller, call, payload, Room::None)?.answer {
            Answer::Count(count) => Ok(count),
            _ => Err(STRANGE),
        }
    }

    fn bytes(&self, ino: Ino, call: Call<'_>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        match self.of(ino)?.call(&Caller::root(), call, &[], Room::Vec(&mut bytes))?.answer {
            Answer::Data => Ok(bytes),
            _ => Err(STRANGE),
        }
    }

    fn attr(&self, ino: Ino, caller: &Caller, call: Call<'_>) -> Result<Attr> {
        let peer = self.of(ino)?;
        let mark = Logs::mark();
        let done = peer.call(caller, call, &[], Room::None)?;
        match &done.answer {
            Answer::Attr(kept) => Ok(self.shown(note_attr(peer, kept, &done), mark)),
            _ => Err(STRANGE),
        }
    }

    /// What programs of this mount see of attributes that were asked for after `mark`. Where this mount published since,
    /// they are asked for once more, and where nobody answers they are shown as they came.
    fn shown(&self, attr: Attr, mut mark: u64) -> Attr {
        let mut shown = self.logs.shown(attr);
        for _ in 0..OVERTAKEN_TRIES {
            if !self.logs.is_overtaken(attr.ino, mark) {
                break;
            }
            mark = Logs::mark();
            let Ok(peer) = self.of(attr.ino) else { break };
            let call = Call::Getattr(attr.ino);
            let Ok(done) = peer.call(&Caller::root(), call, &[], Room::None) else { break };
            let Answer::Attr(kept) = &done.answer else { break };
            shown = self.logs.shown(note_attr(peer, kept, &done));
        }
        shown
    }

    /// A call that makes a name below `parent`, and gives a reference to what it leads to.
    fn entry(
        &self,
        caller: &Caller,
        parent: Ino,
        after: Taking,
        call: Call<'_>,
    ) -> Result<(Entry, Opened)> {
        let peer = self.of(parent)?;
        let mut done = peer.call(caller, call, &[], Room::None)?;
        match &done.answer {
            Answer::Elsewhere { ino, kind, keep_names } => {
                note_names(peer, parent, *keep_names, &done);
                match (self.take(caller, *ino, after), kind) {
                    (Err(Errno::EIO), Some(kind)) if self.of(*ino)?.is_gone() => {
                        Ok((Entry { attr: lost(*ino, *kind) }, Opened { local: None }))
                    }
                    (taken, _) => taken,
                }
            }
            Answer::Absent { keep_names } => {
                note_names(peer, parent, *keep_names, &done);
                Err(Errno::ENOENT)
            }
            _ => {
                self.note_striped(&done.answer, parent);
                given(peer, Some(parent), &mut done)
            }
        }
    }

    fn named(&self, caller: &Caller, parent: Ino, call: Call<'_>) -> Result<Entry> {
        let mark = Logs::mark();
        let (entry, _) = self.entry(caller, parent, Taking::Name, call)?;
        Ok(Entry { attr: self.shown(entry.attr, mark) })
    }

    /// A reference at the shard of an inode that is not its name's.
    pub(super) fn take(&self, caller: &Caller, ino: Ino, after: Taking) -> Result<(Entry, Opened)> {
        let peer = self.of(ino)?;
        let mut done = peer.call(caller, Call::Take { ino, after }, &[], Room::None)?;
        self.note_striped(&done.answer, ino);
        given(peer, None, &mut done)
    }

    /// References to the entries of a listing whose inodes are at other shards than it. Those at a
    /// server that is away, or that have gone, stay without attributes: they are looked up when used.
    fn take_listed(&self, dir: Ino, entries: &mut [ListedEntry]) {
        for peer in self.servers.all().iter().filter(|peer| !peer.is_away()) {
            let here = |entry: &ListedEntry| {
                entry.attr.is_none()
                    && entry.cookie > Cookie::DOTDOT
                    && entry.ino.shard() != dir.shard()
                    && self.of(entry.ino).is_ok_and(|of| std::ptr::eq(of, &raw const **peer))
            };
            let wanted: Vec<Ino> = entries.iter().filter(|e| here(e)).map(|e| e.ino).collect();
            if wanted.is_empty() {
                continue;
            }
            let call = Call::TakeAll(wanted);
            let Ok(done) = peer.call(&Caller::root(), call, &[], Room::None) else { continue };
            let Answer::Taken(taken) = &done.answer else { continue };
            for (entry, kept) in entries.iter_mut().filter(|e| here(e)).zip(taken) {
                entry.attr =
                    kept.map(|kept| KeptAttr { attr: note_attr(peer, &kept, &done), ..kept });
            }
        }
    }

    /// Reads by the server of the inode: a whole file, or where a striped one has holes or ends.
    pub(super) fn read_at_inode(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let limit = MAX_PAYLOAD_BYTES as usize;
        let peer = self.of(ino)?;
        let mut have = 0;
        while have < buffer.len() {
            let want = (buffer.len() - have).min(limit);
            let call = Call::Read { ino, offset: offset + have as u64, bytes: want as u32 };
            let room = Room::Slice(&mut buffer[have..have + want]);
            let done = peer.call(&Caller::root(), call, &[], room)?;
            have += done.bytes;
            if done.bytes < want {
                break;
            }
        }
        Ok(have)
    }

    /// Reads; `all`: also of a file in logs all that other mounts have written by now.
    fn read_data(&self, ino: Ino, offset: u64, buffer: &mut [u8], all: bool) -> Result<usize> {
        match self.striped.layout(ino) {
            Some(layout) if layout.log => self.read_logged(ino, &layout, all, offset, buffer),
            Some(layout) => self.read_striped(ino, &layout, offset, buffer),
            None => self.read_at_inode(ino, offset, buffer),
        }
    }

    /// Notes an open of a striped file, if the answer is one: its data is at other servers.
    fn note_striped(&self, answer: &Answer, ino: Ino) {
        match answer {
            Answer::OpenedStriped(open) => {
                self.striped.opened(ino, open);
                self.logs.opened(ino);
            }
            Answer::CreatedStriped { attr, open, .. } => self.striped.opened(attr.attr.ino, open),
            _ => {}
        }
    }

    /// The kernel believes a name that it moves for as long as it was leased where it was. Where it is now it may not be
    /// leased, so nobody would recall it: no name is believed then until it is asked for again.
    fn name_moves(&self, from: Ino, to: Ino) {
        let is_leased = |dir| !self.entry_ttl(dir).is_zero();
        if is_leased(from) && !is_leased(to) {
            self.of(from).iter().for_each(|peer| peer.kept.ask_for_names());
        }
    }

    /// The server of `dir` was asked for a change that may have changed a directory of another one.
    fn changed_elsewhere(&self, dir: Ino) {
        let asked = usize::from(dir.shard().0);
        let others = self.servers.all().iter().enumerate().filter(|(at, _)| *at != asked);
        others.for_each(|(_, peer)| peer.kept.changed_any());
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
            let peer = self.of(dir)?;
            let mark = Logs::mark();
            let mut done = peer.call(&Caller::root(), call, &[], Room::None)?;
            let answer = std::mem::replace(&mut done.answer, Answer::Done);
            let Answer::Listing { mut entries, keep_names } = answer else {
                return Err(STRANGE);
            };
            note_names(peer, dir, keep_names, &done);
            if plus && !self.servers.is_one() {
                self.take_listed(dir, &mut entries);
            }
            let mut full = false;
            for entry in &entries {
                let attr = entry.attr.as_ref().map(|kept| match entry.ino.shard() == dir.shard() {
                    true => self.shown(note_attr(peer, kept, &done), mark),
                    false => self.shown(kept.attr, mark),
                });
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

impl NameOps for RemoteFs {
    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Entry> {
        // A name that is too long is no absent name: the server says so.
        let is_dots = name == b"." || name == b"..";
        let may_be_known = name.len() <= NAME_MAX && !is_dots;
        if may_be_known && self.of(parent)?.kept.is_absent(parent, name) {
            return Err(Errno::ENOENT);
        }
        let mut lookups = 0;
        loop {
            lookups += 1;
            match self.named(caller, parent, Call::Lookup { parent, name }) {
                // It lost the name between the two questions.
                Err(Errno::ESTALE) if lookups < MAX_LOOKUPS => {}
                other => return other,
            }
        }
    }

    fn forget(&self, ino: Ino, count: u64) {
        let Ok(peer) = self.of(ino) else { return };
        if peer.held.forget(ino, count) {
            peer.kept.forgotten(ino);
        }
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.bytes(ino, Call::Readlink(ino))
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
        self.of(parent)?.kept.puts(parent, name);
        let near = self.servers.near(parent);
        self.named(caller, parent, Call::Mknod { parent, name, kind, args, rdev, near })
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], args: CreateArgs) -> Result<Entry> {
        self.of(parent)?.kept.puts(parent, name);
        let own = self.local_dirs.take_place(self.servers.only_near());
        let near = self.servers.near(parent);
        let call = Call::Mkdir { parent, name, args, near, own: own.is_some() };
        let (entry, _) = self.entry(caller, parent, Taking::Directory, call)?;
        if let Some(place) = own {
            place.made(entry.attr.ino);
        }
        Ok(entry)
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.of(parent)?.kept.puts(parent, name);
        let near = self.servers.near(parent);
        self.named(caller, parent, Call::Symlink { parent, name, target, near })
    }

    fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.of(parent)?.kept.puts(parent, name);
        self.named(caller, parent, Call::Link { ino, parent, name })
    }

    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.done(parent, caller, Call::Unlink { parent, name })
    }

    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        let done = self.done(parent, caller, Call::Rmdir { parent, name });
        self.changed_elsewhere(parent);
        done
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
        self.of(new_parent)?.kept.puts(new_parent, new_name);
        if flags & (rename_flags::EXCHANGE | rename_flags::WHITEOUT) != 0 {
            self.of(parent)?.kept.puts(parent, name);
        }
        let call = Call::Rename { parent, name, new_parent, new_name, flags };
        let done = self.done(new_parent, caller, call);
        self.changed_elsewhere(new_parent);
        if done.is_ok() {
            self.name_moves(parent, new_parent);
            if flags & rename_flags::EXCHANGE != 0 {
                self.name_moves(new_parent, parent);
            }
        }
        done
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        args: CreateArgs,
        want_local: bool,
    ) -> Result<(Entry, Opened)> {
        self.of(parent)?.kept.puts(parent, name);
        let near = self.servers.near(parent);
        let call = Call::Create { parent, name, args, want_local, near };
        self.entry(caller, parent, Taking::File { want_local }, call)
    }

    fn tmpfile(
        &self,
        caller: &Caller,
        parent: Ino,
        args: CreateArgs,
        want_local: bool,
    ) -> Result<(Entry, Opened)> {
        let call = Call::Tmpfile { parent, args, want_local };
        self.entry(caller, parent, Taking::File { want_local }, call)
    }

    fn fsyncdir(&self, ino: Ino) -> Result<()> {
        self.done(ino, &Caller::root(), Call::Fsyncdir(ino))
    }

    fn dir_limit(&self, ino: Ino) -> Result<Cookie> {
        match self.ask(ino, &Caller::root(), Call::DirLimit(ino))?.answer {
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

    fn entry_ttl(&self, parent: Ino) -> Duration {
        self.of(parent).map_or(Duration::ZERO, |peer| peer.kept.names_ttl(parent))
    }
}

impl AttrOps for RemoteFs {
    fn getattr(&self, ino: Ino) -> Result<Attr> {
        if let Some(attr) = self.of(ino)?.kept.take_changed(ino) {
            return Ok(self.logs.shown(attr));
        }
        self.attr(ino, &Caller::root(), Call::Getattr(ino))
    }

    fn setattr(&self, caller: &Caller, ino: Ino, change: &SetAttr) -> Result<Attr> {
        self.striped.attributes_changed(ino);
        // What was written comes before: it is cut off, or gets another time.
        self.logs.publish(ino, false)?;
        let set = self.attr(ino, caller, Call::Setattr { ino, change: *change });
        self.logs.forget_map(ino);
        set
    }

    fn attr_ttl(&self, ino: Ino) -> Duration {
        self.of(ino).map_or(Duration::ZERO, |peer| peer.kept.attr_ttl(ino))
    }
}

impl DataOps for RemoteFs {
    fn open(
        &self,
        caller: &Caller,
        ino: Ino,
        open_flags: u32,
        kill_suid: bool,
        want_local: bool,
    ) -> Result<Opened> {
        let peer = self.of(ino)?;
        if open_flags & libc::O_TRUNC as u32 != 0 {
            // What was written comes before: it is cut off.
            self.logs.publish(ino, false)?;
        }
        let call = Call::Open { ino, open_flags, kill_suid, want_local };
        let mut done = peer.call(caller, call, &[], Room::None)?;
        if open_flags & libc::O_TRUNC as u32 != 0 {
            self.logs.forget_map(ino);
        }
        self.note_striped(&done.answer, ino);
        match done.answer {
            Answer::OpenedStriped(_) => Ok(Opened { local: None }),
            Answer::Opened { local } => {
                let file = done.file.take().map(Arc::new);
                if local && file.is_none() {
                    peer.held.release(ino);
                }
                Ok(Opened { local: file })
            }
            _ => Err(STRANGE),
        }
    }

    fn release(&self, ino: Ino, local: bool) {
        let Ok(peer) = self.of(ino) else { return };
        peer.kept.closed(ino);
        match local {
            true => peer.held.release(ino),
            // Of a buffer that is no cache there are none.
            false => drop(peer.held.close_served(ino)),
        }
        for _ in 0..self.striped.released(ino) {
            peer.held.release(ino);
        }
        if self.striped.layout(ino).is_none() {
            self.logs.closed(ino);
        }
    }

    fn flush(&self, ino: Ino) -> Result<()> {
        self.logs.publish(ino, false)
    }

    fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.read_data(ino, offset, buffer, false)
    }

    fn read_to_write(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.read_data(ino, offset, buffer, true)
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<usize> {
        match self.striped.layout(ino) {
            Some(layout) if layout.log && mode.append => self.logs.publish(ino, false)?,
            Some(layout) if layout.log => return self.write_logged(ino, offset, data, mode),
            Some(layout) if !mode.append => {
                return self.write_striped(ino, &layout, offset, data, mode);
            }
            _ => {}
        }
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
            let count = self.count(ino, &Caller::root(), call, piece);
            self.logs.forget_map(ino);
            match count {
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
        match self.striped.layout(ino) {
            Some(layout) if layout.log => self.logs.publish(ino, true)?,
            Some(layout) => self.sync_striped(ino, &layout, data_only)?,
            None => {}
        }
        self.done(ino, &Caller::root(), Call::Fsync { ino, data_only })
    }

    fn fallocate(&self, ino: Ino, mode: u32, offset: u64, length: u64) -> Result<()> {
        self.logs.publish(ino, false)?;
        let done = self.done(ino, &Caller::root(), Call::Fallocate { ino, mode, offset, length });
        self.logs.forget_map(ino);
        done
    }

    fn seek(&self, ino: Ino, offset: u64, whence: u32) -> Result<u64> {
        self.logs.publish(ino, false)?;
        self.count(ino, &Caller::root(), Call::Seek { ino, offset, whence }, &[])
    }

    fn copy_file_range(
        &self,
        source: Ino,
        source_offset: u64,
        target: Ino,
        target_offset: u64,
        length: u64,
    ) -> Result<u64> {
        let striped = |ino| self.striped.layout(ino).is_some();
        if source.shard() != target.shard() || striped(source) || striped(target) {
            // Who asks then reads and writes.
            return Err(Errno::EXDEV);
        }
        let call = Call::CopyRange { source, source_offset, target, target_offset, length };
        self.count(target, &Caller::root(), call, &[])
    }
}

impl XattrOps for RemoteFs {
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.bytes(ino, Call::Getxattr { ino, name })
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        self.bytes(ino, Call::Listxattr(ino))
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
        self.striped.attributes_changed(ino);
        if name == publish_xattr::NAME {
            self.logs.publish(ino, false)?;
        }
        let call = Call::Setxattr { ino, name, flags, kill_sgid };
        is_done(self.of(ino)?.call(caller, call, value, Room::None)?)
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.done(ino, caller, Call::Removexattr { ino, name })
    }
}

impl FileSystem for RemoteFs {
    fn root(&self) -> Ino {
        self.root.get().copied().unwrap_or(Ino::ROOT)
    }

    fn locks(&self) -> Option<&dyn Locks> {
        Some(&*self.locks)
    }

    fn statfs(&self) -> Result<StatFs> {
        if self.attached.needs_pfs() {
            // All of them show the same PFS.
            let there = self.servers.all().iter().find(|peer| !peer.is_away());
            let peer = there.unwrap_or(self.servers.of_locks());
            return match peer.call(&Caller::root(), Call::Statfs, &[], Room::None)?.answer {
                Answer::Statfs(stat) => Ok(stat),
                _ => Err(STRANGE),
            };
        }
        // What a server that is away has, nobody can use now; it is not waited for.
        let mut sum: Option<StatFs> = None;
        let mut failed = Errno::EIO;
        for peer in self.servers.all() {
            if peer.is_away() && !self.servers.is_one() {
                continue;
            }
            match peer.call(&Caller::root(), Call::Statfs, &[], Room::None).map(|d| d.answer) {
                Ok(Answer::Statfs(part)) => sum = Some(add(sum, &part)),
                Ok(_) => return Err(STRANGE),
                Err(errno) => failed = errno,
            }
        }
        sum.ok_or(failed)
    }

    fn sync_all(&self) -> Result<()> {
        self.logs.sync_all()?;
        let sync = |peer: &Peer| {
            peer.call(&Caller::root(), Call::SyncAll, &[], Room::None).and_then(is_done)
        };
        let (first, others) = self.servers.all().split_first().ok_or(STRANGE)?;
        // At once: one that does not answer is waited for, and so only once.
        std::thread::scope(|scope| {
            let here = asked::here();
            let ask = |peer| {
                let here = here.clone();
                scope.spawn(move || asked::part(here, || sync(peer)))
            };
            let started: Vec<_> = others.iter().map(|peer| &**peer).map(ask).collect();
            let result = sync(first);
            let join = |at: std::thread::ScopedJoinHandle<'_, Result<()>>| {
                at.join().unwrap_or(Err(Errno::EIO))
            };
            started.into_iter().map(join).fold(result, Result::and)
        })
    }

    /// The server of a cache forgets what nobody references.
    fn finds_by_number(&self) -> bool {
        self.attached.finds_by_number()
    }

    fn may_hang(&self) -> bool {
        true
    }

    fn is_answering(&self) -> bool {
        // All are asked: a server that answers may wait for another one by itself, for a name that a file has just got there.
        !self.servers.all().iter().any(|peer| peer.is_silent_now())
    }

    /// A server answers while its PFS hangs.
    fn syncs_dirs_at_pfs(&self) -> bool {
        self.attached.needs_pfs()
    }

    fn set_notify(&self, notify: Arc<dyn Notify>) {
        for peer in self.servers.all() {
            peer.kept.set_notify(Arc::clone(&notify));
        }
    }
}

/// What several servers have together.
fn add(sum: Option<StatFs>, part: &StatFs) -> StatFs {
    let Some(sum) = sum else { return *part };
    // All servers count in the same unit; another one would be a newer program's.
    let scaled =
        |blocks: u64| blocks * u64::from(part.block_bytes) / u64::from(sum.block_bytes.max(1));
    StatFs {
        block_bytes: sum.block_bytes,
        blocks_total: sum.blocks_total + scaled(part.blocks_total),
        blocks_free: sum.blocks_free + scaled(part.blocks_free),
        blocks_available: sum.blocks_available + scaled(part.blocks_available),
        files_total: sum.files_total + part.files_total,
        files_free: sum.files_free + part.files_free,
    }
}
