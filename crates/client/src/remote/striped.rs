//! Data of striped files: read and written straight at the servers of their objects, several at once
//! where a request spans stripes.
//!
//! Invariants
//! * The table has the files that this mount has open, with their layouts: as long as one is open for
//!   writing, its inode's server counts this mount among those who may change it unasked, and its
//!   layout does not change.
//! * Nothing is written unless this mount's session at the inode's server lives, by this mount's
//!   clock: when it is over, others may believe that nobody writes.
//! * What an object does not have is a hole or the end; only all objects together tell which. So a
//!   read that meets it goes on through the inode's server.
//!
//! Sizes, appends and allocation are the inode server's, as for any file. Called by `fs`.

use super::RemoteFs;
use super::objects::{self, Moved};
use super::peer::{Peer, Room};
use forebay_proto::api::WriteMode;
use forebay_proto::asked;
use forebay_proto::layout::{Layout, Part};
use forebay_proto::net::Call;
use forebay_proto::net::answer::StripedOpen;
use forebay_proto::{Caller, Errno, Ino, ObjectId, Result};
use parking_lot::Mutex;
use std::collections::HashMap;

#[derive(Clone, Copy)]
struct OpenFile {
    layout: Layout,
    /// Opens of this mount.
    opens: u64,
    /// Of them those for writing, which the server has entered.
    writes: u64,
    /// The file may have suid, sgid or capabilities, which a write takes off.
    kills: bool,
}

/// The striped files that are open here; bounded by what the kernel has open.
#[derive(Default)]
pub(super) struct StripedFiles {
    open: Mutex<HashMap<Ino, OpenFile>>,
}

impl StripedFiles {
    /// One more open.
    pub(super) fn opened(&self, ino: Ino, open: &StripedOpen) {
        let mut files = self.open.lock();
        let file = files.entry(ino).or_insert(OpenFile {
            layout: open.layout,
            opens: 0,
            writes: 0,
            kills: false,
        });
        file.layout = open.layout;
        file.opens += 1;
        file.writes += u64::from(open.writes);
        file.kills |= open.kills;
    }

    /// One open is over; how many opens for writing the server is to be told the end of.
    pub(super) fn released(&self, ino: Ino) -> u64 {
        let mut files = self.open.lock();
        let Some(file) = files.get_mut(&ino) else { return 0 };
        file.opens -= 1;
        if file.opens > 0 {
            return 0;
        }
        files.remove(&ino).map_or(0, |file| file.writes)
    }

    /// Layout of a file that is open here, if it is striped.
    pub(super) fn layout(&self, ino: Ino) -> Option<Layout> {
        self.open.lock().get(&ino).map(|file| file.layout)
    }

    /// Somebody changed attributes: perhaps it has suid, sgid or capabilities now.
    pub(super) fn attributes_changed(&self, ino: Ino) {
        if let Some(file) = self.open.lock().get_mut(&ino) {
            file.kills = true;
        }
    }

    /// True once after the file may have got something that a write takes off.
    fn takes_kills(&self, ino: Ino) -> bool {
        self.open.lock().get_mut(&ino).is_some_and(|file| std::mem::take(&mut file.kills))
    }
}

/// Does the parts of a request, all but the first on threads of their own.
fn at_once<T: Send>(work: Vec<T>, run: impl Fn(T) -> Moved + Sync) -> Vec<Moved> {
    let mut work = work.into_iter();
    let Some(first) = work.next() else { return Vec::new() };
    let run = &run;
    std::thread::scope(|scope| {
        let here = asked::here();
        let spawn = |part| {
            let here = here.clone();
            scope.spawn(move || asked::part(here, || run(part)))
        };
        let threads: Vec<_> = work.map(spawn).collect();
        let mut came = vec![run(first)];
        let panicked = || (0, Some(Errno::EIO));
        came.extend(threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())));
        came
    })
}

