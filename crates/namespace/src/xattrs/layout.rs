//! The layout of files and directories: shown and set as `user.forebay.*`.
//!
//! Of a directory it is what new files and directories in it get. Of a file it is fixed once it has
//! data, or while somebody may write it without asking: what is there already lies where it lies.
//! Called by the xattr operations; `forebay stripe` goes by the same attributes.

use super::Xattrs;
use forebay_proto::attr::FileKind;
use forebay_proto::layout::{
    COMMIT, LOG, Layout, PLAIN, Placement, STRICT, STRIPE_SIZE_MAX_BYTES, STRIPE_SIZE_UNIT_BYTES,
    commit_or_strict, log_or_plain,
};
use forebay_proto::{Caller, Errno, Ino, ObjectId, Result};
use forebay_store::record::{InodeRecord, inode_flags};

/// The number of servers, as a count of objects.
const ALL: &str = "all";

/// True for an attribute, without its prefix, that sets the layout.
pub fn is_layout_xattr(name: &[u8]) -> bool {
    matches!(
        name,
        b"stripe_count" | b"stripe_size_bytes" | b"placement" | b"layout" | b"consistency"
    )
}

impl Xattrs {
    /// What a layout attribute says, `None` for another one.
    pub(super) fn layout_xattr(
        &self,
        ino: Ino,
        record: &InodeRecord,
        name: &[u8],
    ) -> Option<String> {
        let (layout, kind) = (&record.layout, record.kind());
        if !matches!(kind, FileKind::File | FileKind::Dir) {
            return None;
        }
        let servers = self.stripes.server_count();
        match name {
            b"stripe_count" if layout.stripe_count == 0 => Some(ALL.into()),
            b"stripe_count" => Some(layout.stripe_count.to_string()),
            b"stripe_size_bytes" => Some(layout.stripe_size_bytes.to_string()),
            b"layout" => Some(log_or_plain(layout.log).into()),
            b"consistency" if layout.log => Some(commit_or_strict(layout.strict).into()),
            b"placement" if kind == FileKind::Dir => Some(layout.placement.name().into()),
            b"server_count" => Some(servers.to_string()),
            b"servers" if record.is_striped() => {
                let on = (0..u32::from(layout.stripe_count))
                    .map(|stripe| layout.shard_of(stripe, servers).0.to_string());
                Some(on.collect::<Vec<_>>().join(","))
            }
            b"servers" => Some(ino.shard().0.to_string()),
            _ => None,
        }
    }

    /// Sets one value of a layout. ERANGE for a count or size that cannot be, EINVAL for what is
    /// none, EEXIST for a file that has data.
    pub(super) fn set_layout_xattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let record = self.records.inode(ino)?;
        let text = std::str::from_utf8(value).map_err(|_| Errno::EINVAL)?.trim();
        let kind = record.kind();
        let mut layout = record.layout;
        match name {
            b"stripe_count" => layout.stripe_count = self.count_of(text, kind)?,
            b"stripe_size_bytes" => {
                let bytes: u32 = text.parse().map_err(|_| Errno::EINVAL)?;
                let fits = bytes.is_multiple_of(STRIPE_SIZE_UNIT_BYTES)
                    && (STRIPE_SIZE_UNIT_BYTES..=STRIPE_SIZE_MAX_BYTES).contains(&bytes);
                if !fits {
                    return Err(Errno::ERANGE);
                }
                layout.stripe_size_bytes = bytes;
            }
            b"layout" => {
                layout.log = match text {
                    LOG => true,
                    PLAIN => false,
                    _ => return Err(Errno::EINVAL),
                };
                layout.strict &= layout.log;
            }
            b"consistency" if layout.log => {
                layout.strict = match text {
                    STRICT => true,
                    COMMIT => false,
                    _ => return Err(Errno::EINVAL),
                };
                return self.put_layout(caller, ino, layout, false);
            }
            // Only files in logs have one.
            b"consistency" => return Err(Errno::EOPNOTSUPP),
            // Where a file is was decided when it was made.
            _ if kind != FileKind::Dir => return Err(Errno::ENOTDIR),
            _ => layout.placement = Placement::from_name(text).ok_or(Errno::EINVAL)?,
        }
        if kind == FileKind::File {
            layout = layout.of_file(self.stripes.server_count());
        }
        match kind {
            FileKind::Dir => self.put_layout(caller, ino, layout, false),
            FileKind::File if layout == record.layout => {
                self.put_layout(caller, ino, layout, false)
            }
            FileKind::File => self.set_file_layout(caller, ino, &record, layout),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    fn count_of(&self, text: &str, kind: FileKind) -> Result<u16> {
        let servers = self.stripes.server_count();
        match (text, kind) {
            // New files are to be on all servers that there are then.
            (ALL, FileKind::Dir) => Ok(0),
            (ALL, _) => Ok(servers),
            _ => {
                let count: u16 = text.parse().map_err(|_| Errno::EINVAL)?;
                match (1..=servers).contains(&count) {
                    true => Ok(count),
                    false => Err(Errno::ERANGE),
                }
            }
        }
    }

    /// Of a file without data: what it has of objects is empty, and goes.
    fn set_file_layout(
        &self,
        caller: &Caller,
        ino: Ino,
        record: &InodeRecord,
        layout: Layout,
    ) -> Result<()> {
        let attr = self.attrs.of(ino)?;
        if attr.size_bytes > 0 || attr.blocks_512 > 0 {
            return Err(Errno::EEXIST);
        }
        if record.is_striped() {
            // They may lie elsewhere by the new layout.
            self.striped.remove_objects(ino, &record.layout)?;
        }
        let had_object = record.has(inode_flags::HAS_OBJECT);
        self.put_layout(caller, ino, layout, layout.is_striped())?;
        if had_object && layout.is_striped() {
            self.objects.remove(ObjectId::whole(ino))?;
        }
        if record.is_striped() && !layout.is_striped() {
            // Who has it open goes on there.
            self.attrs.ensure_object(ino, &self.records.inode(ino)?)?;
        }
        Ok(())
    }

    /// `without_object`: the object of a whole file is given up.
    fn put_layout(
        &self,
        caller: &Caller,
        ino: Ino,
        layout: Layout,
        without_object: bool,
    ) -> Result<()> {
        let mut txn = self.records.begin(caller);
        let now = txn.now;
        let edited = txn.edit(ino)?;
        edited.layout = layout;
        edited.ctime = now;
        if without_object {
            edited.flags &= !inode_flags::HAS_OBJECT;
        }
        txn.commit()?;
        Ok(())
    }
}
