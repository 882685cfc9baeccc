//! Calls on objects of striped files, and opening such files.
//!
//! A mount reads and writes the objects straight at their servers; a write to one recalls nothing. So
//! a session that has a striped file open for writing is entered, at the file's inode, like one
//! whose kernel has an object open itself: it may change the file without asking, and nobody else
//! is leased its attributes (`leases`). The server of an object knows nothing of opens; the mount
//! writes only while its session at the inode's server lives, which is what others go by.

use crate::session::calls::{At, Reply};
use forebay_lease::leases::Subject;
use forebay_proto::layout::Layout;
use forebay_proto::net::answer::StripedOpen;
use forebay_proto::net::frame::MAX_PAYLOAD_BYTES;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Errno, Ino, ObjectId};

impl At<'_> {
    /// A call on an object.
    pub(super) fn object_call(&self, call: &Call<'_>, room: &mut Vec<u8>) -> Reply {
        let ns = self.namespace();
        match *call {
            Call::ReadObject { object, offset, bytes } => {
                let bytes = bytes.min(MAX_PAYLOAD_BYTES) as usize;
                if room.len() < bytes {
                    room.resize(bytes, 0);
                }
                match ns.stripes().read_object(object, offset, &mut room[..bytes]) {
                    Ok(count) => Reply::data(count),
                    Err(errno) => Reply::failed(errno),
                }
            }
            Call::WriteObject { object, offset, sync } => self.write_object(object, offset, sync),
            Call::SyncObject { object, data_only } => {
                ns.stripes().sync_object(object, data_only).into()
            }
            _ => Reply::failed(Errno::ENOSYS),
        }
    }

    fn write_object(&self, object: ObjectId, offset: u64, sync: bool) -> Reply {
        let end = offset.checked_add(self.payload.len() as u64);
        if end.is_none_or(|end| end > i64::MAX as u64) {
            return Reply::failed(Errno::EFBIG);
        }
        let written = self.namespace().stripes().write_object(object, offset, self.payload, sync);
        written.map(|count| Answer::Count(count as u64)).into()
    }

    /// The layout of a file, if it is striped.
    pub(super) fn striped(&self, ino: Ino) -> Option<Layout> {
        let ns = self.namespace();
        if ns.stripes().server_count() < 2 {
            return None;
        }
        ns.attrs().layout(ino).ok().filter(Layout::is_striped)
    }

    /// Enters an open of a striped file. Those that write come in here before they are answered, and
    /// after the leases of others were recalled.
    pub(super) fn opened_striped(&self, ino: Ino, layout: Layout, writes: bool) -> StripedOpen {
        if writes {
            self.sessions.leases.opened_locally(ino, self.session.id());
        }
        StripedOpen { layout, writes, kills: writes && self.namespace().data().has_privileges(ino) }
    }

    /// Attributes of a striped file were changed. Mounts that write it ask before their next write whether
    /// something is to be taken off; they need no lease to be told.
    pub(super) fn tell_writers(&self, ino: Ino) {
        if self.striped(ino).is_some() && self.namespace().data().has_privileges(ino) {
            // This one knows.
            let mut writers = self.sessions.leases.writers(ino);
            writers.retain(|id| *id != self.session.id());
            let told = writers.into_iter().map(|id| (id, vec![Subject::Attrs(ino)])).collect();
            self.sessions.recall(&told);
        }
    }

    /// What a striped file was opened for.
    pub(super) fn open_writes(open_flags: u32) -> bool {
        open_flags as i32 & libc::O_ACCMODE != libc::O_RDONLY
    }
}