/// The first byte of the file that is missing after these parts came to so much, and why; `None` if
/// nothing is.
fn first_missing(layout: &Layout, parts: &[Part], came: &[Moved]) -> Option<(u64, Option<Errno>)> {
    let missing = parts.iter().zip(came).filter(|(part, (bytes, _))| *bytes < part.bytes);
    let at = missing.filter_map(|(part, (bytes, why))| {
        Some((layout.file_offset(part.stripe, part.offset + bytes)?, *why))
    });
    at.min_by_key(|(at, _)| *at)
}

impl RemoteFs {
    /// The server of an object.
    fn of_object(&self, layout: &Layout, stripe: u32) -> Result<&Peer> {
        let all = self.servers.all();
        let shard = layout.shard_of(stripe, all.len() as u16);
        all.get(usize::from(shard.0)).map(|peer| &**peer).ok_or(Errno::EIO)
    }

    /// Reads; fewer bytes than asked for only at the end of the file.
    pub(super) fn read_striped(
        &self,
        ino: Ino,
        layout: &Layout,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        let parts = layout.parts(offset, buffer.len() as u64);
        let read = |(part, into): (Part, &mut [u8])| match self.of_object(layout, part.stripe) {
            Ok(peer) => {
                objects::read(peer, ObjectId { ino, stripe: part.stripe }, part.offset, into)
            }
            Err(errno) => (0, Some(errno)),
        };
        let in_one_piece = parts.iter().all(|part| layout.runs(*part).nth(1).is_none());
        let came = if in_one_piece {
            // In the order of the file: each into its place.
            let mut rest = &mut *buffer;
            let mut work = Vec::with_capacity(parts.len());
            for part in &parts {
                let (into, behind) = rest.split_at_mut(part.bytes as usize);
                work.push((*part, into));
                rest = behind;
            }
            at_once(work, read)
        } else {
            let mut rooms: Vec<Vec<u8>> =
                parts.iter().map(|part| vec![0; part.bytes as usize]).collect();
            let work = parts.iter().copied().zip(rooms.iter_mut().map(|room| &mut room[..]));
            let came = at_once(work.collect(), read);
            for ((part, room), (bytes, _)) in parts.iter().zip(&rooms).zip(&came) {
                for run in layout.runs(Part { bytes: *bytes, ..*part }) {
                    let from = (run.object_offset - part.offset) as usize;
                    let to = (run.file_offset - offset) as usize;
                    let count = run.bytes as usize;
                    buffer[to..to + count].copy_from_slice(&room[from..from + count]);
                }
            }
            came
        };
        match first_missing(layout, &parts, &came) {
            None => Ok(buffer.len()),
            Some((at, Some(errno))) if at == offset => Err(errno),
            Some((at, Some(_))) => Ok((at - offset) as usize),
            Some((at, None)) => {
                let have = (at - offset) as usize;
                Ok(have + self.read_at_inode(ino, at, &mut buffer[have..])?)
            }
        }
    }

