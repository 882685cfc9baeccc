//! Copies what this server has of a striped file, straight between its own object and the PFS, and
//! brings it to its end: on stable storage, read back, compared.
//!
//! Invariant: a part that is told to be copied is written nowhere but in the blocks of its own object,
//! is on stable storage *before* the file gets its attributes (a PFS's client that writes back later
//! would change its times), and was compared with what was read. Called by `lead` for the object that
//! its own server has, by `job` for another server.

use super::super::copy::{Env, copy};
use super::super::fault::{Fault, Outcome, Sort, Where};
use super::super::memory::Memory;
use super::super::meta::Meta;
use super::super::pfs::RequesterPfs;
use super::super::stop::Pace;
use super::sum::StripeSum;
use super::view::View;
use forebay_failpoint::step;
use forebay_interfaces::data::Data;
use forebay_proto::Errno;
use forebay_proto::control::{Direction, StageOptions};
use forebay_proto::layout::Layout;
use parking_lot::Mutex;
use std::fs::File;
use std::sync::Arc;

/// A part, open on both sides.
pub(super) struct Part<'a> {
    pub pfs: &'a RequesterPfs,
    pub direction: Direction,
    pub medium: bool,
    pub layout: Layout,
    pub stripe: u32,
    /// Of the whole file.
    pub size_bytes: u64,
    /// The file on the PFS, for hooks of tests by this name.
    pub file: Arc<File>,
    pub name: &'a [u8],
    pub object: Data,
}

/// What a copy of it needs.
pub(super) struct How<'a> {
    pub pace: &'a Pace,
    /// Told of bytes as they are written.
    pub count: &'a (dyn Fn(u64) + Sync),
    /// Fails as soon as there is no use in going on.
    pub check: &'a (dyn Fn() -> Outcome<()> + Sync),
}

impl Part<'_> {
    /// What the part adds to the file's checksum; `None` if the source does not end where it says:
    /// it has to be read from its start to its end.
    pub fn copy(self, how: &How<'_>, memory: &mut Memory) -> Outcome<Option<u32>> {
        let before = self.stat()?;
        let view = View::new(self.file.clone(), self.layout, self.stripe, self.size_bytes);
        let view = Data::Striped(Arc::new(view));
        let (source, target) = match self.direction {
            Direction::In => (&view, &self.object),
            Direction::Out => (&self.object, &view),
        };
        let meta = self.source_meta(&before, source)?;
        let sum = Mutex::new(StripeSum::new(self.layout, self.stripe));
        let env = Env {
            pace: how.pace,
            hook: self.pfs.hook.as_ref(),
            name: self.name,
            count: how.count,
            seen: &|offset, bytes| {
                (how.check)()?;
                sum.lock().add(offset, bytes);
                Ok(())
            },
            grow: &|_| Err(Fault::changed("it became longer")),
            follow: !self.medium,
            align_bytes: StageOptions::ALIGN_BYTES,
        };
        let copied = {
            let fault = Fault::target("write target");
            let _acting = match self.direction {
                Direction::In => None,
                Direction::Out => Some(self.pfs.identity.enter().map_err(fault)?),
            };
            copy(&env, source, &meta, target, memory)?
        };
        if copied.size_bytes() != meta.size_bytes {
            return Ok(None);
        }
        step("a part is copied");
        self.sync(target)?;
        step("a part is on stable storage");
        copied.verify(how.pace, target, self.medium, memory)?;
        if self.direction == Direction::In
            && let Some(what) = self.stat()?.changed_since(&before)
        {
            return Err(Fault::changed(what));
        }
        step("a part is compared");
        Ok(Some(sum.into_inner().of_file(self.size_bytes)))
    }

    /// Attributes of the file on the PFS.
    fn stat(&self) -> Outcome<Meta> {
        let (side, what) = match self.direction {
            Direction::In => (Where::Source, "stat source"),
            Direction::Out => (Where::Target, "stat target"),
        };
        let stat = rustix::fs::fstat(&self.file).map_err(|e| Errno(e.raw_os_error()));
        let meta = stat.and_then(|stat| Meta::of_stat(&stat).ok_or(Errno::EINVAL));
        meta.map_err(|errno| Fault { side, ..Fault::source(what)(errno) })
    }

    /// The source of the part, as long as it must be. Whether it may have holes is all that its space
    /// is asked for.
    fn source_meta(&self, file: &Meta, source: &Data) -> Outcome<Meta> {
        let size_bytes = self.layout.object_bytes(self.stripe, self.size_bytes);
        let now = source.size_bytes().map_err(Fault::source("stat source"))?;
        if now > size_bytes {
            return Err(Fault::changed("it became longer"));
        }
        let is_whole = match self.direction {
            Direction::In => file.allocated_bytes >= file.size_bytes,
            Direction::Out => match source.under().map(rustix::fs::fstat) {
                Some(Ok(stat)) => stat.st_blocks as u64 * 512 >= size_bytes,
                _ => false,
            },
        };
        Ok(Meta { size_bytes, allocated_bytes: if is_whole { size_bytes } else { 0 }, ..*file })
    }

    fn sync(&self, target: &Data) -> Outcome<()> {
        let fault = Fault::target("fsync target");
        let _acting = match self.direction {
            Direction::In => None,
            Direction::Out => Some(self.pfs.act("fsync", self.name).map_err(&fault)?),
        };
        target.sync().map_err(fault)
    }
}

/// A failure of a part that says nothing about the file: it is tried again as soon as the server can
/// be asked. On the side of the buffer, whose server it is.
pub(super) fn away(direction: Direction, errno: Errno, why: String) -> Fault {
    let side = match direction {
        Direction::In => Where::Target,
        Direction::Out => Where::Source,
    };
    let what = "copy part of striped file";
    Fault { what, side, errno, why: Some(why), sort: Sort::System }
}
