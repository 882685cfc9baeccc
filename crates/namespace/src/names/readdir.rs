//! readdir and readdirplus.
//!
//! Entries come in order of their cookies, which grow with insertion and are never reused, so
//! a listing of a changing directory shows each surviving entry exactly once.

use super::Names;
use forebay_proto::api::DirEntry;
use forebay_proto::attr::FileKind;
use forebay_proto::{Attr, Caller, Cookie, Errno, Ino, Result};

impl Names {
    /// Highest cookie given out so far.
    pub(crate) fn dir_limit(&self, ino: Ino) -> Result<Cookie> {
        let next = self.records.directory(ino)?.next_cookie;
        Ok(Cookie(next.0 - 1))
    }

    /// Lists; with `plus` each entry carries attributes and a reference.
    pub(crate) fn readdir(
        &self,
        ino: Ino,
        after: Cookie,
        limit: Cookie,
        plus: bool,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let record = self.records.directory(ino)?;
        if record.nlink == 0 {
            // A removed directory lists nothing, not even itself.
            return if after < Cookie::DOT { Err(Errno::ENOENT) } else { Ok(()) };
        }
        self.records.holds().may_list(ino)?;
        if after == Cookie::START {
            self.touch_dir(ino)?;
        }
        let dots: [(Cookie, Ino, &[u8]); 2] =
            [(Cookie::DOT, ino, b"."), (Cookie::DOTDOT, record.parent, b"..")];
        for (cookie, ino, name) in dots {
            let entry = DirEntry { cookie, ino, kind: FileKind::Dir, name, attr: None };
            if cookie > after && !sink(&entry) {
                return Ok(());
            }
        }
        let after = after.max(Cookie::DOTDOT);
        self.records.store().entries(ino, after, limit, &mut |name, entry| {
            let mut dir_entry = DirEntry {
                cookie: entry.cookie,
                ino: entry.ino,
                kind: entry.kind,
                name,
                attr: None,
            };
            if !plus {
                return sink(&dir_entry);
            }
            if entry.ino.shard() != self.records.shard() {
                // Without attributes: who lists takes the reference there.
                return sink(&dir_entry);
            }
            self.refs.add(entry.ino);
            let attr: Attr = match self.attrs.of_entry(entry.ino) {
                Ok(attr) => attr,
                Err(_) => {
                    // Removed since; it does not survive, so it need not be shown.
                    self.reclaim.forget(entry.ino, 1);
                    return true;
                }
            };
            dir_entry.attr = Some(&attr);
            let taken = sink(&dir_entry);
            if !taken {
                self.reclaim.forget(entry.ino, 1);
            }
            taken
        })
    }

    /// The directory's access time, by the mount's rule.
    fn touch_dir(&self, ino: Ino) -> Result<()> {
        let now = forebay_store::clock::stamp();
        if !self.access_times.read().need_update(&self.attrs.of(ino)?, now) {
            return Ok(());
        }
        let mut txn = self.records.begin(&Caller::root());
        txn.use_reserve();
        txn.edit(ino)?.atime = now;
        match txn.commit() {
            // A store that is full, or that takes no changes any more, still lists.
            Ok(_) | Err(Errno::ENOSPC | Errno::EIO) => Ok(()),
            Err(e) => Err(e),
        }
    }
}
