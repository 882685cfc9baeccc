//! What programs ask for. Each function grants, knows an error for certain, or leaves it to the kernel.

use super::given::Named;
use super::rights::{self, EXECUTE, READ, WRITE, granted};
use super::walk::{End, Held, No, look, walk};
use super::{Parts, let_go};
use forebay_proto::api::{CreateArgs, LocalFiles, relatime_needs_update};
use forebay_proto::{Attr, Caller, Errno, FileKind, Ino, Notify, Timestamp};
use std::fs::File;

/// Flags of `open(2)` that a file can be opened with here; with others the kernel opens it.
const TAKEN: i32 = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_NOCTTY
    | libc::O_NOFOLLOW
    | libc::O_CLOEXEC
    | LARGEFILE;
/// O_LARGEFILE as C programs give it; `libc` has 0 for it.
const LARGEFILE: i32 = if cfg!(target_arch = "aarch64") { 0o400_000 } else { 0o100_000 };

/// Who asks, and where the path begins.
#[derive(Clone, Copy)]
pub(super) struct From<'a> {
    pub(super) caller: &'a Caller,
    pub(super) start: Ino,
    pub(super) path: &'a [u8],
}

/// What a name leads to.
struct Looked<'a> {
    found: Option<Held<'a>>,
    /// The kernel may believe it.
    believed: bool,
}

/// A file to be sent. What it was entered as is pending until [`Parts::sent`].
pub(super) struct ToSend {
    pub(super) attr: Attr,
    pub(super) file: File,
    pub(super) made: bool,
}