    /// Writes at an offset; a short count only when space ran out, or a server went away, in between.
    pub(super) fn write_striped(
        &self,
        ino: Ino,
        layout: &Layout,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<usize> {
        self.may_write(ino, offset, data.len(), mode)?;
        let parts = layout.parts(offset, data.len() as u64);
        let came =
            at_once(parts.clone(), |part| self.write_part(ino, layout, offset, data, mode, part));
        match first_missing(layout, &parts, &came) {
            None => Ok(data.len()),
            Some((at, why)) if at == offset => Err(why.unwrap_or(Errno::ENOSPC)),
            Some((at, _)) => Ok((at - offset) as usize),
        }
    }

    /// Before a write of so many bytes: a file can be as large, this mount is still known to write, and what a write takes off
    /// is off.
    pub(super) fn may_write(
        &self,
        ino: Ino,
        offset: u64,
        bytes: usize,
        mode: WriteMode,
    ) -> Result<()> {
        let end = offset.checked_add(bytes as u64);
        if end.is_none_or(|end| end > i64::MAX as u64) {
            return Err(Errno::EFBIG);
        }
        let peer = self.servers.of(ino)?;
        if peer.kept.lease_left().is_zero() {
            peer.call(&Caller::root(), Call::Renew, &[], Room::None)?;
        }
        if self.striped.takes_kills(ino) {
            let kill_suid = mode.kill_suid;
            let call = Call::Write { ino, offset: 0, append: false, kill_suid, sync: false };
            let killed = peer.call(&Caller::root(), call, &[], Room::None);
            if killed.is_err() || !kill_suid {
                // A writer who may keep suid leaves it to the next.
                self.striped.attributes_changed(ino);
            }
            killed?;
        }
        Ok(())
    }

    fn write_part(
        &self,
        ino: Ino,
        layout: &Layout,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
        part: Part,
    ) -> Moved {
        let peer = match self.of_object(layout, part.stripe) {
            Ok(peer) => peer,
            Err(errno) => return (0, Some(errno)),
        };
        let mut runs = layout.runs(part);
        let (Some(first), second) = (runs.next(), runs.next()) else { return (0, None) };
        let place = |at: u64, bytes: u64| {
            let from = (at - offset) as usize;
            &data[from..from + bytes as usize]
        };
        let gathered: Vec<u8>;
        let bytes = match second {
            None => place(first.file_offset, first.bytes),
            Some(_) => {
                let mut all = Vec::with_capacity(part.bytes as usize);
                for run in layout.runs(part) {
                    all.extend_from_slice(place(run.file_offset, run.bytes));
                }
                gathered = all;
                &gathered
            }
        };
        let object = ObjectId { ino, stripe: part.stripe };
        objects::write(peer, object, part.offset, bytes, mode.sync)
    }

    /// All objects on flash; the inode's server is asked after that.
    pub(super) fn sync_striped(&self, ino: Ino, layout: &Layout, data_only: bool) -> Result<()> {
        let stripes: Vec<u32> = (0..u32::from(layout.stripe_count)).collect();
        let came = at_once(stripes, |stripe| {
            let call = Call::SyncObject { object: ObjectId { ino, stripe }, data_only };
            let done = self
                .of_object(layout, stripe)
                .and_then(|peer| peer.call(&Caller::root(), call, &[], Room::None));
            (0, done.err())
        });
        match came.into_iter().find_map(|(_, why)| why) {
            Some(errno) => Err(errno),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::ShardId;

    const LAYOUT: Layout = Layout {
        stripe_size_bytes: 4096,
        stripe_count: 2,
        first: ShardId(0),
        ..Layout::WHOLE_LOCAL
    };

    #[test]
    fn the_last_close_tells_of_all_that_wrote() {
        let files = StripedFiles::default();
        let open = |writes| StripedOpen { layout: LAYOUT, writes, kills: false };
        for writes in [true, false, true] {
            files.opened(Ino(5), &open(writes));
        }
        assert_eq!((files.released(Ino(5)), files.released(Ino(5))), (0, 0));
        assert_eq!(files.layout(Ino(5)), Some(LAYOUT));
        assert_eq!(files.released(Ino(5)), 2);
        assert_eq!((files.layout(Ino(5)), files.released(Ino(5))), (None, 0));
    }

    #[test]
    fn what_is_missing_counts_from_the_first_byte_of_the_file() {
        let parts = LAYOUT.parts(1000, 3 * 4096);
        let full: Vec<Moved> = parts.iter().map(|part| (part.bytes, None)).collect();
        assert_eq!(first_missing(&LAYOUT, &parts, &full), None);
        let mut short = full.clone();
        short[1] = (10, Some(Errno::ENOSPC));
        assert_eq!(first_missing(&LAYOUT, &parts, &short), Some((4106, Some(Errno::ENOSPC))));
        short[0] = (50, None);
        assert_eq!(first_missing(&LAYOUT, &parts, &short), Some((1050, None)));
    }
}