impl Parts {
    /// The directory and the name that a path ends with.
    pub(super) fn walk<'b>(&self, from: From<'b>) -> Result<End<'_, 'b>, No> {
        walk(&self.cx, from.caller, from.start, from.path)
    }

    fn local(&self) -> Result<&dyn LocalFiles, No> {
        self.cx.local_files().ok_or(No::ByKernel)
    }

    /// What a name leads to.
    fn find(&self, caller: &Caller, end: &End<'_, '_>, nofollow: bool) -> Result<Looked<'_>, No> {
        let found = look(&self.cx, caller, end.dir.ino, end.name)?;
        if found.as_ref().is_some_and(|f| f.attr.kind() == FileKind::Symlink && !nofollow) {
            return Err(No::ByKernel);
        }
        let changes = found.as_ref().is_some_and(|f| self.beside().given.may_change(f.attr.ino));
        let believed = !changes && self.beside().shared.may_be_believed(end.dir.ino);
        Ok(Looked { found, believed })
    }

    /// Attributes; `None` where there is no such name. And whether the kernel may believe that.
    pub(super) fn stat(
        &self,
        caller: &Caller,
        end: &End<'_, '_>,
        nofollow: bool,
    ) -> Result<(Option<Attr>, bool), No> {
        let looked = self.find(caller, end, nofollow)?;
        let attr = looked.found.as_ref().map(|found| found.attr);
        if let Some(attr) = attr.filter(|attr| attr.kind() == FileKind::File) {
            self.tell((end.dir.ino, end.name), attr.ino, false);
        }
        // Device numbers have another form in each call that tells them.
        match attr.is_none_or(|attr| attr.rdev == 0) {
            true => Ok((attr, looked.believed)),
            false => Err(No::ByKernel),
        }
    }

    /// The same, where the caller has this access.
    pub(super) fn access(
        &self,
        caller: &Caller,
        end: &End<'_, '_>,
        nofollow: bool,
        want: u32,
    ) -> Result<(Option<Attr>, bool), No> {
        let looked = self.find(caller, end, nofollow)?;
        let Some(found) = looked.found else { return Ok((None, looked.believed)) };
        let attr = found.attr;
        let writes = want & WRITE != 0;
        let plain = matches!(attr.kind(), FileKind::File | FileKind::Dir);
        if !plain || want & !(READ | WRITE | EXECUTE) != 0 || (writes && self.cx.flags.read_only) {
            return Err(No::ByKernel);
        }
        // An execution may be forbidden by the mount.
        let executes = want & EXECUTE != 0 && attr.kind() == FileKind::File;
        match !executes && granted(&self.cx, caller, &attr, want) {
            true => Ok((Some(attr), looked.believed)),
            false => Err(No::ByKernel),
        }
    }

    pub(super) fn open(
        &self,
        caller: &Caller,
        end: &End<'_, '_>,
        (flags, mode, umask): (u32, u32, u32),
    ) -> Result<ToSend, No> {
        let has = |flag: i32| flags as i32 & flag != 0;
        let access = flags as i32 & libc::O_ACCMODE;
        let reads_only = access == libc::O_RDONLY;
        let odd = access == libc::O_ACCMODE || (reads_only && has(libc::O_TRUNC));
        if flags as i32 & !TAKEN != 0 || odd {
            return Err(No::ByKernel);
        }
        match look(&self.cx, caller, end.dir.ino, end.name)? {
            Some(_) if has(libc::O_CREAT) && has(libc::O_EXCL) => Err(No::Certain(Errno::EEXIST)),
            Some(found) => {
                let kept = has(libc::O_CREAT)
                    && end.dir.mode & libc::S_ISVTX != 0
                    && found.attr.uid != caller.uid;
                if kept {
                    return Err(No::ByKernel);
                }
                self.open_found(caller, found, (end.dir.ino, end.name), flags)
            }
            None if !has(libc::O_CREAT) => Err(No::Certain(Errno::ENOENT)),
            None => self.make(caller, &end.dir, end.name, (flags, mode, umask)),
        }
    }

    fn open_found(
        &self,
        caller: &Caller,
        found: Held<'_>,
        name: (Ino, &[u8]),
        flags: u32,
    ) -> Result<ToSend, No> {
        let want = match flags as i32 & libc::O_ACCMODE {
            libc::O_RDONLY => READ,
            libc::O_WRONLY => WRITE,
            _ => READ | WRITE,
        };
        let (attr, writes) = (found.attr, want & WRITE != 0);
        if attr.kind() != FileKind::File || !granted(&self.cx, caller, &attr, want) {
            return Err(No::ByKernel);
        }
        // A program may run from the file: only the kernel knows, and only of what is opened through the mount (ETXTBSY).
        let may_run = attr.mode & 0o111 != 0;
        if writes
            && (self.cx.flags.read_only || may_run || rights::loses_by_writes(&self.cx, &attr))
        {
            return Err(No::ByKernel);
        }
        // A read may store a time of access.
        let stamps = writes || relatime_needs_update(&attr, Timestamp::now());
        self.enter(found, name, stamps)?;
        let opened = self.open_entered(caller, &attr, flags);
        if opened.is_err() {
            self.sent(attr.ino);
        }
        let file = opened?;
        if flags as i32 & libc::O_TRUNC != 0 {
            self.truncated(attr.ino);
        }
        self.tell(name, attr.ino, stamps);
        Ok(ToSend { attr, file, made: false })
    }

    fn open_entered(&self, caller: &Caller, attr: &Attr, flags: u32) -> Result<File, No> {
        let writes = flags as i32 & libc::O_ACCMODE != libc::O_RDONLY;
        // Space on its way back is waited for by an open that hands the object itself out.
        let waits = writes && self.cx.fs.space_is_coming();
        drop(self.cx.fs.open(caller, attr.ino, flags, false, waits)?);
        Ok(self.local()?.open_local(attr.ino, flags)?)
    }

    fn make(
        &self,
        caller: &Caller,
        dir: &Attr,
        name: &[u8],
        (flags, mode, umask): (u32, u32, u32),
    ) -> Result<ToSend, No> {
        let allowed = granted(&self.cx, caller, dir, WRITE | EXECUTE);
        if !allowed || self.cx.flags.read_only || mode & 0o7000 != 0 || dir.nlink == 0 {
            return Err(No::ByKernel);
        }
        self.before_change(dir.ino);
        let args = CreateArgs { mode: mode & 0o777, umask: umask & 0o777 };
        let create = || self.cx.fs.create_for(caller, dir.ino, name, args, flags);
        let (entry, object) = self.cx.within.make(create)?;
        let attr = entry.attr;
        self.beside().made(attr.ino);
        let found = Held::of(&self.cx, attr);
        let writes = flags as i32 & libc::O_ACCMODE != libc::O_RDONLY;
        let made = self.enter(found, (dir.ino, name), writes).and_then(|()| {
            // The one that came with it was opened for this open alone.
            let file = object.map_or_else(|| Ok(self.local()?.open_local(attr.ino, flags)?), Ok);
            file.inspect_err(|_| self.sent(attr.ino))
        });
        match made {
            Ok(file) => {
                self.tell((dir.ino, name), attr.ino, writes);
                Ok(ToSend { attr, file, made: true })
            }
            // The kernel would find it made: take it back, as if nothing had been done.
            Err(no) => {
                if let Err(error) = self.cx.fs.unlink(caller, dir.ino, name) {
                    tracing::warn!(%error, ino = %attr.ino, "a file that could not be opened stays");
                }
                self.beside().settle(&self.cx, attr.ino);
                Err(no)
            }
        }
    }

    /// Enters a file that is about to be given out. Its reference goes to the table if that has none.
    /// If its attributes change while it is open, the kernel believes none of them.
    fn enter(&self, found: Held<'_>, (dir, name): (Ino, &[u8]), changes: bool) -> Result<(), No> {
        let local = self.local()?;
        let ino = found.attr.ino;
        let before = self.beside().given.enter(
            ino,
            changes,
            |other| local.is_in_use(other),
            |other| let_go(&self.cx, other),
        );
        let Some(before) = before else { return Err(No::ByKernel) };
        if !before.given {
            found.keep();
        }
        self.beside().given.set_name(ino, dir, name);
        if changes && !before.recalled {
            self.attributes_changed(ino);
            self.beside().given.recalled(ino);
        }
        Ok(())
    }

    /// Tells programs in shared memory of a file that was entered and is not sent yet. If its attributes may change, the
    /// kernel believes none of them.
    fn tell(&self, (dir, name): (Ino, &[u8]), ino: Ino, changes: bool) {
        let names = self.cx.shared_names();
        if let Some(names) = names.filter(|names| names.is_active()) {
            // An unmount that was refused had closed them.
            names.set_open(true);
            names.put_inode(dir);
            names.put_name(dir, name, ino, changes);
        }
    }

    /// What was entered for a file was sent, or could not be.
    pub(super) fn sent(&self, ino: Ino) {
        self.beside().given.sent(ino);
    }

    /// Pages that the kernel may have of a mapping of a served file are old.
    fn truncated(&self, ino: Ino) {
        if !self.cx.wants_local() && self.beside().may_be_known(ino) {
            self.notifier.inode_changed(ino);
        }
    }

    pub(super) fn unlink(&self, caller: &Caller, end: &End<'_, '_>) -> Result<(), No> {
        let cx = &*self.cx;
        if !granted(cx, caller, &end.dir, WRITE | EXECUTE) || cx.flags.read_only {
            return Err(No::ByKernel);
        }
        let found = match self.local()?.lookup_without_object(end.dir.ino, end.name) {
            Ok(entry) => Held::of(cx, entry.attr),
            Err(Errno::ENOENT) => return Err(No::Certain(Errno::ENOENT)),
            Err(_) => return Err(No::ByKernel),
        };
        let ino = found.attr.ino;
        let kept = rights::is_kept_by_sticky(caller, &end.dir, &found.attr);
        if found.attr.kind() == FileKind::Dir || kept {
            return Err(No::ByKernel);
        }
        self.before_change(end.dir.ino);
        cx.fs.unlink(caller, end.dir.ino, end.name)?;
        if self.beside().may_be_known(ino) {
            self.notifier.attr_recalled(ino);
            // The kernel's name holds the file, and with it its space.
            self.notifier.entry_changed(end.dir.ino, end.name);
        }
        let last = found.attr.nlink <= 1;
        drop(found);
        if last {
            self.beside().last_name_went(cx, ino);
            self.beside().gone(ino);
        } else {
            self.beside().settle(cx, ino);
        }
        Ok(())
    }

    /// Attributes of a file that was given out.
    pub(super) fn stat_given(&self, file: &File) -> Result<Attr, No> {
        Ok(self.cx.fs.getattr(self.local()?.inode_of(file)?)?)
    }

    pub(super) fn sync_given(&self, file: &File, data_only: bool) -> Result<(), No> {
        let ino = self.local()?.inode_of(file)?;
        self.cx.fs.fsync(ino, data_only).map_err(No::Certain)
    }

    /// The inode of a file that is to be exchanged, and the name that it was opened by, in which directory.
    pub(super) fn inode_given(&self, file: &File) -> Result<(Ino, Option<Named>), No> {
        let local = self.local()?;
        let ino = local.inode_of(file)?;
        let unseen = || {
            let (dir, name) = local.shared_names()?.name_of(ino)?;
            Some((dir, name.into_boxed_slice()))
        };
        Ok((ino, self.beside().given.name(ino).or_else(unseen)))
    }
}
